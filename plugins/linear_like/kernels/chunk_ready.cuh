/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk_ready.cuh: what chunk_states.cuh needs of each chunk, all chunks and heads at once:
 * convolution, lengths and gates of its rows, products of queries and keys, and for a delta rule
 *
 *   u = (I + A)^-1 beta v,  w = (I + A)^-1 beta e^g k
 *   A = strict lower (beta_i e^(g_i - g_j) k_i . k_j)
 *
 * with g the sums of log decays from the chunk's first row on. Only differences g_i - g_j, i >= j,
 * are exponentiated. The system is solved by blocks of 16 rows, each warp for columns of its own.
 * A row's product of its own q and k is no part of the products: it is made of what fp16 has not
 * rounded, as it may cancel where there is little else.
 */
#ifndef LINEAR_LIKE_CHUNK_READY_CUH
#define LINEAR_LIKE_CHUNK_READY_CUH

#include "plugins/linear_like/kernels/chunk_states.cuh"

/* Shared memory of a block; q's tile is v's when its products have been made. */
struct ready_memory {
    char *q, *k;
    char *staging; /* CHUNK_STAGE of each warp, on its way to the workspace */
    char *
        system; /* [64 x 64], as a tile's panel: -A left of the diagonal's blocks, their inverses */
    float *q_times, *k_times, *v_times;
    float *own; /* products of rows of q and k with the same number, in the units of their tiles */
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

    /* A tile of what rows of q or k have lost when they were rounded, until others write there. */
    __device__ __forceinline__ char *rest(void) const
    {
        return staging;
    }
};

/* Gates of a head's rows: beta; sums of log decays in units of log 2, as two numbers, since
 * differences of large ones count. */
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
    int t; /* its first row within the sequence */
    int rows;
};

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Eight neighbouring channels' input of row `t` of the sequence; before its first row too. */
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

/* Sums over the sixteen lanes that have a row. */
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

/* Weights of eight channels from `c` on; the last tap is at the end. c < 0: there are none. */
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

/* Sixteen lanes have a row, eight channels each; a thread has eight rows. Four warps have a tile. */
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

/* Where eight channels of a row go: of a tile, or of panels of values. */
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

/* Sums of eight rows over their sixteen lanes: each lane keeps half of them at a time, and is left
 * with that of row place / 2. */
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

/* What make_tile() does besides. A row's product with its own key may cancel, and where decays are
 * steep it is a common factor of all that the row gives: it is to be that of what has not been
 * rounded. */
struct tile_rest {
    char *rest; /* tile that gets what rounding leaves of q; or that has it. NULL: none */
    float *own; /* of a tile that follows q's: products of its rows with these go here; or NULL */
};

/* Eight channels of a row, which are x times `scale`, rounded to `packed`. */
DEVICE void keep_rest(const tile_rest &more, int offset, const float (&x)[8], float scale,
                      uint4 packed)
{
    *(uint4 *)(more.rest + offset) = make_uint4(pack_rest(x[0] * scale, x[1] * scale, packed.x),
                                                pack_rest(x[2] * scale, x[3] * scale, packed.y),
                                                pack_rest(x[4] * scale, x[5] * scale, packed.z),
                                                pack_rest(x[6] * scale, x[7] * scale, packed.w));
}

/* Eight channels of a row of a tile and, if `rest`, of what the row has lost. */
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

/* The largest magnitudes of eight rows of 16-bit numbers, as such numbers, two a word. */
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

/* make_tile() of bf16 without a convolution. */
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

/* Channels [first, first + dim) of the chunk's rows after the convolution, normalised if asked for,
 * as a tile or as panels of values; rows and columns that there are not are 0, or panels that are
 * not written. `times`: what rows are to be multiplied by; `beta_times` the same times beta, if that
 * is given. */
