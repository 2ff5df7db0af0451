/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk_channels.cuh: chunk_ready.cuh where each channel of k has its own decay (KDA).
 *
 * Decays cannot be taken out of the products of queries and keys. Between blocks of rows they are
 * divided up at a row between the two, so that no factor exceeds 1:
 *
 *   sum over d of q_id e^(g_id - g_rd) k_jd e^(g_rd - g_jd),  i > r >= j
 *
 * r being the row before a block of 16, then the middle of it; within eight rows each pair has its
 * own exponentials.
 */
#ifndef LINEAR_LIKE_CHUNK_CHANNELS_CUH
#define LINEAR_LIKE_CHUNK_CHANNELS_CUH

#include "plugins/linear_like/kernels/chunk_ready.cuh"

enum { SUMS_ROW = 132 /* floats of a row of sums of log decays */ };

/* ---- Gates ----------------------------------------------------------------------------------- */

/* A channel a thread. What is left of a state after a decay of e^-90 is nothing; sums that are not
 * large are exact enough to be subtracted. */
DEVICE void load_channel_gates(const linear_call &call, const ready_chunk &chunk, int head,
                               float *sums, const ready_memory &m)
{
    const ready_gates g(m, 0);
    const int k = threadIdx.x, row = chunk.sequence.first_row + chunk.t;
    constexpr float LEAST_LOG = -90;
    float sum = 0;
    if (k < CHUNK_ROWS)
        g.beta[k] = k < chunk.rows ? linear_beta(&call, row + k, head) : 0;
    for (int first = 0; first < CHUNK_ROWS; first += 16) {
        float logs[16];
#pragma unroll
        for (int i = 0; i < 16; i++)
            logs[i] = first + i < chunk.rows && k < call.dims.k_dim
                          ? linear_log_decay(&call, row + first + i, head, k, NULL)
                          : 0;
#pragma unroll
        for (int i = 0; i < 16; i++)
            sums[(first + i) * SUMS_ROW + k] = sum += logs[i] < LEAST_LOG ? LEAST_LOG : logs[i];
    }
}

/* ---- Products of queries and keys ------------------------------------------------------------ */

/* e^(difference of the sums at two neighbouring channels). */
DEVICE float2 decays_between(const float *to, const float *from, int d)
{
    const float2 a = *(const float2 *)(to + d), b = *(const float2 *)(from + d);
    return make_float2(__expf(a.x - b.x), __expf(a.y - b.y));
}

/* Two neighbouring elements of a tile's row times these. */
DEVICE u32 decayed_pair(const char *tile, int row, int d, float2 decays)
{
    const u32 x = *(const u32 *)(tile + tile_offset(row, d / 8) + d % 8 * 2);
    return pack_half(half_low(x) * decays.x, half_high(x) * decays.y);
}

/* What queries and keys of sixteen rows from `first` on, or of the lower eight of them, have with
 * columns [8 n, 8 n + 8 COUNT), none of which lies after row `border`. */
template <int COUNT, bool LOWER>
DEVICE void multiply_decayed(const ready_memory &m, const float *sums, int first, int border, int n,
                             float *p, float *a, int lane)
{
    const float *edge = sums + border * SUMS_ROW;
    float q_sums[COUNT][4] = {}, k_sums[COUNT][4] = {};
#pragma unroll 1
    for (int step = 0; step < 8; step++) {
        u32 q[4] = {}, k[4] = {};
#pragma unroll
        for (int i = LOWER; i < 4; i += 1 + LOWER) {
            const int d = 16 * step + lane % 4 * 2 + i / 2 * 8, row = first + lane / 4 + i % 2 * 8;
            const float2 decays = decays_between(sums + row * SUMS_ROW, edge, d);
            q[i] = decayed_pair(m.q, row, d, decays);
            k[i] = decayed_pair(m.k, row, d, decays);
        }
#pragma unroll
        for (int eight = 0; eight < COUNT; eight++) {
            const int column = 8 * (n + eight) + lane / 4, d = 16 * step + lane % 4 * 2;
            const float *at = sums + column * SUMS_ROW;
            const u32 low = decayed_pair(m.k, column, d, decays_between(edge, at, d));
            const u32 high = decayed_pair(m.k, column, d + 8, decays_between(edge, at, d + 8));
            multiply(q_sums[eight], q, low, high);
            multiply(k_sums[eight], k, low, high);
        }
    }
#pragma unroll
    for (int eight = 0; eight < COUNT; eight++)
#pragma unroll
        for (int e = LOWER ? 2 : 0; e < 4; e++) {
            const int i = first + lane / 4 + e / 2 * 8, j = 8 * (n + eight) + lane % 4 * 2 + e % 2;
            p[i * 64 + j] = q_sums[eight][e];
            a[i * INVERSE_ROW + j] = k_sums[eight][e];
        }
}

