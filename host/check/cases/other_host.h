/* SPDX-License-Identifier: Apache-2.0
 *
 * other_host.h: a second host with a subject's backend, whose pool has another number of threads.
 */
#ifndef HOST_CHECK_CASES_OTHER_HOST_H
#define HOST_CHECK_CASES_OTHER_HOST_H

#include "host/check/check.h"
#include "host/base/threads.h"
#include "host/check/cases/numerics.h"

struct other_host {
    struct threads *threads;
    struct composer composer;
    struct compose_node *node; /* the backend's tree, resolved anew */
};

/* Of the run's subject. False: reported. other_host_finish() in any case. */
bool other_host_init(struct other_host *other, struct check_run *run, uint32_t num_threads);
void other_host_finish(struct other_host *other);

/* use(run, ctx) while the run's subject is on a pool of so many threads; on a GPU as it is. */
void other_host_use(struct check_run *run, uint32_t num_threads,
                    void (*use)(struct check_run *run, void *ctx), void *ctx);

/* How many threads a case has, drawn from its seed. */
uint32_t other_host_draw_threads(const struct check_run *run);

/* numerics_run() with so many threads: work is split by the number of threads, which should not
 * depend on the machine. On a GPU with those of the subject. */
void other_host_run_spec(struct check_run *run, uint32_t num_threads, const struct case_spec *spec,
                         const attn_options *options);

#endif /* HOST_CHECK_CASES_OTHER_HOST_H */
