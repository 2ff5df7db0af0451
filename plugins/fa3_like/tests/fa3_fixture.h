/* SPDX-License-Identifier: Apache-2.0
 *
 * fa3_fixture.h: what plugin_run.h and plugin_problem.h leave to fa3_like.
 */
#ifndef FA3_FIXTURE_H
#define FA3_FIXTURE_H

#include "plugins/common/tests/plugin_run.h"
#include "plugins/fa3_like/fa3_like.h"

union seen_params {
    fa3_plan_call plan;
    fa3_rows_call rows;
    struct fa3_forward_params forward;
    struct fa3_codes_params codes;
    struct fa3_turn_params turn;
    fa3_scales_call scales;
    fa3_widen_call widen;
    fa3_gather_call gather;
    fa3_join_call join;
    fi_plan_call fi_plan;
    fi_call fi_call; /* of fi_save too */
};

/* The problem of codes: q, k, v and the cache are e4m3, inputs have scales by `granularity`. */
void make_codes_problem(test_problem *t, uint32_t granularity);

/* The same of expanded latents: 8 heads of 192 and 128, latents of 512 + 64; an output of fp32. */
void make_expanded_problem(test_problem *t);

struct test_own {
    attn_instance instance;
    fa3_instance fa3;
    fi_group base;
    fa3_group group;
};

#endif /* FA3_FIXTURE_H */
