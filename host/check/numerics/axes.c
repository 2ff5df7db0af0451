/* SPDX-License-Identifier: Apache-2.0
 *
 * axes.c: the axes of the grid, and their values.
 */
#include "host/check/numerics/axes.h"

#include <stddef.h>
#include <string.h>

/* ---- Borders --------------------------------------------------------------------------------- */

/* Values up to AXES_EACH one by one, since some backends take multiples alone; from there on what
 * is accepted is taken to have one end. */
struct borders find_borders(accepts_value accepts, void *ctx)
{
    struct borders found = {0, -1};
    int64_t step = AXES_EACH;
    for (int32_t value = 0; value <= AXES_EACH; value++)
        if (accepts(ctx, value)) {
            found.least = found.most < found.least ? value : found.least;
            found.most = value;
        }
    if (found.most < AXES_EACH)
        return found;
    while (found.most + step <= INT32_MAX && accepts(ctx, (int32_t)(found.most + step))) {
        found.most += (int32_t)step;
        step *= 2;
    }
    for (; step > 0; step /= 2)
        if (found.most + step <= INT32_MAX && accepts(ctx, (int32_t)(found.most + step)))
            found.most += (int32_t)step;
    return found;
}

/* ---- Softmax and latent layers --------------------------------------------------------------- */

static void set_head_dim(struct case_spec *spec, int32_t value)
{
    spec->head_dim = value;
}
static void set_v_head_dim(struct case_spec *spec, int32_t value)
{
    spec->v_head_dim = value;
}
static void set_both_dims(struct case_spec *spec, int32_t value)
{
    spec->head_dim = spec->v_head_dim = value;
}
static void set_kv_heads(struct case_spec *spec, int32_t value)
{
    spec->num_kv_heads = spec->num_q_heads = value;
}
static void set_ratio(struct case_spec *spec, int32_t value)
{
    spec->num_kv_heads = 1;
    spec->num_q_heads = value;
}
static void set_page_size(struct case_spec *spec, int32_t value)
{
    spec->page_size = value;
}
static void set_window_left(struct case_spec *spec, int32_t value)
{
    spec->window_left = value;
}
static void set_window_right(struct case_spec *spec, int32_t value)
{
    spec->window_left = 4;
    spec->window_right = value;
}
static void set_chunk(struct case_spec *spec, int32_t value)
{
    spec->attention_chunk = value;
}

const struct spec_axis softmax_axes[SOFTMAX_AXES] = {
    {"head_dim", 1024, set_head_dim},
    {"v_head_dim", 1024, set_v_head_dim},
    {"head_dim and v_head_dim", 1024, set_both_dims},
    {"num_kv_heads", 66, set_kv_heads},
    {"num_q_heads for a KV head", 130, set_ratio},
    {"page_size", 700, set_page_size},
    {"window_left", INT32_MAX, set_window_left},
    {"window_right", INT32_MAX, set_window_right},
    {"attention_chunk", INT32_MAX, set_chunk},
};

static void set_lora(struct case_spec *spec, int32_t value)
{
    spec->latent.kv_lora_rank = value;
    case_spec_set_form(spec, spec->latent.expanded);
}
static void set_rope(struct case_spec *spec, int32_t value)
{
    spec->latent.rope_dim = value;
    case_spec_set_form(spec, spec->latent.expanded);
}
static void set_nope(struct case_spec *spec, int32_t value)
{
    spec->latent.nope_dim = value;
    case_spec_set_form(spec, spec->latent.expanded);
}
static void set_values(struct case_spec *spec, int32_t value)
{
    spec->latent.v_dim = value;
    case_spec_set_form(spec, spec->latent.expanded);
}
static void set_latent_heads(struct case_spec *spec, int32_t value)
{
    spec->num_q_heads = value;
    case_spec_set_form(spec, spec->latent.expanded);
}

const struct spec_axis latent_axes[LATENT_AXES] = {
    {"kv_lora_rank", 1024, set_lora},      {"rope_dim", 1024, set_rope},
    {"nope_dim", 1024, set_nope},          {"v_head_dim", 1024, set_values},
    {"num_q_heads", 66, set_latent_heads}, {"page_size", 700, set_page_size},
};

void axes_make_short(struct case_spec *spec)
{
    static const int32_t lengths[][2] = {{37, 3}, {0, 5}, {17, 1}};
    spec->num_sequences = 3;
    for (int32_t s = 0; s < 3; s++)
        spec->sequences[s] =
            (struct case_sequence){.prefix_len = lengths[s][0],
                                   .num_new = spec->mode == ATTN_MODE_DECODE ? 1 : lengths[s][1],
                                   .tokens_of = s};
}

/* ---- Linear layers --------------------------------------------------------------------------- */

const struct linear_axis linear_axes[LINEAR_AXES] = {
    {"head_k_dim", 512, offsetof(struct linear_spec, k_dim)},
    {"head_v_dim", 512, offsetof(struct linear_spec, v_dim)},
    {"num_v_heads", 128, offsetof(struct linear_spec, v_heads)},
    {"conv_width", 64, offsetof(struct linear_spec, width)},
};

void linear_axis_set(const struct linear_axis *axis, int32_t value, struct linear_spec *spec)
{
    memcpy((char *)spec + axis->member, &value, sizeof value);
}

void axes_make_linear_short(struct linear_spec *spec, int32_t index)
{
    static const struct linear_case_sequence sequences[] = {{.rows = 18, .has_initial = true},
                                                            {.rows = 1, .in_place = true}};
    (void)index;
    linear_set_extend(spec, 2, sequences);
    spec->padded = 0;
    if (spec->family != ATTN_LINEAR_SHORT_CONV) {
        spec->k_heads = 1;
        spec->v_heads = 2;
        spec->k_dim = 16;
    }
    spec->v_dim = 16;
    spec->width = spec->width > 1 ? spec->width : 3;
}
