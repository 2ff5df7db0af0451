/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_codes.cuh: N query rows, at most 32, over tiles of 64 latents of e4m3 with one scale. The
 * products are those of attend.cuh, with tokens or dimensions as rows, in fp16, which holds each code
 * exactly. No tile is widened in shared memory: the warps that multiply load codes as they lie, 8
 * bytes a lane, and convert them into the registers of the product's first operand.
 *
 *   S^T[64 x N]  = K[64 x 576] Q^T      a lane's 8 codes of a token: two products of 16
 *   O^T[512 x N] += V^T[512 x 64] P^T   its 8 dimensions of four tokens: four products of 16 tokens
 *
 * Queries are not rounded: each row is multiplied by the power of two that brings its largest element
 * just below 2^15. Elements down to 2^-32 of it stay exact. Probabilities are stored times 2^15, so
 * fp16 holds those down to 2^-29 with its full precision.
 *
 * Queries of e4m3 are multiplied with the tile's codes, both in shared memory as they lie: 18
 * products of 32.
 */
#ifndef FLASHMLA_LIKE_ATTEND_CODES_CUH
#define FLASHMLA_LIKE_ATTEND_CODES_CUH

#include "plugins/flashmla_like/kernels/attend.cuh"

#define CODES_BLOCKS (MLA_DIM / 32)         /* of 32 codes, which the lanes of a row load at once */
#define CODES_PANEL  (MLA_TILE * ROW_BYTES) /* bytes of 128 codes of a tile */
#define P_SCALE      32768.0f

/* ---- Shared memory --------------------------------------------------------------------------- */

template <int N> DEVICE mla_shared<N> codes_find(unsigned char *memory)
{
    mla_shared<N> m;
    m.q = shared_address(memory);
    m.p = m.q + MLA_SHARED_Q(N);
    m.tiles = m.p + 2 * MLA_CODES_P(N);
    m.exchange = (float *)(memory + MLA_SHARED_Q(N) + 2 * MLA_CODES_P(N) +
                           MLA_CODES_STAGES(N) * MLA_CODES_TILE);
    m.factor = m.exchange + 16 * N;
    m.q_scale = m.factor + 2 * N;
    m.lo = (int *)(m.q_scale + N);
    m.hi = m.lo + N;
    m.full = shared_address(m.hi + N);
    m.empty = m.full + 8 * MLA_CODES_STAGES(N);
    m.p_full = m.empty + 8 * MLA_CODES_STAGES(N);
    m.p_empty = m.p_full + 16;
    return m;
}

/* The layout of codes in a tile, for loaders: the number of rows, the place of a piece of 16 codes
 * of a row, and the distance `next` of pieces that are 128 codes apart. This one has panels of the
 * 128-byte swizzle, as boxes of the copy engine have. */
struct codes_tile {
    static constexpr int rows = MLA_TILE, next = CODES_PANEL, unrolled = 4;

    static __device__ __forceinline__ unsigned place(int row, int piece)
    {
        return piece / 8 * CODES_PANEL + swizzled(row, piece % 8);
    }
};

/* "cvt": two codes of e4m3 as fp16, exact. */
DEVICE unsigned widen_pair(unsigned short codes)
{
    unsigned pair;
    asm volatile("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(codes));
    return pair;
}

/* The first two codes of four, and the last two. Named as a half of the word they need no shift. */
DEVICE unsigned widen_low(unsigned codes)
{
    unsigned pair;
    asm volatile("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\n"
                 "cvt.rn.f16x2.e4m3x2 %0, low;\n}"
                 : "=r"(pair)
                 : "r"(codes));
    return pair;
}

DEVICE unsigned widen_high(unsigned codes)
{
    unsigned pair;
    asm volatile("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\n"
                 "cvt.rn.f16x2.e4m3x2 %0, high;\n}"
                 : "=r"(pair)
                 : "r"(codes));
    return pair;
}

DEVICE uint2 codes_load(unsigned address)
{
    uint2 x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(x.x), "=r"(x.y)
                 : "r"(address)
                 : "memory");
    return x;
}

/* ---- Warpgroup 0: tiles ---------------------------------------------------------------------- */

DEVICE float codes_scale(const mla_call &c)
{
    return c.operands.k_scale_device ? *c.operands.k_scale_device : c.operands.k_scales[0];
}

/* The source of a lane's row, one of its warp's 16 of a tile. */
struct codes_source {
    const char *row, *k_pe;
    int bytes; /* 16, or 0 for zeros */
    int fresh; /* 1: a new latent, whose c_kv `row` points to; it is quantised here */
};

DEVICE codes_source codes_find_source(const mla_call &c, const index_sequence &q, int lo, int hi,
                                      int j, int entry)
{
    mla_source at = find_line_source(c, q, lo, hi, j, entry);
    return codes_source{at.c_kv, at.k_pe, at.bytes, at.bytes && j >= q.first_new};
}

