/* SPDX-License-Identifier: Apache-2.0
 *
 * unused_keys.c: messages about keys without effect.
 */
#include "host/select/unused_keys.h"

#include <stdio.h>
#include <string.h>

#include "host/select/problem.h"
#include "host/select/routes.h"

/* ---- Keys ------------------------------------------------------------------------------------ */

static bool has_indexer(const struct model *model)
{
    for (uint32_t g = 0; g < model->num_groups; g++)
        if (model->groups[g].sparse && model->groups[g].sparse->index_heads > 0)
            return true;
    return false;
}

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
    static const char no_sparse[] = "as no layer is sparse", no_linear[] = "as no layer is linear";
    bool no_page = config->kv_cache.prefix_cache && !encodes && !crosses &&
                   config->kv_cache.page_size >= model->max_context_len;
    if (no_page)
        strbuf_appendf(text,
                       "kv_cache.prefix_cache (%s): no effect, as kv_cache.page_size %lld is not "
                       "below max_context_len %lld: no page of a prompt is ever whole\n",
                       config_place(config, "kv_cache.prefix_cache"),
                       (long long)config->kv_cache.page_size, (long long)model->max_context_len);
    const bool *has_type = model->has_type;
    const struct {
        const char *key;
        bool idle;
        const char *why;
    } keys[] = {
        {"model.index_topk", !has_type[CONFIG_LAYER_SPARSE], no_sparse},
        {"model.index_head_dim", !has_type[CONFIG_LAYER_SPARSE], no_sparse},
        {"kv_cache.label_dtype", !has_indexer(model), "as no layer has an indexer"},
        {"model.linear_family", !has_type[CONFIG_LAYER_LINEAR], no_linear},
        {"model.linear_conv_kernel_dim", !has_type[CONFIG_LAYER_LINEAR], no_linear},
        {"attention.decode_attention_backend", encodes, "as all layers are encoders"},
        {"kv_cache.hybrid_swa_memory", apart && !has_windows(model),
         "as no layer with a KV cache has a window or chunks"},
        {"kv_cache.await_prefix", !config->kv_cache.prefix_cache, "without kv_cache.prefix_cache"},
        {"kv_cache.swa_full_tokens_ratio", !apart, "without kv_cache.hybrid_swa_memory"},
        {"kv_cache.max_encoder_tokens", !crosses, "without cross attention"},
        {"speculative.config", !drafts, no_drafts},
        {"speculative.num_layers", !drafts, no_drafts},
        {"speculative.num_q_heads", !drafts, no_drafts},
        {"speculative.num_kv_heads", !drafts, no_drafts},
        {"speculative.head_dim", !drafts, no_drafts},
        {"speculative.v_head_dim", !drafts, no_drafts},
        {"speculative.sliding_window", !drafts, no_drafts},
        {"speculative.kv_dtype", !drafts, no_drafts},
        {"speculative.topk", !drafts, no_drafts},
        {"speculative.acceptance", !drafts, no_drafts},
        {"speculative.seed", !drafts, no_drafts},
    };
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        if (keys[k].idle && config_is_set(config, keys[k].key))
            strbuf_appendf(text, "%s (%s): no effect, %s\n", keys[k].key,
                           config_place(config, keys[k].key), keys[k].why);
}

/* Keys of a layer type that no layer has, in a model that the ini describes. */
static void tell_types(const struct config *config, const struct model *model, strbuf *text)
{
    static const char *const names[] = {"num_q_heads", "num_kv_heads", "head_dim", "v_head_dim",
                                        "logit_cap",   "sm_scale",     "sinks",    "alibi"};
    for (int64_t type = 0; type < CONFIG_LAYER_COUNT; type++)
        for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
            char key[64];
            snprintf(key, sizeof key, "model.%s.%s", config_layer_name(type), names[n]);
            if (!config->model.config && !model->has_type[type] && config_is_set(config, key))
                strbuf_appendf(text, "%s (%s): no effect, as no layer is %s\n", key,
                               config_place(config, key), config_layer_name(type));
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
            strbuf_appendf(text,
                           "%s (%s): no effect, as no KV cache is of that type: they are sliding, "
                           "chunked, cross, or else full\n",
                           key, config_place(config, key));
    }
}

/* ---- Backends -------------------------------------------------------------------------------- */

struct named {
    const char *key, *name; /* the name may be NULL */
};

enum { NUM_NAMED = 5 };

static void list_named(const struct config_attention *attention, struct named named[NUM_NAMED])
{
    named[0] = (struct named){"attention.attention_backend", attention->attention_backend};
    named[1] =
        (struct named){"attention.prefill_attention_backend", attention->prefill_attention_backend};
    named[2] =
        (struct named){"attention.decode_attention_backend", attention->decode_attention_backend};
    named[3] = (struct named){"attention.mm_attention_backend", attention->mm_attention_backend};
    named[4] = (struct named){"attention.linear_attn_backend", attention->linear_attn_backend};
}

/* Names of backends that SGLang has dropped. */
static void tell_former(const struct config *config, const struct rules *rules, strbuf *text)
{
    struct named named[NUM_NAMED];
    list_named(&config->attention, named);
    for (size_t n = 0; n < NUM_NAMED; n++) {
        const char *name = named[n].name;
        const struct rule *rule =
            name && !config_backend(config, name) ? rules_former(rules, name) : NULL;
        if (rule)
            strbuf_appendf(text,
                           "%s (%s): SGLang has dropped the name %s; here it stands for %s%s%s\n",
                           named[n].key, config_place(config, named[n].key), name, rule->name,
                           rule->aliases.count ? ", in SGLang " : "",
                           rule->aliases.count ? rule->aliases.items[0] : "");
    }
}

/* An option of another backend has the name as its value: a child, or the backend of a route. */
static bool is_child(const struct composer *composer, const char *name)
{
    for (size_t d = 0; d < composer->num_definitions; d++)
        for (size_t t = 0; t < composer->definitions[d].num_texts; t++)
            if (strcmp(composer->definitions[d].texts[t].value, name) == 0)
                return true;
    return false;
}

/* Sections that no key names, for example because of a misspelt name. A section with the name of a
 * backend type sets the options of that type wherever it is chosen. */
static void tell_sections(const struct composer *composer, const struct config *config,
                          strbuf *text)
{
    struct named named[NUM_NAMED];
    list_named(&config->attention, named);
    for (size_t b = 0; b < config->backends.count; b++) {
        const struct config_backend *section = &config->backends.items[b];
        bool used =
            registry_find(composer->registry, section->name) || is_child(composer, section->name);
        for (size_t n = 0; n < NUM_NAMED; n++)
            used |= named[n].name && strcmp(named[n].name, section->name) == 0;
        if (!used || strcmp(section->name, "auto") == 0)
            strbuf_appendf(text, "[backend.%s] (%s): no effect, as %s\n", section->name,
                           section->place,
                           used ? "auto stands for the choice by the rules"
                                : "no backend of that name is asked for");
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
    tell_former(config, selection->rules, text);
    tell_sections(composer, config, text);
    if (selection->model->tp_size > 1)
        strbuf_appendf(text, "model.tp_size %d: heads are those of rank %d\n",
                       selection->model->tp_size, selection->model->tp_rank);
    if (taken)
        strbuf_appendf(text, "%s: 1.0, as none is given for the fp8 cache\n", taken);
    tell_routes(composer, config, selection, text);
}
