/* SPDX-License-Identifier: Apache-2.0
 *
 * boxes.c: tensor maps by which mla_attend_64, mla_attend_codes_N with few rows and mla_attend_coded_N copy whole boxes
 * of pages.
 */
#include "plugins/flashmla_like/flashmla_like.h"

#include "attn_plugin_util.h"
#include "plugins/common/cuda/tensor_map.h"

#include <string.h>

enum { BOX_BYTES = 128 /* bytes of a latent per box */ };

/* A map of `elements` elements of each latent, from `first` on; the rest of a box is zeros. */
static attn_status make_map(const cuda_api *cuda, const attn_tensor *cache, int first, int elements,
                            mla_map *to, attn_error *error)
{
    const int64_t size = attn_dtype_size(cache->dtype);
    cuda_tensor_map map;
    cuda_tensor_box box = {.name = "latent_cache",
                           .data = (char *)attn_util_data(cache) + first * size,
                           .dtype = cache->dtype,
                           .rank = 4,
                           .shape = {elements, cache->shape[1], cache->shape[0], 1},
                           .strides = {0, 16, 16, 16},
                           .box = {BOX_BYTES / size, MLA_BOX, 1, 1},
                           .swizzle = 128,
                           .l2 = 128};
    for (int d = 1; d < 3; d++) /* a dimension with one element needs no stride */
        if (box.shape[d] > 1)
            box.strides[d] = cache->strides[2 - d] * size;
    attn_status status = cuda_tensor_map_make(cuda, &box, &map, error);
    if (status == ATTN_OK)
        memcpy(to, &map, sizeof *to);
    return status;
}

/* Can the copy engine read the cache in boxes? Pages must hold whole boxes, be in a block table,
 * and be aligned. */
static int has_boxes(const attn_instance *instance, uint32_t index, const attn_tensor *cache,
                     const mla_call *call)
{
    const int latents = fm_latents(&instance->groups[index]), wide = call->rows == MLA_ROWS;
    const int codes = latents == FM_LATENT_CODED || (latents == FM_LATENT_CODES && !wide);
    const int copied =
        latents == FM_LATENT_BF16 ? wide && call->rope > 0 : codes && call->lora == MLA_LORA;
    return copied && call->page_size % MLA_BOX == 0 && !call->batch.req_to_token &&
           call->operands.aligned & CALL_ALIGNED_CACHE && cache->shape[0] > 0 &&
           instance->cuda->cuTensorMapEncodeTiled;
}

attn_status fm_make_boxes(const attn_instance *instance, uint32_t index, const attn_tensor *cache,
                          mla_call *call, attn_error *error)
{
    call->boxed = has_boxes(instance, index, cache, call);
    if (!call->boxed)
        return ATTN_OK;
    if (fm_latents(&instance->groups[index]) != FM_LATENT_BF16)
        return make_map(instance->cuda, cache, 0, call->lora + call->rope, &call->maps[0], error);
    attn_status status = make_map(instance->cuda, cache, 0, call->lora, &call->maps[0], error);
    return status == ATTN_OK
               ? make_map(instance->cuda, cache, call->lora, call->rope, &call->maps[1], error)
               : status;
}
