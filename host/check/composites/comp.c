/* SPDX-License-Identifier: Apache-2.0
 *
 * comp.c: the group COMP: whether a composite passes on the answers of its children. One child at a
 * time gives altered answers (altered_child.h). Composites of composites are in
 * check/composites/comp_depth.c. */
#include "host/check/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/check/cases/refusal.h"
#include "host/check/composites/scene.h"

/* ---- Children -------------------------------------------------------------------------------- */

/* The name of child `index`, or NULL. */
static const char *child_name(const struct check_subject *subject, uint32_t index)
{
    return index < subject->node->num_children ? subject->node->children[index]->name : NULL;
}

int32_t scene_count_children(const struct check_subject *subject)
{
    return (int32_t)subject->node->num_children;
}

static bool scene_open(struct scene *scene, struct check_run *run)
{
    if (!rig_open_for_child(&scene->rig, run, run->seed, (uint32_t)run->index))
        return false;
    scene->child = child_name(run->subject, (uint32_t)run->index);
    scene->path[0] = scene->child;
    scene->num_path = 1;
    scene->reached = 0;
    altered_child_init(&scene->altered, run->subject->services, scene->child, ALTER_NOT, 0);
    scene->rig.services = &scene->altered.counter.table;
    return true;
}

/* From now on the child's answers are altered so. */
static void scene_alter(struct scene *scene, enum alteration what, uint64_t value)
{
    scene->reached += scene->altered.hits;
    scene->altered.what = what;
    scene->altered.value = value;
    scene->altered.hits = 0;
}

/* If no query of a case reaches the child, the case is skipped with that reason. */
static void scene_close(struct scene *scene)
{
    scene_alter(scene, ALTER_NOT, 0);
    if (scene->rig.run->code == CHECK_PASS && scene->reached == 0)
        check_skip(scene->rig.run, "no query of the suite reaches the child %s", scene->child);
    rig_close(&scene->rig);
}

/* ---- COMP-02 --------------------------------------------------------------------------------- */

enum { MAX_REASONS = 16 };

static bool ask(struct scene *scene, attn_verdict *verdict, attn_reason reasons[MAX_REASONS])
{
    struct rig *rig = &scene->rig;
    for (int r = 0; r < MAX_REASONS; r++)
        reasons[r] = (attn_reason){.struct_size = sizeof reasons[r]};
    *verdict = (attn_verdict){
        .struct_size = sizeof *verdict, .reasons_capacity = MAX_REASONS, .reasons = reasons};
    attn_status status = rig->type->query(rig->type, rig->options, rig->services, rig->problems,
                                          verdict, check_error(rig->run));
    return rig_good(rig, status, "query");
}

static void check_refused(struct scene *scene)
{
    attn_verdict verdict;
    attn_reason reasons[MAX_REASONS];
    bool named = false;
    scene_alter(scene, ALTER_REFUSE, 0);
    if (!ask(scene, &verdict, reasons) || scene->altered.hits == 0)
        return;
    CHECK_THAT(scene->rig.run, !verdict.supported,
               "the child %s refuses, but the composite accepts", scene->child);
    for (uint32_t r = 0; r < verdict.num_reasons && r < MAX_REASONS; r++)
        named |= strncmp(reasons[r].child, scene->child, sizeof reasons[r].child - 1) == 0 &&
                 strcmp(reasons[r].got, ALTERED_WORDS) == 0;
    CHECK_THAT(scene->rig.run, named,
               "the child %s refuses, but the composite does not repeat its reasons with its name",
               scene->child);
}

static void check_graph_level(struct scene *scene)
{
    attn_verdict verdict;
    attn_reason reasons[MAX_REASONS];
    for (uint32_t level = 0; level < ATTN_GRAPH_COUNT; level++) {
        scene_alter(scene, ALTER_GRAPH_LEVEL, level);
        if (!ask(scene, &verdict, reasons) || scene->altered.hits == 0 || !verdict.supported)
            continue;
        CHECK_THAT(scene->rig.run, verdict.graph_level <= level,
                   "the child %s can be captured up to level %u, but the composite up to %u",
                   scene->child, level, verdict.graph_level);
    }
}

static void check_traits(struct scene *scene)
{
    static const uint32_t traits[] = {ATTN_TRAIT_DETERMINISTIC, ATTN_TRAIT_BATCH_INVARIANT,
                                      ATTN_TRAIT_CUT_INVARIANT};
    attn_verdict verdict;
    attn_reason reasons[MAX_REASONS];
    for (size_t n = 0; n < sizeof traits / sizeof traits[0]; n++) {
        scene_alter(scene, ALTER_TRAITS, traits[n]);
        if (!ask(scene, &verdict, reasons) || scene->altered.hits == 0 || !verdict.supported)
            continue;
        CHECK_THAT(scene->rig.run, !(verdict.traits & traits[n]),
                   "the child %s lacks the trait %u, but the composite has it", scene->child,
                   traits[n]);
    }
}

static void check_verdict(struct scene *scene)
{
    check_refused(scene);
    check_graph_level(scene);
    check_traits(scene);
}

