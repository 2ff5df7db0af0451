/* SPDX-License-Identifier: Apache-2.0
 *
 * pick_forward: metadata and batches of a composite that picks a child for each batch.
 *
 * Metadata is one of each child that can be picked within the bounds, a second one for decode rows
 * of split MIXED batches if extend rows may be the same child's, the choice of the batch that was
 * planned last, and the slices of a MIXED one. In its region lie, in this order, attn_metadata, the
 * KV groups and the state groups of both slices, the choice of each part, and what the children
 * need of that region.
 *
 * Memory is asked for every child that can be picked within the bounds, so that its size is a
 * function of them and grows with them. Only metadata of picked children is created: with GRAPH
 * those picked at the bounds, and of children that are chosen after create the chosen ones. */
#include "pick.h"

#include "slice.h"
#include "attn_plugin_util.h"

#include <string.h>

/* ---- Metadata -------------------------------------------------------------------------------- */

enum { NO_CHILD = UINT8_MAX }; /* a choice: the batch is not for this part */

struct attn_metadata {
    attn_instance *instance;
    attn_metadata *child[PICK_HALVES][PICK_MAX_CHILDREN]; /* NULL: nothing can be routed to it */
    attn_bounds bounds;
    uint32_t kind;
    uint32_t mode;                  /* planned last; ATTN_MODE_COUNT = none */
    int32_t first_decode_row;       /* MIXED, split: of the tensors */
    batch_slice slice[PICK_HALVES]; /* MIXED, split; their groups lie after this struct */
    uint8_t (*choice)[PICK_HALVES]; /* [num_parts] child of the batch, or of its extend rows, and */
                                    /* of its decode rows; after the groups */
};

uint64_t pick_metadata_bytes(uint32_t num_parts, slice_groups groups)
{
    return sizeof(attn_metadata) +
           PICK_HALVES * ((uint64_t)groups.num_kv_groups * sizeof(attn_kv_batch) +
                          (uint64_t)groups.num_state_groups * sizeof(attn_state_batch) + num_parts);
}

static uint64_t own_bytes(const attn_instance *instance)
{
    return pick_metadata_bytes(instance->num_parts, instance->layers.groups);
}

/* Add the share of a half of a child, of all parts. */
static void add_shares(const attn_instance *instance, const picker *pick, const attn_bounds *bounds,
                       uint32_t half, uint32_t c, pick_share *share)
{
    for (uint32_t p = 0; p < instance->num_parts; p++) {
        attn_bounds limited;
        const pick_part *part = &instance->parts[p];
        if (fanout_limit_bounds(&part->limits, &instance->limits, bounds, &limited))
            pick_add_share(pick, part->name, &limited, half, c, share);
    }
}

/* A part is a half of a child: its share of `bounds`, or NULL if it needs no metadata. */
static const attn_bounds *narrow(const attn_instance *instance, uint32_t part,
                                 const attn_bounds *bounds, uint32_t *c, attn_bounds *narrowed)
{
    pick_share share = {0};
    *c = part / PICK_HALVES;
    add_shares(instance, &instance->pick, bounds, part % PICK_HALVES, *c, &share);
    pick_narrow_bounds(bounds, &share, narrowed);
    /* For no mode at all, each child that exists. */
    int asked =
        share.asked && (bounds->modes & ~ATTN_MODE_BIT(ATTN_MODE_IDLE) || instance->child[*c].ops);
    return asked ? narrowed : NULL;
}

/* Do the decisions route anything to the child? */
static int comes(const attn_instance *instance, uint32_t half, uint32_t c,
                 const attn_bounds *bounds)
{
    pick_rules rules = *instance->pick.rules;
    picker pick = instance->pick;
    pick_share share = {0};
    if (!rules.decided)
        return 1;
    rules.reach = rules.decided;
    pick.rules = &rules;
    add_shares(instance, &pick, bounds, half, c, &share);
    return share.asked;
}

static fanout_metadata_form form_of(const attn_instance *instance)
{
    return (fanout_metadata_form){.own = own_bytes(instance),
                                  .alignment = _Alignof(attn_metadata),
                                  .split = instance->pick.split_mixed,
                                  .num_parts = PICK_HALVES * instance->children.num_children,
                                  .narrow = narrow};
}

attn_status pick_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                               attn_memory_size *size, attn_error *error)
{
    const fanout_metadata_form form = form_of(instance);
    return fanout_answer_size(instance, &form, kind, bounds, size, error);
}

