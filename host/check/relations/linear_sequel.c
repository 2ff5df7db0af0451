/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_sequel.c: linear layers: no call changes the results of a later one, and the layers of one
 * batch share no state (sequel.c for the others).
 */
#include "host/check/cases/joint.h"
#include "host/check/cases/kind.h"
#include "host/check/cases/linear_numbers.h"
#include "host/check/cases/numerics.h"

#include "host/base/error.h"
#include "host/base/mix.h"

#include <stdio.h>
#include <string.h>

enum { TRIES = 40, STEPS = 3, CHAINS = 2, LAYERS = 5, MOST_ROWS = 140 };
/* Elements of states that its rows have between them, where numbers are any. */
static const int64_t most_work = 500000;

/* ---- Specs ----------------------------------------------------------------------------------- */

static int32_t rows_of(const struct linear_spec *spec)
{
    int32_t rows = 0;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        rows += spec->sequences[s].rows;
    return rows;
}

/* Now and then any numbers, instead of those of lists. */
static bool has_any_numbers(uint64_t seed)
{
    return mix_stream(seed, TRIES) % 2 == 0;
}

/* A spec that is accepted and short. */
static bool draw(const struct check_run *run, uint32_t family, uint64_t seed,
                 struct linear_spec *spec)
{
    char reason[LINEAR_TEXT];
    for (uint64_t n = 0; n < TRIES; n++) {
        linear_spec_draw(spec, family, mix_absorb(seed, n));
        if (rows_of(spec) > MOST_ROWS || !linear_accepts(run->subject, spec, reason))
            continue;
        if (has_any_numbers(seed)) {
            linear_numbers_draw_layer(run->subject, seed, most_work, spec);
            linear_numbers_draw_batch(run->subject, seed, most_work, spec);
        }
        return true;
    }
    return false;
}

/* What a call has of its own. */
static void take_call(struct linear_spec *spec, const struct linear_spec *from)
{
    spec->mode = from->mode;
    spec->decodes_first = from->decodes_first;
    spec->decodes = from->decodes;
    spec->decode_q_len = from->decode_q_len;
    spec->snapshots = from->snapshots;
    spec->sparse = from->sparse;
    spec->cuts = from->cuts;
    spec->absent = from->absent;
    spec->first_row = from->first_row;
    spec->padded = from->padded;
    spec->spare = from->spare;
    spec->num_sequences = from->num_sequences;
    memcpy(spec->sequences, from->sequences, sizeof spec->sequences);
}

/* Of the same layer; what need not be given is given or not. */
static bool draw_call(const struct check_run *run, const struct linear_spec *layer, uint64_t seed,
                      struct linear_spec *spec)
{
    char reason[LINEAR_TEXT];
    for (uint64_t n = 0; n < TRIES; n++) {
        struct linear_spec drawn;
        linear_spec_draw(&drawn, layer->family, mix_absorb(seed, n));
        *spec = *layer;
        take_call(spec, &drawn);
        spec->z = drawn.z;
        spec->bias = drawn.bias;
        spec->skip = drawn.skip;
        spec->gap = drawn.gap;
        spec->steep = drawn.steep;
        if (rows_of(spec) > MOST_ROWS || !linear_accepts(run->subject, spec, reason))
            continue;
        if (has_any_numbers(seed))
            linear_numbers_draw_batch(run->subject, seed, most_work, spec);
        return true;
    }
    return false;
}

/* ---- Instances ------------------------------------------------------------------------------- */

/* An instance, and the cases that it is called with: one after the other, or as layers of a batch.
 */
struct line {
    struct check_run *run;
    int32_t count;
    struct linear_spec specs[LAYERS];
    struct linear_case *cases[LAYERS];
    attn_layer_group groups[LAYERS];
    attn_problem problems[LAYERS];
    attn_bounds bounds; /* of all */
    struct case_session *session;
};

static void line_finish(struct line *line)
{
    case_session_destroy(line->session);
    for (int32_t n = 0; n < line->count; n++)
        linear_case_destroy(line->cases[n]);
}

static bool passed(struct line *line, int32_t n, attn_status status, const char *text)
{
    if (status != ATTN_OK)
        linear_report(line->run, &line->specs[n], status, text);
    return status == ATTN_OK;
}

