/* SPDX-License-Identifier: Apache-2.0
 *
 * executor_create.c: from a selection to composed backends with their metadata, and the memory of a
 * step.
 */
#include "host/run/executor_private.h"

#include <stdlib.h>
#include <string.h>

#include "host/embed/embed.h"
#include "host/base/error.h"
#include "host/select/problem.h"

static attn_status out_of_memory(attn_error *error, const char *what)
{
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for %s", what);
}

/* ---- Units ----------------------------------------------------------------------------------- */

/* The choices of a backend in prepare(), line by line. */
static void note_explanation(const struct executor *executor, const struct unit *unit)
{
    const char *text = executor->params.notes ? embed_explanation(unit->backend) : NULL;
    while (text && *text) {
        int length = (int)strcspn(text, "\n");
        fprintf(executor->params.notes, "  %.*s\n", length, text);
        text += length + (text[length] != '\0');
    }
}

void executor_bounds_shared(attn_bounds *bounds)
{
    bounds->uses |= ATTN_USES_SHARED_PREFIX;
    bounds->max_prefix_levels = SHARED_PREFIX_LEVELS;
}

/* Does a unit decode over pages that stay: does the run have DECODE batches with a prefix cache,
 * and the unit layers with keys, none of which are in the pool of windows? */
static bool unit_shares(const struct executor_params *p, const struct select_unit *unit)
{
    bool shares = false;
    if (!(unit->modes & ATTN_MODE_BIT(ATTN_MODE_DECODE)) || p->drafts.tokens > 0 ||
        !p->config->kv_cache.prefix_cache || model_crosses(p->model))
        return false;
    for (uint32_t i = 0; i < unit->num_groups; i++) {
        const attn_layer_group *group = &p->model->groups[unit->groups[i]];
        if (!model_group_has_kv(group))
            continue;
        if (p->model->kv_groups[group->kv_group].holds == MODEL_KV_WINDOW)
            return false;
        shares = true;
    }
    return shares;
}

/* Does the backend give the same answer for batches with hints of shared prefixes? Any error except
 * memory running out means no. */
static attn_status ask_shared(const struct executor_params *p, const struct select_unit *chosen,
                              const struct problem *posed, bool *takes, attn_error *error)
{
    *takes = unit_shares(p, chosen);
    for (uint32_t i = 0; i < chosen->num_groups && *takes; i++) {
        const attn_verdict *without = &p->selection->groups[chosen->groups[i]].verdict;
        attn_bounds bounds = posed[i].bounds;
        attn_problem problem = posed[i].problem;
        attn_verdict with = {.struct_size = sizeof with};
        executor_bounds_shared(&bounds);
        problem.bounds = &bounds;
        attn_status status = attnhost_query(p->host, chosen->backend, &problem, &with, error);
        if (status == ATTN_OUT_OF_HOST_MEMORY)
            return status;
        *takes = status == ATTN_OK && with.supported && with.graph_level >= without->graph_level &&
                 with.graph_seq_len_fill == without->graph_seq_len_fill &&
                 with.reads_new_kv_unquantised == without->reads_new_kv_unquantised;
    }
    return ATTN_OK;
}

/* Pose the problems of a unit's groups once more, for create. */
static attn_status compose_unit(struct executor *executor, uint32_t u, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    const struct select_unit *chosen = &p->selection->units[u];
    struct unit *unit = &executor->units[u];
    struct problem *posed = calloc(chosen->num_groups, sizeof *posed);
    attn_problem *problems = calloc(chosen->num_groups, sizeof *problems);
    attn_status status = ATTN_OK;
    if (!posed || !problems) {
        status = out_of_memory(error, "problems");
        goto release;
    }
    for (uint32_t i = 0; i < chosen->num_groups; i++) {
        uint32_t g = chosen->groups[i];
        const struct select_group *group = &p->selection->groups[g];
        problem_init(&posed[i], p->config, p->model, g, &p->selection->device, chosen->modes,
                     group->kv_layout ? group->kv_layout : group->state_layout);
        problems[i] = posed[i].problem;
    }
    status = ask_shared(p, chosen, posed, &unit->takes_shared, error);
    for (uint32_t i = 0; i < chosen->num_groups && unit->takes_shared; i++)
        executor_bounds_shared(&posed[i].bounds);
    if (status == ATTN_OK)
        status = attnhost_compose(p->host, chosen->backend, problems, chosen->num_groups,
                                  &unit->backend, error);
    if (status == ATTN_OK)
        status = attnhost_backend_prepare(unit->backend, NULL, NULL, error);
    if (status == ATTN_OK) {
        attn_bounds bounds = p->bounds;
        bounds.modes = chosen->modes;
        problem_bounds_drafts(&bounds, p->config, p->model);
        problem_bounds_expand(&bounds, p->model, &p->model->groups[chosen->groups[0]]);
        if (unit->takes_shared)
            executor_bounds_shared(&bounds);
        unit->index_forms = attnhost_backend_index_forms(unit->backend);
        note_explanation(executor, unit);
        status = attnhost_metadata_create(unit->backend, ATTN_METADATA_EAGER, &bounds, NULL,
                                          &executor->eager[u], error);
    }
release:
    free(problems);
    free(posed);
    return status;
}

static attn_status make_units(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    uint32_t count = p->selection->num_units;
    executor->units = calloc(count ? count : 1, sizeof *executor->units);
    executor->eager = calloc(count ? count : 1, sizeof *executor->eager);
    if (!executor->units || !executor->eager)
        return out_of_memory(error, "the executor");
    executor->num_units = count;
    attn_status status = ATTN_OK;
    for (uint32_t u = 0; u < count && status == ATTN_OK; u++)
        status = compose_unit(executor, u, error);
    return status;
}

