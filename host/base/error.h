/* SPDX-License-Identifier: Apache-2.0
 *
 * error.h: error reporting for all of host/.
 *
 * The function that detects an error writes the message with its place (file, line, field, value,
 * accepted values); callers pass the status on silently. An attn_error pointer may be NULL.
 */
#ifndef HOST_BASE_ERROR_H
#define HOST_BASE_ERROR_H

#include "attn_types.h"

/* An attn_error with room for its text; `base` is what is passed around. */
typedef struct host_error {
    attn_error base;
    char text[1024];
} host_error;

/* An empty error whose text buffer is its own. The struct must not be copied afterwards. */
void host_error_init(host_error *error);

/* Declares one. */
#define HOST_ERROR(name)                                                                           \
    host_error name;                                                                               \
    host_error_init(&name)

/* The message, never NULL: "" when nothing was written. */
const char *host_error_text(const host_error *error);

/* Write `code` and the formatted message into *error (which may be NULL) and return `code`. A long
 * message is cut at a character boundary; control characters become '?'. */
attn_status host_fail(attn_error *error, attn_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Prepend "prefix: " to the message, whose end is cut if there is no room for both; returns the
 * error's code, INTERNAL without an error. The arguments must not point into the message. */
attn_status host_fail_prefix(attn_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Append to the message, as far as there is room. */
void host_fail_suffix(attn_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* "INVALID_ARGUMENT" for ATTN_INVALID_ARGUMENT; "?" for an unknown code. */
const char *host_status_name(attn_status status);

#endif /* HOST_BASE_ERROR_H */
