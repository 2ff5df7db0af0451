/* SPDX-License-Identifier: Apache-2.0
 *
 * embed_on_fake.c: with examples/embed_cuda.c as it stands, makes a program that runs on the fake
 * CUDA driver (tests/command/embed_cuda.sh): before main() the fake becomes the driver of the
 * process and of its plugins, with the kernels of the backend cuda_fixture. At the end nothing may
 * be left, and nothing have gone wrong on the device.
 */
#include "tests/fixtures/cuda_fixture_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct fake_cuda fake;

static void look_back(void)
{
    struct fake_cuda_counters counters;
    struct fake_cuda_live live;
    fake.get_counters(&counters);
    fake.get_live(&live);
    if (counters.overruns || counters.faults || counters.abandoned || counters.spoilt_captures)
        fprintf(stderr, "fake: overruns %d, faults %d, left behind %d, captures spoilt %d: %s\n",
                (int)counters.overruns, (int)counters.faults, (int)counters.abandoned,
                (int)counters.spoilt_captures, fake.first_fault());
    else if (live.contexts || live.allocations || live.pinned || live.streams || live.execs)
        fprintf(stderr, "fake: something is left on the device\n");
    else if (counters.graph_launches == 0)
        fprintf(stderr, "fake: no graph was launched\n");
    else
        return;
    fflush(NULL);
    _exit(1);
}

static void fixture_path(const char *name, char *path)
{
    const char *folder = getenv("ATTNHOST_TEST_FIXTURE_DIR");
    snprintf(path, 4096, "%s/%s", folder ? folder : "tests/fixtures/.libs", name);
}

__attribute__((constructor)) static void use_fake(void)
{
    char path[4096];
    fixture_path("fake_cuda.so", path);
    if (fake_cuda_load(path, &fake) != 0) {
        fprintf(stderr, "fake: %s\n", dlerror());
        _exit(1);
    }
    setenv("ATTNHOST_LIBCUDA", path, 1);
    cuda_fixture_define(&fake);
    fixture_path("libcuda.so.1", path);
    if (!dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
        fprintf(stderr, "fake: %s\n", dlerror());
        _exit(1);
    }
    atexit(look_back);
}
