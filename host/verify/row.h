/* SPDX-License-Identifier: Apache-2.0
 *
 * row.h: one head of an output row against its truth, however that was computed: attention.c
 * computes rows alone, linear.c replays recurrences.
 */
#ifndef HOST_VERIFY_ROW_H
#define HOST_VERIFY_ROW_H

#include "host/reference/reference.h"
#include "host/verify/verify.h"

struct row_verdict {
    reference_verdict verdict;
    double largest; /* |truth| */
};

/* Judge [row, head] of `out` by truth[0 .. dim) and its bars, as reference_check_row() does;
 * `actual` has room for dim. */
void row_verdict_make(const attn_tensor *out, int64_t row, int32_t head, const double *truth,
                      const double *bars, int32_t dim, const reference_row_result *result,
                      double *actual, struct row_verdict *found);

/* Count its error, if it has a size. */
void row_verdict_add_error(const struct row_verdict *found, struct verify_result *result);

/* Where it is, row `t` of a sequence, and by how much it fails, for people. */
void row_verdict_text(const struct row_verdict *found, const struct verify_sequence *sequence,
                      int64_t t, int32_t layer, int32_t head, char text[VERIFY_FAILURE_TEXT]);

#endif /* HOST_VERIFY_ROW_H */
