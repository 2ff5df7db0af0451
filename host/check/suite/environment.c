/* SPDX-License-Identifier: Apache-2.0 */
#include "host/check/suite/environment.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The first "model name" of /proc/cpuinfo. */
static void take_cpu(char *name, size_t size)
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && !*name && fgets(line, sizeof line, file)) {
        const char *value = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (value)
            snprintf(name, size, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
    }
    if (file)
        fclose(file);
}

void check_environment_take(struct check_environment *here)
{
    struct utsname system;
    memset(here, 0, sizeof *here);
    if (uname(&system) == 0)
        snprintf(here->system, sizeof here->system, "%.64s %.64s %.64s", system.sysname,
                 system.release, system.machine);
    take_cpu(here->cpu, sizeof here->cpu);
    here->cpus = sysconf(_SC_NPROCESSORS_ONLN);
}
