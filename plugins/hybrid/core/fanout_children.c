/* SPDX-License-Identifier: Apache-2.0
 *
 * fanout_children.c: the part of fanout.h that has to do with children that were made: their life,
 * their metadata, the layers they serve, the batches they are given.
 */
#include "fanout.h"

#include "attn_plugin_util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Layers ---------------------------------------------------------------------------------- */

static const attn_layer_group *group_at(const attn_problem *problems, uint32_t p)
{
    return ((const attn_problem *)attn_at(problems, p))->group;
}

static int by_id(const void *a, const void *b)
{
    int32_t first = ((const fanout_layer *)a)->layer_id;
    int32_t second = ((const fanout_layer *)b)->layer_id;
    return (first > second) - (first < second);
}

static uint32_t who_serves(fanout_serves serves, const void *ctx, uint32_t num_children,
                           const attn_layer_group *group, const attn_layer *layer)
{
    uint32_t c = 0;
    while (serves && c + 1 < num_children && !serves(ctx, c, group, layer))
        c++;
    return c;
}

void fanout_list_layers(const attn_problem *problems, uint32_t num_problems, fanout_serves serves,
                        const void *ctx, uint32_t num_children, fanout_layers *layers)
{
    layers->count = 0;
    layers->groups = (slice_groups){0};
    for (uint32_t p = 0; p < num_problems; p++) {
        const attn_layer_group *group = group_at(problems, p);
        slice_groups_add(&layers->groups, group);
        for (uint32_t l = 0; l < group->num_layers; l++) {
            const attn_layer *layer = attn_at(group->layers, l);
            layers->items[layers->count++] =
                (fanout_layer){.layer_id = layer->layer_id,
                               .kv_group = group->kv_group,
                               .child = who_serves(serves, ctx, num_children, group, layer),
                               .group = p};
        }
    }
    qsort(layers->items, layers->count, sizeof *layers->items, by_id);
}

/* ---- Life ------------------------------------------------------------------------------------ */

/* The problems of one child while it is made. */
struct child_problems {
    child_problem *narrowed; /* [num_problems] */
    attn_problem *list;      /* the ones it is made for */
    uint32_t count;
};

static attn_status list_problems(const attn_services *services, uint32_t c,
                                 const attn_problem *problems, uint32_t num_problems,
                                 fanout_route route, const void *ctx, struct child_problems *mine,
                                 attn_error *error)
{
    size_t bytes = num_problems * sizeof *mine->narrowed;
    mine->count = 0;
    mine->narrowed = services->allocate(services->ctx, ATTN_SPACE_HOST, bytes, 16);
    mine->list =
        services->allocate(services->ctx, ATTN_SPACE_HOST, num_problems * sizeof *mine->list, 16);
    if (mine->narrowed)
        memset(mine->narrowed, 0, bytes);
    if (!mine->narrowed || !mine->list)
        return attn_util_fail(error, ATTN_OUT_OF_HOST_MEMORY, "%u layer groups", num_problems);
    for (uint32_t p = 0; p < num_problems; p++) {
        int asked = 0;
        attn_status status = route(ctx, c, attn_at(problems, p), &mine->narrowed[p], &asked, error);
        if (status != ATTN_OK)
            return status;
        if (asked)
            mine->list[mine->count++] = mine->narrowed[p].problem;
    }
    return ATTN_OK;
}

static void free_problems(const attn_services *services, uint32_t num_problems,
                          struct child_problems *mine)
{
    for (uint32_t p = 0; mine->narrowed && p < num_problems; p++)
        fanout_problem_finish(services, &mine->narrowed[p]);
    services->release(services->ctx, ATTN_SPACE_HOST, mine->list);
    services->release(services->ctx, ATTN_SPACE_HOST, mine->narrowed);
}

