/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_batch.c: filling of a batch's arrays, and their upload.
 */
#include "host/run/forward_batch.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/round.h"

enum { ALIGNMENT = 256 };

static int32_t pages_of(int64_t tokens, int32_t page_size)
{
    return (int32_t)units_for(tokens, page_size); /* kv_len <= INT32_MAX: check_bounds */
}

static bool on_cpu(const struct forward_batch *b)
{
    return b->params.device->type == ATTN_DEVICE_CPU;
}

static bool is_of_encoder(const struct forward_batch_params *p, uint32_t g)
{
    return p->kv_pools[g] == SCHEDULER_ENCODER;
}

static bool has_encoder(const struct forward_batch_params *p)
{
    bool found = false;
    for (uint32_t g = 0; g < p->num_kv_groups; g++)
        found |= is_of_encoder(p, g);
    return found;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Cut `count` elements off the block; with base NULL only the size is counted. */
static void *carve(char *base, uint64_t *used, uint64_t count, size_t size)
{
    void *at = base ? base + *used : NULL;
    *used = (*used + count * size + 63) / 64 * 64;
    return at;
}

/* Bytes of the mask of a verification's rows, each of which has a bit for each of them. */
static int32_t mask_bytes(const struct forward_batch_params *p)
{
    return (p->drafts.tokens * p->drafts.tokens + 7) / 8;
}

static void lay_out_encoder(const struct forward_batch_params *p, char *base, uint64_t *used,
                            struct batch_encoder *a)
{
    uint64_t seqs = (uint64_t)p->max_seqs;
    a->kv_lens = carve(base, used, seqs, sizeof *a->kv_lens);
    a->new_indptr = carve(base, used, seqs + 1, sizeof *a->new_indptr);
    a->kv_indptr = carve(base, used, seqs + 1, sizeof *a->kv_indptr);
    a->last_page_len = carve(base, used, seqs, sizeof *a->last_page_len);
}

/* Arrays that every batch uploads whole: one entry for each sequence, or fewer. */
static uint64_t lay_out_sequences(const struct forward_batch_params *p, char *base,
                                  struct batch_arrays *a)
{
    uint64_t used = 0, seqs = (uint64_t)p->max_seqs;
    a->watch = carve(base, &used, 1, sizeof *a->watch);
    a->num_real_seqs = carve(base, &used, 1, sizeof *a->num_real_seqs);
    a->num_real_tokens = carve(base, &used, 1, sizeof *a->num_real_tokens);
    a->seq_lens = carve(base, &used, seqs, sizeof *a->seq_lens);
    a->prefix_lens = carve(base, &used, seqs, sizeof *a->prefix_lens);
    a->req_pool_indices = carve(base, &used, seqs, sizeof *a->req_pool_indices);
    a->last_page_len = carve(base, &used, seqs, sizeof *a->last_page_len);
    a->q_indptr = carve(base, &used, seqs + 1, sizeof *a->q_indptr);
    a->kv_indptr = carve(base, &used, seqs + 1, sizeof *a->kv_indptr);
    for (int l = 0; l < SHARED_PREFIX_LEVELS && p->tells_shared; l++) {
        a->runs[l].seq_indptr = carve(base, &used, seqs + 1, sizeof *a->runs[l].seq_indptr);
        a->runs[l].prefix_len = carve(base, &used, seqs, sizeof *a->runs[l].prefix_len);
    }
    if (drafts_branch(&p->drafts)) {
        a->mask_indptr = carve(base, &used, seqs + 1, sizeof *a->mask_indptr);
        a->mask_bits = carve(base, &used, seqs * (uint64_t)mask_bytes(p), 1);
    }
    if (p->has_state) {
        a->state_slot = carve(base, &used, seqs, sizeof *a->state_slot);
        a->state_dst = carve(base, &used, seqs, sizeof *a->state_dst);
        a->state_initial = carve(base, &used, seqs, sizeof *a->state_initial);
    }
    if (has_encoder(p))
        lay_out_encoder(p, base, &used, &a->encoder);
    return used;
}

static void lay_out_group(const struct forward_batch_params *p, bool with_pages, char *base,
                          uint64_t *used, struct batch_group_arrays *a)
{
    uint64_t seqs = (uint64_t)p->max_seqs;
    a->out_cache_loc = carve(base, used, (uint64_t)p->max_tokens, sizeof *a->out_cache_loc);
    if (with_pages && p->index_forms & ATTN_INDEX_BLOCK_TABLE)
        a->block_table = carve(base, used, seqs * (uint64_t)pages_of(p->max_kv_len, p->page_size),
                               sizeof *a->block_table);
    if (with_pages && p->index_forms & ATTN_INDEX_CSR)
        a->kv_indices = carve(base, used, (uint64_t)(p->max_kv_tokens / p->page_size) + seqs,
                              sizeof *a->kv_indices);
}

/* One path for counting and for placing, so that the two cannot differ. `with_pages`: the block is
 * the device's, which has room for page ids. Returns the block's bytes. */
static uint64_t lay_out(const struct forward_batch_params *p, bool with_pages, char *base,
                        struct batch_arrays *a)
{
    uint64_t used = lay_out_sequences(p, base, a);
    uint64_t tokens = (uint64_t)p->max_tokens;
    a->row_request = carve(base, &used, tokens, sizeof *a->row_request);
    a->row_position = carve(base, &used, tokens, sizeof *a->row_position);
    if (p->has_state)
        a->snapshots = carve(base, &used, tokens, sizeof *a->snapshots);
    if (has_encoder(p)) {
        a->encoder.row_request = carve(base, &used, tokens, sizeof *a->encoder.row_request);
        a->encoder.row_position = carve(base, &used, tokens, sizeof *a->encoder.row_position);
    }
    for (uint32_t g = 0; g < p->num_kv_groups; g++)
        lay_out_group(p, with_pages, base, &used, &a->groups[g]);
    return used;
}

static attn_status no_memory(const struct forward_batch *b, uint32_t space, uint64_t bytes,
                             attn_error *error)
{
    return device_no_memory(b->params.device, space, error,
                            "batches of %d sequences and %d tokens: %llu bytes of index arrays",
                            b->params.max_seqs, b->params.max_tokens, (unsigned long long)bytes);
}

static void *allocate_zeroed(const struct forward_batch *b, uint64_t bytes, attn_status *status,
                             attn_error *error)
{
    const struct device *device = b->params.device;
    void *memory = device_allocate(device, ATTN_SPACE_DEVICE, bytes, ALIGNMENT);
    if (!memory) {
        *status = no_memory(b, ATTN_SPACE_DEVICE, bytes, error);
        return NULL;
    }
    *status = device_fill_now(device, memory, 0, bytes, error);
    return memory;
}

static attn_status allocate_device(struct forward_batch *b, attn_error *error)
{
    const struct forward_batch_params *p = &b->params;
    attn_status status;
    b->memory = allocate_zeroed(b, lay_out(p, true, NULL, &b->arrays), &status, error);
    if (status != ATTN_OK)
        return status;
    lay_out(p, true, b->memory, &b->arrays);
    if (on_cpu(b))
        return ATTN_OK;
    uint64_t bytes = (uint64_t)p->table_rows * (uint64_t)p->table_columns * sizeof(int32_t);
    for (uint32_t g = 0; g < p->num_kv_groups && status == ATTN_OK; g++)
        b->req_to_token[g] = allocate_zeroed(b, bytes, &status, error);
    return status;
}

static void *allocate_pinned(const struct forward_batch *b, uint64_t bytes, attn_status *status,
                             attn_error *error)
{
    void *memory = NULL;
    if (*status == ATTN_OK)
        memory = device_allocate(b->params.device, ATTN_SPACE_PINNED, bytes, ALIGNMENT);
    if (*status == ATTN_OK && !memory)
        *status = no_memory(b, ATTN_SPACE_PINNED, bytes, error);
    return memory;
}

/* Room for the moves of a step, which a kernel reads where they lie. */
static attn_status allocate_moves(const struct forward_batch *b, struct batch_staging *staging,
                                  attn_error *error)
{
    const struct forward_batch_params *p = &b->params;
    uint64_t seqs = (uint64_t)p->max_seqs;
    uint64_t moves = seqs * (uint64_t)p->drafts.tokens * sizeof(struct step_move);
    attn_status status = ATTN_OK;
    if (!drafts_branch(&p->drafts))
        return ATTN_OK;
    for (uint32_t g = 0; g < p->num_kv_groups; g++)
        staging->groups[g].moves = allocate_pinned(b, moves, &status, error);
    staging->moves_indptr =
        allocate_pinned(b, (seqs + 1) * sizeof *staging->moves_indptr, &status, error);
    return status;
}

static attn_status allocate_staging(struct forward_batch *b, struct batch_staging *staging,
                                    attn_error *error)
{
    const struct forward_batch_params *p = &b->params;
    attn_status status = ATTN_OK;
    if (on_cpu(b)) {
        staging->arrays = b->arrays;
        return ATTN_OK;
    }
    uint64_t bytes = lay_out(p, false, NULL, &staging->arrays);
    uint64_t updates = (uint64_t)p->max_seqs * sizeof(struct step_update);
    staging->memory = allocate_pinned(b, bytes, &status, error);
    for (uint32_t g = 0; g < p->num_kv_groups; g++)
        staging->groups[g].updates = allocate_pinned(b, updates, &status, error);
    if (status == ATTN_OK)
        lay_out(p, false, staging->memory, &staging->arrays);
    return status;
}

attn_status forward_batch_init(struct forward_batch *batch,
                               const struct forward_batch_params *params, attn_error *error)
{
    memset(batch, 0, sizeof *batch);
    batch->params = *params;
    if (params->num_kv_groups == 0) {
        batch->params.num_kv_groups = 1;
        batch->params.kv_pools[0] = SCHEDULER_ALL;
    }
    batch->staging = calloc(params->num_staging, sizeof *batch->staging);
    attn_status status = batch->staging
                             ? allocate_device(batch, error)
                             : host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for batches");
    if (status == ATTN_OK && params->tells_shared)
        status = shared_prefix_init(&batch->shared, params->max_seqs, error);
    for (uint32_t s = 0; s < params->num_staging && status == ATTN_OK; s++) {
        status = allocate_staging(batch, &batch->staging[s], error);
        if (status == ATTN_OK)
            status = allocate_moves(batch, &batch->staging[s], error);
    }
    if (status != ATTN_OK)
        forward_batch_finish(batch);
    return status;
}

static void release_staging(const struct device *device, const struct batch_staging *staging)
{
    device_release(device, ATTN_SPACE_PINNED, staging->memory);
    device_release(device, ATTN_SPACE_PINNED, staging->moves_indptr);
    for (uint32_t g = 0; g < MODEL_KV_COUNT; g++) {
        device_release(device, ATTN_SPACE_PINNED, staging->groups[g].updates);
        device_release(device, ATTN_SPACE_PINNED, staging->groups[g].changed);
        device_release(device, ATTN_SPACE_PINNED, staging->groups[g].moves);
    }
}

void forward_batch_finish(struct forward_batch *batch)
{
    const struct device *device = batch->params.device;
    for (uint32_t s = 0; batch->staging && s < batch->params.num_staging; s++)
        release_staging(device, &batch->staging[s]);
    free(batch->staging);
    shared_prefix_finish(&batch->shared);
    for (uint32_t g = 0; device && g < MODEL_KV_COUNT; g++)
        device_release(device, ATTN_SPACE_DEVICE, batch->req_to_token[g]);
    if (device)
        device_release(device, ATTN_SPACE_DEVICE, batch->memory);
    memset(batch, 0, sizeof *batch);
}

/* ---- Bounds ---------------------------------------------------------------------------------- */

static int64_t kv_len(const struct scheduler_seq *sequence)
{
    return (int64_t)sequence->prefix_len + sequence->num_new;
}

/* Rows of a sequence of padding: as many as the others of its batch have. */
static int32_t rows_of_padding(const struct forward_batch *b, const struct batch_step *step)
{
    return step->mode == ATTN_MODE_TARGET_VERIFY ? b->params.drafts.tokens : 1;
}

static attn_status check_bounds(const struct forward_batch *b, const struct batch_step *step,
                                attn_error *error)
{
    const struct forward_batch_params *p = &b->params;
    int64_t tokens = 0, encoded = 0, pages = 0, longest = 0;
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const struct scheduler_seq *sequence = &step->sequences[s];
        int64_t keys = kv_len(sequence);
        tokens += sequence->num_new;
        encoded += sequence->encoder_new;
        pages += units_for(keys, p->page_size);
        longest = keys > longest ? keys : longest;
    }
    int32_t seqs = step->padded > step->num_sequences ? step->padded : step->num_sequences;
    tokens += (int64_t)(seqs - step->num_sequences) * rows_of_padding(b, step);
    tokens = encoded > tokens ? encoded : tokens;
    if (seqs <= p->max_seqs && tokens <= p->max_tokens && longest <= p->max_kv_len &&
        pages * p->page_size <= p->max_kv_tokens)
        return ATTN_OK;
    return host_fail(error, ATTN_INTERNAL,
                     "step of %d sequences, %lld tokens, %lld pages, %lld keys: the bounds are %d, "
                     "%d, %lld, %d",
                     seqs, (long long)tokens, (long long)pages, (long long)longest, p->max_seqs,
                     p->max_tokens, (long long)(p->max_kv_tokens / p->page_size), p->max_kv_len);
}

