/* SPDX-License-Identifier: Apache-2.0
 *
 * checks.c: the group COMP with stand-ins as children (stand_ins.h).
 */
#include "plugins/hybrid/tests/stand_ins/stand_ins.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 800, MAX_REASONS = 24 };

/* ---- Scenes ---------------------------------------------------------------------------------- */

/* How new tokens are read: alike, but where that is what the scene is about. */
static void draw_reading(struct stand_scene *scene)
{
    uint32_t first = draw_coin(&scene->draw) ? 0x3f : 0;
    for (int32_t l = 0; l < scene->num_leaves; l++)
        scene->leaves[l].reads =
            scene->reading && (l == 1 || draw_below(&scene->draw, 4) == 0) ? ~first & 0x3f : first;
}

static void scene_free(struct stand_scene *scene)
{
    stand_fell(scene);
    free(scene->log);
    free(scene->spare);
    free(scene->heap);
    stand_free_truth(scene);
    free(scene);
}

struct stand_scene *stand_make_scene(struct check_run *run, const struct stand_wishes *wishes)
{
    struct stand_scene *scene = calloc(1, sizeof *scene);
    if (!scene) {
        check_fail(run, "no memory");
        return NULL;
    }
    scene->run = run;
    scene->graph = wishes->graph;
    scene->measured = wishes->measured;
    scene->large_pages = wishes->measured && !wishes->store && run->index % 7 == 6;
    scene->at_border = wishes->measured && !wishes->store && run->index % 7 == 3;
    scene->many_heads = wishes->measured && !wishes->store && run->index % 7 == 1;
    scene->store = wishes->store;
    scene->other = (int32_t)wishes->other;
    scene->reading = !wishes->measured && run->index % 6 == 0;
    scene->draw.seed = wishes->other ? mix_absorb(run->seed, wishes->other) : run->seed;
    service_counter_init(&scene->counter, run->subject->services);
    scene->log = calloc(STAND_LOG, sizeof *scene->log);
    scene->spare = calloc(STAND_LOG, sizeof *scene->spare);
    scene->heap = aligned_alloc(256, STAND_HEAP);
    if (!scene->log || !scene->spare || !scene->heap)
        check_fail(run, "no memory");
    else if (!stand_find_types(scene, run->subject))
        check_skip(run, "%s is none of hybrid's composites", run->subject->type->name);
    else
        stand_draw_question(scene);
    if (run->code == CHECK_PASS &&
        stand_grow(scene, scene->measured || scene->reading ? 1 : 1 + run->index % 3)) {
        draw_reading(scene);
        stand_deal(scene);
        return scene;
    }
    scene_free(scene);
    return NULL;
}

/* What is said first is what a child has seen. */
void stand_close_scene(struct stand_scene *scene)
{
    if (scene->wrong[0])
        check_fail(scene->run, "%s", scene->wrong);
    scene_free(scene);
}

static bool comes(const struct stand_scene *scene, const struct stand_leaf *leaf)
{
    bool found = false;
    for (int32_t g = 0; g < scene->num_groups; g++)
        found |= leaf->share[g].layers != 0;
    return found;
}

/* ---- COMP-02 --------------------------------------------------------------------------------- */

static bool ask(struct stand_scene *scene, int32_t group, uint32_t room, attn_verdict *verdict,
                attn_reason reasons[MAX_REASONS])
{
    const struct stand_node *root = &scene->nodes[0];
    host_error error;
    host_error_init(&error);
    for (int r = 0; r < MAX_REASONS; r++)
        reasons[r] = (attn_reason){.struct_size = sizeof reasons[r]};
    *verdict = (attn_verdict){
        .struct_size = sizeof *verdict, .reasons_capacity = room, .reasons = reasons};
    attn_status status = root->backend->query(root->backend, &root->options->view, &root->services,
                                              &scene->problems[group], verdict, &error.base);
    if (status != ATTN_OK)
        check_fail(scene->run, "query: %s", host_error_text(&error));
    return status == ATTN_OK;
}

static void judge_number(struct stand_scene *scene, const char *what, uint64_t got,
                         uint64_t accepted)
{
    if (got != accepted)
        check_fail(scene->run, "%s %llu: accepted %llu, by what the children answer", what,
                   (unsigned long long)got, (unsigned long long)accepted);
}

static void judge_bytes(struct stand_scene *scene, const char *what, uint64_t got, uint64_t least)
{
    if (got < least)
        check_fail(scene->run, "%s %llu: accepted %llu or more, by what the children answer", what,
                   (unsigned long long)got, (unsigned long long)least);
}

