/* SPDX-License-Identifier: Apache-2.0 */
#include "host/cmd/arguments.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/cmd/exit_codes.h"
#include "host/select/open_host.h"

/* ---- The table ------------------------------------------------------------------------------- */

enum {
    OPT_SET = 256,
    OPT_HELP,
    OPT_JSON,
    OPT_MATRIX,
    OPT_CONFIG,
    OPT_PRINT_CONFIG,
    OPT_QUIET,
    OPT_BACKEND,
    OPT_SHAPE,
    OPT_SECONDS,
    OPT_SUSTAIN,
    OPT_KEY
};

/* A row serves the commands that take one of `takes` (0 = all). */
static const struct {
    const char *name;
    int has_value;
    int code;
    unsigned takes;
    const char *key; /* OPT_KEY: the key of the ini that it stands for */
} rows[] = {
    {"set", required_argument, OPT_SET, 0, NULL},
    {"help", no_argument, OPT_HELP, 0, NULL},
    {"json", no_argument, OPT_JSON, ARGUMENTS_JSON, NULL},
    {"json", required_argument, OPT_JSON, ARGUMENTS_JSON_FILE, NULL},
    {"matrix", no_argument, OPT_MATRIX, ARGUMENTS_MATRIX, NULL},
    {"config", required_argument, OPT_CONFIG, ARGUMENTS_CONFIG, NULL},
    {"print-config", no_argument, OPT_PRINT_CONFIG, ARGUMENTS_RUN, NULL},
    {"quiet", no_argument, OPT_QUIET, ARGUMENTS_RUN, NULL},
    {"trace", required_argument, OPT_KEY, ARGUMENTS_RUN, "workload.trace"},
    {"max-requests", required_argument, OPT_KEY, ARGUMENTS_RUN, "workload.max_requests"},
    {"seed", required_argument, OPT_KEY, ARGUMENTS_RUN | ARGUMENTS_BENCH, "workload.seed"},
    {"device", required_argument, OPT_KEY, ARGUMENTS_BENCH, "platform.device"},
    {"backend", required_argument, OPT_BACKEND, ARGUMENTS_BENCH, NULL},
    {"shape", required_argument, OPT_SHAPE, ARGUMENTS_BENCH, NULL},
    {"seconds", required_argument, OPT_SECONDS, ARGUMENTS_BENCH, NULL},
    {"sustain", required_argument, OPT_SUSTAIN, ARGUMENTS_BENCH, NULL},
    {"attention-backend", required_argument, OPT_KEY, ARGUMENTS_RUN, "attention.attention_backend"},
    {"prefill-attention-backend", required_argument, OPT_KEY, ARGUMENTS_RUN,
     "attention.prefill_attention_backend"},
    {"decode-attention-backend", required_argument, OPT_KEY, ARGUMENTS_RUN,
     "attention.decode_attention_backend"},
};

#define NUM_ROWS (sizeof rows / sizeof rows[0])

/* The rows of a command as getopt wants them; OPT_KEY + r tells the row. */
static void list_options(unsigned takes, struct option options[NUM_ROWS + 1])
{
    size_t count = 0;
    for (size_t r = 0; r < NUM_ROWS; r++)
        if (!rows[r].takes || rows[r].takes & takes)
            options[count++] =
                (struct option){rows[r].name, rows[r].has_value, NULL,
                                rows[r].code == OPT_KEY ? OPT_KEY + (int)r : rows[r].code};
    options[count] = (struct option){0};
}

/* ---- Messages -------------------------------------------------------------------------------- */

void arguments_complain(const struct arguments *arguments, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "attnhost %s: ", arguments->spec->command);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

static int usage(const struct arguments *arguments)
{
    fprintf(stderr, "`attnhost %s --help` tells what is accepted\n", arguments->spec->command);
    return EXIT_USAGE;
}

/* ---- Parsing --------------------------------------------------------------------------------- */

