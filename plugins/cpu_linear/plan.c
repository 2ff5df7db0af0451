/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.c: a batch, checked against the bounds: rows and slots of its sequences, in each state
 * group. Slots are copied, since host arrays do not outlive the call.
 */
#include "cpu_linear.h"

#include "attn_plugin_util.h"

#include <string.h>

#define FAIL(error, ...)                                                                           \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH, "" __VA_ARGS__)

/* The parts of a batch that are read, in structs of full size. */
typedef struct plan_source {
    attn_batch batch;
    const int32_t *indptr;      /* NULL in DECODE */
    const int32_t *seq_lens;    /* NULL = not given: nothing depends on them */
    const int32_t *slot;        /* of a state group, as the following */
    const int32_t *dst_slot;    /* NULL = slot */
    const int32_t *has_initial; /* NULL = all 1 */
    const int32_t *snapshots;   /* NULL = none */
} plan_source;

/* ---- The batch as a whole -------------------------------------------------------------------- */

static attn_status check_batch(const attn_metadata *metadata, const attn_batch *batch,
                               attn_error *error)
{
    attn_status status = attn_util_check_mode(&metadata->bounds, batch->mode, error);
    if (status != ATTN_OK || batch->mode == ATTN_MODE_IDLE)
        return status;
    status = attn_util_check_counts(&metadata->bounds, batch, error);
    if (status == ATTN_OK && (batch->num_real_seqs < 0 || batch->num_real_seqs > batch->num_seqs))
        status =
            FAIL(error, "num_real_seqs %d: accepted 0..%d", batch->num_real_seqs, batch->num_seqs);
    return status;
}

static attn_status check_parts(const attn_batch *batch, attn_error *error)
{
    if (batch->mask && batch->mask->kind != ATTN_MASK_LAYER)
        return FAIL(error, "mask kind %u: accepted 0", batch->mask->kind);
    if (attn_util_i32(&batch->positions) || batch->multi_item)
        return FAIL(error, "positions or multi_item are given: accepted neither");
    if (batch->speculation && batch->speculation->top_k > 1)
        return FAIL(error, "speculation.top_k %d: accepted 1: a recurrence has no branches",
                    batch->speculation->top_k);
    return ATTN_OK;
}

static attn_status find_arrays(plan_source *from, attn_error *error)
{
    const attn_batch *batch = &from->batch;
    from->indptr = batch->mode == ATTN_MODE_DECODE ? NULL : attn_util_i32(&batch->q_indptr);
    from->seq_lens = attn_util_i32(&batch->seq_lens);
    if (batch->num_seqs > 0 && batch->mode != ATTN_MODE_DECODE && !from->indptr)
        return FAIL(error, "q_indptr is missing");
    if (batch->mode == ATTN_MODE_DECODE && batch->num_tokens < batch->num_seqs)
        return FAIL(error, "num_tokens %d: accepted num_seqs, %d, in DECODE", batch->num_tokens,
                    batch->num_seqs);
    return ATTN_OK;
}

/* The arrays of a state group. */
static attn_status find_slot_arrays(plan_source *from, int32_t state_group, attn_error *error)
{
    const attn_batch *batch = &from->batch;
    attn_state_batch state = {0};
    if (batch->num_seqs == 0)
        return ATTN_OK;
    if (state_group < 0 || (uint32_t)state_group >= batch->num_state_groups || !batch->state_groups)
        return FAIL(error, "state_group %d: the batch has %u of them", state_group,
                    batch->num_state_groups);
    ATTN_UTIL_READ(&state, attn_at(batch->state_groups, (uint32_t)state_group));
    from->slot = attn_util_i32(&state.slot);
    from->dst_slot = attn_util_i32(&state.dst_slot);
    from->has_initial = attn_util_i32(&state.has_initial);
    from->snapshots = attn_util_i32(&state.snapshots);
    return from->slot ? ATTN_OK : FAIL(error, "slot of state group %d is missing", state_group);
}

/* ---- Sequences ------------------------------------------------------------------------------- */

static attn_status find_rows(attn_metadata *metadata, const plan_source *from, int32_t s,
                             linear_sequence *sequence, attn_error *error)
{
    sequence->first_row = from->indptr ? from->indptr[s] : s;
    sequence->num_rows = from->indptr ? from->indptr[s + 1] - from->indptr[s] : 1;
    int64_t end = (int64_t)sequence->first_row + sequence->num_rows;
    if (sequence->num_rows < 0 || sequence->first_row < metadata->first_row ||
        end > metadata->row_end)
        return FAIL(error, "sequence %d has rows %d..%lld: accepted within %d..%d", s,
                    sequence->first_row, (long long)end - 1, metadata->first_row,
                    metadata->row_end - 1);
    return attn_util_check_count("queries of a sequence", sequence->num_rows,
                                 metadata->bounds.max_q_len, ATTN_FIELD_MAX_Q_LEN, error);
}

