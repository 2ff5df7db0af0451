/* SPDX-License-Identifier: Apache-2.0
 *
 * print.c: a selection as text and as JSON.
 */
#include "host/select/select.h"

#include <string.h>

#include "host/base/dtype.h"
#include "host/select/platform.h"

/* ---- Names ----------------------------------------------------------------------------------- */

static const char *field_name(uint32_t field)
{
    static const char *const names[] = {
#define NAME(name, value, text) [value] = text,
        ATTN_FIELD_MAP(NAME)
#undef NAME
    };
    const char *name = field < ATTN_FIELD_COUNT ? names[field] : NULL;
    return name ? name : "?";
}

static const char *code_name(uint32_t code)
{
    static const char *const names[] = {
#define NAME(name, value) [value] = #name,
        ATTN_REASON_MAP(NAME)
#undef NAME
    };
    const char *name = code < ATTN_REASON_COUNT ? names[code] : NULL;
    return name ? name : "?";
}

/* The fixed arrays of a reason come from a plugin: read no further than they are long. */
#define TEXT_OF(array) (int)strnlen(array, sizeof(array)), array

void select_reason_text(const attn_reason *reason, char *text, size_t size)
{
    char with[64] = "", child[48] = "";
    if (reason->child[0])
        snprintf(child, sizeof child, "%.*s: ", TEXT_OF(reason->child));
    if (reason->with_field)
        snprintf(with, sizeof with, " with %s", field_name(reason->with_field));
    snprintf(text, size, "%s%s %.*s%s: accepted %.*s", child, field_name(reason->field),
             TEXT_OF(reason->got), with, TEXT_OF(reason->accepted));
}

void select_exclusion_text(const struct select_candidate *candidate, char *text, size_t size)
{
    snprintf(text, size, "%s %s: accepted %s (%s)", candidate->blamed, candidate->got,
             candidate->excluded->accepted, candidate->excluded->text);
}

/* ---- Text ------------------------------------------------------------------------------------ */

/* Are both phases of a group served by the same backend for the same reason? */
static bool same_choice(const struct select_group *group)
{
    const struct select_phase *prefill = &group->phases[SELECT_PREFILL];
    const struct select_phase *decode = &group->phases[SELECT_DECODE];
    return prefill->chosen >= 0 && decode->chosen >= 0 &&
           strcmp(prefill->candidates[prefill->chosen].name,
                  decode->candidates[decode->chosen].name) == 0 &&
           strcmp(prefill->why, decode->why) == 0;
}

static void print_choice(const struct selection *selection, uint32_t group, uint32_t phase,
                         const char *phases, FILE *file)
{
    char layers[64];
    const char *backend = select_backend(selection, group, phase);
    model_layers_text(&selection->model->groups[group], layers, sizeof layers);
    fprintf(file, "layers %s %s: %s (%s)\n", layers, phases, backend ? backend : "none",
            selection->groups[group].phases[phase].why);
}

void select_print_choices(const struct selection *selection, FILE *file)
{
    char device[32];
    platform_text(&selection->device, device, sizeof device);
    if (selection->device_note)
        fprintf(file, "device: %s (%s)\n", device, selection->device_note);
    for (uint32_t g = 0; g < selection->num_groups; g++) {
        const struct select_group *group = &selection->groups[g];
        if (same_choice(group)) {
            print_choice(selection, g, SELECT_PREFILL, "prefill, decode", file);
            continue;
        }
        for (uint32_t p = 0; p < SELECT_PHASES; p++)
            if (group->phases[p].exists)
                print_choice(selection, g, p, select_phase_name(p), file);
    }
}

/* What the rules would choose, next to a candidate that is not here. */
static void print_absent(const struct select_candidate *candidate, bool preferred, FILE *file)
{
    const struct rule *known = candidate->known;
    fprintf(file, "%s%s", preferred ? "would be chosen; " : "", candidate->absent);
    if (preferred && known) {
        fprintf(file, " (%s", known->text);
        for (size_t i = 0; i < known->aliases.count; i++)
            fprintf(file, "%s%s", i ? ", " : "; in SGLang: ", known->aliases.items[i]);
        putc(')', file);
    }
    putc('\n', file);
}

