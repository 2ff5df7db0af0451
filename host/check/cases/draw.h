/* SPDX-License-Identifier: Apache-2.0
 *
 * draw.h: numbers drawn one after the other from a seed.
 */
#ifndef HOST_CHECK_CASES_DRAW_H
#define HOST_CHECK_CASES_DRAW_H

#include "host/base/mix.h"

#include <stdbool.h>

/* {.seed = SEED} draws from the beginning. */
struct draw {
    uint64_t seed, next;
};

/* 0 .. count - 1. */
static inline int32_t draw_below(struct draw *draw, int32_t count)
{
    uint32_t bits = (uint32_t)(mix_stream(draw->seed, draw->next++) >> 32);
    return (int32_t)mix_below(bits, (uint64_t)count);
}

static inline bool draw_one_in(struct draw *draw, int32_t count)
{
    return draw_below(draw, count) == 0;
}

static inline bool draw_coin(struct draw *draw)
{
    return draw_below(draw, 2) == 1;
}

#endif /* HOST_CHECK_CASES_DRAW_H */
