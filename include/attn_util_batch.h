/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_util_batch.h: instances and their layers, the memory of metadata, and batches: within
 * bounds? whose rows, which keys? A part of attn_plugin_util.h, which says what holds for all of
 * it.
 */
#ifndef ATTN_UTIL_BATCH_H
#define ATTN_UTIL_BATCH_H

#include "attn_util_verdict.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Instances ------------------------------------------------------------------------------- */

/* INVALID_ARGUMENT for arguments of create that are missing. */
static inline attn_status attn_util_require_create(const attn_problem *problems,
                                                   uint32_t num_problems,
                                                   const attn_services *services,
                                                   attn_instance *const *instance,
                                                   attn_error *error)
{
    if (!problems || num_problems == 0 || !services || !instance)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT,
                              "problems, services or instance is missing");
    return ATTN_OK;
}

/* UNSUPPORTED for more than `most` layer groups. */
static inline attn_status attn_util_require_groups(uint32_t num_problems, uint32_t most,
                                                   attn_error *error)
{
    if (num_problems > most)
        return attn_util_fail(error, ATTN_UNSUPPORTED, "%u layer groups: accepted 1..%u",
                              num_problems, most);
    return ATTN_OK;
}

/* How many of the problems' layers have this id. */
static inline uint32_t attn_util_count_layer_id(const attn_problem *problems, uint32_t num_problems,
                                                int32_t layer_id)
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < num_problems; p++) {
        const attn_layer_group *group = ((const attn_problem *)attn_at(problems, p))->group;
        for (uint32_t n = 0; n < group->num_layers; n++)
            count += ((const attn_layer *)attn_at(group->layers, n))->layer_id == layer_id;
    }
    return count;
}

/* INVALID_ARGUMENT for an id of a layer that is below 0, or that two layers have (CAPS-11).
 * attn_util_list_layers() and attn_util_create_model() look at it themselves. */
static inline attn_status attn_util_require_layer_ids(const attn_problem *problems,
                                                      uint32_t num_problems, attn_error *error)
{
    for (uint32_t p = 0; p < num_problems; p++) {
        const attn_layer_group *group = ((const attn_problem *)attn_at(problems, p))->group;
        for (uint32_t n = 0; n < group->num_layers; n++) {
            int32_t id = ((const attn_layer *)attn_at(group->layers, n))->layer_id;
            if (id < 0 || attn_util_count_layer_id(problems, num_problems, id) > 1)
                return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LAYER_ID,
                                            "layer_id %d twice, or below 0", id);
        }
    }
    return ATTN_OK;
}

/* `size` bytes of host memory, aligned to 64 and not cleared, for services->release() of
 * ATTN_SPACE_HOST to free; NULL, with OUT_OF_HOST_MEMORY in *error.
 * [instance-thread & !capturing] */
static inline attn_instance *attn_util_allocate_instance(const attn_services *services,
                                                         uint64_t size, attn_error *error)
{
    void *made = services->allocate(services->ctx, ATTN_SPACE_HOST, size, 64);
    if (!made)
        attn_util_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                       "no memory for an instance of %" PRIu64 " bytes", size);
    return (attn_instance *)made;
}

/* A layer as an instance remembers it. */
typedef struct attn_util_layer {
    int32_t layer_id;
    int32_t kv_read_only; /* 1 = its cache is another layer's (ATTN_LAYER_KV_READ_ONLY) */
} attn_util_layer;

/* Write the layers of `group` to *next, which moves past them; `first` is the instance's first
 * one. INVALID_ARGUMENT for an id that is given twice, or below 0. */
static inline attn_status attn_util_list_layers(const attn_layer_group *group,
                                                const attn_util_layer *first,
                                                attn_util_layer **next, attn_error *error)
{
    for (uint32_t n = 0; n < group->num_layers; n++, ++*next) {
        const attn_layer *layer = (const attn_layer *)attn_at(group->layers, n);
        (*next)->layer_id = layer->layer_id;
        (*next)->kv_read_only = (layer->flags & ATTN_LAYER_KV_READ_ONLY) != 0;
        for (const attn_util_layer *other = first; other <= *next; other++)
            if (layer->layer_id < 0 || (other != *next && other->layer_id == layer->layer_id))
                return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LAYER_ID,
                                            "layer_id %d twice, or below 0", layer->layer_id);
    }
    return ATTN_OK;
}

