/* SPDX-License-Identifier: Apache-2.0
 *
 * operands.c: operands of a sparse layer: the steps of a call, their operands, and memory for those
 * that are not given. */
#include "sparse.h"

#include "attn_plugin_util.h"
#include "plugins/cpu_native/mla/mla.h"

#define FAIL(error, field, ...)                                                                    \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field, "" __VA_ARGS__)

static int is_given(const attn_forward_args *args, uint32_t role)
{
    return attn_operand(args, role) != NULL;
}

/* ---- Labels ---------------------------------------------------------------------------------- */

static attn_status get_label_cache(layer_call *call, const attn_forward_args *args,
                                   attn_error *error)
{
    const sparse_group *sparse = &call->group->sparse;
    const int64_t page = call->group->page_size, label = sparse->label;
    const int has_codes = sparse->label_dtype == ATTN_FP8_E4M3;
    const attn_util_form codes = {.dtype = ATTN_U8,
                                  .ndim = 2,
                                  .shape = {0, page * (label + (int64_t)sizeof(float))},
                                  .written = call->save};
    const attn_util_form plain = {
        .dtype = sparse->label_dtype, .ndim = 3, .shape = {0, page, label}, .written = call->save};
    const attn_tensor *cache = NULL;
    attn_status status =
        cpu_get_rows(args, ATTN_ROLE_LABEL_CACHE, has_codes ? codes : plain, 0, &cache, error);
    if (status != ATTN_OK)
        return status;
    const int64_t element = attn_dtype_size(cache->dtype);
    call->sparse.labels = attn_util_data(cache);
    call->sparse.label_page = cache->strides[0] * element;
    call->sparse.label_token = has_codes ? label : cache->strides[1] * element;
    call->sparse.num_pages = cache->shape[0];
    return ATTN_OK;
}

static attn_status get_indexer(layer_call *call, const attn_forward_args *args, attn_error *error)
{
    const sparse_group *sparse = &call->group->sparse;
    const int64_t rows = call->plan->row_end;
    const attn_util_form q = {
        .dtype = sparse->q_dtype, .ndim = 3, .shape = {0, sparse->heads, sparse->label}};
    const attn_util_form weights = {.dtype = ATTN_F32, .ndim = 2, .shape = {0, sparse->heads}};
    attn_status status = cpu_get_rows(args, ATTN_ROLE_INDEX_Q, q, rows, &call->sparse.q, error);
    if (status == ATTN_OK)
        status = cpu_get_rows(args, ATTN_ROLE_INDEX_WEIGHTS, weights, rows, &call->sparse.weights,
                              error);
    return status;
}

static attn_status get_new_labels(layer_call *call, const attn_forward_args *args,
                                  attn_error *error)
{
    const attn_util_form k = {
        .dtype = call->group->new_dtype, .ndim = 2, .shape = {0, call->group->sparse.label}};
    if (!(args->flags & ATTN_FORWARD_SAVE_KV))
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "operand index_k is given without SAVE_KV: labels are read from the cache");
    call->save = 1;
    attn_status status =
        cpu_get_rows(args, ATTN_ROLE_INDEX_K, k, call->plan->new_end, &call->sparse.k, error);
    return status == ATTN_OK ? cpu_check_new_keys(call, error) : status;
}

/* ---- Results of the steps -------------------------------------------------------------------- */

static attn_status get_logits(layer_call *call, const attn_forward_args *args, attn_error *error)
{
    const attn_util_form form = {
        .dtype = ATTN_F32, .ndim = 2, .shape = {0, -1}, .written = call->sparse.labelled};
    const attn_tensor *logits = NULL;
    if (!is_given(args, ATTN_ROLE_INDEX_LOGITS))
        return ATTN_OK;
    attn_status status =
        cpu_get_rows(args, ATTN_ROLE_INDEX_LOGITS, form, call->plan->row_end, &logits, error);
    if (status != ATTN_OK)
        return status;
    if (logits->shape[1] < call->plan->longest)
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "operand index_logits: shape[1] is %lld: accepted %d and more",
                    (long long)logits->shape[1], call->plan->longest);
    call->sparse.logits = (float *)(void *)attn_util_data(logits);
    call->sparse.logit_stride = logits->strides[0];
    call->sparse.wave = 0; /* there is room for all */
    return ATTN_OK;
}

