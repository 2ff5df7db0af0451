/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.cu: kernels that go by rows and channels: a short convolution's outputs, and what is left
 * when the rows of all sequences are done: states of the convolution, outputs of padding.
 */
#include "plugins/common/cuda/work.cuh"
#include "plugins/linear_like/kernels/rows.cuh"
#include "plugins/linear_like/kernels/shapes.h"

#define DEVICE static __device__ __forceinline__

/* ---- A convolution alone --------------------------------------------------------------------- */

/* How elements are read and written: one of any type, or eight aligned ones of 16 bits. */
enum { ELEMENTS_ANY, ELEMENTS_BF16, ELEMENTS_F16 };

DEVICE u32 pack_pair(bool half, float low, float high)
{
    u32 packed;
    if (half)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

DEVICE void unpack_elements(bool half, uint4 y, float *x)
{
    const u32 words[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u16 bits = (u16)(words[i / 2] >> i % 2 * 16);
        x[i] = half ? element_from_f16(bits) : element_from_bf16(bits);
    }
}

template <int KIND, int NUMBER>
DEVICE void load_elements(int dtype, const char *from, i64 at, float *x)
{
    if constexpr (KIND != ELEMENTS_ANY)
        unpack_elements(KIND == ELEMENTS_F16, *(const uint4 *)(from + at * 2), x);
    else
        x[0] = element_load(dtype, from, at);
}

template <int KIND, int NUMBER>
DEVICE void store_elements(int dtype, char *to, i64 at, const float *x)
{
    if constexpr (KIND != ELEMENTS_ANY) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            words[i] = pack_pair(KIND == ELEMENTS_F16, x[2 * i], x[2 * i + 1]);
        *(uint4 *)(to + at * 2) = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
        element_store(dtype, to, at, x[0]);
    }
}

/* For results of 16 bits, which these instructions' errors, of 2^-21, are far below. */
template <int KIND> DEVICE float silu(float x)
{
    return KIND == ELEMENTS_ANY ? linear_silu(x) : __fdividef(x, 1.0f + __expf(-x));
}

/* Inputs of row `t` of a sequence, before its first ones too. */
template <int KIND, int NUMBER>
DEVICE void load_inputs(const linear_call &call, const linear_sequence &sequence, int t, int c,
                        float *x)
{
    if (t >= 0)
        load_elements<KIND, NUMBER>(
            call.dims.dtype,
            call.operands.mixed + (i64)(sequence.first_row + t) * call.operands.mixed_row, c, x);
    else
        for (int i = 0; i < NUMBER; i++)
            x[i] = linear_input(&call, &sequence, t, c + i);
}

template <int KIND, int WIDTH, int NUMBER>
DEVICE void convolve_row(const linear_call &call, int row, int c,
                         const float (&taps)[WIDTH][NUMBER], const float (&bias)[NUMBER],
                         const float (&window)[WIDTH][NUMBER])
{
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    const int head = c / d.v_dim, element = c % d.v_dim;
    float x[NUMBER], z[NUMBER];
    if (o.z)
        load_elements<KIND, NUMBER>(d.dtype, o.z + row * o.z_row + head * o.z_head, element, z);
#pragma unroll
    for (int i = 0; i < NUMBER; i++) {
        float sum = bias[i];
#pragma unroll
        for (int w = 0; w < WIDTH; w++)
            sum += taps[w][i] * window[w][i];
        x[i] = d.silu ? silu<KIND>(sum) : sum;
        if (o.z)
            x[i] *= silu<KIND>(z[i]);
    }
    store_elements<KIND, NUMBER>(d.out_dtype, o.out + row * o.out_row + head * o.out_head, element,
                                 x);
}

/* Rows [row, end) of a sequence, CONVOLVE_AT_ONCE at most: their inputs wait for memory together.
 */
