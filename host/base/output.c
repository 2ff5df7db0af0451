/* SPDX-License-Identifier: Apache-2.0 */
#include "host/base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ACCEPTED "accepted: a regular file, or a name that is free"

FILE *output_open(const char *path, char why[160])
{
    struct stat info;
    /* Without O_NONBLOCK a named pipe would wait for a reader. */
    int descriptor =
        open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0666);
    if (descriptor < 0) {
        const char *said = errno == ELOOP   ? "is a symbolic link"
                           : errno == ENXIO ? "is not a regular file"
                                            : strerror(errno);
        snprintf(why, 160, "%s; %s", said, ACCEPTED);
        return NULL;
    }
    FILE *file = NULL;
    if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode))
        snprintf(why, 160, "is not a regular file; %s", ACCEPTED);
    else if (!(file = fdopen(descriptor, "w")))
        snprintf(why, 160, "%s", strerror(errno));
    if (!file)
        close(descriptor);
    return file;
}

int output_clear(FILE *file)
{
    return ftruncate(fileno(file), 0);
}

bool output_is_same(const char *path, const char *other)
{
    struct stat a, b;
    return stat(path, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}
