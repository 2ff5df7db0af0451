/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_util_verdict.h: adds reasons to a verdict; checks problems for errors and against a plugin's
 * limits. Part of attn_plugin_util.h, which states common rules.
 */
#ifndef ATTN_UTIL_VERDICT_H
#define ATTN_UTIL_VERDICT_H

#include "attn_util_errors.h"

#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Verdicts --------------------------------------------------------------------------------
 *
 *   attn_util_verdict_begin   supported, no reasons
 *   attn_util_refuse          adds a reason; call it for every unsupported value
 *   attn_util_verdict_end     writes the caller's struct, no byte beyond its struct_size
 */

/* Start our own `verdict` from the caller's `given`; it uses the caller's array of reasons. */
static inline void attn_util_verdict_begin(const attn_verdict *given, attn_verdict *verdict)
{
    ATTN_UTIL_INIT(verdict);
    verdict->supported = 1;
    verdict->reasons_capacity = given->reasons_capacity;
    verdict->reasons = given->reasons;
}

/* Add a reason with its two texts. Used by the functions below. */
ATTN_UTIL_PRINTF(6, 0)
static inline void attn_util_add_reason(attn_verdict *verdict, uint32_t code, uint32_t field,
                                        uint32_t with_field, const char *accepted,
                                        const char *got_format, va_list args)
{
    uint32_t index = verdict->num_reasons++;
    verdict->supported = 0;
    if (index >= verdict->reasons_capacity)
        return;
    attn_reason reason;
    ATTN_UTIL_INIT(&reason);
    reason.code = code;
    reason.field = field;
    reason.with_field = with_field;
    attn_util_format(reason.got, sizeof reason.got, got_format, args);
    snprintf(reason.accepted, sizeof reason.accepted, "%s", accepted);
    /* attn_at() for a writable array. */
    ATTN_UTIL_WRITE((char *)verdict->reasons + (size_t)index * verdict->reasons->struct_size,
                    &reason);
}

/* Add the reason "field got: accepted ..." (ATTN_REASON_*, ATTN_FIELD_*). `accepted` is a list as
 * attn_reason describes it; `got_format` is a printf format, whose result is truncated to fit. */
ATTN_UTIL_PRINTF(5, 6)
static inline void attn_util_refuse(attn_verdict *verdict, uint32_t code, uint32_t field,
                                    const char *accepted, const char *got_format, ...)
{
    va_list args;
    va_start(args, got_format);
    attn_util_add_reason(verdict, code, field, ATTN_FIELD_NONE, accepted, got_format, args);
    va_end(args);
}

/* The same for two fields in conflict: `field` must change because of `with_field`. */
ATTN_UTIL_PRINTF(5, 6)
static inline void attn_util_refuse_with(attn_verdict *verdict, uint32_t field, uint32_t with_field,
                                         const char *accepted, const char *got_format, ...)
{
    va_list args;
    va_start(args, got_format);
    attn_util_add_reason(verdict, ATTN_REASON_COMBINATION, field, with_field, accepted, got_format,
                         args);
    va_end(args);
}

/* The same for a set field: refuse members that are not in `most`. A subset of `most` is accepted.
 */
static inline void attn_util_refuse_excess(attn_verdict *verdict, uint32_t code, uint32_t field,
                                           uint32_t most, uint32_t got)
{
    char accepted[sizeof((attn_reason *)0)->accepted], text[sizeof((attn_reason *)0)->accepted];
    if (!(got & ~most))
        return;
    attn_util_set_text(field, most, accepted, sizeof accepted);
    attn_util_set_text(field, got, text, sizeof text);
    attn_util_refuse(verdict, code, field, accepted, "%s", text);
}

/* Write the answer into the caller's struct. */
static inline void attn_util_verdict_end(const attn_verdict *verdict, attn_verdict *given)
{
    ATTN_UTIL_WRITE(given, verdict);
}

/* ---- Malformed problems ---------------------------------------------------------------------- */

/* Copy a problem into structs of full size; problem->group, ->device and ->bounds still point to
 * the caller's structs. INVALID_ARGUMENT if one of the four is missing. */
