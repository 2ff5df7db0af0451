/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_item.cuh: a math warp's state of an item in attend.cuh, and the start of an item: the keys
 * that every row sees, and the queries as operand `a` of products.
 *
 *   16 bits   device memory -> registers; with more than 128 dimensions -> shared memory
 *   fp8       the same; each row is multiplied by a power of two and converted to f16. The inverse,
 *             times the scale of keys, is the factor of the row's scores
 *   e5m2      queries stay bf16 if f16 would lose a bit of a row
 *
 * The power of two brings the row's largest element to about 2^15, so f16 loses nothing that fp32
 * sums over e4m3 would keep.
 */
#ifndef FI_ATTEND_ITEM_CUH
#define FI_ATTEND_ITEM_CUH

#include "plugins/flashinfer_like/kernels/attend_stages.cuh"

/* A warp's state of an item: its rows' queries, and their results so far. */
template <typename S> struct item {
    index_sequence q;
    int all_lo, all_hi; /* keys that every row sees; none if logits need more than a product plus a
                         * cap or a slope */
    u32 a[S::q_in_shared ? 1 : S::dim / 16][4];
    float factor[S::quantised ? 2 : 1]; /* of the rows' scores; without fp8 it is the call's */
    bool fits;                          /* with S::may_not_fit: queries are f16 */
    float top[2];                       /* of rows lane / 4 and lane / 4 + 8, in units of log 2 */
    float sum[2];                       /* this lane's part */
    float out[S::v_dim / 8][4];
};

/* ---- Queries ------------------------------------------------------------------------------- */

/* Copies aligned rows into shared memory. All of a thread's loads are in flight at once, as each
 * wait costs as much as half a unit. */
template <typename S>
static __device__ __forceinline__ void stage_queries(const fi_call &c, const cursor &at,
                                                     const item<S> &it, int last, char *shared)
{
    constexpr int pieces = S::dim / 8, mine = FI_ROWS * pieces / S::item_threads;
    static_assert(FI_ROWS * pieces % S::item_threads == 0, "a thread has as many as any");
    uint4 x[mine];
#pragma unroll
    for (int k = 0; k < mine; k++) {
        i64 row;
        int head, i = item_thread<S>() + k * S::item_threads;
        find_short_row(c, it.q, at, min(i / pieces, last), &row, &head);
        x[k] = *(const uint4 *)((const char *)c.operands.q + row * c.operands.q_row +
                                head * c.operands.q_head + i % pieces * 16);
    }
#pragma unroll
    for (int k = 0; k < mine; k++) {
        int i = item_thread<S>() + k * S::item_threads;
        *(uint4 *)(shared + S::q_at + i / pieces * S::q_stride + i % pieces * 16) = x[k];
    }
}

/* Loads the rows' queries as operand `a` from device memory. */
template <typename S, bool aligned>
static __device__ __forceinline__ void take_queries(const fi_call &c, const cursor &at, item<S> &it,
                                                    char *shared)
{
    int lane = (int)threadIdx.x & 31, last = item_rows(c, it.q, at.tile, FI_ROWS) - 1;
    if constexpr (S::q_in_shared) {
        item_sync<S>(); /* the previous item no longer reads its queries */
        if (aligned)
            stage_queries<S>(c, at, it, last, shared);
        for (int i = item_thread<S>(); !aligned && i < FI_ROWS * S::dim / 2; i += S::item_threads) {
            i64 row;
            int head, r = i / (S::dim / 2), d = i % (S::dim / 2);
            find_short_row(c, it.q, at, min(r, last), &row, &head);
            const char *from =
                (const char *)c.operands.q + row * c.operands.q_row + head * c.operands.q_head;
            *(u32 *)(shared + S::q_at + r * S::q_stride + d * 4) = load_pair(from + d * 4, false);
        }
        item_sync<S>();
    } else {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            i64 row;
            int head;
            find_short_row(c, it.q, at, min(h * 8 + lane / 4, last), &row, &head);
            const char *from = (const char *)c.operands.q + row * c.operands.q_row +
                               head * c.operands.q_head + (lane & 3) * 4;
#pragma unroll
            for (int d = 0; d < S::dim / 16; d++) {
                it.a[d][h] = load_pair(from + d * 32, aligned);
                it.a[d][h + 2] = load_pair(from + d * 32 + 16, aligned);
            }
        }
    }
}

