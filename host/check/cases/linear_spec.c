/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_spec.c: specs of linear cases, drawn and described.
 */
#include "host/check/cases/linear_case.h"

#include "host/base/dtype.h"
#include "host/base/text.h"
#include "host/check/cases/draw.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Drawing --------------------------------------------------------------------------------- */

static void draw_dims(struct linear_spec *spec, struct draw *draw)
{
    /* The bar of a row is made of its elements: where all are of one product of sums, or there is
     * one alone, it would be a matter of luck. So no 1/1, and no convolution where one is 1. Nor
     * for checks that compare bits: that takes a note of the backend, and they judge all rows
     * besides. */
    static const int32_t dims[][2] = {{64, 64},   {128, 32}, {16, 16},  {32, 128},
                                      {5, 7},     {33, 48},  {16, 1},   {1, 16},
                                      {128, 128}, {256, 64}, {129, 130}};
    static const int32_t heads[][2] = {{1, 2}, {2, 2}, {1, 3}, {2, 4}, {1, 6}, {3, 3}};
    static const int32_t widths[] = {4, 4, 0, 2, 3, 1, 5, 8};
    bool short_conv = spec->family == ATTN_LINEAR_SHORT_CONV;
    int32_t shape = draw_below(draw, 11);
    bool large = dims[shape][0] * dims[shape][1] > 4096; /* then few heads: time and memory */
    int32_t which = draw_below(draw, large ? 2 : 6);
    spec->k_heads = short_conv ? 0 : heads[which][0];
    spec->v_heads = heads[which][1];
    spec->k_dim = short_conv ? 0 : dims[shape][0];
    spec->v_dim = dims[shape][1];
    spec->width = spec->k_dim == 1 || spec->v_dim == 1 ? 0 : widths[draw_below(draw, 8)];
    if (short_conv && spec->width == 0)
        spec->width = 4;
    spec->bias = draw_below(draw, 2);
    spec->z = draw_below(draw, 2);
    spec->skip = spec->family == ATTN_LINEAR_MAMBA2 ? draw_below(draw, 3) : 0;
    spec->vk = draw_below(draw, 2);
}

static void draw_gates(struct linear_spec *spec, struct draw *draw)
{
    bool delta = spec->family == ATTN_LINEAR_GDN || spec->family == ATTN_LINEAR_KDA;
    bool gated = delta || spec->family == ATTN_LINEAR_MAMBA2;
    if (gated && draw_below(draw, 4) > 0)
        spec->flags |= ATTN_LINEAR_RAW_GATES;
    if (delta && draw_below(draw, 4) > 0)
        spec->flags |= ATTN_LINEAR_QK_L2NORM;
    if (draw_below(draw, 4) == 0)
        spec->flags |= ATTN_LINEAR_CONV_IDENTITY;
    if (spec->family == ATTN_LINEAR_KDA && draw_below(draw, 2))
        spec->lower_bound = -5;
    if (spec->family == ATTN_LINEAR_MAMBA2 && draw_below(draw, 2)) {
        spec->dt_min = 0.25f;
        static const float largest[] = {0, 1.5f, 0.25f}; /* none; one; the only value there is */
        spec->dt_max = largest[draw_below(draw, 3)];
    }
    spec->steep = draw_below(draw, 4) == 0;
}

/* One of eight: of 32 bits, of 16 bits and another one than q's, or six times q's. */
static attn_dtype unlike(attn_dtype q, int32_t drawn)
{
    return drawn == 0 ? ATTN_F32 : drawn > 1 ? q : q == ATTN_BF16 ? ATTN_F16 : ATTN_BF16;
}

static void draw_dtypes(struct case_spec *spec, struct draw *draw)
{
    static const attn_dtype dtypes[] = {ATTN_BF16, ATTN_F32, ATTN_F16};
    spec->q_dtype = dtypes[draw_below(draw, 3)];
    spec->linear.conv_dtype = unlike(spec->q_dtype, draw_below(draw, 8));
    spec->linear.state_dtype = draw_below(draw, 3) == 0 ? ATTN_BF16 : ATTN_F32;
}

static void draw_sequences(struct case_spec *spec, struct draw *draw)
{
    static const int32_t lengths[] = {1, 0, 2, 5, 8, 9, 16, 17, 63, 64, 65, 127, 130, 200};
    static const int32_t few[] = {1, 2, 3, 4, 5, 7};
    bool verify = spec->mode == ATTN_MODE_TARGET_VERIFY;
    spec->num_sequences = 1 + draw_below(draw, 4);
    for (int32_t s = 0; s < spec->num_sequences; s++) {
        struct case_sequence *sequence = &spec->sequences[s];
        bool decodes = spec->mode == ATTN_MODE_DECODE;
        sequence->num_new = decodes ? 1
                            : verify
                                ? few[draw_below(draw, 6)]
                                : lengths[draw_below(draw, sizeof lengths / sizeof lengths[0])];
        sequence->has_initial = draw_below(draw, 4) > 0;
        sequence->in_place = draw_below(draw, 2);
        sequence->dropped = draw_below(draw, 8) == 0;
    }
}

