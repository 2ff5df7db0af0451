/* SPDX-License-Identifier: Apache-2.0
 *
 * operands.c: the steps of a call, by its operands, and their tensors as addresses and byte
 * strides. flashmla_like checks those of attention.
 */
#include "plugins/dsa_like/dsa_like.h"

#include "attn_plugin_util.h"
#include "plugins/common/cuda/operands.h"
#include "plugins/common/cuda/save_packed.cuh"

#define FAIL(error, field, ...)                                                                    \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field, "" __VA_ARGS__)

static int is_given(const attn_forward_args *args, uint32_t role)
{
    return attn_operand(args, role) != NULL;
}

/* ---- Caches ---------------------------------------------------------------------------------- */

static attn_status take_new_latents(const dsa_layers *group, const attn_forward_args *args,
                                    int64_t rows, dsa_save_call *to, attn_error *error)
{
    const attn_tensor *c_kv = NULL, *k_pe = NULL, *cache = NULL;
    const int32_t lora = group->mla.kv_lora_rank, rope = group->mla.rope_dim;
    const int packed = group->base.packed;
    const attn_util_form latents = {
        .dtype = packed ? ATTN_U8 : ATTN_BF16,
        .ndim = 3,
        .shape = {0, group->base.page_size, packed ? packed_row_bytes(lora, rope) : lora + rope},
        .written = 1};
    attn_util_form form = {.dtype = ATTN_BF16, .ndim = 2, .shape = {0, lora}};
    attn_status status = cuda_operand_rows(args, ATTN_ROLE_C_KV, form, rows, &c_kv, error);
    form.shape[1] = rope;
    if (status == ATTN_OK)
        status = cuda_operand_rows(args, ATTN_ROLE_K_PE, form, rows, &k_pe, error);
    if (status == ATTN_OK)
        status = cuda_operand_rows(args, ATTN_ROLE_LATENT_CACHE, latents, 0, &cache, error);
    if (status != ATTN_OK)
        return status;
    to->lora = lora;
    to->rope = rope;
    to->latents.k = attn_util_data(c_kv);
    to->latents.k_row = cuda_stride_bytes(c_kv, 0);
    to->latents.v = attn_util_data(k_pe);
    to->latents.v_row = cuda_stride_bytes(k_pe, 0);
    to->latents.k_cache = attn_util_data(cache);
    to->packed = packed;
    to->latents.v_cache = (char *)attn_util_data(cache) + lora * 2;
    to->latents.k_page = to->latents.v_page = cuda_stride_bytes(cache, 0);
    to->latents.k_token = to->latents.v_token = cuda_stride_bytes(cache, 1);
    return ATTN_OK;
}

/* Codes and scales lie in rows of bytes, whose scales are read as fp32. */
static attn_status get_label_cache(const dsa_layers *group, const attn_forward_args *args,
                                   int written, const attn_tensor **cache, attn_error *error)
{
    const int64_t page = group->base.page_size;
    const attn_util_form codes = {.dtype = ATTN_U8,
                                  .ndim = 2,
                                  .shape = {0, page * (DSA_LABEL + (int64_t)sizeof(float))},
                                  .written = written};
    const attn_util_form plain = {.dtype = group->sparse.label_dtype,
                                  .ndim = 3,
                                  .shape = {0, page, DSA_LABEL},
                                  .written = written};
    const int has_codes = group->sparse.label_dtype == ATTN_FP8_E4M3;
    attn_status status =
        cuda_operand_rows(args, ATTN_ROLE_LABEL_CACHE, has_codes ? codes : plain, 0, cache, error);
    if (status == ATTN_OK && has_codes && !cuda_is_aligned(*cache, (int64_t)sizeof(float)))
        status = FAIL(error, ATTN_FIELD_OPERAND,
                      "operand label_cache: a page does not begin at a multiple of 4 bytes");
    return status;
}

static attn_status take_new_labels(const dsa_layers *group, const attn_forward_args *args,
                                   int64_t rows, dsa_save_call *to, attn_error *error)
{
    const attn_tensor *label = NULL, *cache = NULL;
    const attn_util_form form = {.dtype = ATTN_BF16, .ndim = 2, .shape = {0, DSA_LABEL}};
    if (!(args->flags & ATTN_FORWARD_SAVE_KV))
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "operand index_k is given without SAVE_KV: labels are read from the cache");
    attn_status status = cuda_operand_rows(args, ATTN_ROLE_INDEX_K, form, rows, &label, error);
    if (status == ATTN_OK)
        status = get_label_cache(group, args, 1, &cache, error);
    if (status != ATTN_OK)
        return status;
    to->label = attn_util_data(label);
    to->label_row = cuda_stride_bytes(label, 0);
    to->label_cache = attn_util_data(cache);
    to->label_page = cuda_stride_bytes(cache, 0);
    to->label_codes = group->sparse.label_dtype == ATTN_FP8_E4M3;
    to->label_token = to->label_codes ? DSA_LABEL : cuda_stride_bytes(cache, 1);
    return ATTN_OK;
}

