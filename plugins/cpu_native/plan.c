/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c: a batch, checked against the bounds and cut into units of work for each layer group.
 *
 * What is planned lies in the metadata's own memory. Lengths are copied, since host arrays do not
 * outlive the call; slots and pages are read from the batch's device arrays in forward.
 */
#include "cpu_native.h"

#include "attn_plugin_util.h"
#include "plugins/cpu_native/mla/mla.h"
#include "plugins/cpu_native/sparse/sparse.h"

#include <stdio.h>
#include <string.h>

#define FAIL(error, ...)                                                                           \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH, "" __VA_ARGS__)

/* ---- The batch as a whole -------------------------------------------------------------------- */

static attn_status check_count(const char *what, int64_t got, int64_t most, attn_error *error)
{
    if (got < 0 || got > most)
        return FAIL(error, "%s %lld: accepted 0..%lld", what, (long long)got, (long long)most);
    return ATTN_OK;
}

static attn_status check_parts(const attn_metadata *metadata, attn_error *error)
{
    const attn_batch *batch = &metadata->batch;
    const attn_mask *mask = &metadata->mask;
    int custom = mask->kind == ATTN_MASK_FULL || mask->kind == ATTN_MASK_QLEN;
    attn_status status = attn_util_check_mask_kind(&metadata->bounds, mask->kind, error);
    if (status != ATTN_OK)
        return status;
    if (custom && (!mask->bits || !mask->indptr.device))
        return FAIL(error, "mask kind %u without bits or indptr", mask->kind);
    if (batch->positions.device && !custom)
        return FAIL(error, "positions are given without a custom mask");
    if (batch->positions.device && !(metadata->bounds.uses & ATTN_USES_POSITIONS))
        return FAIL(error, "positions are given, which the bounds of this metadata exclude");
    if (!batch->multi_item)
        return ATTN_OK;
    if (!(metadata->bounds.uses & ATTN_USES_MULTI_ITEM))
        return FAIL(error, "multi_item is given, which the bounds of this metadata exclude");
    if (mask->kind != ATTN_MASK_LAYER)
        return FAIL(error, "multi_item is given with mask kind %u: accepted 0", mask->kind);
    if (!metadata->multi_item.prefix_lens.device || !metadata->multi_item.token_pos)
        return FAIL(error, "multi_item without prefix_lens or token_pos");
    return ATTN_OK;
}

static attn_status check_arrays(const attn_batch *batch, attn_error *error)
{
    if (batch->num_seqs > 0 && !attn_util_i32(&batch->seq_lens))
        return FAIL(error, "seq_lens is missing");
    if (batch->mode != ATTN_MODE_DECODE && batch->num_seqs > 0 && !attn_util_i32(&batch->q_indptr))
        return FAIL(error, "q_indptr is missing");
    if (batch->mode == ATTN_MODE_DECODE && batch->num_tokens < batch->num_seqs)
        return FAIL(error, "num_tokens %d: accepted num_seqs, %d, in DECODE", batch->num_tokens,
                    batch->num_seqs);
    return ATTN_OK;
}

static attn_status check_batch(attn_metadata *metadata, attn_error *error)
{
    const attn_batch *batch = &metadata->batch;
    attn_status status = attn_util_check_mode(&metadata->bounds, batch->mode, error);
    if (status != ATTN_OK || batch->mode == ATTN_MODE_IDLE)
        return status;
    status = attn_util_check_counts(&metadata->bounds, batch, error);
    if (status == ATTN_OK)
        status = check_count("num_real_seqs", batch->num_real_seqs, batch->num_seqs, error);
    if (status == ATTN_OK)
        status = check_count("num_decode_seqs", batch->num_decode_seqs, batch->num_seqs, error);
    if (status == ATTN_OK)
        status = check_parts(metadata, error);
    if (status == ATTN_OK)
        status = check_arrays(batch, error);
    return status;
}

/* ---- Sequences ------------------------------------------------------------------------------- */

