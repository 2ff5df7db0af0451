/* SPDX-License-Identifier: Apache-2.0
 *
 * group.c: the one or two groups of a problem of latent attention, and the size of what they need.
 */
#include "mla.h"

#include "attn_plugin_util.h"

#include <string.h>

/* One form of latent attention. */
static void set_form(cpu_group *group, const attn_problem *problem, uint32_t modes, int absorbed)
{
    attn_mla_dims mla;
    ATTN_UTIL_READ(&mla, problem->group->mla);
    group->modes = modes;
    group->mla = (mla_group){
        .lora = mla.kv_lora_rank,
        .rope = mla.rope_dim,
        .absorbed = absorbed,
        .expanded = !absorbed,
        .packed = problem->kv_layout && strcmp(problem->kv_layout, ATTN_LAYOUT_MLA_LATENT_FP8) == 0,
    };
    if (!absorbed)
        return;
    group->ratio *= group->kv_heads;
    group->kv_heads = 1;
    group->dim = mla.kv_lora_rank + mla.rope_dim;
    group->v_dim = mla.kv_lora_rank;
}

uint32_t mla_groups_init(cpu_group *groups, const attn_problem *problem)
{
    const uint32_t all = groups[0].modes;
    uint32_t count = 0, expanded = 0;
    if (ATTN_HAS(problem, attn_problem, mla_expanded))
        expanded = problem->mla_expanded & all;
    groups[1] = groups[0];
    if (expanded != all)
        set_form(&groups[count++], problem, all & ~expanded, 1);
    if (expanded != 0)
        set_form(&groups[count++], problem, expanded, 0);
    return count;
}

/* Can scores be products of bf16? */
static int has_bf16(const cpu_kernels *kernels, const cpu_group *group)
{
    return group->mla.absorbed && kernels->latents->score_bf16 && cpu_isa_has_bf16() &&
           group->q_dtype == ATTN_BF16 && (group->kv_dtype == ATTN_BF16 || group->fp8);
}

void mla_choose_products(const attn_instance *instance, cpu_group *group)
{
    group->mla.bf16 = has_bf16(instance->kernels, group);
    group->mla.rounded =
        group->mla.bf16 && group->kv_dtype == ATTN_BF16 && instance->options.round_probabilities;
}

int32_t mla_row_bytes(const cpu_group *group)
{
    const mla_group *mla = &group->mla;
    return mla->packed ? latent_row_bytes(mla->lora, mla->rope)
                       : (mla->lora + mla->rope) * (int32_t)attn_dtype_size(group->kv_dtype);
}

/* Pieces as fp32 and as bf16 with a scale, and new latents of two tiles. */
int64_t mla_key_floats(const cpu_group *group)
{
    return LATENT_PIECE + LATENT_SCALED / 2 + 1 + (mla_row_bytes(group) + 1) / 2;
}
