/* SPDX-License-Identifier: Apache-2.0
 *
 * trace_json.c: one line of a JSON trace, an object.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* tdestroy */
#endif
#include <cjson/cJSON.h>
#include <math.h>
#include <search.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/json_keys.h"
#include "host/base/text.h"
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
        text_format(number, sizeof number, "%.17g", item->valuedouble);
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

static const cJSON *member(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* The time `field`, in microseconds. */
static attn_status read_time(const trace_place *place, const trace_json *json, const char *field,
                             const cJSON *item, int64_t *microseconds, attn_error *error)
{
    bool in_seconds = json->format == TRACE_FORMAT_BAILIAN;
    double milliseconds = cJSON_IsNumber(item) ? item->valuedouble * (in_seconds ? 1000 : 1) : -1;
    if (!(milliseconds >= 0 && milliseconds <= MAX_TIMESTAMP_MS))
        return fail_item(place, field, item,
                         in_seconds ? "seconds from 0 to 1e12" : "milliseconds from 0 to 1e15",
                         error);
    *microseconds = (int64_t)floor(milliseconds * 1000);
    return ATTN_OK;
}

/* ---- Sessions -------------------------------------------------------------------------------- */

struct session {
    char *id; /* as JSON has it, so 1 and "1" differ */
    int64_t arrival_us;
};

static int compare_sessions(const void *left, const void *right)
{
    return strcmp(((const struct session *)left)->id, ((const struct session *)right)->id);
}

static void free_session(void *session)
{
    cJSON_free(((struct session *)session)->id);
    free(session);
}

/* The session `id`, a new one if there was none; NULL without memory. */
static struct session *find_session(trace_json *json, const cJSON *id)
{
    struct session *made = calloc(1, sizeof *made);
    if (made)
        made->id = cJSON_PrintUnformatted(id);
    struct session **found =
        made && made->id ? tsearch(made, &json->sessions, compare_sessions) : NULL;
    if (made && !found)
        free(made);
    if (!found)
        return NULL;
    if (*found == made)
        made->arrival_us = -1;
    else
        free_session(made);
    return *found;
}

/* A turn that has a delay in place of a timestamp follows the one before it in its session. */
static attn_status read_turn(const trace_place *place, const cJSON *object,
                             const struct session *session, int64_t delay_us, trace_row *row,
                             attn_error *error)
{
    if (!session)
        return trace_fail_field(place, "delay", "no session_id with it",
                                "a timestamp, or a session_id and a delay", error);
    if (session->arrival_us < 0)
        return fail_item(place, "session_id", member(object, "session_id"),
                         "a session of an earlier line, or a timestamp in place of the delay",
                         error);
    row->arrival_us = session->arrival_us + delay_us;
    return ATTN_OK;
}

static attn_status read_arrival(const trace_place *place, const cJSON *object, trace_json *json,
                                trace_row *row, attn_error *error)
{
    const cJSON *id = member(object, "session_id"), *delay = member(object, "delay");
    const cJSON *timestamp = member(object, "timestamp");
    struct session *session = NULL;
    attn_status status = ATTN_OK;
    if (id && !cJSON_IsString(id) && !cJSON_IsNumber(id))
        return fail_item(place, "session_id", id, "a text or a number", error);
    if (id && !(session = find_session(json, id)))
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "%s:%lld: no memory for a session",
                         place->path, (long long)place->line);
    if (timestamp || !delay) {
        status = read_time(place, json, "timestamp", timestamp, &row->arrival_us, error);
    } else {
        int64_t delay_us = 0;
        status = read_time(place, json, "delay", delay, &delay_us, error);
        if (status == ATTN_OK)
            status = read_turn(place, object, session, delay_us, row, error);
    }
    if (status == ATTN_OK && session)
        session->arrival_us = row->arrival_us;
    return status;
}

/* ---- Lines ----------------------------------------------------------------------------------- */

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

/* Row's input_length is known: it says how many ids there must be. A prompt without ids shares
 * nothing. */
static attn_status read_hash_ids(const trace_place *place, const cJSON *array, trace_json *json,
                                 trace_row *row, attn_error *error)
{
    row->num_hash_ids = 0;
    if (!array)
        return ATTN_OK;
    if (!cJSON_IsArray(array))
        return fail_item(place, "hash_ids", array, "an array of integers", error);
    int64_t count = cJSON_GetArraySize(array);
    attn_status status = trace_blocks_add(&json->blocks, place, row->input_length, count, error);
    if (status == ATTN_OK)
        status = make_room(place, row, count, error);
    for (const cJSON *item = array->child; item && status == ATTN_OK; item = item->next)
        status = read_integer(place, "hash_ids", item, 0, TRACE_MAX_ID,
                              &row->hash_ids[row->num_hash_ids++], error);
    return status;
}

/* Lengths are what a trace cannot do without. A line that has neither of these keys is of another
 * kind of file. */
static attn_status check_is_trace(const trace_place *place, const cJSON *object, attn_error *error)
{
    char keys[64] = "no key";
    if (member(object, "input_length") || member(object, "timestamp") || member(object, "delay"))
        return ATTN_OK;
    if (object->child)
        snprintf(keys, sizeof keys, "an object whose first key is \"%.24s\"",
                 object->child->string);
    return host_fail(error, ATTN_CONFIG_ERROR, "%s:%lld: got %s, accepted: " TRACE_LINE_ACCEPTED,
                     place->path, (long long)place->line, keys);
}

static attn_status read_object(const trace_place *place, const cJSON *object, trace_json *json,
                               trace_row *row, attn_error *error)
{
    attn_status status = check_is_trace(place, object, error);
    if (status == ATTN_OK)
        status = read_arrival(place, object, json, row, error);
    if (status == ATTN_OK)
        status = read_integer(place, "input_length", member(object, "input_length"), 1,
                              TRACE_MAX_LENGTH, &row->input_length, error);
    if (status == ATTN_OK)
        status = read_integer(place, "output_length", member(object, "output_length"), 0,
                              TRACE_MAX_LENGTH, &row->output_length, error);
    if (status == ATTN_OK)
        status = read_hash_ids(place, member(object, "hash_ids"), json, row, error);
    return status;
}

static void set_format(trace_json *json, trace_format format)
{
    json->format = format;
    json->blocks.preferred =
        format == TRACE_FORMAT_BAILIAN ? TRACE_BAILIAN_BLOCK : TRACE_MOONCAKE_BLOCK;
}

void trace_json_init(trace_json *json, trace_format format, int64_t block_tokens)
{
    *json = (trace_json){.blocks = {.given = block_tokens, .possible = UINT32_MAX}};
    set_format(json, format);
}

void trace_json_finish(trace_json *json)
{
    tdestroy(json->sessions, free_session);
    json->sessions = NULL;
}

attn_status trace_json_parse(const trace_place *place, const char *text, trace_json *json,
                             trace_row *row, attn_error *error)
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
    if (json->format == TRACE_FORMAT_AUTO)
        set_format(json, member(object, "chat_id") ? TRACE_FORMAT_BAILIAN : TRACE_FORMAT_MOONCAKE);
    const char *key = json_repeated_key(object);
    attn_status status = key ? host_fail(error, ATTN_CONFIG_ERROR,
                                         "%s:%lld: key \"%.60s\" is given twice, accepted: once",
                                         place->path, (long long)place->line, key)
                             : read_object(place, object, json, row, error);
    cJSON_Delete(object);
    return status;
}
