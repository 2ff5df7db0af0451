/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk_fused.cuh: Mamba2 and lightning by chunks in one launch, if no norm precedes the
 * recurrence: rows of q, k and v are read unchanged, from the batch or after a convolution.
 *
 *   P = lower (e^(g_i - g_j) beta_j q_i.k_j);  o = e^g q S + P v
 *   S <- e^(g_end) S + (e^(g_end - g) beta v)' k
 *
 * A block has 64 values of a head and all of k. Rows of q, k and v stay bf16. The computed operand
 * of each product is two bf16 numbers per element: errors of 2^-17.
 *
 * The first warpgroup has the transposed state, 64 x 128, in the accumulators of a product from the
 * first chunk to the last, and writes it to shared memory before each chunk. The second and third
 * compute outputs, rows of tokens, of alternate chunks. In the fourth, one warp issues TMA copies
 * of rows, and three compute gates.
 */
#ifndef LINEAR_LIKE_CHUNK_FUSED_CUH
#define LINEAR_LIKE_CHUNK_FUSED_CUH

#include "plugins/linear_like/kernels/ready_rows.cuh"
#include "plugins/linear_like/kernels/states_segments.cuh"

/* Numbers of a chunk's rows, in FUSED_NUMBERS bytes. Decays between rows of different blocks of 16
 * are products: from the column to the first row of the row's block, and from there to the row. */
enum {
    FUSED_SUM = 0, /* of log decays, in units of log 2, as two numbers */
    FUSED_REST = 64,
    FUSED_BETA = 128,
    FUSED_Q = 192,     /* the decay of the state, times sm_scale */
    FUSED_K = 256,     /* the decay of an update to the end of the chunk, times beta */
    FUSED_BELOW = 320, /* from the first row of a row's block on */
    FUSED_ABOVE = 384, /* [3][64] to the first row of blocks 1, 2, 3, times beta and sm_scale */
    FUSED_DECAY = 576  /* of the whole chunk */
};

/* ---- Shared memory --------------------------------------------------------------------------- */

struct fused_memory {
    char *tiles, *states, *turn;
    char *numbers_at;
    unsigned barriers;

    /* Barriers: rows have arrived, and have been read; numbers; states. */
    static constexpr int full = 0, read = full + FUSED_STAGES;
    static constexpr int found = read + FUSED_STAGES, used = found + FUSED_GATES;
    static constexpr int kept = used + FUSED_GATES, taken = kept + FUSED_STATES;
    static constexpr int count = taken + FUSED_STATES;

    __device__ __forceinline__ fused_memory(char *from)
    {
        tiles = from;
        states = tiles + FUSED_STAGES * FUSED_STAGE;
        turn = states + FUSED_STATES * FUSED_PARTS * CHUNK_TILE;
        numbers_at = turn + FUSED_OUTPUT_GROUPS * FUSED_TURN;
        barriers = shared_address(numbers_at + FUSED_GATES * FUSED_NUMBERS);
    }

    __device__ __forceinline__ char *q(int n) const
    {
        return tiles + n % FUSED_STAGES * FUSED_STAGE;
    }

    __device__ __forceinline__ char *k(int n) const
    {
        return q(n) + CHUNK_TILE;
    }

    __device__ __forceinline__ char *v(int n) const
    {
        return q(n) + 2 * CHUNK_TILE;
    }

    __device__ __forceinline__ char *state(int n) const
    {
        return states + n % FUSED_STATES * (FUSED_PARTS * CHUNK_TILE);
    }

    __device__ __forceinline__ float *numbers(int n) const
    {
        return (float *)(numbers_at + n % FUSED_GATES * FUSED_NUMBERS);
    }

    template <int FIRST, int SIZE> __device__ __forceinline__ void wait(int n) const
    {
        barrier_wait(barriers + 8 * (FIRST + n % SIZE), n / SIZE & 1);
    }

    /* Waits until the data of SIZE chunks before has been read. */
    template <int FIRST, int SIZE> __device__ __forceinline__ void wait_free(int n) const
    {
        if (n >= SIZE)
            barrier_wait(barriers + 8 * (FIRST + n % SIZE), (n / SIZE - 1) & 1);
    }

