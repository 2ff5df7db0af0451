/* SPDX-License-Identifier: Apache-2.0
 *
 * bench.c: see bench.h. From an entry to contenders (composed backends ready to be timed), from
 * these to samples, from samples to figures.
 */
#include "host/bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/bench/inputs.h"
#include "host/bench/judge.h"
#include "host/base/clock.h"
#include "host/base/interrupt.h"
#include "host/base/error.h"
#include "host/select/select.h"

enum {
    LEAST_ROUNDS = 5,
    MAX_ROUNDS = 1000,
    MAX_CALLS = 4096, /* forwards of a sample */
    WARM_CALLS = 16,
    MAX_REASONS = 16
};

/* Minimum duration of a sample, so that the clock's resolution and gaps matter little. */
#define SAMPLE_US     1000.0
#define SAMPLE_US_CPU 2000.0

/* A call that takes longer, and of which fewer than MEASURE_CALLS fit into a backend's share of the
 * time, is not repeated. */
#define SLOW_US 50000.0
enum { MEASURE_CALLS = LEAST_ROUNDS + 3 };

/* A call that takes less than this share of the one before it has compiled less. */
#define STILL_COMPILES 0.5

/* Once the time has passed, no entry begins whose shortest call at the device's ceilings takes
 * longer. */
#define LATE_US 5000.0

/* Products of fp8 by products of bf16 in the same time, by NVIDIA's data sheets: good enough to say
 * how long something may take, not to say how good a time is. */
#define CODES_SPEED 2.0

/* Ceilings are medians of a short measurement, and a shared machine is faster at times. A backend
 * that is this many times as fast as the nearer ceiling does not compute attention over these
 * inputs. */
#define CEILING_ERROR 1.25

/* One backend of an entry, while it is measured. */
struct contender {
    const struct bench_params *params;
    const struct bench_timer *timer;
    const struct bench_inputs *inputs;
    double seconds; /* its share of the time */
    struct bench_run *run;
    attnhost_backend *backend;
    attnhost_metadata *metadata;
    struct bench_call *calls; /* [inputs->copies] */
    uint32_t next;            /* copy that the next forward works on */
    struct device_graph *graph;
};

/* ---- The report ------------------------------------------------------------------------------ */

struct bench_entry *bench_add_entry(struct bench_report *report, const struct bench_shape *shape,
                                    uint32_t num_runs)
{
    struct bench_entry *grown =
        realloc(report->entries, (report->num_entries + 1) * sizeof *report->entries);
    struct bench_run *runs = calloc(num_runs ? num_runs : 1, sizeof *runs);
    if (grown)
        report->entries = grown;
    if (!grown || !runs) {
        free(runs);
        return NULL;
    }
    struct bench_entry *entry = &grown[report->num_entries++];
    *entry = (struct bench_entry){.shape = *shape, .runs = runs, .num_runs = num_runs};
    bench_shape_count(shape, &entry->count);
    return entry;
}

attn_status bench_set_backend(struct bench_entry *entry, uint32_t run, const char *name,
                              size_t length, attn_error *error)
{
    char *copy = strndup(name, length);
    if (!copy)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a backend's name");
    free(entry->runs[run].backend);
    entry->runs[run].backend = copy;
    return ATTN_OK;
}

void bench_report_finish(struct bench_report *report)
{
    for (size_t e = 0; e < report->num_entries; e++) {
        struct bench_entry *entry = &report->entries[e];
        for (uint32_t r = 0; r < entry->num_runs; r++) {
            free(entry->runs[r].backend);
            strbuf_finish(&entry->runs[r].why);
            bench_samples_finish(&entry->runs[r].samples);
        }
        free(entry->runs);
    }
    free(report->entries);
    provenance_finish(&report->from);
    bench_ceilings_finish(&report->ceilings);
    memset(report, 0, sizeof *report);
}

/* Progress of the measurement. */
static void tell(const struct bench_params *params, const struct bench_report *report, size_t done,
                 const char *what)
{
    if (params->progress)
        params->progress(params->progress_ctx, done, report->num_entries, what);
}

static void tell_entry(const struct bench_params *params, const struct bench_report *report,
                       const struct bench_entry *entry)
{
    char text[256];
    bench_shape_text(&entry->shape, text, sizeof text);
    tell(params, report, (size_t)(entry - report->entries), text);
}

