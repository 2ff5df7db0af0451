/* SPDX-License-Identifier: Apache-2.0
 *
 * save_packed.cuh: writes new latents to rows of mla.latent_fp8/1 (docs/ABI.md, KV-11), C and CUDA
 * alike: e4m3 values, an fp32 scale for each 128 of them, and the position-encoded part in bf16.
 */
#ifndef PLUGINS_CUDA_SAVE_PACKED_CUH
#define PLUGINS_CUDA_SAVE_PACKED_CUH

#include "plugins/common/cuda/save_kv.cuh"

#define PACKED_SCALED 128 /* elements that share a scale */

/* The offsets of the scales and of the position-encoded part, in bytes. */
PORTABLE int packed_scales_offset(int lora)
{
    return lora;
}

PORTABLE int packed_rope_offset(int lora)
{
    return lora + lora / PACKED_SCALED * 4;
}

PORTABLE int packed_row_bytes(int lora, int rope)
{
    return packed_rope_offset(lora) + rope * 2;
}

/* The scale of 128 elements of bf16, by lane `lane` of a warp's 32, or 0 of 1: the least power of
 * two, at least 2^-126, that brings the largest finite magnitude into e4m3. 448 is 1.75 * 2^8:
 * adding the complement of 1.75 to the mantissa carries into the exponent beyond 1.75. */
PORTABLE float packed_scale(const void *from, int lane, int lanes)
{
    u32 largest = 0; /* the order of magnitudes is that of their bits */
    for (int d = lane; d < PACKED_SCALED; d += lanes) {
        const u32 bits = f32_bits(element_load(ELEMENT_BF16, from, d)) & 0x7fffffff;
        largest = bits > largest && bits < 0x7f800000 ? bits : largest;
    }
#ifdef __CUDA_ARCH__
    largest = __reduce_max_sync(~0u, largest);
#endif
    const u32 exponent = (largest + 0x1fffffu) >> 23;
    return bits_f32((exponent > 9 ? exponent - 8 : 1) << 23);
}

/* Write a row, by lanes as above. */
PORTABLE void save_packed_row(const void *c_kv, const void *k_pe, void *to, int lora, int rope,
                              int lane, int lanes)
{
    for (int d = 0; d < lora; d += PACKED_SCALED) {
        const float scale = packed_scale((const any16 *)c_kv + d, lane, lanes);
        save_kv_vector(ELEMENT_BF16, ELEMENT_E4M3, (const any16 *)c_kv + d, (u8 *)to + d,
                       PACKED_SCALED, scale, lane, lanes);
        if (lane == 0)
            *PORTABLE_AT((any32 *)(void *)((u8 *)to + packed_scales_offset(lora)) +
                         d / PACKED_SCALED) = f32_bits(scale);
    }
    save_kv_vector(ELEMENT_BF16, ELEMENT_BF16, k_pe, (u8 *)to + packed_rope_offset(lora), rope,
                   1.0f, lane, lanes);
}

/* Write rows first, first + step ... below `end`: k of `call` is c_kv, v is k_pe, and both share
 * k's places in the cache. */
PORTABLE void save_packed_rows(const save_kv_call *call, i64 first, i64 end, i64 step, int lane,
                               int lanes)
{
    for (i64 row = first; row < end; row += step) {
        const i64 slot = *PORTABLE_AT((const any64 *)call->slots + row);
        if (slot < 0)
            continue;
        char *to = (char *)call->k.to + slot / call->page_size * call->k.to_page +
                   slot % call->page_size * call->k.to_token;
        save_packed_row((const char *)call->k.from + row * call->k.from_row,
                        (const char *)call->v.from + row * call->v.from_row, to, call->k.dim,
                        call->v.dim, lane, lanes);
    }
}

#endif /* PLUGINS_CUDA_SAVE_PACKED_CUH */
