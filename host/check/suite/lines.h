/* SPDX-License-Identifier: Apache-2.0
 *
 * lines.h: small text files, line by line: waivers, profiles, replay files.
 */
#ifndef HOST_CHECK_SUITE_LINES_H
#define HOST_CHECK_SUITE_LINES_H

#include <stddef.h>

#include "attn_types.h"

/* Takes a line that is neither empty nor a comment, without space around it. `place` is
 * "file:line", for messages; the line may be cut into pieces, which live as long as the text. */
typedef attn_status (*lines_take)(void *ctx, const char *place, int number, char *line,
                                  attn_error *error);

/* Read `file`, called `what` in messages; a line that begins with `#` is a comment. *text, the
 * caller's, is what the lines lie in; set in any case. CONFIG_ERROR if the file cannot be read, or
 * the first error of `take`. */
attn_status lines_read(const char *file, const char *what, lines_take take, void *ctx, char **text,
                       attn_error *error);

/* The same of a text in memory, which is cut into pieces. `name` stands for the file's. */
attn_status lines_read_text(const char *name, char *text, size_t length, lines_take take, void *ctx,
                            attn_error *error);

/* Cut the next word off, and move *rest past it and the space after it; "" at the end. */
char *lines_word(char **rest);

#endif /* HOST_CHECK_SUITE_LINES_H */
