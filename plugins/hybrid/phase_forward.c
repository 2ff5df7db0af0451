/* SPDX-License-Identifier: Apache-2.0
 *
 * phase_forward: metadata and batches of hybrid_phase.
 *
 * Metadata is one of each child's, made for the modes that are routed to the child, and two slices
 * for MIXED batches. In its region lie, in this order, attn_metadata, the KV groups of both slices,
 * and what the children need of that region.
 */
#include "phase.h"

#include "slice.h"
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

enum { OWN_REGION = ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_METADATA) };

uint64_t phase_metadata_bytes(uint32_t num_kv_groups)
{
    return sizeof(attn_metadata) + (uint64_t)NUM_PHASES * num_kv_groups * sizeof(attn_kv_batch);
}

/* What child `c` needs for its part of `bounds`; *modes = 0 if nothing is routed to it. */
static attn_status child_metadata_size(attn_instance *instance, int c, uint32_t kind,
                                       const attn_bounds *bounds, attn_bounds *narrowed,
                                       attn_memory_size *size, uint32_t *modes, attn_error *error)
{
    const attn_child *child = &instance->child[c];
    *modes = phase_modes(c, bounds->modes, &instance->routing);
    if (*modes == 0)
        return ATTN_OK;
    if (!child->type)
        return plugin_fail_field(error, ATTN_UNSUPPORTED, ATTN_FIELD_MODES,
                                 "modes 0x%x: hybrid_phase was created without them", *modes);
    fanout_narrow_bounds(bounds, *modes, narrowed);
    memset(size, 0, sizeof *size);
    size->struct_size = sizeof *size;
    attn_status status =
        child->type->ops->metadata_size(child->instance, kind, narrowed, size, error);
    return status == ATTN_OK ? ATTN_OK
                             : plugin_fail_prefix(error, status, "child %s", instance->name[c]);
}

/* The composite's own memory, and its children's behind it. */
static attn_status total_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                              attn_memory_size *total, attn_error *error)
{
    if (kind == ATTN_METADATA_GRAPH && instance->routing.split_mixed &&
        bounds->modes & ATTN_MODE_BIT(ATTN_MODE_MIXED))
        return plugin_fail_field(error, ATTN_CAPTURE_UNSUPPORTED, ATTN_FIELD_MODES,
                                 "MIXED cannot be captured");
    attn_status status = ATTN_OK;
    memset(total, 0, sizeof *total);
    total->struct_size = sizeof *total;
    total->size[OWN_REGION] = phase_metadata_bytes(instance->num_kv_groups);
    total->alignment[OWN_REGION] = _Alignof(attn_metadata);
    for (int c = 0; c < NUM_PHASES && status == ATTN_OK; c++) {
        attn_memory_size child;
        attn_bounds narrowed;
        uint32_t modes;
        status = child_metadata_size(instance, c, kind, bounds, &narrowed, &child, &modes, error);
        if (status == ATTN_OK && modes != 0)
            fanout_memory_add(&child, total);
    }
    return status;
}

attn_status phase_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                attn_memory_size *size, attn_error *error)
{
    attn_memory_size total;
    attn_status status = total_size(instance, kind, bounds, &total, error);
    if (status != ATTN_OK)
        return status;
    total.struct_size = size->struct_size;
    memcpy(size, &total, total.struct_size < sizeof total ? total.struct_size : sizeof total);
    return ATTN_OK;
}

void phase_metadata_destroy(attn_metadata *metadata)
{
    if (!metadata)
        return;
    for (int c = NUM_PHASES - 1; c >= 0; c--)
        if (metadata->child[c])
            metadata->instance->child[c].type->ops->metadata_destroy(metadata->child[c]);
}

