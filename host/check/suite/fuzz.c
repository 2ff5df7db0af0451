/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz.c: the fuzzing loop, and the shrinking of a failure.
 */
#include "host/check/suite/fuzz.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "host/check/suite/json.h"
#include "host/check/suite/suite.h"
#include "host/base/output.h"
#include "host/base/clock.h"
#include "host/base/error.h"
#include "host/base/mix.h"

enum {
    MAX_FAILURES = 10,     /* then it is enough */
    NUM_COMPLICATIONS = 32 /* bits of check_run.without */
};

/* A check on a backend. */
struct target {
    const struct check_backend *backend;
    const struct check *check;
};

struct fuzz {
    struct suite suite;
    const struct check_params *params;
    FILE *out;
    struct target *targets;
    size_t num_targets;
    uint64_t chunks;
    int failures;
};

/* ---- Targets --------------------------------------------------------------------------------- */

/* Can the check be made on this backend here? */
static bool is_possible(struct fuzz *fuzz, const struct check_backend *backend,
                        const struct check *check)
{
    char id[CASE_ID_SIZE];
    struct sandbox_reply reply;
    case_id_write(id, backend->name, check, -1);
    sandbox_ask(&fuzz->suite.sandbox, suite_question("count", "id", id, backend->device), &reply);
    suite_note_end(&fuzz->suite, &reply);
    bool possible = reply.end == SANDBOX_ANSWERED &&
                    json_number(reply.answer, "outcome") == CHECK_GOOD &&
                    !*json_text(reply.answer, "skip");
    sandbox_reply_finish(&reply);
    return possible;
}

static void add_targets(struct fuzz *fuzz, const struct check_backend *backend)
{
    for (const struct check *const *group = check_groups(); *group; group++)
        for (const struct check *check = *group; check->rule; check++) {
            if (!(check->needs & CHECK_FUZZABLE) || !is_possible(fuzz, backend, check))
                continue;
            struct target *targets =
                realloc(fuzz->targets, (fuzz->num_targets + 1) * sizeof *targets);
            if (!targets)
                return;
            fuzz->targets = targets;
            targets[fuzz->num_targets++] = (struct target){backend, check};
        }
}

static void find_targets(struct fuzz *fuzz)
{
    char why[512];
    struct check_report *report = fuzz->suite.report;
    for (size_t b = 0; b < report->num_backends && !fuzz->suite.stopped; b++)
        if (suite_subject(&fuzz->suite, &report->backends[b], why))
            add_targets(fuzz, &report->backends[b]);
}

/* ---- A failure ------------------------------------------------------------------------------- */

static enum check_code run_alone(struct fuzz *fuzz, const struct suite_case *what)
{
    struct check_result result;
    sandbox_kill(&fuzz->suite.sandbox);
    suite_run_case(&fuzz->suite, what, &result);
    enum check_code code = result.code;
    suite_result_finish(&result);
    return code;
}

/* Leave out one complication after the other as long as it fails in the same way. A case that hangs
 * is not reduced, as each attempt would take the full limit. */
static void shrink(struct fuzz *fuzz, struct suite_case *what, enum check_code code)
{
    for (int bit = 0; bit < NUM_COMPLICATIONS && code != CHECK_TIMEOUT && !fuzz->suite.stopped;
         bit++) {
        struct suite_case smaller = *what;
        smaller.without |= UINT32_C(1) << bit;
        if (run_alone(fuzz, &smaller) == code)
            *what = smaller;
    }
}

static void write_down(struct fuzz *fuzz, const struct suite_case *what, const char *id)
{
    char path[4096];
    const char *folder = fuzz->params->output ? fuzz->params->output : ".";
    snprintf(path, sizeof path, "%s/fuzz-%s-%s.%s-%016llx.replay", folder, what->backend,
             what->check->rule, what->check->name, (unsigned long long)what->seed);
    char why[160];
    struct output output;
    bool may = output_prepare(&output, path, why);
    FILE *file = may ? output_open(&output) : NULL;
    if (file)
        replay_write(fuzz->params, id, what->seed, what->without, what->device, file);
    if (!file || output_close(&output, true) != 0)
        fprintf(fuzz->out, "  cannot be written: %s: %s\n", path, may ? strerror(errno) : why);
    else
        fprintf(fuzz->out, "  attnhost check --replay %s\n", path);
}

