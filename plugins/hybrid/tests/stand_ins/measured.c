/* SPDX-License-Identifier: Apache-2.0
 *
 * measured.c: what a composite that measures its children chooses, and reads from a store of
 * what was measured before: stand-ins (stand_ins.h) are in time or late, and one of them is wrong.
 */
#include "plugins/hybrid/tests/stand_ins/stand_ins.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MEASURED_CASES = 14, SIZED_CASES = 3, STORED_CASES = 2 };

/* ---- How many -------------------------------------------------------------------------------- */

static bool measures(const struct check_subject *subject)
{
    return strcmp(subject->type->name, "autotune") == 0;
}

int32_t stand_count_measured(const struct check_subject *subject)
{
    return measures(subject) ? MEASURED_CASES : 1;
}

int32_t stand_count_measured_size(const struct check_subject *subject)
{
    return measures(subject) ? SIZED_CASES : 1;
}

int32_t stand_count_stored(const struct check_subject *subject)
{
    return measures(subject) ? STORED_CASES : 1;
}

/* ---- Measured choices ------------------------------------------------------------------------ */

/* Is there a batch of this class within the bounds? */
static bool has_class(const struct stand_scene *scene, int32_t class)
{
    static const int32_t least[] = {1, 1, 2, 2, 5, 5};
    uint32_t mode = class < 6 ? ATTN_MODE_EXTEND : ATTN_MODE_DECODE;
    uint32_t modes = ATTN_MODE_BIT(mode);
    if (scene->nodes[0].splits)
        modes |= ATTN_MODE_BIT(ATTN_MODE_MIXED);
    return scene->bounds.modes & modes && scene->bounds.max_seqs >= least[class % 6] &&
           (class % 2 == 0 || scene->bounds.max_kv_len > 512);
}

/* Wrong, and the fastest: in one class of one group, or in all of them. Where no class is measured
 * the fault stays unseen. */
static bool make_wrong(struct stand_scene *scene, struct stand_leaf *leaf)
{
    int32_t first = draw_below(&scene->draw, STAND_CLASSES), class = first;
    bool all = draw_one_in(&scene->draw, 4) && !scene->many_heads;
    bool unwritten = draw_coin(&scene->draw) || scene->many_heads;
    if (scene->many_heads) /* the class of most rows */
        first = class = stand_class(false, scene->bounds.max_seqs, 1);
    while (!has_class(scene, class) && (class + 1) % STAND_CLASSES != first)
        class = (class + 1) % STAND_CLASSES;
    if (!has_class(scene, class))
        return false;
    leaf->wrong = unwritten ? STAND_UNWRITTEN : STAND_OTHER_NUMBER;
    leaf->wrong_group = scene->num_groups - 1;
    leaf->wrong_classes = all ? UINT32_MAX : 1u << class;
    return true;
}

/* Four candidates: the first is the slowest, the last is slow, the others are so in turns. The
 * first or the last is wrong, and then the fastest of all. */
static void set_candidates(struct stand_scene *scene)
{
    const struct stand_node *root = &scene->nodes[0];
    bool is_first = draw_one_in(&scene->draw, 3) && !scene->many_heads;
    int32_t wrong = is_first ? 0 : STAND_CHILDREN - 1;
    for (int32_t c = 0; c < root->num_children; c++) {
        struct stand_leaf *leaf = &scene->leaves[root->child[c]];
        if (c == wrong && make_wrong(scene, leaf))
            scene->first_left = wrong == 0;
        leaf->slow_ns = c == 0 ? 2 * STAND_SLOW_NS : STAND_SLOW_NS;
        for (int k = 0; k < STAND_CLASSES; k++)
            leaf->slow_classes |= (uint32_t)(root->choice[k] != c) << k;
    }
}

static bool may_measure(struct check_run *run)
{
    bool may = measures(run->subject);
    if (!may)
        check_skip(run, "%s measures nothing", run->subject->type->name);
    return may;
}

enum { ATTEMPTS = 3 };

/* A choice is judged by the samples that it was made by, never by the clock: where they leave open
 * which candidate is the fastest, the machine had other work to do, and it is tried again. */
static void skip_undecided(struct check_run *run)
{
    check_skip(run,
               "in %d attempts the fastest candidate took longer than a slow one in some sample: "
               "the machine is too busy to measure on",
               ATTEMPTS);
}

static void run_measured(struct check_run *run, int batches)
{
    bool open = true;
    for (int attempt = 1; attempt <= ATTEMPTS && open && run->code == CHECK_PASS; attempt++) {
        struct stand_scene *scene = stand_make_scene(run, &(struct stand_wishes){.measured = true});
        if (!scene)
            return;
        set_candidates(scene);
        stand_run_life(scene, batches);
        open =
            scene->placed != scene->right &&
            stand_is_undecided(scene, &scene->leaves[scene->right], &scene->leaves[scene->placed]);
        if (open)
            scene->wrong[0] = '\0';
        stand_close_scene(scene);
    }
    if (open && run->code == CHECK_PASS)
        skip_undecided(run);
}

void stand_run_measured(struct check_run *run)
{
    if (may_measure(run))
        run_measured(run, 2 * STAND_BATCHES);
}

void stand_run_measured_size(struct check_run *run)
{
    if (may_measure(run))
        run_measured(run, 0);
}

/* ---- Choices that were measured before ------------------------------------------------------- */

