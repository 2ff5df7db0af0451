/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_packed_rows.cuh: 64 query rows over tiles of 48 latents of mla.latent_fp8/1. The products are those of
 * attend_rows.cuh over bf16: queries are rows. Warpgroup 0 loads rows as they lie, 656 bytes each; warpgroups 2
 * and 3, which add up values, widen the codes of the next tile once, to bf16, into the tile that all products read.
 *
 * No scale is rounded into a key. A scale is m 2^e: a code is widened to code * 2^e, which is exact, and m, which
 * is 1 where scales are powers of two, goes on what is summed:
 *
 *   S   = (((Q_0 K_0 m_0/m_1 + Q_1 K_1) m_1/m_2 + Q_2 K_2) m_2/m_3 + Q_3 K_3) m_3 + Q_pe R
 *   O_b += (m_b P) V_b                 m_b P rounded once, to bf16; K_b, V_b: 128 codes
 *
 * e is held between -110 and 7, where no widened code is rounded; of larger and smaller scales the rest is in m.
 */
#ifndef FLASHMLA_LIKE_ATTEND_PACKED_ROWS_CUH
#define FLASHMLA_LIKE_ATTEND_PACKED_ROWS_CUH

#include "plugins/flashmla_like/kernels/attend_packed.cuh"

#define PACKED_WIDE       2                   /* tiles of bf16 */
#define PACKED_SHARES     8                   /* of a tile, as many as warps that widen */
#define PACKED_SHARE      (MLA_ROWS_TILE / 8) /* rows of each */
#define PACKED_SHARE_ROWS ((1u << PACKED_SHARE) - 1)

/* ---- Shared memory --------------------------------------------------------------------------- */

/* `exchange`: the numbers of each tile's tokens: m of each part, then what sums of parts are multiplied by. `odd`,
 * of each tile: a word of each share, not 0 where an m is not 1. */
DEVICE mla_shared<ROWS> packed_rows_find(unsigned char *memory)
{
    mla_shared<ROWS> m;
    m.q = shared_address(memory);
    m.tiles = m.q + MLA_ROWS_SHARED_Q;
    m.p = m.tiles + PACKED_WIDE * MLA_ROWS_SHARED_TILE;
    m.raw = m.p + PACKED_PARTS * MLA_ROWS_SHARED_P;
    m.exchange = (float *)(memory + (m.raw - m.q) + MLA_ROWS_TILE * MLA_PACKED_PITCH);
    m.factor = m.exchange + PACKED_WIDE * MLA_PACKED_NUMBERS;
    m.q_scale = 0;
    m.lo = m.hi = 0;
    m.odd = shared_address(m.factor + ROWS);
    m.full = m.odd + PACKED_WIDE * PACKED_SHARES * 4;
    m.empty = m.full + 8 * PACKED_WIDE;
    m.p_full = m.empty + 8 * PACKED_WIDE;
    m.p_empty = m.p_full + 8;
    m.scored = 0;
    m.raw_full = m.p_empty + 8;
    m.raw_empty = m.raw_full + 8 * PACKED_SHARES;
    return m;
}

DEVICE unsigned packed_tile(const mla_shared<ROWS> &m, int slot)
{
    return m.tiles + slot * MLA_ROWS_SHARED_TILE;
}

DEVICE float *packed_numbers(const mla_shared<ROWS> &m, int slot)
{
    return m.exchange + slot * MLA_PACKED_NUMBERS;
}

/* Are all scales of a tile powers of two? */
DEVICE bool packed_plain(const mla_shared<ROWS> &m, int slot)
{
    const unsigned odd = m.odd + slot * (PACKED_SHARES * 4);
    const uint4 x = shared_load(odd), y = shared_load(odd + 16);
    return !(x.x | x.y | x.z | x.w | y.x | y.y | y.z | y.w);
}

/* ---- Warpgroup 0: rows ----------------------------------------------------------------------- */

