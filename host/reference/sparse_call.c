/* SPDX-License-Identifier: Apache-2.0
 *
 * sparse_call.c: sparse layers over latents: operands of the indexer, the keys of each row, and what
 * a call writes of them.
 */
#include "host/reference/call.h"
#include "host/reference/sparse.h"

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/fpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Operands -------------------------------------------------------------------------------- */

int reference_is_index_only(const attn_forward_args *args)
{
    return !attn_operand(args, ATTN_ROLE_OUT) && !attn_operand(args, ATTN_ROLE_Q_NOPE) &&
           (attn_operand(args, ATTN_ROLE_INDEX_Q) || attn_operand(args, ATTN_ROLE_INDEX_LOGITS));
}

/* A tensor that may be absent. */
static attn_status find_optional(const attn_tensor **tensor, const attn_forward_args *args,
                                 uint32_t role, attn_dtype dtype, uint32_t ndim,
                                 const int64_t *shape, attn_error *error)
{
    *tensor = attn_operand(args, role);
    return *tensor ? reference_check_tensor(*tensor, role, dtype, ndim, shape, error) : ATTN_OK;
}

static attn_status check_dims(const reference_call *call, attn_error *error)
{
    const attn_sparse_dims *sparse = call->group->sparse;
    if (!sparse)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "a group of kind sparse has no sparse dimensions");
    if (sparse->index_kind != ATTN_SPARSE_TOKEN || sparse->block_size != 1)
        return host_fail(error, ATTN_UNSUPPORTED,
                         "blocks of latents have no oracle: index_kind %u, block_size %d: accepted "
                         "%d, 1",
                         sparse->index_kind, sparse->block_size, ATTN_SPARSE_TOKEN);
    int aligned = sparse->label_dtype != ATTN_FP8_E4M3 || sparse->label_dim % 4 == 0;
    if (sparse->top_k < 1 || sparse->index_heads < 0 ||
        (sparse->index_heads > 0 && (sparse->label_dim < 1 || !aligned)))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "top_k %d, index_heads %d, label_dim %d: accepted 1 and more, 0 and more, "
                         "with index heads 1 and more, multiples of 4 in fp8_e4m3",
                         sparse->top_k, sparse->index_heads, sparse->label_dim);
    return ATTN_OK;
}

static attn_status find_label_cache(reference_call *call, const attn_forward_args *args,
                                    attn_error *error)
{
    const attn_sparse_dims *sparse = call->group->sparse;
    int64_t page = call->problem->page_size;
    int64_t plain[] = {-1, page, sparse->label_dim};
    int64_t packed[] = {-1, page * reference_label_bytes(sparse)};
    int is_packed = sparse->label_dtype == ATTN_FP8_E4M3;
    call->label_cache = attn_operand(args, ATTN_ROLE_LABEL_CACHE);
    if (!call->index_q && !call->index_k)
        return ATTN_OK;
    return reference_check_tensor(call->label_cache, ATTN_ROLE_LABEL_CACHE,
                                  is_packed ? ATTN_U8 : sparse->label_dtype, is_packed ? 2 : 3,
                                  is_packed ? packed : plain, error);
}

/* Those of the first step. */
static attn_status find_indexer(reference_call *call, const attn_forward_args *args,
                                attn_error *error)
{
    const attn_sparse_dims *sparse = call->group->sparse;
    int64_t rows = call->index_only ? -1 : call->num_rows;
    int64_t q_shape[] = {rows, sparse->index_heads, sparse->label_dim};
    int64_t k_shape[] = {call->c_kv ? call->num_new : -1, sparse->label_dim};
    attn_status status = find_optional(&call->index_q, args, ATTN_ROLE_INDEX_Q, sparse->index_dtype,
                                       3, q_shape, error);
    if (status == ATTN_OK && call->index_q) {
        call->num_rows = call->index_q->shape[0];
        int64_t w_shape[] = {call->num_rows, sparse->index_heads};
        call->index_weights = attn_operand(args, ATTN_ROLE_INDEX_WEIGHTS);
        status = reference_check_tensor(call->index_weights, ATTN_ROLE_INDEX_WEIGHTS, ATTN_F32, 2,
                                        w_shape, error);
    }
    if (status == ATTN_OK)
        status = find_optional(&call->index_k, args, ATTN_ROLE_INDEX_K,
                               attn_new_kv_dtype(call->problem), 2, k_shape, error);
    if (status == ATTN_OK && call->index_k) {
        call->has_new = 1;
        call->num_new = call->index_k->shape[0];
    }
    return status == ATTN_OK ? find_label_cache(call, args, error) : status;
}

