/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.cu: kernels by rows and channels: outputs of a short convolution, and the final work after
 * all rows: states of the convolution, outputs of padding.
 */
#include "plugins/common/cuda/work.cuh"
#include "plugins/linear_like/kernels/chunk_tile.cuh"

/* ---- A convolution of any type --------------------------------------------------------------- */

/* Convolves a channel of rows [row, end) of the batch, across sequences. */
DEVICE void convolve_channel(const linear_call &call, int row, int end, int c)
{
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    const int real = linear_num_real(&call.batch), head = c / d.v_dim, element = c % d.v_dim;
    const float bias = o.bias ? element_load(d.dtype, o.bias, c) : 0;
    float taps[LINEAR_MAX_WIDTH], window[LINEAR_MAX_WIDTH];
    linear_load_taps(&call, c, taps);
    for (int s = work_find_row(call.batch.q_indptr, real, row); s >= 0 && s < real && row < end;
         s++) {
        const linear_sequence sequence = linear_find_sequence(&call.batch, s);
        const int last = int_min(end, sequence.first_row + sequence.num_rows);
#pragma unroll
        for (int w = 1; w < LINEAR_MAX_WIDTH; w++) {
            const int back = LINEAR_MAX_WIDTH - w;
            window[w] = back < d.width && row < last
                            ? linear_input(&call, &sequence, row - sequence.first_row - back, c)
                            : 0;
        }
        for (; row < last; row++) {
            float sum = bias;
#pragma unroll
            for (int w = 0; w + 1 < LINEAR_MAX_WIDTH; w++)
                window[w] = window[w + 1];
            window[LINEAR_MAX_WIDTH - 1] =
                linear_input(&call, &sequence, row - sequence.first_row, c);
#pragma unroll
            for (int w = 0; w < LINEAR_MAX_WIDTH; w++)
                sum += taps[w] * window[w];
            sum = d.silu ? linear_silu(sum) : sum;
            if (o.z)
                sum *= linear_silu(
                    element_load(d.dtype, o.z + row * o.z_row + head * o.z_head, element));
            element_store(d.out_dtype, o.out + row * o.out_row + head * o.out_head, element, sum);
        }
    }
}

/* Blocks: pieces of `rows` rows, times blocks of channels. */
extern "C" __global__ void __launch_bounds__(CONVOLVE_THREADS)
    linear_convolve(const __grid_constant__ linear_call call, int rows)
{
    const int blocks = (call.dims.channels + CONVOLVE_THREADS - 1) / CONVOLVE_THREADS;
    const int c = blockIdx.x % blocks * CONVOLVE_THREADS + threadIdx.x;
    int first, pad, end;
    linear_find_rows(&call.batch, &first, &pad, &end);
    const int row = first + (int)(blockIdx.x / blocks) * rows;
    if (c < call.dims.channels && row < pad)
        convolve_channel(call, row, int_min(row + rows, pad), c);
}

/* ---- By vectors ------------------------------------------------------------------------------ */

/* 16-bit elements, at most four taps. A thread has eight channels: adjacent ones, or two groups of
 * four. */
enum { TAPS = 4, NUMBER = CONVOLVE_NUMBER, AHEAD = CONVOLVE_AHEAD };

template <bool SPLIT> struct convolve_channels {
    int first, second; /* of four each */

    __device__ __forceinline__ int at(int i) const
    {
        return SPLIT && i >= NUMBER / 2 ? second + i - NUMBER / 2 : first + i;
    }

    /* Loads a thread's channels of a row of 16-bit elements. */
    __device__ __forceinline__ uint4 load(const char *row) const
    {
        if (!SPLIT)
            return *(const uint4 *)(row + first * 2);
        const uint2 x = *(const uint2 *)(row + first * 2), y = *(const uint2 *)(row + second * 2);
        return make_uint4(x.x, x.y, y.x, y.y);
    }
};

template <bool IS_F16> DEVICE void unpack(uint4 from, float (&x)[NUMBER])
{
    const u32 words[NUMBER / 2] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < NUMBER / 2; i++) {
        x[2 * i] = IS_F16 ? half_low(words[i]) : bits_f32(words[i] << 16);
        x[2 * i + 1] = IS_F16 ? half_high(words[i]) : bits_f32(words[i] & 0xffff0000);
    }
}