/* "key=value", or `text` as it stands if key is NULL. */
static int add_set(struct arguments *arguments, const char *key, const char *text)
{
    size_t size = (key ? strlen(key) + 1 : 0) + strlen(text) + 1;
    char *set = malloc(size);
    if (!set) {
        arguments_complain(arguments, "no memory");
        return EXIT_RUN_TIME;
    }
    snprintf(set, size, "%s%s%s", key ? key : "", key ? "=" : "", text);
    arguments->sets[arguments->num_sets++] = set;
    return ARGUMENTS_GO_ON;
}

static int take_option(struct arguments *arguments, int option, const char *value)
{
    switch (option) {
    case OPT_SET:
        return add_set(arguments, NULL, value);
    case OPT_JSON:
        arguments->json = value ? value : "-";
        return ARGUMENTS_GO_ON;
    case OPT_MATRIX:
        arguments->matrix = 1;
        return ARGUMENTS_GO_ON;
    case OPT_CONFIG:
        arguments->config = value;
        return ARGUMENTS_GO_ON;
    case OPT_PRINT_CONFIG:
        arguments->print_config = 1;
        return ARGUMENTS_GO_ON;
    case OPT_QUIET:
        arguments->quiet = 1;
        return ARGUMENTS_GO_ON;
    case OPT_BACKEND:
        arguments->backends.items[arguments->backends.count++] = value;
        return ARGUMENTS_GO_ON;
    case OPT_SHAPE:
        arguments->shapes.items[arguments->shapes.count++] = value;
        return ARGUMENTS_GO_ON;
    case OPT_SECONDS:
        arguments->seconds = value;
        return ARGUMENTS_GO_ON;
    case OPT_SUSTAIN:
        arguments->sustain = value;
        return ARGUMENTS_GO_ON;
    case OPT_HELP:
    case 'h':
        fputs(arguments->spec->help, stdout);
        return EXIT_GOOD;
    default:
        return option >= OPT_KEY ? add_set(arguments, rows[option - OPT_KEY].key, value)
                                 : usage(arguments);
    }
}

static int take_target(struct arguments *arguments, int count, char **names)
{
    int optional = arguments->spec->takes & ARGUMENTS_OPTIONAL ? 1 : 0;
    if (count > 1 || (count == 0 && !optional)) {
        arguments_complain(arguments, "%d names given: accepted %s%s", count,
                           optional ? "at most one " : "one ", arguments->spec->names);
        return usage(arguments);
    }
    arguments->target = count ? names[0] : NULL;
    return ARGUMENTS_GO_ON;
}

int arguments_parse(int argc, char **argv, const struct arguments_spec *spec,
                    struct arguments *arguments)
{
    struct option options[NUM_ROWS + 1];
    list_options(spec->takes, options);
    memset(arguments, 0, sizeof *arguments);
    arguments->spec = spec;
    arguments->sets = calloc((size_t)argc + 1, sizeof *arguments->sets);
    arguments->backends.items = calloc((size_t)argc + 1, sizeof *arguments->backends.items);
    arguments->shapes.items = calloc((size_t)argc + 1, sizeof *arguments->shapes.items);
    if (!arguments->sets || !arguments->backends.items || !arguments->shapes.items) {
        arguments_complain(arguments, "no memory");
        return EXIT_RUN_TIME;
    }
    int option, code = ARGUMENTS_GO_ON;
    optind = 0; /* begin anew: a process may parse more than one command line */
    while (code == ARGUMENTS_GO_ON && (option = getopt_long(argc, argv, "h", options, NULL)) != -1)
        code = take_option(arguments, option, optarg);
    return code == ARGUMENTS_GO_ON ? take_target(arguments, argc - optind, argv + optind) : code;
}

void arguments_finish(struct arguments *arguments)
{
    for (size_t s = 0; s < arguments->num_sets; s++)
        free(arguments->sets[s]);
    free(arguments->sets);
    free(arguments->backends.items);
    free(arguments->shapes.items);
}

int arguments_load_config(const struct arguments *arguments, const char *path,
                          struct config **config)
{
    host_error error;
    host_error_init(&error);
    attn_status status = config_load(path, (const char *const *)arguments->sets,
                                     arguments->num_sets, config, &error.base);
    if (status == ATTN_OK)
        return ARGUMENTS_GO_ON;
    arguments_complain(arguments, "%s", host_error_text(&error));
    return exit_code_of(status);
}