/* Copy 16 bytes, or zeros; from any address unless `aligned`. */
DEVICE void codes_copy(unsigned to, const char *from, int bytes, bool aligned)
{
    if (aligned) {
        copy_async(to, from, bytes);
        return;
    }
    u32 words[4] = {0, 0, 0, 0};
    if (bytes)
        for (int i = 0; i < 16; i++)
            words[i / 4] |= (u32)((const u8 *)from)[i] << i % 4 * 8;
    shared_store(to, make_uint4(words[0], words[1], words[2], words[3]));
}

/* Start to fetch a lane's new latent to L1, before it is loaded piece by piece to be quantised. */
DEVICE void codes_fetch(const char *c_kv, int lora)
{
#pragma unroll 1
    for (int d = 0; d < lora; d += 64)
        asm volatile("prefetch.global.L1 [%0];" ::"l"(c_kv + d * 2));
}

/* codes_find_source() for a tile before its turn. */
DEVICE codes_source codes_find_early(const mla_call &c, const index_sequence &q, int lo, int hi,
                                     int j, int entry)
{
    const codes_source from = codes_find_source(c, q, lo, hi, j, entry);
    if (from.fresh)
        codes_fetch(from.row, c.lora);
    return from;
}

/* Store a new latent as the cache would hold it, by a warp. */
template <class to>
DEVICE void codes_quantise(const mla_call &c, unsigned tile, int row, const char *c_kv,
                           const char *k_pe, float scale, int lane)
{
#pragma unroll 1
    for (int d = lane * 4; d < MLA_DIM; d += 128) {
        const bool there = d < MLA_LORA ? d < c.lora : d - MLA_LORA < c.rope;
        const char *from = d < MLA_LORA ? c_kv + d * 2 : k_pe + (d - MLA_LORA) * 2;
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = there ? f32_divide(element_from_bf16(((const any16 *)from)[i]), scale) : 0.0f;
        unsigned codes = pack_codes(x[0], x[1], x[2], x[3]);
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(tile + to::place(row, d / 16) + d % 16),
                     "r"(codes)
                     : "memory");
    }
}

/* Eight lanes copy 128 bytes of a row at a time, four rows side by side; except new latents. */
template <class to>
DEVICE void codes_load_tile(const mla_call &c, const codes_source &mine, unsigned tile, int warp,
                            int lane)
{
    const unsigned long long policy = codes_policy(c);
    constexpr int rows = to::rows / 4; /* of a warp */
    const int piece = lane % 8, lora = c.lora - piece * 16, rope = c.rope - piece * 16;
#pragma unroll(to::unrolled)
    for (int i = 0; i < (rows + 3) / 4; i++) {
        const int row = i * 4 + lane / 8;
        const char *from = shuffle_pointer(mine.row, row) + piece * 16;
        const int bytes = __shfl_sync(~0u, mine.fresh ? -1 : mine.bytes, row);
        const unsigned at = tile + to::place(warp * rows + row, piece);
        if (row >= rows || bytes < 0)
            continue;
#pragma unroll
        for (int k = 0; k < MLA_LORA / 128; k++)
            copy_async_by(at + k * to::next, from + k * 128, k * 128 < lora ? bytes : 0, policy);
        if (piece < MLA_ROPE / 16)
            copy_async_by(at + MLA_LORA / 128 * to::next, from + c.lora, rope > 0 ? bytes : 0,
                          policy);
    }
}

/* The same for addresses that are not multiples of 16. */
template <class to>
DEVICE void codes_load_slow(const mla_call &c, const codes_source &mine, unsigned tile, int warp,
                            int lane)
{
#pragma unroll 1
    for (int i = 0; i < to::rows / 4; i++) {
        const char *from = shuffle_pointer(mine.row, i);
        const int bytes = __shfl_sync(~0u, mine.bytes, i), fresh = __shfl_sync(~0u, mine.fresh, i);
#pragma unroll 1
        for (int d = lane * 16; d < MLA_DIM && !fresh; d += 512) {
            const bool there = d < MLA_LORA ? d < c.lora : d - MLA_LORA < c.rope;
            codes_copy(tile + to::place(warp * (to::rows / 4) + i, d / 16),
                       from + (d < MLA_LORA ? d : d - MLA_LORA + c.lora), there ? bytes : 0, false);
        }
    }
}

template <class to>
DEVICE void codes_load_fresh(const mla_call &c, const codes_source &mine, unsigned tile,
                             float scale, int warp, int lane)
{
    unsigned left = __ballot_sync(~0u, mine.fresh) & ((1u << to::rows / 4) - 1);
#pragma unroll 1
    for (; left; left &= left - 1) {
        const int i = __ffs((int)left) - 1;
        codes_quantise<to>(c, tile, warp * (to::rows / 4) + i, shuffle_pointer(mine.row, i),
                           shuffle_pointer(mine.k_pe, i), scale, lane);
    }
}

