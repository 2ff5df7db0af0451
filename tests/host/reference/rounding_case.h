/* SPDX-License-Identifier: Apache-2.0
 *
 * rounding_case.h: rows of attention at random, and models of how programs compute them: the
 * arithmetic of FlashAttention and its like, which the pass rule has to admit, and what it must
 * not. Plain C, no plugin.
 */
#ifndef ROUNDING_CASE_H
#define ROUNDING_CASE_H

#include "host/reference/reference.h"

enum { ROUNDING_MAX_DIM = 576, ROUNDING_USUAL_KEYS = 4096, ROUNDING_MAX_KEYS = 8192 };

/* One row. Elements are numbers of the operand dtype. */
struct rounding_row {
    reference_row row;
    reference_kv_arrays arrays;
    int32_t latent;  /* a value is the first part of its key */
    int64_t needle;  /* a key that the row points at, as some others do; -1 = none */
    int64_t numbers; /* how many needles there are */
    double *query, *keys, *values;
    double *truth, *bars;
    reference_row_result result;
    reference_scratch scratch;
};

/* What may be asked of a row that is drawn; zero is anything. */
struct rounding_wish {
    int64_t least_keys, most_keys; /* 0 = 1, 4096 */
    int32_t least_dim;             /* of values */
    attn_dtype dtype;              /* of operands and output */
    int32_t needles;               /* 1 = must have some */
    int32_t size;                  /* values times 2^size; 0 = of any size near 1 */
    int32_t leans;                 /* values are of one sign, nearly, and scores near each other */
};

/* How a row is computed. Zero is fp32 throughout, all keys in one block. */
struct rounding_arithmetic {
    const char *name;
    int32_t block;      /* keys that share a running maximum; -1 = 64, 128 or 256 */
    int32_t rounds;     /* probabilities are rounded to the operand dtype, */
    int32_t mantissa;   /* or to a number of so many bits */
    int32_t normalised; /* after the division by their sum, and not before */
    int32_t sums_what_is_rounded;
    int32_t fast_exp;    /* off by up to 2 units in the last place */
    int32_t tensor_core; /* of 16 bits: 16 products at a time, sums cut off instead of rounded */
    int32_t codes;       /* of fp8: 32 products at a time, they and the sum so far cut off 13 bits
                            below the largest; values of a block for themselves */
    attn_dtype scores;   /* what products of queries and keys are summed in; 0 = fp32 */
    int32_t round_score; /* each final score is rounded to the operand dtype */
    attn_dtype row_sum;  /* what probabilities are summed in; 0 = fp32 */
    attn_dtype narrowed; /* what the output is rounded to first; 0 = nothing */
    int32_t skips;       /* the needle is left out */
};

void rounding_row_init(struct rounding_row *row);
void rounding_row_finish(struct rounding_row *row);

/* Row `index` of a seed, with its truth and its bars. */
void rounding_row_draw(struct rounding_row *row, uint64_t seed, uint64_t index,
                       const struct rounding_wish *wish);

/* The row as the arithmetic has it: actual[v_head_dim], rounded to the output's dtype; the LSE. */
double rounding_row_compute(const struct rounding_row *row,
                            const struct rounding_arithmetic *arithmetic, double *actual);

/* By how many bars the worst element is off; INFINITY = not finite. */
double rounding_row_judge(const struct rounding_row *row, const double *actual);

#endif /* ROUNDING_CASE_H */