/* Halves of a child that have metadata of their own. */
static uint32_t own_halves(const attn_instance *instance)
{
    return instance->pick.rules->halves_apart ? 1 : PICK_HALVES;
}

void pick_metadata_destroy(attn_metadata *metadata)
{
    if (!metadata)
        return;
    for (uint32_t half = own_halves(metadata->instance); half > 0; half--)
        fanout_metadata_destroy(&metadata->instance->children, metadata->child[half - 1]);
}

static attn_metadata *lay_out(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                              const attn_memory *memory)
{
    attn_metadata *made = memory->base[FANOUT_OWN_REGION];
    const slice_groups groups = instance->layers.groups;
    attn_kv_batch *kv_groups = (attn_kv_batch *)(made + 1);
    attn_state_batch *state_groups =
        (attn_state_batch *)(kv_groups + (size_t)PICK_HALVES * groups.num_kv_groups);
    memset(made, 0, own_bytes(instance));
    made->instance = instance;
    made->kind = kind;
    made->mode = ATTN_MODE_COUNT;
    ATTN_UTIL_READ(&made->bounds, bounds);
    for (uint32_t half = 0; half < PICK_HALVES; half++) {
        made->slice[half].kv_groups = kv_groups + (size_t)half * groups.num_kv_groups;
        made->slice[half].kv_capacity = groups.num_kv_groups;
        made->slice[half].state_groups = state_groups + (size_t)half * groups.num_state_groups;
        made->slice[half].state_capacity = groups.num_state_groups;
    }
    made->choice =
        (uint8_t(*)[PICK_HALVES])(state_groups + (size_t)PICK_HALVES * groups.num_state_groups);
    return made;
}

static uint32_t choose(const attn_metadata *metadata, uint32_t part, uint32_t phase,
                       const attn_batch *batch)
{
    const attn_instance *instance = metadata->instance;
    int by_bounds = metadata->kind == ATTN_METADATA_GRAPH;
    return instance->pick.rules->choose(instance->pick.ctx, instance->parts[part].name, phase,
                                        by_bounds ? metadata->bounds.max_seqs : batch->num_seqs,
                                        by_bounds ? metadata->bounds.max_kv_len
                                                  : batch->max_kv_len);
}

static uint32_t phase_of(uint32_t mode)
{
    switch (mode) {
    case ATTN_MODE_DECODE:
        return PICK_DECODE;
    case ATTN_MODE_TARGET_VERIFY:
        return PICK_VERIFY;
    case ATTN_MODE_DRAFT_EXTEND:
        return PICK_DRAFT;
    default:
        return PICK_PREFILL;
    }
}

/* Is the child picked at the bounds, which is what counts in a graph? */
static int is_captured(const attn_metadata *metadata, uint32_t c)
{
    uint32_t modes = metadata->bounds.modes & ~ATTN_MODE_BIT(ATTN_MODE_IDLE);
    int found = modes == 0;
    for (uint32_t p = 0; p < metadata->instance->num_parts; p++)
        for (uint32_t mode = 0; mode < ATTN_MODE_COUNT && !found; mode++)
            found = modes >> mode & 1u && choose(metadata, p, phase_of(mode), NULL) == c;
    return found;
}

static attn_status create_children(attn_metadata *made, uint32_t kind, const attn_memory *memory,
                                   attn_error *error)
{
    attn_instance *instance = made->instance;
    attn_memory_size used = {.struct_size = sizeof used};
    attn_status status = ATTN_OK;
    used.size[FANOUT_OWN_REGION] = own_bytes(instance);
    for (uint32_t i = 0; i < PICK_HALVES * instance->children.num_children && status == ATTN_OK;
         i++) {
        attn_bounds narrowed;
        uint32_t c, half = i % PICK_HALVES;
        if (narrow(instance, i, &made->bounds, &c, &narrowed) &&
            comes(instance, half, c, &made->bounds) &&
            (kind != ATTN_METADATA_GRAPH || is_captured(made, c)))
            status = fanout_metadata_create(&instance->children, c, kind, &narrowed, memory, &used,
                                            &made->child[half][c], error);
    }
    if (own_halves(instance) == 1)
        memcpy(made->child[PICK_ROWS], made->child[PICK_WHOLE], sizeof made->child[PICK_ROWS]);
    return status;
}

