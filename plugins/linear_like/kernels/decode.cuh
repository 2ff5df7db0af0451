/* SPDX-License-Identifier: Apache-2.0
 *
 * decode.cuh: steps.cuh for single rows, at memory bandwidth. A warp has a sequence, a v head and
 * 16 of its values, 32 of bf16. The warps of a block share the row; each prepares a part of it,
 * four channels per lane, while the state is copied to shared memory. The state is read there
 * twice: for its sums, and for the update.
 *
 * These kernels also keep inputs of the convolution, if channels are processed in fours. Inputs of
 * v are kept by the block that reads them. Inputs of q and k are read by the blocks of all v heads
 * of a k head, and kept by the last of these.
 */
#ifndef LINEAR_LIKE_DECODE_CUH
#define LINEAR_LIKE_DECODE_CUH

#include "plugins/linear_like/kernels/decode_row.cuh"

/* ---- The state ------------------------------------------------------------------------------- */

/* A lane's part of the state: sixteen times 16 bytes, neighbours in the pool, in shared memory that
 * no other lane accesses. So it takes no registers in flight. */
template <bool VK, bool BF16> struct decode_state {
    static constexpr int size = BF16 ? 2 : 4, elements = 16 / size, values = elements;
    static constexpr int keys = VK ? elements : 1;      /* of a part */
    static constexpr int groups = VK ? 16 / values : 4; /* groups of parts with the same keys */
    static constexpr int members = 16 / groups;         /* parts of a group */
    static constexpr int group_keys = VK ? keys : members;
    char *parts;    /* the lane's first */
    int apart;      /* bytes from part to part */
    int key, value; /* the first of each */

    __device__ __forceinline__ decode_state(char *shared, int first, int threads)
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        parts = shared + 16 * threadIdx.x;
        apart = 16 * threads;
        key = VK ? lane % 8 * keys : lane / 4;
        value = first + (warp * 4 + (VK ? lane / 8 : lane % 4)) * values;
    }

    /* The lane's index among the eight that share its values. */
    static __device__ __forceinline__ int number()
    {
        const int lane = threadIdx.x % 32;
        return VK ? lane % 8 : lane / 4;
    }

    /* Parts of a group, and the first key and value of a part. */
    static __device__ __forceinline__ int part_of(int group, int member)
    {
        return VK ? member * groups + group : group * members + member;
    }
    __device__ __forceinline__ int key_of(int n) const
    {
        return key + (VK ? n % groups * 8 * keys : 8 * n);
    }
    __device__ __forceinline__ int value_of(int n) const
    {
        return value + (VK ? n / groups : 0);
    }

    /* The number of elements of part n that the head has, and their place in the pool. */
    __device__ __forceinline__ int there(const linear_dims &d, int n) const
    {
        const int v = value_of(n), k = key_of(n);
        return VK ? (v < d.v_dim ? d.k_dim - k : 0) : (k < d.k_dim ? d.v_dim - v : 0);
    }
    __device__ __forceinline__ char *place(const linear_operands &o, char *pool, int n) const
    {
        const int v = value_of(n), k = key_of(n);
        return pool + (VK ? v : k) * o.state_row + (VK ? k : v) * size;
    }

    /* The number of parts of a head that has only whole parts. */
    struct whole_parts {
        int steps, most; /* along the rows in which parts follow each other; along the others */

        __device__ __forceinline__ whole_parts(const decode_state &s, const linear_dims &d,
                                               int slot)
        {
            const bool any = slot != 0 && (VK ? s.key < d.k_dim : s.value < d.v_dim);
            steps = any ? (VK ? d.v_dim - s.value : (d.k_dim - s.key + 7) / 8) : 0;
            most = VK ? (d.k_dim - s.key + 8 * keys - 1) / (8 * keys) : 16;
        }
        __device__ __forceinline__ bool has(int n) const
        {
            return (VK ? n / groups : n) < steps && (!VK || n % groups < most);
        }
        static __device__ __forceinline__ i64 offset(const linear_operands &o, int n)
        {
            return VK ? n / groups * o.state_row + n % groups * 8 * keys * size
                      : n * 8 * o.state_row;
        }
    };

    __device__ __forceinline__ void get(int n, float (&to)[elements]) const
    {
        unpack_part<BF16>(*(const uint4 *)(parts + n * apart), to);
    }

    /* Start to load. Missing elements are 0. */
    __device__ __forceinline__ void load(const linear_call &call, int slot, int head) const
    {
        const linear_operands &o = call.operands;
        char *pool = o.state + slot * o.state_slot + head * o.state_head;
        if (o.aligned & LINEAR_ALIGNED_STATE_16) {
            const u32 to = shared_address(parts);
            const char *from = place(o, pool, 0);
            const whole_parts whole(*this, call.dims, slot);
#pragma unroll
            for (int n = 0; n < 16; n++)
                copy_part(to + n * apart, from + whole.offset(o, n), whole.has(n) ? 16 : 0);
            return;
        }
#pragma unroll 1
        for (int n = 0; n < 16; n++) {
            const int count = slot != 0 ? there(call.dims, n) : 0;
            const char *from = place(o, pool, n);
            char *to = parts + n * apart;
#pragma unroll 1
            for (int e = 0; e < elements; e++)
                pool_store<BF16>(to + e * size, e < count ? pool_load<BF16>(from + e * size) : 0);
        }
    }

    /* Missing elements are not written. */
    __device__ __forceinline__ void store(const linear_call &call, int slot, int head) const
    {
        const linear_operands &o = call.operands;
        char *pool = o.state + slot * o.state_slot + head * o.state_head;
        const bool whole = o.aligned & LINEAR_ALIGNED_STATE_16;
#pragma unroll 1
        for (int n = 0; n < 16 && slot != 0; n++) {
            const int count = there(call.dims, n);
            const char *from = parts + n * apart;
            char *to = place(o, pool, n);
            if (whole && count > 0)
                __stcs((uint4 *)to, *(const uint4 *)from);
#pragma unroll 1
            for (int e = 0; e < elements && !whole; e++)
                if (e < count)
                    pool_store<BF16>(to + e * size, pool_load<BF16>(from + e * size));
        }
    }
};

