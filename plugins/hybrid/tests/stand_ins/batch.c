/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.c: layer groups, batches and operands that are drawn. Nothing is computed of them, so
 * any numbers will do that tell rows, sequences and parts from each other.
 */
#include "plugins/hybrid/tests/stand_ins/stand_ins.h"

#include <stdlib.h>
#include <string.h>

enum {
    SLACK = 3, /* elements before arrays and rows that nothing is to be looked for in */
    ROWS = STAND_TOKENS + STAND_FIRST_ROW + 2,
    MOST_SPARE = 5, /* rows of no sequence */
    /* Streams of draws, two letters each: spare rows, flags of layers, types of inputs, pages. */
    SPARE = 0x5350,
    READ_ONLY = 0x524f,
    INPUTS = 0x494e,
    SHARED_NEW = 0x534e,
    PAGE = 0x5047,
    TABLE_STRIDE = STAND_LONG + 5,
    PAGES = STAND_SEQS * STAND_LONG,
    MASK_BYTES = STAND_SEQS * (STAND_Q_LEN * STAND_LONG / 8 + 8),
    ITEM_STRIDE = STAND_LONG + 2,
    CHOSEN = 3
};

struct stand_kv_arrays {
    int64_t out_cache_loc[2 * ROWS];
    int32_t kv_lens[STAND_SEQS];
    int32_t kv_new_indptr[STAND_SEQS + 1];
    int32_t req_to_token[(STAND_SEQS + 2) * TABLE_STRIDE];
    int32_t block_table[STAND_SEQS * TABLE_STRIDE];
    int32_t kv_indptr[STAND_SEQS + 1];
    int32_t kv_indices[SLACK + PAGES];
    int32_t last_page_len[STAND_SEQS];
};

/* Arrays of a batch; there are two copies, the host's and the device's. */
struct stand_arrays {
    int32_t seq_lens[STAND_SEQS], prefix_lens[STAND_SEQS], q_indptr[STAND_SEQS + 1];
    int32_t requests[STAND_SEQS], positions[ROWS];
    struct stand_kv_arrays kv[STAND_GROUPS];
    int64_t mask_indptr[STAND_SEQS + 1];
    int32_t item_prefix[STAND_SEQS], item_len[STAND_SEQS];
    struct {
        int32_t slot[STAND_SEQS], dst_slot[STAND_SEQS], has_initial[STAND_SEQS], snapshots[ROWS];
    } state[STAND_GROUPS];
    int32_t shared_indptr[STAND_SEQS + 1], shared_len[STAND_SEQS];
    int32_t num_real[2];
    uint16_t token_pos[STAND_SEQS * ITEM_STRIDE];
    uint8_t mask_bits[MASK_BYTES];
};

/* ---- Layer groups ---------------------------------------------------------------------------- */

static void draw_group(struct stand_scene *scene, int32_t g, uint32_t kind)
{
    struct draw *draw = &scene->draw;
    attn_layer_group *group = &scene->groups[g];
    bool decoder =
        kind != ATTN_KIND_SOFTMAX || scene->measured || scene->reading || draw_below(draw, 4) > 0;
    uint32_t type = decoder ? ATTN_TYPE_DECODER : 1 + (uint32_t)draw_coin(draw);
    bool no_cache = kind == ATTN_KIND_LINEAR || type == ATTN_TYPE_ENCODER_ONLY;
    *group = (attn_layer_group){.struct_size = sizeof *group,
                                .kind = kind,
                                .attn_type = type,
                                .kv_group = no_cache ? -1 : g,
                                .state_group = kind == ATTN_KIND_LINEAR ? g : -1,
                                .num_q_heads = 2,
                                .num_kv_heads = 1,
                                .head_dim = 8 * (1 + draw_below(draw, 3)),
                                .v_head_dim = 8,
                                .window_left = -1,
                                .sm_scale = 1,
                                .layers = scene->group_layers[g],
                                .mla = kind == ATTN_KIND_MLA ? &scene->mla : NULL,
                                .linear = kind == ATTN_KIND_LINEAR ? &scene->linear : NULL,
                                .sparse = kind == ATTN_KIND_SPARSE ? &scene->sparse : NULL};
}

static bool has_kind(const struct stand_scene *scene, uint32_t kind)
{
    bool found = false;
    for (int32_t g = 0; g < scene->num_groups; g++)
        found |= scene->groups[g].kind == kind;
    return found;
}

/* One layer in three, except where children compute. */
static bool reads_other(const struct stand_scene *scene, int32_t layer)
{
    uint64_t word = mix_stream(mix_absorb(scene->draw.seed, READ_ONLY), (uint64_t)layer);
    return !scene->measured && mix_below((uint32_t)(word >> 32), 3) == 0;
}

/* A group says its layers in any order. */
static void turn_round(attn_layer_group *group, attn_layer layers[STAND_LAYERS])
{
    for (uint32_t n = 0; n < group->num_layers / 2; n++) {
        attn_layer *last = &layers[group->num_layers - 1 - n], kept = layers[n];
        layers[n] = *last;
        *last = kept;
    }
}

