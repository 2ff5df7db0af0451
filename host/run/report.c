/* SPDX-License-Identifier: Apache-2.0
 *
 * report.c: the report as JSON and as text.
 */
#include "host/run/report.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/json_add.h"
#include "host/base/text.h"

void report_init(struct report *report)
{
    memset(report, 0, sizeof *report);
}

void report_finish(struct report *report)
{
    for (uint32_t p = 0; p < report->num_paths; p++)
        free(report->paths[p].name);
    free(report->paths);
    for (uint32_t c = 0; c < report->num_choices; c++) {
        free(report->choices[c].layers);
        free(report->choices[c].phase);
        free(report->choices[c].backend);
    }
    free(report->choices);
    for (int clock = 0; clock < REPORT_CLOCKS; clock++) {
        report_times_finish(&report->ttft[clock]);
        report_times_finish(&report->tpot[clock]);
    }
    for (int phase = 0; phase < REPORT_PHASES; phase++)
        free(report->verify.of_bar[phase]);
    provenance_finish(&report->from);
    report_times_finish(&report->prefill);
    report_times_finish(&report->decode);
    report_times_finish(&report->host.prefill);
    report_times_finish(&report->host.decode);
    report_times_finish(&report->host.prefill_launch);
    report_times_finish(&report->host.decode_launch);
    report_init(report);
}

/* ---- Gathering ------------------------------------------------------------------------------- */

bool report_has_device(const struct report *report)
{
    return report->host.prefill.count + report->host.decode.count > 0;
}

/* Merge two bins. */
static void join_bins(struct report_bin *bin, const struct report_bin *next)
{
    memcpy(bin->end_ns, next->end_ns, sizeof bin->end_ns);
    bin->prefill += next->prefill;
    bin->decode += next->decode;
    bin->kv_tokens = next->kv_tokens > bin->kv_tokens ? next->kv_tokens : bin->kv_tokens;
    bin->running = next->running > bin->running ? next->running : bin->running;
}

/* Merge bins in pairs; the last one is then full, as all are. */
static void halve(struct report_series *series)
{
    series->count /= 2;
    series->steps_per_bin *= 2;
    series->steps_in_last = series->steps_per_bin;
    for (size_t b = 0; b < series->count; b++) {
        struct report_bin joined = series->bins[2 * b];
        join_bins(&joined, &series->bins[2 * b + 1]);
        series->bins[b] = joined;
    }
}

void report_add_step(struct report_series *series, const struct report_bin *step)
{
    if (series->count == 0)
        series->steps_per_bin = 1;
    if (series->count == REPORT_BINS && series->steps_in_last == series->steps_per_bin)
        halve(series);
    if (series->count == 0 || series->steps_in_last == series->steps_per_bin) {
        series->bins[series->count++] = (struct report_bin){.prefill = 0};
        series->steps_in_last = 0;
    }
    join_bins(&series->bins[series->count - 1], step);
    series->steps_in_last++;
}

double report_host_share(const struct report *report)
{
    double steps = report->prefill.sum_ns + report->decode.sum_ns;
    double host = report->host.prefill.sum_ns + report->host.decode.sum_ns;
    return steps > 0 ? host / steps : 0;
}

attn_status report_add_choice(struct report *report, const char *layers, const char *phase,
                              const char *backend, attn_error *error)
{
    size_t count = report->num_choices + (size_t)1;
    struct report_choice *grown = realloc(report->choices, count * sizeof *grown);
    if (!grown)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "composition of %zu choices", count);
    report->choices = grown;
    struct report_choice *choice = &grown[report->num_choices++];
    *choice = (struct report_choice){strdup(layers), strdup(phase), strdup(backend)};
    if (!choice->layers || !choice->phase || !choice->backend)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "composition of %zu choices", count);
    return ATTN_OK;
}

