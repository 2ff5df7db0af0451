/* SPDX-License-Identifier: Apache-2.0
 *
 * ready_rows.cuh: shared memory of a block of linear_ready_*; converts a chunk's rows to tiles
 * after the convolution, scaled by powers of two; gates.
 */
#ifndef LINEAR_LIKE_READY_ROWS_CUH
#define LINEAR_LIKE_READY_ROWS_CUH

#include "plugins/linear_like/kernels/chunk_products.cuh"

/* Shared memory of a block; q's tile is reused for v after its products. */
struct ready_memory {
    char *q, *k;
    char *staging; /* CHUNK_STAGE of each warp, to be copied to the workspace */
    char *
        system; /* [64 x 64], as a tile's panel: -A left of the diagonal's blocks, their inverses on
                 * it */
    float *q_times, *k_times, *v_times;
    float *own;   /* products of each row's own q and k, in units of their tiles */
    float *gates; /* [CHUNK_READY_HEADS][3][64], see ready_gates */

    __device__ __forceinline__ ready_memory(char *from, int warps = CHUNK_READY_THREADS / 32)
    {
        q = from;
        k = q + CHUNK_TILE;
        q_times = (float *)(k + CHUNK_TILE);
        k_times = q_times + 64;
        v_times = k_times + 64;
        own = v_times + 64;
        gates = own + 64;
        staging = (char *)(gates + CHUNK_READY_HEADS * 3 * 64);
        system = staging + warps * CHUNK_STAGE;
    }

    /* A tile of the rounding errors of rows of q or k; overwritten later. */
    __device__ __forceinline__ char *rest(void) const
    {
        return staging;
    }
};

/* Gates of a head's rows: beta; sums of log decays in units of log 2, as two numbers each, since
 * differences of large sums matter. */
struct ready_gates {
    float *beta, *sum, *rest;

    __device__ __forceinline__ ready_gates(const ready_memory &m, int number)
    {
        beta = m.gates + number * 3 * 64;
        sum = beta + 64;
        rest = sum + 64;
    }

    __device__ __forceinline__ ready_gates(float *betas, float *sums, float *rests)
        : beta(betas), sum(sums), rest(rests)
    {
    }
};

/* A chunk of a head. */
struct ready_chunk {
    linear_sequence sequence;
    int t; /* its first row in the sequence */
    int rows;
};

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Loads the input of eight adjacent channels in row `t` of the sequence, which may be before its
 * first row. */
