/* SPDX-License-Identifier: Apache-2.0
 *
 * matrix.h: capabilities of backends side by side, from their own query: a row for each property of
 * probe.h, a column for each backend.
 */
#ifndef HOST_SELECT_MATRIX_H
#define HOST_SELECT_MATRIX_H

#include <stdio.h>

#include <cjson/cJSON.h>

#include "attnhost.h"

/* What a backend accepts: an array of {"matter": text, "values": [text ...]}, the caller's. Empty
 * for one that accepts no plain problem, as a composite without children. NULL when memory ran out.
 */
cJSON *matrix_ask(const attnhost *host, const attn_backend_type *type);

/* The same as one object, {matter: [text ...]}; the caller's, NULL when memory ran out. */
cJSON *matrix_rows_json(const cJSON *rows);

/* `rows` from matrix_ask(), or NULL = unknown. */
struct matrix_column {
    const char *name;
    const cJSON *rows;
};

/* A table in Markdown; in a cell "none" where nothing is accepted, "-" where nothing was asked. */
void matrix_write(const struct matrix_column *columns, size_t num_columns, FILE *file);

#endif /* HOST_SELECT_MATRIX_H */
