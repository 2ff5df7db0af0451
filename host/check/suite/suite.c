/* SPDX-License-Identifier: Apache-2.0
 *
 * suite.c: the order of checks, and the results of each.
 */
#include "host/check/suite/suite.h"

#include <poll.h>
#include <stdarg.h>
#include <string.h>

#include "host/check/suite/json.h"
#include "host/check/suite/shards.h"
#include "host/base/clock.h"
#include "host/base/error.h"

/* After this many hangs no more cases of a check are run. */
enum { MAX_HUNG = 3 };

/* ---- Filters --------------------------------------------------------------------------------- */

bool suite_wants(const struct suite *suite, const char *id)
{
    const struct text_list *filters = &suite->params->filters;
    bool wanted = filters->count == 0;
    for (size_t f = 0; f < filters->count && !wanted; f++)
        wanted = case_id_matches(filters->items[f], id);
    return wanted;
}

static bool may_want(const struct suite *suite, const char *check_id)
{
    const struct text_list *filters = &suite->params->filters;
    bool possible = filters->count == 0;
    for (size_t f = 0; f < filters->count && !possible; f++)
        possible = case_id_may_match(filters->items[f], check_id);
    return possible;
}

/* ---- Results --------------------------------------------------------------------------------- */

void suite_list(struct suite *suite, const struct check_result *result)
{
    fprintf(suite->list, "%s %016llx %s\n", result->id, (unsigned long long)result->seed,
            result->check->sentence);
    suite->listed++;
}

/* Put it into the report; a failure may be the end, and when the time is over it is. */
static void report_result(struct suite *suite, const struct check_result *result)
{
    struct check_report *report = suite->report;
    check_report_add(report, result);
    bool fails =
        report->num_results > 0 && check_code_fails(report->results[report->num_results - 1].code);
    if (suite->late)
        report->cut =
            "as the time limit was reached (--timeout); cases that are not listed were not run";
    else if (suite->params->fail_fast && fails)
        report->cut = "at the first failure (--fail-fast)";
    suite->stopped |= report->cut != NULL;
}

/* Add a result that no child was asked for. A failure counts even if no case was requested, as
 * later cases could not run, or not on the right device. */
static void add(struct suite *suite, const char *backend, const struct check *check,
                enum check_code code, const char *text, const struct sandbox_reply *reply)
{
    struct check_result result = {
        .check = check, .backend = (char *)backend, .code = code, .text = (char *)text};
    case_id_write(result.id, backend, check, -1);
    if (reply) {
        result.ns = reply->ns;
        result.trail = (char *)reply->trail;
        if (reply->end != SANDBOX_ANSWERED)
            result.output = (char *)strbuf_text(&reply->output);
    }
    if (!suite_wants(suite, result.id) && (suite->list || !check_code_fails(code)))
        return;
    if (suite->list)
        suite_list(suite, &result);
    else
        report_result(suite, &result);
}

/* ---- The plugin ------------------------------------------------------------------------------ */

static void take_plugin(struct check_report *report, const cJSON *answer)
{
    check_report_set(report, &report->file, json_text(answer, "file"));
    check_report_set(report, &report->name, json_text(answer, "name"));
    check_report_set(report, &report->version, json_text(answer, "version"));
    check_report_set(report, &report->vendor, json_text(answer, "vendor"));
    check_report_set(report, &report->build, json_text(answer, "build"));
    report->abi_major = (uint32_t)json_number(answer, "abi_major");
    report->abi_minor = (uint32_t)json_number(answer, "abi_minor");
    const cJSON *name;
    cJSON_ArrayForEach(name, cJSON_GetObjectItemCaseSensitive(answer, "backends"))
        check_report_add_backend(report, name->valuestring);
}

/* Nothing can be checked: end the run with this outcome. */
static void give_up(struct suite *suite, enum check_outcome outcome, const char *why)
{
    suite->stopped = true;
    suite->outcome = outcome;
    snprintf(suite->why, sizeof suite->why, "%s", why);
    text_cut_incomplete(suite->why);
}

