/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_ext_code_paths.h: an extension of an instance: the number of rows that each code path
 * computes.
 */
#ifndef ATTN_EXT_CODE_PATHS_H
#define ATTN_EXT_CODE_PATHS_H

#include "attn_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An extension of an instance: `const attn_code_paths *`, the number of rows of a batch that each
 * code path (a kernel, a form of a prefix) computes. For reports only: results do not depend on it.
 * A composite does not provide it: the host reads its children's. */
#define ATTN_EXTENSION_CODE_PATHS "attn.code_paths/1"

#define ATTN_MAX_CODE_PATHS 16

/* A code path. If the choice depends on device data or on the call, the host cannot know it when it
 * plans a batch: such rows are one path of their own, whose doc says so. */
typedef struct attn_code_path {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    const char *name;  /* [a-z][a-z0-9_]*, unique among the paths, the same in later versions */
    const char *doc;   /* one line, never NULL */
} attn_code_path;

/* Static storage, including everything that it points to. */
typedef struct attn_code_paths {
    uint32_t struct_size;
    uint32_t num_paths;          /* 1..ATTN_MAX_CODE_PATHS */
    const attn_code_path *paths; /* array; walk with attn_at() */

    /* Sets rows[num_paths]: the rows of the batch planned last, without padding, that each path
     * computes in this layer. Their sum is num_real_tokens. Layers of one group called with the
     * same kinds of arguments have the same numbers. Reads only the plan, no array of the batch;
     * allocates nothing, enqueues nothing and does not wait. BAD_STATE before the first
     * init_forward_metadata, INVALID_ARGUMENT for a layer that the instance does not have.
     * [instance-thread] */
    attn_status (*rows)(const attn_metadata *metadata, int32_t layer_id, int64_t *rows,
                        attn_error *error);
} attn_code_paths;

#ifdef __cplusplus
}
#endif

#endif /* ATTN_EXT_CODE_PATHS_H */
