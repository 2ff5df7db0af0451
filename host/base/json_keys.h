/* SPDX-License-Identifier: Apache-2.0
 *
 * json_keys.h: duplicate keys in a JSON text. JSON readers disagree about which of them counts.
 */
#ifndef HOST_BASE_JSON_KEYS_H
#define HOST_BASE_JSON_KEYS_H

#include <cjson/cJSON.h>

/* A key that occurs twice in one object of the tree, which owns it, or NULL. If memory runs out,
 * none is found. */
const char *json_repeated_key(const cJSON *tree);

#endif /* HOST_BASE_JSON_KEYS_H */
