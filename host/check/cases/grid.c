/* SPDX-License-Identifier: Apache-2.0
 *
 * grid.c: points that a backend accepts, and few of them with all pairs.
 */
#include "host/check/cases/grid.h"
#include "host/check/cases/draw.h"
#include "host/check/trail.h"

#include "host/base/error.h"
#include "host/base/mix.h"
#include "host/base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nettle/sha2.h>

enum {
    MAX_POOL = 48,      /* accepted points to start from */
    STEP = 13,          /* from axis to axis, so that each is visited */
    REPAIRED = 6,       /* of them, those that are changed once more */
    NUM_TRIES = 3000,   /* at random, where no plain base is accepted */
    MANY_POINTS = 3000, /* of an exhaustive grid, beyond those with all pairs */
    FIRST_ROOM = 1024   /* for answers */
};

/* ---- Answers --------------------------------------------------------------------------------- */

/* Choosing cases queries about 2,000 problems, each many times: query is called once for each, as it may be slow, for
 * example in Python. The checks of CAPS-01, which compare repeated answers, are not about these. */
struct answer {
    struct question {
        struct spec_problem posed;   /* without pointers into itself, and without the device */
        const attn_options *options; /* NULL = without values */
    } question;
    attn_verdict verdict;
    uint64_t hash; /* 0 = the slot is free */
};

struct answers {
    struct answer *slots; /* open addressing; NULL = none */
    size_t room, count;
};

/* Compared as bytes: padding that differs costs one more question. */
static void set_question(struct question *question, const struct spec_problem *posed,
                         const attn_options *options)
{
    memset(question, 0, sizeof *question);
    memcpy(&question->posed, posed, sizeof *posed);
    question->posed.group.layers = NULL;
    question->posed.group.mla = NULL;
    question->posed.group.sparse = NULL;
    question->posed.problem.device = NULL;
    question->posed.problem.group = NULL;
    question->posed.problem.bounds = NULL;
    question->options = options && options->num_values ? options : NULL;
}

static uint64_t hash_of(const struct question *question)
{
    const unsigned char *bytes = (const unsigned char *)question;
    uint64_t hash = 0, word = 0;
    for (size_t n = 0; n < sizeof *question; n += sizeof word) {
        size_t left = sizeof *question - n;
        memcpy(&word, bytes + n, left < sizeof word ? left : sizeof word);
        hash = mix_absorb(hash, word);
    }
    return hash | 1;
}

/* Where the question is, or would be. */
static struct answer *find_slot(struct answers *answers, const struct question *question,
                                uint64_t hash)
{
    size_t at = (size_t)hash & (answers->room - 1);
    for (;; at = (at + 1) & (answers->room - 1)) {
        struct answer *slot = &answers->slots[at];
        if (slot->hash == 0 ||
            (slot->hash == hash && memcmp(&slot->question, question, sizeof *question) == 0))
            return slot;
    }
}

/* The answer to `posed` with these options, which stay where they are; NULL = not known. */
static const attn_verdict *answers_find(struct answers *answers, const struct spec_problem *posed,
                                        const attn_options *options)
{
    struct question question;
    if (!answers->slots)
        return NULL;
    set_question(&question, posed, options);
    const struct answer *slot = find_slot(answers, &question, hash_of(&question));
    return slot->hash ? &slot->verdict : NULL;
}

/* Half of the slots stay free. */
static bool make_room_for_answer(struct answers *answers)
{
    struct answers larger = {.room = answers->room ? 2 * answers->room : FIRST_ROOM,
                             .count = answers->count};
    if (2 * answers->count < answers->room)
        return true;
    larger.slots = calloc(larger.room, sizeof *larger.slots);
    if (!larger.slots)
        return false;
    for (size_t n = 0; n < answers->room; n++) {
        const struct answer *slot = &answers->slots[n];
        if (slot->hash)
            *find_slot(&larger, &slot->question, slot->hash) = *slot;
    }
    free(answers->slots);
    *answers = larger;
    return true;
}

