/* SPDX-License-Identifier: Apache-2.0
 *
 * triton_device.c: triton_like's .so, opened with services of the test's own.
 */
#include "plugins/triton_like/tests/triton_device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/tools/cuda_device.h"

static char message[1024];
attn_error triton_error = {
    .struct_size = sizeof triton_error, .capacity = sizeof message, .message = message};

void triton_need(attn_status status, const char *what)
{
    if (status != ATTN_OK)
        test_bail_out(what, message);
}

/* ---- Services -------------------------------------------------------------------------------- */

static void test_log(void *ctx, uint32_t level, const char *text)
{
    (void)ctx;
    if (level <= ATTN_LOG_WARNING)
        printf("# %s\n", text);
}

static void *test_allocate(void *ctx, uint32_t space, uint64_t size, uint64_t alignment)
{
    (void)ctx;
    return space == ATTN_SPACE_HOST
               ? aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment)
               : NULL;
}

static void test_release(void *ctx, uint32_t space, void *memory)
{
    (void)ctx;
    (void)space;
    free(memory);
}

const attn_services triton_services = {.struct_size = sizeof triton_services,
                                       .num_workers = 1,
                                       .log = test_log,
                                       .allocate = test_allocate,
                                       .release = test_release};

/* ---- The plugin ------------------------------------------------------------------------------ */

const attn_backend_type *triton_open(void)
{
    char path[4096];
    const char *dir = getenv("ATTNHOST_TEST_PLUGIN_DIR");
    const attn_backend_type *type;
    attn_plugin_entry_fn entry;
    attn_host_info host = {.struct_size = sizeof host,
                           .abi_major_min = ATTN_ABI_MAJOR,
                           .abi_major_max = ATTN_ABI_MAJOR,
                           .name = "test",
                           .version = "0"};
    attn_plugin plugin = {.struct_size = sizeof plugin};
    snprintf(path, sizeof path, "%s/triton_like.so", dir ? dir : "plugins/.libs");
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!object)
        test_bail_out("dlopen", dlerror());
    *(void **)&entry = dlsym(object, ATTN_PLUGIN_ENTRY);
    triton_need(entry(&host, &plugin, &triton_error), "entry");
    triton_need(plugin.describe(0, &type, &triton_error), "describe");
    return type;
}

void triton_kernel_dir(char *path, size_t size)
{
    const char *top = getenv("ATTNHOST_TEST_SRCDIR");
    snprintf(path, size, "%s/plugins/triton_like/kernels", top ? top : ".");
}

void *triton_host_region(uint64_t bytes)
{
    return aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
}
