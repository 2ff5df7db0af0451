/* SPDX-License-Identifier: Apache-2.0
 *
 * commands.h: the sub-commands of attnhost. argv[0] is "attnhost NAME"; the result is the exit
 * code (exit_codes.h). Results go to stdout, everything else to stderr.
 */
#ifndef HOST_CMD_COMMANDS_H
#define HOST_CMD_COMMANDS_H

#include "attn_plugin.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help; /* one line */
};

int cmd_run(int argc, char **argv);
int cmd_list(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_fuzz(int argc, char **argv);

#endif /* HOST_CMD_COMMANDS_H */