/* But for its reasons; without memory it is not kept. */
static void answers_keep(struct answers *answers, const struct spec_problem *posed,
                         const attn_options *options, const attn_verdict *verdict)
{
    struct question question;
    if (!make_room_for_answer(answers))
        return;
    set_question(&question, posed, options);
    uint64_t hash = hash_of(&question);
    struct answer *slot = find_slot(answers, &question, hash);
    answers->count += slot->hash == 0;
    slot->question = question;
    slot->verdict = *verdict;
    slot->verdict.reasons = NULL;
    slot->hash = hash;
}

/* ---- Questions ------------------------------------------------------------------------------- */

/* Query, with its first reason where one is wanted. */
static attn_status pose(const struct grid_backend *asked, const attn_options *options,
                        const struct spec_problem *posed, attn_verdict *verdict, char *reason,
                        size_t size)
{
    const struct case_backend backend = {asked->type, options, asked->services};
    attn_status status = case_query(&backend, &posed->problem, verdict, reason, size);
    check_trail_live(asked->trail);
    return status;
}

/* Do the options live as long as the grid (or are there none)? Others may be freed, and their
 * address reused, before the next question. */
static bool stay(const struct grid *grid, const attn_options *options)
{
    bool owns = !options || options->num_values == 0 || options == grid->backend.options;
    for (int32_t f = 0; f < grid->num_forms && !owns; f++)
        owns = options == &grid->forms[f].options;
    return owns;
}

static bool ask(const struct grid *grid, const attn_options *options, const struct case_spec *spec,
                attn_verdict *verdict, char *reason, size_t size)
{
    struct spec_problem posed;
    spec_problem_init(&posed, spec, &grid->backend.device->info);
    bool keeps = grid->remembers && stay(grid, options);
    const attn_verdict *known = keeps ? answers_find(grid->answers, &posed, options) : NULL;
    if (known && (known->supported || !reason)) {
        *verdict = *known;
        return verdict->supported;
    }
    if (pose(&grid->backend, options, &posed, verdict, reason, size) != ATTN_OK)
        return false;
    if (keeps)
        answers_keep(grid->answers, &posed, options, verdict);
    return verdict->supported;
}

bool grid_accepts_spec(const struct grid *grid, const attn_options *options, struct case_spec *spec,
                       char *reason, size_t size)
{
    attn_verdict verdict;
    if (!ask(grid, options, spec, &verdict, reason, size))
        return false;
    spec->fill = verdict.graph_seq_len_fill;
    return true;
}

bool grid_take(const struct grid *grid, const attn_options *options, struct case_spec *changed,
               struct case_spec *spec)
{
    bool taken = !case_spec_defect(changed) && grid_accepts_spec(grid, options, changed, NULL, 0);
    if (taken)
        *spec = *changed;
    return taken;
}

bool grid_accepts(const struct grid *grid, const struct grid_point *point, struct case_spec *spec,
                  char *reason, size_t size)
{
    struct case_spec made;
    if (!grid_spec(grid, point, &made)) {
        if (reason)
            snprintf(reason, size, "no such case");
        return false;
    }
    if (!grid_accepts_spec(grid, grid_options(grid, point), &made, reason, size))
        return false;
    if (spec)
        *spec = made;
    return true;
}

static uint32_t traits_of(const struct grid *grid, const struct grid_point *point)
{
    struct case_spec spec;
    attn_verdict verdict;
    return grid_spec(grid, point, &spec) &&
                   ask(grid, grid_options(grid, point), &spec, &verdict, NULL, 0)
               ? verdict.traits
               : 0;
}

/* ---- Products -------------------------------------------------------------------------------- */

static int64_t num_points(const struct grid_choice *choices)
{
    int64_t count = 1;
    for (int c = 0; c < GRID_MAX_CHOICES && choices[c].values; c++)
        count *= __builtin_popcount(choices[c].values);
    return count;
}

/* Point `number` of a product around a base. False: an axis has no such value. */
static bool take_point(const struct grid *grid, const struct grid_choice *choices, int64_t number,
                       struct grid_point *point)
{
    bool exists = true;
    for (int c = 0; c < GRID_MAX_CHOICES && choices[c].values; c++) {
        uint32_t values = choices[c].values;
        int64_t options = __builtin_popcount(values);
        for (int64_t skip = number % options; skip > 0; skip--)
            values &= values - 1;
        number /= options;
        point->value[choices[c].axis] = (uint8_t)__builtin_ctz(values);
        exists = exists && __builtin_ctz(values) < grid_num_values(grid, choices[c].axis);
    }
    return exists;
}