/* The spec is in place. */
static bool add_case(struct line *line, uint64_t seed)
{
    struct linear_case **c = &line->cases[line->count];
    host_error error;
    host_error_init(&error);
    attn_status status = linear_case_create(&line->specs[line->count], seed,
                                            line->run->subject->device, c, &error.base);
    if (!passed(line, line->count, status, host_error_text(&error)))
        return false;
    const attn_problem *problem = linear_case_problem(*c);
    if (line->count == 0)
        line->bounds = *problem->bounds;
    joint_widen(&line->bounds, problem->bounds);
    line->count++;
    return true;
}

/* An instance for the first `count` cases as layer groups of their own. */
static bool line_open(struct line *line, int32_t count)
{
    struct case_backend backend = numerics_backend(line->run->subject, NULL);
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER,
                                     .exact_memory = true,
                                     .problems = line->problems,
                                     .num_problems = (uint32_t)count};
    host_error error;
    host_error_init(&error);
    for (int32_t n = 0; n < count; n++) {
        line->problems[n] = *linear_case_problem(line->cases[n]);
        line->problems[n].bounds = &line->bounds;
    }
    attn_status status = session_create(&backend, &line->problems[0], line->run->subject->device,
                                        &setup, &line->session, &error.base);
    return passed(line, 0, status, host_error_text(&error));
}

/* What is wrong, and with which of the calls. */
static bool judge(struct line *line, int32_t n, const char *what)
{
    char text[LINEAR_TEXT], message[LINEAR_TEXT + 64];
    if (linear_case_judge(line->cases[n], line->session, true, text, sizeof text))
        return true;
    snprintf(message, sizeof message, "%s %d: %s", what, n, text);
    linear_report(line->run, &line->specs[n], ATTN_OK, message);
    return false;
}

static bool call_alone(struct line *line, int32_t n, const char *what)
{
    host_error error;
    char text[LINEAR_TEXT];
    host_error_init(&error);
    linear_spec_describe(&line->specs[n], text, sizeof text);
    check_note(line->run, "%s %d: %s", what, n, text);
    attn_status status = linear_case_reset(line->cases[n], line->session, &error.base);
    if (status == ATTN_OK)
        status = linear_case_forward(line->cases[n], line->session, NULL, &error.base);
    return passed(line, n, status, host_error_text(&error)) && judge(line, n, what);
}

/* ---- Sequels --------------------------------------------------------------------------------- */

static bool draw_line(struct line *line, uint32_t family, uint64_t seed)
{
    struct linear_spec layer;
    if (!draw(line->run, family, seed, &layer))
        return false;
    for (uint64_t n = 0; n < STEPS; n++)
        if (draw_call(line->run, &layer, mix_absorb(seed, 100 + n), &line->specs[line->count]) &&
            !add_case(line, mix_absorb(seed, n)))
            return false;
    return line->count > 0 && line_open(line, 1);
}

/* Two families in turns, or one with other dimensions and dtypes; both instances are there first.
 */
static void run_linear_sequel(struct check_run *run)
{
    struct line lines[CHAINS];
    uint32_t set = linear_families(run->subject);
    int32_t families = __builtin_popcount(set), opened = 0;
    for (int32_t n = 0; n < CHAINS; n++) {
        uint32_t family =
            linear_family_at(set, families ? (run->index * (1 + n) + n) % families : 0);
        lines[n] = (struct line){.run = run};
        if (families > 0)
            opened += draw_line(&lines[n], family, mix_absorb(run->seed, (uint64_t)n));
    }
    if (opened < CHAINS)
        check_skip(run, "query refuses every case of linear layers that was drawn");
    for (int32_t step = 0; step < STEPS; step++)
        for (int32_t n = 0; n < CHAINS && opened == CHAINS && run->code == CHECK_PASS; n++)
            if (step < lines[n].count)
                call_alone(&lines[n], step, n ? "second instance, call" : "first instance, call");
    for (int32_t n = 0; n < CHAINS; n++)
        line_finish(&lines[n]);
}

/* ---- The same addresses ---------------------------------------------------------------------- */

static void change_nothing(struct linear_spec *spec, int32_t index)
{
    (void)index;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        spec->sequences[s].rows = spec->sequences[s].rows > 70 ? 70 : spec->sequences[s].rows;
    if (spec->mode == ATTN_MODE_MIXED) /* a turn would move the one that decodes */
        spec->mode = ATTN_MODE_EXTEND;
}

