/* SPDX-License-Identifier: Apache-2.0
 *
 * decode.cuh: steps.cuh for single rows, at the bandwidth of memory. A warp has a sequence, a v
 * head and 16 of its values, and waits for no other: q, k and gates it makes ready itself, four
 * channels a lane, while its part of the state is on the way. The state stays as the pool has it,
 * and is read from registers twice: for its sums, and to be updated.
 */
#ifndef LINEAR_LIKE_DECODE_CUH
#define LINEAR_LIKE_DECODE_CUH

#include "plugins/linear_like/kernels/shapes.h"
#include "plugins/linear_like/kernels/tile.cuh"

enum { STEPS_PLAIN = 0, STEPS_DELTA = 1, STEPS_CHANNELS = 2 /* a decay for each channel of k */ };
enum { DECODE_KEYS = STEPS_DECODE_KEYS, DECODE_VALUES = STEPS_VALUES(STEPS_DECODE_KEYS) };

/* ---- The state ------------------------------------------------------------------------------- */

/* Four neighbouring elements of a state's row. */
template <bool BF16> struct four_elements;

template <> struct four_elements<false> {
    float4 x;

    __device__ __forceinline__ void load(const char *from)
    {
        x = __ldcs((const float4 *)from);
    }
    __device__ __forceinline__ void store(char *to) const
    {
        __stcs((float4 *)to, x);
    }
    __device__ __forceinline__ void get(float (&to)[4]) const
    {
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    }
    __device__ __forceinline__ void set(const float (&from)[4])
    {
        x = make_float4(from[0], from[1], from[2], from[3]);
    }
};

template <> struct four_elements<true> {
    uint2 x;

    __device__ __forceinline__ void load(const char *from)
    {
        x = __ldcs((const uint2 *)from);
    }
    __device__ __forceinline__ void store(char *to) const
    {
        __stcs((uint2 *)to, x);
    }
    __device__ __forceinline__ void get(float (&to)[4]) const
    {
        to[0] = bits_f32(x.x << 16), to[1] = bits_f32(x.x & 0xffff0000);
        to[2] = bits_f32(x.y << 16), to[3] = bits_f32(x.y & 0xffff0000);
    }
    __device__ __forceinline__ void set(const float (&from)[4])
    {
        x = make_uint2(pack_bf16(from[0], from[1]), pack_bf16(from[2], from[3]));
    }
};

/* A lane's part: sixteen times four elements, neighbours in the pool. */
template <bool VK, bool BF16> struct decode_state {
    typedef tile_place<DECODE_KEYS, DECODE_VALUES, VK, BF16> place;
    static constexpr int size = BF16 ? 2 : 4;
    four_elements<BF16> part[16];

    /* Values by keys [4 j, + 4) of the lane. */
    __device__ __forceinline__ void get(int j, float (&x)[4][4]) const
    {
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float y[4];
            part[VK ? 4 * n + j : 4 * j + n].get(y);
#pragma unroll
            for (int e = 0; e < 4; e++)
                (VK ? x[n][e] : x[e][n]) = y[e];
        }
    }

    __device__ __forceinline__ void set(int j, const float (&x)[4][4])
    {
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float y[4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                y[e] = VK ? x[n][e] : x[e][n];
            part[VK ? 4 * n + j : 4 * j + n].set(y);
        }
    }

    /* The first value and key of part `n`. */
    static __device__ __forceinline__ int value_of(const place &at, int n)
    {
        return at.value + (VK ? n / 4 : 0);
    }
    static __device__ __forceinline__ int key_of(const place &at, int n)
    {
        return at.key(VK ? n % 4 * 4 : n);
    }

    /* Elements that there are not are 0, and not written. */
    template <bool STORE>
    __device__ __forceinline__ void pass(const linear_call &call, int slot, int head,
                                         const place &at)
    {
        const linear_operands &o = call.operands;
        const linear_dims &d = call.dims;
        char *pool = o.state + slot * o.state_slot + head * o.state_head;
        const bool whole = o.aligned & LINEAR_ALIGNED_STATE;
#pragma unroll
        for (int n = 0; n < 16; n++) {
            const int v = value_of(at, n), k = key_of(at, n);
            const int there = slot == 0 ? 0
                              : VK      ? (v < d.v_dim ? d.k_dim - k : 0)
                                        : (k < d.k_dim ? d.v_dim - v : 0);
            char *x = pool + (VK ? v : k) * o.state_row + (VK ? k : v) * size;
            if (whole && there > 0) {
                if (STORE)
                    part[n].store(x);
                else
                    part[n].load(x);
            } else {
                float y[4] = {0, 0, 0, 0};
                if (STORE)
                    part[n].get(y);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (e < there && STORE)
                        pool_store<BF16>(x + e * size, y[e]);
                    else if (e < there)
                        y[e] = pool_load<BF16>(x + e * size);
                if (!STORE)
                    part[n].set(y);
            }
        }
    }
};

