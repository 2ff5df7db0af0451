/* SPDX-License-Identifier: Apache-2.0
 *
 * order.c: a result does not depend on who runs which task when. Each case is run in every order of
 * order_runner.h, and judged as ever; where the backend declares DETERMINISTIC, outputs have the
 * bits that the pool gave.
 */
#include "host/check/cases/linear_bench.h"
#include "host/check/cases/mla_spec.h"
#include "host/check/cases/numerics.h"
#include "host/check/relations/order_runner.h"
#include "host/check/cases/other_host.h"

#include "host/base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 800 };

static const struct case_setup plainly = {.kind = ATTN_METADATA_EAGER};

/* ---- A host with such a pool ----------------------------------------------------------------- */

struct odd_host {
    struct other_host other;
    struct order_runner runner;
    struct check_subject subject;
};

static bool odd_host_init(struct odd_host *odd, struct check_run *run)
{
    host_error error;
    host_error_init(&error);
    *odd = (struct odd_host){.subject = *run->subject, .runner = {.seed = run->seed}};
    attn_status status = other_host_init(&odd->other, run->subject, ORDER_WORKERS, &error.base);
    if (status != ATTN_OK) {
        check_fail(run, "a host with %d workers: %s", ORDER_WORKERS, host_error_text(&error));
        return false;
    }
    threads_set_runner(odd->other.threads, order_run, &odd->runner);
    odd->subject.services = &odd->other.node->services;
    return true;
}

static void odd_host_finish(struct odd_host *odd)
{
    order_watch(NULL);
    other_host_finish(&odd->other);
}

static bool has_pool(struct check_run *run)
{
    if (run->subject->device->type == ATTN_DEVICE_CPU)
        return true;
    check_skip(run, "a GPU's threads are up to the backend");
    return false;
}

/* ---- Softmax and latent layers --------------------------------------------------------------- */

/* What a forward writes: outputs, and caches from page 1 on. */
static bool same_results(const struct forward_case *c, const char *first)
{
    static const enum case_part_id written[] = {PART_OUT, PART_LSE, PART_K_CACHE, PART_V_CACHE,
                                                PART_LATENT_CACHE};
    for (int n = 0; n < 5; n++) {
        const struct case_part *part = &c->parts[written[n]];
        const struct case_shape *shape = &c->shapes[written[n]];
        bool cache = n >= 2;
        char *from = part->bytes ? case_vector(c, c->actual, written[n], cache, 0, 0) : NULL;
        uint64_t skipped = from ? (uint64_t)(from - c->actual) - part->offset : 0;
        if (part->bytes && shape->shape[0] > cache &&
            memcmp(first + part->offset + skipped, from, part->bytes - skipped) != 0)
            return false;
    }
    return true;
}

/* Where bits are promised there is no need for the oracle again. */
static bool repeat(struct case_session *session, struct forward_case *c, const char *first,
                   char *text, size_t size)
{
    host_error error;
    host_error_init(&error);
    attn_status status = session_spoil_scratch(session, &error.base);
    if (status == ATTN_OK)
        status = case_session_try(session, c, NULL, NULL, &error.base);
    session->num_runs++;
    if (status == ATTN_OK)
        status =
            device_copy(c->device, c->actual, c->memory, c->bytes, session->stream, &error.base);
    if (status == ATTN_OK)
        status = session_check_memory(session, &error.base);
    bool same = status == ATTN_OK && same_results(c, first);
    if (!same)
        snprintf(text, size, "%s",
                 status == ATTN_OK ? "other bits than before, though DETERMINISTIC is declared"
                                   : host_error_text(&error));
    return same;
}

static bool judge(struct case_session *session, struct forward_case *c, char *text, size_t size)
{
    struct case_verdict verdict;
    case_session_judge(session, c, &verdict);
    if (!verdict.good)
        snprintf(text, size, "%s", verdict.text);
    return verdict.good;
}

static void judge_orders(struct check_run *run, struct odd_host *odd, struct forward_case *c,
                         const struct case_spec *spec, struct case_session *session,
                         const char *first)
{
    bool deterministic = case_session_verdict(session)->notes & ATTN_NOTE_DETERMINISTIC;
    for (int order = 0; order < ORDERS && run->code == CHECK_PASS; order++) {
        char why[TEXT - 100], text[TEXT];
        odd->runner.order = order;
        check_note(run, "%s", order_name(order));
        if (deterministic ? repeat(session, c, first, why, sizeof why)
                          : judge(session, c, why, sizeof why))
            continue;
        snprintf(text, sizeof text, "%s: %s", order_name(order), why);
        numerics_report(run, spec, ATTN_OK, text);
    }
}

