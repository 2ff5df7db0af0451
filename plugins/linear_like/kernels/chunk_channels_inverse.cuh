/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk_channels_inverse.cuh: what chunk_states.cuh needs of each chunk of KDA with a norm: q and k with
 * the decays from the chunk's first row on, k with those to its end, decayed products of q and k, and
 * (I + A)^-1.
 *
 * Without a convolution rows come as they are, bf16. After one (TILES) tiles of normalised rows, fp16,
 * lie where those with decays will. Eight warps have a chunk of a head: 16 rows and half of the channels
 * each. A lane has what tensor cores have as sums: two neighbouring channels of rows r and r + 8. Sums of
 * log decays come in this form, as products of ones on and below a diagonal and of log decays in fp16,
 * from which all decays of a chunk are made. ldmatrix gives rows of q and k in the same form, so that products within
 * a block find their operands in the registers they were made in. Products of blocks are those of chunk_channels.cuh.
 */
#ifndef LINEAR_LIKE_CHUNK_CHANNELS_INVERSE_CUH
#define LINEAR_LIKE_CHUNK_CHANNELS_INVERSE_CUH

#include "plugins/linear_like/kernels/chunk_channels.cuh"
#include "plugins/linear_like/kernels/chunk_inverse.cuh"

enum { CHANNELS_PER_WARP = CHUNK_MAX_KEYS / 2, CHANNELS_STEPS = CHANNELS_PER_WARP / 16 };

/* Log decays, in units of log 2, are fp16 times this. */
#define LOGS_UP 256.0f
/* What two numbers lose when tensor cores cut them to tf32, on the average, is made up for. */
#define TRUNCATED 1.0007f

enum { GATE_ROWS = 4 /* of a thread, for eight channels */ };

/* ready_memory's parts have other uses here: `staging` is also what warps of a block exchange. */
struct decays_memory : ready_memory {
    char *to_end; /* tiles: log decays; then keys to the chunk's end */
    char *ends;   /* raw gates; then keys to their block's end */
    float *beta;
    float *totals;  /* [4][128] log decays of blocks, in units of log 2 */
    float *inverse; /* [4][128] of decays of blocks, times TRUNCATED */
    u16 *since;     /* [4][128] fp16: from the chunk's first row to a block's, times CHANNELS_UP */
    u16 *until;     /* [4][128] from a block's end to the chunk's, times CHANNELS_UP */
    u16 *between;   /* [3][128] of blocks 1, 1 and 2, 2 */

    __device__ __forceinline__ explicit decays_memory(char *from)
        : ready_memory(from, CHUNK_EXCHANGE / CHUNK_STAGE)
    {
        to_end = system + CHUNK_PRODUCTS;
        ends = to_end + CHUNK_TILE;
        beta = gates;
        totals = (float *)(ends + CHUNK_TILE);
        inverse = totals + 4 * CHUNK_MAX_KEYS;
        since = (u16 *)(inverse + 4 * CHUNK_MAX_KEYS);
        until = since + 4 * CHUNK_MAX_KEYS;
        between = until + 4 * CHUNK_MAX_KEYS;
    }

    /* [2][16][16]: products within a block that were made one by one. */
    __device__ __forceinline__ float *pairwise(int block) const
    {
        return (float *)(system + block * CHUNK_STAGE);
    }

    /* What the other warp of a block has left for one, 16 bytes a lane: parts 0 to 3 lie where that
     * stages its rows, as it is the only one to read them. */
    __device__ __forceinline__ uint4 *given(int block, int half, int n) const
    {
        const int warp = 4 * half + block;
        return (uint4 *)(n < 4 ? staging + warp * CHUNK_STAGE + n * 512
                               : staging + 8 * CHUNK_STAGE + warp * 1024 + (n - 4) * 512);
    }
};

/* A warp's part: rows of a block, half of the channels. The first warp of a block ends with products of
 * keys and keys, the second with those of queries and keys: `mine` is k or q. */
struct decays_part {
    int block, half, lane;
    unsigned at; /* of a tile: a lane's row and place, for matrices as left operands */

    __device__ __forceinline__ decays_part(void)
    {
        const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
        block = warp % 4, half = warp / 4, lane = threadIdx.x % 32;
        at = tile_offset(16 * block + lane % 16, lane / 16);
    }

    __device__ __forceinline__ char *mine(const decays_memory &m) const
    {
        return half ? m.q : m.k;
    }

    __device__ __forceinline__ char *others(const decays_memory &m) const
    {
        return half ? m.k : m.q;
    }

    /* The two warps of the block. */
    __device__ __forceinline__ void sync(void) const
    {
        named_sync(1 + block, 64);
    }
};

