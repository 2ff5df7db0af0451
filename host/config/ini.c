/* SPDX-License-Identifier: Apache-2.0
 *
 * ini.c: parsing of ini files, with the place of each key.
 */
#include "host/config/ini.h"

#include <errno.h>
#include <ini.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/config/keys.h"
#include "host/base/error.h"
#include "host/base/input.h"
#include "host/base/text.h"

enum {
    MAX_FILE = 1 << 20, /* bytes; an ini is never that long, a mistaken file may be */
    MAX_KEY = 128
};

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
    bool expects_value;              /* it must contain a key */
    char value[CONFIG_MAX_LINE + 1]; /* of that line; what inih is shown is PLACEHOLDER */
};

#define PLACEHOLDER "@"

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

static bool is_plain(const char *value, size_t length)
{
    return length == 0 ||
           (value[0] != ';' && value[0] != '"' && comment_offset(value, length) == length &&
            !text_is_space(value[0]) && !text_is_space(value[length - 1]));
}

enum config_ini_form config_ini_form_of(const char *key, const char *value)
{
    size_t length = strlen(value), written = strlen(key) + strlen(" = \"\"") + length;
    for (size_t i = 0; i < length; i++) {
        written += value[i] == '"' || value[i] == '\\';
        if (config_ini_is_control(value[i]))
            return CONFIG_INI_NOT_AT_ALL;
    }
    if (written > CONFIG_MAX_LINE || strlen(key) > MAX_KEY)
        return CONFIG_INI_NOT_AT_ALL;
    return is_plain(value, length) ? CONFIG_INI_PLAIN : CONFIG_INI_QUOTED;
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

static attn_status check_line(struct reading *reading)
{
    if (reading->content_length > CONFIG_MAX_LINE)
        return host_fail(reading->error, ATTN_CONFIG_ERROR,
                         "%s:%d: the line has %zu bytes; accepted: up to %d (long values are "
                         "ranges or repeated keys)",
                         reading->name, reading->line, reading->content_length, CONFIG_MAX_LINE);
    for (size_t i = 0; i < reading->content_length; i++)
        if (config_ini_is_control(reading->content[i]))
            return host_fail(reading->error, ATTN_CONFIG_ERROR,
                             "%s:%d: the line has a control character (0x%02x); accepted: text",
                             reading->name, reading->line, (unsigned char)reading->content[i]);
    return ATTN_OK;
}

/* A line that starts with '['. */
static attn_status read_section(struct reading *reading, char *buffer, size_t capacity)
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
    snprintf(buffer, capacity, "[%s]", name);
    return reading->handler->section(reading->handler->user, name, reading->line, reading->error);
}

/* "value" ; comment: what is between the quotes. */
static attn_status read_quoted(struct reading *reading, const char *text, size_t length)
{
    size_t at = 1, written = 0;
    for (; at < length && text[at] != '"'; at++) {
        if (text[at] == '\\' && at + 1 < length && (text[at + 1] == '"' || text[at + 1] == '\\'))
            at++;
        reading->value[written++] = text[at];
    }
    reading->value[written] = '\0';
    if (at >= length)
        return host_fail(
            reading->error, ATTN_CONFIG_ERROR,
            "%s:%d: the value has no closing quote; accepted: \"value\", with \\\" for "
            "a quote in it",
            reading->name, reading->line);
    size_t rest = at + 1;
    while (rest < length && text_is_space(text[rest]))
        rest++;
    if (rest < length && text[rest] != ';')
        return host_fail(reading->error, ATTN_CONFIG_ERROR,
                         "%s:%d: there is text after the closing quote; accepted: ; comment",
                         reading->name, reading->line);
    return ATTN_OK;
}

/* A line with a key: its value into reading->value, and what inih is to see into `buffer`. */
static attn_status read_key(struct reading *reading, char *buffer, size_t capacity)
{
    const char *line = reading->content;
    size_t length = reading->content_length, key = 0;
    while (key < length && line[key] != '=' && line[key] != ':')
        key++;
    reading->expects_value = true;
    buffer[0] = '\0';
    if (key == length)
        return malformed(reading);
    size_t limit =
        capacity < MAX_KEY + sizeof "=" PLACEHOLDER ? capacity - sizeof "=" PLACEHOLDER : MAX_KEY;
    if (key > limit)
        return host_fail(reading->error, ATTN_CONFIG_ERROR,
                         "%s:%d: the key has %zu bytes; accepted: up to %zu", reading->name,
                         reading->line, key, limit);
    memcpy(buffer, line, key);
    snprintf(buffer + key, capacity - key, "=%s", PLACEHOLDER);
    size_t start = key + 1;
    while (start < length && text_is_space(line[start]))
        start++;
    if (start < length && line[start] == '"')
        return read_quoted(reading, line + start, length - start);
    size_t end = comment_offset(line, length);
    start = start < end ? start : end;
    while (end > start && text_is_space(line[end - 1]))
        end--;
    if (end > start && line[start] == ';')
        end = start;
    memcpy(reading->value, line + start, end - start);
    reading->value[end - start] = '\0';
    return ATTN_OK;
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
    reading->status = check_line(reading);
    buffer[0] = '\0';
    if (reading->status == ATTN_OK && reading->content_length > 0) {
        if (*reading->content == '[')
            reading->status = read_section(reading, buffer, (size_t)capacity);
        else
            reading->status = read_key(reading, buffer, (size_t)capacity);
    }
    return reading->status == ATTN_OK ? buffer : NULL;
}

/* ini_handler: nonzero goes on. */
static int take_value(void *user, const char *section, const char *key, const char *value)
{
    struct reading *reading = user;
    if (!value || !*key)
        return 0; /* malformed: still expected */
    reading->expects_value = false;
    if (reading->status == ATTN_OK)
        reading->status = reading->handler->value(reading->handler->user, section, key,
                                                  reading->value, reading->line, reading->error);
    return reading->status == ATTN_OK;
}

static attn_status read_all(struct reading *reading)
{
    int result = ini_parse_stream(next_line, reading, take_value, reading);
    if (reading->status == ATTN_OK && result == -2)
        return host_fail(reading->error, ATTN_OUT_OF_HOST_MEMORY, "%s: out of memory",
                         reading->name);
    /* inih stops early only if the process changed its settings: nothing may be left unread. */
    if (reading->status == ATTN_OK && (result != 0 || reading->offset != reading->length))
        return malformed(reading);
    return reading->status;
}

attn_status config_ini_read(const char *text, size_t length, const char *name,
                            const struct config_ini_handler *handler, attn_error *error)
{
    struct reading *reading = calloc(1, sizeof *reading);
    if (!reading)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "%s: out of memory", name);
    reading->text = text;
    reading->length = length;
    reading->name = name;
    reading->handler = handler;
    reading->error = error;
    attn_status status = read_all(reading);
    free(reading);
    return status;
}
attn_status config_ini_read_file(const char *path, char **text, size_t *length, attn_error *error)
{
    FILE *file = input_open(path);
    if (!file)
        return host_fail(error, ATTN_CONFIG_ERROR, "%s: %s; accepted: a readable ini file", path,
                         input_error(errno));
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
