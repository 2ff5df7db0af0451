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
#include "plugins/hybrid/core/hybrid.h"

#include "phase.h"
#include "plugins/common/problem.h"

#include <stddef.h>

/* ---- Instance -------------------------------------------------------------------------------- */

static attn_status route(const void *ctx, uint32_t c, const attn_problem *problem,
                         child_problem *narrowed, int *asked, attn_error *error)
{
    (void)error;
    *asked = phase_narrow_problem((int)c, problem, ctx, narrowed);
    return ATTN_OK;
}

/* MIXED is split if all layer groups can be: a batch is planned once for all of them. A group that
 * could have been split by itself then needs a prefill child that serves MIXED, or child_create
 * says that it does not. */
static attn_status decide_split(const attn_problem *problems, uint32_t num_problems,
                                const phase_options *options, const attn_services *services,
                                int *split, attn_error *error)
{
    attn_status status = ATTN_OK;
    *split = 1;
    for (uint32_t p = 0; p < num_problems && status == ATTN_OK; p++) {
        int this_one = 1;
        status = phase_decide_split(services, options, attn_at(problems, p), &this_one, error);
        *split = *split && this_one;
    }
    return status;
}

/* An instance without children. */
static attn_instance *make(const attn_problem *problems, uint32_t num_problems,
                           const attn_services *services, attn_error *error)
{
    size_t size =
        sizeof(attn_instance) + problem_count_layers(problems, num_problems) * sizeof(fanout_layer);
    attn_instance *made = fanout_allocate(services, size, offsetof(attn_instance, child),
                                          NUM_PHASES, problems, error);
    if (!made)
        return NULL;
    made->layers.items = made->items;
    fanout_list_layers(problems, num_problems, NULL, NULL, 1, &made->layers);
    return made;
}

static attn_status create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *given,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error)
{
    phase_options options;
    int split = 1;
    attn_status status = phase_read_options(given, &options, error);
    if (status == ATTN_OK)
        status = fanout_check_problems(type, given, services, problems, num_problems, error);
    if (status == ATTN_OK)
        status = decide_split(problems, num_problems, &options, services, &split, error);
    if (status != ATTN_OK)
        return status;

    attn_instance *made = make(problems, num_problems, services, error);
    if (!made)
        return ATTN_OUT_OF_HOST_MEMORY;
    made->routing = (phase_routing){.spec_child = options.spec_child, .split_mixed = split};
    return fanout_create_all(made, options.child, problems, num_problems, route, &made->routing,
                             instance, error);
}

/* ---- Type ------------------------------------------------------------------------------------ */

static const attn_backend_ops ops = {
    .struct_size = sizeof ops,
    .destroy = fanout_op_destroy,
    .prepare = fanout_op_prepare,
    .index_forms = fanout_op_index_forms,
    .metadata_size = phase_metadata_size,
    .metadata_create = phase_metadata_create,
    .init_forward_metadata = phase_init_forward_metadata,
    .metadata_destroy = phase_metadata_destroy,
    .forward_extend = phase_forward_extend,
    .forward_decode = phase_forward_decode,
    .get_extension = fanout_op_get_extension,
};

const attn_backend_type hybrid_phase_type = {
    .struct_size = sizeof hybrid_phase_type,
    .flags = ATTN_TYPE_COMPOSITE,
    .name = "hybrid_phase",
    .doc = "prefill by one backend, decode by another",
    .num_options = PHASE_NUM_OPTIONS,
    .num_layouts = FANOUT_NUM_LAYOUTS,
    .options = phase_option_list,
    .layouts = fanout_layouts,
    .ops = &ops,
    .query = phase_query,
    .create = create,
};
