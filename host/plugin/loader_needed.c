/* SPDX-License-Identifier: Apache-2.0
 *
 * loader_needed.c: may what a plugin links be trusted? The dynamic linker searches the folders of
 * the object's DT_RPATH or DT_RUNPATH, then its own, which are root's. Whoever may write to one of
 * the former may put code into the process, so the rule for plugins holds for the folders and for
 * what lies there, and for what that links in turn.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* ElfW */
#endif
#include "host/plugin/loader.h"

#include "host/base/error.h"

#include <elf.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_DEPTH = 8, MAX_NEEDED = 128, MAX_TABLE = 1 << 20 };

/* What an object says of others. */
struct links {
    char *strings;                  /* its string table, which ends with a NUL; owned */
    const char *folders;            /* separated by ':'; NULL = none */
    const char *needed[MAX_NEEDED]; /* in `strings` */
    size_t num_needed;
};

/* ---- Reading --------------------------------------------------------------------------------- */

static bool read_at(int descriptor, uint64_t offset, void *bytes, size_t size)
{
    return pread(descriptor, bytes, size, (off_t)offset) == (ssize_t)size;
}

/* The segments of the object; NULL without them. The caller frees them. */
static ElfW(Phdr) * read_segments(int descriptor, size_t *count)
{
    ElfW(Ehdr) header;
    if (!read_at(descriptor, 0, &header, sizeof header) ||
        header.e_phentsize != sizeof(ElfW(Phdr)) || header.e_phnum == 0)
        return NULL;
    ElfW(Phdr) *segments = calloc(header.e_phnum, sizeof *segments);
    if (segments &&
        !read_at(descriptor, header.e_phoff, segments, header.e_phnum * sizeof *segments)) {
        free(segments);
        segments = NULL;
    }
    *count = header.e_phnum;
    return segments;
}

/* Where in the file is what will be at `address`? UINT64_MAX: nowhere. */
static uint64_t offset_of(const ElfW(Phdr) * segments, size_t count, uint64_t address)
{
    for (size_t s = 0; s < count; s++)
        if (segments[s].p_type == PT_LOAD && address >= segments[s].p_vaddr &&
            address - segments[s].p_vaddr < segments[s].p_filesz)
            return segments[s].p_offset + (address - segments[s].p_vaddr);
    return UINT64_MAX;
}

/* The dynamic section, up to DT_NULL; NULL without one. The caller frees it. */
static ElfW(Dyn) * read_dynamic(int descriptor, const ElfW(Phdr) * segments, size_t count)
{
    for (size_t s = 0; s < count; s++) {
        const ElfW(Phdr) *segment = &segments[s];
        if (segment->p_type != PT_DYNAMIC || segment->p_filesz > MAX_TABLE)
            continue;
        ElfW(Dyn) *dynamic = calloc(1, segment->p_filesz + sizeof *dynamic);
        if (dynamic && read_at(descriptor, segment->p_offset, dynamic, segment->p_filesz))
            return dynamic;
        free(dynamic);
    }
    return NULL;
}

static void take_entry(struct links *links, const ElfW(Dyn) * entry, uint64_t size)
{
    const char *text = entry->d_un.d_val < size ? links->strings + entry->d_un.d_val : "";
    if (entry->d_tag == DT_NEEDED && links->num_needed < MAX_NEEDED)
        links->needed[links->num_needed++] = text;
    if (entry->d_tag == DT_RUNPATH || (entry->d_tag == DT_RPATH && !links->folders))
        links->folders = text;
}

static void take_strings(int descriptor, const ElfW(Phdr) * segments, size_t count,
                         const ElfW(Dyn) * dynamic, struct links *links)
{
    uint64_t table = UINT64_MAX, size = 0;
    for (const ElfW(Dyn) *entry = dynamic; entry->d_tag != DT_NULL; entry++) {
        table = entry->d_tag == DT_STRTAB ? offset_of(segments, count, entry->d_un.d_ptr) : table;
        size = entry->d_tag == DT_STRSZ ? entry->d_un.d_val : size;
    }
    if (table == UINT64_MAX || size > 64 * (uint64_t)MAX_TABLE)
        return;
    links->strings = calloc(1, size + 1);
    if (!links->strings || !read_at(descriptor, table, links->strings, size))
        return;
    for (const ElfW(Dyn) *entry = dynamic; entry->d_tag != DT_NULL; entry++)
        take_entry(links, entry, size);
}

