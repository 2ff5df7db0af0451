/* SPDX-License-Identifier: Apache-2.0
 *
 * altered_child.c: a wrapper around one child, which alters its answers.
 */
#include "host/check/composites/altered_child.h"
#include "host/check/cases/front.h"

#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"

/* Stands before each child's instance, as before its metadata. */
struct attn_instance {
    attn_child inner;
    struct altered_child *altered;
    bool chosen;            /* the one that is altered */
    attn_backend_type type; /* a copy with `ops` */
    attn_backend_ops ops;   /* a copy: slots that are NULL stay so */
};

struct attn_metadata {
    struct attn_instance *instance;
    attn_metadata *inner;
    int32_t rows; /* of the batch that was planned last, padding aside */
};

static bool alters(struct altered_child *altered, enum alteration what)
{
    altered->hits += altered->what == what;
    return altered->what == what;
}

static bool alters_instance(const attn_instance *instance, enum alteration what)
{
    return instance->chosen && alters(instance->altered, what);
}

static attn_status plant(attn_error *error)
{
    return host_fail(error, ATTN_INTERNAL, "%s", ALTERED_WORDS);
}

/* ---- The child's slots ----------------------------------------------------------------------- */

static void destroy(attn_instance *instance)
{
    if (!instance)
        return;
    instance->inner.type->ops->destroy(instance->inner.instance);
    instance->altered->live--;
    free(instance);
}

static attn_status prepare(attn_instance *instance, attn_progress progress, void *ctx,
                           attn_error *error)
{
    return instance->inner.type->ops->prepare(instance->inner.instance, progress, ctx, error);
}

static uint32_t index_forms(attn_instance *instance)
{
    if (alters_instance(instance, ALTER_INDEX_FORMS))
        return (uint32_t)instance->altered->value;
    return instance->inner.type->ops->index_forms(instance->inner.instance);
}

static attn_status metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 attn_memory_size *size, attn_error *error)
{
    const uint32_t region = ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA);
    if (alters_instance(instance, ALTER_METADATA_SIZE))
        return plant(error);
    attn_status status = instance->inner.type->ops->metadata_size(instance->inner.instance, kind,
                                                                  bounds, size, error);
    if (status == ATTN_OK && alters_instance(instance, ALTER_SIZE))
        size->size[region] += instance->altered->value;
    return status;
}

static attn_status metadata_create(attn_instance *instance, uint32_t kind,
                                   const attn_bounds *bounds, const attn_memory *memory,
                                   attn_metadata **metadata, attn_error *error)
{
    if (alters_instance(instance, ALTER_METADATA_CREATE))
        return plant(error);
    attn_metadata *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for metadata");
    made->instance = instance;
    attn_status status = instance->inner.type->ops->metadata_create(
        instance->inner.instance, kind, bounds, memory, &made->inner, error);
    if (status == ATTN_OK)
        *metadata = made;
    else
        free(made);
    instance->altered->live_metadata += status == ATTN_OK;
    return status;
}

static attn_status plan(attn_metadata *metadata, const attn_batch *batch, attn_stream stream,
                        attn_error *error)
{
    if (alters_instance(metadata->instance, ALTER_PLAN))
        return plant(error);
    metadata->rows = batch->num_real_tokens;
    return metadata->instance->inner.type->ops->init_forward_metadata(metadata->inner, batch,
                                                                      stream, error);
}

static void metadata_destroy(attn_metadata *metadata)
{
    if (!metadata)
        return;
    metadata->instance->inner.type->ops->metadata_destroy(metadata->inner);
    metadata->instance->altered->live_metadata--;
    free(metadata);
}

static attn_status forward(bool decode, attn_metadata *metadata, int32_t layer_id,
                           const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    const attn_instance *instance = metadata->instance;
    const attn_backend_ops *ops = instance->inner.type->ops;
    if (alters_instance(instance, ALTER_FORWARD))
        return plant(error);
    instance->altered->rows += metadata->rows;
    return front_forward(ops, decode, metadata->inner, layer_id, args, stream, error);
}

