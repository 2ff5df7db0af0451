/* SPDX-License-Identifier: Apache-2.0
 *
 * slots.c: rows and keys of a sequence, and their slots in the cache.
 */
#include "host/reference/call.h"

#include "host/base/error.h"

/* ---- Rows ------------------------------------------------------------------------------------ */

int32_t reference_num_real_seqs(const attn_batch *batch)
{
    return batch->num_real_seqs_device ? *batch->num_real_seqs_device : batch->num_real_seqs;
}

static int32_t num_real_tokens(const attn_batch *batch)
{
    return batch->num_real_tokens_device ? *batch->num_real_tokens_device : batch->num_real_tokens;
}

int reference_row_is_real(const reference_call *call, const reference_sequence *sequence, int64_t t)
{
    const int32_t *indptr = reference_i32(&call->batch->q_indptr);
    int64_t first = call->batch->mode == ATTN_MODE_DECODE ? 0 : indptr[0];
    return sequence->real && sequence->first_row + t - first < num_real_tokens(call->batch);
}

static attn_status missing(const char *array, attn_error *error)
{
    return host_fail(error, ATTN_INVALID_ARGUMENT, "the batch has no %s", array);
}

static attn_status find_decode_row(reference_sequence *sequence, const reference_call *call,
                                   attn_error *error)
{
    const int32_t *seq_lens = reference_i32(&call->batch->seq_lens);
    if (!seq_lens)
        return missing("seq_lens", error);
    int64_t seq_len = seq_lens[sequence->index];
    sequence->first_row = sequence->index;
    sequence->num_rows = 1;
    sequence->first_position = seq_len > 0 ? seq_len - 1 : 0; /* padding may have length 0 */
    return ATTN_OK;
}

static attn_status find_extend_rows(reference_sequence *sequence, const reference_call *call,
                                    attn_error *error)
{
    const attn_batch *batch = call->batch;
    const int32_t *indptr = reference_i32(&batch->q_indptr);
    const int32_t *prefix_lens = reference_i32(&batch->prefix_lens);
    int32_t s = sequence->index;
    if (!indptr)
        return missing("q_indptr", error);
    if (!prefix_lens && call->group->attn_type == ATTN_TYPE_DECODER)
        return missing("prefix_lens", error);
    sequence->first_row = indptr[s];
    sequence->num_rows = (int64_t)indptr[s + 1] - indptr[s];
    sequence->first_position = prefix_lens ? prefix_lens[s] : 0;
    if (batch->mode == ATTN_MODE_MIXED && sequence->real && attn_is_decode_seq(batch, s) &&
        sequence->num_rows != batch->decode_q_len)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "sequence %d of a MIXED batch decodes %lld queries: accepted %d", s,
                         (long long)sequence->num_rows, batch->decode_q_len);
    return ATTN_OK;
}

/* ---- Keys ------------------------------------------------------------------------------------ */

static attn_status find_own_keys(reference_sequence *sequence, attn_error *error)
{
    if (sequence->first_position != 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "encoder-only sequence %d has a prefix of %lld tokens: accepted 0",
                         sequence->index, (long long)sequence->first_position);
    sequence->kv_len = sequence->num_new = sequence->num_rows;
    sequence->first_new_row = sequence->first_row;
    return ATTN_OK;
}

static attn_status find_cached_keys(reference_sequence *sequence, const reference_call *call,
                                    attn_error *error)
{
    const int32_t *kv_lens = reference_i32(&call->kv->kv_lens);
    const int32_t *new_indptr = reference_i32(&call->kv->kv_new_indptr);
    int32_t s = sequence->index;
    if (!kv_lens)
        kv_lens = reference_i32(&call->batch->seq_lens);
    if (!kv_lens)
        return missing("seq_lens", error);
    sequence->kv_len = kv_lens[s];
    if (!call->has_new)
        return ATTN_OK;
    sequence->first_new_row = new_indptr ? new_indptr[s] : sequence->first_row;
    sequence->num_new =
        new_indptr ? (int64_t)new_indptr[s + 1] - new_indptr[s] : sequence->num_rows;
    return ATTN_OK;
}

static int within(int64_t first, int64_t count, int64_t all)
{
    return first >= 0 && count >= 0 && first + count <= all;
}

static attn_status check_counts(const reference_sequence *sequence, const reference_call *call,
                                attn_error *error)
{
    int32_t s = sequence->index;
    if (!within(sequence->first_row, sequence->num_rows, call->num_rows))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "sequence %d has row %lld and the %lld after it; q has %lld rows", s,
                         (long long)sequence->first_row, (long long)sequence->num_rows - 1,
                         (long long)call->num_rows);
    if (call->has_new && !within(sequence->first_new_row, sequence->num_new, call->num_new))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "sequence %d has new key %lld and the %lld after it; %lld are given", s,
                         (long long)sequence->first_new_row, (long long)sequence->num_new - 1,
                         (long long)call->num_new);
    /* Padding may have a query and no key: its fill value may be 0. */
    if (sequence->kv_len < 0 || (sequence->real && sequence->num_new > sequence->kv_len))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "sequence %d has %lld keys, %lld of them new", s,
                         (long long)sequence->kv_len, (long long)sequence->num_new);
    int bounded = reference_i32(&call->batch->positions) || call->mask_kind == ATTN_MASK_QLEN;
    if (sequence->real && bounded &&
        sequence->kv_len > sequence->first_position + sequence->num_rows)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "sequence %d has %lld keys: its mask or positions are for %lld", s,
                         (long long)sequence->kv_len,
                         (long long)(sequence->first_position + sequence->num_rows));
    return ATTN_OK;
}