/* The file could be opened, was refused, or brought the child down. */
static void take_open(struct suite *suite, const struct sandbox_reply *reply)
{
    struct check_report *report = suite->report;
    const struct check *opens = &check_core[CORE_OPENS];
    enum check_outcome outcome = (enum check_outcome)json_number(reply->answer, "outcome");
    const char *why = json_text(reply->answer, "why");
    if (suite->stopped)
        return;
    if (reply->end != SANDBOX_ANSWERED) {
        suite->stopped = true;
        add(suite, report->name, opens, suite_code_of(reply->end), reply->text, reply);
    } else if (outcome == CHECK_REFUSED) {
        suite->stopped = true;
        add(suite, report->name, opens, CHECK_FAIL, why, reply);
        check_report_set(report, &report->refused, why);
    } else if (outcome != CHECK_GOOD) {
        give_up(suite, outcome, why);
    } else {
        take_plugin(report, reply->answer);
        surroundings_case(suite, report->name, "the opening of the file", reply);
        add(suite, report->name, opens, CHECK_PASS, "", reply);
    }
}

void suite_open(struct suite *suite, const struct check_params *params, struct check_report *report)
{
    HOST_ERROR(error);
    struct sandbox_reply reply;
    suite->params = params;
    suite->report = report;
    if (sandbox_open(&suite->sandbox, params, &error.base)) {
        give_up(suite, CHECK_BROKEN, host_error_text(&error));
        return;
    }
    sandbox_ask(&suite->sandbox, suite_question("open", NULL, NULL, NULL), &reply);
    suite_note_end(suite, &reply);
    take_open(suite, &reply);
    sandbox_reply_finish(&reply);
}

void suite_finish(struct suite *suite)
{
    suite->report->interrupted = suite->sandbox.interrupted;
    sandbox_close(&suite->sandbox);
    surroundings_finish(suite);
}

/* ---- A backend ------------------------------------------------------------------------------- */

/* A backend that crashes on the question is checked on the CPU. */
static void take_no_subject(struct suite *suite, struct check_backend *backend,
                            const struct sandbox_reply *reply)
{
    if (!suite->stopped)
        add(suite, backend->name, &check_core[CORE_DEVICE], suite_code_of(reply->end), reply->text,
            reply);
    check_report_set(suite->report, &backend->device, "cpu");
    check_report_set(suite->report, &backend->about, "cpu");
}

static bool take_subject(struct suite *suite, struct check_backend *backend,
                         const struct sandbox_reply *reply, char why[512])
{
    const struct check *device = &check_core[CORE_DEVICE];
    enum check_outcome outcome = (enum check_outcome)json_number(reply->answer, "outcome");
    surroundings_case(suite, backend->name, "the question for a device", reply);
    snprintf(why, 512, "%s", json_text(reply->answer, "why"));
    text_cut_incomplete(why);
    add(suite, backend->name, device,
        outcome == CHECK_GOOD      ? CHECK_PASS
        : outcome == CHECK_NOTHING ? CHECK_SKIP
                                   : CHECK_FAIL,
        why, reply);
    check_report_set(suite->report, &backend->missing,
                     outcome == CHECK_NOTHING ? why : json_text(reply->answer, "missing"));
    if (outcome != CHECK_GOOD)
        return false;
    check_report_set(suite->report, &backend->device, json_text(reply->answer, "device"));
    check_report_set(suite->report, &backend->about, json_text(reply->answer, "about"));
    return true;
}

bool suite_subject(struct suite *suite, struct check_backend *backend, char why[512])
{
    struct sandbox_reply reply;
    const char *device = suite->params->device ? suite->params->device : "auto";
    bool good = true;
    sandbox_ask(&suite->sandbox, suite_question("subject", "backend", backend->name, device),
                &reply);
    suite_note_end(suite, &reply);
    if (reply.end == SANDBOX_ANSWERED)
        good = take_subject(suite, backend, &reply, why);
    else
        take_no_subject(suite, backend, &reply);
    sandbox_reply_finish(&reply);
    return good && !suite->stopped;
}

