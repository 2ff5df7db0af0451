/* SPDX-License-Identifier: Apache-2.0
 *
 * problem.c: from configuration and model to attn_problem.
 */
#include "host/select/problem.h"

#include <string.h>

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/round.h"
#include "host/kinds/mla.h"

int64_t problem_draft_topk(const struct config *config)
{
    return config->speculative.draft_tokens > 0 ? config->speculative.topk
                                                : config->attention.speculative_eagle_topk;
}

/* Modes of speculative decoding, if `phase` serves them. */
static uint32_t draft_modes(const struct config *config, int32_t phase)
{
    if (problem_draft_topk(config) == 0 || config->attention.speculative_attention_mode != phase)
        return 0;
    return ATTN_MODE_BIT(ATTN_MODE_TARGET_VERIFY) | ATTN_MODE_BIT(ATTN_MODE_DRAFT_EXTEND);
}

uint32_t problem_prefill_modes(const struct config *config)
{
    uint32_t mixed = config->workload.mixed ? ATTN_MODE_BIT(ATTN_MODE_MIXED) : 0;
    return ATTN_MODE_BIT(ATTN_MODE_EXTEND) | mixed |
           draft_modes(config, CONFIG_SPECULATIVE_PREFILL);
}

uint32_t problem_decode_modes(const struct config *config)
{
    return ATTN_MODE_BIT(ATTN_MODE_DECODE) | draft_modes(config, CONFIG_SPECULATIVE_DECODE);
}

/* The CONFIG_LAYER_* whose keys of [kv_cache] a group has; one of a config.json is seen by its
 * mask. */
int64_t problem_cache_type(const attn_layer_group *group)
{
    return group->attn_type == ATTN_TYPE_CROSS ? CONFIG_LAYER_CROSS
           : group->attention_chunk > 0        ? CONFIG_LAYER_CHUNKED
           : group->window_left >= 0           ? CONFIG_LAYER_SLIDING
                                               : CONFIG_LAYER_FULL;
}

attn_dtype problem_kv_dtype(const struct config *config, const struct model *model,
                            const attn_layer_group *group)
{
    attn_dtype own = model_group_drafts(model, group)
                         ? config->speculative.kv_dtype
                         : config->kv_cache.dtypes[problem_cache_type(group)];
    if (own)
        return own;
    return config->kv_cache.dtype ? config->kv_cache.dtype : model->dtype;
}

/* ---- Scales ---------------------------------------------------------------------------------- */

/* Is the group's cache quantised by scales of the configuration? */
static bool is_scaled(const struct config *config, const struct model *model,
                      const attn_layer_group *group)
{
    const struct kind_ops *kind = kind_of(group);
    return model_group_has_kv(group) && dtype_is_fp8(problem_kv_dtype(config, model, group)) &&
           (!kind->is_scaled || kind->is_scaled(&config->kv_cache));
}

static attn_status check_count(const struct config *config, const struct model *model,
                               const char *key, size_t count, attn_error *error)
{
    for (uint32_t i = 0; i < model->num_groups; i++) {
        const attn_layer_group *group = &model->groups[i];
        if (count <= 1 || !is_scaled(config, model, group))
            continue;
        if (kind_of(group)->one_scale)
            return config_fail(config, key, error, "%zu numbers: accepted 1, as %s", count,
                               kind_of(group)->one_scale);
        if (count != (size_t)group->num_kv_heads)
            return config_fail(config, key, error,
                               "%zu numbers: accepted 1, or %d, one for each KV head", count,
                               group->num_kv_heads);
    }
    return ATTN_OK;
}

/* Which scales do the caches need? */
static void find_scaled(const struct config *config, const struct model *model, bool *keys,
                        bool *values)
{
    *keys = *values = false;
    for (uint32_t i = 0; i < model->num_groups; i++)
        if (is_scaled(config, model, &model->groups[i])) {
            *keys = true;
            *values |= kind_of(&model->groups[i])->has_values;
        }
}

uint32_t problem_num_scales(const struct config *config)
{
    size_t keys = config->kv_cache.k_scale.count, values = config->kv_cache.v_scale.count;
    return (uint32_t)(keys ? keys : values ? values : 1);
}

float problem_scale(const struct config_doubles *given, uint32_t index)
{
    return given->count ? (float)given->items[index] : 1;
}

const char *problem_scales_taken(const struct config *config, const struct model *model)
{
    const struct config_kv_cache *cache = &config->kv_cache;
    bool keys, values;
    find_scaled(config, model, &keys, &values);
    keys = keys && cache->k_scale.count == 0;
    values = values && cache->v_scale.count == 0;
    return keys && values ? "kv_cache.k_scale and v_scale"
           : keys         ? "kv_cache.k_scale"
           : values       ? "kv_cache.v_scale"
                          : NULL;
}

