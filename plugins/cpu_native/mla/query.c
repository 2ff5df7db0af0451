/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: limits of latent attention. */
#include "mla.h"

#include "attn_plugin_util.h"

#include <stdio.h>
#include <string.h>

attn_status mla_question_init(question *ask, attn_error *error)
{
    if (!ask->group.mla)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_KIND,
                                    "kind mla without dimensions of latent attention");
    memset(&ask->mla, 0, sizeof ask->mla);
    ATTN_UTIL_READ(&ask->mla, ask->group.mla);
    return ATTN_OK;
}

/* Is the cache of latents to be in the layout that has its scales in its rows? */
static int is_packed(const question *ask)
{
    return ask->problem.kv_layout &&
           strcmp(ask->problem.kv_layout, ATTN_LAYOUT_MLA_LATENT_FP8) == 0;
}

void mla_check_attn_type(const question *ask, attn_verdict *verdict)
{
    if (ask->group.attn_type != ATTN_TYPE_DECODER)
        REFUSE(ATTN_TYPE, ATTN_TYPE, "decoder", "%u", ask->group.attn_type);
}

static void check_ranks(const question *ask, attn_verdict *verdict)
{
    const attn_mla_dims *mla = &ask->mla;
    if (ask->group.v_head_dim < 1 || ask->group.v_head_dim > MAX_HEAD_DIM)
        REFUSE(HEAD_DIM, V_HEAD_DIM, "1..512", "%d", ask->group.v_head_dim);
    if (mla->kv_lora_rank < 1 || mla->kv_lora_rank > MAX_HEAD_DIM)
        REFUSE(HEAD_DIM, KV_LORA_RANK, is_packed(ask) ? "128..512/128" : "1..512", "%d",
               mla->kv_lora_rank);
    else if (is_packed(ask) && mla->kv_lora_rank % LATENT_SCALED != 0)
        REFUSE(HEAD_DIM, KV_LORA_RANK, "128..512/128", "%d", mla->kv_lora_rank);
}

/* Accepted values of a part of a head: its current one, or any if that is invalid. */
typedef struct part_range {
    int32_t least, most;
} part_range;

static part_range range_of(int32_t dim, int32_t least, int32_t most)
{
    return dim >= least && dim <= most ? (part_range){dim, dim} : (part_range){least, most};
}

static void list_range(part_range range, char *text, size_t size)
{
    if (range.least == range.most)
        snprintf(text, size, "%d", range.least);
    else
        snprintf(text, size, "%d..%d", range.least, range.most);
}

/* Heads of the expanded form have both parts, though no position need be in them. A part that has
 * to change becomes what head_dim leaves to it; if there is no such part head_dim has to change
 * with it. */
void mla_check_dims(const question *ask, attn_verdict *verdict)
{
    const int32_t head = ask->group.head_dim;
    part_range rope = range_of(ask->mla.rope_dim, 0, MAX_ROPE);
    part_range nope = range_of(ask->mla.nope_dim, 1, MAX_HEAD_DIM - MAX_ROPE);
    const part_range sum = {rope.least + nope.least, rope.most + nope.most};
    const int kept = sum.least <= head && head <= sum.most;
    char accepted[32];
    check_ranks(ask, verdict);
    if (kept) {
        nope.most = head - rope.least < nope.most ? head - rope.least : nope.most;
        nope.least = nope.most;
        rope.least = rope.most = head - nope.most;
    }
    list_range(rope, accepted, sizeof accepted);
    if (ask->mla.rope_dim < 0 || ask->mla.rope_dim > MAX_ROPE)
        REFUSE(HEAD_DIM, ROPE_DIM, accepted, "%d", ask->mla.rope_dim);
    list_range(nope, accepted, sizeof accepted);
    if (ask->mla.nope_dim < 1 || ask->mla.nope_dim > MAX_HEAD_DIM - MAX_ROPE)
        REFUSE(HEAD_DIM, NOPE_DIM, accepted, "%d", ask->mla.nope_dim);
    list_range(sum, accepted, sizeof accepted);
    if (!kept)
        REFUSE(HEAD_DIM, HEAD_DIM, accepted, "%d", head);
    attn_util_refuse_excess(verdict, ATTN_REASON_MLA_FORM, ATTN_FIELD_MLA_EXPANDED,
                            ATTN_UTIL_ALL_MODES, ask->problem.mla_expanded);
}

/* Queries may be fp8 in the absorbed form, beside new latents that are not. */
static int has_coded_queries(const question *ask)
{
    const attn_problem *problem = &ask->problem;
    return ask->group.kind == ATTN_KIND_MLA && !is_packed(ask) && problem->mla_expanded == 0 &&
           is_fp8(problem->q_dtype) && is_operand_dtype(problem->new_kv_dtype);
}

/* An unquantised cache has the dtype of new latents, which is q's unless q is fp8, so the accepted
 * dtypes of q depend on it. */
void mla_check_dtypes(const question *ask, attn_verdict *verdict)
{
    const attn_problem *problem = &ask->problem;
    const int coded = has_coded_queries(ask);
    const attn_dtype kv = problem->kv_dtype;
    const attn_dtype one =
        coded ? problem->new_kv_dtype : attn_util_one_input(problem, is_operand_dtype);
    const char *name = one != ATTN_DTYPE_NONE ? attn_util_dtype_name(one) : OPERAND_DTYPES;
    int suits = is_packed(ask) ? kv == ATTN_FP8_E4M3 : kv == one || is_fp8(kv);
    char accepted[64];
    if (!coded)
        attn_util_check_inputs(problem, &ask->group, one, verdict);
    else if (ask->group.input_scale_granularity != ATTN_SCALE_PER_TENSOR)
        REFUSE(SCALE_GRANULARITY, INPUT_SCALE_GRANULARITY, "per_tensor", "%s",
               attn_util_granularity_name(ask->group.input_scale_granularity));
    if (!coded && !is_operand_dtype(problem->q_dtype))
        REFUSE(DTYPE, Q_DTYPE, name, "%s", attn_util_dtype_name(problem->q_dtype));
    snprintf(accepted, sizeof accepted, "%s, " FP8_DTYPES, name);
    if (!suits)
        REFUSE(DTYPE, KV_DTYPE, is_packed(ask) ? "fp8_e4m3" : accepted, "%s",
               attn_util_dtype_name(kv));
    if (!is_operand_dtype(problem->out_dtype))
        REFUSE(DTYPE, OUT_DTYPE, OPERAND_DTYPES, "%s", attn_util_dtype_name(problem->out_dtype));
}

/* A packed row has its scales in itself. There is a cache always: a type without one is refused. */
void mla_check_scales(const question *ask, attn_verdict *verdict)
{
    const attn_dtype kv = ask->problem.kv_dtype;
    int has_scales = !is_packed(ask);
    query_check_scales(ask, has_scales && is_fp8(kv),
                       has_scales && !is_fp8(kv) && !is_operand_dtype(kv), 0, verdict);
}

void mla_check_layout(const question *ask, attn_verdict *verdict)
{
    const char *layout = ask->problem.kv_layout;
    if (!layout || (strcmp(layout, ATTN_LAYOUT_MLA_LATENT) != 0 && !is_packed(ask)))
        REFUSE(KV_LAYOUT, KV_LAYOUT, ATTN_LAYOUT_MLA_LATENT, "%s", layout ? layout : "absent");
}
