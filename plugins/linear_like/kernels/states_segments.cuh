/* SPDX-License-Identifier: Apache-2.0
 *
 * states_segments.cuh: segments of chunks. A segment maps a state S to S M + N; each segment except
 * the first starts by applying S <- S M + N of all earlier segments.
 */
#ifndef LINEAR_LIKE_STATES_SEGMENTS_CUH
#define LINEAR_LIKE_STATES_SEGMENTS_CUH

#include "plugins/linear_like/kernels/states_turns.cuh"

/* The state after a chunk: `s` times `unit`, which is 1 except in pass_turns(). */
template <int RULE, bool EXACT, int PASS>
DEVICE void pass_chunk(const states_memory<RULE> &m, const char *stage, int n, int warp, int lane,
                       state_tile &s, float (&unit)[2])
{
    if constexpr (RULE >= CHUNK_INVERSE)
        pass_turns<RULE, PASS>(m, stage, n, warp, lane, s, unit);
    else
        pass_exact<RULE, EXACT, PASS>(m, stage, n, warp, lane, s);
}

/* ---- Segments -------------------------------------------------------------------------------- */

/* S M, both as two numbers each; M is in stages n and n + 1 of the ring. */
template <int RULE>
DEVICE void pass_segment(const states_memory<RULE> &m, const float *numbers, int n, int lane,
                         state_tile &s)
{
    left_operand<16> a;
    float scale[2], low[32], high[32];
    u32 rest[8][4];
    const u32(&first)[4][4] = *(const u32(*)[4][4])a.at[0];
    const u32(&second)[4][4] = *(const u32(*)[4][4])a.at[4];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float2 times = *(const float2 *)(numbers + 8 * i + lane % 4 * 2);
        s[4 * i] *= times.x, s[4 * i + 1] *= times.y;
        s[4 * i + 2] *= times.x, s[4 * i + 3] *= times.y;
    }
    make_left<16>(s, a, scale);
    make_rest<16>(s, a, scale, rest);
    const unsigned whole = shared_address(m.stage(0, n));
    m.wait(0, n);
    multiply_panel(low, first, whole, false);
    multiply_panel(low, second, whole + CHUNK_TILE, true);
    multiply_panel(low, *(const u32(*)[4][4])rest[0], whole, true);
    multiply_panel(low, *(const u32(*)[4][4])rest[4], whole + CHUNK_TILE, true);
    multiply_panel(high, first, whole + CHUNK_TILE / 2, false);
    multiply_panel(high, second, whole + CHUNK_TILE * 3 / 2, true);
    multiply_panel(high, *(const u32(*)[4][4])rest[0], whole + CHUNK_TILE / 2, true);
    multiply_panel(high, *(const u32(*)[4][4])rest[4], whole + CHUNK_TILE * 3 / 2, true);
    const unsigned left = shared_address(m.stage(0, n + 1));
    m.wait(0, n + 1);
    multiply_panel(low, first, left, true);
    multiply_panel(low, second, left + CHUNK_TILE, true);
    multiply_panel(high, first, left + CHUNK_TILE / 2, true);
    multiply_panel(high, second, left + CHUNK_TILE * 3 / 2, true);
    wait_product<0>(low);
    wgmma_arrived(high);
    m.free(0, n);
    m.free(0, n + 1);
#pragma unroll
    for (int i = 0; i < 32; i++) {
        s[i] = low[i] * a.times[i % 4 / 2];
        s[i + 32] = high[i] * a.times[i % 4 / 2];
    }
}

