/* SPDX-License-Identifier: Apache-2.0
 *
 * data_files.c: the search for data files: next to the executable, then where they were installed.
 */
#include "host/base/data_files.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* With the slash after it; "" if it is not known. */
static void folder_of_program(char folder[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    folder[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(folder, '/');
    folder[slash ? slash + 1 - folder : 0] = '\0';
}

bool data_file_find(const char *const *places, size_t count, char path[PATH_MAX])
{
    char folder[PATH_MAX];
    bool found = false;
    folder_of_program(folder);
    for (size_t p = 0; p < count && !found; p++) {
        const char *before = places[p][0] == '/' ? "" : folder;
        int length = snprintf(path, PATH_MAX, "%s%s", before, places[p]);
        found = length < PATH_MAX && access(path, R_OK) == 0;
    }
    return found;
}
