/* SPDX-License-Identifier: Apache-2.0
 *
 * trace_csv.c: one line of a trace that is a CSV without quotes: Azure's and BurstGPT.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/text.h"
#include "host/workload/trace_row.h"

static char *trim(char *text)
{
    text += strspn(text, " \t");
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t", text[length - 1]))
        text[--length] = '\0';
    return text;
}

/* Cut the next field off *rest, which becomes NULL after the last one. */
static char *next_field(char **rest)
{
    char *field = *rest;
    char *comma = strchr(field, ',');
    if (comma)
        *comma = '\0';
    *rest = comma ? comma + 1 : NULL;
    return trim(field);
}

/* ---- Header ---------------------------------------------------------------------------------- */

enum { CSV_COLUMNS = 3 };

struct trace_csv_format {
    trace_format format;
    const char *names[CSV_COLUMNS]; /* time, input tokens, output tokens */
    const char *header;             /* the same as a list */
    int (*parse_time)(const char *text, int64_t *microseconds);
    const char *time_accepted;
};

static int parse_timestamp(const char *text, int64_t *microseconds);
static int parse_seconds(const char *text, int64_t *microseconds);

static const struct trace_csv_format csv_formats[] = {
    {TRACE_FORMAT_AZURE,
     {"TIMESTAMP", "ContextTokens", "GeneratedTokens"},
     "TIMESTAMP, ContextTokens, GeneratedTokens",
     parse_timestamp,
     "YYYY-MM-DD hh:mm:ss[.fraction][Z or +hh:mm]"},
    {TRACE_FORMAT_BURSTGPT,
     {"Timestamp", "Request tokens", "Response tokens"},
     "Timestamp, Request tokens, Response tokens",
     parse_seconds,
     "seconds from 0 to 1e12"},
};

enum { CSV_FORMATS = sizeof csv_formats / sizeof *csv_formats };

/* Enter a header's field number `field`, called `name`. */
static attn_status enter_column(const trace_place *place, const char *name, int field,
                                trace_csv_columns *columns, attn_error *error)
{
    for (int i = 0; i < CSV_COLUMNS; i++) {
        if (strcmp(name, columns->format->names[i]) != 0)
            continue;
        if (columns->found[i] >= 0)
            return trace_fail_field(place, name, "two columns", "one column", error);
        columns->found[i] = field;
    }
    return ATTN_OK;
}

static bool has_word(const char *text, const char *word)
{
    const char *at = strstr(text, word);
    return at && (at == text || strchr(", \t", at[-1])) && strchr(", \t", at[strlen(word)]);
}

/* The format that has a column of the header; NULL if none has. */
static const struct trace_csv_format *find_format(const char *header, trace_format format)
{
    for (int f = 0; f < CSV_FORMATS; f++)
        for (int i = 0; i < CSV_COLUMNS; i++)
            if (format == csv_formats[f].format ||
                (format == TRACE_FORMAT_AUTO && has_word(header, csv_formats[f].names[i])))
                return &csv_formats[f];
    return NULL;
}

attn_status trace_csv_parse_header(const trace_place *place, char *text, trace_format *format,
                                   trace_csv_columns *columns, attn_error *error)
{
    *columns = (trace_csv_columns){.format = find_format(text, *format), .found = {-1, -1, -1}};
    if (!columns->format)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s:%lld: got \"%.40s\", accepted: a CSV header line with %s, or with %s; "
                         "or " TRACE_LINE_ACCEPTED,
                         place->path, (long long)place->line, text, csv_formats[0].header,
                         csv_formats[1].header);
    *format = columns->format->format;
    attn_status status = ATTN_OK;
    for (char *rest = text; rest && status == ATTN_OK; columns->num_fields++)
        status = enter_column(place, next_field(&rest), columns->num_fields, columns, error);
    for (int i = 0; i < CSV_COLUMNS && status == ATTN_OK; i++)
        if (columns->found[i] < 0)
            status = host_fail(error, ATTN_CONFIG_ERROR,
                               "%s:%lld: %s: got no such column, accepted: a header line with %s",
                               place->path, (long long)place->line, columns->format->names[i],
                               columns->format->header);
    return status;
}

/* ---- Lengths --------------------------------------------------------------------------------- */

static attn_status parse_length(const trace_place *place, const char *field, const char *text,
                                int64_t least, int64_t *value, attn_error *error)
{
    int64_t number;
    if (text_parse_int64(text, &number) && number >= least && number <= TRACE_MAX_LENGTH) {
        *value = number;
        return ATTN_OK;
    }
    char accepted[80];
    snprintf(accepted, sizeof accepted, "an integer from %lld to %lld", (long long)least,
             (long long)TRACE_MAX_LENGTH);
    return trace_fail_field(place, field, *text ? text : "nothing", accepted, error);
}