/* The state before segment `number`: applies S <- S M + N of all segments before it. */
template <int RULE>
DEVICE void begin_state(const linear_call &call, const states_work &work,
                        const states_memory<RULE> &m, int warp, int lane, state_tile &s)
{
    /* N may be loaded during the products of S and M if there are enough registers. */
    constexpr bool early = RULE && !CHUNK_BY_CHANNELS(RULE);
    const int panel = work.panel + warp, origin = work.index - work.number;
    const bool here = panel < call.dims.v_dim / CHUNK_PANEL;
    if (work.count == 1 && here)
        load_first_state(call, work, panel, lane, s);
    if (work.count == 1)
        return;
    if (work.number == 0 && here)
        carry_state((float *)(result_matrix(call, work, origin) + CHUNK_RESULT_NUMBERS) +
                        panel * CHUNK_CARRY + lane * 4,
                    false, s);
    else if (here)
        carry_state(result_state(call, work, origin, panel, lane), false, s);
#pragma unroll 1
    for (int i = 1; i < work.number; i++) {
        const float *numbers = (const float *)result_matrix(call, work, origin + i);
        const float4 *from = (const float4 *)result_state(call, work, origin + i, panel, lane);
        float4 more[16];
#pragma unroll
        for (int n = 0; early && here && n < 16; n++)
            more[n] = from[n * 32];
        if constexpr (RULE) {
            pass_segment(m, numbers, 2 * (i - 1), lane, s);
        } else {
            const float decay = numbers[0];
#pragma unroll
            for (int n = 0; n < 64; n++)
                s[n] *= decay;
        }
#pragma unroll
        for (int n = 0; here && n < 16; n++) {
            const float4 x = early ? more[n] : from[n * 32];
            s[4 * n] += x.x, s[4 * n + 1] += x.y, s[4 * n + 2] += x.z, s[4 * n + 3] += x.w;
        }
    }
}

/* Computes a segment's M: rows of k from 64 * half on. */
template <int RULE>
DEVICE void pass_matrix(const linear_call &call, const states_work &work,
                        const states_memory<RULE> &m, int half, int warp, int lane)
{
    state_tile s;
    float unit[2] = {1, 1};
    const int row = 16 * warp + lane / 4;
#pragma unroll
    for (int n = 0; n < 64; n++)
        s[n] = 64 * half + row + n % 4 / 2 * 8 == n / 4 * 8 + lane % 4 * 2 + n % 2;
#pragma unroll 1
    for (int n = 0; n < work.to - work.from; n++) {
        m.wait(0, n);
        pass_chunk<RULE, false, PASS_MATRIX>(m, m.stage(0, n), n, warp, lane, s, unit);
        m.free(0, n);
    }
    restore_state(s, unit);
    char *to = result_matrix(call, work, work.index);
    float *numbers = (float *)to + 64 * half;
    left_operand<16> a;
    float scale[2];
    u32 rest[8][4];
    make_left<16>(s, a, scale);
    make_rest<16>(s, a, scale, rest);
    to += CHUNK_RESULT_NUMBERS + half * CHUNK_TILE;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (lane % 4 == 0)
            numbers[row + 8 * i] = a.times[i];
#pragma unroll
        for (int n = 0; n < 16; n++) {
            char *at = to + tile_offset(row + 8 * i, n) + lane % 4 * 4;
            *(u32 *)at = a.at[n / 2][n % 2 * 2 + i];
            *(u32 *)(at + 2 * CHUNK_TILE) = rest[n / 2][n % 2 * 2 + i];
        }
    }
}

/* Computes the state after a segment, from 0; for a sequence's first segment, from its initial
 * state. */
template <int RULE, bool EXACT>
DEVICE void pass_alone(const linear_call &call, const states_work &work,
                       const states_memory<RULE> &m, int warp, int lane)
{
    const int panel = work.panel + warp;
    const bool here = panel < call.dims.v_dim / CHUNK_PANEL;
    char *matrix = result_matrix(call, work, work.index);
    float decay = 1, unit[2] = {1, 1};
    state_tile s = {};
    if (here && work.number == 0) { /* stored, as other segments may overwrite the slot */
        load_first_state(call, work, panel, lane, s);
        carry_state((float *)(matrix + CHUNK_RESULT_NUMBERS) + panel * CHUNK_CARRY + lane * 4, true,
                    s);
    }
    if (RULE >= CHUNK_INVERSE)
        scale_state<true>(s, unit);
#pragma unroll 1
    for (int n = 0; n < work.to - work.from; n++) {
        const char *stage = m.stage(0, n);
        m.wait(0, n);
        decay *= ((const float *)(stage + states_memory<RULE>::state_numbers))[NUMBERS_DECAY];
        pass_chunk<RULE, EXACT, PASS_ALONE>(m, stage, n, warp, lane, s, unit);
        m.free(0, n);
    }
    restore_state(s, unit);
    if (here)
        carry_state(result_state(call, work, work.index, panel, lane), true, s);
    if (!RULE && work.panel == 0 && threadIdx.x == 0)
        *(float *)matrix = decay;
}

#endif /* LINEAR_LIKE_STATES_SEGMENTS_CUH */
