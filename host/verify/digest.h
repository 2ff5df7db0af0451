/* SPDX-License-Identifier: Apache-2.0
 *
 * digest.h: one SHA-256 over the outputs of all sampled rows.
 *
 * Rows arrive in the order in which batches compute them; the digest must not depend on it. So each
 * row is hashed when it arrives and only {request, position, layer, SHA-256 of its bytes} is kept.
 * At the end the rows are sorted by (request, position, layer) and the digest is the SHA-256 of the
 * concatenation, for each row, of
 *   request (8 bytes, little-endian), position (8), layer (4), SHA-256 of the row's bytes (32).
 * Of a row that was computed twice (retraction, fallback) the first arrival counts.
 *
 * Requests end roughly in their order, so rows of the lowest requests can go into the digest before
 * the end, and memory does not grow with the run: digest_seal().
 */
#ifndef HOST_VERIFY_DIGEST_H
#define HOST_VERIFY_DIGEST_H

#include "attn_types.h"

struct digest_row;
struct digest_hash;

/* Not thread-safe: one thread at a time. A zeroed struct is an initialised one. */
struct digest {
    struct digest_row *rows;
    int64_t num_rows; /* that are kept, repetitions included */
    int64_t capacity;
    int64_t arrivals;         /* calls of digest_add() */
    int64_t sealed;           /* rows of lower requests are complete */
    struct digest_hash *hash; /* of the sealed rows that are kept no more; NULL = none yet */
};

/* An empty digest. Owns memory from the first digest_add() on. */
void digest_init(struct digest *digest);

/* Take in the output row of `request` at `position` in `layer`: `length` bytes at `bytes`, which
 * are only read during the call (NULL with length 0). OUT_OF_HOST_MEMORY leaves it as it was. */
attn_status digest_add(struct digest *digest, int64_t request, int64_t position, int32_t layer,
                       const void *bytes, size_t length, attn_error *error);

/* No more rows come of requests below `request`. */
void digest_seal(struct digest *digest, int64_t request);

/* Write the digest of the rows so far as 64 lower-case hexadecimal digits and a NUL (hex may be
 * NULL: only clean up) and release the memory; the struct is then an empty digest again. */
void digest_finish(struct digest *digest, char hex[65]);

#endif /* HOST_VERIFY_DIGEST_H */
