/* SPDX-License-Identifier: Apache-2.0
 *
 * output.h: files that the host writes: regular ones, where there is one already or nothing. A
 * device, a pipe or a link is somebody else's, and is left alone.
 */
#ifndef HOST_BASE_OUTPUT_H
#define HOST_BASE_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

/* Open `path` for writing; what it has is kept until output_clear(). NULL, and a sentence in `why`.
 */
FILE *output_open(const char *path, char why[160]);

/* Before the first byte. 0, or -1 and errno. */
int output_clear(FILE *file);

/* Do both paths name one file? */
bool output_is_same(const char *path, const char *other);

#endif /* HOST_BASE_OUTPUT_H */
