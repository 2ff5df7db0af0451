/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_case.c: creation, running and release of a case.
 */
#include "host/check/cases/linear_case.h"

#include "host/check/cases/operand_text.h"
#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/round.h"
#include "host/base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Specs ----------------------------------------------------------------------------------- */

static bool has_custom_mask(const struct case_spec *spec)
{
    return spec->mask_kind == ATTN_MASK_FULL || spec->mask_kind == ATTN_MASK_QLEN;
}

static const char *defect_of_numbers(const struct case_spec *spec)
{
    if (spec->num_sequences < 0 || spec->num_sequences > FORWARD_CASE_MAX_PADDED)
        return "num_sequences";
    if (spec->padded != 0 &&
        (spec->padded < spec->num_sequences || spec->padded > FORWARD_CASE_MAX_PADDED))
        return "padded";
    if (spec->num_kv_heads < 1 || spec->num_q_heads < 1 ||
        spec->num_q_heads % spec->num_kv_heads != 0 ||
        spec->num_q_heads / spec->num_kv_heads > CASE_MAX_HEADS)
        return "num_q_heads";
    if (spec->head_dim < 1 || spec->v_head_dim < 1)
        return "head_dim";
    if (spec->first_row < 0)
        return "first_row";
    for (int32_t s = 0; s < spec->num_sequences && s < FORWARD_CASE_MAX_SEQS; s++)
        if (spec->sequences[s].prefix_len < 0 || spec->sequences[s].num_new < 0 ||
            spec->sequences[s].num_new_keys < 0)
            return "sequences";
    if (spec->spare < 0 || (spec->spare > 0 && spec->mode == ATTN_MODE_DECODE))
        return "spare";
    return NULL;
}

static const char *defect_of_encoder(const struct case_spec *spec)
{
    if (spec->attn_type != ATTN_TYPE_ENCODER_ONLY)
        return spec->kv_layout && spec->page_size > 0 ? NULL : "kv_layout";
    if (spec->kv_layout || spec->from_cache || spec->read_only_layer || spec->special_values ||
        spec->spread || spec->flags & ATTN_FORWARD_SAVE_KV || spec->kv_dtype != spec->q_dtype)
        return "kv_layout";
    for (int32_t s = 0; s < spec->num_sequences && s < FORWARD_CASE_MAX_SEQS; s++)
        if (spec->sequences[s].prefix_len != 0)
            return "prefix_len";
    return NULL;
}

static const char *defect_of_cross(const struct case_spec *spec)
{
    if (spec->attn_type != ATTN_TYPE_CROSS)
        return NULL;
    if (spec->window_left != -1 || spec->window_right != -1 || spec->attention_chunk != 0 ||
        spec->alibi)
        return "window";
    return spec->mask_kind == ATTN_MASK_QLEN || spec->explicit_positions || spec->multi_item ||
                   spec->partial
               ? "mask_kind"
               : NULL;
}

/* Does a row see anything but all keys up to its own? */
static bool is_not_plain_causal(const struct case_spec *spec)
{
    return spec->mask_kind != ATTN_MASK_LAYER || spec->window_left != -1 ||
           spec->window_right != 0 || spec->attention_chunk != 0;
}

/* Blocks are those of the keys up to the row's own; a second layer would have to choose others. */
static bool has_wrong_blocks(const struct case_spec *spec)
{
    bool per_head = spec->index_kind == ATTN_SPARSE_PER_HEAD;
    return spec->index_kind >= ATTN_SPARSE_COUNT || spec->block_size < 1 || spec->read_only_layer ||
           spec->window_right != 0 || spec->chosen_head < 0 ||
           spec->chosen_head >= (per_head ? spec->num_kv_heads : 1);
}

/* Slots are those of keys that are in the cache, and no rule of the layer narrows those of a list. */
static bool chooses_wrongly(const struct case_spec *spec)
{
    const bool is_narrowed =
        spec->mask_kind != ATTN_MASK_LAYER || spec->window_left != -1 || spec->attention_chunk != 0;
    if (spec->top_k == 0)
        return case_has_indexer(spec);
    return spec->top_k < 0 || (case_has_blocks(spec) && has_wrong_blocks(spec)) ||
           spec->attn_type != ATTN_TYPE_DECODER || case_is_expanded(spec) ||
           (case_has_blocks(spec) && case_is_absorbed(spec)) ||
           (is_narrowed && case_has_lists(spec)) || spec->alibi || spec->multi_item ||
           spec->special_values || spec->spread || spec->unwritten_slots || spec->partial ||
           (!spec->from_cache && !(spec->flags & ATTN_FORWARD_SAVE_KV));
}

