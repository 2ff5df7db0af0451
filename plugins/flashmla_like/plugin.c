/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/flashmla_like/flashmla_like.h"

#include "attn_plugin_util.h"
#include "plugins/common/plugin_entry.h"

static const char *const layouts[] = {ATTN_LAYOUT_MLA_LATENT};

static const attn_backend_ops ops = {
    .struct_size = sizeof ops,
    .destroy = fm_destroy,
    .index_forms = fm_index_forms,
    .metadata_size = fm_metadata_size,
    .metadata_create = fm_metadata_create,
    .init_forward_metadata = fm_init_forward_metadata,
    .metadata_destroy = fm_metadata_destroy,
    .forward_extend = fm_forward_extend,
    .forward_decode = fm_forward_decode,
    .get_extension = attn_util_no_extension,
};

const attn_backend_type flashmla_like_type = {
    .struct_size = sizeof flashmla_like_type,
    .name = "flashmla_like",
    .doc =
        "absorbed latent attention over latents up to 512 + 64 in bf16 or e4m3, planned and split "
        "on the device",
    .num_layouts = sizeof layouts / sizeof layouts[0],
    .layouts = layouts,
    .ops = &ops,
    .query = fm_query,
    .create = fm_create,
};

static attn_status describe(uint32_t index, const attn_backend_type **type, attn_error *error)
{
    static const attn_backend_type *const types[] = {&flashmla_like_type};
    return attn_util_describe(types, 1, index, type, error);
}

ATTN_EXPORT attn_status attn_plugin_entry(const attn_host_info *host, attn_plugin *plugin,
                                          attn_error *error)
{
    static const attn_plugin mine = {
        .num_backends = 1,
        .name = "flashmla_like",
        .doc = "latent attention by kernels compiled ahead of time",
        .describe = describe,
    };
    return plugin_answer(host, &mine, plugin, error);
}