static void run_linear_contents(struct check_run *run)
{
    struct line line = {.run = run};
    host_error error;
    host_error_init(&error);
    if (!linear_find_case(run, change_nothing, &line.specs[0]))
        return;
    bool good = add_case(&line, run->seed) && line_open(&line, 1) && call_alone(&line, 0, "batch");
    for (int32_t turn = 1; turn < STEPS && good; turn++) {
        attn_status status = linear_case_refill(
            line.cases[0], mix_absorb(run->seed, (uint64_t)turn), turn, &error.base);
        line.specs[0].turn = turn;
        good = passed(&line, 0, status, host_error_text(&error)) &&
               call_alone(&line, 0, "at the same addresses as before, batch");
    }
    line_finish(&line);
}

/* ---- Two metadata ---------------------------------------------------------------------------- */

enum { TWO_METADATA_WAYS = 4, SECOND_PLANNED = 1, SECOND_STAYS = 2 };

/* The second call with a metadata of its own, which goes again unless it is to stay. */
static attn_status use_second(struct line *line, int32_t way, struct case_session **second,
                              attn_error *error)
{
    struct linear_case *c = line->cases[1];
    attn_status status =
        session_create_beside(line->session, linear_case_problem(c)->bounds, second, error);
    if (status == ATTN_OK && way & SECOND_PLANNED)
        status = linear_case_reset(c, *second, error);
    if (status == ATTN_OK && way & SECOND_PLANNED)
        status = linear_case_forward(c, *second, NULL, error);
    if (status == ATTN_OK && !(way & SECOND_STAYS)) {
        case_session_destroy(*second);
        *second = NULL;
    }
    return status;
}

/* The first call is planned before the second metadata is there, and computed after. */
static void judge_two(struct line *line, int32_t way)
{
    struct case_session *own = line->session, *first = NULL, *second = NULL;
    struct linear_case *c = line->cases[0];
    host_error error;
    host_error_init(&error);
    attn_status status =
        session_create_beside(own, linear_case_problem(c)->bounds, &first, &error.base);
    if (status == ATTN_OK)
        status = linear_case_reset(c, first, &error.base);
    if (status == ATTN_OK)
        status = linear_case_plan(c, NULL, 0, first, &error.base);
    if (status == ATTN_OK)
        status = use_second(line, way, &second, &error.base);
    if (status == ATTN_OK)
        status = linear_case_call(c, first, &error.base);
    line->session = first;
    if (passed(line, 0, status, host_error_text(&error)) &&
        judge(line, 0, "planned before a second metadata was made, call"))
        call_alone(line, 0, "since a second metadata was made, call");
    line->session = own;
    case_session_destroy(second);
    case_session_destroy(first);
}

/* Bounds of both calls are those of their own batches. */
static void run_linear_other_bounds(struct check_run *run)
{
    struct line line = {.run = run};
    uint32_t set = linear_families(run->subject);
    int32_t families = __builtin_popcount(set);
    uint32_t family = linear_family_at(set, families ? run->index % families : 0);
    if (families == 0 || !draw_line(&line, family, run->seed) || line.count < 2)
        check_skip(run, "query refuses every case of linear layers that was drawn");
    else
        judge_two(&line, run->index / families % TWO_METADATA_WAYS);
    line_finish(&line);
}

/* ---- Layers of one batch --------------------------------------------------------------------- */

/* The first one's batch, for layers of this family, in state group `group`. */
static bool draw_layer(struct line *line, uint32_t family, int32_t group, uint64_t seed)
{
    struct linear_spec *spec = &line->specs[line->count];
    char reason[LINEAR_TEXT];
    if (!draw(line->run, family, seed, spec))
        return false;
    if (line->count > 0)
        take_call(spec, &line->specs[0]);
    spec->layer = line->count;
    spec->state_group = group;
    if (group != line->specs[0].state_group) { /* what one's slots lack those of the other have */
        spec->absent ^= LINEAR_WITHOUT_DST | LINEAR_WITHOUT_INITIAL;
        spec->snapshots = !spec->snapshots;
    }
    return linear_accepts(line->run->subject, spec, reason) && add_case(line, line->run->seed);
}

static bool call_all(struct line *line, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (int32_t n = 0; n < line->count && status == ATTN_OK; n++)
        status = linear_case_reset(line->cases[n], line->session, error);
    if (status == ATTN_OK)
        status = linear_case_plan(line->cases[0], line->cases + 1, line->count - 1, line->session,
                                  error);
    for (int32_t n = 0; n < line->count && status == ATTN_OK; n++)
        status = linear_case_call(line->cases[n], line->session, error);
    return status == ATTN_OK;
}

