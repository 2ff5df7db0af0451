/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: what flashinfer_like can do. A problem goes through a table of small checks; each adds
 * the reasons it finds, so that a person reads all of them at once. No driver is asked.
 */
#include "plugins/flashinfer_like/flashinfer_like.h"

#include "plugins/common/cuda/image.h"
#include "attn_plugin_util.h"

#include <stdio.h>
#include <string.h>

/* A problem in structs of ours, whatever size the caller's have. */
typedef struct question {
    attn_problem problem;
    attn_layer_group group;
    attn_bounds bounds;
    attn_device device;
} question;

enum {
    ALL_MASKS = (1 << ATTN_MASK_COUNT) - 1,
    ALL_USES = ATTN_USES_POSITIONS | ATTN_USES_SHARED_PREFIX | ATTN_USES_UNSAVED_KV |
               ATTN_USES_LSE | ATTN_USES_OMIT_SINK,
    ALL_GROUP_FLAGS = ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI,
    ALL_NOTES = ATTN_NOTE_DETERMINISTIC, /* how a sequence is shared out depends on the batch */
    ANY = -1
};

/* What the kernels are compiled for; flashinfer_like_GENCODE of Makefile.am.inc. */
static const char codes[] = "sm_90a";

static int has_cache(const attn_layer_group *group)
{
    return group->attn_type != ATTN_TYPE_ENCODER_ONLY;
}

/* ---- Arguments that make no sense ------------------------------------------------------------ */

static attn_status check_sense(const question *ask, attn_error *error)
{
    const attn_layer_group *group = &ask->group;
    attn_status status = attn_util_require_layers(group, error);
    /* What else stands there is for others to judge. */
    if (status != ATTN_OK || group->kind != ATTN_KIND_SOFTMAX)
        return status;
    status = attn_util_require_softmax(group, error);
    if (status == ATTN_OK && has_cache(group) && ask->problem.page_size < 1)
        status = attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_PAGE_SIZE,
                                      "page_size %d: accepted 1 and more", ask->problem.page_size);
    return status;
}

static attn_status question_init(question *ask, const attn_problem *problem, attn_error *error)
{
    attn_status status = attn_util_read_problem(problem, &ask->problem, &ask->group, &ask->bounds,
                                                &ask->device, error);
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

static void check_device(const question *ask, attn_verdict *verdict)
{
    cuda_codes_check(codes, &ask->device, verdict);
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

/* The shapes with these dimensions, ANY of them if it says so: their head dimensions, or the widths
 * of their values, each once. How many there are. */
static uint32_t list_dims(int32_t dim, int32_t dim_v, int values, char text[64])
{
    uint32_t count = 0;
    size_t length = 0;
    int32_t listed = 0; /* the table begins with the smallest */
    text[0] = '\0';
    for (uint32_t i = 0; i < fi_num_shapes && length < 64; i++) {
        const fi_shape *shape = &fi_shapes[i];
        int32_t shown = values ? shape->dim_v : shape->dim;
        if ((dim != ANY && shape->dim != dim) || (dim_v != ANY && shape->dim_v != dim_v) ||
            (dim == ANY && shown <= listed))
            continue;
        length += (size_t)snprintf(text + length, 64 - length, "%s%d", count++ ? ", " : "", shown);
        listed = shown;
    }
    return count;
}

/* Where one of both has a kernel, the other has to go with it; else both have to change. */
static void check_dims(const question *ask, attn_verdict *verdict)
{
    char dims[64], values[64];
    int32_t dim = ask->group.head_dim, dim_v = ask->group.v_head_dim;
    if (fi_find_shape(dim, dim_v))
        return;
    if (list_dims(dim, ANY, 1, values) > 0) {
        REFUSE(HEAD_DIM, V_HEAD_DIM, values, "%d", dim_v);
    } else if (list_dims(ANY, dim_v, 0, dims) > 0) {
        REFUSE(HEAD_DIM, HEAD_DIM, dims, "%d", dim);
    } else {
        list_dims(ANY, ANY, 0, dims);
        list_dims(ANY, ANY, 1, values);
        REFUSE(HEAD_DIM, HEAD_DIM, dims, "%d", dim);
        REFUSE(HEAD_DIM, V_HEAD_DIM, values, "%d", dim_v);
    }
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

static const cuda_dtypes dtypes = {.fp8_cache = 0, .f32_out = 1};

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

attn_status fi_query(const attn_backend_type *type, const attn_options *options,
                     const attn_services *services, const attn_problem *problem,
                     attn_verdict *given, attn_error *error)
{
    (void)type;
    (void)options;
    (void)services;
    question ask;
    attn_verdict verdict;
    attn_status status = question_init(&ask, problem, error);
    if (status != ATTN_OK)
        return status;
    if (!given)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "verdict is NULL");
    attn_util_verdict_begin(given, &verdict);
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        checks[i](&ask, &verdict);
    if (verdict.supported) {
        verdict.graph_level = ATTN_GRAPH_ALWAYS;
        verdict.notes = ALL_NOTES;
        verdict.graph_seq_len_fill = 0;
        verdict.cost_hint = 0.5;
        ask.problem.group = &ask.group;
        ask.problem.bounds = &ask.bounds;
        fi_tell_memory(&ask.problem, &verdict);
    }
    attn_util_verdict_end(&verdict, given);
    return ATTN_OK;
}

attn_status fi_require_bounds(const attn_bounds *bounds, attn_error *error)
{
    return attn_util_require_known_bounds(&limits, bounds, error);
}
