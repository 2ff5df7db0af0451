/* SPDX-License-Identifier: Apache-2.0
 *
 * shapes.h: the table of forward kernels, for the plugin's C.
 *
 * A pair of head dimensions has one tile shape, and may have another with fewer queries ("low"),
 * for batches of few tiles. Each is built for bf16 (forward_NAME_bf16.cu) and fp16
 * (forward_NAME_f16.cu). To add one: two such files, their names in Makefile.am.inc, and a line
 * here; check_fa3_like.c compares the line with the files.
 */
#ifndef FA3_LIKE_SHAPES_H
#define FA3_LIKE_SHAPES_H

/* X(name, head_dim, v_head_dim, keys of a tile, warpgroups of 64 queries, stages, slots of queries,
 * bytes of shared memory), smaller ones first, low tiles after the others of their dimensions */
#define FA3_SHAPES(X)                                                                              \
    X(d64, 64, 64, 64, 4, 6, 2, 164160)                                                            \
    X(d64_low, 64, 64, 64, 2, 6, 2, 131392)                                                        \
    X(d80, 80, 80, 64, 3, 4, 2, 229696)                                                            \
    X(d80_low, 80, 80, 64, 2, 4, 2, 196928)                                                        \
    X(d96, 96, 96, 64, 3, 4, 2, 229696)                                                            \
    X(d96_low, 96, 96, 64, 2, 4, 2, 196928)                                                        \
    X(d128, 128, 128, 64, 3, 4, 2, 229696)                                                         \
    X(d128_low, 128, 128, 64, 2, 4, 2, 196928)                                                     \
    X(d192, 192, 192, 64, 2, 2, 2, 196928)                                                         \
    X(d192_v128, 192, 128, 64, 3, 2, 2, 229696)                                                    \
    X(d256, 256, 256, 64, 2, 2, 1, 196928)

/* Do the tiles support attention_chunk? Those over fp8 do not. */
#define FA3_HAS_CHUNKS(groups) ((groups) > 2)

/* The same over e4m3 (forward_codes.cuh), for each output type. */
#define FA3_CODES_SHAPES(X) X(codes_d128, 128, 128, 128, 3, 4, 2, 229696)

#ifdef __CUDACC__

#include "plugins/fa3_like/kernels/tiles.cuh"

#define FA3_TILE(name, dim, dim_v, keys, groups, stages, slots, shared)                            \
    static_assert(tile_shape<dim, dim_v, keys, groups, stages, slots, false>::shared_bytes ==      \
                          shared &&                                                                \
                      tile_shape<dim, dim_v, keys, groups, stages, slots, false>::chunks ==        \
                          FA3_HAS_CHUNKS(groups),                                                  \
                  #name ": the table's bytes of shared memory, and chunks");
FA3_SHAPES(FA3_TILE)
#undef FA3_TILE

#else

#include <stdint.h>

enum {
    GROUP_QUERIES = 64, /* of a warpgroup */
    GROUP_THREADS = 128 /* of a warpgroup; one additional warpgroup copies */
};

/* A line of the table. */
typedef struct fa3_tile {
    const char *kernel; /* without "_bf16" or "_f16" */
    int32_t dim, dim_v;
    int32_t keys;    /* of a tile */
    int32_t queries; /* of a tile */
    int32_t stages, slots;
    uint32_t threads;
    uint32_t shared; /* bytes */
    int has_chunks;
} fa3_tile;

#define FA3_TILE(name, dim, dim_v, keys, groups, stages, slots, shared)                            \
    {                                                                                              \
        "fa3_forward_" #name, dim, dim_v, keys, (groups)*GROUP_QUERIES, stages, slots,             \
            ((groups) + 1) * GROUP_THREADS, shared, FA3_HAS_CHUNKS(groups)                         \
    }

#endif
#endif
