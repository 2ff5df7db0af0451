/* SPDX-License-Identifier: Apache-2.0 */
#include "host/forward_batch.h"

#include <stdlib.h>
#include <string.h>

#include "host/error.h"

static int32_t pages_of(int64_t tokens, int32_t page_size)
{
    return (int32_t)((tokens + page_size - 1) / page_size); /* kv_len <= INT32_MAX: check_bounds */
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Cut `count` elements off the block; with base NULL only the size is counted. */
static void *carve(char *base, size_t *used, size_t count, size_t size)
{
    void *at = base ? base + *used : NULL;
    *used = (*used + count * size + 63) / 64 * 64;
    return at;
}

/* One path for both passes, so that what is counted and what is used cannot differ. */
static size_t lay_out(struct forward_batch *b, char *base)
{
    const struct forward_batch_params *p = &b->params;
    size_t used = 0, seqs = (size_t)p->max_seqs, tokens = (size_t)p->max_tokens;
    size_t table = p->index_forms & ATTN_INDEX_BLOCK_TABLE
                       ? seqs * (size_t)pages_of(p->max_kv_len, p->page_size)
                       : 0;
    size_t pages =
        p->index_forms & ATTN_INDEX_CSR ? (size_t)(p->max_kv_tokens / p->page_size) + seqs : 0;
    b->out_cache_loc = carve(base, &used, tokens, sizeof *b->out_cache_loc);
    b->seq_lens = carve(base, &used, seqs, sizeof *b->seq_lens);
    b->prefix_lens = carve(base, &used, seqs, sizeof *b->prefix_lens);
    b->q_indptr = carve(base, &used, seqs + 1, sizeof *b->q_indptr);
    b->req_pool_indices = carve(base, &used, seqs, sizeof *b->req_pool_indices);
    b->kv_indptr = carve(base, &used, seqs + 1, sizeof *b->kv_indptr);
    b->last_page_len = carve(base, &used, seqs, sizeof *b->last_page_len);
    b->block_table = carve(base, &used, table, sizeof *b->block_table);
    b->kv_indices = carve(base, &used, pages, sizeof *b->kv_indices);
    return used;
}

attn_status forward_batch_init(struct forward_batch *batch,
                               const struct forward_batch_params *params, attn_error *error)
{
    memset(batch, 0, sizeof *batch);
    batch->params = *params;
    size_t bytes = lay_out(batch, NULL);
    batch->memory = calloc(1, bytes);
    if (!batch->memory)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                         "batches of %d sequences and %d tokens: %zu bytes of index arrays",
                         params->max_seqs, params->max_tokens, bytes);
    lay_out(batch, batch->memory);
    return ATTN_OK;
}

void forward_batch_finish(struct forward_batch *batch)
{
    free(batch->memory);
    memset(batch, 0, sizeof *batch);
}

/* ---- Filling --------------------------------------------------------------------------------- */

static attn_i32_array both(const int32_t *array)
{
    return (attn_i32_array){array, array};
}

static int64_t kv_len(const struct batch_sequence *sequence)
{
    return (int64_t)sequence->prefix_len + sequence->num_new;
}

static attn_status check_bounds(const struct forward_batch *b, const struct batch_step *step,
                                attn_error *error)
{
    const struct forward_batch_params *p = &b->params;
    int64_t tokens = 0, pages = 0, longest = 0;
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const struct batch_sequence *sequence = &step->sequences[s];
        int64_t keys = kv_len(sequence);
        tokens += sequence->num_new;
        pages += (keys + p->page_size - 1) / p->page_size;
        longest = keys > longest ? keys : longest;
    }
    if (step->num_sequences <= p->max_seqs && tokens <= p->max_tokens && longest <= p->max_kv_len &&
        pages * p->page_size <= p->max_kv_tokens)
        return ATTN_OK;
    return host_fail(error, ATTN_INTERNAL,
                     "step of %d sequences, %lld tokens, %lld pages, %lld keys: the bounds are %d, "
                     "%d, %lld, %d",
                     step->num_sequences, (long long)tokens, (long long)pages, (long long)longest,
                     p->max_seqs, p->max_tokens, (long long)(p->max_kv_tokens / p->page_size),
                     p->max_kv_len);
}

