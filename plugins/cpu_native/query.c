/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: limits of cpu_native. A problem passes through a table of small checks; each adds its
 * reasons, so that a refusal lists all of them. */
#include "query.h"

#include "attn_plugin_util.h"
#include "plugins/cpu_native/mla/mla.h"
#include "plugins/cpu_native/sparse/sparse.h"

#include <stdio.h>

enum {
    ALL_MASKS = (1 << ATTN_MASK_COUNT) - 1,
    ALL_USES = ATTN_USES_POSITIONS | ATTN_USES_MULTI_ITEM | ATTN_USES_SHARED_PREFIX |
               ATTN_USES_UNSAVED_KV | ATTN_USES_LSE | ATTN_USES_OMIT_SINK |
               ATTN_USES_DECODES_FIRST | ATTN_USES_DECODE_DRAFTS | ATTN_USES_SHARED_NEW_KV,
    ALL_GROUP_FLAGS = ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI,
    ALL_TRAITS = ATTN_TRAIT_DETERMINISTIC | ATTN_TRAIT_BATCH_INVARIANT | ATTN_TRAIT_CUT_INVARIANT
};

/* Of sparse layers those over latents. */
static int is_served(const attn_layer_group *group)
{
    return group->kind == ATTN_KIND_SOFTMAX || group->kind == ATTN_KIND_MLA ||
           (group->kind == ATTN_KIND_SPARSE && group->mla);
}

/* ---- Arguments that make no sense ------------------------------------------------------------ */

#define FAIL(error, field, ...)                                                                    \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field, __VA_ARGS__)

static attn_status check_sense(const question *ask, attn_error *error)
{
    const attn_layer_group *group = &ask->group;
    attn_status status = attn_util_require_layers(group, error);
    /* Other fields of such a group are not checked. */
    if (status != ATTN_OK || !is_served(group))
        return status;
    status = attn_util_require_softmax(group, error);
    if (status == ATTN_OK && group->attn_type == ATTN_TYPE_CROSS)
        status = attn_util_require_positionless(group, error);
    if (status == ATTN_OK && has_cache(group) && ask->problem.page_size < 1)
        status = FAIL(error, ATTN_FIELD_PAGE_SIZE, "page_size %d: accepted 1 and more",
                      ask->problem.page_size);
    return status;
}

static attn_status question_init(question *ask, const attn_options *options,
                                 const attn_problem *problem, attn_error *error)
{
    attn_status status = attn_util_read_problem(problem, &ask->problem, &ask->group, &ask->bounds,
                                                &ask->device, error);
    if (status != ATTN_OK)
        return status;
    if (ask->group.kind == ATTN_KIND_MLA)
        status = mla_question_init(ask, error);
    if (ask->group.kind == ATTN_KIND_SPARSE && ask->group.mla)
        status = sparse_question_init(ask, error);
    if (status == ATTN_OK)
        status = cpu_options_read(options, &ask->options, error);
    return status == ATTN_OK ? check_sense(ask, error) : status;
}

/* ---- Checks ---------------------------------------------------------------------------------- */

static const attn_util_limits limits = {
    .layer_flags = ATTN_LAYER_KV_READ_ONLY,
    .modes = ATTN_UTIL_ALL_MODES,
    .mask_kinds = ALL_MASKS,
    .uses = ALL_USES,
    /* Nothing is enqueued on a processor, so nothing can be captured. */
    .graph_level = ATTN_GRAPH_NEVER,
    .traits = ALL_TRAITS,
};

static void check_device(const question *ask, attn_verdict *verdict)
{
    cpu_isa_check(cpu_builds, cpu_num_builds, ask->options.isa, &ask->device, verdict);
}

static void check_kind(const question *ask, attn_verdict *verdict)
{
    if (!is_served(&ask->group))
        REFUSE(LAYER_KIND, KIND, "softmax", "%s", attn_util_kind_name(ask->group.kind));
}

