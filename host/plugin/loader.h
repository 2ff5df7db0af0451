/* SPDX-License-Identifier: Apache-2.0
 *
 * loader.h: from a file to the tables of a plugin.
 *
 *   source       which object runs a .py file                  loader_source.c
 *   check file   a regular file, not writable by others        loader_trust.c
 *   pin          its SHA-256 is the one the user wrote down    loader_trust.c
 *   object       a whole shared object for this machine        loader_object.c
 *   scan         in another process, it is opened without harm    scan.c
 *   open         dlopen(RTLD_NOW | RTLD_LOCAL)                 loader.c
 *   resolve      attn_plugin_entry, in that very object        loader.c
 *   negotiate    the plugin picks an ABI major                 loader.c, adapters.c
 *   read types   everything the host will call is there        loader_types.c
 *
 * The first step that fails makes the record a refused one with a status and a message that names
 * the file, the finding and the accepted values. A plugin that was initialised is never unmapped,
 * since a driver, a thread or an exit handler may still point into it. */
#ifndef HOST_PLUGIN_LOADER_H
#define HOST_PLUGIN_LOADER_H

#include <stdbool.h>

#include "attn_plugin.h"

/* A file on record. */
struct loader_plugin {
    attn_status status; /* ATTN_OK = usable */
    char *reason;       /* why it was refused; "" for a usable one */
    char *file;         /* absolute with links resolved; as it was given if it does not exist */
    char *object;       /* the shared object that is opened: `file`, or what runs it as a source */
    const char
        *shadowed_by;  /* the file that has its backends already, if that is why; registry.h */
    attn_plugin table; /* as the plugin filled it; all zero before that */
    const struct adapter *adapter;   /* of the major that it chose; adapters.h */
    const attn_backend_type **types; /* [num_types]; validated; today's tables */
    uint32_t num_types;              /* 0 if refused */
    void *handle;                    /* of dlopen; NULL if it was not called */
};

/* Load `file`; `sha256` is its required digest of 32 bytes, NULL = any. Returns only
 * OUT_OF_HOST_MEMORY; other failures are in the record, which the caller owns. */
attn_status loader_open(const char *file, const uint8_t *sha256, struct loader_plugin **plugin,
                        attn_error *error);

/* Forget the record, and unmap the file unless it was initialised. NULL is accepted. */
void loader_close(struct loader_plugin *plugin);

/* Turn a usable record into a refused one, for reasons outside of its file. Returns `status`, or
 * OUT_OF_HOST_MEMORY. */
attn_status loader_refuse(struct loader_plugin *plugin, attn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Before the first create: init(), unless an earlier acquire has not been released. Counted for the
 * process, since two hosts may have opened one file. Any thread. */
attn_status loader_acquire(const struct loader_plugin *plugin, attn_error *error);

/* After the last destroy: fini() when the last acquire is released. */
void loader_release(const struct loader_plugin *plugin);

/* ---- Sources: loader_source.c ---------------------------------------------------------------- */

/* Is it a source that one of our plugins runs: a .py file, or "module:Class"? */
bool loader_is_source(const char *file);

/* Is it "module:Class"? Then its file is not known. */
bool loader_is_module(const char *file);

/* The source that the plugin's object runs; NULL = the object is the plugin itself. */
const char *loader_source(const struct loader_plugin *plugin);

/* The path of the plugin that runs sources, which the caller frees. DEPENDENCY_MISSING if it is not
 * installed. */
attn_status loader_find_runner(const char *source, char **object, attn_error *error);

/* ---- Steps, for loader.c and tests ----------------------------------------------------------- */

/* Open `file` (an absolute path without links) for reading. INVALID_ARGUMENT if it is no regular
 * file, or if it or its folder belongs to another user or can be written by others. */
attn_status loader_check_file(const char *file, int *descriptor, attn_error *error);

/* The same test for a folder that is to be searched. */
attn_status loader_check_folder(const char *folder, attn_error *error);

/* From now on plugins stay mapped to the end of the process: a program that is about to end gains
 * nothing by unloading them, and one whose thread still runs would crash. */
void loader_keep_mapped(void);

/* Does the content of the open file have this SHA-256? CONFIG_ERROR with both. */
attn_status loader_check_pin(const char *file, int descriptor, const uint8_t sha256[32],
                             attn_error *error);

/* The same for a library that a plugin links, where a folder above it may belong to a group without
 * members, as /usr/local does; and for a folder in which libraries are searched, to which only root
 * and the user may write. */
attn_status loader_check_library(const char *file, attn_error *error);
attn_status loader_check_search_folder(const char *folder, attn_error *error);

/* Check the libraries that the object `file` links from its DT_RUNPATH or by a path, and those that
 * they link. INVALID_ARGUMENT names the library or folder. */
attn_status loader_check_needed(const char *file, attn_error *error);

/* The SHA-256 of the open file; 0, or -1 and errno. */
int loader_hash(int descriptor, uint8_t sha256[32]);

/* Is the open file a whole shared object for this machine? INVALID_ARGUMENT. Not left to dlopen(),
 * which maps a file that was cut off and dies of a bus error. */
attn_status loader_check_object(const char *file, int descriptor, attn_error *error);

/* Describe all backend types of plugin->table and check every mandatory string and slot. INTERNAL
 * with what is wrong, or what describe returned. */
attn_status loader_read_types(struct loader_plugin *plugin, attn_error *error);

/* Free what that made. The file is still mapped. */
void loader_free_types(struct loader_plugin *plugin);

#endif /* HOST_PLUGIN_LOADER_H */
