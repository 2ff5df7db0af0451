/* SPDX-License-Identifier: Apache-2.0
 *
 * merge.c: two partial results into one.
 */
#include "host/reference/reference.h"

#include <math.h>

void reference_merge(int32_t v_head_dim, const double *out1, double lse1, const double *out2,
                     double lse2, double *out, double *lse)
{
    double largest = lse1 > lse2 || isnan(lse1) ? lse1 : lse2;
    int empty1 = lse1 == -INFINITY, empty2 = lse2 == -INFINITY;
    if (empty1 && empty2) {
        for (int32_t d = 0; d < v_head_dim; d++)
            out[d] = 0;
        *lse = -INFINITY;
        return;
    }
    double weight1 = exp(lse1 - largest), weight2 = exp(lse2 - largest);
    double sum = weight1 + weight2;
    for (int32_t d = 0; d < v_head_dim; d++) {
        double part1 = empty1 ? 0 : weight1 / sum * out1[d];
        double part2 = empty2 ? 0 : weight2 / sum * out2[d];
        out[d] = part1 + part2;
    }
    *lse = largest + log(sum);
}