template <bool PANELS>
static __device__ __noinline__ void
make_tile(const linear_call &call, const ready_chunk &chunk, int first, int dim, bool normalise,
          char *tile, float *times, const float *beta, float *beta_times, const tile_rest more)
{
    constexpr int most = CHUNK_MAX_WIDTH;
    /* Read once: for all that the compiler knows, what is stored may change them. */
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
            x[i] = here ? silu ? fast_silu(x[i]) : x[i] : 0;
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
        float q[8]; /* the same thread has made it */
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

/* What gates of a head's rows are computed from: two rows a lane. */
DEVICE void load_gates(const linear_call &call, const ready_chunk &chunk, int head, int lane,
                       linear_gate (&gates)[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (2 * lane + i < chunk.rows)
            gates[i] =
                linear_load_gate(&call, chunk.sequence.first_row + chunk.t + 2 * lane + i, head, 0);
}

/* A warp. */
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
        sums[i] = (log < -1e4f ? -1e4f : log) * 1.4426950408889634; /* infinities, too */
    }
    sums[1] += sums[0];
    double before = sums[1];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        double other = __shfl_up_sync(~0u, before, step);
        before += lane >= step ? other : 0;
    }
    before -= sums[1];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        double sum = before + sums[i];
        g.sum[2 * lane + i] = (float)sum;
        g.rest[2 * lane + i] = (float)(sum - (double)(float)sum);
    }
}

/* ---- Products -------------------------------------------------------------------------------- */

/* Rows [16 warp, + 16) of a tile times those of another: 16 x 64, fp32. */
DEVICE void multiply_tiles(const char *a, const char *b, int warp, int lane, float (&sums)[8][4])
{
    const unsigned left = shared_address(a), right = shared_address(b);
    const int row = 16 * warp + lane % 16;
    const int b_row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
#pragma unroll
    for (int n = 0; n < 8; n++)
        sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
#pragma unroll
    for (int step = 0; step < 8; step++) {
        u32 x[4];
        load_matrices(left + tile_offset(row, 2 * step + lane / 16), x);
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            u32 y[4];
            if (pair > warp) /* above the diagonal */
                continue;
            load_matrices(right + tile_offset(b_row, 2 * step + half) + pair * 2048, y);
            multiply(sums[2 * pair], x, y[0], y[1]);
            multiply(sums[2 * pair + 1], x, y[2], y[3]);
        }
    }
}

/* Rows' products with their own keys, of rows that have been rounded, by those that have not. */
DEVICE void replace_own(const float *own, int warp, int lane, float (&sums)[8][4])
{
    const int i = 16 * warp + lane / 4;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (i + e / 2 * 8 == 8 * n + lane % 4 * 2 + e % 2)
                sums[n][e] = own[i + e / 2 * 8];
}

/* Sixteen rows of 64 columns, which lie in a tile one after the other, from the warp's staging. */
DEVICE void copy_staged(const char *staging, char *to, int lane)
{
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++)
        ((uint4 *)to)[32 * i + lane] = ((const uint4 *)staging)[32 * i + lane];
    __syncwarp();
}

/* Write 16 rows of 64 columns, with a power of two for each row, and what it is to be multiplied by,
 * times `more`. */
DEVICE void write_rows(const float (&x)[32], char *staging, char *to, float *numbers,
                       const float (&more)[2], int warp, int lane)
{
    left_operand<8> y;
    float scale[2];
    make_left(x, y, scale);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = lane / 4 + 8 * i;
        if (lane % 4 == 0)
            numbers[16 * warp + row] = y.times[i] * more[i];
#pragma unroll
        for (int n = 0; n < 8; n++)
            *(u32 *)(staging + tile_offset(row, n) + lane % 4 * 4) = y.at[n / 2][n % 2 * 2 + i];
    }
    copy_staged(staging, to + warp * CHUNK_STAGE, lane);
}

/* Products of a warp's rows with those on and above the diagonal's block, decayed and multiplied by
 * `times` of the columns; what lies on and above the diagonal is 0. Left of the diagonal's block
 * decays are divided up at its first row. */
