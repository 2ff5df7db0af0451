/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_rows.cuh: 64 query rows over tiles of 48 latents. Queries are the 64 rows of a product.
 * Loads, the walk and the barriers are those of attend.cuh:
 *
 *   S[64 x 48]  = Q K^T      warpgroup 1
 *   O[64 x 256] += P V       warpgroups 2 and 3, half of the dimensions each
 *
 * Three panels of the queries are in registers. This makes room for a third tile, so that two are in
 * flight while one is computed, and saves a third of the reads of queries from shared memory.
 *
 * Latents of e4m3 are widened to fp16 once, by warpgroups 2 and 3: warpgroup 0 loads codes into two
 * tiles, from which these fill two tiles of fp16. Queries and probabilities are then fp16, as in
 * attend_codes.cuh.
 */
#ifndef FLASHMLA_LIKE_ATTEND_ROWS_CUH
#define FLASHMLA_LIKE_ATTEND_ROWS_CUH

#include "plugins/flashmla_like/kernels/attend_codes.cuh"

#define ROWS        MLA_ROWS
#define ROWS_PANEL  (MLA_ROWS_TILE * ROW_BYTES) /* bytes of a panel of a tile */
#define ROWS_IN     (PANELS - MLA_ROWS_HELD)    /* panels of queries in shared memory */
#define ROWS_SCORES (MLA_ROWS_TILE / 2)         /* of a thread */

/* Over e4m3, probabilities are stored times 2^7: fp16 then holds those up to 2^ROWS_SLACK, and
 * those down to 2^-21 with full precision. */
#define ROWS_P_LOG2  7.0f
#define ROWS_P_SCALE 128.0f

#define F32_LEAST 1.17549435e-38f /* the smallest normal number */

/* ---- Shared memory --------------------------------------------------------------------------- */

template <int stages> DEVICE mla_shared<ROWS> rows_find(unsigned char *memory)
{
    mla_shared<ROWS> m;
    m.q = shared_address(memory);
    m.tiles = m.q + MLA_ROWS_SHARED_Q;
    m.p = m.tiles + 3 * MLA_ROWS_SHARED_TILE;
    m.exchange = 0;
    m.factor = (float *)(memory + (m.p - m.q) + 2 * MLA_ROWS_SHARED_P);
    m.q_scale = 0;
    m.lo = m.hi = 0;
    m.full = shared_address(m.factor + 2 * ROWS);
    m.empty = m.full + 8 * stages;
    m.p_full = m.empty + 8 * stages;
    m.p_empty = m.p_full + 16;
    m.scored = m.p_empty + 16;
    m.raw_full = m.scored + 16;
    m.raw_empty = m.raw_full + 16;
    return m;
}

/* The place of the range of keys that a row sees: after its probabilities, which do not fill a row
 * of a panel. */
DEVICE unsigned rows_seen_place(const mla_shared<ROWS> &m, int row)
{
    return m.p + swizzled(row, 6);
}

/* The keys [*lo, *hi) that every row of the block sees, as all_see(). A block without rows counts
 * as one row that sees none. */
DEVICE void rows_all_see(const mla_call &c, const mla_walk &w, const index_sequence &q,
                         const mla_shared<ROWS> &m, int *lo, int *hi)
{
    const int last = int_min(ROWS, int_max(q.q_len * c.heads - first_row<ROWS>(c, w), 1)) - 1;
    *lo = (int)shared_load_word(rows_seen_place(m, last));
    *hi = (int)shared_load_word(rows_seen_place(m, 0) + 4);
}

/* ---- Warpgroup 0: tiles of bf16 -------------------------------------------------------------- */

/* Can the copy engine load the tile from key j on? Every key must be visible and in a page. */
DEVICE bool rows_boxed(const mla_call &c, const index_sequence &q, int lo, int hi, int j)
{
    return c.boxed && j >= lo && j + MLA_ROWS_TILE <= int_min(hi, q.first_new);
}

/* Load a box for each panel, by one lane of a warp. */
DEVICE void rows_load_boxes(const mla_call &c, unsigned to, unsigned full, int token, int page)
{
    if (!elected())
        return;
#pragma unroll
    for (int p = 0; p < PANELS - 1; p++)
        tensor_load(to + p * ROWS_PANEL, &c.maps[0], full, p * PANEL, token, page, 0);
    tensor_load(to + (PANELS - 1) * ROWS_PANEL, &c.maps[1], full, 0, token, page, 0);
}

