/* SPDX-License-Identifier: Apache-2.0
 *
 * latent.h: latents in a layer group, in a call, and in a cache. */
#ifndef CPU_NATIVE_LATENT_H
#define CPU_NATIVE_LATENT_H

#include "attn_types.h"

#include <stdint.h>

/* A group of latent attention is two of cpu_native's if it is called in both forms: each sees the
 * batches of its modes. In the absorbed form there is one KV head, whose keys are rows of the
 * latent cache and whose values are their first v_dim elements. In the expanded form new keys are
 * all there are, and are read as they are given. */
typedef struct mla_group {
    int32_t lora; /* elements of c_kv; 0: no latent attention */
    int32_t rope; /* elements of k_pe */
    int32_t absorbed;
    int32_t expanded;
    int32_t packed;  /* layout mla.latent_fp8/1 */
    int32_t bf16;    /* scores are products of bf16 */
    int32_t rounded; /* and outputs, too: probabilities are rounded */
} mla_group;

/* Operands of a call other than those of softmax attention, where the absorbed form has q_nope as
 * q, c_kv as k, k_pe as v, and the latent cache as both caches. */
typedef struct mla_operands {
    const attn_tensor *q_pe;
    const float *q_pe_scales; /* fp8 */
    const attn_tensor *c_kv;  /* new latents; expanded: to be saved alone */
    const attn_tensor *k_pe;
} mla_operands;

/* ---- A row of mla.latent_fp8/1: kv_lora_rank codes of fp8 e4m3, an fp32 scale for each
 * LATENT_SCALED of them, rope_dim bf16 (docs/ABI.md, KV-11) -------------------------------------
 */

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
