/* SPDX-License-Identifier: Apache-2.0
 *
 * device_triton_setup.c: triton_like on a GPU, an instance of it, and device memory.
 */
#include "plugins/triton_like/tests/device_triton_like.h"

#include <stdlib.h>
#include <string.h>

cuda_device gpu;
const cuda_api *cuda;
const attn_backend_type *type;

int setup_open(void)
{
    if (!cuda_device_open(&gpu))
        return 0;
    cuda = gpu.api;
    type = triton_open();
    return 1;
}

void must(int result, const char *what)
{
    cuda_must(&gpu, result, what);
}

/* ---- Device memory --------------------------------------------------------------------------- */

void *upload(buffers *all, const void *from, size_t size)
{
    cuda_address address = 0;
    if (!from || size == 0)
        return NULL;
    must(cuda->cuMemAlloc_v2(&address, size), "cuMemAlloc");
    must(cuda->cuMemcpyHtoD_v2(address, from, size), "cuMemcpyHtoD");
    all->address[all->count++] = address;
    return (void *)(uintptr_t)address;
}

void release_all(buffers *all)
{
    for (int i = 0; i < all->count; i++)
        cuda->cuMemFree_v2(all->address[i]);
    all->count = 0;
}

/* ---- The plugin ------------------------------------------------------------------------------ */

static void set_option(setup *u, const char *key, int64_t value, const char *text)
{
    u->values[u->options.num_values++] = (attn_option_value){.struct_size = sizeof u->values[0],
                                                             .key = key,
                                                             .integer = value,
                                                             .text = text,
                                                             .place = "test"};
    u->options.struct_size = sizeof u->options;
    u->options.values = u->values;
}

static void make_metadata(setup *u, uint32_t kind, const attn_bounds *bounds)
{
    attn_memory_size size = {.struct_size = sizeof size};
    attn_memory *memory = &u->memory[kind];
    triton_need(type->ops->metadata_size(u->instance, kind, bounds, &size, &triton_error),
                "metadata_size");
    *memory = (attn_memory){.struct_size = sizeof *memory};
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        uint64_t bytes = memory->size[region] = size.size[region];
        if (bytes == 0)
            continue;
        if (region >= ATTN_REGION(ATTN_SPACE_PINNED, 0)) {
            memory->base[region] = triton_host_region(bytes);
            continue;
        }
        cuda_address *address = &u->device_memory[kind][region];
        must(cuda->cuMemAlloc_v2(address, bytes), "cuMemAlloc of a region");
        must(cuda->cuMemsetD8_v2(*address, 0xFF, bytes), "cuMemsetD8");
        memory->base[region] = (void *)(uintptr_t)*address;
    }
    triton_need(type->ops->metadata_create(u->instance, kind, bounds, memory, &u->metadata[kind],
                                           &triton_error),
                "metadata_create");
}

void setup_create(setup *u, const attn_problem *problem, int64_t splits, int64_t tile,
                  int64_t precise)
{
    memset(u, 0, sizeof *u);
    triton_kernel_dir(u->kernel_dir, sizeof u->kernel_dir);
    set_option(u, "kernel_dir", 0, u->kernel_dir);
    set_option(u, "num_kv_splits", splits, "");
    set_option(u, "split_tile_size", tile, "");
    set_option(u, "split_probabilities", precise, "");
    triton_need(
        type->create(type, problem, 1, &u->options, &triton_services, &u->instance, &triton_error),
        "create");
    triton_need(type->ops->prepare(u->instance, NULL, NULL, &triton_error), "prepare");
    must(cuda->cuStreamCreate(&u->stream, 1), "cuStreamCreate");
    make_metadata(u, ATTN_METADATA_EAGER, problem->bounds);
    make_metadata(u, ATTN_METADATA_GRAPH, problem->bounds);
}

void setup_destroy(setup *u)
{
    for (int kind = 0; kind < 2; kind++) {
        type->ops->metadata_destroy(u->metadata[kind]);
        for (uint32_t region = ATTN_REGION(ATTN_SPACE_PINNED, 0); region < ATTN_REGION_COUNT;
             region++)
            free(u->memory[kind].base[region]);
        for (int i = 0; i < 2; i++)
            if (u->device_memory[kind][i])
                cuda->cuMemFree_v2(u->device_memory[kind][i]);
    }
    type->ops->destroy(u->instance);
    cuda->cuStreamDestroy_v2(u->stream);
}

attn_status forward(setup *u, uint32_t kind, uint32_t mode, int32_t layer_id,
                    const attn_forward_args *args)
{
    if (mode == ATTN_MODE_DECODE)
        return type->ops->forward_decode(u->metadata[kind], layer_id, args, u->stream,
                                         &triton_error);
    return type->ops->forward_extend(u->metadata[kind], layer_id, args, u->stream, &triton_error);
}
