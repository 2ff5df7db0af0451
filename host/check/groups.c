/* SPDX-License-Identifier: Apache-2.0
 *
 * groups.c: the groups of checks. To add one: its table here, its file in host/Makefile.am.inc.
 */
#include "host/check/groups.h"

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
    check_comp,
    check_thrd,
    check_err,
    check_perf,
    NULL,
};

const struct check *const *check_groups(void)
{
    return groups;
}