template <int KIND, int WIDTH, int NUMBER>
DEVICE void convolve_rows(const linear_call &call, int row, int end, int c,
                          const float (&taps)[WIDTH][NUMBER], const float (&bias)[NUMBER],
                          float (&window)[WIDTH][NUMBER])
{
    const char *from = call.operands.mixed + (i64)row * call.operands.mixed_row;
    uint4 raw[CONVOLVE_AT_ONCE];
#pragma unroll
    for (int r = 0; KIND != ELEMENTS_ANY && r < CONVOLVE_AT_ONCE; r++)
        raw[r] = row + r < end ? *(const uint4 *)(from + r * call.operands.mixed_row + c * 2)
                               : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < CONVOLVE_AT_ONCE; r++) {
        if (row + r >= end)
            return;
#pragma unroll
        for (int i = 0; i < NUMBER; i++)
#pragma unroll
            for (int w = 0; w + 1 < WIDTH; w++)
                window[w][i] = window[w + 1][i];
        if constexpr (KIND == ELEMENTS_ANY)
            window[WIDTH - 1][0] =
                element_load(call.dims.dtype, from + r * call.operands.mixed_row, c);
        else
            unpack_elements(KIND == ELEMENTS_F16, raw[r], window[WIDTH - 1]);
        convolve_row<KIND, WIDTH, NUMBER>(call, row + r, c, taps, bias, window);
    }
}

/* Rows [row, end) of the batch, whatever sequences they are of. WIDTH: taps, those before the
 * layer's being 0. */
template <int KIND, int WIDTH, int NUMBER>
DEVICE void convolve(const linear_call &call, int row, int end, int c)
{
    const linear_dims &d = call.dims;
    const int real = linear_num_real(&call.batch);
    float taps[WIDTH][NUMBER], bias[NUMBER], window[WIDTH][NUMBER];
#pragma unroll
    for (int i = 0; i < NUMBER; i++) {
        bias[i] = call.operands.bias ? element_load(d.dtype, call.operands.bias, c + i) : 0;
#pragma unroll
        for (int w = 0; w < WIDTH; w++)
            taps[w][i] =
                w < WIDTH - d.width
                    ? 0
                    : element_load(d.dtype,
                                   call.operands.weight + (c + i) * call.operands.weight_row,
                                   w - (WIDTH - d.width));
    }
    for (int s = work_find_row(call.batch.q_indptr, real, row); s >= 0 && s < real && row < end;
         s++) {
        const linear_sequence sequence = linear_find_sequence(&call.batch, s);
        const int last = int_min(end, sequence.first_row + sequence.num_rows);
#pragma unroll
        for (int w = 1; w < WIDTH; w++) {
            int t = row - sequence.first_row - (WIDTH - w);
            if (w < WIDTH - d.width || t < 1 - d.width || row >= last)
                for (int i = 0; i < NUMBER; i++)
                    window[w][i] = 0;
            else
                load_inputs<KIND, NUMBER>(call, sequence, t, c, window[w]);
        }
        for (; row < last; row += CONVOLVE_AT_ONCE)
            convolve_rows<KIND, WIDTH, NUMBER>(call, row, int_min(last, row + CONVOLVE_AT_ONCE), c,
                                               taps, bias, window);
        row = last;
    }
}

/* Blocks: pieces of CONVOLVE_ROWS rows, times blocks of channels. */
template <int KIND, int WIDTH, int NUMBER> DEVICE void convolve_block(const linear_call &call)
{
    const int blocks = (call.dims.channels / NUMBER + CONVOLVE_THREADS - 1) / CONVOLVE_THREADS;
    const int c = (blockIdx.x % blocks * CONVOLVE_THREADS + threadIdx.x) * NUMBER;
    int first, pad, end;
    linear_find_rows(&call.batch, &first, &pad, &end);
    const int row = first + (int)(blockIdx.x / blocks) * CONVOLVE_ROWS;
    if (c < call.dims.channels && row < pad)
        convolve<KIND, WIDTH, NUMBER>(call, row, int_min(row + CONVOLVE_ROWS, pad), c);
}

