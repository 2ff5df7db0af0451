/* SPDX-License-Identifier: Apache-2.0
 *
 * service_counter.h: a table of services around another one. It counts allocations and releases, and refuses
 * memory on demand. It provides optional services that the other table lacks.
 */
#ifndef HOST_CHECK_CASES_SERVICE_COUNTER_H
#define HOST_CHECK_CASES_SERVICE_COUNTER_H

#include <stdbool.h>

#include "attn_plugin.h"

/* Slots that may be NULL. */
enum service_counter_slot {
    SERVICE_TRACE,
    SERVICE_POLL_ERROR,
    SERVICE_GET_EXTENSION,
    SERVICE_SLOTS
};

/* Initialised in place and never copied; outlives the instances that were given its table. */
struct service_counter {
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

void service_counter_init(struct service_counter *counter, const attn_services *inner);

/* Take an optional service away. */
void service_counter_hide(struct service_counter *counter, enum service_counter_slot slot);

/* From now on count from 0, and refuse allocation `refuse_at`. */
void service_counter_restart(struct service_counter *counter, uint64_t refuse_at);

/* NULL, or what was taken and not given back. */
const char *service_counter_left(const struct service_counter *counter);

#endif /* HOST_CHECK_CASES_SERVICE_COUNTER_H */
