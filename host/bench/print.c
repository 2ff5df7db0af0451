/* SPDX-License-Identifier: Apache-2.0
 *
 * print.c: results, as a table for people and as lossless JSON.
 */
#include "host/bench/bench.h"

#include <string.h>

#include "host/base/dtype.h"
#include "host/base/json_add.h"
#include "host/base/text.h"

/* ---- Table ----------------------------------------------------------------------------------- */

enum { TEXT = 288, MAX_BACKEND = 12 };

/* By BENCH_REFUSED and so on. */
static const char *const outcomes[] = {"refused", "ran", "failed", "left out", "wrong"};

/* "layers 0-3: decode B32 ..." */
static void entry_text(const struct bench_entry *entry, char text[TEXT])
{
    char shape[160];
    bench_shape_text(&entry->shape, shape, sizeof shape);
    snprintf(text, TEXT, "%s%s%s", entry->origin, entry->origin[0] ? ": " : "", shape);
}

static const char *layout_note(const struct bench_run *run)
{
    return strcmp(run->layout, ATTN_LAYOUT_KV_HND) == 0         ? " hnd"
           : strcmp(run->layout, ATTN_LAYOUT_STATE_SSM_VK) == 0 ? " vk"
                                                                : "";
}

/* Four significant digits. */
static const char *number(double value, char text[32])
{
    int decimals = value < 10 ? 3 : value < 100 ? 2 : value < 1000 ? 1 : 0;
    snprintf(text, 32, "%.*f", decimals, value);
    return text;
}

/* Type of the operands of the matrix ceiling (ceilings.h). */
static attn_dtype matrix_dtype(const struct bench_report *report)
{
    return report->from.device.type == ATTN_DEVICE_CPU ? ATTN_F32 : ATTN_BF16;
}

static void print_device(const struct bench_report *report, FILE *file)
{
    const attn_device *device = &report->from.device;
    fprintf(file, "device    %s", report->from.names.name[0] ? report->from.names.name : "unnamed");
    if (device->type == ATTN_DEVICE_CPU)
        fprintf(file, ", %u threads\n", report->from.num_threads);
    else
        fprintf(file, ", cuda:%d, sm_%u, %u multiprocessors, CUDA %u.%u\n", device->id, device->sm,
                device->num_sms, device->driver_version / 1000, device->driver_version % 1000 / 10);
    if (report->max_sms > 0)
        fprintf(file, "limit     launches may use %d multiprocessors\n", report->max_sms);
    if (report->required_traits & ATTN_TRAIT_BATCH_INVARIANT)
        fprintf(file, "results   batch-invariant\n");
    if (report->sustain > 0)
        fprintf(file, "regime    kept up: %g s of load before each measurement, no rests\n",
                report->sustain);
    else if (report->rest > 0)
        fprintf(file,
                "regime    cool: short bursts, each followed by a rest of %g times its length\n",
                report->rest);
    else
        fprintf(file, "regime    no load beforehand, no rests\n");
}

static void print_ceiling(const char *name, const struct bench_ceiling *ceiling, double unit,
                          const char *unit_name, FILE *file)
{
    char text[32];
    if (ceiling->rate > 0)
        fprintf(file, "  %s %s %s", name, number(ceiling->rate / unit, text), unit_name);
    else
        fprintf(file, "  %s -", name);
}

/* "1 call": so slow that its first one is all there is. */
static const char *how_text(const struct bench_run *run)
{
    return run->one_call ? "1 call" : run->graph ? "graph" : "eager";
}

static void print_row(const struct bench_run *run, FILE *file)
{
    static const char *const bounds[] = {"", " memory", " compute"};
    char a[32], b[32], c[32], d[32], e[32], share[16] = "-";
    if (run->impossible)
        snprintf(share, sizeof share, "impossible");
    else if (run->fraction > 0)
        snprintf(share, sizeof share, "%.0f%%%s", 100 * run->fraction, bounds[run->bound]);
    fprintf(file, " %-6s %8s %7s %7s %7s %5s %-11s %.3f%s\n", how_text(run),
            number(run->us.median, a), number(run->us.p10, b), number(run->us.p90, c),
            number(run->flops / 1e12, d), number(run->bytes_rate / 1e9, e), share, run->ratio,
            layout_note(run));
}

