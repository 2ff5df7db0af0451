/* SPDX-License-Identifier: Apache-2.0
 *
 * tree.c: composites whose options are drawn, and who serves what by these options as the
 * README of plugins/hybrid states them: said once more here, plainly and slowly, by trying all
 * numbers of sequences and lengths where the plugin reasons about ranges.
 */
#include "plugins/hybrid/tests/stand_ins/stand_ins.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BIT(mode) ATTN_MODE_BIT(ATTN_MODE_##mode)

enum { MAX_TEXTS = 16, TEXT = 160, FAR_LAYER = 1000 };
enum { PREFILL, DECODE, VERIFY, DRAFT, PHASES };

static const char *const type_names[STAND_TYPES] = {"hybrid_phase", "hybrid_linear", "route",
                                                    "autotune"};
static const char *const phase_names[PHASES] = {"prefill", "decode", "verify", "draft"};
static const char *const kind_names[ATTN_KIND_COUNT] = {"softmax", "mla", "linear", "sparse"};

bool stand_find_types(struct stand_scene *scene, const struct check_subject *subject)
{
    const struct loader_plugin *plugin = subject->host->registry.plugins[subject->plugin];
    bool found = false;
    for (int t = 0; t < STAND_TYPES; t++)
        for (uint32_t p = 0; p < plugin->num_types; p++)
            if (strcmp(plugin->types[p]->name, type_names[t]) == 0) {
                scene->types[t] = plugin->types[p];
                found |= plugin->types[p] == subject->type;
            }
    return found;
}

/* ---- What the options say -------------------------------------------------------------------- */

static uint32_t kind_of(const struct stand_scene *scene, int32_t layer)
{
    return scene->groups[scene->layers[layer].group].kind;
}

static bool is_full(const struct stand_node *node, int32_t layer)
{
    return node->by_kind ? kind_of(node->scene, layer) != ATTN_KIND_LINEAR
                         : (node->full_layers >> layer & 1u) != 0;
}

/* The first rule that holds; `layer` may be one that no rule names. */
static int32_t find_rule(const struct stand_node *node, int32_t layer, uint32_t kind,
                         uint32_t phase, int32_t seqs, int32_t kv_len)
{
    int32_t r = 0;
    for (; r + 1 < node->num_rules; r++) {
        const struct stand_rule *rule = &node->rules[r];
        bool has_layer =
            rule->layers == 0 || (layer < STAND_LAYERS && (rule->layers >> layer & 1u) != 0);
        if (has_layer && rule->kinds >> kind & 1u && rule->phases >> phase & 1u &&
            rule->batch[0] <= seqs && seqs <= rule->batch[1] && rule->kv[0] <= kv_len &&
            kv_len <= rule->kv[1])
            break;
    }
    return r;
}

static int32_t choose(const struct stand_node *node, int32_t layer, uint32_t phase, int32_t seqs,
                      int32_t kv_len)
{
    switch (node->type) {
    case STAND_PHASE:
        return phase == PREFILL ? 0 : phase == DECODE ? 1 : node->spec_decode;
    case STAND_LINEAR:
        return !is_full(node, layer);
    case STAND_ROUTE:
        return node->rules[find_rule(node, layer, kind_of(node->scene, layer), phase, seqs, kv_len)]
            .child;
    default: /* drafts are not measured */
        return phase <= DECODE ? node->choice[stand_class(phase == DECODE, seqs, kv_len)]
                               : node->scene->first_left;
    }
}

/* The most of a layer's batches in a phase that is routed to child `c`; false: nothing. */
static bool reaches(const struct stand_node *node, int32_t c, int32_t layer, uint32_t phase,
                    const struct stand_share *whole, struct stand_share *part)
{
    bool found = false;
    int32_t least = node->type == STAND_ROUTE ? 1 : whole->max_seqs;
    int32_t shortest = node->type == STAND_ROUTE ? 0 : whole->max_kv_len;
    for (int32_t seqs = least; seqs <= whole->max_seqs; seqs++)
        for (int32_t kv_len = shortest; kv_len <= whole->max_kv_len; kv_len++) {
            bool all = node->type == STAND_AUTOTUNE; /* any candidate may be chosen for anything */
            if (!all && choose(node, layer, phase, seqs, kv_len) != c)
                continue;
            found = true;
            part->max_seqs = seqs > part->max_seqs ? seqs : part->max_seqs;
            part->max_kv_len = kv_len > part->max_kv_len ? kv_len : part->max_kv_len;
        }
    return found;
}

