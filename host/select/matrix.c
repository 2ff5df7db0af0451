/* SPDX-License-Identifier: Apache-2.0
 *
 * matrix.c: the support matrix as text and JSON.
 */
#include "host/select/matrix.h"

#include <stdbool.h>
#include <string.h>

#include "host/select/probe.h"

static const char *matter_of(const cJSON *row)
{
    const char *matter = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "matter"));
    return matter ? matter : "";
}

/* ---- Ask ------------------------------------------------------------------------------------- */

struct asking {
    cJSON *rows;
    bool failed;
};

static cJSON *add_row(cJSON *rows, const char *matter)
{
    cJSON *row = cJSON_CreateObject();
    if (!cJSON_AddItemToArray(rows, row)) {
        cJSON_Delete(row);
        return NULL;
    }
    return cJSON_AddStringToObject(row, "matter", matter) && cJSON_AddArrayToObject(row, "values")
               ? row
               : NULL;
}

/* Values come property by property: a new property begins a row. */
static void take_value(void *ctx, const char *matter, const char *value, int accepted)
{
    struct asking *asking = ctx;
    cJSON *row = cJSON_GetArrayItem(asking->rows, cJSON_GetArraySize(asking->rows) - 1);
    if (!row || strcmp(matter_of(row), matter) != 0)
        row = add_row(asking->rows, matter);
    if (row && !accepted)
        return;
    cJSON *text = row ? cJSON_CreateString(value) : NULL;
    if (!cJSON_AddItemToArray(cJSON_GetObjectItemCaseSensitive(row, "values"), text)) {
        cJSON_Delete(text);
        asking->failed = true;
    }
}

cJSON *matrix_ask(const attnhost *host, const attn_backend_type *type)
{
    struct probe probe;
    struct asking asking = {.rows = cJSON_CreateArray()};
    if (probe_find(host, type, &probe))
        probe_visit(host, type, &probe, take_value, &asking);
    if (!asking.failed)
        return asking.rows;
    cJSON_Delete(asking.rows);
    return NULL;
}

cJSON *matrix_rows_json(const cJSON *rows)
{
    cJSON *object = cJSON_CreateObject();
    const cJSON *row;
    cJSON_ArrayForEach(row, rows)
    {
        cJSON *values = cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(row, "values"), true);
        if (object && values && cJSON_AddItemToObject(object, matter_of(row), values))
            continue;
        cJSON_Delete(values);
        cJSON_Delete(object);
        return NULL;
    }
    return object;
}

/* ---- Write ----------------------------------------------------------------------------------- */

static const cJSON *find_matter(const cJSON *rows, const char *matter)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, rows)
    {
        if (strcmp(matter_of(row), matter) == 0)
            return row;
    }
    return NULL;
}

static void write_values(const cJSON *row, FILE *file)
{
    const cJSON *value;
    const char *separator = "";
    cJSON_ArrayForEach(value, cJSON_GetObjectItemCaseSensitive(row, "values"))
    {
        fprintf(file, "%s%s", separator, cJSON_GetStringValue(value));
        separator = ", ";
    }
    if (!*separator)
        fputs(row ? "none" : "-", file);
}

static void write_row(const struct matrix_column *columns, size_t num_columns, const char *matter,
                      FILE *file)
{
    fprintf(file, "| %s |", matter);
    for (size_t c = 0; c < num_columns; c++) {
        fputc(' ', file);
        write_values(find_matter(columns[c].rows, matter), file);
        fputs(" |", file);
    }
    fputc('\n', file);
}

/* The properties of a column that no earlier column has. */
static void write_rows(const struct matrix_column *columns, size_t num_columns, size_t column,
                       FILE *file)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, columns[column].rows)
    {
        bool written = false;
        for (size_t before = 0; before < column; before++)
            written |= find_matter(columns[before].rows, matter_of(row)) != NULL;
        if (!written)
            write_row(columns, num_columns, matter_of(row), file);
    }
}

void matrix_write(const struct matrix_column *columns, size_t num_columns, FILE *file)
{
    fputs("| |", file);
    for (size_t c = 0; c < num_columns; c++)
        fprintf(file, " `%s` |", columns[c].name);
    fputs("\n|---|", file);
    for (size_t c = 0; c < num_columns; c++)
        fputs("---|", file);
    fputc('\n', file);
    for (size_t c = 0; c < num_columns; c++)
        write_rows(columns, num_columns, c, file);
}
