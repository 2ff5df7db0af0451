/* SPDX-License-Identifier: Apache-2.0 */
#include "host/select/unused_keys.h"

#include <stdio.h>

#include "host/select/problem.h"
#include "host/select/routes.h"

/* ---- Keys ------------------------------------------------------------------------------------ */

static bool has_windows(const struct model *model)
{
    for (uint32_t g = 0; g < model->num_groups; g++) {
        const attn_layer_group *group = &model->groups[g];
        if (group->attn_type == ATTN_TYPE_DECODER && model_group_has_kv(group) &&
            (group->window_left >= 0 || group->attention_chunk > 0))
            return true;
    }
    return false;
}

static void tell_keys(const struct config *config, const struct model *model, strbuf *text)
{
    bool drafts = config->speculative.draft_tokens > 0, encodes = model_encodes(model);
    bool apart = config->kv_cache.hybrid_swa_memory, crosses = model_crosses(model);
    static const char no_drafts[] = "without speculative.draft_tokens";
    bool no_page = config->kv_cache.prefix_cache && !encodes && !crosses &&
                   config->kv_cache.page_size >= model->max_context_len;
    if (no_page)
        strbuf_appendf(text,
                       "kv_cache.prefix_cache (%s): no effect, as kv_cache.page_size %lld is not "
                       "below max_context_len %lld: no page of a prompt is ever whole\n",
                       config_place(config, "kv_cache.prefix_cache"),
                       (long long)config->kv_cache.page_size, (long long)model->max_context_len);
    const struct {
        const char *key;
        bool idle;
        const char *why;
    } keys[] = {
        {"attention.decode_attention_backend", encodes, "as all layers are encoders"},
        {"kv_cache.hybrid_swa_memory", apart && !has_windows(model),
         "as no layer with a KV cache has a window or chunks"},
        {"kv_cache.swa_full_tokens_ratio", !apart, "without kv_cache.hybrid_swa_memory"},
        {"kv_cache.max_encoder_tokens", !crosses, "without cross attention"},
        {"speculative.topk", !drafts, no_drafts},
        {"speculative.acceptance", !drafts, no_drafts},
        {"speculative.seed", !drafts, no_drafts},
    };
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        if (keys[k].idle && config_is_set(config, keys[k].key))
            strbuf_appendf(text, "%s (%s): no effect, %s\n", keys[k].key,
                           config_place(config, keys[k].key), keys[k].why);
}

/* A layer type's keys without a layer of it, of a model that the ini describes. */
static void tell_types(const struct config *config, const struct model *model, strbuf *text)
{
    static const char *const names[] = {"num_q_heads", "num_kv_heads", "head_dim", "v_head_dim",
                                        "logit_cap",   "sm_scale",     "sinks",    "alibi"};
    for (int64_t type = 0; type < CONFIG_LAYER_COUNT; type++)
        for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
            char key[64];
            snprintf(key, sizeof key, "model.%s.%s", config_layer_name(type), names[n]);
            if (!config_is_set(config, key) || (!config->model.config && model->has_type[type]))
                continue;
            strbuf_appendf(text, "%s (%s): no effect, as ", key, config_place(config, key));
            if (config->model.config)
                strbuf_append(text, "model.config describes the model\n");
            else
                strbuf_appendf(text, "no layer is %s\n", config_layer_name(type));
        }
}

static void tell_dtypes(const struct config *config, const struct model *model, strbuf *text)
{
    for (int64_t type = 0; type < CONFIG_LAYER_COUNT; type++) {
        char key[64];
        bool used = false;
        snprintf(key, sizeof key, "kv_cache.%s.dtype", config_layer_name(type));
        for (uint32_t g = 0; g < model->num_groups; g++)
            used |= model_group_has_kv(&model->groups[g]) &&
                    problem_cache_type(&model->groups[g]) == type;
        if (!used && config_is_set(config, key))
            strbuf_appendf(text, "%s (%s): no effect, as no such layer has a KV cache\n", key,
                           config_place(config, key));
    }
}

/* ---- Routes ---------------------------------------------------------------------------------- */

static void tell_routes(const struct composer *composer, const struct config *config,
                        const struct selection *selection, strbuf *text)
{
    const struct model *model = selection->model;
    if (model_encodes(model))
        routes_never(composer, selection, "prefill", "of encoders", text);
    else if (config->speculative.draft_tokens > 0)
        routes_never(composer, selection,
                     model->layers[model->num_layers - 1].is_draft ? "prefill, verify, draft"
                                                                   : "prefill, verify",
                     "with speculative.draft_tokens", text);
    else if (problem_draft_topk(config) == 0) /* else an engine has drafts of its own */
        routes_never(composer, selection, "prefill, decode", "without speculative.draft_tokens",
                     text);
}

void unused_keys_list(const struct composer *composer, const struct config *config,
                      const struct selection *selection, strbuf *text)
{
    const char *taken = problem_scales_taken(config, selection->model);
    tell_keys(config, selection->model, text);
    tell_types(config, selection->model, text);
    tell_dtypes(config, selection->model, text);
    if (taken)
        strbuf_appendf(text, "%s: 1.0, as none is given for the fp8 cache\n", taken);
    tell_routes(composer, config, selection, text);
}
