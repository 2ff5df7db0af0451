/* SPDX-License-Identifier: Apache-2.0 */
#include "host/check/lines.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/error.h"
#include "host/text.h"

/* The whole file, or NULL and errno. */
static char *read_all(const char *path)
{
    char chunk[4096];
    strbuf text;
    strbuf_init(&text);
    FILE *file = fopen(path, "re");
    if (!file)
        return NULL;
    for (size_t count; (count = fread(chunk, 1, sizeof chunk, file)) > 0;)
        strbuf_append_bytes(&text, chunk, count);
    int why = ferror(file) ? errno : text.failed ? ENOMEM : 0;
    fclose(file);
    char *all = strbuf_steal(&text);
    if (why) {
        free(all);
        errno = why;
        return NULL;
    }
    return all;
}

/* Without the space around it. */
static char *trim(char *line)
{
    while (text_is_space(*line))
        line++;
    size_t length = strlen(line);
    while (length > 0 && text_is_space(line[length - 1]))
        line[--length] = '\0';
    return line;
}

attn_status lines_read(const char *file, const char *what, lines_take take, void *ctx, char **text,
                       attn_error *error)
{
    char place[512];
    attn_status status = ATTN_OK;
    char *rest = *text = read_all(file);
    if (!rest)
        return host_fail(error, ATTN_CONFIG_ERROR, "%s: %s; accepted: %s", file, strerror(errno),
                         what);
    for (int number = 1; rest && status == ATTN_OK; number++) {
        char *end = strchr(rest, '\n');
        if (end)
            *end = '\0';
        char *line = trim(rest);
        snprintf(place, sizeof place, "%s:%d", file, number);
        if (*line && *line != '#')
            status = take(ctx, place, number, line, error);
        rest = end ? end + 1 : NULL;
    }
    return status;
}

char *lines_word(char **rest)
{
    char *word = *rest, *end = word;
    while (*end && !text_is_space(*end))
        end++;
    *rest = end;
    if (*end) {
        *end = '\0';
        (*rest)++;
        while (text_is_space(**rest))
            (*rest)++;
    }
    return word;
}