static void print_candidate(const struct select_phase *phase, uint32_t index, FILE *file)
{
    const struct select_candidate *candidate = &phase->candidates[index];
    char reason[512];
    fprintf(file, "    %s %s: ", (int32_t)index == phase->chosen ? "*" : " ", candidate->name);
    if (candidate->excluded) {
        select_exclusion_text(candidate, reason, sizeof reason);
        fprintf(file, "excluded\n        %s [RULE %s]\n", reason, candidate->excluded->name);
        return;
    }
    if (candidate->absent) {
        print_absent(candidate, (int32_t)index == phase->preferred, file);
        return;
    }
    fputs(candidate->layouts ? "can serve\n" : "cannot serve\n", file);
    for (uint32_t i = 0; !candidate->layouts && i < candidate->verdict.num_reasons; i++) {
        select_reason_text(&candidate->reasons[i], reason, sizeof reason);
        fprintf(file, "        %s [%s]\n", reason, code_name(candidate->reasons[i].code));
    }
}

static bool same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool same_answer(const struct select_candidate *a, const struct select_candidate *b)
{
    char first[320], second[320];
    bool same = strcmp(a->name, b->name) == 0 && a->excluded == b->excluded &&
                same_text(a->absent, b->absent) && !a->layouts == !b->layouts;
    bool compared = same && !a->absent && !a->excluded && !a->layouts;
    if (compared && a->verdict.num_reasons != b->verdict.num_reasons)
        return false;
    for (uint32_t i = 0; compared && same && i < a->verdict.num_reasons; i++) {
        select_reason_text(&a->reasons[i], first, sizeof first);
        select_reason_text(&b->reasons[i], second, sizeof second);
        same = a->reasons[i].code == b->reasons[i].code && strcmp(first, second) == 0;
    }
    return same;
}

/* Is all that is said of one phase said of the other? */
static bool same_phases(const struct select_group *group)
{
    const struct select_phase *prefill = &group->phases[SELECT_PREFILL];
    const struct select_phase *decode = &group->phases[SELECT_DECODE];
    bool same = prefill->exists && decode->exists && prefill->chosen == decode->chosen &&
                prefill->preferred == decode->preferred && strcmp(prefill->why, decode->why) == 0 &&
                prefill->num_candidates == decode->num_candidates;
    for (uint32_t i = 0; same && i < prefill->num_candidates; i++)
        same = same_answer(&prefill->candidates[i], &decode->candidates[i]);
    return same;
}

static const char *graph_level_name(uint32_t level)
{
    static const char *const names[ATTN_GRAPH_COUNT] = {
        [ATTN_GRAPH_NEVER] = "never",
        [ATTN_GRAPH_SINGLE_TOKEN] = "single_token",
        [ATTN_GRAPH_UNIFORM] = "uniform",
        [ATTN_GRAPH_ALWAYS] = "always",
    };
    return level < ATTN_GRAPH_COUNT ? names[level] : "?";
}

/* Whether decode steps can be graphs: a matter of GPUs alone. */
static void print_graph_level(const struct selection *selection, uint32_t index, FILE *file)
{
    if (selection->device.type == ATTN_DEVICE_CPU ||
        !selection->groups[index].phases[SELECT_DECODE].exists)
        return;
    uint32_t level = select_decode_graph_level(selection, index);
    fprintf(file, "  decode steps %s (graph level %s)\n",
            level >= ATTN_GRAPH_SINGLE_TOKEN ? "can be captured into graphs" : "run eagerly",
            graph_level_name(level));
}

static void print_phase(const struct selection *selection, uint32_t group, uint32_t index,
                        const char *name, FILE *file)
{
    const struct select_phase *phase = &selection->groups[group].phases[index];
    const char *backend = select_backend(selection, group, index);
    fprintf(file, "  %s: %s (%s)\n", name, backend ? backend : "none", phase->why);
    for (uint32_t c = 0; c < phase->num_candidates; c++)
        print_candidate(phase, c, file);
}

