/* SPDX-License-Identifier: Apache-2.0
 *
 * measure.c: drops wrong candidates, then finds the fastest.
 *
 * In each class each candidate computes the batch once; one that fails, or whose output the host's
 * judge finds wrong (judge.c), is dropped for all classes. The others are timed in turn. A
 * candidate replaces the best one so far if its median and its best sample are lower by the margin,
 * and most of its samples are lower than those of the same round. So noise that affects both
 * candidates, or one of them occasionally, decides nothing. Noise only adds time, so even frequent
 * noise on one candidate hardly ever decides. */
#include "autotune.h"

#include "attn_plugin_util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A sample is a plan and so many forwards, several times where that is short; of slow ones one. */
enum { FORWARDS = 4, MIN_SAMPLE_NS = 100000, SLOW_NS = 2000000 };

/* A walk over all classes of all groups. */
struct walk {
    attn_instance *instance;
    tuning *own;
    attn_progress progress;
    void *progress_ctx;
    uint32_t done, total;
    int64_t end_ns; /* no new class is begun after this */
    uint32_t late;  /* classes for which there was no time */
};

struct class_id {
    tune_group *group;
    uint32_t index;
    int32_t num_seqs, kv_len;
};

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

const char *tune_why_not(const tune_group *group)
{
    const attn_layer_group *g = &group->group;
    const attn_dtype q = group->problem.q_dtype, kv = group->problem.kv_dtype;
    const attn_dtype out = group->problem.out_dtype;
    if (g->kind != ATTN_KIND_SOFTMAX || g->attn_type != ATTN_TYPE_DECODER)
        return "only softmax decoder layers are measured";
    if (g->head_dim <= 0 || g->v_head_dim <= 0 || g->num_kv_heads <= 0 ||
        g->num_q_heads < g->num_kv_heads || group->problem.page_size <= 0 || g->kv_group < 0)
        return "its shape is not known";
    if ((q != ATTN_F32 && q != ATTN_F16 && q != ATTN_BF16) || kv == ATTN_F64 || out == ATTN_F64 ||
        out == ATTN_FP8_E4M3 || out == ATTN_FP8_E5M2 ||
        g->input_scale_granularity != ATTN_SCALE_NONE)
        return "its types are not measured";
    if (group->problem.min_alignment > TUNE_ALIGNMENT)
        return "its operands are not aligned enough";
    return NULL;
}

static const char *name_of(const struct walk *walk, uint32_t c)
{
    return walk->instance->child[c].name;
}

static int is_dropped(const struct walk *walk, uint32_t c)
{
    return walk->own->dropped >> c & 1u;
}

static uint32_t count_left(const struct walk *walk)
{
    uint32_t left = 0;
    for (uint32_t c = 0; c < walk->instance->children.num_children; c++)
        left += !is_dropped(walk, c);
    return left;
}

static void drop(struct walk *walk, uint32_t c, const struct class_id *id, const char *why)
{
    char what[128], *kept = walk->own->why[c];
    tune_class_text(id->index, what, sizeof what);
    walk->own->dropped |= 1u << c;
    snprintf(kept, sizeof walk->own->why[c], "layers %s, %s: %s", id->group->layers, what, why);
    tune_log(walk->instance, ATTN_LOG_WARNING, "%s is dropped: %s", name_of(walk, c), kept);
}

/* ---- Who is right ---------------------------------------------------------------------------- */

/* Messages of candidates, which are no errors of ours. */
struct said {
    attn_error error;
    char text[256];
};

static attn_error *listen(struct said *said)
{
    memset(said, 0, sizeof *said);
    said->error = (attn_error){
        .struct_size = sizeof said->error, .message = said->text, .capacity = sizeof said->text};
    return &said->error;
}

/* Drop the candidate if the worst of these rows is wrong: of its output, or of the one kept. */
static void judge(struct walk *walk, const struct class_id *id, tune_case *tune, uint32_t c,
                  int kept, tune_row *rows, uint32_t count)
{
    struct said said;
    char why[400];
    const tune_row *worst;
    attn_status status = tune_judge(tune, c, kept, rows, count, &worst, listen(&said));
    if (status == ATTN_OK && worst->off <= 1)
        return;
    if (status != ATTN_OK)
        snprintf(why, sizeof why, "its output cannot be judged: %s", said.text);
    else if (!isfinite(worst->off))
        snprintf(why, sizeof why, "row %lld of query head %d is not written, or not finite",
                 (long long)worst->row, worst->head);
    else
        snprintf(why, sizeof why,
                 "row %lld of query head %d is off by %.3g times what the pass rule allows",
                 (long long)worst->row, worst->head, worst->off);
    drop(walk, c, id, why);
}

