/* SPDX-License-Identifier: Apache-2.0
 *
 * selection_api.c: a selection as structs of attnhost.h, and attnhost_select().
 */
#include "host/select/selection_api.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"
#include "host/base/text.h"
#include "host/embed/embed.h"
#include "host/select/unused_keys.h"
#include "host/select/platform.h"
#include "host/select/problem.h"
#include "host/select/routes.h"

/* The struct of the handle attnhost_selection. */
struct selected {
    attnhost_selection base;
    struct block *blocks;
    bool failed; /* memory ran out */
    /* Objects that selection_api_select() made; NULL = owned by the caller. */
    struct selection *selection;
    struct model *model;
    struct config *config;
};

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Memory that lives as long as the selection. */
struct block {
    struct block *next;
    max_align_t data[];
};

/* `count` zeroed structs; NULL where memory ran out, or for none. */
static void *take(struct selected *selected, size_t count, size_t size)
{
    struct block *block = count ? calloc(1, sizeof *block + count * size) : NULL;
    if (!block) {
        selected->failed |= count > 0;
        return NULL;
    }
    block->next = selected->blocks;
    selected->blocks = block;
    return block->data;
}

static const char *keep(struct selected *selected, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = take(selected, size, 1);
    return copy ? memcpy(copy, text, size) : "";
}

/* ---- Reasons --------------------------------------------------------------------------------- */

/* The fixed arrays of a reason come from a plugin: read no further than they are long. */
#define KEEP_ARRAY(selected, array) keep_cut(selected, array, sizeof(array))

static const char *keep_cut(struct selected *selected, const char *text, size_t size)
{
    char cut[256];
    snprintf(cut, sizeof cut, "%.*s", (int)strnlen(text, size), text);
    return keep(selected, cut);
}

static attnhost_reason tell_reason(struct selected *selected, const attn_reason *reason)
{
    char text[320];
    select_reason_text(reason, text, sizeof text);
    return (attnhost_reason){
        .struct_size = sizeof(attnhost_reason),
        .code = reason->code,
        .code_name = select_code_name(reason->code),
        .field = select_field_name(reason->field),
        .with_field = reason->with_field ? select_field_name(reason->with_field) : "",
        .child = KEEP_ARRAY(selected, reason->child),
        .got = KEEP_ARRAY(selected, reason->got),
        .accepted = KEEP_ARRAY(selected, reason->accepted),
        .text = keep(selected, text),
        .rule = "",
    };
}

static attnhost_reason tell_exclusion(struct selected *selected,
                                      const struct select_candidate *candidate)
{
    char text[512];
    select_exclusion_text(candidate, text, sizeof text);
    return (attnhost_reason){
        .struct_size = sizeof(attnhost_reason),
        .code_name = "RULE",
        .field = candidate->blamed,
        .with_field = "",
        .child = "",
        .got = candidate->got,
        .accepted = candidate->excluded->accepted,
        .text = keep(selected, text),
        .rule = candidate->excluded->name,
    };
}

static attnhost_reason tell_absence(const struct selection *selection,
                                    const struct select_candidate *candidate)
{
    attnhost_reason reason = {.struct_size = sizeof reason,
                              .code_name = "NO_ANSWER",
                              .field = "options",
                              .with_field = "",
                              .child = "",
                              .got = candidate->name,
                              .accepted = "options that it takes",
                              .text = candidate->absent,
                              .rule = ""};
    if (candidate->absence == SELECT_NOT_INSTALLED) {
        reason.code_name = "NOT_INSTALLED";
        reason.field = "backend";
        reason.accepted = selection->installed;
    } else if (candidate->absence == SELECT_NO_PLUGIN) {
        reason.code_name = "NO_PLUGIN";
        reason.field = "backend";
        reason.accepted = selection->installed;
    } else if (candidate->absence == SELECT_WITHOUT_KERNELS) {
        reason.code_name = "WITHOUT_KERNELS";
        reason.field = "backend";
        reason.accepted = "a build with nvcc";
    } else if (candidate->absence == SELECT_COMPOSITE) {
        reason.code_name = "COMPOSITE";
        reason.field = "attention_backend";
        reason.got = "auto";
        reason.accepted = candidate->name;
    }
    return reason;
}

/* ---- Candidates ------------------------------------------------------------------------------ */

static uint32_t state_of(const struct select_candidate *candidate)
{
    if (candidate->excluded)
        return ATTNHOST_EXCLUDED;
    if (candidate->absent)
        return ATTNHOST_ABSENT;
    return candidate->layouts ? ATTNHOST_CAN_SERVE : ATTNHOST_CANNOT_SERVE;
}