template <bool IS_F16> DEVICE uint4 pack(const float (&x)[NUMBER])
{
    return make_uint4(pack_pair<IS_F16>(x[0], x[1]), pack_pair<IS_F16>(x[2], x[3]),
                      pack_pair<IS_F16>(x[4], x[5]), pack_pair<IS_F16>(x[6], x[7]));
}

/* For results of 16 bits: the instructions' error, 2^-21, is far below theirs. */
DEVICE float fast_silu(float x)
{
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1 + exp2_fast(x * -1.44269504f)));
    return x * inverse;
}

/* Weights of a thread's channels; the last tap is at the end, missing taps are 0. */
struct convolve_weights {
    float taps[TAPS][NUMBER], bias[NUMBER];
};

/* `there`: the thread has channels; otherwise all weights are 0. */
template <bool IS_F16, bool SPLIT>
DEVICE void load_weights(const linear_call &call, const convolve_channels<SPLIT> &c, bool there,
                         convolve_weights &to)
{
    const linear_dims &d = call.dims;
    const linear_operands &o = call.operands;
    const int dtype = IS_F16 ? ELEMENT_F16 : ELEMENT_BF16;
#pragma unroll
    for (int i = 0; i < NUMBER; i++) {
        to.bias[i] = there && o.bias ? element_load(dtype, o.bias, c.at(i)) : 0;
#pragma unroll
        for (int w = 0; w < TAPS; w++)
            to.taps[w][i] = 0;
    }
    if (there && d.width == TAPS && o.weight_row == 2 * TAPS && (u64)o.weight % 16 == 0) {
#pragma unroll
        for (int n = 0; n < NUMBER; n += 2) {
            float x[NUMBER];
            unpack<IS_F16>(*(const uint4 *)(o.weight + c.at(n) * (2 * TAPS)), x);
#pragma unroll
            for (int i = 0; i < NUMBER; i++)
                to.taps[i % TAPS][n + i / TAPS] = x[i];
        }
        return;
    }
#pragma unroll
    for (int w = 0; w < TAPS; w++)
#pragma unroll
        for (int i = 0; i < NUMBER; i++)
            if (there && w >= TAPS - d.width)
                to.taps[w][i] =
                    element_load(dtype, o.weight + c.at(i) * o.weight_row, w - (TAPS - d.width));
}

/* Loads the inputs before row `t` of a sequence into the places where convolve_run() reads them. */
template <bool IS_F16, bool SPLIT>
DEVICE void load_before(const linear_call &call, const linear_sequence &sequence, int t,
                        const convolve_channels<SPLIT> &c, float (&window)[TAPS][NUMBER])
{
    const linear_operands &o = call.operands;
#pragma unroll
    for (int w = 1; w < TAPS; w++) {
        const int at = t - (TAPS - w);
        if (at >= 0)
            unpack<IS_F16>(c.load(o.mixed + (i64)(sequence.first_row + at) * o.mixed_row),
                           window[w]);
        else
#pragma unroll
            for (int i = 0; i < NUMBER; i++)
                window[w][i] =
                    at > -call.dims.width ? linear_input(&call, &sequence, at, c.at(i)) : 0;
    }
}

/* Convolves `rows` > 0 rows of a sequence from `t` on. give(row, x) gets the channels of each row,
 * before SiLU; 0 if the thread is not `there`. The inputs of AHEAD rows and all that comes before
 * them are loaded together; then each arrival triggers the load of one more row. PAIRS: after a
 * last row of even number, give() gets one more row of undefined contents. */
