/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: options, and what the library can do. A problem goes through a table of small checks;
 * each adds the reasons it finds, so that a person reads all of them at once. No driver is asked.
 */
#include "plugins/flashinfer_like/flashinfer_like.h"

#include "plugins/common/cuda/image.h"
#include "attn_plugin_util.h"

#include <stdio.h>
#include <string.h>

enum {
    ALL_MASKS = (1 << ATTN_MASK_COUNT) - 1,
    ALL_USES = ATTN_USES_POSITIONS | ATTN_USES_MULTI_ITEM | ATTN_USES_SHARED_PREFIX |
               ATTN_USES_UNSAVED_KV | ATTN_USES_LSE | ATTN_USES_OMIT_SINK |
               ATTN_USES_DECODES_FIRST | ATTN_USES_DECODE_DRAFTS,
    ALL_GROUP_FLAGS = ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI,
    /* Without a request: how a sequence is divided depends on the batch unless BATCH_INVARIANT is
     * required. */
    TRAITS = ATTN_TRAIT_DETERMINISTIC | ATTN_TRAIT_SM_BUDGET,
    ALL_TRAITS = TRAITS | ATTN_TRAIT_BATCH_INVARIANT,
    SPLIT = 1024,          /* keys, as FI_OPTIONS says */
    WORKSPACE = 128 << 20, /* bytes, as FI_OPTIONS says */
};

/* ---- Options --------------------------------------------------------------------------------- */

const char *const fi_whens[WHEN_COUNT] = {
    [WHEN_AUTO] = "auto", [WHEN_ALWAYS] = "always", [WHEN_NEVER] = "never"};

const char *const fi_tensor_cores[TENSOR_CORES_COUNT] = {
    [TENSOR_CORES_AUTO] = "auto", [TENSOR_CORES_ALWAYS] = "always", [TENSOR_CORES_NEVER] = "never"};

int64_t fi_read_option(const attn_options *given, const char *key, int64_t otherwise)
{
    for (uint32_t i = 0; given && i < given->num_values; i++) {
        const attn_option_value *value = attn_at(given->values, i);
        if (strcmp(value->key, key) == 0)
            otherwise = value->integer;
    }
    return otherwise;
}

fi_options fi_read_options(const attn_options *given)
{
    return (fi_options){.cascade = (int)fi_read_option(given, "cascade", WHEN_AUTO),
                        .many_items = (int)fi_read_option(given, "many_items", WHEN_AUTO),
                        .half_tiles = (int)fi_read_option(given, "half_tiles", WHEN_AUTO),
                        .workspace = fi_read_option(given, "workspace_size", WORKSPACE),
                        .tensor_cores =
                            (int)fi_read_option(given, "use_tensor_cores", TENSOR_CORES_AUTO),
                        .is_invariant = (int)fi_read_option(given, "batch_invariant", 0),
                        .split = fi_read_option(given, "split_tile_size", SPLIT)};
}

int fi_is_invariant(const attn_problem *problem, const fi_options *options)
{
    return options->is_invariant || problem->required_traits & ATTN_TRAIT_BATCH_INVARIANT;
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
    .traits = ALL_TRAITS,
};

#define DIMS(name, dim, v_dim, ...) {dim, v_dim},
#define ONE(...)                    +1
#define NONE(...)
static const cuda_dims dims[] = {FI_SHAPES(DIMS, DIMS) FI_WIDE_SHAPES(DIMS)},
                       codes_dims[] = {FI_SHAPES(DIMS, NONE)};
#undef NONE
#undef DIMS
enum {
    NUM_DIMS = sizeof dims / sizeof dims[0],
    NUM_CODES_DIMS = sizeof codes_dims / sizeof dims[0],
    NUM_WIDE = 0 FI_WIDE_SHAPES(ONE) /* the last of `dims`, for Hopper only */
};
#undef ONE

/* The most shared memory of a block of a shape's kernels that the problem's dtypes may need; if the
 * dtypes are rejected, of all its kernels. */
static uint32_t shared_of(const fi_shape *shape, const attn_problem *problem)
{
    const attn_dtype q = problem->q_dtype, kv = problem->kv_dtype;
    const int has_numbers = (q == ATTN_F16 || q == ATTN_BF16) && kv == q;
    const int has_codes = (q == ATTN_F16 || q == ATTN_BF16) && cuda_is_fp8(kv);
    uint32_t most = 0;
    for (int i = has_codes ? KERNEL_CODES : 0; i < (has_numbers ? KERNEL_CODES : KERNEL_COUNT); i++)
        most = shape->kernels[i].shared > most ? shape->kernels[i].shared : most;
    return most;
}

/* Devices that are not Hopper have less shared memory, and most of them too little for wide heads.
 * A rejected device is checked as one that is not Hopper, if those are accepted, and rejected
 * dimensions as all accepted ones, so that no reason appears only after the others are fixed. */
