/* SPDX-License-Identifier: Apache-2.0
 *
 * outputs_turns.cuh: outputs of GDN with a norm. Rows of the products are the chunk's rows, so they
 * need no transpose.
 */
#ifndef LINEAR_LIKE_OUTPUTS_TURNS_CUH
#define LINEAR_LIKE_OUTPUTS_TURNS_CUH

#include "plugins/linear_like/kernels/outputs.cuh"

/* Converts the product with the state to units of 1. */
DEVICE void scale_read(const float *scales, int lane, float (&read)[32])
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 times = *(const float2 *)(scales + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++)
            read[4 * n + e] *= e % 2 ? times.y : times.x;
    }
}

/* An element of an output. `read`: the product with the state; `added`: P U, in units of `p`;
 * `own`: the row's q times its own k; updates are in units of `kept`. Explicit fmaf gives the same
 * bits in all kernels. */
DEVICE float finish_output(float read, float added, float p, float own, float update, float kept)
{
    return fmaf(fmaf(added, p, own * update), kept, read);
}

/* Combines outputs. `read`: q S, becomes the output; `added`: P U; `x`: updates of the lane's rows,
 * with factors `scales`. */
DEVICE void combine_outputs(const float *numbers, const float *scales, const float (&added)[32],
                            const u32 (&x)[4][4], int warp, int lane, float (&read)[32])
{
    const int row = 16 * warp + lane / 4;
    const float p = numbers[NUMBERS_P];
    const float q[2] = {numbers[NUMBERS_Q + row], numbers[NUMBERS_Q + row + 8]};
    const float own[2] = {numbers[NUMBERS_OWN(true) + row], numbers[NUMBERS_OWN(true) + row + 8]};
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 times = *(const float2 *)(scales + 8 * n + lane % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const u32 two = x[n / 2][n % 2 * 2 + e / 2];
            const float update = e % 2 ? half_high(two) : half_low(two);
            read[4 * n + e] = finish_output(read[4 * n + e] * q[e / 2], added[4 * n + e], p,
                                            own[e / 2], update, e % 2 ? times.y : times.x);
        }
    }
}

/* Multiplies outputs by SiLU of z. `row`: the lane's first row in the batch; `rows`: the chunk's
 * rows from there on. */
DEVICE void gate_outputs(const linear_call &call, int row, int rows, const output_place &place,
                         int lane, float (&x)[32])
{
    const linear_operands &o = call.operands;
    const linear_dims &d = call.dims;
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const int value = place.value + n / 2 * 8 + lane % 4 * 2, below = n % 2 * 8;
        u32 z = 0;
        if (below < rows && value < d.v_dim)
            z = *(const u32 *)(o.z + (i64)(row + below) * o.z_row + place.head * o.z_head +
                               value * 2);
        const bool is_f16 = d.dtype == ELEMENT_F16;
        x[2 * n] *= linear_fast_silu(is_f16 ? half_low(z) : bits_f32(z << 16));
        x[2 * n + 1] *= linear_fast_silu(is_f16 ? half_high(z) : bits_f32(z & 0xffff0000));
    }
}

/* Stores the same rows, 16 bytes per lane. */
DEVICE void store_outputs(const linear_call &call, char *turn, const float (&x)[32], int row,
                          int rows, const output_place &place, int lane)
{
    const linear_operands &o = call.operands;
    const int dtype = call.dims.out_dtype, piece = lane % 8;
#pragma unroll
    for (int pair = 0; pair < 4; pair++) {
        u32 y[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            y[i] = pack_two(dtype, x[8 * pair + 2 * i], x[8 * pair + 2 * i + 1]);
        store_matrices(shared_address(turn) + tile_offset(lane % 16, 2 * pair + lane / 16), y);
    }
    __syncwarp();
    char *to = o.out + (i64)(row + lane / 8) * o.out_row + place.head * o.out_head +
               (place.value + piece * 8) * 2;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (4 * i + lane / 8 < rows && place.value + piece * 8 < call.dims.v_dim)
            *(uint4 *)(to + 4 * i * o.out_row) =
                *(const uint4 *)(turn + tile_offset(4 * i + lane / 8, piece));
}

/* Loads a warp's rows of a lower triangle of blocks, as a left operand. */
DEVICE void load_triangle(unsigned from, int warp, int lane, u32 (&to)[4][4])
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        load_matrices(from + triangle_block(warp, int_min(j, warp)) +
                          panel_offset(lane % 16, lane / 16),
                      to[j]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[j][i] = j <= warp ? to[j][i] : 0;
    }
}

/* Computes the outputs of a chunk's rows, the first of which is row `row` of the batch. `more`: the
 * other warpgroup will reuse the chunk's buffer. */
template <int RULE>
DEVICE void write_turn(const linear_call &call, const states_memory<RULE> &m, int n, int row,
                       int rows, bool more, const output_place &place, int warp, int lane)
{
    typedef states_memory<RULE> at;
    const int turn = n % 2;
    const char *stage = m.stage(RING_OUTPUTS, n);
    const unsigned from = __shfl_sync(~0u, shared_address(stage), 0);
    float of[2][32]; /* of the state, of updates */
    u32 x[4][4], p[4][4];
    load_triangle(shared_address(stage) + at::products, warp, lane, p);
    named_sync(TURN_STATE + turn, 64 * CHUNK_STATE_WARPS);
    fence_async_shared();
    multiply_shared<true, 8>(of[0], from + at::q,
                             __shfl_sync(~0u, shared_address(m.state) + turn * CHUNK_TILE, 0));
    const unsigned updates = __shfl_sync(~0u, shared_address(m.updates) + turn * CHUNK_PRODUCTS, 0);
    named_sync(TURN_UPDATES + turn, 64 * CHUNK_STATE_WARPS);
    fence_async_shared();
    multiply_rows(of[1], p[0], updates, false);
#pragma unroll
    for (int pair = 0; pair < 4; pair++)
        load_matrices_turned(
            updates + tile_offset(16 * pair + lane / 16 * 8 + lane % 8, 2 * warp + lane / 8 % 2),
            x[pair]);
    wait_product<0>(of[1]);
    wgmma_arrived(of[0]);
    scale_read(m.scales(turn), lane, of[0]);
    combine_outputs((const float *)(stage + at::output_numbers), m.scales(turn) + 64, of[1], x,
                    warp, lane, of[0]);
    if (more)
        named_arrive(TURN_TAKEN + turn, 64 * CHUNK_STATE_WARPS);
    if (call.operands.z)
        gate_outputs(call, row + 16 * warp + lane / 4, rows - 16 * warp - lane / 4, place, lane,
                     of[0]);
    store_outputs(call, (char *)m.turn, of[0], row + 16 * warp, rows - 16 * warp, place, lane);
}

#endif /* LINEAR_LIKE_OUTPUTS_TURNS_CUH */
