/* SPDX-License-Identifier: Apache-2.0
 *
 * wide_stages.cuh: what a block of wide.cuh has in shared memory, and what its warps tell each other
 * there:
 *
 *   | Q | K stages | V stages | P, twice | control: barriers, work, factors |
 *
 *   q, k, v_full   the four warps that copy arrive: it is there, and so is control's work
 *   q_empty        those who score need the item's queries no more, and those who add values are
 *                  done with the item before it: its place in `work` is the next one's
 *   k_empty        the four warps that score arrive
 *   v_empty        the eight warps that add values arrive
 *   p_full, empty  the same two, of probabilities, and after an item's last of its totals
 */
#ifndef FI_WIDE_STAGES_CUH
#define FI_WIDE_STAGES_CUH

#include "plugins/flashinfer_like/kernels/prefill_stages.cuh"

/* As prefill_shape, for what is as in prefill.cuh; `consumers` are those who have scores there. */
template <int dim_, int dim_v_, int keys_, int stages_, bool half_> struct wide_shape {
    static constexpr int dim = dim_;
    static constexpr int dim_v = dim_v_;
    static constexpr int keys = keys_;
    static constexpr int stages = stages_;
    static constexpr int codes = 0;
    static constexpr bool half = half_;
    static constexpr bool sloped = false;

    static constexpr int rows = FI_WIDE_ROWS;
    static constexpr int columns = dim_v / 2; /* of a warpgroup's sums */
    static constexpr int consumers = GROUP_THREADS;
    static constexpr int adders = 2 * GROUP_THREADS;
    static constexpr int threads = GROUP_THREADS + consumers + adders;
    static constexpr int panels = dim / PANEL;
    static constexpr int panels_v = dim_v / PANEL;
    static constexpr int panel_bytes = keys * ROW_BYTES;
    static constexpr int k_bytes = panels * panel_bytes;
    static constexpr int v_bytes = panels_v * panel_bytes;
    static constexpr int q_bytes = panels * rows * ROW_BYTES;
    /* A warp that copies has some panels of all keys, so that boxes are large. */
    static constexpr int warp_keys = keys;
    static constexpr int warp_panels = panels / WARPS;
    static constexpr int warp_panels_v = panels_v / WARPS;
    static constexpr int parts = warp_keys / FI_GROUP;

    static constexpr int k_at = q_bytes;
    static constexpr int v_at = k_at + stages * k_bytes;
    static constexpr int p_at = v_at + stages * v_bytes; /* both buffers: of a row 64 bytes each */
    static constexpr int control_at = p_at + rows * ROW_BYTES;
    static constexpr int control_bytes = 3072;
    static constexpr int shared_bytes = control_at + control_bytes;

    static constexpr int launch_registers = 65536 / threads / 8 * 8;
    static constexpr int producer_registers = 56;
    static constexpr int scorer_registers = 136;
    static constexpr int adder_registers = 160;
    static_assert(producer_registers + scorer_registers + 2 * adder_registers <=
                      4 * launch_registers,
                  "registers are handed on, not made");
    static_assert(keys == 32 && panels % WARPS == 0 && panels_v % WARPS == 0 && columns == 256,
                  "what is written");
    static_assert(dim_v == FI_WIDE_PIECES * 128, "a row of a part is merged by so many warps");
    static_assert(shared_bytes <= 232448, "a block has at most 227 KiB of shared memory");
};

#define CHECK_SHAPE(name, dim, v_dim, keys, stages, shared)                                        \
    static_assert(wide_shape<dim, v_dim, keys, stages, false>::shared_bytes == shared,             \
                  #name ": the table's bytes of shared memory");
FI_WIDE_SHAPES(CHECK_SHAPE)
#undef CHECK_SHAPE

/* What the scoring warpgroup hands to those that add values: of a unit, the factors of its rows' sums;
 * after an item's last, the rows' maxima and sums. */
struct wide_control : control {
    unsigned long long p_full[2], p_empty[2];
    u32 to_merge; /* slices of an item, while the next one may have `seen` already */
    float factor[2][FI_WIDE_ROWS];
    float top[FI_WIDE_ROWS], sum[FI_WIDE_ROWS];
};

template <typename S> DEVICE void wide_init(struct wide_control *control)
{
    const int scorers = S::consumers / 32, adders = S::adders / 32;
    barrier_init(shared_address(&control->q_full[0]), WARPS);
    barrier_init(shared_address(&control->q_empty[0]), scorers + adders);
    for (int i = 0; i < S::stages; i++) {
        barrier_init(shared_address(&control->k_full[i]), WARPS);
        barrier_init(shared_address(&control->v_full[i]), WARPS);
        barrier_init(shared_address(&control->k_empty[i]), scorers);
        barrier_init(shared_address(&control->v_empty[i]), adders);
    }
    for (int i = 0; i < 2; i++) {
        barrier_init(shared_address(&control->p_full[i]), scorers);
        barrier_init(shared_address(&control->p_empty[i]), adders);
    }
    fence_barrier_init();
}

#endif /* FI_WIDE_STAGES_CUH */
