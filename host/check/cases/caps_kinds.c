/* SPDX-License-Identifier: Apache-2.0
 *
 * caps_kinds.c: random problems of latent and of linear layers, for the checks of query.
 *
 * A point of the grid is a problem of softmax layers; there is no grid of these. So a problem
 * begins with a plain one that a backend for such layers usually accepts; then random fields are
 * set, mostly those of such layers.
 */
#include "host/check/cases/caps_problem.h"
#include "host/check/cases/draw.h"

#include "host/base/mix.h"

#define COUNT(array) ((int32_t)(sizeof(array) / sizeof(array)[0]))

/* ---- Plain problems -------------------------------------------------------------------------- */

static const attn_dtype plain_dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

/* The fields of the grid that any kind of layer has. */
static void begin(struct caps_problem *p, const struct grid *grid, uint32_t kind, uint64_t seed)
{
    struct case_spec spec;
    grid_spec(grid, &grid->base, &spec);
    caps_problem_init(p, &spec, &grid->backend.device->info);
    caps_set_number(p, ATTN_FIELD_KIND, kind);
    p->group.attn_type = ATTN_TYPE_DECODER;
    p->group.flags = 0;
    p->group.window_left = p->group.window_right = -1;
    p->group.attention_chunk = 0;
    p->group.logit_cap = 0;
    p->group.kv_scale_granularity = p->group.input_scale_granularity = ATTN_SCALE_NONE;
    p->problem.q_dtype = plain_dtypes[draw_at(seed, 1, COUNT(plain_dtypes))];
    p->problem.out_dtype = plain_dtypes[draw_at(seed, 2, COUNT(plain_dtypes))];
    p->problem.kv_dtype = p->problem.q_dtype;
    p->problem.new_kv_dtype = ATTN_DTYPE_NONE;
}

/* Caches that are not quantised, that have a scale, and that have their scales in their rows. */
static void make_latent(struct caps_problem *p, uint64_t seed)
{
    static const int32_t dims[][3] = {{512, 64, 128}, {128, 32, 64}, {256, 128, 64}};
    const int32_t *drawn = dims[draw_at(seed, 3, COUNT(dims))], cache = draw_at(seed, 4, 4);
    p->mla = (attn_mla_dims){sizeof p->mla, drawn[0], drawn[1], drawn[2]};
    p->group.num_kv_heads = p->group.num_q_heads;
    p->group.head_dim = drawn[1] + drawn[2];
    p->group.v_head_dim = 64;
    p->group.window_right = 0;
    p->problem.kv_layout = cache == 0 ? ATTN_LAYOUT_MLA_LATENT_FP8 : ATTN_LAYOUT_MLA_LATENT;
    if (cache < 3)
        p->problem.kv_dtype = cache < 2 ? ATTN_FP8_E4M3 : ATTN_FP8_E5M2;
    if (cache == 1 || cache == 2)
        p->group.kv_scale_granularity = ATTN_SCALE_PER_TENSOR;
    p->problem.mla_expanded = draw_at(seed, 5, 2) ? ATTN_MODE_BIT(ATTN_MODE_EXTEND) : 0;
}

/* It has no fields about keys. */
static void make_linear(struct caps_problem *p, uint64_t seed)
{
    static const char *const layouts[] = {ATTN_LAYOUT_STATE_SSM_KV, ATTN_LAYOUT_STATE_SSM_VK};
    p->group.kv_group = -1;
    p->group.state_group = 0;
    p->bounds.mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER);
    p->bounds.uses = 0;
    p->problem.kv_layout = NULL;
    p->problem.page_size = 0;
    p->problem.state_layout = layouts[draw_at(seed, 3, COUNT(layouts))];
    p->linear.flags = (uint32_t)draw_at(seed, 4, ATTN_LINEAR_FLAG_ALL + 1);
    p->linear.conv_width = 1 + draw_at(seed, 5, 4);
    p->linear.state_dtype = draw_at(seed, 6, 2) ? ATTN_F32 : ATTN_BF16;
    p->linear.conv_dtype = p->problem.q_dtype;
    caps_set_number(p, ATTN_FIELD_LINEAR_FAMILY, draw_at(seed, 7, ATTN_LINEAR_COUNT));
}

void caps_problem_plain_kind(struct caps_problem *p, const struct grid *grid, uint32_t kind,
                             uint64_t seed)
{
    begin(p, grid, kind, seed);
    if (kind == ATTN_KIND_MLA)
        make_latent(p, seed);
    else
        make_linear(p, seed);
}

/* ---- Anything -------------------------------------------------------------------------------- */