/* Free what attn_util_allocate_instance() or attn_util_create_model() made; NULL is accepted.
 * [instance-thread & !capturing] */
static inline void attn_util_release(const attn_services *services, void *memory)
{
    services->release(services->ctx, ATTN_SPACE_HOST, memory);
}

/* A layer with all that its problem says of it. */
typedef struct attn_util_model_layer {
    int32_t layer_id;
    attn_dtype dtype;       /* of q */
    attn_layer_group group; /* a copy, whose pointers are NULL: they were the caller's */
} attn_util_model_layer;

/* The layers of an instance; what a small plugin's struct attn_instance begins with. */
typedef struct attn_util_model {
    const attn_services *services;
    uint32_t num_layers;
    uint32_t num_kv_groups;        /* the highest kv_group + 1 */
    int32_t max_v_head_dim;        /* of all layers */
    int32_t reserved;              /* 0 */
    attn_util_model_layer *layers; /* [num_layers], in the same memory */
} attn_util_model;

/* The layer of an id; NULL = none. */
static inline const attn_util_model_layer *attn_util_find_layer(const attn_util_model *model,
                                                                int32_t layer_id)
{
    for (uint32_t l = 0; l < model->num_layers; l++)
        if (model->layers[l].layer_id == layer_id)
            return &model->layers[l];
    return NULL;
}

/* Has the model a layer in this KV group? A batch may bring groups of other backends' layers. */
static inline int attn_util_has_kv_group(const attn_util_model *model, uint32_t kv_group)
{
    for (uint32_t l = 0; l < model->num_layers; l++)
        if ((uint32_t)model->layers[l].group.kv_group == kv_group)
            return 1;
    return 0;
}

/* Append a problem's layers. For attn_util_create_model(). INVALID_ARGUMENT. */
static inline attn_status attn_util_add_problem(attn_util_model *model, const attn_problem *problem,
                                                attn_error *error)
{
    attn_layer_group group;
    ATTN_UTIL_READ(&group, problem->group);
    for (uint32_t n = 0; n < group.num_layers; n++) {
        int32_t id = ((const attn_layer *)attn_at(group.layers, n))->layer_id;
        if (id < 0 || attn_util_find_layer(model, id))
            return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LAYER_ID,
                                        "layer_id %d twice, or below 0", id);
        attn_util_model_layer *added = &model->layers[model->num_layers++];
        added->layer_id = id;
        added->dtype = problem->q_dtype;
        added->group = group;
        added->group.layers = NULL;
        added->group.mla = NULL;
        added->group.linear = NULL;
        added->group.sparse = NULL;
    }
    if ((uint32_t)group.kv_group >= model->num_kv_groups)
        model->num_kv_groups = (uint32_t)group.kv_group + 1;
    if (group.v_head_dim > model->max_v_head_dim)
        model->max_v_head_dim = group.v_head_dim;
    return ATTN_OK;
}

/* What create does in a small plugin: an instance of `size` bytes, zero but for the model that it
 * begins with; attn_util_release() frees it. UNSUPPORTED if the type's query says no to one of the
 * problems, INVALID_ARGUMENT, OUT_OF_HOST_MEMORY; *instance is set on success alone.
 * [instance-thread & !capturing] */
