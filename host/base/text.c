/* SPDX-License-Identifier: Apache-2.0
 *
 * text.c: see text.h. Digits are parsed by hand: strtol() skips spaces and accepts a numeric
 * prefix, and isspace() depends on the locale. Fractions go through strtod_l() with the C locale.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* strtod_l */
#endif
#include "host/base/text.h"

#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

bool text_is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

void text_hex(const uint8_t *bytes, size_t length, char *hex)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < length; i++) {
        *hex++ = digits[bytes[i] >> 4];
        *hex++ = digits[bytes[i] & 15];
    }
    *hex = '\0';
}

bool text_equal_ignoring_case(const char *a, const char *b)
{
    while (*a && lower(*a) == lower(*b))
        a++, b++;
    return lower(*a) == lower(*b);
}

/* ---- Parsers --------------------------------------------------------------------------------- */

/* The digits at *cursor as a number; false if there is none or it is beyond 64 bits. */
static bool take_digits(const char **cursor, uint64_t *value)
{
    const char *p = *cursor;
    uint64_t sum = 0;
    if (!is_digit(*p))
        return false;
    for (; is_digit(*p); p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (sum > (UINT64_MAX - digit) / 10)
            return false;
        sum = sum * 10 + digit;
    }
    *cursor = p;
    *value = sum;
    return true;
}

bool text_parse_uint64(const char *text, uint64_t *value)
{
    uint64_t number;
    if (!take_digits(&text, &number) || *text)
        return false;
    *value = number;
    return true;
}

bool text_parse_int64(const char *text, int64_t *value)
{
    bool negative = *text == '-';
    uint64_t magnitude;
    if (!text_parse_uint64(text + (*text == '-' || *text == '+'), &magnitude))
        return false;
    if (magnitude > (uint64_t)INT64_MAX + negative)
        return false;
    /* Not -(int64_t)magnitude: INT64_MIN has no positive counterpart. */
    *value =
        negative ? -(int64_t)(magnitude - (magnitude > 0)) - (magnitude > 0) : (int64_t)magnitude;
    return true;
}

static locale_t c_locale;
static pthread_once_t c_locale_once = PTHREAD_ONCE_INIT;

/* glibc and musl keep the C locale in static storage, so there is nothing to free at exit. */
static void make_c_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

int text_vformat(char *text, size_t size, const char *format, va_list args)
{
    pthread_once(&c_locale_once, make_c_locale);
    locale_t before = c_locale ? uselocale(c_locale) : (locale_t)0;
    int length = vsnprintf(text, size, format, args);
    if (before)
        uselocale(before);
    return length;
}

int text_format(char *text, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = text_vformat(text, size, format, args);
    va_end(args);
    return length;
}

bool text_parse_double(const char *text, double *value)
{
    /* strtod() also takes spaces, nan, inf and 0x1p3; none of those has only these characters. */
    if (!*text || strspn(text, "0123456789+-.eE") != strlen(text))
        return false;
    pthread_once(&c_locale_once, make_c_locale);
    if (!c_locale)
        return false;
    char *end;
    double number = strtod_l(text, &end, c_locale);
    if (end == text || *end || !isfinite(number))
        return false;
    *value = number;
    return true;
}

bool text_parse_bool(const char *text, bool *value)
{
    static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (text_equal_ignoring_case(text, words[i])) {
            *value = i % 2 == 1;
            return true;
        }
    }
    return false;
}

bool text_parse_size(const char *text, uint64_t *bytes)
{
    static const char suffixes[] = "kmgt";
    uint64_t number;
    if (!take_digits(&text, &number))
        return false;
    if (*text) {
        const char *suffix = strchr(suffixes, lower(*text));
        if (!suffix || text[1])
            return false;
        unsigned shift = 10u * (unsigned)(suffix - suffixes + 1);
        if (number > UINT64_MAX >> shift)
            return false;
        number <<= shift;
    }
    *bytes = number;
    return true;
}

/* ---- Lists ----------------------------------------------------------------------------------- */

const char *text_next_item(const char **cursor, size_t *length)
{
    const char *p = *cursor;
    while (text_is_space(*p))
        p++;
    if (!*p) {
        *cursor = p;
        return NULL;
    }
    const char *item = p;
    while (*p && *p != ',' && !text_is_space(*p))
        p++;
    *length = (size_t)(p - item);
    while (text_is_space(*p))
        p++;
    if (*p == ',') {
        const char *next = p + 1;
        while (text_is_space(*next))
            next++;
        /* A comma at the very end is left in place: the next call finds nothing before it. */
        if (*next || *length == 0)
            p = next;
    }
    *cursor = p;
    return item;
}

bool text_list_add(struct text_list *list, const char *text)
{
    const char **items = realloc(list->items, (list->count + 1) * sizeof *items);
    if (!items)
        return false;
    list->items = items;
    items[list->count++] = text;
    return true;
}

void text_list_finish(struct text_list *list)
{
    free(list->items);
    *list = (struct text_list){NULL, 0};
}

const char text_out_of_memory[] = "does not fit into memory";