attn_status reference_sparse_find(reference_call *call, const attn_forward_args *args,
                                  attn_error *error)
{
    attn_status status = check_dims(call, error);
    call->chooses = 1;
    if (status == ATTN_OK && call->group->sparse->index_heads > 0)
        status = find_indexer(call, args, error);
    if (status != ATTN_OK)
        return status;
    int64_t rows = call->index_only && !call->index_q ? -1 : call->num_rows;
    int64_t l_shape[] = {rows, -1};
    status = find_optional(&call->index_logits, args, ATTN_ROLE_INDEX_LOGITS, ATTN_F32, 2, l_shape,
                           error);
    if (status == ATTN_OK && call->index_only && !call->index_q)
        call->num_rows = call->index_logits->shape[0];
    int64_t i_shape[] = {call->num_rows, call->group->sparse->top_k}, c_shape[] = {call->num_rows};
    if (status == ATTN_OK)
        status = find_optional(&call->sparse_indices, args, ATTN_ROLE_SPARSE_INDICES, ATTN_I32, 2,
                               i_shape, error);
    if (status == ATTN_OK)
        status = find_optional(&call->sparse_count, args, ATTN_ROLE_SPARSE_COUNT, ATTN_I32, 1,
                               c_shape, error);
    if (status == ATTN_OK && !call->index_q && !call->index_logits && !call->sparse_indices)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "operand sparse_indices is missing; accepted, too: index_q or "
                         "index_logits, of layers with index_heads");
    return status;
}

/* ---- Logits ---------------------------------------------------------------------------------- */

struct label_reader {
    const reference_call *call;
    const reference_sequence *sequence;
};

/* Where a label lies, and its number there: a page has codes and then scales; without, the label is alone. */
static char *label_at(const reference_call *call, const attn_tensor *cache, int64_t slot,
                      int64_t *number)
{
    int64_t index[] = {slot / call->problem->page_size, slot % call->problem->page_size};
    *number = cache->ndim == 2 ? index[1] : 0;
    return reference_element(cache, index, cache->ndim == 2 ? 1 : 2);
}

static void read_label(void *ctx, int64_t j, double *label)
{
    const struct label_reader *reader = ctx;
    const reference_call *call = reader->call;
    const attn_sparse_dims *sparse = call->group->sparse;
    int64_t first_new = reader->sequence->kv_len - reader->sequence->num_new;
    int64_t page_size = call->problem->page_size;
    if (call->index_k && call->save_kv && j >= first_new) {
        int64_t index[] = {reader->sequence->first_new_row + j - first_new, 0};
        dtype_to_double(call->index_k->dtype, reference_element(call->index_k, index, 2),
                        sparse->label_dim, label);
        reference_label_round(sparse, label);
        return;
    }
    int64_t number;
    const char *page =
        label_at(call, call->label_cache, reference_slot(call, reader->sequence, j), &number);
    reference_label_load(sparse, page_size, page, number, label);
}

/* By INDEX_Q; chooser->vectors has room for it, its weights and a label. */
static void compute_logits(const reference_call *call, const reference_sequence *sequence,
                           int64_t t, const reference_sight *sight, reference_chooser *chooser)
{
    const attn_sparse_dims *sparse = call->group->sparse;
    int32_t heads = sparse->index_heads, dim = sparse->label_dim;
    double *weights = chooser->vectors + (int64_t)heads * dim, *label = weights + heads;
    int64_t row = sequence->first_row + t, index[] = {row, 0, 0};
    struct label_reader reader = {call, sequence};
    const reference_labels labels = {read_label, &reader};
    for (int64_t h = 0; h < heads; h++) {
        index[1] = h;
        dtype_to_double(call->index_q->dtype, reference_element(call->index_q, index, 3), dim,
                        chooser->vectors + h * dim);
    }
    index[1] = 0;
    dtype_to_double(ATTN_F32, reference_element(call->index_weights, index, 2), heads, weights);
    const reference_index made = {
        .heads = heads,
        .dim = dim,
        .top_k = sparse->top_k,
        .multiplies_codes = dtype_is_fp8(sparse->index_dtype) && dtype_is_fp8(sparse->label_dtype),
        .kv_len = sequence->kv_len,
        .q = chooser->vectors,
        .weights = weights,
        .sight = *sight,
    };
    reference_index_logits(&made, &labels, label, chooser->logits, chooser->bars);
}

