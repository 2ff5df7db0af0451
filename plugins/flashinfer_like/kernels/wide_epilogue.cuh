/* SPDX-License-Identifier: Apache-2.0
 *
 * wide_epilogue.cuh: the end of a block's part of an item, for the adding warps of wide.cuh. A
 * thread has two rows, and two of every eight columns of its warpgroup's half:
 *
 *   registers -> out: four lanes exchange words to make pieces of 16 bytes
 *             -> its slot, if other blocks have parts; the last block to arrive adds them all, or
 *                the last few merge a slice of the rows each: four warps per row, 128 columns each
 */
#ifndef FI_WIDE_EPILOGUE_CUH
#define FI_WIDE_EPILOGUE_CUH

#include "plugins/flashinfer_like/kernels/prefill_epilogue.cuh"
#include "plugins/flashinfer_like/kernels/wide_stages.cuh"

#define BARRIER_ADDERS 2 /* named barrier of the adding warps */

/* A thread's sums of its rows r and r + 8; `t` has the rows' references and totals. */
template <typename S> struct wide_sums {
    float o[S::columns / 2];
    totals t;
};

DEVICE int adder_thread(void)
{
    return thread_here() - 2 * GROUP_THREADS;
}

DEVICE int adder_row(void)
{
    return adder_thread() / 32 % 4 * 16 + thread_here() % 32 / 4;
}

template <typename S> DEVICE int adder_column(void)
{
    return adder_thread() / GROUP_THREADS * S::columns;
}

/* ---- Parts --------------------------------------------------------------------------------- */

/* Writes a thread's elements of the block's part of an item of `count` rows. A row's numbers are
 * written once for each of the warps that may merge it. */
template <typename S>
DEVICE void wide_leave(const fi_call &c, const parts &p, const wide_sums<S> &x, int count)
{
    const int lane = thread_here() & 3, column = adder_column<S>();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const i64 slot = (i64)p.mine * S::rows + adder_row() + h * 8;
        if (adder_row() + h * 8 >= count)
            continue;
        float *to = c.partial + slot * S::dim_v + column + lane * 2;
#pragma unroll
        for (int d = 0; d < S::columns / 8; d++)
            *(float2 *)(to + d * 8) = make_float2(x.o[d * 4 + h * 2], x.o[d * 4 + h * 2 + 1]);
        if (column == 0)
            ((float2 *)c.partial_row)[slot * FI_WIDE_PIECES + lane] =
                make_float2(x.t.top[h], x.t.sum[h]);
    }
}

/* Adds all parts of the item in order into this thread's rows. */
template <typename S>
DEVICE void wide_take(const fi_call &c, const parts &p, wide_sums<S> &x, int count)
{
    const int lane = thread_here() & 3;
    x.t = {{SOFTMAX_EMPTY, SOFTMAX_EMPTY}, {0.0f, 0.0f}};
#pragma unroll
    for (int i = 0; i < S::columns / 2; i++)
        x.o[i] = 0.0f;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (adder_row() + h * 8 >= count)
            continue;
#pragma unroll 1
        for (int n = 0; n < p.count; n++) {
            const i64 slot = part_slot(p, n) * S::rows + adder_row() + h * 8;
            const float *from = c.partial + slot * S::dim_v + adder_column<S>() + lane * 2;
            const float2 numbers = __ldcg((const float2 *)c.partial_row + slot * FI_WIDE_PIECES);
            const float higher = fmaxf(x.t.top[h], numbers.x), zero = softmax_base(higher);
            const float shrink = softmax_exp2(x.t.top[h] - zero);
            const float share = softmax_exp2(numbers.x - zero);
            x.t.top[h] = higher;
            x.t.sum[h] = x.t.sum[h] * shrink + numbers.y * share;
#pragma unroll
            for (int d = 0; d < S::columns / 8; d++) {
                const float2 y = __ldcg((const float2 *)(from + d * 8));
                float *o = &x.o[d * 4 + h * 2];
                o[0] = o[0] * shrink + y.x * share;
                o[1] = o[1] * shrink + y.y * share;
            }
        }
    }
}

/* ---- Rows ---------------------------------------------------------------------------------- */

/* Transposes: four lanes have one word each of four pieces of 16 bytes, and get one piece each. */
DEVICE uint4 turn_words(const u32 (&x)[4])
{
    const bool odd = thread_here() & 1, high = thread_here() & 2;
    const u32 a = __shfl_xor_sync(~0u, odd ? x[0] : x[1], 1);
    const u32 b = __shfl_xor_sync(~0u, odd ? x[2] : x[3], 1);
    const u32 low[2] = {odd ? a : x[0], odd ? x[1] : a}, up[2] = {odd ? b : x[2], odd ? x[3] : b};
    const u32 e = __shfl_xor_sync(~0u, high ? low[0] : up[0], 2);
    const u32 f = __shfl_xor_sync(~0u, high ? low[1] : up[1], 2);
    return high ? make_uint4(e, f, up[0], up[1]) : make_uint4(low[0], low[1], e, f);
}

/* Stores the thread's row h in the operands' type, 16 bytes at a time. */
template <typename S>
DEVICE void wide_pieces(const wide_sums<S> &x, int h, float factor, char *to, bool is_there)
{
#pragma unroll
    for (int d = 0; d < S::columns / 8; d += 4) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            words[i] = pack_pair<S::is_f16>(x.o[(d + i) * 4 + h * 2] * factor,
                                            x.o[(d + i) * 4 + h * 2 + 1] * factor);
        const uint4 piece = turn_words(words);
        if (is_there)
            *(uint4 *)(to + (d + thread_here() % 4) * 16) = piece;
    }
}

