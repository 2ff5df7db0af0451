/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_coded.cuh: 64 query rows of e4m3 over tiles of 64 latents of e4m3. Scores are products of
 * the codes as they lie. Values are widened in registers, as in attend_codes.cuh, with dimensions as
 * rows and 64 queries as columns:
 *
 *   S[64 x 64]   = Q K^T               18 products of codes
 *   O^T[512 x N] += V^T[512 x 64] P^T  32 products of fp16
 *
 * No tile is widened in shared memory, so there is room for four. With fewer query rows the rest of
 * the 64 are zeros.
 */
#ifndef FLASHMLA_LIKE_ATTEND_CODED_CUH
#define FLASHMLA_LIKE_ATTEND_CODED_CUH

#include "plugins/flashmla_like/kernels/attend_rows.cuh"

#define CODED_STEPS  (MLA_DIM / 32) /* products of codes */
#define CODED_HELD   4              /* the last of these have queries in registers */
#define CODED_SCORES (MLA_TILE / 2) /* of a thread */
#define CODED_AHEAD  2              /* pairs of products with values in flight */

/* The same tile for loaders with few registers. */
struct coded_tile : codes_tile {
    static constexpr int unrolled = 1;
};

/* ---- Shared memory --------------------------------------------------------------------------- */

DEVICE mla_shared<ROWS> coded_find(unsigned char *memory)
{
    mla_shared<ROWS> m;
    m.q = shared_address(memory);
    m.tiles = m.q + MLA_CODES_TILE;
    m.p = m.tiles + MLA_CODED_STAGES * MLA_CODES_TILE;
    m.exchange = m.q_scale = 0;
    m.factor = (float *)(memory + (m.p - m.q) + 2 * MLA_SHARED_P(ROWS));
    m.lo = (int *)(m.factor + 2 * ROWS);
    m.hi = m.lo + ROWS;
    m.full = shared_address(m.hi + ROWS);
    m.empty = m.full + 8 * MLA_CODED_STAGES;
    m.p_full = m.empty + 8 * MLA_CODED_STAGES;
    m.p_empty = m.p_full + 16;
    return m;
}

/* ---- Warpgroup 1: scores --------------------------------------------------------------------- */

typedef unsigned coded_held[CODED_HELD][4];

/* Load half of row n of the block, every other 16 codes; zeros if the row does not exist. */
template <bool aligned>
DEVICE void coded_load_query(const mla_call &c, const index_sequence &q, unsigned to, int row,
                             int n, int half)
{
    constexpr int unrolled = aligned ? MLA_LORA / 32 : 1;
    const bool there = row < q.q_len * c.heads;
    const int at = there ? row : 0, head = at % c.heads;
    const i64 token = q.first_row + at / c.heads;
    const char *nope = (const char *)c.operands.q + token * c.operands.q_row +
                       head * c.operands.q_head + half * 16;
    const char *pe = (const char *)c.q_pe + token * c.q_pe_row + head * c.q_pe_head + half * 16;
    const int lora = there ? c.lora - half * 16 : 0, rope = there ? c.rope - half * 16 : 0;
#pragma unroll(unrolled)
    for (int d = 0; d < MLA_LORA; d += 32)
        codes_copy(to + codes_tile::place(n, d / 16 + half), nope + d, d < lora ? 16 : 0, aligned);
#pragma unroll(unrolled)
    for (int d = 0; d < MLA_ROPE; d += 32)
        codes_copy(to + codes_tile::place(n, (MLA_LORA + d) / 16 + half), pe + d, d < rope ? 16 : 0,
                   aligned);
}

/* Load queries as panels of codes, and the ranges of keys that rows see. */
DEVICE void coded_load_queries(const mla_call &c, const mla_walk &w, const index_sequence &q,
                               const mask_rule &rule, const mla_shared<ROWS> &m)
{
    const int thread = thread_here() - GROUP_THREADS, n = thread / 2,
              row = first_row<ROWS>(c, w) + n;
    if (c.operands.aligned & CALL_ALIGNED_Q)
        coded_load_query<true>(c, q, m.q, row, n, thread % 2);
    else
        coded_load_query<false>(c, q, m.q, row, n, thread % 2);
    if (thread < ROWS)
        row_seen<ROWS>(c, w, q, rule, thread, m.lo + thread, m.hi + thread);
    copy_wait();
    fence_async_shared();
    named_sync(1, GROUP_THREADS);
}

