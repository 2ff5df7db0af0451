/* SPDX-License-Identifier: Apache-2.0
 *
 * params.h: the one argument of every kernel. Included by the plugin and by its kernels; x86-64 and
 * the device lay it out alike.
 *
 * Strides are in bytes.
 */
#ifndef TRITON_LIKE_PARAMS_H
#define TRITON_LIKE_PARAMS_H

#include "plugins/common/cuda/call.h"

/* kernel_params.split_part: which of the last sequences of the batch are attn_decode's. All before
 * are attn_extend's. */
#define SPLIT_NONE   0
#define SPLIT_DECODE 1 /* the last num_decode_seqs */
#define SPLIT_ALL    2

typedef struct kernel_params {
    call_operands operands;
    call_batch batch;
    void *partial;      /* [rows, q_heads, num_splits, v_head_dim]; rows count from the first */
    float *partial_lse; /* [rows, q_heads, num_splits]; rows of split sequences */
    int *
        partial_used; /* [rows, q_heads]: how many of num_splits are used; 1: `out` has the result */
    int split_part;   /* SPLIT_* */
    int num_splits;   /* of the grid, and of a row of partial results */
    int split_tile;
} kernel_params;

#endif /* TRITON_LIKE_PARAMS_H */