static int32_t accepted_points(const struct grid *grid, const struct grid_point *base,
                               const struct grid_choice *choices, int32_t index,
                               struct grid_point *point, char *reason, size_t size)
{
    int64_t all = num_points(choices);
    int32_t count = 0;
    for (int64_t n = 0; n < all; n++) {
        struct grid_point tried = *base;
        bool ask_why = reason && count == 0 && !reason[0];
        if (!take_point(grid, choices, n, &tried) ||
            !grid_accepts(grid, &tried, NULL, ask_why ? reason : NULL, size))
            continue;
        if (count++ == index)
            *point = tried;
    }
    return count;
}

/* As plain as the backend allows, with one of the chosen sources of a sparse layer's keys. */
static struct grid_point latent_base(const struct grid *grid, const struct grid_choice *choices,
                                     char *reason, size_t size)
{
    struct grid_choice plain_latents[GRID_MAX_CHOICES + 1] = {
        OF_LATENTS(BOTH_FORMS, MLA_LATENT | MLA_PACKED, BIT(MLA_SMALL) | BIT(MLA_DEEPSEEK),
                   {AXIS_DTYPE, 7}, BOTH_PHASES, {AXIS_PAGE, 7})};
    for (int c = 0; c < GRID_MAX_CHOICES && choices[c].values; c++)
        if (choices[c].axis == AXIS_CHOICE)
            plain_latents[6] = choices[c];
    for (int64_t n = 0; n < num_points(plain_latents); n++) {
        struct grid_point point = {{0}};
        if (take_point(grid, plain_latents, n, &point) &&
            grid_accepts(grid, &point, NULL, n == 0 ? reason : NULL, size)) {
            if (reason)
                reason[0] = '\0';
            return point;
        }
    }
    return (struct grid_point){.value = {[AXIS_LATENT] = MLA_SMALL}};
}

bool grid_chooses_latents(const struct grid_choice *choices)
{
    bool found = false;
    for (int c = 0; c < GRID_MAX_CHOICES && choices[c].values; c++)
        found = found || choices[c].axis == AXIS_LATENT;
    return found;
}

int32_t grid_product(const struct grid *grid, const struct grid_choice *choices, int32_t index,
                     struct grid_point *point, char *reason, size_t size)
{
    struct grid_choice of_base[GRID_MAX_CHOICES + 1] = {{0}};
    if (!grid_chooses_latents(choices))
        return accepted_points(grid, &grid->base, choices, index, point, reason, size);
    struct grid_point base = latent_base(grid, choices, reason, size);
    int32_t count = accepted_points(grid, &base, choices, index, point, reason, size);
    for (int c = 0; c < GRID_MAX_CHOICES && choices[c].values; c++) {
        of_base[c] = choices[c];
        if (choices[c].axis == AXIS_LATENT)
            of_base[c].values = BIT(base.value[AXIS_LATENT]);
    }
    return count > 0 ? count : accepted_points(grid, &base, of_base, index, point, reason, size);
}

/* ---- Index forms ----------------------------------------------------------------------------- */

/* The backend's options with another value for one. */
static bool change_option(const struct grid_backend *backend, const attn_option *option,
                          uint32_t choice, struct grid_form *form)
{
    uint32_t count = backend->options ? backend->options->num_values : 0;
    form->values = calloc(count + 1, sizeof *form->values);
    if (!form->values)
        return false;
    bool found = false;
    for (uint32_t n = 0; n < count; n++) {
        const attn_option_value *value = attn_at(backend->options->values, n);
        form->values[n] = *value;
        if (strcmp(value->key, option->key) != 0)
            continue;
        found = value->integer != (int64_t)choice;
        form->values[n].integer = choice;
        form->values[n].text = option->choices[choice];
    }
    form->options = (attn_options){
        .struct_size = sizeof form->options, .num_values = count, .values = form->values};
    snprintf(form->name, sizeof form->name, "%s = %s", option->key, option->choices[choice]);
    if (!found) {
        free(form->values);
        form->values = NULL;
    }
    return found;
}

