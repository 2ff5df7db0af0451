/* SPDX-License-Identifier: Apache-2.0
 *
 * wrapper.c: the forwarding table of each backend, guarded.
 */
#include "host/plugin/wrapper.h"

#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/text.h"

/* The layer's own instance and metadata, each with the next one's. */
struct attn_instance {
    attn_backend_type type; /* the next one's, with our table */
    attn_backend_ops ops;
    const attn_backend_ops *next; /* the next one's table */
    attn_instance *instance;      /* the next one's */
    const struct guard_party *party;
    struct code_path_rows *rows;
    const attn_code_paths
        *inner_paths;      /* the next one's, of a leaf; NULL = none that can be used */
    attn_code_paths paths; /* the same for our metadata */
};

struct attn_metadata {
    attn_instance *layer;
    attn_metadata *metadata; /* the next one's */
    int64_t batch_rows;
    int32_t *captured; /* layers of the forwards in the graph that it was captured into */
    size_t num_captured, captured_capacity;
};

static void destroy(attn_instance *layer)
{
    if (!layer)
        return;
    struct guard_call call;
    guard_enter(&call, layer->party, "destroy");
    layer->next->destroy(layer->instance);
    guard_leave(&call);
    free(layer);
}

static attn_status prepare(attn_instance *layer, attn_progress progress, void *progress_ctx,
                           attn_error *error)
{
    struct guard_call call;
    guard_enter(&call, layer->party, "prepare");
    attn_status status = layer->next->prepare(layer->instance, progress, progress_ctx, error);
    guard_leave(&call);
    return status;
}

static uint32_t index_forms(attn_instance *layer)
{
    struct guard_call call;
    guard_enter(&call, layer->party, "index_forms");
    uint32_t forms = layer->next->index_forms(layer->instance);
    guard_leave(&call);
    return forms;
}

static attn_status metadata_size(attn_instance *layer, uint32_t kind, const attn_bounds *bounds,
                                 attn_memory_size *size, attn_error *error)
{
    struct guard_call call;
    guard_enter(&call, layer->party, "metadata_size");
    attn_status status = layer->next->metadata_size(layer->instance, kind, bounds, size, error);
    guard_leave(&call);
    return status;
}

static attn_status metadata_create(attn_instance *layer, uint32_t kind, const attn_bounds *bounds,
                                   const attn_memory *memory, attn_metadata **metadata,
                                   attn_error *error)
{
    attn_metadata *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "wrapper: out of memory");
    made->layer = layer;
    struct guard_call call;
    guard_enter(&call, layer->party, "metadata_create");
    attn_status status =
        layer->next->metadata_create(layer->instance, kind, bounds, memory, &made->metadata, error);
    guard_leave(&call);
    if (status == ATTN_OK && !made->metadata) /* a defect that the caller looks for, too */
        *metadata = NULL;
    else if (status == ATTN_OK)
        *metadata = made;
    if (status != ATTN_OK || !made->metadata)
        free(made);
    return status;
}

static void metadata_destroy(attn_metadata *metadata)
{
    if (!metadata)
        return;
    struct guard_call call;
    guard_enter(&call, metadata->layer->party, "metadata_destroy");
    metadata->layer->next->metadata_destroy(metadata->metadata);
    guard_leave(&call);
    free(metadata->captured);
    free(metadata);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Count the batch's rows of these layers by path. Rows of a malformed answer are counted for no
 * path. */
static void count_paths(const attn_metadata *metadata, const int32_t *layer_ids, size_t num_layers)
{
    const attn_instance *layer = metadata->layer;
    int64_t rows[ATTN_MAX_CODE_PATHS];
    struct guard_call call;
    guard_enter_hot(&call, layer->party, "attn_code_paths.rows", GUARD_NO_LAYER);
    for (size_t n = 0; n < num_layers; n++)
        if (code_paths_ask(layer->inner_paths, metadata->metadata, layer_ids[n],
                           metadata->batch_rows, rows, NULL) == ATTN_OK)
            for (uint32_t p = 0; p < layer->inner_paths->num_paths; p++)
                layer->rows->by_path[p] += rows[p];
    guard_leave_hot(&call);
}

static void count(const attn_metadata *metadata, const int32_t *layer_ids, size_t num_layers)
{
    struct code_path_rows *rows = metadata->layer->rows;
    if (!rows || num_layers == 0)
        return;
    rows->all += (int64_t)num_layers * metadata->batch_rows;
    if (metadata->layer->inner_paths)
        count_paths(metadata, layer_ids, num_layers);
}

/* Calls of this layer count when they are replayed. */
static attn_status note_captured(attn_metadata *metadata, int32_t layer_id, attn_error *error)
{
    if (metadata->num_captured == metadata->captured_capacity) {
        size_t capacity = 2 * metadata->captured_capacity + 16;
        int32_t *grown = realloc(metadata->captured, capacity * sizeof *grown);
        if (!grown)
            return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "a graph of %zu layers", capacity);
        metadata->captured = grown;
        metadata->captured_capacity = capacity;
    }
    metadata->captured[metadata->num_captured++] = layer_id;
    return ATTN_OK;
}