static const attn_verdict *tell_verdict(struct selected *selected, const attn_verdict *given)
{
    attn_verdict *verdict = take(selected, 1, sizeof *verdict);
    if (verdict) {
        *verdict = *given;
        verdict->reasons = NULL;
        verdict->reasons_capacity = 0;
    }
    return verdict;
}

static const char *tell_aliases(struct selected *selected, const struct rule *known)
{
    strbuf text;
    strbuf_init(&text);
    for (size_t i = 0; known && i < known->aliases.count; i++)
        strbuf_appendf(&text, "%s%s", i ? ", " : "", known->aliases.items[i]);
    const char *kept = keep(selected, strbuf_text(&text));
    strbuf_finish(&text);
    return kept;
}

static attnhost_candidate tell_candidate(struct selected *selected,
                                         const struct selection *selection,
                                         const struct select_candidate *candidate)
{
    attnhost_candidate made = {.struct_size = sizeof made,
                               .state = state_of(candidate),
                               .name = candidate->name,
                               .what = candidate->known ? candidate->known->text : "",
                               .aliases = tell_aliases(selected, candidate->known)};
    if (made.state == ATTNHOST_CAN_SERVE) {
        made.verdict = tell_verdict(selected, &candidate->verdict);
        return made;
    }
    made.num_reasons = made.state == ATTNHOST_CANNOT_SERVE ? candidate->verdict.num_reasons : 1;
    attnhost_reason *reasons = take(selected, made.num_reasons, sizeof *reasons);
    for (uint32_t r = 0; reasons && r < made.num_reasons; r++)
        reasons[r] = made.state == ATTNHOST_EXCLUDED ? tell_exclusion(selected, candidate)
                     : made.state == ATTNHOST_ABSENT
                         ? tell_absence(selection, candidate)
                         : tell_reason(selected, &candidate->reasons[r]);
    made.reasons = reasons;
    return made;
}

/* ---- Groups ---------------------------------------------------------------------------------- */

static attnhost_phase tell_phase(struct selected *selected, const struct selection *selection,
                                 uint32_t index, const struct select_phase *phase)
{
    attnhost_candidate *candidates = take(selected, phase->num_candidates, sizeof *candidates);
    for (uint32_t c = 0; candidates && c < phase->num_candidates; c++)
        candidates[c] = tell_candidate(selected, selection, &phase->candidates[c]);
    return (attnhost_phase){.struct_size = sizeof(attnhost_phase),
                            .chosen = phase->chosen,
                            .preferred = phase->preferred,
                            .num_candidates = phase->num_candidates,
                            .name = select_phase_name(index),
                            .wanted = phase->wanted,
                            .why = phase->why,
                            .candidates = candidates};
}

/* The memory of a graph of decode batches, of the maximum number of sequences. */
static uint64_t graph_bytes(const struct selection *selection, uint32_t index)
{
    const struct select_phase *decode = &selection->groups[index].phases[SELECT_DECODE];
    if (selection->groups[index].unit < 0 || !decode->exists || decode->chosen < 0 ||
        select_decode_graph_level(selection, index) < ATTN_GRAPH_SINGLE_TOKEN)
        return 0;
    return decode->candidates[decode->chosen].verdict.device_bytes;
}

static attnhost_group tell_group(struct selected *selected, const struct selection *selection,
                                 uint32_t index)
{
    const struct select_group *group = &selection->groups[index];
    const attn_layer_group *layers = &selection->model->groups[index];
    char ids[MODEL_LAYERS_TEXT], what[512];
    uint32_t num_phases = 0;
    attnhost_phase *phases = take(selected, SELECT_PHASES, sizeof *phases);
    model_layers_text(layers, ids, sizeof ids);
    model_group_text(selection->model, layers, what, sizeof what);
    for (uint32_t p = 0; phases && p < SELECT_PHASES; p++)
        if (group->phases[p].exists)
            phases[num_phases++] = tell_phase(selected, selection, p, &group->phases[p]);
    return (attnhost_group){.struct_size = sizeof(attnhost_group),
                            .unit = group->unit,
                            .group = layers,
                            .layers = keep(selected, ids),
                            .what = keep(selected, what),
                            .kv_layout = group->kv_layout,
                            .state_layout = group->state_layout,
                            .decode_graph_level = group->unit < 0
                                                      ? ATTN_GRAPH_NEVER
                                                      : select_decode_graph_level(selection, index),
                            .num_phases = num_phases,
                            .phases = phases,
                            .device_bytes = group->unit < 0 ? 0 : group->verdict.device_bytes,
                            .graph_device_bytes = graph_bytes(selection, index)};
}