/* ---- Memory of a step ------------------------------------------------------------------------ */

/* Keys that a row of a sparse layer chooses, at most; 0 = there is none. */
static int32_t largest_choice(const struct model *model)
{
    int32_t most = 0;
    for (uint32_t g = 0; g < model->num_groups; g++)
        if (model->groups[g].sparse && model->groups[g].sparse->top_k > most)
            most = model->groups[g].sparse->top_k;
    return most;
}

static bool has_state(const struct model *model)
{
    bool found = false;
    for (uint32_t g = 0; g < model->num_groups; g++)
        found |= model_group_has_state(&model->groups[g]);
    return found;
}

static attn_status make_batch(struct executor *executor, attn_error *error)
{
    static const int pools[MODEL_KV_COUNT] = {
        [MODEL_KV_DECODER] = SCHEDULER_ALL,
        [MODEL_KV_WINDOW] = SCHEDULER_WINDOW,
        [MODEL_KV_ENCODER] = SCHEDULER_ENCODER,
    };
    const struct executor_params *p = &executor->params;
    uint32_t forms = 0;
    bool shared = false;
    for (uint32_t u = 0; u < executor->num_units; u++) {
        forms |= executor->units[u].index_forms;
        shared |= executor->units[u].takes_shared;
    }
    struct forward_batch_params params = {
        .device = p->device,
        .num_staging = executor->num_flights,
        .max_seqs = p->bounds.max_seqs,
        .max_tokens = p->bounds.max_tokens,
        .max_kv_tokens = p->bounds.max_kv_tokens,
        .max_kv_len = p->bounds.max_kv_len,
        .page_size = (int32_t)p->config->kv_cache.page_size,
        .index_forms = forms,
        .has_state = has_state(p->model),
        .max_top_k = largest_choice(p->model),
        .table_rows = p->table_rows,
        .table_columns = p->table_columns,
        .drafts = p->drafts,
        .tells_shared = shared,
        .has_positions = problem_has_positions(p->config, p->model),
        .num_requests = (int32_t)p->workload->num_requests,
        .num_kv_groups = p->model->num_kv_groups,
    };
    for (uint32_t g = 0; g < p->model->num_kv_groups; g++)
        params.kv_pools[g] = pools[p->model->kv_groups[g].holds];
    p->report->has_shared = shared;
    return forward_batch_init(&executor->batch, &params, error);
}

static attn_status make_flights(struct executor *executor, attn_error *error)
{
    const struct device *device = executor->params.device;
    executor->num_flights = executor_on_cpu(executor) ? 1 : EXECUTOR_MAX_IN_FLIGHT;
    executor->flights = calloc(executor->num_flights, sizeof *executor->flights);
    if (!executor->flights)
        return out_of_memory(error, "steps in flight");
    attn_status status = ATTN_OK;
    for (uint32_t f = 0; f < executor->num_flights && status == ATTN_OK; f++) {
        status = device_event_create(device, 1, &executor->flights[f].start, error);
        if (status == ATTN_OK)
            status = device_event_create(device, 1, &executor->flights[f].end, error);
    }
    if (status == ATTN_OK)
        status = executor_fences_create(executor, error);
    return status == ATTN_OK ? executor_rows_create(executor, error) : status;
}

/* ---- Life ------------------------------------------------------------------------------------ */

/* All that needs memory or a backend; on failure executor_destroy() releases what exists. */
static attn_status build(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    attn_status status = device_stream_create(p->device, &executor->stream, error);
    if (status == ATTN_OK)
        status = step_kernels_create(p->device, p->generator, p->workload, p->threads,
                                     &executor->kernels, error);
    if (status == ATTN_OK)
        status = executor_constants_create(executor, error);
    if (status == ATTN_OK)
        status = make_units(executor, error);
    if (status == ATTN_OK)
        status = executor_operands_create(executor, error);
    if (status == ATTN_OK)
        status = executor_prefix_create(executor, error);
    if (status == ATTN_OK)
        status = make_flights(executor, error);
    if (status == ATTN_OK)
        status = make_batch(executor, error);
    return status == ATTN_OK ? graph_runner_create(executor, error) : status;
}

attn_status executor_create(const struct executor_params *params, struct executor **executor,
                            attn_error *error)
{
    struct executor *made = calloc(1, sizeof *made);
    if (!made)
        return out_of_memory(error, "the executor");
    made->params = *params;
    attn_status status = build(made, error);
    if (status != ATTN_OK)
        executor_destroy(made);
    else
        *executor = made;
    return status;
}

static void destroy_units(struct executor *executor)
{
    for (uint32_t u = executor->num_units; u-- > 0;) {
        attnhost_metadata_destroy(executor->eager[u]);
        attnhost_backend_destroy(executor->units[u].backend);
    }
    free(executor->eager);
    free(executor->units);
}

static void release_step(struct executor *executor)
{
    const struct device *device = executor->params.device;
    executor_constants_destroy(executor);
    executor_operands_destroy(executor);
    executor_rows_destroy(executor);
    executor_fences_destroy(executor);
    for (uint32_t f = 0; executor->flights && f < executor->num_flights; f++) {
        device_event_destroy(device, executor->flights[f].start);
        device_event_destroy(device, executor->flights[f].end);
    }
    free(executor->flights);
    forward_batch_finish(&executor->batch);
}

void executor_destroy(struct executor *executor)
{
    if (!executor)
        return;
    const struct device *device = executor->params.device;
    if (executor->stream)
        device_synchronize(device, executor->stream, NULL);
    graph_runner_destroy(executor);
    executor_prefix_destroy(executor);
    destroy_units(executor);
    release_step(executor);
    step_kernels_destroy(executor->kernels);
    if (executor->stream)
        device_stream_destroy(device, executor->stream);
    free(executor);
}