static void check_shared_memory(const char *codes, const cuda_question *ask, attn_verdict *verdict)
{
    const attn_device *device = &ask->device;
    const fi_shape *own = fi_find_shape_for(device, ask->group.head_dim, ask->group.v_head_dim);
    uint32_t most = own ? shared_of(own, &ask->problem) : 0;
    if (fi_has_hopper(device) ||
        (!cuda_codes_run(codes, device->sm) && !cuda_codes_run(codes, FI_LEAST_SM)))
        return;
    for (size_t i = 0; !own && i < NUM_DIMS - NUM_WIDE; i++) {
        uint32_t one =
            shared_of(fi_find_shape_for(device, dims[i].dim, dims[i].v_dim), &ask->problem);
        most = one > most ? one : most;
    }
    if (device->shared_memory > 0 && device->shared_memory < most) {
        char accepted[32];
        snprintf(accepted, sizeof accepted, "%u..", most);
        REFUSE(ARCH, DEVICE_SHARED_MEMORY, accepted, "%u", device->shared_memory);
    }
}

static int is_half(attn_dtype dtype)
{
    return dtype == ATTN_F16 || dtype == ATTN_BF16;
}

/* Not all dimensions have kernels over fp8. A rejected cache dtype may become fp8. */
static void check_dims(const cuda_question *ask, attn_verdict *verdict)
{
    const attn_dtype q = ask->problem.q_dtype, kv = ask->problem.kv_dtype;
    const uint32_t count = fi_has_hopper(&ask->device) ? NUM_DIMS : NUM_DIMS - NUM_WIDE;
    if (is_half(kv) && (q == kv || !is_half(q)))
        cuda_check_dims(dims, count, &ask->group, verdict);
    else
        cuda_check_dims(codes_dims, NUM_CODES_DIMS, &ask->group, verdict);
}

static void check_group_flags(const cuda_question *ask, attn_verdict *verdict)
{
    if (ask->group.flags & ~(uint32_t)ALL_GROUP_FLAGS)
        REFUSE(UNKNOWN_FEATURE, FEATURE, "absent", "group flags %#x", ask->group.flags);
}

static void check_layers(const cuda_question *ask, attn_verdict *verdict)
{
    attn_util_check_layers(&limits, &ask->group, verdict);
}

static const cuda_dtypes dtypes = {.e4m3_cache = 1, .e5m2_cache = 1, .f32_out = 1};

static void check_dtypes(const cuda_question *ask, attn_verdict *verdict)
{
    cuda_check_dtypes(&dtypes, &ask->problem, &ask->group, verdict);
}

static void check_scales(const cuda_question *ask, attn_verdict *verdict)
{
    cuda_check_scales(&dtypes, &ask->problem, &ask->group, verdict);
}

static void check_layout(const cuda_question *ask, attn_verdict *verdict)
{
    if (cuda_question_has_cache(ask))
        attn_util_check_kv_layout(&ask->problem, verdict);
}

static void check_bounds(const cuda_question *ask, attn_verdict *verdict)
{
    attn_util_check_bounds(&limits, &ask->bounds, verdict);
}

static void check_needs(const cuda_question *ask, attn_verdict *verdict)
{
    attn_util_check_needs(&limits, &ask->problem, verdict);
}

static void check_options(const fi_options *options, attn_verdict *verdict)
{
    if (options->tensor_cores == TENSOR_CORES_NEVER)
        REFUSE(OTHER, OPTION, "auto, always",
               "use_tensor_cores never: no kernel multiplies by CUDA cores, which would be no "
               "faster");
    if (options->split & (options->split - 1))
        REFUSE(OTHER, OPTION, "64, 128, 256, ...", "split_tile_size %lld: splits are powers of two",
               (long long)options->split);
}

static void (*const checks[])(const cuda_question *ask, attn_verdict *verdict) = {
    cuda_check_layer, check_dims,   check_group_flags, check_layers, check_dtypes,
    check_scales,     check_layout, check_bounds,      check_needs,
};

/* ---- The answer ------------------------------------------------------------------------------ */

attn_status fi_answer(const char *codes, const attn_options *options, const attn_problem *problem,
                      attn_verdict *given, attn_error *error)
{
    cuda_question ask;
    attn_verdict verdict;
    attn_status status = cuda_question_read(problem, &ask, error);
    if (status != ATTN_OK)
        return status;
    if (!given)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "verdict is NULL");
    attn_util_verdict_begin(given, &verdict);
    cuda_codes_check(codes, &ask.device, &verdict);
    check_shared_memory(codes, &ask, &verdict);
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        checks[i](&ask, &verdict);
    const fi_options read = fi_read_options(options);
    check_options(&read, &verdict);
    if (verdict.supported) {
        verdict.graph_level = ATTN_GRAPH_ALWAYS;
        verdict.traits = fi_is_invariant(&ask.problem, &read) ? ALL_TRAITS : TRAITS;
        verdict.graph_seq_len_fill = 0;
        verdict.cost_hint = 0.5;
        ask.problem.group = &ask.group;
        ask.problem.bounds = &ask.bounds;
        fi_tell_memory(&ask.problem, &read, &verdict);
    }
    attn_util_verdict_end(&verdict, given);
    return ATTN_OK;
}

attn_status fi_query(const attn_backend_type *type, const attn_options *options,
                     const attn_services *services, const attn_problem *problem,
                     attn_verdict *given, attn_error *error)
{
    (void)type;
    (void)services;
    return fi_answer(FI_CODES, options, problem, given, error);
}

attn_status fi_require_bounds(const attn_bounds *bounds, attn_error *error)
{
    return attn_util_require_known_bounds(&limits, bounds, error);
}
