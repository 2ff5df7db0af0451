/* SPDX-License-Identifier: Apache-2.0
 *
 * private.c: operands outside the role map. A backend chose its kernels for the operands that a
 * problem's features name, so a call must have exactly these, as the type declares them.
 */
#include "host/embed/embed.h"

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/plugin/private_operands.h"

#include <stdlib.h>
#include <string.h>

static const attn_private_operand *declared(const attnhost_backend *backend, int index)
{
    return attn_at(backend->root->type->type->operands, (uint32_t)index);
}

/* ---- Compose --------------------------------------------------------------------------------- */

static attn_status list_announced(const attnhost_backend *backend, const attn_problem *problem,
                                  uint32_t *set, attn_error *error)
{
    *set = 0;
    for (uint32_t f = 0; f < problem->num_features; f++) {
        const char *name = problem->features[f];
        int index = operands_find(backend->root->type->type, name);
        if (index >= 0)
            *set |= 1u << index;
        else if (operands_is_private(name))
            return host_fail(error, ATTN_INTERNAL,
                             "%s: defect of the plugin: it accepts the private operand %s, which "
                             "it does not declare (PRIV-01)",
                             backend->root->name, name);
    }
    return ATTN_OK;
}

attn_status embed_note_private(attnhost_backend *backend, const attn_problem *problems,
                               uint32_t num_problems, attn_error *error)
{
    for (uint32_t p = 0; p < num_problems; p++) {
        const attn_problem *problem = attn_at(problems, p);
        uint32_t set;
        attn_status status = list_announced(backend, problem, &set, error);
        if (status != ATTN_OK)
            return status;
        for (uint32_t l = 0; l < problem->group->num_layers; l++) {
            const attn_layer *layer = attn_at(problem->group->layers, l);
            for (size_t i = 0; i < backend->num_layers; i++)
                if (backend->layers[i].layer_id == layer->layer_id)
                    backend->layers[i].private_operands = set;
        }
    }
    return ATTN_OK;
}

/* ---- Forward --------------------------------------------------------------------------------- */

static attn_error *blame_operand(attn_error *error)
{
    if (error)
        error->field = ATTN_FIELD_OPERAND;
    return error;
}

#define FAIL(error, ...) host_fail(blame_operand(error), ATTN_INVALID_ARGUMENT, __VA_ARGS__)

/* Value of a declared extent in this call; 0 = any. */
static int64_t extent_of(const struct embed_layer *layer, const attn_forward_args *args,
                         int64_t extent)
{
    const attn_tensor *out = attn_operand(args, ATTN_ROLE_OUT);
    switch (extent) {
    case ATTN_EXTENT_TOKENS:
        return out && out->ndim > 0 ? out->shape[0] : 0;
    case ATTN_EXTENT_Q_HEADS:
        return layer->num_q_heads;
    case ATTN_EXTENT_KV_HEADS:
        return layer->num_kv_heads;
    default:
        return extent;
    }
}

static attn_status check_tensor(const struct embed_layer *layer, const attn_forward_args *args,
                                const attn_private_operand *wanted, const attn_tensor *tensor,
                                attn_error *error)
{
    attn_dtype dtype = wanted->dtype != ATTN_DTYPE_NONE ? wanted->dtype : layer->q_dtype;
    if (tensor->dtype != dtype)
        return FAIL(error, "%s is %s; accepted: %s", wanted->name, dtype_name(tensor->dtype),
                    dtype_name(dtype));
    if (tensor->ndim != wanted->ndim)
        return FAIL(error, "%s has %u dimensions; accepted: %u", wanted->name, tensor->ndim,
                    wanted->ndim);
    for (uint32_t d = 0; d < wanted->ndim; d++) {
        int64_t extent = extent_of(layer, args, wanted->shape[d]);
        if (extent > 0 && tensor->shape[d] != extent)
            return FAIL(error, "%s: shape[%u] is %lld; accepted: %lld", wanted->name, d,
                        (long long)tensor->shape[d], (long long)extent);
    }
    return ATTN_OK;
}

/* One operand of a call; its bit goes into *seen. */
static attn_status check_named(const attnhost_backend *backend, const struct embed_layer *layer,
                               const attn_forward_args *args, uint32_t index, uint32_t *seen,
                               attn_error *error)
{
    const attn_named_operand *named = attn_at(args->named, index);
    if (!ATTN_HAS(named, attn_named_operand, tensor) || !named->name || !named->tensor)
        return FAIL(error, "named[%u] lacks its struct_size, its name or its tensor", index);
    if (!ATTN_HAS(named->tensor, attn_tensor, strides))
        return embed_fail_size(named->name, named->tensor->struct_size, sizeof *named->tensor,
                               error);
    int place = operands_find(backend->root->type->type, named->name);
    uint32_t bit = place < 0 ? 0 : 1u << place;
    if (!(layer->private_operands & bit))
        return FAIL(error,
                    "%.63s is given, and the features of the layer's problem do not name it; "
                    "accepted: both or neither",
                    named->name);
    if (*seen & bit)
        return FAIL(error, "%s is given twice; accepted: once", named->name);
    *seen |= bit;
    return check_tensor(layer, args, declared(backend, place), named->tensor, error);
}

attn_status embed_check_private(const attnhost_backend *backend, const struct embed_layer *layer,
                                const attn_forward_args *args, attn_error *error)
{
    uint32_t seen = 0, count = ATTN_HAS(args, attn_forward_args, named) ? args->num_named : 0;
    if (count > 0 && !args->named)
        return FAIL(error, "num_named is %u and named NULL", count);
    for (uint32_t i = 0; i < count; i++) {
        attn_status status = check_named(backend, layer, args, i, &seen, error);
        if (status != ATTN_OK)
            return status;
    }
    uint32_t missing = layer->private_operands & ~seen;
    if (!missing)
        return ATTN_OK;
    return FAIL(error, "%s, which the features of the layer's problem name, is absent",
                declared(backend, __builtin_ctz(missing))->name);
}
