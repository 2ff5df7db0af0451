/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: what cpu_native can do. A problem goes through a table of small checks; each adds the
 * reasons it finds, so that a person reads all of them at once.
 */
#include "query.h"

#include "attn_plugin_util.h"
#include "plugins/cpu_native/mla/mla.h"

#include <stdio.h>

enum {
    ALL_MASKS = (1 << ATTN_MASK_COUNT) - 1,
    ALL_USES = ATTN_USES_POSITIONS | ATTN_USES_MULTI_ITEM | ATTN_USES_SHARED_PREFIX |
               ATTN_USES_UNSAVED_KV | ATTN_USES_LSE | ATTN_USES_OMIT_SINK |
               ATTN_USES_DECODES_FIRST | ATTN_USES_DECODE_DRAFTS,
    ALL_GROUP_FLAGS = ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI,
    ALL_NOTES = ATTN_NOTE_DETERMINISTIC | ATTN_NOTE_BATCH_INVARIANT
};

static int is_served(const attn_layer_group *group)
{
    return group->kind == ATTN_KIND_SOFTMAX || group->kind == ATTN_KIND_MLA;
}

/* ---- Arguments that make no sense ------------------------------------------------------------ */

#define FAIL(error, field, ...)                                                                    \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field, __VA_ARGS__)

/* Cross attention has no query position. */
static attn_status check_cross(const attn_layer_group *group, attn_error *error)
{
    if (group->attn_type != ATTN_TYPE_CROSS)
        return ATTN_OK;
    const char *why = "cross attention has no query position";
    if (group->window_left != -1)
        return FAIL(error, ATTN_FIELD_WINDOW_LEFT, "window_left %d: accepted -1: %s",
                    group->window_left, why);
    if (group->window_right != -1)
        return FAIL(error, ATTN_FIELD_WINDOW_RIGHT, "window_right %d: accepted -1: %s",
                    group->window_right, why);
    if (group->attention_chunk != 0)
        return FAIL(error, ATTN_FIELD_ATTENTION_CHUNK, "attention_chunk %d: accepted 0: %s",
                    group->attention_chunk, why);
    if (group->flags & ATTN_GROUP_HAS_ALIBI)
        return FAIL(error, ATTN_FIELD_ALIBI, "has_alibi 1: accepted 0: %s", why);
    return ATTN_OK;
}

static attn_status check_sense(const question *ask, attn_error *error)
{
    const attn_layer_group *group = &ask->group;
    attn_status status = attn_util_require_layers(group, error);
    /* What else stands there is for others to judge. */
    if (status != ATTN_OK || !is_served(group))
        return status;
    status = attn_util_require_softmax(group, error);
    if (status == ATTN_OK)
        status = check_cross(group, error);
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
    .notes = ALL_NOTES,
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

/* Can the cache have this dtype with some dtype of q, or with this one? */
static int suits_some(const question *ask, attn_dtype kv_dtype)
{
    return is_operand_dtype(kv_dtype) || (has_cache(&ask->group) && is_fp8(kv_dtype));
}

static int suits(const question *ask, attn_dtype kv_dtype)
{
    return kv_dtype == ask->problem.q_dtype || (has_cache(&ask->group) && is_fp8(kv_dtype));
}

static void refuse_kv_dtype(const question *ask, const char *unquantised, attn_verdict *verdict)
{
    char accepted[64];
    snprintf(accepted, sizeof accepted, "%s%s", unquantised,
             has_cache(&ask->group) ? ", fp8_e4m3, fp8_e5m2" : "");
    REFUSE(DTYPE, KV_DTYPE, accepted, "%s", attn_util_dtype_name(ask->problem.kv_dtype));
}

/* A cache that is not quantised has q's dtype, so what q's may be depends on it. */
void query_check_dtypes(const question *ask, attn_verdict *verdict)
{
    const char *all = OPERAND_DTYPES;
    const attn_problem *problem = &ask->problem;
    if (!is_operand_dtype(problem->q_dtype)) {
        REFUSE(DTYPE, Q_DTYPE,
               is_operand_dtype(problem->kv_dtype) ? attn_util_dtype_name(problem->kv_dtype) : all,
               "%s", attn_util_dtype_name(problem->q_dtype));
        if (!suits_some(ask, problem->kv_dtype))
            refuse_kv_dtype(ask, all, verdict);
    } else if (!suits(ask, problem->kv_dtype)) {
        refuse_kv_dtype(ask, attn_util_dtype_name(problem->q_dtype), verdict);
    }
    if (!is_operand_dtype(problem->out_dtype))
        REFUSE(DTYPE, OUT_DTYPE, all, "%s", attn_util_dtype_name(problem->out_dtype));
}

/* Where the dtype of a cache has to change, it may become a quantised one or not. */
void query_check_scales(const question *ask, int scaled_cache, int per_head, attn_verdict *verdict)
{
    uint32_t granularity = ask->group.kv_scale_granularity;
    attn_dtype kv_dtype = ask->problem.kv_dtype;
    int open = scaled_cache && !is_fp8(kv_dtype) && !is_operand_dtype(kv_dtype);
    int scaled = scaled_cache && is_fp8(kv_dtype);
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
    query_check_scales(ask, has_cache(&ask->group), 1, verdict);
}

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

/* Of softmax attention, and of latent attention. */
static void (*const checks[][2])(const question *ask, attn_verdict *verdict) = {
    {check_device, check_device},
    {check_kind, check_kind},
    {check_attn_type, mla_check_attn_type},
    {check_dims, mla_check_dims},
    {check_group_flags, check_group_flags},
    {check_layers, check_layers},
    {query_check_dtypes, mla_check_dtypes},
    {check_scales, mla_check_scales},
    {check_layout, mla_check_layout},
    {check_bounds, check_bounds},
    {check_needs, check_needs},
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
    const int latent = ask.group.kind == ATTN_KIND_MLA;
    attn_util_verdict_begin(given, &verdict);
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        checks[i][latent](&ask, &verdict);
    if (verdict.supported) {
        verdict.graph_level = ATTN_GRAPH_NEVER;
        verdict.notes = ALL_NOTES;
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
