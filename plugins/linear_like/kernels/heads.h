/* SPDX-License-Identifier: Apache-2.0
 *
 * heads.h: arguments of linear_heads_* and linear_slices_*.
 */
#ifndef LINEAR_LIKE_HEADS_H
#define LINEAR_LIKE_HEADS_H

#include "plugins/linear_like/kernels/params.h"

typedef struct linear_heads_call {
    linear_decode_call decode;
    int slots;            /* least number of slots of a pool */
    int kept;             /* states are loaded with evict_last */
    long long prefetched; /* bytes of states: the first blocks prefetch theirs */
} linear_heads_call;

#endif /* LINEAR_LIKE_HEADS_H */
