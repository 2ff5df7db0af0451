/* SPDX-License-Identifier: Apache-2.0
 *
 * check_linear.c: linear layers as they are meant, against the oracle: the recurrences, their
 * slots, and that it does not matter how a sequence is cut.
 */
#include "host/check/linear_case.h"
#include "host/check/numerics.h"

#include "host/error.h"
#include "host/mix.h"
#include "host/select.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAMILY_CASES = 24, RANDOM_CASES = 60, TRIES = 80, TEXT = 700 };

/* ---- Specs that are accepted ----------------------------------------------------------------- */

/* Does query accept the spec? If not, `reason` (of TEXT) says why. */
static bool accepts(const struct check_subject *subject, const struct linear_spec *spec,
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
    if (status != ATTN_OK)
        snprintf(reason, TEXT, "query: %s", host_error_text(&error));
    else if (!verdict.supported)
        select_reason_text(&first, reason, TEXT);
    return status == ATTN_OK && verdict.supported;
}

/* What a check changes in the spec that was drawn for a case; NULL = nothing. */
typedef void (*spec_change)(struct linear_spec *spec, int32_t index);

/* The first spec of a family that is accepted, of those that the seed gives. */
static bool find_spec(const struct check_subject *subject, uint32_t family, uint64_t seed,
                      spec_change change, int32_t index, struct linear_spec *spec, char *reason)
{
    for (uint64_t n = 0; n < TRIES; n++) {
        char last[TEXT];
        linear_spec_draw(spec, family, mix_absorb(seed, n));
        if (change)
            change(spec, index);
        if (accepts(subject, spec, n == 0 ? reason : last))
            return true;
    }
    return false;
}

/* Families of which something is accepted: a set of bits. */
static uint32_t families(const struct check_subject *subject)
{
    uint32_t set = 0;
    struct linear_spec spec;
    char reason[TEXT];
    for (uint32_t family = 0; family < ATTN_LINEAR_COUNT; family++)
        if (find_spec(subject, family, 1, NULL, 0, &spec, reason))
            set |= 1u << family;
    return set;
}

/* Family `index` of those of the set; ATTN_LINEAR_COUNT = there are not so many. */
static uint32_t nth_family(uint32_t set, int32_t index)
{
    for (uint32_t family = 0; family < ATTN_LINEAR_COUNT; family++)
        if (set >> family & 1 && index-- == 0)
            return family;
    return ATTN_LINEAR_COUNT;
}

/* ---- A case ---------------------------------------------------------------------------------- */

static void report(struct check_run *run, const struct linear_spec *spec, attn_status status,
                   const char *text)
{
    char what[TEXT];
    linear_spec_describe(spec, what, sizeof what);
    if (status == ATTN_DEPENDENCY_MISSING)
        check_skip(run, "%s", text);
    else if (status == ATTN_OUT_OF_DEVICE_MEMORY || status == ATTN_OUT_OF_HOST_MEMORY)
        check_skip(run, "%s; %s", text, what);
    else
        check_fail(run, "%s; %s", text, what);
}

/* A case and a session for it. */
struct bench {
    struct linear_case *c;
    struct case_session *session;
};

static void bench_close(struct bench *bench)
{
    case_session_destroy(bench->session);
    linear_case_destroy(bench->c);
}

static bool bench_open(struct bench *bench, struct check_run *run, const struct linear_spec *spec)
{
    const struct case_setup setup = {.kind = ATTN_METADATA_EAGER, .exact_memory = true};
    struct case_backend backend = numerics_backend(run->subject, NULL);
    char what[TEXT];
    host_error error;
    host_error_init(&error);
    *bench = (struct bench){NULL, NULL};
    linear_spec_describe(spec, what, sizeof what);
    check_note(run, "%s", what);
    attn_status status =
        linear_case_create(spec, run->seed, run->subject->device, &bench->c, &error.base);
    if (status == ATTN_OK)
        status = session_create(&backend, linear_case_problem(bench->c), run->subject->device,
                                &setup, &bench->session, &error.base);
    if (status == ATTN_OK)
        status = linear_case_reset(bench->c, bench->session, &error.base);
    if (status == ATTN_OK)
        return true;
    report(run, spec, status, host_error_text(&error));
    bench_close(bench);
    return false;
}

static bool forward(struct check_run *run, struct bench *bench, const struct linear_spec *spec,
                    const struct linear_part *part)
{
    host_error error;
    host_error_init(&error);
    attn_status status = linear_case_forward(bench->c, bench->session, part, &error.base);
    if (status != ATTN_OK)
        report(run, spec, status, host_error_text(&error));
    return status == ATTN_OK;
}