/* Ids are interleaved among groups; every other time some are left out. */
static void draw_layers(struct stand_scene *scene)
{
    int32_t id = draw_below(&scene->draw, 3);
    bool gaps = draw_coin(&scene->draw);
    scene->num_layers = scene->num_groups + draw_below(&scene->draw, 4);
    for (int32_t l = 0; l < scene->num_layers; l++) {
        int32_t g = l < scene->num_groups ? l : draw_below(&scene->draw, scene->num_groups);
        attn_layer_group *group = &scene->groups[g];
        scene->group_layers[g][group->num_layers++] =
            (attn_layer){.struct_size = sizeof(attn_layer),
                         .layer_id = id,
                         .kv_buffer = l,
                         .flags = reads_other(scene, l) ? ATTN_LAYER_KV_READ_ONLY : 0};
        scene->layers[l] = (struct stand_layer){id, g};
        id += 1 + (gaps ? draw_below(&scene->draw, 3) : 0);
    }
    for (int32_t g = 0; g < scene->num_groups; g++)
        if (draw_coin(&scene->draw))
            turn_round(&scene->groups[g], scene->group_layers[g]);
}

static void draw_bounds(struct stand_scene *scene)
{
    uint32_t modes = (uint32_t)draw_below(&scene->draw, 64) & ~ATTN_MODE_BIT(ATTN_MODE_IDLE);
    if (draw_below(&scene->draw, 4))
        modes |= ATTN_MODE_BIT(ATTN_MODE_MIXED);
    if (modes == 0 || scene->graph)
        modes |= ATTN_MODE_BIT(ATTN_MODE_DECODE);
    bool has_drafts = !scene->measured && draw_one_in(&scene->draw, 4);
    /* A layer may read what another one saves in the same batch. */
    bool shares_new = !scene->measured && mix_absorb(scene->draw.seed, SHARED_NEW) % 8 == 0;
    scene->bounds = (attn_bounds){
        .struct_size = sizeof scene->bounds,
        .modes = modes,
        .mask_kinds = ATTN_MASK_BIT(ATTN_MASK_COUNT) - 1,
        .uses = ATTN_USES_POSITIONS | ATTN_USES_MULTI_ITEM | ATTN_USES_SHARED_PREFIX |
                ATTN_USES_UNSAVED_KV | ATTN_USES_LSE | ATTN_USES_OMIT_SINK |
                ATTN_USES_DECODES_FIRST | (has_drafts ? ATTN_USES_DECODE_DRAFTS : 0u) |
                (shares_new ? ATTN_USES_SHARED_NEW_KV : 0u),
        .max_seqs = 5 + draw_below(&scene->draw, STAND_SEQS - 4),
        .max_tokens = STAND_TOKENS,
        .max_q_len = STAND_Q_LEN,
        .max_kv_len = STAND_KEYS - draw_below(&scene->draw, 9),
        .max_kv_tokens = STAND_SEQS * (STAND_KEYS + 16),
    };
}

/* At the borders of measured classes, and next to them; more heads than a sample has rows.
 */
static void draw_measured(struct stand_scene *scene)
{
    static const int32_t seqs[] = {1, 2, 4, 5, STAND_SEQS}, keys[] = {40, 512, 513, 513, 513};
    int32_t num_seqs = seqs[draw_below(&scene->draw, 5)],
            num_keys = keys[draw_below(&scene->draw, 5)];
    bool is_long = scene->large_pages || scene->at_border;
    scene->bounds.max_seqs = scene->large_pages ? 2 : scene->many_heads ? STAND_SEQS : num_seqs;
    scene->bounds.max_kv_len = is_long ? 513 : num_keys;
    scene->bounds.max_kv_tokens = STAND_SEQS * (STAND_LONG + 256);
    if (scene->many_heads)
        scene->bounds.modes |= ATTN_MODE_BIT(ATTN_MODE_EXTEND);
    for (int32_t g = 0; g < scene->num_groups; g++) /* layers that are alike are measured once */
        scene->groups[g].head_dim = 8 * (1 + 2 * scene->other + g);
    for (int32_t g = 0; g < scene->num_groups; g++)
        scene->groups[g].num_q_heads = scene->many_heads ? 16 : 1 << draw_below(&scene->draw, 5);
}

/* Pages of 2 MiB. */
static void make_large_pages(struct stand_scene *scene, int32_t g)
{
    scene->groups[g].num_q_heads = scene->groups[g].num_kv_heads = 8;
    scene->groups[g].head_dim = scene->groups[g].v_head_dim = 256;
    scene->problems[g].page_size = 256;
}

/* One page in three has a size that is no power of two. */
static int32_t draw_page_size(struct stand_scene *scene, int32_t g)
{
    static const int32_t odd[] = {3, 5, 6, 12};
    int32_t even = 1 << draw_below(&scene->draw, 4);
    uint64_t word = mix_stream(mix_absorb(scene->draw.seed, PAGE), (uint64_t)g);
    return mix_below((uint32_t)(word >> 32), 3) == 0 ? odd[word & 3] : even;
}

/* Every other softmax layer has a quantised q, with scales of its own granularity, and where the
 * cache is quantised new k and v that are so too. */
