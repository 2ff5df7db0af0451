/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_stages.cuh: shared memory, barriers and teams of a block of attend.cuh.
 *
 *   | stage 0 | stage 1 | ... | Q | backs | exchange | tops | full[stages] empty[stages] |
 *
 *   stage      K 0  K 1  K 2  K 3  V 0  V 1  V 2  V 3: 16 keys each, one group per warp
 *   Q, backs   queries that do not fit registers; over fp8 also the inverses of their lifts
 *   exchange   at an item's end: some rows of each warp at a time, to be added up
 *   tops       each warp's largest logits and denominators; exchange and tops exist once for each
 *              team that has its own items
 *
 *   full[s]    the four producer warps that fill stage s arrive
 *   empty[s]   the four consumer warps that have read stage s arrive
 */
#ifndef FI_ATTEND_STAGES_CUH
#define FI_ATTEND_STAGES_CUH

#include "plugins/flashinfer_like/kernels/panels.cuh"
#include "plugins/flashinfer_like/kernels/shapes.h"

/* teams: math teams that alternate. producers: copying teams that alternate. blocks: per
 * multiprocessor. is_f16: queries are fp16, else bf16. codes: ELEMENT_E4M3 or ELEMENT_E5M2; 0 = the
 * cache has the queries' type. */
template <int dim_, int v_dim_, int stages_, int teams_, int producers_, int blocks_, bool is_f16_,
          int codes_>
struct attend_shape {
    static constexpr int dim = dim_;
    static constexpr int v_dim = v_dim_;
    static constexpr int stages = stages_;
    static constexpr int teams = teams_;
    static constexpr int producers = producers_;
    static constexpr int blocks = blocks_;
    static constexpr bool is_f16 = is_f16_;
    static constexpr int codes = codes_;
    static constexpr bool quantised = codes != 0;
    /* Over fp8, bf16 queries are converted to f16. With e4m3, the bits that f16 loses are lost in
     * the sums anyway. Values of e5m2 have a wider range, so tiles with elements that f16 cannot
     * hold are multiplied as bf16. */
    static constexpr bool may_not_fit = codes == ELEMENT_E5M2 && !is_f16;
    static constexpr int warps = teams * WARPS; /* math warps */
    /* Two teams alternate on items if one is fast enough: one ends an item and starts its next
     * while the other multiplies. */
    static constexpr bool by_item = teams == 2 && !quantised;
    /* Two units at once, if keys arrive faster than one team multiplies them: with short rows, and
     * over fp8 in blocks of one team. */
    static constexpr bool in_pairs = (by_item && dim <= 64) || (quantised && blocks == 2);
    /* Units that all rows see have code without masks of values. */
    static constexpr bool has_inner = teams == 1 && !quantised && dim == 128;
    static constexpr int item_warps = by_item ? WARPS : warps; /* that share an item */
    static constexpr int item_threads = item_warps * 32;
    static constexpr int apart = warps / item_warps; /* items at a time */
    /* setmaxnreg waits forever if the sum exceeds the registers of the launch. */
    static constexpr int producer_registers = blocks == 2  ? 72
                                              : teams == 1 ? 112
                                              : quantised  ? 104
                                                           : 88;
    static constexpr int consumer_registers = blocks == 2  ? 184
                                              : teams == 1 ? 240
                                              : quantised  ? 200
                                                           : 208;
    static constexpr int size = quantised ? 1 : 2; /* bytes of an element */
    static constexpr int panel = 128 / size;       /* adjacent elements of a row */
    /* If rows are whole panels and a half, rows of every second head start half a panel on. Then a
     * panel is an aligned line of 128 bytes of memory, if heads are adjacent. */
    static constexpr bool has_halves = by_item && dim == v_dim && dim * 2 % 128 == 64;
    static constexpr int k_bytes = (dim + panel - 1) / panel * PANEL_BYTES; /* of a group */
    static constexpr int v_bytes = (v_dim + panel - 1) / panel * PANEL_BYTES;
    /* Probabilities are scaled by 2^lift where they become f16, which has few small numbers. */
    static constexpr int lift = is_f16 || quantised ? 15 : 0;
    static constexpr int stage_bytes = WARPS * (k_bytes + v_bytes);
    /* Queries of more than 128 dimensions stay in shared memory, as sums need the registers. Their
     * rows are padded by 16 bytes to avoid bank conflicts. */
    static constexpr bool q_in_shared = dim > 128;
    static constexpr int q_stride = dim * 2 + 16;
    static constexpr int q_at = stages * stage_bytes;
    static constexpr int backs_at = q_at + (q_in_shared ? FI_ROWS * q_stride : 0);
    static constexpr int exchange_at = backs_at + (q_in_shared && quantised ? FI_ROWS * 4 : 0);
    static constexpr int pass_rows = quantised || dim > 128 ? 4 : 8; /* exchanged at a time */
    static constexpr int exchange_stride = (v_dim + 31) / 32 * 32;
    static constexpr int exchange_bytes = item_warps * pass_rows * exchange_stride * 4;
    static constexpr int tops_at = exchange_at + apart * exchange_bytes;
    static constexpr int tops_bytes = 2 * item_warps * FI_ROWS * 4 + 16;
    static constexpr int barriers_at = tops_at + apart * tops_bytes;
    static constexpr int shared_bytes = barriers_at + 2 * stages * 8;
    /* Parts of an item that are merged at a time. Two teams have few registers, and items of few
     * parts, so they have fewer. */
    static constexpr int merged = by_item ? 4 : v_dim > 128 || (blocks == 2 && !quantised) ? 8 : 16;
    /* The same for merges by pieces: of one piece, and of each of two. With two halves, the halves
     * of the lanes have different parts. */
    static constexpr int merged_pieces = v_dim > 128 && !quantised ? 16 : 8;
    static constexpr int merged_pairs = v_dim > 64 || by_item || quantised ? 4 : 8;
    static constexpr int merge_halves = v_dim == 64 && !quantised ? 2 : 1;
    static constexpr bool cuts_short = teams == 1 && !quantised && v_dim <= 128;
    static constexpr int merged_splits = v_dim > 128 ? 4 : 8;