static bool judge(struct check_run *run, struct bench *bench, const struct linear_spec *spec,
                  bool whole)
{
    char text[TEXT];
    bool good = linear_case_judge(bench->c, bench->session, whole, text, sizeof text);
    if (!good)
        report(run, spec, ATTN_OK, text);
    return good;
}

/* Forwarded once more, it has the same bits, if that is promised. */
static void repeat(struct check_run *run, struct bench *bench, const struct linear_spec *spec)
{
    uint64_t size;
    const void *bytes = linear_case_bytes(bench->c, &size);
    void *first = malloc(size);
    if (!(case_session_verdict(bench->session)->notes & ATTN_NOTE_DETERMINISTIC) || !first) {
        free(first);
        return;
    }
    memcpy(first, bytes, size);
    host_error error;
    host_error_init(&error);
    if (linear_case_reset(bench->c, bench->session, &error.base) == ATTN_OK &&
        forward(run, bench, spec, NULL) && judge(run, bench, spec, true) &&
        memcmp(first, bytes, size) != 0)
        report(run, spec, ATTN_OK, "the same batch gave other bits the second time");
    free(first);
}

static void run_spec(struct check_run *run, const struct linear_spec *spec)
{
    struct bench bench;
    if (!bench_open(&bench, run, spec))
        return;
    if (forward(run, &bench, spec, NULL) && judge(run, &bench, spec, true))
        repeat(run, &bench, spec);
    bench_close(&bench);
}

/* ---- Families -------------------------------------------------------------------------------- */

/* Every mode, in both layouts. */
static void vary_mode(struct linear_spec *spec, int32_t index)
{
    static const uint32_t modes[] = {ATTN_MODE_EXTEND, ATTN_MODE_DECODE, ATTN_MODE_TARGET_VERIFY,
                                     ATTN_MODE_EXTEND, ATTN_MODE_MIXED,  ATTN_MODE_DRAFT_EXTEND};
    spec->vk = index / 6 % 2;
    if (spec->mode == modes[index % 6])
        return;
    spec->mode = modes[index % 6];
    spec->first_row = spec->mode == ATTN_MODE_DECODE ? 0 : spec->first_row;
    spec->snapshots = spec->mode == ATTN_MODE_TARGET_VERIFY;
    for (int32_t s = 0; s < spec->num_sequences; s++)
        if (spec->mode == ATTN_MODE_DECODE ||
            (spec->mode == ATTN_MODE_MIXED && s == spec->num_sequences - 1))
            spec->sequences[s].rows = 1;
}

static void run_family(struct check_run *run, uint32_t family)
{
    struct linear_spec spec;
    char reason[TEXT] = "";
    if (!find_spec(run->subject, family, run->seed, vary_mode, run->index, &spec, reason) &&
        !find_spec(run->subject, family, run->seed, NULL, run->index, &spec, reason))
        check_skip(run, "%s", reason);
    else
        run_spec(run, &spec);
}

#define FAMILY(name, family)                                                                       \
    static int32_t count_##name(const struct check_subject *subject)                               \
    {                                                                                              \
        return families(subject) >> (family)&1 ? FAMILY_CASES : 1;                                 \
    }                                                                                              \
    static void run_##name(struct check_run *run)                                                  \
    {                                                                                              \
        run_family(run, family);                                                                   \
    }

FAMILY(linear_gdn, ATTN_LINEAR_GDN)
FAMILY(linear_ssd, ATTN_LINEAR_MAMBA2)
FAMILY(linear_kda, ATTN_LINEAR_KDA)
FAMILY(linear_lightning, ATTN_LINEAR_LIGHTNING)
FAMILY(linear_short_conv, ATTN_LINEAR_SHORT_CONV)

/* ---- Cases of every family ------------------------------------------------------------------- */

static int32_t count_families(const struct check_subject *subject)
{
    int32_t count = __builtin_popcount(families(subject));
    return count > 0 ? count : 1;
}

/* Case run->index: family index % families, variant index / families. False: skipped. */
static bool find_case(struct check_run *run, spec_change change, struct linear_spec *spec)
{
    uint32_t set = families(run->subject);
    char reason[TEXT] = "";
    int32_t count = __builtin_popcount(set);
    uint32_t family = count > 0 ? nth_family(set, run->index % count) : ATTN_LINEAR_GDN;
    if (find_spec(run->subject, family, run->seed, change, count > 0 ? run->index / count : 0, spec,
                  reason))
        return true;
    check_skip(run, "%s", reason);
    return false;
}

