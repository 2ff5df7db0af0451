/* SPDX-License-Identifier: Apache-2.0
 *
 * channels_decays.cuh: decays of a chunk's rows, and products within its blocks of 16 rows.
 */
#ifndef LINEAR_LIKE_CHANNELS_DECAYS_CUH
#define LINEAR_LIKE_CHANNELS_DECAYS_CUH

#include "plugins/linear_like/kernels/channels_gates.cuh"

/* ---- Rows alone -------------------------------------------------------------------------- */

DEVICE void multiply_bf16(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Lengths of the block's rows, and products of their own q and k, by its second warp: diagonals of
 * the products of eight rows of q and of k with the same rows of k and of q. */
DEVICE void find_lengths(const decays_memory &m, const decays_part &part)
{
    const int lane = part.lane, row = 16 * part.block + lane % 8, second = lane / 8 % 2;
    const unsigned left = tile_offset(row, lane / 16), right = tile_offset(row, second);
    const unsigned left_tile = shared_address(second ? m.k : m.q);
    const unsigned right_tile = shared_address(lane < 16 ? m.k : m.q);
    float with_k[2][4] = {}, with_q[2][4] = {};
#pragma unroll
    for (int step = 0; step < 8; step++)
#pragma unroll
        for (int w = 0; w < 2; w++) {
            const unsigned from = w * 1024 + step / 4 * (CHUNK_TILE / 2);
            u32 x[4], y[4];
            load_matrices(left_tile + (left ^ step % 4 * 32) + from, x);
            load_matrices(right_tile + (right ^ step % 4 * 32) + from, y);
            multiply_bf16(with_k[w], x, y[0], y[1]);
            multiply_bf16(with_q[w], x, y[2], y[3]);
        }
    if (lane % 4 != lane / 8) /* lanes on the diagonals have one of two columns */
        return;
#pragma unroll
    for (int w = 0; w < 2; w++) {
        const int r = 16 * part.block + 8 * w + lane / 4;
        const bool odd = lane / 4 % 2;
        m.own[r] = odd ? with_k[w][1] : with_k[w][0];
        m.k_times[r] = rsqrtf((odd ? with_k[w][3] : with_k[w][2]) + 1e-6f);
        m.q_times[r] = rsqrtf((odd ? with_q[w][1] : with_q[w][0]) + 1e-6f);
    }
}

/* Sums log decays from the block's first row on, sixteen channels at a time; the block's sums are
 * written to shared memory. */
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

/* ---- Decays of blocks, and numbers ------------------------------------------------------- */

/* Decays of the warp's block, two channels per lane; eight lanes also compute those of the whole
 * chunk and between blocks. */
DEVICE void find_blocks(const decays_memory &m, const decays_part &part, float *numbers)
{
    const int k = CHANNELS_PER_WARP * part.half + 2 * part.lane;
    const int at = part.block * CHUNK_MAX_KEYS + k;
    float2 total[4], before = {0, 0}, after = {0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++)
        total[i] = *(const float2 *)(m.totals + i * CHUNK_MAX_KEYS + k);
    const float2 own = *(const float2 *)(m.totals + at);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i < part.block)
            before.x += total[i].x, before.y += total[i].y;
        if (i > part.block)
            after.x += total[i].x, after.y += total[i].y;
    }
    m.edges[at / 2] =
        make_uint2(pack_half(exp2_fast(before.x) * CHANNELS_UP, exp2_fast(before.y) * CHANNELS_UP),
                   pack_half(exp2_fast(after.x) * CHANNELS_UP, exp2_fast(after.y) * CHANNELS_UP));
    m.whole[at / 2] =
        make_float4(own.x, own.y, exp2_fast(-own.x) * TRUNCATED, exp2_fast(-own.y) * TRUNCATED);
    if (part.lane / 8 == part.block) {
        const float2 both = make_float2(total[1].x + total[2].x, total[1].y + total[2].y);
        u32 *between = (u32 *)(m.between + k);
        between[0] = pack_half(exp2_fast(total[1].x), exp2_fast(total[1].y));
        between[CHUNK_MAX_KEYS / 2] = pack_half(exp2_fast(both.x), exp2_fast(both.y));
        between[CHUNK_MAX_KEYS] = pack_half(exp2_fast(total[2].x), exp2_fast(total[2].y));
        *(float2 *)(numbers + NUMBERS_DECAY + k) =
            make_float2(exp2f(before.x + own.x + after.x), exp2f(before.y + own.y + after.y));
    }
    __syncwarp();
}

