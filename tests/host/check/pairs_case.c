/* SPDX-License-Identifier: Apache-2.0
 *
 * pairs_case.c: prefill by one backend, decode by another: the runs, and what has to agree.
 */
#include "tests/host/check/pairs_case.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/embed/embed.h"
#include "host/base/error.h"
#include "host/run/session.h"
#include "host/select/open_host.h"

enum { MAX_SETS = 48 };

static const char *folder(const char *variable, const char *otherwise)
{
    const char *value = getenv(variable);
    return value ? value : otherwise;
}

char *pairs_file(const char *variable, const char *otherwise, const char *file)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder(variable, otherwise), file);
    return strdup(path);
}

/* ---- A run ----------------------------------------------------------------------------------- */

struct run {
    char *sets[MAX_SETS];
    size_t num_sets;
    struct report report;
    host_error error;
    attn_status status;
    struct session_result result;
};

__attribute__((format(printf, 2, 3))) static void set(struct run *run, const char *format, ...)
{
    char text[8192];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (run->num_sets < MAX_SETS)
        run->sets[run->num_sets++] = strdup(text);
}

/* Models and ways of running that differ in what prefill leaves for decode. */
static const char *const variants[PAIRS_VARIANTS][4] = {
    {"model.dtype=bf16", "workload.mixed=no"},
    {"model.dtype=bf16", "workload.mixed=yes", "kv_cache.page_size=1"},
    {"model.dtype=bf16", "workload.mixed=yes", "model.layer_types=sliding full",
     "model.sliding_window=37"},
    {"model.dtype=bf16", "workload.mixed=no", "model.logit_cap=5", "kv_cache.prefix_cache=no"},
};

/* The first requests of the example trace, in chunks that are cut within pages. */
static void begin(struct run *run, const struct pairs_place *place, const char *prefill,
                  const char *decode, int variant)
{
    memset(run, 0, sizeof *run);
    report_init(&run->report);
    host_error_init(&run->error);
    for (int f = 0; f < place->num_files; f++)
        set(run, "plugins.path=%s", place->files[f]);
    set(run, "platform.device=%s", place->device);
    set(run, "attention.prefill_attention_backend=%s", prefill);
    set(run, "attention.decode_attention_backend=%s", decode);
    set(run, "model.num_layers=2");
    set(run, "model.num_q_heads=6");
    set(run, "model.num_kv_heads=2");
    set(run, "model.head_dim=64");
    set(run, "model.max_context_len=2048");
    set(run, "workload.trace=%s/examples/traces/mini_mooncake.jsonl",
        folder("ATTNHOST_TEST_SRCDIR", "."));
    set(run, "workload.length_scale=0.02");
    set(run, "workload.max_requests=8");
    set(run, "workload.chunked_prefill_size=27");
    set(run, "workload.max_running_requests=4");
    set(run, "kv_cache.page_size=16");
    set(run, "verify.rate=1");
    for (int s = 0; s < 4 && variants[variant][s]; s++)
        set(run, "%s", variants[variant][s]);
    for (int s = 0; s < place->num_sets; s++)
        set(run, "%s", place->sets[s]);
}

static void go(struct run *run)
{
    struct config *config = NULL;
    run->status =
        config_load(NULL, (const char *const *)run->sets, run->num_sets, &config, &run->error.base);
    if (run->status != ATTN_OK)
        return;
    struct session_params params = {.config = config};
    run->status = session_run(&params, &run->report, &run->result, &run->error.base);
    config_destroy(config);
}

static void finish(struct run *run)
{
    report_finish(&run->report);
    for (size_t s = 0; s < run->num_sets; s++)
        free(run->sets[s]);
}

/* No backend can serve it. */
static bool is_refused(const struct run *run)
{
    return !run->result.began &&
           (run->status == ATTN_UNSUPPORTED || run->status == ATTN_DEPENDENCY_MISSING);
}

/* Rows that a backend computed, wherever it stands in the tree. */
static int64_t rows_of(const struct run *run, const char *backend)
{
    int64_t rows = 0;
    for (uint32_t p = 0; p < run->report.num_paths; p++) {
        const char *path = run->report.paths[p].name, *last = strrchr(path, '/');
        if (strcmp(last ? last + 1 : path, backend) == 0)
            rows += run->report.paths[p].rows;
    }
    return rows;
}

/* ---- Backends -------------------------------------------------------------------------------- */