/* Lane 31 of three warps has the first key of a box, each other lane a row. */
DEVICE void rows_feed(const mla_call &c, const mla_shared<ROWS> &m)
{
    const int warp = uniform((int)threadIdx.x / 32), lane = (int)threadIdx.x % 32;
    const int both = CALL_ALIGNED_CACHE | CALL_ALIGNED_NEW;
    const bool aligned = (c.operands.aligned & both) == both;
    const int mine = lane == 31 ? int_min(warp, 2) * MLA_BOX
                                : warp * (MLA_ROWS_TILE / 4) + lane % (MLA_ROWS_TILE / 4);
    const mask_rule rule = plan_rule(&c);
    ring<3> at;
    mla_walk w;
    for (bool has_unit = walk_begin(c, w); has_unit; has_unit = walk_next(c, w)) {
        index_sequence q;
        int lo, hi;
        unit_begin<ROWS>(c, w, rule, &q, &lo, &hi);
        int j = (w.u.first_tile + w.t0) * MLA_ROWS_TILE;
        int entry = find_entry(c, q, lo, hi, j + mine);
        for (int t = w.t0; t < w.t1; t++) {
            const unsigned tile = m.tiles + at.slot * MLA_ROWS_SHARED_TILE;
            const unsigned full = m.full + 8 * at.slot;
            const bool boxed = rows_boxed(c, q, lo, hi, j);
            const int now = entry;
            entry = find_entry(c, q, lo, hi, j + MLA_ROWS_TILE + mine);
            mla_source from;
            if (!boxed)
                from = find_line_source(c, q, lo, hi, j + mine, now);
            barrier_wait(m.empty + 8 * at.slot, at.phase ^ 1);
            if (boxed) {
                if (threadIdx.x == 0)
                    barrier_arrive_expect(full, MLA_ROWS_SHARED_TILE);
                else
                    barrier_arrive(full);
                if (warp < MLA_ROWS_TILE / MLA_BOX)
                    rows_load_boxes(c, tile + warp * (MLA_BOX * ROW_BYTES), full,
                                    (j + warp * MLA_BOX) % c.page_size, __shfl_sync(~0u, now, 31));
            } else if (aligned && source_whole(c, from)) {
                load_whole<MLA_ROWS_TILE>(from, tile, warp, lane);
                copy_arrive(full);
            } else {
                load_tile<MLA_ROWS_TILE>(c, from, tile, warp, lane, aligned);
                if (aligned)
                    copy_arrive(full);
                else
                    barrier_arrive(full);
            }
            j += MLA_ROWS_TILE;
            at.advance();
        }
    }
    copy_wait();
}

/* ---- Warpgroup 0: tiles of e4m3 -------------------------------------------------------------- */

/* Tiles of codes to be widened, with the rows of a page. */
struct rows_raw {
    static constexpr int rows = MLA_ROWS_TILE, next = 128, unrolled = 4;

    static __device__ __forceinline__ unsigned place(int row, int piece)
    {
        return row * MLA_DIM + piece * 16;
    }
};

/* 16 codes as two pieces of a row of a panel. */
DEVICE void rows_widen(uint4 x, unsigned first, unsigned second)
{
    shared_store(first,
                 make_uint4(widen_low(x.x), widen_high(x.x), widen_low(x.y), widen_high(x.y)));
    shared_store(second,
                 make_uint4(widen_low(x.z), widen_high(x.z), widen_low(x.w), widen_high(x.w)));
}

/* Widen a tile, by the eight warps that accumulate values. A lane has 16 codes of a panel of a row,
 * a warp eight rows at a time: one panel of all rows, and parts of the last panel. Neighbouring
 * rows have their pieces in different banks. Codes are loaded before the previous ones are
 * converted. */
DEVICE void rows_widen_tile(unsigned tile, unsigned raw, int warp, int lane)
{
    constexpr int groups = MLA_ROWS_TILE / 8;
    const int row = lane / 4, piece = lane % 4 * 2;
    const unsigned from = raw + row * MLA_DIM + lane % 4 * 16;
    const unsigned first = tile + swizzled(row, piece), second = tile + swizzled(row, piece + 1);
    uint4 x[2];
    x[0] = shared_load(from + warp * PANEL);
#pragma unroll
    for (int group = 0; group < groups; group++) {
        const unsigned at = warp * ROWS_PANEL + group * 8 * ROW_BYTES;
        if (group + 1 < groups)
            x[(group + 1) % 2] = shared_load(from + (group + 1) * 8 * MLA_DIM + warp * PANEL);
        else if (warp < groups)
            x[(group + 1) % 2] = shared_load(from + warp * 8 * MLA_DIM + MLA_LORA);
        rows_widen(x[group % 2], first + at, second + at);
    }
    if (warp < groups) {
        const unsigned at = (PANELS - 1) * ROWS_PANEL + warp * 8 * ROW_BYTES;
        rows_widen(x[groups % 2], first + at, second + at);
    }
}

