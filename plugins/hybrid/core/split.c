/* SPDX-License-Identifier: Apache-2.0
 *
 * split.c: decides whether extend rows and decode rows may use two children.
 */
#include "split.h"

#include "fanout.h"
#include "attn_plugin_util.h"

#define BIT(mode) ATTN_MODE_BIT(ATTN_MODE_##mode)

/* Are all modes that MIXED would be split into called in MIXED's form? */
static int one_mla_form(const attn_problem *problem)
{
    uint32_t involved = problem->bounds->modes & (BIT(EXTEND) | BIT(DECODE) | BIT(MIXED));
    uint32_t expanded = problem->mla_expanded & involved;
    int is_latent = ATTN_HAS(problem->group, attn_layer_group, mla) && problem->group->mla;
    return !is_latent || expanded == 0 || expanded == involved;
}

/* Parts begin at any row, and rows are aligned to less than a promise may say. */
static int keeps_alignment(const attn_problem *problem)
{
    return !ATTN_HAS(problem, attn_problem, min_alignment) || problem->min_alignment == 0;
}

int split_is_possible(const attn_problem *problem)
{
    /* Sequences of several queries are no rows of DECODE, and one child reads before another one
     * saves. */
    return keeps_alignment(problem) && one_mla_form(problem) &&
           !(problem->bounds->uses & (ATTN_USES_DECODE_DRAFTS | ATTN_USES_SHARED_NEW_KV));
}

int split_is_rounded(const attn_problem *problem)
{
    return problem->kv_dtype != attn_new_kv_dtype(problem) ||
           problem->group->kv_scale_granularity != ATTN_SCALE_NONE;
}

attn_status split_reads_unquantised(const attn_services *services, const char *name,
                                    const attn_problem *problem, uint32_t mode_bit, int *answer,
                                    attn_error *error)
{
    child_problem narrowed;
    attn_verdict verdict = {.struct_size = sizeof verdict};
    fanout_narrow_problem(problem, mode_bit, &narrowed);
    attn_status status =
        services->child_query(services->ctx, name, &narrowed.problem, &verdict, error);
    if (status == ATTN_OK)
        *answer = verdict.supported ? (verdict.reads_new_kv_unquantised & mode_bit) != 0 : -1;
    return status;
}

void split_limit_graph_level(const attn_problem *problem, attn_verdict *verdict)
{
    if (verdict->graph_level > ATTN_GRAPH_UNIFORM)
        verdict->graph_level = ATTN_GRAPH_UNIFORM;
    if (problem->graph_level > ATTN_GRAPH_UNIFORM)
        attn_util_refuse(verdict, ATTN_REASON_GRAPH_LEVEL, ATTN_FIELD_GRAPH_LEVEL, "0..2", "%u",
                         problem->graph_level);
}

void split_limit_invariance(const attn_problem *problem, attn_verdict *verdict)
{
    const uint32_t lost = ATTN_TRAIT_BATCH_INVARIANT | ATTN_TRAIT_CUT_INVARIANT;
    verdict->traits &= ~lost;
    if (problem->required_traits & lost)
        attn_util_refuse_excess(verdict, ATTN_REASON_DETERMINISM, ATTN_FIELD_REQUIRED_TRAITS,
                                ATTN_TRAIT_DETERMINISTIC, problem->required_traits);
}
