/* SPDX-License-Identifier: Apache-2.0
 *
 * groups.c: the groups of checks. To add one: its table in the list, its file in the fragment of its room.
 */
#include "host/check/suite/groups.h"

#include <stddef.h>

/* In the order in which they run. With --fail-fast those of a lower rank come first: numerics find most faults in their
 * first tenths of a second; what takes seconds, or finds what nothing else does, comes last. */
static const struct {
    const struct check *checks;
    int rank;
} groups[] = {
    {check_load, 1},
    {check_nego, 1},
    {check_life, 1},
    {check_conf, 1},
    {check_caps, 3},
    {check_work, 1},
    {check_pure, 1},
    {check_pure_cuda, 1},
    {check_capt, 1},
    {check_num, 0},
    {check_invar, 4},
    {check_linear, 0},
    {check_linear_invar, 0},
    {check_mla, 0},
    {check_sparse, 0},
    {check_size, 4},
    {check_size_linear, 4},
    {check_sequel, 4},
    {check_linear_sequel, 4},
    {check_padding, 4},
    {check_comp, 1},
    {check_strides, 2},
    {check_codes, 2},
    {check_any_order, 2},
    {check_hints, 2},
    {check_borders, 2},
    {check_corners, 2},
    {check_private, 2},
    {check_thrd, 1},
    {check_err, 1},
    {check_perf, 2},
    {check_far_tables, 4},
    {check_extremes, 4},
    {check_far_operands, 4},
    {check_hints_tiles, 4},
    {check_size_more, 4},
    {check_size_linear_more, 4},
    {check_wide_inputs, 4},
    {check_dtypes, 4},
    {check_caps_kinds, 3},
    {check_arrays_forgotten, 4},
    {check_caps_memory, 4},
    {check_size_work, 4},
    {check_numbers, 4},
    {check_number_turns, 4},
};
enum { NUM_GROUPS = sizeof groups / sizeof groups[0], NUM_RANKS = 5 };

const struct check *const *check_groups(void)
{
    static const struct check *in_order[NUM_GROUPS + 1];
    for (size_t g = 0; g < NUM_GROUPS; g++)
        in_order[g] = groups[g].checks;
    return in_order;
}

const struct check *const *check_groups_quick_first(void)
{
    static const struct check *quick_first[NUM_GROUPS + 1];
    size_t count = 0;
    for (int rank = 0; rank < NUM_RANKS; rank++)
        for (size_t g = 0; g < NUM_GROUPS; g++)
            if (groups[g].rank == rank)
                quick_first[count++] = groups[g].checks;
    return quick_first;
}

const char *check_groups_minimum(void)
{
    return "core";
}