/* ---- Gates ----------------------------------------------------------------------------------- */

/* Of two fp16 numbers, the larger ones; NaN where one is. */
DEVICE u32 larger_or_nan(u32 x, u32 y)
{
    u32 z;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

/* log(1 + 2^x) in units of log 2, to 2^-14 of it, as fp16 keeps no more: with y = 2^-|x|, a polynomial of
 * log(1 + y) / y. */
DEVICE float softplus_fast(float x)
{
    const float y = exp2_fast(-fabsf(x));
    float sum = 0.05965154706981297f;
    sum = sum * y - 0.22711944897776914f;
    sum = sum * y + 0.4418988306334567f;
    sum = sum * y - 0.7169874149351255f;
    sum = sum * y + 1.442613208263348f;
    return sum * y + fmaxf(x, 0);
}

DEVICE float reciprocal_fast(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 16 bytes of elements, wherever these lie. */
DEVICE uint4 load_apart(const u16 *x)
{
    return make_uint4(x[0] | (u32)x[1] << 16, x[2] | (u32)x[3] << 16, x[4] | (u32)x[5] << 16,
                      x[6] | (u32)x[7] << 16);
}

DEVICE uint4 load_apart(const float *x)
{
    return make_uint4(f32_bits(x[0]), f32_bits(x[1]), f32_bits(x[2]), f32_bits(x[3]));
}

/* Eight gates of rows, 0 where there is none: bf16 or floats. */
template <typename T>
DEVICE void load_gates(const char *at, i64 apart, int rows, uint4 (&x)[GATE_ROWS][sizeof(T) / 2])
{
    constexpr int words = sizeof(T) / 2;
    const bool vector = ((u64)at | (u64)apart) % 16 == 0;
#pragma unroll
    for (int r = 0; r < GATE_ROWS; r++)
#pragma unroll
        for (int i = 0; i < words; i++)
            x[r][i] = make_uint4(0, 0, 0, 0);
    if (vector) {
#pragma unroll
        for (int r = 0; r < GATE_ROWS; r++)
#pragma unroll
            for (int i = 0; i < words; i++)
                if (16 * r < rows)
                    x[r][i] = ((const uint4 *)(at + 16 * r * apart))[i];
        return;
    }
#pragma unroll
    for (int r = 0; r < GATE_ROWS; r++)
#pragma unroll
        for (int i = 0; i < words; i++)
            if (16 * r < rows)
                x[r][i] = load_apart((const T *)(at + 16 * r * apart) + 8 / words * i);
}

DEVICE void unpack_gates(const uint4 (&from)[1], float (&x)[8])
{
    unpack_eight(ELEMENT_BF16, from[0], x);
}

DEVICE void unpack_gates(const uint4 (&from)[2], float (&x)[8])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        x[4 * i] = bits_f32(from[i].x), x[4 * i + 1] = bits_f32(from[i].y);
        x[4 * i + 2] = bits_f32(from[i].z), x[4 * i + 3] = bits_f32(from[i].w);
    }
}

/* A chunk of a head. Of a thread: rows from `row` on, in steps of 16, and eight channels; `rows`: those
 * that there are, from the first on. */
struct channels_chunk {
    int head, row, rows;
    ready_chunk chunk;

    __device__ __forceinline__ channels_chunk(const linear_call &call, const linear_chunk &from,
                                              int unit)
    {
        head = unit % call.dims.v_heads;
        chunk = {linear_find_sequence(&call.batch, from.sequence), from.first, from.rows};
        row = threadIdx.x / 16;
        rows = threadIdx.x % 16 * 8 < call.dims.k_dim ? chunk.rows - row : 0;
    }

    __device__ __forceinline__ const char *gates(const linear_call &call, int size) const
    {
        return call.operands.a +
               (i64)(chunk.sequence.first_row + chunk.t + row) * call.operands.a_row +
               head * call.operands.a_head + (i64)(threadIdx.x % 16 * 8) * size;
    }
};

/* Log decays as a tile, in units of log 2 / LOGS_UP: a thread has eight channels of four rows. */
template <typename T, typename FIND>
DEVICE void write_logs(const uint4 (&from)[GATE_ROWS][sizeof(T) / 2], const channels_chunk &chunk,
                       const decays_memory &m, FIND find)
{
    const int to = tile_offset(chunk.row, threadIdx.x % 16);
#pragma unroll
    for (int r = 0; r < GATE_ROWS; r++) {
        /* e^-90: nothing is left of a state. */
        const u32 least = 16 * r < chunk.rows ? 0xf80ff80f : 0; /* twice */
        float x[8];
        u32 packed[4];
        unpack_gates(from[r], x);
#pragma unroll
        for (int i = 0; i < 4; i++)
            packed[i] = larger_or_nan(
                pack_half(find(x[2 * i], 2 * i), find(x[2 * i + 1], 2 * i + 1)), least);
        *(uint4 *)(m.to_end + to + r * 2048) =
            make_uint4(packed[0], packed[1], packed[2], packed[3]);
    }
}

