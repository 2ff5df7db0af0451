/* SPDX-License-Identifier: Apache-2.0
 *
 * merge_launch.h: what the kernels of merge_kernels.cu are launched with.
 *
 * merge_out merges the outputs: block (x, y) does row x, a token's head, its threads the elements y
 * * MERGE_BLOCK and up, in strides of all threads of the row. merge_lse merges the LSE, a thread
 * for each row, and comes after it in the stream: so results may take the place of a part.
 */
#ifndef HOST_EMBED_KERNELS_MERGE_LAUNCH_H
#define HOST_EMBED_KERNELS_MERGE_LAUNCH_H

#include "attn_types.h"

enum { MERGE_MAX_PARTS = 16, MERGE_BLOCK = 128 };

/* X(name) */
#define MERGE_KERNELS(X) X(out) X(lse)

/* [tokens, heads, dim], or [tokens, heads]; strides in elements. */
struct merge_tensor {
    char *data;
    int64_t strides[3];
    attn_dtype dtype;
};

struct merge_launch {
    struct merge_tensor outs[MERGE_MAX_PARTS], lses[MERGE_MAX_PARTS];
    struct merge_tensor out, lse;
    int64_t num_rows; /* tokens * heads */
    int64_t num_heads, dim;
    uint32_t num_parts;
};

#endif /* HOST_EMBED_KERNELS_MERGE_LAUNCH_H */
