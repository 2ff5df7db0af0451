/* SPDX-License-Identifier: Apache-2.0
 *
 * trace.c: lines of a trace file, the rows made of them, and their order.
 *
 * While the file is read, hash ids grow in one array that may move, so requests get their pointers
 * into it only at the end.
 */
#include "host/workload/trace.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "host/base/error.h"
#include "host/base/input.h"
#include "host/workload/trace_row.h"

/* A line of a real trace has some kilobytes; the bound keeps a wrong file from filling memory. */
#define MAX_LINE_BYTES ((size_t)16 << 20)

/* Bounds for files that are small and unpack to much: real traces have hardly an empty line, and
 * unpack to 5 to 30 times their size. */
enum { MAX_BLANK_LINES = 100000, MAX_EXPANSION = 200, MIN_EXPANDED = 64 << 20 };

typedef struct trace_reader {
    gzFile file;       /* reads what is not compressed as it stands */
    trace_place place; /* of the line in `text` */
    char *text;        /* one line, NUL-terminated */
    size_t length;     /* bytes, without the NUL */
    size_t capacity;
    trace_json json;
    trace_csv_columns columns;
    int has_header; /* CSV: `columns` is known */
    trace_row row;
    struct trace *trace;
    int64_t requests_capacity;
    int64_t num_hash_ids;
    int64_t hash_ids_capacity;
    int64_t num_blank; /* lines */
    const struct trace_limit *limit;
    int64_t num_counted; /* requests that the limit is for */
} trace_reader;

attn_status trace_fail_field(const trace_place *place, const char *field, const char *got,
                             const char *accepted, attn_error *error)
{
    const char *cut = strlen(got) > 60 ? "..." : "";
    return host_fail(error, ATTN_CONFIG_ERROR, "%s:%lld: %s: got %.60s%s, accepted: %s",
                     place->path, (long long)place->line, field, got, cut, accepted);
}

static attn_status fail_memory(const trace_reader *reader, attn_error *error)
{
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "%s:%lld: no memory for the trace",
                     reader->place.path, (long long)reader->place.line);
}

/* Room for `count` elements of `size` bytes in *array, growing by doubling; 0 without memory. */
static int reserve(void **array, int64_t *capacity, int64_t count, size_t size)
{
    if (count <= *capacity)
        return 1;
    int64_t grown = *capacity ? *capacity * 2 : 256;
    while (grown < count)
        grown *= 2;
    void *moved = realloc(*array, (size_t)grown * size);
    if (!moved)
        return 0;
    *array = moved;
    *capacity = grown;
    return 1;
}

/* ---- Lines ----------------------------------------------------------------------------------- */

static attn_status append_byte(trace_reader *reader, int byte, attn_error *error)
{
    if (reader->length == MAX_LINE_BYTES)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s:%lld: got a line of more than %zu bytes, accepted: at most that",
                         reader->place.path, (long long)reader->place.line, MAX_LINE_BYTES);
    if (reader->length + 1 >= reader->capacity) {
        size_t capacity = reader->capacity ? reader->capacity * 2 : 4096;
        char *text = realloc(reader->text, capacity);
        if (!text)
            return fail_memory(reader, error);
        reader->text = text;
        reader->capacity = capacity;
    }
    reader->text[reader->length++] = (char)byte;
    reader->text[reader->length] = '\0';
    return ATTN_OK;
}

/* What a text file may have around its lines: a byte order mark, a carriage return. */
static void strip_line(trace_reader *reader)
{
    if (reader->place.line == 1 && strncmp(reader->text, "\xef\xbb\xbf", 3) == 0) {
        reader->length -= 3;
        memmove(reader->text, reader->text + 3, reader->length + 1);
    }
    if (reader->length > 0 && reader->text[reader->length - 1] == '\r')
        reader->text[--reader->length] = '\0';
}

/* Has reading failed? */
static attn_status check_read(const trace_reader *reader, attn_error *error)
{
    int code;
    gzerror(reader->file, &code);
    const char *why = code == Z_ERRNO       ? strerror(errno)
                      : code == Z_BUF_ERROR ? "the compressed data end too early"
                                            : zError(code);
    if (code == Z_MEM_ERROR)
        return fail_memory(reader, error);
    return code == Z_OK || code == Z_STREAM_END
               ? ATTN_OK
               : host_fail(error, ATTN_CONFIG_ERROR,
                           "%s: cannot be read: %s; accepted: a readable file, plain or gzip",
                           reader->place.path, why);
}

