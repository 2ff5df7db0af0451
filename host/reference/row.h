/* SPDX-License-Identifier: Apache-2.0
 *
 * row.h: internal to host/reference: what row.c, score.c and rounding.c share.
 */
#ifndef HOST_REFERENCE_ROW_H
#define HOST_REFERENCE_ROW_H

#include "host/reference/reference.h"

/* Elements of a value are worked on so many at a time; what is [padded] has zeros up to a multiple
 * of it. */
enum { ROW_LANES = 8 };
typedef double row_lanes __attribute__((vector_size(64), aligned(8), may_alias));
typedef uint64_t row_lane_bits __attribute__((vector_size(64), aligned(8), may_alias));

static inline row_lanes *row_lanes_at(double *values, int32_t first)
{
    return (row_lanes *)(values + first);
}

static inline const row_lanes *row_lanes_in(const double *values, int32_t first)
{
    return (const row_lanes *)(values + first);
}

/* Compiled for the processor's wider vectors, too. Each lane is computed as it is without, since
 * -ffp-contract=off keeps products and sums apart, so the bits are the same. */
#if defined __x86_64__ && defined __gnu_linux__ && !defined __clang__ &&                           \
    !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
#define ROW_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ROW_WIDE
#endif

/* The position of key `j`. */
int64_t reference_key_position(const reference_sight *sight, int64_t j);

/* |i - j| of ALiBi, in positions; 0 where there is no i. */
double reference_distance(const reference_sight *sight, int64_t j);

/* The score of key `j` in fp64: scaled, biased, capped. *size gets how large the terms are that it
 * is made of, each by what it counts for in the score: what roundings on the way are relative to.
 */
double reference_score(const reference_row *row, const double *key, int64_t j, double *size);

/* ---- What the admitted roundings may do to a row (rounding.c) -------------------------------- */

/* Of a row: numbers that follow from what it is. */
typedef struct rounding_model {
    double deviations;  /* how many standard deviations a bar is: k */
    double probability; /* u of the operand dtype, */
    double smallest;    /* and what a probability may lose where that is more than u of it: */
    int normalised;     /* as it is; else while that of the largest score is 1 */
    double cap;         /* relative error of the tanh of a capped score */
    double dimension;   /* elements of a key */
    double cut; /* c: half of what sums of products of fp8 operands are cut off by; else 0 */
    int biased; /* a score is not its sum of products alone */
} rounding_model;

/* Sums over the keys of a row. */
typedef struct rounding_sums {
    double *probability; /* [padded] variance by rounded probabilities */
    double *score;       /* [padded] sum of c v^2, c = (p sigma_s)^2, */
    double *score_mean;  /* [padded] of c v, */
    double score_weight; /* and of c: the variance by scores is what they make together */
    double *absolute;    /* [padded] of r |v|, r = the most that rounding a probability does */
    double *drift;       /* [padded] of p t |v|, t = what scores may err by one way, */
    double drift_weight; /* and of p t */
    double lse;          /* of p (k sigma_s + t), a cap's part at most */
    double largest;      /* score of the row, the sink's included, */
    double largest_probability;
    int64_t count; /* of keys */
} rounding_sums;

rounding_model rounding_model_of(const reference_row *row);

/* Zero the sums; `largest` and `count` are those of the row, `sum` is that of its weights where
 * that of the largest score is 1. */
void rounding_begin(rounding_sums *sums, double largest, double sum, int64_t count, int32_t padded);

/* Add a key: its score, how large its terms are, its probability, and its value[padded]. */
void rounding_add(rounding_sums *sums, const rounding_model *model, double score, double size,
                  double probability, const double *value, int32_t padded);

/* The bars: of each element of out[v_head_dim], and of the LSE, which is returned. */
double rounding_bars(const rounding_sums *sums, const rounding_model *model,
                     const reference_row *row, const double *out, double lse, double *bars);

#endif /* HOST_REFERENCE_ROW_H */