/* In state groups by turns, from the first one on or from the last. */
static void run_layers(struct check_run *run, int32_t num_state_groups)
{
    struct line line = {.run = run};
    uint32_t set = linear_families(run->subject);
    int32_t families = __builtin_popcount(set);
    host_error error;
    host_error_init(&error);
    for (int32_t n = 0; n < LAYERS && families > 0; n++)
        draw_layer(&line, linear_family_at(set, (run->index + n / 2) % families),
                   (line.count + run->index / families) % num_state_groups,
                   mix_absorb(run->seed, (uint64_t)n));
    if (line.count == 0)
        check_skip(run, "query refuses every case of linear layers that was drawn");
    else if (line_open(&line, line.count)) {
        if (!call_all(&line, &error.base))
            linear_report(run, &line.specs[0], ATTN_INTERNAL, host_error_text(&error));
        for (int32_t n = 0; n < line.count && run->code == CHECK_PASS; n++)
            judge(&line, n, "layer");
    }
    line_finish(&line);
}

CHECK_RUN(linear_layers, run_layers(run, 1))

static void run_state_groups(struct check_run *run)
{
    int32_t families = linear_count_families(run->subject);
    run_layers(run, 2 + run->index / families % (LINEAR_STATE_GROUPS - 1));
}

/* ---- Padding --------------------------------------------------------------------------------- */

static const uint32_t modes[] = {ATTN_MODE_EXTEND, ATTN_MODE_DECODE, ATTN_MODE_MIXED,
                                 ATTN_MODE_TARGET_VERIFY, ATTN_MODE_DRAFT_EXTEND};
enum { MODES = sizeof modes / sizeof modes[0] };

static void change_padded(struct linear_spec *spec, int32_t index)
{
    static const struct linear_case_sequence sequences[] = {
        {.rows = 3, .has_initial = true}, {.rows = 1, .in_place = true}, {.rows = 1}};
    linear_set_extend(spec, 3, sequences);
    spec->mode = modes[index % MODES];
    spec->padded = index % 3 * 2;
    spec->spare =
        spec->mode == ATTN_MODE_DECODE || spec->mode == ATTN_MODE_MIXED ? 0 : 7 - index % 3;
    spec->snapshots = index % 2;
    spec->first_row = spec->mode == ATTN_MODE_DECODE ? 0 : index % 4;
    for (int32_t s = 0; s < spec->num_sequences && spec->mode == ATTN_MODE_DECODE; s++)
        spec->sequences[s].rows = 1;
    if (spec->mode == ATTN_MODE_MIXED)
        linear_spec_mix(spec);
    if (index / MODES == 1) { /* padding alone */
        spec->num_sequences = 0;
        spec->padded = 2;
    }
}

CHECK_RUN(linear_padded, linear_run_case(run, change_padded))

/* ---- Table ----------------------------------------------------------------------------------- */

#define CASES(name, number)                                                                        \
    static int32_t count_##name(const struct check_subject *subject)                               \
    {                                                                                              \
        int32_t all = (subject->exhaustive ? 20 : 1) * (number);                                   \
        return linear_families(subject) ? all * linear_count_families(subject) : 1;                \
    }

CASES(linear_sequel, 4)
CASES(linear_contents, 3)
CASES(linear_other_bounds, 2 * TWO_METADATA_WAYS)
CASES(linear_layers, 3)
CASES(state_groups, 2 * (LINEAR_STATE_GROUPS - 1))
CASES(linear_padded, 2 * MODES)

const struct check check_linear_sequel[] = {
    CHECK_CASES("INVAR-01", linear_sequel,
                "calls of linear layers do not change the results of later calls"),
    CHECK_CASES("INVAR-01", linear_layers,
                "linear layers of one batch share its rows and slots alone"),
    CHECK_CASES("KV-12", state_groups,
                "linear layers of one batch have the slots of their state groups"),
    CHECK_CASES("LIFE-05", linear_other_bounds,
                "linear layers: a planned batch does not change when there is another metadata"),
    CHECK_CASES("LIFE-06", linear_contents,
                "a batch at the same addresses as before is planned anew"),
    CHECK_CASES("CAPT-04", linear_padded, "padding is finite and changes nothing, in every mode"),
    {.rule = NULL},
};
