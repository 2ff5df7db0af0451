/* SPDX-License-Identifier: Apache-2.0
 *
 * params.c: defaults, copies and release of the parameters.
 */
#include "host/check/suite/params.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_REPEATS = 1000000 };

void params_finish(struct check_params *params)
{
    text_list_finish(&params->filters);
    text_list_finish(&params->with);
    text_list_finish(&params->options);
}

bool params_read_repeat(const char *text, void *place)
{
    uint64_t number;
    if (!text_parse_uint64(text, &number) || number < 1 || number > MOST_REPEATS)
        return false;
    *(uint32_t *)place = (uint32_t)number;
    return true;
}

char **params_of_child(const struct check_params *params, struct params_numbers *numbers)
{
    size_t most = 16 + 2 * (params->with.count + params->options.count), count = 0;
    char **argv = calloc(most, sizeof *argv);
    if (!argv)
        return NULL;
    snprintf(numbers->seed, sizeof numbers->seed, "--seed=%llu", (unsigned long long)params->seed);
    snprintf(numbers->repeat, sizeof numbers->repeat, "--repeat=%u", params->repeat);
    argv[count++] = (char *)"attnhost";
    argv[count++] = (char *)"check-child";
    argv[count++] = numbers->seed;
    if (params->exhaustive)
        argv[count++] = (char *)"--exhaustive";
    if (params->repeat > 0)
        argv[count++] = numbers->repeat;
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
