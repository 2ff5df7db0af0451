/* SPDX-License-Identifier: Apache-2.0
 *
 * print.c: a selection as text and as JSON.
 */
#include "host/select/selection_api.h"

#include <stdarg.h>
#include <string.h>

#include "host/base/dtype.h"
#include "host/base/json_add.h"
#include "host/base/bit_names.h"
#include "host/base/text.h"
#include "host/select/platform.h"

/* ---- Names ----------------------------------------------------------------------------------- */

const char *select_field_name(uint32_t field)
{
    static const char *const names[] = {
#define NAME(name, value, text) [value] = text,
        ATTN_FIELD_MAP(NAME)
#undef NAME
    };
    const char *name = field < ATTN_FIELD_COUNT ? names[field] : NULL;
    return name ? name : "?";
}

const char *select_code_name(uint32_t code)
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
        snprintf(with, sizeof with, " with %s", select_field_name(reason->with_field));
    snprintf(text, size, "%s%s %.*s%s: accepted %.*s", child, select_field_name(reason->field),
             TEXT_OF(reason->got), with, TEXT_OF(reason->accepted));
}

void select_exclusion_text(const struct select_candidate *candidate, char *text, size_t size)
{
    snprintf(text, size, "%s %s: accepted %s (%s)", candidate->blamed, candidate->got,
             candidate->excluded->accepted, candidate->excluded->text);
}

/* ---- Multiprocessors ------------------------------------------------------------------------- */

enum { BUDGET_TEXT = 96 };

/* The multiprocessor limit of a verdict, which decides the printed text. 0: launches may use all of
 * the device, and nothing is printed. */
static int32_t budget_of(int32_t max_sms, const attn_device *device, const attn_verdict *verdict)
{
    if (max_sms <= 0 || (uint32_t)max_sms >= device->num_sms)
        return 0;
    return verdict->traits & ATTN_TRAIT_SM_BUDGET ? max_sms : (int32_t)device->num_sms;
}

/* ", launches keep to 20 multiprocessors" of a backend that can serve; or "". */
static const char *budget_text(int32_t max_sms, const attn_device *device,
                               const attn_verdict *verdict, char text[BUDGET_TEXT])
{
    int32_t budget = budget_of(max_sms, device, verdict);
    text[0] = '\0';
    if (budget > 0 && budget == max_sms)
        snprintf(text, BUDGET_TEXT, ", launches keep to %d multiprocessors", budget);
    else if (budget > 0)
        snprintf(text, BUDGET_TEXT, ", launches may take all %d multiprocessors", budget);
    return text;
}

/* ---- Choices --------------------------------------------------------------------------------- */

static const struct select_candidate *chosen_of(const struct select_phase *phase)
{
    return phase->chosen < 0 ? NULL : &phase->candidates[phase->chosen];
}

/* Are both phases of a group served by the same backend for the same reason? */
static bool same_choice(const struct selection *selection, const struct select_group *group)
{
    const struct select_phase *prefill = &group->phases[SELECT_PREFILL];
    const struct select_phase *decode = &group->phases[SELECT_DECODE];
    const struct select_candidate *first = chosen_of(prefill), *second = chosen_of(decode);
    if (!decode->exists || strcmp(prefill->why, decode->why) != 0 || !first != !second)
        return false;
    return !first || (strcmp(first->name, second->name) == 0 &&
                      budget_of(selection->max_sms, &selection->device, &first->verdict) ==
                          budget_of(selection->max_sms, &selection->device, &second->verdict));
}

/* The layers are named only for a group's first phase. */
static void print_choice(const struct selection *selection, uint32_t group, uint32_t phase,
                         const char *phases, FILE *file)
{
    bool again = phase == SELECT_DECODE;
    char layers[MODEL_LAYERS_TEXT], budget[BUDGET_TEXT] = "";
    const struct select_phase *of = &selection->groups[group].phases[phase];
    const struct select_candidate *chosen = chosen_of(of);
    const char *backend = select_backend(selection, group, phase);
    model_layers_text(&selection->model->groups[group], layers, sizeof layers);
    if (chosen)
        budget_text(selection->max_sms, &selection->device, &chosen->verdict, budget);
    text_wrap_line(file, again ? 2 : 0, again ? 4 : 2, "%s%s%s%s: %s (%s)%s",
                   again ? "" : "layers ", again ? "" : layers, again ? "" : " ", phases,
                   backend ? backend : "none", of->why, budget);
}

