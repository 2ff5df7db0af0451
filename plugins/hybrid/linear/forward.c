/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c: metadata and batches of hybrid_linear.
 *
 * Metadata is one of each child's. A batch is planned by both, each with the KV groups and the
 * states that its layers have; a layer is its child's call with the caller's arguments.
 */
#include "linear.h"

#include "plugins/hybrid/core/slice.h"
#include "attn_plugin_util.h"

#include <string.h>

/* ---- Metadata -------------------------------------------------------------------------------- */

struct attn_metadata {
    attn_instance *instance;
    attn_metadata *child[NUM_LINEAR]; /* NULL: no layer is routed to it */
    attn_bounds bounds;
    int is_for[NUM_LINEAR]; /* is the batch for its layers? */
    uint32_t mode;          /* planned last; ATTN_MODE_COUNT = none */
};

uint64_t linear_metadata_bytes(void)
{
    return sizeof(attn_metadata);
}

/* A child with metadata has it for the part of the bounds that its layers can get: the bounds that
 * query asked it about. */
static const attn_bounds *narrow(const attn_instance *instance, uint32_t part,
                                 const attn_bounds *bounds, uint32_t *c, attn_bounds *narrowed)
{
    attn_bounds limited;
    *c = part;
    if (!instance->child[part].ops ||
        !fanout_limit_bounds(&instance->limits[part], &instance->all_limits, bounds, &limited))
        return NULL;
    fanout_narrow_bounds(&limited, limited.modes, narrowed);
    return narrowed;
}

static fanout_metadata_form form_of(void)
{
    return (fanout_metadata_form){.own = linear_metadata_bytes(),
                                  .alignment = _Alignof(attn_metadata),
                                  .num_parts = NUM_LINEAR,
                                  .narrow = narrow};
}

attn_status linear_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 attn_memory_size *size, attn_error *error)
{
    const fanout_metadata_form form = form_of();
    return fanout_answer_size(instance, &form, kind, bounds, size, error);
}

void linear_metadata_destroy(attn_metadata *metadata)
{
    if (metadata)
        fanout_metadata_destroy(&metadata->instance->children, metadata->child);
}

static attn_metadata *lay_out(attn_instance *instance, const attn_bounds *bounds,
                              const attn_memory *memory)
{
    attn_metadata *made = memory->base[FANOUT_OWN_REGION];
    memset(made, 0, sizeof *made);
    made->instance = instance;
    made->mode = ATTN_MODE_COUNT;
    ATTN_UTIL_READ(&made->bounds, bounds);
    return made;
}

attn_status linear_metadata_create(attn_instance *instance, uint32_t kind,
                                   const attn_bounds *bounds, const attn_memory *given,
                                   attn_metadata **metadata, attn_error *error)
{
    attn_memory memory;
    attn_memory_size used = {.struct_size = sizeof used};
    const fanout_metadata_form form = form_of();
    attn_status status = fanout_read_memory(instance, &form, kind, bounds, given, &memory, error);
    if (status != ATTN_OK)
        return status;
    attn_metadata *made = lay_out(instance, bounds, &memory);
    used.size[FANOUT_OWN_REGION] = linear_metadata_bytes();
    for (uint32_t part = 0; part < NUM_LINEAR && status == ATTN_OK; part++) {
        attn_bounds narrowed;
        uint32_t c;
        if (narrow(instance, part, &made->bounds, &c, &narrowed))
            status = fanout_metadata_create(&instance->children, c, kind, &narrowed, &memory, &used,
                                            &made->child[c], error);
    }
    if (status != ATTN_OK)
        linear_metadata_destroy(made);
    else
        *metadata = made;
    return status;
}

/* ---- Batches --------------------------------------------------------------------------------- */

static attn_status plan_child(attn_metadata *metadata, uint32_t c, const attn_batch *batch,
                              attn_stream stream, attn_error *error)
{
    const attn_instance *instance = metadata->instance;
    attn_batch slice;
    metadata->is_for[c] =
        metadata->child[c] && fanout_is_within(&instance->limits[c], batch->mode, batch);
    if (!metadata->is_for[c])
        return ATTN_OK;
    slice_layers(batch, instance->needs[c], instance->groups[c], &slice);
    return fanout_plan(&instance->children, c, metadata->child[c], &slice, stream, error);
}

attn_status linear_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                         attn_stream stream, attn_error *error)
{
    metadata->mode = ATTN_MODE_COUNT;
    attn_status status = ATTN_OK;
    if (batch->mode != ATTN_MODE_IDLE) {
        status = fanout_check_bounds(&metadata->bounds, batch, error);
        for (uint32_t c = 0; c < NUM_LINEAR && status == ATTN_OK; c++)
            status = plan_child(metadata, c, batch, stream, error);
    }
    if (status == ATTN_OK)
        metadata->mode = batch->mode;
    return status;
}

/* ---- Forward --------------------------------------------------------------------------------- */

static attn_status forward(attn_metadata *metadata, int decode, int32_t layer_id,
                           const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    const attn_instance *instance = metadata->instance;
    const fanout_layer *layer = fanout_find_layer(&instance->layers, layer_id);
    if (!layer)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LAYER_ID,
                                    "layer %d: accepted the %u layers given to create", layer_id,
                                    instance->layers.count);
    if (!metadata->is_for[layer->child])
        return attn_util_fail_field(
            error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LAYER_ID,
            "layer %d: accepted layers to which batches of this mode and size are routed",
            layer_id);
    return fanout_forward(&instance->children, layer->child, metadata->child[layer->child], decode,
                          layer_id, args, stream, error);
}

attn_status linear_forward_extend(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    attn_status status = fanout_check_planned(metadata->mode, 0, error);
    if (status != ATTN_OK || metadata->mode == ATTN_MODE_IDLE)
        return status;
    return forward(metadata, 0, layer_id, args, stream, error);
}

attn_status linear_forward_decode(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    attn_status status = fanout_check_planned(metadata->mode, 1, error);
    return status == ATTN_OK ? forward(metadata, 1, layer_id, args, stream, error) : status;
}