static attn_status take_new(const attn_metadata *metadata, uint32_t index,
                            const attn_util_layer *layer, const attn_forward_args *args,
                            dsa_call *call, attn_error *error)
{
    const dsa_layers *group = &metadata->instance->groups[index];
    const attn_kv_batch *kv = &metadata->plan.kv[index];
    const int64_t rows = kv->kv_new_indptr.device ? 0 : metadata->plan.batch.num_tokens;
    const int latents = is_given(args, ATTN_ROLE_C_KV) || is_given(args, ATTN_ROLE_K_PE);
    const int labels = group->sparse.index_heads > 0 && is_given(args, ATTN_ROLE_INDEX_K);
    attn_status status = ATTN_OK;
    call->saves = latents || labels;
    if (!call->saves)
        return ATTN_OK;
    if (layer->kv_read_only)
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "layer %d reads the latents of another layer: accepted no operands c_kv, k_pe "
                    "and index_k",
                    layer->layer_id);
    if (latents && !(args->flags & ATTN_FORWARD_SAVE_KV))
        return FAIL(error, ATTN_FIELD_OPERAND,
                    "operand c_kv is given without SAVE_KV: chosen keys are read from the cache");
    if (latents)
        status = take_new_latents(group, args, rows, &call->save, error);
    if (status == ATTN_OK && labels)
        status = take_new_labels(group, args, rows, &call->save, error);
    if (status == ATTN_OK && !kv->out_cache_loc.device)
        status = FAIL(error, ATTN_FIELD_BATCH, "SAVE_KV without out_cache_loc on the device");
    call->save.page_size = group->base.page_size;
    return status;
}

/* ---- Indexer --------------------------------------------------------------------------------- */

static attn_status take_indexer(const dsa_layers *group, const attn_forward_args *args,
                                int64_t rows, dsa_label_call *to, attn_error *error)
{
    const attn_tensor *q = NULL, *weights = NULL, *cache = NULL;
    const attn_util_form q_form = {.dtype = group->sparse.index_dtype,
                                   .ndim = 3,
                                   .shape = {0, group->sparse.index_heads, DSA_LABEL}};
    const attn_util_form weights_form = {
        .dtype = ATTN_F32, .ndim = 2, .shape = {0, group->sparse.index_heads}};
    attn_status status = get_label_cache(group, args, 0, &cache, error);
    if (status == ATTN_OK)
        status = cuda_operand_rows(args, ATTN_ROLE_INDEX_Q, q_form, rows, &q, error);
    if (status == ATTN_OK)
        status =
            cuda_operand_rows(args, ATTN_ROLE_INDEX_WEIGHTS, weights_form, rows, &weights, error);
    if (status != ATTN_OK)
        return status;
    call_operands *o = &to->operands;
    to->heads = group->sparse.index_heads;
    to->q_codes = group->sparse.index_dtype == ATTN_FP8_E4M3;
    to->label_codes = group->sparse.label_dtype == ATTN_FP8_E4M3;
    to->weights = (const float *)(const void *)attn_util_data(weights);
    to->weights_row = cuda_stride_bytes(weights, 0);
    o->q = attn_util_data(q);
    o->q_row = cuda_stride_bytes(q, 0);
    o->q_head = cuda_stride_bytes(q, 1);
    o->k_cache = attn_util_data(cache);
    o->k_page = o->v_page = cuda_stride_bytes(cache, 0);
    o->k_token = to->label_codes ? DSA_LABEL : cuda_stride_bytes(cache, 1);
    o->v_cache = (char *)attn_util_data(cache) + (int64_t)group->base.page_size * DSA_LABEL;
    o->v_token = (long long)sizeof(float);
    o->aligned = (cuda_is_aligned(q, 16) ? CALL_ALIGNED_Q : 0) |
                 (cuda_is_aligned(cache, 16) ? CALL_ALIGNED_CACHE : 0);
    return ATTN_OK;
}

