/* SPDX-License-Identifier: Apache-2.0
 *
 * expanded.c: latent attention in the expanded form: k and v of each head are given, and are the
 * only keys; c_kv and k_pe, from which they were expanded, are saved to the cache of latents.
 *
 * The library serves no such group, and sees it as one of softmax layers without scales. The plan
 * has the positions of the given keys (plan.cuh); tiles read the keys from the arguments, and the
 * library's fi_save saves latents as if they were keys and values of one head. */
#include "plugins/fa3_like/fa3_like.h"

#include "plugins/common/cuda/image.h"
#include "plugins/common/cuda/launch.h"
#include "plugins/common/cuda/operands.h"

#include <string.h>

enum { MOST_LORA = 1024, MOST_PART = 512, WIDE = 8 /* elements of 16 bytes */ };

/* ---- Problems -------------------------------------------------------------------------------- */

int fa3_is_expanded(const attn_problem *problem)
{
    return problem->group->kind == ATTN_KIND_MLA;
}

void fa3_plain_expanded(attn_problem *problem, attn_layer_group *group)
{
    group->kind = ATTN_KIND_SOFTMAX;
    group->mla = NULL;
    group->kv_scale_granularity = ATTN_SCALE_NONE;
    problem->kv_layout = ATTN_LAYOUT_KV_NHD;
    problem->mla_expanded = 0;
    problem->kv_dtype = problem->q_dtype;
    problem->new_kv_dtype = ATTN_DTYPE_NONE;
}

/* The cache as a group with one head, whose keys are latents and whose values are their first part.
 */
cuda_group fa3_latents_of(const attn_problem *problem)
{
    attn_mla_dims mla;
    cuda_group latents;
    ATTN_UTIL_READ(&mla, problem->group->mla);
    cuda_group_init(&latents, problem);
    latents.kv_heads = 1;
    latents.dim = mla.kv_lora_rank + mla.rope_dim;
    latents.v_dim = mla.kv_lora_rank;
    return latents;
}

/* ---- Query ----------------------------------------------------------------------------------- */

#define REFUSE(reason, field, ...)                                                                 \
    attn_util_refuse(verdict, ATTN_REASON_##reason, ATTN_FIELD_##field, __VA_ARGS__)

/* The modes that are called in expanded form, except DECODE, whose calls give one key per sequence
 * only. */
static attn_util_limits limits_of(uint32_t expanded)
{
    const uint32_t modes = expanded & ATTN_UTIL_ALL_MODES & ~ATTN_MODE_BIT(ATTN_MODE_DECODE);
    return (attn_util_limits){
        .layer_flags = ATTN_LAYER_KV_READ_ONLY,
        .modes = modes | ATTN_MODE_BIT(ATTN_MODE_IDLE),
        .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER) | ATTN_MASK_BIT(ATTN_MASK_NONE),
        .uses = ATTN_USES_SHARED_PREFIX | ATTN_USES_UNSAVED_KV | ATTN_USES_LSE |
                ATTN_USES_OMIT_SINK | ATTN_USES_DECODES_FIRST | ATTN_USES_DECODE_DRAFTS,
        .graph_level = ATTN_GRAPH_ALWAYS,
        .traits = ATTN_TRAIT_SM_BUDGET,
    };
}

attn_status fa3_require_expanded(uint32_t expanded, const attn_bounds *bounds, attn_error *error)
{
    const attn_util_limits limits = limits_of(expanded);
    return attn_util_require_known_bounds(&limits, bounds, error);
}

static void check_group(const attn_layer_group *group, attn_verdict *verdict)
{
    attn_util_check_member(1u << ATTN_TYPE_DECODER, group->attn_type, ATTN_TYPE_COUNT,
                           attn_util_attn_type_name, ATTN_REASON_ATTN_TYPE, ATTN_FIELD_ATTN_TYPE,
                           verdict);
    if (group->attention_chunk > 0)
        REFUSE(CHUNK, ATTENTION_CHUNK, "0", "%d", group->attention_chunk);
    if (group->flags & ATTN_GROUP_HAS_ALIBI)
        REFUSE(ALIBI, ALIBI, "0", "1");
    if (group->flags & ~(uint32_t)(ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI))
        REFUSE(UNKNOWN_FEATURE, FEATURE, "absent", "group flags %#x", group->flags);
}

