/* SPDX-License-Identifier: Apache-2.0
 *
 * kind.c: a case of any kind of layer, from the row of a check to its verdict.
 */
#include "host/check/cases/kind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"

int32_t kind_count(const struct check *check, const struct check_subject *subject)
{
    if (check->cases)
        return check->cases->kind->count(subject, check->cases);
    return check->count ? check->count(subject) : -1;
}

bool kind_find(struct kind_case *k, struct check_run *run)
{
    const struct kind_cases *cases = run->check->cases;
    *k = (struct kind_case){.run = run, .kind = cases->kind};
    return k->kind->find(k, cases);
}

bool kind_open(struct kind_case *k, struct check_run *run)
{
    return kind_find(k, run) && k->kind->make(k);
}

void kind_close(struct kind_case *k)
{
    case_session_destroy(k->session);
    forward_case_destroy(k->c);
    linear_case_destroy(k->recurrence);
    grid_release(k->run->subject, k->at.grid);
}

bool kind_declares(struct kind_case *k, uint32_t notes)
{
    const struct check_subject *subject = k->run->subject;
    const attn_options *options = k->at.options ? k->at.options : subject->options;
    attn_problem *problem = k->kind->problem(k);
    for (int asked = 0; asked < 2; asked++) {
        attn_verdict verdict = {.struct_size = sizeof verdict};
        problem->need_notes = asked ? notes : 0;
        attn_status status = subject->type->query(subject->type, options, subject->services,
                                                  problem, &verdict, NULL);
        if (status == ATTN_OK && verdict.supported && (verdict.notes & notes) == notes)
            return true;
    }
    check_skip(k->run, "the backend does not declare %s here",
               notes & ATTN_NOTE_BATCH_INVARIANT ? "BATCH_INVARIANT" : "DETERMINISTIC");
    return false;
}

struct case_session *kind_session(const struct kind_case *k, const struct check_subject *subject,
                                  const struct case_setup *setup)
{
    struct case_backend backend = numerics_backend(subject, k->at.options);
    struct case_session *session = NULL;
    host_error error;
    host_error_init(&error);
    attn_status status = session_create(&backend, k->kind->problem(k), subject->device, setup,
                                        &session, &error.base);
    if (status != ATTN_OK)
        k->kind->report(k, status, host_error_text(&error));
    return session;
}

bool kind_judge(struct kind_case *k)
{
    struct case_verdict verdict = {.good = true};
    k->kind->judge(k, &verdict);
    return kind_told(k, &verdict);
}

bool kind_told(struct kind_case *k, const struct case_verdict *verdict)
{
    if (verdict->good)
        return true;
    bool is_first = k->run->code == CHECK_PASS;
    k->kind->report(k, verdict->status, verdict->text);
    size_t length = strlen(k->run->text);
    if (is_first && k->run->code == CHECK_FAIL)
        k->kind->operands(k, k->run->text + length, sizeof k->run->text - length);
    return false;
}

void *kind_keep(const struct kind_case *k)
{
    uint64_t bytes;
    const void *left = k->kind->left(k, &bytes);
    void *copy = malloc(bytes);
    if (copy)
        memcpy(copy, left, bytes);
    else
        k->kind->report(k, ATTN_OUT_OF_HOST_MEMORY, "no memory for what a call leaves");
    return copy;
}

void run_alone(struct check_run *run)
{
    struct kind_case k;
    if (kind_find(&k, run))
        k.kind->run(&k);
    kind_close(&k);
}

int32_t kind_variants(const struct kind_cases *cases)
{
    return cases->variants > 0 ? cases->variants : 1;
}

/* ---- Softmax, sparse and latent layers ------------------------------------------------------- */

static bool accepts_forward(struct kind_case *k)
{
    return grid_accepts_spec(k->at.grid, k->at.options, &k->at.spec, NULL, 0);
}

static const attn_problem *pose_forward(const struct kind_case *k, struct kind_posed *posed)
{
    spec_problem_init(&posed->softmax, &k->at.spec, &k->run->subject->device->info);
    return &posed->softmax.problem;
}

static void run_forward(struct kind_case *k)
{
    const struct case_run exactly = {.exact_memory = true};
    numerics_run(k->run, &k->at.spec, k->at.options, &exactly);
}

static bool make_forward(struct kind_case *k)
{
    k->c = numerics_case(k->run, &k->at.spec, NULL);
    return k->c;
}

static attn_problem *forward_problem(const struct kind_case *k)
{
    return &k->c->posed.problem;
}

static void judge_forward(struct kind_case *k, struct case_verdict *verdict)
{
    struct numerics_noted noted = {k->run, &k->at.spec};
    const struct case_run how = numerics_repeats(&noted);
    case_session_repeat(k->session, k->c, &how, verdict);
}

static void forward_operands(const struct kind_case *k, char *text, size_t size)
{
    forward_case_operands(k->c, text, size);
}

static const void *forward_left(const struct kind_case *k, uint64_t *bytes)
{
    *bytes = k->c->bytes;
    return k->c->actual;
}