    /* A warp arrives. */
    template <int FIRST, int SIZE> __device__ __forceinline__ void arrive(int n) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(barriers + 8 * (FIRST + n % SIZE));
    }

    /* `readers`: warpgroups that read rows and numbers. */
    __device__ __forceinline__ void begin(int readers) const
    {
        if (threadIdx.x == 0) {
            for (int i = 0; i < count; i++)
                barrier_init(barriers + 8 * i, i < read    ? 1
                                               : i < found ? 4 * readers
                                               : i < used  ? 1
                                               : i < kept  ? 4 * readers
                                                           : 4);
            fence_barrier_init();
        }
        __syncthreads();
    }
};

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Copies 16 bytes, or zeros. */
DEVICE void copy_or_clear(unsigned to, const char *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

/* Copies PLACES times 8 channels of 64 rows, of which `dim` channels exist, by a warp. */
template <int PLACES>
DEVICE void copy_rows(const char *from, i64 apart, int rows, int dim, unsigned to)
{
    constexpr int step = 32 / PLACES;
    const int place = threadIdx.x % PLACES, row = threadIdx.x % 32 / PLACES;
    const bool there = place * 8 < dim;
    from += row * apart + place * 16;
#pragma unroll 4
    for (int i = 0; i < 64; i += step) {
        const bool here = there && row + i < rows;
        copy_or_clear(to + tile_offset(row + i, place), here ? from : NULL, here);
        from += step * apart;
    }
}

/* Copies a chunk with fewer rows than a tile, and clears the other rows. */
template <bool OUTPUTS>
static __device__ __noinline__ void copy_few_rows(const linear_call &call, const states_work &work,
                                                  const linear_chunk &chunk, unsigned to)
{
    const linear_dims &d = call.dims;
    const i64 apart = call.operands.mixed_row;
    const int head = work.head / d.ratio, value = work.panel * CHUNK_PANEL;
    const char *from = call.operands.mixed + (work.sequence.first_row + chunk.first) * apart;
    if (OUTPUTS)
        copy_rows<16>(from + (d.first[0] + head * d.k_dim) * 2, apart, chunk.rows, d.k_dim, to);
    copy_rows<16>(from + (d.first[1] + head * d.k_dim) * 2, apart, chunk.rows, d.k_dim,
                  to + CHUNK_TILE);
    copy_rows<8>(from + (d.first[2] + work.head * d.v_dim + value) * 2, apart, chunk.rows,
                 d.v_dim - value, to + 2 * CHUNK_TILE);
    copy_commit();
    copy_wait<0>();
    fence_async_shared();
}

/* Copies 64 rows from row `row` of the batch on by TMA. */
template <bool OUTPUTS>
DEVICE void copy_boxes(const linear_maps &maps, const states_work &work, int ratio, int row,
                       unsigned to, unsigned barrier)
{
    const int head = work.head / ratio, half = CHUNK_TILE / 2;
    barrier_arrive_expect(barrier, FUSED_STAGE - (OUTPUTS ? 0 : CHUNK_TILE));
    tensor_load(to + CHUNK_TILE, &maps.k, barrier, 0, row, head, 0);
    tensor_load(to + CHUNK_TILE + half, &maps.k, barrier, 64, row, head, 0);
    tensor_load(to + 2 * CHUNK_TILE, &maps.v, barrier, work.panel * CHUNK_PANEL, row, work.head, 0);
    if (!OUTPUTS)
        return;
    tensor_load(to, &maps.q, barrier, 0, row, head, 0);
    tensor_load(to + half, &maps.q, barrier, 64, row, head, 0);
}

/* Copies the rows of all chunks, by a warp. */
template <bool OUTPUTS>
DEVICE void copy_all_rows(const linear_call &call, const linear_maps &maps, const states_work &work,
                          const fused_memory &m, int lane)
{
    const linear_chunk *list = call.chunks.list + work.from;
    const int count = work.to - work.from;
    linear_chunk next = list[0];
#pragma unroll 1
    for (int n = 0; n < count; n++) {
        const linear_chunk chunk = next;
        const unsigned to = shared_address(m.q(n));
        if (n + 1 < count)
            next = list[n + 1];
        m.wait_free<fused_memory::read, FUSED_STAGES>(n);
        if (chunk.rows < CHUNK_ROWS && !call.chunks.rows) {
            copy_few_rows<OUTPUTS>(call, work, chunk, to);
            m.arrive<fused_memory::full, FUSED_STAGES>(n);
        } else if (lane == 0) {
            copy_boxes<OUTPUTS>(maps, work, call.dims.ratio,
                                find_row(call, work.sequence, chunk, work.from - work.first + n),
                                to, m.barriers + 8 * (fused_memory::full + n % FUSED_STAGES));
        }
    }
}

/* ---- Gates ----------------------------------------------------------------------------------- */

/* Computes a chunk's numbers from the first three of each row, by a warp. */
DEVICE void find_numbers(const linear_dims &d, float *x, int lane)
{
    const float last = x[FUSED_SUM + 63], last_rest = x[FUSED_REST + 63];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = lane + 32 * i, edge = r & ~15;
        const float sum = x[FUSED_SUM + r], rest = x[FUSED_REST + r], beta = x[FUSED_BETA + r];
        x[FUSED_Q + r] = exp2f(sum + rest) * d.sm_scale;
        x[FUSED_K + r] = exp2f((last - sum) + (last_rest - rest)) * beta;
        x[FUSED_BELOW + r] = exp2_fast((sum - x[FUSED_SUM + edge]) + (rest - x[FUSED_REST + edge]));
#pragma unroll
        for (int b = 1; b < 4; b++)
            if (r < 16 * b)
                x[FUSED_ABOVE + 64 * (b - 1) + r] =
                    exp2_fast((x[FUSED_SUM + 16 * b] - sum) + (x[FUSED_REST + 16 * b] - rest)) *
                    (beta * d.sm_scale);
    }
    if (lane == 0)
        x[FUSED_DECAY] = exp2f(last + last_rest);
}