static inline attn_status attn_util_create_model(const attn_backend_type *type,
                                                 const attn_problem *problems,
                                                 uint32_t num_problems, const attn_options *options,
                                                 const attn_services *services, uint64_t size,
                                                 attn_instance **instance, attn_error *error)
{
    attn_status status =
        attn_util_require_create(problems, num_problems, services, instance, error);
    for (uint32_t p = 0; p < num_problems && status == ATTN_OK; p++)
        status = attn_util_require_support(type, options, services,
                                           (const attn_problem *)attn_at(problems, p), error);
    if (status != ATTN_OK)
        return status;
    uint64_t head = (size + 63) / 64 * 64;
    uint64_t layers =
        (uint64_t)attn_util_count_layers(problems, num_problems) * sizeof(attn_util_model_layer);
    attn_instance *made = attn_util_allocate_instance(services, head + layers, error);
    if (!made)
        return ATTN_OUT_OF_HOST_MEMORY;
    attn_util_model *model = (attn_util_model *)(void *)made;
    memset((void *)made, 0, (size_t)(head + layers));
    model->services = services;
    model->layers = (attn_util_model_layer *)(void *)((char *)(void *)made + head);
    for (uint32_t p = 0; p < num_problems && status == ATTN_OK; p++)
        status = attn_util_add_problem(model, (const attn_problem *)attn_at(problems, p), error);
    if (status == ATTN_OK)
        *instance = made;
    else
        attn_util_release(services, made);
    return status;
}

/* attn_backend_ops.destroy of an instance that attn_util_create_model() made.
 * [instance-thread & !capturing] */
static inline void attn_util_destroy_model(attn_instance *instance)
{
    if (instance)
        attn_util_release(((attn_util_model *)(void *)instance)->services, instance);
}

/* attn_backend_ops.index_forms of a backend that reads block tables alone. [instance-thread] */
static inline uint32_t attn_util_block_tables(attn_instance *instance)
{
    (void)instance;
    return ATTN_INDEX_BLOCK_TABLE;
}

/* ---- Memory of metadata ---------------------------------------------------------------------- */

/* `given` in a struct of ours. INVALID_ARGUMENT for none, or for a kind (ATTN_METADATA_*) that is
 * not known. */
static inline attn_status attn_util_read_bounds(uint32_t kind, const attn_bounds *given,
                                                attn_bounds *bounds, attn_error *error)
{
    if (kind > ATTN_METADATA_GRAPH)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata kind %u: accepted 0, 1",
                              kind);
    if (!given)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "bounds are NULL");
    ATTN_UTIL_READ(bounds, given);
    return ATTN_OK;
}

/* The same on a processor, where nothing is captured: CAPTURE_UNSUPPORTED for GRAPH. */
static inline attn_status attn_util_read_eager_bounds(uint32_t kind, const attn_bounds *given,
                                                      attn_bounds *bounds, attn_error *error)
{
    if (kind == ATTN_METADATA_GRAPH)
        return attn_util_fail_field(error, ATTN_CAPTURE_UNSUPPORTED, ATTN_FIELD_GRAPH_LEVEL,
                                    "graph metadata: nothing can be captured on a processor");
    return attn_util_read_bounds(kind, given, bounds, error);
}

/* Clear the caller's struct after its struct_size, as far as that goes. */
static inline void attn_util_clear_size(attn_memory_size *size)
{
    memset((char *)size + sizeof size->struct_size, 0,
           size->struct_size - sizeof size->struct_size);
}

/* The answer of metadata_size on a processor, in bytes: scratch (DEVICE, SCRATCH), and the
 * metadata itself (HOST, METADATA). */
static inline void attn_util_tell_size(attn_memory_size *size, uint64_t scratch, uint64_t metadata,
                                       uint64_t alignment)
{
    attn_util_clear_size(size);
    size->size[ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH)] = scratch;
    size->alignment[ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH)] = alignment;
    size->size[ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)] = metadata;
    size->alignment[ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)] = alignment;
}

/* Has the region (ATTN_REGION) `needed` bytes, aligned to `alignment`? BUFFER_TOO_SMALL with
 * error->needed, or INVALID_ARGUMENT; `name` is what the message calls it. */
static inline attn_status attn_util_check_region(const attn_memory *memory, uint32_t region,
                                                 const char *name, uint64_t needed,
                                                 uint64_t alignment, attn_error *error)
{
    if (memory->size[region] < needed || !memory->base[region]) {
        if (error && ATTN_HAS(error, attn_error, needed))
            error->needed = needed;
        return attn_util_fail_field(error, ATTN_BUFFER_TOO_SMALL, ATTN_FIELD_MEMORY,
                                    "%s is %" PRIu64 " bytes: accepted %" PRIu64 " and more", name,
                                    memory->size[region], needed);
    }
    if ((uintptr_t)memory->base[region] % alignment != 0)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_MEMORY,
                                    "%s is not aligned to %" PRIu64 " bytes", name, alignment);
    return ATTN_OK;
}

