/* SPDX-License-Identifier: Apache-2.0
 *
 * hybrid_check.c: `attnhost check` with the checks of hybrid's own composites beside those of the suite: what an
 * option of hybrid's means, which no other composite has to keep (stand_ins/stand_ins.h).
 */
#include <string.h>

#include "host/check/suite/groups.h"
#include "host/cmd/commands.h"
#include "plugins/hybrid/tests/stand_ins/stand_ins.h"

int main(int argc, char **argv)
{
    static const struct command *const commands[] = {&command_check, &command_check_child,
                                                     &command_check_load};
    check_groups_add(stand_checks);
    for (size_t c = 0; argc > 1 && c < sizeof commands / sizeof *commands; c++)
        if (strcmp(argv[1], commands[c]->name) == 0)
            return arguments_run(commands[c], argc - 1, argv + 1);
    return 2;
}