/* Loads the gates of a chunk, if it exists; returns its number of rows. */
DEVICE int load_chunk_gates(const linear_call &call, const states_work &work, int n, int lane,
                            linear_gate (&gates)[2])
{
    if (n >= work.to - work.from)
        return 0;
    const linear_chunk from = call.chunks.list[work.from + n];
    load_gates(call, {work.sequence, from.first, from.rows}, work.head, lane, gates);
    return from.rows;
}

/* Computes the numbers of every FUSED_GATE_WARPS-th chunk; gates of the next one are loaded
 * meanwhile. */
DEVICE void find_all_numbers(const linear_call &call, const states_work &work,
                             const fused_memory &m, int warp, int lane)
{
    linear_gate gates[2], next[2];
    int rows = load_chunk_gates(call, work, warp, lane, gates);
#pragma unroll 1
    for (int n = warp; n < work.to - work.from; n += FUSED_GATE_WARPS) {
        const int next_rows = load_chunk_gates(call, work, n + FUSED_GATE_WARPS, lane, next);
        float *x = m.numbers(n);
        m.wait_free<fused_memory::used, FUSED_GATES>(n);
        find_gates(call, gates, rows, lane,
                   ready_gates(x + FUSED_BETA, x + FUSED_SUM, x + FUSED_REST));
        __syncwarp();
        find_numbers(call.dims, x, lane);
        m.arrive<fused_memory::found, FUSED_GATES>(n);
        rows = next_rows;
        gates[0] = next[0], gates[1] = next[1];
    }
}

/* ---- Numbers as two -------------------------------------------------------------------------- */

DEVICE u32 pack_bf16(float low, float high)
{
    return pack_pair<false>(low, high);
}

/* The rounding errors of two numbers that were rounded to `packed`. */
DEVICE u32 pack_bf16_rest(float low, float high, u32 packed)
{
    return pack_bf16(low - bits_f32(packed << 16), high - bits_f32(packed & 0xffff0000));
}

/* ---- The state ------------------------------------------------------------------------------- */

