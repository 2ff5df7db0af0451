/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_util_batch.h: instances and their layers, memory of metadata, and batches: checks against
 * bounds, rows, keys. Part of attn_plugin_util.h, which states common rules.
 */
#ifndef ATTN_UTIL_BATCH_H
#define ATTN_UTIL_BATCH_H

#include "attn_util_verdict.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Instances ------------------------------------------------------------------------------- */

/* INVALID_ARGUMENT for missing arguments of create. */
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

/* Number of layers with this id in all problems. */
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

/* INVALID_ARGUMENT for a layer id that is negative or not unique (CAPS-11). attn_util_list_layers()
 * and attn_util_create_model() check this themselves. */
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

/* Allocate `size` bytes of host memory, aligned to 64 and not cleared; services->release() with
 * ATTN_SPACE_HOST frees it. On failure NULL, with OUT_OF_HOST_MEMORY in *error. [instance-thread &
 * !capturing] */
static inline attn_instance *attn_util_allocate_instance(const attn_services *services,
                                                         uint64_t size, attn_error *error)
{
    void *made = services->allocate(services->ctx, ATTN_SPACE_HOST, size, 64);
    if (!made)
        attn_util_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                       "no memory for an instance of %" PRIu64 " bytes", size);
    return (attn_instance *)made;
}

/* An instance's record of a layer. */
typedef struct attn_util_layer {
    int32_t layer_id;
    int32_t kv_read_only; /* 1 = its cache is another layer's (ATTN_LAYER_KV_READ_ONLY) */
} attn_util_layer;

/* Write the layers of `group` to *next and advance it; `first` is the instance's first layer.
 * INVALID_ARGUMENT for a negative or duplicate id. */
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

/* Free the result of attn_util_allocate_instance() or attn_util_create_model(). Accepts NULL.
 * [instance-thread & !capturing] */
static inline void attn_util_release(const attn_services *services, void *memory)
{
    services->release(services->ctx, ATTN_SPACE_HOST, memory);
}

/* A layer with its group's and problem's properties. */
typedef struct attn_util_model_layer {
    int32_t layer_id;
    attn_dtype dtype;       /* of q */
    attn_layer_group group; /* a copy; its pointers, which were the caller's, are NULL */
} attn_util_model_layer;

/* The layers of an instance; first member of a small plugin's struct attn_instance. */
typedef struct attn_util_model {
    const attn_services *services;
    uint32_t num_layers;
    uint32_t num_kv_groups;        /* the highest kv_group + 1 */
    int32_t max_v_head_dim;        /* of all layers */
    int32_t reserved;              /* 0 */
    attn_util_model_layer *layers; /* [num_layers], in the same allocation */
} attn_util_model;

/* The layer with this id; NULL = none. */
static inline const attn_util_model_layer *attn_util_find_layer(const attn_util_model *model,
                                                                int32_t layer_id)
{
    for (uint32_t l = 0; l < model->num_layers; l++)
        if (model->layers[l].layer_id == layer_id)
            return &model->layers[l];
    return NULL;
}

/* Does the model have a layer in this KV group? Batches may have KV groups of other backends. */
static inline int attn_util_has_kv_group(const attn_util_model *model, uint32_t kv_group)
{
    for (uint32_t l = 0; l < model->num_layers; l++)
        if ((uint32_t)model->layers[l].group.kv_group == kv_group)
            return 1;
    return 0;
}

/* Append a problem's layers. Used by attn_util_create_model(). INVALID_ARGUMENT. */
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

/* Body of create in a small plugin: makes an instance of `size` bytes, zero except for the model at
 * its start; attn_util_release() frees it. UNSUPPORTED if the type's query refuses one of the
 * problems, INVALID_ARGUMENT, OUT_OF_HOST_MEMORY; *instance is set only on success.
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

/* attn_backend_ops.index_forms of a backend that reads only block tables. [instance-thread] */
static inline uint32_t attn_util_block_tables(attn_instance *instance)
{
    (void)instance;
    return ATTN_INDEX_BLOCK_TABLE;
}

/* ---- Memory of metadata ---------------------------------------------------------------------- */

