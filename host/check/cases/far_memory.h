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

/* Memory of which little is touched: on the CPU it is reserved, not filled, and zero; on a GPU it
 * is allocated. On the CPU an inaccessible page follows it, as near as the alignment, a power of
 * two up to 4096, allows. NULL = there is none. */
void *far_map(const struct device *device, uint64_t bytes, uint64_t alignment);
void far_unmap(const struct device *device, void *memory, uint64_t bytes); /* NULL is accepted */

/* Elements between the first and the last one of an operand whose extent must exceed 32 bits: in
 * bytes and, on the CPU, also in elements, signed and unsigned. */
int64_t far_distance(const struct device *device, uint32_t element_size);

#endif /* HOST_CHECK_CASES_FAR_MEMORY_H */