/* Raw gates of a chunk to where the thread that asks for them reads them, 0 where there is none; they are there
 * after copy_wait(). */
DEVICE void fetch_gates(const linear_call &call, const channels_chunk &at, const decays_memory &m)
{
    const linear_operands &o = call.operands;
    const char *from = at.gates(call, 2);
    const bool vector = ((u64)from | (u64)(16 * o.a_row)) % 16 == 0;
    const unsigned to = shared_address(m.ends) + threadIdx.x * 16;
    if (!call.dims.raw)
        return;
    if (vector) {
#pragma unroll
        for (int r = 0; r < GATE_ROWS; r++)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + r * 4096),
                         "l"(from + 16 * r * o.a_row), "r"(16 * r < at.rows ? 16 : 0)
                         : "memory");
        return;
    }
#pragma unroll 1
    for (int r = 0; r < GATE_ROWS; r++)
        ((uint4 *)m.ends)[r * CHUNK_CHANNELS_THREADS + threadIdx.x] =
            16 * r < at.rows ? load_apart((const u16 *)(from + 16 * r * o.a_row))
                             : make_uint4(0, 0, 0, 0);
}

/* What a gate of beta is computed from, of the first threads' rows. */
DEVICE u32 load_beta(const linear_call &call, const channels_chunk &at)
{
    const linear_operands &o = call.operands;
    const int r = threadIdx.x;
    if (r >= at.chunk.rows || !o.b)
        return 0;
    return linear_load_bits(call.dims.raw ? call.dims.dtype : ELEMENT_F32,
                            o.b + (i64)(at.chunk.sequence.first_row + at.chunk.t + r) * o.b_row,
                            at.head);
}

/* `b`: of load_beta(). */
DEVICE void find_logs(const linear_call &call, const channels_chunk &at, u32 b,
                      const decays_memory &m)
{
    constexpr float in_log_2 = 1.4426950408889634f;
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    const int r = threadIdx.x, k = threadIdx.x % 16 * 8;
    if (!d.raw) {
        uint4 x[GATE_ROWS][2];
        load_gates<float>(at.gates(call, 4), o.a_row, at.rows, x);
        write_logs<float>(x, at, m, [](float x, int) { return x * (in_log_2 * LOGS_UP); });
    } else {
        const float bound = d.lower_bound * (in_log_2 * LOGS_UP), a = expf(o.a_log[at.head]);
        const float by = bound != 0 ? a * -in_log_2 : in_log_2;
        float bias[8];
        uint4 x[GATE_ROWS][1];
#pragma unroll
        for (int i = 0; i < 8; i++)
            bias[i] = at.rows > 0 ? o.dt_bias[at.head * o.dt_bias_stride + k + i] * by : 0;
#pragma unroll
        for (int i = 0; i < GATE_ROWS; i++)
            x[i][0] = ((const uint4 *)m.ends)[i * CHUNK_CHANNELS_THREADS + threadIdx.x];
        if (bound != 0)
            write_logs<u16>(x, at, m, [&](float x, int i) {
                return bound * reciprocal_fast(1 + exp2_fast(x * by + bias[i]));
            });
        else
            write_logs<u16>(x, at, m, [&](float x, int i) {
                return softplus_fast(x * by + bias[i]) * (a * -LOGS_UP);
            });
    }
    if (r < CHUNK_ROWS) {
        const linear_gate gate = {0, b, 0, 0};
        m.beta[r] = r < at.chunk.rows ? linear_gate_beta(&call, &gate) : 0;
    }
}

