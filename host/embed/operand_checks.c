/* SPDX-License-Identifier: Apache-2.0
 *
 * operand_checks.c: the host's checks before a layer's forward: structs are filled in, sinks and
 * slopes are declared by the layer, and operands have the dtypes, alignment and strides of its
 * problem. It runs once per layer, so it checks nothing else.
 */
#include "host/embed/embed.h"

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/operand_roles.h"

#include <stdlib.h>

/* ---- Structs --------------------------------------------------------------------------------- */

attn_status embed_fail_size(const char *what, uint32_t got, size_t needed, attn_error *error)
{
    return host_fail(error, ATTN_INVALID_ARGUMENT,
                     "%s: struct_size is %u; accepted: %zu or more, the sizeof of the struct", what,
                     got, needed);
}

/* Role of the first operand or scale whose struct_size is too small; ATTN_ROLE_COUNT = none. */
static uint32_t find_small(const attn_forward_args *args)
{
    for (uint32_t r = 0; r < args->num_operands; r++)
        if (args->operands[r] && !ATTN_HAS(args->operands[r], attn_tensor, strides))
            return r;
    for (uint32_t r = 0; r < args->num_scales; r++)
        if (args->scales[r] && !ATTN_HAS(args->scales[r], attn_scale, device))
            return r;
    return ATTN_ROLE_COUNT;
}

static attn_status fail_small(const attn_forward_args *args, uint32_t role, attn_error *error)
{
    const attn_tensor *tensor = attn_operand(args, role);
    if (tensor && !ATTN_HAS(tensor, attn_tensor, strides))
        return embed_fail_size(role_name(role), tensor->struct_size, sizeof *tensor, error);
    return host_fail(error, ATTN_INVALID_ARGUMENT,
                     "the scale of %s: struct_size is %u; accepted: %zu or more", role_name(role),
                     args->scales[role]->struct_size, sizeof *args->scales[role]);
}

/* ---- Layers ---------------------------------------------------------------------------------- */

static int compare_layers(const void *a, const void *b)
{
    const struct embed_layer *x = a, *y = b;
    return (x->layer_id > y->layer_id) - (x->layer_id < y->layer_id);
}

static size_t count_layers(const attn_problem *problems, uint32_t num_problems)
{
    size_t count = 0;
    for (uint32_t p = 0; p < num_problems; p++)
        count += ((const attn_problem *)attn_at(problems, p))->group->num_layers;
    return count;
}

attn_status embed_list_layers(const attn_problem *problems, uint32_t num_problems,
                              struct embed_layer **layers, size_t *num_layers, attn_error *error)
{
    size_t count = count_layers(problems, num_problems);
    struct embed_layer *list = calloc(count, sizeof *list), *layer = list;
    if (!list)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "backend: out of memory");
    for (uint32_t p = 0; p < num_problems; p++) {
        const attn_problem *problem = attn_at(problems, p);
        const attn_layer_group *group = problem->group;
        for (uint32_t l = 0; l < group->num_layers; l++, layer++) {
            layer->layer_id = ((const attn_layer *)attn_at(group->layers, l))->layer_id;
            layer->flags = group->flags;
            layer->device_type = problem->device->type;
            layer->min_alignment = problem->min_alignment;
            layer->kv_strides = problem->kv_strides;
            layer->q_dtype = problem->q_dtype;
            layer->num_q_heads = group->num_q_heads;
            layer->num_kv_heads = group->num_kv_heads;
            for (uint32_t r = 0; r < ATTN_ROLE_COUNT; r++)
                layer->dtypes[r] = role_dtype(problem, r, &layer->whose[r]);
        }
    }
    qsort(list, count, sizeof *list, compare_layers);
    *layers = list;
    *num_layers = count;
    return ATTN_OK;
}

/* NULL = none of this number; the backend says so. */
static const struct embed_layer *find_layer(const attnhost_backend *backend, int32_t layer_id)
{
    const struct embed_layer key = {.layer_id = layer_id};
    return bsearch(&key, backend->layers, backend->num_layers, sizeof key, compare_layers);
}

/* An operand that a group's flag announces: without it, kernels that never look at the operand may
 * have been chosen, which would ignore it silently. */
static attn_status check_announced(const struct embed_layer *layer, uint32_t role,
                                   const attn_forward_args *args, attn_error *error)
{
    uint32_t flag = role == ATTN_ROLE_SINKS ? ATTN_GROUP_HAS_SINKS : ATTN_GROUP_HAS_ALIBI;
    if (!attn_operand(args, role) || layer->flags & flag)
        return ATTN_OK;
    return host_fail(error, ATTN_INVALID_ARGUMENT,
                     "%s is given, and the flags of the layer's group lack %s; accepted: both or "
                     "neither",
                     role_name(role),
                     role == ATTN_ROLE_SINKS ? "ATTN_GROUP_HAS_SINKS" : "ATTN_GROUP_HAS_ALIBI");
}

