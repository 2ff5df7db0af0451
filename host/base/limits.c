/* SPDX-License-Identifier: Apache-2.0
 *
 * limits.c: see limits.h. Missing folders are skipped: in a container without its own namespace, the
 * membership names folders of the host, and the mounted root has the container's limits.
 */
#include "host/base/limits.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

/* ---- Files ----------------------------------------------------------------------------------- */

static FILE *open_in(const char *folder, const char *name)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return fopen(path, "re");
}

/* Read up to two numbers of a file; returns how many there are. "max" is not a number. */
static int read_numbers(const char *folder, const char *name, long long numbers[2])
{
    FILE *file = open_in(folder, name);
    if (!file)
        return 0;
    int count = fscanf(file, "%lld %lld", &numbers[0], &numbers[1]);
    fclose(file);
    return count;
}

/* The number of a line that begins with `key`. */
static bool read_line(FILE *file, const char *key, unsigned long long *number)
{
    char line[256];
    while (fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0)
            return sscanf(line + strlen(key), "%llu", number) == 1;
    return false;
}

/* ---- One folder ------------------------------------------------------------------------------ */

/* What one folder of a controller grants; UINT64_MAX = no limit. */
typedef uint64_t (*granted)(const char *folder);

static uint64_t cpus_of_folder(const char *folder)
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
        return UINT64_MAX;
    return used < of ? 1 : (uint64_t)(used / of);
}

/* Bytes of files that the kernel caches for the folder's processes: it drops them when memory is needed. */
static uint64_t cached_of_folder(const char *folder, bool v2)
{
    static const char *const keys[2][2] = {{"total_inactive_file ", "total_active_file "},
                                           {"inactive_file ", "active_file "}};
    uint64_t sum = 0;
    for (int n = 0; n < 2; n++) {
        unsigned long long bytes;
        FILE *file = open_in(folder, "memory.stat");
        if (file && read_line(file, keys[v2][n], &bytes))
            sum += bytes;
        if (file)
            fclose(file);
    }
    return sum;
}

static uint64_t memory_of_folder(const char *folder)
{
    long long limit[2], used[2];
    const bool v2 = read_numbers(folder, "memory.current", used) >= 1;
    if (!v2 && read_numbers(folder, "memory.usage_in_bytes", used) < 1)
        return UINT64_MAX;
    if (read_numbers(folder, v2 ? "memory.max" : "memory.limit_in_bytes", limit) < 1 ||
        limit[0] < 0 || used[0] < 0)
        return UINT64_MAX;
    const uint64_t most = (uint64_t)limit[0], cached = cached_of_folder(folder, v2);
    const uint64_t kept = (uint64_t)used[0] > cached ? (uint64_t)used[0] - cached : 0;
    return most > kept ? most - kept : 0;
}

/* ---- All folders ----------------------------------------------------------------------------- */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The least from root/path up to root. */
static uint64_t least_upwards(const char *root, const char *path, granted of_folder)
{
    char folder[PATH_BYTES];
    uint64_t found = UINT64_MAX;
    if (snprintf(folder, sizeof folder, "%s%s", root, path) >= (int)sizeof folder)
        return UINT64_MAX;
    for (size_t top = strlen(root);;) {
        found = least(found, of_folder(folder));
        char *slash = strrchr(folder, '/');
        if (!slash || slash < folder + top)
            return found;
        *slash = '\0';
    }
}

/* Is the controller in a list as "cpu,cpuacct"? */
static bool has_controller(const char *list, const char *controller)
{
    const size_t length = strlen(controller);
    for (const char *at = list; (at = strstr(at, controller)); at += length)
        if ((at == list || at[-1] == ',') && (at[length] == '\0' || at[length] == ','))
            return true;
    return false;
}

static uint64_t least_of_all(const char *membership, const char *root, const char *controller,
                             granted of_folder)
{
    char line[PATH_BYTES], top[PATH_BYTES];
    uint64_t found = UINT64_MAX;
    FILE *file = fopen(membership, "re");
    if (!file)
        return UINT64_MAX;
    while (fgets(line, sizeof line, file)) { /* number:controllers:path */
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *path = NULL;
        if (controllers)
            path = strchr(++controllers, ':');
        if (!path)
            continue;
        *path++ = '\0';
        if (*controllers && !has_controller(controllers, controller))
            continue;
        snprintf(top, sizeof top, "%s%s%s", root, *controllers ? "/" : "",
                 *controllers ? controller : "");
        found = least(found, least_upwards(top, path, of_folder));
    }
    fclose(file);
    return found;
}

/* ---- What is asked for ----------------------------------------------------------------------- */

uint32_t limits_cpus(const char *membership, const char *root)
{
    const uint64_t cpus = least_of_all(membership, root, "cpu", cpus_of_folder);
    return cpus == UINT64_MAX ? 0 : (uint32_t)cpus;
}

uint64_t limits_memory(const char *membership, const char *root)
{
    return least_of_all(membership, root, "memory", memory_of_folder);
}

uint64_t limits_machine_memory(const char *meminfo)
{
    unsigned long long kib = 0;
    FILE *file = fopen(meminfo, "re");
    const bool found = file && read_line(file, "MemAvailable:", &kib);
    if (file)
        fclose(file);
    return found ? (uint64_t)kib << 10 : UINT64_MAX;
}