static void draw_inputs(struct stand_scene *scene, int32_t g, attn_problem *problem)
{
    static const uint32_t granularities[] = {ATTN_SCALE_PER_TENSOR, ATTN_SCALE_PER_HEAD,
                                             ATTN_SCALE_PER_SEQ_HEAD, ATTN_SCALE_PER_SEQ_HEAD};
    uint64_t word = mix_stream(mix_absorb(scene->draw.seed, INPUTS), (uint64_t)g);
    attn_layer_group *group = &scene->groups[g];
    if (scene->measured || group->kind != ATTN_KIND_SOFTMAX || word >> 63)
        return;
    group->input_scale_granularity = granularities[word & 3];
    problem->q_dtype = ATTN_FP8_E4M3;
    problem->new_kv_dtype =
        problem->kv_dtype == ATTN_FP8_E4M3 && word >> 62 & 1 ? ATTN_FP8_E4M3 : ATTN_BF16;
}

/* What is promised of where operands lie: mostly nothing, which parts of a batch keep as well. */
static void draw_promise(const struct stand_scene *scene, attn_problem *problem)
{
    static const uint32_t alignments[] = {0, 0, 0, 0, 0, 64, 128, 256};
    uint64_t drawn = mix_stream(mix_absorb(scene->draw.seed, ATTN_FIELD_MIN_ALIGNMENT), 0);
    problem->min_alignment = alignments[drawn >> 61];
    /* Batches that are not split are measured as those of EXTEND. */
    if (scene->measured && !(scene->bounds.modes & ATTN_MODE_BIT(ATTN_MODE_EXTEND)))
        problem->min_alignment = 0;
    problem->kv_strides = drawn >> 60 & 1 ? ATTN_KV_STRIDES_EQUAL : ATTN_KV_STRIDES_ANY;
}

/* Have MIXED and what it would be split into more than one form of latents? */
static bool has_forms_apart(const attn_bounds *bounds, uint32_t expanded)
{
    uint32_t involved =
        bounds->modes & (ATTN_MODE_BIT(ATTN_MODE_EXTEND) | ATTN_MODE_BIT(ATTN_MODE_DECODE) |
                         ATTN_MODE_BIT(ATTN_MODE_MIXED));
    return (expanded & involved) != 0 && (expanded & involved) != involved;
}

void stand_draw_question(struct stand_scene *scene)
{
    struct draw *draw = &scene->draw;
    bool plain = scene->measured || scene->reading;
    bool is_rounded = draw_below(draw, scene->reading ? 2 : 3) == 0;
    bool by_sequence = is_rounded && draw_coin(draw);
    uint32_t expanded = draw_coin(draw)   ? 0
                        : draw_coin(draw) ? 0x3f
                                          : (uint32_t)draw_below(draw, 0x40);
    scene->mla = (attn_mla_dims){
        .struct_size = sizeof scene->mla, .kv_lora_rank = 16, .rope_dim = 8, .nope_dim = 8};
    scene->linear = (attn_linear_dims){.struct_size = sizeof scene->linear,
                                       .num_k_heads = 1,
                                       .num_v_heads = 2,
                                       .head_k_dim = 8,
                                       .head_v_dim = 8,
                                       .conv_width = 3,
                                       .state_dtype = ATTN_F32,
                                       .conv_dtype = ATTN_F32};
    scene->sparse =
        (attn_sparse_dims){.struct_size = sizeof scene->sparse, .top_k = CHOSEN, .block_size = 1};
    scene->num_groups = scene->reading || scene->large_pages ? 1
                        : scene->measured                    ? 1 + draw_coin(draw)
                                                             : 1 + draw_below(draw, STAND_GROUPS);
    for (int32_t g = 0; g < scene->num_groups; g++) {
        static const uint32_t kinds[] = {ATTN_KIND_SOFTMAX, ATTN_KIND_SOFTMAX, ATTN_KIND_SOFTMAX,
                                         ATTN_KIND_SOFTMAX, ATTN_KIND_SOFTMAX, ATTN_KIND_LINEAR,
                                         ATTN_KIND_LINEAR,  ATTN_KIND_LINEAR,  ATTN_KIND_MLA,
                                         ATTN_KIND_MLA,     ATTN_KIND_MLA,     ATTN_KIND_SPARSE};
        draw_group(scene, g, plain ? 0 : kinds[draw_below(draw, sizeof kinds / sizeof kinds[0])]);
    }
    draw_layers(scene);
    draw_bounds(scene);
    if (scene->measured)
        draw_measured(scene);
    /* Groups of which one keeps MIXED whole are left to other checks: a question is about one. */
    if (scene->num_groups > 1 &&
        (has_kind(scene, ATTN_KIND_SPARSE) ||
         (has_kind(scene, ATTN_KIND_MLA) && has_forms_apart(&scene->bounds, expanded))))
        scene->bounds.modes &= ~ATTN_MODE_BIT(ATTN_MODE_MIXED);
    if (scene->bounds.modes == 0)
        scene->bounds.modes = ATTN_MODE_BIT(ATTN_MODE_DECODE);
    for (int32_t g = 0; g < scene->num_groups; g++) {
        attn_layer_group *group = &scene->groups[g];
        bool cached = group->kv_group >= 0, linear = group->kind == ATTN_KIND_LINEAR;
        bool rounded = is_rounded && cached && group->kind == ATTN_KIND_SOFTMAX;
        group->kv_scale_granularity = !rounded      ? ATTN_SCALE_NONE
                                      : by_sequence ? ATTN_SCALE_PER_SEQ_HEAD
                                                    : ATTN_SCALE_PER_TENSOR;
        scene->problems[g] = (attn_problem){
            .struct_size = sizeof scene->problems[g],
            .device = &scene->run->subject->cpu->info,
            .group = group,
            .bounds = &scene->bounds,
            .kv_layout = !cached                        ? NULL
                         : group->kind == ATTN_KIND_MLA ? ATTN_LAYOUT_MLA_LATENT
                                                        : ATTN_LAYOUT_KV_NHD,
            .state_layout = linear ? ATTN_LAYOUT_STATE_SSM_KV : NULL,
            .q_dtype = ATTN_BF16,
            .kv_dtype = rounded ? ATTN_FP8_E4M3 : ATTN_BF16,
            .out_dtype = ATTN_BF16,
            .page_size = cached ? draw_page_size(scene, g) : 0,
            .mla_expanded = group->kind == ATTN_KIND_MLA ? expanded & scene->bounds.modes : 0,
            .tp_size = 1,
        };
        draw_promise(scene, &scene->problems[g]);
        draw_inputs(scene, g, &scene->problems[g]);
        if (scene->large_pages)
            make_large_pages(scene, g);
    }
}

