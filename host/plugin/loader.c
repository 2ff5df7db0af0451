/* SPDX-License-Identifier: Apache-2.0
 *
 * loader.c: the steps of opening a plugin, in their order.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* dladdr1, dlinfo */
#endif
#include "host/plugin/loader.h"

#include "host/plugin/adapters.h"
#include "host/plugin/answer.h"
#include "host/plugin/guard.h"
#include "host/plugin/scan.h"
#include "host/plugin/services.h"
#include "host/base/configured.h"
#include "host/base/text.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- Open ------------------------------------------------------------------------------------ */

/* What dlerror() says, without the file's name before it and a newline in it. */
static const char *clean_dlerror(const char *file, char text[512])
{
    const char *said = dlerror();
    size_t length = strlen(file);
    if (!said)
        said = "no reason given";
    if (strncmp(said, file, length) == 0 && strncmp(said + length, ": ", 2) == 0)
        said += length + 2;
    snprintf(text, 512, "%s", said);
    text[strcspn(text, "\n")] = '\0';
    return text;
}

/* The reason that the dynamic linker does not give. */
static const char *noexec_text(const char *file)
{
    struct statvfs system;
    return statvfs(file, &system) == 0 && system.f_flag & ST_NOEXEC
               ? "; its file system is mounted noexec: accepted one that is not"
               : "";
}

static attn_status open_object(struct loader_plugin *plugin, attn_error *error)
{
    char said[512];
    const struct guard_party party = {.file = plugin->file};
    struct guard_call call;
    dlerror();
    guard_enter(&call, &party, "dlopen");
    plugin->handle = dlopen(plugin->object, RTLD_NOW | RTLD_LOCAL);
    guard_leave(&call);
    if (plugin->handle)
        return ATTN_OK;
    return host_fail(error, ATTN_DEPENDENCY_MISSING, "%s: cannot be loaded: %s%s", plugin->object,
                     clean_dlerror(plugin->object, said), noexec_text(plugin->object));
}

/* dlsym() also searches what the object links; an entry found there belongs to another object. */
static attn_status resolve_entry(const struct loader_plugin *plugin, attn_plugin_entry_fn *entry,
                                 attn_error *error)
{
    Dl_info info;
    void *home = NULL;
    struct link_map *own = NULL;
    void *symbol = dlsym(plugin->handle, ATTN_PLUGIN_ENTRY);
    bool here = symbol && dladdr1(symbol, &info, &home, RTLD_DL_LINKMAP) != 0 &&
                dlinfo(plugin->handle, RTLD_DI_LINKMAP, &own) == 0 && home == own;
    if (!here)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "%s: no symbol " ATTN_PLUGIN_ENTRY "%s; accepted: a shared object that "
                         "exports it",
                         plugin->file, symbol ? " of its own" : "");
    memcpy(entry, &symbol, sizeof *entry); /* ISO C has no cast from data to function */
    return ATTN_OK;
}

/* ---- Version --------------------------------------------------------------------------------- */

static const struct adapter *find_adapter(uint32_t major)
{
    for (size_t a = 0; a < num_adapters; a++)
        if (adapters[a].major == major)
            return &adapters[a];
    return NULL;
}

static attn_status call_entry(const struct loader_plugin *plugin, attn_plugin_entry_fn entry,
                              const attn_host_info *host, attn_plugin *answer, attn_error *error)
{
    host_error said;
    host_error_init(&said);
    const struct guard_party party = {.file = plugin->file};
    struct guard_call call;
    guard_enter(&call, &party, ATTN_PLUGIN_ENTRY);
    attn_status status = entry(host, answer, &said.base);
    guard_leave(&call);
    if (status == ATTN_OK)
        return ATTN_OK;
    if (status == ATTN_INCOMPATIBLE_VERSION)
        return answer_fail(status, &said, error,
                           "%s: supports no ABI major of this host; accepted: %u..%u; its message",
                           plugin->file, host->abi_major_min, host->abi_major_max);
    return answer_fail(status, &said, error, "%s: " ATTN_PLUGIN_ENTRY " failed", plugin->file);
}

