/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.h: checks of an engine's batch before a plugin gets it.
 */
#ifndef HOST_EMBED_BATCH_H
#define HOST_EMBED_BATCH_H

#include "attn_batch.h"
#include "host/embed/embed.h"

/* Who writes which state slot of a batch: a hash table that is kept from batch to batch. Zeroed =
 * empty. */
struct embed_slots {
    struct embed_slot *entries; /* [capacity] */
    uint32_t capacity;          /* a power of two, or 0 */
    uint32_t batch;             /* entries of other numbers are free */
};

void embed_slots_free(struct embed_slots *slots);

/* Is the batch within the bounds, complete for this backend, and, as far as its arrays can be read
 * here, without contradictions? INVALID_ARGUMENT with field BATCH and the member's name;
 * OUT_OF_HOST_MEMORY. */
attn_status embed_check_batch(const attnhost_backend *backend, uint32_t kind,
                              const attn_bounds *bounds, struct embed_slots *slots,
                              const attn_batch *batch, attn_error *error);

#endif /* HOST_EMBED_BATCH_H */
