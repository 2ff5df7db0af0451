/* SPDX-License-Identifier: Apache-2.0
 *
 * type.c: the backend type, apart from the exported function, for plugins that link this library.
 */
#include "plugins/flashmla_like/type.h"

#include "attn_plugin_util.h"
#include "plugins/flashmla_like/flashmla_like.h"

static const char *const layouts[] = {ATTN_LAYOUT_MLA_LATENT, ATTN_LAYOUT_MLA_LATENT_FP8};

static const attn_backend_ops ops = {
    .struct_size = sizeof ops,
    .destroy = fm_destroy,
    .index_forms = fm_index_forms,
    .metadata_size = fm_metadata_size,
    .metadata_create = fm_metadata_create,
    .init_forward_metadata = fm_init_forward_metadata,
    .metadata_destroy = cuda_metadata_destroy,
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