DEVICE void decay_products(const float (&from)[8][4], const ready_gates &g, const float *times,
                           int warp, int lane, float (&to)[32])
{
    const int first = 16 * warp, i = first + lane / 4;
    const float sum[2] = {g.sum[i], g.sum[i + 8]}, rest[2] = {g.rest[i], g.rest[i + 8]};
    const float edge = g.sum[first], edge_rest = g.rest[first];
    const float below[2] = {exp2_fast((sum[0] - edge) + (rest[0] - edge_rest)),
                            exp2_fast((sum[1] - edge) + (rest[1] - edge_rest))};
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const int j = 8 * n + lane % 4 * 2;
        if (n >= 2 * warp + 2) {
            to[4 * n] = to[4 * n + 1] = to[4 * n + 2] = to[4 * n + 3] = 0;
            continue;
        }
        const float2 of = *(const float2 *)(g.sum + j), more = *(const float2 *)(g.rest + j);
        const float2 by = *(const float2 *)(times + j);
        if (n < 2 * warp) {
            const float x = by.x * exp2_fast((edge - of.x) + (edge_rest - more.x));
            const float y = by.y * exp2_fast((edge - of.y) + (edge_rest - more.y));
#pragma unroll
            for (int e = 0; e < 4; e++)
                to[4 * n + e] = from[n][e] * (below[e / 2] * (e % 2 ? y : x));
            continue;
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float difference =
                (sum[e / 2] - (e % 2 ? of.y : of.x)) + (rest[e / 2] - (e % 2 ? more.y : more.x));
            const bool there = j + e % 2 < i + e / 2 * 8;
            to[4 * n + e] =
                there ? from[n][e] * ((e % 2 ? by.y : by.x) * exp2_fast(difference)) : 0;
        }
    }
}

/* Numbers of the rows, and what is left of a state at the end of the chunk. */
DEVICE void write_numbers(const linear_dims &d, const ready_memory &m, const ready_gates &g,
                          float *numbers)
{
    const int r = threadIdx.x;
    numbers[NUMBERS_DECAY + r] = exp2f(g.sum[63] + g.rest[63]);
    if (r >= 64)
        return;
    numbers[NUMBERS_Q + r] = exp2f(g.sum[r] + g.rest[r]) * m.q_times[r] * d.sm_scale;
    numbers[NUMBERS_K + r] =
        exp2f((g.sum[63] - g.sum[r]) + (g.rest[63] - g.rest[r])) * m.k_times[r];
}

/* Decayed products of queries and keys; those on the diagonal go among the numbers, for a rule that
 * is no delta rule times beta. They may be all that a row has, and are not rounded. */
template <bool DELTA>
DEVICE void write_products(const linear_dims &d, const float (&qk)[8][4], const ready_memory &m,
                           const ready_gates &g, char *to, float *numbers, int warp, int lane)
{
    float x[32];
    const int i = 16 * warp + lane / 4;
    const float more[2] = {m.q_times[i] * d.sm_scale, m.q_times[i + 8] * d.sm_scale};
    decay_products(qk, g, m.k_times, warp, lane, x);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = i + e / 2 * 8, j = 8 * n + lane % 4 * 2 + e % 2;
            if (row == j)
                numbers[NUMBERS_OWN(DELTA) + row] =
                    qk[n][e] * (m.k_times[j] * more[e / 2] * (DELTA ? 1 : g.beta[j]));
        }
    write_rows(x, m.staging + warp * CHUNK_STAGE, to, numbers + NUMBERS_P, more, warp, lane);
}

/* Parts of what is made of a chunk for a v head. */
struct ready_values {
    float *numbers;
    char *products, *w, *u; /* `w`: the inverse, if that is what there is */

    __device__ __forceinline__ ready_values(const linear_call &call, int index, int head, int rule)
    {
        char *to = call.chunks.values + ((i64)index * call.dims.v_heads + head) *
                                            CHUNK_VALUES_BYTES(call.dims.v_dim / CHUNK_PANEL, rule);
        numbers = (float *)to;
        products = to + CHUNK_NUMBERS;
        w = products + CHUNK_PRODUCTS;
        u = w + (rule == CHUNK_SOLVED ? CHUNK_TILE : 0);
    }
};

/* ---- (I + A) x = b --------------------------------------------------------------------------- */