/* ---- Asking ---------------------------------------------------------------------------------- */

static void note_reasons(const attn_verdict *verdict, struct bench_run *run)
{
    uint32_t listed = verdict->num_reasons < verdict->reasons_capacity ? verdict->num_reasons
                                                                       : verdict->reasons_capacity;
    for (uint32_t r = 0; r < listed; r++) {
        char text[320];
        select_reason_text(&verdict->reasons[r], text, sizeof text);
        strbuf_appendf(&run->why, "%s%s", r ? "; " : "", text);
    }
}

static void make_problem(const struct bench_params *params, const struct bench_shape *shape,
                         const char *layout, uint32_t graph_level, struct bench_problem *problem)
{
    bench_problem_init(problem, shape, &params->device->info, layout, graph_level);
    problem->bounds.max_sms = params->max_sms;
    problem->problem.required_traits = params->required_traits;
}

/* Query with one layout; sets run->layout and run->graph if the backend accepts. */
static attn_status ask_layout(const struct bench_params *params, const struct bench_entry *entry,
                              struct bench_run *run, const char *layout, attn_error *error)
{
    struct bench_problem problem;
    attn_reason reasons[MAX_REASONS];
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = MAX_REASONS, .reasons = reasons};
    for (int r = 0; r < MAX_REASONS; r++)
        reasons[r] = (attn_reason){.struct_size = sizeof reasons[r]};
    make_problem(params, &entry->shape, layout, ATTN_GRAPH_NEVER, &problem);
    attn_status status =
        attnhost_query(params->host, run->backend, &problem.problem, &verdict, error);
    if (status != ATTN_OK)
        return status;
    if (verdict.supported) {
        run->layout = layout;
        run->reads_new_unquantised = verdict.reads_new_kv_unquantised;
        run->first_call_slow = (verdict.traits & ATTN_TRAIT_FIRST_CALL_SLOW) != 0;
        run->graph = !params->eager && params->device->type != ATTN_DEVICE_CPU &&
                     verdict.graph_level >= bench_graph_level(&entry->shape);
    } else if (run->why.length == 0) {
        note_reasons(&verdict, run);
    }
    return ATTN_OK;
}

/* Can the backend serve the shape, in which layout? Only an unknown backend is an error. */
static attn_status ask(const struct bench_params *params, const struct bench_entry *entry,
                       struct bench_run *run, attn_error *error)
{
    const char *layouts[2];
    host_error said;
    bench_layouts(&entry->shape, layouts);
    for (int l = 0; l < 2 && layouts[l] && !run->layout; l++) {
        host_error_init(&said);
        attn_status status = ask_layout(params, entry, run, layouts[l], &said.base);
        if (status == ATTN_CONFIG_ERROR)
            return host_fail(error, status, "%s", host_error_text(&said));
        if (status != ATTN_OK) {
            run->outcome = BENCH_FAILED;
            strbuf_append(&run->why, host_error_text(&said));
            return ATTN_OK;
        }
    }
    return ATTN_OK;
}

/* ---- Contenders ------------------------------------------------------------------------------ */

static attn_status call_forwards(void *ctx, attn_stream stream, attn_error *error)
{
    struct contender *c = ctx;
    attn_status status = ATTN_OK;
    for (uint32_t i = 0; i < c->run->calls && status == ATTN_OK; i++) {
        status = attnhost_forward(c->metadata, 0, &c->calls[c->next].args, stream, error);
        c->next = c->next + 1 < c->inputs->copies ? c->next + 1 : 0;
    }
    return status;
}

static attn_status replay_graph(void *ctx, attn_stream stream, attn_error *error)
{
    const struct contender *c = ctx;
    return device_graph_launch(c->params->device, c->graph, stream, error);
}

static struct bench_work work_of(struct contender *c)
{
    return (struct bench_work){.enqueue = c->graph ? replay_graph : call_forwards, .ctx = c};
}

