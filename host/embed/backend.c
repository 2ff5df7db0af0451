/* SPDX-License-Identifier: Apache-2.0
 *
 * backend.c: the handle `attnhost_backend`: a tree of backends with its instances.
 */
#include "host/embed/embed.h"

#include "host/base/bit_names.h"
#include "host/plugin/answer.h"

#include <stdlib.h>

/* ---- Context --------------------------------------------------------------------------------- */

attn_status embed_enter(const attnhost_backend *backend, int *entered, attn_error *error)
{
    *entered = 0;
    if (device_is_entered(backend->device))
        return ATTN_OK;
    attn_status status = device_enter(backend->device, error);
    *entered = status == ATTN_OK;
    return status;
}

void embed_leave(const attnhost_backend *backend, int entered)
{
    if (entered)
        device_leave(backend->device);
}

/* ---- Problems -------------------------------------------------------------------------------- */

static const attn_problem *problem_at(const attn_problem *problems, uint32_t index)
{
    return attn_at(problems, index);
}

static attn_status check_dims(const attn_layer_group *group, attn_error *error)
{
    attn_status status = ATTN_OK;
    if (group->mla)
        status = EMBED_CHECK_SIZE(group->mla, attn_mla_dims, nope_dim, "group.mla", error);
    if (status == ATTN_OK && group->linear)
        status =
            EMBED_CHECK_SIZE(group->linear, attn_linear_dims, lower_bound, "group.linear", error);
    if (status == ATTN_OK && group->sparse)
        status =
            EMBED_CHECK_SIZE(group->sparse, attn_sparse_dims, label_dtype, "group.sparse", error);
    return status;
}

attn_status embed_check_group(const attn_layer_group *group, attn_error *error)
{
    attn_status status = EMBED_CHECK_SIZE(group, attn_layer_group, sparse, "group", error);
    if (status == ATTN_OK)
        status = check_dims(group, error);
    if (status != ATTN_OK)
        return status;
    if (group->num_layers == 0 || !group->layers)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "no layers; accepted: 1 or more");
    return EMBED_CHECK_SIZE(group->layers, attn_layer, kv_buffer, "layers[0]", error);
}

static attn_status check_parts(const attn_problem *problem, attn_error *error)
{
    attn_status status = EMBED_CHECK_SIZE(problem->device, attn_device, l2_bytes, "device", error);
    if (status == ATTN_OK)
        status = EMBED_CHECK_SIZE(problem->bounds, attn_bounds, max_kv_tokens, "bounds", error);
    return status == ATTN_OK ? embed_check_group(problem->group, error) : status;
}

static attn_status check_problem(const attn_problem *problem, uint32_t index, attn_error *error)
{
    const attn_layer_group *group = problem->group;
    const char *missing = !problem->device   ? "device"
                          : !group           ? "group"
                          : !problem->bounds ? "bounds"
                                             : NULL;
    if (missing)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "problem %u: %s is NULL", index, missing);
    if (check_parts(problem, error) != ATTN_OK)
        return host_fail_prefix(error, "problem %u", index);
    if (problem->num_features > 0 && !problem->features)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "problem %u: features is NULL", index);
    return ATTN_OK;
}

static attn_status check_layer_ids(const attn_problem *problems, uint32_t num_problems,
                                   attn_error *error)
{
    struct embed_layer *layers;
    size_t count;
    attn_status status = embed_list_layers(problems, num_problems, &layers, &count, error);
    if (status != ATTN_OK)
        return status;
    if (layers[0].layer_id < 0)
        status = host_fail(error, ATTN_INVALID_ARGUMENT, "layer_id %d: accepted: 0 or more",
                           layers[0].layer_id);
    for (size_t i = 1; i < count && status == ATTN_OK; i++)
        if (layers[i].layer_id == layers[i - 1].layer_id)
            status =
                host_fail(error, ATTN_INVALID_ARGUMENT,
                          "two layers have layer_id %d; accepted: unique ids", layers[i].layer_id);
    free(layers);
    return status;
}

attn_status embed_check_problems(const attn_problem *problems, uint32_t num_problems,
                                 attn_error *error)
{
    if (!problems || num_problems == 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "no problem; accepted: 1 or more");
    attn_status status = EMBED_CHECK_SIZE(problems, attn_problem, features, "problem 0", error);
    for (uint32_t p = 0; p < num_problems && status == ATTN_OK; p++) {
        const attn_problem *problem = problem_at(problems, p);
        status = check_problem(problem, p, error);
        if (status != ATTN_OK)
            return status;
        const attn_device *device = problem->device, *first = problems->device;
        if (device->type != first->type || device->id != first->id)
            return host_fail(error, ATTN_INVALID_ARGUMENT,
                             "problem %u is on another device than problem 0; accepted: one device",
                             p);
    }
    return status == ATTN_OK ? check_layer_ids(problems, num_problems, error) : status;
}

