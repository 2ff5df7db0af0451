/* SPDX-License-Identifier: Apache-2.0
 *
 * prefill.cuh: tiles of 128 rows against 64 keys at a time: bound by how fast products are made.
 *
 *   unit n      | wait for n, barrier | copies of n + 1 begin | S = Q K | softmax | O += P V |
 *   unit n + 1                                                           | wait for n + 1 ...
 *
 * Each warp has 16 or 32 rows, and all keys of a unit: matrices of keys and values are loaded once
 * for both halves of its rows. Four of the warps also start the copies of a unit while the one
 * before it is worked on (feed.cuh); where they are in their work lies in shared memory meanwhile,
 * as registers are for the sums. New keys are read from k and v, the others from the cache: a batch
 * without a prefix reads no page, one with a prefix goes from the one to the other within a tile,
 * without partial results to be merged.
 *
 * Two blocks of a multiprocessor fill each other's waits where registers allow it (dimensions up to
 * 128). A unit of D 128 is 1024 products of 4096 operations: some 1650 cycles of the tensor cores
 * by these instructions, which reach about 0.62 of what wgmma does; 512 cycles of exponentials.
 */
#ifndef FLASHINFER_LIKE_PREFILL_CUH
#define FLASHINFER_LIKE_PREFILL_CUH

#include "plugins/flashinfer_like/kernels/feed.cuh"
#include "plugins/flashinfer_like/kernels/shapes.h"

#define FEED_BYTES 128

template <int dim_, int v_dim_, int warps_, bool half_> struct prefill_shape {
    static constexpr int dim = dim_;
    static constexpr int v_dim = v_dim_;
    static constexpr int warps = warps_;
    static constexpr bool half = half_;
    static constexpr int threads = warps * 32;
    static constexpr int tiles = FI_PREFILL_ROWS / 16 / warps; /* of 16 rows, that a warp has */

    static constexpr int k_bytes = (dim + 63) / 64 * PANEL_BYTES; /* of a group */
    static constexpr int v_bytes = (v_dim + 63) / 64 * PANEL_BYTES;
    static constexpr int stage_bytes = WARPS * (k_bytes + v_bytes);
    static constexpr int q_bytes =
        FI_PREFILL_ROWS / GROUP_KEYS * k_bytes; /* as groups of 16 rows */
    static constexpr int stages_at = q_bytes;
    static constexpr int feeds_at = stages_at + 2 * stage_bytes;
    static constexpr int items_at = feeds_at + WARPS * FEED_BYTES;
    static constexpr int barriers_at = items_at + warps * FEED_BYTES;
    static constexpr int flag_at = barriers_at + 16;
    static constexpr int shared_bytes = flag_at + 16;
};

/* ---- Copies -----------------------------------------------------------------------------------
 */

/* Of a feed, or of the item that a warp multiplies, what all lanes have alike: in shared memory, as
 * registers are for the sums. */
struct feed_home {
    cursor at;
    index_sequence q;
};
static_assert(sizeof(feed_home) <= FEED_BYTES, "the homes have room");

/* Units of the item at hand that the block does. */
static __device__ __forceinline__ int units_here(const cursor &at)
{
    return min(at.units - at.unit, at.left);
}

/* What of its feed a warp that copies has at hand: within an item it goes on by a unit at a time.
 */
struct feed_steps {
    int key;   /* the first of its group that comes next */
    int entry; /* its page */
    int units; /* of the item, still to come */
    int left;  /* of the block */
};

/* Look up the page of the group that comes next. */
static __device__ __forceinline__ void steps_look_up(const fi_call &c, const feed_home *home,
                                                     feed_steps &steps)
{
    bool is_cached = steps.left > 0 && steps.key < min(home->at.tile.hi, home->q.first_new);
    steps.entry = is_cached ? *find_entry(c, home->q, steps.key) : 0;
}

static __device__ __forceinline__ void steps_begin(const fi_call &c, const cursor &at,
                                                   const index_sequence &q, feed_home *home,
                                                   feed_steps &steps)
{
    steps.left = at.left;
    steps.units = units_here(at);
    steps.key = cursor_key(c, at);
    __syncwarp(); /* all lanes have read what was there */
    if ((threadIdx.x & 31) == 0) {
        home->at = at;
        home->q = q;
    }
    __syncwarp();
    steps_look_up(c, home, steps);
}

