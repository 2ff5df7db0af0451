/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_rows.cuh: 64 query rows over tiles of 64 latents. With so many rows these are the 64 rows
 * of a product, as everywhere; what is loaded, walked and handed over is as in attend.cuh:
 *
 *   S[64 x 64]  = Q K^T      warpgroup 1
 *   O[64 x 256] += P V       warpgroups 2 and 3, half of the dimensions each
 */
#ifndef FLASHMLA_LIKE_ATTEND_ROWS_CUH
#define FLASHMLA_LIKE_ATTEND_ROWS_CUH

#include "plugins/flashmla_like/kernels/attend.cuh"

#define ROWS 64

/* What a thread has of its two rows, lane / 4 of the warp's 16 and 8 further on. */
struct mla_rows {
    float top[2], sum[2];
};

DEVICE int row_of(int warp, int lane, int r)
{
    return warp * 16 + lane / 4 + r * 8;
}

DEVICE void rows_scores(float (&s)[32], const mla_shared<ROWS> &m, unsigned tile)
{
    const unsigned long long a = matrix_descriptor(m.q, 16, 8 * ROW_BYTES);
    const unsigned long long b = matrix_descriptor(tile, 16, 8 * ROW_BYTES);
    products_fence();
#pragma unroll
    for (int i = 0; i < MLA_DIM / 16; i++)
        product_shared<64, 0, 0>(s, descriptor_advance(a, i / 4 * (ROWS * ROW_BYTES) + i % 4 * 32),
                                 descriptor_advance(b, i / 4 * PANEL_TILE + i % 4 * 32), i > 0);
    products_commit();
    products_wait<0>();
    products_arrived(s);
}

/* `j` is the key of s[0]. */
DEVICE void rows_hide(float (&s)[32], const mla_shared<ROWS> &m, int j, int warp, int lane)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int lo = m.lo[row_of(warp, lane, r)], hi = m.hi[row_of(warp, lane, r)];
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int at = j + i * 8 + e;
                float &x = s[4 * i + 2 * r + e];
                x = lo <= at && at < hi ? x : SOFTMAX_EMPTY;
            }
    }
}

DEVICE void rows_softmax(float (&s)[32], mla_rows &rows, float (&factor)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = s[2 * r], sum = 0;
#pragma unroll
        for (int i = 0; i < 8; i++)
            top = fmaxf(top, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
        top = fmaxf(rows.top[r], softmax_quad_max(top));
        float base = softmax_base(top);
        factor[r] = softmax_exp2(rows.top[r] - base);
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &x = s[4 * i + 2 * r + e];
                x = softmax_exp2(x - base);
                sum += x;
            }
        rows.sum[r] = rows.sum[r] * factor[r] + sum;
        rows.top[r] = top;
    }
}

DEVICE void rows_store(const float (&s)[32], const float (&factor)[2], const mla_shared<ROWS> &m,
                       int warp, int lane)
{
    const int row = warp * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int i = 0; i < 8; i += 2)
        store_matrices(m.p + swizzled(row, i + lane / 16), pack_pair<false>(s[4 * i], s[4 * i + 1]),
                       pack_pair<false>(s[4 * i + 2], s[4 * i + 3]),
                       pack_pair<false>(s[4 * i + 4], s[4 * i + 5]),
                       pack_pair<false>(s[4 * i + 6], s[4 * i + 7]));
    if (lane % 4 == 0) {
        m.factor[row_of(warp, lane, 0)] = factor[0];
        m.factor[row_of(warp, lane, 1)] = factor[1];
    }
}