/* Do the samples leave any choice open? */
static bool leaves_open(const struct stand_scene *scene)
{
    const struct stand_node *root = &scene->nodes[0];
    for (int32_t right = 0; right < root->num_children; right++)
        for (int32_t c = 0; c < root->num_children; c++)
            if (c != right && stand_is_undecided(scene, &scene->leaves[root->child[right]],
                                                 &scene->leaves[root->child[c]]))
                return true;
    return false;
}

/* One of the scenes that share a store; false: its samples leave the choice open. `again`: what was
 * fast is slow now, and nothing is wrong: a choice that was not read would be another one. */
static bool run_with_store(struct check_run *run, const char *store, uint64_t other, bool again)
{
    const struct stand_wishes wishes = {.measured = true, .store = store, .other = other};
    struct stand_scene *scene = stand_make_scene(run, &wishes);
    if (!scene)
        return false;
    set_candidates(scene);
    for (int32_t l = 0; again && l < scene->num_leaves; l++) {
        scene->leaves[l].wrong = STAND_RIGHT;
        scene->leaves[l].slow_classes = ~scene->leaves[l].slow_classes;
        scene->first_left = 0;
    }
    stand_run_life(scene, again ? 2 * STAND_BATCHES : 0);
    bool decided = again || !leaves_open(scene);
    stand_close_scene(scene);
    return decided;
}

/* A scene measures, others do so with the same store, and it comes again. false: what it stored the
 * first time was left open by its samples. */
static bool share_store(struct check_run *run, const char *store)
{
    enum { OTHERS = 2 };
    bool decided = true;
    for (uint64_t n = 0; n <= OTHERS && decided && run->code == CHECK_PASS; n++)
        decided = run_with_store(run, store, n, false) || n > 0;
    return decided && run_with_store(run, store, 0, true);
}

enum { STORE_TEXT = 80 };

static bool write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    bool written = file && fputs(text, file) >= 0;
    return file && fclose(file) == 0 && written;
}

static bool has_text(const char *path, const char *text)
{
    char found[2 * STORE_TEXT] = "";
    FILE *file = fopen(path, "r");
    size_t length = file ? fread(found, 1, sizeof found - 1, file) : 0;
    if (file)
        fclose(file);
    return length == strlen(text) && strcmp(found, text) == 0;
}

/* prepare refuses what is no store, and leaves it as it is. */
static void judge_foreign(struct stand_scene *scene, const char *text)
{
    attn_instance *instance = NULL;
    host_error error;
    const struct stand_node *root = &scene->nodes[0];
    host_error_init(&error);
    CHECK_THAT(scene->run, write_text(scene->store, text), "%s: %s", scene->store, strerror(errno));
    attn_status status =
        root->backend->create(root->backend, scene->problems, (uint32_t)scene->num_groups,
                              &root->options->view, &root->services, &instance, &error.base);
    CHECK_THAT(scene->run, status == ATTN_OK, "create: %s", host_error_text(&error));
    status = root->backend->ops->prepare(instance, NULL, NULL, &error.base);
    if (status != ATTN_CONFIG_ERROR || !has_text(scene->store, text))
        check_fail(scene->run,
                   "prepare with a store that begins with '%.40s' gives %d '%s', and the file %s: "
                   "accepted %d, and that it stays",
                   text, status, host_error_text(&error),
                   has_text(scene->store, text) ? "stays" : "changes", ATTN_CONFIG_ERROR);
    root->backend->ops->destroy(instance);
}

/* Files that are like a store, which a scene has just written. */
static void try_foreign(struct check_run *run, const char *store)
{
    const struct stand_wishes wishes = {.measured = true, .store = store};
    char line[STORE_TEXT] = "", text[STORE_TEXT + 8];
    struct stand_scene *scene = stand_make_scene(run, &wishes);
    FILE *file = fopen(store, "r");
    if (!scene || !file || !fgets(line, sizeof line, file))
        check_fail(run, "no store is written");
    if (file)
        fclose(file);
    line[strcspn(line, "\n")] = '\0';
    static const struct {
        const char *before, *after;
        int cut; /* characters at the end */
    } ways[] = {{"", "0", 0}, {"", "", 1}, {"\n", "", 0}};
    for (size_t w = 0; w < sizeof ways / sizeof ways[0] && run->code == CHECK_PASS; w++) {
        snprintf(text, sizeof text, "%s%.*s%s\n", ways[w].before, (int)strlen(line) - ways[w].cut,
                 line, ways[w].after);
        judge_foreign(scene, text);
    }
    if (scene)
        stand_close_scene(scene);
}

void stand_run_stored(struct check_run *run)
{
    char folder[] = "/tmp/attnhost-check-XXXXXX", store[sizeof folder + 8];
    if (!may_measure(run))
        return;
    CHECK_THAT(run, mkdtemp(folder), "no folder for a store: %s", strerror(errno));
    snprintf(store, sizeof store, "%s/store", folder);
    bool decided = false;
    for (int attempt = 1; attempt <= ATTEMPTS && !decided && run->code == CHECK_PASS; attempt++) {
        remove(store);
        decided = share_store(run, store);
    }
    if (run->code == CHECK_PASS)
        try_foreign(run, store);
    if (!decided && run->code == CHECK_PASS)
        skip_undecided(run);
    remove(store);
    rmdir(folder);
}
