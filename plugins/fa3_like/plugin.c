/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c: fa3_like, attention on Hopper by kernels that were written for it: what it is called,
 * and the one exported function.
 */
#include "plugins/fa3_like/fa3_like.h"

#include "plugins/common/cuda/image.h"
#include "plugins/common/plugin_entry.h"

static const char *const layouts[] = {ATTN_LAYOUT_KV_NHD, ATTN_LAYOUT_KV_HND,
                                      ATTN_LAYOUT_MLA_LATENT};

static const char *const tiles_choices[TILES_COUNT] = {[TILES_AUTO] = "auto",
                                                       [TILES_ALWAYS] = "always",
                                                       [TILES_NEVER] = "never",
                                                       [TILES_SHARED] = "shared"};

static const attn_option options_declared[] = {
    FI_OPTIONS,
    {.struct_size = sizeof(attn_option),
     .type = ATTN_OPTION_ENUM,
     .key = "tiles",
     .default_text = "auto",
     .min = 1,
     .num_choices = TILES_COUNT,
     .choices = tiles_choices,
     .doc =
         "batches that use the plugin's own forward kernels instead of those of flashinfer_like, "
         "if they can; auto = if faster; shared = always, with keys split into parts"},
};

static const attn_backend_ops ops = {
    .struct_size = sizeof(attn_backend_ops),
    .destroy = fa3_destroy,
    .index_forms = fi_index_forms,
    .metadata_size = fa3_metadata_size,
    .metadata_create = fa3_metadata_create,
    .init_forward_metadata = fa3_init_forward_metadata,
    .metadata_destroy = cuda_metadata_destroy,
    .forward_extend = fa3_forward_extend,
    .forward_decode = fa3_forward_decode,
    .get_extension = fa3_get_extension,
};

static const attn_backend_type fa3_like_type = {
    .struct_size = sizeof(attn_backend_type),
    .flags = CUDA_IMAGE_BACKEND_FLAGS,
    .name = "fa3_like",
    .doc = "softmax and expanded latent attention on Hopper (sm_90), bf16 and fp16, kernels with "
           "wgmma and TMA",
    .num_layouts = sizeof layouts / sizeof layouts[0],
    .layouts = layouts,
    .num_options = sizeof options_declared / sizeof options_declared[0],
    .options = options_declared,
    .ops = &ops,
    .query = fa3_query,
    .create = fa3_create,
};

static attn_status describe(uint32_t index, const attn_backend_type **type, attn_error *error)
{
    static const attn_backend_type *const types[] = {&fa3_like_type};
    return attn_util_describe(types, 1, index, type, error);
}

ATTN_EXPORT attn_status attn_plugin_entry(const attn_host_info *host, attn_plugin *plugin,
                                          attn_error *error)
{
    static const attn_plugin mine = {
        .num_backends = 1,
        .name = "fa3_like",
        .doc = "attention on Hopper by kernels compiled ahead of time",
        .describe = describe,
    };
    return plugin_answer(host, &mine, plugin, error);
}
