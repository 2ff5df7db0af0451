/* SPDX-License-Identifier: Apache-2.0
 *
 * json_add.h: JSON objects of reports, key by key.
 *
 * Each function returns false when memory ran out. cJSON accepts the NULL that an earlier call
 * returned, so one `&&` over all calls is enough. */
#ifndef HOST_BASE_JSON_ADD_H
#define HOST_BASE_JSON_ADD_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool json_add_text(cJSON *object, const char *name, const char *text);

/* As digits: cJSON's own numbers are doubles. */
bool json_add_int(cJSON *object, const char *name, int64_t value);
bool json_add_uint(cJSON *object, const char *name, uint64_t value);

/* As many digits as the value needs to be read back, whatever the locale. JSON knows no NaN and no
 * infinity: 1e308 stands for them. */
bool json_add_number(cJSON *object, const char *name, double value);

/* An array of numbers: `count` of them, `stride` bytes apart. */
bool json_add_numbers(cJSON *object, const char *name, const double *values, size_t count,
                      size_t stride);
bool json_add_ints(cJSON *object, const char *name, const int64_t *values, size_t count,
                   size_t stride);

/* Append one entry to an array; `item` is gone where that fails. */
bool json_add_item(cJSON *list, cJSON *item);
bool json_add_number_item(cJSON *list, double value);
bool json_add_null_item(cJSON *list);
bool json_add_text_item(cJSON *list, const char *text);

/* The text of `root` with a final newline, malloc'ed; NULL if it is not `whole`, or memory ran out.
 * `root` is gone in any case. */
char *json_take_text(cJSON *root, bool whole);

#endif /* HOST_BASE_JSON_ADD_H */
