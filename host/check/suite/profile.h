/* SPDX-License-Identifier: Apache-2.0
 *
 * profile.h: profiles: cases that a backend must pass. A file of lines
 *
 *   ID-PATTERN [or-skip | some] [# COMMENT]
 *
 * For each backend each line must mean some case, and all cases that it means must be PASS (or
 * WAIVED). With `or-skip` SKIP will do; with `some`, too, if at least one case is PASS.
 *
 * A run of all cases is judged by the minimum (groups.h) where no profile is named.
 */
#ifndef HOST_CHECK_SUITE_PROFILE_H
#define HOST_CHECK_SUITE_PROFILE_H

#include <stdbool.h>
#include <stddef.h>

#include "attn_types.h"
#include "host/check/suite/result.h"

struct profile_line {
    const char *pattern; /* in the file's text */
    bool or_skip;        /* `some`, too */
    bool some;
    int line;
};

struct profile {
    char *file;
    char *text;
    struct profile_line *lines;
    size_t count;
    bool is_minimum; /* the caller's: SKIP for a backend whose device or children are not here */
};

/* Read profile `name`: a file if it contains a slash, else NAME.txt in the folder next to the
 * program that is running, as it is laid out when installed, or in the folder of the installation;
 * those that come with the program are built in, for where they are in neither.
 * CONFIG_ERROR with "file:line", or with the folders that were searched. On failure there is
 * nothing to finish. */
attn_status profile_load(const char *name, struct profile *profile, attn_error *error);
void profile_finish(struct profile *profile);

/* Add a result for each backend: PASS, or FAIL for the first line that does not hold. The report
 * borrows the profile's file name. */
void profile_judge(const struct profile *profile, struct check_report *report);

#endif /* HOST_CHECK_SUITE_PROFILE_H */