/* ---- req_to_token's copy --------------------------------------------------------------------- */

static attn_status grow_changed(const struct forward_batch *b, struct batch_group_staging *staging,
                                int64_t count, attn_error *error)
{
    if (count <= staging->changed_capacity)
        return ATTN_OK;
    int64_t capacity = count + count / 2;
    attn_status status = ATTN_OK;
    device_release(b->params.device, ATTN_SPACE_PINNED, staging->changed);
    staging->changed_capacity = 0;
    staging->changed =
        allocate_pinned(b, (uint64_t)capacity * sizeof *staging->changed, &status, error);
    staging->changed_capacity = status == ATTN_OK ? capacity : 0;
    return status;
}

/* Entries of a sequence's row of a pool's table, from the first that has changed on. */
static int32_t count_changed(const struct scheduler_seq *sequence, int pool)
{
    int64_t end = pool == SCHEDULER_ENCODER ? sequence->encoder_new : kv_len(sequence);
    return (int32_t)(end - sequence->table_changed[pool]);
}

/* List the slots that the step's sequences have got, or lost, in a pool since their last step. */
static attn_status list_updates(const struct forward_batch *b, struct batch_group_staging *staging,
                                const struct batch_step *step, int pool, attn_error *error)
{
    int64_t total = 0;
    for (int32_t s = 0; s < step->num_sequences; s++)
        total += count_changed(&step->sequences[s], pool);
    attn_status status = grow_changed(b, staging, total, error);
    if (status != ATTN_OK)
        return status;
    staging->num_updates = staging->longest_update = 0;
    int32_t used = 0;
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const struct scheduler_seq *sequence = &step->sequences[s];
        const int32_t *row =
            step->pools[pool].req_to_token + (int64_t)sequence->row * step->req_to_token_stride;
        int32_t first = sequence->table_changed[pool], count = count_changed(sequence, pool);
        if (count == 0) /* an encoder's keys, after its prompt */
            continue;
        memcpy(staging->changed + used, row + first, (size_t)count * sizeof *row);
        staging->updates[staging->num_updates++] =
            (struct step_update){sequence->row, first, count, used};
        used += count;
        staging->longest_update = count > staging->longest_update ? count : staging->longest_update;
    }
    return ATTN_OK;
}

