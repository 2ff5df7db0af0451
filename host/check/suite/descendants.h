/* SPDX-License-Identifier: Apache-2.0
 *
 * descendants.h: processes that lost their parent and became ours.
 */
#ifndef HOST_CHECK_SUITE_DESCENDANTS_H
#define HOST_CHECK_SUITE_DESCENDANTS_H

#include <stddef.h>
#include <sys/types.h>

/* The children of this process, malloc'ed; NULL and 0 if there are none. */
pid_t *descendants_list(size_t *count);

/* Kill and reap all children but `strangers`, and their children, which become ours. */
void descendants_kill(const pid_t *strangers, size_t num_strangers);

#endif /* HOST_CHECK_SUITE_DESCENDANTS_H */
