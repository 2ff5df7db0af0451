/* SPDX-License-Identifier: Apache-2.0
 *
 * private_operands.c: checks of declared private operands.
 */
#include "host/plugin/private_operands.h"

#include <string.h>

/* Length of a [a-z][a-z0-9_]* at the beginning of a text; 0 = none. */
static size_t word_length(const char *text)
{
    if (text[0] < 'a' || text[0] > 'z')
        return 0;
    return strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_");
}

bool operands_is_private(const char *name)
{
    size_t vendor = word_length(name);
    if (vendor == 0 || name[vendor] != '.' || strlen(name) > 63)
        return false;
    const char *rest = name + vendor + 1;
    bool ours = vendor == 4 && strncmp(name, "attn", 4) == 0;
    return !ours && word_length(rest) > 0 && rest[word_length(rest)] == '\0';
}

int operands_find(const attn_backend_type *type, const char *name)
{
    uint32_t count = ATTN_HAS(type, attn_backend_type, operands) ? type->num_operands : 0;
    for (uint32_t o = 0; o < count; o++)
        if (strcmp(((const attn_private_operand *)attn_at(type->operands, o))->name, name) == 0)
            return (int)o;
    return -1;
}

const char *operands_first(const attn_problem *problem)
{
    uint32_t count = ATTN_HAS(problem, attn_problem, features) ? problem->num_features : 0;
    for (uint32_t f = 0; f < count; f++)
        if (operands_is_private(problem->features[f]))
            return problem->features[f];
    return NULL;
}
