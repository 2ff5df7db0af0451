/* SPDX-License-Identifier: Apache-2.0
 *
 * executor_constants.c: operands of a layer that are the same at every step: sinks and slopes of
 * attention, gates and convolutions of linear layers. All are in one block on the device.
 */
#include "host/run/executor_private.h"

#include <stdlib.h>
#include <string.h>

#include "host/base/dtype.h"
#include "host/base/error.h"

static const attn_layer_group *group_of(const struct executor *executor, uint32_t layer)
{
    const struct model *model = executor->params.model;
    return &model->groups[model->layers[layer].group];
}

/* ---- Shapes ---------------------------------------------------------------------------------- */

/* A dense tensor without its memory. */
static void describe(const struct executor *executor, const attn_layer_group *group, uint32_t role,
                     attn_tensor *tensor)
{
    *tensor = (attn_tensor){
        .struct_size = sizeof *tensor,
        .flags = ATTN_TENSOR_READ_ONLY,
        .device_type = executor->params.device->type,
        .device_id = executor->params.device->id,
        .alignment = EXECUTOR_ALIGNMENT,
    };
    kind_of(group)->describe_constant(executor->params.model, group, role, tensor);
    for (uint32_t d = tensor->ndim; d-- > 0;)
        tensor->strides[d] =
            d + 1 < tensor->ndim ? tensor->strides[d + 1] * tensor->shape[d + 1] : 1;
}

static int64_t elements(const attn_tensor *tensor)
{
    return tensor->strides[0] * tensor->shape[0];
}

/* Describe the constants of all layers, still without memory. Returns the bytes of the block. */
static uint64_t lay_out(struct executor *executor)
{
    uint64_t used = 0;
    for (uint32_t l = 0; l < executor->params.model->num_layers; l++) {
        struct layer_constants *layer = &executor->constants[l];
        const attn_layer_group *group = group_of(executor, l);
        uint32_t mask = kind_of(group)->constants(executor->params.model, group);
        for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
            if (!(mask & 1u << role))
                continue;
            attn_tensor *tensor = &layer->tensors[layer->count];
            describe(executor, group, role, tensor);
            layer->roles[layer->count] = role;
            layer->offsets[layer->count++] = used;
            used += (uint64_t)elements(tensor) * attn_dtype_size(tensor->dtype);
            used = (used + EXECUTOR_ALIGNMENT - 1) / EXECUTOR_ALIGNMENT * EXECUTOR_ALIGNMENT;
        }
    }
    return used;
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* All constants as they shall lie on the device; NULL = out of memory. */
static char *make_values(const struct executor *executor, uint64_t bytes)
{
    char *block = calloc(bytes, 1);
    float *values = calloc(bytes, sizeof *values); /* no constant has more elements than bytes */
    for (uint32_t l = 0; block && values && l < executor->params.model->num_layers; l++) {
        const struct layer_constants *layer = &executor->constants[l];
        const attn_layer_group *group = group_of(executor, l);
        for (uint32_t c = 0; c < layer->count; c++) {
            const attn_tensor *tensor = &layer->tensors[c];
            kind_of(group)->make_constant(executor->params.generator, group, (int32_t)l,
                                          layer->roles[c], values);
            dtype_from_float(tensor->dtype, values, elements(tensor), block + layer->offsets[c]);
        }
    }
    free(values);
    if (!values) {
        free(block);
        return NULL;
    }
    return block;
}

static attn_status upload(struct executor *executor, const char *block, uint64_t bytes,
                          attn_error *error)
{
    return device_copy_wait(executor->params.device, executor->constants_memory, block, bytes,
                            executor->stream, error);
}

/* ---- Life ------------------------------------------------------------------------------------ */

attn_status executor_constants_create(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    executor->constants = calloc(p->model->num_layers, sizeof *executor->constants);
    if (!executor->constants)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for constants of layers");
    uint64_t bytes = lay_out(executor);
    if (bytes == 0)
        return ATTN_OK;
    executor->constants_memory =
        device_allocate(p->device, ATTN_SPACE_DEVICE, bytes, EXECUTOR_ALIGNMENT);
    if (!executor->constants_memory)
        return device_no_memory(p->device, ATTN_SPACE_DEVICE, error,
                                "no memory for %llu bytes of constants of layers",
                                (unsigned long long)bytes);
    for (uint32_t l = 0; l < p->model->num_layers; l++)
        for (uint32_t c = 0; c < executor->constants[l].count; c++)
            executor->constants[l].tensors[c].data =
                (char *)executor->constants_memory + executor->constants[l].offsets[c];
    char *block = make_values(executor, bytes);
    attn_status status =
        block ? upload(executor, block, bytes, error)
              : host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for constants of layers");
    free(block);
    return status;
}

void executor_constants_destroy(struct executor *executor)
{
    device_release(executor->params.device, ATTN_SPACE_DEVICE, executor->constants_memory);
    free(executor->constants);
}
