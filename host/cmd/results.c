/* SPDX-License-Identifier: Apache-2.0
 *
 * results.c: the duplicate of stdout that results are written to.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* fopencookie, F_DUPFD_CLOEXEC */
#endif
#include "host/cmd/results.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/plugin/guard.h"

static struct {
    pthread_t owner;
    int descriptor;
    bool by_line; /* a terminal */
    dev_t device; /* of the stdout at the start: a plugin may put */
    ino_t inode;  /* another file there */
    int failed;   /* errno of the first write that failed */
    size_t used;
    char bytes[1 << 16];
} results = {.descriptor = STDOUT_FILENO};

static bool write_all(int descriptor, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t count = write(descriptor, bytes, size);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return false;
        bytes += count;
        size -= (size_t)count;
    }
    return true;
}

/* Is it still the file that the command was given? Before results_begin() no plugin runs. */
static bool is_ours(void)
{
    struct stat info;
    if (results.descriptor == STDOUT_FILENO)
        return true;
    if (fstat(results.descriptor, &info) != 0)
        return false;
    errno = EBADF;
    return info.st_dev == results.device && info.st_ino == results.inode;
}

static bool flush(void)
{
    if (results.used > 0 && !is_ours() && results.failed == 0)
        results.failed = errno;
    if (results.failed == 0 && !write_all(results.descriptor, results.bytes, results.used))
        results.failed = errno;
    results.used = 0;
    return results.failed == 0;
}

static bool keep(const char *bytes, size_t size)
{
    while (size > 0) {
        size_t room = sizeof results.bytes - results.used, part = size < room ? size : room;
        memcpy(results.bytes + results.used, bytes, part);
        results.used += part;
        bytes += part;
        size -= part;
        if (results.used == sizeof results.bytes && !flush())
            return false;
    }
    return true;
}

/* The stream is unbuffered: whoever prints is still here. */
static ssize_t take(void *cookie, const char *bytes, size_t size)
{
    (void)cookie;
    bool ours = !guard_current && pthread_equal(pthread_self(), results.owner);
    bool good = ours ? keep(bytes, size) : write_all(STDERR_FILENO, bytes, size);
    if (ours && good && results.by_line && memchr(bytes, '\n', size))
        good = flush();
    return good ? (ssize_t)size : 0;
}

/* A high number, so that a loop over the first descriptors, or a wrong number, does not hit it. */
static int copy_stdout(void)
{
    struct rlimit limit;
    int high = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur > 1024 ? 1000 : 200;
    int copy = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, high);
    return copy >= 0 ? copy : fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
}

void results_begin(void)
{
    const cookie_io_functions_t functions = {.write = take};
    struct stat info;
    int descriptor = copy_stdout();
    bool open = descriptor >= 0 && fstat(descriptor, &info) == 0;
    FILE *stream = open ? fopencookie(NULL, "w", functions) : NULL;
    if (!stream)
        return; /* stdout is closed: nothing to look after */
    setvbuf(stream, NULL, _IONBF, 0);
    results.owner = pthread_self();
    results.by_line = isatty(descriptor);
    results.device = info.st_dev;
    results.inode = info.st_ino;
    results.descriptor = descriptor;
    fflush(stdout);
    dup2(STDERR_FILENO, STDOUT_FILENO);
    stdout = stream;
}

void results_flush(void)
{
    if (results.descriptor != STDOUT_FILENO)
        flush();
}

void results_adopt(void)
{
    results.owner = pthread_self();
    guard_current = NULL;
}

int results_end(void)
{
    bool good = fflush(stdout) == 0 && !ferror(stdout);
    int why = good ? 0 : errno;
    if (results.descriptor != STDOUT_FILENO) {
        flush();
        why = results.failed;
        good = why == 0;
    }
    errno = why;
    return good ? 0 : -1;
}
