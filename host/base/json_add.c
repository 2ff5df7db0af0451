/* SPDX-License-Identifier: Apache-2.0
 *
 * json_add.c: adding members to cJSON objects.
 */
#include "host/base/json_add.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/text.h"

/* Stands for NaN and infinity, which JSON does not have. */
#define NOT_FINITE "1e308"

enum { DIGITS = 40 };

static void write_number(double value, char digits[DIGITS])
{
    if (!isfinite(value)) {
        snprintf(digits, DIGITS, NOT_FINITE);
        return;
    }
    double back = 0;
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(digits, DIGITS, "%.*g", precision, value);
        char *comma = strchr(digits, ','); /* the decimal point of some locales */
        if (comma)
            *comma = '.';
        if (text_parse_double(digits, &back) && back == value)
            break;
    }
}

bool json_add_item(cJSON *list, cJSON *item)
{
    bool good = cJSON_AddItemToArray(list, item);
    if (!good)
        cJSON_Delete(item);
    return good;
}

bool json_add_text(cJSON *object, const char *name, const char *text)
{
    return cJSON_AddStringToObject(object, name, text) != NULL;
}

bool json_add_int(cJSON *object, const char *name, int64_t value)
{
    char digits[DIGITS];
    snprintf(digits, sizeof digits, "%" PRId64, value);
    return cJSON_AddRawToObject(object, name, digits) != NULL;
}

bool json_add_uint(cJSON *object, const char *name, uint64_t value)
{
    char digits[DIGITS];
    snprintf(digits, sizeof digits, "%" PRIu64, value);
    return cJSON_AddRawToObject(object, name, digits) != NULL;
}

bool json_add_number(cJSON *object, const char *name, double value)
{
    char digits[DIGITS];
    write_number(value, digits);
    return cJSON_AddRawToObject(object, name, digits) != NULL;
}

bool json_add_number_item(cJSON *list, double value)
{
    char digits[DIGITS];
    write_number(value, digits);
    return json_add_item(list, cJSON_CreateRaw(digits));
}

bool json_add_null_item(cJSON *list)
{
    return json_add_item(list, cJSON_CreateNull());
}

bool json_add_text_item(cJSON *list, const char *text)
{
    return json_add_item(list, cJSON_CreateString(text));
}

bool json_add_numbers(cJSON *object, const char *name, const double *values, size_t count,
                      size_t stride)
{
    cJSON *list = cJSON_AddArrayToObject(object, name);
    bool good = list != NULL;
    for (size_t i = 0; good && i < count; i++) {
        double value;
        memcpy(&value, (const char *)values + i * stride, sizeof value);
        good = json_add_number_item(list, value);
    }
    return good;
}

bool json_add_ints(cJSON *object, const char *name, const int64_t *values, size_t count,
                   size_t stride)
{
    cJSON *list = cJSON_AddArrayToObject(object, name);
    bool good = list != NULL;
    for (size_t i = 0; good && i < count; i++) {
        char digits[DIGITS];
        int64_t value;
        memcpy(&value, (const char *)values + i * stride, sizeof value);
        snprintf(digits, sizeof digits, "%" PRId64, value);
        good = json_add_item(list, cJSON_CreateRaw(digits));
    }
    return good;
}

char *json_take_text(cJSON *root, bool whole)
{
    char *text = whole ? cJSON_Print(root) : NULL;
    cJSON_Delete(root);
    size_t length = text ? strlen(text) : 0;
    char *line = text ? malloc(length + 2) : NULL;
    if (line) {
        snprintf(line, length + 2, "%s\n", text);
        text_hide_invalid(line); /* of a plugin's message, or a file's name */
    }
    cJSON_free(text);
    return line;
}
