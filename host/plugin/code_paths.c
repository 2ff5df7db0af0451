/* SPDX-License-Identifier: Apache-2.0
 *
 * code_paths.c: checks of attn_code_paths answers.
 */
#include "host/plugin/code_paths.h"

#include <string.h>

#include "host/base/error.h"
#include "host/base/text.h"
#include "host/plugin/options.h"

const attn_code_path *code_paths_at(const attn_code_paths *paths, uint32_t path)
{
    return attn_at(paths->paths, path);
}

static attn_status check_path(const attn_code_paths *paths, uint32_t p, attn_error *error)
{
    const attn_code_path *path = code_paths_at(paths, p);
    if (!ATTN_HAS(path, attn_code_path, doc))
        return host_fail(error, ATTN_INTERNAL, "path %u: struct_size %u: accepted %zu and more", p,
                         path->struct_size, sizeof *path);
    if (path->reserved != 0)
        return host_fail(error, ATTN_INTERNAL, "path %u: reserved is %u: accepted 0", p,
                         path->reserved);
    if (!path->name || !options_is_name(path->name))
        return host_fail(error, ATTN_INTERNAL, "path %u: name '%.100s': accepted [a-z][a-z0-9_]*",
                         p, path->name ? path->name : "");
    if (!path->doc || !text_is_line(path->doc))
        return host_fail(error, ATTN_INTERNAL, "path %s: its doc is not one line of text",
                         path->name);
    for (uint32_t other = 0; other < p; other++)
        if (strcmp(code_paths_at(paths, other)->name, path->name) == 0)
            return host_fail(error, ATTN_INTERNAL, "path %s is there twice", path->name);
    return ATTN_OK;
}

attn_status code_paths_check(const attn_code_paths *paths, attn_error *error)
{
    if (!ATTN_HAS(paths, attn_code_paths, rows))
        return host_fail(error, ATTN_INTERNAL, "struct_size %u: accepted %zu and more",
                         paths->struct_size, sizeof *paths);
    if (!paths->paths || !paths->rows)
        return host_fail(error, ATTN_INTERNAL, "%s is NULL", paths->paths ? "rows" : "paths");
    if (paths->num_paths < 1 || paths->num_paths > ATTN_MAX_CODE_PATHS)
        return host_fail(error, ATTN_INTERNAL, "num_paths %u: accepted 1..%d", paths->num_paths,
                         ATTN_MAX_CODE_PATHS);
    attn_status status = ATTN_OK;
    for (uint32_t p = 0; p < paths->num_paths && status == ATTN_OK; p++)
        status = check_path(paths, p, error);
    return status;
}

attn_status code_paths_ask(const attn_code_paths *paths, const attn_metadata *metadata,
                           int32_t layer_id, int64_t batch_rows, int64_t rows[ATTN_MAX_CODE_PATHS],
                           attn_error *error)
{
    int64_t sum = 0;
    memset(rows, 0, ATTN_MAX_CODE_PATHS * sizeof *rows);
    attn_status status = paths->rows(metadata, layer_id, rows, error);
    for (uint32_t p = 0; p < paths->num_paths && status == ATTN_OK; p++) {
        if (rows[p] < 0 || rows[p] > batch_rows)
            return host_fail(error, ATTN_INTERNAL, "layer %d, path %s: %lld rows: accepted 0..%lld",
                             layer_id, code_paths_at(paths, p)->name, (long long)rows[p],
                             (long long)batch_rows);
        sum += rows[p];
    }
    if (status == ATTN_OK && sum != batch_rows)
        return host_fail(error, ATTN_INTERNAL, "layer %d: all paths have %lld rows, the batch %lld",
                         layer_id, (long long)sum, (long long)batch_rows);
    return status;
}
