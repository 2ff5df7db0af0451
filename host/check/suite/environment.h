/* SPDX-License-Identifier: Apache-2.0
 *
 * environment.h: the machine of a report.
 */
#ifndef HOST_CHECK_SUITE_ENVIRONMENT_H
#define HOST_CHECK_SUITE_ENVIRONMENT_H

/* The machine, for reports. "" and 0 for what it does not say. */
struct check_environment {
    char system[256]; /* "Linux 6.1.0 x86_64" */
    char cpu[128];
    long cpus; /* that are online */
};

void check_environment_take(struct check_environment *here);

#endif /* HOST_CHECK_SUITE_ENVIRONMENT_H */