attnhost *pairs_host(const struct pairs_place *place, char text[PAIRS_TEXT])
{
    attnhost_params params = {.struct_size = sizeof params, .num_threads = 1};
    struct run run;
    struct config *config = NULL;
    attnhost *host = NULL;
    memset(&run, 0, sizeof run);
    report_init(&run.report);
    host_error_init(&run.error);
    for (int f = 0; f < place->num_files; f++)
        set(&run, "plugins.path=%s", place->files[f]);
    attn_status status =
        config_load(NULL, (const char *const *)run.sets, run.num_sets, &config, &run.error.base);
    if (status == ATTN_OK)
        status = attnhost_create(&params, &host, &run.error.base);
    if (status == ATTN_OK)
        status = open_host_load_plugins(host, config, &run.error.base);
    if (status != ATTN_OK) {
        snprintf(text, PAIRS_TEXT, "%s", host_error_text(&run.error));
        attnhost_destroy(host);
        host = NULL;
    }
    config_destroy(config);
    finish(&run);
    return host;
}

int pairs_share_a_layout(attnhost *host, const char *first, const char *second)
{
    const struct registry_type *a = registry_find(&host->registry, first);
    const struct registry_type *b = registry_find(&host->registry, second);
    if (!a || !b)
        return -1;
    for (uint32_t i = 0; i < a->type->num_layouts; i++)
        for (uint32_t j = 0; j < b->type->num_layouts; j++)
            if (strcmp(a->type->layouts[i], b->type->layouts[j]) == 0)
                return 1;
    return 0;
}

int pairs_serves(const struct pairs_place *place, const char *backend, int variant,
                 char text[PAIRS_TEXT])
{
    struct run run;
    begin(&run, place, backend, backend, variant);
    go(&run);
    finish(&run);
    if (!is_refused(&run))
        return 1;
    snprintf(text, PAIRS_TEXT, "%s", host_error_text(&run.error));
    return 0;
}

/* ---- Judging --------------------------------------------------------------------------------- */

/* Every row was looked at and passed. */
static const char *judge_rows(const struct run *run, const char *what, char text[PAIRS_TEXT])
{
    const struct report *r = &run->report;
    if (run->status == ATTN_OK && run->result.passed && r->verify.rows_failed == 0 &&
        r->verify.rows_checked > 0 && r->tokens.decode > 0)
        return NULL;
    snprintf(text, PAIRS_TEXT, "%s: status %d, %lld of %lld rows failed: %.400s %.250s", what,
             run->status, (long long)r->verify.rows_failed, (long long)r->verify.rows_checked,
             host_error_text(&run->error), r->verify.first_failure);
    return text;
}

/* The pair computed the rows that the first one did alone, each of them some. */
static const char *judge_shares(const struct run *alone, const struct run *pair,
                                const char *prefill, const char *decode, char text[PAIRS_TEXT])
{
    int64_t all = rows_of(alone, prefill), first = rows_of(pair, prefill);
    int64_t second = rows_of(pair, decode);
    if (first > 0 && second > 0 && first + second == all &&
        pair->report.verify.rows_checked == alone->report.verify.rows_checked)
        return NULL;
    snprintf(text, PAIRS_TEXT,
             "%s computed %lld rows, %s %lld, of which %lld were checked: accepted some each, "
             "together the %lld of %s alone, of which %lld were checked",
             prefill, (long long)first, decode, (long long)second,
             (long long)pair->report.verify.rows_checked, (long long)all, prefill,
             (long long)alone->report.verify.rows_checked);
    return text;
}

static const char *judge_refusal(const struct run *run, char text[PAIRS_TEXT])
{
    const char *said = host_error_text(&run->error);
    if (is_refused(run) && strstr(said, "kv_layout"))
        return NULL;
    snprintf(text, PAIRS_TEXT, "status %d: %.700s: accepted a refusal for kv_layout", run->status,
             said);
    return text;
}

const char *pairs_judge(const struct pairs_place *place, attnhost *host, const char *prefill,
                        const char *decode, int variant, char text[PAIRS_TEXT])
{
    struct run alone, pair;
    const char *wrong;
    begin(&pair, place, prefill, decode, variant);
    go(&pair);
    if (pairs_share_a_layout(host, prefill, decode) == 0) {
        wrong = judge_refusal(&pair, text);
        finish(&pair);
        return wrong;
    }
    begin(&alone, place, prefill, prefill, variant);
    go(&alone);
    wrong = judge_rows(&alone, prefill, text);
    if (!wrong)
        wrong = judge_rows(&pair, "the pair", text);
    if (!wrong)
        wrong = judge_shares(&alone, &pair, prefill, decode, text);
    printf("# %s, %s then %s, variant %d: %lld rows, max abs error %.3g, alone %.3g\n",
           place->device, prefill, decode, variant, (long long)pair.report.verify.rows_checked,
           pair.report.verify.max_abs_err, alone.report.verify.max_abs_err);
    finish(&alone);
    finish(&pair);
    return wrong;
}

const char *pairs_refused(const struct pairs_place *place, const char *prefill, const char *decode,
                          const char *setting, char text[PAIRS_TEXT])
{
    struct run run;
    begin(&run, place, prefill, decode, 0);
    if (setting)
        set(&run, "%s", setting);
    go(&run);
    const char *wrong = judge_refusal(&run, text);
    finish(&run);
    return wrong;
}
