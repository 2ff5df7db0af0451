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

/* ---- Other layer groups ---------------------------------------------------------------------- */

/* In an instance of these, one of which is the case's. */
static bool judge_among(struct repeats *r, const attn_problem *problems, uint32_t count)
{
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER,
                                     .exact_memory = true,
                                     .problems = problems,
                                     .num_problems = count};
    return move(r, r->k.run->subject, &setup) && kind_judge(&r->k);
}

/* Before the case's own, then after it. */
static void run_layer_groups(struct check_run *run)
{
    struct repeats r = {.first = NULL};
    struct kind_beside other;
    bool good = kind_open(&r.k, run) && r.k.kind->beside(&r.k, &other);
    for (int last = 0; last < 2 && good; last++) {
        attn_problem problems[2] = {r.k.c->posed.problem, r.k.c->posed.problem};
        problems[last] = other.problem;
        good = judge_among(&r, problems, 2);
    }
    finish(&r);
}

/* So many layers of a group, so many groups that every backend takes, and more than most do. */
enum { MOST_LAYERS = 80, MANY_GROUPS = 64, MOST_GROUPS = 160 };

/* Each with a problem of its own. */
struct many {
    attn_layer layers[MOST_GROUPS][MOST_LAYERS];
    attn_layer_group groups[MOST_GROUPS];
    attn_problem problems[MOST_GROUPS];
};

/* Layer n of those that are not called: its id differs from the other's in one bit, then in two, three and more. */
static int32_t other_id(int32_t id, int32_t n)
{
    enum { SHIFTS = 28 };
    return id ^ (2 * (n / SHIFTS) + 1) << n % SHIFTS;
}

/* The group that is called stands at `own`; in it the layer is the last one, or stands anywhere. */
static void pose_many(const struct repeats *r, const attn_problem *other, int32_t groups,
                      int32_t layers, int32_t own, struct many *many)
{
    const attn_problem *called = &r->k.c->posed.problem;
    const attn_layer *layer = called->group->layers;
    const struct check_run *run = r->k.run;
    const int32_t place = run->index % 4 < 2 ? layers - 1 : (int32_t)(run->seed % (uint64_t)layers);
    int32_t next = 0;
    for (int32_t g = 0; g < groups; g++) {
        const bool is_called = g == own;
        many->problems[g] = is_called ? *called : *other;
        many->groups[g] = *many->problems[g].group;
        many->groups[g].num_layers = (uint32_t)layers;
        many->groups[g].layers = many->layers[g];
        many->problems[g].group = &many->groups[g];
        for (int32_t n = 0; n < layers; n++) {
            many->layers[g][n] = *layer;
            if (!is_called || n != place)
                many->layers[g][n].layer_id = other_id(layer->layer_id, next++);
        }
    }
}

/* Right, or refused. */
static void judge_most(struct repeats *r, const attn_problem *problems)
{
    const struct case_backend backend = numerics_backend(r->k.run->subject, r->k.at.options);
    const struct case_setup setup = {
        .kind = ATTN_METADATA_EAGER, .problems = problems, .num_problems = MOST_GROUPS};
    host_error error;
    host_error_init(&error);
    case_session_destroy(r->k.session);
    r->k.session = NULL;
    attn_status status = case_session_create(&backend, r->k.c, &setup, &r->k.session, &error.base);
    if (status == ATTN_OK)
        kind_judge(&r->k);
    else if (status != ATTN_UNSUPPORTED && status != ATTN_CHILD_FAILED)
        kind_report(&r->k, status, host_error_text(&error));
}