/* Widen the next tile of codes into the next tile of fp16. */
DEVICE void rows_fill(const mla_shared<ROWS> &m, ring<2> &next, int warp, int lane)
{
    const unsigned raw = m.tiles + 2 * MLA_ROWS_SHARED_TILE + next.slot * MLA_ROWS_SHARED_RAW;
    barrier_wait(m.raw_full + 8 * next.slot, next.phase);
    barrier_wait(m.empty + 8 * next.slot, next.phase ^ 1);
    rows_widen_tile(m.tiles + next.slot * MLA_ROWS_SHARED_TILE, raw, warp, lane);
    fence_async_shared();
    barrier_arrive(m.full + 8 * next.slot);
    release(m.raw_empty + 8 * next.slot);
    next.advance();
}

DEVICE void rows_feed_codes(mla_shared<ROWS> m, const mla_call &c)
{
    m.tiles += 2 * MLA_ROWS_SHARED_TILE;
    m.full = m.raw_full;
    m.empty = m.raw_empty;
    codes_feed<ROWS, rows_raw, 2, MLA_ROWS_SHARED_RAW>(c, m);
}

/* ---- Warpgroup 1: scores --------------------------------------------------------------------- */

/* A thread's state of its two rows, lane / 4 of the warp's 16 and the one 8 further on. */
struct mla_rows {
    float top[2], sum[2];
};

/* A thread's elements of the queries' last panels, as the first operand of products. */
typedef unsigned rows_held[MLA_ROWS_HELD * 4][4];

DEVICE int row_of(int warp, int lane, int r)
{
    return warp * 16 + lane / 4 + r * 8;
}

/* Row n of the block's queries as the source of a lane's row of a tile; zeros if the row does not
 * exist. */
DEVICE mla_source rows_query(const mla_call &c, const mla_walk &w, const index_sequence &q, int n)
{
    const int row = first_row<ROWS>(c, w) + n, there = row < q.q_len * c.heads;
    const row_place at = row_find(c, q, there ? row : 0);
    const i64 token = q.first_row + at.query;
    const char *nope = (const char *)c.operands.q + token * c.operands.q_row;
    const char *rope = (const char *)c.q_pe + token * c.q_pe_row;
    return mla_source{nope + at.head * c.operands.q_head, rope + at.head * c.q_pe_head,
                      there ? 16 : 0};
}

/* Two elements at a multiple of 2 bytes, or zeros. */
DEVICE unsigned load_pair(const char *from, bool there, bool aligned)
{
    unsigned pair = 0;
    if (there && aligned)
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(pair) : "l"(from));
    else if (there)
        pair = ((const any16 *)from)[0] | (unsigned)((const any16 *)from)[1] << 16;
    return pair;
}

/* Two elements at a multiple of 4 bytes, or zeros, in one instruction: with a branch for each of so
 * many loads, these would be most of the kernel's code. */
DEVICE unsigned load_pair_if(const char *from, int there)
{
    unsigned pair;
    asm volatile("{\n\t"
                 ".reg .pred p;\n\t"
                 "setp.ne.s32 p, %2, 0;\n\t"
                 "mov.u32 %0, 0;\n\t"
                 "@p ld.global.u32 %0, [%1];\n\t"
                 "}"
                 : "=r"(pair)
                 : "l"(from), "r"(there));
    return pair;
}

/* A lane's part of the queries' last panels, loaded by load(address, does the row exist?, is it of
 * q_pe?, the element's index). */
template <class loader>
DEVICE void rows_hold_by(const mla_source &mine, rows_held &held, int lane, const loader &load)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = lane / 4 + 8 * r, d = lane % 4 * 2;
        const char *nope = shuffle_pointer(mine.c_kv, row) + (ROWS_IN * PANEL + d) * 2;
        const char *rope = shuffle_pointer(mine.k_pe, row) + d * 2;
        const int there = __shfl_sync(~0u, mine.bytes, row);
#pragma unroll
        for (int i = 0; i < MLA_ROWS_HELD * 4; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int k = i * 16 + half * 8, into = k - (MLA_ROWS_HELD - 1) * PANEL;
                held[i][2 * half + r] = into < 0 ? load(nope + k * 2, there, false, k)
                                                 : load(rope + into * 2, there, true, into);
            }
    }
}

/* For whole queries at multiples of 4 bytes. */
DEVICE void rows_hold_whole(const mla_source &mine, rows_held &held, int lane)
{
    rows_hold_by(mine, held, lane,
                 [](const char *from, int there, bool, int) { return load_pair_if(from, there); });
}

/* For any queries. */
DEVICE void rows_hold(const mla_call &c, const mla_source &mine, rows_held &held, int lane,
                      bool aligned)
{
    rows_hold_by(mine, held, lane, [&](const char *from, int there, bool pe, int at) {
        const bool given = pe ? at < c.rope : ROWS_IN * PANEL + at < c.lora;
        return load_pair(from, there > 0 && given, aligned);
    });
}

/* The larger elements of two pairs of bf16, without signs. */
DEVICE unsigned pair_top(unsigned top, unsigned pair)
{
    return __vmaxu2(top, pair & 0x7fff7fffu);
}

