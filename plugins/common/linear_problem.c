/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_problem.c: a problem of a recurrent layer goes through a table of small checks; each adds
 * the reasons it finds, so that a person reads all of them at once.
 */
#include "plugins/common/linear_problem.h"

#include <math.h>
#include <string.h>

enum {
    ALL_FLAGS = ATTN_LINEAR_QK_L2NORM | ATTN_LINEAR_RAW_GATES | ATTN_LINEAR_CONV_IDENTITY,
    ALL_USES = ATTN_USES_SHARED_PREFIX | ATTN_USES_UNSAVED_KV | ATTN_USES_DECODES_FIRST |
               ATTN_USES_DECODE_DRAFTS
};

static int is_operand_dtype(attn_dtype dtype)
{
    return dtype == ATTN_F32 || dtype == ATTN_F16 || dtype == ATTN_BF16;
}

static int is_linear(const linear_question *ask)
{
    return ask->group.kind == ATTN_KIND_LINEAR;
}

static int has_state(const linear_question *ask)
{
    return ask->dims.family != ATTN_LINEAR_SHORT_CONV;
}

/* ---- Arguments that make no sense ------------------------------------------------------------ */

#define FAIL(error, field, ...)                                                                    \
    attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field, __VA_ARGS__)

static attn_status check_numbers(const linear_question *ask, attn_error *error)
{
    const attn_linear_dims *dims = &ask->dims;
    if (!isfinite(ask->group.sm_scale))
        return FAIL(error, ATTN_FIELD_SM_SCALE, "sm_scale %s: accepted finite",
                    attn_util_number((double)ask->group.sm_scale).text);
    if (!(dims->dt_min >= 0) || !(dims->dt_max == 0 || dims->dt_max >= dims->dt_min) ||
        !isfinite(dims->lower_bound))
        return FAIL(error, ATTN_FIELD_LINEAR_DIMS,
                    "dt_min %s, dt_max %s, lower_bound %s: accepted 0 and more, 0 or above dt_min, "
                    "finite",
                    attn_util_number((double)dims->dt_min).text,
                    attn_util_number((double)dims->dt_max).text,
                    attn_util_number((double)dims->lower_bound).text);
    return ATTN_OK;
}

static attn_status check_heads(const linear_question *ask, attn_error *error)
{
    const attn_linear_dims *dims = &ask->dims;
    int convolution = dims->family == ATTN_LINEAR_SHORT_CONV;
    int good = convolution ? dims->num_k_heads == 0 && dims->head_k_dim == 0
                           : dims->num_k_heads > 0 && dims->num_v_heads % dims->num_k_heads == 0;
    if (dims->num_v_heads < 1 || dims->num_v_heads > LINEAR_MOST_HEADS || !good)
        return FAIL(
            error, ATTN_FIELD_LINEAR_HEADS,
            "%d v heads, %d k heads of %d: accepted 1 to %d v heads, a multiple of k heads; "
            "short_conv: no k heads",
            dims->num_v_heads, dims->num_k_heads, dims->head_k_dim, LINEAR_MOST_HEADS);
    if (dims->family == ATTN_LINEAR_MAMBA2 && dims->num_groups != dims->num_k_heads)
        return FAIL(error, ATTN_FIELD_LINEAR_HEADS,
                    "num_groups %d of Mamba2: accepted num_k_heads, %d", dims->num_groups,
                    dims->num_k_heads);
    return ATTN_OK;
}

static attn_status check_sense(const linear_question *ask, attn_error *error)
{
    attn_status status = attn_util_require_layers(&ask->group, error);
    /* Other fields of such a group are not checked. */
    if (status != ATTN_OK || !is_linear(ask))
        return status;
    if (!ask->group.linear)
        return FAIL(error, ATTN_FIELD_LINEAR_DIMS, "a linear group without its dimensions");
    if (ask->dims.family >= ATTN_LINEAR_COUNT) /* heads of what? */
        return ATTN_OK;
    status = check_numbers(ask, error);
    return status == ATTN_OK ? check_heads(ask, error) : status;
}

