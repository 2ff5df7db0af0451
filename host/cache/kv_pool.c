/* SPDX-License-Identifier: Apache-2.0 */
#include "host/cache/kv_pool.h"

#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/workload/generator_linear.h"
#include "host/reference/reference.h"

#define ALIGNMENT 256u /* bytes; what device allocators give and vector loads like */

/* ---- Shapes ---------------------------------------------------------------------------------- */

/* A dense tensor; strides follow from the shape. */
static void set_shape(attn_tensor *tensor, attn_dtype dtype, uint32_t ndim, const int64_t *shape)
{
    memset(tensor, 0, sizeof *tensor);
    tensor->struct_size = sizeof *tensor;
    tensor->dtype = dtype;
    tensor->ndim = ndim;
    tensor->alignment = ALIGNMENT;
    for (uint32_t d = ndim; d-- > 0;) {
        tensor->shape[d] = shape[d];
        tensor->strides[d] = d + 1 < ndim ? tensor->strides[d + 1] * shape[d + 1] : 1;
    }
}

/* One entry of the first dimension: a page or a state slot. */
static uint64_t entry_bytes(const attn_tensor *tensor)
{
    return (uint64_t)tensor->strides[0] * attn_dtype_size(tensor->dtype);
}

/* More than any memory has where the product is beyond 64 bits. */
static uint64_t tensor_bytes(const attn_tensor *tensor)
{
    uint64_t bytes;
    return __builtin_mul_overflow((uint64_t)tensor->shape[0], entry_bytes(tensor), &bytes)
               ? UINT64_MAX
               : bytes;
}

/* Keys or values of one layer, `dim` wide. */
static void shape_kv(const attn_layer_group *group, const struct kv_pool_group *pool,
                     const struct kv_pool_params *params, int32_t dim, attn_tensor *tensor)
{
    int64_t nhd[] = {params->num_pages, params->page_size, group->num_kv_heads, dim};
    int64_t hnd[] = {params->num_pages, group->num_kv_heads, params->page_size, dim};
    int is_hnd = strcmp(pool->kv_layout, ATTN_LAYOUT_KV_HND) == 0;
    set_shape(tensor, pool->kv_dtype, 4, is_hnd ? hnd : nhd);
}

static void shape_latent(const attn_layer_group *group, const struct kv_pool_group *pool,
                         const struct kv_pool_params *params, attn_tensor *tensor)
{
    const attn_mla_dims *mla = group->mla;
    if (strcmp(pool->kv_layout, ATTN_LAYOUT_MLA_LATENT_FP8) == 0) {
        int64_t shape[] = {params->num_pages, params->page_size, reference_mla_packed_bytes(mla)};
        set_shape(tensor, ATTN_U8, 3, shape);
    } else {
        int64_t shape[] = {params->num_pages, params->page_size, mla->kv_lora_rank + mla->rope_dim};
        set_shape(tensor, pool->kv_dtype, 3, shape);
    }
}

static void shape_state(const attn_layer_group *group, const struct kv_pool_group *pool,
                        const struct kv_pool_params *params, struct kv_pool_buffer *buffer)
{
    const attn_linear_dims *linear = group->linear;
    int is_vk = strcmp(pool->state_layout, ATTN_LAYOUT_STATE_SSM_VK) == 0;
    int64_t k = linear->head_k_dim, v = linear->head_v_dim;
    int64_t state[] = {params->num_state_slots, linear->num_v_heads, is_vk ? v : k, is_vk ? k : v};
    if (linear->family != ATTN_LINEAR_SHORT_CONV)
        set_shape(&buffer->state, linear->state_dtype, 4, state);
    int64_t conv[] = {params->num_state_slots,
                      generator_linear_elements(group, ATTN_ROLE_MIXED_QKV),
                      linear->conv_width - 1};
    if (linear->conv_width > 1 && linear->conv_dtype != ATTN_DTYPE_NONE)
        set_shape(&buffer->conv, linear->conv_dtype, 3, conv);
}

