/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost fuzz: random problems and cases on a plugin file, for a given time.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/check/suite/fuzz.h"
#include "host/cmd/commands.h"
#include "host/base/error.h"
#include "host/cmd/exit_codes.h"

static const struct option_row options[] = {
    {.name = "backend",
     .value = "NAME",
     .kind = OPTION_TEXT,
     .place = offsetof(struct check_params, backend),
     .help = "fuzz only this backend"},
    {.name = "device",
     .value = "cpu|cuda:N",
     .kind = OPTION_VALUE,
     .place = offsetof(struct check_params, device),
     .read = option_read_device,
     .accepted = OPTION_ACCEPTS_DEVICE,
     .help = "on this device (default: the CPU if the backend serves it)"},
    {.name = "with",
     .value = "OTHER.so",
     .kind = OPTION_LIST,
     .place = offsetof(struct check_params, with),
     .help = "load this plugin too, for children of a composite; may be repeated"},
    {.name = "option",
     .value = "KEY=VALUE",
     .kind = OPTION_LIST,
     .place = offsetof(struct check_params, options),
     .help = "an option of the backends that declare it; may be repeated"},
    {.name = "seed",
     .value = "N",
     .kind = OPTION_VALUE,
     .place = offsetof(struct check_params, seed),
     .read = option_read_uint64,
     .accepted = OPTION_ACCEPTS_UINT64,
     .help = "seed of the sequence of cases (default 0)"},
    {.name = "exhaustive",
     .kind = OPTION_SWITCH,
     .place = offsetof(struct check_params, exhaustive),
     .help = "draw from all combinations instead of a covering subset"},
    {.name = "time",
     .value = "S",
     .kind = OPTION_VALUE,
     .place = offsetof(struct check_params, time),
     .read = option_read_seconds,
     .accepted = OPTION_ACCEPTS_SECONDS,
     .help = "stop after S seconds (default 60)"},
    {.name = "output",
     .value = "DIR",
     .kind = OPTION_TEXT,
     .place = offsetof(struct check_params, output),
     .help = "write failing cases to DIR (default: the working directory)"},
    {.name = "inactivity",
     .value = "S",
     .kind = OPTION_VALUE,
     .place = offsetof(struct check_params, inactivity),
     .read = option_read_seconds,
     .accepted = OPTION_ACCEPTS_SECONDS,
     .help = "stop a process after S seconds of its own time without a sign of life (default 30)"},
    {.name = "in-process",
     .kind = OPTION_SWITCH,
     .place = offsetof(struct check_params, in_process),
     .help = "run in this process and without time limits, for debuggers and sanitizers"},
    OPTION_END,
};

static int run(struct arguments *arguments)
{
    struct check_params *params = arguments->values;
    struct check_report report;
    host_error error;
    params->plugin = arguments->target;
    if (params->output && access(params->output, W_OK | X_OK) != 0) {
        arguments_complain(arguments, "--output %s: %s; accepted: a folder that can be written to",
                           params->output, strerror(errno));
        return EXIT_USAGE;
    }
    host_error_init(&error);
    check_report_init(&report, params);
    enum check_outcome outcome = fuzz_run(params, &report, stdout, &error.base);
    int code = exit_code_of_check(outcome, report.interrupted);
    if (host_error_text(&error)[0])
        arguments_complain(arguments, "%s", host_error_text(&error));
    for (size_t r = 0; r < report.num_results; r++)
        if (check_code_fails(report.results[r].code))
            arguments_complain(arguments, "%s is %s: %s", report.results[r].id,
                               check_code_name(report.results[r].code), report.results[r].text);
    check_report_finish(&report);
    return code;
}

const struct command command_fuzz = {
    .name = "fuzz",
    .summary = "check a plugin file with random cases",
    .usage = "PLUGIN.so [OPTION]...",
    .names = "plugin file",
    .about = "Checks a plugin with random cases, like `attnhost check` with fixed ones. A failing "
             "case is\n"
             "reduced and written to a file for `attnhost check --replay`.\n",
    .options = options,
    .ending =
        "Exit codes: 0 nothing failed; 1 something did; 2 usage; 3 the plugin file is\n"
        "refused; 5 failed while running; 77 there is nothing to fuzz; 130, 143 interrupted.\n"
        "\n"
        "example:\n"
        "  attnhost fuzz ./my_plugin.so --time 600 --output /tmp\n",
    .size = sizeof(struct check_params),
    /* --time ends it, between two cases. */
    .defaults = &(const struct check_params){.inactivity = 30, .time = 60},
    .run = run,
};
