/* SPDX-License-Identifier: Apache-2.0
 *
 * executor_operands.c: the operands of a layer's forward: generated rows, cache, scales, state,
 * constants.
 */
#include "host/run/executor_private.h"

#include <string.h>

#include "host/base/error.h"

/* ---- Memory ---------------------------------------------------------------------------------- */

static void widen(const struct row_operand *operand, uint64_t *widest)
{
    uint64_t bytes = operands_row_bytes(operand);
    if (bytes > widest[operand->role])
        widest[operand->role] = bytes;
}

/* Bytes of the widest row of each operand over all layers in all forms; 0 = none has it. */
static void find_widest(const struct model *model, uint64_t widest[ATTN_ROLE_COUNT])
{
    memset(widest, 0, ATTN_ROLE_COUNT * sizeof *widest);
    for (int32_t l = 0; l < operands_num_forms(model); l++) {
        struct row_operand list[OPERANDS_MAX], out = operands_output(model, l);
        struct row_operand lse = operands_lse(model, l);
        uint32_t count = operands_list(model, l, list);
        for (uint32_t i = 0; i < count; i++)
            widen(&list[i], widest);
        struct row_operand choice = operands_choice(model, l);
        widen(&out, widest);
        widen(&choice, widest);
        if (operands_is_expanded(model, l))
            widen(&lse, widest);
    }
}

attn_status executor_operands_create(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    uint64_t widest[ATTN_ROLE_COUNT];
    find_widest(p->model, widest);
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        uint64_t bytes = (uint64_t)p->bounds.max_tokens * widest[role];
        if (bytes == 0)
            continue;
        executor->operands[role] = device_allocate(p->device, ATTN_SPACE_DEVICE,
                                                   bytes + EXECUTOR_FENCE, EXECUTOR_ALIGNMENT);
        if (!executor->operands[role])
            return device_no_memory(
                p->device, ATTN_SPACE_DEVICE, error,
                "no memory for steps of %d tokens: %llu bytes; accepted: a smaller "
                "workload.chunked_prefill_size or kv_cache.mem_fraction",
                p->bounds.max_tokens, (unsigned long long)bytes);
    }
    return ATTN_OK;
}

void executor_operands_destroy(struct executor *executor)
{
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        device_release(executor->params.device, ATTN_SPACE_DEVICE, executor->operands[role]);
}

/* ---- Views ----------------------------------------------------------------------------------- */

void executor_view_rows(const struct executor *executor, const struct row_operand *operand,
                        void *memory, int64_t rows, attn_tensor *tensor)
{
    const struct device *device = executor->params.device;
    int64_t elements = operands_row_elements(operand);
    *tensor = (attn_tensor){
        .struct_size = sizeof *tensor,
        .data = memory,
        .device_type = device->type,
        .device_id = device->id,
        .dtype = operand->dtype,
        .ndim = 2,
        .alignment = EXECUTOR_ALIGNMENT,
        .shape = {rows, operand->dim},
        .strides = {elements, 1},
    };
    if (operand->heads == 0)
        return;
    tensor->ndim = 3;
    tensor->shape[1] = operand->heads;
    tensor->shape[2] = operand->dim;
    tensor->strides[1] = operand->dim;
    tensor->strides[2] = 1;
}

static void view_scale(const float *values, uint32_t count, attn_scale *scale)
{
    *scale = (attn_scale){
        .struct_size = sizeof *scale,
        .granularity = count > 1 ? ATTN_SCALE_PER_HEAD : ATTN_SCALE_PER_TENSOR,
        .count = count,
        .host = values,
    };
}

/* ---- A layer --------------------------------------------------------------------------------- */

/* Rows of an operand in its own memory, handed over by its role. */
static void set_operand(const struct executor *executor, const struct row_operand *operand,
                        int64_t rows, attn_tensor *tensor, struct layer_operands *o)
{
    executor_view_rows(executor, operand, executor->operands[operand->role], rows, tensor);
    o->operands[operand->role] = tensor;
}