DEVICE void load_inputs(const linear_call &call, const ready_chunk &chunk, int t, int c,
                        float (&x)[8])
{
    if (t >= 0) {
        unpack_eight(
            call.dims.dtype,
            *(const uint4 *)(call.operands.mixed +
                             (i64)(chunk.sequence.first_row + t) * call.operands.mixed_row + c * 2),
            x);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = t > -call.dims.width ? linear_input(&call, &chunk.sequence, t, c + i) : 0;
}

/* The sum over the sixteen lanes of a row. */
DEVICE float sum_of_lanes(float x)
{
#pragma unroll
    for (int step = 8; step > 0; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
}

DEVICE float largest_of_lanes(float x)
{
#pragma unroll
    for (int step = 8; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

/* Weights of eight channels from `c` on; the last tap is at the end. c < 0: none. */
DEVICE void load_taps(const linear_call &call, int c, float (&taps)[CHUNK_MAX_WIDTH][8],
                      float (&bias)[8])
{
    const linear_dims &d = call.dims;
    const char *weight = call.operands.weight + c * call.operands.weight_row;
#pragma unroll
    for (int w = 0; w < CHUNK_MAX_WIDTH; w++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            taps[w][i] = d.width == 0 && w == CHUNK_MAX_WIDTH - 1;
    if (d.width == 0 || c < 0)
        return;
    if (call.operands.bias)
#pragma unroll
        for (int i = 0; i < 8; i++)
            bias[i] = element_load(d.dtype, call.operands.bias, c + i);
    if (d.width == 4 && call.operands.weight_row == 8 && (u64)weight % 16 == 0) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float x[8];
            unpack_eight(d.dtype, ((const uint4 *)weight)[n], x);
#pragma unroll
            for (int i = 0; i < 8; i++)
                taps[i % 4][2 * n + i / 4] = x[i];
        }
        return;
    }
#pragma unroll
    for (int w = 0; w < CHUNK_MAX_WIDTH; w++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (w >= CHUNK_MAX_WIDTH - d.width)
                taps[w][i] = element_load(d.dtype, weight + i * call.operands.weight_row,
                                          w - (CHUNK_MAX_WIDTH - d.width));
}

/* Sixteen lanes have a row, eight channels each; a thread has eight rows, four warps a tile. */
struct tile_part {
    int place, begin, c;
    bool there;
    uint4 raw[8];

    __device__ __forceinline__ tile_part(const linear_call &call, const ready_chunk &chunk,
                                         int first, int dim)
    {
        place = threadIdx.x % 16, begin = threadIdx.x % CHUNK_READY_THREADS / 16 * 8;
        c = first + place * 8;
        there = place * 8 < dim;
        const i64 apart = call.operands.mixed_row;
        const char *from =
            call.operands.mixed + (i64)(chunk.sequence.first_row + chunk.t + begin) * apart + c * 2;
#pragma unroll
        for (int r = 0; r < 8; r++)
            raw[r] = there && begin + r < chunk.rows ? *(const uint4 *)(from + r * apart)
                                                     : make_uint4(0, 0, 0, 0);
    }
};

/* The offset of eight channels of a row, in a tile or in panels of values. */
template <bool PANELS> DEVICE int part_offset(int row, int place)
{
    return PANELS ? place / 2 * CHUNK_PANEL_BYTES + panel_offset(row, place % 2)
                  : tile_offset(row, place);
}

DEVICE uint4 pack_eight(const float (&x)[8], float scale)
{
    return make_uint4(pack_half(x[0] * scale, x[1] * scale), pack_half(x[2] * scale, x[3] * scale),
                      pack_half(x[4] * scale, x[5] * scale), pack_half(x[6] * scale, x[7] * scale));
}

/* Sums of eight rows over their sixteen lanes. In each step a lane keeps half of them; it ends with
 * the sum of row place / 2. */
DEVICE float sum_of_rows(float (&x)[8])
{
#pragma unroll
    for (int half = 4; half > 0; half /= 2) {
        const bool upper = threadIdx.x & 2 * half;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float sent = upper ? x[i] : x[i + half], kept = upper ? x[i + half] : x[i];
            x[i] = kept + __shfl_xor_sync(~0u, sent, 2 * half);
        }
    }
    return x[0] + __shfl_xor_sync(~0u, x[0], 1);
}

DEVICE void unpack_half(uint4 from, float (&x)[8])
{
    const u32 words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[2 * i] = half_low(words[i]), x[2 * i + 1] = half_high(words[i]);
}

/* Additional results of make_tile(). The product of a row's own q and k may cancel, and with steep
 * decays it is a common factor of the row's output, so it is computed from unrounded numbers. */
struct tile_rest {
    char *rest; /* tile that receives q's rounding errors, or has them. NULL: none */
    float *own; /* for a tile after q's: receives the products of its rows with q's; or NULL */
};

/* Keeps the rounding errors of eight channels of a row: x times `scale` was rounded to `packed`. */
DEVICE void keep_rest(const tile_rest &more, int offset, const float (&x)[8], float scale,
                      uint4 packed)
{
    *(uint4 *)(more.rest + offset) = make_uint4(pack_rest(x[0] * scale, x[1] * scale, packed.x),
                                                pack_rest(x[2] * scale, x[3] * scale, packed.y),
                                                pack_rest(x[4] * scale, x[5] * scale, packed.z),
                                                pack_rest(x[6] * scale, x[7] * scale, packed.w));
}

/* Loads eight channels of a row of a tile, plus its rounding errors if `rest`. */
DEVICE void load_eight(const char *tile, const char *rest, int offset, float (&x)[8])
{
    float more[8];
    unpack_half(*(const uint4 *)(tile + offset), x);
    if (!rest)
        return;
    unpack_half(*(const uint4 *)(rest + offset), more);
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] += more[i];
}

DEVICE float multiply_eight(const float (&x)[8], const float (&y)[8])
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum += x[i] * y[i];
    return sum;
}

/* The largest magnitudes of eight rows of 16-bit numbers, as 16-bit numbers, two per word. */
DEVICE void largest_of_rows(const uint4 (&raw)[8], u32 (&largest)[4])
{
    const u32 magnitude = 0x7fff7fff;
    u32 one[8];
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const u32 two = __vmaxu2(__vmaxu2(raw[r].x & magnitude, raw[r].y & magnitude),
                                 __vmaxu2(raw[r].z & magnitude, raw[r].w & magnitude));
        one[r] = __vmaxu2(two, two >> 16);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        largest[i] = __byte_perm(one[2 * i], one[2 * i + 1], 0x5410);
#pragma unroll
        for (int step = 8; step > 0; step /= 2)
            largest[i] = __vmaxu2(largest[i], __shfl_xor_sync(~0u, largest[i], step));
    }
}

