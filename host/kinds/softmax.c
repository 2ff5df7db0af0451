/* SPDX-License-Identifier: Apache-2.0
 *
 * softmax.c: softmax attention, in decoders, encoders and across: keys and values apart, for each
 * KV head.
 */
#include <string.h>

#include "host/kinds/attention.h"

/* Places in kind_softmax.layouts. */
enum { NHD, HND };

static bool allows(const struct config_kv_cache *cache, const attn_layer_group *group,
                   attn_dtype kv_dtype, uint32_t layout)
{
    (void)group, (void)kv_dtype;
    return cache->layout == CONFIG_LAYOUT_AUTO ||
           cache->layout == (layout == NHD ? CONFIG_LAYOUT_NHD : CONFIG_LAYOUT_HND);
}

/* Keys or values, `dim` wide. */
static struct kind_tensor cache_of(const attn_layer_group *group, const struct kind_pool *pool,
                                   uint32_t role, uint32_t scale, int32_t dim)
{
    bool is_hnd = strcmp(pool->layout, ATTN_LAYOUT_KV_HND) == 0;
    return (struct kind_tensor){
        .role = role,
        .scale = scale,
        .dtype = pool->kv_dtype,
        .ndim = 4,
        .shape = {pool->num_pages, is_hnd ? group->num_kv_heads : pool->page_size,
                  is_hnd ? pool->page_size : group->num_kv_heads, dim},
    };
}

static uint32_t list_tensors(const attn_layer_group *group, const struct kind_pool *pool,
                             struct kind_tensor *list)
{
    list[0] = cache_of(group, pool, ATTN_ROLE_K_CACHE, KIND_SCALE_KEY, group->head_dim);
    list[1] = cache_of(group, pool, ATTN_ROLE_V_CACHE, KIND_SCALE_VALUE, group->v_head_dim);
    return 2;
}

const struct kind_ops kind_softmax = {
    .form = &attention_form,
    .make_row = attention_make_row,
    .constants = attention_constants,
    .describe_constant = attention_describe_constant,
    .make_constant = attention_make_constant,
    .layouts = {[NHD] = ATTN_LAYOUT_KV_NHD, [HND] = ATTN_LAYOUT_KV_HND},
    .allows = allows,
    .tensors = list_tensors,
    .has_values = true,
    .judged = KIND_JUDGED_AS_ATTENTION,
};