static void judge_yes(struct stand_scene *scene, int32_t group)
{
    attn_verdict verdict, merged;
    attn_reason reasons[MAX_REASONS];
    struct stand_share whole = stand_whole(scene, group, &scene->bounds);
    stand_merge(&scene->nodes[0], &whole, &merged);
    if (!ask(scene, group, MAX_REASONS, &verdict, reasons))
        return;
    if (stand_reads_apart(scene)) {
        if (verdict.supported)
            check_fail(scene->run,
                       "group %d is accepted, whose new tokens two children read in "
                       "two ways in one mode",
                       group);
        return;
    }
    if (!verdict.supported) {
        check_fail(scene->run,
                   "group %d is refused: %s: %s: accepted, for each child serves all "
                   "that is routed to it",
                   group, reasons[0].child, reasons[0].got);
        return;
    }
    judge_number(scene, "graph_level", verdict.graph_level, merged.graph_level);
    judge_number(scene, "traits", verdict.traits, merged.traits);
    judge_number(scene, "reads_new_kv_unquantised", verdict.reads_new_kv_unquantised,
                 merged.reads_new_kv_unquantised);
    judge_number(scene, "graph_seq_len_fill", (uint64_t)verdict.graph_seq_len_fill,
                 (uint64_t)merged.graph_seq_len_fill);
    judge_number(scene, "host_arrays", verdict.host_arrays, merged.host_arrays);
    judge_number(scene, "cost_hint * 4", (uint64_t)(verdict.cost_hint * 4),
                 (uint64_t)(merged.cost_hint * 4));
    judge_bytes(scene, "device_bytes", verdict.device_bytes, merged.device_bytes);
    judge_bytes(scene, "pinned_bytes", verdict.pinned_bytes, merged.pinned_bytes);
    judge_bytes(scene, "host_bytes", verdict.host_bytes, merged.host_bytes);
}

/* Reasons for which there is no room are counted all the same, and not written. */
static void judge_room(struct stand_scene *scene, int32_t group, uint32_t count)
{
    attn_verdict verdict;
    attn_reason reasons[MAX_REASONS];
    for (uint32_t room = 0; room < count && room < MAX_REASONS; room++) {
        if (!ask(scene, group, room, &verdict, reasons))
            return;
        if (verdict.num_reasons != count)
            check_fail(scene->run, "with room for %u reasons query counts %u, with room for %d %u",
                       room, verdict.num_reasons, MAX_REASONS, count);
        if (reasons[room].code != 0)
            check_fail(scene->run, "with room for %u reasons query writes more", room);
    }
}

/* Has a leaf all its reasons among these, in its words and with its path? */
static bool is_named(struct stand_scene *scene, const struct stand_leaf *leaf,
                     const attn_reason *reasons, uint32_t count)
{
    char path[96];
    int own = 0;
    stand_path(scene, leaf->index, "/", path);
    for (uint32_t r = 0; r < count && r < MAX_REASONS; r++)
        own += strcmp(reasons[r].child, path) == 0 && strcmp(reasons[r].got, STAND_WORDS) == 0;
    return own >= STAND_REASONS;
}

/* A leaf says no, alone or with the one after it: so does the composite, in its words and with its path. */
static void judge_no(struct stand_scene *scene, struct stand_leaf *leaf, int32_t group)
{
    attn_verdict verdict;
    attn_reason reasons[MAX_REASONS];
    char path[96];
    struct stand_leaf *with =
        &scene->leaves[(leaf->index + scene->run->index % 2) % scene->num_leaves];
    with = with->share[group].layers ? with : leaf;
    leaf->refuses = with->refuses = true;
    stand_path(scene, leaf->index, "/", path);
    bool good = ask(scene, group, MAX_REASONS, &verdict, reasons);
    if (good)
        judge_room(scene, group, verdict.num_reasons);
    leaf->refuses = with->refuses = false;
    bool named = good && is_named(scene, leaf, reasons, verdict.num_reasons) &&
                 is_named(scene, with, reasons, verdict.num_reasons);
    if (good && verdict.supported)
        check_fail(scene->run, "the child %s refuses group %d, and the composite accepts it", path,
                   group);
    else if (good && !named)
        check_fail(scene->run, "the child %s refuses group %d, and no reason is its own", path,
                   group);
}

