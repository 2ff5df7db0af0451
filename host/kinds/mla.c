/* SPDX-License-Identifier: Apache-2.0
 *
 * mla.c: latent attention. Absorbed, it is one KV head whose keys are latents and whose values are
 * their first part; expanded, it is given keys and values as softmax attention is.
 */
#include "host/kinds/mla.h"

#include <string.h>

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/kinds/attention.h"

/* ---- Rows ------------------------------------------------------------------------------------ */

static uint32_t list_absorbed(const struct model *model, const attn_layer_group *group,
                              struct row_operand *list)
{
    attn_dtype dtype = model->dtype;
    int32_t q = group->num_q_heads, lora = group->mla->kv_lora_rank, rope = group->mla->rope_dim;
    list[0] = (struct row_operand){ATTN_ROLE_Q_NOPE, q, lora, dtype, GENERATOR_QUERY, 0};
    list[1] = (struct row_operand){ATTN_ROLE_Q_PE, q, rope, dtype, GENERATOR_QUERY, lora};
    list[2] = (struct row_operand){ATTN_ROLE_C_KV, 0, lora, dtype, GENERATOR_KEY, 0};
    list[3] = (struct row_operand){ATTN_ROLE_K_PE, 0, rope, dtype, GENERATOR_KEY, lora};
    return 4;
}

static void output_absorbed(const attn_layer_group *group, struct row_operand *out)
{
    out->heads = group->num_q_heads;
    out->dim = group->mla->kv_lora_rank;
}

static void geometry_absorbed(const attn_layer_group *group, generator_layer *geometry)
{
    attention_geometry(group, geometry);
    geometry->latent = 1;
    geometry->num_kv_heads = 1;
    geometry->head_dim = group->mla->kv_lora_rank + group->mla->rope_dim;
    geometry->v_head_dim = group->mla->kv_lora_rank;
}

const struct kind_form mla_absorbed = {list_absorbed, output_absorbed, geometry_absorbed};

/* ---- Layouts --------------------------------------------------------------------------------- */

/* Places in MLA_LAYOUTS. */
enum { PLAIN, PACKED };

bool mla_is_packed(const char *layout)
{
    return layout && strcmp(layout, ATTN_LAYOUT_MLA_LATENT_FP8) == 0;
}

int32_t mla_packed_bytes(const attn_mla_dims *mla)
{
    int32_t scales = mla->kv_lora_rank / MLA_PACKED_SCALED;
    return mla->kv_lora_rank * (int32_t)attn_dtype_size(ATTN_FP8_E4M3) +
           scales * (int32_t)attn_dtype_size(ATTN_F32) +
           mla->rope_dim * (int32_t)attn_dtype_size(ATTN_BF16);
}

attn_status mla_check_packed(const attn_mla_dims *mla, attn_dtype kv_dtype, attn_error *error)
{
    if (mla->kv_lora_rank % MLA_PACKED_SCALED != 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "kv_lora_rank %d in " ATTN_LAYOUT_MLA_LATENT_FP8
                         ": accepted multiples of %d",
                         mla->kv_lora_rank, MLA_PACKED_SCALED);
    if (kv_dtype != ATTN_FP8_E4M3)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "kv_dtype %s in " ATTN_LAYOUT_MLA_LATENT_FP8 ": accepted %s",
                         dtype_name(kv_dtype), dtype_name(ATTN_FP8_E4M3));
    return ATTN_OK;
}

bool mla_allows(const struct config_kv_cache *cache, const attn_layer_group *group,
                attn_dtype kv_dtype, uint32_t layout)
{
    if (layout == PLAIN)
        return cache->latent_layout != CONFIG_LATENT_FP8;
    return cache->latent_layout != CONFIG_LATENT_PLAIN &&
           mla_check_packed(group->mla, kv_dtype, NULL) == ATTN_OK;
}

attn_status mla_check_layout(const struct config *config, const attn_layer_group *group,
                             attn_dtype kv_dtype, attn_error *error)
{
    host_error said;
    host_error_init(&said);
    if (config->kv_cache.latent_layout != CONFIG_LATENT_FP8 ||
        mla_check_packed(group->mla, kv_dtype, &said.base) == ATTN_OK)
        return ATTN_OK;
    return config_fail(config, "kv_cache.latent_layout", error, "%s", host_error_text(&said));
}

/* Packed rows have scales of their own. */
bool mla_is_scaled(const struct config_kv_cache *cache)
{
    return cache->latent_layout != CONFIG_LATENT_FP8;
}

uint32_t mla_list_tensors(const attn_layer_group *group, const struct kind_pool *pool,
                          struct kind_tensor *list)
{
    const attn_mla_dims *mla = group->mla;
    bool packed = mla_is_packed(pool->layout);
    list[0] = (struct kind_tensor){
        .role = ATTN_ROLE_LATENT_CACHE,
        .scale = packed ? KIND_SCALE_NONE : KIND_SCALE_KEY,
        .dtype = packed ? ATTN_U8 : pool->kv_dtype,
        .ndim = 3,
        .shape = {pool->num_pages, pool->page_size,
                  packed ? mla_packed_bytes(mla) : mla->kv_lora_rank + mla->rope_dim},
    };
    return 1;
}

const struct kind_ops kind_mla = {
    .form = &mla_absorbed,
    .expanded = &attention_form,
    .make_row = attention_make_row,
    .constants = attention_constants,
    .describe_constant = attention_describe_constant,
    .make_constant = attention_make_constant,
    .layouts = MLA_LAYOUTS,
    .allows = mla_allows,
    .check_layout = mla_check_layout,
    .tensors = mla_list_tensors,
    .is_scaled = mla_is_scaled,
    .one_scale = MLA_ONE_SCALE,
    .judged = KIND_JUDGED_AS_ATTENTION,
};
