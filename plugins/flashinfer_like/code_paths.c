/* SPDX-License-Identifier: Apache-2.0
 *
 * code_paths.c: counts the rows of a batch by code path, from its numbers and host arrays. Rows whose
 * path the planner finds on the device alone count as a path of their own. Counting is done when a
 * batch is planned, as host arrays are gone afterwards.
 */
#include "plugins/flashinfer_like/flashinfer_like.h"

#include "plugins/flashinfer_like/kernels/plan.cuh"
#include "attn_plugin_util.h"

#include <string.h>

/* ---- Counting -------------------------------------------------------------------------------- */

const int32_t *fi_new_rows(const attn_batch *batch, const attn_kv_batch *kv)
{
    return kv->kv_new_indptr.device ? kv->kv_new_indptr.host : batch->q_indptr.host;
}

static void count_decodes(const attn_metadata *metadata, const fi_group *group, int64_t *rows)
{
    int64_t all = metadata->plan.batch.num_real_tokens;
    int uses_runs = fi_uses_runs(metadata, group);
    if (uses_runs < 0)
        rows[FI_PATH_DECODE_UNTOLD] = all;
    else if (uses_runs)
        rows[FI_PATH_CASCADE] = metadata->hinted.rows;
    rows[FI_PATH_DECODE] = all - rows[FI_PATH_DECODE_UNTOLD] - rows[FI_PATH_CASCADE];
}

/* Count sequences [first, end), which have `all` rows and go by tiles of many rows, unless they
 * have few rows and a kernel for few rows runs beside. */
static void count_many(const attn_metadata *metadata, uint32_t index, int first, int end,
                       int64_t all, int64_t *rows)
{
    const attn_batch *batch = &metadata->plan.batch;
    const attn_kv_batch *kv = &metadata->plan.kv[index];
    const cuda_group *group = &metadata->instance->groups[index].base;
    const int32_t *q = batch->q_indptr.host, *keys = kv->kv_lens.host;
    const int32_t *new_rows = fi_new_rows(batch, kv);
    int is_cached = cuda_group_has_cache(group), has_beside = fi_has_beside(metadata, index);
    if (!is_cached && !has_beside) {
        rows[FI_PATH_RAGGED] = all;
        return;
    }
    if (!q || (is_cached && (!keys || !new_rows))) {
        rows[FI_PATH_UNTOLD] = all;
        return;
    }
    for (int s = first; s < end; s++) {
        int count = q[s + 1] - q[s];
        if (has_beside && plan_has_few(count, group->ratio))
            rows[FI_PATH_FEW] += count;
        else if (!is_cached || keys[s] == new_rows[s + 1] - new_rows[s])
            rows[FI_PATH_RAGGED] += count;
    }
    rows[FI_PATH_PAGED] = all - rows[FI_PATH_FEW] - rows[FI_PATH_RAGGED];
}

int64_t fi_count_rows(attn_metadata *metadata, uint32_t index)
{
    const attn_batch *batch = &metadata->plan.batch;
    const fi_part *part = fi_part_of(metadata, index);
    int64_t *rows = metadata->rows[index], all = batch->num_real_tokens;
    int first = part ? part->first_seq : 0, end = batch->num_real_seqs;
    if (part) {
        end = int_max(int_min(end, first + part->num_seqs), first);
        all = (int64_t)(end - first) * part->q_len;
    }
    memset(rows, 0, sizeof metadata->rows[index]);
    if (batch->mode == ATTN_MODE_DECODE)
        count_decodes(metadata, &metadata->instance->groups[index], rows);
    else if (fi_is_prefill(fi_find_kernel(metadata, index, FI_SEQUENCES)))
        count_many(metadata, index, first, end, all, rows);
    else
        rows[FI_PATH_FEW] = all;
    return all;
}

/* ---- Answers --------------------------------------------------------------------------------- */

attn_status fi_find_rows(const attn_metadata *metadata, int32_t layer_id, uint32_t *index,
                         const attn_util_layer **layer, attn_error *error)
{
    if (!metadata->plan.planned)
        return attn_util_fail(error, ATTN_BAD_STATE, "rows by path before a batch was planned");
    return fi_find_layer(metadata->instance, layer_id, index, layer, error);
}

void fi_read_rows(const attn_metadata *metadata, uint32_t index, const attn_util_layer *layer,
                  int64_t rows[FI_NUM_PATHS])
{
    memcpy(rows, metadata->rows[index], FI_NUM_PATHS * sizeof *rows);
    if (layer->kv_read_only) {
        rows[FI_PATH_PAGED] += rows[FI_PATH_RAGGED];
        rows[FI_PATH_RAGGED] = 0;
    }
}

static attn_status rows_by_path(const attn_metadata *metadata, int32_t layer_id, int64_t *rows,
                                attn_error *error)
{
    uint32_t index;
    const attn_util_layer *layer;
    attn_status status = fi_find_rows(metadata, layer_id, &index, &layer, error);
    if (status == ATTN_OK)
        fi_read_rows(metadata, index, layer, rows);
    return status;
}

static const attn_code_path paths[FI_NUM_PATHS] = {FI_PATHS};
static const attn_code_paths extension = {.struct_size = sizeof extension,
                                          .num_paths = FI_NUM_PATHS,
                                          .paths = paths,
                                          .rows = rows_by_path};

const void *fi_get_extension(attn_instance *instance, const char *id)
{
    (void)instance;
    return strcmp(id, ATTN_EXTENSION_CODE_PATHS) == 0 ? &extension : NULL;
}