/* Load a warp's rows of a tile; `full` counts their arrival. */
template <class to>
DEVICE void codes_load(const mla_call &c, const codes_source &mine, unsigned tile, unsigned full,
                       float scale, int warp, int lane)
{
    const bool aligned = c.operands.aligned & CALL_ALIGNED_CACHE;
    if (aligned)
        codes_load_tile<to>(c, mine, tile, warp, lane);
    else
        codes_load_slow<to>(c, mine, tile, warp, lane);
    if (aligned && !__any_sync(~0u, mine.fresh)) {
        copy_arrive(full);
        return;
    }
    codes_load_fresh<to>(c, mine, tile, scale, warp, lane);
    copy_wait();
    barrier_arrive(full);
}

/* Load tiles with the layout `to`, `bytes` each, to m.tiles. */
template <int N, class to, int stages, int bytes>
DEVICE void codes_feed(const mla_call &c, const mla_shared<N> &m)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const float scale = codes_scale(c);
    feed_tiles<N, to::rows, stages>(
        c, m, warp * (to::rows / 4) + lane % (to::rows / 4),
        [&](const index_sequence &q, int lo, int hi, int j, int entry) {
            return codes_find_early(c, q, lo, hi, j, entry);
        },
        [&](const codes_source &now, int slot, unsigned full) {
            codes_load<to>(c, now, m.tiles + slot * bytes, full, scale, warp, lane);
        });
    copy_wait();
}

/* Load 16 latents of a page, by one thread: a box for each panel. */
DEVICE void codes_load_boxes(const mla_call &c, unsigned to, unsigned full, int token, int page)
{
#pragma unroll
    for (int p = 0; p < MLA_CODES_PANELS; p++)
        tensor_load_by(to + p * CODES_PANEL, &c.maps[0], full, p * 128, token, page, 0,
                       codes_policy(c));
}

/* Lane 31 of each warp has the first key of a box, each other lane a row. */
template <int N, int stages, class to>
DEVICE void codes_feed_boxes(const mla_call &c, const mla_shared<N> &m)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int mine = warp * MLA_BOX + (lane == 31 ? 0 : lane % MLA_BOX);
    const mask_rule rule = plan_rule(&c);
    ring<stages> at;
    mla_walk w;
    for (bool has_unit = walk_begin(c, w); has_unit; has_unit = walk_next(c, w)) {
        index_sequence q;
        int lo, hi;
        unit_begin<N>(c, w, rule, &q, &lo, &hi);
        int j = (w.u.first_tile + w.t0) * MLA_TILE;
        int entry = find_entry(c, q, lo, hi, j + mine);
        for (int t = w.t0; t < w.t1; t++) {
            const unsigned tile = m.tiles + at.slot * MLA_CODES_TILE, full = m.full + 8 * at.slot;
            const bool boxed = c.boxed && j >= lo && j + MLA_TILE <= int_min(hi, q.first_new);
            const int now = entry;
            entry = find_entry(c, q, lo, hi, j + MLA_TILE + mine);
            if (j + mine >= q.first_new && j + mine < hi)
                codes_fetch(codes_find_source(c, q, lo, hi, j + mine, now).row, c.lora);
            barrier_wait(m.empty + 8 * at.slot, at.phase ^ 1);
            if (boxed) {
                if (threadIdx.x == 0)
                    barrier_arrive_expect(full, MLA_CODES_TILE);
                else
                    barrier_arrive(full);
                if (lane == 31)
                    codes_load_boxes(c, tile + warp * (MLA_BOX * ROW_BYTES), full,
                                     (j + mine) % c.page_size, now);
            } else {
                const codes_source from = codes_find_source(c, q, lo, hi, j + mine, now);
                codes_load<to>(c, from, tile, full, codes_scale(c), warp, lane);
            }
            j += MLA_TILE;
            at.advance();
        }
    }
    copy_wait();
}

/* ---- Warpgroup 1: scores --------------------------------------------------------------------- */

DEVICE unsigned codes_query_place(unsigned q, int rows, int n, int piece)
{
    return q + piece / 8 * (rows * ROW_BYTES) + swizzled(n, piece % 8);
}

DEVICE unsigned bf16_pair_top(unsigned top, unsigned pair)
{
    const unsigned low = pair & 0x7fff, high = pair >> 16 & 0x7fff;
    top = low < 0x7f80 && low > top ? low : top;
    return high < 0x7f80 && high > top ? high : top;
}

DEVICE unsigned bf16_pair_to_f16(unsigned pair, float scale)
{
    return pack_pair<true>(bits_f32(pair << 16) * scale, bits_f32(pair & 0xffff0000u) * scale);
}

/* The exponent of the power of two that brings a row whose largest finite element has these bits
 * just below 2^15. */
