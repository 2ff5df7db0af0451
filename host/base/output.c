/* SPDX-License-Identifier: Apache-2.0
 *
 * output.c: writing to a temporary file, fsync, then rename.
 */
#include "host/base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ACCEPTED "accepted: a regular file, or a new name"

/* ---- Whose a file is ------------------------------------------------------------------------- */

enum { MAX_FORBIDDEN = 64 };

static struct {
    dev_t device;
    ino_t inode;
    const char *what;
} forbidden[MAX_FORBIDDEN];

static int num_forbidden;

void output_forbid(const char *path, const char *what)
{
    struct stat info;
    if (!path || num_forbidden == MAX_FORBIDDEN || stat(path, &info) != 0 || S_ISDIR(info.st_mode))
        return;
    forbidden[num_forbidden].device = info.st_dev;
    forbidden[num_forbidden].inode = info.st_ino;
    forbidden[num_forbidden++].what = what;
}

/* A plugin of a folder has not been named: it is known by what it begins with. */
static bool is_object(const char *path)
{
    char head[4] = "";
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    bool is = descriptor >= 0 && read(descriptor, head, sizeof head) == sizeof head &&
              memcmp(head, "\177ELF", sizeof head) == 0;
    if (descriptor >= 0)
        close(descriptor);
    return is;
}

/* May the file that is there be replaced? */
static bool is_free(const char *path, const struct stat *info, char why[160])
{
    if (S_ISLNK(info->st_mode))
        return snprintf(why, 160, "is a symbolic link; %s", ACCEPTED), false;
    if (!S_ISREG(info->st_mode))
        return snprintf(why, 160, "is not a regular file; %s", ACCEPTED), false;
    for (int f = 0; f < num_forbidden; f++)
        if (forbidden[f].device == info->st_dev && forbidden[f].inode == info->st_ino)
            return snprintf(why, 160, "is %s, which is read; accepted: another file",
                            forbidden[f].what),
                   false;
    if (is_object(path))
        return snprintf(why, 160, "is a program or a shared object; accepted: another file"), false;
    if (access(path, W_OK) != 0)
        return snprintf(why, 160, "%s; %s", strerror(errno), ACCEPTED), false;
    return true;
}

/* ---- A new file ------------------------------------------------------------------------------ */

/* realpath() of the folder, and the name in it. */
static bool make_absolute(const char *path, char absolute[PATH_MAX])
{
    char folder[PATH_MAX], real[PATH_MAX];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    int length = slash ? (int)(slash - path) + 1 : 1;
    if (snprintf(folder, sizeof folder, "%.*s", length, slash ? path : ".") >= PATH_MAX ||
        !realpath(folder, real))
        return false;
    errno = *name ? ENAMETOOLONG : EISDIR;
    return *name &&
           snprintf(absolute, PATH_MAX, "%s/%s", real[1] ? real : "", name) < (int)PATH_MAX;
}

FILE *output_open(struct output *output)
{
    struct stat old;
    bool replaces = lstat(output->path, &old) == 0;
    int descriptor = open(output->fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return NULL;
    output->file = fdopen(descriptor, "w");
    if (!output->file || (replaces && fchmod(descriptor, old.st_mode & 07777) != 0)) {
        int why = errno;
        output_close(output, false);
        errno = why;
    }
    return output->file;
}

bool output_prepare(struct output *output, const char *path, char why[160])
{
    struct stat info;
    *output = (struct output){.file = NULL};
    if (!make_absolute(path, output->path)) {
        snprintf(why, 160, "%s; %s", strerror(errno), ACCEPTED);
        return false;
    }
    if (lstat(output->path, &info) == 0 && !is_free(output->path, &info, why))
        return false;
    snprintf(output->fresh, sizeof output->fresh, "%s.%ld.new", output->path, (long)getpid());
    if (output_open(output)) {
        output_close(output, false);
        return true;
    }
    snprintf(why, 160, "%s; %s", strerror(errno), ACCEPTED);
    return false;
}

/* Some file systems have nothing to wait for. */
static bool reaches_disk(FILE *file)
{
    return fflush(file) == 0 && !ferror(file) &&
           (fsync(fileno(file)) == 0 || errno == EINVAL || errno == ENOSYS);
}

int output_close(struct output *output, bool good)
{
    struct stat info;
    bool whole = good && output->file && reaches_disk(output->file);
    int why = errno;
    if (output->file && fclose(output->file) != 0 && whole) {
        whole = false;
        why = errno;
    }
    output->file = NULL;
    /* Another process has put a device, pipe or link there since. */
    if (whole && lstat(output->path, &info) == 0 && !S_ISREG(info.st_mode)) {
        whole = false;
        why = EEXIST;
    }
    if (whole && rename(output->fresh, output->path) == 0)
        return 0;
    if (whole)
        why = errno;
    unlink(output->fresh);
    errno = why;
    return good ? -1 : 0;
}
