/* SPDX-License-Identifier: Apache-2.0 */
#include "host/check/suite/params.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/cmd/exit_codes.h"
#include "host/base/text.h"

/* ---- The table ------------------------------------------------------------------------------- */

enum kind { LIST, TEXT, DEVICE, SWITCH, SEED, SECONDS, JOBS, FORMAT, HELP };

enum { MAX_JOBS = 64, DEFAULT_JOBS = 8 };

/* A row serves the commands that take one of `takes` (0 = all). */
static const struct row {
    const char *name;
    enum kind kind;
    unsigned takes;
    size_t place; /* in struct check_params */
} rows[] = {
    {"backend", TEXT, 0, offsetof(struct check_params, backend)},
    {"device", DEVICE, 0, offsetof(struct check_params, device)},
    {"with", LIST, 0, offsetof(struct check_params, with)},
    {"option", LIST, 0, offsetof(struct check_params, options)},
    {"seed", SEED, 0, offsetof(struct check_params, seed)},
    {"exhaustive", SWITCH, 0, offsetof(struct check_params, exhaustive)},
    {"filter", LIST, PARAMS_CHECK, offsetof(struct check_params, filters)},
    {"format", FORMAT, PARAMS_CHECK, offsetof(struct check_params, format)},
    {"fail-fast", SWITCH, PARAMS_CHECK, offsetof(struct check_params, fail_fast)},
    {"list", SWITCH, PARAMS_CHECK, offsetof(struct check_params, list)},
    {"jobs", JOBS, PARAMS_CHECK, offsetof(struct check_params, jobs)},
    {"timeout", SECONDS, PARAMS_CHECK, offsetof(struct check_params, timeout)},
    {"replay", TEXT, PARAMS_CHECK, offsetof(struct check_params, replay)},
    {"waivers", TEXT, PARAMS_CHECK, offsetof(struct check_params, waivers)},
    {"profile", TEXT, PARAMS_CHECK, offsetof(struct check_params, profile)},
    {"time", SECONDS, PARAMS_FUZZ, offsetof(struct check_params, time)},
    {"inactivity", SECONDS, PARAMS_PARENT, offsetof(struct check_params, inactivity)},
    {"output", TEXT, PARAMS_PARENT, offsetof(struct check_params, output)},
    {"in-process", SWITCH, PARAMS_PARENT, offsetof(struct check_params, in_process)},
    {"help", HELP, 0, 0},
};

enum { NUM_ROWS = sizeof rows / sizeof rows[0], FIRST_OPTION = 256 };

static const char *const formats[] = {
    [FORMAT_TAP] = "tap",
    [FORMAT_JUNIT] = "junit",
    [FORMAT_JSON] = "json",
    [FORMAT_MARKDOWN] = "markdown",
};
enum { NUM_FORMATS = sizeof formats / sizeof formats[0] };

/* The rows of a command as getopt wants them; FIRST_OPTION + r tells the row. */
static void list_options(unsigned takes, struct option options[NUM_ROWS + 1])
{
    size_t count = 0;
    for (int r = 0; r < NUM_ROWS; r++) {
        bool alone = rows[r].kind == SWITCH || rows[r].kind == HELP;
        if (!rows[r].takes || rows[r].takes & takes)
            options[count++] = (struct option){
                rows[r].name, alone ? no_argument : required_argument, NULL, FIRST_OPTION + r};
    }
    options[count] = (struct option){0};
}

/* ---- Messages -------------------------------------------------------------------------------- */

void params_complain(const struct check_params *params, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "attnhost %s: ", params->command);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

static int usage(const struct check_params *params)
{
    fprintf(stderr, "`attnhost %s --help` tells what is accepted\n", params->command);
    return EXIT_USAGE;
}

static int refuse(const struct check_params *params, const struct row *row, const char *value,
                  const char *accepted)
{
    params_complain(params, "--%s '%.100s': accepted %s", row->name, value, accepted);
    return EXIT_USAGE;
}

/* ---- Values ---------------------------------------------------------------------------------- */

bool params_add(struct params_list *list, const char *text)
{
    const char **items = realloc(list->items, (list->count + 1) * sizeof *items);
    if (!items)
        return false;
    list->items = items;
    items[list->count++] = text;
    return true;
}

static int take_format(const struct check_params *params, const struct row *row, const char *value,
                       enum check_format *format)
{
    for (int f = 0; f < NUM_FORMATS; f++)
        if (strcmp(formats[f], value) == 0) {
            *format = (enum check_format)f;
            return PARAMS_GO_ON;
        }
    return refuse(params, row, value, "tap, junit, json, markdown");
}