/* ---- Filling --------------------------------------------------------------------------------- */

/* The rows of a verification: those that stay are the request's own tokens, the others tokens that
 * it never has. */
static void fill_tree(const struct forward_batch *b, struct batch_arrays *a,
                      const struct scheduler_seq *sequence, const struct draft_tree *tree,
                      int32_t row)
{
    for (int32_t t = 0; t < sequence->num_new; t++) {
        a->row_request[row + t] =
            (int32_t)draft_tree_number(tree, sequence->request, b->params.num_requests, t);
        a->row_position[row + t] = sequence->prefix_len + tree->depth[t];
    }
}

/* A row sees the prefix, itself and what is above it in the tree: bit t * rows + j. */
static void fill_mask(const struct forward_batch *b, struct batch_arrays *a, int32_t s,
                      const struct draft_tree *tree)
{
    int32_t rows = b->params.drafts.tokens, bytes = mask_bytes(&b->params);
    uint8_t *bits = a->mask_bits + (int64_t)s * bytes;
    a->mask_indptr[s] = (int64_t)s * bytes;
    a->mask_indptr[s + 1] = (int64_t)(s + 1) * bytes;
    memset(bits, 0, (size_t)bytes);
    for (int32_t t = 0; t < rows; t++)
        for (int32_t j = t;; j = tree->parent[j]) {
            bits[(t * rows + j) / 8] |= (uint8_t)(1u << (t * rows + j) % 8);
            if (j == 0)
                break;
        }
}