/* First keys of sequence s that another one of the batch brings as new ones. */
static bool shares_new(const struct case_spec *spec, int32_t s)
{
    return spec->sequences[s].shared > 0 &&
           spec->sequences[s].shared > spec->sequences[case_sharer(spec, s)].prefix_len;
}

/* New keys that are in the cache for others: all of them, as the call saves them. */
static bool shares_unsaved(const struct case_spec *spec, int32_t s)
{
    const struct case_sequence *from = &spec->sequences[case_sharer(spec, s)];
    int32_t num_new = spec->mode == ATTN_MODE_DECODE ? 1 : from->num_new;
    return shares_new(spec, s) &&
           (!(spec->flags & ATTN_FORWARD_SAVE_KV) || spec->unwritten_slots || spec->from_cache ||
            spec->fewer_keys || spec->sequences[s].shared > from->prefix_len + num_new);
}

/* What sequences have in common: whole pages. Runs of many sequences repeat with the listed ones, and are in the cache. */
static bool shares_wrongly(const struct case_spec *spec)
{
    const bool repeats = spec->num_sequences > FORWARD_CASE_MAX_SEQS;
    const int32_t listed = repeats ? FORWARD_CASE_REPEATED : spec->num_sequences;
    for (int32_t s = 0; s < listed; s++) {
        int32_t shared = spec->sequences[s].shared, from = case_sharer(spec, s);
        if (shared == 0)
            continue;
        if (from < 0 || from >= listed || shared < 0 || (repeats && shares_new(spec, s)) ||
            shared % spec->page_size != 0 || shared > spec->sequences[s].prefix_len ||
            shares_unsaved(spec, s) || spec->attn_type != ATTN_TYPE_DECODER ||
            case_is_expanded(spec) || spec->special_values || spec->fewer_keys ||
            spec->scale_granularity == ATTN_SCALE_PER_SEQ_HEAD)
            return true;
    }
    return spec->hint != HINT_NONE && !spec->kv_layout;
}

/* Arrays with something for each sequence are not there without one. */
static bool lacks_sequences(const struct case_spec *spec)
{
    return spec->num_sequences == 0 && spec->padded == 0 &&
           (spec->multi_item || spec->scale_granularity == ATTN_SCALE_PER_SEQ_HEAD ||
            spec->input_granularity == ATTN_SCALE_PER_SEQ_HEAD);
}

static attn_dtype new_kv_dtype(const struct case_spec *spec)
{
    return spec->new_kv_dtype ? spec->new_kv_dtype : spec->q_dtype;
}

/* Of the inputs of latent attention queries alone may be fp8, in the absorbed form, with a scale per
 * tensor. */
static bool quantises_latents_wrongly(const struct case_spec *spec)
{
    return dtype_is_fp8(new_kv_dtype(spec)) || !case_is_absorbed(spec) || case_is_packed(spec) ||
           spec->input_granularity != ATTN_SCALE_PER_TENSOR;
}

/* Inputs have scales if some of them are fp8. Values at the limits have one dtype, which is not. With e5m2 for q or the output bars are too wide for any needle, so there must be
 * none. */
static bool quantises_wrongly(const struct case_spec *spec)
{
    bool inputs = dtype_is_fp8(spec->q_dtype) || dtype_is_fp8(new_kv_dtype(spec));
    bool coarse = spec->q_dtype == ATTN_FP8_E5M2 || spec->out_dtype == ATTN_FP8_E5M2;
    return (coarse && !spec->growing_scores && !spec->without_needles) ||
           (spec->input_granularity != ATTN_SCALE_NONE) != inputs ||
           spec->input_granularity >= ATTN_SCALE_PER_TOKEN_HEAD ||
           (inputs && spec->latent.kv_lora_rank > 0 && quantises_latents_wrongly(spec)) ||
           ((inputs || spec->new_kv_dtype) && spec->special_values);
}