/* Compute the class with a candidate, from the plan to the output. */
static attn_status compute(tune_case *tune, uint32_t c, attn_error *error)
{
    tune_case_poison(tune);
    attn_status status = tune_case_plan(tune, c, error);
    if (status == ATTN_OK)
        status = tune_case_run(tune, c, error);
    return status == ATTN_OK ? tune_case_fetch(tune, error) : status;
}

/* Judge all candidates in one class: a sample of each, and where it is farthest from the first. */
static void compare(struct walk *walk, const struct class_id *id, tune_case *tune)
{
    struct said said;
    char why[320];
    tune_row rows[TUNE_MAX_SAMPLED];
    uint32_t first = PICK_MAX_CHILDREN;
    for (uint32_t c = 0; c < walk->instance->children.num_children; c++) {
        if (is_dropped(walk, c))
            continue;
        if (compute(tune, c, listen(&said)) != ATTN_OK) {
            snprintf(why, sizeof why, "it fails: %s", said.text);
            drop(walk, c, id, why);
            continue;
        }
        judge(walk, id, tune, c, 0, rows, tune_sample_rows(tune, rows));
        if (is_dropped(walk, c))
            continue;
        if (first == PICK_MAX_CHILDREN) {
            first = c;
            tune_case_keep_output(tune);
            continue;
        }
        uint32_t count = tune_find_farthest(tune, rows);
        judge(walk, id, tune, c, 0, rows, count);
        if (!is_dropped(walk, first))
            judge(walk, id, tune, first, 1, rows, count);
    }
}

/* ---- Who is fastest -------------------------------------------------------------------------- */

struct samples {
    int64_t ns[PICK_MAX_CHILDREN][TUNE_MAX_ROUNDS]; /* of a plan and its forwards */
    int rounds;
    int forwards; /* after each plan */
    int repeats;  /* in a sample */
};

/* One sample; -1 = it fails. */
static int64_t sample(tune_case *tune, uint32_t c, const struct samples *samples)
{
    struct said said;
    int64_t start = now_ns();
    for (int r = 0; r < samples->repeats; r++) {
        if (tune_case_replan(tune, c, listen(&said)) != ATTN_OK)
            return -1;
        for (int f = 0; f < samples->forwards; f++)
            if (tune_case_run(tune, c, &said.error) != ATTN_OK)
                return -1;
    }
    if (tune_case_wait(tune, listen(&said)) != ATTN_OK)
        return -1;
    return (now_ns() - start) / samples->repeats;
}

/* Warm up, and choose how long samples are; 0 = one fails, or there is no time for them. */
static int choose_samples(struct walk *walk, tune_case *tune, struct samples *samples)
{
    int64_t slowest = 1, all = 0;
    samples->forwards = samples->repeats = 1;
    for (uint32_t c = 0; c < walk->instance->children.num_children; c++) {
        int64_t ns = is_dropped(walk, c) ? 0 : sample(tune, c, samples);
        if (ns < 0)
            return 0;
        slowest = ns > slowest ? ns : slowest;
        all += ns;
    }
    if (slowest < SLOW_NS) {
        samples->forwards = FORWARDS;
        samples->repeats = (int)(MIN_SAMPLE_NS / slowest / FORWARDS) + 1;
    }
    int64_t needed = all * samples->rounds * samples->forwards * samples->repeats;
    return needed <= walk->end_ns - now_ns();
}

static int take_samples(struct walk *walk, tune_case *tune, struct samples *samples)
{
    uint32_t count = walk->instance->children.num_children;
    for (int r = 0; r < samples->rounds; r++)
        for (uint32_t i = 0; i < count; i++) { /* another one begins each round */
            uint32_t c = (i + (uint32_t)r) % count;
            if (!is_dropped(walk, c) && (samples->ns[c][r] = sample(tune, c, samples)) < 0)
                return 0;
        }
    return 1;
}

/* The first holder of the class keeps it until another one is clearly faster. */
static void decide(struct walk *walk, const struct class_id *id, tune_case *tune)
{
    struct samples samples = {.rounds = (int)walk->own->options.rounds};
    tune_class *at = &id->group->classes[id->index];
    if (!choose_samples(walk, tune, &samples) || !take_samples(walk, tune, &samples)) {
        walk->late++;
        return;
    }
    uint32_t holder = tune_first_left(walk->own);
    for (uint32_t c = 0; c < walk->instance->children.num_children; c++) {
        if (is_dropped(walk, c))
            continue;
        at->us[c] = (float)(tune_median(samples.ns[c], samples.rounds) / samples.forwards / 1e3);
        if (tune_is_faster(samples.ns[c], samples.ns[holder], samples.rounds,
                           walk->own->options.margin))
            holder = c;
    }
    at->choice = (uint8_t)holder;
    at->from = TUNE_MEASURED;
}