static attn_status take_logits(const attn_metadata *metadata, const attn_forward_args *args,
                               int64_t rows, dsa_call *call, attn_error *error)
{
    const attn_util_form form = {
        .dtype = ATTN_F32, .ndim = 2, .shape = {0, -1}, .written = call->labels};
    const attn_tensor *logits = NULL;
    float *at = dsa_logits(metadata);
    long long row = dsa_logits_row(&metadata->plan.bounds);
    call->keeps_logits = !is_given(args, ATTN_ROLE_INDEX_LOGITS);
    if (!call->keeps_logits) {
        attn_status status =
            cuda_operand_rows(args, ATTN_ROLE_INDEX_LOGITS, form, rows, &logits, error);
        if (status != ATTN_OK)
            return status;
        if (logits->shape[1] < metadata->plan.batch.max_kv_len)
            return FAIL(error, ATTN_FIELD_OPERAND,
                        "operand index_logits: shape[1] is %lld: accepted %d and more",
                        (long long)logits->shape[1], metadata->plan.batch.max_kv_len);
        at = (float *)(void *)attn_util_data(logits);
        row = logits->strides[0];
    }
    call->label.logits = at;
    call->choose.logits = at;
    call->label.logits_row = call->choose.logits_row = row;
    call->label.given = call->choose.given = !call->keeps_logits;
    return ATTN_OK;
}

/* ---- Lists ----------------------------------------------------------------------------------- */

static attn_status take_lists(const dsa_layers *group, const attn_forward_args *args, int64_t rows,
                              dsa_call *call, attn_error *error)
{
    const attn_util_form form = {
        .dtype = ATTN_I32, .ndim = 2, .shape = {0, group->sparse.top_k}, .written = call->chooses};
    const attn_util_form one = {.dtype = ATTN_I32, .ndim = 1, .written = call->chooses};
    const attn_tensor *indices = NULL, *counts = NULL;
    if (call->chooses && !is_given(args, ATTN_ROLE_SPARSE_INDICES))
        return ATTN_OK;
    attn_status status =
        cuda_operand_rows(args, ATTN_ROLE_SPARSE_INDICES, form, rows, &indices, error);
    if (status == ATTN_OK && is_given(args, ATTN_ROLE_SPARSE_COUNT))
        status = cuda_operand_rows(args, ATTN_ROLE_SPARSE_COUNT, one, rows, &counts, error);
    if (status != ATTN_OK)
        return status;
    call->choose.indices = (int *)(void *)attn_util_data(indices);
    call->choose.counts = counts ? (int *)(void *)attn_util_data(counts) : NULL;
    call->choose.indices_row = indices->strides[0];
    call->choose.counts_row = counts ? counts->strides[0] : 0;
    call->take.indices = call->choose.indices;
    call->take.counts = call->choose.counts;
    call->take.indices_row = call->choose.indices_row;
    call->take.counts_row = call->choose.counts_row;
    return ATTN_OK;
}

/* Which steps there are, by what is given. */
static void find_steps(const dsa_layers *group, const attn_forward_args *args, dsa_call *call)
{
    const int has_indexer = group->sparse.index_heads > 0;
    call->labels = has_indexer && is_given(args, ATTN_ROLE_INDEX_Q);
    call->chooses = call->labels || (has_indexer && is_given(args, ATTN_ROLE_INDEX_LOGITS));
    call->attends = is_given(args, ATTN_ROLE_OUT) || !call->chooses;
    if (!call->attends && !is_given(args, ATTN_ROLE_SPARSE_INDICES))
        call->chooses = 0; /* logits alone */
}

attn_status dsa_take_operands(const attn_metadata *metadata, uint32_t index,
                              const attn_util_layer *layer, const attn_forward_args *args,
                              dsa_call *call, attn_error *error)
{
    const dsa_layers *group = &metadata->instance->groups[index];
    const int64_t rows = metadata->plan.batch.num_tokens;
    if (args->num_operands > 0 && !args->operands)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "operands are NULL");
    find_steps(group, args, call);
    attn_status status = take_new(metadata, index, layer, args, call, error);
    if (status == ATTN_OK && call->labels)
        status = take_indexer(group, args, rows, &call->label, error);
    if (status == ATTN_OK && (call->labels || call->chooses))
        status = take_logits(metadata, args, rows, call, error);
    if (status == ATTN_OK && (call->chooses || call->attends))
        status = take_lists(group, args, rows, call, error);
    call->choose.top_k = group->sparse.top_k;
    return status;
}
