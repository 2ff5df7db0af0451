/* SPDX-License-Identifier: Apache-2.0 */
#include "host/config/ini.h"

#include <errno.h>
#include <ini.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/config/keys.h"
#include "host/base/error.h"
#include "host/base/text.h"

enum { MAX_FILE = 1 << 20 }; /* bytes; an ini is never that long, a mistaken file may be */

/* One reading. inih asks for a line (next_line), then reports the key on it (take_value) or, when
 * it finds none, reports nothing: that is seen when it asks for the next one. */
struct reading {
    const char *text;
    size_t length, offset;
    const char *name;
    const struct config_ini_handler *handler;
    attn_error *error;
    attn_status status;  /* the first failure */
    int line;            /* of what inih holds now */
    const char *content; /* that line without indentation and line end */
    size_t content_length;
    bool expects_value; /* it must contain a key */
};

bool config_ini_is_control(char c)
{
    return ((unsigned char)c < ' ' && c != '\t') || c == 0x7f;
}

/* Where the comment starts: a ';' after a space; `length` if there is none. */
static size_t comment_offset(const char *text, size_t length)
{
    for (size_t i = 1; i < length; i++)
        if (text[i] == ';' && text_is_space(text[i - 1]))
            return i;
    return length;
}

bool config_ini_can_hold(const char *key, const char *value)
{
    size_t length = strlen(value);
    if (strlen(key) + strlen(" = ") + length > CONFIG_MAX_LINE)
        return false;
    if (length == 0)
        return true;
    for (size_t i = 0; i < length; i++)
        if (config_ini_is_control(value[i]))
            return false;
    return value[0] != ';' && comment_offset(value, length) == length && !text_is_space(value[0]) &&
           !text_is_space(value[length - 1]);
}

static attn_status malformed(struct reading *reading)
{
    int shown = reading->content_length > 80 ? 80 : (int)reading->content_length;
    return host_fail(reading->error, ATTN_CONFIG_ERROR,
                     "%s:%d: '%.*s' is not understood; accepted: [section], key = value, # comment",
                     reading->name, reading->line, shown, reading->content);
}

/* Set content to the next line, trimmed; comments become empty lines. */
static void cut_line(struct reading *reading)
{
    const char *start = reading->text + reading->offset;
    size_t left = reading->length - reading->offset;
    const char *newline = memchr(start, '\n', left);
    size_t length = newline ? (size_t)(newline - start) : left;
    reading->offset += length + (newline != NULL);
    if (reading->line == 1 && length >= 3 && memcmp(start, "\xEF\xBB\xBF", 3) == 0)
        start += 3, length -= 3;
    for (; length > 0 && text_is_space(start[length - 1]); length--)
        ;
    for (; length > 0 && text_is_space(*start); length--)
        start++;
    reading->content = start;
    reading->content_length = length > 0 && (*start == '#' || *start == ';') ? 0 : length;
}

static attn_status check_line(struct reading *reading, size_t capacity)
{
    /* inih's own buffer may have been made smaller, never larger than what we can promise. */
    size_t limit = capacity < CONFIG_MAX_LINE + 2 ? capacity - 2 : CONFIG_MAX_LINE;
    if (reading->content_length > limit)
        return host_fail(reading->error, ATTN_CONFIG_ERROR,
                         "%s:%d: the line has %zu bytes; accepted: up to %zu (long values are "
                         "ranges or repeated keys)",
                         reading->name, reading->line, reading->content_length, limit);
    for (size_t i = 0; i < reading->content_length; i++)
        if (config_ini_is_control(reading->content[i]))
            return host_fail(reading->error, ATTN_CONFIG_ERROR,
                             "%s:%d: the line has a control character (0x%02x); accepted: text",
                             reading->name, reading->line, (unsigned char)reading->content[i]);
    return ATTN_OK;
}

