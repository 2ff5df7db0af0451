/* SPDX-License-Identifier: Apache-2.0
 *
 * executor_create.c: from a selection to composed backends with their metadata, and the memory of a
 * step.
 */
#include "host/executor_private.h"

#include <stdlib.h>
#include <string.h>

#include "host/error.h"
#include "host/problem.h"

/* ---- Create ---------------------------------------------------------------------------------- */

static attn_status out_of_memory(attn_error *error, const char *what)
{
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for %s", what);
}

/* The numbers of kv_cache.k_scale or v_scale as floats. */
static float *copy_scales(const struct config_doubles *scales)
{
    float *values = calloc(scales->count ? scales->count : 1, sizeof *values);
    for (size_t i = 0; values && i < scales->count; i++)
        values[i] = (float)scales->items[i];
    return values;
}

static attn_status make_group_scales(struct executor *executor, uint32_t g, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    struct group_scales *scales = &executor->scales[g];
    attn_dtype kv_dtype = problem_kv_dtype(p->config, p->model);
    executor->verify_scales[g] = (struct verify_scales){.kv_dtype = kv_dtype};
    if (p->config->kv_cache.k_scale.count == 0)
        return ATTN_OK;
    scales->k = copy_scales(&p->config->kv_cache.k_scale);
    scales->v = copy_scales(&p->config->kv_cache.v_scale);
    if (!scales->k || !scales->v)
        return out_of_memory(error, "scales");
    scales->count = (uint32_t)p->config->kv_cache.k_scale.count;
    scales->k_scale = (attn_scale){
        .struct_size = sizeof(attn_scale),
        .granularity = scales->count > 1 ? ATTN_SCALE_PER_HEAD : ATTN_SCALE_PER_TENSOR,
        .count = scales->count,
        .host = scales->k,
    };
    scales->v_scale = scales->k_scale;
    scales->v_scale.host = scales->v;
    executor->verify_scales[g] =
        (struct verify_scales){kv_dtype, scales->k, scales->v, scales->count};
    return ATTN_OK;
}

static attn_status make_layer_constants(struct executor *executor, uint32_t l, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    const attn_layer_group *group = &p->model->groups[p->model->layers[l].group];
    struct layer_constants *constants = &executor->layers[l];
    size_t heads = (size_t)group->num_q_heads;
    constants->sinks = calloc(heads, sizeof *constants->sinks);
    constants->slopes = calloc(heads, sizeof *constants->slopes);
    if (!constants->sinks || !constants->slopes)
        return out_of_memory(error, "sinks and slopes");
    for (int32_t h = 0; h < group->num_q_heads; h++) {
        constants->sinks[h] = generator_sink(p->generator, (int32_t)l, h);
        constants->slopes[h] = generator_alibi_slope(h, group->num_q_heads);
    }
    return ATTN_OK;
}

/* Pose the problems of a unit's groups once more, for create. */
static attn_status compose_unit(struct executor *executor, const struct select_unit *chosen,
                                struct unit *unit, attn_error *error)
{
    const struct executor_params *p = &executor->params;
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
    status = attnhost_compose(p->host, chosen->backend, problems, chosen->num_groups,
                              &unit->backend, error);
    if (status == ATTN_OK)
        status = attnhost_backend_prepare(unit->backend, NULL, NULL, error);
    if (status == ATTN_OK) {
        attn_bounds bounds = p->bounds;
        bounds.modes = chosen->modes;
        unit->index_forms = attnhost_backend_index_forms(unit->backend);
        status = attnhost_metadata_create(unit->backend, ATTN_METADATA_EAGER, &bounds, NULL,
                                          &unit->metadata, error);
    }
release:
    free(problems);
    free(posed);
    return status;
}

/* Bytes of the widest row of a kind of operand, over all groups. */
static size_t widest(const struct model *model, int values, int queries)
{
    size_t most = 1;
    for (uint32_t g = 0; g < model->num_groups; g++) {
        const attn_layer_group *group = &model->groups[g];
        size_t heads = (size_t)(queries ? group->num_q_heads : group->num_kv_heads);
        size_t elements = heads * (size_t)(values ? group->v_head_dim : group->head_dim);
        most = elements > most ? elements : most;
    }
    return most * attn_dtype_size(model->dtype);
}

static attn_status allocate_step(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    size_t tokens = (size_t)p->bounds.max_tokens, seqs = (size_t)p->bounds.max_seqs;
    executor->q = device_allocate(p->device, ATTN_SPACE_DEVICE, tokens * widest(p->model, 0, 1),
                                  EXECUTOR_ALIGNMENT);
    executor->k = device_allocate(p->device, ATTN_SPACE_DEVICE, tokens * widest(p->model, 0, 0),
                                  EXECUTOR_ALIGNMENT);
    executor->v = device_allocate(p->device, ATTN_SPACE_DEVICE, tokens * widest(p->model, 1, 0),
                                  EXECUTOR_ALIGNMENT);
    executor->out = device_allocate(p->device, ATTN_SPACE_DEVICE, tokens * widest(p->model, 1, 1),
                                    EXECUTOR_ALIGNMENT);
    executor->row_keys = calloc(tokens, sizeof *executor->row_keys);
    executor->row_requests = calloc(tokens, sizeof *executor->row_requests);
    executor->row_positions = calloc(tokens, sizeof *executor->row_positions);
    executor->row_is_first = calloc(tokens, 1);
    executor->sampled = calloc(tokens, sizeof *executor->sampled);
    executor->sequences = calloc(seqs, sizeof *executor->sequences);
    executor->computed = calloc((size_t)p->workload->num_requests + 1, sizeof *executor->computed);
    if (!executor->q || !executor->k || !executor->v || !executor->out || !executor->row_keys ||
        !executor->row_requests || !executor->row_positions || !executor->row_is_first ||
        !executor->sampled || !executor->sequences || !executor->computed)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for steps of %zu tokens",
                         tokens);
    return ATTN_OK;
}

