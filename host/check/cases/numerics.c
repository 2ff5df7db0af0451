/* SPDX-License-Identifier: Apache-2.0
 *
 * numerics.c: from a spec to a verdict.
 */
#include "host/check/cases/numerics.h"

#include "host/check/cases/forward_case_private.h"

#include "host/base/error.h"

#include <stdio.h>
#include <string.h>

enum { SPEC_TEXT = 700, OPERANDS_TEXT = 400, RANDOM_TRIES = 400 };

struct case_backend numerics_backend(const struct check_subject *subject,
                                     const attn_options *options)
{
    return (struct case_backend){.type = subject->type,
                                 .options = options ? options : subject->options,
                                 .services = subject->services};
}

int32_t numerics_few(const struct check_subject *subject, int32_t count)
{
    bool compiles = grid_of(subject)->traits & ATTN_TRAIT_RUNTIME_COMPILATION;
    return subject->exhaustive ? 20 * count : compiles ? count / 20 : count;
}

int32_t numerics_points(const struct check_subject *subject, const struct grid_choice *choices)
{
    struct grid *grid = grid_of(subject);
    struct grid_point point;
    grid->remembers = true;
    int32_t count = grid_product(grid, choices, 0, &point, NULL, 0);
    grid->remembers = false;
    return count;
}

int32_t numerics_count(const struct check_subject *subject, const struct grid_choice *choices)
{
    int32_t count = numerics_points(subject, choices);
    return count > 0 ? count : 1;
}

bool numerics_spec(struct check_run *run, const struct grid *grid,
                   const struct grid_choice *choices, struct case_spec *spec,
                   const attn_options **options)
{
    struct grid_point point = grid->base;
    char reason[512] = "";
    int32_t count = grid_product(grid, choices, run->index, &point, reason, sizeof reason);
    if (run->index >= count) {
        bool softmax = !grid_chooses_latents(choices);
        check_skip(run, "%s", softmax && grid->refusal[0] ? grid->refusal : reason);
        return false;
    }
    *options = grid_options(grid, &point);
    return grid_accepts(grid, &point, spec, NULL, 0);
}

bool numerics_open(struct numerics_point *at, struct check_run *run,
                   const struct grid_choice *choices)
{
    *at = (struct numerics_point){.run = run, .grid = grid_of(run->subject)};
    return numerics_spec(run, at->grid, choices, &at->spec, &at->options);
}

bool numerics_query(const struct check_subject *subject, const attn_options *options,
                    const attn_problem *problem, attn_verdict *verdict)
{
    *verdict = (attn_verdict){.struct_size = sizeof *verdict};
    return subject->type->query(subject->type, options, subject->services, problem, verdict,
                                NULL) == ATTN_OK &&
           verdict->supported;
}

bool numerics_accepts(struct numerics_point *at, struct case_spec *spec)
{
    char reason[512] = "";
    bool accepts = grid_accepts_spec(at->grid, at->options, spec, reason, sizeof reason);
    if (!accepts)
        check_skip(at->run, "%s", reason);
    return accepts;
}

void numerics_report(struct check_run *run, const struct case_spec *spec, attn_status status,
                     const char *text)
{
    char what[SPEC_TEXT];
    case_spec_describe(spec, what, sizeof what);
    check_report_status(run, status, text, what);
}

bool numerics_good(struct check_run *run, const struct case_spec *spec, attn_status status)
{
    if (status != ATTN_OK)
        numerics_report(run, spec, status, check_error_text(run));
    return status == ATTN_OK;
}

bool numerics_told(struct check_run *run, const struct forward_case *c,
                   const struct case_verdict *verdict)
{
    char operands[OPERANDS_TEXT];
    bool is_first = run->code == CHECK_PASS;
    if (verdict->good)
        return true;
    numerics_report(run, &c->spec, verdict->status, verdict->text);
    size_t length = strlen(run->text);
    forward_case_operands(c, operands, sizeof operands);
    if (is_first && run->code == CHECK_FAIL)
        snprintf(run->text + length, sizeof run->text - length, "%s", operands);
    return false;
}

attn_status numerics_create(struct check_run *run, const attn_options *options,
                            const attn_problem *problem, attn_instance **instance)
{
    const struct case_backend backend = numerics_backend(run->subject, options);
    return backend.type->create(backend.type, problem, 1, backend.options, backend.services,
                                instance, check_error(run));
}

struct forward_case *numerics_case(struct check_run *run, const struct case_spec *spec,
                                   const struct forward_case *base)
{
    char what[SPEC_TEXT];
    struct forward_case *c = NULL;
    case_spec_describe(spec, what, sizeof what);
    check_note(run, "%s", what);
    attn_status status =
        base ? forward_case_create_variant(spec, base, &c, check_error(run))
             : forward_case_create(spec, run->seed, run->subject->device, &c, check_error(run));
    if (!numerics_good(run, spec, status))
        return NULL;
    char operands[OPERANDS_TEXT]; /* for a crash */
    forward_case_operands(c, operands, sizeof operands);
    check_note(run, "%s%s", what, operands);
    return c;
}