/* For what has been rounded to 16 bits, or will be: errors of 2^-21. */
DEVICE float fast_silu(float x)
{
    return __fdividef(x, 1.0f + __expf(-x));
}

/* ---- Four channels --------------------------------------------------------------------------- */

/* bf16 with four taps or none, four channels at a time: what they need is loaded without a branch. */
DEVICE bool goes_by_fours(const linear_call &call)
{
    const linear_dims &d = call.dims;
    const linear_operands &o = call.operands;
    const u64 rows = (u64)o.mixed | (u64)o.mixed_row;
    const u64 pool = (u64)o.weight | (u64)o.conv | (u64)o.conv_slot | (u64)o.bias;
    return d.dtype == ELEMENT_BF16 && (d.k_dim | d.v_dim) % 4 == 0 && rows % 8 == 0 &&
           (d.width == 0 || (d.width == 4 && d.conv_dtype == ELEMENT_BF16 && pool % 8 == 0 &&
                             o.weight_row == 8 && o.conv_channel == 6));
}

struct four_channels {
    uint2 x, bias, kept[3], taps[4]; /* kept: three inputs of each channel */
};

/* Channels from `c` on; c < 0: there are none. */
DEVICE void load_channels(const linear_call &call, const linear_sequence &sequence, int c,
                          four_channels *to)
{
    const linear_operands &o = call.operands;
    const uint2 none = make_uint2(0, 0);
    const bool convolved = call.dims.width > 0 && c >= 0;
    const char *kept = o.conv + sequence.slot * o.conv_slot + c * 6;
    to->x =
        c >= 0 ? *(const uint2 *)(o.mixed + (i64)sequence.first_row * o.mixed_row + c * 2) : none;
    to->bias = convolved && o.bias ? *(const uint2 *)(o.bias + c * 2) : none;
#pragma unroll
    for (int i = 0; i < 3; i++)
        to->kept[i] = convolved && sequence.slot ? ((const uint2 *)kept)[i] : none;
#pragma unroll
    for (int i = 0; i < 4; i++)
        to->taps[i] = convolved ? ((const uint2 *)(o.weight + c * 8))[i] : none;
}

/* Element `i` of what is packed. */
template <int N> DEVICE float packed_element(const uint2 (&x)[N], int i)
{
    const u32 two = i % 4 / 2 ? x[i / 4].y : x[i / 4].x;
    return bits_f32(i % 2 ? two & 0xffff0000 : two << 16);
}

DEVICE void convolve_channels(const linear_dims &d, const four_channels &from, float (&to)[4])
{
    const uint2 x[1] = {from.x}, bias[1] = {from.bias};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[i] = packed_element(x, i);
        if (d.width == 0)
            continue;
        float sum = packed_element(bias, i);
#pragma unroll
        for (int w = 0; w < 3; w++)
            sum += packed_element(from.taps, 4 * i + w) * packed_element(from.kept, 3 * i + w);
        sum += packed_element(from.taps, 4 * i + 3) * to[i];
        to[i] = d.silu ? fast_silu(sum) : sum;
    }
}

/* The same of any layer; `there`: how many there are. */
DEVICE void convolve_any(const linear_call &call, const linear_sequence &sequence, int c, int there,
                         float (&to)[4])
{
    const linear_dims &d = call.dims;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        float sum = 0;
        if (i < there && d.width == 0)
            sum = linear_input(&call, &sequence, 0, c + i);
        if (i < there && d.width > 0) {
            sum = call.operands.bias ? element_load(d.dtype, call.operands.bias, c + i) : 0;
            const char *weight = call.operands.weight + (c + i) * call.operands.weight_row;
            for (int w = 0; w < d.width; w++)
                sum += element_load(d.dtype, weight, w) *
                       linear_input(&call, &sequence, w + 1 - d.width, c + i);
            sum = d.silu ? linear_silu(sum) : sum;
        }
        to[0] = i == 0 ? sum : to[0], to[1] = i == 1 ? sum : to[1];
        to[2] = i == 2 ? sum : to[2], to[3] = i == 3 ? sum : to[3];
    }
}

/* ---- A row ----------------------------------------------------------------------------------- */

