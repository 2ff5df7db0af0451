/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_packed.cuh: 8 query rows over tiles of 64 latents of mla.latent_fp8/1: 512 e4m3 values, a
 * scale for each 128 of them, and 64 bf16 elements. The products are those of attend_codes.cuh,
 * with tokens or dimensions as rows; fp8 is widened in registers. No scale is rounded into a key:
 *
 *   S^T = scale_0 K_0 Q_0^T + ... + scale_3 K_3 Q_3^T + R Q_pe^T    K_b: 128 values as fp16, R: bf16
 *   O_b^T += V_b^T (scale_b P)^T                                    V_b: 128 values as fp16 or bf16
 *
 * A tile has the cache's row format. Tokens are rows of the scores' products, so a lane has the
 * scales of its two tokens. Probabilities are multiplied by their token's scale in fp32, and
 * rounded once for each of the four parts: to fp16 if a tile's scales are close to each other
 * (packed_unit), else to bf16, since scales may have any size. With bf16, values are multiplied by
 * 2^-8 and probabilities by 2^8, so that small scales do not underflow.
 */
#ifndef FLASHMLA_LIKE_ATTEND_PACKED_CUH
#define FLASHMLA_LIKE_ATTEND_PACKED_CUH

#include "plugins/flashmla_like/kernels/attend_rows.cuh"

#include "plugins/common/cuda/save_packed.cuh"

#define PACKED_PARTS   (MLA_LORA / PACKED_SCALED)
#define PACKED_P_SCALE 256.0f
#define PACKED_NEAR    8 /* fp16 tiles: least scale >= 2^-PACKED_NEAR times the largest */

/* ---- Shared memory --------------------------------------------------------------------------- */

template <int N> DEVICE mla_shared<N> packed_find(unsigned char *memory)
{
    mla_shared<N> m;
    m.q = shared_address(memory);
    m.p = m.q + MLA_SHARED_Q(N);
    m.tiles = m.p + MLA_PACKED_BUFFERS * MLA_PACKED_P(N);
    m.exchange = (float *)(memory + (m.tiles - m.q) + MLA_PACKED_STAGES(N) * MLA_PACKED_TILE);
    m.factor = m.exchange + 8 * MLA_PACKED_SCORERS * N;
    m.q_scale = m.factor + MLA_PACKED_BUFFERS * N;
    m.lo = (int *)(m.q_scale + N);
    m.hi = m.lo + N;
    m.full = shared_address(m.hi + N);
    m.empty = m.full + 8 * MLA_PACKED_STAGES(N);
    m.p_full = m.empty + 8 * MLA_PACKED_STAGES(N);
    m.p_empty = m.p_full + 8 * MLA_PACKED_BUFFERS;
    m.odd = m.p_empty + 8 * MLA_PACKED_BUFFERS;
    m.scored = m.raw_full = m.raw_empty = 0;
    return m;
}

/* The address of the flag: are a buffer's probabilities fp16? */
template <int N> DEVICE unsigned packed_form(const mla_shared<N> &m, int slot)
{
    return m.odd + 32 + slot * 4;
}

/* ---- Warpgroup 0: tiles ---------------------------------------------------------------------- */

DEVICE void shared_store_word(unsigned address, unsigned x)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

/* A lane's four fp8 values of a part of a new latent, as the cache would store them, and the part's
 * scale. */
DEVICE u32 packed_codes(const char *c_kv, int part, int lane, float *scale)
{
    const any16 *from = (const any16 *)c_kv + part * PACKED_SCALED;
    u32 codes = 0;
    *scale = packed_scale(from, lane, 32);
#pragma unroll
    for (int i = 0; i < 4; i++)
        codes |= (u32)save_kv_quantise(ELEMENT_E4M3, element_from_bf16(from[lane * 4 + i]), *scale)
                 << 8 * i;
    return codes;
}

