/* SPDX-License-Identifier: Apache-2.0
 *
 * slice.c: a batch of some sequences of another, or for some of its layers.
 */
#include "slice.h"

#include "attn_plugin_util.h"

#include <string.h>

/* ---- Rows ------------------------------------------------------------------------------------ */

static void shift_i32(attn_i32_array *array, int64_t by)
{
    if (array->host)
        array->host += by;
    if (array->device)
        array->device += by;
}

static void shift_i64(attn_i64_array *array, int64_t by)
{
    if (array->host)
        array->host += by;
    if (array->device)
        array->device += by;
}

int slice_new_rows_follow_queries(const attn_kv_batch *kv)
{
    return !kv->kv_new_indptr.host && !kv->kv_new_indptr.device;
}

/* Sequences from `seq` on; new rows from `row` on where they are the query's (0 = their numbers
 * stay what they are). */
static void shift_kv_group(attn_kv_batch *kv, int32_t seq, int32_t row)
{
    if (slice_new_rows_follow_queries(kv))
        shift_i64(&kv->out_cache_loc, row);
    shift_i32(&kv->kv_lens, seq);
    shift_i32(&kv->kv_new_indptr, seq);
    shift_i32(&kv->block_table, (int64_t)seq * kv->block_table_stride);
    shift_i32(&kv->kv_indptr, seq);
    shift_i32(&kv->last_page_len, seq);
}

static void shift_multi_item(attn_multi_item *items, int32_t seq)
{
    shift_i32(&items->prefix_lens, seq);
    shift_i32(&items->max_item_len, seq);
    if (items->token_pos)
        items->token_pos += (int64_t)seq * items->token_pos_stride;
}

static void shift_state(attn_state_batch *state, int32_t seq, int32_t row)
{
    shift_i32(&state->slot, seq);
    shift_i32(&state->dst_slot, seq);
    shift_i32(&state->has_initial, seq);
    shift_i32(&state->snapshots, row);
}

/* Copy all that hangs on a batch into the slice, so that it can be shifted there. KV groups beyond
 * the capacity, and state groups, belong to layers that are not ours. */
static attn_status copy_batch(const attn_batch *from, batch_slice *slice, attn_error *error)
{
    attn_batch *to = &slice->batch;
    ATTN_UTIL_READ(to, from);
    if (to->num_decode_seqs < 0 || to->num_decode_seqs > to->num_seqs)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH,
                                    "num_decode_seqs %d: accepted 0..%d", to->num_decode_seqs,
                                    to->num_seqs);
    if (to->num_kv_groups > slice->kv_capacity)
        to->num_kv_groups = slice->kv_capacity;
    for (uint32_t g = 0; g < to->num_kv_groups; g++)
        ATTN_UTIL_READ(&slice->kv_groups[g], attn_at(to->kv_groups, g));
    to->kv_groups = slice->kv_groups;
    if (to->num_state_groups > slice->state_capacity)
        to->num_state_groups = slice->state_capacity;
    for (uint32_t g = 0; g < to->num_state_groups; g++)
        ATTN_UTIL_READ(&slice->state_groups[g], attn_at(to->state_groups, g));
    to->state_groups = to->num_state_groups > 0 ? slice->state_groups : NULL;
    if (to->mask) {
        ATTN_UTIL_READ(&slice->mask, to->mask);
        to->mask = &slice->mask;
    }
    if (to->multi_item) {
        ATTN_UTIL_READ(&slice->multi_item, to->multi_item);
        to->multi_item = &slice->multi_item;
    }
    /* A hint whose runs need not end where the slice does; and scalars that count the whole batch,
     * which a graph would read, but a split batch is never captured. */
    to->shared_prefix = NULL;
    to->num_prefix_levels = 0;
    to->num_real_seqs_device = NULL;
    to->num_real_tokens_device = NULL;
    return ATTN_OK;
}

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t max_i32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* Rows of no sequence, which come last. */
static int32_t num_spare_rows(const attn_batch *mixed, const int32_t *q_indptr)
{
    return q_indptr ? mixed->num_tokens - (q_indptr[mixed->num_seqs] - q_indptr[0]) : 0;
}

/* Sequences that are decoded. Where there are spare rows one sequence stays at least: see below. */
static int32_t num_decoded(const attn_batch *mixed, const int32_t *q_indptr)
{
    int32_t decode = mixed->num_decode_seqs;
    return num_spare_rows(mixed, q_indptr) > 0 && decode == mixed->num_seqs ? max_i32(0, decode - 1)
                                                                            : decode;
}

/* Do they come before others? */
static int decodes_first(const attn_batch *mixed)
{
    return mixed->first_decode_seq == 0 && mixed->num_decode_seqs < mixed->num_seqs;
}