static void check_dims(const attn_layer_group *group, const attn_mla_dims *mla,
                       attn_verdict *verdict)
{
#define DIMS(name, dim, v_dim, ...) {dim, v_dim},
    static const cuda_dims dims[] = {FA3_SHAPES(DIMS)};
#undef DIMS
    cuda_check_dims(dims, sizeof dims / sizeof dims[0], group, verdict);
    attn_util_check_range(mla->kv_lora_rank, 1, MOST_LORA, ATTN_REASON_HEAD_DIM,
                          ATTN_FIELD_KV_LORA_RANK, verdict);
    attn_util_check_range(mla->rope_dim, 0, MOST_PART, ATTN_REASON_HEAD_DIM, ATTN_FIELD_ROPE_DIM,
                          verdict);
    attn_util_check_range(mla->nope_dim, 1, MOST_PART, ATTN_REASON_HEAD_DIM, ATTN_FIELD_NOPE_DIM,
                          verdict);
}

static int is_half(attn_dtype dtype)
{
    return dtype == ATTN_F16 || dtype == ATTN_BF16;
}

/* The output is fp32 or of q's type; if q's is rejected, the cache's type may stand for it. */
static void check_dtypes(const attn_problem *problem, const attn_layer_group *group,
                         attn_verdict *verdict)
{
    static const cuda_dtypes takes = {.e4m3_cache = 1, .e5m2_cache = 1, .f32_out = 1};
    const attn_dtype one = attn_util_one_input(problem, is_half), out = problem->out_dtype;
    attn_problem inputs = *problem;
    attn_layer_group decoder = *group;
    char accepted[32];
    inputs.out_dtype = ATTN_F32;
    decoder.attn_type = ATTN_TYPE_DECODER;
    cuda_check_dtypes(&takes, &inputs, &decoder, verdict);
    if (out == ATTN_F32 || (is_half(out) && (out == one || one == ATTN_DTYPE_NONE)))
        return;
    snprintf(accepted, sizeof accepted, "f32, %s",
             one == ATTN_DTYPE_NONE ? "f16, bf16" : attn_util_dtype_name(one));
    REFUSE(DTYPE, OUT_DTYPE, accepted, "%s", attn_util_dtype_name(out));
}

/* fp8 latents have one scale. If the type is rejected, it may become any other. */
static void check_scales(const attn_problem *problem, const attn_layer_group *group,
                         attn_verdict *verdict)
{
    const uint32_t given = group->kv_scale_granularity;
    const int quantised = cuda_is_fp8(problem->kv_dtype), plain = is_half(problem->kv_dtype);
    if (given == ATTN_SCALE_NONE ? !quantised : given == ATTN_SCALE_PER_TENSOR && !plain)
        return;
    REFUSE(SCALE_GRANULARITY, SCALE_GRANULARITY,
           plain       ? "none"
           : quantised ? "per_tensor"
                       : "none, per_tensor",
           "%s", attn_util_granularity_name(given));
}

static void check_form(const attn_problem *problem, attn_verdict *verdict)
{
    attn_util_refuse_excess(verdict, ATTN_REASON_MLA_FORM, ATTN_FIELD_MLA_EXPANDED,
                            ATTN_UTIL_ALL_MODES, problem->mla_expanded);
    if (!problem->kv_layout || strcmp(problem->kv_layout, ATTN_LAYOUT_MLA_LATENT) != 0)
        REFUSE(KV_LAYOUT, KV_LAYOUT, ATTN_LAYOUT_MLA_LATENT, "%s",
               problem->kv_layout ? problem->kv_layout : "absent");
}

/* Only the library's kernels are batch-invariant, and they do not serve expanded latents. */
static void check_options(const attn_options *options, attn_verdict *verdict)
{
    if (fi_read_options(options).is_invariant)
        REFUSE(OTHER, OPTION, "off",
               "batch_invariant on: expanded latents are not batch-invariant");
    if (fi_read_option(options, "tiles", TILES_AUTO) == TILES_NEVER)
        REFUSE(OTHER, OPTION, "auto, always",
               "tiles never: expanded latents have no other kernels");
}

static attn_status check_sense(const cuda_question *ask, attn_mla_dims *mla, attn_error *error)
{
    if (!ask->group.mla)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_KIND,
                                    "kind mla without dimensions of latent attention");
    ATTN_UTIL_READ(mla, ask->group.mla);
    attn_status status = attn_util_require_softmax(&ask->group, error);
    if (status == ATTN_OK && ask->problem.page_size < 1)
        status = attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_PAGE_SIZE,
                                      "page_size %d: accepted 1 and more", ask->problem.page_size);
    return status;
}