/* Bytes to row and column of the system. */
DEVICE int system_offset(int row, int column)
{
    return tile_offset(row, column / 8) + column % 8 * 2;
}

/* A block of 16 x 16 on the diagonal, rows of 16 floats at `block`, is inverted by substitution, a
 * column a lane. */
DEVICE void invert_block(const ready_memory &m, const float *block, int warp, int lane)
{
    const int j = lane % 16, first = 16 * warp;
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float sums[4] = {i == j ? 1.0f : 0, 0, 0, 0};
#pragma unroll
        for (int l = 0; l < i; l += 4) {
            const float4 a = *(const float4 *)(block + i * 16 + l);
            const float row[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (l + e < i)
                    sums[e] -= row[e] * x[l + e];
        }
        x[i] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    }
#pragma unroll
    for (int i = 0; i < 16; i += 2) { /* half of the warp has even rows, half odd ones */
        const float own = lane < 16 ? x[i] : x[i + 1];
        *(u16 *)(m.system + system_offset(first + i + lane / 16, first + j)) =
            (u16)pack_half(own, own);
    }
}

/* A's rows of a warp, whose elements are x times `more` of their row. */
DEVICE void write_system_rows(const float (&x)[32], const float (&more)[2], const ready_memory &m,
                              int warp, int lane)
{
    float *block = (float *)(m.staging + warp * CHUNK_STAGE);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int i = lane / 4 + 8 * e, j = lane % 4 * 2;
            const float low = x[4 * n + 2 * e] * more[e], high = x[4 * n + 2 * e + 1] * more[e];
            if (n < 2 * warp)
                *(u32 *)(m.system + system_offset(16 * warp + i, 8 * n + j)) =
                    pack_half(-low, -high);
            else if (n < 2 * warp + 2)
                *(float2 *)(block + i * 16 + n % 2 * 8 + j) = make_float2(low, high);
        }
    __syncwarp();
    invert_block(m, block, warp, lane);
}

DEVICE void write_system(const float (&kk)[8][4], const ready_memory &m, const ready_gates &g,
                         int warp, int lane)
{
    float x[32];
    const int i = 16 * warp + lane / 4;
    const float more[2] = {m.k_times[i] * g.beta[i], m.k_times[i + 8] * g.beta[i + 8]};
    decay_products(kk, g, m.k_times, warp, lane, x);
    write_system_rows(x, more, m, warp, lane);
}

/* Columns of b: rows of a tile times beta and `times`, over `up`; and times e^g where that is 0. */
struct ready_side {
    const ready_gates &g;
    const char *tile;
    const float *times;
    float up;

    __device__ __forceinline__ ready_side(const ready_gates &gates, const char *from,
                                          const float *rows, float multiplied)
        : g(gates), tile(from), times(rows), up(multiplied)
    {
    }
};

/* The largest of 64 numbers. */
DEVICE float largest_of_all(const float *x, int lane)
{
    float largest = fmaxf(x[lane], x[lane + 32]);
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    return largest;
}

/* What four rows of b of a lane are to be multiplied by: 16 i + {0, 1, 8, 9} from its own on. */
DEVICE void find_factors(const ready_side &b, int i, float scale, int lane, float (&factor)[4])
{
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int row = 16 * i + lane % 4 * 2 + e / 2 * 8 + e % 2;
        const float decay = b.up != 0 ? 1 / b.up : exp2_fast(b.g.sum[row] + b.g.rest[row]);
        factor[e] = b.g.beta[row] * b.times[row] * scale * decay;
    }
}

/* Sixteen columns of b in rows [16 i, + 16), as sums. */
DEVICE void load_side(unsigned tile, int i, int place, const float (&factor)[4], int lane,
                      float (&x)[2][4])
{
    u32 y[4];
    load_matrices_turned(
        tile + tile_offset(16 * i + lane % 8 + lane / 16 * 8, place + lane / 8 % 2), y);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        x[n / 2][n % 2 * 2] = half_low(y[n]) * factor[n / 2 * 2];
        x[n / 2][n % 2 * 2 + 1] = half_high(y[n]) * factor[n / 2 * 2 + 1];
    }
}