/* The forms that an instance for the base asks for with these options; false = there is none. */
static bool find_forms(const struct grid *grid, const attn_options *options, uint32_t *forms)
{
    const struct grid_backend *backend = &grid->backend;
    struct spec_problem posed;
    struct case_spec spec;
    attn_instance *instance = NULL;
    if (!grid_spec(grid, &grid->base, &spec) || device_enter(backend->device, NULL) != ATTN_OK)
        return false;
    spec_problem_init(&posed, &spec, &backend->device->info);
    attn_status status = backend->type->create(backend->type, &posed.problem, 1, options,
                                               backend->services, &instance, NULL);
    if (status == ATTN_OK) {
        *forms = backend->type->ops->index_forms(instance);
        backend->type->ops->destroy(instance);
    }
    device_leave(backend->device);
    return status == ATTN_OK;
}

static bool has_form(const struct grid *grid, uint32_t forms)
{
    for (int32_t f = 0; f < grid->num_forms; f++)
        if (grid->forms[f].forms == forms)
            return true;
    return false;
}

static void try_option(struct grid *grid, const attn_option *option)
{
    for (uint32_t choice = 0; choice < option->num_choices; choice++) {
        struct grid_form form = {0};
        if (grid->num_forms == GRID_MAX_FORMS ||
            !change_option(&grid->backend, option, choice, &form))
            continue;
        if (find_forms(grid, &form.options, &form.forms) && !has_form(grid, form.forms)) {
            struct grid_form *kept = &grid->forms[grid->num_forms++];
            *kept = form;
            kept->options.values = kept->values;
        } else {
            free(form.values);
        }
    }
}

/* The forms that the backend's options can select; if it leaves the choice, each form alone. */
static void find_all_forms(struct grid *grid)
{
    uint32_t forms = 0;
    const attn_backend_type *type = grid->backend.type;
    grid->num_forms = 1;
    if (!find_forms(grid, grid->backend.options, &forms) || forms == 0) {
        for (uint32_t f = 0; f < 3; f++)
            grid->forms[f].forms = 1u << f;
        grid->num_forms = 3;
        return;
    }
    grid->forms[0].forms = forms;
    for (uint32_t n = 0; n < type->num_options; n++) {
        const attn_option *option = attn_at(type->options, n);
        if (option->type == ATTN_OPTION_ENUM)
            try_option(grid, option);
    }
}

/* ---- Bases ----------------------------------------------------------------------------------- */

/* Points that are plain in different ways; the first that is accepted is the base. */
static const struct {
    enum grid_axis axis;
    uint8_t value;
} plain[][6] = {
    {{AXIS_TYPE, TYPE_DECODER}},
    {{AXIS_DTYPE, DTYPE_F16}},
    {{AXIS_DTYPE, DTYPE_F32}},
    {{AXIS_LSE, 1}},
    {{AXIS_DIM, 1}},
    {{AXIS_PAGE, 1}},
    {{AXIS_PAGE, 2}},
    {{AXIS_LAYOUT, 1}},
    {{AXIS_PAGE, 2}, {AXIS_LAYOUT, 1}},
    {{AXIS_MODE, MODE_DECODE}},
    {{AXIS_MODE, MODE_DECODE}, {AXIS_LAYOUT, 1}},
    {{AXIS_MODE, MODE_DECODE}, {AXIS_PAGE, 2}, {AXIS_LAYOUT, 1}},
    {{AXIS_HEADS, 1}},
    {{AXIS_WINDOW, WINDOW_NONE}},
    {{AXIS_TYPE, TYPE_ENCODER_ONLY}, {AXIS_WINDOW, WINDOW_NONE}},
    {{AXIS_TYPE, TYPE_CROSS}, {AXIS_WINDOW, WINDOW_NONE}},
    {{AXIS_SOURCE, SOURCE_PREFIX}, {AXIS_MASK, MASK_NONE}},
    {{AXIS_SOURCE, SOURCE_CACHE}},
    {{AXIS_MASK, MASK_FULL}},
    {{AXIS_KV, KV_E4M3}},
    {{AXIS_PLACE, PLACE_KV_EQUAL}},
    {{AXIS_PLACE, PLACE_ALIGNED}},
};

/* Accepted points to make others from. */
struct pool {
    struct grid_point points[MAX_POOL];
    int32_t count;
};

static void add_to_pool(struct pool *pool, const struct grid_point *point)
{
    if (pool->count < MAX_POOL)
        pool->points[pool->count++] = *point;
}

