/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/common/problem.h"
#include "plugins/common/copy_sized.h"
#include "plugins/common/plugin_error.h"
#include "plugins/common/verdict.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define FAIL(error, field, ...) plugin_fail_field(error, ATTN_INVALID_ARGUMENT, field, __VA_ARGS__)

/* ---- Problems that make no sense ------------------------------------------------------------- */

attn_status problem_read(const attn_problem *given, attn_problem *problem, attn_layer_group *group,
                         attn_bounds *bounds, attn_device *device, attn_error *error)
{
    if (!given || !given->group || !given->bounds || !given->device)
        return plugin_fail(error, ATTN_INVALID_ARGUMENT,
                           "problem, group, bounds or device is NULL");
    COPY_SIZED(problem, given);
    COPY_SIZED(group, given->group);
    COPY_SIZED(bounds, given->bounds);
    COPY_SIZED(device, given->device);
    return ATTN_OK;
}

attn_status problem_require_layers(const attn_layer_group *group, attn_error *error)
{
    if (group->num_layers < 1 || !group->layers)
        return FAIL(error, ATTN_FIELD_NUM_LAYERS, "num_layers %u: accepted 1 and more",
                    group->num_layers);
    return ATTN_OK;
}

static attn_status require_heads(const attn_layer_group *group, attn_error *error)
{
    if (group->num_kv_heads < 1)
        return FAIL(error, ATTN_FIELD_NUM_KV_HEADS, "num_kv_heads %d: accepted 1 and more",
                    group->num_kv_heads);
    if (group->num_q_heads < 1 || group->num_q_heads % group->num_kv_heads != 0)
        return FAIL(error, ATTN_FIELD_NUM_Q_HEADS,
                    "num_q_heads %d: accepted multiples of num_kv_heads, %d", group->num_q_heads,
                    group->num_kv_heads);
    return ATTN_OK;
}

static attn_status require_numbers(const attn_layer_group *group, attn_error *error)
{
    if (!isfinite(group->sm_scale))
        return FAIL(error, ATTN_FIELD_SM_SCALE, "sm_scale %g: accepted finite",
                    (double)group->sm_scale);
    if (!isfinite(group->logit_cap) || group->logit_cap < 0)
        return FAIL(error, ATTN_FIELD_LOGIT_CAP, "logit_cap %g: accepted 0, or finite above 0",
                    (double)group->logit_cap);
    if (group->window_left < -1)
        return FAIL(error, ATTN_FIELD_WINDOW_LEFT, "window_left %d: accepted -1 and more",
                    group->window_left);
    if (group->window_right < -1)
        return FAIL(error, ATTN_FIELD_WINDOW_RIGHT, "window_right %d: accepted -1 and more",
                    group->window_right);
    if (group->attention_chunk < 0)
        return FAIL(error, ATTN_FIELD_ATTENTION_CHUNK, "attention_chunk %d: accepted 0 and more",
                    group->attention_chunk);
    return ATTN_OK;
}

attn_status problem_require_softmax(const attn_layer_group *group, attn_error *error)
{
    attn_status status = require_heads(group, error);
    return status == ATTN_OK ? require_numbers(group, error) : status;
}

attn_status problem_ask(const attn_backend_type *type, const attn_options *options,
                        const attn_services *services, const attn_problem *problem,
                        attn_verdict *verdict, attn_reason *reason, attn_error *error)
{
    *reason = (attn_reason){.struct_size = sizeof *reason};
    *verdict =
        (attn_verdict){.struct_size = sizeof *verdict, .reasons_capacity = 1, .reasons = reason};
    return type->query(type, options, services, problem, verdict, error);
}

attn_status problem_require(const attn_backend_type *type, const attn_options *options,
                            const attn_services *services, const attn_problem *problem,
                            attn_error *error)
{
    attn_reason reason;
    attn_verdict verdict;
    attn_status status = problem_ask(type, options, services, problem, &verdict, &reason, error);
    if (status != ATTN_OK || verdict.supported)
        return status;
    return plugin_fail_field(error, ATTN_UNSUPPORTED, reason.field,
                             "%s %s: accepted %s (of %u reasons)", verdict_field_name(reason.field),
                             reason.got, reason.accepted, verdict.num_reasons);
}

uint32_t problem_count_layers(const attn_problem *problems, uint32_t num_problems)
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < num_problems; p++)
        count += ((const attn_problem *)attn_at(problems, p))->group->num_layers;
    return count;
}

/* ---- Reasons --------------------------------------------------------------------------------- */

