/* SPDX-License-Identifier: Apache-2.0
 *
 * join.c: the full-attention layers of a model are served by one backend, its linear layers
 * by another: the two become one unit, a hybrid_linear backend that is defined here. Where they
 * cannot be (more than two backends, no such composite, a name too long) or may not be (select.c
 * keeps layers that are called in the expanded form apart) they stay two units, and each is
 * composed by itself.
 */
#include "host/select/select_private.h"

#include <stdlib.h>
#include <string.h>

#include "host/embed/embed.h"
#include "host/kinds/kinds.h"

enum { MAX_NAME = 63 };

static const char composite[] = "hybrid_linear";

/* Are all groups of the unit decoder layers that may be joined, and linear (or not linear) as
 * asked? */
static bool is_unit_of(const struct selector *selector, const struct select_unit *unit, bool linear)
{
    for (uint32_t g = 0; g < unit->num_groups; g++) {
        const attn_layer_group *group = &selector->model->groups[unit->groups[g]];
        if (!model_group_decodes(group) || kind_expands(selector->model, group) ||
            model_group_has_state(group) != linear)
            return false;
    }
    return true;
}

/* The one unit of its sort, or -1. */
static int32_t find_unit(const struct selector *selector, bool linear)
{
    const struct selection *selection = selector->selection;
    int32_t found = -1;
    for (uint32_t u = 0; u < selection->num_units; u++)
        if (is_unit_of(selector, &selection->units[u], linear)) {
            if (found >= 0)
                return -1;
            found = (int32_t)u;
        }
    return found;
}

static bool is_this_pair(const struct compose_definition *known, const char *const pairs[4])
{
    bool same = strcmp(known->type, composite) == 0 && known->num_texts == 2;
    for (size_t p = 0; same && p < 2; p++)
        same = strcmp(known->texts[p].key, pairs[2 * p]) == 0 &&
               strcmp(known->texts[p].value, pairs[2 * p + 1]) == 0;
    return same;
}

/* Define the composite under its own name; *defined = 0 if the name is taken. A second selection
 * finds the definition of the first one. */
static attn_status define(struct selector *selector, const char *full, const char *linear,
                          char name[MAX_NAME + 1], bool *defined)
{
    const char *const pairs[4] = {"full", full, "linear", linear};
    *defined = snprintf(name, MAX_NAME + 1, "%s-with-%s", full, linear) <= MAX_NAME;
    const struct compose_definition *known =
        *defined ? composer_find(&selector->host->composer, name) : NULL;
    if (known)
        *defined = is_this_pair(known, pairs);
    if (!*defined || known)
        return ATTN_OK;
    return attnhost_define_backend(selector->host, name, composite, pairs, 2, selector->error);
}

static uint32_t layout_bit(const struct selector *selector, uint32_t group)
{
    const struct select_group *chosen = &selector->selection->groups[group];
    const char *wanted = chosen->kv_layout ? chosen->kv_layout : chosen->state_layout;
    const char *const *layouts = kind_layouts(&selector->model->groups[group]);
    for (uint32_t i = 0; wanted && i < KIND_MAX_LAYOUTS; i++)
        if (layouts[i] && strcmp(layouts[i], wanted) == 0)
            return 1u << i;
    return 1;
}

/* Does the composite serve the groups of a unit with the layouts that were chosen? Its verdicts go
 * into verdicts[], by group. */
static attn_status ask(struct selector *selector, const char *name, const struct select_unit *unit,
                       attn_verdict *verdicts, bool *served)
{
    attn_status status = ATTN_OK;
    for (uint32_t g = 0; g < unit->num_groups && *served && status == ATTN_OK; g++) {
        struct select_candidate candidate = {.name = strdup(name)};
        if (!candidate.name)
            return select_no_memory(selector);
        status = select_ask(selector, unit->groups[g], unit->modes, &candidate, selector->error);
        *served = (candidate.layouts & layout_bit(selector, unit->groups[g])) != 0;
        verdicts[unit->groups[g]] = candidate.verdict;
        verdicts[unit->groups[g]].reasons = NULL;
        verdicts[unit->groups[g]].reasons_capacity = 0;
        select_candidate_finish(&candidate);
    }
    return status;
}

static int ascending(const void *a, const void *b)
{
    uint32_t first = *(const uint32_t *)a, second = *(const uint32_t *)b;
    return (first > second) - (first < second);
}

/* The groups of the second unit go to the first one, which is the composite from now on. */
static attn_status merge(struct selector *selector, uint32_t first, uint32_t second,
                         const char *name, const attn_verdict *verdicts)
{
    struct selection *selection = selector->selection;
    struct select_unit *unit = &selection->units[first], *other = &selection->units[second];
    char *backend = strdup(name), *type = strdup(composite);
    if (!backend || !type) {
        free(backend);
        free(type);
        return select_no_memory(selector);
    }
    free(unit->backend);
    free(unit->type);
    unit->backend = backend;
    unit->type = type;
    unit->modes |= other->modes;
    for (uint32_t g = 0; g < other->num_groups; g++)
        unit->groups[unit->num_groups++] = other->groups[g];
    qsort(unit->groups, unit->num_groups, sizeof *unit->groups, ascending);
    for (uint32_t g = 0; g < unit->num_groups; g++) {
        selection->groups[unit->groups[g]].unit = (int32_t)first;
        selection->groups[unit->groups[g]].verdict = verdicts[unit->groups[g]];
    }
    free(other->backend);
    free(other->type);
    free(other->groups);
    selection->num_units--;
    memmove(other, other + 1, (selection->num_units - second) * sizeof *other);
    for (uint32_t g = 0; g < selection->num_groups; g++)
        selection->groups[g].unit -= selection->groups[g].unit > (int32_t)second;
    return ATTN_OK;
}

attn_status select_join_kinds(struct selector *selector)
{
    const struct selection *selection = selector->selection;
    int32_t full = find_unit(selector, false), linear = find_unit(selector, true);
    char name[MAX_NAME + 1];
    bool served = false;
    if (full < 0 || linear < 0 || !select_find_type(selector->host, composite))
        return ATTN_OK;
    const struct select_unit *first = &selection->units[full], *second = &selection->units[linear];
    attn_verdict *verdicts = calloc(selection->num_groups, sizeof *verdicts);
    if (!verdicts)
        return select_no_memory(selector);
    attn_status status = define(selector, first->backend, second->backend, name, &served);
    if (status == ATTN_OK)
        status = ask(selector, name, first, verdicts, &served);
    if (status == ATTN_OK)
        status = ask(selector, name, second, verdicts, &served);
    if (status == ATTN_OK && served)
        status = merge(selector, (uint32_t)full, (uint32_t)linear, name, verdicts);
    free(verdicts);
    return status;
}
