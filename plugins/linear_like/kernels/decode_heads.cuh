/* SPDX-License-Identifier: Apache-2.0
 *
 * decode_heads.cuh: decode.cuh for layers as models have them, in one launch: bf16 rows, a convolution
 * of four taps or none, 128 keys, and heads whose states lie in one piece. A block brings its part of a
 * state to shared memory, where it becomes the state after the row, and takes it back; no register holds
 * what is on its way.
 *
 *   linear_heads_*    a head of state.ssm.kv/1, 32 KB of one of state.ssm.vk/1: the copy engine moves it,
 *                     in pieces of up to 64 KB. Sixteen times 16 bytes a lane
 *   linear_slices_*   16 KB of a head, for so few heads that multiprocessors would have nothing to do;
 *                     of kv rows of 128 bytes, which lanes copy. Eight times 16 bytes a lane
 *
 * In kv eight lanes have a line of a row, 128 bytes; four share values and divide the keys of a part of
 * them; warps divide values, and the parts. In vk eight lanes share values and divide their keys. So eight
 * lanes read all banks at once. States of the convolution are written here, too: those of v's channels by
 * the block that reads them; those of q's and k's, which blocks of all v heads of a k head read, by the
 * last of these, whose warp still has them in registers.
 */
#ifndef LINEAR_LIKE_DECODE_HEADS_CUH
#define LINEAR_LIKE_DECODE_HEADS_CUH

#include "plugins/linear_like/kernels/chunk_tile.cuh"
#include "plugins/linear_like/kernels/decode_row.cuh"

/* ---- A lane's part --------------------------------------------------------------------------- */

/* PARTS times 16 bytes. Those of a group have the same keys (vk), or follow one another (kv). */
template <bool VK, bool BF16, int PARTS> struct heads_lane {
    static constexpr int size = BF16 ? 2 : 4, elements = 16 / size;
    static constexpr int groups = VK ? HEADS_KEYS / (8 * elements) : PARTS / 4;
    static constexpr int members = PARTS / groups, values = VK ? members : elements;
    static constexpr int group_keys = VK ? elements : members;
    static constexpr int splits = VK ? 1 : 32 / PARTS;  /* of the keys, among warps */
    static constexpr int outputs = VK ? 1 : values / 4; /* that it writes */
    int row;          /* bytes of a row of the state in shared memory */
    int number;       /* of the lane, among those that share its values */
    int split, value; /* of the keys; the first, of the block's */
    char *parts;

    __device__ __forceinline__ heads_lane(char *shared, int columns)
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int across = VK ? 1 : columns * size / 128; /* warps that a row has */
        number = VK ? lane % 8 : lane / 8;
        split = VK ? 0 : warp / across;
        row = (VK ? HEADS_KEYS : columns) * size;
        value = VK ? (warp * 4 + lane / 8) * values : (warp % across * 8 + lane % 8) * values;
        parts = shared + (VK ? value * row + number * 16 : first_key() * row + value * size);
    }

    /* kv: the keys of part n are this one and every fourth. */
    __device__ __forceinline__ int first_key() const
    {
        return split * (HEADS_KEYS / splits) + number;
    }
    static __device__ __forceinline__ int part_of(int group, int member)
    {
        return VK ? member * groups + group : group * members + member;
    }
    __device__ __forceinline__ uint4 *at(int part) const
    {
        return (uint4 *)(parts + (VK ? part / groups * row + part % groups * 128 : part * 4 * row));
    }
    /* Keys of a group, of a vector in the order of heads_position(). */
    __device__ __forceinline__ const float *keys(const float *vector, int group) const
    {
        return vector + (VK ? (number + group * 8) * elements
                            : split * (HEADS_KEYS / splits) + number * 4 + group * 16);
    }
    /* The value of output `i`, of the block's; does the lane write any? */
    __device__ __forceinline__ int output(int i) const
    {
        return value + number + 4 * i;
    }
    __device__ __forceinline__ bool writes() const
    {
        return VK ? number < values : split == 0;
    }
};

/* Where key `k` of a vector lies in shared memory. */
template <bool VK> DEVICE int heads_position(int k)
{
    return VK ? k : k / 16 * 16 + k % 4 * 4 + k % 16 / 4;
}

/* ---- A block --------------------------------------------------------------------------------- */

/* What it has in shared memory, behind its part of the state; sums of the parts of the keys:
 * [splits][2][columns]. */
struct heads_row : decode_row {
    float *sums;
    unsigned barrier;