/* A new latent as a row of the cache, by a warp. */
DEVICE void packed_quantise_row(unsigned to, const char *c_kv, const char *k_pe, int lane)
{
#pragma unroll 1
    for (int part = 0; part < PACKED_PARTS; part++) {
        float scale;
        const u32 codes = packed_codes(c_kv, part, lane, &scale);
        shared_store_word(to + part * PACKED_SCALED + lane * 4, codes);
        if (lane == 0)
            shared_store_word(to + MLA_LORA + part * 4, f32_bits(scale));
    }
    shared_store_word(to + MLA_PACKED_ROPE_AT + lane * 4, packed_pair(k_pe, lane));
}

/* Rows of a share that are not `copied`: new, not seen, or at no multiple of 16 bytes. */
DEVICE void packed_rows_slow(const codes_source &mine, unsigned raw, int first, unsigned copied,
                             int lane)
{
#pragma unroll 1
    for (unsigned left = ~copied & PACKED_SHARE_ROWS; left; left &= left - 1) {
        const int i = __ffs((int)left) - 1;
        const unsigned to = raw + i * MLA_PACKED_PITCH;
        const int bytes = __shfl_sync(~0u, mine.bytes, first + i);
        const char *from = shuffle_pointer(mine.row, first + i);
        const char *k_pe = shuffle_pointer(mine.k_pe, first + i);
        if (__shfl_sync(~0u, mine.fresh, first + i))
            packed_quantise_row(to, from, k_pe, lane);
        else
#pragma unroll 1
            for (int p = lane * 16; p < MLA_PACKED_BYTES; p += 512)
                codes_copy(to + p, from + p, bytes, false);
    }
}

/* Copies of a share's rows, of those that are `copied`. */
template <bool all>
DEVICE void packed_rows_copy(const codes_source &now, int first, unsigned to, unsigned full,
                             unsigned copied, unsigned long long policy)
{
    const char *rows[PACKED_SHARE];
#pragma unroll
    for (int i = 0; i < PACKED_SHARE; i++)
        rows[i] = shuffle_pointer(now.row, first + i);
    if (elected())
#pragma unroll
        for (int i = 0; i < PACKED_SHARE; i++)
            if (all || copied >> i & 1)
                bulk_load_by(to + i * MLA_PACKED_PITCH, rows[i], MLA_PACKED_BYTES, full, policy);
    __syncwarp();
}

/* A share of a warp's rows: a bulk copy each, all by one lane. If each lane asks for its own row, the compiler makes
 * a loop over lanes, of 118 cycles a copy. One lane arrives at `full` for what is copied; all arrive once more, since
 * each may have written some of the others. */
DEVICE void packed_rows_load(const codes_source &now, int first, unsigned to, unsigned full,
                             int lane, bool aligned, unsigned long long policy)
{
    const unsigned copied =
        __ballot_sync(~0u, aligned && now.bytes && !now.fresh) >> first & PACKED_SHARE_ROWS;
    if (lane == 0)
        barrier_arrive_expect(full, (unsigned)__popc(copied) * MLA_PACKED_BYTES);
    if (copied == PACKED_SHARE_ROWS) {
        packed_rows_copy<true>(now, first, to, full, copied, policy);
    } else {
        packed_rows_copy<false>(now, first, to, full, copied, policy);
        packed_rows_slow(now, to, first, copied, lane);
    }
    barrier_arrive(full);
}

/* The exponent that goes on codes, as that of an fp32. */
DEVICE int packed_exponent(unsigned scale)
{
    return int_min(max((int)(scale >> 23 & 255), 127 - 110), 127 + 7);
}

/* Two of 2^(120 + e) in bf16: what bits of codes in the places of bf16 are multiplied by. */
DEVICE unsigned packed_multiplier(unsigned scale)
{
    return scale << 1 ? (unsigned)(packed_exponent(scale) + 120) * 0x00800080u : 0;
}

/* The rest of a scale. */
DEVICE float packed_rest(float scale)
{
    const int e = packed_exponent(f32_bits(scale));
    return scale == 0.0f ? 1.0f : scale * bits_f32((u32)(254 - e) << 23);
}

/* Lanes have a scale each of a share's rows. */
DEVICE float packed_row_scale(unsigned raw, int lane)
{
    const int row = int_min(lane / PACKED_PARTS, PACKED_SHARE - 1);
    return bits_f32(
        shared_load_word(raw + row * MLA_PACKED_PITCH + MLA_LORA + lane % PACKED_PARTS * 4));
}

