/* SPDX-License-Identifier: Apache-2.0
 *
 * channels_decays.cuh: a chunk's rows with their decays, and products within its blocks of 16 rows.
 */
#ifndef LINEAR_LIKE_CHANNELS_DECAYS_CUH
#define LINEAR_LIKE_CHANNELS_DECAYS_CUH

#include "plugins/linear_like/kernels/channels_gates.cuh"

/* ---- What is found of rows alone ------------------------------------------------------------- */

DEVICE void multiply_bf16(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Products of rows with the same number, of the lanes that lane % 4 == lane / 8 says. */
DEVICE void take_diagonal(const float (&x)[2][4], int lane, float (&to)[2])
{
    to[0] = lane / 4 % 2 ? x[0][1] : x[0][0];
    to[1] = lane / 4 % 2 ? x[1][3] : x[1][2];
}

/* Sixteen rows of 16 channels, as right operands of products: of eight rows each. */
DEVICE void load_right(unsigned tile, int step, int lane, int block, u32 (&x)[4])
{
    load_matrices(
        tile + (tile_offset(16 * block + lane % 8 + lane / 16 * 8, lane / 8 % 2) ^ step % 4 * 32) +
            step / 4 * (CHUNK_TILE / 2),
        x);
}

/* Lengths of the block's rows, of k by the first of its warps, of q by the second; rows' own products. */
DEVICE void find_lengths(const decays_memory &m, const decays_part &part)
{
    const int lane = part.lane, row = 16 * part.block + lane / 4;
    const unsigned mine = shared_address(part.mine(m)), k = shared_address(m.k);
    float squares[2][4] = {}, products[2][4] = {}, sums[2], own[2];
#pragma unroll
    for (int step = 0; step < 8; step++) {
        u32 x[4], y[4];
        load_matrices(mine + (part.at ^ step % 4 * 32) + step / 4 * (CHUNK_TILE / 2), x);
        load_right(mine, step, lane, part.block, y);
        multiply_bf16(squares[0], x, y[0], y[1]);
        multiply_bf16(squares[1], x, y[2], y[3]);
        if (part.half) {
            load_right(k, step, lane, part.block, y);
            multiply_bf16(products[0], x, y[0], y[1]);
            multiply_bf16(products[1], x, y[2], y[3]);
        }
    }
    take_diagonal(squares, lane, sums);
    take_diagonal(products, lane, own);
    if (lane % 4 != lane / 8)
        return;
    float *times = part.half ? m.q_times : m.k_times;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        times[row + 8 * i] = rsqrtf(sums[i] + 1e-6f);
        if (part.half)
            m.own[row + 8 * i] = own[i];
    }
}

/* Sums of log decays from the block's first row on, by steps of sixteen channels; the block's go to shared
 * memory. */
DEVICE void sum_logs(const decays_memory &m, const decays_part &part,
                     float (&sums)[CHANNELS_STEPS][2][4])
{
    const int lane = part.lane, row = lane / 4, column = lane % 4 * 2;
    const unsigned at = part.half * (CHUNK_TILE / 2) + part.at;
    const unsigned logs = shared_address(m.to_end);
    const u32 one = 0x1c00; /* 1 / LOGS_UP */
    const u32 corner = (column <= row ? one : 0) | (column + 1 <= row ? one << 16 : 0);
    const u32 ones[4] = {corner, one | one << 16, 0, corner};
#pragma unroll
    for (int step = 0; step < CHANNELS_STEPS; step++) {
        u32 x[4];
        load_matrices_turned(logs + (at ^ step * 32), x);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float(&to)[4] = sums[step][h];
            to[0] = to[1] = to[2] = to[3] = 0;
            multiply(to, ones, x[2 * h], x[2 * h + 1]);
            if (row == 7)
                *(float2 *)(m.totals + part.block * CHUNK_MAX_KEYS + CHANNELS_PER_WARP * part.half +
                            16 * step + 8 * h + column) = make_float2(to[2], to[3]);
        }
    }
}