/* ---- Sequences ------------------------------------------------------------------------------- */

/* Rows of no sequence, which come last. */
static int32_t draw_spare(const struct stand_scene *scene, const attn_batch *batch)
{
    uint64_t word = mix_stream(mix_absorb(scene->draw.seed, SPARE), scene->draw.next);
    int32_t room = scene->given.max_tokens - batch->num_tokens;
    int32_t spare = word & 1 ? 1 + (int32_t)mix_below((uint32_t)(word >> 32), MOST_SPARE) : 0;
    if (batch->mode == ATTN_MODE_DECODE || scene->measured)
        return 0;
    return spare < room ? spare : room;
}

/* Where queries of a sequence begin and end, by mode; the last `decode` have one. */
static void draw_sequences(struct stand_scene *scene, attn_batch *batch, struct stand_arrays *a)
{
    struct draw *draw = &scene->draw;
    int32_t uniform = 1 + draw_below(draw, 4), limit = scene->given.max_kv_len;
    bool is_draft = batch->mode == ATTN_MODE_TARGET_VERIFY || batch->mode == ATTN_MODE_DRAFT_EXTEND;
    a->q_indptr[0] = batch->mode == ATTN_MODE_DECODE ? 0 : draw_below(draw, STAND_FIRST_ROW + 1);
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        bool decode = batch->mode == ATTN_MODE_DECODE || attn_is_decode_seq(batch, s);
        bool padding = s >= batch->num_real_seqs;
        int32_t queries = padding || batch->mode == ATTN_MODE_DECODE ? 1
                          : decode                                   ? batch->decode_q_len
                          : is_draft                                 ? uniform
                                     : draw_below(draw, STAND_Q_LEN);
        int32_t prefix = padding ? 0
                         : draw_one_in(draw, scene->measured ? 3 : 6)
                             ? limit - queries
                             : draw_below(draw, limit - STAND_Q_LEN);
        a->prefix_lens[s] = prefix;
        a->seq_lens[s] = prefix + queries;
        a->q_indptr[s + 1] = a->q_indptr[s] + queries;
        a->requests[s] = padding ? 0 : 1 + (s * 7 + 3) % (STAND_SEQS + 1);
        batch->max_q_len = queries > batch->max_q_len ? queries : batch->max_q_len;
    }
    batch->num_tokens = a->q_indptr[batch->num_seqs] - a->q_indptr[0];
    batch->num_tokens += draw_spare(scene, batch);
    batch->num_real_tokens = a->q_indptr[batch->num_real_seqs] - a->q_indptr[0];
    for (int32_t r = 0; r < ROWS; r++)
        a->positions[r] = 1000 + draw_below(draw, 1000);
}

static void draw_counts(struct stand_scene *scene, attn_batch *batch)
{
    struct draw *draw = &scene->draw;
    int32_t padding;
    batch->num_seqs = 1 + draw_below(draw, scene->given.max_seqs);
    if (batch->mode == ATTN_MODE_MIXED) /* now and then all of them, or none */
        batch->num_decode_seqs = draw_below(draw, batch->num_seqs + 1);
    padding = draw_below(draw, 3) ? 0 : draw_below(draw, batch->num_seqs);
    if (batch->num_decode_seqs > 0 && padding > batch->num_decode_seqs)
        padding = batch->num_decode_seqs;
    batch->num_real_seqs = batch->num_seqs - padding;
    if (batch->mode != ATTN_MODE_MIXED)
        return;
    batch->decode_q_len = scene->given.uses & ATTN_USES_DECODE_DRAFTS ? 1 + draw_below(draw, 4) : 1;
    scene->decode_q_len = batch->decode_q_len;
    batch->first_decode_seq = draw_below(draw, 2) ? 0 : batch->num_seqs - batch->num_decode_seqs;
}

/* ---- Keys ------------------------------------------------------------------------------------ */

