/* SPDX-License-Identifier: Apache-2.0
 *
 * states_wide.cuh: states and outputs of GDN with a norm where sequences and heads fill the multiprocessors: a
 * block has 128 values, two warpgroups for 64 of them each. A warpgroup makes outputs, too, from the operands
 * that it has in registers, so nothing is handed on: k and q, T and P are read by both.
 */
#ifndef LINEAR_LIKE_STATES_WIDE_CUH
#define LINEAR_LIKE_STATES_WIDE_CUH

#include "plugins/linear_like/kernels/outputs_turns.cuh"
#include "plugins/linear_like/kernels/states_segments.cuh"
#include "plugins/linear_like/kernels/tile_rows.cuh"

/* Of stages: all is there; it has been read; rows of q, k and v are there as the batch has them. */
enum { WIDE_FULL, WIDE_FREE, WIDE_ROWS };

/* Named barriers of a warpgroup and the warp that stores its outputs: these are there; they have been read. */
enum { WIDE_THERE = 1, WIDE_READ = 3, WIDE_BOTH = 128 + 32 };

/* Shared memory of a block: stages of all that is needed of a chunk, as the workspace has it, and rows of v;
 * what outputs are turned in. */
struct wide_memory {
    static constexpr int q = 0, k = CHUNK_TILE, numbers = 2 * CHUNK_TILE;
    static constexpr int products = numbers + CHUNK_NUMBERS, inverse = products + CHUNK_PRODUCTS;
    static constexpr int values = inverse + CHUNK_PRODUCTS;

    char *stages, *turns;
    unsigned barriers;

    __device__ __forceinline__ explicit wide_memory(char *from)
        : stages(from), turns(from + WIDE_STAGES * WIDE_STAGE),
          barriers(shared_address(turns + 2 * CHUNK_PRODUCTS))
    {
    }

    __device__ __forceinline__ char *stage(int n) const
    {
        return stages + n % WIDE_STAGES * WIDE_STAGE;
    }

    __device__ __forceinline__ unsigned barrier(int kind, int n) const
    {
        return barriers + 8 * (kind * WIDE_STAGES + n % WIDE_STAGES);
    }

    __device__ __forceinline__ void wait(int kind, int n) const
    {
        barrier_wait(barrier(kind, n), n / WIDE_STAGES & 1);
    }

    __device__ __forceinline__ void arrive(int kind, int n) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(barrier(kind, n));
    }

    __device__ __forceinline__ void wait_free(int n) const
    {
        if (n >= WIDE_STAGES)
            barrier_wait(barrier(WIDE_FREE, n), (n / WIDE_STAGES - 1) & 1);
    }

    /* `filling`: arrivals at WIDE_FULL. */
    __device__ __forceinline__ void begin(int filling) const
    {
        if (threadIdx.x == 0) {
            for (int i = 0; i < WIDE_STAGES; i++) {
                barrier_init(barrier(WIDE_FULL, i), filling);
                barrier_init(barrier(WIDE_FREE, i), 2 * CHUNK_STATE_WARPS);
                barrier_init(barrier(WIDE_ROWS, i), 1);
            }
            fence_barrier_init();
        }
        for (int n = 0; n < WIDE_STAGES; n++) {
            clear_above<CHUNK_STATE_THREADS>(stage(n) + products);
            clear_above<CHUNK_STATE_THREADS>(stage(n) + inverse);
        }
        fence_async_shared();
        __syncthreads();
    }
};

/* ---- Copies ---------------------------------------------------------------------------------- */

/* All that chunk `n` of the block's needs, which begins with row `chunk` of the sequence. A thread. */
template <int RULE>
DEVICE void fetch_wide(const linear_call &call, const linear_wide_maps &maps,
                       const states_work &work, const wide_memory &m, int n, int chunk)
{
    const linear_dims &d = call.dims;
    const int index = work.from - work.first + n;
    const int key = work.head / d.ratio, half = CHUNK_TILE / 2;
    const int row = call.chunks.rows ? index * CHUNK_ROWS : work.sequence.first_row + chunk;
    const unsigned to = shared_address(m.stage(n));
    const unsigned barrier = m.barrier(CHUNK_HAS_TILES(RULE) ? WIDE_FULL : WIDE_ROWS, n);
    const char *from = call.chunks.values + ((i64)index * d.v_heads + work.head) *
                                                CHUNK_VALUES_BYTES(d.v_dim / CHUNK_PANEL, RULE);
    m.wait_free(n);
    if (n == 0)
        grid_wait();
    barrier_arrive_expect(barrier, CHUNK_NUMBERS + 2 * CHUNK_TRIANGLE + 3 * CHUNK_TILE);
    if (CHUNK_HAS_TILES(RULE))
        bulk_load(to + wide_memory::q,
                  call.chunks.keys + ((i64)index * d.k_heads + key) * CHUNK_KEYS_BYTES,
                  CHUNK_KEYS_BYTES, barrier);
#pragma unroll
    for (int i = 0; !CHUNK_HAS_TILES(RULE) && i < 2; i++) {
        tensor_load(to + wide_memory::k + i * half, &maps.rows.k, barrier, 64 * i, row, key, 0);
        tensor_load(to + wide_memory::q + i * half, &maps.rows.q, barrier, 64 * i, row, key, 0);
    }
    bulk_load(to + wide_memory::numbers, from, CHUNK_NUMBERS, barrier);
#pragma unroll
    for (int i = 0; i < 2; i++)
        tensor_load(to + wide_memory::values + i * half, &maps.rows.v, barrier, 64 * i, row,
                    work.head, 0);
    copy_triangle(to + wide_memory::inverse, from + CHUNK_NUMBERS + CHUNK_TRIANGLE, barrier);
    copy_triangle(to + wide_memory::products, from + CHUNK_NUMBERS, barrier);
}

