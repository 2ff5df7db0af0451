/* SPDX-License-Identifier: Apache-2.0
 *
 * row.h: internal to host/reference: shared by row.c, score.c, rounding.c and row_kernels.c.
 */
#ifndef HOST_REFERENCE_ROW_H
#define HOST_REFERENCE_ROW_H

#include "host/reference/reference.h"

/* Elements of a value are worked on so many at a time; what is [padded] has zeros up to a multiple
 * of it. */
enum { ROW_LANES = 8 };

/* Keys that are worked on at a time, for all rows of a call; and of these side by side. */
enum { ROW_BLOCK = 64, ROW_TILE = 4 };

/* A dot product is four sums side by side: fp64 has precision to spare, and a chain of additions is
 * slow. Sum n is that of elements n, n + 4, n + 8 ...; the elements after the last whole four are
 * in the first. */
enum { ROW_SUMS = 4 };

/* The position of key `j`. */
int64_t reference_key_position(const reference_sight *sight, int64_t j);

/* |i - j| of ALiBi, in positions; 0 where there is no i. */
double reference_distance(const reference_sight *sight, int64_t j);

/* Keys outside [*first, *end) are not seen. Returns whether all of these are. */
int reference_sight_range(const reference_sight *sight, int64_t kv_len, int64_t *first,
                          int64_t *end);

/* The score of key `j` in fp64: scaled, biased, capped. *size becomes the magnitude of its terms,
 * each scaled by its effect on the score: roundings on the way are relative to it. */
double reference_score(const reference_row *row, const double *key, int64_t j, double *size);

/* The same of a sum of products; *size is the sum of their magnitudes before. */
double reference_score_of_sum(const reference_row *row, double sum, int64_t j, double *size);

/* ---- What the admitted roundings may do to a row (rounding.c) -------------------------------- */

/* Constants of a row, which follow from its parameters. */
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

/* Sums of each element of a row, each [padded], one after the other. */
enum {
    ROW_OUT,         /* the output itself */
    ROW_PROBABILITY, /* variance by rounded probabilities */
    ROW_SCORE,       /* sum of c v^2, c = (p sigma_s)^2, */
    ROW_SCORE_MEAN,  /* of c v, and of c (score_weight): the variance by scores is what they make */
    ROW_ABSOLUTE,    /* of r |v|, r = the most that rounding a probability does */
    ROW_DRIFT,       /* of p t |v|, t = what scores may err by one way */
    ROW_NUM_SUMS
};

/* The weights of a key's value v in them. */
typedef struct row_factors {
    double probability; /* of v in the output */
    double rounded;     /* of v^2 in ROW_PROBABILITY */
    double scored;      /* of v^2 and v in ROW_SCORE and ROW_SCORE_MEAN */
    double lost;        /* of |v| in ROW_ABSOLUTE */
    double drift;       /* of |v| in ROW_DRIFT */
} row_factors;

/* Sums over the keys of a row. */
typedef struct rounding_sums {
    const double *of; /* [ROW_NUM_SUMS][padded] */
    int32_t padded;
    double score_weight; /* of c */
    double drift_weight; /* of p t */
    double lse;          /* of p (k sigma_s + t), a cap's part at most */
    double largest;      /* score of the row, the sink's included, */
    double largest_probability;
    int64_t count; /* of keys */
} rounding_sums;

rounding_model rounding_model_of(const reference_row *row);

/* Begin with sums of[ROW_NUM_SUMS][padded], which are zeros; `largest` and `count` are those of the
 * row, `sum` is that of its weights where that of the largest score is 1. */
void rounding_begin(rounding_sums *sums, const double *of, int32_t padded, double largest,
                    double sum, int64_t count);

/* Add a key: its score, how large its terms are; its probability is in *factors, which gets the
 * others. Returns 0 if its probability is not above 0 (none, or NaN): its value counts for the
 * output alone. */
int rounding_add(rounding_sums *sums, const rounding_model *model, double score, double size,
                 row_factors *factors);

/* The bars: of each element of out[v_head_dim], and of the LSE, which is returned. */
double rounding_bars(const rounding_sums *sums, const rounding_model *model,
                     const reference_row *row, const double *out, double lse, double *bars);

/* ---- Inner loops (row_kernels.c) ------------------------------------------------------------- */

/* Loops over elements in vectors of some width. Each lane is computed as it is without, since
 * -ffp-contract=off keeps products and sums apart, so the bits are those of any other width. */
typedef struct row_kernels {
    const char *name;
    int32_t rows; /* whose dot products are computed together */

    /* Dot products of [rows] queries with ROW_TILE keys, key n at keys + n * stride, of whole
     * fours: queries[fours][rows][ROW_SUMS] to sums[ROW_TILE][2][rows][ROW_SUMS], those of the
     * products, then those of their magnitudes. */
    void (*dot)(const double *queries, const double *keys, int64_t stride, int64_t fours,
                double *sums);

    /* Add `count` values to sums[ROW_NUM_SUMS][padded], or to the first alone: lanes
     * [n * ROW_LANES, ...) of value i at values + (n * ROW_BLOCK + i) * ROW_LANES. */
    void (*add)(double *sums, int32_t padded, const row_factors *factors, const double *values,
                int32_t count);
    void (*add_alone)(double *sums, int32_t padded, const row_factors *factors,
                      const double *values, int32_t count);
} row_kernels;

/* Those of this processor, the best one first; NULL = there are no more. */
const row_kernels *row_kernels_here(int32_t index);

/* reference_rows_compute() by these. */
attn_status reference_rows_compute_by(const row_kernels *kernels, const reference_row *rows,
                                      int32_t count, const reference_kv *kv,
                                      reference_scratch *scratch, reference_row_to *to,
                                      attn_error *error);

#endif /* HOST_REFERENCE_ROW_H */
