/* SPDX-License-Identifier: Apache-2.0
 *
 * save.c: new latents into the cache, or as it would hold them.
 */
#include "mla.h"

#include <string.h>

/* The scale of LATENT_SCALED elements of mla.latent_fp8/1: the least power of two, from 2^-126 on, that brings
 * the largest finite magnitude into e4m3. 448 is 1.75 * 2^8: adding the rest of a mantissa beyond 1.75 carries into
 * the exponent. */
static float latent_scale(const float *x)
{
    uint32_t largest = 0; /* magnitudes are in the order of their bits */
    for (int32_t d = 0; d < LATENT_SCALED; d++) {
        uint32_t bits = float_bits(x[d]) & 0x7fffffff;
        if (bits > largest && bits < 0x7f800000)
            largest = bits;
    }
    const uint32_t exponent = (largest + 0x1fffffu) >> 23;
    return bits_float((exponent > 9 ? exponent - 8 : 1) << 23);
}

static void store_packed(const layer_call *call, int64_t row, char *to)
{
    const cpu_group *group = call->group;
    const int32_t lora = group->mla.lora;
    row_format format = {.dtype = group->new_dtype};
    float x[MAX_DIM];
    uint16_t rope[MAX_ROPE];
    call->instance->kernels->convert(new_row(call->mla.c_kv, row, 0), &format, lora, x);
    call->instance->kernels->convert(new_row(call->mla.k_pe, row, 0), &format, group->mla.rope,
                                     x + lora);
    for (int32_t d = 0; d < lora; d += LATENT_SCALED) {
        float scale = latent_scale(x + d);
        memcpy(to + latent_scale_offset(lora, d), &scale, sizeof scale);
        for (int32_t i = d; i < d + LATENT_SCALED; i++)
            ((uint8_t *)to)[i] = f32_to_fp8(x[i] / scale, group->fp8);
    }
    for (int32_t d = 0; d < group->mla.rope; d++)
        rope[d] = f32_to_bf16(x[lora + d]);
    memcpy(to + latent_rope_offset(lora), rope, (size_t)group->mla.rope * sizeof *rope);
}

void mla_store_row(const layer_call *call, int64_t row, char *to)
{
    const cpu_group *group = call->group;
    if (group->mla.packed) {
        store_packed(call, row, to);
        return;
    }
    const row_format format = {.dtype = group->new_dtype};
    cpu_save_head(call, new_row(call->mla.c_kv, row, 0), &format, call->k_cache.scales,
                  group->mla.lora, to);
    cpu_save_head(call, new_row(call->mla.k_pe, row, 0), &format, call->k_cache.scales,
                  group->mla.rope,
                  to + (int64_t)group->mla.lora * attn_dtype_size(group->kv_dtype));
}

void mla_save_row(const layer_call *call, int64_t row, int64_t slot)
{
    const cpu_group *group = call->group;
    const cache_view *cache = &call->k_cache;
    int64_t page = slot / group->page_size, offset = slot % group->page_size;
    mla_store_row(call, row, cache->data + page * cache->page + offset * cache->token);
}
