/* SPDX-License-Identifier: Apache-2.0
 *
 * text.h: reading and building text, the same in every locale.
 *
 * The parsers take a whole string: no space before or after, no trailing characters, no empty text.
 * They write their output only when they succeed. None of them looks at the process's locale, so an
 * embedding program that has called setlocale() changes nothing.
 */
#ifndef HOST_BASE_TEXT_H
#define HOST_BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- Parsers --------------------------------------------------------------------------------- */

/* A decimal integer with an optional sign; false if malformed or beyond the type. */
bool text_parse_int64(const char *text, int64_t *value);

/* Decimal digits only: a sign is malformed. */
bool text_parse_uint64(const char *text, uint64_t *value);

/* A finite decimal number such as 1, -0.5, .5 or 1e-3. NaN, infinity, hexadecimal and whatever
 * overflows to infinity are refused; what underflows becomes the nearest double. */
bool text_parse_double(const char *text, double *value);

/* yes/no, true/false, on/off, 1/0; any case. */
bool text_parse_bool(const char *text, bool *value);

/* Bytes: digits and optionally K, M, G or T (any case), which multiply by powers of 1024. */
bool text_parse_size(const char *text, uint64_t *bytes);

/* A list of integers and ranges, `1 2 4 8-64/8`: separated by spaces or by one comma, each number
 * in [min, max] (min >= 0) and larger than the one before, a range's end reached by its step (1
 * when left out), at most `max_count` numbers.
 *
 * Returns NULL and *values (malloc'ed, the caller frees it; never NULL) with *count >= 1 numbers,
 * or a static predicate for a message, such as "has a number out of range", or text_out_of_memory.
 */
const char *text_parse_range_list(const char *text, int64_t min, int64_t max, size_t max_count,
                                  int64_t **values, size_t *count);

/* Returned by a parser that allocates when memory runs out; compared by address. */
extern const char text_out_of_memory[];

/* ---- Printing -------------------------------------------------------------------------------- */

/* vsnprintf() and snprintf() in the C locale, whose decimal separator is a point. */
int text_vformat(char *text, size_t size, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));
int text_format(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- Lists ----------------------------------------------------------------------------------- */

/* The next item of a list separated by spaces or by one comma, starting at *cursor. Returns its
 * first byte and *length, and moves *cursor past the item and its separator; NULL at the end. An
 * item of length 0 stands for a comma that has nothing before or after it. */
const char *text_next_item(const char **cursor, size_t *length);

/* Texts with other owners. A zeroed list is an empty one. */
struct text_list {
    const char **items;
    size_t count;
};

/* Append a text that outlives the list; false when memory ran out. */
bool text_list_add(struct text_list *list, const char *text);

/* Release the list, not its texts; it is empty then. */
void text_list_finish(struct text_list *list);

/* ---- Words ----------------------------------------------------------------------------------- */

/* ASCII equality that ignores case. */
bool text_equal_ignoring_case(const char *a, const char *b);

/* Space, tab, newline, carriage return, vertical tab or form feed. */
bool text_is_space(char c);

/* The name among names[0..count) that `word` is most likely a misspelling of (insertions,
 * deletions, replacements and swapped neighbours, at most one per three characters and never a
 * whole word); the first one if several are as near. Case is ignored. NULL entries are skipped.
 * Returns an entry of `names`, or NULL when nothing is near. */
const char *text_nearest(const char *word, const char *const *names, size_t count);

/* Bytes as lower-case hexadecimal digits and a NUL: 2 * length + 1 characters. */
void text_hex(const uint8_t *bytes, size_t length, char *hex);

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

/* Bytes of the well-formed character that `text` begins with; 0 = there is none. */
size_t text_utf8_length(const char *text);

/* Is it UTF-8 without control characters? */
bool text_is_line(const char *text);

/* The same, with ends of lines. */
bool text_is_lines(const char *text);

/* Replace control characters, ends of lines too, by '?'. */
void text_hide_controls(char *text);

/* Replace bytes that are not UTF-8 by '?'. */
void text_hide_invalid(char *text);

/* Where `text` was cut within a character of several bytes, end it before that character. */
void text_cut_incomplete(char *text);

/* ---- Growable string ------------------------------------------------------------------------- */

/* A string under construction. When memory runs out, `failed` is set, further appends do nothing,
 * and strbuf_steal() returns NULL: one check at the end is enough. */
typedef struct strbuf {
    char *data;    /* NUL-terminated; NULL while nothing was appended */
    size_t length; /* bytes, without the NUL */
    size_t capacity;
    bool failed;
} strbuf;

void strbuf_init(strbuf *buffer);
void strbuf_finish(strbuf *buffer);

void strbuf_append(strbuf *buffer, const char *text);
void strbuf_append_bytes(strbuf *buffer, const char *bytes, size_t length);
void strbuf_appendf(strbuf *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));
void strbuf_appendv(strbuf *buffer, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));

/* What is there so far, never NULL; valid until the next call. */
const char *strbuf_text(const strbuf *buffer);

/* Hand the string to the caller, who frees it, and leave the buffer empty. NULL when memory ran out
 * on the way. */
char *strbuf_steal(strbuf *buffer);

/* ---- Lines ----------------------------------------------------------------------------------- */

/* Columns that every terminal has. */
enum { TEXT_WIDTH = 80 };

/* Print words where the cursor stands, at `column`; lines that would be wider than TEXT_WIDTH go on
 * below, at `indent`. A longer word is not cut, spaces within a line stay as many. No line end
 * after the last one. */
void text_wrap(FILE *file, const char *text, size_t column, size_t indent);

/* Print a formatted line after `indent` spaces; where it is folded, it goes on after `hanging`
 * spaces. */
void text_wrap_line(FILE *file, size_t indent, size_t hanging, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Print the lines of a text, with an end of line after the last one, too. A folded line goes on 2
 * columns further in than it began. */
void text_wrap_lines(FILE *file, const char *lines);

/* The working directory, malloc'ed; "." where it has none any more, since it was removed: relative
 * paths stay relative then. NULL when memory ran out. */
char *text_working_folder(void);

#endif /* HOST_BASE_TEXT_H */