const char *select_shares_none(const struct config *config, const struct model *model)
{
    return config->kv_cache.prefix_cache && model_crosses(model)
               ? "prefix cache: none, as keys depend on what the request's encoder read"
               : NULL;
}

void select_print_choices(const struct selection *selection, FILE *file)
{
    char device[32];
    platform_text(&selection->device, device, sizeof device);
    if (selection->device_note)
        text_wrap_line(file, 0, 2, "device: %s (%s)", device, selection->device_note);
    if (selection->model->left_out)
        text_wrap_line(file, 0, 2, "left out: %u of %s", selection->model->num_left_out,
                       selection->model->left_out);
    for (uint32_t g = 0; g < selection->num_groups; g++) {
        const struct select_group *group = &selection->groups[g];
        if (same_choice(selection, group)) {
            print_choice(selection, g, SELECT_PREFILL, "prefill, decode", file);
            continue;
        }
        for (uint32_t p = 0; p < SELECT_PHASES; p++)
            if (group->phases[p].exists)
                print_choice(selection, g, p, select_phase_name(p), file);
    }
}

/* ---- Text ------------------------------------------------------------------------------------ */

static const attnhost_phase *phase_at(const attnhost_group *group, uint32_t index)
{
    return attn_at(group->phases, index);
}

static const attnhost_candidate *candidate_at(const attnhost_phase *phase, uint32_t index)
{
    return attn_at(phase->candidates, index);
}

static const attnhost_reason *reason_at(const attnhost_candidate *candidate, uint32_t index)
{
    return attn_at(candidate->reasons, index);
}

static const attnhost_unit *unit_of(const attnhost_selection *selected, const attnhost_group *group)
{
    return group->unit < 0 ? NULL : attn_at(selected->units, (uint32_t)group->unit);
}

/* The chosen backend of a phase, or NULL. */
static const char *backend_of(const attnhost_phase *phase)
{
    return phase->chosen < 0 ? NULL : candidate_at(phase, (uint32_t)phase->chosen)->name;
}

static bool decodes(const attnhost_group *group)
{
    return group->num_phases == SELECT_PHASES;
}

/* The choice of the rules, next to a candidate that is not installed. */
static void put_absent(const attnhost_candidate *candidate, bool preferred, FILE *file)
{
    const char *why = reason_at(candidate, 0)->text;
    if (preferred && candidate->what[0])
        text_wrap_line(file, 6, 8, "%s: would be chosen; %s (%s%s%s)", candidate->name, why,
                       candidate->what, candidate->aliases[0] ? "; in SGLang: " : "",
                       candidate->aliases);
    else
        text_wrap_line(file, 6, 8, "%s: %s%s", candidate->name,
                       preferred ? "would be chosen; " : "", why);
}

/* The accepted model.dtype, if that is the only obstacle; or NULL. */
static const char *other_dtype(const attnhost_candidate *candidate)
{
    const char *accepted = NULL;
    for (uint32_t r = 0; r < candidate->num_reasons; r++) {
        const attnhost_reason *reason = reason_at(candidate, r);
        if (strcmp(reason->code_name, "DTYPE") != 0)
            return NULL;
        if (strcmp(reason->field, "q_dtype") == 0)
            accepted = reason->accepted;
    }
    return accepted;
}

static void print_candidate(const attnhost_selection *selected, const attnhost_phase *phase,
                            uint32_t index, FILE *file)
{
    char budget[BUDGET_TEXT];
    const attnhost_candidate *candidate = candidate_at(phase, index);
    const attnhost_reason *first = candidate->num_reasons ? reason_at(candidate, 0) : NULL;
    const char *dtype = other_dtype(candidate);
    switch (candidate->state) {
    case ATTNHOST_EXCLUDED:
        text_wrap_line(file, 6, 8, "%s: excluded", candidate->name);
        text_wrap_line(file, 8, 10, "%s [RULE %s]", first->text, first->rule);
        return;
    case ATTNHOST_ABSENT:
        put_absent(candidate, (int32_t)index == phase->preferred, file);
        return;
    case ATTNHOST_CAN_SERVE:
        text_wrap_line(
            file, 4, 6, "%s %s: can serve%s", (int32_t)index == phase->chosen ? "*" : " ",
            candidate->name,
            budget_text(selected->max_sms, &selected->device, candidate->verdict, budget));
        return;
    default:
        text_wrap_line(file, 6, 8, "%s: cannot serve", candidate->name);
    }
    for (uint32_t r = 0; r < candidate->num_reasons; r++)
        text_wrap_line(file, 8, 10, "%s [%s]", reason_at(candidate, r)->text,
                       reason_at(candidate, r)->code_name);
    if (dtype)
        text_wrap_line(file, 8, 10, "it could serve with model.dtype = %s", dtype);
}

