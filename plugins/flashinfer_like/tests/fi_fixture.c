/* SPDX-License-Identifier: Apache-2.0
 *
 * fi_fixture.c: the instance of flashinfer_like's tests.
 */
#include "plugins/flashinfer_like/tests/fi_fixture.h"

#include <check.h>
#include <string.h>

static size_t expect_launch(const seen_launch *seen)
{
    ck_assert_uint_eq(seen->grid[2], 1);
    return strcmp(seen->name, "plan") == 0 ? sizeof(fi_plan_call) : sizeof(fi_call);
}

static void make_instance(test_run *t, const attn_problem *problem)
{
    static struct test_own own;
    const fi_options options = fi_read_options(NULL);
    fi_group_init(&own.group, problem, TEST_SMS, &options);
    own.group.base.layers = &t->layer;
    for (int kernel = 0; kernel < KERNEL_COUNT; kernel++)
        own.group.functions[kernel] =
            (cuda_function)(uintptr_t)own.group.shape->kernels[kernel].name;
    own.instance = (attn_instance){.cuda = &seen_driver,
                                   .facts = {.sm = 90, .num_sms = TEST_SMS},
                                   .plan = (cuda_function)(uintptr_t) "plan",
                                   .save = (cuda_function)(uintptr_t) "save",
                                   .num_groups = 1,
                                   .groups = &own.group};
    t->instance = &own.instance;
    t->own = &own;
}

/* Scales of the cache alone. */
static void make_scales(test_run *t)
{
    static const float scales[] = {0.5f, 0.25f};
    uint32_t granularity = t->of.group.kv_scale_granularity;
    memset(t->scale_list, 0, sizeof t->scale_list);
    for (uint32_t role = ATTN_ROLE_K_CACHE; role <= ATTN_ROLE_V_CACHE; role++) {
        t->scales[role] =
            (attn_scale){.struct_size = sizeof t->scales[0],
                         .granularity = granularity,
                         .count = granularity == ATTN_SCALE_PER_HEAD ? TEST_KV_HEADS : 1,
                         .host = scales};
        t->scale_list[role] = &t->scales[role];
    }
    t->args.num_scales = ATTN_ROLE_COUNT;
    t->args.scales = t->scale_list;
}

static const attn_backend_ops ops = {.metadata_size = fi_metadata_size,
                                     .metadata_create = fi_metadata_create,
                                     .init_forward_metadata = fi_init_forward_metadata,
                                     .metadata_destroy = cuda_metadata_destroy,
                                     .forward_extend = fi_forward_extend,
                                     .forward_decode = fi_forward_decode,
                                     .get_extension = fi_get_extension};

const test_plugin plugin_of_test = {.ops = &ops,
                                    .make_instance = make_instance,
                                    .make_operands = make_scales,
                                    .expect_launch = expect_launch};
