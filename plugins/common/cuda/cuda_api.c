/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_api.c: the driver and NVRTC, opened at run time, and texts of their errors.
 */
#include "plugins/common/cuda/cuda_api.h"
#include "attn_plugin_util.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

enum { WHY_SIZE = 256 };

/* Result of opening a library: written once, under pthread_once. */
static struct {
    pthread_once_t once;
    int ready;
    char why[WHY_SIZE];
    cuda_api api;
} driver = {.once = PTHREAD_ONCE_INIT};

static struct {
    pthread_once_t once;
    int ready;
    char why[WHY_SIZE];
    nvrtc_api api;
} nvrtc = {.once = PTHREAD_ONCE_INIT};

/* Opens the first of `names` that exists; NULL, with the loader's message for the first name in
 * `why`. */
static void *open_first(const char *const *names, char *why)
{
    void *library = NULL;
    for (int i = 0; names[i] && !library; i++) {
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        const char *message = library ? NULL : dlerror();
        if (i == 0)
            snprintf(why, WHY_SIZE, "%s", message ? message : "");
    }
    return library;
}

/* `to` is where a function pointer lies: POSIX lets an object pointer carry one. */
static int find(void *library, const char *name, void *to, char *why)
{
    void *symbol = dlsym(library, name);
    *(void **)to = symbol;
    if (!symbol && why)
        snprintf(why, WHY_SIZE, "%s is missing", name);
    return symbol != NULL;
}

static void open_driver(void)
{
    static const char *const names[] = {"libcuda.so.1", NULL};
    void *library = open_first(names, driver.why);
    if (!library)
        return;
    int found = 1;
#define FIND_CORE(result, name, parameters)                                                        \
    found = found && find(library, #name, &driver.api.name, driver.why);
#define FIND_MORE(result, name, parameters) find(library, #name, &driver.api.name, NULL);
    CUDA_API_CORE(FIND_CORE)
    CUDA_API_MORE(FIND_MORE)
#undef FIND_CORE
#undef FIND_MORE
    if (!found)
        return;
    int result = driver.api.cuInit(0);
    const char *name = NULL;
    if (result != CUDA_OK && driver.api.cuGetErrorName((unsigned)result, &name) != CUDA_OK)
        name = NULL;
    if (result != CUDA_OK)
        snprintf(driver.why, WHY_SIZE, "cuInit: %s", name ? name : "unknown error");
    driver.ready = result == CUDA_OK;
}

static void open_nvrtc(void)
{
    static const char *const names[] = {"libnvrtc.so.13",
                                        "libnvrtc.so.12",
                                        "libnvrtc.so.11.2",
                                        "libnvrtc.so",
                                        "/usr/local/cuda/lib64/libnvrtc.so.13",
                                        "/usr/local/cuda/lib64/libnvrtc.so.12",
                                        "/usr/local/cuda/lib64/libnvrtc.so",
                                        NULL};
    void *library = open_first(names, nvrtc.why);
    if (!library)
        return;
    int found = 1;
#define FIND(result, name, parameters)                                                             \
    found = found && find(library, #name, &nvrtc.api.name, nvrtc.why);
    NVRTC_API(FIND)
#undef FIND
    nvrtc.ready = found;
}

attn_status cuda_api_get(const cuda_api **api, attn_error *error)
{
    pthread_once(&driver.once, open_driver);
    if (!driver.ready)
        return attn_util_fail(error, ATTN_DEPENDENCY_MISSING, "no CUDA driver: %s", driver.why);
    *api = &driver.api;
    return ATTN_OK;
}

attn_status nvrtc_api_get(const nvrtc_api **api, attn_error *error)
{
    pthread_once(&nvrtc.once, open_nvrtc);
    if (!nvrtc.ready)
        return attn_util_fail(error, ATTN_DEPENDENCY_MISSING, "no NVRTC: %s", nvrtc.why);
    *api = &nvrtc.api;
    return ATTN_OK;
}

/* Results by their values in cuda.h. DEVICE_LOST: results after which the context is unusable: ECC,
 * illegal address, launch timeout, context destroyed, assert, hardware stack, illegal instruction,
 * misaligned address, address space, program counter, launch failure, and a device that
 * disappeared. */
attn_status cuda_status(int result)
{
    switch (result) {
    case CUDA_OK:
        return ATTN_OK;
    case 2:
        return ATTN_OUT_OF_DEVICE_MEMORY;
    case 3:
    case 34:
    case 35:
    case 100:
    case 101:
    case 200:
    case 209:
    case 218:
    case 222:
    case 223:
    case 803:
    case 804:
        return ATTN_DEPENDENCY_MISSING;
    case 46:
    case 214:
    case 700:
    case 702:
    case 709:
    case 710:
    case 714:
    case 715:
    case 716:
    case 717:
    case 718:
    case 719:
    case 999:
        return ATTN_DEVICE_LOST;
    default:
        return result >= 900 && result <= 910 ? ATTN_CAPTURE_UNSUPPORTED : ATTN_INTERNAL;
    }
}

attn_status cuda_fail(const cuda_api *api, int result, const char *who, const char *what,
                      attn_error *error)
{
    const char *name = NULL;
    if (api->cuGetErrorName((unsigned)result, &name) != CUDA_OK || !name)
        name = "unknown error";
    return attn_util_fail(error, cuda_status(result), "%s: %s failed: %s (%d)", who, what, name,
                          result);
}
