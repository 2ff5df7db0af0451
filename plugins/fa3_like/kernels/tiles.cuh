/* SPDX-License-Identifier: Apache-2.0
 *
 * tiles.cuh: the sizes of a block's tiles, and the layout of shared memory.
 */
#ifndef FA3_LIKE_TILES_CUH
#define FA3_LIKE_TILES_CUH

#include "plugins/common/cuda/warpgroup.cuh"

#define MOST_STAGES 8
#define MOST_SLOTS  2

/* Tile sizes. `groups`: consumer warpgroups; `keys`: keys of a tile; `stages`: stages of keys and
 * values in flight (pipeline.cuh); `slots`: tiles of queries in shared memory. What limits larger
 * tiles:
 *
 *   dim      queries  keys  stages  slots  KiB   limit
 *   64       256      64    6       2      161   registers: o 32 + s 32 + p 16 of 112
 *   96       192      64    4       2      225   registers: o 48 + s 32 + p 16 of 152
 *   128      192      64    4       2      225   registers: o 64 + s 32 + p 16 of 152
 *   192      128      64    2       2      193   registers: o 96 + s 32 + p 16 of 224
 *   192,128  192      64    2       2      225   shared memory
 *   256      128      64    2       1      193   shared memory
 *
 * More keys (80 or 96 at dimensions 96 to 192) are up to 6 % faster with 16384 keys, but 4 to 19 %
 * slower with up to 2048: a causal border wastes half a tile, and starts and ends take longer. */
template <int dim_, int dim_v_, int keys_, int groups_, int stages_, int slots_, bool is_f16_>
struct tile_shape {
    static constexpr int dim = dim_;
    static constexpr int dim_v = dim_v_;
    static constexpr int keys = keys_;
    static constexpr int groups = groups_;
    static constexpr int stages = stages_;
    static constexpr int slots = slots_;
    static constexpr bool is_f16 = is_f16_;
    static constexpr bool codes = false;

    static constexpr int queries = groups * GROUP_ROWS;
    static constexpr int threads = (groups + 1) * GROUP_THREADS;
    static constexpr int panels = (dim + PANEL - 1) / PANEL;
    static constexpr int panels_v = (dim_v + PANEL - 1) / PANEL;

    static constexpr int q_bytes = panels * queries * ROW_BYTES;
    static constexpr int k_bytes = panels * keys * ROW_BYTES;
    static constexpr int v_bytes = panels_v * keys * ROW_BYTES;

    /* The output overwrites the queries. */
    static constexpr int q_at = 0;
    static constexpr int k_at = q_at + slots * q_bytes;
    static constexpr int v_at = k_at + stages * k_bytes;
    static constexpr int control_at = v_at + stages * v_bytes;
    static constexpr int control_bytes = 320; /* of struct control */
    static constexpr int shared_bytes = control_at + control_bytes;

    /* Registers per thread: 64 K in all; the producer keeps few. */
    static constexpr int producer_registers = groups == 4 ? 32 : 56;
    static constexpr int consumer_registers = groups == 4 ? 112 : groups == 3 ? 152 : 224;

    /* Is attention_chunk supported? The begin of a chunk takes a division, and registers that the
     * producer of two warpgroups lacks. */
    static constexpr bool chunks = groups > 2;

    /* Are outputs stored directly, so that the only slot is free for the next queries? */
    static constexpr bool direct = slots == 1;

    /* Are new rows saved as boxes? */
    static constexpr bool boxes = groups < 4;

    static_assert(dim % 16 == 0 && dim_v % 16 == 0, "products take 16 columns at a time");
    static_assert(keys % 16 == 0, "products take 16 keys at a time");
    static_assert(groups >= 2 && groups <= 4, "two to four consumer warpgroups");
    static_assert(stages >= 2 && stages <= MOST_STAGES && slots <= MOST_SLOTS, "barriers for all");
    static_assert(panels_v <= panels, "the output fits where the queries were");
    static_assert(shared_bytes <= 232448, "a block has at most 227 KiB of shared memory");
};

#endif
