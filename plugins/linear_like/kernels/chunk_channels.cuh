/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk_channels.cuh: chunk_ready.cuh for a decay per channel of k (KDA).
 *
 * Decays cannot be factored out of the products of queries and keys. Rows are processed in blocks
 * of 16, two warps each, which divide the channels. L: the sums of log decays from the block's
 * first row on. A query's row i meets a key's row j of an earlier block as
 *
 *   sum over d of (q_id e^L_id) (e^(blocks between) k_jd e^(L_end,d - L_jd))
 *
 * in fp16, and no factor exceeds 1. Within a block it is q_id e^L_id times k_jd e^-L_jd, in tf32,
 * which has the range of fp32. If that does not suffice, each pair has its own exponentials.
 */
#ifndef LINEAR_LIKE_CHUNK_CHANNELS_CUH
#define LINEAR_LIKE_CHUNK_CHANNELS_CUH

#include "plugins/linear_like/kernels/chunk_ready.cuh"

enum { SUMS_ROW = 132 /* floats of a row of sums of log decays */ };

/* Additional shared memory. */
struct channels_memory {
    char *ends;    /* tile: k decayed from its row to the end of its block */
    float *sums;   /* [64][SUMS_ROW] L, in units of log 2 */
    float *before; /* [5][128] log decays of all earlier blocks */
    float *given;  /* [8 warps][8][32][4] sums for a block's other warp, in the memory of `sums` */

    __device__ __forceinline__ channels_memory(char *from)
    {
        ends = from;
        sums = (float *)(from + CHUNK_TILE);
        before = sums + 64 * SUMS_ROW;
        given = sums;
    }

    /* Log decays of blocks [from, end) at two adjacent channels. */
    __device__ __forceinline__ float2 blocks(int from, int end, int d) const
    {
        const float2 x = *(const float2 *)(before + end * CHUNK_MAX_KEYS + d);
        const float2 y = *(const float2 *)(before + from * CHUNK_MAX_KEYS + d);
        return make_float2(x.x - y.x, x.y - y.y);
    }
};

/* ---- Gates ----------------------------------------------------------------------------------- */

/* log(1 + e^x), to a few units in the last place: log(1 + y) = 2 artanh(y / (2 + y)). */
DEVICE float fast_softplus(float x)
{
    const float y = __expf(-fabsf(x)), s = __fdividef(y, 2 + y), t = s * s;
    float sum = 2.0f / 13;
    sum = sum * t + 2.0f / 11;
    sum = sum * t + 2.0f / 9;
    sum = sum * t + 2.0f / 7;
    sum = sum * t + 2.0f / 5;
    sum = sum * t + 2.0f / 3;
    sum = sum * t + 2;
    return fmaxf(x, 0) + s * sum;
}

/* Sums log decays of a channel's rows [first, end) from the first row of each block of 16 on; `at`:
 * row `first`. After a decay of e^-90 the state vanishes. */
template <typename T, typename FIND>
DEVICE void sum_decays(const char *at, i64 apart, int k, int first, int end, int rows,
                       const channels_memory &own, FIND find)
{
    constexpr float least_log = -90, in_log_2 = 1.4426950408889634f;
#pragma unroll 1
    for (; first < end; first += 16) {
        float sum = 0;
        T x[16];
#pragma unroll
        for (int i = 0; i < 16; i++, at += apart)
            x[i] = first + i < rows ? *(const T *)at : 0;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float log = find(x[i]);
            log = first + i < rows ? log : 0;
            sum += (log < least_log ? least_log : log) * in_log_2;
            own.sums[(first + i) * SUMS_ROW + k] = sum;
        }
        own.before[(first / 16 + 1) * CHUNK_MAX_KEYS + k] = sum;
    }
}

/* Loads gates: a channel and half of its rows per thread. `before` gets those of the block alone:
 * see add_blocks(). */
