/* SPDX-License-Identifier: Apache-2.0
 *
 * decode_heads.cuh: decode.cuh for layers as models have them, in one launch: bf16 rows, a
 * convolution of four taps or none, 128 keys, and heads whose states lie in one piece.
 *
 *   linear_heads_*    a head of state.ssm.kv/1, or 32 KB of a head of state.ssm.vk/1. The copy engine moves
 *                     the state to shared memory and back, so no register holds data in flight. A lane
 *                     computes with 16 parts of 16 bytes
 *   linear_slices_*   16 KB of a head, for few heads: more multiprocessors work. Lanes load their parts into
 *                     registers, because nothing hides the latency of the copy engine. 8 parts a lane
 *
 * In kv eight lanes have a line of 128 bytes of a row; four lanes share values and divide the keys;
 * warps divide values and keys. In vk eight lanes share values and divide their keys. So eight
 * lanes read all banks at once.
 */
#ifndef LINEAR_LIKE_DECODE_HEADS_CUH
#define LINEAR_LIKE_DECODE_HEADS_CUH

#include "plugins/linear_like/kernels/heads_row.cuh"

/* ---- A lane's part --------------------------------------------------------------------------- */

/* PARTS times 16 bytes. The parts of a group have the same keys (vk), or follow one another
 * (kv). */
template <bool VK, bool BF16, int PARTS> struct heads_lane {
    static constexpr int size = BF16 ? 2 : 4, elements = 16 / size;
    static constexpr int count = PARTS;
    static constexpr int groups = VK ? HEADS_KEYS / (8 * elements) : PARTS / 4;
    static constexpr int members = PARTS / groups, values = VK ? members : elements;
    static constexpr int group_keys = VK ? elements : members;
    static constexpr int splits = VK ? 1 : 32 / PARTS;  /* splits of the keys among warps */
    static constexpr int outputs = VK ? 1 : values / 4; /* outputs that the lane writes */
    static constexpr int unrolled = PARTS == HEADS_PARTS ? 1 : groups; /* more of them spill */
    int row;          /* bytes from one row of the state to the next, where the parts are */
    int number;       /* index of the lane among those that share its values */
    int split, value; /* the split of the keys; the first value, in the block */

    /* The block has `columns` values. A row of kv has `row_columns` in the memory of the parts. */
    __device__ __forceinline__ heads_lane(int columns, int row_columns)
    {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int across = VK ? 1 : columns * size / 128; /* warps that a row has */
        number = VK ? lane % 8 : lane / 8;
        split = VK ? 0 : warp / across;
        row = (VK ? HEADS_KEYS : row_columns) * size;
        value = VK ? (warp * 4 + lane / 8) * values : (warp % across * 8 + lane % 8) * values;
    }

    /* kv: the keys of part n are this key and every fourth after it. */
    __device__ __forceinline__ int first_key() const
    {
        return split * (HEADS_KEYS / splits) + number;
    }
    static __device__ __forceinline__ int part_of(int group, int member)
    {
        return VK ? member * groups + group : group * members + member;
    }
    /* Bytes from the block's first element to the lane's first part, and from there to part
     * `part`. */
    __device__ __forceinline__ int offset() const
    {
        return VK ? value * row + number * 16 : first_key() * row + value * size;
    }
    __device__ __forceinline__ int step(int part) const
    {
        return VK ? part / groups * HEADS_KEYS * size + part % groups * 128 : part * 4 * row;
    }
    /* Keys of a group, in a vector with the order of heads_position(). */
    __device__ __forceinline__ const float *keys(const float *vector, int group) const
    {
        return vector + (VK ? (number + group * 8) * elements
                            : split * (HEADS_KEYS / splits) + number * 4 + group * 16);
    }
    /* The value of output `i`, counted from the block's first; does the lane write any? */
    __device__ __forceinline__ int output(int i) const
    {
        return value + number + 4 * i;
    }
    __device__ __forceinline__ bool writes() const
    {
        return VK ? number < values : split == 0;
    }
};

