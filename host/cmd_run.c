/* SPDX-License-Identifier: Apache-2.0
 *
 * attnhost run: a serving trace through the backends that an ini names.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

enum { OPT_SET = 1, OPT_JSON, OPT_PRINT_CONFIG, OPT_QUIET, OPT_HELP, OPT_ALIAS };

/* Options that are nothing but another way to write --set. */
static const struct {
    const char *option;
    const char *key;
} aliases[] = {
    {"trace", "workload.trace"},
    {"attention-backend", "attention.attention_backend"},
    {"prefill-attention-backend", "attention.prefill_attention_backend"},
    {"decode-attention-backend", "attention.decode_attention_backend"},
    {"max-requests", "workload.max_requests"},
    {"seed", "workload.seed"},
};

#define NUM_ALIASES (sizeof aliases / sizeof aliases[0])

struct run_arguments {
    const char *config;
    const char *json; /* NULL = not wanted */
    int print_config, quiet;
    char **sets; /* owned texts */
    size_t num_sets;
};

static void release_arguments(struct run_arguments *arguments)
{
    for (size_t s = 0; s < arguments->num_sets; s++)
        free(arguments->sets[s]);
    free(arguments->sets);
}

/* "key=value", or `key` as it stands if value is NULL. 0, or -1 when memory ran out. */
static int add_set(struct run_arguments *arguments, const char *key, const char *value)
{
    size_t size = strlen(key) + (value ? strlen(value) : 0) + 2;
    char *text = malloc(size);
    if (!text)
        return -1;
    snprintf(text, size, "%s%s%s", key, value ? "=" : "", value ? value : "");
    arguments->sets[arguments->num_sets++] = text;
    return 0;
}

/* -1 = go on, else the exit code. */
static int parse(int argc, char **argv, struct run_arguments *arguments)
{
    struct option options[NUM_ALIASES + 6] = {
        {"set", required_argument, NULL, OPT_SET},
        {"json", required_argument, NULL, OPT_JSON},
        {"print-config", no_argument, NULL, OPT_PRINT_CONFIG},
        {"quiet", no_argument, NULL, OPT_QUIET},
        {"help", no_argument, NULL, OPT_HELP},
    };
    for (size_t a = 0; a < NUM_ALIASES; a++)
        options[5 + a] =
            (struct option){aliases[a].option, required_argument, NULL, OPT_ALIAS + (int)a};
    memset(arguments, 0, sizeof *arguments);
    arguments->sets = calloc((size_t)argc + 1, sizeof *arguments->sets);
    if (!arguments->sets)
        return EXIT_RUN_TIME;
    int option, failed = 0;
    optind = 0; /* getopt starts anew: a process may parse more than one command line */
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1 && !failed) {
        if (option == OPT_HELP || option == 'h') {
            fputs(help, stdout);
            return EXIT_GOOD;
        }
        if (option == '?') {
            fputs("`attnhost run --help` tells what is accepted\n", stderr);
            return EXIT_USAGE;
        }
        if (option == OPT_SET)
            failed = add_set(arguments, optarg, NULL);
        else if (option == OPT_JSON)
            arguments->json = optarg;
        else if (option == OPT_PRINT_CONFIG)
            arguments->print_config = 1;
        else if (option == OPT_QUIET)
            arguments->quiet = 1;
        else
            failed = add_set(arguments, aliases[option - OPT_ALIAS].key, optarg);
    }
    if (failed)
        return EXIT_RUN_TIME;
    if (optind != argc - 1) {
        fprintf(stderr, "attnhost run: %s; `attnhost run --help` explains\n",
                optind == argc ? "CONFIG.ini is missing" : "one CONFIG.ini is accepted");
        return EXIT_USAGE;
    }
    arguments->config = argv[optind];
    return -1;
}

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

static int run_config(const struct run_arguments *arguments, const struct config *config)
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
        fprintf(stderr, "attnhost run: %s\n", host_error_text(&error));
    else if (json.file != stdout)
        report_print(&report, stdout);
    int written = close_json(&json, ended ? &report : NULL);
    report_finish(&report);
    return ended && written != EXIT_GOOD ? written : code;
}

int cmd_run(int argc, char **argv)
{
    struct run_arguments arguments;
    int code = parse(argc, argv, &arguments);
    if (code < 0) {
        host_error error;
        struct config *config;
        host_error_init(&error);
        if (config_load(arguments.config, (const char *const *)arguments.sets, arguments.num_sets,
                        &config, &error.base) != ATTN_OK) {
            fprintf(stderr, "attnhost run: %s\n", host_error_text(&error));
            code = EXIT_USAGE;
        } else if (arguments.print_config) {
            config_print(config, stdout);
            config_destroy(config);
            code = EXIT_GOOD;
        } else {
            code = run_config(&arguments, config);
            config_destroy(config);
        }
    }
    release_arguments(&arguments);
    return code;
}