    static_assert(dim % 16 == 0 && v_dim % 16 == 0, "rows are copied by whole warps");
    static_assert(!quantised || (dim % 32 == 0 && v_dim % 32 == 0),
                  "codes are multiplied 32 columns at a time");
    static_assert(teams * consumer_registers + producers * producer_registers <=
                      65536 / blocks / 128 / (teams + producers) / 8 * 8 * (teams + producers),
                  "registers");
    static_assert(FI_KEYS == WARPS * GROUP_KEYS, "each warp has a group of a unit");
    static_assert(shared_bytes == FI_ATTEND_BYTES(dim, v_dim, stages, teams, size),
                  "the host's bytes");
};

/* ---- Stages -------------------------------------------------------------------------------- */

/* A stage of the ring, and the parity of the round. */
struct ring {
    int stage;
    u32 parity;
};

template <typename S> static __device__ __forceinline__ void ring_next(ring &r)
{
    r.parity ^= r.stage + 1 == S::stages;
    r.stage = r.stage + 1 == S::stages ? 0 : r.stage + 1;
}

template <typename S> static __device__ __forceinline__ u32 full_barrier(char *shared, int stage)
{
    return shared_address(shared) + S::barriers_at + stage * 8;
}

template <typename S> static __device__ __forceinline__ u32 empty_barrier(char *shared, int stage)
{
    return shared_address(shared) + S::barriers_at + (S::stages + stage) * 8;
}

/* The first key of this warp's group of the current unit. */
static __device__ __forceinline__ int cursor_key(const cursor &at)
{
    return at.tile.lo + at.unit * FI_KEYS + warp_part() * GROUP_KEYS;
}

/* Free pieces of the panel before a row of this head. */
template <typename S> static __device__ __forceinline__ int pieces_before(int head)
{
    return S::has_halves ? (head & 1) * 4 : 0;
}

/* The offset of the panel with the d-th 16 dimensions from a row's first panel. */
template <typename S> static __device__ __forceinline__ u32 panel_of(int d, int before)
{
    return S::has_halves && d % 4 >= 2 ? (d / 4 * 4 + before) / 4 * PANEL_BYTES
                                       : d / 4 * PANEL_BYTES;
}

/* ---- Teams --------------------------------------------------------------------------------- */

enum { ITEM_BARRIER = 1, TURN_BARRIER = 3 }; /* the next numbers are the other team's */

static __device__ __forceinline__ int my_team(void)
{
    return (int)threadIdx.x / (WARPS * 32);
}

/* The number of this thread, and of its warp, among those that share an item. */
template <typename S> static __device__ __forceinline__ int item_thread(void)
{
    return (int)threadIdx.x % S::item_threads;
}

template <typename S> static __device__ __forceinline__ int item_warp(void)
{
    return item_thread<S>() / 32;
}

template <typename S> static __device__ __forceinline__ void item_sync(void)
{
    named_sync(ITEM_BARRIER + (S::by_item ? my_team() : 0), S::item_threads);
}

/* Math teams process units in order: a team that ran ahead would mistake a stage's previous round
 * for its next. */
static __device__ __forceinline__ void turn_take(int team)
{
    named_sync(TURN_BARRIER + team, 2 * WARPS * 32);
}

static __device__ __forceinline__ void turn_give(int team)
{
    named_arrive(TURN_BARRIER + team, 2 * WARPS * 32);
}

#endif /* FI_ATTEND_STAGES_CUH */
