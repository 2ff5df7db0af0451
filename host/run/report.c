/* SPDX-License-Identifier: Apache-2.0 */
#include "host/run/report.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"

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
    free(report->prefill.ns);
    free(report->decode.ns);
    free(report->host.prefill.ns);
    free(report->host.decode.ns);
    free(report->host.prefill_launch.ns);
    free(report->host.decode_launch.ns);
    report_init(report);
}

/* ---- Gathering ------------------------------------------------------------------------------- */

attn_status report_add_time(struct report_times *times, int64_t ns, attn_error *error)
{
    if (times->count == times->capacity) {
        size_t capacity = times->capacity ? 2 * times->capacity : 1024;
        int64_t *grown = realloc(times->ns, capacity * sizeof *grown);
        if (!grown)
            return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "durations of %zu steps", capacity);
        times->ns = grown;
        times->capacity = capacity;
    }
    times->ns[times->count++] = ns;
    return ATTN_OK;
}

static int compare_ns(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

double report_quantile_us(const struct report_times *times, double p)
{
    if (times->count == 0)
        return 0;
    int64_t *sorted = malloc(times->count * sizeof *sorted);
    if (!sorted)
        return 0;
    memcpy(sorted, times->ns, times->count * sizeof *sorted);
    qsort(sorted, times->count, sizeof *sorted, compare_ns);
    size_t rank = (size_t)ceil(p * (double)times->count);
    double us = (double)sorted[rank > 0 ? rank - 1 : 0] * 1e-3;
    free(sorted);
    return us;
}

bool report_has_device(const struct report *report)
{
    return report->host.prefill.count + report->host.decode.count > 0;
}

static double sum_ns(const struct report_times *times)
{
    double sum = 0;
    for (size_t i = 0; i < times->count; i++)
        sum += (double)times->ns[i];
    return sum;
}

double report_host_share(const struct report *report)
{
    double steps = sum_ns(&report->prefill) + sum_ns(&report->decode);
    double host = sum_ns(&report->host.prefill) + sum_ns(&report->host.decode);
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

/* What stands for a NaN or an infinity, which JSON does not know. */
#define NOT_FINITE 1e308

/* Each of these is false when memory ran out; cJSON accepts the NULL that an earlier call gave. */

/* 15 significant digits, whatever the locale. */
static bool add_number(cJSON *object, const char *name, double value)
{
    return cJSON_AddNumberToObject(object, name, isfinite(value) ? value : NOT_FINITE) != NULL;
}

static bool add_text(cJSON *object, const char *name, const char *text)
{
    return cJSON_AddStringToObject(object, name, text) != NULL;
}

/* As digits: cJSON's own numbers are doubles, printed with 15 of theirs. */
static bool add_count(cJSON *object, const char *name, int64_t value)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%lld", (long long)value);
    return cJSON_AddRawToObject(object, name, digits) != NULL;
}

static bool add_seed(cJSON *object, const char *name, uint64_t value)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    return cJSON_AddRawToObject(object, name, digits) != NULL;
}

static bool add_tokens(cJSON *root, const struct report *report)
{
    cJSON *tokens = cJSON_AddObjectToObject(root, "tokens");
    return add_count(tokens, "prefill", report->tokens.prefill) &&
           add_count(tokens, "decode", report->tokens.decode) &&
           add_count(tokens, "prefix_hit", report->tokens.prefix_hit) &&
           add_count(tokens, "recomputed", report->tokens.recomputed);
}

static bool add_choice(cJSON *list, const struct report_choice *choice)
{
    cJSON *object = cJSON_CreateObject();
    return cJSON_AddItemToArray(list, object) && add_text(object, "layers", choice->layers) &&
           add_text(object, "phase", choice->phase) && add_text(object, "backend", choice->backend);
}

/* A second of the wall clock; 0 where none has passed. */
static double per_second(const struct report *report, int64_t tokens)
{
    return report->wall_s > 0 ? (double)tokens / report->wall_s : 0;
}