static void check_attn_type(const question *ask, attn_verdict *verdict)
{
    if (ask->group.attn_type >= ATTN_TYPE_COUNT)
        REFUSE(ATTN_TYPE, ATTN_TYPE, "decoder, encoder_only, cross", "%u", ask->group.attn_type);
}

static void check_dims(const question *ask, attn_verdict *verdict)
{
    if (ask->group.head_dim < 1 || ask->group.head_dim > MAX_HEAD_DIM)
        REFUSE(HEAD_DIM, HEAD_DIM, "1..512", "%d", ask->group.head_dim);
    if (ask->group.v_head_dim < 1 || ask->group.v_head_dim > MAX_HEAD_DIM)
        REFUSE(HEAD_DIM, V_HEAD_DIM, "1..512", "%d", ask->group.v_head_dim);
}

static void check_group_flags(const question *ask, attn_verdict *verdict)
{
    if (ask->group.flags & ~(uint32_t)ALL_GROUP_FLAGS)
        REFUSE(UNKNOWN_FEATURE, FEATURE, "absent", "group flags %#x", ask->group.flags);
}

static void check_layers(const question *ask, attn_verdict *verdict)
{
    attn_util_check_layers(&limits, &ask->group, verdict);
}

/* ---- Data types ------------------------------------------------------------------------------ */

/* Kinds of data types, as a set: of operands that are what they say, and of quantised ones. */
enum { PLAIN = 1, QUANTISED = 2, BOTH = PLAIN | QUANTISED };

static const char *const names[] = {
    [PLAIN] = OPERAND_DTYPES, [QUANTISED] = FP8_DTYPES, [BOTH] = OPERAND_DTYPES ", " FP8_DTYPES};

static int kind_of(attn_dtype dtype)
{
    return is_operand_dtype(dtype) ? PLAIN : is_fp8(dtype) ? QUANTISED : 0;
}

/* The dtypes, or the accepted ones if they are refused, so that reasons agree: each of a kind, or
 * `only` one if another dtype leaves no choice. A cache that is not quantised has the dtype of new
 * k, v; where there is none kv_dtype is q's. */
typedef struct settled {
    int q, fresh, kv; /* kinds */
    attn_dtype only_q, only_fresh, only_kv;
    int kv_suits;
} settled;

static int wants_input_scales(const question *ask)
{
    uint32_t granularity = ask->group.input_scale_granularity;
    return granularity != ATTN_SCALE_NONE && granularity < ATTN_SCALE_PER_TOKEN_HEAD;
}

/* q and new k, v. A granularity says whether some of them are to be quantised. */
static void settle_inputs(const question *ask, settled *to)
{
    const attn_problem *problem = &ask->problem;
    const int wanted = wants_input_scales(ask) ? QUANTISED : PLAIN, kv = kind_of(problem->kv_dtype);
    const int cached = has_cache(&ask->group);
    to->q = kind_of(problem->q_dtype);
    if (!to->q) {
        to->q = wanted;
        if (kv == wanted && (!cached || (kv == PLAIN && !problem->new_kv_dtype)))
            to->only_q = problem->kv_dtype;
        else if (!cached)
            to->only_q = wanted == PLAIN ? ATTN_F32 : ATTN_FP8_E4M3;
    }
    to->only_fresh = to->only_q;
    to->fresh = to->q;
    if (!problem->new_kv_dtype)
        return;
    to->only_fresh = ATTN_DTYPE_NONE;
    to->fresh = kind_of(problem->new_kv_dtype);
    if (to->fresh)
        return;
    to->fresh = wanted == QUANTISED && to->q == QUANTISED ? BOTH : wanted;
    if (cached && kv == PLAIN && to->fresh & PLAIN) {
        to->fresh = PLAIN;
        to->only_fresh = problem->kv_dtype;
    }
}

