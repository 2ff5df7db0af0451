/* SPDX-License-Identifier: Apache-2.0
 *
 * message.h: messages for people. A message is one line (error.h); a long one has paragraphs, which
 * a command prints in lines of their own.
 */
#ifndef HOST_BASE_MESSAGE_H
#define HOST_BASE_MESSAGE_H

#include <stdio.h>

/* Stands between paragraphs. */
#define MESSAGE_PARAGRAPH " | "

/* The message with an end of line, each paragraph but the first in a line of its own, 2 further in.
 */
void message_print(FILE *file, const char *message);

#endif /* HOST_BASE_MESSAGE_H */
