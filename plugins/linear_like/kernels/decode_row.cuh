/* SPDX-License-Identifier: Apache-2.0
 *
 * decode_row.cuh: the row of a decode: q, k, v and gates, four channels per lane; the convolution's
 * inputs to keep, and the last reader of them.
 */
#ifndef LINEAR_LIKE_DECODE_ROW_CUH
#define LINEAR_LIKE_DECODE_ROW_CUH

#include "plugins/common/cuda/ptx.cuh"
#include "plugins/linear_like/kernels/shapes.h"
#include "plugins/linear_like/kernels/tile.cuh"

enum { STEPS_PLAIN = 0, STEPS_DELTA = 1, STEPS_CHANNELS = 2 /* a decay for each channel of k */ };
enum { DECODE_KEYS = STEPS_DECODE_KEYS };

/* linear_decode_call. */
struct decode_call : linear_call {
    unsigned *readers;
};
static_assert(sizeof(decode_call) == sizeof(linear_decode_call), "as the host lays it out");

/* ---- Sixteen bytes of a state ----------------------------------------------------------------- */

template <bool BF16> DEVICE void unpack_part(uint4 from, float (&to)[BF16 ? 8 : 4])
{
    const u32 words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if constexpr (BF16)
            to[2 * i] = bits_f32(words[i] << 16), to[2 * i + 1] = bits_f32(words[i] & 0xffff0000);
        else
            to[i] = bits_f32(words[i]);
}

