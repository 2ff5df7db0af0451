/* SPDX-License-Identifier: Apache-2.0
 *
 * channels_gates.cuh: shared memory of a block of linear_ready_channels{,_tiles}, and log decays of
 * a chunk, one fp16 number each.
 */
#ifndef LINEAR_LIKE_CHANNELS_GATES_CUH
#define LINEAR_LIKE_CHANNELS_GATES_CUH

#include "plugins/linear_like/kernels/chunk_channels.cuh"
#include "plugins/linear_like/kernels/chunk_inverse.cuh"

enum { CHANNELS_PER_WARP = CHUNK_MAX_KEYS / 2, CHANNELS_STEPS = CHANNELS_PER_WARP / 16 };

/* The scale of log decays in fp16, in units of log 2. */
#define LOGS_UP 256.0f
/* Compensates the average loss when tensor cores truncate two numbers to tf32. */
#define TRUNCATED 1.0007f

/* Named barriers, after those of a block's two warps. CHANNELS_MULTIPLIED: the second warps of all
 * blocks have written A and no longer need the chunk's tiles; first warps wait for all of them.
 * CHANNELS_SECOND: second warps wait for each other. */
enum { CHANNELS_MULTIPLIED = 5, CHANNELS_SECOND = 6 };

enum { GATE_ROWS = 4 /* of a thread, for eight channels */ };

/* The parts of ready_memory have other uses here: `staging` is also the exchange between the warps
 * of a block. */
struct decays_memory : ready_memory {
    char *to_end; /* tiles: log decays; then keys decayed to the chunk's end */
    char *ends;   /* raw gates; then keys decayed to their block's end */
    float *beta;
    float *totals; /* [4][128] log decays of blocks, in units of log 2 */
    /* [4][64] for two channels of a block: totals, and inverses of decays times TRUNCATED. */
    float4 *whole;
    /* [4][64] fp16: decays from the chunk's first row to the block, and from the block's end on,
     * times CHANNELS_UP. */
    uint2 *edges;
    u16 *between; /* [3][128] decays of blocks 1, 1 and 2, 2 */

    __device__ __forceinline__ explicit decays_memory(char *from)
        : ready_memory(from, CHUNK_EXCHANGE / CHUNK_STAGE)
    {
        to_end = system + CHUNK_PRODUCTS;
        ends = to_end + CHUNK_TILE;
        beta = gates;
        totals = (float *)(ends + CHUNK_TILE);
        whole = (float4 *)(totals + 4 * CHUNK_MAX_KEYS);
        edges = (uint2 *)(whole + 2 * CHUNK_MAX_KEYS);
        between = (u16 *)(edges + 2 * CHUNK_MAX_KEYS);
    }

    /* Biases of a block's channels, in memory that other rules use for gates. */
    __device__ __forceinline__ float *bias(int block) const
    {
        return gates + 2 * CHUNK_ROWS + block * CHUNK_MAX_KEYS;
    }

    /* [2][16][16]: products within a block without reciprocals. */
    __device__ __forceinline__ float *pairwise(int block) const
    {
        return (float *)(system + block * CHUNK_STAGE);
    }

    /* Exchange between the two warps of a block, 16 bytes per lane: parts 0 to 9 for the second
     * warp, where it stages its rows later; parts 10 and 11 for the first warp, where it inverts
     * later. */
    __device__ __forceinline__ uint4 *given(int block, int n) const
    {
        return (uint4 *)(staging + block * (CHUNK_EXCHANGE / 4) + n * 512);
    }
};

/* A warp's part: rows of a block, half of the channels. The first warp of a block inverts; the
 * second multiplies its rows with those of earlier blocks. */
struct decays_part {
    int block, half, lane;
    unsigned at; /* in a tile: a lane's row and place, for left operands */

    __device__ __forceinline__ decays_part(void)
    {
        const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
        block = warp % 4, half = warp / 4, lane = threadIdx.x % 32;
        at = tile_offset(16 * block + lane % 16, lane / 16);
    }

    /* Synchronises the two warps of the block. */
    __device__ __forceinline__ void sync(void) const
    {
        named_sync(1 + block, 64);
    }
};

/* ---- Gates ----------------------------------------------------------------------------------- */

/* The larger of each of two pairs of fp16 numbers; NaN if one is NaN. */
DEVICE u32 larger_or_nan(u32 x, u32 y)
{
    u32 z;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

/* log(1 + 2^x) in units of log 2, to a relative 2^-14, the precision of fp16: with y = 2^-|x|, a
 * polynomial of log(1 + y) / y. */
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

/* Loads 16 bytes of unaligned elements. */
DEVICE uint4 load_apart(const u16 *x)
{
    return make_uint4(x[0] | (u32)x[1] << 16, x[2] | (u32)x[3] << 16, x[4] | (u32)x[5] << 16,
                      x[6] | (u32)x[7] << 16);
}

DEVICE uint4 load_apart(const float *x)
{
    return make_uint4(f32_bits(x[0]), f32_bits(x[1]), f32_bits(x[2]), f32_bits(x[3]));
}

/* Loads eight gates per row, bf16 or float; missing rows are 0. */
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
                if (4 * r < rows)
                    x[r][i] = ((const uint4 *)(at + 4 * r * apart))[i];
        return;
    }
