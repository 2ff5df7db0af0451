/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_quota.c: see cpu_quota.h. Missing folders are skipped: in a container without its own
 * namespace, the membership names folders of the host, and the mounted root has the container's
 * quota.
 */
#include "host/base/cpu_quota.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

/* The first number of a file, and a second one if there is one; how many were there. "max" is none.
 */
static int read_numbers(const char *folder, const char *name, long long numbers[2])
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    int count = fscanf(file, "%lld %lld", &numbers[0], &numbers[1]);
    fclose(file);
    return count;
}

/* Processors that one folder grants; 0 = no limit. */
static uint32_t quota_of_folder(const char *folder)
{
    long long v2[2], quota[2], period[2];
    long long used = 0, of = 0;
    if (read_numbers(folder, "cpu.max", v2) == 2) {
        used = v2[0];
        of = v2[1];
    } else if (read_numbers(folder, "cpu.cfs_quota_us", quota) >= 1 &&
               read_numbers(folder, "cpu.cfs_period_us", period) >= 1) {
        used = quota[0];
        of = period[0];
    }
    if (used <= 0 || of <= 0 || used / of > UINT32_MAX)
        return 0;
    return used < of ? 1 : (uint32_t)(used / of);
}

/* The least quota from root/path up to root. */
static uint32_t quota_upwards(const char *root, const char *path)
{
    char folder[PATH_BYTES];
    uint32_t least = 0;
    if (snprintf(folder, sizeof folder, "%s%s", root, path) >= (int)sizeof folder)
        return 0;
    for (size_t top = strlen(root);;) {
        uint32_t quota = quota_of_folder(folder);
        if (quota > 0 && (least == 0 || quota < least))
            least = quota;
        char *slash = strrchr(folder, '/');
        if (!slash || slash < folder + top)
            return least;
        *slash = '\0';
    }
}

/* Is "cpu" in a list as "cpu,cpuacct"? */
static bool has_cpu(const char *controllers)
{
    for (const char *at = controllers; (at = strstr(at, "cpu")); at += 3)
        if ((at == controllers || at[-1] == ',') && (at[3] == '\0' || at[3] == ','))
            return true;
    return false;
}

uint32_t cpu_quota(const char *membership, const char *root)
{
    char line[PATH_BYTES], top[PATH_BYTES];
    uint32_t least = 0;
    FILE *file = fopen(membership, "re");
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) { /* number:controllers:path */
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *path = NULL;
        if (controllers)
            path = strchr(++controllers, ':');
        if (!path)
            continue;
        *path++ = '\0';
        if (*controllers && !has_cpu(controllers))
            continue;
        snprintf(top, sizeof top, "%s%s", root, *controllers ? "/cpu" : "");
        uint32_t quota = quota_upwards(top, path);
        if (quota > 0 && (least == 0 || quota < least))
            least = quota;
    }
    fclose(file);
    return least;
}
