/* SPDX-License-Identifier: Apache-2.0
 *
 * trace_mooncake.c: one line of a Mooncake trace, a JSON object.
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "host/base/error.h"
#include "host/base/json_keys.h"
#include "host/workload/trace_row.h"

/* 10^15 ms are 31 000 years: any clock, and microseconds still fit an int64_t with room. */
#define MAX_TIMESTAMP_MS 1e15

/* trace_fail_field() with the JSON text of `item` as what was got; NULL is a missing member. cJSON
 * would print a number with 15 digits, which can hide why it was refused. */
static attn_status fail_item(const trace_place *place, const char *field, const cJSON *item,
                             const char *accepted, attn_error *error)
{
    char number[40];
    if (cJSON_IsNumber(item)) {
        snprintf(number, sizeof number, "%.17g", item->valuedouble);
        return trace_fail_field(place, field, number, accepted, error);
    }
    char *text = item ? cJSON_PrintUnformatted(item) : NULL;
    attn_status status = trace_fail_field(place, field, text ? text : "nothing", accepted, error);
    cJSON_free(text);
    return status;
}

/* The integer `item`, which must lie in [least, most]. */
static attn_status read_integer(const trace_place *place, const char *field, const cJSON *item,
                                int64_t least, int64_t most, int64_t *value, attn_error *error)
{
    if (cJSON_IsNumber(item)) {
        double number = item->valuedouble;
        if (number >= (double)least && number <= (double)most && number == floor(number)) {
            *value = (int64_t)number;
            return ATTN_OK;
        }
    }
    char accepted[80];
    snprintf(accepted, sizeof accepted, "an integer from %lld to %lld", (long long)least,
             (long long)most);
    return fail_item(place, field, item, accepted, error);
}

static attn_status read_timestamp(const trace_place *place, const cJSON *item, int64_t *arrival_us,
                                  attn_error *error)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= MAX_TIMESTAMP_MS))
        return fail_item(place, "timestamp", item, "milliseconds from 0 to 1e15", error);
    *arrival_us = (int64_t)floor(item->valuedouble * 1000);
    return ATTN_OK;
}

static attn_status make_room(const trace_place *place, trace_row *row, int64_t count,
                             attn_error *error)
{
    if (count <= row->hash_ids_capacity)
        return ATTN_OK;
    int64_t *hash_ids = realloc(row->hash_ids, (size_t)count * sizeof *hash_ids);
    if (!hash_ids)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "%s:%lld: no memory for hash_ids",
                         place->path, (long long)place->line);
    row->hash_ids = hash_ids;
    row->hash_ids_capacity = count;
    return ATTN_OK;
}

/* Row's input_length is known: it says how many ids there must be. */
static attn_status read_hash_ids(const trace_place *place, const cJSON *array, trace_row *row,
                                 attn_error *error)
{
    int64_t expected = (row->input_length + TRACE_BLOCK_TOKENS - 1) / TRACE_BLOCK_TOKENS;
    if (!cJSON_IsArray(array))
        return fail_item(place, "hash_ids", array, "an array of integers", error);
    int64_t count = cJSON_GetArraySize(array);
    if (count != expected)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s:%lld: hash_ids: got %lld ids for input_length %lld, accepted: %lld, "
                         "one per block of %d tokens",
                         place->path, (long long)place->line, (long long)count,
                         (long long)row->input_length, (long long)expected, TRACE_BLOCK_TOKENS);
    attn_status status = make_room(place, row, count, error);
    row->num_hash_ids = 0;
    for (const cJSON *item = array->child; item && status == ATTN_OK; item = item->next)
        status = read_integer(place, "hash_ids", item, 0, TRACE_MAX_ID,
                              &row->hash_ids[row->num_hash_ids++], error);
    return status;
}

static attn_status read_object(const trace_place *place, const cJSON *object, trace_row *row,
                               attn_error *error)
{
    attn_status status = read_timestamp(
        place, cJSON_GetObjectItemCaseSensitive(object, "timestamp"), &row->arrival_us, error);
    if (status == ATTN_OK)
        status = read_integer(place, "input_length",
                              cJSON_GetObjectItemCaseSensitive(object, "input_length"), 1,
                              TRACE_MAX_LENGTH, &row->input_length, error);
    if (status == ATTN_OK)
        status = read_integer(place, "output_length",
                              cJSON_GetObjectItemCaseSensitive(object, "output_length"), 0,
                              TRACE_MAX_LENGTH, &row->output_length, error);
    if (status == ATTN_OK)
        status =
            read_hash_ids(place, cJSON_GetObjectItemCaseSensitive(object, "hash_ids"), row, error);
    return status;
}

attn_status trace_mooncake_parse(const trace_place *place, const char *text, trace_row *row,
                                 attn_error *error)
{
    const char *end = text;
    cJSON *object = cJSON_ParseWithOpts(text, &end, 1);
    if (!cJSON_IsObject(object)) {
        if (!object)
            host_fail(error, ATTN_CONFIG_ERROR,
                      "%s:%lld: column %lld: broken JSON, accepted: one complete object per line",
                      place->path, (long long)place->line, (long long)(end - text) + 1);
        else
            fail_item(place, "line", object, "a JSON object", error);
        cJSON_Delete(object);
        return ATTN_CONFIG_ERROR;
    }
    const char *key = json_repeated_key(object);
    attn_status status = key ? host_fail(error, ATTN_CONFIG_ERROR,
                                         "%s:%lld: key \"%.60s\" is given twice, accepted: once",
                                         place->path, (long long)place->line, key)
                             : read_object(place, object, row, error);
    cJSON_Delete(object);
    return status;
}
