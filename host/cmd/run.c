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
#include "host/base/interrupt.h"
#include "host/cmd/exit_codes.h"
#include "host/cmd/json_file.h"
#include "host/run/report.h"
#include "host/run/session.h"

struct values {
    const char *json; /* FILE or "-"; NULL = not given */
    bool print_config, quiet;
};

static const struct option_row options[] = {
    {.name = "trace",
     .value = "FILE",
     .kind = OPTION_KEY,
     .key = "workload.trace",
     .help = "the requests (workload.trace)"},
    OPTION_ROW_SET,
    {.name = "attention-backend",
     .value = "NAME",
     .kind = OPTION_KEY,
     .key = "attention.attention_backend"},
    {.name = "prefill-attention-backend",
     .value = "NAME",
     .kind = OPTION_KEY,
     .key = "attention.prefill_attention_backend"},
    {.name = "decode-attention-backend",
     .value = "NAME",
     .kind = OPTION_KEY,
     .key = "attention.decode_attention_backend"},
    {.name = "max-requests", .value = "N", .kind = OPTION_KEY, .key = "workload.max_requests"},
    {.name = "seed", .value = "N", .kind = OPTION_KEY, .key = "workload.seed"},
    {.name = "json",
     .value = "FILE|-",
     .kind = OPTION_TEXT,
     .place = offsetof(struct values, json),
     .help = "write the report as JSON; - is stdout"},
    {.name = "print-config",
     .kind = OPTION_SWITCH,
     .place = offsetof(struct values, print_config),
     .help = "print the effective configuration and end"},
    {.name = "quiet",
     .kind = OPTION_SWITCH,
     .place = offsetof(struct values, quiet),
     .help = "do not say which backend was chosen"},
    OPTION_END,
};

static int run_config(const struct arguments *arguments, const struct config *config)
{
    const struct values *values = arguments->values;
    host_error error;
    struct report report;
    struct session_result result;
    struct json_file json;
    int code = json_file_open(&json, arguments, values->json);
    if (code != EXIT_GOOD)
        return code;
    host_error_init(&error);
    report_init(&report);
    struct session_params params = {
        .config = config, .command = arguments->line, .choices = values->quiet ? NULL : stderr};
    attn_status status = session_run(&params, &report, &result, &error.base);
    int ended = result.reported;
    if (status != ATTN_OK)
        arguments_complain(arguments, "%s", host_error_text(&error));
    if (ended && json.file != stdout)
        report_print(&report, stdout);
    char *text = ended && json.file ? report_json(&report) : NULL;
    int written = json_file_close(&json, text, ended);
    free(text);
    report_finish(&report);
    return ended && written != EXIT_GOOD ? written
                                         : exit_code_of_run(status, &result, interrupt_seen());
}

static int run(struct arguments *arguments)
{
    const struct values *values = arguments->values;
    struct config *config = NULL;
    int code = arguments_load_config(arguments, arguments->target, &config);
    if (code == EXIT_GOOD && values->print_config)
        config_print(config, stdout);
    else if (code == EXIT_GOOD)
        code = run_config(arguments, config);
    config_destroy(config);
    return code;
}

const struct command command_run = {
    .name = "run",
    .summary = "drive a serving trace through the backends that an ini names",
    .usage = "CONFIG.ini [OPTION]...",
    .names = "CONFIG.ini",
    .ends_early = true,
    .calls_plugins = true,
    .about =
        "Reads a trace of requests and serves it: continuous batching, chunked prefill, decode, a\n"
        "paged KV cache with a prefix cache. Attention is computed by the backends that the ini\n"
        "names; a sample of the output rows is compared with an fp64 reference. Vectors are\n"
        "generated from the trace and the seed, so no model weights are needed.\n",
    .options = options,
    .ending =
        "The report goes to stdout, everything else to stderr. Exit codes: 0 success;\n"
        "1 a verified row is wrong or KV leaked; 2 usage or configuration; 3 a critical plugin is\n"
        "refused; 4 no backend can serve; 5 the run failed; 130, 143 interrupted.\n"
        "\n"
        "examples:\n"
        "  attnhost run examples/quickstart.ini\n"
        "  attnhost run examples/quickstart.ini --max-requests 5 --json -\n",
    .size = sizeof(struct values),
    .run = run,
};