DEVICE int query_exponent(int top)
{
    return top == 0 ? 0 : int_min(141 - top / 128, 126);
}

/* Convert the first `blocks` blocks of queries, which load_queries() left in bf16, to fp16 in the
 * order in which lanes load codes, by `threads` threads. q_scale: the factor of their products.
 * Lane t of four has elements 8 t and following of a block of 32; its k-th pair belongs to product
 * k / 2, in which it is pair t (k even) or 4 + t. */
template <int N, int blocks, int threads>
DEVICE void convert_queries(const mla_shared<N> &m, float scale, int thread)
{
    int *top = (int *)m.q_scale;
    if (thread < N)
        top[thread] = 0;
    named_sync(1, threads);
    for (int i = thread; i < N * blocks; i += threads) {
        const int n = i % N, block = i / N;
        unsigned most = 0;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            uint4 x = shared_load(codes_query_place(m.q, N, n, block * 4 + t));
            most = bf16_pair_top(bf16_pair_top(most, x.x), x.y);
            most = bf16_pair_top(bf16_pair_top(most, x.z), x.w);
        }
        atomicMax(top + n, (int)most);
    }
    named_sync(1, threads);
    for (int i = thread; i < N * blocks; i += threads) {
        const int n = i % N, block = i / N;
        const float up = bits_f32((u32)(127 + query_exponent(top[n])) << 23);
        uint4 x[4];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            x[t] = shared_load(codes_query_place(m.q, N, n, block * 4 + t));
            x[t] = make_uint4(bf16_pair_to_f16(x[t].x, up), bf16_pair_to_f16(x[t].y, up),
                              bf16_pair_to_f16(x[t].z, up), bf16_pair_to_f16(x[t].w, up));
        }
        const unsigned to = block * 4;
        shared_store(codes_query_place(m.q, N, n, to), make_uint4(x[0].x, x[1].x, x[2].x, x[3].x));
        shared_store(codes_query_place(m.q, N, n, to + 1),
                     make_uint4(x[0].y, x[1].y, x[2].y, x[3].y));
        shared_store(codes_query_place(m.q, N, n, to + 2),
                     make_uint4(x[0].z, x[1].z, x[2].z, x[3].z));
        shared_store(codes_query_place(m.q, N, n, to + 3),
                     make_uint4(x[0].w, x[1].w, x[2].w, x[3].w));
    }
    fence_async_shared();
    named_sync(1, threads);
    if (thread < N)
        m.q_scale[thread] = bits_f32((u32)(127 - query_exponent(top[thread])) << 23) * scale;
    named_sync(1, threads);
}

/* A lane's codes of some blocks, of its two tokens. */
template <int blocks> struct codes_chunk {
    uint2 x[blocks][2];
};

/* `at`: the place of block 0 of the lane's first token. The swizzle puts block k of a panel in the
 * place of block k ^ x, with the same x for both tokens of a lane. */
template <int blocks> DEVICE void codes_load_chunk(codes_chunk<blocks> &k, unsigned at, int first)
{
#pragma unroll
    for (int b = 0; b < blocks; b++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            k.x[b][r] = codes_load((at ^ (first + b) % 4 * 32) + (first + b) / 4 * CODES_PANEL +
                                   8 * r * ROW_BYTES);
}

template <int blocks>
DEVICE void codes_widen_chunk(const codes_chunk<blocks> &k, unsigned (&a)[2 * blocks][4])
{
#pragma unroll
    for (int b = 0; b < blocks; b++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            a[2 * b][r] = widen_low(k.x[b][r].x);
            a[2 * b][r + 2] = widen_high(k.x[b][r].x);
            a[2 * b + 1][r] = widen_low(k.x[b][r].y);
            a[2 * b + 1][r + 2] = widen_high(k.x[b][r].y);
        }
}

#define CODES_PRODUCT(n)                                                                           \
    if constexpr (N == n)                                                                          \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " PTX_SHARED_FLAG_##n                           \
                 ", 0;\n"                                                                          \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" PTX_LIST_##n         \
                 "}, " PTX_SHARED_##n ", p, 1, 1;\n}"                                              \
                 : PTX_SUMS_##n(s)                                                                 \
                 : "l"(a), "l"(b), "r"(add))

/* sums[64 x N] = (add ? sums : 0) + a[64 x 32] * b[N x 32]^T of e4m3, both in shared memory. */
template <int N>
DEVICE void codes_product(float (&s)[N / 2], unsigned long long a, unsigned long long b, int add)
{
    CODES_PRODUCT(8);
    CODES_PRODUCT(16);
    CODES_PRODUCT(64);
}

