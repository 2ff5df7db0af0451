/* SPDX-License-Identifier: Apache-2.0
 *
 * json_file.h: the file of --json FILE: checked before the work, so that an unwritable path is
 * reported early, and written after the work (base/output.h).
 */
#ifndef HOST_CMD_JSON_FILE_H
#define HOST_CMD_JSON_FILE_H

#include "host/base/output.h"
#include "host/cmd/arguments.h"

struct json_file {
    const struct arguments *arguments;
    const char *path; /* as it was given; NULL = none is wanted; "-" is stdout */
    struct output output;
};

/* Look at what --json names (NULL = it was not given). EXIT_GOOD, or EXIT_USAGE after a line on
 * stderr. */
int json_file_prepare(struct json_file *json, const struct arguments *arguments, const char *path);

/* Does the JSON go to stdout, and nothing else? */
bool json_file_is_stdout(const struct json_file *json);

/* Write `text`, if any is wanted (NULL: there was no memory for it). EXIT_GOOD, or EXIT_RUN_TIME
 * after a line on stderr. */
int json_file_write(struct json_file *json, const char *text);

#endif /* HOST_CMD_JSON_FILE_H */