attn_status pick_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 const attn_memory *given, attn_metadata **metadata,
                                 attn_error *error)
{
    attn_memory memory;
    const fanout_metadata_form form = form_of(instance);
    attn_status status = fanout_read_memory(instance, &form, kind, bounds, given, &memory, error);
    if (status != ATTN_OK)
        return status;
    attn_metadata *made = lay_out(instance, kind, bounds, &memory);
    status = create_children(made, kind, &memory, error);
    if (status != ATTN_OK)
        pick_metadata_destroy(made);
    else
        *metadata = made;
    return status;
}

/* ---- Batches --------------------------------------------------------------------------------- */

static int is_split(const attn_metadata *metadata, uint32_t mode)
{
    return mode == ATTN_MODE_MIXED && metadata->instance->pick.split_mixed;
}

/* Do a child's layers need as much of a batch as all layers? */
static int needs_all(const attn_instance *instance, uint32_t c)
{
    const slice_groups *own = &instance->groups[c], *all = &instance->layers.groups;
    return instance->needs[c] == instance->all_needs && own->num_kv_groups == all->num_kv_groups &&
           own->num_state_groups == all->num_state_groups;
}

/* Plan for one child; it is shown what its layers need. */
static attn_status plan_child(attn_metadata *metadata, uint32_t half, uint32_t c,
                              const attn_batch *batch, attn_stream stream, attn_error *error)
{
    attn_instance *instance = metadata->instance;
    attn_batch shown;
    if (!needs_all(instance, c)) {
        slice_layers(batch, instance->needs[c], instance->groups[c], &shown);
        batch = &shown;
    }
    return fanout_plan(&instance->children, c, metadata->child[half][c], batch, stream, error);
}

/* Pick for each part, and plan once for each child that is picked. */
static attn_status plan_half(attn_metadata *metadata, uint32_t half, uint32_t mode, uint32_t phase,
                             const attn_batch *batch, attn_stream stream, attn_error *error)
{
    attn_status status = ATTN_OK;
    uint32_t planned = 0;
    for (uint32_t p = 0; p < metadata->instance->num_parts && status == ATTN_OK; p++) {
        uint32_t c = choose(metadata, p, phase, batch);
        int has_any = metadata->child[half][c] &&
                      fanout_is_within(&metadata->instance->parts[p].limits, mode, batch);
        metadata->choice[p][half] = has_any ? (uint8_t)c : NO_CHILD;
        if (has_any && !(planned >> c & 1u))
            status = plan_child(metadata, half, c, batch, stream, error);
        planned |= has_any ? 1u << c : 0;
    }
    return status;
}

static attn_status plan_split(attn_metadata *metadata, const attn_batch *batch, attn_stream stream,
                              attn_error *error)
{
    const fanout *children = &metadata->instance->children;
    batch_slice *slice = metadata->slice;
    const int32_t *q_indptr = fanout_readable(children, &batch->q_indptr);
    attn_status status = fanout_check_kv_tokens(children, &metadata->bounds, batch, error);
    if (status == ATTN_OK)
        status = slice_extend_rows(batch, q_indptr, &slice[PICK_WHOLE], error);
    if (status == ATTN_OK)
        status = slice_decode_rows(batch, q_indptr, &slice[PICK_ROWS], &metadata->first_decode_row,
                                   error);
    if (status == ATTN_OK && slice[PICK_WHOLE].batch.num_seqs > 0)
        status = plan_half(metadata, PICK_WHOLE, ATTN_MODE_MIXED, PICK_PREFILL,
                           &slice[PICK_WHOLE].batch, stream, error);
    if (status == ATTN_OK && slice[PICK_ROWS].batch.num_seqs > 0)
        status = plan_half(metadata, PICK_ROWS, ATTN_MODE_MIXED, PICK_DECODE,
                           &slice[PICK_ROWS].batch, stream, error);
    return status;
}

attn_status pick_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                       attn_stream stream, attn_error *error)
{
    metadata->mode = ATTN_MODE_COUNT;
    attn_status status = ATTN_OK;
    if (batch->mode != ATTN_MODE_IDLE) {
        status = fanout_check_bounds(&metadata->bounds, batch, error);
        if (status == ATTN_OK)
            status = is_split(metadata, batch->mode)
                         ? plan_split(metadata, batch, stream, error)
                         : plan_half(metadata, PICK_WHOLE, batch->mode, phase_of(batch->mode),
                                     batch, stream, error);
    }
    if (status == ATTN_OK)
        metadata->mode = batch->mode;
    return status;
}

/* ---- Forward --------------------------------------------------------------------------------- */