static attn_status compose(struct contender *c, const struct bench_entry *entry, attn_error *error)
{
    struct bench_problem problem;
    struct bench_run *run = c->run;
    make_problem(c->params, &entry->shape, run->layout,
                 run->graph ? bench_graph_level(&entry->shape) : ATTN_GRAPH_NEVER, &problem);
    attn_status status =
        attnhost_compose(c->params->host, run->backend, &problem.problem, 1, &c->backend, error);
    if (status == ATTN_OK)
        status = attnhost_backend_prepare(c->backend, NULL, NULL, error);
    if (status == ATTN_OK)
        status = attnhost_metadata_create(c->backend,
                                          run->graph ? ATTN_METADATA_GRAPH : ATTN_METADATA_EAGER,
                                          &problem.bounds, NULL, &c->metadata, error);
    if (status == ATTN_OK)
        status =
            attnhost_init_forward_metadata(c->metadata, &c->inputs->batch, c->timer->stream, error);
    return status;
}

static attn_status list_calls(struct contender *c, attn_error *error)
{
    c->calls = calloc(c->inputs->copies, sizeof *c->calls);
    if (!c->calls)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the calls of %u copies",
                         c->inputs->copies);
    for (uint32_t i = 0; i < c->inputs->copies; i++)
        bench_inputs_call(c->inputs, i, c->run->layout, &c->calls[i]);
    return ATTN_OK;
}

/* Judge the first copy's output; `when` is "before" or "after". */
static attn_status judge_output(struct contender *c, const char *when, attn_error *error)
{
    struct bench_run *run = c->run;
    strbuf why;
    strbuf_init(&why);
    attn_status status =
        bench_judge_rows(c->inputs, run->layout, run->reads_new_unquantised, &why, error);
    if (status == ATTN_OK && why.length > 0) {
        run->outcome = BENCH_WRONG;
        strbuf_appendf(&run->why, "%s it was timed, %s", when, strbuf_text(&why));
    }
    strbuf_finish(&why);
    return status;
}

/* The first call of a slow backend is its only sample. */
static attn_status keep_one_call(struct contender *c, double us, attn_error *error)
{
    c->run->one_call = true;
    c->run->graph = false;
    return bench_samples_add(&c->run->samples, &us, 1, error);
}

/* Forwards of a backend that compiles in its first calls, one at a time, until one is quick or no
 * longer much quicker than the one before it, for BENCH_WARM_SECONDS at most. `us`: the last one. */
static attn_status warm_up(struct contender *c, double quick_us, double *us, attn_error *error)
{
    const struct bench_work work = work_of(c);
    const int64_t begin_ns = clock_now_ns();
    double before;
    attn_status status;
    c->run->calls = 1;
    *us = INFINITY;
    do {
        before = *us;
        c->next = 0; /* the copy that is judged */
        status = bench_timer_once(c->timer, &work, us, error);
        c->run->warm_seconds = (double)(clock_now_ns() - begin_ns) * 1e-9;
    } while (status == ATTN_OK && *us > quick_us && *us < before * STILL_COMPILES &&
             c->run->warm_seconds < BENCH_WARM_SECONDS && !interrupt_seen());
    return status;
}

/* Forwards of a sample, from a first look at their time. A graph begins with the same copy at every
 * launch, so it goes through all of them. */
static attn_status choose_calls(struct contender *c, attn_error *error)
{
    uint32_t copies = c->inputs->copies;
    int cpu = c->params->device->type == ATTN_DEVICE_CPU;
    double us = 0, quick_us = fmax(SLOW_US, c->seconds * 1e6 / MEASURE_CALLS);
    const struct bench_work work = work_of(c);
    attn_status status = ATTN_OK;
    if (c->run->first_call_slow)
        status = warm_up(c, quick_us, &us, error);
    if (status != ATTN_OK)
        return status;
    if (us > quick_us)
        return keep_one_call(c, us, error);
    c->run->calls = cpu ? 1 : copies < WARM_CALLS ? copies : WARM_CALLS;
    double slow_us = fmax(SLOW_US * c->run->calls, c->seconds * 1e6 / MEASURE_CALLS);
    status = bench_timer_estimate(c->timer, &work, slow_us, &us, error);
    if (status == ATTN_OK && us > slow_us)
        return keep_one_call(c, us / c->run->calls, error);
    double wanted = ceil((cpu ? SAMPLE_US_CPU : SAMPLE_US) * c->run->calls / (us > 0 ? us : 1));
    wanted = wanted < 1 ? 1 : wanted > MAX_CALLS ? MAX_CALLS : wanted;
    c->run->calls = (uint32_t)wanted;
    if (c->run->graph)
        c->run->calls = (c->run->calls + copies - 1) / copies * copies;
    return status;
}