/* The modes among `modes` that are picked for in this phase, as a child is called for them. */
static uint32_t modes_of(const struct stand_node *node, uint32_t phase, uint32_t modes)
{
    static const uint32_t own[PHASES] = {BIT(EXTEND), BIT(DECODE), BIT(TARGET_VERIFY),
                                         BIT(DRAFT_EXTEND)};
    uint32_t mine = modes & own[phase];
    if (modes & BIT(MIXED) && phase == PREFILL)
        mine |= node->splits ? BIT(EXTEND) : BIT(MIXED);
    if (modes & BIT(MIXED) && phase == DECODE && node->splits)
        mine |= BIT(DECODE);
    return mine;
}

/* The part of `whole` that is for child `c`. */
static struct stand_share stand_narrow(const struct stand_node *node, int32_t c,
                                       const struct stand_share *whole)
{
    struct stand_share part = {0};
    if (node->type == STAND_LINEAR) {
        part = *whole;
        for (int32_t layer = 0; layer < STAND_LAYERS; layer++)
            if (whole->layers >> layer & 1u && !is_full(node, layer) != (c == 1))
                part.layers &= ~(1u << layer);
        return part.layers ? part : (struct stand_share){0};
    }
    for (int32_t layer = 0; layer < STAND_LAYERS; layer++)
        for (uint32_t phase = 0; phase < PHASES; phase++) {
            uint32_t modes = modes_of(node, phase, whole->modes);
            if (!(whole->layers >> layer & 1u) || !modes ||
                !reaches(node, c, layer, phase, whole, &part))
                continue;
            part.modes |= modes;
            part.layers |= 1u << layer;
        }
    if (part.layers && part.max_kv_len == 0)
        part.max_kv_len = 1; /* a bound of 0 would be none */
    part.expanded = whole->expanded & part.modes;
    if (whole->modes & whole->expanded & BIT(MIXED) && node->splits)
        part.expanded |= part.modes & (BIT(EXTEND) | BIT(DECODE));
    return part;
}

/* ---- Who gets which rows --------------------------------------------------------------------- */

static uint32_t phase_of(uint32_t mode)
{
    return mode == ATTN_MODE_DECODE          ? DECODE
           : mode == ATTN_MODE_TARGET_VERIFY ? VERIFY
           : mode == ATTN_MODE_DRAFT_EXTEND  ? DRAFT
                                             : PREFILL;
}

static void assign_to(const struct stand_node *node, int32_t c, const struct stand_part *part,
                      const struct stand_share *bounds, int32_t leaf[STAND_SEQS],
                      uint32_t mode[STAND_SEQS])
{
    if (node->child[c] < 0) {
        struct stand_share narrowed = stand_narrow(node, c, bounds);
        stand_assign(&node->scene->nodes[-1 - node->child[c]], part, &narrowed, leaf, mode);
        return;
    }
    for (int32_t s = part->first; s < part->first + part->count; s++) {
        leaf[s] = node->child[c];
        mode[s] = part->mode;
    }
}

static void assign_whole(const struct stand_node *node, const struct stand_part *part,
                         const struct stand_share *bounds, int32_t leaf[STAND_SEQS],
                         uint32_t mode[STAND_SEQS])
{
    bool by_bounds = node->scene->graph;
    int32_t c =
        choose(node, part->layer, phase_of(part->mode), by_bounds ? bounds->max_seqs : part->count,
               by_bounds ? bounds->max_kv_len : part->max_kv_len);
    if (part->count > 0)
        assign_to(node, c, part, bounds, leaf, mode);
}