/* Eight rows among themselves; a lane has four channels. */
DEVICE void multiply_pairs(const ready_memory &m, const float *sums, int first, float *p, float *a,
                           int lane)
{
    const int d = 4 * lane;
    float4 q[8], k[8], g[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int at = tile_offset(first + i, d / 8) + d % 8 * 2;
        const uint2 x = *(const uint2 *)(m.q + at), y = *(const uint2 *)(m.k + at);
        q[i] = make_float4(half_low(x.x), half_high(x.x), half_low(x.y), half_high(x.y));
        k[i] = make_float4(half_low(y.x), half_high(y.x), half_low(y.y), half_high(y.y));
        g[i] = *(const float4 *)(sums + (first + i) * SUMS_ROW + d);
    }
#pragma unroll 1
    for (int j = 0; j < 8; j++) {
        const int at = tile_offset(first + j, d / 8) + d % 8 * 2;
        const uint2 y = *(const uint2 *)(m.k + at);
        const float4 h = *(const float4 *)(sums + (first + j) * SUMS_ROW + d);
        float x[16];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float kx = half_low(y.x) * __expf(g[i].x - h.x);
            const float ky = half_high(y.x) * __expf(g[i].y - h.y);
            const float kz = half_low(y.y) * __expf(g[i].z - h.z);
            const float kw = half_high(y.y) * __expf(g[i].w - h.w);
            x[i] = q[i].x * kx + q[i].y * ky + q[i].z * kz + q[i].w * kw;
            x[8 + i] = k[i].x * kx + k[i].y * ky + k[i].z * kz + k[i].w * kw;
        }
        /* Sums over the warp: of sixteen, each lane keeps half at a time. */
#pragma unroll
        for (int half = 8; half > 0; half /= 2) {
            const bool upper = lane & 2 * half;
#pragma unroll
            for (int i = 0; i < half; i++) {
                const float sent = upper ? x[i] : x[i + half];
                const float kept = upper ? x[i + half] : x[i];
                x[i] = kept + __shfl_xor_sync(~0u, sent, 2 * half);
            }
        }
        x[0] += __shfl_xor_sync(~0u, x[0], 1);
        const int which = lane / 2, i = which % 8;
        if (lane % 2 == 0 && which < 8 && i >= j)
            p[(first + i) * 64 + first + j] = x[0];
        if (lane % 2 == 0 && which >= 8 && i > j)
            a[(first + i) * INVERSE_ROW + first + j] = x[0];
    }
}

/* p: [64][64] products of queries and keys; m.inverse: those of keys. */
DEVICE void multiply_channels(const ready_memory &m, const float *sums, float *p, int warp,
                              int lane)
{
    for (int i = threadIdx.x; i < 64 * 64; i += CHUNK_READY_THREADS) {
        p[i] = 0;
        m.inverse[i / 64 * INVERSE_ROW + i % 64] = 0;
    }
    __syncthreads();
    const int first = 16 * warp;
    if (warp == 1)
        multiply_decayed<2, false>(m, sums, first, first - 1, 0, p, m.inverse, lane);
    else if (warp == 2)
        multiply_decayed<4, false>(m, sums, first, first - 1, 0, p, m.inverse, lane);
    else if (warp == 3)
        multiply_decayed<6, false>(m, sums, first, first - 1, 0, p, m.inverse, lane);
    multiply_decayed<1, true>(m, sums, first, first + 7, 2 * warp, p, m.inverse, lane);
    multiply_pairs(m, sums, first, p, m.inverse, lane);
    multiply_pairs(m, sums, first + 8, p, m.inverse, lane);
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * 64; i += CHUNK_READY_THREADS)
        m.inverse[i / 64 * INVERSE_ROW + i % 64] *=
            ready_gates(m, 0).beta[i / 64] * m.k_times[i / 64] * m.k_times[i % 64];
}

DEVICE void write_channel_products(const linear_dims &d, const float *p, const ready_memory &m,
                                   char *to, float *numbers, int warp, int lane)
{
    float x[32], more[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        more[i] = m.q_times[16 * warp + lane / 4 + 8 * i] * d.sm_scale;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = 16 * warp + lane / 4 + e / 2 * 8, j = 8 * n + lane % 4 * 2 + e % 2;
            x[4 * n + e] = p[i * 64 + j] * m.k_times[j];
        }
    write_rows<8, false>(x, to, numbers + NUMBERS_P, more, 64, warp, lane);
}

