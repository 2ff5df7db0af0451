/* SPDX-License-Identifier: Apache-2.0
 *
 * states_exact.cuh: propagates an fp32 state from chunk to chunk, with a rounded copy for each
 * product: plain rules, and delta rules with solved w and u.
 */
#ifndef LINEAR_LIKE_STATES_EXACT_CUH
#define LINEAR_LIKE_STATES_EXACT_CUH

#include "plugins/linear_like/kernels/states_copy.cuh"

/* What a warpgroup propagates from chunk to chunk: a state that it also passes to the outputs'
 * warpgroup; a state alone; the matrix M of a segment. */
enum { PASS_HANDED, PASS_ALONE, PASS_MATRIX };

/* The updates that a chunk's rows add to a state: u - w S. `x`: w S, if it exists. UNIT: u = 0. */
template <int RULE, bool UNIT>
DEVICE void find_updates(unsigned u, const float *numbers, const left_operand<16> &s, int lane,
                         float (&x)[32])
{
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        const int row = 16 * pair + lane % 8 + lane / 16 * 8;
        u32 b[4] = {0, 0, 0, 0};
        if constexpr (!UNIT)
            load_matrices_turned(u + panel_offset(row, lane / 8 % 2), b);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int at = 4 * (2 * pair + n), c = 8 * (2 * pair + n) + lane % 4 * 2;
            const float2 times = *(const float2 *)(numbers + NUMBERS_U + c);
            const float2 less = RULE ? *(const float2 *)(numbers + NUMBERS_W + c) : times;
            const float held[4] = {RULE ? x[at] * (less.x * s.times[0]) : 0,
                                   RULE ? x[at + 1] * (less.y * s.times[0]) : 0,
                                   RULE ? x[at + 2] * (less.x * s.times[1]) : 0,
                                   RULE ? x[at + 3] * (less.y * s.times[1]) : 0};
            x[at] = half_low(b[2 * n]) * times.x - held[0];
            x[at + 1] = half_high(b[2 * n]) * times.y - held[1];
            x[at + 2] = half_low(b[2 * n + 1]) * times.x - held[2];
            x[at + 3] = half_high(b[2 * n + 1]) * times.y - held[3];
        }
    }
}

/* Adds half of the state after the chunk. */
DEVICE void fold(const float *numbers, const float (&sums)[32], const left_operand<8> &a, int half,
                 int lane, state_tile &s)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const int at = 4 * (8 * half + n);
        const float2 decay =
            *(const float2 *)(numbers + NUMBERS_DECAY + 8 * (8 * half + n) + lane % 4 * 2);
        s[at] = s[at] * decay.x + sums[4 * n] * a.times[0];
        s[at + 1] = s[at + 1] * decay.y + sums[4 * n + 1] * a.times[0];
        s[at + 2] = s[at + 2] * decay.x + sums[4 * n + 2] * a.times[1];
        s[at + 3] = s[at + 3] * decay.y + sums[4 * n + 3] * a.times[1];
    }
}

/* The state after chunk `n` of the block, for the other rules. EXACT: updates are two numbers
 * each. */
template <int RULE, bool EXACT, int PASS>
DEVICE void pass_exact(const states_memory<RULE> &m, const char *stage, int n, int warp, int lane,
                       state_tile &s)
{
    typedef states_memory<RULE> at;
    const float *numbers = (const float *)(stage + at::state_numbers);
    const unsigned from = shared_address(stage), k = from + at::k;
    const unsigned u = from + at::state_u + warp * CHUNK_PANEL_BYTES;
    left_operand<16> held;
    left_operand<8> added, kept;
    float x[32], y[32], scale[2], low[32], high[32];
    u32 rest[4][4];
    scale_left<16>(s, held, scale);
    pack_left<0, 8, 16>(s, scale, held);
    if constexpr (RULE)
        multiply_rows(x, held.at[0], from + at::w, false);
    pack_left<8, 16, 16>(s, scale, held);
    if constexpr (RULE)
        multiply_rows(x, held.at[4], from + at::w + CHUNK_TILE / 2, true);
    if constexpr (PASS == PASS_HANDED) {
        if (n > 0)
            named_sync(HANDED_TAKEN, 64 * CHUNK_STATE_WARPS);
        hand_on(m.state, held);
        named_arrive(HANDED_STATE, 64 * CHUNK_STATE_WARPS);
    }
    if constexpr (RULE)
        wait_product<0>(x);
    find_updates<RULE, PASS == PASS_MATRIX>(u, numbers, held, lane, x);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 times = *(const float2 *)(numbers + NUMBERS_K + 8 * n + lane % 4 * 2);
        y[4 * n] = x[4 * n] * times.x, y[4 * n + 1] = x[4 * n + 1] * times.y;
        y[4 * n + 2] = x[4 * n + 2] * times.x, y[4 * n + 3] = x[4 * n + 3] * times.y;
    }
    if constexpr (EXACT && PASS == PASS_HANDED) { /* registers are scarce here */
        make_left(x, kept, scale);
        hand_on(m.updates, kept);
        named_arrive(HANDED_UPDATES, 64 * CHUNK_STATE_WARPS);
    }
    make_left(y, added, scale);
    if constexpr (EXACT)
        make_rest<8>(y, added, scale, rest);
    multiply_panel(low, added.at, k, false);
    if constexpr (EXACT)
        multiply_panel(low, rest, k, true);
    multiply_panel(high, added.at, k + CHUNK_TILE / 2, false);
    if constexpr (EXACT)
        multiply_panel(high, rest, k + CHUNK_TILE / 2, true);
    if constexpr (!EXACT && PASS == PASS_HANDED) {
        make_left(x, kept, scale);
        hand_on(m.updates, kept);
        named_arrive(HANDED_UPDATES, 64 * CHUNK_STATE_WARPS);
    }
    wait_product<EXACT ? 2 : 1>(low);
    fold(numbers, low, added, 0, lane, s);
    wait_product<0>(high);
    fold(numbers, high, added, 1, lane, s);
}

#endif /* LINEAR_LIKE_STATES_EXACT_CUH */