/* Rows of no sequence are padding of those that extend: where all decode, the first one extends. */
void stand_assign(const struct stand_node *node, const struct stand_part *part,
                  const struct stand_share *bounds, int32_t leaf[STAND_SEQS],
                  uint32_t mode[STAND_SEQS])
{
    struct stand_part extend = *part, decode = *part;
    int32_t num_decode = part->num_decode, all = num_decode == part->count && part->spare > 0;
    if (part->mode != ATTN_MODE_MIXED || node->type == STAND_LINEAR || !node->splits) {
        assign_whole(node, part, bounds, leaf, mode);
        return;
    }
    extend.mode = ATTN_MODE_EXTEND;
    extend.count = part->count - num_decode + all;
    if (part->first_decode == 0 && !all)
        extend.first += num_decode;
    decode.mode = ATTN_MODE_DECODE;
    decode.first += part->first_decode + all;
    decode.count = num_decode - all;
    extend.num_decode = decode.num_decode = extend.first_decode = decode.first_decode = 0;
    assign_whole(node, &extend, bounds, leaf, mode);
    assign_whole(node, &decode, bounds, leaf, mode);
}

/* ---- Dealing --------------------------------------------------------------------------------- */

/* Would rows of one MIXED batch read new tokens in two ways? Of children that are leaves. */
static bool reads_rows_apart(const struct stand_node *node, int32_t group)
{
    uint32_t seen = 0;
    for (int32_t c = 0; c < node->num_children; c++) {
        const struct stand_leaf *leaf = &node->scene->leaves[node->child[c]];
        uint32_t modes = leaf->split[group].modes;
        if (modes & BIT(EXTEND))
            seen |= leaf->reads & BIT(EXTEND) ? 1 : 2;
        if (modes & BIT(DECODE))
            seen |= leaf->reads & BIT(DECODE) ? 1 : 2;
    }
    return seen == 3 && node->scene->bounds.modes & BIT(MIXED);
}

bool stand_reads_apart(const struct stand_scene *scene)
{
    uint32_t from_arguments = 0, from_cache = 0;
    if (!scene->reading || scene->groups[0].kv_scale_granularity == ATTN_SCALE_NONE ||
        scene->nodes[0].type == STAND_LINEAR)
        return false;
    for (int32_t l = 0; l < scene->num_leaves; l++) {
        const struct stand_leaf *leaf = &scene->leaves[l];
        from_arguments |= leaf->share[0].modes & leaf->reads;
        from_cache |= leaf->share[0].modes & ~leaf->reads;
    }
    return (from_arguments & from_cache) != 0;
}

/* MIXED is split unless its decodes have drafts, a layer reads what another one saves, more is promised of where operands lie than holds
 * of their rows, a layer's latents come in another form than EXTEND's and DECODE's, or new tokens
 * that are rounded would be read in two ways. */
static bool may_split(const struct stand_node *node, const struct stand_share whole[STAND_GROUPS])
{
    const struct stand_scene *scene = node->scene;
    if (scene->problems[0].min_alignment > 0 ||
        scene->bounds.uses & (ATTN_USES_DECODE_DRAFTS | ATTN_USES_SHARED_NEW_KV))
        return false;
    for (int32_t g = 0; g < scene->num_groups; g++) {
        uint32_t involved = whole[g].modes & (BIT(EXTEND) | BIT(DECODE) | BIT(MIXED));
        uint32_t expanded = whole[g].expanded & involved, kind = scene->groups[g].kind;
        bool rounded = scene->groups[g].kv_scale_granularity != ATTN_SCALE_NONE;
        if (whole[g].layers == 0)
            continue;
        if (kind == ATTN_KIND_MLA && expanded && expanded != involved)
            return false;
        if (rounded && scene->reading && node->type != STAND_LINEAR && reads_rows_apart(node, g))
            return false;
    }
    return true;
}

static void deal(struct stand_node *node, bool as_split,
                 const struct stand_share whole[STAND_GROUPS])
{
    struct stand_scene *scene = node->scene;
    node->splits = as_split || may_split(node, whole);
    for (int32_t c = 0; c < node->num_children; c++) {
        struct stand_share part[STAND_GROUPS];
        for (int32_t g = 0; g < scene->num_groups; g++)
            part[g] = whole[g].layers ? stand_narrow(node, c, &whole[g]) : whole[g];
        if (node->child[c] < 0)
            deal(&scene->nodes[-1 - node->child[c]], as_split, part);
        else
            memcpy(as_split ? scene->leaves[node->child[c]].split
                            : scene->leaves[node->child[c]].share,
                   part, sizeof *part * (size_t)scene->num_groups);
    }
}

