/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c: typed fields of a JSON file over cJSON.
 */
#include "host/model/json.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/input.h"
#include "host/base/json_keys.h"
#include "host/base/text.h"

enum { JSON_MAX_BYTES = 16 << 20, JSON_MAX_KEY = 64 };

/* ---- Text to tree ---------------------------------------------------------------------------- */

/* Transformers dumps with Python's json, which writes infinity as a bare word. Outside of strings
 * it becomes a number of the same length, so that places in messages stay true. */
static void replace_infinity(char *text, size_t length)
{
    static const char word[] = "Infinity", number[] = "1e999999";
    bool in_string = false;
    for (size_t i = 0; i < length; i++) {
        if (in_string && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            in_string = !in_string;
        else if (!in_string && length - i >= sizeof word - 1 &&
                 memcmp(text + i, word, sizeof word - 1) == 0)
            memcpy(text + i, number, sizeof number - 1);
    }
}

/* Is there a bracket or a string that the text does not close? Then the file was cut. */
static bool ends_early(const char *text, size_t length)
{
    long depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < length; i++) {
        if (in_string && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            in_string = !in_string;
        else if (!in_string)
            depth += (text[i] == '{' || text[i] == '[') - (text[i] == '}' || text[i] == ']');
    }
    return in_string || depth > 0;
}

static attn_status fail_at(const char *text, size_t length, size_t at, const char *file,
                           attn_error *error)
{
    bool truncated = at >= length || ends_early(text, length);
    size_t line = 1, column = 1;
    if (truncated)
        at = length;
    for (size_t i = 0; i < at && i < length; i++) {
        column++;
        if (text[i] == '\n') {
            line++;
            column = 1;
        }
    }
    return host_fail(error, ATTN_CONFIG_ERROR,
                     "%s:%zu:%zu: not valid JSON: %s; accepted: one whole object", file, line,
                     column,
                     truncated ? "the file ends before its object does" : "unexpected text here");
}

/* The tree, or NULL if one of its objects has a key twice. */
static cJSON *refuse_repeated(cJSON *root, const char *file, attn_error *error)
{
    const char *key = json_repeated_key(root);
    if (!key)
        return root;
    host_fail(error, ATTN_CONFIG_ERROR, "%s: key \"%.60s\" is given twice; accepted: once", file,
              key);
    cJSON_Delete(root);
    return NULL;
}

cJSON *json_parse(const char *text, size_t length, const char *file, attn_error *error)
{
    char *copy = malloc(length + 1);
    if (!copy) {
        host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "%s: no memory to read it", file);
        return NULL;
    }
    memcpy(copy, text, length);
    copy[length] = '\0';
    replace_infinity(copy, length);

    /* cJSON would end a string, or the whole text, at a NUL. */
    const char *end = memchr(copy, '\0', length);
    cJSON *root = NULL;
    if (!end)
        root = cJSON_ParseWithLengthOpts(copy, length + 1, &end, true);
    if (!root)
        fail_at(copy, length, (size_t)(end - copy), file, error);
    else if (!cJSON_IsObject(root)) {
        char got[48];
        json_describe(root, got, sizeof got);
        host_fail(error, ATTN_CONFIG_ERROR, "%s:1:1: got %s: accepted a JSON object", file, got);
        cJSON_Delete(root);
        root = NULL;
    }
    free(copy);
    return root ? refuse_repeated(root, file, error) : NULL;
}

/* Up to JSON_MAX_BYTES + 1 bytes, so that a file that is too long differs from one that fits.
 */
static char *read_all(FILE *file, size_t *length)
{
    size_t capacity = 64 << 10, used = 0;
    char *text = malloc(capacity);
    while (text) {
        used += fread(text + used, 1, capacity - used, file);
        if (used < capacity || used > JSON_MAX_BYTES)
            break;
        char *larger = realloc(text, capacity *= 2);
        if (!larger)
            free(text);
        text = larger;
    }
    *length = used;
    return text;
}

