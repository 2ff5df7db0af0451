/* SPDX-License-Identifier: Apache-2.0
 *
 * input.h: files that the host reads. Waiting for the writer of a pipe has a time limit.
 */
#ifndef HOST_BASE_INPUT_H
#define HOST_BASE_INPUT_H

#include <stdio.h>

/* Open `path` for reading. NULL and errno: ETIMEDOUT = a pipe to which nothing was written within
 * INPUT_SECONDS. */
enum { INPUT_SECONDS = 10 };
FILE *input_open(const char *path);

/* The same as a descriptor; -1 and errno. */
int input_descriptor(const char *path);

/* strerror(), with a sentence of its own for such a pipe. */
const char *input_error(int why);

#endif /* HOST_BASE_INPUT_H */