/* Convert the elements of a row to fp16 times a power of two (attend_codes.cuh). A lane gets the
 * exponents of its two rows. It converts what it has loaded, 16 bytes of a panel in each of four
 * rows, and what it holds. Loops, as in rows_load_queries(). */
DEVICE void rows_convert(const mla_shared<ROWS> &m, rows_held &held, int (&exponent)[2], int warp,
                         int lane)
{
    unsigned most[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < MLA_ROWS_HELD * 4; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            most[k % 2] = pair_top(most[k % 2], held[i][k]);
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        const int row = i * 4 + lane / 8;
        const unsigned at = m.q + swizzled(warp * 16 + row, lane % 8);
        const unsigned mine = i < 2 ? most[0] : most[1];
        unsigned top = 0;
#pragma unroll
        for (int k = 0; k < 4; k++)
            top = __vmaxu2(top, __shfl_sync(~0u, mine, row % 8 * 4 + k));
#pragma unroll 1
        for (int p = 0; p < ROWS_IN; p++) {
            const uint4 x = shared_load(at + p * (ROWS * ROW_BYTES));
            top = pair_top(pair_top(pair_top(pair_top(top, x.x), x.y), x.z), x.w);
        }
        for (int step = 1; step < 8; step *= 2)
            top = __vmaxu2(top, __shfl_xor_sync(~0u, top, step));
        top = min(max(top & 0xffffu, top >> 16), 0x7f7fu);
        const int found = query_exponent((int)top);
        const float up = bits_f32((u32)(127 + found) << 23);
#pragma unroll 1
        for (int p = 0; p < ROWS_IN; p++) {
            const unsigned to = at + p * (ROWS * ROW_BYTES);
            const uint4 x = shared_load(to);
            shared_store(to, make_uint4(bf16_pair_to_f16(x.x, up), bf16_pair_to_f16(x.y, up),
                                        bf16_pair_to_f16(x.z, up), bf16_pair_to_f16(x.w, up)));
        }
        const int theirs = __shfl_sync(~0u, found, lane / 4 % 4 * 8);
        if (i == lane / 16)
            exponent[0] = theirs;
        if (i == lane / 16 + 2)
            exponent[1] = theirs;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float up = bits_f32((u32)(127 + exponent[r]) << 23);
#pragma unroll
        for (int i = 0; i < MLA_ROWS_HELD * 4; i++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                held[i][2 * half + r] = bf16_pair_to_f16(held[i][2 * half + r], up);
    }
}

/* Load the first panels of a warp's 16 queries to shared memory. Loops instead of straight code: it
 * runs once a unit, and fetching instructions from memory takes longer than the loads. */
DEVICE void rows_load_queries(const mla_call &c, const mla_source &mine, unsigned q, int warp,
                              int lane, bool aligned)
{
    const int piece = lane % 8, lora = c.lora - piece * 8;
#pragma unroll 1
    for (int i = 0; i < 4;
         i++) { /* not from a lane's row on: the compiler would take the lanes for divergent */
        const int row = i * 4 + lane / 8;
        const char *from = shuffle_pointer(mine.c_kv, row) + piece * 16;
        const int bytes = __shfl_sync(~0u, mine.bytes, row);
        const unsigned to = q + swizzled(warp * 16 + row, piece);
#pragma unroll 1
        for (int p = 0; p < ROWS_IN; p++)
            codes_copy(to + p * (ROWS * ROW_BYTES), from + p * ROW_BYTES,
                       p * PANEL < lora ? bytes : 0, aligned);
    }
}

/* Load the unit's queries, to shared memory and registers. `scale`: the factor of scores of a
 * lane's rows, given for unconverted elements. */
template <bool codes>
DEVICE void rows_take_queries(const mla_call &c, const mla_walk &w, const index_sequence &q,
                              const mla_shared<ROWS> &m, rows_held &held, float (&scale)[2],
                              int warp, int lane)
{
    const bool aligned = c.operands.aligned & CALL_ALIGNED_Q;
    const bool whole = aligned && c.lora == MLA_LORA && c.rope == MLA_ROPE;
    const mla_source mine = rows_query(c, w, q, warp * 16 + lane % 16);
    if (whole)
        load_whole<ROWS, ROWS_IN>(mine, m.q, warp, lane);
    else
        rows_load_queries(c, mine, m.q, warp, lane, aligned);
    if (whole)
        rows_hold_whole(mine, held, lane);
    else
        rows_hold(c, mine, held, lane, aligned);
    copy_wait();
    if constexpr (codes) {
        int exponent[2];
        rows_convert(m, held, exponent, warp, lane);
#pragma unroll
        for (int r = 0; r < 2; r++)
            scale[r] = fmaxf(scale[r] * bits_f32((u32)(127 - exponent[r]) << 23), F32_LEAST);
    }
    fence_async_shared();
    named_sync(1, GROUP_THREADS);
}

/* The same number, but opaque to the compiler: kept, 24 constant descriptors of the queries would
 * take 48 registers. */
DEVICE unsigned unknown(unsigned x)
{
    asm volatile("" : "+r"(x));
    return x;
}

template <bool is_f16>
DEVICE void rows_scores(float (&s)[ROWS_SCORES], const rows_held &held, const mla_shared<ROWS> &m,
                        unsigned tile)
{
    const unsigned long long a = matrix_descriptor(unknown(m.q), 16, 8 * ROW_BYTES);
    const unsigned long long b = matrix_descriptor(tile, 16, 8 * ROW_BYTES);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < MLA_DIM / 16; i++) {
        const unsigned long long keys = descriptor_advance(b, i / 4 * ROWS_PANEL + i % 4 * 32);
        if (i < ROWS_IN * 4)
            wgmma_ss<MLA_ROWS_TILE, is_f16, 0>(
                s, descriptor_advance(a, i / 4 * (ROWS * ROW_BYTES) + i % 4 * 32), keys, i > 0);
        else
            wgmma_rs<MLA_ROWS_TILE, is_f16, 0>(s, held[i - ROWS_IN * 4], keys, 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(s);
}

/* Row r of a lane sees the keys [lo, hi); `j` is the key of s[0]. */
template <int scores> DEVICE void rows_hide_row(float (&s)[scores], int r, int lo, int hi, int j)
{
#pragma unroll
    for (int i = 0; i < scores / 4; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int at = j + i * 8 + e;
            float &x = s[4 * i + 2 * r + e];
            x = lo <= at && at < hi ? x : SOFTMAX_EMPTY;
        }
}

DEVICE void rows_hide(float (&s)[ROWS_SCORES], const mla_shared<ROWS> &m, int j, int warp, int lane)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const unsigned place = rows_seen_place(m, row_of(warp, lane, r));
        const int lo = (int)shared_load_word(place), hi = (int)shared_load_word(place + 4);
        rows_hide_row(s, r, lo, hi, j);
    }
}