#pragma unroll
    for (int r = 0; r < GATE_ROWS; r++)
#pragma unroll
        for (int i = 0; i < words; i++)
            if (4 * r < rows)
                x[r][i] = load_apart((const T *)(at + 4 * r * apart) + 8 / words * i);
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

/* A chunk of a head. A thread has rows from `row` on, in steps of 4, and eight channels, in the
 * block and half of the channels of its warp; `rows`: the number of existing rows from the first
 * on. */
struct channels_chunk {
    int head, key_head, row, rows, place;
    ready_chunk chunk;

    __device__ __forceinline__ channels_chunk(const linear_call &call, const linear_chunk &from,
                                              int of)
    {
        head = of;
        key_head = call.dims.ratio == 1 ? of : of / call.dims.ratio;
        chunk = {linear_find_sequence(&call.batch, from.sequence), from.first, from.rows};
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        row = warp % 4 * 16 + lane / 8;
        place = warp / 4 * 8 + lane % 8;
        rows = place * 8 < call.dims.k_dim ? chunk.rows - row : 0;
    }

    __device__ __forceinline__ const char *gates(const linear_call &call, int size) const
    {
        return call.operands.a +
               (i64)(chunk.sequence.first_row + chunk.t + row) * call.operands.a_row +
               head * call.operands.a_head + (i64)(place * 8) * size;
    }
};

/* Writes log decays as a tile, in units of log 2 / LOGS_UP: a thread has eight channels of four
 * rows. */
template <typename T, typename FIND>
DEVICE void write_logs(const uint4 (&from)[GATE_ROWS][sizeof(T) / 2], const channels_chunk &chunk,
                       const decays_memory &m, FIND find)
{
    const int to = tile_offset(chunk.row, chunk.place);
#pragma unroll
    for (int r = 0; r < GATE_ROWS; r++) {
        /* e^-90: the state vanishes */
        const u32 least = 4 * r < chunk.rows ? 0xf80ff80f : 0; /* twice */
        float x[8];
        u32 packed[4];
        unpack_gates(from[r], x);
#pragma unroll
        for (int i = 0; i < 4; i++)
            packed[i] = larger_or_nan(
                pack_half(find(x[2 * i], 2 * i), find(x[2 * i + 1], 2 * i + 1)), least);
        *(uint4 *)(m.to_end + (to ^ r % 2 * 64) + r * 512) =
            make_uint4(packed[0], packed[1], packed[2], packed[3]);
    }
}

/* Copies raw gates of a chunk to where the requesting thread reads them; missing ones are 0.
 * Complete after copy_wait(). */
DEVICE void fetch_gates(const linear_call &call, const channels_chunk &at, const decays_memory &m)
{
    const linear_operands &o = call.operands;
    const char *from = at.gates(call, 2);
    const bool vector = ((u64)from | (u64)(4 * o.a_row)) % 16 == 0;
    const unsigned to = shared_address(m.ends) + threadIdx.x * 16;
    if (!call.dims.raw)
        return;
    if (vector) {
#pragma unroll
        for (int r = 0; r < GATE_ROWS; r++)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + r * 4096),
                         "l"(from + 4 * r * o.a_row), "r"(4 * r < at.rows ? 16 : 0)
                         : "memory");
        return;
    }
#pragma unroll 1
    for (int r = 0; r < GATE_ROWS; r++)
        ((uint4 *)m.ends)[r * CHUNK_CHANNELS_THREADS + threadIdx.x] =
            4 * r < at.rows ? load_apart((const u16 *)(from + 4 * r * o.a_row))
                            : make_uint4(0, 0, 0, 0);
}

/* Copies a block's rows of q and k from the batch, by a dedicated warp; missing rows are 0. */
DEVICE void fetch_block(const linear_call &call, const channels_chunk &at, const decays_part &part,
                        const decays_memory &m)
{
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    const int place = part.lane % 16, row = 16 * part.block + part.lane / 16;
    const int rows = place * 8 < d.k_dim ? at.chunk.rows - row : 0;
    const char *q = o.mixed + (i64)(at.chunk.sequence.first_row + at.chunk.t + row) * o.mixed_row +
                    (d.first[0] + at.key_head * d.k_dim + place * 8) * 2;
    const char *k = q + (d.first[1] - d.first[0]) * 2;
    const unsigned to = shared_address(m.q), offset = tile_offset(row, place);
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const unsigned tile = to + (offset ^ r % 4 * 32) + r * 256;
        const int bytes = 2 * r < rows ? 16 : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(tile), "l"(q), "r"(bytes)
                     : "memory");
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(tile + CHUNK_TILE),
                     "l"(k), "r"(bytes)
                     : "memory");
        q += 2 * o.mixed_row, k += 2 * o.mixed_row;
    }
}

