/* SPDX-License-Identifier: Apache-2.0
 *
 * warps.h: what the kernels of warps_kernels.cu are launched with, for both sides.
 *
 *   warps_save    grid [new rows, kv_heads]: keys and values to their slots
 *   warps_attend  grid [query rows, q_heads]: WARPS_PARTS warps a block, each of which goes over a
 *                 part of the keys that the row sees
 */
#ifndef WARPS_H
#define WARPS_H

#include "plugins/common/cuda/call.h"

#define WARPS_MAX_DIM      512
#define WARPS_PARTS        4  /* warps of a block of warps_attend */
#define WARPS_SAVE_THREADS 64 /* of a block of warps_save */

typedef struct warps_call {
    call_operands operands;
    call_batch batch;
    int dtype, out_dtype; /* ELEMENT_* of elements.cuh; dtype of q, k, v and the caches */
    int kv_heads, ratio;  /* query heads of a KV head */
    int dim, v_dim;
    int page_size;
    int window_left, chunk; /* the window to the right is the batch's */
    float sm_scale;
    float logit_cap; /* 0 = off */
} warps_call;

/* Bytes of shared memory of a block of warps_attend: an output vector and an LSE for each part. */
#define WARPS_SHARED(v_dim) (WARPS_PARTS * ((v_dim) + 1) * 4)

#endif /* WARPS_H */
