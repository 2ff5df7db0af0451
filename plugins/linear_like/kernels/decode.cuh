/* SPDX-License-Identifier: Apache-2.0
 *
 * decode.cuh: steps.cuh for single rows, at the bandwidth of memory. A warp has a sequence, a v
 * head and 16 of its values. Of the row, which the block's warps share, each makes a part ready, four
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

/* What a row's step needs, in shared memory. The vectors: q, k, decays of channels. */
struct decode_row {
    float *vectors, *v, *numbers;

    __device__ __forceinline__ decode_row(float *from, int num_vectors, int columns)
    {
        vectors = from;
        v = vectors + num_vectors * 8 * DECODE_KEYS;
        numbers = v + columns;
    }
};

/* Of decode_row.numbers; q and k are multiplied by theirs. */
enum { DECODE_DECAY = 0, DECODE_BETA = 1, DECODE_Q = 2, DECODE_K = 3 };

/* A row's gates; of KDA those of a lane's four channels. */
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

/* Parts of a row, each made by a warp. */
enum {
    DECODE_PART_Q = 0,
    DECODE_PART_K = 1,
    DECODE_PART_V = 2,
    DECODE_PART_GATES = 3,
    DECODE_PARTS = 4
};

/* A lane's four channels of a part from `channel` on, `there` of which there are. */
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

/* Channels of q, k or v, as they are after the convolution. */
template <bool VK>
DEVICE void put_channels(const linear_dims &d, int part, const float (&x)[4], int columns, int lane,
                         const decode_row &to)
{
    float sum = 0;
    if (part == DECODE_PART_V) {
        if (4 * lane < columns)
            *(float4 *)(to.v + 4 * lane) = make_float4(x[0], x[1], x[2], x[3]);
        return;
    }
    keep_four<VK>(to.vectors + part * 8 * DECODE_KEYS, 4 * lane, x);
#pragma unroll
    for (int i = 0; i < 4; i++)
        sum += x[i] * x[i];
    sum = sum_of_warp(sum);
    const float length = d.l2_norm ? rsqrtf(sum + 1e-6f) : 1;
    if (lane == 0)
        to.numbers[DECODE_Q + part] = part == DECODE_PART_Q ? length * d.sm_scale : length;
}

/* Decay and beta of the row; of KDA decays of a lane's four channels. */
template <int MODE, bool VK>
DEVICE void put_gates(const linear_call &call, const decode_gates<MODE> &gates, int lane,
                      const decode_row &to)
{
    const linear_dims &d = call.dims;
    float beta = linear_gate_beta(&call, &gates.at[0]), decay = 1;
    if constexpr (MODE == STEPS_CHANNELS) {
        float decays[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            decays[i] = 4 * lane + i < d.k_dim ? expf(linear_gate_log(&d, &gates.at[i], NULL)) : 0;
        keep_four<VK>(to.vectors + 16 * DECODE_KEYS, 4 * lane, decays);
    } else {
        decay = expf(linear_gate_log(&d, &gates.at[0], &beta));
    }
    if (lane == 0)
        to.numbers[DECODE_DECAY] = decay, to.numbers[DECODE_BETA] = beta;
}

/* A part of the row, which nothing has been loaded of. */
template <int MODE, bool VK>
DEVICE void make_part(const linear_call &call, const linear_sequence &sequence, int part, int head,
                      int first, int columns, int lane, const decode_row &to)
{
    const decode_channels at(call.dims, part, head, first, columns, lane);
    float x[4];
    if (part == DECODE_PART_GATES) {
        put_gates<MODE, VK>(call, decode_gates<MODE>(call, sequence.first_row, head, lane), lane,
                            to);
        return;
    }
    convolve_any(call, sequence, at.channel, at.there, x);
    put_channels<VK>(call.dims, part, x, columns, lane, to);
}

/* The state after the row, and its outputs of four values. */
template <int MODE, bool VK, bool BF16>
DEVICE void step_state(const decode_row &row, const float (&v)[4], int keys, int lane,
                       decode_state<VK, BF16> &s, float (&out)[4])
{
    constexpr int width = 8 * DECODE_KEYS;
    const float *q = row.vectors + keys * 4, *k = q + width, *decays = k + width;
    const float decay = row.numbers[DECODE_DECAY], beta = row.numbers[DECODE_BETA];
    const float q_times = row.numbers[DECODE_Q], k_times = row.numbers[DECODE_K];
    float x[4], y[4], qk = 0;
    take_four(row.vectors + 4 * lane, x);
    take_four(row.vectors + width + 4 * lane, y);
#pragma unroll
    for (int i = 0; i < 4; i++)
        qk += x[i] * y[i];
    qk = sum_of_warp(qk) * q_times * k_times;
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
            held[i] = tile_sum<VK>(held[i]) * (decay * k_times);
        read[i] = tile_sum<VK>(read[i]) * (decay * q_times);
        update[i] = beta * (v[i] - held[i]);
        out[i] = read[i] + qk * update[i];
        update[i] *= k_times;
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
                x[i][e] = x[i][e] * (MODE == STEPS_CHANNELS ? ds[e] : decay) + ks[e] * update[i];
        s.set(j, x);
    }
}