/* A line that starts with '['. */
static attn_status read_section(struct reading *reading)
{
    const char *line = reading->content;
    size_t length = comment_offset(line, reading->content_length);
    const char *end = memchr(line, ']', length);
    if (!end)
        return malformed(reading);
    size_t name_length = (size_t)(end - line) - 1;
    if (name_length > CONFIG_MAX_SECTION)
        return host_fail(reading->error, ATTN_CONFIG_ERROR,
                         "%s:%d: the section's name has %zu bytes; accepted: up to %d",
                         reading->name, reading->line, name_length, CONFIG_MAX_SECTION);
    for (const char *rest = end + 1; rest < line + length; rest++) {
        if (*rest == ';' || *rest == '#')
            break;
        if (!text_is_space(*rest))
            return host_fail(reading->error, ATTN_CONFIG_ERROR,
                             "%s:%d: there is text after [%.*s]; accepted: a key has its own line",
                             reading->name, reading->line, (int)name_length, line + 1);
    }
    char name[CONFIG_MAX_SECTION + 1];
    memcpy(name, line + 1, name_length);
    name[name_length] = '\0';
    return reading->handler->section(reading->handler->user, name, reading->line, reading->error);
}

/* ini_reader: the next line, checked, or NULL at the end and after a failure. */
static char *next_line(char *buffer, int capacity, void *user)
{
    struct reading *reading = user;
    if (reading->status == ATTN_OK && reading->expects_value)
        reading->status = malformed(reading);
    reading->expects_value = false;
    if (reading->status != ATTN_OK || reading->offset == reading->length || capacity < 3)
        return NULL;
    reading->line++;
    cut_line(reading);
    reading->status = check_line(reading, (size_t)capacity);
    if (reading->status == ATTN_OK && reading->content_length > 0) {
        if (*reading->content == '[')
            reading->status = read_section(reading);
        else
            reading->expects_value = true;
    }
    if (reading->status != ATTN_OK)
        return NULL;
    memcpy(buffer, reading->content, reading->content_length);
    buffer[reading->content_length] = '\0';
    return buffer;
}

/* ini_handler: nonzero goes on. */
static int take_value(void *user, const char *section, const char *key, const char *value)
{
    struct reading *reading = user;
    if (!value || !*key)
        return 0; /* malformed: still expected */
    reading->expects_value = false;
    if (reading->status == ATTN_OK)
        reading->status = reading->handler->value(reading->handler->user, section, key, value,
                                                  reading->line, reading->error);
    return reading->status == ATTN_OK;
}

attn_status config_ini_read(const char *text, size_t length, const char *name,
                            const struct config_ini_handler *handler, attn_error *error)
{
    struct reading reading = {
        .text = text, .length = length, .name = name, .handler = handler, .error = error};
    int result = ini_parse_stream(next_line, &reading, take_value, &reading);
    if (reading.status == ATTN_OK && result == -2)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "%s: out of memory", name);
    /* inih stops early only if the process changed its settings: nothing may be left unread. */
    if (reading.status == ATTN_OK && (result != 0 || reading.offset != length))
        return malformed(&reading);
    return reading.status;
}

attn_status config_ini_read_file(const char *path, char **text, size_t *length, attn_error *error)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return host_fail(error, ATTN_CONFIG_ERROR, "%s: %s; accepted: a readable ini file", path,
                         strerror(errno));
    attn_status status = ATTN_OK;
    char *buffer = malloc(MAX_FILE + 1);
    if (!buffer) {
        status = host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "%s: out of memory", path);
        goto close_file;
    }
    *length = fread(buffer, 1, MAX_FILE + 1, file);
    if (ferror(file))
        status = host_fail(error, ATTN_CONFIG_ERROR, "%s: %s; accepted: a readable ini file", path,
                           strerror(errno));
    else if (*length > MAX_FILE)
        status = host_fail(error, ATTN_CONFIG_ERROR,
                           "%s: more than %d bytes; accepted: an ini file of up to that", path,
                           MAX_FILE);
    if (status == ATTN_OK)
        *text = buffer;
    else
        free(buffer);
close_file:
    fclose(file);
    return status;
}