/* ---- Units ----------------------------------------------------------------------------------- */

/* The questions that its groups were asked, once more, for attnhost_compose(). */
static attnhost_unit tell_unit(struct selected *selected, const struct config *config,
                               const struct selection *selection, const struct select_unit *unit)
{
    struct problem *posed = take(selected, unit->num_groups, sizeof *posed);
    attn_problem *problems = take(selected, unit->num_groups, sizeof *problems);
    for (uint32_t i = 0; posed && problems && i < unit->num_groups; i++) {
        const struct select_group *group = &selection->groups[unit->groups[i]];
        problem_init(&posed[i], config, selection->model, unit->groups[i], &selection->device,
                     unit->modes, group->kv_layout ? group->kv_layout : group->state_layout);
        problems[i] = posed[i].problem;
    }
    return (attnhost_unit){.struct_size = sizeof(attnhost_unit),
                           .modes = unit->modes,
                           .backend = unit->backend,
                           .type = unit->type,
                           .problems = problems,
                           .groups = unit->groups,
                           .num_problems = unit->num_groups};
}

/* ---- The whole ------------------------------------------------------------------------------- */

static void tell_head(struct selected *selected, const struct selection *selection)
{
    const struct model *model = selection->model;
    attnhost_selection *base = &selected->base;
    char device[32];
    platform_text(&selection->device, device, sizeof device);
    base->struct_size = sizeof *base;
    base->device = selection->device;
    base->device_name = keep(selected, device);
    base->device_note = selection->device_note;
    base->max_sms = selection->max_sms;
    base->simulated = selection->simulated;
    base->model = model->name;
    base->architecture = model->architecture;
    base->dtype = model->dtype;
    base->max_context_len = model->max_context_len;
    base->num_layers = model->num_layers;
    base->num_groups = selection->num_groups;
    base->num_units = selection->num_units;
}

static void tell_arrays(struct selected *selected, const struct config *config,
                        const struct selection *selection)
{
    attnhost_group *groups = take(selected, selection->num_groups, sizeof *groups);
    attnhost_unit *units = take(selected, selection->num_units, sizeof *units);
    for (uint32_t g = 0; groups && g < selection->num_groups; g++)
        groups[g] = tell_group(selected, selection, g);
    for (uint32_t u = 0; units && u < selection->num_units; u++)
        units[u] = tell_unit(selected, config, selection, &selection->units[u]);
    selected->base.groups = groups;
    selected->base.units = units;
}

/* The backend that serves a phase of a group, or would if it were installed; NULL = none. */
static const char *server_of(const struct selection *selection, uint32_t group, uint32_t phase)
{
    const struct select_phase *answer = &selection->groups[group].phases[phase];
    int32_t index = answer->chosen >= 0 ? answer->chosen : answer->preferred;
    return answer->exists && index >= 0 ? answer->candidates[index].name : NULL;
}

/* Do prefill and decode of some group have different backends? */
static bool phases_differ(const struct selection *selection)
{
    for (uint32_t g = 0; g < selection->num_groups; g++) {
        const char *prefill = server_of(selection, g, SELECT_PREFILL);
        const char *decode = server_of(selection, g, SELECT_DECODE);
        if (prefill && decode && strcmp(prefill, decode) != 0)
            return true;
    }
    return false;
}

/* The backends that verify: that of one phase if two backends serve the phases, else those that
 * serve both, each once. */
static void note_verifiers(const struct config *config, const struct selection *selection,
                           strbuf *notes)
{
    uint32_t phase = select_verify_phase(config);
    const char *before = ", by";
    if (phases_differ(selection)) {
        strbuf_appendf(notes, ", by the backend of %s", select_phase_name(phase));
        return;
    }
    for (uint32_t g = 0; g < selection->num_groups; g++) {
        const char *name = server_of(selection, g, phase);
        bool known = !name;
        for (uint32_t h = 0; h < g && !known; h++) {
            const char *other = server_of(selection, h, phase);
            known = other && strcmp(other, name) == 0;
        }
        if (known)
            continue;
        strbuf_appendf(notes, "%s %s", before, name);
        before = ",";
    }
}