attn_status problem_check_scales(const struct config *config, const struct model *model,
                                 attn_error *error)
{
    const struct config_kv_cache *cache = &config->kv_cache;
    bool keys, values;
    find_scaled(config, model, &keys, &values);
    if (!keys)
        return ATTN_OK;
    attn_status status =
        check_count(config, model, "kv_cache.k_scale", cache->k_scale.count, error);
    if (!status)
        status = check_count(config, model, "kv_cache.v_scale", cache->v_scale.count, error);
    if (!status && values && cache->k_scale.count && cache->v_scale.count &&
        cache->k_scale.count != cache->v_scale.count)
        status = config_fail(config, "kv_cache.v_scale", error,
                             "%zu numbers: accepted %zu, as many as kv_cache.k_scale",
                             cache->v_scale.count, cache->k_scale.count);
    return status;
}

attn_status problem_check_layouts(const struct config *config, const struct model *model,
                                  attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t i = 0; i < model->num_groups && status == ATTN_OK; i++) {
        const attn_layer_group *group = &model->groups[i];
        if (kind_of(group)->check_layout)
            status = kind_of(group)->check_layout(config, group,
                                                  problem_kv_dtype(config, model, group), error);
    }
    return status;
}

/* ---- Drafts ---------------------------------------------------------------------------------- */

static attn_status check_draft_counts(const struct config *config, attn_error *error)
{
    const struct config_speculative *drafts = &config->speculative;
    int64_t named = config->attention.speculative_eagle_topk;
    if (drafts->draft_tokens == 1)
        return config_fail(config, "speculative.draft_tokens", error,
                           "1: accepted 0 for no drafts, or 2..64: the last token and a draft at "
                           "least");
    if (drafts->topk >= drafts->draft_tokens)
        return config_fail(config, "speculative.topk", error,
                           "%lld: accepted 1..%lld, speculative.draft_tokens minus 1",
                           (long long)drafts->topk, (long long)drafts->draft_tokens - 1);
    if (named > 0 && named != drafts->topk)
        return config_fail(config, "attention.speculative_eagle_topk", error,
                           "%lld next to speculative.topk = %lld: accepted the same, or 0",
                           (long long)named, (long long)drafts->topk);
    return ATTN_OK;
}

attn_status problem_check_drafts(const struct config *config, const struct model *model,
                                 attn_error *error)
{
    const struct config_speculative *drafts = &config->speculative;
    if (drafts->draft_tokens == 0)
        return ATTN_OK;
    attn_status status = check_draft_counts(config, error);
    if (status == ATTN_OK && config->workload.mixed)
        status = config_fail(config, "workload.mixed", error,
                             "yes with speculative.draft_tokens = %lld: accepted no, as drafts are "
                             "verified in steps of their own",
                             (long long)drafts->draft_tokens);
    for (uint32_t g = 0; g < model->num_groups && status == ATTN_OK; g++) {
        const attn_layer_group *group = &model->groups[g];
        char layers[MODEL_LAYERS_TEXT];
        model_layers_text(group, layers, sizeof layers);
        if (model_group_has_state(group) && drafts->topk > 1)
            status = config_fail(config, "speculative.topk", error,
                                 "%lld: accepted 1, as the state of the recurrent layers %s has "
                                 "one history and no branches",
                                 (long long)drafts->topk, layers);
        else if (group->attn_type != ATTN_TYPE_DECODER)
            status = config_fail(
                config, "speculative.draft_tokens", error,
                "%lld: accepted 0, as layers %s are %s layers, which cannot verify drafts",
                (long long)drafts->draft_tokens, layers, model_attn_type_name(group->attn_type));
    }
    return status;
}

/* mla.latent_fp8/1 has its own scales, next to the codes. */
static uint32_t scale_granularity(const struct config *config, const attn_problem *problem)
{
    if (!dtype_is_fp8(problem->kv_dtype) || mla_is_packed(problem->kv_layout))
        return ATTN_SCALE_NONE;
    return problem_num_scales(config) > 1 ? ATTN_SCALE_PER_HEAD : ATTN_SCALE_PER_TENSOR;
}

/* ---- Bounds ---------------------------------------------------------------------------------- */

static int32_t min_i64(int64_t a, int64_t b)
{
    int64_t least = a < b ? a : b;
    return (int32_t)(least < INT32_MAX ? least : INT32_MAX);
}

static int32_t longest_kv(const struct model *model)
{
    return model->max_encoder_len > model->max_context_len ? model->max_encoder_len
                                                           : model->max_context_len;
}

bool problem_has_positions(const struct config *config, const struct model *model)
{
    bool moved = false;
    for (uint32_t g = 0; g < model->num_groups; g++) {
        const attn_layer_group *group = &model->groups[g];
        moved |= group->window_left >= 0 || group->attention_chunk > 0 ||
                 (group->flags & ATTN_GROUP_HAS_ALIBI) != 0;
    }
    return moved && config->speculative.draft_tokens > 0 && config->speculative.topk > 1;
}