static attn_status find_rows(const attn_batch *batch, const cpu_group *group, int32_t s,
                             cpu_sequence *sequence, attn_error *error)
{
    if (batch->mode == ATTN_MODE_DECODE) {
        int32_t seq_len = attn_util_i32(&batch->seq_lens)[s];
        sequence->first_row = s;
        sequence->q_len = 1;
        sequence->prefix_len = seq_len > 0 ? seq_len - 1 : 0; /* padding may have length 0 */
        return ATTN_OK;
    }
    const int32_t *indptr = attn_util_i32(&batch->q_indptr),
                  *prefix = attn_util_i32(&batch->prefix_lens);
    if (!prefix && group->attn_type == ATTN_TYPE_DECODER)
        return FAIL(error, "prefix_lens is missing");
    sequence->first_row = indptr[s];
    sequence->q_len = indptr[s + 1] - indptr[s];
    sequence->prefix_len = prefix ? prefix[s] : 0;
    if (indptr[s] < 0 || indptr[s + 1] < indptr[s])
        return FAIL(error, "q_indptr[%d] %d and the next %d: accepted 0 and more, not decreasing",
                    s, indptr[s], indptr[s + 1]);
    if (sequence->prefix_len < 0)
        return FAIL(error, "prefix_lens[%d] %d: accepted 0 and more", s, sequence->prefix_len);
    if (batch->mode == ATTN_MODE_MIXED && s < batch->num_real_seqs &&
        attn_is_decode_seq(batch, s) && sequence->q_len != batch->decode_q_len)
        return FAIL(error, "sequence %d of a MIXED batch decodes %d queries: accepted %d", s,
                    sequence->q_len, batch->decode_q_len);
    return ATTN_OK;
}

static attn_status find_keys(const attn_batch *batch, const group_plan *plan, int32_t s,
                             cpu_sequence *sequence, attn_error *error)
{
    const int32_t *kv_lens = attn_util_i32(&plan->kv.kv_lens);
    const int32_t *new_indptr = attn_util_i32(&plan->kv.kv_new_indptr);
    sequence->kv_len = kv_lens ? kv_lens[s] : attn_util_i32(&batch->seq_lens)[s];
    sequence->first_new = sequence->first_row;
    sequence->num_new = sequence->q_len;
    if (!new_indptr)
        return ATTN_OK;
    sequence->first_new = new_indptr[s];
    sequence->num_new = new_indptr[s + 1] - new_indptr[s];
    if (new_indptr[s] < 0 || sequence->num_new < 0)
        return FAIL(error,
                    "kv_new_indptr[%d] %d and the next %d: accepted 0 and more, not decreasing", s,
                    new_indptr[s], new_indptr[s + 1]);
    return ATTN_OK;
}

/* Encoder-only: the keys are the batch's own tokens. */
static attn_status find_own_keys(int32_t s, cpu_sequence *sequence, attn_error *error)
{
    if (sequence->prefix_len != 0)
        return FAIL(error, "encoder-only sequence %d has a prefix of %d tokens: accepted 0", s,
                    sequence->prefix_len);
    sequence->kv_len = sequence->num_new = sequence->q_len;
    sequence->first_new = sequence->first_row;
    return ATTN_OK;
}

static attn_status check_sequence(const attn_metadata *metadata, int32_t s,
                                  const cpu_sequence *sequence, attn_error *error)
{
    const attn_batch *batch = &metadata->batch;
    char name[48];
    int counted = batch->positions.device || metadata->mask.kind == ATTN_MASK_QLEN;
    snprintf(name, sizeof name, "sequence %d: queries", s);
    attn_status status = attn_util_check_count(name, sequence->q_len, metadata->bounds.max_q_len,
                                               ATTN_FIELD_MAX_Q_LEN, error);
    snprintf(name, sizeof name, "sequence %d: keys", s);
    if (status == ATTN_OK)
        status = attn_util_check_count(name, sequence->kv_len, metadata->bounds.max_kv_len,
                                       ATTN_FIELD_MAX_KV_LEN, error);
    if (status != ATTN_OK || s >= batch->num_real_seqs)
        return status;
    if (batch->multi_item && (int64_t)sequence->prefix_len + sequence->q_len -
                                     metadata->multi_item.prefix_lens.device[s] >
                                 metadata->multi_item.token_pos_stride)
        return FAIL(error, "sequence %d: multi_item.token_pos_stride %d is too short for it", s,
                    metadata->multi_item.token_pos_stride);
    if (counted && (int64_t)sequence->kv_len > (int64_t)sequence->prefix_len + sequence->q_len)
        return FAIL(error, "sequence %d has %d keys: its mask or positions are for %lld", s,
                    sequence->kv_len, (long long)sequence->prefix_len + sequence->q_len);
    return ATTN_OK;
}