static attn_status capture(struct contender *c, attn_error *error)
{
    const struct device *device = c->params->device;
    attn_stream stream = c->timer->stream;
    attn_status status = device_capture_begin(device, stream, error);
    if (status != ATTN_OK)
        return status;
    for (uint32_t i = 0; i < c->inputs->copies; i++)
        c->calls[i].args.flags |= ATTN_FORWARD_CAPTURING;
    c->next = 0;
    status = call_forwards(c, stream, error);
    if (status == ATTN_OK)
        return device_capture_end(device, stream, &c->graph, error);
    device_capture_end(device, stream, NULL, NULL);
    return status;
}

/* Ready to be timed: composed, compiled, run a few times and judged, captured. */
static attn_status make_contender(struct contender *c, const struct bench_entry *entry,
                                  attn_error *error)
{
    double us[BENCH_BLOCK];
    attn_status status = compose(c, entry, error);
    if (status == ATTN_OK)
        status = list_calls(c, error);
    if (status == ATTN_OK)
        status = bench_judge_poison(c->inputs, c->timer->stream, error);
    if (status == ATTN_OK)
        status = choose_calls(c, error); /* begins with the first copy */
    if (status == ATTN_OK)
        status = judge_output(c, "before", error);
    if (status == ATTN_OK && c->run->outcome == BENCH_WRONG)
        return ATTN_OK;
    if (status == ATTN_OK && c->run->graph)
        status = capture(c, error);
    if (status == ATTN_OK && !c->run->one_call) {
        const struct bench_work work = work_of(c);
        status = bench_timer_block(c->timer, &work, us, error);
    }
    return status;
}

static void finish_contender(struct contender *c)
{
    device_synchronize(c->params->device, c->timer->stream, NULL);
    if (c->graph)
        device_graph_destroy(c->params->device, c->graph);
    attnhost_metadata_destroy(c->metadata);
    attnhost_backend_destroy(c->backend);
    free(c->calls);
}

/* ---- Rounds ---------------------------------------------------------------------------------- */

/* Record a failure in a run. A lost device ends the bench. */
static attn_status note_failure(const struct contender *c, attn_status status,
                                const host_error *said, attn_error *error)
{
    struct bench_run *run = c->run;
    int refused = run->samples.count == 0 &&
                  (status == ATTN_UNSUPPORTED || status == ATTN_DEPENDENCY_MISSING);
    run->outcome = refused ? BENCH_REFUSED : BENCH_FAILED;
    strbuf_append(&run->why, host_error_text(said));
    return status == ATTN_DEVICE_LOST || device_is_lost(c->params->device)
               ? host_fail(error, ATTN_DEVICE_LOST, "%s", host_error_text(said))
               : ATTN_OK;
}

static attn_status time_block(struct contender *c, attn_error *error)
{
    struct bench_run *run = c->run;
    const struct bench_work work = work_of(c);
    double us[BENCH_BLOCK];
    host_error said;
    host_error_init(&said);
    attn_status status = bench_timer_block(c->timer, &work, us, &said.base);
    if (status != ATTN_OK)
        return note_failure(c, status, &said, error);
    for (uint32_t i = 0; i < c->timer->samples; i++)
        us[i] /= run->calls;
    return bench_samples_add(&run->samples, us, c->timer->samples, error);
}

/* Until every backend has used its share of the time, or the entry's time, which includes making
 * its inputs, is over. */
static attn_status run_rounds(struct contender *contenders, uint32_t count, double seconds,
                              int64_t due_ns, attn_error *error)
{
    attn_status status = ATTN_OK;
    int64_t end_ns = clock_now_ns() + (int64_t)(seconds * count * 1e9);
    end_ns = end_ns < due_ns ? end_ns : due_ns;
    for (int round = 0; round < MAX_ROUNDS && status == ATTN_OK; round++) {
        if (interrupt_seen() || (round >= LEAST_ROUNDS && clock_now_ns() > end_ns))
            break;
        for (uint32_t i = 0; i < count && status == ATTN_OK; i++)
            if (contenders[i].run->outcome == BENCH_RAN && !contenders[i].run->one_call)
                status = time_block(&contenders[i], error);
    }
    return status;
}

