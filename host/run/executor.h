/* SPDX-License-Identifier: Apache-2.0
 *
 * executor.h: steps of a run, through all layers, on a device.
 *
 *   executor_submit   the batch is written and uploaded -> init_forward_metadata (each unit once)
 *                     -> for each layer: make its rows; forward; watch; gather the sampled rows
 *                        (a decode step may be a graph that was captured before the first step)
 *   executor_finish   wait for the step's end -> oracle, digest, times
 *
 * On a GPU a submitted step is on its way when the call returns, and the next ones can be submitted
 * after it, up to EXECUTOR_MAX_IN_FLIGHT: the host prepares them while the device works. All go to
 * one stream. Nothing waits in between but executor_finish(), unless a step's sampled rows do not
 * fit the memory that gathers them. On the CPU a step is over when executor_submit() returns.
 *
 * A unit is a composed backend and the layer groups it serves (select.h). The scheduler alone knows
 * about waiting requests, free pages and cached prefixes. */
#ifndef HOST_RUN_EXECUTOR_H
#define HOST_RUN_EXECUTOR_H

#include "attnhost.h"
#include "host/config/config.h"
#include "host/device/device.h"
#include "host/run/forward_batch.h"
#include "host/workload/generator.h"
#include "host/cache/kv_pool.h"
#include "host/model/model.h"
#include "host/run/report.h"
#include "host/run/row_check.h"
#include "host/select/select.h"
#include "host/base/threads.h"
#include "host/workload/workload.h"

/* Called before each layer's forward is enqueued by itself (not when a graph is replayed) with its
 * operands by role, [ATTN_ROLE_COUNT], in the device's memory; tests use it to falsify an input. A
 * chunk of the prefix in the expanded form of latent attention is a separate forward, without c_kv.
 */
typedef void (*executor_probe)(void *ctx, const struct batch_step *step, int32_t layer,
                               const attn_tensor *const *operands);

/* All that is borrowed outlives the executor. */
struct executor_params {
    const struct config *config;
    const struct model *model;
    const struct selection *selection;
    const struct workload *workload;
    const struct generator *generator;
    const struct verify_scales *scales; /* [model.num_groups] */
    const struct kv_pool *pool;
    const struct device *device;
    struct row_check *check;
    struct threads *threads;
    attnhost *host;
    struct report *report;
    FILE *notes;        /* notes for people, written before the first step; NULL = none */
    attn_bounds bounds; /* of the largest step; modes are filled in for each unit */
    int32_t table_rows; /* of req_to_token */
    int32_t table_columns;
    struct drafts drafts; /* zeros: there are none */
    executor_probe probe; /* NULL = none */
    void *probe_ctx;
};

struct executor;

/* Steps in flight on a device that works by itself: one runs, and up to three wait after it, so
 * that the device does not idle while the host judges a step's rows. On the CPU it is 1. */
enum { EXECUTOR_MAX_IN_FLIGHT = 4 };

/* Compose and prepare all units, make their metadata, capture graphs. The status is the backend's
 * where it fails. */
attn_status executor_create(const struct executor_params *params, struct executor **executor,
                            attn_error *error);

/* Waits for the steps in flight. Accepts NULL, and an executor whose device is lost. */
void executor_destroy(struct executor *executor);

/* Let a step run after those in flight. A failure is the step's: nothing of it is in flight, and
 * the executor can run the next one, unless it is DEVICE_LOST. */
attn_status executor_submit(struct executor *executor, const struct batch_step *step,
                            attn_error *error);

/* Wait for the end of the oldest step in flight, judge its rows, add its times to the report.
 * *step_ns (may be NULL) is its duration in the report. After a failure the step is no longer in
 * flight. */
attn_status executor_finish(struct executor *executor, int64_t *step_ns, attn_error *error);

uint32_t executor_in_flight(const struct executor *executor);

/* At the end of an executor: add the rows by backend to the report. */
attn_status executor_report(struct executor *executor, attn_error *error);

#endif /* HOST_RUN_EXECUTOR_H */