attn_status report_add_rows(struct report *report, const char *name, int64_t rows,
                            attn_error *error)
{
    for (uint32_t p = 0; p < report->num_paths; p++)
        if (strcmp(report->paths[p].name, name) == 0) {
            report->paths[p].rows += rows;
            return ATTN_OK;
        }
    size_t count = report->num_paths + 1u;
    struct report_path *grown = realloc(report->paths, count * sizeof *grown);
    if (!grown)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "paths of %zu backends", count);
    report->paths = grown;
    struct report_path path = {strdup(name), rows};
    if (!path.name)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "paths of %zu backends", count);
    grown[report->num_paths++] = path;
    return ATTN_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static bool add_tokens(cJSON *root, const struct report *report)
{
    cJSON *tokens = cJSON_AddObjectToObject(root, "tokens");
    return json_add_int(tokens, "prefill", report->tokens.prefill) &&
           json_add_int(tokens, "decode", report->tokens.decode) &&
           json_add_int(tokens, "prefix_hit", report->tokens.prefix_hit) &&
           json_add_int(tokens, "recomputed", report->tokens.recomputed) &&
           (report->tokens.encoded == 0 || json_add_int(tokens, "encoded", report->tokens.encoded));
}

/* Tokens that decode made for each verification of a request. */
static double tokens_per_verification(const struct report *report)
{
    int64_t count = report->drafts.verifications;
    return count > 0 ? (double)report->tokens.decode / (double)count : 0;
}

static bool add_drafts(cJSON *root, const struct report *report)
{
    if (!report->drafts.present)
        return true;
    cJSON *drafts = cJSON_AddObjectToObject(root, "speculative");
    return json_add_int(drafts, "verifications", report->drafts.verifications) &&
           json_add_int(drafts, "drafted", report->drafts.drafted) &&
           json_add_int(drafts, "accepted", report->drafts.accepted) &&
           json_add_int(drafts, "wasted", report->drafts.drafted - report->drafts.accepted) &&
           json_add_int(drafts, "draft_extend", report->drafts.draft_extend) &&
           json_add_number(drafts, "tokens_per_verification", tokens_per_verification(report)) &&
           json_add_text(drafts, "digest", report->drafts.digest);
}

static bool add_shared(cJSON *root, const struct report *report)
{
    if (!report->has_shared)
        return true;
    cJSON *prefix = cJSON_AddObjectToObject(root, "prefix");
    return json_add_int(prefix, "shared_rows", report->shared.rows) &&
           json_add_int(prefix, "saved_keys", report->shared.saved_keys) &&
           json_add_int(prefix, "keys", report->shared.keys);
}

static bool add_choice(cJSON *list, const struct report_choice *choice)
{
    cJSON *object = cJSON_CreateObject();
    return cJSON_AddItemToArray(list, object) && json_add_text(object, "layers", choice->layers) &&
           json_add_text(object, "phase", choice->phase) &&
           json_add_text(object, "backend", choice->backend);
}

/* By REPORT_VIRTUAL and REPORT_WALL. */
static const char *const clocks[] = {"virtual", "wall"};

/* How long the run took. */
static double run_seconds(const struct report *report, int clock)
{
    return clock == REPORT_WALL ? report->wall_s
                                : (report->prefill.sum_ns + report->decode.sum_ns) * 1e-9;
}

/* 0 where no time has passed. */
static double per_second(const struct report *report, int clock, int64_t tokens)
{
    double seconds = run_seconds(report, clock);
    return seconds > 0 ? (double)tokens / seconds : 0;
}

static bool add_rates(cJSON *root, const struct report *report)
{
    cJSON *rates = cJSON_AddObjectToObject(root, "tokens_per_s");
    bool good = rates != NULL;
    for (int clock = 0; good && clock < REPORT_CLOCKS; clock++) {
        cJSON *object = cJSON_AddObjectToObject(rates, clocks[clock]);
        good =
            json_add_number(object, "prefill", per_second(report, clock, report->tokens.prefill)) &&
            json_add_number(object, "decode", per_second(report, clock, report->tokens.decode));
    }
    return good;
}

static bool add_composition(cJSON *root, const struct report *report)
{
    cJSON *list = cJSON_AddArrayToObject(root, "composition");
    bool ok = list != NULL;
    for (uint32_t c = 0; ok && c < report->num_choices; c++)
        ok = add_choice(list, &report->choices[c]);
    return ok;
}

static bool add_paths(cJSON *root, const struct report *report)
{
    cJSON *paths = cJSON_AddObjectToObject(root, "paths");
    bool ok = paths != NULL;
    for (uint32_t p = 0; ok && p < report->num_paths; p++)
        ok = json_add_int(paths, report->paths[p].name, report->paths[p].rows);
    return ok;
}

