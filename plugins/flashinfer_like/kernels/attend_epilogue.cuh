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

/* x += weight * y. */
static __device__ __forceinline__ void add_weighted(float4 &x, float weight, const float4 &y)
{
    x.x += weight * y.x;
    x.y += weight * y.y;
    x.z += weight * y.z;
    x.w += weight * y.w;
}

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

/* Row r of the item from the warps' parts of it in shared memory: four columns of it, from d on. */
template <typename S, bool splits>
static __device__ __forceinline__ void
finish_row(const fi_call &c, const cursor &at, const item<S> &it, int r, int d,
           const float *exchange, const float *tops, bool is_shared, const parts &shared_by)
{
    i64 row;
    int head;
    find_short_row(c, it.q, at, r, &row, &head);
    float sink = is_shared ? SOFTMAX_EMPTY : sink_of(c, head), top = sink;
    int levels = is_shared ? 0 : shared_levels<S>(at);
    for (int w = 0; w < S::item_warps; w++)
        top = fmaxf(top, tops[w * FI_ROWS + r]);
    for (int l = 0; levels >> l; l++)
        if (levels >> l & 1)
            top = fmaxf(top, c.prior_row[prior_slot(c, l, row, head) * 2]);
    float base = softmax_base(top), total = softmax_exp2(sink - base);
    float4 x = {0, 0, 0, 0};
    for (int w = 0; w < S::item_warps; w++) {
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
                finish_row<S, splits>(c, at, it, r, d, exchange, tops, !whole, p);
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
    if (!whole)
        merge_parts<S, splits>(c, at, it, p, rows, (int *)(tops + 2 * S::item_warps * FI_ROWS));
}

#endif /* FI_ATTEND_EPILOGUE_CUH */