static struct grid_point change(const struct grid_point *point, size_t which)
{
    struct grid_point changed = *point;
    for (int i = 0; i < 6 && (i == 0 || plain[which][i].axis != AXIS_TYPE); i++)
        changed.value[plain[which][i].axis] = plain[which][i].value;
    return changed;
}

struct grid_point grid_random(const struct grid *grid, uint64_t seed, uint64_t n)
{
    struct grid_point point = {{0}};
    for (enum grid_axis axis = 0; axis < GRID_AXES; axis++) {
        uint64_t word = mix_stream(seed, n * GRID_AXES + axis);
        uint32_t count = (uint32_t)grid_num_values(grid, axis);
        if (word & 1) /* as often as not the plain value */
            point.value[axis] = (uint8_t)mix_below((uint32_t)(word >> 32), count);
    }
    return point;
}

void grid_draw_type(struct grid_point *point, uint64_t seed)
{
    static const enum grid_axis excluded[] = {AXIS_CHUNK, AXIS_ALIBI, AXIS_MASK, AXIS_CHOICE};
    const uint64_t bits = mix_stream(mix_absorb(seed, 8), 0);
    if (bits % 10 != 0)
        return;
    point->value[AXIS_TYPE] = bits / 10 % 3 > 0 ? TYPE_CROSS : TYPE_ENCODER_ONLY;
    point->value[AXIS_WINDOW] = WINDOW_NONE;
    for (size_t i = 0; i < sizeof excluded / sizeof excluded[0]; i++)
        point->value[excluded[i]] = 0;
}

/* Every other one is of small dimensions. */
struct grid_point grid_random_latent(const struct grid *grid, uint64_t seed, uint64_t n,
                                     uint32_t without)
{
    static const enum grid_axis unused[] = {AXIS_TYPE, AXIS_DIM, AXIS_V_DIM, AXIS_LAYOUT};
    uint32_t bits = (uint32_t)(mix_stream(mix_absorb(seed, n), 0) >> 32);
    struct grid_point point = grid_random(grid, seed, n);
    point.value[AXIS_LATENT_FORM] = bits % 3 == 0;
    point.value[AXIS_LATENT_CACHE] = bits >> 8 & 1 && bits >> 9 & 1;
    point.value[AXIS_LATENT] =
        MLA_SMALL + (bits >> 10 & 1 ? (uint8_t)((bits >> 11) % (MLA_DIMS - 1)) : 0);
    for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++)
        point.value[unused[i]] = 0;
    for (uint32_t axis = 0; axis < GRID_AXES; axis++)
        if (without >> axis & 1)
            point.value[axis] = 0;
    if (point.value[AXIS_LATENT_CACHE])
        point.value[AXIS_KV] = KV_AS_Q;
    return point;
}

/* How many reasons there are against a point; 0 = it is accepted. */
static uint32_t count_reasons(const struct grid *grid, const struct grid_point *point)
{
    struct case_spec spec;
    attn_verdict verdict = {.supported = 0};
    if (!grid_spec(grid, point, &spec))
        return UINT32_MAX;
    if (ask(grid, grid_options(grid, point), &spec, &verdict, NULL, 0))
        return 0;
    return verdict.num_reasons > 0 ? verdict.num_reasons : UINT32_MAX;
}

/* From the plainest point, one axis after the other to the first of its values that has fewest
 * reasons against it: a refusal names all fields that must change, so each axis brings the point
 * nearer. */
static bool descend(struct grid *grid)
{
    uint32_t best = count_reasons(grid, &grid->base), before = 0;
    while (best > 0 && best != before) {
        before = best;
        for (enum grid_axis axis = 0; axis < GRID_AXES; axis++)
            for (int32_t i = 0; i < grid_num_values(grid, axis); i++) {
                struct grid_point tried = grid->base;
                tried.value[axis] = (uint8_t)i;
                uint32_t reasons = count_reasons(grid, &tried);
                if (reasons >= best)
                    continue;
                grid->base = tried;
                best = reasons;
            }
    }
    return best == 0;
}

