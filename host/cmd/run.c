/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost run: serves a trace with the backends that an ini names.
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
#include "host/cmd/results.h"
#include "host/cmd/warden.h"
#include "host/run/report.h"
#include "host/run/session.h"

struct values {
    const char *json; /* FILE or "-"; NULL = not given */
    bool print_config, quiet;
};

#define AT(member) offsetof(struct values, member)

static const struct option_row options[] = {
    {.name = "trace",
     .value = "FILE",
     .kind = OPTION_KEY,
     .key = "workload.trace",
     .help = "trace of requests (workload.trace)"},
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
    OPTION_ROW_TEXT("json", "FILE|-", AT(json), "write the report as JSON; - is stdout"),
    OPTION_ROW_SWITCH("print-config", AT(print_config),
                      "print the effective configuration and exit"),
    OPTION_ROW_SWITCH("quiet", AT(quiet), "do not print the chosen backends"),
    OPTION_END,
};

struct serving {
    const struct arguments *arguments;
    struct json_file json;
    struct report report;
    struct session_result result;
    host_error error;
    int written; /* exit code */
};

/* Print and write the report, before backends are destroyed. */
static void publish(void *ctx, attn_status status)
{
    struct serving *serving = ctx;
    warden_set_will(NULL);
    if (status != ATTN_OK && *host_error_text(&serving->error))
        arguments_complain(serving->arguments, "%s", host_error_text(&serving->error));
    if (!serving->result.reported)
        return;
    if (!json_file_is_stdout(&serving->json))
        report_print(&serving->report, stdout);
    char *text = serving->json.path ? report_json(&serving->report) : NULL;
    serving->written = json_file_write(&serving->json, text);
    free(text);
    results_flush();
}

static int run_config(const struct arguments *arguments, const struct config *config)
{
    const struct values *values = arguments->values;
    struct serving serving = {.arguments = arguments, .written = EXIT_GOOD};
    int code = json_file_prepare(&serving.json, arguments, values->json);
    if (code != EXIT_GOOD)
        return code;
    host_error_init(&serving.error);
    report_init(&serving.report);
    struct session_params params = {.config = config,
                                    .command = arguments->line,
                                    .choices = values->quiet ? NULL : stderr,
                                    .ready = publish,
                                    .ready_ctx = &serving};
    warden_set_will(session_last_words);
    attn_status status =
        session_run(&params, &serving.report, &serving.result, &serving.error.base);
    report_finish(&serving.report);
    return serving.written != EXIT_GOOD
               ? serving.written
               : exit_code_of_run(status, &serving.result, interrupt_seen());
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
    .summary = "serve a trace with the backends that an ini names",
    .usage = "CONFIG.ini [OPTION]...",
    .names = "CONFIG.ini",
    .ends_early = true,
    .calls_plugins = true,
    .about = "Serves a trace of requests: continuous batching, chunked prefill, decode, a paged KV "
             "cache\n"
             "with a prefix cache. The backends that the ini names compute attention; a sample of "
             "output\n"
             "rows is compared with an fp64 reference. Vectors are generated from the trace and "
             "the seed,\n"
             "so no model weights are needed.\n",
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