/* Has memory what attn_util_tell_size() said? */
static inline attn_status attn_util_check_told(const attn_memory *memory, uint64_t scratch,
                                               uint64_t metadata, uint64_t alignment,
                                               attn_error *error)
{
    attn_status status =
        attn_util_check_region(memory, ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH),
                               "device scratch", scratch, alignment, error);
    if (status == ATTN_OK)
        status = attn_util_check_region(memory, ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA),
                                        "host metadata", metadata, alignment, error);
    return status;
}

/* ---- Batches --------------------------------------------------------------------------------- */

/* For the processor, where both are the same memory; either will do while the call lasts. NULL =
 * not given. */
static inline const int32_t *attn_util_i32(const attn_i32_array *array)
{
    return array->device ? array->device : array->host;
}

/* Is `got` within the bound, whose name is `field` (ATTN_FIELD_MAX_*)? INVALID_ARGUMENT. */
static inline attn_status attn_util_check_count(const char *what, int64_t got, int64_t bound,
                                                uint32_t field, attn_error *error)
{
    if (got < 0 || got > bound)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field,
                                    "%s %" PRId64 ": accepted 0..%" PRId64 ", %s of this metadata",
                                    what, got, bound, attn_util_field_name(field));
    return ATTN_OK;
}

/* The same for a batch's sequences and tokens. */
static inline attn_status attn_util_check_counts(const attn_bounds *bounds, const attn_batch *batch,
                                                 attn_error *error)
{
    attn_status status = attn_util_check_count("num_seqs", batch->num_seqs, bounds->max_seqs,
                                               ATTN_FIELD_MAX_SEQS, error);
    if (status == ATTN_OK)
        status = attn_util_check_count("num_tokens", batch->num_tokens, bounds->max_tokens,
                                       ATTN_FIELD_MAX_TOKENS, error);
    return status;
}

/* INVALID_ARGUMENT if `got`, the number of a mode or of a kind of mask, is not one of the set that
 * the bounds have in `set_field` (ATTN_FIELD_MODES, ATTN_FIELD_MASK_KINDS): "mode mixed: accepted
 * decode, extend, the bounds of this metadata". */
static inline attn_status attn_util_check_chosen(const char *what, uint32_t got, uint32_t set_field,
                                                 uint32_t set, uint32_t error_field,
                                                 attn_error *error)
{
    const char *name = attn_util_member_name(set_field, got);
    char accepted[160], number[16];
    if (name && set >> got & 1u)
        return ATTN_OK;
    snprintf(number, sizeof number, "%" PRIu32, got);
    attn_util_set_text(set_field, set, accepted, sizeof accepted);
    return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, error_field,
                                "%s %s: accepted %s, the bounds of this metadata", what,
                                name ? name : number, accepted);
}

/* Is the mode known, and IDLE or within the bounds? INVALID_ARGUMENT. */
static inline attn_status attn_util_check_mode(const attn_bounds *bounds, uint32_t mode,
                                               attn_error *error)
{
    return attn_util_check_chosen("mode", mode, ATTN_FIELD_MODES,
                                  bounds->modes | ATTN_MODE_BIT(ATTN_MODE_IDLE), ATTN_FIELD_BATCH,
                                  error);
}

/* Is the kind of mask within the bounds? INVALID_ARGUMENT. */
static inline attn_status attn_util_check_mask_kind(const attn_bounds *bounds, uint32_t kind,
                                                    attn_error *error)
{
    return attn_util_check_chosen("mask kind", kind, ATTN_FIELD_MASK_KINDS, bounds->mask_kinds,
                                  ATTN_FIELD_MASK_KINDS, error);
}

