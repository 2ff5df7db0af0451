/* SPDX-License-Identifier: Apache-2.0
 *
 * code_paths.c: by which path the rows of a batch go: the library's, or forward tiles.
 */
#include "plugins/fa3_like/fa3_like.h"

#include <string.h>

static int tiles_path(const attn_metadata *metadata, uint32_t index)
{
    const fa3_metadata *view = &((const fa3_own *)metadata->own)->groups[index];
    if (fa3_may_be_unsaved(metadata, index))
        return FA3_PATH_IF_SAVED;
    if (view->cu_seqlens_k)
        return FA3_PATH_RAGGED;
    if (view->is_gathered)
        return FA3_PATH_GATHERED;
    return view->ahead_first ? FA3_PATH_CODES : FA3_PATH_PAGED;
}

void fa3_count_rows(attn_metadata *metadata, uint32_t index)
{
    const fa3_metadata *view = &((const fa3_own *)metadata->own)->groups[index];
    int64_t *rows = metadata->rows[index], others = 0;
    if (!view->is_tiled || fi_part_of(metadata, index))
        others = fi_count_rows(metadata, index);
    if (view->is_tiled)
        rows[tiles_path(metadata, index)] = metadata->plan.batch.num_real_tokens - others;
}

/* The path of a call without k and v: its keys are all in pages, which the library reads if the
 * copy engine cannot. */
static int path_of_pages(const attn_metadata *metadata, uint32_t index)
{
    const fa3_metadata *view = &((const fa3_own *)metadata->own)->groups[index];
    if (view->is_gathered)
        return FA3_PATH_GATHERED;
    if (view->page_table)
        return FA3_PATH_PAGED;
    return fi_is_prefill(fi_find_kernel(metadata, index, FI_SEQUENCES)) ? FI_PATH_PAGED
                                                                        : FI_PATH_FEW;
}

static int is_expanded(const attn_metadata *metadata, uint32_t index)
{
    return ((const fa3_instance *)metadata->instance->own)->groups[index].is_expanded;
}

static attn_status rows_by_path(const attn_metadata *metadata, int32_t layer_id, int64_t *rows,
                                attn_error *error)
{
    uint32_t index;
    const attn_util_layer *layer;
    attn_status status = fi_find_rows(metadata, layer_id, &index, &layer, error);
    if (status != ATTN_OK)
        return status;
    fi_read_rows(metadata, index, layer, rows);
    for (int path = FI_NUM_PATHS; path < FA3_NUM_PATHS; path++)
        rows[path] = metadata->rows[index][path];
    if (layer->kv_read_only && !is_expanded(metadata, index)) {
        rows[path_of_pages(metadata, index)] += rows[FA3_PATH_RAGGED];
        rows[FA3_PATH_RAGGED] = 0;
    }
    return ATTN_OK;
}

static const attn_code_path paths[FA3_NUM_PATHS] = {
    FI_PATHS,
    FI_PATH("tiles_ragged",
            "forward tiles of a batch whose keys are all new and are read from the arguments"),
    FI_PATH("tiles_paged", "forward tiles over pages; sequences with a new key without a slot, "
                           "which only the device finds, are computed row by row"),
    FI_PATH("tiles_codes", "forward tiles over pages, with e4m3 products"),
    FI_PATH("tiles_gathered", "forward tiles over rows gathered from the cache first: converted "
                              "e4m3 values, keys of small pages made contiguous"),
    FI_PATH(
        "tiles_if_saved",
        "forward tiles over pages in calls that save their new keys; in other calls prefill tiles"),
};
static const attn_code_paths extension = {.struct_size = sizeof extension,
                                          .num_paths = FA3_NUM_PATHS,
                                          .paths = paths,
                                          .rows = rows_by_path};

const void *fa3_get_extension(attn_instance *instance, const char *id)
{
    (void)instance;
    return strcmp(id, ATTN_EXTENSION_CODE_PATHS) == 0 ? &extension : NULL;
}