/* One slot for each position, in pages that are no sequence's twice. */
static void draw_slots(struct stand_scene *scene, const attn_batch *batch, int32_t g,
                       const struct stand_arrays *a, struct stand_kv_arrays *kv)
{
    int32_t size = scene->problems[g].page_size, at = SLACK, shift = draw_below(&scene->draw, 50);
    size = size ? size : 1;
    kv->kv_indptr[0] = at;
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        int32_t pages = (kv->kv_lens[s] + size - 1) / size;
        for (int32_t p = 0; p < pages; p++) {
            int32_t page = 1 + ((s * STAND_LONG + p) * 17 + shift) % (PAGES * 4);
            kv->block_table[s * TABLE_STRIDE + p] = kv->kv_indices[at++] = page;
            for (int32_t i = 0; i < size && p * size + i < TABLE_STRIDE; i++)
                if (a->requests[s])
                    kv->req_to_token[a->requests[s] * TABLE_STRIDE + p * size + i] =
                        page * size + i;
        }
        if (a->requests[s] == 0 && pages) /* row 0 is zero */
            memset(&kv->block_table[s * TABLE_STRIDE], 0, sizeof(int32_t) * (size_t)pages),
                memset(&kv->kv_indices[at - pages], 0, sizeof(int32_t) * (size_t)pages);
        kv->kv_indptr[s + 1] = at;
        kv->last_page_len[s] = pages ? kv->kv_lens[s] - (pages - 1) * size : 0;
    }
}

/* Own lengths and own new rows, where the group has some. */
static void draw_keys(struct stand_scene *scene, const attn_batch *batch, int32_t g, bool own_lens,
                      bool own_rows, const struct stand_arrays *a, struct stand_kv_arrays *kv)
{
    struct draw *draw = &scene->draw;
    kv->kv_new_indptr[0] = draw_below(draw, 3);
    for (int32_t s = 0; s < batch->num_seqs; s++) {
        int32_t len = a->seq_lens[s], most;
        if (own_lens && s < batch->num_real_seqs)
            len = 1 + draw_below(draw, scene->given.max_kv_len);
        kv->kv_lens[s] = len;
        most = len < 3 ? len : 3;
        kv->kv_new_indptr[s + 1] =
            kv->kv_new_indptr[s] + (own_rows ? draw_below(draw, most + 1) : 0);
    }
    for (int32_t r = 0; r < 2 * ROWS; r++)
        kv->out_cache_loc[r] = draw_below(draw, 8) ? 10000 * (g + 1) + r : -1;
    for (int32_t i = 0; i < SLACK + PAGES; i++)
        kv->kv_indices[i] = 1000000 + i;
    for (int32_t i = 0; i < STAND_SEQS * TABLE_STRIDE; i++)
        kv->block_table[i] = 2000000 + i;
    draw_slots(scene, batch, g, a, kv);
}

/* ---- Pointers -------------------------------------------------------------------------------- */

/* An array as the batch has it: the host's copy is not always given. */
#define BOTH(made, member, with_host)                                                              \
    {                                                                                              \
        .host = (with_host) ? (made)->host->member : NULL, .device = (made)->device->member        \
    }

static void point_kv(struct stand_scene *scene, struct stand_batch *made, uint32_t forms,
                     const bool own_lens[], const bool own_rows[])
{
    struct draw *draw = &scene->draw;
    for (int32_t g = 0; g < scene->num_groups; g++) {
        bool host = draw_coin(draw);
        attn_kv_batch *kv = &made->kv[g];
        int32_t page_size = scene->problems[g].page_size;
        *kv = (attn_kv_batch){
            .struct_size = sizeof *kv,
            .index_forms = forms,
            .page_size = page_size ? page_size : 1,
            .req_to_token_stride = TABLE_STRIDE,
            .block_table_stride = TABLE_STRIDE,
            .out_cache_loc = BOTH(made, kv[g].out_cache_loc, host),
        };
        if (own_lens[g])
            kv->kv_lens = (attn_i32_array)BOTH(made, kv[g].kv_lens, draw_coin(draw));
        if (own_rows[g])
            kv->kv_new_indptr = (attn_i32_array)BOTH(made, kv[g].kv_new_indptr, host);
        if (forms & ATTN_INDEX_REQ_TO_TOKEN)
            kv->req_to_token = (attn_i32_array)BOTH(made, kv[g].req_to_token, host);
        if (forms & ATTN_INDEX_BLOCK_TABLE)
            kv->block_table = (attn_i32_array)BOTH(made, kv[g].block_table, draw_coin(draw));
        if (forms & ATTN_INDEX_CSR) {
            kv->kv_indptr = (attn_i32_array)BOTH(made, kv[g].kv_indptr, draw_coin(draw));
            kv->kv_indices = (attn_i32_array)BOTH(made, kv[g].kv_indices, host);
            kv->last_page_len = (attn_i32_array)BOTH(made, kv[g].last_page_len, host);
        }
    }
    made->batch.kv_groups = made->kv;
    made->batch.num_kv_groups = (uint32_t)scene->num_groups;
}

/* ---- Parts ----------------------------------------------------------------------------------- */

