/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_epilogue.cuh: the end of an item: adds the warps' sums.
 *
 *   each warp's sums, some rows at a time --------> exchange -+
 *   its largest logits and denominators ---------> tops ------+--> each times 2^(top - base), added
 *   results of shared prefixes, in device memory -------------+      |
 *                                                                    +--> out, LSE, if the block
 *                                                                    |    has the whole item
 *                                                                    +--> the block's slot, to be
 *                                                                         merged: attend_merge.cuh
 */
#ifndef FI_ATTEND_EPILOGUE_CUH
#define FI_ATTEND_EPILOGUE_CUH

#include "plugins/flashinfer_like/kernels/attend_merge.cuh"

#define MERGE_FEW  2 /* a slice of so few rows has too few pieces for all threads of a block */
#define MERGE_ROWS 4 /* in slices of so many rows, a thread has one piece */

/* The place of column d of row r in its row of the exchange: lanes that write pieces of four rows,
 * and lanes that read a row, have no bank conflicts. */
static __device__ __forceinline__ int exchange_column(int r, int d)
{
    return d ^ ((r & 1) << 4 | (r & 2) << 2);
}

/* Writes a piece to the block's slot, to be merged with other blocks' parts. A split's numbers are
 * written after all of its columns: item_end(). */
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

/* Adds the parts of `count` warps from shared memory. A warp with denominator 0 is skipped: its
 * values have no weight and may be NaN (MEAN-14). */
template <typename S>
static __device__ __forceinline__ void take_warps(row_piece &piece, int count,
                                                  const float *exchange, const float *tops)
{
    constexpr int warp_stride = S::pass_rows * S::exchange_stride;
    const float *from =
        exchange + piece.r % S::pass_rows * S::exchange_stride + exchange_column(piece.r, piece.d);
    for (int w = 0; w < count; w++)
        piece.top = fmaxf(piece.top, tops[w * FI_ROWS + piece.r]);
    float base = softmax_base(piece.top);
    for (int w = 0; w < count; w++) {
        float weight = softmax_exp2(tops[w * FI_ROWS + piece.r] - base);
        const float total = tops[(S::item_warps + w) * FI_ROWS + piece.r];
        piece.total += weight * total;
        if (total != 0.0f)
            add_weighted(piece.x, weight, *(const float4 *)(from + w * warp_stride));
    }
}

/* Adds the sink and the results of shared prefixes to a complete piece of a row, and stores it. */
template <typename S>
static __device__ __forceinline__ void finish_piece(const fi_call &c, const cursor &at,
                                                    const index_sequence &q, row_piece &piece)
{
    i64 row;
    int head, levels = shared_levels<S>(at);
    find_short_row(c, q, at, piece.r, &row, &head);
    if (c.operands.sinks)
        piece.add(sink_of(c, head), 1.0f, make_float4(0, 0, 0, 0));
    for (int l = 0; levels >> l; l++) {
        if (!(levels >> l & 1))
            continue;
        i64 slot = prior_slot(c, l, row, head);
        const float2 numbers = *(const float2 *)(c.prior_row + slot * 2);
        piece.add(numbers.x, numbers.y, *(const float4 *)(c.prior + slot * S::v_dim + piece.d));
    }
    softmax_row end = {piece.top, piece.total};
    float factor = softmax_end(&end);
    store_four(c, out_row(c, row, head), piece.d,
               make_float4(piece.x.x * factor, piece.x.y * factor, piece.x.z * factor,
                           piece.x.w * factor));
    if (piece.d == 0)
        store_lse(c, row, head, softmax_lse(&end));
}

/* Finishes rows [first, end), at most `most`, whose `count` warps have parts in shared memory. A
 * thread processes its pieces together, as each alone is mostly latency. */
template <typename S, bool splits, int most>
static __device__ __forceinline__ void
finish_rows(const fi_call &c, const cursor &at, const index_sequence &q, int first, int end,
            int count, const float *exchange, const float *tops, bool is_shared,
            const parts &shared_by)
{
    constexpr int of_row = S::v_dim / 4;
    constexpr int mine = (most * of_row + S::item_threads - 1) / S::item_threads;
    row_piece pieces[mine];
#pragma unroll
    for (int k = 0; k < mine; k++) {
        int i = item_thread<S>() + k * S::item_threads;
        pieces[k].begin(min(first + i / of_row, FI_ROWS - 1), i % of_row * 4);
        take_warps<S>(pieces[k], count, exchange, tops);
    }
#pragma unroll
    for (int k = 0; k < mine; k++) {
        if (first + (item_thread<S>() + k * S::item_threads) / of_row >= end)
            continue;
        if (is_shared)
            leave_row<S, splits>(c, shared_by, pieces[k].r, pieces[k].d, pieces[k].top,
                                 pieces[k].total, pieces[k].x);
        else
            finish_piece<S>(c, at, q, pieces[k]);
    }
}

/* Writes a lane's part of row lane / 4 + 8 h. */
template <typename S>
static __device__ __forceinline__ void exchange_row(const item<S> &it, int h, int r, float *row,
                                                    float factor)
{
    int quarter = (int)threadIdx.x & 3;
    if constexpr (S::quantised) {
#pragma unroll
        for (int n = 0; n < S::v_dim / 16; n++) {
            const float(&even)[4] = it.out[n * 2], (&odd)[4] = it.out[n * 2 + 1];
            *(float4 *)(row + exchange_column(r, n * 16 + quarter * 4)) =
                make_float4(even[h * 2] * factor, odd[h * 2] * factor, even[h * 2 + 1] * factor,
                            odd[h * 2 + 1] * factor);
        }
    } else {
#pragma unroll
        for (int d = 0; d < S::v_dim / 8; d++)
            *(float2 *)(row + exchange_column(r, d * 8 + quarter * 2)) =
                make_float2(it.out[d][h * 2] * factor, it.out[d][h * 2 + 1] * factor);
    }
}