static inline attn_status attn_util_read_problem(const attn_problem *given, attn_problem *problem,
                                                 attn_layer_group *group, attn_bounds *bounds,
                                                 attn_device *device, attn_error *error)
{
    if (!given || !given->group || !given->bounds || !given->device)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT,
                              "problem, group, bounds or device is NULL");
    ATTN_UTIL_READ(problem, given);
    ATTN_UTIL_READ(group, given->group);
    ATTN_UTIL_READ(bounds, given->bounds);
    ATTN_UTIL_READ(device, given->device);
    return ATTN_OK;
}

/* INVALID_ARGUMENT for a group without layers. */
static inline attn_status attn_util_require_layers(const attn_layer_group *group, attn_error *error)
{
    if (group->num_layers < 1 || !group->layers)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_NUM_LAYERS,
                                    "num_layers %u: accepted 1 and more", group->num_layers);
    return ATTN_OK;
}

/* INVALID_ARGUMENT for impossible numbers of heads. */
static inline attn_status attn_util_require_heads(const attn_layer_group *group, attn_error *error)
{
    if (group->num_kv_heads < 1)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_NUM_KV_HEADS,
                                    "num_kv_heads %d: accepted 1 and more", group->num_kv_heads);
    if (group->num_q_heads < 1 || group->num_q_heads % group->num_kv_heads != 0)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_NUM_Q_HEADS,
                                    "num_q_heads %d: accepted multiples of num_kv_heads, %d",
                                    group->num_q_heads, group->num_kv_heads);
    return ATTN_OK;
}

/* INVALID_ARGUMENT for features that depend on a query's position, which cross attention does not
 * have (docs/ABI.md, MEAN-08). */
static inline attn_status attn_util_require_positionless(const attn_layer_group *group,
                                                         attn_error *error)
{
    const char *why = "cross attention has no query position";
    if (group->window_left != -1)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_WINDOW_LEFT,
                                    "window_left %d: accepted -1: %s", group->window_left, why);
    if (group->window_right != -1)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_WINDOW_RIGHT,
                                    "window_right %d: accepted -1: %s", group->window_right, why);
    if (group->attention_chunk != 0)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_ATTENTION_CHUNK,
                                    "attention_chunk %d: accepted 0: %s", group->attention_chunk,
                                    why);
    if (group->flags & ATTN_GROUP_HAS_ALIBI)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_ALIBI,
                                    "has_alibi 1: accepted 0: %s", why);
    return ATTN_OK;
}

/* INVALID_ARGUMENT for impossible numbers of heads or softmax parameters. */
static inline attn_status attn_util_require_softmax(const attn_layer_group *group,
                                                    attn_error *error)
{
    attn_status status = attn_util_require_heads(group, error);
    if (status != ATTN_OK)
        return status;
    if (!isfinite(group->sm_scale))
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_SM_SCALE,
                                    "sm_scale %s: accepted finite",
                                    attn_util_number((double)group->sm_scale).text);
    if (!isfinite(group->logit_cap) || group->logit_cap < 0)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LOGIT_CAP,
                                    "logit_cap %s: accepted 0, or finite above 0",
                                    attn_util_number((double)group->logit_cap).text);
    if (group->window_left < -1)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_WINDOW_LEFT,
                                    "window_left %d: accepted -1 and more", group->window_left);
    if (group->window_right < -1)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_WINDOW_RIGHT,
                                    "window_right %d: accepted -1 and more", group->window_right);
    if (group->attention_chunk < 0)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_ATTENTION_CHUNK,
                                    "attention_chunk %d: accepted 0 and more",
                                    group->attention_chunk);
    return ATTN_OK;
}

/* Call the type's query; `verdict` and `reason` get the answer and its first reason. */
static inline attn_status attn_util_ask(const attn_backend_type *type, const attn_options *options,
                                        const attn_services *services, const attn_problem *problem,
                                        attn_verdict *verdict, attn_reason *reason,
                                        attn_error *error)
{
    ATTN_UTIL_INIT(reason);
    ATTN_UTIL_INIT(verdict);
    verdict->reasons_capacity = 1;
    verdict->reasons = reason;
    return type->query(type, options, services, problem, verdict, error);
}

/* UNSUPPORTED, with the first reason as the message, if the type's query says no. create calls this
 * first, for each problem. */