/* The layers of a phase in order; null where no row was checked. */
static bool add_of_bar(cJSON *object, const char *name, const double *of_bar, uint32_t count)
{
    cJSON *list = cJSON_AddArrayToObject(object, name);
    bool good = list != NULL;
    for (uint32_t layer = 0; good && layer < count; layer++)
        good = of_bar[layer] < 0 ? json_add_null_item(list)
                                 : json_add_number_item(list, of_bar[layer]);
    return good;
}

static bool add_bars(cJSON *verify, const struct report *report)
{
    static const char *const phases[] = {"prefill", "decode"};
    if (!report->verify.of_bar[0])
        return true;
    cJSON *object = cJSON_AddObjectToObject(verify, "of_bar");
    bool good = object != NULL;
    for (int phase = 0; good && phase < REPORT_PHASES; phase++)
        good = add_of_bar(object, phases[phase], report->verify.of_bar[phase],
                          report->verify.num_layers);
    return good;
}

/* The share of wrong rows of which a sample of this size has none with a chance of 5 %: about 3 /
 * n, the rule of three. 0 where all rows were checked, a row failed, or too few were checked. */
static double detectable_share(const struct report *report)
{
    int64_t checked = report->verify.rows_checked;
    if (!report->verify.sampled || report->verify.rows_failed > 0 || checked < 3)
        return 0;
    return 1 - pow(0.05, 1 / (double)checked);
}

static bool add_detectable(cJSON *verify, const struct report *report)
{
    double share = detectable_share(report);
    return share > 0 ? json_add_number(verify, "detectable_share", share)
                     : cJSON_AddNullToObject(verify, "detectable_share") != NULL;
}

static bool add_verify(cJSON *root, const struct report *report)
{
    cJSON *verify = cJSON_AddObjectToObject(root, "verify");
    const char *failure = report->verify.first_failure;
    return json_add_int(verify, "rows_checked", report->verify.rows_checked) &&
           json_add_int(verify, "rows_failed", report->verify.rows_failed) &&
           add_detectable(verify, report) &&
           json_add_number(verify, "max_abs_err", report->verify.max_abs_err) &&
           json_add_number(verify, "max_rel_err", report->verify.max_rel_err) &&
           (report->verify.steps_not_finite == 0 ||
            json_add_int(verify, "steps_not_finite", report->verify.steps_not_finite)) &&
           (report->verify.trespasses == 0 ||
            json_add_int(verify, "trespasses", report->verify.trespasses)) &&
           (!failure[0] || json_add_text(verify, "first_failure", failure)) &&
           add_bars(verify, report);
}

static bool add_pool(cJSON *list, const struct report_pool *pool)
{
    cJSON *object = cJSON_CreateObject();
    if (!object || !cJSON_AddItemToArray(list, object)) {
        cJSON_Delete(object);
        return false;
    }
    return json_add_text(object, "holds", pool->holds) &&
           json_add_int(object, "layers", pool->layers) &&
           json_add_int(object, "bytes_per_token", pool->bytes_per_token) &&
           json_add_int(object, "capacity", pool->capacity) &&
           json_add_int(object, "peak", pool->peak) && json_add_int(object, "held", pool->held) &&
           json_add_int(object, "leaked", pool->leaked);
}

static bool add_kv(cJSON *root, const struct report *report)
{
    cJSON *kv = cJSON_AddObjectToObject(root, "kv");
    bool added = json_add_int(kv, "capacity", report->kv.capacity) &&
                 json_add_int(kv, "peak", report->kv.peak) &&
                 json_add_int(kv, "leaked", report->kv.leaked);
    cJSON *pools = added ? cJSON_AddArrayToObject(kv, "pools") : NULL;
    for (int p = 0; pools && p < report->kv.num_pools; p++)
        if (!add_pool(pools, &report->kv.pools[p]))
            return false;
    return pools != NULL;
}

static bool add_states(cJSON *root, const struct report *report)
{
    if (!report->states.present)
        return true;
    cJSON *states = cJSON_AddObjectToObject(root, "states");
    return json_add_int(states, "capacity", report->states.capacity) &&
           json_add_int(states, "peak", report->states.peak) &&
           json_add_int(states, "leaked", report->states.leaked);
}

/* Percentiles 0 to 100, so that a distribution can be drawn whatever the number of durations. */
enum { PERCENTILES = 101 };

