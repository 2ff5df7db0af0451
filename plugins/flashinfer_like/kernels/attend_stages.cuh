/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_stages.cuh: what a block of attend.cuh has: its shared memory, barriers, and teams.
 *
 *   | stage 0 | stage 1 | ... | Q | backs | exchange | tops | full[stages] empty[stages] |
 *
 *   stage      K 0  K 1  K 2  K 3  V 0  V 1  V 2  V 3: of 16 keys each, by the warp that has them
 *   Q, backs   where queries have no room in registers; over fp8 what undoes their lift
 *   exchange   at an item's end: rows of each warp, a pass of them at a time, to be added up
 *   tops       with them: each warp's largest logits and denominators; for each team that has an
 *              item by itself, as exchange is
 *
 *   full[s]    the four warps of the producers that filled stage s arrive
 *   empty[s]   the four warps of the consumers that are done with it arrive
 */
#ifndef FI_ATTEND_STAGES_CUH
#define FI_ATTEND_STAGES_CUH

#include "plugins/flashinfer_like/kernels/panels.cuh"
#include "plugins/flashinfer_like/kernels/shapes.h"

/* teams: that multiply in turn. producers: teams that copy in turn. blocks: of a multiprocessor.
 * is_f16: queries are of fp16, else of bf16; so is the cache, or it has codes: ELEMENT_E4M3 or
 * ELEMENT_E5M2, 0 = none. */
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
    /* Queries of bf16 become f16 over codes. Of e4m3 what f16 has no room for is lost among the sums;
     * codes of e5m2 reach further, so rows that have such elements are multiplied as bf16. */
    static constexpr bool may_not_fit = codes == ELEMENT_E5M2 && !is_f16;
    static constexpr int warps = teams * WARPS; /* that multiply */
    /* Two teams take turns by items, where one is fast enough: the one ends an item and begins its
     * next while the other multiplies. */
    static constexpr bool by_item = teams == 2 && !quantised;
    /* Two units at once where keys come sooner than one team has multiplied them: of short rows, and
     * over fp8 where a block has one team. */
    static constexpr bool in_pairs = (by_item && dim <= 64) || (quantised && blocks == 2);
    /* Units that all rows see have code of their own, which leaves no values out. */
    static constexpr bool has_inner = teams == 1 && !quantised && dim == 128;
    static constexpr int item_warps = by_item ? WARPS : warps; /* that have an item together */
    static constexpr int item_threads = item_warps * 32;
    static constexpr int apart = warps / item_warps; /* items at a time */
    /* More than all were launched with is not to be had, and who asks for it waits for ever. */
    static constexpr int producer_registers = blocks == 2  ? 72
                                              : teams == 1 ? 112
                                              : quantised  ? 104
                                                           : 88;
    static constexpr int consumer_registers = blocks == 2  ? 184
                                              : teams == 1 ? 240
                                              : quantised  ? 200
                                                           : 208;
    static constexpr int size = quantised ? 1 : 2; /* bytes of an element */
    static constexpr int panel = 128 / size;       /* elements of a row that lie side by side */
    /* Where rows are panels and a half, those of every second head begin half a panel on: there a
     * panel is a line of 128 bytes of memory, where heads lie side by side. */
    static constexpr bool has_halves = by_item && dim == v_dim && dim * 2 % 128 == 64;
    static constexpr int k_bytes = (dim + panel - 1) / panel * PANEL_BYTES; /* of a group */
    static constexpr int v_bytes = (v_dim + panel - 1) / panel * PANEL_BYTES;
    /* Probabilities are worked with times 2^lift where they become f16, which has few small
     * numbers. */
    static constexpr int lift = is_f16 || quantised ? 15 : 0;
    static constexpr int stage_bytes = WARPS * (k_bytes + v_bytes);
    /* Queries of more than 128 dimensions stay in shared memory: registers are for the sums. Their
     * rows lie 16 bytes more apart than they are long, for the banks. */
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
    /* Parts of an item, at a time; fewer where they are. Two teams have few registers, and items of
     * few parts. */
    static constexpr int merged = by_item ? 4 : v_dim > 128 || (blocks == 2 && !quantised) ? 8 : 16;
    /* The same where they are merged by pieces: of one, and of each of two; and halves of the lanes,
     * which have other parts each. */
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

/* A place in the ring of stages, and which round of it. */
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

/* The first key of this warp's group of the unit at hand. */
static __device__ __forceinline__ int cursor_key(const cursor &at)
{
    return at.tile.lo + at.unit * FI_KEYS + warp_part() * GROUP_KEYS;
}

/* Of a head's rows, the panel's pieces before their first. */
template <typename S> static __device__ __forceinline__ int pieces_before(int head)
{
    return S::has_halves ? (head & 1) * 4 : 0;
}

/* The bytes from a row's first panel to the one with 16 dimensions, the d-th. */
template <typename S> static __device__ __forceinline__ u32 panel_of(int d, int before)
{
    return S::has_halves && d % 4 >= 2 ? (d / 4 * 4 + before) / 4 * PANEL_BYTES
                                       : d / 4 * PANEL_BYTES;
}

/* ---- Teams --------------------------------------------------------------------------------- */

enum { ITEM_BARRIER = 1, TURN_BARRIER = 3 }; /* and those after them, for the other team */

static __device__ __forceinline__ int my_team(void)
{
    return (int)threadIdx.x / (WARPS * 32);
}

/* Of the threads that have an item together, this one's number, and its warp's. */
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

/* Products go through the units in their order, whoever's they are: a team that ran ahead would
 * take a stage's last round for its own. */
static __device__ __forceinline__ void turn_take(int team)
{
    named_sync(TURN_BARRIER + team, 2 * WARPS * 32);
}

static __device__ __forceinline__ void turn_give(int team)
{
    named_arrive(TURN_BARRIER + team, 2 * WARPS * 32);
}

#endif /* FI_ATTEND_STAGES_CUH */