DEVICE void load_channel_gates(const linear_call &call, const ready_chunk &chunk, int head,
                               const channels_memory &own, const ready_memory &m)
{
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    const ready_gates g(m, 0);
    const int k = threadIdx.x % CHUNK_MAX_KEYS, first = threadIdx.x / CHUNK_MAX_KEYS * 32;
    const int row = chunk.sequence.first_row + chunk.t, rows = k < d.k_dim ? chunk.rows : 0;
    const int size = d.raw ? 2 : 4; /* raw gates are bf16 here */
    const char *at =
        o.a + (i64)(row + first) * o.a_row + head * o.a_head + (i64)(rows ? k : 0) * size;
    if (first == 0 && k < CHUNK_ROWS)
        g.beta[k] = k < chunk.rows ? linear_beta(&call, row + k, head) : 0;
    if (!d.raw) {
        sum_decays<float>(at, o.a_row, k, first, first + 32, rows, own, [](float x) { return x; });
        return;
    }
    const float rate = expf(o.a_log[head]), bound = d.lower_bound;
    const float bias = rows ? o.dt_bias[head * o.dt_bias_stride + k] : 0;
    if (bound != 0)
        sum_decays<u16>(at, o.a_row, k, first, first + 32, rows, own, [=](u16 x) {
            return __fdividef(bound, 1 + __expf(-(rate * (bits_f32((u32)x << 16) + bias))));
        });
    else
        sum_decays<u16>(at, o.a_row, k, first, first + 32, rows, own, [=](u16 x) {
            return -(rate * fast_softplus(bits_f32((u32)x << 16) + bias));
        });
}

DEVICE void add_blocks(const channels_memory &own)
{
    const int k = threadIdx.x;
    float sum = 0;
    if (k >= CHUNK_MAX_KEYS)
        return;
    own.before[k] = 0;
#pragma unroll
    for (int i = 1; i <= 4; i++)
        own.before[i * CHUNK_MAX_KEYS + k] = sum += own.before[i * CHUNK_MAX_KEYS + k];
}

/* ---- Products of queries and keys ------------------------------------------------------------ */

DEVICE float round_tf32(float x)
{
    u32 y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return bits_f32(y);
}

/* sums += a b: 16 x 8 times 8 x 8. */
DEVICE void multiply_tf32(float (&sums)[4], const float (&a)[4], float b0, float b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(f32_bits(a[0])), "r"(f32_bits(a[1])), "r"(f32_bits(a[2])), "r"(f32_bits(a[3])),
          "r"(f32_bits(b0)), "r"(f32_bits(b1)));
}