/* The effect of [speculative] on decode. */
static void note_drafts(const struct config *config, const struct selection *selection,
                        strbuf *notes)
{
    const struct config_speculative *drafts = &config->speculative;
    const struct model *model = selection->model;
    if (drafts->draft_tokens == 0)
        return;
    strbuf_appendf(notes, "drafts: %lld tokens of a request are verified at once, ",
                   (long long)drafts->draft_tokens);
    if (drafts->topk > 1)
        strbuf_appendf(notes, "in trees of %lld at each depth", (long long)drafts->topk);
    else
        strbuf_append(notes, "in chains");
    note_verifiers(config, selection, notes);
    uint32_t first = model->num_layers, last = model->num_layers - 1;
    while (first > 0 && model->layers[first - 1].is_draft)
        first--;
    if (first == last)
        strbuf_appendf(notes, "; layer %u is the draft model's", last);
    else if (first < last)
        strbuf_appendf(notes, "; layers %u-%u are the draft model's", first, last);
    strbuf_append(notes, "\n");
}

/* The bounds for which a GPU workspace is computed. */
static void note_bounds(const struct selected *selected, const struct config *config,
                        const struct selection *selection, strbuf *notes)
{
    uint32_t modes = problem_prefill_modes(config) | problem_decode_modes(config);
    attn_bounds bounds;
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < selected->base.num_groups; g++)
        bytes |= ((const attnhost_group *)attn_at(selected->base.groups, g))->device_bytes;
    if (selection->device.type == ATTN_DEVICE_CPU || bytes == 0)
        return;
    problem_bounds(&bounds, config, selection->model, modes);
    strbuf_appendf(
        notes,
        "workspace: for batches of up to %d sequences, %d rows, %d keys of a sequence and "
        "%lld in all\n",
        bounds.max_seqs, bounds.max_tokens, bounds.max_kv_len, (long long)bounds.max_kv_tokens);
}

static void tell_notes(struct selected *selected, const attnhost *host, const struct config *config,
                       const struct selection *selection)
{
    strbuf notes;
    strbuf_init(&notes);
    note_drafts(config, selection, &notes);
    if (selection->model->left_out)
        strbuf_appendf(&notes, "left out: %u of %s\n", selection->model->num_left_out,
                       selection->model->left_out);
    note_bounds(selected, config, selection, &notes);
    unused_keys_list(&host->composer, config, selection, &notes);
    const char *none = select_shares_none(config, selection->model);
    if (none)
        strbuf_appendf(&notes, "%s\n", none);
    routes_beyond_graphs(&host->composer, config, selection, selection->model->max_context_len,
                         "the model's context; in a run, its longest request's", &notes);
    selected->base.notes = keep(selected, strbuf_text(&notes));
    strbuf_finish(&notes);
}

attn_status selection_api_create(const attnhost *host, const struct config *config,
                                 const struct selection *selection, attn_status status,
                                 const char *message, const attnhost_selection **out,
                                 attn_error *error)
{
    struct selected *selected = calloc(1, sizeof *selected);
    if (selected) {
        /* Elsewhere the rules' choice is an answer, installed here or not. */
        bool settled = selection->simulated && select_is_settled(selection);
        selected->base.status = settled ? ATTN_OK : status;
        selected->base.message = keep(selected, selected->base.status ? message : "");
        tell_head(selected, selection);
        tell_arrays(selected, config, selection);
        if (!selected->failed) /* they read the groups */
            tell_notes(selected, host, config, selection);
    }
    if (!selected || selected->failed) {
        attnhost_selection_destroy(selected ? &selected->base : NULL);
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a selection");
    }
    *out = &selected->base;
    return ATTN_OK;
}

void attnhost_selection_destroy(const attnhost_selection *selection)
{
    struct selected *selected = (struct selected *)(uintptr_t)selection;
    if (!selected)
        return;
    while (selected->blocks) {
        struct block *block = selected->blocks;
        selected->blocks = block->next;
        free(block);
    }
    select_destroy(selected->selection);
    model_destroy(selected->model);
    config_destroy(selected->config);
    free(selected);
}

/* ---- attnhost_select() ----------------------------------------------------------------------- */

attn_status selection_api_select(attnhost *host, struct config *config, struct model *model,
                                 const attnhost_selection **out, attn_error *error)
{
    attn_device device;
    struct selection *selection = NULL;
    const attnhost_selection *made = NULL;
    host_error said;
    host_error_init(&said);
    attn_status status = select_create_here(host, config, model, &device, &selection, &said.base);
    if (!selection)
        status = host_fail(error, status, "%s", host_error_text(&said));
    else
        status = selection_api_create(host, config, selection, status, host_error_text(&said),
                                      &made, error);
    if (!made) {
        select_destroy(selection);
        model_destroy(model);
        config_destroy(config);
        return status;
    }
    struct selected *selected = (struct selected *)(uintptr_t)made;
    selected->selection = selection;
    selected->model = model;
    selected->config = config;
    *out = made;
    return ATTN_OK;
}