DEVICE void prefetch_line(const char *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/* Gates of a chunk to L2, and rows of q and k or their tiles: a row for four threads. */
template <bool TILES>
DEVICE void prefetch_chunk(const linear_call &call, const channels_chunk &at, const char *keys)
{
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    const int row = threadIdx.x / 4, size = d.raw ? 2 : 4, part = threadIdx.x % 4;
    const i64 r = at.chunk.sequence.first_row + at.chunk.t + row;
    if (TILES)
        prefetch_line(keys + threadIdx.x * 128);
    else if (row < at.chunk.rows && part % 2 * 64 < d.k_dim)
        prefetch_line(o.mixed + r * o.mixed_row + part % 2 * 128 +
                      (d.first[part / 2] + at.head / d.ratio * d.k_dim) * 2);
    if (row < at.chunk.rows && part * 128 < d.k_dim * size)
        prefetch_line(o.a + r * o.a_row + at.head * o.a_head + part * 128);
}

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
    const float beta = m.beta[r];
    numbers[NUMBERS_Q + r] = d.sm_scale / CHANNELS_UP;
    numbers[NUMBERS_U + r] = TILES ? beta * row.v_times : beta;
    numbers[NUMBERS_W + r] = beta / CHANNELS_UP;
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

/* ---- Products of blocks ---------------------------------------------------------------------- */

/* What a warp's rows have with those of an earlier block. */
DEVICE void multiply_ends(const decays_memory &m, const decays_part &part, int block,
                          const u32 (&left)[8][4], float (&sums)[2][4])
{
    const int lane = part.lane;
    const unsigned at = tile_offset(16 * block + lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const int decays = block + part.block == 3 ? 1 : block == 0 ? 0 : 2;
    const u16 *between = m.between + decays * CHUNK_MAX_KEYS + lane % 4 * 2;
#pragma unroll
    for (int step = 0; step < 8; step++) {
        const int half = step < 4 ? part.half : 1 - part.half;
        u32 y[4];
        load_matrices(shared_address(m.ends) + half * (CHUNK_TILE / 2) + (at ^ step % 4 * 32), y);
        if (block + 1 < part.block)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const u32 less =
                    *(const u32 *)(between + CHANNELS_PER_WARP * half + 16 * (step % 4) + 8 * h);
                y[h] = multiply_pairs(y[h], less), y[2 + h] = multiply_pairs(y[2 + h], less);
            }
#pragma unroll
        for (int n = 0; n < 2; n++)
            multiply(sums[n], left[step], y[2 * n], y[2 * n + 1]);
    }
}

/* A's rows of a warp, of which blocks on the diagonal are left as fp32, to be inverted. */
DEVICE void write_system_part(const decays_memory &m, const decays_part &part,
                              const float (&sums)[4][2][4])
{
    const int block = part.block, lane = part.lane, i = 16 * block + lane / 4;
    const unsigned to = shared_address(m.system) + 16 * block * 128;
    float *square = (float *)(m.staging + block * CHUNK_STAGE) + lane / 4 * 16 + lane % 4 * 2;
    const float beta[2] = {m.beta[i], m.beta[i + 8]};
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        float a[2][4];
        u32 packed[4];
        if (pair > block)
            continue;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                a[n][e] = sums[pair][n][e] * beta[e / 2];
        if (pair < block) {
#pragma unroll
            for (int n = 0; n < 4; n++)
                packed[n] = pack_half(-a[n / 2][n % 2 * 2], -a[n / 2][n % 2 * 2 + 1]);
            store_matrices(to + tile_offset(lane % 16, 2 * pair + lane / 16), packed);
        } else {
#pragma unroll
            for (int n = 0; n < 4; n++)
                *(float2 *)(square + n % 2 * 128 + n / 2 * 8) =
                    make_float2(a[n / 2][n % 2 * 2], a[n / 2][n % 2 * 2 + 1]);
        }
    }
    __syncwarp();
    invert_block(m, (float *)(m.staging + block * CHUNK_STAGE), block, lane);
}

/* Products of queries and keys, times PRODUCTS_ROOM, to the workspace. */
DEVICE void write_products_part(const decays_memory &m, const decays_part &part,
                                const float (&sums)[4][2][4], char *products)
{
    const int block = part.block, lane = part.lane;
    char *staging = m.staging + (4 + block) * CHUNK_STAGE;
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        u32 packed[4] = {0, 0, 0, 0};
        if (pair <= block) {
            float p[2][4];
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const bool there = 8 * n + lane % 4 * 2 + e % 2 < lane / 4 + e / 2 * 8;
                    p[n][e] = pair < block || there ? sums[pair][n][e] * PRODUCTS_ROOM : 0;
                }
#pragma unroll
            for (int n = 0; n < 4; n++)
                packed[n] = pack_half(p[n / 2][n % 2 * 2], p[n / 2][n % 2 * 2 + 1]);
        }
        store_matrices(shared_address(staging) + tile_offset(lane % 16, 2 * pair + lane / 16),
                       packed);
    }
    copy_staged(staging, products + block * CHUNK_STAGE, lane);
}