static bool add_rates(cJSON *root, const struct report *report)
{
    cJSON *rates = cJSON_AddObjectToObject(root, "tokens_per_s");
    return add_number(rates, "prefill", per_second(report, report->tokens.prefill)) &&
           add_number(rates, "decode", per_second(report, report->tokens.decode));
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
        ok = add_count(paths, report->paths[p].name, report->paths[p].rows);
    return ok;
}

static bool add_verify(cJSON *root, const struct report *report)
{
    cJSON *verify = cJSON_AddObjectToObject(root, "verify");
    const char *failure = report->verify.first_failure;
    return add_count(verify, "rows_checked", report->verify.rows_checked) &&
           add_count(verify, "rows_failed", report->verify.rows_failed) &&
           add_number(verify, "max_abs_err", report->verify.max_abs_err) &&
           add_number(verify, "max_rel_err", report->verify.max_rel_err) &&
           (report->verify.steps_not_finite == 0 ||
            add_count(verify, "steps_not_finite", report->verify.steps_not_finite)) &&
           (report->verify.trespasses == 0 ||
            add_count(verify, "trespasses", report->verify.trespasses)) &&
           (!failure[0] || add_text(verify, "first_failure", failure));
}

static bool add_kv(cJSON *root, const struct report *report)
{
    cJSON *kv = cJSON_AddObjectToObject(root, "kv");
    return add_count(kv, "capacity", report->kv.capacity) &&
           add_count(kv, "peak", report->kv.peak) && add_count(kv, "leaked", report->kv.leaked);
}

static bool add_states(cJSON *root, const struct report *report)
{
    if (!report->states.present)
        return true;
    cJSON *states = cJSON_AddObjectToObject(root, "states");
    return add_count(states, "capacity", report->states.capacity) &&
           add_count(states, "peak", report->states.peak) &&
           add_count(states, "leaked", report->states.leaked);
}

static bool add_times(cJSON *latency, const char *phase, const struct report_times *times)
{
    cJSON *object = cJSON_AddObjectToObject(latency, phase);
    return add_number(object, "p50", report_quantile_us(times, 0.5)) &&
           add_number(object, "p99", report_quantile_us(times, 0.99));
}

static bool add_latency(cJSON *root, const struct report *report)
{
    cJSON *latency = cJSON_AddObjectToObject(root, "latency_us");
    return add_times(latency, "prefill", &report->prefill) &&
           add_times(latency, "decode", &report->decode);
}

/* What only a device that works by itself has. */
static bool add_device(cJSON *root, const struct report *report)
{
    if (!report_has_device(report))
        return true;
    cJSON *device = cJSON_AddObjectToObject(root, "device");
    cJSON *host = cJSON_AddObjectToObject(device, "host_us");
    cJSON *graphs = cJSON_AddObjectToObject(device, "graphs");
    return add_times(host, "prefill", &report->host.prefill) &&
           add_times(host, "decode", &report->host.decode) &&
           add_times(host, "prefill_launch", &report->host.prefill_launch) &&
           add_times(host, "decode_launch", &report->host.decode_launch) &&
           add_number(device, "host_share", report_host_share(report)) &&
           add_count(graphs, "count", report->graphs.count) &&
           add_count(graphs, "metadata_bytes", report->graphs.metadata_bytes) &&
           add_count(graphs, "bytes", report->graphs.bytes) &&
           add_count(device, "losses", report->device_losses);
}

/* What did not come to its end. */
static bool add_end(cJSON *root, const struct report *report)
{
    if (report->failed_steps > 0 && !(add_count(root, "failed_steps", report->failed_steps) &&
                                      add_count(root, "dropped", report->dropped)))
        return false;
    return !report->interrupted || cJSON_AddTrueToObject(root, "interrupted") != NULL;
}

static bool add_all(cJSON *root, const struct report *report)
{
    return add_count(root, "requests", report->requests) &&
           add_count(root, "steps", report->steps) && add_tokens(root, report) &&
           add_number(root, "wall_s", report->wall_s) && add_rates(root, report) &&
           add_composition(root, report) && add_paths(root, report) && add_verify(root, report) &&
           add_kv(root, report) && add_states(root, report) && add_latency(root, report) &&
           add_device(root, report) && add_text(root, "digest", report->digest) &&
           add_seed(root, "seed", report->seed) && add_end(root, report);
}