/* Two elements of the latent's position-encoded part. */
DEVICE u32 packed_pair(const char *k_pe, int lane)
{
    const any16 *from = (const any16 *)k_pe + lane * 2;
    return from[0] | (u32)from[1] << 16;
}

/* Writes a new latent in the cache's row format, by a warp. */
DEVICE void packed_quantise(unsigned to, const char *c_kv, const char *k_pe, int lane)
{
    const u32 pair = packed_pair(k_pe, lane);
#pragma unroll 1
    for (int part = 0; part < PACKED_PARTS; part++) {
        float scale;
        const u32 codes = packed_codes(c_kv, part, lane, &scale);
        shared_store_word(to + part * PACKED_SCALED + lane * 4, codes);
        if (lane == 0)
            shared_store_word(to + MLA_LORA + part * 4, f32_bits(scale));
    }
    shared_store_word(to + MLA_PACKED_ROPE_AT + lane * 4, pair);
}

/* Loads a warp's rows that are not `copied`: new, not visible, or unaligned. */
DEVICE void packed_load_slow(const codes_source &mine, unsigned to, unsigned copied, int lane)
{
#pragma unroll 1
    for (unsigned left = ~copied & 0xffff; left; left &= left - 1) {
        const int i = __ffs((int)left) - 1;
        const int bytes = __shfl_sync(~0u, mine.bytes, i);
        const char *from = shuffle_pointer(mine.row, i), *k_pe = shuffle_pointer(mine.k_pe, i);
        if (__shfl_sync(~0u, mine.fresh, i))
            packed_quantise(to + i * MLA_PACKED_BYTES, from, k_pe, lane);
        else
#pragma unroll 1
            for (int p = lane * 16; p < MLA_PACKED_BYTES; p += 512)
                codes_copy(to + i * MLA_PACKED_BYTES + p, from + p, bytes, false);
    }
    fence_async_shared();
}

/* Copies eight of a warp's rows, those in `copied`: one lane issues one bulk copy for each. `far`:
 * a lane's row, in units of 16 bytes from `cache`, so that a row's address takes one shuffle. */
template <bool all>
DEVICE void packed_copy_eight(const char *cache, unsigned far, unsigned to, unsigned full,
                              unsigned copied, int first, unsigned long long policy)
{
    unsigned rows[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        rows[i] = __shfl_sync(~0u, far, first + i);
    if (elected())
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (all || copied >> (first + i) & 1)
                bulk_load_by(to + (first + i) * MLA_PACKED_BYTES, cache + (u64)rows[i] * 16,
                             MLA_PACKED_BYTES, full, policy);
    __syncwarp();
}

/* Copies a warp's rows in `copied`; by one copy if all 16 are contiguous. */
DEVICE void packed_copy(const char *cache, unsigned far, unsigned to, unsigned full,
                        unsigned copied, int lane, unsigned long long policy)
{
    const unsigned first = __shfl_sync(~0u, far, 0);
    const bool next = far == first + lane % 16 * (MLA_PACKED_BYTES / 16);
    if (elected())
        barrier_arrive_expect(full, (unsigned)__popc(copied) * MLA_PACKED_BYTES);
    __syncwarp();
    if (copied != 0xffff) {
        packed_copy_eight<false>(cache, far, to, full, copied, 0, policy);
        packed_copy_eight<false>(cache, far, to, full, copied, 8, policy);
    } else if (!__all_sync(~0u, next)) {
        packed_copy_eight<true>(cache, far, to, full, copied, 0, policy);
        packed_copy_eight<true>(cache, far, to, full, copied, 8, policy);
    } else if (elected()) {
        bulk_load_by(to, cache + (u64)first * 16, 16 * MLA_PACKED_BYTES, full, policy);
    }
}

/* Loads a warp's 16 rows of a tile. One lane arrives at `full` for the bulk copies. All lanes
 * arrive again, as each may have written other rows. */
DEVICE void packed_load(const mla_call &c, const codes_source &mine, unsigned tile, unsigned full,
                        int warp, int lane)
{
    const char *cache = (const char *)c.operands.k_cache;
    const u64 far = (u64)(mine.row - cache) / 16;
    const bool aligned = c.operands.aligned & CALL_ALIGNED_CACHE;
    const unsigned to = tile + warp * 16 * MLA_PACKED_BYTES;
    const unsigned copied =
        __ballot_sync(~0u, aligned && mine.bytes && !mine.fresh && far >> 32 == 0) & 0xffff;
    packed_copy(cache, (unsigned)far, to, full, copied, lane, codes_policy(c));
    if (copied != 0xffff)
        packed_load_slow(mine, to, copied, lane);
    barrier_arrive(full);
}

template <int N> DEVICE void packed_feed(const mla_call &c, const mla_shared<N> &m)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    feed_tiles<N, MLA_TILE, MLA_PACKED_STAGES(N)>(
        c, m, warp * 16 + lane % 16,
        [&](const index_sequence &q, int lo, int hi, int j, int entry) {
            return codes_find_early(c, q, lo, hi, j, entry);
        },
        [&](const codes_source &now, int slot, unsigned full) {
            packed_load(c, now, m.tiles + slot * MLA_PACKED_TILE, full, warp, lane);
        });
}