    __device__ __forceinline__ heads_row(char *from, int num_vectors, int columns, int splits)
        : decode_row((float *)from, num_vectors, columns)
    {
        sums = numbers + 4;
        barrier = shared_address(sums + 2 * splits * columns);
    }
};

/* A block's part of a head. */
struct heads_block {
    const decode_call &call;
    linear_sequence sequence;
    int index; /* of the sequence */
    int head, first, columns, slices;
    int snapshot;
    bool has_row;
    i64 offset; /* of the part in the head's state */
    int bytes;
    char *state; /* in shared memory */

    __device__ __forceinline__ char *place(int slot) const
    {
        const linear_operands &o = call.operands;
        return o.state + slot * o.state_slot + head * o.state_head + offset;
    }
};

/* One thread: the copy engine brings what lies in one piece. */
DEVICE void begin_to_load(const heads_block &b, unsigned barrier)
{
    barrier_init(barrier, 1);
    fence_barrier_init();
    if (b.sequence.slot) {
        barrier_arrive_expect(barrier, b.bytes);
        bulk_load(shared_address(b.state), b.place(b.sequence.slot), b.bytes, barrier);
    }
}

/* All threads have written to the state and fenced; one of them. */
DEVICE void store_state(const heads_block &b)
{
    if (b.sequence.dst)
        store_bytes(b.place(b.sequence.dst), shared_address(b.state), b.bytes);
    if (b.snapshot)
        store_bytes(b.place(b.snapshot), shared_address(b.state), b.bytes);
    store_commit();
    store_wait_read();
}

/* A slice of kv: lanes bring their own parts, and take them back. */
template <class LANE> DEVICE void load_parts(const heads_block &b, const LANE &lane)
{
    const i64 row = b.call.operands.state_row;
    const char *from = b.place(b.sequence.slot) + lane.first_key() * row + lane.value * LANE::size;
#pragma unroll
    for (int n = 0; n < LANE::members * LANE::groups; n++)
        copy_part(shared_address(lane.at(n)), from + n * 4 * row, b.sequence.slot ? 16 : 0);
}

template <class LANE> DEVICE void store_parts(const heads_block &b, const LANE &lane, int slot)
{
    const i64 row = b.call.operands.state_row;
    char *to = b.place(slot) + lane.first_key() * row + lane.value * LANE::size;
#pragma unroll
    for (int n = 0; n < LANE::members * LANE::groups && slot != 0; n++)
        __stcs((uint4 *)(to + n * 4 * row), *lane.at(n));
}

/* ---- The convolution's state ----------------------------------------------------------------- */

/* Four channels of a lane, of the part that its warp makes of the row. */
struct heads_channels {
    decode_channels at;
    uint2 inputs[3]; /* the last three of each, after the row */
    unsigned before; /* readers that were counted before; of lane 0 */

    __device__ __forceinline__ heads_channels(const heads_block &b, int warp, int lane)
        : at(b.call.dims, warp, b.head, b.first, b.columns, lane), before(0)
    {
    }

    __device__ __forceinline__ void find_inputs(const four_channels &from, bool has_row)
    {
        const uint2 after[3] = {shift_inputs<0>(from), shift_inputs<1>(from),
                                shift_inputs<2>(from)};
#pragma unroll
        for (int i = 0; i < 3; i++)
            inputs[i] = has_row ? after[i] : from.kept[i];
    }

    __device__ __forceinline__ void store(const linear_operands &o, int slot) const
    {
        uint2 *to = (uint2 *)(o.conv + slot * o.conv_slot + at.channel * 6);
#pragma unroll
        for (int i = 0; i < 3 && slot != 0; i++)
            to[i] = inputs[i];
    }
};

/* Warps that read the channels of q or k, a block of each slice of the v heads of a k head. */
DEVICE int readers_of(const heads_block &b)
{
    return b.call.dims.ratio * b.slices;
}

/* Count a warp among those that have read q's or k's channels. */
DEVICE void count_warp(const heads_block &b, int part, int lane, float sum,
                       heads_channels *channels)
{
    const linear_dims &d = b.call.dims;
    const i64 group = (i64)b.index * d.k_heads + b.head / d.ratio;
    if (b.call.readers && readers_of(b) > 1 && lane == 0)
        channels->before = count_reader(b.call.readers + 2 * group + part, readers_of(b), sum);
}

/* The convolution's state after the row: v's channels, and, by the last of the readers, q's and k's. */
DEVICE void keep_part(const heads_block &b, int warp, const heads_channels &channels)
{
    if (!b.call.readers || warp >= DECODE_PART_GATES)
        return;
    const bool last = warp == DECODE_PART_V || is_last_reader(channels.before, readers_of(b));
    if (last && channels.at.there > 0) {
        channels.store(b.call.operands, b.sequence.dst);
        channels.store(b.call.operands, b.snapshot);
    }
}

