/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: what fa3_like can do. A problem goes through a table of small checks; each adds the
 * reasons it finds, so that a person reads all of them at once. No driver is asked.
 */
#include "plugins/fa3_like/fa3_like.h"

#include "plugins/common/cuda/image.h"
#include "attn_plugin_util.h"

#include <string.h>

enum {
    ALL_MASKS = ATTN_MASK_BIT(ATTN_MASK_LAYER) | ATTN_MASK_BIT(ATTN_MASK_NONE),
    ALL_USES = ATTN_USES_SHARED_PREFIX | ATTN_USES_LSE | ATTN_USES_OMIT_SINK |
               ATTN_USES_DECODES_FIRST | ATTN_USES_DECODE_DRAFTS,
    /* None of equal bits: rows of a warp share the decision to take a new reference (README.md). */
    NOTES = ATTN_NOTE_SM_BUDGET,
    BOX_ROWS = 8, /* rows of a page come in so many, under the swizzle */
    MOST_PAGE = 65536
};

/* What the kernels are compiled for; fa3_like_GENCODE of Makefile.am.inc. */
static const char codes[] = "sm_90a";

static int is_operand_dtype(attn_dtype dtype)
{
    return dtype == ATTN_F16 || dtype == ATTN_BF16;
}

/* ---- Checks ---------------------------------------------------------------------------------- */

#define REFUSE(reason, field, ...)                                                                 \
    attn_util_refuse(verdict, ATTN_REASON_##reason, ATTN_FIELD_##field, __VA_ARGS__)

static const attn_util_limits limits = {
    .layer_flags = ATTN_LAYER_KV_READ_ONLY,
    .modes = ATTN_UTIL_ALL_MODES,
    .mask_kinds = ALL_MASKS,
    .uses = ALL_USES,
    .graph_level = ATTN_GRAPH_ALWAYS,
    .notes = NOTES,
};

static void check_device(const cuda_question *ask, attn_verdict *verdict)
{
    cuda_codes_check(codes, &ask->device, verdict);
}

#define DIMS(name, dim, v_dim, ...) {dim, v_dim},
static const cuda_dims dims[] = {FA3_SHAPES(DIMS)};
#undef DIMS

static void check_dims(const cuda_question *ask, attn_verdict *verdict)
{
    cuda_check_dims(dims, sizeof dims / sizeof dims[0], &ask->group, verdict);
}

static void check_group_flags(const cuda_question *ask, attn_verdict *verdict)
{
    if (ask->group.flags & ATTN_GROUP_HAS_ALIBI)
        REFUSE(ALIBI, ALIBI, "absent", "1");
    if (ask->group.flags & ~(uint32_t)(ATTN_GROUP_HAS_ALIBI | ATTN_GROUP_HAS_SINKS))
        REFUSE(UNKNOWN_FEATURE, FEATURE, "absent", "group flags %#x", ask->group.flags);
}

static void check_chunk(const cuda_question *ask, attn_verdict *verdict)
{
    if (ask->group.attention_chunk > 0)
        REFUSE(CHUNK, ATTENTION_CHUNK, "0", "%d", ask->group.attention_chunk);
}

static void check_layers(const cuda_question *ask, attn_verdict *verdict)
{
    attn_util_check_layers(&limits, &ask->group, verdict);
}

/* All operands are of one type: that of q, if it is any; else the first that is. */
static void check_dtypes(const cuda_question *ask, attn_verdict *verdict)
{
    const attn_problem *problem = &ask->problem;
    attn_dtype one = attn_util_one_input(problem, is_operand_dtype);
    if (one == ATTN_DTYPE_NONE)
        one = problem->out_dtype;
    const char *accepted = is_operand_dtype(one) ? attn_util_dtype_name(one) : "f16, bf16";
    attn_util_check_inputs(problem, &ask->group, is_operand_dtype(one) ? one : ATTN_DTYPE_NONE,
                           verdict);
    if (problem->q_dtype != one || !is_operand_dtype(one))
        REFUSE(DTYPE, Q_DTYPE, accepted, "%s", attn_util_dtype_name(problem->q_dtype));
    if (problem->kv_dtype != one || !is_operand_dtype(one))
        REFUSE(DTYPE, KV_DTYPE, accepted, "%s", attn_util_dtype_name(problem->kv_dtype));
    if (problem->out_dtype != one || !is_operand_dtype(one))
        REFUSE(DTYPE, OUT_DTYPE, accepted, "%s", attn_util_dtype_name(problem->out_dtype));
}

static void check_scales(const cuda_question *ask, attn_verdict *verdict)
{
    if (ask->group.kv_scale_granularity != ATTN_SCALE_NONE)
        REFUSE(SCALE_GRANULARITY, SCALE_GRANULARITY, "none", "%s",
               attn_util_granularity_name(ask->group.kv_scale_granularity));
}

static void check_cache(const cuda_question *ask, attn_verdict *verdict)
{
    if (!cuda_question_has_cache(ask))
        return;
    attn_util_check_kv_layout(&ask->problem, verdict);
    if (ask->problem.page_size % BOX_ROWS != 0 || ask->problem.page_size > MOST_PAGE)
        REFUSE(PAGE_SIZE, PAGE_SIZE, "8..65536/8", "%d", ask->problem.page_size);
}

static void check_bounds(const cuda_question *ask, attn_verdict *verdict)
{
    attn_util_check_bounds(&limits, &ask->bounds, verdict);
}

static void check_needs(const cuda_question *ask, attn_verdict *verdict)
{
    attn_util_check_needs(&limits, &ask->problem, verdict);
}

static void (*const checks[])(const cuda_question *ask, attn_verdict *verdict) = {
    check_device, cuda_check_layer, check_dims,  check_group_flags, check_chunk, check_layers,
    check_dtypes, check_scales,     check_cache, check_bounds,      check_needs,
};

/* ---- The answer ------------------------------------------------------------------------------ */

attn_status fa3_query(const attn_backend_type *type, const attn_options *options,
                      const attn_services *services, const attn_problem *problem,
                      attn_verdict *given, attn_error *error)
{
    (void)type;
    (void)options;
    (void)services;
    cuda_question ask;
    attn_verdict verdict;
    attn_status status = cuda_question_read(problem, &ask, error);
    if (status != ATTN_OK)
        return status;
    if (!given)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "verdict is NULL");
    attn_util_verdict_begin(given, &verdict);
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        checks[i](&ask, &verdict);
    if (verdict.supported) {
        verdict.graph_level = ATTN_GRAPH_ALWAYS;
        verdict.notes = NOTES;
        verdict.graph_seq_len_fill = 0;
        verdict.cost_hint = 0.5;
        ask.problem.group = &ask.group;
        ask.problem.bounds = &ask.bounds;
        fa3_tell_memory(&ask.problem, &verdict);
    }
    attn_util_verdict_end(&verdict, given);
    return ATTN_OK;
}

attn_status fa3_require_bounds(const attn_bounds *bounds, attn_error *error)
{
    return attn_util_require_known_bounds(&limits, bounds, error);
}