/* ---- Queries over fp8 ---------------------------------------------------------------------- */

/* The power of two that brings a row with largest magnitude `most` to 2^14 .. 2^15; `back` is its
 * inverse. */
static __device__ __forceinline__ float find_lift(float most, float *back)
{
    u32 exponent = max(f32_bits(most) >> 23, 15u);
    *back = bits_f32((exponent - 14) << 23);
    return bits_f32((268 - exponent) << 23);
}

template <typename S> static __device__ __forceinline__ float2 unpack_query(u32 pair)
{
    if (S::is_f16)
        return unpack_half(pair);
    return make_float2(bits_f32(pair << 16), bits_f32(pair & 0xffff0000u));
}

/* The largest magnitude of a lane's queries, and the bits of the smallest nonzero one, less 1. */
struct query_range {
    float most;
    u32 least;

    __device__ __forceinline__ void see(float2 x)
    {
        most = fmaxf(most, fmaxf(fabsf(x.x), fabsf(x.y)));
        least = min(least, min(f32_bits(fabsf(x.x)) - 1, f32_bits(fabsf(x.y)) - 1));
    }

    /* Does f16 keep all bits of the lifted queries? A bf16 has eight bits, the last of them must be
     * at least 2^-24. */
    __device__ __forceinline__ bool fits(float back) const
    {
        return least >= f32_bits(back * (1.0f / (1 << 17))) - 1;
    }
};

/* Lifted queries as operand `a`. A lane's four fp8 values of a row are two pairs of neighbours:
 * dimensions 4 t to 4 t + 3 of 16, where 16-bit operands have 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. So
 * the queries are reordered to match. */
template <typename S, bool aligned>
static __device__ __forceinline__ void lift_queries(const fi_call &c, const cursor &at, item<S> &it)
{
    int lane = (int)threadIdx.x & 31, last = item_rows(c, it.q, at.tile, FI_ROWS) - 1;
    float scale = c.scale * k_scale_of(c, at.head), lift[2], back[2];
    bool fits = true;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        i64 row;
        int head;
        query_range range = {0.0f, ~0u};
        find_short_row(c, it.q, at, min(h * 8 + lane / 4, last), &row, &head);
        const char *from = (const char *)c.operands.q + row * c.operands.q_row +
                           head * c.operands.q_head + (lane & 3) * 8;
#pragma unroll
        for (int n = 0; n < S::dim / 8; n++) {
            u32 &pair = it.a[S::q_in_shared ? 0 : n / 2][h + n % 2 * 2];
            pair = load_pair(from + n / 2 * 32 + n % 2 * 4, aligned);
            range.see(unpack_query<S>(pair));
        }
        lift[h] = find_lift(softmax_quad_max(range.most), &back[h]);
        fits = fits && range.fits(back[h]);
    }
    it.fits = !S::may_not_fit || __all_sync(~0u, fits);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        it.factor[S::quantised ? h : 0] = it.fits ? back[h] * scale : scale;
#pragma unroll
        for (int n = 0; n < S::dim / 8; n++) {
            u32 &pair = it.a[S::q_in_shared ? 0 : n / 2][h + n % 2 * 2];
            float2 x = unpack_query<S>(pair);
            if (it.fits)
                pair = pack_pair<true>(x.x * lift[h], x.y * lift[h]);
        }
    }
}

/* Stores the queries in this order in shared memory, a row by a warp. backs[r]: the inverse of row
 * r's lift, negative if the row does not fit. */
