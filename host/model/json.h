/* SPDX-License-Identifier: Apache-2.0
 *
 * json.h: reading fields of a config.json, with errors that name file, path, value and accepted
 * values. Private to model/.
 *
 * A reader looks at one object of the file. The first error sticks: later calls return their
 * default and change nothing, so one check of a reader's status after many fields is enough. */
#ifndef HOST_MODEL_JSON_H
#define HOST_MODEL_JSON_H

#include <stdbool.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "attn_plugin.h"

struct json_reader {
    const char *file;    /* for messages */
    const cJSON *object; /* what fields are looked up in */
    const char *path;    /* static or longer lived: "" for the root, else "text_config." */
    attn_status *status; /* shared by the readers of one file */
    attn_error *error;
};

/* Parse `length` bytes. Python's Infinity, which Transformers writes, is read as a number. Returns
 * NULL and an error with line and column if it is no JSON, or not an object. The caller deletes the
 * tree. */
cJSON *json_parse(const char *text, size_t length, const char *file, attn_error *error);

/* Read the file, then parse it; at most 16 MiB. */
cJSON *json_parse_file(const char *path, attn_error *error);

/* A field that is present and not null; "a|b" tries a, then b. NULL if absent. Whichever of them
 * the file has counts as read from now on; every function below looks its field up by this one. */
const cJSON *json_get(const struct json_reader *reader, const char *keys);
bool json_has(const struct json_reader *reader, const char *keys);

/* Is the field there, if only as null? Null often says "none" where absence means a default. */
bool json_stated(const struct json_reader *reader, const char *key);

/* Was this value of the file looked up by its key? */
bool json_was_read(const cJSON *value);

/* "No default: the field must be there." */
#define JSON_REQUIRED INT64_MIN

/* An integer in [min, max]. */
int64_t json_int(const struct json_reader *reader, const char *keys, int64_t otherwise, int64_t min,
                 int64_t max);

/* A finite number in [min, max]; NAN as `otherwise` makes it required. */
double json_double(const struct json_reader *reader, const char *keys, double otherwise, double min,
                   double max);

/* A number that becomes one of fp32: 0, or one in [1.2e-38, max], which is not lost there. */
float json_float(const struct json_reader *reader, const char *keys, double otherwise, double max);

bool json_bool(const struct json_reader *reader, const char *keys, bool otherwise);

/* A string, or `otherwise`. Lives as long as the tree. */
const char *json_string(const struct json_reader *reader, const char *keys, const char *otherwise);

/* An array, or NULL if absent. With `length` >= 0 it must have that many elements. */
const cJSON *json_array(const struct json_reader *reader, const char *key, int64_t length);

/* The object `key` into *inner, as a separate reader; false if it is absent or there is an error.
 * `path` is what its fields are called by: "text_config.". */
bool json_object(const struct json_reader *reader, const char *key, const char *path,
                 struct json_reader *inner);

/* Say that a field is wrong: "FILE: PATH: message"; of alternatives "a|b" the one given is
 * named. Does nothing after an earlier error. */
void json_fail(const struct json_reader *reader, const char *keys, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* What a value is, for messages: `"x"`, `3.5`, `an array`. Cut to `size`. */
void json_describe(const cJSON *value, char *text, size_t size);

#endif /* HOST_MODEL_JSON_H */
