/* SPDX-License-Identifier: Apache-2.0
 *
 * scan_cache.c: reading and writing of the file of verdicts.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* secure_getenv */
#endif
#include "host/plugin/scan_cache.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/base/mix.h"
#include "host/base/text.h"
#include "host/plugin/loader.h"

enum { PATH_SIZE = 4096, LINE_SIZE = 1024, MAX_LINES = 1000, MAX_BYTES = 1 << 20 };
static const char head[] = "attnhost scan 2\n", program[] = "/proc/self/exe";

/* ---- Keys ------------------------------------------------------------------------------------ */

static void write_identity(const struct stat *info, char *text, size_t size)
{
    snprintf(text, size, "%llx:%llx:%llx:%llx.%lx:%llx.%lx", (unsigned long long)info->st_dev,
             (unsigned long long)info->st_ino, (unsigned long long)info->st_size,
             (unsigned long long)info->st_mtim.tv_sec, (unsigned long)info->st_mtim.tv_nsec,
             (unsigned long long)info->st_ctim.tv_sec, (unsigned long)info->st_ctim.tv_nsec);
}

bool scan_key_make(const char *file, uint64_t company, struct scan_key *key)
{
    struct stat info;
    *key = (struct scan_key){.company = scan_company_add(company, program)};
    if (stat(file, &info) != 0)
        return false;
    write_identity(&info, key->identity, sizeof key->identity);
    size_t length = strlen(key->identity);
    snprintf(key->identity + length, sizeof key->identity - length, ":%llx",
             (unsigned long long)key->company);
    return true;
}

uint64_t scan_company_add(uint64_t company, const char *file)
{
    struct stat info;
    char identity[160] = "";
    if (stat(file, &info) == 0)
        write_identity(&info, identity, sizeof identity);
    for (const char *c = identity; *c; c++)
        company = mix_absorb(company, (unsigned char)*c);
    return company;
}

static bool hash(const char *file, struct scan_key *key)
{
    if (key->hashed)
        return true;
    int descriptor = open(file, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return false;
    key->hashed = loader_hash(descriptor, key->sha256) == 0;
    close(descriptor);
    for (size_t b = 0; b < sizeof key->company; b++)
        key->sha256[b] ^= (uint8_t)(key->company >> 8 * b);
    return key->hashed;
}

/* ---- The file -------------------------------------------------------------------------------- */

const char *scan_cache_path(char path[PATH_SIZE])
{
    const char *cache = secure_getenv("XDG_CACHE_HOME"), *home = secure_getenv("HOME");
    int length = -1;
    if (cache && *cache == '/')
        length = snprintf(path, PATH_SIZE, "%s/attnhost/scanned", cache);
    else if (home && *home == '/' && access(home, W_OK) == 0) /* it is not made here */
        length = snprintf(path, PATH_SIZE, "%s/.cache/attnhost/scanned", home);
    return length > 0 && length < PATH_SIZE ? path : NULL;
}

/* A regular file that only this user can write, of a size that a cache has; NULL without
 * one. */
static FILE *open_cache(void)
{
    char path[PATH_SIZE], line[LINE_SIZE];
    struct stat info;
    if (!scan_cache_path(path) || access(program, F_OK) != 0)
        return NULL;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "r");
    if (!file) {
        if (descriptor >= 0)
            close(descriptor);
        return NULL;
    }
    bool good = fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode) &&
                info.st_uid == geteuid() && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0 &&
                info.st_size <= MAX_BYTES;
    good = good && fgets(line, sizeof line, file) && strcmp(line, head) == 0;
    if (good)
        return file;
    fclose(file);
    return NULL;
}

/* "IDENTITY SHA256 good|bad REASON"; false = no such line. */
static bool split(char line[LINE_SIZE], const char *parts[4])
{
    char *rest = line;
    line[strcspn(line, "\n")] = '\0';
    for (int p = 0; p < 3; p++) {
        parts[p] = strsep(&rest, " ");
        if (!rest)
            return false;
    }
    parts[3] = rest;
    return strlen(parts[1]) == 64;
}

static bool find_by(int part, const char *text, struct scan_verdict *verdict)
{
    char line[LINE_SIZE];
    const char *parts[4];
    bool found = false;
    FILE *file = open_cache();
    while (file && !found && fgets(line, sizeof line, file)) {
        found = split(line, parts) && strcmp(parts[part], text) == 0;
        if (found) {
            verdict->survived = strcmp(parts[2], "good") == 0;
            snprintf(verdict->reason, sizeof verdict->reason, "%s", parts[3]);
        }
    }
    if (file)
        fclose(file);
    return found;
}

bool scan_cache_find(const char *file, struct scan_key *key, struct scan_verdict *verdict)
{
    char path[PATH_SIZE], hex[65];
    if (!scan_cache_path(path) || access(path, R_OK) != 0)
        return false;
    if (find_by(0, key->identity, verdict))
        return true;
    if (!hash(file, key))
        return false;
    text_hex(key->sha256, sizeof key->sha256, hex);
    bool found = find_by(1, hex, verdict);
    if (found)
        scan_cache_keep(file, key, verdict);
    return found;
}

/* ---- Keep ------------------------------------------------------------------------------------ */

static void make_folders(const char *path)
{
    char folder[PATH_SIZE];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(folder, 0700);
        *slash = '/';
    }
}

/* The lines that are kept, but those of this file; the oldest go first when there are too many. */
static void copy_lines(const struct scan_key *key, FILE *to)
{
    char line[LINE_SIZE];
    FILE *from = open_cache();
    for (int l = 0; from && l < MAX_LINES && fgets(line, sizeof line, from); l++)
        if (strncmp(line, key->identity, strlen(key->identity)) != 0)
            fputs(line, to);
    if (from)
        fclose(from);
}

void scan_cache_keep(const char *file, struct scan_key *key, const struct scan_verdict *verdict)
{
    char path[PATH_SIZE], fresh[PATH_SIZE + 32], hex[65];
    struct stat info;
    if (!scan_cache_path(path) || access(program, F_OK) != 0)
        return;
    if (lstat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return; /* not a file of ours */
    make_folders(path);
    snprintf(fresh, sizeof fresh, "%s.%ld", path, (long)getpid());
    int descriptor = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *to = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    if (!to)
        return; /* before the file is read: it may have 100 MB */
    bool good = hash(file, key);
    text_hex(key->sha256, sizeof key->sha256, hex);
    fprintf(to, "%s%s %s %s %s\n", head, key->identity, hex, verdict->survived ? "good" : "bad",
            verdict->reason);
    copy_lines(key, to);
    good = good && !ferror(to);
    good = fclose(to) == 0 && good;
    if (!good || rename(fresh, path) != 0)
        unlink(fresh);
}
