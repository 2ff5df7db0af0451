/* SPDX-License-Identifier: Apache-2.0
 *
 * timeline.c: moments and held pages of each step.
 */
#include "host/run/timeline.h"

#include <stdlib.h>

#include "attn_problem.h"
#include "host/base/error.h"
#include "host/base/moving_range.h"

/* Nanoseconds since the run began, by REPORT_VIRTUAL and REPORT_WALL. */
struct moment {
    int64_t ns[REPORT_CLOCKS];
};

struct request_times {
    bool began, has_token;
    struct moment begin, first_token;
};

/* A step in flight. */
struct noted {
    int64_t begin_ns; /* wall clock, since the run began */
    struct report_bin bin;
    int32_t num_seqs;
    struct noted_seq {
        int64_t request;
        int64_t rows; /* that it has after this step */
    } * seqs;         /* [max_seqs] */
};

struct timeline {
    struct timeline_params params;
    struct moving_range requests; /* struct request_times of those that are not over */
    struct noted *noted;          /* ring [max_in_flight] */
    struct noted_seq *seqs;       /* of all of them */
    int64_t oldest;
    int32_t in_flight;
    int64_t virtual_ns;
};

attn_status timeline_create(const struct timeline_params *params, struct timeline **timeline,
                            attn_error *error)
{
    struct timeline *made = calloc(1, sizeof *made);
    size_t flights = (size_t)params->max_in_flight, seqs = (size_t)params->max_seqs;
    if (made) {
        made->params = *params;
        made->requests.size = sizeof(struct request_times);
        made->noted = calloc(flights, sizeof *made->noted);
        made->seqs = calloc(flights * seqs, sizeof *made->seqs);
    }
    if (!made || !made->noted || !made->seqs) {
        timeline_destroy(made);
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for times of steps");
    }
    for (size_t f = 0; f < flights; f++)
        made->noted[f].seqs = made->seqs + f * seqs;
    *timeline = made;
    return ATTN_OK;
}

void timeline_destroy(struct timeline *timeline)
{
    if (!timeline)
        return;
    free(timeline->seqs);
    free(timeline->noted);
    moving_range_finish(&timeline->requests);
    free(timeline);
}

static struct noted *noted_at(const struct timeline *timeline, int32_t index)
{
    return &timeline->noted[(timeline->oldest + index) % timeline->params.max_in_flight];
}

/* Rows of a sequence that stay. */
static int32_t committed_rows(const struct scheduler_step *step, int32_t s)
{
    return step->trees ? step->trees[s].committed : step->seqs[s].num_new;
}

void timeline_submit(struct timeline *timeline, const struct scheduler_step *step,
                     int64_t kv_tokens, int64_t begin_ns)
{
    struct noted *noted = noted_at(timeline, timeline->in_flight++);
    noted->begin_ns = begin_ns - timeline->params.start_ns;
    noted->num_seqs = step->num_seqs;
    noted->bin = (struct report_bin){
        .kv_tokens = kv_tokens,
        .running = step->num_seqs,
    };
    for (int32_t s = 0; s < step->num_seqs; s++) {
        int32_t rows = committed_rows(step, s);
        noted->seqs[s] = (struct noted_seq){
            .request = step->seqs[s].request,
            .rows = (int64_t)step->seqs[s].prefix_len + rows,
        };
        if (step->mode == SCHEDULER_MODE_ENCODE)
            noted->seqs[s].rows = 0;
        else if (s >= step->num_seqs - step->num_decode_seqs)
            noted->bin.decode += rows;
        else if (step->mode != ATTN_MODE_DRAFT_EXTEND)
            noted->bin.prefill += rows;
    }
}

void timeline_pass(struct timeline *timeline, int64_t first)
{
    moving_range_pass(&timeline->requests, first);
}

void timeline_forget(struct timeline *timeline)
{
    timeline->in_flight = 0;
}

/* Add the time between two moments, divided by `parts`, to the times of each clock. */
static attn_status add_between(struct report_times *times, const struct moment *from,
                               const struct moment *to, int64_t parts, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (int clock = 0; clock < REPORT_CLOCKS && status == ATTN_OK; clock++)
        status = report_add_time(&times[clock], (to->ns[clock] - from->ns[clock]) / parts, error);
    return status;
}

/* A request after a step. One that was retracted computes rows again, and gets no token twice. */
static attn_status note_request(struct timeline *timeline, const struct noted_seq *seq,
                                const struct moment *begin, const struct moment *end,
                                attn_error *error)
{
    const workload_request *request = &timeline->params.workload->requests[seq->request];
    struct request_times *times = moving_range_at(&timeline->requests, seq->request);
    struct report *report = timeline->params.report;
    int64_t further = request->output_length - 1;
    attn_status status = ATTN_OK;
    if (!times)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for times of requests");
    if (!times->began) {
        times->began = true;
        times->begin = *begin;
        if (timeline->params.arrivals)
            times->begin.ns[REPORT_WALL] = request->arrival_us * 1000;
    }
    if (request->output_length == 0 || seq->rows < request->input_length)
        return ATTN_OK;
    if (!times->has_token) {
        times->has_token = true;
        times->first_token = *end;
        status = add_between(report->ttft, &times->begin, end, 1, error);
    }
    if (status == ATTN_OK && further > 0 && seq->rows == request->input_length + further)
        status = add_between(report->tpot, &times->first_token, end, further, error);
    return status;
}

attn_status timeline_confirm(struct timeline *timeline, int64_t step_ns, int64_t end_ns,
                             attn_error *error)
{
    struct noted *noted = noted_at(timeline, 0);
    struct moment begin = {{timeline->virtual_ns, noted->begin_ns}};
    struct moment end = {{timeline->virtual_ns + step_ns, end_ns - timeline->params.start_ns}};
    attn_status status = ATTN_OK;
    for (int32_t s = 0; s < noted->num_seqs && status == ATTN_OK; s++)
        status = note_request(timeline, &noted->seqs[s], &begin, &end, error);
    for (int clock = 0; clock < REPORT_CLOCKS; clock++)
        noted->bin.end_ns[clock] = end.ns[clock];
    report_add_step(&timeline->params.report->series, &noted->bin);
    timeline->virtual_ns += step_ns;
    timeline->oldest++;
    timeline->in_flight--;
    return status;
}
