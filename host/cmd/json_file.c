/* SPDX-License-Identifier: Apache-2.0 */
#include "host/cmd/json_file.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "host/base/output.h"
#include "host/cmd/exit_codes.h"

int json_file_open(struct json_file *json, const struct arguments *arguments, const char *path)
{
    *json = (struct json_file){.arguments = arguments, .path = path};
    if (!path)
        return EXIT_GOOD;
    char why[160];
    json->is_new = access(path, F_OK) != 0;
    json->file = strcmp(path, "-") == 0 ? stdout : output_open(path, why);
    if (json->file)
        return EXIT_GOOD;
    arguments_complain(arguments, "--json %s: %s, or -", path, why);
    return EXIT_USAGE;
}

int json_file_close(struct json_file *json, const char *text, int ended)
{
    const char *path = json->path;
    if (!json->file)
        return EXIT_GOOD;
    int failed = 0;
    if (ended) {
        failed = json->file != stdout && output_clear(json->file) != 0;
        failed |= !text || fputs(text, json->file) == EOF;
    }
    failed |= (json->file == stdout ? fflush(stdout) : fclose(json->file)) != 0;
    if (failed)
        arguments_complain(json->arguments, "--json %s: cannot be written: %s", path,
                           strerror(errno));
    if (!ended && json->is_new && json->file != stdout)
        unlink(path);
    return failed ? EXIT_RUN_TIME : EXIT_GOOD;
}