static inline attn_status attn_util_require_support(const attn_backend_type *type,
                                                    const attn_options *options,
                                                    const attn_services *services,
                                                    const attn_problem *problem, attn_error *error)
{
    attn_reason reason;
    attn_verdict verdict;
    attn_status status = attn_util_ask(type, options, services, problem, &verdict, &reason, error);
    if (status != ATTN_OK || verdict.supported)
        return status;
    return attn_util_fail_field(
        error, ATTN_UNSUPPORTED, reason.field, "%s %s: accepted %s (of %u reasons)",
        attn_util_field_name(reason.field), reason.got, reason.accepted, verdict.num_reasons);
}

/* Number of layers in all problems. */
static inline uint32_t attn_util_count_layers(const attn_problem *problems, uint32_t num_problems)
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < num_problems; p++)
        count += ((const attn_problem *)attn_at(problems, p))->group->num_layers;
    return count;
}

/* ---- Problems beyond a plugin's limits: each excess is a reason ------------------------------ */

/* All modes and mask kinds that these headers define. */
enum {
    ATTN_UTIL_ALL_MODES = (1 << ATTN_MODE_COUNT) - 1,
    ATTN_UTIL_ALL_MASKS = (1 << ATTN_MASK_COUNT) - 1
};

/* Limits of a plugin. The first part is used only by attn_util_check_question() and the functions
 * it calls. */
typedef struct attn_util_limits {
    int32_t device_type;         /* ATTN_DEVICE_* */
    uint32_t num_dtypes;         /* elements of `dtypes` */
    const attn_dtype *dtypes;    /* of q, the cache and the output, which are equal */
    const char *kv_layout;       /* ATTN_LAYOUT_* */
    int32_t max_head_dim;        /* of head_dim and v_head_dim */
    uint32_t chunks;             /* 1 = attention_chunk is supported */
    uint32_t kinds;              /* set of 1 << ATTN_KIND_* */
    uint32_t attn_types;         /* set of 1 << ATTN_TYPE_* */
    uint32_t granularities;      /* set of 1 << ATTN_SCALE_* */
    uint32_t group_flags;        /* set of ATTN_GROUP_* */
    uint32_t layer_flags;        /* set of ATTN_LAYER_* */
    uint32_t modes;              /* set of ATTN_MODE_BIT */
    uint32_t mask_kinds;         /* set of ATTN_MASK_BIT */
    uint32_t uses;               /* set of ATTN_USES_* */
    uint32_t graph_level;        /* the highest ATTN_GRAPH_* */
    uint32_t traits;             /* set of ATTN_TRAIT_* that the plugin has */
    uint32_t num_features;       /* elements of `features` */
    const char *const *features; /* supported ones, names of private operands included */
} attn_util_limits;

/* Refuse a value that is not in `set`, a set of 1 << value; `name` returns the name of each of the
 * `count` values. */
static inline void attn_util_check_member(uint32_t set, uint32_t value, uint32_t count,
                                          const char *(*name)(uint32_t), uint32_t code,
                                          uint32_t field, attn_verdict *verdict)
{
    char accepted[sizeof((attn_reason *)0)->accepted] = "";
    if (value < count && set >> value & 1u)
        return;
    for (uint32_t other = 0; other < count; other++)
        if (set >> other & 1u) {
            size_t length = strlen(accepted);
            snprintf(accepted + length, sizeof accepted - length, "%s%s", length ? ", " : "",
                     name(other));
        }
    attn_util_refuse(verdict, code, field, accepted, "%s", name(value));
}

/* Kind, type of attention, granularity of scales, and flags, unknown ones included. */
static inline void attn_util_check_group(const attn_util_limits *limits,
                                         const attn_layer_group *group, attn_verdict *verdict)
{
    const uint32_t known = ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI;
    uint32_t excess = group->flags & ~limits->group_flags;
    attn_util_check_member(limits->kinds, group->kind, ATTN_KIND_COUNT, attn_util_kind_name,
                           ATTN_REASON_LAYER_KIND, ATTN_FIELD_KIND, verdict);
    attn_util_check_member(limits->attn_types, group->attn_type, ATTN_TYPE_COUNT,
                           attn_util_attn_type_name, ATTN_REASON_ATTN_TYPE, ATTN_FIELD_ATTN_TYPE,
                           verdict);
    attn_util_check_member(limits->granularities, group->kv_scale_granularity, ATTN_SCALE_COUNT,
                           attn_util_granularity_name, ATTN_REASON_SCALE_GRANULARITY,
                           ATTN_FIELD_SCALE_GRANULARITY, verdict);
    if (excess & ATTN_GROUP_HAS_SINKS)
        attn_util_refuse(verdict, ATTN_REASON_SINKS, ATTN_FIELD_SINKS, "0", "1");
    if (excess & ATTN_GROUP_HAS_ALIBI)
        attn_util_refuse(verdict, ATTN_REASON_ALIBI, ATTN_FIELD_ALIBI, "0", "1");
    if (excess & ~known)
        attn_util_refuse(verdict, ATTN_REASON_UNKNOWN_FEATURE, ATTN_FIELD_FEATURE, "absent",
                         "group flags %#x", group->flags);
}

