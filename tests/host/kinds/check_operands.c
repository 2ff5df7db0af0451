/* SPDX-License-Identifier: Apache-2.0
 *
 * check_operands.c: what layers are given and write, by kind, against the shapes of attn_batch.h.
 */
#include "host/kinds/operands.h"

#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/operand_roles.h"
#include "host/kinds/kinds.h"
#include "host/model/model.h"
#include "tests/tools/test_main.h"

/* "role heads dim dtype stream first" of each operand, then of the output. */
static void describe(const struct row_operand *operand, char *text, size_t size)
{
    size_t length = strlen(text);
    snprintf(text + length, size - length, "%s[%d, %d] of %u bytes, %d from %d; ",
             role_name(operand->role), operand->heads, operand->dim,
             attn_dtype_size(operand->dtype), operand->stream, operand->first);
}

static void expect(const struct model *model, int32_t layer, const char *expected)
{
    struct row_operand list[OPERANDS_MAX], out = operands_output(model, layer);
    char text[1024] = "";
    uint32_t count = operands_list(model, layer, list);
    ck_assert_uint_le(count, OPERANDS_MAX);
    for (uint32_t i = 0; i < count; i++)
        describe(&list[i], text, sizeof text);
    describe(&out, text, sizeof text);
    ck_assert_str_eq(text, expected);
}

static struct model *model_of(const char *ini)
{
    struct config *config;
    struct model *model;
    HOST_ERROR(error);
    ck_assert_msg(config_load_text(ini, strlen(ini), "test.ini", NULL, NULL, 0, &config,
                                   &error.base) == ATTN_OK &&
                      model_create(config, &model, &error.base) == ATTN_OK,
                  "%s", host_error_text(&error));
    config_destroy(config);
    return model;
}

/* A model of one linear layer. */
static struct model linear_model(attn_linear_dims *dims, attn_layer_group *group,
                                 struct model_layer *layer)
{
    *group = (attn_layer_group){.kind = ATTN_KIND_LINEAR,
                                .num_q_heads = dims->num_v_heads,
                                .num_kv_heads = 1,
                                .linear = dims};
    *layer = (struct model_layer){.kv_buffer = -1};
    return (struct model){.dtype = ATTN_BF16, .num_layers = 1, .layers = layer, .groups = group};
}

TEST_OF(kinds, softmax)
{
    struct model *model = model_of("[model]\nnum_layers = 2\nnum_q_heads = 6\nnum_kv_heads = 2\n"
                                   "head_dim = 24\nv_head_dim = 10\ndtype = bf16\n"
                                   "max_context_len = 64\nsliding_window = 5\n"
                                   "layer_types = full, sliding\n");
    static const char all[] = "q[6, 24] of 2 bytes, 3 from 0; k[2, 24] of 2 bytes, 1 from 0; "
                              "v[2, 10] of 2 bytes, 2 from 0; out[6, 10] of 2 bytes, 0 from 0; ";
    expect(model, 0, all);
    expect(model, 1, all);
    ck_assert(operands_write_kv(model, 1));
    generator_layer geometry = operands_geometry(model, 1);
    ck_assert_int_eq(geometry.kv_layer, 1);
    ck_assert_int_eq(geometry.num_q_heads, 6);
    ck_assert_int_eq(geometry.num_kv_heads, 2);
    ck_assert_int_eq(geometry.head_dim, 24);
    ck_assert_int_eq(geometry.v_head_dim, 10);
    ck_assert_int_eq(geometry.window_left, 4);
    ck_assert_int_eq(geometry.latent, 0);
    /* a layer that reads the other one's cache */
    ((attn_layer *)(uintptr_t)model->groups[1].layers)[0].flags |= ATTN_LAYER_KV_READ_ONLY;
    model->layers[1].kv_buffer = 0;
    expect(model, 1, "q[6, 24] of 2 bytes, 3 from 0; out[6, 10] of 2 bytes, 0 from 0; ");
    ck_assert(!operands_write_kv(model, 1));
    ck_assert_int_eq(operands_geometry(model, 1).kv_layer, 0);
    model_destroy(model);
}

