/* SPDX-License-Identifier: Apache-2.0
 *
 * attend.cuh: N query rows, at most 32, over tiles of 64 latents. Tokens are the 64 rows of a
 * product and queries its columns, so that 8 or 16 heads are not padded to 64:
 *
 *   S^T[64 x N]  = K[64 x 576] Q^T      K as it lies, 36 products
 *   O^T[512 x N] += V^T[512 x 64] P^T   V: the first 512 elements of the same tile, read across
 *
 * Warpgroups: 0 loads tiles (cp.async, 16 bytes a lane, whatever the size of a page is), 1 computes
 * scores and probabilities, 2 and 3 add up 256 dimensions of the output each.
 */
#ifndef FLASHMLA_LIKE_ATTEND_CUH
#define FLASHMLA_LIKE_ATTEND_CUH

#include "plugins/flashmla_like/kernels/block.cuh"

#define PANEL_TILE (MLA_TILE * ROW_BYTES) /* bytes of a panel of a tile */

/* ---- Shared memory --------------------------------------------------------------------------- */

template <int N> DEVICE mla_shared<N> shared_find(unsigned char *memory)
{
    mla_shared<N> m;
    m.q = shared_address(memory);
    m.tiles = m.q + MLA_SHARED_Q(N);
    m.p = m.tiles + MLA_STAGES * MLA_SHARED_TILE;
    m.exchange =
        (float *)(memory + MLA_SHARED_Q(N) + MLA_STAGES * MLA_SHARED_TILE + MLA_SHARED_P(N));
    m.factor = m.exchange + 4 * N;
    m.q_scale = 0;
    m.lo = (int *)(m.factor + N);
    m.hi = m.lo + N;
    m.full = shared_address(m.hi + 2 * N);
    m.empty = m.full + 8 * MLA_STAGES;
    m.p_full = m.empty + 8 * MLA_STAGES;
    m.p_empty = m.p_full + 8;
    return m;
}

/* ---- Warpgroup 0: tiles ------------------------------------------------------------------------ */

template <int N> DEVICE void feed(const mla_call &c, const mla_shared<N> &m)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int both = CALL_ALIGNED_CACHE | CALL_ALIGNED_NEW;
    const bool aligned = (c.operands.aligned & both) == both;
    feed_tiles<N, MLA_TILE, MLA_STAGES>(
        c, m, warp * (MLA_TILE / 4) + lane % (MLA_TILE / 4),
        [&](const index_sequence &q, int lo, int hi, int j, int entry) {
            return find_line_source(c, q, lo, hi, j, entry);
        },
        [&](const mla_source &now, int slot, unsigned full) {
            const unsigned tile = m.tiles + slot * MLA_SHARED_TILE;
            if (aligned && source_whole(c, now))
                load_whole<MLA_TILE>(now, tile, warp, lane);
            else
                load_tile<MLA_TILE>(c, now, tile, warp, lane, aligned);
            if (aligned)
                copy_arrive(full);
            else
                barrier_arrive(full);
        });
    copy_wait();
}

/* ---- Warpgroup 1: scores --------------------------------------------------------------------- */

/* Load 16 bytes of each panel of row n of the block; zeros if the row does not exist. */
template <int N>
DEVICE void load_query(const mla_call &c, const index_sequence &q, const mla_shared<N> &m, int row,
                       int n, int piece, bool aligned)
{
    const int there = row < q.q_len * c.heads;
    const row_place at = row_find(c, q, there ? row : 0);
    const i64 token = q.first_row + at.query;
    const char *nope = (const char *)c.operands.q + token * c.operands.q_row +
                       at.head * c.operands.q_head + piece * 16;
    const char *pe = (const char *)c.q_pe + token * c.q_pe_row + at.head * c.q_pe_head + piece * 16;
    const int lora = there ? c.lora - piece * 8 : 0, rope = there ? c.rope - piece * 8 : 0;
    const unsigned to = m.q + swizzled(n, piece);
    if (aligned) {
#pragma unroll
        for (int p = 0; p < PANELS - 1; p++)
            copy_async(to + p * (N * ROW_BYTES), nope + p * ROW_BYTES, p * PANEL < lora ? 16 : 0);
        copy_async(to + (PANELS - 1) * (N * ROW_BYTES), pe, rope > 0 ? 16 : 0);
    } else {
#pragma unroll 1
        for (int p = 0; p < PANELS - 1; p++)
            copy_slow(to + p * (N * ROW_BYTES), nope + p * ROW_BYTES, p * PANEL < lora);
        copy_slow(to + (PANELS - 1) * (N * ROW_BYTES), pe, rope > 0);
    }
}