/* Settings without effect here would be ignored silently. */
static attn_status check_settings(const char *const *settings, uint32_t count, attn_error *error)
{
    static const char *const taken[] = {"platform.",
                                        "attention.",
                                        "kv_cache.",
                                        "workload.",
                                        "cuda_graph.",
                                        "model.dtype=",
                                        "model.max_context_len="};
    for (uint32_t s = 0; s < count; s++) {
        bool known = false;
        if (!settings[s])
            return host_fail(error, ATTN_INVALID_ARGUMENT, "setting %u is NULL", s);
        for (size_t t = 0; t < sizeof taken / sizeof *taken; t++)
            known |= strncmp(settings[s], taken[t], strlen(taken[t])) == 0;
        if (strncmp(settings[s], "attention.route.", 16) == 0)
            return host_fail(error, ATTN_CONFIG_ERROR,
                             "setting '%s': accepted: routes defined by "
                             "attnhost_configure_text(), and attention.attention_backend=%s",
                             settings[s], ROUTES_NAME);
        if (!known)
            return host_fail(error, ATTN_CONFIG_ERROR,
                             "setting '%s': accepted: KEY=VALUE of the sections platform, "
                             "attention, kv_cache, workload, cuda_graph, and model.dtype, "
                             "model.max_context_len",
                             settings[s]);
    }
    return ATTN_OK;
}

static attn_status check_kind(const attn_layer_group *group, attn_error *error)
{
    const bool lacks_dims = (group->kind == ATTN_KIND_MLA && !group->mla) ||
                            (group->kind == ATTN_KIND_LINEAR && !group->linear) ||
                            (group->kind == ATTN_KIND_SPARSE && !group->sparse);
    if (group->kind >= ATTN_KIND_COUNT || lacks_dims)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "kind %u %s; accepted: below %d, with mla, linear or sparse where the "
                         "kind is that",
                         group->kind, group->kind < ATTN_KIND_COUNT ? "without its dimensions" : "",
                         ATTN_KIND_COUNT);
    if (strcmp(model_attn_type_name(group->attn_type), "?") == 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "attn_type %u is unknown", group->attn_type);
    return ATTN_OK;
}

static attn_status check_model(const attnhost_model *model, attn_error *error)
{
    attn_status status = EMBED_CHECK_SIZE(model, attnhost_model, max_encoder_len, "model", error);
    if (status == ATTN_OK && !model->config == !model->groups)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "model: config and groups are %s; accepted: one of them",
                         model->config ? "both given" : "both NULL");
    if (status == ATTN_OK && model->groups && model->num_groups == 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "model: num_groups 0; accepted: 1 or more");
    for (uint32_t g = 0; status == ATTN_OK && model->groups && g < model->num_groups; g++) {
        const attn_layer_group *group = attn_at(model->groups, g);
        status = embed_check_group(group, error);
        if (status == ATTN_OK)
            status = check_kind(group, error);
        if (status != ATTN_OK)
            host_fail_prefix(error, "model: group %u", g);
    }
    return status;
}

static attn_status make_model(const attnhost_model *given, const struct config *config,
                              struct model **model, attn_error *error)
{
    const char *name = given->name ? given->name : "model";
    if (given->groups)
        return model_create_groups(name, given->groups, given->num_groups, config,
                                   given->max_encoder_len, model, error);
    attn_status status = model_create_hf_text(given->config, (size_t)given->config_length, name,
                                              config, model, error);
    if (status == ATTN_OK)
        model_set_expanded(*model, config->attention.mla_prefill == CONFIG_MLA_EXPANDED);
    return status;
}

attn_status attnhost_select(attnhost *host, const attnhost_model *given,
                            const char *const *settings, uint32_t num_settings,
                            const attnhost_selection **selection, attn_error *error)
{
    struct config *config = NULL;
    struct model *model = NULL;
    attn_status status = check_model(given, error);
    if (status == ATTN_OK)
        status = check_settings(settings, num_settings, error);
    if (status == ATTN_OK)
        status = config_load_text("", 0, "attnhost_select", NULL, settings, num_settings, &config,
                                  error);
    if (status == ATTN_OK)
        status = make_model(given, config, &model, error);
    if (status != ATTN_OK) {
        config_destroy(config);
        return status;
    }
    model->uses = ATTN_HAS(given, attnhost_model, uses) ? given->uses : 0;
    model->modes = ATTN_HAS(given, attnhost_model, modes) ? given->modes : 0;
    return selection_api_select(host, config, model, selection, error);
}