static void report_forward(const struct kind_case *k, attn_status status, const char *text)
{
    numerics_report(k->run, &k->at.spec, status, text);
}

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
static bool same_forward(struct kind_case *k, const void *first, const char *what)
{
    struct forward_case *c = k->c;
    attn_stream stream = k->session->stream;
    char text[700];
    host_error error;
    host_error_init(&error);
    attn_status status = session_spoil_scratch(k->session, &error.base);
    if (status == ATTN_OK)
        status = case_session_try(k->session, c, NULL, NULL, &error.base);
    k->session->num_runs++;
    if (status == ATTN_OK)
        status = device_copy(c->device, c->actual, c->memory, c->bytes, stream, &error.base);
    if (status == ATTN_OK)
        status = session_check_memory(k->session, &error.base);
    bool same = status == ATTN_OK && same_results(c, first);
    snprintf(text, sizeof text, "%s: %s", what, host_error_text(&error));
    if (!same)
        numerics_report(k->run, &k->at.spec, status, status == ATTN_OK ? what : text);
    return same;
}

static attn_status try_forward(struct kind_case *k, case_change change, void *ctx,
                               attn_error *error)
{
    return case_session_try(k->session, k->c, change, ctx, error);
}

static uint32_t forward_operand(const struct kind_case *k, uint32_t role)
{
    struct case_view view;
    struct case_place place;
    session_place(k->session, k->c, false, &place);
    case_view_init(&view, k->c, &k->c->lengths, &place);
    bool output = role == ATTN_ROLE_OUT || role == ATTN_ROLE_LSE;
    bool cache =
        role == ATTN_ROLE_K_CACHE || role == ATTN_ROLE_V_CACHE || role == ATTN_ROLE_LATENT_CACHE;
    bool optional = role == ATTN_ROLE_LSE || role == ATTN_ROLE_SPARSE_COUNT;
    uint32_t bits = optional ? 0 : KIND_NEEDED;
    if (output || (cache && k->c->spec.flags & ATTN_FORWARD_SAVE_KV))
        bits |= KIND_WRITTEN;
    if (view.scales[role])
        bits |= KIND_SCALED;
    return view.operands[role] ? bits : 0;
}

/* Equal but for what a query sees of the keys and how scores are scaled. */
static bool forward_beside(struct kind_case *k, struct kind_beside *other)
{
    const struct check_subject *subject = k->run->subject;
    attn_verdict verdict = {.struct_size = sizeof verdict};
    other->layer = (attn_layer){.struct_size = sizeof other->layer,
                                .layer_id = k->c->posed.layers[0].layer_id + 3};
    other->group = k->c->posed.group;
    other->group.layers = &other->layer;
    other->group.window_left = other->group.window_left == 3 ? 4 : 3;
    other->group.sm_scale *= 2;
    other->problem = k->c->posed.problem;
    other->problem.group = &other->group;
    attn_status status = subject->type->query(subject->type, k->at.options, subject->services,
                                              &other->problem, &verdict, NULL);
    if (status == ATTN_OK && verdict.supported)
        return true;
    check_skip(k->run, "query refuses the same layers with a window");
    return false;
}

static int32_t count_forward(const struct check_subject *subject, const struct kind_cases *cases)
{
    int32_t points = numerics_points(subject, cases->choices),
            least = cases->vary ? 1 : kind_variants(cases);
    if (cases->drawn && points > 1)
        return numerics_few(subject, cases->drawn);
    return points > 0 ? kind_variants(cases) * points : least;
}

/* Variants of a point follow each other. */
static bool find_forward(struct kind_case *k, const struct kind_cases *cases)
{
    int32_t index = k->run->index;
    int32_t drawn_from = cases->drawn ? numerics_points(k->run->subject, cases->choices) : 0;
    k->variant = index % kind_variants(cases);
    k->run->index = drawn_from > 0 ? index % drawn_from : index / kind_variants(cases);
    bool found = numerics_open(&k->at, k->run, cases->choices);
    k->run->index = index;
    if (!found || !cases->complete)
        return found;
    cases->complete(&k->at.spec);
    return numerics_accepts(&k->at, &k->at.spec);
}

/* The same layer, whose rows choose their keys. Few backends serve them. */
static bool chooses_keys(const struct grid *grid, const attn_options *options,
                         struct case_spec *spec)
{
    spec->top_k = spec->top_k == 0 ? 40 : spec->top_k;
    return !case_spec_defect(spec) && grid_accepts_spec(grid, options, spec, NULL, 0);
}

static int32_t count_sparse(const struct check_subject *subject, const struct kind_cases *cases)
{
    struct grid *grid = grid_of(subject);
    struct case_spec spec;
    bool serves = grid && !grid->refusal[0] && grid_accepts(grid, &grid->base, &spec, NULL, 0) &&
                  chooses_keys(grid, grid_options(grid, &grid->base), &spec);
    grid_release(subject, grid);
    return serves ? count_forward(subject, cases) : 1;
}

static bool find_sparse(struct kind_case *k, const struct kind_cases *cases)
{
    if (!find_forward(k, cases))
        return false;
    bool chooses = chooses_keys(k->at.grid, k->at.options, &k->at.spec);
    if (!chooses)
        check_skip(k->run, "query refuses sparse layers whose rows choose slots");
    return chooses;
}

#define FORWARD_KIND                                                                               \
    .accepts = accepts_forward, .pose = pose_forward, .run = run_forward, .make = make_forward,    \
    .problem = forward_problem, .judge = judge_forward, .operands = forward_operands,              \
    .left = forward_left, .same = same_forward, .try = try_forward, .operand = forward_operand,    \
    .beside = forward_beside, .report = report_forward
const struct check_kind softmax_layers = {
    .count = count_forward, .find = find_forward, FORWARD_KIND};
const struct check_kind sparse_layers = {.count = count_sparse, .find = find_sparse, FORWARD_KIND};
const struct check_kind latent_layers = {
    .count = count_forward, .find = find_forward, FORWARD_KIND};