static int take_device(const struct check_params *params, const struct row *row, const char *value,
                       const char **device)
{
    uint64_t ordinal;
    bool numbered =
        strncmp(value, "cuda:", 5) == 0 && text_parse_uint64(value + 5, &ordinal) && ordinal < 1024;
    if (!numbered && strcmp(value, "cpu") != 0 && strcmp(value, "cuda") != 0)
        return refuse(params, row, value, "cpu, cuda, cuda:N");
    *device = value;
    return PARAMS_GO_ON;
}

static int take_jobs(const struct check_params *params, const struct row *row, const char *value,
                     uint32_t *jobs)
{
    uint64_t number;
    if (!text_parse_uint64(value, &number) || number < 1 || number > MAX_JOBS)
        return refuse(params, row, value, "1..64");
    *jobs = (uint32_t)number;
    return PARAMS_GO_ON;
}

/* One for two processors: backends compute with threads of their own. */
static uint32_t default_jobs(void)
{
    long half = sysconf(_SC_NPROCESSORS_ONLN) / 2;
    return half < 1 ? 1 : half > DEFAULT_JOBS ? DEFAULT_JOBS : (uint32_t)half;
}

static int take_value(struct check_params *params, const struct row *row, const char *value)
{
    void *place = (char *)params + row->place;
    switch (row->kind) {
    case LIST:
        if (params_add(place, value))
            return PARAMS_GO_ON;
        params_complain(params, "no memory");
        return EXIT_RUN_TIME;
    case TEXT:
        *(const char **)place = value;
        return PARAMS_GO_ON;
    case DEVICE:
        return take_device(params, row, value, place);
    case SWITCH:
        *(bool *)place = true;
        return PARAMS_GO_ON;
    case SEED:
        return text_parse_uint64(value, place) ? PARAMS_GO_ON
                                               : refuse(params, row, value, "0..2^64-1");
    case SECONDS:
        if (text_parse_double(value, place) && *(double *)place > 0 && *(double *)place <= 1e6)
            return PARAMS_GO_ON;
        return refuse(params, row, value, "seconds, more than 0, at most 1000000");
    case JOBS:
        return take_jobs(params, row, value, place);
    case FORMAT:
        return take_format(params, row, value, place);
    case HELP:
    default:
        fputs(params->help, stdout);
        return EXIT_GOOD;
    }
}

static int take_plugin(struct check_params *params, int count, char **names)
{
    bool from_replay = count == 0 && params->replay;
    if (count != 1 && !from_replay) {
        params_complain(params, "%d names given: accepted one plugin file", count);
        return usage(params);
    }
    params->plugin = count ? names[0] : NULL;
    return PARAMS_GO_ON;
}

int params_parse(struct check_params *params, int argc, char **argv)
{
    struct option options[NUM_ROWS + 1];
    list_options(params->takes, options);
    params->timeout = 600;
    params->inactivity = 30;
    params->time = 60;
    params->jobs = default_jobs();
    int option, code = PARAMS_GO_ON;
    optind = 0; /* begin anew: a process may parse more than one command line */
    while (code == PARAMS_GO_ON && (option = getopt_long(argc, argv, "h", options, NULL)) != -1)
        if (option == 'h')
            code = take_value(params, &rows[NUM_ROWS - 1], NULL);
        else
            code = option < FIRST_OPTION ? usage(params)
                                         : take_value(params, &rows[option - FIRST_OPTION], optarg);
    return code == PARAMS_GO_ON ? take_plugin(params, argc - optind, argv + optind) : code;
}

void params_finish(struct check_params *params)
{
    free(params->filters.items);
    free(params->with.items);
    free(params->options.items);
}

/* ---- The child ------------------------------------------------------------------------------- */

char **params_of_child(const struct check_params *params, char numbers[32])
{
    size_t most = 16 + 2 * (params->with.count + params->options.count), count = 0;
    char **argv = calloc(most, sizeof *argv);
    if (!argv)
        return NULL;
    snprintf(numbers, 32, "--seed=%llu", (unsigned long long)params->seed);
    argv[count++] = (char *)"attnhost";
    argv[count++] = (char *)"check-child";
    argv[count++] = numbers;
    if (params->exhaustive)
        argv[count++] = (char *)"--exhaustive";
    for (size_t w = 0; w < params->with.count; w++) {
        argv[count++] = (char *)"--with";
        argv[count++] = (char *)params->with.items[w];
    }
    for (size_t o = 0; o < params->options.count; o++) {
        argv[count++] = (char *)"--option";
        argv[count++] = (char *)params->options.items[o];
    }
    if (params->backend) {
        argv[count++] = (char *)"--backend";
        argv[count++] = (char *)params->backend;
    }
    argv[count++] = (char *)"--";
    argv[count++] = (char *)params->plugin;
    return argv;
}