/* The cache. */
static void settle_cache(const question *ask, settled *to)
{
    const attn_dtype kv = ask->problem.kv_dtype, q = ask->problem.q_dtype;
    attn_dtype fresh = attn_new_kv_dtype(&ask->problem);
    to->kv = kind_of(kv);
    if (!has_cache(&ask->group)) {
        to->only_kv = kind_of(q) ? q : to->only_q;
        to->kv_suits = kv == to->only_kv;
        to->kv = PLAIN; /* nothing has scales */
        return;
    }
    if (!kind_of(fresh))
        fresh = to->only_fresh;
    to->only_kv = kind_of(fresh) == PLAIN ? fresh : ATTN_DTYPE_NONE;
    to->kv_suits = to->kv == QUANTISED || (to->kv == PLAIN && kv == to->only_kv);
    if (!to->kv_suits)
        to->kv = to->fresh & PLAIN ? BOTH : QUANTISED;
}

static settled settle(const question *ask)
{
    settled types = {0};
    settle_inputs(ask, &types);
    settle_cache(ask, &types);
    return types;
}

static void refuse_kv_dtype(const question *ask, const settled *types, attn_verdict *verdict)
{
    char accepted[64];
    const char *only = types->only_kv ? attn_util_dtype_name(types->only_kv) : OPERAND_DTYPES;
    snprintf(accepted, sizeof accepted, "%s%s%s", types->kv & PLAIN ? only : "",
             types->kv == BOTH ? ", " : "", types->kv & QUANTISED ? FP8_DTYPES : "");
    REFUSE(DTYPE, KV_DTYPE, accepted, "%s", attn_util_dtype_name(ask->problem.kv_dtype));
}

static void check_dtypes(const question *ask, attn_verdict *verdict)
{
    const attn_problem *problem = &ask->problem;
    const settled types = settle(ask);
    if (!kind_of(problem->q_dtype))
        REFUSE(DTYPE, Q_DTYPE, types.only_q ? attn_util_dtype_name(types.only_q) : names[types.q],
               "%s", attn_util_dtype_name(problem->q_dtype));
    if (problem->new_kv_dtype && !kind_of(problem->new_kv_dtype))
        REFUSE(DTYPE, NEW_KV_DTYPE,
               types.only_fresh ? attn_util_dtype_name(types.only_fresh) : names[types.fresh], "%s",
               attn_util_dtype_name(problem->new_kv_dtype));
    if (!types.kv_suits)
        refuse_kv_dtype(ask, &types, verdict);
    if (!kind_of(problem->out_dtype))
        REFUSE(DTYPE, OUT_DTYPE, names[BOTH], "%s", attn_util_dtype_name(problem->out_dtype));
}

/* If the dtype of a cache must change, it may become a quantised one or not. */
void query_check_scales(const question *ask, int scaled, int open, int per_head,
                        attn_verdict *verdict)
{
    uint32_t granularity = ask->group.kv_scale_granularity;
    int given = granularity != ATTN_SCALE_NONE;
    if (granularity < ATTN_SCALE_COUNT && (open || scaled == given) &&
        (per_head || granularity <= ATTN_SCALE_PER_TENSOR))
        return;
    char accepted[64];
    snprintf(accepted, sizeof accepted, "%s%s%s%s", scaled ? "" : "none", open ? ", " : "",
             open || scaled ? "per_tensor" : "",
             (open || scaled) && per_head ? ", per_head, per_seq_head, per_token_head" : "");
    REFUSE(SCALE_GRANULARITY, SCALE_GRANULARITY, accepted, "%s",
           attn_util_granularity_name(granularity));
}

static void check_scales(const question *ask, attn_verdict *verdict)
{
    const settled types = settle(ask);
    const int quantised = types.q == QUANTISED || types.fresh == QUANTISED;
    const uint32_t inputs = ask->group.input_scale_granularity;
    query_check_scales(ask, types.kv == QUANTISED, types.kv == BOTH, 1, verdict);
    if (quantised ? !wants_input_scales(ask) : inputs != ATTN_SCALE_NONE)
        REFUSE(SCALE_GRANULARITY, INPUT_SCALE_GRANULARITY,
               quantised ? "per_tensor, per_head, per_seq_head" : "none", "%s",
               attn_util_granularity_name(inputs));
}

/* ---- The other checks ------------------------------------------------------------------------ */