DEVICE void wait_for_loads()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* ---- A row ----------------------------------------------------------------------------------- */

/* Write the convolution's state of four channels to `slot`. */
DEVICE void keep_channels(const linear_call &call, const four_channels &from, bool has_row,
                          int slot, int c)
{
    const linear_operands &o = call.operands;
    uint2 *to = (uint2 *)(o.conv + slot * o.conv_slot + c * 6);
    const uint2 *kept = from.kept;
    const uint2 first = shift_inputs<0>(from), second = shift_inputs<1>(from);
    const uint2 third = shift_inputs<2>(from);
    if (slot == 0)
        return;
    to[0] = has_row ? first : kept[0];
    to[1] = has_row ? second : kept[1];
    to[2] = has_row ? third : kept[2];
}

/* convolve_channels() for any layer; `there`: how many channels exist. */
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

/* Store four neighbouring channels of a vector over k, in the order of the lanes' registers. */
template <bool VK> DEVICE void keep_four(float *vector, int k, const float (&x)[4])
{
    if constexpr (VK)
        *(float4 *)(vector + k) = make_float4(x[0], x[1], x[2], x[3]);
    else
#pragma unroll
        for (int i = 0; i < 4; i++)
            vector[tile_position<VK>(k + i)] = x[i];
}

/* Store channels of q, k or v after the convolution. Returns the sum of the squares of q or k. */
template <bool VK>
DEVICE float put_channels(const linear_dims &d, int part, const float (&x)[4], int columns,
                          int lane, const decode_row &to)
{
    float sum = 0;
    if (part == DECODE_PART_V) {
        if (4 * lane < columns)
            *(float4 *)(to.v + 4 * lane) = make_float4(x[0], x[1], x[2], x[3]);
        return 0;
    }
    keep_four<VK>(to.vectors + part * 8 * DECODE_KEYS, 4 * lane, x);
#pragma unroll
    for (int i = 0; i < 4; i++)
        sum += x[i] * x[i];
    sum = sum_of_warp(sum);
    put_length(d, part, sum, lane, to);
    return sum;
}

/* Decay and beta of the row; for KDA the decays of a lane's four channels. */
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

/* ---- The step -------------------------------------------------------------------------------- */

/* Sums of the state with q and k, then the state after the row. It goes to `to`, or stays in shared
 * memory if that is NULL. */
