/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_epilogue.cuh: an item ends: the warps' sums become one.
 *
 *   each warp's sums, PASS_ROWS rows at a time --> exchange --+
 *   its largest logits and denominators ---------> tops ------+--> each times 2^(top - base), added
 *   what shared prefixes left, in device memory --------------+      |
 *                                                                    +--> out, LSE: all is here
 *                                                                    +--> the block's slot: others
 *                                                                         have parts, and who comes
 *                                                                         last attend_merge.cuh
 */
#ifndef FI_ATTEND_EPILOGUE_CUH
#define FI_ATTEND_EPILOGUE_CUH

#include "plugins/flashinfer_like/kernels/attend_merge.cuh"

/* To the block's slot, as other blocks have parts of the item. A split's numbers are written when
 * all of its columns are: item_end(). */
template <typename S, bool splits>
static __device__ __forceinline__ void leave_row(const fi_call &c, const parts &shared_by, int r,
                                                 int d, float top, float total, float4 &x)
{
    i64 slot = (i64)shared_by.mine * FI_ROWS + r;
    float4 *there = (float4 *)(c.partial + slot * S::v_dim + d);
    if (shared_by.is_added) {
        const sum_of_two both =
            add_two(*(const float2 *)(c.partial_row + slot * 2), make_float2(top, total));
        const float4 y = *there;
        x = make_float4(both.values(y.x, x.x), both.values(y.y, x.y), both.values(y.z, x.z),
                        both.values(y.w, x.w));
    }
    *there = x;
    if (d == 0 && !splits)
        *(float2 *)(c.partial_row + slot * 2) = make_float2(top, total);
}

/* Row r of the item from `count` warps' parts of it in shared memory: four columns of it, from d
 * on. */
template <typename S, bool splits>
static __device__ __forceinline__ void
finish_row(const fi_call &c, const cursor &at, const index_sequence &q, int r, int d, int count,
           const float *exchange, const float *tops, bool is_shared, const parts &shared_by)
{
    i64 row;
    int head;
    find_short_row(c, q, at, r, &row, &head);
    float sink = is_shared ? SOFTMAX_EMPTY : sink_of(c, head), top = sink;
    int levels = is_shared ? 0 : shared_levels<S>(at);
    for (int w = 0; w < count; w++)
        top = fmaxf(top, tops[w * FI_ROWS + r]);
    for (int l = 0; levels >> l; l++)
        if (levels >> l & 1)
            top = fmaxf(top, c.prior_row[prior_slot(c, l, row, head) * 2]);
    float base = softmax_base(top), total = softmax_exp2(sink - base);
    float4 x = {0, 0, 0, 0};
    for (int w = 0; w < count; w++) {
        float weight = softmax_exp2(tops[w * FI_ROWS + r] - base);
        const float4 y =
            *(const float4 *)(exchange + (w * PASS_ROWS + r % PASS_ROWS) * S::exchange_stride + d);
        total += weight * tops[(S::item_warps + w) * FI_ROWS + r];
        add_weighted(x, weight, y);
    }
    for (int l = 0; levels >> l; l++) {
        if (!(levels >> l & 1))
            continue;
        i64 slot = prior_slot(c, l, row, head);
        const float2 numbers = *(const float2 *)(c.prior_row + slot * 2);
        const float4 y = *(const float4 *)(c.prior + slot * S::v_dim + d);
        float weight = softmax_exp2(numbers.x - base);
        total += weight * numbers.y;
        add_weighted(x, weight, y);
    }
    if (is_shared) {
        leave_row<S, splits>(c, shared_by, r, d, top, total, x);
        return;
    }
    softmax_row end = {top, total};
    float factor = softmax_end(&end);
    store_four(c, out_row(c, row, head), d,
               make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor));
    if (d == 0)
        store_lse(c, row, head, softmax_lse(&end));
}

/* A lane's part of row lane / 4 + 8 h. */
template <typename S>
static __device__ __forceinline__ void exchange_row(const item<S> &it, int h, float *row,
                                                    float factor)
{
    int quarter = (int)threadIdx.x & 3;
    if constexpr (S::quantised) {
#pragma unroll
        for (int n = 0; n < S::v_dim / 16; n++) {
            const float(&even)[4] = it.out[n * 2], (&odd)[4] = it.out[n * 2 + 1];
            *(float4 *)(row + n * 16 + quarter * 4) =
                make_float4(even[h * 2] * factor, odd[h * 2] * factor, even[h * 2 + 1] * factor,
                            odd[h * 2 + 1] * factor);
        }
    } else {
#pragma unroll
        for (int d = 0; d < S::v_dim / 8; d++)
            *(float2 *)(row + d * 8 + quarter * 2) =
                make_float2(it.out[d][h * 2] * factor, it.out[d][h * 2 + 1] * factor);
    }
}

/* A warp's largest logits and denominators to where the others find them. */
template <typename S>
static __device__ __forceinline__ void leave_tops(const item<S> &it, int lane, int warp,
                                                  float *tops)
{
    constexpr float unlift = 1.0f / (1 << S::lift);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float total = softmax_quad_sum(it.sum[h]);
        int r = h * 8 + lane / 4;
        if ((lane & 3) == 0) {
            tops[warp * FI_ROWS + r] = it.top[h];
            tops[(S::item_warps + warp) * FI_ROWS + r] = total * unlift;
        }
    }
}

