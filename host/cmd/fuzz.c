/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost fuzz: random problems and cases on a plugin file, for a while.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host/check/suite/fuzz.h"
#include "host/cmd/commands.h"
#include "host/base/error.h"
#include "host/cmd/exit_codes.h"

static const char help[] =
    "usage: attnhost fuzz PLUGIN.so [OPTION]...\n"
    "\n"
    "Checks a plugin with random cases, as `attnhost check` does with chosen ones. A case that\n"
    "fails is made as small as it goes and written to a file that `attnhost check --replay` runs.\n"
    "\n"
    "  --backend NAME       fuzz this backend alone\n"
    "  --device cpu|cuda:N  on this device (default: the CPU if the backend serves it)\n"
    "  --with OTHER.so      load this plugin too, for children of a composite; may be repeated\n"
    "  --option KEY=VALUE   an option of the backends that declare it; may be repeated\n"
    "  --seed N             the sequence of cases follows from it (default 0)\n"
    "  --time S             for so long (default 60)\n"
    "  --output DIR         write failing cases there (default: the working directory)\n"
    "  --inactivity S       without a sign of life (default 30)\n"
    "  --in-process         without processes and limits: for debuggers and sanitizers\n"
    "  --help\n"
    "\n"
    "Exit codes: 0 nothing failed; 1 something did; 2 usage; 3 the plugin file is refused; 5 "
    "failed\n"
    "while running; 77 there is nothing to fuzz; 130, 143 interrupted.\n"
    "\n"
    "example:\n"
    "  attnhost fuzz ./my_plugin.so --time 600 --output /tmp\n";

static int fuzz(const struct check_params *params)
{
    struct check_report report;
    host_error error;
    if (params->output && access(params->output, W_OK | X_OK) != 0) {
        params_complain(params, "--output %s: %s; accepted: a folder that can be written to",
                        params->output, strerror(errno));
        return EXIT_USAGE;
    }
    host_error_init(&error);
    check_report_init(&report, params);
    int code = fuzz_run(params, &report, stdout, &error.base);
    if (host_error_text(&error)[0])
        params_complain(params, "%s", host_error_text(&error));
    for (size_t r = 0; r < report.num_results; r++)
        if (check_code_fails(report.results[r].code))
            params_complain(params, "%s is %s: %s", report.results[r].id,
                            check_code_name(report.results[r].code), report.results[r].text);
    check_report_finish(&report);
    return code;
}

int cmd_fuzz(int argc, char **argv)
{
    struct check_params params = {
        .command = "fuzz", .help = help, .takes = PARAMS_FUZZ | PARAMS_PARENT};
    int code = params_parse(&params, argc, argv);
    params.timeout = 1e9; /* --time ends it between two cases */
    if (code == PARAMS_GO_ON)
        code = fuzz(&params);
    params_finish(&params);
    return code;
}