/* Keys of -inf: what is saturated has none, but a packed latent's k_pe; a cap makes their scores finite. */
static bool loses_wrongly(const struct case_spec *spec)
{
    return dtype_is_fp8(spec->q_dtype) || (dtype_is_fp8(spec->kv_dtype) && !case_is_packed(spec)) ||
           dtype_is_fp8(new_kv_dtype(spec)) || spec->logit_cap > 0 || spec->sm_scale < 0 ||
           case_is_expanded(spec) || (case_is_absorbed(spec) && spec->latent.rope_dim == 0) ||
           spec->special_values || spec->growing_scores ||
           spec->num_sequences > FORWARD_CASE_MAX_SEQS;
}

static bool has_scales(const struct case_spec *spec)
{
    return spec->kv_layout && dtype_is_fp8(spec->kv_dtype) && !case_is_packed(spec);
}

const char *case_spec_defect(const struct case_spec *spec)
{
    if (spec->kind == ATTN_KIND_LINEAR) /* drawn as a whole, and judged by query */
        return NULL;
    const char *defect = defect_of_numbers(spec);
    if (!defect)
        defect = defect_of_encoder(spec);
    if (!defect)
        defect = defect_of_cross(spec);
    if (!defect)
        defect = case_latent_defect(spec);
    if (defect)
        return defect;
    bool saves = spec->flags & ATTN_FORWARD_SAVE_KV;
    if (spec->from_cache && saves)
        return "from_cache";
    if (spec->partial &&
        (spec->from_cache == case_is_expanded(spec) || saves || spec->mask_kind != ATTN_MASK_NONE))
        return "partial";
    if (spec->explicit_positions && !has_custom_mask(spec))
        return "explicit_positions";
    if (spec->positions_ahead < 0 ||
        (spec->positions_ahead > 0 && spec->alibi && !spec->without_needles))
        return "positions_ahead";
    if (spec->multi_item && spec->mask_kind != ATTN_MASK_LAYER)
        return "multi_item";
    if (chooses_wrongly(spec))
        return "top_k";
    if (case_has_indexer(spec) && case_indexer_defect(spec))
        return case_indexer_defect(spec);
    if (spec->fewer_keys && (!spec->from_cache || spec->attn_type != ATTN_TYPE_DECODER ||
                             spec->partial || spec->multi_item || case_has_lists(spec)))
        return "fewer_keys";
    if (spec->lost_keys > 0 && loses_wrongly(spec))
        return "lost_keys";
    if (spec->lost_values &&
        (spec->lost_keys == 0 || !spec->without_needles || case_is_packed(spec)))
        return "lost_values";
    if (spec->unwritten_slots && !saves)
        return "unwritten_slots";
    if (spec->read_only_layer && (!saves || spec->unwritten_slots))
        return "read_only_layer";
    if (spec->special_values && (!saves || spec->read_only_layer || spec->multi_item ||
                                 spec->attn_type != ATTN_TYPE_DECODER || is_not_plain_causal(spec)))
        return "special_values";
    if (spec->seen_nan && (!spec->without_needles || spec->special_values || spec->top_k > 0 ||
                           spec->read_only_layer || spec->lost_keys > 0 || case_is_expanded(spec)))
        return "seen_nan";
    if (spec->min_alignment > CASE_ALIGNMENT)
        return "min_alignment";
    if (shares_wrongly(spec))
        return "shared";
    if (lacks_sequences(spec))
        return "num_sequences";
    if ((spec->scale_granularity != ATTN_SCALE_NONE) != has_scales(spec) ||
        (spec->scale_granularity == ATTN_SCALE_PER_TOKEN_HEAD && spec->spread != SPREAD_NONE))
        return "scale_granularity";
    return quantises_wrongly(spec) ? "input_granularity" : NULL;
}

/* ---- Words ----------------------------------------------------------------------------------- */

#define CASE_NAME(name, value, text) text,
static const char *const mode_names[] = {ATTN_MODE_MAP(CASE_NAME)};
static const char *const type_names[] = {"decoder", "encoder_only", "cross"};
static const char *const mask_names[] = {ATTN_MASK_MAP(CASE_NAME)};
#undef CASE_NAME
static const char *const slot_names[] = {"contiguous", "shuffled_pages", "interleaved_pages",
                                         "non_monotonic_extend"};