/* Writes the state for the other warpgroups: rows of values, columns of k. */
DEVICE void keep_state(const fused_memory &m, int n, const state_tile &s, int warp, int lane)
{
    const unsigned to = shared_address(m.state(n));
    const int row = 16 * warp + lane % 16;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float *x = s + 8 * i;
        const unsigned at = to + tile_offset(row, 2 * i + lane / 16);
        const u32 y[4] = {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                          pack_bf16(x[6], x[7])};
        store_matrices(at, y[0], y[1], y[2], y[3]);
        if (FUSED_PARTS > 1)
            store_matrices(at + CHUNK_TILE, pack_bf16_rest(x[0], x[1], y[0]),
                           pack_bf16_rest(x[2], x[3], y[1]), pack_bf16_rest(x[4], x[5], y[2]),
                           pack_bf16_rest(x[6], x[7], y[3]));
    }
    fence_async_shared();
    m.arrive<fused_memory::kept, FUSED_STATES>(n);
}

/* A left operand of two numbers per element: 64 rows by 64, 16 rows per warp. */
struct fused_left {
    u32 whole[4][4], rest[4][4];
};

/* Values of a chunk's rows, transposed, with their decay to its end. */
DEVICE void find_left(unsigned v, const float *numbers, int warp, int lane, fused_left &to)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = 16 * i + lane % 8 + lane / 16 * 8;
        const float2 low = *(const float2 *)(numbers + FUSED_K + 16 * i + lane % 4 * 2);
        const float2 high = *(const float2 *)(numbers + FUSED_K + 16 * i + 8 + lane % 4 * 2);
        u32 x[4];
        load_matrices_turned(v + tile_offset(row, 2 * warp + lane / 8 % 2), x);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const float2 times = n < 2 ? low : high;
            const float a = bits_f32(x[n] << 16) * times.x;
            const float b = bits_f32(x[n] & 0xffff0000) * times.y;
            to.whole[i][n] = pack_bf16(a, b);
            to.rest[i][n] = pack_bf16_rest(a, b, to.whole[i][n]);
        }
    }
}

/* Issues S += V' k. */
DEVICE void add_updates(state_tile &s, const fused_left &left, unsigned k)
{
    const unsigned long long b = matrix_descriptor(k, CHUNK_TILE / 2, 1024);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_rs<128, false, 1>(s, left.whole[i], descriptor_advance(b, i * 2048), 1);
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_rs<128, false, 1>(s, left.rest[i], descriptor_advance(b, i * 2048), 1);
    wgmma_commit();
}

/* Propagates the block's state through all of its chunks; returns its decay. The operand is not
 * computed during the previous product: with branches between them, the assembler reuses registers
 * that a product still reads. */
template <bool OUTPUTS>
DEVICE float pass_all_rows(const linear_call &call, const states_work &work, const fused_memory &m,
                           int warp, int lane, state_tile &s)
{
    const int panel = work.panel + warp, count = work.to - work.from;
    const bool here = panel < call.dims.v_dim / CHUNK_PANEL;
    const state_place at = {work.head, panel * CHUNK_PANEL + lane / 4, lane % 4 * 2};
    float all = 1;
#pragma unroll 1
    for (int n = 0; n < count; n++) {
        const int snapshot = OUTPUTS ? call.chunks.list[work.from + n].snapshot : 0;
        fused_left left;
        if (OUTPUTS) {
            m.wait_free<fused_memory::taken, FUSED_STATES>(n);
            keep_state(m, n, s, warp, lane);
        }
        m.wait<fused_memory::full, FUSED_STAGES>(n);
        m.wait<fused_memory::found, FUSED_GATES>(n);
        find_left(shared_address(m.v(n)), m.numbers(n), warp, lane, left);
        const float decay = m.numbers(n)[FUSED_DECAY];
        all *= decay;
#pragma unroll
        for (int i = 0; i < 64; i++)
            s[i] *= decay;
        add_updates(s, left, shared_address(m.k(n)));
        wgmma_wait<0>();
        wgmma_arrived(s);
        m.arrive<fused_memory::read, FUSED_STAGES>(n);
        m.arrive<fused_memory::used, FUSED_GATES>(n);
        if (here && snapshot)
            pass_state<true>(call, snapshot, at, s);
    }
    return all;
}

