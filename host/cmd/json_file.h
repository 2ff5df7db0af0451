/* SPDX-License-Identifier: Apache-2.0
 *
 * json_file.h: where --json FILE goes: opened before the work, so that a path which cannot be
 * written is not found out after it; what stands in the file stays there until the work has ended
 * well.
 */
#ifndef HOST_CMD_JSON_FILE_H
#define HOST_CMD_JSON_FILE_H

#include <stdio.h>

#include "host/cmd/arguments.h"

struct json_file {
    const struct arguments *arguments;
    const char *path;
    FILE *file; /* NULL = none is wanted; `-` is stdout */
    int is_new;
};

/* Opens what --json names (NULL = it was not given). EXIT_GOOD, or EXIT_USAGE after a line on
 * stderr. */
int json_file_open(struct json_file *json, const struct arguments *arguments, const char *path);

/* `ended`: the work did, and `text` is the JSON (NULL: there was no memory for it); else a file
 * that was made for it goes away. EXIT_GOOD, or EXIT_RUN_TIME after a line on stderr. */
int json_file_close(struct json_file *json, const char *text, int ended);

#endif /* HOST_CMD_JSON_FILE_H */
