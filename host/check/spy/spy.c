/* SPDX-License-Identifier: Apache-2.0
 *
 * spy.c: puts the spy before the CUDA driver.
 *
 * The loader gives every caller that opens "libcuda.so.1" the first object of that SONAME in the
 * process. So the spy is opened before the driver, and opens the driver by its path. Only the
 * loader knows that path, and only of an open object: a child process opens the driver and reads
 * it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* secure_getenv, dlinfo */
#endif
#include "host/check/spy/spy.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/base/data_files.h"
#include "host/base/error.h"
#include "host/base/configured.h"

static const char driver_name[] = "libcuda.so.1";

/* ---- Where the driver is --------------------------------------------------------------------- */

/* In the child: write the path of the driver, or nothing. */
static void tell_path(int to)
{
    struct link_map *map = NULL;
    void *library = dlopen(driver_name, RTLD_LAZY | RTLD_LOCAL);
    char path[PATH_MAX];
    if (library && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && realpath(map->l_name, path) &&
        write(to, path, strlen(path)) < 0)
        _exit(1);
    _exit(0);
}

/* Up to `size` - 1 bytes until the other side closes. */
static void read_all(int from, char *text, size_t size)
{
    size_t length = 0;
    ssize_t got = 1;
    while (got > 0 && length < size - 1) {
        got = read(from, text + length, size - 1 - length);
        length += got > 0 ? (size_t)got : 0;
    }
    text[length] = '\0';
}

static attn_status ask_loader(char path[PATH_MAX], attn_error *error)
{
    int ends[2];
    if (pipe(ends) != 0)
        return host_fail(error, ATTN_INTERNAL, "pipe: no file descriptor");
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        tell_path(ends[1]);
    }
    close(ends[1]);
    path[0] = '\0';
    if (child > 0) {
        read_all(ends[0], path, PATH_MAX);
        waitpid(child, NULL, 0);
    }
    close(ends[0]);
    if (child < 0)
        return host_fail(error, ATTN_INTERNAL, "fork: no process");
    if (!path[0])
        return host_fail(error, ATTN_DEPENDENCY_MISSING, "%s cannot be opened", driver_name);
    return ATTN_OK;
}

static attn_status find_driver(char path[PATH_MAX], attn_error *error)
{
    const char *given = secure_getenv("ATTNHOST_LIBCUDA");
    if (!given || !*given)
        return ask_loader(path, error);
    if (strlen(given) >= PATH_MAX)
        return host_fail(error, ATTN_CONFIG_ERROR, "ATTNHOST_LIBCUDA is too long");
    snprintf(path, PATH_MAX, "%s", given);
    return ATTN_OK;
}

/* ---- The spy --------------------------------------------------------------------------------- */

/* Fill the table; false if the object is another one. */
static bool resolve(void *library, struct spy_cuda *spy)
{
    void *address;
#define RESOLVE(type, name, parameters)                                                            \
    address = dlsym(library, "spy_cuda_" #name);                                                   \
    if (!address)                                                                                  \
        return false;                                                                              \
    memcpy(&spy->name, &address, sizeof address);
    SPY_CUDA_CONTROLS(RESOLVE)
#undef RESOLVE
    return true;
}

bool spy_find(struct spy_cuda *spy, char *why, size_t size)
{
    void *library = dlopen(driver_name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    bool found = library && resolve(library, spy);
    if (library)
        dlclose(library);
    if (!found)
        snprintf(why, size, "nothing watches the calls of the CUDA driver: %s",
                 library ? "it was opened before the spy" : "the spy is not installed");
    return found;
}

static attn_status open_spy(const char *file, void **library, attn_error *error)
{
    static const char *const places[] = {"host/check/spy/.libs/libcuda.so.1",
                                         "../lib/attnhost/spy/libcuda.so.1", ATTNHOST_SPY_FILE};
    char found[PATH_MAX];
    if (!file) {
        data_file_find(places, sizeof places / sizeof *places, found);
        file = found;
    }
    *library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return *library
               ? ATTN_OK
               : host_fail(error, ATTN_DEPENDENCY_MISSING, "spy on the CUDA driver: %s", dlerror());
}

attn_status spy_install(const char *file, attn_error *error)
{
    struct spy_cuda spy;
    char path[PATH_MAX], why[128];
    if (spy_find(&spy, why, sizeof why))
        return ATTN_OK;
    void *open = dlopen(driver_name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (open) {
        dlclose(open);
        return host_fail(error, ATTN_BAD_STATE, "%s is already open", driver_name);
    }
    void *library = NULL;
    attn_status status = find_driver(path, error);
    if (status == ATTN_OK)
        status = open_spy(file, &library, error);
    if (status != ATTN_OK)
        return status;
    const char *wrong = resolve(library, &spy) ? spy.open(path) : "it is not a spy";
    return wrong ? host_fail(error, ATTN_DEPENDENCY_MISSING, "spy on the CUDA driver: %s", wrong)
                 : ATTN_OK;
}