template <bool IS_F16, bool PAIRS = false, bool SPLIT, typename GIVE>
DEVICE void convolve_run(const linear_call &call, const linear_sequence &sequence, int t, int rows,
                         const convolve_channels<SPLIT> &c, bool there, GIVE give)
{
    const i64 apart = call.operands.mixed_row;
    const char *from = call.operands.mixed + (i64)(sequence.first_row + t) * apart;
    float window[TAPS][NUMBER]; /* row r is in window[r % TAPS] */
    convolve_weights weights;
    uint4 ahead[AHEAD] = {};
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (i < rows)
            ahead[i] = c.load(from + i * apart);
    load_weights<IS_F16>(call, c, there, weights);
    load_before<IS_F16>(call, sequence, t, c, window);
    from += AHEAD * apart;
#pragma unroll 1
    for (int first = 0; first < rows; first += AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            float x[NUMBER];
            if (!(PAIRS && i % 2) && first + i >= rows)
                return;
            unpack<IS_F16>(ahead[i], window[i % TAPS]);
            if (first + i + AHEAD < rows)
                ahead[i] = c.load(from);
            from += apart;
#pragma unroll
            for (int n = 0; n < NUMBER; n++) {
                x[n] = weights.bias[n];
#pragma unroll
                for (int w = 0; w < TAPS; w++)
                    x[n] += weights.taps[w][n] * window[(i + 1 + w) % TAPS][n];
            }
            give(first + i, x);
        }
    }
}

/* ---- A convolution alone --------------------------------------------------------------------- */

/* Convolves rows [row, end) of the batch, across sequences. */
template <bool IS_F16, bool GATED>
DEVICE void convolve_rows(const linear_call &call, int row, int end, int c)
{
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    const int real = linear_num_real(&call.batch), head = c / d.v_dim, element = c % d.v_dim;
    const convolve_channels<false> channels = {c, 0};
    const bool smooth = d.silu;
    for (int s = work_find_row(call.batch.q_indptr, real, row); s >= 0 && s < real && row < end;
         s++) {
        const linear_sequence sequence = linear_find_sequence(&call.batch, s);
        const int count = int_min(end, sequence.first_row + sequence.num_rows) - row;
        char *out = o.out + row * o.out_row + head * o.out_head + element * 2;
        const char *z = o.z + row * o.z_row + head * o.z_head + element * 2;
        if (count <= 0)
            continue;
        convolve_run<IS_F16>(call, sequence, row - sequence.first_row, count, channels, true,
                             [&](int r, float(&x)[NUMBER]) {
                                 float gate[NUMBER];
                                 if (GATED)
                                     unpack<IS_F16>(*(const uint4 *)(z + r * o.z_row), gate);
                                 if (smooth)
#pragma unroll
                                     for (int i = 0; i < NUMBER; i++)
                                         x[i] = fast_silu(x[i]);
#pragma unroll
                                 for (int i = 0; GATED && i < NUMBER; i++)
                                     x[i] *= fast_silu(gate[i]);
                                 *(uint4 *)(out + r * o.out_row) = pack<IS_F16>(x);
                             });
        row += count;
    }
}

/* Blocks as in linear_convolve. */
template <bool IS_F16> DEVICE void convolve_block(const linear_call &call, int rows)
{
    const int threads = call.dims.channels / NUMBER;
    const int blocks = (threads + CONVOLVE_THREADS - 1) / CONVOLVE_THREADS;
    const int thread = blockIdx.x % blocks * CONVOLVE_THREADS + threadIdx.x;
    int first, pad, end;
    linear_find_rows(&call.batch, &first, &pad, &end);
    const int row = first + (int)(blockIdx.x / blocks) * rows;
    if (thread >= threads || row >= pad)
        return;
    if (call.operands.z)
        convolve_rows<IS_F16, true>(call, row, int_min(row + rows, pad), thread * NUMBER);
    else
        convolve_rows<IS_F16, false>(call, row, int_min(row + rows, pad), thread * NUMBER);
}

/* One 16-bit type for all operands, whole and aligned vectors of channels. */
extern "C" __global__ void __launch_bounds__(CONVOLVE_THREADS, CONVOLVE_BLOCKS)
    linear_convolve_bf16(const __grid_constant__ linear_call call, int rows)
{
    convolve_block<false>(call, rows);
}

extern "C" __global__ void __launch_bounds__(CONVOLVE_THREADS, CONVOLVE_BLOCKS)
    linear_convolve_f16(const __grid_constant__ linear_call call, int rows)
{
    convolve_block<true>(call, rows);
}

