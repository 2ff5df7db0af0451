/* SPDX-License-Identifier: Apache-2.0
 *
 * select.c: from names and rules to a backend for each layer group and phase.
 *
 * In three steps for each group: list the candidates of each phase, ask each one about each layout
 * its kind of layer can have, choose. All answers are kept.
 */
#include "host/select.h"

#include <stdlib.h>
#include <string.h>

#include "host/error.h"
#include "host/problem.h"
#include "host/rules.h"
#include "host/text.h"

enum { MAX_NAME = 63 };

/* What all steps need. */
struct selector {
    attnhost *host;
    const struct config *config;
    const struct model *model;
    struct selection *selection;
    host_error failure; /* the first group that nothing can serve */
    attn_error *error;
};

static attn_status no_memory(struct selector *selector)
{
    return host_fail(selector->error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a selection");
}

const char *select_phase_name(uint32_t phase)
{
    return phase == SELECT_PREFILL ? "prefill" : "decode";
}

/* ---- Names ------------------------------------------------------------------------------------ */

/* The loaded backend type of this name, or NULL. */
static const attn_backend_type *find_type(const attnhost *host, const char *name)
{
    attnhost_type_info info = {.struct_size = sizeof info};
    for (uint32_t i = 0; i < attnhost_num_types(host); i++)
        if (attnhost_type(host, i, &info, NULL) == ATTN_OK && strcmp(info.type->name, name) == 0)
            return info.type;
    return NULL;
}

/* Every name that the user could have meant: loaded types, sections, aliases. */
static attn_status fail_unknown(struct selector *selector, const char *key, const char *got)
{
    const struct config_backends *sections = &selector->config->backends;
    uint32_t num_types = attnhost_num_types(selector->host);
    size_t count = 0, num_aliases = 0;
    while (rule_alias_at(num_aliases))
        num_aliases++;
    const char **names = calloc(1 + num_types + sections->count + num_aliases, sizeof *names);
    if (!names)
        return no_memory(selector);
    strbuf list;
    strbuf_init(&list);
    names[count++] = "auto";
    for (uint32_t i = 0; i < num_types; i++) {
        attnhost_type_info info = {.struct_size = sizeof info};
        if (attnhost_type(selector->host, i, &info, NULL) == ATTN_OK)
            names[count++] = info.type->name;
    }
    for (size_t i = 0; i < sections->count; i++)
        names[count++] = sections->items[i].name;
    for (size_t i = 0; i < count; i++)
        strbuf_appendf(&list, "%s%s", i ? ", " : "", names[i]);
    for (size_t i = 0; i < num_aliases; i++)
        names[count++] = rule_alias_at(i);
    const char *near = text_nearest(got, names, count);
    attn_status status =
        config_fail(selector->config, key, selector->error,
                    "no backend is called '%s'%s%s%s: accepted %s, or an alias such as fa3", got,
                    near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "",
                    strbuf_text(&list));
    strbuf_finish(&list);
    free(names);
    return status;
}

/* What an explicit name stands for: a name that the host knows into *name, or NULL and why it cannot
 * be used into `absent`. CONFIG_ERROR for a name that nobody knows. */
static attn_status resolve(struct selector *selector, const char *key, const char *wanted,
                           const char **name, char *absent, size_t size)
{
    const struct config_backend *section = config_backend(selector->config, wanted);
    const char *alias = section || find_type(selector->host, wanted) ? NULL : rule_alias(wanted);
    const char *type = section ? section->type : alias ? alias : wanted;
    *name = NULL;
    if (find_type(selector->host, type)) {
        *name = alias ? alias : wanted;
        return ATTN_OK;
    }
    if (alias)
        snprintf(absent, size, "%s stands for %s, which is not installed", wanted, alias);
    else if (section)
        snprintf(absent, size, "its backend type %s is not installed", type);
    else
        snprintf(absent, size, "not installed");
    if (alias || rule_knows(type))
        return ATTN_OK;
    if (section)
        return config_fail(selector->config, "attention.attention_backend", selector->error,
                           "[backend.%s] (%s): no backend type is called '%s'", wanted,
                           section->place, type);
    return fail_unknown(selector, key, wanted);
}

static bool is_auto(const char *wanted)
{
    return strcmp(wanted, "auto") == 0;
}

/* Does the model have a decoder? Then an encoder beside it is a tower, which attention_backend does
 * not speak of. */
static bool has_decoder(const struct model *model)
{
    for (uint32_t i = 0; i < model->num_groups; i++)
        if (model->groups[i].attn_type != ATTN_TYPE_ENCODER_ONLY)
            return true;
    return false;
}

static void set_wanted(struct select_phase *phase, const char *name, const char *key)
{
    phase->wanted = name;
    phase->key = key;
}

/* What the user wants for a phase of a group. */
static void find_wanted(const struct selector *selector, const attn_layer_group *group,
                        uint32_t index, struct select_phase *phase)
{
    const struct config_attention *keys = &selector->config->attention;
    set_wanted(phase, "auto", "attention.attention_backend");
    if (group->kind == ATTN_KIND_LINEAR) {
        phase->key = "attention.linear_attn_backend";
        if (keys->linear_attn_backend)
            phase->wanted = keys->linear_attn_backend;
        return;
    }
    if (group->attn_type == ATTN_TYPE_ENCODER_ONLY && keys->mm_attention_backend) {
        set_wanted(phase, keys->mm_attention_backend, "attention.mm_attention_backend");
        return;
    }
    if (group->attn_type == ATTN_TYPE_ENCODER_ONLY && has_decoder(selector->model))
        return;
    phase->wanted = keys->attention_backend;
    if (index == SELECT_PREFILL && keys->prefill_attention_backend)
        set_wanted(phase, keys->prefill_attention_backend, "attention.prefill_attention_backend");
    if (index == SELECT_DECODE && keys->decode_attention_backend)
        set_wanted(phase, keys->decode_attention_backend, "attention.decode_attention_backend");
}

/* ---- Layouts ---------------------------------------------------------------------------------- */

/* Layout ids that a kind of layer can have, in the host's order. Entry i is bit i of
 * select_candidate.layouts; NULL = no cache and no state. */
static void layouts_of(const attn_layer_group *group, const char *layouts[SELECT_MAX_LAYOUTS])
{
    layouts[0] = layouts[1] = NULL;
    if (model_group_has_state(group)) {
        layouts[0] = ATTN_LAYOUT_STATE_SSM_KV;
        layouts[1] = ATTN_LAYOUT_STATE_SSM_VK;
    } else if (model_group_has_kv(group) && group->mla) {
        layouts[0] = ATTN_LAYOUT_MLA_LATENT;
        layouts[1] = ATTN_LAYOUT_MLA_LATENT_FP8;
    } else if (model_group_has_kv(group)) {
        layouts[0] = ATTN_LAYOUT_KV_NHD;
        layouts[1] = ATTN_LAYOUT_KV_HND;
    }
}

/* Is layout `index` one that the user allows? kv_cache.layout speaks of K and V alone. */
static bool layout_allowed(const struct config *config, const attn_layer_group *group,
                           uint32_t index)
{
    if (!model_group_has_kv(group) && !model_group_has_state(group))
        return index == 0;
    if (group->mla || model_group_has_state(group))
        return true;
    return config->kv_cache.layout == CONFIG_LAYOUT_AUTO ||
           config->kv_cache.layout == (index == 0 ? CONFIG_LAYOUT_NHD : CONFIG_LAYOUT_HND);
}

/* Of the layouts in `mask` the one that stands first in the backend's own list; the host's order
 * where it lists none of them. */
static uint32_t preferred_layout(const attn_backend_type *type, const attn_layer_group *group,
                                 uint32_t mask)
{
    const char *layouts[SELECT_MAX_LAYOUTS];
    layouts_of(group, layouts);
    for (uint32_t l = 0; type && l < type->num_layouts; l++)
        for (uint32_t i = 0; i < SELECT_MAX_LAYOUTS; i++)
            if (mask >> i & 1 && layouts[i] && strcmp(layouts[i], type->layouts[l]) == 0)
                return i;
    return mask & 1 ? 0 : 1;
}

/* ---- Asking ----------------------------------------------------------------------------------- */

/* One query with room for all reasons, however many there are. */
static attn_status query_all(struct selector *selector, const char *name,
                             const attn_problem *problem, attn_verdict *verdict,
                             attn_reason **reasons, attn_error *error)
{
    uint32_t capacity = 0, needed = 8;
    *reasons = NULL;
    while (capacity < needed) {
        attn_reason *grown = realloc(*reasons, needed * sizeof **reasons);
        if (!grown) {
            free(*reasons);
            *reasons = NULL;
            return no_memory(selector);
        }
        *reasons = grown;
        capacity = needed;
        memset(grown, 0, capacity * sizeof *grown);
        for (uint32_t i = 0; i < capacity; i++)
            grown[i].struct_size = sizeof *grown;
        *verdict = (attn_verdict){
            .struct_size = sizeof *verdict, .reasons_capacity = capacity, .reasons = grown};
        attn_status status = attnhost_query(selector->host, name, problem, verdict, error);
        if (status) {
            free(*reasons);
            *reasons = NULL;
            return status;
        }
        needed = verdict->supported ? 0 : verdict->num_reasons;
    }
    return ATTN_OK;
}

/* Ask about each layout; the verdict kept is that of the first yes, else of the first no. */
static attn_status ask(struct selector *selector, uint32_t group, uint32_t modes,
                       struct select_candidate *candidate, attn_error *error)
{
    const char *layouts[SELECT_MAX_LAYOUTS];
    const attn_layer_group *layers = &selector->model->groups[group];
    layouts_of(layers, layouts);
    for (uint32_t i = 0; i < SELECT_MAX_LAYOUTS; i++) {
        struct problem problem;
        attn_verdict verdict;
        attn_reason *reasons;
        if (!layout_allowed(selector->config, layers, i))
            continue;
        problem_init(&problem, selector->config, selector->model, group,
                     &selector->selection->device, modes, layouts[i]);
        attn_status status = query_all(selector, candidate->name, &problem.problem, &verdict,
                                       &reasons, error);
        if (status)
            return status;
        bool better = verdict.supported && candidate->layouts == 0;
        if (verdict.supported)
            candidate->layouts |= 1u << i;
        if (better || candidate->verdict.struct_size == 0) {
            free(candidate->reasons);
            candidate->verdict = verdict;
            candidate->reasons = reasons;
        } else {
            free(reasons);
        }
    }
    return ATTN_OK;
}

static void candidate_finish(struct select_candidate *candidate)
{
    free(candidate->name);
    free(candidate->absent);
    free(candidate->reasons);
}

/* ---- Candidates ------------------------------------------------------------------------------- */

/* Append a candidate; with `absent` it is not asked. */
static attn_status add_candidate(struct selector *selector, struct select_phase *phase,
                                 const char *name, const char *absent)
{
    struct select_candidate *grown =
        realloc(phase->candidates, (phase->num_candidates + 1) * sizeof *grown);
    if (!grown)
        return no_memory(selector);
    phase->candidates = grown;
    struct select_candidate *candidate = &grown[phase->num_candidates];
    *candidate = (struct select_candidate){.name = strdup(name),
                                           .absent = absent ? strdup(absent) : NULL};
    phase->num_candidates++;
    return candidate->name && (candidate->absent || !absent) ? ATTN_OK : no_memory(selector);
}

static bool is_candidate(const struct select_phase *phase, const char *name)
{
    for (uint32_t i = 0; i < phase->num_candidates; i++)
        if (strcmp(phase->candidates[i].name, name) == 0)
            return true;
    return false;
}

/* The rule's backends, then every other type that is loaded. */
static attn_status add_auto(struct selector *selector, const attn_layer_group *group,
                            struct select_phase *phase)
{
    const struct rule *rule = rule_find(&selector->selection->device, group);
    attn_status status = ATTN_OK;
    strbuf why;
    strbuf_init(&why);
    strbuf_appendf(&why, "auto: rule \"%s\"", rule ? rule->text : "none: in order of loading");
    for (size_t i = 0; rule && i < RULE_MAX_NAMES && rule->names[i] && !status; i++)
        status = add_candidate(selector, phase, rule->names[i],
                               find_type(selector->host, rule->names[i]) ? NULL : "not installed");
    for (uint32_t i = 0; i < attnhost_num_types(selector->host) && !status; i++) {
        attnhost_type_info info = {.struct_size = sizeof info};
        status = attnhost_type(selector->host, i, &info, selector->error);
        if (!status && !is_candidate(phase, info.type->name))
            status = add_candidate(selector, phase, info.type->name,
                                   info.type->flags & ATTN_TYPE_COMPOSITE
                                       ? "a composite, taken only when it is named"
                                       : NULL);
    }
    phase->why = strbuf_steal(&why);
    return status ? status : phase->why ? ATTN_OK : no_memory(selector);
}

static attn_status add_named(struct selector *selector, struct select_phase *phase)
{
    const char *name;
    char absent[192];
    attn_status status =
        resolve(selector, phase->key, phase->wanted, &name, absent, sizeof absent);
    if (status)
        return status;
    strbuf why;
    strbuf_init(&why);
    strbuf_appendf(&why, "%s = %s (%s)", phase->key, phase->wanted,
                   config_place(selector->config, phase->key));
    phase->why = strbuf_steal(&why);
    if (!phase->why)
        return no_memory(selector);
    return add_candidate(selector, phase, name ? name : phase->wanted, name ? NULL : absent);
}

/* List and ask. Of `auto` a candidate whose options do not parse is out of the running; of a named
 * one that is the user's error. */
static attn_status fill_phase(struct selector *selector, uint32_t group, uint32_t modes,
                              struct select_phase *phase)
{
    bool automatic = is_auto(phase->wanted);
    attn_status status = automatic
                             ? add_auto(selector, &selector->model->groups[group], phase)
                             : add_named(selector, phase);
    for (uint32_t i = 0; i < phase->num_candidates && !status; i++) {
        struct select_candidate *candidate = &phase->candidates[i];
        host_error error;
        if (candidate->absent)
            continue;
        host_error_init(&error);
        status = ask(selector, group, modes, candidate, &error.base);
        if (!status)
            continue;
        if (!automatic || status == ATTN_OUT_OF_HOST_MEMORY)
            return host_fail(selector->error, status, "%s", host_error_text(&error));
        candidate->layouts = 0;
        candidate->absent = strdup(host_error_text(&error));
        status = candidate->absent ? ATTN_OK : no_memory(selector);
    }
    return status;
}

/* ---- Choosing --------------------------------------------------------------------------------- */

/* Take backend `name` for both phases of a group: it must serve them together. *taken tells. */
static attn_status take(struct selector *selector, uint32_t group, const char *name,
                        const char *type, uint32_t modes, uint32_t allowed, bool *taken);

/* A hybrid_phase backend of two others, defined in the host, its name into `name`. */
static attn_status define_pair(struct selector *selector, const char *prefill, const char *decode,
                               char name[MAX_NAME + 1])
{
    bool by_decode =
        selector->config->attention.speculative_attention_mode == CONFIG_SPECULATIVE_DECODE;
    const char *const pairs[] = {"prefill", prefill, "decode", decode,
                                 "speculative_attention_mode", by_decode ? "decode" : "prefill"};
    /* The name tells all there is, so that a second selection finds what the first one defined. */
    snprintf(name, MAX_NAME + 1, "%.28s-%.28s%s", prefill, decode, by_decode ? "-spec" : "");
    for (char *c = name; *c; c++)
        if (*c == '.')
            *c = '_';
    if (config_backend(selector->config, name))
        return host_fail(selector->error, ATTN_CONFIG_ERROR,
                         "[backend.%s] (%s): this name is needed for the pair of %s and %s: "
                         "accepted another name, or that name as attention_backend",
                         name, config_backend(selector->config, name)->place, prefill, decode);
    host_error error;
    host_error_init(&error);
    attn_status status =
        attnhost_define_backend(selector->host, name, "hybrid_phase", pairs, 3, &error.base);
    if (status && status != ATTN_CONFIG_ERROR)
        return host_fail(selector->error, status, "%s", host_error_text(&error));
    return ATTN_OK;
}

/* The first pair of candidates that work together. */
static attn_status choose_pair(struct selector *selector, uint32_t group, uint32_t modes)
{
    struct select_group *chosen = &selector->selection->groups[group];
    struct select_phase *prefill = &chosen->phases[SELECT_PREFILL];
    struct select_phase *decode = &chosen->phases[SELECT_DECODE];
    if (!find_type(selector->host, "hybrid_phase"))
        return ATTN_OK;
    for (uint32_t p = 0; p < prefill->num_candidates; p++) {
        for (uint32_t d = 0; d < decode->num_candidates; d++) {
            const struct select_candidate *first = &prefill->candidates[p];
            const struct select_candidate *second = &decode->candidates[d];
            uint32_t common = first->layouts & second->layouts;
            char name[MAX_NAME + 1];
            bool taken = false;
            if (common == 0 || strcmp(first->name, second->name) == 0)
                continue;
            attn_status status = define_pair(selector, first->name, second->name, name);
            if (!status)
                status = take(selector, group, name, "hybrid_phase", modes, common, &taken);
            if (status)
                return status;
            if (taken) {
                prefill->chosen = (int32_t)p;
                decode->chosen = (int32_t)d;
                return ATTN_OK;
            }
        }
    }
    return ATTN_OK;
}

/* The first backend that serves both phases, or the one phase there is. */
static attn_status choose_one(struct selector *selector, uint32_t group, uint32_t modes)
{
    struct select_group *chosen = &selector->selection->groups[group];
    struct select_phase *prefill = &chosen->phases[SELECT_PREFILL];
    struct select_phase *decode = &chosen->phases[SELECT_DECODE];
    for (uint32_t p = 0; p < prefill->num_candidates; p++) {
        const struct select_candidate *candidate = &prefill->candidates[p];
        uint32_t allowed = candidate->layouts, d = 0;
        bool taken = false;
        if (decode->exists) {
            while (d < decode->num_candidates &&
                   strcmp(decode->candidates[d].name, candidate->name) != 0)
                d++;
            allowed &= d < decode->num_candidates ? decode->candidates[d].layouts : 0;
        }
        if (allowed == 0)
            continue;
        attn_status status =
            take(selector, group, candidate->name, candidate->name, modes, allowed, &taken);
        if (status)
            return status;
        if (taken) {
            prefill->chosen = (int32_t)p;
            decode->chosen = decode->exists ? (int32_t)d : -1;
            return ATTN_OK;
        }
    }
    return ATTN_OK;
}

static attn_status add_to_unit(struct selector *selector, uint32_t group, const char *name,
                               const char *type, uint32_t modes)
{
    struct selection *selection = selector->selection;
    uint32_t index = 0;
    while (index < selection->num_units && strcmp(selection->units[index].backend, name) != 0)
        index++;
    if (index == selection->num_units) {
        struct select_unit *grown =
            realloc(selection->units, (selection->num_units + 1) * sizeof *grown);
        if (!grown)
            return no_memory(selector);
        selection->units = grown;
        grown[index] = (struct select_unit){
            .backend = strdup(name),
            .type = strdup(type),
            .groups = calloc(selection->num_groups, sizeof *grown->groups)};
        selection->num_units++;
        if (!grown[index].backend || !grown[index].type || !grown[index].groups)
            return no_memory(selector);
    }
    struct select_unit *unit = &selection->units[index];
    unit->groups[unit->num_groups++] = group;
    unit->modes |= modes;
    selection->groups[group].unit = (int32_t)index;
    return ATTN_OK;
}

static attn_status take(struct selector *selector, uint32_t group, const char *name,
                        const char *type, uint32_t modes, uint32_t allowed, bool *taken)
{
    const attn_layer_group *layers = &selector->model->groups[group];
    struct select_group *chosen = &selector->selection->groups[group];
    const char *layouts[SELECT_MAX_LAYOUTS];
    struct select_candidate both = {.name = strdup(name)};
    if (!both.name)
        return no_memory(selector);
    attn_status status = ask(selector, group, modes, &both, selector->error);
    allowed &= both.layouts;
    *taken = !status && allowed != 0;
    if (*taken) {
        const struct config_backend *section = config_backend(selector->config, type);
        uint32_t layout = preferred_layout(
            find_type(selector->host, section ? section->type : type), layers, allowed);
        layouts_of(layers, layouts);
        chosen->kv_layout = model_group_has_kv(layers) ? layouts[layout] : NULL;
        chosen->state_layout = model_group_has_state(layers) ? layouts[layout] : NULL;
        chosen->verdict = both.verdict;
        chosen->verdict.reasons = NULL;
        chosen->verdict.reasons_capacity = 0;
        status = add_to_unit(selector, group, name, type, modes);
    }
    candidate_finish(&both);
    return status;
}

/* ---- Failure ---------------------------------------------------------------------------------- */

static void append_candidate(strbuf *text, const struct select_candidate *candidate)
{
    char reason[320];
    strbuf_appendf(text, "%s: ", candidate->name);
    if (candidate->absent) {
        strbuf_append(text, candidate->absent);
        return;
    }
    if (candidate->layouts) {
        strbuf_append(text, "accepts this phase");
        return;
    }
    for (uint32_t i = 0; i < candidate->verdict.num_reasons; i++) {
        select_reason_text(&candidate->reasons[i], reason, sizeof reason);
        strbuf_appendf(text, "%s%s", i ? "; " : "", reason);
    }
}

static bool some_accept(const struct select_phase *phase)
{
    for (uint32_t i = 0; i < phase->num_candidates; i++)
        if (phase->candidates[i].layouts)
            return true;
    return false;
}

/* Each phase can be served, but not together. */
static void append_mismatch(const struct selector *selector, const struct select_group *chosen,
                            strbuf *text)
{
    const struct select_phase *prefill = &chosen->phases[SELECT_PREFILL];
    const struct select_phase *decode = &chosen->phases[SELECT_DECODE];
    uint32_t first = 0, second = 0;
    for (uint32_t i = 0; i < prefill->num_candidates; i++)
        first |= prefill->candidates[i].layouts;
    for (uint32_t i = 0; i < decode->num_candidates; i++)
        second |= decode->candidates[i].layouts;
    if ((first & second) == 0)
        strbuf_append(text, "kv_layout: no backend for prefill and backend for decode read the "
                            "same layout of the KV cache");
    else if (!find_type(selector->host, "hybrid_phase"))
        strbuf_append(text, "prefill and decode need two backends, and hybrid_phase, which joins "
                            "them, is not installed");
    else
        strbuf_append(text, "no backend accepts prefill and decode together");
}

/* Keep what is wrong with this group, if it is the first one. */
static attn_status note_failure(struct selector *selector, uint32_t group)
{
    const struct select_group *chosen = &selector->selection->groups[group];
    char layers[64];
    strbuf text;
    if (selector->failure.base.code)
        return ATTN_OK;
    strbuf_init(&text);
    model_layers_text(&selector->model->groups[group], layers, sizeof layers);
    bool named = false;
    for (uint32_t p = 0; p < SELECT_PHASES; p++) {
        const struct select_phase *phase = &chosen->phases[p];
        if (!phase->exists || some_accept(phase))
            continue;
        named = true;
        strbuf_appendf(&text, "%sno backend serves layers %s in %s (%s)",
                       strbuf_text(&text)[0] ? "; " : "", layers, select_phase_name(p), phase->why);
        for (uint32_t i = 0; i < phase->num_candidates; i++) {
            strbuf_append(&text, i ? "; " : ": ");
            append_candidate(&text, &phase->candidates[i]);
        }
    }
    if (!named) {
        strbuf_appendf(&text, "no backend serves layers %s: ", layers);
        append_mismatch(selector, chosen, &text);
    }
    host_fail(&selector->failure.base, ATTN_UNSUPPORTED, "%s", strbuf_text(&text));
    strbuf_finish(&text);
    return ATTN_OK;
}

/* ---- The whole -------------------------------------------------------------------------------- */

static attn_status select_one(struct selector *selector, uint32_t group)
{
    const attn_layer_group *layers = &selector->model->groups[group];
    struct select_group *chosen = &selector->selection->groups[group];
    struct select_phase *prefill = &chosen->phases[SELECT_PREFILL];
    struct select_phase *decode = &chosen->phases[SELECT_DECODE];
    chosen->unit = -1;
    prefill->chosen = decode->chosen = -1;
    prefill->exists = true;
    decode->exists = model_group_decodes(layers);
    find_wanted(selector, layers, SELECT_PREFILL, prefill);
    find_wanted(selector, layers, SELECT_DECODE, decode);

    bool pair = decode->exists && strcmp(prefill->wanted, decode->wanted) != 0;
    uint32_t prefill_modes = decode->exists ? problem_prefill_modes(selector->config)
                                            : ATTN_MODE_BIT(ATTN_MODE_EXTEND);
    uint32_t modes = prefill_modes | (decode->exists ? problem_decode_modes() : 0);
    /* Of a pair the composite serves MIXED, by its parts. */
    attn_status status = fill_phase(
        selector, group, pair ? ATTN_MODE_BIT(ATTN_MODE_EXTEND) : prefill_modes, prefill);
    if (!status && decode->exists)
        status = fill_phase(selector, group, problem_decode_modes(), decode);
    if (!status)
        status = choose_one(selector, group, modes);
    if (!status && chosen->unit < 0 && decode->exists)
        status = choose_pair(selector, group, modes);
    return status ? status : chosen->unit < 0 ? note_failure(selector, group) : ATTN_OK;
}

attn_status select_create(attnhost *host, const struct config *config, const struct model *model,
                          const attn_device *device, struct selection **out, attn_error *error)
{
    attn_status status = problem_check_scales(config, model, error);
    if (status)
        return status;
    struct selector selector = {.host = host, .config = config, .model = model, .error = error};
    host_error_init(&selector.failure);
    struct selection *selection = calloc(1, sizeof *selection);
    if (!selection)
        return no_memory(&selector);
    selector.selection = selection;
    selection->model = model;
    selection->device = *device;
    selection->groups = calloc(model->num_groups, sizeof *selection->groups);
    if (!selection->groups)
        status = no_memory(&selector);
    else
        selection->num_groups = model->num_groups;
    for (uint32_t i = 0; i < selection->num_groups && !status; i++)
        status = select_one(&selector, i);
    if (status) {
        select_destroy(selection);
        return status;
    }
    *out = selection;
    return selector.failure.base.code ? host_fail(error, selector.failure.base.code, "%s",
                                                  host_error_text(&selector.failure))
                                      : ATTN_OK;
}

void select_destroy(struct selection *selection)
{
    if (!selection)
        return;
    for (uint32_t g = 0; g < selection->num_groups; g++) {
        for (uint32_t p = 0; p < SELECT_PHASES; p++) {
            struct select_phase *phase = &selection->groups[g].phases[p];
            for (uint32_t c = 0; c < phase->num_candidates; c++)
                candidate_finish(&phase->candidates[c]);
            free(phase->candidates);
            free(phase->why);
        }
    }
    for (uint32_t u = 0; u < selection->num_units; u++) {
        free(selection->units[u].backend);
        free(selection->units[u].type);
        free(selection->units[u].groups);
    }
    free(selection->units);
    free(selection->groups);
    free(selection);
}

const char *select_backend(const struct selection *selection, uint32_t group, uint32_t phase)
{
    const struct select_phase *answer = &selection->groups[group].phases[phase];
    return answer->chosen < 0 ? NULL : answer->candidates[answer->chosen].name;
}