static void set_extend(struct linear_spec *spec, int32_t num_sequences,
                       const struct linear_case_sequence *sequences)
{
    spec->mode = ATTN_MODE_EXTEND;
    spec->snapshots = spec->absent_arrays = false;
    spec->num_sequences = num_sequences;
    memcpy(spec->sequences, sequences, (size_t)num_sequences * sizeof *sequences);
}

static void change_slots(struct linear_spec *spec, int32_t index)
{
    static const struct linear_case_sequence sequences[] = {
        {.rows = 5, .has_initial = true, .in_place = true},
        {.rows = 0, .has_initial = true},
        {.rows = 0},
        {.rows = 3, .has_initial = true, .dropped = true},
        {.rows = 70},
        {.rows = 1, .has_initial = true},
        {.rows = 0, .has_initial = true, .in_place = true},
        {.rows = 2, .in_place = true}};
    (void)index;
    set_extend(spec, 8, sequences);
}

static void change_snapshots(struct linear_spec *spec, int32_t index)
{
    static const struct linear_case_sequence sequences[] = {
        {.rows = 4, .has_initial = true},
        {.rows = 7, .has_initial = true, .in_place = true},
        {.rows = 1}};
    (void)index;
    set_extend(spec, 3, sequences);
    spec->mode = ATTN_MODE_TARGET_VERIFY;
    spec->snapshots = true;
}

static void change_padding(struct linear_spec *spec, int32_t index)
{
    static const struct linear_case_sequence sequences[] = {{.rows = 1, .has_initial = true},
                                                            {.rows = 1, .in_place = true}};
    set_extend(spec, 2, sequences);
    spec->mode = index % 2 ? ATTN_MODE_EXTEND : ATTN_MODE_DECODE;
    spec->first_row = 0;
    spec->padded = 6;
}

static void run_linear_slots(struct check_run *run)
{
    struct linear_spec spec;
    if (find_case(run, change_slots, &spec))
        run_spec(run, &spec);
}

static void run_linear_snapshots(struct check_run *run)
{
    struct linear_spec spec;
    if (find_case(run, change_snapshots, &spec))
        run_spec(run, &spec);
}

static int32_t count_padding(const struct check_subject *subject)
{
    return 2 * count_families(subject);
}

static void run_linear_padding(struct check_run *run)
{
    struct linear_spec spec;
    if (find_case(run, change_padding, &spec))
        run_spec(run, &spec);
}

/* ---- Splits ---------------------------------------------------------------------------------- */

enum { SPLIT_DECODE, SPLIT_SINGLE, SPLIT_HALF, SPLIT_CHUNK, SPLIT_RANDOM, SPLIT_TAIL, SPLITS };

/* In fp32, so that a hand-over rounds nothing that the oracle does not round. */
static void change_split(struct linear_spec *spec, int32_t index)
{
    static const struct linear_case_sequence sequences[] = {
        {.rows = 130, .has_initial = true},
        {.rows = 65, .in_place = true},
        {.rows = 0, .has_initial = true},
        {.rows = 9, .has_initial = true, .in_place = true}};
    bool decodes = index == SPLIT_DECODE || index == SPLIT_TAIL;
    set_extend(spec, 4, sequences);
    spec->padded = 0;
    spec->modes = decodes ? ATTN_MODE_BIT(ATTN_MODE_DECODE) : 0;
    spec->state_dtype = ATTN_F32;
    spec->conv_dtype = spec->q_dtype;
}

/* Rows of the next part, of `left`. */
static int32_t part_rows(int32_t split, int32_t first, int32_t left, uint64_t seed)
{
    int32_t rows = left;
    if (split == SPLIT_DECODE || split == SPLIT_SINGLE)
        rows = 1;
    else if (split == SPLIT_HALF)
        rows = first == 0 ? (left + 1) / 2 : left;
    else if (split == SPLIT_CHUNK)
        rows = 64;
    else if (split == SPLIT_RANDOM)
        rows = 1 + (int32_t)mix_below((uint32_t)(mix_stream(seed, (uint64_t)first) >> 32), 40);
    else if (left > 5)
        rows = left - 5;
    else
        rows = 1;
    return rows < left ? rows : left;
}

static bool run_parts(struct check_run *run, struct bench *bench, const struct linear_spec *spec,
                      int32_t split)
{
    for (int32_t s = 0; s < spec->num_sequences; s++) {
        int32_t first = 0, all = spec->sequences[s].rows;
        do {
            int32_t rows = all > 0 ? part_rows(split, first, all - first, run->seed) : 0;
            struct linear_part part = {.sequence = s, .first = first, .rows = rows};
            part.decode = rows == 1 && (split == SPLIT_DECODE || split == SPLIT_TAIL);
            if (!forward(run, bench, spec, &part))
                return false;
            first += rows;
        } while (first < all);
    }
    return true;
}

