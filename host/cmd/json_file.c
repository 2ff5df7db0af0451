/* SPDX-License-Identifier: Apache-2.0
 *
 * json_file.c: checking, then writing of a command's JSON file.
 */
#include "host/cmd/json_file.h"

#include <errno.h>
#include <string.h>

#include "host/cmd/exit_codes.h"

int json_file_prepare(struct json_file *json, const struct arguments *arguments, const char *path)
{
    char why[160];
    *json = (struct json_file){.arguments = arguments, .path = path};
    if (!path || json_file_is_stdout(json) || output_prepare(&json->output, path, why))
        return EXIT_GOOD;
    arguments_complain(arguments, "--json %s: %s, or -", path, why);
    return EXIT_USAGE;
}

bool json_file_is_stdout(const struct json_file *json)
{
    return json->path && strcmp(json->path, "-") == 0;
}

int json_file_write(struct json_file *json, const char *text)
{
    bool standard = json_file_is_stdout(json);
    if (!json->path)
        return EXIT_GOOD;
    errno = ENOMEM;
    FILE *file = !text ? NULL : standard ? stdout : output_open(&json->output);
    bool good = file && fputs(text, file) != EOF;
    if (standard)
        good = fflush(file) == 0 && good;
    else if (file)
        good = output_close(&json->output, good) == 0 && good;
    if (good)
        return EXIT_GOOD;
    arguments_complain(json->arguments, "--json %s: cannot be written: %s", json->path,
                       strerror(errno));
    return EXIT_RUN_TIME;
}