static void take_failure(struct fuzz *fuzz, struct suite_case *what,
                         const struct check_result *result)
{
    fuzz->failures++;
    fprintf(fuzz->out, "%s seed %llu: %s: %s\n", result->id, (unsigned long long)what->seed,
            check_code_name(result->code), result->text);
    if (result->trail && *result->trail)
        fprintf(fuzz->out, "  where: %s\n", result->trail);
    enum check_code again = run_alone(fuzz, what);
    if (again == result->code)
        shrink(fuzz, what, again);
    else
        fprintf(fuzz->out, "  run alone, it is %s\n", check_code_name(again));
    write_down(fuzz, what, result->id);
    fflush(fuzz->out);
}

/* ---- Chunks ---------------------------------------------------------------------------------- */

static void run_chunk(struct fuzz *fuzz, uint64_t chunk)
{
    struct check_result result;
    uint64_t seed = mix_stream(mix_word(fuzz->params->seed), chunk);
    uint64_t choice = mix_below((uint32_t)(mix_word(seed) >> 32), fuzz->num_targets);
    const struct target *target = &fuzz->targets[choice];
    struct suite_case what = {.backend = target->backend->name,
                              .check = target->check,
                              .index = -1,
                              .seed = seed,
                              .device = target->backend->device};
    suite_run_case(&fuzz->suite, &what, &result);
    if (!fuzz->suite.stopped) {
        fuzz->chunks++;
        if (check_code_fails(result.code))
            take_failure(fuzz, &what, &result);
    }
    suite_result_finish(&result);
}

static void run_chunks(struct fuzz *fuzz)
{
    int64_t start = clock_now_ns(), end = start + (int64_t)(fuzz->params->time * 1e9);
    char note[64];
    progress_begin(&fuzz->suite.progress, "seconds", (int64_t)fuzz->params->time);
    for (uint64_t n = 0; clock_now_ns() < end && fuzz->failures < MAX_FAILURES; n++) {
        run_chunk(fuzz, n);
        snprintf(note, sizeof note, "%llu chunks, %d failed", (unsigned long long)fuzz->chunks,
                 fuzz->failures);
        progress_update(&fuzz->suite.progress, (clock_now_ns() - start) / 1000000000, note);
        if (fuzz->suite.stopped)
            break;
    }
    progress_end(&fuzz->suite.progress);
    fprintf(fuzz->out, "chunks %llu in %.1f s, %d failed\n", (unsigned long long)fuzz->chunks,
            (double)(clock_now_ns() - start) * 1e-9, fuzz->failures);
}

static enum check_outcome outcome_of(const struct fuzz *fuzz, attn_error *error)
{
    const struct check_report *report = fuzz->suite.report;
    if (fuzz->suite.sandbox.interrupted)
        return CHECK_NOTHING;
    if (fuzz->suite.outcome != CHECK_GOOD)
        return host_fail(error, ATTN_INTERNAL, "%s", fuzz->suite.why), fuzz->suite.outcome;
    if (report->refused)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "%s", report->refused), CHECK_REFUSED;
    if (fuzz->failures || (fuzz->suite.stopped && report->num_results))
        return CHECK_FAILURES;
    if (!fuzz->num_targets)
        return host_fail(error, ATTN_UNSUPPORTED, "no check of this plugin can be fuzzed here"),
               CHECK_NOTHING;
    return CHECK_GOOD;
}

enum check_outcome fuzz_run(const struct check_params *params, struct check_report *report,
                            FILE *out, attn_error *error)
{
    struct fuzz fuzz = {.params = params, .out = out};
    suite_open(&fuzz.suite, params, report);
    find_targets(&fuzz);
    if (fuzz.num_targets && !fuzz.suite.stopped)
        run_chunks(&fuzz);
    enum check_outcome outcome = outcome_of(&fuzz, error);
    suite_finish(&fuzz.suite);
    free(fuzz.targets);
    return outcome;
}
