/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c: batches checked against the bounds of their metadata, and their data for launches.
 */
#include "plugins/common/cuda/plan.h"
#include "attn_plugin_util.h"

#include <inttypes.h>
#include <string.h>

#define FAIL(error, ...)                                                                           \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH, "" __VA_ARGS__)

void cuda_memory_tell(const uint64_t sizes[ATTN_REGION_COUNT], uint64_t alignment,
                      attn_memory_size *to)
{
    attn_util_clear_size(to);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        to->size[region] = sizes[region];
        to->alignment[region] = sizes[region] ? alignment : 0;
    }
}

attn_status cuda_memory_check(const attn_memory *memory, const uint64_t sizes[ATTN_REGION_COUNT],
                              uint64_t alignment, attn_error *error)
{
    static const char *const names[ATTN_REGION_COUNT] = {
        [ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_METADATA)] = "device metadata",
        [ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_ZEROED)] = "zeroed device metadata",
        [ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH)] = "device scratch",
        [ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)] = "host metadata"};
    attn_status status = ATTN_OK;
    for (uint32_t region = 0; region < ATTN_REGION_COUNT && status == ATTN_OK; region++)
        if (sizes[region])
            status =
                attn_util_check_region(memory, region, names[region] ? names[region] : "memory",
                                       sizes[region], alignment, error);
    return status;
}

void cuda_metadata_destroy(attn_metadata *metadata)
{
    (void)metadata;
}

void cuda_plan_init(cuda_plan *plan, uint32_t kind, const attn_bounds *bounds, uint32_t index_forms,
                    cuda_address counts, attn_kv_batch *kv)
{
    *plan = (cuda_plan){.kind = kind,
                        .bounds = *bounds,
                        .index_forms = index_forms,
                        .counts = counts,
                        .counted = {-1, -1, -1},
                        .kv = kv};
}

/* ---- The batch ------------------------------------------------------------------------------- */

static attn_status check_count(const char *what, int64_t got, int64_t bound, attn_error *error)
{
    if (got < 0 || got > bound)
        return FAIL(error, "%s %" PRId64 ": accepted 0..%" PRId64 ", the bound of this metadata",
                    what, got, bound);
    return ATTN_OK;
}

static attn_status check_scalars(const attn_bounds *bounds, const attn_batch *batch,
                                 attn_error *error)
{
    attn_status status = attn_util_check_chosen("mode", batch->mode, ATTN_FIELD_MODES,
                                                bounds->modes, ATTN_FIELD_BATCH, error);
    if (status == ATTN_OK)
        status = check_count("num_seqs", batch->num_seqs, bounds->max_seqs, error);
    if (status == ATTN_OK)
        status = check_count("num_tokens", batch->num_tokens, bounds->max_tokens, error);
    if (status == ATTN_OK)
        status = check_count("num_real_seqs", batch->num_real_seqs, batch->num_seqs, error);
    if (status == ATTN_OK)
        status = check_count("num_decode_seqs", batch->num_decode_seqs, batch->num_seqs, error);
    if (status == ATTN_OK)
        status = check_count("max_q_len", batch->max_q_len, bounds->max_q_len, error);
    if (status == ATTN_OK)
        status = check_count("max_kv_len", batch->max_kv_len, bounds->max_kv_len, error);
    if (status == ATTN_OK && batch->mode == ATTN_MODE_DECODE && batch->num_tokens < batch->num_seqs)
        status = FAIL(error, "num_tokens %d: accepted num_seqs, %d, in DECODE", batch->num_tokens,
                      batch->num_seqs);
    return status;
}

static int is_custom(uint32_t kind)
{
    return kind == ATTN_MASK_FULL || kind == ATTN_MASK_QLEN;
}

static attn_status check_items(const attn_bounds *bounds, const attn_batch *batch,
                               const attn_mask *mask, const attn_multi_item *items,
                               attn_error *error)
{
    if (!batch->multi_item)
        return ATTN_OK;
    if (!(bounds->uses & ATTN_USES_MULTI_ITEM))
        return FAIL(error, "multi_item is given, which the bounds of this metadata exclude");
    if (mask->kind != ATTN_MASK_LAYER)
        return FAIL(error, "multi_item is given with mask kind %u: accepted %d", mask->kind,
                    ATTN_MASK_LAYER);
    if (!items->prefix_lens.device || !items->token_pos)
        return FAIL(error, "multi_item without prefix_lens or token_pos on the device");
    return ATTN_OK;
}

