/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: limits of dsa_like. A refusal lists all reasons at once.
 */
#include "plugins/dsa_like/dsa_like.h"

#include "attn_plugin_util.h"
#include "plugins/common/cuda/image.h"

#include <string.h>

#ifndef DSA_LIKE_CODES
#error "DSA_LIKE_CODES: the architectures, as in -DDSA_LIKE_CODES='\"sm_90a\"'"
#endif

#define REFUSE(reason, field, ...)                                                                 \
    attn_util_refuse(verdict, ATTN_REASON_##reason, ATTN_FIELD_##field, __VA_ARGS__)

enum { LORA = 512, ROPE = 64 };

static const attn_util_limits limits = {
    .layer_flags = ATTN_LAYER_KV_READ_ONLY,
    .modes = ATTN_UTIL_ALL_MODES,
    .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER) | ATTN_MASK_BIT(ATTN_MASK_NONE),
    .uses = ATTN_USES_SHARED_PREFIX | ATTN_USES_LSE | ATTN_USES_OMIT_SINK |
            ATTN_USES_DECODES_FIRST | ATTN_USES_DECODE_DRAFTS,
    .graph_level = ATTN_GRAPH_ALWAYS,
    .traits = ATTN_TRAIT_DETERMINISTIC | ATTN_TRAIT_BATCH_INVARIANT,
};

typedef struct question {
    attn_problem problem;
    attn_layer_group group;
    attn_bounds bounds;
    attn_device device;
    attn_mla_dims mla;
    attn_sparse_dims sparse;
} question;

static int is_over_latents(const attn_problem *problem)
{
    return problem->kv_layout && strcmp(problem->kv_layout, ATTN_LAYOUT_MLA_LATENT) == 0;
}

/* Rows that have their scales in them? */
static int is_packed(const attn_problem *problem)
{
    return problem->kv_layout && strcmp(problem->kv_layout, ATTN_LAYOUT_MLA_LATENT_FP8) == 0;
}

static int is_bf16(attn_dtype dtype)
{
    return dtype == ATTN_BF16;
}

static void check_group(const question *ask, attn_verdict *verdict)
{
    const attn_layer_group *group = &ask->group;
    if (group->kind != ATTN_KIND_SPARSE)
        REFUSE(LAYER_KIND, KIND, "sparse", "%s", attn_util_kind_name(group->kind));
    if (group->attn_type != ATTN_TYPE_DECODER)
        REFUSE(ATTN_TYPE, ATTN_TYPE, "decoder", "%u", group->attn_type);
    if (group->logit_cap != 0)
        REFUSE(LOGIT_CAP, LOGIT_CAP, "0", "%g", (double)group->logit_cap);
    if (group->flags & ATTN_GROUP_HAS_ALIBI)
        REFUSE(ALIBI, ALIBI, "0", "1");
    if (group->flags & ~(uint32_t)(ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI))
        REFUSE(UNKNOWN_FEATURE, FEATURE, "absent", "group flags %#x", group->flags);
}

static void check_latents(const question *ask, attn_verdict *verdict)
{
    const attn_problem *problem = &ask->problem;
    if (ask->mla.kv_lora_rank != LORA)
        REFUSE(HEAD_DIM, KV_LORA_RANK, "512", "%d", ask->mla.kv_lora_rank);
    if (ask->mla.rope_dim != ROPE)
        REFUSE(HEAD_DIM, ROPE_DIM, "64", "%d", ask->mla.rope_dim);
    if (ask->mla.nope_dim < 1 || ask->mla.nope_dim > LORA) /* as flashmla_like, which attends */
        REFUSE(HEAD_DIM, NOPE_DIM, "1..512", "%d", ask->mla.nope_dim);
    attn_util_refuse_excess(verdict, ATTN_REASON_MLA_FORM, ATTN_FIELD_MLA_EXPANDED, 0,
                            problem->mla_expanded & ATTN_UTIL_ALL_MODES);
    if (!is_over_latents(problem) && !is_packed(problem))
        REFUSE(KV_LAYOUT, KV_LAYOUT, ATTN_LAYOUT_MLA_LATENT, "%s",
               problem->kv_layout ? problem->kv_layout : "absent");
}

static void check_choice(const question *ask, attn_verdict *verdict)
{
    const attn_sparse_dims *sparse = &ask->sparse;
    if (sparse->index_kind != ATTN_SPARSE_TOKEN)
        REFUSE(SPARSITY, INDEX_KIND, "0", "%u", sparse->index_kind);
    if (sparse->top_k < 1)
        REFUSE(SPARSITY, TOP_K, "1..2147483647", "%d", sparse->top_k);
    if (sparse->block_size != 1)
        REFUSE(SPARSITY, BLOCK_SIZE, "1", "%d", sparse->block_size);
    if (sparse->index_heads < 0 || sparse->index_heads > DSA_HEADS)
        REFUSE(SPARSITY, INDEX_HEADS, "0..64", "%d", sparse->index_heads);
    if (sparse->index_heads == 0)
        return;
    if (sparse->label_dim != DSA_LABEL)
        REFUSE(SPARSITY, LABEL_CACHE, "128", "%d", sparse->label_dim);
    if (sparse->label_dtype != ATTN_BF16 && sparse->label_dtype != ATTN_FP8_E4M3)
        REFUSE(DTYPE, LABEL_DTYPE, "bf16, fp8_e4m3", "%s",
               attn_util_dtype_name(sparse->label_dtype));
    if (sparse->index_dtype != ATTN_BF16 && sparse->index_dtype != ATTN_FP8_E4M3)
        REFUSE(DTYPE, INDEX_DTYPE, "bf16, fp8_e4m3", "%s",
               attn_util_dtype_name(sparse->index_dtype));
}