static void fill_rows(struct batch_arrays *a, const struct scheduler_seq *sequence, int32_t row)
{
    for (int32_t t = 0; t < sequence->num_new; t++) {
        a->row_request[row + t] = (int32_t)sequence->request;
        a->row_position[row + t] = sequence->prefix_len + t;
    }
}

/* Sequence `s`, whose first row is `row`; *pages counts on. */
static void fill_sequence(const struct forward_batch *b, struct batch_arrays *a, int32_t s,
                          const struct scheduler_seq *sequence, int32_t row, int32_t *pages)
{
    int32_t page_size = b->params.page_size, length = (int32_t)kv_len(sequence);
    int32_t count = pages_of(length, page_size);
    a->seq_lens[s] = length;
    a->prefix_lens[s] = sequence->prefix_len;
    a->req_pool_indices[s] = sequence->row;
    a->q_indptr[s] = row;
    a->kv_indptr[s] = *pages;
    a->last_page_len[s] = count == 0 ? 0 : length - (count - 1) * page_size;
    *pages += count;
}

/* A sequence of padding: request row 0, slot 0, zero vectors. Returns its rows. */
static int32_t fill_padding(const struct forward_batch *b, struct batch_arrays *a, int32_t s,
                            const struct batch_step *step, int32_t row, int32_t *pages)
{
    static const struct draft_tree root_alone;
    int32_t rows = rows_of_padding(b, step);
    struct scheduler_seq padding = {.num_new = step->seq_len_fill};
    if (rows > 1 && padding.num_new < rows)
        padding.num_new = rows;
    fill_sequence(b, a, s, &padding, row, pages);
    for (int32_t t = 0; t < rows; t++) {
        for (uint32_t g = 0; g < b->params.num_kv_groups; g++)
            if (!is_of_encoder(&b->params, g))
                a->groups[g].out_cache_loc[row + t] = 0;
        a->row_request[row + t] = -1;
        a->row_position[row + t] = 0;
    }
    if (rows > 1 && drafts_branch(&b->params.drafts))
        fill_mask(b, a, s, &root_alone);
    return rows;
}

