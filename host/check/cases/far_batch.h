/* SPDX-License-Identifier: Apache-2.0
 *
 * far_batch.h: a backend in front of the one that is checked, whose batches find their tables
 * elsewhere: rows of req_to_token, block_table and token_pos, entries of kv_indices and bytes of a
 * mask lie so far apart, or so far from the beginning, that no 32 bits count what lies between, in
 * bytes or, where the ABI's own numbers allow it, in entries.
 *
 * As strider.h does it for operands: the case and its judgement know nothing of it.
 */
#ifndef HOST_CHECK_CASES_FAR_BATCH_H
#define HOST_CHECK_CASES_FAR_BATCH_H

#include "attn_plugin.h"
#include "host/device/device.h"

enum { FAR_BATCH_BLOCKS = 24, FAR_BATCH_GROUPS = 2 };

/* Initialised in place and never copied; it outlives the sessions that were given its type. There
 * is one at a time in a process: slots of a backend have no context. */
struct far_batch {
    attn_backend_type type; /* what sessions call */
    attn_backend_ops ops;
    const attn_backend_type *inner;
    const struct device *device;
    int32_t tables; /* that were moved, in all */
    int32_t num_blocks;
    struct far_block {
        void *memory;
        uint64_t bytes; /* 0 = on the host */
    } blocks[FAR_BATCH_BLOCKS];
};

void far_batch_init(struct far_batch *far, const attn_backend_type *inner,
                    const struct device *device);
void far_batch_finish(struct far_batch *far);

#endif /* HOST_CHECK_CASES_FAR_BATCH_H */