/* Load the queries, and the ranges of keys that their rows see. */
template <int N, int threads = GROUP_THREADS>
DEVICE void load_queries(const mla_call &c, const mla_walk &w, const index_sequence &q,
                         const mla_shared<N> &m, int thread)
{
    const mask_rule rule = plan_rule(&c);
    const bool aligned = c.operands.aligned & CALL_ALIGNED_Q;
    for (int n = thread / 8; n < N; n += threads / 8)
        load_query<N>(c, q, m, first_row<N>(c, w) + n, n, thread % 8, aligned);
    if (thread < N)
        row_seen<N>(c, w, q, rule, thread, m.lo + thread, m.hi + thread);
    copy_wait();
    fence_async_shared();
    named_sync(1, threads);
}

/* A thread's part of N / 4 columns: its column 2 i + e is 8 i + lane % 4 * 2 + e. */
template <int N> struct mla_columns {
    float top[N / 4], sum[N / 4];
};

DEVICE float eight_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}

DEVICE float eight_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 4);
    x += __shfl_xor_sync(~0u, x, 8);
    return x + __shfl_xor_sync(~0u, x, 16);
}

template <int N> DEVICE void scores(float (&s)[N / 2], const mla_shared<N> &m, unsigned tile)
{
    const unsigned long long a = matrix_descriptor(tile, 16, 8 * ROW_BYTES);
    const unsigned long long b = matrix_descriptor(m.q, 16, 8 * ROW_BYTES);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < MLA_DIM / 16; i++)
        wgmma_ss<N, false, 0>(s, descriptor_advance(a, i / 4 * PANEL_TILE + i % 4 * 32),
                              descriptor_advance(b, i / 4 * (N * ROW_BYTES) + i % 4 * 32), i > 0);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(s);
}

/* Hide keys that rows do not see; `j` is the key of s[0]. */
template <int N> DEVICE void hide(float (&s)[N / 2], const mla_shared<N> &m, int j, int lane)
{
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int n = i * 8 + lane % 4 * 2 + e, lo = m.lo[n], hi = m.hi[n];
            s[4 * i + e] = lo <= j && j < hi ? s[4 * i + e] : SOFTMAX_EMPTY;
            s[4 * i + 2 + e] = lo <= j + 8 && j + 8 < hi ? s[4 * i + 2 + e] : SOFTMAX_EMPTY;
        }
}

/* The maximum of each column over all warps, into `top`. */
template <int N, int warps = 4>
DEVICE void exchange_max(float (&top)[N / 4], const mla_shared<N> &m, int warp, int lane)
{
#pragma unroll
    for (int k = 0; k < N / 4; k++)
        top[k] = eight_max(top[k]);
    if (lane < 4)
#pragma unroll
        for (int i = 0; i < N / 8; i++)
            *(float2 *)(m.exchange + warp * N + i * 8 + lane * 2) =
                make_float2(top[2 * i], top[2 * i + 1]);
    named_sync(1, warps * 32);
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int other = 0; other < warps; other++) {
            float2 x = *(const float2 *)(m.exchange + other * N + i * 8 + lane % 4 * 2);
            top[2 * i] = fmaxf(top[2 * i], x.x);
            top[2 * i + 1] = fmaxf(top[2 * i + 1], x.y);
        }
}