static bool same_answer(const attnhost_selection *selected, const attnhost_candidate *a,
                        const attnhost_candidate *b)
{
    bool same =
        strcmp(a->name, b->name) == 0 && a->state == b->state && a->num_reasons == b->num_reasons;
    if (same && a->state == ATTNHOST_CAN_SERVE)
        same = budget_of(selected->max_sms, &selected->device, a->verdict) ==
               budget_of(selected->max_sms, &selected->device, b->verdict);
    for (uint32_t r = 0; same && r < a->num_reasons; r++) {
        const attnhost_reason *first = reason_at(a, r), *second = reason_at(b, r);
        same = strcmp(first->code_name, second->code_name) == 0 &&
               strcmp(first->text, second->text) == 0 && strcmp(first->rule, second->rule) == 0;
    }
    return same;
}

/* Would both phases print the same text? */
static bool same_phase(const attnhost_selection *selected, const attnhost_phase *a,
                       const attnhost_phase *b)
{
    bool same = a->chosen == b->chosen && a->preferred == b->preferred &&
                strcmp(a->why, b->why) == 0 && a->num_candidates == b->num_candidates;
    for (uint32_t i = 0; same && i < a->num_candidates; i++)
        same = same_answer(selected, candidate_at(a, i), candidate_at(b, i));
    return same;
}

static bool same_phases(const attnhost_selection *selected, const attnhost_group *group)
{
    return decodes(group) &&
           same_phase(selected, phase_at(group, SELECT_PREFILL), phase_at(group, SELECT_DECODE));
}

static bool same_group(const attnhost_selection *selected, const attnhost_group *a,
                       const attnhost_group *b)
{
    bool same = a->num_phases == b->num_phases;
    for (uint32_t p = 0; same && p < a->num_phases; p++)
        same = same_phase(selected, phase_at(a, p), phase_at(b, p));
    return same;
}

