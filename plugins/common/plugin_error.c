/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/common/plugin_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Where capacity cut a character of several bytes, cut before it. */
static void cut_at_character(char *text)
{
    size_t length = strlen(text), start = length;
    while (start > 0 && ((unsigned char)text[start - 1] & 0xC0) == 0x80)
        start--;
    if (start == 0)
        return;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (need > length - (start - 1))
        text[start - 1] = '\0';
}

static void write_message(attn_error *error, const char *format, va_list args)
{
    if (!error->message || error->capacity == 0)
        return;
    int length = vsnprintf(error->message, error->capacity, format, args);
    if (length >= 0 && (uint32_t)length >= error->capacity)
        cut_at_character(error->message);
}

attn_status plugin_fail(attn_error *error, attn_status code, const char *format, ...)
{
    if (error) {
        va_list args;
        va_start(args, format);
        error->code = code;
        write_message(error, format, args);
        va_end(args);
    }
    return code;
}

attn_status plugin_fail_field(attn_error *error, attn_status code, uint32_t field,
                              const char *format, ...)
{
    if (error) {
        va_list args;
        va_start(args, format);
        error->code = code;
        error->field = field;
        write_message(error, format, args);
        va_end(args);
    }
    return code;
}

attn_status plugin_fail_prefix(attn_error *error, attn_status code, const char *format, ...)
{
    if (!error)
        return code;
    error->code = code;
    if (error->message && error->capacity > 0) {
        char prefix[256], rest[1024];
        va_list args;
        va_start(args, format);
        vsnprintf(prefix, sizeof prefix, format, args);
        va_end(args);
        snprintf(rest, sizeof rest, "%s", error->message);
        int length = snprintf(error->message, error->capacity, "%s: %s", prefix, rest);
        if (length >= 0 && (uint32_t)length >= error->capacity)
            cut_at_character(error->message);
    }
    return code;
}
