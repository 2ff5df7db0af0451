/* SPDX-License-Identifier: Apache-2.0
 *
 * attend_packed.cuh: N query rows, at most 32, over tiles of 64 latents of mla.latent_fp8/1: 512 codes of e4m3, a
 * scale for each 128 of them, and 64 elements of bf16. The products are those of attend_codes.cuh, tokens or
 * dimensions as rows; codes are widened in registers. No scale is rounded into a key:
 *
 *   S^T = scale_0 K_0 Q_0^T + ... + scale_3 K_3 Q_3^T + R Q_pe^T    K_b: 128 codes as fp16, R: bf16
 *   O_b^T += V_b^T (scale_b P)^T                                    V_b: 128 codes as bf16
 *
 * A token is a row of the scores' products, so that its scales are numbers of a lane. Probabilities are
 * multiplied by their token's scale in fp32 and rounded once, to bf16, for each of the four parts: scales may
 * have any size. Codes are 2^-8 of what they stand for there and probabilities 2^8, which keeps those apart
 * that meet the smallest scales.
 */
#ifndef FLASHMLA_LIKE_ATTEND_PACKED_CUH
#define FLASHMLA_LIKE_ATTEND_PACKED_CUH

#include "plugins/flashmla_like/kernels/attend_rows.cuh"

#include "plugins/common/cuda/save_packed.cuh"

#define PACKED_PARTS   (MLA_LORA / PACKED_SCALED)
#define PACKED_P_SCALE 256.0f

/* ---- Shared memory --------------------------------------------------------------------------- */

/* Panels of the position-encoded part lie before the tiles of codes; `scored` says that scores need a panel
 * no more. */
template <int N> DEVICE mla_shared<N> packed_find(unsigned char *memory)
{
    mla_shared<N> m;
    m.q = shared_address(memory);
    m.p = m.q + MLA_SHARED_Q(N);
    m.tiles = m.p + MLA_PACKED_BUFFERS(N) * MLA_PACKED_P(N) + MLA_PACKED_ROPES(N) * MLA_PACKED_ROPE;
    m.exchange = (float *)(memory + (m.tiles - m.q) + MLA_PACKED_STAGES(N) * MLA_PACKED_TILE);
    m.factor = m.exchange + 4 * MLA_PACKED_SCORERS(N) * N;
    m.q_scale = m.factor + MLA_PACKED_BUFFERS(N) * N;
    m.lo = (int *)(m.q_scale + N);
    m.hi = m.lo + N;
    m.full = shared_address(m.hi + N);
    m.empty = m.full + 8 * MLA_PACKED_STAGES(N);
    m.p_full = m.empty + 8 * MLA_PACKED_STAGES(N);
    m.p_empty = m.p_full + 8 * MLA_PACKED_BUFFERS(N);
    m.scored = m.p_empty + 8 * MLA_PACKED_BUFFERS(N);
    m.raw_full = m.raw_empty = 0;
    return m;
}

template <int N> DEVICE unsigned packed_rope(const mla_shared<N> &m, int slot)
{
    return m.tiles - (MLA_PACKED_ROPES(N) - slot) * MLA_PACKED_ROPE;
}

/* As codes_place() has it: with rows 544 bytes apart, too, four rows in a line, and four that are two apart,
 * lie in different banks. */
DEVICE unsigned packed_place(int row, int block)
{
    return row * MLA_PACKED_ROW + (block ^ (row / 4 % 2)) * 32;
}

DEVICE unsigned packed_scales_place(int row)
{
    return row * MLA_PACKED_ROW + MLA_LORA;
}

/* ---- Warpgroup 0: tiles ---------------------------------------------------------------------- */

