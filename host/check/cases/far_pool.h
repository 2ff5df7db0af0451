/* SPDX-License-Identifier: Apache-2.0
 *
 * far_pool.h: pools in which pages (slots of states, too) have places far apart.
 *
 * A case keeps its pages side by side in its own memory, where the oracle and the judge read them.
 * For the backend they lie in a pool that is much larger, by turns near its beginning and near its
 * end: their numbers need more than 16 bits, or their offsets more than 32. On the CPU a pool is
 * reserved, not filled, so what lies between its pages reads as zero and costs nothing; a GPU has
 * to have the memory.
 */
#ifndef HOST_CHECK_CASES_FAR_POOL_H
#define HOST_CHECK_CASES_FAR_POOL_H

#include "attn_plugin.h"
#include "host/device/device.h"

enum page_spread {
    SPREAD_NONE,
    SPREAD_PAGES, /* numbers to beyond 2^17; on a GPU 2^16 */
    SPREAD_BYTES, /* offsets to beyond 2^32 bytes and 2^31 elements; on the CPU 2^32 elements */
    PAGE_SPREADS
};

enum { FAR_ALIGNMENT = 256 }; /* of operands */

/* Memory of which little is touched: on the CPU reserved, not filled, and zero; a GPU has to have
 * it. On the CPU a page that may not be looked at comes after it, as near as the alignment, a power
 * of two up to 4096, lets it. NULL = there is none. */
void *far_map(const struct device *device, uint64_t bytes, uint64_t alignment);
void far_unmap(const struct device *device, void *memory, uint64_t bytes); /* NULL is accepted */

/* So many elements have to lie between the first and the last one of something that no 32 bits may
 * count, neither in bytes nor, on the CPU with a sign or without, in elements. */
int64_t far_distance(const struct device *device, uint32_t element_size);

/* Where pages 0 .. count - 1 of a case have their places. */
struct far_places {
    const struct device *device;
    enum page_spread spread;
    int64_t num_places;
    int32_t count;
    int32_t *place;
};

/* Page 0 keeps its place, which is padding. OUT_OF_HOST_MEMORY. */
attn_status far_places_init(struct far_places *places, const struct device *device,
                            enum page_spread spread, int32_t count, uint64_t seed,
                            attn_error *error);
void far_places_finish(struct far_places *places);

/* The place of a page. What is no page of the case stays as it is. */
int64_t far_place(const struct far_places *places, int64_t page);

/* A tensor whose outermost dimension is that of pages, and its twin in a pool. */
struct far_pool {
    const struct far_places *places;
    attn_tensor tensor; /* for the backend */
    char *memory;
    uint64_t bytes, page_bytes;
};

/* OUT_OF_HOST_MEMORY and OUT_OF_DEVICE_MEMORY say how much was asked for. */
attn_status far_pool_init(struct far_pool *pool, const struct far_places *places,
                          const attn_tensor *dense, attn_error *error);
void far_pool_finish(struct far_pool *pool); /* a zeroed one, too */

/* All pages from the case's memory, where they begin at `dense`, to their places; and back. */
attn_status far_pool_send(const struct far_pool *pool, const char *dense, attn_stream stream,
                          attn_error *error);
attn_status far_pool_fetch(const struct far_pool *pool, char *dense, attn_stream stream,
                           attn_error *error);

#endif /* HOST_CHECK_CASES_FAR_POOL_H */
