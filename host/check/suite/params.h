/* SPDX-License-Identifier: Apache-2.0
 *
 * params.h: what `attnhost check`, `attnhost fuzz` and the child of both are asked for. Their
 * command lines are read in cmd/.
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
    double timeout;    /* seconds for all */
    double inactivity; /* seconds without a sign of life */
    double time;       /* seconds to fuzz for */
    enum check_format format;
    const char *output;  /* file of the report, folder of replay files; NULL = stdout, none */
    const char *replay;  /* file; NULL = none */
    const char *waivers; /* file; NULL = none */
    const char *profile; /* name or file; NULL = none */
    uint32_t jobs;       /* processes side by side; 0: as many as the machine is good for */
    bool list, in_process, exhaustive;
    bool fail_fast; /* nothing is run after the first failure */
    bool quick;     /* of each check a few cases alone */
};

/* Release the lists. */
void params_finish(struct check_params *params);

/* The command line of the child, to be freed by the caller; it borrows from the params and from
 * `numbers`. NULL when memory ran out. */
char **params_of_child(const struct check_params *params, char numbers[32]);

#endif /* HOST_CHECK_SUITE_PARAMS_H */