static attn_status create_child_metadata(attn_metadata *metadata, int c, uint32_t kind,
                                         const attn_memory *memory, attn_memory_size *used,
                                         attn_error *error)
{
    attn_instance *instance = metadata->instance;
    attn_memory_size size;
    attn_bounds narrowed;
    uint32_t modes;
    attn_status status =
        child_metadata_size(instance, c, kind, &metadata->bounds, &narrowed, &size, &modes, error);
    if (status != ATTN_OK || modes == 0)
        return status;
    attn_memory part;
    attn_metadata *made = NULL;
    fanout_memory_carve(memory, &size, used, &part);
    const attn_child *child = &instance->child[c];
    status =
        child->type->ops->metadata_create(child->instance, kind, &narrowed, &part, &made, error);
    if (status != ATTN_OK)
        return plugin_fail_prefix(error, status, "child %s", instance->name[c]);
    metadata->child[c] = made;
    return ATTN_OK;
}

static attn_metadata *lay_out(attn_instance *instance, const attn_bounds *bounds,
                              const attn_memory *memory)
{
    attn_metadata *made = memory->base[OWN_REGION];
    memset(made, 0, phase_metadata_bytes(instance->num_kv_groups));
    made->instance = instance;
    made->mode = ATTN_MODE_COUNT;
    COPY_SIZED(&made->bounds, bounds);
    for (int c = 0; c < NUM_PHASES; c++) {
        made->slice[c].kv_groups =
            (attn_kv_batch *)(made + 1) + (size_t)c * instance->num_kv_groups;
        made->slice[c].kv_capacity = instance->num_kv_groups;
    }
    return made;
}

attn_status phase_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                  const attn_memory *given, attn_metadata **metadata,
                                  attn_error *error)
{
    attn_memory memory;
    attn_memory_size size, used = {.struct_size = sizeof used};
    COPY_SIZED(&memory, given);
    attn_status status = total_size(instance, kind, bounds, &size, error);
    if (status == ATTN_OK)
        status = fanout_memory_check(&size, &memory, error);
    if (status != ATTN_OK)
        return status;

    attn_metadata *made = lay_out(instance, bounds, &memory);
    used.size[OWN_REGION] = phase_metadata_bytes(instance->num_kv_groups);
    for (int c = 0; c < NUM_PHASES && status == ATTN_OK; c++)
        status = create_child_metadata(made, c, kind, &memory, &used, error);
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

static attn_status refuse_above(const char *what, int64_t got, int64_t most, uint32_t field,
                                attn_error *error)
{
    return got >= 0 && got <= most ? ATTN_OK
                                   : plugin_fail_field(error, ATTN_INVALID_ARGUMENT, field,
                                                       "batch: %s %lld: accepted 0..%lld", what,
                                                       (long long)got, (long long)most);
}

/* The halves of a batch may be within the bounds when the batch is not. */
static attn_status check_bounds(const attn_bounds *bounds, const attn_batch *batch,
                                attn_error *error)
{
    if (batch->mode >= ATTN_MODE_COUNT || !(bounds->modes & ATTN_MODE_BIT(batch->mode)))
        return plugin_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_MODES,
                                 "batch: mode %u is not among the modes 0x%x of the bounds",
                                 batch->mode, bounds->modes);
    attn_status status =
        refuse_above("num_seqs", batch->num_seqs, bounds->max_seqs, ATTN_FIELD_MAX_SEQS, error);
    if (status == ATTN_OK)
        status = refuse_above("num_tokens", batch->num_tokens, bounds->max_tokens,
                              ATTN_FIELD_MAX_TOKENS, error);
    if (status == ATTN_OK)
        status = refuse_above("max_q_len", batch->max_q_len, bounds->max_q_len,
                              ATTN_FIELD_MAX_Q_LEN, error);
    if (status == ATTN_OK)
        status = refuse_above("max_kv_len", batch->max_kv_len, bounds->max_kv_len,
                              ATTN_FIELD_MAX_KV_LEN, error);
    return status;
}

static const int32_t *readable(const attn_metadata *metadata, const attn_i32_array *array)
{
    return array->host ? array->host : metadata->instance->on_cpu ? array->device : NULL;
}

