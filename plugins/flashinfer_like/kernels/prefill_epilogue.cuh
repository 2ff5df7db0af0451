/* SPDX-License-Identifier: Apache-2.0
 *
 * prefill_epilogue.cuh: the end of a block's part of an item, for each warpgroup separately:
 *
 *   registers -> its slot, if other blocks have parts; the last block to arrive adds them all
 *             -> prior, for the sequences of a run that shares keys (plan.h)
 *             -> 16 bits -> the queries' memory -> boxes of 64 rows, or 16 bytes at a time
 *             -> out, two columns at a time, if rows are unaligned or of another type
 */
#ifndef FI_PREFILL_EPILOGUE_CUH
#define FI_PREFILL_EPILOGUE_CUH

#include "plugins/flashinfer_like/kernels/gather.cuh"
#include "plugins/flashinfer_like/kernels/prefill_queries.cuh"
#include "plugins/flashinfer_like/kernels/prefill_rows.cuh"

/* Totals of a thread's two rows: the reference (near the largest logit, in units of log 2), and the
 * sum relative to it. */
struct totals {
    float top[2], sum[2];
};

/* ---- Parts and runs ------------------------------------------------------------------------ */

/* Writes a thread's elements of the block's part of an item of `count` rows, to be merged. */
template <typename S>
DEVICE void leave_part(const fi_call &c, const parts &p, const rows<S> &r, const totals &t,
                       int count)
{
    int lane = thread_here() & 31;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        i64 slot = (i64)p.mine * S::rows + first_row() + h * 8;
        if (first_row() + h * 8 >= count)
            continue;
        float *to = c.partial + slot * S::dim_v + (lane & 3) * 2;
#pragma unroll
        for (int d = 0; d < S::dim_v / 8; d++)
            *(float2 *)(to + d * 8) = make_float2(r.o[d * 4 + h * 2], r.o[d * 4 + h * 2 + 1]);
        if ((lane & 3) == 0)
            *(float2 *)(c.partial_row + slot * 2) = make_float2(t.top[h], t.sum[h]);
    }
}

/* Writes a thread's rows of a run, for the sequences that share its keys. */
template <typename S>
DEVICE void leave_prior(const fi_call &c, const struct work &w, const rows<S> &r, const totals &t)
{
    int lane = thread_here() & 31, count = item_rows(c, w.q, w.at.tile, S::rows);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        i64 row;
        int head, n = first_row() + h * 8;
        find_row(c, w.q, w.at, w.at.head, n, &row, &head);
        if (n >= count)
            continue;
        i64 slot = prior_slot(c, c.level, row, head);
        float *to = c.prior + slot * S::dim_v + (lane & 3) * 2;
#pragma unroll
        for (int d = 0; d < S::dim_v / 8; d++)
            *(float2 *)(to + d * 8) = make_float2(r.o[d * 4 + h * 2], r.o[d * 4 + h * 2 + 1]);
        if ((lane & 3) == 0)
            *(float2 *)(c.prior_row + slot * 2) = make_float2(t.top[h], t.sum[h]);
    }
}

/* Adds all parts of the item in order into this thread's rows. The loads of both rows are in flight
 * together if there are enough registers. */
template <typename S>
DEVICE void take_parts(const fi_call &c, const parts &p, rows<S> &r, totals &t)
{
    constexpr int together = S::dim_v > 128 ? 1 : 2;
    const int lane = thread_here() & 31;
    t = {{SOFTMAX_EMPTY, SOFTMAX_EMPTY}, {0.0f, 0.0f}};
#pragma unroll
    for (int i = 0; i < S::dim_v / 2; i++)
        r.o[i] = 0.0f;
#pragma unroll
    for (int first = 0; first < 2; first += together) {
#pragma unroll 1
        for (int n = 0; n < p.count; n++) {
            const i64 slot = part_slot(p, n) * S::rows + first_row();
            const float *from = c.partial + slot * S::dim_v + (lane & 3) * 2;
            float shrink[2], share[2];
#pragma unroll
            for (int h = first; h < first + together; h++) {
                float2 numbers = __ldcg((const float2 *)(c.partial_row + (slot + h * 8) * 2));
                float higher = fmaxf(t.top[h], numbers.x), zero = softmax_base(higher);
                shrink[h] = softmax_exp2(t.top[h] - zero);
                share[h] = softmax_exp2(numbers.x - zero);
                t.top[h] = higher;
                t.sum[h] = t.sum[h] * shrink[h] + numbers.y * share[h];
            }
#pragma unroll
            for (int i = 0; i < S::dim_v / 8 * together; i++) {
                const int h = first + i % together, d = i / together;
                float2 x = __ldcg((const float2 *)(from + h * 8 * S::dim_v + d * 8));
                float *o = &r.o[d * 4 + h * 2];
                o[0] = o[0] * shrink[h] + x.x * share[h];
                o[1] = o[1] * shrink[h] + x.y * share[h];
            }
        }
    }
}

