/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin.c: linear_like, recurrent layers on CUDA by kernels compiled ahead of time: what it is
 * called, and the one exported function.
 */
#include "linear_like.h"

#include "attn_plugin_util.h"
#include "plugins/common/cuda/image.h"
#include "plugins/common/plugin_entry.h"

static const char *const layouts[] = {ATTN_LAYOUT_STATE_SSM_KV, ATTN_LAYOUT_STATE_SSM_VK,
                                      ATTN_LAYOUT_STATE_CONV};

/* No index form: linear layers have no keys to look for. */
static uint32_t index_forms(attn_instance *instance)
{
    (void)instance;
    return 0;
}

static const attn_backend_ops ops = {
    .struct_size = sizeof(attn_backend_ops),
    .destroy = linear_destroy,
    .index_forms = index_forms,
    .metadata_size = linear_metadata_size,
    .metadata_create = linear_metadata_create,
    .init_forward_metadata = linear_init_forward_metadata,
    .metadata_destroy = cuda_metadata_destroy,
    .forward_extend = linear_forward_extend,
    .forward_decode = linear_forward_decode,
    .get_extension = attn_util_no_extension,
};

const attn_backend_type linear_like_type = {
    .struct_size = sizeof(attn_backend_type),
    .flags = CUDA_IMAGE_BACKEND_FLAGS,
    .name = "linear_like",
    .doc = "recurrent layers on CUDA: gated delta net, Mamba2, KDA, lightning, short convolution",
    .num_layouts = sizeof layouts / sizeof layouts[0],
    .layouts = layouts,
    .ops = &ops,
    .query = linear_query,
    .create = linear_create,
};

static attn_status describe(uint32_t index, const attn_backend_type **type, attn_error *error)
{
    static const attn_backend_type *const types[] = {&linear_like_type};
    return attn_util_describe(types, 1, index, type, error);
}

ATTN_EXPORT attn_status attn_plugin_entry(const attn_host_info *host, attn_plugin *plugin,
                                          attn_error *error)
{
    static const attn_plugin mine = {
        .num_backends = 1,
        .name = "linear_like",
        .doc = "recurrent layers on CUDA",
        .describe = describe,
    };
    return plugin_answer(host, &mine, plugin, error);
}