/* All tensors of a group's buffer, without memory. */
static void shape_buffer(const attn_layer_group *group, const struct kv_pool_group *pool,
                         const struct kv_pool_params *params, struct kv_pool_buffer *buffer)
{
    memset(buffer, 0, sizeof *buffer);
    if (pool->kv_layout && group->mla) {
        shape_latent(group, pool, params, &buffer->key);
    } else if (pool->kv_layout) {
        shape_kv(group, pool, params, group->head_dim, &buffer->key);
        shape_kv(group, pool, params, group->v_head_dim, &buffer->value);
    }
    if (pool->state_layout && group->linear)
        shape_state(group, pool, params, buffer);
}

static uint64_t bytes_if_present(const attn_tensor *tensor)
{
    return tensor->struct_size ? tensor_bytes(tensor) : 0;
}

/* Of all buffers in a pool of one page of one token and one state slot: the first two tensors of
 * each, or the last two. */
static uint64_t bytes_of_one(const struct model *model, const struct kv_pool_group *groups,
                             bool states)
{
    struct kv_pool_params one = {
        .groups = groups, .page_size = 1, .num_pages = 1, .num_state_slots = 1};
    uint64_t bytes = 0;
    for (uint32_t b = 0; b < model->num_buffers; b++) {
        struct kv_pool_buffer buffer;
        uint32_t g = model->buffers[b].group;
        shape_buffer(&model->groups[g], &groups[g], &one, &buffer);
        bytes += bytes_if_present(states ? &buffer.state : &buffer.key);
        bytes += bytes_if_present(states ? &buffer.conv : &buffer.value);
    }
    return bytes;
}

uint64_t kv_pool_bytes_per_token(const struct model *model, const struct kv_pool_group *groups)
{
    return bytes_of_one(model, groups, false);
}

uint64_t kv_pool_bytes_per_state(const struct model *model, const struct kv_pool_group *groups)
{
    return bytes_of_one(model, groups, true);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Every bit set is a NaN in each floating-point type of the pool. */
#define POISON 0xFF

static attn_status allocate_tensor(struct kv_pool *pool, attn_tensor *tensor, attn_error *error)
{
    if (tensor->struct_size == 0)
        return ATTN_OK;
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
    if (tensor->struct_size == 0 || tensor->shape[0] == 0)
        return ATTN_OK;
    uint64_t padding = entry_bytes(tensor);
    attn_status status = device_fill(device, tensor->data, 0, padding, stream, error);
    if (status == ATTN_OK && poison)
        status = device_fill(device, (char *)tensor->data + padding, POISON,
                             tensor_bytes(tensor) - padding, stream, error);
    return status;
}

enum { PER_BUFFER = 4 }; /* tensors, absent ones included */

static attn_tensor *tensor_at(struct kv_pool *pool, size_t index)
{
    struct kv_pool_buffer *buffer = &pool->buffers[index / PER_BUFFER];
    attn_tensor *tensors[PER_BUFFER] = {&buffer->key, &buffer->value, &buffer->state,
                                        &buffer->conv};
    return tensors[index % PER_BUFFER];
}

static attn_status allocate_tensors(struct kv_pool *pool, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (size_t t = 0; t < PER_BUFFER * (size_t)pool->num_buffers && status == ATTN_OK; t++)
        status = allocate_tensor(pool, tensor_at(pool, t), error);
    return status;
}

/* Done when it returns, in a stream of its own: whoever uses the pool has other streams, which need
 * not wait for the legacy one. */
static attn_status fill_tensors(struct kv_pool *pool, bool poison, attn_error *error)
{
    attn_stream stream = NULL;
    attn_status status = device_stream_create(pool->device, &stream, error);
    if (status != ATTN_OK)
        return status;
    for (size_t t = 0; t < PER_BUFFER * (size_t)pool->num_buffers && status == ATTN_OK; t++)
        status = fill_tensor(pool->device, tensor_at(pool, t), poison, stream, error);
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
        made->memory = calloc(count ? PER_BUFFER * (size_t)count : 1, sizeof *made->memory);
        made->num_buffers = count;
    }
    if (!made || !made->buffers || !made->memory) {
        kv_pool_destroy(made);
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "KV pool: %u buffers", count);
    }
    for (uint32_t b = 0; b < count; b++) {
        uint32_t g = model->buffers[b].group;
        shape_buffer(&model->groups[g], &params->groups[g], params, &made->buffers[b]);
    }
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