/* The keys of an encoder that sequence `s` reads, and of which it brings all or none. */
static void fill_encoded(struct forward_batch *b, struct batch_encoder *a, int32_t s,
                         const struct scheduler_seq *sequence, int32_t *pages)
{
    int32_t page_size = b->params.page_size, length = sequence->encoder_len;
    int32_t count = pages_of(length, page_size), *rows = &b->encoder_rows.count;
    a->kv_lens[s] = length;
    a->new_indptr[s] = *rows;
    a->kv_indptr[s] = *pages;
    a->last_page_len[s] = count == 0 ? 0 : length - (count - 1) * page_size;
    *pages += count;
    if (b->batch.max_kv_len < length)
        b->batch.max_kv_len = length;
    for (int32_t j = 0; j < sequence->encoder_new; j++, ++*rows) {
        a->row_request[*rows] = (int32_t)sequence->request;
        a->row_position[*rows] = j;
    }
}

/* Padding has as many keys of an encoder as of its own. */
static void fill_encoder(struct forward_batch *b, struct batch_arrays *a,
                         const struct batch_step *step)
{
    const struct scheduler_seq padding = {.encoder_len = step->seq_len_fill};
    int32_t pages = 0, s = 0;
    b->encoder_rows =
        (struct step_rows){b->arrays.encoder.row_request, b->arrays.encoder.row_position, 0};
    for (; s < step->num_sequences; s++)
        fill_encoded(b, &a->encoder, s, &step->sequences[s], &pages);
    for (; s < step->padded; s++)
        fill_encoded(b, &a->encoder, s, &padding, &pages);
    a->encoder.new_indptr[s] = b->encoder_rows.count;
    a->encoder.kv_indptr[s] = pages;
}

static void fill_moves(const struct forward_batch *b, struct batch_staging *staging,
                       const struct batch_step *step)
{
    bool moves = step->moves_indptr && staging->moves_indptr;
    int32_t count = moves ? step->moves_indptr[step->num_sequences] : 0;
    staging->num_moved = count > 0 ? step->num_sequences : 0;
    for (uint32_t g = 0; g < b->params.num_kv_groups; g++) {
        const struct scheduler_move *from = step->pools[b->params.kv_pools[g]].moves;
        for (int32_t m = 0; m < count; m++)
            staging->groups[g].moves[m] = (struct step_move){from[m].from, from[m].to};
    }
    if (count > 0)
        memcpy(staging->moves_indptr, step->moves_indptr,
               ((size_t)step->num_sequences + 1) * sizeof *staging->moves_indptr);
}

struct step_moves forward_batch_moves(const struct forward_batch *b, uint32_t slot, uint32_t group)
{
    const struct batch_staging *staging = &b->staging[slot];
    return (struct step_moves){staging->groups[group].moves, staging->moves_indptr,
                               staging->num_moved};
}

/* States by sequence, and further rows whose state is wanted. Padding reads nothing and writes slot
 * 0, which belongs to none. */
static void fill_states(const struct batch_step *step, int32_t num_seqs, int32_t num_rows,
                        struct batch_arrays *a)
{
    for (int32_t s = 0; s < num_seqs; s++) {
        struct scheduler_seq padding = {0};
        const struct scheduler_seq *sequence =
            s < step->num_sequences ? &step->sequences[s] : &padding;
        a->state_slot[s] = sequence->state_slot;
        a->state_dst[s] = sequence->state_dst;
        a->state_initial[s] = sequence->state_slot > 0;
    }
    for (int32_t row = 0; row < num_rows; row++)
        a->snapshots[row] = -1;
    for (int32_t n = 0; n < step->num_snapshots; n++)
        a->snapshots[step->snapshots[n].row] = step->snapshots[n].slot;
}