/* Products `first` to `end` of tokens with queries of e4m3. */
template <int N, int first, int end>
DEVICE void codes_multiply(float (&s)[N / 2], const mla_shared<N> &m, unsigned tile)
{
    const unsigned long long a = matrix_descriptor(tile, 16, 8 * ROW_BYTES);
    const unsigned long long b = matrix_descriptor(m.q, 16, 8 * ROW_BYTES);
    wgmma_fence();
#pragma unroll
    for (int i = first; i < end; i++)
        codes_product<N>(s, descriptor_advance(a, i / 4 * CODES_PANEL + i % 4 * 32),
                         descriptor_advance(b, i / 4 * (N * ROW_BYTES) + i % 4 * 32), i > 0);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(s);
}

/* Scores of queries of e4m3. `ratio`: the scale of q_nope divided by that of q_pe. The caller
 * applies that of q_pe to sums. */
template <int N>
DEVICE void codes_scores_coded(float (&s)[N / 2], const mla_shared<N> &m, unsigned tile,
                               unsigned empty, float ratio)
{
    fence_async_shared();
    if (ratio == 1.0f) {
        codes_multiply<N, 0, MLA_DIM / 32>(s, m, tile);
    } else {
        codes_multiply<N, 0, MLA_LORA / 32>(s, m, tile);
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            s[i] *= ratio;
        codes_multiply<N, MLA_LORA / 32, MLA_DIM / 32>(s, m, tile);
    }
    release(empty);
}

/* Convert the codes of one chunk while those of the previous chunk are multiplied. The tile is
 * released when all are loaded. */
template <int N>
DEVICE void codes_scores(float (&s)[N / 2], const mla_shared<N> &m, unsigned tile, unsigned empty,
                         int warp, int lane)
{
    constexpr int blocks = 2, chunks = CODES_BLOCKS / blocks;
    const unsigned long long b = matrix_descriptor(m.q, 16, 8 * ROW_BYTES);
    const unsigned at = tile + codes_tile::place(warp * 16 + lane / 4, lane % 4 / 2) + lane % 2 * 8;
    unsigned a[2][2 * blocks][4];
    codes_chunk<blocks> k;
    codes_load_chunk(k, at, 0);
#pragma unroll
    for (int i = 0; i < chunks; i++) {
        if (i >= 2)
            wgmma_wait<1>();
        codes_widen_chunk(k, a[i % 2]);
        if (i + 1 < chunks)
            codes_load_chunk(k, at, (i + 1) * blocks);
        else
            release(empty);
        wgmma_fence();
#pragma unroll
        for (int n = 0; n < 2 * blocks; n++) {
            const int step = i * 2 * blocks + n;
            wgmma_rs<N, true, 0>(s, a[i % 2][n],
                                 descriptor_advance(b, step / 4 * (N * ROW_BYTES) + step % 4 * 32),
                                 step > 0);
        }
        wgmma_commit();
    }
    wgmma_wait<0>();
    wgmma_arrived(s);
}

/* Scores in units of log 2. */
template <int N> DEVICE void codes_rescale(float (&s)[N / 2], const mla_shared<N> &m, int lane)
{
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        const float2 f = *(const float2 *)(m.q_scale + i * 8 + lane % 4 * 2);
        scale_columns(s + 4 * i, f);
    }
}

/* The scores of a tile that is beyond this range. */
template <int N> DEVICE void codes_none(float (&s)[N / 2])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        s[i] = SOFTMAX_EMPTY;
}

/* The scales of q_nope and of q_pe. */
DEVICE float2 coded_query_scales(const mla_call &c)
{
    return make_float2(c.q_scale_device ? *c.q_scale_device : c.q_scale,
                       c.q_pe_scale_device ? *c.q_pe_scale_device : c.q_pe_scale);
}

/* Load queries of e4m3 as panels of codes, and the ranges of keys that rows see. */
template <int N, int threads>
DEVICE void codes_load_queries(const mla_call &c, const mla_walk &w, const index_sequence &q,
                               const mla_shared<N> &m, float scale, int thread)
{
    constexpr int step = threads / N; /* threads per row */
    const bool aligned = c.operands.aligned & CALL_ALIGNED_Q;
    const int n = thread / step, row = first_row<N>(c, w) + n, there = row < q.q_len * c.heads;
    const row_place at = row_find(c, q, there ? row : 0);
    const i64 token = q.first_row + at.query;
    const char *nope =
        (const char *)c.operands.q + token * c.operands.q_row + at.head * c.operands.q_head;
    const char *pe = (const char *)c.q_pe + token * c.q_pe_row + at.head * c.q_pe_head - MLA_LORA;
    const mask_rule rule = plan_rule(&c);
#pragma unroll 1
    for (int d = thread % step * 16; d < MLA_DIM; d += step * 16) {
        const bool valid = there && (d < MLA_LORA ? d < c.lora : d - MLA_LORA < c.rope);
        codes_copy(codes_query_place(m.q, N, n, d / 16), (d < MLA_LORA ? nope : pe) + d,
                   valid ? 16 : 0, aligned);
    }
    if (thread < N) {
        row_seen<N>(c, w, q, rule, thread, m.lo + thread, m.hi + thread);
        m.q_scale[thread] = scale;
    }
    copy_wait();
    fence_async_shared();
    named_sync(1, threads);
}

