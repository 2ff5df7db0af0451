/* SPDX-License-Identifier: Apache-2.0
 *
 * comp_depth.c: the group COMP, where the suite composes by itself: the composite under test
 * with its options, but other children, as defined in the suite's host under names of its own.
 *
 *   TYPE_over_C                 every child is child number C of the subject
 *   TYPE_2_over_C, TYPE_3_over_C   every child is the level below; TYPE_1_over_C has the child
 */
#include "host/check/composites/scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 3, NAME = 64 };

static const char place[] = "attnhost check";

static bool is_ref(const attn_option_value *value)
{
    return value->type == ATTN_OPTION_BACKEND_REF && *value->text;
}

static int32_t count_refs(const struct check_subject *subject)
{
    int32_t count = 0;
    for (uint32_t v = 0; v < subject->options->num_values; v++)
        count += is_ref(attn_at(subject->options->values, v));
    return count;
}

/* ---- Definitions ----------------------------------------------------------------------------- */

/* Let `name` stand for the subject's type with its options, where child number `ref` (-1: each) is
 * `child`. Once for a host: cases are repeated. */
static bool define(struct check_run *run, const char *name, int32_t ref, const char *child)
{
    const attn_options *given = run->subject->options;
    struct composer *composer = &run->subject->host->composer;
    size_t used = 0;
    int32_t seen = 0;
    if (composer_find(composer, name))
        return true;
    struct options_text *texts = calloc(given->num_values + 1, sizeof *texts);
    for (uint32_t v = 0; texts && v < given->num_values; v++) {
        const attn_option_value *value = attn_at(given->values, v);
        bool replaced = is_ref(value) && (seen++ == ref || ref < 0);
        if (replaced || strcmp(value->place, "default") != 0)
            texts[used++] =
                (struct options_text){value->key, replaced ? child : value->text, place, "/"};
    }
    attn_status status = texts ? composer_define(composer, name, run->subject->type->name, place,
                                                 texts, used, check_error(run))
                               : ATTN_OUT_OF_HOST_MEMORY;
    free(texts);
    if (status != ATTN_OK)
        check_fail(run, "%s cannot be defined: %s", name, check_error_text(run));
    return status == ATTN_OK;
}

/* Name number `level` of the subject's: `what` is cut where it is long. */
static void name_it(const struct check_run *run, const char *what, char name[NAME])
{
    snprintf(name, NAME, "%.30s_%.30s", run->subject->type->name, what);
}

/* ---- COMP-05 --------------------------------------------------------------------------------- */

/* The host must refuse it while resolving, before calling any plugin, with this message. */
static void expect_no_tree(struct check_run *run, const char *name, const char *words)
{
    struct compose_node *node = NULL;
    attn_status status = compose_resolve(&run->subject->host->composer, name, run->subject->device,
                                         &node, check_error(run));
    compose_destroy(node);
    if (status != ATTN_CONFIG_ERROR || !strstr(check_error_text(run), words))
        check_fail(run, "%s: '%s': accepted an error of the configuration that says '%s'", name,
                   status == ATTN_OK ? "is resolved" : check_error_text(run), words);
}

/* The one contains itself; the other contains a third one that contains it. */
static void run_cycles(struct check_run *run)
{
    char self[NAME], one[NAME], other[NAME], text[24], words[4 * NAME];
    snprintf(text, sizeof text, "self_%d", run->index);
    name_it(run, text, self);
    snprintf(text, sizeof text, "one_%d", run->index);
    name_it(run, text, one);
    snprintf(text, sizeof text, "other_%d", run->index);
    name_it(run, text, other);
    if (!define(run, self, run->index, self) || !define(run, one, run->index, other) ||
        !define(run, other, run->index, one))
        return;
    snprintf(words, sizeof words, "%s -> %s", self, self);
    expect_no_tree(run, self, words);
    snprintf(words, sizeof words, "%s -> %s -> %s", one, other, one);
    expect_no_tree(run, one, words);
}

static void run_missing(struct check_run *run)
{
    char name[NAME], text[24];
    snprintf(text, sizeof text, "lacks_%d", run->index);
    name_it(run, text, name);
    if (define(run, name, run->index, "no_such_backend"))
        expect_no_tree(run, name, "'no_such_backend'");
}

/* ---- COMP-06 --------------------------------------------------------------------------------- */

/* A tree whose plugins may be called. NULL: the case has failed. */
static struct compose_node *grow(struct check_run *run, const char *name)
{
    struct compose_node *node = NULL;
    attn_status status = compose_resolve(&run->subject->host->composer, name, run->subject->device,
                                         &node, check_error(run));
    if (status == ATTN_OK)
        status = loader_acquire(node->type->plugin, check_error(run));
    if (status == ATTN_OK) {
        node->acquired = 1;
        return node;
    }
    compose_destroy(node);
    check_fail(run, "%s: %s", name, check_error_text(run));
    return NULL;
}

/* Call the node, whose type is `type`, instead of the subject. */
static void adopt(struct rig *rig, const struct compose_node *node, const attn_backend_type *type)
{
    rig->type = type;
    rig->ops = type->ops;
    rig->options = &node->options->view;
    rig->services = &node->services;
}