/* Two groups of many layers, then many groups, the one that is called first, last or among them. */
static void run_many_layers(struct check_run *run)
{
    struct repeats r = {.first = NULL};
    struct kind_beside other;
    struct many *many = malloc(sizeof *many);
    CHECK_THAT(run, many, "no memory for many layers");
    if (kind_open(&r.k, run) && r.k.kind->beside(&r.k, &other)) {
        pose_many(&r, &other.problem, 2, MOST_LAYERS, run->index % 2, many);
        bool good = judge_among(&r, many->problems, 2);
        pose_many(&r, &other.problem, MANY_GROUPS, 1, (MANY_GROUPS - 1) * (run->index % 3) / 2,
                  many);
        good = good && judge_among(&r, many->problems, MANY_GROUPS);
        pose_many(&r, &other.problem, MOST_GROUPS, 1, run->index, many);
        if (good)
            judge_most(&r, many->problems);
    }
    finish(&r);
    free(many);
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

#define LENGTHS(a, b)         CHOICE(AXIS_LENGTHS, BIT(LENGTHS_##a) | BIT(LENGTHS_##b))
#define LATENTS(layouts, ...) LATENT_CASES(BOTH_FORMS, layouts, BIT(MLA_ONE_BLOCK), __VA_ARGS__)

#define SPARSE SPARSE_LATENT_CASES(BOTH_PHASES, LENGTHS(PAGES, SPLITS))

const struct check check_repeats[] = {
    ALL_KIND_ROWS("INVAR-01", layer_groups, CHECK_NEEDS_COMPUTE,
                  "another layer group of the instance changes no result",
                  SOFTMAX_CASES(BOTH_PHASES, PLAIN_AND_QUANTISED,
                                {AXIS_WINDOW, BIT(WINDOW_CAUSAL) | BIT(WINDOW_15)}),
                  LATENTS(MLA_LATENT | MLA_PACKED, BOTH_PHASES), LINEAR_CASES(linear_set_many, 1)),
    ALL_KIND_ROWS("CAPS-11", many_layers, CHECK_NEEDS_COMPUTE,
                  "in an instance of 160 layers or of 64 groups, a call runs the layer with its id",
                  SOFTMAX_CASES(BOTH_PHASES, PLAIN_AND_QUANTISED),
                  LATENTS(MLA_LATENT | MLA_PACKED, BOTH_PHASES), LINEAR_CASES(linear_set_many, 1)),
    KIND_ROWS("INVAR-02", same_batch, "DETERMINISTIC: equal batches give equal bits",
              SOFTMAX_CASES(BOTH_PHASES, LENGTHS(SPLITS, ROWS), {AXIS_DTYPE, 7}),
              LATENTS(MLA_LATENT | MLA_PACKED, BOTH_PHASES)),
    KIND_ROW("INVAR-01", "sparse_layer_groups", layer_groups, CHECK_NEEDS_COMPUTE,
             "another layer group of the instance changes no result (sparse layers)", SPARSE),
    KIND_ROW("INVAR-02", "sparse_same_batch", same_batch, CHECK_NEEDS_COMPUTE,
             "DETERMINISTIC: equal batches give equal bits (sparse layers)", SPARSE),
    KIND_ROWS("INVAR-02", any_threads, "DETERMINISTIC: the number of threads changes no bit",
              SOFTMAX_CASES(BOTH_PHASES, LENGTHS(SPLITS, ROWS), {AXIS_DTYPE, 7}),
              LATENTS(MLA_LATENT | MLA_PACKED, BOTH_PHASES)),
    KIND_ROW("INVAR-02", "linear_threads", any_threads, CHECK_NEEDS_COMPUTE,
             "DETERMINISTIC: the number of threads changes no bit of linear layers",
             LINEAR_CASES(linear_set_many, 1)),
    ALL_KIND_ROWS(
        "INVAR-02", any_order, CHECK_NEEDS_COMPUTE,
        "results are the same for any order of tasks and workers, nested tasks included",
        SOFTMAX_CASES(THREE_MODES, LENGTHS(PAGES, SPLITS), PLAIN_AND_QUANTISED),
        LATENT_CASES(BOTH_FORMS, MLA_LATENT, BIT(MLA_SMALL), BOTH_PHASES, LENGTHS(SPLITS, ROWS)),
        LINEAR_CASES(change_order, 2)),
    {.rule = NULL},
};
