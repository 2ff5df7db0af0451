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

#define AT(member) offsetof(struct check_params, member)

static const struct option_row options[] = {
    OPTION_ROW_TEXT("backend", "NAME", AT(backend), "fuzz only this backend"),
    OPTION_ROW_VALUE("device", "cpu|cuda:N", AT(device),
                     "on this device (default: the CPU if the backend serves it)", OPTION_DEVICE),
    OPTION_ROW_LIST("with", "OTHER.so", AT(with),
                    "load this plugin too, for children of a composite; may be repeated"),
    OPTION_ROW_LIST("option", "KEY=VALUE", AT(options),
                    "an option of the backends that declare it; may be repeated"),
    OPTION_ROW_VALUE("seed", "N", AT(seed), "seed of the sequence of cases (default 0)",
                     OPTION_UINT64),
    OPTION_ROW_SWITCH("exhaustive", AT(exhaustive),
                      "draw from all combinations instead of a covering subset"),
    OPTION_ROW_VALUE("time", "S", AT(time), "stop after S seconds (default 60)", OPTION_SECONDS),
    OPTION_ROW_TEXT("output", "DIR", AT(output),
                    "write failing cases to DIR (default: the working directory)"),
    OPTION_ROW_VALUE(
        "inactivity", "S", AT(inactivity),
        "stop a process after S seconds of its own time without a sign of life (default 30)",
        OPTION_SECONDS),
    OPTION_ROW_SWITCH("in-process", AT(in_process),
                      "run in this process and without time limits, for debuggers and sanitizers"),
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
