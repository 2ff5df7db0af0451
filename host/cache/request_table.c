/* SPDX-License-Identifier: Apache-2.0
 *
 * request_table.c: rows of req_to_token: allocation and writing.
 */
#include "host/cache/request_table.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"

attn_status request_table_init(struct request_table *table, int32_t max_requests,
                               int32_t max_context_len, attn_error *error)
{
    memset(table, 0, sizeof *table);
    if (max_requests < 1 || max_requests == INT32_MAX || max_context_len < 1)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "req_to_token: %" PRId32 " requests of %" PRId32
                         " tokens: accepted 1 and more of each",
                         max_requests, max_context_len);
    size_t rows = (size_t)max_requests + 1;
    size_t row_bytes = (size_t)max_context_len * sizeof *table->slots;
    /* calloc() checks the product, and large tables cost only what is touched */
    table->slots = calloc(rows, row_bytes);
    table->free_rows = malloc(rows * sizeof *table->free_rows);
    if (!table->slots || !table->free_rows) {
        request_table_finish(table);
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                         "req_to_token: no memory for %zu rows of %zu bytes", rows, row_bytes);
    }
    table->num_rows = max_requests + 1;
    table->max_context_len = max_context_len;
    for (int32_t row = max_requests; row >= 1; row--)
        table->free_rows[table->num_free_rows++] = row;
    return ATTN_OK;
}

void request_table_finish(struct request_table *table)
{
    free(table->slots);
    free(table->free_rows);
    memset(table, 0, sizeof *table);
}

int32_t request_table_acquire(struct request_table *table)
{
    return table->num_free_rows > 0 ? table->free_rows[--table->num_free_rows] : 0;
}

void request_table_release(struct request_table *table, int32_t row, int32_t length)
{
    assert(row > 0 && row < table->num_rows && table->num_free_rows < table->num_rows - 1);
    assert(length >= 0 && length <= table->max_context_len);
    memset(request_table_row(table, row), 0, (size_t)length * sizeof *table->slots);
    table->free_rows[table->num_free_rows++] = row;
}