/* The kind of a batch's mask (ATTN_MASK_*). */
static inline uint32_t attn_util_mask_kind(const attn_batch *batch)
{
    return batch->mask ? batch->mask->kind : (uint32_t)ATTN_MASK_LAYER;
}

/* Rows of queries as q_indptr lists them: none that is below 0, falls, or is one too many.
 * INVALID_ARGUMENT. */
static inline attn_status attn_util_check_indptr(const attn_batch *batch, attn_error *error)
{
    const int32_t *indptr = attn_util_i32(&batch->q_indptr);
    if (batch->mode == ATTN_MODE_DECODE || batch->num_seqs == 0)
        return ATTN_OK;
    for (int32_t s = 0; s < batch->num_seqs; s++)
        if (indptr[s] < 0 || indptr[s + 1] < indptr[s])
            return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH,
                                        "q_indptr[%d] %d and the next %d: accepted 0 and more, "
                                        "not decreasing",
                                        s, indptr[s], indptr[s + 1]);
    if (indptr[batch->num_seqs] - indptr[0] > batch->num_tokens)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH,
                                    "q_indptr covers %d rows: accepted 0..%d",
                                    indptr[batch->num_seqs] - indptr[0], batch->num_tokens);
    return ATTN_OK;
}

/* Is a batch what metadata for `bounds` is made for, as far as it can be seen without its arrays:
 * counts and lengths, mode, kind of mask, optional parts, at least `num_kv_groups` KV groups?
 * INVALID_ARGUMENT. */
static inline attn_status attn_util_check_scalars(const attn_bounds *bounds,
                                                  const attn_batch *batch, uint32_t num_kv_groups,
                                                  attn_error *error)
{
    attn_status status = attn_util_check_counts(bounds, batch, error);
    if (status == ATTN_OK)
        status = attn_util_check_count("max_q_len", batch->max_q_len, bounds->max_q_len,
                                       ATTN_FIELD_MAX_Q_LEN, error);
    if (status == ATTN_OK)
        status = attn_util_check_count("max_kv_len", batch->max_kv_len, bounds->max_kv_len,
                                       ATTN_FIELD_MAX_KV_LEN, error);
    if (status == ATTN_OK)
        status = attn_util_check_mode(bounds, batch->mode, error);
    if (status == ATTN_OK)
        status = attn_util_check_mask_kind(bounds, attn_util_mask_kind(batch), error);
    if (status != ATTN_OK)
        return status;
    if ((attn_util_i32(&batch->positions) && !(bounds->uses & ATTN_USES_POSITIONS)) ||
        (batch->multi_item && !(bounds->uses & ATTN_USES_MULTI_ITEM)))
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_USES,
                                    "positions or multi_item: not among the uses of the bounds");
    if (batch->num_kv_groups < num_kv_groups)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH,
                                    "batch has %u KV groups: accepted %u and more",
                                    batch->num_kv_groups, num_kv_groups);
    return ATTN_OK;
}

/* The same on a processor, q_indptr and the rows of DECODE included. INVALID_ARGUMENT. */
static inline attn_status attn_util_check_batch(const attn_bounds *bounds, const attn_batch *batch,
                                                uint32_t num_kv_groups, attn_error *error)
{
    attn_status status = attn_util_check_scalars(bounds, batch, num_kv_groups, error);
    if (status != ATTN_OK)
        return status;
    if (batch->mode == ATTN_MODE_DECODE && batch->num_tokens != batch->num_seqs)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH,
                                    "num_tokens %d in DECODE: accepted %d", batch->num_tokens,
                                    batch->num_seqs);
    return attn_util_check_indptr(batch, error);
}

/* INVALID_ARGUMENT: of the forms of a KV group's indices, arrays included, none is one that is
 * read.
 */
static inline attn_status attn_util_fail_index_forms(int32_t kv_group, uint32_t got,
                                                     uint32_t accepted, attn_error *error)
{
    char forms[64], wanted[64];
    attn_util_set_text(ATTN_FIELD_INDEX_FORMS, got, forms, sizeof forms);
    attn_util_set_text(ATTN_FIELD_INDEX_FORMS, accepted, wanted, sizeof wanted);
    return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH,
                                "index_forms of KV group %d are %s, arrays included: accepted one "
                                "of %s",
                                kv_group, forms, wanted);
}

