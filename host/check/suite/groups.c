/* SPDX-License-Identifier: Apache-2.0
 *
 * groups.c: the groups of checks, in the order of CHECK_TABLES (check.h) and in that of their ranks.
 */
#include "host/check/suite/groups.h"

#include <stddef.h>

static const struct {
    const struct check *checks;
    int rank;
} groups[] = {
#define GROUP(name, rank) {check_##name, rank},
    CHECK_TABLES(GROUP)
#undef GROUP
};
enum { NUM_GROUPS = sizeof groups / sizeof groups[0], NUM_RANKS = 5, ADDED_RANK = 1 };

static const struct check *added; /* NULL = none */

void check_groups_add(const struct check *group)
{
    added = group;
}

const struct check *const *check_groups(void)
{
    static const struct check *in_order[NUM_GROUPS + 2];
    for (size_t g = 0; g < NUM_GROUPS; g++)
        in_order[g] = groups[g].checks;
    in_order[NUM_GROUPS] = added;
    return in_order;
}

const struct check *const *check_groups_quick_first(void)
{
    static const struct check *quick_first[NUM_GROUPS + 2];
    size_t count = 0;
    for (int rank = 0; rank < NUM_RANKS; rank++) {
        for (size_t g = 0; g < NUM_GROUPS; g++)
            if (groups[g].rank == rank)
                quick_first[count++] = groups[g].checks;
        if (rank == ADDED_RANK && added)
            quick_first[count++] = added;
    }
    return quick_first;
}

const char *check_groups_minimum(void)
{
    return "core";
}