/* The item after the one at hand. */
static __device__ void steps_next_item(const fi_call &c, feed_home *home, feed_steps &steps)
{
    cursor at = home->at;
    at.unit = at.units - 1;
    at.left = steps.left + 1;
    cursor_next(c, at);
    index_sequence q;
    index_find_sequence(&c.batch, c.operands.k != 0, at.tile.seq, &q);
    steps_begin(c, at, q, home, steps);
}

/* Start the copies of the unit that comes next, and look up the one after it. */
template <typename S>
static __device__ __forceinline__ void feed_unit(const fi_call &c, feed_home *home,
                                                 feed_steps &steps, char *stage, u32 barrier)
{
    if (steps.left <= 0)
        return;
    int key = steps.key, first_new = home->q.first_new;
    bool is_new = key >= first_new;
    if (key < home->at.tile.hi &&
        (is_new ? c.has_new_maps : c.has_maps && key + GROUP_KEYS <= first_new)) {
        if ((threadIdx.x & 31) == 0) {
            box_place box = {is_new ? &c.k_new_map : &c.k_map, is_new ? &c.v_new_map : &c.v_map,
                             is_new ? home->q.new_row + key - home->q.new_key : box_offset(c, key),
                             home->at.head, is_new ? 0 : steps.entry};
            start_boxes<S>(box, stage + warp_part() * S::k_bytes,
                           stage + WARPS * S::k_bytes + warp_part() * S::v_bytes, barrier);
        }
    } else {
        feed f = {home->at, home->q, 0};
        f.at.unit = (key - f.at.tile.lo) / FI_KEYS;
        f.at.left = steps.left;
        feed_look_up(c, f);
        feed_start<S>(c, f, stage, barrier);
    }
    steps.key += FI_KEYS;
    steps.left--;
    if (--steps.units > 0)
        steps_look_up(c, home, steps);
    else if (steps.left > 0)
        steps_next_item(c, home, steps);
}

/* ---- An item ----------------------------------------------------------------------------------
 */

/* What a warp holds of an item. Of tile i of its rows a thread has rows lane / 4 and that + 8. */
template <typename S> struct rows {
    int all_lo,
        all_hi; /* keys that every row sees; none, if there is more to a logit than a product */
    bool is_special; /* there is */
    float top[S::tiles][2], sum[S::tiles][2];
    float out[S::tiles][S::v_dim / 8][4];
};

template <typename S> static __device__ __forceinline__ int first_row(void)
{
    return (int)(threadIdx.x / 32) * S::tiles * 16;
}

/* A warp copies its own rows' queries, which no other reads. */
template <typename S>
static __device__ __forceinline__ void copy_queries(const fi_call &c, const cursor &at,
                                                    const index_sequence &q, char *shared)
{
    constexpr int pieces = S::dim / 8;
    int lane = (int)threadIdx.x & 31, last = item_rows(c, q, at.tile, FI_PREFILL_ROWS) - 1;
    bool aligned = c.operands.aligned & CALL_ALIGNED_Q;
    __syncwarp();
#pragma unroll 4
    for (int i = lane; i < S::tiles * 16 * pieces; i += 32) {
        int r = first_row<S>() + i / pieces, piece = i % pieces, head;
        i64 row;
        find_row(c, q, at, at.head, min(r, last), &row, &head);
        const char *from = (const char *)c.operands.q + row * c.operands.q_row +
                           head * c.operands.q_head + piece * 16;
        char *to = shared + r / GROUP_KEYS * S::k_bytes + piece_at(r % GROUP_KEYS, piece);
        if (aligned)
            copy16(shared_address(to), from);
        else
            for (int n = 0; n < 8; n++)
                ((u16 *)to)[n] = ((const u16 *)from)[n];
    }
    copy_commit();
}

