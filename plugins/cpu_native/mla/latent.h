/* SPDX-License-Identifier: Apache-2.0
 *
 * latent.h: the row of mla.latent_fp8/1: kv_lora_rank codes of fp8 e4m3, an fp32 scale for each
 * LATENT_SCALED of them, rope_dim bf16 (docs/ABI.md, KV-11).
 */
#ifndef CPU_NATIVE_LATENT_H
#define CPU_NATIVE_LATENT_H

#include <stdint.h>

enum { LATENT_SCALED = 128 };

/* Where the scale of code `d` lies. */
static inline int32_t latent_scale_offset(int32_t lora, int32_t d)
{
    return lora + d / LATENT_SCALED * (int32_t)sizeof(float);
}

static inline int32_t latent_rope_offset(int32_t lora)
{
    return latent_scale_offset(lora, lora);
}

static inline int32_t latent_row_bytes(int32_t lora, int32_t rope)
{
    return latent_rope_offset(lora) + rope * 2;
}

#endif /* CPU_NATIVE_LATENT_H */