static attn_status get_lists(layer_call *call, const attn_forward_args *args, attn_error *error)
{
    const int written = call->sparse.chosen;
    const attn_util_form form = {
        .dtype = ATTN_I32, .ndim = 2, .shape = {0, call->group->sparse.top_k}, .written = written};
    const attn_util_form one = {.dtype = ATTN_I32, .ndim = 1, .shape = {0}, .written = written};
    const attn_tensor *indices = NULL, *counts = NULL;
    row_lists *lists = &call->sparse.lists;
    if (written && !is_given(args, ATTN_ROLE_SPARSE_INDICES))
        return ATTN_OK;
    attn_status status =
        cpu_get_rows(args, ATTN_ROLE_SPARSE_INDICES, form, call->plan->row_end, &indices, error);
    if (status == ATTN_OK && is_given(args, ATTN_ROLE_SPARSE_COUNT))
        status =
            cpu_get_rows(args, ATTN_ROLE_SPARSE_COUNT, one, call->plan->row_end, &counts, error);
    if (status != ATTN_OK)
        return status;
    lists->slots = (int32_t *)(void *)attn_util_data(indices);
    lists->stride = indices->strides[0];
    if (written && counts) {
        call->sparse.given_counts = (int32_t *)(void *)attn_util_data(counts);
        call->sparse.given_stride = counts->strides[0];
    }
    if (written)
        return ATTN_OK;
    lists->most = call->plan->max_count;
    lists->counts = counts ? (int32_t *)(void *)attn_util_data(counts) : NULL;
    lists->count_stride = counts ? counts->strides[0] : 0;
    return ATTN_OK;
}

/* ---- All of it ------------------------------------------------------------------------------- */

/* Which steps there are, by what is given. */
static void find_steps(layer_call *call, const attn_forward_args *args)
{
    sparse_operands *own = &call->sparse;
    const int has_indexer = call->group->sparse.heads > 0;
    own->labelled = has_indexer && is_given(args, ATTN_ROLE_INDEX_Q);
    own->chosen = own->labelled || (has_indexer && is_given(args, ATTN_ROLE_INDEX_LOGITS));
    call->attends = is_given(args, ATTN_ROLE_OUT) || !own->chosen;
    if (!call->attends && !is_given(args, ATTN_ROLE_SPARSE_INDICES))
        own->chosen = 0; /* logits alone */
}

static attn_status get_index_operands(layer_call *call, const attn_forward_args *args,
                                      attn_error *error)
{
    attn_status status = ATTN_OK;
    const int saves = call->group->sparse.heads > 0 && is_given(args, ATTN_ROLE_INDEX_K);
    if (call->group->sparse.heads > 0)
        sparse_share_memory(call, call->metadata->shared);
    if (saves)
        status = get_new_labels(call, args, error);
    if (status == ATTN_OK && (saves || call->sparse.labelled))
        status = get_label_cache(call, args, error);
    if (status == ATTN_OK && call->sparse.labelled)
        status = get_indexer(call, args, error);
    if (status == ATTN_OK && (call->sparse.labelled || call->sparse.chosen))
        status = get_logits(call, args, error);
    if (status == ATTN_OK && (call->sparse.chosen || call->attends))
        status = get_lists(call, args, error);
    return status;
}

attn_status sparse_get_operands(layer_call *call, const cpu_layer *layer,
                                const attn_forward_args *args, attn_error *error)
{
    find_steps(call, args);
    attn_status status = mla_get_operands(call, layer, args, error);
    if (status == ATTN_OK && call->k && !call->save)
        status = FAIL(error, ATTN_FIELD_OPERAND,
                      "operand c_kv is given without SAVE_KV: chosen keys are read from the cache");
    return status == ATTN_OK ? get_index_operands(call, args, error) : status;
}