/* Writes a warp's largest logits and denominators to shared memory. */
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

/* Writes a warp's rows [first, first + S::pass_rows) to shared memory. */
template <typename S>
static __device__ __forceinline__ void exchange_rows(const item<S> &it, int first, int lane,
                                                     int warp, float *exchange, float factor)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int r = h * 8 + lane / 4 - first;
        if (r < 0 || r >= S::pass_rows)
            continue;
        exchange_row<S>(it, h, r, exchange + (warp * S::pass_rows + r) * S::exchange_stride,
                        factor);
    }
}

/* ---- Merge --------------------------------------------------------------------------------- */

/* Merges rows [first, end) of a shared item by pieces (gather.cuh). */
template <typename S, int mine, int together, int halves>
static __device__ __forceinline__ void merge_pieces(const fi_call &c, const cursor &at,
                                                    const index_sequence &q, const parts &p,
                                                    int first, int end)
{
    gather_pieces<S::v_dim, FI_ROWS, S::item_threads, mine, together, halves>(
        c, p, item_thread<S>(), first, end,
        [&](row_piece &piece) { finish_piece<S>(c, at, q, piece); });
}

/* The same for one or two rows of an item with many parts: each warp adds other parts of a row. */
template <typename S>
static __device__ __forceinline__ void
merge_rows(const fi_call &c, const cursor &at, const index_sequence &q, const parts &p, int first,
           int end, int shift, float *exchange, float *tops)
{
    const int warp = item_warp<S>(), mine = warp >> shift, of_row = S::item_warps >> shift;
    const int r = first + (warp & ((1 << shift) - 1));
    if (r < end) {
        const int lane = item_thread<S>() & 31;
        float *to = exchange + (mine * S::pass_rows + r % S::pass_rows) * S::exchange_stride;
        gathered<S::v_dim, FI_ROWS, S::merged, S::cuts_short> row;
        row.take(c, p, r, mine, of_row);
#pragma unroll
        for (int n = 0; n < row.pieces; n++)
            if (n * 32 + lane < S::v_dim / 4)
                *(float4 *)(to + exchange_column(r, (n * 32 + lane) * 4)) = row.x[n];
        if (lane == 0) {
            tops[mine * FI_ROWS + r] = row.top;
            tops[(S::item_warps + mine) * FI_ROWS + r] = row.total;
        }
    }
    item_sync<S>();
    finish_rows<S, false, MERGE_FEW>(c, at, q, first, end, of_row, exchange, tops, false, p);
    item_sync<S>();
}

/* The rows of a slice, as a power of two, if several blocks could merge. With short rows, one block
 * merges 2 * MERGE_ROWS rows faster than two, one of which must find that all parts have arrived.
 * With others a thread has one piece. */
template <typename S>
static __device__ __forceinline__ int slice_shift(int rows, int count, int most)
{
    if (S::v_dim <= 64 && rows <= 2 * MERGE_ROWS && count <= 2 * FI_SEVERAL)
        return 3;
    if (S::v_dim > 128)
        return min(most, 1);
    return S::v_dim == 128 && rows > 2 * MERGE_ROWS ? min(most, 2) : most;
}

/* Called when the block has written its part of an item: merges this block's slices. */
template <typename S>
static __device__ __forceinline__ void
merge_parts(const fi_call &c, const cursor &at, const index_sequence &q, const parts &p, int rows,
            float *exchange, float *tops, u32 *told)
{
    int shift = arrivals_shift(rows, p.count, S::item_warps);
    if constexpr (!S::quantised)
        if (shift < ARRIVALS_ALL)
            shift = slice_shift<S>(rows, p.count, shift);
    const int slices = arrivals_slices(rows, shift);
    if (item_thread<S>() == 0)
        *told = arrivals_come(p.counter, p.count, slices, at.left > 1 ? 0 : ARRIVALS_POLLS);
    item_sync<S>();
    const u32 all = *told;
    u32 leaving = 0;
    if (all && item_thread<S>() == 0)
        leaving = arrivals_leave(p.counter, slices, all);
#pragma unroll 1
    for (u32 left = all; left != 0; left &= left - 1) {
        const int first = (__ffs((int)left) - 1) << shift, end = min(first + (1 << shift), rows);
        if (end - first > MERGE_ROWS)
            merge_pieces<S, 2 / S::merge_halves, S::merged_pairs, 1>(c, at, q, p, first, end);
        else if (1 << shift > MERGE_FEW || S::v_dim / 4 << shift >= S::item_threads)
            merge_pieces<S, 1, S::merged_pieces, S::merge_halves>(c, at, q, p, first, end);
        else
            merge_rows<S>(c, at, q, p, first, end, shift, exchange, tops);
    }
    if (all && item_thread<S>() == 0)
        arrivals_clear(p.counter, slices, leaving);
}

/* ---- The end ------------------------------------------------------------------------------- */

/* Ends a part of an item; `at` is its last unit. `is_first`: it belongs to the block's first
 * item. */
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
    for (int first = 0; first < rows; first += S::pass_rows) {
        exchange_rows<S>(it, first, lane, warp, exchange, out_factor);
        item_sync<S>();
        finish_rows<S, splits, S::pass_rows>(c, at, it.q, first, min(first + S::pass_rows, rows),
                                             S::item_warps, exchange, tops, !whole, p);
        /* All threads have read a split's numbers before they are overwritten. */
        int mine = first + thread;
        bool leaves = !whole && splits && thread < S::pass_rows && mine < rows;
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