/* Of INDEX_LOGITS, which are exact. */
static void read_logits(const reference_call *call, const reference_sequence *sequence, int64_t t,
                        double *logits)
{
    int64_t index[] = {sequence->first_row + t, 0};
    dtype_to_double(ATTN_F32, reference_element(call->index_logits, index, 2), sequence->kv_len,
                    logits);
}

static attn_status find_logits(const reference_call *call, const reference_sequence *sequence,
                               int64_t t, const reference_sight *sight, reference_chooser *chooser,
                               attn_error *error)
{
    if (call->index_logits && call->index_logits->shape[1] < sequence->kv_len)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "operand index_logits is %lld long in dimension 1: accepted %lld and more",
                         (long long)call->index_logits->shape[1], (long long)sequence->kv_len);
    if (call->index_q) {
        compute_logits(call, sequence, t, sight, chooser);
        return ATTN_OK;
    }
    read_logits(call, sequence, t, chooser->logits);
    memset(chooser->bars, 0, (size_t)sequence->kv_len * sizeof *chooser->bars);
    return ATTN_OK;
}

/* ---- Choosers -------------------------------------------------------------------------------- */

attn_status reference_chooser_init(reference_chooser *chooser, const reference_call *call,
                                   const reference_sequence *sequence, attn_error *error)
{
    const attn_sparse_dims *sparse = call->group->sparse;
    int64_t num_slots = 1;
    for (int64_t j = 0; sequence->real && j < sequence->kv_len; j++) {
        int64_t slot = reference_slot(call, sequence, j);
        num_slots = slot >= num_slots ? slot + 1 : num_slots;
    }
    size_t keys = (size_t)sequence->kv_len + 1, slots = (size_t)num_slots;
    size_t vector = (size_t)sparse->index_heads * (size_t)(sparse->label_dim + 1) +
                    (size_t)sparse->label_dim + 1;
    *chooser = (reference_chooser){
        .num_slots = num_slots,
        .key_of = malloc(slots * sizeof *chooser->key_of),
        .chosen = calloc(keys, 1),
        .logits = calloc(keys, sizeof *chooser->logits),
        .bars = calloc(keys, sizeof *chooser->bars),
        .vectors = calloc(vector, sizeof *chooser->vectors),
        .keys = calloc((size_t)sparse->top_k, sizeof *chooser->keys),
    };
    if (!chooser->key_of || !chooser->chosen || !chooser->logits || !chooser->bars ||
        !chooser->vectors || !chooser->keys)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                         "reference: no memory for a choice of keys");
    memset(chooser->key_of, 0xff, slots * sizeof *chooser->key_of);
    for (int64_t j = sequence->kv_len; sequence->real && j-- > 0;)
        chooser->key_of[reference_slot(call, sequence, j)] = (int32_t)j;
    return ATTN_OK;
}

void reference_chooser_finish(reference_chooser *chooser)
{
    free(chooser->key_of);
    free(chooser->chosen);
    free(chooser->logits);
    free(chooser->bars);
    free(chooser->vectors);
    free(chooser->keys);
    *chooser = (reference_chooser){0};
}

static int32_t entry_of(const attn_tensor *tensor, int64_t row, int64_t n)
{
    int64_t index[] = {row, n};
    int32_t value;
    memcpy(&value, reference_element(tensor, index, tensor->ndim), sizeof value);
    return value;
}

/* The keys that a row names, in its order; a slot that is none of the sequence's is key -1. */
static int32_t list_named(const reference_call *call, const reference_sequence *sequence, int64_t t,
                          reference_chooser *chooser)
{
    int64_t row = sequence->first_row + t;
    int32_t count = 0, end = call->group->sparse->top_k;
    if (call->sparse_count) {
        int32_t given = entry_of(call->sparse_count, row, 0);
        end = given < 0 ? 0 : given < end ? given : end;
    }
    for (int32_t n = 0; n < end; n++) {
        int32_t slot = entry_of(call->sparse_indices, row, n);
        if (slot != -1)
            chooser->keys[count++] =
                slot < 0 || slot >= chooser->num_slots ? -1 : chooser->key_of[slot];
    }
    return count;
}