cJSON *json_parse_file(const char *path, attn_error *error)
{
    FILE *file = input_open(path);
    if (!file) {
        host_fail(error, ATTN_CONFIG_ERROR, "%s: cannot be opened: %s; accepted: a readable file",
                  path, input_error(errno));
        return NULL;
    }
    cJSON *root = NULL;
    size_t length;
    errno = 0;
    char *text = read_all(file, &length);
    if (!text)
        host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "%s: no memory to read it", path);
    else if (ferror(file))
        host_fail(error, ATTN_CONFIG_ERROR, "%s: cannot be read: %s", path, strerror(errno));
    else if (length > JSON_MAX_BYTES)
        host_fail(error, ATTN_CONFIG_ERROR,
                  "%s: has more than %d bytes; accepted: a file of up to that", path,
                  JSON_MAX_BYTES);
    else
        root = json_parse(text, length, path, error);
    free(text);
    fclose(file);
    return root;
}

/* ---- Fields ---------------------------------------------------------------------------------- */

void json_describe(const cJSON *value, char *text, size_t size)
{
    if (cJSON_IsString(value))
        snprintf(text, size, "\"%.40s\"", value->valuestring);
    else if (cJSON_IsNumber(value))
        text_format(text, size, "%.17g", value->valuedouble);
    else if (cJSON_IsBool(value))
        snprintf(text, size, "%s", cJSON_IsTrue(value) ? "true" : "false");
    else
        snprintf(text, size, "%s",
                 cJSON_IsArray(value)    ? "an array"
                 : cJSON_IsObject(value) ? "an object"
                                         : "null");
}

/* A bit of cJSON.type above those that cJSON has a meaning for: the field was looked up. */
enum { JSON_READ = 1 << 16 };

static void mark_read(const cJSON *value)
{
    if (value)
        ((cJSON *)(uintptr_t)value)->type |= JSON_READ;
}

/* The field's value, and in `name` the alternative of `keys` that was found, or the first one. */
static const cJSON *find(const struct json_reader *reader, const char *keys,
                         char name[JSON_MAX_KEY])
{
    const cJSON *found = NULL;
    char first[JSON_MAX_KEY] = "", tried[JSON_MAX_KEY];
    for (const char *key = keys; key;) {
        const char *bar = strchr(key, '|');
        int length = bar ? (int)(bar - key) : (int)strlen(key);
        snprintf(tried, sizeof tried, "%.*s", length, key);
        if (!*first)
            snprintf(first, sizeof first, "%s", tried);
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(reader->object, tried);
        mark_read(value);
        if (value && !cJSON_IsNull(value) && !found) {
            found = value;
            snprintf(name, JSON_MAX_KEY, "%s", tried);
        }
        key = bar ? bar + 1 : NULL;
    }
    if (!found)
        snprintf(name, JSON_MAX_KEY, "%s", first);
    return found;
}

void json_fail(const struct json_reader *reader, const char *keys, const char *format, ...)
{
    if (*reader->status)
        return;
    char message[896], name[JSON_MAX_KEY];
    va_list args;
    va_start(args, format);
    text_vformat(message, sizeof message, format, args);
    va_end(args);
    find(reader, keys, name);
    *reader->status = host_fail(reader->error, ATTN_CONFIG_ERROR, "%s: %s%s: %s", reader->file,
                                reader->path, name, message);
}

const cJSON *json_get(const struct json_reader *reader, const char *keys)
{
    char name[JSON_MAX_KEY];
    return find(reader, keys, name);
}

bool json_has(const struct json_reader *reader, const char *keys)
{
    return json_get(reader, keys) != NULL;
}

bool json_stated(const struct json_reader *reader, const char *key)
{
    return cJSON_HasObjectItem(reader->object, key);
}