DEVICE void packed_copy(unsigned to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

DEVICE void shared_store_word(unsigned address, unsigned x)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

/* Eight lanes copy 128 bytes of a row at a time, four rows side by side. */
DEVICE void packed_load_tile(const codes_source &mine, unsigned tile, unsigned rope, int warp,
                             int lane)
{
    const int piece = lane % 8;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = warp * 16 + i * 4 + lane / 8;
        const char *from = shuffle_pointer(mine.row, i * 4 + lane / 8) + piece * 16;
        const int bytes = __shfl_sync(~0u, mine.bytes, i * 4 + lane / 8);
        const unsigned at = tile + packed_place(row, piece / 2) + piece % 2 * 16;
#pragma unroll
        for (int k = 0; k < PACKED_PARTS; k++)
            packed_copy(at + k * 128, from + k * 128, bytes);
        packed_copy(rope + swizzled(row, piece), from + MLA_PACKED_ROPE_AT, bytes);
    }
    if (lane < 16)
        packed_copy(tile + packed_scales_place(warp * 16 + lane), mine.row + MLA_LORA, mine.bytes);
}

/* The same but for new latents, and where rows begin at no multiple of 16 bytes. */
DEVICE void packed_load_slow(const codes_source &mine, unsigned tile, unsigned rope, int warp,
                             int lane, bool aligned)
{
    constexpr int pieces = MLA_PACKED_BYTES / 16;
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        const int row = warp * 16 + i, fresh = __shfl_sync(~0u, mine.fresh, i);
        const int bytes = __shfl_sync(~0u, mine.bytes, i);
        const char *from = shuffle_pointer(mine.row, i);
#pragma unroll 1
        for (int p = lane; p < pieces && !fresh; p += 32) {
            const unsigned to = p < MLA_LORA / 16    ? tile + packed_place(row, p / 2) + p % 2 * 16
                                : p == MLA_LORA / 16 ? tile + packed_scales_place(row)
                                                     : rope + swizzled(row, p - MLA_LORA / 16 - 1);
            codes_copy(to, from + p * 16, bytes, aligned);
        }
    }
}

/* Four codes of a lane of a part of a new latent, as the cache would hold them, and the part's scale. */
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

/* Two elements of its position-encoded part. */
DEVICE u32 packed_pair(const char *k_pe, int lane)
{
    const any16 *from = (const any16 *)k_pe + lane * 2;
    return from[0] | (u32)from[1] << 16;
}

/* A new latent as the cache would hold it, by a warp. */
DEVICE void packed_quantise(unsigned tile, unsigned rope, int row, const char *c_kv,
                            const char *k_pe, int lane)
{
#pragma unroll 1
    for (int part = 0; part < PACKED_PARTS; part++) {
        float scale;
        const u32 codes = packed_codes(c_kv, part, lane, &scale);
        shared_store_word(tile + packed_place(row, part * 4 + lane / 8) + lane % 8 * 4, codes);
        if (lane == 0)
            shared_store_word(tile + packed_scales_place(row) + part * 4, f32_bits(scale));
    }
    shared_store_word(rope + swizzled(row, lane / 4) + lane % 4 * 4, packed_pair(k_pe, lane));
}

DEVICE void packed_load_fresh(const codes_source &mine, unsigned tile, unsigned rope, int warp,
                              int lane)
{
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        const char *c_kv = shuffle_pointer(mine.row, i), *k_pe = shuffle_pointer(mine.k_pe, i);
        if (__shfl_sync(~0u, mine.fresh, i))
            packed_quantise(tile, rope, warp * 16 + i, c_kv, k_pe, lane);
    }
}