/* ---- Decays of blocks, and numbers ----------------------------------------------------------- */

/* A channel for two threads. */
DEVICE void find_blocks(const decays_memory &m, float *numbers)
{
    const int k = threadIdx.x % CHUNK_MAX_KEYS;
    float total[4], sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        total[i] = m.totals[i * CHUNK_MAX_KEYS + k];
    if (threadIdx.x < CHUNK_MAX_KEYS) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            m.since[i * CHUNK_MAX_KEYS + k] = (u16)pack_half(exp2_fast(sum) * CHANNELS_UP, 0);
            sum += total[i];
        }
        const u32 two = pack_half(exp2_fast(total[1]), exp2_fast(total[1] + total[2]));
        m.between[k] = (u16)two;
        m.between[CHUNK_MAX_KEYS + k] = (u16)(two >> 16);
        m.between[2 * CHUNK_MAX_KEYS + k] = (u16)pack_half(exp2_fast(total[2]), 0);
        return;
    }
#pragma unroll
    for (int i = 3; i >= 0; i--) {
        m.inverse[i * CHUNK_MAX_KEYS + k] = exp2_fast(-total[i]) * TRUNCATED;
        m.until[i * CHUNK_MAX_KEYS + k] = (u16)pack_half(exp2_fast(sum) * CHANNELS_UP, 0);
        sum += total[i];
    }
    numbers[NUMBERS_DECAY + k] = exp2f(sum);
}

/* What the convolution has found of a row: its q times its k, what its v is to be multiplied by. */
struct convolved_row {
    float own, v_times;
};

/* The row of a lane of two warps; below 0: it has none. */
DEVICE int find_number(const decays_part &part)
{
    return part.half ? 32 * (part.block - 2) + part.lane : -1;
}

DEVICE convolved_row load_convolved(const linear_call &call, const decays_part &part, int index,
                                    int head)
{
    const linear_dims &d = call.dims;
    const int r = find_number(part);
    convolved_row row = {};
    if (r >= 0)
        row = {row_numbers(call, index, head / d.ratio)[r],
               row_numbers(call, index, d.k_heads + head)[r]};
    return row;
}

template <bool TILES>
DEVICE void write_row_numbers(const linear_dims &d, const decays_memory &m, const decays_part &part,
                              const convolved_row &row, float *numbers)
{
    const int r = find_number(part);
    if (r < 0)
        return;
    numbers[NUMBERS_Q + r] = d.sm_scale / CHANNELS_UP;
    if (TILES)
        numbers[NUMBERS_U + r] = row.v_times;
    numbers[NUMBERS_P + r] = d.sm_scale / PRODUCTS_ROOM;
    numbers[NUMBERS_OWN(true) + r] =
        (TILES ? row.own : m.own[r] * m.q_times[r] * m.k_times[r]) * d.sm_scale;
}

/* ---- Rows with their decays ------------------------------------------------------------------ */

/* Two elements of a row of length 1: bf16 times `times`, or fp16. */
template <bool TILES> DEVICE float2 unpack_two(u32 x, float times)
{
    return TILES ? make_float2(half_low(x), half_high(x))
                 : make_float2(bits_f32(x << 16) * times, bits_f32(x & 0xffff0000) * times);
}

/* Products within a block, of queries and keys or of keys alone: `mine` and the other ones. */
struct block_products {
    float mine[2][4], others[2][4];
};

/* A lane's part of 16 channels: a left operand for itself and one for the block's other warp; tiles of
 * decayed rows in the place of those that have no decays; products within the block, for which
 * operands never leave the registers. */
