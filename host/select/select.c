/* SPDX-License-Identifier: Apache-2.0
 *
 * select.c: from the candidates of each phase to a backend for each layer group.
 *
 * In three steps for each group: list the candidates of each phase, query each for every layout of
 * its kind of layer (select/candidates.c), choose. All answers are kept.
 */
#include "host/select/select_private.h"

#include <stdlib.h>
#include <string.h>

#include "host/embed/embed.h"
#include "host/kinds/kinds.h"
#include "host/select/problem.h"
#include "host/select/routes.h"
#include "host/base/message.h"
#include "host/base/text.h"

enum { MAX_NAME = 63 };

const char *select_phase_name(uint32_t phase)
{
    return phase == SELECT_PREFILL ? "prefill" : "decode";
}

/* ---- Choosing -------------------------------------------------------------------------------- */

/* Take backend `name` for both phases of a group: it must serve them together. *taken says so. */
static attn_status take(struct selector *selector, uint32_t group, const char *name,
                        const char *type, uint32_t modes, uint32_t allowed, bool *taken);

/* Is this the hybrid_phase backend with these options, key by key? */
static bool is_pair(const struct compose_definition *definition, const char *const *pairs,
                    size_t num_pairs)
{
    bool same = strcmp(definition->type, "hybrid_phase") == 0 && definition->num_texts == num_pairs;
    for (size_t i = 0; same && i < num_pairs; i++)
        same = strcmp(definition->texts[i].key, pairs[2 * i]) == 0 &&
               strcmp(definition->texts[i].value, pairs[2 * i + 1]) == 0;
    return same;
}

/* A hybrid_phase backend of two others, defined in the host, its name into `name`. */
static attn_status define_pair(struct selector *selector, const char *prefill, const char *decode,
                               char name[MAX_NAME + 1])
{
    bool by_decode =
        selector->config->attention.speculative_attention_mode == CONFIG_SPECULATIVE_DECODE;
    const char *const pairs[] = {"prefill",
                                 prefill,
                                 "decode",
                                 decode,
                                 "speculative_attention_mode",
                                 by_decode ? "decode" : "prefill"};
    int length = snprintf(name, MAX_NAME + 1, "%s-%s%s", prefill, decode, by_decode ? "-spec" : "");
    if (length > MAX_NAME)
        return host_fail(selector->error, ATTN_CONFIG_ERROR,
                         "the pair of %s and %s would be called %s-%s%s: accepted names of %d "
                         "characters together",
                         prefill, decode, prefill, decode, by_decode ? "-spec" : "", MAX_NAME - 6);
    /* A second selection finds the definition of the first one. */
    const struct compose_definition *known = composer_find(&selector->host->composer, name);
    if (known && is_pair(known, pairs, 3))
        return ATTN_OK;
    if (known)
        return host_fail(selector->error, ATTN_CONFIG_ERROR,
                         "backend %s (%s): this name is needed for the pair of %s and %s: accepted "
                         "another name, or that name as attention_backend",
                         name, known->place, prefill, decode);
    return attnhost_define_backend(selector->host, name, "hybrid_phase", pairs, 3, selector->error);
}

