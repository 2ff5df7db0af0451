/* SPDX-License-Identifier: Apache-2.0
 *
 * verdict.c: the pass rule.
 */
#include "host/reference/reference.h"

#include "host/base/dtype.h"

#include <math.h>

enum { NAIVE_FACTOR = 2 };
static const double floor_factor = 1e-5;

/* Do both agree about being finite, or which infinity, or NaN? REFERENCE_PASS if so.
 *
 * A finite truth may be beyond the dtype, or so near its border that an error within the bar takes
 * it there: both the infinity and the finite value are right then (the latter within the bar). */
static int32_t check_finite(double actual, double truth, double bar, attn_dtype dtype)
{
    if (isfinite(actual))
        return isfinite(truth) ? REFERENCE_PASS : REFERENCE_FINITE_HERE;
    if (isnan(truth) || isnan(actual))
        return isnan(truth) && isnan(actual) ? REFERENCE_PASS : REFERENCE_NOT_FINITE_HERE;
    if (isinf(truth))
        return actual == truth ? REFERENCE_PASS : REFERENCE_NOT_FINITE_HERE;
    double farthest = truth + copysign(bar, truth);
    return dtype_round(dtype, farthest) == actual ? REFERENCE_PASS : REFERENCE_NOT_FINITE_HERE;
}

static double distance(double actual, double truth)
{
    return isfinite(actual) && isfinite(truth) ? fabs(actual - truth) : 0;
}

reference_verdict reference_check_row(const double *actual, const double *truth, int32_t v_head_dim,
                                      attn_dtype out_dtype, const reference_row_result *row)
{
    reference_verdict verdict = {
        .bar = NAIVE_FACTOR * row->naive_error + floor_factor * row->max_v,
    };
    for (int32_t d = 0; d < v_head_dim; d++) {
        verdict.code = check_finite(actual[d], truth[d], verdict.bar, out_dtype);
        if (verdict.code != REFERENCE_PASS) {
            verdict.dimension = d;
            verdict.error = INFINITY;
            return verdict;
        }
        double error = distance(actual[d], truth[d]);
        if (error > verdict.error) {
            verdict.error = error;
            verdict.dimension = d;
        }
    }
    if (verdict.error > verdict.bar)
        verdict.code = REFERENCE_ERROR_TOO_LARGE;
    return verdict;
}

reference_verdict reference_check_lse(double actual, const reference_row_result *row)
{
    double size = isfinite(row->lse) ? fmax(1, fabs(row->lse)) : 1;
    reference_verdict verdict = {
        .bar = NAIVE_FACTOR * row->naive_lse_error + floor_factor * size,
    };
    verdict.code = check_finite(actual, row->lse, verdict.bar, ATTN_F32);
    if (verdict.code != REFERENCE_PASS) {
        verdict.error = INFINITY;
        return verdict;
    }
    verdict.error = distance(actual, row->lse);
    if (verdict.error > verdict.bar)
        verdict.code = REFERENCE_ERROR_TOO_LARGE;
    return verdict;
}