template <int N, bool coded> DEVICE void codes_score(const mla_call &c, const mla_shared<N> &m)
{
    constexpr int scorers = MLA_CODES_SCORERS, threads = scorers * GROUP_THREADS;
    const int thread = (int)threadIdx.x - GROUP_THREADS, warp = thread / 32, lane = thread % 32;
    const int mine = uniform(thread / GROUP_THREADS);
    const float cache_scale = codes_scale(c);
    float ratio = 1.0f, scale = cache_scale * (c.sm_scale * SOFTMAX_LOG2E);
    if (coded) {
        const float2 of_queries = coded_query_scales(c);
        ratio = of_queries.x / of_queries.y;
        scale *= of_queries.y;
    }
    ring<MLA_CODES_STAGES(N)> at;
    ring<2> part;
    mla_walk w;
    for (bool has_unit = walk_begin(c, w); has_unit; has_unit = walk_next(c, w)) {
        index_sequence q;
        mla_columns<N> columns;
        float factor[N / 4], s[N / 2];
        int lo, least_hi;
        walk_sequence(c, w, &q);
        if constexpr (coded) {
            codes_load_queries<N, threads>(c, w, q, m, scale, thread);
        } else {
            load_queries<N, threads>(c, w, q, m, thread);
            convert_queries<N, CODES_BLOCKS, threads>(m, scale, thread);
        }
        all_see<N>(c, w, q, m, &lo, &least_hi);
        columns_begin<N>(columns);
        for (int t = w.t0; t < w.t1; t += scorers) {
            const int j = (w.u.first_tile + t + mine) * MLA_TILE;
#pragma unroll
            for (int i = 0; i < scorers; i++) {
                if (t + i >= w.t1)
                    break;
                if (i == mine) {
                    barrier_wait(m.full + 8 * at.slot, at.phase);
                    const unsigned tile = m.tiles + at.slot * MLA_CODES_TILE;
                    const unsigned empty = m.empty + 8 * at.slot;
                    if constexpr (coded)
                        codes_scores_coded<N>(s, m, tile, empty, ratio);
                    else
                        codes_scores<N>(s, m, tile, empty, warp % 4, lane);
                }
                at.advance();
            }
            if (t + mine < w.t1)
                codes_rescale<N>(s, m, lane);
            else
                codes_none<N>(s);
            if (j < lo || j + MLA_TILE > least_hi)
                hide<N>(s, m, j + warp % 4 * 16 + lane / 4, lane);
            const mla_shared<N> by = exchange_buffer<N, scorers>(m, part.slot);
            softmax<N, 4 * scorers>(s, columns, factor, by, warp, lane);
#pragma unroll
            for (int i = 0; i < N / 2; i++)
                s[i] *= P_SCALE;
            const mla_shared<N> to = part_buffer<N, MLA_CODES_P(N)>(m, part.slot);
            barrier_wait(to.p_empty, part.phase ^ 1);
            store_turned<N, true>(to.p + mine * MLA_SHARED_P(N), s, warp % 4, lane);
            store_factors<N>(factor, to, warp, lane);
            fence_async_shared();
            barrier_arrive(to.p_full);
            part.advance();
        }
        const float last = finish<N, 4 * scorers>(c, w, q, columns, m, warp, lane);
        const mla_shared<N> to = part_buffer<N, MLA_CODES_P(N)>(m, part.slot);
        barrier_wait(to.p_empty, part.phase ^ 1);
        store_last<N>(last * (cache_scale * (1 / P_SCALE)), to, warp, lane);
        barrier_arrive(to.p_full);
        part.advance();
    }
}

/* ---- Warpgroups 2 and 3: values -------------------------------------------------------------- */

/* Eight dimensions of four tokens of 16: 2 t and 2 t + 1 of the first eight, and of the second. */
struct codes_values {
    uint2 x[4];
};

/* The place of a lane's eight dimensions of tokens 2 t and 2 t + 1 in a tile. */
struct codes_lane {
    unsigned even, odd;

    DEVICE_MEMBER void find(int lane, int d0)
    {
        even = codes_tile::place(lane % 4 * 2, d0 / 16) + d0 % 16;
        odd = codes_tile::place(lane % 4 * 2 + 1, d0 / 16) + d0 % 16;
    }
    /* `tokens`: the first of 16 tokens */
    DEVICE_MEMBER codes_values load(unsigned tile, int tokens) const
    {
        codes_values v;
#pragma unroll
        for (int i = 0; i < 4; i++)
            v.x[i] = codes_load(tile + (i % 2 ? odd : even) + (tokens + i / 2 * 8) * ROW_BYTES);
        return v;
    }
};