attn_status fanout_create(fanout *children, uint32_t c, const char *name,
                          const attn_problem *problems, uint32_t num_problems, fanout_route route,
                          const void *ctx, attn_error *error)
{
    const attn_services *services = children->services;
    fanout_child *child = &children->children[c];
    attn_child made = {.struct_size = sizeof made};
    struct child_problems mine;
    snprintf(child->name, sizeof child->name, "%s", name);
    attn_status status =
        list_problems(services, c, problems, num_problems, route, ctx, &mine, error);
    if (status == ATTN_OK && mine.count > 0)
        status = services->child_create(services->ctx, name, mine.list, mine.count, &made, error);
    if (status == ATTN_OK && mine.count > 0) {
        child->ops = made.type->ops;
        child->instance = made.instance;
        child->doc = made.type->doc;
    }
    free_problems(services, num_problems, &mine);
    return status;
}

attn_instance *fanout_allocate(const attn_services *services, size_t size, size_t children_at,
                               uint32_t num_children, const attn_problem *problems,
                               attn_error *error)
{
    char *made = services->allocate(services->ctx, ATTN_SPACE_HOST, size, 16);
    if (!made) {
        attn_util_fail(error, ATTN_OUT_OF_HOST_MEMORY, "%zu bytes", size);
        return NULL;
    }
    memset(made, 0, size);
    *(fanout *)(void *)made = (fanout){.services = services,
                                       .children = (fanout_child *)(void *)(made + children_at),
                                       .num_children = num_children,
                                       .on_cpu = problems->device->type == ATTN_DEVICE_CPU};
    return (attn_instance *)(void *)made;
}

attn_status fanout_create_all(attn_instance *made, const char *const *names,
                              const attn_problem *problems, uint32_t num_problems,
                              fanout_route route, const void *ctx, attn_instance **instance,
                              attn_error *error)
{
    fanout *children = (fanout *)made;
    attn_status status = ATTN_OK;
    for (uint32_t c = 0; c < children->num_children && status == ATTN_OK; c++)
        status = fanout_create(children, c, names[c], problems, num_problems, route, ctx, error);
    if (status != ATTN_OK)
        fanout_op_destroy(made);
    else
        *instance = made;
    return status;
}

static attn_status name_failure(const fanout_child *child, attn_status status, attn_error *error)
{
    return status == ATTN_OK ? ATTN_OK
                             : attn_util_fail_prefix(error, status, "child %s", child->name);
}

/* ---- Slots ----------------------------------------------------------------------------------- */

void fanout_op_destroy(attn_instance *instance)
{
    fanout *children = (fanout *)instance;
    if (!children)
        return;
    const attn_services *services = children->services;
    for (uint32_t c = children->num_children; c > 0; c--) {
        fanout_child *child = &children->children[c - 1];
        if (child->ops)
            child->ops->destroy(child->instance);
    }
    services->release(services->ctx, ATTN_SPACE_HOST, instance);
}

attn_status fanout_op_prepare(attn_instance *instance, attn_progress progress, void *progress_ctx,
                              attn_error *error)
{
    const fanout *children = (const fanout *)instance;
    for (uint32_t c = 0; c < children->num_children; c++) {
        const fanout_child *child = &children->children[c];
        if (!child->ops || !child->ops->prepare)
            continue;
        attn_status status = child->ops->prepare(child->instance, progress, progress_ctx, error);
        if (status != ATTN_OK)
            return name_failure(child, status, error);
    }
    return ATTN_OK;
}

uint32_t fanout_op_index_forms(attn_instance *instance)
{
    const fanout *children = (const fanout *)instance;
    uint32_t forms = 0;
    for (uint32_t c = 0; c < children->num_children; c++)
        if (children->children[c].ops)
            forms |= children->children[c].ops->index_forms(children->children[c].instance);
    return forms;
}

const void *fanout_op_get_extension(attn_instance *instance, const char *id)
{
    const fanout *children = (const fanout *)instance;
    const void *extension = NULL;
    if (strcmp(id, ATTN_EXTENSION_CODE_PATHS) == 0) /* it would be given the composite's metadata */
        return NULL;
    for (uint32_t c = 0; c < children->num_children; c++) {
        const attn_backend_ops *ops = children->children[c].ops;
        if (!ops || !ATTN_HAS(ops, attn_backend_ops, get_extension) || !ops->get_extension)
            continue;
        const void *answer = ops->get_extension(children->children[c].instance, id);
        if (answer && extension && answer != extension)
            return NULL;
        extension = answer ? answer : extension;
    }
    return extension;
}