/* ---- COMP-03 --------------------------------------------------------------------------------- */

/* The composite must ask for everything that the child asks for. */
static void check_forms(struct scene *scene)
{
    static const uint32_t forms[] = {ATTN_INDEX_REQ_TO_TOKEN, ATTN_INDEX_BLOCK_TABLE,
                                     ATTN_INDEX_CSR};
    struct rig *rig = &scene->rig;
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
        attn_instance *instance = NULL;
        scene_alter(scene, ALTER_INDEX_FORMS, forms[f]);
        if (!rig_create_for(rig, &instance))
            return;
        if (scene->altered.hits > 0 && !(rig->index_forms & forms[f]))
            check_fail(scene->rig.run, "the child %s reads index forms %u, the composite %u",
                       scene->child, forms[f], rig->index_forms);
        else if (scene->altered.hits == 0 && rig->index_forms == 0)
            check_fail(scene->rig.run, "the composite reads no index form");
        rig_destroy(rig, instance);
    }
}

static void check_memory(struct scene *scene)
{
    const uint32_t region = ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA);
    const uint64_t more = (uint64_t)1 << 20;
    struct rig *rig = &scene->rig;
    attn_instance *instance = NULL;
    attn_memory_size before, after;
    scene_alter(scene, ALTER_NOT, 0);
    if (!rig_good(rig, rig_create(rig, &instance), "create"))
        return;
    bool good = rig_good(rig, rig_metadata_size(rig, instance, &before), "metadata_size");
    scene_alter(scene, ALTER_SIZE, more);
    good = good && rig_good(rig, rig_metadata_size(rig, instance, &after), "metadata_size");
    if (good && scene->altered.hits > 0 && after.size[region] < before.size[region] + more)
        check_fail(scene->rig.run, "the child %s needs %llu bytes more, the composite %llu",
                   scene->child, (unsigned long long)more,
                   (unsigned long long)(after.size[region] - before.size[region]));
    rig_destroy(rig, instance);
}

static void check_needs(struct scene *scene)
{
    check_forms(scene);
    if (scene->rig.run->code == CHECK_PASS)
        check_memory(scene);
}

/* ---- COMP-04 --------------------------------------------------------------------------------- */

/* A planted failure: the message has the names on the way, then the child's message. */
static bool judge_failure(struct scene *scene, attn_status status, const char *call)
{
    const char *text = check_error_text(scene->rig.run), *rest = text;
    char what[96];
    snprintf(what, sizeof what, "%s whose child %.40s fails", call, scene->child);
    if (!refusal_is_told(scene->rig.run, status, what))
        return false;
    for (int n = 0; n < scene->num_path && rest; n++) {
        rest = strstr(rest, scene->path[n]);
        rest = rest ? rest + strlen(scene->path[n]) : NULL;
    }
    if (!rest || !strstr(rest, ALTERED_WORDS))
        check_fail(scene->rig.run,
                   "%s: '%s': accepted the names of the children on the way, %s the last, and "
                   "then '%s'",
                   what, text, scene->child, ALTERED_WORDS);
    return scene->rig.run->code == CHECK_PASS;
}

/* Nothing created since the counts `instances` and `metadata` is left. */
static void judge_left(const struct scene *scene, int instances, int metadata, const char *call)
{
    if (scene->altered.live != instances || scene->altered.live_metadata != metadata)
        check_fail(scene->rig.run,
                   "%s whose child %s fails: %d instances and %d metadata of children are left, "
                   "where %d and %d are accepted",
                   call, scene->child, scene->altered.live, scene->altered.live_metadata, instances,
                   metadata);
}

static void check_create_fails(struct scene *scene)
{
    attn_instance *instance = NULL;
    scene_alter(scene, ALTER_CREATE, 0);
    service_counter_restart(&scene->altered.counter, 0);
    attn_status status = rig_create(&scene->rig, &instance);
    if (scene->altered.hits > 0 && !judge_failure(scene, status, "create"))
        return;
    CHECK_THAT(scene->rig.run, !instance || status == ATTN_OK, "create fails, but sets its output");
    if (status == ATTN_OK)
        rig_destroy(&scene->rig, instance);
    judge_left(scene, 0, 0, "create");
    CHECK_THAT(scene->rig.run, !service_counter_left(&scene->altered.counter),
               "create whose child %s fails leaves %s", scene->child,
               service_counter_left(&scene->altered.counter));
}

static void check_metadata_fails(struct scene *scene, struct rig_session *session)
{
    struct rig *rig = &scene->rig;
    attn_memory_size size;
    attn_metadata *metadata = NULL;
    int instances = scene->altered.live, others = scene->altered.live_metadata;
    scene_alter(scene, ALTER_METADATA_SIZE, 0);
    attn_status status = rig_metadata_size(rig, session->instance, &size);
    if (scene->altered.hits > 0 && !judge_failure(scene, status, "metadata_size"))
        return;
    /* A composite may ask for sizes in metadata_create: it has its own way to fail there. */
    scene_alter(scene, ALTER_METADATA_CREATE, 0);
    status = rig_metadata_create(rig, session->instance, &session->memory, &metadata);
    if (scene->altered.hits > 0)
        judge_failure(scene, status, "metadata_create");
    if (status == ATTN_OK)
        rig->ops->metadata_destroy(metadata);
    judge_left(scene, instances, others, "metadata_create");
}

