/* SPDX-License-Identifier: Apache-2.0
 *
 * output.h: files that the host writes: regular ones, where there is one already or nothing. A
 * device, a pipe or a link belongs to another program and is left alone; so is what the command
 * reads.
 *
 * A new file is written next to the old one and replaces it once it is whole and on the disk, so
 * that a full disk or a kill leaves the old one. It is opened no earlier than it is written: until
 * then there is no descriptor that a plugin could close or write to.
 */
#ifndef HOST_BASE_OUTPUT_H
#define HOST_BASE_OUTPUT_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

struct output {
    char path[PATH_MAX];       /* absolute: a plugin may move the working directory */
    char fresh[PATH_MAX + 32]; /* the new file next to it */
    FILE *file;                /* NULL = not open */
};

/* The file `path` (NULL = none) is read as `what` ("the configuration", static) by this command: no
 * output is written over it, by whatever name. */
void output_forbid(const char *path, const char *what);

/* Can `path` be written? Nothing is changed. False, and a sentence in `why`. */
bool output_prepare(struct output *output, const char *path, char why[160]);

/* The new file, empty; NULL and errno. */
FILE *output_open(struct output *output);

/* Put it in the place of `path` if it is `good` and all of it could be written; else it goes away.
 * 0, or -1 and errno. */
int output_close(struct output *output, bool good);

#endif /* HOST_BASE_OUTPUT_H */
