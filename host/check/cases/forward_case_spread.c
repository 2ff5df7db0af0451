/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_case_spread.c: caches whose pages lie far apart for the backend (far_pool.h), and the
 * arrays of the batch that say where.
 */
#include "host/check/cases/forward_case_private.h"

#include "host/base/error.h"

#include <stdlib.h>
#include <string.h>

/* The arrays of a batch that name pages or slots, of a cache or of states. */
static const enum case_part_id tables[] = {PART_BLOCK_TABLE,   PART_KV_INDICES, PART_REQ_TO_TOKEN,
                                           PART_OUT_CACHE_LOC, PART_STATE_SLOT, PART_STATE_DST,
                                           PART_SNAPSHOTS,     PART_OTHER_SLOTS};
static const enum case_part_id caches[] = {PART_K_CACHE, PART_V_CACHE, PART_LATENT_CACHE,
                                           PART_STATE, PART_CONV_STATE};
enum { TABLES = sizeof tables / sizeof tables[0], CACHES = sizeof caches / sizeof caches[0] };

struct case_pool {
    struct far_places places;
    struct far_pool caches[CACHES];
    char *sent[TABLES]; /* the arrays as they were sent */
};

/* ---- Memory ---------------------------------------------------------------------------------- */

static attn_status allocate_tables(struct forward_case *c, attn_error *error)
{
    for (int n = 0; n < TABLES; n++) {
        c->pool->sent[n] = malloc(c->parts[tables[n]].bytes + 1);
        if (!c->pool->sent[n])
            return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the arrays of a case");
    }
    return ATTN_OK;
}

static attn_status make_cache(struct forward_case *c, int n, attn_error *error)
{
    const struct case_shape *shape = &c->shapes[caches[n]];
    attn_tensor dense = {.struct_size = sizeof dense, .dtype = shape->dtype, .ndim = shape->ndim};
    memcpy(dense.shape, shape->shape, sizeof dense.shape);
    memcpy(dense.strides, shape->strides, sizeof dense.strides);
    return far_pool_init(&c->pool->caches[n], &c->pool->places, &dense, error);
}

attn_status case_pool_create(struct forward_case *c, attn_error *error)
{
    if (c->spec.spread == SPREAD_NONE)
        return ATTN_OK;
    c->pool = calloc(1, sizeof *c->pool);
    if (!c->pool)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the pools of a case");
    attn_status status = far_places_init(&c->pool->places, c->device, c->spec.spread, c->num_pages,
                                         case_stream(c->seed, DRAW_PAGES, 1, 0, 0), error);
    if (status == ATTN_OK)
        status = allocate_tables(c, error);
    for (int n = 0; n < CACHES && status == ATTN_OK; n++)
        if (c->parts[caches[n]].bytes)
            status = make_cache(c, n, error);
    return status;
}

void case_pool_destroy(struct forward_case *c)
{
    if (!c->pool)
        return;
    for (int n = 0; n < CACHES; n++)
        far_pool_finish(&c->pool->caches[n]);
    for (int n = 0; n < TABLES; n++)
        free(c->pool->sent[n]);
    far_places_finish(&c->pool->places);
    free(c->pool);
}

/* ---- Arrays ---------------------------------------------------------------------------------- */

static int64_t place_slot(const struct forward_case *c, int64_t slot)
{
    int64_t size = c->spec.page_size;
    return slot < 0 ? slot : far_place(&c->pool->places, slot / size) * size + slot % size;
}

static void translate(const struct forward_case *c, int n, const char *arena)
{
    uint64_t bytes = c->parts[tables[n]].bytes;
    const char *from = arena + c->parts[tables[n]].offset;
    const int32_t *ints = (const int32_t *)(const void *)from;
    const int64_t *longs = (const int64_t *)(const void *)from;
    int32_t *to = (int32_t *)(void *)c->pool->sent[n];
    int64_t *slots = (int64_t *)(void *)c->pool->sent[n];
    bool wide = tables[n] == PART_OUT_CACHE_LOC;
    for (uint64_t i = 0; i < bytes / (wide ? sizeof *slots : sizeof *to); i++)
        if (wide)
            slots[i] = place_slot(c, longs[i]);
        else if (tables[n] == PART_REQ_TO_TOKEN)
            to[i] = (int32_t)place_slot(c, ints[i]);
        else
            to[i] = (int32_t)far_place(&c->pool->places, ints[i]);
}

/* ---- To the backend, and back ------------------------------------------------------------------
 */

/* Where the pages of a cache begin in a copy of the arena. */
static char *pages_in(const struct forward_case *c, char *arena, int n)
{
    return case_vector(c, arena, caches[n], 0, 0, 0);
}

attn_status case_pool_send(struct forward_case *c, const char *arena, attn_stream stream,
                           attn_error *error)
{
    attn_status status = ATTN_OK;
    for (int n = 0; c->pool && n < TABLES && status == ATTN_OK; n++) {
        const struct case_part *part = &c->parts[tables[n]];
        translate(c, n, arena);
        memcpy(c->planning + part->offset, c->pool->sent[n], part->bytes);
        status = device_copy(c->device, c->memory + part->offset, c->pool->sent[n], part->bytes,
                             stream, error);
    }
    for (int n = 0; c->pool && n < CACHES && status == ATTN_OK; n++)
        if (c->pool->caches[n].memory)
            status =
                far_pool_send(&c->pool->caches[n], pages_in(c, (char *)arena, n), stream, error);
    return status;
}

attn_status case_pool_fetch(struct forward_case *c, attn_stream stream, attn_error *error)
{
    attn_status status = ATTN_OK;
    if (!c->pool)
        return ATTN_OK;
    status = device_synchronize(c->device, stream, error);
    for (int n = 0; n < TABLES; n++) {
        const struct case_part *part = &c->parts[tables[n]];
        char *actual = c->actual + part->offset;
        if (status == ATTN_OK && memcmp(actual, c->pool->sent[n], part->bytes) == 0)
            memcpy(actual, c->image + part->offset, part->bytes);
    }
    for (int n = 0; n < CACHES && status == ATTN_OK; n++)
        if (c->pool->caches[n].memory)
            status = far_pool_fetch(&c->pool->caches[n], pages_in(c, c->actual, n), stream, error);
    return status;
}

void case_pool_view(const struct forward_case *c, const char *arena, enum case_part_id part,
                    attn_tensor *tensor)
{
    for (int n = 0; c->pool && arena == c->memory && n < CACHES; n++) {
        const attn_tensor *far = &c->pool->caches[n].tensor;
        if (caches[n] != part)
            continue;
        tensor->data = far->data;
        tensor->byte_offset = far->byte_offset;
        tensor->shape[0] = far->shape[0];
        tensor->strides[0] = far->strides[0];
    }
}