struct case_session *numerics_session(struct check_run *run, const struct check_subject *subject,
                                      const struct forward_case *c, const attn_options *options,
                                      const struct case_setup *setup)
{
    struct case_backend backend = numerics_backend(subject, options);
    struct case_session *session = NULL;
    numerics_good(run, &c->spec,
                  case_session_create(&backend, c, setup, &session, check_error(run)));
    return session;
}

/* The text of the note on a repetition. */
struct noted {
    struct check_run *run;
    const struct forward_case *c;
};

static void note_repetition(void *ctx, int32_t n)
{
    const struct noted *noted = ctx;
    char what[SPEC_TEXT];
    case_spec_describe(&noted->c->spec, what, sizeof what);
    check_note(noted->run, "repetition %d of %d; %s", n, noted->run->subject->repeat, what);
}

void numerics_judge_into(struct check_run *run, struct case_session *session,
                         struct forward_case *c, struct case_verdict *verdict)
{
    struct noted noted = {run, c};
    const struct case_run how = {
        .repeat = run->subject->repeat, .note = note_repetition, .ctx = &noted};
    case_session_repeat(session, c, &how, verdict);
}

bool numerics_judge(struct check_run *run, struct case_session *session, struct forward_case *c)
{
    struct case_verdict verdict;
    numerics_judge_into(run, session, c, &verdict);
    return numerics_told(run, c, &verdict);
}

bool numerics_judge_alone(struct check_run *run, struct forward_case *c,
                          const attn_options *options)
{
    struct case_backend backend = numerics_backend(run->subject, options);
    struct noted noted = {run, c};
    const struct case_run how = {.exact_memory = true,
                                 .repeat = run->subject->repeat,
                                 .note = note_repetition,
                                 .ctx = &noted};
    struct case_verdict verdict;
    forward_case_judge(c, &backend, &how, &verdict);
    return numerics_told(run, c, &verdict);
}

/* Axes that are left out have the base's value. */
static struct grid_point random_softmax(const struct grid *grid, uint64_t seed, uint64_t n,
                                        uint32_t without)
{
    struct grid_point drawn = grid_random(grid, seed, n), point = grid->base;
    for (enum grid_axis axis = 0; axis < GRID_AXES; axis++)
        if (!(without >> axis & 1))
            point.value[axis] = drawn.value[axis];
    return point;
}

bool numerics_random(struct check_run *run, const struct grid *grid,
                     const struct grid_choice *latents, struct grid_point *point,
                     struct case_spec *spec)
{
    char reason[512] = "";
    bool serves = !latents || grid_product(grid, latents, 0, point, reason, sizeof reason) > 0;
    for (uint64_t n = 0; serves && n < RANDOM_TRIES; n++) {
        *point = (latents ? grid_random_latent : random_softmax)(grid, run->seed, n, run->without);
        if (!latents && !(run->without >> AXIS_TYPE & 1) && n < RANDOM_TRIES / 2)
            grid_draw_type(point, run->seed);
        if (grid_accepts(grid, point, spec, NULL, 0))
            return true;
    }
    if (serves && !latents && grid->refusal[0])
        check_skip(run, "%s", grid->refusal);
    else
        check_skip(run, "%s", serves ? "query refuses all drawn cases" : reason);
    return false;
}

void numerics_make_e5m2(struct case_spec *spec, int32_t variant)
{
    (void)variant;
    attn_dtype *const dtypes[] = {&spec->q_dtype, &spec->new_kv_dtype, &spec->out_dtype};
    for (int n = 0; n < 3; n++)
        if (*dtypes[n] == ATTN_FP8_E4M3)
            *dtypes[n] = ATTN_FP8_E5M2;
    spec->without_needles = true;
}

double numerics_unit(attn_dtype dtype)
{
    return dtype == ATTN_F32 ? 0x1p-12 : dtype == ATTN_F16 ? 0x1p-9 : 0x1p-6;
}

void numerics_run(struct check_run *run, const struct case_spec *spec, const attn_options *options)
{
    struct forward_case *c = numerics_case(run, spec, NULL);
    if (c)
        numerics_judge_alone(run, c, options);
    forward_case_destroy(c);
}

int32_t numerics_count_found(const struct check_subject *subject, numerics_find find, bool variant)
{
    struct case_spec spec;
    char reason[512] = "";
    int32_t count = find(grid_of(subject), variant, -1, &spec, reason, sizeof reason);
    return count > 0 ? count : 1;
}

void numerics_run_found(struct check_run *run, numerics_find find, bool variant)
{
    struct grid *grid = grid_of(run->subject);
    struct case_spec spec;
    char reason[512] = "";
    if (run->index < find(grid, variant, run->index, &spec, reason, sizeof reason))
        numerics_run(run, &spec, grid_options(grid, &grid->base));
    else
        check_skip(run, "%s", reason[0] ? reason : grid->refusal);
}
