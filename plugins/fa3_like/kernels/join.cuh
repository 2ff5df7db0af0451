/* SPDX-License-Identifier: Apache-2.0
 *
 * join.cuh: parts of a row become its output, C and CUDA alike. Few tiles leave multiprocessors
 * without one, so their keys are shared out, and each part has sums of its own (params.h).
 */
#ifndef FA3_LIKE_JOIN_CUH
#define FA3_LIKE_JOIN_CUH

#include "plugins/fa3_like/kernels/rows.cuh"

#ifndef __CUDACC__
#include <math.h>
#endif

enum { JOIN_MOST = 16 };

/* What each part of a row counts for, and the row's LSE. */
typedef struct join_row {
    i64 row;  /* of the output; below 0: it is no row of a tile */
    i64 part; /* of the parts' rows and heads */
    int head;
    float share[JOIN_MOST];
    float lse;
} join_row;

PORTABLE int join_is_slow(const fa3_join_call *p, int sequence)
{
    for (int n = 0; n < PORTABLE_AT(p->plan)->slow_count; n++)
        if (index_int(p->slow, n) == sequence)
            return 1;
    return 0;
}

/* Row and head `index` of those of the batch. */
PORTABLE join_row join_find(const fa3_join_call *p, int index)
{
    const float none = bits_f32(0xff800000);
    const int *rows = p->batch.q_indptr;
    join_row r = {-1, index, index % p->heads_q, {0.0f}, none};
    i64 row = (rows ? index_int(rows, 0) : 0) + index / p->heads_q;
    int s = work_find_row(rows, index_num_seqs(&p->batch), (int)row);
    if (s < 0 || join_is_slow(p, s))
        return r;
    r.row = row;
    float sink = p->operands.sinks ? *PORTABLE_AT(p->operands.sinks + r.head) : none, top = sink;
    i64 all = (i64)p->rows * p->heads_q;
    for (int n = 0; n < JOIN_MOST; n++) {
        r.share[n] = n < p->splits ? *PORTABLE_AT(p->lse + n * all + index) : none;
        top = r.share[n] > top ? r.share[n] : top;
    }
    top = top == none ? 0.0f : top;
    float sum = expf(sink - top);
    for (int n = 0; n < JOIN_MOST; n++) {
        r.share[n] = expf(r.share[n] - top); /* a NaN stays one */
        sum += r.share[n];
    }
    for (int n = 0; n < JOIN_MOST && sum != 0.0f; n++)
        r.share[n] /= sum;
    r.lse = sum == 0.0f ? none : top + logf(sum);
    return r;
}

#endif
