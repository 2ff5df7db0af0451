/* SPDX-License-Identifier: Apache-2.0
 *
 * outputs.cuh: outputs of a chunk, by values, from the left operands passed by the states'
 * warpgroup.
 */
#ifndef LINEAR_LIKE_OUTPUTS_CUH
#define LINEAR_LIKE_OUTPUTS_CUH

#include "plugins/linear_like/kernels/states_copy.cuh"

/* A lane's eight values of a v head, in all rows. */
struct output_place {
    int head, value;
    bool here;
    float skip[8];
};

/* Stores eight adjacent values of a row's output. `v`: of u. */
template <int RULE>
DEVICE void write_eight(const linear_call &call, int row, const output_place &place, float (&x)[8],
                        uint4 z, uint4 v, float v_times, float own)
{
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
    float y[8];
    if (!RULE) {
        unpack_eight(ELEMENT_F16, v, y);
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] += (own + place.skip[i]) * (y[i] * v_times);
    }
    if (o.z) {
        unpack_eight(d.dtype, z, y);
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] *= linear_fast_silu(y[i]);
    }
    *(uint4 *)(o.out + row * o.out_row + place.head * o.out_head + place.value * 2) =
        make_uint4(pack_two(d.out_dtype, x[0], x[1]), pack_two(d.out_dtype, x[2], x[3]),
                   pack_two(d.out_dtype, x[4], x[5]), pack_two(d.out_dtype, x[6], x[7]));
}

/* Scales the sums of earlier updates by `p`; for a delta rule, adds `own` times the row's own
 * update. `x`: updates of two values in two rows. */
template <int RULE> DEVICE void add_own(float2 own, float2 p, const u32 *x, float (&sums)[4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sums[2 * i] = sums[2 * i] * p.x + (RULE ? own.x * half_low(x[i]) : 0);
        sums[2 * i + 1] = sums[2 * i + 1] * p.y + (RULE ? own.y * half_high(x[i]) : 0);
    }
}

/* Stores outputs of a delta rule without z: transposed while stored, 16 bytes per lane. */
template <int RULE>
DEVICE void write_turned(const linear_call &call, char *turn, const float *numbers,
                         const float (&read)[32], float (&added)[32], const float (&held)[2],
                         const left_operand<8> &kept, int row, int rows, const output_place &place,
                         int lane)
{
    const linear_operands &o = call.operands;
    const int dtype = call.dims.out_dtype, turned = lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        u32 y[4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int c = 16 * pair + 8 * i + lane % 4 * 2, from = 4 * (2 * pair + i);
            const float2 a = *(const float2 *)(numbers + NUMBERS_Q + c);
            const float2 p = *(const float2 *)(numbers + NUMBERS_P + c);
            const float2 own = *(const float2 *)(numbers + NUMBERS_OWN(true) + c);
            float(&sums)[4] = *(float(*)[4])(added + from);
            add_own<true>(own, p, kept.at[pair] + 2 * i, sums);
#pragma unroll
            for (int e = 0; e < 2; e++) /* a lane's value, and value + 8 */
                y[2 * i + e] = pack_two(
                    dtype, read[from + 2 * e] * (a.x * held[e]) + sums[2 * e] * kept.times[e],
                    read[from + 2 * e + 1] * (a.y * held[e]) + sums[2 * e + 1] * kept.times[e]);
        }
        store_matrices_turned(shared_address(turn) + panel_offset(16 * pair + turned, lane / 8 % 2),
                              y);
    }
    __syncwarp();
    char *to =
        o.out + (i64)(row + lane / 2) * o.out_row + place.head * o.out_head + place.value * 2;
#pragma unroll
    for (int pair = 0; pair < 4; pair++)
        if (16 * pair + lane / 2 < rows && place.here)
            *(uint4 *)(to + 16 * pair * o.out_row) =
                *(const uint4 *)(turn + panel_offset(16 * pair + lane / 2, lane % 2));
}

/* Computes the outputs of a chunk's rows, the first of which is row `row` of the batch. They are
 * transposed in shared memory, sixteen rows at a time. `last`: the other warpgroup has no further
 * chunk. */
template <int RULE>
DEVICE void write_chunk(const linear_call &call, const states_memory<RULE> &m, int n, int row,
                        int rows, bool last, const output_place &place, int warp, int lane)
{
    typedef states_memory<RULE> at;
    const linear_operands &o = call.operands;
    const char *stage = m.stage(1, n), *v = stage + at::output_u + warp * CHUNK_PANEL_BYTES;
    const float *numbers = (const float *)(stage + at::output_numbers);
    left_operand<16> s;
    left_operand<8> x;
    float read[32], added[32];
    uint4 z[4] = {};
#pragma unroll
    for (int pair = 0; pair < 4; pair++)
        if (o.z && place.here && 16 * pair + lane / 2 < rows)
            z[pair] = *(const uint4 *)(o.z + (row + 16 * pair + lane / 2) * o.z_row +
                                       place.head * o.z_head + place.value * 2);
    named_sync(HANDED_STATE, 64 * CHUNK_STATE_WARPS);
    take_over(m.state, s);
    multiply_rows(read, s.at[0], shared_address(stage + at::q), false);
    multiply_rows(read, s.at[4], shared_address(stage + at::q) + CHUNK_TILE / 2, true);
    named_sync(HANDED_UPDATES, 64 * CHUNK_STATE_WARPS);
    take_over(m.updates, x);
    if (!last)
        named_arrive(HANDED_TAKEN, 64 * CHUNK_STATE_WARPS);
    multiply_rows(added, x.at[0], shared_address(stage + at::products), false);
    wait_product<0>(read);
    wgmma_arrived(added);
    if (HAS_HOPPER && RULE && !o.z) {
        write_turned<RULE>(call, (char *)m.turn, numbers, read, added, s.times, x, row, rows, place,
                           lane);
        return;
    }
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int c = 8 * i + lane % 4 * 2, from = 4 * (2 * pair + i);
            const float2 a = *(const float2 *)(numbers + NUMBERS_Q + 16 * pair + c);
            const float2 p = *(const float2 *)(numbers + NUMBERS_P + 16 * pair + c);
            const float2 own = RULE ? *(const float2 *)(numbers + NUMBERS_OWN(true) + 16 * pair + c)
                                    : make_float2(0, 0);
            float *to = m.turn + c * 20 + lane / 4;
            float(&y)[4] = *(float(*)[4])(added + from);
            add_own<RULE>(own, p, x.at[pair] + 2 * i, y);
            to[0] = read[from] * (a.x * s.times[0]) + y[0] * x.times[0];
            to[20] = read[from + 1] * (a.y * s.times[0]) + y[1] * x.times[0];
            to[8] = read[from + 2] * (a.x * s.times[1]) + y[2] * x.times[1];
            to[28] = read[from + 3] * (a.y * s.times[1]) + y[3] * x.times[1];
        }
        __syncwarp();
        const int c = lane / 2, r = 16 * pair + c;
        if (r < rows && place.here) {
            const float4 low = *(const float4 *)(m.turn + c * 20 + lane % 2 * 8);
            const float4 high = *(const float4 *)(m.turn + c * 20 + lane % 2 * 8 + 4);
            float y[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            const uint4 values =
                RULE ? make_uint4(0, 0, 0, 0) : *(const uint4 *)(v + panel_offset(r, lane % 2));
            write_eight<RULE>(call, row + r, place, y, z[pair], values, numbers[NUMBERS_V + r],
                              numbers[NUMBERS_OWN(false) + r]);
        }
        __syncwarp();
    }
}

#endif /* LINEAR_LIKE_OUTPUTS_CUH */
