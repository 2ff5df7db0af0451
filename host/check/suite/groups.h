/* SPDX-License-Identifier: Apache-2.0
 *
 * groups.h: all checks: those of the groups, which run in the child, and those that the suite
 * itself answers.
 */
#ifndef HOST_CHECK_SUITE_GROUPS_H
#define HOST_CHECK_SUITE_GROUPS_H

#include <stdio.h>

#include "host/check/check.h"

/* The tables of the groups in the order in which they run, ended by NULL. Tests of the suite have
 * tables of their own. */
const struct check *const *check_groups(void);

/* One more table, of a program that links the suite and has checks of its own; before any other call here. */
void check_groups_add(const struct check *group);

/* The same tables, with those that find most in the least time first: for --fail-fast. */
const struct check *const *check_groups_quick_first(void);

/* The profile that every run of all cases is judged by; NULL = none. */
const char *check_groups_minimum(void);

/* All of them, by rule, as a table in Markdown: that of docs/CONFORMANCE.md. */
void write_checks(FILE *file);

/* Checks without a run(): observations of the suite during the run. */
enum {
    CORE_OPENS,  /* LOAD-02 */
    CORE_DEVICE, /* CAPS-01 */
    CORE_SILENT, /* ERR-03, from here on; in the order of enum process_state_kind */
    CORE_FPU,
    CORE_LOCALE,
    CORE_SIGNALS,
    CORE_CWD,
    CORE_ENDS,
    CORE_WAIVER,
    CORE_PROFILE,
    CORE_COUNT
};
extern const struct check check_core[CORE_COUNT];

#endif /* HOST_CHECK_SUITE_GROUPS_H */
