/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost bench: measures backends on shapes, side by side.
 */
#include <stdio.h>
#include <stdlib.h>

#include "host/cmd/arguments.h"
#include "host/bench/bench.h"
#include "host/cmd/bench_plan.h"
#include "host/cmd/commands.h"
#include "host/config/config.h"
#include "host/embed/embed.h"
#include "host/base/error.h"
#include "host/base/interrupt.h"
#include "host/cmd/exit_codes.h"
#include "host/cmd/json_file.h"
#include "host/select/open_host.h"
#include "host/base/progress.h"

/* 0 is a number of seconds here, and an hour is enough. */
static bool read_seconds(const char *text, void *place)
{
    double seconds;
    if (!text_parse_double(text, &seconds) || seconds < 0 || seconds > 3600)
        return false;
    *(double *)place = seconds;
    return true;
}

#define ACCEPTS_SECONDS "a number of seconds from 0 to 3600"

#define AT(member) offsetof(struct bench_values, member)

static const struct option_row options[] = {
    OPTION_ROW_LIST("backend", "NAME[,NAME]...", AT(backends),
                    "backends, or names of [backend.NAME] sections; may be repeated"),
    OPTION_ROW_LIST("shape", "KEY=VALUE[,...]", AT(shapes), "a shape, as below; may be repeated"),
    {.name = "device",
     .value = "auto|cpu|cuda:N",
     .kind = OPTION_KEY,
     .key = "platform.device",
     .help = "platform.device; auto is the device that `run` chooses for the ini, or the one that "
             "all backends of --backend have in common"},
    OPTION_ROW_VALUE(
        "seconds", "S", AT(seconds),
        "approximate time for everything, divided evenly (default: 1 for each backend on each "
        "shape and for each ceiling). A backend too slow for several calls is measured by one "
        "call; later shapes with long calls are left out",
        .read = read_seconds, .accepted = ACCEPTS_SECONDS),
    OPTION_ROW_VALUE(
        "sustain", "S", AT(sustain),
        "keep the device busy for S seconds before each measurement, without the pauses that "
        "keep a GPU cool (0)",
        .read = read_seconds, .accepted = ACCEPTS_SECONDS),
    {.name = "seed",
     .value = "N",
     .kind = OPTION_KEY,
     .key = "workload.seed",
     .help = "workload.seed, for values and the order of pages"},
    OPTION_ROW_TEXT("json", "FILE|-", AT(json),
                    "write everything, including each sample, as JSON; - is stdout"),
    {.name = "set",
     .value = "section.key=value",
     .kind = OPTION_SET,
     .help = "any key of the ini, such as backend.NAME.type, plugins.path, platform.max_sms, "
             "attention.batch_invariant = yes for only backends with that promise, or "
             "cuda_graph.enable = no for calls instead of graphs"},
    OPTION_END,
};

static void print_shapes(FILE *file)
{
    arguments_print_text(
        file,
        "A VALUE is one or more items separated by ':'; each item makes a shape, and several keys\n"
        "make all combinations. An item is a word, a number, A-BxF (A, A*F ... B), A-B/S (A, A+S\n"
        "... B), or N+N+N for lengths that the sequences of a batch take in turn.\n");
    bench_shape_print_keys(file);
    fputc('\n', file);
}

/* What is open during a bench. */
struct bench {
    const struct arguments *arguments;
    const struct config *config;
    attnhost *host;
    struct device *device;
    struct bench_report report;
    struct progress progress;
};

/* ---- Command line ---------------------------------------------------------------------------- */

static int check_given(const struct arguments *arguments)
{
    const struct bench_values *values = arguments->values;
    if (arguments->target)
        return EXIT_GOOD;
    if (values->backends.count == 0)
        return arguments_refuse(arguments,
                                "no backend is given; accepted: CONFIG.ini, or --backend NAME");
    if (values->shapes.count == 0)
        return arguments_refuse(arguments,
                                "no shape is given; accepted: CONFIG.ini, or --shape KEY=VALUE");
    return EXIT_GOOD;
}

