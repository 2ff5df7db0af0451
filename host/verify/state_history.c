/* SPDX-License-Identifier: Apache-2.0
 *
 * state_history.c: bit sets of store positions, by slot.
 */
#include "host/verify/state_history.h"

#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/mix.h"

attn_status state_history_init(struct state_history *history, int32_t num_slots, int64_t max_tokens,
                               attn_error *error)
{
    *history = (struct state_history){.num_slots = num_slots,
                                      .bytes_per_slot = (uint64_t)max_tokens / 8 + 1};
    history->bits = calloc((size_t)num_slots, history->bytes_per_slot);
    if (!history->bits)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for histories of %d states",
                         num_slots);
    return ATTN_OK;
}

void state_history_finish(struct state_history *history)
{
    free(history->bits);
    *history = (struct state_history){0};
}

static uint8_t *bits_of(const struct state_history *history, int32_t slot)
{
    return history->bits + (uint64_t)slot * history->bytes_per_slot;
}

const uint8_t *state_history_of(const struct state_history *history, int32_t slot)
{
    return slot > 0 && history->bits ? bits_of(history, slot) : NULL;
}

void state_history_write(struct state_history *history, const struct state_write *write)
{
    int64_t last = write->position - 1;
    if (write->to == 0)
        return;
    uint8_t *bits = bits_of(history, write->to);
    if (write->from == 0)
        memset(bits, 0, history->bytes_per_slot);
    else if (write->from != write->to)
        memcpy(bits, bits_of(history, write->from), history->bytes_per_slot);
    bits[last / 8] |= (uint8_t)(1u << last % 8);
}

uint64_t state_history_mix(const uint8_t *stored, int64_t count)
{
    uint64_t mixed = 0;
    for (int64_t position = 0; stored && position < count; position += 8) {
        uint64_t eight = stored[position / 8];
        if (count - position < 8)
            eight &= (1u << (count - position)) - 1;
        if (eight != 0)
            mixed = mix_absorb(mixed, (uint64_t)position << 8 | eight);
    }
    return mixed;
}