/* What sums are to be multiplied by in the end; LSE are written. */
DEVICE void rows_finish(const mla_call &c, const mla_walk &w, const index_sequence &q,
                        const mla_rows &rows, const mla_shared<ROWS> &m, int warp, int lane)
{
    const int first = first_row<ROWS>(c, w), count = q.q_len * c.heads;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int n = row_of(warp, lane, r), valid = first + n < count;
        const int at = valid ? first + n : 0;
        float shrink = 1;
        softmax_row row = {rows.top[r], softmax_quad_sum(rows.sum[r])};
        if (walk_whole(w) && c.operands.sinks)
            softmax_take(&row, c.operands.sinks[at % c.heads] * SOFTMAX_LOG2E, &shrink);
        if (lane % 4 != 0)
            continue;
        m.factor[n] = softmax_end(&row) * shrink;
        if (!walk_whole(w))
            c.part_lse[part_place(c, w) * ROWS + n] = softmax_lse(&row);
        else if (c.operands.lse && valid)
            *(float *)((char *)c.operands.lse + (q.first_row + at / c.heads) * c.operands.lse_row +
                       at % c.heads * c.operands.lse_head) = softmax_lse(&row);
    }
}

DEVICE void rows_score(const mla_call &c, const mla_shared<ROWS> &m)
{
    const int thread = (int)threadIdx.x - GROUP_THREADS, warp = thread / 32, lane = thread % 32;
    const mask_rule rule = plan_rule(&c);
    const float scale = c.sm_scale * SOFTMAX_LOG2E;
    ring<MLA_STAGES> at;
    unsigned p_phase = 1;
    mla_walk w = walk_begin(c);
    while (walk_next(c, w)) {
        index_sequence q;
        mla_rows rows = {{SOFTMAX_EMPTY, SOFTMAX_EMPTY}, {0, 0}};
        float factor[2], s[32];
        int lo, least_hi;
        index_find_sequence(&c.batch, c.operands.k != 0, w.u.seq, &q);
        load_queries<ROWS>(c, w, q, m, thread);
        seen_by_all<ROWS>(c, w, q, rule, &lo, &least_hi);
        for (int t = w.t0; t < w.t1; t++) {
            int j = (w.u.first_tile + t) * MLA_TILE;
            barrier_wait(m.full + 8 * at.slot, at.phase);
            fence_async_shared();
            rows_scores(s, m, m.tiles + at.slot * MLA_SHARED_TILE);
            release(m.empty + 8 * at.slot);
            at.advance();
#pragma unroll
            for (int i = 0; i < 32; i++)
                s[i] *= scale;
            if (j < lo || j + MLA_TILE > least_hi)
                rows_hide(s, m, j + lane % 4 * 2, warp, lane);
            rows_softmax(s, rows, factor);
            barrier_wait(m.p_empty, p_phase);
            p_phase ^= 1;
            rows_store(s, factor, m, warp, lane);
            fence_async_shared();
            barrier_arrive(m.p_full);
        }
        barrier_wait(m.p_empty, p_phase);
        p_phase ^= 1;
        rows_finish(c, w, q, rows, m, warp, lane);
        barrier_arrive(m.p_full);
        named_sync(1, GROUP_THREADS); /* all have used the queries */
    }
}

/* Sums of 128 dimensions twice: ptxas, which counts 128 registers for each thread of the launch,
 * refuses a product of 256 columns. */
DEVICE void rows_multiply(float (&o)[2][64], const mla_shared<ROWS> &m, int warp, int lane)
{
    const float a = m.factor[row_of(warp, lane, 0)], b = m.factor[row_of(warp, lane, 1)];
    if (__all_sync(~0u, a == 1.0f && b == 1.0f))
        return;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < 16; i++) {
            o[half][4 * i] *= a;
            o[half][4 * i + 1] *= a;
            o[half][4 * i + 2] *= b;
            o[half][4 * i + 3] *= b;
        }
}

DEVICE void rows_add(float (&o)[2][64], const mla_shared<ROWS> &m, unsigned values, int add)
{
    const unsigned long long a = matrix_descriptor(m.p, 16, 8 * ROW_BYTES);
    products_fence();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const unsigned long long b =
            matrix_descriptor(values + half * 2 * PANEL_TILE, PANEL_TILE, 8 * ROW_BYTES);
#pragma unroll
        for (int i = 0; i < MLA_TILE / 16; i++)
            product_shared<128, 0, 1>(o[half], descriptor_advance(a, i * 32),
                                      descriptor_advance(b, i * 16 * ROW_BYTES), i > 0 ? 1 : add);
    }
    products_commit();
    products_wait<0>();
    products_arrived(o[0]);
    products_arrived(o[1]);
}