DEVICE void pack_sums(const float (&x)[2][4], u32 (&a)[4])
{
#pragma unroll
    for (int n = 0; n < 4; n++)
        a[n] = pack_half(x[n / 2][n % 2 * 2], x[n / 2][n % 2 * 2 + 1]);
}

/* What is left of sums that have been rounded to `a`. */
DEVICE void pack_rests(const float (&x)[2][4], const u32 (&a)[4], u32 (&rest)[4])
{
#pragma unroll
    for (int n = 0; n < 4; n++)
        rest[n] = pack_rest(x[n / 2][n % 2 * 2], x[n / 2][n % 2 * 2 + 1], a[n]);
}

/* Sixteen times COUNT columns of a solution, from `first` on, by a warp: transposed, as sums of one
 * product have the shape of the next one's left operand:
 *
 *   x_i' = (b_i' - sum over j < i of x_j' A_ij') (I + A_ii)^-1'
 *
 * What is in parentheses is two numbers each, as outputs showed when it was one. Elements of x are at most 64 times those of b (the rule is a contraction), so that one power of
 * two does for all rows. PANELS: as panels of values. Returns what rows are to be multiplied by. */
template <bool PANELS, int COUNT>
DEVICE float solve_columns(const ready_memory &m, const ready_side &b, int first, int columns,
                           char *to, int warp, int lane)
{
    constexpr float room = 128;
    const unsigned system = shared_address(m.system), tile = shared_address(b.tile);
    const int system_row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
    const int place = first % 64 / 8; /* of a staged row */
    char *staging = m.staging + warp * CHUNK_STAGE;
    float inverse, scale = find_scale(largest_of_all(b.times, lane), &inverse) * room;
    u32 x[COUNT][4][4]; /* by sixteen columns, by sixteen rows */
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float factor[4], sums[COUNT][2][4];
        u32 a[4];
        find_factors(b, i, scale, lane, factor);
#pragma unroll
        for (int c = 0; c < COUNT; c++)
            load_side(tile, i, first / 8 + 2 * c, factor, lane, sums[c]);
#pragma unroll
        for (int j = 0; j <= i; j++) {
            load_matrices(system + tile_offset(16 * i + system_row, 2 * j + half), a);
#pragma unroll
            for (int c = 0; c < COUNT; c++) {
                if (j == i) {
                    u32 rest[4];
                    pack_sums(sums[c], x[c][i]);
                    pack_rests(sums[c], x[c][i], rest);
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        sums[c][0][e] = sums[c][1][e] = 0;
                    multiply(sums[c][0], rest, a[0], a[1]);
                    multiply(sums[c][1], rest, a[2], a[3]);
                }
                multiply(sums[c][0], x[c][j], a[0], a[1]);
                multiply(sums[c][1], x[c][j], a[2], a[3]);
                if (j == i)
                    pack_sums(sums[c], x[c][i]);
            }
        }
#pragma unroll
        for (int c = 0; c < COUNT; c++)
            store_matrices_turned(shared_address(staging) +
                                      (PANELS ? c * 512 + panel_offset(system_row, half)
                                              : tile_offset(system_row, place + 2 * c + half)),
                                  x[c][i]);
        __syncwarp();
#pragma unroll
        for (int c = 0; c < COUNT; c++) {
            const int n = 32 * c + lane;
            const int at = tile_offset(n / (2 * COUNT), place + n % (2 * COUNT));
            if constexpr (!PANELS)
                *(uint4 *)(to + first / 64 * (CHUNK_TILE / 2) + i * CHUNK_STAGE + at) =
                    *(const uint4 *)(staging + at);
            else if (first + 16 * c < columns)
                ((uint4 *)(to + (first / 16 + c) * CHUNK_PANEL_BYTES + i * 512))[lane] =
                    ((const uint4 *)(staging + c * 512))[lane];
        }
        __syncwarp();
    }
    return inverse / room;
}