char *report_json(const struct report *report)
{
    cJSON *root = cJSON_CreateObject();
    char *text = add_all(root, report) ? cJSON_Print(root) : NULL;
    cJSON_Delete(root);
    if (!text)
        return NULL;
    size_t length = strlen(text);
    char *line = malloc(length + 2);
    if (line)
        snprintf(line, length + 2, "%s\n", text);
    cJSON_free(text);
    return line;
}

/* ---- Text ------------------------------------------------------------------------------------ */

static void print_device(const struct report *report, FILE *file)
{
    fprintf(file,
            "host         prefill p50 %.1f us  decode p50 %.1f us, to launch %.1f us  share of "
            "the steps' time %.3f\n",
            report_quantile_us(&report->host.prefill, 0.5),
            report_quantile_us(&report->host.decode, 0.5),
            report_quantile_us(&report->host.decode_launch, 0.5), report_host_share(report));
    fprintf(file, "graphs       %lld captured, %lld bytes of metadata, %lld bytes in all\n",
            (long long)report->graphs.count, (long long)report->graphs.metadata_bytes,
            (long long)report->graphs.bytes);
    if (report->device_losses > 0)
        fprintf(file, "device       lost %lld times; all running requests were prefilled again\n",
                (long long)report->device_losses);
}

void report_print(const struct report *report, FILE *file)
{
    fprintf(file, "requests     %lld in %lld steps, %.3f s\n", (long long)report->requests,
            (long long)report->steps, report->wall_s);
    fprintf(file, "tokens       prefill %lld  decode %lld  prefix hit %lld  recomputed %lld\n",
            (long long)report->tokens.prefill, (long long)report->tokens.decode,
            (long long)report->tokens.prefix_hit, (long long)report->tokens.recomputed);
    fprintf(file, "tokens/s     prefill %.1f  decode %.1f  (wall clock)\n",
            per_second(report, report->tokens.prefill), per_second(report, report->tokens.decode));
    for (uint32_t p = 0; p < report->num_paths; p++)
        fprintf(file, "%-12s %s: %lld rows\n", p == 0 ? "paths" : "", report->paths[p].name,
                (long long)report->paths[p].rows);
    fprintf(file,
            "verify       %lld rows checked, %lld failed, max abs error %.3g, relative %.3g\n",
            (long long)report->verify.rows_checked, (long long)report->verify.rows_failed,
            report->verify.max_abs_err, report->verify.max_rel_err);
    if (report->verify.steps_not_finite > 0)
        fprintf(file, "             %lld steps with an output that is not finite\n",
                (long long)report->verify.steps_not_finite);
    if (report->verify.trespasses > 0)
        fprintf(file, "             %lld forwards wrote into their inputs or past their output\n",
                (long long)report->verify.trespasses);
    if (report->verify.first_failure[0])
        fprintf(file, "             first failure: %s\n", report->verify.first_failure);
    fprintf(file, "kv tokens    capacity %lld  peak %lld  leaked %lld\n",
            (long long)report->kv.capacity, (long long)report->kv.peak,
            (long long)report->kv.leaked);
    if (report->states.present)
        fprintf(file, "states kept  capacity %lld  peak %lld  leaked %lld\n",
                (long long)report->states.capacity, (long long)report->states.peak,
                (long long)report->states.leaked);
    fprintf(file, "step         prefill p50 %.1f us p99 %.1f us  decode p50 %.1f us p99 %.1f us\n",
            report_quantile_us(&report->prefill, 0.5), report_quantile_us(&report->prefill, 0.99),
            report_quantile_us(&report->decode, 0.5), report_quantile_us(&report->decode, 0.99));
    if (report_has_device(report))
        print_device(report, file);
    fprintf(file, "digest       %s\n", report->digest);
    if (report->failed_steps > 0)
        fprintf(file, "failed       %lld steps; %lld requests were dropped\n",
                (long long)report->failed_steps, (long long)report->dropped);
    if (report->interrupted)
        fputs("interrupted  by a signal, before all requests had ended\n", file);
}
