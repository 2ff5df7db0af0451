/* SPDX-License-Identifier: Apache-2.0
 *
 * lines.c: reading small text files line by line.
 */
#include "host/check/suite/lines.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/input.h"
#include "host/base/text.h"

enum { MAX_FILE = 1 << 20 }; /* bytes; people write these files, a mistaken one may be endless */

/* The whole file and its length, or NULL and errno. */
static char *read_all(const char *path, size_t *length)
{
    char chunk[4096];
    strbuf text;
    strbuf_init(&text);
    FILE *file = input_open(path);
    if (!file)
        return NULL;
    size_t count = 1;
    while (count > 0 && !text.failed && text.length <= MAX_FILE) {
        count = fread(chunk, 1, sizeof chunk, file);
        strbuf_append_bytes(&text, chunk, count);
    }
    int why = ferror(file) ? errno : text.failed ? ENOMEM : text.length > MAX_FILE ? EFBIG : 0;
    fclose(file);
    *length = text.length;
    char *all = strbuf_steal(&text);
    if (why) {
        free(all);
        errno = why;
        return NULL;
    }
    return all;
}

/* A text ends at a NUL, and what stands after it would not be read. */
static attn_status check_text(const char *file, const char *text, size_t length, attn_error *error)
{
    size_t end = strlen(text);
    int line = 1;
    if (end == length)
        return ATTN_OK;
    for (size_t i = 0; i < end; i++)
        line += text[i] == '\n';
    return host_fail(error, ATTN_CONFIG_ERROR, "%s:%d: got a NUL byte; accepted: text", file, line);
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
    size_t length = 0;
    *text = read_all(file, &length);
    if (!*text)
        return host_fail(error, ATTN_CONFIG_ERROR, "%s: %s; accepted: %s of up to %d bytes", file,
                         input_error(errno), what, MAX_FILE);
    return lines_read_text(file, *text, length, take, ctx, error);
}

attn_status lines_read_text(const char *name, char *text, size_t length, lines_take take, void *ctx,
                            attn_error *error)
{
    char place[512], *rest = text;
    attn_status status = check_text(name, text, length, error);
    for (int number = 1; rest && status == ATTN_OK; number++) {
        char *end = strchr(rest, '\n');
        if (end)
            *end = '\0';
        char *line = trim(rest);
        snprintf(place, sizeof place, "%s:%d", name, number);
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