/* u of v, which is in the tile of q, by half of the block's WARPS; w by the others. */
template <int WARPS>
DEVICE void solve(const linear_dims &d, const ready_memory &m, const ready_side &keys,
                  const ready_values &to, int warp, int lane)
{
    constexpr int count = 16 / WARPS, half = WARPS / 2;
    const int first = warp % half * 16 * count, row = warp % half * 32 + lane;
    float times;
    if (warp < half) {
        const ready_side values(keys.g, m.q, m.v_times, 1);
        times = solve_columns<true, count>(m, values, first, d.v_dim, to.u, warp, lane);
        if (row < CHUNK_ROWS)
            to.numbers[NUMBERS_U + row] = times;
    } else {
        times = solve_columns<false, count>(m, keys, first, CHUNK_MAX_KEYS, to.w, warp, lane);
        if (row < CHUNK_ROWS)
            to.numbers[NUMBERS_W + row] = times;
    }
}

/* ---- A chunk --------------------------------------------------------------------------------- */

DEVICE void copy_tiles(const ready_memory &m, char *to)
{
    for (int i = threadIdx.x; i < CHUNK_KEYS_BYTES / 16; i += CHUNK_READY_THREADS)
        ((uint4 *)to)[i] = ((const uint4 *)m.q)[i];
}