/* Kernels were chosen for these dtypes. */
static attn_status check_dtypes(const struct embed_layer *layer, const attn_forward_args *args,
                                attn_error *error)
{
    for (uint32_t r = 0; r < args->num_operands && r < ATTN_ROLE_COUNT; r++) {
        const attn_tensor *tensor = args->operands[r];
        if (!tensor || tensor->dtype == layer->dtypes[r] || layer->dtypes[r] == ATTN_DTYPE_NONE)
            continue;
        if (error)
            error->field = ATTN_FIELD_OPERAND;
        return host_fail(error, ATTN_INVALID_ARGUMENT, "%s is %s; accepted: %s, %s", role_name(r),
                         dtype_name(tensor->dtype), dtype_name(layer->dtypes[r]), layer->whose[r]);
    }
    return ATTN_OK;
}

/* ---- Where operands lie ---------------------------------------------------------------------- */

static bool is_empty(const attn_tensor *tensor)
{
    for (uint32_t d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] == 0)
            return true;
    return tensor->ndim == 0 || tensor->ndim > ATTN_MAX_DIMS;
}

static attn_status fail_place(uint32_t role, const char *what, uint64_t got, uint64_t accepted,
                              attn_error *error)
{
    if (error)
        error->field = ATTN_FIELD_MIN_ALIGNMENT;
    return host_fail(error, ATTN_INVALID_ARGUMENT,
                     "%s: %s is %llu bytes; accepted: multiples of %llu (STRUCT-10)",
                     role_name(role), what, (unsigned long long)got, (unsigned long long)accepted);
}

/* Rows of whole vectors are taken to stay so: strides are as aligned as the first element, as far
 * as a row's own length is. */
static attn_status check_place(const struct embed_layer *layer, uint32_t role,
                               const attn_tensor *tensor, attn_error *error)
{
    uint64_t size = attn_dtype_size(tensor->dtype), last = tensor->ndim - 1;
    uint64_t alignment = attn_guaranteed_alignment(layer->device_type, tensor->dtype);
    if (layer->min_alignment > alignment)
        alignment = layer->min_alignment;
    uint64_t address = (uintptr_t)tensor->data + tensor->byte_offset;
    uint64_t row = (uint64_t)tensor->shape[last] * size, unit = row & (~row + 1);
    if (address % alignment != 0)
        return fail_place(role, "the address of its first element", address, alignment, error);
    if (unit > alignment)
        unit = alignment;
    for (uint32_t d = 0; d < last; d++)
        if (tensor->shape[d] > 1 && (uint64_t)tensor->strides[d] * size % unit != 0)
            return fail_place(role, "an outer stride", (uint64_t)tensor->strides[d] * size, unit,
                              error);
    return ATTN_OK;
}

static attn_status check_kv_strides(const attn_forward_args *args, attn_error *error)
{
    const attn_tensor *k = attn_operand(args, ATTN_ROLE_K_CACHE);
    const attn_tensor *v = attn_operand(args, ATTN_ROLE_V_CACHE);
    if (!k || !v || is_empty(k) || is_empty(v))
        return ATTN_OK;
    for (uint32_t d = 0; d + 1 < k->ndim && d + 1 < v->ndim; d++) {
        if (k->strides[d] == v->strides[d] || k->shape[d] <= 1)
            continue;
        if (error)
            error->field = ATTN_FIELD_KV_STRIDES;
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "k_cache has strides[%u] %lld, v_cache %lld; accepted: equal ones, as "
                         "kv_strides of the problem promises (STRUCT-11)",
                         d, (long long)k->strides[d], (long long)v->strides[d]);
    }
    return ATTN_OK;
}

static attn_status check_places(const struct embed_layer *layer, const attn_forward_args *args,
                                attn_error *error)
{
    for (uint32_t r = 0; r < args->num_operands && r < ATTN_ROLE_COUNT; r++) {
        const attn_tensor *tensor = args->operands[r];
        attn_status status = ATTN_OK;
        if (tensor && !is_empty(tensor) && attn_dtype_size(tensor->dtype) > 0)
            status = check_place(layer, r, tensor, error);
        if (status != ATTN_OK)
            return status;
    }
    return layer->kv_strides == ATTN_KV_STRIDES_EQUAL ? check_kv_strides(args, error) : ATTN_OK;
}

/* ---- Arguments ------------------------------------------------------------------------------- */

attn_status embed_check_args(const attnhost_backend *backend, int32_t layer_id,
                             const attn_forward_args *args, attn_error *error)
{
    if (!ATTN_HAS(args, attn_forward_args, scales))
        return embed_fail_size("args", args->struct_size, sizeof *args, error);
    uint32_t small = find_small(args);
    if (small != ATTN_ROLE_COUNT)
        return fail_small(args, small, error);
    const struct embed_layer *layer = find_layer(backend, layer_id);
    attn_status status = layer ? check_announced(layer, ATTN_ROLE_SINKS, args, error) : ATTN_OK;
    if (layer && status == ATTN_OK)
        status = check_announced(layer, ATTN_ROLE_ALIBI_SLOPES, args, error);
    if (layer && status == ATTN_OK)
        status = check_dtypes(layer, args, error);
    if (layer && status == ATTN_OK)
        status = check_places(layer, args, error);
    return layer && status == ATTN_OK ? embed_check_private(backend, layer, args, error) : status;
}