void problem_bounds_drafts(attn_bounds *bounds, const struct config *config,
                           const struct model *model)
{
    if (!(bounds->modes & ATTN_MODE_BIT(ATTN_MODE_TARGET_VERIFY)))
        return;
    if (problem_draft_topk(config) > 1)
        bounds->mask_kinds |= ATTN_MASK_BIT(ATTN_MASK_QLEN);
    if (problem_has_positions(config, model))
        bounds->uses |= ATTN_USES_POSITIONS;
}

/* Rows of verifications. */
static void add_drafts(attn_bounds *bounds, const struct config *config)
{
    int64_t tokens = config->speculative.draft_tokens;
    int64_t rows = config->workload.max_running_requests * tokens;
    if (!(bounds->modes & ATTN_MODE_BIT(ATTN_MODE_TARGET_VERIFY)))
        return;
    if (bounds->max_tokens < rows)
        bounds->max_tokens = min_i64(rows, INT32_MAX);
    if (bounds->max_q_len < tokens)
        bounds->max_q_len = (int32_t)tokens;
}

void problem_bounds(attn_bounds *bounds, const struct config *config, const struct model *model,
                    uint32_t modes)
{
    const struct config_workload *workload = &config->workload;
    int64_t page = config->kv_cache.page_size > 0 ? config->kv_cache.page_size : 1;
    int64_t seqs = workload->max_running_requests;
    int64_t drafted = config->speculative.draft_tokens;
    int32_t longest = min_i64(longest_kv(model) + (drafted > 0 ? drafted - 1 : 0), INT32_MAX);
    /* Tokens of a step: a chunk of prompts; where prompts are not split, a prompt of each. */
    int64_t chunk = workload->chunked_prefill_size;
    int64_t prefill = chunk > 0 ? chunk : seqs * longest;
    bool extends = (modes & ~ATTN_MODE_BIT(ATTN_MODE_DECODE)) != 0;
    int64_t decodes = modes & ATTN_MODE_BIT(ATTN_MODE_MIXED) || !extends ? seqs : 0;

    memset(bounds, 0, sizeof *bounds);
    bounds->struct_size = sizeof *bounds;
    bounds->modes = modes;
    bounds->uses = model->uses;
    bounds->mask_kinds = ATTN_MASK_BIT(ATTN_MASK_LAYER);
    bounds->max_seqs = min_i64(seqs, INT32_MAX);
    bounds->max_tokens = min_i64((extends ? prefill : 0) + decodes, INT32_MAX);
    if (bounds->max_tokens < bounds->max_seqs)
        bounds->max_tokens = bounds->max_seqs;
    bounds->max_q_len = extends ? min_i64(chunk > 0 ? chunk : longest, longest) : 1;
    bounds->max_kv_len = longest;
    bounds->max_kv_tokens = seqs * round_up(longest, page);
    bounds->max_sms = (int32_t)config->platform.max_sms;
    add_drafts(bounds, config);
    problem_bounds_drafts(bounds, config, model);
}

void problem_bounds_expand(attn_bounds *bounds, const struct model *model,
                           const attn_layer_group *group)
{
    if (!kind_expands(model, group) || !(bounds->modes & model->mla_expanded))
        return;
    bounds->mask_kinds |= ATTN_MASK_BIT(ATTN_MASK_NONE);
    bounds->uses |= ATTN_USES_LSE | ATTN_USES_UNSAVED_KV;
}

/* ---- The problem ----------------------------------------------------------------------------- */

void problem_init(struct problem *out, const struct config *config, const struct model *model,
                  uint32_t group, const attn_device *device, uint32_t modes, const char *layout)
{
    memset(out, 0, sizeof *out);
    out->group = model->groups[group];
    out->device = *device;
    problem_bounds(&out->bounds, config, model, modes);
    bool has_kv = model_group_has_kv(&out->group);

    attn_problem *problem = &out->problem;
    problem->struct_size = sizeof *problem;
    problem->device = &out->device;
    problem->group = &out->group;
    problem->bounds = &out->bounds;
    problem->q_dtype = model->dtype;
    problem->out_dtype = kind_out_dtype(model, &out->group);
    if (kind_expands(model, &out->group))
        problem->mla_expanded = model->mla_expanded & modes;
    problem_bounds_expand(&out->bounds, model, &out->group);
    problem->kv_dtype = has_kv ? problem_kv_dtype(config, model, &out->group) : model->dtype;
    problem->kv_layout = has_kv ? layout : NULL;
    problem->state_layout = model_group_has_state(&out->group) ? layout : NULL;
    problem->page_size = has_kv ? min_i64(config->kv_cache.page_size, INT32_MAX) : 0;
    if (config->attention.batch_invariant)
        problem->required_traits = ATTN_TRAIT_DETERMINISTIC | ATTN_TRAIT_BATCH_INVARIANT;
    problem->tp_size = model->tp_size;
    problem->tp_rank = model->tp_rank;
    if (out->group.head_dim == out->group.v_head_dim) /* caches are dense */
        problem->kv_strides = ATTN_KV_STRIDES_EQUAL;
    if (has_kv)
        out->group.kv_scale_granularity = scale_granularity(config, problem);
}
