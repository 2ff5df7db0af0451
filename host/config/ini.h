/* SPDX-License-Identifier: Apache-2.0
 *
 * ini.h: an ini text, line by line, with nothing lost. Private to config/ and rules_read.c.
 *
 * inih does the parsing. It has a line buffer of 200 bytes and one of 50 for the section, cuts what
 * is longer, takes the rest of a long line for the next line, ends a line at a NUL, drops what
 * follows `[section]`, and takes an indented line for more of the value above. So it reads through
 * a reader of ours that refuses what would be dropped, removes indentation, counts lines, and keeps
 * values, which may be longer than inih's buffer, to itself: inih sees a word in their place.
 *
 *   [section]     alone on its line
 *   key = value   or key : value; spaces around both are removed
 *   # or ;        at the start of a line: a comment; " ;" ends a value
 *   "value"       may hold " ;" and spaces at its ends; \" and \\ in it are " and \
 *
 * A UTF-8 byte order mark, CRLF line ends and a missing last line end are fine. */
#ifndef HOST_CONFIG_INI_H
#define HOST_CONFIG_INI_H

#include <stdbool.h>
#include <stddef.h>

#include "attn_types.h"

/* Called in the order of the text; the first status that is not ATTN_OK ends the reading. The
 * strings are valid during the call. `line` counts from 1. */
struct config_ini_handler {
    void *user;
    attn_status (*section)(void *user, const char *section, int line, attn_error *error);
    attn_status (*value)(void *user, const char *section, const char *key, const char *value,
                         int line, attn_error *error);
};

/* Read `length` bytes of `text`, called `name` in messages. CONFIG_ERROR with "name:line: ..." for
 * a malformed, over-long or binary line; else what the handler returned. */
attn_status config_ini_read(const char *text, size_t length, const char *name,
                            const struct config_ini_handler *handler, attn_error *error);

/* The whole file in *text, which the caller frees. CONFIG_ERROR if it cannot be read or is longer
 * than an ini can be. */
attn_status config_ini_read_file(const char *path, char **text, size_t *length, attn_error *error);

/* How `key = value` has to be written to be read back as it is. */
enum config_ini_form { CONFIG_INI_PLAIN, CONFIG_INI_QUOTED, CONFIG_INI_NOT_AT_ALL };
enum config_ini_form config_ini_form_of(const char *key, const char *value);

/* A byte that has no place in a value: below space other than a tab, or DEL. */
bool config_ini_is_control(char c);

#endif /* HOST_CONFIG_INI_H */