/* The reference of probabilities changes only if a maximum exceeds it by 2^8; then outputs are
 * rescaled. */
#define ROWS_SLACK 8.0f

/* A lane's maximum of a row, before the scale. */
template <int scores> DEVICE float rows_most(const float (&s)[scores], int r)
{
    float most = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
    for (int i = 1; i < scores / 4; i++)
        most = fmaxf(most, fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
    return most;
}

/* Raise the references to maxima that exceed them. */
DEVICE void rows_raise(mla_rows &rows, float (&factor)[2], const float (&most)[2],
                       const float (&scale)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float top = softmax_quad_max(most[r]) * scale[r], before = rows.top[r];
        rows.top[r] = top > before + ROWS_SLACK ? top : before;
        factor[r] = rows.top[r] == before ? 1.0f : softmax_exp2(before - softmax_base(rows.top[r]));
    }
}

/* Scores are multiplied by `scale`, probabilities by 2^`up`. In most tiles no maximum of a warp
 * exceeds its reference; then the lanes exchange nothing. */
template <int scores>
DEVICE void rows_softmax(float (&s)[scores], mla_rows &rows, float (&factor)[2],
                         const float (&scale)[2], float up)
{
    float base[2], sum[2][2] = {{0, 0}, {0, 0}};
    const float most[2] = {rows_most(s, 0), rows_most(s, 1)};
    factor[0] = factor[1] = 1.0f;
    if (__any_sync(~0u, most[0] * scale[0] > rows.top[0] + ROWS_SLACK ||
                            most[1] * scale[1] > rows.top[1] + ROWS_SLACK))
        rows_raise(rows, factor, most, scale);
#pragma unroll
    for (int r = 0; r < 2; r++)
        base[r] = softmax_base(rows.top[r]);
#pragma unroll
    for (int r = 0; r < 2; r++)
        base[r] -= up;
#pragma unroll
    for (int i = 0; i < scores / 4; i++)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &x = s[4 * i + 2 * r + e];
                x = softmax_exp2(fmaf(x, scale[r], -base[r]));
                sum[r][e] += x;
            }
#pragma unroll
    for (int r = 0; r < 2; r++)
        rows.sum[r] = rows.sum[r] * factor[r] + (sum[r][0] + sum[r][1]);
}

template <bool is_f16, int scores>
DEVICE void rows_store(const float (&s)[scores], const float (&factor)[2],
                       const mla_shared<ROWS> &m, int warp, int lane)
{
    const int row = warp * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int i = 0; i < scores / 4; i += 2)
        store_matrices(m.p + swizzled(row, i + lane / 16),
                       pack_pair<is_f16>(s[4 * i], s[4 * i + 1]),
                       pack_pair<is_f16>(s[4 * i + 2], s[4 * i + 3]),
                       pack_pair<is_f16>(s[4 * i + 4], s[4 * i + 5]),
                       pack_pair<is_f16>(s[4 * i + 6], s[4 * i + 7]));
    if (lane % 4 == 0) {
        m.factor[row_of(warp, lane, 0)] = factor[0];
        m.factor[row_of(warp, lane, 1)] = factor[1];
    }
}

