/* SPDX-License-Identifier: Apache-2.0
 *
 * phase_forward: metadata and batches of hybrid_phase.
 *
 * Metadata is one of each child's, made for the modes that are routed to the child, and two slices
 * for MIXED batches. In its region lie, in this order, attn_metadata, the KV groups of both slices,
 * and what the children need of that region.
 */
#include "phase.h"

#include "plugins/hybrid/core/slice.h"
#include "plugins/common/copy_sized.h"
#include "plugins/common/plugin_error.h"

#include <string.h>

/* ---- Metadata -------------------------------------------------------------------------------- */

struct attn_metadata {
    attn_instance *instance;
    attn_metadata *child[NUM_PHASES]; /* NULL: no mode of the bounds is routed to it */
    attn_bounds bounds;
    uint32_t mode;                 /* planned last; ATTN_MODE_COUNT = none */
    int32_t first_decode_row;      /* MIXED, split: of the tensors */
    batch_slice slice[NUM_PHASES]; /* MIXED, split; kv_groups lie behind this struct */
};

uint64_t phase_metadata_bytes(uint32_t num_kv_groups)
{
    return sizeof(attn_metadata) + (uint64_t)NUM_PHASES * num_kv_groups * sizeof(attn_kv_batch);
}

/* What a child is to be given of `bounds`; NULL if it needs no metadata at all. */
static const attn_bounds *narrow(const attn_instance *instance, uint32_t part,
                                 const attn_bounds *bounds, uint32_t *c, attn_bounds *narrowed)
{
    uint32_t modes;
    int asked = phase_asks((int)part, bounds->modes, &instance->routing, &modes);
    *c = part;
    fanout_narrow_bounds(bounds, modes, narrowed);
    /* For no mode at all, whoever is there. */
    asked = asked && (bounds->modes & ~ATTN_MODE_BIT(ATTN_MODE_IDLE) || instance->child[part].ops);
    return asked ? narrowed : NULL;
}

static fanout_metadata_form form_of(const attn_instance *instance)
{
    return (fanout_metadata_form){.own = phase_metadata_bytes(instance->layers.num_kv_groups),
                                  .alignment = _Alignof(attn_metadata),
                                  .split = instance->routing.split_mixed,
                                  .num_parts = NUM_PHASES,
                                  .narrow = narrow};
}

attn_status phase_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                attn_memory_size *size, attn_error *error)
{
    const fanout_metadata_form form = form_of(instance);
    return fanout_answer_size(instance, &form, kind, bounds, size, error);
}

void phase_metadata_destroy(attn_metadata *metadata)
{
    if (metadata)
        fanout_metadata_destroy(&metadata->instance->children, metadata->child);
}

static attn_metadata *lay_out(attn_instance *instance, const attn_bounds *bounds,
                              const attn_memory *memory)
{
    attn_metadata *made = memory->base[FANOUT_OWN_REGION];
    memset(made, 0, phase_metadata_bytes(instance->layers.num_kv_groups));
    made->instance = instance;
    made->mode = ATTN_MODE_COUNT;
    COPY_SIZED(&made->bounds, bounds);
    for (int c = 0; c < NUM_PHASES; c++) {
        made->slice[c].kv_groups =
            (attn_kv_batch *)(made + 1) + (size_t)c * instance->layers.num_kv_groups;
        made->slice[c].kv_capacity = instance->layers.num_kv_groups;
    }
    return made;
}

attn_status phase_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                  const attn_memory *given, attn_metadata **metadata,
                                  attn_error *error)
{
    attn_memory memory;
    attn_memory_size used = {.struct_size = sizeof used};
    const fanout_metadata_form form = form_of(instance);
    attn_status status = fanout_read_memory(instance, &form, kind, bounds, given, &memory, error);
    if (status != ATTN_OK)
        return status;

    attn_metadata *made = lay_out(instance, bounds, &memory);
    used.size[FANOUT_OWN_REGION] = phase_metadata_bytes(instance->layers.num_kv_groups);
    for (uint32_t part = 0; part < NUM_PHASES && status == ATTN_OK; part++) {
        attn_bounds narrowed;
        uint32_t c;
        if (narrow(instance, part, &made->bounds, &c, &narrowed))
            status = fanout_metadata_create(&instance->children, c, kind, &narrowed, &memory, &used,
                                            &made->child[c], error);
    }
    if (status != ATTN_OK)
        phase_metadata_destroy(made);
    else
        *metadata = made;
    return status;
}

/* ---- Batches --------------------------------------------------------------------------------- */

static int child_of_mode(const attn_instance *instance, uint32_t mode)
{
    switch (mode) {
    case ATTN_MODE_DECODE:
        return PHASE_DECODE;
    case ATTN_MODE_TARGET_VERIFY:
    case ATTN_MODE_DRAFT_EXTEND:
        return instance->routing.spec_child;
    default:
        return PHASE_PREFILL;
    }
}