/* False: the backend accepts nothing that was tried. */
static bool find_base(struct grid *grid)
{
    static const struct grid_point zero;
    grid->num_forms = 1;
    for (size_t n = 0; n < sizeof plain / sizeof plain[0]; n++) {
        grid->base = change(&zero, n);
        char *reason = n == 0 ? grid->refusal : NULL;
        if (grid_accepts(grid, &grid->base, NULL, reason, sizeof grid->refusal))
            return true;
    }
    grid->base = zero;
    if (descend(grid))
        return true;
    for (uint64_t n = 0; n < NUM_TRIES; n++) {
        grid->base = grid_random(grid, grid->seed, n);
        if (grid_accepts(grid, &grid->base, NULL, NULL, 0))
            return true;
    }
    grid->base = zero;
    return false;
}

static void fill_pool(const struct grid *grid, struct pool *pool)
{
    add_to_pool(pool, &grid->base);
    for (size_t n = 0; n < sizeof plain / sizeof plain[0]; n++) {
        struct grid_point point = change(&grid->base, n);
        if (grid_accepts(grid, &point, NULL, NULL, 0))
            add_to_pool(pool, &point);
    }
}

/* ---- Pairs ----------------------------------------------------------------------------------- */

enum { OPEN, COVERED, REFUSED };

/* State of every pair of values of two axes, and what the search needs. */
struct cover {
    struct grid *grid;
    struct pool pool;
    struct draw draw;
    struct grid_point with[GRID_AXES][GRID_MAX_VALUES]; /* an accepted point of each value */
    bool has[GRID_AXES][GRID_MAX_VALUES];               /* there is one */
    uint8_t state[GRID_AXES][GRID_MAX_VALUES][GRID_AXES][GRID_MAX_VALUES]; /* first axis < second */
};

static uint8_t *state_of(struct cover *cover, enum grid_axis a, uint8_t i, enum grid_axis b,
                         uint8_t j)
{
    return a < b ? &cover->state[a][i][b][j] : &cover->state[b][j][a][i];
}

/* Open pairs that this value of an axis makes with the point's other values. */
static int32_t gain_of(struct cover *cover, const struct grid_point *point, enum grid_axis axis,
                       uint8_t value)
{
    int32_t gain = 0;
    for (enum grid_axis other = 0; other < GRID_AXES; other++)
        gain += other != axis && *state_of(cover, axis, value, other, point->value[other]) == OPEN;
    return gain;
}

_Static_assert(GRID_AXES % STEP != 0, "a step leaves axes out");

/* Change one axis after the other to the value that covers most pairs, as long as the point is
 * accepted. */
static void improve(struct cover *cover, struct grid_point *point, enum grid_axis a,
                    enum grid_axis b)
{
    int32_t start = draw_below(&cover->draw, GRID_AXES);
    for (int32_t n = 0; n < 2 * GRID_AXES; n++) {
        enum grid_axis axis = (enum grid_axis)((start + STEP * n) % GRID_AXES);
        if (axis == a || axis == b)
            continue;
        int32_t best = gain_of(cover, point, axis, point->value[axis]);
        int32_t count = grid_num_values(cover->grid, axis), first = draw_below(&cover->draw, count);
        for (int32_t i = 0; i < count; i++) {
            struct grid_point tried = *point;
            tried.value[axis] = (uint8_t)((first + i) % count);
            int32_t gain = gain_of(cover, point, axis, tried.value[axis]);
            if (gain <= best || !grid_accepts(cover->grid, &tried, NULL, NULL, 0))
                continue;
            *point = tried;
            best = gain;
        }
    }
}

/* The point with one more axis changed, if that makes it accepted. */
static bool repair(struct cover *cover, struct grid_point *point, enum grid_axis a,
                   enum grid_axis b)
{
    for (enum grid_axis axis = 0; axis < GRID_AXES; axis++)
        for (int32_t i = 0; axis != a && axis != b && i < grid_num_values(cover->grid, axis); i++) {
            struct grid_point tried = *point;
            tried.value[axis] = (uint8_t)i;
            if (!grid_accepts(cover->grid, &tried, NULL, NULL, 0))
                continue;
            *point = tried;
            add_to_pool(&cover->pool, point);
            return true;
        }
    return false;
}