/* ---- All classes ----------------------------------------------------------------------------- */

/* A decision for a candidate that was found wrong later is void. */
static void forget_dropped(struct walk *walk)
{
    for (uint32_t g = 0; g < walk->own->num_groups; g++)
        for (uint32_t i = 0; i < TUNE_CLASSES; i++) {
            tune_class *at = &walk->own->groups[g].classes[i];
            if (is_dropped(walk, at->choice))
                *at = (tune_class){0};
        }
}

static void measure_class(struct walk *walk, const struct class_id *id, const char *what)
{
    struct said said;
    tune_case *tune = NULL;
    uint32_t phase, batch, length, dropped = walk->own->dropped;
    tune_class_of(id->index, &phase, &batch, &length);
    if (tune_case_create(walk->instance, id->group, phase, id->num_seqs, id->kv_len,
                         walk->own->options.memory, &tune, listen(&said)) != ATTN_OK) {
        tune_log(walk->instance, ATTN_LOG_WARNING, "layers %s, %s: not measured: %s",
                 id->group->layers, what, said.text);
        return;
    }
    compare(walk, id, tune);
    if (walk->own->dropped != dropped)
        forget_dropped(walk);
    if (count_left(walk) > 1)
        decide(walk, id, tune);
    tune_case_destroy(tune);
}

static void visit(struct walk *walk, const struct class_id *id)
{
    char what[128];
    tune_class_text(id->index, what, sizeof what);
    if (walk->progress)
        walk->progress(walk->progress_ctx, ++walk->done, walk->total, what);
    if (now_ns() < walk->end_ns)
        measure_class(walk, id, what);
    else
        walk->late++;
}

/* The group before this one that is measured for both, or NULL. */
static const tune_group *find_alike(const tuning *own, uint32_t g)
{
    for (uint32_t before = 0; before < g; before++)
        if (strcmp(own->groups[before].text, own->groups[g].text) == 0)
            return &own->groups[before];
    return NULL;
}

/* Count the classes to decide, or visit them. */
static uint32_t each_class(struct walk *walk, int count_only)
{
    uint32_t found = 0;
    for (uint32_t g = 0; g < walk->own->num_groups; g++) {
        struct class_id id = {.group = &walk->own->groups[g]};
        const tune_group *alike = find_alike(walk->own, g);
        if (alike)
            memcpy(id.group->classes, alike->classes, sizeof alike->classes);
        if (alike || tune_why_not(id.group))
            continue;
        for (id.index = 0; id.index < TUNE_CLASSES; id.index++) {
            if (id.group->classes[id.index].from != TUNE_UNDECIDED ||
                !tune_class_exists(id.group, id.index, &id.num_seqs, &id.kv_len))
                continue;
            found++;
            if (!count_only && count_left(walk) > 1)
                visit(walk, &id);
        }
    }
    return found;
}

static void tell_why_not(const struct walk *walk)
{
    for (uint32_t g = 0; g < walk->own->num_groups; g++) {
        const char *why = tune_why_not(&walk->own->groups[g]);
        if (why)
            tune_log(walk->instance, ATTN_LOG_INFO, "layers %s go to %s: %s",
                     walk->own->groups[g].layers, name_of(walk, tune_first_left(walk->own)), why);
    }
}

attn_status tune_measure(attn_instance *instance, attn_progress progress, void *progress_ctx,
                         attn_error *error)
{
    struct walk walk = {.instance = instance,
                        .own = instance->own,
                        .progress = progress,
                        .progress_ctx = progress_ctx};
    (void)error;
    walk.end_ns = now_ns() + (int64_t)(walk.own->options.seconds * 1e9);
    if (instance->children.num_children < 2)
        return ATTN_OK;
    if (!tune_find_judge(instance)) {
        tune_log(instance, ATTN_LOG_WARNING, "nothing is measured: the host lacks %s",
                 ATTN_EXTENSION_JUDGE);
        return ATTN_OK;
    }
    /* Again, if one was dropped that had been chosen before. */
    for (uint32_t before = ~0u; before != walk.own->dropped;) {
        before = walk.own->dropped;
        walk.late = walk.done = 0;
        walk.total = each_class(&walk, 1);
        each_class(&walk, 0);
    }
    if (walk.late > 0)
        tune_log(instance, ATTN_LOG_WARNING,
                 "%u classes were not reached in %g s and go to %s; accepted: a larger `seconds`",
                 walk.late, walk.own->options.seconds, name_of(&walk, tune_first_left(walk.own)));
    tell_why_not(&walk);
    return ATTN_OK;
}