/* Why no share of a ceiling is printed, where a backend lacks one for that reason. */
static void print_unknown(const struct bench_report *report, const struct bench_entry *entry,
                          FILE *file)
{
    bool lacks = false;
    for (uint32_t r = 0; r < entry->num_runs; r++)
        lacks |= entry->runs[r].outcome == BENCH_RAN && entry->runs[r].bound == BENCH_BOUND_NONE;
    if (lacks && !bench_compute_is_known(report, entry))
        text_wrap_line(file, 2, 4,
                       "of ceiling: unknown, as fp8 products are faster than matrix, which is %s",
                       dtype_name(matrix_dtype(report)));
}

static void print_impossible(const struct bench_run *run, FILE *file)
{
    static const char *const bounds[] = {"", "memory", "compute"};
    if (run->impossible)
        text_wrap_line(
            file, 2, 4,
            "%s: %.3g times as fast as the %s ceiling allows: it does not do the work in "
            "each call, or the ceiling was measured on a busy machine",
            run->backend, run->fraction, bounds[run->bound]);
}

/* For a backend that compiles in its first calls: the figure may be one of these calls. */
static void print_warm(const struct bench_run *run, FILE *file)
{
    if (run->one_call && run->warm_seconds > 0)
        text_wrap_line(
            file, 2, 4,
            "%s: it compiles in its first calls, which are repeated while each takes less than "
            "half of the previous one, for %g s at most; the last one is shown, after %.3g s",
            run->backend, BENCH_WARM_SECONDS, run->warm_seconds);
}

/* The shape, and a row for each backend below it, of 80 columns; a longer name has a line of its
 * own.
 */
static void print_entry(const struct bench_report *report, const struct bench_entry *entry,
                        int width, FILE *file)
{
    char text[TEXT];
    entry_text(entry, text);
    fprintf(file, "%s%s\n", text, entry->num_runs ? "" : ": no backend serves it");
    for (uint32_t r = 0; r < entry->num_runs; r++) {
        const struct bench_run *run = &entry->runs[r];
        bool folded = (int)strlen(run->backend) > width;
        if (run->outcome != BENCH_RAN) {
            text_wrap_line(file, 2, (size_t)width + 3, "%-*s %s: %s", width, run->backend,
                           outcomes[run->outcome], strbuf_text(&run->why));
            continue;
        }
        fprintf(file, "  %-*s", width, run->backend);
        if (folded)
            fprintf(file, "\n  %*s", width, "");
        print_row(run, file);
        print_impossible(run, file);
        print_warm(run, file);
    }
    print_unknown(report, entry, file);
}

/* Of the names, within reason. */
static int backend_width(const struct bench_report *report)
{
    int width = (int)strlen("backend");
    for (size_t e = 0; e < report->num_entries; e++)
        for (uint32_t r = 0; r < report->entries[e].num_runs; r++) {
            int length = (int)strlen(report->entries[e].runs[r].backend);
            width = length > width ? length : width;
        }
    return width < MAX_BACKEND ? width : MAX_BACKEND;
}