struct stand_share stand_whole(const struct stand_scene *scene, int32_t group,
                               const attn_bounds *bounds)
{
    struct stand_share whole = {.modes = bounds->modes,
                                .expanded = group < 0 ? 0 : scene->problems[group].mla_expanded,
                                .max_seqs = bounds->max_seqs,
                                .max_kv_len = bounds->max_kv_len};
    for (int32_t l = 0; l < scene->num_layers; l++)
        if (group < 0 || scene->layers[l].group == group)
            whole.layers |= 1u << l;
    return whole;
}

void stand_deal(struct stand_scene *scene)
{
    struct stand_share whole[STAND_GROUPS];
    for (int32_t g = 0; g < scene->num_groups; g++)
        whole[g] = stand_whole(scene, g, &scene->bounds);
    deal(&scene->nodes[0], true, whole);
    deal(&scene->nodes[0], false, whole);
}

/* ---- Verdicts -------------------------------------------------------------------------------- */

/* Which children can be picked for a layer in a phase. */
static uint32_t who(const struct stand_node *node, int32_t layer, uint32_t phase,
                    const struct stand_share *share)
{
    uint32_t children = 0;
    for (int32_t c = 0; c < node->num_children; c++) {
        struct stand_share part = {0};
        children |= (uint32_t)reaches(node, c, layer, phase, share, &part) << c;
    }
    return children;
}

/* Can it depend on the rest of its batch who computes a row? */
static bool picks_by_batch(const struct stand_node *node, const struct stand_share *share)
{
    bool both = share->modes & BIT(MIXED) && share->modes & BIT(DECODE) && !node->splits;
    for (int32_t layer = 0; layer < STAND_LAYERS; layer++) {
        if (!(share->layers >> layer & 1u))
            continue;
        for (uint32_t phase = 0; phase < PHASES; phase++) {
            uint32_t children = who(node, layer, phase, share);
            if (modes_of(node, phase, share->modes) && children & (children - 1))
                return true;
        }
        if (both && who(node, layer, PREFILL, share) != who(node, layer, DECODE, share))
            return true;
    }
    return false;
}

static void merge_child(const struct stand_node *node, int32_t c, const struct stand_share *part,
                        attn_verdict *verdict)
{
    const uint32_t kept = ATTN_TRAIT_PROMISES;
    attn_verdict child = {.graph_level = ATTN_GRAPH_ALWAYS, .traits = kept};
    if (node->child[c] < 0) {
        stand_merge(&node->scene->nodes[-1 - node->child[c]], part, &child);
    } else {
        const struct stand_leaf *leaf = &node->scene->leaves[node->child[c]];
        child = (attn_verdict){.graph_level = leaf->graph_level,
                               .traits = leaf->traits,
                               .reads_new_kv_unquantised = leaf->reads & part->modes,
                               .graph_seq_len_fill = leaf->fill,
                               .host_arrays = leaf->host_arrays,
                               .cost_hint = leaf->cost,
                               .device_bytes = leaf->bytes[ATTN_SPACE_DEVICE],
                               .pinned_bytes = leaf->bytes[ATTN_SPACE_PINNED],
                               .host_bytes = leaf->bytes[ATTN_SPACE_HOST]};
    }
    if (child.graph_level < verdict->graph_level)
        verdict->graph_level = child.graph_level;
    verdict->traits =
        (verdict->traits & child.traits & kept) | ((verdict->traits | child.traits) & ~kept);
    verdict->reads_new_kv_unquantised |= child.reads_new_kv_unquantised;
    if (child.graph_seq_len_fill > verdict->graph_seq_len_fill)
        verdict->graph_seq_len_fill = child.graph_seq_len_fill;
    verdict->host_arrays |= child.host_arrays;
    if (child.cost_hint > verdict->cost_hint)
        verdict->cost_hint = child.cost_hint;
    verdict->device_bytes += child.device_bytes;
    verdict->pinned_bytes += child.pinned_bytes;
    verdict->host_bytes += child.host_bytes;
}

