/* SPDX-License-Identifier: Apache-2.0
 *
 * steps.cuh: the recurrence, token by token, for any batch, with snapshots after any row; a decode
 * runs at memory bandwidth.
 *
 * A block has a sequence, a v head and STEPS_COLUMNS(warps) of its values. Each thread keeps its
 * part of the state in registers from the first row to the last (tile.cuh), so a state is read once
 * and written once. Rows are prepared in shared memory, STEPS_ROWS at a time: convolution, gates,
 * lengths of q and k. Blocks that need the same q and k each prepare their own copy.
 *
 *   held = decay S'k;  u = beta (v - held) or beta v;  o = decay S'q + (q.k) u;  S = decay S + k u'
 */
#ifndef LINEAR_LIKE_STEPS_CUH
#define LINEAR_LIKE_STEPS_CUH

#include "plugins/linear_like/kernels/shapes.h"
#include "plugins/linear_like/kernels/decode.cuh"
#include "plugins/linear_like/kernels/decode_heads.cuh"

/* Shared memory, in floats: vectors of ROWS rows, then their numbers. */
template <int MODE, int KEYS, int ROWS> struct steps_memory {
    static constexpr int width = 8 * KEYS; /* of q, k and decays */
    float *q, *k, *decays, *v;
    float *decay, *beta, *q_times, *k_times, *qk;

    __device__ __forceinline__ steps_memory(float *from, int columns)
    {
        q = from;
        k = q + ROWS * width;
        decays = k + ROWS * width;
        v = decays + (MODE == STEPS_CHANNELS ? ROWS * width : 0);
        decay = v + ROWS * columns;
        beta = decay + ROWS;
        q_times = beta + ROWS;
        k_times = q_times + ROWS;
        qk = k_times + ROWS;
    }
};

/* Channel `c` in rows [t, t + rows), after the convolution: to[r * width]. */
template <int ROWS>
DEVICE void convolve_channel(const linear_call &call, const linear_sequence &sequence, int t,
                             int rows, int c, float *to, int width)
{
    constexpr int most = LINEAR_MAX_WIDTH;
    const linear_dims &d = call.dims;
    float taps[most], window[most - 1 + ROWS];
    if (d.width == 0) {
        for (int r = 0; r < rows; r++)
            to[r * width] = linear_input(&call, &sequence, t + r, c);
        return;
    }
    linear_load_taps(&call, c, taps);
    float bias = call.operands.bias ? element_load(d.dtype, call.operands.bias, c) : 0;
#pragma unroll
    for (int i = 0; i < most - 1 + ROWS; i++) {
        int back = most - 1 - i; /* rows before the first row */
        window[i] =
            back < d.width && i < most - 1 + rows ? linear_input(&call, &sequence, t - back, c) : 0;
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float sum = bias;
#pragma unroll
        for (int w = 0; w < most; w++)
            sum += taps[w] * window[r + w];
        if (r < rows)
            to[r * width] = d.silu ? linear_silu(sum) : sum;
    }
}

/* The address in shared memory of a thread's `i`-th channel of the block. */
template <int MODE, int KEYS, bool VK, int ROWS>
DEVICE float *find_channel(const linear_dims &d, int head, int first, int columns, int i,
                           const steps_memory<MODE, KEYS, ROWS> &m, int *channel)
{
    constexpr int width = 8 * KEYS;
    int part = i < width ? 0 : i < 2 * width ? 1 : 2, at = i - part * width;
    bool there = part < 2 ? at < d.k_dim : first + at < d.v_dim;
    int element = part < 2 ? head / d.ratio * d.k_dim + at : head * d.v_dim + first + at;
    *channel = there ? d.first[part] + element : -1;
    return (part == 0 ? m.q : part == 1 ? m.k : m.v) + (part < 2 ? tile_position<VK>(at) : at);
}

