/* SPDX-License-Identifier: Apache-2.0
 *
 * chunk_states.cuh: propagates the states of sequences from chunk to chunk, and computes all
 * outputs, from the chunks prepared by chunk_ready.cuh.
 *
 * A block has 64 values of a head and all of k, a warp 16 values: the transposed state, 64 x 128,
 * stays in the accumulators of a warpgroup's product from the first chunk to the last. Accumulators
 * have the layout of the next product's left operand:
 *
 *   U' = u - w S;  O = q S + P U';  S = decay S + k' U'
 *
 * all transposed: S' w', S' q', U'' P', U'' k. The first warpgroup propagates the state. The second
 * computes outputs from the state and U', which it receives in the layout of the first one's
 * registers. For GDN and KDA with a norm it receives tiles, and its products are not transposed.
 *
 * A chunk maps a state S to S M + N. If few sequences and heads would leave multiprocessors idle,
 * sequences are cut into segments of chunks. linear_segments_* computes N and M of each segment
 * except the last: N as the state after it from 0 on, M as the state of the unit matrix with u = 0.
 * Then all segments run in parallel, each starting with S <- S M + N of the segments before it. A
 * plain rule's M is a decay.
 */
#ifndef LINEAR_LIKE_CHUNK_STATES_CUH
#define LINEAR_LIKE_CHUNK_STATES_CUH

#include "plugins/linear_like/kernels/outputs_turns.cuh"
#include "plugins/linear_like/kernels/states_segments.cuh"
#include "plugins/linear_like/kernels/states_whole.cuh"

/* ---- A segment ------------------------------------------------------------------------------- */

template <int RULE, bool EXACT>
DEVICE void pass_chunks(const linear_call &call, const states_work &work,
                        const states_memory<RULE> &m, int warp, int lane)
{
    const int panel = work.panel + warp;
    const bool here = panel < call.dims.v_dim / CHUNK_PANEL;
    const state_place place = {work.head, panel * CHUNK_PANEL + lane / 4, lane % 4 * 2};
    state_tile s = {};
    float unit[2] = {1, 1};
    begin_state(call, work, m, warp, lane, s);
    if (RULE >= CHUNK_INVERSE)
        scale_state<true>(s, unit);
#pragma unroll 1
    for (int n = 0; n < work.to - work.from; n++) {
        const int snapshot = __shfl_sync(~0u, call.chunks.list[work.from + n].snapshot, 0);
        const int at = work.passed + work.lead + n;
        m.wait(0, at);
        pass_chunk<RULE, EXACT, PASS_HANDED>(m, m.stage(0, at), work.passed + n, warp, lane, s,
                                             unit);
        m.free(0, at);
        if (here && snapshot) {
            if (RULE >= CHUNK_INVERSE)
                restore_state(s, unit);
            pass_state<true>(call, snapshot, place, s);
            if (RULE >= CHUNK_INVERSE)
                scale_state<true>(s, unit);
        }
    }
    restore_state(s, unit);
    if (here)
        store_last_state(call, work, panel, lane, s);
}

template <int RULE>
DEVICE void write_chunks(const linear_call &call, const states_work &work,
                         const states_memory<RULE> &m, int warp, int lane)
{
    output_place place;
    place.head = work.head;
    place.value = (work.panel + warp) * CHUNK_PANEL + lane % 2 * 8;
    place.here = place.value < call.dims.v_dim;
#pragma unroll
    for (int i = 0; i < 8; i++)
        place.skip[i] = place.here ? linear_skip(&call, work.head, place.value + i) : 0;
#pragma unroll 1
    for (int n = 0; n < work.to - work.from; n++) {
        const linear_chunk chunk = call.chunks.list[work.from + n];
        m.wait(1, n);
        write_chunk(call, m, n, work.sequence.first_row + chunk.first, chunk.rows,
                    work.from + n + 1 == work.to, place, warp, lane);
        m.free(1, n);
    }
}

template <int RULE>
DEVICE void write_turns(const linear_call &call, const states_work &work,
                        const states_memory<RULE> &m, int warp, int lane)
{
    const int count = work.to - work.from;
    output_place place;
    place.head = work.head;
    place.value = work.panel * CHUNK_PANEL; /* the block's first */
#pragma unroll 1
    for (int n = 0; n < int_min(CHUNK_PLACES, count); n++)
        named_arrive(TURN_TAKEN + n, 64 * CHUNK_STATE_WARPS);
#pragma unroll 1
    for (int n = 0; n < count; n++) {
        const linear_chunk chunk = call.chunks.list[work.from + n];
        m.wait(RING_OUTPUTS, n);
        write_turn(call, m, n, work.sequence.first_row + chunk.first, chunk.rows,
                   n + CHUNK_PLACES < count, place, warp, lane);
        m.free(RING_OUTPUTS, n);
    }
}

