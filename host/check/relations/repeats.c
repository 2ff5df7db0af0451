/* SPDX-License-Identifier: Apache-2.0
 *
 * repeats.c: the same batch again: in another instance, beside another layer group, with other threads, in every order
 * of tasks that order_runner.h has. Where the backend declares DETERMINISTIC it leaves the bits that it left at first;
 * else it is judged again.
 */
#include "host/check/cases/kind.h"
#include "host/check/cases/other_host.h"
#include "host/check/relations/order_runner.h"

#include <stdio.h>
#include <stdlib.h>

#include "host/base/error.h"

static const struct case_setup plainly = {.kind = ATTN_METADATA_EAGER},
                               exactly = {.kind = ATTN_METADATA_EAGER, .exact_memory = true};

/* A case, and what its first call has left. */
struct repeats {
    struct kind_case k;
    void *first;
};

/* In a session of this subject. NULL = in none. */
static bool move(struct repeats *r, const struct check_subject *subject,
                 const struct case_setup *setup)
{
    case_session_destroy(r->k.session);
    r->k.session = subject ? kind_session(&r->k, subject, setup) : NULL;
    return r->k.session;
}

/* The first call, judged, of a backend that declares these notes. */
static bool begin(struct repeats *r, struct check_run *run, uint32_t notes)
{
    r->first = NULL;
    if (kind_open(&r->k, run) && (!notes || kind_declares(&r->k, notes)) &&
        move(r, run->subject, &plainly) && kind_judge(&r->k))
        r->first = kind_keep(&r->k);
    return r->first;
}

static void finish(struct repeats *r)
{
    free(r->first);
    kind_close(&r->k);
}

static void run_same_batch(struct check_run *run)
{
    static const char text[] =
        "the same batch again has other bits, though DETERMINISTIC is declared";
    struct repeats r;
    if (begin(&r, run, ATTN_NOTE_DETERMINISTIC) && kind_same(&r.k, r.first, text) &&
        kind_same(&r.k, r.first, text) && move(&r, run->subject, &exactly))
        kind_same(&r.k, r.first, "another instance has other bits");
    finish(&r);
}

/* ---- Another layer group --------------------------------------------------------------------- */

/* Before the case's own, then after it. */
static void run_layer_groups(struct check_run *run)
{
    struct repeats r = {.first = NULL};
    struct kind_beside other;
    bool good = kind_open(&r.k, run) && r.k.kind->beside(&r.k, &other);
    for (int last = 0; last < 2 && good; last++) {
        const struct case_setup setup = {.kind = ATTN_METADATA_EAGER,
                                         .exact_memory = true,
                                         .beside = &other.problem,
                                         .beside_last = last};
        good = move(&r, run->subject, &setup) && kind_judge(&r.k);
    }
    finish(&r);
}

/* ---- Another pool ---------------------------------------------------------------------------- */

static bool has_pool(struct check_run *run)
{
    if (run->subject->device->type == ATTN_DEVICE_CPU)
        return true;
    check_skip(run, "a GPU's threads are up to the backend");
    return false;
}

/* use(r, ctx) in a session on a pool of so many threads, whose jobs `runner` (NULL = the pool itself) executes. */
static void on_pool(struct repeats *r, uint32_t num_threads, struct order_runner *runner,
                    void (*use)(struct repeats *r, void *ctx), void *ctx)
{
    struct check_subject subject = *r->k.run->subject;
    struct other_host other;
    host_error error;
    host_error_init(&error);
    attn_status status = other_host_init(&other, r->k.run->subject, num_threads, &error.base);
    if (status == ATTN_OK) {
        subject.services = &other.node->services;
        if (runner)
            threads_set_runner(other.threads, order_run, runner);
        if (move(r, &subject, &plainly))
            use(r, ctx);
        move(r, NULL, NULL);
    } else {
        kind_report(&r->k, status, host_error_text(&error));
    }
    other_host_finish(&other);
}

static void expect_same(struct repeats *r, void *ctx)
{
    char text[100];
    snprintf(text, sizeof text, "with %u threads: other bits, though DETERMINISTIC is declared",
             *(const uint32_t *)ctx);
    kind_same(&r->k, r->first, text);
}