attn_status reference_sequence_init(reference_sequence *sequence, const reference_call *call,
                                    int32_t s, attn_error *error)
{
    *sequence = (reference_sequence){.index = s, .real = s < reference_num_real_seqs(call->batch)};
    attn_status status = call->batch->mode == ATTN_MODE_DECODE
                             ? find_decode_row(sequence, call, error)
                             : find_extend_rows(sequence, call, error);
    if (status == ATTN_OK)
        status =
            call->kv ? find_cached_keys(sequence, call, error) : find_own_keys(sequence, error);
    return status == ATTN_OK ? check_counts(sequence, call, error) : status;
}

/* ---- Slots ----------------------------------------------------------------------------------- */

int64_t reference_slot(const reference_call *call, const reference_sequence *sequence, int64_t j)
{
    const attn_kv_batch *kv = call->kv;
    int64_t s = sequence->index, page = j / kv->page_size, offset = j % kv->page_size;
    if (call->index_form == ATTN_INDEX_REQ_TO_TOKEN) {
        int64_t row = reference_i32(&call->batch->req_pool_indices)[s];
        return reference_i32(&kv->req_to_token)[row * kv->req_to_token_stride + j];
    }
    int64_t entry = call->index_form == ATTN_INDEX_BLOCK_TABLE
                        ? reference_i32(&kv->block_table)[s * kv->block_table_stride + page]
                        : reference_i32(&kv->kv_indices)[reference_i32(&kv->kv_indptr)[s] + page];
    return entry * kv->page_size + offset;
}

int64_t reference_new_slot(const reference_call *call, int64_t new_row)
{
    return reference_i64(&call->kv->out_cache_loc)[new_row];
}

char *reference_slot_vector(const reference_call *call, const attn_tensor *cache, int64_t slot,
                            int32_t kv_head)
{
    int64_t page = slot / call->kv->page_size, offset = slot % call->kv->page_size;
    int64_t index[] = {page, call->hnd ? kv_head : offset, call->hnd ? offset : kv_head};
    return reference_element(cache, index, 3);
}

static attn_status check_form(const reference_call *call, attn_error *error)
{
    const attn_kv_batch *kv = call->kv;
    switch (call->index_form) {
    case ATTN_INDEX_REQ_TO_TOKEN:
        if (!reference_i32(&kv->req_to_token) || !reference_i32(&call->batch->req_pool_indices))
            return missing("req_to_token or req_pool_indices", error);
        return ATTN_OK;
    case ATTN_INDEX_BLOCK_TABLE:
        return reference_i32(&kv->block_table) ? ATTN_OK : missing("block_table", error);
    case ATTN_INDEX_CSR:
        if (!reference_i32(&kv->kv_indptr) || !reference_i32(&kv->kv_indices))
            return missing("kv_indptr or kv_indices", error);
        return ATTN_OK;
    default:
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "index form %u: accepted one of req_to_token, block_table, csr",
                         call->index_form);
    }
}

/* A list of pages must be as long as the keys it is for. */
static attn_status check_csr(const reference_call *call, const reference_sequence *sequence,
                             attn_error *error)
{
    const attn_kv_batch *kv = call->kv;
    const int32_t *indptr = reference_i32(&kv->kv_indptr);
    const int32_t *last = reference_i32(&kv->last_page_len);
    int32_t s = sequence->index;
    int64_t pages = (int64_t)indptr[s + 1] - indptr[s];
    int64_t keys = pages == 0 ? 0 : (pages - 1) * kv->page_size + (last ? last[s] : kv->page_size);
    if (last ? keys != sequence->kv_len : keys < sequence->kv_len)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "kv_indptr and last_page_len of sequence %d make %lld keys: accepted %lld",
                         s, (long long)keys, (long long)sequence->kv_len);
    return ATTN_OK;
}

attn_status reference_check_slots(const reference_call *call, const reference_sequence *sequence,
                                  attn_error *error)
{
    attn_status status = check_form(call, error);
    if (status == ATTN_OK && call->index_form == ATTN_INDEX_CSR)
        status = check_csr(call, sequence, error);
    if (status != ATTN_OK)
        return status;
    int64_t first_new = sequence->kv_len - sequence->num_new;
    for (int64_t j = 0; j < sequence->kv_len; j++) {
        int64_t slot = reference_slot(call, sequence, j);
        if (slot < 0 || slot >= call->num_slots)
            return host_fail(error, ATTN_INVALID_ARGUMENT,
                             "key %lld of sequence %d is in slot %lld: accepted 0..%lld",
                             (long long)j, sequence->index, (long long)slot,
                             (long long)call->num_slots - 1);
        if (!call->save_kv || j < first_new)
            continue;
        /* Page 0, and no slot at all, stand for keys that no query sees. */
        int64_t saved = reference_new_slot(call, sequence->first_new_row + j - first_new);
        if (saved >= call->kv->page_size && slot >= call->kv->page_size && saved != slot)
            return host_fail(
                error, ATTN_INVALID_ARGUMENT,
                "new key %lld of sequence %d is saved to slot %lld, but read from slot %lld",
                (long long)j, sequence->index, (long long)saved, (long long)slot);
    }
    return ATTN_OK;
}
