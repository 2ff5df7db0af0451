/* SPDX-License-Identifier: Apache-2.0
 *
 * loader_needed.c: trust checks of the libraries that a plugin links. The dynamic linker searches
 * the folders of the object's DT_RUNPATH, or DT_RPATH, then its own, which are root's. Who can
 * write to one of the former can put code into the process. So the rule for plugins applies to
 * these folders, to the libraries found there, and to those that they link in turn. */
#include "host/plugin/loader.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/plugin/elf_file.h"

enum { MAX_LIBRARIES = 256 };

/* The libraries that were found, each once. */
struct search {
    char *files[MAX_LIBRARIES]; /* without links; owned */
    size_t count;
};

static attn_status add_library(struct search *search, const char *path, attn_error *error)
{
    char *file = realpath(path, NULL);
    if (!file)
        return errno == ENOMEM ? host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "loader: out of memory")
                               : ATTN_OK; /* it is not there */
    for (size_t f = 0; f < search->count; f++)
        if (strcmp(search->files[f], file) == 0) {
            free(file);
            return ATTN_OK;
        }
    if (search->count < MAX_LIBRARIES) {
        search->files[search->count++] = file;
        return ATTN_OK;
    }
    free(file);
    return host_fail(error, ATTN_INVALID_ARGUMENT,
                     "more than %d libraries; accepted: at most that many", MAX_LIBRARIES);
}

/* ---- Names ----------------------------------------------------------------------------------- */

/* "$ORIGIN/lib" with the folder of `file` for $ORIGIN; an empty text is the working directory, as
 * it is for the dynamic linker. INVALID_ARGUMENT: a word that depends on the machine, as $LIB. */
static attn_status expand(const char *file, const char *text, size_t length, char path[PATH_MAX],
                          attn_error *error)
{
    static const char *const words[] = {"$ORIGIN", "${ORIGIN}"};
    const char *slash = strrchr(file, '/');
    size_t skipped = 0;
    for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
        size_t size = strlen(words[w]);
        if (length >= size && strncmp(text, words[w], size) == 0 &&
            (length == size || text[size] == '/'))
            skipped = size;
    }
    if (memchr(text + skipped, '$', length - skipped))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "'%.*s' in its DT_RUNPATH; accepted: a folder, which may begin with "
                         "$ORIGIN",
                         (int)length, text);
    int origin = skipped && slash ? (int)(slash - file) : 0;
    int written =
        snprintf(path, PATH_MAX, "%.*s%.*s", origin, file, (int)(length - skipped), text + skipped);
    if (written == 0)
        strcpy(path, skipped ? "/" : ".");
    if (written >= PATH_MAX)
        path[0] = '\0'; /* too long for the dynamic linker, too */
    return ATTN_OK;
}

/* Folders, separated by ':'; "" = none. */
static const char *folders_of(const struct elf_file *elf)
{
    uint64_t at;
    bool has = elf_dynamic(elf, DT_RUNPATH, &at) || elf_dynamic(elf, DT_RPATH, &at);
    return has ? elf_string(elf, at) : "";
}

/* ---- One object ------------------------------------------------------------------------------ */

static attn_status check_folder(struct search *search, const struct elf_file *elf,
                                const char *folder, attn_error *error)
{
    attn_status status = loader_check_search_folder(folder, error);
    const char *name;
    for (size_t n = 0; status == ATTN_OK && (name = elf_needed(elf, n)); n++) {
        char path[PATH_MAX];
        if (!strchr(name, '/') &&
            snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path)
            status = add_library(search, path, error);
    }
    return status;
}

static attn_status check_folders(struct search *search, const struct elf_file *elf,
                                 const char *file, attn_error *error)
{
    const char *next = folders_of(elf);
    bool more = *next != '\0';
    attn_status status = ATTN_OK;
    while (more && status == ATTN_OK) {
        char folder[PATH_MAX];
        size_t length = strcspn(next, ":");
        status = expand(file, next, length, folder, error);
        if (status == ATTN_OK)
            status = check_folder(search, elf, folder, error);
        more = next[length] == ':';
        next += length + more;
    }
    return status;
}

/* Libraries that are named by their paths. */
static attn_status check_code_paths(struct search *search, const struct elf_file *elf,
                                    const char *file, attn_error *error)
{
    attn_status status = ATTN_OK;
    const char *name;
    for (size_t n = 0; status == ATTN_OK && (name = elf_needed(elf, n)); n++) {
        char path[PATH_MAX];
        if (!strchr(name, '/'))
            continue;
        status = expand(file, name, strlen(name), path, error);
        if (status == ATTN_OK)
            status = add_library(search, path, error);
    }
    return status;
}

static attn_status check_object(struct search *search, const char *file, attn_error *error)
{
    struct elf_file elf;
    if (elf_open(file, &elf, NULL) != ATTN_OK)
        return ATTN_OK; /* dlopen() says what is wrong with it */
    attn_status status = check_folders(search, &elf, file, error);
    if (status == ATTN_OK)
        status = check_code_paths(search, &elf, file, error);
    elf_close(&elf);
    return status;
}

attn_status loader_check_needed(const char *file, attn_error *error)
{
    struct search search = {.count = 0};
    attn_status status = check_object(&search, file, error);
    for (size_t f = 0; f < search.count && status == ATTN_OK; f++) {
        status = loader_check_library(search.files[f], error);
        if (status == ATTN_OK)
            status = check_object(&search, search.files[f], error);
    }
    for (size_t f = 0; f < search.count; f++)
        free(search.files[f]);
    return status == ATTN_OK
               ? status
               : host_fail_prefix(error, "%s: the loader would open another file", file);
}