/* Does the sequence's row of the table of pages or slots hold all its keys? */
static attn_status check_table(const group_plan *plan, int32_t s, const cpu_sequence *sequence,
                               attn_error *error)
{
    const attn_kv_batch *kv = &plan->kv;
    int64_t most = INT64_MAX;
    const char *name = "req_to_token_stride";
    if (plan->index_form == ATTN_INDEX_REQ_TO_TOKEN)
        most = kv->req_to_token_stride;
    else if (plan->index_form == ATTN_INDEX_BLOCK_TABLE) {
        most = (int64_t)kv->block_table_stride * kv->page_size;
        name = "block_table_stride";
    }
    if (sequence->kv_len > most)
        return FAIL(error, "sequence %d has %d keys: accepted 0..%lld by %s", s, sequence->kv_len,
                    (long long)most, name);
    return ATTN_OK;
}

static attn_status find_sequence(const attn_metadata *metadata, const cpu_group *group,
                                 const group_plan *plan, int32_t s, cpu_sequence *sequence,
                                 attn_error *error)
{
    attn_status status = find_rows(&metadata->batch, group, s, sequence, error);
    if (status == ATTN_OK)
        status = group->attn_type == ATTN_TYPE_ENCODER_ONLY
                     ? find_own_keys(s, sequence, error)
                     : find_keys(&metadata->batch, plan, s, sequence, error);
    if (status == ATTN_OK)
        status = check_sequence(metadata, s, sequence, error);
    return status == ATTN_OK ? check_table(plan, s, sequence, error) : status;
}

/* All sequences of a group, and their sums. */
static attn_status find_sequences(attn_metadata *metadata, const cpu_group *group, group_plan *plan,
                                  attn_error *error)
{
    const attn_batch *batch = &metadata->batch;
    int64_t page = plan->kv.page_size > 0 ? plan->kv.page_size : 1, kv_tokens = 0;
    const int32_t *indptr =
        batch->mode == ATTN_MODE_DECODE ? NULL : attn_util_i32(&batch->q_indptr);
    plan->new_first = plan->new_end = 0;
    plan->pad_first = indptr ? indptr[0] : 0; /* without a sequence all rows are padding */
    plan->pad_end = plan->pad_first + batch->num_tokens;
    plan->reads_prefix = 0;
    plan->short_seq = -1;
    plan->row_first = plan->pad_first;
    plan->longest = 0;
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        cpu_sequence *sequence = &plan->sequences[s];
        attn_status status = find_sequence(metadata, group, plan, s, sequence, error);
        if (status != ATTN_OK)
            return status;
        if (sequence->kv_len > plan->longest)
            plan->longest = sequence->kv_len;
        kv_tokens += (sequence->kv_len + page - 1) / page * page;
        if (s == 0)
            plan->new_first = sequence->first_new;
        plan->new_end = sequence->first_new + sequence->num_new;
        plan->pad_first = sequence->first_row + sequence->q_len;
        if (sequence->kv_len > sequence->num_new && !group->mla.expanded)
            plan->reads_prefix = 1;
        if (sequence->kv_len < sequence->num_new && s < batch->num_real_seqs)
            plan->short_seq = s;
    }
    plan->row_end = plan->pad_end > plan->pad_first ? plan->pad_end : plan->pad_first;
    if (plan->pad_first > plan->pad_end)
        return FAIL(error, "the sequences have %d rows more than num_tokens, %d",
                    plan->pad_first - plan->pad_end, batch->num_tokens);
    if (metadata->bounds.max_kv_tokens > 0 && group->attn_type != ATTN_TYPE_ENCODER_ONLY)
        return attn_util_check_count("keys of all sequences, in whole pages", kv_tokens,
                                     metadata->bounds.max_kv_tokens, ATTN_FIELD_MAX_KV_TOKENS,
                                     error);
    return ATTN_OK;
}