static void run_verdict(struct check_run *run)
{
    struct stand_scene *scene = stand_make_scene(run, &(struct stand_wishes){.graph = false});
    for (int32_t g = 0; scene && g < scene->num_groups && run->code == CHECK_PASS; g++) {
        judge_yes(scene, g);
        for (int32_t l = 0; l < scene->num_leaves && run->code == CHECK_PASS; l++) {
            struct stand_leaf *leaf = &scene->leaves[l];
            bool asked = leaf->asked >> g & 1u;
            if (leaf->share[g].layers && !asked)
                check_fail(run, "%s is not queried about group %d, which is routed to it",
                           leaf->name, g);
            if (leaf->share[g].layers)
                judge_no(scene, leaf, g);
        }
    }
    if (scene)
        stand_close_scene(scene);
}

/* ---- Life ------------------------------------------------------------------------------------ */

struct life {
    struct stand_scene *scene;
    attn_instance *instance;
    attn_metadata *metadata;
    attn_memory_size unprepared; /* what metadata_size said before prepare */
    uint32_t forms;
    char *blocks[ATTN_REGION_COUNT];
    uint64_t block_bytes[ATTN_REGION_COUNT];
    host_error error;
};

static const attn_backend_ops *ops_of(const struct life *life)
{
    return life->scene->nodes[0].backend->ops;
}

static bool good(struct life *life, attn_status status, const char *call)
{
    if (status != ATTN_OK)
        check_fail(life->scene->run, "%s: %s", call, host_error_text(&life->error));
    return status == ATTN_OK;
}

/* The extension that a tree has: its children's, unless two of them differ. */
static const void *extension_of(const struct stand_node *node, bool *differ)
{
    const void *found = NULL;
    *differ = false;
    for (int32_t c = 0; c < node->num_children; c++) {
        const struct stand_scene *scene = node->scene;
        bool inner = false;
        const struct stand_leaf *leaf = node->child[c] < 0 ? NULL : &scene->leaves[node->child[c]];
        const void *answer = leaf ? (leaf->made ? leaf->extension : NULL)
                                  : extension_of(&scene->nodes[-1 - node->child[c]], &inner);
        *differ |= answer && found && answer != found;
        found = answer ? answer : found;
    }
    return *differ ? NULL : found;
}

/* The union of the children's, each made once, and what they have in common. */
static void judge_instance(struct life *life)
{
    struct stand_scene *scene = life->scene;
    uint32_t forms = 0;
    bool differ;
    for (int32_t l = 0; l < scene->num_leaves; l++) {
        const struct stand_leaf *leaf = &scene->leaves[l];
        int32_t once = comes(scene, leaf);
        if (leaf->made != once || leaf->prepared != once)
            stand_object(scene, "%s is made %d times and prepared %d times: accepted %d",
                         leaf->name, leaf->made, leaf->prepared, once);
        forms |= once ? leaf->forms : 0;
    }
    if (life->forms != forms)
        stand_object(scene, "index_forms %u: accepted %u, the union of the children's", life->forms,
                     forms);
    const void *extension = ops_of(life)->get_extension(life->instance, STAND_EXTENSION);
    const void *accepted = extension_of(&scene->nodes[0], &differ);
    if (ops_of(life)->get_extension(life->instance, ATTN_EXTENSION_CODE_PATHS))
        stand_object(scene, "get_extension passes on %s, which goes by a child's own metadata",
                     ATTN_EXTENSION_CODE_PATHS);
    if (extension != accepted)
        stand_object(scene, "get_extension gives %s: accepted %s",
                     extension ? "what one child has" : "nothing",
                     accepted ? "what all children have" : "nothing, for children differ");
}

static uint32_t kind_of(const struct stand_scene *scene)
{
    return scene->graph ? ATTN_METADATA_GRAPH : ATTN_METADATA_EAGER;
}

static bool ask_size(struct life *life, attn_memory_size *size)
{
    *size = (attn_memory_size){.struct_size = sizeof *size};
    return good(life,
                ops_of(life)->metadata_size(life->instance, kind_of(life->scene),
                                            &life->scene->given, size, &life->error.base),
                "metadata_size");
}

static void fill_region(const attn_memory *memory, uint32_t r)
{
    if (memory->size[r] > 0)
        memset(memory->base[r], r % ATTN_MEMORY_COUNT == ATTN_MEMORY_ZEROED ? 0 : 0xFF,
               memory->size[r]);
}

/* ---- Failures -------------------------------------------------------------------------------- */

/* A leaf has failed: the composite says so in its words, with its path; in create it is the host
 * that says whose words they are. */
static void judge_words(struct life *life, const struct stand_leaf *leaf, attn_status status,
                        const char *call)
{
    const char *text = host_error_text(&life->error);
    char path[96] = "";
    if (life->instance)
        stand_path(life->scene, leaf->index, ": child ", path);
    if (status != ATTN_INVALID_ARGUMENT || !strstr(text, path) || !strstr(text, STAND_WORDS))
        stand_object(life->scene,
                     "%s fails to %s, and the composite says %d '%s': accepted %d '%s: %s'",
                     leaf->name, call, status, text, ATTN_INVALID_ARGUMENT, path, STAND_WORDS);
    host_error_init(&life->error);
}