/* ---- Time ------------------------------------------------------------------------------------ */

enum { NUM_CEILINGS = 3 };

static size_t count_measurements(const struct bench_report *report)
{
    size_t count = 0;
    for (size_t e = 0; e < report->num_entries; e++)
        count += report->entries[e].num_runs;
    return count;
}

/* Divide --seconds among the measurements; one second each by default. */
static void share_time(const struct bench_values *values, struct bench_report *report)
{
    double shares = (double)(count_measurements(report) + NUM_CEILINGS);
    report->total = values->seconds > 0 ? values->seconds : shares;
    report->seconds = report->total / shares;
}

static void tell_prediction(void *ctx, double seconds)
{
    const struct bench *bench = ctx;
    size_t count = count_measurements(&bench->report);
    if (seconds >= 10)
        arguments_complain(bench->arguments, "%zu measurement%s, about %.0f s", count,
                           count == 1 ? "" : "s", seconds);
}

/* ---- Running --------------------------------------------------------------------------------- */

static void show_progress(void *ctx, size_t done, size_t total, const char *what)
{
    struct progress *progress = &((struct bench *)ctx)->progress;
    if (!progress->what)
        progress_begin(progress, "shapes", (int64_t)total);
    progress_update(progress, (int64_t)done, what);
    if (done == total)
        progress_end(progress);
}

static int measure(struct bench *bench, attn_error *error)
{
    struct bench_params params = {
        .host = bench->host,
        .threads = bench->host->threads,
        .eager = !bench->config->cuda_graph.enable,
        .max_sms = (int32_t)bench->config->platform.max_sms,
        .required_traits =
            bench->config->attention.batch_invariant ? ATTN_TRAIT_BATCH_INVARIANT : 0,
        .progress = show_progress,
        .predict = tell_prediction,
        .progress_ctx = bench,
    };
    attn_device described;
    if (bench->config->platform.simulate)
        return exit_code_of(
            config_fail(bench->config, "platform.simulate", error,
                        "a simulated device cannot run; `attnhost explain` takes it"));
    attn_status status =
        bench_plan(bench->arguments, bench->config, bench->host, &described, &bench->report, error);
    if (status == ATTN_OK)
        status = provenance_take(&bench->report.from, bench->host, bench->arguments->line, error);
    if (status == ATTN_OK)
        status = device_open(described.type, described.id, &bench->device, error);
    params.device = bench->device;
    share_time(bench->arguments->values, &bench->report);
    if (status == ATTN_OK)
        status = bench_measure(&params, &bench->report, error);
    return exit_code_of(status);
}

/* A completed bench may contain a shape that no backend served, or a backend that failed or is
 * wrong. */
static int judge(const struct bench_report *report)
{
    int code = EXIT_GOOD;
    bool wrong = false;
    for (size_t e = 0; e < report->num_entries; e++) {
        const struct bench_entry *entry = &report->entries[e];
        uint32_t ran = 0;
        for (uint32_t r = 0; r < entry->num_runs; r++) {
            ran += entry->runs[r].outcome == BENCH_RAN || entry->runs[r].outcome == BENCH_LEFT_OUT;
            if (entry->runs[r].outcome == BENCH_FAILED)
                return EXIT_RUN_TIME;
            wrong |= entry->runs[r].outcome == BENCH_WRONG;
        }
        if (ran == 0)
            code = EXIT_NO_BACKEND;
    }
    return wrong ? EXIT_CHECK_FAILED : code;
}

static void tell_missing(const struct bench *bench)
{
    const struct bench_ceilings *c = &bench->report.ceilings;
    const struct bench_ceiling *const all[] = {&c->copy, &c->read, &c->matrix};
    static const char *const names[] = {"copy", "read", "matrix"};
    for (int i = 0; i < 3; i++)
        if (all[i]->rate <= 0)
            arguments_complain(bench->arguments, "ceiling %s was not measured: %s", names[i],
                               all[i]->why);
}

