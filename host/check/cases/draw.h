/* SPDX-License-Identifier: Apache-2.0
 *
 * draw.h: numbers drawn from a seed, in any order or in sequence.
 */
#ifndef HOST_CHECK_CASES_DRAW_H
#define HOST_CHECK_CASES_DRAW_H

#include "host/base/mix.h"

#include <stdbool.h>

/* Number `index` of a seed's: 0 .. count - 1. */
static inline int32_t draw_at(uint64_t seed, uint64_t index, int32_t count)
{
    return (int32_t)mix_below((uint32_t)(mix_stream(seed, index) >> 32), (uint64_t)count);
}

/* {.seed = SEED} draws from the beginning. */
struct draw {
    uint64_t seed, next;
};

/* 0 .. count - 1. */
static inline int32_t draw_below(struct draw *draw, int32_t count)
{
    return draw_at(draw->seed, draw->next++, count);
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
