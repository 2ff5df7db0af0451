/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: what fa3_like can do. A problem goes through a table of small checks; each adds the
 * reasons it finds, so that a person reads all of them at once. No driver is asked.
 */
#include "plugins/fa3_like/fa3_like.h"

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
    ALL_MASKS = ATTN_MASK_BIT(ATTN_MASK_LAYER) | ATTN_MASK_BIT(ATTN_MASK_NONE),
    ALL_USES = ATTN_USES_SHARED_PREFIX | ATTN_USES_LSE | ATTN_USES_OMIT_SINK,
    NO_NOTES = 0, /* rows of a warp share the decision to take a new reference: README.md */
    BOX_ROWS = 8, /* rows of a page come in so many, under the swizzle */
    MOST_PAGE = 65536,
    ANY = -1
};

/* What the kernels are compiled for; FA3_LIKE_GENCODE of Makefile.am.inc. */
static const char codes[] = "sm_90a";

static int is_operand_dtype(attn_dtype dtype)
{
    return dtype == ATTN_F16 || dtype == ATTN_BF16;
}

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
    .notes = NO_NOTES,
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

/* The tiles with these dimensions, ANY of them if it says so: their head dimensions, or the widths
 * of their values, each once. How many there are. */
static uint32_t list_dims(int32_t dim, int32_t dim_v, int values, char text[64])
{
    uint32_t count = 0;
    size_t length = 0;
    int32_t listed = 0; /* the table begins with the smallest */
    text[0] = '\0';
    for (uint32_t i = 0; i < fa3_num_tiles && length < 64; i++) {
        const fa3_tile *tile = &fa3_tiles[i];
        int32_t shown = values ? tile->dim_v : tile->dim;
        if ((dim != ANY && tile->dim != dim) || (dim_v != ANY && tile->dim_v != dim_v) ||
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
    if (fa3_find_tile(dim, dim_v))
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
    if (ask->group.flags & ATTN_GROUP_HAS_ALIBI)
        REFUSE(ALIBI, ALIBI, "absent", "1");
    if (ask->group.flags & ~(uint32_t)(ATTN_GROUP_HAS_ALIBI | ATTN_GROUP_HAS_SINKS))
        REFUSE(UNKNOWN_FEATURE, FEATURE, "absent", "group flags %#x", ask->group.flags);
}

static void check_chunk(const question *ask, attn_verdict *verdict)
{
    if (ask->group.attention_chunk > 0)
        REFUSE(CHUNK, ATTENTION_CHUNK, "0", "%d", ask->group.attention_chunk);
}

static void check_layers(const question *ask, attn_verdict *verdict)
{
    attn_util_check_layers(&limits, &ask->group, verdict);
}

/* All operands are of one type: that of q, if it is any; else the first that is. */
static void check_dtypes(const question *ask, attn_verdict *verdict)
{
    const attn_problem *problem = &ask->problem;
    attn_dtype one = problem->q_dtype;
    if (!is_operand_dtype(one))
        one = is_operand_dtype(problem->kv_dtype) ? problem->kv_dtype : problem->out_dtype;
    const char *accepted = is_operand_dtype(one) ? attn_util_dtype_name(one) : "f16, bf16";
    if (problem->q_dtype != one || !is_operand_dtype(one))
        REFUSE(DTYPE, Q_DTYPE, accepted, "%s", attn_util_dtype_name(problem->q_dtype));
    if (problem->kv_dtype != one || !is_operand_dtype(one))
        REFUSE(DTYPE, KV_DTYPE, accepted, "%s", attn_util_dtype_name(problem->kv_dtype));
    if (problem->out_dtype != one || !is_operand_dtype(one))
        REFUSE(DTYPE, OUT_DTYPE, accepted, "%s", attn_util_dtype_name(problem->out_dtype));
}

static void check_scales(const question *ask, attn_verdict *verdict)
{
    if (ask->group.kv_scale_granularity != ATTN_SCALE_NONE)
        REFUSE(SCALE_GRANULARITY, SCALE_GRANULARITY, "none", "%s",
               attn_util_granularity_name(ask->group.kv_scale_granularity));
}

static void check_cache(const question *ask, attn_verdict *verdict)
{
    if (!has_cache(&ask->group))
        return;
    attn_util_check_kv_layout(&ask->problem, verdict);
    if (ask->problem.page_size % BOX_ROWS != 0 || ask->problem.page_size > MOST_PAGE)
        REFUSE(PAGE_SIZE, PAGE_SIZE, "8..65536/8", "%d", ask->problem.page_size);
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
    check_device, check_kind,   check_attn_type, check_dims,  check_group_flags, check_chunk,
    check_layers, check_dtypes, check_scales,    check_cache, check_bounds,      check_needs,
};

/* ---- The answer ------------------------------------------------------------------------------ */

attn_status fa3_query(const attn_backend_type *type, const attn_options *options,
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
        verdict.notes = NO_NOTES;
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