DEVICE u32 multiply_pairs(u32 x, u32 y)
{
    u32 z;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

DEVICE float2 exp2_pair(float x, float y)
{
    return make_float2(exp2_fast(x), exp2_fast(y));
}

/* Two adjacent elements of a tile. */
DEVICE u32 *tile_pair(char *tile, int row, int d)
{
    return (u32 *)(tile + tile_offset(row, d / 8) + d % 8 * 2);
}

/* A warp's part of the work: a block of rows, half of the channels, its own staging. */
struct channels_part {
    int block, half, lane;
    char *staging;

    __device__ __forceinline__ channels_part(const ready_memory &m)
    {
        const int warp = threadIdx.x / 32;
        block = warp % 4, half = warp / 4, lane = threadIdx.x % 32;
        staging = m.staging + warp * CHUNK_STAGE;
    }

    /* Synchronises the two warps of the block. */
    __device__ __forceinline__ void sync(void) const
    {
        named_sync(1 + block, 64);
    }
};

/* Rows of a block, half of the channels, decayed from its first row on: left operands. */
struct block_rows {
    u32 q[4][4], k[4][4];
};

/* A lane's part of a block for 16 channels: operands of the products, tiles of decayed rows. `qk`,
 * `kk`: products within the block. */
DEVICE void decay_step(const ready_memory &m, const channels_memory &own, const channels_part &part,
                       int step, block_rows &rows, float (&qk)[2][4], float (&kk)[2][4])
{
    const int warp = part.block, lane = part.lane;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int d = 64 * part.half + 16 * step + 8 * h + lane % 4 * 2;
        const float2 whole = own.blocks(warp, warp + 1, d);
        const float2 before = own.blocks(0, warp, d), after = own.blocks(warp + 1, 4, d);
        const float2 since = exp2_pair(before.x, before.y), until = exp2_pair(after.x, after.y);
        float q[4], k[4], up[2][2];
#pragma unroll
        for (int w = 0; w < 2; w++) {
            const int row = 16 * warp + lane / 4 + 8 * w;
            const float2 sum = *(const float2 *)(own.sums + row * SUMS_ROW + d);
            u32 *at_q = tile_pair(m.q, row, d), *at_k = tile_pair(m.k, row, d);
            const float2 down = exp2_pair(sum.x, sum.y);
            const float2 left = exp2_pair(whole.x - sum.x, whole.y - sum.y);
            const float kx = half_low(*at_k), ky = half_high(*at_k);
            q[w] = half_low(*at_q) * down.x, q[2 + w] = half_high(*at_q) * down.y;
            k[w] = kx * down.x, k[2 + w] = ky * down.y;
            rows.q[step][2 * h + w] = pack_half(q[w], q[2 + w]);
            rows.k[step][2 * h + w] = pack_half(k[w], k[2 + w]);
            *at_q = pack_half(q[w] * (since.x * CHANNELS_UP), q[2 + w] * (since.y * CHANNELS_UP));
            *at_k = pack_half(k[w] * (since.x * CHANNELS_UP), k[2 + w] * (since.y * CHANNELS_UP));
            *tile_pair(own.ends, row, d) = pack_half(kx * left.x, ky * left.y);
            *(u32 *)(part.staging + tile_offset(row % 16, d / 8 % 8) + d % 8 * 2) = pack_half(
                kx * (left.x * until.x * CHANNELS_UP), ky * (left.y * until.y * CHANNELS_UP));
            const float2 again = exp2_pair(-sum.x, -sum.y);
            up[w][0] = round_tf32(kx * again.x), up[w][1] = round_tf32(ky * again.y);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            q[i] = round_tf32(q[i]), k[i] = round_tf32(k[i]);
#pragma unroll
        for (int w = 0; w < 2; w++) {
            multiply_tf32(qk[w], q, up[w][0], up[w][1]);
            multiply_tf32(kk[w], k, up[w][0], up[w][1]);
        }
    }
}

/* Products within a block whose decays have no reciprocals, from tiles that are not decayed yet. A
 * lane has four channels. */
static __device__ __noinline__ void multiply_one_by_one(const ready_memory &m, const float *sums,
                                                        int first, int i, int j, int lane,
                                                        float *q_sum, float *k_sum)
{
    float of_q = 0, of_k = 0;
    for (int d = 4 * lane; d < 4 * lane + 4; d += 2) {
        const u32 q = *tile_pair(m.q, first + i, d), k = *tile_pair(m.k, first + i, d);
        const u32 y = *tile_pair(m.k, first + j, d);
        const float *to = sums + (first + i) * SUMS_ROW + d,
                    *at = sums + (first + j) * SUMS_ROW + d;
        const float low = half_low(y) * exp2_fast(to[0] - at[0]);
        const float high = half_high(y) * exp2_fast(to[1] - at[1]);
        of_q += half_low(q) * low + half_high(q) * high;
        of_k += half_low(k) * low + half_high(k) * high;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        of_q += __shfl_xor_sync(~0u, of_q, step);
        of_k += __shfl_xor_sync(~0u, of_k, step);
    }
    *q_sum = of_q, *k_sum = of_k;
}

DEVICE void multiply_block(const ready_memory &m, const float *sums, int first, int lane,
                           float (&qk)[2][4], float (&kk)[2][4])
{
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll 1
            for (int owner = 0; owner < 32; owner++) {
                const int i = owner / 4 + e / 2 * 8, j = 8 * n + owner % 4 * 2 + e % 2;
                float q_sum, k_sum;
                if (j > i)
                    continue;
                multiply_one_by_one(m, sums, first, i, j, lane, &q_sum, &k_sum);
                if (lane == owner)
                    qk[n][e] = q_sum, kk[n][e] = k_sum;
            }
}

/* A warp's part of a block: decays its rows, for later products and for the workspace, from `keys`
 * on; computes products within it. */
DEVICE void decay_block(const ready_memory &m, const channels_memory &own, char *keys,
                        const channels_part &part, block_rows &rows, float (&qk)[2][4],
                        float (&kk)[2][4])
{
    const int warp = part.block, lane = part.lane;
    constexpr float range = 100; /* in units of log 2 */
    float exact_qk[2][4] = {}, exact_kk[2][4] = {};
    bool small = true;
    for (int d = 2 * lane; d < CHUNK_MAX_KEYS; d += 64) {
        const float2 whole = own.blocks(warp, warp + 1, d);
        small = small && whole.x >= -range && whole.y >= -range;
    }
    const bool in_range = __all_sync(~0u, small);
    if (!in_range) {
        if (part.half == 0)
            multiply_block(m, own.sums, 16 * warp, lane, exact_qk, exact_kk);
        part.sync(); /* rows are not decayed before this */
    }
#pragma unroll
    for (int step = 0; step < 4; step++)
        decay_step(m, own, part, step, rows, qk, kk);
    const int at = part.half * (CHUNK_TILE / 2) + warp * CHUNK_STAGE;
    copy_staged(part.staging, keys + CHUNK_TILE + at, lane);
    copy_staged(m.q + at, keys + at, lane);
    if (in_range)
        return;
#pragma unroll
    for (int n = 0; n < 8; n++)
        qk[n / 4][n % 4] = exact_qk[n / 4][n % 4], kk[n / 4][n % 4] = exact_kk[n / 4][n % 4];
}

/* Products of a warp's rows with those of an earlier block. */
DEVICE void multiply_earlier(const channels_memory &own, const channels_part &part, int block,
                             const block_rows &rows, float (&qk)[2][4], float (&kk)[2][4])
{
    const int warp = part.block, lane = part.lane;
    const unsigned ends = shared_address(own.ends) + part.half * (CHUNK_TILE / 2);
#pragma unroll
    for (int step = 0; step < 4; step++) {
        u32 y[4];
        load_matrices(
            ends + tile_offset(16 * block + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2), y);
        if (block + 1 < warp)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float2 between =
                    own.blocks(block + 1, warp, 64 * part.half + 16 * step + 8 * h + lane % 4 * 2);
                const u32 less = pack_half(exp2_fast(between.x), exp2_fast(between.y));
                y[h] = multiply_pairs(y[h], less), y[2 + h] = multiply_pairs(y[2 + h], less);
            }
#pragma unroll
        for (int n = 0; n < 2; n++) {
            multiply(qk[n], rows.q[step], y[2 * n], y[2 * n + 1]);
            multiply(kk[n], rows.k[step], y[2 * n], y[2 * n + 1]);
        }
    }
}