/* What other children were given before one has failed is gone again. */
static void judge_undone(struct stand_scene *scene, const struct stand_leaf *failed,
                         const char *call, bool of_instances)
{
    for (int32_t l = 0; l < scene->num_leaves; l++) {
        const struct stand_leaf *leaf = &scene->leaves[l];
        if (leaf->live_metadata || (of_instances && leaf->live))
            stand_object(scene, "%s fails to %s, and %d instances and %d metadata of %s are left",
                         failed->name, call, leaf->live, leaf->live_metadata, leaf->name);
    }
}

/* Each in turn; NULL: nothing is routed to it. Candidates that are measured may fail. */
static struct stand_leaf *failing_leaf(struct stand_scene *scene)
{
    struct stand_leaf *leaf = &scene->leaves[scene->run->index % scene->num_leaves];
    return scene->measured || !comes(scene, leaf) ? NULL : leaf;
}

static void judge_failed_create(struct life *life)
{
    struct stand_scene *scene = life->scene;
    const struct stand_node *root = &scene->nodes[0];
    struct stand_leaf *leaf = failing_leaf(scene);
    attn_instance *instance = NULL;
    if (!leaf)
        return;
    leaf->fails = STAND_CREATE;
    attn_status status =
        root->backend->create(root->backend, scene->problems, (uint32_t)scene->num_groups,
                              &root->options->view, &root->services, &instance, &life->error.base);
    leaf->fails = STAND_NO_CALL;
    judge_words(life, leaf, status, "create");
    if (status == ATTN_OK)
        root->backend->ops->destroy(instance);
    else if (instance)
        stand_object(scene, "create fails, but sets its output");
    judge_undone(scene, leaf, "create", true);
    for (int32_t l = 0; l < scene->num_leaves; l++)
        scene->leaves[l].made = 0;
}

/* It is made anew in the same memory afterwards. */
static void judge_failed_metadata(struct life *life, const attn_memory *memory)
{
    struct stand_scene *scene = life->scene;
    struct stand_leaf *leaf = failing_leaf(scene);
    attn_metadata *metadata = NULL;
    if (!leaf)
        return;
    leaf->fails = STAND_METADATA;
    attn_status status = ops_of(life)->metadata_create(
        life->instance, kind_of(scene), &scene->given, memory, &metadata, &life->error.base);
    leaf->fails = STAND_NO_CALL;
    if (status == ATTN_OK) /* with lower bounds nothing reaches it */
        ops_of(life)->metadata_destroy(metadata);
    else
        judge_words(life, leaf, status, "make metadata");
    if (status != ATTN_OK && metadata)
        stand_object(scene, "metadata_create fails, but sets its output");
    judge_undone(scene, leaf, "make metadata", false);
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
        fill_region(memory, r);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Whatever prepare has found out, memory is what it was. */
static void judge_size(const struct life *life)
{
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
        if (life->scene->size.size[r] != life->unprepared.size[r] ||
            life->scene->size.alignment[r] != life->unprepared.alignment[r])
            stand_object(life->scene,
                         "metadata_size, region %u: %llu bytes, aligned to %llu; before prepare "
                         "%llu, %llu",
                         r, (unsigned long long)life->scene->size.size[r],
                         (unsigned long long)life->scene->size.alignment[r],
                         (unsigned long long)life->unprepared.size[r],
                         (unsigned long long)life->unprepared.alignment[r]);
}

static bool make_instance(struct life *life)
{
    struct stand_scene *scene = life->scene;
    const struct stand_node *root = &scene->nodes[0];
    attn_status status = root->backend->create(root->backend, scene->problems,
                                               (uint32_t)scene->num_groups, &root->options->view,
                                               &root->services, &life->instance, &life->error.base);
    if (!good(life, status, "create") || !ask_size(life, &life->unprepared))
        return false;
    if (root->backend->ops->prepare &&
        !good(life, root->backend->ops->prepare(life->instance, NULL, NULL, &life->error.base),
              "prepare"))
        return false;
    life->forms = root->backend->ops->index_forms(life->instance);
    judge_instance(life);
    return true;
}

/* As large and as aligned as was asked for and no more, between red zones. */
static bool make_region(struct life *life, uint32_t r, attn_memory *memory)
{
    struct stand_scene *scene = life->scene;
    uint64_t size = scene->size.size[r];
    uint64_t alignment = scene->size.alignment[r] ? scene->size.alignment[r] : 1;
    if (size == 0)
        return true;
    life->block_bytes[r] = size + 3 * alignment + 2 * STAND_RED;
    char *block = life->blocks[r] = malloc(life->block_bytes[r]);
    if (!block)
        return false;
    memset(block, 0xA5, life->block_bytes[r]);
    uint64_t at = (uint64_t)(uintptr_t)block + STAND_RED;
    at = (at + alignment - 1) / alignment * alignment;
    at += at / alignment % 2 == 0 ? alignment : 0;
    char *base = block + (at - (uint64_t)(uintptr_t)block);
    memory->base[r] = scene->regions[r] = base;
    memory->size[r] = size;
    fill_region(memory, r);
    return true;
}

static void judge_red_zones(const struct life *life)
{
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
        const char *block = life->blocks[r], *base = life->scene->regions[r];
        uint64_t size = life->scene->size.size[r];
        for (uint64_t i = 0; block && i < life->block_bytes[r]; i++)
            if ((block + i < base || block + i >= base + size) && (unsigned char)block[i] != 0xA5) {
                stand_object(life->scene, "region %u: bytes outside it were overwritten", r);
                return;
            }
    }
}

