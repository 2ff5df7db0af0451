/* SPDX-License-Identifier: Apache-2.0
 *
 * environment.c: reading the machine's data for reports.
 */
#include "host/check/suite/environment.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "host/device/device.h"

void check_environment_take(struct check_environment *here)
{
    const attn_device processor = {.struct_size = sizeof processor, .type = ATTN_DEVICE_CPU};
    struct device_names names;
    struct utsname system;
    memset(here, 0, sizeof *here);
    if (uname(&system) == 0)
        snprintf(here->system, sizeof here->system, "%.64s %.64s %.64s", system.sysname,
                 system.release, system.machine);
    device_identify(&processor, &names);
    snprintf(here->cpu, sizeof here->cpu, "%s", names.name);
    here->cpus = sysconf(_SC_NPROCESSORS_ONLN);
}