static void print_group(const struct selection *selection, uint32_t index, FILE *file)
{
    const struct select_group *group = &selection->groups[index];
    const attn_layer_group *layers = &selection->model->groups[index];
    char ids[64], what[256];
    model_layers_text(layers, ids, sizeof ids);
    model_group_text(selection->model, layers, what, sizeof what);
    fprintf(file, "\nlayers %s: %s\n", ids, what);
    if (group->unit >= 0) {
        const struct select_unit *unit = &selection->units[group->unit];
        const char *layout = group->kv_layout ? group->kv_layout : group->state_layout;
        bool joined = strcmp(unit->type, unit->backend) != 0;
        fprintf(file, "  served by %s%s%s%s%s%s\n", unit->backend, joined ? " (" : "",
                joined ? unit->type : "", joined ? ")" : "", layout ? ", layout " : "",
                layout ? layout : "");
        print_graph_level(selection, index, file);
    }
    bool same = same_phases(group);
    for (uint32_t p = 0; p < (same ? 1 : SELECT_PHASES); p++)
        if (group->phases[p].exists)
            print_phase(selection, index, p, same ? "prefill, decode" : select_phase_name(p), file);
}

void select_print(const struct selection *selection, FILE *file)
{
    const struct model *model = selection->model;
    char device[32];
    platform_text(&selection->device, device, sizeof device);
    if (selection->simulated)
        fprintf(file, "device: %s, simulated: %s\n", device, selection->simulated);
    else
        fprintf(file, "device: %s%s%s%s\n", device, selection->device_note ? " (" : "",
                selection->device_note ? selection->device_note : "",
                selection->device_note ? ")" : "");
    fprintf(file, "model: %s (%s), %u attention layers, %s, context %d tokens\n",
            model->architecture, model->name, model->num_layers, dtype_name(model->dtype),
            model->max_context_len);
    for (uint32_t g = 0; g < selection->num_groups; g++)
        print_group(selection, g, file);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Append `item` to an array or object; false, with the item deleted, when memory ran out. */
static bool append(cJSON *array, cJSON *item)
{
    if (item && cJSON_AddItemToArray(array, item))
        return true;
    cJSON_Delete(item);
    return false;
}

static bool add_text(cJSON *object, const char *key, const char *text)
{
    return text ? cJSON_AddStringToObject(object, key, text) != NULL
                : cJSON_AddNullToObject(object, key) != NULL;
}

static cJSON *reason_json(const attn_reason *reason)
{
    char text[320], got[sizeof reason->got + 1], accepted[sizeof reason->accepted + 1];
    char child[sizeof reason->child + 1];
    cJSON *object = cJSON_CreateObject();
    select_reason_text(reason, text, sizeof text);
    snprintf(got, sizeof got, "%.*s", TEXT_OF(reason->got));
    snprintf(accepted, sizeof accepted, "%.*s", TEXT_OF(reason->accepted));
    snprintf(child, sizeof child, "%.*s", TEXT_OF(reason->child));
    if (object && add_text(object, "code", code_name(reason->code)) &&
        add_text(object, "field", field_name(reason->field)) &&
        (!reason->with_field || add_text(object, "with_field", field_name(reason->with_field))) &&
        (!child[0] || add_text(object, "child", child)) && add_text(object, "got", got) &&
        add_text(object, "accepted", accepted) && add_text(object, "text", text))
        return object;
    cJSON_Delete(object);
    return NULL;
}

/* A reason that no backend gave. */
static cJSON *own_reason(const char *code, const char *field, const char *got, const char *accepted,
                         const char *text)
{
    cJSON *object = cJSON_CreateObject();
    if (object && add_text(object, "code", code) && add_text(object, "field", field) &&
        add_text(object, "got", got) && add_text(object, "accepted", accepted) &&
        add_text(object, "text", text))
        return object;
    cJSON_Delete(object);
    return NULL;
}

static cJSON *exclusion_json(const struct select_candidate *candidate)
{
    char text[512];
    select_exclusion_text(candidate, text, sizeof text);
    cJSON *object =
        own_reason("RULE", candidate->blamed, candidate->got, candidate->excluded->accepted, text);
    if (object && add_text(object, "rule", candidate->excluded->name))
        return object;
    cJSON_Delete(object);
    return NULL;
}

static cJSON *absence_json(const struct selection *selection,
                           const struct select_candidate *candidate)
{
    switch (candidate->absence) {
    case SELECT_NOT_INSTALLED:
        return own_reason("NOT_INSTALLED", "backend", candidate->name, selection->installed,
                          candidate->absent);
    case SELECT_COMPOSITE:
        return own_reason("COMPOSITE", "attention_backend", "auto", candidate->name,
                          candidate->absent);
    default:
        return own_reason("NO_ANSWER", "options", candidate->name, "options that it takes",
                          candidate->absent);
    }
}

static bool add_reasons(const struct selection *selection, const struct select_candidate *candidate,
                        cJSON *reasons)
{
    bool ok = true;
    if (candidate->excluded)
        return append(reasons, exclusion_json(candidate));
    if (candidate->absent)
        return append(reasons, absence_json(selection, candidate));
    for (uint32_t i = 0; ok && i < candidate->verdict.num_reasons; i++)
        ok = append(reasons, reason_json(&candidate->reasons[i]));
    return ok;
}

static cJSON *candidate_json(const struct selection *selection,
                             const struct select_candidate *candidate)
{
    cJSON *object = cJSON_CreateObject();
    bool ok = object && add_text(object, "name", candidate->name) &&
              cJSON_AddBoolToObject(object, "supported", candidate->layouts != 0);
    if (ok && candidate->known)
        ok = add_text(object, "what", candidate->known->text);
    if (ok && candidate->absent)
        ok = add_text(object, "absent", candidate->absent);
    if (ok && !candidate->layouts) {
        cJSON *reasons = cJSON_AddArrayToObject(object, "reasons");
        ok = reasons && add_reasons(selection, candidate, reasons);
    }
    if (ok)
        return object;
    cJSON_Delete(object);
    return NULL;
}

static cJSON *phase_json(const struct selection *selection, uint32_t group, uint32_t index)
{
    const struct select_phase *phase = &selection->groups[group].phases[index];
    cJSON *object = cJSON_CreateObject();
    cJSON *candidates = NULL;
    bool ok = object && add_text(object, "phase", select_phase_name(index)) &&
              add_text(object, "wanted", phase->wanted) &&
              add_text(object, "backend", select_backend(selection, group, index)) &&
              add_text(object, "preferred",
                       phase->preferred < 0 ? NULL : phase->candidates[phase->preferred].name) &&
              add_text(object, "why", phase->why) &&
              (candidates = cJSON_AddArrayToObject(object, "candidates"));
    for (uint32_t i = 0; ok && i < phase->num_candidates; i++)
        ok = append(candidates, candidate_json(selection, &phase->candidates[i]));
    if (ok)
        return object;
    cJSON_Delete(object);
    return NULL;
}

static cJSON *group_json(const struct selection *selection, uint32_t index)
{
    const struct select_group *group = &selection->groups[index];
    const attn_layer_group *layers = &selection->model->groups[index];
    char ids[256], what[256];
    cJSON *object = cJSON_CreateObject();
    cJSON *phases = NULL;
    model_layers_text(layers, ids, sizeof ids);
    model_group_text(selection->model, layers, what, sizeof what);
    bool ok = object && add_text(object, "layers", ids) && add_text(object, "group", what) &&
              add_text(object, "kv_layout", group->kv_layout) &&
              add_text(object, "state_layout", group->state_layout) &&
              add_text(object, "composition",
                       group->unit < 0 ? NULL : selection->units[group->unit].backend) &&
              add_text(object, "decode_graph_level",
                       group->unit < 0 || !group->phases[SELECT_DECODE].exists
                           ? NULL
                           : graph_level_name(select_decode_graph_level(selection, index))) &&
              (phases = cJSON_AddArrayToObject(object, "phases"));
    for (uint32_t p = 0; ok && p < SELECT_PHASES; p++)
        if (group->phases[p].exists)
            ok = append(phases, phase_json(selection, index, p));
    if (ok)
        return object;
    cJSON_Delete(object);
    return NULL;
}

cJSON *select_to_json(const struct selection *selection)
{
    char device[32];
    cJSON *object = cJSON_CreateObject();
    cJSON *groups = NULL;
    platform_text(&selection->device, device, sizeof device);
    bool ok =
        object && add_text(object, "device", device) &&
        add_text(object, "simulated", selection->simulated) &&
        add_text(object, "device_note", selection->device_note) &&
        add_text(object, "model", selection->model->name) &&
        add_text(object, "architecture", selection->model->architecture) &&
        add_text(object, "dtype", dtype_name(selection->model->dtype)) &&
        cJSON_AddNumberToObject(object, "max_context_len", selection->model->max_context_len) &&
        (groups = cJSON_AddArrayToObject(object, "groups"));
    for (uint32_t g = 0; ok && g < selection->num_groups; g++)
        ok = append(groups, group_json(selection, g));
    if (ok)
        return object;
    cJSON_Delete(object);
    return NULL;
}