/* Next line into reader->text; *more is 0 at the end of the file. */
static attn_status read_line(trace_reader *reader, int *more, attn_error *error)
{
    int byte;
    attn_status status = ATTN_OK;
    reader->length = 0;
    reader->place.line++;
    while (status == ATTN_OK && (byte = gzgetc(reader->file)) != -1 && byte != '\n')
        status = append_byte(reader, byte, error);
    if (status != ATTN_OK)
        return status;
    if (byte == -1)
        status = check_read(reader, error);
    if (status != ATTN_OK)
        return status;
    *more = byte == '\n' || reader->length > 0;
    if (reader->length == 0)
        return ATTN_OK;
    if (strlen(reader->text) != reader->length)
        return host_fail(error, ATTN_CONFIG_ERROR, "%s:%lld: got a NUL byte, accepted: text",
                         reader->place.path, (long long)reader->place.line);
    strip_line(reader);
    return ATTN_OK;
}

static attn_status check_expansion(const trace_reader *reader, attn_error *error)
{
    int64_t bytes = gztell(reader->file);
    if (bytes < MIN_EXPANDED || gzdirect(reader->file) ||
        bytes / MAX_EXPANSION < gzoffset(reader->file))
        return ATTN_OK;
    return host_fail(error, ATTN_CONFIG_ERROR,
                     "%s:%lld: got data that unpack to more than %d times their size, accepted: at "
                     "most that",
                     reader->place.path, (long long)reader->place.line, MAX_EXPANSION);
}

static attn_status note_blank(trace_reader *reader, attn_error *error)
{
    if (++reader->num_blank <= MAX_BLANK_LINES)
        return ATTN_OK;
    return host_fail(error, ATTN_CONFIG_ERROR,
                     "%s:%lld: got more than %d empty lines, accepted: at most that",
                     reader->place.path, (long long)reader->place.line, MAX_BLANK_LINES);
}

static int is_blank(const trace_reader *reader)
{
    return reader->length == 0 || strspn(reader->text, " \t") == reader->length;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* One more request, the trace's last one. */
static void count_row(trace_reader *reader)
{
    const struct trace_limit *limit = reader->limit;
    const trace_request *request = &reader->trace->requests[reader->trace->num_requests - 1];
    reader->num_counted += !limit->counts || limit->counts(limit->ctx, request);
}

static attn_status append_row(trace_reader *reader, attn_error *error)
{
    const trace_row *row = &reader->row;
    struct trace *trace = reader->trace;
    int64_t num_hash_ids = reader->num_hash_ids + row->num_hash_ids;
    if (!reserve((void **)&trace->requests, &reader->requests_capacity, trace->num_requests + 1,
                 sizeof *trace->requests) ||
        !reserve((void **)&trace->hash_ids, &reader->hash_ids_capacity, num_hash_ids,
                 sizeof *trace->hash_ids))
        return fail_memory(reader, error);
    trace->requests[trace->num_requests++] = (trace_request){
        .arrival_us = row->arrival_us,
        .input_length = row->input_length,
        .output_length = row->output_length,
        .num_hash_ids = row->num_hash_ids,
        .line = reader->place.line,
    };
    if (row->num_hash_ids > 0)
        memcpy(trace->hash_ids + reader->num_hash_ids, row->hash_ids,
               (size_t)row->num_hash_ids * sizeof *row->hash_ids);
    reader->num_hash_ids = num_hash_ids;
    count_row(reader);
    return ATTN_OK;
}

static attn_status parse_line(trace_reader *reader, attn_error *error)
{
    struct trace *trace = reader->trace;
    trace_format *format = &trace->format;
    char first = reader->text[strspn(reader->text, " \t")];
    bool is_json = *format == TRACE_FORMAT_MOONCAKE || *format == TRACE_FORMAT_BAILIAN ||
                   (*format == TRACE_FORMAT_AUTO && first == '{');
    if (!reader->has_header && trace->num_requests == 0 && first == '[')
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s:%lld: got a JSON array, accepted: " TRACE_LINE_ACCEPTED
                         " (jq -c '.[]' makes lines of an array whose elements have these keys)",
                         reader->place.path, (long long)reader->place.line);
    attn_status status;
    if (is_json) {
        status = trace_json_parse(&reader->place, reader->text, &reader->json, &reader->row, error);
        *format = reader->json.format;
    } else if (!reader->has_header) {
        reader->has_header = 1;
        return trace_csv_parse_header(&reader->place, reader->text, format, &reader->columns,
                                      error);
    } else {
        status =
            trace_csv_parse(&reader->place, reader->text, &reader->columns, &reader->row, error);
    }
    return status == ATTN_OK ? append_row(reader, error) : status;
}

