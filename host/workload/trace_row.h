/* SPDX-License-Identifier: Apache-2.0
 *
 * trace_row.h: one line of a trace file becomes one row; between trace.c, which reads lines and
 * keeps the rows, and the parsers of the formats.
 */
#ifndef HOST_WORKLOAD_TRACE_ROW_H
#define HOST_WORKLOAD_TRACE_ROW_H

#include "host/workload/trace.h"

/* Lengths are token counts and fit an int32_t; a JSON number is exact up to 2^53. */
#define TRACE_MAX_LENGTH INT64_C(2147483647)
#define TRACE_MAX_ID     INT64_C(9007199254740991)

/* Where a line stands, for messages. */
typedef struct trace_place {
    const char *path;
    int64_t line;
} trace_place;

typedef struct trace_row {
    int64_t arrival_us; /* on the file's own clock */
    int64_t input_length;
    int64_t output_length;
    int64_t num_hash_ids;
    int64_t *hash_ids; /* owned by the row's owner; grown by the parser, reused by later rows */
    int64_t hash_ids_capacity;
} trace_row;

/* log2 of the tokens of a block in published traces. */
enum { TRACE_MOONCAKE_BLOCK = 9, TRACE_BAILIAN_BLOCK = 4 };

/* Which sizes of a block agree with the number of hash ids on all lines read. */
typedef struct trace_blocks {
    int64_t given;      /* workload.block_tokens; 0 = to be found */
    uint32_t possible;  /* bit i: 2^i tokens */
    uint32_t preferred; /* the bit that is taken if it is possible */
} trace_blocks;

/* State that earlier lines of a JSON trace leave for later ones. */
typedef struct trace_json {
    trace_format format; /* AUTO until the first line */
    trace_blocks blocks;
    void *sessions; /* a tsearch() tree: the last arrival of each session_id */
} trace_json;

/* Which field of a CSV line holds what; fields count from 0. */
typedef struct trace_csv_columns {
    const struct trace_csv_format *format;
    int num_fields;
    int found[3]; /* time, input tokens, output tokens */
} trace_csv_columns;

/* Advice for a trace that has texts instead of counts; the end of a message. */
#define TRACE_LINE_ACCEPTED                                                                        \
    "JSON lines {\"timestamp\": ms, \"input_length\": tokens, \"output_length\": tokens}, one a "  \
    "request; texts have no token counts: count them with the model's tokenizer"

/* "PATH:LINE: FIELD: got GOT, accepted: ACCEPTED", a long GOT cut short. Returns CONFIG_ERROR. */
attn_status trace_fail_field(const trace_place *place, const char *field, const char *got,
                             const char *accepted, attn_error *error);

/* Can blocks of one size have `num_ids` ids for `length` tokens, here and on the lines before?
 * CONFIG_ERROR if not. */
attn_status trace_blocks_add(trace_blocks *blocks, const trace_place *place, int64_t length,
                             int64_t num_ids, attn_error *error);

/* The size, in tokens. */
int64_t trace_blocks_size(const trace_blocks *blocks);

/* Before the first line; a `format` of AUTO is found there. */
void trace_json_init(trace_json *json, trace_format format, int64_t block_tokens);
void trace_json_finish(trace_json *json);

/* Parse one line (NUL-terminated, without its line end). The CSV parsers write into `text`; the
 * header sets *format if that is AUTO. */
attn_status trace_json_parse(const trace_place *place, const char *text, trace_json *json,
                             trace_row *row, attn_error *error);
attn_status trace_csv_parse_header(const trace_place *place, char *text, trace_format *format,
                                   trace_csv_columns *columns, attn_error *error);
attn_status trace_csv_parse(const trace_place *place, char *text, const trace_csv_columns *columns,
                            trace_row *row, attn_error *error);

#endif /* HOST_WORKLOAD_TRACE_ROW_H */