/* Written lines leave L2 before lines that were loaded with this policy, so DRAM gets longer runs of writes. */
DEVICE unsigned long long policy_of_states()
{
    unsigned long long policy = 0;
#if HAS_HOPPER
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

/* Have the copy engine bring the block's part of the state, in one piece; by one thread. */
DEVICE void begin_to_load(const heads_block &b, unsigned barrier)
{
    barrier_init(barrier, 1);
    fence_barrier_init();
    if (b.sequence.slot == 0)
        return;
    barrier_arrive_expect(barrier, b.bytes);
    if (b.call.kept)
        bulk_load_by(shared_address(b.state), b.place(b.sequence.slot), b.bytes, barrier,
                     policy_of_states());
    else
        bulk_load(shared_address(b.state), b.place(b.sequence.slot), b.bytes, barrier);
}

/* Store the state, by one thread, after all threads have written to it and fenced. */
DEVICE void store_state(const heads_block &b)
{
    if (b.sequence.dst)
        store_bytes(b.place(b.sequence.dst), shared_address(b.state), b.bytes);
    if (b.snapshot)
        store_bytes(b.place(b.snapshot), shared_address(b.state), b.bytes);
    store_commit();
    store_wait_read();
}

/* A lane's parts in shared memory. */
template <class LANE> struct shared_parts {
    const LANE &lane;
    char *first;

    __device__ __forceinline__ uint4 *at(int part) const
    {
        return (uint4 *)(first + lane.step(part));
    }
};

/* A lane's parts in registers. */
template <class LANE> struct register_parts {
    const LANE &lane;
    i64 first; /* its place in a slot */
    uint4 parts[LANE::count];

    __device__ __forceinline__ register_parts(const heads_block &b, const LANE &of)
        : lane(of), first(b.offset + of.offset())
    {
        settle(first);
    }
    __device__ __forceinline__ char *place(const heads_block &b, int slot) const
    {
        const linear_operands &o = b.call.operands;
        return o.state + slot * o.state_slot + first;
    }
    __device__ __forceinline__ void load(const heads_block &b)
    {
        const char *from = place(b, b.sequence.slot);
#pragma unroll
        for (int n = 0; n < LANE::count; n++)
            parts[n] = b.sequence.slot ? __ldcg((const uint4 *)(from + lane.step(n)))
                                       : make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void store(const heads_block &b, int slot) const
    {
        char *to = place(b, slot);
#pragma unroll
        for (int n = 0; n < LANE::count && slot != 0; n++)
            *(uint4 *)(to + lane.step(n)) = parts[n];
    }
    __device__ __forceinline__ uint4 *at(int part)
    {
        return parts + part;
    }
};

/* ---- The step -------------------------------------------------------------------------------- */

/* A lane's values of the state: the sum with k, or the update; the sum with q, or the output. */
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

/* Sums of the state with k and with q, and of q with k, over a lane's keys. */
template <int MODE, bool VK, bool BF16, int PARTS, class STATE>
DEVICE void sum_parts(const heads_lane<VK, BF16, PARTS> &lane, STATE &state, const float *vectors,
                      heads_values<heads_lane<VK, BF16, PARTS>::values> &sums, float &qk)
{
    typedef heads_lane<VK, BF16, PARTS> lane_type;
    constexpr int group_keys = lane_type::group_keys;
#pragma unroll lane_type::unrolled
    for (int g = 0; g < lane_type::groups; g++) {
        float qs[group_keys], ks[group_keys], ds[group_keys];
        take_fours(lane.keys(vectors, g), qs);
        take_fours(lane.keys(vectors + HEADS_KEYS, g), ks);
        if (MODE == STEPS_CHANNELS)
            take_fours(lane.keys(vectors + 2 * HEADS_KEYS, g), ds);
#pragma unroll
        for (int n = 0; n < group_keys; n++)
            qk += qs[n] * ks[n];
#pragma unroll
        for (int m = 0; m < lane_type::members; m++) {
            float x[lane_type::elements];
            unpack_part<BF16>(*state.at(lane_type::part_of(g, m)), x);
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

/* The sum over the lanes that share values. */
template <bool VK> DEVICE float sum_of_lanes(float x)
{
#pragma unroll
    for (int step = VK ? 1 : 8; step < (VK ? 8 : 32); step *= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
}

/* kv: the sum over the warps that share values. */
template <int COUNT>
DEVICE void exchange_sums(const heads_row &row, int columns, int splits, int split, int value,
                          bool first, heads_values<COUNT> &sums, float &qk)
{
    float *to = row.sums + 2 * columns * split + value, *qks = row.sums + 2 * columns * splits;
#pragma unroll
    for (int i = 0; i < COUNT && first; i += 4) {
        const float *held = sums.held + i, *read = sums.read + i;
        *(float4 *)(to + i) = make_float4(held[0], held[1], held[2], held[3]);
        *(float4 *)(to + columns + i) = make_float4(read[0], read[1], read[2], read[3]);
    }
    if (first)
        qks[split] = qk;
    __syncthreads();
#pragma unroll
    for (int n = 1; n < splits; n++) {
        const int other = (split + n) % splits;
        const float *from = row.sums + 2 * columns * other + value;
        float held[COUNT], read[COUNT];
        take_fours(from, held);
        take_fours(from + columns, read);
        qk += qks[other];
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            sums.held[i] += held[i], sums.read[i] += read[i];
    }
}

template <int MODE, bool VK, bool BF16, int PARTS>
DEVICE void sum_lanes(const heads_lane<VK, BF16, PARTS> &lane, const heads_row &row, int columns,
                      heads_values<heads_lane<VK, BF16, PARTS>::values> &sums, float &qk)
{
    typedef heads_lane<VK, BF16, PARTS> lane_type;
    qk = sum_of_lanes<VK>(qk);
#pragma unroll
    for (int i = 0; i < lane_type::values; i++) {
        if (MODE != STEPS_PLAIN)
            sums.held[i] = sum_of_lanes<VK>(sums.held[i]);
        sums.read[i] = sum_of_lanes<VK>(sums.read[i]);
    }
    if constexpr (!VK)
        exchange_sums(row, columns, lane_type::splits, lane.split, lane.value, lane.number == 0,
                      sums, qk);
}

/* Update the state in place. */
template <int MODE, bool VK, bool BF16, int PARTS, class STATE>
DEVICE void update_parts(const heads_lane<VK, BF16, PARTS> &lane, STATE &state,
                         const float *vectors, float decay,
                         const float (&update)[heads_lane<VK, BF16, PARTS>::values])
{
    typedef heads_lane<VK, BF16, PARTS> lane_type;
    constexpr int group_keys = lane_type::group_keys;
#pragma unroll lane_type::unrolled
    for (int g = 0; g < lane_type::groups; g++) {
        float ks[group_keys], ds[group_keys];
        take_fours(lane.keys(vectors + HEADS_KEYS, g), ks);
        if (MODE == STEPS_CHANNELS)
            take_fours(lane.keys(vectors + 2 * HEADS_KEYS, g), ds);
#pragma unroll
        for (int m = 0; m < lane_type::members; m++) {
            uint4 *at = state.at(lane_type::part_of(g, m));
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

/* The outputs' inputs apart from the state, loaded before the state has arrived. */
template <int OUTPUTS> struct heads_outputs {
    float z[OUTPUTS], skip[OUTPUTS], y[OUTPUTS];

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
            y[i] = 0;
        }
    }

    /* Value `i` of `values`. The lanes that share values divide the outputs. */
    __device__ __forceinline__ void take(int number, int i, int values, float v, float out)
    {
        const int each = values / OUTPUTS;
        const float x = (out + skip[i / each] * v) * z[i / each];
        y[i / each] = number == i % each ? x : y[i / each];
    }

    template <class LANE>
    __device__ __forceinline__ void store(const heads_block &b, const LANE &lane) const
    {
        const linear_operands &o = b.call.operands;
        char *row = o.out + b.sequence.first_row * o.out_row + b.head * o.out_head;
#pragma unroll
        for (int i = 0; i < OUTPUTS && lane.writes(); i++)
            element_store(b.call.dims.out_dtype, row, b.first + lane.output(i), y[i]);
    }
};

/* Compute the row's outputs, and the state after it. */
template <int MODE, bool VK, bool BF16, int PARTS, class STATE>
DEVICE void step_parts(const heads_block &b, const heads_lane<VK, BF16, PARTS> &lane, STATE &state,
                       const heads_row &row,
                       heads_outputs<heads_lane<VK, BF16, PARTS>::outputs> &outputs)
{
    constexpr int values = heads_lane<VK, BF16, PARTS>::values;
    heads_values<values> sums = {};
    float v[values], numbers[4], qk = 0;
    sum_parts<MODE>(lane, state, row.vectors, sums, qk);
    sum_lanes<MODE>(lane, row, b.columns, sums, qk);
    take_values(row.v + lane.value, v);
    take_four(row.numbers, numbers);
    const float decay = MODE == STEPS_CHANNELS ? 1 : numbers[DECODE_DECAY];
    const float beta = numbers[DECODE_BETA];
    const float q_times = numbers[DECODE_Q], k_times = numbers[DECODE_K];
    const float held_times = decay * k_times, read_times = decay * q_times;
    qk *= q_times * k_times;
#pragma unroll
    for (int i = 0; i < values; i++) {
        const float held = MODE != STEPS_PLAIN ? sums.held[i] * held_times : 0;
        const float update = beta * (v[i] - held);
        outputs.take(lane.number, i, values, v[i], sums.read[i] * read_times + qk * update);
        sums.held[i] = update * k_times;
    }
    outputs.store(b, lane);
    update_parts<MODE>(lane, state, row.vectors, decay, sums.held);
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

/* "cp.async.bulk.prefetch", into L2; `bytes`: a multiple of 16. */
DEVICE void bulk_prefetch(const char *from, unsigned bytes)
{
#if HAS_HOPPER
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

DEVICE void line_prefetch(const char *from)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}

/* A load that does not fill L1: an earlier launch may still write this memory, and a later load has
 * to see the new value. */
DEVICE int load_early(const int *from)
{
    int x;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

/* Prefetch the block's state, taps and kept inputs into L2 before the preceding launch has ended. That is safe:
 * L2 is coherent, so later writes of that launch change the prefetched lines. The slot may be stale, or
 * uninitialised memory; it only has to be a slot. */
template <bool VK, int SIZE, bool SLICE>
DEVICE void prefetch_block(const heads_call &call, int index, int columns)
{
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    const int head = blockIdx.y, first = blockIdx.x * columns,
              slot = load_early(call.batch.slot + index);
    if ((unsigned)slot >= (unsigned)call.slots)
        return;
    const char *state = o.state + slot * o.state_slot + head * o.state_head;
    if (!VK && SLICE)
        bulk_prefetch(state + threadIdx.x * o.state_row + first * SIZE, 128);
    else if (threadIdx.x == 0)
        bulk_prefetch(state + first * o.state_row, columns * HEADS_KEYS * SIZE);
    const decode_channels at(d, threadIdx.x / 32, head, first, columns, threadIdx.x % 32);
    if (d.width > 0 && threadIdx.x < 32 * DECODE_PART_GATES && at.there > 0) {
        line_prefetch(o.weight + at.channel * 8);
        line_prefetch(o.conv + slot * o.conv_slot + at.channel * 6);
    }
}

/* Wait for the preceding launch and find the block's sequence. False: the block has none. */
template <bool VK, int SIZE, bool SLICE> DEVICE bool begin_block(heads_block &b, int count)
{
    const bool is_padding = (int)blockIdx.z >= count;
    const i64 before = ((i64)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    if (!is_padding && before * b.bytes < b.call.prefetched)
        prefetch_block<VK, SIZE, SLICE>(b.call, b.index, b.columns);
    pdl_wait();
    pdl_launch_dependents();
    if (is_padding) {
        linear_clear_padding(&b.call, blockIdx.y * gridDim.x + blockIdx.x, gridDim.x * gridDim.y);
        return false;
    }
    b.sequence = linear_find_sequence(&b.call.batch, b.index);
    b.has_row = b.sequence.num_rows > 0;
    if (b.index >= linear_num_real(&b.call.batch))
        return false;
    b.snapshot = b.has_row ? linear_snapshot(&b.call.batch, b.sequence.first_row) : 0;
    return true;
}

/* Process a head, in shared memory. begin_block() has filled in b.sequence. */
template <int MODE, bool VK, bool BF16, int PARTS>
DEVICE void decode_head(heads_block &b, int count, const heads_row &row)
{
    typedef heads_lane<VK, BF16, PARTS> lane_type;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const lane_type part(b.columns, b.columns);
    shared_parts<lane_type> state = {part, b.state + part.offset()};
    heads_outputs<lane_type::outputs> outputs;
    heads_channels channels(b, warp, lane);
    heads_gates<MODE, VK> gates(warp);
    if (!begin_block<VK, lane_type::size, false>(b, count))
        return;
    load_taps(b.call, channels.channel, &channels.from);
    gates.load(b);
    load_row(b.call, b.has_row ? b.sequence.first_row : -1, channels.channel, &channels.from);
    if (threadIdx.x == blockDim.x - 1)
        begin_to_load(b, row.barrier);
    __syncwarp();
    load_kept(b.call, b.sequence.slot, channels.channel, &channels.from);
    outputs.load(b, part);
    make_part<VK>(b, warp, lane, &channels, row);
    gates.put(b, row);
    for (int i = threadIdx.x; i < b.bytes / 16 && !b.sequence.slot; i += blockDim.x)
        ((uint4 *)b.state)[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    if (b.sequence.slot)
        barrier_wait(row.barrier, 0);
    if (b.has_row)
        step_parts<MODE>(b, part, state, row, outputs);
    fence_async_shared();
    __syncthreads();
    if (threadIdx.x == 0)
        store_state(b);
    __syncwarp();
    keep_part(b, warp, channels);
}

/* Process a slice, in registers. */
template <int MODE, bool VK, bool BF16, int PARTS>
DEVICE void decode_slice(heads_block &b, int count, const heads_row &row)
{
    typedef heads_lane<VK, BF16, PARTS> lane_type;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const lane_type part(b.columns, b.call.dims.v_dim);
    register_parts<lane_type> state(b, part);
    heads_outputs<lane_type::outputs> outputs;
    heads_channels channels(b, warp, lane);
    heads_gates<MODE, VK> gates(warp);
    if (!begin_block<VK, lane_type::size, true>(b, count))
        return;
    load_taps(b.call, channels.channel, &channels.from);
    gates.load(b);
    load_row(b.call, b.has_row ? b.sequence.first_row : -1, channels.channel, &channels.from);
    state.load(b);
    load_kept(b.call, b.sequence.slot, channels.channel, &channels.from);
    outputs.load(b, part);
    make_part<VK>(b, warp, lane, &channels, row);
    gates.put(b, row);
    __syncthreads();
    if (b.has_row)
        step_parts<MODE>(b, part, state, row, outputs);
    state.store(b, b.sequence.dst);
    state.store(b, b.snapshot);
    keep_part(b, warp, channels);
}

/* Blocks: slices of a head's values, v heads, `count` sequences from `from` on, and one more of
 * these, which clears padding. */
template <int MODE, bool VK, bool BF16, int PARTS>
DEVICE void heads_block_of(const heads_call &call, int from, int count)
{
    extern __shared__ __align__(128) char heads_shared[];
    constexpr int size = BF16 ? 2 : 4;
    constexpr bool slice = PARTS < HEADS_PARTS;
    const linear_operands &o = call.operands;
    const int columns = blockDim.x * 16 * PARTS / (HEADS_KEYS * size);
    const int head = blockIdx.y, first = blockIdx.x * columns;
    heads_block b = {.call = call,
                     .index = from + (int)blockIdx.z,
                     .head = head,
                     .first = first,
                     .columns = columns,
                     .slices = (int)gridDim.x,
                     .offset = head * o.state_head + (i64)first * (VK ? o.state_row : size),
                     .bytes = columns * HEADS_KEYS * size,
                     .state = heads_shared};
    const heads_row row(heads_shared + (slice ? 0 : b.bytes), MODE == STEPS_CHANNELS ? 3 : 2,
                        columns);
    if constexpr (slice)
        decode_slice<MODE, VK, BF16, PARTS>(b, count, row);
    else
        decode_head<MODE, VK, BF16, PARTS>(b, count, row);
}

#endif /* LINEAR_LIKE_DECODE_HEADS_CUH */
