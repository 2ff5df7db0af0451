/* SPDX-License-Identifier: Apache-2.0
 *
 * verdict.c: the pass rule.
 */
#include "host/reference/reference.h"

#include "host/base/dtype.h"

#include <math.h>

/* Are both finite, the same infinity, or NaN? REFERENCE_PASS if so.
 *
 * A finite truth may be beyond the dtype, or so near its border that an error within the bar takes
 * it there: both the infinity and the finite value are right then (the latter within the bar). */
static int32_t check_finite(double actual, double truth, double bar, attn_dtype dtype)
{
    if (isfinite(actual))
        return isfinite(truth) ? REFERENCE_PASS : REFERENCE_FINITE_HERE;
    if (isnan(truth) || isnan(actual))
        return isnan(truth) && isnan(actual) ? REFERENCE_PASS : REFERENCE_NOT_FINITE_HERE;
    if (dtype_is_fp8(dtype)) /* saturated */
        return REFERENCE_NOT_FINITE_HERE;
    if (isinf(truth))
        return actual == truth ? REFERENCE_PASS : REFERENCE_NOT_FINITE_HERE;
    double farthest = truth + copysign(bar, truth);
    return dtype_round(dtype, farthest) == actual ? REFERENCE_PASS : REFERENCE_NOT_FINITE_HERE;
}

static double distance(double actual, double truth)
{
    return isfinite(actual) && isfinite(truth) ? fabs(actual - truth) : 0;
}

/* One element, or an LSE. */
static reference_verdict check_element(double actual, double truth, double bar, attn_dtype dtype)
{
    reference_verdict verdict = {.code = check_finite(actual, truth, bar, dtype), .bar = bar};
    verdict.error = verdict.code == REFERENCE_PASS ? distance(actual, truth) : INFINITY;
    if (verdict.code == REFERENCE_PASS && verdict.error > bar)
        verdict.code = REFERENCE_ERROR_TOO_LARGE;
    return verdict;
}

double reference_verdict_ratio(const reference_verdict *verdict)
{
    if (verdict->error == 0)
        return 0;
    return isfinite(verdict->error) && verdict->bar > 0 ? verdict->error / verdict->bar : INFINITY;
}

reference_verdict reference_check_row(const double *actual, const double *truth, const double *bars,
                                      int32_t v_head_dim, attn_dtype out_dtype,
                                      const reference_row_result *row)
{
    reference_verdict worst = {.bar = bars ? bars[0] : row->bar};
    for (int32_t d = 0; d < v_head_dim; d++) {
        reference_verdict found =
            check_element(actual[d], truth[d], bars ? bars[d] : row->bar, out_dtype);
        found.dimension = d;
        if (!isfinite(found.error))
            return found;
        if (reference_verdict_ratio(&found) > reference_verdict_ratio(&worst))
            worst = found;
    }
    return worst;
}

reference_verdict reference_check_lse(double actual, const reference_row_result *row)
{
    return check_element(actual, row->lse, row->lse_bar, ATTN_F32);
}
