/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_bench.c: from a linear spec to a verdict.
 */
#include "host/check/cases/linear_bench.h"

#include "host/check/cases/numerics.h"
#include "host/check/trail.h"
#include "host/base/error.h"
#include "host/base/mix.h"
#include "host/select/select.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRIES = 80 };

/* ---- Specs that are accepted ----------------------------------------------------------------- */

bool linear_accepts(const struct check_subject *subject, const struct linear_spec *spec,
                    char *reason)
{
    struct linear_posed posed;
    attn_reason first = {.struct_size = sizeof first};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 1, .reasons = &first};
    host_error error;
    host_error_init(&error);
    linear_pose(&posed, spec, &subject->device->info);
    attn_status status = subject->type->query(subject->type, subject->options, subject->services,
                                              &posed.problem, &verdict, &error.base);
    check_trail_live(subject->trail);
    if (status != ATTN_OK)
        snprintf(reason, LINEAR_TEXT, "query: %s", host_error_text(&error));
    else if (!verdict.supported)
        select_reason_text(&first, reason, LINEAR_TEXT);
    return status == ATTN_OK && verdict.supported;
}

bool linear_find(const struct check_subject *subject, uint32_t family, uint64_t seed,
                 linear_change change, int32_t index, struct linear_spec *spec, char *reason)
{
    for (uint64_t n = 0; n < TRIES; n++) {
        char last[LINEAR_TEXT];
        linear_spec_draw(spec, family, mix_absorb(seed, n));
        if (change)
            change(spec, index);
        if (linear_accepts(subject, spec, n == 0 ? reason : last))
            return true;
    }
    return false;
}

static uint32_t ask_families(const struct check_subject *subject)
{
    uint32_t set = 0;
    struct linear_spec spec;
    char reason[LINEAR_TEXT];
    for (uint32_t family = 0; family < ATTN_LINEAR_COUNT; family++)
        if (linear_find(subject, family, 1, NULL, 0, &spec, reason))
            set |= 1u << family;
    return set;
}

uint32_t linear_families(const struct check_subject *subject)
{
    uint32_t *kept = subject->linear_families;
    uint32_t set = kept && *kept != LINEAR_UNASKED ? *kept : ask_families(subject);
    if (kept)
        *kept = set;
    return set;
}

int32_t linear_count_families(const struct check_subject *subject)
{
    int32_t count = __builtin_popcount(linear_families(subject));
    return count > 0 ? count : 1;
}

uint32_t linear_family_at(uint32_t set, int32_t index)
{
    for (uint32_t family = 0; family < ATTN_LINEAR_COUNT; family++)
        if (set >> family & 1 && index-- == 0)
            return family;
    return ATTN_LINEAR_COUNT;
}

bool linear_find_case(struct check_run *run, linear_change change, struct linear_spec *spec)
{
    uint32_t set = linear_families(run->subject);
    char reason[LINEAR_TEXT] = "";
    int32_t count = __builtin_popcount(set);
    uint32_t family = count > 0 ? linear_family_at(set, run->index % count) : ATTN_LINEAR_GDN;
    if (linear_find(run->subject, family, run->seed, change, count > 0 ? run->index / count : 0,
                    spec, reason))
        return true;
    check_skip(run, "%s", reason);
    return false;
}

void linear_set_extend(struct linear_spec *spec, int32_t num_sequences,
                       const struct linear_case_sequence *sequences)
{
    spec->mode = ATTN_MODE_EXTEND;
    spec->snapshots = false;
    spec->absent = 0;
    spec->sparse = spec->cuts = 0;
    spec->num_sequences = num_sequences;
    memcpy(spec->sequences, sequences, (size_t)num_sequences * sizeof *sequences);
}

void linear_set_many(struct linear_spec *spec, int32_t index)
{
    static const struct linear_case_sequence many[LINEAR_MANY] = {
        {.rows = 5, .has_initial = true, .in_place = true},
        {.rows = 67, .has_initial = true},
        {.rows = 0, .has_initial = true},
        {.rows = 1, .has_initial = true},
        {.rows = 20},
        {.rows = 1}};
    (void)index;
    linear_set_extend(spec, LINEAR_MANY, many);
}

/* ---- A case ---------------------------------------------------------------------------------- */

void linear_report(struct check_run *run, const struct linear_spec *spec, attn_status status,
                   const char *text)
{
    char what[LINEAR_TEXT];
    linear_spec_describe(spec, what, sizeof what);
    if (status == ATTN_DEPENDENCY_MISSING)
        check_skip(run, "%s", text);
    else if (status == ATTN_OUT_OF_DEVICE_MEMORY || status == ATTN_OUT_OF_HOST_MEMORY)
        check_skip(run, "%s; %s", text, what);
    else
        check_fail(run, "%s; %s", text, what);
}

/* `status` was OK; if not, it is reported. */
static bool passed(const struct linear_bench *bench, attn_status status, const host_error *error)
{
    if (status != ATTN_OK)
        linear_report(bench->run, bench->spec, status, host_error_text(error));
    return status == ATTN_OK;
}

bool linear_bench_make(struct linear_bench *bench, struct check_run *run,
                       const struct linear_spec *spec)
{
    char what[LINEAR_TEXT];
    host_error error;
    host_error_init(&error);
    *bench = (struct linear_bench){.run = run, .spec = spec};
    linear_spec_describe(spec, what, sizeof what);
    check_note(run, "%s", what);
    return passed(bench,
                  linear_case_create(spec, run->seed, run->subject->device, &bench->c, &error.base),
                  &error);
}