/* The convolution's numbers of a row: its q times its own k, and the factor of its v. */
struct convolved_row {
    float own, v_times;
};

/* The row of a lane of two warps; negative: none. */
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

/* ---- Rows with their decays -------------------------------------------------------------- */

/* Two elements of a normalised row: bf16 times `times`, or fp16. */
template <bool TILES> DEVICE float2 unpack_two(u32 x, float times)
{
    return TILES ? make_float2(half_low(x), half_high(x))
                 : make_float2(bits_f32(x << 16) * times, bits_f32(x & 0xffff0000) * times);
}

/* Products within a block, of queries and keys, and of keys alone. */
struct block_products {
    float q[2][4], k[2][4];
};

/* A block's rows of q and k, decayed from its first row on, as left operands. */
struct block_rows_left {
    u32 q[8][4], k[8][4];
};

/* A lane's part of 16 channels: left operands; tiles of decayed rows, which replace the rows;
 * products within the block, whose operands stay in registers. */
template <bool TILES>
DEVICE void decay_rows(const decays_memory &m, const decays_part &part, int step,
                       const float (&q_times)[2], const float (&k_times)[2],
                       const float (&sums)[2][4], u32 (&q_left)[4], u32 (&k_left)[4],
                       block_products &products)
{
    const int lane = part.lane;
    const unsigned at = shared_address(m.q) + part.half * (CHUNK_TILE / 2) + (part.at ^ step * 32);
    const unsigned ends_at = at - shared_address(m.q);
    const int first =
        part.block * CHUNK_MAX_KEYS + CHANNELS_PER_WARP * part.half + 16 * step + lane % 4 * 2;
    u32 q_raw[4], k_raw[4], q_all[4], k_all[4], ends[4], to_end[4];
    load_matrices(at, q_raw);
    load_matrices(at + CHUNK_TILE, k_raw);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const float4 whole = m.whole[first / 2 + 4 * h];
        const uint2 edges = m.edges[first / 2 + 4 * h];
        float x[4], y[4], right[2][2];
#pragma unroll
        for (int w = 0; w < 2; w++) {
            const int i = 2 * h + w;
            const float2 sum = make_float2(sums[h][2 * w], sums[h][2 * w + 1]);
            const float2 down = exp2_pair(sum.x, sum.y);
            const float2 end = exp2_pair(whole.x - sum.x, whole.y - sum.y);
            const float2 q = unpack_two<TILES>(q_raw[i], q_times[w]);
            const float2 k = unpack_two<TILES>(k_raw[i], k_times[w]);
            const float kx = k.x * end.x, ky = k.y * end.y;
            x[w] = q.x * down.x, x[2 + w] = q.y * down.y;
            y[w] = k.x * down.x, y[2 + w] = k.y * down.y;
            q_left[i] = pack_half(x[w], x[2 + w]);
            k_left[i] = pack_half(y[w], y[2 + w]);
            ends[i] = pack_half(kx, ky);
            q_all[i] = multiply_pairs(q_left[i], edges.x);
            k_all[i] = multiply_pairs(k_left[i], edges.x);
            to_end[i] = multiply_pairs(ends[i], edges.y);
            right[w][0] = kx * whole.z, right[w][1] = ky * whole.w;
        }
#pragma unroll
        for (int w = 0; w < 2; w++) {
            multiply_tf32(products.q[w], x, right[w][0], right[w][1]);
            multiply_tf32(products.k[w], y, right[w][0], right[w][1]);
        }
    }
    store_matrices(at, q_all);
    store_matrices(at + CHUNK_TILE, k_all);
    store_matrices(shared_address(m.to_end) + ends_at, to_end);
    store_matrices(shared_address(m.ends) + ends_at, ends);
    if (part.half)
        return;
    m.given(part.block, step)[lane] = make_uint4(q_left[0], q_left[1], q_left[2], q_left[3]);
    m.given(part.block, 4 + step)[lane] = make_uint4(k_left[0], k_left[1], k_left[2], k_left[3]);
}

