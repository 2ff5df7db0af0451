/* SPDX-License-Identifier: Apache-2.0
 *
 * mla.h: the parameters and data structures of the kernels, for host and device.
 *
 *   mla_plan      1 block: lists the batch's units of work, and the start of each range of them
 *   mla_attend_N  grid [ranges * pair]: blocks of N query rows over tiles of 64 latents
 *   mla_merge     any grid: adds the parts of divided units
 *
 * A unit is N * pair query rows of a sequence (row t * heads + h is query t of head h) and the
 * tiles of keys that they see. Units are placed on a line, each MLA_UNIT_COST + tiles long. The
 * line is cut into ranges of equal length. A cluster of `pair` blocks works on each range, N rows
 * per block. A unit that a cut divides has parts, which mla_merge adds up. Units stay whole with
 * `whole`, and if ranges of whole units are not much longer: units then have equal distances, the
 * length of the longest, and ranges have equal numbers of units. With few units each has ranges of
 * its own, if these are not longer than shared ones. With `fixed`, sequences of many units have
 * whole units. Units of other sequences have ranges of their own, whose length depends on the
 * unit's tiles alone.
 */
#ifndef FLASHMLA_LIKE_MLA_H
#define FLASHMLA_LIKE_MLA_H

#include "plugins/common/cuda/index.cuh"

#ifdef __cplusplus
#define MLA_ALIGN(bytes) alignas(bytes)
#else
#define MLA_ALIGN(bytes) _Alignas(bytes)
#endif

#define MLA_LORA          512 /* elements of a latent's value part; narrower ones are padded with 0 */
#define MLA_ROPE          64 /* of the position-encoded part, likewise */
#define MLA_WIDTH_STEP    16 /* widths: 16, 32 ... MLA_LORA, plus 0, 16 ... MLA_ROPE elements */
#define MLA_DIM           (MLA_LORA + MLA_ROPE)
#define MLA_TILE          64 /* latents of a tile */
#define MLA_UNIT_COST     4  /* the time of a unit's start and end, in tiles */
#define MLA_WHOLE_PERCENT 6
#define MLA_LEAST_RANGE   2 /* of a range: shorter parts take longer to merge */
#define MLA_MOST_LINE     (1 << 30)
#define MLA_THREADS       512 /* of a block of mla_attend: four warpgroups */
#define MLA_PLAN_THREADS  512
#define MLA_MERGE_DIMS    16 /* dimensions of a warp of mla_merge */
#define MLA_MERGE_WARPS   8
#define MLA_MOST_RANGES   256

/* With `fixed`: units of sequences with at most MLA_FIXED_UNITS units have parts. A part has
 * MLA_FIXED_SHORT, MIDDLE or LONG tiles if sequences may be few, some or many. MLA_FIXED_PARTS: the
 * most parts of a unit; longer units have longer parts. */
#define MLA_FIXED_UNITS       2
#define MLA_FIXED_SHORT       8
#define MLA_FIXED_MIDDLE      32
#define MLA_FIXED_LONG        96
#define MLA_FIXED_PARTS(part) ((part) == MLA_FIXED_SHORT ? 128 : 32)

/* Shared memory of a block of mla_attend with N rows, in bytes. */
#define MLA_STAGES            2
#define MLA_SHARED_Q(n)       ((n)*MLA_DIM * 2)
#define MLA_SHARED_TILE       (MLA_TILE * MLA_DIM * 2)
#define MLA_SHARED_P(n)       ((n)*MLA_TILE * 2)
#define MLA_SHARED_NUMBERS(n) ((n)*32 + 128)
#define MLA_SHARED(n)                                                                              \
    (MLA_SHARED_Q(n) + MLA_STAGES * MLA_SHARED_TILE + MLA_SHARED_P(n) + MLA_SHARED_NUMBERS(n))

/* The same for mla_attend_64 and mla_attend_codes_64: tiles are shorter, and some panels of the
 * queries are in registers. That leaves room for three bf16 tiles, or for two and two tiles of
 * fp8. */
#define MLA_ROWS             64 /* of mla_attend_64 */
#define MLA_ROWS_TILE        48
#define MLA_BOX              16 /* latents of a page that TMA copies at once */
#define MLA_ROWS_HELD        3  /* panels of 64 elements */
#define MLA_ROWS_SHARED_Q    (64 * (MLA_DIM - MLA_ROWS_HELD * 64) * 2)
#define MLA_ROWS_SHARED_TILE (MLA_ROWS_TILE * MLA_DIM * 2)
#define MLA_ROWS_SHARED_RAW  (MLA_ROWS_TILE * MLA_DIM)
#define MLA_ROWS_SHARED_P    (64 * 128)
#define MLA_ROWS_SHARED                                                                            \
    (MLA_ROWS_SHARED_Q + 3 * MLA_ROWS_SHARED_TILE + 2 * (MLA_ROWS_SHARED_P + 64 * 4) + 128)

/* The same for mla_attend_codes_N, over e4m3 latents, with at most 32 rows; each query has an
 * additional scale. Two warpgroups compute scores of one tile each, and pass them on together, in
 * two buffers. */
#define MLA_CODES_PANELS    5 /* of 128 fp8 values, the last one half empty */
#define MLA_CODES_TILE      (MLA_CODES_PANELS * MLA_TILE * 128)
#define MLA_CODES_STAGES(n) ((n) < 16 ? 5 : 4)
#define MLA_CODES_SCORERS   2
#define MLA_CODES_THREADS   640
#define MLA_CODES_P(n)      (MLA_CODES_SCORERS * MLA_SHARED_P(n))
#define MLA_CODES_SHARED(n)                                                                        \
    (MLA_SHARED_Q(n) + MLA_CODES_STAGES(n) * MLA_CODES_TILE + 2 * MLA_CODES_P(n) + (n)*84 + 128)

