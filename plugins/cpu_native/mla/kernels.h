/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels.h: the inner loops of absorbed latent attention, compiled with the others for each
 * instruction set (latent.inc). Here a row_block's query and scores are in panels of rows:
 * [panel][dim][PANEL] and [panel][TILE_KEYS][PANEL]. */
#ifndef CPU_NATIVE_MLA_KERNELS_H
#define CPU_NATIVE_MLA_KERNELS_H

#include "plugins/cpu_native/kernels.h"
#include "plugins/cpu_native/mla/latent.h"

enum {
    LATENT_PIECE = 64, /* elements of a row; divides LATENT_SCALED */
    LATENT_LONG = 288, /* of keys that are read where they lie; even */
    LATENT_KEYS = 8    /* a multiple of the keys of a register block of any kernels */
};

/* A tile of latents. */
typedef struct latent_tile {
    const tile_source *source; /* all rows as in the cache */
    int32_t lora;              /* elements of a value, the first of a row */
    int32_t dim;               /* of a key: the whole row */
    int32_t row_bytes;
    int first; /* keys that some row sees are in [first, end), whole register blocks */
    int end;
    int hidden;      /* a row does not see a key that another one sees */
    float *piece;    /* [TILE_KEYS][LATENT_PIECE] of rows as fp32 */
    uint16_t *codes; /* [TILE_KEYS][LATENT_SCALED] of rows as bf16, before their scales */
    float *scales;   /* [TILE_KEYS] */
} latent_tile;

typedef struct latent_kernels {
    /* Pack `count` <= 8 queries of the rows from `row` on, a multiple of 8: [count][MAX_DIM]. */
    void (*pack_queries)(const row_block *block, int32_t row, int count, const float *queries);
    void (*score)(const row_block *block, const latent_tile *tile);
    /* The same two where queries are bf16, keys bf16 or fp8, and the processor multiplies bf16:
     * products are exact, sums fp32, and what is below the smallest normal number is 0. Queries are
     * [panel][dim / 2][PANEL] pairs. NULL = there are none. */
    void (*pack_queries_bf16)(const row_block *block, int32_t row, int count, const float *queries);
    void (*score_bf16)(const row_block *block, const latent_tile *tile);
    /* As softmax() of cpu_kernels. */
    void (*softmax)(const row_block *block, const latent_tile *tile, const score_rule *rule,
                    const float *key_positions);
    /* acc += P V, or acc = P V where it begins, 0 in rows that see nothing; no value is touched
     * that a row does not see. `next` is prefetched on the way; NULL = none. */
    void (*accumulate)(const row_block *block, const latent_tile *tile, const tile_source *next);
    /* The same of bf16 latents by probabilities rounded to bf16, which replace the scores. NULL =
     * there is none. */
    void (*accumulate_bf16)(const row_block *block, const latent_tile *tile,
                            const tile_source *next);
} latent_kernels;

#endif /* CPU_NATIVE_MLA_KERNELS_H */
