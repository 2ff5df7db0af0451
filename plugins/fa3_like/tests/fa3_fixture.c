/* SPDX-License-Identifier: Apache-2.0
 *
 * fa3_fixture.c: problems of codes and of latents, and the instance of fa3_like's tests.
 */
#include "plugins/fa3_like/tests/fa3_fixture.h"

#include <check.h>
#include <string.h>

void make_codes_problem(test_problem *t, uint32_t granularity)
{
    make_problem(t);
    t->problem.q_dtype = t->problem.kv_dtype = ATTN_FP8_E4M3;
    t->group.kv_scale_granularity = ATTN_SCALE_PER_HEAD;
    t->group.input_scale_granularity = granularity;
}

void make_expanded_problem(test_problem *t)
{
    make_problem(t);
    t->mla = (attn_mla_dims){
        .struct_size = sizeof t->mla, .kv_lora_rank = 512, .rope_dim = 64, .nope_dim = 128};
    t->group.kind = ATTN_KIND_MLA;
    t->group.num_kv_heads = TEST_Q_HEADS;
    t->group.head_dim = 192;
    t->group.v_head_dim = 128;
    t->group.mla = &t->mla;
    t->bounds.modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND) | ATTN_MODE_BIT(ATTN_MODE_MIXED);
    t->problem.mla_expanded = t->bounds.modes;
    t->problem.kv_layout = ATTN_LAYOUT_MLA_LATENT;
    t->problem.out_dtype = ATTN_F32;
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static size_t expect_launch(const seen_launch *seen)
{
    static const struct {
        const char *name;
        size_t size;
    } kernels[] = {
        {"fa3_forward_codes_d128", sizeof(struct fa3_codes_params)},
        {"turn", sizeof(struct fa3_turn_params)},
        {"scales", sizeof(fa3_scales_call)},
        {"widen", sizeof(fa3_widen_call)},
        {"plan", sizeof(fa3_plan_call)},
        {"gather", sizeof(fa3_gather_call)},
        {"join", sizeof(fa3_join_call)},
        {"rows", sizeof(fa3_rows_call)},
        {"fi_plan", sizeof(fi_plan_call)},
    };
    int has_columns = strncmp(seen->name, "fi_", 3) == 0 && seen->grid[2] == 1;
    ck_assert(has_columns || seen->grid[1] * seen->grid[2] == 1 || strcmp(seen->name, "turn") == 0);
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        if (strcmp(seen->name, kernels[i].name) == 0)
            return kernels[i].size;
    return strncmp(seen->name, "fi_", 3) == 0 ? sizeof(fi_call) : sizeof(struct fa3_forward_params);
}

/* Of expanded latents: wider keys, and what is saved. */
static void make_latents(test_run *t)
{
    static _Alignas(64) char cells[6][64];
    const int64_t keys[] = {TEST_ROWS, TEST_Q_HEADS, 192},
                  values[] = {TEST_ROWS, TEST_Q_HEADS, 128};
    const int64_t c_kv[] = {TEST_ROWS, 512}, k_pe[] = {TEST_ROWS, 64};
    if (!t->own->group.is_expanded)
        return;
    const int64_t pages[] = {TEST_PAGES, t->of.problem.page_size, 576};
    t->q = dense_tensor(cells[0], ATTN_BF16, 3, keys);
    t->out = dense_tensor(cells[1], ATTN_F32, 3, values);
    t->k = dense_tensor(cells[2], ATTN_BF16, 3, keys);
    t->v = dense_tensor(cells[3], ATTN_BF16, 3, values);
    t->c_kv = dense_tensor(cells[4], ATTN_BF16, 2, c_kv);
    t->k_pe = dense_tensor(cells[5], ATTN_BF16, 2, k_pe);
    t->latents = dense_tensor(cells[0], ATTN_BF16, 3, pages);
    t->operands[ATTN_ROLE_C_KV] = &t->c_kv;
    t->operands[ATTN_ROLE_K_PE] = &t->k_pe;
    t->operands[ATTN_ROLE_LATENT_CACHE] = &t->latents;
}

/* What create makes of a problem, but for the driver's part. */
static void make_instance(test_run *t, const attn_problem *problem)
{
    attn_problem plain;
    attn_layer_group plain_group;
    static struct test_own own;
    fa3_plain_problem(problem, &plain, &plain_group);
    own.group = fa3_group_of(problem, TILES_AUTO);
    own.group.forward = own.group.tile ? (cuda_function)(uintptr_t)own.group.tile->kernel : NULL;
    own.group.low_forward = own.group.low ? (cuda_function)(uintptr_t)own.group.low->kernel : NULL;
    own.fa3 = (fa3_instance){.plan = (cuda_function)(uintptr_t) "plan",
                             .rows = (cuda_function)(uintptr_t) "rows",
                             .store_scales = (cuda_function)(uintptr_t) "scales",
                             .widen = (cuda_function)(uintptr_t) "widen",
                             .turn = (cuda_function)(uintptr_t) "turn",
                             .gather = (cuda_function)(uintptr_t) "gather",
                             .join = (cuda_function)(uintptr_t) "join",
                             .groups = &own.group};
    const fi_options options = fi_read_options(NULL);
    fi_group_init(&own.base, &plain, TEST_SMS, &options);
    own.base.base.layers = &t->layer;
    for (int kernel = 0; kernel < KERNEL_COUNT; kernel++)
        own.base.functions[kernel] = (cuda_function)(uintptr_t)own.base.shape->kernels[kernel].name;
    own.instance = (attn_instance){.cuda = &seen_driver,
                                   .facts = {.sm = 90, .num_sms = TEST_SMS},
                                   .plan = (cuda_function)(uintptr_t) "fi_plan",
                                   .save = (cuda_function)(uintptr_t) "fi_save",
                                   .num_groups = 1,
                                   .groups = &own.base,
                                   .own = &own.fa3};
    t->instance = &own.instance;
    t->own = &own;
}

static const attn_backend_ops ops = {.metadata_size = fa3_metadata_size,
                                     .metadata_create = fa3_metadata_create,
                                     .init_forward_metadata = fa3_init_forward_metadata,
                                     .metadata_destroy = cuda_metadata_destroy,
                                     .forward_extend = fa3_forward_extend,
                                     .forward_decode = fa3_forward_decode,
                                     .get_extension = fa3_get_extension};

const test_plugin plugin_of_test = {.ops = &ops,
                                    .make_instance = make_instance,
                                    .make_operands = make_latents,
                                    .expect_launch = expect_launch};