/* Products of a warp's rows with all blocks of keys. */
DEVICE void multiply_blocks(const decays_memory &m, const decays_part &part,
                            const u32 (&left)[8][4], const float (&within)[2][4],
                            float (&sums)[4][2][4])
{
#pragma unroll
    for (int block = 0; block < 4; block++) {
#pragma unroll
        for (int n = 0; n < 8; n++)
            sums[block][n / 4][n % 4] = block == part.block ? within[n / 4][n % 4] : 0;
        if (block < part.block)
            multiply_ends(m, part, block, left, sums[block]);
    }
}

/* ---- A chunk --------------------------------------------------------------------------------- */

/* By one thread: tiles, which all have written. */
DEVICE void store_keys(const decays_memory &m, char *keys)
{
    store_bytes(keys, shared_address(m.q), 2 * CHUNK_TILE);
    store_bytes(keys + 2 * CHUNK_TILE, shared_address(m.to_end), CHUNK_TILE);
    store_commit();
}

/* Rows of q and k as the batch has them, or as the convolution has left them at `keys`. */
template <bool TILES>
DEVICE void fetch_keys(const linear_call &call, const channels_chunk &at, const char *keys,
                       const decays_part &part, const decays_memory &m)
{
    const linear_dims &d = call.dims;
    fetch_gates(call, at, m);
    if constexpr (TILES)
        fetch_tiles<CHUNK_CHANNELS_THREADS>(keys, m.q);
    else
        fetch_rows(call, at.chunk, d.first[1 - part.half] + at.head / d.ratio * d.k_dim,
                   part.mine(m));
    copy_commit();
}

/* Chunks of the window, times v heads, by blocks which have one after the other: rows and gates of the next
 * one are on their way while products of one are made. After a convolution the last ones go first, as the
 * cache has them. */
template <bool TILES>
DEVICE void channels_inverse_block(const linear_call &call, int first, char *memory)
{
#if HAS_HOPPER
    const linear_dims &d = call.dims;
    const linear_chunks &chunks = call.chunks;
    const int units = int_min(*chunks.count - first, chunks.window) * d.v_heads;
    if ((int)blockIdx.x >= units)
        return;
    const decays_memory m(memory);
    const decays_part part;
    int unit = TILES ? units - 1 - (int)blockIdx.x : blockIdx.x;
    const int step = TILES ? -(int)gridDim.x : gridDim.x;
    channels_chunk at(call, chunks.list[first + unit / d.v_heads], unit);
    char *keys = chunks.keys + (i64)unit * CHUNK_RULE_KEYS_BYTES(CHUNK_CHANNELS);
    fetch_keys<TILES>(call, at, keys, part, m);
    u32 b = load_beta(call, at);
#pragma unroll 1
    for (;;) {
        const int next = unit + step;
        const bool more = next >= 0 && next < units;
        const linear_chunk following = chunks.list[first + (more ? next : unit) / d.v_heads];
        const ready_values to(call, unit / d.v_heads, unit % d.v_heads, CHUNK_CHANNELS);
        convolved_row row = {};
        if constexpr (TILES)
            row = load_convolved(call, part, unit / d.v_heads, unit % d.v_heads);
        float sums[CHANNELS_STEPS][2][4], products[4][2][4];
        block_products within = {};
        u32 left[8][4];
        copy_wait<0>();
        find_logs(call, at, b, m);
        __syncthreads();
        at = channels_chunk(call, following, more ? next : unit);
        if constexpr (!TILES)
            find_lengths(m, part);
        sum_logs(m, part, sums);
        __syncthreads();
        find_blocks(m, to.numbers);
        write_row_numbers<TILES>(d, m, part, row, to.numbers);
        __syncthreads();
        const bool in_range = decay_part<TILES>(m, part, sums, left, within);
        fence_async_shared();
        __syncthreads();
        if (threadIdx.x == 0)
            store_keys(m, keys);
        keys += (i64)step * CHUNK_RULE_KEYS_BYTES(CHUNK_CHANNELS);
        if (more) {
            prefetch_chunk<TILES>(call, at, keys);
            b = load_beta(call, at);
        }
        take_given(m, part, in_range, left, within.mine);
        multiply_blocks(m, part, left, within.mine, products);
        if (part.half)
            write_products_part(m, part, products, to.products);
        else
            write_system_part(m, part, products);
        if (threadIdx.x == 0)
            store_wait_read();
        __syncthreads();
        if (more)
            fetch_keys<TILES>(call, at, keys, part, m);
        if (part.half == 0)
            write_columns(shared_address(m.system), m.staging + part.block * CHUNK_STAGE,
                          part.block, to.w, part.lane);
        if (!more)
            return;
        unit = next;
    }
#else
    __trap();
#endif
}

#endif /* LINEAR_LIKE_CHUNK_CHANNELS_INVERSE_CUH */