/* Store two or four 8 x 8 matrices of tokens by queries as rows of queries. */
template <int N, bool is_f16 = false>
DEVICE void store_turned(unsigned p, const float (&s)[N / 2], int warp, int lane)
{
    const int piece = warp * 2 + lane / 8 % 2;
#pragma unroll
    for (int i = 0; i < N / 8; i += 2) {
        int n = (i + lane / 16) * 8 + lane % 8;
        unsigned a = pack_pair<is_f16>(s[4 * i], s[4 * i + 1]);
        unsigned b = pack_pair<is_f16>(s[4 * i + 2], s[4 * i + 3]);
        if (N == 8) {
            unsigned to = p + swizzled(lane % 8, piece);
            asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to),
                         "r"(a), "r"(b)
                         : "memory");
        } else {
            unsigned d = pack_pair<is_f16>(s[(4 * i + 4) % (N / 2)], s[(4 * i + 5) % (N / 2)]);
            unsigned e = pack_pair<is_f16>(s[(4 * i + 6) % (N / 2)], s[(4 * i + 7) % (N / 2)]);
            asm volatile(
                "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                    p + swizzled(n, piece)),
                "r"(a), "r"(b), "r"(d), "r"(e)
                : "memory");
        }
    }
}

/* The probabilities of a tile, in `s`, and the factor that rescales earlier outputs, in
 * `factor`. */
template <int N, int warps = 4>
DEVICE void softmax(float (&s)[N / 2], mla_columns<N> &columns, float (&factor)[N / 4],
                    const mla_shared<N> &m, int warp, int lane)
{
    float top[N / 4];
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            top[2 * i + e] = fmaxf(columns.top[2 * i + e], fmaxf(s[4 * i + e], s[4 * i + 2 + e]));
    exchange_max<N, warps>(top, m, warp, lane);
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int k = 2 * i + e;
            float base = softmax_base(top[k]);
            factor[k] = softmax_exp2(columns.top[k] - base);
            s[4 * i + e] = softmax_exp2(s[4 * i + e] - base);
            s[4 * i + 2 + e] = softmax_exp2(s[4 * i + 2 + e] - base);
            columns.sum[k] = columns.sum[k] * factor[k] + (s[4 * i + e] + s[4 * i + 2 + e]);
            columns.top[k] = top[k];
        }
}

template <int N>
DEVICE void store_factors(const float (&factor)[N / 4], const mla_shared<N> &m, int warp, int lane)
{
    if (warp == 0 && lane < 4)
#pragma unroll
        for (int i = 0; i < N / 8; i++)
            *(float2 *)(m.factor + i * 8 + lane * 2) =
                make_float2(factor[2 * i], factor[2 * i + 1]);
}

/* The column that a lane of warp 0 finishes, one of those that lanes with the same number modulo 4
 * hold. N lanes finish one each. */
DEVICE int finish_column(int lane)
{
    return lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2;
}

/* Add the columns' sums over all warps, include the sink, and write the LSE. Returns the final
 * factor of the sums of values, in the lane of warp 0 that finishes the column: code for each
 * column would have to come from memory. */
