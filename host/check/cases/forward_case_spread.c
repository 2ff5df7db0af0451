/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_case_spread.c: caches whose pages lie far apart for the backend.
 *
 * A case keeps its pages side by side in the arena, where the oracle and the judge read them. Here
 * they get places in a pool that is much larger, in the same order: numbers of pages beyond 16 and
 * 17 bits, or offsets beyond 32. On the CPU a pool is reserved, not filled, so what lies between
 * its pages reads as zero and costs nothing; a GPU has to have the memory.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* MAP_NORESERVE */
#endif
#include "host/check/cases/forward_case_private.h"

#include "host/base/error.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    MANY_PAGES_CPU = 140000, /* beyond 2^17 */
    MANY_PAGES_GPU = 70000,  /* beyond 2^16: the memory is there, not only reserved */
    FAR_PAGES = 4,           /* places for each page of the case */
    FIRST_BYTE = 64          /* of a tensor in its pool: its byte_offset */
};

/* The arrays of a batch that name pages or slots. */
static const enum case_part_id tables[] = {PART_BLOCK_TABLE, PART_KV_INDICES, PART_REQ_TO_TOKEN,
                                           PART_OUT_CACHE_LOC};
static const enum case_part_id caches[] = {PART_K_CACHE, PART_V_CACHE, PART_LATENT_CACHE};
enum { TABLES = 4, CACHES = 3 };

struct case_pool {
    int64_t num_pages;
    int32_t *place; /* of each page of the case */
    char *memory[CACHES];
    uint64_t bytes[CACHES];
    int64_t stride[CACHES]; /* elements from page to page */
    char *sent[TABLES];     /* the arrays as they were sent */
};