/* ---- Before the recurrence ------------------------------------------------------------------- */

/* A block's part of a window: rows [begin, begin + here) of a chunk of `rows` rows, and the
 * thread's number among those of a row. */
struct convolve_part {
    linear_sequence sequence;
    int index, begin, t, here, thread;

    /* false: there is none. */
    __device__ __forceinline__ bool find(const linear_call &call, int first, int rows, int threads)
    {
        const int pieces = CHUNK_ROWS / rows;
        const int blocks = (threads + CONVOLVE_THREADS - 1) / CONVOLVE_THREADS;
        thread = blockIdx.x % blocks * CONVOLVE_THREADS + threadIdx.x;
        index = blockIdx.x / blocks / pieces, begin = blockIdx.x / blocks % pieces * rows;
        if (first + index >= call.chunks.most || thread >= threads)
            return false;
        const linear_chunk chunk = call.chunks.list[first + index]; /* loaded together with the
                                                                     * count */
        if (first + index >= call.chunks.count[0] + call.chunks.count[1])
            return false;
        sequence = linear_find_sequence(&call.batch, chunk.sequence);
        t = chunk.first + begin;
        here = int_max(0, int_min(rows, chunk.rows - begin));
        return true;
    }
};

/* Convolves rows of all chunks of a window to bf16; rows beyond a chunk are 0. Blocks: chunks,
 * times pieces of `rows` rows, times blocks of a row's threads. */
extern "C" __global__ void __launch_bounds__(CONVOLVE_THREADS, CONVOLVE_BLOCKS)
    linear_convolve_chunks(const __grid_constant__ linear_call call, int first, int rows)
{
    const linear_dims &d = call.dims;
    const bool smooth = d.silu;
    convolve_part part;
    if (!part.find(call, first, rows, CONVOLVE_ROW_THREADS(d)))
        return;
    const convolve_channels<false> channels = {part.thread * NUMBER, 0};
    const i64 apart = (i64)d.channels * 2;
    char *to =
        call.chunks.rows + ((i64)part.index * CHUNK_ROWS + part.begin) * apart + channels.first * 2;
    if (part.here > 0)
        convolve_run<false>(call, part.sequence, part.t, part.here, channels, true,
                            [&](int r, float(&x)[NUMBER]) {
                                if (smooth)
#pragma unroll
                                    for (int i = 0; i < NUMBER; i++)
                                        x[i] = fast_silu(x[i]);
                                *(uint4 *)(to + r * apart) = pack<false>(x);
                            });
    for (int r = part.here; r < rows; r++)
        *(uint4 *)(to + r * apart) = make_uint4(0, 0, 0, 0);
}

/* For normal numbers only. */
DEVICE float rsqrt_fast(float x)
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* For two rows: sums over a lane's channels of q and k, q squared, k squared, their product. */
struct key_sums {
    float q[2], k[2], both[2];
};

/* Sums over the warp's lanes, each of which keeps some of the sums in each step. `q` and `k` become
 * the factors that normalise the rows; `both` the products of the rows' own q and k, of row 0 in
 * lane 4, of row 1 in lane 20. */
DEVICE void sum_keys(key_sums &x)
{
    const bool first = threadIdx.x & 16, second = threadIdx.x & 8, third = threadIdx.x & 4;
    float length[2], both = (first ? x.both[1] : x.both[0]) +
                            __shfl_xor_sync(~0u, first ? x.both[0] : x.both[1], 16);
#pragma unroll
    for (int i = 0; i < 2; i++)
        length[i] = (first ? x.k[i] : x.q[i]) + __shfl_xor_sync(~0u, first ? x.q[i] : x.k[i], 16);
    float sum =
        (second ? length[1] : length[0]) + __shfl_xor_sync(~0u, second ? length[0] : length[1], 8);
    both += __shfl_xor_sync(~0u, both, 8);
    sum = (third ? both : sum) + __shfl_xor_sync(~0u, third ? sum : both, 4);
#pragma unroll
    for (int step = 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(~0u, sum, step);
    const float inverse = rsqrt_fast(sum + 1e-6f);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        x.q[i] = __shfl_sync(~0u, inverse, 8 * i);
        x.k[i] = __shfl_sync(~0u, inverse, 8 * i + 16);
    }
    x.both[0] = x.both[1] = sum;
}

