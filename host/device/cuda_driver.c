/* SPDX-License-Identifier: Apache-2.0
 *
 * cuda_driver.c: opens libcuda.so.1, fills the table of calls, and classifies their results.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* secure_getenv, RTLD_NODELETE */
#endif
#include "host/device/cuda_driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/text.h"

/* ---- Results --------------------------------------------------------------------------------- */

attn_status cuda_status(cuda_result result)
{
    switch (result) {
#define CASE(name, value, status)                                                                  \
    case value:                                                                                    \
        return ATTN_##status;
        CUDA_RESULT_MAP(CASE)
#undef CASE
    default:
        return ATTN_INTERNAL;
    }
}

static const char *result_name(const struct cuda_driver *driver, cuda_result result)
{
    const char *name = NULL;
    return driver->cuGetErrorName(result, &name) == CUDA_SUCCESS && name ? name : "unknown result";
}

static const char *result_text(const struct cuda_driver *driver, cuda_result result)
{
    const char *text = NULL;
    return driver->cuGetErrorString(result, &text) == CUDA_SUCCESS && text ? text : "no text";
}

attn_status cuda_fail(const struct cuda_driver *driver, cuda_result result, const char *call,
                      attn_error *error, const char *what, ...)
{
    if (result == CUDA_SUCCESS)
        return ATTN_OK;
    if (!error)
        return cuda_status(result);
    char text[256];
    va_list args;
    va_start(args, what);
    text_vformat(text, sizeof text, what, args);
    va_end(args);
    return host_fail(error, cuda_status(result), "%s: %s: %s (%u): %s", text, call,
                     result_name(driver, result), result, result_text(driver, result));
}

/* ---- The library ----------------------------------------------------------------------------- */

static attn_status choose_path(const char *given, const char **path, attn_error *error)
{
    static const char variable[] = "ATTNHOST_LIBCUDA";
    *path = given ? given : secure_getenv(variable);
    if (!*path || !**path)
        *path = "libcuda.so.1";
    else if (**path != '/')
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s: '%s' is relative; accepted: an absolute file",
                         given ? "CUDA driver" : variable, *path);
    return ATTN_OK;
}

/* The address of a function as one of the table's pointers (POSIX: they have one representation).
 */
static void *find(const struct cuda_driver *driver, const char *symbol, const char **missing)
{
    void *address = dlsym(driver->library, symbol);
    if (!address && !*missing)
        *missing = symbol;
    return address;
}

/* NULL, or the first call that is missing. */
static const char *resolve(struct cuda_driver *driver)
{
    const char *missing = NULL;
    void *address;
#define RESOLVE(name, symbol, parameters)                                                          \
    address = find(driver, #symbol, &missing);                                                     \
    memcpy(&driver->name, &address, sizeof address);
    CUDA_DRIVER_CALLS(RESOLVE)
#undef RESOLVE
    return missing;
}

static attn_status fail_missing(const struct cuda_driver *driver, const char *path,
                                const char *missing, attn_error *error)
{
    int version = 0;
    if (!driver->cuDriverGetVersion || driver->cuDriverGetVersion(&version) != CUDA_SUCCESS)
        return host_fail(error, ATTN_DEPENDENCY_MISSING,
                         "%s: not a CUDA driver: it has no %s; accepted: one of CUDA 11.8 or later",
                         path, missing);
    return host_fail(error, ATTN_DEPENDENCY_MISSING,
                     "%s: the driver of CUDA %d.%d has no %s; accepted: one of CUDA 11.8 or later",
                     path, version / 1000, version % 1000 / 10, missing);
}

static attn_status start(struct cuda_driver *driver, const char *path, attn_error *error)
{
    const char *missing = resolve(driver);
    if (missing)
        return fail_missing(driver, path, missing, error);
    attn_status status =
        cuda_fail(driver, driver->cuInit(0), "cuInit", error, "CUDA driver %s", path);
    if (status == ATTN_OK)
        status = cuda_fail(driver, driver->cuDriverGetVersion(&driver->version),
                           "cuDriverGetVersion", error, "CUDA driver %s", path);
    return status;
}

attn_status cuda_driver_init(struct cuda_driver *driver, const char *path, attn_error *error)
{
    memset(driver, 0, sizeof *driver);
    attn_status status = choose_path(path, &path, error);
    if (status != ATTN_OK)
        return status;
    driver->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!driver->library)
        return host_fail(error, ATTN_DEPENDENCY_MISSING, "CUDA driver: %s", dlerror());
    status = start(driver, path, error);
    if (status != ATTN_OK)
        cuda_driver_finish(driver);
    return status;
}

void cuda_driver_finish(struct cuda_driver *driver)
{
    if (driver->library)
        dlclose(driver->library);
    memset(driver, 0, sizeof *driver);
}
