/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin_test.h: a plugin's .so through its entry, and host memory for what it makes: what tests of
 * one plugin begin with.
 */
#ifndef PLUGIN_TEST_H
#define PLUGIN_TEST_H

#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "attn_plugin.h"

/* Open the file that the environment variable names (NULL = none does), else `file` among the
 * plugins. */
static inline void open_plugin_file(const char *variable, const char *file, attn_plugin *plugin,
                                    attn_error *error)
{
    char path[4096];
    const char *given = variable ? getenv(variable) : NULL;
    const char *dir = getenv("ATTNHOST_TEST_PLUGIN_DIR");
    if (given)
        snprintf(path, sizeof path, "%s", given);
    else
        snprintf(path, sizeof path, "%s/%s", dir ? dir : "plugins/.libs", file);
    void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(object, "%s", dlerror());
    attn_plugin_entry_fn entry;
    *(void **)&entry = dlsym(object, ATTN_PLUGIN_ENTRY);
    ck_assert_msg(entry != NULL, "%s has no entry", path);
    attn_host_info host = {.struct_size = sizeof host,
                           .abi_major_min = ATTN_ABI_MAJOR,
                           .abi_major_max = ATTN_ABI_MAJOR,
                           .name = "test",
                           .version = "0"};
    *plugin = (attn_plugin){.struct_size = sizeof *plugin};
    ck_assert_int_eq(entry(&host, plugin, error), ATTN_OK);
}

/* Services: memory of the host, whatever the space. */
static inline void *test_allocate(void *ctx, uint32_t space, uint64_t size, uint64_t alignment)
{
    (void)ctx;
    (void)space;
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static inline void test_release(void *ctx, uint32_t space, void *memory)
{
    (void)ctx;
    (void)space;
    free(memory);
}

#endif /* PLUGIN_TEST_H */
