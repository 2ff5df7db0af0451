/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c: flashinfer_like: what it is called, and the one exported function.
 */
#include "plugins/flashinfer_like/flashinfer_like.h"

#include "plugins/common/cuda/image.h"
#include "plugins/common/plugin_entry.h"

/* ---- Tables ---------------------------------------------------------------------------------- */

static const char *const layouts[] = {ATTN_LAYOUT_KV_NHD, ATTN_LAYOUT_KV_HND};

static const attn_option options_declared[] = {FI_OPTIONS, FI_KERNEL_OPTIONS};

static const attn_backend_ops ops = {
    .struct_size = sizeof(attn_backend_ops),
    .destroy = fi_destroy,
    .index_forms = fi_index_forms,
    .metadata_size = fi_metadata_size,
    .metadata_create = fi_metadata_create,
    .init_forward_metadata = fi_init_forward_metadata,
    .metadata_destroy = cuda_metadata_destroy,
    .forward_extend = fi_forward_extend,
    .forward_decode = fi_forward_decode,
    .get_extension = fi_get_extension,
};

static const attn_backend_type flashinfer_like_type = {
    .struct_size = sizeof(attn_backend_type),
    .name = "flashinfer_like",
    .flags = CUDA_IMAGE_BACKEND_FLAGS,
    .doc = "paged softmax attention, planned and balanced for any mix of lengths, bf16 and fp16",
    .num_layouts = sizeof layouts / sizeof layouts[0],
    .layouts = layouts,
    .num_options = sizeof options_declared / sizeof options_declared[0],
    .options = options_declared,
    .ops = &ops,
    .query = fi_query,
    .create = fi_create,
};

static attn_status describe(uint32_t index, const attn_backend_type **type, attn_error *error)
{
    static const attn_backend_type *const types[] = {&flashinfer_like_type};
    return attn_util_describe(types, 1, index, type, error);
}

ATTN_EXPORT attn_status attn_plugin_entry(const attn_host_info *host, attn_plugin *plugin,
                                          attn_error *error)
{
    static const attn_plugin mine = {
        .num_backends = 1,
        .name = "flashinfer_like",
        .doc = "paged attention by kernels compiled ahead of time",
        .describe = describe,
    };
    return plugin_answer(host, &mine, plugin, error);
}