DEVICE float sum_of_warp(float x)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
}

/* Four neighbouring channels of a vector over k, in the order of the lanes' registers. */
template <bool VK> DEVICE void keep_four(float *vector, int k, const float (&x)[4])
{
    if constexpr (VK)
        *(float4 *)(vector + k) = make_float4(x[0], x[1], x[2], x[3]);
    else
#pragma unroll
        for (int i = 0; i < 4; i++)
            vector[tile_position<VK>(k + i)] = x[i];
}

DEVICE void take_four(const float *from, float (&x)[4])
{
    const float4 y = *(const float4 *)from;
    x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
}

/* What a row's step needs. The vectors are in shared memory: q, k, decays of channels. */
struct decode_row {
    float *vectors;
    float decay, beta, q_times, k_times, qk;
    float v[4];
};

/* A row's gates; of KDA those of a lane's four channels. */
template <int MODE> struct decode_gates {
    linear_gate at[MODE == STEPS_CHANNELS ? 4 : 1];

    __device__ __forceinline__ decode_gates(const linear_call &call, int row, int head, int lane)
    {
#pragma unroll
        for (int i = 0; i < (MODE == STEPS_CHANNELS ? 4 : 1); i++)
            at[i] = linear_load_gate(
                &call, row, head,
                MODE == STEPS_CHANNELS ? int_min(4 * lane + i, call.dims.k_dim - 1) : 0);
    }
};

/* q, k and gates of the row; a lane has channels [4 lane, + 4). */
template <int MODE, bool VK>
DEVICE void finish_keys(const linear_call &call, const decode_gates<MODE> &gates, int lane,
                        const float (&q)[4], const float (&k)[4], decode_row *to)
{
    const linear_dims &d = call.dims;
    float qq = 0, kk = 0, qk = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        qq += q[i] * q[i], kk += k[i] * k[i], qk += q[i] * k[i];
    keep_four<VK>(to->vectors, 4 * lane, q);
    keep_four<VK>(to->vectors + 8 * DECODE_KEYS, 4 * lane, k);
    to->beta = linear_gate_beta(&call, &gates.at[0]);
    to->decay = 1;
    if constexpr (MODE == STEPS_CHANNELS) {
        float decays[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            decays[i] = 4 * lane + i < d.k_dim ? expf(linear_gate_log(&d, &gates.at[i], NULL)) : 0;
        keep_four<VK>(to->vectors + 16 * DECODE_KEYS, 4 * lane, decays);
    } else {
        to->decay = expf(linear_gate_log(&d, &gates.at[0], &to->beta));
    }
    qq = sum_of_warp(qq), kk = sum_of_warp(kk), qk = sum_of_warp(qk);
    to->q_times = d.l2_norm ? d.sm_scale / sqrtf(qq + 1e-6f) : d.sm_scale;
    to->k_times = d.l2_norm ? 1 / sqrtf(kk + 1e-6f) : 1;
    to->qk = qk * to->q_times * to->k_times;
}

/* The state after the row, and its outputs. */
template <int MODE, bool VK, bool BF16>
DEVICE void step_state(const decode_row &row, int keys, decode_state<VK, BF16> &s, float (&out)[4])
{
    constexpr int width = 8 * DECODE_KEYS;
    const float *q = row.vectors + keys * 4, *k = q + width, *decays = k + width;
    float held[4] = {}, read[4] = {}, update[4];
#pragma unroll
    for (int j = 0; j < DECODE_KEYS / 4; j++) {
        float qs[4], ks[4], ds[4], x[4][4];
        take_four(q + 32 * j, qs);
        take_four(k + 32 * j, ks);
        if (MODE == STEPS_CHANNELS)
            take_four(decays + 32 * j, ds);
        s.get(j, x);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float y = MODE == STEPS_CHANNELS ? x[i][e] * ds[e] : x[i][e];
                if (MODE != STEPS_PLAIN)
                    held[i] += y * ks[e];
                read[i] += y * qs[e];
            }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (MODE != STEPS_PLAIN)
            held[i] = tile_sum<VK>(held[i]) * (row.decay * row.k_times);
        read[i] = tile_sum<VK>(read[i]) * (row.decay * row.q_times);
        update[i] = row.beta * (row.v[i] - held[i]);
        out[i] = read[i] + row.qk * update[i];
        update[i] *= row.k_times;
    }
#pragma unroll
    for (int j = 0; j < DECODE_KEYS / 4; j++) {
        float ks[4], ds[4], x[4][4];
        take_four(k + 32 * j, ks);
        if (MODE == STEPS_CHANNELS)
            take_four(decays + 32 * j, ds);
        s.get(j, x);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i][e] =
                    x[i][e] * (MODE == STEPS_CHANNELS ? ds[e] : row.decay) + ks[e] * update[i];
        s.set(j, x);
    }
}

