/* SPDX-License-Identifier: Apache-2.0
 *
 * groups.c: the groups of checks. To add one: its table in both lists, its file in the fragment of
 * its room.
 */
#include "host/check/suite/groups.h"

#include <stddef.h>

static const struct check *const groups[] = {
    check_load,
    check_nego,
    check_life,
    check_conf,
    check_caps,
    check_work,
    check_pure,
    check_pure_cuda,
    check_capt,
    check_num,
    check_invar,
    check_linear,
    check_linear_invar,
    check_mla,
    check_sparse,
    check_size,
    check_size_linear,
    check_sequel,
    check_linear_sequel,
    check_padding,
    check_comp,
    check_strides,
    check_codes,
    check_any_order,
    check_hints,
    check_borders,
    check_corners,
    check_private,
    check_thrd,
    check_err,
    check_perf,
    check_far_tables,
    check_extremes,
    check_far_operands,
    check_hints_tiles,
    check_size_more,
    check_size_linear_more,
    check_wide_inputs,
    check_dtypes,
    check_caps_kinds,
    check_arrays_forgotten,
    check_caps_memory,
    check_size_work,
    check_numbers,
    check_number_turns,
    NULL,
};

/* Numerics find most faults in their first tenths of a second; what takes seconds, or finds what
 * nothing else does, comes last. */
static const struct check *const quick_first[] = {
    check_num,
    check_linear,
    check_linear_invar,
    check_mla,
    check_sparse,
    check_load,
    check_nego,
    check_life,
    check_conf,
    check_work,
    check_pure,
    check_pure_cuda,
    check_capt,
    check_comp,
    check_thrd,
    check_err,
    check_strides,
    check_codes,
    check_any_order,
    check_hints,
    check_borders,
    check_corners,
    check_private,
    check_perf,
    check_caps,
    check_caps_kinds,
    check_invar,
    check_size,
    check_size_linear,
    check_sequel,
    check_linear_sequel,
    check_padding,
    check_far_tables,
    check_extremes,
    check_far_operands,
    check_hints_tiles,
    check_size_more,
    check_size_linear_more,
    check_wide_inputs,
    check_dtypes,
    check_arrays_forgotten,
    check_caps_memory,
    check_size_work,
    check_numbers,
    check_number_turns,
    NULL,
};

const struct check *const *check_groups(void)
{
    return groups;
}

const struct check *const *check_groups_quick_first(void)
{
    return quick_first;
}

const char *check_groups_minimum(void)
{
    return "core";
}
