/* SPDX-License-Identifier: Apache-2.0
 *
 * states_whole.cuh: states and outputs of KDA with a norm, by one warpgroup for 64 values: the left
 * operands of all products, the state and its updates, stay in its registers. Two warpgroups of a
 * block share the tiles of a head.
 */
#ifndef LINEAR_LIKE_STATES_WHOLE_CUH
#define LINEAR_LIKE_STATES_WHOLE_CUH

#include "plugins/linear_like/kernels/outputs_turns.cuh"
#include "plugins/linear_like/kernels/states_segments.cuh"

/* A chunk's rows of the output, for the warp's values. */
struct whole_place {
    char *to; /* the first row */
    int rows;
    const char *z; /* of the lane's first value */
};

/* Stores outputs of a warp's 16 values, transposed, in place of its v. */
DEVICE void store_whole(const linear_call &call, char *turn, const float (&x)[32],
                        const whole_place &place, int lane)
{
    const unsigned at =
        shared_address(turn) + (lane % 8 + lane / 16 * 8) * CHUNK_V_ROW + lane / 8 % 2 * 16;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        u32 y[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            y[i] = pack_two(ELEMENT_BF16, x[8 * n + 2 * i], x[8 * n + 2 * i + 1]);
        store_matrices_turned(at + n * 16 * CHUNK_V_ROW, y);
    }
    __syncwarp();
    const char *from = turn + lane / 2 * CHUNK_V_ROW + lane % 2 * 16;
    char *to = place.to + lane / 2 * call.operands.out_row + lane % 2 * 16;
    uint4 y[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        y[i] = *(const uint4 *)(from + 16 * i * CHUNK_V_ROW);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (16 * i + lane / 2 < place.rows)
            *(uint4 *)(to + 16 * i * call.operands.out_row) = y[i];
}

/* Multiplies outputs of 2 * COUNT rows by SiLU of z. */
template <int COUNT>
DEVICE void gate_whole(const linear_call &call, const whole_place &place, int lane,
                       float (&x)[COUNT])
{
#pragma unroll
    for (int n = 0; n < COUNT; n++) {
        const int row = n / 4 * 8 + lane % 4 * 2 + n % 2;
        if (row < place.rows)
            x[n] *= linear_fast_silu(bits_f32(
                (u32) * (const u16 *)(place.z + row * call.operands.z_row + n % 4 / 2 * 16) << 16));
    }
}

/* Loads numbers of a lane's columns. `from`: of the first ones. */
template <int COUNT> DEVICE void load_pairs(const float *from, float2 (&to)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        to[i] = *(const float2 *)(from + 8 * i);
}

/* Scales rows of v in bf16, by a power of two each. */
DEVICE void scale_pairs(const float (&times)[2], u32 (&v)[4][4])
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const u32 up = f32_bits(times[i % 2]) | f32_bits(times[i % 2]) >> 16;
        asm volatile("mul.rn.bf16x2 %0, %0, %1;" : "+r"(v[i / 4][i % 4]) : "r"(up));
    }
}

/* A chunk: the state after it, and its outputs. The state is multiplied by keys, then by queries.
 * The second product overlaps the processing of the first; the outputs' last steps overlap the
 * state's update. */
template <int RULE>
DEVICE void pass_whole(const linear_call &call, const states_memory<RULE> &m, int n, int lead,
                       int slice, int warp, int lane, const whole_place &place, state_tile &s,
                       float (&unit)[2])
{
#if HAS_HOPPER
    typedef states_memory<RULE> at;
    constexpr bool is_f16 = CHUNK_HAS_TILES(RULE);
    char *const stage = m.stage(RING_STATE, n + lead);
    const float *numbers = (const float *)(stage + at::state_numbers);
    char *const values =
        stage + at::state_u + slice * (CHUNK_ROWS * CHUNK_V_ROW) + warp * (CHUNK_PANEL * 2);
    const unsigned k = __shfl_sync(~0u, shared_address(stage), 0);
    const unsigned q = __shfl_sync(~0u, shared_address(m.stage(RING_OUTPUTS, n)), 0);
    const unsigned ends = __shfl_sync(~0u, shared_address(m.stage(RING_UPDATES, n)), 0);
    const float one[2] = {1, 1};
    left_operand<16> held;
    left_operand<8> side, added, kept;
    turn_units units;
    float x[32], y[32], o[32], value[2] = {0, 0};
    u32 v[4][4];
    float2 decays[16];
    load_pairs(numbers + NUMBERS_DECAY + lane % 4 * 2, decays);
    pack_left<0, 8, 16>(s, one, held);
    multiply_rows(x, held.at[0], k, false);
    pack_left<8, 16, 16>(s, one, held);
    multiply_rows(x, held.at[4], k + CHUNK_TILE / 2, true);
    multiply_rows(o, held.at[0], q, false);
    multiply_rows(o, held.at[4], q + CHUNK_TILE / 2, true);
#pragma unroll
    for (int i = 0; i < 64; i++)
        s[i] *= i % 2 ? decays[i / 4].y : decays[i / 4].x;
    load_values(shared_address(values), lane, v, value, is_f16);
    if constexpr (is_f16) {
        const float most = largest_number(numbers + NUMBERS_U, lane);
        value[0] *= most, value[1] *= most;
    }
    find_units(held, value, 1, unit, units);
    if constexpr (!is_f16)
        scale_pairs(units.side, v);
    wait_product<2>(x);
    if constexpr (is_f16)
        scale_values<is_f16>(v, numbers, units.side, lane, y);
    const float by[2] = {units.held[0] * (1 / CHANNELS_UP), units.held[1] * (1 / CHANNELS_UP)};
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const u32 pair = v[i / 8][i / 2 % 4];
        const float of = is_f16 ? y[i] : bits_f32(i % 2 ? pair & 0xffff0000 : pair << 16);
        x[i] = of - x[i] * by[i / 2 % 2];
    }
    pack_left<0, 8, 8>(x, one, side);
    multiply_rows(x, side.at[0], k + at::inverse, false);