/* The warp's values from `first` on. */
template <int MODE, bool VK, bool BF16>
DEVICE void decode_warp(const linear_call &call, const linear_sequence &sequence, int head,
                        int first, float *vectors)
{
    typedef decode_state<VK, BF16> state;
    const linear_dims &d = call.dims;
    const linear_operands &o = call.operands;
    const int lane = threadIdx.x % 32, at_row = sequence.first_row;
    const typename state::place place(first, 0, lane);
    const bool by_fours = goes_by_fours(call), has_row = sequence.num_rows > 0;
    const int key = head / d.ratio * d.k_dim + 4 * lane, value = first + 4 * lane;
    const int keys = has_row ? d.k_dim - 4 * lane : 0;
    const int values = has_row && lane < 4 ? d.v_dim - value : 0;
    const int of_q = d.first[0] + key, of_k = d.first[1] + key;
    const int of_v = d.first[2] + head * d.v_dim + value;
    four_channels q_raw, k_raw, v_raw;
    float q[4], k[4], v[4], out[4];
    state s;
    if (by_fours) {
        load_channels(call, sequence, keys > 0 ? of_q : -1, &q_raw);
        load_channels(call, sequence, keys > 0 ? of_k : -1, &k_raw);
    }
    const decode_gates<MODE> gates(call, has_row ? at_row : 0, head, lane);
    s.template pass<false>(call, sequence.slot, head, place);
    if (has_row) {
        decode_row row;
        row.vectors = vectors;
        if (by_fours) {
            convolve_channels(d, q_raw, q);
            convolve_channels(d, k_raw, k);
            load_channels(call, sequence, values > 0 ? of_v : -1, &v_raw);
        } else {
            convolve_any(call, sequence, of_q, keys, q);
            convolve_any(call, sequence, of_k, keys, k);
        }
        const int own = place.value + place.keys; /* the value whose output the lane writes */
        const bool writes = place.keys < 4 && own < d.v_dim;
        float z = 1;
        if (writes && o.z)
            z = linear_silu(element_load(d.dtype, o.z + at_row * o.z_row + head * o.z_head, own));
        const float skip = writes ? linear_skip(&call, head, own) : 0;
        finish_keys<MODE, VK>(call, gates, lane, q, k, &row);
        if (by_fours)
            convolve_channels(d, v_raw, v);
        else
            convolve_any(call, sequence, of_v, values, v);
#pragma unroll
        for (int i = 0; i < 4; i++)
            row.v[i] = __shfl_sync(~0u, v[i], (place.value - first) / 4);
        __syncwarp();
        step_state<MODE, VK, BF16>(row, place.keys, s, out);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (place.keys == i && writes)
                element_store(d.out_dtype, o.out + at_row * o.out_row + head * o.out_head, own,
                              (out[i] + skip * row.v[i]) * z);
    }
    const int snapshot = has_row ? linear_snapshot(&call.batch, at_row) : 0;
    if (sequence.dst)
        s.template pass<true>(call, sequence.dst, head, place);
    if (snapshot)
        s.template pass<true>(call, snapshot, head, place);
}

/* Blocks: sequences, times v heads, times slices of a head's values. */
template <int MODE, bool VK, bool BF16> DEVICE void decode_block(const linear_call &call)
{
    extern __shared__ float4 decode_shared[];
    constexpr int vectors = 8 * DECODE_KEYS * (MODE == STEPS_CHANNELS ? 3 : 2);
    const int columns = STEPS_COLUMNS(blockDim.x / 32, DECODE_VALUES), warp = threadIdx.x / 32;
    const int slices = (call.dims.v_dim + columns - 1) / columns;
    const int slice = blockIdx.x % slices, rest = blockIdx.x / slices;
    const int head = rest % call.dims.v_heads, s = rest / call.dims.v_heads;
    const int first = slice * columns + warp * 4 * DECODE_VALUES;
    if (s >= linear_num_real(&call.batch) || linear_is_chunked(&call, s) ||
        first >= call.dims.v_dim)
        return;
    decode_warp<MODE, VK, BF16>(call, linear_find_sequence(&call.batch, s), head, first,
                                (float *)decode_shared + warp * vectors);
}

#endif /* LINEAR_LIKE_DECODE_CUH */
