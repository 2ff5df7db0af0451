/* SPDX-License-Identifier: Apache-2.0
 *
 * grid_axes.c: the axes of the grid: their values, and the spec of a point. */
#include "host/check/cases/grid.h"

#include "host/base/text.h"

#include <stdio.h>
#include <string.h>

#define COUNT(array) ((int32_t)(sizeof(array) / sizeof((array)[0])))

/* ---- Values ---------------------------------------------------------------------------------- */

static const uint32_t modes[] = {ATTN_MODE_EXTEND, ATTN_MODE_DECODE, ATTN_MODE_MIXED,
                                 ATTN_MODE_TARGET_VERIFY, ATTN_MODE_DRAFT_EXTEND};
static const attn_dtype dtypes[] = {ATTN_BF16, ATTN_F16, ATTN_F32};
static const attn_dtype out_dtypes[] = {ATTN_DTYPE_NONE, ATTN_F32, ATTN_BF16, ATTN_F16,
                                        ATTN_FP8_E4M3};

static const struct {
    attn_dtype q, new_kv; /* NONE = not fp8 */
    uint32_t granularity;
} inputs[] = {
    [INPUTS_PLAIN] = {ATTN_DTYPE_NONE, ATTN_DTYPE_NONE, ATTN_SCALE_NONE},
    [INPUTS_E4M3] = {ATTN_FP8_E4M3, ATTN_FP8_E4M3, ATTN_SCALE_PER_TENSOR},
    [INPUTS_E4M3_PER_SEQ_HEAD] = {ATTN_FP8_E4M3, ATTN_FP8_E4M3, ATTN_SCALE_PER_SEQ_HEAD},
    [INPUTS_Q_E4M3] = {ATTN_FP8_E4M3, ATTN_DTYPE_NONE, ATTN_SCALE_PER_TENSOR},
    [INPUTS_Q_E4M3_PER_HEAD] = {ATTN_FP8_E4M3, ATTN_DTYPE_NONE, ATTN_SCALE_PER_HEAD},
    [INPUTS_Q_E4M3_PER_SEQ_HEAD] = {ATTN_FP8_E4M3, ATTN_DTYPE_NONE, ATTN_SCALE_PER_SEQ_HEAD},
    [INPUTS_NEW_KV_E4M3_PER_HEAD] = {ATTN_DTYPE_NONE, ATTN_FP8_E4M3, ATTN_SCALE_PER_HEAD}};

static const struct {
    attn_dtype dtype; /* NONE = q's */
    uint32_t granularity;
} kv_dtypes[] = {
    {ATTN_DTYPE_NONE, ATTN_SCALE_NONE},        {ATTN_FP8_E4M3, ATTN_SCALE_PER_TENSOR},
    {ATTN_FP8_E4M3, ATTN_SCALE_PER_HEAD},      {ATTN_FP8_E5M2, ATTN_SCALE_PER_TENSOR},
    {ATTN_FP8_E5M2, ATTN_SCALE_PER_HEAD},      {ATTN_FP8_E4M3, ATTN_SCALE_PER_SEQ_HEAD},
    {ATTN_FP8_E4M3, ATTN_SCALE_PER_TOKEN_HEAD}};

static const int32_t dims[] = {64, 128, 16, 32, 80, 96, 192, 256, 1, 7, 20, 129, 512};
static const int32_t v_dims[] = {0, 64, 128, 33, 1}; /* 0 = as head_dim */
static const int32_t heads[][2] = {{4, 2}, {4, 4}, {8, 1}, {1, 1}, {6, 2}, {7, 1}, {26, 2}};
static const int32_t pages[] = {16, 1, 64, 32, 3, 128};
static const char *const layouts[] = {ATTN_LAYOUT_KV_NHD, ATTN_LAYOUT_KV_HND};
static const int32_t windows[][2] = {{-1, 0}, {-1, -1}, {0, 0}, {15, 0},
                                     {63, 0}, {100, 0}, {7, 3}, {-1, 3}};
static const int32_t chunks[] = {0, 16, 7, 64, 1};
static const float caps[] = {0, 30, 5};
static const float sm_scales[] = {0, 0.3f};

