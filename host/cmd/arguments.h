/* SPDX-License-Identifier: Apache-2.0
 *
 * arguments.h: the command line of a sub-command: options from one table, one thing that is named.
 */
#ifndef HOST_CMD_ARGUMENTS_H
#define HOST_CMD_ARGUMENTS_H

#include <stddef.h>

#include "host/config/config.h"

/* Options beyond --set and --help that a command takes. */
enum {
    ARGUMENTS_JSON = 1 << 0,      /* --json */
    ARGUMENTS_JSON_FILE = 1 << 1, /* --json FILE */
    ARGUMENTS_CONFIG = 1 << 2,    /* --config FILE */
    ARGUMENTS_RUN = 1 << 3,       /* --print-config, --quiet, and short ways to write --set */
    ARGUMENTS_OPTIONAL = 1 << 4,  /* what is named may be left out */
    ARGUMENTS_BENCH = 1 << 5,     /* --backend, --shape, --seconds, --sustain, --device, --seed */
    ARGUMENTS_MATRIX = 1 << 6     /* --matrix */
};

struct arguments_spec {
    const char *command; /* "run" */
    const char *names;   /* what is named: "CONFIG.ini" */
    const char *help;
    unsigned takes; /* ARGUMENTS_* */
};

/* Values of an option that may be repeated; the texts are the command line's. */
struct arguments_list {
    const char **items;
    size_t count;
};

struct arguments {
    const struct arguments_spec *spec;
    const char *target; /* what is named; NULL = left out */
    const char *config; /* --config; NULL = not given */
    const char *json;   /* FILE, or "-" where --json takes none; NULL = not given */
    int print_config, quiet, matrix;
    const char *seconds, *sustain;          /* as they were written; NULL = not given */
    struct arguments_list backends, shapes; /* one for each --backend, --shape */
    char **sets;                            /* "section.key=value"; owned */
    size_t num_sets;
};

enum { ARGUMENTS_GO_ON = -1 };

/* Read a command line; spec outlives the arguments, which the caller releases in any case.
 * ARGUMENTS_GO_ON, or the exit code to end with: after --help, or after a line on stderr. */
int arguments_parse(int argc, char **argv, const struct arguments_spec *spec,
                    struct arguments *arguments);

void arguments_finish(struct arguments *arguments);

/* The ini `path` (NULL = none) with the --set of the command line. ARGUMENTS_GO_ON and *config, the
 * caller's, or an exit code after a line on stderr. */
int arguments_load_config(const struct arguments *arguments, const char *path,
                          struct config **config);

/* "attnhost COMMAND: message" on stderr. */
void arguments_complain(const struct arguments *arguments, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif /* HOST_CMD_ARGUMENTS_H */