static attn_status find_layer(const attn_metadata *metadata, int32_t layer_id,
                              const fanout_layer **layer, attn_error *error)
{
    *layer = fanout_find_layer(&metadata->instance->layers, layer_id);
    return *layer ? ATTN_OK
                  : attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LAYER_ID,
                                         "layer %d: accepted the layers given to create", layer_id);
}

static attn_status forward_child(attn_metadata *metadata, uint32_t half, int decode,
                                 const fanout_layer *layer, const attn_forward_args *args,
                                 attn_stream stream, attn_error *error)
{
    uint32_t c = metadata->choice[layer->child][half];
    if (c == NO_CHILD)
        return attn_util_fail_field(
            error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LAYER_ID,
            "layer %d: accepted layers to which batches of this mode and size are routed",
            layer->layer_id);
    return fanout_forward(&metadata->instance->children, c, metadata->child[half][c], decode,
                          layer->layer_id, args, stream, error);
}

/* Do the new rows of this layer lie where their queries lie? Layers without a cache have no others.
 */
static int new_rows_follow(const attn_metadata *metadata, const fanout_layer *layer)
{
    const attn_batch *batch = &metadata->slice[PICK_ROWS].batch;
    return layer->kv_group < 0 || (uint32_t)layer->kv_group >= batch->num_kv_groups ||
           slice_new_rows_follow_queries(&batch->kv_groups[layer->kv_group]);
}

/* Operands keep their rows; scales of sequences are those of the part. */
static attn_status forward_extend_rows(attn_metadata *metadata, const fanout_layer *layer,
                                       const attn_forward_args *args, attn_stream stream,
                                       attn_error *error)
{
    if (!slice_has_sequence_scales(args))
        return forward_child(metadata, PICK_WHOLE, 0, layer, args, stream, error);
    args_slice sliced;
    slice_args(args, 0, 0, &sliced);
    slice_scales(args, &metadata->slice[PICK_WHOLE], &sliced);
    return forward_child(metadata, PICK_WHOLE, 0, layer, &sliced.args, stream, error);
}

static attn_status forward_split(attn_metadata *metadata, const fanout_layer *layer,
                                 const attn_forward_args *args, attn_stream stream,
                                 attn_error *error)
{
    attn_status status = ATTN_OK;
    if (metadata->slice[PICK_WHOLE].batch.num_seqs > 0)
        status = forward_extend_rows(metadata, layer, args, stream, error);
    if (status != ATTN_OK || metadata->slice[PICK_ROWS].batch.num_seqs == 0)
        return status;
    args_slice sliced;
    slice_args(args, metadata->first_decode_row, new_rows_follow(metadata, layer), &sliced);
    if (slice_has_sequence_scales(args))
        slice_scales(args, &metadata->slice[PICK_ROWS], &sliced);
    return forward_child(metadata, PICK_ROWS, 1, layer, &sliced.args, stream, error);
}

attn_status pick_forward_extend(attn_metadata *metadata, int32_t layer_id,
                                const attn_forward_args *args, attn_stream stream,
                                attn_error *error)
{
    const fanout_layer *layer;
    attn_status status = fanout_check_planned(metadata->mode, 0, error);
    if (status != ATTN_OK || metadata->mode == ATTN_MODE_IDLE)
        return status;
    status = find_layer(metadata, layer_id, &layer, error);
    if (status != ATTN_OK)
        return status;
    return is_split(metadata, metadata->mode)
               ? forward_split(metadata, layer, args, stream, error)
               : forward_child(metadata, PICK_WHOLE, 0, layer, args, stream, error);
}

attn_status pick_forward_decode(attn_metadata *metadata, int32_t layer_id,
                                const attn_forward_args *args, attn_stream stream,
                                attn_error *error)
{
    const fanout_layer *layer;
    attn_status status = fanout_check_planned(metadata->mode, 1, error);
    if (status == ATTN_OK)
        status = find_layer(metadata, layer_id, &layer, error);
    return status == ATTN_OK ? forward_child(metadata, PICK_WHOLE, 1, layer, args, stream, error)
                             : status;
}

const attn_backend_ops pick_ops = {
    .struct_size = sizeof pick_ops,
    .destroy = fanout_op_destroy,
    .prepare = fanout_op_prepare,
    .index_forms = fanout_op_index_forms,
    .metadata_size = pick_metadata_size,
    .metadata_create = pick_metadata_create,
    .init_forward_metadata = pick_init_forward_metadata,
    .metadata_destroy = pick_metadata_destroy,
    .forward_extend = pick_forward_extend,
    .forward_decode = pick_forward_decode,
    .get_extension = fanout_op_get_extension,
};
