/* SPDX-License-Identifier: Apache-2.0
 *
 * loader_source.c: plugins that are source files, run by another plugin: python.so runs a backend
 * written in Python.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* dladdr */
#endif
#include "host/plugin/loader.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/base/configured.h"
#include "host/base/data_files.h"
#include "host/base/error.h"

/* ---- Names ----------------------------------------------------------------------------------- */

static bool is_python_file(const char *file)
{
    size_t length = strlen(file);
    return length > 3 && strcmp(file + length - 3, ".py") == 0;
}

/* "package.module:Class", or more than one name after the colon, as in "module:Outer.Inner". */
bool loader_is_module(const char *file)
{
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
    size_t module = strspn(file, word);
    if (module == 0 || file[module] != ':')
        return false;
    size_t name = strspn(file + module + 1, word);
    return name > 0 && file[module + 1 + name] == '\0';
}

bool loader_is_source(const char *file)
{
    return is_python_file(file) || loader_is_module(file);
}

const char *loader_source(const struct loader_plugin *plugin)
{
    return loader_is_source(plugin->file) ? plugin->file : NULL;
}

/* ---- What runs them -------------------------------------------------------------------------- */

/* Next to the object that this code is in, which may be a library in a wheel. */
static bool find_beside_library(char path[PATH_MAX])
{
    static const char *const places[] = {"attnhost/python.so", "../attnhost/python.so"};
    Dl_info info;
    void *here;
    attn_status (*const function)(const char *, char **, attn_error *) = loader_find_runner;
    memcpy(&here, &function, sizeof here); /* ISO C has no cast from function to data */
    if (!dladdr(here, &info) || !info.dli_fname || !strrchr(info.dli_fname, '/'))
        return false;
    int folder = (int)(strrchr(info.dli_fname, '/') - info.dli_fname);
    bool found = false;
    for (size_t p = 0; p < sizeof places / sizeof *places && !found; p++) {
        int length = snprintf(path, PATH_MAX, "%.*s/%s", folder, info.dli_fname, places[p]);
        found = length < PATH_MAX && access(path, R_OK) == 0;
    }
    return found;
}

attn_status loader_find_runner(const char *source, char **object, attn_error *error)
{
    static const char *const places[] = {"plugins/python/.libs/python.so",
                                         "../lib/attnhost/python.so",
                                         ATTNHOST_PKGLIB_DIR "/python.so"};
    char path[PATH_MAX];
    if (!find_beside_library(path) && !data_file_find(places, sizeof places / sizeof *places, path))
        return host_fail(
            error, ATTN_DEPENDENCY_MISSING,
            "%s: the plugin that runs Python backends is not installed: %s does not exist", source,
            path);
    *object = realpath(path, NULL);
    return *object ? ATTN_OK : host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "loader: out of memory");
}