static void draw_mask(struct stand_scene *scene, struct stand_batch *made, bool own_lens)
{
    struct draw *draw = &scene->draw;
    struct stand_arrays *a = made->host;
    uint32_t kind = own_lens ? ATTN_MASK_QLEN : ATTN_MASK_FULL + (uint32_t)draw_coin(draw);
    int64_t at = draw_below(draw, 3);
    for (int32_t s = 0; s < made->batch.num_seqs; s++) {
        int64_t rows = a->q_indptr[s + 1] - a->q_indptr[s];
        int64_t columns = kind == ATTN_MASK_FULL ? a->seq_lens[s] : rows;
        a->mask_indptr[s] = at;
        at += (rows * columns + 7) / 8 + draw_below(draw, 2);
    }
    a->mask_indptr[made->batch.num_seqs] = at;
    for (int32_t b = 0; b < MASK_BYTES; b++)
        a->mask_bits[b] = (uint8_t)draw_below(draw, 256);
    made->mask = (attn_mask){.struct_size = sizeof made->mask,
                             .kind = kind,
                             .bits = made->device->mask_bits,
                             .indptr = BOTH(made, mask_indptr, draw_coin(draw))};
    made->batch.mask = &made->mask;
    if (draw_coin(draw))
        made->batch.positions = (attn_i32_array)BOTH(made, positions, draw_coin(draw));
}

static void draw_items(struct stand_scene *scene, struct stand_batch *made)
{
    struct stand_arrays *a = made->host;
    for (int32_t s = 0; s < made->batch.num_seqs; s++) {
        a->item_prefix[s] = draw_below(&scene->draw, a->prefix_lens[s] + 1);
        a->item_len[s] = 1 + draw_below(&scene->draw, 5);
    }
    for (int32_t i = 0; i < STAND_SEQS * ITEM_STRIDE; i++)
        a->token_pos[i] = (uint16_t)draw_below(&scene->draw, 1000);
    made->items = (attn_multi_item){.struct_size = sizeof made->items,
                                    .token_pos_stride = ITEM_STRIDE,
                                    .prefix_lens = BOTH(made, item_prefix, true),
                                    .token_pos = made->device->token_pos,
                                    .max_item_len = BOTH(made, item_len, draw_coin(&scene->draw))};
    made->batch.multi_item = &made->items;
}

static void draw_state(struct stand_scene *scene, struct stand_batch *made, int32_t g)
{
    struct draw *draw = &scene->draw;
    struct stand_arrays *a = made->host;
    attn_state_batch *state = &made->states[g];
    for (int32_t s = 0; s < made->batch.num_seqs; s++) {
        a->state[g].slot[s] = 1000 * g + 10 + s;
        a->state[g].dst_slot[s] = 1000 * g + 40 + s * 2;
        a->state[g].has_initial[s] = draw_coin(draw);
    }
    for (int32_t r = 0; r < ROWS; r++)
        a->state[g].snapshots[r] = draw_coin(draw) ? 1000 * g + 100 + r : -1;
    *state = (attn_state_batch){.struct_size = sizeof *state,
                                .slot = BOTH(made, state[g].slot, draw_coin(draw))};
    if (draw_coin(draw))
        state->dst_slot = (attn_i32_array)BOTH(made, state[g].dst_slot, draw_coin(draw));
    if (draw_coin(draw))
        state->has_initial = (attn_i32_array)BOTH(made, state[g].has_initial, draw_coin(draw));
    if (draw_coin(draw))
        state->snapshots = (attn_i32_array)BOTH(made, state[g].snapshots, draw_coin(draw));
}

static void draw_states(struct stand_scene *scene, struct stand_batch *made)
{
    for (int32_t g = 0; g < scene->num_groups; g++)
        draw_state(scene, made, g);
    made->batch.state_groups = made->states;
    made->batch.num_state_groups = (uint32_t)scene->num_groups;
}

static void draw_sparse(struct stand_scene *scene, struct stand_batch *made)
{
    made->sparse = (attn_sparse_batch){.struct_size = sizeof made->sparse,
                                       .max_count = 1 + draw_below(&scene->draw, CHOSEN)};
    made->batch.sparse = &made->sparse;
}

/* A hint about runs of sequences. The keys are not made equal: no child computes. */
static void draw_shared(struct stand_scene *scene, struct stand_batch *made)
{
    struct stand_arrays *a = made->host;
    int32_t end = made->batch.num_seqs, first = draw_below(&scene->draw, end);
    a->shared_indptr[0] = 0;
    a->shared_indptr[1] = first;
    a->shared_indptr[2] = end;
    made->shared = (attn_shared_prefix){.struct_size = sizeof made->shared,
                                        .num_groups = 2,
                                        .seq_indptr = BOTH(made, shared_indptr, true),
                                        .prefix_len = BOTH(made, shared_len, true)};
    made->batch.shared_prefix = &made->shared;
    made->batch.num_prefix_levels = 1;
}

static void draw_parts(struct stand_scene *scene, struct stand_batch *made, bool own_lens)
{
    struct draw *draw = &scene->draw;
    int32_t part = draw_below(draw, 5);
    if (part == 0)
        draw_items(scene, made);
    else if (part < 3)
        draw_mask(scene, made, own_lens);
    if (draw_below(draw, 3) == 0)
        draw_shared(scene, made);
    if (made->batch.mode == ATTN_MODE_TARGET_VERIFY) {
        made->spec = (attn_speculation){.struct_size = sizeof made->spec,
                                        .num_draft_tokens = made->batch.max_q_len,
                                        .top_k = 1 + draw_below(draw, 3)};
        made->batch.speculation = &made->spec;
    }
    if (has_kind(scene, ATTN_KIND_LINEAR))
        draw_states(scene, made);
    if (has_kind(scene, ATTN_KIND_SPARSE))
        draw_sparse(scene, made);
    made->host->num_real[0] = made->batch.num_real_seqs;
    made->host->num_real[1] = made->batch.num_real_tokens;
    if (scene->graph) {
        made->batch.num_real_seqs_device = &made->device->num_real[0];
        made->batch.num_real_tokens_device = &made->device->num_real[1];
    }
}