static attn_status negotiate(struct loader_plugin *plugin, attn_plugin_entry_fn entry,
                             attn_error *error)
{
    attn_host_info host = {.struct_size = sizeof host,
                           .abi_major_min = adapters[num_adapters - 1].major,
                           .abi_major_max = adapters[0].major,
                           .abi_minor = adapters[0].minor,
                           .name = "attnhost",
                           .version = ATTNHOST_VERSION,
                           .source = loader_source(plugin)};
    attn_plugin answer = {.struct_size = sizeof answer};
    attn_status status = call_entry(plugin, entry, &host, &answer, error);
    if (status != ATTN_OK)
        return status;
    plugin->adapter = find_adapter(answer.abi_major);
    if (!plugin->adapter)
        return host_fail(error, ATTN_INCOMPATIBLE_VERSION,
                         "%s: chose ABI major %u; accepted: %u..%u", plugin->file, answer.abi_major,
                         host.abi_major_min, host.abi_major_max);
    plugin->table = answer;
    status = plugin->adapter->admit ? plugin->adapter->admit(&answer, error) : ATTN_OK;
    return status == ATTN_OK ? status : host_fail_prefix(error, "%s", plugin->file);
}

/* ---- Record ---------------------------------------------------------------------------------- */

/* A file that may be read or opened; `sha256` may be NULL. */
static attn_status check_file(const char *file, const uint8_t *sha256, bool is_object,
                              attn_error *error)
{
    int descriptor;
    attn_status status = loader_check_file(file, &descriptor, error);
    if (status != ATTN_OK)
        return status;
    if (sha256)
        status = loader_check_pin(file, descriptor, sha256, error);
    if (status == ATTN_OK && is_object)
        status = loader_check_object(file, descriptor, error);
    if (status == ATTN_OK && is_object)
        status = loader_check_needed(file, error);
    close(descriptor);
    return status;
}

/* The file of a module is unknown before its import: Python's search path is trusted. */
static attn_status check_content(const struct loader_plugin *plugin, const uint8_t *sha256,
                                 attn_error *error)
{
    if (!loader_source(plugin))
        return check_file(plugin->file, sha256, true, error);
    attn_status status =
        loader_is_module(plugin->file) ? ATTN_OK : check_file(plugin->file, sha256, false, error);
    return status == ATTN_OK ? check_file(plugin->object, NULL, true, error) : status;
}

static attn_status run_steps(struct loader_plugin *plugin, const uint8_t *sha256, attn_error *error)
{
    attn_plugin_entry_fn entry = NULL;
    attn_status status = check_content(plugin, sha256, error);
    if (status == ATTN_OK)
        status = scan_file(plugin->file, error);
    if (status == ATTN_OK)
        status = open_object(plugin, error);
    if (status == ATTN_OK)
        status = resolve_entry(plugin, &entry, error);
    if (status == ATTN_OK)
        status = negotiate(plugin, entry, error);
    if (status == ATTN_OK)
        status = loader_read_types(plugin, error);
    return status;
}

attn_status loader_refuse(struct loader_plugin *plugin, attn_status status, const char *format, ...)
{
    char reason[1024];
    va_list args;
    va_start(args, format);
    text_vformat(reason, sizeof reason, format, args);
    va_end(args);
    char *copy = strdup(reason);
    if (!copy)
        return ATTN_OUT_OF_HOST_MEMORY;
    free(plugin->reason);
    plugin->reason = copy;
    plugin->status = status;
    plugin->num_types = 0;
    return status;
}

/* The shared object to open for made->file. */
static attn_status find_object(struct loader_plugin *made, attn_error *error)
{
    if (loader_is_source(made->file))
        return loader_find_runner(made->file, &made->object, error);
    made->object = strdup(made->file);
    return made->object ? ATTN_OK : host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "out of memory");
}

