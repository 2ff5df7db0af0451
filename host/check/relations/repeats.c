/* SPDX-License-Identifier: Apache-2.0
 *
 * repeats.c: the same batch again: in another instance, beside another layer group, with other
 * threads, in every order of tasks that order_runner.h has. If the backend declares DETERMINISTIC,
 * the results have the same bits as the first time; else they are judged again. */
#include "host/check/cases/kind.h"
#include "host/check/cases/other_host.h"
#include "host/check/relations/order_runner.h"

#include <stdio.h>
#include <stdlib.h>

#include "host/base/error.h"

static const struct case_setup plainly = {.kind = ATTN_METADATA_EAGER},
                               exactly = {.kind = ATTN_METADATA_EAGER, .exact_memory = true};

/* Into a session of this subject. NULL = into none. */
static bool move(struct kind_case *k, const struct check_subject *subject,
                 const struct case_setup *setup)
{
    case_session_destroy(k->session);
    k->session = subject ? kind_session(k, subject, setup) : NULL;
    return k->session;
}

/* The judged result of the first call of a backend that declares these traits. NULL: reported. */
static void *begin(struct kind_case *k, uint32_t traits)
{
    bool good = kind_make(k) && (!traits || kind_declares(k, traits)) &&
                move(k, k->run->subject, &plainly) && kind_judge(k);
    return good ? kind_keep(k) : NULL;
}

static void judge_again(struct kind_case *k)
{
    static const char text[] =
        "the same batch again has other bits, though DETERMINISTIC is declared";
    void *first = begin(k, ATTN_TRAIT_DETERMINISTIC);
    if (first && kind_same(k, first, text) && kind_same(k, first, text) &&
        move(k, k->run->subject, &exactly))
        kind_same(k, first, "another instance has other bits");
    free(first);
}

/* ---- Other layer groups ---------------------------------------------------------------------- */

/* In an instance of these, one of which is the case's. */
static bool judge_among(struct kind_case *k, const attn_problem *problems, uint32_t count)
{
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER,
                                     .exact_memory = true,
                                     .problems = problems,
                                     .num_problems = count};
    return move(k, k->run->subject, &setup) && kind_judge(k);
}