void stand_merge(const struct stand_node *node, const struct stand_share *share,
                 attn_verdict *verdict)
{
    *verdict = (attn_verdict){.graph_level = ATTN_GRAPH_ALWAYS, .traits = ATTN_TRAIT_PROMISES};
    for (int32_t c = 0; c < node->num_children; c++) {
        struct stand_share part = stand_narrow(node, c, share);
        if (part.layers)
            merge_child(node, c, &part, verdict);
    }
    if (node->type == STAND_LINEAR)
        return;
    if (share->modes & BIT(MIXED) && node->splits) {
        if (verdict->graph_level > ATTN_GRAPH_UNIFORM)
            verdict->graph_level = ATTN_GRAPH_UNIFORM;
        if (verdict->reads_new_kv_unquantised & BIT(EXTEND))
            verdict->reads_new_kv_unquantised |= BIT(MIXED);
    }
    verdict->reads_new_kv_unquantised &= share->modes;
    if (picks_by_batch(node, share))
        verdict->traits &= ~(uint32_t)(ATTN_TRAIT_BATCH_INVARIANT | ATTN_TRAIT_CUT_INVARIANT);
}

static bool find_path(const struct stand_node *node, int32_t leaf, const char *between,
                      char text[96])
{
    size_t length = strlen(text);
    for (int32_t c = 0; c < node->num_children; c++) {
        int32_t child = node->child[c];
        const struct stand_node *inner = child < 0 ? &node->scene->nodes[-1 - child] : NULL;
        snprintf(text + length, 96 - length, "%s%s", length ? between : "",
                 inner ? inner->name : node->scene->leaves[child].name);
        if (child == leaf || (inner && find_path(inner, leaf, between, text)))
            return true;
    }
    text[length] = '\0';
    return false;
}

void stand_path(const struct stand_scene *scene, int32_t leaf, const char *between, char text[96])
{
    text[0] = '\0';
    find_path(&scene->nodes[0], leaf, between, text);
}

/* ---- Drawing options ------------------------------------------------------------------------- */

struct texts {
    struct options_text items[MAX_TEXTS];
    char values[MAX_TEXTS][TEXT];
    size_t count;
};

static char *add_text(struct texts *texts, const char *key)
{
    char *value = texts->values[texts->count];
    value[0] = '\0';
    texts->items[texts->count++] =
        (struct options_text){.key = key, .value = value, .place = "attnhost check", .base = "/"};
    return value;
}

static void append(char *text, const char *before, const char *word)
{
    size_t length = strlen(text);
    snprintf(text + length, TEXT - length, "%s%s", length ? before : "", word);
}

/* The last layer of a range from layer l on. */
static int32_t end_of_range(const struct stand_scene *scene, uint32_t layers, int32_t l)
{
    while (l + 1 < scene->num_layers && layers >> (l + 1) & 1u &&
           scene->layers[l + 1].id == scene->layers[l].id + 1)
        l++;
    return l;
}

/* "3,5-6", or "5-6,3": neighbours as ranges, from the first on or from the last. */
static void write_layers(const struct stand_scene *scene, uint32_t layers, char text[TEXT])
{
    char words[STAND_LAYERS][32];
    int32_t count = 0;
    bool descends = mix_word(scene->draw.seed ^ layers) & 1;
    for (int32_t l = 0; l < scene->num_layers; l++) {
        int32_t last = end_of_range(scene, layers, l);
        if (!(layers >> l & 1u))
            continue;
        snprintf(words[count++], sizeof words[0], last > l ? "%d-%d" : "%d", scene->layers[l].id,
                 scene->layers[last].id);
        l = last;
    }
    for (int32_t w = 0; w < count; w++)
        append(text, ",", words[descends ? count - 1 - w : w]);
}

static void write_names(uint32_t set, const char *const *names, int count, char text[TEXT])
{
    for (int n = 0; n < count; n++)
        if (set >> n & 1u)
            append(text, ",", names[n]);
}

static void write_range(const char *key, const int32_t range[2], char text[TEXT])
{
    char word[48];
    if (range[0] <= 0 && range[1] == INT32_MAX)
        return;
    if (range[1] == INT32_MAX)
        snprintf(word, sizeof word, "%s=%d-", key, range[0]);
    else
        snprintf(word, sizeof word, "%s=%d-%d", key, range[0], range[1]);
    append(text, " ", word);
}