/* The point with these two values, if it is accepted as it is or with one more change. */
static bool set_pair(struct cover *cover, const struct grid_point *from, enum grid_axis a,
                     uint8_t i, enum grid_axis b, uint8_t j, bool with_repair,
                     struct grid_point *point)
{
    *point = *from;
    point->value[a] = i;
    point->value[b] = j;
    return with_repair ? repair(cover, point, a, b)
                       : grid_accepts(cover->grid, point, NULL, NULL, 0);
}

/* An accepted point with this pair. */
static bool complete(struct cover *cover, enum grid_axis a, uint8_t i, enum grid_axis b, uint8_t j,
                     struct grid_point *point)
{
    for (int with_repair = 0; with_repair < 2; with_repair++) {
        int32_t count = with_repair ? REPAIRED : cover->pool.count;
        if (set_pair(cover, &cover->with[a][i], a, i, b, j, with_repair, point) ||
            set_pair(cover, &cover->with[b][j], a, i, b, j, with_repair, point))
            return true;
        for (int32_t n = 0; n < count && n < cover->pool.count; n++)
            if (set_pair(cover, &cover->pool.points[n], a, i, b, j, with_repair, point))
                return true;
    }
    return false;
}

/* For each value an accepted point that has it; values without one are in no pair. */
static void find_values(struct cover *cover)
{
    for (enum grid_axis axis = 0; axis < GRID_AXES; axis++)
        for (int32_t i = 0; i < grid_num_values(cover->grid, axis); i++) {
            bool found = false;
            for (int n = 0; n < 2 * cover->pool.count && !found; n++)
                found =
                    set_pair(cover, &cover->pool.points[n % cover->pool.count], axis, (uint8_t)i,
                             axis, (uint8_t)i, n >= cover->pool.count, &cover->with[axis][i]);
            cover->has[axis][i] = found;
        }
}

static bool add_point(struct grid *grid, const struct grid_point *point)
{
    if (grid->num_points == grid->room) {
        int32_t room = grid->room ? 2 * grid->room : 256;
        void *more = realloc(grid->points, (size_t)room * sizeof *grid->points);
        if (!more)
            return false;
        grid->points = more;
        grid->room = room;
    }
    grid->points[grid->num_points++] = *point;
    return true;
}

static bool take(struct cover *cover, const struct grid_point *point)
{
    for (enum grid_axis a = 0; a < GRID_AXES; a++)
        for (enum grid_axis b = a + 1; b < GRID_AXES; b++)
            *state_of(cover, a, point->value[a], b, point->value[b]) = COVERED;
    return add_point(cover->grid, point);
}

static bool cover_pair(struct cover *cover, enum grid_axis a, uint8_t i, enum grid_axis b,
                       uint8_t j)
{
    struct grid_point point;
    uint8_t *state = state_of(cover, a, i, b, j);
    if (*state != OPEN)
        return true;
    if (!cover->has[a][i] || !cover->has[b][j] || !complete(cover, a, i, b, j, &point)) {
        *state = REFUSED;
        return true;
    }
    improve(cover, &point, a, b);
    return take(cover, &point);
}

static bool cover_axes(struct cover *cover, enum grid_axis a, enum grid_axis b)
{
    int32_t rows = grid_num_values(cover->grid, a), columns = grid_num_values(cover->grid, b);
    for (int32_t n = 0; n < rows * columns; n++)
        if (!cover_pair(cover, a, (uint8_t)(n / columns), b, (uint8_t)(n % columns)))
            return false;
    return true;
}

/* Large axes first: their pairs decide how many points there are. */
static bool cover_all(struct cover *cover)
{
    for (int32_t least = GRID_MAX_VALUES * GRID_MAX_VALUES; least > 0; least--)
        for (enum grid_axis a = 0; a < GRID_AXES; a++)
            for (enum grid_axis b = a + 1; b < GRID_AXES; b++)
                if (grid_num_values(cover->grid, a) * grid_num_values(cover->grid, b) == least &&
                    !cover_axes(cover, a, b))
                    return false;
    return true;
}

/* Are all pairs of a point's value of an axis in another point, too? */
static bool is_spare(const struct grid *grid, const struct grid_point *point, enum grid_axis axis)
{
    for (enum grid_axis other = 0; other < GRID_AXES; other++) {
        int32_t count = 0;
        for (int32_t n = 0; n < grid->num_points && count < 2; n++)
            count += grid->points[n].value[axis] == point->value[axis] &&
                     grid->points[n].value[other] == point->value[other];
        if (other != axis && count < 2)
            return false;
    }
    return true;
}