static const char *const spread_names[] = {"", ", pages to beyond 131072",
                                           ", pages to beyond 4 GiB"};
static const char *const scale_names[] = {"unscaled", "per_tensor", "per_head", "per_seq_head",
                                          "per_token_head"};

static void say_cache(strbuf *line, const struct case_spec *spec)
{
    if (!spec->kv_layout)
        return;
    strbuf_appendf(line, ", %s %s %s page %d %s%s", spec->kv_layout, dtype_name(spec->kv_dtype),
                   scale_names[spec->scale_granularity % ATTN_SCALE_COUNT], spec->page_size,
                   slot_names[spec->slots % 4], spread_names[spec->spread % PAGE_SPREADS]);
    strbuf_appendf(line, ", k, v %s%s%s",
                   spec->from_cache                     ? "absent"
                   : spec->flags & ATTN_FORWARD_SAVE_KV ? "saved"
                                                        : "not saved",
                   spec->unwritten_slots ? ", slots of -1" : "",
                   spec->partial ? ", prefix alone" : "");
}

static void say_rules(strbuf *line, const struct case_spec *spec)
{
    if (spec->mask_kind != ATTN_MASK_LAYER)
        strbuf_appendf(line, ", mask %s%s", mask_names[spec->mask_kind % 4],
                       spec->explicit_positions ? " with positions" : "");
    if (spec->positions_ahead > 0)
        strbuf_appendf(line, " %d ahead", spec->positions_ahead);
    if (spec->multi_item)
        strbuf_appendf(line, ", multi_item");
    if (spec->top_k > 0)
        strbuf_appendf(line, ", %d chosen %s", spec->top_k,
                       case_has_blocks(spec) ? "blocks" : "keys");
    if (case_has_blocks(spec))
        strbuf_appendf(line, " of %d%s", spec->block_size,
                       spec->index_kind == ATTN_SPARSE_PER_HEAD ? " of each head" : "");
    if (case_has_indexer(spec))
        strbuf_appendf(line, " by %d index heads of %s, labels of %d %s%s%s", spec->indexer.heads,
                       dtype_name(spec->indexer.q_dtype), spec->indexer.label_dim,
                       dtype_name(spec->indexer.label_dtype),
                       spec->indexer.has_ties ? ", ties" : "",
                       spec->indexer.by_steps ? ", step by step" : "");
    if (spec->longest_item > 0)
        strbuf_appendf(line, " of up to %d", spec->longest_item);
    if (spec->window_left != -1 || spec->window_right != -1)
        strbuf_appendf(line, ", window %d, %d", spec->window_left, spec->window_right);
    if (spec->attention_chunk)
        strbuf_appendf(line, ", chunk %d", spec->attention_chunk);
    if (spec->logit_cap > 0)
        strbuf_appendf(line, ", cap %g", (double)spec->logit_cap);
    if (spec->sm_scale != 0)
        strbuf_appendf(line, ", sm_scale %g", (double)spec->sm_scale);
    if (spec->alibi)
        strbuf_appendf(line, ", alibi");
    if (spec->sinks)
        strbuf_appendf(line, ", %ssinks%s", spec->high_sinks ? "high and low " : "",
                       spec->flags & ATTN_FORWARD_OMIT_SINK ? " omitted" : "");
    if (spec->growing_scores)
        strbuf_appendf(line, ", growing scores");
    if (spec->key_size > 0 || spec->value_size > 0)
        strbuf_appendf(line, ", keys and values times %g, %g", (double)spec->key_size,
                       (double)spec->value_size);
    if (spec->odd_slopes)
        strbuf_appendf(line, ", slopes of 0, below 0 and steep");
    if (spec->lost_keys > 0)
        strbuf_appendf(line, ", scores of the first %d keys -inf%s", spec->lost_keys,
                       spec->lost_values ? " and their values not finite" : "");
    if (spec->fewer_keys)
        strbuf_appendf(line, ", kv_lens shorter than prefix and queries");
    if (spec->guarded)
        strbuf_appendf(line, ", each array at the end of a page");
    if (spec->special_values)
        strbuf_appendf(line, ", special values");
    if (spec->seen_nan)
        strbuf_appendf(line, ", a %s that is NaN", spec->seen_nan == NAN_IN_KEY ? "key" : "value");
    if (spec->hint != HINT_NONE)
        strbuf_appendf(line, ", hint %d of shared prefixes", (int)spec->hint);
    if (spec->keys_in_page_0)
        strbuf_appendf(line, ", keys in page 0");
    if (spec->host != HOST_DRAWN)
        strbuf_appendf(line, ", host arrays: %s",
                       spec->host == HOST_NEEDED ? "none that is not needed"
                       : spec->host == HOST_ALL  ? "all"
                                                 : "some");
    if (spec->device_scales)
        strbuf_appendf(line, ", scales on the device");
    if (spec->read_only_layer)
        strbuf_appendf(line, ", read-only layer");
}

