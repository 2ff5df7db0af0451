/* SPDX-License-Identifier: Apache-2.0
 *
 * hybrid_mock.c: children of composites that record their calls and count their objects.
 */
#include "plugins/hybrid/tests/hybrid_mock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mock_child mock_children[MOCK_CHILDREN];
int mock_allocated, mock_allocate_left;
int mock_ordered;

struct attn_instance {
    mock_child *child;
};

struct attn_metadata {
    mock_child *child;
};

static attn_status fail(attn_error *error, attn_status status, const char *text)
{
    if (error) {
        error->code = status;
        if (error->message && error->capacity > 0)
            snprintf(error->message, error->capacity, "%s", text);
    }
    return status;
}

/* Count a call of `slot`, and answer as planned. */
static attn_status called(mock_child *child, int slot, attn_error *error)
{
    child->calls[slot]++;
    attn_status status = child->slot_status[slot];
    return status == ATTN_OK ? ATTN_OK : fail(error, status, "as planned");
}

/* ---- A child --------------------------------------------------------------------------------- */

static void destroy(attn_instance *instance)
{
    called(instance->child, MOCK_DESTROY, NULL);
    instance->child->live--;
    free(instance);
}

static attn_status prepare(attn_instance *instance, attn_progress progress, void *progress_ctx,
                           attn_error *error)
{
    if (progress)
        progress(progress_ctx, 1, 2, instance->child->name);
    return called(instance->child, MOCK_PREPARE, error);
}

static uint32_t index_forms(attn_instance *instance)
{
    called(instance->child, MOCK_INDEX_FORMS, NULL);
    return instance->child->index_forms;
}

static attn_status metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 attn_memory_size *size, attn_error *error)
{
    attn_status status = called(instance->child, MOCK_METADATA_SIZE, error);
    (void)kind;
    instance->child->bounds = *bounds;
    if (status == ATTN_OK)
        *size = instance->child->size;
    return status;
}

static attn_status metadata_create(attn_instance *instance, uint32_t kind,
                                   const attn_bounds *bounds, const attn_memory *memory,
                                   attn_metadata **metadata, attn_error *error)
{
    mock_child *child = instance->child;
    attn_status status = called(child, MOCK_METADATA_CREATE, error);
    (void)kind;
    child->bounds = *bounds;
    if (status != ATTN_OK)
        return status;
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) /* what is given is ours: write all of it */
        if (memory->size[r] > 0)
            memset(memory->base[r], 0xA0 + (int)(child - mock_children), memory->size[r]);
    *metadata = malloc(sizeof **metadata);
    (*metadata)->child = child;
    child->live_metadata++;
    return ATTN_OK;
}

static void metadata_destroy(attn_metadata *metadata)
{
    called(metadata->child, MOCK_METADATA_DESTROY, NULL);
    metadata->child->live_metadata--;
    free(metadata);
}

static attn_status init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                         attn_stream stream, attn_error *error)
{
    mock_child *child = metadata->child;
    (void)batch;
    child->stream = stream;
    return called(child, MOCK_INIT, error);
}

static attn_status forward(attn_metadata *metadata, int slot, int32_t layer_id,
                           const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    mock_child *child = metadata->child;
    child->stream = stream;
    child->layer_id = layer_id;
    child->args = *args;
    mock_ordered++;
    return called(child, slot, error);
}

static attn_status forward_extend(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    return forward(metadata, MOCK_FORWARD_EXTEND, layer_id, args, stream, error);
}

static attn_status forward_decode(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    return forward(metadata, MOCK_FORWARD_DECODE, layer_id, args, stream, error);
}

static const void *get_extension(attn_instance *instance, const char *id)
{
    called(instance->child, MOCK_GET_EXTENSION, NULL);
    return instance->child->extension ? instance->child->extension : id;
}

/* ---- The host -------------------------------------------------------------------------------- */

static void log_nothing(void *ctx, uint32_t level, const char *message)
{
    (void)ctx, (void)level, (void)message;
}

static void *allocate(void *ctx, uint32_t space, uint64_t size, uint64_t alignment)
{
    (void)ctx, (void)space, (void)alignment;
    if (mock_allocate_left == 0)
        return NULL;
    mock_allocate_left -= mock_allocate_left > 0;
    mock_allocated++;
    return malloc(size);
}

static void release(void *ctx, uint32_t space, void *memory)
{
    (void)ctx, (void)space;
    mock_allocated -= memory != NULL;
    free(memory);
}

