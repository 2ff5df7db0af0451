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

/* Which field of a CSV line holds what; fields count from 0. */
typedef struct trace_azure_columns {
    int num_fields;
    int timestamp;
    int context_tokens;
    int generated_tokens;
} trace_azure_columns;

/* "PATH:LINE: FIELD: got GOT, accepted: ACCEPTED", a long GOT cut short. Returns CONFIG_ERROR. */
attn_status trace_fail_field(const trace_place *place, const char *field, const char *got,
                             const char *accepted, attn_error *error);

/* Parse one line (NUL-terminated, without its line end). The azure parsers write into `text`. */
attn_status trace_mooncake_parse(const trace_place *place, const char *text, trace_row *row,
                                 attn_error *error);
attn_status trace_azure_parse_header(const trace_place *place, char *text,
                                     trace_azure_columns *columns, attn_error *error);
attn_status trace_azure_parse(const trace_place *place, char *text,
                              const trace_azure_columns *columns, trace_row *row,
                              attn_error *error);

#endif /* HOST_WORKLOAD_TRACE_ROW_H */
