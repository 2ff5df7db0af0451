/* SPDX-License-Identifier: Apache-2.0
 *
 * sample.c: the hash that samples rows.
 */
#include "host/verify/sample.h"

#include "host/base/mix.h"

#define SAMPLE_STATE UINT64_C(0x6174746e686f7374)

uint64_t sample_threshold(double rate)
{
    const uint64_t all = UINT64_C(1) << 53;
    if (!(rate > 0))
        return 0;
    return rate >= 1 ? all : (uint64_t)(rate * (double)all);
}

uint64_t sample_row_state(uint64_t seed, int64_t request, int64_t position)
{
    uint64_t state = mix_absorb(SAMPLE_STATE, seed);
    state = mix_absorb(state, (uint64_t)request);
    return mix_absorb(state, (uint64_t)position);
}

int sample_in_layer(uint64_t row_state, int32_t layer, uint64_t threshold)
{
    return mix_absorb(row_state, (uint64_t)layer) >> 11 < threshold;
}