/* ---- Metadata -------------------------------------------------------------------------------- */

attn_status fanout_metadata_size(const fanout *children, uint32_t c, uint32_t kind,
                                 const attn_bounds *bounds, attn_memory_size *size,
                                 attn_error *error)
{
    const fanout_child *child = &children->children[c];
    memset(size, 0, sizeof *size);
    size->struct_size = sizeof *size;
    if (!child->ops) {
        char modes[96];
        attn_util_set_text(ATTN_FIELD_MODES, bounds->modes, modes, sizeof modes);
        return attn_util_fail_field(
            error, ATTN_UNSUPPORTED, ATTN_FIELD_MODES,
            "modes %s: child %s was not created, as no mode or layer is routed to it", modes,
            child->name);
    }
    return name_failure(
        child, child->ops->metadata_size(child->instance, kind, bounds, size, error), error);
}

attn_status fanout_metadata_create(const fanout *children, uint32_t c, uint32_t kind,
                                   const attn_bounds *bounds, const attn_memory *memory,
                                   attn_memory_size *used, attn_metadata **metadata,
                                   attn_error *error)
{
    const fanout_child *child = &children->children[c];
    attn_memory_size size;
    attn_memory part;
    attn_status status = fanout_metadata_size(children, c, kind, bounds, &size, error);
    if (status != ATTN_OK)
        return status;
    fanout_memory_carve(memory, &size, used, &part);
    return name_failure(
        child, child->ops->metadata_create(child->instance, kind, bounds, &part, metadata, error),
        error);
}

attn_status fanout_total_size(attn_instance *instance, const fanout_metadata_form *form,
                              uint32_t kind, const attn_bounds *bounds, attn_memory_size *total,
                              attn_error *error)
{
    const fanout *children = (const fanout *)instance;
    if (!bounds)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "bounds are NULL");
    if (kind == ATTN_METADATA_GRAPH && form->split &&
        bounds->modes & ATTN_MODE_BIT(ATTN_MODE_MIXED))
        return attn_util_fail_field(error, ATTN_CAPTURE_UNSUPPORTED, ATTN_FIELD_MODES,
                                    "MIXED cannot be captured");
    attn_status status = ATTN_OK;
    memset(total, 0, sizeof *total);
    total->struct_size = sizeof *total;
    total->size[FANOUT_OWN_REGION] = form->own;
    total->alignment[FANOUT_OWN_REGION] = form->alignment;
    for (uint32_t part = 0; part < form->num_parts && status == ATTN_OK; part++) {
        attn_memory_size child;
        attn_bounds narrowed;
        uint32_t c;
        const attn_bounds *given = form->narrow(instance, part, bounds, &c, &narrowed);
        if (!given)
            continue;
        status = fanout_metadata_size(children, c, kind, given, &child, error);
        if (status == ATTN_OK)
            fanout_memory_add(&child, total);
    }
    return status;
}

attn_status fanout_answer_size(attn_instance *instance, const fanout_metadata_form *form,
                               uint32_t kind, const attn_bounds *bounds, attn_memory_size *size,
                               attn_error *error)
{
    attn_memory_size total;
    uint32_t theirs = size->struct_size;
    attn_status status = fanout_total_size(instance, form, kind, bounds, &total, error);
    if (status != ATTN_OK)
        return status;
    memcpy(size, &total, theirs < sizeof total ? theirs : sizeof total);
    size->struct_size = theirs;
    return ATTN_OK;
}

attn_status fanout_read_memory(attn_instance *instance, const fanout_metadata_form *form,
                               uint32_t kind, const attn_bounds *bounds, const attn_memory *given,
                               attn_memory *memory, attn_error *error)
{
    attn_memory_size size;
    ATTN_UTIL_READ(memory, given);
    attn_status status = fanout_total_size(instance, form, kind, bounds, &size, error);
    return status == ATTN_OK ? fanout_memory_check(&size, memory, error) : status;
}