static int32_t count_splits(const struct check_subject *subject)
{
    return SPLITS * count_families(subject);
}

static void run_linear_splits(struct check_run *run)
{
    struct linear_spec spec;
    struct bench bench;
    int32_t count = count_families(run->subject), split = run->index / count;
    if (!find_case(run, change_split, &spec))
        return;
    if (!bench_open(&bench, run, &spec))
        return;
    if (run_parts(run, &bench, &spec, split))
        judge(run, &bench, &spec, false);
    bench_close(&bench);
}

/* ---- Anything -------------------------------------------------------------------------------- */

static int32_t count_random(const struct check_subject *subject)
{
    int32_t count = subject->exhaustive ? 40 * RANDOM_CASES : RANDOM_CASES;
    return families(subject) ? count : 1;
}

/* Complications that are left out to make a failing case smaller. */
static void leave_out(struct linear_spec *spec, uint32_t without)
{
    if (without & 1)
        spec->padded = 0;
    if (without & 2)
        spec->first_row = 0;
    if (without & 4)
        spec->snapshots = false;
    if (without & 8)
        spec->gap = 0;
    if (without & 16)
        spec->z = spec->bias = false;
    if (without & 32)
        spec->num_sequences = 1;
}

static void run_linear_random(struct check_run *run)
{
    struct linear_spec spec;
    uint32_t set = families(run->subject);
    char reason[TEXT] = "";
    uint32_t family =
        set ? nth_family(set, (int32_t)(run->seed % (uint32_t)__builtin_popcount(set)))
            : ATTN_LINEAR_GDN;
    if (!find_spec(run->subject, family, run->seed, NULL, 0, &spec, reason)) {
        check_skip(run, "%s", reason);
        return;
    }
    leave_out(&spec, run->without);
    run_spec(run, &spec);
}

/* ---- Missing operands ------------------------------------------------------------------------ */

static const char *const role_names[] = {
#define NAME(name, value, text) [value] = text,
    ATTN_ROLE_MAP(NAME)
#undef NAME
};

static void run_linear_roles(struct check_run *run)
{
    struct linear_spec spec;
    struct bench bench;
    if (!find_case(run, change_slots, &spec) || !bench_open(&bench, run, &spec))
        return;
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        host_error error;
        host_error_init(&error);
        if (!linear_case_needs(bench.c, role))
            continue;
        attn_status status = linear_case_try_without(bench.c, bench.session, role, &error.base);
        if (status != ATTN_INVALID_ARGUMENT || !strstr(host_error_text(&error), role_names[role]))
            check_fail(run,
                       "a forward without %s gives %s %s: accepted INVALID_ARGUMENT with its name",
                       role_names[role], host_status_name(status), host_error_text(&error));
        session_begin_anew(bench.session);
    }
    bench_close(&bench);
}

/* ---- Table ----------------------------------------------------------------------------------- */

#define ROW(rule, name, counter, sentence)                                                         \
    {                                                                                              \
        rule, #name, sentence, CHECK_NEEDS_COMPUTE, counter, run_##name                            \
    }

const struct check check_linear[] = {
    ROW("MEAN-18", linear_gdn, count_linear_gdn, "gated delta net is its recurrence"),
    ROW("MEAN-18", linear_ssd, count_linear_ssd, "Mamba2 is its recurrence"),
    ROW("MEAN-18", linear_kda, count_linear_kda, "Kimi delta attention is its recurrence"),
    ROW("MEAN-18", linear_lightning, count_linear_lightning,
        "lightning attention is its recurrence"),
    ROW("MEAN-18", linear_short_conv, count_linear_short_conv,
        "a short convolution sees its last inputs, those of its state first"),
    ROW("KV-09", linear_slots, count_families,
        "states are read from slot and written to dst_slot, in place or not, without rows too"),
    ROW("KV-09", linear_snapshots, count_families,
        "a snapshot is the state after its row, and changes nothing"),
    ROW("KV-09", linear_padding, count_padding, "rows of padding change nothing"),
    ROW("INVAR-01", linear_splits, count_splits,
        "a sequence may be cut anywhere: its state goes on from part to part"),
    {"INVAR-01", "linear_random", "whatever query accepts of linear layers computes them right",
     CHECK_NEEDS_COMPUTE | CHECK_FUZZABLE, count_random, run_linear_random},
    ROW("ERR-05", linear_roles, count_families,
        "a linear layer's operand that is missing is named"),
    {NULL, NULL, NULL, 0, NULL, NULL},
};
