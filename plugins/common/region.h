/* SPDX-License-Identifier: Apache-2.0
 *
 * region.h: what our plugins say of the memory of metadata, and to memory that is too small or
 * misaligned.
 */
#ifndef PLUGINS_REGION_H
#define PLUGINS_REGION_H

#include "attn_backend.h"

/* `given` in a struct of ours. INVALID_ARGUMENT for none, or for a kind (ATTN_METADATA_*) that is
 * not known. */
attn_status region_read_bounds(uint32_t kind, const attn_bounds *given, attn_bounds *bounds,
                               attn_error *error);

/* The same on a processor, where nothing is captured: CAPTURE_UNSUPPORTED for GRAPH. */
attn_status region_read_eager_bounds(uint32_t kind, const attn_bounds *given, attn_bounds *bounds,
                                     attn_error *error);

/* Clear the caller's struct after its struct_size, as far as that goes. */
void region_clear_size(attn_memory_size *size);

/* The answer of metadata_size on a processor: scratch, and the metadata itself. */
void region_tell_size(attn_memory_size *size, uint64_t scratch, uint64_t metadata,
                      uint64_t alignment);

/* Has the region `needed` bytes, aligned to `alignment`? BUFFER_TOO_SMALL with error->needed, or
 * INVALID_ARGUMENT; `name` is what the message calls it. */
attn_status region_check(const attn_memory *memory, uint32_t region, const char *name,
                         uint64_t needed, uint64_t alignment, attn_error *error);

/* Has memory what region_tell_size() said? */
attn_status region_check_told(const attn_memory *memory, uint64_t scratch, uint64_t metadata,
                              uint64_t alignment, attn_error *error);

#endif /* PLUGINS_REGION_H */
