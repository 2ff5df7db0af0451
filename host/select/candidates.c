/* SPDX-License-Identifier: Apache-2.0
 *
 * candidates.c: the candidates of a phase, and their answers.
 */
#include "host/select/select_private.h"

#include <stdlib.h>
#include <string.h>

#include "host/embed/embed.h"
#include "host/kinds/kinds.h"
#include "host/select/platform.h"
#include "host/select/problem.h"
#include "host/select/routes.h"
#include "host/base/text.h"

attn_status select_no_memory(struct selector *selector)
{
    return host_fail(selector->error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a selection");
}

/* ---- Names ----------------------------------------------------------------------------------- */

/* The loaded backend type of this name, or NULL. */
const attn_backend_type *select_find_type(const attnhost *host, const char *name)
{
    attnhost_type_info info = {.struct_size = sizeof info};
    for (uint32_t i = 0; i < attnhost_num_types(host); i++)
        if (attnhost_type(host, i, &info, NULL) == ATTN_OK && strcmp(info.type->name, name) == 0)
            return info.type;
    return NULL;
}

char *select_installed(const attnhost *host)
{
    attnhost_type_info info = {.struct_size = sizeof info};
    strbuf text;
    strbuf_init(&text);
    for (uint32_t i = 0; i < attnhost_num_types(host); i++)
        if (attnhost_type(host, i, &info, NULL) == ATTN_OK)
            strbuf_appendf(&text, "%s%s", i ? ", " : "", info.type->name);
    if (attnhost_num_types(host) == 0)
        strbuf_append(&text, "none");
    return strbuf_steal(&text);
}

/* All aliases into names[], which may be NULL to count them. */
static size_t list_aliases(const struct rules *rules, const char **names)
{
    const struct rule_list *backends = &rules->lists[RULE_BACKEND];
    size_t count = 0;
    for (size_t i = 0; i < backends->count; i++)
        for (size_t a = 0; a < backends->items[i].aliases.count; a++, count++)
            if (names)
                names[count] = backends->items[i].aliases.items[a];
    return count;
}

/* Accepted names: backend types, and, for a key that names a backend, auto and sections. The
 * caller's array has room. */
static size_t list_accepted(const struct selector *selector, bool types_alone, const char **names)
{
    const struct config_backends *sections = &selector->config->backends;
    size_t count = 0;
    if (!types_alone)
        names[count++] = "auto";
    for (uint32_t i = 0; i < attnhost_num_types(selector->host); i++) {
        attnhost_type_info info = {.struct_size = sizeof info};
        if (attnhost_type(selector->host, i, &info, NULL) == ATTN_OK)
            names[count++] = info.type->name;
    }
    for (size_t i = 0; !types_alone && i < sections->count; i++)
        names[count++] = sections->items[i].name;
    return count;
}

/* `got` is an unknown name: the value of `key`, or the type of the section that it names. */
static attn_status fail_unknown(struct selector *selector, const char *key,
                                const struct config_backend *section, const char *got)
{
    const struct rules *rules = selector->selection->rules;
    size_t num_aliases = section ? 0 : list_aliases(rules, NULL);
    size_t most = 1 + attnhost_num_types(selector->host) + selector->config->backends.count;
    const char **names = calloc(most + num_aliases, sizeof *names);
    if (!names)
        return select_no_memory(selector);
    size_t count = list_accepted(selector, section != NULL, names);
    if (num_aliases > 0)
        list_aliases(rules, names + count);
    const char *near = text_nearest(got, names, count + num_aliases);
    strbuf text;
    strbuf_init(&text);
    if (section)
        strbuf_appendf(&text, "[backend.%s] (%s): ", section->name, section->place);
    strbuf_appendf(&text, "no backend%s is called '%s'", section ? " type" : "", got);
    if (near)
        strbuf_appendf(&text, ", did you mean '%s'?", near);
    strbuf_append(&text, near ? " accepted: " : "; accepted: ");
    for (size_t i = 0; i < count; i++)
        strbuf_appendf(&text, "%s%s", i ? ", " : "", names[i]);
    strbuf_append(&text, section ? count ? "" : "none" : ", or an alias such as fa3");
    attn_status status =
        config_fail(selector->config, key, selector->error, "%s", strbuf_text(&text));
    strbuf_finish(&text);
    free(names);
    return status;
}

/* The meaning of an explicit name: *name becomes a name that the host knows, or NULL, with the
 * reason in `absent`. CONFIG_ERROR for an unknown name. */
static attn_status resolve(struct selector *selector, const char *key, const char *wanted,
                           const char **name, strbuf *absent)
{
    const struct rules *rules = selector->selection->rules;
    const struct config_backend *section = config_backend(selector->config, wanted);
    const struct rule *alias =
        section || select_find_type(selector->host, wanted) ? NULL : rules_alias(rules, wanted);
    const char *type = section ? section->type : alias ? alias->name : wanted;
    const struct rule *known = rules_backend(rules, type);
    *name = NULL;
    if (composer_find(&selector->host->composer, wanted) && !section) { /* the host's own: routes */
        *name = wanted;
        return ATTN_OK;
    }
    if (select_find_type(selector->host, type)) {
        *name = alias ? type : wanted;
        return ATTN_OK;
    }
    if (!known)
        return fail_unknown(selector, key, section, type);
    if (known->plugin.count > 0) {
        strbuf_appendf(absent, "%s%s%s%s (%s); installed: %s", alias ? wanted : "",
                       alias ? " stands for " : "", alias ? type : "",
                       alias ? ": " SELECT_NO_PLUGIN_TEXT : SELECT_NO_PLUGIN_TEXT, known->text,
                       selector->selection->installed);
        return ATTN_OK;
    }
    if (alias)
        strbuf_appendf(absent, "%s stands for %s, which is not installed", wanted, type);
    else if (section)
        strbuf_appendf(absent, "its backend type %s is not installed", type);
    else
        strbuf_append(absent, "not installed");
    strbuf_appendf(absent, " (%s); installed: %s; plugins.path names other folders of plugins",
                   known->text, selector->selection->installed);
    return ATTN_OK;
}

static bool is_auto(const char *wanted)
{
    return strcmp(wanted, "auto") == 0;
}

attn_status select_check_names(struct selector *selector)
{
    const struct config_attention *keys = &selector->config->attention;
    const struct {
        const char *key, *name;
    } given[] = {
        {"attention.attention_backend", keys->attention_backend},
        {"attention.prefill_attention_backend", keys->prefill_attention_backend},
        {"attention.decode_attention_backend", keys->decode_attention_backend},
        {"attention.mm_attention_backend", keys->mm_attention_backend},
        {"attention.linear_attn_backend", keys->linear_attn_backend},
    };
    attn_status status = ATTN_OK;
    for (size_t i = 0; i < sizeof given / sizeof *given && status == ATTN_OK; i++) {
        const char *name;
        strbuf absent;
        if (!given[i].name || is_auto(given[i].name))
            continue;
        strbuf_init(&absent);
        status = resolve(selector, given[i].key, given[i].name, &name, &absent);
        strbuf_finish(&absent);
    }
    return status;
}

/* Does the model have a decoder? Then an encoder next to it is a tower, to which attention_backend
 * does not apply. */
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

/* The user's setting for a phase of a group. */
void select_find_wanted(const struct selector *selector, const attn_layer_group *group,
                        uint32_t index, struct select_phase *phase)
{
    const struct config_attention *keys = &selector->config->attention;
    const struct kind_ops *kind = kind_of(group);
    set_wanted(phase, "auto", "attention.attention_backend");
    if (kind->backend_key) {
        const char *named = kind->backend(keys);
        set_wanted(phase, named ? named : "auto", kind->backend_key);
        return;
    }
    if (group->attn_type == ATTN_TYPE_ENCODER_ONLY && keys->mm_attention_backend) {
        set_wanted(phase, keys->mm_attention_backend, "attention.mm_attention_backend");
        return;
    }
    if (group->attn_type == ATTN_TYPE_ENCODER_ONLY && has_decoder(selector->model))
        return;
    phase->wanted = keys->attention_backend;
    if (keys->routes.count >
        0) /* the default among them, and no key for a single phase next to them */
        set_wanted(phase, ROUTES_NAME, "attention.route.<n>");
    if (index == SELECT_PREFILL && keys->prefill_attention_backend)
        set_wanted(phase, keys->prefill_attention_backend, "attention.prefill_attention_backend");
    if (index == SELECT_DECODE && keys->decode_attention_backend)
        set_wanted(phase, keys->decode_attention_backend, "attention.decode_attention_backend");
}

/* ---- Layouts --------------------------------------------------------------------------------- */

/* Is layout `index` one that the user allows, and that the layers can have? */
static bool layout_allowed(const struct selector *selector, const attn_layer_group *group,
                           uint32_t index)
{
    const struct kind_ops *kind = kind_of(group);
    attn_dtype kv_dtype = problem_kv_dtype(selector->config, selector->model, group);
    if (!kind_layouts(group)[0])
        return index == 0;
    return !kind->allows || kind->allows(&selector->config->kv_cache, group, kv_dtype, index);
}

/* The layout in `mask` that comes first in the backend's own list, or in the host's order if that
 * list has none of them. */
uint32_t select_preferred_layout(const attn_backend_type *type, const attn_layer_group *group,
                                 uint32_t mask)
{
    const char *const *layouts = kind_layouts(group);
    for (uint32_t l = 0; type && l < type->num_layouts; l++)
        for (uint32_t i = 0; i < KIND_MAX_LAYOUTS; i++)
            if (mask >> i & 1 && layouts[i] && strcmp(layouts[i], type->layouts[l]) == 0)
                return i;
    return mask & 1 ? 0 : 1;
}

/* ---- Asking ---------------------------------------------------------------------------------- */

/* One query with room for all reasons; the number of attempts is bounded, as a backend may report
 * more reasons each time. */
static attn_status query_all(struct selector *selector, const char *name,
                             const attn_problem *problem, attn_verdict *verdict,
                             attn_reason **reasons, attn_error *error)
{
    enum { MAX_QUERIES = 3 };
    uint32_t capacity = 0, needed = 8;
    *reasons = NULL;
    for (int asked = 0; capacity < needed && asked < MAX_QUERIES; asked++) {
        attn_reason *grown = realloc(*reasons, needed * sizeof **reasons);
        if (!grown) {
            free(*reasons);
            *reasons = NULL;
            return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the reasons of %s",
                             name);
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
    if (!verdict->supported && verdict->num_reasons > capacity)
        verdict->num_reasons = capacity;
    return ATTN_OK;
}

/* No backend can be queried about a device type that the ABI lacks. */
static attn_status refuse_foreign(struct selector *selector, struct select_candidate *candidate)
{
    attn_reason *reason = calloc(1, sizeof *reason);
    if (!reason)
        return select_no_memory(selector);
    *reason = (attn_reason){
        .struct_size = sizeof *reason, .code = ATTN_REASON_ARCH, .field = ATTN_FIELD_DEVICE_TYPE};
    snprintf(reason->got, sizeof reason->got, "%s",
             platform_type_name(selector->selection->device.type));
    snprintf(reason->accepted, sizeof reason->accepted, "cpu, cuda");
    candidate->reasons = reason;
    candidate->verdict = (attn_verdict){
        .struct_size = sizeof(attn_verdict), .num_reasons = 1, .reasons_capacity = 1};
    return ATTN_OK;
}

/* Ask about each layout; the verdict kept is that of the first yes, else of the first no. */
attn_status select_ask(struct selector *selector, uint32_t group, uint32_t modes,
                       struct select_candidate *candidate, attn_error *error)
{
    const attn_layer_group *layers = &selector->model->groups[group];
    const char *const *layouts = kind_layouts(layers);
    if (platform_is_foreign(&selector->selection->device))
        return refuse_foreign(selector, candidate);
    for (uint32_t i = 0; i < KIND_MAX_LAYOUTS; i++) {
        struct problem problem;
        attn_verdict verdict;
        attn_reason *reasons;
        if (!layout_allowed(selector, layers, i))
            continue;
        problem_init(&problem, selector->config, selector->model, group,
                     &selector->selection->device, modes, layouts[i]);
        attn_status status =
            query_all(selector, candidate->name, &problem.problem, &verdict, &reasons, error);
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

void select_candidate_finish(struct select_candidate *candidate)
{
    free(candidate->name);
    free(candidate->absent);
    free(candidate->reasons);
}

/* ---- Candidates ------------------------------------------------------------------------------ */

/* Append a candidate; with `absent` it is not asked. */
static attn_status add_candidate(struct selector *selector, struct select_phase *phase,
                                 const char *name, uint32_t absence, const char *absent)
{
    struct select_candidate *grown =
        realloc(phase->candidates, (phase->num_candidates + 1) * sizeof *grown);
    if (!grown)
        return select_no_memory(selector);
    phase->candidates = grown;
    struct select_candidate *candidate = &grown[phase->num_candidates];
    *candidate = (struct select_candidate){
        .name = strdup(name), .absent = absent ? strdup(absent) : NULL, .absence = absence};
    phase->num_candidates++;
    return candidate->name && (candidate->absent || !absent) ? ATTN_OK : select_no_memory(selector);
}

static bool is_candidate(const struct select_phase *phase, const char *name)
{
    for (uint32_t i = 0; i < phase->num_candidates; i++)
        if (strcmp(phase->candidates[i].name, name) == 0)
            return true;
    return false;
}

/* The question for the rules about a group. */
static struct rule_facts facts_of(const struct selector *selector, const attn_layer_group *group)
{
    return (struct rule_facts){.device = &selector->selection->device,
                               .model = selector->model,
                               .group = group,
                               .kv_dtype =
                                   model_group_has_kv(group)
                                       ? problem_kv_dtype(selector->config, selector->model, group)
                                       : selector->model->dtype,
                               .draft_topk = problem_draft_topk(selector->config)};
}

/* A backend of the rules whose type is not loaded. */
static attn_status add_missing(struct selector *selector, struct select_phase *phase,
                               const char *name)
{
    const struct rule *known = rules_backend(selector->selection->rules, name);
    if (known && known->plugin.count > 0)
        return add_candidate(selector, phase, name, SELECT_NO_PLUGIN, SELECT_NO_PLUGIN_TEXT);
    return add_candidate(selector, phase, name, SELECT_NOT_INSTALLED, "not installed here");
}

/* The backends of the order, then every other type that is loaded. */
static attn_status add_auto(struct selector *selector, const attn_layer_group *group,
                            struct select_phase *phase)
{
    const struct rule_facts facts = facts_of(selector, group);
    const struct rule *order = rules_order(selector->selection->rules, &facts);
    attn_status status = ATTN_OK;
    strbuf why;
    strbuf_init(&why);
    strbuf_append(&why, "auto: ");
    if (order)
        strbuf_appendf(&why, "rule %s: %s", order->name, order->text);
    else
        strbuf_append(&why, "no rule: in order of loading");
    for (size_t i = 0; order && i < order->backends.count && !status; i++) {
        const char *name = order->backends.items[i];
        status = select_find_type(selector->host, name)
                     ? add_candidate(selector, phase, name, SELECT_PRESENT, NULL)
                     : add_missing(selector, phase, name);
    }
    for (uint32_t i = 0; i < attnhost_num_types(selector->host) && !status; i++) {
        attnhost_type_info info = {.struct_size = sizeof info};
        status = attnhost_type(selector->host, i, &info, selector->error);
        if (status || is_candidate(phase, info.type->name))
            continue;
        bool composite = info.type->flags & ATTN_BACKEND_COMPOSITE;
        status = add_candidate(selector, phase, info.type->name,
                               composite ? SELECT_COMPOSITE : SELECT_PRESENT,
                               composite ? "a composite, used only when it is named" : NULL);
    }
    phase->why = strbuf_steal(&why);
    return status ? status : phase->why ? ATTN_OK : select_no_memory(selector);
}

static attn_status add_named(struct selector *selector, struct select_phase *phase)
{
    const char *name;
    strbuf why, absent;
    strbuf_init(&absent);
    attn_status status = resolve(selector, phase->key, phase->wanted, &name, &absent);
    if (!status) {
        strbuf_init(&why);
        if (strcmp(phase->wanted, ROUTES_NAME) == 0 && selector->config->attention.routes.count > 0)
            routes_where(selector->config, &why);
        else
            strbuf_appendf(&why, "%s = %s (%s)", phase->key, phase->wanted,
                           config_place(selector->config, phase->key));
        phase->why = strbuf_steal(&why);
        status = phase->why ? add_candidate(selector, phase, name ? name : phase->wanted,
                                            name ? SELECT_PRESENT : SELECT_NOT_INSTALLED,
                                            name ? NULL : strbuf_text(&absent))
                            : select_no_memory(selector);
    }
    strbuf_finish(&absent);
    return status;
}

/* ---- Rules ----------------------------------------------------------------------------------- */

const char *select_type_name(const struct selector *selector, const char *name)
{
    const struct config_backend *section = config_backend(selector->config, name);
    const struct compose_definition *defined = composer_find(&selector->host->composer, name);
    const struct rule *alias = rules_alias(selector->selection->rules, name);
    if (section || defined)
        return section ? section->type : defined->type;
    return alias && !select_find_type(selector->host, name) ? alias->name : name;
}

/* Look up each candidate's rules, which may exclude it. */
static void apply_rules(struct selector *selector, const attn_layer_group *group,
                        struct select_phase *phase)
{
    const struct rules *rules = selector->selection->rules;
    const struct rule_facts facts = facts_of(selector, group);
    for (uint32_t i = 0; i < phase->num_candidates; i++) {
        struct select_candidate *candidate = &phase->candidates[i];
        const char *type = select_type_name(selector, candidate->name);
        candidate->known = rules_backend(rules, type);
        candidate->excluded = rules_exclusion(rules, &facts, type);
        if (candidate->excluded)
            candidate->blamed =
                rules_blame(candidate->excluded, &facts, candidate->got, sizeof candidate->got);
    }
}

static bool is_missing(const struct select_candidate *candidate)
{
    return candidate->absence == SELECT_NOT_INSTALLED || candidate->absence == SELECT_NO_PLUGIN;
}

/* A backend without kernels accepts problems that it could serve with them: this counts on a
 * simulated device, but on the real one it cannot serve. */
static attn_status set_aside_without_kernels(struct selector *selector,
                                             struct select_candidate *candidate)
{
    const attn_backend_type *type =
        select_find_type(selector->host, select_type_name(selector, candidate->name));
    if (selector->selection->simulated || candidate->layouts == 0 || !type ||
        !(type->flags & ATTN_BACKEND_WITHOUT_KERNELS))
        return ATTN_OK;
    candidate->layouts = 0;
    candidate->absence = SELECT_WITHOUT_KERNELS;
    candidate->absent = strdup("built without kernels");
    return candidate->absent ? ATTN_OK : select_no_memory(selector);
}

/* The first of the order that serves, or would if it were installed: it runs on this device and is
 * not excluded. */
static int32_t find_preferred(const struct selector *selector, const attn_layer_group *group,
                              const struct select_phase *phase)
{
    const struct rule_facts facts = facts_of(selector, group);
    const struct rule *order = rules_order(selector->selection->rules, &facts);
    for (uint32_t i = 0; order && i < order->backends.count && i < phase->num_candidates; i++) {
        const struct select_candidate *candidate = &phase->candidates[i];
        if (candidate->layouts ||
            (is_missing(candidate) && !candidate->excluded && candidate->known &&
             rules_runs_on(&candidate->known->platforms, facts.device)))
            return (int32_t)i;
    }
    return -1;
}

/* List and ask. With `auto`, a candidate whose options do not parse is skipped; for a named backend
 * that is the user's error. */
attn_status select_fill_phase(struct selector *selector, uint32_t group, uint32_t modes,
                              struct select_phase *phase)
{
    bool automatic = is_auto(phase->wanted);
    attn_status status = automatic ? add_auto(selector, &selector->model->groups[group], phase)
                                   : add_named(selector, phase);
    if (!status)
        apply_rules(selector, &selector->model->groups[group], phase);
    for (uint32_t i = 0; i < phase->num_candidates && !status; i++) {
        struct select_candidate *candidate = &phase->candidates[i];
        host_error error;
        if (candidate->absent || candidate->excluded)
            continue;
        host_error_init(&error);
        status = select_ask(selector, group, modes, candidate, &error.base);
        if (!status) {
            status = set_aside_without_kernels(selector, candidate);
            continue;
        }
        if (!automatic || status == ATTN_OUT_OF_HOST_MEMORY)
            return host_fail(selector->error, status, "%s", host_error_text(&error));
        candidate->layouts = 0;
        candidate->absence = SELECT_NO_ANSWER;
        candidate->absent = strdup(host_error_text(&error));
        status = candidate->absent ? ATTN_OK : select_no_memory(selector);
    }
    if (automatic && !status)
        phase->preferred = find_preferred(selector, &selector->model->groups[group], phase);
    return status;
}
