/* SPDX-License-Identifier: Apache-2.0
 *
 * states_wide.cuh: states and outputs of GDN with a norm, if sequences and heads fill the
 * multiprocessors. A block has 128 values, two warpgroups with 64 each. A warpgroup also computes
 * its outputs, from the operands in its registers, so nothing is passed on. Both read k, q, T and
 * P.
 */
#ifndef LINEAR_LIKE_STATES_WIDE_CUH
#define LINEAR_LIKE_STATES_WIDE_CUH

#include "plugins/linear_like/kernels/outputs_turns.cuh"
#include "plugins/linear_like/kernels/states_segments.cuh"
#include "plugins/linear_like/kernels/tile_rows.cuh"

/* Barriers of stages: all data has arrived; it has been read; rows of q and k from the batch have
 * arrived, with their numbers; the chunk's task is written. */
enum { WIDE_FULL, WIDE_FREE, WIDE_ROWS, WIDE_TASK };

/* Named barriers of a warpgroup and the warp that stores its outputs: outputs are in shared memory;
 * they have been read. Of both warpgroups: one may start its products of the state, as the other
 * has issued its own. */
enum { WIDE_THERE = 1, WIDE_READ = 3, WIDE_BOTH = 128 + 32, WIDE_TURN = 5, WIDE_PAIR = 256 };

/* A chunk of one of a block's parts. */
struct __align__(32) wide_task
{
    int row, rows; /* of the batch; rows == 0: there are no more chunks */
    int head, snapshot;
    int from, to; /* for a part's first and last chunk: slot and 1, or WIDE_CARRY; otherwise 0 */
};

/* The state passes from launch to launch. */
enum { WIDE_CARRY = -1 };

/* The position of the thread that requests chunks: its part, with chunks [from, to) of the list
 * left. */
struct __align__(16) wide_walk
{
    states_work work;
    linear_chunk next;
    int coming; /* the block's next part */
};

/* Shared memory of a block: stages of a chunk's data in the layout of the workspace, and rows of v;
 * buffers to transpose outputs; tasks; variables of a thread without registers for them. */
struct wide_memory {
    static constexpr int q = 0, k = CHUNK_TILE, numbers = 2 * CHUNK_TILE;
    static constexpr int products = numbers + CHUNK_NUMBERS, inverse = products + CHUNK_PRODUCTS;
    static constexpr int values = inverse + CHUNK_PRODUCTS;

    char *stages, *turns;
    wide_task *tasks;
    wide_walk *walk;
    unsigned barriers;

    __device__ __forceinline__ explicit wide_memory(char *from)
        : stages(from), turns(from + WIDE_STAGES * WIDE_STAGE),
          tasks((wide_task *)(turns + 2 * CHUNK_PRODUCTS)), walk((wide_walk *)(tasks + WIDE_TASKS)),
          barriers(shared_address(walk + 1))
    {
    }