static void run_any_threads(struct check_run *run)
{
    struct repeats r;
    if (!has_pool(run))
        return;
    bool good = begin(&r, run, ATTN_NOTE_DETERMINISTIC);
    for (uint32_t count = 1; count <= 4 && good && run->code == CHECK_PASS; count++) {
        check_note(run, "%u threads", count);
        on_pool(&r, count, NULL, expect_same, &count);
    }
    finish(&r);
}

static void judge_orders(struct repeats *r, void *ctx)
{
    struct order_runner *runner = ctx;
    struct kind_case *k = &r->k;
    bool deterministic = case_session_verdict(k->session)->notes & ATTN_NOTE_DETERMINISTIC;
    order_watch(k->session);
    for (runner->order = 0; runner->order < ORDERS && k->run->code == CHECK_PASS; runner->order++) {
        char text[200];
        check_note(k->run, "%s", order_name(runner->order));
        snprintf(text, sizeof text, "%s: other bits than before, though DETERMINISTIC is declared",
                 order_name(runner->order));
        if (deterministic)
            kind_same(k, r->first, text);
        else
            kind_judge(k);
    }
    order_watch(NULL);
}

static void run_any_order(struct check_run *run)
{
    struct repeats r;
    struct order_runner runner = {.seed = run->seed};
    if (!has_pool(run))
        return;
    if (begin(&r, run, 0))
        on_pool(&r, ORDER_WORKERS, &runner, judge_orders, &runner);
    finish(&r);
}

/* ---- Table ----------------------------------------------------------------------------------- */

/* No state is dropped and nothing is padding: what slot 0 holds is up to the order. */
static void change_order(struct linear_spec *spec, int32_t index)
{
    linear_set_many(spec, index);
    spec->padded = 0;
    if (index) {
        spec->mode = ATTN_MODE_DECODE;
        spec->first_row = 0;
        for (int32_t s = 0; s < spec->num_sequences; s++)
            spec->sequences[s].rows = 1;
    }
}

#define LENGTHS(a, b)                                                                              \
    {                                                                                              \
        AXIS_LENGTHS, BIT(LENGTHS_##a) | BIT(LENGTHS_##b)                                          \
    }
#define LATENTS(layouts, ...) LATENT_CASES(BOTH_FORMS, layouts, BIT(MLA_ONE_BLOCK), __VA_ARGS__)

const struct check check_repeats[] = {
    ALL_KIND_ROWS("INVAR-01", layer_groups, CHECK_NEEDS_COMPUTE,
                  "another layer group of the instance changes no result",
                  SOFTMAX_CASES(BOTH_PHASES, PLAIN_AND_QUANTISED,
                                {AXIS_WINDOW, BIT(WINDOW_CAUSAL) | BIT(WINDOW_15)}),
                  LATENTS(MLA_LATENT | MLA_PACKED, BOTH_PHASES), LINEAR_CASES(linear_set_many, 1)),
    KIND_ROWS("INVAR-02", same_batch, "DETERMINISTIC: equal batches give equal bits",
              SOFTMAX_CASES(BOTH_PHASES, LENGTHS(SPLITS, ROWS), {AXIS_DTYPE, 7}),
              LATENTS(MLA_LATENT | MLA_PACKED, BOTH_PHASES)),
    KIND_ROWS("INVAR-02", any_threads, "DETERMINISTIC: with any number of threads bits are equal",
              SOFTMAX_CASES(BOTH_PHASES, LENGTHS(SPLITS, ROWS), {AXIS_DTYPE, 7}),
              LATENTS(MLA_LATENT | MLA_PACKED, BOTH_PHASES)),
    KIND_ROW("INVAR-02", "linear_threads", any_threads, CHECK_NEEDS_COMPUTE,
             "DETERMINISTIC: with any number of threads bits of linear layers are equal",
             LINEAR_CASES(linear_set_many, 1)),
    ALL_KIND_ROWS(
        "INVAR-02", any_order, CHECK_NEEDS_COMPUTE,
        "results are the same in any order of tasks and workers, nested tasks included",
        SOFTMAX_CASES(THREE_MODES, LENGTHS(PAGES, SPLITS), PLAIN_AND_QUANTISED),
        LATENT_CASES(BOTH_FORMS, MLA_LATENT, BIT(MLA_SMALL), BOTH_PHASES, LENGTHS(SPLITS, ROWS)),
        LINEAR_CASES(change_order, 2)),
    {.rule = NULL},
};
