/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c: dsa_like, sparse attention to latents on Hopper: its names, and the one exported
 * function.
 */
#include "plugins/dsa_like/dsa_like.h"

#include "attn_plugin_util.h"
#include "plugins/common/plugin_entry.h"

static const char *const layouts[] = {ATTN_LAYOUT_MLA_LATENT, ATTN_LAYOUT_MLA_LATENT_FP8};

static const attn_backend_ops ops = {
    .struct_size = sizeof ops,
    .destroy = dsa_destroy,
    .index_forms = dsa_index_forms,
    .metadata_size = dsa_metadata_size,
    .metadata_create = dsa_metadata_create,
    .init_forward_metadata = dsa_init_forward_metadata,
    .metadata_destroy = dsa_metadata_destroy,
    .forward_extend = dsa_forward_extend,
    .forward_decode = dsa_forward_decode,
    .get_extension = attn_util_no_extension,
};

static const attn_backend_type dsa_like_type = {
    .struct_size = sizeof dsa_like_type,
    .name = "dsa_like",
    .doc = "sparse attention to latents of 512 + 64, bf16 or packed: an indexer's logits, choice, "
           "attention",
    .num_layouts = sizeof layouts / sizeof layouts[0],
    .layouts = layouts,
    .ops = &ops,
    .query = dsa_query,
    .create = dsa_create,
};

static attn_status describe(uint32_t index, const attn_backend_type **type, attn_error *error)
{
    static const attn_backend_type *const types[] = {&dsa_like_type};
    return attn_util_describe(types, 1, index, type, error);
}

ATTN_EXPORT attn_status attn_plugin_entry(const attn_host_info *host, attn_plugin *plugin,
                                          attn_error *error)
{
    static const attn_plugin mine = {
        .num_backends = 1,
        .name = "dsa_like",
        .doc = "sparse latent attention by kernels compiled ahead of time",
        .describe = describe,
    };
    return plugin_answer(host, &mine, plugin, error);
}