/* ---- The KV group ---------------------------------------------------------------------------- */

static int form_is_given(const attn_batch *batch, const attn_kv_batch *kv, uint32_t form)
{
    if (form == ATTN_INDEX_REQ_TO_TOKEN)
        return kv->req_to_token.device && batch->req_pool_indices.device;
    if (form == ATTN_INDEX_BLOCK_TABLE)
        return kv->block_table.device != NULL;
    return kv->kv_indptr.device && kv->kv_indices.device;
}

static attn_status find_kv_group(const attn_metadata *metadata, const cpu_group *group,
                                 group_plan *plan, attn_error *error)
{
    const attn_batch *batch = &metadata->batch;
    memset(&plan->kv, 0, sizeof plan->kv);
    plan->index_form = 0;
    if (group->attn_type == ATTN_TYPE_ENCODER_ONLY)
        return ATTN_OK;
    if (group->kv_group < 0 || (uint32_t)group->kv_group >= batch->num_kv_groups ||
        !batch->kv_groups)
        return FAIL(error, "kv_group %d: the batch has %u of them", group->kv_group,
                    batch->num_kv_groups);
    ATTN_UTIL_READ(&plan->kv, attn_at(batch->kv_groups, (uint32_t)group->kv_group));
    if (plan->kv.page_size != group->page_size)
        return FAIL(error, "page_size of KV group %d is %d: accepted %d", group->kv_group,
                    plan->kv.page_size, group->page_size);
    uint32_t forms = plan->kv.index_forms & metadata->instance->options.index_forms;
    for (uint32_t form = 1; form <= ATTN_INDEX_CSR && !plan->index_form; form <<= 1)
        if (forms & form && form_is_given(batch, &plan->kv, form))
            plan->index_form = form;
    return plan->index_form || group->mla.expanded
               ? ATTN_OK
               : attn_util_fail_index_forms(group->kv_group, plan->kv.index_forms,
                                            metadata->instance->options.index_forms, error);
}

/* Cross attention has no query position and no new tokens of its own. */
static attn_status check_cross(const attn_metadata *metadata, const cpu_group *group,
                               attn_error *error)
{
    const attn_batch *batch = &metadata->batch;
    if (group->attn_type != ATTN_TYPE_CROSS)
        return ATTN_OK;
    if (metadata->mask.kind == ATTN_MASK_QLEN || batch->multi_item || batch->positions.device)
        return FAIL(error, "cross attention: accepted no QLEN mask, no multi_item, no positions");
    return ATTN_OK;
}

/* How many keys a row of a sparse layer has at most. */
static attn_status find_max_count(const attn_metadata *metadata, const cpu_group *group,
                                  group_plan *plan, attn_error *error)
{
    const attn_sparse_batch *given = metadata->batch.sparse;
    plan->max_count = group->sparse.top_k;
    if (group->sparse.top_k == 0 || metadata->batch.num_seqs == 0)
        return ATTN_OK;
    if (!given || given->max_count < 1)
        return FAIL(error, "sparse is missing, or its max_count is below 1");
    if (given->max_count < plan->max_count)
        plan->max_count = given->max_count;
    return ATTN_OK;
}

/* ---- Units ----------------------------------------------------------------------------------- */