/* In units of so many microseconds. */
static bool add_times(cJSON *parent, const char *name, const struct report_times *times,
                      double unit_us)
{
    double shares[PERCENTILES], percentiles[PERCENTILES];
    for (int p = 0; p < PERCENTILES; p++)
        shares[p] = p / 100.0;
    bool good = report_quantiles_us(times, shares, PERCENTILES, percentiles);
    for (int p = 0; p < PERCENTILES; p++)
        percentiles[p] /= unit_us;
    cJSON *object = good ? cJSON_AddObjectToObject(parent, name) : NULL;
    return json_add_uint(object, "count", times->count) &&
           json_add_number(object, "p50", percentiles[50]) &&
           json_add_number(object, "p90", percentiles[90]) &&
           json_add_number(object, "p99", percentiles[99]) &&
           json_add_numbers(object, "percentiles", percentiles, times->count ? PERCENTILES : 0,
                            sizeof *percentiles);
}

static bool add_latency(cJSON *root, const struct report *report)
{
    cJSON *latency = cJSON_AddObjectToObject(root, "latency_us");
    return add_times(latency, "prefill", &report->prefill, 1) &&
           add_times(latency, "decode", &report->decode, 1);
}

/* Of requests, on both clocks, in milliseconds. */
static bool add_waits(cJSON *root, const char *name, const struct report_times *times)
{
    cJSON *object = cJSON_AddObjectToObject(root, name);
    bool good = object != NULL;
    for (int clock = 0; good && clock < REPORT_CLOCKS; clock++)
        good = add_times(object, clocks[clock], &times[clock], 1e3);
    return good;
}

static bool add_seconds(cJSON *object, const char *name, const struct report_series *series,
                        int clock)
{
    double seconds[REPORT_BINS];
    for (size_t b = 0; b < series->count; b++)
        seconds[b] = (double)series->bins[b].end_ns[clock] * 1e-9;
    return json_add_numbers(object, name, seconds, series->count, sizeof *seconds);
}

/* Columns: one entry for each bin. */
static bool add_series(cJSON *root, const struct report *report)
{
    const struct report_series *series = &report->series;
    const struct report_bin *bins = series->bins;
    const size_t count = series->count, stride = sizeof *bins;
    cJSON *object = cJSON_AddObjectToObject(root, "series");
    return json_add_int(object, "steps_per_bin", series->steps_per_bin) &&
           add_seconds(object, "virtual_s", series, REPORT_VIRTUAL) &&
           add_seconds(object, "wall_s", series, REPORT_WALL) &&
           json_add_ints(object, "prefill", &bins->prefill, count, stride) &&
           json_add_ints(object, "decode", &bins->decode, count, stride) &&
           json_add_ints(object, "kv_tokens", &bins->kv_tokens, count, stride) &&
           json_add_ints(object, "running", &bins->running, count, stride);
}

/* Values of asynchronous devices only. */
static bool add_own_device(cJSON *device, const struct report *report)
{
    cJSON *host = cJSON_AddObjectToObject(device, "host_us");
    cJSON *graphs = cJSON_AddObjectToObject(device, "graphs");
    return add_times(host, "prefill", &report->host.prefill, 1) &&
           add_times(host, "decode", &report->host.decode, 1) &&
           add_times(host, "prefill_launch", &report->host.prefill_launch, 1) &&
           add_times(host, "decode_launch", &report->host.decode_launch, 1) &&
           json_add_number(device, "host_share", report_host_share(report)) &&
           json_add_int(graphs, "count", report->graphs.count) &&
           json_add_int(graphs, "metadata_bytes", report->graphs.metadata_bytes) &&
           json_add_int(graphs, "bytes", report->graphs.bytes) &&
           json_add_int(device, "losses", report->device_losses);
}

static bool add_device(cJSON *root, const struct report *report)
{
    cJSON *device = provenance_add_device(root, &report->from);
    return device && (!report_has_device(report) || add_own_device(device, report));
}

/* Requests that were too long for the model's context. */
static bool add_too_long(cJSON *root, const struct report *report)
{
    if (report->skipped == 0 && report->cut == 0)
        return true;
    cJSON *too_long = cJSON_AddObjectToObject(root, "too_long");
    return json_add_int(too_long, "skipped", report->skipped) &&
           json_add_int(too_long, "cut", report->cut);
}

