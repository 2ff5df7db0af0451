/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_case_spread.c: caches whose pages (slots of states, too) lie far apart for the backend, and the arrays of the
 * batch that say where.
 *
 * A case keeps its pages side by side in its own memory, where the oracle and the judge read them.
 * For the backend they lie in a pool that is much larger, by turns near its beginning and near its
 * end: their numbers need more than 16 bits, or their offsets more than 32. On the CPU a pool is
 * reserved, not filled, so what lies between its pages reads as zero and costs nothing; a GPU has
 * to have the memory.
 */
#include "host/check/cases/forward_case_private.h"

#include "host/base/error.h"

#include <stdlib.h>
#include <string.h>

enum {
    MANY_ON_CPU = 140000, /* beyond 2^17 */
    MANY_ON_GPU = 70000,  /* beyond 2^16: the memory is there, not only reserved */
    ROOM = 4,             /* places for each page where bytes are what is large */
    FIRST_BYTE = 256      /* of the tensor: its byte_offset */
};

struct case_pool {
    int64_t num_places;
    int32_t *place; /* of each page */
    /* Of a cache, or of states, in the pool; without data: there is none. */
    attn_tensor tensors[CASE_PARTS];
    uint64_t bytes[CASE_PARTS];
    char *sent[CASE_PARTS]; /* of arrays that name pages or slots: as they were sent */
};

/* ---- Places ---------------------------------------------------------------------------------- */

/* Page 0 keeps its place, which is padding. */
static attn_status make_places(struct forward_case *c, attn_error *error)
{
    struct case_pool *pool = c->pool;
    const uint64_t seed = case_stream(c->seed, DRAW_PAGES, 1, 0, 0);
    const int32_t count = c->num_pages;
    int64_t many = c->device->type == ATTN_DEVICE_CPU ? MANY_ON_CPU : MANY_ON_GPU;
    bool is_roomy = c->spec.spread == SPREAD_BYTES || 2 * (int64_t)count > many;
    pool->num_places = is_roomy ? (int64_t)ROOM * count : many;
    pool->place = calloc((size_t)count, sizeof *pool->place);
    if (!pool->place)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the places of %d pages",
                         count);
    int64_t step = count > 1 ? (pool->num_places - 1) / (count - 1) : 1;
    for (int32_t page = 1; page < count; page++) {
        int64_t nth = page % 2 ? page / 2 : count - 1 - page / 2;
        uint32_t bits = (uint32_t)(mix_stream(seed, (uint64_t)page) >> 32);
        pool->place[page] = (int32_t)(1 + nth * step + (int64_t)mix_below(bits, (uint64_t)step));
    }
    return ATTN_OK;
}