/* Loads the inputs of beta, for the rows of the first threads. */
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

/* Factors of raw gates of a thread's channels. */
struct gate_factors {
    float bias[8], log;
};

DEVICE gate_factors load_factors(const linear_call &call, const channels_chunk &at)
{
    const linear_operands &o = call.operands;
    gate_factors f = {};
    if (!call.dims.raw)
        return f;
    const float *bias = o.dt_bias + at.head * o.dt_bias_stride + at.place * 8;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (at.rows > 0)
            f.bias[i] = bias[i];
    f.log = o.a_log[at.head];
    return f;
}

/* `b`: from load_beta(); `f`: from load_factors(). */
DEVICE void find_logs(const linear_call &call, const channels_chunk &at, u32 b,
                      const gate_factors &f, const decays_memory &m)
{
    constexpr float in_log_2 = 1.4426950408889634f;
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    const int r = threadIdx.x;
    if (!d.raw) {
        uint4 x[GATE_ROWS][2];
        load_gates<float>(at.gates(call, 4), o.a_row, at.rows, x);
        write_logs<float>(x, at, m, [](float x, int) { return x * (in_log_2 * LOGS_UP); });
    } else {
        const float bound = d.lower_bound * (in_log_2 * LOGS_UP), a = expf(f.log);
        const float by = bound != 0 ? a * -in_log_2 : in_log_2;
        float bias[8];
        uint4 x[GATE_ROWS][1];
#pragma unroll
        for (int i = 0; i < 8; i++)
            bias[i] = f.bias[i] * by;
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

/* Without a convolution: factors of a head's raw gates. Log decays are `up` times a function of
 * gates times `by` plus a bias of the channel, which is in shared memory. After a convolution,
 * factors of each chunk are faster. */
struct head_factors {
    int head;
    float by, up;
};

/* Loads the factors of the head of `at`, unless they are loaded already. A warp has its own copy of
 * its channels' biases. */
DEVICE void find_factors(const linear_call &call, const channels_chunk &at, const decays_part &part,
                         const decays_memory &m, head_factors &f)
{
    constexpr float in_log_2 = 1.4426950408889634f;
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    if (!d.raw || f.head == at.head)
        return;
    const float a = expf(o.a_log[at.head]), bound = d.lower_bound * (in_log_2 * LOGS_UP);
    f.head = at.head;
    f.by = bound != 0 ? a * -in_log_2 : in_log_2;
    f.up = bound != 0 ? bound : a * -LOGS_UP;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int k = CHANNELS_PER_WARP * part.half + part.lane + 32 * i;
        m.bias(part.block)[k] = k < d.k_dim ? o.dt_bias[at.head * o.dt_bias_stride + k] * f.by : 0;
    }
    __syncwarp();
}

/* `b`: from load_beta(); `f`: from find_factors(). */
DEVICE void find_logs(const linear_call &call, const channels_chunk &at, u32 b,
                      const head_factors &f, const decays_memory &m)
{
    constexpr float in_log_2 = 1.4426950408889634f;
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    const int r = threadIdx.x;
    if (!d.raw) {
        uint4 x[GATE_ROWS][2];
        load_gates<float>(at.gates(call, 4), o.a_row, at.rows, x);
        write_logs<float>(x, at, m, [](float x, int) { return x * (in_log_2 * LOGS_UP); });
    } else {
        const float by = f.by, up = f.up;
        const float4 *from = (const float4 *)(m.bias(at.row / 16) + at.place * 8);
        const float4 low = from[0], high = from[1];
        const float bias[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        uint4 x[GATE_ROWS][1];
#pragma unroll
        for (int i = 0; i < GATE_ROWS; i++)
            x[i][0] = ((const uint4 *)m.ends)[i * CHUNK_CHANNELS_THREADS + threadIdx.x];
        if (d.lower_bound != 0)
            write_logs<u16>(x, at, m, [&](float x, int i) {
                return up * reciprocal_fast(1 + exp2_fast(x * by + bias[i]));
            });
        else
            write_logs<u16>(x, at, m,
                            [&](float x, int i) { return softplus_fast(x * by + bias[i]) * up; });
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

/* Prefetches a chunk's gates, and rows of q and k or their tiles, to L2: four threads per row. */
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
                      (d.first[part / 2] + at.key_head * d.k_dim) * 2);
    if (row < at.chunk.rows && part * 128 < d.k_dim * size)
        prefetch_line(o.a + r * o.a_row + at.head * o.a_head + part * 128);
}

#endif /* LINEAR_LIKE_CHANNELS_GATES_CUH */