static void check_dtypes(const question *ask, attn_verdict *verdict)
{
    const attn_problem *problem = &ask->problem;
    attn_util_check_inputs(problem, &ask->group, ATTN_BF16, verdict);
    if (!is_bf16(problem->q_dtype))
        REFUSE(DTYPE, Q_DTYPE, "bf16", "%s", attn_util_dtype_name(problem->q_dtype));
    if (problem->kv_dtype != (is_packed(problem) ? ATTN_FP8_E4M3 : ATTN_BF16))
        REFUSE(DTYPE, KV_DTYPE, is_packed(problem) ? "fp8_e4m3" : "bf16", "%s",
               attn_util_dtype_name(problem->kv_dtype));
    if (!is_bf16(problem->out_dtype) && problem->out_dtype != ATTN_F32)
        REFUSE(DTYPE, OUT_DTYPE, "f32, bf16", "%s", attn_util_dtype_name(problem->out_dtype));
    if (ask->group.kv_scale_granularity != ATTN_SCALE_NONE)
        REFUSE(SCALE_GRANULARITY, SCALE_GRANULARITY, "none", "%s",
               attn_util_granularity_name(ask->group.kv_scale_granularity));
}

static attn_status read_question(const attn_problem *given, question *ask, attn_error *error)
{
    attn_status status = attn_util_read_problem(given, &ask->problem, &ask->group, &ask->bounds,
                                                &ask->device, error);
    ask->mla = (attn_mla_dims){.kv_lora_rank = LORA, .rope_dim = ROPE, .nope_dim = 1};
    ask->sparse = (attn_sparse_dims){.top_k = 1, .block_size = 1};
    if (status == ATTN_OK)
        status = attn_util_require_layers(&ask->group, error);
    if (status != ATTN_OK || ask->group.kind != ATTN_KIND_SPARSE)
        return status;
    if (!ask->group.sparse)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_KIND,
                                    "kind sparse without sparse dimensions");
    if ((is_over_latents(&ask->problem) || is_packed(&ask->problem)) && !ask->group.mla)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_KIND,
                                    "kind sparse without dimensions of latent attention");
    if (ask->group.mla)
        ATTN_UTIL_READ(&ask->mla, ask->group.mla);
    ATTN_UTIL_READ(&ask->sparse, ask->group.sparse);
    status = attn_util_require_softmax(&ask->group, error);
    if (status == ATTN_OK && ask->problem.page_size < 1)
        status = attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_PAGE_SIZE,
                                      "page_size %d: accepted 1 and more", ask->problem.page_size);
    return status;
}

attn_status dsa_query(const attn_backend_type *type, const attn_options *options,
                      const attn_services *services, const attn_problem *given,
                      attn_verdict *answer, attn_error *error)
{
    (void)type, (void)options, (void)services;
    question ask;
    attn_verdict verdict;
    attn_status status = read_question(given, &ask, error);
    if (status == ATTN_OK && !answer)
        status = attn_util_fail(error, ATTN_INVALID_ARGUMENT, "verdict is NULL");
    if (status != ATTN_OK)
        return status;
    attn_util_verdict_begin(answer, &verdict);
    cuda_codes_check(DSA_LIKE_CODES, &ask.device, &verdict);
    check_group(&ask, &verdict);
    check_latents(&ask, &verdict);
    check_choice(&ask, &verdict);
    check_dtypes(&ask, &verdict);
    attn_util_check_layers(&limits, &ask.group, &verdict);
    attn_util_check_bounds(&limits, &ask.bounds, &verdict);
    attn_util_check_needs(&limits, &ask.problem, &verdict);
    if (verdict.supported) {
        verdict.graph_level = ATTN_GRAPH_ALWAYS;
        verdict.traits = ATTN_TRAIT_DETERMINISTIC | /* slower: rows are not divided */
                         (ask.problem.required_traits & ATTN_TRAIT_BATCH_INVARIANT);
        verdict.graph_seq_len_fill = 0;
        verdict.cost_hint = 0.5;
    }
    attn_util_verdict_end(&verdict, answer);
    return ATTN_OK;
}

attn_status dsa_require_bounds(const attn_bounds *bounds, attn_error *error)
{
    return attn_util_require_known_bounds(&limits, bounds, error);
}