static bool has_odd_page(const struct stand_scene *scene)
{
    bool found = false;
    for (int32_t g = 0; g < scene->num_groups; g++)
        found |= (scene->problems[g].page_size & (scene->problems[g].page_size - 1)) != 0;
    return found;
}

/* Bounds of metadata: those of create, or lower ones. */
static void draw_given(struct stand_scene *scene)
{
    struct draw *draw = &scene->draw;
    attn_bounds *given = &scene->given;
    *given = scene->bounds;
    if (!scene->at_border && draw_below(draw, scene->measured ? 4 : 2) == 0) {
        given->max_seqs = 1 + draw_below(draw, given->max_seqs);
        given->max_kv_len = STAND_Q_LEN + 6 + draw_below(draw, given->max_kv_len - 11);
    }
    if (draw_below(draw, 3) == 0)
        given->modes &= 1 + (uint32_t)draw_below(draw, 62);
    if (scene->graph)
        given->modes &= ~ATTN_MODE_BIT(ATTN_MODE_MIXED);
    if (given->modes == 0)
        given->modes = scene->bounds.modes;
    /* More often where whole pages are no powers of two: few sums lie between keys and pages. */
    if (scene->nodes[0].type != STAND_LINEAR && draw_below(draw, 4) < (has_odd_page(scene) ? 3 : 1))
        given->max_kv_tokens = 60;
    if (scene->graph)
        given->modes &= ~ATTN_MODE_BIT(ATTN_MODE_MIXED);
}

static bool make_metadata(struct life *life)
{
    struct stand_scene *scene = life->scene;
    attn_memory memory = {.struct_size = sizeof memory};
    scene->recording = true;
    if (!ask_size(life, &scene->size))
        return false;
    judge_size(life);
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
        if (!make_region(life, r, &memory)) {
            check_fail(scene->run, "no memory for region %u", r);
            return false;
        }
    judge_failed_metadata(life, &memory);
    return good(life,
                ops_of(life)->metadata_create(life->instance, kind_of(scene), &scene->given,
                                              &memory, &life->metadata, &life->error.base),
                "metadata_create");
}

static void life_end(struct life *life)
{
    struct stand_scene *scene = life->scene;
    if (life->metadata)
        ops_of(life)->metadata_destroy(life->metadata);
    judge_red_zones(life);
    if (life->instance)
        ops_of(life)->destroy(life->instance);
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
        free(life->blocks[r]);
    for (int32_t l = 0; l < scene->num_leaves; l++)
        if (scene->leaves[l].live || scene->leaves[l].live_metadata)
            stand_object(scene, "%d instances and %d metadata of %s are left",
                         scene->leaves[l].live, scene->leaves[l].live_metadata,
                         scene->leaves[l].name);
    if (service_counter_left(&scene->counter))
        stand_object(scene, "the composites leave %s", service_counter_left(&scene->counter));
}