static attn_status mark_named(const reference_call *call, const reference_sequence *sequence,
                              int64_t t, reference_chooser *chooser, attn_error *error)
{
    int32_t count = list_named(call, sequence, t, chooser);
    memset(chooser->chosen, 0, (size_t)sequence->kv_len);
    for (int32_t n = 0; n < count; n++) {
        int64_t j = chooser->keys[n];
        if (j < 0 || chooser->chosen[j])
            return host_fail(error, ATTN_INVALID_ARGUMENT,
                             "sparse_indices of row %lld: entry %d %s; accepted slots of sequence "
                             "%d, each once",
                             (long long)(sequence->first_row + t), n,
                             j < 0 ? "is not a key of its sequence" : "is given twice",
                             sequence->index);
        chooser->chosen[j] = 1;
    }
    return ATTN_OK;
}

attn_status reference_sparse_sight(reference_sight *sight, const reference_call *call,
                                   const reference_sequence *sequence, int64_t t,
                                   reference_chooser *chooser, attn_error *error)
{
    attn_status status = ATTN_OK;
    if (call->sparse_indices)
        status = mark_named(call, sequence, t, chooser, error);
    else
        status = find_logits(call, sequence, t, sight, chooser, error);
    if (status != ATTN_OK)
        return status;
    if (!call->sparse_indices)
        reference_choose(chooser->logits, sequence->kv_len, call->group->sparse->top_k,
                         chooser->chosen);
    int32_t has_position = sight->has_position;
    int64_t position = sight->position;
    *sight = reference_sight_all();
    sight->has_position = has_position;
    sight->position = position;
    sight->chosen = chooser->chosen;
    return ATTN_OK;
}

/* ---- Judging what a call wrote --------------------------------------------------------------- */

static void note(reference_choice_report *report, int32_t code, int64_t row, const char *text)
{
    if (report->message[0])
        return;
    report->first_code = code;
    snprintf(report->message, sizeof report->message, "row %lld: %s", (long long)row, text);
}

/* INDEX_LOGITS of a row by the truth in chooser->logits. */
static void judge_logits(const reference_call *call, const reference_sequence *sequence, int64_t t,
                         const reference_chooser *chooser, reference_choice_report *report)
{
    int64_t row = sequence->first_row + t;
    for (int64_t j = 0; j < sequence->kv_len; j++) {
        int64_t index[] = {row, j};
        double truth = chooser->logits[j], actual;
        dtype_to_double(ATTN_F32, reference_element(call->index_logits, index, 2), 1, &actual);
        int same = isfinite(truth) && isfinite(actual) ? fabs(actual - truth) <= chooser->bars[j]
                                                       : isinf(truth) && actual == truth;
        report->logits_checked++;
        if (isfinite(truth) && isfinite(actual))
            report->worst = fmax(report->worst, fabs(actual - truth) / chooser->bars[j]);
        if (same)
            continue;
        report->logits_failed++;
        char text[REFERENCE_CHOICE_TEXT];
        snprintf(text, sizeof text,
                 "the logit of key %lld is %.9g; accepted: %.9g, with an error of up to %.2g",
                 (long long)j, actual, truth, chooser->bars[j]);
        note(report, REFERENCE_CHOICE_RIGHT, row, text);
    }
}

/* Entries after the last one must be -1, where rows are written. */
static int is_filled(const reference_call *call, int64_t row, int32_t count)
{
    int32_t end = call->group->sparse->top_k, counted = count;
    if (call->sparse_count)
        counted = entry_of(call->sparse_count, row, 0);
    for (int32_t n = count; n < end; n++)
        if (entry_of(call->sparse_indices, row, n) != -1)
            return 0;
    return counted == count;
}

static void judge_entries(const reference_call *call, const reference_sequence *sequence, int64_t t,
                          reference_chooser *chooser, reference_choice_report *report)
{
    char text[REFERENCE_CHOICE_TEXT] =
        "sparse_count is not the number of entries, or one after them is not -1";
    int64_t row = sequence->first_row + t;
    int32_t count = list_named(call, sequence, t, chooser);
    reference_choice choice =
        reference_judge_choice(chooser->logits, chooser->bars, sequence->kv_len,
                               call->group->sparse->top_k, chooser->keys, count, chooser->chosen);
    int filled = is_filled(call, row, count);
    report->rows_checked++;
    if (choice.code == REFERENCE_CHOICE_RIGHT && filled)
        return;
    report->rows_failed++;
    if (choice.code != REFERENCE_CHOICE_RIGHT)
        reference_choice_text(&choice, text);
    note(report, choice.code != REFERENCE_CHOICE_RIGHT ? choice.code : REFERENCE_CHOICE_COUNT, row,
         text);
}

