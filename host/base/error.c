/* SPDX-License-Identifier: Apache-2.0
 *
 * error.c: host_error: formatting, prefixes, truncation at whole characters.
 */
#include "host/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "host/base/text.h"

void host_error_init(host_error *error)
{
    memset(error, 0, sizeof *error);
    error->base.struct_size = sizeof error->base;
    error->base.capacity = sizeof error->text;
    error->base.message = error->text;
}

const char *host_error_text(const host_error *error)
{
    return error->text;
}

static int has_room(const attn_error *error)
{
    return error->message && error->capacity > 0;
}

attn_status host_fail(attn_error *error, attn_status code, const char *format, ...)
{
    if (!error)
        return code;
    error->code = code;
    if (has_room(error)) {
        va_list args;
        va_start(args, format);
        int length = text_vformat(error->message, error->capacity, format, args);
        va_end(args);
        if (length >= 0 && (uint32_t)length >= error->capacity)
            text_cut_incomplete(error->message);
        text_hide_controls(error->message);
    }
    return code;
}

/* Move the message `shift` bytes to the right and cut its end if it has no room. In place, as the
 * error may be that memory ran out. A callee may have left the buffer without a NUL. */
static void move_message(attn_error *error, size_t shift)
{
    size_t room = error->capacity - 1 - shift;
    size_t length = strnlen(error->message, error->capacity);
    size_t kept = length < room ? length : room;
    memmove(error->message + shift, error->message, kept);
    error->message[shift + kept] = '\0';
    if (kept < length)
        text_cut_incomplete(error->message + shift);
}

attn_status host_fail_prefix(attn_error *error, const char *format, ...)
{
    if (!error)
        return ATTN_INTERNAL;
    if (has_room(error)) {
        va_list args, again;
        va_start(args, format);
        va_copy(again, args);
        int length = text_vformat(NULL, 0, format, args);
        if (length >= 0 && (uint64_t)length + 2 < error->capacity) {
            move_message(error, (size_t)length + 2);
            text_vformat(error->message, (size_t)length + 1, format, again);
            memcpy(error->message + length, ": ", 2);
        } else {
            text_vformat(error->message, error->capacity, format, again);
            text_cut_incomplete(error->message);
        }
        text_hide_controls(error->message);
        va_end(again);
        va_end(args);
    }
    return error->code;
}

void host_fail_suffix(attn_error *error, const char *format, ...)
{
    size_t length = error && has_room(error) ? strnlen(error->message, error->capacity) : 0;
    if (!error || !has_room(error) || length + 1 >= error->capacity)
        return;
    va_list args;
    va_start(args, format);
    text_vformat(error->message + length, error->capacity - length, format, args);
    va_end(args);
    text_cut_incomplete(error->message);
    text_hide_controls(error->message);
}

const char *host_status_name(attn_status status)
{
    static const char *const names[] = {
#define NAME(name, value, meaning) [value] = #name,
        ATTN_STATUS_MAP(NAME)
#undef NAME
    };
    return status >= 0 && status < ATTN_STATUS_COUNT ? names[status] : "?";
}