static void write_rule(const struct stand_scene *scene, const struct stand_rule *rule, char *text)
{
    char list[TEXT] = "";
    if (rule->layers) {
        write_layers(scene, rule->layers, list);
        append(text, " ", "layers=");
        append(text, "", list);
    }
    if (rule->kinds != (1u << ATTN_KIND_COUNT) - 1) {
        list[0] = '\0';
        write_names(rule->kinds, kind_names, ATTN_KIND_COUNT, list);
        append(text, " ", "kind=");
        append(text, "", list);
    }
    if (rule->phases != (1u << PHASES) - 1) {
        list[0] = '\0';
        write_names(rule->phases, phase_names, PHASES, list);
        append(text, " ", "phase=");
        append(text, "", list);
    }
    write_range("batch", rule->batch, text);
    write_range("kv", rule->kv, text);
}

static void match_all(struct stand_rule *rule, int32_t child)
{
    *rule = (struct stand_rule){.kinds = (1u << ATTN_KIND_COUNT) - 1,
                                .phases = (1u << PHASES) - 1,
                                .batch = {0, INT32_MAX},
                                .kv = {0, INT32_MAX},
                                .child = child};
}

static void draw_range(struct draw *draw, int32_t least, int32_t most, int32_t range[2])
{
    range[0] = least + draw_below(draw, most - least);
    range[1] = draw_coin(draw) ? INT32_MAX : range[0] + draw_below(draw, most - range[0] + 1);
    if (draw_coin(draw))
        range[0] = least;
}

static void draw_rule(struct stand_node *node, struct stand_rule *rule)
{
    struct draw *draw = &node->scene->draw;
    uint32_t all_layers = (1u << node->scene->num_layers) - 1;
    match_all(rule, draw_below(draw, node->num_children));
    for (int tries = 1 + draw_below(draw, 3); tries > 0; tries--) {
        uint32_t set = 1 + (uint32_t)draw_below(draw, 14);
        switch (draw_below(draw, 5)) {
        case 0:
            rule->layers = (1 + (uint32_t)draw_below(draw, 62)) & all_layers;
            break;
        case 1:
            rule->kinds = set;
            break;
        case 2:
            rule->phases = set;
            break;
        case 3:
            draw_range(draw, 1, STAND_SEQS, rule->batch);
            break;
        default:
            draw_range(draw, 0, STAND_KEYS, rule->kv);
        }
    }
}

/* Is there anything that this rule, the last but the default, takes first? */
static bool can_match(const struct stand_node *node, int32_t rule)
{
    for (int32_t at = 0; at <= node->scene->num_layers; at++)
        for (uint32_t kind = 0; kind < ATTN_KIND_COUNT; kind++)
            for (uint32_t phase = 0; phase < PHASES; phase++)
                for (int32_t seqs = 1; seqs <= STAND_SEQS + 1; seqs++)
                    for (int32_t kv_len = 0; kv_len <= STAND_KEYS + 1; kv_len++) {
                        int32_t layer = at < node->scene->num_layers ? at : FAR_LAYER;
                        if (find_rule(node, layer, kind, phase, seqs, kv_len) == rule)
                            return true;
                    }
    return false;
}

static bool is_default(const struct stand_rule *rule)
{
    struct stand_rule all;
    match_all(&all, rule->child);
    return rule->layers == 0 && rule->kinds == all.kinds && rule->phases == all.phases &&
           rule->batch[0] <= 1 && rule->batch[1] == INT32_MAX && rule->kv[0] == 0 &&
           rule->kv[1] == INT32_MAX;
}

/* Ranges of keys or of sequences that adjoin, in any order; the last one mostly has no end. */
static void draw_ladder(struct stand_node *node, int32_t wanted)
{
    struct draw *draw = &node->scene->draw;
    bool by_keys = draw_coin(draw);
    int32_t most = by_keys ? STAND_KEYS : STAND_SEQS;
    int32_t next = 1 + (draw_coin(draw) ? draw_below(draw, most / 2) : 0);
    struct stand_rule rules[STAND_RULES];
    int32_t count = 0;
    for (; count < wanted && next < most; count++) {
        int32_t last = next + draw_below(draw, (most - next) / 2 + 1);
        bool is_open = count > 0 && count + 1 == wanted && !draw_one_in(draw, 4);
        int32_t range[2] = {next, is_open ? INT32_MAX : last};
        match_all(&rules[count], draw_below(draw, node->num_children));
        memcpy(by_keys ? rules[count].kv : rules[count].batch, range, sizeof range);
        next = last + 1;
    }
    for (; count > 0; count--) {
        int32_t at = draw_below(draw, count);
        node->rules[node->num_rules++] = rules[at];
        rules[at] = rules[count - 1];
    }
}