/* The keys of both halves, where their numbers can be read. */
static attn_status check_kv_tokens(const attn_metadata *metadata, const attn_batch *batch,
                                   attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t g = 0; g < batch->num_kv_groups && status == ATTN_OK; g++) {
        const attn_kv_batch *kv = attn_at(batch->kv_groups, g);
        const int32_t *lens = readable(metadata, &kv->kv_lens);
        int64_t page = kv->page_size > 0 ? kv->page_size : 1, total = 0;
        if (!kv->kv_lens.host && !kv->kv_lens.device)
            lens = readable(metadata, &batch->seq_lens);
        for (int32_t s = 0; lens && s < batch->num_seqs; s++)
            total += (lens[s] + page - 1) / page * page;
        if (metadata->bounds.max_kv_tokens > 0)
            status = refuse_above("keys of all sequences, in whole pages", total,
                                  metadata->bounds.max_kv_tokens, ATTN_FIELD_MAX_KV_TOKENS, error);
    }
    return status;
}

static attn_status init_child(attn_metadata *metadata, int c, const attn_batch *batch,
                              attn_stream stream, attn_error *error)
{
    const attn_instance *instance = metadata->instance;
    const attn_backend_ops *ops = instance->child[c].type->ops;
    attn_status status = ops->init_forward_metadata(metadata->child[c], batch, stream, error);
    return status == ATTN_OK ? ATTN_OK
                             : plugin_fail_prefix(error, status, "child %s", instance->name[c]);
}

static attn_status init_split(attn_metadata *metadata, const attn_batch *batch, attn_stream stream,
                              attn_error *error)
{
    batch_slice *slice = metadata->slice;
    const int32_t *q_indptr = readable(metadata, &batch->q_indptr);
    attn_status status = check_kv_tokens(metadata, batch, error);
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
        status = check_bounds(&metadata->bounds, batch, error);
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
    const attn_instance *instance = metadata->instance;
    const attn_backend_ops *ops = instance->child[c].type->ops;
    attn_status (*forward)(attn_metadata *, int32_t, const attn_forward_args *, attn_stream,
                           attn_error *) = decode ? ops->forward_decode : ops->forward_extend;
    if (!forward)
        return plugin_fail(error, ATTN_UNSUPPORTED, "child %s has no %s", instance->name[c],
                           decode ? "forward_decode" : "forward_extend");
    attn_status status = forward(metadata->child[c], layer_id, args, stream, error);
    return status == ATTN_OK ? ATTN_OK
                             : plugin_fail_prefix(error, status, "child %s", instance->name[c]);
}

/* Do the new rows of this layer lie where their queries lie? Layers without a cache have no others.
 */
static int new_rows_follow(const attn_metadata *metadata, int32_t layer_id)
{
    const attn_instance *instance = metadata->instance;
    const attn_batch *batch = &metadata->slice[PHASE_DECODE].batch;
    for (uint32_t l = 0; l < instance->num_layers; l++) {
        int32_t group = instance->layers[l].kv_group;
        if (instance->layers[l].layer_id == layer_id && group >= 0 &&
            (uint32_t)group < batch->num_kv_groups)
            return slice_new_rows_follow_queries(&batch->kv_groups[group]);
    }
    return 1;
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
    if (metadata->mode == ATTN_MODE_COUNT || metadata->mode == ATTN_MODE_DECODE)
        return plugin_fail(error, ATTN_BAD_STATE,
                           "forward_extend: no batch of such a mode is planned");
    if (metadata->mode == ATTN_MODE_IDLE)
        return ATTN_OK;
    if (is_split(metadata, metadata->mode))
        return forward_split(metadata, layer_id, args, stream, error);
    return forward_child(metadata, child_of_mode(metadata->instance, metadata->mode), 0, layer_id,
                         args, stream, error);
}

attn_status phase_forward_decode(attn_metadata *metadata, int32_t layer_id,
                                 const attn_forward_args *args, attn_stream stream,
                                 attn_error *error)
{
    if (metadata->mode != ATTN_MODE_DECODE)
        return plugin_fail(error, ATTN_BAD_STATE, "forward_decode: no DECODE batch is planned");
    return forward_child(metadata, PHASE_DECODE, 1, layer_id, args, stream, error);
}
