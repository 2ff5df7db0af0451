/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost check: the conformance suite on a plugin file.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "host/check/suite/profile.h"
#include "host/check/suite/suite.h"
#include "host/cmd/commands.h"
#include "host/base/error.h"
#include "host/base/output.h"
#include "host/cmd/exit_codes.h"
#include "host/plugin/loader.h"
#include "host/select/open_host.h"

enum { MAX_JOBS = 64 };

static bool read_jobs(const char *text, void *place)
{
    uint64_t number;
    if (!text_parse_uint64(text, &number) || number < 1 || number > MAX_JOBS)
        return false;
    *(uint32_t *)place = (uint32_t)number;
    return true;
}

static bool read_format(const char *text, void *place)
{
    static const char *const formats[] = {
        [FORMAT_TAP] = "tap",
        [FORMAT_JUNIT] = "junit",
        [FORMAT_JSON] = "json",
        [FORMAT_MARKDOWN] = "markdown",
    };
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        if (strcmp(formats[f], text) == 0) {
            *(enum check_format *)place = (enum check_format)f;
            return true;
        }
    return false;
}

#define AT(member) offsetof(struct check_params, member)

static const struct option_row options[] = {
    OPTION_ROW_TEXT("backend", "NAME", AT(backend), "check only this backend"),
    OPTION_ROW_VALUE("device", "cpu|cuda:N", AT(device),
                     "check on this device (default: the CPU if the backend serves it)",
                     OPTION_DEVICE),
    OPTION_ROW_LIST(
        "with", "OTHER.so", AT(with),
        "load this plugin too, for children of a composite; may be repeated. Its first "
        "backend serves as the children that no --option names (stand_in_1, stand_in_2 ...)"),
    OPTION_ROW_LIST(
        "option", "[NAME.]KEY=VALUE", AT(options),
        "an option of the backends that declare it, or of the child NAME, whose backend is "
        "NAME.type if it is not NAME itself; may be repeated"),
    OPTION_ROW_LIST(
        "filter", "GLOB", AT(filters),
        "check only ids that match: 'MEAN-*', 'cpu_native/KV-06.*/17'; may be repeated"),
    OPTION_ROW_SWITCH("fail-fast", AT(fail_fast),
                      "stop at the first failure; run cases one at a time, numerics first"),
    OPTION_ROW_SWITCH(
        "quick", AT(quick),
        "run at most three cases of each check, spread over its cases: a first answer during "
        "development"),
    OPTION_ROW_SWITCH(
        "list", AT(list),
        "print ids, seeds and sentences, and digests of the list of cases; check nothing. Without "
        "a plugin and with --format markdown: all checks, by rule"),
    OPTION_ROW_VALUE("seed", "N", AT(seed), "seed of random problems and data (default 0)",
                     OPTION_UINT64),
    OPTION_ROW_SWITCH("exhaustive", AT(exhaustive),
                      "run all combinations instead of a covering subset"),
    OPTION_ROW_VALUE(
        "repeat", "N", AT(repeat),
        "run each numeric case N times on the same inputs: compare bits if query declares "
        "DETERMINISTIC (INVAR-02), else judge each run (default 1; most cases take about N "
        "times as long)",
        .read = params_read_repeat, .accepted = PARAMS_ACCEPTS_REPEAT),
    OPTION_ROW_VALUE("format", "tap|junit|json|markdown", AT(format),
                     "format of the report (default: tap)", .read = read_format,
                     .accepted = "tap, junit, json, markdown"),
    OPTION_ROW_TEXT("output", "FILE", AT(output), "write the report to FILE (default: stdout)"),
    OPTION_ROW_TEXT(
        "profile", "NAME|FILE", AT(profile),
        "cases that must pass: core, paged-kv, mla, mla-absorbed, sparse, linear, quant-fp8, "
        "capture (default: core, unless cases are left out by --filter, --fail-fast, --quick, "
        "--in-process or --replay)"),
    OPTION_ROW_TEXT("waivers", "FILE", AT(waivers),
                    "known failures: lines ID-GLOB PLUGIN VERSION-GLOB EXPIRY WHY"),
    OPTION_ROW_TEXT("replay", "FILE", AT(replay), "run the case in a file from `attnhost fuzz`"),
    OPTION_ROW_VALUE("jobs", "N", AT(jobs),
                     "processes in parallel (default: half of the processors, at most 8)",
                     .read = read_jobs, .accepted = "1..64"),
    OPTION_ROW_VALUE(
        "timeout", "S", AT(timeout),
        "limit of the whole run in seconds; remaining cases are left out (default: none, "
        "while the plugin makes progress)",
        OPTION_SECONDS),
    OPTION_ROW_VALUE(
        "inactivity", "S", AT(inactivity),
        "stop a process after S seconds of its own time without a sign of life (default 30)",
        OPTION_SECONDS),
    OPTION_ROW_SWITCH("in-process", AT(in_process),
                      "run in this process and without time limits, for debuggers and sanitizers"),
    OPTION_END,
};