/* Layers of some kinds up to some bound, and the others: an inner composite that gets both has
 * layers to which unlike batches come. */
static void draw_by_kinds(struct stand_node *node)
{
    static const uint32_t halves[] = {1u << ATTN_KIND_LINEAR,
                                      (1u << ATTN_KIND_COUNT) - 1 - (1u << ATTN_KIND_LINEAR)};
    struct draw *draw = &node->scene->draw;
    int32_t child = draw_below(draw, node->num_children), first = draw_below(draw, 2);
    for (int32_t n = 0; n < 2; n++) {
        struct stand_rule *rule = &node->rules[node->num_rules++];
        match_all(rule, draw_one_in(draw, 4) ? draw_below(draw, node->num_children) : child);
        rule->kinds = halves[(first + n) % 2];
        if (n == 0 && draw_coin(draw))
            rule->batch[1] = 1 + draw_below(draw, STAND_SEQS);
        else if (n == 0)
            rule->kv[1] = draw_below(draw, STAND_KEYS);
    }
}

static void draw_rules(struct stand_node *node, int32_t wanted)
{
    for (int tries = 0; tries < 3 * STAND_RULES && node->num_rules < wanted; tries++) {
        draw_rule(node, &node->rules[node->num_rules]);
        if (is_default(&node->rules[node->num_rules]))
            continue;
        node->num_rules += 2; /* with a default after it */
        bool matches = can_match(node, node->num_rules - 2);
        node->num_rules -= matches ? 1 : 2;
    }
}

static void draw_table(struct stand_node *node)
{
    int32_t wanted = 1 + draw_below(&node->scene->draw, STAND_RULES - 1);
    int32_t way = draw_below(&node->scene->draw, 4);
    if (way == 0)
        draw_ladder(node, wanted);
    else if (way == 1)
        draw_by_kinds(node);
    else
        draw_rules(node, wanted);
    match_all(&node->rules[node->num_rules++], draw_below(&node->scene->draw, node->num_children));
}

static const char *child_name(const struct stand_node *node, int32_t c)
{
    return node->child[c] < 0 ? node->scene->nodes[-1 - node->child[c]].name
                              : node->scene->leaves[node->child[c]].name;
}

static void write_options(struct stand_node *node, struct texts *texts)
{
    struct stand_scene *scene = node->scene;
    static const char *const keys[][2] = {
        [STAND_PHASE] = {"prefill", "decode"}, [STAND_LINEAR] = {"full", "linear"}};
    if (node->type == STAND_AUTOTUNE)
        for (int32_t c = 0; c < node->num_children; c++)
            append(add_text(texts, "candidate"), "", child_name(node, c));
    if (node->type == STAND_AUTOTUNE)
        append(add_text(texts, "seconds"), "", scene->measured ? "3600" : "0");
    if (node->type == STAND_AUTOTUNE && scene->measured)
        append(add_text(texts, "rounds"), "", "5");
    if (node->type == STAND_AUTOTUNE && scene->large_pages)
        append(add_text(texts, "memory"), "", "1M");
    if (node->type == STAND_AUTOTUNE && scene->store)
        append(add_text(texts, "store"), "", scene->store);
    if (node->type == STAND_PHASE || node->type == STAND_LINEAR)
        for (int32_t c = 0; c < 2; c++)
            append(add_text(texts, keys[node->type][c]), "", child_name(node, c));
    if (node->type == STAND_PHASE && (node->spec_decode || draw_coin(&scene->draw)))
        append(add_text(texts, "speculative_attention_mode"), "",
               node->spec_decode ? "decode" : "prefill");
    if (node->type == STAND_LINEAR && !node->by_kind)
        write_layers(scene, node->full_layers, add_text(texts, "full_attn_layers"));
    for (int32_t r = 0; node->type == STAND_ROUTE && r < node->num_rules; r++) {
        bool last = r + 1 == node->num_rules;
        if (!last)
            write_rule(scene, &node->rules[r], add_text(texts, "when"));
        append(add_text(texts, last ? "otherwise" : "then"), "",
               child_name(node, node->rules[r].child));
    }
}