static attn_status parallel_for(void *ctx, int64_t num_tasks, attn_task task, void *arg)
{
    (void)ctx;
    attn_status status = ATTN_OK;
    for (int64_t t = 0; t < num_tasks && status == ATTN_OK; t++)
        status = task(arg, t, 0);
    return status;
}

static mock_child *find_child(const char *name)
{
    for (int c = 0; c < MOCK_CHILDREN; c++)
        if (strcmp(mock_children[c].name, name) == 0)
            return &mock_children[c];
    return NULL;
}

static void remember_problem(mock_child *child, const attn_problem *problem)
{
    child->problem = *problem;
    child->bounds = *problem->bounds;
    for (uint32_t l = 0; l < problem->group->num_layers; l++) {
        const attn_layer *layer = attn_at(problem->group->layers, l);
        child->layer_ids[child->num_layers++ % 16] = layer->layer_id;
    }
}

static void give_reasons(const attn_reason *reasons, uint32_t count, attn_verdict *verdict)
{
    verdict->supported = 0;
    verdict->num_reasons = count;
    for (uint32_t r = 0; r < count && r < verdict->reasons_capacity; r++) {
        attn_reason *to =
            (attn_reason *)((char *)verdict->reasons + r * verdict->reasons->struct_size);
        uint32_t size = to->struct_size;
        memcpy(to, &reasons[r], size < sizeof *to ? size : sizeof *to);
        to->struct_size = size;
    }
}

static attn_status child_query(void *ctx, const char *name, const attn_problem *problem,
                               attn_verdict *verdict, attn_error *error)
{
    (void)ctx;
    mock_child *child = find_child(name);
    if (!child)
        return fail(error, ATTN_CHILD_FAILED, "no such child");
    child->queries++;
    child->num_layers = 0;
    remember_problem(child, problem);
    if (child->query_status != ATTN_OK)
        return fail(error, child->query_status, "as planned");
    attn_reason no_mode = {.code = ATTN_REASON_MODE, .field = ATTN_FIELD_MODES, .got = "mode"};
    attn_verdict answer = child->verdict;
    answer.struct_size = verdict->struct_size;
    answer.reasons = verdict->reasons;
    answer.reasons_capacity = verdict->reasons_capacity;
    answer.reads_new_kv_unquantised &= problem->bounds->modes;
    uint32_t count = answer.num_reasons;
    *verdict = answer;
    if (problem->bounds->modes & child->refused_modes)
        give_reasons(&no_mode, 1, verdict);
    else if (!answer.supported)
        give_reasons(child->reasons, count, verdict);
    return ATTN_OK;
}

static attn_status child_create(void *ctx, const char *name, const attn_problem *problems,
                                uint32_t num_problems, attn_child *made, attn_error *error)
{
    (void)ctx;
    mock_child *child = find_child(name);
    if (!child)
        return fail(error, ATTN_CHILD_FAILED, "no such child");
    child->num_layers = 0;
    for (uint32_t p = 0; p < num_problems; p++)
        remember_problem(child, attn_at(problems, p));
    if (child->create_status != ATTN_OK)
        return fail(error, child->create_status, "as planned");
    made->type = &child->type;
    made->instance = malloc(sizeof *made->instance);
    made->instance->child = child;
    child->live++;
    return ATTN_OK;
}

attn_services mock_services = {
    .struct_size = sizeof mock_services,
    .num_workers = 1,
    .log = log_nothing,
    .allocate = allocate,
    .release = release,
    .parallel_for = parallel_for,
    .child_query = child_query,
    .child_create = child_create,
};

void mock_reset(void)
{
    static const char *const names[MOCK_CHILDREN] = {"pre", "dec"};
    mock_allocated = mock_ordered = 0;
    mock_allocate_left = -1;
    memset(mock_children, 0, sizeof mock_children);
    for (int c = 0; c < MOCK_CHILDREN; c++) {
        mock_child *child = &mock_children[c];
        child->name = names[c];
        child->ops = (attn_backend_ops){sizeof child->ops, 0,
                                        destroy,           prepare,
                                        index_forms,       metadata_size,
                                        metadata_create,   init_forward_metadata,
                                        metadata_destroy,  forward_extend,
                                        forward_decode,    get_extension};
        child->type.struct_size = sizeof child->type;
        child->type.name = names[c];
        child->type.ops = &child->ops;
        child->verdict.supported = 1;
        child->verdict.graph_level = ATTN_GRAPH_ALWAYS;
        child->size.struct_size = sizeof child->size;
    }
}