/* The first pair of candidates that work together. */
static attn_status choose_pair(struct selector *selector, uint32_t group, uint32_t modes)
{
    struct select_group *chosen = &selector->selection->groups[group];
    struct select_phase *prefill = &chosen->phases[SELECT_PREFILL];
    struct select_phase *decode = &chosen->phases[SELECT_DECODE];
    if (!select_find_type(selector->host, "hybrid_phase"))
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

/* Layers that are called in the expanded form are a unit of their own, even of a backend that
 * serves others: their metadata is planned for bounds and batches (partial results over a prefix)
 * that a recurrence does not have. Encoders next to a decoder are a unit of their own, too, as they
 * get other batches. */
static bool goes_with(const struct selector *selector, uint32_t group, const char *name,
                      const struct select_unit *unit)
{
    const struct model *model = selector->model;
    const attn_layer_group *first = &model->groups[unit->groups[0]], *more = &model->groups[group];
    return strcmp(unit->backend, name) == 0 &&
           kind_expands(model, first) == kind_expands(model, more) &&
           (first->attn_type == ATTN_TYPE_ENCODER_ONLY) ==
               (more->attn_type == ATTN_TYPE_ENCODER_ONLY);
}

static attn_status add_to_unit(struct selector *selector, uint32_t group, const char *name,
                               const char *type, uint32_t modes)
{
    struct selection *selection = selector->selection;
    uint32_t index = 0;
    while (index < selection->num_units &&
           !goes_with(selector, group, name, &selection->units[index]))
        index++;
    if (index == selection->num_units) {
        struct select_unit *grown =
            realloc(selection->units, (selection->num_units + 1) * sizeof *grown);
        if (!grown)
            return select_no_memory(selector);
        selection->units = grown;
        grown[index] =
            (struct select_unit){.backend = strdup(name),
                                 .type = strdup(type),
                                 .groups = calloc(selection->num_groups, sizeof *grown->groups)};
        selection->num_units++;
        if (!grown[index].backend || !grown[index].type || !grown[index].groups)
            return select_no_memory(selector);
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
    const char *const *layouts = kind_layouts(layers);
    struct select_candidate both = {.name = strdup(name)};
    if (!both.name)
        return select_no_memory(selector);
    attn_status status = select_ask(selector, group, modes, &both, selector->error);
    allowed &= both.layouts;
    *taken = !status && allowed != 0;
    if (*taken) {
        uint32_t layout = select_preferred_layout(
            select_find_type(selector->host, select_type_name(selector, type)), layers, allowed);
        chosen->kv_layout = model_group_has_kv(layers) ? layouts[layout] : NULL;
        chosen->state_layout = model_group_has_state(layers) ? layouts[layout] : NULL;
        chosen->verdict = both.verdict;
        chosen->verdict.reasons = NULL;
        chosen->verdict.reasons_capacity = 0;
        status = add_to_unit(selector, group, name, type, modes);
    }
    select_candidate_finish(&both);
    return status;
}

/* ---- Failure --------------------------------------------------------------------------------- */

static void append_candidate(const struct selector *selector, strbuf *text,
                             const struct select_candidate *candidate)
{
    char reason[320];
    strbuf_appendf(text, "%s: ", candidate->name);
    if (candidate->excluded) {
        select_exclusion_text(candidate, reason, sizeof reason);
        strbuf_append(text, reason);
        return;
    }
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
        if (strcmp(candidate->name, ROUTES_NAME) == 0)
            routes_to_child(selector->config, &candidate->reasons[i], text);
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
    else if (!select_find_type(selector->host, "hybrid_phase"))
        strbuf_append(text, "prefill and decode need two backends, and hybrid_phase, which joins "
                            "them, is not installed");
    else
        strbuf_append(text, "no backend accepts prefill and decode together");
}

/* A paragraph for each candidate of a phase that none of them accepts. */
static void append_reasons(const struct selector *selector, const struct select_phase *phase,
                           strbuf *text)
{
    strbuf_appendf(text, " (%s)", phase->why);
    for (uint32_t i = 0; i < phase->num_candidates; i++) {
        strbuf_append(text, MESSAGE_PARAGRAPH);
        append_candidate(selector, text, &phase->candidates[i]);
    }
}

/* List the phases that no candidate accepts, both together if their texts are equal. False: none.
 */
static bool append_phases(const struct selector *selector, const struct select_group *chosen,
                          const char *layers, strbuf *text)
{
    strbuf reasons[SELECT_PHASES];
    bool fails[SELECT_PHASES];
    for (uint32_t p = 0; p < SELECT_PHASES; p++) {
        strbuf_init(&reasons[p]);
        fails[p] = chosen->phases[p].exists && !some_accept(&chosen->phases[p]);
        if (fails[p])
            append_reasons(selector, &chosen->phases[p], &reasons[p]);
    }
    bool same =
        fails[SELECT_PREFILL] && fails[SELECT_DECODE] &&
        strcmp(strbuf_text(&reasons[SELECT_PREFILL]), strbuf_text(&reasons[SELECT_DECODE])) == 0;
    for (uint32_t p = 0; p < SELECT_PHASES; p++) {
        if (fails[p] && !(same && p == SELECT_DECODE))
            strbuf_appendf(text, "%sno backend serves layers %s in %s%s%s",
                           *strbuf_text(text) ? "; " : "", layers, select_phase_name(p),
                           same ? " and decode" : "", strbuf_text(&reasons[p]));
        strbuf_finish(&reasons[p]);
    }
    return fails[SELECT_PREFILL] || fails[SELECT_DECODE];
}

/* Keep the error of this group, if it is the first one. */
static attn_status note_failure(struct selector *selector, uint32_t group)
{
    const struct select_group *chosen = &selector->selection->groups[group];
    char layers[MODEL_LAYERS_TEXT];
    strbuf text;
    if (selector->failure.base.code)
        return ATTN_OK;
    strbuf_init(&text);
    model_layers_text(&selector->model->groups[group], layers, sizeof layers);
    bool named = append_phases(selector, chosen, layers, &text);
    if (!named) {
        strbuf_appendf(&text, "no backend serves layers %s: ", layers);
        append_mismatch(selector, chosen, &text);
    }
    host_fail(&selector->failure.base, ATTN_UNSUPPORTED, "%s", strbuf_text(&text));
    strbuf_finish(&text);
    return ATTN_OK;
}

/* ---- The whole ------------------------------------------------------------------------------- */

static attn_status select_one(struct selector *selector, uint32_t group)
{
    const attn_layer_group *layers = &selector->model->groups[group];
    struct select_group *chosen = &selector->selection->groups[group];
    struct select_phase *prefill = &chosen->phases[SELECT_PREFILL];
    struct select_phase *decode = &chosen->phases[SELECT_DECODE];
    chosen->unit = -1;
    prefill->chosen = decode->chosen = -1;
    prefill->preferred = decode->preferred = -1;
    prefill->exists = true;
    decode->exists = model_group_decodes(layers);
    select_find_wanted(selector, layers, SELECT_PREFILL, prefill);
    select_find_wanted(selector, layers, SELECT_DECODE, decode);

    bool pair = decode->exists && strcmp(prefill->wanted, decode->wanted) != 0;
    uint32_t prefill_modes = decode->exists
                                 ? problem_prefill_modes(selector->config) | selector->model->modes
                                 : ATTN_MODE_BIT(ATTN_MODE_EXTEND);
    uint32_t modes = prefill_modes | (decode->exists ? problem_decode_modes(selector->config) : 0);
    /* Of a pair the composite serves MIXED, by its parts. */
    attn_status status = select_fill_phase(
        selector, group, pair ? ATTN_MODE_BIT(ATTN_MODE_EXTEND) : prefill_modes, prefill);
    if (!status && decode->exists)
        status = select_fill_phase(selector, group, problem_decode_modes(selector->config), decode);
    if (!status)
        status = choose_one(selector, group, modes);
    if (!status && chosen->unit < 0 && decode->exists)
        status = choose_pair(selector, group, modes);
    return status ? status : chosen->unit < 0 ? note_failure(selector, group) : ATTN_OK;
}

/* The child by which a hybrid_phase backend verifies, if `name` is one that the user defined; else
 * NULL. */
static const char *own_verifier(const struct selector *selector, const char *name)
{
    const struct compose_definition *found = composer_find(&selector->host->composer, name);
    const char *says = select_phase_name(SELECT_PREFILL); /* the option's default */
    if (!found || strcmp(found->type, "hybrid_phase") != 0)
        return NULL;
    for (size_t t = 0; t < found->num_texts; t++)
        if (strcmp(found->texts[t].key, "speculative_attention_mode") == 0)
            says = found->texts[t].value;
    return says;
}

/* If a user-defined hybrid_phase serves both phases, its own option sets the child that verifies
 * drafts: a different key of [attention] would be ignored. */
static attn_status check_verifier(struct selector *selector)
{
    static const char key[] = "attention.speculative_attention_mode";
    const struct selection *selection = selector->selection;
    const char *wanted = select_phase_name(select_verify_phase(selector->config));
    if (!config_is_set(selector->config, key) || problem_draft_topk(selector->config) == 0)
        return ATTN_OK;
    for (uint32_t g = 0; g < selection->num_groups; g++) {
        const char *prefill = select_backend(selection, g, SELECT_PREFILL);
        const char *decode = select_backend(selection, g, SELECT_DECODE);
        bool is_one = prefill && decode && strcmp(prefill, decode) == 0;
        const char *says = is_one ? own_verifier(selector, prefill) : NULL;
        if (says && strcmp(says, wanted) != 0)
            return config_fail(selector->config, key, selector->error,
                               "%s, while %s, a hybrid_phase that serves both phases, has %s: "
                               "accepted %s, or backend.%s.speculative_attention_mode = %s",
                               wanted, prefill, says, says, prefill, wanted);
    }
    return ATTN_OK;
}

attn_status select_create(attnhost *host, const struct config *config, const struct model *model,
                          const attn_device *device, struct selection **out, attn_error *error)
{
    attn_status status = problem_check_layouts(config, model, error);
    if (!status)
        status = problem_check_scales(config, model, error);
    if (!status)
        status = problem_check_drafts(config, model, error);
    if (status)
        return status;
    struct selector selector = {.host = host, .config = config, .model = model, .error = error};
    host_error_init(&selector.failure);
    struct selection *selection = calloc(1, sizeof *selection);
    if (!selection)
        return select_no_memory(&selector);
    selector.selection = selection;
    selection->model = model;
    selection->device = *device;
    selection->simulated = config->platform.simulate;
    selection->max_sms = (int32_t)config->platform.max_sms;
    status = rules_create(config, &selection->rules, error);
    selection->installed = status ? NULL : select_installed(host);
    selection->groups = calloc(model->num_groups, sizeof *selection->groups);
    if (!status && (!selection->groups || !selection->installed))
        status = select_no_memory(&selector);
    if (!status)
        selection->num_groups = model->num_groups;
    if (!status)
        status = select_check_names(&selector);
    for (uint32_t i = 0; i < selection->num_groups && !status; i++)
        status = select_one(&selector, i);
    if (!status)
        status = check_verifier(&selector);
    if (!status)
        status = select_join_kinds(&selector);
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
                select_candidate_finish(&phase->candidates[c]);
            free(phase->candidates);
            free(phase->why);
        }
    }
    for (uint32_t u = 0; u < selection->num_units; u++) {
        free(selection->units[u].backend);
        free(selection->units[u].type);
        free(selection->units[u].groups);
    }
    rules_destroy(selection->rules);
    free(selection->device_note);
    free(selection->installed);
    free(selection->units);
    free(selection->groups);
    free(selection);
}