/* Copy `given` into a struct of full size. INVALID_ARGUMENT for NULL or an unknown kind
 * (ATTN_METADATA_*). */
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

/* The same on a CPU, which has no capture: CAPTURE_UNSUPPORTED for GRAPH. */
static inline attn_status attn_util_read_eager_bounds(uint32_t kind, const attn_bounds *given,
                                                      attn_bounds *bounds, attn_error *error)
{
    if (kind == ATTN_METADATA_GRAPH)
        return attn_util_fail_field(error, ATTN_CAPTURE_UNSUPPORTED, ATTN_FIELD_GRAPH_LEVEL,
                                    "graph metadata: nothing can be captured on a processor");
    return attn_util_read_bounds(kind, given, bounds, error);
}

/* Clear the caller's struct, except the member struct_size, up to that size. */
static inline void attn_util_clear_size(attn_memory_size *size)
{
    memset((char *)size + sizeof size->struct_size, 0,
           size->struct_size - sizeof size->struct_size);
}

/* Write the answer of metadata_size on a CPU, in bytes: scratch (DEVICE, SCRATCH) and the metadata
 * itself (HOST, METADATA). */
static inline void attn_util_tell_size(attn_memory_size *size, uint64_t scratch, uint64_t metadata,
                                       uint64_t alignment)
{
    attn_util_clear_size(size);
    size->size[ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH)] = scratch;
    size->alignment[ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH)] = alignment;
    size->size[ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)] = metadata;
    size->alignment[ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)] = alignment;
}

/* Check that the region (ATTN_REGION) has `needed` bytes, aligned to `alignment`. BUFFER_TOO_SMALL
 * with error->needed, or INVALID_ARGUMENT; `name` is its name in the message. */
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

/* Check memory against the sizes of attn_util_tell_size(). */
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

/* The array on a CPU, where either pointer is valid during the call. NULL = absent. */
static inline const int32_t *attn_util_i32(const attn_i32_array *array)
{
    return array->device ? array->device : array->host;
}

/* Check `got` against the bound named `field` (ATTN_FIELD_MAX_*). INVALID_ARGUMENT. */
static inline attn_status attn_util_check_count(const char *what, int64_t got, int64_t bound,
                                                uint32_t field, attn_error *error)
{
    if (got < 0 || got > bound)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field,
                                    "%s %" PRId64 ": accepted 0..%" PRId64 ", %s of this metadata",
                                    what, got, bound, attn_util_field_name(field));
    return ATTN_OK;
}

/* The same for a batch's numbers of sequences and tokens. */
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

/* INVALID_ARGUMENT if `got`, a mode or mask kind, is not in the set `set_field` (ATTN_FIELD_MODES,
 * ATTN_FIELD_MASK_KINDS) of the bounds: "mode mixed: accepted decode, extend, the bounds of this
 * metadata". */
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

/* Check that the mode is known, and IDLE or within the bounds. INVALID_ARGUMENT. */
static inline attn_status attn_util_check_mode(const attn_bounds *bounds, uint32_t mode,
                                               attn_error *error)
{
    return attn_util_check_chosen("mode", mode, ATTN_FIELD_MODES,
                                  bounds->modes | ATTN_MODE_BIT(ATTN_MODE_IDLE), ATTN_FIELD_BATCH,
                                  error);
}

/* Check the mask kind against the bounds. INVALID_ARGUMENT. */
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

/* Check q_indptr: not negative, not decreasing, not beyond the rows of the batch. INVALID_ARGUMENT.
 */
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

/* Check a batch against `bounds` without reading its arrays: counts and lengths, mode, mask kind,
 * optional parts, at least `num_kv_groups` KV groups. INVALID_ARGUMENT. */
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

/* The same on a CPU, including q_indptr and the rows of DECODE. INVALID_ARGUMENT. */
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

/* INVALID_ARGUMENT if a KV group has none of the index forms that are read, arrays included. */
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

/* Keys of each sequence in a KV group, on a CPU. */
static inline const int32_t *attn_util_kv_lens(const attn_batch *batch, const attn_kv_batch *kv)
{
    const int32_t *lens = attn_util_i32(&kv->kv_lens);
    return lens ? lens : attn_util_i32(&batch->seq_lens);
}