/* A lane's part of the last queries, as the first operand of products. */
DEVICE void coded_hold(coded_held &held, const mla_shared<ROWS> &m, int warp, int lane)
{
#pragma unroll
    for (int i = 0; i < CODED_HELD; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            held[i][k] =
                shared_load_word(m.q +
                                 codes_tile::place(row_of(warp, lane, k % 2),
                                                   (CODED_STEPS - CODED_HELD + i) * 2 + k / 2) +
                                 lane % 4 * 4);
}

template <int first, int end>
DEVICE void coded_multiply_steps(float (&s)[CODED_SCORES], const coded_held &held,
                                 const mla_shared<ROWS> &m, unsigned tile)
{
    const unsigned long long a = matrix_descriptor(unknown(m.q), 16, 8 * ROW_BYTES);
    const unsigned long long b = matrix_descriptor(tile, 16, 8 * ROW_BYTES);
    wgmma_fence();
#pragma unroll
    for (int i = first; i < end; i++) {
        const unsigned far = i / 4 * CODES_PANEL + i % 4 * 32;
        if (i < CODED_STEPS - CODED_HELD)
            codes_product<ROWS>(s, descriptor_advance(a, far), descriptor_advance(b, far), i > 0);
        else
            wgmma_rs_e4m3(s, held[i - (CODED_STEPS - CODED_HELD)], descriptor_advance(b, far),
                          i > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(s);
}

/* `ratio`: the scale of q_nope divided by that of q_pe. The caller applies that of q_pe to sums. */
DEVICE void coded_scores(float (&s)[CODED_SCORES], const coded_held &held,
                         const mla_shared<ROWS> &m, unsigned tile, float ratio)
{
    if (ratio == 1.0f) {
        coded_multiply_steps<0, CODED_STEPS>(s, held, m, tile);
        return;
    }
    coded_multiply_steps<0, MLA_LORA / 32>(s, held, m, tile);
#pragma unroll
    for (int i = 0; i < CODED_SCORES; i++)
        s[i] *= ratio;
    coded_multiply_steps<MLA_LORA / 32, CODED_STEPS>(s, held, m, tile);
}

DEVICE void coded_hide(float (&s)[CODED_SCORES], const mla_shared<ROWS> &m, int j, int warp,
                       int lane)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int n = row_of(warp, lane, r);
        rows_hide_row(s, r, m.lo[n], m.hi[n], j);
    }
}

DEVICE void coded_score(const mla_call &c, const mla_shared<ROWS> &m)
{
    const int thread = (int)threadIdx.x - GROUP_THREADS, warp = thread / 32, lane = thread % 32;
    const mask_rule rule = plan_rule(&c);
    const float cache_scale = codes_scale(c);
    const float2 of_queries = coded_query_scales(c);
    const float ratio = of_queries.x / of_queries.y;
    const float scale = cache_scale * of_queries.y * (c.sm_scale * SOFTMAX_LOG2E);
    const float sign = scale > 0 ? 1.0f : scale < 0 ? -1.0f : scale;
    const float one = scale != 0 ? fabsf(scale) : 1.0f, size[2] = {one, one};
    ring<MLA_CODED_STAGES> at;
    ring<2> part;
    mla_walk w;
    for (bool has_unit = walk_begin(c, w); has_unit; has_unit = walk_next(c, w)) {
        index_sequence q;
        coded_held held;
        mla_rows rows = {{SOFTMAX_EMPTY, SOFTMAX_EMPTY}, {0, 0}};
        int lo, least_hi;
        walk_sequence(c, w, &q);
        coded_load_queries(c, w, q, rule, m);
        coded_hold(held, m, warp, lane);
        all_see<ROWS>(c, w, q, m, &lo, &least_hi);
        int j = (w.u.first_tile + w.t0) * MLA_TILE;
        for (int t = w.t1 - w.t0; t > 0; t--) {
            float s[CODED_SCORES], factor[2];
            barrier_wait(m.full + 8 * at.slot, at.phase);
            fence_async_shared();
            coded_scores(s, held, m, m.tiles + at.slot * MLA_CODES_TILE, ratio);
            release(m.empty + 8 * at.slot);
            at.advance();
            if (sign != 1.0f)
#pragma unroll
                for (int i = 0; i < CODED_SCORES; i++)
                    s[i] *= sign;
            if (j < lo || j + MLA_TILE > least_hi)
                coded_hide(s, m, j + lane % 4 * 2, warp, lane);
            rows_softmax(s, rows, factor, size, ROWS_P_LOG2);
            const mla_shared<ROWS> to = part_buffer<ROWS, MLA_SHARED_P(ROWS)>(m, part.slot);
            barrier_wait(to.p_empty, part.phase ^ 1);
            rows_store<true>(s, factor, to, warp, lane);
            fence_async_shared();
            barrier_arrive(to.p_full);
            part.advance();
            j += MLA_TILE;
        }
        walk_again(c, w);
        walk_sequence(c, w, &q);
        const mla_shared<ROWS> to = part_buffer<ROWS, MLA_SHARED_P(ROWS)>(m, part.slot);
        barrier_wait(to.p_empty, part.phase ^ 1);
        rows_finish(c, w, q, rows, to, 1 / ROWS_P_SCALE, cache_scale, warp, lane);
        barrier_arrive(to.p_full);
        part.advance();
        named_sync(1, GROUP_THREADS); /* no warp needs the queries any more */
    }
}

/* ---- Warpgroups 2 and 3: values -------------------------------------------------------------- */

DEVICE float2 coded_factors(const mla_shared<ROWS> &m, int i, int lane)
{
    float2 f;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(f.x), "=f"(f.y)
                 : "r"(shared_address(m.factor) + (i * 8 + lane % 4 * 2) * 4)
                 : "memory");
    return f;
}

