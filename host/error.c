/* SPDX-License-Identifier: Apache-2.0 */
#include "host/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
        vsnprintf(error->message, error->capacity, format, args);
        va_end(args);
    }
    return code;
}

attn_status host_fail_prefix(attn_error *error, const char *format, ...)
{
    if (!error)
        return ATTN_INTERNAL;
    if (has_room(error)) {
        char prefix[512], rest[1024];
        va_list args;
        va_start(args, format);
        vsnprintf(prefix, sizeof prefix, format, args);
        va_end(args);
        snprintf(rest, sizeof rest, "%s", error->message);
        snprintf(error->message, error->capacity, "%s: %s", prefix, rest);
    }
    return error->code;
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
