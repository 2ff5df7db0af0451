/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin_error.h: how our plugins say what went wrong. (The host has its own: the two never share
 * sources.)
 */
#ifndef PLUGIN_ERROR_H
#define PLUGIN_ERROR_H

#include "attn_types.h"

/* Write `code` and the formatted message into *error (which may be NULL), and return `code`. */
attn_status plugin_fail(attn_error *error, attn_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same, naming the field at fault (ATTN_FIELD_*). */
attn_status plugin_fail_field(attn_error *error, attn_status code, uint32_t field,
                              const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Put "prefix: " before the message that stands there already, and return `code`. */
attn_status plugin_fail_prefix(attn_error *error, attn_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif /* PLUGIN_ERROR_H */