/* A bit of each row of a share: has it a code of NaN? */
DEVICE unsigned packed_wrong(unsigned raw, int lane)
{
    unsigned wrong = 0;
#pragma unroll
    for (int r = 0; r < PACKED_SHARE; r++) {
        const uint4 x = shared_load(raw + r * MLA_PACKED_PITCH + lane * 16);
        const unsigned seen =
            ((x.x & 0x7f7f7f7fu) + 0x01010101u) | ((x.y & 0x7f7f7f7fu) + 0x01010101u) |
            ((x.z & 0x7f7f7f7fu) + 0x01010101u) | ((x.w & 0x7f7f7f7fu) + 0x01010101u);
        wrong |= (seen & 0x80808080u ? 1u : 0u) << r;
    }
    return __reduce_or_sync(~0u, wrong);
}

/* m of a warp's rows, a part a lane, and what sums of parts are multiplied by; are they all 1? */
DEVICE void packed_put_scales(float *numbers, unsigned odd, float scale, int row, int lane,
                              unsigned wrong)
{
    const int r = lane / PACKED_PARTS, part = lane % PACKED_PARTS;
    float m = packed_rest(scale);
    if (wrong >> r & 1)
        m = bits_f32(0x7fc00000u);
    const float next = __shfl_down_sync(~0u, m, 1);
    if (r < PACKED_SHARE) {
        numbers[part * MLA_ROWS_TILE + row + r] = m;
        numbers[(PACKED_PARTS + part) * MLA_ROWS_TILE + row + r] =
            part + 1 < PACKED_PARTS ? __fdividef(m, next) : m;
    }
    const bool plain = __all_sync(~0u, r >= PACKED_SHARE || m == 1.0f);
    if (lane == 0)
        shared_store_word(odd, !plain);
}

/* The numbers of a warp's rows, from when they are there. */
DEVICE void packed_rows_measure(const mla_shared<ROWS> &m, ring<PACKED_WIDE> &next, unsigned phase,
                                int warp, int lane)
{
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        const int share = warp * 2 + i;
        const unsigned raw = m.raw + share * PACKED_SHARE * MLA_PACKED_PITCH;
        barrier_wait(m.raw_full + 8 * share, phase);
        const unsigned wrong = packed_wrong(raw, lane);
        const float scale = packed_row_scale(raw, lane);
        release(m.raw_empty + 8 * share);
        if (i == 0)
            barrier_wait(m.empty + 8 * next.slot, next.phase ^ 1);
        packed_put_scales(packed_numbers(m, next.slot),
                          m.odd + (next.slot * PACKED_SHARES + share) * 4, scale,
                          share * PACKED_SHARE, lane, wrong);
    }
    barrier_arrive(m.full + 8 * next.slot);
    next.advance();
}

DEVICE void packed_rows_feed(const mla_call &c, const mla_shared<ROWS> &m)
{
    constexpr int mine = 2 * PACKED_SHARE;
    const int warp = uniform((int)threadIdx.x / 32), lane = (int)threadIdx.x % 32;
    const bool aligned = c.operands.aligned & CALL_ALIGNED_CACHE;
    const mask_rule rule = plan_rule(&c);
    ring<PACKED_WIDE> next;
    unsigned phase = 1;
    mla_walk w = walk_before(c);
    while (walk_next(c, w)) {
        index_sequence q;
        int lo, hi;
        unit_begin<ROWS>(c, w, rule, &q, &lo, &hi);
        int j = (w.u.first_tile + w.t0) * MLA_ROWS_TILE + warp * mine + lane % mine;
        codes_source now = codes_find_source(c, q, lo, hi, j, find_entry(c, q, lo, hi, j));
        j += MLA_ROWS_TILE;
        int entry = find_entry(c, q, lo, hi, j);
#pragma unroll 1
        for (int more = w.t1 - w.t0; more > 0; more--) {
#pragma unroll 1
            for (int i = 0; i < 2; i++) {
                const int share = warp * 2 + i;
                barrier_wait(m.raw_empty + 8 * share, phase);
                packed_rows_load(now, i * PACKED_SHARE,
                                 m.raw + share * PACKED_SHARE * MLA_PACKED_PITCH,
                                 m.raw_full + 8 * share, lane, aligned, codes_policy(c));
            }
            phase ^= 1;
            now = codes_find_source(c, q, lo, hi, j, entry); /* while these arrive */
            if (now.fresh && more > 1)
                codes_fetch(now.row, MLA_LORA);
            j += MLA_ROWS_TILE;
            entry = find_entry(c, q, lo, hi, j);
            packed_rows_measure(m, next, phase, warp, lane);
        }
    }
    if (c.operands.save) /* last, so that the first tile does not wait for it */
        packed_save(c, warp, GROUP_THREADS / 32, lane);
}

