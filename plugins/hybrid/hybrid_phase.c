/* SPDX-License-Identifier: Apache-2.0
 *
 * hybrid_phase: prefill by one backend, decode by another, over one KV cache.
 *
 *   mode                          child
 *   EXTEND                        prefill
 *   DECODE                        decode
 *   TARGET_VERIFY, DRAFT_EXTEND   as speculative_attention_mode says
 *   MIXED                         extend rows to prefill, decode rows to decode
 *   IDLE                          nobody
 *
 * Both children are asked with the caller's layout, so a cache that one of them cannot read is a
 * reason of that child. MIXED goes to the prefill child whole where it cannot be split
 * (phase_query.c).
 */
#include "hybrid.h"

#include "phase.h"
#include "plugins/common/plugin_error.h"
#include "plugins/common/verdict.h"

#include <stdio.h>
#include <string.h>

/* ---- Instance -------------------------------------------------------------------------------- */

static void destroy(attn_instance *instance)
{
    if (!instance)
        return;
    for (int c = NUM_PHASES - 1; c >= 0; c--)
        if (instance->child[c].type)
            instance->child[c].type->ops->destroy(instance->child[c].instance);
    const attn_services *services = instance->services;
    services->release(services->ctx, ATTN_SPACE_HOST, instance);
}

static uint32_t count_layers(const attn_problem *problems, uint32_t num_problems)
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < num_problems; p++)
        count += ((const attn_problem *)attn_at(problems, p))->group->num_layers;
    return count;
}

static void remember_layers(attn_instance *instance, const attn_problem *problems,
                            uint32_t num_problems)
{
    for (uint32_t p = 0; p < num_problems; p++) {
        const attn_layer_group *group = ((const attn_problem *)attn_at(problems, p))->group;
        if (group->kv_group >= 0 && (uint32_t)group->kv_group >= instance->num_kv_groups)
            instance->num_kv_groups = (uint32_t)group->kv_group + 1;
        for (uint32_t l = 0; l < group->num_layers; l++) {
            const attn_layer *layer = attn_at(group->layers, l);
            instance->layers[instance->num_layers++] =
                (layer_kv_group){layer->layer_id, group->kv_group};
        }
    }
}

/* Make child `c` for the layer groups of which it serves a mode; none = no child. */
static attn_status create_child(attn_instance *instance, int c, const char *name,
                                const attn_problem *problems, uint32_t num_problems,
                                attn_error *error)
{
    const attn_services *services = instance->services;
    child_problem *narrowed =
        services->allocate(services->ctx, ATTN_SPACE_HOST, num_problems * sizeof *narrowed, 16);
    attn_problem *list =
        services->allocate(services->ctx, ATTN_SPACE_HOST, num_problems * sizeof *list, 16);
    attn_child child = {.struct_size = sizeof child};
    attn_status status = ATTN_OK;
    uint32_t served = 0;
    if (!narrowed || !list)
        status = plugin_fail(error, ATTN_OUT_OF_HOST_MEMORY, "%u layer groups", num_problems);
    for (uint32_t p = 0; p < num_problems && status == ATTN_OK; p++)
        if (phase_narrow_problem(c, attn_at(problems, p), &instance->routing, &narrowed[p]) != 0)
            list[served++] = narrowed[p].problem;
    if (served > 0)
        status = services->child_create(services->ctx, name, list, served, &child, error);
    if (served > 0 && status == ATTN_OK)
        instance->child[c] = child;
    services->release(services->ctx, ATTN_SPACE_HOST, list);
    services->release(services->ctx, ATTN_SPACE_HOST, narrowed);
    return status;
}

/* Whatever query refuses is refused here, in the words of its first reason. */
static attn_status refuse_unsupported(const attn_backend_type *type, const attn_options *options,
                                      const attn_services *services, const attn_problem *problem,
                                      attn_error *error)
{
    attn_reason reason = {.struct_size = sizeof reason};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 1, .reasons = &reason};
    attn_status status = phase_query(type, options, services, problem, &verdict, error);
    if (status != ATTN_OK || verdict.supported)
        return status;
    return plugin_fail_field(error, ATTN_UNSUPPORTED, reason.field, "%s%s%s %s: accepted %s",
                             reason.child, reason.child[0] ? ": " : "",
                             verdict_field_name(reason.field), reason.got, reason.accepted);
}

/* MIXED is split if all layer groups can be: a batch is planned once for all of them. A group that
 * could have been split by itself then needs a prefill child that serves MIXED, or child_create
 * says that it does not. */