/* After timing, run and judge it once more, in the same way: from its graph. */
static attn_status judge_again(struct contender *c, attn_error *error)
{
    const struct bench_work work = work_of(c);
    double us;
    host_error said;
    host_error_init(&said);
    if (c->run->outcome != BENCH_RAN || c->run->one_call)
        return ATTN_OK;
    c->next = 0;
    attn_status status = bench_judge_poison(c->inputs, c->timer->stream, &said.base);
    if (status == ATTN_OK)
        status = bench_timer_estimate(c->timer, &work, 0, &us, &said.base);
    if (status == ATTN_OK)
        status = judge_output(c, "after", &said.base);
    return status == ATTN_OK ? ATTN_OK : note_failure(c, status, &said, error);
}

/* The load before a kept-up measurement: the forwards of all that can run. */
static attn_status sustain(struct contender *contenders, uint32_t count, double seconds,
                           attn_error *error)
{
    struct bench_work *works = calloc(count ? count : 1, sizeof *works);
    uint32_t ready = 0;
    if (!works)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for %u loads", count);
    for (uint32_t i = 0; i < count; i++)
        if (contenders[i].run->outcome == BENCH_RAN)
            works[ready++] = work_of(&contenders[i]);
    attn_status status = bench_timer_sustain(contenders->timer, works, ready, seconds, error);
    free(works);
    return status;
}

/* ---- Figures --------------------------------------------------------------------------------- */

bool bench_compute_is_known(const struct bench_report *report, const struct bench_entry *entry)
{
    return report->from.device.type == ATTN_DEVICE_CPU || !bench_shape_has_codes(&entry->shape);
}

/* The time that each ceiling alone would take; the longer one is the nearer ceiling. */
double bench_floor_us(const struct bench_report *report, const struct bench_entry *entry,
                      uint32_t *bound)
{
    const struct bench_ceilings *ceilings = &report->ceilings;
    const struct bench_count *count = &entry->count;
    double memory = fmax(ceilings->read.rate, ceilings->copy.rate);
    double memory_us = memory > 0 ? count->bytes / memory * 1e6 : 0;
    double compute_us = ceilings->matrix.rate > 0 ? count->flop / ceilings->matrix.rate * 1e6 : 0;
    *bound = memory_us > compute_us ? BENCH_BOUND_MEMORY : BENCH_BOUND_COMPUTE;
    if (*bound == BENCH_BOUND_COMPUTE && !bench_compute_is_known(report, entry)) {
        *bound = BENCH_BOUND_NONE;
        compute_us /= CODES_SPEED;
    }
    return fmax(memory_us, compute_us);
}

static void set_fraction(const struct bench_report *report, const struct bench_entry *entry,
                         struct bench_run *run)
{
    uint32_t bound;
    double floor_us = bench_floor_us(report, entry, &bound);
    if (floor_us <= 0 || bound == BENCH_BOUND_NONE)
        return;
    run->bound = bound;
    run->fraction = floor_us / run->us.median;
    run->impossible = run->fraction > CEILING_ERROR;
}

/* Ratios of the medians of each round that both have. */
static attn_status set_ratios(const struct bench_run *first, struct bench_run *run,
                              attn_error *error)
{
    size_t block = run->per_round, rounds = run->samples.count / block;
    if (first->one_call || run->one_call) {
        run->ratio = run->ratio_p10 = run->ratio_p90 = run->us.median / first->us.median;
        return ATTN_OK;
    }
    if (first->samples.count / block < rounds)
        rounds = first->samples.count / block;
    double *ratios = calloc(rounds, sizeof *ratios), ours[BENCH_BLOCK], theirs[BENCH_BLOCK];
    if (!ratios)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for %zu ratios", rounds);
    for (size_t r = 0; r < rounds; r++) {
        memcpy(ours, run->samples.us + r * block, block * sizeof *ours);
        memcpy(theirs, first->samples.us + r * block, block * sizeof *theirs);
        ratios[r] = bench_quantile(ours, block, 0.5) / bench_quantile(theirs, block, 0.5);
    }
    run->ratio = bench_quantile(ratios, rounds, 0.5);
    run->ratio_p10 = bench_quantile(ratios, rounds, 0.1);
    run->ratio_p90 = bench_quantile(ratios, rounds, 0.9);
    free(ratios);
    return ATTN_OK;
}