/* ---- Warpgroups 2 and 3: widening ------------------------------------------------------------ */

/* "prmt": a code in each half, under eight copies of its sign: bytes 0 and 1 of a word, or 2 and 3. */
#define PACKED_FIRST  0x9180
#define PACKED_SECOND 0xb3a2

template <int pattern> DEVICE unsigned packed_bits(unsigned word, unsigned by)
{
    unsigned pair;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(pair) : "r"(word), "n"(pattern));
    pair = pair << 4 & 0x87f087f0u;
    asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(by));
    return pair;
}

DEVICE void packed_widen_piece(uint4 x, unsigned by, unsigned first, unsigned second)
{
    shared_store(
        first, make_uint4(packed_bits<PACKED_FIRST>(x.x, by), packed_bits<PACKED_SECOND>(x.x, by),
                          packed_bits<PACKED_FIRST>(x.y, by), packed_bits<PACKED_SECOND>(x.y, by)));
    shared_store(second,
                 make_uint4(packed_bits<PACKED_FIRST>(x.z, by), packed_bits<PACKED_SECOND>(x.z, by),
                            packed_bits<PACKED_FIRST>(x.w, by),
                            packed_bits<PACKED_SECOND>(x.w, by)));
}

/* A warp's rows: lanes have a word of 16 codes of one of two rows and of four panels at a time. */
DEVICE void packed_widen_rows(unsigned tile, unsigned raw, unsigned row, unsigned lane)
{
    constexpr int steps = PACKED_SHARE; /* two rows, four panels each */
    const unsigned t = lane % 4, parity = lane / 4 % 2, panel = lane / 8;
    const unsigned from = raw + parity * MLA_PACKED_PITCH + panel * PANEL + t * 16;
    const unsigned by = packed_multiplier(f32_bits(packed_row_scale(raw, lane)));
    const unsigned to = tile + panel * ROWS_PANEL;
    uint4 x[2];
    x[0] = shared_load(from);
#pragma unroll
    for (int i = 0; i < steps; i++) {
        if (i + 1 < steps)
            x[(i + 1) % 2] =
                shared_load(from + (i + 1) / 2 * 2 * MLA_PACKED_PITCH + (i + 1) % 2 * 4 * PANEL);
        const unsigned r = row + i / 2 * 2 + parity;
        const unsigned at = to + r * ROW_BYTES + (2 * t ^ r % 8) * 16;
        const unsigned mine =
            __shfl_sync(~0u, by, (i / 2 * 2 + parity) * PACKED_PARTS + panel / 2 + i % 2 * 2);
        packed_widen_piece(x[i % 2], mine, at + i % 2 * 4 * ROWS_PANEL,
                           (at ^ 16) + i % 2 * 4 * ROWS_PANEL);
    }
#pragma unroll
    for (int i = 0; i < (PACKED_SHARE + 3) / 4; i++) {
        const unsigned r = i * 4 + lane / 8;
        if (r < PACKED_SHARE)
            shared_store(
                tile + (PANELS - 1) * ROWS_PANEL + (row + r) * ROW_BYTES +
                    (lane % 8 ^ (row + r) % 8) * 16,
                shared_load(raw + r * MLA_PACKED_PITCH + MLA_PACKED_ROPE_AT + lane % 8 * 16));
    }
}

