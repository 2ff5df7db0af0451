/* SPDX-License-Identifier: Apache-2.0
 *
 * partials.c: partial results that are each within their bar, merged, are within theirs: weights from the LSE.
 */
#include "host/check/numerics/partials.h"

#include "host/base/dtype.h"

#include <math.h>

enum { MAX_DIM = 1024 };

static void compare_merged(const struct partials *parts, struct forward_case *const *cases,
                           int32_t s, int32_t t, int32_t head)
{
    const struct case_spec *spec = &parts->specs[PARTIALS_WHOLE];
    double part[MAX_DIM], merged[MAX_DIM] = {0}, merged_lse = -HUGE_VAL, largest = 0;
    const double unit = parts->units * numerics_unit(spec->out_dtype);
    const int32_t dim = spec->v_head_dim < MAX_DIM ? spec->v_head_dim : MAX_DIM;
    const int32_t row = parts->specs[PARTIALS_FIRST].sequences[s].first_query + t;
    for (int32_t n = PARTIALS_FIRST; n < parts->count; n++) {
        double lse = (double)*forward_case_lse(cases[n], s, t, head);
        dtype_to_double(spec->out_dtype, forward_case_output(cases[n], s, t, head), dim, part);
        reference_merge(dim, merged, merged_lse, part, lse, merged, &merged_lse);
    }
    const double lse = (double)*forward_case_lse(cases[PARTIALS_WHOLE], s, row, head);
    dtype_to_double(spec->out_dtype, forward_case_output(cases[PARTIALS_WHOLE], s, row, head), dim,
                    part);
    for (int32_t d = 0; d < dim; d++)
        largest = fmax(largest, fabs(part[d]));
    for (int32_t d = 0; d < dim; d++) {
        const double bar = unit * (1 + (parts->of_element ? fabs(part[d]) : largest));
        CHECK_THAT(parts->run, fabs(merged[d] - part[d]) <= bar,
                   "merged partials of query %d of sequence %d, head %d, element %d: got %g, whole "
                   "%g, accepted a difference of %g",
                   t, s, head, d, merged[d], part[d], bar);
    }
    const bool same =
        isinf(lse) ? merged_lse == lse : fabs(merged_lse - lse) <= unit * (1 + fabs(lse));
    CHECK_THAT(parts->run, same, "merged LSE of query %d of sequence %d, head %d: got %g, whole %g",
               t, s, head, merged_lse, lse);
}

void partials_judge(const struct partials *parts, const attn_options *options)
{
    struct forward_case *cases[PARTIALS_MAX] = {NULL};
    bool good = true;
    for (int32_t n = PARTIALS_WHOLE; n < parts->count && good; n++) {
        cases[n] = numerics_case(parts->run, &parts->specs[n], cases[PARTIALS_WHOLE]);
        good = cases[n] && numerics_judge_alone(parts->run, cases[n], options);
    }
    const struct case_spec *first = &parts->specs[PARTIALS_FIRST];
    for (int32_t s = 0; s < first->num_sequences && good; s++)
        for (int32_t t = 0; t < cases[PARTIALS_FIRST]->lengths.q_len[s]; t++)
            for (int32_t head = 0; head < first->num_q_heads; head++)
                compare_merged(parts, cases, s, t, head);
    for (int32_t n = parts->count; n-- > 0;)
        forward_case_destroy(cases[n]);
}
