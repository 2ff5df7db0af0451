/* SPDX-License-Identifier: Apache-2.0
 *
 * heads_row.cuh: a block of decode_heads.cuh prepares its row and keeps the convolution's state after it. v's
 * channels are written by the block that reads them. q's and k's channels are read by the blocks of all v
 * heads of a k head, and written by the last of these blocks, whose warp still has them in registers.
 */
#ifndef LINEAR_LIKE_HEADS_ROW_CUH
#define LINEAR_LIKE_HEADS_ROW_CUH

#include "plugins/linear_like/kernels/chunk_tile.cuh"
#include "plugins/linear_like/kernels/decode_row.cuh"
#include "plugins/linear_like/kernels/heads.h"

/* linear_heads_call. */
struct heads_call : decode_call {
    int slots, kept;
    i64 prefetched;
};
static_assert(sizeof(heads_call) == sizeof(linear_heads_call), "as the host lays it out");

/* ---- A block --------------------------------------------------------------------------------- */

/* Its shared memory, after its part of the state. Sums of the splits of the keys:
 * [splits][2][columns], then those of q.k: [splits]. */
struct heads_row : decode_row {
    float *sums;
    unsigned barrier;

    __device__ __forceinline__ heads_row(char *from, int num_vectors, int columns)
        : decode_row((float *)from, num_vectors, columns)
    {
        barrier = shared_address(numbers + 4);
        sums = numbers + 8;
    }
};

/* A block's part of a head. */
struct heads_block {
    const heads_call &call;
    int index; /* index of the sequence */
    int head, first, columns, slices;
    i64 offset; /* place of the part in a slot */
    int bytes;
    char *state; /* in shared memory */
    /* Read from the batch, after the wait: */
    linear_sequence sequence;
    bool has_row;
    int snapshot;

    __device__ __forceinline__ char *place(int slot) const
    {
        const linear_operands &o = call.operands;
        return o.state + slot * o.state_slot + offset;
    }
};

/* Make the compiler compute x here, before the wait that follows: instructions after the wait add
 * latency. */
DEVICE void settle(int &x)
{
    asm volatile("" : "+r"(x));
}

DEVICE void settle(i64 &x)
{
    asm volatile("" : "+l"(x));
}

/* The place of key `k` of a vector in shared memory. */
template <bool VK> DEVICE int heads_position(int k)
{
    return VK ? k : k / 16 * 16 + k % 4 * 4 + k % 16 / 4;
}

/* ---- The convolution's state ----------------------------------------------------------------- */

/* A lane's four channels, of the part of the row that its warp computes. */
struct heads_channels {
    int channel; /* the first channel; < 0: none */
    four_channels from;
    uint2 inputs[3]; /* the last three of each, after the row */
    unsigned before; /* readers counted before; in lane 0 */

    __device__ __forceinline__ heads_channels(const heads_block &b, int warp, int lane) : before(0)
    {
        const decode_channels at(b.call.dims, warp, b.head, b.first, b.columns, lane);
        channel = warp < DECODE_PART_GATES && at.there > 0 ? at.channel : -1;
        settle(channel);
    }

    __device__ __forceinline__ void find_inputs(bool has_row)
    {
        const uint2 after[3] = {shift_inputs<0>(from), shift_inputs<1>(from),
                                shift_inputs<2>(from)};
#pragma unroll
        for (int i = 0; i < 3; i++)
            inputs[i] = has_row ? after[i] : from.kept[i];
    }

    __device__ __forceinline__ void store(const linear_operands &o, int slot) const
    {
        uint2 *to = (uint2 *)(o.conv + slot * o.conv_slot + channel * 6);
#pragma unroll
        for (int i = 0; i < 3 && slot != 0; i++)
            to[i] = inputs[i];
    }
};

/* The number of warps that read the channels of q or k: one block for each slice of the v heads of
 * a k head. */
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
    if (last && channels.channel >= 0) {
        channels.store(b.call.operands, b.sequence.dst);
        channels.store(b.call.operands, b.snapshot);
    }
}

/* ---- The row --------------------------------------------------------------------------------- */

/* The row's gates. KDA: each of the block's last threads computes the decay of one channel of k.
 * v's warp computes beta, except for layers without a delta rule, where beta may be dt. */
template <int MODE, bool VK> struct heads_gates {
    int channel; /* the channel whose decay the thread computes; < 0: none */
    bool has_beta;
    linear_gate decay, beta;

    __device__ __forceinline__ heads_gates(int warp)
    {
        channel = MODE == STEPS_CHANNELS      ? (int)threadIdx.x - (int)blockDim.x + HEADS_KEYS
                  : warp == DECODE_PART_GATES ? 0
                                              : -1;
        has_beta = MODE != STEPS_PLAIN && warp == DECODE_PART_V;
    }

    __device__ __forceinline__ void load(const heads_block &b)
    {
        if (channel >= 0 && b.has_row)
            decay = linear_load_gate(&b.call, b.sequence.first_row, b.head, channel);
        if (has_beta && b.has_row)
            beta = linear_load_gate(&b.call, b.sequence.first_row, b.head, 0);
    }

    __device__ __forceinline__ void put(const heads_block &b, const heads_row &to) const
    {
        const bool first = threadIdx.x % 32 == 0;
        float dt = 1;
        if (channel >= 0 && b.has_row) {
            if (MODE == STEPS_PLAIN)
                dt = linear_gate_beta(&b.call, &decay);
            const float x = expf(linear_gate_log(&b.call.dims, &decay, &dt));
            if (MODE == STEPS_CHANNELS)
                to.vectors[2 * HEADS_KEYS + heads_position<VK>(channel)] = x;
            else if (first)
                to.numbers[DECODE_DECAY] = x;
            if (MODE == STEPS_PLAIN && first)
                to.numbers[DECODE_BETA] = dt;
        }
        if (has_beta && first && b.has_row)
            to.numbers[DECODE_BETA] = linear_gate_beta(&b.call, &beta);
    }
};

/* Compute q or k. Returns the sum of its squares. */
template <bool VK>
DEVICE float put_keys(const linear_dims &d, int part, const float (&x)[4], int lane,
                      const heads_row &to)
{
    float sum = 0;
    float *keys = to.vectors + part * HEADS_KEYS;
    if (VK)
        *(float4 *)(keys + 4 * lane) = make_float4(x[0], x[1], x[2], x[3]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (!VK)
            keys[heads_position<VK>(4 * lane + i)] = x[i];
        sum += x[i] * x[i];
    }
    sum = sum_of_warp(sum);
    put_length(d, part, sum, lane, to);
    return sum;
}

/* Compute a warp's part of the row, if it has one. */
template <bool VK>
DEVICE void make_part(const heads_block &b, int warp, int lane, heads_channels *channels,
                      const heads_row &to)
{
    float x[4];
    if (warp >= DECODE_PART_GATES)
        return;
    convolve_channels(b.call.dims, channels->from, x);
    channels->find_inputs(b.has_row);
    if (warp != DECODE_PART_V)
        count_warp(b, warp, lane, put_keys<VK>(b.call.dims, warp, x, lane, to), channels);
    else if (channels->channel >= 0)
        *(float4 *)(to.v + 4 * lane) = make_float4(x[0], x[1], x[2], x[3]);
}

#endif /* LINEAR_LIKE_HEADS_ROW_CUH */