static void check_layout(const question *ask, attn_verdict *verdict)
{
    if (has_cache(&ask->group))
        attn_util_check_kv_layout(&ask->problem, verdict);
}

static void check_bounds(const question *ask, attn_verdict *verdict)
{
    attn_util_check_bounds(&limits, &ask->bounds, verdict);
}

static void check_needs(const question *ask, attn_verdict *verdict)
{
    attn_util_check_needs(&limits, &ask->problem, verdict);
}

static void check_sparse_flags(const question *ask, attn_verdict *verdict)
{
    check_group_flags(ask, verdict);
    sparse_check_flags(ask, verdict);
}

static void check_sparse_bounds(const question *ask, attn_verdict *verdict)
{
    attn_util_limits own = limits;
    own.uses &= ~(uint32_t)ATTN_USES_UNSAVED_KV; /* chosen keys are read from the cache */
    attn_util_check_bounds(&own, &ask->bounds, verdict);
}

/* Of softmax attention, of latent attention, and of that to chosen latents. */
static void (*const checks[][3])(const question *ask, attn_verdict *verdict) = {
    {check_device, check_device, check_device},
    {check_kind, check_kind, check_kind},
    {check_attn_type, mla_check_attn_type, mla_check_attn_type},
    {check_dims, mla_check_dims, sparse_check_dims},
    {check_group_flags, check_group_flags, check_sparse_flags},
    {check_layers, check_layers, check_layers},
    {check_dtypes, mla_check_dtypes, mla_check_dtypes},
    {check_scales, mla_check_scales, mla_check_scales},
    {check_layout, mla_check_layout, mla_check_layout},
    {check_bounds, check_bounds, check_sparse_bounds},
    {check_needs, check_needs, check_needs},
};

/* ---- The answer ------------------------------------------------------------------------------ */

static void tell_memory(const question *ask, const attn_services *services, attn_verdict *verdict)
{
    const attn_bounds *bounds = &ask->bounds;
    uint32_t workers = services && services->num_workers > 0 ? services->num_workers : 1;
    cpu_group groups[MAX_FORMS];
    group_capacity capacities[MAX_FORMS];
    if (bounds->max_seqs == 0 || bounds->max_tokens == 0 || bounds->max_kv_len == 0)
        return;
    uint32_t count = cpu_groups_init(groups, &ask->problem);
    for (uint32_t i = 0; i < count; i++)
        capacities[i] = cpu_group_capacity(&groups[i], &ask->options, workers, bounds);
    verdict->device_bytes = cpu_scratch_bytes(capacities, count, workers);
    verdict->host_bytes = cpu_metadata_bytes(capacities, count, bounds);
}

attn_status cpu_query(const attn_backend_type *type, const attn_options *options,
                      const attn_services *services, const attn_problem *problem,
                      attn_verdict *given, attn_error *error)
{
    (void)type;
    question ask;
    attn_verdict verdict;
    attn_status status = question_init(&ask, options, problem, error);
    if (status != ATTN_OK)
        return status;
    if (!given)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "verdict is NULL");
    const int column = ask.group.kind == ATTN_KIND_MLA                       ? 1
                       : ask.group.kind == ATTN_KIND_SPARSE && ask.group.mla ? 2
                                                                             : 0;
    attn_util_verdict_begin(given, &verdict);
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        checks[i][column](&ask, &verdict);
    if (verdict.supported) {
        verdict.graph_level = ATTN_GRAPH_NEVER;
        verdict.traits = ALL_TRAITS;
        verdict.reads_new_kv_unquantised =
            ask.group.kv_scale_granularity == ATTN_SCALE_PER_TOKEN_HEAD ? ATTN_UTIL_ALL_MODES : 0;
        verdict.graph_seq_len_fill = 0;
        verdict.cost_hint = 1;
        tell_memory(&ask, services, &verdict);
    }
    attn_util_verdict_end(&verdict, given);
    return ATTN_OK;
}

attn_status cpu_require_bounds(const attn_bounds *bounds, attn_error *error)
{
    return attn_util_require_known_bounds(&limits, bounds, error);
}
