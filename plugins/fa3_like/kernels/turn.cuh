/* SPDX-License-Identifier: Apache-2.0
 *
 * turn.cuh: transposes e4m3 values in shared memory. Products of 8-bit elements need both operands
 * contiguous along the inner dimension, the keys, but values are contiguous along columns:
 *
 *   V[128 keys][128 columns]
 *       --ldmatrix.trans, byte permutations, stmatrix-->
 *   turned[128 columns][128 keys]
 *
 * Keys and columns are permuted, so that lanes exchange nothing:
 *
 *   keys      place 4 t + j of 16 has key 2 t + j (j < 2) or 8 + 2 t + j - 2: the order of a
 *              lane's probabilities after the first product
 *   columns   row i of 16 has column 2 i (i < 8) or 2 (i - 8) + 1: the order of ldmatrix's pairs
 */
#ifndef FA3_LIKE_TURN_CUH
#define FA3_LIKE_TURN_CUH

#include "plugins/common/cuda/warpgroup.cuh"

#define TURN_KEYS  128
#define TURN_BYTES (TURN_KEYS * ROW_BYTES) /* a tile, transposed or not, swizzled */

#define TURN_AHEAD 3 /* units of 16 keys by 32 columns that are loaded before one is stored */

DEVICE void turn_store(unsigned to, const unsigned (&x)[4])
{
    store_matrices(to, __byte_perm(x[0], x[1], 0x6420), __byte_perm(x[0], x[1], 0x7531),
                   __byte_perm(x[2], x[3], 0x6420), __byte_perm(x[2], x[3], 0x7531));
}

/* Transposes keys [16 first, 16 (first + count)) of a tile, by a warp. Tiles start at multiples of
 * 1024, so the address of a unit differs from the first one's by one swizzle bit and a constant. */
template <int count> DEVICE void turn_rows(unsigned from, unsigned to, int first)
{
    const int lane = threadIdx.x % 32;
    const unsigned in = from + first * 16 * ROW_BYTES + swizzled(lane % 16, lane / 16);
    const unsigned out = to + swizzled(lane, first);
    unsigned x[TURN_AHEAD + 1][4];
#pragma unroll
    for (int i = 0; i < 4 * count + TURN_AHEAD; i++) {
        const int j = i - TURN_AHEAD;
        if (i < 4 * count)
            load_matrices_turned((in ^ i % 4 * 32) + i / 4 * 16 * ROW_BYTES,
                                 x[i % (TURN_AHEAD + 1)]);
        if (j >= 0)
            turn_store((out ^ j / 4 * 16) + j % 4 * 32 * ROW_BYTES, x[j % (TURN_AHEAD + 1)]);
    }
}

/* The key of 16 at a place. */
DEVICE int turned_key(int place)
{
    return place % 4 / 2 * 8 + place / 4 * 2 + place % 2;
}

/* Clears keys [first, end) of 16 places of a transposed row. */
DEVICE uint4 turned_clear(uint4 x, int first, int end)
{
    unsigned *words = &x.x;
#pragma unroll
    for (int place = 0; place < 16; place++) {
        const int key = turned_key(place);
        if (key >= first && key < end)
            words[place / 4] &= ~(0xffu << place % 4 * 8);
    }
    return x;
}

#endif
