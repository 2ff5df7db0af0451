/* SPDX-License-Identifier: Apache-2.0
 *
 * data_files.h: files that come with the program, wherever it was installed or built.
 */
#ifndef HOST_BASE_DATA_FILES_H
#define HOST_BASE_DATA_FILES_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* The first of these files that can be read; a relative path is relative to the folder of the
 * program that is running. false if there is none: `path` is the last one then. */
bool data_file_find(const char *const *places, size_t count, char path[PATH_MAX]);

#endif /* HOST_BASE_DATA_FILES_H */
