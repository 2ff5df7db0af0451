/* SPDX-License-Identifier: Apache-2.0
 *
 * row_count.h: a wrapper around a backend that counts the rows it computes.
 *
 * A wrapper stands between a caller and a backend: tables of its own, in whose slots it does
 * its part and calls the next. Callers cannot tell: slots that the backend hides stay hidden.
 */
#ifndef HOST_PLUGIN_ROW_COUNT_H
#define HOST_PLUGIN_ROW_COUNT_H

#include "attn_plugin.h"

/* Wrap *child: from now on each successful forward adds the real query rows of its
 * batch to *rows, which outlives the child. A forward that is captured counts when it is replayed:
 * each later init_forward_metadata of its metadata adds the batch's rows for it. On failure *child
 * is what it was: the caller's still. OUT_OF_HOST_MEMORY. */
attn_status row_count_wrap(attn_child *child, int64_t *rows, attn_error *error);

#endif /* HOST_PLUGIN_ROW_COUNT_H */