void case_spec_describe(const struct case_spec *spec, char *text, size_t size)
{
    strbuf line;
    if (spec->kind == ATTN_KIND_LINEAR) {
        linear_spec_describe(spec, text, size);
        return;
    }
    strbuf_init(&line);
    bool cross = spec->attn_type == ATTN_TYPE_CROSS;
    strbuf_appendf(&line, "%s %s, q %s out %s%s, heads %d/%d, dim %d/%d",
                   spec->attn_type < 3 ? type_names[spec->attn_type] : "?",
                   spec->mode < 6 ? mode_names[spec->mode] : "?", dtype_name(spec->q_dtype),
                   dtype_name(spec->out_dtype), spec->wants_lse ? " lse" : "", spec->num_q_heads,
                   spec->num_kv_heads, spec->head_dim, spec->v_head_dim);
    if (spec->new_kv_dtype || spec->input_granularity)
        strbuf_appendf(&line, ", new k, v %s, inputs %s", dtype_name(new_kv_dtype(spec)),
                       scale_names[spec->input_granularity % ATTN_SCALE_COUNT]);
    if (spec->latent.kv_lora_rank > 0)
        strbuf_appendf(&line, ", latent %d+%d %s", spec->latent.kv_lora_rank, spec->latent.rope_dim,
                       spec->latent.expanded ? "expanded" : "absorbed");
    say_cache(&line, spec);
    say_rules(&line, spec);
    strbuf_appendf(&line, ", prefix+new");
    for (int32_t s = 0; s < spec->num_sequences && s < FORWARD_CASE_MAX_SEQS; s++) {
        const struct case_sequence *sequence = case_sequence_at(spec, s);
        strbuf_appendf(&line, " %d+%d", sequence->prefix_len,
                       spec->mode == ATTN_MODE_DECODE ? 1 : sequence->num_new);
        if (sequence->shared > 0)
            strbuf_appendf(&line, "(%d shared%s)", sequence->shared,
                           spec->shares_with_next ? " with the next" : "");
        if (cross)
            strbuf_appendf(&line, "(%d)", sequence->num_new_keys);
        if (spec->partial && case_is_expanded(spec))
            strbuf_appendf(&line, "(%d to %d)", sequence->chunk_end - sequence->num_new_keys,
                           sequence->chunk_end);
    }
    if (spec->num_sequences > FORWARD_CASE_MAX_SEQS)
        strbuf_appendf(&line, " and so on, %d sequences", spec->num_sequences);
    if (spec->decodes_first)
        strbuf_appendf(&line, ", decodes first");
    if (spec->decode_q_len > 1)
        strbuf_appendf(&line, ", %d queries of each that decodes", spec->decode_q_len);
    if (spec->padded > 0)
        strbuf_appendf(&line, ", padded to %d by %d", spec->padded, spec->fill);
    if (spec->spare > 0)
        strbuf_appendf(&line, ", %d rows after the last sequence", spec->spare);
    if (spec->max_kv_len > 0)
        strbuf_appendf(&line, ", up to %d keys", spec->max_kv_len);
    snprintf(text, size, "%s", strbuf_text(&line));
    strbuf_finish(&line);
}

/* ---- Problems -------------------------------------------------------------------------------- */

