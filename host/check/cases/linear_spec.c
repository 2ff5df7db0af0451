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

static void draw_dtypes(struct linear_spec *spec, struct draw *draw)
{
    static const attn_dtype dtypes[] = {ATTN_BF16, ATTN_F32, ATTN_F16};
    spec->q_dtype = dtypes[draw_below(draw, 3)];
    spec->conv_dtype = unlike(spec->q_dtype, draw_below(draw, 8));
    spec->state_dtype = draw_below(draw, 3) == 0 ? ATTN_BF16 : ATTN_F32;
}

static void draw_sequences(struct linear_spec *spec, struct draw *draw)
{
    static const int32_t lengths[] = {1, 0, 2, 5, 8, 9, 16, 17, 63, 64, 65, 127, 130, 200};
    static const int32_t few[] = {1, 2, 3, 4, 5, 7};
    bool verify = spec->mode == ATTN_MODE_TARGET_VERIFY;
    spec->num_sequences = 1 + draw_below(draw, 4);
    for (int32_t s = 0; s < spec->num_sequences; s++) {
        struct linear_case_sequence *sequence = &spec->sequences[s];
        bool decodes = spec->mode == ATTN_MODE_DECODE;
        sequence->rows = decodes  ? 1
                         : verify ? few[draw_below(draw, 6)]
                                  : lengths[draw_below(draw, sizeof lengths / sizeof lengths[0])];
        sequence->has_initial = draw_below(draw, 4) > 0;
        sequence->in_place = draw_below(draw, 2);
        sequence->dropped = draw_below(draw, 8) == 0;
    }
}

void linear_spec_draw(struct linear_spec *spec, uint32_t family, uint64_t seed)
{
    static const uint32_t modes[] = {ATTN_MODE_EXTEND,       ATTN_MODE_DECODE,
                                     ATTN_MODE_MIXED,        ATTN_MODE_TARGET_VERIFY,
                                     ATTN_MODE_DRAFT_EXTEND, ATTN_MODE_EXTEND};
    struct draw draw = {.seed = seed};
    *spec =
        (struct linear_spec){.family = family, .mode = modes[draw_below(&draw, 6)], .decodes = 1};
    draw_dims(spec, &draw);
    draw_gates(spec, &draw);
    draw_dtypes(spec, &draw);
    draw_sequences(spec, &draw);
    spec->snapshots = spec->mode == ATTN_MODE_TARGET_VERIFY || draw_below(&draw, 8) == 0;
    static const uint32_t absent[6] = {LINEAR_WITHOUT_DST | LINEAR_WITHOUT_INITIAL,
                                       LINEAR_WITHOUT_DST, LINEAR_WITHOUT_INITIAL};
    spec->absent = absent[draw_below(&draw, 6)];
    static const int32_t gaps[9] = {16, 1, 7};
    spec->gap = gaps[draw_below(&draw, 9)];
    spec->first_row = spec->mode != ATTN_MODE_DECODE && draw_below(&draw, 3) == 0 ? 3 : 0;
    spec->padded = draw_below(&draw, 3) == 0 ? 2 : 0;
    bool all_rows = spec->mode == ATTN_MODE_TARGET_VERIFY;
    spec->sparse =
        spec->snapshots && !all_rows && draw_below(&draw, 3) > 0 ? 20 + draw_below(&draw, 60) : 0;
    spec->out_dtype = unlike(spec->q_dtype, draw_below(&draw, 8));
    spec->state_group = draw_below(&draw, LINEAR_STATE_GROUPS);
    spec->decodes_first = draw_below(&draw, 2);
    spec->decode_q_len = draw_below(&draw, 2) ? 3 : 1;
    spec->bare = draw_below(&draw, 2);
    spec->cuts = spec->sparse > 0 && draw_below(&draw, 2) ? 1 + draw_below(&draw, 4) : 0;
    if (spec->mode == ATTN_MODE_MIXED)
        linear_spec_mix(spec);
}

void linear_spec_mix(struct linear_spec *spec)
{
    int32_t first = spec->decodes_first ? 0 : spec->num_sequences - spec->decodes;
    spec->mode = ATTN_MODE_MIXED;
    for (int32_t s = first; s < first + spec->decodes; s++)
        spec->sequences[s].rows = spec->decode_q_len;
}

/* ---- Telling --------------------------------------------------------------------------------- */

