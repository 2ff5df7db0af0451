/* SPDX-License-Identifier: Apache-2.0
 *
 * states_copy.cuh: the copying warps: fill the rings of the states' and the outputs' warpgroups.
 */
#ifndef LINEAR_LIKE_STATES_COPY_CUH
#define LINEAR_LIKE_STATES_COPY_CUH

#include "plugins/linear_like/kernels/states_memory.cuh"
#include "plugins/linear_like/kernels/states_work.cuh"

/* Copies by bulk copy, or by all lanes of the warp. */
DEVICE void copy_bytes(char *to, const char *from, int bytes, unsigned barrier)
{
#if HAS_HOPPER
    bulk_load(shared_address(to), from, bytes, barrier);
#else
    (void)barrier;
    for (int i = threadIdx.x % 32 * 16; i < bytes; i += 32 * 16)
        copy_async(shared_address(to) + i, from + i);
#endif
}

/* Arrives at the barrier once this thread's copies so far have completed. */
DEVICE void arrive_copied(unsigned barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

/* Copies a lower triangle of blocks to four panels of sixteen columns; blocks above the diagonal
 * are unchanged. */
DEVICE void copy_triangle(unsigned to, const char *from, unsigned barrier)
{
#pragma unroll
    for (int panel = 0; panel < 4; panel++)
        bulk_load(to + panel * (2048 + 512), from + triangle_block(panel, panel), (4 - panel) * 512,
                  barrier);
}

/* Clears the blocks above the diagonal. */
template <int THREADS> DEVICE void clear_above(char *triangle)
{
    for (int panel = 1; panel < 4; panel++)
        for (int i = threadIdx.x % THREADS; i < panel * 32; i += THREADS)
            ((uint4 *)(triangle + panel * 2048))[i] = make_uint4(0, 0, 0, 0);
}

/* Copies a chunk's data for the states' warpgroup, except rows of v. */
template <int RULE>
DEVICE void copy_for_state(const linear_call &call, const states_work &work, const char *keys,
                           const char *values, char *to, unsigned barrier)
{
    typedef states_memory<RULE> at;
    const int panels = call.dims.v_dim / CHUNK_PANEL;
    const char *u = values + CHUNK_VALUES_BYTES(0, RULE) + work.panel * CHUNK_PANEL_BYTES;
    const int here =
        RULE >= CHUNK_INVERSE ? 0 : int_max(0, int_min(CHUNK_STATE_WARPS, panels - work.panel));
    if (HAS_HOPPER && threadIdx.x % 32 != 0)
        return;
#if HAS_HOPPER
    if constexpr (CHUNK_ONE_DECAY(RULE)) {
        barrier_arrive_expect(barrier, CHUNK_TILE + CHUNK_NUMBERS + CHUNK_TRIANGLE);
        copy_bytes(to + at::k, keys + CHUNK_TILE, CHUNK_TILE, barrier);
        copy_triangle(shared_address(to) + at::inverse, values + CHUNK_NUMBERS + CHUNK_TRIANGLE,
                      barrier);
        copy_bytes(to + at::state_numbers, values, CHUNK_NUMBERS, barrier);
        return;
    }
    barrier_arrive_expect(barrier, at::state_u - at::w + here * CHUNK_PANEL_BYTES);
#endif
    if (RULE == CHUNK_SOLVED)
        copy_bytes(to + at::w, values + CHUNK_NUMBERS + CHUNK_PRODUCTS, CHUNK_TILE, barrier);
    copy_bytes(to + at::k, keys + CHUNK_TILE, CHUNK_TILE, barrier);
    if (RULE >= CHUNK_INVERSE)
        copy_bytes(to + at::inverse, values + CHUNK_NUMBERS + CHUNK_PRODUCTS, CHUNK_PRODUCTS,
                   barrier);
    copy_bytes(to + at::state_numbers, values, CHUNK_NUMBERS, barrier);
    if (here > 0)
        copy_bytes(to + at::state_u, u, here * CHUNK_PANEL_BYTES, barrier);
}

/* Copies a chunk's data for the outputs' warpgroup. */
template <int RULE>
DEVICE void copy_for_outputs(const linear_call &call, const states_work &work, const char *keys,
                             const char *values, char *to, unsigned barrier)
{
    typedef states_memory<RULE> at;
    const int panels = call.dims.v_dim / CHUNK_PANEL;
    const char *u = values + CHUNK_VALUES_BYTES(0, RULE) + work.panel * CHUNK_PANEL_BYTES;
    const int here = int_max(0, int_min(CHUNK_STATE_WARPS, panels - work.panel));
    if (HAS_HOPPER && threadIdx.x % 32 != 0)
        return;
#if HAS_HOPPER
    if constexpr (CHUNK_ONE_DECAY(RULE)) {
        constexpr int bytes = CHUNK_NUMBERS + CHUNK_TRIANGLE;
        barrier_arrive_expect(barrier, CHUNK_TILE + bytes);
        copy_bytes(to + at::q, keys, CHUNK_TILE, barrier);
        copy_bytes(to + at::output_numbers, values, bytes, barrier);
        return;
    }
    barrier_arrive_expect(barrier,
                          at::products + CHUNK_PRODUCTS + (RULE ? 0 : here * CHUNK_PANEL_BYTES));
#endif
    constexpr int skipped = CHUNK_BY_CHANNELS(RULE) ? CHUNK_NUMBERS : 0;
    copy_bytes(to + at::q, keys, CHUNK_TILE, barrier);
    copy_bytes(to + at::output_numbers, values + skipped, CHUNK_NUMBERS + CHUNK_PRODUCTS - skipped,
               barrier);
    if (!RULE)
        copy_bytes(to + at::output_u, u, here * CHUNK_PANEL_BYTES, barrier);
}

/* Before a stage's first copy of T: a segment's matrix may have been there. */
template <int RULE> DEVICE void clear_triangle(const states_memory<RULE> &m, int n)
{
    clear_above<32>(m.stage(RING_STATE, n) + states_memory<RULE>::inverse);
    fence_async_shared();
    __syncwarp();
}

/* Copies half of a segment's matrix: M, or its rounding errors. */
template <int RULE>
DEVICE void copy_matrix(const linear_call &call, const states_work &work,
                        const states_memory<RULE> &m, int n)
{
    const char *from = result_matrix(call, work, work.index - work.number + 1 + n / 2) +
                       CHUNK_RESULT_NUMBERS + n % 2 * (2 * CHUNK_TILE);
#if HAS_HOPPER
    if (threadIdx.x % 32 != 0)
        return;
    barrier_arrive_expect(m.barrier(0, n), 2 * CHUNK_TILE);
#endif
    copy_bytes(m.stage(0, n), from, 2 * CHUNK_TILE, m.barrier(0, n));
}

/* Copies the data of all chunks for a warpgroup, except rows of v, by a dedicated warp. `ring`:
 * RING_STATE or RING_OUTPUTS. */
template <int RULE>
DEVICE void copy_chunks(const linear_call &call, const states_work &work,
                        const states_memory<RULE> &m, int ring)
{
    const linear_dims &d = call.dims;
    const int own = d.family == LINEAR_FAMILY_KDA, lead = ring == RING_STATE ? work.lead : 0;
    const i64 heads = own ? d.v_heads : d.k_heads, index = work.from - work.first;
    const i64 bytes = CHUNK_VALUES_BYTES(d.v_dim / CHUNK_PANEL, RULE);
    const char *keys =
        call.chunks.keys +
        (index * heads + (own ? work.head : work.head / d.ratio)) * CHUNK_RULE_KEYS_BYTES(RULE);
    const char *values = call.chunks.values + (index * d.v_heads + work.head) * bytes;
#pragma unroll 1
    for (int n = 0; n < lead + work.to - work.from; n++) {
        const int to = work.passed + n;
        const unsigned barrier =
            ring == RING_STATE ? m.barrier(RING_STATE, to) : m.barrier(RING_OUTPUTS, to);
        if (ring == RING_STATE)
            m.wait_free(RING_STATE, to);
        else
            m.wait_free(RING_OUTPUTS, to);
        if (RULE && n < lead) {
            copy_matrix(call, work, m, n);
        } else {
            if (CHUNK_ONE_DECAY(RULE) && ring == RING_STATE && n < lead + STATE_STAGES)
                clear_triangle(m, to);
            if (ring == RING_STATE)
                copy_for_state<RULE>(call, work, keys, values, m.stage(RING_STATE, to), barrier);
            else
                copy_for_outputs<RULE>(call, work, keys, values, m.stage(RING_OUTPUTS, to),
                                       barrier);
            keys += heads * CHUNK_RULE_KEYS_BYTES(RULE);
            values += d.v_heads * bytes;
        }
#if !HAS_HOPPER
        arrive_copied(barrier);
#endif
    }
}

/* Copies keys with the decays to the ends of all chunks, by a dedicated warp. */
template <int RULE>
DEVICE void copy_updates(const linear_call &call, const states_work &work,
                         const states_memory<RULE> &m)
{
    const i64 heads = call.dims.v_heads, index = work.from - work.first;
    const char *keys = call.chunks.keys + 2 * CHUNK_TILE +
                       (index * heads + work.head) * CHUNK_RULE_KEYS_BYTES(RULE);
#pragma unroll 1
    for (int n = 0; n < work.to - work.from; n++) {
        const int to = work.passed + n;
        const unsigned barrier = m.barrier(RING_UPDATES, to);
        m.wait_free(RING_UPDATES, to);
#if HAS_HOPPER
        if (threadIdx.x % 32 == 0) {
            barrier_arrive_expect(barrier, CHUNK_TILE);
            copy_bytes(m.stage(RING_UPDATES, to), keys, CHUNK_TILE, barrier);
        }
#else
        copy_bytes(m.stage(RING_UPDATES, to), keys, CHUNK_TILE, barrier);
        arrive_copied(barrier);
#endif
        keys += heads * CHUNK_RULE_KEYS_BYTES(RULE);
    }
}

/* Copies every fourth row of a slice of v, 16 bytes each; missing rows are 0. */
DEVICE void copy_slice(unsigned to, const char *from, i64 apart, int rows)
{
#pragma unroll
    for (int i = 0; i < CHUNK_ROWS / 4; i++) {
        asm volatile(
            "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + 4 * i * CHUNK_V_ROW),
            "l"(from), "r"(4 * i < rows ? 16 : 0)
            : "memory");
        from += 4 * apart;
    }
}

/* Copies rows of v of all chunks, for the block's values, by a dedicated warp: TMA would take 70 ns
 * per row. Rows are padded by 16 bytes to avoid bank conflicts. */
template <int RULE>
DEVICE void copy_values(const linear_call &call, const states_work &work,
                        const states_memory<RULE> &m, int slices = 1)
{
    const linear_dims &d = call.dims;
    const linear_chunk *list = call.chunks.list + work.from;
    const i64 apart = call.operands.mixed_row;
    const int row = threadIdx.x % 32 / 8, at = threadIdx.x % 8 * 16;
    const int width = (d.v_dim / CHUNK_PANEL - work.panel) * (CHUNK_PANEL * 2);
    const char *first = call.operands.mixed + row * apart +
                        (d.first[2] + work.head * d.v_dim + work.panel * CHUNK_PANEL) * 2 + at;
    int index = work.from - work.first, rows = list->rows;
    int begin = find_row(call, work.sequence, *list, index);
#pragma unroll 1
    for (int n = 0; n < work.lead + work.to - work.from; n++) {
        const unsigned to = shared_address(m.stage(0, work.passed + n)) +
                            states_memory<RULE>::state_u + row * CHUNK_V_ROW + at;
        const char *from = first + begin * apart;
        const int here = n >= work.lead && at < width ? rows - row : 0;
        m.wait_free(0, work.passed + n);
        if constexpr (CHUNK_BY_CHANNELS(RULE)) {
            for (int slice = 0; n >= work.lead && slice < slices; slice++)
                copy_slice(to + slice * (CHUNK_ROWS * CHUNK_V_ROW), from + slice * 128, apart,
                           at + slice * 128 < width ? here : 0);
        } else {
#pragma unroll
            for (int i = 0; i < CHUNK_ROWS / 4; i++) {
                if (4 * i < here)
                    copy_async(to + 4 * i * CHUNK_V_ROW, from);
                /* The unit of a chunk does not depend on other chunks. */
                else if (CHUNK_ONE_DECAY(RULE) && n >= work.lead)
                    copy_or_clear(to + 4 * i * CHUNK_V_ROW, first, false);
                from += 4 * apart;
            }
        }
        arrive_copied(m.barrier(0, work.passed + n));
        if (n >= work.lead && n + 1 < work.lead + work.to - work.from) {
            list++, index++;
            begin = find_row(call, work.sequence, *list, index), rows = list->rows;
        }
    }
}

#endif /* LINEAR_LIKE_STATES_COPY_CUH */
