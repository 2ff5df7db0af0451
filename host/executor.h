/* SPDX-License-Identifier: Apache-2.0
 *
 * executor.h: one step of a run, through all layers.
 *
 *   build the batch -> init_forward_metadata (each unit once)
 *   for each layer: make q, k, v -> forward -> sample: verify, digest
 *
 * A unit is a composed backend and the layer groups it serves (select.h). The executor knows
 * nothing of requests that wait, of pages that are free or of prefixes that are cached: that is the
 * scheduler's.
 */
#ifndef HOST_EXECUTOR_H
#define HOST_EXECUTOR_H

#include "attnhost.h"
#include "host/config.h"
#include "host/device.h"
#include "host/digest.h"
#include "host/forward_batch.h"
#include "host/generator.h"
#include "host/kv_pool.h"
#include "host/model.h"
#include "host/report.h"
#include "host/select.h"
#include "host/threads.h"
#include "host/verify.h"
#include "host/workload.h"

/* A step: the batch, and whose sequences these are. */
struct executor_step {
    struct batch_step batch;
    const int64_t *requests; /* [num_sequences] index in the workload */
};

/* Called before each layer's forward with its operands; what tests use to falsify an input. */
typedef void (*executor_probe)(void *ctx, const struct executor_step *step, int32_t layer,
                               const attn_tensor *q, const attn_tensor *k, const attn_tensor *v);

/* All that is borrowed outlives the executor. */
struct executor_params {
    const struct config *config;
    const struct model *model;
    const struct selection *selection;
    const struct workload *workload;
    const struct generator *generator;
    const struct kv_pool *pool;
    const struct device *device;
    struct threads *threads;
    attnhost *host;
    attn_bounds bounds;   /* of the largest step; modes are filled in for each unit */
    executor_probe probe; /* NULL = none */
    void *probe_ctx;
};

struct executor;

/* Compose and prepare all units and make their metadata. The status is the backend's where it
 * fails. */
attn_status executor_create(const struct executor_params *params, struct executor **executor,
                            attn_error *error);

/* NULL is accepted. */
void executor_destroy(struct executor *executor);

/* Run a step and add its duration to the report. A failure is the
 * step's: the executor can run the next one. */
attn_status executor_run(struct executor *executor, const struct executor_step *step,
                         struct report *report, attn_error *error);

/* At the end of a run: fill in the report's verification, digest and rows by backend. */
attn_status executor_report(struct executor *executor, struct report *report, attn_error *error);

#endif /* HOST_EXECUTOR_H */
