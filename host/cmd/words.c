/* SPDX-License-Identifier: Apache-2.0
 *
 * words.c: attnhost list --words: the maps of the public headers, one line for each entry.
 */
#include "host/cmd/words.h"

#include <stdio.h>

#include "attn_plugin.h"

struct word {
    const char *set;
    long long value;
    const char *constant, *text;
};

#define BIT(set, prefix, name, bit, text) {set, 1ll << (bit), prefix #name, text},
#define STATUS(name, value, meaning)      {"status", value, "ATTN_" #name, meaning},
#define DEVICE(name, value, text)         {"device", value, "ATTN_DEVICE_" #name, text},
#define MODE(name, value, text)           BIT("mode", "ATTN_MODE_BIT_", name, value, text)
#define MASK(name, value, text)           BIT("mask", "ATTN_MASK_BIT_", name, value, text)
#define LAYER(name, bit, text)            BIT("layer", "ATTN_LAYER_", name, bit, text)
#define LINEAR(name, bit, text)           BIT("linear", "ATTN_LINEAR_", name, bit, text)
#define USES(name, bit, text)             BIT("uses", "ATTN_USES_", name, bit, text)
#define TRAIT(name, bit, text)            BIT("trait", "ATTN_TRAIT_", name, bit, text)
#define HOST(name, bit, text)             BIT("host", "ATTN_HOST_", name, bit, text)
#define INDEX(name, bit, text)            BIT("index", "ATTN_INDEX_", name, bit, text)
#define REASON(name, value)               {"reason", value, "ATTN_REASON_" #name, #name},
#define FIELD(name, value, text)          {"field", value, "ATTN_FIELD_" #name, text},
#define ROLE(name, value, text, dtype)    {"role", value, "ATTN_ROLE_" #name, text},

/* clang-format off */
static const struct word words[] = {
    ATTN_STATUS_MAP(STATUS)
    ATTN_DEVICE_MAP(DEVICE)
    ATTN_MODE_MAP(MODE)
    ATTN_MASK_MAP(MASK)
    ATTN_LAYER_MAP(LAYER)
    ATTN_LINEAR_FLAG_MAP(LINEAR)
    ATTN_USES_MAP(USES)
    ATTN_TRAIT_MAP(TRAIT)
    ATTN_HOST_MAP(HOST)
    ATTN_INDEX_MAP(INDEX)
    ATTN_REASON_MAP(REASON)
    ATTN_FIELD_MAP(FIELD)
    ATTN_ROLE_MAP(ROLE)
};
/* clang-format on */

void words_print(void)
{
    for (size_t w = 0; w < sizeof words / sizeof words[0]; w++)
        printf("%s\t%lld\t%s\t%s\n", words[w].set, words[w].value, words[w].constant,
               words[w].text);
}