static attn_status check_parts(const attn_bounds *bounds, const attn_batch *batch,
                               const attn_mask *mask, const attn_multi_item *items,
                               attn_error *error)
{
    attn_status status = attn_util_check_mask_kind(bounds, mask->kind, error);
    if (status != ATTN_OK)
        return status;
    if (is_custom(mask->kind) && (!mask->bits || !mask->indptr.device))
        return FAIL(error, "mask kind %u without bits or indptr", mask->kind);
    if (batch->positions.device && !is_custom(mask->kind))
        return FAIL(error, "positions are given without a custom mask");
    if (batch->positions.device && !(bounds->uses & ATTN_USES_POSITIONS))
        return FAIL(error, "positions are given, which the bounds of this metadata exclude");
    return check_items(bounds, batch, mask, items, error);
}

static attn_status check_arrays(const attn_batch *batch, attn_error *error)
{
    if (batch->mode == ATTN_MODE_DECODE) {
        if (batch->num_seqs > 0 && !batch->seq_lens.device)
            return FAIL(error, "seq_lens is missing on the device");
    } else if (!batch->q_indptr.device) {
        return FAIL(error, "q_indptr is missing on the device");
    }
    return ATTN_OK;
}

/* A graph fixes the kernels of one mode and one kind of mask, and the addresses. */
static attn_status check_same(const cuda_plan *plan, const attn_batch *batch, const attn_mask *mask,
                              const attn_multi_item *items, attn_error *error)
{
    if (plan->kind != ATTN_METADATA_GRAPH || !plan->planned)
        return ATTN_OK;
    const attn_batch *first = &plan->batch;
    if (batch->mode != first->mode || mask->kind != plan->mask.kind)
        return FAIL(error, "mode %s, mask kind %s: accepted %s, %s, as this graph was captured",
                    attn_util_member_name(ATTN_FIELD_MODES, batch->mode),
                    attn_util_member_name(ATTN_FIELD_MASK_KINDS, mask->kind),
                    attn_util_member_name(ATTN_FIELD_MODES, first->mode),
                    attn_util_member_name(ATTN_FIELD_MASK_KINDS, plan->mask.kind));
    if (batch->seq_lens.device != first->seq_lens.device ||
        batch->q_indptr.device != first->q_indptr.device ||
        batch->prefix_lens.device != first->prefix_lens.device ||
        batch->req_pool_indices.device != first->req_pool_indices.device ||
        batch->positions.device != first->positions.device || mask->bits != plan->mask.bits ||
        items->prefix_lens.device != plan->items.prefix_lens.device ||
        items->token_pos != plan->items.token_pos ||
        items->token_pos_stride != plan->items.token_pos_stride)
        return FAIL(error, "device arrays are not where they were when this graph was captured");
    return ATTN_OK;
}

/* ---- KV groups ------------------------------------------------------------------------------- */

/* Keeps the one form that the kernels read: pages first, as they are fewer. 0 = none. */
static int keep_one_form(uint32_t forms, const attn_batch *batch, attn_kv_batch *kv)
{
    forms &= kv->index_forms;
    int pages = forms & ATTN_INDEX_BLOCK_TABLE && kv->block_table.device;
    int list = !pages && forms & ATTN_INDEX_CSR && kv->kv_indptr.device && kv->kv_indices.device;
    int slots = !pages && !list && forms & ATTN_INDEX_REQ_TO_TOKEN && kv->req_to_token.device &&
                batch->req_pool_indices.device;
    if (!pages)
        kv->block_table.device = NULL;
    if (!list)
        kv->kv_indptr.device = kv->kv_indices.device = NULL;
    if (!slots)
        kv->req_to_token.device = NULL;
    return pages || list || slots;
}

/* Cross attention has no query positions, and its keys belong neither to queries nor to items. */
static attn_status check_cross(const cuda_group *group, const attn_batch *batch,
                               const attn_mask *mask, attn_error *error)
{
    if (group->attn_type == ATTN_TYPE_CROSS &&
        (mask->kind == ATTN_MASK_QLEN || batch->multi_item || batch->positions.device))
        return FAIL(error, "cross attention: accepted no QLEN mask, no multi_item, no positions");
    return ATTN_OK;
}

