/* SPDX-License-Identifier: Apache-2.0
 *
 * kv_pool.c: allocation of caches and states, and views of a layer's.
 */
#include "host/cache/kv_pool.h"

#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"

#define ALIGNMENT 256u /* bytes; what device allocators give and vector loads like */

/* ---- Shapes ---------------------------------------------------------------------------------- */

/* Strides follow from the shape. */
static void set_shape(const struct kind_tensor *shape, attn_tensor *tensor)
{
    memset(tensor, 0, sizeof *tensor);
    tensor->struct_size = sizeof *tensor;
    tensor->dtype = shape->dtype;
    tensor->ndim = shape->ndim;
    tensor->alignment = ALIGNMENT;
    for (uint32_t d = shape->ndim; d-- > 0;) {
        tensor->shape[d] = shape->shape[d];
        tensor->strides[d] = d + 1 < shape->ndim ? tensor->strides[d + 1] * shape->shape[d + 1] : 1;
    }
}

/* One entry of the first dimension: a page or a state slot. */
static uint64_t entry_bytes(const attn_tensor *tensor)
{
    return (uint64_t)tensor->strides[0] * attn_dtype_size(tensor->dtype);
}

/* Above the size of any memory if the product exceeds 64 bits. */
static uint64_t tensor_bytes(const attn_tensor *tensor)
{
    uint64_t bytes;
    return __builtin_mul_overflow((uint64_t)tensor->shape[0], entry_bytes(tensor), &bytes)
               ? UINT64_MAX
               : bytes;
}

/* Pages of the pool that a KV group is in. */
static int64_t pages_held(const struct kv_pool_params *params, uint32_t holds)
{
    return holds == MODEL_KV_WINDOW    ? params->num_window_pages
           : holds == MODEL_KV_ENCODER ? params->num_encoder_pages
                                       : params->num_pages;
}

static uint32_t holds_of(const struct model *model, const attn_layer_group *group)
{
    return model_group_has_kv(group) && (uint32_t)group->kv_group < model->num_kv_groups
               ? model->kv_groups[group->kv_group].holds
               : MODEL_KV_DECODER;
}

/* All tensors of a layer group's buffer, without memory. */
static void shape_buffer(const struct model *model, uint32_t g, const struct kv_pool_params *params,
                         struct kv_pool_buffer *buffer)
{
    const attn_layer_group *group = &model->groups[g];
    const struct kv_pool_group *from = &params->groups[g];
    const struct kind_pool pool = {
        .layout = model_group_has_state(group) ? from->state_layout : from->kv_layout,
        .kv_dtype = from->kv_dtype,
        .num_pages = pages_held(params, holds_of(model, group)),
        .page_size = params->page_size,
        .num_slots = params->num_state_slots,
    };
    struct kind_tensor list[KIND_MAX_TENSORS];
    memset(buffer, 0, sizeof *buffer);
    if (!pool.layout)
        return;
    buffer->num_tensors = kind_of(group)->tensors(group, &pool, list);
    for (uint32_t t = 0; t < buffer->num_tensors; t++) {
        buffer->tensors[t].role = list[t].role;
        buffer->tensors[t].scale = list[t].scale;
        set_shape(&list[t], &buffer->tensors[t].tensor);
    }
}

/* Of layer group `g`'s buffers, in a pool of one page of one token and one state slot. */
static uint64_t bytes_of_one(const struct model *model, const struct kv_pool_group *groups,
                             uint32_t g)
{
    const struct kv_pool_params one = {.groups = groups,
                                       .page_size = 1,
                                       .num_pages = 1,
                                       .num_window_pages = 1,
                                       .num_encoder_pages = 1,
                                       .num_state_slots = 1};
    struct kv_pool_buffer buffer;
    uint64_t bytes = 0;
    shape_buffer(model, g, &one, &buffer);
    for (uint32_t t = 0; t < buffer.num_tensors; t++)
        bytes += tensor_bytes(&buffer.tensors[t].tensor);
    return bytes;
}

uint64_t kv_pool_bytes_held(const struct model *model, const struct kv_pool_group *groups,
                            uint32_t holds)
{
    uint64_t bytes = 0;
    for (uint32_t b = 0; b < model->num_buffers; b++) {
        const attn_layer_group *group = &model->groups[model->buffers[b].group];
        if (!model_group_has_state(group) && holds_of(model, group) == holds)
            bytes += bytes_of_one(model, groups, model->buffers[b].group);
    }
    return bytes;
}