/* Stores four channels of a row of q and of k, each times its factor, in each of a head's tiles. */
DEVICE void store_keys(char *to, int tiles, i64 apart, const float (&x)[NUMBER], float q, float k)
{
    const uint2 first = make_uint2(pack_half(x[0] * q, x[1] * q), pack_half(x[2] * q, x[3] * q));
    const uint2 second = make_uint2(pack_half(x[4] * k, x[5] * k), pack_half(x[6] * k, x[7] * k));
    *(uint2 *)to = first;
    *(uint2 *)(to + CHUNK_TILE) = second;
#pragma unroll 1
    for (int n = 1; n < tiles; n++) {
        to += apart;
        *(uint2 *)to = first;
        *(uint2 *)(to + CHUNK_TILE) = second;
    }
}

/* Convolves rows of q and k of a head to tiles of normalised rows, four channels of each per lane.
 * Products of a row's own q and k are from unrounded numbers. KDA's v heads have separate tiles, to
 * which their decays are applied later. */
DEVICE void convolve_keys(const linear_call &call, const convolve_part &part, int rows)
{
    const linear_dims &d = call.dims;
    const int head = part.thread / CONVOLVE_HEAD_THREADS;
    const int lane = part.thread % CONVOLVE_HEAD_THREADS, at = lane * (NUMBER / 2);
    const bool there = at < d.k_dim, smooth = d.silu;
    const int c = head * d.k_dim + (there ? at : 0);
    const convolve_channels<true> channels = {d.first[0] + c, d.first[1] + c};
    const int tiles = d.family == LINEAR_FAMILY_KDA ? d.ratio : 1;
    const i64 apart = d.family == LINEAR_FAMILY_KDA ? CHUNK_RULE_KEYS_BYTES(CHUNK_CHANNELS_TILES)
                                                    : CHUNK_KEYS_BYTES;
    char *row = call.chunks.keys + ((i64)part.index * d.k_heads + head) * tiles * apart +
                tile_offset(part.begin, lane / 16 * 8) + lane % 2 * 8;
    float *own = row_numbers(call, part.index, head) + part.begin;
    /* The place of the lane's channels in row `r`; the part begins at a multiple of eight rows. */
    const auto place = [&](int r) { return row + r * 128 + ((lane / 2 ^ r) & 7) * 16; };
    const int here = part.here;
    float even[NUMBER];
    if (here > 0)
        convolve_run<false, true>(
            call, part.sequence, part.t, here, channels, there, [&](int r, float(&x)[NUMBER]) {
                key_sums sums = {};
#pragma unroll
                for (int i = 0; smooth && i < NUMBER; i++)
                    x[i] = fast_silu(x[i]);
                if (r % 2 == 0) {
#pragma unroll
                    for (int i = 0; i < NUMBER; i++)
                        even[i] = x[i];
                    return;
                }
#pragma unroll
                for (int i = 0; i < NUMBER / 2; i++) {
                    const float *q[2] = {even + i, x + i};
#pragma unroll
                    for (int n = 0; n < 2; n++) {
                        sums.q[n] += q[n][0] * q[n][0];
                        sums.k[n] += q[n][NUMBER / 2] * q[n][NUMBER / 2];
                        sums.both[n] += q[n][0] * q[n][NUMBER / 2];
                    }
                }
                sum_keys(sums);
                store_keys(place(r - 1), tiles, apart, even, sums.q[0], sums.k[0]);
                if (r < here)
                    store_keys(place(r), tiles, apart, x, sums.q[1], sums.k[1]);
                const int n = lane / 16;
                if (lane % 16 == 4 && r - 1 + n < here)
                    own[r - 1 + n] =
                        sums.both[0] * (n ? sums.q[1] * sums.k[1] : sums.q[0] * sums.k[0]);
            });
    const float none[NUMBER] = {};
    for (int r = here; r < rows; r++) {
        store_keys(place(r), tiles, apart, none, 0, 0);
        if (lane == 0)
            own[r] = 0;
    }
}