/* Pages of each sequence, from the slots of their first tokens. */
static void fill_pages(struct forward_batch *b, const struct batch_step *step)
{
    int32_t page_size = b->params.page_size, total = 0;
    int32_t stride = pages_of(b->params.max_kv_len, page_size);
    uint32_t forms = b->params.index_forms;
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const struct batch_sequence *sequence = &step->sequences[s];
        const int32_t *row =
            step->req_to_token + (int64_t)sequence->table_row * step->req_to_token_stride;
        int32_t pages = pages_of(kv_len(sequence), page_size);
        b->kv_indptr[s] = total;
        for (int32_t page = 0; page < pages; page++) {
            int32_t id = row[(int64_t)page * page_size] / page_size;
            if (forms & ATTN_INDEX_BLOCK_TABLE)
                b->block_table[(int64_t)s * stride + page] = id;
            if (forms & ATTN_INDEX_CSR)
                b->kv_indices[total + page] = id;
        }
        total += pages;
        b->last_page_len[s] =
            pages == 0 ? 0 : (int32_t)(kv_len(sequence) - (int64_t)(pages - 1) * page_size);
    }
    b->kv_indptr[step->num_sequences] = total;
}

static void fill_sequences(struct forward_batch *b, const struct batch_step *step)
{
    int32_t row = 0;
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const struct batch_sequence *sequence = &step->sequences[s];
        b->seq_lens[s] = (int32_t)kv_len(sequence);
        b->prefix_lens[s] = sequence->prefix_len;
        b->req_pool_indices[s] = sequence->table_row;
        b->q_indptr[s] = row;
        row += sequence->num_new;
        attn_batch *batch = &b->batch;
        batch->max_q_len =
            sequence->num_new > batch->max_q_len ? sequence->num_new : batch->max_q_len;
        batch->max_kv_len = b->seq_lens[s] > batch->max_kv_len ? b->seq_lens[s] : batch->max_kv_len;
    }
    b->q_indptr[step->num_sequences] = row;
    b->batch.num_tokens = b->batch.num_real_tokens = row;
    if (row > 0)
        memcpy(b->out_cache_loc, step->slots, (size_t)row * sizeof *b->out_cache_loc);
}

static void fill_kv_group(struct forward_batch *b, const struct batch_step *step)
{
    uint32_t forms = b->params.index_forms;
    attn_kv_batch *kv = &b->kv;
    memset(kv, 0, sizeof *kv);
    kv->struct_size = sizeof *kv;
    kv->index_forms = forms;
    kv->page_size = b->params.page_size;
    kv->kv_lens = both(b->seq_lens);
    kv->out_cache_loc = (attn_i64_array){b->out_cache_loc, b->out_cache_loc};
    if (forms & (ATTN_INDEX_BLOCK_TABLE | ATTN_INDEX_CSR))
        fill_pages(b, step);
    if (forms & ATTN_INDEX_REQ_TO_TOKEN) {
        kv->req_to_token = both(step->req_to_token);
        kv->req_to_token_stride = step->req_to_token_stride;
    }
    if (forms & ATTN_INDEX_BLOCK_TABLE) {
        kv->block_table = both(b->block_table);
        kv->block_table_stride = pages_of(b->params.max_kv_len, b->params.page_size);
    }
    if (forms & ATTN_INDEX_CSR) {
        kv->kv_indptr = both(b->kv_indptr);
        kv->kv_indices = both(b->kv_indices);
        kv->last_page_len = both(b->last_page_len);
    }
}

attn_status forward_batch_build(struct forward_batch *b, const struct batch_step *step,
                                attn_error *error)
{
    attn_status status = check_bounds(b, step, error);
    if (status != ATTN_OK)
        return status;
    memset(&b->batch, 0, sizeof b->batch);
    b->batch.struct_size = sizeof b->batch;
    b->batch.mode = step->mode;
    b->batch.num_seqs = b->batch.num_real_seqs = step->num_sequences;
    b->batch.num_decode_seqs = step->mode == ATTN_MODE_MIXED ? step->num_decode : 0;
    b->batch.seq_lens = both(b->seq_lens);
    b->batch.prefix_lens = both(b->prefix_lens);
    b->batch.q_indptr = both(b->q_indptr);
    b->batch.req_pool_indices = both(b->req_pool_indices);
    fill_sequences(b, step);
    fill_kv_group(b, step);
    b->batch.num_kv_groups = 1;
    b->batch.kv_groups = &b->kv;
    return ATTN_OK;
}
