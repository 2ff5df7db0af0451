/* SPDX-License-Identifier: Apache-2.0
 *
 * scratch.h: a worker's memory for a block of heads. Rows are padded with zeros to whole panels
 * (k_stride, v_stride), so that vectors need no tails. */
#ifndef CPU_LINEAR_SCRATCH_H
#define CPU_LINEAR_SCRATCH_H

#include "cpu_linear.h"

typedef struct linear_scratch {
    int64_t k_stride;
    int64_t v_stride;
    float *inputs;       /* [MAX_WIDTH - 1 + CHUNK][larger stride] of the convolution */
    float *weights;      /* [1 + MAX_WIDTH][larger stride] bias, then taps */
    float *state_inputs; /* [MAX_DIM][MAX_WIDTH - 1] */
    float *q;            /* [CHUNK][k_stride] */
    float *k;
    float *v;            /* [CHUNK][v_stride]; becomes u */
    float *k_transposed; /* [k_dim][CHUNK] */
    float *qk;           /* [CHUNK][CHUNK] q.k of all pairs, and k.k */
    float *kk;
    float *qk_decayed; /* [CHUNK][CHUNK] times the decay between the two */
    float *kk_decayed; /* and times -beta of the row */
    float *q_decayed;  /* [CHUNK][k_stride] from the chunk's start */
    float *k_decayed;  /* and times -beta */
    float *k_to_end;   /* [CHUNK][k_stride] to the chunk's end */
    float *decay;      /* [CHUNK], or [CHUNK][k_stride] */
    float *beta;       /* [CHUNK] */
    float *whole;      /* [k_stride] decay of the whole chunk */
    float *out;        /* [CHUNK][v_stride] */
    float *states;     /* [HEAD_BLOCK][k_dim][v_stride] */
    double log_decay;  /* lightning: of every row */
    float whole_low;   /* lightning: what rounding took from `whole`; else 0 */
} linear_scratch;

/* Set the pointers into `memory`; returns the floats it takes. With memory NULL it only returns the
 * size. */
int64_t linear_scratch_init(linear_scratch *scratch, const linear_group *group, float *memory);

#endif /* CPU_LINEAR_SCRATCH_H */