/* ---- A batch --------------------------------------------------------------------------------- */

static void set_max_kv_len(struct stand_scene *scene, struct stand_batch *made)
{
    for (int32_t g = 0; g < scene->num_groups; g++)
        for (int32_t s = 0; s < made->batch.num_seqs; s++)
            if (made->host->kv[g].kv_lens[s] > made->batch.max_kv_len)
                made->batch.max_kv_len = made->host->kv[g].kv_lens[s];
}

bool stand_draw_batch(struct stand_scene *scene, uint32_t mode, uint32_t forms,
                      struct stand_batch *made)
{
    struct draw *draw = &scene->draw;
    bool own_lens[STAND_GROUPS], own_rows[STAND_GROUPS], any = false;
    memset(made, 0, sizeof *made);
    made->host = calloc(1, sizeof *made->host);
    made->device = calloc(1, sizeof *made->device);
    if (!made->host || !made->device) {
        stand_free_batch(made);
        return false;
    }
    made->batch = (attn_batch){.struct_size = sizeof made->batch, .mode = mode};
    draw_counts(scene, &made->batch);
    draw_sequences(scene, &made->batch, made->host);
    for (int32_t g = 0; g < scene->num_groups; g++) {
        bool cross = scene->groups[g].attn_type == ATTN_TYPE_CROSS;
        own_lens[g] = cross || draw_below(draw, 4) == 0;
        own_rows[g] = cross || draw_below(draw, 4) == 0;
        any |= own_lens[g];
        draw_keys(scene, &made->batch, g, own_lens[g], own_rows[g], made->host, &made->host->kv[g]);
    }
    set_max_kv_len(scene, made);
    point_kv(scene, made, forms, own_lens, own_rows);
    draw_parts(scene, made, any);
    bool with_host = draw_coin(draw);
    made->batch.seq_lens = (attn_i32_array)BOTH(made, seq_lens, with_host);
    made->batch.prefix_lens = (attn_i32_array)BOTH(made, prefix_lens, with_host);
    made->batch.q_indptr = (attn_i32_array)BOTH(made, q_indptr, true);
    made->batch.req_pool_indices = (attn_i32_array)BOTH(made, requests, draw_coin(draw));
    memcpy(made->device, made->host, sizeof *made->device);
    return true;
}

void stand_free_batch(struct stand_batch *batch)
{
    free(batch->host);
    free(batch->device);
    batch->host = batch->device = NULL;
}

/* ---- Operands -------------------------------------------------------------------------------- */

/* Elements in multiples of which rows lie apart, so that they are as aligned as is promised. */
static int64_t unit_of(const attn_problem *problem, int64_t width, uint32_t size)
{
    uint64_t row = (uint64_t)width * size, unit = row & (~row + 1);
    if (unit > problem->min_alignment)
        unit = problem->min_alignment;
    return unit > size ? (int64_t)unit / size : 1;
}

/* A tensor of `rows` rows, somewhere on the heap: rows lie apart, its alignment is true, and as
 * much as is promised. */
static void draw_tensor(struct stand_scene *scene, uint32_t role, int64_t rows,
                        struct stand_args *args)
{
    struct draw *draw = &scene->draw;
    attn_tensor *tensor = &args->tensors[role];
    const attn_problem *problem = &scene->problems[0]; /* all promise the same */
    const attn_dtype dtype = role == ATTN_ROLE_LSE ? ATTN_F32 : ATTN_BF16;
    uint64_t at = (uint64_t)role * (STAND_HEAP / ATTN_ROLE_COUNT / 256 * 256);
    int64_t width = 8 + draw_below(draw, 2), gap = draw_below(draw, 3);
    uint32_t alignment = 1u << draw_below(draw, 7);
    gap *= unit_of(problem, width, attn_dtype_size(dtype));
    *tensor = (attn_tensor){
        .struct_size = sizeof *tensor,
        .data = scene->heap,
        .byte_offset = at + problem->min_alignment,
        .device_type = ATTN_DEVICE_CPU,
        .dtype = dtype,
        .ndim = 3,
        .alignment = alignment > problem->min_alignment ? alignment : problem->min_alignment,
        .shape = {rows, 2, width},
        .strides = {2 * width + gap, width, 1}};
    args->operands[role] = tensor;
}

/* What a role's scales are by; NONE = it has none. */
static uint32_t granularity_of(const attn_problem *problem, uint32_t role)
{
    const attn_layer_group *group = problem->group;
    if (role == ATTN_ROLE_K_CACHE || role == ATTN_ROLE_V_CACHE)
        return group->kv_scale_granularity;
    attn_dtype dtype = role == ATTN_ROLE_Q ? problem->q_dtype : attn_new_kv_dtype(problem);
    return dtype == ATTN_FP8_E4M3 ? group->input_scale_granularity : ATTN_SCALE_NONE;
}

