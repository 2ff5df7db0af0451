/* SPDX-License-Identifier: Apache-2.0
 *
 * mla.h: the layouts of latent caches, and what the kinds that have one share.
 *
 * In mla.latent_fp8/1 a row is bytes: kv_lora_rank codes of e4m3, a scale in fp32 for each 128 of
 * them, rope_dim elements in bf16. The oracle knows the layout by itself (reference/mla.c).
 */
#ifndef HOST_KINDS_MLA_H
#define HOST_KINDS_MLA_H

#include "host/kinds/kinds.h"

/* Elements of a latent that share a scale in a packed row. */
enum { MLA_PACKED_SCALED = 128 };

/* Is this mla.latent_fp8/1? NULL is no layout. */
bool mla_is_packed(const char *layout);

/* Bytes of its rows. */
int32_t mla_packed_bytes(const attn_mla_dims *mla);

/* Can latents of these dimensions be packed so? INVALID_ARGUMENT says what is accepted. */
attn_status mla_check_packed(const attn_mla_dims *mla, attn_dtype kv_dtype, attn_error *error);

/* The layouts, and the slots of the table that concern them. */
#define MLA_LAYOUTS                                                                                \
    {                                                                                              \
        ATTN_LAYOUT_MLA_LATENT, ATTN_LAYOUT_MLA_LATENT_FP8                                         \
    }
#define MLA_ONE_SCALE "latents have no heads"

/* The absorbed form, and its cache. */
extern const struct kind_form mla_absorbed;
uint32_t mla_list_tensors(const attn_layer_group *group, const struct kind_pool *pool,
                          struct kind_tensor *list);

bool mla_allows(const struct config_kv_cache *cache, const attn_layer_group *group,
                attn_dtype kv_dtype, uint32_t layout);
attn_status mla_check_layout(const struct config *config, const attn_layer_group *group,
                             attn_dtype kv_dtype, attn_error *error);
bool mla_is_scaled(const struct config_kv_cache *cache);

#endif /* HOST_KINDS_MLA_H */