/* ---- Create ---------------------------------------------------------------------------------- */

/* Add `group` to those that a batch must carry. */
static void note_group(int32_t *groups, uint32_t *count, int32_t group)
{
    for (uint32_t g = 0; g < *count; g++)
        if (groups[g] == group)
            return;
    groups[(*count)++] = group;
}

/* Note which KV groups (of layers with a cache) and state groups a batch must carry, and what
 * sparse layers need in it. */
static attn_status note_groups(attnhost_backend *backend, const attn_problem *problems,
                               uint32_t num_problems, attn_error *error)
{
    backend->kv_groups = calloc(num_problems, sizeof *backend->kv_groups);
    backend->state_groups = calloc(num_problems, sizeof *backend->state_groups);
    if (!backend->kv_groups || !backend->state_groups)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "backend: out of memory");
    for (uint32_t p = 0; p < num_problems; p++) {
        const attn_problem *problem = problem_at(problems, p);
        if (problem->kv_layout)
            note_group(backend->kv_groups, &backend->num_kv_groups, problem->group->kv_group);
        if (problem->group->kind == ATTN_KIND_LINEAR)
            note_group(backend->state_groups, &backend->num_state_groups,
                       problem->group->state_group);
        if (problem->group->sparse && problem->group->sparse->top_k > backend->max_top_k)
            backend->max_top_k = problem->group->sparse->top_k;
    }
    return ATTN_OK;
}

/* Answers of the tree that never change. */
static attn_status note_answers(attnhost_backend *backend, attn_error *error)
{
    backend->index_forms = backend->child.type->ops->index_forms(backend->child.instance);
    if (!(backend->index_forms & ~(uint32_t)ATTN_INDEX_ALL))
        return ATTN_OK;
    char forms[64];
    bit_names_text(ATTN_FIELD_INDEX_FORMS, backend->index_forms, forms, sizeof forms);
    return host_fail(error, ATTN_INTERNAL,
                     "%s: defect of the plugin: it asks for unknown index forms: %s",
                     backend->root->name, forms);
}

/* A batch is planned once for all layers, so it has what any of them needs. */
static attn_status note_host_arrays(attnhost_backend *backend, const attn_problem *problems,
                                    uint32_t num_problems, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t p = 0; p < num_problems && status == ATTN_OK; p++) {
        attn_verdict verdict = {.struct_size = sizeof verdict};
        status = compose_query(backend->root, problem_at(problems, p), &verdict, error);
        backend->host_arrays |= verdict.host_arrays;
    }
    return status;
}

static attn_status make_tree(attnhost_backend *backend, const char *name,
                             const attn_problem *problems, uint32_t num_problems, attn_error *error)
{
    attn_status status =
        compose_resolve(&backend->host->composer, name, backend->device, &backend->root, error);
    if (status == ATTN_OK)
        status = note_groups(backend, problems, num_problems, error);
    if (status == ATTN_OK)
        status = embed_list_layers(problems, num_problems, &backend->layers, &backend->num_layers,
                                   error);
    if (status == ATTN_OK) {
        status = compose_create(backend->root, problems, num_problems, &backend->child, error);
        if (status != ATTN_OK)
            compose_explain(backend->root, error);
    }
    if (status == ATTN_OK)
        status = embed_note_private(backend, problems, num_problems, error);
    if (status == ATTN_OK)
        status = note_host_arrays(backend, problems, num_problems, error);
    if (status == ATTN_OK)
        status = note_answers(backend, error);
    return status;
}

static attn_status make(attnhost_backend *backend, const char *name, const attn_problem *problems,
                        uint32_t num_problems, attn_error *error)
{
    const attn_device *device = problems->device;
    int entered;
    attn_status status = device_open(device->type, device->id, &backend->device, error);
    if (status == ATTN_OK)
        status = embed_enter(backend, &entered, error);
    if (status != ATTN_OK)
        return status;
    backend->device->allocator = backend->host->composer.allocator;
    status = make_tree(backend, name, problems, num_problems, error);
    embed_leave(backend, entered);
    return status;
}