static const struct {
    uint32_t min_alignment, kv_strides;
} places[] = {[PLACE_ANY] = {0, ATTN_KV_STRIDES_ANY},
              [PLACE_KV_EQUAL] = {0, ATTN_KV_STRIDES_EQUAL},
              [PLACE_ALIGNED] = {256, ATTN_KV_STRIDES_EQUAL}};

static const struct {
    uint32_t kind;
    bool positions, items;
} masks[] = {{ATTN_MASK_LAYER, false, false}, {ATTN_MASK_NONE, false, false},
             {ATTN_MASK_FULL, false, false},  {ATTN_MASK_QLEN, false, false},
             {ATTN_MASK_FULL, true, false},   {ATTN_MASK_QLEN, true, false},
             {ATTN_MASK_LAYER, false, true}};

/* Prefix and new tokens of each sequence. -N stands for about N pages: one token less, as many, or
 * one more, by the sequence's number. */
static const int32_t lengths[][4][2] = {
    [LENGTHS_PAGES] = {{-1, 3}, {0, -1}, {-2, 2}, {-1, 1}},
    [LENGTHS_EMPTY] = {{0, 0}, {5, 0}, {0, 3}, {33, 1}},
    [LENGTHS_SPLITS] = {{513, 3}, {63, 2}, {127, 5}, {0, 1}},
    [LENGTHS_SHORT] = {{0, 1}, {1, 1}, {2, 4}, {0, 3}},
    [LENGTHS_ROWS] = {{0, 70}, {12, 37}},
    [LENGTHS_SINGLE] = {{100, 17}},
};
static const int32_t num_sequences[] = {4, 4, 4, 4, 2, 1};

/* kv_lora_rank, rope_dim, nope_dim, v_dim. */
static const int32_t latents[MLA_DIMS][4] = {
    [MLA_SMALL] = {64, 16, 32, 24},
    [MLA_DEEPSEEK] = {512, 64, 128, 128},
    [MLA_ONE_BLOCK] = {128, 5, 20, 33},
    {33, 7, 11, 5},
    {1, 1, 1, 1},
    {256, 32, 64, 64},
    {130, 70, 3, 40},
};

/* Of a sparse layer over them: index heads, label_dim, top_k, and whether queries of the indexer are e4m3. */
static const struct {
    int32_t heads, label_dim, top_k;
    bool has_codes;
} indexers[MLA_DIMS] = {
    [MLA_SMALL] = {4, 32, 24, false},
    [MLA_DEEPSEEK] = {64, 128, 64, true},
    [MLA_ONE_BLOCK] = {5, 20, 7, false},
    {3, 12, 9, true},
    {1, 4, 1, false},
    {8, 64, 33, false},
    {2, 8, 12, true},
};
static const attn_dtype label_dtypes[] = {
    [CHOICE_E4M3] = ATTN_FP8_E4M3, [CHOICE_BF16] = ATTN_BF16, [CHOICE_F32] = ATTN_F32};

static const int32_t num_values[POINT_AXES] = {
    [AXIS_TYPE] = ATTN_TYPE_COUNT,
    [AXIS_MODE] = COUNT(modes),
    [AXIS_DTYPE] = COUNT(dtypes),
    [AXIS_INPUTS] = COUNT(inputs),
    [AXIS_OUT] = COUNT(out_dtypes),
    [AXIS_KV] = COUNT(kv_dtypes),
    [AXIS_DIM] = COUNT(dims),
    [AXIS_V_DIM] = COUNT(v_dims),
    [AXIS_HEADS] = COUNT(heads),
    [AXIS_PAGE] = COUNT(pages),
    [AXIS_LAYOUT] = COUNT(layouts),
    [AXIS_FORM] = GRID_MAX_FORMS,
    [AXIS_SLOTS] = SLOT_ORDERS,
    [AXIS_MASK] = COUNT(masks),
    [AXIS_WINDOW] = COUNT(windows),
    [AXIS_CHUNK] = COUNT(chunks),
    [AXIS_CAP] = COUNT(caps),
    [AXIS_SCALE] = COUNT(sm_scales),
    [AXIS_ALIBI] = 2,
    [AXIS_SINK] = 3,
    [AXIS_SOURCE] = 6,
    [AXIS_LENGTHS] = COUNT(num_sequences),
    [AXIS_LSE] = 2,
    [AXIS_SCORES] = 2,
    [AXIS_PADDING] = 2,
    [AXIS_BOUNDS] = 2,
    [AXIS_ROW] = 2,
    [AXIS_DECODES] = 4,
    [AXIS_PLACE] = COUNT(places),
    [AXIS_LATENT] = MLA_DIMS,
    [AXIS_LATENT_FORM] = 2,
    [AXIS_LATENT_CACHE] = 2,
    [AXIS_CHOICE] = CHOICE_BLOCKS_OF_HEADS + 1,
};

