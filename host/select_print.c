/* SPDX-License-Identifier: Apache-2.0
 *
 * select_print.c: a selection as text and as JSON.
 */
#include "host/select.h"

#include <string.h>

#include "host/dtype.h"
#include "host/platform.h"

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

static void print_candidate(const struct select_candidate *candidate, bool chosen, FILE *file)
{
    char reason[320];
    const char *mark = chosen ? "*" : " ";
    if (candidate->absent) {
        fprintf(file, "    %s %s: %s\n", mark, candidate->name, candidate->absent);
        return;
    }
    if (candidate->layouts) {
        fprintf(file, "    %s %s: can serve\n", mark, candidate->name);
        return;
    }
    fprintf(file, "    %s %s: cannot serve\n", mark, candidate->name);
    for (uint32_t i = 0; i < candidate->verdict.num_reasons; i++) {
        select_reason_text(&candidate->reasons[i], reason, sizeof reason);
        fprintf(file, "        %s\n", reason);
    }
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

static void print_group(const struct selection *selection, uint32_t index, FILE *file)
{
    const struct select_group *group = &selection->groups[index];
    const attn_layer_group *layers = &selection->model->groups[index];
    char ids[64], what[256];
    model_layers_text(layers, ids, sizeof ids);
    model_group_text(layers, what, sizeof what);
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
    for (uint32_t p = 0; p < SELECT_PHASES; p++) {
        const struct select_phase *phase = &group->phases[p];
        const char *backend = select_backend(selection, index, p);
        if (!phase->exists)
            continue;
        fprintf(file, "  %s: %s (%s)\n", select_phase_name(p), backend ? backend : "none",
                phase->why);
        for (uint32_t c = 0; c < phase->num_candidates; c++)
            print_candidate(&phase->candidates[c], (int32_t)c == phase->chosen, file);
    }
}

void select_print(const struct selection *selection, FILE *file)
{
    const struct model *model = selection->model;
    char device[32];
    platform_text(&selection->device, device, sizeof device);
    fprintf(file, "device: %s\n", device);
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

static cJSON *candidate_json(const struct select_candidate *candidate)
{
    cJSON *object = cJSON_CreateObject();
    bool ok = object && add_text(object, "name", candidate->name) &&
              cJSON_AddBoolToObject(object, "supported", candidate->layouts != 0);
    if (ok && candidate->absent)
        ok = add_text(object, "absent", candidate->absent);
    if (ok && !candidate->absent && !candidate->layouts) {
        cJSON *reasons = cJSON_AddArrayToObject(object, "reasons");
        ok = reasons != NULL;
        for (uint32_t i = 0; ok && i < candidate->verdict.num_reasons; i++)
            ok = append(reasons, reason_json(&candidate->reasons[i]));
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
              add_text(object, "why", phase->why) &&
              (candidates = cJSON_AddArrayToObject(object, "candidates"));
    for (uint32_t i = 0; ok && i < phase->num_candidates; i++)
        ok = append(candidates, candidate_json(&phase->candidates[i]));
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
    model_group_text(layers, what, sizeof what);
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