/* Steps and requests that did not finish. */
static bool add_end(cJSON *root, const struct report *report)
{
    if (report->failed_steps > 0 && !(json_add_int(root, "failed_steps", report->failed_steps) &&
                                      json_add_int(root, "dropped", report->dropped)))
        return false;
    if (report->ended_by[0] && !json_add_text(root, "ended_by", report->ended_by))
        return false;
    return !report->interrupted || cJSON_AddTrueToObject(root, "interrupted") != NULL;
}

static bool add_all(cJSON *root, const struct report *report)
{
    return provenance_add_json(root, &report->from) && add_device(root, report) &&
           json_add_uint(root, "seed", report->seed) &&
           json_add_int(root, "requests", report->requests) && add_too_long(root, report) &&
           json_add_int(root, "steps", report->steps) && add_tokens(root, report) &&
           add_drafts(root, report) && add_shared(root, report) &&
           json_add_number(root, "wall_s", report->wall_s) &&
           json_add_number(root, "virtual_s", run_seconds(report, REPORT_VIRTUAL)) &&
           add_rates(root, report) && add_waits(root, "ttft_ms", report->ttft) &&
           add_waits(root, "tpot_ms", report->tpot) && add_latency(root, report) &&
           add_composition(root, report) && add_paths(root, report) && add_verify(root, report) &&
           add_kv(root, report) && add_states(root, report) &&
           json_add_text(root, "digest", report->digest) && add_end(root, report) &&
           add_series(root, report);
}

char *report_json(const struct report *report)
{
    cJSON *root = cJSON_CreateObject();
    return json_take_text(root, add_all(root, report));
}

/* ---- Text ------------------------------------------------------------------------------------ */

/* The column after a line's name. */
enum { COLUMN = 13 };

static void print_device(const struct report *report, FILE *file)
{
    text_wrap_line(
        file, 0, COLUMN,
        "host         prefill p50 %.1f us  decode p50 %.1f us, to launch %.1f us  share of "
        "the steps' time %.3f",
        report_quantile_us(&report->host.prefill, 0.5),
        report_quantile_us(&report->host.decode, 0.5),
        report_quantile_us(&report->host.decode_launch, 0.5), report_host_share(report));
    text_wrap_line(file, 0, COLUMN,
                   "graphs       %lld captured, %lld bytes of metadata, %lld bytes in all",
                   (long long)report->graphs.count, (long long)report->graphs.metadata_bytes,
                   (long long)report->graphs.bytes);
    if (report->device_losses > 0)
        fprintf(file, "device       lost %lld times; all running requests were prefilled again\n",
                (long long)report->device_losses);
}

/* Nothing where no request has such a time. */
static void print_waits(const char *name, const struct report_times *times, FILE *file)
{
    for (int clock = REPORT_CLOCKS - 1; clock >= 0 && times[clock].count > 0; clock--)
        fprintf(file, "%-12s p50 %.3f ms  p90 %.3f ms  p99 %.3f ms  (%s clock)\n",
                clock == REPORT_WALL ? name : "", report_quantile_us(&times[clock], 0.5) * 1e-3,
                report_quantile_us(&times[clock], 0.9) * 1e-3,
                report_quantile_us(&times[clock], 0.99) * 1e-3, clocks[clock]);
}

static void print_drafts(const struct report *report, FILE *file)
{
    text_wrap_line(
        file, 0, COLUMN,
        "speculative  %lld verifications, %.3f tokens each  drafted %lld  accepted %lld  "
        "wasted %lld  draft rows %lld",
        (long long)report->drafts.verifications, tokens_per_verification(report),
        (long long)report->drafts.drafted, (long long)report->drafts.accepted,
        (long long)(report->drafts.drafted - report->drafts.accepted),
        (long long)report->drafts.draft_extend);
    text_wrap_line(file, COLUMN, COLUMN, "digest of generated tokens %s", report->drafts.digest);
}

static void print_steps(const char *name, const char *phase, const struct report_times *times,
                        FILE *file)
{
    fprintf(file, "%-12s %-7s p50 %.1f us  p99 %.1f us\n", name, phase,
            report_quantile_us(times, 0.5), report_quantile_us(times, 0.99));
}