/* Before the case's own, then after it. */
static void judge_beside(struct kind_case *k)
{
    struct kind_beside other;
    bool good = kind_make(k) && k->kind->beside(k, &other);
    for (int last = 0; last < 2 && good; last++) {
        attn_problem problems[2] = {k->c->posed.problem, k->c->posed.problem};
        problems[last] = other.problem;
        good = judge_among(k, problems, 2);
    }
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
static void pose_many(const struct kind_case *k, const attn_problem *other, int32_t groups,
                      int32_t layers, int32_t own, struct many *many)
{
    const attn_problem *called = &k->c->posed.problem;
    const attn_layer *layer = called->group->layers;
    const struct check_run *run = k->run;
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
static void judge_most(struct kind_case *k, const attn_problem *problems)
{
    const struct case_backend backend = numerics_backend(k->run->subject, k->at.options);
    const struct case_setup setup = {
        .kind = ATTN_METADATA_EAGER, .problems = problems, .num_problems = MOST_GROUPS};
    move(k, NULL, NULL);
    attn_status status =
        case_session_create(&backend, k->c, &setup, &k->session, check_error(k->run));
    if (status == ATTN_OK)
        kind_judge(k);
    else if (status != ATTN_UNSUPPORTED && status != ATTN_CHILD_FAILED)
        kind_good(k, status);
}

/* Two groups of many layers, then many groups, the one that is called first, last or among them. */
static void judge_many_layers(struct kind_case *k)
{
    const int32_t index = k->run->index;
    struct kind_beside other;
    struct many *many = malloc(sizeof *many);
    CHECK_THAT(k->run, many, "no memory for many layers");
    if (kind_make(k) && k->kind->beside(k, &other)) {
        pose_many(k, &other.problem, 2, MOST_LAYERS, index % 2, many);
        bool good = judge_among(k, many->problems, 2);
        pose_many(k, &other.problem, MANY_GROUPS, 1, (MANY_GROUPS - 1) * (index % 3) / 2, many);
        good = good && judge_among(k, many->problems, MANY_GROUPS);
        pose_many(k, &other.problem, MOST_GROUPS, 1, index, many);
        if (good)
            judge_most(k, many->problems);
    }
    free(many);
}

/* ---- Another pool ---------------------------------------------------------------------------- */

/* A case whose first call left this, before it goes on a pool of other threads. */
struct pooled {
    struct kind_case *k;
    void *first;
    struct order_runner runner;
};

/* use() in a session on a pool of so many threads, whose jobs `runner` (NULL = the pool itself) executes. */
static void on_pool(struct pooled *p, uint32_t num_threads, struct order_runner *runner,
                    void (*use)(struct pooled *p, uint32_t num_threads))
{
    struct kind_case *k = p->k;
    struct check_subject subject = *k->run->subject;
    struct other_host other;
    if (other_host_init(&other, k->run, num_threads)) {
        subject.services = &other.node->services;
        if (runner)
            threads_set_runner(other.threads, order_run, runner);
        if (move(k, &subject, &plainly))
            use(p, num_threads);
        move(k, NULL, NULL);
    }
    other_host_finish(&other);
}

/* The first call of a case on a CPU: a GPU's threads are up to the backend. */
static bool begin_pooled(struct pooled *p, struct kind_case *k, uint32_t traits)
{
    *p = (struct pooled){.k = k, .runner.seed = k->run->seed};
    if (k->run->subject->device->type != ATTN_DEVICE_CPU)
        check_skip(k->run, "a GPU's threads are up to the backend");
    else
        p->first = begin(k, traits);
    return p->first;
}

static void expect_same(struct pooled *p, uint32_t num_threads)
{
    char text[100];
    snprintf(text, sizeof text, "with %u threads: other bits, though DETERMINISTIC is declared",
             num_threads);
    kind_same(p->k, p->first, text);
}

static void judge_threads(struct kind_case *k)
{
    struct pooled p;
    bool good = begin_pooled(&p, k, ATTN_TRAIT_DETERMINISTIC);
    for (uint32_t count = 1; count <= 4 && good && k->run->code == CHECK_PASS; count++) {
        check_note(k->run, "%u threads", count);
        on_pool(&p, count, NULL, expect_same);
    }
    free(p.first);
}

static void try_orders(struct pooled *p, uint32_t num_threads)
{
    struct order_runner *runner = &p->runner;
    struct kind_case *k = p->k;
    bool deterministic = case_session_verdict(k->session)->traits & ATTN_TRAIT_DETERMINISTIC;
    (void)num_threads;
    order_watch(k->session);
    for (runner->order = 0; runner->order < ORDERS && k->run->code == CHECK_PASS; runner->order++) {
        char text[200];
        check_note(k->run, "%s", order_name(runner->order));
        snprintf(text, sizeof text, "%s: other bits than before, though DETERMINISTIC is declared",
                 order_name(runner->order));
        if (deterministic)
            kind_same(k, p->first, text);
        else
            kind_judge(k);
    }
    order_watch(NULL);
}

static void judge_orders(struct kind_case *k)
{
    struct pooled p;
    if (begin_pooled(&p, k, 0))
        on_pool(&p, ORDER_WORKERS, &p.runner, try_orders);
    free(p.first);
}

static const struct relation again = {.judge = judge_again}, beside = {.judge = judge_beside},
                             among_many = {.judge = judge_many_layers},
                             on_threads = {.judge = judge_threads},
                             in_orders = {.judge = judge_orders};

/* ---- Table ----------------------------------------------------------------------------------- */

/* No state is dropped and there is no padding: the contents of slot 0 would depend on the order. */
static void change_order(struct case_spec *spec, int32_t index)
{
    linear_set_many(spec, index);
    spec->linear.padded = 0;
    if (index)
        linear_set_mode(spec, ATTN_MODE_DECODE);
}

#define LATENTS(...) LATENT(BOTH_FORMS, MLA_LATENT | MLA_PACKED, BIT(MLA_ONE_BLOCK), __VA_ARGS__)
#define SPLITS_ROWS  OF(LENGTHS, SPLITS, ROWS)
#define CHOSEN       SPARSE_LATENT(BOTH_PHASES, OF(LENGTHS, PAGES, SPLITS))
#define MANY         LINEAR(linear_set_many, 1)

const struct check check_repeats[] = {
    ALL_ROWS("INVAR-01", layer_groups, beside, CHECK_NEEDS_COMPUTE,
             "another layer group of the instance changes no result",
             SOFTMAX(BOTH_PHASES, PLAIN_AND_QUANTISED, OF(WINDOW, CAUSAL, 15)),
             LATENTS(BOTH_PHASES), MANY),
    ALL_ROWS("CAPS-11", many_layers, among_many, CHECK_NEEDS_COMPUTE,
             "in an instance of 160 layers or of 64 groups, a call runs the layer with its id",
             SOFTMAX(BOTH_PHASES, PLAIN_AND_QUANTISED), LATENTS(BOTH_PHASES), MANY),
    ROWS_AS("INVAR-02", same_batch, again, "DETERMINISTIC: equal batches give equal bits",
            SOFTMAX(BOTH_PHASES, SPLITS_ROWS, EACH(DTYPE)), LATENTS(BOTH_PHASES)),
    ROW_AS("INVAR-01", sparse_layer_groups, beside,
           "another layer group of the instance changes no result (sparse layers)", CHOSEN),
    ROW_AS("INVAR-02", sparse_same_batch, again,
           "DETERMINISTIC: equal batches give equal bits (sparse layers)", CHOSEN),
    ROWS_AS("INVAR-02", any_threads, on_threads,
            "DETERMINISTIC: the number of threads changes no bit",
            SOFTMAX(BOTH_PHASES, SPLITS_ROWS, EACH(DTYPE)), LATENTS(BOTH_PHASES)),
    ROW_AS("INVAR-02", linear_threads, on_threads,
           "DETERMINISTIC: the number of threads changes no bit of linear layers", MANY),
    ALL_ROWS("INVAR-02", any_order, in_orders, CHECK_NEEDS_COMPUTE,
             "results are the same for any order of tasks and workers, nested tasks included",
             SOFTMAX(THREE_MODES, OF(LENGTHS, PAGES, SPLITS), PLAIN_AND_QUANTISED),
             LATENT(BOTH_FORMS, MLA_LATENT, BIT(MLA_SMALL), BOTH_PHASES, SPLITS_ROWS),
             LINEAR(change_order, 2)),
    {.rule = NULL},
};
