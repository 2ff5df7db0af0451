/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels.h: the inner loops, compiled once for each instruction set.
 *
 * Attention is done on tiles: up to TILE_ROWS rows (query, query head) of one KV head against
 * TILE_KEYS keys. A tile of keys is packed into panels of PANEL columns, [panel][depth][PANEL]
 * fp32, so that both products read memory in order whatever the cache looks like:
 *
 *   S = Q K^T   columns are keys,               depth is the head's dimension
 *   O = P V     columns are elements of values, depth is the key
 *
 * Both products add up in the order of the depth, by whatever shape of register block: O element by
 * element, S in chains of some elements, whose sums are added in order, so that large scores keep
 * their digits. Keys that a row does not see add exact zeros or are left out, which is the same. So
 * a row's bits depend on its query and its keys alone: not on the tile, the batch or the worker.
 *
 * What a row sees of a tile of keys is one word, bit j for key j: hence TILE_KEYS = 64.
 *
 * Absorbed latent attention, where one key serves all heads and is its own value, has kernels of
 * its own: mla/kernels.h.
 */
#ifndef CPU_NATIVE_KERNELS_H
#define CPU_NATIVE_KERNELS_H

#include "attn_types.h"
#include "plugins/common/convert.h"

enum {
    TILE_KEYS = 64,
    TILE_ROWS = 132, /* a multiple of 6 that holds 128 heads; the more, the less is packed */
    MERGE_ROWS = 16, /* of a tile's partial results that one task merges */
    PANEL = 16,      /* floats: a cache line */
    FEW_ROWS = 3,    /* keys and values of so few are not packed */
    MAX_HEAD_DIM = 512,
    MAX_ROPE = 128,
    MAX_DIM = MAX_HEAD_DIM + MAX_ROPE, /* of queries and keys: of a latent row */
};

/* `n` rounded up to whole panels. */
static inline int32_t panel_round(int32_t n)
{
    return (n + PANEL - 1) / PANEL * PANEL;
}

/* The conversion of a query, key or value to fp32. */
typedef struct row_format {
    attn_dtype dtype;
    const float *decode;         /* fp8: [256] values of all codes, before the scale */
    float scale;                 /* fp8 */
    float stored_scale;          /* of the cache below */
    const fp8_format *stored_as; /* new keys of a quantised cache: round as if stored; else NULL */
    const float *stored_decode;
    int32_t packed; /* the cache is mla.latent_fp8/1, whose scales are in the rows */
} row_format;

/* The addresses of a tile's keys or values. */
typedef struct tile_source {
    const void *rows[TILE_KEYS]; /* NULL: no row sees it and nothing is read; zeros are packed */
    uint64_t fresh;              /* bit j: row j comes from the arguments, else from the cache */
    row_format formats[2];       /* of the cache, of the arguments */
    int32_t scaled;              /* rows of the cache have scales of their own: */
    float scales[TILE_KEYS];
} tile_source;

/* Parameters that turn q.k into a score. */
typedef struct score_rule {
    float scale;
    float cap;     /* 0 = off */
    int has_alibi; /* slopes and positions hold */
} score_rule;

/* The rows of a tile and their results so far. Arrays of TILE_ROWS in whole panels. */
typedef struct row_block {
    int32_t rows;
    int32_t dim;          /* of queries and keys */
    int32_t value_stride; /* of acc: v_head_dim in whole panels */
    float *query;         /* [rows][dim]; of latents in panels, see below */
    float *scores;        /* [rows][TILE_KEYS] of the tile at hand; then probabilities; likewise */
    float *acc;           /* [rows][value_stride] sum of exp(score - max) v */
    int32_t begins;       /* latents: acc holds nothing yet, and the tile at hand begins it */
    float *max;           /* -inf before the first key */
    float *sum;           /* of exp(score - max) */
    float *slope;
    float *position;
    uint64_t *visible; /* of the tile at hand */
} row_block;

typedef struct cpu_kernels {
    const char *name;

    /* n elements of `row` as fp32. */
    void (*convert)(const void *row, const row_format *format, int32_t n, float *to);

    /* Pack 64 keys of `dim` elements, transposed: [4][dim][PANEL]. temp: [16 * MAX_DIM]. */
    void (*pack_keys)(const tile_source *source, int32_t dim, float *temp, float *panels);

    /* Pack 64 values of `dim` elements: [dim / PANEL, rounded up][64][PANEL], zeros after dim.
     * Returns 1 if an element is not finite: then a probability of 0 does not hide it. */
    int (*pack_values)(const tile_source *source, int32_t dim, float *temp, float *panels);

    /* scores = Q K^T where a row of the register block sees something; elsewhere undefined. */
    void (*score)(const row_block *block, const float *key_panels);

    /* The same scores for FEW_ROWS rows at most, where packing would take longest: keys are read
     * where they lie. Values of the same tile are prefetched on the way. temp: [16 * MAX_DIM];
     * panels: as of pack_keys, for instruction sets that pack nevertheless. */
    void (*score_few)(const row_block *block, const tile_source *keys, const tile_source *values,
                      float *temp, float *panels);

    /* Scores to probabilities: rule, mask, new maximum; acc, max and sum are brought up to date.
     * key_positions: [64], read with ALiBi. */
    void (*softmax)(const row_block *block, const score_rule *rule, const float *key_positions);

    /* acc += P V. `exact` = 1: touch no value that a row does not see (pack_values said so). */
    void (*accumulate)(const row_block *block, const float *value_panels, int exact);

    /* The same sums for FEW_ROWS rows at most; values are read where they lie, none that a row does
     * not see. next_keys: of the next tile, which are prefetched on the way; NULL = none. temp:
     * [64][value_stride]. */
    void (*accumulate_few)(const row_block *block, const tile_source *values,
                           const tile_source *next_keys, int32_t dim, float *temp);

    /* Merge partial (acc, max, sum) of one row into another one by log-sum-exp. */
    void (*merge)(float *acc, float *max, float *sum, const float *part, float part_max,
                  float part_sum, int32_t n);

    /* n elements of acc, times factor, in `dtype`; never a negative zero. */
    void (*store)(const float *acc, float factor, attn_dtype dtype, int32_t n, void *to);

    const struct latent_kernels *latents; /* mla/kernels.h */

    /* logits[j] = sum of weights[h] * max(0, query[h] . label j) of 64 labels, [dim][64]; `heads` is
     * a multiple of INDEX_STEP, query [heads][dim]. */
    void (*index)(const float *query, const float *weights, int32_t heads, int32_t dim,
                  const float *labels, float *logits);
} cpu_kernels;

extern const cpu_kernels cpu_kernels_generic;
#ifdef CPU_NATIVE_AVX2
extern const cpu_kernels cpu_kernels_avx2;
#endif
#ifdef CPU_NATIVE_AVX512
extern const cpu_kernels cpu_kernels_avx512;
#endif

#endif /* CPU_NATIVE_KERNELS_H */
