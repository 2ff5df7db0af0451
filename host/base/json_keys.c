/* SPDX-License-Identifier: Apache-2.0
 *
 * json_keys.c: a scan of JSON text for duplicate keys.
 */
#include "host/base/json_keys.h"

#include <stdlib.h>
#include <string.h>

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static const char *find_repeated(const cJSON *object)
{
    size_t count = 0;
    const cJSON *item;
    const char *found = NULL, **keys = calloc((size_t)cJSON_GetArraySize(object) + 1, sizeof *keys);
    for (item = object->child; keys && item; item = item->next)
        keys[count++] = item->string;
    if (keys)
        qsort(keys, count, sizeof *keys, by_text);
    for (size_t k = 1; k < count && !found; k++)
        found = strcmp(keys[k - 1], keys[k]) == 0 ? keys[k] : NULL;
    free(keys);
    return found;
}

const char *json_repeated_key(const cJSON *tree)
{
    const char *found = cJSON_IsObject(tree) ? find_repeated(tree) : NULL;
    const cJSON *item;
    if (!cJSON_IsObject(tree) && !cJSON_IsArray(tree))
        return NULL;
    for (item = tree->child; item && !found; item = item->next)
        found = json_repeated_key(item);
    return found;
}