TEST_OF(kinds, latent)
{
    struct model *model = model_of("[model]\nnum_layers = 1\nnum_q_heads = 5\nkv_lora_rank = 21\n"
                                   "qk_rope_head_dim = 6\nqk_nope_head_dim = 12\n"
                                   "v_head_dim = 9\ndtype = f32\nmax_context_len = 64\n");
    expect(model, 0,
           "q_nope[5, 21] of 4 bytes, 3 from 0; q_pe[5, 6] of 4 bytes, 3 from 21; "
           "c_kv[0, 21] of 4 bytes, 1 from 0; k_pe[0, 6] of 4 bytes, 1 from 21; "
           "out[5, 21] of 4 bytes, 0 from 0; ");
    generator_layer geometry = operands_geometry(model, 0);
    ck_assert_int_eq(geometry.num_q_heads, 5);
    ck_assert_int_eq(geometry.num_kv_heads, 1);
    ck_assert_int_eq(geometry.head_dim, 27);
    ck_assert_int_eq(geometry.v_head_dim, 21);
    ck_assert_int_eq(geometry.latent, 1);
    struct row_operand out = operands_output(model, 0);
    ck_assert_int_eq(operands_row_elements(&out), 105);
    ck_assert_uint_eq(operands_row_bytes(&out), 420);
    struct row_operand list[OPERANDS_MAX];
    operands_list(model, 0, list);
    ck_assert_int_eq(operands_row_elements(&list[3]), 6);
    ((attn_layer *)(uintptr_t)model->groups[0].layers)[0].flags |= ATTN_LAYER_KV_READ_ONLY;
    expect(model, 0,
           "q_nope[5, 21] of 4 bytes, 3 from 0; q_pe[5, 6] of 4 bytes, 3 from 21; "
           "out[5, 21] of 4 bytes, 0 from 0; ");
    model_destroy(model);
}

/* The expanded form of layer l is layer num_layers + l. */
TEST_OF(kinds, expanded)
{
    struct model *model = model_of("[model]\nnum_layers = 2\nnum_q_heads = 5\nkv_lora_rank = 21\n"
                                   "qk_rope_head_dim = 6\nqk_nope_head_dim = 12\n"
                                   "v_head_dim = 9\ndtype = bf16\nmax_context_len = 64\n"
                                   "[attention]\nmla_prefill = expanded\n");
    struct row_operand list[OPERANDS_MAX], lse = operands_lse(model, 3);
    char text[1024] = "";
    ck_assert_int_eq(operands_num_forms(model), 4);
    ck_assert_int_eq(operands_form(model, 1, ATTN_MODE_EXTEND), 3);
    ck_assert_int_eq(operands_form(model, 1, ATTN_MODE_MIXED), 1);
    ck_assert_int_eq(operands_form(model, 1, ATTN_MODE_DECODE), 1);
    expect(model, 3,
           "q[5, 18] of 2 bytes, 3 from 0; k[5, 18] of 2 bytes, 1 from 0; "
           "v[5, 9] of 2 bytes, 2 from 0; out[5, 9] of 4 bytes, 0 from 0; ");
    expect(model, 1,
           "q_nope[5, 21] of 2 bytes, 3 from 0; q_pe[5, 6] of 2 bytes, 3 from 21; "
           "c_kv[0, 21] of 2 bytes, 1 from 0; k_pe[0, 6] of 2 bytes, 1 from 21; "
           "out[5, 21] of 4 bytes, 0 from 0; ");
    ck_assert_uint_eq(operands_list_latents(model, 1, list), 0);
    ck_assert_uint_eq(operands_list_latents(model, 3, list), 2);
    describe(&list[0], text, sizeof text);
    describe(&list[1], text, sizeof text);
    describe(&lse, text, sizeof text);
    ck_assert_str_eq(text, "c_kv[0, 21] of 2 bytes, 1 from 0; k_pe[0, 6] of 2 bytes, 1 from 21; "
                           "lse[0, 5] of 4 bytes, 0 from 0; ");
    generator_layer geometry = operands_geometry(model, 3);
    ck_assert_int_eq(geometry.kv_layer, 3);
    ck_assert_int_eq(geometry.num_kv_heads, 5);
    ck_assert_int_eq(geometry.head_dim, 18);
    ck_assert_int_eq(geometry.v_head_dim, 9);
    ck_assert_int_eq(geometry.latent, 0);
    ck_assert_int_eq(operands_geometry(model, 1).latent, 1);
    model_destroy(model);
}