/* Returns the number of rows, padding included. */
static int32_t fill_arrays(struct forward_batch *b, struct batch_arrays *a,
                           const struct batch_step *step)
{
    int32_t row = 0, pages = 0, s = 0;
    attn_batch *batch = &b->batch;
    for (; s < step->num_sequences; s++) {
        const struct scheduler_seq *sequence = &step->sequences[s];
        fill_sequence(b, a, s, sequence, row, &pages);
        if (step->trees)
            fill_tree(b, a, sequence, &step->trees[s], row);
        else
            fill_rows(a, sequence, row);
        if (step->trees && drafts_branch(&b->params.drafts))
            fill_mask(b, a, s, &step->trees[s]);
        row += sequence->num_new;
        batch->max_q_len =
            sequence->num_new > batch->max_q_len ? sequence->num_new : batch->max_q_len;
        batch->max_kv_len = a->seq_lens[s] > batch->max_kv_len ? a->seq_lens[s] : batch->max_kv_len;
    }
    if (has_encoder(&b->params))
        fill_encoder(b, a, step);
    for (uint32_t g = 0; g < b->params.num_kv_groups; g++) {
        int32_t count = is_of_encoder(&b->params, g) ? b->encoder_rows.count : row;
        if (count > 0)
            memcpy(a->groups[g].out_cache_loc, step->pools[b->params.kv_pools[g]].slots,
                   (size_t)count * sizeof(int64_t));
    }
    batch->num_real_tokens = row;
    for (; s < step->padded; s++)
        row += fill_padding(b, a, s, step, row, &pages);
    if (step->padded > 0) {
        int32_t rows = rows_of_padding(b, step);
        int32_t length = rows > 1 && rows > step->seq_len_fill ? rows : step->seq_len_fill;
        batch->max_q_len = rows;
        if (batch->max_kv_len < length)
            batch->max_kv_len = length;
    }
    if (b->params.has_state)
        fill_states(step, s, row, a);
    a->q_indptr[s] = row;
    a->kv_indptr[s] = pages;
    *a->watch = UINT64_MAX;
    *a->num_real_seqs = step->num_sequences;
    *a->num_real_tokens = batch->num_real_tokens;
    return row;
}

/* ---- The batch ------------------------------------------------------------------------------- */

#define BOTH(name)                                                                                 \
    {                                                                                              \
        staged->name, b->arrays.name                                                               \
    }

/* Differences if the keys come from an encoder. */
static void describe_encoder(const struct forward_batch *b, const struct batch_arrays *staged,
                             attn_kv_batch *kv)
{
    kv->kv_lens = (attn_i32_array)BOTH(encoder.kv_lens);
    kv->kv_new_indptr = (attn_i32_array)BOTH(encoder.new_indptr);
    if (!(kv->index_forms & ATTN_INDEX_CSR))
        return;
    kv->kv_indptr = (attn_i32_array)BOTH(encoder.kv_indptr);
    kv->last_page_len = (attn_i32_array)BOTH(encoder.last_page_len);
}

static void describe_kv_group(struct forward_batch *b, const struct batch_arrays *staged,
                              const struct batch_step *step, uint32_t g)
{
    uint32_t forms = b->params.index_forms;
    const int32_t *table = step->pools[b->params.kv_pools[g]].req_to_token;
    attn_kv_batch *kv = &b->kv[g];
    *kv = (attn_kv_batch){
        .struct_size = sizeof *kv,
        .index_forms = forms,
        .page_size = b->params.page_size,
        .kv_lens = BOTH(seq_lens),
        .out_cache_loc = BOTH(groups[g].out_cache_loc),
    };
    b->tables[g] = on_cpu(b) ? table : b->req_to_token[g];
    b->table_stride = step->req_to_token_stride;
    if (forms & ATTN_INDEX_REQ_TO_TOKEN) {
        kv->req_to_token = (attn_i32_array){table, b->tables[g]};
        kv->req_to_token_stride = b->table_stride;
    }
    if (forms & ATTN_INDEX_BLOCK_TABLE) {
        kv->block_table = (attn_i32_array)BOTH(groups[g].block_table);
        kv->block_table_stride = pages_of(b->params.max_kv_len, b->params.page_size);
    }
    if (forms & ATTN_INDEX_CSR) {
        kv->kv_indptr = (attn_i32_array)BOTH(kv_indptr);
        kv->kv_indices = (attn_i32_array)BOTH(groups[g].kv_indices);
        kv->last_page_len = (attn_i32_array)BOTH(last_page_len);
    }
    if (is_of_encoder(&b->params, g))
        describe_encoder(b, staged, kv);
}

static void describe_state(struct forward_batch *b, const struct batch_arrays *staged,
                           const struct batch_step *step)
{
    b->state = (attn_state_batch){
        .struct_size = sizeof b->state,
        .slot = BOTH(state_slot),
        .dst_slot = BOTH(state_dst),
        .has_initial = BOTH(state_initial),
    };
    /* A graph of verifications is captured with them: which rows leave one changes. */
    if (step->num_snapshots > 0 || (step->padded > 0 && step->mode == ATTN_MODE_TARGET_VERIFY))
        b->state.snapshots = (attn_i32_array)BOTH(snapshots);
}

static void describe_drafts(struct forward_batch *b, const struct batch_arrays *staged)
{
    const struct drafts *drafts = &b->params.drafts;
    b->spec = (attn_speculation){
        .struct_size = sizeof b->spec,
        .num_draft_tokens = drafts->tokens,
        .top_k = drafts->top_k,
    };
    b->batch.speculation = &b->spec;
    if (!drafts_branch(drafts))
        return;
    b->mask = (attn_mask){
        .struct_size = sizeof b->mask,
        .kind = ATTN_MASK_QLEN,
        .bits = b->arrays.mask_bits,
        .indptr = BOTH(mask_indptr),
    };
    b->batch.mask = &b->mask;
    if (b->params.has_positions)
        b->batch.positions = (attn_i32_array){staged->row_position, b->arrays.row_position};
}

