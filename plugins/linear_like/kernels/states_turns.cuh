/* SPDX-License-Identifier: Apache-2.0
 *
 * states_turns.cuh: propagates the state from chunk to chunk for GDN and KDA with a norm, in units
 * known before the products. GDN passes state and updates on in two alternating buffers; KDA's
 * states pass nothing on (states_whole.cuh).
 */
#ifndef LINEAR_LIKE_STATES_TURNS_CUH
#define LINEAR_LIKE_STATES_TURNS_CUH

#include "plugins/linear_like/kernels/states_exact.cuh"

/* The larger magnitudes of two pairs of numbers; those of `x` have no sign. IS_F16: else bf16. */
template <bool IS_F16> DEVICE u32 larger_magnitudes(u32 x, u32 y)
{
    u32 z;
    if constexpr (!IS_F16)
        asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    else
        asm("{ .reg .b32 m; abs.f16x2 m, %2; max.f16x2 %0, %1, m; }" : "=r"(z) : "r"(x), "r"(y));
    return z;
}

/* The largest magnitudes of a left operand's rows. */
DEVICE void largest_of_left(const left_operand<16> &a, float (&largest)[2])
{
    u32 most[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            most[i % 2] = larger_magnitudes<true>(most[i % 2], a.at[n][i]);
#pragma unroll
    for (int i = 0; i < 2; i++)
        largest[i] = fmaxf(half_low(most[i]), half_high(most[i]));
}

/* Converts a state to units of 1. */
DEVICE void restore_state(state_tile &s, float (&unit)[2])
{
#pragma unroll
    for (int n = 0; n < 64; n++)
        s[n] *= unit[n % 4 / 2];
    unit[0] = unit[1] = 1;
}

/* Scales a state to the range of fp16. SMALL: rows of zeros get a small unit, so that they do not
 * matter. */
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

/* A chunk's factors of each row, known before its products: of v and of the state's product with k,
 * on the right side; of the state; of updates, for the outputs. */
struct turn_units {
    float side[2], held[2], state[2], kept[2];
};

/* The right side has the power of two of the next state: updates are in its units unchanged. No
 * sums are examined for it, as a step of the rule is a contraction: a row of the state grows by at
 * most 64 elements of v, and elements of the right side are at most those of v plus the state's
 * product with a row of length 1. fp16 has room for both. After strong decays a state may be too
 * small for fp16, so a row counts as at least 2^-14 and its unit falls in steps. `value`: the
 * largest of v; `unit`: of the state, then of the next one. */
DEVICE void find_units(const left_operand<16> &held, const float (&value)[2], float decay,
                       float (&unit)[2], turn_units &to)
{
    float state[2];
    largest_of_left(held, state);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float inverse;
        const float most = fmaxf(largest_of_row(state[i]), 1.0f / 16384) * unit[i];
        const float scale = find_scale(fmaxf(value[i] + 16 * most, 1e-30f), &inverse) * 2;
        inverse *= 0.5f / CHUNK_INVERSE_ROOM;
        to.side[i] = scale;
        to.held[i] = unit[i] * scale;
        to.state[i] = decay * (unit[i] * (scale * CHUNK_INVERSE_ROOM));
        to.kept[i] = unit[i] = inverse;
    }
}