    __device__ __forceinline__ wide_task &task(int n) const
    {
        return tasks[n % WIDE_TASKS];
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

    /* `tiles`: no warps convert rows. The warp that stores outputs also arrives at WIDE_FREE, after
     * it has read a chunk's task. */
    __device__ __forceinline__ void begin(bool tiles) const
    {
        if (threadIdx.x == 0) {
            walk->work.from = walk->work.to = 0, walk->coming = blockIdx.x;
            for (int i = 0; i < WIDE_STAGES; i++) {
                barrier_init(barrier(WIDE_FULL, i), tiles ? 1 : 3);
                barrier_init(barrier(WIDE_FREE, i), 2 * CHUNK_STATE_WARPS + 1);
                barrier_init(barrier(WIDE_ROWS, i), 1);
                barrier_init(barrier(WIDE_TASK, i), 1);
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

/* Takes a part that no block has taken. Two counts alternate: the launch of a window clears that of
 * the next one. */
DEVICE int take_part(const linear_call &call, int first)
{
    return gridDim.x + atomicAdd(call.chunks.count + 2 + first / call.chunks.window % 2, 1);
}

/* Finds the next chunk; false: there is none. Parts are sequences of the window times v heads. */
DEVICE bool find_chunk(const linear_call &call, int first, wide_walk &walk, wide_task &to)
{
    const linear_chunks &chunks = call.chunks;
    const int heads = call.dims.v_heads, part = walk.coming;
    states_work &work = walk.work;
    const bool begins = work.from == work.to;
    if (begins) {
        if (part >= chunks.most_segments * heads || !find_work(call, first, part / heads, work))
            return false;
        work.head = part % heads;
        walk.coming = take_part(call, first);
        walk.next = chunks.list[work.from];
    }
    to.row = work.sequence.first_row + walk.next.first, to.rows = walk.next.rows;
    to.head = work.head, to.snapshot = walk.next.snapshot;
    to.from = !begins ? 0 : work.from > work.begin ? WIDE_CARRY : work.sequence.slot + 1;
    to.to = work.from + 1 < work.to ? 0 : work.to < work.end ? WIDE_CARRY : work.sequence.dst + 1;
    return true;
}

/* The barriers of a stage's copies: of rows of q and k and their numbers; of rows of v; of all
 * other data. */
struct wide_arrivals {
    unsigned rows, values, rest;
};

/* The warps that convert rows of q and k do not wait for other data, but they clear rows of v
 * beyond the chunk's last. */
template <int RULE> DEVICE wide_arrivals expect_wide(const wide_memory &m, int n, int num_rows)
{
    const unsigned all = m.barrier(WIDE_FULL, n), rows = m.barrier(WIDE_ROWS, n);
    const unsigned keys = CHUNK_NUMBERS + 2 * CHUNK_TILE, rest = 2 * CHUNK_TRIANGLE;
    if (CHUNK_HAS_TILES(RULE)) {
        barrier_arrive_expect(all, keys + rest + CHUNK_TILE);
        return {all, all, all};
    }
    const bool whole = num_rows == CHUNK_ROWS;
    barrier_arrive_expect(rows, keys + (whole ? 0 : CHUNK_TILE));
    barrier_arrive_expect(all, rest + (whole ? CHUNK_TILE : 0));
    return {rows, whole ? all : rows, all};
}

/* Copies rows of chunk `index` of the window, which existed before linear_ready_* started. */
template <int RULE>
DEVICE void fetch_wide_rows(const linear_call &call, const linear_wide_maps &maps,
                            const wide_task &task, int index, unsigned to, const wide_arrivals &at)
{
    const linear_dims &d = call.dims;
    const int half = CHUNK_TILE / 2, key = task.head / d.ratio;
    const int row = call.chunks.rows ? index * CHUNK_ROWS : task.row;
    if (CHUNK_HAS_TILES(RULE))
        bulk_load(to + wide_memory::q,
                  call.chunks.keys + ((i64)index * d.k_heads + key) * CHUNK_KEYS_BYTES,
                  CHUNK_KEYS_BYTES, at.rows);
#pragma unroll
    for (int i = 0; !CHUNK_HAS_TILES(RULE) && i < 2; i++) {
        tensor_load(to + wide_memory::k + i * half, &maps.rows.k, at.rows, 64 * i, row, key, 0);
        tensor_load(to + wide_memory::q + i * half, &maps.rows.q, at.rows, 64 * i, row, key, 0);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        tensor_load(to + wide_memory::values + i * half, &maps.rows.v, at.values, 64 * i, row,
                    task.head, 0);
}

/* Copies all data of the block's chunk `n`; false: there is none. By one thread. Rows of the first
 * chunk arrive while the last blocks of linear_ready_* run. */
template <int RULE>
DEVICE bool fetch_wide(const linear_call &call, const linear_wide_maps &maps, int first,
                       const wide_memory &m, int n)
{
    wide_walk &walk = *m.walk;
    const unsigned to = shared_address(m.stage(n));
    wide_arrivals at = {};
    wide_task task = {};
    const bool there = find_chunk(call, first, walk, task);
    m.wait_free(n);
    m.task(n) = task;
    barrier_arrive(m.barrier(WIDE_TASK, n));
    const int index = walk.work.from - first;
    const char *from =
        call.chunks.values + ((i64)index * call.dims.v_heads + task.head) *
                                 CHUNK_VALUES_BYTES(call.dims.v_dim / CHUNK_PANEL, RULE);
    if (there) {
        at = expect_wide<RULE>(m, n, task.rows);
        if (n > 0)
            bulk_load(to + wide_memory::numbers, from, CHUNK_NUMBERS, at.rows);
        fetch_wide_rows<RULE>(call, maps, task, index, to, at);
    }
    if (n == 0)
        pdl_wait();
    if (!there)
        return false;
    if (n == 0)
        bulk_load(to + wide_memory::numbers, from, CHUNK_NUMBERS, at.rows);
    copy_triangle(to + wide_memory::inverse, from + CHUNK_NUMBERS + CHUNK_TRIANGLE, at.rest);
    copy_triangle(to + wide_memory::products, from + CHUNK_NUMBERS, at.rest);
    if (++walk.work.from < walk.work.to)
        walk.next = call.chunks.list[walk.work.from];
    return true;
}

/* Converts a chunk's `rows` rows of q and k to fp16, near length 1. Rows beyond belong to other
 * sequences; they are multiplied by 0, so they must become finite. */
DEVICE void convert_wide(char *stage, int rows)
{
    const float *numbers = (const float *)(stage + wide_memory::numbers);
#pragma unroll 1
    for (int thread = threadIdx.x % 64; thread < 128; thread += 64) {
        if (rows < CHUNK_ROWS)
            for (int i = 0; i < 3; i++)
                clear_rows(stage + (i < 2 ? i * CHUNK_TILE : wide_memory::values), thread, rows);
        convert_tile(stage + wide_memory::k, thread, numbers + NUMBERS_K_UP);
        convert_tile(stage + wide_memory::q, thread, numbers + NUMBERS_Q_UP);
    }
    fence_async_shared();
}

/* Stores outputs of chunk `n` of value group `group`, as soon as they are transposed. Partial
 * chunks are stored by all lanes, as rows of other sequences follow. By a warp, which also executes
 * the fence, as the warpgroup has no time for it. `more`: another chunk follows. */
DEVICE void store_wide(const linear_call &call, const linear_wide_maps &maps, const wide_memory &m,
                       int group, int n, bool more)
{
    const linear_operands &o = call.operands;
    const int lane = threadIdx.x % 32, value = group * 64 + lane % 8 * 8;
    const char *turn = m.turns + group * CHUNK_PRODUCTS;
    const wide_task &task = m.task(n);
    const int row = task.row, rows = task.rows, head = task.head;
    named_sync(WIDE_THERE + group, WIDE_BOTH);
    if (rows == CHUNK_ROWS) {
        fence_async_shared();
        if (lane == 0)
            tensor_store(&maps.out, shared_address(turn), group * 64, row, head, 0);
        store_commit();
        store_wait_read();
    } else {
        for (int i = lane / 8; i < rows && value < call.dims.v_dim; i += 4)
            *(uint4 *)(o.out + (i64)(row + i) * o.out_row + head * o.out_head + value * 2) =
                *(const uint4 *)(turn + tile_offset(i, lane % 8));
    }
    __syncwarp();
    if (more)
        named_arrive(WIDE_READ + group, WIDE_BOTH);
}

/* Prefetches a part's first state to L2, by a warp, so that nothing waits for memory between two
 * parts. */
DEVICE void prefetch_state(const linear_call &call, const wide_task &task)
{
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    const int bytes = (d.vk ? d.k_dim : d.v_dim) * (d.state_dtype == ELEMENT_BF16 ? 2 : 4);
    const int rows = d.vk ? d.v_dim : d.k_dim;
    const char *from = o.state + (task.from - 1) * o.state_slot + task.head * o.state_head;
    for (int row = threadIdx.x % 32; row < rows; row += 32)
        for (int at = 0; at < bytes; at += 128)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(from + row * o.state_row + at));
}

/* Converts rows of all chunks, by two warps. */
DEVICE void convert_all_wide(const wide_memory &m)
{
#pragma unroll 1
    for (int n = 0;; n++) {
        m.wait(WIDE_TASK, n);
        const int rows = m.task(n).rows;
        if (rows == 0)
            return;
        m.wait(WIDE_ROWS, n);
        convert_wide(m.stage(n), rows);
        m.arrive(WIDE_FULL, n);
    }
}

/* Stores outputs of all chunks, by a warp. */
DEVICE void store_all_wide(const linear_call &call, const linear_wide_maps &maps,
                           const wide_memory &m)
{
    bool more = true;
    named_arrive(WIDE_READ, WIDE_BOTH);
    named_arrive(WIDE_READ + 1, WIDE_BOTH);
#pragma unroll 1
    for (int n = 0; more; n++) {
        m.wait(WIDE_TASK, n);
        const wide_task &task = m.task(n);
        more = task.rows > 0;
        if (more && task.from > 1 && n > 0)
            prefetch_state(call, task);
        for (int group = 0; n > 0 && group < 2; group++)
            store_wide(call, maps, m, group, n - 1, more);
        if (more)
            m.arrive(WIDE_FREE, n);
    }
}

/* The third warpgroup: one thread requests chunks, two warps convert their rows, and one warp
 * stores outputs, so that none waits for what another waits for. */
template <int RULE>
DEVICE void fetch_all_wide(const linear_call &call, const linear_wide_maps &maps, int first,
                           const wide_memory &m, int warp)
{
    if (warp == 3)
        store_all_wide(call, maps, m);
    else if (warp > 0 && !CHUNK_HAS_TILES(RULE))
        convert_all_wide(m);
    else if (threadIdx.x % 128 == 0)
        for (int n = 0; fetch_wide<RULE>(call, maps, first, m, n); n++)
            ;
}

/* ---- A chunk --------------------------------------------------------------------------------- */

/* Transposes the outputs of the warp's values. `read`: q S in units of `held`; `added`: P U;
 * `kept`: U. */
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

/* Converts q S to units of 1, times the decay of the state at each row. */
DEVICE void scale_wide(const float2 (&left)[8], const float (&held)[2], float (&read)[32])
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        read[i] = read[i] * held[i / 2 % 2] * (i % 2 ? left[i / 4].y : left[i / 4].x);
}

/* Loads rows of v, transposed, from a panel of a tile, and their largest magnitudes. */
template <bool IS_F16>
DEVICE void load_wide_values(unsigned v, int warp, int lane, u32 (&to)[4][4], float (&largest)[2])
{
    const unsigned from = v + tile_offset(lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2);
    u32 most[2] = {0, 0};
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        load_matrices_turned(from + pair * 2048, to[pair]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            most[i % 2] = larger_magnitudes<IS_F16>(most[i % 2], to[pair][i]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        largest[i] = largest_of_row(
            IS_F16 ? fmaxf(half_low(most[i]), half_high(most[i]))
                   : fmaxf(fabsf(bits_f32(most[i] << 16)), fabsf(bits_f32(most[i] & 0xffff0000))));
}

/* Loads the numbers of a lane's rows: two of each eight. */
DEVICE void load_pairs(const float *numbers, int lane, float2 (&to)[8])
{
#pragma unroll
    for (int n = 0; n < 8; n++)
        to[n] = *(const float2 *)(numbers + 8 * n + lane % 4 * 2);
}

/* The right side of T, from v and the state's product with k. IS_F16: v is multiplied by `more`. */
template <bool IS_F16>
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
            if constexpr (IS_F16) {
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

/* If both warpgroups ran in phase, they would wait for products together and then compute together,
 * so they alternate. Not measured with tiles from the convolution. */
template <int RULE> DEVICE void wait_for_turn(int group)
{
    if (!CHUNK_HAS_TILES(RULE))
        named_sync(WIDE_TURN + group, WIDE_PAIR);
}

template <int RULE> DEVICE void pass_turn(int group)
{
    if (!CHUNK_HAS_TILES(RULE))
        named_arrive(WIDE_TURN + 1 - group, WIDE_PAIR);
}

/* The state after chunk `n`, and its outputs, transposed. `s` times `unit`. */
template <int RULE>
DEVICE void pass_wide(const wide_memory &m, int n, int group, int warp, int lane, state_tile &s,
                      float (&unit)[2])
{
#if HAS_HOPPER
    typedef wide_memory at;
    constexpr bool is_f16 = CHUNK_HAS_TILES(RULE);
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
    wait_for_turn<RULE>(group);
    multiply_rows(x, held.at[0], from + at::k, false);
    multiply_rows(x, held.at[4], from + at::k + CHUNK_TILE / 2, true);
    multiply_rows(read, held.at[0], from + at::q, false);
    multiply_rows(read, held.at[4], from + at::q + CHUNK_TILE / 2, true);
    pass_turn<RULE>(group);
    load_wide_values<is_f16>(from + at::values + group * (CHUNK_TILE / 2), warp, lane, v, value);
    if constexpr (is_f16)
        value[0] *= numbers[NUMBERS_MOST], value[1] *= numbers[NUMBERS_MOST];
    find_units(held, value, numbers[NUMBERS_DECAY], unit, units);
    load_pairs(numbers + NUMBERS_W, lane, keys);
    load_pairs(numbers + (is_f16 ? NUMBERS_U : NUMBERS_W), lane, left);
    wgmma_wait<2>();
    wgmma_arrived(x);
    find_side<is_f16>(v, keys, left, units, x, side);
    multiply_panels(x, side.at, from + at::inverse);
#pragma unroll
    for (int i = 0; i < 64; i++)
        s[i] *= units.state[i % 4 / 2];
    wgmma_arrived(s);
    load_pairs(numbers + NUMBERS_K, lane, keys);
    load_pairs(numbers + NUMBERS_Q, lane, left);
    wgmma_wait<0>();
    wgmma_arrived(x);
    wgmma_arrived(read);
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
    wgmma_wait<1>();
    wgmma_arrived(given);
    named_sync(WIDE_READ + group, WIDE_BOTH);
    turn_wide(keys, p, kept, given, read, turn, warp, lane);
    named_arrive(WIDE_THERE + group, WIDE_BOTH);
    wgmma_wait<0>();
    wgmma_arrived(s);
#else
    __trap();
#endif
}

/* ---- Parts ----------------------------------------------------------------------------------- */

/* A lane's part of the states passed to the next launch or, unless `after`, from the previous
 * launch. */
DEVICE float *find_carry(const linear_call &call, int first, int head, int panel, int lane,
                         bool after)
{
    const linear_chunks &chunks = call.chunks;
    const int panels = call.dims.v_dim / CHUNK_PANEL, odd = first / chunks.window % 2;
    const i64 half = (i64)call.dims.v_heads * panels * CHUNK_CARRY;
    return chunks.carry + (after ? odd : 1 - odd) * half +
           ((i64)head * panels + panel) * CHUNK_CARRY + lane * 4;
}

/* Loads the lane's part of a part's first state. `here`: the head has such values. */
DEVICE void load_wide_state(const linear_call &call, int first, const wide_task &task, bool here,
                            int panel, int lane, state_tile &s)
{
    const state_place at = {task.head, panel * CHUNK_PANEL + lane / 4, lane % 4 * 2};
#pragma unroll
    for (int i = 0; i < 64; i++)
        s[i] = 0;
    if (!here)
        return;
    if (task.from == WIDE_CARRY)
        carry_state(find_carry(call, first, task.head, panel, lane, false), false, s);
    else if (task.from > 1)
        pass_state<false>(call, task.from - 1, at, s);
}

/* Stores the state after a chunk: for its snapshot, for the part's sequence or the next launch. */
DEVICE void store_wide_state(const linear_call &call, int first, const wide_task &task, int panel,
                             int lane, state_tile &s)
{
    const state_place at = {task.head, panel * CHUNK_PANEL + lane / 4, lane % 4 * 2};
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        const int slot = i ? task.to - 1 : task.snapshot;
        if (slot > 0)
            pass_state<true>(call, slot, at, s);
    }
    if (task.to == WIDE_CARRY)
        carry_state(find_carry(call, first, task.head, panel, lane, true), true, s);
}

/* Processes all chunks of all parts; `group`: 64 values. */
template <int RULE>
DEVICE void pass_all_wide(const linear_call &call, int first, const wide_memory &m, int group,
                          int warp, int lane)
{
    const int panel = group * CHUNK_STATE_WARPS + warp;
    const bool here = panel < call.dims.v_dim / CHUNK_PANEL;
    bool begins = true, kept = false;
    state_tile s = {};
    float unit[2] = {1, 1};
    if (group == 1)
        pass_turn<RULE>(group);
#pragma unroll 1
    for (int n = 0;; n++) {
        if (begins) {
            m.wait(WIDE_TASK, n);
            if (__shfl_sync(~0u, m.task(n).rows, 0) == 0)
                break;
            load_wide_state(call, first, m.task(n), here, panel, lane, s);
        }
        if (begins | kept)
            scale_state<true>(s, unit);
        m.wait(WIDE_FULL, n);
        begins = __shfl_sync(~0u, m.task(n).to, 0) != 0;
        kept = __shfl_sync(~0u, m.task(n).snapshot, 0) != 0;
        pass_wide<RULE>(m, n, group, warp, lane, s, unit);
        m.arrive(WIDE_FREE, n);
        if (begins | kept) {
            restore_state(s, unit);
            if (here)
                store_wide_state(call, first, m.task(n), panel, lane, s);
        }
    }
    if (group == 0)
        wait_for_turn<RULE>(group); /* leaves no barrier with arrivals */
}

/* Processes sequences of the window from chunk `first` on, times v heads: a block has one part,
 * then each next one that no block has taken. */
template <int RULE>
DEVICE void wide_block(const linear_call &call, const linear_wide_maps &maps, int first,
                       char *memory)
{
    const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32 % 4, 0);
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const wide_memory m(memory);
    pdl_launch_dependents();
    if (blockIdx.x == 0 && threadIdx.x == 0)
        call.chunks.count[3 - first / call.chunks.window % 2] = 0;
    m.begin(CHUNK_HAS_TILES(RULE));
    if (group < 2) {
        setmaxnreg_inc<CHUNK_HAS_TILES(RULE) ? 232 : 224>();
        pass_all_wide<RULE>(call, first, m, group, warp, lane);
    } else {
        setmaxnreg_dec<CHUNK_HAS_TILES(RULE) ? 40 : 56>();
        fetch_all_wide<RULE>(call, maps, first, m, warp);
    }
}

#endif /* LINEAR_LIKE_STATES_WIDE_CUH */