/* ---- Rows ---------------------------------------------------------------------------------- */

DEVICE void store_two(const fi_call &c, char *row, int d, float x, float y)
{
    if (c.out_dtype != ELEMENT_F32 && c.operands.aligned & CALL_ALIGNED_OUT) {
        ((u32 *)row)[d / 2] =
            c.out_dtype == ELEMENT_F16 ? pack_pair<true>(x, y) : pack_pair<false>(x, y);
        return;
    }
    element_store(c.out_dtype, row, d, x);
    element_store(c.out_dtype, row, d + 1, y);
}

/* Stores a thread's columns, two at a time. */
template <typename S>
DEVICE void store_columns(const fi_call &c, const struct work &w, const rows<S> &r,
                          const float (&factor)[2], int count)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        i64 row;
        int head, n = first_row() + h * 8;
        find_row(c, w.q, w.at, w.at.head, n, &row, &head);
        if (n >= count)
            continue;
        char *to = out_row(c, row, head);
#pragma unroll
        for (int d = 0; d < S::dim_v / 8; d++)
            store_two(c, to, d * 8 + thread_here() % 4 * 2, r.o[d * 4 + h * 2] * factor[h],
                      r.o[d * 4 + h * 2 + 1] * factor[h]);
    }
}

/* Writes a warpgroup's rows, in the operands' type, to its queries' memory. */
template <typename S> DEVICE void stage_rows(const rows<S> &r, const float (&factor)[2])
{
    const int thread = thread_here() % GROUP_THREADS, lane = thread % 32;
    const int mine = thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int d = 0; d < S::dim_v / 16; d++) {
        const float *x = r.o + 8 * d;
        store_matrices(r.q + d / 4 * GROUP_ROWS * ROW_BYTES + swizzled(mine, d % 4 * 2 + lane / 16),
                       pack_pair<S::is_f16>(x[0] * factor[0], x[1] * factor[0]),
                       pack_pair<S::is_f16>(x[2] * factor[1], x[3] * factor[1]),
                       pack_pair<S::is_f16>(x[4] * factor[0], x[5] * factor[0]),
                       pack_pair<S::is_f16>(x[6] * factor[1], x[7] * factor[1]));
    }
}

/* Stores a complete tile of rows by TMA, a box for each panel. */
template <typename S>
DEVICE void store_boxes(const fi_call &c, const struct work &w, const rows<S> &r, int group)
{
    fence_async_shared();
    named_sync(BARRIER_GROUP + group, GROUP_THREADS);
    if (thread_here() % GROUP_THREADS != 0)
        return;
    const int row = w.q.first_row + (w.at.tile.row0 + group * GROUP_ROWS) / c.ratio;
    for (int panel = 0; panel < S::panels_v; panel++)
        tensor_store(&c.out_map, r.q + panel * GROUP_ROWS * ROW_BYTES, panel * PANEL,
                     w.at.head * c.ratio, row, 0);
    store_commit();
    store_wait_read(); /* before the next queries may overwrite the memory */
}

/* Stores an incomplete tile's rows, 16 bytes at a time. */
template <typename S>
DEVICE void store_pieces(const fi_call &c, const struct work &w, const rows<S> &r, int group,
                         int count)
{
    constexpr int pieces = S::dim_v / 8;
    const int thread = thread_here() % GROUP_THREADS;
    const row_finder finder = find_rows(c, w);
    named_sync(BARRIER_GROUP + group, GROUP_THREADS);
#pragma unroll 4
    for (int i = thread; i < GROUP_ROWS * pieces; i += GROUP_THREADS) {
        int n = i / pieces, piece = i % pieces, head;
        i64 row;
        uint4 x;
        if (group * GROUP_ROWS + n >= count)
            break;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                     : "r"(r.q + piece / 8 * GROUP_ROWS * ROW_BYTES + swizzled(n, piece % 8)));
        find_row(finder, group * GROUP_ROWS + n, &row, &head);
        *(uint4 *)(out_row(c, row, head) + piece * 16) = x;
    }
}

