/* SPDX-License-Identifier: Apache-2.0
 *
 * params.h: parameters of `attnhost check`, `attnhost fuzz` and their child. cmd/ parses the
 * command lines.
 */
#ifndef HOST_CHECK_SUITE_PARAMS_H
#define HOST_CHECK_SUITE_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host/base/text.h"

enum check_format { FORMAT_TAP, FORMAT_JUNIT, FORMAT_JSON, FORMAT_MARKDOWN };

struct check_params {
    const char *plugin;       /* file, as it was given */
    const char *backend;      /* NULL = all */
    const char *device;       /* "cpu", "cuda", "cuda:N"; NULL = what the backend serves */
    struct text_list filters; /* patterns of ids; none = all */
    struct text_list with;    /* files of plugins that have children */
    struct text_list options; /* KEY=VALUE */
    uint64_t seed;
    double timeout;    /* seconds for all; 0 = as long as there are signs of life */
    double inactivity; /* seconds without a sign of life (silence.h) */
    double time;       /* seconds to fuzz for */
    enum check_format format;
    const char *output;  /* file of the report, folder of replay files; NULL = stdout, none */
    const char *replay;  /* file; NULL = none */
    const char *waivers; /* file; NULL = none */
    const char *profile; /* name or file; NULL = none */
    uint32_t jobs;       /* processes side by side; 0: as many as the machine is good for */
    uint32_t repeat;     /* how often numeric cases are run; 0 = once */
    bool list, in_process, exhaustive;
    bool fail_fast; /* nothing is run after the first failure */
    bool quick;     /* of each check a few cases alone */
};

/* Release the lists. */
void params_finish(struct check_params *params);

/* The command line of the child, to be freed by the caller; it borrows from the params and from
 * `numbers`. NULL when memory ran out. */
struct params_numbers {
    char seed[32], repeat[24];
};
char **params_of_child(const struct check_params *params, struct params_numbers *numbers);

/* A number of repetitions, for the command lines. */
#define PARAMS_ACCEPTS_REPEAT "1..1000000"
bool params_read_repeat(const char *text, void *place);

#endif /* HOST_CHECK_SUITE_PARAMS_H */
