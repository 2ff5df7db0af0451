/* SPDX-License-Identifier: Apache-2.0 */
#include "host/check/suite/params.h"

#include <stdio.h>
#include <stdlib.h>

void params_finish(struct check_params *params)
{
    text_list_finish(&params->filters);
    text_list_finish(&params->with);
    text_list_finish(&params->options);
}

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