#pragma unroll
    for (int i = 0; i < 64; i++)
        s[i] *= units.state[i % 4 / 2];
    wgmma_arrived(s);
    wait_product<0>(x);
    wgmma_arrived(o);
    pack_left<0, 8, 8>(x, one, kept);
    lower_updates(kept, added);
#pragma unroll
    for (int i = 0; i < 32; i++)
        o[i] *= units.held[i / 2 % 2] * (PRODUCTS_ROOM / CHANNELS_UP * CHUNK_INVERSE_ROOM);
    float2 own[8];
    load_pairs(numbers + NUMBERS_OWN(true) + lane % 4 * 2, own);
    multiply_rows(o, kept.at[0], q + at::products, true);
    multiply_keys(s, added.at, ends);
    const float scale = call.dims.sm_scale;
#pragma unroll
    for (int i = 0; i < 32; i++)
        x[i] *= units.kept[i / 2 % 2] * (i % 2 ? own[i / 4].y : own[i / 4].x);
    const float by_kept[2] = {units.kept[0] * (scale / PRODUCTS_ROOM),
                              units.kept[1] * (scale / PRODUCTS_ROOM)};
    wgmma_arrived(x);
    wait_product<1>(o);
#pragma unroll
    for (int i = 0; i < 32; i++)
        o[i] = o[i] * by_kept[i / 2 % 2] + x[i];
    if (call.operands.z)
        gate_whole(call, place, lane, o);
    store_whole(call, values, o, place, lane);
    wgmma_wait<0>();
    wgmma_arrived(s);
#else
    __trap();
#endif
}

/* A part: `slice` of the block's slices of values. */
template <int RULE>
DEVICE void pass_part(const linear_call &call, const states_work &work,
                      const states_memory<RULE> &m, int slice, int warp, int lane)
{
    const linear_operands &o = call.operands;
    const int panel = work.panel + warp;
    const bool here = panel < call.dims.v_dim / CHUNK_PANEL;
    const state_place at = {work.head, panel * CHUNK_PANEL + lane / 4, lane % 4 * 2};
    state_tile s = {};
    float unit[2] = {1, 1};
    begin_state(call, work, m, warp, lane, s);
    scale_state<true>(s, unit);
    linear_chunk next = call.chunks.list[work.from];
#pragma unroll 1
    for (int i = 0; i < work.to - work.from; i++) {
        const linear_chunk chunk = next;
        const int snapshot = __shfl_sync(~0u, chunk.snapshot, 0);
        if (i + 1 < work.to - work.from) /* here, where nothing waits for it */
            next = call.chunks.list[work.from + i + 1];
        const int n = work.passed + i, row = work.sequence.first_row + chunk.first;
        const whole_place place = {
            o.out + (i64)row * o.out_row + work.head * o.out_head + panel * (CHUNK_PANEL * 2),
            here ? chunk.rows : 0, o.z + (i64)row * o.z_row + work.head * o.z_head + at.value * 2};
        m.wait(RING_STATE, n + work.lead);
        m.wait(RING_OUTPUTS, n);
        m.wait(RING_UPDATES, n);
        pass_whole<RULE>(call, m, n, work.lead, slice, warp, lane, place, s, unit);
        m.free(RING_STATE, n + work.lead);
        m.free(RING_OUTPUTS, n);
        m.free(RING_UPDATES, n);
        if (here && snapshot) {
            restore_state(s, unit);
            pass_state<true>(call, snapshot, at, s);
            scale_state<true>(s, unit);
        }
    }
    restore_state(s, unit);
    if (here)
        store_last_state(call, work, panel, lane, s);
}

#endif /* LINEAR_LIKE_STATES_WHOLE_CUH */