/* ---- Which cases ----------------------------------------------------------------------------- */

static void absorb(struct suite *suite, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void absorb(struct suite *suite, const char *format, ...)
{
    char line[CASE_ID_SIZE + 80];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    sha256_update(&suite->cases, strlen(line), (const uint8_t *)line);
}

/* The first answer that has a grid is what every one has. */
static void take_grid(struct suite *suite, const char *name, const cJSON *answer)
{
    const char *sha256 = json_text(answer, "grid_sha256");
    for (size_t b = 0; b < suite->report->num_backends && *sha256; b++) {
        struct check_backend *backend = &suite->report->backends[b];
        if (strcmp(backend->name, name) != 0 || backend->grid_sha256[0])
            continue;
        backend->grid_points = (int32_t)json_number(answer, "grid_points");
        snprintf(backend->grid_sha256, sizeof backend->grid_sha256, "%s", sha256);
        absorb(suite, "grid %s %s\n", name, sha256);
    }
}

static void take_case(struct suite *suite, const char *id, uint64_t seed)
{
    absorb(suite, "%s %016llx\n", id, (unsigned long long)seed);
    suite->report->num_cases++;
}

static void finish_cases(struct suite *suite)
{
    struct check_report *report = suite->report;
    uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_digest(&suite->cases, sizeof digest, digest);
    text_hex(digest, sizeof digest, report->cases_sha256);
    if (!suite->listed)
        return;
    for (size_t b = 0; b < report->num_backends; b++)
        if (report->backends[b].grid_sha256[0])
            fprintf(suite->list, "# grid of %s: %d points, SHA-256 %s\n", report->backends[b].name,
                    report->backends[b].grid_points, report->backends[b].grid_sha256);
    fprintf(suite->list, "# %zu cases, SHA-256 %s\n", report->num_cases, report->cases_sha256);
}

/* ---- A check --------------------------------------------------------------------------------- */

/* Add a case that is not run, or list it. */
static void put(struct suite *suite, const struct suite_case *what, const char *id)
{
    struct check_result result = {.check = what->check,
                                  .backend = (char *)what->backend,
                                  .code = CHECK_TIMEOUT,
                                  .text = (char *)"not run: other cases of this check hung",
                                  .seed = what->seed};
    snprintf(result.id, sizeof result.id, "%s", id);
    if (suite->list)
        suite_list(suite, &result);
    else
        report_result(suite, &result);
}

/* Is it this shard's turn? */
static bool is_of_shard(struct suite *suite, const struct check *check)
{
    struct suite_shard *shard = &suite->shard;
    return check->needs & CHECK_ALONE || shard->turn++ % (shard->count - 1) == shard->index;
}

/* Does it have any of this check's cases? */
static bool has_of_shard(const struct suite *suite, const struct check *check)
{
    const struct suite_shard *shard = &suite->shard;
    const bool is_alone = check->needs & CHECK_ALONE;
    return !shard->count || is_alone == (shard->index + 1 == shard->count);
}

static void take_found(struct suite *suite, const struct suite_case *what,
                       struct shard_result *found)
{
    struct check_result result = {.check = what->check,
                                  .backend = (char *)what->backend,
                                  .code = found->code,
                                  .text = (char *)found->text,
                                  .trail = (char *)found->trail,
                                  .output = (char *)found->output,
                                  .seed = what->seed,
                                  .ns = found->ns};
    snprintf(result.id, sizeof result.id, "%s", found->id);
    check_report_add(suite->report, &result);
}

/* A shard's result for the case. false if no shard ran it. */
static bool take_from_shard(struct suite *suite, const struct suite_case *what, const char *id,
                            int *hung)
{
    struct shard_result *found = suite->shards ? shards_take(suite->shards, suite, id) : NULL;
    if (!found)
        return false;
    *hung += found->code == CHECK_TIMEOUT;
    take_found(suite, what, found);
    return true;
}

/* The run ended early: add the shards' results of the remaining cases. The last result is of the
 * case that was cut short; it is listed once. */
static void take_rest(struct suite *suite)
{
    char backend[CASE_ID_SIZE], cut[CASE_ID_SIZE] = "";
    const struct check_report *report = suite->report;
    struct shard_result *found;
    if (report->num_results)
        snprintf(cut, sizeof cut, "%s", report->results[report->num_results - 1].id);
    while (suite->shards && (found = shards_take_any(suite->shards))) {
        struct suite_case what = {.backend = backend};
        if (strcmp(found->id, cut) == 0 ||
            !case_id_parse(found->id, backend, &what.check, &what.index))
            continue;
        what.seed = case_seed(suite->params->seed, what.check, what.index);
        take_found(suite, &what, found);
    }
}

static void run_one(struct suite *suite, const struct suite_case *what, int *hung)
{
    struct check_result result;
    char id[CASE_ID_SIZE];
    case_id_write(id, what->backend, what->check, what->index);
    if (!suite_wants(suite, id))
        return;
    take_case(suite, id, what->seed);
    if (suite->shard.count && !is_of_shard(suite, what->check))
        return;
    if (take_from_shard(suite, what, id, hung) || suite->stopped)
        return;
    if (suite->list || *hung >= MAX_HUNG) {
        put(suite, what, id);
        return;
    }
    if (!suite->shard.count)
        progress_update(&suite->progress, 0, id);
    suite_run_case(suite, what, &result);
    *hung += result.code == CHECK_TIMEOUT;
    if (!suite->stopped)
        report_result(suite, &result);
    suite_result_finish(&result);
}

/* With --quick: this many cases of a check at most, the first one and others spread over all. */
enum { QUICK_CASES = 3 };

/* The number of cases to run, and the index of one of them. */
static int32_t sample_size(const struct suite *suite, int32_t count)
{
    return suite->params->quick && count > QUICK_CASES ? QUICK_CASES : count;
}

static int32_t sampled(int32_t n, int32_t size, int32_t count)
{
    return (int32_t)((int64_t)n * count / size);
}

static void run_cases(struct suite *suite, const char *backend, const char *device,
                      const struct check *check, int32_t count)
{
    int hung = 0;
    int32_t size = sample_size(suite, count);
    for (int32_t n = count < 0 ? -1 : 0; n < size || n < 0; n++) {
        int32_t index = n < 0 ? n : sampled(n, size, count);
        struct suite_case what = {.backend = backend,
                                  .check = check,
                                  .index = index,
                                  .seed = case_seed(suite->params->seed, check, index),
                                  .device = device};
        if (suite->stopped)
            return;
        run_one(suite, &what, &hung);
        if (index < 0)
            return;
    }
}

static void run_check(struct suite *suite, const char *backend, const char *device,
                      const struct check *check)
{
    char id[CASE_ID_SIZE];
    struct sandbox_reply reply;
    case_id_write(id, backend, check, -1);
    if (!may_want(suite, id) || !has_of_shard(suite, check))
        return;
    sandbox_ask(&suite->sandbox, suite_question("count", "id", id, device), &reply);
    suite_note_end(suite, &reply);
    const char *skip = json_text(reply.answer, "skip");
    if (reply.end != SANDBOX_ANSWERED && !suite->stopped) {
        strbuf text;
        strbuf_init(&text);
        strbuf_appendf(&text, "while its cases were counted: %s", reply.text);
        add(suite, backend, check, suite_code_of(reply.end), strbuf_text(&text), &reply);
        strbuf_finish(&text);
    } else if (reply.end == SANDBOX_ANSWERED) {
        surroundings_case(suite, backend, id, &reply);
        take_grid(suite, backend, reply.answer);
        if (json_number(reply.answer, "outcome") != CHECK_GOOD)
            add(suite, backend, check, CHECK_FAIL, json_text(reply.answer, "why"), &reply);
        else if (*skip)
            add(suite, backend, check, CHECK_SKIP, skip, &reply);
        else
            run_cases(suite, backend, device, check, (int32_t)json_number(reply.answer, "count"));
    }
    sandbox_reply_finish(&reply);
}

static void end_child(struct suite *suite, const char *backend)
{
    struct sandbox_reply reply;
    if (sandbox_end(&suite->sandbox, &reply) && !suite->stopped)
        surroundings_end(suite, backend, &reply);
    sandbox_reply_finish(&reply);
}

/* Is this run one of several side by side, which save a start each (see restart())? */
static bool is_side_by_side(const struct suite *suite)
{
    return suite->shards || suite->shard.count;
}

/* Checks about the file, or about a backend; `skip` is why none can be run, NULL = they can. */
static void run_checks(struct suite *suite, const char *backend, const char *device, bool once,
                       const char *skip)
{
    const struct check *const *group =
        suite->params->fail_fast ? check_groups_quick_first() : check_groups();
    for (; *group; group++)
        for (const struct check *check = *group; check->rule && !suite->stopped; check++) {
            if (!(check->needs & CHECK_ONCE) == once)
                continue;
            if (skip)
                add(suite, backend, check, CHECK_SKIP, skip, NULL);
            else
                run_check(suite, backend, device, check);
        }
    if (!once || !is_side_by_side(suite))
        end_child(suite, backend);
}

static void take_matrix(struct suite *suite, struct check_backend *backend)
{
    struct sandbox_reply reply;
    sandbox_ask(&suite->sandbox,
                suite_question("matrix", "backend", backend->name, backend->device), &reply);
    if (reply.end == SANDBOX_ANSWERED)
        backend->matrix = cJSON_DetachItemFromObjectCaseSensitive(reply.answer, "rows");
    sandbox_reply_finish(&reply);
}

static void run_backend(struct suite *suite, struct check_backend *backend)
{
    char why[512] = "";
    bool matrix = suite->params->format == FORMAT_JSON || suite->params->format == FORMAT_MARKDOWN;
    bool good = suite_subject(suite, backend, why);
    if (!good && suite->shard.count)
        return; /* a device without memory for one more process: the suite runs these cases itself */
    if (good && matrix && !suite->list)
        take_matrix(suite, backend);
    run_checks(suite, backend->name, backend->device, false, good ? NULL : why);
}

/* ---- The suite ------------------------------------------------------------------------------- */

static void report_waivers(struct suite *suite)
{
    const struct waivers *waivers = suite->report->waivers;
    bool whole = suite->params->filters.count == 0 && !suite->params->backend;
    for (size_t w = 0; waivers && w < waivers->count; w++) {
        const struct waiver *waiver = &waivers->items[w];
        bool expired = waiver_has_expired(waivers, waiver);
        if (strcmp(waiver->plugin, suite->report->name) != 0 ||
            (!expired && (waiver->used || !whole)))
            continue;
        struct check_result result = {
            .check = &check_core[CORE_WAIVER], .backend = suite->report->name, .code = CHECK_FAIL};
        strbuf text;
        strbuf_init(&text);
        strbuf_appendf(&text, "%s:%d: %s %s%s", waivers->file, waiver->line, waiver->pattern,
                       expired ? "expired on " : "waives nothing that fails in version ",
                       expired ? waiver->expiry : suite->report->version);
        result.text = text.data;
        case_id_write(result.id, result.backend, result.check, waiver->line);
        check_report_add(suite->report, &result);
        strbuf_finish(&text);
    }
}

/* The file, then each backend. */
static void run_subjects(struct suite *suite)
{
    struct check_report *report = suite->report;
    sha256_init(&suite->cases);
    run_checks(suite, report->name, "", true, NULL);
    for (size_t b = 0; b < report->num_backends && !suite->stopped; b++)
        run_backend(suite, &report->backends[b]);
}

/* While shards start: the end of a child that has opened the file, and the start of the one for all
 * that is left. A start can take long (a backend in Python imports PyTorch, and more), so a shard
 * has one in all, and that of the suite is not waited for after theirs. */
static void restart(struct suite *suite)
{
    struct sandbox_reply reply;
    end_child(suite, suite->report->name);
    sandbox_ask(&suite->sandbox, suite_question("open", NULL, NULL, NULL), &reply);
    suite_note_end(suite, &reply); /* a child that did not start is started by the next question */
    sandbox_reply_finish(&reply);
}

static void run_all(struct suite *suite)
{
    if (suite->shards) {
        restart(suite);
        shards_wait_alone(suite->shards, suite);
    }
    suite->stopped |= suite->sandbox.interrupted != 0;
    run_subjects(suite);
    if (suite->shards)
        shards_wait(suite->shards, suite);
    if (suite->stopped) {
        take_rest(suite);
        return;
    }
    surroundings_report(suite);
    finish_cases(suite);
    if (!suite->list)
        report_waivers(suite);
}

static void run_replay(struct suite *suite, const struct replay *replay)
{
    struct check_result result;
    char why[512] = "";
    struct suite_case what = {.backend = replay->backend,
                              .check = replay->check,
                              .index = replay->index,
                              .seed = replay->seed,
                              .without = replay->without,
                              .device = "cpu"};
    for (size_t b = 0; b < suite->report->num_backends; b++)
        if (strcmp(suite->report->backends[b].name, replay->backend) == 0 &&
            suite_subject(suite, &suite->report->backends[b], why))
            what.device = suite->report->backends[b].device;
    if (suite->stopped)
        return;
    suite_run_case(suite, &what, &result);
    check_report_add(suite->report, &result);
    suite_result_finish(&result);
}

void suite_run_shard(struct suite *suite, const struct check_params *params,
                     struct check_report *report)
{
    struct pollfd gate = {.fd = suite->shard.gate, .events = POLLIN};
    suite_open(suite, params, report);
    while (!suite->stopped && gate.fd >= 0 && poll(&gate, 1, 0) == 0) {
        sandbox_pause(&suite->sandbox, 50);
        suite->stopped |= suite->sandbox.interrupted != 0;
    }
    if (!suite->stopped)
        run_subjects(suite);
    report->interrupted = suite->sandbox.interrupted;
    sandbox_close(&suite->sandbox);
}

enum check_outcome suite_run(const struct check_params *params, const struct replay *replay,
                             FILE *list, struct check_report *report, attn_error *error)
{
    struct suite suite = {.list = list};
    struct shards shards = {.count = 0};
    int64_t start = clock_now_ns();
    progress_begin(&suite.progress, "checking", 0);
    size_t jobs = params->jobs ? params->jobs : shards_default();
    bool side_by_side = jobs > 1 && !params->fail_fast; /* or which is the first? */
    if (side_by_side && !replay && !list && !params->in_process) {
        shards_start(&shards, params, jobs); /* before there is a sandbox */
        suite.shards = &shards;
    }
    suite_open(&suite, params, report);
    if (replay && !suite.stopped)
        run_replay(&suite, replay);
    else if (!suite.stopped)
        run_all(&suite);
    if (!suite.stopped && !suite.listed && report->num_results == 0)
        give_up(&suite, CHECK_USAGE,
                "--filter matches no case; accepted: patterns of the ids "
                "that --list prints");
    progress_end(&suite.progress);
    suite_finish(&suite);
    shards_finish(&shards);
    report->ns = clock_now_ns() - start;
    if (suite.outcome != CHECK_GOOD)
        host_fail(error, ATTN_CONFIG_ERROR, "%s", suite.why);
    return suite.outcome;
}