/* Any dimensions, strides and types. */
extern "C" __global__ void __launch_bounds__(CONVOLVE_THREADS)
    linear_convolve(const __grid_constant__ linear_call call)
{
    convolve_block<ELEMENTS_ANY, LINEAR_MAX_WIDTH, 1>(call);
}

/* At most four taps, one 16-bit type for all, whole and aligned vectors of eight channels. */
extern "C" __global__ void __launch_bounds__(CONVOLVE_THREADS, 2)
    linear_convolve_bf16(const __grid_constant__ linear_call call)
{
    convolve_block<ELEMENTS_BF16, 4, 8>(call);
}

extern "C" __global__ void __launch_bounds__(CONVOLVE_THREADS, 2)
    linear_convolve_f16(const __grid_constant__ linear_call call)
{
    convolve_block<ELEMENTS_F16, 4, 8>(call);
}

/* ---- When all rows are done ------------------------------------------------------------------ */

/* The last inputs before row `end` of a sequence, into a slot, which may be the one that is read.
 */
DEVICE void keep_inputs(const linear_call &call, const linear_sequence &sequence, int end, int slot,
                        int c)
{
    const linear_operands &o = call.operands;
    const int taps = call.dims.width - 1;
    float kept[LINEAR_MAX_WIDTH - 1];
    if (slot == 0)
        return;
        /* Read before anything is written: the state may be its own successor. */
#pragma unroll
    for (int n = 0; n < LINEAR_MAX_WIDTH - 1; n++)
        kept[n] = n < taps ? linear_input(&call, &sequence, end - taps + n, c) : 0;
#pragma unroll
    for (int n = 0; n < LINEAR_MAX_WIDTH - 1; n++)
        if (n < taps)
            element_store(call.dims.conv_dtype, o.conv + slot * o.conv_slot + c * o.conv_channel, n,
                          kept[n]);
}

DEVICE void finish_sequence(const linear_call &call, int s, int c)
{
    const linear_sequence sequence = linear_find_sequence(&call.batch, s);
    for (int t = 0; call.batch.snapshots && t < sequence.num_rows; t++)
        keep_inputs(call, sequence, t + 1, linear_snapshot(&call.batch, sequence.first_row + t), c);
    keep_inputs(call, sequence, sequence.num_rows, sequence.dst, c);
}

/* Rows of padding: their output has to be finite. */
DEVICE void clear_padding(const linear_call &call, int block, int blocks)
{
    const linear_operands &o = call.operands;
    const int per_row = call.dims.v_heads * call.dims.v_dim;
    int first, pad, end;
    linear_find_rows(&call.batch, &first, &pad, &end);
    for (int row = pad + block; row < end; row += blocks)
        for (int i = threadIdx.x; i < per_row; i += blockDim.x)
            element_store(call.dims.out_dtype,
                          o.out + row * o.out_row + i / call.dims.v_dim * o.out_head,
                          i % call.dims.v_dim, 0);
}

/* Blocks: sequences, times blocks of channels; then `pad_blocks` that clear padding. */
extern "C" __global__ void __launch_bounds__(FINISH_THREADS)
    linear_finish(const __grid_constant__ linear_call call, int pad_blocks)
{
    const int per_seq =
        call.dims.width > 1 ? (call.dims.channels + FINISH_THREADS - 1) / FINISH_THREADS : 0;
    const int blocks = gridDim.x - pad_blocks;
    const int block = blockIdx.x;
    if (block >= blocks) {
        clear_padding(call, block - blocks, pad_blocks);
        return;
    }
    const int s = block / per_seq, c = block % per_seq * FINISH_THREADS + threadIdx.x;
    if (s < linear_num_real(&call.batch) && c < call.dims.channels)
        finish_sequence(call, s, c);
}