/* Initialises barriers of filled stages, and of stages released by `readers` warps. */
template <int RULE> DEVICE void begin_barriers(unsigned barriers, int readers)
{
    constexpr int filling = HAS_HOPPER ? 1 : 32, rows = RULE >= CHUNK_INVERSE ? 32 : 0;
    constexpr int stages = states_memory<RULE>::all_stages;
    if (threadIdx.x == 0) {
        for (int i = 0; i < stages; i++) {
            barrier_init(barriers + 8 * i, filling + (i < STATE_STAGES ? rows : 0));
            barrier_init(barriers + 8 * (stages + i), readers);
        }
        fence_barrier_init();
    }
    __syncthreads();
}

/* Clears rows of v that are never written: they are multiplied by 0, so they must be finite. */
template <int RULE> DEVICE void begin_values(const states_memory<RULE> &m)
{
    for (int n = 0; CHUNK_BY_CHANNELS(RULE) && n < STATE_STAGES; n++)
        for (int i = threadIdx.x; i < CHUNK_ROWS * CHUNK_V_ROW / 16; i += CHUNK_STATE_THREADS)
            ((uint4 *)(m.stage(0, n) + states_memory<RULE>::state_u))[i] = make_uint4(0, 0, 0, 0);
    fence_async_shared();
}

/* The warp's number in its warpgroup. The broadcast tells the compiler that it is uniform. */
DEVICE int find_warp(void)
{
    return __shfl_sync(~0u, threadIdx.x / 32 % CHUNK_STATE_WARPS, 0);
}

/* The number of slices of 64 values. */
DEVICE int count_slices(const linear_dims &d)
{
    const int panels = d.v_dim / CHUNK_PANEL;
    return (panels + CHUNK_STATE_WARPS - 1) / CHUNK_STATE_WARPS;
}

/* If strips processed a sequence's first chunks, the state comes from that launch. */
template <int RULE> DEVICE void take_after_strips(const linear_call &call, states_work &work)
{
    if (CHUNK_BY_CHANNELS(RULE))
        work.begin -= call.chunks.count[1] > 0;
}

/* Finds part `part` of a launch: segments times v heads times slices. The last segments are first,
 * as one may be longer. Each part has its own block, except by the rules CHUNK_IN_TURN without cut
 * sequences: there a block processes several parts, from the first sequence on. False: there is no
 * such part, and none after it. */
template <int RULE>
DEVICE bool find_part(const linear_call &call, int first, int slices, unsigned part,
                      states_work &work)
{
    const int rest = part / slices;
    work.head = rest % call.dims.v_heads;
    work.panel = part % slices * CHUNK_STATE_WARPS;
    const bool in_turn = CHUNK_IN_TURN(RULE) && call.chunks.room == 0;
    const int index = (in_turn ? rest : gridDim.x / slices - 1 - rest) / call.dims.v_heads;
    if ((in_turn && index >= call.chunks.most_segments) || !find_work(call, first, index, work))
        return false;
    take_after_strips<RULE>(call, work);
    return true;
}

/* Finds the block's next part, if there is one. Blocks take parts back and forth, so that each has
 * long and short sequences even if lengths alternate or are sorted. */
template <int RULE>
DEVICE bool find_next(const linear_call &call, int first, int slices, unsigned &part,
                      states_work &work)
{
    const int passed = work.passed + work.to - work.from;
    part = (2 * (part / gridDim.x) + 2) * gridDim.x - 1 - part;
    if (call.chunks.room > 0 || !find_part<RULE>(call, first, slices, part, work))
        return false;
    work.passed = passed;
    return true;
}

/* Processes chunks of the list from `first` on. */
template <int RULE, bool EXACT>
DEVICE void states_block(const linear_call &call, int first, char *memory)
{
    const int slices = count_slices(call.dims), lane = threadIdx.x % 32;
    const int warp = find_warp();
    /* Uniform; the shuffle tells the compiler. */
    const int group = __shfl_sync(~0u, threadIdx.x / (32 * CHUNK_STATE_WARPS), 0);
    unsigned part = blockIdx.x;
    states_work work;
    if (!find_part<RULE>(call, first, slices, part, work))
        return;
    if (RULE && work.number > 1)
        work.lead = 2 * (work.number - 1);
    const states_memory<RULE> m(memory, warp);
    begin_values<RULE>(m);
    begin_barriers<RULE>(m.barriers, CHUNK_STATE_WARPS);
    if (group == 0) {
        setmaxnreg_inc<240>();
        do
            pass_chunks<RULE, EXACT>(call, work, m, warp, lane);
        while (CHUNK_IN_TURN(RULE) && find_next<RULE>(call, first, slices, part, work));
    } else if (group == 1) {
        setmaxnreg_inc<240>();
        do
            if constexpr (RULE >= CHUNK_INVERSE)
                write_turns<RULE>(call, work, m, warp, lane);
            else
                write_chunks<RULE>(call, work, m, warp, lane);
        while (CHUNK_IN_TURN(RULE) && find_next<RULE>(call, first, slices, part, work));
    } else {
        setmaxnreg_dec<24>();
        do
            if (warp < 2)
                copy_chunks<RULE>(call, work, m, warp);
            else if (RULE >= CHUNK_INVERSE && warp == 2)
                copy_values(call, work, m);
            else if (CHUNK_BY_CHANNELS(RULE))
                copy_updates<RULE>(call, work, m);
        while (CHUNK_IN_TURN(RULE) && find_next<RULE>(call, first, slices, part, work));
    }
}