/* The first earlier group that prints the same text, or NULL. */
static const attnhost_group *find_same(const attnhost_selection *selected,
                                       const attnhost_group *group)
{
    for (uint32_t g = 0; g < selected->num_groups; g++) {
        const attnhost_group *before = attn_at(selected->groups, g);
        if (before == group)
            return NULL;
        if (same_group(selected, before, group))
            return before;
    }
    return NULL;
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
static void print_graph_level(const attnhost_selection *selected, const attnhost_group *group,
                              FILE *file)
{
    if (selected->device.type == ATTN_DEVICE_CPU || !decodes(group))
        return;
    fprintf(file, "  decode steps %s (graph level %s)\n",
            group->decode_graph_level >= ATTN_GRAPH_SINGLE_TOKEN ? "can be captured into graphs"
                                                                 : "run eagerly",
            graph_level_name(group->decode_graph_level));
}

static double mebibytes(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* The most GPU memory that metadata of the group's batches takes, as the backends state it, within
 * bounds that a note states. */
static void print_memory(const attnhost_selection *selected, const attnhost_group *group,
                         FILE *file)
{
    strbuf more;
    if (selected->device.type == ATTN_DEVICE_CPU || group->device_bytes == 0)
        return;
    strbuf_init(&more);
    for (uint32_t p = 0; p < group->num_phases && decodes(group); p++) {
        const attnhost_phase *phase = phase_at(group, p);
        if (phase->chosen < 0)
            continue;
        const attnhost_candidate *chosen = candidate_at(phase, (uint32_t)phase->chosen);
        strbuf_appendf(&more, "%s%s alone %.1f", p ? ", " : " for both phases, which share it (",
                       phase->name, mebibytes(chosen->verdict->device_bytes));
    }
    if (decodes(group))
        strbuf_append(&more, ")");
    if (group->graph_device_bytes > 0)
        strbuf_appendf(&more, "; a graph of decode steps %.1f, its scratch part shared by all",
                       mebibytes(group->graph_device_bytes));
    text_wrap_line(file, 2, 4, "workspace: at most %.1f MiB of device memory%s",
                   mebibytes(group->device_bytes), strbuf_text(&more));
    strbuf_finish(&more);
}

static bool has_answer(const attnhost_selection *selected, const attnhost_phase *phase,
                       const attnhost_candidate *candidate)
{
    for (uint32_t c = 0; c < phase->num_candidates; c++)
        if (same_answer(selected, candidate_at(phase, c), candidate))
            return true;
    return false;
}

/* An earlier phase, of this group or of one before it, that printed the same text for a candidate;
 * NULL = none. Candidates that can serve, or would be chosen, are always printed. */
static const attnhost_phase *said_before(const attnhost_selection *selected,
                                         const attnhost_group *group, uint32_t p, uint32_t index)
{
    const attnhost_phase *phase = phase_at(group, p);
    const attnhost_candidate *candidate = candidate_at(phase, index);
    if (candidate->state == ATTNHOST_CAN_SERVE || (int32_t)index == phase->preferred)
        return NULL;
    for (uint32_t g = 0; attn_at(selected->groups, g) != (const void *)group; g++) {
        const attnhost_group *before = attn_at(selected->groups, g);
        if (p < before->num_phases && has_answer(selected, phase_at(before, p), candidate))
            return phase_at(before, p);
    }
    for (uint32_t before = 0; before < p; before++)
        if (has_answer(selected, phase_at(group, before), candidate))
            return phase_at(group, before);
    return NULL;
}

/* The last candidate, from `index` on, that prints the same single sentence. */
static uint32_t last_alike(const attnhost_selection *selected, const attnhost_group *group,
                           uint32_t p, uint32_t index)
{
    const attnhost_phase *phase = phase_at(group, p);
    const attnhost_candidate *first = candidate_at(phase, index);
    uint32_t last = index;
    if (first->state != ATTNHOST_ABSENT || (int32_t)index == phase->preferred)
        return index;
    for (uint32_t c = index + 1; c < phase->num_candidates; c++) {
        const attnhost_candidate *next = candidate_at(phase, c);
        if (next->state != ATTNHOST_ABSENT || (int32_t)c == phase->preferred ||
            strcmp(reason_at(first, 0)->text, reason_at(next, 0)->text) != 0 ||
            said_before(selected, group, p, c))
            break;
        last = c;
    }
    return last;
}

static void append_name(strbuf *names, const char *name)
{
    strbuf_appendf(names, "%s%s", *strbuf_text(names) ? ", " : "", name);
}

static void print_alike(const attnhost_phase *phase, uint32_t first, uint32_t last, FILE *file)
{
    strbuf names;
    strbuf_init(&names);
    for (uint32_t c = first; c <= last; c++)
        append_name(&names, candidate_at(phase, c)->name);
    text_wrap_line(file, 6, 8, "%s: %s", strbuf_text(&names),
                   reason_at(candidate_at(phase, first), 0)->text);
    strbuf_finish(&names);
}

/* "as for layers 0-2: cpu_native, route": the candidates from `index` on that one earlier place has
 * printed. */
static void print_said(const attnhost_selection *selected, const attnhost_group *group, uint32_t p,
                       uint32_t index, FILE *file)
{
    const attnhost_phase *phase = phase_at(group, p),
                         *place = said_before(selected, group, p, index);
    strbuf names;
    for (uint32_t c = 0; c < index; c++)
        if (said_before(selected, group, p, c) == place)
            return; /* with that one */
    strbuf_init(&names);
    for (uint32_t c = index; c < phase->num_candidates; c++)
        if (said_before(selected, group, p, c) == place)
            append_name(&names, candidate_at(phase, c)->name);
    if (p > 0 && place == phase_at(group, 0))
        text_wrap_line(file, 6, 8, "as in %s: %s", place->name, strbuf_text(&names));
    for (uint32_t g = 0; attn_at(selected->groups, g) != (const void *)group; g++) {
        const attnhost_group *before = attn_at(selected->groups, g);
        if (p < before->num_phases && place == phase_at(before, p))
            text_wrap_line(file, 6, 8, "as for layers %s: %s", before->layers, strbuf_text(&names));
    }
    strbuf_finish(&names);
}

static void print_phase(const attnhost_selection *selected, const attnhost_group *group, uint32_t p,
                        const char *name, FILE *file)
{
    const attnhost_phase *phase = phase_at(group, p);
    const char *backend = backend_of(phase);
    text_wrap_line(file, 2, 4, "%s: %s (%s)", name, backend ? backend : "none", phase->why);
    for (uint32_t c = 0; c < phase->num_candidates; c++) {
        uint32_t last = last_alike(selected, group, p, c);
        if (said_before(selected, group, p, c))
            continue;
        if (last > c)
            print_alike(phase, c, last, file);
        else
            print_candidate(selected, phase, c, file);
        c = last;
    }
    for (uint32_t c = 0; c < phase->num_candidates; c++)
        if (said_before(selected, group, p, c))
            print_said(selected, group, p, c, file);
}

static void print_group(const attnhost_selection *selected, const attnhost_group *group, FILE *file)
{
    const attnhost_unit *unit = unit_of(selected, group);
    const attnhost_group *same_as = find_same(selected, group);
    putc('\n', file);
    text_wrap_line(file, 0, 2, "layers %s: %s", group->layers, group->what);
    if (unit) {
        const char *layout = group->kv_layout ? group->kv_layout : group->state_layout;
        bool joined = strcmp(unit->type, unit->backend) != 0;
        text_wrap_line(file, 2, 4, "served by %s%s%s%s%s%s", unit->backend, joined ? " (" : "",
                       joined ? unit->type : "", joined ? ")" : "", layout ? ", layout " : "",
                       layout ? layout : "");
        print_graph_level(selected, group, file);
        print_memory(selected, group, file);
    }
    if (same_as) {
        text_wrap_line(file, 2, 4, "candidates and reasons: as for layers %s", same_as->layers);
        return;
    }
    bool same = same_phases(selected, group);
    for (uint32_t p = 0; p < (same ? 1 : group->num_phases); p++)
        print_phase(selected, group, p, same ? "prefill, decode" : phase_at(group, p)->name, file);
}

void selection_api_print(const attnhost_selection *selected, FILE *file)
{
    if (selected->simulated)
        text_wrap_line(file, 0, 2, "device: %s, simulated: %s", selected->device_name,
                       selected->simulated);
    else
        text_wrap_line(file, 0, 2, "device: %s%s%s%s", selected->device_name,
                       selected->device_note ? " (" : "",
                       selected->device_note ? selected->device_note : "",
                       selected->device_note ? ")" : "");
    if (selected->max_sms > 0)
        text_wrap_line(file, 0, 2, "multiprocessors: launches may use %d of %u", selected->max_sms,
                       selected->device.num_sms);
    text_wrap_line(file, 0, 2, "model: %s (%s), %u attention layers, %s, context %d tokens",
                   selected->architecture, selected->model, selected->num_layers,
                   dtype_name(selected->dtype), selected->max_context_len);
    for (uint32_t g = 0; g < selected->num_groups; g++)
        print_group(selected, attn_at(selected->groups, g), file);
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

/* Absent where there is none. */
static bool add_some(cJSON *object, const char *key, const char *text)
{
    return !text[0] || add_text(object, key, text);
}

static cJSON *reason_json(const attnhost_reason *reason)
{
    cJSON *object = cJSON_CreateObject();
    if (object && add_text(object, "code", reason->code_name) &&
        add_text(object, "field", reason->field) &&
        add_some(object, "with_field", reason->with_field) &&
        add_some(object, "child", reason->child) && add_text(object, "got", reason->got) &&
        add_text(object, "accepted", reason->accepted) && add_text(object, "text", reason->text) &&
        add_some(object, "rule", reason->rule))
        return object;
    cJSON_Delete(object);
    return NULL;
}

/* The names of ATTN_TRAIT_*. */
static bool add_traits(cJSON *object, uint32_t traits)
{
    cJSON *list = cJSON_AddArrayToObject(object, "traits");
    bool ok = list != NULL;
    for (uint32_t bit = 0; ok && bit < 32; bit++) {
        const char *name = bit_names_member(ATTN_FIELD_REQUIRED_TRAITS, bit);
        if (name && traits >> bit & 1u)
            ok = json_add_text_item(list, name);
    }
    return ok;
}

static cJSON *candidate_json(const attnhost_candidate *candidate)
{
    bool serves = candidate->state == ATTNHOST_CAN_SERVE;
    cJSON *object = cJSON_CreateObject();
    bool ok = object && add_text(object, "name", candidate->name) &&
              cJSON_AddBoolToObject(object, "supported", serves) &&
              add_some(object, "what", candidate->what);
    if (ok && candidate->state == ATTNHOST_ABSENT)
        ok = add_text(object, "absent", reason_at(candidate, 0)->text);
    if (ok && serves)
        ok = add_traits(object, candidate->verdict->traits) &&
             cJSON_AddNumberToObject(object, "device_bytes",
                                     (double)candidate->verdict->device_bytes);
    cJSON *reasons = ok && !serves ? cJSON_AddArrayToObject(object, "reasons") : NULL;
    ok = ok && (serves || reasons);
    for (uint32_t r = 0; ok && r < candidate->num_reasons; r++)
        ok = append(reasons, reason_json(reason_at(candidate, r)));
    if (ok)
        return object;
    cJSON_Delete(object);
    return NULL;
}

static cJSON *phase_json(const attnhost_phase *phase)
{
    const char *preferred =
        phase->preferred < 0 ? NULL : candidate_at(phase, (uint32_t)phase->preferred)->name;
    cJSON *object = cJSON_CreateObject();
    cJSON *candidates = NULL;
    bool ok = object && add_text(object, "phase", phase->name) &&
              add_text(object, "wanted", phase->wanted) &&
              add_text(object, "backend", backend_of(phase)) &&
              add_text(object, "preferred", preferred) && add_text(object, "why", phase->why) &&
              (candidates = cJSON_AddArrayToObject(object, "candidates"));
    for (uint32_t i = 0; ok && i < phase->num_candidates; i++)
        ok = append(candidates, candidate_json(candidate_at(phase, i)));
    if (ok)
        return object;
    cJSON_Delete(object);
    return NULL;
}

static cJSON *group_json(const attnhost_selection *selected, const attnhost_group *group)
{
    const attnhost_unit *unit = unit_of(selected, group);
    cJSON *object = cJSON_CreateObject();
    cJSON *phases = NULL;
    bool ok =
        object && add_text(object, "layers", group->layers) &&
        add_text(object, "group", group->what) && add_text(object, "kv_layout", group->kv_layout) &&
        add_text(object, "state_layout", group->state_layout) &&
        add_text(object, "composition", unit ? unit->backend : NULL) &&
        add_text(object, "decode_graph_level",
                 unit && decodes(group) ? graph_level_name(group->decode_graph_level) : NULL) &&
        cJSON_AddNumberToObject(object, "device_bytes", (double)group->device_bytes) &&
        cJSON_AddNumberToObject(object, "graph_device_bytes", (double)group->graph_device_bytes) &&
        (phases = cJSON_AddArrayToObject(object, "phases"));
    for (uint32_t p = 0; ok && p < group->num_phases; p++)
        ok = append(phases, phase_json(phase_at(group, p)));
    if (ok)
        return object;
    cJSON_Delete(object);
    return NULL;
}

cJSON *selection_api_to_json(const attnhost_selection *selected)
{
    cJSON *object = cJSON_CreateObject();
    cJSON *groups = NULL;
    bool ok =
        object && add_text(object, "device", selected->device_name) &&
        add_text(object, "simulated", selected->simulated) &&
        add_text(object, "device_note", selected->device_note) &&
        (selected->max_sms == 0 || cJSON_AddNumberToObject(object, "max_sms", selected->max_sms)) &&
        add_text(object, "model", selected->model) &&
        add_text(object, "architecture", selected->architecture) &&
        add_text(object, "dtype", dtype_name(selected->dtype)) &&
        cJSON_AddNumberToObject(object, "max_context_len", selected->max_context_len) &&
        (groups = cJSON_AddArrayToObject(object, "groups"));
    for (uint32_t g = 0; ok && g < selected->num_groups; g++)
        ok = append(groups, group_json(selected, attn_at(selected->groups, g)));
    if (ok)
        return object;
    cJSON_Delete(object);
    return NULL;
}
