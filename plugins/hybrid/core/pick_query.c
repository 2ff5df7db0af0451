/* SPDX-License-Identifier: Apache-2.0
 *
 * pick_query: the work routed to each child, for which it is queried: only the layers, modes and
 * bounds with which it can be picked. The composite supports what all these children support for
 * their shares. */
#include "pick.h"

#include "slice.h"
#include "split.h"
#include "attn_plugin_util.h"

#include <string.h>

#define BIT(mode)   ATTN_MODE_BIT(ATTN_MODE_##mode)
#define KNOWN_MODES (ATTN_MODE_BIT(ATTN_MODE_COUNT) - 1u)

/* ---- Shares ---------------------------------------------------------------------------------- */

static int32_t most(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static int32_t or_unlimited(int32_t bound)
{
    return bound > 0 ? bound : INT32_MAX;
}

/* The modes within `bounds` whose batches are picked for in this phase, as a child gets them. */
static uint32_t modes_of_phase(const picker *pick, const attn_bounds *bounds, uint32_t half,
                               uint32_t phase)
{
    static const uint32_t own[PICK_PHASES] = {
        [PICK_PREFILL] = BIT(EXTEND),
        [PICK_DECODE] = BIT(DECODE),
        [PICK_VERIFY] = BIT(TARGET_VERIFY),
        [PICK_DRAFT] = BIT(DRAFT_EXTEND),
    };
    uint32_t mixed = bounds->modes & BIT(MIXED);
    uint32_t rows = phase == PICK_DECODE && mixed && pick->split_mixed ? BIT(DECODE) : 0;
    if (half == PICK_ROWS)
        return pick->rules->halves_apart ? 0 : rows;
    uint32_t modes = bounds->modes & own[phase];
    if (pick->rules->halves_apart)
        modes |= rows;
    if (phase == PICK_PREFILL && mixed)
        modes |= pick->split_mixed ? BIT(EXTEND) : BIT(MIXED);
    return modes;
}

static pick_reach reach_within(const picker *pick, uint32_t part, uint32_t phase,
                               const attn_bounds *bounds, uint32_t child)
{
    return pick->rules->reach(pick->ctx, part, phase, or_unlimited(bounds->max_seqs),
                              or_unlimited(bounds->max_kv_len), child);
}

void pick_add_share(const picker *pick, uint32_t part, const attn_bounds *bounds, uint32_t half,
                    uint32_t child, pick_share *share)
{
    /* Unknown bits go to all children, so that all refuse them; without a known mode for which a
     * child is called, each child answers for itself. */
    uint32_t unknown = half == PICK_WHOLE ? bounds->modes & ~KNOWN_MODES : 0;
    int no_mode = half == PICK_WHOLE && !(bounds->modes & ~BIT(IDLE));
    for (uint32_t phase = 0; phase < PICK_PHASES; phase++) {
        uint32_t modes = modes_of_phase(pick, bounds, half, phase) | unknown;
        if (!modes && !no_mode)
            continue;
        pick_reach reach = reach_within(pick, part, phase, bounds, child);
        if (reach.max_seqs == 0)
            continue;
        share->asked = 1;
        share->modes |= no_mode ? bounds->modes : modes;
        share->most.max_seqs = most(share->most.max_seqs, reach.max_seqs);
        share->most.max_kv_len = most(share->most.max_kv_len, reach.max_kv_len);
    }
}

static int32_t narrower(int32_t bound, int32_t reached)
{
    return bound > 0 && reached < bound ? reached : bound;
}

void pick_narrow_bounds(const attn_bounds *bounds, const pick_share *share, attn_bounds *narrowed)
{
    attn_bounds within;
    ATTN_UTIL_READ(&within, bounds);
    within.max_seqs = narrower(within.max_seqs, share->most.max_seqs);
    /* A bound of 0 would be none at all. */
    within.max_kv_len = narrower(within.max_kv_len, most(share->most.max_kv_len, 1));
    fanout_narrow_bounds(&within, share->modes, narrowed);
}

/* ---- Problems -------------------------------------------------------------------------------- */

/* What pick_narrow_problem() needs. */
struct narrowing {
    const attn_services *services;
    const picker *pick;
    const attn_bounds *bounds; /* of the problem at hand */
};

static uint32_t part_of(const picker *pick, const attn_layer_group *group, uint32_t layer)
{
    const attn_layer *at = attn_at(group->layers, layer);
    return pick->rules->part_of(pick->ctx, group, at->layer_id);
}

static int serves(const void *ctx, uint32_t child, const attn_layer_group *group,
                  const attn_layer *layer)
{
    const struct narrowing *of = ctx;
    pick_share share = {0};
    uint32_t part = of->pick->rules->part_of(of->pick->ctx, group, layer->layer_id);
    for (uint32_t half = 0; half < PICK_HALVES && !share.asked; half++)
        pick_add_share(of->pick, part, of->bounds, half, child, &share);
    return share.asked;
}

/* The share of a child in a layer group. Neighbouring layers mostly are of one part. */
static void share_of_group(const picker *pick, const attn_problem *problem, uint32_t half,
                           uint32_t child, pick_share *share)
{
    uint32_t last = 0;
    for (uint32_t l = 0; l < problem->group->num_layers; l++) {
        uint32_t part = part_of(pick, problem->group, l);
        if (l == 0 || part != last)
            pick_add_share(pick, part, problem->bounds, half, child, share);
        last = part;
    }
}

/* fanout_route: `problem` as the child has to solve it. */
static attn_status narrow_problem(const void *ctx, uint32_t c, const attn_problem *problem,
                                  child_problem *narrowed, int *asked, attn_error *error)
{
    struct narrowing of = *(const struct narrowing *)ctx;
    const picker *pick = of.pick;
    pick_share share = {0};
    for (uint32_t half = 0; half < PICK_HALVES; half++)
        share_of_group(pick, problem, half, c, &share);
    *asked = share.asked;
    fanout_narrow_problem(problem, share.modes, narrowed);
    if (!share.asked)
        return ATTN_OK;
    pick_narrow_bounds(problem->bounds, &share, &narrowed->bounds);
    /* Rows of a split MIXED batch come in MIXED's form of latent attention. */
    if (problem->bounds->modes & BIT(MIXED) && pick->split_mixed &&
        problem->mla_expanded & BIT(MIXED))
        narrowed->problem.mla_expanded |= share.modes & (BIT(EXTEND) | BIT(DECODE));
    uint32_t count;
    of.bounds = problem->bounds;
    return fanout_narrow_layers(of.services, narrowed, serves, &of, c, &count, error);
}

/* ---- Splitting MIXED ------------------------------------------------------------------------- */

/* Add to *seen how a child reads new tokens of the rows routed to it: bit 0 from the cache, bit 1
 * from the arguments. It is queried for its own share, as it may refuse more. A child that cannot
 * serve its share says so in query, with its reasons. */
static attn_status note_reading(const attn_services *services, const picker *pick, uint32_t child,
                                const char *name, const attn_problem *problem, uint32_t *seen,
                                attn_error *error)
{
    static const uint32_t rows[] = {BIT(EXTEND), BIT(DECODE)};
    picker split = *pick;
    struct narrowing of = {.services = services, .pick = &split};
    child_problem narrowed;
    int asked = 0;
    split.split_mixed = 1;
    attn_status status = narrow_problem(&of, child, problem, &narrowed, &asked, error);
    for (int r = 0; r < 2 && asked && status == ATTN_OK; r++) {
        int answer = -1;
        if (narrowed.bounds.modes & rows[r])
            status =
                split_reads_unquantised(services, name, &narrowed.problem, rows[r], &answer, error);
        if (answer >= 0)
            *seen |= 1u << answer;
    }
    fanout_problem_finish(services, &narrowed);
    return status;
}

attn_status pick_decide_split(const attn_services *services, const picker *pick,
                              const char *const *names, const attn_problem *problem, int *split,
                              attn_error *error)
{
    attn_status status = ATTN_OK;
    uint32_t seen = 0;
    *split = 1;
    if (!(problem->bounds->modes & BIT(MIXED)))
        return ATTN_OK;
    *split = split_is_possible(problem);
    if (!*split || !split_is_rounded(problem))
        return ATTN_OK;
    for (uint32_t c = 0; c < pick->rules->num_children && status == ATTN_OK; c++)
        status = note_reading(services, pick, c, names[c], problem, &seen, error);
    *split = seen != 3;
    return status;
}

/* ---- Query ----------------------------------------------------------------------------------- */

/* Children as a mask that can be picked for a part in a phase; of those with one name the first. */
static uint32_t who(const picker *pick, const char *const *names, uint32_t part, uint32_t phase,
                    const attn_bounds *bounds)
{
    uint32_t children = 0;
    for (uint32_t c = 0; c < pick->rules->num_children; c++) {
        uint32_t first = 0;
        while (strcmp(names[first], names[c]) != 0)
            first++;
        if (reach_within(pick, part, phase, bounds, c).max_seqs > 0)
            children |= 1u << first;
    }
    return children;
}

/* Can the child that computes a row depend on the rest of its batch? */
static int picks_by_batch(const picker *pick, const char *const *names, const attn_problem *problem)
{
    const attn_bounds *bounds = problem->bounds;
    for (uint32_t l = 0; l < problem->group->num_layers; l++) {
        uint32_t part = part_of(pick, problem->group, l), children[PICK_PHASES];
        for (uint32_t phase = 0; phase < PICK_PHASES; phase++) {
            uint32_t modes = modes_of_phase(pick, bounds, PICK_WHOLE, phase) |
                             modes_of_phase(pick, bounds, PICK_ROWS, phase);
            children[phase] = who(pick, names, part, phase, bounds);
            if (modes && children[phase] & (children[phase] - 1))
                return 1;
        }
        if (bounds->modes & BIT(MIXED) && !pick->split_mixed && bounds->modes & BIT(DECODE) &&
            children[PICK_PREFILL] != children[PICK_DECODE])
            return 1;
    }
    return 0;
}

/* Query one child; *reads and *asked_modes are its answer about new tokens and the modes of that
 * answer. */
static attn_status ask(const struct narrowing *of, uint32_t c, const char *name,
                       const attn_problem *problem, attn_verdict *verdict, uint32_t *reads,
                       uint32_t *asked_modes, attn_error *error)
{
    child_problem narrowed;
    pick_share rows = {0};
    int asked = 0;
    *reads = *asked_modes = 0;
    attn_status status = narrow_problem(of, c, problem, &narrowed, &asked, error);
    if (status == ATTN_OK && asked) {
        uint32_t others = verdict->reads_new_kv_unquantised;
        verdict->reads_new_kv_unquantised = 0;
        *asked_modes = narrowed.problem.bounds->modes;
        status = fanout_verdict_add(of->services, name, &narrowed.problem, verdict, error);
        *reads = verdict->reads_new_kv_unquantised;
        verdict->reads_new_kv_unquantised |= others;
    }
    /* Metadata of its own for decode rows of MIXED batches. */
    share_of_group(of->pick, problem, PICK_ROWS, c, &rows);
    if (status == ATTN_OK && verdict->supported && rows.asked) {
        pick_narrow_bounds(problem->bounds, &rows, &narrowed.bounds);
        status = fanout_verdict_add(of->services, name, &narrowed.problem, verdict, error);
    }
    fanout_problem_finish(of->services, &narrowed);
    return status;
}

/* The composite's additions to its children's answers. `alike` are modes whose new tokens all
 * children read alike. */
static void add_own_answer(const picker *pick, const char *const *names,
                           const attn_problem *problem, uint32_t differ, attn_verdict *verdict)
{
    uint32_t modes = problem->bounds->modes;
    if (modes & BIT(MIXED) && pick->split_mixed) {
        split_limit_graph_level(problem, verdict);
        if (verdict->reads_new_kv_unquantised & BIT(EXTEND))
            verdict->reads_new_kv_unquantised |= BIT(MIXED);
    }
    if (picks_by_batch(pick, names, problem))
        split_limit_invariance(problem, verdict);
    if (differ && split_is_rounded(problem))
        attn_util_refuse_with(verdict, ATTN_FIELD_KV_DTYPE, ATTN_FIELD_CHILD,
                              attn_util_dtype_name(attn_new_kv_dtype(problem)), "%s",
                              attn_util_dtype_name(problem->kv_dtype));
    verdict->reads_new_kv_unquantised &= modes;
    if (problem->bounds->max_seqs > 0) {
        slice_groups groups = {0};
        slice_groups_add(&groups, problem->group);
        verdict->host_bytes += pick_metadata_bytes(problem->group->num_layers, groups);
    }
}

attn_status pick_query(const attn_services *services, const picker *pick, const char *const *names,
                       const attn_problem *problem, attn_verdict *verdict, attn_error *error)
{
    picker split = *pick;
    attn_verdict merged;
    uint32_t from_arguments = 0, from_cache = 0;
    attn_status status =
        pick_decide_split(services, pick, names, problem, &split.split_mixed, error);
    struct narrowing of = {.services = services, .pick = &split};
    fanout_verdict_begin(verdict, &merged);
    for (uint32_t c = 0; c < pick->rules->num_children && status == ATTN_OK; c++) {
        uint32_t reads, modes;
        status = ask(&of, c, names[c], problem, &merged, &reads, &modes, error);
        from_arguments |= modes & reads;
        from_cache |= modes & ~reads;
    }
    if (status != ATTN_OK)
        return status;
    add_own_answer(&split, names, problem, from_arguments & from_cache, &merged);
    attn_util_verdict_end(&merged, verdict);
    return ATTN_OK;
}

/* ---- Instance -------------------------------------------------------------------------------- */

/* MIXED is split if all layer groups can be: a batch is planned once for all of them. */
static attn_status decide_split(const attn_services *services, picker *pick,
                                const char *const *names, const attn_problem *problems,
                                uint32_t num_problems, attn_error *error)
{
    attn_status status = ATTN_OK;
    int split = 1;
    for (uint32_t p = 0; p < num_problems && status == ATTN_OK; p++) {
        int this_one = 1;
        status = pick_decide_split(services, pick, names, attn_at(problems, p), &this_one, error);
        split = split && this_one;
    }
    pick->split_mixed = split;
    return status;
}

static uint32_t add_part(attn_instance *instance, uint32_t name, const attn_bounds *bounds)
{
    const pick_part part = {.name = name, .limits = fanout_limits_of(bounds)};
    uint32_t i = 0;
    while (i < instance->num_parts &&
           (instance->parts[i].name != name ||
            memcmp(&instance->parts[i].limits, &part.limits, sizeof part.limits) != 0))
        i++;
    if (i == instance->num_parts)
        instance->parts[instance->num_parts++] = part;
    fanout_limits_add(&instance->limits, &part.limits);
    return i;
}

/* Layers, their parts, and what the layers routed to each child need of a batch. */
static void list_parts(attn_instance *instance, const picker *pick, const attn_problem *problems,
                       uint32_t num_problems)
{
    fanout_list_layers(problems, num_problems, NULL, NULL, 1, &instance->layers);
    for (uint32_t l = 0; l < instance->layers.count; l++) {
        fanout_layer *item = &instance->layers.items[l];
        const attn_problem *problem = attn_at(problems, item->group);
        uint32_t part = pick->rules->part_of(pick->ctx, problem->group, item->layer_id);
        item->child = add_part(instance, part, problem->bounds);
        instance->all_needs |= slice_needs(problem->group);
        for (uint32_t c = 0; c < pick->rules->num_children; c++) {
            pick_share share = {0};
            for (uint32_t half = 0; half < PICK_HALVES; half++)
                pick_add_share(pick, part, problem->bounds, half, c, &share);
            if (!share.asked)
                continue;
            instance->needs[c] |= slice_needs(problem->group);
            slice_groups_add(&instance->groups[c], problem->group);
        }
    }
}

/* An instance without children. */
static attn_instance *make(const attn_services *services, const picker *pick,
                           const attn_problem *problems, uint32_t num_problems, size_t own_size,
                           attn_error *error)
{
    uint32_t count = attn_util_count_layers(problems, num_problems);
    size_t parts = sizeof(attn_instance) + count * sizeof(fanout_layer);
    size_t own = (parts + count * sizeof(pick_part) + 15) / 16 * 16, size = own + own_size;
    attn_instance *made = fanout_allocate(services, size, offsetof(attn_instance, child),
                                          pick->rules->num_children, problems, error);
    if (!made)
        return NULL;
    made->pick = *pick;
    made->parts = (pick_part *)(void *)((char *)made + parts);
    made->own = (char *)made + own;
    made->layers.items = made->items;
    list_parts(made, pick, problems, num_problems);
    return made;
}

attn_status pick_create(const attn_services *services, const picker *given,
                        const char *const *names, const attn_problem *problems,
                        uint32_t num_problems, size_t own_size, attn_instance **instance,
                        attn_error *error)
{
    picker pick = *given;
    attn_status status = decide_split(services, &pick, names, problems, num_problems, error);
    if (status != ATTN_OK)
        return status;
    attn_instance *made = make(services, &pick, problems, num_problems, own_size, error);
    if (!made)
        return ATTN_OUT_OF_HOST_MEMORY;
    struct narrowing of = {.services = services, .pick = &pick};
    return fanout_create_all(made, names, problems, num_problems, narrow_problem, &of, instance,
                             error);
}