/* Inputs, which are all read before anything runs, so that errors in them are found at once. */
struct inputs {
    const struct arguments *arguments;
    struct check_params *params;
    struct replay replay;
    struct waivers waivers;
    struct profile profile;
    struct output file;
    FILE *output; /* stdout, or that file */
};

static int fail(const struct inputs *inputs, const host_error *error, int code)
{
    arguments_complain(inputs->arguments, "%s", host_error_text(error));
    return code;
}

static int open_output(struct inputs *inputs)
{
    const char *path = inputs->params->output;
    inputs->output = stdout;
    if (!path || inputs->params->list)
        return EXIT_GOOD;
    char why[160];
    output_forbid(inputs->params->plugin, "the plugin");
    bool may = output_prepare(&inputs->file, path, why);
    inputs->output = may ? output_open(&inputs->file) : NULL;
    if (inputs->output)
        return EXIT_GOOD;
    arguments_complain(inputs->arguments, "--output %s: %s", path, may ? strerror(errno) : why);
    return EXIT_USAGE;
}

/* A replay file names its plugin where the command line does not. */
static int load_replay(struct inputs *inputs)
{
    struct check_params *params = inputs->params;
    host_error error;
    host_error_init(&error);
    if (replay_load(params, &inputs->replay, &error.base))
        return fail(inputs, &error, EXIT_USAGE);
    if (inputs->arguments->target || loader_is_module(params->plugin) ||
        access(params->plugin, F_OK) == 0)
        return EXIT_GOOD;
    arguments_complain(
        inputs->arguments,
        "%s: plugin = %s: %s; accepted: a plugin's file, there or on the command line",
        params->replay, params->plugin, strerror(errno));
    return EXIT_USAGE;
}

/* Which profile the run is judged by; NULL = none: cases are left out on purpose. */
static const char *profile_of(const struct check_params *params)
{
    bool whole =
        params->filters.count == 0 && !params->replay && !params->in_process && !params->quick;
    return params->profile ? params->profile : whole ? check_groups_minimum() : NULL;
}

static int load(struct inputs *inputs)
{
    struct check_params *params = inputs->params;
    char today[16] = "";
    time_t now = time(NULL);
    struct tm utc;
    host_error error;
    host_error_init(&error);
    if (gmtime_r(&now, &utc))
        strftime(today, sizeof today, "%Y-%m-%d", &utc);
    if (params->replay && load_replay(inputs) != EXIT_GOOD)
        return EXIT_USAGE;
    if (params->waivers && waivers_load(params->waivers, today, &inputs->waivers, &error.base))
        return fail(inputs, &error, EXIT_USAGE);
    const char *profile = profile_of(params);
    if (profile && profile_load(profile, &inputs->profile, &error.base))
        return fail(inputs, &error, EXIT_USAGE);
    inputs->profile.is_minimum = !params->profile;
    return open_output(inputs);
}

static bool write_report(const struct check_report *report, FILE *file)
{
    switch (report->params->format) {
    case FORMAT_JUNIT:
        return write_junit(report, file);
    case FORMAT_JSON:
        return write_json(report, file);
    case FORMAT_MARKDOWN:
        return write_markdown(report, file);
    case FORMAT_TAP:
    default:
        write_tap_end(report, file);
        return true;
    }
}