/* The same for mla_attend_coded_64, with e4m3 queries: queries and four tiles as panels of 128 fp8
 * values, the last one half empty, and two buffers of probabilities. */
#define MLA_CODED_STAGES 4
#define MLA_CODED_SHARED                                                                           \
    ((1 + MLA_CODED_STAGES) * MLA_CODES_TILE + 2 * (MLA_SHARED_P(64) + 64 * 4) + 2 * 64 * 4 + 128)

/* The same for mla_attend_packed_8, over rows of mla.latent_fp8/1: tiles have the cache's row
 * format. Two warpgroups compute scores. Probabilities are stored four times, once for each scaled
 * part. */
#define MLA_PACKED_BYTES     656 /* of a row of the cache */
#define MLA_PACKED_ROPE_AT   528 /* offset of its bf16 elements */
#define MLA_PACKED_TILE      (MLA_TILE * MLA_PACKED_BYTES)
#define MLA_PACKED_SCORERS   2
#define MLA_PACKED_STAGES(n) ((n) < MLA_ROWS ? 4 : 3)
#define MLA_PACKED_BUFFERS   2
#define MLA_PACKED_THREADS   640
#define MLA_PACKED_P(n)      (MLA_PACKED_SCORERS * 4 * MLA_SHARED_P(n))
#define MLA_PACKED_SHARED(n)                                                                       \
    (MLA_SHARED_Q(n) + MLA_PACKED_BUFFERS * MLA_PACKED_P(n) +                                      \
     MLA_PACKED_STAGES(n) * MLA_PACKED_TILE + (n)*84 + 192)

/* The same with 16 rows and more: a tile's probabilities, its scores in fp32, and the scales of two
 * tiles. */
#define MLA_TOKENS_SHARED(n)                                                                       \
    (MLA_SHARED_Q(n) + MLA_SHARED_P(n) + MLA_PACKED_STAGES(n) * MLA_PACKED_TILE +                  \
     MLA_TILE * (n)*4 + 5 * MLA_ROWS * 4 + (n)*20 + 2 * 4 * MLA_TILE * 2 + 128)

/* A unit; units are listed in the order of the line. */
typedef struct mla_unit {
    MLA_ALIGN(16) int first_row; /* of its rows, in the sequence */
    int begin;                   /* on the line */
    int first_tile;              /* of its keys */
    int tiles;                   /* at least 1, even if no row sees a key */
    index_sequence q;            /* the sequence, as if k and v were given; see walk_sequence() */
} mla_unit;

/* The start of a range: all that its blocks need before they read keys. */
typedef struct mla_start {
    MLA_ALIGN(16) mla_unit first;
    int unit;      /* the first unit's number */
    int num_units; /* the last unit's number + 1 */
    int range;     /* length of a range on the line */
} mla_start;

/* A divided unit, with all that mla_merge needs. */
typedef struct mla_divided {
    int first, count; /* its ranges */
    int first_row;    /* of its rows, in the sequence */
    int rows;         /* of the sequence */
    int first_token;  /* of the sequence */
} mla_divided;

/* The plan; its lists are in mla_call. */
typedef struct mla_plan_header {
    int num_divided;
    mla_divided divided[MLA_MOST_RANGES]; /* in any order; with `fixed` there may be more */
} mla_plan_header;

/* A CUtensorMap. */
typedef struct mla_map {
    MLA_ALIGN(64) unsigned long long opaque[16];
} mla_map;

typedef struct mla_call {
    call_operands operands; /* q: q_nope; k: c_kv, v: k_pe; k_cache: latents */
    call_batch batch;
    const void *q_pe;
    long long q_pe_row, q_pe_head;
    const float *q_scale_device,
        *q_pe_scale_device; /* of e4m3 queries; NULL = q_scale and q_pe_scale */
    mla_plan_header *plan;
    mla_start *starts; /* [ranges + fixed] */
    mla_unit *units;   /* [most_units] */
    float *parts;      /* [2 ranges + fixed, pair, N / 8, MLA_LORA, 8] outputs of parts */
    float *part_lse;   /* [2 ranges + fixed, pair, N] */
    int most_units;
    int ranges;
    int pair; /* blocks of N rows of a unit */
    int rows; /* N */
    int tile; /* latents of a tile */
    int heads;
    int lora, rope; /* at most MLA_LORA, MLA_ROPE */
    int page_size;
    int window_left, chunk;
    int out_f32; /* 1 = the output is fp32, else bf16 */
    float sm_scale;
    float q_scale, q_pe_scale;
    int boxed;   /* 1 = `maps` exist: pages are copied as boxes of MLA_BOX latents */
    int whole;   /* 1 = no cut divides a unit, however long it is */
    int fixed;   /* number of ranges after those of the line, each with one part of a unit */
    int part;    /* tiles of such a part */
    int shrinks; /* 1 = kv_lens may be smaller at launch than in the plan; each sequence has one
                  * query */
    mla_map maps
        [2]; /* {dim, latent of a page, page, 1} of c_kv and k_pe; queries of e4m3: the first, of both */
} mla_call;

#endif /* FLASHMLA_LIKE_MLA_H */