/* Convert the operands of two products, 2 `half` and the next, whose rows are four of the lane's
 * dimensions. */
DEVICE void codes_widen_values(const codes_values &v, int half, unsigned (*a)[4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const unsigned even = half ? v.x[2 * i].y : v.x[2 * i].x;
        const unsigned odd = half ? v.x[2 * i + 1].y : v.x[2 * i + 1].x;
        const unsigned first = __byte_perm(even, odd, 0x5140);
        const unsigned second = __byte_perm(even, odd, 0x7362);
        a[0][2 * i] = widen_low(first);
        a[0][2 * i + 1] = widen_high(first);
        a[1][2 * i] = widen_low(second);
        a[1][2 * i + 1] = widen_high(second);
    }
}

/* Multiply a tile's values, after `ready` has returned: products of 16 tokens with 64 dimensions a
 * warp, four at a time, while the next ones are converted. The tile is released when all are
 * loaded. */
template <int N, class wait>
DEVICE void codes_add(mla_sums<N> &o, unsigned p, const codes_lane &mine, unsigned tile,
                      unsigned empty, int add, const wait &ready)
{
    constexpr int ahead = N < 32 ? 2 : 1, steps = MLA_TILE / 16;
    const unsigned long long b = matrix_descriptor(p, 16, 8 * ROW_BYTES);
    codes_values v = mine.load(tile, 0);
    unsigned a[ahead][4][4];
#pragma unroll
    for (int i = 0; i < steps; i++) {
        if (i >= ahead)
            wgmma_wait<ahead - 1>();
#pragma unroll
        for (int n = 0; n < 4; n += 2)
            codes_widen_values(v, n / 2, a[i % ahead] + n);
        if (i == 0)
            ready();
        if (i + 1 == steps)
            release(empty);
        else
            v = mine.load(tile, i * 16 + 16);
        wgmma_fence();
#pragma unroll
        for (int n = 0; n < 4; n++)
            wgmma_rs<N, true, 0>(o[n], a[i % ahead][n], descriptor_advance(b, i * 32),
                                 i > 0 ? 1 : add);
        wgmma_commit();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int n = 0; n < 4; n++)
        wgmma_arrived(o[n]);
}

/* The begin of the output of row n of the block; NULL if the row does not exist. */
template <int N>
DEVICE char *codes_row(const mla_call &c, const mla_walk &w, const index_sequence &q, int n)
{
    const int r = first_row<N>(c, w) + n;
    return n < N && r < q.q_len * c.heads ? row_out(c, q, r) : 0;
}

/* Store dimensions of a row: four at d0, and four `next` further on. */
template <int next, bool wide> DEVICE void codes_store(char *to, int d0, const float (&x)[8])
{
    if (wide) {
        *(float4 *)(to + d0 * 4) = make_float4(x[0], x[1], x[2], x[3]);
        *(float4 *)(to + (d0 + next) * 4) = make_float4(x[4], x[5], x[6], x[7]);
        return;
    }
    const unsigned a = pack_pair<false>(x[0], x[1]), b = pack_pair<false>(x[2], x[3]);
    const unsigned d = pack_pair<false>(x[4], x[5]), e = pack_pair<false>(x[6], x[7]);
    if (next == 4) {
        *(uint4 *)(to + d0 * 2) = make_uint4(a, b, d, e);
    } else {
        *(uint2 *)(to + d0 * 2) = make_uint2(a, b);
        *(uint2 *)(to + (d0 + next) * 2) = make_uint2(d, e);
    }
}

/* `aligned`: rows begin at multiples of 16 bytes. Each combination is separate code, and little of
 * it: it is executed once a unit, so it comes from memory. */
template <int N, int next, bool aligned, bool wide>
DEVICE void codes_store_rows(const mla_call &c, char *const (&rows)[(N + 31) / 32],
                             const mla_sums<N> &o, int d0)
{
    const int column = thread_here() % 4 * 2;
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            char *to = (char *)shuffle_pointer(rows[i / 4], i % 4 * 8 + column + e);
            float x[8];
#pragma unroll
            for (int d = 0; d < 8; d++)
                x[d] = o[d / 2][4 * i + 2 * (d % 2) + e];
            if (!to || d0 >= c.lora)
                continue;
            if (aligned)
                codes_store<next, wide>(to, d0, x);
            else
#pragma unroll
                for (int d = 0; d < 8; d++)
                    element_store(wide ? ELEMENT_F32 : ELEMENT_BF16, to, d0 + d / 4 * next + d % 4,
                                  x[d]);
        }
}