attn_status loader_open(const char *file, const uint8_t *sha256, struct loader_plugin **plugin,
                        attn_error *error)
{
    struct loader_plugin *made = calloc(1, sizeof *made);
    if (!made)
        goto out_of_memory;
    made->reason = strdup("");
    made->file = loader_is_module(file) ? strdup(file) : realpath(file, NULL);
    int why = errno;
    bool exists = made->file != NULL;
    if (!exists)
        made->file = strdup(file);
    if (!made->reason || !made->file)
        goto out_of_memory;
    host_error said;
    host_error_init(&said);
    attn_status status = exists
                             ? find_object(made, &said.base)
                             : host_fail(&said.base, ATTN_INVALID_ARGUMENT,
                                         "%s: %s; accepted: a plugin's file", file, strerror(why));
    if (status == ATTN_OK)
        status = run_steps(made, sha256, &said.base);
    if (status != ATTN_OK &&
        loader_refuse(made, status, "%s", host_error_text(&said)) == ATTN_OUT_OF_HOST_MEMORY)
        goto out_of_memory;
    *plugin = made;
    return ATTN_OK;

out_of_memory:
    loader_close(made);
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "loader: out of memory");
}

/* ---- Life ------------------------------------------------------------------------------------ */

/* Objects that were initialised, in the whole process; never removed, as they are never unmapped.
 */
struct library {
    void *handle;
    uint32_t acquired;
    attn_services *services; /* between init and fini */
    struct library *next;
};

static pthread_mutex_t libraries_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct library *libraries;

static struct library *find_library(const void *handle)
{
    struct library *library = libraries;
    while (library && library->handle != handle)
        library = library->next;
    return library;
}

static struct library *require_library(void *handle)
{
    struct library *library = find_library(handle);
    if (library)
        return library;
    library = calloc(1, sizeof *library);
    if (!library)
        return NULL;
    library->handle = handle;
    library->next = libraries;
    libraries = library;
    return library;
}

static attn_status initialise(const struct loader_plugin *plugin, struct library *library,
                              attn_error *error)
{
    if (!plugin->table.init)
        return ATTN_OK;
    attn_services *services = services_create_for_plugin();
    if (!services)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "loader: out of memory");
    host_error said;
    host_error_init(&said);
    const struct guard_party party = {.file = plugin->file};
    struct guard_call call;
    guard_enter(&call, &party, "init");
    attn_status status = plugin->table.init(services, &said.base);
    guard_leave(&call);
    if (status == ATTN_OK) {
        library->services = services;
        return ATTN_OK;
    }
    free(services);
    return answer_fail(status, &said, error, "%s: init failed", plugin->file);
}

attn_status loader_acquire(const struct loader_plugin *plugin, attn_error *error)
{
    attn_status status = ATTN_OK;
    pthread_mutex_lock(&libraries_mutex);
    struct library *library = require_library(plugin->handle);
    if (!library)
        status = host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "loader: out of memory");
    else if (library->acquired == 0)
        status = initialise(plugin, library, error);
    if (status == ATTN_OK)
        library->acquired++;
    pthread_mutex_unlock(&libraries_mutex);
    return status;
}

void loader_release(const struct loader_plugin *plugin)
{
    pthread_mutex_lock(&libraries_mutex);
    struct library *library = find_library(plugin->handle);
    if (library && library->acquired > 0 && --library->acquired == 0 && plugin->table.fini) {
        const struct guard_party party = {.file = plugin->file};
        struct guard_call call;
        guard_enter(&call, &party, "fini");
        plugin->table.fini();
        guard_leave(&call);
        free(library->services);
        library->services = NULL;
    }
    pthread_mutex_unlock(&libraries_mutex);
}

static bool keep_mapped;

void loader_keep_mapped(void)
{
    keep_mapped = true;
}

void loader_close(struct loader_plugin *plugin)
{
    if (!plugin)
        return;
    loader_free_types(plugin);
    pthread_mutex_lock(&libraries_mutex);
    if (plugin->handle && !keep_mapped && !find_library(plugin->handle)) {
        const struct guard_party party = {.file = plugin->file};
        struct guard_call call;
        guard_enter(&call, &party, "dlclose");
        dlclose(plugin->handle);
        guard_leave(&call);
    }
    pthread_mutex_unlock(&libraries_mutex);
    free(plugin->file);
    free(plugin->object);
    free(plugin->reason);
    free(plugin);
}
