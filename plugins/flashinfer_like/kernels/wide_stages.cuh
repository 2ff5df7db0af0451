/* SPDX-License-Identifier: Apache-2.0
 *
 * wide_stages.cuh: shared memory and barriers of a block of wide.cuh.
 *
 *   | Q | K stages | V stages | P, twice | control: barriers, work, factors |
 *
 *   Q              half of the columns; the other half arrives as a unit of K and stays in registers
 *   q, k_full      the two warps that copy queries and keys arrive; q_full also publishes `work`
 *   v_full         the two warps that copy values arrive
 *   q_empty        the scoring warps no longer need the item's queries, and the adding warps have
 *                  ended the previous item, so its place in `work` is free
 *   k_empty        the four scoring warps arrive
 *   v_empty        the eight adding warps arrive
 *   p_full, empty  the scoring warps fill a buffer of probabilities, the adding warps release it
 */
#ifndef FI_WIDE_STAGES_CUH
#define FI_WIDE_STAGES_CUH

#include "plugins/flashinfer_like/kernels/prefill_stages.cuh"

/* Has the fields of prefill_shape that the code of prefill.cuh needs. `consumers` are the threads
 * that compute scores. */
template <int dim_, int dim_v_, int keys_, int k_stages_, int stages_, bool is_f16_>
struct wide_shape {
    static constexpr int dim = dim_;
    static constexpr int dim_v = dim_v_;
    static constexpr int keys = keys_;
    static constexpr int k_stages = k_stages_;
    static constexpr int stages = stages_; /* of values */
    static constexpr int codes = 0;
    static constexpr bool is_f16 = is_f16_;
    static constexpr bool sloped = false;
    static constexpr bool backwards = false;

    static constexpr int rows = FI_WIDE_ROWS;
    static constexpr int columns = dim_v / 2; /* sums of a warpgroup */
    static constexpr int consumers = GROUP_THREADS;
    static constexpr int adders = 2 * GROUP_THREADS;
    static constexpr int threads = GROUP_THREADS + consumers + adders;
    static constexpr int panels = dim / PANEL;
    static constexpr int panels_v = dim_v / PANEL;
    static constexpr int panel_bytes = keys * ROW_BYTES;
    static constexpr int k_bytes = panels * panel_bytes;
    static constexpr int v_bytes = panels_v * panel_bytes;
    static constexpr int held = panels / 2; /* panels of queries in registers */
    static constexpr int q_bytes = (panels - held) * rows * ROW_BYTES;
    /* A copying warp has half of the panels of all keys or values, so that boxes are large. */
    static constexpr int warp_keys = keys;
    static constexpr int copiers = WARPS / 2;
    static constexpr int warp_panels = panels / copiers;
    static constexpr int parts = warp_keys / FI_GROUP;

    static constexpr int k_at = q_bytes;
    static constexpr int v_at = k_at + k_stages * k_bytes;
    static constexpr int p_at = v_at + stages * v_bytes; /* two buffers, each 64 bytes of a row */
    static constexpr int control_at = p_at + rows * ROW_BYTES;
    static constexpr int control_bytes = 4096;
    static constexpr int shared_bytes = control_at + control_bytes;

    static constexpr int launch_registers = 65536 / threads / 8 * 8;
    static constexpr int producer_registers = 56;
    static constexpr int scorer_registers = 136;
    static constexpr int adder_registers = 160;
    static_assert(producer_registers + scorer_registers + 2 * adder_registers <=
                      4 * launch_registers,
                  "registers are handed on, not made");
    static_assert(keys == 32 && panels == panels_v && panels == 2 * WARPS && columns == 256,
                  "what is written");
    static_assert(held * rows * ROW_BYTES == k_bytes, "half of the queries are a unit of keys");
    static_assert(dim_v == FI_WIDE_PIECES * 128, "a row of a part is merged by so many warps");
    static_assert(shared_bytes <= FI_SHARED_MOST, "a block has at most 227 KiB of shared memory");
};

#define CHECK_SHAPE(name, dim, v_dim, keys, k_stages, stages, shared)                              \
    static_assert(wide_shape<dim, v_dim, keys, k_stages, stages, false>::shared_bytes == shared,   \
                  #name ": the table's bytes of shared memory");
FI_WIDE_SHAPES(CHECK_SHAPE)
#undef CHECK_SHAPE

/* Passed from scoring to adding warps with a unit's probabilities: the factors of its rows' sums
 * and, with the last unit of an item, the totals of its rows. */
struct wide_rows {
    float factor[FI_WIDE_ROWS], top[FI_WIDE_ROWS], sum[FI_WIDE_ROWS];
};

struct wide_control : control {
    unsigned long long p_full[2], p_empty[2];
    u32 to_merge; /* slices of an item; separate from `slices` and `seen`, which the next item may
                   * use already */
    struct wide_rows rows[2];
};

template <typename S> DEVICE void wide_init(struct wide_control *control)
{
    const int scorers = S::consumers / 32, adders = S::adders / 32;
    barrier_init(shared_address(&control->q_full[0]), S::copiers);
    barrier_init(shared_address(&control->q_empty[0]), scorers + adders);
    for (int i = 0; i < S::k_stages; i++) {
        barrier_init(shared_address(&control->k_full[i]), S::copiers);
        barrier_init(shared_address(&control->k_empty[i]), scorers);
    }
    for (int i = 0; i < S::stages; i++) {
        barrier_init(shared_address(&control->v_full[i]), S::copiers);
        barrier_init(shared_address(&control->v_empty[i]), adders);
    }
    for (int i = 0; i < 2; i++) {
        barrier_init(shared_address(&control->p_full[i]), scorers);
        barrier_init(shared_address(&control->p_empty[i]), adders);
    }
    fence_barrier_init();
}

#endif /* FI_WIDE_STAGES_CUH */