/* One range list being read. */
struct range_list {
    int64_t min, max;
    size_t max_count;
    int64_t *values; /* room for max_count is made on demand */
    size_t count;
    size_t capacity;
};

static const char *range_list_add(struct range_list *list, int64_t value)
{
    if (value < list->min || value > list->max)
        return "has a number out of range";
    if (list->count > 0 && value <= list->values[list->count - 1])
        return "is not ascending";
    if (list->count == list->max_count)
        return "has too many numbers";
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 16;
        int64_t *values = realloc(list->values, capacity * sizeof *values);
        if (!values)
            return text_out_of_memory;
        list->values = values;
        list->capacity = capacity;
    }
    list->values[list->count++] = value;
    return NULL;
}

/* `text` up to `length` bytes: N, N-N or N-N/STEP. */
static const char *range_list_add_item(struct range_list *list, const char *text, size_t length)
{
    const char *p = text;
    uint64_t first, last, step = 1;
    bool well_formed = take_digits(&p, &first);
    last = first;
    if (well_formed && *p == '-') {
        p++;
        well_formed = take_digits(&p, &last);
        if (well_formed && *p == '/') {
            p++;
            well_formed = take_digits(&p, &step);
        }
    }
    if (!well_formed || p != text + length)
        return "is not a list of numbers and ranges";
    if (first > INT64_MAX || last > INT64_MAX)
        return "has a number out of range";
    if (first > last)
        return "has a range that runs backwards";
    if (step == 0)
        return "has a range with step 0";
    if ((last - first) % step != 0)
        return "has a range whose step misses its end";
    const char *problem = NULL;
    for (uint64_t value = first; !problem; value += step) {
        problem = range_list_add(list, (int64_t)value);
        if (value == last)
            break;
    }
    return problem;
}

const char *text_parse_range_list(const char *text, int64_t min, int64_t max, size_t max_count,
                                  int64_t **values, size_t *count)
{
    struct range_list list = {.min = min, .max = max, .max_count = max_count};
    const char *problem = NULL, *item;
    size_t length;
    while (!problem && (item = text_next_item(&text, &length)))
        problem = range_list_add_item(&list, item, length);
    if (!problem && list.count == 0)
        problem = "is empty";
    if (problem) {
        free(list.values);
        return problem;
    }
    *values = list.values;
    *count = list.count;
    return NULL;
}

/* ---- Nearest name ---------------------------------------------------------------------------- */

enum { WORD_MAX = 63 }; /* longer words are no keys of ours, and three rows fit the stack */

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t least = a < b ? a : b;
    return least < c ? least : c;
}

/* Optimal string alignment distance of two words of at most WORD_MAX bytes. */
static size_t edit_distance(const char *a, size_t length_a, const char *b, size_t length_b)
{
    /* rows[i % 3][j]: distance of the first i bytes of a and the first j bytes of b */
    size_t rows[3][WORD_MAX + 1];
    for (size_t j = 0; j <= length_b; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= length_a; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= length_b; j++) {
            char ca = lower(a[i - 1]), cb = lower(b[j - 1]);
            row[j] = min3(above[j] + 1, row[j - 1] + 1, above[j - 1] + (ca != cb));
            bool swapped = i > 1 && j > 1 && ca == lower(b[j - 2]) && cb == lower(a[i - 2]);
            if (swapped && two_above[j - 2] + 1 < row[j])
                row[j] = two_above[j - 2] + 1;
        }
    }
    return rows[length_a % 3][length_b];
}

const char *text_nearest(const char *word, const char *const *names, size_t count)
{
    size_t length = strlen(word);
    const char *nearest = NULL;
    size_t nearest_distance = SIZE_MAX;
    if (length > WORD_MAX)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t name_length = names[i] ? strlen(names[i]) : SIZE_MAX;
        if (name_length > WORD_MAX)
            continue;
        size_t longer = length > name_length ? length : name_length;
        size_t distance = edit_distance(word, length, names[i], name_length);
        /* A short name may differ by one edit if some of it is left. */
        size_t limit = longer / 3 > 0 ? longer / 3 : longer > 1;
        if (distance <= limit && distance < nearest_distance) {
            nearest = names[i];
            nearest_distance = distance;
        }
    }
    return nearest;
}

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

/* Bytes that follow a lead byte; -1 = it is none. C0, C1 and F5 .. begin no character. */
static int num_following(unsigned char lead)
{
    if (lead < 0x80)
        return 0;
    return lead < 0xC2 ? -1 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : lead < 0xF5 ? 3 : -1;
}