/* Reset axes to their plain value where no pair needs another one: scores with needles find more
 * faults than growing ones, and cases with an LSE more than those without. */
static void make_plain(struct grid *grid, enum grid_axis axis)
{
    for (int32_t n = 0; n < grid->num_points; n++) {
        struct grid_point *point = &grid->points[n], tried = *point;
        tried.value[axis] = 0;
        if (point->value[axis] != 0 && is_spare(grid, point, axis) &&
            grid_accepts(grid, &tried, NULL, NULL, 0))
            *point = tried;
    }
}

static bool add_many(struct grid *grid)
{
    uint64_t stream = mix_absorb(grid->seed, 2);
    int32_t first = grid->num_points;
    for (uint64_t n = 0; n < 100ull * MANY_POINTS; n++) {
        struct grid_point point = grid_random(grid, stream, n);
        if (grid->num_points - first == MANY_POINTS)
            break;
        if (grid_accepts(grid, &point, NULL, NULL, 0) && !add_point(grid, &point))
            return false;
    }
    return true;
}

/* ---- Digest ---------------------------------------------------------------------------------- */

/* A line for each point: its values, its options, its spec in words. */
static void digest_points(struct grid *grid)
{
    struct sha256_ctx sha256;
    uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_init(&sha256);
    for (int32_t n = 0; n < grid->num_points; n++) {
        const struct grid_point *point = &grid->points[n];
        const struct grid_form *form = &grid->forms[point->value[AXIS_FORM]];
        struct case_spec spec;
        char text[600] = "";
        if (grid_accepts(grid, point, &spec, NULL, 0))
            case_spec_describe(&spec, text, sizeof text);
        sha256_update(&sha256, GRID_AXES, point->value);
        sha256_update(&sha256, strlen(form->name) + 1, (const uint8_t *)form->name);
        sha256_update(&sha256, strlen(text) + 1, (const uint8_t *)text);
    }
    sha256_digest(&sha256, sizeof digest, digest);
    text_hex(digest, sizeof digest, grid->digest);
}

/* ---- Life ------------------------------------------------------------------------------------ */

static bool fill(struct grid *grid, bool exhaustive)
{
    if (!find_base(grid))
        return true;
    grid->refusal[0] = '\0';
    grid->traits = traits_of(grid, &grid->base);
    find_all_forms(grid);
    struct cover *cover = calloc(1, sizeof *cover);
    if (!cover)
        return false;
    cover->grid = grid;
    cover->draw.seed = mix_absorb(grid->seed, 1);
    fill_pool(grid, &cover->pool);
    find_values(cover);
    bool good = cover_all(cover);
    make_plain(grid, AXIS_SCORES);
    make_plain(grid, AXIS_LSE);
    good = good && (!exhaustive || add_many(grid));
    free(cover);
    return good;
}

attn_status grid_create(const struct grid_backend *backend, uint64_t seed, bool exhaustive,
                        struct grid **made, attn_error *error)
{
    struct grid *grid = calloc(1, sizeof *grid);
    if (grid) {
        grid->backend = *backend;
        grid->seed = mix_word(seed + MIX_INCREMENT);
        grid->answers = calloc(1, sizeof *grid->answers);
        grid->remembers = true;
    }
    if (!grid || !grid->answers || !fill(grid, exhaustive)) {
        grid_destroy(grid);
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a grid of cases");
    }
    digest_points(grid);
    grid->remembers = false;
    *made = grid;
    return ATTN_OK;
}

void grid_destroy(struct grid *grid)
{
    if (!grid)
        return;
    for (int32_t f = 0; f < grid->num_forms; f++)
        free(grid->forms[f].values);
    if (grid->answers)
        free(grid->answers->slots);
    free(grid->answers);
    free(grid->points);
    free(grid);
}

struct grid *grid_of(const struct check_subject *subject)
{
    const struct grid_backend backend = {subject->type, subject->options, subject->services,
                                         subject->device, subject->trail};
    if (!*subject->grid &&
        grid_create(&backend, subject->seed, subject->exhaustive, subject->grid, NULL) != ATTN_OK)
        abort();
    return *subject->grid;
}