uint64_t kv_pool_bytes_per_state(const struct model *model, const struct kv_pool_group *groups)
{
    uint64_t bytes = 0;
    for (uint32_t b = 0; b < model->num_buffers; b++)
        if (model_group_has_state(&model->groups[model->buffers[b].group]))
            bytes += bytes_of_one(model, groups, model->buffers[b].group);
    return bytes;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Every bit set is a NaN in each floating-point type of the pool. */
#define POISON 0xFF

static attn_status allocate_tensor(struct kv_pool *pool, attn_tensor *tensor, attn_error *error)
{
    uint64_t bytes = tensor_bytes(tensor);
    void *memory = device_allocate(pool->device, ATTN_SPACE_DEVICE, bytes ? bytes : 1, ALIGNMENT);
    if (!memory)
        return device_no_memory(pool->device, ATTN_SPACE_DEVICE, error,
                                "KV pool: %llu bytes for one tensor, after %llu bytes of others",
                                (unsigned long long)bytes, (unsigned long long)pool->bytes);
    pool->memory[pool->num_memory++] = memory;
    pool->bytes += bytes;
    tensor->data = memory;
    tensor->device_type = pool->device->type;
    tensor->device_id = pool->device->id;
    return ATTN_OK;
}

/* Entry 0 of the first dimension is the padding. */
static attn_status fill_tensor(const struct device *device, const attn_tensor *tensor, bool poison,
                               attn_stream stream, attn_error *error)
{
    if (tensor->shape[0] == 0)
        return ATTN_OK;
    uint64_t padding = entry_bytes(tensor);
    attn_status status = device_fill(device, tensor->data, 0, padding, stream, error);
    if (status == ATTN_OK && poison)
        status = device_fill(device, (char *)tensor->data + padding, POISON,
                             tensor_bytes(tensor) - padding, stream, error);
    return status;
}

static attn_status allocate_tensors(struct kv_pool *pool, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t b = 0; b < pool->num_buffers; b++) {
        struct kv_pool_buffer *buffer = &pool->buffers[b];
        for (uint32_t t = 0; t < buffer->num_tensors && status == ATTN_OK; t++)
            status = allocate_tensor(pool, &buffer->tensors[t].tensor, error);
    }
    return status;
}

/* Done when it returns, in its own stream: users of the pool have other streams, which need
 * not wait for the legacy one. */
static attn_status fill_tensors(struct kv_pool *pool, bool poison, attn_error *error)
{
    attn_stream stream = NULL;
    attn_status status = device_stream_create(pool->device, &stream, error);
    if (status != ATTN_OK)
        return status;
    for (uint32_t b = 0; b < pool->num_buffers; b++) {
        const struct kv_pool_buffer *buffer = &pool->buffers[b];
        for (uint32_t t = 0; t < buffer->num_tensors && status == ATTN_OK; t++)
            status = fill_tensor(pool->device, &buffer->tensors[t].tensor, poison, stream, error);
    }
    attn_status waited = device_synchronize(pool->device, stream, status ? NULL : error);
    device_stream_destroy(pool->device, stream);
    return status == ATTN_OK ? waited : status;
}

attn_status kv_pool_create(const struct model *model, const struct kv_pool_params *params,
                           const struct device *device, struct kv_pool **pool, attn_error *error)
{
    struct kv_pool *made = calloc(1, sizeof *made);
    uint32_t count = model->num_buffers;
    if (made) {
        made->device = device;
        made->buffers = calloc(count ? count : 1, sizeof *made->buffers);
        made->memory = calloc(count ? KIND_MAX_TENSORS * (size_t)count : 1, sizeof *made->memory);
        made->num_buffers = count;
    }
    if (!made || !made->buffers || !made->memory) {
        kv_pool_destroy(made);
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "KV pool: %u buffers", count);
    }
    for (uint32_t b = 0; b < count; b++)
        shape_buffer(model, model->buffers[b].group, params, &made->buffers[b]);
    attn_status status = allocate_tensors(made, error);
    if (status == ATTN_OK)
        status = fill_tensors(made, params->poison, error);
    if (status != ATTN_OK) {
        kv_pool_destroy(made);
        return status;
    }
    *pool = made;
    return ATTN_OK;
}

/* Entry `entry` of the first dimension of all tensors of a buffer. */
static attn_status spoil_entry(const struct kv_pool *pool, const struct kv_pool_buffer *buffer,
                               int32_t entry, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t t = 0; t < buffer->num_tensors && status == ATTN_OK; t++) {
        const attn_tensor *tensor = &buffer->tensors[t].tensor;
        const uint64_t bytes = entry_bytes(tensor);
        status = device_fill_now(pool->device, (char *)tensor->data + (uint64_t)entry * bytes,
                                 POISON, bytes, error);
    }
    return status;
}

attn_status kv_pool_spoil_page(const struct kv_pool *pool, const struct model *model,
                               uint32_t holds, int32_t page, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t b = 0; b < pool->num_buffers && status == ATTN_OK; b++) {
        const attn_layer_group *group = &model->groups[model->buffers[b].group];
        if (!model_group_has_state(group) && holds_of(model, group) == holds)
            status = spoil_entry(pool, &pool->buffers[b], page, error);
    }
    return status;
}

attn_status kv_pool_spoil_state(const struct kv_pool *pool, const struct model *model, int32_t slot,
                                attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t b = 0; b < pool->num_buffers && status == ATTN_OK; b++)
        if (model_group_has_state(&model->groups[model->buffers[b].group]))
            status = spoil_entry(pool, &pool->buffers[b], slot, error);
    return status;
}

void kv_pool_destroy(struct kv_pool *pool)
{
    if (!pool)
        return;
    for (uint32_t m = 0; m < pool->num_memory; m++)
        device_release(pool->device, ATTN_SPACE_DEVICE, pool->memory[m]);
    free(pool->memory);
    free(pool->buffers);
    free(pool);
}