/* ---- The row --------------------------------------------------------------------------------- */

template <int MODE, bool VK>
DEVICE void put_row_gates(const heads_block &b, int lane, const heads_row &to)
{
    const linear_call &call = b.call;
    const decode_gates<MODE> gates(call, b.sequence.first_row, b.head, lane);
    float beta = linear_gate_beta(&call, &gates.at[0]), decay = 1;
    if constexpr (MODE == STEPS_CHANNELS) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            to.vectors[2 * HEADS_KEYS + heads_position<VK>(4 * lane + i)] =
                expf(linear_gate_log(&call.dims, &gates.at[i], NULL));
    } else {
        decay = expf(linear_gate_log(&call.dims, &gates.at[0], &beta));
    }
    if (lane == 0)
        to.numbers[DECODE_DECAY] = decay, to.numbers[DECODE_BETA] = beta;
}

/* q or k; gives the sum of its squares. */
template <bool VK>
DEVICE float put_keys(const linear_dims &d, int part, const float (&x)[4], int lane,
                      const heads_row &to)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to.vectors[part * HEADS_KEYS + heads_position<VK>(4 * lane + i)] = x[i];
        sum += x[i] * x[i];
    }
    sum = sum_of_warp(sum);
    put_length(d, part, sum, lane, to);
    return sum;
}

/* A warp's part of the row, if it has one; what it is made of is loaded at once. */
template <int MODE, bool VK>
DEVICE void make_part(const heads_block &b, int warp, int lane, heads_channels *channels,
                      const heads_row &to)
{
    const linear_dims &d = b.call.dims;
    const decode_channels &at = channels->at;
    four_channels from;
    float x[4];
    if (warp == DECODE_PART_GATES && b.has_row)
        put_row_gates<MODE, VK>(b, lane, to);
    if (warp >= DECODE_PART_GATES)
        return;
    load_channels(b.call, b.sequence, at.there > 0 ? at.channel : -1, b.has_row, &from);
    convolve_channels(d, from, x);
    channels->find_inputs(from, b.has_row);
    if (warp != DECODE_PART_V)
        count_warp(b, warp, lane, put_keys<VK>(d, warp, x, lane, to), channels);
    else if (at.there > 0)
        *(float4 *)(to.v + 4 * lane) = make_float4(x[0], x[1], x[2], x[3]);
}

/* ---- The step -------------------------------------------------------------------------------- */

/* A lane's values of the state: what it holds for k, or its update; what q reads of it, or its output. */
template <int VALUES> struct heads_values {
    float held[VALUES], read[VALUES];
};

template <int COUNT> DEVICE void take_values(const float *from, float (&x)[COUNT])
{
    if constexpr (COUNT == 2) {
        const float2 y = *(const float2 *)from;
        x[0] = y.x, x[1] = y.y;
    } else {
        take_fours(from, x);
    }
}

/* Sums of the state with k and with q, over a lane's keys. */
template <int MODE, bool VK, bool BF16, int PARTS>
DEVICE void sum_parts(const heads_lane<VK, BF16, PARTS> &lane, const float *vectors,
                      heads_values<heads_lane<VK, BF16, PARTS>::values> &sums)
{
    typedef heads_lane<VK, BF16, PARTS> lane_type;
    constexpr int group_keys = lane_type::group_keys;
#pragma unroll 1
    for (int g = 0; g < lane_type::groups; g++) {
        float qs[group_keys], ks[group_keys], ds[group_keys];
        take_fours(lane.keys(vectors, g), qs);
        take_fours(lane.keys(vectors + HEADS_KEYS, g), ks);
        if (MODE == STEPS_CHANNELS)
            take_fours(lane.keys(vectors + 2 * HEADS_KEYS, g), ds);
#pragma unroll
        for (int m = 0; m < lane_type::members; m++) {
            float x[lane_type::elements];
            unpack_part<BF16>(*lane.at(lane_type::part_of(g, m)), x);
#pragma unroll
            for (int e = 0; e < lane_type::elements; e++) {
                const int i = VK ? m : e, n = VK ? e : m;
                const float y = MODE == STEPS_CHANNELS ? x[e] * ds[n] : x[e];
                if (MODE != STEPS_PLAIN)
                    sums.held[i] += y * ks[n];
                sums.read[i] += y * qs[n];
            }
        }
    }
}

