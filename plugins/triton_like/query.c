/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: limits of triton_like. A problem passes through a table of small checks; each adds its
 * reasons, so that a refusal lists all of them. No driver is called.
 */
#include "triton_like.h"

#include "plugins/common/cuda/image.h"
#include "attn_plugin_util.h"

/* A problem in structs of full size. */
typedef struct question {
    cuda_question asked;
    triton_options options;
} question;

enum {
    ALL_MODES = (1 << ATTN_MODE_COUNT) - 1,
    ALL_MASKS = (1 << ATTN_MASK_COUNT) - 1,
    ALL_USES = ATTN_USES_POSITIONS | ATTN_USES_SHARED_PREFIX | ATTN_USES_UNSAVED_KV |
               ATTN_USES_LSE | ATTN_USES_OMIT_SINK,
    ALL_GROUP_FLAGS = ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI,
    ALL_TRAITS = ATTN_TRAIT_DETERMINISTIC | ATTN_TRAIT_BATCH_INVARIANT
};

/* ---- Checks ---------------------------------------------------------------------------------- */

#define REFUSE(reason, field, ...)                                                                 \
    attn_util_refuse(verdict, ATTN_REASON_##reason, ATTN_FIELD_##field, __VA_ARGS__)

static const attn_util_limits limits = {
    .layer_flags = ATTN_LAYER_KV_READ_ONLY,
    .modes = ATTN_UTIL_ALL_MODES,
    .mask_kinds = ALL_MASKS,
    .uses = ALL_USES,
    .graph_level = ATTN_GRAPH_ALWAYS,
    .traits = ALL_TRAITS,
};

/* NVRTC compiles for any of these. */
static void check_device(const question *ask, attn_verdict *verdict)
{
    cuda_codes_check("compute_80", &ask->asked.device, verdict);
}

static void check_layer(const question *ask, attn_verdict *verdict)
{
    cuda_check_layer(&ask->asked, verdict);
}

static void check_dims(const question *ask, attn_verdict *verdict)
{
    if (ask->asked.group.head_dim < MIN_DIM || ask->asked.group.head_dim > MAX_DIM)
        REFUSE(HEAD_DIM, HEAD_DIM, "16..512", "%d", ask->asked.group.head_dim);
    if (ask->asked.group.v_head_dim < MIN_DIM || ask->asked.group.v_head_dim > MAX_DIM)
        REFUSE(HEAD_DIM, V_HEAD_DIM, "16..512", "%d", ask->asked.group.v_head_dim);
}

static void check_group_flags(const question *ask, attn_verdict *verdict)
{
    if (ask->asked.group.flags & ~(uint32_t)ALL_GROUP_FLAGS)
        REFUSE(UNKNOWN_FEATURE, FEATURE, "absent", "group flags %#x", ask->asked.group.flags);
}

static void check_layers(const question *ask, attn_verdict *verdict)
{
    attn_util_check_layers(&limits, &ask->asked.group, verdict);
}

static const cuda_dtypes dtypes = {.e4m3_cache = 1, .e5m2_cache = 1, .f32_out = 1};

static void check_dtypes(const question *ask, attn_verdict *verdict)
{
    cuda_check_dtypes(&dtypes, &ask->asked.problem, &ask->asked.group, verdict);
}

static void check_scales(const question *ask, attn_verdict *verdict)
{
    cuda_check_scales(&dtypes, &ask->asked.problem, &ask->asked.group, verdict);
}

static void check_layout(const question *ask, attn_verdict *verdict)
{
    if (cuda_question_has_cache(&ask->asked))
        attn_util_check_kv_layout(&ask->asked.problem, verdict);
}

static void check_bounds(const question *ask, attn_verdict *verdict)
{
    attn_util_check_bounds(&limits, &ask->asked.bounds, verdict);
}

static void check_needs(const question *ask, attn_verdict *verdict)
{
    attn_util_check_needs(&limits, &ask->asked.problem, verdict);
}

static void (*const checks[])(const question *ask, attn_verdict *verdict) = {
    check_device, check_layer,  check_dims,   check_group_flags, check_layers,
    check_dtypes, check_scales, check_layout, check_bounds,      check_needs,
};

/* ---- The answer ------------------------------------------------------------------------------ */

static void tell_memory(const question *ask, attn_verdict *verdict)
{
    const attn_bounds *bounds = &ask->asked.bounds;
    triton_group group;
    if (bounds->max_seqs == 0 || bounds->max_tokens == 0 || bounds->max_kv_len == 0)
        return;
    triton_group_init(&group, &ask->asked.problem);
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
    attn_status status = cuda_question_read(problem, &ask.asked, error);
    if (status == ATTN_OK)
        status = triton_options_read(options, &ask.options, error);
    if (status != ATTN_OK)
        return status;
    if (!given)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "verdict is NULL");
    attn_util_verdict_begin(given, &verdict);
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        checks[i](&ask, &verdict);
    if (verdict.supported) {
        verdict.graph_level = ATTN_GRAPH_ALWAYS;
        verdict.traits = ALL_TRAITS | ATTN_TRAIT_RUNTIME_COMPILATION;
        if (!ask.options.reduce_in_fp32)
            verdict.traits |= ATTN_TRAIT_REDUCED_PRECISION;
        verdict.reads_new_kv_unquantised = cuda_is_fp8(ask.asked.problem.kv_dtype) ? ALL_MODES : 0;
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
