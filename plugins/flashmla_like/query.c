/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: what flashmla_like can do. All reasons for a no are found, so that a person reads them
 * at once.
 */
#include "plugins/flashmla_like/flashmla_like.h"

#include "attn_plugin_util.h"
#include "plugins/common/cuda/image.h"

#include <string.h>

#ifndef FLASHMLA_LIKE_CODES
#error "FLASHMLA_LIKE_CODES: the architectures, as in -DFLASHMLA_LIKE_CODES='\"sm_90a\"'"
#endif

#define REFUSE(reason, field, ...)                                                                 \
    attn_util_refuse(verdict, ATTN_REASON_##reason, ATTN_FIELD_##field, __VA_ARGS__)

static const attn_util_limits limits = {
    .layer_flags = ATTN_LAYER_KV_READ_ONLY,
    .modes = ATTN_UTIL_ALL_MODES,
    .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER) | ATTN_MASK_BIT(ATTN_MASK_NONE),
    .uses = ATTN_USES_SHARED_PREFIX | ATTN_USES_UNSAVED_KV | ATTN_USES_LSE | ATTN_USES_OMIT_SINK |
            ATTN_USES_DECODES_FIRST | ATTN_USES_DECODE_DRAFTS,
    .graph_level = ATTN_GRAPH_ALWAYS,
    .traits = ATTN_TRAIT_DETERMINISTIC | ATTN_TRAIT_BATCH_INVARIANT,
};

static int is_bf16(attn_dtype dtype)
{
    return dtype == ATTN_BF16;
}

/* Does each row of the cache hold its own scales? */
static int is_packed(const attn_problem *problem)
{
    return problem->kv_layout && strcmp(problem->kv_layout, ATTN_LAYOUT_MLA_LATENT_FP8) == 0;
}

/* bf16 latents have no scale, e4m3 latents one. If the dtype is rejected, both are accepted. */
static void check_scales(const attn_problem *problem, const attn_layer_group *group,
                         attn_verdict *verdict)
{
    const uint32_t given = group->kv_scale_granularity;
    const int quantised = problem->kv_dtype == ATTN_FP8_E4M3 && !is_packed(problem);
    const int open = !quantised && !is_packed(problem) && !is_bf16(problem->kv_dtype);
    if (given == ATTN_SCALE_NONE ? !quantised
                                 : given == ATTN_SCALE_PER_TENSOR && (quantised || open))
        return;
    REFUSE(SCALE_GRANULARITY, SCALE_GRANULARITY,
           open        ? "none, per_tensor"
           : quantised ? "per_tensor"
                       : "none",
           "%s", attn_util_granularity_name(given));
}

static void check_group(const attn_layer_group *group, attn_verdict *verdict)
{
    if (group->kind != ATTN_KIND_MLA)
        REFUSE(LAYER_KIND, KIND, "mla", "%s", attn_util_kind_name(group->kind));
    if (group->attn_type != ATTN_TYPE_DECODER)
        REFUSE(ATTN_TYPE, ATTN_TYPE, "decoder", "%u", group->attn_type);
    if (group->logit_cap != 0)
        REFUSE(LOGIT_CAP, LOGIT_CAP, "0", "%g", (double)group->logit_cap);
    if (group->flags & ATTN_GROUP_HAS_ALIBI)
        REFUSE(ALIBI, ALIBI, "0", "1");
    if (group->flags & ~(uint32_t)(ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI))
        REFUSE(UNKNOWN_FEATURE, FEATURE, "absent", "group flags %#x", group->flags);
}

static int is_width(int32_t elements, int32_t least, int32_t most)
{
    return elements >= least && elements <= most && elements % MLA_WIDTH_STEP == 0;
}

static void check_latents(const attn_problem *problem, const attn_layer_group *group,
                          const attn_mla_dims *mla, attn_verdict *verdict)
{
    const int packed = is_packed(problem);
    if (!is_width(mla->kv_lora_rank, packed ? MLA_LORA : MLA_WIDTH_STEP, MLA_LORA))
        REFUSE(HEAD_DIM, KV_LORA_RANK, packed ? "512" : "16..512/16", "%d", mla->kv_lora_rank);
    if (!is_width(mla->rope_dim, packed ? MLA_ROPE : 0, MLA_ROPE))
        REFUSE(HEAD_DIM, ROPE_DIM, packed ? "64" : "0..64/16", "%d", mla->rope_dim);
    /* These dimensions matter in expanded form only. */
    if (mla->nope_dim < 1 || mla->nope_dim > MLA_LORA)
        REFUSE(HEAD_DIM, NOPE_DIM, "1..512", "%d", mla->nope_dim);
    if (group->v_head_dim < 1 || group->v_head_dim > MLA_LORA)
        REFUSE(HEAD_DIM, V_HEAD_DIM, "1..512", "%d", group->v_head_dim);
    attn_util_refuse_excess(verdict, ATTN_REASON_MLA_FORM, ATTN_FIELD_MLA_EXPANDED, 0,
                            problem->mla_expanded);
    if (!packed && (!problem->kv_layout || strcmp(problem->kv_layout, ATTN_LAYOUT_MLA_LATENT) != 0))
        REFUSE(KV_LAYOUT, KV_LAYOUT, ATTN_LAYOUT_MLA_LATENT, "%s",
               problem->kv_layout ? problem->kv_layout : "absent");
}