/* The next tile, by the eight warps that add up values; `filled` tiles are there. */
DEVICE void packed_rows_fill(const mla_shared<ROWS> &m, unsigned &filled, int warp, int lane)
{
    const int slot = filled % PACKED_WIDE;
    barrier_wait(m.raw_full + warp * 8, filled % 2);
    barrier_wait(m.empty + 8 * slot, filled / PACKED_WIDE % 2 ^ 1);
    packed_widen_rows(packed_tile(m, slot), m.raw + warp * PACKED_SHARE * MLA_PACKED_PITCH,
                      warp * PACKED_SHARE, lane);
    release(m.raw_empty + warp * 8);
    fence_async_shared();
    barrier_arrive(m.full + 8 * slot);
    filled++;
}

/* ---- Warpgroup 1: scores --------------------------------------------------------------------- */

/* descriptor_advance() in 32 bits: no sum carries into the upper half. With 64 bits the compiler takes seven
 * instructions for a product, four of which wait for each other. */
DEVICE unsigned long long packed_advance(unsigned long long descriptor, unsigned bytes)
{
    unsigned low, high;
    asm("mov.b64 {%0, %1}, %2;" : "=r"(low), "=r"(high) : "l"(descriptor));
    low += bytes >> 4;
    asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(low), "r"(high));
    return descriptor;
}

/* Panels first ... first + count - 1 of the scores. */
template <int first, int count>
DEVICE void packed_rows_panels(float (&s)[ROWS_SCORES], const rows_held &held,
                               const mla_shared<ROWS> &m, unsigned tile)
{
    const unsigned long long a = matrix_descriptor(unknown(m.q), 16, 8 * ROW_BYTES);
    const unsigned long long b = matrix_descriptor(unknown(tile), 16, 8 * ROW_BYTES);
    wgmma_fence();
#pragma unroll
    for (int i = first * 4; i < (first + count) * 4; i++) {
        const unsigned long long keys = packed_advance(b, i / 4 * ROWS_PANEL + i % 4 * 32);
        if (i < ROWS_IN * 4)
            wgmma_ss<MLA_ROWS_TILE, false, 0>(
                s, packed_advance(a, i / 4 * (ROWS * ROW_BYTES) + i % 4 * 32), keys, i > 0);
        else
            wgmma_rs<MLA_ROWS_TILE, false, 0>(s, held[i - ROWS_IN * 4], keys, 1);
    }
    wgmma_commit();
}

DEVICE void packed_rows_wait(float (&s)[ROWS_SCORES])
{
    wgmma_wait<0>();
    wgmma_arrived(s);
}

/* Numbers of a lane's tokens. */
struct packed_lane {
    float2 x[MLA_ROWS_TILE / 8];
};

/* `numbers`: those of a part, of this lane's first token. */
DEVICE packed_lane packed_load_numbers(const float *numbers)
{
    packed_lane f;
#pragma unroll
    for (int i = 0; i < MLA_ROWS_TILE / 8; i++)
        f.x[i] = *(const float2 *)(numbers + i * 8);
    return f;
}

/* The numbers are loaded before the products are done. */
DEVICE void packed_rows_times(float (&s)[ROWS_SCORES], const float *numbers)
{
    const packed_lane f = packed_load_numbers(numbers);
    packed_rows_wait(s);
#pragma unroll
    for (int i = 0; i < MLA_ROWS_TILE / 8; i++)
        scale_columns(s + 4 * i, f.x[i]);
}

template <int first, int count>
DEVICE void packed_rows_part(float (&s)[ROWS_SCORES], const rows_held &held,
                             const mla_shared<ROWS> &m, unsigned tile, const float *numbers)
{
    packed_rows_panels<first, count>(s, held, m, tile);
    packed_rows_times(s, numbers);
}

/* Are the tile's scales powers of two? Its first products do not wait for that. */
DEVICE bool packed_rows_scores(float (&s)[ROWS_SCORES], const rows_held &held,
                               const mla_shared<ROWS> &m, int slot, int lane)
{
    const unsigned tile = packed_tile(m, slot);
    const float *by = packed_numbers(m, slot) + PACKED_PARTS * MLA_ROWS_TILE + lane % 4 * 2;
    packed_rows_panels<0, 2>(s, held, m, tile);
    const bool plain = packed_plain(m, slot);
    if (plain) {
        packed_rows_panels<2, PANELS - 2>(s, held, m, tile);
        packed_rows_wait(s);
        return true;
    }
    packed_rows_times(s, by);
    packed_rows_part<2, 2>(s, held, m, tile, by + MLA_ROWS_TILE);
    packed_rows_part<4, 2>(s, held, m, tile, by + 2 * MLA_ROWS_TILE);
    packed_rows_part<6, 2>(s, held, m, tile, by + 3 * MLA_ROWS_TILE);
    packed_rows_panels<8, 1>(s, held, m, tile);
    packed_rows_wait(s);
    return false;
}

