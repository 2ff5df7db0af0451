/* SPDX-License-Identifier: Apache-2.0
 *
 * write_checks.c: all checks as a table, which docs/CONFORMANCE.md has.
 */
#include "host/check/suite/groups.h"

#include <string.h>

#include "host/base/text.h"

enum { MOST_CHECKS = 1000, ROW_WIDTH = 800 };

/* A check of a kind of layers is named KIND_NAME, and its sentence ends with the kind; without
 * `kinds`, both parts are left out. */
static void split_kind(const struct check *check, const char **name, size_t *length)
{
    static const char *const kinds[][2] = {{"mla_", " (latent layers)"},
                                           {"linear_", " (linear layers)"},
                                           {"sparse_", " (sparse layers)"}};
    *name = check->name;
    *length = strlen(check->sentence);
    for (int k = 0; k < 3; k++) {
        const size_t prefix = strlen(kinds[k][0]), ending = strlen(kinds[k][1]);
        if (strncmp(check->name, kinds[k][0], prefix) == 0 && *length > ending &&
            strcmp(check->sentence + *length - ending, kinds[k][1]) == 0) {
            *name += prefix;
            *length -= ending;
        }
    }
}

static bool is_same(const struct check *a, const struct check *b)
{
    const char *name, *other_name;
    size_t length, other_length;
    split_kind(a, &name, &length);
    split_kind(b, &other_name, &other_length);
    return strcmp(a->rule, b->rule) == 0 && strcmp(name, other_name) == 0 &&
           length == other_length && strncmp(a->sentence, b->sentence, length) == 0;
}

/* After those whose rules are not after its own. */
static void insert(const struct check *check, const struct check *checks[MOST_CHECKS],
                   size_t *count)
{
    size_t at = (*count)++;
    for (; at > 0 && strcmp(checks[at - 1]->rule, check->rule) > 0; at--)
        checks[at] = checks[at - 1];
    checks[at] = check;
}

/* "`caps`, `mla_caps`: sentence" of checks[first] and of those after it that differ from it in their kind alone; empty,
 * where one before it has it. */
static void describe_one(const struct check *const *checks, size_t count, size_t first,
                         strbuf *text)
{
    const char *name;
    size_t length;
    for (size_t n = 0; n < first; n++)
        if (is_same(checks[n], checks[first]))
            return;
    for (size_t n = first; n < count; n++)
        if (is_same(checks[n], checks[first]))
            strbuf_appendf(text, "%s`%s`", n > first ? ", " : "", checks[n]->name);
    split_kind(checks[first], &name, &length);
    strbuf_appendf(text, ": %.*s", (int)length, checks[first]->sentence);
}

void write_checks(FILE *file)
{
    const struct check *checks[MOST_CHECKS];
    size_t count = 0, width = 0;
    for (int core = 0; core < CORE_WAIVER; core++)
        insert(&check_core[core], checks, &count);
    for (const struct check *const *group = check_groups(); *group; group++)
        for (const struct check *check = *group; check->rule && count < MOST_CHECKS; check++)
            insert(check, checks, &count);
    fputs("| rule | checks, and what holds if they pass |\n|---|---|\n", file);
    for (size_t n = 0; n < count; n++) {
        const bool is_new = n == 0 || strcmp(checks[n]->rule, checks[n - 1]->rule) != 0;
        strbuf text;
        strbuf_init(&text);
        describe_one(checks, count, n, &text);
        const size_t length = strlen(strbuf_text(&text));
        const bool begins = is_new || width + length > ROW_WIDTH;
        if (length > 0 && begins)
            fprintf(file, "%s| %s | ", n > 0 ? " |\n" : "", checks[n]->rule);
        width = length == 0 ? width : begins ? length : width + length;
        fprintf(file, "%s%s", length > 0 && !begins ? "; " : "", strbuf_text(&text));
        strbuf_finish(&text);
    }
    fputs(" |\n", file);
}