/* By the pool first. */
static void run_spec(struct check_run *run, const struct case_spec *spec,
                     const attn_options *options)
{
    struct odd_host odd;
    struct check_run elsewhere = *run;
    struct forward_case *c = numerics_case(run, spec, NULL);
    struct case_session *session = c ? numerics_session(run, c, spec, options, &plainly) : NULL;
    char *first = session && numerics_judge(run, session, c, spec) ? malloc(c->bytes) : NULL;
    case_session_destroy(session);
    if (first)
        memcpy(first, c->actual, c->bytes);
    if (first && odd_host_init(&odd, run)) {
        elsewhere.subject = &odd.subject;
        session = numerics_session(&elsewhere, c, spec, options, &plainly);
        order_watch(session);
        if (session)
            judge_orders(&elsewhere, &odd, c, spec, session, first);
        case_session_destroy(session);
        odd_host_finish(&odd);
        run->code = elsewhere.code;
        memcpy(run->text, elsewhere.text, sizeof run->text);
    }
    free(first);
    forward_case_destroy(c);
}

static const struct grid_choice softmax_choices[] = {
    {AXIS_MODE, BIT(MODE_EXTEND) | BIT(MODE_DECODE) | BIT(MODE_MIXED)},
    {AXIS_LENGTHS, BIT(LENGTHS_PAGES) | BIT(LENGTHS_SPLITS)},
    {AXIS_KV, BIT(KV_AS_Q) | BIT(KV_E4M3)},
    {0, 0}};
static const struct mla_choice latent_choice = {
    MLA_ABSORBED | MLA_EXPANDED,
    MLA_LATENT,
    BIT(MLA_SMALL),
    {BOTH_PHASES, {AXIS_LENGTHS, BIT(LENGTHS_SPLITS) | BIT(LENGTHS_ROWS)}}};

CHECK_COUNT(any_order, numerics_count(subject, softmax_choices))
CHECK_COUNT(mla_any_order, numerics_mla_count(subject, &latent_choice))

static void run_found(struct check_run *run, bool latent)
{
    struct numerics_point at;
    if (!has_pool(run))
        return;
    if (numerics_open(&at, run, latent ? NULL : softmax_choices, &latent_choice))
        run_spec(run, &at.spec, at.options);
    numerics_close(&at);
}

CHECK_RUN(any_order, run_found(run, false))
CHECK_RUN(mla_any_order, run_found(run, true))

/* ---- Linear layers --------------------------------------------------------------------------- */

/* No state is dropped and nothing is padding: what slot 0 holds is up to the order. */
static void change_order(struct linear_spec *spec, int32_t index)
{
    static const struct linear_case_sequence sequences[] = {
        {.rows = 5, .has_initial = true, .in_place = true},
        {.rows = 70},
        {.rows = 1, .has_initial = true},
        {.rows = 3, .in_place = true},
        {.rows = 1, .has_initial = true, .in_place = true},
        {.rows = 20, .has_initial = true}};
    linear_set_extend(spec, index ? 5 : 6, sequences);
    spec->padded = 0;
    if (index) {
        spec->mode = ATTN_MODE_DECODE;
        spec->first_row = 0;
        for (int32_t s = 0; s < spec->num_sequences; s++)
            spec->sequences[s].rows = 1;
    }
}

CHECK_COUNT(linear_any_order, 2 * linear_count_families(subject))

static void judge_linear_orders(struct linear_bench *bench, struct odd_host *odd, const void *first)
{
    struct check_run *run = bench->run;
    bool deterministic = case_session_verdict(bench->session)->notes & ATTN_NOTE_DETERMINISTIC;
    for (int order = 0; order < ORDERS && run->code == CHECK_PASS; order++) {
        char text[TEXT];
        odd->runner.order = order;
        check_note(run, "%s", order_name(order));
        snprintf(text, sizeof text, "%s: other bits than before, though DETERMINISTIC is declared",
                 order_name(order));
        if (deterministic)
            linear_bench_repeat(bench, first, text);
        else if (linear_bench_reset(bench) && linear_bench_forward(bench, NULL))
            linear_bench_judge(bench, true);
    }
}

static void run_linear_any_order(struct check_run *run)
{
    struct linear_spec spec;
    struct linear_bench bench;
    struct odd_host odd;
    if (!has_pool(run) || !linear_find_case(run, change_order, &spec) ||
        !linear_bench_open(&bench, run, &spec))
        return;
    void *first = linear_bench_forward(&bench, NULL) && linear_bench_judge(&bench, true)
                      ? linear_bench_copy(&bench)
                      : NULL;
    if (first && odd_host_init(&odd, run)) {
        struct case_session *own = bench.session;
        if (linear_bench_session(&bench, &odd.subject, &plainly, &bench.session)) {
            order_watch(bench.session);
            judge_linear_orders(&bench, &odd, first);
        }
        case_session_destroy(bench.session);
        bench.session = own;
        odd_host_finish(&odd);
    }
    free(first);
    linear_bench_close(&bench);
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_any_order[] = {
    CHECK_CASES("INVAR-02", any_order,
                "in any order of tasks and workers, one amid another too, results are the same"),
    CHECK_CASES("INVAR-02", mla_any_order,
                "latent layers: in any order of tasks and workers, results are the same"),
    CHECK_CASES("INVAR-02", linear_any_order,
                "linear layers: in any order of tasks and workers, results are the same"),
    {NULL, NULL, NULL, 0, NULL, NULL},
};