void fanout_metadata_destroy(const fanout *children, attn_metadata *const *metadata)
{
    for (uint32_t c = children->num_children; c > 0; c--)
        if (metadata[c - 1])
            children->children[c - 1].ops->metadata_destroy(metadata[c - 1]);
}

attn_status fanout_plan(const fanout *children, uint32_t c, attn_metadata *metadata,
                        const attn_batch *batch, attn_stream stream, attn_error *error)
{
    const fanout_child *child = &children->children[c];
    return name_failure(child, child->ops->init_forward_metadata(metadata, batch, stream, error),
                        error);
}

attn_status fanout_forward(const fanout *children, uint32_t c, attn_metadata *metadata, int decode,
                           int32_t layer_id, const attn_forward_args *args, attn_stream stream,
                           attn_error *error)
{
    const fanout_child *child = &children->children[c];
    attn_status (*forward)(attn_metadata *, int32_t, const attn_forward_args *, attn_stream,
                           attn_error *) =
        decode ? child->ops->forward_decode : child->ops->forward_extend;
    if (!forward)
        return attn_util_fail(error, ATTN_UNSUPPORTED, "child %s has no %s", child->name,
                              decode ? "forward_decode" : "forward_extend");
    return name_failure(child, forward(metadata, layer_id, args, stream, error), error);
}

/* ---- Batches --------------------------------------------------------------------------------- */

attn_status fanout_check_planned(uint32_t mode, int decode, attn_error *error)
{
    if (mode != ATTN_MODE_COUNT && (mode == ATTN_MODE_DECODE) == decode)
        return ATTN_OK;
    return attn_util_fail(
        error, ATTN_BAD_STATE,
        decode
            ? "forward_decode: no DECODE batch is planned"
            : "forward_extend: no EXTEND, MIXED, TARGET_VERIFY or DRAFT_EXTEND batch is planned");
}

const int32_t *fanout_readable(const fanout *children, const attn_i32_array *array)
{
    return array->host ? array->host : children->on_cpu ? array->device : NULL;
}

static attn_status refuse_above(const char *what, int64_t got, int64_t most, uint32_t field,
                                attn_error *error)
{
    return got >= 0 && got <= most ? ATTN_OK
                                   : attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, field,
                                                          "batch: %s %lld: accepted 0..%lld", what,
                                                          (long long)got, (long long)most);
}

attn_status fanout_check_bounds(const attn_bounds *bounds, const attn_batch *batch,
                                attn_error *error)
{
    attn_status status = attn_util_check_chosen("batch: mode", batch->mode, ATTN_FIELD_MODES,
                                                bounds->modes, ATTN_FIELD_MODES, error);
    if (status == ATTN_OK)
        status =
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

/* Keys in whole pages. Pages are powers of two nearly always, and a batch has many sequences. */
static int64_t count_keys(const int32_t *lens, int32_t count, int64_t page)
{
    int64_t total = 0;
    if ((page & (page - 1)) == 0)
        for (int32_t s = 0; s < count; s++)
            total += (lens[s] + page - 1) & -page;
    else
        for (int32_t s = 0; s < count; s++)
            total += (lens[s] + page - 1) / page * page;
    return total;
}

attn_status fanout_check_kv_tokens(const fanout *children, const attn_bounds *bounds,
                                   const attn_batch *batch, attn_error *error)
{
    attn_status status = ATTN_OK;
    if (bounds->max_kv_tokens <= 0)
        return ATTN_OK;
    for (uint32_t g = 0; g < batch->num_kv_groups && status == ATTN_OK; g++) {
        const attn_kv_batch *kv = attn_at(batch->kv_groups, g);
        const int32_t *lens = fanout_readable(children, &kv->kv_lens);
        if (!kv->kv_lens.host && !kv->kv_lens.device)
            lens = fanout_readable(children, &batch->seq_lens);
        if (lens)
            status = refuse_above(
                "keys of all sequences, in whole pages",
                count_keys(lens, batch->num_seqs, kv->page_size > 0 ? kv->page_size : 1),
                bounds->max_kv_tokens, ATTN_FIELD_MAX_KV_TOKENS, error);
    }
    return status;
}