static attn_status end_forward(attn_metadata *metadata, int32_t layer_id,
                               const attn_forward_args *args, attn_status status, attn_error *error)
{
    if (status != ATTN_OK || !metadata->layer->rows)
        return status;
    if (args->flags & ATTN_FORWARD_CAPTURING)
        return note_captured(metadata, layer_id, error);
    count(metadata, &layer_id, 1);
    return ATTN_OK;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static attn_status init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                         attn_stream stream, attn_error *error)
{
    struct guard_call call;
    metadata->batch_rows = batch->num_real_tokens;
    guard_enter_hot(&call, metadata->layer->party, "init_forward_metadata", GUARD_NO_LAYER);
    attn_status status =
        metadata->layer->next->init_forward_metadata(metadata->metadata, batch, stream, error);
    guard_check_sometimes(&call);
    guard_leave_hot(&call);
    /* A replay follows, and calls no forward. */
    if (status == ATTN_OK)
        count(metadata, metadata->captured, metadata->num_captured);
    return status;
}

static attn_status forward_extend(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    struct guard_call call;
    guard_enter_hot(&call, metadata->layer->party, "forward_extend", layer_id);
    attn_status status =
        metadata->layer->next->forward_extend(metadata->metadata, layer_id, args, stream, error);
    guard_leave_hot(&call);
    return end_forward(metadata, layer_id, args, status, error);
}

static attn_status forward_decode(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    struct guard_call call;
    guard_enter_hot(&call, metadata->layer->party, "forward_decode", layer_id);
    attn_status status =
        metadata->layer->next->forward_decode(metadata->metadata, layer_id, args, stream, error);
    guard_leave_hot(&call);
    return end_forward(metadata, layer_id, args, status, error);
}

/* A text is read within the plugin's call, so that a crash by an unreadable text is the plugin's; a
 * malformed text counts as absent. */
static const void *readable(const char *id, const void *extension)
{
    bool is_text = strcmp(id, ATTN_EXTENSION_EXPLAIN) == 0;
    return !is_text || !extension || text_is_lines(extension) ? extension : NULL;
}

/* ---- Extensions ------------------------------------------------------------------------------ */

static attn_status rows_by_path(const attn_metadata *metadata, int32_t layer_id, int64_t *rows,
                                attn_error *error)
{
    const attn_instance *layer = metadata->layer;
    struct guard_call call;
    guard_enter_hot(&call, layer->party, "attn_code_paths.rows", layer_id);
    attn_status status = layer->inner_paths->rows(metadata->metadata, layer_id, rows, error);
    guard_leave_hot(&call);
    return status;
}

static const void *get_extension(attn_instance *layer, const char *id)
{
    if (strcmp(id, ATTN_EXTENSION_CODE_PATHS) == 0) /* it is given metadata, which is ours */
        return layer->inner_paths ? &layer->paths : NULL;
    struct guard_call call;
    guard_enter(&call, layer->party, "get_extension");
    const void *extension = readable(id, layer->next->get_extension(layer->instance, id));
    guard_leave(&call);
    return extension;
}

/* Its paths, if it is a leaf and they are well formed. Of several instances of a node, those count
 * that have the paths of the first one. */
static void take_paths(attn_instance *layer)
{
    const attn_backend_ops *next = layer->next;
    if (!layer->rows || !ATTN_HAS(next, attn_backend_ops, get_extension) || !next->get_extension)
        return;
    struct guard_call call;
    guard_enter(&call, layer->party, "get_extension");
    const attn_code_paths *paths = next->get_extension(layer->instance, ATTN_EXTENSION_CODE_PATHS);
    if (paths && code_paths_check(paths, NULL) != ATTN_OK)
        paths = NULL;
    guard_leave(&call);
    if (!paths || (layer->rows->paths && layer->rows->paths != paths))
        return;
    layer->inner_paths = layer->rows->paths = paths;
    layer->paths = (attn_code_paths){.struct_size = sizeof layer->paths,
                                     .num_paths = paths->num_paths,
                                     .paths = paths->paths,
                                     .rows = rows_by_path};
}

/* Our table, without the slots that the wrapped one lacks. */
static void fill_ops(const attn_backend_ops *next, attn_backend_ops *ops)
{
    *ops = (attn_backend_ops){
        .struct_size = sizeof *ops,
        .destroy = destroy,
        .prepare = next->prepare ? prepare : NULL,
        .index_forms = index_forms,
        .metadata_size = metadata_size,
        .metadata_create = metadata_create,
        .init_forward_metadata = init_forward_metadata,
        .metadata_destroy = metadata_destroy,
        .forward_extend = next->forward_extend ? forward_extend : NULL,
        .forward_decode = next->forward_decode ? forward_decode : NULL,
        .get_extension = ATTN_HAS(next, attn_backend_ops, get_extension) && next->get_extension
                             ? get_extension
                             : NULL,
    };
}

attn_status wrapper_put(attn_child *child, const struct guard_party *party,
                        struct code_path_rows *rows, attn_error *error)
{
    attn_instance *layer = calloc(1, sizeof *layer);
    if (!layer)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "wrapper of %s: out of memory",
                         child->type->name);
    uint32_t size = child->type->struct_size;
    memcpy(&layer->type, child->type, size < sizeof layer->type ? size : sizeof layer->type);
    layer->type.struct_size = sizeof layer->type;
    layer->type.ops = &layer->ops;
    layer->next = child->type->ops;
    layer->instance = child->instance;
    layer->party = party;
    layer->rows = rows;
    fill_ops(layer->next, &layer->ops);
    take_paths(layer);
    child->type = &layer->type;
    child->instance = layer;
    return ATTN_OK;
}