template <int N> DEVICE void packed_feed(const mla_call &c, const mla_shared<N> &m)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const bool aligned = c.operands.aligned & CALL_ALIGNED_CACHE;
    const mask_rule rule = plan_rule(&c);
    ring<MLA_PACKED_STAGES(N)> at;
    ring<MLA_PACKED_ROPES(N)> ropes;
    mla_walk w;
    for (bool has_unit = walk_begin(c, w); has_unit; has_unit = walk_next(c, w)) {
        index_sequence q;
        int lo, hi;
        unit_begin<N>(c, w, rule, &q, &lo, &hi);
        int j = (w.u.first_tile + w.t0) * MLA_TILE + warp * 16 + lane % 16;
        int entry = find_entry(c, q, lo, hi, j);
        for (int t = w.t0; t < w.t1; t++) {
            const codes_source now = codes_find_source(c, q, lo, hi, j, entry);
            j += MLA_TILE;
            entry = find_entry(c, q, lo, hi, j);
            const unsigned tile = m.tiles + at.slot * MLA_PACKED_TILE;
            const unsigned rope = packed_rope(m, ropes.slot);
            barrier_wait(m.empty + 8 * at.slot, at.phase ^ 1);
            barrier_wait(m.scored + 8 * ropes.slot, ropes.phase ^ 1);
            if (aligned && !__any_sync(~0u, now.fresh)) {
                packed_load_tile(now, tile, rope, warp, lane);
                copy_arrive(m.full + 8 * at.slot);
            } else {
                packed_load_slow(now, tile, rope, warp, lane, aligned);
                packed_load_fresh(now, tile, rope, warp, lane);
                copy_wait();
                fence_async_shared();
                barrier_arrive(m.full + 8 * at.slot);
            }
            at.advance();
            ropes.advance();
        }
    }
    copy_wait();
}

/* ---- Scores ---------------------------------------------------------------------------------- */

/* What the position-encoded part adds to scores, in units of log 2. */
template <int N>
DEVICE void packed_rope_scores(float (&s)[N / 2], const mla_shared<N> &m, unsigned rope,
                               float scale)
{
    const unsigned long long a = matrix_descriptor(rope, 16, 8 * ROW_BYTES);
    const unsigned long long b =
        matrix_descriptor(m.q + MLA_LORA / PANEL * (N * ROW_BYTES), 16, 8 * ROW_BYTES);
    products_fence();
#pragma unroll
    for (int i = 0; i < MLA_ROPE / 16; i++)
        product_shared<N, false, 0>(s, descriptor_advance(a, i * 32), descriptor_advance(b, i * 32),
                                    i > 0);
    products_commit();
    products_wait<0>();
    products_arrived(s);
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        s[i] *= scale;
}

/* A part's products times its scales. */
template <int N>
DEVICE void packed_take_part(float (&s)[N / 2], const float (&part)[N / 2], const mla_shared<N> &m,
                             float first, float second, int lane)
{
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        const float2 f = *(const float2 *)(m.q_scale + i * 8 + lane % 4 * 2);
        s[4 * i] += part[4 * i] * f.x * first;
        s[4 * i + 1] += part[4 * i + 1] * f.y * first;
        s[4 * i + 2] += part[4 * i + 2] * f.x * second;
        s[4 * i + 3] += part[4 * i + 3] * f.y * second;
    }
}

/* The scales of a lane's two tokens. */
struct packed_scales {
    float4 x[2];
};

template <int part> DEVICE float packed_of(const float4 &x)
{
    return part == 0 ? x.x : part == 1 ? x.y : part == 2 ? x.z : x.w;
}

template <int N, int part>
DEVICE void packed_part_scores(float (&s)[N / 2], const mla_shared<N> &m, unsigned even,
                               unsigned odd, const packed_scales &scales, int lane)
{
    constexpr int chunks = PACKED_SCALED / 32; /* of 32 codes: two products */
    const unsigned long long b = matrix_descriptor(m.q, 16, 8 * ROW_BYTES);
    float sums[N / 2];
    unsigned a[2][2][4];
    codes_chunk<1> k;
#pragma unroll
    for (int i = 0; i < chunks; i++) {
        const int block = part * chunks + i;
#pragma unroll
        for (int r = 0; r < 2; r++)
            k.x[0][r] = codes_load((block % 2 ? odd : even) + block * 32 + 8 * r * MLA_PACKED_ROW);
        if (i >= 2)
            products_wait<1>();
        codes_widen_chunk(k, a[i % 2]);
        products_fence();
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int step = block * 2 + n;
            product_register<N, true, 0>(
                sums, a[i % 2][n],
                descriptor_advance(b, step / 4 * (N * ROW_BYTES) + step % 4 * 32), i > 0 || n > 0);
        }
        products_commit();
    }
    products_wait<0>();
    products_arrived(sums);
    packed_take_part<N>(s, sums, m, packed_of<part>(scales.x[0]), packed_of<part>(scales.x[1]),
                        lane);
}