/* Begin the item at hand: its sequence is looked up, its queries are on their way. */
template <typename S>
static __device__ __forceinline__ void rows_begin(const fi_call &c, const cursor &at, rows<S> &it,
                                                  feed_home *home, char *shared)
{
    mask_rule rule = rule_of(c);
    index_sequence q;
    int ignored;
    index_find_sequence(&c.batch, c.operands.k != 0, at.tile.seq, &q);
    int last = at.tile.row0 + item_rows(c, q, at.tile, FI_PREFILL_ROWS) - 1;
    mask_positions(&rule, q.prefix_len + last / c.ratio, &it.all_lo, &ignored);
    mask_positions(&rule, q.prefix_len + at.tile.row0 / c.ratio, &ignored, &it.all_hi);
    it.all_hi = min(it.all_hi, at.tile.hi);
    it.is_special = c.custom || c.cap != 0 || c.operands.slopes;
    if (it.is_special || !(c.scale > 0))
        it.all_hi = 0;
    copy_queries<S>(c, at, q, shared);
    if ((threadIdx.x & 31) == 0) {
        home->at = at;
        home->q = q;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < S::tiles; i++) {
        for (int h = 0; h < 2; h++) {
            it.top[i][h] = SOFTMAX_EMPTY;
            it.sum[i][h] = 0.0f;
        }
#pragma unroll
        for (int d = 0; d < S::v_dim / 8; d++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                it.out[i][d][e] = 0.0f;
    }
}

/* ---- A unit -----------------------------------------------------------------------------------
 */

/* score[i][j]: products of tile i with keys 8j to 8j + 7. */
template <typename S>
static __device__ __forceinline__ void score_unit(const char *shared, const char *k,
                                                  float (&score)[S::tiles][8][4])
{
    int lane = (int)threadIdx.x & 31, row = (lane & 7) + (lane >> 4) * 8;
    u32 keys = shared_address(k) + piece_at(row, lane >> 3 & 1);
    u32 queries = shared_address(shared) + first_row<S>() / GROUP_KEYS * S::k_bytes +
                  piece_at(lane & 15, lane >> 4);
#pragma unroll
    for (int d = 0; d < S::dim / 16; d++) {
        u32 a[S::tiles][4], b[4];
        u32 q_at = (queries ^ (d & 3) << 5) + d / 4 * PANEL_BYTES;
        u32 k_at = (keys ^ (d & 3) << 5) + d / 4 * PANEL_BYTES;
#pragma unroll
        for (int i = 0; i < S::tiles; i++)
            load_matrices(a[i], q_at + i * S::k_bytes);
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            load_matrices(b, k_at + j / 2 * S::k_bytes);
#pragma unroll
            for (int i = 0; i < S::tiles; i++) {
                multiply<S::half>(score[i][j], a[i], b[0], b[1]);
                multiply<S::half>(score[i][j + 1], a[i], b[2], b[3]);
            }
        }
    }
}

/* A logit of what there is more to than a product: cap, slope, custom mask. */
static __device__ __noinline__ float finish_logit(const fi_call &c, const feed_home *home,
                                                  mask_view view, int key, int head, float x,
                                                  int *seen)
{
    mask_rule rule = rule_of(c);
    const float *slopes = c.operands.slopes;
    *seen = mask_sees(&rule, &c.batch, &home->q, &view, key, home->at.tile.hi);
    int position = *seen ? mask_key_position(&rule, &c.batch, &home->q, key) : key;
    return softmax_logit(x, c.cap, slopes != 0, slopes ? slopes[head] : 0.0f,
                         fabsf((float)(view.position - position)));
}

/* Scores, already scaled, to logits of what is seen. Returns which keys any row of the warp sees:
 * bit 2j + e for key e of this lane's two of the j-th 8. */
template <typename S>
static __device__ u32 hide_unit(const fi_call &c, const feed_home *home, const rows<S> &it,
                                int from, float (&score)[S::tiles][8][4])
{
    mask_rule rule = rule_of(c);
    const cursor at = home->at;
    const index_sequence q = home->q;
    int lane = (int)threadIdx.x & 31;
    u32 seen = 0;
#pragma unroll
    for (int i = 0; i < S::tiles; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            mask_view view;
            int row = at.tile.row0 + first_row<S>() + i * 16 + h * 8 + lane / 4;
            int there = row < q.q_len * c.ratio;
            mask_find_view(&rule, &c.batch, &q, at.tile.seq, there ? row / c.ratio : -1, &view);
            int head = at.head * c.ratio + (there ? row % c.ratio : 0);
#pragma unroll
            for (int n = 0; n < 16; n++) {
                int key = from + n / 2 * 8 + (lane & 3) * 2 + n % 2;
                float &x = score[i][n / 2][h * 2 + n % 2];
                int sees = view.lo <= key && key < min(view.hi, at.tile.hi);
                if (it.is_special)
                    x = finish_logit(c, home, view, key, head, x, &sees);
                x = sees ? x : SOFTMAX_EMPTY;
                seen |= sees ? 1u << n : 0;
            }
        }
    seen |= __shfl_xor_sync(~0u, seen, 4);
    seen |= __shfl_xor_sync(~0u, seen, 8);
    return seen | __shfl_xor_sync(~0u, seen, 16);
}

