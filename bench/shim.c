/* SPDX-License-Identifier: Apache-2.0
 *
 * shim.c: see shim.h.
 */
#include "shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Make and free --------------------------------------------------------------------------- */

attn_status shim_init(shim *s, const char *setup, size_t given, size_t expected)
{
    s->error = (attn_error){
        .struct_size = sizeof s->error, .capacity = sizeof s->message, .message = s->message};
    if (given == expected)
        return ATTN_OK;
    snprintf(s->message, sizeof s->message, "%s of %zu bytes: accepted %zu", setup, given,
             expected);
    return ATTN_INVALID_ARGUMENT;
}

static attn_status allocate(shim *s, const shim_params *params)
{
    size_t layers = (size_t)params->num_layers;
    s->layers = calloc(layers, sizeof *s->layers);
    s->tensors = calloc(layers, sizeof *s->tensors);
    s->operands = calloc(layers, sizeof *s->operands);
    s->index = calloc(1, params->index_bytes);
    if (!s->layers || !s->tensors || !s->operands || !s->index) {
        snprintf(s->message, sizeof s->message, "out of memory");
        return ATTN_OUT_OF_HOST_MEMORY;
    }
    for (int32_t i = 0; i < params->num_layers; i++)
        s->layers[i] =
            (attn_layer){.struct_size = sizeof(attn_layer), .layer_id = i, .kv_buffer = i};
    return ATTN_OK;
}

static attn_status load(shim *s, const char *plugin)
{
    if (!plugin)
        return attnhost_load_installed(s->host, &s->error);
    if (*plugin && plugin[strlen(plugin) - 1] == '/')
        return attnhost_load_directory(s->host, plugin, &s->error);
    return attnhost_load_plugin(s->host, plugin, &s->error);
}

attn_status shim_open(shim *s, const shim_params *params)
{
    const attnhost_params host_params = {.struct_size = sizeof host_params,
                                         .num_threads = (uint32_t)params->num_threads,
                                         .log_level = ATTN_LOG_WARNING};
    s->device_type = params->device_type;
    s->index_bytes = params->index_bytes;
    s->describe = params->describe;
    s->num_layers = params->num_layers;
    attn_status status = allocate(s, params);
    if (status == ATTN_OK)
        status = attnhost_create(&host_params, &s->host, &s->error);
    return status == ATTN_OK ? load(s, params->plugin) : status;
}

attn_status shim_compose(shim *s, const char *type, const char *const *options,
                         uint32_t num_options, const attn_problem *problem, uint32_t kind)
{
    static const char name[] = "bench"; /* the backend's own section, with the options */
    attn_device device = {.struct_size = sizeof device};
    attn_problem placed = *problem;
    placed.device = &device;
    attn_status status = attnhost_device_init(&device, s->device_type, 0, &s->error);
    if (status == ATTN_OK)
        status = attnhost_define_backend(s->host, name, type, options, num_options, &s->error);
    if (status == ATTN_OK)
        status = attnhost_compose(s->host, name, &placed, 1, &s->backend, &s->error);
    if (status == ATTN_OK)
        status = attnhost_backend_prepare(s->backend, NULL, NULL, &s->error);
    if (status == ATTN_OK)
        status = attnhost_metadata_create(s->backend, kind, problem->bounds, NULL, &s->metadata,
                                          &s->error);
    return status;
}

void shim_destroy(shim *s)
{
    if (!s)
        return;
    attnhost_metadata_destroy(s->metadata);
    attnhost_backend_destroy(s->backend);
    attnhost_destroy(s->host);
    free(s->layers);
    free(s->tensors);
    free(s->operands);
    free(s->index);
    free(s);
}

const char *shim_message(const shim *s)
{
    return s->message;
}

/* ---- Use ------------------------------------------------------------------------------------- */

attn_status shim_bind(shim *s, int32_t layer, uint32_t role, void *data, uint32_t dtype,
                      uint32_t ndim, const int64_t *shape)
{
    attn_tensor *tensor = &s->tensors[layer][role];
    s->operands[layer][role] = data ? tensor : NULL;
    return data ? attnhost_tensor_init(tensor, data, s->device_type, 0, dtype, ndim, shape, NULL,
                                       &s->error)
                : ATTN_OK;
}

const void *shim_index(const shim *s, int64_t *bytes)
{
    *bytes = (int64_t)s->index_bytes;
    return s->index;
}

void shim_place_index(shim *s, const void *device)
{
    s->index_copy = device;
    s->describe(s);
}

attn_i32_array shim_both(const shim *s, const int32_t *array)
{
    const char *copy = s->index_copy + ((const char *)array - (const char *)s->index);
    return (attn_i32_array){array, (const int32_t *)(const void *)copy};
}

attn_status shim_plan(shim *s, void *stream)
{
    if (!s->index_copy) {
        snprintf(s->message, sizeof s->message, "plan before the index is placed");
        return ATTN_BAD_STATE;
    }
    return attnhost_init_forward_metadata(s->metadata, &s->batch, stream, &s->error);
}

attn_status shim_forward(shim *s, int32_t layer, uint32_t flags, void *stream)
{
    const attn_forward_args args = {.struct_size = sizeof args,
                                    .flags = s->flags | flags,
                                    .num_operands = ATTN_ROLE_COUNT,
                                    .num_scales = ATTN_ROLE_COUNT,
                                    .operands = s->operands[layer],
                                    .scales = s->scales};
    return attnhost_forward(s->metadata, layer, &args, stream, &s->error);
}

attn_status shim_steps(shim *s, int32_t count)
{
    attn_status status = ATTN_OK;
    for (int32_t step = 0; step < count && status == ATTN_OK; step++) {
        status = shim_plan(s, NULL);
        for (int32_t layer = 0; layer < s->num_layers && status == ATTN_OK; layer++)
            status = shim_forward(s, layer, 0, NULL);
    }
    return status;
}

/* Fisher and Yates, fixed seed. */
void shim_shuffle_pages(int32_t *pages, int32_t count)
{
    uint64_t random = 0x9e3779b97f4a7c15u;
    for (int32_t i = 0; i < count; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        int32_t j = (int32_t)((random >> 33) % (uint64_t)(i + 1));
        pages[i] = pages[j];
        pages[j] = i + 1;
    }
}