/* Keys of each sequence in a KV group, on a processor. */
static inline const int32_t *attn_util_kv_lens(const attn_batch *batch, const attn_kv_batch *kv)
{
    const int32_t *lens = attn_util_i32(&kv->kv_lens);
    return lens ? lens : attn_util_i32(&batch->seq_lens);
}

/* Are the keys of a KV group within the bounds, each sequence and all of them in whole pages?
 * INVALID_ARGUMENT. */
static inline attn_status attn_util_check_kv(const attn_bounds *bounds, const attn_batch *batch,
                                             const attn_kv_batch *kv, attn_error *error)
{
    const int32_t *lens = attn_util_kv_lens(batch, kv);
    int64_t kv_tokens = 0;
    if (kv->page_size < 1)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_PAGE_SIZE,
                                    "page_size %d: accepted 1 and more", kv->page_size);
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        if (lens[s] < 0 || lens[s] > bounds->max_kv_len)
            return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_MAX_KV_LEN,
                                        "sequence %d of %d keys: accepted 0..%d, max_kv_len of "
                                        "this metadata",
                                        s, lens[s], bounds->max_kv_len);
        kv_tokens += ((int64_t)lens[s] + kv->page_size - 1) / kv->page_size * kv->page_size;
    }
    return attn_util_check_count("keys in whole pages", kv_tokens, bounds->max_kv_tokens,
                                 ATTN_FIELD_MAX_KV_TOKENS, error);
}

/* A query of a batch. */
typedef struct attn_util_row {
    int32_t seq;      /* its sequence; -1 = a row of padding, which has none */
    int32_t position; /* i, where it sits in the sequence */
} attn_util_row;

/* List the batch's num_tokens queries, of a batch that attn_util_check_batch() took, in the order
 * of their rows of the operands, of which the first is attn_util_first_row(). On a processor;
 * explicit positions are not looked at. */
static inline void attn_util_list_rows(const attn_batch *batch, attn_util_row *rows)
{
    const int32_t *indptr = attn_util_i32(&batch->q_indptr);
    int32_t count = 0;
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        int decode = batch->mode == ATTN_MODE_DECODE;
        int32_t queries = decode ? 1 : indptr[s + 1] - indptr[s];
        int32_t first =
            decode ? attn_util_i32(&batch->seq_lens)[s] - 1 : attn_util_i32(&batch->prefix_lens)[s];
        for (int32_t t = 0; t < queries; t++, count++) {
            rows[count].seq = s;
            rows[count].position = first + t;
        }
    }
    for (; count < batch->num_tokens; count++) {
        rows[count].seq = -1;
        rows[count].position = 0;
    }
}

/* Where in the operands the batch's queries begin, or, where it has no sequence, its padding. */
static inline int32_t attn_util_first_row(const attn_batch *batch)
{
    const int32_t *indptr = attn_util_i32(&batch->q_indptr);
    return indptr && batch->mode != ATTN_MODE_DECODE ? indptr[0] : 0;
}

/* Keys of a sequence in a KV group. */
typedef struct attn_util_keys {
    int64_t count;     /* the new ones included */
    int64_t first_new; /* those before it are in the cache alone */
    int64_t new_row;   /* the row of k, v and out_cache_loc of the first new one */
} attn_util_keys;

/* Rows of new keys: the first, and how many, of sequences [seq, seq + num_seqs). */
static inline void attn_util_new_rows(const attn_batch *batch, const attn_kv_batch *kv, int32_t seq,
                                      int32_t num_seqs, int64_t *first, int64_t *count)
{
    const int32_t *indptr = attn_util_i32(&kv->kv_new_indptr);
    if (!indptr && batch->mode != ATTN_MODE_DECODE)
        indptr = attn_util_i32(&batch->q_indptr);
    if (num_seqs == 0)
        indptr = NULL;
    *first = indptr ? indptr[seq] : seq;
    *count = indptr ? (int64_t)indptr[seq + num_seqs] - indptr[seq] : num_seqs;
}