/* Products of each row's own q and k, from tiles that are not decayed yet and, after a convolution,
 * from their rounding errors. Four threads per row. */
DEVICE void find_own(const ready_memory &m, const channels_memory &own, bool rounded)
{
    const int row = threadIdx.x / 4;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = tile_offset(row, threadIdx.x % 4 + 4 * i);
        float q[8], k[8];
        load_eight(m.q, rounded ? m.rest() : NULL, at, q);
        load_eight(m.k, rounded ? own.ends : NULL, at, k);
        sum += multiply_eight(q, k);
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
        sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x % 4 == 0)
        m.own[row] = sum;
}

/* Scales columns of a warp's sums by `times`; elements on and above the diagonal become 0. */
DEVICE void finish_sums(const float (&from)[8][4], const float *times, int warp, int lane,
                        float (&to)[32])
{
    const int i = 16 * warp + lane / 4;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = i + e / 2 * 8, j = 8 * n + lane % 4 * 2 + e % 2;
            to[4 * n + e] = j < row ? from[n][e] * times[j] : 0;
        }
}

DEVICE void write_channel_numbers(const linear_dims &d, const ready_memory &m,
                                  const channels_memory &own, float *numbers)
{
    const int r = threadIdx.x;
    if (r < CHUNK_MAX_KEYS)
        numbers[NUMBERS_DECAY + r] = exp2f(own.before[4 * CHUNK_MAX_KEYS + r]);
    if (r >= 64)
        return;
    numbers[NUMBERS_OWN(true) + r] = m.own[r] * m.k_times[r] * m.q_times[r] * d.sm_scale;
    numbers[NUMBERS_Q + r] = m.q_times[r] * (d.sm_scale / CHANNELS_UP);
    numbers[NUMBERS_K + r] = m.k_times[r] / CHANNELS_UP;
}

/* ---- A chunk --------------------------------------------------------------------------------- */

/* Adds the sums of a block's two warps, each over its channels: the first warp gets those of keys,
 * the second those of queries. */
DEVICE void add_halves(const channels_memory &own, const channels_part &part,
                       const float (&qk)[8][4], const float (&kk)[8][4], float (&sums)[8][4])
{
    const bool second = part.half;
    float4 *mine = (float4 *)own.given + (part.half * 4 + part.block) * 256 + part.lane;
    const float4 *other = (const float4 *)own.given + ((1 - part.half) * 4 + part.block) * 256;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float give[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            give[e] = second ? kk[n][e] : qk[n][e], sums[n][e] = second ? qk[n][e] : kk[n][e];
        if (n < 2 * part.block + 2)
            mine[n * 32] = make_float4(give[0], give[1], give[2], give[3]);
    }
    part.sync();
#pragma unroll
    for (int n = 0; n < 8; n++)
        if (n < 2 * part.block + 2) {
            const float4 x = other[n * 32 + part.lane];
            sums[n][0] += x.x, sums[n][1] += x.y, sums[n][2] += x.z, sums[n][3] += x.w;
        }
}

