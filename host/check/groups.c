/* SPDX-License-Identifier: Apache-2.0
 *
 * groups.c: the groups of checks. To add one: its table here, its file in host/Makefile.am.inc.
 */
#include "host/check/groups.h"

#include <stddef.h>

static const struct check *const groups[] = {
    check_load,
    NULL,
};

const struct check *const *check_groups(void)
{
    return groups;
}