static void check_batches_fail(struct scene *scene, struct rig_session *session)
{
    struct rig *rig = &scene->rig;
    for (int b = 0; b < rig->num_batches && scene->rig.run->code == CHECK_PASS; b++) {
        scene_alter(scene, ALTER_PLAN, 0);
        attn_status status = rig_plan(rig, session->metadata, b);
        if (scene->altered.hits > 0 && !judge_failure(scene, status, "init_forward_metadata"))
            return;
        scene_alter(scene, ALTER_NOT, 0);
        if (!rig_good(rig, rig_plan(rig, session->metadata, b), "init_forward_metadata"))
            return;
        scene_alter(scene, ALTER_FORWARD, 0);
        for (int l = 0; l < RIG_LAYERS; l++) {
            status = rig_forward(rig, session->metadata, b, l);
            if (scene->altered.hits == 0)
                continue;
            if (!judge_failure(scene, status, "forward"))
                return;
            break;
        }
        scene_alter(scene, ALTER_NOT, 0);
        free(rig_run(rig, session->metadata, b));
    }
}

void scene_check_failures(struct scene *scene)
{
    struct rig_session session;
    check_create_fails(scene);
    scene_alter(scene, ALTER_NOT, 0);
    service_counter_restart(&scene->altered.counter, 0);
    if (scene->rig.run->code != CHECK_PASS || !rig_session_open(&session, &scene->rig))
        return;
    check_batches_fail(scene, &session);
    scene->rig.ops->metadata_destroy(session.metadata);
    session.metadata = NULL;
    if (scene->rig.run->code == CHECK_PASS)
        check_metadata_fails(scene, &session);
    scene_alter(scene, ALTER_NOT, 0);
    rig_session_close(&session, &scene->rig);
    judge_left(scene, 0, 0, "a life");
    if (service_counter_left(&scene->altered.counter))
        check_fail(scene->rig.run, "a life whose child %s fails leaves %s", scene->child,
                   service_counter_left(&scene->altered.counter));
}

/* ---- COMP-08 --------------------------------------------------------------------------------- */

/* The options decide which child a row must reach, and the suite does not know their meaning. */
static void check_rows(struct scene *scene, struct rig_session *session, int b)
{
    struct rig *rig = &scene->rig;
    int32_t rows = rig->given_batches[b]->num_real_tokens;
    attn_status status = rig_plan(rig, session->metadata, b);
    for (int l = 0; l < RIG_LAYERS && rig_good(rig, status, "init_forward_metadata"); l++) {
        scene->altered.rows = 0;
        status = rig_forward(rig, session->metadata, b, l);
        if (!rig_good(rig, status, "forward"))
            return;
        if (scene->altered.rows != rows)
            check_fail(
                scene->rig.run,
                "layer %d of %s: all children together get %lld rows: accepted %d, each row once",
                rig->question.layers[l].layer_id, rig_a_batch(rig, b),
                (long long)scene->altered.rows, rows);
    }
}

static void check_once(struct scene *scene)
{
    struct rig_session session;
    scene->reached = 1; /* whichever child the rows reach */
    if (!rig_session_open(&session, &scene->rig))
        return;
    for (int b = 0; b < scene->rig.num_batches && scene->rig.run->code == CHECK_PASS; b++)
        check_rows(scene, &session, b);
    rig_session_close(&session, &scene->rig);
}

/* ---- Table ----------------------------------------------------------------------------------- */

static void with_scene(struct check_run *run, void (*body)(struct scene *scene))
{
    struct scene scene;
    if (!scene_open(&scene, run))
        return;
    body(&scene);
    scene_close(&scene);
}

CHECK_RUN(verdict, with_scene(run, check_verdict))
CHECK_RUN(needs, with_scene(run, check_needs))
CHECK_RUN(failures, with_scene(run, scene_check_failures))
CHECK_RUN(once, with_scene(run, check_once))

const struct check check_comp[] = {
    CHECK_ROW("COMP-02", verdict, scene_count_children, CHECK_NEEDS_CHILD,
              "a composite refuses what a child refuses, and names the child; it promises no "
              "higher graph level and no more traits than its children"),
    CHECK_ROW("COMP-03", needs, scene_count_children, CHECK_NEEDS_CHILD,
              "a composite reports the index forms and the memory of all its children"),
    CHECK_ROW("COMP-04", failures, scene_count_children, CHECK_NEEDS_CHILD,
              "an error of a child in create, plan or forward is returned with the child's "
              "name, and neither it nor its siblings leak"),
    CHECK_ROW("COMP-08", once, scene_count_children, CHECK_NEEDS_CHILD,
              "each row of a forward reaches exactly one child, and reaches it once"),
    {.rule = NULL},
};