/* Loads rows of v, transposed, and their largest magnitudes. `v`: of the warp. */
DEVICE void load_values(unsigned v, int lane, u32 (&to)[4][4], float (&largest)[2], bool is_f16)
{
    const unsigned from = v + (lane % 8 + lane / 16 * 8) * CHUNK_V_ROW + lane / 8 % 2 * 16;
    const u32 magnitude = 0x7fff7fff;
    u32 most[2] = {0, 0};
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        load_matrices_turned(from + pair * 16 * CHUNK_V_ROW, to[pair]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            most[i % 2] = __vmaxu2(most[i % 2], to[pair][i] & magnitude);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        largest[i] =
            largest_of_row(is_f16 ? fmaxf(half_low(most[i]), half_high(most[i]))
                                  : fmaxf(bits_f32(most[i] << 16), bits_f32(most[i] & 0xffff0000)));
}

/* v for the right side. IS_F16: times the numbers of its rows. */
template <bool IS_F16>
DEVICE void scale_values(const u32 (&v)[4][4], const float *numbers, const float (&times)[2],
                         int lane, float (&y)[32])
{
    u32 up[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        up[i] = f32_bits(times[i]) | f32_bits(times[i]) >> 16; /* a power of two, twice */
#pragma unroll
    for (int i = 0; i < 16; i++) {
        if constexpr (IS_F16) {
            const float2 of = *(const float2 *)(numbers + NUMBERS_U + 8 * (i / 2) + lane % 4 * 2);
            y[2 * i] = half_low(v[i / 4][i % 4]) * (of.x * times[i % 2]);
            y[2 * i + 1] = half_high(v[i / 4][i % 4]) * (of.y * times[i % 2]);
        } else {
            u32 x;
            asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(x) : "r"(v[i / 4][i % 4]), "r"(up[i % 2]));
            y[2 * i] = bits_f32(x << 16), y[2 * i + 1] = bits_f32(x & 0xffff0000);
        }
    }
}

/* Numbers of a chunk's rows, times those of the state. */
DEVICE void spread_numbers(const float *numbers, const float (&times)[2], int lane, float (&to)[32])
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 of = *(const float2 *)(numbers + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++)
            to[4 * n + e] = (e % 2 ? of.y : of.x) * times[e / 2];
    }
}

/* Passes a warp's rows on to the outputs as a tile, with their factors. The reading warpgroup
 * executes the fence before its wgmma, as it has more time than this one. */
template <int COUNT>
DEVICE void write_handed(unsigned to, const left_operand<COUNT> &x, float *scales, int warp,
                         int lane)
{
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++)
        store_matrices(to + tile_offset(16 * warp + lane % 16, 2 * i + lane / 16), x.at[i]);
    if (lane % 4 < 2)
        scales[16 * warp + lane / 4 + lane % 4 * 8] = lane % 4 ? x.times[1] : x.times[0];
}

/* s += a[64 x 64] * (a tile), of 128 columns. */
DEVICE void multiply_keys(state_tile &s, const u32 (&a)[4][4], unsigned tile)
{
    const unsigned long long b = matrix_descriptor(tile, CHUNK_TILE / 2, 1024);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; step++)
        wgmma_rs<128, true, 1>(s, a[step], descriptor_advance(b, step * 2048), 1);
    wgmma_commit();
}

/* Updates as an operand, divided by CHANNELS_UP, which KDA's keys contain; multiplying packed pairs
 * is cheaper than multiplying sums. */
DEVICE void lower_updates(const left_operand<8> &from, left_operand<8> &to)
{
    const u32 lower = 0x1c001c00; /* 1 / CHANNELS_UP, twice */
#pragma unroll
    for (int i = 0; i < 16; i++)
        asm("mul.f16x2 %0, %1, %2;"
            : "=r"(to.at[i / 4][i % 4])
            : "r"(from.at[i / 4][i % 4]), "r"(lower));
}

/* The largest factor of rows of v. */
DEVICE float largest_number(const float *numbers, int lane)
{
    const float2 two = *(const float2 *)(numbers + 2 * lane);
    float most = fmaxf(two.x, two.y);
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    return most;
}

/* Applies the decays of a chunk's channels to a state. */
DEVICE void decay_channels(const float *numbers, int lane, state_tile &s)
{
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const float2 by = *(const float2 *)(numbers + NUMBERS_DECAY + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < 2; i++)
            s[4 * n + 2 * i] *= by.x, s[4 * n + 2 * i + 1] *= by.y;
    }
}

/* The state after a chunk; `s` times `unit`. Operands of a product are prepared during the previous
 * product, so that little time passes between them. */
