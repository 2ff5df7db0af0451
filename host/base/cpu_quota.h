/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_quota.h: the number of CPUs that cgroups grant, as in containers (docker --cpus). With more
 * threads than that, the kernel throttles all of them, and they wait for each other.
 */
#ifndef HOST_BASE_CPU_QUOTA_H
#define HOST_BASE_CPU_QUOTA_H

#include <stdint.h>

/* The least quota of the cgroups named in `membership` (/proc/self/cgroup) and of their parents
 * below `root` (/sys/fs/cgroup), version 1 and 2, in whole processors, rounded down, at least 1.
 * 0: there is no quota, or it cannot be read. */
uint32_t cpu_quota(const char *membership, const char *root);

#endif /* HOST_BASE_CPU_QUOTA_H */