template <int MODE, bool VK, bool BF16>
DEVICE void step_state(const linear_call &call, const decode_row &row,
                       const decode_state<VK, BF16> &s, const float (&v)[BF16 ? 8 : 4], char *to,
                       int slot, float (&out)[BF16 ? 8 : 4])
{
    typedef decode_state<VK, BF16> state;
    constexpr int width = 8 * DECODE_KEYS, values = state::values, group_keys = state::group_keys;
    const int lane = threadIdx.x % 32;
    const float *q = row.vectors + (VK ? s.key : s.key * 4), *k = q + width, *decays = k + width;
    const float decay = row.numbers[DECODE_DECAY], beta = row.numbers[DECODE_BETA];
    const float q_times = row.numbers[DECODE_Q], k_times = row.numbers[DECODE_K];
    constexpr int apart = VK ? 8 * group_keys : 32; /* of groups in a vector */
    const float qk = multiply_keys(row.vectors, lane) * q_times * k_times;
    const typename state::whole_parts whole(s, call.dims, slot);
    char *place = s.place(call.operands, to, 0);
    float held[values] = {}, read[values] = {}, update[values];
#pragma unroll
    for (int g = 0; g < state::groups; g++) {
        float qs[group_keys], ks[group_keys], ds[group_keys];
        take_fours(q + apart * g, qs);
        take_fours(k + apart * g, ks);
        if (MODE == STEPS_CHANNELS)
            take_fours(decays + apart * g, ds);
#pragma unroll
        for (int m = 0; m < state::members; m++) {
            float part[state::elements];
            s.get(state::part_of(g, m), part);
#pragma unroll
            for (int e = 0; e < state::elements; e++) {
                const int i = VK ? m : e, n = VK ? e : m;
                const float at = MODE == STEPS_CHANNELS ? part[e] * ds[n] : part[e];
                if (MODE != STEPS_PLAIN)
                    held[i] += at * ks[n];
                read[i] += at * qs[n];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < values; i++) {
        if (MODE != STEPS_PLAIN)
            held[i] = tile_sum<VK>(held[i]) * (decay * k_times);
        read[i] = tile_sum<VK>(read[i]) * (decay * q_times);
        update[i] = beta * (MODE != STEPS_PLAIN ? v[i] - held[i] : v[i]);
        out[i] = read[i] + qk * update[i];
        update[i] *= k_times;
    }
#pragma unroll
    for (int g = 0; g < state::groups; g++) {
        float ks[group_keys], ds[group_keys];
        take_fours(k + apart * g, ks);
        if (MODE == STEPS_CHANNELS)
            take_fours(decays + apart * g, ds);
#pragma unroll
        for (int m = 0; m < state::members; m++) {
            const int at = state::part_of(g, m);
            float part[state::elements];
            s.get(at, part);
#pragma unroll
            for (int e = 0; e < state::elements; e++) {
                const int i = VK ? m : e, n = VK ? e : m;
                part[e] = part[e] * (MODE == STEPS_CHANNELS ? ds[n] : decay) + ks[n] * update[i];
            }
            if (!to)
                *(uint4 *)(s.parts + at * s.apart) = pack_part<BF16>(part);
            else if (whole.has(at))
                __stcs((uint4 *)(place + whole.offset(call.operands, at)), pack_part<BF16>(part));
        }
    }
}

/* Compute a block's values from `first` on. A warp first loads the inputs of its part of the row,
 * then its part of the state; parts in excess of the warps are computed after that. */
template <int MODE, bool VK, bool BF16>
DEVICE void decode_values(const decode_call &call, const linear_sequence &sequence, int s_index,
                          int head, int first, int columns, int slices, const decode_row &row,
                          char *shared)
{
    typedef decode_state<VK, BF16> state;
    constexpr int values = state::values;
    const linear_dims &d = call.dims;
    const linear_operands &o = call.operands;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int at_row = sequence.first_row;
    const state s(shared, first, blockDim.x);
    const bool has_row = sequence.num_rows > 0, fours = goes_by_fours(call);
    const int snapshot = has_row ? linear_snapshot(&call.batch, at_row) : 0;
    const bool direct =
        (o.aligned & LINEAR_ALIGNED_STATE_16) && has_row && !snapshot && sequence.dst;
    four_channels raw;
    decode_channels at(d, warp, head, first, columns, lane);
    const bool early = fours && warp != DECODE_PART_GATES;
    load_channels(call, sequence, early && at.there > 0 ? at.channel : -1, has_row, &raw);
    decode_gates<MODE> gates;
    if (has_row && warp == DECODE_PART_GATES)
        gates = decode_gates<MODE>(call, at_row, head, lane);
    s.load(call, sequence.slot, head);
    const int own = s.value + state::number(); /* the value that the lane outputs */
    const bool writes = has_row && state::number() < values && own < d.v_dim;
    float z = 1, skip = 0;
#pragma unroll 1
    for (int part = warp; part < DECODE_PARTS; part += warps) {
        if (part == DECODE_PART_GATES) {
            if (part != warp && has_row)
                gates = decode_gates<MODE>(call, at_row, head, lane);
            if (has_row)
                put_gates<MODE, VK>(call, gates, lane, row);
            continue;
        }
        float x[4];
        if (part != warp && fours) {
            at = decode_channels(d, part, head, first, columns, lane);
            load_channels(call, sequence, at.there > 0 ? at.channel : -1, has_row, &raw);
        } else if (part != warp) {
            at = decode_channels(d, part, head, first, columns, lane);
        }
        if (fours)
            convolve_channels(d, raw, x);
        else
            convolve_any(call, sequence, at.channel, has_row ? at.there : 0, x);
        const float sum = put_channels<VK>(d, part, x, columns, lane, row);
        if (call.readers && fours) {
            bool last = true;
            if (part != DECODE_PART_V) {
                const i64 group = (i64)s_index * d.k_heads + head / d.ratio;
                unsigned before = 0;
                if (lane == 0 && d.ratio * slices > 1)
                    before = count_reader(call.readers + 2 * group + part, d.ratio * slices, sum);
                last = is_last_reader(before, d.ratio * slices);
            }
            if (last && at.there > 0) {
                keep_channels(call, raw, has_row, sequence.dst, at.channel);
                keep_channels(call, raw, has_row, snapshot, at.channel);
            }
        }
    }
    if (writes && o.z)
        z = linear_silu(element_load(d.dtype, o.z + at_row * o.z_row + head * o.z_head, own));
    if (writes)
        skip = linear_skip(&call, head, own);
    __syncthreads();
    wait_for_loads();
    if (has_row) {
        float v[values], out[values];
        char *pool = o.state + sequence.dst * o.state_slot + head * o.state_head;
        take_fours(row.v + (s.value - first), v);
        step_state<MODE, VK, BF16>(call, row, s, v, direct ? pool : NULL, sequence.dst, out);
#pragma unroll
        for (int i = 0; i < values; i++)
            if (state::number() == i && writes)
                element_store(d.out_dtype, o.out + at_row * o.out_row + head * o.out_head, own,
                              (out[i] + skip * v[i]) * z);
    }
    if (!direct) {
        s.store(call, sequence.dst, head);
        s.store(call, snapshot, head);
    }
}

/* Blocks: slices of a head's values, v heads, sequences; if there is padding, more that clear
 * it. */
template <int MODE, bool VK, bool BF16>
DEVICE void decode_block(const decode_call &call, int first, int count)
{
    extern __shared__ float4 decode_shared[];
    const int columns = STEPS_COLUMNS(blockDim.x / 32, (decode_state<VK, BF16>::values));
    const int head = blockIdx.y, s = first + blockIdx.z;
    char *shared = (char *)decode_shared;
    pdl_wait();
    pdl_launch_dependents();
    if (blockIdx.z >= count) {
        linear_clear_padding(&call, blockIdx.y * gridDim.x + blockIdx.x, gridDim.x * gridDim.y);
        return;
    }
    const linear_sequence sequence = linear_find_sequence(&call.batch, s);
    if (s >= linear_num_real(&call.batch) || linear_is_chunked(&call, s))
        return;
    decode_values<MODE, VK, BF16>(call, sequence, s, head, blockIdx.x * columns, columns, gridDim.x,
                                  decode_row((float *)(shared + 16 * 16 * blockDim.x),
                                             MODE == STEPS_CHANNELS ? 3 : 2, columns),
                                  shared);
}

#endif /* LINEAR_LIKE_DECODE_CUH */
