/* SPDX-License-Identifier: Apache-2.0
 *
 * mix.h: the 64-bit integer hash under the generator and the sample.
 *
 * All arithmetic is modulo 2^64, so any language and any device gives the same bits. Nothing may be
 * changed here without changing every digest ever printed.
 * Source: the finaliser and the increment of splitmix64 (Steele, Lea, Flood, OOPSLA 2014; the
 * constants are Stafford's variant 13).
 */
#ifndef HOST_BASE_MIX_H
#define HOST_BASE_MIX_H

#include <stdint.h>

#include "host/base/portable.h"

#define MIX_INCREMENT UINT64_C(0x9e3779b97f4a7c15) /* 2^64 / golden ratio, odd */

/* A bijection of the 64-bit integers whose every output bit depends on every input bit. */
PORTABLE uint64_t mix_word(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* The state after one more word. For a fixed word a bijection of the state, and for a fixed state
 * one of the word; the increment keeps a state and a word of 0 from being a fixed point. */
PORTABLE uint64_t mix_absorb(uint64_t state, uint64_t word)
{
    return mix_word((state + MIX_INCREMENT) ^ word);
}

/* Word `index` (0, 1, ...) of the stream that starts at `state`: splitmix64's sequence. */
PORTABLE uint64_t mix_stream(uint64_t state, uint64_t index)
{
    return mix_word(state + (index + 1) * MIX_INCREMENT);
}

/* An integer in [0, count) from 32 random bits; count must be in [1, 2^32]. */
PORTABLE uint64_t mix_below(uint32_t bits, uint64_t count)
{
    return (uint64_t)bits * count >> 32;
}

#endif /* HOST_BASE_MIX_H */