/* The place of a page. Other numbers stay as they are. */
static int64_t place_of(const struct forward_case *c, int64_t page)
{
    return page > 0 && page < c->num_pages ? c->pool->place[page] : page;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Elements from page to page: dense, or so many that the last pages lie beyond 32 bits. */
static int64_t stride_of(const struct forward_case *c, const struct case_shape *dense)
{
    if (c->spec.spread == SPREAD_PAGES)
        return dense->strides[0];
    int64_t distance = far_distance(c->device, attn_dtype_size(dense->dtype));
    int64_t stride = distance / c->pool->num_places / 64 * 64;
    return stride > dense->strides[0] ? stride : dense->strides[0];
}

static attn_status make_cache(struct forward_case *c, enum case_part_id part, attn_error *error)
{
    const struct case_shape *dense = &c->shapes[part];
    attn_tensor *tensor = &c->pool->tensors[part];
    tensor->shape[0] = c->pool->num_places;
    tensor->strides[0] = stride_of(c, dense);
    c->pool->bytes[part] = FIRST_BYTE + (uint64_t)(tensor->shape[0] * tensor->strides[0]) *
                                            attn_dtype_size(dense->dtype);
    tensor->data = far_map(c->device, c->pool->bytes[part], FAR_ALIGNMENT);
    tensor->byte_offset = FIRST_BYTE;
    if (tensor->data)
        return ATTN_OK;
    return host_fail(error,
                     c->device->type == ATTN_DEVICE_CPU
                         ? ATTN_OUT_OF_HOST_MEMORY
                         : device_exhausted(c->device, ATTN_SPACE_DEVICE),
                     "no room for a pool of %lld pages in %llu bytes",
                     (long long)c->pool->num_places, (unsigned long long)c->pool->bytes[part]);
}

attn_status case_pool_create(struct forward_case *c, attn_error *error)
{
    if (c->spec.spread == SPREAD_NONE)
        return ATTN_OK;
    c->pool = calloc(1, sizeof *c->pool);
    if (!c->pool)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the pools of a case");
    attn_status status = make_places(c, error);
    for (enum case_part_id part = 0; part < CASE_PARTS && status == ATTN_OK; part++) {
        if (c->parts[part].bytes && case_part_is(part, CASE_CACHE | CASE_POOL))
            status = make_cache(c, part, error);
        if (!c->parts[part].bytes || !case_part_is(part, CASE_TABLE))
            continue;
        c->pool->sent[part] = malloc(c->parts[part].bytes);
        if (!c->pool->sent[part])
            status =
                host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the arrays of a case");
    }
    return status;
}

void case_pool_destroy(struct forward_case *c)
{
    if (!c->pool)
        return;
    for (enum case_part_id part = 0; part < CASE_PARTS; part++) {
        far_unmap(c->device, c->pool->tensors[part].data, c->pool->bytes[part]);
        free(c->pool->sent[part]);
    }
    free(c->pool->place);
    free(c->pool);
}

/* ---- Arrays ---------------------------------------------------------------------------------- */

static int64_t place_slot(const struct forward_case *c, int64_t slot)
{
    int64_t size = c->spec.page_size;
    return slot < 0 ? slot : place_of(c, slot / size) * size + slot % size;
}

static void translate(const struct forward_case *c, enum case_part_id part, const char *arena)
{
    uint64_t bytes = c->parts[part].bytes;
    const char *from = arena + c->parts[part].offset;
    const int32_t *ints = (const int32_t *)(const void *)from;
    const int64_t *longs = (const int64_t *)(const void *)from;
    int32_t *to = (int32_t *)(void *)c->pool->sent[part];
    int64_t *slots = (int64_t *)(void *)c->pool->sent[part];
    bool wide = part == PART_OUT_CACHE_LOC;
    for (uint64_t i = 0; i < bytes / (wide ? sizeof *slots : sizeof *to); i++)
        if (wide)
            slots[i] = place_slot(c, longs[i]);
        else if (part == PART_REQ_TO_TOKEN)
            to[i] = (int32_t)place_slot(c, ints[i]);
        else
            to[i] = (int32_t)place_of(c, ints[i]);
}

/* ---- To the backend, and back ---------------------------------------------------------------- */

/* All pages of a cache from where they are in `dense` to their places, or back. */
static attn_status copy_pages(const struct forward_case *c, enum case_part_id part, char *dense,
                              bool back, attn_stream stream, attn_error *error)
{
    const attn_tensor *tensor = &c->pool->tensors[part];
    const int64_t size = attn_dtype_size(c->shapes[part].dtype);
    const uint64_t bytes = (uint64_t)(c->shapes[part].strides[0] * size);
    attn_status status = ATTN_OK;
    for (int32_t page = 0; page < c->num_pages && status == ATTN_OK; page++) {
        char *near = case_vector(c, dense, part, page, 0, 0);
        char *far =
            (char *)tensor->data + FIRST_BYTE + place_of(c, page) * tensor->strides[0] * size;
        status = device_copy(c->device, back ? near : far, back ? far : near, bytes, stream, error);
    }
    return status;
}

attn_status case_pool_send(struct forward_case *c, const char *arena, attn_stream stream,
                           attn_error *error)
{
    attn_status status = ATTN_OK;
    for (enum case_part_id n = 0; c->pool && n < CASE_PARTS && status == ATTN_OK; n++) {
        const struct case_part *part = &c->parts[n];
        const char *sent = c->pool->sent[n];
        if (sent) {
            translate(c, n, arena);
            memcpy(c->planning + part->offset, sent, part->bytes);
            status =
                device_copy(c->device, c->memory + part->offset, sent, part->bytes, stream, error);
        } else if (c->pool->tensors[n].data) {
            status = copy_pages(c, n, (char *)arena, false, stream, error);
        }
    }
    return status;
}

attn_status case_pool_fetch(struct forward_case *c, attn_stream stream, attn_error *error)
{
    attn_status status = c->pool ? device_synchronize(c->device, stream, error) : ATTN_OK;
    for (enum case_part_id n = 0; c->pool && n < CASE_PARTS && status == ATTN_OK; n++) {
        const struct case_part *part = &c->parts[n];
        const char *sent = c->pool->sent[n];
        if (sent && memcmp(c->actual + part->offset, sent, part->bytes) == 0)
            memcpy(c->actual + part->offset, c->image + part->offset, part->bytes);
        else if (c->pool->tensors[n].data)
            status = copy_pages(c, n, c->actual, true, stream, error);
    }
    return status;
}

void case_pool_view(const struct forward_case *c, const char *arena, enum case_part_id part,
                    attn_tensor *tensor)
{
    if (!c->pool || arena != c->memory || !c->pool->tensors[part].data)
        return;
    const attn_tensor *far = &c->pool->tensors[part];
    tensor->data = far->data;
    tensor->byte_offset = far->byte_offset;
    tensor->shape[0] = far->shape[0];
    tensor->strides[0] = far->strides[0];
}
