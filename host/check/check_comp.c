/* SPDX-License-Identifier: Apache-2.0
 *
 * check_comp.c: the group COMP: whether a composite passes on what its children say. One child at a
 * time is made to answer something else (meddler.h).
 */
#include "host/check/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/check/meddler.h"
#include "host/check/refusal.h"
#include "host/check/rig.h"

/* ---- Children -------------------------------------------------------------------------------- */

/* The name of child `index`, or NULL. */
static const char *child_name(const struct check_subject *subject, uint32_t index)
{
    return index < subject->node->num_children ? subject->node->children[index]->name : NULL;
}

/* A case for each child. */
static int32_t count_children(const struct check_subject *subject)
{
    return (int32_t)subject->node->num_children;
}

/* A rig whose composite gets the meddler's services. The meddler is told what to do later. */
struct scene {
    struct rig rig;
    struct meddler meddler;
    const char *child;
};

static bool scene_open(struct scene *scene, struct check_run *run)
{
    if (!rig_open(&scene->rig, run, run->seed))
        return false;
    scene->child = child_name(run->subject, (uint32_t)run->index);
    meddler_init(&scene->meddler, run->subject->services, scene->child, MEDDLE_NOT, 0);
    scene->rig.services = &scene->meddler.table;
    return true;
}

static void meddle(struct scene *scene, enum meddle what, uint64_t value)
{
    scene->meddler.what = what;
    scene->meddler.value = value;
    scene->meddler.hits = 0;
}

/* ---- COMP-02 --------------------------------------------------------------------------------- */

enum { MAX_REASONS = 16 };

static bool ask(struct scene *scene, struct check_run *run, attn_verdict *verdict,
                attn_reason reasons[MAX_REASONS])
{
    struct rig *rig = &scene->rig;
    for (int r = 0; r < MAX_REASONS; r++)
        reasons[r] = (attn_reason){.struct_size = sizeof reasons[r]};
    *verdict = (attn_verdict){
        .struct_size = sizeof *verdict, .reasons_capacity = MAX_REASONS, .reasons = reasons};
    host_error_init(&rig->error);
    attn_status status = rig->type->query(rig->type, rig->options, rig->services, rig->problems,
                                          verdict, &rig->error.base);
    return rig_good(rig, run, status, "query");
}

static void check_refused(struct check_run *run, struct scene *scene)
{
    attn_verdict verdict;
    attn_reason reasons[MAX_REASONS];
    bool named = false;
    meddle(scene, MEDDLE_REFUSE, 0);
    if (!ask(scene, run, &verdict, reasons) || scene->meddler.hits == 0)
        return;
    CHECK_THAT(run, !verdict.supported, "the child %s says no, and the composite says yes",
               scene->child);
    for (uint32_t r = 0; r < verdict.num_reasons && r < MAX_REASONS; r++)
        named |= strncmp(reasons[r].child, scene->child, sizeof reasons[r].child - 1) == 0 &&
                 strcmp(reasons[r].got, MEDDLER_WORDS) == 0;
    CHECK_THAT(run, named,
               "the child %s says no, and no reason of the composite is the child's "
               "with its name",
               scene->child);
}

static void check_graph_level(struct check_run *run, struct scene *scene)
{
    attn_verdict verdict;
    attn_reason reasons[MAX_REASONS];
    for (uint32_t level = 0; level < ATTN_GRAPH_COUNT; level++) {
        meddle(scene, MEDDLE_GRAPH_LEVEL, level);
        if (!ask(scene, run, &verdict, reasons) || scene->meddler.hits == 0 || !verdict.supported)
            continue;
        CHECK_THAT(run, verdict.graph_level <= level,
                   "the child %s can be captured up to level %u, the composite up to %u",
                   scene->child, level, verdict.graph_level);
    }
}

