/* SPDX-License-Identifier: Apache-2.0
 *
 * save.c: new keys and values into the cache, before anything is read.
 */
#include "cpu_native.h"

#include "attn_plugin_util.h"
#include "plugins/cpu_native/mla/mla.h"
#include "plugins/cpu_native/sparse/sparse.h"

#include <string.h>

enum { ROWS_PER_TASK = 64 };

int64_t cpu_save_tasks(const layer_call *call)
{
    int64_t rows = (int64_t)call->plan->new_end - call->plan->new_first;
    return call->save ? (rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK : 0;
}

/* Copied, or quantised as KV-04 of docs/ABI.md says: an fp32 division by the scale, one rounding.
 */
void cpu_save_head(const layer_call *call, const void *from, const row_format *format,
                   const float *scale, int32_t dim, char *to)
{
    const cpu_group *group = call->group;
    float x[MAX_DIM];
    if (dim == 0) /* positions of latents that have none */
        return;
    if (!group->fp8) {
        memcpy(to, from, (size_t)dim * attn_dtype_size(group->kv_dtype));
        return;
    }
    call->instance->kernels->convert(from, format, dim, x);
    for (int32_t d = 0; d < dim; d++)
        ((uint8_t *)to)[d] = f32_to_fp8(x[d] / *scale, group->fp8);
}

static void save_row(const layer_call *call, const attn_tensor *rows, const float *given,
                     int32_t seq, int64_t row, int64_t slot, const cache_view *cache, int32_t dim)
{
    const cpu_group *group = call->group;
    int64_t page = slot / call->group->page_size, offset = slot % call->group->page_size;
    char *to = cache->data + page * cache->page + offset * cache->token;
    for (int32_t head = 0; head < group->kv_heads; head++) {
        const float *scale = cache->scales;
        row_format format = cpu_new_format(group, given, seq, head);
        if (scale)
            scale += attn_util_scale_at(group->scale_granularity, group->kv_heads, seq, slot, head);
        cpu_save_head(call, new_row(rows, row, head), &format, scale, dim, to + head * cache->head);
    }
}

attn_status cpu_save_task(void *arg, int64_t task, uint32_t worker)
{
    layer_call *call = arg;
    const group_plan *plan = call->plan;
    const int64_t *slots = plan->kv.out_cache_loc.device;
    int64_t first = plan->new_first + task * ROWS_PER_TASK, end = first + ROWS_PER_TASK;
    int32_t seq = 0;
    int64_t num_pages = call->k_cache.data ? call->k_cache.num_pages : call->sparse.num_pages;
    (void)worker;
    for (int64_t row = first; row < end && row < plan->new_end; row++) {
        int64_t slot = slots[row];
        while (row >= (int64_t)plan->sequences[seq].first_new + plan->sequences[seq].num_new)
            seq++;
        if (slot == -1)
            continue;
        if (slot < 0 || slot / call->group->page_size >= num_pages)
            return cpu_call_fault(call, -1, row, slot);
        if (call->sparse.k)
            sparse_save_row(call, row, slot);
        if (call->mla.c_kv) {
            mla_save_row(call, row, slot);
            continue;
        }
        if (!call->k)
            continue;
        save_row(call, call->k, call->new_k_scales, seq, row, slot, &call->k_cache,
                 call->group->dim);
        save_row(call, call->v, call->new_v_scales, seq, row, slot, &call->v_cache,
                 call->group->v_dim);
    }
    return ATTN_OK;
}