/* Writes products of queries and keys to the workspace, those of keys to the system. */
DEVICE void multiply_channels(const linear_dims &d, const ready_memory &m,
                              const channels_memory &own, const channels_part &part,
                              const block_rows &rows, const float (&own_qk)[2][4],
                              const float (&own_kk)[2][4], const ready_values &to)
{
    const ready_gates g(m, 0);
    const int warp = part.block, lane = part.lane, i = 16 * warp + lane / 4;
    float qk[8][4] = {}, kk[8][4] = {}, sums[8][4], x[32];
#pragma unroll
    for (int block = 0; block < 4; block++) {
        float(&q)[2][4] = *(float(*)[2][4])qk[2 * block];
        float(&k)[2][4] = *(float(*)[2][4])kk[2 * block];
        if (block < warp)
            multiply_earlier(own, part, block, rows, q, k);
        else if (block == warp)
#pragma unroll
            for (int n = 0; n < 8; n++)
                q[n / 4][n % 4] = own_qk[n / 4][n % 4], k[n / 4][n % 4] = own_kk[n / 4][n % 4];
    }
    add_halves(own, part, qk, kk, sums);
    if (part.half == 0) {
        const float more[2] = {m.k_times[i] * g.beta[i], m.k_times[i + 8] * g.beta[i + 8]};
        finish_sums(sums, m.k_times, warp, lane, x);
        write_system_rows(x, more, m, warp, lane);
    } else {
        const float more[2] = {m.q_times[i] * d.sm_scale, m.q_times[i + 8] * d.sm_scale};
        finish_sums(sums, m.k_times, warp, lane, x);
        write_rows(x, part.staging, to.products, to.numbers + NUMBERS_P, more, warp, lane);
    }
}

/* Blocks: chunks of the window, times v heads. */
DEVICE void channels_block(const linear_call &call, int first, char *memory)
{
    constexpr int warps = CHUNK_CHANNELS_THREADS / 32;
    const linear_dims &d = call.dims;
    const linear_chunks &chunks = call.chunks;
    const int head = blockIdx.x % d.v_heads, index = blockIdx.x / d.v_heads;
    if (first + index >= *chunks.count)
        return;
    const linear_chunk from = chunks.list[first + index];
    const ready_chunk chunk = {linear_find_sequence(&call.batch, from.sequence), from.first,
                               from.rows};
    const ready_memory m(memory, warps);
    const channels_memory own(m.system + CHUNK_PRODUCTS);
    const channels_part part(m);
    const ready_gates g(m, 0);
    const ready_values to(call, index, head, CHUNK_SOLVED);
    const int key_head = head / d.ratio;
    char *keys = chunks.keys + ((i64)index * d.v_heads + head) * CHUNK_KEYS_BYTES;
    block_rows rows;
    float qk[2][4] = {}, kk[2][4] = {};

    load_channel_gates(call, chunk, head, own, m);
    load_tile<false>(call, chunk, d.first[part.half] + key_head * d.k_dim, d.k_dim, d.l2_norm,
                     part.half ? m.k : m.q, part.half ? m.k_times : m.q_times, NULL, NULL,
                     {part.half ? own.ends : m.rest(), NULL});
    __syncthreads();
    add_blocks(own);
    find_own(m, own, d.width > 0);
    __syncthreads();
    write_channel_numbers(d, m, own, to.numbers);
    decay_block(m, own, keys, part, rows, qk, kk);
    __syncthreads();
    multiply_channels(d, m, own, part, rows, qk, kk, to);
    if (part.half) /* while the other warps invert blocks */
        load_tile<false>(call, chunk, d.first[2] + head * d.v_dim, d.v_dim, false, m.q, m.v_times,
                         NULL, NULL);
    __syncthreads();
    solve<warps>(d, m, ready_side(g, m.k, m.k_times, CHANNELS_UP), to, threadIdx.x / 32, part.lane);
}

#endif /* LINEAR_LIKE_CHUNK_CHANNELS_CUH */