/* make_tile() for bf16 without a convolution. */
template <bool PANELS>
static __device__ __noinline__ void copy_tile(const linear_call &call, const ready_chunk &chunk,
                                              int first, int dim, bool normalise, char *tile,
                                              float *times, const float *beta, float *beta_times)
{
    const tile_part part(call, chunk, first, dim);
    u32 largest[4];
    float sums[8] = {};
    largest_of_rows(part.raw, largest);
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const int row = part.begin + r;
        float x[8], inverse;
        unpack_eight(ELEMENT_BF16, part.raw[r], x);
        if (normalise)
#pragma unroll
            for (int i = 0; i < 8; i++)
                sums[r] += x[i] * x[i];
        const u32 bits = r % 2 ? largest[r / 2] & 0xffff0000 : largest[r / 2] << 16;
        const float scale = find_scale(bits_f32(bits), &inverse);
        if (!PANELS || part.there)
            *(uint4 *)(tile + part_offset<PANELS>(row, part.place)) = pack_eight(x, scale);
    }
    const int own = part.place / 2, row = part.begin + own;
    const u32 pair = own / 2 == 0   ? largest[0]
                     : own / 2 == 1 ? largest[1]
                     : own / 2 == 2 ? largest[2]
                                    : largest[3];
    float inverse, length = normalise ? rsqrtf(sum_of_rows(sums) + 1e-6f) : 1;
    find_scale(bits_f32(own % 2 ? pair & 0xffff0000 : pair << 16), &inverse);
    if (part.place % 2)
        return;
    times[row] = inverse * length;
    if (beta)
        beta_times[row] = inverse * length * beta[row];
}

/* Converts channels [first, first + dim) of the chunk's rows, after the convolution and normalised
 * if required, to a tile or to panels of values. Missing rows and columns are 0; missing panels are
 * not written. `times`: factors of the rows; `beta_times`: the same times beta, if given. */