/* ---- Scores ---------------------------------------------------------------------------------- */

/* The scales of a lane's two tokens. */
struct packed_scales {
    float4 x[2];
};

DEVICE float packed_of(const float4 &x, int part)
{
    return part == 0 ? x.x : part == 1 ? x.y : part == 2 ? x.z : x.w;
}

DEVICE float4 packed_load_scales(unsigned address)
{
    const uint4 x = shared_load(address);
    return make_float4(bits_f32(x.x), bits_f32(x.y), bits_f32(x.z), bits_f32(x.w));
}

/* Products of the position-encoded part. `at`: the first two elements of the lane's first token. */
template <int N> DEVICE void packed_multiply_rope(float (&s)[N / 2], unsigned q, unsigned at)
{
    const unsigned long long b =
        matrix_descriptor(q + MLA_LORA / PANEL * (N * ROW_BYTES), 16, 8 * ROW_BYTES);
    unsigned a[MLA_ROPE / 16][4];
#pragma unroll
    for (int i = 0; i < MLA_ROPE / 16; i++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            a[i][k] = shared_load_word(at + i * 32 + k / 2 * 16 + k % 2 * 8 * MLA_PACKED_BYTES);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < MLA_ROPE / 16; i++)
        wgmma_rs<N, false, 0>(s, a[i], descriptor_advance(b, i * 32), i > 0);
    wgmma_commit();
}

/* Adds a part's products times its scales to the scores. */
template <int N>
DEVICE void packed_take_part(float (&s)[N / 2], float (&sums)[N / 2], const mla_shared<N> &m,
                             const packed_scales &scales, int part, int lane)
{
    const float first = packed_of(scales.x[0], part), second = packed_of(scales.x[1], part);
    wgmma_arrived(sums);
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        const float2 f = *(const float2 *)(m.q_scale + i * 8 + lane % 4 * 2);
        s[4 * i] += sums[4 * i] * f.x * first;
        s[4 * i + 1] += sums[4 * i + 1] * f.y * first;
        s[4 * i + 2] += sums[4 * i + 2] * f.x * second;
        s[4 * i + 3] += sums[4 * i + 3] * f.y * second;
    }
}