/* Probabilities times m of a part. */
DEVICE void packed_rows_store_times(unsigned p, const float (&s)[ROWS_SCORES], const packed_lane &m,
                                    int warp, int lane)
{
    const int row = warp * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
    for (int i = 0; i < MLA_ROWS_TILE / 8; i += 2) {
        const float2 f = m.x[i], g = m.x[i + 1];
        store_matrices(p + swizzled(row, i + lane / 16),
                       pack_pair<false>(s[4 * i] * f.x, s[4 * i + 1] * f.y),
                       pack_pair<false>(s[4 * i + 2] * f.x, s[4 * i + 3] * f.y),
                       pack_pair<false>(s[4 * i + 4] * g.x, s[4 * i + 5] * g.y),
                       pack_pair<false>(s[4 * i + 6] * g.x, s[4 * i + 7] * g.y));
    }
}

DEVICE void packed_rows_store(const float (&s)[ROWS_SCORES], const float (&factor)[2],
                              const mla_shared<ROWS> &m, int slot, bool plain, int warp, int lane)
{
    if (plain) {
        rows_store<false>(s, factor, m, warp, lane);
        return;
    }
    const float *numbers = packed_numbers(m, slot) + lane % 4 * 2;
    packed_lane now = packed_load_numbers(numbers);
#pragma unroll
    for (int part = 0; part < PACKED_PARTS; part++) {
        const packed_lane next = part + 1 < PACKED_PARTS
                                     ? packed_load_numbers(numbers + (part + 1) * MLA_ROWS_TILE)
                                     : now;
        packed_rows_store_times(m.p + part * MLA_ROWS_SHARED_P, s, now, warp, lane);
        now = next;
    }
    if (lane % 4 == 0) {
        m.factor[row_of(warp, lane, 0)] = factor[0];
        m.factor[row_of(warp, lane, 1)] = factor[1];
    }
}

DEVICE void packed_rows_score(const mla_call &c, const mla_shared<ROWS> &m)
{
    const int thread = (int)threadIdx.x - GROUP_THREADS, warp = thread / 32, lane = thread % 32;
    const mask_rule rule = plan_rule(&c);
    const float scale = c.sm_scale * SOFTMAX_LOG2E, sign = scale > 0   ? 1.0f
                                                           : scale < 0 ? -1.0f
                                                                       : scale;
    ring<PACKED_WIDE> at;
    unsigned p_phase = 1;
    rows_held held;
    mla_walk w = walk_before(c);
    while (walk_next(c, w)) {
        index_sequence q;
        float s[ROWS_SCORES], scales[2];
        int lo, least_hi;
        mla_rows rows = {{SOFTMAX_EMPTY, SOFTMAX_EMPTY}, {0, 0}};
        scales[0] = scales[1] = scale != 0 ? fabsf(scale) : 1.0f;
        walk_sequence(c, w, &q);
        if (thread < ROWS) {
            int from, to;
            row_seen<ROWS>(c, w, q, rule, thread, &from, &to);
            shared_store_pair(rows_seen_place(m, thread), from, to);
        }
        rows_take_queries<false, true>(c, w, q, m, held, scales, warp, lane);
        seen_by_all<ROWS>(c, w, q, rule, &lo, &least_hi);
        int j = (w.u.first_tile + w.t0) * MLA_ROWS_TILE;
        for (int t = w.t1 - w.t0; t > 0; t--) {
            float factor[2];
            barrier_wait(m.full + 8 * at.slot, at.phase);
            const bool plain = packed_rows_scores(s, held, m, at.slot, lane);
            if (sign != 1.0f)
#pragma unroll
                for (int i = 0; i < ROWS_SCORES; i++)
                    s[i] *= sign;
            if (j < lo || j + MLA_ROWS_TILE > least_hi)
                rows_hide(s, m, j + lane % 4 * 2, warp, lane);
            rows_softmax(s, rows, factor, scales, 0.0f);
            barrier_wait(m.p_empty, p_phase);
            p_phase ^= 1;
            packed_rows_store(s, factor, m, at.slot, plain, warp, lane);
            fence_async_shared();
            barrier_arrive(m.p_full);
            release(m.empty + 8 * at.slot);
            j += MLA_ROWS_TILE;
            at.advance();
        }
        walk_again(c, w);
        walk_sequence(c, w, &q);
        barrier_wait(m.p_empty, p_phase);
        p_phase ^= 1;
        rows_finish(c, w, q, rows, m, 1.0f, 1.0f, warp, lane);
        barrier_arrive(m.p_full);
        named_sync(1, GROUP_THREADS); /* all have used the queries */
    }
}

