/* SPDX-License-Identifier: Apache-2.0
 *
 * cache.c: compiled kernels on disk, one file for each SHA-256 of all inputs.
 *
 * A file is written next to its place and renamed, so that any number of processes may read and
 * write at once: the worst is that two compile the same. After the binary there is a seal, with the
 * key and a checksum of all: a truncated, changed or misnamed file is not used, and is replaced at
 * the next write. (The binary comes first, so that tools that read it still can.) Files are loaded
 * into the GPU, so only a folder is used that belongs to the user and that no other user can write
 * to. */
#include "triton_like.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { STALE_AFTER = 3600 }; /* seconds; a file is written in less than one */

static const char suffix[] = ".cubin", random_part[] = ".XXXXXX";

/* The seal after the binary. */
typedef struct cache_seal {
    char magic[8];
    uint64_t size; /* of the binary */
    uint8_t key[CACHE_KEY_SIZE];
    uint8_t sum[SHA256_DIGEST_SIZE]; /* of the binary and of this with a sum of zeros */
} cache_seal;

_Static_assert(sizeof(cache_seal) == 80, "a seal has no padding, which would be written");
_Static_assert(CACHE_KEY_SIZE == SHA256_DIGEST_SIZE, "a key is a SHA-256");

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

/* NULL, or why the folder cannot be used. */
static const char *find_fault(const char *folder)
{
    struct stat st;
    if (stat(folder, &st) != 0)
        return strerror(errno);
    if (!S_ISDIR(st.st_mode))
        return "it is not a folder";
    if (st.st_uid != geteuid() || st.st_mode & (S_IWGRP | S_IWOTH))
        return "others could write to it";
    return access(folder, W_OK) == 0 ? NULL : strerror(errno);
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

static void make_key(const char *const *pieces, int count, uint8_t key[CACHE_KEY_SIZE])
{
    struct sha256_ctx hash;
    sha256_init(&hash);
    for (int i = 0; i < count; i++) {
        uint64_t length = strlen(pieces[i]);
        sha256_update(&hash, sizeof length, (const uint8_t *)&length);
        sha256_update(&hash, length, (const uint8_t *)pieces[i]);
    }
    sha256_digest(&hash, CACHE_KEY_SIZE, key);
}

void cache_find(const char *cache_dir, const char *const *pieces, int count, cache_entry *entry)
{
    char folder[MAX_PATH], name[2 * CACHE_KEY_SIZE + 1];
    memset(entry, 0, sizeof *entry);
    make_key(pieces, count, entry->key);
    for (size_t i = 0; i < CACHE_KEY_SIZE; i++)
        snprintf(name + 2 * i, 3, "%02x", entry->key[i]);
    if (!find_folder(cache_dir, folder)) {
        snprintf(entry->trouble, sizeof entry->trouble,
                 "no cache folder: cache_dir, XDG_CACHE_HOME and HOME are unset or too long");
        return;
    }
    make_folders(folder);
    const char *fault = find_fault(folder);
    if (fault)
        snprintf(entry->trouble, sizeof entry->trouble, "cache folder %s: %s", folder, fault);
    else
        snprintf(entry->path, sizeof entry->path, "%s/%s%s", folder, name, suffix);
}

/* ---- Reading --------------------------------------------------------------------------------- */

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

static cache_seal make_seal(const cache_entry *entry, const void *data, size_t size)
{
    struct sha256_ctx hash;
    cache_seal seal = {.magic = "attnseal", .size = size};
    memcpy(seal.key, entry->key, sizeof seal.key);
    sha256_init(&hash);
    sha256_update(&hash, size, data);
    sha256_update(&hash, sizeof seal, (const uint8_t *)&seal);
    sha256_digest(&hash, sizeof seal.sum, seal.sum);
    return seal;
}

void *cache_read(cache_entry *entry, size_t *size)
{
    size_t whole = 0;
    char *data = *entry->path ? read_file(entry->path, &whole) : NULL;
    if (!data)
        return NULL;
    if (whole > sizeof(cache_seal)) {
        *size = whole - sizeof(cache_seal);
        cache_seal seal = make_seal(entry, data, *size);
        if (memcmp(data + *size, &seal, sizeof seal) == 0)
            return data;
    }
    snprintf(entry->trouble, sizeof entry->trouble, "%s was damaged", entry->path);
    free(data);
    return NULL;
}

/* ---- Writing --------------------------------------------------------------------------------- */

static int write_all(int file, const void *data, size_t size)
{
    const char *from = data;
    while (size > 0) {
        ssize_t wrote = write(file, from, size);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return 0;
        from += wrote;
        size -= (size_t)wrote;
    }
    return 1;
}

/* Is it the name of a file that is being written? */
static int is_part(const char *name)
{
    size_t length = strlen(name), tail = sizeof suffix - 1 + sizeof random_part - 1;
    return length == 2 * CACHE_KEY_SIZE + tail &&
           strncmp(name + 2 * CACHE_KEY_SIZE, suffix, sizeof suffix - 1) == 0;
}

/* Remove what writers have left that were killed long ago, in the folder of `path`. */
static void sweep(const char *path)
{
    char folder[MAX_PATH];
    struct stat st;
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    DIR *entries = opendir(folder);
    if (!entries)
        return;
    for (struct dirent *entry; (entry = readdir(entries));)
        if (is_part(entry->d_name) && fstatat(dirfd(entries), entry->d_name, &st, 0) == 0 &&
            time(NULL) - st.st_mtime > STALE_AFTER)
            unlinkat(dirfd(entries), entry->d_name, 0);
    closedir(entries);
}

void cache_write(cache_entry *entry, const void *data, size_t size)
{
    char part[sizeof entry->path + sizeof random_part];
    if (!*entry->path)
        return;
    cache_seal seal = make_seal(entry, data, size);
    snprintf(part, sizeof part, "%s%s", entry->path, random_part);
    int file = mkstemp(part);
    int done = file >= 0 && write_all(file, data, size) && write_all(file, &seal, sizeof seal) &&
               fsync(file) == 0 && rename(part, entry->path) == 0;
    int why = errno;
    if (!done) {
        snprintf(entry->trouble, sizeof entry->trouble, "%s cannot be written: %s", entry->path,
                 strerror(why));
        if (file >= 0)
            unlink(part);
    }
    if (file >= 0)
        close(file);
    if (done)
        sweep(entry->path);
}