static bool is_enough(const trace_reader *reader)
{
    return reader->limit->requests > 0 && reader->num_counted >= reader->limit->requests;
}

static attn_status read_rows(trace_reader *reader, attn_error *error)
{
    while (!is_enough(reader)) {
        int more = 0;
        attn_status status = read_line(reader, &more, error);
        if (status != ATTN_OK)
            return status;
        if (!more)
            break;
        status = check_expansion(reader, error);
        if (status == ATTN_OK)
            status = is_blank(reader) ? note_blank(reader, error) : parse_line(reader, error);
        if (status != ATTN_OK)
            return status;
    }
    if (reader->trace->num_requests > 0)
        return ATTN_OK;
    return host_fail(error, ATTN_CONFIG_ERROR, "%s: got no request, accepted: at least one",
                     reader->place.path);
}

static int compare_arrival(const void *left, const void *right)
{
    const trace_request *x = left, *y = right;
    if (x->arrival_us != y->arrival_us)
        return x->arrival_us < y->arrival_us ? -1 : 1;
    return (x->line > y->line) - (x->line < y->line);
}

/* Pointers into the hash ids, order of arrival, and a clock that starts at the first request. */
static void settle(struct trace *trace)
{
    const int64_t *hash_ids = trace->hash_ids;
    for (int64_t i = 0; i < trace->num_requests; i++) {
        trace_request *request = &trace->requests[i];
        request->hash_ids = request->num_hash_ids > 0 ? hash_ids : NULL;
        if (request->num_hash_ids > 0)
            hash_ids += request->num_hash_ids;
    }
    qsort(trace->requests, (size_t)trace->num_requests, sizeof *trace->requests, compare_arrival);
    int64_t start = trace->requests[0].arrival_us;
    for (int64_t i = 0; i < trace->num_requests; i++)
        trace->requests[i].arrival_us -= start;
}

/* ---- Lifetime -------------------------------------------------------------------------------- */

attn_status trace_init(struct trace *trace, const char *path, trace_format format,
                       int64_t block_tokens, attn_error *error)
{
    static const struct trace_limit all = {.requests = 0};
    return trace_init_limited(trace, path, format, block_tokens, &all, error);
}

attn_status trace_init_limited(struct trace *trace, const char *path, trace_format format,
                               int64_t block_tokens, const struct trace_limit *limit,
                               attn_error *error)
{
    memset(trace, 0, sizeof *trace);
    trace->format = format;
    trace_reader reader = {.place = {.path = path}, .trace = trace, .limit = limit};
    int descriptor = input_descriptor(path);
    errno = descriptor < 0 ? errno : ENOMEM; /* what gzdopen() leaves it at if there is no memory */
    reader.file = descriptor < 0 ? NULL : gzdopen(descriptor, "rb");
    if (!reader.file && descriptor >= 0)
        close(descriptor);
    if (!reader.file && errno == ENOMEM)
        return fail_memory(&reader, error);
    if (!reader.file)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s: trace cannot be opened: %s; accepted: a readable file", path,
                         input_error(errno));
    attn_status status = ATTN_OK;
    trace->path = strdup(path);
    if (!trace->path)
        status = fail_memory(&reader, error);
    trace_json_init(&reader.json, format, block_tokens);
    if (status == ATTN_OK)
        status = read_rows(&reader, error);
    trace->block_tokens = trace_blocks_size(&reader.json.blocks);
    if (status == ATTN_OK)
        settle(trace);
    else
        trace_finish(trace);
    trace_json_finish(&reader.json);
    free(reader.row.hash_ids);
    free(reader.text);
    gzclose_r(reader.file);
    return status;
}

void trace_finish(struct trace *trace)
{
    free(trace->path);
    free(trace->requests);
    free(trace->hash_ids);
    memset(trace, 0, sizeof *trace);
}
