/* SPDX-License-Identifier: Apache-2.0
 *
 * core.c: checks that the suite itself answers, from its observations during a run.
 */
#include "host/check/suite/groups.h"

const struct check check_core[CORE_COUNT] = {
    [CORE_OPENS] = {"LOAD-02", "opens", "the file can be opened and its tables can be read",
                    CHECK_ONCE},
    [CORE_DEVICE] = {"CAPS-01", "device",
                     "the backend answers a plain query, which selects the device to check on", 0},
    [CORE_SILENT] = {"ERR-03", "silent", "the plugin prints nothing to stdout or stderr", 0},
    [CORE_FPU] = {"ERR-03", "fpu",
                  "the plugin does not change rounding, denormals or traps of the FPU", 0},
    [CORE_LOCALE] = {"ERR-03", "locale", "the plugin does not change the locale", 0},
    [CORE_SIGNALS] = {"ERR-03", "signals",
                      "the plugin does not change the signal mask or signal handlers", 0},
    [CORE_CWD] = {"ERR-03", "cwd",
                  "the plugin does not change the working directory, umask or resource limits", 0},
    [CORE_ENDS] =
        {"ERR-03", "ends",
         "a process that used the plugin exits normally and leaves no other process running", 0},
    [CORE_WAIVER] = {"WAIVER", "line", "the waiver has not expired and matches a failure",
                     CHECK_ONCE},
    [CORE_PROFILE] = {"PROFILE", "met", "every rule of the profile was checked and holds", 0},
};