/* Scores become logits, and probabilities by the largest so far; what was summed up follows it. */
template <typename S>
static __device__ __forceinline__ void weigh_unit(float (&score)[S::tiles][8][4], rows<S> &it,
                                                  float scale)
{
#pragma unroll
    for (int i = 0; i < S::tiles; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float here = score[i][0][h * 2];
#pragma unroll
            for (int n = 1; n < 16; n++)
                here = fmaxf(here, score[i][n / 2][h * 2 + n % 2]);
            float top = fmaxf(it.top[i][h], softmax_quad_max(here) * scale);
            float base = softmax_base(top), shrink = softmax_exp2(it.top[i][h] - base), sum = 0.0f;
            it.top[i][h] = top;
#pragma unroll
            for (int n = 0; n < 16; n++) {
                float &x = score[i][n / 2][h * 2 + n % 2];
                x = softmax_exp2(fmaf(x, scale, -base));
                sum += x;
            }
            it.sum[i][h] = it.sum[i][h] * shrink + sum;
#pragma unroll
            for (int d = 0; d < S::v_dim / 8; d++) {
                it.out[i][d][h * 2] *= shrink;
                it.out[i][d][h * 2 + 1] *= shrink;
            }
        }
}

/* out += probabilities x values; of values that no row sees nothing is left, whatever they are. */
template <typename S, bool all>
static __device__ __forceinline__ void add_unit(const float (&score)[S::tiles][8][4], const char *v,
                                                u32 seen, rows<S> &it)
{
    int lane = (int)threadIdx.x & 31;
    u32 values = shared_address(v) + piece_at(lane & 15, lane >> 4);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
        u32 p[S::tiles][4], kept[2] = {~0u, ~0u};
#pragma unroll
        for (int i = 0; i < S::tiles; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                p[i][e] = pack16<S::half>(score[i][j + e / 2][e % 2 * 2],
                                          score[i][j + e / 2][e % 2 * 2 + 1]);
        if (!all)
            for (int n = 0; n < 2; n++)
                kept[n] = (seen >> 2 * (j + n) & 1 ? 0xffffu : 0) |
                          (seen >> 2 * (j + n) & 2 ? 0xffff0000u : 0);
#pragma unroll
        for (int d = 0; d < S::v_dim / 16; d++) {
            u32 b[4];
            load_matrices_transposed(b, (values ^ (d & 3) << 5) + d / 4 * PANEL_BYTES +
                                            j / 2 * S::v_bytes);
#pragma unroll
            for (int i = 0; i < S::tiles; i++) {
                multiply<S::half>(it.out[i][d * 2], p[i], all ? b[0] : b[0] & kept[0],
                                  all ? b[1] : b[1] & kept[1]);
                multiply<S::half>(it.out[i][d * 2 + 1], p[i], all ? b[2] : b[2] & kept[0],
                                  all ? b[3] : b[3] & kept[1]);
            }
        }
    }
}

template <typename S>
static __device__ __forceinline__ void attend_unit(const fi_call &c, int from, rows<S> &it,
                                                   const feed_home *home, const char *shared,
                                                   const char *stage)
{
    float score[S::tiles][8][4] = {};
    score_unit<S>(shared, stage, score);
    if (from >= it.all_lo && from + FI_KEYS <= it.all_hi) {
        weigh_unit<S>(score, it, c.scale);
        add_unit<S, true>(score, stage + WARPS * S::k_bytes, ~0u, it);
        return;
    }
    /* Here scores are scaled first: cap and slopes need them so. */
#pragma unroll
    for (int i = 0; i < S::tiles; i++)
#pragma unroll
        for (int n = 0; n < 32; n++)
            score[i][n / 4][n % 4] *= c.scale;
    u32 seen = hide_unit<S>(c, home, it, from, score);
    weigh_unit<S>(score, it, 1.0f);
    add_unit<S, false>(score, stage + WARPS * S::k_bytes, seen, it);
}

/* ---- Results ----------------------------------------------------------------------------------
 */

