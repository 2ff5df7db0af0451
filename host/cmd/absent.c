/* SPDX-License-Identifier: Apache-2.0
 *
 * absent.c: the commands that attnhost-quickstart leaves to the whole program: those of the conformance
 * suite, whose files are two fifths of the host's.
 */
#include "host/cmd/commands.h"

#define ABSENT(identifier, word, line)                                                             \
    const struct command command_##identifier = {                                                  \
        .name = word,                                                                              \
        .summary = line,                                                                           \
        .about = "attnhost " word ": not in attnhost-quickstart, which ./dev quickstart builds; "  \
                 "./dev build makes all of attnhost\n",                                            \
    }

ABSENT(check, "check", "only in the full program: ./dev build");
ABSENT(fuzz, "fuzz", "only in the full program: ./dev build");
ABSENT(check_child, "check-child", NULL);
ABSENT(check_load, "check-load", NULL);