int32_t grid_num_values(const struct grid *grid, enum grid_axis axis)
{
    return axis == AXIS_FORM ? grid->num_forms : num_values[axis];
}

const attn_options *grid_options(const struct grid *grid, const struct grid_point *point)
{
    const struct grid_form *form = &grid->forms[point->value[AXIS_FORM]];
    return form->values ? &form->options : grid->backend.options;
}

/* ---- Specs ----------------------------------------------------------------------------------- */

/* `or`, where the dtype is NONE. */
static attn_dtype dtype_or(attn_dtype dtype, attn_dtype or)
{
    return dtype != ATTN_DTYPE_NONE ? dtype : or ;
}

static void set_dtypes(struct case_spec *spec, const uint8_t *value)
{
    const attn_dtype plain = dtypes[value[AXIS_DTYPE]];
    const attn_dtype new_kv = dtype_or(inputs[value[AXIS_INPUTS]].new_kv, plain);
    spec->q_dtype = dtype_or(inputs[value[AXIS_INPUTS]].q, plain);
    spec->new_kv_dtype = new_kv != spec->q_dtype ? new_kv : ATTN_DTYPE_NONE;
    spec->input_granularity = inputs[value[AXIS_INPUTS]].granularity;
    spec->out_dtype = dtype_or(out_dtypes[value[AXIS_OUT]], plain);
    spec->kv_dtype = dtype_or(kv_dtypes[value[AXIS_KV]].dtype,
                              spec->attn_type == ATTN_TYPE_ENCODER_ONLY ? spec->q_dtype : plain);
    spec->scale_granularity = kv_dtypes[value[AXIS_KV]].granularity;
}

static void set_operands(struct case_spec *spec, const uint8_t *value)
{
    spec->attn_type = value[AXIS_TYPE];
    spec->mode = modes[value[AXIS_MODE]];
    set_dtypes(spec, value);
    spec->head_dim = dims[value[AXIS_DIM]];
    spec->v_head_dim = v_dims[value[AXIS_V_DIM]] ? v_dims[value[AXIS_V_DIM]] : spec->head_dim;
    spec->num_q_heads = heads[value[AXIS_HEADS]][0];
    spec->num_kv_heads = heads[value[AXIS_HEADS]][1];
    spec->page_size = pages[value[AXIS_PAGE]];
    spec->kv_layout = layouts[value[AXIS_LAYOUT]];
    spec->slots = (enum slot_order)value[AXIS_SLOTS];
    spec->min_alignment = places[value[AXIS_PLACE]].min_alignment;
    spec->kv_strides = places[value[AXIS_PLACE]].kv_strides;
}