static const struct caps_values latent_numbers[] = {
    {ATTN_FIELD_KV_LORA_RANK, 9, {0, 1, 64, 128, 200, 512, 513, 1024, 4096}},
    {ATTN_FIELD_ROPE_DIM, 8, {-1, 0, 1, 32, 64, 128, 129, 1024}},
    {ATTN_FIELD_NOPE_DIM, 8, {0, 1, 64, 128, 192, 384, 385, 4096}},
    {ATTN_FIELD_HEAD_DIM, 5, {0, 1, 96, 192, 4096}},
    {ATTN_FIELD_V_HEAD_DIM, 6, {0, 1, 64, 128, 512, 4096}},
    {ATTN_FIELD_MLA_EXPANDED,
     6,
     {0, 1, 2, (1 << ATTN_MODE_COUNT) - 1, 1 << ATTN_MODE_COUNT, 0x80000001}},
};

static const struct caps_values linear_numbers[] = {
    {ATTN_FIELD_LINEAR_FAMILY, 7, {0, 1, 2, 3, 4, ATTN_LINEAR_COUNT, 1000}},
    {ATTN_FIELD_LINEAR_FLAGS, 7, {0, 1, 2, 4, 7, 8, 0x80000001}},
    {ATTN_FIELD_LINEAR_DIMS, 8, {0, 1, 16, 64, 128, 256, 257, 4096}},
    {ATTN_FIELD_CONV_WIDTH, 8, {-1, 0, 1, 2, 4, 8, 9, 64}},
};

static const char *const latent_layouts[] = {ATTN_LAYOUT_MLA_LATENT, ATTN_LAYOUT_MLA_LATENT_FP8,
                                             "mla.latent/2", ATTN_LAYOUT_KV_NHD};
static const char *const state_layouts[] = {ATTN_LAYOUT_STATE_SSM_KV, ATTN_LAYOUT_STATE_SSM_VK,
                                            "state.ssm.kv/2", ATTN_LAYOUT_STATE_CONV, NULL};

static void set_latent(struct caps_problem *p, uint64_t seed)
{
    int32_t which = draw_at(seed, 0, COUNT(latent_numbers) + 1);
    if (which < COUNT(latent_numbers))
        caps_set_value(p, &latent_numbers[which], seed);
    else
        p->problem.kv_layout = latent_layouts[draw_at(seed, 1, COUNT(latent_layouts))];
}

static void set_linear(struct caps_problem *p, uint64_t seed)
{
    int32_t which = draw_at(seed, 0, COUNT(linear_numbers) + 3);
    if (which < COUNT(linear_numbers))
        caps_set_value(p, &linear_numbers[which], seed);
    else if (which == COUNT(linear_numbers))
        p->linear.state_dtype = caps_dtypes[draw_at(seed, 1, CAPS_DTYPES)];
    else if (which == COUNT(linear_numbers) + 1)
        p->linear.conv_dtype = caps_dtypes[draw_at(seed, 1, CAPS_DTYPES)];
    else
        p->problem.state_layout = state_layouts[draw_at(seed, 1, COUNT(state_layouts))];
}

/* Dimensions of a latent, each of which limits the others. */
static void set_latent_dims(struct caps_problem *p, uint64_t seed)
{
    for (int32_t n = 0; n < COUNT(latent_numbers) - 1; n++)
        if (draw_at(seed, (uint64_t)n, 2) == 0)
            caps_set_value(p, &latent_numbers[n], mix_absorb(seed, (uint64_t)n));
}

void caps_problem_random_kind(struct caps_problem *p, const struct grid *grid, uint32_t kind,
                              uint64_t seed)
{
    static const int32_t how_many[] = {0, 1, 1, 1, 2, 2, 3, 4};
    int32_t count = how_many[draw_at(seed, 1000, COUNT(how_many))];
    caps_problem_plain_kind(p, grid, kind, seed);
    for (int32_t n = 0; n < count; n++) {
        uint64_t own = mix_absorb(seed, (uint64_t)n + 1);
        if (draw_at(own, 2, 4) == 0)
            caps_set_anything(p, own);
        else if (kind == ATTN_KIND_MLA)
            set_latent(p, own);
        else
            set_linear(p, own);
    }
    if (draw_at(seed, 1001, 4) == 0 && kind == ATTN_KIND_MLA)
        set_latent_dims(p, mix_absorb(seed, 1002));
    if (draw_at(seed, 1003, 4) == 0)
        caps_set_related(p, mix_absorb(seed, 1003));
    caps_set_number(p, ATTN_FIELD_KIND, kind); /* with another its own numbers mean nothing */
}