/* Those of all lanes that share a value. */
template <int MODE, bool VK, bool BF16, int PARTS>
DEVICE void sum_lanes(const heads_lane<VK, BF16, PARTS> &lane, const heads_row &row, int columns,
                      heads_values<heads_lane<VK, BF16, PARTS>::values> &sums)
{
    typedef heads_lane<VK, BF16, PARTS> lane_type;
#pragma unroll
    for (int i = 0; i < lane_type::values; i++)
#pragma unroll
        for (int step = VK ? 1 : 8; step < (VK ? 8 : 32); step *= 2) {
            if (MODE != STEPS_PLAIN)
                sums.held[i] += __shfl_xor_sync(~0u, sums.held[i], step);
            sums.read[i] += __shfl_xor_sync(~0u, sums.read[i], step);
        }
    if constexpr (!VK) {
        float *to = row.sums + 2 * columns * lane.split + lane.value;
#pragma unroll
        for (int i = 0; i < lane_type::values && lane.number == 0; i += 4) {
            *(float4 *)(to + i) = *(const float4 *)&sums.held[i];
            *(float4 *)(to + columns + i) = *(const float4 *)&sums.read[i];
        }
        __syncthreads();
#pragma unroll
        for (int n = 1; n < lane_type::splits; n++) {
            const int other = (lane.split + n) % lane_type::splits;
            const float *from = row.sums + 2 * columns * other + lane.value;
            float x[lane_type::values];
            take_fours(from, x);
#pragma unroll
            for (int i = 0; i < lane_type::values; i++)
                sums.held[i] += x[i];
            take_fours(from + columns, x);
#pragma unroll
            for (int i = 0; i < lane_type::values; i++)
                sums.read[i] += x[i];
        }
    }
}

/* The state after the row, in its place. */
template <int MODE, bool VK, bool BF16, int PARTS>
DEVICE void update_parts(const heads_lane<VK, BF16, PARTS> &lane, const float *vectors, float decay,
                         const float (&update)[heads_lane<VK, BF16, PARTS>::values])
{
    typedef heads_lane<VK, BF16, PARTS> lane_type;
    constexpr int group_keys = lane_type::group_keys;
#pragma unroll 1
    for (int g = 0; g < lane_type::groups; g++) {
        float ks[group_keys], ds[group_keys];
        take_fours(lane.keys(vectors + HEADS_KEYS, g), ks);
        if (MODE == STEPS_CHANNELS)
            take_fours(lane.keys(vectors + 2 * HEADS_KEYS, g), ds);
#pragma unroll
        for (int m = 0; m < lane_type::members; m++) {
            uint4 *at = lane.at(lane_type::part_of(g, m));
            float x[lane_type::elements];
            unpack_part<BF16>(*at, x);
#pragma unroll
            for (int e = 0; e < lane_type::elements; e++) {
                const int i = VK ? m : e, n = VK ? e : m;
                x[e] = x[e] * (MODE == STEPS_CHANNELS ? ds[n] : decay) + ks[n] * update[i];
            }
            *at = pack_part<BF16>(x);
        }
    }
}

/* What outputs are made of beside the state, loaded before it is there. */
template <int OUTPUTS> struct heads_outputs {
    float z[OUTPUTS], skip[OUTPUTS];

    template <class LANE>
    __device__ __forceinline__ void load(const heads_block &b, const LANE &lane)
    {
        const linear_operands &o = b.call.operands;
        const i64 row = b.sequence.first_row * o.z_row + b.head * o.z_head;
#pragma unroll
        for (int i = 0; i < OUTPUTS; i++) {
            const int value = b.first + lane.output(i);
            const bool there = b.has_row && lane.writes();
            z[i] =
                there && o.z ? linear_silu(element_load(b.call.dims.dtype, o.z + row, value)) : 1;
            skip[i] = there ? linear_skip(&b.call, b.head, value) : 0;
        }
    }

    template <class LANE, int VALUES>
    __device__ __forceinline__ void store(const heads_block &b, const LANE &lane,
                                          const float (&v)[VALUES], const float (&out)[VALUES])
    {
        const linear_operands &o = b.call.operands;
        char *row = o.out + b.sequence.first_row * o.out_row + b.head * o.out_head;
#pragma unroll
        for (int i = 0; i < OUTPUTS && lane.writes(); i++) {
            float x = 0, y = 0;
#pragma unroll
            for (int n = 0; n < VALUES / OUTPUTS; n++)
                if (lane.number == n)
                    x = v[VALUES / OUTPUTS * i + n], y = out[VALUES / OUTPUTS * i + n];
            element_store(b.call.dims.out_dtype, row, b.first + lane.output(i),
                          (y + skip[i] * x) * z[i]);
        }
    }
};