static void set_rules(struct case_spec *spec, const uint8_t *value)
{
    spec->mask_kind = masks[value[AXIS_MASK]].kind;
    spec->explicit_positions = masks[value[AXIS_MASK]].positions;
    spec->multi_item = masks[value[AXIS_MASK]].items;
    spec->window_left = windows[value[AXIS_WINDOW]][0];
    spec->window_right = windows[value[AXIS_WINDOW]][1];
    spec->attention_chunk = chunks[value[AXIS_CHUNK]];
    spec->logit_cap = caps[value[AXIS_CAP]];
    spec->sm_scale = sm_scales[value[AXIS_SCALE]];
    spec->alibi = value[AXIS_ALIBI];
    spec->sinks = value[AXIS_SINK] != SINK_NONE;
    if (value[AXIS_SINK] == SINK_OMITTED)
        spec->flags |= ATTN_FORWARD_OMIT_SINK;
    spec->wants_lse = value[AXIS_LSE] == 0;
    spec->growing_scores = value[AXIS_SCORES];
    spec->loose_bounds = value[AXIS_BOUNDS];
    spec->first_row = value[AXIS_ROW] ? 5 : 0;
    if (spec->mode == ATTN_MODE_MIXED) {
        uint8_t decodes = value[AXIS_DECODES];
        spec->decodes_first = decodes == DECODES_FIRST || decodes == DECODES_FIRST_DRAFTS;
        spec->decode_q_len = decodes == DECODES_DRAFTS || decodes == DECODES_FIRST_DRAFTS ? 3 : 1;
    }
}

static void set_source(struct case_spec *spec, uint8_t source)
{
    bool saved = source == SOURCE_SAVED || source == SOURCE_SOME_SAVED || source == SOURCE_SHARED;
    if (saved)
        spec->flags |= ATTN_FORWARD_SAVE_KV;
    spec->from_cache = source == SOURCE_CACHE || source == SOURCE_PREFIX;
    spec->partial = source == SOURCE_PREFIX;
    spec->unwritten_slots = source == SOURCE_SOME_SAVED;
    spec->read_only_layer = source == SOURCE_SHARED;
}

/* `length` as it stands, or about -length pages. */
static int32_t about_pages(int32_t length, int32_t page, int32_t s)
{
    return length >= 0 ? length : -length * page + s % 3 - 1;
}

/* The last two sequences of a MIXED batch decode, or its first two; one at least extends. */
static bool is_decode(const struct case_spec *spec, int32_t s)
{
    int32_t last = spec->num_sequences - 1;
    return spec->decodes_first ? s < last && s < 2 : s > 0 && s >= last - 1;
}

static void set_lengths(struct case_spec *spec, uint8_t profile)
{
    spec->num_sequences = num_sequences[profile];
    for (int32_t s = 0; s < spec->num_sequences; s++) {
        struct case_sequence *sequence = &spec->sequences[s];
        sequence->prefix_len = about_pages(lengths[profile][s][0], spec->page_size, s);
        sequence->num_new = about_pages(lengths[profile][s][1], spec->page_size, s);
        if (sequence->num_new > 70)
            sequence->num_new = 70;
        if (spec->mode == ATTN_MODE_MIXED && is_decode(spec, s))
            sequence->num_new = spec->decode_q_len;
        if (spec->mode == ATTN_MODE_TARGET_VERIFY)
            sequence->num_new = 4; /* drafted tokens: as many of each sequence */
        if (spec->attn_type == ATTN_TYPE_ENCODER_ONLY && spec->mode != ATTN_MODE_TARGET_VERIFY)
            *sequence = (struct case_sequence){
                .num_new = sequence->prefix_len > 70 ? 70 : sequence->prefix_len};
        if (spec->attn_type == ATTN_TYPE_ENCODER_ONLY)
            sequence->prefix_len = 0;
        if (spec->attn_type == ATTN_TYPE_CROSS)
            sequence->num_new_keys = s % 2 ? 0 : 11;
    }
}

/* An encoder has no cache: its axes are not varied. */
static bool is_of_no_use(const uint8_t *value)
{
    static const enum grid_axis of_cache[] = {AXIS_KV,    AXIS_PAGE,   AXIS_LAYOUT, AXIS_FORM,
                                              AXIS_SLOTS, AXIS_SOURCE, AXIS_PLACE};
    for (int32_t i = 0; value[AXIS_TYPE] == TYPE_ENCODER_ONLY && i < COUNT(of_cache); i++)
        if (value[of_cache[i]] != 0)
            return true;
    return (value[AXIS_MODE] == MODE_DECODE && value[AXIS_ROW] != 0) ||
           (value[AXIS_MODE] != MODE_MIXED && value[AXIS_DECODES] != DECODES_LAST);
}

