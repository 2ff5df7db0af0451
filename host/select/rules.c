/* SPDX-License-Identifier: Apache-2.0
 *
 * rules.c: the rules that apply, and the meaning of names.
 */
#include "host/select/rules_private.h"

#include <stdio.h>
#include <string.h>

#include "host/base/dtype.h"
#include "host/kinds/kinds.h"
#include "host/select/platform.h"
#include "host/base/text.h"

/* ---- Words ----------------------------------------------------------------------------------- */

const struct config_choice rule_model_words[] = {{"decoder", RULE_MODEL_DECODER},
                                                 {"encoder", RULE_MODEL_ENCODER},
                                                 {"encoder_decoder", RULE_MODEL_ENCODER_DECODER},
                                                 {"multimodal", RULE_MODEL_MULTIMODAL},
                                                 {NULL, 0}};
const struct config_choice rule_some_words[] = {
    {"window", RULE_SOME_WINDOW},
    {"recurrence", RULE_SOME_RECURRENCE},
    {"gdn", RULE_SOME_FAMILY + ATTN_LINEAR_GDN},
    {"mamba2", RULE_SOME_FAMILY + ATTN_LINEAR_MAMBA2},
    {"kda", RULE_SOME_FAMILY + ATTN_LINEAR_KDA},
    {"lightning", RULE_SOME_FAMILY + ATTN_LINEAR_LIGHTNING},
    {"short_conv", RULE_SOME_FAMILY + ATTN_LINEAR_SHORT_CONV},
    {NULL, 0}};
const struct config_choice rule_draft_words[] = {
    {"off", RULE_DRAFTS_OFF}, {"chain", RULE_DRAFTS_CHAIN}, {"tree", RULE_DRAFTS_TREE}, {NULL, 0}};

static const char *word_of(const struct config_choice *words, int64_t value)
{
    while (words->name && words->value != value)
        words++;
    return words->name ? words->name : "?";
}

/* ---- Facts ----------------------------------------------------------------------------------- */

static bool contains(const struct config_ints *list, int64_t value)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i] == value)
            return true;
    return false;
}

/* An empty list asks for nothing. */
static bool allows(const struct config_ints *list, int64_t value)
{
    return list->count == 0 || contains(list, value);
}

static bool group_has(const attn_layer_group *group, int64_t what)
{
    switch (what) {
    case RULE_HAS_SINKS:
        return group->flags & ATTN_GROUP_HAS_SINKS;
    case RULE_HAS_CHUNK:
        return group->attention_chunk > 0;
    case RULE_HAS_WINDOW:
        return !model_group_has_state(group) && group->window_left >= 0;
    case RULE_HAS_CAP:
        return group->logit_cap > 0;
    case RULE_HAS_ALIBI:
        return group->flags & ATTN_GROUP_HAS_ALIBI;
    case RULE_HAS_UNEQUAL_V:
        return kind_of(group)->has_values && group->head_dim != group->v_head_dim;
    default:
        return false;
    }
}

static int64_t model_is(const struct model *model)
{
    uint32_t types = 0;
    for (uint32_t i = 0; i < model->num_groups; i++)
        types |= 1u << model->groups[i].attn_type;
    if (types >> ATTN_TYPE_CROSS & 1)
        return RULE_MODEL_ENCODER_DECODER;
    if (!(types >> ATTN_TYPE_ENCODER_ONLY & 1))
        return RULE_MODEL_DECODER;
    return types >> ATTN_TYPE_DECODER & 1 ? RULE_MODEL_MULTIMODAL : RULE_MODEL_ENCODER;
}

static bool model_has(const struct model *model, int64_t what)
{
    for (uint32_t i = 0; i < model->num_groups; i++) {
        const attn_layer_group *group = &model->groups[i];
        bool linear = model_group_has_state(group);
        if (what == RULE_SOME_WINDOW ? group_has(group, RULE_HAS_WINDOW)
            : what == RULE_SOME_RECURRENCE
                ? linear
                : linear && group->linear && group->linear->family == what - RULE_SOME_FAMILY)
            return true;
    }
    return false;
}

static int64_t drafts_of(int64_t topk)
{
    return topk == 0 ? RULE_DRAFTS_OFF : topk == 1 ? RULE_DRAFTS_CHAIN : RULE_DRAFTS_TREE;
}

/* "Llama4*" matches every name that begins with Llama4. */
static bool name_matches(const char *pattern, const char *name)
{
    size_t length = strlen(pattern);
    if (length > 0 && pattern[length - 1] == '*')
        return strncmp(pattern, name, length - 1) == 0;
    return strcmp(pattern, name) == 0;
}

static bool architecture_allowed(const struct config_texts *names, const char *architecture)
{
    for (size_t i = 0; i < names->count; i++)
        if (name_matches(names->items[i], architecture))
            return true;
    return names->count == 0;
}

bool rules_runs_on(const struct rule_platforms *platforms, const attn_device *device)
{
    for (size_t i = 0; i < platforms->count; i++) {
        const struct rule_platform *item = &platforms->items[i];
        if (item->type == 0 ||
            (item->type == device->type && device->sm >= item->min_sm &&
             device->sm <= item->max_sm && (device->cpu_isa & item->isa) == item->isa))
            return true;
    }
    return platforms->count == 0;
}

/* ---- Conditions ------------------------------------------------------------------------------ */