/* One line for one pool, one for each of more. */
static void print_kv(const struct report *report, FILE *file)
{
    if (report->kv.num_pools < 2)
        fprintf(file, "kv tokens    capacity %lld  peak %lld  leaked %lld\n",
                (long long)report->kv.capacity, (long long)report->kv.peak,
                (long long)report->kv.leaked);
    for (int p = 0; p < report->kv.num_pools && report->kv.num_pools > 1; p++) {
        const struct report_pool *pool = &report->kv.pools[p];
        fprintf(file, "%-12s %s: %d layers, capacity %lld  peak %lld  held %lld  leaked %lld\n",
                p == 0 ? "kv tokens" : "", pool->holds, pool->layers, (long long)pool->capacity,
                (long long)pool->peak, (long long)pool->held, (long long)pool->leaked);
    }
}

void report_print(const struct report *report, FILE *file)
{
    fprintf(file, "requests     %lld in %lld steps, %.3f s\n", (long long)report->requests,
            (long long)report->steps, report->wall_s);
    if (report->skipped > 0 || report->cut > 0)
        fprintf(file, "too long     %lld left out, %lld cut to the model's context\n",
                (long long)report->skipped, (long long)report->cut);
    fprintf(file, "tokens       prefill %lld  decode %lld  prefix hit %lld  recomputed %lld\n",
            (long long)report->tokens.prefill, (long long)report->tokens.decode,
            (long long)report->tokens.prefix_hit, (long long)report->tokens.recomputed);
    if (report->drafts.present)
        print_drafts(report, file);
    if (report->has_shared)
        fprintf(file, "prefix       shared rows %lld  saved keys %lld of %lld\n",
                (long long)report->shared.rows, (long long)report->shared.saved_keys,
                (long long)report->shared.keys);
    for (int clock = REPORT_CLOCKS - 1; clock >= 0; clock--)
        fprintf(file, "%-12s prefill %.1f  decode %.1f  (%s clock)\n",
                clock == REPORT_WALL ? "tokens/s" : "",
                per_second(report, clock, report->tokens.prefill),
                per_second(report, clock, report->tokens.decode), clocks[clock]);
    print_waits("TTFT", report->ttft, file);
    print_waits("TPOT", report->tpot, file);
    for (uint32_t p = 0; p < report->num_paths; p++)
        fprintf(file, "%-12s %s: %lld rows\n", p == 0 ? "paths" : "", report->paths[p].name,
                (long long)report->paths[p].rows);
    text_wrap_line(file, 0, COLUMN,
                   "verify       %lld rows checked, %lld failed, max abs error %.3g, relative %.3g",
                   (long long)report->verify.rows_checked, (long long)report->verify.rows_failed,
                   report->verify.max_abs_err, report->verify.max_rel_err);
    if (report->verify.steps_not_finite > 0)
        fprintf(file, "             %lld steps with an output that is not finite\n",
                (long long)report->verify.steps_not_finite);
    if (report->verify.trespasses > 0)
        fprintf(file, "             %lld forwards wrote into their inputs or past their output\n",
                (long long)report->verify.trespasses);
    double share = detectable_share(report);
    if (share > 0)
        text_wrap_line(file, COLUMN, COLUMN,
                       "a fault of 1 row in %.0f would have been seen with 95 %% probability",
                       floor(1 / share));
    if (report->verify.first_failure[0])
        text_wrap_line(file, COLUMN, COLUMN, "first failure: %s", report->verify.first_failure);
    print_kv(report, file);
    if (report->states.present)
        fprintf(file, "states kept  capacity %lld  peak %lld  leaked %lld\n",
                (long long)report->states.capacity, (long long)report->states.peak,
                (long long)report->states.leaked);
    print_steps("step", "prefill", &report->prefill, file);
    print_steps("", "decode", &report->decode, file);
    if (report_has_device(report))
        print_device(report, file);
    fprintf(file, "digest       %s\n", report->digest);
    if (report->failed_steps > 0)
        fprintf(file, "failed       steps %lld  requests dropped %lld\n",
                (long long)report->failed_steps, (long long)report->dropped);
    if (report->ended_by[0])
        text_wrap_line(file, 0, COLUMN, "ended by     %s", report->ended_by);
    if (report->interrupted)
        fputs("interrupted  by a signal, before all requests had ended\n", file);
}
