/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk_ready.cuh: what chunk_states.cuh needs of each chunk, all chunks and heads at once:
 * convolution, lengths and gates of its rows, products of queries and keys, and for a delta rule
 *
 *   T = (I + A)^-1,  A = strict lower (beta_i e^(g_i - g_j) k_i . k_j)
 *   u = T (beta v),  w = T (beta e^g k)
 *
 * with g the sums of log decays from the chunk's first row on. Only differences g_i - g_j, i >= j,
 * are exponentiated.
 */
#ifndef LINEAR_LIKE_CHUNK_READY_CUH
#define LINEAR_LIKE_CHUNK_READY_CUH

#include "plugins/linear_like/kernels/chunk_states.cuh"

enum { INVERSE_ROW = 68 /* floats of a row of A and T in shared memory */ };

/* Shared memory of a block; q's tile is v's when its products have been made. */
struct ready_memory {
    char *q, *k;
    float *inverse; /* [64][INVERSE_ROW] A, then T */
    float *q_times, *k_times, *v_times;
    float *gates; /* [CHUNK_READY_HEADS][3][64], see ready_gates */

    __device__ __forceinline__ ready_memory(char *from)
    {
        q = from;
        k = q + CHUNK_TILE;
        q_times = (float *)(k + CHUNK_TILE);
        k_times = q_times + 64;
        v_times = k_times + 64;
        gates = v_times + 64;
        inverse = gates + CHUNK_READY_HEADS * 3 * 64;
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

/* Channels [first, first + dim) of the chunk's rows after the convolution, normalised if asked for,
 * as a tile or as panels of values; rows and columns that there are not are 0, or panels that are
 * not written. Sixteen lanes have a row, eight channels each; a thread has eight rows. `times`:
 * what rows are to be multiplied by; `beta_times` the same times beta, if that is given. */
template <bool PANELS, bool CONVOLVED>
static __device__ __noinline__ void make_tile(const linear_call &call, const ready_chunk &chunk,
                                              int first, int dim, bool normalise, char *tile,
                                              float *times, const float *beta, float *beta_times)
{
    constexpr int most = CHUNK_MAX_WIDTH;
    /* Read once: for all that the compiler knows, what is stored may change them. */
    const int dtype = call.dims.dtype, silu = call.dims.silu, rows = chunk.rows;
    const int place = threadIdx.x % 16, begin = threadIdx.x / 16 * 8, c = first + place * 8;
    const i64 apart = call.operands.mixed_row;
    const char *from =
        call.operands.mixed + (i64)(chunk.sequence.first_row + chunk.t + begin) * apart + c * 2;
    const bool there = place * 8 < dim;
    uint4 raw[8];
#pragma unroll
    for (int r = 0; r < 8; r++)
        raw[r] =
            there && begin + r < rows ? *(const uint4 *)(from + r * apart) : make_uint4(0, 0, 0, 0);
    float taps[most][8], window[most][8] = {}, bias[8] = {};
    if constexpr (CONVOLVED) {
        load_taps(call, there ? c : -1, taps, bias);
        if (there && begin < rows)
#pragma unroll
            for (int w = 1; w < most; w++)
                load_inputs(call, chunk, chunk.t + begin - (most - w), c, window[w]);
    }
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const int row = begin + r;
        float x[8];
        if constexpr (CONVOLVED) {
#pragma unroll
            for (int w = 0; w + 1 < most; w++)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    window[w][i] = window[w + 1][i];
            unpack_eight(dtype, raw[r], window[most - 1]);
            const bool here = there && row < rows;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                x[i] = bias[i];
#pragma unroll
                for (int w = 0; w < most; w++)
                    x[i] += taps[w][i] * window[w][i];
                x[i] = here ? silu ? fast_silu(x[i]) : x[i] : 0;
            }
        } else {
            unpack_eight(dtype, raw[r], x);
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
        if (!PANELS || there)
            *(uint4 *)(tile + (PANELS ? place / 2 * CHUNK_PANEL_BYTES + panel_offset(row, place % 2)
                                      : tile_offset(row, place))) =
                make_uint4(
                    pack_half(x[0] * scale, x[1] * scale), pack_half(x[2] * scale, x[3] * scale),
                    pack_half(x[4] * scale, x[5] * scale), pack_half(x[6] * scale, x[7] * scale));
    }
}

template <bool PANELS>
DEVICE void load_tile(const linear_call &call, const ready_chunk &chunk, int first, int dim,
                      bool normalise, char *tile, float *times, const float *beta,
                      float *beta_times)
{
    if (call.dims.width > 0)
        make_tile<PANELS, true>(call, chunk, first, dim, normalise, tile, times, beta, beta_times);
    else
        make_tile<PANELS, false>(call, chunk, first, dim, normalise, tile, times, beta, beta_times);
}

/* ---- Gates ----------------------------------------------------------------------------------- */

/* A warp, two rows a lane. */
DEVICE void load_gates(const linear_call &call, const ready_chunk &chunk, int head, int lane,
                       const ready_gates &g)
{
    double sums[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = 2 * lane + i, row = chunk.sequence.first_row + chunk.t + r;
        float beta = 0, log = 0;
        if (r < chunk.rows) {
            beta = linear_beta(&call, row, head);
            log = linear_log_decay(&call, row, head, 0, &beta);
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

/* Write 16 rows of a tile of `COUNT` eights of columns, with a power of two for each row, and what
 * it is to be multiplied by, times `more`. PANELS: as panels of values. */
template <int COUNT, bool PANELS>
DEVICE void write_rows(const float (&x)[4 * COUNT], char *to, float *numbers,
                       const float (&more)[2], int columns, int warp, int lane)
{
    left_operand<COUNT> y;
    float scale[2];
    make_left(x, y, scale);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = 16 * warp + lane / 4 + 8 * i;
        if (lane % 4 == 0)
            numbers[row] = y.times[i] * more[i];
#pragma unroll
        for (int n = 0; n < COUNT; n++)
            if (8 * n < columns)
                *(u32 *)(to +
                         (PANELS ? n / 2 * CHUNK_PANEL_BYTES + panel_offset(row, n % 2)
                                 : tile_offset(row, n)) +
                         lane % 4 * 4) = y.at[n / 2][n % 2 * 2 + i];
    }
}

/* Products of a warp's rows with those on and above the diagonal's block, decayed and multiplied by
 * `times` of the columns; what lies above the diagonal, or on it if STRICT, is 0. */
template <bool STRICT>
DEVICE void decay_products(const float (&from)[8][4], const ready_gates &g, const float *times,
                           int warp, int lane, float (&to)[32])
{
    const int i = 16 * warp + lane / 4;
    const float sum[2] = {g.sum[i], g.sum[i + 8]}, rest[2] = {g.rest[i], g.rest[i + 8]};
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (n >= 2 * warp + 2) {
            to[4 * n] = to[4 * n + 1] = to[4 * n + 2] = to[4 * n + 3] = 0;
            continue;
        }
        const int j = 8 * n + lane % 4 * 2;
        const float2 of = *(const float2 *)(g.sum + j), more = *(const float2 *)(g.rest + j);
        const float2 by = *(const float2 *)(times + j);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float difference =
                (sum[e / 2] - (e % 2 ? of.y : of.x)) + (rest[e / 2] - (e % 2 ? more.y : more.x));
            const bool there = STRICT ? j + e % 2 < i + e / 2 * 8 : j + e % 2 <= i + e / 2 * 8;
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

/* Decayed products of queries and keys. STRICT: without those on the diagonal, which go among the
 * numbers, times beta: a row of little but its own product may be cancelled by D. */
template <bool STRICT>
DEVICE void write_products(const linear_dims &d, const float (&qk)[8][4], const ready_memory &m,
                           const ready_gates &g, char *to, float *numbers, int warp, int lane)
{
    float x[32];
    const int i = 16 * warp + lane / 4;
    const float more[2] = {m.q_times[i] * d.sm_scale, m.q_times[i + 8] * d.sm_scale};
    decay_products<STRICT>(qk, g, m.k_times, warp, lane, x);
#pragma unroll
    for (int n = 0; STRICT && n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = i + e / 2 * 8, j = 8 * n + lane % 4 * 2 + e % 2;
            if (row == j)
                numbers[NUMBERS_OWN + row] = qk[n][e] * (m.k_times[j] * more[e / 2] * g.beta[j]);
        }
    write_rows<8, false>(x, to, numbers + NUMBERS_P, more, 64, warp, lane);
}

/* ---- The inverse of I + A -------------------------------------------------------------------- */

DEVICE void write_triangle(const float (&kk)[8][4], const ready_memory &m, const ready_gates &g,
                           int warp, int lane)
{
    float x[32];
    const int i = 16 * warp + lane / 4;
    const float more[2] = {m.k_times[i] * g.beta[i], m.k_times[i + 8] * g.beta[i + 8]};
    decay_products<true>(kk, g, m.k_times, warp, lane, x);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            *(float2 *)(m.inverse + (i + 8 * e) * INVERSE_ROW + 8 * n + lane % 4 * 2) =
                make_float2(x[4 * n + 2 * e] * more[e], x[4 * n + 2 * e + 1] * more[e]);
}

/* to = sign a b, SIZE x SIZE, by `threads` threads of which this is number `thread`. */
template <int SIZE>
DEVICE void multiply_blocks(const float *a, int a_row, const float *b, int b_row, float *to,
                            int to_row, float sign, int thread)
{
    constexpr int columns = SIZE == 32 ? 8 : 4; /* four threads a row */
    const int row = thread / 4, first = thread % 4 * columns;
    float sums[columns] = {};
#pragma unroll 8
    for (int l = 0; l < SIZE; l++) {
        const float x = a[row * a_row + l];
#pragma unroll
        for (int j = 0; j < columns; j += 4) {
            const float4 y = *(const float4 *)(b + l * b_row + first + j);
            sums[j] += x * y.x, sums[j + 1] += x * y.y;
            sums[j + 2] += x * y.z, sums[j + 3] += x * y.w;
        }
    }
#pragma unroll
    for (int j = 0; j < columns; j++)
        to[row * to_row + first + j] = sign * sums[j];
}

/* In place: blocks of 16 on the diagonal by substitution, a column a thread; then twice as large
 * ones: (A 0; C B)^-1 = (A^-1 0; -B^-1 C A^-1 B^-1). Half of a product is kept in the upper right
 * quarter, which is not read afterwards. */
DEVICE void invert(const ready_memory &m)
{
    const int thread = threadIdx.x;
    float x[16];
    float *block = m.inverse + thread / 16 * 16 * (INVERSE_ROW + 1);
    if (thread < 64) {
        const int j = thread % 16;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float sum = i == j ? 1 : 0;
#pragma unroll
            for (int l = 0; l < i; l++)
                sum -= block[i * INVERSE_ROW + l] * x[l];
            x[i] = sum;
        }
    }
    __syncthreads();
    if (thread < 64)
#pragma unroll
        for (int i = 0; i < 16; i++)
            block[i * INVERSE_ROW + thread % 16] = x[i];
    __syncthreads();
    const int pair = thread / 64, row = INVERSE_ROW;
    float *upper = m.inverse + 32 * pair * (row + 1), *left = upper + 16 * row;
    float *lower = left + 16, *half = m.inverse + 32 + 16 * pair * row;
    multiply_blocks<16>(left, row, upper, row, half, row, 1, thread % 64);
    __syncthreads();
    multiply_blocks<16>(lower, row, half, row, left, row, -1, thread % 64);
    __syncthreads();
    left = m.inverse + 32 * row, lower = left + 32;
    multiply_blocks<32>(left, row, m.inverse, row, m.inverse + 32, row, 1, thread);
    __syncthreads();
    multiply_blocks<32>(lower, row, m.inverse + 32, row, left, row, -1, thread);
    __syncthreads();
}

/* Rows [16 warp, + 16) of T diag(beta times) times a tile; and times e^sum, if DECAYED. */
template <bool PANELS, bool DECAYED>
DEVICE void write_solved(const ready_memory &m, const ready_gates &g, const float *times,
                         const char *tile, char *to, float *numbers, int columns, int warp,
                         int lane)
{
    float t[32], scale[2], sums[64];
    left_operand<8> a;
    const int i = 16 * warp + lane / 4;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const int j = 8 * n + lane % 4 * 2;
        float factor[2];
#pragma unroll
        for (int e = 0; e < 2; e++)
            factor[e] = g.beta[j + e] * times[j + e] *
                        (DECAYED ? exp2_fast(g.sum[j + e] + g.rest[j + e]) : 1);
#pragma unroll
        for (int e = 0; e < 4; e++)
            t[4 * n + e] =
                j + e % 2 <= i + e / 2 * 8
                    ? m.inverse[(i + e / 2 * 8) * INVERSE_ROW + j + e % 2] * factor[e % 2]
                    : 0;
    }
    make_left(t, a, scale);
    const unsigned right = shared_address(tile);
#pragma unroll
    for (int n = 0; n < 64; n++)
        sums[n] = 0;
#pragma unroll
    for (int step = 0; step < 4; step++) {
        if (step > warp)
            continue;
#pragma unroll
        for (int pair = 0; pair < 8; pair++) {
            u32 b[4];
            load_matrices_turned(right + tile_offset(lane % 16, 2 * pair + lane / 16) + step * 2048,
                                 b);
            multiply(*(float(*)[4]) & sums[8 * pair], a.at[step], b[0], b[1]);
            multiply(*(float(*)[4]) & sums[8 * pair + 4], a.at[step], b[2], b[3]);
        }
    }
    write_rows<16, PANELS>(sums, to, numbers, a.times, columns, warp, lane);
}

/* ---- A chunk --------------------------------------------------------------------------------- */

DEVICE void copy_tiles(const ready_memory &m, char *to)
{
    for (int i = threadIdx.x; i < CHUNK_KEYS_BYTES / 16; i += CHUNK_READY_THREADS)
        ((uint4 *)to)[i] = ((const uint4 *)m.q)[i];
}

/* Parts of what is made of a chunk for a v head. */
struct ready_values {
    float *numbers;
    char *products, *w, *u;

    __device__ __forceinline__ ready_values(const linear_call &call, int index, int head,
                                            bool delta)
    {
        char *to =
            call.chunks.values + ((i64)index * call.dims.v_heads + head) *
                                     CHUNK_VALUES_BYTES(call.dims.v_dim / CHUNK_PANEL, delta);
        numbers = (float *)to;
        products = to + CHUNK_NUMBERS;
        w = products + CHUNK_PRODUCTS;
        u = w + (delta ? CHUNK_TILE : 0);
    }
};

/* u and w of a head whose A is in m.inverse and whose v in the tile of q. */
DEVICE void solve(const linear_dims &d, const ready_memory &m, const ready_gates &g,
                  const ready_values &to, int warp, int lane)
{
    invert(m);
    write_solved<true, false>(m, g, m.v_times, m.q, to.u, to.numbers + NUMBERS_U, d.v_dim, warp,
                              lane);
    if (threadIdx.x < 64)
        to.numbers[NUMBERS_V + threadIdx.x] = 0;
}

/* Blocks: chunks of the window, times k heads, times parts of their v heads. */
template <bool DELTA> DEVICE void ready_block(const linear_call &call, int first, char *memory)
{
    const linear_dims &d = call.dims;
    const linear_chunks &chunks = call.chunks;
    const int parts = (d.ratio + CHUNK_READY_HEADS - 1) / CHUNK_READY_HEADS;
    const int part = blockIdx.x % parts, rest = blockIdx.x / parts;
    const int key_head = rest % d.k_heads, index = rest / d.k_heads;
    if (first + index >= *chunks.count)
        return;
    const linear_chunk from = chunks.list[first + index];
    const ready_chunk chunk = {linear_find_sequence(&call.batch, from.sequence), from.first,
                               from.rows};
    const ready_memory m(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int head = key_head * d.ratio + part * CHUNK_READY_HEADS;
    const int heads = int_min(CHUNK_READY_HEADS, d.ratio - part * CHUNK_READY_HEADS);
    if (warp < heads)
        load_gates(call, chunk, head + warp, lane, ready_gates(m, warp));
    load_tile<false>(call, chunk, d.first[0] + key_head * d.k_dim, d.k_dim, d.l2_norm, m.q,
                     m.q_times, NULL, NULL);
    load_tile<false>(call, chunk, d.first[1] + key_head * d.k_dim, d.k_dim, d.l2_norm, m.k,
                     m.k_times, NULL, NULL);
    __syncthreads();
    if (part == 0)
        copy_tiles(m, chunks.keys + ((i64)index * d.k_heads + key_head) * CHUNK_KEYS_BYTES);
    float products[8][4];
    multiply_tiles(m.q, m.k, warp, lane, products);
#pragma unroll 1
    for (int n = 0; n < heads; n++) {
        const ready_values to(call, index, head + n, DELTA);
        const ready_gates g(m, n);
        write_numbers(d, m, g, to.numbers);
        write_products<!DELTA>(d, products, m, g, to.products, to.numbers, warp, lane);
        if (!DELTA)
            load_tile<true>(call, chunk, d.first[2] + (head + n) * d.v_dim, d.v_dim, false, to.u,
                            to.numbers + NUMBERS_V, g.beta, to.numbers + NUMBERS_U);
    }
    if constexpr (DELTA) {
#pragma unroll 1
        for (int n = 0; n < heads; n++) {
            const ready_values to(call, index, head + n, DELTA);
            const ready_gates g(m, n);
            __syncthreads();
            load_tile<false>(call, chunk, d.first[2] + (head + n) * d.v_dim, d.v_dim, false, m.q,
                             m.v_times, NULL, NULL);
            multiply_tiles(m.k, m.k, warp, lane, products);
            write_triangle(products, m, g, warp, lane);
            __syncthreads();
            solve(d, m, g, to, warp, lane);
            write_solved<false, true>(m, g, m.k_times, m.k, to.w, to.numbers + NUMBERS_W,
                                      CHUNK_MAX_KEYS, warp, lane);
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
}

#endif /* LINEAR_LIKE_CHUNK_READY_CUH */