template <int RULE, int PASS>
DEVICE void pass_turns(const states_memory<RULE> &m, const char *stage, int n, int warp, int lane,
                       state_tile &s, float (&unit)[2])
{
#if HAS_HOPPER
    typedef states_memory<RULE> at;
    constexpr bool is_f16 = CHUNK_HAS_TILES(RULE), channels = CHUNK_BY_CHANNELS(RULE);
    const int place = n % 2;
    const float *numbers = (const float *)(stage + at::state_numbers);
    const unsigned from = __shfl_sync(~0u, shared_address(stage), 0), k = from + at::k;
    const float one[2] = {1, 1};
    left_operand<16> held;
    left_operand<8> side, added, kept;
    turn_units units;
    float x[32], y[32] = {}, by[32], value[2] = {0, 0};
    u32 v[4][4];
    float2 keys[8];
    if constexpr (channels) /* here, as no product is in flight */
        m.wait(RING_UPDATES, n);
    pack_left<0, 8, 16>(s, one, held);
    multiply_rows(x, held.at[0], k, false);
    pack_left<8, 16, 16>(s, one, held);
    multiply_rows(x, held.at[4], k + CHUNK_TILE / 2, true);
    if constexpr (PASS == PASS_HANDED) {
        held.times[0] = unit[0], held.times[1] = unit[1];
        named_sync(TURN_TAKEN + place, 64 * CHUNK_STATE_WARPS);
        write_handed(shared_address(m.state) + place * CHUNK_TILE, held, m.scales(place), warp,
                     lane);
        named_arrive(TURN_STATE + place, 64 * CHUNK_STATE_WARPS);
    }
    if constexpr (channels)
        decay_channels(numbers, lane, s);
    if constexpr (PASS != PASS_MATRIX)
        load_values(from + at::state_u + warp * (CHUNK_PANEL * 2), lane, v, value, is_f16);
    if constexpr (is_f16) {
        const float most =
            channels ? largest_number(numbers + NUMBERS_U, lane) : numbers[NUMBERS_MOST];
        value[0] *= most, value[1] *= most;
    }
    find_units(held, value, channels ? 1 : numbers[NUMBERS_DECAY], unit, units);
    if constexpr (PASS != PASS_MATRIX)
        scale_values<is_f16>(v, numbers, units.side, lane, y);
    if constexpr (!channels)
        spread_numbers(numbers + NUMBERS_W, units.held, lane, by);
    wgmma_arrived(y);
    if constexpr (!channels)
        wgmma_arrived(by);
    wait_product<0>(x);
#pragma unroll
    for (int i = 0; i < 32; i++)
        x[i] = y[i] - x[i] * (channels ? units.held[i / 2 % 2] * (1 / CHANNELS_UP) : by[i]);
    pack_left<0, 8, 8>(x, one, side);
    if constexpr (CHUNK_ONE_DECAY(RULE))
        multiply_panels(x, side.at, from + at::inverse);
    else
        multiply_rows(x, side.at[0], from + at::inverse, false);
#pragma unroll
    for (int i = 0; !channels && i < 8; i++)
        keys[i] = *(const float2 *)(numbers + NUMBERS_K + 8 * i + lane % 4 * 2);
#pragma unroll
    for (int i = 0; i < 64; i++)
        s[i] *= units.state[i % 4 / 2];
    wgmma_arrived(s);
    wait_product<0>(x);
    if constexpr (channels) {
        pack_left<0, 8, 8>(x, one, kept);
        lower_updates(kept, added);
    } else {
#pragma unroll
        for (int i = 0; i < 32; i++)
            y[i] = x[i] * (i % 2 ? keys[i / 4].y : keys[i / 4].x);
        pack_left<0, 8, 8>(y, one, added);
    }
    multiply_keys(s, added.at,
                  channels ? __shfl_sync(~0u, shared_address(m.stage(RING_UPDATES, n)), 0) : k);
    if constexpr (PASS == PASS_HANDED) {
        pack_left<0, 8, 8>(x, one, kept);
        kept.times[0] = units.kept[0], kept.times[1] = units.kept[1];
        write_handed(shared_address(m.updates) + place * CHUNK_PRODUCTS, kept, m.scales(place) + 64,
                     warp, lane);
        named_arrive(TURN_UPDATES + place, 64 * CHUNK_STATE_WARPS);
    }
    wgmma_wait<0>();
    wgmma_arrived(s);
    if constexpr (channels)
        m.free(RING_UPDATES, n);
#else
    __trap();
#endif
}

#endif /* LINEAR_LIKE_STATES_TURNS_CUH */