static void check_notes(struct check_run *run, struct scene *scene)
{
    static const uint32_t notes[] = {ATTN_NOTE_DETERMINISTIC, ATTN_NOTE_BATCH_INVARIANT};
    attn_verdict verdict;
    attn_reason reasons[MAX_REASONS];
    for (size_t n = 0; n < sizeof notes / sizeof notes[0]; n++) {
        meddle(scene, MEDDLE_NOTES, notes[n]);
        if (!ask(scene, run, &verdict, reasons) || scene->meddler.hits == 0 || !verdict.supported)
            continue;
        CHECK_THAT(run, !(verdict.notes & notes[n]),
                   "the child %s lacks the note %u, and the composite has it", scene->child,
                   notes[n]);
    }
}

static void run_verdict(struct check_run *run)
{
    struct scene scene;
    if (!scene_open(&scene, run))
        return;
    check_refused(run, &scene);
    check_graph_level(run, &scene);
    check_notes(run, &scene);
    rig_close(&scene.rig);
}

/* ---- COMP-03 --------------------------------------------------------------------------------- */

/* Whatever the child asks for, the composite asks for. */
static void check_forms(struct check_run *run, struct scene *scene)
{
    static const uint32_t forms[] = {ATTN_INDEX_REQ_TO_TOKEN, ATTN_INDEX_BLOCK_TABLE,
                                     ATTN_INDEX_CSR};
    struct rig *rig = &scene->rig;
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
        attn_instance *instance = NULL;
        meddle(scene, MEDDLE_INDEX_FORMS, forms[f]);
        if (!rig_create_for(rig, run, &instance))
            return;
        if (scene->meddler.hits > 0 && !(rig->index_forms & forms[f]))
            check_fail(run, "the child %s asks for index forms %u, the composite for %u",
                       scene->child, forms[f], rig->index_forms);
        else if (scene->meddler.hits == 0 && rig->index_forms == 0)
            check_fail(run, "the composite asks for no index form");
        rig_destroy(rig, instance);
    }
}

static void check_memory(struct check_run *run, struct scene *scene)
{
    const uint32_t region = ATTN_REGION(ATTN_SPACE_HOST, ATTN_USE_METADATA);
    const uint64_t more = (uint64_t)1 << 20;
    struct rig *rig = &scene->rig;
    attn_instance *instance = NULL;
    attn_memory_size before, after;
    meddle(scene, MEDDLE_NOT, 0);
    if (!rig_good(rig, run, rig_create(rig, &instance), "create"))
        return;
    bool good = rig_good(rig, run, rig_metadata_size(rig, instance, &before), "metadata_size");
    meddle(scene, MEDDLE_SIZE, more);
    good = good && rig_good(rig, run, rig_metadata_size(rig, instance, &after), "metadata_size");
    if (good && scene->meddler.hits > 0 && after.size[region] < before.size[region] + more)
        check_fail(run, "the child %s asks for %llu bytes more, the composite for %llu",
                   scene->child, (unsigned long long)more,
                   (unsigned long long)(after.size[region] - before.size[region]));
    rig_destroy(rig, instance);
}

static void run_forms(struct check_run *run)
{
    struct scene scene;
    if (!scene_open(&scene, run))
        return;
    check_forms(run, &scene);
    if (run->code == CHECK_PASS)
        check_memory(run, &scene);
    rig_close(&scene.rig);
}

/* ---- COMP-04 --------------------------------------------------------------------------------- */

/* A failure that was planted: the message has the child's name, and then its words. */
static bool judge_failure(struct check_run *run, struct scene *scene, attn_status status,
                          const char *call)
{
    const char *text = host_error_text(&scene->rig.error);
    const char *name = strstr(text, scene->child);
    char what[96];
    snprintf(what, sizeof what, "%s whose child %.40s fails", call, scene->child);
    if (!refusal_is_told(run, status, &scene->rig.error, what))
        return false;
    if (!name || !strstr(name, MEDDLER_WORDS))
        check_fail(run, "%s: '%s': accepted the child's name and then '%s'", what, text,
                   MEDDLER_WORDS);
    return run->code == CHECK_PASS;
}

