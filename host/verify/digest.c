/* SPDX-License-Identifier: Apache-2.0
 *
 * digest.c: hashing of sampled rows, independent of their order.
 */
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

struct digest_hash {
    struct sha256_ctx sha;
};

void digest_init(struct digest *digest)
{
    memset(digest, 0, sizeof *digest);
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

/* Rows in order into the hash, of equal ones the first. */
static void hash_rows(struct sha256_ctx *sha, const struct digest_row *rows, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (i == 0 || compare_place(&rows[i - 1], &rows[i]) != 0)
            update_with_row(sha, &rows[i]);
}

static void sort_rows(struct digest *digest)
{
    if (digest->num_rows > 0)
        qsort(digest->rows, (size_t)digest->num_rows, sizeof *digest->rows, compare_row);
}

static attn_status fail_memory(const struct digest *digest, attn_error *error)
{
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "digest: no memory for %lld rows",
                     (long long)digest->capacity + 1);
}

/* Sealed rows go into the hash, and are kept no more. */
static attn_status hash_sealed(struct digest *digest, attn_error *error)
{
    int64_t count = 0;
    if (digest->sealed == 0 || digest->num_rows == 0)
        return ATTN_OK;
    if (!digest->hash) {
        digest->hash = malloc(sizeof *digest->hash);
        if (!digest->hash)
            return fail_memory(digest, error);
        sha256_init(&digest->hash->sha);
    }
    sort_rows(digest);
    while (count < digest->num_rows && digest->rows[count].request < digest->sealed)
        count++;
    hash_rows(&digest->hash->sha, digest->rows, count);
    digest->num_rows -= count;
    memmove(digest->rows, digest->rows + count, (size_t)digest->num_rows * sizeof *digest->rows);
    return ATTN_OK;
}

/* Half of the rows have to go to keep the memory as it is: sorting stays cheap then. */
static attn_status make_room(struct digest *digest, attn_error *error)
{
    if (digest->num_rows < digest->capacity)
        return ATTN_OK;
    attn_status status = hash_sealed(digest, error);
    if (status != ATTN_OK || (digest->capacity > 0 && digest->num_rows <= digest->capacity / 2))
        return status;
    int64_t capacity = digest->capacity ? digest->capacity * 2 : 1024;
    struct digest_row *rows = realloc(digest->rows, (size_t)capacity * sizeof *rows);
    if (!rows)
        return fail_memory(digest, error);
    digest->rows = rows;
    digest->capacity = capacity;
    return ATTN_OK;
}

void digest_seal(struct digest *digest, int64_t request)
{
    digest->sealed = request > digest->sealed ? request : digest->sealed;
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
    row->arrival = digest->arrivals++;
    digest->num_rows++;
    struct sha256_ctx sha;
    sha256_init(&sha);
    if (length > 0)
        sha256_update(&sha, length, bytes);
    sha256_digest(&sha, sizeof row->hash, row->hash);
    return ATTN_OK;
}

void digest_finish(struct digest *digest, char hex[65])
{
    if (hex) {
        struct sha256_ctx sha;
        sha256_init(&sha);
        if (digest->hash)
            sha = digest->hash->sha;
        sort_rows(digest);
        hash_rows(&sha, digest->rows, digest->num_rows);
        uint8_t hash[SHA256_DIGEST_SIZE];
        sha256_digest(&sha, sizeof hash, hash);
        text_hex(hash, sizeof hash, hex);
    }
    free(digest->hash);
    free(digest->rows);
    digest_init(digest);
}
