/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_cuda_test.h: what tests with the fake CUDA driver begin with.
 */
#ifndef FAKE_CUDA_TEST_H
#define FAKE_CUDA_TEST_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fixtures/fake_cuda.h"

static struct fake_cuda fake;

/* A file of the fixtures. `path` has room for 4096 bytes. */
static inline void fixture_path(const char *name, char *path)
{
    const char *folder = getenv("ATTNHOST_TEST_FIXTURE_DIR");
    ck_assert_msg(folder != NULL, "ATTNHOST_TEST_FIXTURE_DIR is not set");
    snprintf(path, 4096, "%s/%s", folder, name);
}

/* Make the fake the driver of this process, as it is after its reset(). */
static inline void use_fake_cuda(void)
{
    char path[4096];
    fixture_path("fake_cuda.so", path);
    ck_assert_msg(fake_cuda_load(path, &fake) == 0, "%s", dlerror());
    fake.reset();
    setenv("ATTNHOST_LIBCUDA", path, 1);
}

/* The same, and the driver of the plugins that this process will open. */
static inline void use_fake_cuda_in_plugins(void)
{
    char path[4096];
    use_fake_cuda();
    fixture_path("libcuda.so.1", path);
    ck_assert_msg(dlopen(path, RTLD_NOW | RTLD_LOCAL) != NULL, "%s", dlerror());
}

/* Kernels of a fixture: what its function `call` defines in the fake. */
static inline void fixture_define(const char *file, const char *call)
{
    char path[4096];
    void (*define_all)(void);
    fixture_path(file, path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, call) : NULL;
    ck_assert_msg(symbol != NULL, "%s", dlerror());
    memcpy(&define_all, &symbol, sizeof define_all);
    define_all();
}

/* Nothing is alive on any device. */
static inline void assert_nothing_left(void)
{
    struct fake_cuda_live live;
    fake.get_live(&live);
    ck_assert_uint_eq(live.contexts, 0);
    ck_assert_uint_eq(live.allocations, 0);
    ck_assert_uint_eq(live.bytes, 0);
    ck_assert_uint_eq(live.pinned, 0);
    ck_assert_uint_eq(live.streams, 0);
    ck_assert_uint_eq(live.events, 0);
    ck_assert_uint_eq(live.graphs, 0);
    ck_assert_uint_eq(live.execs, 0);
    ck_assert_uint_eq(live.modules, 0);
}

/* No red zone damaged, no access out of bounds, nothing left in a context that went. */
static inline void assert_clean(void)
{
    struct fake_cuda_counters counters;
    fake.get_counters(&counters);
    ck_assert_msg(!counters.overruns && !counters.faults, "%s", fake.first_fault());
    ck_assert_uint_eq(counters.abandoned, 0);
}

#endif /* FAKE_CUDA_TEST_H */