template <bool TILES>
DEVICE void decay_rows(const decays_memory &m, const decays_part &part, int step,
                       const float (&times)[2], const float (&others_times)[2],
                       const float (&sums)[2][4], u32 (&left)[4], block_products &products)
{
    const int lane = part.lane;
    const unsigned at = part.half * (CHUNK_TILE / 2) + (part.at ^ step * 32);
    const int first =
        part.block * CHUNK_MAX_KEYS + CHANNELS_PER_WARP * part.half + 16 * step + lane % 4 * 2;
    const unsigned mine = shared_address(part.mine(m)) + at;
    const unsigned others = shared_address(part.others(m)) + at;
    u32 raw[4], others_raw[4], all[4], others_all[4], given[4], ends[4], to_end[4];
    load_matrices(mine, raw);
    load_matrices(others, others_raw);
    /* part.half, which the compiler keeps where no select reads it. */
    const bool queries = threadIdx.x >= CHUNK_CHANNELS_THREADS / 2;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float2 total = *(const float2 *)(m.totals + first + 8 * h);
        const float2 inverse = *(const float2 *)(m.inverse + first + 8 * h);
        const u32 since = *(const u32 *)(m.since + first + 8 * h);
        const u32 until = *(const u32 *)(m.until + first + 8 * h);
        float x[4], y[4], right[2][2];
#pragma unroll
        for (int w = 0; w < 2; w++) {
            const int i = 2 * h + w;
            const float2 sum = make_float2(sums[h][2 * w], sums[h][2 * w + 1]);
            const float2 down = exp2_pair(sum.x, sum.y);
            const float2 end = exp2_pair(total.x - sum.x, total.y - sum.y);
            const float2 one = unpack_two<TILES>(raw[i], times[w]);
            const float2 other = unpack_two<TILES>(others_raw[i], others_times[w]);
            const float kx = (queries ? other.x : one.x) * end.x;
            const float ky = (queries ? other.y : one.y) * end.y;
            x[w] = one.x * down.x, x[2 + w] = one.y * down.y;
            y[w] = other.x * down.x, y[2 + w] = other.y * down.y;
            left[i] = pack_half(x[w], x[2 + w]);
            given[i] = pack_half(y[w], y[2 + w]);
            ends[i] = pack_half(kx, ky);
            all[i] = multiply_pairs(left[i], since);
            others_all[i] = multiply_pairs(given[i], since);
            to_end[i] = multiply_pairs(ends[i], until);
            right[w][0] = kx * inverse.x, right[w][1] = ky * inverse.y;
        }
#pragma unroll
        for (int w = 0; w < 2; w++) {
            multiply_tf32(products.mine[w], x, right[w][0], right[w][1]);
            multiply_tf32(products.others[w], y, right[w][0], right[w][1]);
        }
    }
    store_matrices(mine, all);
    store_matrices(others, others_all);
    store_matrices(shared_address(m.to_end) + at, to_end);
    store_matrices(shared_address(m.ends) + at, ends);
    m.given(part.block, 1 - part.half, step)[lane] =
        make_uint4(given[0], given[1], given[2], given[3]);
}

/* Products within a block whose decays have no reciprocals, from what decay_rows() has not overwritten yet,
 * by a warp, a lane four channels. */
template <bool TILES>
static __device__ __noinline__ void multiply_pairwise(char *memory, int block, int lane)
{
    const decays_memory m(memory);
    float *products = m.pairwise(block), *keys = products + 256;
    const int place = lane / 2, half = lane % 2 * 8;
    for (int j = 0; j < 15; j++) {
        const int from = tile_offset(16 * block + j, place) + half;
        const uint2 key = *(const uint2 *)(m.k + from);
        const float2 first = unpack_two<TILES>(key.x, m.k_times[16 * block + j]);
        const float2 second = unpack_two<TILES>(key.y, m.k_times[16 * block + j]);
        const float y[4] = {first.x, first.y, second.x, second.y};
        float sum[4] = {};
        for (int i = j + 1; i < 16; i++) {
            const int at = tile_offset(16 * block + i, place) + half;
            const uint2 logs = *(const uint2 *)(m.to_end + at);
            const uint2 q = *(const uint2 *)(m.q + at), k = *(const uint2 *)(m.k + at);
            const float q_times = m.q_times[16 * block + i], k_times = m.k_times[16 * block + i];
            float of_q = 0, of_k = 0;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const u32 log = e < 2 ? logs.x : logs.y;
                const float2 of = unpack_two<TILES>(e < 2 ? q.x : q.y, q_times);
                const float2 with = unpack_two<TILES>(e < 2 ? k.x : k.y, k_times);
                sum[e] += (e % 2 ? half_high(log) : half_low(log)) * (1 / LOGS_UP);
                const float decayed = y[e] * exp2_fast(sum[e]);
                of_q += (e % 2 ? of.y : of.x) * decayed;
                of_k += (e % 2 ? with.y : with.x) * decayed;
            }
#pragma unroll
            for (int step = 16; step > 0; step /= 2) {
                of_q += __shfl_xor_sync(~0u, of_q, step);
                of_k += __shfl_xor_sync(~0u, of_k, step);
            }
            if (lane > 0)
                continue;
            products[16 * i + j] = of_q;
            keys[16 * i + j] = of_k;
        }
    }
    __syncwarp();
}