/* Compute the final factors of the sums, and write the LSE. Two of four lanes finish a row each:
 * code for each row would have to come from memory. */
DEVICE void rows_finish(const mla_call &c, const mla_walk &w, const index_sequence &q,
                        const mla_rows &rows, const mla_shared<ROWS> &m, float p_scale,
                        float cache_scale, int warp, int lane)
{
    const float sum[2] = {softmax_quad_sum(rows.sum[0]), softmax_quad_sum(rows.sum[1])};
    const int r = lane % 4, n = row_of(warp, lane, r), row = first_row<ROWS>(c, w) + n;
    const int valid = row < q.q_len * c.heads, at = valid ? row : 0;
    softmax_row mine = {r == 0 ? rows.top[0] : rows.top[1], (r == 0 ? sum[0] : sum[1]) * p_scale};
    float shrink = 1;
    if (r > 1)
        return;
    if (walk_whole(w) && c.operands.sinks)
        softmax_take(&mine, c.operands.sinks[row_find(c, q, at).head] * SOFTMAX_LOG2E, &shrink);
    m.factor[n] = softmax_end(&mine) * shrink * (cache_scale * p_scale);
    if (!walk_whole(w))
        c.part_lse[part_place(c, w) * ROWS + n] = softmax_lse(&mine);
    else if (c.operands.lse && valid)
        *row_lse(c, q, at) = softmax_lse(&mine);
}

/* Warpgroup 1's state of a unit. */
template <bool codes, int stages> struct rows_scorer {
    const mla_call &c;
    const mla_shared<ROWS> &m;
    ring<stages> at;
    ring<2> part, scored;
    rows_held held;
    mla_rows rows;
    float scale[2];   /* of a lane's rows; positive, and applied after the maximum is found */
    float sign;       /* of the scale: scores are multiplied by it unless it is 1; may be 0 */
    int lo, least_hi; /* keys that all rows see */

    DEVICE_MEMBER void scores(float (&s)[ROWS_SCORES])
    {
        barrier_wait(m.full + 8 * at.slot, at.phase);
        fence_async_shared();
        rows_scores<codes>(s, held, m, m.tiles + at.slot * MLA_ROWS_SHARED_TILE);
        release(m.scored + 8 * scored.slot);
        release(m.empty + 8 * at.slot);
        scored.advance();
        at.advance();
    }

    /* `j`: the tile's first key. */
    DEVICE_MEMBER void finish(float (&s)[ROWS_SCORES], int j, int warp, int lane)
    {
        float factor[2];
        if (sign != 1.0f)
#pragma unroll
            for (int i = 0; i < ROWS_SCORES; i++)
                s[i] *= sign;
        if (j < lo || j + MLA_ROWS_TILE > least_hi)
            rows_hide(s, m, j + lane % 4 * 2, warp, lane);
        rows_softmax(s, rows, factor, scale, codes ? ROWS_P_LOG2 : 0.0f);
        const mla_shared<ROWS> to = part_buffer<ROWS, MLA_ROWS_SHARED_P>(m, part.slot);
        barrier_wait(to.p_empty, part.phase ^ 1);
        rows_store<codes>(s, factor, to, warp, lane);
        fence_async_shared();
        barrier_arrive(to.p_full);
        part.advance();
    }
};

template <bool codes, int stages>
DEVICE void rows_score(const mla_call &c, const mla_shared<ROWS> &m)
{
    const int thread = (int)threadIdx.x - GROUP_THREADS, warp = thread / 32, lane = thread % 32;
    const mask_rule rule = plan_rule(&c);
    const float cache_scale = codes ? codes_scale(c) : 1.0f;
    const float scale = cache_scale * (c.sm_scale * SOFTMAX_LOG2E);
    rows_scorer<codes, stages> r = {c, m};
    mla_walk w;
    for (bool has_unit = walk_begin(c, w); has_unit; has_unit = walk_next(c, w)) {
        index_sequence q;
        float s[ROWS_SCORES];
        r.rows = mla_rows{{SOFTMAX_EMPTY, SOFTMAX_EMPTY}, {0, 0}};
        r.sign = scale > 0 ? 1.0f : scale < 0 ? -1.0f : scale;
        r.scale[0] = r.scale[1] = scale != 0 ? fabsf(scale) : 1.0f;
        walk_sequence(c, w, &q);
        if (thread < ROWS) {
            int lo, hi;
            row_seen<ROWS>(c, w, q, rule, thread, &lo, &hi);
            shared_store_pair(rows_seen_place(m, thread), lo, hi);
        }
        rows_take_queries<codes>(c, w, q, m, r.held, r.scale, warp, lane);
        rows_all_see(c, w, q, m, &r.lo, &r.least_hi);
        int j = (w.u.first_tile + w.t0) * MLA_ROWS_TILE;
        for (int t = w.t1 - w.t0; t > 0; t--) {
            r.scores(s);
            r.finish(s, j, warp, lane);
            j += MLA_ROWS_TILE;
        }
        walk_again(c, w);
        walk_sequence(c, w, &q);
        const mla_shared<ROWS> to = part_buffer<ROWS, MLA_ROWS_SHARED_P>(m, r.part.slot);
        barrier_wait(to.p_empty, r.part.phase ^ 1);
        rows_finish(c, w, q, r.rows, to, codes ? 1 / ROWS_P_SCALE : 1.0f, cache_scale, warp, lane);
        barrier_arrive(to.p_full);
        r.part.advance();
        named_sync(1, GROUP_THREADS); /* no warp needs the queries any more */
    }
}

