/* SPDX-License-Identifier: Apache-2.0
 *
 * sparse.c: attention to the latents that each query chooses (DeepSeek V3.2, GLM-5): latent
 * attention in the absorbed form, with an indexer beside it whose labels lie in a cache of their
 * own. A layer without an indexer has the choice of the layer before it.
 */
#include "host/kinds/mla.h"

#include "host/kinds/attention.h"

/* ---- Rows ------------------------------------------------------------------------------------ */

static uint32_t list_rows(const struct model *model, const attn_layer_group *group,
                          struct row_operand *list)
{
    const attn_sparse_dims *sparse = group->sparse;
    const int32_t heads = sparse->index_heads, dim = sparse->label_dim;
    struct row_operand latents[OPERANDS_MAX];
    uint32_t num_latents = mla_absorbed.list(model, group, latents), count = 0;
    uint32_t num_kv = operands_count_kv(latents, num_latents);
    for (uint32_t i = 0; i < num_latents - num_kv; i++)
        list[count++] = latents[i];
    if (heads > 0) {
        list[count++] = (struct row_operand){ATTN_ROLE_INDEX_Q,
                                             heads,
                                             dim,
                                             sparse->index_dtype,
                                             GENERATOR_OPERAND + ATTN_ROLE_INDEX_Q,
                                             0};
        list[count++] = (struct row_operand){ATTN_ROLE_INDEX_WEIGHTS,
                                             0,
                                             heads,
                                             ATTN_F32,
                                             GENERATOR_OPERAND + ATTN_ROLE_INDEX_WEIGHTS,
                                             0};
    }
    for (uint32_t i = num_latents - num_kv; i < num_latents; i++)
        list[count++] = latents[i];
    if (heads > 0)
        list[count++] = (struct row_operand){
            ATTN_ROLE_INDEX_K, 0, dim, model->dtype, GENERATOR_OPERAND + ATTN_ROLE_INDEX_K, 0};
    return count;
}

static void describe_output(const attn_layer_group *group, struct row_operand *out)
{
    mla_absorbed.output(group, out);
}

static void geometry(const attn_layer_group *group, generator_layer *to)
{
    mla_absorbed.geometry(group, to);
}

static const struct kind_form chosen = {list_rows, describe_output, geometry};

/* Streams of the token itself: no index query is a needle. New labels are those of the layer that
 * owns the cache. */
static void make_row(const struct kind_row *row, const struct row_operand *operand, void *to)
{
    const int32_t heads = operand->heads > 0 ? operand->heads : 1;
    if (operand->stream < GENERATOR_OPERAND) {
        attention_make_row(row, operand, to);
        return;
    }
    struct request_tokens tokens = workload_tokens(row->workload, row->request);
    for (int32_t h = 0; h < heads; h++) {
        int16_t wide[GENERATOR_MAX_DIM];
        sparse_index_raw(row->generator, token_key_at(&tokens, row->position), row->layer, h,
                         operand->role, operand->dim, wide);
        generator_convert(wide, operand->dim, operand->dtype,
                          (char *)to +
                              (int64_t)h * operand->dim * (int64_t)attn_dtype_size(operand->dtype));
    }
}

/* ---- Cache ----------------------------------------------------------------------------------- */

static uint32_t list_tensors(const attn_layer_group *group, const struct kind_pool *pool,
                             struct kind_tensor *list)
{
    const attn_sparse_dims *sparse = group->sparse;
    uint32_t count = mla_list_tensors(group, pool, list);
    if (sparse->index_heads == 0)
        return count;
    bool has_codes = sparse->label_dtype == ATTN_FP8_E4M3;
    int64_t scale = (int64_t)sizeof(float);
    list[count] = (struct kind_tensor){
        .role = ATTN_ROLE_LABEL_CACHE,
        .scale = KIND_SCALE_NONE,
        .dtype = has_codes ? ATTN_U8 : sparse->label_dtype,
        .ndim = has_codes ? 2 : 3,
        .shape = {pool->num_pages,
                  has_codes ? pool->page_size * (sparse->label_dim + scale) : pool->page_size,
                  sparse->label_dim},
    };
    return count + 1;
}

const struct kind_ops kind_sparse = {
    .form = &chosen,
    .make_row = make_row,
    .constants = attention_constants,
    .describe_constant = attention_describe_constant,
    .make_constant = attention_make_constant,
    .layouts = MLA_LAYOUTS,
    .allows = mla_allows,
    .check_layout = mla_check_layout,
    .tensors = list_tensors,
    .is_scaled = mla_is_scaled,
    .one_scale = MLA_ONE_SCALE,
    .judged = KIND_JUDGED_AS_ATTENTION,
};
