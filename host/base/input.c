/* SPDX-License-Identifier: Apache-2.0
 *
 * input.c: opening and reading files; the limit on waiting for a pipe's writer.
 */
#include "host/base/input.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Let reads block from now on: data is available, or a writer has come and gone. 0 or errno. */
static int wait_for_writer(int descriptor)
{
    struct pollfd asked = {.fd = descriptor, .events = POLLIN};
    int ready = poll(&asked, 1, INPUT_SECONDS * 1000);
    if (ready == 0)
        return ETIMEDOUT;
    if (ready < 0 || fcntl(descriptor, F_SETFL, O_RDONLY) != 0)
        return errno;
    return 0;
}

int input_descriptor(const char *path)
{
    struct stat info;
    /* Without O_NONBLOCK a named pipe would wait for a writer. */
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0)
        return -1;
    int why = fstat(descriptor, &info) != 0 ? errno : 0;
    if (!why && S_ISFIFO(info.st_mode))
        why = wait_for_writer(descriptor);
    if (why) {
        close(descriptor);
        errno = why;
        return -1;
    }
    return descriptor;
}

FILE *input_open(const char *path)
{
    int descriptor = input_descriptor(path);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "rb");
    if (!file && descriptor >= 0)
        close(descriptor);
    return file;
}

const char *input_error(int why)
{
    return why == ETIMEDOUT ? "a pipe without a writer" : strerror(why);
}