size_t text_utf8_length(const char *text)
{
    int following = *text ? num_following((unsigned char)*text) : -1;
    for (int f = 1; f <= following; f++)
        if (((unsigned char)text[f] & 0xC0) != 0x80)
            return 0;
    /* RFC 3629: no longer than needed, no surrogate, nothing beyond U+10FFFF. */
    const unsigned char lead = (unsigned char)*text, second = lead ? (unsigned char)text[1] : 0;
    const bool is_none = (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
                         (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F);
    return is_none ? 0 : (size_t)(following + 1);
}

/* Characters but those that control a terminal, up to the end of `text`, or of its line. */
static const char *end_of_plain(const char *text)
{
    size_t length;
    while ((unsigned char)*text >= ' ' && *text != 0x7f && (length = text_utf8_length(text)) > 0)
        text += length;
    return text;
}

bool text_is_line(const char *text)
{
    return !*end_of_plain(text);
}

bool text_is_lines(const char *text)
{
    while (*(text = end_of_plain(text)) == '\n')
        text++;
    return !*text;
}

void text_hide_controls(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            *text = '?';
}

void text_hide_invalid(char *text)
{
    while (*text) {
        size_t length = text_utf8_length(text);
        if (length == 0)
            *text = '?';
        text += length ? length : 1;
    }
}

void text_cut_incomplete(char *text)
{
    size_t length = strlen(text), start = length;
    while (start > 0 && length - start < 3 && ((unsigned char)text[start - 1] & 0xC0) == 0x80)
        start--;
    if (start == 0)
        return;
    unsigned char lead = (unsigned char)text[--start];
    size_t size = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (size > length - start)
        text[start] = '\0';
}

/* ---- Growable string ------------------------------------------------------------------------- */

void strbuf_init(strbuf *buffer)
{
    memset(buffer, 0, sizeof *buffer);
}

void strbuf_finish(strbuf *buffer)
{
    free(buffer->data);
    strbuf_init(buffer);
}

/* Room for `more` bytes and the NUL. */
static bool strbuf_reserve(strbuf *buffer, size_t more)
{
    if (buffer->failed)
        return false;
    if (buffer->data && more < buffer->capacity - buffer->length)
        return true;
    if (more > SIZE_MAX / 4 || buffer->length > SIZE_MAX / 4) {
        buffer->failed = true;
        return false;
    }
    size_t needed = buffer->length + more + 1;
    size_t capacity = buffer->capacity ? buffer->capacity * 2 : 64;
    if (capacity < needed)
        capacity = needed;
    char *data = realloc(buffer->data, capacity);
    if (!data) {
        buffer->failed = true;
        return false;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

void strbuf_append_bytes(strbuf *buffer, const char *bytes, size_t length)
{
    if (!strbuf_reserve(buffer, length))
        return;
    if (length > 0)
        memcpy(buffer->data + buffer->length, bytes, length);
    buffer->length += length;
    buffer->data[buffer->length] = '\0';
}

void strbuf_append(strbuf *buffer, const char *text)
{
    strbuf_append_bytes(buffer, text, strlen(text));
}

void strbuf_appendf(strbuf *buffer, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    strbuf_appendv(buffer, format, args);
    va_end(args);
}

void strbuf_appendv(strbuf *buffer, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int length = text_vformat(NULL, 0, format, args);
    if (length < 0)
        buffer->failed = true;
    else if (strbuf_reserve(buffer, (size_t)length)) {
        text_vformat(buffer->data + buffer->length, (size_t)length + 1, format, again);
        buffer->length += (size_t)length;
    }
    va_end(again);
}

const char *strbuf_text(const strbuf *buffer)
{
    return buffer->data ? buffer->data : "";
}

char *strbuf_steal(strbuf *buffer)
{
    char *data = NULL;
    if (buffer->failed) {
        free(buffer->data);
    } else {
        data = buffer->data ? buffer->data : calloc(1, 1);
    }
    strbuf_init(buffer);
    return data;
}

/* ---- Lines ----------------------------------------------------------------------------------- */

void text_wrap(FILE *file, const char *text, size_t column, size_t indent)
{
    size_t at = column, gap = 0; /* spaces before the word; none before a line's first one */
    while (*text) {
        size_t length = strcspn(text, " ");
        if (gap > 0 && at + gap + length > TEXT_WIDTH) {
            fprintf(file, "\n%*s", (int)indent, "");
            at = indent;
            gap = 0;
        }
        fprintf(file, "%*s%.*s", (int)gap, "", (int)length, text);
        at += gap + length;
        gap = strspn(text + length, " ");
        text += length + gap;
    }
}

void text_wrap_line(FILE *file, size_t indent, size_t hanging, const char *format, ...)
{
    strbuf line;
    va_list args;
    va_start(args, format);
    strbuf_init(&line);
    strbuf_appendv(&line, format, args);
    va_end(args);
    if (line.data)
        text_hide_controls(line.data);
    fprintf(file, "%*s", (int)indent, "");
    text_wrap(file, strbuf_text(&line), indent, hanging);
    putc('\n', file);
    strbuf_finish(&line);
}

void text_wrap_lines(FILE *file, const char *lines)
{
    for (size_t length; *lines; lines += length + (lines[length] == '\n')) {
        length = strcspn(lines, "\n");
        size_t indent = strspn(lines, " ");
        text_wrap_line(file, indent, indent + 2, "%.*s", (int)(length - indent), lines + indent);
    }
}

/* ---- Folders --------------------------------------------------------------------------------- */

char *text_working_folder(void)
{
    char *folder = getcwd(NULL, 0);
    return folder ? folder : strdup(".");
}
