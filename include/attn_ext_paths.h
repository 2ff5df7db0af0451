/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_ext_paths.h: an instance's extension: which of a backend's code paths computed how many
 * rows.
 */
#ifndef ATTN_EXT_PATHS_H
#define ATTN_EXT_PATHS_H

#include "attn_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An extension of an instance: `const attn_paths *`, by which of its ways the rows of a batch are
 * computed: kernels, forms of a prefix, whatever tells batches of one backend apart. For reports:
 * results do not depend on it. A composite has none: a host asks the children that it made. */
#define ATTN_EXTENSION_PATHS "attn.paths/1"

#define ATTN_MAX_PATHS 16

/* What the host cannot know when a batch is planned, as it lies on the device alone or is a matter
 * of the call, is a path of its own, whose doc says so. */
typedef struct attn_path {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    const char *name;  /* [a-z][a-z0-9_]*, unique among the paths, the same in later versions */
    const char *doc;   /* one line, never NULL */
} attn_path;

/* Static storage, with all that it points to. */
typedef struct attn_paths {
    uint32_t struct_size;
    uint32_t num_paths;     /* 1..ATTN_MAX_PATHS */
    const attn_path *paths; /* array; walk with attn_at() */

    /* Of the batch that this metadata was given last: how many of its rows, padding aside, go by
     * each path in this layer. Sets rows[num_paths], whose sum is num_real_tokens; layers of one
     * group that are called alike have the same. Only looks at what was planned: nothing is
     * allocated, enqueued or waited for, no array of the batch is read. BAD_STATE before the first
     * init_forward_metadata, INVALID_ARGUMENT for another's layer. [instance-thread] */
    attn_status (*rows)(const attn_metadata *metadata, int32_t layer_id, int64_t *rows,
                        attn_error *error);
} attn_paths;

#ifdef __cplusplus
}
#endif

#endif /* ATTN_EXT_PATHS_H */