/* ---- Timestamp ------------------------------------------------------------------------------- */

/* Exactly `digits` decimal digits at **cursor in [least, most], then step over them. */
static int take_number(const char **cursor, int digits, int least, int most, int *value)
{
    int number = 0;
    for (int i = 0; i < digits; i++) {
        char c = (*cursor)[i];
        if (c < '0' || c > '9')
            return 0;
        number = number * 10 + (c - '0');
    }
    *cursor += digits;
    *value = number;
    return number >= least && number <= most;
}

static int take_char(const char **cursor, const char *accepted)
{
    if (!**cursor || !strchr(accepted, **cursor))
        return 0;
    ++*cursor;
    return 1;
}

/* ".6805900" in microseconds, further digits cut; no fraction is 0. */
static int take_fraction(const char **cursor, int64_t *microseconds)
{
    int64_t unit = 100000;
    *microseconds = 0;
    if (!take_char(cursor, "."))
        return 1;
    const char *start = *cursor;
    for (; **cursor >= '0' && **cursor <= '9'; ++*cursor, unit /= 10)
        *microseconds += (**cursor - '0') * unit;
    return *cursor > start;
}

/* "", "Z" or "+hh:mm", as minutes east of UTC. */
static int take_zone(const char **cursor, int *minutes)
{
    int hour, minute, west = **cursor == '-';
    *minutes = 0;
    if (take_char(cursor, "Z") || !take_char(cursor, "+-"))
        return 1;
    if (!take_number(cursor, 2, 0, 14, &hour) || !take_char(cursor, ":") ||
        !take_number(cursor, 2, 0, 59, &minute))
        return 0;
    *minutes = (west ? -1 : 1) * (hour * 60 + minute);
    return 1;
}

/* Days since 1970-01-01 in the Gregorian calendar; years are counted from March, so that the leap
 * day is a year's last. */
static int64_t days_of_date(int year, int month, int day)
{
    int64_t y = month > 2 ? year : year - 1;
    int64_t day_of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
    return y * 365 + y / 4 - y / 100 + y / 400 + day_of_year - 719468;
}

static int days_in_month(int year, int month)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return days[month - 1] + (month == 2 && leap);
}

static int parse_timestamp(const char *cursor, int64_t *microseconds)
{
    int year, month, day, hour, minute, second, zone;
    int64_t fraction;
    if (!take_number(&cursor, 4, 1, 9999, &year) || !take_char(&cursor, "-") ||
        !take_number(&cursor, 2, 1, 12, &month) || !take_char(&cursor, "-") ||
        !take_number(&cursor, 2, 1, days_in_month(year, month), &day) ||
        !take_char(&cursor, " T") || !take_number(&cursor, 2, 0, 23, &hour) ||
        !take_char(&cursor, ":") || !take_number(&cursor, 2, 0, 59, &minute) ||
        !take_char(&cursor, ":") || !take_number(&cursor, 2, 0, 59, &second) ||
        !take_fraction(&cursor, &fraction) || !take_zone(&cursor, &zone) || *cursor)
        return 0;
    int64_t minutes = (days_of_date(year, month, day) * 24 + hour) * 60 + minute - zone;
    *microseconds = (minutes * 60 + second) * 1000000 + fraction;
    return 1;
}

static int parse_seconds(const char *text, int64_t *microseconds)
{
    double seconds;
    if (!text_parse_double(text, &seconds) || !(seconds >= 0 && seconds <= 1e12))
        return 0;
    *microseconds = (int64_t)(seconds * 1e6);
    return 1;
}

/* ---- Row ------------------------------------------------------------------------------------- */

attn_status trace_csv_parse(const trace_place *place, char *text, const trace_csv_columns *columns,
                            trace_row *row, attn_error *error)
{
    const struct trace_csv_format *format = columns->format;
    const char *fields[CSV_COLUMNS] = {"", "", ""};
    int num_fields = 0;
    for (char *rest = text; rest; num_fields++) {
        const char *field = next_field(&rest);
        for (int i = 0; i < CSV_COLUMNS; i++)
            if (columns->found[i] == num_fields)
                fields[i] = field;
    }
    if (num_fields != columns->num_fields)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s:%lld: got %d fields, accepted: %d as in the header line", place->path,
                         (long long)place->line, num_fields, columns->num_fields);
    if (!format->parse_time(fields[0], &row->arrival_us))
        return trace_fail_field(place, format->names[0], *fields[0] ? fields[0] : "nothing",
                                format->time_accepted, error);
    row->num_hash_ids = 0;
    attn_status status =
        parse_length(place, format->names[1], fields[1], 1, &row->input_length, error);
    if (status == ATTN_OK)
        status = parse_length(place, format->names[2], fields[2], 0, &row->output_length, error);
    return status;
}
