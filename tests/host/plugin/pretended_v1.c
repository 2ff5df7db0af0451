/* SPDX-License-Identifier: Apache-2.0
 *
 * pretended_v1.c: see pretended_v1.h. attn1_ is what 1.0 has, attn_ what 2.0 has; a struct that is
 * the same in both crosses as it is.
 */
#include "tests/host/plugin/pretended_v1.h"

#include "attn1_plugin.h"
#include "host/base/error.h"

#include <stdlib.h>
#include <string.h>

/* Were they equal, an adapter that does nothing would do. */
_Static_assert(offsetof(attn1_batch, seq_lens) == offsetof(attn_batch, prefix_lens), "v1.sed");
_Static_assert(offsetof(attn1_bounds, max_seqs) == offsetof(attn_bounds, max_tokens), "v1.sed");
_Static_assert((int)ATTN1_FORWARD_SAVE_KV != (int)ATTN_FORWARD_SAVE_KV, "v1.sed");

/* A pointer to what is the same in both. */
#define SAME(pointer) ((void *)(uintptr_t)(pointer))

struct adapted_type {
    attn_backend_type base; /* what the host calls */
    attn_backend_ops ops;
    const attn1_backend_type *given;
};

struct attn_instance {
    const attn1_backend_ops *ops;
    attn1_instance *given;
};

struct attn_metadata {
    const attn1_backend_ops *ops;
    attn1_metadata *given;
};

/* ---- Structs that changed -------------------------------------------------------------------- */

static attn1_bounds old_bounds(const attn_bounds *bounds)
{
    attn1_bounds old;
    _Static_assert(sizeof old == sizeof *bounds, "all else is where it was");
    memcpy(&old, bounds, sizeof old);
    old.max_seqs = bounds->max_seqs;
    old.max_tokens = bounds->max_tokens;
    return old;
}

static attn1_batch old_batch(const attn_batch *batch)
{
    attn1_batch old;
    _Static_assert(sizeof old == sizeof *batch, "all else is where it was");
    memcpy(&old, batch, sizeof old);
    memcpy(&old.seq_lens, &batch->seq_lens, sizeof old.seq_lens);
    memcpy(&old.prefix_lens, &batch->prefix_lens, sizeof old.prefix_lens);
    return old;
}

static attn1_problem old_problem(const attn_problem *problem, attn1_bounds *bounds)
{
    attn1_problem old;
    memcpy(&old, problem, sizeof old);
    *bounds = old_bounds(problem->bounds);
    old.bounds = bounds;
    return old;
}

static uint32_t old_flags(uint32_t flags)
{
    uint32_t others = flags & ~(uint32_t)ATTN_FORWARD_SAVE_KV;
    return others | (flags & ATTN_FORWARD_SAVE_KV ? (uint32_t)ATTN1_FORWARD_SAVE_KV : 0);
}

/* ---- Instance -------------------------------------------------------------------------------- */

static void destroy(attn_instance *instance)
{
    if (instance)
        instance->ops->destroy(instance->given);
    free(instance);
}

static uint32_t index_forms(attn_instance *instance)
{
    return instance->ops->index_forms(instance->given);
}

static attn_status metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 attn_memory_size *size, attn_error *error)
{
    attn1_bounds old = old_bounds(bounds);
    return instance->ops->metadata_size(instance->given, kind, &old, SAME(size), SAME(error));
}

static attn_status metadata_create(attn_instance *instance, uint32_t kind,
                                   const attn_bounds *bounds, const attn_memory *memory,
                                   attn_metadata **metadata, attn_error *error)
{
    attn1_bounds old = old_bounds(bounds);
    attn_metadata *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for metadata");
    made->ops = instance->ops;
    attn_status status = made->ops->metadata_create(instance->given, kind, &old, SAME(memory),
                                                    &made->given, SAME(error));
    if (status == ATTN_OK)
        *metadata = made;
    else
        free(made);
    return status;
}

static void metadata_destroy(attn_metadata *metadata)
{
    if (metadata)
        metadata->ops->metadata_destroy(metadata->given);
    free(metadata);
}

static attn_status init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                         attn_stream stream, attn_error *error)
{
    attn1_batch old = old_batch(batch);
    return metadata->ops->init_forward_metadata(metadata->given, &old, stream, SAME(error));
}

static attn_status forward_extend(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    attn_forward_args old = *args;
    old.flags = old_flags(args->flags);
    return metadata->ops->forward_extend(metadata->given, layer_id, SAME(&old), stream,
                                         SAME(error));
}

static attn_status forward_decode(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    attn_forward_args old = *args;
    old.flags = old_flags(args->flags);
    return metadata->ops->forward_decode(metadata->given, layer_id, SAME(&old), stream,
                                         SAME(error));
}

/* ---- Type ------------------------------------------------------------------------------------ */

static const attn1_backend_type *given_of(const attn_backend_type *type)
{
    return ((const struct adapted_type *)type)->given;
}

static attn_status query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *verdict, attn_error *error)
{
    attn1_bounds bounds;
    attn1_problem old = old_problem(problem, &bounds);
    return given_of(type)->query(given_of(type), SAME(options), SAME(services), &old, SAME(verdict),
                                 SAME(error));
}

static attn_status create_given(const attn1_backend_type *type, const attn_problem *problems,
                                uint32_t num_problems, const attn_options *options,
                                const attn_services *services, attn1_instance **given,
                                attn_error *error)
{
    attn1_problem *old = calloc(num_problems, sizeof *old);
    attn1_bounds *bounds = calloc(num_problems, sizeof *bounds);
    attn_status status = old && bounds ? ATTN_OK : ATTN_OUT_OF_HOST_MEMORY;
    for (uint32_t i = 0; i < num_problems && status == ATTN_OK; i++)
        old[i] = old_problem(attn_at(problems, i), &bounds[i]);
    if (status == ATTN_OK)
        status = type->create(type, old, num_problems, SAME(options), SAME(services), given,
                              SAME(error));
    free(old);
    free(bounds);
    return status;
}

static attn_status create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error)
{
    attn_instance *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for an instance");
    made->ops = given_of(type)->ops;
    attn_status status = create_given(given_of(type), problems, num_problems, options, services,
                                      &made->given, error);
    if (status == ATTN_OK)
        *instance = made;
    else
        free(made);
    return status;
}

attn_status pretended_v1_adapt(const attn_backend_type *type, const attn_backend_type **out,
                               attn_error *error)
{
    struct adapted_type *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for an adapter");
    made->given = SAME(type);
    made->base = *type; /* what it is called, its options, its layouts */
    made->base.ops = &made->ops;
    made->base.query = query;
    made->base.create = create;
    made->ops = (attn_backend_ops){
        .struct_size = sizeof made->ops,
        .destroy = destroy,
        .index_forms = index_forms,
        .metadata_size = metadata_size,
        .metadata_create = metadata_create,
        .init_forward_metadata = init_forward_metadata,
        .metadata_destroy = metadata_destroy,
        .forward_extend = made->given->ops->forward_extend ? forward_extend : NULL,
        .forward_decode = made->given->ops->forward_decode ? forward_decode : NULL};
    *out = &made->base;
    return ATTN_OK;
}

void pretended_v1_release(const attn_backend_type *adapted)
{
    free(SAME(adapted));
}
