/* SPDX-License-Identifier: Apache-2.0
 *
 * wrapper.h: a table in front of each backend: it records the call that a thread is in (guard.h),
 * and counts the rows that leaves compute.
 *
 * Each slot of the wrapper does its part, then calls the backend's slot. Callers see no difference:
 * slots that the backend lacks are absent. */
#ifndef HOST_PLUGIN_WRAPPER_H
#define HOST_PLUGIN_WRAPPER_H

#include "attn_plugin.h"
#include "host/plugin/guard.h"
#include "host/plugin/code_paths.h"

/* Wrap *child, which belongs to `party`: from now on each successful forward adds the real query
 * rows of its batch to *rows, if that is not NULL, in total and by the paths that the child
 * reports. Both outlive the child. A forward that is captured counts when it is replayed: each
 * later init_forward_metadata of its metadata adds the batch's rows for it. Rows that the child
 * does not report, or reports wrongly (NEGO-08), are counted for no path. On failure *child is
 * unchanged and still the caller's. OUT_OF_HOST_MEMORY. */
attn_status wrapper_put(attn_child *child, const struct guard_party *party,
                        struct code_path_rows *rows, attn_error *error);

#endif /* HOST_PLUGIN_WRAPPER_H */