/* Kimi Linear: among layers of other kinds the latent ones alone have that form. */
TEST_OF(kinds, expanded_among_others)
{
    struct model *model;
    char path[4096];
    const char *folder = getenv("ATTNHOST_TEST_SRCDIR");
    int32_t found = 0;
    snprintf(path, sizeof path, "%s/tests/models/kimi_linear.json", folder ? folder : ".");
    ck_assert_int_eq(model_create_hf(path, NULL, &model, NULL), ATTN_OK);
    model->mla_expanded = ATTN_MODE_BIT(ATTN_MODE_EXTEND);
    int32_t layers = (int32_t)model->num_layers;
    ck_assert_int_eq(operands_num_forms(model), 2 * layers);
    for (int32_t l = 0; l < layers; l++) {
        struct row_operand list[OPERANDS_MAX];
        const attn_layer_group *group = &model->groups[model->layers[l].group];
        bool has_form = group->kind == ATTN_KIND_MLA;
        found += has_form;
        ck_assert_int_eq(operands_form(model, l, ATTN_MODE_EXTEND), has_form ? layers + l : l);
        ck_assert(!operands_is_expanded(model, l));
        ck_assert(operands_is_expanded(model, layers + l) == has_form);
        ck_assert_uint_eq(operands_list_latents(model, layers + l, list), has_form ? 2 : 0);
        ck_assert(kind_expands(model, group) == has_form);
        ck_assert_uint_eq(operands_output(model, l).dtype, has_form ? ATTN_F32 : ATTN_BF16);
    }
    ck_assert(found > 0 && found < layers);
    model_destroy(model);
}

/* Streams are 64 + the role: mixed_qkv 14, a 15, b 16. */
TEST_OF(kinds, linear)
{
    static const struct {
        attn_linear_dims dims;
        const char *expected;
    } cases[] = {
        {{.family = ATTN_LINEAR_GDN,
          .flags = ATTN_LINEAR_RAW_GATES,
          .num_k_heads = 2,
          .num_v_heads = 4,
          .head_k_dim = 8,
          .head_v_dim = 16},
         "mixed_qkv[0, 96] of 2 bytes, 78 from 0; a[0, 4] of 2 bytes, 79 from 0; "
         "b[0, 4] of 2 bytes, 80 from 0; out[4, 16] of 2 bytes, 0 from 0; "},
        {{.family = ATTN_LINEAR_KDA,
          .num_k_heads = 3,
          .num_v_heads = 3,
          .head_k_dim = 8,
          .head_v_dim = 8},
         "mixed_qkv[0, 72] of 2 bytes, 78 from 0; a[3, 8] of 4 bytes, 79 from 0; "
         "b[0, 3] of 4 bytes, 80 from 0; out[3, 8] of 2 bytes, 0 from 0; "},
        {{.family = ATTN_LINEAR_MAMBA2,
          .flags = ATTN_LINEAR_RAW_GATES,
          .num_k_heads = 2,
          .num_v_heads = 6,
          .head_k_dim = 16,
          .head_v_dim = 8,
          .num_groups = 2},
         "mixed_qkv[0, 112] of 2 bytes, 78 from 0; a[0, 6] of 2 bytes, 79 from 0; "
         "out[6, 8] of 2 bytes, 0 from 0; "},
        {{.family = ATTN_LINEAR_MAMBA2,
          .num_k_heads = 2,
          .num_v_heads = 6,
          .head_k_dim = 16,
          .head_v_dim = 8,
          .num_groups = 2},
         "mixed_qkv[0, 112] of 2 bytes, 78 from 0; a[0, 6] of 4 bytes, 79 from 0; "
         "b[0, 6] of 4 bytes, 80 from 0; out[6, 8] of 2 bytes, 0 from 0; "},
        {{.family = ATTN_LINEAR_LIGHTNING,
          .flags = ATTN_LINEAR_RAW_GATES,
          .num_k_heads = 4,
          .num_v_heads = 4,
          .head_k_dim = 8,
          .head_v_dim = 8},
         "mixed_qkv[0, 96] of 2 bytes, 78 from 0; out[4, 8] of 2 bytes, 0 from 0; "},
        {{.family = ATTN_LINEAR_LIGHTNING,
          .num_k_heads = 4,
          .num_v_heads = 4,
          .head_k_dim = 8,
          .head_v_dim = 8},
         "mixed_qkv[0, 96] of 2 bytes, 78 from 0; out[4, 8] of 2 bytes, 0 from 0; "},
        {{.family = ATTN_LINEAR_SHORT_CONV, .num_v_heads = 5, .head_v_dim = 7},
         "mixed_qkv[0, 35] of 2 bytes, 78 from 0; out[5, 7] of 2 bytes, 0 from 0; "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attn_linear_dims dims = cases[i].dims;
        attn_layer_group group;
        struct model_layer layer;
        attn_layer ids = {.struct_size = sizeof ids};
        struct model model = linear_model(&dims, &group, &layer);
        group.layers = &ids;
        expect(&model, 0, cases[i].expected);
        ck_assert(!operands_write_kv(&model, 0));
        ck_assert_int_eq(operands_geometry(&model, 0).num_q_heads, 0);
    }
}

TESTS("operands");