/* The part of the prefix that comes with this batch: all of it, its end, its beginning, nothing. */
static void set_chunk(struct case_sequence *sequence, int32_t s)
{
    int32_t prefix = sequence->prefix_len;
    sequence->chunk_end = s % 4 == 2 ? prefix / 2 : prefix;
    sequence->num_new_keys = s % 4 == 1 ? prefix / 3 : s % 4 == 3 ? 0 : sequence->chunk_end;
}

enum { SLOTS_OF_LIST = 40, BLOCKS_OF_LIST = 4, BLOCK = 8 };

/* False: blocks are of softmax layers, an indexer is one of latents. */
static bool set_choice(struct case_spec *spec, const uint8_t *value)
{
    const uint8_t choice = value[AXIS_CHOICE], latent = value[AXIS_LATENT];
    const bool has_indexer = choice >= CHOICE_E4M3 && choice <= CHOICE_F32;
    if (choice == CHOICE_NONE)
        return true;
    spec->top_k = choice >= CHOICE_BLOCKS ? BLOCKS_OF_LIST
                  : latent != MLA_NONE    ? indexers[latent].top_k
                                          : SLOTS_OF_LIST;
    if (choice >= CHOICE_BLOCKS) {
        spec->index_kind = choice == CHOICE_BLOCKS ? ATTN_SPARSE_BLOCK : ATTN_SPARSE_PER_HEAD;
        spec->block_size = BLOCK;
    }
    if (has_indexer)
        spec->indexer =
            (struct case_indexer){.heads = indexers[latent].heads,
                                  .label_dim = indexers[latent].label_dim,
                                  .q_dtype = indexers[latent].has_codes ? ATTN_FP8_E4M3
                                             : choice == CHOICE_F32     ? ATTN_F32
                                                                        : dtypes[value[AXIS_DTYPE]],
                                  .label_dtype = label_dtypes[choice]};
    return latent != MLA_NONE ? choice < CHOICE_BLOCKS : !has_indexer;
}

/* False: the point contradicts itself. */
static bool make_latent(struct case_spec *spec, const uint8_t *value)
{
    const int32_t *of = latents[value[AXIS_LATENT]];
    bool expanded = value[AXIS_LATENT_FORM], packed = value[AXIS_LATENT_CACHE];
    const bool plain = value[AXIS_INPUTS] == INPUTS_PLAIN;
    if ((!plain && (value[AXIS_INPUTS] != INPUTS_Q_E4M3 || expanded)) ||
        (packed && (!plain || value[AXIS_KV] != KV_AS_Q)))
        return false;
    spec->latent = (struct case_latent){of[0], of[1], of[2], of[3], false};
    case_spec_set_form(spec, expanded);
    spec->kv_layout = packed ? ATTN_LAYOUT_MLA_LATENT_FP8 : ATTN_LAYOUT_MLA_LATENT;
    if (packed)
        spec->kv_dtype = ATTN_FP8_E4M3;
    if (spec->index_form == 0) /* the grid of a backend for latent layers alone is empty */
        spec->index_form = ATTN_INDEX_BLOCK_TABLE;
    if (expanded && spec->partial) {
        spec->from_cache = false;
        for (int32_t s = 0; s < spec->num_sequences; s++)
            set_chunk(&spec->sequences[s], s);
    }
    return case_spec_defect(spec) == NULL;
}

bool grid_spec(const struct grid *grid, const struct grid_point *point, struct case_spec *spec)
{
    const uint8_t *value = point->value;
    if (is_of_no_use(value))
        return false;
    memset(spec, 0, sizeof *spec);
    set_operands(spec, value);
    set_rules(spec, value);
    set_source(spec, value[AXIS_SOURCE]);
    spec->index_form = grid->forms[value[AXIS_FORM]].forms;
    set_lengths(spec, value[AXIS_LENGTHS]);
    if (spec->attn_type == ATTN_TYPE_ENCODER_ONLY) {
        spec->kv_layout = NULL;
        spec->flags &= ~(uint32_t)ATTN_FORWARD_SAVE_KV;
    }
    if (value[AXIS_PADDING])
        spec->padded = spec->num_sequences + 2;
    if (case_spec_defect(spec) || !set_choice(spec, value))
        return false;
    return value[AXIS_LATENT] == MLA_NONE ? case_spec_defect(spec) == NULL
                                          : make_latent(spec, value);
}

