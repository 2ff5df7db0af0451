/* SPDX-License-Identifier: Apache-2.0
 *
 * loader_trust.c: checks that only the user or root can have written a file.
 */
#include "host/plugin/loader.h"

#include "host/base/error.h"
#include "host/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <nettle/sha2.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Owner and mode -------------------------------------------------------------------------- */

/* Is the group of the same name as the user, with no other member? Distributions give every user
 * such a group and an umask of 002, so that what a user builds is writable by a group that is just
 * the user. Never true for root. */
static bool is_private_group(uid_t user, gid_t group)
{
    struct passwd passwd_entry, *owner = NULL;
    struct group group_entry, *found = NULL;
    char user_text[1024], group_text[4096];
    if (user == 0 || getpwuid_r(user, &passwd_entry, user_text, sizeof user_text, &owner) != 0 ||
        !owner || owner->pw_gid != group ||
        getgrgid_r(group, &group_entry, group_text, sizeof group_text, &found) != 0 || !found)
        return false;
    bool empty =
        !found->gr_mem[0] || (strcmp(found->gr_mem[0], owner->pw_name) == 0 && !found->gr_mem[1]);
    return empty && strcmp(owner->pw_name, found->gr_name) == 0;
}

/* `what` is "file" or "folder". */
static attn_status check_user(const char *path, const char *what, const struct stat *info,
                              attn_error *error)
{
    if (info->st_uid == 0 || info->st_uid == geteuid())
        return ATTN_OK;
    return host_fail(error, ATTN_INVALID_ARGUMENT,
                     "%s: the %s belongs to user %u; accepted: root or user %u", path, what,
                     (unsigned)info->st_uid, (unsigned)geteuid());
}

static attn_status check_owner(const char *path, const char *what, const struct stat *info,
                               attn_error *error)
{
    attn_status status = check_user(path, what, info, error);
    if (status != ATTN_OK)
        return status;
    unsigned others = info->st_mode & S_IWOTH;
    unsigned group = info->st_mode & S_IWGRP && !is_private_group(info->st_uid, info->st_gid);
    if (others || group)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "%s: the %s is writable by others (mode %04o); accepted: writable by its "
                         "owner alone (chmod go-w)",
                         path, what, (unsigned)(info->st_mode & 07777));
    return ATTN_OK;
}

attn_status loader_check_folder(const char *folder, attn_error *error)
{
    struct stat info;
    if (stat(folder, &info) != 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "%s: %s; accepted: a folder of plugins",
                         folder, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return host_fail(error, ATTN_INVALID_ARGUMENT, "%s: not a folder", folder);
    return check_owner(folder, "folder", &info, error);
}

/* Is root the only possible member of this group, by its list of members? Debian gives /usr/local
 * to such a group. */
static bool is_empty_group(gid_t group)
{
    struct group entry, *found = NULL;
    char text[4096];
    return getgrgid_r(group, &entry, text, sizeof text, &found) == 0 && found && !found->gr_mem[0];
}

/* Groups are looked up last: without memory, the C library's lookup does not survive. */
static bool is_open_to_others(const struct stat *folder)
{
    if (folder->st_mode & S_ISVTX)
        return false;
    bool group = folder->st_mode & S_IWGRP && !is_private_group(folder->st_uid, folder->st_gid) &&
                 !(folder->st_uid == 0 && is_empty_group(folder->st_gid));
    return group || folder->st_mode & S_IWOTH;
}

/* A user who may write to a folder above the plugin can replace the folder below it, unless the
 * sticky bit forbids it (/tmp). Cuts the absolute `path` from its end; `what` is the kind of file
 * there. */
static attn_status check_ancestors(char *path, const char *what, attn_error *error)
{
    struct stat info;
    for (char *slash; (slash = strrchr(path, '/')) && slash[1];) {
        slash[slash == path] = '\0'; /* "/" stays */
        if (stat(path, &info) != 0)
            return host_fail(error, ATTN_INVALID_ARGUMENT, "%s: %s", path, strerror(errno));
        if (is_open_to_others(&info))
            return host_fail(error, ATTN_INVALID_ARGUMENT,
                             "%s: this folder above the %s is writable by others "
                             "(mode %04o); accepted: writable by its owner alone (chmod go-w), or "
                             "sticky",
                             path, what, (unsigned)(info.st_mode & 07777));
    }
    return ATTN_OK;
}

static attn_status check_parent(const char *file, attn_error *error)
{
    char *folder = strdup(file);
    if (!folder)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "loader: out of memory");
    char *slash = strrchr(folder, '/');
    slash[slash == folder] = '\0'; /* "/" stays */
    attn_status status = loader_check_folder(folder, error);
    if (status == ATTN_OK && folder[0] == '/')
        status = check_ancestors(folder, "plugin", error);
    if (status != ATTN_OK)
        host_fail_prefix(error, "%s", file);
    free(folder);
    return status;
}

