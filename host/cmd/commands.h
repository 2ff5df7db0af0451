/* SPDX-License-Identifier: Apache-2.0
 *
 * commands.h: the table of commands. To add one: a file that defines `const struct command
 * command_NAME` with its options, its help and what it does, a row here, and the file's line in the
 * fragment. Results go to stdout, everything else to stderr.
 */
#ifndef HOST_CMD_COMMANDS_H
#define HOST_CMD_COMMANDS_H

#include "host/cmd/arguments.h"

/* In the order of `attnhost --help`. The last four are what other commands start, and what
 * `make` calls; help does not list them.
 */
#define COMMANDS(ROW)                                                                              \
    ROW(run)                                                                                       \
    ROW(list)                                                                                      \
    ROW(inspect)                                                                                   \
    ROW(explain)                                                                                   \
    ROW(bench)                                                                                     \
    ROW(check)                                                                                     \
    ROW(fuzz)                                                                                      \
    ROW(report)                                                                                    \
    ROW(scan)                                                                                      \
    ROW(check_child)                                                                               \
    ROW(check_load)                                                                                \
    ROW(manual)

#define COMMANDS_DECLARE(name) extern const struct command command_##name;
COMMANDS(COMMANDS_DECLARE)
#undef COMMANDS_DECLARE

/* Of help and man page; lines. */
extern const char commands_about[];
extern const char commands_exit_codes[];

#endif /* HOST_CMD_COMMANDS_H */