/* For a backend whose q and new k, v share one dtype, which is also an unquantised cache's: returns
 * that dtype, or the one that q must have because of the others; NONE = any dtype that `is_served`.
 */
static inline attn_dtype attn_util_one_input(const attn_problem *problem,
                                             int (*is_served)(attn_dtype dtype))
{
    const attn_dtype given[3] = {problem->q_dtype, problem->kv_dtype, problem->new_kv_dtype};
    for (int g = 0; g < 3; g++)
        if (is_served(given[g]))
            return given[g];
    return ATTN_DTYPE_NONE;
}

/* For a backend whose new k, v have q's dtype `one` (NONE = q must change to one of several), and
 * which reads no quantised q, k or v: adds reasons for a problem that differs. */
static inline void attn_util_check_inputs(const attn_problem *problem,
                                          const attn_layer_group *group, attn_dtype one,
                                          attn_verdict *verdict)
{
    if (problem->new_kv_dtype != ATTN_DTYPE_NONE && problem->new_kv_dtype != one)
        attn_util_refuse(verdict, ATTN_REASON_DTYPE, ATTN_FIELD_NEW_KV_DTYPE,
                         one != ATTN_DTYPE_NONE ? attn_util_dtype_name(one) : "absent", "%s",
                         attn_util_dtype_name(problem->new_kv_dtype));
    attn_util_check_member(1u << ATTN_SCALE_NONE, group->input_scale_granularity, ATTN_SCALE_COUNT,
                           attn_util_granularity_name, ATTN_REASON_SCALE_GRANULARITY,
                           ATTN_FIELD_INPUT_SCALE_GRANULARITY, verdict);
}

/* For a backend with one data type for q, new k and v, the cache and the output: refuse every other
 * type. The one type is q's if supported, else the cache's, else the first supported one. */
static inline void attn_util_check_one_dtype(const attn_util_limits *limits,
                                             const attn_problem *problem,
                                             const attn_layer_group *group, attn_verdict *verdict)
{
    const attn_dtype given[3] = {problem->q_dtype, problem->kv_dtype, problem->out_dtype};
    attn_dtype one = ATTN_DTYPE_NONE;
    for (uint32_t g = 0; g < 2 && one == ATTN_DTYPE_NONE; g++)
        for (uint32_t d = 0; d < limits->num_dtypes; d++)
            if (given[g] == limits->dtypes[d])
                one = given[g];
    if (one == ATTN_DTYPE_NONE)
        one = limits->dtypes[0];
    for (uint32_t g = 0; g < 3; g++)
        if (given[g] != one)
            attn_util_refuse(verdict, ATTN_REASON_DTYPE, (uint32_t)ATTN_FIELD_Q_DTYPE + g,
                             attn_util_dtype_name(one), "%s", attn_util_dtype_name(given[g]));
    attn_util_check_inputs(problem, group, one, verdict);
}

/* Flags of layers; one reason for all layers. */
static inline void attn_util_check_layers(const attn_util_limits *limits,
                                          const attn_layer_group *group, attn_verdict *verdict)
{
    uint32_t flags = 0;
    for (uint32_t n = 0; n < group->num_layers; n++)
        flags |= ((const attn_layer *)attn_at(group->layers, n))->flags;
    attn_util_refuse_excess(verdict, ATTN_REASON_UNKNOWN_FEATURE, ATTN_FIELD_LAYERS,
                            limits->layer_flags, flags);
}

