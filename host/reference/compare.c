/* SPDX-License-Identifier: Apache-2.0
 *
 * compare.c: whole tensors against a result, by the pass rule.
 */
#include "host/reference/call.h"

#include "host/base/dtype.h"
#include "host/base/error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const reasons[] = {
    [REFERENCE_PASS] = "passes",
    [REFERENCE_ERROR_TOO_LARGE] = "error too large",
    [REFERENCE_NOT_FINITE_HERE] = "NaN or infinity where another value is expected",
    [REFERENCE_FINITE_HERE] = "finite where NaN or infinity is expected",
};

/* Keep the worst verdict, and the first of equals, in words. */
static void remember(reference_report *report, const char *what, int64_t row, int32_t head,
                     const reference_verdict *verdict, double actual, double truth)
{
    double ratio = reference_verdict_ratio(verdict);
    if (report->message[0] && ratio <= report->worst_ratio)
        return;
    report->worst_ratio = ratio;
    snprintf(report->message, sizeof report->message,
             "%s row %lld head %d element %d: %s: got %.9g, expected %.9g, error %.3g, bar %.3g",
             what, (long long)row, head, verdict->dimension, reasons[verdict->code], actual, truth,
             verdict->error, verdict->bar);
}

static void measure(reference_report *report, const double *actual, const double *truth,
                    int32_t count)
{
    double largest = 0, error = 0;
    for (int32_t d = 0; d < count; d++) {
        if (!isfinite(actual[d]) || !isfinite(truth[d]))
            continue;
        error = fmax(error, fabs(actual[d] - truth[d]));
        largest = fmax(largest, fabs(truth[d]));
    }
    report->max_abs_error = fmax(report->max_abs_error, error);
    if (largest > 0)
        report->max_rel_error = fmax(report->max_rel_error, error / largest);
}

static void compare_row(const reference_result *result, int64_t row, int32_t head,
                        const double *actual, reference_report *report)
{
    int64_t entry = row * result->num_heads + head;
    const double *truth = result->out + entry * result->v_head_dim;
    const double *bars = result->bars ? result->bars + entry * result->v_head_dim : NULL;
    reference_verdict verdict = reference_check_row(actual, truth, bars, result->v_head_dim,
                                                    result->out_dtype, &result->rows[entry]);
    report->rows_checked++;
    report->rows_failed += verdict.code != REFERENCE_PASS;
    measure(report, actual, truth, result->v_head_dim);
    remember(report, "output", row, head, &verdict, actual[verdict.dimension],
             truth[verdict.dimension]);
}

static void compare_lse(const reference_result *result, int64_t row, int32_t head, double actual,
                        reference_report *report)
{
    const reference_row_result *truth = &result->rows[row * result->num_heads + head];
    reference_verdict verdict = reference_check_lse(actual, truth);
    report->lse_checked++;
    report->lse_failed += verdict.code != REFERENCE_PASS;
    remember(report, "LSE", row, head, &verdict, actual, truth->lse);
}

/* Padding: an output that is finite, an LSE that is finite or that of no key. */
static void compare_padding(const reference_result *result, const attn_tensor *out,
                            const attn_tensor *lse, int64_t row, double *actual,
                            reference_report *report)
{
    int failed = 0;
    for (int32_t h = 0; h < result->num_heads; h++) {
        int64_t index[] = {row, h};
        dtype_to_double(out->dtype, reference_element(out, index, 2), result->v_head_dim, actual);
        reference_verdict verdict = {.code = REFERENCE_PASS};
        for (int32_t d = 0; d < result->v_head_dim && verdict.code == REFERENCE_PASS; d++)
            if (!isfinite(actual[d]))
                verdict = (reference_verdict){REFERENCE_NOT_FINITE_HERE, d, INFINITY, 0};
        remember(report, "padding output", row, h, &verdict, actual[verdict.dimension], 0);
        failed |= verdict.code != REFERENCE_PASS;
        double value = lse ? dtype_load(ATTN_F32, reference_element(lse, index, 2), 0) : 0;
        if (isnan(value) || value == INFINITY) {
            verdict = (reference_verdict){REFERENCE_NOT_FINITE_HERE, 0, INFINITY, 0};
            remember(report, "padding LSE", row, h, &verdict, value, -INFINITY);
            failed = 1;
        }
    }
    report->padding_checked++;
    report->padding_failed += failed;
}

static attn_status check_shape(const attn_tensor *tensor, const char *name, attn_dtype dtype,
                               uint32_t ndim, const int64_t *shape, attn_error *error)
{
    int same = tensor->ndim == ndim && tensor->dtype == dtype;
    for (uint32_t d = 0; same && d < ndim; d++)
        same = tensor->shape[d] == shape[d];
    if (same)
        return ATTN_OK;
    return host_fail(
        error, ATTN_INVALID_ARGUMENT,
        "%s to compare does not have the result's shape or dtype: accepted %s [%lld, %lld%s", name,
        dtype_name(dtype), (long long)shape[0], (long long)shape[1],
        ndim == 3 ? ", v_head_dim]" : "]");
}

attn_status reference_compare(const reference_result *result, const attn_tensor *out,
                              const attn_tensor *lse, reference_report *report, attn_error *error)
{
    int64_t shape[] = {result->num_rows, result->num_heads, result->v_head_dim};
    attn_status status = check_shape(out, "the output", result->out_dtype, 3, shape, error);
    if (status == ATTN_OK && lse)
        status = check_shape(lse, "the LSE", ATTN_F32, 2, shape, error);
    if (status != ATTN_OK)
        return status;
    if (!result->has_bars)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "the result has no error bars");
    double *actual = malloc((size_t)result->v_head_dim * sizeof *actual);
    if (!actual)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "reference: no memory for a row");
    for (int64_t row = 0; row < result->num_rows; row++) {
        if (result->kind[row] == REFERENCE_ROW_PADDING)
            compare_padding(result, out, lse, row, actual, report);
        for (int32_t h = 0; result->kind[row] == REFERENCE_ROW_REAL && h < result->num_heads; h++) {
            int64_t index[] = {row, h};
            dtype_to_double(out->dtype, reference_element(out, index, 2), result->v_head_dim,
                            actual);
            for (int32_t d = 0; result->out_scale > 0 && d < result->v_head_dim; d++)
                actual[d] *= result->out_scale;
            compare_row(result, row, h, actual, report);
            if (lse)
                compare_lse(result, row, h,
                            dtype_load(ATTN_F32, reference_element(lse, index, 2), 0), report);
        }
    }
    free(actual);
    return ATTN_OK;
}

void reference_report_add(reference_report *report, const reference_report *more)
{
    report->rows_checked += more->rows_checked;
    report->rows_failed += more->rows_failed;
    report->lse_checked += more->lse_checked;
    report->lse_failed += more->lse_failed;
    report->padding_checked += more->padding_checked;
    report->padding_failed += more->padding_failed;
    report->max_abs_error = fmax(report->max_abs_error, more->max_abs_error);
    report->max_rel_error = fmax(report->max_rel_error, more->max_rel_error);
    if (more->worst_ratio > report->worst_ratio || !report->message[0]) {
        report->worst_ratio = more->worst_ratio;
        memcpy(report->message, more->message, sizeof report->message);
    }
}

int reference_report_passed(const reference_report *report)
{
    return report->rows_checked + report->padding_checked > 0 && report->rows_failed == 0 &&
           report->lse_failed == 0 && report->padding_failed == 0;
}
