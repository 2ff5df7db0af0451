/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_module.c: modules of kernels on an NVIDIA GPU, and launches of them.
 */
#include "host/device/cuda.h"

#include "host/base/error.h"

#include <stdlib.h>
#include <string.h>

/* The image with a NUL after it, which ends a PTX text; the driver asks for no size. */
static char *copy_image(const void *image, uint64_t size)
{
    char *copy = size < SIZE_MAX ? malloc((size_t)size + 1) : NULL;
    if (copy) {
        memcpy(copy, image, (size_t)size);
        copy[size] = '\0';
    }
    return copy;
}

attn_status cuda_module_load(const struct device *device, const void *image, uint64_t size,
                             const char *what, struct device_module **module, attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    char log[160] = "", *copy = copy_image(image, size); /* log: of the driver's PTX compiler */
    unsigned int options[] = {CUDA_JIT_ERROR_LOG, CUDA_JIT_ERROR_LOG_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    cuda_module made = NULL;
    cuda_result result;
    if (!copy)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "cuda:%d: %s: no memory for the image",
                         cuda->id, what);
    IN_CONTEXT(cuda, result, cuModuleLoadDataEx(&made, copy, 2, options, values));
    free(copy);
    if (result == CUDA_SUCCESS)
        *module = (struct device_module *)made;
    log[strcspn(log, "\n")] = '\0';
    return cuda_fail(&cuda->driver, result, "cuModuleLoadDataEx", error, "cuda:%d: %s%s%s",
                     cuda->id, what, *log ? ": " : "", log);
}

void cuda_module_unload(const struct device *device, struct device_module *module)
{
    struct cuda *cuda = cuda_of(device);
    cuda_result result;
    IN_CONTEXT(cuda, result, cuModuleUnload((cuda_module)module));
}

attn_status cuda_function_of(const struct device *device, struct device_module *module,
                             const char *name, struct device_function **function, attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    cuda_function found = NULL;
    cuda_result result;
    IN_CONTEXT(cuda, result, cuModuleGetFunction(&found, (cuda_module)module, name));
    if (result == CUDA_SUCCESS)
        *function = (struct device_function *)found;
    return cuda_fail(&cuda->driver, result, "cuModuleGetFunction", error, "cuda:%d: %s", cuda->id,
                     name);
}

attn_status cuda_launch(const struct device *device, struct device_function *function,
                        const uint32_t grid[3], const uint32_t block[3], void **arguments,
                        attn_stream stream, attn_error *error)
{
    struct cuda *cuda = cuda_of(device);
    cuda_result result;
    IN_CONTEXT(cuda, result,
               cuLaunchKernel((cuda_function)function, grid[0], grid[1], grid[2], block[0],
                              block[1], block[2], 0, stream, arguments, NULL));
    return cuda_check(cuda, result, "cuLaunchKernel", error);
}