/* ---- Rules ----------------------------------------------------------------------------------- */

/* One more of "RULE, RULE ...", if it is exercised. */
static void add_rule(strbuf *list, const char *rule, bool is)
{
    if (is)
        strbuf_appendf(list, "%s%s", list->length ? ", " : "", rule);
}

static void add_meanings(strbuf *list, const uint8_t *value)
{
    uint8_t mask = value[AXIS_MASK];
    bool custom = mask >= MASK_FULL && mask <= MASK_QLEN_POSITIONS;
    bool narrowed = value[AXIS_WINDOW] >= WINDOW_SELF || value[AXIS_CHUNK] != 0;
    add_rule(list, "MEAN-02", value[AXIS_MODE] == MODE_MIXED);
    add_rule(list, "MEAN-03", value[AXIS_MODE] == MODE_DECODE || value[AXIS_ROW] != 0);
    add_rule(list, "MEAN-04", value[AXIS_TYPE] != TYPE_CROSS);
    add_rule(list, "MEAN-05", mask == MASK_FULL_POSITIONS || mask == MASK_QLEN_POSITIONS);
    add_rule(list, "MEAN-06", value[AXIS_WINDOW] != WINDOW_NONE);
    add_rule(list, "MEAN-07", value[AXIS_CHUNK] != 0);
    add_rule(list, "MEAN-08", value[AXIS_TYPE] == TYPE_CROSS);
    add_rule(list, "MEAN-09",
             value[AXIS_CAP] != 0 || value[AXIS_ALIBI] != 0 || value[AXIS_SCALE] != 0);
    add_rule(list, "MEAN-10", mask == MASK_NONE || custom);
    add_rule(list, "MEAN-11", custom && narrowed);
    add_rule(list, "MEAN-12", value[AXIS_SINK] != SINK_NONE);
    add_rule(list, "MEAN-13", value[AXIS_LSE] == 0);
    add_rule(list, "MEAN-14", custom || value[AXIS_LENGTHS] == LENGTHS_EMPTY);
    add_rule(list, "MEAN-15", value[AXIS_SOURCE] == SOURCE_PREFIX);
    add_rule(list, "MEAN-16", mask == MASK_ITEMS);
    add_rule(list, "MEAN-22", value[AXIS_INPUTS] != INPUTS_PLAIN);
    add_rule(list, "MEAN-23", value[AXIS_OUT] >= OUT_E4M3);
    add_rule(list, "MEAN-17", heads[value[AXIS_HEADS]][0] != heads[value[AXIS_HEADS]][1]);
}

void grid_rules(const struct grid_point *point, char *text, size_t size)
{
    const uint8_t *value = point->value;
    strbuf list;
    uint8_t source = value[AXIS_SOURCE];
    bool cached = value[AXIS_TYPE] != TYPE_ENCODER_ONLY;
    bool saved = source == SOURCE_SAVED || source == SOURCE_SOME_SAVED || source == SOURCE_SHARED;
    strbuf_init(&list);
    add_meanings(&list, value);
    add_rule(&list, "KV-01", cached && saved);
    add_rule(&list, "KV-02", cached && source != SOURCE_SAVED);
    add_rule(&list, "KV-03", source == SOURCE_SHARED);
    add_rule(&list, "KV-04", value[AXIS_KV] != KV_AS_Q);
    add_rule(&list, "KV-06", cached);
    add_rule(&list, "KV-08", value[AXIS_FORM] != 0);
    add_rule(&list, "KV-16", cached && value[AXIS_INPUTS] >= INPUTS_Q_E4M3);
    add_rule(&list, "CAPT-04", value[AXIS_PADDING] != 0);
    snprintf(text, size, "%s", strbuf_text(&list));
    strbuf_finish(&list);
}