static attn_status make_verifier(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    for (uint32_t g = 0; g < p->model->num_groups; g++)
        executor->reads_new_unquantised[g] =
            p->selection->groups[g].verdict.reads_new_kv_unquantised;
    struct verify_params params = {
        .model = p->model,
        .workload = p->workload,
        .generator = p->generator,
        .scales = executor->verify_scales,
        .reads_new_unquantised = executor->reads_new_unquantised,
        .threads = p->threads,
    };
    return verifier_create(&params, &executor->verifier, error);
}

static attn_status allocate_tables(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    uint32_t units = p->selection->num_units, groups = p->model->num_groups;
    executor->units = calloc(units ? units : 1, sizeof *executor->units);
    executor->layers = calloc(p->model->num_layers, sizeof *executor->layers);
    executor->scales = calloc(groups, sizeof *executor->scales);
    executor->verify_scales = calloc(groups, sizeof *executor->verify_scales);
    executor->reads_new_unquantised = calloc(groups, sizeof *executor->reads_new_unquantised);
    if (!executor->units || !executor->layers || !executor->scales || !executor->verify_scales ||
        !executor->reads_new_unquantised)
        return out_of_memory(error, "the executor");
    return ATTN_OK;
}

/* All that needs memory or a backend; on failure executor_destroy() takes back what there is. */
static attn_status build(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    attn_status status = allocate_tables(executor, error);
    for (uint32_t g = 0; status == ATTN_OK && g < p->model->num_groups; g++)
        status = make_group_scales(executor, g, error);
    for (uint32_t l = 0; status == ATTN_OK && l < p->model->num_layers; l++)
        status = make_layer_constants(executor, l, error);
    uint32_t forms = 0;
    for (uint32_t u = 0; status == ATTN_OK && u < p->selection->num_units; u++) {
        executor->num_units = u + 1;
        status = compose_unit(executor, &p->selection->units[u], &executor->units[u], error);
        forms |= executor->units[u].index_forms;
    }
    struct forward_batch_params batch = {
        .max_seqs = p->bounds.max_seqs,
        .max_tokens = p->bounds.max_tokens,
        .max_kv_tokens = p->bounds.max_kv_tokens,
        .max_kv_len = p->bounds.max_kv_len,
        .page_size = (int32_t)p->config->kv_cache.page_size,
        .index_forms = forms,
    };
    if (status == ATTN_OK)
        status = forward_batch_init(&executor->batch, &batch, error);
    if (status == ATTN_OK)
        status = allocate_step(executor, error);
    if (status == ATTN_OK)
        status = make_verifier(executor, error);
    return status;
}

attn_status executor_create(const struct executor_params *params, struct executor **executor,
                            attn_error *error)
{
    struct executor *made = calloc(1, sizeof *made);
    if (!made)
        return out_of_memory(error, "the executor");
    made->params = *params;
    digest_init(&made->digest);
    attn_status status = build(made, error);
    if (status != ATTN_OK)
        executor_destroy(made);
    else
        *executor = made;
    return status;
}

static void release_step(struct executor *executor)
{
    const struct executor_params *p = &executor->params;
    void *operands[] = {executor->q, executor->k, executor->v, executor->out};
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++)
        device_release(p->device, ATTN_SPACE_DEVICE, operands[i]);
    for (int64_t r = 0; executor->computed && r < p->workload->num_requests; r++)
        free(executor->computed[r]);
    free(executor->computed);
    free(executor->sequences);
    free(executor->sampled);
    free(executor->row_is_first);
    free(executor->row_positions);
    free(executor->row_requests);
    free(executor->row_keys);
    forward_batch_finish(&executor->batch);
}

void executor_destroy(struct executor *executor)
{
    if (!executor)
        return;
    const struct model *model = executor->params.model;
    for (uint32_t u = executor->num_units; u-- > 0;) {
        attnhost_metadata_destroy(executor->units[u].metadata);
        attnhost_backend_destroy(executor->units[u].backend);
    }
    release_step(executor);
    verifier_destroy(executor->verifier);
    digest_finish(&executor->digest, NULL);
    for (uint32_t l = 0; executor->layers && l < model->num_layers; l++) {
        free(executor->layers[l].sinks);
        free(executor->layers[l].slopes);
    }
    for (uint32_t g = 0; executor->scales && g < model->num_groups; g++) {
        free(executor->scales[g].k);
        free(executor->scales[g].v);
    }
    free(executor->reads_new_unquantised);
    free(executor->verify_scales);
    free(executor->scales);
    free(executor->layers);
    free(executor->units);
    free(executor);
}