void linear_spec_describe(const struct linear_spec *spec, char *text, size_t size)
{
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
        families[spec->family], modes[spec->mode], spec->flags, dtype_name(spec->q_dtype),
        dtype_name(spec->out_dtype), dtype_name(spec->state_dtype), spec->vk ? "vk" : "kv",
        dtype_name(spec->conv_dtype), spec->k_heads, spec->v_heads, spec->k_dim, spec->v_dim,
        spec->width, spec->bias ? " bias" : "", spec->z ? " z" : "", spec->skip,
        (double)spec->dt_min, (double)spec->dt_max, (double)spec->lower_bound,
        spec->steep ? ", steep" : "",
        spec->cuts        ? ", snapshots at some rows"
        : spec->sparse    ? ", sparse snapshots"
        : spec->snapshots ? ", snapshots"
                          : "",
        absent[spec->absent], spec->bare && !spec->absent ? ", bare" : "", spec->gap,
        spec->first_row, spec->padded, spec->turn, spec->state_group);
    if (spec->mode == ATTN_MODE_MIXED)
        strbuf_appendf(&line, " (the %s %d decode, of %d)", spec->decodes_first ? "first" : "last",
                       spec->decodes, spec->decode_q_len);
    if (spec->spare > 0 || spec->spread > 0 || spec->num_sequences > 8)
        strbuf_appendf(&line, " (%d sequences, %d more, %s)", spec->num_sequences, spec->spare,
                       spec->spread == SPREAD_PAGES   ? "many slots"
                       : spec->spread == SPREAD_BYTES ? "slots far apart"
                                                      : "slots side by side");
    for (int32_t s = 0; s < spec->num_sequences && s < LINEAR_CASE_MAX_SEQS; s++)
        strbuf_appendf(
            &line, " %d%s%s%s", spec->sequences[s].rows, spec->sequences[s].has_initial ? "i" : "",
            spec->sequences[s].in_place ? "p" : "", spec->sequences[s].dropped ? "d" : "");
    snprintf(text, size, "%s", strbuf_text(&line));
    strbuf_finish(&line);
}

/* ---- The problem ----------------------------------------------------------------------------- */

static uint32_t uses_of(const struct linear_spec *spec)
{
    bool mixed = spec->mode == ATTN_MODE_MIXED;
    return (mixed && spec->decodes_first ? (uint32_t)ATTN_USES_DECODES_FIRST : 0u) |
           (mixed && spec->decode_q_len > 1 ? (uint32_t)ATTN_USES_DECODE_DRAFTS : 0u);
}

static void set_bounds(attn_bounds *bounds, const struct linear_spec *spec)
{
    struct case_lengths l;
    linear_lengths_init(&l, spec);
    int32_t rows = l.first_row[l.num_seqs] - l.first_row[0] + l.spare;
    *bounds = (attn_bounds){.struct_size = sizeof *bounds,
                            .modes = ATTN_MODE_BIT(spec->mode) | spec->modes,
                            .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER),
                            .uses = uses_of(spec),
                            .max_seqs = l.num_seqs,
                            .max_tokens = rows > 0 ? rows : 1,
                            .max_q_len = l.max_q_len,
                            .max_kv_len = l.max_kv_len,
                            .max_kv_tokens = (int64_t)spec->num_sequences * l.max_kv_len};
}

void linear_pose(struct spec_problem *posed, const struct linear_spec *spec,
                 const attn_device *device)
{
    const bool kda = spec->family == ATTN_LINEAR_KDA,
               delta = kda || spec->family == ATTN_LINEAR_GDN;
    const bool mamba2 = spec->family == ATTN_LINEAR_MAMBA2;
    memset(posed, 0, sizeof *posed);
    posed->layers[0] =
        (attn_layer){.struct_size = sizeof posed->layers[0], .layer_id = 5 + 2 * spec->layer};
    posed->linear =
        (attn_linear_dims){.struct_size = sizeof posed->linear,
                           .family = spec->family,
                           .flags = spec->flags,
                           .num_k_heads = spec->k_heads,
                           .num_v_heads = spec->v_heads,
                           .head_k_dim = spec->k_dim,
                           .head_v_dim = spec->v_dim,
                           .num_groups = mamba2 ? spec->k_heads : 0,
                           .conv_width = spec->width,
                           .state_dtype = spec->state_dtype,
                           .conv_dtype = spec->conv_dtype,
                           .dt_min = mamba2 || spec->bare ? spec->dt_min : 0.75f,
                           .dt_max = mamba2 || spec->bare ? spec->dt_max : 0.875f,
                           .lower_bound = kda || spec->bare ? spec->lower_bound : -0.5f};
    posed->group = (attn_layer_group){
        .struct_size = sizeof posed->group,
        .kind = ATTN_KIND_LINEAR,
        .attn_type = ATTN_TYPE_DECODER,
        .kv_group = -1,
        .state_group = spec->state_group,
        .num_q_heads = spec->bare ? 0 : spec->v_heads,
        .num_kv_heads = spec->bare          ? 0
                        : spec->k_heads > 0 ? spec->k_heads
                                            : 1,
        .head_dim = spec->bare        ? 0
                    : spec->k_dim > 0 ? spec->k_dim
                                      : spec->v_dim,
        .v_head_dim = spec->bare ? 0 : spec->v_dim,
        .window_left = -1,
        .sm_scale = delta ? 1.0f / sqrtf((float)spec->k_dim) : 0.5f,
        .num_layers = 1,
        .layers = posed->layers,
        .linear = &posed->linear,
    };
    bool no_state = spec->bare && spec->family == ATTN_LINEAR_SHORT_CONV;
    set_bounds(&posed->bounds, spec);
    posed->problem = (attn_problem){.struct_size = sizeof posed->problem,
                                    .device = device,
                                    .group = &posed->group,
                                    .bounds = &posed->bounds,
                                    .state_layout = no_state   ? NULL
                                                    : spec->vk ? ATTN_LAYOUT_STATE_SSM_VK
                                                               : ATTN_LAYOUT_STATE_SSM_KV,
                                    .q_dtype = spec->q_dtype,
                                    .kv_dtype = spec->q_dtype,
                                    .out_dtype = spec->out_dtype,
                                    .tp_size = 1,
                                    .min_alignment = spec->min_alignment};
}
