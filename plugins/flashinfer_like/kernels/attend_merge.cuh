/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_merge.cuh: items that several blocks share. Each block writes its part to a slot in device
 * memory and increments a counter; the last block merges the parts in order, so results are
 * deterministic:
 *
 *   block 3   ... item 7: | units 0-8  |--> slot --\
 *   block 4               | units 9-30 |--> slot ---+--> the last to arrive: out
 *   block 5               | units 31-40| item 8 ... /
 *
 *   parts    cut anywhere: merged by pieces of a row, or a row by warps   merge_parts()
 *   splits   cut whatever the batch: added in order, with equal rounding  merge_splits()
 *
 * Results of shared prefixes (plan.h) are added here and in attend_epilogue.cuh.
 */
#ifndef FI_ATTEND_MERGE_CUH
#define FI_ATTEND_MERGE_CUH

#include "plugins/flashinfer_like/kernels/attend_item.cuh"
#include "plugins/flashinfer_like/kernels/gather.cuh"

/* Levels whose runs have results for the item's rows: none over fp8. */
template <typename S> static __device__ __forceinline__ int shared_levels(const cursor &at)
{
    return S::quantised ? 0 : at.tile.levels;
}

/* ---- Sums of two --------------------------------------------------------------------------- */

/* The sum of the results of some keys and of later keys. Splits are added in order, either by the
 * block with the item's first split or by the last block to arrive. Both must round alike, so the
 * instructions are explicit. */
struct sum_of_two {
    float2 numbers; /* largest logit, denominator */
    float before, after;

    __device__ __forceinline__ float values(float x, float y) const
    {
        return __fmaf_rn(y, after, __fmul_rn(x, before));
    }
};

static __device__ __forceinline__ sum_of_two add_two(float2 x, float2 y)
{
    sum_of_two both;
    float top = fmaxf(x.x, y.x), base = softmax_base(top);
    both.before = softmax_exp2(__fsub_rn(x.x, base));
    both.after = softmax_exp2(__fsub_rn(y.x, base));
    both.numbers = make_float2(top, both.values(x.y, y.y));
    return both;
}

/* The numbers of row r of a split, or of all splits up to it. The same explicit instructions add up
 * the warps' denominators of each split. */
template <typename S>
static __device__ __forceinline__ float2 add_numbers(const float *tops, int r, bool is_added,
                                                     const float2 *before)
{
    float top = SOFTMAX_EMPTY, total = 0.0f;
    for (int w = 0; w < S::item_warps; w++)
        top = fmaxf(top, tops[w * FI_ROWS + r]);
    float base = softmax_base(top);
    for (int w = 0; w < S::item_warps; w++)
        total = __fmaf_rn(softmax_exp2(__fsub_rn(tops[w * FI_ROWS + r], base)),
                          tops[(S::item_warps + w) * FI_ROWS + r], total);
    float2 numbers = make_float2(top, total);
    return is_added ? add_two(*before, numbers).numbers : numbers;
}

/* ---- Merge --------------------------------------------------------------------------------- */

/* A merged row: a lane has every 32nd column; with 80 columns, the upper lanes have no third
 * one. */
template <typename S> static constexpr int merged_columns = (S::v_dim + 31) / 32;

template <typename S> static __device__ __forceinline__ bool has_merged(int n, int lane)
{
    return S::v_dim % 32 == 0 || n * 32 + lane < S::v_dim;
}

template <typename S>
static __device__ __forceinline__ void store_merged(const fi_call &c, i64 row, int head,
                                                    const softmax_row &end, float factor,
                                                    const float (&x)[merged_columns<S>])
{
    int lane = (int)threadIdx.x & 31;
#pragma unroll
    for (int n = 0; n < merged_columns<S>; n++)
        if (has_merged<S>(n, lane))
            element_store(c.out_dtype, out_row(c, row, head), n * 32 + lane, x[n] * factor);
    if (lane == 0)
        store_lse(c, row, head, softmax_lse(&end));
}

/* Adds row r of all splits in order, by a warp; the loads of several splits are in flight
 * together. */
template <typename S>
static __device__ __forceinline__ void add_splits(const fi_call &c, const parts &p, int r, i64 row,
                                                  int head)
{
    constexpr int columns = merged_columns<S>;
    int lane = (int)threadIdx.x & 31;
    float2 numbers = make_float2(SOFTMAX_EMPTY, 0.0f);
    float x[columns] = {};
#pragma unroll 1
    for (int begin = 0; begin < p.count; begin += S::merged_splits) {
        int here = min(S::merged_splits, p.count - begin);
        float y[S::merged_splits][columns];
        float2 of[S::merged_splits];
#pragma unroll
        for (int i = 0; i < S::merged_splits; i++) {
            i64 slot = part_slot(p, begin + min(i, here - 1)) * FI_ROWS + r;
            of[i] = __ldcg((const float2 *)(c.partial_row + slot * 2));
#pragma unroll
            for (int n = 0; n < columns; n++)
                y[i][n] = has_merged<S>(n, lane)
                              ? __ldcg(c.partial + slot * S::v_dim + lane + n * 32)
                              : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < S::merged_splits; i++) {
            if (i >= here)
                break;
            const sum_of_two both = add_two(numbers, of[i]);
            bool is_first = begin + i == 0;
            numbers = is_first ? of[i] : both.numbers;
#pragma unroll
            for (int n = 0; n < columns; n++)
                x[n] = is_first ? y[i][n] : both.values(x[n], y[i][n]);
        }
    }
    float sink = sink_of(c, head), top = fmaxf(numbers.x, sink), base = softmax_base(top);
    float shrink = softmax_exp2(numbers.x - base);
    softmax_row end = {top, numbers.y * shrink + softmax_exp2(sink - base)};
    store_merged<S>(c, row, head, end, softmax_end(&end) * shrink, x);
}

/* Called when the block has written its splits of an item; the last block adds all splits. */
template <typename S>
static __device__ __forceinline__ void merge_splits(const fi_call &c, const cursor &at,
                                                    const item<S> &it, const parts &p, int rows,
                                                    u32 *told)
{
    if (!p.ends)
        return;
    if (item_thread<S>() == 0) {
        *told = p.arriving == p.all ||
                (int)counter_add(p.counter, (u32)p.arriving) == p.all - p.arriving;
        if (*told && p.arriving < p.all)
            *p.counter = 0;
    }
    item_sync<S>();
    if (!*told)
        return;
    for (int r = item_warp<S>(); r < rows; r += S::item_warps) {
        i64 row;
        int head;
        find_short_row(c, it.q, at, r, &row, &head);
        add_splits<S>(c, p, r, row, head);
    }
}

#endif /* FI_ATTEND_MERGE_CUH */