/* Products within a block whose decays have no reciprocals, by a warp, four channels per lane.
 * Reads what decay_rows() has not overwritten yet. */
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

/* Passes sums of a block's products to its other warp, or reads them. */
DEVICE void give_sums(const decays_memory &m, const decays_part &part, int n,
                      const float (&sums)[2][4])
{
#pragma unroll
    for (int w = 0; w < 2; w++)
        *(float4 *)&m.given(part.block, n + w)[part.lane] =
            make_float4(sums[w][0], sums[w][1], sums[w][2], sums[w][3]);
}

DEVICE void take_sums(const decays_memory &m, const decays_part &part, int n, float (&sums)[2][4])
{
#pragma unroll
    for (int w = 0; w < 2; w++) {
        const float4 x = *(const float4 *)&m.given(part.block, n + w)[part.lane];
        sums[w][0] += x.x, sums[w][1] += x.y, sums[w][2] += x.z, sums[w][3] += x.w;
    }
}

/* A warp's part of a block: decayed rows, products within the block. The first warp passes its left
 * operands and products of queries to the second, and gets those of keys. False: decays have no
 * reciprocals. */
template <bool TILES>
DEVICE bool decay_part(const decays_memory &m, const decays_part &part,
                       const float (&sums)[CHANNELS_STEPS][2][4], block_rows_left &left,
                       block_products &products)
{
    constexpr float range = 100; /* in units of log 2 */
    const int lane = part.lane, row = 16 * part.block + lane / 4;
    float q_times[2] = {}, k_times[2] = {};
    if constexpr (!TILES)
#pragma unroll
        for (int w = 0; w < 2; w++)
            q_times[w] = m.q_times[row + 8 * w], k_times[w] = m.k_times[row + 8 * w];
    const float4 total = *(const float4 *)(m.totals + part.block * CHUNK_MAX_KEYS + 4 * lane);
    const bool in_range =
        __all_sync(~0u, fminf(fminf(total.x, total.y), fminf(total.z, total.w)) >= -range);
    if (!in_range) {
        if (part.half == 0)
            multiply_pairwise<TILES>(m.q, part.block, lane);
        part.sync(); /* rows are not decayed before this */
    }
#pragma unroll
    for (int step = 0; step < CHANNELS_STEPS; step++)
        decay_rows<TILES>(m, part, step, q_times, k_times, sums[step],
                          left.q[CHANNELS_STEPS + step], left.k[CHANNELS_STEPS + step], products);
    if (part.half)
        give_sums(m, part, 10, products.k);
    else
        give_sums(m, part, 8, products.q);
    return in_range;
}

/* Loads products of queries or of keys within a block, computed without reciprocals. */
DEVICE void take_pairwise(const decays_memory &m, const decays_part &part, float (&sums)[2][4])
{
    const float *from = m.pairwise(part.block) + (part.half ? 0 : 256);
    const int lane = part.lane;
#pragma unroll
    for (int n = 0; n < 8; n++)
        sums[n / 4][n % 4] =
            from[(lane / 4 + n % 4 / 2 * 8) * 16 + n / 4 * 8 + lane % 4 * 2 + n % 2];
    part.sync(); /* before the system is written there */
}

#endif /* LINEAR_LIKE_CHANNELS_DECAYS_CUH */
