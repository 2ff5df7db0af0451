/* SPDX-License-Identifier: Apache-2.0
 *
 * prefill_stages.cuh: what a block of prefill.cuh has in shared memory, and what its warps tell
 * each other there:
 *
 *   | Q 0 | Q 1 | K stages | V stages | codes of K | codes of V | control: barriers and work |
 *
 *   Q        a tile's rows of queries; one where there is no room for two
 *   K, V     `stages` units each, a quarter of each from every warp that copies
 *   codes    over fp8: a warp's own, on their way to be keys and values of 16 bits
 *
 *   q, k, v_full    the four warps that copy arrive: it is there, and so is control's work
 *   q, k, v_empty   the four or eight warps that multiply arrive: it is free
 */
#ifndef FI_PREFILL_STAGES_CUH
#define FI_PREFILL_STAGES_CUH

#include "plugins/common/cuda/warpgroup.cuh"
#include "plugins/flashinfer_like/kernels/panels.cuh"
#include "plugins/flashinfer_like/kernels/shapes.h"

#define CODE_PANEL 128 /* codes of a row that the 128-byte swizzle keeps together */

/* rows: of a tile; keys: of a unit; stages: units of keys, and of values, in shared memory; q_slots: tiles of
 * queries, of which the next one comes while this one is worked on where there is room for two;
 * code_slots: units of codes on their way to be keys and values; codes: ELEMENT_E4M3 or
 * ELEMENT_E5M2, 0 = the cache has none; sloped: for groups with slopes (prefill_slopes.cuh). */
template <int dim_, int dim_v_, int keys_, int stages_, int q_slots_, int code_slots_, bool is_f16_,
          int codes_, int rows_ = FI_PREFILL_ROWS, bool sloped_ = false>
struct prefill_shape {
    static constexpr int dim = dim_;
    static constexpr int dim_v = dim_v_;
    static constexpr int keys = keys_;
    static constexpr int stages = stages_;
    static constexpr int q_slots = q_slots_;
    static constexpr int code_slots = code_slots_;
    static constexpr int codes = codes_;
    static constexpr bool is_f16 = is_f16_;
    static constexpr bool sloped = sloped_;

    /* Do units come from the last to the first (unit_at()), and scores a unit ahead (step())? Without
     * slopes rows of 80 and 96 have not been timed so. Half a tile over codes has scores ahead, too. */
    static constexpr bool backwards =
        HAS_HOPPER && rows_ == FI_PREFILL_ROWS && codes == 0 && (sloped || dim == 64 || dim == 128);
    static constexpr bool ahead =
        (backwards && dim <= 64) || (HAS_HOPPER && rows_ < FI_PREFILL_ROWS && codes != 0);
    /* Do units that all rows see have a loop without masks? It is 1 to 4 % faster, and 9 % slower with 96
     * dimensions. */
    static constexpr bool has_whole =
        HAS_HOPPER && (rows_ < FI_PREFILL_ROWS ? codes != 0 : dim == 64 || dim == 128);

    static constexpr int rows = rows_;
    static constexpr int groups = rows / GROUP_ROWS;
    static constexpr int consumers = groups * GROUP_THREADS;
    static constexpr int warps_shift = groups + 1;      /* 2 to this: warps that multiply */
    static constexpr int merged = dim_v > 128 ? 8 : 16; /* parts of an item, at a time */
    /* Warpgroups that copy. Over codes one has too few issue slots beside one that multiplies: then
     * one has keys, and one after those who multiply has values. */
    static constexpr int feeders = rows < FI_PREFILL_ROWS && codes ? 2 : 1;
    static constexpr int threads = consumers + feeders * GROUP_THREADS;
    static constexpr int panels = (dim + PANEL - 1) / PANEL;
    static constexpr int panels_v = (dim_v + PANEL - 1) / PANEL;
    static constexpr int panel_bytes = keys * ROW_BYTES; /* of a unit */
    static constexpr int k_bytes = panels * panel_bytes;
    static constexpr int v_bytes = panels_v * panel_bytes;
    static constexpr int q_bytes = panels * rows * ROW_BYTES;
    static constexpr int warp_keys = keys / WARPS; /* of a unit, that a warp copies */
    static constexpr int parts = warp_keys / FI_GROUP;
    static constexpr int step = backwards ? -keys : keys; /* from a unit's keys to the next one's */

    static constexpr int k_at = q_slots * q_bytes;
    static constexpr int v_at = k_at + stages * k_bytes;
    /* Codes: each warp's rows by themselves, 128 bytes of one, then the rest. */
    static constexpr int warp_code_bytes =
        (dim + CODE_PANEL - 1) / CODE_PANEL * warp_keys * ROW_BYTES;
    static constexpr int warp_code_v_bytes =
        (dim_v + CODE_PANEL - 1) / CODE_PANEL * warp_keys * ROW_BYTES;
    static constexpr int k_codes_at = v_at + stages * v_bytes;
    static constexpr int v_codes_at = k_codes_at + WARPS * code_slots * warp_code_bytes;
    static constexpr int ramp_at = v_codes_at + WARPS * code_slots * warp_code_v_bytes;
    static constexpr int control_at = ramp_at + (sloped ? FI_SLOPES_BYTES(keys) : 0);
    static constexpr int control_bytes = feeders > 1 ? 2560 : 1536;
    static constexpr int shared_bytes = control_at + control_bytes;