/* e4m3 queries need e4m3 latents and bf16 new latents. */
static int has_coded_queries(const attn_problem *problem)
{
    return problem->q_dtype == ATTN_FP8_E4M3 && problem->kv_dtype == ATTN_FP8_E4M3 &&
           !is_packed(problem) && is_bf16(problem->new_kv_dtype);
}

static void check_dtypes(const attn_problem *problem, const attn_layer_group *group,
                         attn_verdict *verdict)
{
    const int coded = has_coded_queries(problem);
    if (!coded)
        attn_util_check_inputs(problem, group, ATTN_BF16, verdict);
    else if (group->input_scale_granularity != ATTN_SCALE_PER_TENSOR)
        REFUSE(SCALE_GRANULARITY, INPUT_SCALE_GRANULARITY, "per_tensor", "%s",
               attn_util_granularity_name(group->input_scale_granularity));
    if (!coded && !is_bf16(problem->q_dtype))
        REFUSE(DTYPE, Q_DTYPE, "bf16", "%s", attn_util_dtype_name(problem->q_dtype));
    if (problem->kv_dtype != ATTN_FP8_E4M3 && (!is_bf16(problem->kv_dtype) || is_packed(problem)))
        REFUSE(DTYPE, KV_DTYPE, is_packed(problem) ? "fp8_e4m3" : "bf16, fp8_e4m3", "%s",
               attn_util_dtype_name(problem->kv_dtype));
    if (!is_bf16(problem->out_dtype) && problem->out_dtype != ATTN_F32)
        REFUSE(DTYPE, OUT_DTYPE, "f32, bf16", "%s", attn_util_dtype_name(problem->out_dtype));
    check_scales(problem, group, verdict);
}

static attn_status check_sense(const attn_problem *problem, const attn_layer_group *group,
                               attn_mla_dims *mla, attn_error *error)
{
    attn_status status = attn_util_require_layers(group, error);
    if (status != ATTN_OK || group->kind != ATTN_KIND_MLA)
        return status;
    if (!group->mla)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_KIND,
                                    "kind mla without dimensions of latent attention");
    ATTN_UTIL_READ(mla, group->mla);
    status = attn_util_require_softmax(group, error);
    if (status == ATTN_OK && problem->page_size < 1)
        status = attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_PAGE_SIZE,
                                      "page_size %d: accepted 1 and more", problem->page_size);
    return status;
}

attn_status fm_query(const attn_backend_type *type, const attn_options *options,
                     const attn_services *services, const attn_problem *given, attn_verdict *answer,
                     attn_error *error)
{
    (void)type, (void)options, (void)services;
    attn_problem problem;
    attn_layer_group group;
    attn_bounds bounds;
    attn_device device;
    attn_verdict verdict;
    attn_mla_dims mla = {.kv_lora_rank = MLA_LORA, .rope_dim = MLA_ROPE, .nope_dim = 1};
    attn_status status = attn_util_read_problem(given, &problem, &group, &bounds, &device, error);
    if (status == ATTN_OK)
        status = check_sense(&problem, &group, &mla, error);
    if (status == ATTN_OK && !answer)
        status = attn_util_fail(error, ATTN_INVALID_ARGUMENT, "verdict is NULL");
    if (status != ATTN_OK)
        return status;
    attn_util_verdict_begin(answer, &verdict);
    cuda_codes_check(FLASHMLA_LIKE_CODES, &device, &verdict);
    check_group(&group, &verdict);
    check_latents(&problem, &group, &mla, &verdict);
    check_dtypes(&problem, &group, &verdict);
    attn_util_check_layers(&limits, &group, &verdict);
    attn_util_check_bounds(&limits, &bounds, &verdict);
    attn_util_check_needs(&limits, &problem, &verdict);
    if (verdict.supported) {
        verdict.graph_level = ATTN_GRAPH_ALWAYS;
        verdict.traits =
            ATTN_TRAIT_DETERMINISTIC | /* BATCH_INVARIANT is slower, so on request only */
            (problem.required_traits & ATTN_TRAIT_BATCH_INVARIANT);
        verdict.graph_seq_len_fill = 0;
        verdict.cost_hint = 0.5;
    }
    attn_util_verdict_end(&verdict, answer);
    return ATTN_OK;
}

attn_status fm_require_bounds(const attn_bounds *bounds, attn_error *error)
{
    return attn_util_require_known_bounds(&limits, bounds, error);
}