void linear_spec_draw(struct case_spec *spec, uint32_t family, uint64_t seed)
{
    struct linear_spec *linear = &spec->linear;
    static const uint32_t modes[] = {ATTN_MODE_EXTEND,       ATTN_MODE_DECODE,
                                     ATTN_MODE_MIXED,        ATTN_MODE_TARGET_VERIFY,
                                     ATTN_MODE_DRAFT_EXTEND, ATTN_MODE_EXTEND};
    struct draw draw = {.seed = seed};
    *spec = (struct case_spec){.kind = ATTN_KIND_LINEAR,
                               .mode = modes[draw_below(&draw, 6)],
                               .linear = {.family = family, .decodes = 1}};
    draw_dims(linear, &draw);
    draw_gates(linear, &draw);
    draw_dtypes(spec, &draw);
    draw_sequences(spec, &draw);
    linear->snapshots = spec->mode == ATTN_MODE_TARGET_VERIFY || draw_below(&draw, 8) == 0;
    static const uint32_t absent[6] = {LINEAR_WITHOUT_DST | LINEAR_WITHOUT_INITIAL,
                                       LINEAR_WITHOUT_DST, LINEAR_WITHOUT_INITIAL};
    linear->absent = absent[draw_below(&draw, 6)];
    static const int32_t gaps[9] = {16, 1, 7};
    linear->gap = gaps[draw_below(&draw, 9)];
    spec->first_row = spec->mode != ATTN_MODE_DECODE && draw_below(&draw, 3) == 0 ? 3 : 0;
    linear->padded = draw_below(&draw, 3) == 0 ? 2 : 0;
    bool all_rows = spec->mode == ATTN_MODE_TARGET_VERIFY;
    linear->sparse =
        linear->snapshots && !all_rows && draw_below(&draw, 3) > 0 ? 20 + draw_below(&draw, 60) : 0;
    spec->out_dtype = unlike(spec->q_dtype, draw_below(&draw, 8));
    linear->state_group = draw_below(&draw, LINEAR_STATE_GROUPS);
    spec->decodes_first = draw_below(&draw, 2);
    spec->decode_q_len = draw_below(&draw, 2) ? 3 : 1;
    linear->bare = draw_below(&draw, 2);
    linear->cuts = linear->sparse > 0 && draw_below(&draw, 2) ? 1 + draw_below(&draw, 4) : 0;
    if (spec->mode == ATTN_MODE_MIXED)
        linear_spec_mix(spec);
}

void linear_spec_mix(struct case_spec *spec)
{
    int32_t first = spec->decodes_first ? 0 : spec->num_sequences - spec->linear.decodes;
    spec->mode = ATTN_MODE_MIXED;
    for (int32_t s = first; s < first + spec->linear.decodes; s++)
        spec->sequences[s].num_new = spec->decode_q_len;
}

/* ---- Telling --------------------------------------------------------------------------------- */

void linear_spec_describe(const struct case_spec *spec, char *text, size_t size)
{
    const struct linear_spec *linear = &spec->linear;
    static const char *const families[] = {"gdn", "mamba2", "kda", "lightning", "short_conv"};
    static const char *const modes[] = {"extend", "decode", "mixed", "idle", "verify", "draft"};
    static const char *const absent[] = {"", ", no dst_slot", ", no has_initial",
                                         ", no dst_slot or has_initial"};
    strbuf line;
    strbuf_init(&line);
    strbuf_appendf(
        &line,
        "%s %s, flags %#x, q %s, out %s, state %s %s, conv %s, heads %d/%d of %d/%d, width %d%s%s, "
        "D %d, dt %g..%g, lower bound %g%s%s%s%s, gap %d, first row %d, padding %d, turn %d, "
        "state group %d, rows",
        families[linear->family], modes[spec->mode], linear->flags, dtype_name(spec->q_dtype),
        dtype_name(spec->out_dtype), dtype_name(linear->state_dtype), linear->vk ? "vk" : "kv",
        dtype_name(linear->conv_dtype), linear->k_heads, linear->v_heads, linear->k_dim,
        linear->v_dim, linear->width, linear->bias ? " bias" : "", linear->z ? " z" : "",
        linear->skip, (double)linear->dt_min, (double)linear->dt_max, (double)linear->lower_bound,
        linear->steep ? ", steep" : "",
        linear->cuts        ? ", snapshots at some rows"
        : linear->sparse    ? ", sparse snapshots"
        : linear->snapshots ? ", snapshots"
                            : "",
        absent[linear->absent], linear->bare && !linear->absent ? ", bare" : "", linear->gap,
        spec->first_row, linear->padded, linear->turn, linear->state_group);
    if (spec->mode == ATTN_MODE_MIXED)
        strbuf_appendf(&line, " (the %s %d decode, of %d)", spec->decodes_first ? "first" : "last",
                       linear->decodes, spec->decode_q_len);
    if (spec->spare > 0 || spec->spread > 0 || spec->num_sequences > 8)
        strbuf_appendf(&line, " (%d sequences, %d more, %s)", spec->num_sequences, spec->spare,
                       spec->spread == SPREAD_PAGES   ? "many slots"
                       : spec->spread == SPREAD_BYTES ? "slots far apart"
                                                      : "slots side by side");
    for (int32_t s = 0; s < spec->num_sequences && s < FORWARD_CASE_MAX_SEQS; s++)
        strbuf_appendf(&line, " %d%s%s%s", spec->sequences[s].num_new,
                       spec->sequences[s].has_initial ? "i" : "",
                       spec->sequences[s].in_place ? "p" : "",
                       spec->sequences[s].dropped ? "d" : "");
    snprintf(text, size, "%s", strbuf_text(&line));
    strbuf_finish(&line);
}