/* Leave `count` sequences from `seq` on. `row` is 0 where rows keep their numbers, else the first
 * of them becomes row 0. */
static void take_sequences(batch_slice *slice, int32_t seq, int32_t count, int32_t row)
{
    attn_batch *batch = &slice->batch;
    slice->first_seq = seq;
    slice->all_seqs = batch->num_seqs;
    batch->num_seqs = count;
    batch->num_real_seqs = min_i32(max_i32(0, batch->num_real_seqs - seq), count);
    batch->num_decode_seqs = batch->first_decode_seq = batch->decode_q_len = 0;
    shift_i32(&batch->seq_lens, seq);
    shift_i32(&batch->prefix_lens, seq);
    shift_i32(&batch->q_indptr, seq);
    shift_i32(&batch->positions, row);
    shift_i32(&batch->req_pool_indices, seq);
    for (uint32_t g = 0; g < batch->num_kv_groups; g++)
        shift_kv_group(&slice->kv_groups[g], seq, row);
    if (batch->mask)
        shift_i64(&slice->mask.indptr, seq);
    if (batch->multi_item)
        shift_multi_item(&slice->multi_item, seq);
    for (uint32_t g = 0; g < batch->num_state_groups; g++)
        shift_state(&slice->state_groups[g], seq, row);
}

/* Spare rows are padding of the extend rows' batch, as the rows between are until they are decoded
 * after it: a DECODE batch has a sequence for each row. */
attn_status slice_extend_rows(const attn_batch *mixed, const int32_t *q_indptr, batch_slice *slice,
                              attn_error *error)
{
    attn_status status = copy_batch(mixed, slice, error);
    if (status != ATTN_OK)
        return status;
    attn_batch *batch = &slice->batch;
    int32_t decode = num_decoded(mixed, q_indptr), seq = decodes_first(mixed) ? decode : 0;
    int32_t count = mixed->num_seqs - decode, rows = mixed->num_tokens - mixed->num_decode_seqs;
    if (q_indptr)
        rows = q_indptr[seq + count] - q_indptr[seq];
    take_sequences(slice, seq, count, 0);
    batch->mode = ATTN_MODE_EXTEND;
    batch->num_tokens = rows;
    batch->num_real_tokens = min_i32(max_i32(0, mixed->num_real_tokens - seq), rows);
    if (num_spare_rows(mixed, q_indptr) > 0)
        batch->num_tokens = mixed->num_tokens - seq;
    return ATTN_OK;
}

attn_status slice_decode_rows(const attn_batch *mixed, const int32_t *q_indptr, batch_slice *slice,
                              int32_t *first_row, attn_error *error)
{
    attn_status status = copy_batch(mixed, slice, error);
    if (status != ATTN_OK)
        return status;
    attn_batch *batch = &slice->batch;
    int32_t decode = num_decoded(mixed, q_indptr);
    int32_t seq = decodes_first(mixed) ? 0 : mixed->num_seqs - decode;
    int32_t row = q_indptr ? q_indptr[seq] : seq == 0 ? 0 : mixed->num_tokens - decode;
    take_sequences(slice, seq, decode, row);
    batch->mode = ATTN_MODE_DECODE;
    batch->num_tokens = decode;
    batch->num_real_tokens = batch->num_real_seqs;
    batch->max_q_len = 1;
    memset(&batch->q_indptr, 0, sizeof batch->q_indptr); /* DECODE reads none */
    *first_row = row;
    return ATTN_OK;
}

/* ---- Layers ---------------------------------------------------------------------------------- */

uint32_t slice_needs(const attn_layer_group *group)
{
    uint32_t needs = group->kv_group >= 0 && group->kind != ATTN_KIND_LINEAR ? SLICE_KV : 0;
    if (group->kind == ATTN_KIND_LINEAR)
        needs |= SLICE_STATE;
    if (group->kind == ATTN_KIND_SPARSE)
        needs |= SLICE_SPARSE;
    return needs;
}

void slice_groups_add(slice_groups *groups, const attn_layer_group *group)
{
    uint32_t kv = group->kv_group >= 0 ? (uint32_t)group->kv_group + 1 : 0;
    uint32_t state = group->state_group >= 0 ? (uint32_t)group->state_group + 1 : 0;
    groups->num_kv_groups = kv > groups->num_kv_groups ? kv : groups->num_kv_groups;
    groups->num_state_groups = state > groups->num_state_groups ? state : groups->num_state_groups;
}