/* The keys of sequence `seq`, on a processor. */
static inline attn_util_keys attn_util_find_keys(const attn_batch *batch, const attn_kv_batch *kv,
                                                 int32_t seq)
{
    attn_util_keys keys;
    int64_t num_new;
    keys.count = attn_util_kv_lens(batch, kv)[seq];
    attn_util_new_rows(batch, kv, seq, 1, &keys.new_row, &num_new);
    keys.first_new = keys.count - num_new;
    return keys;
}

/* The page of key `key` of a sequence, by the block table, on a processor. */
static inline int32_t attn_util_find_page(const attn_kv_batch *kv, int32_t seq, int64_t key)
{
    const int32_t *table = attn_util_i32(&kv->block_table);
    return table[(int64_t)seq * kv->block_table_stride + key / kv->page_size];
}

/* What a small plugin's struct attn_metadata begins with, on a processor. */
typedef struct attn_util_plan {
    const attn_util_model *model;
    attn_bounds bounds;
    attn_batch batch;      /* of the last init_forward_metadata; its structs are the caller's */
    attn_kv_batch *kv;     /* [num_kv_groups] copies */
    attn_util_row *rows;   /* [num_tokens] */
    int32_t planned;       /* 0 = there is no batch yet, or the last one was refused */
    uint32_t mask_kind;    /* ATTN_MASK_* */
    char *scratch;         /* [num_workers, worker_bytes] */
    uint64_t worker_bytes; /* a multiple of 64 */
} attn_util_plan;

/* What metadata for `kind` and `bounds` takes: a struct of `size` bytes that begins with a plan,
 * and its arrays; scratch of `worker_bytes` for each worker, which become a multiple of 64. Writes
 * a copy of the bounds. UNSUPPORTED beyond the limits, CAPTURE_UNSUPPORTED, INVALID_ARGUMENT. */
static inline attn_status attn_util_measure_plan(const attn_util_limits *limits,
                                                 const attn_util_model *model, uint32_t kind,
                                                 const attn_bounds *given, attn_bounds *bounds,
                                                 uint64_t *size, uint64_t *worker_bytes,
                                                 attn_error *error)
{
    attn_status status = attn_util_read_eager_bounds(kind, given, bounds, error);
    if (status == ATTN_OK)
        status = attn_util_require_bounds(limits, bounds, error);
    if (status != ATTN_OK)
        return status;
    *worker_bytes = (*worker_bytes + 63) / 64 * 64;
    *size = (*size + 63) / 64 * 64;
    *size += model->num_kv_groups * (uint64_t)sizeof(attn_kv_batch) +
             (uint64_t)bounds->max_tokens * sizeof(attn_util_row);
    return ATTN_OK;
}

/* metadata_size of a small plugin. Errors are attn_util_measure_plan()'s.
 * [instance-thread & !capturing] */
static inline attn_status attn_util_size_plan(const attn_util_limits *limits,
                                              const attn_util_model *model, uint32_t kind,
                                              const attn_bounds *given, uint64_t size,
                                              uint64_t worker_bytes, attn_memory_size *memory_size,
                                              attn_error *error)
{
    attn_bounds bounds;
    attn_status status =
        attn_util_measure_plan(limits, model, kind, given, &bounds, &size, &worker_bytes, error);
    if (status == ATTN_OK)
        attn_util_tell_size(memory_size, model->services->num_workers * worker_bytes, size, 64);
    return status;
}

/* metadata_create of a small plugin, with the arguments that attn_util_size_plan() had: *metadata
 * lies in the caller's memory, zero but for the plan it begins with, so there is nothing to
 * destroy. The same errors, and BUFFER_TOO_SMALL. [instance-thread & !capturing] */