/* The runs of a level, in `room` of them: after the last one come those without sequences. */
static void fill_runs(const struct shared_prefix_level *level, int32_t room, struct batch_runs *a)
{
    int32_t count = level->num_runs;
    memcpy(a->prefix_len, level->prefix_len, (size_t)count * sizeof *a->prefix_len);
    memcpy(a->seq_indptr, level->seq_indptr, (size_t)(count + 1) * sizeof *a->seq_indptr);
    for (int32_t r = count; r < room; r++) {
        a->prefix_len[r] = 0;
        a->seq_indptr[r + 1] = a->seq_indptr[r];
    }
}

/* For a graph as many levels and runs as its bounds have, or none. */
static void describe_shared(struct forward_batch *b, struct batch_arrays *staged,
                            const struct batch_step *step)
{
    bool frozen = step->padded > 0;
    shared_prefix_plan(&b->shared, step->sequences, step->num_sequences);
    int32_t num_levels = !frozen              ? b->shared.num_levels
                         : step->tells_shared ? SHARED_PREFIX_LEVELS
                                              : 0;
    for (int32_t l = 0; l < num_levels; l++) {
        const struct shared_prefix_level *level = &b->shared.levels[l];
        int32_t num_runs = frozen ? step->padded : level->num_runs;
        fill_runs(level, num_runs, &staged->runs[l]);
        b->levels[l] = (attn_shared_prefix){
            .struct_size = sizeof b->levels[l],
            .num_groups = (uint32_t)num_runs,
            .seq_indptr = BOTH(runs[l].seq_indptr),
            .prefix_len = BOTH(runs[l].prefix_len),
        };
    }
    b->batch.num_prefix_levels = (uint32_t)num_levels;
    b->batch.shared_prefix = num_levels > 0 ? b->levels : NULL;
}

static void describe(struct forward_batch *b, struct batch_arrays *staged,
                     const struct batch_step *step)
{
    attn_batch *batch = &b->batch;
    int mixed = step->mode == ATTN_MODE_MIXED;
    int32_t num_seqs = step->padded > 0 ? step->padded : step->num_sequences;
    *batch = (attn_batch){
        .struct_size = sizeof *batch,
        .mode = step->mode == MODEL_MODE_ENCODE ? ATTN_MODE_EXTEND : step->mode,
        .num_seqs = num_seqs,
        .num_real_seqs = step->num_sequences,
        .num_decode_seqs = mixed ? step->num_decode : 0,
        .first_decode_seq = mixed ? num_seqs - step->num_decode : 0,
        .decode_q_len = mixed,
        .num_kv_groups = b->params.num_kv_groups,
        .num_real_seqs_device = step->padded > 0 ? b->arrays.num_real_seqs : NULL,
        .num_real_tokens_device = step->padded > 0 ? b->arrays.num_real_tokens : NULL,
        .seq_lens = BOTH(seq_lens),
        .prefix_lens = BOTH(prefix_lens),
        .q_indptr = BOTH(q_indptr),
        .req_pool_indices = BOTH(req_pool_indices),
        .kv_groups = b->kv,
        .num_state_groups = b->params.has_state,
        .state_groups = b->params.has_state ? &b->state : NULL,
    };
    if (b->params.has_state)
        describe_state(b, staged, step);
    if (b->params.max_top_k > 0) {
        b->sparse =
            (attn_sparse_batch){.struct_size = sizeof b->sparse, .max_count = b->params.max_top_k};
        batch->sparse = &b->sparse;
    }
    if (step->mode == ATTN_MODE_TARGET_VERIFY)
        describe_drafts(b, staged);
    if (step->mode == ATTN_MODE_DECODE && b->params.tells_shared)
        describe_shared(b, staged, step);
    for (uint32_t g = 0; g < b->params.num_kv_groups; g++)
        describe_kv_group(b, staged, step, g);
}

attn_status forward_batch_fill(struct forward_batch *b, uint32_t slot,
                               const struct batch_step *step, attn_error *error)
{
    struct batch_staging *staging = &b->staging[slot];
    attn_status status = check_bounds(b, step, error);
    for (uint32_t g = 0; g < b->params.num_kv_groups && !on_cpu(b) && status == ATTN_OK; g++)
        status = list_updates(b, &staging->groups[g], step, b->params.kv_pools[g], error);
    if (status != ATTN_OK)
        return status;
    b->mode = step->mode;
    describe(b, &staging->arrays, step);
    fill_moves(b, staging, step);
    b->batch.num_tokens = fill_arrays(b, &staging->arrays, step);
    b->rows =
        (struct step_rows){b->arrays.row_request, b->arrays.row_position, b->batch.num_tokens};
    return ATTN_OK;
}

