/* SPDX-License-Identifier: Apache-2.0
 *
 * perf.c: the group PERF: times that deserve a warning. Nothing here fails. */
#include "host/check/check.h"

#include <stdlib.h>

#include "host/check/cases/rig.h"
#include "host/base/clock.h"

/* Microseconds. The batch has a few sequences of a few tokens, so that the overhead of the call
 * dominates: a step of an engine has one plan, and a forward for each layer. */
enum { SAMPLES = 51, MAX_PLAN_US = 1000, MAX_FORWARD_US = 1000 };

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of SAMPLES calls. */
static double median(double times[SAMPLES])
{
    qsort(times, SAMPLES, sizeof *times, compare_times);
    return times[SAMPLES / 2];
}

static void measure(struct rig *rig, struct rig_session *session, int batch)
{
    double plans[SAMPLES], forwards[SAMPLES];
    attn_status status = ATTN_OK;
    for (int n = 0; n < SAMPLES && status == ATTN_OK; n++) {
        int64_t start = clock_now_ns();
        status = rig_plan(rig, session->metadata, batch);
        int64_t planned = clock_now_ns();
        if (status == ATTN_OK)
            status = rig_forward(rig, session->metadata, batch, 0);
        int64_t end = clock_now_ns();
        plans[n] = (double)(planned - start) / 1e3;
        forwards[n] = (double)(end - planned) / 1e3;
        if (status == ATTN_OK)
            status = device_synchronize(rig->device, rig->stream, check_error(rig->run));
    }
    if (!rig_good(rig, status, "plan and forward"))
        return;
    double plan = median(plans), forward = median(forwards);
    if (plan > MAX_PLAN_US)
        check_warn(rig->run,
                   "init_forward_metadata of %s batch of %d sequences takes %.0f us: "
                   "accepted up to %d",
                   rig_a_batch(rig, batch), rig->batches[batch].batch.num_seqs, plan, MAX_PLAN_US);
    if (forward > MAX_FORWARD_US)
        check_warn(rig->run, "forward of %s batch of %d rows takes %.0f us: accepted up to %d",
                   rig_a_batch(rig, batch), rig->batches[batch].batch.num_tokens, forward,
                   MAX_FORWARD_US);
}

const struct check check_perf[] = {
    RIG_ROW("PERF-01", overhead, NULL, CHECK_ALONE,
            "planning a small batch and calling a forward of it each take less than a millisecond",
            .each = measure),
    {.rule = NULL},
};