/* create fails; nothing of the other children is left, or a sanitizer tells. */
static void check_create_fails(struct check_run *run, struct scene *scene)
{
    attn_instance *instance = NULL;
    meddle(scene, MEDDLE_CREATE, 0);
    attn_status status = rig_create(&scene->rig, &instance);
    if (scene->meddler.hits > 0)
        judge_failure(run, scene, status, "create");
    CHECK_THAT(run, !instance || status == ATTN_OK, "create fails, and sets its output");
    if (status == ATTN_OK)
        rig_destroy(&scene->rig, instance);
}

static void check_metadata_fails(struct check_run *run, struct scene *scene,
                                 struct rig_session *session)
{
    struct rig *rig = &scene->rig;
    attn_memory_size size;
    attn_metadata *metadata = NULL;
    meddle(scene, MEDDLE_METADATA_SIZE, 0);
    attn_status status = rig_metadata_size(rig, session->instance, &size);
    if (scene->meddler.hits > 0 && !judge_failure(run, scene, status, "metadata_size"))
        return;
    /* A composite may ask for sizes in metadata_create: it has its own way to fail there. */
    meddle(scene, MEDDLE_METADATA_CREATE, 0);
    status = rig_metadata_create(rig, session->instance, &session->memory, &metadata);
    if (scene->meddler.hits > 0)
        judge_failure(run, scene, status, "metadata_create");
    if (status == ATTN_OK)
        rig->ops->metadata_destroy(metadata);
}

static void check_batches_fail(struct check_run *run, struct scene *scene,
                               struct rig_session *session)
{
    struct rig *rig = &scene->rig;
    for (int b = 0; b < rig->num_batches && run->code == CHECK_PASS; b++) {
        meddle(scene, MEDDLE_PLAN, 0);
        attn_status status = rig_plan(rig, session->metadata, b);
        if (scene->meddler.hits > 0 && !judge_failure(run, scene, status, "init_forward_metadata"))
            return;
        meddle(scene, MEDDLE_NOT, 0);
        if (!rig_good(rig, run, rig_plan(rig, session->metadata, b), "init_forward_metadata"))
            return;
        meddle(scene, MEDDLE_FORWARD, 0);
        status = rig_forward(rig, session->metadata, b, 0);
        if (scene->meddler.hits > 0 && !judge_failure(run, scene, status, "forward"))
            return;
        meddle(scene, MEDDLE_NOT, 0);
        free(rig_run(rig, run, session->metadata, b));
    }
}

static void run_failures(struct check_run *run)
{
    struct scene scene;
    struct rig_session session;
    if (!scene_open(&scene, run))
        return;
    check_create_fails(run, &scene);
    meddle(&scene, MEDDLE_NOT, 0);
    if (run->code == CHECK_PASS && rig_session_open(&session, &scene.rig, run)) {
        check_batches_fail(run, &scene, &session);
        scene.rig.ops->metadata_destroy(session.metadata);
        session.metadata = NULL;
        if (run->code == CHECK_PASS)
            check_metadata_fails(run, &scene, &session);
        meddle(&scene, MEDDLE_NOT, 0);
        rig_session_close(&session, &scene.rig);
    }
    rig_close(&scene.rig);
}

/* ---- Table ----------------------------------------------------------------------------------- */

const struct check check_comp[] = {
    {.rule = "COMP-02",
     .name = "verdict",
     .sentence = "a child's no is the composite's no, with the child's name; its graph level and "
                 "notes are no better than a child's",
     .needs = CHECK_NEEDS_CHILD,
     .count = count_children,
     .run = run_verdict},
    {.rule = "COMP-03",
     .name = "needs",
     .sentence = "the index forms and the memory of each child are among the composite's",
     .needs = CHECK_NEEDS_CHILD,
     .count = count_children,
     .run = run_forms},
    {.rule = "COMP-04",
     .name = "failures",
     .sentence = "what a child fails with comes with the child's name",
     .needs = CHECK_NEEDS_CHILD,
     .count = count_children,
     .run = run_failures},
    {.rule = NULL},
};
