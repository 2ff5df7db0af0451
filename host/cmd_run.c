/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost run: a serving trace through the backends that an ini names.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/arguments.h"
#include "host/commands.h"
#include "host/config.h"
#include "host/error.h"
#include "host/exit_codes.h"
#include "host/report.h"
#include "host/session.h"

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

/* Where the JSON goes: opened before the run, so that a path which cannot be written is not found
 * out after it; what stands in the file stays there until the run has ended well. */
struct json_file {
    const char *path;
    FILE *file; /* NULL = none is wanted */
    int is_new;
};

static int open_json(const char *path, struct json_file *json)
{
    *json = (struct json_file){.path = path};
    if (!path)
        return EXIT_GOOD;
    json->is_new = access(path, F_OK) != 0;
    json->file = strcmp(path, "-") == 0 ? stdout : fopen(path, "a");
    if (json->file)
        return EXIT_GOOD;
    fprintf(stderr, "attnhost run: --json %s: %s; accepted: a file that can be written, or -\n",
            path, strerror(errno));
    return EXIT_USAGE;
}

/* `report` NULL: the run failed, and a file that was made for it goes away. */
static int close_json(struct json_file *json, const struct report *report)
{
    if (!json->file)
        return EXIT_GOOD;
    char *text = report ? report_json(report) : NULL;
    int failed = 0;
    if (report) {
        if (json->file != stdout && ftruncate(fileno(json->file), 0) != 0)
            errno = 0; /* a pipe or a device */
        failed = !text || fputs(text, json->file) == EOF;
    }
    free(text);
    failed |= (json->file == stdout ? fflush(stdout) : fclose(json->file)) != 0;
    if (failed)
        fprintf(stderr, "attnhost run: --json %s: cannot be written: %s\n", json->path,
                strerror(errno));
    if (!report && json->is_new && json->file != stdout)
        unlink(json->path);
    return failed ? EXIT_RUN_TIME : EXIT_GOOD;
}

static int run_config(const struct arguments *arguments, const struct config *config)
{
    host_error error;
    struct report report;
    struct json_file json;
    int code = open_json(arguments->json, &json);
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
    int written = close_json(&json, ended ? &report : NULL);
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