static attn_status set_figures(const struct bench_report *report, struct bench_entry *entry,
                               attn_error *error)
{
    const struct bench_run *first = NULL;
    attn_status status = ATTN_OK;
    for (uint32_t r = 0; r < entry->num_runs && status == ATTN_OK; r++) {
        struct bench_run *run = &entry->runs[r];
        if (run->outcome != BENCH_RAN)
            continue;
        first = first ? first : run;
        status = bench_samples_summary(&run->samples, &run->us, error);
        if (status != ATTN_OK)
            break;
        if (run->us.best <= 0)
            return host_fail(error, ATTN_INTERNAL, "%s: the device's events give no time",
                             run->backend);
        run->flops = entry->count.flop / (run->us.median * 1e-6);
        run->bytes_rate = entry->count.bytes / (run->us.median * 1e-6);
        set_fraction(report, entry, run);
        status = set_ratios(first, run, error);
    }
    return status;
}

/* ---- An entry -------------------------------------------------------------------------------- */

static attn_status make_contenders(const struct bench_params *params,
                                   const struct bench_timer *timer,
                                   const struct bench_inputs *inputs,
                                   const struct bench_report *report, struct bench_entry *entry,
                                   struct contender *contenders, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t r = 0; r < entry->num_runs; r++) {
        struct contender *c = &contenders[r];
        host_error said;
        host_error_init(&said);
        tell_entry(params, report, entry);
        *c = (struct contender){.params = params,
                                .timer = timer,
                                .inputs = inputs,
                                .seconds = report->seconds,
                                .run = &entry->runs[r]};
        if (!c->run->layout || status != ATTN_OK)
            continue;
        c->run->outcome = BENCH_RAN;
        attn_status made = make_contender(c, entry, &said.base);
        c->run->per_round = c->run->one_call ? 1 : timer->samples;
        if (made != ATTN_OK)
            status = note_failure(c, made, &said, error);
    }
    return status;
}

/* An interrupt before the first block leaves nothing to show. */
static void leave_untimed_out(struct bench_entry *entry)
{
    for (uint32_t r = 0; r < entry->num_runs && interrupt_seen(); r++) {
        struct bench_run *run = &entry->runs[r];
        if (run->outcome != BENCH_RAN || run->samples.count > 0)
            continue;
        run->outcome = BENCH_LEFT_OUT;
        strbuf_append(&run->why, "interrupted");
    }
}

static attn_status run_contenders(const struct bench_params *params,
                                  const struct bench_timer *timer,
                                  const struct bench_inputs *inputs, struct bench_report *report,
                                  struct bench_entry *entry, int64_t due_ns, attn_error *error)
{
    struct contender *contenders = calloc(entry->num_runs, sizeof *contenders);
    if (!contenders)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for %u backends",
                         entry->num_runs);
    attn_status status = make_contenders(params, timer, inputs, report, entry, contenders, error);
    if (status == ATTN_OK)
        status = sustain(contenders, entry->num_runs, report->sustain, error);
    if (status == ATTN_OK)
        status = run_rounds(contenders, entry->num_runs, report->seconds, due_ns, error);
    leave_untimed_out(entry);
    for (uint32_t r = 0; r < entry->num_runs && status == ATTN_OK; r++)
        status = judge_again(&contenders[r], error);
    for (uint32_t r = 0; r < entry->num_runs; r++)
        finish_contender(&contenders[r]);
    free(contenders);
    return status == ATTN_OK ? set_figures(report, entry, error) : status;
}

static int anyone_serves(const struct bench_entry *entry)
{
    for (uint32_t r = 0; r < entry->num_runs; r++)
        if (entry->runs[r].layout)
            return 1;
    return 0;
}

/* If the inputs cannot be made, all backends fail. */
static attn_status note_no_inputs(const struct bench_params *params, struct bench_entry *entry,
                                  const host_error *said, attn_error *error)
{
    for (uint32_t r = 0; r < entry->num_runs; r++) {
        struct bench_run *run = &entry->runs[r];
        if (!run->layout)
            continue;
        run->outcome = BENCH_FAILED;
        strbuf_append(&run->why, host_error_text(said));
    }
    return device_is_lost(params->device)
               ? host_fail(error, ATTN_DEVICE_LOST, "%s", host_error_text(said))
               : ATTN_OK;
}

