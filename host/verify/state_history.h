/* SPDX-License-Identifier: Apache-2.0
 *
 * state_history.h: the tokens after which a run stored the states in its slots.
 *
 * A state is carried on in its slot, or in that of a snapshot, which another request goes on from.
 * Each time it is stored it is rounded to the pool's dtype, so its value depends on where
 * that happened: verification replays it (verify/linear.h). A history is a set of positions, kept
 * as bits; it goes with the state from slot to slot.
 */
#ifndef HOST_VERIFY_STATE_HISTORY_H
#define HOST_VERIFY_STATE_HISTORY_H

#include <stdint.h>

#include "attnhost.h"

/* The histories of all slots; slot 0, the padding, has none. */
struct state_history {
    int32_t num_slots;
    uint64_t bytes_per_slot;
    uint8_t *bits; /* [num_slots, bytes_per_slot] */
};

/* For states of up to max_tokens tokens; num_slots is at least 1. OUT_OF_HOST_MEMORY. */
attn_status state_history_init(struct state_history *history, int32_t num_slots, int64_t max_tokens,
                               attn_error *error);

/* A zeroed one is fine. */
void state_history_finish(struct state_history *history);

/* The history of the state in a slot, for state_is_stored(), good until that slot is written; NULL
 * for slot 0, and for all slots of a zeroed one. */
const uint8_t *state_history_of(const struct state_history *history, int32_t slot);

/* Slot `to` gets the state of slot `from` (0 = one that begins as zero), gone on to `position`
 * tokens. `to` = 0: it is dropped. */
struct state_write {
    int32_t from, to;
    int64_t position;
};

void state_history_write(struct state_history *history, const struct state_write *write);

/* Was the state stored after the token at `position`? A history of NULL: never. */
static inline int state_is_stored(const uint8_t *stored, int64_t position)
{
    return stored && stored[position / 8] >> position % 8 & 1;
}

/* The first `count` positions of a history as one number; equal ones have equal numbers. */
uint64_t state_history_mix(const uint8_t *stored, int64_t count);

#endif /* HOST_VERIFY_STATE_HISTORY_H */