DEVICE float4 packed_load_scales(unsigned address)
{
    const uint4 x = shared_load(address);
    return make_float4(bits_f32(x.x), bits_f32(x.y), bits_f32(x.z), bits_f32(x.w));
}

/* The scores of a tile in units of log 2; it is given back once all codes are loaded. */
template <int N>
DEVICE void packed_scores(float (&s)[N / 2], packed_scales &scales, const mla_shared<N> &m,
                          unsigned tile, unsigned rope, unsigned rope_empty, float scale, int warp,
                          int lane)
{
    const int row = warp * 16 + lane / 4;
    const unsigned even = tile + packed_place(row, 0) + lane % 4 * 8;
    const unsigned odd = tile + packed_place(row, 1) - 32 + lane % 4 * 8;
    scales.x[0] = packed_load_scales(tile + packed_scales_place(row));
    scales.x[1] = packed_load_scales(tile + packed_scales_place(row + 8));
    packed_rope_scores<N>(s, m, rope, scale);
    release(rope_empty);
    packed_part_scores<N, 0>(s, m, even, odd, scales, lane);
    packed_part_scores<N, 1>(s, m, even, odd, scales, lane);
    packed_part_scores<N, 2>(s, m, even, odd, scales, lane);
    packed_part_scores<N, 3>(s, m, even, odd, scales, lane);
}

template <int N, int part>
DEVICE void packed_store_part(unsigned p, const float (&s)[N / 2], const packed_scales &scales,
                              int warp, int lane)
{
    const float first = packed_of<part>(scales.x[0]), second = packed_of<part>(scales.x[1]);
    float x[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        x[i] = s[i] * (i % 4 < 2 ? first : second);
    store_turned<N>(p + part * MLA_SHARED_P(N), x, warp, lane);
}

/* Probabilities times the scales of each part. */
template <int N>
DEVICE void packed_store(unsigned p, float (&s)[N / 2], const packed_scales &scales, int warp,
                         int lane)
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        s[i] *= PACKED_P_SCALE;
    packed_store_part<N, 0>(p, s, scales, warp, lane);
    packed_store_part<N, 1>(p, s, scales, warp, lane);
    packed_store_part<N, 2>(p, s, scales, warp, lane);
    packed_store_part<N, 3>(p, s, scales, warp, lane);
}

