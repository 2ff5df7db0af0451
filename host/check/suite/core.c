/* SPDX-License-Identifier: Apache-2.0
 *
 * core.c: checks that no case answers but the suite, from what it saw meanwhile.
 */
#include "host/check/suite/groups.h"

const struct check check_core[CORE_COUNT] = {
    [CORE_OPENS] = {.rule = "LOAD-02",
                    .name = "opens",
                    .needs = CHECK_ONCE,
                    .sentence = "the file is opened and its tables are read"},
    [CORE_DEVICE] = {.rule = "CAPS-01",
                     .name = "device",
                     .sentence =
                         "a plain query is answered; its answer gives the device to check on"},
    [CORE_SILENT] = {.rule = "ERR-03",
                     .name = "silent",
                     .sentence = "nothing is printed on stdout or stderr"},
    [CORE_FPU] = {.rule = "ERR-03",
                  .name = "fpu",
                  .sentence = "rounding, denormals and traps of the FPU are left alone"},
    [CORE_LOCALE] = {.rule = "ERR-03", .name = "locale", .sentence = "the locale is left alone"},
    [CORE_SIGNALS] = {.rule = "ERR-03",
                      .name = "signals",
                      .sentence = "signal mask and signal handlers are left alone"},
    [CORE_CWD] = {.rule = "ERR-03",
                  .name = "cwd",
                  .sentence = "working directory, umask and resource limits are left alone"},
    [CORE_ENDS] =
        {.rule = "ERR-03",
         .name = "ends",
         .sentence =
             "a process that used it ends when it should, and leaves no other process running"},
    [CORE_WAIVER] = {.rule = "WAIVER",
                     .name = "line",
                     .needs = CHECK_ONCE,
                     .sentence = "the waiver is in force and waives something"},
    [CORE_PROFILE] = {.rule = "PROFILE",
                      .name = "met",
                      .sentence = "every rule that the profile requires was checked and holds"},
};
