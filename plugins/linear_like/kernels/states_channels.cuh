/* SPDX-License-Identifier: Apache-2.0
 *
 * states_channels.cuh: the state from chunk to chunk of KDA with (I + A)^-1, kept in units of a power of two
 * for each row, so that fp16 holds it as it is.
 */
#ifndef LINEAR_LIKE_STATES_CHANNELS_CUH
#define LINEAR_LIKE_STATES_CHANNELS_CUH

#include "plugins/linear_like/kernels/states_exact.cuh"

/* The right side of (I + A) U = beta v - beta e^g k S. `x`: k S. UNIT: v = 0. `v`: the warp's, fp16 after a
 * convolution. */
template <int RULE, bool UNIT>
DEVICE void find_sides(unsigned v, const float *numbers, const float (&held)[2], int lane,
                       float (&x)[32])
{
    constexpr bool half = CHUNK_HAS_TILES(RULE);
    const unsigned from = v + (lane % 8 + lane / 16 * 8) * CHUNK_V_ROW + lane / 8 % 2 * 16;
    const float up[2] = {held[0] / CHANNELS_UP, held[1] / CHANNELS_UP};
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        u32 b[4] = {0, 0, 0, 0};
        float y[8] = {};
        if constexpr (!UNIT) {
            load_matrices_turned(from + pair * 16 * CHUNK_V_ROW, b);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                y[2 * i] = half ? half_low(b[i]) : bits_f32(b[i] << 16);
                y[2 * i + 1] = half ? half_high(b[i]) : bits_f32(b[i] & 0xffff0000);
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int at = 4 * (2 * pair + n), c = 8 * (2 * pair + n) + lane % 4 * 2;
            const float2 times = *(const float2 *)(numbers + NUMBERS_U + c);
            if constexpr (RULE == CHUNK_CHANNELS) { /* beta */
#pragma unroll
                for (int e = 0; e < 4; e++)
                    x[at + e] =
                        (y[4 * n + e] - x[at + e] * up[e / 2]) * (e % 2 ? times.y : times.x);
                continue;
            }
            const float2 less = *(const float2 *)(numbers + NUMBERS_W + c);
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[at + e] = y[4 * n + e] * (e % 2 ? times.y : times.x) -
                            x[at + e] * ((e % 2 ? less.y : less.x) * held[e / 2]);
        }
    }
}

/* The updates of a chunk, (I + A)^-1 times the right side: `x` is that; then updates over `times`. */
DEVICE void solve_sides(unsigned inverse, float (&x)[32], float (&times)[2])
{
    left_operand<8> side;
    float scale[2];
    make_left(x, side, scale);
    multiply_rows(x, side.at[0], inverse, false);
    wait_product<0>(x);
    times[0] = side.times[0] * (1.0f / CHUNK_INVERSE_ROOM);
    times[1] = side.times[1] * (1.0f / CHUNK_INVERSE_ROOM);
}

/* The largest magnitudes of a left operand's rows. */
DEVICE void largest_of_left(const left_operand<16> &a, float (&largest)[2])
{
    const u32 magnitude = 0x7fff7fff;
    u32 most[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) /* of numbers without a sign, order is that of their bits */
            most[i % 2] = __vmaxu2(most[i % 2], a.at[n][i] & magnitude);
#pragma unroll
    for (int i = 0; i < 2; i++)
        largest[i] = fmaxf(half_low(most[i]), half_high(most[i]));
}

/* A state after the decays of a chunk's channels, and the largest magnitudes of its rows. */
DEVICE void decay_channels(const float *numbers, int lane, state_tile &s, float (&largest)[2])
{
    largest[0] = largest[1] = 0;
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const float2 by = *(const float2 *)(numbers + NUMBERS_DECAY + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            s[4 * n + 2 * i] *= by.x, s[4 * n + 2 * i + 1] *= by.y;
            largest[i] =
                fmaxf(largest[i], fmaxf(fabsf(s[4 * n + 2 * i]), fabsf(s[4 * n + 2 * i + 1])));
        }
    }
}

/* The state after a chunk of KDA with (I + A)^-1; the state is `s` times `unit`, a power of two
 * for each row which keeps it within fp16's range. What is added to it has the same unit, so that the
 * product's sums are the state. */
