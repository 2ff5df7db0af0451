/* SPDX-License-Identifier: Apache-2.0
 *
 * bit_names.c: one table of names for each bit set of the ABI.
 */
#include "host/base/bit_names.h"

#include "attn_batch.h"

#include <stdio.h>
#include <string.h>

#define MEMBER(name, bit, text) text,
static const char *const modes[] = {ATTN_MODE_MAP(MEMBER)};
static const char *const masks[] = {ATTN_MASK_MAP(MEMBER)};
static const char *const uses[] = {ATTN_USES_MAP(MEMBER)};
static const char *const traits[] = {ATTN_TRAIT_MAP(MEMBER)};
static const char *const layer_flags[] = {ATTN_LAYER_MAP(MEMBER)};
static const char *const linear_flags[] = {ATTN_LINEAR_FLAG_MAP(MEMBER)};
static const char *const index_forms[] = {ATTN_INDEX_MAP(MEMBER)};
#undef MEMBER

struct set_field {
    uint32_t field, count;
    const char *const *names; /* [count], by bit */
};

#define NAMES(names) sizeof(names) / sizeof *(names), names
static const struct set_field fields[] = {
    {ATTN_FIELD_MODES, NAMES(modes)},
    {ATTN_FIELD_MLA_EXPANDED, NAMES(modes)},
    {ATTN_FIELD_MASK_KINDS, NAMES(masks)},
    {ATTN_FIELD_USES, NAMES(uses)},
    {ATTN_FIELD_REQUIRED_TRAITS, NAMES(traits)},
    {ATTN_FIELD_LAYERS, NAMES(layer_flags)},
    {ATTN_FIELD_LINEAR_FLAGS, NAMES(linear_flags)},
    {ATTN_FIELD_INDEX_FORMS, NAMES(index_forms)},
};

static const struct set_field *find_field(uint32_t field)
{
    for (size_t n = 0; n < sizeof fields / sizeof *fields; n++)
        if (fields[n].field == field)
            return &fields[n];
    return NULL;
}

bool bit_names_is_field(uint32_t field)
{
    return find_field(field) != NULL;
}

const char *bit_names_member(uint32_t field, uint32_t bit)
{
    const struct set_field *of = find_field(field);
    return of && bit < of->count ? of->names[bit] : NULL;
}

bool bit_names_add(uint32_t field, const char *word, uint32_t *set)
{
    const struct set_field *of = find_field(field);
    if (of && strcmp(word, "empty") == 0)
        return true;
    for (uint32_t bit = 0; of && bit < of->count; bit++)
        if (strcmp(of->names[bit], word) == 0) {
            *set |= 1u << bit;
            return true;
        }
    return false;
}

void bit_names_text(uint32_t field, uint32_t set, char *text, size_t capacity)
{
    uint32_t unknown = 0;
    size_t length = 0;
    snprintf(text, capacity, "%s", set ? "" : "empty");
    for (uint32_t bit = 0; bit < 32; bit++) {
        const char *name = bit_names_member(field, bit);
        if (!(set >> bit & 1u))
            continue;
        if (name)
            snprintf(text + length, capacity - length, "%s%s", length ? ", " : "", name);
        else
            unknown |= 1u << bit;
        length = strlen(text);
    }
    if (unknown)
        snprintf(text + length, capacity - length, "%s%#x", length ? ", " : "", unknown);
}