/* A thread's part of the block's part of an item, for the block that merges. */
template <typename S>
static __device__ void leave_part(const fi_call &c, const parts &p, const rows<S> &it)
{
    int lane = (int)threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < S::tiles; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            i64 slot = (i64)p.mine * FI_PREFILL_ROWS + first_row<S>() + i * 16 + h * 8 + lane / 4;
            float *to = c.partial + slot * S::v_dim + (lane & 3) * 2;
#pragma unroll
            for (int d = 0; d < S::v_dim / 8; d++)
                *(float2 *)(to + d * 8) = make_float2(it.out[i][d][h * 2], it.out[i][d][h * 2 + 1]);
            if ((lane & 3) == 0)
                *(float2 *)(c.partial_row + slot * 2) = make_float2(it.top[i][h], it.sum[i][h]);
        }
}

/* All parts of the item, in their order, into this thread's rows. */
template <typename S>
static __device__ void take_parts(const fi_call &c, const parts &p, rows<S> &it)
{
    int lane = (int)threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < S::tiles; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int r = first_row<S>() + i * 16 + h * 8 + lane / 4;
            float top = SOFTMAX_EMPTY, total = 0.0f;
#pragma unroll
            for (int d = 0; d < S::v_dim / 8; d++)
                it.out[i][d][h * 2] = it.out[i][d][h * 2 + 1] = 0.0f;
#pragma unroll 1
            for (int n = 0; n < p.count; n++) {
                i64 slot = part_slot(p, n) * FI_PREFILL_ROWS + r;
                const float *from = c.partial + slot * S::v_dim + (lane & 3) * 2;
                float2 numbers = __ldcg((const float2 *)(c.partial_row + slot * 2));
                float higher = fmaxf(top, numbers.x), base = softmax_base(higher);
                float shrink = softmax_exp2(top - base), share = softmax_exp2(numbers.x - base);
                top = higher;
                total = total * shrink + numbers.y * share;
#pragma unroll
                for (int d = 0; d < S::v_dim / 8; d++) {
                    float2 x = __ldcg((const float2 *)(from + d * 8));
                    it.out[i][d][h * 2] = it.out[i][d][h * 2] * shrink + x.x * share;
                    it.out[i][d][h * 2 + 1] = it.out[i][d][h * 2 + 1] * shrink + x.y * share;
                }
            }
            it.top[i][h] = top;
            it.sum[i][h] = total;
        }
}

static __device__ __forceinline__ void store_two(const fi_call &c, char *row, int d, float x,
                                                 float y)
{
    if (c.out_dtype != ELEMENT_F32 && c.operands.aligned & CALL_ALIGNED_OUT) {
        ((u32 *)row)[d / 2] = c.out_dtype == ELEMENT_F16 ? pack16<true>(x, y) : pack16<false>(x, y);
        return;
    }
    store_one(c.out_dtype, row, d, x);
    store_one(c.out_dtype, row, d + 1, y);
}

template <typename S>
static __device__ void store_rows(const fi_call &c, const feed_home *home, const rows<S> &it)
{
    const cursor at = home->at;
    const index_sequence q = home->q;
    int lane = (int)threadIdx.x & 31, count = item_rows(c, q, at.tile, FI_PREFILL_ROWS);
#pragma unroll
    for (int i = 0; i < S::tiles; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            i64 row;
            int head, r = first_row<S>() + i * 16 + h * 8 + lane / 4;
            find_row(c, q, at, at.head, r, &row, &head);
            float sink = sink_of(c, r < count ? head : 0), top = fmaxf(it.top[i][h], sink);
            float base = softmax_base(top), shrink = softmax_exp2(it.top[i][h] - base);
            softmax_row end = {top, it.sum[i][h] * shrink + softmax_exp2(sink - base)};
            float factor = softmax_end(&end) * shrink;
            if (r >= count)
                continue;
            char *to = out_row(c, row, head);
#pragma unroll
            for (int d = 0; d < S::v_dim / 8; d++)
                store_two(c, to, d * 8 + (lane & 3) * 2, it.out[i][d][h * 2] * factor,
                          it.out[i][d][h * 2 + 1] * factor);
            if ((lane & 3) == 0)
                store_lse(c, row, head, softmax_lse(&end));
        }
}