bool json_was_read(const cJSON *value)
{
    return (value->type & JSON_READ) != 0;
}

static void refuse(const struct json_reader *reader, const char *name, const cJSON *value,
                   const char *accepted)
{
    char got[64];
    json_describe(value, got, sizeof got);
    json_fail(reader, name, "got %s: accepted %s", got, accepted);
}

int64_t json_int(const struct json_reader *reader, const char *keys, int64_t otherwise, int64_t min,
                 int64_t max)
{
    char name[JSON_MAX_KEY], accepted[80];
    const cJSON *value = find(reader, keys, name);
    snprintf(accepted, sizeof accepted, "an integer from %lld to %lld", (long long)min,
             (long long)max);
    if (!value) {
        if (otherwise == JSON_REQUIRED)
            json_fail(reader, name, "is missing: accepted %s", accepted);
        return otherwise == JSON_REQUIRED ? min : otherwise;
    }
    double number = cJSON_IsNumber(value) ? value->valuedouble : NAN;
    if (number >= (double)min && number <= (double)max && number >= floor(number) &&
        number <= floor(number))
        return (int64_t)number;
    refuse(reader, name, value, accepted);
    return min;
}

double json_double(const struct json_reader *reader, const char *keys, double otherwise, double min,
                   double max)
{
    char name[JSON_MAX_KEY], accepted[80];
    const cJSON *value = find(reader, keys, name);
    text_format(accepted, sizeof accepted, "a number from %g to %g", min, max);
    if (!value) {
        if (isnan(otherwise))
            json_fail(reader, name, "is missing: accepted %s", accepted);
        return isnan(otherwise) ? min : otherwise;
    }
    double number = cJSON_IsNumber(value) ? value->valuedouble : NAN;
    if (number >= min && number <= max)
        return number;
    refuse(reader, name, value, accepted);
    return min;
}

float json_float(const struct json_reader *reader, const char *keys, double otherwise, double max)
{
    char name[JSON_MAX_KEY];
    double number = json_double(reader, keys, otherwise, 0, max);
    if (number > 0 && number < (double)FLT_MIN && find(reader, keys, name))
        json_fail(reader, name, "got %g: accepted 0, or a number from 1.2e-38 to %g", number, max);
    return (float)number;
}

bool json_bool(const struct json_reader *reader, const char *keys, bool otherwise)
{
    char name[JSON_MAX_KEY];
    const cJSON *value = find(reader, keys, name);
    if (value && !cJSON_IsBool(value))
        refuse(reader, name, value, "true or false");
    return cJSON_IsBool(value) ? (bool)cJSON_IsTrue(value) : otherwise;
}

const char *json_string(const struct json_reader *reader, const char *keys, const char *otherwise)
{
    char name[JSON_MAX_KEY];
    const cJSON *value = find(reader, keys, name);
    if (value && !cJSON_IsString(value))
        refuse(reader, name, value, "a string");
    return cJSON_IsString(value) ? value->valuestring : otherwise;
}

const cJSON *json_array(const struct json_reader *reader, const char *key, int64_t length)
{
    const cJSON *value = json_get(reader, key);
    if (!value)
        return NULL;
    if (!cJSON_IsArray(value)) {
        refuse(reader, key, value, "an array");
        return NULL;
    }
    if (length >= 0 && cJSON_GetArraySize(value) != length) {
        json_fail(reader, key, "got %d elements: accepted %lld, one for each layer",
                  cJSON_GetArraySize(value), (long long)length);
        return NULL;
    }
    return value;
}

bool json_object(const struct json_reader *reader, const char *key, const char *path,
                 struct json_reader *inner)
{
    const cJSON *value = json_get(reader, key);
    if (!value)
        return false;
    if (!cJSON_IsObject(value)) {
        refuse(reader, key, value, "an object");
        return false;
    }
    *inner = *reader;
    inner->object = value;
    inner->path = path;
    return true;
}
