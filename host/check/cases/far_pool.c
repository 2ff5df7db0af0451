/* SPDX-License-Identifier: Apache-2.0
 *
 * far_pool.c: mapping of a case's pages to places far apart.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* MAP_NORESERVE */
#endif
#include "host/check/cases/far_pool.h"

#include "host/base/error.h"
#include "host/base/mix.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
    MANY_ON_CPU = 140000, /* beyond 2^17 */
    MANY_ON_GPU = 70000,  /* beyond 2^16: the memory is there, not only reserved */
    ROOM = 4,             /* places for each page where bytes are what is large */
    FIRST_BYTE = 256,     /* of the tensor: its byte_offset */
    GUARD_BYTES = 4096
};

static bool is_cpu(const struct device *device)
{
    return device->type == ATTN_DEVICE_CPU;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;
}

void *far_map(const struct device *device, uint64_t bytes, uint64_t alignment)
{
    if (!is_cpu(device))
        return device_allocate(device, ATTN_SPACE_DEVICE, bytes, 256);
    uint64_t whole = whole_pages(bytes);
    char *memory = mmap(NULL, whole + GUARD_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    if (mprotect(memory + whole, GUARD_BYTES, PROT_NONE) != 0) {
        munmap(memory, whole + GUARD_BYTES);
        return NULL;
    }
    return memory + (whole - bytes) / alignment * alignment;
}

void far_unmap(const struct device *device, void *memory, uint64_t bytes)
{
    if (!memory)
        return;
    if (is_cpu(device))
        munmap((char *)memory - (uintptr_t)memory % GUARD_BYTES, whole_pages(bytes) + GUARD_BYTES);
    else
        device_release(device, ATTN_SPACE_DEVICE, memory);
}

int64_t far_distance(const struct device *device, uint32_t element_size)
{
    bool has_room = is_cpu(device) || element_size == 1;
    int64_t limit = (int64_t)1 << (has_room ? 32 : 31); /* 4 GiB at least */
    return limit + limit / 8;
}

/* ---- Places ---------------------------------------------------------------------------------- */

attn_status far_places_init(struct far_places *places, const struct device *device,
                            enum page_spread spread, int32_t count, uint64_t seed,
                            attn_error *error)
{
    int64_t many = is_cpu(device) ? MANY_ON_CPU : MANY_ON_GPU;
    bool is_roomy = spread == SPREAD_BYTES || 2 * (int64_t)count > many;
    *places = (struct far_places){.device = device, .spread = spread, .count = count};
    places->num_places = is_roomy ? (int64_t)ROOM * count : many;
    places->place = calloc((size_t)count, sizeof *places->place);
    if (!places->place)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the places of %d pages",
                         count);
    int64_t step = count > 1 ? (places->num_places - 1) / (count - 1) : 1;
    for (int32_t page = 1; page < count; page++) {
        int64_t nth = page % 2 ? page / 2 : count - 1 - page / 2;
        uint32_t bits = (uint32_t)(mix_stream(seed, (uint64_t)page) >> 32);
        places->place[page] = (int32_t)(1 + nth * step + (int64_t)mix_below(bits, (uint64_t)step));
    }
    return ATTN_OK;
}

void far_places_finish(struct far_places *places)
{
    free(places->place);
}

int64_t far_place(const struct far_places *places, int64_t page)
{
    return page > 0 && page < places->count ? places->place[page] : page;
}

/* ---- Pools ----------------------------------------------------------------------------------- */

/* From page to page, in elements: as it is, or so that the last ones lie beyond what 32 bits count.
 */
static int64_t stride_of(const struct far_places *places, const attn_tensor *dense)
{
    if (places->spread == SPREAD_PAGES)
        return dense->strides[0];
    int64_t distance = far_distance(places->device, attn_dtype_size(dense->dtype));
    int64_t stride = distance / places->num_places / 64 * 64;
    return stride > dense->strides[0] ? stride : dense->strides[0];
}

attn_status far_pool_init(struct far_pool *pool, const struct far_places *places,
                          const attn_tensor *dense, attn_error *error)
{
    uint64_t size = attn_dtype_size(dense->dtype);
    *pool = (struct far_pool){.places = places, .tensor = *dense};
    pool->page_bytes = (uint64_t)dense->strides[0] * size;
    pool->tensor.shape[0] = places->num_places;
    pool->tensor.strides[0] = stride_of(places, dense);
    pool->bytes = FIRST_BYTE + (uint64_t)(places->num_places * pool->tensor.strides[0]) * size;
    pool->tensor.data = pool->memory = far_map(places->device, pool->bytes, FAR_ALIGNMENT);
    pool->tensor.byte_offset = FIRST_BYTE;
    if (pool->memory)
        return ATTN_OK;
    return host_fail(error,
                     is_cpu(places->device) ? ATTN_OUT_OF_HOST_MEMORY
                                            : device_exhausted(places->device, ATTN_SPACE_DEVICE),
                     "no room for a pool of %lld pages in %llu bytes",
                     (long long)places->num_places, (unsigned long long)pool->bytes);
}

void far_pool_finish(struct far_pool *pool)
{
    if (pool->memory)
        far_unmap(pool->places->device, pool->memory, pool->bytes);
}

static char *page_of(const struct far_pool *pool, int32_t page)
{
    int64_t size = attn_dtype_size(pool->tensor.dtype);
    return pool->memory + FIRST_BYTE +
           far_place(pool->places, page) * pool->tensor.strides[0] * size;
}

attn_status far_pool_send(const struct far_pool *pool, const char *dense, attn_stream stream,
                          attn_error *error)
{
    attn_status status = ATTN_OK;
    for (int32_t page = 0; page < pool->places->count && status == ATTN_OK; page++)
        status =
            device_copy(pool->places->device, page_of(pool, page),
                        dense + (uint64_t)page * pool->page_bytes, pool->page_bytes, stream, error);
    return status;
}

attn_status far_pool_fetch(const struct far_pool *pool, char *dense, attn_stream stream,
                           attn_error *error)
{
    attn_status status = ATTN_OK;
    for (int32_t page = 0; page < pool->places->count && status == ATTN_OK; page++)
        status = device_copy(pool->places->device, dense + (uint64_t)page * pool->page_bytes,
                             page_of(pool, page), pool->page_bytes, stream, error);
    return status;
}