/* The same of its rows [first, first + PASS_ROWS). */
template <typename S>
static __device__ __forceinline__ void exchange_rows(const item<S> &it, int first, int lane,
                                                     int warp, float *exchange, float factor)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = h * 8 + lane / 4 - first;
        if (r < 0 || r >= PASS_ROWS)
            continue;
        exchange_row<S>(it, h, exchange + (warp * PASS_ROWS + r) * S::exchange_stride, factor);
    }
}

/* ---- Merge --------------------------------------------------------------------------------- */

/* Rows first to end of an item that blocks share, at most 2^shift: so many warps have a row each,
 * and those that are left other parts of it. */
template <typename S>
static __device__ __forceinline__ void
merge_rows(const fi_call &c, const cursor &at, const index_sequence &q, const parts &p, int first,
           int end, int shift, float *exchange, float *tops)
{
    const int thread = item_thread<S>(), warp = thread / 32;
    const int of_row = S::item_warps >> shift, mine = warp >> shift;
    const int r = first + (warp & ((1 << shift) - 1));
    if (r < end && mine < of_row) {
        gathered<S::v_dim, FI_ROWS, S::merged, S::cuts_short> row;
        row.take(c, p, r, mine, of_row);
        row.leave(exchange + (mine * PASS_ROWS + r % PASS_ROWS) * S::exchange_stride);
        tops[mine * FI_ROWS + r] = row.top;
        tops[(S::item_warps + mine) * FI_ROWS + r] = row.total;
    }
    item_sync<S>();
#pragma unroll 1
    for (int i = thread; i < (end - first) * (S::v_dim / 4); i += S::item_threads)
        finish_row<S, false>(c, at, q, first + i / (S::v_dim / 4), i % (S::v_dim / 4) * 4, of_row,
                             exchange, tops, false, p);
    item_sync<S>();
}

/* The block has left its part of an item: it merges the slices that are its own. */
template <typename S>
static __device__ __forceinline__ void
merge_parts(const fi_call &c, const cursor &at, const index_sequence &q, const parts &p, int rows,
            float *exchange, float *tops, u32 *told)
{
    constexpr int pass = 2; /* PASS_ROWS */
    static_assert(1 << pass == PASS_ROWS && PASS_ROWS <= S::item_warps, "a warp has a row");
    const int shift = arrivals_shift(rows, p.count, S::item_warps);
    const int slices = arrivals_slices(rows, shift), together = min(shift, pass);
    if (item_thread<S>() == 0)
        *told = arrivals_come(p.counter, p.count, slices, at.left > 1 ? 0 : ARRIVALS_POLLS);
    item_sync<S>();
    const u32 all = *told;
#pragma unroll 1
    for (u32 left = all; left != 0; left &= left - 1) {
        int first = (__ffs((int)left) - 1) << shift, end = min(first + (1 << shift), rows);
#pragma unroll 1
        for (; first < end; first += 1 << together)
            merge_rows<S>(c, at, q, p, first, min(first + (1 << together), end), together, exchange,
                          tops);
    }
    if (all && item_thread<S>() == 0)
        arrivals_end(p.counter, slices, all);
}

/* ---- The end ------------------------------------------------------------------------------- */

/* A part of an item has ended; `at` is its last unit. `is_first`: it is the block's first item. */
template <typename S, bool splits>
static __device__ __forceinline__ void item_end(const fi_call &c, const cursor &at,
                                                const fi_start &start, bool is_first, item<S> &it,
                                                char *shared)
{
    int team = S::by_item ? my_team() : 0, thread = item_thread<S>();
    float *exchange = (float *)(shared + S::exchange_at + team * S::exchange_bytes);
    float *tops = (float *)(shared + S::tops_at + team * S::tops_bytes);
    int lane = thread & 31, warp = thread / 32;
    int rows = item_rows(c, it.q, at.tile, FI_ROWS);
    bool whole = walk_has_whole(splits ? c.split : 0, &at, &start, is_first);
    const parts p = splits ? find_splits(c, at, start, is_first)
                           : find_shared(c, block_here(), start, is_first);
    constexpr float unlift = 1.0f / (1 << S::lift);
    float out_factor = S::quantised ? unlift * v_scale_of(c, at.head) : unlift;
    leave_tops<S>(it, lane, warp, tops);
    for (int first = 0; first < rows; first += PASS_ROWS) {
        exchange_rows<S>(it, first, lane, warp, exchange, out_factor);
        item_sync<S>();
        for (int i = thread; i < PASS_ROWS * (S::v_dim / 4); i += S::item_threads) {
            int d = i % (S::v_dim / 4) * 4, r = first + i / (S::v_dim / 4);
            if (r < rows)
                finish_row<S, splits>(c, at, it.q, r, d, S::item_warps, exchange, tops, !whole, p);
        }
        /* Nobody else looks at a split's numbers any more when they are written. */
        int mine = first + thread;
        bool leaves = !whole && splits && thread < PASS_ROWS && mine < rows;
        float2 *numbers = (float2 *)(c.partial_row + ((i64)p.mine * FI_ROWS + mine) * 2), sum;
        if (leaves)
            sum = add_numbers<S>(tops, mine, p.is_added, numbers);
        item_sync<S>();
        if (leaves)
            *numbers = sum;
    }
    u32 *told = (u32 *)(tops + 2 * S::item_warps * FI_ROWS);
    if (!whole && splits)
        merge_splits<S>(c, at, it, p, rows, told);
    else if (!whole)
        merge_parts<S>(c, at, it.q, p, rows, exchange, tops, told);
}

#endif /* FI_ATTEND_EPILOGUE_CUH */