template <int N> DEVICE void packed_score(const mla_call &c, const mla_shared<N> &m)
{
    constexpr int scorers = MLA_PACKED_SCORERS(N), threads = scorers * GROUP_THREADS;
    const int thread = (int)threadIdx.x - GROUP_THREADS, warp = thread / 32, lane = thread % 32;
    const int mine = uniform(thread / GROUP_THREADS);
    const mask_rule rule = plan_rule(&c);
    const float scale = c.sm_scale * SOFTMAX_LOG2E;
    ring<MLA_PACKED_STAGES(N)> at;
    ring<MLA_PACKED_ROPES(N)> ropes;
    ring<MLA_PACKED_BUFFERS(N)> part;
    mla_walk w;
    for (bool has_unit = walk_begin(c, w); has_unit; has_unit = walk_next(c, w)) {
        index_sequence q;
        mla_columns<N> columns;
        float factor[N / 4], s[N / 2];
        int lo, least_hi;
        index_find_sequence(&c.batch, c.operands.k != 0, w.u.seq, &q);
        load_queries<N, threads>(c, w, q, m, thread);
        convert_queries<N, MLA_LORA / 32, threads>(m, scale, thread);
        seen_by_all<N>(c, w, q, rule, &lo, &least_hi);
        columns_begin<N>(columns);
        for (int t = w.t0; t < w.t1; t += scorers) {
            const int j = (w.u.first_tile + t + mine) * MLA_TILE;
            packed_scales scales = {{{0, 0, 0, 0}, {0, 0, 0, 0}}};
            codes_none<N>(s);
#pragma unroll
            for (int i = 0; i < scorers; i++) {
                if (t + i >= w.t1)
                    break;
                if (i == mine) {
                    barrier_wait(m.full + 8 * at.slot, at.phase);
                    fence_async_shared();
                    packed_scores<N>(s, scales, m, m.tiles + at.slot * MLA_PACKED_TILE,
                                     packed_rope(m, ropes.slot), m.scored + 8 * ropes.slot, scale,
                                     warp % 4, lane);
                    release(m.empty + 8 * at.slot);
                }
                at.advance();
                ropes.advance();
            }
            if (j < lo || j + MLA_TILE > least_hi)
                hide<N>(s, m, j + warp % 4 * 16 + lane / 4, lane);
            softmax<N, 4 * scorers>(s, columns, factor, m, warp, lane);
            const mla_shared<N> to = part_buffer<N, MLA_PACKED_P(N)>(m, part.slot);
            barrier_wait(to.p_empty, part.phase ^ 1);
            packed_store<N>(to.p + mine * PACKED_PARTS * MLA_SHARED_P(N), s, scales, warp % 4,
                            lane);
            store_factors<N>(factor, to, warp, lane);
            fence_async_shared();
            barrier_arrive(to.p_full);
            part.advance();
            named_sync(1, threads);
        }
        finish<N, 4 * scorers>(c, w, q, columns, factor, m, warp, lane);
        const mla_shared<N> to = part_buffer<N, MLA_PACKED_P(N)>(m, part.slot);
        barrier_wait(to.p_empty, part.phase ^ 1);
        store_factors<N>(factor, to, warp, lane);
        barrier_arrive(to.p_full);
        part.advance();
    }
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* Element i of two words of codes as a pair of bf16, 2^-8 of what they stand for. A code of NaN becomes a
 * number: its score is NaN already. */
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
        v.x[i] = shared_load_word(at + (tokens + i % 2 + i / 2 * 8) * MLA_PACKED_ROW);
    return v;
}

/* Two products of 16 tokens, whose rows are two of a lane's dimensions each. */
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

/* A tile's values, from when `ready` returns. `p`: the probabilities of this warpgroup's two parts; `tile`: a
 * lane's dimensions of the first of them. */
template <int N, class wait>
DEVICE void packed_add(mla_sums<N> &o, unsigned p, unsigned tile, unsigned empty, int add,
                       const wait &ready)
{
    constexpr int steps = MLA_TILE / 16, ahead = 2;
    const unsigned long long b = matrix_descriptor(p, 16, 8 * ROW_BYTES);
    unsigned a[ahead][2][4];
    packed_values v = packed_load_values(tile, 0);
#pragma unroll
    for (int i = 0; i < 2 * steps; i++) { /* parts in turn */
        if (i >= ahead)
            products_wait<ahead - 1>();
        packed_widen_values(v, a[i % ahead]);
        if (i == 0)
            ready();
        if (i + 1 == 2 * steps)
            release(empty);
        else
            v = packed_load_values(tile + (i + 1) % 2 * PACKED_SCALED, (i + 1) / 2 * 16);
        products_fence();
#pragma unroll
        for (int n = 0; n < 2; n++)
            product_register<N, false, 0>(
                o[i % 2 * 2 + n], a[i % ahead][n],
                descriptor_advance(b, i % 2 * MLA_SHARED_P(N) + i / 2 * 32), i > 1 ? 1 : add);
        products_commit();
    }
    products_wait<0>();
#pragma unroll
    for (int n = 0; n < 4; n++)
        products_arrived(o[n]);
}

