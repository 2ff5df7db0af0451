/* SPDX-License-Identifier: Apache-2.0
 *
 * replay.c: writing and reading of replay files.
 */
#include "host/check/suite/replay.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "host/check/suite/lines.h"
#include "host/base/error.h"
#include "host/base/text.h"

/* ---- Read ------------------------------------------------------------------------------------ */

struct reading {
    struct check_params *params;
    struct replay *replay;
    bool is_replay;
};

static bool take_number(const char *value, uint64_t most, uint64_t *number)
{
    return text_parse_uint64(value, number) && *number <= most;
}

/* false for a value that is none. */
static bool take_value(struct reading *reading, const char *key, const char *value)
{
    struct check_params *params = reading->params;
    struct replay *replay = reading->replay;
    uint64_t number = 0;
    if (strcmp(key, "attnhost-replay") == 0)
        return reading->is_replay = strcmp(value, "1") == 0;
    if (strcmp(key, "plugin") == 0)
        return params->plugin = params->plugin ? params->plugin : value, true;
    if (strcmp(key, "device") == 0)
        return params->device = params->device ? params->device : value, true;
    if (strcmp(key, "with") == 0)
        return text_list_add(&params->with, value);
    if (strcmp(key, "option") == 0)
        return text_list_add(&params->options, value);
    if (strcmp(key, "seed") == 0)
        return take_number(value, UINT64_MAX, &params->seed);
    if (strcmp(key, "case-seed") == 0)
        return take_number(value, UINT64_MAX, &replay->seed);
    if (strcmp(key, "case") == 0)
        return case_id_parse(value, replay->backend, &replay->check, &replay->index);
    if (strcmp(key, "without") != 0 || !take_number(value, UINT32_MAX, &number))
        return false;
    replay->without = (uint32_t)number;
    return true;
}

static attn_status take_line(void *ctx, const char *place, int number, char *line,
                             attn_error *error)
{
    struct reading *reading = ctx;
    (void)number;
    const char *key = lines_word(&line), *sign = lines_word(&line);
    if (strcmp(sign, "=") == 0 && take_value(reading, key, line))
        return ATTN_OK;
    return host_fail(error, ATTN_CONFIG_ERROR,
                     "%s: '%.60s' with value '%.100s': accepted lines KEY = VALUE as `attnhost "
                     "fuzz` writes them, with a check of this version",
                     place, key, line);
}

attn_status replay_load(struct check_params *params, struct replay *replay, attn_error *error)
{
    memset(replay, 0, sizeof *replay);
    struct reading reading = {.params = params, .replay = replay};
    attn_status status =
        lines_read(params->replay, "a replay file", take_line, &reading, &replay->text, error);
    if (status == ATTN_OK && (!reading.is_replay || !replay->check || !params->plugin))
        status = host_fail(error, ATTN_CONFIG_ERROR,
                           "%s: a line is missing; accepted: attnhost-replay = 1, plugin and case",
                           params->replay);
    if (status)
        replay_finish(replay);
    return status;
}

void replay_finish(struct replay *replay)
{
    free(replay->text);
    memset(replay, 0, sizeof *replay);
}

/* ---- Write ----------------------------------------------------------------------------------- */

static void write_path(const char *key, const char *path, FILE *file)
{
    char *absolute = realpath(path, NULL);
    fprintf(file, "%s = %s\n", key, absolute ? absolute : path);
    free(absolute);
}

void replay_write(const struct check_params *params, const char *id, uint64_t seed,
                  uint32_t without, const char *device, FILE *file)
{
    fputs("attnhost-replay = 1\n", file);
    write_path("plugin", params->plugin, file);
    for (size_t w = 0; w < params->with.count; w++)
        write_path("with", params->with.items[w], file);
    for (size_t o = 0; o < params->options.count; o++)
        fprintf(file, "option = %s\n", params->options.items[o]);
    fprintf(file, "device = %s\n", device);
    fprintf(file, "seed = %llu\n", (unsigned long long)params->seed);
    fprintf(file, "case = %s\n", id);
    fprintf(file, "case-seed = %llu\n", (unsigned long long)seed);
    fprintf(file, "without = %u\n", without);
}
