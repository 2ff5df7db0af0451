/* SPDX-License-Identifier: Apache-2.0
 *
 * timeline.h: times of requests' tokens, and a run's use of pools over time, by step.
 *
 * Steps are noted when they are submitted and counted when they are confirmed, in order, as the
 * scheduler does it. A request's waiting begins, on the wall clock, when it arrives, or with
 * workload.clock = virtual when the step it first has rows in is submitted; on the virtual clock,
 * with that step. Its first token comes with the end of the step that has its last prompt row, its
 * last token with the end of its last step.
 */
#ifndef HOST_RUN_TIMELINE_H
#define HOST_RUN_TIMELINE_H

#include <stdbool.h>

#include "host/run/report.h"
#include "host/schedule/scheduler.h"
#include "host/workload/workload.h"

struct timeline;

/* All that is borrowed outlives it. */
struct timeline_params {
    const struct workload *workload;
    struct report *report;
    bool arrivals; /* requests wait for their time: workload.clock = wall */
    int32_t max_seqs, max_in_flight;
    int64_t start_ns; /* of the run */
};

attn_status timeline_create(const struct timeline_params *params, struct timeline **timeline,
                            attn_error *error);

/* NULL is accepted. */
void timeline_destroy(struct timeline *timeline);

/* A step was submitted, beginning at `begin_ns`, with so many tokens of the pool in use. */
void timeline_submit(struct timeline *timeline, const struct scheduler_step *step,
                     int64_t kv_tokens, int64_t begin_ns);

/* The oldest step in flight has ended well, at `end_ns`; it took `step_ns`. OUT_OF_HOST_MEMORY. */
attn_status timeline_confirm(struct timeline *timeline, int64_t step_ns, int64_t end_ns,
                             attn_error *error);

/* The requests below `first` are over, and in no step in flight: nothing is kept for them. */
void timeline_pass(struct timeline *timeline, int64_t first);

/* The steps in flight are lost, or have failed. */
void timeline_forget(struct timeline *timeline);

#endif /* HOST_RUN_TIMELINE_H */