/* One of the second and the third, as the first needs no measuring: by chance, or by the phase, the
 * sequences or the keys of a class alone. */
static void draw_measured_choices(struct stand_node *node)
{
    struct draw *draw = &node->scene->draw;
    int32_t way = node->scene->at_border ? 3 : draw_below(draw, 4), other = draw_below(draw, 2);
    for (int32_t c = 0; c < STAND_CLASSES; c++) {
        const int32_t by[] = {draw_below(draw, 2), c / 6, c / 2 % 3, c % 2};
        node->choice[c] = 1 + (by[way] + other) % 2;
    }
}

static void draw_choices(struct stand_node *node)
{
    struct draw *draw = &node->scene->draw;
    node->spec_decode = draw_coin(draw);
    node->full_layers = (uint32_t)draw_below(draw, 64) & ((1u << node->scene->num_layers) - 1);
    node->by_kind = node->full_layers == 0 || draw_coin(draw);
    if (node->type == STAND_ROUTE)
        draw_table(node);
    if (node->scene->measured)
        draw_measured_choices(node);
}

/* ---- Growing --------------------------------------------------------------------------------- */

static int32_t add_leaf(struct stand_scene *scene)
{
    struct stand_leaf *leaf = &scene->leaves[scene->num_leaves];
    leaf->scene = scene;
    leaf->index = scene->num_leaves;
    snprintf(leaf->name, sizeof leaf->name, "leaf_%d", scene->num_leaves);
    stand_draw_leaf(scene, leaf);
    return scene->num_leaves++;
}

static bool grow(struct stand_scene *scene, const attn_backend_type *backend, int32_t depth);

static enum stand_type type_of(const struct stand_scene *scene, const attn_backend_type *backend)
{
    int type = 0;
    while (scene->types[type] != backend)
        type++;
    return (enum stand_type)type;
}

/* One of the types that the plugin has. */
static const attn_backend_type *draw_type(struct stand_scene *scene)
{
    const attn_backend_type *type = NULL;
    while (!type)
        type = scene->types[draw_below(&scene->draw, STAND_TYPES)];
    return type;
}

static bool add_children(struct stand_scene *scene, struct stand_node *node, int32_t depth)
{
    bool fixed = node->type == STAND_PHASE || node->type == STAND_LINEAR;
    node->num_children = fixed ? 2 : scene->measured ? STAND_CHILDREN : 2 + draw_coin(&scene->draw);
    for (int32_t c = 0; c < node->num_children; c++) {
        bool inner = depth > 1 && scene->num_nodes < STAND_NODES &&
                     (c == 0 || draw_below(&scene->draw, 3) == 0);
        node->child[c] = inner ? -1 - scene->num_nodes : add_leaf(scene);
        if (inner && !grow(scene, draw_type(scene), depth - 1))
            return false;
    }
    return true;
}

static bool grow(struct stand_scene *scene, const attn_backend_type *backend, int32_t depth)
{
    struct texts texts = {.count = 0};
    struct stand_node *node = &scene->nodes[scene->num_nodes];
    host_error error;
    node->scene = scene;
    node->backend = backend;
    node->type = type_of(scene, backend);
    snprintf(node->name, sizeof node->name, "node_%d", scene->num_nodes++);
    if (!add_children(scene, node, depth))
        return false;
    draw_choices(node);
    write_options(node, &texts);
    host_error_init(&error);
    attn_status status = options_create(backend, node->name, "attnhost check", texts.items,
                                        texts.count, &node->options, &error.base);
    if (status != ATTN_OK)
        check_fail(scene->run, "%s", host_error_text(&error));
    stand_serve(node);
    return status == ATTN_OK;
}

bool stand_grow(struct stand_scene *scene, int32_t depth)
{
    return grow(scene, scene->run->subject->type, depth);
}

void stand_fell(struct stand_scene *scene)
{
    for (int32_t n = 0; n < scene->num_nodes; n++)
        options_destroy(scene->nodes[n].options);
}