static int is_split(const attn_metadata *metadata, uint32_t mode)
{
    return mode == ATTN_MODE_MIXED && metadata->instance->routing.split_mixed;
}

static attn_status init_child(attn_metadata *metadata, int c, const attn_batch *batch,
                              attn_stream stream, attn_error *error)
{
    return fanout_plan(&metadata->instance->children, (uint32_t)c, metadata->child[c], batch,
                       stream, error);
}

static attn_status init_split(attn_metadata *metadata, const attn_batch *batch, attn_stream stream,
                              attn_error *error)
{
    batch_slice *slice = metadata->slice;
    const int32_t *q_indptr = fanout_readable(&metadata->instance->children, &batch->q_indptr);
    attn_status status =
        fanout_check_kv_tokens(&metadata->instance->children, &metadata->bounds, batch, error);
    if (status == ATTN_OK)
        status = slice_extend_rows(batch, q_indptr, &slice[PHASE_PREFILL], error);
    if (status == ATTN_OK)
        status = slice_decode_rows(batch, q_indptr, &slice[PHASE_DECODE],
                                   &metadata->first_decode_row, error);
    for (int c = 0; c < NUM_PHASES && status == ATTN_OK; c++)
        if (slice[c].batch.num_seqs > 0)
            status = init_child(metadata, c, &slice[c].batch, stream, error);
    return status;
}

attn_status phase_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                        attn_stream stream, attn_error *error)
{
    metadata->mode = ATTN_MODE_COUNT;
    attn_status status = ATTN_OK;
    if (batch->mode != ATTN_MODE_IDLE) {
        int c = child_of_mode(metadata->instance, batch->mode);
        status = fanout_check_bounds(&metadata->bounds, batch, error);
        if (status == ATTN_OK)
            status = is_split(metadata, batch->mode)
                         ? init_split(metadata, batch, stream, error)
                         : init_child(metadata, c, batch, stream, error);
    }
    if (status == ATTN_OK)
        metadata->mode = batch->mode;
    return status;
}

/* ---- Forward --------------------------------------------------------------------------------- */

static attn_status forward_child(attn_metadata *metadata, int c, int decode, int32_t layer_id,
                                 const attn_forward_args *args, attn_stream stream,
                                 attn_error *error)
{
    return fanout_forward(&metadata->instance->children, (uint32_t)c, metadata->child[c], decode,
                          layer_id, args, stream, error);
}

/* Do the new rows of this layer lie where their queries lie? Layers without a cache have no others.
 */
static int new_rows_follow(const attn_metadata *metadata, int32_t layer_id)
{
    const fanout_layer *layer = fanout_find_layer(&metadata->instance->layers, layer_id);
    const attn_batch *batch = &metadata->slice[PHASE_DECODE].batch;
    if (!layer || layer->kv_group < 0 || (uint32_t)layer->kv_group >= batch->num_kv_groups)
        return 1;
    return slice_new_rows_follow_queries(&batch->kv_groups[layer->kv_group]);
}

static attn_status forward_split(attn_metadata *metadata, int32_t layer_id,
                                 const attn_forward_args *args, attn_stream stream,
                                 attn_error *error)
{
    attn_status status = ATTN_OK;
    if (metadata->slice[PHASE_PREFILL].batch.num_seqs > 0)
        status = forward_child(metadata, PHASE_PREFILL, 0, layer_id, args, stream, error);
    if (status != ATTN_OK || metadata->slice[PHASE_DECODE].batch.num_seqs == 0)
        return status;
    args_slice sliced;
    slice_args(args, metadata->first_decode_row, new_rows_follow(metadata, layer_id), &sliced);
    return forward_child(metadata, PHASE_DECODE, 1, layer_id, &sliced.args, stream, error);
}

attn_status phase_forward_extend(attn_metadata *metadata, int32_t layer_id,
                                 const attn_forward_args *args, attn_stream stream,
                                 attn_error *error)
{
    attn_status status = fanout_check_planned(metadata->mode, 0, error);
    if (status != ATTN_OK || metadata->mode == ATTN_MODE_IDLE)
        return status;
    if (is_split(metadata, metadata->mode))
        return forward_split(metadata, layer_id, args, stream, error);
    return forward_child(metadata, child_of_mode(metadata->instance, metadata->mode), 0, layer_id,
                         args, stream, error);
}

attn_status phase_forward_decode(attn_metadata *metadata, int32_t layer_id,
                                 const attn_forward_args *args, attn_stream stream,
                                 attn_error *error)
{
    attn_status status = fanout_check_planned(metadata->mode, 1, error);
    if (status != ATTN_OK)
        return status;
    return forward_child(metadata, PHASE_DECODE, 1, layer_id, args, stream, error);
}