/* Convolves rows of v of a head, scaled by a power of two each. */
DEVICE void convolve_values(const linear_call &call, const convolve_part &part, int rows)
{
    constexpr int lanes = CONVOLVE_VALUE_THREADS;
    const linear_dims &d = call.dims;
    const int thread = part.thread - d.k_heads * CONVOLVE_HEAD_THREADS;
    const int head = thread / lanes, lane = thread % lanes, at = lane * NUMBER;
    const bool there = head < d.v_heads && at < d.v_dim, smooth = d.silu;
    const bool counts = head < d.v_heads && lane == 0;
    const convolve_channels<false> channels = {d.first[2] + (there ? head * d.v_dim + at : 0), 0};
    const i64 apart = (i64)d.v_heads * d.v_dim * 2;
    char *to = call.chunks.rows + ((i64)part.index * CHUNK_ROWS + part.begin) * apart +
               (channels.first - d.first[2]) * 2;
    float *times = row_numbers(call, part.index, d.k_heads + head) + part.begin;
    if (part.here > 0)
        convolve_run<false>(call, part.sequence, part.t, part.here, channels, there,
                            [&](int, float(&x)[NUMBER]) {
                                float largest = 0, inverse;
#pragma unroll
                                for (int i = 0; i < NUMBER; i++) {
                                    x[i] = smooth ? fast_silu(x[i]) : x[i];
                                    largest = fmaxf(largest, fabsf(x[i]));
                                }
#pragma unroll
                                for (int step = lanes / 2; step > 0; step /= 2)
                                    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
                                const float scale = find_scale(largest, &inverse);
#pragma unroll
                                for (int i = 0; i < NUMBER; i++)
                                    x[i] *= scale;
                                if (there)
                                    *(uint4 *)to = pack<true>(x);
                                if (counts)
                                    *times = inverse;
                                to += apart, times++;
                            });
    for (int r = part.here; r < rows; r++, to += apart, times++) {
        if (there)
            *(uint4 *)to = make_uint4(0, 0, 0, 0);
        if (counts)
            *times = 0;
    }
}

/* The same for tiles of q and k and rows of v, fp16. */
extern "C" __global__ void __launch_bounds__(CONVOLVE_THREADS, CONVOLVE_BLOCKS)
    linear_convolve_tiles(const __grid_constant__ linear_call call, int first, int rows)
{
    const linear_dims &d = call.dims;
    convolve_part part;
    if (!part.find(call, first, rows, CONVOLVE_TILE_THREADS(d)))
        return;
    if (part.thread < d.k_heads * CONVOLVE_HEAD_THREADS)
        convolve_keys(call, part, rows);
    else
        convolve_values(call, part, rows);
}

/* ---- When all rows are done ------------------------------------------------------------------ */

/* Writes the last inputs before row `end` of a sequence to a slot, which may be the slot that is
 * read. */
DEVICE void keep_inputs(const linear_call &call, const linear_sequence &sequence, int end, int slot,
                        int c)
{
    const linear_operands &o = call.operands;
    const int taps = call.dims.width - 1;
    float kept[LINEAR_MAX_WIDTH - 1];
    if (slot == 0)
        return;
        /* Reads everything before writing, as both may be the same slot. */
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

/* Blocks: sequences, times blocks of channels; then `pad_blocks` that clear padding. */
extern "C" __global__ void __launch_bounds__(FINISH_THREADS)
    linear_finish(const __grid_constant__ linear_call call, int pad_blocks)
{
    const int per_seq =
        call.dims.width > 1 ? (call.dims.channels + FINISH_THREADS - 1) / FINISH_THREADS : 0;
    const int blocks = gridDim.x - pad_blocks;
    const int block = blockIdx.x;
    pdl_wait();
    if (block >= blocks) {
        linear_clear_padding(&call, block - blocks, pad_blocks);
        return;
    }
    const int s = block / per_seq, c = block % per_seq * FINISH_THREADS + threadIdx.x;
    if (s < linear_num_real(&call.batch) && c < call.dims.channels)
        finish_sequence(call, s, c);
}