static void draw_scales(struct stand_scene *scene, const attn_problem *problem,
                        const attn_batch *batch, struct stand_args *args)
{
    static const uint32_t roles[STAND_SCALED] = {ATTN_ROLE_K_CACHE, ATTN_ROLE_V_CACHE, ATTN_ROLE_Q,
                                                 ATTN_ROLE_K, ATTN_ROLE_V};
    static const float values[STAND_SCALED][STAND_SEQS] = {{0}}; /* no child computes */
    for (int i = 0; i < STAND_SCALED; i++) {
        uint32_t granularity = granularity_of(problem, roles[i]);
        bool by_sequence = granularity == ATTN_SCALE_PER_SEQ_HEAD;
        if (granularity == ATTN_SCALE_NONE)
            continue;
        args->scale[i] = (attn_scale){.struct_size = sizeof args->scale[i],
                                      .granularity = granularity,
                                      .count = by_sequence ? (uint32_t)batch->num_seqs : 1,
                                      .host = i > 1 || draw_coin(&scene->draw) ? values[i] : NULL,
                                      .device = values[i]};
        args->scales[roles[i]] = &args->scale[i];
    }
    args->args.scales = args->scales;
    args->args.num_scales = ATTN_ROLE_COUNT;
}

static void lay_values_as_keys(struct stand_args *args)
{
    const attn_tensor *k = &args->tensors[ATTN_ROLE_K_CACHE];
    attn_tensor *v = &args->tensors[ATTN_ROLE_V_CACHE];
    if (!args->operands[ATTN_ROLE_K_CACHE] || !args->operands[ATTN_ROLE_V_CACHE])
        return;
    memcpy(v->shape, k->shape, sizeof v->shape);
    memcpy(v->strides, k->strides, sizeof v->strides);
}

/* Roles that a layer's calls have. */
static uint32_t roles_of(struct stand_scene *scene, const attn_layer_group *group)
{
#define ROLE(name) (1u << ATTN_ROLE_##name)
    const uint32_t softmax = ROLE(Q) | ROLE(K) | ROLE(V) | ROLE(LSE) | ROLE(K_CACHE) |
                             ROLE(V_CACHE) | ROLE(SINKS) | ROLE(ALIBI_SLOPES);
    const uint32_t latent = ROLE(Q) | ROLE(Q_NOPE) | ROLE(Q_PE) | ROLE(K) | ROLE(V) | ROLE(C_KV) |
                            ROLE(K_PE) | ROLE(LSE) | ROLE(LATENT_CACHE);
    const uint32_t linear = ROLE(MIXED_QKV) | ROLE(GATE_A) | ROLE(GATE_B) | ROLE(GATE_Z) |
                            ROLE(A_LOG) | ROLE(DT_BIAS) | ROLE(D_SKIP) | ROLE(CONV_WEIGHT) |
                            ROLE(CONV_BIAS) | ROLE(STATE) | ROLE(CONV_STATE);
    const uint32_t sparse = softmax | ROLE(LABEL_CACHE) | ROLE(SPARSE_INDICES) |
                            ROLE(SPARSE_COUNT) | ROLE(INDEX_Q) | ROLE(INDEX_WEIGHTS) |
                            ROLE(INDEX_K) | ROLE(INDEX_LOGITS);
    uint32_t all = group->kind == ATTN_KIND_MLA      ? latent
                   : group->kind == ATTN_KIND_LINEAR ? linear
                   : group->kind == ATTN_KIND_SPARSE ? sparse
                                                     : softmax;
    uint32_t left_out =
        draw_coin(&scene->draw) ? 0 : (uint32_t)mix_stream(scene->draw.seed, scene->draw.next++);
    return (all & ~left_out) | ROLE(OUT);
#undef ROLE
}

void stand_draw_args(struct stand_scene *scene, const struct stand_batch *batch, int32_t layer,
                     struct stand_args *args)
{
    const attn_layer_group *group = &scene->groups[scene->layers[layer].group];
    const struct stand_arrays *a = batch->host;
    const uint32_t new_keys =
        1u << ATTN_ROLE_K | 1u << ATTN_ROLE_V | 1u << ATTN_ROLE_C_KV | 1u << ATTN_ROLE_K_PE;
    uint32_t roles = roles_of(scene, group);
    int64_t rows = a->q_indptr[0] + batch->batch.num_tokens + 1, new_rows = rows;
    memset(args, 0, sizeof *args);
    if (group->kv_group >= 0 && batch->kv[group->kv_group].kv_new_indptr.device)
        new_rows = a->kv[group->kv_group].kv_new_indptr[batch->batch.num_seqs];
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if (roles >> role & 1u)
            draw_tensor(scene, role, new_keys >> role & 1u ? new_rows : rows, args);
    if (scene->problems[0].kv_strides == ATTN_KV_STRIDES_EQUAL)
        lay_values_as_keys(args);
    args->args = (attn_forward_args){.struct_size = sizeof args->args,
                                     .flags = (uint32_t)draw_below(&scene->draw, 4),
                                     .num_operands = ATTN_ROLE_COUNT,
                                     .operands = args->operands};
    if (group->kv_scale_granularity != ATTN_SCALE_NONE ||
        group->input_scale_granularity != ATTN_SCALE_NONE)
        draw_scales(scene, &scene->problems[scene->layers[layer].group], &batch->batch, args);
}
