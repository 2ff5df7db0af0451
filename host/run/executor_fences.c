/* SPDX-License-Identifier: Apache-2.0
 *
 * executor_fences.c: detects stray writes of forwards whose rows are sampled.
 *
 * After the last row of an output lies a fence, bytes that no forward may change; what stands there
 * after it comes back with the sampled rows. On the CPU, sums over what a layer reads are taken
 * before and after, too: its vectors and its constants.
 */
#include "host/run/executor_private.h"

#include <stdio.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/operand_roles.h"

enum { FENCE_BYTE = 0xA5 };

static bool is_on(const struct executor *executor)
{
    return executor->params.config->verify.rate > 0;
}

static uint64_t all_bytes(const struct executor *executor)
{
    return (uint64_t)executor->params.model->num_layers * EXECUTOR_FENCE;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static attn_status allocate(const struct executor *executor, uint32_t space, char **memory,
                            attn_error *error)
{
    const struct device *device = executor->params.device;
    uint64_t bytes = all_bytes(executor);
    *memory = device_allocate(device, space, bytes, EXECUTOR_ALIGNMENT);
    return *memory ? device_fill(device, *memory, FENCE_BYTE, bytes, executor->stream, error)
                   : device_no_memory(device, space, error, "no memory for %llu bytes of fences",
                                      (unsigned long long)bytes);
}

attn_status executor_fences_create(struct executor *executor, attn_error *error)
{
    attn_status status = ATTN_OK;
    if (!is_on(executor))
        return ATTN_OK;
    for (uint32_t f = 0; f < executor->num_flights && status == ATTN_OK; f++)
        status = allocate(executor, ATTN_SPACE_PINNED, &executor->flights[f].fences, error);
    if (status == ATTN_OK && executor_on_cpu(executor))
        executor->fences = executor->flights[0].fences;
    else if (status == ATTN_OK)
        status = allocate(executor, ATTN_SPACE_DEVICE, &executor->fences, error);
    return status;
}

void executor_fences_destroy(struct executor *executor)
{
    const struct device *device = executor->params.device;
    if (!executor_on_cpu(executor))
        device_release(device, ATTN_SPACE_DEVICE, executor->fences);
    for (uint32_t f = 0; executor->flights && f < executor->num_flights; f++)
        device_release(device, ATTN_SPACE_PINNED, executor->flights[f].fences);
}

/* ---- What is read ---------------------------------------------------------------------------- */

/* A sum that any changed byte changes; four chains, as fast as memory is. */
static uint64_t sum_bytes(const char *bytes, uint64_t count)
{
    uint64_t chains[4] = {1, 2, 3, 4}, words[4], sum = count;
    uint64_t whole = count / sizeof words * sizeof words;
    for (uint64_t i = 0; i < whole; i += sizeof words) {
        memcpy(words, bytes + i, sizeof words);
        for (int c = 0; c < 4; c++)
            chains[c] = (chains[c] ^ words[c]) * UINT64_C(0x9E3779B97F4A7C15);
    }
    for (uint64_t i = whole; i < count; i++)
        sum = (sum ^ (uint8_t)bytes[i]) * UINT64_C(0x100000001B3);
    for (int c = 0; c < 4; c++)
        sum = (sum ^ chains[c]) * UINT64_C(0x9E3779B97F4A7C15);
    return sum;
}

static uint64_t sum_tensor(const attn_tensor *tensor)
{
    uint64_t bytes =
        (uint64_t)(tensor->shape[0] * tensor->strides[0]) * attn_dtype_size(tensor->dtype);
    return sum_bytes(tensor->data, bytes);
}

/* Operands that a layer only reads, in order; NULL = the end. */
static const attn_tensor *read_at(const struct executor *executor, int32_t layer,
                                  const struct layer_operands *o, uint32_t index, uint32_t *role)
{
    const struct layer_constants *constants = &executor->constants[layer];
    uint32_t rows = o->num_vectors + o->num_latents;
    if (index >= rows + constants->count)
        return NULL;
    *role = index < rows ? o->vectors[index].operand.role : constants->roles[index - rows];
    return index < rows ? &o->rows[index] : &constants->tensors[index - rows];
}

static void sum_all(const struct executor *executor, int32_t layer, const struct layer_operands *o,
                    struct fence_sums *sums)
{
    const attn_tensor *tensor;
    uint32_t role;
    for (sums->count = 0; (tensor = read_at(executor, layer, o, sums->count, &role)); sums->count++)
        sums->of[sums->count] = sum_tensor(tensor);
}

/* ---- Around a forward ------------------------------------------------------------------------ */

static char *fence_of(const attn_tensor *out)
{
    return (char *)out->data +
           (uint64_t)(out->shape[0] * out->strides[0]) * attn_dtype_size(out->dtype);
}

attn_status executor_fences_raise(struct executor *executor, int32_t layer,
                                  const struct layer_operands *o, struct fence_sums *sums,
                                  attn_error *error)
{
    if (!is_on(executor))
        return ATTN_OK;
    if (executor_on_cpu(executor))
        sum_all(executor, layer, o, sums);
    return device_fill(executor->params.device, fence_of(&o->out), FENCE_BYTE, EXECUTOR_FENCE,
                       executor->stream, error);
}

static void say(const struct executor *executor, int32_t layer, const char *what, uint32_t role)
{
    char text[VERIFY_FAILURE_TEXT];
    snprintf(text, sizeof text, "layer %d: %s wrote %s operand %s", layer,
             executor->params.selection->units[executor_unit_of(executor, layer)].backend, what,
             role_name(role));
    row_check_trespass(executor->params.check, text);
}

attn_status executor_fences_look(struct executor *executor, struct flight *flight, int32_t layer,
                                 const struct layer_operands *o, const struct fence_sums *before,
                                 attn_error *error)
{
    struct fence_sums after;
    uint32_t role;
    if (!is_on(executor))
        return ATTN_OK;
    if (flight && executor_on_cpu(executor)) {
        sum_all(executor, layer, o, &after);
        for (uint32_t i = 0; i < after.count; i++)
            if (after.of[i] != before->of[i] && read_at(executor, layer, o, i, &role))
                say(executor, layer, "into", role);
    }
    return device_copy(executor->params.device, executor->fences + (uint64_t)layer * EXECUTOR_FENCE,
                       fence_of(&o->out), EXECUTOR_FENCE, executor->stream, error);
}

/* ---- A step ---------------------------------------------------------------------------------- */

attn_status executor_fences_fetch(struct executor *executor, struct flight *flight,
                                  attn_error *error)
{
    if (!is_on(executor) || executor_on_cpu(executor))
        return ATTN_OK;
    return device_copy(executor->params.device, flight->fences, executor->fences,
                       all_bytes(executor), executor->stream, error);
}

void executor_fences_judge(struct executor *executor, const struct flight *flight)
{
    if (!is_on(executor))
        return;
    for (uint32_t l = 0; l < executor->params.model->num_layers; l++) {
        const char *fence = flight->fences + (uint64_t)l * EXECUTOR_FENCE;
        uint32_t at = 0;
        while (at < EXECUTOR_FENCE && (uint8_t)fence[at] == FENCE_BYTE)
            at++;
        if (at < EXECUTOR_FENCE)
            say(executor, (int32_t)l, "after the last row of", ATTN_ROLE_OUT);
    }
}