const char *select_backend(const struct selection *selection, uint32_t group, uint32_t phase)
{
    const struct select_phase *answer = &selection->groups[group].phases[phase];
    return answer->chosen < 0 ? NULL : answer->candidates[answer->chosen].name;
}

bool select_is_settled(const struct selection *selection)
{
    for (uint32_t g = 0; g < selection->num_groups; g++) {
        const struct select_group *group = &selection->groups[g];
        bool absent = false;
        for (uint32_t p = 0; p < SELECT_PHASES; p++) {
            const struct select_phase *phase = &group->phases[p];
            if (group->unit >= 0 || !phase->exists)
                continue;
            if (phase->preferred < 0)
                return false;
            if (phase->candidates[phase->preferred].absence == SELECT_NO_PLUGIN)
                return false;
            absent |= phase->candidates[phase->preferred].absence == SELECT_NOT_INSTALLED;
        }
        if (group->unit < 0 && !absent)
            return false;
    }
    return true;
}

/* The graph level of the backend that serves a phase of a group. */
static uint32_t graph_level(const struct selection *selection, uint32_t group, uint32_t phase)
{
    const struct select_phase *served = &selection->groups[group].phases[phase];
    return served->exists && served->chosen >= 0
               ? served->candidates[served->chosen].verdict.graph_level
               : ATTN_GRAPH_NEVER;
}

uint32_t select_decode_graph_level(const struct selection *selection, uint32_t group)
{
    return graph_level(selection, group, SELECT_DECODE);
}

uint32_t select_verify_phase(const struct config *config)
{
    return config->attention.speculative_attention_mode == CONFIG_SPECULATIVE_DECODE
               ? SELECT_DECODE
               : SELECT_PREFILL;
}

const char *select_uncapturable(const struct selection *selection, const struct config *config)
{
    bool drafts = config->speculative.draft_tokens > 0;
    uint32_t phase = drafts ? select_verify_phase(config) : SELECT_DECODE;
    uint32_t needed = drafts ? ATTN_GRAPH_UNIFORM : ATTN_GRAPH_SINGLE_TOKEN;
    for (uint32_t g = 0; g < selection->num_groups; g++)
        if (selection->groups[g].phases[SELECT_DECODE].exists &&
            graph_level(selection, g, phase) < needed)
            return select_backend(selection, g, phase);
    return NULL;
}