/* The same for the rules BY_CHANNELS. With chunks.two_slices a block has two slices of values, one
 * per warpgroup. */
template <int RULE, bool EXACT>
DEVICE void whole_block(const linear_call &call, int first, char *memory)
{
    const int all = count_slices(call.dims), lane = threadIdx.x % 32, warp = find_warp();
    const int wide = all == 2 && call.chunks.two_slices, slices = wide ? 1 : all;
    const int group = __shfl_sync(~0u, threadIdx.x / (32 * CHUNK_STATE_WARPS), 0);
    unsigned part = blockIdx.x;
    states_work work;
    if (!find_part<RULE>(call, first, slices, part, work))
        return;
    if (work.number > 1)
        work.lead = 2 * (work.number - 1);
    const states_memory<RULE> m(memory, warp);
    begin_barriers<RULE>(m.barriers, (1 + wide) * CHUNK_STATE_WARPS);
    if (group < 2) {
        setmaxnreg_inc<240>();
        if (group > wide)
            return;
        do {
            states_work mine = work;
            mine.panel += group * CHUNK_STATE_WARPS;
            pass_part<RULE>(call, mine, m, group, warp, lane);
        } while (find_next<RULE>(call, first, slices, part, work));
    } else {
        setmaxnreg_dec<24>();
        do
            if (warp < 2)
                copy_chunks<RULE>(call, work, m, warp);
            else if (warp == 2)
                copy_values(call, work, m, 1 + wide);
            else
                copy_updates<RULE>(call, work, m);
        while (find_next<RULE>(call, first, slices, part, work));
    }
}

/* Computes results of segments other than a sequence's last. Blocks: segments, times v heads, times
 * parts: one warpgroup has 64 values, another 64 rows of the matrix. */
template <int RULE, bool EXACT>
DEVICE void segments_block(const linear_call &call, int first, char *memory)
{
    const linear_dims &d = call.dims;
    const int panels = d.v_dim / CHUNK_PANEL, parts = CHUNK_SEGMENT_PARTS(panels, RULE);
    const int lane = threadIdx.x % 32;
    const int warp = find_warp();
    const int group = __shfl_sync(~0u, threadIdx.x / (32 * CHUNK_STATE_WARPS), 0);
    const int rest = blockIdx.x / parts, part = blockIdx.x % parts;
    states_work work;
    work.head = rest % d.v_heads;
    work.panel = part * CHUNK_STATE_WARPS;
    if (!find_work(call, first, rest / d.v_heads, work) || work.number + 1 == work.count)
        return;
    take_after_strips<RULE>(call, work);
    const bool values = work.panel < panels, matrix = RULE && work.number > 0 && part < 2;
    if (!values && !matrix)
        return;
    const states_memory<RULE> m(memory, warp);
    if (!CHUNK_BY_CHANNELS(RULE))
        begin_values<RULE>(m);
    begin_barriers<RULE>(m.barriers, (values + matrix) * CHUNK_STATE_WARPS);
    if (group == 0) {
        setmaxnreg_inc<240>();
        if (values)
            pass_alone<RULE, EXACT>(call, work, m, warp, lane);
    } else if (group == 1) {
        setmaxnreg_inc<240>();
        if constexpr (RULE)
            if (matrix)
                pass_matrix<RULE>(call, work, m, part, warp, lane);
    } else {
        setmaxnreg_dec<24>();
        if (warp == 0)
            copy_chunks<RULE>(call, work, m, RING_STATE);
        else if (RULE >= CHUNK_INVERSE && warp == 2)
            copy_values(call, work, m);
        else if (CHUNK_BY_CHANNELS(RULE) && warp == 3)
            copy_updates<RULE>(call, work, m);
    }
}

#endif /* LINEAR_LIKE_CHUNK_STATES_CUH */