template <int N, int warps = 4>
DEVICE float finish(const mla_call &c, const mla_walk &w, const index_sequence &q,
                    mla_columns<N> &columns, const mla_shared<N> &m, int warp, int lane)
{
    named_sync(1, warps * 32);
#pragma unroll
    for (int k = 0; k < N / 4; k++)
        columns.sum[k] = eight_sum(columns.sum[k]);
    if (lane < 4)
#pragma unroll
        for (int i = 0; i < N / 8; i++)
            *(float2 *)(m.exchange + warp * N + i * 8 + lane * 2) =
                make_float2(columns.sum[2 * i], columns.sum[2 * i + 1]);
    named_sync(1, warps * 32);
    if (warp > 0 || lane >= N)
        return 0;
    const int first = first_row<N>(c, w), rows = q.q_len * c.heads, n = finish_column(lane);
    softmax_row row = {columns.top[0], 0};
#pragma unroll
    for (int k = 1; k < N / 4; k++) {
        const float top = columns.top[k];
        row.top = lane / 4 == k ? +top : +row.top;
    }
#pragma unroll
    for (int other = 0; other < warps; other++)
        row.sum += m.exchange[other * N + n];
    if (!walk_whole(w)) {
        c.part_lse[part_place(c, w) * N + n] = softmax_lse(&row);
        return softmax_end(&row);
    }
    const int valid = first + n < rows, r = valid ? first + n : 0;
    float shrink = 1;
    if (c.operands.sinks)
        softmax_take(&row, c.operands.sinks[row_find(c, q, r).head] * SOFTMAX_LOG2E, &shrink);
    const float factor = softmax_end(&row) * shrink;
    if (c.operands.lse && valid)
        *row_lse(c, q, r) = softmax_lse(&row);
    return factor;
}

/* Store the final factors, from the lanes in which finish() left them. */
template <int N> DEVICE void store_last(float factor, const mla_shared<N> &m, int warp, int lane)
{
    if (warp == 0 && lane < N)
        m.factor[finish_column(lane)] = factor;
}

template <int N> DEVICE void columns_begin(mla_columns<N> &columns)
{
#pragma unroll
    for (int k = 0; k < N / 4; k++) {
        columns.top[k] = SOFTMAX_EMPTY;
        columns.sum[k] = 0;
    }
}

template <int N> DEVICE void score(const mla_call &c, const mla_shared<N> &m)
{
    const int thread = (int)threadIdx.x - GROUP_THREADS, warp = thread / 32, lane = thread % 32;
    const float scale = c.sm_scale * SOFTMAX_LOG2E;
    ring<MLA_STAGES> at;
    unsigned p_phase = 1;
    mla_walk w;
    for (bool has_unit = walk_begin(c, w); has_unit; has_unit = walk_next(c, w)) {
        index_sequence q;
        mla_columns<N> columns;
        float factor[N / 4], s[N / 2];
        int lo, least_hi;
        walk_sequence(c, w, &q);
        load_queries<N>(c, w, q, m, thread);
        all_see<N>(c, w, q, m, &lo, &least_hi);
        columns_begin<N>(columns);
        for (int t = w.t0; t < w.t1; t++) {
            int j = (w.u.first_tile + t) * MLA_TILE;
            barrier_wait(m.full + 8 * at.slot, at.phase);
            fence_async_shared();
            scores<N>(s, m, m.tiles + at.slot * MLA_SHARED_TILE);
            release(m.empty + 8 * at.slot);
            at.advance();
#pragma unroll
            for (int i = 0; i < N / 2; i++)
                s[i] *= scale;
            if (j < lo || j + MLA_TILE > least_hi)
                hide<N>(s, m, j + warp * 16 + lane / 4, lane);
            softmax<N>(s, columns, factor, m, warp, lane);
            barrier_wait(m.p_empty, p_phase);
            p_phase ^= 1;
            store_turned<N>(m.p, s, warp, lane);
            store_factors<N>(factor, m, warp, lane);
            fence_async_shared();
            barrier_arrive(m.p_full);
            named_sync(1, GROUP_THREADS);
        }
        const float last = finish<N>(c, w, q, columns, m, warp, lane);
        barrier_wait(m.p_empty, p_phase);
        p_phase ^= 1;
        store_last<N>(last, m, warp, lane);
        barrier_arrive(m.p_full);
    }
}

/* ---- Warpgroups 2 and 3: values -------------------------------------------------------------- */

template <int N> using mla_sums = float[4][N / 2];

