/* SPDX-License-Identifier: Apache-2.0
 *
 * check_kinds.c: the table has a whole row for each kind; layouts and tensors; what the library
 * says of packed latents against the oracle, which knows them by itself.
 */
#include "host/kinds/kinds.h"

#include "host/base/error.h"
#include "host/kinds/mla.h"
#include "host/reference/reference.h"
#include "tests/tools/test_main.h"

static attn_mla_dims mla;
static attn_linear_dims linear;
static attn_sparse_dims sparse;
static attn_layer_group group;

static const attn_layer_group *group_of(uint32_t kind)
{
    mla = (attn_mla_dims){sizeof mla, 512, 64, 128};
    linear = (attn_linear_dims){.struct_size = sizeof linear,
                                .family = ATTN_LINEAR_GDN,
                                .num_k_heads = 2,
                                .num_v_heads = 4,
                                .head_k_dim = 8,
                                .head_v_dim = 16,
                                .conv_width = 4,
                                .state_dtype = ATTN_F32,
                                .conv_dtype = ATTN_BF16};
    sparse = (attn_sparse_dims){.struct_size = sizeof sparse,
                                .top_k = 8,
                                .block_size = 1,
                                .label_dim = 16,
                                .label_dtype = ATTN_BF16,
                                .index_heads = 2,
                                .index_dtype = ATTN_BF16};
    group =
        (attn_layer_group){.struct_size = sizeof group,
                           .kind = kind,
                           .num_q_heads = 6,
                           .num_kv_heads = 3,
                           .head_dim = 20,
                           .v_head_dim = 10,
                           .mla = kind == ATTN_KIND_MLA || kind == ATTN_KIND_SPARSE ? &mla : NULL,
                           .sparse = kind == ATTN_KIND_SPARSE ? &sparse : NULL,
                           .linear = kind == ATTN_KIND_LINEAR ? &linear : NULL};
    return &group;
}

/* What is asked without a look at whether it is there: of each kind what selection asks, and what a run does. */
LOOP_OF(table, rows_are_whole, 0, ATTN_KIND_COUNT)
{
    const struct kind_ops *kind = kind_of(group_of((uint32_t)_i));
    ck_assert_ptr_nonnull(kind);
    for (int i = 0; i < KIND_MAX_LAYOUTS; i++)
        ck_assert_ptr_nonnull(kind->layouts[i]);
    ck_assert(!kind->backend_key == !kind->backend);
    ck_assert(kind->form->list != NULL);
    ck_assert(kind->form->output != NULL);
    ck_assert(kind->make_row != NULL);
    ck_assert(kind->constants != NULL);
    ck_assert(kind->describe_constant != NULL);
    ck_assert(kind->make_constant != NULL);
    ck_assert(kind->tensors != NULL);
    ck_assert_uint_lt(kind->judged, KIND_JUDGED_COUNT);
}

TEST_OF(table, encoders_have_no_layout)
{
    group_of(ATTN_KIND_SOFTMAX);
    ck_assert_str_eq(kind_layouts(&group)[0], ATTN_LAYOUT_KV_NHD);
    group.attn_type = ATTN_TYPE_ENCODER_ONLY;
    for (int i = 0; i < KIND_MAX_LAYOUTS; i++)
        ck_assert_ptr_null(kind_layouts(&group)[i]);
}

/* With which scale of the configuration each tensor is stored (shapes: check_kv_pool.c). */
TEST_OF(table, tensors_are_scaled)
{
    static const struct {
        uint32_t kind;
        const char *layout;
        uint32_t roles[KIND_MAX_TENSORS], scales[KIND_MAX_TENSORS];
    } cases[] = {
        {ATTN_KIND_SOFTMAX,
         ATTN_LAYOUT_KV_HND,
         {ATTN_ROLE_K_CACHE, ATTN_ROLE_V_CACHE},
         {KIND_SCALE_KEY, KIND_SCALE_VALUE}},
        {ATTN_KIND_MLA, ATTN_LAYOUT_MLA_LATENT, {ATTN_ROLE_LATENT_CACHE}, {KIND_SCALE_KEY}},
        {ATTN_KIND_MLA, ATTN_LAYOUT_MLA_LATENT_FP8, {ATTN_ROLE_LATENT_CACHE}, {KIND_SCALE_NONE}},
        {ATTN_KIND_SPARSE,
         ATTN_LAYOUT_MLA_LATENT,
         {ATTN_ROLE_LATENT_CACHE, ATTN_ROLE_LABEL_CACHE},
         {KIND_SCALE_KEY, KIND_SCALE_NONE}},
        {ATTN_KIND_LINEAR,
         ATTN_LAYOUT_STATE_SSM_VK,
         {ATTN_ROLE_STATE, ATTN_ROLE_CONV_STATE},
         {KIND_SCALE_NONE, KIND_SCALE_NONE}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct kind_pool pool = {cases[i].layout, ATTN_FP8_E4M3, 3, 16, 5};
        struct kind_tensor list[KIND_MAX_TENSORS];
        uint32_t count = kind_of(group_of(cases[i].kind))->tensors(&group, &pool, list);
        ck_assert_uint_eq(count, cases[i].roles[1] ? 2 : 1);
        for (uint32_t t = 0; t < count; t++) {
            ck_assert_uint_eq(list[t].role, cases[i].roles[t]);
            ck_assert_uint_eq(list[t].scale, cases[i].scales[t]);
        }
    }
}

/* The library's layout of packed latents and the oracle's, which share no code. */
TEST_OF(table, packed_as_the_oracle_has_it)
{
    static const attn_dtype dtypes[] = {ATTN_FP8_E4M3, ATTN_FP8_E5M2, ATTN_BF16};
    ck_assert_int_eq(mla_packed_bytes(group_of(ATTN_KIND_MLA)->mla), 656);
    for (int32_t lora = 32; lora <= 640; lora += 32)
        for (int32_t rope = 16; rope <= 128; rope *= 2)
            for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
                const attn_mla_dims dims = {sizeof dims, lora, rope, 128};
                host_error ours, oracles;
                host_error_init(&ours);
                host_error_init(&oracles);
                attn_status status = mla_check_packed(&dims, dtypes[d], &ours.base);
                ck_assert_int_eq(reference_mla_check_packed(&dims, dtypes[d], &oracles.base),
                                 status);
                if (status == ATTN_OK)
                    ck_assert_int_eq(mla_packed_bytes(&dims), reference_mla_packed_bytes(&dims));
                else
                    ck_assert_str_eq(host_error_text(&ours), host_error_text(&oracles));
            }
    ck_assert(mla_is_packed(ATTN_LAYOUT_MLA_LATENT_FP8));
    ck_assert(!mla_is_packed(ATTN_LAYOUT_MLA_LATENT));
    ck_assert(!mla_is_packed(NULL));
}

TESTS("kinds");