/* A block's values from `first` on. What a warp's part of the row is made of is loaded first, then its
 * part of the state; parts that there are no warps for are made after that. */
template <int MODE, bool VK, bool BF16>
DEVICE void decode_values(const linear_call &call, const linear_sequence &sequence, int head,
                          int first, int columns, const decode_row &row)
{
    typedef decode_state<VK, BF16> state;
    const linear_dims &d = call.dims;
    const linear_operands &o = call.operands;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, at_row = sequence.first_row;
    const typename state::place place(first, warp, lane);
    const bool has_row = sequence.num_rows > 0, is_gates = warp == DECODE_PART_GATES;
    const bool early = has_row && !is_gates && goes_by_fours(call);
    const decode_channels at(d, warp, head, first, columns, lane);
    four_channels raw;
    load_channels(call, sequence, early && at.there > 0 ? at.channel : -1, &raw);
    decode_gates<MODE> gates;
    if (has_row && is_gates)
        gates = decode_gates<MODE>(call, at_row, head, lane);
    state s;
    s.template pass<false>(call, sequence.slot, head, place);
    if (has_row) {
        const int own = place.value + place.keys; /* the value whose output the lane writes */
        const bool writes = place.keys < 4 && own < d.v_dim;
        float v[4], out[4], z = 1;
        int part = warp;
        if (early) {
            convolve_channels(d, raw, v);
            put_channels<VK>(d, part, v, columns, lane, row);
            part += blockDim.x / 32;
        } else if (is_gates) {
            put_gates<MODE, VK>(call, gates, lane, row);
            part += blockDim.x / 32;
        }
#pragma unroll 1
        for (; part < DECODE_PARTS; part += blockDim.x / 32)
            make_part<MODE, VK>(call, sequence, part, head, first, columns, lane, row);
        if (writes && o.z)
            z = linear_silu(element_load(d.dtype, o.z + at_row * o.z_row + head * o.z_head, own));
        const float skip = writes ? linear_skip(&call, head, own) : 0;
        __syncthreads();
        take_four(row.v + (place.value - first), v);
        step_state<MODE, VK, BF16>(row, v, place.keys, lane, s, out);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (place.keys == i && writes)
                element_store(d.out_dtype, o.out + at_row * o.out_row + head * o.out_head, own,
                              (out[i] + skip * v[i]) * z);
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
    const int columns = STEPS_COLUMNS(blockDim.x / 32, DECODE_VALUES);
    const int slices = (call.dims.v_dim + columns - 1) / columns;
    const int slice = blockIdx.x % slices, rest = blockIdx.x / slices;
    const int head = rest % call.dims.v_heads, s = rest / call.dims.v_heads;
    if (s >= linear_num_real(&call.batch) || linear_is_chunked(&call, s))
        return;
    decode_values<MODE, VK, BF16>(
        call, linear_find_sequence(&call.batch, s), head, slice * columns, columns,
        decode_row((float *)decode_shared, MODE == STEPS_CHANNELS ? 3 : 2, columns));
}

#endif /* LINEAR_LIKE_DECODE_CUH */