template <typename S>
DEVICE void store_rows(const fi_call &c, const struct work &w, const rows<S> &r, const totals &t)
{
    int count = item_rows(c, w.q, w.at.tile, S::rows);
    float factor[2], scale = S::codes ? v_scale_of(c, w.at.head) : 1.0f;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        i64 row;
        int head, n = first_row() + h * 8;
        find_row(c, w.q, w.at, w.at.head, min(n, count - 1), &row, &head);
        float sink = sink_of(c, head), top = fmaxf(t.top[h], sink);
        float zero = softmax_base(top), shrink = softmax_exp2(t.top[h] - zero);
        softmax_row end = {top, t.sum[h] * shrink + softmax_exp2(sink - zero)};
        factor[h] = end.sum == 0.0f ? 0.0f : __fdividef(shrink, end.sum) * scale;
        if (n < count && thread_here() % 4 == 0)
            store_lse(c, row, head, softmax_lse(&end));
    }
    if (!(c.operands.aligned & CALL_ALIGNED_OUT_16) ||
        c.out_dtype != (S::is_f16 ? ELEMENT_F16 : ELEMENT_BF16)) {
        store_columns<S>(c, w, r, factor, count);
        return;
    }
    const int group = uniform(consumer_thread() / GROUP_THREADS);
    stage_rows<S>(r, factor);
    if (c.has_out_map && (group + 1) * GROUP_ROWS <= count)
        store_boxes<S>(c, w, r, group);
    else
        store_pieces<S>(c, w, r, group, count);
}

/* ---- Merge --------------------------------------------------------------------------------- */

/* A warp's sum of a row, in the queries' memory. */
template <typename S> struct found {
    float x[S::dim_v];
    float2 numbers; /* largest logit, denominator */
    float2 unused;  /* aligns rows to 16 bytes */
};

/* Adds the sink to a complete piece of a row, and stores it. */
template <typename S>
DEVICE void finish_piece(const fi_call &c, const struct work &w, row_piece &piece)
{
    i64 row;
    int head;
    if constexpr (S::groups == 1)
        find_short_row(c, w.q, w.at, piece.r, &row, &head);
    else
        find_row(c, w.q, w.at, w.at.head, piece.r, &row, &head);
    if (c.level >= 0) {
        i64 slot = prior_slot(c, c.level, row, head);
        *(float4 *)(c.prior + slot * S::dim_v + piece.d) = piece.x;
        if (piece.d == 0)
            *(float2 *)(c.prior_row + slot * 2) = make_float2(piece.top, piece.total);
        return;
    }
    if (c.operands.sinks)
        piece.add(sink_of(c, head), 1.0f, make_float4(0, 0, 0, 0));
    softmax_row end = {piece.top, piece.total};
    float factor = softmax_end(&end) * (S::codes ? v_scale_of(c, w.at.head) : 1.0f);
    store_four(c, out_row(c, row, head), piece.d,
               make_float4(piece.x.x * factor, piece.x.y * factor, piece.x.z * factor,
                           piece.x.w * factor));
    if (piece.d == 0)
        store_lse(c, row, head, softmax_lse(&end));
}

/* Adds four columns, from d on, of row r of the item, of which `count` warps have parts. */
template <typename S>
DEVICE void finish_row(const fi_call &c, const struct work &w, int r, int d, int count,
                       const found<S> *found)
{
    row_piece piece;
    piece.begin(r, d);
    for (int i = 0; i < count; i++)
        piece.top = fmaxf(piece.top, found[i].numbers.x);
    float base = softmax_base(piece.top);
    for (int i = 0; i < count; i++) {
        float weight = softmax_exp2(found[i].numbers.x - base);
        piece.total += weight * found[i].numbers.y;
        add_weighted(piece.x, weight, *(const float4 *)(found[i].x + d));
    }
    finish_piece<S>(c, w, piece);
}

/* Merges rows [first, end), at most 2^shift: several warps share a row, and each adds other parts
 * of it. */
template <typename S>
DEVICE void merge_rows(const fi_call &c, const struct work &w, const parts &p, int first, int end,
                       int shift, found<S> *room)
{
    const int warp = consumer_thread() / 32, of_row = S::consumers / 32 >> shift;
    const int n = warp >> (S::warps_shift - shift), r = first + n;
    if (r < end) {
        gathered<S::dim_v, S::rows, S::merged, false> row;
        row.take(c, p, r, warp & (of_row - 1), of_row);
        row.leave(room[warp].x);
        room[warp].numbers = make_float2(row.top, row.total);
    }
    named_sync(BARRIER_CONSUMERS, S::consumers);
#pragma unroll 1
    for (int i = consumer_thread(); i < (end - first) * (S::dim_v / 4); i += S::consumers) {
        int m = i / (S::dim_v / 4);
        finish_row<S>(c, w, first + m, i % (S::dim_v / 4) * 4, of_row, room + m * of_row);
    }
    named_sync(BARRIER_CONSUMERS, S::consumers);
}