#define REFUSE(reason, field, ...)                                                                 \
    verdict_refuse(verdict, ATTN_REASON_##reason, ATTN_FIELD_##field, __VA_ARGS__)

void problem_check_layers(const problem_limits *limits, const attn_layer_group *group,
                          attn_verdict *verdict)
{
    for (uint32_t n = 0; n < group->num_layers; n++) {
        const attn_layer *layer = attn_at(group->layers, n);
        if (layer->flags & ~limits->layer_flags.most) {
            REFUSE(UNKNOWN_FEATURE, LAYERS, limits->layer_flags.text, "%#x", layer->flags);
            return;
        }
    }
}

void problem_check_kv_layout(const attn_problem *problem, attn_verdict *verdict)
{
    const char *layout = problem->kv_layout;
    if (!layout ||
        (strcmp(layout, ATTN_LAYOUT_KV_NHD) != 0 && strcmp(layout, ATTN_LAYOUT_KV_HND) != 0))
        REFUSE(KV_LAYOUT, KV_LAYOUT, ATTN_LAYOUT_KV_NHD ", " ATTN_LAYOUT_KV_HND, "%s",
               layout ? layout : "absent");
}

static void check_number(int64_t value, uint32_t field, attn_verdict *verdict)
{
    if (value < 0)
        verdict_refuse(verdict, ATTN_REASON_BOUNDS, field, "0..2147483647", "%" PRId64, value);
}

void problem_check_bounds(const problem_limits *limits, const attn_bounds *bounds,
                          attn_verdict *verdict)
{
    if (bounds->modes >> ATTN_MODE_COUNT)
        REFUSE(MODE, MODES, "0..63", "%#x", bounds->modes);
    if (bounds->mask_kinds & ~limits->mask_kinds.most)
        REFUSE(MASK_KIND, MASK_KINDS, limits->mask_kinds.text, "%#x", bounds->mask_kinds);
    if (bounds->uses & ~limits->uses.most)
        REFUSE(USES, USES, limits->uses.text, "%#x", bounds->uses);
    check_number(bounds->max_seqs, ATTN_FIELD_MAX_SEQS, verdict);
    check_number(bounds->max_tokens, ATTN_FIELD_MAX_TOKENS, verdict);
    check_number(bounds->max_q_len, ATTN_FIELD_MAX_Q_LEN, verdict);
    check_number(bounds->max_kv_len, ATTN_FIELD_MAX_KV_LEN, verdict);
    check_number(bounds->max_kv_tokens, ATTN_FIELD_MAX_KV_TOKENS, verdict);
}

void problem_check_needs(const problem_limits *limits, const attn_problem *problem,
                         attn_verdict *verdict)
{
    if (problem->graph_level > limits->graph_level.most)
        REFUSE(GRAPH_LEVEL, GRAPH_LEVEL, limits->graph_level.text, "%u", problem->graph_level);
    if (problem->need_notes & ~limits->notes.most)
        REFUSE(DETERMINISM, NEED_NOTES, limits->notes.text, "%#x", problem->need_notes);
    for (uint32_t i = 0; i < problem->num_features; i++)
        REFUSE(UNKNOWN_FEATURE, FEATURE, "absent", "%s", problem->features[i]);
}

attn_status problem_require_bounds(const problem_limits *limits, const attn_bounds *bounds,
                                   attn_error *error)
{
    attn_reason reason = {.struct_size = sizeof reason};
    attn_verdict given = {.struct_size = sizeof given, .reasons_capacity = 1, .reasons = &reason};
    attn_verdict verdict;
    verdict_begin(&given, &verdict);
    problem_check_bounds(limits, bounds, &verdict);
    if (verdict.supported)
        return ATTN_OK;
    return plugin_fail_field(error, ATTN_UNSUPPORTED, reason.field, "%s %s: accepted %s",
                             verdict_field_name(reason.field), reason.got, reason.accepted);
}

attn_status problem_require_known_bounds(const problem_limits *limits, const attn_bounds *bounds,
                                         attn_error *error)
{
    attn_status status = problem_require_bounds(limits, bounds, error);
    if (status != ATTN_OK)
        return status;
    if (bounds->max_seqs == 0 || bounds->max_tokens == 0 || bounds->max_q_len == 0 ||
        bounds->max_kv_len == 0)
        return FAIL(error, ATTN_FIELD_BATCH,
                    "bounds max_seqs %d, max_tokens %d, max_q_len %d, max_kv_len %d: "
                    "accepted 1 and more",
                    bounds->max_seqs, bounds->max_tokens, bounds->max_q_len, bounds->max_kv_len);
    return ATTN_OK;
}