/* `at`: the place of block 0 in the lane's first token. */
template <int blocks> DEVICE void packed_load_chunk(codes_chunk<blocks> &k, unsigned at, int first)
{
#pragma unroll
    for (int b = 0; b < blocks; b++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            k.x[b][r] = codes_load(at + (first + b) * 32 + 8 * r * MLA_PACKED_BYTES);
}

/* The scores of a tile in units of log 2. Two sets of sums alternate: one is multiplied by scales
 * while products are added to the other. The tile is released when all values are loaded. */
template <int N>
DEVICE void packed_scores(float (&s)[N / 2], const packed_scales &scales, const mla_shared<N> &m,
                          unsigned tile, unsigned empty, float scale, int warp, int lane)
{
    constexpr int blocks = 2, chunks = MLA_LORA / 32 / blocks;
    constexpr int of_part = chunks / PACKED_PARTS;
    const unsigned long long b = matrix_descriptor(m.q, 16, 8 * ROW_BYTES);
    const unsigned row = tile + (warp * 16 + lane / 4) * MLA_PACKED_BYTES;
    const unsigned at = row + lane % 4 * 8;
    float sums[2][N / 2];
    unsigned a[2][2 * blocks][4];
    codes_chunk<blocks> k;
    packed_load_chunk(k, at, 0);
    packed_multiply_rope<N>(s, m.q, row + MLA_PACKED_ROPE_AT + lane % 4 * 4);
#pragma unroll
    for (int i = 0; i < chunks; i++) {
        if (i >= 2)
            wgmma_wait<1>();
        if (i == 2) {
            wgmma_arrived(s);
#pragma unroll
            for (int n = 0; n < N / 2; n++)
                s[n] *= scale;
        }
        if (i > of_part && i % of_part == 1)
            packed_take_part<N>(s, sums[(i / of_part - 1) % 2], m, scales, i / of_part - 1, lane);
        codes_widen_chunk(k, a[i % 2]);
        if (i + 1 < chunks)
            packed_load_chunk(k, at, (i + 1) * blocks);
        else
            release(empty);
        wgmma_fence();
#pragma unroll
        for (int n = 0; n < 2 * blocks; n++) {
            const int step = i * 2 * blocks + n;
            wgmma_rs<N, true, 0>(sums[step / 8 % 2], a[i % 2][n],
                                 descriptor_advance(b, step / 4 * (N * ROW_BYTES) + step % 4 * 32),
                                 step % 8 > 0);
        }
        wgmma_commit();
    }
    wgmma_wait<0>();
    packed_take_part<N>(s, sums[1], m, scales, 3, lane);
}

/* ---- Probabilities --------------------------------------------------------------------------- */

/* The factor of probabilities times scales. Sums of outputs are scaled by 2^(141 - top), with `top`
 * the largest exponent of a scale of the unit so far. Tiles are fp16 if their scales are close to
 * it, and bf16 if one is too small for that. */
struct packed_unit {
    int top = 15; /* the minimum keeps all powers of two in range */

    DEVICE_MEMBER float up(void) const
    {
        return bits_f32((u32)(268 - top) << 23);
    }
    DEVICE_MEMBER float down(void) const
    {
        return bits_f32((u32)(top - 14) << 23);
    }
};

/* Writes the smallest and largest exponent of the warp's nonzero scales of a tile. */
DEVICE void packed_measure(const packed_scales &scales, unsigned marks, int warp, int lane)
{
    unsigned least = ~0u, most = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float x[PACKED_PARTS] = {scales.x[r].x, scales.x[r].y, scales.x[r].z, scales.x[r].w};
#pragma unroll
        for (int part = 0; part < PACKED_PARTS; part++) {
            const unsigned bits = f32_bits(x[part]) << 1;
            least = min(least, bits - 1);
            most = max(most, bits);
        }
    }
    least = __reduce_min_sync(~0u, least) >> 24;
    most = __reduce_max_sync(~0u, most) >> 24;
    if (lane == 0) {
        asm volatile("st.shared.u8 [%0], %1;" ::"r"(marks + warp), "r"(least) : "memory");
        asm volatile("st.shared.u8 [%0], %1;" ::"r"(marks + 8 + warp), "r"(most) : "memory");
    }
}