/* Rows of q and k of a chunk, of which there are `rows`, as fp16, near length 1. What has been copied beyond them
 * is others', and is multiplied by 0, so that it is to be finite. */
DEVICE void convert_wide(char *stage, int rows)
{
    const float *numbers = (const float *)(stage + wide_memory::numbers);
    if (rows < CHUNK_ROWS)
        for (int i = 0; i < 3; i++)
            clear_rows(stage + (i < 2 ? i * CHUNK_TILE : wide_memory::values), rows);
    convert_tile(stage + wide_memory::k, numbers + NUMBERS_K_UP);
    convert_tile(stage + wide_memory::q, numbers + NUMBERS_Q_UP);
    fence_async_shared();
}

/* Outputs of chunk `n` of group `group` of values, as soon as they are turned: of few rows by all lanes, as others'
 * rows follow. A warp, which has the fence, as the warpgroup has no time for it. */
DEVICE void store_wide(const linear_call &call, const linear_wide_maps &maps,
                       const states_work &work, const wide_memory &m, int group, int n)
{
    const linear_operands &o = call.operands;
    const linear_chunk chunk = call.chunks.list[work.from + n];
    const int lane = threadIdx.x % 32, value = group * 64 + lane % 8 * 8;
    const int row = work.sequence.first_row + chunk.first;
    const char *turn = m.turns + group * CHUNK_PRODUCTS;
    named_sync(WIDE_THERE + group, WIDE_BOTH);
    if (chunk.rows == CHUNK_ROWS) {
        fence_async_shared();
        if (lane == 0)
            tensor_store(&maps.out, shared_address(turn), group * 64, row, work.head, 0);
        store_commit();
        store_wait_read();
    } else {
        for (int i = lane / 8; i < chunk.rows && value < call.dims.v_dim; i += 4)
            *(uint4 *)(o.out + (i64)(row + i) * o.out_row + work.head * o.out_head + value * 2) =
                *(const uint4 *)(turn + tile_offset(i, lane % 8));
    }
    __syncwarp();
    if (work.from + n + 1 < work.to)
        named_arrive(WIDE_READ + group, WIDE_BOTH);
}

/* What all chunks need, and their outputs, by the third warpgroup: two chunks are on their way while one is converted.
 * Its last two warps store outputs, of the chunk before the last one that has been read. */
template <int RULE>
DEVICE void fetch_all_wide(const linear_call &call, const linear_wide_maps &maps,
                           const states_work &work, const wide_memory &m, int warp)
{
    const int count = work.to - work.from;
    const linear_chunk *list = call.chunks.list + work.from;
    int ahead = list[0].first, next = list[0].rows;
    if (warp >= 2)
        named_arrive(WIDE_READ + warp - 2, WIDE_BOTH);
#pragma unroll 1
    for (int n = -2; n < count + 2; n++) {
        if (!CHUNK_HAS_TILES(RULE) && n >= 0 && n < count) {
            const int rows = next;
            next = list[int_min(n + 1, count - 1)].rows;
            m.wait(WIDE_ROWS, n);
            convert_wide(m.stage(n), rows);
            m.arrive(WIDE_FULL, n);
        }
        if (warp >= 2 && n >= 2)
            store_wide(call, maps, work, m, warp - 2, n - 2);
        if (threadIdx.x % 128 == 0 && n + 2 < count)
            fetch_wide<RULE>(call, maps, work, m, n + 2, ahead);
        ahead = list[int_min(n + 3, count - 1)].first;
    }
}

/* ---- A chunk --------------------------------------------------------------------------------- */

