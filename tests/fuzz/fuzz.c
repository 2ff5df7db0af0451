/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz.c: what the fuzzed parsers share: files in memory, and the rule for refusals.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* memfd_create */
#endif
#include "tests/fuzz/fuzz.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

_Noreturn void fuzz_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", fuzz_name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

const char *fuzz_file(const uint8_t *data, size_t size)
{
    static char path[64];
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("fuzz", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        fuzz_fail("no file in memory");
    return path;
}

void fuzz_check_refusal(attn_status status, const host_error *error, const char *file)
{
    const char *text = host_error_text(error);
    if (status <= ATTN_OK || status >= ATTN_STATUS_COUNT || error->base.code != status)
        fuzz_fail("status %d with an error of %d", (int)status, (int)error->base.code);
    if (strncmp(text, file, strlen(file)) != 0)
        fuzz_fail("the message does not begin with '%s': '%s'", file, text);
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            fuzz_fail("the message has a control character: '%s'", text);
}