attn_status attnhost_compose(attnhost *host, const char *name, const attn_problem *problems,
                             uint32_t num_problems, attnhost_backend **backend, attn_error *error)
{
    attn_status status = embed_check_problems(problems, num_problems, error);
    if (status != ATTN_OK)
        return status;
    attnhost_backend *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "backend: out of memory");
    made->host = host;
    made->child.struct_size = sizeof made->child;
    host->num_backends++;
    status = make(made, name, problems, num_problems, error);
    if (status != ATTN_OK)
        attnhost_backend_destroy(made);
    else
        *backend = made;
    return status;
}

static void destroy_scratch(attnhost_backend *backend)
{
    for (uint32_t space = 0; space < ATTN_SPACE_COUNT; space++) {
        if (!backend->scratch[space])
            continue;
        device_release(backend->device, space, backend->scratch[space]->base);
        free(backend->scratch[space]);
    }
}

/* A device that is lost may not be entered; what is on it is destroyed all the same. */
static void destroy_tree(attnhost_backend *backend)
{
    int entered;
    embed_enter(backend, &entered, NULL);
    if (backend->child.instance)
        backend->child.type->ops->destroy(backend->child.instance);
    compose_destroy(backend->root);
    destroy_scratch(backend);
    embed_merge_finish(backend);
    embed_leave(backend, entered);
}

void attnhost_backend_destroy(attnhost_backend *backend)
{
    if (!backend)
        return;
    if (backend->device)
        destroy_tree(backend);
    device_close(backend->device);
    backend->host->num_backends--;
    free(backend->kv_groups);
    free(backend->state_groups);
    free(backend->layers);
    free(backend);
}

/* ---- Use ------------------------------------------------------------------------------------- */

attn_status embed_fail(const attnhost_backend *backend, attn_status status, const host_error *said,
                       attn_error *error)
{
    status = answer_fail(status, said, error, "%s", backend->root->name);
    compose_explain(backend->root, error);
    return status;
}

attn_status attnhost_backend_prepare(attnhost_backend *backend, attn_progress progress,
                                     void *progress_ctx, attn_error *error)
{
    const attn_backend_ops *ops = backend->child.type->ops;
    if (!ops->prepare)
        return ATTN_OK;
    host_error said;
    int entered;
    host_error_init(&said);
    attn_status status = embed_enter(backend, &entered, &said.base);
    if (status == ATTN_OK) {
        status = ops->prepare(backend->child.instance, progress, progress_ctx, &said.base);
        embed_leave(backend, entered);
        compose_reset_rows(backend->root);
    }
    return status == ATTN_OK ? status : embed_fail(backend, status, &said, error);
}

const char *embed_explanation(const attnhost_backend *backend)
{
    const attn_backend_ops *ops = backend->child.type->ops;
    if (!ATTN_HAS(ops, attn_backend_ops, get_extension) || !ops->get_extension)
        return NULL;
    return ops->get_extension(backend->child.instance, ATTN_EXTENSION_EXPLAIN);
}

uint32_t attnhost_backend_index_forms(const attnhost_backend *backend)
{
    return backend->index_forms;
}

uint32_t attnhost_backend_host_arrays(const attnhost_backend *backend)
{
    return backend->host_arrays;
}

uint32_t attnhost_backend_num_nodes(const attnhost_backend *backend)
{
    return compose_num_nodes(backend->root);
}

attn_status attnhost_backend_node(const attnhost_backend *backend, uint32_t index,
                                  attnhost_node_info *info, attn_error *error)
{
    const struct compose_node *node = compose_node_at(backend->root, index);
    if (!node)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "node %u: the backend has only %u nodes",
                         index, compose_num_nodes(backend->root));
    attnhost_node_info known = {.struct_size = sizeof known,
                                .depth = node->depth,
                                .name = node->name,
                                .type = node->type->type->name,
                                .plugin_file = node->type->plugin->file,
                                .rows = node->rows.all,
                                .num_children = node->num_children,
                                .num_paths = node->rows.paths ? node->rows.paths->num_paths : 0};
    embed_give(info, &known, sizeof known);
    return ATTN_OK;
}

attn_status attnhost_backend_code_path(const attnhost_backend *backend, uint32_t index,
                                       uint32_t path, attnhost_code_path_info *info,
                                       attn_error *error)
{
    const struct compose_node *node = compose_node_at(backend->root, index);
    uint32_t num_paths = node && node->rows.paths ? node->rows.paths->num_paths : 0;
    if (path >= num_paths)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "path %u of node %u: the node has only %u paths", path, index, num_paths);
    const attn_code_path *named = code_paths_at(node->rows.paths, path);
    attnhost_code_path_info known = {.struct_size = sizeof known,
                                     .name = named->name,
                                     .doc = named->doc,
                                     .rows = node->rows.by_path[path]};
    embed_give(info, &known, sizeof known);
    return ATTN_OK;
}