/* ---- The problem ----------------------------------------------------------------------------- */

static uint32_t uses_of(const struct case_spec *spec)
{
    bool mixed = spec->mode == ATTN_MODE_MIXED;
    return (mixed && spec->decodes_first ? (uint32_t)ATTN_USES_DECODES_FIRST : 0u) |
           (mixed && spec->decode_q_len > 1 ? (uint32_t)ATTN_USES_DECODE_DRAFTS : 0u);
}

static void set_bounds(attn_bounds *bounds, const struct case_spec *spec)
{
    struct case_lengths l;
    linear_lengths_init(&l, spec);
    int32_t rows = l.first_row[l.num_seqs] - l.first_row[0] + l.spare;
    *bounds = (attn_bounds){.struct_size = sizeof *bounds,
                            .modes = ATTN_MODE_BIT(spec->mode) | spec->linear.modes,
                            .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
                            .uses = uses_of(spec),
                            .max_seqs = l.num_seqs,
                            .max_tokens = rows > 0 ? rows : 1,
                            .max_q_len = l.max_q_len,
                            .max_kv_len = l.max_kv_len,
                            .max_kv_tokens = (int64_t)spec->num_sequences * l.max_kv_len};
}

void linear_pose(struct spec_problem *posed, const struct case_spec *spec,
                 const attn_device *device)
{
    const struct linear_spec *linear = &spec->linear;
    const bool kda = linear->family == ATTN_LINEAR_KDA,
               delta = kda || linear->family == ATTN_LINEAR_GDN;
    const bool mamba2 = linear->family == ATTN_LINEAR_MAMBA2;
    memset(posed, 0, sizeof *posed);
    posed->layers[0] =
        (attn_layer){.struct_size = sizeof posed->layers[0], .layer_id = 5 + 2 * linear->layer};
    posed->linear =
        (attn_linear_dims){.struct_size = sizeof posed->linear,
                           .family = linear->family,
                           .flags = linear->flags,
                           .num_k_heads = linear->k_heads,
                           .num_v_heads = linear->v_heads,
                           .head_k_dim = linear->k_dim,
                           .head_v_dim = linear->v_dim,
                           .num_groups = mamba2 ? linear->k_heads : 0,
                           .conv_width = linear->width,
                           .state_dtype = linear->state_dtype,
                           .conv_dtype = linear->conv_dtype,
                           .dt_min = mamba2 || linear->bare ? linear->dt_min : 0.75f,
                           .dt_max = mamba2 || linear->bare ? linear->dt_max : 0.875f,
                           .lower_bound = kda || linear->bare ? linear->lower_bound : -0.5f};
    posed->group = (attn_layer_group){
        .struct_size = sizeof posed->group,
        .kind = ATTN_KIND_LINEAR,
        .attn_type = ATTN_TYPE_DECODER,
        .kv_group = -1,
        .state_group = linear->state_group,
        .num_q_heads = linear->bare ? 0 : linear->v_heads,
        .num_kv_heads = linear->bare          ? 0
                        : linear->k_heads > 0 ? linear->k_heads
                                              : 1,
        .head_dim = linear->bare        ? 0
                    : linear->k_dim > 0 ? linear->k_dim
                                        : linear->v_dim,
        .v_head_dim = linear->bare ? 0 : linear->v_dim,
        .window_left = -1,
        .sm_scale = delta ? 1.0f / sqrtf((float)linear->k_dim) : 0.5f,
        .num_layers = 1,
        .layers = posed->layers,
        .linear = &posed->linear,
    };
    bool no_state = linear->bare && linear->family == ATTN_LINEAR_SHORT_CONV;
    set_bounds(&posed->bounds, spec);
    posed->problem = (attn_problem){.struct_size = sizeof posed->problem,
                                    .device = device,
                                    .group = &posed->group,
                                    .bounds = &posed->bounds,
                                    .state_layout = no_state     ? NULL
                                                    : linear->vk ? ATTN_LAYOUT_STATE_SSM_VK
                                                                 : ATTN_LAYOUT_STATE_SSM_KV,
                                    .q_dtype = spec->q_dtype,
                                    .kv_dtype = spec->q_dtype,
                                    .out_dtype = spec->out_dtype,
                                    .tp_size = 1,
                                    .min_alignment = spec->min_alignment};
}
