/* SPDX-License-Identifier: Apache-2.0
 *
 * plugin_problem.c: the problem, and the questions to the plugin's .so.
 */
#include "plugins/common/tests/plugin_problem.h"
#include "tests/tools/plugin_test.h"

#include <string.h>

char test_message[1024];
attn_error test_error = {
    .struct_size = sizeof test_error, .capacity = sizeof test_message, .message = test_message};
const attn_backend_type *test_type;
attn_reason reasons[16];

void need(attn_status status)
{
    ck_assert_msg(status == ATTN_OK, "%d: %s", status, test_message);
}

void make_problem(test_problem *t)
{
    *t = (test_problem){.device = {.struct_size = sizeof t->device,
                                   .type = ATTN_DEVICE_CUDA,
                                   .sm = 90,
                                   .num_sms = TEST_SMS,
                                   .shared_memory = 227 * 1024},
                        .layer = {.struct_size = sizeof t->layer, .layer_id = TEST_LAYER},
                        .bounds = {.struct_size = sizeof t->bounds,
                                   .modes = (1u << ATTN_MODE_COUNT) - 1,
                                   .mask_kinds = 3,
                                   .uses = ATTN_USES_LSE | ATTN_USES_OMIT_SINK,
                                   .max_seqs = 6,
                                   .max_tokens = 600,
                                   .max_q_len = 500,
                                   .max_kv_len = 4000}};
    t->group = (attn_layer_group){.struct_size = sizeof t->group,
                                  .num_q_heads = TEST_Q_HEADS,
                                  .num_kv_heads = TEST_KV_HEADS,
                                  .head_dim = TEST_DIM,
                                  .v_head_dim = TEST_DIM,
                                  .window_left = -1,
                                  .sm_scale = 0.125f,
                                  .num_layers = 1,
                                  .layers = &t->layer};
    t->problem = (attn_problem){.struct_size = sizeof t->problem,
                                .graph_level = ATTN_GRAPH_ALWAYS,
                                .device = &t->device,
                                .group = &t->group,
                                .bounds = &t->bounds,
                                .kv_layout = ATTN_LAYOUT_KV_NHD,
                                .q_dtype = ATTN_BF16,
                                .kv_dtype = ATTN_BF16,
                                .out_dtype = ATTN_BF16,
                                .page_size = TEST_PAGE,
                                .tp_size = 1};
}

/* ---- The .so --------------------------------------------------------------------------------- */

void open_plugin_of(const char *name)
{
    char file[64];
    attn_plugin plugin;
    snprintf(file, sizeof file, "%s.so", name);
    open_plugin_file(NULL, file, &plugin, &test_error);
    need(plugin.describe(0, &test_type, &test_error));
    ck_assert_int_eq(plugin.describe(1, &test_type, &test_error), ATTN_INVALID_ARGUMENT);
    ck_assert_str_eq(test_type->name, name);
}

uint64_t refused_fields(const test_problem *t)
{
    uint64_t fields = 0;
    for (int i = 0; i < 16; i++)
        reasons[i] = (attn_reason){.struct_size = sizeof reasons[0]};
    attn_verdict verdict = {
        .struct_size = sizeof verdict, .reasons_capacity = 16, .reasons = reasons};
    need(test_type->query(test_type, NULL, NULL, &t->problem, &verdict, &test_error));
    ck_assert_uint_le(verdict.num_reasons, 16);
    ck_assert_int_eq(verdict.supported, verdict.num_reasons == 0);
    for (uint32_t i = 0; i < verdict.num_reasons; i++)
        fields |= UINT64_C(1) << reasons[i].field % 64;
    return fields;
}

void expect_create_refuses(void)
{
    static const attn_services services = {
        .struct_size = sizeof services, .allocate = test_allocate, .release = test_release};
    test_problem t;
    attn_instance *instance = NULL;
    make_problem(&t);
    attn_status status =
        test_type->create(test_type, &t.problem, 1, NULL, &services, &instance, &test_error);
    ck_assert_msg(status == ATTN_DEPENDENCY_MISSING || status == ATTN_BAD_STATE, "%d: %s", status,
                  test_message);
    ck_assert_ptr_null(instance);
    ck_assert_msg(strstr(test_message, "CUDA") || strstr(test_message, "libcuda") ||
                      strstr(test_message, "nvcc"),
                  "%s", test_message);
    t.group.head_dim = 8;
    ck_assert_int_eq(
        test_type->create(test_type, &t.problem, 1, NULL, &services, &instance, &test_error),
        ATTN_UNSUPPORTED);
    test_type->ops->destroy(NULL);
    test_type->ops->metadata_destroy(NULL);
}