void cpu_visibility(const attn_metadata *metadata, const cpu_group *group, const group_plan *plan,
                    int32_t seq, visibility *v)
{
    const attn_mask *mask = &metadata->mask;
    const cpu_sequence *sequence = &plan->sequences[seq];
    int custom = mask->kind == ATTN_MASK_FULL || mask->kind == ATTN_MASK_QLEN;
    *v = (visibility){
        .window_left = group->window_left,
        .window_right = mask->kind == ATTN_MASK_LAYER ? group->window_right : -1,
        .chunk = group->chunk,
        .chunk_causal = !custom,
        .prefix_len = sequence->prefix_len,
        .q_len = sequence->q_len,
        .kv_len = sequence->kv_len,
    };
    if (group->mla.expanded && sequence->kv_len > sequence->num_new)
        v->first_key = sequence->kv_len - sequence->num_new;
    if (custom) {
        v->bits = mask->bits + mask->indptr.device[seq];
        v->bits_skip = mask->kind == ATTN_MASK_QLEN ? sequence->prefix_len : 0;
        v->bits_columns = mask->kind == ATTN_MASK_QLEN ? sequence->q_len : sequence->kv_len;
        if (metadata->batch.positions.device)
            v->positions = metadata->batch.positions.device + sequence->first_row;
    }
    if (metadata->batch.multi_item) {
        const attn_multi_item *items = &metadata->multi_item;
        v->item_pos = items->token_pos + (int64_t)seq * items->token_pos_stride;
        v->items_start = items->prefix_lens.device[seq];
    }
}

/* The splits of which the rows of `unit` see keys. */
static void find_splits(const visibility *v, int32_t ratio, int32_t split, work_unit *unit)
{
    int64_t first = INT64_MAX, end = 0;
    for (int32_t t = (int32_t)(unit->row / ratio); t <= (unit->row + unit->rows - 1) / ratio; t++) {
        int64_t lo, hi;
        visible_range(v, t, &lo, &hi);
        if (lo < hi) {
            first = first < lo ? first : lo;
            end = end > hi ? end : hi;
        }
    }
    unit->first_split = end > 0 ? (int32_t)(first / split) : 0;
    unit->end_split = end > 0 ? (int32_t)((end - 1) / split + 1) : 0;
}

/* One unit for each tile of rows. The last tiles of a causal sequence take longest: they come
 * first, so that no worker begins one when the others are done. */
int64_t cpu_cut_tiles(const attn_metadata *metadata, const cpu_group *group, int32_t tile_rows,
                      group_plan *plan)
{
    int64_t cost = 0;
    plan->num_units = 0;
    for (int32_t s = 0; s < metadata->batch.num_seqs; s++) {
        visibility v;
        int64_t rows = (int64_t)plan->sequences[s].q_len * group->ratio;
        cpu_visibility(metadata, group, plan, s, &v);
        for (int64_t tile = (rows + tile_rows - 1) / tile_rows - 1; tile >= 0; tile--) {
            work_unit *unit = &plan->units[plan->num_units++];
            int64_t row = tile * tile_rows;
            unit->seq = s;
            unit->row = row;
            unit->rows = rows - row < tile_rows ? (int32_t)(rows - row) : tile_rows;
            unit->num_parts = 0;
            unit->part = 0;
            find_splits(&v, group->ratio, metadata->instance->options.split, unit);
            cost += unit_cost(unit);
        }
    }
    return cost;
}

/* Share a tile out to `pieces` units, which leave partial results; the last takes its place. */
static void share_tile(group_plan *plan, work_unit *tile, int32_t pieces)
{
    work_unit whole = *tile;
    int32_t splits = whole.end_split - whole.first_split;
    whole.part = plan->part_rows;
    whole.num_parts = splits;
    const int32_t merge_pieces = (whole.rows + MERGE_ROWS - 1) / MERGE_ROWS;
    plan->merges[plan->num_merges++] = whole;
    if (plan->merge_pieces < merge_pieces)
        plan->merge_pieces = merge_pieces;
    plan->part_rows += (int64_t)splits * whole.rows;
    for (int32_t piece = 0; piece < pieces; piece++) {
        work_unit *unit = piece == pieces - 1 ? tile : &plan->units[plan->num_units++];
        int32_t from = (int32_t)((int64_t)splits * piece / pieces);
        int32_t to = (int32_t)((int64_t)splits * (piece + 1) / pieces);
        *unit = whole;
        unit->first_split = whole.first_split + from;
        unit->end_split = whole.first_split + to;
        unit->num_parts = to - from;
        unit->part = whole.part + (int64_t)from * whole.rows;
    }
}