/* Vectors whose keys and values come from an encoder: these are passed if the step has any. */
static void split_encoded(const struct executor *executor, const struct row_operand *list,
                          struct layer_operands *o)
{
    if (!operands_are_encoded(executor->params.model, o->form))
        return;
    o->num_encoded = operands_count_kv(list, o->num_vectors);
    if (executor->batch.encoder_rows.count > 0)
        return;
    o->num_vectors -= o->num_encoded;
    o->num_encoded = 0;
}

static void set_rows(const struct executor *executor, int32_t l, int64_t rows,
                     struct layer_operands *o)
{
    const struct model *model = executor->params.model;
    const attn_layer_group *group = &model->groups[model->layers[l].group];
    struct row_operand list[OPERANDS_MAX], lse = operands_lse(model, o->form);
    o->num_vectors = operands_list(model, o->form, list);
    split_encoded(executor, list, o);
    o->num_latents = operands_list_latents(model, o->form, list + o->num_vectors);
    uint32_t num_own = o->num_vectors - o->num_encoded;
    for (uint32_t i = 0; i < o->num_vectors + o->num_latents; i++) {
        bool encoded = i >= num_own && i < o->num_vectors;
        o->vectors[i] = (struct step_vectors){list[i], group, executor->operands[list[i].role]};
        set_operand(executor, &list[i], encoded ? executor->batch.encoder_rows.count : rows,
                    &o->rows[i], o);
    }
    o->written = operands_output(model, o->form);
    set_operand(executor, &o->written, rows, &o->out, o);
    o->choice = operands_choice(model, o->form);
    if (o->choice.dim > 0)
        set_operand(executor, &o->choice, rows, &o->chosen, o);
    if (operands_is_expanded(model, o->form))
        set_operand(executor, &lse, rows, &o->lse, o);
}

static void set_constants(const struct executor *executor, int32_t l, struct layer_operands *o)
{
    const struct layer_constants *constants = &executor->constants[l];
    for (uint32_t c = 0; c < constants->count; c++)
        o->operands[constants->roles[c]] = &constants->tensors[c];
}

/* The layer's buffer of the pool, and how it is quantised. */
static void set_pool(const struct executor *executor, int32_t l, struct layer_operands *o)
{
    const struct executor_params *p = &executor->params;
    const struct model_layer *layer = &p->model->layers[l];
    const struct kv_pool_buffer *buffer = &p->pool->buffers[layer->kv_buffer];
    const struct verify_scales *scales = &p->scales[layer->group];
    if (scales->k) {
        view_scale(scales->k, scales->count, &o->key_scale);
        view_scale(scales->v, scales->count, &o->value_scale);
    }
    for (uint32_t t = 0; t < buffer->num_tensors; t++) {
        const struct kv_pool_tensor *stored = &buffer->tensors[t];
        o->operands[stored->role] = &stored->tensor;
        if (scales->k && stored->scale != KIND_SCALE_NONE)
            o->scales[stored->role] =
                stored->scale == KIND_SCALE_KEY ? &o->key_scale : &o->value_scale;
    }
}

void executor_operands_set(struct executor *executor, int32_t l, int64_t rows, uint32_t flags,
                           struct layer_operands *o)
{
    const struct model *model = executor->params.model;
    memset(o, 0, sizeof *o);
    o->form = operands_form(model, l, executor->batch.mode);
    set_rows(executor, l, rows, o);
    bool saves =
        operands_write_kv(model, l) && (o->num_encoded > 0 || !operands_are_encoded(model, l));
    set_constants(executor, l, o);
    if (model->layers[l].kv_buffer >= 0)
        set_pool(executor, l, o);
    o->args = (attn_forward_args){
        .struct_size = sizeof o->args,
        .flags = flags | (saves ? ATTN_FORWARD_SAVE_KV : 0),
        .num_operands = ATTN_ROLE_COUNT,
        .num_scales = ATTN_ROLE_COUNT,
        .operands = o->operands,
        .scales = o->scales,
    };
}