/* ---- Warpgroups 2 and 3: values -------------------------------------------------------------- */

/* `p`: the probabilities for the first of two parts, `next`: how far away those for the other one are. */
DEVICE void packed_rows_add(float (&o)[2][64], unsigned p, unsigned next, unsigned values, int add)
{
    wgmma_fence();
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const unsigned long long a = matrix_descriptor(p + side * next, 16, 8 * ROW_BYTES);
        const unsigned long long b =
            matrix_descriptor(values + side * 2 * ROWS_PANEL, ROWS_PANEL, 8 * ROW_BYTES);
#pragma unroll
        for (int i = 0; i < MLA_ROWS_TILE / 16; i++)
            wgmma_ss<128, false, 1>(o[side], packed_advance(a, i * 32),
                                    packed_advance(b, i * 16 * ROW_BYTES), i > 0 ? 1 : add);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_arrived(o[0]);
    wgmma_arrived(o[1]);
}

DEVICE void packed_rows_add_up(const mla_call &c, const mla_shared<ROWS> &m)
{
    const int thread = (int)threadIdx.x - 2 * GROUP_THREADS;
    const int group = uniform(thread / GROUP_THREADS);
    unsigned filled = 0, phase = 0;
    float o[2][64];
    clear_padding(c, thread, 2 * GROUP_THREADS);
    mla_walk w = walk_before(c);
    while (walk_next(c, w)) {
        packed_rows_fill(m, filled, thread_here() / 32 - 8, thread_here() % 32);
        for (int more = w.t1 - w.t0, add = 0; more > 0; more--, add = 1) {
            if (more > 1)
                packed_rows_fill(m, filled, thread_here() / 32 - 8, thread_here() % 32);
            const int slot = (int)(filled - (more > 1 ? 2 : 1)) % PACKED_WIDE;
            barrier_wait(m.p_full, phase);
            phase ^= 1;
            const bool plain = packed_plain(m, slot);
            if (add)
                rows_multiply(o, m, thread_here() / 32 % 4, thread_here() % 32);
            packed_rows_add(o, m.p + (plain ? 0 : group * 2 * MLA_ROWS_SHARED_P),
                            plain ? 0 : MLA_ROWS_SHARED_P,
                            packed_tile(m, slot) + group * 4 * ROWS_PANEL, add);
            barrier_arrive(m.p_empty);
            release(m.empty + 8 * slot);
        }
        barrier_wait(m.p_full, phase);
        phase ^= 1;
        rows_multiply(o, m, thread_here() / 32 % 4, thread_here() % 32);
        barrier_arrive(m.p_empty);
        rows_end(c, w, o, group);
    }
}

struct packed_rows_roles {
    static constexpr int rows = ROWS, stages = PACKED_WIDE;
    static constexpr int feeding = 56, scoring = 120, adding = 168;
    static constexpr int scorers = 1, buffers = 1, turns = 0;
    static constexpr int fillers = 3 * GROUP_THREADS, raws = 0, shares = PACKED_SHARES;

    MLA_ROLES(packed_rows_find(memory), packed_rows_feed(c, m), packed_rows_score(c, m),
              packed_rows_add_up(c, m))
};

#define MLA_ATTEND_PACKED_ROWS(name) MLA_KERNEL(name, MLA_THREADS, packed_rows_roles)

#endif /* FLASHMLA_LIKE_ATTEND_PACKED_ROWS_CUH */