/* What cannot be read links nothing: dlopen() will say what is wrong with it. */
static void read_links(int descriptor, struct links *links)
{
    size_t count = 0;
    ElfW(Phdr) *segments = read_segments(descriptor, &count);
    ElfW(Dyn) *dynamic = segments ? read_dynamic(descriptor, segments, count) : NULL;
    *links = (struct links){.num_needed = 0};
    if (dynamic)
        take_strings(descriptor, segments, count, dynamic, links);
    free(dynamic);
    free(segments);
}

/* ---- Searching ------------------------------------------------------------------------------- */

/* "$ORIGIN/lib" with the folder of `file` for $ORIGIN; false if it does not fit. */
static bool expand(const char *file, const char *folder, size_t length, char path[PATH_MAX])
{
    static const char *const words[] = {"${ORIGIN}", "$ORIGIN"};
    const char *slash = strrchr(file, '/');
    int origin = slash ? (int)(slash - file) : 0, written;
    for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
        size_t size = strlen(words[w]);
        if (length >= size && strncmp(folder, words[w], size) == 0) {
            written = snprintf(path, PATH_MAX, "%.*s%.*s", origin, file, (int)(length - size),
                               folder + size);
            return written < PATH_MAX;
        }
    }
    written = snprintf(path, PATH_MAX, "%.*s", (int)length, folder);
    return written < PATH_MAX;
}

static attn_status check_links(const char *file, int descriptor, int depth, attn_error *error);

/* A library that is there; a link to it is followed. */
static attn_status check_library(const char *path, int depth, attn_error *error)
{
    char file[PATH_MAX];
    int descriptor;
    if (!realpath(path, file))
        return ATTN_OK; /* it is not there */
    attn_status status = loader_check_library(file, &descriptor, error);
    if (status != ATTN_OK)
        return status;
    status = check_links(file, descriptor, depth + 1, error);
    close(descriptor);
    return status;
}

static attn_status check_folder(const char *folder, const struct links *links, int depth,
                                attn_error *error)
{
    char path[PATH_MAX];
    if (access(folder, F_OK) != 0)
        return ATTN_OK;
    attn_status status = loader_check_search_folder(folder, error);
    for (size_t n = 0; n < links->num_needed && status == ATTN_OK; n++)
        if (!strchr(links->needed[n], '/') &&
            snprintf(path, sizeof path, "%s/%s", folder, links->needed[n]) < (int)sizeof path)
            status = check_library(path, depth, error);
    return status;
}

static attn_status check_links(const char *file, int descriptor, int depth, attn_error *error)
{
    struct links links;
    char folder[PATH_MAX];
    attn_status status = ATTN_OK;
    if (depth > MAX_DEPTH)
        return ATTN_OK;
    read_links(descriptor, &links);
    for (const char *next = links.folders; next && status == ATTN_OK;) {
        size_t length = strcspn(next, ":");
        if (length > 0 && expand(file, next, length, folder))
            status = check_folder(folder, &links, depth, error);
        next = next[length] ? next + length + 1 : NULL;
    }
    for (size_t n = 0; n < links.num_needed && status == ATTN_OK; n++)
        if (strchr(links.needed[n], '/'))
            status = check_library(links.needed[n], depth, error);
    free(links.strings);
    return status;
}

attn_status loader_check_needed(const char *file, int descriptor, attn_error *error)
{
    attn_status status = check_links(file, descriptor, 0, error);
    return status == ATTN_OK ? status
                             : host_fail_prefix(error, "%s: it would link from elsewhere", file);
}
