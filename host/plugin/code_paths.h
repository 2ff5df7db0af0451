/* SPDX-License-Identifier: Apache-2.0
 *
 * code_paths.h: which code path of a backend computes each row (attn_code_paths, NEGO-08): checks of
 * the backend's answers, and sums of them.
 */
#ifndef HOST_PLUGIN_CODE_PATHS_H
#define HOST_PLUGIN_CODE_PATHS_H

#include <stdint.h>

#include "attn_plugin.h"

/* Real query rows that forwards have computed: in total, and by path. */
struct code_path_rows {
    int64_t all;
    const attn_code_paths *paths; /* the plugin's, well formed; NULL = it reports none */
    int64_t by_path[ATTN_MAX_CODE_PATHS];
};

/* Is a table well formed? INTERNAL, with the fault. */
attn_status code_paths_check(const attn_code_paths *paths, attn_error *error);

/* Path number `path` of a well-formed table. */
const attn_code_path *code_paths_at(const attn_code_paths *paths, uint32_t path);

/* The rows by path of a batch of `batch_rows` rows in a layer. INTERNAL if their sum differs; else
 * the plugin's own error. */
attn_status code_paths_ask(const attn_code_paths *paths, const attn_metadata *metadata,
                           int32_t layer_id, int64_t batch_rows, int64_t rows[ATTN_MAX_CODE_PATHS],
                           attn_error *error);

#endif /* HOST_PLUGIN_CODE_PATHS_H */