template <int RULE, int PASS>
DEVICE void pass_scaled(const states_memory<RULE> &m, const char *stage, int n, int warp, int lane,
                        state_tile &s, float (&unit)[2])
{
    typedef states_memory<RULE> at;
    const float *numbers = (const float *)(stage + at::state_numbers);
    const unsigned from = shared_address(stage), k = from + at::k;
    const unsigned v = from + at::state_u + warp * (CHUNK_PANEL * 2);
    /* What outputs get of a row's update, and the state of it, is the same but for a constant. */
    constexpr bool same = CHUNK_BY_CHANNELS(RULE);
    const float one[2] = {1, 1}, decay = CHUNK_BY_CHANNELS(RULE) ? 1 : numbers[NUMBERS_DECAY];
    left_operand<16> held;
    left_operand<8> added, kept;
    float x[32], y[32], scale[2], times[2], largest[2], most[2] = {0, 0};
    float(&low)[32] = *(float(*)[32])s, (&high)[32] = *(float(*)[32])(s + 32);
    pack_left<0, 8, 16>(s, one, held);
    multiply_rows(x, held.at[0], k, false);
    pack_left<8, 16, 16>(s, one, held);
    multiply_rows(x, held.at[4], k + CHUNK_TILE / 2, true);
    held.times[0] = unit[0], held.times[1] = unit[1];
    if constexpr (CHUNK_BY_CHANNELS(RULE)) /* whose loads would wait for the stores below */
        decay_channels(numbers, lane, s, largest);
    if constexpr (PASS == PASS_HANDED) {
        if (n > 0)
            named_sync(HANDED_TAKEN, 64 * CHUNK_STATE_WARPS);
        hand_on(m.state, held);
        named_arrive(HANDED_STATE, 64 * CHUNK_STATE_WARPS);
    }
    if constexpr (!CHUNK_BY_CHANNELS(RULE))
        largest_of_left(held, largest);
    wait_product<0>(x);
    find_sides<RULE, PASS == PASS_MATRIX>(v, numbers, unit, lane, x);
    solve_sides(from + at::inverse, x, times);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 by = same ? make_float2(1, 1)
                               : *(const float2 *)(numbers + NUMBERS_K + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            y[4 * n + e] = x[4 * n + e] * (e % 2 ? by.y : by.x);
            most[e / 2] = fmaxf(most[e / 2], fabsf(y[4 * n + e]));
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float old = unit[i] * decay, all = times[i] * (same ? 1 / CHANNELS_UP : 1);
        const float up =
            find_scale(largest_of_row(fmaxf(most[i] * all, largest[i] * old)), &unit[i]);
        scale[i] = all * up;
        added.times[i] = unit[i] * CHANNELS_UP;
        const float factor = old * up;
#pragma unroll
        for (int n = 0; n < 16; n++)
            s[4 * n + 2 * i] *= factor, s[4 * n + 2 * i + 1] *= factor;
    }
    pack_left<0, 8, 8>(y, scale, added);
    if constexpr (CHUNK_BY_CHANNELS(RULE))
        m.wait(RING_UPDATES, n);
    const unsigned to =
        CHUNK_BY_CHANNELS(RULE) ? shared_address(m.stage(RING_UPDATES, n)) : from + at::k;
    multiply_panel(low, added.at, to, true);
    multiply_panel(high, added.at, to + CHUNK_TILE / 2, true);
    if constexpr (PASS == PASS_HANDED) {
        if constexpr (same) {
            hand_on(m.updates, added);
        } else {
            make_left(x, kept, scale);
            kept.times[0] *= times[0], kept.times[1] *= times[1];
            hand_on(m.updates, kept);
        }
        named_arrive(HANDED_UPDATES, 64 * CHUNK_STATE_WARPS);
    }
    wait_product<0>(low);
    products_arrived(high);
    if constexpr (CHUNK_BY_CHANNELS(RULE))
        m.free(RING_UPDATES, n);
}

/* A state in units of 1. */
DEVICE void restore_state(state_tile &s, float (&unit)[2])
{
#pragma unroll
    for (int n = 0; n < 64; n++)
        s[n] *= unit[n % 4 / 2];
    unit[0] = unit[1] = 1;
}

/* In fp16's range. SMALL: rows of zeros have a small unit, so that they do not count. */
template <bool SMALL> DEVICE void scale_state(state_tile &s, float (&unit)[2])
{
    float largest[2] = {0, 0}, scale[2];
#pragma unroll
    for (int n = 0; n < 64; n++)
        largest[n % 4 / 2] = fmaxf(largest[n % 4 / 2], fabsf(s[n]));
    if constexpr (SMALL)
        largest[0] = largest_of_row(largest[0]), largest[1] = largest_of_row(largest[1]);
    scale[0] = find_scale(SMALL ? largest[0] : largest_of_row(largest[0]), &unit[0]);
    scale[1] = find_scale(SMALL ? largest[1] : largest_of_row(largest[1]), &unit[1]);
#pragma unroll
    for (int n = 0; n < 64; n++)
        s[n] *= scale[n % 4 / 2];
#pragma unroll
    for (int i = 0; SMALL && i < 2; i++)
        unit[i] = largest[i] == 0 ? 1e-30f : unit[i];
}

#endif /* LINEAR_LIKE_STATES_CHANNELS_CUH */