/* ---- Outputs --------------------------------------------------------------------------------- */

/* Issues q k'. */
DEVICE void multiply_keys(const fused_memory &m, int n, float (&sums)[32])
{
    const unsigned long long a = matrix_descriptor(shared_address(m.q(n)), 16, 1024);
    const unsigned long long b = matrix_descriptor(shared_address(m.k(n)), 16, 1024);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 8; i++)
        wgmma_ss<64, false, 0>(sums, descriptor_advance(a, i / 4 * (CHUNK_TILE / 2) + i % 4 * 32),
                               descriptor_advance(b, i / 4 * (CHUNK_TILE / 2) + i % 4 * 32), i > 0);
    wgmma_commit();
}

/* Issues q S. */
DEVICE void read_state(const fused_memory &m, int n, float (&sums)[32])
{
    const unsigned long long a = matrix_descriptor(shared_address(m.q(n)), 16, 1024);
    const unsigned long long b = matrix_descriptor(shared_address(m.state(n)), 16, 1024);
    wgmma_fence();
#pragma unroll
    for (int part = 0; part < FUSED_PARTS; part++)
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int at = i / 4 * (CHUNK_TILE / 2) + i % 4 * 32;
            wgmma_ss<64, false, 0>(sums, descriptor_advance(a, at),
                                   descriptor_advance(b, at + part * CHUNK_TILE),
                                   part > 0 || i > 0);
        }
    wgmma_commit();
}

/* Issues sums += P v. */
DEVICE void add_values(float (&sums)[32], const fused_left &p, unsigned v)
{
    const unsigned long long b = matrix_descriptor(v, CHUNK_TILE / 2, 1024);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_rs<64, false, 1>(sums, p.whole[i], descriptor_advance(b, i * 2048), 1);
#pragma unroll
    for (int i = 0; i < 4; i++)
        wgmma_rs<64, false, 1>(sums, p.rest[i], descriptor_advance(b, i * 2048), 1);
    wgmma_commit();
}

/* Decayed products of a warp's rows with rows up to their own, as a left operand; `skip` is added
 * to the product of a row with itself. */
DEVICE void find_products(const linear_dims &d, const float (&qk)[32], const float *x, float skip,
                          int warp, int lane, fused_left &to)
{
    const int i = 16 * warp + lane / 4;
    const float sum[2] = {x[FUSED_SUM + i], x[FUSED_SUM + i + 8]};
    const float rest[2] = {x[FUSED_REST + i], x[FUSED_REST + i + 8]};
    const float below[2] = {x[FUSED_BELOW + i], x[FUSED_BELOW + i + 8]};
    const float *above = x + FUSED_ABOVE + 64 * (warp > 0 ? warp - 1 : 0);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const int j = 8 * n + lane % 4 * 2;
        float y[4] = {0, 0, 0, 0};
        if (n < 2 * warp) {
            const float2 by = *(const float2 *)(above + j);
#pragma unroll
            for (int e = 0; e < 4; e++)
                y[e] = qk[4 * n + e] * (below[e / 2] * (e % 2 ? by.y : by.x));
        } else if (n < 2 * warp + 2) {
            const float2 of = *(const float2 *)(x + FUSED_SUM + j);
            const float2 more = *(const float2 *)(x + FUSED_REST + j);
            const float2 beta = *(const float2 *)(x + FUSED_BETA + j);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = i + e / 2 * 8, column = j + e % 2;
                const float difference = (sum[e / 2] - (e % 2 ? of.y : of.x)) +
                                         (rest[e / 2] - (e % 2 ? more.y : more.x));
                const float times = (e % 2 ? beta.y : beta.x) * d.sm_scale;
                if (column <= row)
                    y[e] = qk[4 * n + e] * (times * exp2_fast(difference));
                if (column == row)
                    y[e] += skip;
            }
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            u32 &whole = to.whole[n / 2][n % 2 * 2 + e];
            whole = pack_bf16(y[2 * e], y[2 * e + 1]);
            to.rest[n / 2][n % 2 * 2 + e] = pack_bf16_rest(y[2 * e], y[2 * e + 1], whole);
        }
    }
}