    /* Registers of a thread. Warps that copy give up some of those that they were launched with, and
     * warps that multiply take them; a request for more than is free waits forever. With 56 instead of
     * 88, converted elements have to be stored before the next ones are made: 5 to 8 % slower. */
    static constexpr int launch_registers = 65536 / threads / 8 * 8;
    static constexpr int producer_registers = feeders > 1   ? 128
                                              : groups == 1 ? 112
                                              : codes       ? 88
                                                            : 56;
    static constexpr int consumer_registers = groups == 1 ? 240 : codes ? 208 : 224;
    static_assert(feeders * producer_registers + groups * consumer_registers <=
                      (groups + feeders) * launch_registers,
                  "registers are handed on, not made");

    static_assert(dim % 16 == 0 && dim_v % 16 == 0, "rows are copied by whole warps");
    static_assert((codes != 0) == (code_slots > 0), "codes come by way of slots");
    static_assert(32 << warps_shift == consumers, "warps that multiply");
    static_assert(FI_STORE_ROWS == GROUP_ROWS, "a warpgroup's rows leave together");
    static_assert(parts == 1 || parts == 2, "a lane looks up one key");
    static_assert(shared_bytes ==
                      FI_PREFILL_BYTES(rows, dim, dim_v, keys, stages, q_slots, code_slots) +
                          (sloped ? FI_SLOPES_BYTES(keys) : 0),
                  "the host's bytes");
    static_assert(shared_bytes <= FI_SHARED_MOST, "a block has at most 227 KiB of shared memory");
};

/* ---- Work and barriers --------------------------------------------------------------------- */

/* An item, or what the block has of it. units == 0: there is no more work. */
struct work {
    cursor at;
    index_sequence q;
    int units;
    int lo, hi; /* keys that any query of the sequence sees; a custom mask thins them out */
    bool is_whole, is_first;
    bool has_rows; /* some of its keys come row by row */
    int new_from;  /* keys from here on are new, whether they are read from the cache or not */
    int gap_key;   /* that of the first unit that is passed over, if any is */
};

/* The unit of the tile that comes `i`th, of those that the block has of it. The last has the most to
 * mask, and as the first its exponentials wait for nothing else. With slopes the nearest keys have the
 * largest logits, and a reference found there lasts. */
template <typename S> DEVICE int unit_at(const struct work &w, int i)
{
    return w.at.unit + (S::backwards ? w.units - 1 - i : i);
}

struct control {
    unsigned long long q_full[2], q_empty[2], k_full[4], k_empty[4], v_full[4], v_empty[4];
    struct work work[2];         /* for the warps that multiply */
    struct work feeds[WARPS][2]; /* what a warp that copies is at, and what comes next: registers
                                    are few */
    unsigned long long k_codes[WARPS][2], v_codes[WARPS][2]; /* a warp's own */
    union {
        u32 seen[8]
                [4]; /* keys that any row of a warp sees: bit 2i + e of word n: key 8i + 2n + e */
        u32 slices;  /* at its end: of an item that others share, which the block has to merge */
    };
};

/* The same where values come by a warpgroup of their own. */
struct two_feeds : control {
    struct work value_feeds[WARPS][2];
};

template <typename S> DEVICE void control_init(struct control *control)
{
    const int warps = S::consumers / 32;
    for (int i = 0; i < S::q_slots; i++) {
        barrier_init(shared_address(&control->q_full[i]), WARPS);
        barrier_init(shared_address(&control->q_empty[i]), warps);
    }
    for (int i = 0; i < S::stages; i++) {
        barrier_init(shared_address(&control->k_full[i]), WARPS);
        barrier_init(shared_address(&control->v_full[i]), WARPS);
        barrier_init(shared_address(&control->k_empty[i]), warps);
        barrier_init(shared_address(&control->v_empty[i]), warps);
    }
    for (int i = 0; S::codes && i < WARPS * 2; i++) {
        barrier_init(shared_address(&control->k_codes[i / 2][i % 2]), 1);
        barrier_init(shared_address(&control->v_codes[i / 2][i % 2]), 1);
    }
    fence_barrier_init();
}

/* ---- Of those who copy --------------------------------------------------------------------- */

/* Where a warp's keys and values of a unit go, and the barriers of the stages. */
struct feed_memory {
    char *keys, *values;
    u32 k_full, k_empty, v_full, v_empty;
    u32 k_codes, v_codes, k_codes_full, v_codes_full; /* of a cache of codes */
};

/* What the table has for a warp's key, if any key of its group of 16 is below `hi`. */
DEVICE int look_up(const fi_call &c, const index_sequence &q, int key, int hi)
{
    if (key - (int)(threadIdx.x & 15) >= hi)
        return 0;
    const int *entry = find_entry(c, q, min(key, hi - 1));
    return entry ? *entry : 0;
}

#endif /* FI_PREFILL_STAGES_CUH */