/* A paged cache with separate keys and values. */
static inline void attn_util_check_kv_layout(const attn_problem *problem, attn_verdict *verdict)
{
    const char *layout = problem->kv_layout;
    if (!layout ||
        (strcmp(layout, ATTN_LAYOUT_KV_NHD) != 0 && strcmp(layout, ATTN_LAYOUT_KV_HND) != 0))
        attn_util_refuse(verdict, ATTN_REASON_KV_LAYOUT, ATTN_FIELD_KV_LAYOUT,
                         ATTN_LAYOUT_KV_NHD ", " ATTN_LAYOUT_KV_HND, "%s",
                         layout ? layout : "absent");
}

/* Refuse a number that is not in [low, high]. */
static inline void attn_util_check_range(int32_t value, int32_t low, int32_t high, uint32_t code,
                                         uint32_t field, attn_verdict *verdict)
{
    char accepted[48];
    if (value >= low && value <= high)
        return;
    snprintf(accepted, sizeof accepted, "%d..%d", low, high);
    attn_util_refuse(verdict, code, field, accepted, "%d", value);
}

/* Modes, masks, uses, and numbers below 0. */
static inline void attn_util_check_bounds(const attn_util_limits *limits, const attn_bounds *bounds,
                                          attn_verdict *verdict)
{
    attn_util_refuse_excess(verdict, ATTN_REASON_MODE, ATTN_FIELD_MODES, limits->modes,
                            bounds->modes);
    attn_util_refuse_excess(verdict, ATTN_REASON_MASK_KIND, ATTN_FIELD_MASK_KINDS,
                            limits->mask_kinds, bounds->mask_kinds);
    attn_util_refuse_excess(verdict, ATTN_REASON_USES, ATTN_FIELD_USES, limits->uses, bounds->uses);
    attn_util_check_range(bounds->max_seqs, 0, INT32_MAX, ATTN_REASON_BOUNDS, ATTN_FIELD_MAX_SEQS,
                          verdict);
    attn_util_check_range(bounds->max_tokens, 0, INT32_MAX, ATTN_REASON_BOUNDS,
                          ATTN_FIELD_MAX_TOKENS, verdict);
    attn_util_check_range(bounds->max_q_len, 0, INT32_MAX, ATTN_REASON_BOUNDS, ATTN_FIELD_MAX_Q_LEN,
                          verdict);
    attn_util_check_range(bounds->max_kv_len, 0, INT32_MAX, ATTN_REASON_BOUNDS,
                          ATTN_FIELD_MAX_KV_LEN, verdict);
    if (bounds->max_kv_tokens < 0)
        attn_util_refuse(verdict, ATTN_REASON_BOUNDS, ATTN_FIELD_MAX_KV_TOKENS, "0..2147483647",
                         "%" PRId64, bounds->max_kv_tokens);
}

static inline int attn_util_knows_feature(const attn_util_limits *limits, const char *feature)
{
    for (uint32_t i = 0; i < limits->num_features; i++)
        if (strcmp(limits->features[i], feature) == 0)
            return 1;
    return 0;
}

/* Graphs, traits, and unknown features. */
static inline void attn_util_check_needs(const attn_util_limits *limits,
                                         const attn_problem *problem, attn_verdict *verdict)
{
    if (problem->graph_level > limits->graph_level) {
        char accepted[16] = "0";
        if (limits->graph_level > 0)
            snprintf(accepted, sizeof accepted, "0..%u", limits->graph_level);
        attn_util_refuse(verdict, ATTN_REASON_GRAPH_LEVEL, ATTN_FIELD_GRAPH_LEVEL, accepted, "%u",
                         problem->graph_level);
    }
    attn_util_refuse_excess(verdict, ATTN_REASON_DETERMINISM, ATTN_FIELD_REQUIRED_TRAITS,
                            limits->traits, problem->required_traits);
    for (uint32_t i = 0; i < problem->num_features; i++)
        if (!attn_util_knows_feature(limits, problem->features[i]))
            attn_util_refuse(verdict, ATTN_REASON_UNKNOWN_FEATURE, ATTN_FIELD_FEATURE, "absent",
                             "%s", problem->features[i]);
}

/* The question put to query, in structs of full size, and the answer in progress. */
typedef struct attn_util_question {
    attn_problem problem; /* its pointers are the caller's */
    attn_layer_group group;
    attn_bounds bounds;
    attn_device device;
    attn_verdict verdict;
} attn_util_question;

/* First step of query: reads the question and starts a verdict without reasons. INVALID_ARGUMENT
 * for missing structs and impossible softmax parameters. */
