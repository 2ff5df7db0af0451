/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu_test.h: what tests on a real GPU begin with.
 */
#ifndef GPU_TEST_H
#define GPU_TEST_H

#include "host/device/device.h"

#include <sys/wait.h>
#include <unistd.h>

/* Is there a GPU? Asked in a separate process: the driver does not survive a fork, and the tests
 * are forked. */
static inline int has_gpu(void)
{
    pid_t child = fork();
    int status = -1;
    if (child == 0) {
        attn_device info;
        attn_status described = device_describe(ATTN_DEVICE_CUDA, 0, &info, NULL);
        _exit(described == ATTN_DEPENDENCY_MISSING);
    }
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* Of a program that says so where there is no GPU, or where `why` it is not built. */
#define GPU_TESTS(name)                                                                            \
    int main(void)                                                                                 \
    {                                                                                              \
        if (has_gpu())                                                                             \
            return test_main(name);                                                                \
        puts("1..0 # SKIP no CUDA driver or no GPU");                                              \
        return EXIT_SUCCESS;                                                                       \
    }                                                                                              \
    _Static_assert(1, "")
#define NO_GPU_TESTS(why)                                                                          \
    int main(void)                                                                                 \
    {                                                                                              \
        puts("1..0 # SKIP " why);                                                                  \
        return EXIT_SUCCESS;                                                                       \
    }                                                                                              \
    _Static_assert(1, "")

#endif /* GPU_TEST_H */
