/* SPDX-License-Identifier: Apache-2.0
 *
 * wrapper.h: what stands before each backend: it says which call a thread is in (guard.h), and
 * counts the rows that leaves compute.
 *
 * A wrapper stands between a caller and a backend: tables of its own, in whose slots it does
 * its part and calls the next. Callers cannot tell: slots that the backend hides stay hidden.
 */
#ifndef HOST_PLUGIN_WRAPPER_H
#define HOST_PLUGIN_WRAPPER_H

#include "attn_plugin.h"
#include "host/plugin/guard.h"
#include "host/plugin/code_paths.h"

/* Wrap *child, which is `party`'s: from now on each successful forward adds the real query rows of
 * its batch to *rows, if that is not NULL, and to those of the paths that the child tells of. Both
 * outlive the child. A forward that is captured counts when it is replayed: each later
 * init_forward_metadata of its metadata adds the batch's rows for it. Rows of which the child tells
 * nothing, or nothing that can be (NEGO-08), are no path's. On failure *child is what it was: the
 * caller's still. OUT_OF_HOST_MEMORY. */
attn_status wrapper_put(attn_child *child, const struct guard_party *party,
                        struct code_path_rows *rows, attn_error *error);

#endif /* HOST_PLUGIN_WRAPPER_H */
