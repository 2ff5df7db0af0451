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
#include "host/cmd/exit_codes.h"

static const char help[] =
    "usage: attnhost check PLUGIN.so [OPTION]...\n"
    "\n"
    "Checks a plugin against the rules of docs/ABI.md, in processes of its own: a crash or a hang\n"
    "is a result like any other, and the rest is checked all the same.\n"
    "\n"
    "  --backend NAME       check this backend alone\n"
    "  --device cpu|cuda:N  check on this device (default: the CPU if the backend serves it)\n"
    "  --with OTHER.so      load this plugin too, for children of a composite; may be repeated.\n"
    "                       Of its first backend the suite makes the children that a composite\n"
    "                       needs and that no --option names (stand_in_1, stand_in_2 ...)\n"
    "  --option KEY=VALUE   an option of the backends that declare it; may be repeated\n"
    "  --filter GLOB        check what the pattern means: 'MEAN-*', 'cpu_native/KV-06.*/17'; may\n"
    "                       be repeated\n"
    "  --fail-fast          stop at the first failure, one case after the other, numerics first\n"
    "  --list               print ids, seeds and sentences, and digests of which cases these "
    "are;\n"
    "                       check nothing\n"
    "  --seed N             random problems and data follow from it (default 0)\n"
    "  --exhaustive         all combinations instead of a covering choice\n"
    "  --format tap|junit|json|markdown\n"
    "  --output FILE        write the report there (default: stdout)\n"
    "  --profile NAME|FILE  what must pass: core, paged-kv, mla, linear, quant-fp8, capture\n"
    "                       (default: core, unless cases are left out by --filter, --fail-fast,\n"
    "                       --in-process or --replay)\n"
    "  --waivers FILE       failures that are known: lines ID-GLOB PLUGIN VERSION-GLOB EXPIRY WHY\n"
    "  --replay FILE        run the one case that `attnhost fuzz` wrote down\n"
    "  --jobs N             processes side by side (default: half of the processors, at most 8)\n"
    "  --timeout S          for everything (default 600)\n"
    "  --inactivity S       without a sign of life (default 30)\n"
    "  --in-process         without processes and limits: for debuggers and sanitizers\n"
    "  --help\n"
    "\n"
    "The report goes to stdout, everything else to stderr. Exit codes: 0 all passed or were\n"
    "skipped; 1 a check failed; 2 usage; 3 the plugin file is refused; 5 failed while running;\n"
    "77 nothing could be checked here; 130, 143 interrupted.\n"
    "\n"
    "examples:\n"
    "  attnhost check ./my_plugin.so\n"
    "  attnhost check ./hybrid.so --with ./cpu_native.so\n"
    "  attnhost check ./hybrid.so --with ./cpu_native.so --option decode=cpu_native\n";

/* All that is read before anything is run, so that what is wrong with it is found at once. */
struct inputs {
    struct check_params params;
    struct replay replay;
    struct waivers waivers;
    struct profile profile;
    FILE *output;
};

static int fail(const struct inputs *inputs, const host_error *error, int code)
{
    params_complain(&inputs->params, "%s", host_error_text(error));
    return code;
}

static int open_output(struct inputs *inputs)
{
    const char *path = inputs->params.output;
    inputs->output = stdout;
    if (!path || inputs->params.list)
        return PARAMS_GO_ON;
    inputs->output = fopen(path, "we");
    if (inputs->output)
        return PARAMS_GO_ON;
    params_complain(&inputs->params, "--output %s: %s; accepted: a file that can be written", path,
                    strerror(errno));
    return EXIT_USAGE;
}

/* Which profile the run is judged by; NULL = none: cases are left out on purpose. */
static const char *profile_of(const struct check_params *params)
{
    bool whole = params->filters.count == 0 && !params->replay && !params->in_process;
    return params->profile ? params->profile : whole ? check_groups_minimum() : NULL;
}

static int load(struct inputs *inputs)
{
    struct check_params *params = &inputs->params;
    char today[16] = "";
    time_t now = time(NULL);
    struct tm utc;
    host_error error;
    host_error_init(&error);
    if (gmtime_r(&now, &utc))
        strftime(today, sizeof today, "%Y-%m-%d", &utc);
    if (params->replay && replay_load(params, &inputs->replay, &error.base))
        return fail(inputs, &error, EXIT_USAGE);
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

static int check(struct inputs *inputs)
{
    const struct check_params *params = &inputs->params;
    struct check_report report;
    host_error error;
    host_error_init(&error);
    check_report_init(&report, params);
    report.waivers = params->waivers ? &inputs->waivers : NULL;
    if (params->format == FORMAT_TAP && !params->list)
        report.tap = inputs->output;
    int code = suite_run(params, params->replay ? &inputs->replay : NULL,
                         params->list ? stdout : NULL, &report, &error.base);
    bool whole = !params->list && !report.interrupted && !report.cut && !report.refused;
    if (code == EXIT_GOOD && inputs->profile.count && whole)
        profile_judge(&inputs->profile, &report);
    if (report.refused)
        params_complain(params, "%s", report.refused);
    if (code != EXIT_GOOD)
        fail(inputs, &error, code);
    else if (!params->list)
        code =
            write_report(&report, inputs->output) ? check_report_exit_code(&report) : EXIT_RUN_TIME;
    else
        code = report.interrupted || report.refused ? check_report_exit_code(&report) : EXIT_GOOD;
    check_report_finish(&report);
    return code;
}

static int close_output(const struct inputs *inputs, int code)
{
    if (!inputs->output || inputs->output == stdout)
        return code; /* the command looks after stdout */
    bool failed = ferror(inputs->output) != 0;
    failed |= fclose(inputs->output) != 0;
    if (!failed)
        return code;
    params_complain(&inputs->params, "--output %s: cannot be written: %s", inputs->params.output,
                    strerror(errno));
    return EXIT_RUN_TIME;
}

int cmd_check(int argc, char **argv)
{
    struct inputs inputs = {
        .params = {.command = "check", .help = help, .takes = PARAMS_CHECK | PARAMS_PARENT}};
    int code = params_parse(&inputs.params, argc, argv);
    if (code == PARAMS_GO_ON)
        code = load(&inputs);
    if (code == PARAMS_GO_ON)
        code = check(&inputs);
    code = close_output(&inputs, code);
    profile_finish(&inputs.profile);
    waivers_finish(&inputs.waivers);
    params_finish(&inputs.params);
    replay_finish(&inputs.replay);
    return code;
}