template <int N>
DEVICE void add_values(mla_sums<N> &o, const mla_shared<N> &m, unsigned tile, int add)
{
    const unsigned long long b = matrix_descriptor(m.p, 16, 8 * ROW_BYTES);
    wgmma_fence();
#pragma unroll
    for (int panel = 0; panel < 4; panel++) {
        const unsigned long long a =
            matrix_descriptor(tile + panel * PANEL_TILE, PANEL_TILE, 8 * ROW_BYTES);
#pragma unroll
        for (int i = 0; i < MLA_TILE / 16; i++)
            wgmma_ss<N, false, 0, 1>(o[panel], descriptor_advance(a, i * 16 * ROW_BYTES),
                                     descriptor_advance(b, i * 32), i > 0 ? 1 : add);
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int panel = 0; panel < 4; panel++)
        wgmma_arrived(o[panel]);
}

/* Two columns of two rows. */
DEVICE void scale_columns(float *s, float2 by)
{
    s[0] *= by.x;
    s[1] *= by.y;
    s[2] *= by.x;
    s[3] *= by.y;
}

template <int N> DEVICE void multiply(mla_sums<N> &o, const mla_shared<N> &m, int lane)
{
    float2 f[N / 8];
    bool same = true;
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        f[i] = *(const float2 *)(m.factor + i * 8 + lane % 4 * 2);
        same = same && f[i].x == 1.0f && f[i].y == 1.0f;
    }
    if (__all_sync(~0u, same))
        return;
#pragma unroll
    for (int panel = 0; panel < 4; panel++)
#pragma unroll
        for (int i = 0; i < N / 8; i++) {
            scale_columns(o[panel] + 4 * i, f[i]);
        }
}

/* Apply the final factors. They are 0 for rows without weights, whose infinite values would become
 * NaN: such a row is set to 0 (MEAN-14). Latents in fp8 have no infinite values. */
template <int N> DEVICE void clear_lost(mla_sums<N> &o, const mla_shared<N> &m, int lane)
{
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        const float2 f = *(const float2 *)(m.factor + i * 8 + lane % 4 * 2);
        if (__builtin_expect(f.x == 0.0f || f.y == 0.0f, 0))
#pragma unroll
            for (int panel = 0; panel < 4; panel++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    o[panel][4 * i + k] = (k % 2 ? f.y : f.x) == 0.0f ? 0.0f : o[panel][4 * i + k];
    }
}

DEVICE unsigned turn_matrix(unsigned x)
{
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(x));
    return x;
}

/* Outputs of whole units in fp32: eight lanes have neighbouring dimensions of a row. */
template <int N>
DEVICE void store_wide(const mla_call &c, const mla_walk &w, const index_sequence &q,
                       const mla_sums<N> &o, int d0, int lane)
{
    const int first = first_row<N>(c, w), rows = q.q_len * c.heads;
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int r = first + i * 8 + lane % 4 * 2 + e;
            if (r >= rows)
                continue;
            float *to = (float *)row_out(c, q, r) + d0 + lane / 4;
#pragma unroll
            for (int panel = 0; panel < 4; panel++)
                if (d0 + panel * 64 < c.lora) {
                    to[panel * 64] = o[panel][4 * i + e];
                    to[panel * 64 + 8] = o[panel][4 * i + 2 + e];
                }
        }
}

/* Outputs of whole units in bf16: 8 x 8 matrices are transposed, so that a lane has two dimensions
 * of a row. */
template <int N>
DEVICE void store_outputs(const mla_call &c, const mla_walk &w, const index_sequence &q,
                          const mla_sums<N> &o, int d0, int lane)
{
    const int first = first_row<N>(c, w), rows = q.q_len * c.heads;
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        int r = first + i * 8 + lane / 4;
        char *to = row_out(c, q, r) + (d0 + lane % 4 * 2) * 2;
#pragma unroll
        for (int panel = 0; panel < 4; panel++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                unsigned x = turn_matrix(
                    pack_pair<false>(o[panel][4 * i + 2 * e], o[panel][4 * i + 2 * e + 1]));
                char *at = to + (panel * 64 + e * 8) * 2;
                if (r >= rows || d0 + panel * 64 >= c.lora)
                    continue;
                if (c.operands.aligned & CALL_ALIGNED_OUT) {
                    *(any32 *)at = x;
                } else {
                    ((any16 *)at)[0] = (u16)x;
                    ((any16 *)at)[1] = (u16)(x >> 16);
                }
            }
    }
}