template <bool BF16> DEVICE uint4 pack_part(const float (&from)[BF16 ? 8 : 4])
{
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        if constexpr (BF16)
            words[i] = pack_bf16(from[2 * i], from[2 * i + 1]);
        else
            words[i] = f32_bits(from[i]);
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* Copy 16 bytes to shared memory; `bytes`: 16, or 0 for zeros. */
DEVICE void copy_part(unsigned to, const char *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

/* ---- Four channels --------------------------------------------------------------------------- */

/* bf16 with four taps or none, four channels at a time: all operands are loaded without a
 * branch. */
DEVICE bool goes_by_fours(const linear_call &call)
{
    return call.operands.aligned & LINEAR_ALIGNED_FOURS;
}

struct four_channels {
    uint2 x, bias, kept[3], taps[4]; /* kept: three inputs of each channel */
};

/* Load channels from `c` on; c < 0: none. load_taps() depends on neither the row nor the slot. */
DEVICE void load_taps(const linear_call &call, int c, four_channels *to)
{
    const linear_operands &o = call.operands;
    const uint2 none = make_uint2(0, 0);
    const bool convolved = call.dims.width > 0 && c >= 0;
    to->bias = convolved && o.bias ? *(const uint2 *)(o.bias + c * 2) : none;
#pragma unroll
    for (int i = 0; i < 4; i++)
        to->taps[i] = convolved ? ((const uint2 *)(o.weight + c * 8))[i] : none;
}

/* row < 0: none. */
DEVICE void load_row(const linear_call &call, int row, int c, four_channels *to)
{
    const linear_operands &o = call.operands;
    const bool there = c >= 0 && row >= 0;
    to->x = there ? *(const uint2 *)(o.mixed + (i64)row * o.mixed_row + c * 2) : make_uint2(0, 0);
}

DEVICE void load_kept(const linear_call &call, int slot, int c, four_channels *to)
{
    const linear_operands &o = call.operands;
    const uint2 *kept = (const uint2 *)(o.conv + slot * o.conv_slot + c * 6);
    const bool there = call.dims.width > 0 && c >= 0 && slot != 0;
#pragma unroll
    for (int i = 0; i < 3; i++)
        to->kept[i] = there ? kept[i] : make_uint2(0, 0);
}

DEVICE void load_channels(const linear_call &call, const linear_sequence &sequence, int c,
                          bool has_row, four_channels *to)
{
    load_row(call, has_row ? sequence.first_row : -1, c, to);
    load_kept(call, sequence.slot, c, to);
    load_taps(call, c, to);
}

/* Element `i` of packed elements. */
template <int N> DEVICE float packed_element(const uint2 (&x)[N], int i)
{
    const u32 two = i % 4 / 2 ? x[i / 4].y : x[i / 4].x;
    return bits_f32(i % 2 ? two & 0xffff0000 : two << 16);
}

DEVICE void convolve_channels(const linear_dims &d, const four_channels &from, float (&to)[4])
{
    const uint2 x[1] = {from.x}, bias[1] = {from.bias};
#pragma unroll
    for (int i = 0; i < 4; i++)
        to[i] = packed_element(x, i);
    if (d.width == 0)
        return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float sum = packed_element(bias, i);
#pragma unroll
        for (int w = 0; w < 3; w++)
            sum += packed_element(from.taps, 4 * i + w) * packed_element(from.kept, 3 * i + w);
        to[i] = sum + packed_element(from.taps, 4 * i + 3) * to[i];
    }
#pragma unroll
    for (int i = 0; i < 4 && d.silu; i++)
        to[i] = linear_fast_silu(to[i]);
}

/* Part N of three of the convolution's state of four channels after a row: their last inputs. */
template <int N> DEVICE uint2 shift_inputs(const four_channels &from)
{
    const uint2 *kept = from.kept;
    if constexpr (N == 0)
        return make_uint2(__byte_perm(kept[0].x, kept[0].y, 0x5432),
                          __byte_perm(from.x.x, kept[1].x, 0x5410));
    if constexpr (N == 1)
        return make_uint2(__byte_perm(kept[1].x, from.x.x, 0x7632),
                          __byte_perm(kept[1].y, kept[2].x, 0x5432));
    return make_uint2(__byte_perm(from.x.y, kept[2].y, 0x5410),
                      __byte_perm(kept[2].y, from.x.y, 0x7632));
}

/* ---- A row ----------------------------------------------------------------------------------- */

DEVICE float sum_of_warp(float x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
}

DEVICE void take_four(const float *from, float (&x)[4])
{
    const float4 y = *(const float4 *)from;
    x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
}

template <int COUNT> DEVICE void take_fours(const float *from, float (&x)[COUNT])
{
#pragma unroll
    for (int n = 0; n < COUNT; n += 4) {
        const float4 y = *(const float4 *)(from + n);
        x[n] = y.x, x[n + 1] = y.y, x[n + 2] = y.z, x[n + 3] = y.w;
    }
}

/* Inputs of a row's step, in shared memory. The vectors: q, k, decays of channels. */
struct decode_row {
    float *vectors, *v, *numbers;

    __device__ __forceinline__ decode_row(float *from, int num_vectors, int columns)
    {
        vectors = from;
        v = vectors + num_vectors * 8 * DECODE_KEYS;
        numbers = v + columns;
    }
};

/* Indices of decode_row.numbers. q and k are multiplied by DECODE_Q and DECODE_K. */
enum { DECODE_DECAY = 0, DECODE_BETA = 1, DECODE_Q = 2, DECODE_K = 3 };

/* A row's gates; for KDA those of a lane's four channels. */
template <int MODE> struct decode_gates {
    linear_gate at[MODE == STEPS_CHANNELS ? 4 : 1];

    decode_gates() = default;
    __device__ __forceinline__ decode_gates(const linear_call &call, int row, int head, int lane)
    {
#pragma unroll
        for (int i = 0; i < (MODE == STEPS_CHANNELS ? 4 : 1); i++)
            at[i] = linear_load_gate(
                &call, row, head,
                MODE == STEPS_CHANNELS ? int_min(4 * lane + i, call.dims.k_dim - 1) : 0);
    }
};

/* The parts of a row, each computed by a warp. */
enum {
    DECODE_PART_Q = 0,
    DECODE_PART_K = 1,
    DECODE_PART_V = 2,
    DECODE_PART_GATES = 3,
    DECODE_PARTS = 4
};

/* A lane's four channels of a part, from `channel` on; `there` of them exist. */
struct decode_channels {
    int channel, there;

    __device__ __forceinline__ decode_channels(const linear_dims &d, int part, int head, int first,
                                               int columns, int lane)
    {
        if (part == DECODE_PART_V) {
            channel = d.first[2] + head * d.v_dim + first + 4 * lane;
            there = 4 * lane < columns ? d.v_dim - first - 4 * lane : 0;
        } else {
            channel = d.first[part == DECODE_PART_K] + head / d.ratio * d.k_dim + 4 * lane;
            there = d.k_dim - 4 * lane;
        }
    }
};

/* Store the factor of q or k, the sum of whose squares is `sum`. */
DEVICE void put_length(const linear_dims &d, int part, float sum, int lane, const decode_row &to)
{
    const float length = d.l2_norm ? rsqrtf(sum + 1e-6f) : 1;
    if (lane == 0)
        to.numbers[DECODE_Q + part] = part == DECODE_PART_Q ? length * d.sm_scale : length;
}

/* Count a warp that has read a part of a convolution's state, by lane 0. Returns how many of
 * `count` were counted before; the count ends at 0. `sum` depends on everything that the warp has
 * read, and the count is computed from it, although no sum changes its value. So nothing that is
 * written because of the last count can be a reader's input (PTX's memory model, "no thin air"). A
 * release would wait for all accesses of its multiprocessor in flight. */
DEVICE unsigned count_reader(unsigned *readers, int count, float sum)
{
    const u32 impossible = 0xffffffff; /* sums are positive, or the NaN 0x7fffffff */
    const unsigned last = f32_bits(sum) == impossible ? count : count - 1;
    unsigned before;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(readers), "r"(last)
                 : "memory");
    return before;
}

/* Was the warp, whose lane 0 got `before`, the last reader? */
DEVICE bool is_last_reader(unsigned before, int count)
{
    return __shfl_sync(~0u, before, 0) == count - 1;
}

/* q.k of the row, before their factors. */
DEVICE float multiply_keys(const float *vectors, int lane)
{
    float x[4], y[4], sum = 0;
    take_four(vectors + 4 * lane, x);
    take_four(vectors + 8 * DECODE_KEYS + 4 * lane, y);
#pragma unroll
    for (int i = 0; i < 4; i++)
        sum += x[i] * y[i];
    return sum_of_warp(sum);
}

#endif /* LINEAR_LIKE_DECODE_ROW_CUH */