void bench_print(const struct bench_report *report, FILE *file)
{
    const struct bench_ceilings *ceilings = &report->ceilings;
    const char *unit = matrix_dtype(report) == ATTN_F32 ? "TFLOP/s (fp32)" : "TFLOP/s (bf16)";
    int width = backend_width(report);
    print_device(report, file);
    fputs("ceilings", file);
    print_ceiling("copy", &ceilings->copy, 1e9, "GB/s", file);
    print_ceiling("read", &ceilings->read, 1e9, "GB/s", file);
    print_ceiling("matrix", &ceilings->matrix, 1e12, unit, file);
    fprintf(file, "\n\n  %-*s %-6s %8s %7s %7s %7s %5s %-11s %s\n", width, "backend", "how", "us",
            "p10", "p90", "TFLOP/s", "GB/s", "of ceiling", "ratio");
    for (size_t e = 0; e < report->num_entries; e++)
        print_entry(report, &report->entries[e], width, file);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Each of these is false when memory ran out. */

static bool add_samples(cJSON *object, const struct bench_samples *samples)
{
    return json_add_numbers(object, "samples_us", samples->us, samples->count, sizeof *samples->us);
}

static bool add_regime(cJSON *root, const struct bench_report *report)
{
    cJSON *object = cJSON_AddObjectToObject(root, "regime");
    return json_add_text(object, "name", report->sustain > 0 ? "kept up" : "cool") &&
           json_add_number(object, "sustain_s", report->sustain) &&
           json_add_number(object, "rest", report->rest) &&
           json_add_number(object, "max_sms", report->max_sms) &&
           cJSON_AddBoolToObject(object, "batch_invariant",
                                 (report->required_traits & ATTN_TRAIT_BATCH_INVARIANT) != 0);
}

/* null where it was not measured. */
static bool add_ceiling(cJSON *object, const char *name, const struct bench_ceiling *ceiling,
                        const char *amount, const char *rate)
{
    if (ceiling->rate <= 0)
        return cJSON_AddNullToObject(object, name) != NULL;
    cJSON *made = cJSON_AddObjectToObject(object, name);
    return json_add_number(made, amount, ceiling->amount) &&
           json_add_number(made, rate, ceiling->rate) && add_samples(made, &ceiling->samples);
}

static bool add_ceilings(cJSON *root, const struct bench_report *report)
{
    const struct bench_ceilings *ceilings = &report->ceilings;
    cJSON *object = cJSON_AddObjectToObject(root, "ceilings");
    return add_ceiling(object, "copy", &ceilings->copy, "bytes", "bytes_per_s") &&
           add_ceiling(object, "read", &ceilings->read, "bytes", "bytes_per_s") &&
           add_ceiling(object, "matrix", &ceilings->matrix, "flop", "flop_per_s") &&
           json_add_text(object, "matrix_dtype", dtype_name(matrix_dtype(report)));
}

static bool add_lens(cJSON *object, const char *name, const struct bench_lens *lens)
{
    cJSON *list = cJSON_AddArrayToObject(object, name);
    bool ok = list != NULL;
    for (int32_t i = 0; ok && i < lens->count; i++)
        ok = cJSON_AddItemToArray(list, cJSON_CreateNumber(lens->items[i]));
    return ok;
}

static bool add_value(cJSON *object, const struct bench_shape_value *value)
{
    switch (value->type) {
    case BENCH_VALUE_INT:
        return json_add_int(object, value->name, value->integer);
    case BENCH_VALUE_NUMBER:
        return json_add_number(object, value->name, value->number);
    case BENCH_VALUE_BOOL:
        return cJSON_AddBoolToObject(object, value->name, value->integer) != NULL;
    case BENCH_VALUE_LENS:
        return add_lens(object, value->name, value->lens);
    default:
        return json_add_text(object, value->name, value->text);
    }
}

static bool add_shape(cJSON *entry, const struct bench_shape *shape)
{
    struct bench_shape_value value;
    cJSON *object = cJSON_AddObjectToObject(entry, "shape");
    bool ok = object != NULL;
    for (int i = 0; ok && bench_shape_value(shape, i, &value); i++)
        ok = add_value(object, &value);
    return ok;
}

static bool add_figures(cJSON *object, const struct bench_run *run)
{
    static const char *const bounds[] = {"none", "memory", "compute"};
    bool known = run->fraction > 0;
    return cJSON_AddBoolToObject(object, "graph", run->graph) &&
           json_add_text(object, "layout", run->layout) &&
           json_add_uint(object, "calls", run->calls) &&
           json_add_uint(object, "samples_per_round", run->per_round) &&
           cJSON_AddBoolToObject(object, "one_call", run->one_call) &&
           json_add_number(object, "median_us", run->us.median) &&
           json_add_number(object, "p10_us", run->us.p10) &&
           json_add_number(object, "p90_us", run->us.p90) &&
           json_add_number(object, "best_us", run->us.best) &&
           json_add_number(object, "flop_per_s", run->flops) &&
           json_add_number(object, "bytes_per_s", run->bytes_rate) &&
           (known ? json_add_number(object, "fraction", run->fraction)
                  : cJSON_AddNullToObject(object, "fraction") != NULL) &&
           json_add_text(object, "bound", bounds[run->bound]) &&
           cJSON_AddBoolToObject(object, "impossible", run->impossible) &&
           json_add_number(object, "ratio", run->ratio) &&
           json_add_number(object, "ratio_p10", run->ratio_p10) &&
           json_add_number(object, "ratio_p90", run->ratio_p90) &&
           add_samples(object, &run->samples);
}

static bool add_run(cJSON *list, const struct bench_run *run)
{
    cJSON *object = cJSON_CreateObject();
    return cJSON_AddItemToArray(list, object) && json_add_text(object, "backend", run->backend) &&
           json_add_text(object, "outcome", outcomes[run->outcome]) &&
           (run->outcome == BENCH_RAN ? add_figures(object, run)
                                      : json_add_text(object, "why", strbuf_text(&run->why)));
}

/* The name of the ceiling that operations are compared with; null where there is none of these
 * products. */
static bool add_compute_ceiling(cJSON *object, const struct bench_report *report,
                                const struct bench_entry *entry)
{
    return bench_compute_is_known(report, entry)
               ? json_add_text(object, "compute_ceiling", "matrix")
               : cJSON_AddNullToObject(object, "compute_ceiling") != NULL;
}

static bool add_entry(cJSON *list, const struct bench_report *report,
                      const struct bench_entry *entry)
{
    char text[TEXT];
    cJSON *object = cJSON_CreateObject();
    entry_text(entry, text);
    bool ok = cJSON_AddItemToArray(list, object) && json_add_text(object, "text", text) &&
              json_add_text(object, "origin", entry->origin) && add_shape(object, &entry->shape) &&
              json_add_int(object, "tokens", entry->count.tokens) &&
              json_add_int(object, "pairs", entry->count.pairs) &&
              json_add_int(object, "seen_keys", entry->count.seen_keys) &&
              json_add_number(object, "flop", entry->count.flop) &&
              json_add_number(object, "bytes", entry->count.bytes) &&
              add_compute_ceiling(object, report, entry) &&
              json_add_uint(object, "copies", entry->copies);
    cJSON *runs = ok ? cJSON_AddArrayToObject(object, "backends") : NULL;
    ok = runs != NULL;
    for (uint32_t r = 0; ok && r < entry->num_runs; r++)
        ok = add_run(runs, &entry->runs[r]);
    return ok;
}

static bool add_all(cJSON *root, const struct bench_report *report)
{
    bool ok = provenance_add_json(root, &report->from) &&
              provenance_add_device(root, &report->from) && add_regime(root, report) &&
              json_add_uint(root, "seed", report->seed) &&
              json_add_number(root, "seconds", report->seconds) &&
              json_add_number(root, "total_seconds", report->total) && add_ceilings(root, report) &&
              (!report->interrupted || cJSON_AddTrueToObject(root, "interrupted"));
    cJSON *list = ok ? cJSON_AddArrayToObject(root, "results") : NULL;
    ok = list != NULL;
    for (size_t e = 0; ok && e < report->num_entries; e++)
        ok = add_entry(list, report, &report->entries[e]);
    return ok;
}

char *bench_json(const struct bench_report *report)
{
    cJSON *root = cJSON_CreateObject();
    return json_take_text(root, add_all(root, report));
}