static bool life_begin(struct life *life, struct stand_scene *scene)
{
    *life = (struct life){.scene = scene};
    host_error_init(&life->error);
    draw_given(scene);
    judge_failed_create(life);
    return make_instance(life) && make_metadata(life);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

struct expectation {
    int32_t leaf[STAND_SEQS];
    uint32_t mode[STAND_SEQS];
    struct stand_row rows[STAND_TOKENS];
    int32_t times[STAND_TOKENS];
    int32_t seq[STAND_TOKENS];
    int32_t count;
    uint32_t spare; /* rows of no sequence that have reached a child, a bit each */
};

/* Which child gets which sequence. */
static void expect_sequences(struct stand_scene *scene, const struct stand_batch *batch,
                             int32_t layer, struct expectation *expected)
{
    struct stand_share bounds = stand_whole(scene, -1, &scene->given);
    struct stand_place place = {.batch = &batch->batch};
    int32_t first;
    struct stand_part part = {.mode = batch->batch.mode,
                              .count = batch->batch.num_seqs,
                              .num_decode = batch->batch.num_decode_seqs,
                              .first_decode = batch->batch.first_decode_seq,
                              .spare = stand_spare_rows(&place, &first),
                              .max_kv_len = batch->batch.max_kv_len,
                              .layer = layer};
    stand_assign(&scene->nodes[0], &part, &bounds, expected->leaf, expected->mode);
}

static void expect_rows(struct stand_scene *scene, const struct stand_batch *batch, int32_t layer,
                        const attn_forward_args *args, struct expectation *expected)
{
    memset(expected, 0, sizeof *expected);
    expect_sequences(scene, batch, layer, expected);
    for (int32_t s = 0; s < batch->batch.num_seqs; s++) {
        struct stand_place place = {.batch = &batch->batch,
                                    .args = args,
                                    .group = &scene->groups[scene->layers[layer].group],
                                    .forms = scene->leaves[expected->leaf[s]].forms,
                                    .as_decode = expected->mode[s] == ATTN_MODE_DECODE};
        int32_t count;
        stand_first_row(&place, s, &count);
        for (int32_t t = 0; t < count; t++) {
            struct stand_row *row = &expected->rows[expected->count];
            stand_read_row(&place, s, t, row);
            row->leaf = expected->leaf[s];
            row->field[STAND_MODE] = expected->mode[s];
            expected->seq[expected->count++] = s;
        }
    }
}

/* One row that a child has computed. */
static void judge_row(struct stand_scene *scene, const struct stand_row *row, int32_t layer,
                      struct expectation *expected)
{
    const struct stand_leaf *leaf = &scene->leaves[row->leaf];
    enum stand_field field;
    int32_t r = 0, out = STAND_ADDRESS + ATTN_ROLE_OUT, id = scene->layers[layer].id;
    while (r < expected->count && expected->rows[r].field[out] != row->field[out])
        r++;
    if (r == expected->count) {
        stand_object(scene, "layer %d: %s is given a row that is none of the batch's", id,
                     leaf->name);
        return;
    }
    expected->times[r]++;
    const struct stand_row *right = &expected->rows[r];
    const char *differs = stand_difference(row, right, &field);
    if (row->leaf != right->leaf) {
        if (!scene->wrong[0])
            scene->placed = row->leaf, scene->right = right->leaf;
        stand_object(scene, "layer %d, sequence %d: the row reaches %s: accepted %s", id,
                     expected->seq[r], leaf->name, scene->leaves[right->leaf].name);
    } else if (differs)
        stand_object(scene,
                     "layer %d, sequence %d: %s gets another row: %s %lld: accepted "
                     "%lld",
                     id, expected->seq[r], leaf->name, differs, (long long)row->field[field],
                     (long long)right->field[field]);
}

/* Number of the row at this address, of `count` that were computed or are expected; -1 = none. */
static int32_t find_row(const struct stand_row *rows, int32_t count, int64_t address)
{
    for (int32_t r = 0; r < count; r++)
        if (rows[r].field[STAND_ADDRESS + ATTN_ROLE_OUT] == address)
            return r;
    return -1;
}

/* A row that a child has as padding: one of no sequence, or one that is computed after it. */
static void judge_spare(struct stand_scene *scene, const struct stand_spare *spare, int32_t layer,
                        const struct stand_place *whole, struct expectation *expected)
{
    const char *name = scene->leaves[spare->leaf].name;
    int32_t id = scene->layers[layer].id, first, count = stand_spare_rows(whole, &first);
    if (find_row(scene->log, spare->before, spare->address) >= 0)
        stand_object(scene, "layer %d: %s has a row as padding that is computed already", id, name);
    if (find_row(expected->rows, expected->count, spare->address) >= 0)
        return;
    for (int32_t n = 0; n < count; n++)
        if (stand_out_address(whole, first + n) == spare->address) {
            expected->spare |= 1u << n;
            return;
        }
    stand_object(scene, "layer %d: %s is given a row of padding that is none of the batch's", id,
                 name);
}

static void judge_padding(struct stand_scene *scene, int32_t layer, const struct stand_place *whole,
                          struct expectation *expected)
{
    int32_t first, count = stand_spare_rows(whole, &first);
    for (int32_t r = 0; r < scene->num_spare; r++)
        judge_spare(scene, &scene->spare[r], layer, whole, expected);
    if (expected->spare != (1u << count) - 1)
        stand_object(scene, "layer %d: of %d rows of no sequence some reach no child (0x%x do)",
                     scene->layers[layer].id, count, expected->spare);
}

static void judge_layer(struct life *life, struct stand_batch *batch, int32_t layer,
                        struct expectation *expected)
{
    struct stand_scene *scene = life->scene;
    struct stand_args args;
    stand_draw_args(scene, batch, layer, &args);
    expect_rows(scene, batch, layer, &args.args, expected);
    bool decode = batch->batch.mode == ATTN_MODE_DECODE;
    const struct stand_place whole = {.batch = &batch->batch, .args = &args.args};
    scene->logged = scene->num_spare = 0;
    attn_status status = (decode ? ops_of(life)->forward_decode : ops_of(life)->forward_extend)(
        life->metadata, scene->layers[layer].id, &args.args, NULL, &life->error.base);
    if (!good(life, status, "forward"))
        return;
    for (int32_t r = 0; r < scene->logged; r++)
        judge_row(scene, &scene->log[r], layer, expected);
    for (int32_t r = 0; r < expected->count; r++)
        if (expected->times[r] != 1)
            stand_object(scene,
                         "layer %d, sequence %d: the row is computed %d times: accepted once",
                         scene->layers[layer].id, expected->seq[r], expected->times[r]);
    judge_padding(scene, layer, &whole, expected);
}

/* A child refuses the plan: the composite says so, with its path, and has no batch then. */
static void judge_refused_plan(struct life *life, const struct stand_batch *batch,
                               struct expectation *expected)
{
    struct stand_scene *scene = life->scene;
    struct stand_args args;
    expect_sequences(scene, batch, 0, expected);
    struct stand_leaf *leaf = &scene->leaves[expected->leaf[batch->batch.num_seqs - 1]];
    leaf->fails = STAND_PLAN;
    leaf->refused = false;
    scene->batch_number++;
    attn_status status =
        ops_of(life)->init_forward_metadata(life->metadata, &batch->batch, NULL, &life->error.base);
    leaf->fails = STAND_NO_CALL;
    if (scene->measured && status == ATTN_OK && !leaf->refused)
        return; /* another child was chosen; judge_row() says whether it may be */
    judge_words(life, leaf, status, "plan");
    stand_draw_args(scene, batch, 0, &args);
    bool decode = batch->batch.mode == ATTN_MODE_DECODE;
    status = (decode ? ops_of(life)->forward_decode : ops_of(life)->forward_extend)(
        life->metadata, scene->layers[0].id, &args.args, NULL, &life->error.base);
    if (status != ATTN_BAD_STATE)
        stand_object(scene, "forward after a plan that failed: status %d: accepted %d", status,
                     ATTN_BAD_STATE);
    host_error_init(&life->error);
}

/* Batch `b`'s: where there are few cases each mode in turn. */
static uint32_t draw_mode(struct stand_scene *scene, int b)
{
    uint32_t mode = (uint32_t)b % ATTN_MODE_COUNT, modes = scene->given.modes;
    if (scene->measured && modes >> mode & 1u)
        return mode;
    mode = ATTN_MODE_MIXED;
    if (modes >> mode & 1u && draw_coin(&scene->draw))
        return mode;
    do
        mode = (uint32_t)draw_below(&scene->draw, ATTN_MODE_COUNT);
    while (!(modes >> mode & 1u));
    return mode;
}

/* Has it more keys than the metadata is for? Who is given the whole of it may refuse it, and who
 * splits it has to: neither of its halves need be beyond the bound. */
static bool has_too_many_keys(const struct stand_scene *scene, const attn_batch *batch)
{
    bool found = false;
    for (uint32_t g = 0; g < batch->num_kv_groups; g++) {
        const attn_kv_batch *kv = &batch->kv_groups[g];
        const int32_t *lens = kv->kv_lens.device ? kv->kv_lens.device : batch->seq_lens.device;
        int64_t keys = 0;
        for (int32_t s = 0; s < batch->num_seqs; s++)
            keys += (lens[s] + kv->page_size - 1) / kv->page_size * kv->page_size;
        found |= keys > scene->given.max_kv_tokens;
    }
    return found;
}

static void judge_batch(struct life *life, int b, struct expectation *expected)
{
    struct stand_scene *scene = life->scene;
    struct check_run *run = scene->run;
    struct stand_batch batch;
    if (!stand_draw_batch(scene, draw_mode(scene, b), life->forms, &batch)) {
        check_fail(run, "no memory for a batch");
        return;
    }
    check_note(run, "mode %u, %d sequences, %d of them of DECODE", batch.batch.mode,
               batch.batch.num_seqs, batch.batch.num_decode_seqs);
    bool beyond = has_too_many_keys(scene, &batch.batch);
    if (!beyond && draw_below(&scene->draw, 6) == 0)
        judge_refused_plan(life, &batch, expected);
    scene->batch_number++;
    attn_status status =
        ops_of(life)->init_forward_metadata(life->metadata, &batch.batch, NULL, &life->error.base);
    bool is_split = batch.batch.mode == ATTN_MODE_MIXED && scene->nodes[0].splits;
    if (beyond && (is_split || status == ATTN_INVALID_ARGUMENT)) {
        if (status != ATTN_INVALID_ARGUMENT)
            stand_object(scene, "a MIXED batch of more keys than max_kv_tokens %lld is planned",
                         (long long)scene->given.max_kv_tokens);
        host_error_init(&life->error);
        stand_free_batch(&batch);
        return;
    }
    good(life, status, "init_forward_metadata");
    for (int32_t l = 0; l < scene->num_layers && !scene->wrong[0] && run->code == CHECK_PASS; l++)
        judge_layer(life, &batch, l, expected);
    stand_free_batch(&batch);
}

void stand_run_life(struct stand_scene *scene, int batches)
{
    if (stand_reads_apart(scene)) /* refused: COMP-02 */
        return;
    struct expectation *expected = calloc(1, sizeof *expected);
    struct life life;
    bool begun = expected && life_begin(&life, scene);
    if (!expected)
        check_fail(scene->run, "no memory");
    for (int b = 0; begun && b < batches && !scene->wrong[0] && scene->run->code == CHECK_PASS; b++)
        judge_batch(&life, b, expected);
    if (expected)
        life_end(&life);
    free(expected);
}

static void run_scene(struct check_run *run, bool graph, int batches)
{
    struct stand_scene *scene = stand_make_scene(run, &(struct stand_wishes){.graph = graph});
    if (!scene)
        return;
    stand_run_life(scene, batches);
    stand_close_scene(scene);
}

static void run_memory(struct check_run *run)
{
    run_scene(run, false, 1);
}

static void run_rows(struct check_run *run)
{
    run_scene(run, false, STAND_BATCHES);
}

static void run_graphs(struct check_run *run)
{
    run_scene(run, true, STAND_BATCHES);
}

/* ---- Table ----------------------------------------------------------------------------------- */

static int32_t count_cases(const struct check_subject *subject)
{
    (void)subject;
    return CASES;
}

const struct check stand_checks[] = {
    {"COMP-02", "stand_ins",
     "a composite's verdict follows from the answers of the children that its options "
     "can route work to, at any depth",
     CHECK_NEEDS_CHILD, count_cases, run_verdict, NULL, NULL, NULL},
    {"COMP-03", "stand_ins",
     "children that ask for different index forms and memory each get their own, and none of "
     "another child's",
     CHECK_NEEDS_CHILD, count_cases, run_memory, NULL, NULL, NULL},
    {"COMP-08", "rows",
     "each row of a batch, with all its operands, reaches exactly once the one child "
     "that the options name for it, and no child gets anything else",
     CHECK_NEEDS_CHILD, count_cases, run_rows, NULL, NULL, NULL},
    {"COMP-07", "graphs", "with GRAPH metadata each row reaches the child that the bounds pick",
     CHECK_NEEDS_CHILD, count_cases, run_graphs, NULL, NULL, NULL},
    {"COMP-08", "measured",
     "a measuring composite routes rows to the fastest child whose results are right",
     CHECK_NEEDS_CHILD | CHECK_ALONE, stand_count_measured, stand_run_measured, NULL, NULL, NULL},
    {.rule = "COMP-08",
     .name = "stored",
     .sentence = "choices that were measured before are taken from the store, also where another "
                 "process has written to it since",
     .needs = CHECK_NEEDS_CHILD | CHECK_ALONE,
     .count = stand_count_stored,
     .run = stand_run_stored},
    {"WORK-02", "measured", "measuring children leaks no memory", CHECK_NEEDS_CHILD | CHECK_ALONE,
     stand_count_measured_size, stand_run_measured_size, NULL, NULL, NULL},
    {.rule = NULL},
};