/* Outputs of whole units: a lane has four dimensions of its rows side by side, and four of the next part. */
template <int N>
DEVICE void packed_out(const mla_call &c, const mla_walk &w, const index_sequence &q,
                       const mla_sums<N> &o, int d0, int lane)
{
    const int first = first_row<N>(c, w), rows = q.q_len * c.heads;
#pragma unroll
    for (int i = 0; i < N / 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int r = first + i * 8 + lane % 4 * 2 + e;
            if (r >= rows)
                continue;
            char *to = (char *)c.operands.out + (q.first_row + r / c.heads) * c.operands.out_row +
                       r % c.heads * c.operands.out_head;
#pragma unroll
            for (int part = 0; part < 2; part++) {
                const int d = d0 + part * PACKED_SCALED;
                float x[4];
#pragma unroll
                for (int k = 0; k < 4; k++)
                    x[k] = o[part * 2 + k / 2][4 * i + 2 * (k % 2) + e];
                if (c.operands.aligned & CALL_ALIGNED_OUT_16 && c.out_f32) {
                    *(float4 *)(to + d * 4) = make_float4(x[0], x[1], x[2], x[3]);
                } else if (c.operands.aligned & CALL_ALIGNED_OUT_16) {
                    *(uint2 *)(to + d * 2) =
                        make_uint2(pack_pair<false>(x[0], x[1]), pack_pair<false>(x[2], x[3]));
                } else {
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        element_store(c.out_f32 ? ELEMENT_F32 : ELEMENT_BF16, to, d + k, x[k]);
                }
            }
        }
}

/* New latents to their slots, a warp each; who reads them here reads them as they are given. */
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
    constexpr int scorers = MLA_PACKED_SCORERS(N);
    const int thread = (int)threadIdx.x - (1 + scorers) * GROUP_THREADS, warp = thread / 32;
    const int lane = thread % 32, group = uniform(thread / GROUP_THREADS);
    const int d0 = group * 2 * PACKED_SCALED + warp % 4 * 32 + lane / 4 * 4;
    const unsigned mine = packed_place(lane % 4 * 2, d0 / 32) + d0 % 32;
    ring<MLA_PACKED_STAGES(N)> at;
    ring<MLA_PACKED_BUFFERS(N)> part;
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
#pragma unroll
            for (int i = 0; i < scorers; i++) {
                if (t + i >= w.t1)
                    break;
                barrier_wait(m.full + 8 * at.slot, at.phase);
                packed_add<N>(o, p + i * PACKED_PARTS * MLA_SHARED_P(N),
                              m.tiles + at.slot * MLA_PACKED_TILE + mine, m.empty + 8 * at.slot,
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
        const mla_shared<N> from = part_buffer<N, MLA_PACKED_P(N)>(m, part.slot);
        barrier_wait(from.p_full, part.phase);
        multiply<N>(o, from, lane);
        barrier_arrive(from.p_empty);
        part.advance();
        index_find_sequence(&c.batch, c.operands.k != 0, w.u.seq, &q);
        if (walk_whole(w))
            packed_out<N>(c, w, q, o, d0, lane);
        else
            codes_part<N, PACKED_SCALED>(c, w, q, o, d0, lane);
    }
}

/* ---- Kernel ---------------------------------------------------------------------------------- */

template <int N> struct packed_roles {
    static constexpr int rows = N, stages = MLA_PACKED_STAGES(N), scorers = MLA_PACKED_SCORERS(N);
    static constexpr int buffers = MLA_PACKED_BUFFERS(N), turns = MLA_PACKED_ROPES(N);
    static constexpr int fillers = GROUP_THREADS, raws = 0, shares = 0;
    static constexpr int feeding = 56, scoring = N < 32 ? 104 : 120;
    static constexpr int adding = N < 32 ? 104 : 168;

    MLA_ROLES(packed_find<N>(memory), packed_feed<N>(c, m), packed_score<N>(c, m),
              packed_add_up<N>(c, m))
};

#define MLA_ATTEND_PACKED(N)                                                                       \
    MLA_KERNEL(mla_attend_packed_##N, MLA_PACKED_THREADS(N), packed_roles<N>)

#endif /* FLASHMLA_LIKE_ATTEND_PACKED_CUH */
