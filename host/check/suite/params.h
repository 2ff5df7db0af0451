/* SPDX-License-Identifier: Apache-2.0
 *
 * params.h: the command lines of `attnhost check`, `attnhost fuzz` and of the child of both.
 */
#ifndef HOST_CHECK_SUITE_PARAMS_H
#define HOST_CHECK_SUITE_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Options that a command takes beside those of every one. */
enum {
    PARAMS_CHECK = 1 << 0, /* how to run and report a whole suite */
    PARAMS_FUZZ = 1 << 1,  /* --time, --output DIR */
    PARAMS_PARENT = 1 << 2 /* limits; not for the child */
};

enum check_format { FORMAT_TAP, FORMAT_JUNIT, FORMAT_JSON, FORMAT_MARKDOWN };

/* Texts, borrowed from the command line or owned by a replay file. */
struct params_list {
    const char **items;
    size_t count;
};

struct check_params {
    const char *command; /* "check" */
    const char *help;
    unsigned takes;
    const char *plugin;         /* file, as it was given */
    const char *backend;        /* NULL = all */
    const char *device;         /* "cpu", "cuda", "cuda:N"; NULL = what the backend serves */
    struct params_list filters; /* patterns of ids; none = all */
    struct params_list with;    /* files of plugins that have children */
    struct params_list options; /* KEY=VALUE */
    uint64_t seed;
    double timeout;    /* seconds for all */
    double inactivity; /* seconds without a sign of life */
    double time;       /* seconds to fuzz for */
    enum check_format format;
    const char *output;  /* file of the report, folder of replay files; NULL = stdout, none */
    const char *replay;  /* file; NULL = none */
    const char *waivers; /* file; NULL = none */
    const char *profile; /* name or file; NULL = none */
    uint32_t jobs;       /* processes side by side */
    bool list, in_process, exhaustive;
    bool fail_fast; /* nothing is run after the first failure */
};

enum { PARAMS_GO_ON = -1 };

/* Read a command line. `command`, `help` and `takes` are set; the caller releases the params in any
 * case. PARAMS_GO_ON, or the exit code to end with: after --help, or after a line on stderr. */
int params_parse(struct check_params *params, int argc, char **argv);

void params_finish(struct check_params *params);

/* Append a text that outlives the list. false when memory ran out. */
bool params_add(struct params_list *list, const char *text);

/* The command line of the child, to be freed by the caller; it borrows from the params and from
 * `numbers`. NULL when memory ran out. */
char **params_of_child(const struct check_params *params, char numbers[32]);

/* "attnhost COMMAND: message" on stderr. */
void params_complain(const struct check_params *params, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif /* HOST_CHECK_SUITE_PARAMS_H */