static inline attn_status attn_util_create_plan(const attn_util_limits *limits,
                                                const attn_util_model *model, uint32_t kind,
                                                const attn_bounds *given, uint64_t size,
                                                uint64_t worker_bytes, const attn_memory *memory,
                                                attn_metadata **metadata, attn_error *error)
{
    attn_bounds bounds;
    uint64_t head = (size + 63) / 64 * 64;
    attn_status status =
        attn_util_measure_plan(limits, model, kind, given, &bounds, &size, &worker_bytes, error);
    if (status == ATTN_OK)
        status = attn_util_check_told(memory, model->services->num_workers * worker_bytes, size, 64,
                                      error);
    if (status != ATTN_OK)
        return status;
    void *made = memory->base[ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)];
    attn_util_plan *plan = (attn_util_plan *)made;
    memset(made, 0, (size_t)head);
    plan->model = model;
    plan->bounds = bounds;
    plan->kv = (attn_kv_batch *)(void *)((char *)made + head);
    plan->rows = (attn_util_row *)(void *)(plan->kv + model->num_kv_groups);
    plan->scratch = (char *)memory->base[ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH)];
    plan->worker_bytes = worker_bytes;
    *metadata = (attn_metadata *)made;
    return ATTN_OK;
}

/* attn_backend_ops.init_forward_metadata of metadata that attn_util_create_plan() made: read the
 * batch, check it (attn_util_check_batch(), and attn_util_check_kv() for the model's KV groups) and
 * list its rows. INVALID_ARGUMENT, after which there is no batch. [instance-thread & !capturing] */
static inline attn_status attn_util_init_plan(attn_metadata *metadata, const attn_batch *batch,
                                              attn_stream stream, attn_error *error)
{
    attn_util_plan *plan = (attn_util_plan *)(void *)metadata;
    const attn_util_model *model = plan->model;
    (void)stream; /* on a processor all is done when the call returns */
    plan->planned = 0;
    ATTN_UTIL_READ(&plan->batch, batch);
    attn_status status =
        attn_util_check_batch(&plan->bounds, &plan->batch, model->num_kv_groups, error);
    for (uint32_t g = 0; g < model->num_kv_groups && status == ATTN_OK; g++) {
        ATTN_UTIL_READ(&plan->kv[g], attn_at(plan->batch.kv_groups, g));
        if (attn_util_has_kv_group(model, g))
            status = attn_util_check_kv(&plan->bounds, &plan->batch, &plan->kv[g], error);
    }
    if (status != ATTN_OK)
        return status;
    plan->mask_kind = attn_util_mask_kind(&plan->batch);
    attn_util_list_rows(&plan->batch, plan->rows);
    plan->planned = 1;
    return ATTN_OK;
}

/* attn_backend_ops.metadata_destroy of the same, which lies in the caller's memory.
 * [instance-thread & !capturing] */
static inline void attn_util_destroy_plan(attn_metadata *metadata)
{
    (void)metadata;
}

/* Can a batch of `mode`, if one is planned, be run by forward_decode (`decode`) or by
 * forward_extend? Both take IDLE. BAD_STATE. */
static inline attn_status attn_util_check_forward(int planned, uint32_t mode, int decode,
                                                  attn_error *error)
{
    if (!planned)
        return attn_util_fail(error, ATTN_BAD_STATE, "forward before a batch was planned");
    if (mode != ATTN_MODE_IDLE && decode != (mode == ATTN_MODE_DECODE))
        return attn_util_fail(error, ATTN_BAD_STATE, "%s for a batch of mode %u",
                              decode ? "forward_decode" : "forward_extend", mode);
    return ATTN_OK;
}

/* Run `count` tasks on the host's workers; a single one here. What a task returns, reported as a
 * failure of parallel_for. [instance-thread] */
static inline attn_status attn_util_run_tasks(const attn_services *services, int64_t count,
                                              attn_task task, void *arg, attn_error *error)
{
    attn_status status = ATTN_OK;
    if (count == 1)
        status = task(arg, 0, 0);
    else if (count > 1)
        status = services->parallel_for(services->ctx, count, task, arg);
    if (status == ATTN_OK)
        return ATTN_OK;
    return attn_util_fail(error, status, "parallel_for failed with status %d", status);
}

#ifdef __cplusplus
}
#endif

#endif /* ATTN_UTIL_BATCH_H */