static inline attn_status attn_util_read_question(const attn_problem *given,
                                                  const attn_verdict *answer,
                                                  attn_util_question *question, attn_error *error)
{
    attn_status status = attn_util_read_problem(given, &question->problem, &question->group,
                                                &question->bounds, &question->device, error);
    if (status == ATTN_OK && question->group.kind == ATTN_KIND_SOFTMAX)
        status = attn_util_require_softmax(&question->group, error);
    if (status == ATTN_OK)
        attn_util_verdict_begin(answer, &question->verdict);
    return status;
}

/* Check a question against all limits; each excess adds a reason to its verdict: device, cache
 * layout, group, data types, layers, bounds, needs. */
static inline void attn_util_check_question(const attn_util_limits *limits,
                                            attn_util_question *question)
{
    attn_verdict *verdict = &question->verdict;
    const char *layout = question->problem.kv_layout ? question->problem.kv_layout : "absent";
    if (question->device.type != limits->device_type)
        attn_util_refuse(verdict, ATTN_REASON_ARCH, ATTN_FIELD_DEVICE_TYPE,
                         attn_device_name(limits->device_type), "%s",
                         attn_device_name(question->device.type));
    if (strcmp(layout, limits->kv_layout) != 0)
        attn_util_refuse(verdict, ATTN_REASON_KV_LAYOUT, ATTN_FIELD_KV_LAYOUT, limits->kv_layout,
                         "%s", layout);
    attn_util_check_range(question->group.head_dim, 1, limits->max_head_dim, ATTN_REASON_HEAD_DIM,
                          ATTN_FIELD_HEAD_DIM, verdict);
    attn_util_check_range(question->group.v_head_dim, 1, limits->max_head_dim, ATTN_REASON_HEAD_DIM,
                          ATTN_FIELD_V_HEAD_DIM, verdict);
    attn_util_check_range(question->problem.page_size, 1, INT32_MAX, ATTN_REASON_PAGE_SIZE,
                          ATTN_FIELD_PAGE_SIZE, verdict);
    if (question->group.attention_chunk > 0 && !limits->chunks)
        attn_util_refuse(verdict, ATTN_REASON_CHUNK, ATTN_FIELD_ATTENTION_CHUNK, "0", "%d",
                         question->group.attention_chunk);
    attn_util_check_group(limits, &question->group, verdict);
    attn_util_check_one_dtype(limits, &question->problem, &question->group, verdict);
    attn_util_check_layers(limits, &question->group, verdict);
    attn_util_check_bounds(limits, &question->bounds, verdict);
    attn_util_check_needs(limits, &question->problem, verdict);
}

/* UNSUPPORTED, with the first reason as the message, if attn_util_check_bounds() finds one.
 * metadata_size calls this first. */
static inline attn_status attn_util_require_bounds(const attn_util_limits *limits,
                                                   const attn_bounds *bounds, attn_error *error)
{
    attn_reason reason;
    attn_verdict verdict;
    ATTN_UTIL_INIT(&reason);
    ATTN_UTIL_INIT(&verdict);
    verdict.supported = 1;
    verdict.reasons_capacity = 1;
    verdict.reasons = &reason;
    attn_util_check_bounds(limits, bounds, &verdict);
    if (verdict.supported)
        return ATTN_OK;
    return attn_util_fail_field(error, ATTN_UNSUPPORTED, reason.field, "%s %s: accepted %s",
                                attn_util_field_name(reason.field), reason.got, reason.accepted);
}

/* The same, and INVALID_ARGUMENT for unknown bounds of sequences, tokens or keys. */
static inline attn_status attn_util_require_known_bounds(const attn_util_limits *limits,
                                                         const attn_bounds *bounds,
                                                         attn_error *error)
{
    attn_status status = attn_util_require_bounds(limits, bounds, error);
    if (status != ATTN_OK)
        return status;
    if (bounds->max_seqs == 0 || bounds->max_tokens == 0 || bounds->max_q_len == 0 ||
        bounds->max_kv_len == 0)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH,
                                    "bounds max_seqs %d, max_tokens %d, max_q_len %d, "
                                    "max_kv_len %d: accepted 1 and more",
                                    bounds->max_seqs, bounds->max_tokens, bounds->max_q_len,
                                    bounds->max_kv_len);
    return ATTN_OK;
}

#ifdef __cplusplus
}
#endif

#endif /* ATTN_UTIL_VERDICT_H */