static attn_status measure_entry(const struct bench_params *params, const struct bench_timer *timer,
                                 struct bench_report *report, struct bench_entry *entry,
                                 int64_t due_ns, attn_error *error)
{
    struct bench_inputs *inputs = NULL;
    host_error said;
    host_error_init(&said);
    if (!anyone_serves(entry))
        return ATTN_OK;
    attn_status status =
        bench_inputs_create(params->device, &entry->shape, report->seed, &inputs, &said.base);
    if (status != ATTN_OK)
        return note_no_inputs(params, entry, &said, error);
    entry->copies = inputs->copies;
    status = run_contenders(params, timer, inputs, report, entry, due_ns, error);
    bench_inputs_destroy(inputs);
    return status;
}

/* ---- Time ------------------------------------------------------------------------------------ */

static double floor_us(const struct bench_report *report, const struct bench_entry *entry)
{
    uint32_t bound;
    return bench_floor_us(report, entry, &bound);
}

/* The remaining time, once the ceilings are known: each backend's share, or one call if that is
 * longer. */
static double predicted_seconds(const struct bench_report *report)
{
    double seconds = 0;
    for (size_t e = 0; e < report->num_entries; e++)
        for (uint32_t r = 0; r < report->entries[e].num_runs; r++)
            if (report->entries[e].runs[r].layout)
                seconds += report->sustain +
                           fmax(report->seconds, floor_us(report, &report->entries[e]) / 1e6);
    return seconds;
}

/* Is it too late to begin this entry? The first entry and short ones always run. */
static int too_late(const struct bench_report *report, const struct bench_entry *entry,
                    int64_t begin_ns)
{
    double passed = (double)(clock_now_ns() - begin_ns) * 1e-9;
    return report->total > 0 && entry > report->entries && passed > report->total &&
           floor_us(report, entry) > LATE_US;
}

static void leave_out(const struct bench_report *report, struct bench_entry *entry)
{
    bool interrupted = interrupt_seen() != 0;
    for (uint32_t r = 0; r < entry->num_runs; r++) {
        struct bench_run *run = &entry->runs[r];
        if (!run->layout)
            continue;
        run->outcome = BENCH_LEFT_OUT;
        if (interrupted)
            strbuf_appendf(&run->why, "interrupted");
        else
            strbuf_appendf(&run->why,
                           "%g s had passed; a call takes %.2g s at the device's ceilings",
                           report->total, floor_us(report, entry) / 1e6);
    }
}

/* ---- All of it ------------------------------------------------------------------------------- */

static attn_status measure_all(const struct bench_params *params, const struct bench_timer *timer,
                               struct bench_report *report, attn_error *error)
{
    attn_status status = ATTN_OK;
    int64_t begin_ns = clock_now_ns();
    for (size_t e = 0; e < report->num_entries && status == ATTN_OK; e++)
        for (uint32_t r = 0; r < report->entries[e].num_runs && status == ATTN_OK; r++)
            status = ask(params, &report->entries[e], &report->entries[e].runs[r], error);
    tell(params, report, 0, "ceilings");
    if (status == ATTN_OK)
        status = bench_ceilings_measure(timer, params->threads, report->seconds, report->sustain,
                                        &report->ceilings, error);
    if (status == ATTN_OK && params->predict)
        params->predict(params->progress_ctx, predicted_seconds(report));
    int64_t due_ns = clock_now_ns();
    for (size_t e = 0; e < report->num_entries && status == ATTN_OK; e++) {
        struct bench_entry *entry = &report->entries[e];
        due_ns += (int64_t)((report->sustain + report->seconds * entry->num_runs) * 1e9);
        tell_entry(params, report, entry);
        if (interrupt_seen() || too_late(report, entry, begin_ns))
            leave_out(report, entry);
        else
            status = measure_entry(params, timer, report, entry, due_ns, error);
    }
    tell(params, report, report->num_entries, "");
    report->interrupted = interrupt_seen() != 0;
    return status;
}

attn_status bench_measure(const struct bench_params *params, struct bench_report *report,
                          attn_error *error)
{
    struct bench_timer timer;
    attn_status status = bench_timer_init(&timer, params->device, report->sustain > 0, error);
    if (status != ATTN_OK)
        return status;
    provenance_take_device(&report->from, &params->device->info);
    report->rest = timer.rest;
    report->max_sms = params->max_sms;
    report->required_traits = params->required_traits;
    status = measure_all(params, &timer, report, error);
    bench_timer_finish(&timer);
    return status;
}
