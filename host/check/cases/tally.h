/* SPDX-License-Identifier: Apache-2.0
 *
 * tally.h: a table of services around another one. It counts allocations and releases, and refuses
 * memory on demand. It provides optional services that the other table lacks.
 */
#ifndef HOST_CHECK_CASES_TALLY_H
#define HOST_CHECK_CASES_TALLY_H

#include <stdbool.h>

#include "attn_plugin.h"

/* Slots that may be NULL. */
enum tally_slot { TALLY_TRACE, TALLY_POLL_ERROR, TALLY_GET_EXTENSION, TALLY_SLOTS };

/* Initialised in place and never copied; outlives the instances that were given its table. */
struct tally {
    attn_services table;
    const attn_services *inner;
    int64_t live[ATTN_SPACE_COUNT]; /* blocks that were taken and not given back */
    int64_t spans;                  /* of the trace, open */
    uint64_t num_allocations;
    uint64_t refuse_at; /* the allocation to refuse, counted from 1; 0 = none */
    bool refused;
    uint32_t refused_space;
    bool strange; /* a space, span or extension id that is none */
};

void tally_init(struct tally *tally, const attn_services *inner);

/* Take an optional service away. */
void tally_hide(struct tally *tally, enum tally_slot slot);

/* From now on count from 0, and refuse allocation `refuse_at`. */
void tally_restart(struct tally *tally, uint64_t refuse_at);

/* NULL, or what was taken and not given back. */
const char *tally_left(const struct tally *tally);

#endif /* HOST_CHECK_CASES_TALLY_H */