static uint32_t uses_of(const struct case_spec *spec)
{
    bool unsaved = spec->kv_layout && !spec->from_cache && !(spec->flags & ATTN_FORWARD_SAVE_KV);
    bool shared_new = false;
    for (int32_t s = 0; s < spec->num_sequences && s < FORWARD_CASE_MAX_SEQS; s++)
        shared_new |= shares_new(spec, s);
    return (spec->explicit_positions ? (uint32_t)ATTN_USES_POSITIONS : 0u) |
           (spec->multi_item ? (uint32_t)ATTN_USES_MULTI_ITEM : 0u) |
           (spec->hint != HINT_NONE ? (uint32_t)ATTN_USES_SHARED_PREFIX : 0u) |
           (unsaved ? (uint32_t)ATTN_USES_UNSAVED_KV : 0u) |
           (spec->decodes_first ? (uint32_t)ATTN_USES_DECODES_FIRST : 0u) |
           (spec->decode_q_len > 1 ? (uint32_t)ATTN_USES_DECODE_DRAFTS : 0u) |
           (shared_new ? (uint32_t)ATTN_USES_SHARED_NEW_KV : 0u) |
           (spec->wants_lse ? (uint32_t)ATTN_USES_LSE : 0u) |
           (spec->flags & ATTN_FORWARD_OMIT_SINK ? (uint32_t)ATTN_USES_OMIT_SINK : 0u);
}

static int32_t at_least_1(int32_t value)
{
    return value > 1 ? value : 1;
}

static void set_bounds(attn_bounds *bounds, const struct case_spec *spec)
{
    struct case_lengths l;
    int64_t page = spec->page_size > 0 ? spec->page_size : 1;
    int32_t slack = spec->loose_bounds;
    case_lengths_init(&l, spec, 0);
    int32_t rows = l.first_row[l.num_seqs] - l.first_row[0] + l.spare;
    *bounds = (attn_bounds){
        .struct_size = sizeof *bounds,
        .modes = ATTN_MODE_BIT(spec->mode),
        .mask_kinds = ATTN_MASK_BIT(spec->mask_kind),
        .uses = uses_of(spec),
        .max_prefix_levels = spec->hint == HINT_LEVELS ? 2 : 0,
        .max_seqs = at_least_1(l.num_seqs) + 3 * slack,
        .max_tokens = at_least_1(rows > l.num_seqs ? rows : l.num_seqs) + 17 * slack,
        .max_q_len = at_least_1(l.max_q_len),
        .max_kv_len = at_least_1(l.max_kv_len) + 70 * slack,
    };
    if (spec->mode != ATTN_MODE_DECODE)
        bounds->max_q_len += 11 * slack;
    else
        bounds->max_tokens = bounds->max_seqs;
    for (int32_t s = 0; s < l.num_seqs; s++)
        bounds->max_kv_tokens += round_up(l.kv_len[s], page);
    bounds->max_kv_tokens = at_least_1((int32_t)bounds->max_kv_tokens) + 100 * slack;
    if (bounds->max_kv_len < spec->max_kv_len)
        bounds->max_kv_len = spec->max_kv_len;
}

static void set_group(struct spec_problem *posed, const struct case_spec *spec)
{
    attn_layer_group *group = &posed->group;
    for (int32_t n = 0; n < 2; n++)
        posed->layers[n] = (attn_layer){.struct_size = sizeof(attn_layer),
                                        .flags = n ? ATTN_LAYER_KV_READ_ONLY : 0,
                                        .layer_id = n ? 7 : 3};
    *group = (attn_layer_group){
        .struct_size = sizeof *group,
        .kind = spec->kind,
        .attn_type = spec->attn_type,
        .flags = (spec->sinks ? (uint32_t)ATTN_GROUP_HAS_SINKS : 0u) |
                 (spec->alibi ? (uint32_t)ATTN_GROUP_HAS_ALIBI : 0u),
        .num_q_heads = spec->num_q_heads,
        .num_kv_heads = spec->num_kv_heads,
        .head_dim = spec->head_dim,
        .v_head_dim = spec->v_head_dim,
        .window_left = spec->window_left,
        .window_right = spec->window_right,
        .attention_chunk = spec->attention_chunk,
        .sm_scale = spec->sm_scale != 0 ? spec->sm_scale : 1 / sqrtf((float)spec->head_dim),
        .logit_cap = spec->logit_cap,
        .kv_scale_granularity = spec->scale_granularity,
        .input_scale_granularity = spec->input_granularity,
        .num_layers = spec->read_only_layer ? 2 : 1,
        .layers = posed->layers,
    };
}

