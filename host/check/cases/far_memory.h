/* SPDX-License-Identifier: Apache-2.0
 *
 * far_memory.h: memory of more bytes or elements than 32 bits count.
 */
#ifndef HOST_CHECK_CASES_FAR_MEMORY_H
#define HOST_CHECK_CASES_FAR_MEMORY_H

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

#endif /* HOST_CHECK_CASES_FAR_MEMORY_H */