void cpu_share_tiles(const cpu_group *group, group_plan *plan, const group_capacity *capacity,
                     int64_t cost)
{
    const int64_t shares = capacity->shares;
    int64_t most = capacity->part_rows / group->kv_heads;
    int32_t tiles = plan->num_units;
    for (int32_t i = 0; i < tiles; i++) {
        work_unit *tile = &plan->units[i];
        int32_t splits = tile->end_split - tile->first_split;
        /* How many shares of all work this is, rounded up. */
        int64_t pieces = (unit_cost(tile) * shares + cost * group->kv_heads - 1) /
                         (cost * group->kv_heads > 0 ? cost * group->kv_heads : 1);
        int64_t rows = (int64_t)splits * tile->rows;
        if (pieces > splits)
            pieces = splits;
        if (pieces > 1 && plan->part_rows + rows <= most)
            share_tile(plan, tile, (int32_t)pieces);
    }
}

/* ---- init_forward_metadata ------------------------------------------------------------------- */

static void keep_batch(attn_metadata *metadata, const attn_batch *batch)
{
    ATTN_UTIL_READ(&metadata->batch, batch);
    memset(&metadata->mask, 0, sizeof metadata->mask);
    memset(&metadata->multi_item, 0, sizeof metadata->multi_item);
    if (metadata->batch.mask)
        ATTN_UTIL_READ(&metadata->mask, metadata->batch.mask);
    if (metadata->batch.multi_item)
        ATTN_UTIL_READ(&metadata->multi_item, metadata->batch.multi_item);
    if (metadata->batch.num_real_seqs_device)
        metadata->batch.num_real_seqs = *metadata->batch.num_real_seqs_device;
}

static attn_status plan_group(attn_metadata *metadata, uint32_t index, attn_error *error)
{
    const cpu_group *group = &metadata->instance->groups[index];
    group_plan *plan = &metadata->plans[index];
    attn_status status = find_kv_group(metadata, group, plan, error);
    if (status == ATTN_OK)
        status = check_cross(metadata, group, error);
    if (status == ATTN_OK)
        status = find_sequences(metadata, group, plan, error);
    if (status == ATTN_OK)
        status = find_max_count(metadata, group, plan, error);
    if (status != ATTN_OK)
        return status;
    const group_capacity *capacity = &metadata->capacities[index];
    plan->num_merges = plan->merge_pieces = 0;
    plan->part_rows = 0;
    if (group->sparse.top_k > 0)
        cpu_share_tiles(group, plan, capacity, sparse_cut_tiles(metadata, group, plan));
    else if (group->mla.absorbed)
        mla_cut_tiles(metadata, group, capacity, plan);
    else
        cpu_share_tiles(group, plan, capacity, cpu_cut_tiles(metadata, group, TILE_ROWS, plan));
    return ATTN_OK;
}

attn_status cpu_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                      attn_stream stream, attn_error *error)
{
    (void)stream;
    if (!metadata || !batch)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or batch is NULL");
    metadata->planned = 0;
    keep_batch(metadata, batch);
    attn_status status = check_batch(metadata, error);
    if (status != ATTN_OK)
        return status;
    if (metadata->batch.mode != ATTN_MODE_IDLE)
        for (uint32_t i = 0; i < metadata->instance->num_groups && status == ATTN_OK; i++)
            if (metadata->instance->groups[i].modes & ATTN_MODE_BIT(metadata->batch.mode))
                status = plan_group(metadata, i, error);
    metadata->planned = status == ATTN_OK;
    return status;
}