/* Blocks: chunks of the window, times k heads, times parts of their v heads. */
template <bool DELTA> DEVICE void ready_block(const linear_call &call, int first, char *memory)
{
    const linear_dims &d = call.dims;
    const linear_chunks &chunks = call.chunks;
    const int together = chunks.together;
    const int parts = (d.ratio + together - 1) / together;
    const int part = blockIdx.x % parts, rest = blockIdx.x / parts;
    const int key_head = rest % d.k_heads, index = rest / d.k_heads;
    if (first + index >= *chunks.count)
        return;
    const linear_chunk from = chunks.list[first + index];
    const ready_chunk chunk = {linear_find_sequence(&call.batch, from.sequence), from.first,
                               from.rows};
    const ready_memory m(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int head = key_head * d.ratio + part * together;
    const int heads = int_min(together, d.ratio - part * together);
    if (warp < heads) {
        linear_gate gates[2];
        load_gates(call, chunk, head + warp, lane, gates);
        find_gates(call, gates, chunk.rows, lane, ready_gates(m, warp));
    }
    load_tile<false>(call, chunk, d.first[0] + key_head * d.k_dim, d.k_dim, d.l2_norm, m.q,
                     m.q_times, NULL, NULL, {m.rest(), NULL});
    load_tile<false>(call, chunk, d.first[1] + key_head * d.k_dim, d.k_dim, d.l2_norm, m.k,
                     m.k_times, NULL, NULL, {m.rest(), m.own});
    __syncthreads();
    if (part == 0)
        copy_tiles(m, chunks.keys + ((i64)index * d.k_heads + key_head) * CHUNK_KEYS_BYTES);
    float products[8][4];
    multiply_tiles(m.q, m.k, warp, lane, products);
    if (d.width > 0)
        replace_own(m.own, warp, lane, products);
#pragma unroll 1
    for (int n = 0; n < heads; n++) {
        const ready_values to(call, index, head + n, DELTA ? CHUNK_SOLVED : CHUNK_PLAIN);
        const ready_gates g(m, n);
        write_numbers(d, m, g, to.numbers);
        write_products<DELTA>(d, products, m, g, to.products, to.numbers, warp, lane);
        if (!DELTA)
            load_tile<true>(call, chunk, d.first[2] + (head + n) * d.v_dim, d.v_dim, false, to.u,
                            to.numbers + NUMBERS_V, g.beta, to.numbers + NUMBERS_U);
    }
    if constexpr (DELTA) {
#pragma unroll 1
        for (int n = 0; n < heads; n++) {
            const ready_values to(call, index, head + n, DELTA ? CHUNK_SOLVED : CHUNK_PLAIN);
            const ready_gates g(m, n);
            __syncthreads();
            load_tile<false>(call, chunk, d.first[2] + (head + n) * d.v_dim, d.v_dim, false, m.q,
                             m.v_times, NULL, NULL);
            multiply_tiles(m.k, m.k, warp, lane, products);
            write_system(products, m, g, warp, lane);
            __syncthreads();
            solve<CHUNK_READY_THREADS / 32>(d, m, ready_side(g, m.k, m.k_times, 0), to, warp, lane);
        }
    }
}

/* ---- The list of chunks ---------------------------------------------------------------------- */

/* Chunks of a sequence, from `at` of the list on if that is not negative; returns their number. A
 * warp; a chunk ends with a row that has a snapshot, or with 64 rows. */
DEVICE int list_chunks(const linear_call &call, int number, const linear_sequence &sequence, int at)
{
    const int lane = threadIdx.x % 32, n = sequence.num_rows;
    linear_chunk *list = call.chunks.list;
    int from = 0, count = 0;
    const auto add = [&](int end, int snapshot) {
        const int pieces = (end - from + CHUNK_ROWS - 1) / CHUNK_ROWS;
        for (int i = lane; at >= 0 && i < pieces; i += 32) {
            const int first = from + i * CHUNK_ROWS;
            list[at + count + i] = {number, first, int_min(CHUNK_ROWS, end - first),
                                    i + 1 == pieces ? snapshot : 0};
        }
        count += pieces;
        from = end;
    };
    for (int t = 0; call.batch.snapshots && t < n; t += 256) {
        int slots[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int row = t + 32 * i + lane;
            slots[i] = row < n ? linear_snapshot(&call.batch, sequence.first_row + row) : 0;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            for (u32 cuts = __ballot_sync(~0u, slots[i] != 0); cuts; cuts &= cuts - 1) {
                const int bit = __ffs((int)cuts) - 1;
                add(t + 32 * i + bit + 1, __shfl_sync(~0u, slots[i], bit));
            }
    }
    if (from < n)
        add(n, 0);
    return count;
}

/* ---- The list of segments -------------------------------------------------------------------- */

DEVICE int sum_of_warp(int x)
{
    return __reduce_add_sync(~0u, x);
}

/* The chunks of sequence `s` that are in [first, end). */
DEVICE int find_chunks(const linear_chunks &chunks, int s, int real, int first, int end, int *from)
{
    if (s >= real)
        return 0;
    const int begin = chunks.sequences[2 * s], count = chunks.sequences[2 * s + 1];
    *from = begin > first ? begin : first;
    return int_max(0, int_min(end, begin + count) - *from);
}

/* Chunks of a segment, in a window in which sequences have `total` chunks, one of them `longest`. A
 * warp. Sequences are cut where their segments all go at once and less time passes: that
 * of a chunk for each of a segment and 3/4 for each before that, when states alone are sought; 3/4 for
 * each segment whose state has to be passed through the others; that of two for a launch. */
DEVICE int find_segment(const linear_chunks &chunks, int real, int first, int end, int total,
                        int longest)
{
    const int lane = threadIdx.x % 32, room = chunks.room;
    int length = int_max(CHUNK_SEGMENT_LEAST, (total + room - 1) / room);
    length = int_max(length, (longest + CHUNK_SEGMENT_MOST - 1) / CHUNK_SEGMENT_MOST);
    for (; length < longest; length += 1 + length / 16) {
        int segments = 0, from;
        for (int s = lane; s < (real + 31) / 32 * 32; s += 32)
            segments += (find_chunks(chunks, s, real, first, end, &from) + length - 1) / length;
        if (sum_of_warp(segments) <= room)
            break;
    }
    const int passed = (longest + length - 1) / length - 2;
    return 7 * length + 3 * passed + 8 < 4 * longest - longest / 4 ? length : longest;
}

/* Is a delta rule's sequence, the only one, with `count` chunks worth cutting into three? The last has half
 * of the chunks; the states of less than a third are sought before. */
DEVICE bool is_worth_three(int count)
{
    return 2 * count + 3 * (count / 4) + 11 < 4 * count - count / 4;
}

/* Where segment `i` of a sequence begins. Of three the first is longer than the second, of which M is sought,
 * too. */
DEVICE int find_edge(int count, int segments, bool three, int i)
{
    if (!three)
        return (int)((i64)count * i / segments);
    return i == 0 ? 0 : i == 1 ? 5 * count / 16 : i == 2 ? count / 2 : count;
}

/* Segments of a window. A warp. */
DEVICE void list_segments(const linear_call &call, int real, int window)
{
    const linear_chunks &chunks = call.chunks;
    const int lane = threadIdx.x % 32, first = window * chunks.window;
    const int end = int_min(*chunks.count, first + chunks.window), whole = (real + 31) / 32 * 32;
    linear_segment *to = chunks.segments + (i64)window * chunks.most_segments;
    int active = 0, total = 0, longest = 0, rows = 0, at = 0, from = 0;
    for (int s = lane; s < whole; s += 32) {
        const int count = find_chunks(chunks, s, real, first, end, &from);
        active += count > 0, total += count, longest = int_max(longest, count);
        if (count > 0)
            rows = int_max(rows, linear_find_sequence(&call.batch, s).num_rows);
    }
    active = sum_of_warp(active), total = sum_of_warp(total);
    longest = __reduce_max_sync(~0u, longest);
    /* Whether a batch is cut does not depend on bounds, so that graphs give the same bits. */
    const bool delta =
        call.dims.family == LINEAR_FAMILY_GDN || call.dims.family == LINEAR_FAMILY_KDA;
    const bool cut = __reduce_max_sync(~0u, rows) >= CHUNK_SEGMENT_ROWS(chunks.room, delta) &&
                     active < chunks.room;
    const bool three = cut && delta && chunks.room == 2 && is_worth_three(longest);
    const int length = cut && !three ? find_segment(chunks, real, first, end, total, longest)
                                     : int_max(1, longest);
    for (int s = lane; s < whole; s += 32) {
        const int count = find_chunks(chunks, s, real, first, end, &from);
        const int segments = three && count > 0 ? 3 : (count + length - 1) / length;
        int sum = segments;
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(~0u, sum, step);
            sum += lane >= step ? other : 0;
        }
        for (int i = 0; i < segments; i++)
            to[at + sum - segments + i] = {s, from + find_edge(count, segments, three, i),
                                           from + find_edge(count, segments, three, i + 1), i,
                                           segments};
        at += __shfl_sync(~0u, sum, 31);
    }
    for (int i = at + lane; i < chunks.most_segments; i += 32)
        to[i] = {0, 0, 0, 0, 0};
}

/* One block: sequences by warps. */
DEVICE void list_block(const linear_call &call)
{
    const linear_chunks &chunks = call.chunks;
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int real = linear_num_real(&call.batch);
    for (int s = warp; s < real; s += warps) {
        const linear_sequence sequence = linear_find_sequence(&call.batch, s);
        int count = 0;
        if (sequence.num_rows >= CHUNK_LEAST)
            count = list_chunks(call, s, sequence, -1);
        if (count > 2 * ((sequence.num_rows + CHUNK_ROWS - 1) / CHUNK_ROWS))
            count = 0;
        if (lane == 0)
            chunks.sequences[2 * s + 1] = count;
    }
    __syncthreads();
    if (warp == 0) {
        int before = 0;
        for (int s = lane; s < (real + 31) / 32 * 32; s += 32) {
            int count = s < real ? chunks.sequences[2 * s + 1] : 0, sum = count;
            for (int step = 1; step < 32; step *= 2) {
                int other = __shfl_up_sync(~0u, sum, step);
                sum += lane >= step ? other : 0;
            }
            if (s < real)
                chunks.sequences[2 * s] = before + sum - count;
            before += __shfl_sync(~0u, sum, 31);
        }
        if (lane == 0)
            *chunks.count = before;
    }
    __syncthreads();
    for (int s = warp; s < real; s += warps)
        if (chunks.sequences[2 * s + 1])
            list_chunks(call, s, linear_find_sequence(&call.batch, s), chunks.sequences[2 * s]);
    for (int window = warps - 1 - warp; window * (i64)chunks.window < chunks.most; window += warps)
        list_segments(call, real, window);
}

#endif /* LINEAR_LIKE_CHUNK_READY_CUH */