template <typename S>
static __device__ __forceinline__ void leave_queries(const fi_call &c, const cursor &at,
                                                     const item<S> &it, char *shared, float *backs,
                                                     bool is_lifted)
{
    constexpr int pairs = S::dim / 2;
    int lane = (int)threadIdx.x & 31, last = item_rows(c, it.q, at.tile, FI_ROWS) - 1;
    bool aligned = c.operands.aligned & CALL_ALIGNED_Q;
#pragma unroll 1
    for (int r = item_warp<S>(); r < FI_ROWS; r += S::item_warps) {
        i64 row;
        int head;
        float back;
        u32 mine[pairs / 32];
        query_range range = {0.0f, ~0u};
        find_short_row(c, it.q, at, min(r, last), &row, &head);
        const char *from =
            (const char *)c.operands.q + row * c.operands.q_row + head * c.operands.q_head;
#pragma unroll
        for (int n = 0; n < pairs / 32; n++) {
            mine[n] = load_pair(from + (n * 32 + lane) * 4, aligned);
            range.see(unpack_query<S>(mine[n]));
        }
        float lift = find_lift(softmax_warp_max(range.most), &back);
        bool fits = !S::may_not_fit || __all_sync(~0u, range.fits(back));
#pragma unroll
        for (int n = 0; n < pairs / 32; n++) {
            int d = n * 32 + lane; /* pair d % 8 of 16 dimensions, and its place */
            int to = d / 8 * 8 + d % 2 * 4 + d % 8 / 2;
            float2 x = unpack_query<S>(mine[n]);
            *(u32 *)(shared + S::q_at + r * S::q_stride + to * 4) =
                is_lifted ? pack_pair<true>(x.x * lift, x.y * lift) : mine[n];
        }
        if (lane == 0)
            backs[r] = fits ? back : -back;
    }
    item_sync<S>();
}

template <typename S>
static __device__ __forceinline__ void lift_queries_shared(const fi_call &c, const cursor &at,
                                                           item<S> &it, char *shared)
{
    float scale = c.scale * k_scale_of(c, at.head), *backs = (float *)(shared + S::backs_at);
    int lane = (int)threadIdx.x & 31;
    item_sync<S>(); /* the previous item no longer reads its queries */
    leave_queries<S>(c, at, it, shared, backs, true);
    it.fits = !S::may_not_fit || __all_sync(~0u, backs[lane % FI_ROWS] > 0.0f);
    for (int h = 0; h < 2; h++)
        it.factor[S::quantised ? h : 0] = it.fits ? backs[h * 8 + lane / 4] * scale : scale;
    if (!it.fits) {
        item_sync<S>(); /* all warps have read backs */
        leave_queries<S>(c, at, it, shared, backs, false);
    }
}

/* ---- Begin --------------------------------------------------------------------------------- */

template <typename S, bool aligned>
static __device__ __forceinline__ void find_queries(const fi_call &c, const cursor &at, item<S> &it,
                                                    char *shared)
{
    if constexpr (S::quantised)
        lift_queries<S, aligned>(c, at, it);
    else
        take_queries<S, aligned>(c, at, it, shared);
}

/* Reads the item's sequence. This needs only the plan and the batch, so it may precede
 * pdl_wait(). */
template <typename S>
static __device__ __forceinline__ void item_find(const fi_call &c, const cursor &at, item<S> &it)
{
    index_find_sequence(&c.batch, c.operands.k != 0, at.tile.seq, &it.q);
}

template <typename S>
static __device__ __forceinline__ void item_begin(const fi_call &c, const cursor &at, item<S> &it,
                                                  char *shared)
{
    mask_rule rule = rule_of(c);
    int ignored;
    int last = at.tile.row0 + item_rows(c, it.q, at.tile, FI_ROWS) - 1;
    mask_positions(&rule, it.q.prefix_len + short_query(c, last), &it.all_lo, &ignored);
    int first = short_query(c, at.tile.row0);
    mask_positions(&rule, it.q.prefix_len + first, &ignored, &it.all_hi);
    it.all_hi = min(it.all_hi, at.tile.hi);
    it.all_hi = min(it.all_hi, end_of_all(c, it.q, at.tile.seq, first));
    if (c.custom || (c.operands.slopes && !is_sloped(c)))
        it.all_hi = 0;
    /* One branch for all loads: with predicates, both kinds of loads would be issued. */
    if (S::quantised && S::q_in_shared)
        lift_queries_shared<S>(c, at, it, shared);
    else if (c.operands.aligned & CALL_ALIGNED_Q)
        find_queries<S, true>(c, at, it, shared);
    else
        find_queries<S, false>(c, at, it, shared);
    for (int h = 0; h < 2; h++) {
        it.top[h] = SOFTMAX_EMPTY;
        it.sum[h] = 0.0f;
    }
#pragma unroll
    for (int d = 0; d < S::v_dim / 8; d++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            it.out[d][e] = 0.0f;
}

#endif /* FI_ATTEND_ITEM_CUH */