void spec_problem_init(struct spec_problem *posed, const struct case_spec *spec,
                       const attn_device *device)
{
    if (spec->kind == ATTN_KIND_LINEAR) {
        linear_pose(posed, spec, device);
        return;
    }
    memset(posed, 0, sizeof *posed);
    set_group(posed, spec);
    set_bounds(&posed->bounds, spec);
    posed->problem = (attn_problem){.struct_size = sizeof posed->problem,
                                    .device = device,
                                    .group = &posed->group,
                                    .bounds = &posed->bounds,
                                    .kv_layout = spec->kv_layout,
                                    .q_dtype = spec->q_dtype,
                                    .new_kv_dtype = spec->new_kv_dtype,
                                    .kv_dtype = spec->kv_dtype,
                                    .out_dtype = spec->out_dtype,
                                    .page_size = spec->kv_layout ? spec->page_size : 0,
                                    .tp_size = 1,
                                    .min_alignment = spec->min_alignment,
                                    .kv_strides = spec->kv_strides};
    if (spec->latent.kv_lora_rank > 0)
        case_latent_pose(posed, spec);
    if (spec->top_k > 0) {
        posed->sparse =
            (attn_sparse_dims){.struct_size = sizeof posed->sparse,
                               .index_kind = spec->index_kind,
                               .top_k = spec->top_k,
                               .block_size = case_has_blocks(spec) ? spec->block_size : 1,
                               .label_dim = spec->indexer.label_dim,
                               .label_dtype = spec->indexer.label_dtype,
                               .index_heads = spec->indexer.heads,
                               .index_dtype = spec->indexer.q_dtype};
        posed->group.kind = ATTN_KIND_SPARSE;
        posed->group.sparse = &posed->sparse;
    }
}

const attn_problem *forward_case_problem(const struct forward_case *c)
{
    return &c->posed.problem;
}

/* ---- Cases ----------------------------------------------------------------------------------- */

/* A base takes its own tokens. */
static void own_tokens(struct case_spec *spec)
{
    for (int32_t s = 0; s < FORWARD_CASE_MAX_SEQS; s++) {
        spec->sequences[s].tokens_of = s;
        spec->sequences[s].first_query = spec->sequences[s].first_key = 0;
    }
}

/* Does the base have all tokens of a variant? */
static bool has_tokens(const struct forward_case *c)
{
    const struct case_tokens *tokens = c->tokens;
    for (int32_t s = 0; s < c->lengths.num_real_seqs; s++) {
        const struct case_sequence *sequence = &c->spec.sequences[s];
        int32_t from = sequence->tokens_of;
        if (from < 0 || from >= CASE_MAX_SEQS || sequence->first_query < 0 ||
            sequence->first_key < 0 ||
            sequence->first_query + c->lengths.q_len[s] > tokens->num_q[from] ||
            sequence->first_key + c->lengths.kv_len[s] > tokens->num_k[from])
            return false;
    }
    return true;
}

attn_status case_fill(struct forward_case *c, uint64_t of_constants, attn_error *error)
{
    const uint64_t seed = c->seed;
    attn_status status = c->spec.kv_layout ? case_assign_pages(c, error) : ATTN_OK;
    if (status == ATTN_OK)
        case_fill_batch(c, &c->lengths, c->image);
    if (status == ATTN_OK && !c->tokens)
        status = case_make_tokens(c, error);
    if (status != ATTN_OK)
        return status;
    c->seed = of_constants;
    case_fill_constants(c);
    c->seed = seed;
    return case_place_tokens(c, error);
}

static attn_status fill(struct forward_case *c, attn_error *error)
{
    case_lengths_init(&c->lengths, &c->spec, c->seed);
    case_lay_out(c);
    if (c->tokens && (c->spec.num_sequences > FORWARD_CASE_MAX_SEQS || !has_tokens(c)))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "the base of a variant has not all of its tokens");
    attn_status status = case_allocate(c, error);
    if (status == ATTN_OK)
        status = case_pool_create(c, error);
    if (status != ATTN_OK)
        return status;
    return c->spec.kind == ATTN_KIND_LINEAR ? linear_fill(c, error) : case_fill(c, c->seed, error);
}