/* The same by pieces, which is faster for half tiles and for few parts: a thread has one piece at a
 * time, or two in slices with more pieces than threads. Wide rows would spill. */
template <typename S>
DEVICE void merge_pieces(const fi_call &c, const struct work &w, const parts &p, int first, int end)
{
    const int thread = consumer_thread();
    auto finish = [&](row_piece &piece) { finish_piece<S>(c, w, piece); };
    if ((end - first) * S::dim_v > S::consumers * 4)
        gather_pieces<S::dim_v, S::rows, S::consumers, 2, 8, 1>(c, p, thread, first, end, finish);
    else
        gather_pieces<S::dim_v, S::rows, S::consumers, 1, 16, 1>(c, p, thread, first, end, finish);
}

/* Merges this block's slices of 2^shift rows, by all math warps. Not inlined, to keep its registers
 * out of the main loop. */
template <typename S>
static __device__ __noinline__ void merge_slices(const fi_call &c, const struct work &w,
                                                 struct control *control, const parts p, int shift,
                                                 found<S> *room)
{
    const int count = item_rows(c, w.q, w.at.tile, S::rows);
    const int slices = arrivals_slices(count, shift);
    static_assert(S::consumers / 32 * sizeof *room <= S::q_bytes, "room");
    if (consumer_thread() == 0)
        control->slices =
            arrivals_come(p.counter, p.count, slices, w.at.left > w.units ? 0 : ARRIVALS_POLLS);
    named_sync(BARRIER_CONSUMERS, S::consumers);
    const u32 all = control->slices;
#pragma unroll 1
    for (u32 left = all; left != 0; left &= left - 1) {
        int first = (__ffs((int)left) - 1) << shift, end = min(first + (1 << shift), count);
        if (S::groups == 1 || (S::dim_v <= 128 && p.count < FI_SEVERAL)) {
            merge_pieces<S>(c, w, p, first, end);
        } else {
            const int together = min(shift, S::warps_shift);
#pragma unroll 1
            for (; first < end; first += 1 << together)
                merge_rows<S>(c, w, p, first, min(first + (1 << together), end), together, room);
        }
    }
    if (all != 0 && consumer_thread() == 0)
        arrivals_end(p.counter, slices, all);
}

/* ---- The end ------------------------------------------------------------------------------- */

/* Ends the block's part of an item; `room`: the queries' memory. */
template <typename S>
DEVICE void rows_end(const fi_call &c, const struct work &w, struct control *control, rows<S> &r,
                     char *room)
{
    totals t;
    bool is_lost[2];
    for (int h = 0; h < 2; h++) {
        t.top[h] = -r.x.shift[h];
        t.sum[h] = quad_sum(r.x.sum[h]);
        is_lost[h] = t.sum[h] == 0.0f;
    }
    clear_lost(r.o, is_lost);
    if (!w.is_whole) {
        const parts p =
            find_shared(c, block_in_line(c), c.starts[(int)blockIdx.x / c.lanes], w.is_first);
        const int count = item_rows(c, w.q, w.at.tile, S::rows);
        const int shift = arrivals_shift(count, p.count, S::consumers / 32);
        /* One block adds few parts of a half tile faster than several blocks do by pieces. */
        const bool is_sliced = 1 << shift < count && (S::groups > 1 || p.count >= FI_SEVERAL);
        leave_part<S>(c, p, r, t, count);
        named_sync(BARRIER_CONSUMERS, S::consumers);
        if (is_sliced) {
            merge_slices<S>(c, w, control, p, shift, (found<S> *)room);
            return;
        }
        if (consumer_thread() == 0) {
            control->slices = counter_add(p.counter, 1) == (u32)p.count - 1;
            if (control->slices)
                *p.counter = 0;
        }
        named_sync(BARRIER_CONSUMERS, S::consumers);
        if (!control->slices)
            return;
        take_parts<S>(c, p, r, t);
    }
    if (c.level >= 0)
        leave_prior<S>(c, w, r, t);
    else if (queries_of<S>(c, w) == consumer_thread() / GROUP_THREADS)
        store_rows<S>(c, w, r, t);
}

#endif /* FI_PREFILL_EPILOGUE_CUH */
