/* SPDX-License-Identifier: Apache-2.0
 *
 * cache.c: compiled kernels on disk, one file for each SHA-256 of all that went in.
 *
 * A file is written beside its place and renamed, so that any number of processes may read and
 * write at once: the worst is that two compile the same. What lies there is loaded into the GPU, so
 * only a folder that belongs to the user and that nobody else can write to is used.
 */
#include "triton_like.h"

#include <errno.h>
#include <fcntl.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Folders --------------------------------------------------------------------------------- */

/* The folder and those above it; an existing one is left as it is. */
static void make_folders(const char *path)
{
    char part[MAX_PATH];
    size_t length = strlen(path);
    if (length >= sizeof part)
        return;
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        mkdir(part, 0700);
    }
}

static int is_ours(const char *folder)
{
    struct stat st;
    return stat(folder, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
           (st.st_mode & (S_IWGRP | S_IWOTH)) == 0 && access(folder, W_OK) == 0;
}

/* The folder of option cache_dir, or the user's. 0 = none. */
static int find_folder(const char *cache_dir, char folder[MAX_PATH])
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int length;
    if (*cache_dir)
        length = snprintf(folder, MAX_PATH, "%s", cache_dir);
    else if (base && *base == '/')
        length = snprintf(folder, MAX_PATH, "%s/attnhost/triton_like", base);
    else if (home && *home == '/')
        length = snprintf(folder, MAX_PATH, "%s/.cache/attnhost/triton_like", home);
    else
        return 0;
    return length > 0 && length < MAX_PATH;
}

void cache_find(const char *cache_dir, const char *const *pieces, int count, cache_entry *entry)
{
    struct sha256_ctx hash;
    uint8_t digest[SHA256_DIGEST_SIZE];
    char folder[MAX_PATH], name[2 * SHA256_DIGEST_SIZE + 1];
    sha256_init(&hash);
    for (int i = 0; i < count; i++) {
        uint64_t length = strlen(pieces[i]);
        sha256_update(&hash, sizeof length, (const uint8_t *)&length);
        sha256_update(&hash, length, (const uint8_t *)pieces[i]);
    }
    sha256_digest(&hash, sizeof digest, digest);
    for (size_t i = 0; i < sizeof digest; i++)
        snprintf(name + 2 * i, 3, "%02x", digest[i]);
    entry->usable = find_folder(cache_dir, folder);
    if (!entry->usable)
        return;
    make_folders(folder);
    entry->usable = is_ours(folder);
    snprintf(entry->path, sizeof entry->path, "%s/%s.cubin", folder, name);
}

/* ---- Files ----------------------------------------------------------------------------------- */

char *read_file(const char *path, size_t *size)
{
    struct stat st;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return NULL;
    char *data = fstat(file, &st) == 0 ? malloc((size_t)st.st_size + 1) : NULL;
    size_t done = 0;
    while (data && done < (size_t)st.st_size) {
        ssize_t got = read(file, data + done, (size_t)st.st_size - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        done += (size_t)got;
    }
    close(file);
    if (data && done != (size_t)st.st_size) {
        free(data);
        return NULL;
    }
    if (data)
        data[done] = '\0';
    *size = done;
    return data;
}

void *cache_read(const cache_entry *entry, size_t *size)
{
    return entry->usable ? read_file(entry->path, size) : NULL;
}

static int write_all(int file, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t wrote = write(file, data, size);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return 0;
        data += wrote;
        size -= (size_t)wrote;
    }
    return 1;
}

void cache_write(const cache_entry *entry, const void *data, size_t size)
{
    char part[sizeof entry->path + 16];
    if (!entry->usable)
        return;
    snprintf(part, sizeof part, "%s.XXXXXX", entry->path);
    int file = mkstemp(part);
    if (file < 0)
        return;
    int whole = write_all(file, data, size) && fsync(file) == 0;
    if (close(file) != 0 || !whole || rename(part, entry->path) != 0)
        unlink(part);
}