/* A regular file of an accepted owner, open; INVALID_ARGUMENT. `what` is its kind in messages. */
static attn_status open_owned(const char *file, const char *what, int *descriptor,
                              attn_error *error)
{
    struct stat info;
    /* Without O_NONBLOCK a named pipe would wait for a writer. */
    int opened = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (opened < 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "%s: %s; accepted: a %s's file", file,
                         strerror(errno), what);
    attn_status status = ATTN_OK;
    if (fstat(opened, &info) != 0 || !S_ISREG(info.st_mode))
        status = host_fail(error, ATTN_INVALID_ARGUMENT,
                           "%s: not a regular file; accepted: a %s's file", file, what);
    if (status == ATTN_OK)
        status = check_owner(file, "file", &info, error);
    if (status != ATTN_OK)
        close(opened);
    else
        *descriptor = opened;
    return status;
}

attn_status loader_check_file(const char *file, int *descriptor, attn_error *error)
{
    attn_status status = open_owned(file, "plugin", descriptor, error);
    if (status != ATTN_OK)
        return status;
    status = check_parent(file, error);
    if (status != ATTN_OK)
        close(*descriptor);
    return status;
}

static attn_status check_above(const char *file, const char *what, attn_error *error)
{
    char *path = strdup(file);
    attn_status status = path ? check_ancestors(path, what, error)
                              : host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "loader: out of memory");
    free(path);
    return status;
}

attn_status loader_check_library(const char *file, attn_error *error)
{
    int descriptor;
    attn_status status = open_owned(file, "library", &descriptor, error);
    if (status != ATTN_OK)
        return status;
    close(descriptor);
    return check_above(file, "library", error);
}

attn_status loader_check_search_folder(const char *folder, attn_error *error)
{
    struct stat info;
    if (stat(folder, &info) != 0)
        return ATTN_OK; /* it is not there */
    attn_status status = check_user(folder, "folder", &info, error);
    if (status == ATTN_OK && (is_open_to_others(&info) || info.st_mode & S_IWOTH))
        status = host_fail(error, ATTN_INVALID_ARGUMENT,
                           "%s: the folder is writable by others (mode %04o); accepted: writable "
                           "by its owner alone (chmod go-w)",
                           folder, (unsigned)(info.st_mode & 07777));
    return status == ATTN_OK ? check_above(folder, "library folder", error) : status;
}

/* ---- Content --------------------------------------------------------------------------------- */

int loader_hash(int descriptor, uint8_t sha256[32])
{
    struct sha256_ctx context;
    uint8_t chunk[16384];
    ssize_t count;
    off_t offset = 0;
    sha256_init(&context);
    while ((count = pread(descriptor, chunk, sizeof chunk, offset)) > 0) {
        sha256_update(&context, (size_t)count, chunk);
        offset += count;
    }
    sha256_digest(&context, 32, sha256);
    return count < 0 ? -1 : 0;
}

attn_status loader_check_pin(const char *file, int descriptor, const uint8_t sha256[32],
                             attn_error *error)
{
    uint8_t found[32];
    if (loader_hash(descriptor, found))
        return host_fail(error, ATTN_INVALID_ARGUMENT, "%s: %s", file, strerror(errno));
    if (memcmp(found, sha256, sizeof found) == 0)
        return ATTN_OK;
    char got[65], accepted[65];
    text_hex(found, sizeof found, got);
    text_hex(sha256, 32, accepted);
    return host_fail(error, ATTN_CONFIG_ERROR, "%s: SHA-256 is %s; its pin accepts %s", file, got,
                     accepted);
}