static attn_status find_kv_group(const cuda_plan *plan, const cuda_group *group,
                                 const attn_batch *batch, attn_kv_batch *kv, attn_error *error)
{
    memset(kv, 0, sizeof *kv);
    if (!cuda_group_has_cache(group))
        return ATTN_OK;
    if (group->kv_group < 0 || (uint32_t)group->kv_group >= batch->num_kv_groups ||
        !batch->kv_groups)
        return FAIL(error, "kv_group %d: the batch has %u of them", group->kv_group,
                    batch->num_kv_groups);
    ATTN_UTIL_READ(kv, attn_at(batch->kv_groups, (uint32_t)group->kv_group));
    if (kv->page_size != group->page_size)
        return FAIL(error, "page_size of KV group %d is %d: accepted %d", group->kv_group,
                    kv->page_size, group->page_size);
    if (!keep_one_form(plan->index_forms, batch, kv) && batch->num_seqs > 0)
        return attn_util_fail_index_forms(group->kv_group, kv->index_forms, plan->index_forms,
                                          error);
    if (!kv->kv_lens.device)
        kv->kv_lens = batch->seq_lens;
    if (!kv->kv_lens.device && batch->num_seqs > 0)
        return FAIL(error, "KV group %d has no kv_lens on the device, the batch no seq_lens",
                    group->kv_group);
    return ATTN_OK;
}

static attn_status set_counts(cuda_plan *plan, const cuda_api *cuda, attn_stream stream,
                              attn_error *error)
{
    const attn_batch *batch = &plan->batch;
    const int32_t counts[CALL_COUNTS] = {[CALL_COUNT_SEQS] = batch->num_seqs,
                                         [CALL_COUNT_TOKENS] = batch->num_tokens,
                                         [CALL_COUNT_DECODE_SEQS] = batch->num_decode_seqs};
    for (uint32_t i = 0; i < CALL_COUNTS && plan->counts; i++) {
        if (plan->counted[i] == counts[i])
            continue;
        int result = cuda->cuMemsetD32Async(plan->counts + i * sizeof(int32_t), (unsigned)counts[i],
                                            1, stream);
        if (result != CUDA_OK)
            return cuda_fail(cuda, result, "batch", "cuMemsetD32Async", error);
        plan->counted[i] = counts[i];
    }
    return ATTN_OK;
}

static const cuda_group *group_at(const void *groups, size_t group_size, uint32_t i)
{
    return (const void *)((const char *)groups + i * group_size);
}

attn_status cuda_find_layer(const void *groups, size_t group_size, uint32_t num_groups,
                            int32_t layer_id, uint32_t *index, const attn_util_layer **layer,
                            attn_error *error)
{
    for (uint32_t i = 0; i < num_groups; i++) {
        const cuda_group *group = group_at(groups, group_size, i);
        for (uint32_t n = 0; n < group->num_layers; n++)
            if (group->layers[n].layer_id == layer_id) {
                *index = i;
                *layer = &group->layers[n];
                return ATTN_OK;
            }
    }
    return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LAYER_ID,
                                "layer_id %d is not of this instance", layer_id);
}

attn_status cuda_plan_take(cuda_plan *plan, const cuda_api *cuda, const void *groups,
                           size_t group_size, uint32_t num_groups, const attn_batch *given,
                           attn_stream stream, attn_error *error)
{
    attn_batch batch;
    attn_mask mask = {.struct_size = sizeof mask};
    attn_multi_item items = {.struct_size = sizeof items};
    attn_kv_batch kv;
    ATTN_UTIL_READ(&batch, given);
    if (batch.mask)
        ATTN_UTIL_READ(&mask, batch.mask);
    if (batch.multi_item)
        ATTN_UTIL_READ(&items, batch.multi_item);
    attn_status status = ATTN_OK;
    if (batch.mode != ATTN_MODE_IDLE) {
        status = check_scalars(&plan->bounds, &batch, error);
        if (status == ATTN_OK)
            status = check_parts(&plan->bounds, &batch, &mask, &items, error);
        if (status == ATTN_OK)
            status = check_arrays(&batch, error);
        if (status == ATTN_OK)
            status = check_same(plan, &batch, &mask, &items, error);
        for (uint32_t i = 0; i < num_groups && status == ATTN_OK; i++) {
            const cuda_group *group = group_at(groups, group_size, i);
            status = check_cross(group, &batch, &mask, error);
            if (status == ATTN_OK)
                status = find_kv_group(plan, group, &batch, &kv, error);
        }
    }
    if (status != ATTN_OK)
        return status;
    /* All are valid: the previous plan may be replaced now. */
    for (uint32_t i = 0; i < num_groups && batch.mode != ATTN_MODE_IDLE; i++)
        find_kv_group(plan, group_at(groups, group_size, i), &batch, &plan->kv[i], NULL);
    plan->batch = batch;
    plan->mask = mask;
    plan->items = items;
    plan->planned = 1;
    return set_counts(plan, cuda, stream, error);
}