static bool holds(const struct rule *rule, const struct rule_facts *facts)
{
    const attn_layer_group *group = facts->group;
    bool has = true, some = rule->model_has.count == 0;
    for (size_t i = 0; i < rule->has.count; i++)
        has = has && group_has(group, rule->has.items[i]);
    for (size_t i = 0; i < rule->model_has.count; i++)
        some = some || model_has(facts->model, rule->model_has.items[i]);
    return has && some && rules_runs_on(&rule->platforms, facts->device) &&
           allows(&rule->kinds, group->kind) && allows(&rule->attn_types, group->attn_type) &&
           allows(&rule->models, model_is(facts->model)) &&
           allows(&rule->num_q_heads, group->num_q_heads) &&
           allows(&rule->kv_dtypes, facts->kv_dtype) &&
           allows(&rule->drafts, drafts_of(facts->draft_topk)) &&
           architecture_allowed(&rule->architectures, facts->model->architecture);
}

const struct rule *rules_order(const struct rules *rules, const struct rule_facts *facts)
{
    const struct rule_list *orders = &rules->lists[RULE_ORDER];
    for (size_t i = 0; i < orders->count; i++)
        if (holds(&orders->items[i], facts))
            return &orders->items[i];
    return NULL;
}

static bool names(const struct config_texts *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i], name) == 0)
            return true;
    return false;
}

const struct rule *rules_exclusion(const struct rules *rules, const struct rule_facts *facts,
                                   const char *type)
{
    const struct rule_list *exclusions = &rules->lists[RULE_EXCLUDE];
    for (size_t i = 0; i < exclusions->count; i++) {
        const struct rule *rule = &exclusions->items[i];
        if ((rule->all || names(&rule->backends, type)) && holds(rule, facts))
            return rule;
    }
    return NULL;
}

/* ---- Blame ----------------------------------------------------------------------------------- */

/* A property of the layers, by its name in verdicts. */
static const char *blame_layers(int64_t what, const attn_layer_group *group, char *got, size_t size)
{
    switch (what) {
    case RULE_HAS_CHUNK:
        snprintf(got, size, "%d", group->attention_chunk);
        return "attention_chunk";
    case RULE_HAS_WINDOW:
        snprintf(got, size, "%d", group->window_left);
        return "window_left";
    case RULE_HAS_CAP:
        text_format(got, size, "%g", (double)group->logit_cap);
        return "logit_cap";
    case RULE_HAS_UNEQUAL_V:
        snprintf(got, size, "%d", group->v_head_dim);
        return "v_head_dim";
    default:
        snprintf(got, size, "1");
        return what == RULE_HAS_SINKS ? "has_sinks" : "has_alibi";
    }
}

static const char *blame_model(const struct rule *rule, const struct rule_facts *facts, char *got,
                               size_t size)
{
    for (size_t i = 0; i < rule->model_has.count; i++) {
        int64_t what = rule->model_has.items[i];
        if (model_has(facts->model, what))
            snprintf(got, size, "%s", word_of(rule_some_words, what));
    }
    return "model_has";
}

const char *rules_blame(const struct rule *rule, const struct rule_facts *facts, char *got,
                        size_t size)
{
    const attn_layer_group *group = facts->group;
    if (rule->architectures.count > 0) {
        snprintf(got, size, "%s", facts->model->architecture);
        return "architecture";
    }
    if (rule->model_has.count > 0)
        return blame_model(rule, facts, got, size);
    if (rule->has.count > 0)
        return blame_layers(rule->has.items[0], group, got, size);
    if (rule->kv_dtypes.count > 0) {
        snprintf(got, size, "%s", dtype_name(facts->kv_dtype));
        return "kv_dtype";
    }
    if (rule->drafts.count > 0) {
        snprintf(got, size, "%s", word_of(rule_draft_words, drafts_of(facts->draft_topk)));
        return "speculative";
    }
    if (rule->num_q_heads.count > 0) {
        snprintf(got, size, "%d", group->num_q_heads);
        return "num_q_heads";
    }
    if (rule->models.count > 0) {
        snprintf(got, size, "%s", word_of(rule_model_words, model_is(facts->model)));
        return "model";
    }
    if (rule->attn_types.count > 0) {
        snprintf(got, size, "%s", model_attn_type_name(group->attn_type));
        return "attn_type";
    }
    if (rule->kinds.count > 0) {
        snprintf(got, size, "%s", model_kind_name(group->kind));
        return "kind";
    }
    platform_text(facts->device, got, size);
    return "platform";
}

/* ---- Names ----------------------------------------------------------------------------------- */

const struct rule *rules_backend(const struct rules *rules, const char *type)
{
    const struct rule_list *backends = &rules->lists[RULE_BACKEND];
    for (size_t i = 0; i < backends->count; i++)
        if (strcmp(backends->items[i].name, type) == 0)
            return &backends->items[i];
    return NULL;
}

const struct rule *rules_former(const struct rules *rules, const char *alias)
{
    const struct rule *rule = rules_alias(rules, alias);
    return rule && names(&rule->former, alias) ? rule : NULL;
}

const struct rule *rules_alias(const struct rules *rules, const char *alias)
{
    const struct rule_list *backends = &rules->lists[RULE_BACKEND];
    for (size_t i = 0; i < backends->count; i++)
        if (names(&backends->items[i].aliases, alias) || names(&backends->items[i].former, alias))
            return &backends->items[i];
    return NULL;
}