/* Rows of a MIXED batch may be computed by calls of other modes: close, not to the bit. */
static void compare(struct rig *rig, char *const alone[RIG_BATCHES],
                    char *const composed[RIG_BATCHES], const char *name, const char *child)
{
    const uint32_t exact = ATTN_TRAIT_DETERMINISTIC | ATTN_TRAIT_BATCH_INVARIANT;
    uint32_t traits = rig->verdict.traits;
    for (int b = 0; b < rig->num_batches; b++) {
        if ((traits & exact) != exact || rig->given_batches[b]->mode == ATTN_MODE_MIXED)
            rig->verdict.traits = traits & ~(uint32_t)ATTN_TRAIT_DETERMINISTIC;
        const char *difference = rig_difference(rig, b, alone[b], composed[b]);
        if (difference)
            check_fail(rig->run, "%s over %s, %s batch: %s differs from that of %s alone", name,
                       child, rig_batch_name(rig, b), difference, child);
        rig->verdict.traits = traits;
    }
}

/* Results of the composite `node` against those of its leaf alone. */
static void judge_results(struct rig *rig, const struct compose_node *node, const char *child)
{
    char *alone[RIG_BATCHES] = {NULL}, *composed[RIG_BATCHES] = {NULL};
    struct compose_node *leaf = grow(rig->run, child);
    if (!leaf)
        return;
    adopt(rig, leaf, leaf->type->type);
    bool good = rig_life(rig, alone);
    adopt(rig, node, rig->run->subject->type);
    good = good && rig_life(rig, composed);
    if (good)
        compare(rig, alone, composed, node->name, child);
    rig_free(alone);
    rig_free(composed);
    compose_destroy(leaf);
}

static const char *leaf_of(const struct check_run *run)
{
    return run->subject->node->children[run->index]->name;
}

static void run_equal(struct check_run *run)
{
    char name[NAME], text[24];
    struct rig rig;
    snprintf(text, sizeof text, "over_%d", run->index);
    name_it(run, text, name);
    if (!define(run, name, -1, leaf_of(run)) ||
        !rig_open_for_child(&rig, run, run->seed, (uint32_t)run->index))
        return;
    struct compose_node *node = grow(run, name);
    if (node)
        judge_results(&rig, node, leaf_of(run));
    compose_destroy(node);
    rig_close(&rig);
}

/* Names of the levels from the lowest; false: the case has failed. */
static bool define_levels(struct check_run *run, char names[DEPTH][NAME])
{
    for (int level = 0; level < DEPTH; level++) {
        char text[32];
        snprintf(text, sizeof text, "%d_over_%d", level + 1, run->index);
        name_it(run, text, names[level]);
        if (!define(run, names[level], -1, level == 0 ? leaf_of(run) : names[level - 1]))
            return false;
    }
    return true;
}

/* The leaf fails, three levels down: its parent is given the altered child's services. */
static void judge_deep_failures(struct scene *scene, struct compose_node *node,
                                char names[DEPTH][NAME])
{
    struct compose_node *lowest = node->children[0]->children[0];
    const attn_services services = lowest->services;
    scene->child = leaf_of(scene->rig.run);
    scene->reached = 0;
    scene->num_path = DEPTH;
    for (int level = 0; level < DEPTH - 1; level++)
        scene->path[level] = names[DEPTH - 2 - level];
    scene->path[DEPTH - 1] = scene->child;
    altered_child_init(&scene->altered, &services, scene->child, ALTER_NOT, 0);
    lowest->services = scene->altered.counter.table;
    scene_check_failures(scene);
    lowest->services = services;
}

static void run_deep(struct check_run *run)
{
    char names[DEPTH][NAME];
    struct scene scene;
    if (!define_levels(run, names) ||
        !rig_open_for_child(&scene.rig, run, run->seed, (uint32_t)run->index))
        return;
    struct compose_node *node = grow(run, names[DEPTH - 1]);
    if (node) {
        judge_results(&scene.rig, node, leaf_of(run));
        if (run->code == CHECK_PASS)
            judge_deep_failures(&scene, node, names);
    }
    compose_destroy(node);
    rig_close(&scene.rig);
}

/* ---- Table ----------------------------------------------------------------------------------- */

enum { COMPUTES = CHECK_NEEDS_CHILD | CHECK_NEEDS_COMPUTE };

const struct check check_comp_depth[] = {
    CHECK_ROW("COMP-05", cycles, count_refs, CHECK_NEEDS_CHILD,
              "a composite that contains itself, directly or through another one, is refused"),
    CHECK_ROW("COMP-05", missing, count_refs, CHECK_NEEDS_CHILD,
              "a missing child is refused by its name"),
    CHECK_ROW("COMP-06", equal, scene_count_children, COMPUTES,
              "if all children are one backend, the composite gives that backend's results"),
    CHECK_ROW("COMP-06", deep, scene_count_children, COMPUTES,
              "three levels of composites over one backend give that backend's results, and a "
              "failure names every level"),
    {.rule = NULL},
};