FRONT_FORWARDS

static const void *get_extension(attn_instance *instance, const char *id)
{
    if (strcmp(id, ATTN_EXTENSION_CODE_PATHS) == 0) /* it would be given our metadata */
        return NULL;
    return instance->inner.type->ops->get_extension(instance->inner.instance, id);
}

static attn_status wrap(struct altered_child *altered, bool chosen, attn_child *child,
                        attn_error *error)
{
    attn_instance *made = calloc(1, sizeof *made);
    if (!made) {
        child->type->ops->destroy(child->instance);
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a child");
    }
    const attn_backend_ops *ops = child->type->ops;
    made->inner = *child;
    made->altered = altered;
    made->chosen = chosen;
    altered->live++;
    made->type = *child->type;
    made->type.ops = &made->ops;
    made->ops = (attn_backend_ops){
        .struct_size = sizeof made->ops,
        .destroy = destroy,
        .prepare = ops->prepare ? prepare : NULL,
        .index_forms = index_forms,
        .metadata_size = metadata_size,
        .metadata_create = metadata_create,
        .init_forward_metadata = plan,
        .metadata_destroy = metadata_destroy,
        .get_extension = ops->get_extension ? get_extension : NULL,
    };
    FRONT_SET_FORWARDS(made->ops, ops);
    child->type = &made->type;
    child->instance = made;
    return ATTN_OK;
}

/* ---- Services -------------------------------------------------------------------------------- */

static void refuse(attn_verdict *verdict)
{
    verdict->supported = 0;
    verdict->num_reasons = 1;
    if (verdict->reasons_capacity == 0)
        return;
    attn_reason *reason = verdict->reasons;
    uint32_t size = reason->struct_size;
    attn_reason planted = {.struct_size = size,
                           .code = ATTN_REASON_HEAD_DIM,
                           .field = ATTN_FIELD_HEAD_DIM,
                           .got = ALTERED_WORDS,
                           .accepted = "nothing"};
    memcpy(reason, &planted, size < sizeof planted ? size : sizeof planted);
}

static attn_status child_query(void *ctx, const char *name, const attn_problem *problem,
                               attn_verdict *verdict, attn_error *error)
{
    struct altered_child *altered = ctx; /* its counter comes first */
    const attn_services *inner = altered->counter.inner;
    attn_status status = inner->child_query(inner->ctx, name, problem, verdict, error);
    if (status != ATTN_OK || strcmp(name, altered->child) != 0 || !verdict->supported)
        return status;
    if (alters(altered, ALTER_REFUSE))
        refuse(verdict);
    else if (alters(altered, ALTER_GRAPH_LEVEL))
        verdict->graph_level =
            verdict->graph_level < altered->value ? verdict->graph_level : (uint32_t)altered->value;
    else if (alters(altered, ALTER_TRAITS))
        verdict->traits &= ~(uint32_t)altered->value;
    return status;
}

static attn_status child_create(void *ctx, const char *name, const attn_problem *problems,
                                uint32_t num_problems, attn_child *child, attn_error *error)
{
    struct altered_child *altered = ctx;
    const attn_services *inner = altered->counter.inner;
    bool chosen = strcmp(name, altered->child) == 0;
    if (chosen && alters(altered, ALTER_CREATE))
        return host_fail(error, ATTN_CHILD_FAILED, "%s: %s", name, ALTERED_WORDS);
    attn_status status =
        inner->child_create(inner->ctx, name, problems, num_problems, child, error);
    return status == ATTN_OK ? wrap(altered, chosen, child, error) : status;
}

void altered_child_init(struct altered_child *altered, const attn_services *inner,
                        const char *child, enum alteration what, uint64_t value)
{
    *altered = (struct altered_child){.child = child, .what = what, .value = value};
    service_counter_init(&altered->counter, inner);
    altered->counter.table.child_query = child_query;
    altered->counter.table.child_create = child_create;
}
