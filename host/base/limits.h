/* SPDX-License-Identifier: Apache-2.0
 *
 * limits.h: the processors and the memory that the kernel lets this process have: of the machine,
 * and of the cgroups that it is in, as in containers. With more threads than its processors the
 * kernel throttles all of them, and they wait for each other; with more memory than its limit it
 * ends the process.
 *
 * `membership` is /proc/self/cgroup and `root` /sys/fs/cgroup, version 1 and 2. The lowest limit
 * counts, of the named cgroups and of their parents below `root`. */
#ifndef HOST_BASE_LIMITS_H
#define HOST_BASE_LIMITS_H

#include <stdint.h>

/* In whole processors, rounded down, at least 1. 0: there is no quota, or it cannot be read. */
uint32_t limits_cpus(const char *membership, const char *root);

/* Bytes that are left, where the kernel drops what it caches of files. UINT64_MAX: there is no limit, or it cannot be
 * read. */
uint64_t limits_memory(const char *membership, const char *root);

/* Bytes that the machine has left, by `meminfo` (/proc/meminfo). UINT64_MAX: it cannot be read. */
uint64_t limits_machine_memory(const char *meminfo);

#endif /* HOST_BASE_LIMITS_H */