/* A warp's part of a block: rows with their decays, products within the block, half of which are given to
 * the block's other warp. False: decays have no reciprocals. */
template <bool TILES>
DEVICE bool decay_part(const decays_memory &m, const decays_part &part,
                       const float (&sums)[CHANNELS_STEPS][2][4], u32 (&left)[8][4],
                       block_products &products)
{
    constexpr float range = 100; /* in units of log 2 */
    const int lane = part.lane, row = 16 * part.block + lane / 4;
    const float *mine = part.half ? m.q_times : m.k_times;
    const float *others = part.half ? m.k_times : m.q_times;
    float times[2] = {}, others_times[2] = {};
    if constexpr (!TILES)
#pragma unroll
        for (int w = 0; w < 2; w++)
            times[w] = mine[row + 8 * w], others_times[w] = others[row + 8 * w];
    const float4 total = *(const float4 *)(m.totals + part.block * CHUNK_MAX_KEYS + 4 * lane);
    const bool in_range =
        __all_sync(~0u, fminf(fminf(total.x, total.y), fminf(total.z, total.w)) >= -range);
    if (!in_range) {
        if (part.half == 0)
            multiply_pairwise<TILES>(m.q, part.block, lane);
        part.sync(); /* rows are without decays until then */
    }
#pragma unroll
    for (int step = 0; step < CHANNELS_STEPS; step++)
        decay_rows<TILES>(m, part, step, times, others_times, sums[step], left[step], products);
#pragma unroll
    for (int w = 0; w < 2; w++)
        *(float4 *)&m.given(part.block, 1 - part.half, 4 + w)[lane] =
            make_float4(products.others[w][0], products.others[w][1], products.others[w][2],
                        products.others[w][3]);
    return in_range;
}

/* What the block's other warp has given: the left operand of its channels, products within the block. */
DEVICE void take_given(const decays_memory &m, const decays_part &part, bool in_range,
                       u32 (&left)[8][4], float (&within)[2][4])
{
    const int lane = part.lane;
#pragma unroll
    for (int step = 0; step < CHANNELS_STEPS; step++) {
        const uint4 x = m.given(part.block, part.half, step)[lane];
        left[4 + step][0] = x.x, left[4 + step][1] = x.y;
        left[4 + step][2] = x.z, left[4 + step][3] = x.w;
    }
#pragma unroll
    for (int w = 0; w < 2; w++) {
        const float4 x = *(const float4 *)&m.given(part.block, part.half, 4 + w)[lane];
        within[w][0] += x.x, within[w][1] += x.y, within[w][2] += x.z, within[w][3] += x.w;
    }
    if (in_range)
        return;
    const float *pairwise = m.pairwise(part.block) + (part.half ? 0 : 256);
#pragma unroll
    for (int n = 0; n < 8; n++)
        within[n / 4][n % 4] =
            pairwise[(lane / 4 + n % 4 / 2 * 8) * 16 + n / 4 * 8 + lane % 4 * 2 + n % 2];
    part.sync(); /* the system will lie there */
}

#endif /* LINEAR_LIKE_CHANNELS_DECAYS_CUH */