template <int MODE, int KEYS, bool VK, int ROWS>
DEVICE void load_rows(const linear_call &call, const linear_sequence &sequence, int t, int rows,
                      int head, int first, int columns, const steps_memory<MODE, KEYS, ROWS> &m)
{
    constexpr int width = 8 * KEYS;
    for (int i = threadIdx.x; i < 2 * width + columns; i += blockDim.x) {
        int c, apart = i < 2 * width ? width : columns;
        float *to = find_channel<MODE, KEYS, VK, ROWS>(call.dims, head, first, columns, i, m, &c);
        if (c >= 0)
            convolve_channel<ROWS>(call, sequence, t, rows, c, to, apart);
        else
            for (int r = 0; r < rows; r++)
                to[r * apart] = 0;
    }
}

template <int MODE, int KEYS, bool VK, int ROWS>
DEVICE void load_gates(const linear_call &call, const linear_sequence &sequence, int t, int rows,
                       int head, const steps_memory<MODE, KEYS, ROWS> &m)
{
    constexpr int width = 8 * KEYS;
    const linear_dims &d = call.dims;
    const int row = sequence.first_row + t;
    if ((int)threadIdx.x < rows) {
        int r = threadIdx.x;
        float dt = linear_beta(&call, row + r, head);
        if (MODE != STEPS_CHANNELS)
            m.decay[r] = linear_decay(&call, row + r, head, 0, &dt);
        m.beta[r] = dt;
    }
    for (int i = threadIdx.x; MODE == STEPS_CHANNELS && i < rows * width; i += blockDim.x) {
        int r = i / width, k = i % width;
        m.decays[r * width + tile_position<VK>(k)] =
            k < d.k_dim ? linear_decay(&call, row + r, head, k, NULL) : 0;
    }
}

/* Compute the factors of q and k, then q.k; one warp per row. */
template <int MODE, int KEYS, int ROWS>
DEVICE void measure_rows(const linear_dims &d, int rows, const steps_memory<MODE, KEYS, ROWS> &m)
{
    constexpr int width = 8 * KEYS;
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int r = threadIdx.x / 32; r < rows; r += warps) {
        float qq = 0, kk = 0, qk = 0;
        for (int i = lane; i < width; i += 32) {
            float q = m.q[r * width + i], k = m.k[r * width + i];
            qq += q * q, kk += k * k, qk += q * k;
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            qq += __shfl_xor_sync(~0u, qq, step);
            kk += __shfl_xor_sync(~0u, kk, step);
            qk += __shfl_xor_sync(~0u, qk, step);
        }
        float q_times = d.l2_norm ? d.sm_scale / sqrtf(qq + 1e-6f) : d.sm_scale;
        float k_times = d.l2_norm ? 1 / sqrtf(kk + 1e-6f) : 1;
        if (lane == 0) {
            m.q_times[r] = q_times;
            m.k_times[r] = k_times;
            m.qk[r] = qk * q_times * k_times;
        }
    }
}

DEVICE void load_four(const float *from, float (&x)[4])
{
    float4 y = *(const float4 *)from;
    x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
}

/* Process row `r`: the state after it, and its outputs. */
template <int MODE, int KEYS, int VALUES, bool VK, int ROWS>
DEVICE void step_row(const steps_memory<MODE, KEYS, ROWS> &m, int r, int keys, int value,
                     int columns, tile<KEYS, VALUES> &s, float (&out)[VALUES])
{
    constexpr int width = 8 * KEYS;
    const float *q = m.q + r * width + keys * 4, *k = m.k + r * width + keys * 4;
    const float *decays = m.decays + r * width + keys * 4;
    const float decay = MODE == STEPS_CHANNELS ? 1 : m.decay[r];
    float held[VALUES], read[VALUES], update[VALUES];
#pragma unroll
    for (int i = 0; i < VALUES; i++)
        held[i] = read[i] = 0;
#pragma unroll
    for (int j = 0; j < KEYS; j += 4) {
        float qs[4], ks[4], ds[4] = {1, 1, 1, 1};
        load_four(q + j * 8, qs);
        load_four(k + j * 8, ks);
        if (MODE == STEPS_CHANNELS)
            load_four(decays + j * 8, ds);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int i = 0; i < VALUES; i++) {
                float &state = s.at[i][j + e];
                if (MODE == STEPS_CHANNELS)
                    state *= ds[e];
                if (MODE != STEPS_PLAIN)
                    held[i] += state * ks[e];
                read[i] += state * qs[e];
            }
    }
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        if (MODE != STEPS_PLAIN)
            held[i] = tile_sum<VK>(held[i]) * (decay * m.k_times[r]);
        read[i] = tile_sum<VK>(read[i]) * (decay * m.q_times[r]);
        update[i] = m.beta[r] * (m.v[r * columns + value + i] - held[i]);
        out[i] = read[i] + m.qk[r] * update[i];
        update[i] *= m.k_times[r];
    }