/* Where a case is drawn from: `of_batch` all that its batch has, whatever its layer. */
struct case_seeds {
    uint64_t own, of_batch;
};

/* Ids are a model's numbers, or anything: a fault may keep their lower bits alone. */
static void draw_layer(struct forward_case *c)
{
    const uint64_t stream = case_stream(c->seed, DRAW_LAYER, 0, 0, 0);
    c->posed.group.kv_group = c->spec.kv_layout && case_coin(c->seed, DRAW_GROUPS);
    c->posed.layers[0].layer_id = draw_at(stream, 0, 90);
    if (draw_at(stream, 1, 2))
        c->posed.layers[0].layer_id += 1 << draw_at(stream, 2, 31);
    c->posed.layers[1].layer_id = c->posed.layers[0].layer_id + 5;
}

static attn_status create(const struct case_spec *spec, struct case_seeds seeds,
                          const struct device *device, struct case_tokens *tokens,
                          struct forward_case **made, attn_error *error)
{
    const char *defect = case_spec_defect(spec);
    if (defect)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "case: %s contradicts itself", defect);
    struct forward_case *c = calloc(1, sizeof *c);
    if (!c)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a case");
    c->spec = *spec;
    c->seed = seeds.own;
    c->batch_seed = seeds.of_batch;
    c->device = device;
    c->tokens = tokens;
    if (!tokens)
        own_tokens(&c->spec);
    spec_problem_init(&c->posed, &c->spec, &device->info);
    if (spec->kind != ATTN_KIND_LINEAR)
        draw_layer(c);
    attn_status status = fill(c, error);
    if (status != ATTN_OK)
        forward_case_destroy(c);
    else
        *made = c;
    return status;
}

attn_status forward_case_create(const struct case_spec *spec, uint64_t seed,
                                const struct device *device, struct forward_case **c,
                                attn_error *error)
{
    uint64_t mixed = spec->kind == ATTN_KIND_LINEAR ? seed : mix_word(seed + MIX_INCREMENT);
    return create(spec, (struct case_seeds){mixed, mixed}, device, NULL, c, error);
}

attn_status forward_case_create_seeded(const struct case_spec *spec, uint64_t seed,
                                       uint64_t batch_seed, const struct device *device,
                                       struct forward_case **c, attn_error *error)
{
    return create(spec, (struct case_seeds){seed, batch_seed}, device, NULL, c, error);
}

attn_status forward_case_create_variant(const struct case_spec *spec,
                                        const struct forward_case *base, struct forward_case **c,
                                        attn_error *error)
{
    return create(spec, (struct case_seeds){base->seed, base->batch_seed}, base->device,
                  base->tokens, c, error);
}

void forward_case_destroy(struct forward_case *c)
{
    if (!c)
        return;
    if (c->owns_tokens)
        case_tokens_destroy(c->tokens);
    case_pool_destroy(c);
    device_release(c->device, ATTN_SPACE_DEVICE, c->memory);
    free(c->image);
    free(c->planning);
    free(c->planned);
    free(c->actual);
    free(c->pages);
    free(c->needles);
    free(c);
}

void forward_case_operands(const struct forward_case *c, char *text, size_t size)
{
    struct case_view view;
    const struct case_place place = {.arena = c->memory, .device_type = c->device->type};
    case_view_init(&view, c, &c->lengths, &place);
    operand_text(view.operands, text, size);
}

const void *forward_case_output(const struct forward_case *c, int32_t s, int32_t t, int32_t head)
{
    return case_vector(c, c->actual, PART_OUT, c->lengths.first_row[s] + t, head, 0);
}

const float *forward_case_lse(const struct forward_case *c, int32_t s, int32_t t, int32_t head)
{
    if (!c->parts[PART_LSE].bytes)
        return NULL;
    return (const float *)(const void *)case_vector(c, c->actual, PART_LSE,
                                                    c->lengths.first_row[s] + t, head, 0);
}

const float *forward_case_logits(const struct forward_case *c, int32_t s, int32_t t)
{
    if (!case_has_indexer(&c->spec) || !case_has_logits(c))
        return NULL;
    return (const float *)(const void *)case_vector(c, c->actual, PART_INDEX_LOGITS,
                                                    c->lengths.first_row[s] + t, 0, 0);
}