/* ---- Decayed rows ---------------------------------------------------------------------------- */

/* A tile's rows times e^g, or e^(g at the end - g); a power of two for each row; what rows of the
 * result are to be multiplied by. */
static __device__ __noinline__ void decay_tile(const char *from, const float *times,
                                               const float *sums, bool rest, char *to,
                                               float *to_times, float scale)
{
    const int place = threadIdx.x % 16, begin = threadIdx.x / 16 * 8, d = place * 8;
#pragma unroll 2
    for (int row = begin; row < begin + 8; row++) {
        float x[8], largest = 0;
        unpack_eight(ELEMENT_F16, *(const uint4 *)(from + tile_offset(row, place)), x);
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            const float4 g = *(const float4 *)(sums + row * SUMS_ROW + d + i);
            const float4 e = rest ? *(const float4 *)(sums + 63 * SUMS_ROW + d + i)
                                  : make_float4(2 * g.x, 2 * g.y, 2 * g.z, 2 * g.w);
            x[i] *= __expf(e.x - g.x), x[i + 1] *= __expf(e.y - g.y);
            x[i + 2] *= __expf(e.z - g.z), x[i + 3] *= __expf(e.w - g.w);
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            largest = fmaxf(largest, fabsf(x[i]));
        float inverse, up = find_scale(largest_of_lanes(largest), &inverse);
        if (place == 0)
            to_times[row] = inverse * times[row] * scale;
        *(uint4 *)(to + tile_offset(row, place)) =
            make_uint4(pack_half(x[0] * up, x[1] * up), pack_half(x[2] * up, x[3] * up),
                       pack_half(x[4] * up, x[5] * up), pack_half(x[6] * up, x[7] * up));
    }
}

/* ---- A chunk --------------------------------------------------------------------------------- */

/* Blocks: chunks of the window, times v heads. */
DEVICE void channels_block(const linear_call &call, int first, char *memory)
{
    const linear_dims &d = call.dims;
    const linear_chunks &chunks = call.chunks;
    const int head = blockIdx.x % d.v_heads, index = blockIdx.x / d.v_heads;
    if (first + index >= *chunks.count)
        return;
    const linear_chunk from = chunks.list[first + index];
    const ready_chunk chunk = {linear_find_sequence(&call.batch, from.sequence), from.first,
                               from.rows};
    const ready_memory m(memory);
    const ready_gates g(m, 0);
    const ready_values to(call, index, head, true);
    char *own = memory + CHUNK_READY_SHARED(1);
    float *p = (float *)own, *sums = (float *)(own + CHUNK_TILE);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, key_head = head / d.ratio;
    char *keys = chunks.keys + ((i64)index * d.v_heads + head) * CHUNK_KEYS_BYTES;

    load_channel_gates(call, chunk, head, sums, m);
    load_tile<false>(call, chunk, d.first[0] + key_head * d.k_dim, d.k_dim, d.l2_norm, m.q,
                     m.q_times, NULL, NULL);
    load_tile<false>(call, chunk, d.first[1] + key_head * d.k_dim, d.k_dim, d.l2_norm, m.k,
                     m.k_times, NULL, NULL);
    __syncthreads();
    multiply_channels(m, sums, p, warp, lane);
    write_channel_products(d, p, m, to.products, to.numbers, warp, lane);
    decay_tile(m.q, m.q_times, sums, false, keys, to.numbers + NUMBERS_Q, d.sm_scale);
    decay_tile(m.k, m.k_times, sums, true, keys + CHUNK_TILE, to.numbers + NUMBERS_K, 1);
    to.numbers[NUMBERS_DECAY + threadIdx.x] = expf(sums[63 * SUMS_ROW + threadIdx.x]);
    __syncthreads();
    load_tile<false>(call, chunk, d.first[2] + head * d.v_dim, d.v_dim, false, m.q, m.v_times, NULL,
                     NULL);
    decay_tile(m.k, m.k_times, sums, false, own, m.q_times, 1);
    __syncthreads();
    solve(d, m, g, to, warp, lane);
    write_solved<false, false>(m, g, m.q_times, own, to.w, to.numbers + NUMBERS_W, CHUNK_MAX_KEYS,
                               warp, lane);
}

#endif /* LINEAR_LIKE_CHUNK_CHANNELS_CUH */