static attn_status find_slots(const attn_metadata *metadata, linear_slots *slots,
                              const plan_source *from, int32_t s, linear_sequence *sequence,
                              attn_error *error)
{
    int32_t most = from->slot[s], least = from->slot[s];
    sequence->slot = !from->has_initial || from->has_initial[s] ? from->slot[s] : 0;
    sequence->dst = from->dst_slot ? from->dst_slot[s] : from->slot[s];
    least = sequence->dst < least ? sequence->dst : least;
    most = sequence->dst > most ? sequence->dst : most;
    for (int32_t t = 0; t < sequence->num_rows; t++) {
        int32_t row = sequence->first_row + t;
        int32_t slot = from->snapshots ? from->snapshots[row] : -1;
        slots->snapshots[row - metadata->first_row] = slot > 0 ? slot : 0;
        sequence->snapshots += slot > 0;
        most = slot > most ? slot : most;
    }
    if (least < 0)
        return FAIL(error, "state slot %d of sequence %d: accepted 0 and more", least, s);
    slots->most_slot = most > slots->most_slot ? most : slots->most_slot;
    return ATTN_OK;
}

/* Lengths do not affect the plan, but must obey the bounds. */
static attn_status check_lengths(const attn_metadata *metadata, const plan_source *from,
                                 attn_error *error)
{
    const attn_bounds *bounds = &metadata->bounds;
    int64_t longest = 0, all = 0;
    for (int32_t s = 0; from->seq_lens && s < from->batch.num_seqs; s++) {
        longest = from->seq_lens[s] > longest ? from->seq_lens[s] : longest;
        all += from->seq_lens[s];
    }
    attn_status status = ATTN_OK;
    if (bounds->max_kv_len > 0)
        status = attn_util_check_count("tokens of a sequence", longest, bounds->max_kv_len,
                                       ATTN_FIELD_MAX_KV_LEN, error);
    if (status == ATTN_OK && bounds->max_kv_tokens > 0)
        status = attn_util_check_count("tokens of all sequences", all, bounds->max_kv_tokens,
                                       ATTN_FIELD_MAX_KV_TOKENS, error);
    return status;
}

static attn_status find_sequences(attn_metadata *metadata, linear_slots *slots,
                                  const plan_source *from, attn_error *error)
{
    attn_status status = ATTN_OK;
    slots->most_slot = 0;
    for (int32_t s = 0; s < metadata->num_seqs && status == ATTN_OK; s++) {
        linear_sequence *sequence = &slots->sequences[s];
        *sequence = (linear_sequence){0};
        status = find_rows(metadata, from, s, sequence, error);
        if (status == ATTN_OK)
            status = find_slots(metadata, slots, from, s, sequence, error);
        if (sequence->num_rows > 0)
            metadata->pad_first = sequence->first_row + sequence->num_rows;
    }
    return status;
}

static attn_status find_state_groups(attn_metadata *metadata, plan_source *from, attn_error *error)
{
    const attn_instance *instance = metadata->instance;
    attn_status status = ATTN_OK;
    metadata->first_row = from->indptr ? from->indptr[0] : 0;
    metadata->row_end = metadata->pad_first = metadata->first_row;
    metadata->row_end += from->batch.num_tokens;
    metadata->num_seqs = from->batch.num_real_seqs;
    for (uint32_t g = 0; g < instance->num_state_groups && status == ATTN_OK; g++) {
        status = find_slot_arrays(from, instance->state_groups[g], error);
        if (status == ATTN_OK)
            status = find_sequences(metadata, &metadata->slots[g], from, error);
    }
    return status;
}

attn_status linear_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                         attn_stream stream, attn_error *error)
{
    (void)stream;
    plan_source from = {0};
    if (!metadata || !batch)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or batch is NULL");
    metadata->planned = 0;
    ATTN_UTIL_READ(&from.batch, batch);
    if (from.batch.num_real_seqs_device)
        from.batch.num_real_seqs = *from.batch.num_real_seqs_device;
    attn_status status = check_batch(metadata, &from.batch, error);
    if (status == ATTN_OK && from.batch.mode != ATTN_MODE_IDLE) {
        status = check_parts(&from.batch, error);
        if (status == ATTN_OK)
            status = find_arrays(&from, error);
        if (status == ATTN_OK)
            status = check_lengths(metadata, &from, error);
        if (status == ATTN_OK)
            status = find_state_groups(metadata, &from, error);
    }
    metadata->mode = from.batch.mode;
    metadata->planned = status == ATTN_OK;
    return status;
}
