/* SPDX-License-Identifier: Apache-2.0
 *
 * fi_fixture.h: what plugin_run.h leaves to flashinfer_like.
 */
#ifndef FI_FIXTURE_H
#define FI_FIXTURE_H

#include "plugins/common/tests/plugin_run.h"
#include "plugins/flashinfer_like/flashinfer_like.h"

union seen_params {
    fi_plan_call plan;
    fi_call call; /* of fi_save too */
};

struct test_own {
    attn_instance instance;
    fi_group group;
};

#endif /* FI_FIXTURE_H */
