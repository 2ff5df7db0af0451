/* SPDX-License-Identifier: Apache-2.0
 *
 * row.c: see verify/row.h.
 */
#include "host/verify/row.h"

#include <math.h>
#include <stdio.h>

#include "host/base/dtype.h"
#include "host/base/fpu.h"

void row_verdict_make(const attn_tensor *out, int64_t row, int32_t head, const double *truth,
                      const double *bars, int32_t dim, const reference_row_result *result,
                      double *actual, struct row_verdict *found)
{
    const char *at =
        (const char *)out->data + out->byte_offset +
        (row * out->strides[0] + head * out->strides[1]) * (int64_t)attn_dtype_size(out->dtype);
    uint64_t fpu = fpu_pin(); /* a verdict is arithmetic too */
    dtype_to_double(out->dtype, at, dim, actual);
    found->verdict = reference_check_row(actual, truth, bars, dim, out->dtype, result);
    found->largest = 0;
    for (int32_t d = 0; d < dim; d++)
        found->largest = fmax(found->largest, fabs(truth[d]));
    fpu_unpin(fpu);
}

void row_verdict_add_error(const struct row_verdict *found, struct verify_result *result)
{
    double error = found->verdict.error;
    result->max_of_bar = fmax(result->max_of_bar, reference_verdict_ratio(&found->verdict));
    if (!isfinite(error))
        return;
    result->max_abs_error = fmax(result->max_abs_error, error);
    if (found->largest > 0)
        result->max_rel_error = fmax(result->max_rel_error, error / found->largest);
}

void verify_place_text(const struct verify_sequence *sequence, int64_t t,
                       char text[VERIFY_PLACE_TEXT])
{
    bool has_tree = verify_has_tree(sequence);
    int64_t depth = has_tree ? sequence->tree.depth[t] : t;
    int length = snprintf(text, VERIFY_PLACE_TEXT, "request %lld, position %lld",
                          (long long)sequence->request, (long long)(sequence->prefix_len + depth));
    if (verify_is_rejected(sequence, t))
        snprintf(text + length, (size_t)(VERIFY_PLACE_TEXT - length), ", rejected draft %lld",
                 (long long)t);
}

void row_verdict_text(const struct row_verdict *found, const struct verify_sequence *sequence,
                      int64_t t, int32_t layer, int32_t head, char text[VERIFY_FAILURE_TEXT])
{
    const reference_verdict *verdict = &found->verdict;
    char place[VERIFY_PLACE_TEXT];
    verify_place_text(sequence, t, place);
    snprintf(text, VERIFY_FAILURE_TEXT,
             "%s, layer %d, head %d, dimension %d: error %.3g, accepted up to %.3g", place, layer,
             head, verdict->dimension, verdict->error, verdict->bar);
}