/* Outputs of the warp's values, turned. `read`: q S in units of `held`; `added`: P U; `kept`: U. */
DEVICE void turn_wide(const float2 (&owns)[8], float p, const left_operand<8> &kept,
                      const float (&added)[32], float (&read)[32], char *turn, int warp, int lane)
{
    const unsigned to =
        shared_address(turn) + tile_offset(lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 own = owns[n];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 two = kept.at[n / 2][n % 2 * 2 + i];
            float *x = read + 4 * n + 2 * i;
            const float *a = added + 4 * n + 2 * i;
            x[0] = finish_output(x[0], a[0], p, own.x, half_low(two), kept.times[i]);
            x[1] = finish_output(x[1], a[1], p, own.y, half_high(two), kept.times[i]);
        }
    }
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        u32 y[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            y[i] = pack_two(ELEMENT_BF16, read[8 * pair + 2 * i], read[8 * pair + 2 * i + 1]);
        store_matrices_turned(to + pair * 2048, y);
    }
}

/* q S, in units of 1 and times what is left of the state in each row. */
DEVICE void scale_wide(const float2 (&left)[8], const float (&held)[2], float (&read)[32])
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        read[i] = read[i] * held[i / 2 % 2] * (i % 2 ? left[i / 4].y : left[i / 4].x);
}

/* Rows of v, turned, and the largest magnitude of each, of a panel of a tile. */
template <bool HALF>
DEVICE void load_wide_values(unsigned v, int warp, int lane, u32 (&to)[4][4], float (&largest)[2])
{
    const unsigned from = v + tile_offset(lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2);
    u32 most[2] = {0, 0};
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        load_matrices_turned(from + pair * 2048, to[pair]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            most[i % 2] = larger_magnitudes<HALF>(most[i % 2], to[pair][i]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        largest[i] = largest_of_row(
            HALF ? fmaxf(half_low(most[i]), half_high(most[i]))
                 : fmaxf(fabsf(bits_f32(most[i] << 16)), fabsf(bits_f32(most[i] & 0xffff0000))));
}

/* Numbers of a lane's rows: two of each eight. */
DEVICE void load_pairs(const float *numbers, int lane, float2 (&to)[8])
{
#pragma unroll
    for (int n = 0; n < 8; n++)
        to[n] = *(const float2 *)(numbers + 8 * n + lane % 4 * 2);
}

/* The right side of T, from v and what the state gives for k. HALF: v is times `more`. */
template <bool HALF>
DEVICE void find_side(const u32 (&v)[4][4], const float2 (&numbers)[8], const float2 (&more)[8],
                      const turn_units &units, const float (&x)[32], left_operand<8> &to)
{
    u32 up[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        up[i] = f32_bits(units.side[i]) | f32_bits(units.side[i]) >> 16; /* a power of two, twice */
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 less = numbers[n], of = more[n];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const u32 two = v[n / 2][n % 2 * 2 + i];
            float y[2];
            if constexpr (HALF) {
                y[0] = half_low(two) * (of.x * units.side[i]);
                y[1] = half_high(two) * (of.y * units.side[i]);
            } else {
                u32 z;
                asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(two), "r"(up[i]));
                y[0] = bits_f32(z << 16), y[1] = bits_f32(z & 0xffff0000);
            }
            to.at[n / 2][n % 2 * 2 + i] =
                pack_half(fmaf(x[4 * n + 2 * i], -(less.x * units.held[i]), y[0]),
                          fmaf(x[4 * n + 2 * i + 1], -(less.y * units.held[i]), y[1]));
        }
    }
}