/* Check the keys of a KV group against the bounds: those of each sequence, and the sum in whole
 * pages. INVALID_ARGUMENT. */
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
    int32_t seq;      /* its sequence; -1 = a padding row */
    int32_t position; /* i, its position in the sequence */
} attn_util_row;

/* List the num_tokens queries of a batch that attn_util_check_batch() accepted, in the order of
 * their operand rows; the first row is attn_util_first_row(). For a CPU; ignores explicit
 * positions. */
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

/* Operand row of the batch's first query; without sequences, of its padding. */
static inline int32_t attn_util_first_row(const attn_batch *batch)
{
    const int32_t *indptr = attn_util_i32(&batch->q_indptr);
    return indptr && batch->mode != ATTN_MODE_DECODE ? indptr[0] : 0;
}

/* Keys of a sequence in a KV group. */
typedef struct attn_util_keys {
    int64_t count;     /* new ones included */
    int64_t first_new; /* earlier keys are only in the cache */
    int64_t new_row;   /* row of the first new key in k, v and out_cache_loc */
} attn_util_keys;

/* Rows of new keys of sequences [seq, seq + num_seqs): the first row and their number. */
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

/* The keys of sequence `seq`, on a CPU. */
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

/* The page of key `key` of a sequence, from the block table, on a CPU. */
static inline int32_t attn_util_find_page(const attn_kv_batch *kv, int32_t seq, int64_t key)
{
    const int32_t *table = attn_util_i32(&kv->block_table);
    return table[(int64_t)seq * kv->block_table_stride + key / kv->page_size];
}

/* First member of a small CPU plugin's struct attn_metadata. */
typedef struct attn_util_plan {
    const attn_util_model *model;
    attn_bounds bounds;
    attn_batch batch;      /* from the last init_forward_metadata; its structs are the caller's */
    attn_kv_batch *kv;     /* [num_kv_groups] copies */
    attn_util_row *rows;   /* [num_tokens] */
    int32_t planned;       /* 0 = no batch yet, or the last one was refused */
    uint32_t mask_kind;    /* ATTN_MASK_* */
    char *scratch;         /* [num_workers, worker_bytes] */
    uint64_t worker_bytes; /* a multiple of 64 */
} attn_util_plan;

/* Compute the memory of metadata for `kind` and `bounds`. *size begins as the size of a struct that
 * starts with a plan, and becomes that of the struct with its arrays; *worker_bytes, the scratch
 * per worker, is rounded up to a multiple of 64. Writes a copy of the bounds. UNSUPPORTED beyond
 * the limits, CAPTURE_UNSUPPORTED, INVALID_ARGUMENT. */
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

/* metadata_create of a small plugin, with the arguments of attn_util_size_plan(). *metadata is in
 * the caller's memory, zero except for the plan at its start, so destroy has nothing to free. The
 * same errors, and BUFFER_TOO_SMALL. [instance-thread & !capturing] */
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

/* attn_backend_ops.init_forward_metadata for metadata that attn_util_create_plan() made: reads the
 * batch, checks it (attn_util_check_batch(), and attn_util_check_kv() for the model's KV groups)
 * and lists its rows. After INVALID_ARGUMENT there is no batch. [instance-thread & !capturing] */
static inline attn_status attn_util_init_plan(attn_metadata *metadata, const attn_batch *batch,
                                              attn_stream stream, attn_error *error)
{
    attn_util_plan *plan = (attn_util_plan *)(void *)metadata;
    const attn_util_model *model = plan->model;
    (void)stream; /* on a CPU the work is complete when the call returns */
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

/* attn_backend_ops.metadata_destroy for the same, whose memory is the caller's. [instance-thread &
 * !capturing] */
static inline void attn_util_destroy_plan(attn_metadata *metadata)
{
    (void)metadata;
}

/* BAD_STATE if no batch is planned, or if forward_decode (`decode`) or forward_extend does not
 * serve its mode. Both accept IDLE. */
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

/* Run `count` tasks on the host's workers; a single task runs on the calling thread. A task's error
 * is returned as a failure of parallel_for. [instance-thread] */
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