/* The same for unaligned rows or another type. */
template <typename S>
DEVICE void wide_columns(const fi_call &c, const wide_sums<S> &x, int h, float factor, char *to)
{
#pragma unroll
    for (int d = 0; d < S::columns / 8; d++)
        store_two(c, to, adder_column<S>() + d * 8 + thread_here() % 4 * 2,
                  x.o[d * 4 + h * 2] * factor, x.o[d * 4 + h * 2 + 1] * factor);
}

template <typename S>
DEVICE void wide_store(const fi_call &c, const struct work &w, const wide_sums<S> &x, int count)
{
    const bool pieces = c.operands.aligned & CALL_ALIGNED_OUT_16 &&
                        c.out_dtype == (S::is_f16 ? ELEMENT_F16 : ELEMENT_BF16);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int n = adder_row() + h * 8;
        i64 row;
        int head;
        find_row(c, w.q, w.at, w.at.head, min(n, count - 1), &row, &head);
        const float sink = sink_of(c, head), top = fmaxf(x.t.top[h], sink);
        const float zero = softmax_base(top), shrink = softmax_exp2(x.t.top[h] - zero);
        softmax_row end = {top, x.t.sum[h] * shrink + softmax_exp2(sink - zero)};
        const float factor = end.sum == 0.0f ? 0.0f : __fdividef(shrink, end.sum);
        char *to = out_row(c, row, head);
        if (n < count && thread_here() % 4 == 0 && adder_column<S>() == 0)
            store_lse(c, row, head, softmax_lse(&end));
        if (pieces)
            wide_pieces<S>(x, h, factor, to + adder_column<S>() * 2, n < count);
        else if (n < count)
            wide_columns<S>(c, x, h, factor, to);
    }
}

/* ---- Merge --------------------------------------------------------------------------------- */

/* Merges row r of all parts, by a warpgroup. */
template <typename S>
DEVICE void wide_merge_row(const fi_call &c, const struct work &w, const parts &p, int r)
{
    const int piece = adder_thread() / 32 % FI_WIDE_PIECES, lane = thread_here() & 31;
    gathered<S::dim_v / FI_WIDE_PIECES, S::rows * FI_WIDE_PIECES, ARRIVALS_BATCH, false> found;
    i64 row;
    int head;
    found.take(c, p, r * FI_WIDE_PIECES + piece, 0, 1);
    find_row(c, w.q, w.at, w.at.head, r, &row, &head);
    const float sink = sink_of(c, head), top = fmaxf(found.top, sink), base = softmax_base(top);
    const float weight = softmax_exp2(found.top - base);
    softmax_row end = {top, found.total * weight + softmax_exp2(sink - base)};
    const float factor = softmax_end(&end) * weight;
    const float4 x = found.x[0];
    store_four(c, out_row(c, row, head), (piece * 32 + lane) * 4,
               make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor));
    if (piece == 0 && lane == 0)
        store_lse(c, row, head, softmax_lse(&end));
}

/* Merges this block's slices of 2^shift rows. Not inlined, to keep its registers out of the main
 * loop. */
template <typename S>
static __device__ __noinline__ void wide_merge(const fi_call &c, const struct work &w,
                                               struct wide_control *control, const parts p,
                                               int shift)
{
    const int count = item_rows(c, w.q, w.at.tile, S::rows);
    const int slices = arrivals_slices(count, shift), group = adder_thread() / GROUP_THREADS;
    if (adder_thread() == 0)
        control->to_merge =
            arrivals_come(p.counter, p.count, slices, w.at.left > w.units ? 0 : ARRIVALS_POLLS);
    named_sync(BARRIER_ADDERS, S::adders);
    const u32 all = control->to_merge;
#pragma unroll 1
    for (u32 left = all; left != 0; left &= left - 1) {
        const int first = (__ffs((int)left) - 1) << shift, end = min(first + (1 << shift), count);
#pragma unroll 1
        for (int r = first + group; r < end; r += S::adders / GROUP_THREADS)
            wide_merge_row<S>(c, w, p, r);
    }
    if (all != 0 && adder_thread() == 0)
        arrivals_end(p.counter, slices, all);
}

/* ---- The end ------------------------------------------------------------------------------- */

template <typename S>
DEVICE void wide_end(const fi_call &c, const struct work &w, struct wide_control *control,
                     wide_sums<S> &x)
{
    const int count = item_rows(c, w.q, w.at.tile, S::rows);
    const bool is_lost[2] = {x.t.sum[0] == 0.0f, x.t.sum[1] == 0.0f};
    clear_lost(x.o, is_lost);
    if (!w.is_whole) {
        const parts p =
            find_shared(c, block_in_line(c), c.starts[(int)blockIdx.x / c.lanes], w.is_first);
        const int shift = arrivals_shift(count, p.count, S::adders / GROUP_THREADS);
        wide_leave<S>(c, p, x, count);
        named_sync(BARRIER_ADDERS, S::adders);
        if (1 << shift < count || count <= FI_ROWS) {
            wide_merge<S>(c, w, control, p, shift);
            return;
        }
        if (adder_thread() == 0) {
            control->to_merge = counter_add(p.counter, 1) == (u32)p.count - 1;
            if (control->to_merge)
                *p.counter = 0;
        }
        named_sync(BARRIER_ADDERS, S::adders);
        if (!control->to_merge)
            return;
        wide_take<S>(c, p, x, count);
    }
    wide_store<S>(c, w, x, count);
}

#endif /* FI_WIDE_EPILOGUE_CUH */