attn_status linear_question_init(linear_question *ask, const attn_problem *problem,
                                 attn_error *error)
{
    attn_status status = attn_util_read_problem(problem, &ask->problem, &ask->group, &ask->bounds,
                                                &ask->device, error);
    if (status != ATTN_OK)
        return status;
    memset(&ask->dims, 0, sizeof ask->dims);
    ask->exact = 0;
    if (ask->group.linear)
        ATTN_UTIL_READ(&ask->dims, ask->group.linear);
    return check_sense(ask, error);
}

/* ---- Checks ---------------------------------------------------------------------------------- */

#define REFUSE(reason, field, ...)                                                                 \
    attn_util_refuse(verdict, ATTN_REASON_##reason, ATTN_FIELD_##field, __VA_ARGS__)

static const attn_util_limits limits = {
    .layer_flags = 0,
    .modes = ATTN_UTIL_ALL_MODES,
    /* A recurrence knows no other order than that of the tokens. */
    .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
    .uses = ALL_USES,
    .traits = ATTN_TRAIT_DETERMINISTIC | LINEAR_INVARIANT,
};

static void check_kind(const linear_question *ask, attn_verdict *verdict)
{
    if (!is_linear(ask))
        REFUSE(LAYER_KIND, KIND, "linear", "%s", attn_util_kind_name(ask->group.kind));
}

static void check_attn_type(const linear_question *ask, attn_verdict *verdict)
{
    if (ask->group.attn_type != ATTN_TYPE_DECODER)
        REFUSE(ATTN_TYPE, ATTN_TYPE, "decoder", "%s",
               attn_util_attn_type_name(ask->group.attn_type));
}

static void check_group_flags(const linear_question *ask, attn_verdict *verdict)
{
    if (ask->group.flags & ATTN_GROUP_HAS_SINKS)
        REFUSE(SINKS, SINKS, "absent", "1");
    if (ask->group.flags & ATTN_GROUP_HAS_ALIBI)
        REFUSE(ALIBI, ALIBI, "absent", "1");
    if (ask->group.flags & ~(uint32_t)(ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI))
        REFUSE(UNKNOWN_FEATURE, FEATURE, "absent", "group flags %#x", ask->group.flags);
}

static void check_layers(const linear_question *ask, attn_verdict *verdict)
{
    attn_util_check_layers(&limits, &ask->group, verdict);
}

/* Has it inputs of a convolution that one batch hands on to the next? */
static int keeps_inputs(const linear_question *ask)
{
    return ask->dims.conv_width > 1 && is_operand_dtype(ask->dims.conv_dtype);
}

/* Of what is kept between batches; q is or would have to be `q_dtype`, NONE = any. Where the cut may
 * not show a batch has to hand on just what it would itself go on with. */
static void check_kept_dtypes(const linear_question *ask, attn_dtype q_dtype, attn_verdict *verdict)
{
    const attn_linear_dims *dims = &ask->dims;
    const char *state = attn_util_dtype_name(dims->state_dtype);
    const char *inputs = attn_util_dtype_name(dims->conv_dtype);
    int exact = ask->exact;
    if (!is_linear(ask))
        return;
    if (has_state(ask) && dims->state_dtype == ATTN_BF16 && exact)
        attn_util_refuse_with(verdict, ATTN_FIELD_STATE_DTYPE, ATTN_FIELD_REQUIRED_TRAITS, "f32",
                              "%s", state);
    else if (has_state(ask) && dims->state_dtype != ATTN_F32 && dims->state_dtype != ATTN_BF16)
        REFUSE(DTYPE, STATE_DTYPE, exact ? "f32" : "f32, bf16", "%s", state);
    if (keeps_inputs(ask) && exact && dims->conv_dtype != ATTN_F32 && dims->conv_dtype != q_dtype)
        attn_util_refuse_with(verdict, ATTN_FIELD_CONV_DTYPE, ATTN_FIELD_REQUIRED_TRAITS, "f32",
                              "%s", inputs);
    else if (dims->conv_width > 1 && !is_operand_dtype(dims->conv_dtype))
        REFUSE(DTYPE, CONV_DTYPE, exact ? "f32" : "f32, f16, bf16", "%s", inputs);
}

static void check_dims(const linear_question *ask, attn_verdict *verdict)
{
    const attn_linear_dims *dims = &ask->dims;
    if (!is_linear(ask))
        return;
    if (dims->family >= ATTN_LINEAR_COUNT)
        REFUSE(STATE, LINEAR_FAMILY, "gdn, mamba2, kda, lightning, short_conv", "%u", dims->family);
    attn_util_refuse_excess(verdict, ATTN_REASON_UNKNOWN_FEATURE, ATTN_FIELD_LINEAR_FLAGS,
                            ALL_FLAGS, dims->flags);
    if (dims->head_v_dim < 1 || dims->head_v_dim > LINEAR_MOST_DIM ||
        (has_state(ask) && (dims->head_k_dim < 1 || dims->head_k_dim > LINEAR_MOST_DIM)))
        REFUSE(HEAD_DIM, LINEAR_DIMS, "1..256", "%d and %d", dims->head_k_dim, dims->head_v_dim);
    int32_t least = has_state(ask) ? 0 : 1;
    if (dims->conv_width < least || dims->conv_width > LINEAR_MOST_WIDTH)
        REFUSE(STATE, CONV_WIDTH, least == 0 ? "0..8" : "1..8", "%d", dims->conv_width);
}

static void check_dtypes(const linear_question *ask, attn_verdict *verdict)
{
    const char *all = "f32, f16, bf16";
    const attn_linear_dims *dims = &ask->dims;
    int is_one = is_operand_dtype(ask->problem.q_dtype);
    attn_dtype fresh = ask->problem.new_kv_dtype, one = is_one ? ask->problem.q_dtype : fresh;
    if (!is_operand_dtype(one)) /* of those accepted the one that goes with the convolution's */
        one = keeps_inputs(ask) && ask->exact ? dims->conv_dtype : ATTN_DTYPE_NONE;
    if (!is_one)
        REFUSE(DTYPE, Q_DTYPE, one != ATTN_DTYPE_NONE ? attn_util_dtype_name(one) : all, "%s",
               attn_util_dtype_name(ask->problem.q_dtype));
    attn_util_check_inputs(&ask->problem, &ask->group, one, verdict);
    if (!is_operand_dtype(ask->problem.out_dtype))
        REFUSE(DTYPE, OUT_DTYPE, all, "%s", attn_util_dtype_name(ask->problem.out_dtype));
    check_kept_dtypes(ask, one, verdict);
}

/* A convolution alone has no state that a layout could order; it may be said all the same. */
static void check_layout(const linear_question *ask, attn_verdict *verdict)
{
    const char *layout = ask->problem.state_layout;
    int known = layout && (strcmp(layout, ATTN_LAYOUT_STATE_SSM_KV) == 0 ||
                           strcmp(layout, ATTN_LAYOUT_STATE_SSM_VK) == 0);
    if (has_state(ask) && !known)
        REFUSE(STATE, STATE_LAYOUT, ATTN_LAYOUT_STATE_SSM_KV ", " ATTN_LAYOUT_STATE_SSM_VK, "%s",
               layout ? layout : "absent");
    if (!has_state(ask) && layout && !known)
        REFUSE(STATE, STATE_LAYOUT,
               "absent, " ATTN_LAYOUT_STATE_SSM_KV ", " ATTN_LAYOUT_STATE_SSM_VK, "%s", layout);
}

static void check_bounds(const linear_question *ask, attn_verdict *verdict)
{
    attn_util_check_bounds(&limits, &ask->bounds, verdict);
}

void linear_question_check(const linear_question *ask, uint32_t graph_level, attn_verdict *verdict)
{
    static void (*const checks[])(const linear_question *ask, attn_verdict *verdict) = {
        check_kind, check_attn_type, check_group_flags, check_layers,
        check_dims, check_dtypes,    check_layout,      check_bounds,
    };
    attn_util_limits needs = limits;
    needs.graph_level = graph_level;
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        checks[i](ask, verdict);
    attn_util_check_needs(&needs, &ask->problem, verdict);
}

attn_status linear_require_bounds(const attn_bounds *bounds, attn_error *error)
{
    attn_status status = attn_util_require_bounds(&limits, bounds, error);
    if (status != ATTN_OK)
        return status;
    if (bounds->max_seqs == 0 || bounds->max_tokens == 0 || bounds->max_q_len == 0)
        return FAIL(error, ATTN_FIELD_BATCH,
                    "bounds max_seqs %d, max_tokens %d, max_q_len %d: accepted 1 and more",
                    bounds->max_seqs, bounds->max_tokens, bounds->max_q_len);
    return ATTN_OK;
}