#pragma unroll
    for (int j = 0; j < KEYS; j += 4) {
        float ks[4];
        load_four(k + j * 8, ks);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int i = 0; i < VALUES; i++)
                s.at[i][j + e] = s.at[i][j + e] * decay + ks[e] * update[i];
    }
}

/* Element `value` of a row's output. */
DEVICE void write_value(const linear_call &call, int row, int head, int value, float v, float out)
{
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    if (value >= d.v_dim)
        return;
    out += linear_skip(&call, head, value) * v;
    if (o.z)
        out *= linear_silu(element_load(d.dtype, o.z + row * o.z_row + head * o.z_head, value));
    element_store(d.out_dtype, o.out + row * o.out_row + head * o.out_head, value, out);
}

/* Process all rows of a sequence for v head `head`, values [first, first + columns). */
template <int MODE, int KEYS, int VALUES, bool VK, bool BF16, int ROWS>
DEVICE void steps(const linear_call &call, const linear_sequence &sequence, int head, int first,
                  int columns, float *memory)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const tile_place<KEYS, VALUES, VK, BF16> place(first, warp, lane);
    const steps_memory<MODE, KEYS, ROWS> m(memory, columns);
    tile<KEYS, VALUES> s;
    float out[VALUES];
    tile_load(call, sequence.slot, head, place, s);
    for (int t = 0; t < sequence.num_rows; t += ROWS) {
        const int rows = int_min(sequence.num_rows - t, ROWS);
        if (t > 0)
            __syncthreads();
        load_rows<MODE, KEYS, VK, ROWS>(call, sequence, t, rows, head, first, columns, m);
        load_gates<MODE, KEYS, VK, ROWS>(call, sequence, t, rows, head, m);
        __syncthreads();
        measure_rows<MODE, KEYS, ROWS>(call.dims, rows, m);
        __syncthreads();
        for (int r = 0; r < rows; r++) {
            const int row = sequence.first_row + t + r;
            step_row<MODE, KEYS, VALUES, VK, ROWS>(m, r, place.keys, place.value - first, columns,
                                                   s, out);
#pragma unroll
            for (int i = 0; i < VALUES; i++)
                if (place.keys == i)
                    write_value(call, row, head, place.value + i,
                                m.v[r * columns + place.value - first + i], out[i]);
            int snapshot = linear_snapshot(&call.batch, row);
            if (snapshot)
                tile_store(call, snapshot, head, place, s);
        }
    }
    tile_store(call, sequence.dst, head, place, s);
}

/* Blocks: sequences, times v heads, times slices of a head's values. */
template <int MODE, int KEYS, int VALUES, bool VK, bool BF16, int ROWS>
DEVICE void steps_block(const linear_call &call)
{
    extern __shared__ float4 steps_shared[];
    const int columns = STEPS_COLUMNS(blockDim.x / 32, VALUES);
    const int slices = (call.dims.v_dim + columns - 1) / columns;
    const int slice = blockIdx.x % slices, rest = blockIdx.x / slices;
    const int head = rest % call.dims.v_heads, s = rest / call.dims.v_heads;
    pdl_launch_dependents();
    /* The list of chunks, if there is one, was complete before the preceding launch began. */
    if (s >= linear_num_real(&call.batch) || linear_is_chunked(&call, s)) {
        if (blockIdx.x == 0)
            pdl_wait();
        return;
    }
    pdl_wait();
    const linear_sequence sequence = linear_find_sequence(&call.batch, s);
    steps<MODE, KEYS, VALUES, VK, BF16, ROWS>(call, sequence, head, slice * columns, columns,
                                              (float *)steps_shared);
}

