/* SPDX-License-Identifier: Apache-2.0 */
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
    int64_t *rows;
};

struct attn_metadata {
    attn_instance *layer;
    attn_metadata *metadata; /* the next one's */
    int64_t batch_rows;
    int64_t captured; /* forwards in the graph that this metadata was captured into */
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
    free(metadata);
}

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
    if (status == ATTN_OK && metadata->layer->rows)
        *metadata->layer->rows += metadata->captured * metadata->batch_rows;
    return status;
}

static attn_status count(attn_metadata *metadata, const attn_forward_args *args, attn_status status)
{
    if (status != ATTN_OK || !metadata->layer->rows)
        return status;
    if (args->flags & ATTN_FORWARD_CAPTURING)
        metadata->captured++;
    else
        *metadata->layer->rows += metadata->batch_rows;
    return ATTN_OK;
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
    return count(metadata, args, status);
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
    return count(metadata, args, status);
}

/* A text is read while we are in the plugin's call, so that one that cannot be read is its own
 * crash; what is no text for people is not there. */
static const void *readable(const char *id, const void *extension)
{
    bool is_text = strcmp(id, ATTN_EXTENSION_EXPLAIN) == 0;
    return !is_text || !extension || text_is_lines(extension) ? extension : NULL;
}

static const void *get_extension(attn_instance *layer, const char *id)
{
    struct guard_call call;
    guard_enter(&call, layer->party, "get_extension");
    const void *extension = readable(id, layer->next->get_extension(layer->instance, id));
    guard_leave(&call);
    return extension;
}

/* Our table, without the slots that the next one hides. */
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

attn_status wrapper_put(attn_child *child, const struct guard_party *party, int64_t *rows,
                        attn_error *error)
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
    child->type = &layer->type;
    child->instance = layer;
    return ATTN_OK;
}