/* The block's part of an item has ended; `is_whole` if that is all of it. */
template <typename S>
static __device__ __forceinline__ void rows_end(const fi_call &c, bool is_whole, bool is_first,
                                                rows<S> &it, const feed_home *home, char *shared)
{
    int *is_last = (int *)(shared + S::flag_at);
#pragma unroll
    for (int i = 0; i < S::tiles; i++)
        for (int h = 0; h < 2; h++)
            it.sum[i][h] = softmax_quad_sum(it.sum[i][h]);
    if (!is_whole) {
        const parts p = find_parts(c, c.starts[(int)blockIdx.x / c.lanes], is_first);
        leave_part<S>(c, p, it);
        __syncthreads();
        if (threadIdx.x == 0) {
            *is_last = add_acq_rel(p.counter, 1) == p.count - 1;
            if (*is_last)
                *p.counter = 0;
        }
        __syncthreads();
        if (!*is_last)
            return;
        __threadfence();
        take_parts<S>(c, p, it);
    }
    store_rows<S>(c, home, it);
}

/* ---- The kernel -------------------------------------------------------------------------------
 */

/* Go on to the item after the one at hand, of which the block has done its units; 0 if it has no
 * more. */
static __device__ __forceinline__ int next_item(const fi_call &c, const feed_home *home, cursor &at)
{
    at = home->at;
    int skipped = units_here(at) - 1;
    at.unit += skipped;
    at.left -= skipped;
    cursor_next(c, at);
    return at.left > 0;
}

template <typename S>
static __device__ __forceinline__ void prefill_units(const fi_call &c, cursor at, char *shared)
{
    u32 full = shared_address(shared) + S::barriers_at, parity = 0;
    char *stages = shared + S::stages_at;
    bool copies = threadIdx.x < WARPS * 32, is_first = true, is_whole = false;
    feed_home *feeds = (feed_home *)(shared + S::feeds_at + warp_part() * FEED_BYTES);
    feed_home *home = (feed_home *)(shared + S::items_at + threadIdx.x / 32 * FEED_BYTES);
    int left = 0, from = 0;
    feed_steps steps = {};
    rows<S> it;
    if (copies) {
        index_sequence q;
        index_find_sequence(&c.batch, c.operands.k != 0, at.tile.seq, &q);
        steps_begin(c, at, q, feeds, steps);
        feed_unit<S>(c, feeds, steps, stages, full);
    }
    PROFILE_BEGIN;
#pragma unroll 1
    for (int stage = 0;; stage ^= 1) {
        if (left == 0) { /* an item begins */
            left = units_here(at);
            from = at.tile.lo + at.unit * FI_KEYS;
            is_whole = left == at.units;
            rows_begin<S>(c, at, it, home, shared);
        }
        PROFILE_UNIT;
        PROFILE(0);
        barrier_wait(full + stage * 8, parity);
        parity ^= stage;
        copy_wait<0>(); /* the queries, of a new item */
        __syncthreads();
        PROFILE(1);
        if (copies)
            feed_unit<S>(c, feeds, steps, stages + (stage ^ 1) * S::stage_bytes,
                         full + (stage ^ 1) * 8);
        PROFILE(2);
        attend_unit<S>(c, from, it, home, shared, stages + stage * S::stage_bytes);
        PROFILE(3);
        from += FI_KEYS;
        if (--left > 0)
            continue;
        rows_end<S>(c, is_whole, is_first, it, home, shared);
        is_first = false;
        if (!next_item(c, home, at))
            break;
        __syncwarp(); /* all lanes have read where they were */
        PROFILE(4);
    }
    PROFILE_END("prefill");
}

template <typename S> static __device__ __forceinline__ void prefill(const fi_call &c, char *shared)
{
    const fi_start start = c.starts[(int)blockIdx.x / c.lanes];
    const cursor at = walk_begin(&c, (int)blockIdx.x, &start);
    if (threadIdx.x < 2)
        barrier_init(shared_address(shared) + S::barriers_at + (int)threadIdx.x * 8, WARPS);
    __syncthreads();
    grid_wait();
    grid_launch_dependents();
    if (at.left > 0)
        prefill_units<S>(c, at, shared);
    clear_padding(c, S::v_dim);
#ifdef FI_PROFILE
    if (threadIdx.x == 0 && blockIdx.x == 0)
        fi_launches++;
#endif
}

#define FI_PREFILL(name, dim, v_dim, warps, blocks, half)                                          \
    extern "C" __global__ void __launch_bounds__(warps * 32, blocks)                               \
        name(const __grid_constant__ fi_call c)                                                    \
    {                                                                                              \
        extern __shared__ __align__(1024) char shared[];                                           \
        prefill<prefill_shape<dim, v_dim, warps, half>>(c, shared);                                \
    }

#endif /* FLASHINFER_LIKE_PREFILL_CUH */