/* The destination of a warp's outputs: 64 values of a head. */
struct fused_place {
    int head, value, values; /* the first, and the number of existing ones from it on */
    bool skips;              /* each value of v has its own factor */
};

/* Applies skip and z to values in fp32: a lane has pairs of them, in rows 16 warp + lane / 4 and 8
 * more. */
DEVICE void gate_values(const linear_call &call, const fused_memory &m, int n, int row, int rows,
                        const fused_place &place, int warp, int lane, float (&out)[32])
{
    const linear_operands &o = call.operands;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int r = 16 * warp + lane / 4 + 8 * e;
        const char *z = o.z + (i64)(row + r) * o.z_row + place.head * o.z_head;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int c = 8 * i + lane % 4 * 2;
            float(&x)[2] = *(float(*)[2])(out + 4 * i + 2 * e);
            if (c >= place.values || r >= rows)
                continue;
            if (place.skips) {
                const u32 v = *(const u32 *)(m.v(n) + tile_offset(r, i) + lane % 4 * 4);
                x[0] += linear_skip(&call, place.head, place.value + c) * bits_f32(v << 16);
                x[1] +=
                    linear_skip(&call, place.head, place.value + c + 1) * bits_f32(v & 0xffff0000);
            }
            if (o.z) {
                const u32 y = *(const u32 *)(z + (place.value + c) * 2);
                x[0] *= linear_fast_silu(bits_f32(y << 16));
                x[1] *= linear_fast_silu(bits_f32(y & 0xffff0000));
            }
        }
    }
}

/* Transposes in shared memory, so that rows are stored with 16 bytes per lane. */
DEVICE void write_values(const linear_call &call, char *turn, int row, int rows,
                         const fused_place &place, int warp, int lane, const float (&out)[32])
{
    const linear_operands &o = call.operands;
    turn += warp * (FUSED_TURN / 4);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float *x = out + 8 * i;
        store_matrices(shared_address(turn) + tile_offset(lane % 16, 2 * i + lane / 16),
                       pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                       pack_bf16(x[6], x[7]));
    }
    __syncwarp();
    char *to = o.out + (i64)(row + 16 * warp + lane / 8) * o.out_row + place.head * o.out_head +
               (place.value + lane % 8 * 8) * 2;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (16 * warp + 4 * i + lane / 8 < rows && lane % 8 * 8 < place.values)
            *(uint4 *)(to + 4 * i * o.out_row) =
                *(const uint4 *)(turn + tile_offset(4 * i + lane / 8, lane % 8));
}

/* Computes outputs of every FUSED_OUTPUT_GROUPS-th chunk. */
DEVICE void write_rows_of(const linear_call &call, const states_work &work, const fused_memory &m,
                          int group, int warp, int lane)
{
    const linear_dims &d = call.dims;
    const int count = work.to - work.from, value = work.panel * CHUNK_PANEL;
    const fused_place place = {work.head, value, d.v_dim - value,
                               call.operands.skip && call.operands.skip_step};
    const float skip = place.skips ? 0 : linear_skip(&call, work.head, 0);
    float qk[32], out[32];
    fused_left p;
#pragma unroll 1
    for (int n = group; n < count; n += FUSED_OUTPUT_GROUPS) {
        const linear_chunk chunk = call.chunks.list[work.from + n];
        const int row = work.sequence.first_row + chunk.first;
        m.wait<fused_memory::full, FUSED_STAGES>(n);
        multiply_keys(m, n, qk);
        m.wait<fused_memory::kept, FUSED_STATES>(n);
        read_state(m, n, out);
        m.wait<fused_memory::found, FUSED_GATES>(n);
        const float *x = m.numbers(n);
        wgmma_wait<1>();
        wgmma_arrived(qk);
        find_products(d, qk, x, skip, warp, lane, p);
        const float left[2] = {x[FUSED_Q + 16 * warp + lane / 4],
                               x[FUSED_Q + 16 * warp + lane / 4 + 8]};
        wgmma_wait<0>();
        wgmma_arrived(out);
        m.arrive<fused_memory::taken, FUSED_STATES>(n);
        m.arrive<fused_memory::used, FUSED_GATES>(n);
#pragma unroll
        for (int i = 0; i < 32; i++)
            out[i] *= left[i % 4 / 2];
        add_values(out, p, shared_address(m.v(n)));
        wgmma_wait<0>();
        wgmma_arrived(out);
        if (place.skips || call.operands.z)
            gate_values(call, m, n, row, chunk.rows, place, warp, lane, out);
        m.arrive<fused_memory::read, FUSED_STAGES>(n);
        write_values(call, m.turn + group * FUSED_TURN, row, chunk.rows, place, warp, lane, out);
    }
}