static attn_status check_problems(const attn_backend_type *type, const attn_problem *problems,
                                  uint32_t num_problems, const attn_options *given,
                                  const phase_options *options, const attn_services *services,
                                  int *split, attn_error *error)
{
    attn_status status = ATTN_OK;
    *split = 1;
    for (uint32_t p = 0; p < num_problems && status == ATTN_OK; p++) {
        int this_one = 1;
        const attn_problem *problem = attn_at(problems, p);
        status = refuse_unsupported(type, given, services, problem, error);
        if (status == ATTN_OK)
            status = phase_decide_split(services, options, problem, &this_one, error);
        *split = *split && this_one;
    }
    return status;
}

static attn_status create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *given,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error)
{
    phase_options options;
    int split = 1;
    attn_status status = phase_read_options(given, &options, error);
    if (status == ATTN_OK && num_problems == 0)
        status = plugin_fail(error, ATTN_INVALID_ARGUMENT, "no layer group");
    if (status == ATTN_OK)
        status =
            check_problems(type, problems, num_problems, given, &options, services, &split, error);
    if (status != ATTN_OK)
        return status;

    size_t size =
        sizeof(attn_instance) + count_layers(problems, num_problems) * sizeof(layer_kv_group);
    attn_instance *made = services->allocate(services->ctx, ATTN_SPACE_HOST, size, 16);
    if (!made)
        return plugin_fail(error, ATTN_OUT_OF_HOST_MEMORY, "%zu bytes", size);
    memset(made, 0, size);
    made->services = services;
    made->routing = (phase_routing){.spec_child = options.spec_child, .split_mixed = split};
    made->on_cpu = problems->device->type == ATTN_DEVICE_CPU;
    remember_layers(made, problems, num_problems);
    for (int c = 0; c < NUM_PHASES && status == ATTN_OK; c++) {
        snprintf(made->name[c], sizeof made->name[c], "%s", options.child[c]);
        status = create_child(made, c, options.child[c], problems, num_problems, error);
    }
    if (status != ATTN_OK)
        destroy(made);
    else
        *instance = made;
    return status;
}

static attn_status prepare(attn_instance *instance, attn_progress progress, void *progress_ctx,
                           attn_error *error)
{
    for (int c = 0; c < NUM_PHASES; c++) {
        const attn_child *child = &instance->child[c];
        if (!child->type || !child->type->ops->prepare)
            continue;
        attn_status status =
            child->type->ops->prepare(child->instance, progress, progress_ctx, error);
        if (status != ATTN_OK)
            return plugin_fail_prefix(error, status, "child %s", instance->name[c]);
    }
    return ATTN_OK;
}

static uint32_t index_forms(attn_instance *instance)
{
    uint32_t forms = 0;
    for (int c = 0; c < NUM_PHASES; c++)
        if (instance->child[c].type)
            forms |= instance->child[c].type->ops->index_forms(instance->child[c].instance);
    return forms;
}

/* ---- Type ------------------------------------------------------------------------------------ */

static const char *const layouts[] = {
    ATTN_LAYOUT_KV_NHD,         ATTN_LAYOUT_KV_HND,       ATTN_LAYOUT_MLA_LATENT,
    ATTN_LAYOUT_MLA_LATENT_FP8, ATTN_LAYOUT_STATE_SSM_KV, ATTN_LAYOUT_STATE_SSM_VK,
    ATTN_LAYOUT_STATE_CONV,
};

static const attn_backend_ops ops = {
    .struct_size = sizeof ops,
    .destroy = destroy,
    .prepare = prepare,
    .index_forms = index_forms,
    .metadata_size = phase_metadata_size,
    .metadata_create = phase_metadata_create,
    .init_forward_metadata = phase_init_forward_metadata,
    .metadata_destroy = phase_metadata_destroy,
    .forward_extend = phase_forward_extend,
    .forward_decode = phase_forward_decode,
};

const attn_backend_type hybrid_phase_type = {
    .struct_size = sizeof hybrid_phase_type,
    .flags = ATTN_TYPE_COMPOSITE,
    .name = "hybrid_phase",
    .doc = "prefill by one backend, decode by another",
    .num_options = PHASE_NUM_OPTIONS,
    .num_layouts = sizeof layouts / sizeof layouts[0],
    .options = phase_option_list,
    .layouts = layouts,
    .ops = &ops,
    .query = phase_query,
    .create = create,
};