/* With everything open; `json` gets the report. */
static int run_bench(struct bench *bench, struct json_file *json)
{
    host_error error;
    host_error_init(&error);
    int code = exit_code_of(open_host(bench->config, &bench->host, &error.base));
    if (code == EXIT_GOOD) {
        open_host_print_refused(bench->host, "bench", stderr);
        code = measure(bench, &error.base);
    }
    if (code != EXIT_GOOD) {
        arguments_complain(bench->arguments, "%s", host_error_text(&error));
        return code;
    }
    tell_missing(bench);
    if (!json_file_is_stdout(json))
        bench_print(&bench->report, stdout);
    char *text = json->path ? bench_json(&bench->report) : NULL;
    int written = json_file_write(json, text);
    free(text);
    if (written != EXIT_GOOD)
        return written;
    return bench->report.interrupted ? 128 + interrupt_seen() : judge(&bench->report);
}

static int bench_config(const struct arguments *arguments, const struct config *config)
{
    const struct bench_values *values = arguments->values;
    struct json_file json;
    struct bench bench = {.arguments = arguments,
                          .config = config,
                          .report = {.seed = config->workload.seed, .sustain = values->sustain}};
    int code = json_file_prepare(&json, arguments, values->json);
    if (code != EXIT_GOOD)
        return code;
    code = run_bench(&bench, &json);
    bench_report_finish(&bench.report);
    device_close(bench.device);
    attnhost_destroy(bench.host);
    return code;
}

static int run(struct arguments *arguments)
{
    struct config *config = NULL;
    int code = check_given(arguments);
    if (code == EXIT_GOOD)
        code = arguments_load_config(arguments, arguments->target, &config);
    if (code == EXIT_GOOD)
        code = bench_config(arguments, config);
    config_destroy(config);
    return code;
}

const struct command command_bench = {
    .name = "bench",
    .summary = "measure backends side by side",
    .usage = "--backend NAME[,...] --shape KEY=VALUE[,...] [OPTION]...\n"
             "CONFIG.ini [OPTION]...",
    .names = "CONFIG.ini",
    .target = TARGET_AT_MOST_ONE,
    .ends_early = true,
    .calls_plugins = true,
    .about =
        "Measures forwards of backends on shapes. The backends of a shape alternate (A B A B ...)\n"
        "after a warmup. Random inputs rotate through more memory than the last-level cache. On a\n"
        "GPU times come from CUDA events, and calls from graphs if the backend can be captured. "
        "Each\n"
        "backend is compared with the first one, and with the device's ceilings, measured in the\n"
        "same run.\n"
        "\n"
        "CONFIG.ini gives shapes from its model: each layer group as prefill of\n"
        "workload.chunked_prefill_size tokens and as decode of workload.max_running_requests\n"
        "sequences of as many keys, on the backends that it chooses. --shape replaces the shapes;\n"
        "keys left out come from the model. --backend replaces the backends. Sparse layers are\n"
        "latent layers with an indexer.\n",
    .options = options,
    .more = print_shapes,
    .ending =
        "The table goes to stdout, everything else to stderr. Rows of each backend's output are\n"
        "verified before and after timing; a backend with wrong output is not ranked. Exit codes: "
        "0\n"
        "success; 1 a backend's output is wrong; 2 usage or configuration; 3 a critical plugin is\n"
        "refused; 4 no backend can serve some shape; 5 a backend failed while running.\n"
        "\n"
        "examples:\n"
        "  attnhost bench --backend cpu_native --shape mode=decode,kv_len=1024-4096x2\n"
        "  attnhost bench --backend triton_like --shape mode=prefill,kv_len=2048:8192\n"
        "  attnhost bench --backend cpu_native --shape kind=mla,heads=16,kv_len=1024\n"
        "  attnhost bench --backend cpu_linear --shape kind=gdn,state_dtype=f32:bf16\n"
        "  attnhost bench examples/quickstart.ini --json -\n",
    .size = sizeof(struct bench_values),
    .run = run,
};