/* The state after chunk `n`, and outputs, turned. `s` times `unit`. */
template <int RULE>
DEVICE void pass_wide(const wide_memory &m, int n, int group, int warp, int lane, state_tile &s,
                      float (&unit)[2])
{
#if HAS_HOPPER
    typedef wide_memory at;
    constexpr bool half = CHUNK_HAS_TILES(RULE);
    const char *stage = m.stage(n);
    const unsigned from = __shfl_sync(~0u, shared_address(stage), 0);
    const float *numbers = (const float *)(stage + at::numbers);
    char *turn = m.turns + group * CHUNK_PRODUCTS;
    const float one[2] = {1, 1}, before[2] = {unit[0], unit[1]};
    left_operand<16> held;
    left_operand<8> side, added, kept;
    turn_units units;
    float x[32], read[32], given[32], value[2];
    float2 keys[8], left[8];
    u32 v[4][4];
    pack_left<0, 16, 16>(s, one, held);
    multiply_rows(x, held.at[0], from + at::k, false);
    multiply_rows(x, held.at[4], from + at::k + CHUNK_TILE / 2, true);
    multiply_rows(read, held.at[0], from + at::q, false);
    multiply_rows(read, held.at[4], from + at::q + CHUNK_TILE / 2, true);
    load_wide_values<half>(from + at::values + group * (CHUNK_TILE / 2), warp, lane, v, value);
    if constexpr (half)
        value[0] *= numbers[NUMBERS_MOST], value[1] *= numbers[NUMBERS_MOST];
    find_units(held, value, numbers[NUMBERS_DECAY], unit, units);
    load_pairs(numbers + NUMBERS_W, lane, keys);
    load_pairs(numbers + (half ? NUMBERS_U : NUMBERS_W), lane, left);
    products_wait<2>();
    products_arrived(x);
    find_side<half>(v, keys, left, units, x, side);
    multiply_panels(x, side.at, from + at::inverse);
#pragma unroll
    for (int i = 0; i < 64; i++)
        s[i] *= units.state[i % 4 / 2];
    products_arrived(s);
    load_pairs(numbers + NUMBERS_K, lane, keys);
    load_pairs(numbers + NUMBERS_Q, lane, left);
    products_wait<0>();
    products_arrived(x);
    products_arrived(read);
    pack_left<0, 8, 8>(x, one, kept);
    kept.times[0] = units.kept[0], kept.times[1] = units.kept[1];
    multiply_panels(given, kept.at, from + at::products);
#pragma unroll
    for (int i = 0; i < 32; i++)
        x[i] *= i % 2 ? keys[i / 4].y : keys[i / 4].x;
    pack_left<0, 8, 8>(x, one, added);
    multiply_keys(s, added.at, from + at::k);
    scale_wide(left, before, read);
    load_pairs(numbers + NUMBERS_OWN(true), lane, keys);
    const float p = numbers[NUMBERS_P];
    products_wait<1>();
    products_arrived(given);
    named_sync(WIDE_READ + group, WIDE_BOTH);
    turn_wide(keys, p, kept, given, read, turn, warp, lane);
    named_arrive(WIDE_THERE + group, WIDE_BOTH);
    products_wait<0>();
    products_arrived(s);
#else
    __trap();
#endif
}

/* ---- A sequence ------------------------------------------------------------------------------ */

/* All chunks; `group`: 64 values. */
template <int RULE>
DEVICE void pass_all_wide(const linear_call &call, const states_work &work, const wide_memory &m,
                          int group, int warp, int lane)
{
    const int panel = group * CHUNK_STATE_WARPS + warp, count = work.to - work.from;
    const bool here = panel < call.dims.v_dim / CHUNK_PANEL;
    const state_place at = {work.head, panel * CHUNK_PANEL + lane / 4, lane % 4 * 2};
    const linear_chunk *list = call.chunks.list + work.from;
    linear_chunk next = list[0];
    state_tile s = {};
    float unit[2] = {1, 1};
    if (here)
        load_first_state(call, work, panel, lane, s);
    scale_state<true>(s, unit);
#pragma unroll 1
    for (int n = 0; n < count; n++) {
        const linear_chunk chunk = next;
        const int snapshot = __shfl_sync(~0u, chunk.snapshot, 0);
        next = list[int_min(n + 1, count - 1)];
        m.wait(WIDE_FULL, n);
        pass_wide<RULE>(m, n, group, warp, lane, s, unit);
        m.arrive(WIDE_FREE, n);
        if (snapshot) {
            restore_state(s, unit);
            if (here)
                pass_state<true>(call, snapshot, at, s);
            scale_state<true>(s, unit);
        }
    }
    restore_state(s, unit);
    if (here)
        store_last_state(call, work, panel, lane, s);
}

/* Blocks: sequences of the window from chunk `first` on, times v heads. */
template <int RULE>
DEVICE void wide_block(const linear_call &call, const linear_wide_maps &maps, int first,
                       char *memory)
{
    const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    states_work work;
    work.head = blockIdx.x % call.dims.v_heads;
    work.panel = 0;
    if (!find_work(call, first, (gridDim.x - 1 - blockIdx.x) / call.dims.v_heads, work)) {
        grid_wait();
        return;
    }
    const wide_memory m(memory);
    m.begin(CHUNK_HAS_TILES(RULE) ? 1 : CHUNK_STATE_WARPS);
    if (group < 2) {
        registers_take<CHUNK_HAS_TILES(RULE) ? 232 : 224>();
        pass_all_wide<RULE>(call, work, m, group, warp, lane);
    } else {
        registers_release<CHUNK_HAS_TILES(RULE) ? 40 : 56>();
        fetch_all_wide<RULE>(call, maps, work, m, warp);
    }
}

#endif /* LINEAR_LIKE_STATES_WIDE_CUH */
