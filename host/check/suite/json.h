/* SPDX-License-Identifier: Apache-2.0
 *
 * json.h: members of requests and replies. A missing member, or one of another type, reads as "" or
 * 0.
 */
#ifndef HOST_CHECK_SUITE_JSON_H
#define HOST_CHECK_SUITE_JSON_H

#include <cjson/cJSON.h>

static inline const char *json_text(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static inline double json_number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static inline int json_true(const cJSON *object, const char *name)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, name));
}

#endif /* HOST_CHECK_SUITE_JSON_H */
