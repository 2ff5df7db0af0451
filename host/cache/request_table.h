/* SPDX-License-Identifier: Apache-2.0
 *
 * request_table.h: req_to_token, the slot of every position of every running request.
 *
 * int32 [max_requests + 1, max_context_len], row-major, the innermost stride 1. Entry (r, j) is the
 * slot of position j of the request that holds row r. Row 0 is padding, all zero. Entries at and
 * beyond a request's length, and those of rows that are not held, are 0 too: slot 0 is padding, so
 * whatever reads too far stays inside the pool.
 *
 * A released row is the next to be allocated: its memory is warm, and few rows are in use. At first
 * rows are taken in ascending order, from 1.
 */
#ifndef HOST_CACHE_REQUEST_TABLE_H
#define HOST_CACHE_REQUEST_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "attn_types.h"

struct request_table {
    int32_t num_rows;        /* max_requests + 1 */
    int32_t max_context_len; /* elements of a row, and between two rows */
    int32_t *slots;          /* [num_rows, max_context_len] */
    int32_t *free_rows;      /* stack; the last one is taken first */
    int32_t num_free_rows;
};

/* INVALID_ARGUMENT: max_requests or max_context_len is below 1. OUT_OF_HOST_MEMORY names the bytes.
 * On success the caller releases it by request_table_finish(). */
attn_status request_table_init(struct request_table *table, int32_t max_requests,
                               int32_t max_context_len, attn_error *error);

/* Release the memory; a zeroed or finished struct is fine. */
void request_table_finish(struct request_table *table);

/* A row that is not held, 1 .. max_requests; 0 if all are held. */
int32_t request_table_acquire(struct request_table *table);

/* Give back `row`, of which the first `length` entries were written; they become 0. */
void request_table_release(struct request_table *table, int32_t row, int32_t length);

/* The max_context_len entries of `row`. */
static inline int32_t *request_table_row(const struct request_table *table, int32_t row)
{
    return table->slots + (size_t)row * (size_t)table->max_context_len;
}

#endif /* HOST_CACHE_REQUEST_TABLE_H */
