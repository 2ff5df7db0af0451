/* SPDX-License-Identifier: Apache-2.0
 *
 * tiles.cuh: how large the pieces are that a block works on, and what lies where in shared memory.
 */
#ifndef FA3_LIKE_TILES_CUH
#define FA3_LIKE_TILES_CUH

#include "plugins/common/cuda/warpgroup.cuh"

/* A tile's numbers. `groups`: consumer warpgroups; `keys`: keys of a tile; `stages`: tiles of keys
 * and of values in flight. What the kernels use, and what keeps them from more:
 *
 *   dim      queries  keys  stages  KiB   limit
 *   64       192      96    3       121   registers: o 32 + s 48 + p 2 x 24 + exponentials of 160
 *   96       128      128   2       193   registers: o 48 + s 64 + p 2 x 32 + exponentials of 240
 *   128      128      128   2       193   registers: o 64 + s 64 + p 2 x 32 + exponentials of 240;
 *                                         144 keys do not fit. Shared memory: no third stage
 *   192      128      80    2       217   registers: o 96 + s 40 + p 2 x 20; shared memory
 *   192,128  128      96    2       201   registers and shared memory (112 keys spill)
 *   256      128      64    2       193   registers: o 128 + s 32 + p 2 x 16 (80 keys do not fit);
 *                                         shared memory: the output goes where the queries were */
template <int dim_, int dim_v_, int keys_, int groups_, int stages_, bool half_> struct tile_shape {
    static constexpr int dim = dim_;
    static constexpr int dim_v = dim_v_;
    static constexpr int keys = keys_;
    static constexpr int groups = groups_;
    static constexpr int stages = stages_;
    static constexpr bool half = half_;
    static constexpr bool codes = false;

    static constexpr int queries = groups * GROUP_ROWS;
    static constexpr int threads = (groups + 1) * GROUP_THREADS;
    static constexpr int panels = (dim + PANEL - 1) / PANEL;
    static constexpr int panels_v = (dim_v + PANEL - 1) / PANEL;

    static constexpr int q_bytes = panels * queries * ROW_BYTES;
    static constexpr int k_bytes = panels * keys * ROW_BYTES;
    static constexpr int v_bytes = panels_v * keys * ROW_BYTES;
    static constexpr int o_bytes = panels_v * queries * ROW_BYTES;
    /* Where the output has no room of its own it takes the queries' place. */
    static constexpr bool o_over_q =
        q_bytes + stages * (k_bytes + v_bytes) + o_bytes + 256 > 232448;

    static constexpr int q_at = 0;
    static constexpr int k_at = q_at + q_bytes;
    static constexpr int v_at = k_at + stages * k_bytes;
    static constexpr int o_at = o_over_q ? q_at : v_at + stages * v_bytes;
    static constexpr int control_at = o_over_q ? v_at + stages * v_bytes : o_at + o_bytes;
    static constexpr int control_bytes = 256; /* of struct control */
    static constexpr int shared_bytes = control_at + control_bytes;

    /* Registers a thread: 64 K in all; the producer keeps few. */
    static constexpr int producer_registers = groups == 3 ? 32 : 24;
    static constexpr int consumer_registers = groups == 3 ? 160 : 240;

    static_assert(dim % 16 == 0 && dim_v % 16 == 0, "products take 16 columns at a time");
    static_assert(keys % 16 == 0, "products take 16 keys at a time");
    static_assert(groups == 2 || groups == 3, "two or three consumer warpgroups");
    static_assert(!o_over_q || o_bytes <= q_bytes, "the output fits where the queries were");
    static_assert(shared_bytes <= 232448, "a block has at most 227 KiB of shared memory");
};

#endif
