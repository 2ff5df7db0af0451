/* SPDX-License-Identifier: Apache-2.0
 *
 * shapes.h: the forward kernels that are built: the one table, for the plugin's C and for the .cu files.
 *
 * A head dimension has one shape of tiles, built for bf16 (forward_D_bf16.cu) and fp16 (forward_D_f16.cu).
 * To add one: a line here and two such files, and their names in Makefile.am.inc.
 */
#ifndef FA3_LIKE_SHAPES_H
#define FA3_LIKE_SHAPES_H

/* X(name, head_dim, v_head_dim, keys of a tile, warpgroups of 64 queries, stages, order, bytes of shared
 * memory) */
#define FA3_SHAPES(X)                                                                              \
    X(d64, 64, 64, 128, 2, 2, ORDER_TURNS, 98560)                                                  \
    X(d128, 128, 128, 128, 2, 2, ORDER_TURNS, 196864)                                              \
    X(d256, 256, 256, 64, 2, 2, ORDER_TURNS, 196864)

#ifdef __CUDACC__

#include "plugins/fa3_like/kernels/forward.cuh"

#define FA3_TILE(name, dim, dim_v, keys, groups, stages, order, shared)                            \
    typedef tile_shape<dim, dim_v, keys, groups, stages, order, false> name##_shape_of;            \
    static_assert(name##_shape_of::shared_bytes == shared, "the table's bytes of shared memory");
FA3_SHAPES(FA3_TILE)
#undef FA3_TILE

/* The kernel forward_NAME_TYPE. */
#define FA3_KERNEL(name, type, half)                                                               \
    FA3_FORWARD(forward_##name##_##type, name##_shape_of::dim, name##_shape_of::dim_v,             \
                name##_shape_of::keys, name##_shape_of::groups, name##_shape_of::stages,           \
                name##_shape_of::order, half)

#else

#include <stdint.h>

enum {
    GROUP_QUERIES = 64, /* of a warpgroup */
    GROUP_THREADS = 128 /* of a warpgroup; one more than have queries fetches */
};

/* A line of the table as the host needs it. */
typedef struct fa3_tile {
    const char *name;
    int32_t dim, dim_v;
    int32_t keys;    /* of a tile */
    int32_t queries; /* of a tile */
    uint32_t threads;
    uint32_t shared; /* bytes */
} fa3_tile;

#define FA3_TILE(name, dim, dim_v, keys, groups, stages, order, shared)                            \
    {                                                                                              \
#name, dim, dim_v, keys, (groups) * GROUP_QUERIES, ((groups) + 1) * GROUP_THREADS, shared  \
    }

#endif
#endif