template <int N>
DEVICE void store_part(const mla_call &c, const mla_walk &w, const mla_sums<N> &o, int d0, int lane)
{
    float *to = part_find<N>(c, w, lane % 4 * 2, d0 + lane / 4);
#pragma unroll
    for (int panel = 0; panel < 4; panel++)
#pragma unroll
        for (int i = 0; i < N / 8; i++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                *(float2 *)(to + (panel * 64 + e * 8) * 8 + i * PART_EIGHT) =
                    make_float2(o[panel][4 * i + 2 * e], o[panel][4 * i + 2 * e + 1]);
}

template <int N> DEVICE void add_up(const mla_call &c, const mla_shared<N> &m)
{
    const int thread = (int)threadIdx.x - 2 * GROUP_THREADS, group = thread / GROUP_THREADS;
    const int warp = thread % GROUP_THREADS / 32, lane = thread % 32, d0 = group * 256 + warp * 16;
    ring<MLA_STAGES> at;
    unsigned p_phase = 0;
    mla_sums<N> o;
    begin_rows(c, ELEMENT_BF16, thread);
    mla_walk w;
    for (bool has_unit = walk_begin(c, w); has_unit; has_unit = walk_next(c, w)) {
        index_sequence q;
        for (int t = w.t0; t < w.t1; t++) {
            barrier_wait(m.p_full, p_phase);
            p_phase ^= 1;
            fence_async_shared();
            if (t > w.t0)
                multiply<N>(o, m, lane);
            add_values<N>(o, m, m.tiles + at.slot * MLA_SHARED_TILE + group * 4 * PANEL_TILE,
                          t > w.t0);
            barrier_arrive(m.p_empty);
            release(m.empty + 8 * at.slot);
            at.advance();
        }
        barrier_wait(m.p_full, p_phase);
        p_phase ^= 1;
        multiply<N>(o, m, lane);
        clear_lost<N>(o, m, lane);
        barrier_arrive(m.p_empty);
        if (!walk_whole(w)) {
            store_part<N>(c, w, o, d0, lane);
            continue;
        }
        walk_sequence_again(c, w, &q);
        if (c.out_f32)
            store_wide<N>(c, w, q, o, d0, lane);
        else
            store_outputs<N>(c, w, q, o, d0, lane);
    }
}

/* ---- Kernel ---------------------------------------------------------------------------------- */

/* The roles and registers of the warpgroups of a kernel of N rows. attend_rows.cuh has others for
 * 64 rows, attend_codes.cuh for e4m3. */
template <int N> struct mla_roles {
    static constexpr int rows = N, stages = MLA_STAGES, feeding = 56, scoring = 104;
    static constexpr int adding = N < 32 ? 112 : 176;
    static constexpr int scorers = 1, buffers = 1, turns = 0;
    static constexpr int fillers = GROUP_THREADS, raws = 0;

    MLA_ROLES(shared_find<N>(memory), ::feed<N>(c, m), ::score<N>(c, m), ::add_up<N>(c, m))
};

/* The launch bound. If it exceeds the number of threads, registers remain for blocks of mla_merge,
 * of this call and of the previous one, beside a block. */
#define MLA_ATTEND_BOUND(N) ((N) < 32 ? 640 : MLA_THREADS)

#define MLA_ATTEND(N) MLA_KERNEL(mla_attend_##N, MLA_ATTEND_BOUND(N), mla_roles<N>)

#endif /* FLASHMLA_LIKE_ATTEND_CUH */