#define STEPS_KERNEL(name, mode, keys, vk, bf16)                                                   \
    extern "C" __global__ void __launch_bounds__(STEPS_MAX_WARPS * 32, 3)                          \
        name(const __grid_constant__ linear_call call)                                             \
    {                                                                                              \
        steps_block<mode, keys, STEPS_VALUES(keys), vk, bf16, STEPS_ROWS>(call);                   \
    }

#define DECODE_KERNEL(name, mode, vk, bf16)                                                        \
    extern "C" __global__ void __launch_bounds__(STEPS_MAX_WARPS * 32, DECODE_BLOCKS)              \
        name(const __grid_constant__ decode_call call, int first, int count)                       \
    {                                                                                              \
        decode_block<mode, vk, bf16>(call, first, count);                                          \
    }

#define HEADS_KERNEL(name, mode, vk, bf16)                                                         \
    extern "C" __global__ void __launch_bounds__((vk) || (bf16) ? 128 : 256,                       \
                                                 (vk) || (bf16) ? 6 : 3)                           \
        name(const __grid_constant__ heads_call call, int from, int count)                         \
    {                                                                                              \
        heads_block_of<mode, vk, bf16, HEADS_PARTS>(call, from, count);                            \
    }

#define SLICES_KERNEL(name, mode, vk, bf16)                                                        \
    extern "C" __global__ void __launch_bounds__(SLICE_BYTES / (16 * SLICE_PARTS), 4)              \
        name(const __grid_constant__ heads_call call, int from, int count)                         \
    {                                                                                              \
        heads_block_of<mode, vk, bf16, SLICE_PARTS>(call, from, count);                            \
    }

/* The kernels of a layout and a type of state; linear_decode_* and linear_heads_* are for single rows. */
#define STEPS_KERNELS(vk, bf16)                                                                    \
    DECODE_KERNEL(linear_decode_plain_128, STEPS_PLAIN, vk, bf16)                                  \
    DECODE_KERNEL(linear_decode_delta_128, STEPS_DELTA, vk, bf16)                                  \
    DECODE_KERNEL(linear_decode_channels_128, STEPS_CHANNELS, vk, bf16)                            \
    HEADS_KERNEL(linear_heads_plain, STEPS_PLAIN, vk, bf16)                                        \
    HEADS_KERNEL(linear_heads_delta, STEPS_DELTA, vk, bf16)                                        \
    HEADS_KERNEL(linear_heads_channels, STEPS_CHANNELS, vk, bf16)                                  \
    SLICES_KERNEL(linear_slices_plain, STEPS_PLAIN, vk, bf16)                                      \
    SLICES_KERNEL(linear_slices_delta, STEPS_DELTA, vk, bf16)                                      \
    SLICES_KERNEL(linear_slices_channels, STEPS_CHANNELS, vk, bf16)                                \
    STEPS_KERNEL(linear_steps_plain_128, STEPS_PLAIN, 16, vk, bf16)                                \
    STEPS_KERNEL(linear_steps_delta_128, STEPS_DELTA, 16, vk, bf16)                                \
    STEPS_KERNEL(linear_steps_channels_128, STEPS_CHANNELS, 16, vk, bf16)                          \
    STEPS_KERNEL(linear_steps_plain_256, STEPS_PLAIN, 32, vk, bf16)                                \
    STEPS_KERNEL(linear_steps_delta_256, STEPS_DELTA, 32, vk, bf16)                                \
    STEPS_KERNEL(linear_steps_channels_256, STEPS_CHANNELS, 32, vk, bf16)

#endif /* LINEAR_LIKE_STEPS_CUH */