/* `d0`: the first dimension of o[0]'s eight. */
DEVICE void rows_out(const mla_call &c, const mla_walk &w, const index_sequence &q,
                     const float (&o)[2][64], int d0, int warp, int lane)
{
    const int first = first_row<ROWS>(c, w), count = q.q_len * c.heads;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = first + row_of(warp, lane, r);
        if (row >= count)
            continue;
        char *to = (char *)c.operands.out + (q.first_row + row / c.heads) * c.operands.out_row +
                   row % c.heads * c.operands.out_head;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const float x = o[i / 16][i % 16 * 4 + 2 * r], y = o[i / 16][i % 16 * 4 + 2 * r + 1];
            const int d = d0 + i * 8 + lane % 4 * 2;
            if (d >= c.lora)
                continue;
            if (c.out_f32) {
                ((float *)to)[d] = x;
                ((float *)to)[d + 1] = y;
            } else if (c.operands.aligned & CALL_ALIGNED_OUT) {
                *(any32 *)(to + d * 2) = pack_pair<false>(x, y);
            } else {
                ((any16 *)to)[d] = element_to_bf16(x);
                ((any16 *)to)[d + 1] = element_to_bf16(y);
            }
        }
    }
}

DEVICE void rows_part(const mla_call &c, const mla_walk &w, const float (&o)[2][64], int d0,
                      int warp, int lane)
{
    float *to = c.parts + part_place(c, w) * (MLA_LORA * ROWS) + (d0 + lane % 4 * 2) * ROWS;
#pragma unroll
    for (int i = 0; i < 32; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            to[(i * 8 + k % 2) * ROWS + row_of(warp, lane, k / 2)] = o[i / 16][i % 16 * 4 + k];
}

DEVICE void rows_add_up(const mla_call &c, const mla_shared<ROWS> &m)
{
    const int thread = (int)threadIdx.x - 2 * GROUP_THREADS, group = thread / GROUP_THREADS;
    const int warp = thread % GROUP_THREADS / 32, lane = thread % 32;
    ring<MLA_STAGES> at;
    unsigned p_phase = 0;
    float o[2][64];
    begin_rows(c, ELEMENT_BF16, thread);
    mla_walk w = walk_begin(c);
    while (walk_next(c, w)) {
        index_sequence q;
        for (int t = w.t0; t < w.t1; t++) {
            barrier_wait(m.p_full, p_phase);
            p_phase ^= 1;
            fence_async_shared();
            if (t > w.t0)
                rows_multiply(o, m, warp, lane);
            rows_add(o, m, m.tiles + at.slot * MLA_SHARED_TILE + group * 4 * PANEL_TILE, t > w.t0);
            barrier_arrive(m.p_empty);
            release(m.empty + 8 * at.slot);
            at.advance();
        }
        barrier_wait(m.p_full, p_phase);
        p_phase ^= 1;
        rows_multiply(o, m, warp, lane);
        barrier_arrive(m.p_empty);
        index_find_sequence(&c.batch, c.operands.k != 0, w.u.seq, &q);
        if (walk_whole(w))
            rows_out(c, w, q, o, group * 256, warp, lane);
        else
            rows_part(c, w, o, group * 256, warp, lane);
    }
}

/* The kernel of 64 rows. */
template <> struct mla_roles<ROWS> {
    static constexpr int rows = ROWS, stages = MLA_STAGES, feeding = 72, scoring = 104;
    static constexpr int adding = 168, scorers = 1, buffers = 1;

    static DEVICE_MEMBER mla_shared<ROWS> find(unsigned char *memory)
    {
        return shared_find<ROWS>(memory);
    }
    static DEVICE_MEMBER void feed(const mla_call &c, const mla_shared<ROWS> &m)
    {
        ::feed<ROWS>(c, m);
    }
    static DEVICE_MEMBER void score(const mla_call &c, const mla_shared<ROWS> &m)
    {
        rows_score(c, m);
    }
    static DEVICE_MEMBER void add_up(const mla_call &c, const mla_shared<ROWS> &m)
    {
        rows_add_up(c, m);
    }
};

#endif /* FLASHMLA_LIKE_ATTEND_ROWS_CUH */