attn_status fa3_check_expanded(const cuda_question *ask, const attn_options *options,
                               attn_verdict *verdict, attn_error *error)
{
    attn_util_limits limits = limits_of(ask->problem.mla_expanded);
    attn_mla_dims mla = {.struct_size = sizeof mla};
    attn_status status = check_sense(ask, &mla, error);
    if (status != ATTN_OK)
        return status;
    cuda_codes_check(FA3_CODES, &ask->device, verdict);
    check_group(&ask->group, verdict);
    check_dims(&ask->group, &mla, verdict);
    check_form(&ask->problem, verdict);
    check_dtypes(&ask->problem, &ask->group, verdict);
    check_scales(&ask->problem, &ask->group, verdict);
    attn_util_check_layers(&limits, &ask->group, verdict);
    attn_util_refuse_excess(verdict, ATTN_REASON_MLA_FORM, ATTN_FIELD_MODES, limits.modes,
                            ask->bounds.modes);
    limits.modes = ~0u; /* modes are checked above */
    attn_util_check_bounds(&limits, &ask->bounds, verdict);
    attn_util_check_needs(&limits, &ask->problem, verdict);
    check_options(options, verdict);
    return ATTN_OK;
}

/* ---- Operands -------------------------------------------------------------------------------- */

/* Take keys and values as an encoder's: from the arguments, not from a cache, even for layers that
 * read another layer's latents. */
static attn_status take_given(layer_call *call, attn_error *error)
{
    cuda_group group = *call->group;
    attn_util_layer layer = *call->layer;
    group.attn_type = ATTN_TYPE_ENCODER_ONLY;
    layer.kv_read_only = 0;
    return cuda_operands_take(&group, &layer, &call->metadata->plan, call->kv, &call->args,
                              &call->rows.operands, error);
}

static attn_status take_latents(const layer_call *call, call_operands *to, attn_error *error)
{
    const cuda_group *group = &call->tiles->latents;
    if (call->layer->kv_read_only)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND,
                                    "layer %d reads the latents of another layer: accepted no "
                                    "SAVE_KV",
                                    call->layer->layer_id);
    if (!attn_operand(&call->args, ATTN_ROLE_C_KV) || !attn_operand(&call->args, ATTN_ROLE_K_PE))
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_OPERAND,
                                    "SAVE_KV of expanded latents without c_kv and k_pe");
    attn_status status = cuda_latents_take(group, call->layer, &call->metadata->plan, call->kv,
                                           &call->args, to, error);
    if (group->v_dim % WIDE || group->dim % WIDE)
        to->aligned &= ~CALL_ALIGNED_NEW;
    return status;
}

/* ---- A layer --------------------------------------------------------------------------------- */

static attn_status launch_save(const layer_call *call, const call_operands *latents,
                               attn_stream stream, attn_error *error)
{
    const cuda_group *group = &call->tiles->latents;
    const cuda_launch launch = {.function = call->instance->save,
                                .name = "fi_save",
                                .grid = {fa3_num_sms(call) * SAVE_BLOCKS, 1, 1},
                                .block = {FI_SAVE_THREADS}};
    fi_call p = {.operands = *latents,
                 .kv_heads = 1,
                 .page_size = group->page_size,
                 .dtype = cuda_element(group->new_dtype),
                 .kv_dtype = cuda_element(group->kv_dtype)};
    int lora = group->v_dim, rope = group->dim - group->v_dim;
    void *params[] = {&p, &lora, &rope};
    cuda_plan_fill(&call->metadata->plan, group, call->kv, &p.batch);
    return cuda_launch_run(call->instance->cuda, &launch, params, stream, error);
}

attn_status fa3_take_expanded(layer_call *call, attn_stream stream, attn_error *error)
{
    call_operands latents = {.k = NULL};
    const int saves = (call->args.flags & ATTN_FORWARD_SAVE_KV) != 0;
    attn_status status = take_given(call, error);
    if (status == ATTN_OK && saves)
        status = take_latents(call, &latents, error);
    return status == ATTN_OK && saves ? launch_save(call, &latents, stream, error) : status;
}
