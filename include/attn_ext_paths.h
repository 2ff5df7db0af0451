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

/* An extension of an instance: `const attn_paths *`, the code path that computes each row of a
 * batch: a kernel, a form of a prefix. For reports: results do not depend on it. A composite has
 * none: the host asks the children that it made. */
#define ATTN_EXTENSION_PATHS "attn.paths/1"

#define ATTN_MAX_PATHS 16

/* A code path. Where the choice depends on data on the device or on the call, so that the host
 * cannot know it when a batch is planned, that is a path of its own, whose doc says so. */
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

    /* Sets rows[num_paths]: how many rows of the batch planned last, padding aside, each path
     * computes in this layer; their sum is num_real_tokens. Layers of one group that are called
     * alike have the same numbers. Reads the plan alone: allocates, enqueues and waits for nothing,
     * reads no array of the batch. BAD_STATE before the first init_forward_metadata,
     * INVALID_ARGUMENT for a layer that the instance does not have. [instance-thread] */
    attn_status (*rows)(const attn_metadata *metadata, int32_t layer_id, int64_t *rows,
                        attn_error *error);
} attn_paths;

#ifdef __cplusplus
}
#endif

#endif /* ATTN_EXT_PATHS_H */