/* Other commands accept a backend's name; this one needs a plugin's file. */
static void suggest_file(const struct arguments *arguments)
{
    char folder[PATH_MAX], file[2 * PATH_MAX];
    if (!arguments->target || strchr(arguments->target, '/'))
        return;
    open_host_plugin_folder(folder);
    snprintf(file, sizeof file, "%s/%s.so", folder, arguments->target);
    if (access(file, F_OK) == 0)
        arguments_complain(arguments, "did you mean %s?", file);
}

static int check(struct inputs *inputs)
{
    const struct check_params *params = inputs->params;
    struct check_report report;
    host_error error;
    host_error_init(&error);
    check_report_init(&report, params);
    report.waivers = params->waivers ? &inputs->waivers : NULL;
    if (params->format == FORMAT_TAP && !params->list)
        report.tap = inputs->output;
    enum check_outcome outcome = suite_run(params, params->replay ? &inputs->replay : NULL,
                                           params->list ? stdout : NULL, &report, &error.base);
    bool whole = !params->list && !report.interrupted && !report.cut && !report.refused;
    if (outcome == CHECK_GOOD && inputs->profile.count && whole)
        profile_judge(&inputs->profile, &report);
    if (report.refused) {
        arguments_complain(inputs->arguments, "%s", report.refused);
        suggest_file(inputs->arguments);
    }
    int code = exit_code_of_check(outcome, 0);
    if (outcome != CHECK_GOOD)
        fail(inputs, &error, code);
    else if (!params->list && !write_report(&report, inputs->output))
        code = EXIT_RUN_TIME;
    else if (!params->list || report.interrupted || report.refused)
        code = exit_code_of_check(check_report_outcome(&report), report.interrupted);
    check_report_finish(&report);
    return code;
}

static int close_output(struct inputs *inputs, int code)
{
    if (!inputs->output || inputs->output == stdout)
        return code; /* the command looks after stdout */
    if (output_close(&inputs->file, true) == 0)
        return code;
    arguments_complain(inputs->arguments, "--output %s: cannot be written: %s",
                       inputs->params->output, strerror(errno));
    return EXIT_RUN_TIME;
}

static int run(struct arguments *arguments)
{
    struct inputs inputs = {.arguments = arguments, .params = arguments->values};
    inputs.params->plugin = arguments->target;
    if (!arguments->target && inputs.params->list && inputs.params->format == FORMAT_MARKDOWN) {
        write_checks(stdout);
        return EXIT_GOOD;
    }
    if (!arguments->target && !inputs.params->replay)
        return arguments_refuse(arguments, "0 names given: accepted one plugin file");
    int code = load(&inputs);
    if (code == EXIT_GOOD)
        code = check(&inputs);
    code = close_output(&inputs, code);
    profile_finish(&inputs.profile);
    waivers_finish(&inputs.waivers);
    replay_finish(&inputs.replay);
    return code;
}

const struct command command_check = {
    .name = "check",
    .summary = "check a plugin file against the rules of the ABI",
    .usage = "PLUGIN.so [OPTION]...",
    .names = "plugin file",
    .target = TARGET_AT_MOST_ONE,
    .about = "Checks a plugin against the rules of docs/ABI.md in separate processes, so that the\n"
             "remaining checks still run after a crash or a hang.\n",
    .options = options,
    .ending =
        "The report goes to stdout, everything else to stderr. Exit codes: 0 all passed or were\n"
        "skipped; 1 a check failed; 2 usage; 3 the plugin file is refused; 5 failed while\n"
        "running; 77 nothing could be checked here; 130, 143 interrupted.\n"
        "\n"
        "examples:\n"
        "  attnhost check ./my_plugin.so\n"
        "  attnhost check ./hybrid.so --with ./cpu_native.so\n"
        "  attnhost check ./hybrid.so --with ./cpu_native.so --option decode=cpu_native\n",
    .size = sizeof(struct check_params),
    .defaults = &(const struct check_params){.inactivity = 30},
    .run = run,
};