/* Add products of 128 dimensions twice: ptxas, which counts 128 registers for each thread of the
 * launch, refuses a product of 256 columns. */
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

/* Apply the final factors: see clear_lost(). */
DEVICE void rows_clear_lost(float (&o)[2][64], const mla_shared<ROWS> &m, int warp, int lane)
{
    const float a = m.factor[row_of(warp, lane, 0)], b = m.factor[row_of(warp, lane, 1)];
    if (__builtin_expect(a != 0.0f && b != 0.0f, 1))
        return;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int i = 0; i < 64; i++)
            o[half][i] = (i / 2 % 2 ? b : a) == 0.0f ? 0.0f : o[half][i];
}

template <bool is_f16>
DEVICE void rows_add(float (&o)[2][64], const mla_shared<ROWS> &m, unsigned values, int add)
{
    const unsigned long long a = matrix_descriptor(m.p, 16, 8 * ROW_BYTES);
    wgmma_fence();
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const unsigned long long b =
            matrix_descriptor(values + side * 2 * ROWS_PANEL, ROWS_PANEL, 8 * ROW_BYTES);
#pragma unroll
        for (int i = 0; i < MLA_ROWS_TILE / 16; i++)
            wgmma_ss<128, is_f16, 1>(o[side], descriptor_advance(a, i * 32),
                                     descriptor_advance(b, i * 16 * ROW_BYTES), i > 0 ? 1 : add);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(o[0]);
    wgmma_arrived(o[1]);
}

/* If the next tile has arrived, its scores come before these values, which then overlap its
 * softmax. */
template <int stages>
DEVICE void rows_give_way(const mla_shared<ROWS> &m, ring<stages> next, ring<2> &scored, bool more)
{
    scored.advance();
    next.advance();
    if (more && barrier_test(m.full + 8 * next.slot, next.phase))
        barrier_wait(m.scored + 8 * scored.slot, scored.phase);
}

/* Transpose among four lanes, each of which has a word of four pieces: lane t gets piece t. */
DEVICE uint4 quad_turn(unsigned a, unsigned b, unsigned c, unsigned d, int lane)
{
    const bool odd = lane % 2, high = lane / 2 % 2;
    unsigned x = __shfl_xor_sync(~0u, odd ? a : b, 1), y = __shfl_xor_sync(~0u, odd ? c : d, 1);
    a = odd ? x : a, b = odd ? b : x, c = odd ? y : c, d = odd ? d : y;
    x = __shfl_xor_sync(~0u, high ? a : c, 2), y = __shfl_xor_sync(~0u, high ? b : d, 2);
    return high ? make_uint4(x, y, c, d) : make_uint4(a, b, x, y);
}

/* Store outputs of bf16 at multiples of 16 bytes. `to`: the row's first element, or 0. */
DEVICE void rows_out_wide(const mla_call &c, const float (&o)[2][64], char *to, int r, int d0,
                          int lane)
{
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
        unsigned x[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int at = (i + k) % 16 * 4 + 2 * r;
            x[k] = pack_pair<false>(o[i / 16][at], o[i / 16][at + 1]);
        }
        const uint4 piece = quad_turn(x[0], x[1], x[2], x[3], lane);
        const int d = d0 + (i + lane % 4) * 8;
        if (to && d < c.lora)
            *(uint4 *)(to + d * 2) = piece;
    }
}