/* Store outputs of whole units. */
template <int N, int next>
DEVICE void codes_out(const mla_call &c, const mla_walk &w, const index_sequence &q,
                      const mla_sums<N> &o, int d0, int lane)
{
    char *rows[(N + 31) / 32];
#pragma unroll
    for (int i = 0; i < (N + 31) / 32; i++)
        rows[i] = codes_row<N>(c, w, q, i * 32 + lane);
    const bool aligned = c.operands.aligned & CALL_ALIGNED_OUT_16;
    if (aligned && !c.out_f32)
        codes_store_rows<N, next, true, false>(c, rows, o, d0);
    else if (aligned)
        codes_store_rows<N, next, true, true>(c, rows, o, d0);
    else if (c.out_f32)
        codes_store_rows<N, next, false, true>(c, rows, o, d0);
    else
        codes_store_rows<N, next, false, false>(c, rows, o, d0);
}

/* The same for parts: dimensions d0 ... d0 + 3, and four `next` further on. Columns without a row
 * are not written, and mla_merge does not read them. */
template <int N, int next>
DEVICE void codes_part(const mla_call &c, const mla_walk &w, const index_sequence &q,
                       const mla_sums<N> &o, int d0, int lane)
{
    const int rows = q.q_len * c.heads - first_row<N>(c, w);
    float *to = part_find<N>(c, w, lane % 4 * 2, d0);
#pragma unroll
    for (int d = 0; d < 8; d++)
#pragma unroll
        for (int i = 0; i < N / 8; i++)
            if (N < MLA_ROWS || i * 8 < rows)
                *(float2 *)(to + (d / 4 * next + d % 4) * 8 + i * PART_EIGHT) =
                    make_float2(o[d / 2][4 * i + 2 * (d % 2)], o[d / 2][4 * i + 2 * (d % 2) + 1]);
}

template <int N> DEVICE void codes_add_up(const mla_call &c, const mla_shared<N> &m)
{
    constexpr int scorers = MLA_CODES_SCORERS;
    const int thread = (int)threadIdx.x - (1 + scorers) * GROUP_THREADS, warp = thread / 32;
    const int lane = thread % 32, d0 = warp * 64 + lane / 4 * 8;
    codes_lane mine;
    mine.find(lane, d0);
    ring<MLA_CODES_STAGES(N)> at;
    ring<2> part;
    mla_sums<N> o;
    begin_rows(c, ELEMENT_E4M3, thread);
    mla_walk w;
    for (bool has_unit = walk_begin(c, w); has_unit; has_unit = walk_next(c, w)) {
        index_sequence q;
        for (int t = w.t0; t < w.t1; t += scorers) {
            const mla_shared<N> from = part_buffer<N, MLA_CODES_P(N)>(m, part.slot);
#pragma unroll
            for (int i = 0; i < scorers; i++) {
                if (t + i >= w.t1)
                    break;
                const unsigned tile = m.tiles + at.slot * MLA_CODES_TILE;
                barrier_wait(m.full + 8 * at.slot, at.phase);
                codes_add<N>(o, from.p + i * MLA_SHARED_P(N), mine, tile, m.empty + 8 * at.slot,
                             t + i > w.t0, [&] {
                                 if (i > 0)
                                     return;
                                 barrier_wait(from.p_full, part.phase);
                                 fence_async_shared();
                                 if (t > w.t0)
                                     multiply<N>(o, from, lane);
                             });
                at.advance();
            }
            barrier_arrive(from.p_empty);
            part.advance();
        }
        const mla_shared<N> from = part_buffer<N, MLA_CODES_P(N)>(m, part.slot);
        barrier_wait(from.p_full, part.phase);
        multiply<N>(o, from, lane);
        barrier_arrive(from.p_empty);
        part.advance();
        walk_sequence_again(c, w, &q);
        if (walk_whole(w))
            codes_out<N, 4>(c, w, q, o, d0, lane);
        else
            codes_part<N, 4>(c, w, q, o, d0, lane);
    }
}

/* ---- Kernel ---------------------------------------------------------------------------------- */

template <int N, bool coded = false> struct codes_roles {
    static constexpr int rows = N, stages = MLA_CODES_STAGES(N), scorers = MLA_CODES_SCORERS;
    static constexpr int buffers = 2, turns = 0;
    static constexpr int fillers = GROUP_THREADS, raws = 0;
    static constexpr int feeding = N < 32 ? 56 : 48, scoring = 104;
    static constexpr int adding = N < 32 ? 104 : 112;

    MLA_ROLES(codes_find<N>(memory), (codes_feed_boxes<N, stages, codes_tile>(c, m)),
              (codes_score<N, coded>(c, m)), codes_add_up<N>(c, m))
};

#define MLA_ATTEND_CODES(N) MLA_KERNEL(mla_attend_codes_##N, MLA_CODES_THREADS, codes_roles<N>)

#define MLA_ATTEND_CODED_FEW(N)                                                                    \
    MLA_KERNEL(mla_attend_coded_##N, MLA_CODES_THREADS, codes_roles<N, true>)

#endif /* FLASHMLA_LIKE_ATTEND_CODES_CUH */
