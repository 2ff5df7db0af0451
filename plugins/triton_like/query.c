/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: what triton_like can do. A problem goes through a table of small checks; each adds the
 * reasons it finds, so that a person reads all of them at once. No driver is asked.
 */
#include "triton_like.h"

#include "plugins/common/cuda/image.h"
#include "attn_plugin_util.h"

/* A problem in structs of ours, whatever size the caller's have. */
typedef struct question {
    attn_problem problem;
    attn_layer_group group;
    attn_bounds bounds;
    attn_device device;
    triton_options options;
} question;

enum {
    ALL_MODES = (1 << ATTN_MODE_COUNT) - 1,
    ALL_MASKS = (1 << ATTN_MASK_COUNT) - 1,
    ALL_USES = ATTN_USES_POSITIONS | ATTN_USES_SHARED_PREFIX | ATTN_USES_UNSAVED_KV |
               ATTN_USES_LSE | ATTN_USES_OMIT_SINK,
    ALL_GROUP_FLAGS = ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI,
    ALL_NOTES = ATTN_NOTE_DETERMINISTIC | ATTN_NOTE_BATCH_INVARIANT
};

static int has_cache(const attn_layer_group *group)
{
    return group->attn_type != ATTN_TYPE_ENCODER_ONLY;
}

/* ---- Arguments that make no sense ------------------------------------------------------------ */

#define FAIL(error, field, ...)                                                                    \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field, __VA_ARGS__)

static attn_status check_sense(const question *ask, attn_error *error)
{
    const attn_layer_group *group = &ask->group;
    attn_status status = attn_util_require_layers(group, error);
    /* What else stands there is for others to judge. */
    if (status != ATTN_OK || group->kind != ATTN_KIND_SOFTMAX)
        return status;
    status = attn_util_require_softmax(group, error);
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
    if (status == ATTN_OK)
        status = triton_options_read(options, &ask->options, error);
    return status == ATTN_OK ? check_sense(ask, error) : status;
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
    .notes = ALL_NOTES,
};

/* NVRTC compiles for any of these. */
static void check_device(const question *ask, attn_verdict *verdict)
{
    cuda_codes_check("compute_80", &ask->device, verdict);
}

static void check_kind(const question *ask, attn_verdict *verdict)
{
    if (ask->group.kind != ATTN_KIND_SOFTMAX)
        REFUSE(LAYER_KIND, KIND, "softmax", "%s", attn_util_kind_name(ask->group.kind));
}

static void check_attn_type(const question *ask, attn_verdict *verdict)
{
    if (ask->group.attn_type != ATTN_TYPE_DECODER && ask->group.attn_type != ATTN_TYPE_ENCODER_ONLY)
        REFUSE(ATTN_TYPE, ATTN_TYPE, "decoder, encoder_only", "%s",
               attn_util_attn_type_name(ask->group.attn_type));
}

static void check_dims(const question *ask, attn_verdict *verdict)
{
    if (ask->group.head_dim < MIN_DIM || ask->group.head_dim > MAX_DIM)
        REFUSE(HEAD_DIM, HEAD_DIM, "16..256", "%d", ask->group.head_dim);
    if (ask->group.v_head_dim < MIN_DIM || ask->group.v_head_dim > MAX_DIM)
        REFUSE(HEAD_DIM, V_HEAD_DIM, "16..256", "%d", ask->group.v_head_dim);
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

static const cuda_dtypes dtypes = {.fp8_cache = 1, .f32_out = 1};

static void check_dtypes(const question *ask, attn_verdict *verdict)
{
    cuda_check_dtypes(&dtypes, &ask->problem, &ask->group, verdict);
}

static void check_scales(const question *ask, attn_verdict *verdict)
{
    cuda_check_scales(&dtypes, &ask->problem, &ask->group, verdict);
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

static void (*const checks[])(const question *ask, attn_verdict *verdict) = {
    check_device, check_kind,   check_attn_type, check_dims,   check_group_flags, check_layers,
    check_dtypes, check_scales, check_layout,    check_bounds, check_needs,
};

/* ---- The answer ------------------------------------------------------------------------------ */

static void tell_memory(const question *ask, attn_verdict *verdict)
{
    const attn_bounds *bounds = &ask->bounds;
    triton_group group;
    if (bounds->max_seqs == 0 || bounds->max_tokens == 0 || bounds->max_kv_len == 0)
        return;
    triton_group_init(&group, &ask->problem);
    verdict->device_bytes =
        triton_scratch_layout(&group, &ask->options, bounds).size + CUDA_COUNTS_BYTES;
    verdict->host_bytes = sizeof(attn_metadata) + sizeof(attn_kv_batch);
}

attn_status triton_query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *given, attn_error *error)
{
    (void)type;
    (void)services;
    question ask;
    attn_verdict verdict;
    attn_status status = question_init(&ask, options, problem, error);
    if (status != ATTN_OK)
        return status;
    if (!given)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "verdict is NULL");
    attn_util_verdict_begin(given, &verdict);
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        checks[i](&ask, &verdict);
    if (verdict.supported) {
        verdict.graph_level = ATTN_GRAPH_ALWAYS;
        verdict.notes = ALL_NOTES | ATTN_NOTE_RUNTIME_COMPILATION;
        if (!ask.options.reduce_in_fp32)
            verdict.notes |= ATTN_NOTE_REDUCED_PRECISION;
        verdict.reads_new_kv_unquantised = cuda_is_fp8(ask.problem.kv_dtype) ? ALL_MODES : 0;
        verdict.graph_seq_len_fill = 0;
        verdict.cost_hint = 1;
        tell_memory(&ask, &verdict);
    }
    attn_util_verdict_end(&verdict, given);
    return ATTN_OK;
}

attn_status triton_require_bounds(const attn_bounds *bounds, attn_error *error)
{
    return attn_util_require_known_bounds(&limits, bounds, error);
}
