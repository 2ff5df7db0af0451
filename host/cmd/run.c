/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost run: a serving trace through the backends that an ini names.
 */
#include <stdio.h>
#include <stdlib.h>

#include "host/cmd/arguments.h"
#include "host/cmd/commands.h"
#include "host/config/config.h"
#include "host/base/error.h"
#include "host/cmd/exit_codes.h"
#include "host/cmd/json_file.h"
#include "host/run/report.h"
#include "host/run/session.h"

static const char help[] =
    "usage: attnhost run CONFIG.ini [OPTION]...\n"
    "\n"
    "Reads a trace of requests and serves it: continuous batching, chunked prefill, decode, a "
    "paged\n"
    "KV cache with a prefix cache. Attention is computed by the backends that the ini names; a\n"
    "sample of the output rows is compared with an fp64 reference. Vectors are generated from the\n"
    "trace and the seed, so no model weights are needed.\n"
    "\n"
    "  --trace FILE                       the requests (workload.trace)\n"
    "  --set section.key=value            override any key of the ini; may be repeated\n"
    "  --attention-backend NAME           attention.attention_backend\n"
    "  --prefill-attention-backend NAME   attention.prefill_attention_backend\n"
    "  --decode-attention-backend NAME    attention.decode_attention_backend\n"
    "  --max-requests N                   workload.max_requests\n"
    "  --seed N                           workload.seed\n"
    "  --json FILE|-                      write the report as JSON; - is stdout\n"
    "  --print-config                     print the effective configuration and end\n"
    "  --quiet                            do not say which backend was chosen\n"
    "  --help\n"
    "\n"
    "The report goes to stdout, everything else to stderr. Exit codes: 0 good; 1 a verified row "
    "is\n"
    "wrong or KV leaked; 2 usage or configuration; 3 a critical plugin is refused; 4 no backend "
    "can\n"
    "serve; 5 failed while running.\n"
    "\n"
    "examples:\n"
    "  attnhost run examples/quickstart.ini\n"
    "  attnhost run examples/quickstart.ini --set verify.rate=1 --max-requests 5 --json -\n";

static const struct arguments_spec spec = {
    .command = "run",
    .names = "CONFIG.ini",
    .help = help,
    .takes = ARGUMENTS_RUN | ARGUMENTS_JSON_FILE,
};

static int run_config(const struct arguments *arguments, const struct config *config)
{
    host_error error;
    struct report report;
    struct json_file json;
    int code = json_file_open(&json, arguments);
    if (code != EXIT_GOOD)
        return code;
    host_error_init(&error);
    report_init(&report);
    struct session_params params = {.config = config, .choices = arguments->quiet ? NULL : stderr};
    code = session_run(&params, &report, &error.base);
    int ended = code == EXIT_GOOD || code == EXIT_CHECK_FAILED;
    if (!ended)
        arguments_complain(arguments, "%s", host_error_text(&error));
    else if (json.file != stdout)
        report_print(&report, stdout);
    char *text = ended && json.file ? report_json(&report) : NULL;
    int written = json_file_close(&json, text, ended);
    free(text);
    report_finish(&report);
    return ended && written != EXIT_GOOD ? written : code;
}

int cmd_run(int argc, char **argv)
{
    struct arguments arguments;
    struct config *config = NULL;
    int code = arguments_parse(argc, argv, &spec, &arguments);
    if (code == ARGUMENTS_GO_ON)
        code = arguments_load_config(&arguments, arguments.target, &config);
    if (code == ARGUMENTS_GO_ON && arguments.print_config) {
        config_print(config, stdout);
        code = EXIT_GOOD;
    }
    if (code == ARGUMENTS_GO_ON)
        code = run_config(&arguments, config);
    config_destroy(config);
    arguments_finish(&arguments);
    return code;
}