/* ---- A segment ------------------------------------------------------------------------------- */

DEVICE void pass_states(const linear_call &call, const states_work &work, const fused_memory &m,
                        int warp, int lane)
{
    const int panel = work.panel + warp;
    state_tile s = {};
    begin_state(call, work, states_memory<false>(m.tiles, warp), warp, lane, s);
    pass_all_rows<true>(call, work, m, warp, lane, s);
    if (panel < call.dims.v_dim / CHUNK_PANEL)
        store_last_state(call, work, panel, lane, s);
}

/* Computes the state after a segment, from 0; for a sequence's first segment, from its initial
 * state. */
DEVICE void pass_results(const linear_call &call, const states_work &work, const fused_memory &m,
                         int warp, int lane)
{
    const int panel = work.panel + warp;
    const bool here = panel < call.dims.v_dim / CHUNK_PANEL;
    char *matrix = result_matrix(call, work, work.index);
    state_tile s = {};
    if (here && work.number == 0) { /* stored, as other segments may overwrite the slot */
        load_first_state(call, work, panel, lane, s);
        carry_state((float *)(matrix + CHUNK_RESULT_NUMBERS) + panel * CHUNK_CARRY + lane * 4, true,
                    s);
    }
    const float decay = pass_all_rows<false>(call, work, m, warp, lane, s);
    if (here)
        carry_state(result_state(call, work, work.index, panel, lane), true, s);
    if (work.panel == 0 && threadIdx.x == 0)
        *(float *)matrix = decay;
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

/* Segments of the window from chunk `first` on, times v heads, times slices of 64 values. Without
 * OUTPUTS: results of segments other than a sequence's last. With OUTPUTS: the last segments
 * first. */
template <bool OUTPUTS>
DEVICE void fused_block(const linear_call &call, const linear_maps &maps, int first, char *memory)
{
    const linear_dims &d = call.dims;
    const int panels = d.v_dim / CHUNK_PANEL;
    const int slices = (panels + CHUNK_STATE_WARPS - 1) / CHUNK_STATE_WARPS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % CHUNK_STATE_WARPS;
    const int group = __shfl_sync(~0u, threadIdx.x / (32 * CHUNK_STATE_WARPS), 0);
    const int at = OUTPUTS ? gridDim.x - 1 - blockIdx.x : blockIdx.x, rest = at / slices;
    states_work work;
    work.head = rest % d.v_heads;
    work.panel = at % slices * CHUNK_STATE_WARPS;
    if (!find_work(call, first, rest / d.v_heads, work))
        return;
    if (!OUTPUTS && work.number + 1 == work.count)
        return;
    const fused_memory m(memory);
    m.begin(OUTPUTS ? 2 : 1);
    if (group == 0) {
        setmaxnreg_inc<FUSED_REGISTERS>();
        if constexpr (OUTPUTS)
            pass_states(call, work, m, warp, lane);
        else
            pass_results(call, work, m, warp, lane);
    } else if (group <= FUSED_OUTPUT_GROUPS) {
        setmaxnreg_inc<FUSED_OUTPUT_REGISTERS>();
        if constexpr (OUTPUTS)
            write_rows_of(call, work, m, group - 1, warp, lane);
    } else {
        setmaxnreg_dec<FUSED_COPY_REGISTERS>();
        if (warp == FUSED_GATE_WARPS)
            copy_all_rows<OUTPUTS>(call, maps, work, m, lane);
        else
            find_all_numbers(call, work, m, warp, lane);
    }
}

#endif /* LINEAR_LIKE_CHUNK_FUSED_CUH */
