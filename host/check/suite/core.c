/* SPDX-License-Identifier: Apache-2.0
 *
 * core.c: checks that the suite itself answers, from its observations during a run.
 */
#include "host/check/suite/groups.h"

const struct check check_core[CORE_COUNT] = {
    [CORE_OPENS] = {.rule = "LOAD-02",
                    .name = "opens",
                    .needs = CHECK_ONCE,
                    .sentence = "the file can be opened and its tables can be read"},
    [CORE_DEVICE] = {.rule = "CAPS-01",
                     .name = "device",
                     .sentence =
                         "the backend answers a plain query, which selects the device to check on"},
    [CORE_SILENT] = {.rule = "ERR-03",
                     .name = "silent",
                     .sentence = "the plugin prints nothing to stdout or stderr"},
    [CORE_FPU] = {.rule = "ERR-03",
                  .name = "fpu",
                  .sentence = "the plugin does not change rounding, denormals or traps of the FPU"},
    [CORE_LOCALE] = {.rule = "ERR-03",
                     .name = "locale",
                     .sentence = "the plugin does not change the locale"},
    [CORE_SIGNALS] = {.rule = "ERR-03",
                      .name = "signals",
                      .sentence = "the plugin does not change the signal mask or signal handlers"},
    [CORE_CWD] = {.rule = "ERR-03",
                  .name = "cwd",
                  .sentence =
                      "the plugin does not change the working directory, umask or resource limits"},
    [CORE_ENDS] =
        {.rule = "ERR-03",
         .name = "ends",
         .sentence =
             "a process that used the plugin exits normally and leaves no other process running"},
    [CORE_WAIVER] = {.rule = "WAIVER",
                     .name = "line",
                     .needs = CHECK_ONCE,
                     .sentence = "the waiver has not expired and matches a failure"},
    [CORE_PROFILE] = {.rule = "PROFILE",
                      .name = "met",
                      .sentence = "every rule of the profile was checked and holds"},
};
