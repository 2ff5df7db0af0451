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

/* ---- Axes ------------------------------------------------------------------------------------ */

#define AT(member) offsetof(struct case_spec, member)
static const struct axis softmax_axes[SOFTMAX_AXES] = {
    {"head_dim", 1024, AT(head_dim), 0, 0},
    {"v_head_dim", 1024, AT(v_head_dim), 0, 0},
    {"head_dim and v_head_dim", 1024, AT(head_dim), AT(v_head_dim), 0},
    {"num_kv_heads", 66, AT(num_kv_heads), AT(num_q_heads), 0},
    {"num_q_heads for a KV head", 130, AT(num_q_heads), AT(num_kv_heads), 1},
    {"page_size", 700, AT(page_size), 0, 0},
    {"window_left", INT32_MAX, AT(window_left), 0, 0},
    {"window_right", INT32_MAX, AT(window_right), AT(window_left), 4},
    {"attention_chunk", INT32_MAX, AT(attention_chunk), 0, 0},
};
static const struct axis latent_axes[LATENT_AXES] = {
    {"kv_lora_rank", 1024, AT(latent.kv_lora_rank), 0, 0},
    {"rope_dim", 1024, AT(latent.rope_dim), 0, 0},
    {"nope_dim", 1024, AT(latent.nope_dim), 0, 0},
    {"v_head_dim", 1024, AT(latent.v_dim), 0, 0},
    {"num_q_heads", 66, AT(num_q_heads), 0, 0},
    {"page_size", 700, AT(page_size), 0, 0},
};
static const struct axis linear_axes[LINEAR_AXES] = {
    {"head_k_dim", 512, AT(linear.k_dim), 0, 0},
    {"head_v_dim", 512, AT(linear.v_dim), 0, 0},
    {"num_v_heads", 128, AT(linear.v_heads), 0, 0},
    {"conv_width", 64, AT(linear.width), 0, 0},
};

const struct axis *axes_of(const struct kind_case *k, int32_t *count)
{
    bool linear = k->kind == &linear_layers, latent = k->kind == &latent_layers;
    *count = linear ? LINEAR_AXES : latent ? LATENT_AXES : SOFTMAX_AXES;
    return linear ? linear_axes : latent ? latent_axes : softmax_axes;
}

void axis_set(const struct axis *axis, int32_t value, struct kind_case *k)
{
    char *spec = (char *)&k->at.spec;
    memcpy(spec + axis->member, &value, sizeof value);
    if (axis->other)
        memcpy(spec + axis->other, axis->other_value ? &axis->other_value : &value, sizeof value);
    if (k->kind == &latent_layers)
        case_spec_set_form(&k->at.spec, k->at.spec.latent.expanded);
}

void axes_make_short(struct kind_case *k)
{
    static const int32_t lengths[][2] = {{37, 3}, {0, 5}, {17, 1}};
    struct case_spec *spec = &k->at.spec;
    spec->num_sequences = 3;
    for (int32_t s = 0; s < 3; s++)
        spec->sequences[s] =
            (struct case_sequence){.prefix_len = lengths[s][0],
                                   .num_new = spec->mode == ATTN_MODE_DECODE ? 1 : lengths[s][1],
                                   .tokens_of = s};
}

void axes_make_linear_short(struct linear_spec *spec, int32_t index)
{
    (void)index;
    linear_set_extend(spec, "18i 1p");
    spec->padded = 0;
    if (spec->family != ATTN_LINEAR_SHORT_CONV) {
        spec->k_heads = 1;
        spec->v_heads = 2;
        spec->k_dim = 16;
    }
    spec->v_dim = 16;
    spec->width = spec->width > 1 ? spec->width : 3;
}
