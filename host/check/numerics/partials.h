/* SPDX-License-Identifier: Apache-2.0
 *
 * partials.h: a case in parts of its keys, whose results merge to the result of the whole. */
#ifndef HOST_CHECK_NUMERICS_PARTIALS_H
#define HOST_CHECK_NUMERICS_PARTIALS_H

#include "host/check/cases/kind.h"

enum { PARTIALS_WHOLE, PARTIALS_FIRST, PARTIALS_MAX = 5 };

struct partials {
    struct check_run *run;
    int32_t count; /* of specs, the whole one included */
    /* Query 0 of a part is query first_query of the whole. */
    struct case_spec specs[PARTIALS_MAX];
    /* Elements may differ by so many units of 1 plus the largest of their row, or plus their own size. */
    double units;
    bool of_element;
};

/* Judge each of them, and compare. */
void partials_judge(const struct partials *parts, const attn_options *options);

#endif /* HOST_CHECK_NUMERICS_PARTIALS_H */