bool linear_bench_open(struct linear_bench *bench, struct check_run *run,
                       const struct linear_spec *spec)
{
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER, .exact_memory = true};
    if (linear_bench_make(bench, run, spec) &&
        linear_bench_session(bench, run->subject, &setup, &bench->session) &&
        linear_bench_reset(bench))
        return true;
    linear_bench_close(bench);
    return false;
}

void linear_bench_close(struct linear_bench *bench)
{
    case_session_destroy(bench->session);
    linear_case_destroy(bench->c);
}

bool linear_bench_session(const struct linear_bench *bench, const struct check_subject *subject,
                          const struct case_setup *setup, struct case_session **session)
{
    struct case_backend backend = numerics_backend(subject, NULL);
    host_error error;
    host_error_init(&error);
    *session = NULL;
    return passed(bench,
                  session_create(&backend, linear_case_problem(bench->c), subject->device, setup,
                                 session, &error.base),
                  &error);
}

bool linear_bench_forward(struct linear_bench *bench, const struct linear_part *part)
{
    host_error error;
    host_error_init(&error);
    return passed(bench, linear_case_forward(bench->c, bench->session, part, &error.base), &error);
}

/* Is the state rounded where it is stored? Then it is judged from one store to the next. */
static bool rounds(const struct linear_bench *bench)
{
    return bench->spec->state_dtype != ATTN_F32;
}

bool linear_bench_part(struct linear_bench *bench, const struct linear_part *part)
{
    char text[LINEAR_TEXT];
    if (!rounds(bench))
        return linear_bench_forward(bench, part);
    bool good = linear_case_judge_part(bench->c, bench->session, part, text, sizeof text);
    if (!good)
        linear_report(bench->run, bench->spec, ATTN_OK, text);
    return good;
}

bool linear_bench_judge_parts(struct linear_bench *bench)
{
    return rounds(bench) || linear_bench_judge(bench, false);
}

bool linear_bench_reset(struct linear_bench *bench)
{
    host_error error;
    host_error_init(&error);
    return passed(bench, linear_case_reset(bench->c, bench->session, &error.base), &error);
}

bool linear_bench_judge(struct linear_bench *bench, bool whole)
{
    char text[LINEAR_TEXT];
    bool good = linear_case_judge(bench->c, bench->session, whole, text, sizeof text);
    if (!good) {
        struct check_run *run = bench->run;
        bool is_first = run->code == CHECK_PASS;
        linear_report(run, bench->spec, ATTN_OK, text);
        size_t length = strlen(run->text);
        linear_case_operands(bench->c, text, sizeof text);
        if (is_first)
            snprintf(run->text + length, sizeof run->text - length, "%s", text);
    }
    return good;
}

void *linear_bench_copy(const struct linear_bench *bench)
{
    uint64_t size;
    const void *bytes = linear_case_bytes(bench->c, &size);
    void *copy = malloc(size);
    if (copy)
        memcpy(copy, bytes, size);
    else
        linear_report(bench->run, bench->spec, ATTN_OUT_OF_HOST_MEMORY, "no memory for a copy");
    return copy;
}

bool linear_bench_repeat(struct linear_bench *bench, const void *bytes, const char *text)
{
    uint64_t size;
    const void *now = linear_case_bytes(bench->c, &size);
    host_error error;
    host_error_init(&error);
    if (!linear_bench_reset(bench) || !linear_bench_forward(bench, NULL) ||
        !passed(bench, linear_case_fetch(bench->c, bench->session, &error.base), &error))
        return false;
    if (memcmp(bytes, now, size) == 0)
        return true;
    char where[LINEAR_TEXT / 2], all[LINEAR_TEXT];
    linear_case_tell_difference(bench->c, bytes, where, sizeof where);
    snprintf(all, sizeof all, "%s: %s", text, where);
    linear_report(bench->run, bench->spec, ATTN_OK, all);
    return false;
}

/* Repetition `n` of a batch whose first run left these bytes; NULL = none are promised. */
static bool repeat(struct linear_bench *bench, const void *first, int32_t n, int32_t count)
{
    char what[LINEAR_TEXT / 2], text[LINEAR_TEXT / 2];
    linear_spec_describe(bench->spec, what, sizeof what);
    check_note(bench->run, "repetition %d of %d; %s", n, count, what);
    if (!first)
        return linear_bench_reset(bench) && linear_bench_forward(bench, NULL) &&
               linear_bench_judge(bench, true);
    snprintf(text, sizeof text,
             "INVAR-02: repetition %d of %d gives other bits than the first run, and DETERMINISTIC "
             "is declared",
             n, count);
    return linear_bench_repeat(bench, first, text);
}

static void repeat_all(struct linear_bench *bench)
{
    bool same = case_session_verdict(bench->session)->notes & ATTN_NOTE_DETERMINISTIC;
    int32_t count = bench->run->subject->repeat;
    count = same && count < 2 ? 2 : count;
    void *first = same ? linear_bench_copy(bench) : NULL;
    bool good = first || !same;
    for (int32_t n = 2; n <= count && good; n++)
        good = repeat(bench, first, n, count);
    free(first);
}

void linear_run_spec(struct check_run *run, const struct linear_spec *spec)
{
    struct linear_bench bench;
    if (!linear_bench_open(&bench, run, spec))
        return;
    if (linear_bench_forward(&bench, NULL) && linear_bench_judge(&bench, true))
        repeat_all(&bench);
    linear_bench_close(&bench);
}

void linear_run_case(struct check_run *run, linear_change change)
{
    struct linear_spec spec;
    if (linear_find_case(run, change, &spec))
        linear_run_spec(run, &spec);
}