/* Store outputs. `d0`: the first of o[0]'s eight dimensions. */
DEVICE void rows_out(const mla_call &c, const mla_walk &w, const index_sequence &q,
                     const float (&o)[2][64], int d0, int warp, int lane)
{
    const int first = first_row<ROWS>(c, w), count = q.q_len * c.heads;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = first + row_of(warp, lane, r);
        char *to = row_out(c, q, row);
        if (c.operands.aligned & CALL_ALIGNED_OUT_16 && !c.out_f32) {
            rows_out_wide(c, o, row < count ? to : 0, r, d0, lane);
            continue;
        }
        if (row >= count)
            continue;
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

/* Store a part, all at constant distances from one address: with an address for each store the code
 * would be six times as long, and it comes from memory. */
DEVICE void rows_part(const mla_call &c, const mla_walk &w, const float (&o)[2][64], int d0,
                      int warp, int lane)
{
    float *to = part_find<ROWS>(c, w, row_of(warp, lane, 0), d0 + lane % 4 * 2);
#pragma unroll
    for (int i = 0; i < 32; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            to[(i * 8 + k % 2) * 8 + k / 2 * PART_EIGHT] = o[i / 16][i % 16 * 4 + k];
}

/* Store a unit's outputs, for the 256 dimensions of warpgroup `group`. In a part, rows that do not
 * exist are not written, and mla_merge does not read them. */
DEVICE void rows_leave(const mla_call &c, const mla_walk &w, const index_sequence &q,
                       const float (&o)[2][64], int group)
{
    const int warp = thread_here() / 32 % 4, lane = thread_here() % 32, d0 = group * 256;
    if (walk_whole(w))
        rows_out(c, w, q, o, d0, warp, lane);
    else if (first_row<ROWS>(c, w) + warp * 16 < q.q_len * c.heads)
        rows_part(c, w, o, d0, warp, lane);
}

/* The same for a kernel that looks up the unit when it ends. */
DEVICE void rows_end(const mla_call &c, mla_walk &w, const float (&o)[2][64], int group)
{
    index_sequence q;
    walk_again(c, w);
    walk_sequence(c, w, &q);
    rows_leave(c, w, q, o, group);
}

template <int stages, bool codes>
DEVICE void rows_add_up(const mla_call &c, const mla_shared<ROWS> &m, int dtype)
{
    const int thread = (int)threadIdx.x - 2 * GROUP_THREADS;
    const int group = uniform(thread / GROUP_THREADS);
    ring<stages> at;
    ring<2> part, scored, filled;
    float o[2][64];
    begin_rows(c, dtype, thread);
    mla_walk w;
    for (bool has_unit = walk_begin(c, w); has_unit; has_unit = walk_ends(w) && walk_next(c, w)) {
        if (codes)
            rows_fill(m, filled, thread_here() / 32 - 8, thread_here() % 32);
        for (int more = w.t1 - w.t0, add = 0; more > 0; more--, add = 1) {
            if (codes && more > 1)
                rows_fill(m, filled, thread_here() / 32 - 8, thread_here() % 32);
            const mla_shared<ROWS> from = part_buffer<ROWS, MLA_ROWS_SHARED_P>(m, part.slot);
            barrier_wait(from.p_full, part.phase);
            fence_async_shared();
            if (add)
                rows_multiply(o, from, thread_here() / 32 % 4, thread_here() % 32);
            if (!codes)
                rows_give_way(m, at, scored, more > 1);
            rows_add<codes>(o, from,
                            m.tiles + at.slot * MLA_ROWS_SHARED_TILE + group * 4 * ROWS_PANEL, add);
            barrier_arrive(from.p_empty);
            part.advance();
            release(m.empty + 8 * at.slot);
            at.advance();
        }
        index_sequence q;
        walk_again(c, w);
        walk_sequence(c, w, &q);
        const mla_shared<ROWS> from = part_buffer<ROWS, MLA_ROWS_SHARED_P>(m, part.slot);
        barrier_wait(from.p_full, part.phase);
        rows_multiply(o, from, thread_here() / 32 % 4, thread_here() % 32);
        if (!codes) /* codes are never infinite */
            rows_clear_lost(o, from, thread_here() / 32 % 4, thread_here() % 32);
        barrier_arrive(from.p_empty);
        part.advance();
        rows_leave(c, w, q, o, group);
    }
}

/* The roles of the kernels of 64 rows. */
template <bool codes> struct rows_roles {
    static constexpr int rows = ROWS, stages = codes ? 2 : 3;
    static constexpr int feeding = 56, scoring = 120, adding = 168;
    static constexpr int scorers = 1, buffers = 2, turns = 2;
    static constexpr int fillers = codes ? 2 * GROUP_THREADS : GROUP_THREADS;
    static constexpr int raws = codes ? 2 : 0;

    static DEVICE_MEMBER void feed_tiles(const mla_call &c, const mla_shared<ROWS> &m)
    {
        if constexpr (codes)
            rows_feed_codes(m, c);
        else
            rows_feed(c, m);
    }
    MLA_ROLES(rows_find<stages>(memory), feed_tiles(c, m), (rows_score<codes, stages>(c, m)),
              (rows_add_up<stages, codes>(c, m, codes ? ELEMENT_E4M3 : ELEMENT_BF16)))
};

#define MLA_ATTEND_ROWS(name, codes) MLA_KERNEL(name, MLA_THREADS, rows_roles<codes>)

#endif /* FLASHMLA_LIKE_ATTEND_ROWS_CUH */