/* ---- Upload ---------------------------------------------------------------------------------- */

/* `bytes` of each of so many rows. */
static attn_status copy_rows(const struct forward_batch *b, int32_t rows, void *to,
                             const void *from, uint64_t bytes, attn_stream stream,
                             attn_error *error)
{
    return rows > 0 ? device_copy(b->params.device, to, from, (uint64_t)rows * bytes, stream, error)
                    : ATTN_OK;
}

static attn_status copy_all_rows(const struct forward_batch *b, const struct batch_arrays *staged,
                                 attn_stream stream, attn_error *error)
{
    const struct batch_arrays *a = &b->arrays;
    int32_t own = b->batch.num_tokens, encoded = b->encoder_rows.count;
    const struct {
        int32_t rows;
        void *to;
        const void *from;
    } ints[] = {
        {own, a->row_request, staged->row_request},
        {own, a->row_position, staged->row_position},
        {b->params.has_state ? own : 0, a->snapshots, staged->snapshots},
        {encoded, a->encoder.row_request, staged->encoder.row_request},
        {encoded, a->encoder.row_position, staged->encoder.row_position},
    };
    attn_status status = ATTN_OK;
    for (size_t i = 0; i < sizeof ints / sizeof ints[0] && status == ATTN_OK; i++)
        status =
            copy_rows(b, ints[i].rows, ints[i].to, ints[i].from, sizeof(int32_t), stream, error);
    for (uint32_t g = 0; g < b->params.num_kv_groups && status == ATTN_OK; g++)
        status =
            copy_rows(b, is_of_encoder(&b->params, g) ? encoded : own, a->groups[g].out_cache_loc,
                      staged->groups[g].out_cache_loc, sizeof(int64_t), stream, error);
    return status;
}

static attn_status update_table(const struct forward_batch *b, const struct batch_staging *staging,
                                uint32_t g, const struct step_kernels *kernels, attn_stream stream,
                                attn_error *error)
{
    const struct batch_group_staging *from = &staging->groups[g];
    if (from->num_updates == 0)
        return ATTN_OK;
    return step_kernels_update_table(kernels, from->updates, from->num_updates,
                                     from->longest_update, from->changed, b->req_to_token[g],
                                     b->params.table_columns, stream, error);
}

static attn_status copy_arrays(const struct forward_batch *b, const struct batch_staging *staging,
                               const struct step_kernels *kernels, attn_stream stream,
                               attn_error *error)
{
    struct batch_arrays unused;
    uint64_t bytes = lay_out_sequences(&b->params, NULL, &unused);
    attn_status status =
        device_copy(b->params.device, b->memory, staging->memory, bytes, stream, error);
    if (status == ATTN_OK)
        status = copy_all_rows(b, &staging->arrays, stream, error);
    for (uint32_t g = 0; g < b->params.num_kv_groups && status == ATTN_OK; g++)
        status = update_table(b, staging, g, kernels, stream, error);
    return status;
}

static attn_status index_pages(const struct forward_batch *b, uint32_t g,
                               const struct step_kernels *kernels, attn_stream stream,
                               attn_error *error)
{
    const struct forward_batch_params *p = &b->params;
    const struct batch_encoder *encoder = is_of_encoder(p, g) ? &b->arrays.encoder : NULL;
    struct step_index index = {
        .req_to_token = b->tables[g],
        .req_to_token_stride = b->table_stride,
        .req_pool_indices = b->arrays.req_pool_indices,
        .kv_lens = encoder ? encoder->kv_lens : b->arrays.seq_lens,
        .num_seqs = b->batch.num_seqs,
        .page_size = p->page_size,
        .max_pages = pages_of(b->batch.max_kv_len, p->page_size),
        .block_table = b->arrays.groups[g].block_table,
        .block_table_stride = pages_of(p->max_kv_len, p->page_size),
        .kv_indptr = encoder ? encoder->kv_indptr : b->arrays.kv_indptr,
        .kv_indices = b->arrays.groups[g].kv_indices,
    };
    return step_kernels_index_pages(kernels, &index, stream, error);
}

attn_status forward_batch_upload(struct forward_batch *b, uint32_t slot,
                                 const struct step_kernels *kernels, attn_stream stream,
                                 attn_error *error)
{
    attn_status status = ATTN_OK;
    if (!on_cpu(b))
        status = copy_arrays(b, &b->staging[slot], kernels, stream, error);
    if (b->batch.num_seqs == 0 ||
        !(b->params.index_forms & (ATTN_INDEX_BLOCK_TABLE | ATTN_INDEX_CSR)))
        return status;
    for (uint32_t g = 0; g < b->params.num_kv_groups && status == ATTN_OK; g++)
        status = index_pages(b, g, kernels, stream, error);
    return status;
}