static attn_status judge_row(const reference_call *call, const reference_sequence *sequence,
                             int64_t t, reference_chooser *chooser, reference_choice_report *report,
                             attn_error *error)
{
    reference_sight sight;
    attn_status status = reference_set_sight(&sight, call, sequence, t, error);
    if (status == ATTN_OK)
        status = find_logits(call, sequence, t, &sight, chooser, error);
    if (status == ATTN_OK && call->index_logits && call->index_q)
        judge_logits(call, sequence, t, chooser, report);
    if (status == ATTN_OK && call->sparse_indices)
        judge_entries(call, sequence, t, chooser, report);
    return status;
}

static attn_status judge_sequence(const reference_call *call, int32_t s,
                                  reference_choice_report *report, attn_error *error)
{
    reference_sequence sequence;
    reference_chooser chooser;
    attn_status status = reference_sequence_init(&sequence, call, s, error);
    if (status != ATTN_OK || !sequence.real)
        return status;
    status = reference_check_slots(call, &sequence, error);
    if (status == ATTN_OK)
        status = reference_chooser_init(&chooser, call, &sequence, error);
    else
        chooser = (reference_chooser){0};
    for (int64_t t = 0; t < sequence.num_rows && status == ATTN_OK; t++)
        if (reference_row_is_real(call, &sequence, t))
            status = judge_row(call, &sequence, t, &chooser, report, error);
    reference_chooser_finish(&chooser);
    return status;
}

attn_status reference_check_choice(const attn_problem *problem, const attn_batch *batch,
                                   int32_t layer_id, const attn_forward_args *args,
                                   reference_choice_report *report, attn_error *error)
{
    reference_call call;
    uint64_t fpu = fpu_pin();
    attn_status status =
        batch->mode == ATTN_MODE_IDLE
            ? ATTN_OK
            : reference_call_init(&call, problem, batch, layer_id, args, NULL, error);
    if (status == ATTN_OK && batch->mode != ATTN_MODE_IDLE && (call.index_q || call.index_logits))
        for (int32_t s = 0; s < batch->num_seqs && status == ATTN_OK; s++)
            status = judge_sequence(&call, s, report, error);
    fpu_unpin(fpu);
    return status;
}

/* ---- What the label cache must hold ---------------------------------------------------------- */

static attn_status store_sequence(const reference_call *call, const reference_sequence *sequence,
                                  double *label, const attn_tensor *image, attn_error *error)
{
    const attn_sparse_dims *sparse = call->group->sparse;
    int64_t page_size = call->problem->page_size;
    for (int64_t n = 0; n < sequence->num_new; n++) {
        int64_t row = sequence->first_new_row + n, slot = reference_new_slot(call, row);
        int64_t index[] = {row, 0};
        if (slot < 0) /* not written */
            continue;
        if (slot >= call->num_slots)
            return host_fail(error, ATTN_INVALID_ARGUMENT,
                             "out_cache_loc of new key %lld is %lld: accepted -1..%lld",
                             (long long)row, (long long)slot, (long long)call->num_slots - 1);
        dtype_to_double(call->index_k->dtype, reference_element(call->index_k, index, 2),
                        sparse->label_dim, label);
        int64_t number;
        char *page = label_at(call, image, slot, &number);
        reference_label_store(sparse, page_size, label, page, number);
    }
    return ATTN_OK;
}

attn_status reference_expected_labels(const attn_problem *problem, const attn_batch *batch,
                                      int32_t layer_id, const attn_forward_args *args,
                                      const attn_tensor *image, attn_error *error)
{
    reference_call call;
    if (batch->mode == ATTN_MODE_IDLE)
        return ATTN_OK;
    attn_status status = reference_call_init(&call, problem, batch, layer_id, args, NULL, error);
    if (status != ATTN_OK || !call.index_k || !call.save_kv)
        return status;
    double *label = calloc((size_t)problem->group->sparse->label_dim, sizeof *label);
    if (!label)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "reference: no memory for a label");
    for (int32_t s = 0; s < reference_num_real_seqs(batch) && status == ATTN_OK; s++) {
        reference_sequence sequence;
        status = reference_sequence_init(&sequence, &call, s, error);
        if (status == ATTN_OK)
            status = store_sequence(&call, &sequence, label, image, error);
    }
    free(label);
    return status;
}