DEVICE void coded_multiply(mla_sums<ROWS> &o, const mla_shared<ROWS> &m, int lane)
{
    bool same = true;
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++) {
        const float2 f = coded_factors(m, i, lane);
        same = same && f.x == 1.0f && f.y == 1.0f;
    }
    if (__all_sync(~0u, same))
        return;
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++) {
        const float2 f = coded_factors(m, i, lane);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            scale_columns(o[n] + 4 * i, f);
        }
    }
}

/* Multiply a tile's values: two products at a time, while the next two are converted. */
template <class wait>
DEVICE void coded_add(mla_sums<ROWS> &o, unsigned p, const codes_lane &mine, unsigned tile,
                      unsigned empty, int add, const wait &ready)
{
    constexpr int steps = MLA_TILE / 16;
    const unsigned long long b = matrix_descriptor(p, 16, 8 * ROW_BYTES);
    codes_values v = mine.load(tile, 0);
    unsigned a[CODED_AHEAD][2][4];
#pragma unroll
    for (int i = 0; i < 2 * steps; i++) {
        const int half = i % 2;
        unsigned(&now)[2][4] = a[i % CODED_AHEAD];
        if (i >= CODED_AHEAD)
            wgmma_wait<CODED_AHEAD - 1>();
        codes_widen_values(v, half, now);
        if (half && i + 1 < 2 * steps)
            v = mine.load(tile, i / 2 * 16 + 16);
        if (i + 1 == 2 * steps)
            release(empty);
        if (i == 0)
            ready();
        wgmma_fence();
#pragma unroll
        for (int n = 0; n < 2; n++)
            wgmma_rs<ROWS, true, 0>(o[2 * half + n], now[n], descriptor_advance(b, i / 2 * 32),
                                    i > 1 ? 1 : add);
        wgmma_commit();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int n = 0; n < 4; n++)
        wgmma_arrived(o[n]);
}

DEVICE void coded_add_up(const mla_call &c, const mla_shared<ROWS> &m)
{
    const int thread = (int)threadIdx.x - 2 * GROUP_THREADS, warp = thread / 32;
    const int lane = thread % 32, d0 = warp * 64 + lane / 4 * 8;
    codes_lane mine;
    mine.find(lane, d0);
    ring<MLA_CODED_STAGES> at;
    ring<2> part;
    mla_sums<ROWS> o;
    begin_rows(c, ELEMENT_E4M3, thread);
    mla_walk w;
    for (bool has_unit = walk_begin(c, w); has_unit; has_unit = walk_next(c, w)) {
        index_sequence q;
        for (int more = w.t1 - w.t0, add = 0; more > 0; more--, add = 1) {
            const mla_shared<ROWS> from = part_buffer<ROWS, MLA_SHARED_P(ROWS)>(m, part.slot);
            barrier_wait(m.full + 8 * at.slot, at.phase);
            coded_add(o, from.p, mine, m.tiles + at.slot * MLA_CODES_TILE, m.empty + 8 * at.slot,
                      add, [&] {
                          barrier_wait(from.p_full, part.phase);
                          fence_async_shared();
                          if (add)
                              coded_multiply(o, from, lane);
                      });
            barrier_arrive(from.p_empty);
            part.advance();
            at.advance();
        }
        const mla_shared<ROWS> from = part_buffer<ROWS, MLA_SHARED_P(ROWS)>(m, part.slot);
        barrier_wait(from.p_full, part.phase);
        coded_multiply(o, from, lane);
        barrier_arrive(from.p_empty);
        part.advance();
        walk_again(c, w);
        walk_sequence(c, w, &q);
        if (walk_whole(w))
            codes_out<ROWS, 4>(c, w, q, o, d0, lane);
        else
            codes_part<ROWS, 4>(c, w, q, o, d0, lane);
    }
}

/* ---- Kernel ---------------------------------------------------------------------------------- */

struct coded_roles {
    static constexpr int rows = ROWS, stages = MLA_CODED_STAGES;
    static constexpr int feeding = 40, scoring = 120, adding = 176;
    static constexpr int scorers = 1, buffers = 2, turns = 0;
    static constexpr int fillers = GROUP_THREADS, raws = 0;

    MLA_ROLES(coded_find(memory), (codes_feed_boxes<ROWS, stages, coded_tile>(c, m)),
              coded_score(c, m), coded_add_up(c, m))
};

#define MLA_ATTEND_CODED(name) MLA_KERNEL(name, MLA_THREADS, coded_roles)

#endif /* FLASHMLA_LIKE_ATTEND_CODED_CUH */