/* ---- Forward --------------------------------------------------------------------------------- */

uint32_t cuda_num_sms(const attn_bounds *bounds, uint32_t most)
{
    return bounds->max_sms > 0 && (uint32_t)bounds->max_sms < most ? (uint32_t)bounds->max_sms
                                                                   : most;
}

uint32_t cuda_plan_num_sms(const cuda_plan *plan, uint32_t most)
{
    return cuda_num_sms(&plan->bounds, most);
}

int cuda_plan_has_rows(const cuda_plan *plan)
{
    return plan->batch.mode != ATTN_MODE_IDLE && plan->batch.num_tokens > 0;
}

attn_status cuda_plan_check_forward(const cuda_plan *plan, int decode, attn_error *error)
{
    if (!plan->planned)
        return attn_util_fail(error, ATTN_BAD_STATE, "forward before a batch was planned");
    if (cuda_plan_has_rows(plan) && decode != (plan->batch.mode == ATTN_MODE_DECODE))
        return attn_util_fail(error, ATTN_BAD_STATE, "forward_%s for a batch of mode %u",
                              decode ? "decode" : "extend", plan->batch.mode);
    return ATTN_OK;
}

void cuda_plan_fill(const cuda_plan *plan, const cuda_group *group, const attn_kv_batch *kv,
                    call_batch *to)
{
    const attn_batch *batch = &plan->batch;
    to->seq_lens = batch->seq_lens.device;
    to->q_indptr = batch->mode == ATTN_MODE_DECODE ? NULL : batch->q_indptr.device;
    to->prefix_lens = cuda_group_has_cache(group) ? batch->prefix_lens.device : NULL;
    to->positions = batch->positions.device;
    to->kv_lens = kv->kv_lens.device;
    to->new_indptr = kv->kv_new_indptr.device;
    to->req_pool_indices = batch->req_pool_indices.device;
    to->req_to_token = kv->req_to_token.device;
    to->block_table = kv->block_table.device;
    to->kv_indptr = kv->kv_indptr.device;
    to->kv_indices = kv->kv_indices.device;
    to->table_stride = to->block_table ? kv->block_table_stride : kv->req_to_token_stride;
    to->out_cache_loc = (const long long *)kv->out_cache_loc.device;
    to->table_rows = NULL;
    to->mask_bits = plan->mask.bits;
    to->mask_indptr = (const long long *)plan->mask.indptr.device;
    to->mask_qlen = plan->mask.kind == ATTN_MASK_QLEN;
    to->item_prefix_lens = plan->items.prefix_lens.device;
    to->item_pos = plan->items.token_pos;
    to->item_stride = plan->items.token_pos_stride;
    to->window_right = plan->mask.kind == ATTN_MASK_LAYER ? group->window_right : -1;
    to->num_seqs = batch->num_seqs;
    to->num_tokens = batch->num_tokens;
    to->num_decode_seqs = batch->num_decode_seqs;
    to->counts = (const int *)(uintptr_t)plan->counts;
}

cuda_extent cuda_plan_extent(const cuda_plan *plan)
{
    const attn_bounds *bounds = &plan->bounds;
    const attn_batch *batch = &plan->batch;
    cuda_extent e = {batch->num_seqs, batch->num_tokens, batch->max_q_len, batch->num_decode_seqs};
    if (plan->kind == ATTN_METADATA_GRAPH)
        e = (cuda_extent){bounds->max_seqs, bounds->max_tokens, bounds->max_q_len,
                          bounds->max_seqs};
    if (batch->mode == ATTN_MODE_DECODE)
        e.q_len = 1;
    return e;
}