template <bool PANELS>
static __device__ __noinline__ void
make_tile(const linear_call &call, const ready_chunk &chunk, int first, int dim, bool normalise,
          char *tile, float *times, const float *beta, float *beta_times, const tile_rest more)
{
    constexpr int most = CHUNK_MAX_WIDTH;
    /* Read once: the compiler must assume that stores change them. */
    const int dtype = call.dims.dtype, silu = call.dims.silu, rows = chunk.rows;
    const tile_part part(call, chunk, first, dim);
    const int place = part.place, begin = part.begin;
    const bool there = part.there;
    float taps[most][8], window[most][8] = {}, bias[8] = {};
    load_taps(call, there ? part.c : -1, taps, bias);
    if (there && begin < rows)
#pragma unroll
        for (int w = 1; w < most; w++)
            load_inputs(call, chunk, chunk.t + begin - (most - w), part.c, window[w]);
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const int row = begin + r;
        const bool here = there && row < rows;
        float x[8];
#pragma unroll
        for (int w = 0; w + 1 < most; w++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                window[w][i] = window[w + 1][i];
        unpack_eight(dtype, part.raw[r], window[most - 1]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[i] = bias[i];
#pragma unroll
            for (int w = 0; w < most; w++)
                x[i] += taps[w][i] * window[w][i];
            x[i] = here ? silu ? linear_fast_silu(x[i]) : x[i] : 0;
        }
        float largest = 0, sum = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            largest = fmaxf(largest, fabsf(x[i]));
            sum += x[i] * x[i];
        }
        const float length = normalise ? rsqrtf(sum_of_lanes(sum) + 1e-6f) : 1;
        float inverse, scale = find_scale(largest_of_lanes(largest), &inverse);
        if (place == 0) {
            times[row] = inverse * length;
            if (beta)
                beta_times[row] = inverse * length * beta[row];
        }
        const uint4 packed = pack_eight(x, scale);
        if (!PANELS || there)
            *(uint4 *)(tile + part_offset<PANELS>(row, place)) = packed;
        if (PANELS || !more.rest)
            continue;
        if (!more.own) {
            keep_rest(more, tile_offset(row, place), x, scale, packed);
            continue;
        }
        float q[8]; /* written by the same thread */
        load_eight(tile - CHUNK_TILE, more.rest, tile_offset(row, place), q);
        const float own = sum_of_lanes(multiply_eight(q, x));
        if (place == 0)
            more.own[row] = own * scale;
    }
}

template <bool PANELS>
DEVICE void load_tile(const linear_call &call, const ready_chunk &chunk, int first, int dim,
                      bool normalise, char *tile, float *times, const float *beta,
                      float *beta_times, const tile_rest &more = {NULL, NULL})
{
    if (call.dims.width > 0)
        make_tile<PANELS>(call, chunk, first, dim, normalise, tile, times, beta, beta_times, more);
    else
        copy_tile<PANELS>(call, chunk, first, dim, normalise, tile, times, beta, beta_times);
}

/* ---- Gates ----------------------------------------------------------------------------------- */

/* Loads the inputs of gates of a head's rows, two rows per lane. */
DEVICE void load_gates(const linear_call &call, const ready_chunk &chunk, int head, int lane,
                       linear_gate (&gates)[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (2 * lane + i < chunk.rows)
            gates[i] =
                linear_load_gate(&call, chunk.sequence.first_row + chunk.t + 2 * lane + i, head, 0);
}

/* A log decay in units of log 2; infinities become finite. */
DEVICE double scale_log(float log)
{
    return (log < -1e4f ? -1e4f : log) * 1.4426950408889634;
}

/* Sums of log decays of 64 rows, by a warp; a lane has two rows. `store`: write them to g. */
DEVICE void sum_logs(double first, double second, int lane, const ready_gates &g, bool store = true)
{
    double sums[2] = {first, first + second}, before = sums[1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        double other = __shfl_up_sync(~0u, before, step);
        before += lane >= step ? other : 0;
    }
    before -= sums[1];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        double sum = before + sums[i];
        if (!store)
            continue;
        g.sum[2 * lane + i] = (float)sum;
        g.rest[2 * lane + i] = (float)(sum - (double)(float)sum);
    }
}

/* Computes gates, by a warp. */
DEVICE void find_gates(const linear_call &call, const linear_gate (&gates)[2], int rows, int lane,
                       const ready_gates &g)
{
    double sums[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = 2 * lane + i;
        float beta = 0, log = 0;
        if (r < rows) {
            beta = linear_gate_beta(&call, &gates[i]);
            log = linear_gate_log(&call.dims, &gates[i], &beta);
        }
        g.beta[r] = beta;
        sums[i] = scale_log(log);
    }
    sum_logs(sums[0], sums[1], lane, g);
}

#endif /* LINEAR_LIKE_READY_ROWS_CUH */
