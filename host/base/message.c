/* SPDX-License-Identifier: Apache-2.0
 *
 * message.c: printing of a message's paragraphs, each on lines of its own.
 */
#include "host/base/message.h"

#include <string.h>

void message_print(FILE *file, const char *message)
{
    const char *end;
    for (; (end = strstr(message, MESSAGE_PARAGRAPH)); message = end + strlen(MESSAGE_PARAGRAPH))
        fprintf(file, "%.*s\n  ", (int)(end - message), message);
    fprintf(file, "%s\n", message);
}
