/* SPDX-License-Identifier: Apache-2.0
 *
 * region.h: what our plugins say to memory that is too small or misaligned.
 */
#ifndef PLUGINS_REGION_H
#define PLUGINS_REGION_H

#include "attn_backend.h"

/* Has the region `needed` bytes, aligned to `alignment`? BUFFER_TOO_SMALL with error->needed, or
 * INVALID_ARGUMENT; `name` is what the message calls it. */
attn_status region_check(const attn_memory *memory, uint32_t region, const char *name,
                         uint64_t needed, uint64_t alignment, attn_error *error);

#endif /* PLUGINS_REGION_H */