void slice_layers(const attn_batch *batch, uint32_t needs, slice_groups groups, attn_batch *slice)
{
    ATTN_UTIL_READ(slice, batch);
    if (!(needs & SLICE_KV))
        groups.num_kv_groups = 0;
    if (!(needs & SLICE_STATE))
        groups.num_state_groups = 0;
    if (slice->num_kv_groups > groups.num_kv_groups)
        slice->num_kv_groups = groups.num_kv_groups;
    if (slice->num_kv_groups == 0)
        slice->kv_groups = NULL;
    if (slice->num_state_groups > groups.num_state_groups)
        slice->num_state_groups = groups.num_state_groups;
    if (slice->num_state_groups == 0)
        slice->state_groups = NULL;
    if (!(needs & SLICE_SPARSE))
        slice->sparse = NULL;
}

/* ---- Operands -------------------------------------------------------------------------------- */

/* Roles with one row for each query, and roles with one row for each new key. */
static const uint32_t query_roles =
    1u << ATTN_ROLE_Q | 1u << ATTN_ROLE_OUT | 1u << ATTN_ROLE_LSE | 1u << ATTN_ROLE_Q_NOPE |
    1u << ATTN_ROLE_Q_PE | 1u << ATTN_ROLE_MIXED_QKV | 1u << ATTN_ROLE_GATE_A |
    1u << ATTN_ROLE_GATE_B | 1u << ATTN_ROLE_GATE_Z | 1u << ATTN_ROLE_SPARSE_INDICES |
    1u << ATTN_ROLE_SPARSE_COUNT | 1u << ATTN_ROLE_INDEX_Q | 1u << ATTN_ROLE_INDEX_WEIGHTS |
    1u << ATTN_ROLE_INDEX_LOGITS;
static const uint32_t new_key_roles = 1u << ATTN_ROLE_K | 1u << ATTN_ROLE_V | 1u << ATTN_ROLE_C_KV |
                                      1u << ATTN_ROLE_K_PE | 1u << ATTN_ROLE_INDEX_K;

static void shift_rows(const attn_tensor *from, int32_t first_row, attn_tensor *to)
{
    ATTN_UTIL_READ(to, from);
    uint64_t bytes =
        (uint64_t)first_row * (uint64_t)from->strides[0] * attn_dtype_size(from->dtype);
    to->byte_offset += bytes;
    to->shape[0] = from->shape[0] > first_row ? from->shape[0] - first_row : 0;
    /* The row stride may be any multiple of the element; alignments are powers of two. */
    while (to->alignment > 1 && (bytes & (to->alignment - 1)) != 0)
        to->alignment /= 2;
}

void slice_args(const attn_forward_args *args, int32_t first_row, int new_rows_follow_queries,
                args_slice *slice)
{
    uint32_t shifted = query_roles | (new_rows_follow_queries ? new_key_roles : 0u);
    ATTN_UTIL_READ(&slice->args, args);
    uint32_t count = args->num_operands < ATTN_ROLE_COUNT ? args->num_operands : ATTN_ROLE_COUNT;
    memset(slice->operands, 0, sizeof slice->operands);
    if (count > 0)
        memcpy(slice->operands, args->operands, count * sizeof *slice->operands);
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if (shifted >> role & 1u && slice->operands[role]) {
            shift_rows(slice->operands[role], first_row, &slice->tensors[role]);
            slice->operands[role] = &slice->tensors[role];
        }
    slice->args.operands = slice->operands;
    slice->args.num_operands = ATTN_ROLE_COUNT;
}

/* ---- Scales ---------------------------------------------------------------------------------- */

static int is_by_sequence(const attn_forward_args *args, uint32_t role)
{
    const attn_scale *scale = attn_operand_scale(args, role);
    return scale && scale->granularity == ATTN_SCALE_PER_SEQ_HEAD;
}

int slice_has_sequence_scales(const attn_forward_args *args)
{
    for (uint32_t role = 0; role < args->num_scales && role < ATTN_ROLE_COUNT; role++)
        if (is_by_sequence(args, role))
            return 1;
    return 0;
}

void slice_scales(const attn_forward_args *args, const batch_slice *part, args_slice *slice)
{
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        attn_scale *to = &slice->scale[role];
        slice->scales[role] = attn_operand_scale(args, role);
        if (!is_by_sequence(args, role))
            continue;
        ATTN_UTIL_READ(to, slice->scales[role]);
        int64_t heads = part->all_seqs > 0 ? to->count / (uint32_t)part->all_seqs : 0;
        to->host += to->host ? part->first_seq * heads : 0;
        to->device += to->device ? part->first_seq * heads : 0;
        to->count = (uint32_t)(part->batch.num_seqs * heads);
        slice->scales[role] = to;
    }
    slice->args.scales = slice->scales;
    slice->args.num_scales = ATTN_ROLE_COUNT;
}