/* The row's outputs, and the state after it. */
template <int MODE, bool VK, bool BF16, int PARTS>
DEVICE void step_parts(const heads_block &b, const heads_lane<VK, BF16, PARTS> &lane,
                       const heads_row &row,
                       heads_outputs<heads_lane<VK, BF16, PARTS>::outputs> &outputs)
{
    constexpr int values = heads_lane<VK, BF16, PARTS>::values;
    const float decay = row.numbers[DECODE_DECAY], beta = row.numbers[DECODE_BETA];
    const float q_times = row.numbers[DECODE_Q], k_times = row.numbers[DECODE_K];
    const float qk = multiply_keys(row.vectors, threadIdx.x % 32) * q_times * k_times;
    heads_values<values> sums = {};
    float v[values];
    sum_parts<MODE>(lane, row.vectors, sums);
    sum_lanes<MODE>(lane, row, b.columns, sums);
    take_values(row.v + lane.value, v);
#pragma unroll
    for (int i = 0; i < values; i++) {
        const float held = MODE != STEPS_PLAIN ? sums.held[i] * (decay * k_times) : 0;
        const float update = beta * (v[i] - held);
        sums.read[i] = sums.read[i] * (decay * q_times) + qk * update;
        sums.held[i] = update * k_times;
    }
    outputs.store(b, lane, v, sums.read);
    update_parts<MODE>(lane, row.vectors, decay, sums.held);
}

template <int MODE, bool VK, bool BF16, int PARTS>
DEVICE void decode_heads(const heads_block &b, const heads_row &row)
{
    typedef heads_lane<VK, BF16, PARTS> lane_type;
    constexpr bool by_lanes = !VK && PARTS < 16;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const lane_type part(b.state, b.columns);
    if (by_lanes)
        load_parts(b, part);
    else if (threadIdx.x == blockDim.x - 1)
        begin_to_load(b, row.barrier);
    __syncwarp();
    heads_outputs<lane_type::outputs> outputs;
    heads_channels channels(b, warp, lane);
    make_part<MODE, VK>(b, warp, lane, &channels, row);
    outputs.load(b, part);
    for (int i = threadIdx.x; !by_lanes && i < b.bytes / 16 && !b.sequence.slot; i += blockDim.x)
        ((uint4 *)b.state)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    if (by_lanes)
        wait_for_loads();
    else if (b.sequence.slot)
        barrier_wait(row.barrier, 0);
    keep_part(b, warp, channels);
    if (b.has_row)
        step_parts<MODE>(b, part, row, outputs);
    if (by_lanes) {
        store_parts(b, part, b.sequence.dst);
        store_parts(b, part, b.snapshot);
        return;
    }
    fence_async_shared();
    __syncthreads();
    if (threadIdx.x == 0)
        store_state(b);
}

/* Blocks: slices of a head's values, v heads, sequences from `from` on, `count` of them; one more of these
 * clears padding. */
template <int MODE, bool VK, bool BF16, int PARTS>
DEVICE void heads_block_of(const decode_call &call, int from, int count)
{
    extern __shared__ __align__(128) char heads_shared[];
    constexpr int size = BF16 ? 2 : 4, splits = heads_lane<VK, BF16, PARTS>::splits;
    const int columns = blockDim.x * 16 * PARTS / (HEADS_KEYS * size), index = from + blockIdx.z;
    grid_wait();
    grid_launch_dependents();
    if ((int)blockIdx.z >= count) {
        linear_clear_padding(&call, blockIdx.y * gridDim.x + blockIdx.x, gridDim.x * gridDim.y);
        return;
    }
    const linear_sequence sequence = linear_find_sequence(&call.batch, index);
    if (index >= linear_num_real(&call.batch))
        return;
    const bool has_row = sequence.num_rows > 0;
    const heads_block b = {call,
                           sequence,
                           index,
                           (int)blockIdx.y,
                           (int)blockIdx.x * columns,
                           columns,
                           (int)gridDim.x,
                           has_row ? linear_snapshot(&call.batch, sequence.first_row) : 0,
                           has_row,
                           (i64)blockIdx.x * columns * (VK ? call.operands.state_row : size),
                           columns * HEADS_KEYS * size,
                           heads_shared};
    const heads_row row(heads_shared + b.bytes, MODE == STEPS_CHANNELS ? 3 : 2, columns, splits);
    decode_heads<MODE, VK, BF16, PARTS>(b, row);
}

#endif /* LINEAR_LIKE_DECODE_HEADS_CUH */