/* Combines the warps' exponents: are probabilities fp16? `shrink`: the factor of earlier sums. */
template <int warps> DEVICE bool packed_agree(packed_unit &unit, unsigned marks, float &shrink)
{
    unsigned least = ~0u, most = 0;
#pragma unroll
    for (int i = 0; i < warps; i += 4) {
        least = __vminu4(least, shared_load_word(marks + i));
        most = __vmaxu4(most, shared_load_word(marks + 8 + i));
    }
    least = __vminu4(least, least >> 16), most = __vmaxu4(most, most >> 16);
    const int low = (int)min(least & 255, least >> 8 & 255);
    const int high = (int)max(most & 255, most >> 8 & 255);
    const int top = high <= unit.top ? unit.top : int_min(high + 1, 141);
    shrink = bits_f32((u32)(127 + unit.top - top) << 23);
    unit.top = top;
    return high <= top && low + PACKED_NEAR >= top;
}

template <int N, bool is_f16, int part>
DEVICE void packed_store_part(unsigned p, const float (&s)[N / 2], const packed_scales &scales,
                              float up, int warp, int lane)
{
    const float first = packed_of(scales.x[0], part) * up;
    const float second = packed_of(scales.x[1], part) * up;
    float x[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        x[i] = s[i] * (i % 4 < 2 ? first : second);
    store_turned<N, is_f16>(p + part * MLA_SHARED_P(N), x, warp, lane);
}

/* Stores probabilities times the scales of each part. */
template <int N, bool is_f16>
DEVICE void packed_store(unsigned p, const float (&s)[N / 2], const packed_scales &scales, float up,
                         int warp, int lane)
{
    packed_store_part<N, is_f16, 0>(p, s, scales, up, warp, lane);
    packed_store_part<N, is_f16, 1>(p, s, scales, up, warp, lane);
    packed_store_part<N, is_f16, 2>(p, s, scales, up, warp, lane);
    packed_store_part<N, is_f16, 3>(p, s, scales, up, warp, lane);
}

template <int N> DEVICE void packed_score(const mla_call &c, const mla_shared<N> &m)
{
    constexpr int scorers = MLA_PACKED_SCORERS, threads = scorers * GROUP_THREADS;
    const int thread = (int)threadIdx.x - GROUP_THREADS, warp = thread / 32, lane = thread % 32;
    const int mine = uniform(thread / GROUP_THREADS);
    const float scale = c.sm_scale * SOFTMAX_LOG2E;
    ring<MLA_PACKED_STAGES(N)> at;
    ring<MLA_PACKED_BUFFERS> part;
    mla_walk w;
    for (bool has_unit = walk_begin(c, w); has_unit; has_unit = walk_next(c, w)) {
        index_sequence q;
        mla_columns<N> columns;
        float factor[N / 4], s[N / 2];
        int lo, least_hi;
        walk_sequence(c, w, &q);
        load_queries<N, threads>(c, w, q, m, thread);
        convert_queries<N, MLA_LORA / 32, threads>(m, scale, thread);
        all_see<N>(c, w, q, m, &lo, &least_hi);
        columns_begin<N>(columns);
        packed_unit unit;
        for (int t = w.t0; t < w.t1; t += scorers) {
            const int j = (w.u.first_tile + t + mine) * MLA_TILE;
            packed_scales scales = {{{0, 0, 0, 0}, {0, 0, 0, 0}}};
            codes_none<N>(s);
#pragma unroll
            for (int i = 0; i < scorers; i++) {
                if (t + i >= w.t1)
                    break;
                if (i == mine) {
                    const unsigned tile = m.tiles + at.slot * MLA_PACKED_TILE;
                    const unsigned of_row =
                        tile + (warp % 4 * 16 + lane / 4) * MLA_PACKED_BYTES + MLA_LORA;
                    barrier_wait(m.full + 8 * at.slot, at.phase);
                    scales.x[0] = packed_load_scales(of_row);
                    scales.x[1] = packed_load_scales(of_row + 8 * MLA_PACKED_BYTES);
                    packed_scores<N>(s, scales, m, tile, m.empty + 8 * at.slot, scale, warp % 4,
                                     lane);
                }
                at.advance();
            }
            if (j < lo || j + MLA_TILE > least_hi)
                hide<N>(s, m, j + warp % 4 * 16 + lane / 4, lane);
            const mla_shared<N> by = exchange_buffer<N, scorers>(m, part.slot);
            packed_measure(scales, m.odd + part.slot * 16, warp, lane);
            softmax<N, 4 * scorers>(s, columns, factor, by, warp, lane);
            float shrink;
            const bool half = packed_agree<4 * scorers>(unit, m.odd + part.slot * 16, shrink);
#pragma unroll
            for (int k = 0; k < N / 4; k++)
                factor[k] *= shrink;
            const mla_shared<N> to = part_buffer<N, MLA_PACKED_P(N)>(m, part.slot);
            const unsigned p = to.p + mine * PACKED_PARTS * MLA_SHARED_P(N);
            barrier_wait(to.p_empty, part.phase ^ 1);
            if (half)
                packed_store<N, true>(p, s, scales, unit.up(), warp % 4, lane);
            else
                packed_store<N, false>(p, s, scales, unit.up() * PACKED_P_SCALE, warp % 4, lane);
            store_factors<N>(factor, to, warp, lane);
            if (thread == 0)
                shared_store_word(packed_form(m, part.slot), half);
            fence_async_shared();
            barrier_arrive(to.p_full);
            part.advance();
        }
        const float last = finish<N, 4 * scorers>(c, w, q, columns, m, warp, lane);
        const mla_shared<N> to = part_buffer<N, MLA_PACKED_P(N)>(m, part.slot);
        barrier_wait(to.p_empty, part.phase ^ 1);
        store_last<N>(last * unit.down(), to, warp, lane);
        barrier_arrive(to.p_full);
        part.advance();
    }
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* Element i of two words of fp8 values as a pair of bf16, times 2^-8. NaN becomes a number; the
 * token's score is NaN already. */
template <int i> DEVICE unsigned packed_widen(unsigned even, unsigned odd)
{
    const unsigned x = __byte_perm(even, odd, 0x4400 + i * 0x1111);
    unsigned pair = (x >> 4 & 0x07f007f0u) | (x & 0x80008000u);
    asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(0x77807780u));
    return pair;
}

/* Four dimensions of four tokens: 2 t and 2 t + 1 of the first 8 of 16, and of the second 8. */
struct packed_values {
    unsigned x[4];
};

DEVICE packed_values packed_load_values(unsigned at, int tokens)
{
    packed_values v;
#pragma unroll
    for (int i = 0; i < 4; i++)
        v.x[i] = shared_load_word(at + (tokens + i % 2 + i / 2 * 8) * MLA_PACKED_BYTES);
    return v;
}

/* Widens the operands of two products of 16 tokens; their rows are two of a lane's dimensions
 * each. */
DEVICE void packed_widen_values(const packed_values &v, unsigned (*a)[4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        a[0][2 * i] = packed_widen<0>(v.x[2 * i], v.x[2 * i + 1]);
        a[0][2 * i + 1] = packed_widen<1>(v.x[2 * i], v.x[2 * i + 1]);
        a[1][2 * i] = packed_widen<2>(v.x[2 * i], v.x[2 * i + 1]);
        a[1][2 * i + 1] = packed_widen<3>(v.x[2 * i], v.x[2 * i + 1]);
    }
}

/* The same in fp16. */
DEVICE void packed_widen_half(const packed_values &v, unsigned (*a)[4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const unsigned first = __byte_perm(v.x[2 * i], v.x[2 * i + 1], 0x5140);
        const unsigned second = __byte_perm(v.x[2 * i], v.x[2 * i + 1], 0x7362);
        a[0][2 * i] = widen_low(first);
        a[0][2 * i + 1] = widen_high(first);
        a[1][2 * i] = widen_low(second);
        a[1][2 * i + 1] = widen_high(second);
    }
}

/* Adds a tile's values in fp16, if `ready` returns that probabilities are fp16. `p`: those of this
 * warpgroup's two parts; `tile`: a lane's dimensions of the first part. */
template <int N, class wait>
DEVICE bool packed_add_half(mla_sums<N> &o, unsigned p, unsigned tile, unsigned empty, int add,
                            const wait &ready)
{
    constexpr int steps = MLA_TILE / 16, ahead = 2;
    const unsigned long long b = matrix_descriptor(p, 16, 8 * ROW_BYTES);
    unsigned a[ahead][4][4];
    packed_values v[2] = {packed_load_values(tile, 0), packed_load_values(tile + PACKED_SCALED, 0)};
#pragma unroll
    for (int i = 0; i < steps; i++) {
        if (i >= ahead)
            wgmma_wait<ahead - 1>();
        packed_widen_half(v[0], a[i % ahead]);
        packed_widen_half(v[1], a[i % ahead] + 2);
        if (i == 0 && !ready())
            return false;
        if (i + 1 == steps) {
            release(empty);
        } else {
            v[0] = packed_load_values(tile, i * 16 + 16);
            v[1] = packed_load_values(tile + PACKED_SCALED, i * 16 + 16);
        }
        wgmma_fence();
#pragma unroll
        for (int n = 0; n < 4; n++)
            wgmma_rs<N, true, 0>(o[n], a[i % ahead][n],
                                 descriptor_advance(b, n / 2 * MLA_SHARED_P(N) + i * 32),
                                 i > 0 ? 1 : add);
        wgmma_commit();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int n = 0; n < 4; n++)
        wgmma_arrived(o[n]);
    return true;
}

/* The same in bf16. */
template <int N>
DEVICE void packed_add(mla_sums<N> &o, unsigned p, unsigned tile, unsigned empty, int add)
{
    constexpr int steps = MLA_TILE / 16, ahead = 2;
    const unsigned long long b = matrix_descriptor(p, 16, 8 * ROW_BYTES);
    unsigned a[ahead][2][4];
    packed_values v = packed_load_values(tile, 0);
#pragma unroll
    for (int i = 0; i < 2 * steps; i++) { /* parts alternate */
        if (i >= ahead)
            wgmma_wait<ahead - 1>();
        packed_widen_values(v, a[i % ahead]);
        if (i + 1 == 2 * steps)
            release(empty);
        else
            v = packed_load_values(tile + (i + 1) % 2 * PACKED_SCALED, (i + 1) / 2 * 16);
        wgmma_fence();
#pragma unroll
        for (int n = 0; n < 2; n++)
            wgmma_rs<N, false, 0>(o[i % 2 * 2 + n], a[i % ahead][n],
                                  descriptor_advance(b, i % 2 * MLA_SHARED_P(N) + i / 2 * 32),
                                  i > 1 ? 1 : add);
        wgmma_commit();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int n = 0; n < 4; n++)
        wgmma_arrived(o[n]);
}

/* Copies new latents to their slots, one per warp. In this launch they are read from the operands
 * instead. */
DEVICE void packed_save(const mla_call &c, int warp, int warps, int lane)
{
    const call_operands *o = &c.operands;
    const int *indptr = c.batch.new_indptr ? c.batch.new_indptr : c.batch.q_indptr;
    i64 first = indptr ? index_int(indptr, 0) : 0, end = index_num_seqs(&c.batch);
    if (indptr)
        end = index_int(indptr, end);
    save_kv_call call = {{o->k, o->k_cache, o->k_row, 0, o->k_page, o->k_token, 0, 0, 0, MLA_LORA},
                         {o->v, 0, o->v_row, 0, 0, 0, 0, 0, 0, MLA_ROPE},
                         c.batch.out_cache_loc,
                         c.page_size,
                         ELEMENT_BF16,
                         ELEMENT_E4M3};
    save_packed_rows(&call, first + (int)blockIdx.x + warp * (int)gridDim.x, end,
                     (i64)warps * (int)gridDim.x, lane, 32);
}

template <int N> DEVICE void packed_add_up(const mla_call &c, const mla_shared<N> &m)
{
    constexpr int scorers = MLA_PACKED_SCORERS;
    const int thread = (int)threadIdx.x - (1 + scorers) * GROUP_THREADS, warp = thread / 32;
    const int lane = thread % 32, group = uniform(thread / GROUP_THREADS);
    const int d0 = group * 2 * PACKED_SCALED + warp % 4 * 32 + lane / 4 * 4;
    const unsigned mine = lane % 4 * 2 * MLA_PACKED_BYTES + d0;
    ring<MLA_PACKED_STAGES(N)> at;
    ring<MLA_PACKED_BUFFERS> part;
    mla_sums<N> o;
    if (c.operands.save)
        packed_save(c, warp, 2 * GROUP_THREADS / 32, lane);
    clear_padding(c, thread, 2 * GROUP_THREADS);
    mla_walk w;
    for (bool has_unit = walk_begin(c, w); has_unit; has_unit = walk_next(c, w)) {
        index_sequence q;
        for (int t = w.t0; t < w.t1; t += scorers) {
            const mla_shared<N> from = part_buffer<N, MLA_PACKED_P(N)>(m, part.slot);
            const unsigned p = from.p + group * 2 * MLA_SHARED_P(N);
            bool half = true;
#pragma unroll
            for (int i = 0; i < scorers; i++) {
                if (t + i >= w.t1)
                    break;
                barrier_wait(m.full + 8 * at.slot, at.phase);
                const unsigned probabilities = p + i * PACKED_PARTS * MLA_SHARED_P(N);
                const unsigned tile = m.tiles + at.slot * MLA_PACKED_TILE + mine;
                const unsigned empty = m.empty + 8 * at.slot;
                half = half && packed_add_half<N>(o, probabilities, tile, empty, t + i > w.t0, [&] {
                           if (i > 0)
                               return true;
                           barrier_wait(from.p_full, part.phase);
                           fence_async_shared();
                           if (t > w.t0)
                               multiply<N>(o, from, lane);
                           return shared_load_word(packed_form(m, part.slot)) != 0;
                       });
                if (!half)
                    packed_add<N>(o, probabilities, tile, empty, t + i > w.t0);
                at.advance();
            }
            barrier_arrive(from.p_empty);
            part.advance();
        }
        const mla_shared<N> from = part_buffer<N, MLA_PACKED_P(N)>(m, part.slot);
        barrier_wait(from.p_full, part.phase);
        multiply<N>(o, from, lane);
        barrier_arrive(from.p_empty);
        part.advance();
        walk_sequence_again(c, w, &q);
        if (walk_whole(w))
            codes_out<N, PACKED_SCALED>(c, w, q, o, d0, lane);
        else
            codes_part<N, PACKED_SCALED>(c, w, q, o, d0, lane);
    }
}

/* ---- Kernel ---------------------------------------------------------------------------------- */

template <int N> struct packed_roles {
    static constexpr int rows = N, stages = MLA_PACKED_STAGES(N), scorers = MLA_PACKED_SCORERS;
    static constexpr int buffers = MLA_PACKED_BUFFERS, turns = 0;
    static constexpr int fillers = GROUP_THREADS + 4, raws = 0;
    static constexpr int feeding = 56, scoring = 112, adding = 96;

    MLA_ROLES(packed_find<N>(memory), packed_feed<N>(c, m), packed_score<N>(c, m),
              packed_add_up<N>(c, m))
};

#define MLA_ATTEND_PACKED(N) MLA_KERNEL(mla_attend_packed_##N, MLA_PACKED_THREADS, packed_roles<N>)

#endif /* FLASHMLA_LIKE_ATTEND_PACKED_CUH */