static bool is_cpu(const struct forward_case *c)
{
    return c->device->type == ATTN_DEVICE_CPU;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static char *map(const struct forward_case *c, uint64_t bytes)
{
    if (!is_cpu(c))
        return device_allocate(c->device, ATTN_SPACE_DEVICE, bytes, CASE_ALIGNMENT);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void unmap(const struct forward_case *c, char *memory, uint64_t bytes)
{
    if (!is_cpu(c))
        device_release(c->device, ATTN_SPACE_DEVICE, memory);
    else if (memory)
        munmap(memory, bytes);
}

/* From page to page, in elements: as in the arena, or so that the last places lie beyond what 32
 * bits count. */
static int64_t stride_of(const struct forward_case *c, enum case_part_id part)
{
    const struct case_shape *shape = &c->shapes[part];
    bool has_room = is_cpu(c) || attn_dtype_size(shape->dtype) == 1;
    int64_t limit = (int64_t)1 << (has_room ? 32 : 31); /* 4 GiB at least */
    if (c->spec.spread == SPREAD_PAGES)
        return shape->strides[0];
    int64_t stride = (limit + limit / 8) / c->pool->num_pages / 64 * 64;
    return stride > shape->strides[0] ? stride : shape->strides[0];
}

static attn_status map_cache(struct forward_case *c, int n, attn_error *error)
{
    struct case_pool *pool = c->pool;
    uint64_t size = attn_dtype_size(c->shapes[caches[n]].dtype);
    if (!c->parts[caches[n]].bytes)
        return ATTN_OK;
    pool->stride[n] = stride_of(c, caches[n]);
    pool->bytes[n] = FIRST_BYTE + (uint64_t)(pool->num_pages * pool->stride[n]) * size;
    pool->memory[n] = map(c, pool->bytes[n]);
    if (pool->memory[n])
        return ATTN_OK;
    return host_fail(error,
                     is_cpu(c) ? ATTN_OUT_OF_HOST_MEMORY
                               : device_exhausted(c->device, ATTN_SPACE_DEVICE),
                     "no room for a pool of %lld pages in %llu bytes", (long long)pool->num_pages,
                     (unsigned long long)pool->bytes[n]);
}

/* Page 0 stays; the others keep their order, the last one comes near the end. */
static void choose_places(struct forward_case *c)
{
    struct case_pool *pool = c->pool;
    int64_t step = (pool->num_pages - 1) / (c->num_pages - 1);
    uint64_t stream = case_stream(c->seed, DRAW_PAGES, 1, 0, 0);
    for (int32_t page = 1; page < c->num_pages; page++)
        pool->place[page] = (int32_t)(1 + (page - 1) * step) +
                            case_below(stream, (uint64_t)page, (int32_t)step);
}

attn_status case_pool_create(struct forward_case *c, attn_error *error)
{
    if (c->spec.spread == SPREAD_NONE)
        return ATTN_OK;
    struct case_pool *pool = c->pool = calloc(1, sizeof *pool);
    int64_t many = is_cpu(c) ? MANY_PAGES_CPU : MANY_PAGES_GPU;
    attn_status status = ATTN_OK;
    if (pool) {
        bool far = c->spec.spread == SPREAD_BYTES || 2 * c->num_pages > many;
        pool->num_pages = far ? (int64_t)FAR_PAGES * c->num_pages : many;
        pool->place = calloc((size_t)c->num_pages, sizeof *pool->place);
    }
    bool has_memory = pool && pool->place;
    for (int n = 0; n < TABLES && has_memory; n++) {
        pool->sent[n] = malloc(c->parts[tables[n]].bytes + 1);
        has_memory = pool->sent[n] != NULL;
    }
    if (!has_memory)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the places of pages");
    choose_places(c);
    for (int n = 0; n < CACHES && status == ATTN_OK; n++)
        status = map_cache(c, n, error);
    return status;
}

void case_pool_destroy(struct forward_case *c)
{
    if (!c->pool)
        return;
    for (int n = 0; n < CACHES; n++)
        unmap(c, c->pool->memory[n], c->pool->bytes[n]);
    for (int n = 0; n < TABLES; n++)
        free(c->pool->sent[n]);
    free(c->pool->place);
    free(c->pool);
}

/* ---- Arrays ---------------------------------------------------------------------------------- */

/* What is no page of the case stays as it is: no page, or one that is not used. */
static int64_t place_page(const struct forward_case *c, int64_t page)
{
    return page > 0 && page < c->num_pages ? c->pool->place[page] : page;
}

static int64_t place_slot(const struct forward_case *c, int64_t slot)
{
    int64_t size = c->spec.page_size;
    return slot < 0 ? slot : place_page(c, slot / size) * size + slot % size;
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
            to[i] = (int32_t)place_page(c, ints[i]);
}

/* ---- Pages ----------------------------------------------------------------------------------- */

/* The page of a cache in a copy of the arena, and where the backend has it. */
static char *page_in(const struct forward_case *c, const char *arena, int n, int32_t page)
{
    return case_vector(c, (char *)arena, caches[n], page, 0, 0);
}

static char *page_of_pool(const struct forward_case *c, int n, int32_t page)
{
    int64_t size = attn_dtype_size(c->shapes[caches[n]].dtype);
    return c->pool->memory[n] + FIRST_BYTE + place_page(c, page) * c->pool->stride[n] * size;
}

static uint64_t page_bytes(const struct forward_case *c, int n)
{
    const struct case_shape *shape = &c->shapes[caches[n]];
    return (uint64_t)shape->strides[0] * attn_dtype_size(shape->dtype);
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
    for (int n = 0; c->pool && n < CACHES; n++)
        for (int32_t page = 0; page < c->num_pages && c->pool->memory[n] && status == ATTN_OK;
             page++)
            status = device_copy(c->device, page_of_pool(c, n, page), page_in(c, arena, n, page),
                                 page_bytes(c, n), stream, error);
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
    for (int n = 0; n < CACHES; n++)
        for (int32_t page = 0; page < c->num_pages && c->pool->memory[n] && status == ATTN_OK;
             page++)
            status = device_copy(c->device, page_in(c, c->actual, n, page),
                                 page_of_pool(c, n, page), page_bytes(c, n), stream, error);
    return status;
}

void case_pool_view(const struct forward_case *c, const char *arena, enum case_part_id part,
                    attn_tensor *tensor)
{
    for (int n = 0; c->pool && arena == c->memory && n < CACHES; n++) {
        if (caches[n] != part)
            continue;
        tensor->data = c->pool->memory[n];
        tensor->byte_offset = FIRST_BYTE;
        tensor->shape[0] = c->pool->num_pages;
        tensor->strides[0] = c->pool->stride[n];
    }
}
