/* SPDX-License-Identifier: Apache-2.0
 *
 * judge_shim.h: the pass rule for outputs of any program, through ctypes; judge_rivals.py is the
 * twin. Truth, bars and verdict are the library's own (host/reference, host/verify/row.h): here
 * rows are only handed to them, on many threads.
 */
#ifndef JUDGE_SHIM_H
#define JUDGE_SHIM_H

#include "attn_types.h"

#include <stdint.h>

enum { JUDGE_MAX_OUTPUTS = 8 };

/* Plain attention, and what programs made of it; the twin of the class Batch. All tensors lie in
 * host memory, dense, as PyTorch has them: q and outputs [num_seqs, num_q_heads, num_queries,
 * head_dim], k and v [num_seqs, num_kv_heads, num_keys, head_dim]. */
typedef struct judge_batch {
    uint32_t struct_size;
    uint32_t dtype; /* of all tensors, attn_dtype */
    int32_t num_seqs, num_q_heads, num_kv_heads, num_queries, num_keys, head_dim;
    int32_t causal; /* 1: query i sees the keys up to i; there are as many as queries */
    int32_t num_outputs;
    float sm_scale;
    const void *q, *k, *v;
    const void *outputs[JUDGE_MAX_OUTPUTS];
} judge_batch;

/* What became of one output; the twin of the class Verdict. */
typedef struct judge_verdict {
    int64_t rows;   /* (sequence, query, head) */
    int64_t failed; /* of them */
    double worst;   /* error / bar of the worst row; INFINITY = not finite where it should be */
    int32_t seq, head, query, dimension; /* where; dimension: its worst element */
    double error, bar;                   /* there */
} judge_verdict;

typedef struct judge judge;

/* A judge with so many threads, 0 = as many as there are processors. NULL: no memory. */
judge *judge_create(uint32_t num_threads);
void judge_destroy(judge *j);

/* Judge every row of every output: verdicts[num_outputs]. INVALID_ARGUMENT and judge_message() for
 * what is no batch. One call at a time. */
attn_status judge_rows(judge *j, const judge_batch *batch, judge_verdict *verdicts);

/* Why the last call failed. Lives as long as the judge. */
const char *judge_message(const judge *j);

/* The chance, by the model of the pass rule, that right arithmetic fails a row. */
double judge_false_alarm(void);

#endif /* JUDGE_SHIM_H */
