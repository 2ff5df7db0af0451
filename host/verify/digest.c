/* SPDX-License-Identifier: Apache-2.0 */
#include "host/verify/digest.h"

#include <nettle/sha2.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/text.h"

struct digest_row {
    int64_t request;
    int64_t position;
    int64_t arrival; /* index among all rows: the first of equal ones wins */
    int32_t layer;
    uint8_t hash[SHA256_DIGEST_SIZE];
};

void digest_init(struct digest *digest)
{
    memset(digest, 0, sizeof *digest);
}

static attn_status make_room(struct digest *digest, attn_error *error)
{
    if (digest->num_rows < digest->capacity)
        return ATTN_OK;
    int64_t capacity = digest->capacity ? digest->capacity * 2 : 1024;
    struct digest_row *rows = realloc(digest->rows, (size_t)capacity * sizeof *rows);
    if (!rows)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "digest: no memory for %lld rows",
                         (long long)capacity);
    digest->rows = rows;
    digest->capacity = capacity;
    return ATTN_OK;
}

attn_status digest_add(struct digest *digest, int64_t request, int64_t position, int32_t layer,
                       const void *bytes, size_t length, attn_error *error)
{
    attn_status status = make_room(digest, error);
    if (status != ATTN_OK)
        return status;
    struct digest_row *row = &digest->rows[digest->num_rows];
    row->request = request;
    row->position = position;
    row->layer = layer;
    row->arrival = digest->num_rows++;
    struct sha256_ctx sha;
    sha256_init(&sha);
    if (length > 0)
        sha256_update(&sha, length, bytes);
    sha256_digest(&sha, sizeof row->hash, row->hash);
    return ATTN_OK;
}

static int compare_int64(int64_t x, int64_t y)
{
    return (x > y) - (x < y);
}

/* Order by (request, position, layer); 0 if all three are equal. */
static int compare_place(const struct digest_row *x, const struct digest_row *y)
{
    int order = compare_int64(x->request, y->request);
    if (order == 0)
        order = compare_int64(x->position, y->position);
    if (order == 0)
        order = compare_int64(x->layer, y->layer);
    return order;
}

static int compare_row(const void *left, const void *right)
{
    const struct digest_row *x = left, *y = right;
    int order = compare_place(x, y);
    return order ? order : compare_int64(x->arrival, y->arrival);
}

static void store_little_endian(uint8_t *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> 8 * i);
}

static void update_with_row(struct sha256_ctx *sha, const struct digest_row *row)
{
    uint8_t record[8 + 8 + 4 + SHA256_DIGEST_SIZE];
    store_little_endian(record, (uint64_t)row->request, 8);
    store_little_endian(record + 8, (uint64_t)row->position, 8);
    store_little_endian(record + 16, (uint64_t)row->layer, 4);
    memcpy(record + 20, row->hash, sizeof row->hash);
    sha256_update(sha, sizeof record, record);
}

void digest_finish(struct digest *digest, char hex[65])
{
    if (hex) {
        if (digest->num_rows > 0)
            qsort(digest->rows, (size_t)digest->num_rows, sizeof *digest->rows, compare_row);
        struct sha256_ctx sha;
        sha256_init(&sha);
        for (int64_t i = 0; i < digest->num_rows; i++)
            if (i == 0 || compare_place(&digest->rows[i - 1], &digest->rows[i]) != 0)
                update_with_row(&sha, &digest->rows[i]);
        uint8_t hash[SHA256_DIGEST_SIZE];
        sha256_digest(&sha, sizeof hash, hash);
        text_hex(hash, sizeof hash, hex);
    }
    free(digest->rows);
    digest_init(digest);
}
