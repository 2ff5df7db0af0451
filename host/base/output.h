/* SPDX-License-Identifier: Apache-2.0
 *
 * output.h: files that the host writes: new ones, or regular files that it replaces. It refuses
 * devices, pipes and links, which belong to other programs, and its own inputs.
 *
 * A new file is written next to the old one and renamed over it once it is complete and on disk, so
 * that a full disk or a kill leaves the old one. It is opened only when written, so that a plugin
 * has no descriptor to close or write to before.
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

/* Rename it to `path` if it is `good` and was written completely; else remove it. 0, or -1 and
 * errno. */
int output_close(struct output *output, bool good);

#endif /* HOST_BASE_OUTPUT_H */
