/* SPDX-License-Identifier: Apache-2.0
 *
 * children.c: the children: what they answer, what they object to, what they write down.
 */
#include "plugins/hybrid/tests/stand_ins/stand_ins.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host/base/clock.h"
#include "host/base/dtype.h"
#include "host/base/mix.h"

enum { OWN = 0x3c, SPENT = 0x5c }; /* what a child writes into its regions, and into its scratch */

struct attn_instance {
    struct stand_leaf *leaf;
};

/* All that a batch points to, but for arrays, is copied: it is the caller's. */
struct attn_metadata {
    struct stand_leaf *leaf;
    uint32_t kind;
    attn_bounds bounds;
    attn_memory memory;
    attn_memory_size size;
    bool planned;
    int32_t batch_number;
    int64_t planned_ns, planned_cpu_ns; /* when, by the clock and by this thread's time */
    int32_t forwards;                   /* since then */
    attn_batch batch;
    attn_kv_batch kv[STAND_GROUPS];
    attn_mask mask;
    attn_multi_item items;
    attn_speculation spec;
    attn_state_batch states[STAND_GROUPS];
    attn_sparse_batch sparse;
};

void stand_object(struct stand_scene *scene, const char *format, ...)
{
    va_list args;
    if (scene->wrong[0])
        return;
    va_start(args, format);
    vsnprintf(scene->wrong, sizeof scene->wrong, format, args);
    va_end(args);
}

/* ---- Whose it is ----------------------------------------------------------------------------- */

/* The number of a layer in the scene, or -1. */
static int32_t find_layer(const struct stand_scene *scene, int32_t id)
{
    for (int32_t l = 0; l < scene->num_layers; l++)
        if (scene->layers[l].id == id)
            return l;
    return -1;
}

/* The layers of a problem as a mask; *group is theirs, -1 = they are of no group of the scene. */
static uint32_t layers_of(const struct stand_scene *scene, const attn_problem *problem,
                          int32_t *group)
{
    uint32_t layers = 0;
    *group = -1;
    for (uint32_t l = 0; l < problem->group->num_layers; l++) {
        const attn_layer *layer = attn_at(problem->group->layers, l);
        int32_t found = find_layer(scene, layer->layer_id);
        if (found < 0 || (*group >= 0 && scene->layers[found].group != *group)) {
            *group = -1;
            return 0;
        }
        *group = scene->layers[found].group;
        layers |= 1u << found;
    }
    return layers;
}

static bool is_part(const attn_problem *problem, uint32_t layers, const struct stand_share *share)
{
    const attn_bounds *bounds = problem->bounds;
    return !(layers & ~share->layers) && !(bounds->modes & ~share->modes) &&
           bounds->max_seqs <= share->max_seqs && bounds->max_kv_len <= share->max_kv_len;
}

/* Does a problem ask for no more than is routed to this child, or would be if MIXED were split? */
static bool is_within(const struct stand_leaf *leaf, const attn_problem *problem)
{
    int32_t group;
    uint32_t layers = layers_of(leaf->scene, problem, &group);
    return group >= 0 && (is_part(problem, layers, &leaf->share[group]) ||
                          is_part(problem, layers, &leaf->split[group]));
}

/* ---- Query ----------------------------------------------------------------------------------- */

/* For as many reasons as there is room for. */
static void refuse(attn_verdict *verdict, const char *got)
{
    verdict->supported = 0;
    verdict->num_reasons = STAND_REASONS;
    for (uint32_t r = 0; r < STAND_REASONS && r < verdict->reasons_capacity; r++) {
        attn_reason *reason =
            (attn_reason *)((char *)verdict->reasons + (size_t)r * verdict->reasons->struct_size);
        reason->code = ATTN_REASON_MODE;
        reason->field = ATTN_FIELD_MODES;
        reason->with_field = 0;
        reason->child[0] = '\0';
        snprintf(reason->got, sizeof reason->got, "%s", got);
        snprintf(reason->accepted, sizeof reason->accepted, "nothing");
    }
}

/* What was not its own is refused, so that a composite that asks too much is refused as a whole. */
static attn_status answer(struct stand_leaf *leaf, const attn_problem *problem,
                          attn_verdict *verdict)
{
    int32_t group;
    layers_of(leaf->scene, problem, &group);
    if (group >= 0)
        leaf->asked |= 1u << group;
    if (leaf->refuses || !is_within(leaf, problem)) {
        char text[64];
        snprintf(text, sizeof text, "modes 0x%x, %d sequences, %d keys: not its own",
                 problem->bounds->modes, problem->bounds->max_seqs, problem->bounds->max_kv_len);
        refuse(verdict, leaf->refuses ? STAND_WORDS : text);
        return ATTN_OK;
    }
    verdict->supported = 1;
    verdict->num_reasons = 0;
    verdict->graph_level = leaf->graph_level;
    verdict->traits = leaf->traits;
    /* Of modes that it is not asked about, too. */
    verdict->reads_new_kv_unquantised =
        leaf->reads & (problem->bounds->modes | ~ATTN_MODE_BIT(ATTN_MODE_IDLE));
    verdict->graph_seq_len_fill = leaf->fill;
    verdict->host_arrays = leaf->host_arrays;
    verdict->cost_hint = leaf->cost;
    verdict->device_bytes = leaf->bytes[ATTN_SPACE_DEVICE];
    verdict->pinned_bytes = leaf->bytes[ATTN_SPACE_PINNED];
    verdict->host_bytes = leaf->bytes[ATTN_SPACE_HOST];
    return ATTN_OK;
}

/* ---- Create ---------------------------------------------------------------------------------- */

/* What is asked for in all else than layers and bounds is what the caller has asked for. */
static bool is_untouched(const attn_problem *given, const attn_problem *original)
{
    attn_layer_group group = *given->group, whole = *original->group;
    attn_problem problem = *given, first = *original;
    attn_bounds bounds = *given->bounds, most = *original->bounds;
    group.layers = whole.layers = NULL;
    group.num_layers = whole.num_layers = 0;
    problem.group = first.group = NULL;
    problem.bounds = first.bounds = NULL;
    problem.mla_expanded = first.mla_expanded = 0;
    bounds.modes = most.modes = 0;
    bounds.max_seqs = most.max_seqs = bounds.max_kv_len = most.max_kv_len = 0;
    if (!(given->bounds->modes & ATTN_MODE_BIT(ATTN_MODE_MIXED))) {
        const uint32_t of_mixed = ATTN_USES_DECODES_FIRST | ATTN_USES_DECODE_DRAFTS;
        most.uses &= ~of_mixed; /* these no longer apply to any batch */
    }
    if (given->bounds->modes == ATTN_MODE_BIT(ATTN_MODE_DECODE)) {
        bounds.max_q_len = most.max_q_len; /* may be as few as one for each sequence */
        bounds.max_tokens = most.max_tokens;
    }
    return memcmp(&group, &whole, sizeof group) == 0 &&
           memcmp(&problem, &first, sizeof problem) == 0 &&
           memcmp(&bounds, &most, sizeof bounds) == 0;
}

/* Is each layer the caller's, in all that it says? */
static bool has_own_layers(const attn_layer_group *given, const attn_layer_group *original)
{
    for (uint32_t l = 0; l < given->num_layers; l++) {
        const attn_layer *layer = attn_at(given->layers, l);
        uint32_t n = 0;
        while (n < original->num_layers &&
               memcmp(layer, attn_at(original->layers, n), sizeof *layer) != 0)
            n++;
        if (n == original->num_layers)
            return false;
    }
    return true;
}

/* Bounds of DECODE alone: a row of each sequence; 0 = no bound. */
static bool one_row_each(const attn_bounds *bounds)
{
    return bounds->max_q_len == 1 &&
           (bounds->max_seqs == 0 ||
            (bounds->max_tokens > 0 && bounds->max_tokens <= bounds->max_seqs));
}

static void look_at_problem(const struct stand_leaf *leaf, const attn_problem *problem,
                            uint32_t *groups)
{
    struct stand_scene *scene = leaf->scene;
    const attn_bounds *bounds = problem->bounds;
    int32_t group;
    uint32_t layers = layers_of(scene, problem, &group);
    if (group < 0 || *groups >> group & 1u) {
        stand_object(scene, "%s is made for layers that are of no group, or for a group twice",
                     leaf->name);
        return;
    }
    const struct stand_share *share = &leaf->share[group];
    *groups |= 1u << group;
    if (layers != share->layers || bounds->modes != share->modes)
        stand_object(
            scene,
            "%s is made for layers 0x%x (by their order) of group %d and modes 0x%x, where "
            "0x%x and 0x%x are routed to it",
            leaf->name, layers, group, bounds->modes, share->layers, share->modes);
    if (bounds->max_seqs != share->max_seqs || bounds->max_kv_len != share->max_kv_len)
        stand_object(
            scene, "%s is made for %d sequences and %d keys, where %d and %d are routed to it",
            leaf->name, bounds->max_seqs, bounds->max_kv_len, share->max_seqs, share->max_kv_len);
    if (share->modes == ATTN_MODE_BIT(ATTN_MODE_DECODE) && !one_row_each(bounds))
        stand_object(
            scene, "%s, to which only DECODE comes, is made for %d rows of %d sequences, %d of one",
            leaf->name, bounds->max_tokens, bounds->max_seqs, bounds->max_q_len);
    if (problem->group->kind == ATTN_KIND_MLA && problem->mla_expanded != share->expanded)
        stand_object(scene, "%s is made for expanded modes 0x%x, where 0x%x are routed to it",
                     leaf->name, problem->mla_expanded, share->expanded);
    if (!is_untouched(problem, &scene->problems[group]))
        stand_object(scene, "%s is made for group %d with something changed", leaf->name, group);
    if (!has_own_layers(problem->group, scene->problems[group].group))
        stand_object(scene, "%s is made for layers of group %d with something changed", leaf->name,
                     group);
}

static attn_status make(struct stand_leaf *leaf, const attn_problem *problems,
                        uint32_t num_problems, attn_child *child, attn_error *error)
{
    struct stand_scene *scene = leaf->scene;
    uint32_t groups = 0;
    for (uint32_t p = 0; p < num_problems; p++)
        look_at_problem(leaf, attn_at(problems, p), &groups);
    for (int32_t g = 0; g < scene->num_groups; g++)
        if (leaf->share[g].layers && !(groups >> g & 1u))
            stand_object(scene, "%s is not made for group %d, which is routed to it", leaf->name,
                         g);
    if (leaf->fails == STAND_CREATE)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "%s", STAND_WORDS);
    attn_instance *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for %s", leaf->name);
    made->leaf = leaf;
    leaf->made++;
    leaf->live++;
    child->type = &leaf->type;
    child->instance = made;
    return ATTN_OK;
}

/* ---- Slots ----------------------------------------------------------------------------------- */

static void destroy(attn_instance *instance)
{
    if (!instance)
        return;
    if (instance->leaf->live_metadata > 0)
        stand_object(instance->leaf->scene, "%s is destroyed before its metadata",
                     instance->leaf->name);
    instance->leaf->live--;
    free(instance);
}

static attn_status prepare(attn_instance *instance, attn_progress progress, void *ctx,
                           attn_error *error)
{
    (void)progress, (void)ctx, (void)error;
    instance->leaf->prepared++;
    return ATTN_OK;
}

static uint32_t index_forms(attn_instance *instance)
{
    return instance->leaf->forms;
}

static const void *get_extension(attn_instance *instance, const char *id)
{
    bool has = strcmp(id, STAND_EXTENSION) == 0 || strcmp(id, ATTN_EXTENSION_CODE_PATHS) == 0;
    return has ? instance->leaf->extension : NULL;
}

/* Bytes of a leaf's metadata in a region, for bounds of so many sequences. */
static uint64_t stand_region_bytes(const struct stand_leaf *leaf, uint32_t region, int32_t max_seqs)
{
    return leaf->sizes[region] ? leaf->sizes[region] + (uint64_t)max_seqs : 0;
}

static attn_status metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 attn_memory_size *size, attn_error *error)
{
    const struct stand_leaf *leaf = instance->leaf;
    (void)kind, (void)error;
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
        size->size[r] = stand_region_bytes(leaf, r, bounds->max_seqs);
        size->alignment[r] = leaf->alignments[r];
    }
    return ATTN_OK;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static bool is_scratch(uint32_t region)
{
    return region % ATTN_MEMORY_COUNT == ATTN_MEMORY_SCRATCH;
}

static bool is_filled(const void *memory, uint64_t size, int byte)
{
    const unsigned char *at = memory;
    for (uint64_t i = 0; i < size; i++)
        if (at[i] != byte)
            return false;
    return true;
}

/* What of a region is wrong as it was given, or NULL. */
static const char *region_defect(const attn_metadata *metadata, uint32_t r)
{
    const struct stand_scene *scene = metadata->leaf->scene;
    const char *base = metadata->memory.base[r], *whole = scene->regions[r];
    uint64_t size = metadata->size.size[r], alignment = metadata->size.alignment[r];
    if (!base || metadata->memory.size[r] < size)
        return "is missing or too small";
    if (alignment > 1 && (uintptr_t)base % alignment != 0)
        return "is misaligned";
    if (scene->recording && (base < whole || base + size > whole + scene->size.size[r]))
        return "is not within the composite's";
    if (r % ATTN_MEMORY_COUNT == ATTN_MEMORY_ZEROED && !is_filled(base, size, 0))
        return "is not zero";
    return NULL;
}

static void take_region(const attn_metadata *metadata, uint32_t r)
{
    const char *defect = metadata->size.size[r] ? region_defect(metadata, r) : NULL;
    if (defect)
        stand_object(metadata->leaf->scene, "metadata_create of %s: region %u %s",
                     metadata->leaf->name, r, defect);
    else if (metadata->size.size[r])
        memset(metadata->memory.base[r], is_scratch(r) ? SPENT : OWN, metadata->size.size[r]);
}

/* What it keeps is still there; scratch is anybody's, and is used up. */
static void look_at_memory(const attn_metadata *metadata, const char *call)
{
    for (uint32_t r = 0; r < ATTN_REGION_COUNT && !metadata->leaf->scene->wrong[0]; r++) {
        uint64_t size = metadata->size.size[r];
        if (size == 0)
            continue;
        if (is_scratch(r))
            memset(metadata->memory.base[r], SPENT, size);
        else if (!is_filled(metadata->memory.base[r], size, OWN))
            stand_object(metadata->leaf->scene, "%s of %s: its region %u was overwritten", call,
                         metadata->leaf->name, r);
    }
}

/* Do the bounds route anything to this child? */
static void look_at_bounds(const struct stand_leaf *leaf, const attn_bounds *bounds)
{
    struct stand_share most = {0};
    for (int32_t g = 0; g < leaf->scene->num_groups; g++) {
        const struct stand_share *share = &leaf->share[g];
        most.modes |= share->modes;
        most.max_seqs = share->max_seqs > most.max_seqs ? share->max_seqs : most.max_seqs;
        most.max_kv_len = share->max_kv_len > most.max_kv_len ? share->max_kv_len : most.max_kv_len;
    }
    if (bounds->modes & ~most.modes || bounds->max_seqs > most.max_seqs ||
        bounds->max_kv_len > most.max_kv_len)
        stand_object(leaf->scene,
                     "metadata of %s is for modes 0x%x, %d sequences and %d keys, where 0x%x, %d "
                     "and %d are routed to it",
                     leaf->name, bounds->modes, bounds->max_seqs, bounds->max_kv_len, most.modes,
                     most.max_seqs, most.max_kv_len);
}

static attn_status metadata_create(attn_instance *instance, uint32_t kind,
                                   const attn_bounds *bounds, const attn_memory *memory,
                                   attn_metadata **metadata, attn_error *error)
{
    struct stand_leaf *leaf = instance->leaf;
    if (leaf->fails == STAND_METADATA)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "%s", STAND_WORDS);
    attn_metadata *made = calloc(1, sizeof *made);
    if (!made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for metadata");
    made->leaf = leaf;
    made->kind = kind;
    made->bounds = *bounds;
    made->memory = *memory;
    metadata_size(instance, kind, bounds, &made->size, error);
    if (leaf->scene->recording && (kind == ATTN_METADATA_GRAPH) != leaf->scene->graph)
        stand_object(leaf->scene, "metadata of %s is of kind %u", leaf->name, kind);
    look_at_bounds(leaf, bounds);
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++)
        take_region(made, r);
    leaf->live_metadata++;
    *metadata = made;
    return ATTN_OK;
}

static void metadata_destroy(attn_metadata *metadata)
{
    if (!metadata)
        return;
    look_at_memory(metadata, "metadata_destroy");
    metadata->leaf->live_metadata--;
    free(metadata);
}

/* ---- Plan ------------------------------------------------------------------------------------ */

static void copy_batch(attn_metadata *metadata, const attn_batch *batch)
{
    attn_batch *to = &metadata->batch;
    *to = *batch;
    to->num_kv_groups = batch->num_kv_groups < STAND_GROUPS ? batch->num_kv_groups : STAND_GROUPS;
    for (uint32_t g = 0; g < to->num_kv_groups; g++)
        metadata->kv[g] = *(const attn_kv_batch *)attn_at(batch->kv_groups, g);
    to->kv_groups = to->num_kv_groups ? metadata->kv : NULL;
    to->num_state_groups =
        batch->num_state_groups < STAND_GROUPS ? batch->num_state_groups : STAND_GROUPS;
    for (uint32_t g = 0; g < to->num_state_groups; g++)
        metadata->states[g] = *(const attn_state_batch *)attn_at(batch->state_groups, g);
    to->state_groups = to->num_state_groups ? metadata->states : NULL;
#define COPY(member, place)                                                                        \
    if (batch->member) {                                                                           \
        metadata->place = *batch->member;                                                          \
        to->member = &metadata->place;                                                             \
    }
    COPY(mask, mask)
    COPY(multi_item, items)
    COPY(speculation, spec)
    COPY(sparse, sparse)
#undef COPY
}

static void look_at_counts(const attn_metadata *metadata, const attn_batch *batch)
{
    const attn_bounds *bounds = &metadata->bounds;
    struct stand_scene *scene = metadata->leaf->scene;
    const char *name = metadata->leaf->name;
    bool decode = batch->mode == ATTN_MODE_DECODE;
    if (batch->mode >= ATTN_MODE_COUNT || !(bounds->modes >> batch->mode & 1u))
        stand_object(scene, "%s is given a batch of mode %u, where its metadata is for modes 0x%x",
                     name, batch->mode, bounds->modes);
    if (batch->num_seqs < 1 || batch->num_seqs > bounds->max_seqs ||
        batch->num_tokens > bounds->max_tokens || batch->max_q_len > bounds->max_q_len ||
        batch->max_kv_len > bounds->max_kv_len)
        stand_object(scene,
                     "%s is given %d sequences, %d rows, %d queries and %d keys of one, where its "
                     "metadata is for %d, %d, %d and %d",
                     name, batch->num_seqs, batch->num_tokens, batch->max_q_len, batch->max_kv_len,
                     bounds->max_seqs, bounds->max_tokens, bounds->max_q_len, bounds->max_kv_len);
    if ((decode && (batch->num_tokens != batch->num_seqs || batch->max_q_len != 1)) ||
        (batch->mode != ATTN_MODE_MIXED &&
         (batch->num_decode_seqs != 0 || batch->first_decode_seq != 0 || batch->decode_q_len != 0)))
        stand_object(scene, "%s is given %d rows, %d decode sequences and %d queries in mode %u",
                     name, batch->num_tokens, batch->num_decode_seqs, batch->max_q_len,
                     batch->mode);
    if (batch->mode == ATTN_MODE_MIXED &&
        ((batch->first_decode_seq != 0 &&
          batch->first_decode_seq != batch->num_seqs - batch->num_decode_seqs) ||
         batch->decode_q_len != scene->decode_q_len))
        stand_object(scene,
                     "%s gets a batch in which %d of %d sequences, from %d on, decode %d queries",
                     name, batch->num_decode_seqs, batch->num_seqs, batch->first_decode_seq,
                     batch->decode_q_len);
    if (batch->num_real_seqs > batch->num_seqs || batch->num_real_tokens > batch->num_tokens ||
        batch->num_real_seqs < 0 || batch->num_real_tokens < 0 ||
        (batch->num_real_seqs_device && *batch->num_real_seqs_device != batch->num_real_seqs) ||
        (batch->num_real_tokens_device && *batch->num_real_tokens_device != batch->num_real_tokens))
        stand_object(scene, "%s is given %d real sequences and %d real rows, which is not so", name,
                     batch->num_real_seqs, batch->num_real_tokens);
    const attn_shared_prefix *shared = batch->shared_prefix;
    if (batch->num_prefix_levels > 0 && !shared)
        stand_object(scene, "%s is given %u levels of shared prefixes, which are nowhere", name,
                     batch->num_prefix_levels);
    if (shared && shared->seq_indptr.device[shared->num_groups] != batch->num_seqs)
        stand_object(scene, "%s is given a hint about %d sequences of %d", name,
                     shared->seq_indptr.device[shared->num_groups], batch->num_seqs);
}

/* What layers need of a batch, of those in the mask `groups`. */
struct stand_parts {
    int32_t kv, states; /* groups, up to the last one that is named */
    int32_t sparse;
};

static struct stand_parts parts_of(const struct stand_scene *scene, uint32_t groups)
{
    struct stand_parts parts = {0};
    for (int32_t g = 0; g < scene->num_groups; g++) {
        const attn_layer_group *group = &scene->groups[g];
        if (!(groups >> g & 1u))
            continue;
        parts.kv = group->kv_group >= parts.kv ? group->kv_group + 1 : parts.kv;
        parts.states = group->state_group >= parts.states ? group->state_group + 1 : parts.states;
        parts.sparse |= group->kind == ATTN_KIND_SPARSE;
    }
    return parts;
}

/* Parts that others' layers name, and none of its own, are not for it: whole kinds of them, and the
 * groups after its last one. Unreferenced groups may be present. */
static void look_at_parts(const attn_metadata *metadata, const attn_batch *batch)
{
    const struct stand_leaf *leaf = metadata->leaf;
    const struct stand_parts all = parts_of(leaf->scene, ~0u);
    uint32_t groups = 0;
    for (int32_t g = 0; g < leaf->scene->num_groups; g++)
        groups |= (leaf->share[g].layers != 0) << g;
    const struct stand_parts own = parts_of(leaf->scene, groups);
    const int32_t kv = (int32_t)batch->num_kv_groups, states = (int32_t)batch->num_state_groups;
    const int sparse = batch->sparse != NULL;
    if (kv < own.kv || (kv > own.kv && own.kv < all.kv) || states < own.states ||
        (states > own.states && own.states < all.states) || sparse != own.sparse)
        stand_object(leaf->scene,
                     "%s is given %d KV groups, %d state groups, sparse: %d; its layers name %d, "
                     "%d, %d",
                     leaf->name, kv, states, sparse, own.kv, own.states, own.sparse);
}

/* Rows of its sequences are all its rows, but for some that no sequence has, and those of its real
 * ones are the real ones. */
static void look_at_rows(const attn_metadata *metadata, const attn_batch *batch)
{
    struct stand_place place = {.batch = batch};
    int32_t first, count, real = 0, spare = stand_spare_rows(&place, &first);
    for (int32_t s = 0; s < batch->num_real_seqs && s < STAND_SEQS; s++) {
        stand_first_row(&place, s, &count);
        real += count;
    }
    if (spare < 0 || batch->num_real_tokens != real)
        stand_object(metadata->leaf->scene,
                     "%s is given %d rows, %d of them real, where its sequences have %d and the "
                     "real ones %d",
                     metadata->leaf->name, batch->num_tokens, batch->num_real_tokens,
                     batch->num_tokens - spare, real);
}

static void look_at_lengths(const attn_metadata *metadata, const attn_batch *batch)
{
    struct stand_place place = {.batch = batch};
    int32_t longest = 0, most = 0;
    for (int32_t s = 0; s < batch->num_seqs && s < STAND_SEQS; s++) {
        int32_t count;
        stand_first_row(&place, s, &count);
        most = count > most ? count : most;
        for (uint32_t g = 0; g < batch->num_kv_groups; g++) {
            const attn_kv_batch *kv = attn_at(batch->kv_groups, g);
            const int32_t *lens = kv->kv_lens.device ? kv->kv_lens.device : batch->seq_lens.device;
            longest = lens && lens[s] > longest ? lens[s] : longest;
        }
    }
    if (most > batch->max_q_len || longest > batch->max_kv_len)
        stand_object(metadata->leaf->scene,
                     "%s gets maxima of %d queries and %d keys, where there are %d and %d",
                     metadata->leaf->name, batch->max_q_len, batch->max_kv_len, most, longest);
}

/* Keys of each KV group, in whole pages. */
static void look_at_keys(const attn_metadata *metadata, const attn_batch *batch)
{
    for (uint32_t g = 0; g < batch->num_kv_groups; g++) {
        const attn_kv_batch *kv = attn_at(batch->kv_groups, g);
        const int32_t *lens = kv->kv_lens.device ? kv->kv_lens.device : batch->seq_lens.device;
        int64_t keys = 0, page = kv->page_size > 0 ? kv->page_size : 1;
        for (int32_t s = 0; s < batch->num_seqs && lens; s++)
            keys += (lens[s] + page - 1) / page * page;
        if (keys > metadata->bounds.max_kv_tokens)
            stand_object(metadata->leaf->scene,
                         "%s is given %lld keys in whole pages, where its metadata is for %lld",
                         metadata->leaf->name, (long long)keys,
                         (long long)metadata->bounds.max_kv_tokens);
    }
}

static int64_t thread_cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static attn_status plan(attn_metadata *metadata, const attn_batch *batch, attn_stream stream,
                        attn_error *error)
{
    struct stand_leaf *leaf = metadata->leaf;
    (void)stream;
    if (leaf->scene->recording && metadata->batch_number == leaf->scene->batch_number)
        stand_object(leaf->scene, "%s is given one batch twice", leaf->name);
    metadata->batch_number = leaf->scene->batch_number;
    metadata->planned = false;
    leaf->refused = leaf->fails == STAND_PLAN;
    if (leaf->refused)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "%s", STAND_WORDS);
    look_at_memory(metadata, "init_forward_metadata");
    look_at_counts(metadata, batch);
    if (!leaf->scene->recording)
        look_at_keys(metadata, batch);
    if (leaf->scene->recording) {
        look_at_parts(metadata, batch);
        look_at_lengths(metadata, batch);
        look_at_rows(metadata, batch);
    }
    copy_batch(metadata, batch);
    metadata->planned = true;
    metadata->planned_ns = clock_now_ns();
    metadata->planned_cpu_ns = thread_cpu_ns();
    metadata->forwards = 0;
    return ATTN_OK;
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* What a wrong candidate spoils: one row of one head, of those that there are. */
struct spoilt {
    attn_dtype dtype;
    char *row;
    int64_t dim, element;
    char before[4096];
};

static void spoilt_find(const struct stand_leaf *leaf, const attn_batch *batch,
                        const attn_tensor *out, struct spoilt *spoilt)
{
    uint64_t word = mix_stream(leaf->scene->draw.seed, STAND_UNWRITTEN);
    int64_t row = (int64_t)(word % (uint64_t)batch->num_tokens);
    int64_t head = (int64_t)(word >> 32) % out->shape[1];
    int64_t size = (int64_t)attn_dtype_size(out->dtype),
            most = (int64_t)sizeof spoilt->before / size;
    spoilt->dtype = out->dtype;
    spoilt->row = (char *)out->data + out->byte_offset +
                  (row * out->strides[0] + head * out->strides[1]) * size;
    spoilt->dim = out->shape[2] < most ? out->shape[2] : most;
    spoilt->element = (int64_t)(word % (uint64_t)out->shape[2]);
    memcpy(spoilt->before, spoilt->row, (size_t)(spoilt->dim * size));
}

/* The row is as it was before the forward, or has another number in it. */
static void spoil(const struct stand_leaf *leaf, const struct spoilt *spoilt)
{
    if (leaf->wrong == STAND_UNWRITTEN)
        memcpy(spoilt->row, spoilt->before, (size_t)spoilt->dim * attn_dtype_size(spoilt->dtype));
    else
        dtype_store(spoilt->dtype, spoilt->row, spoilt->element,
                    1 + 2 * fabs(dtype_load(spoilt->dtype, spoilt->row, spoilt->element)));
}

/* Takes a sample as autotune does: how long the forwards of the batch planned last have waited on
 * average, in their own sleep and for other work of the machine. Computing, which is the same for
 * all candidates, is left out. */
static void sample(attn_metadata *metadata, int32_t class)
{
    struct stand_leaf *leaf = metadata->leaf;
    int64_t waited =
        clock_now_ns() - metadata->planned_ns - (thread_cpu_ns() - metadata->planned_cpu_ns);
    int64_t each = waited / ++metadata->forwards;
    if (leaf->samples[class]++ == 0 || each < leaf->shortest_ns[class])
        leaf->shortest_ns[class] = each;
    if (each > leaf->longest_ns[class])
        leaf->longest_ns[class] = each;
}

bool stand_is_undecided(const struct stand_scene *scene, const struct stand_leaf *right,
                        const struct stand_leaf *other)
{
    const struct stand_node *root = &scene->nodes[0];
    for (int32_t class = 0; class < STAND_CLASSES && !other->wrong; class ++) {
        if (&scene->leaves[root->child[root->choice[class]]] != right || other->samples[class] == 0)
            continue;
        if (right->samples[class] == 0 || right->longest_ns[class] >= other->shortest_ns[class])
            return true;
    }
    return false;
}

/* Candidates of autotune: the truth, in time or late; or at once something else. */
static attn_status pretend(attn_metadata *metadata, int32_t group, int32_t layer_id,
                           const attn_forward_args *args)
{
    const struct stand_leaf *leaf = metadata->leaf;
    struct stand_scene *scene = leaf->scene;
    const attn_batch *batch = &metadata->batch;
    int32_t class =
        stand_class(batch->mode == ATTN_MODE_DECODE, batch->num_seqs, batch->max_kv_len);
    bool slow = leaf->slow_classes >> class & 1u;
    const struct timespec late = {.tv_nsec = slow ? leaf->slow_ns : STAND_FAST_NS};
    const bool spoils =
        leaf->wrong && leaf->wrong_group == group && leaf->wrong_classes >> class & 1u;
    struct spoilt spoilt;
    if (spoils)
        spoilt_find(leaf, batch, attn_operand(args, ATTN_ROLE_OUT), &spoilt);
    attn_status status =
        stand_give_truth(scene, &scene->problems[group], batch, layer_id, args, leaf->reads);
    if (!leaf->wrong) {
        nanosleep(&late, NULL);
        sample(metadata, class);
    } else if (status == ATTN_OK && spoils) {
        spoil(leaf, &spoilt);
    }
    return status;
}

static void note_spare(const attn_metadata *metadata, const struct stand_place *place)
{
    struct stand_scene *scene = metadata->leaf->scene;
    int32_t first, count = stand_spare_rows(place, &first);
    for (int32_t n = 0; n < count && scene->num_spare < STAND_LOG; n++)
        scene->spare[scene->num_spare++] =
            (struct stand_spare){.leaf = metadata->leaf->index,
                                 .before = scene->logged,
                                 .address = stand_out_address(place, first + n)};
}

static void write_down(const attn_metadata *metadata, const attn_layer_group *group,
                       const attn_forward_args *args)
{
    struct stand_scene *scene = metadata->leaf->scene;
    const struct stand_place place = {
        .batch = &metadata->batch, .args = args, .group = group, .forms = metadata->leaf->forms};
    for (int32_t s = 0; s < metadata->batch.num_seqs && s < STAND_SEQS; s++) {
        int32_t count;
        stand_first_row(&place, s, &count);
        for (int32_t t = 0; t < count && scene->logged < STAND_LOG; t++) {
            struct stand_row *row = &scene->log[scene->logged++];
            stand_read_row(&place, s, t, row);
            row->leaf = metadata->leaf->index;
        }
    }
    note_spare(metadata, &place);
}

static attn_status forward(attn_metadata *metadata, bool decode, int32_t layer_id,
                           const attn_forward_args *args)
{
    struct stand_leaf *leaf = metadata->leaf;
    struct stand_scene *scene = leaf->scene;
    int32_t layer = find_layer(scene, layer_id), group = layer < 0 ? 0 : scene->layers[layer].group;
    const char *defect = stand_operand_defect(args, &scene->problems[group]);
    look_at_memory(metadata, "forward");
    if (!metadata->planned)
        stand_object(scene, "forward of %s without a plan", leaf->name);
    else if ((metadata->batch.mode == ATTN_MODE_DECODE) != decode)
        stand_object(scene, "forward_%s of %s, which was planned for mode %u",
                     decode ? "decode" : "extend", leaf->name, metadata->batch.mode);
    else if (layer < 0 || !(leaf->share[group].layers >> layer & 1u))
        stand_object(scene, "%s is called for layer %d, which is not its own", leaf->name,
                     layer_id);
    else if (defect)
        stand_object(scene, "forward of %s: %s", leaf->name, defect);
    else if (scene->recording)
        write_down(metadata, &scene->groups[group], args);
    return scene->recording || scene->wrong[0] ? ATTN_OK : pretend(metadata, group, layer_id, args);
}

static attn_status forward_extend(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    (void)stream, (void)error;
    return forward(metadata, false, layer_id, args);
}

static attn_status forward_decode(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    (void)stream, (void)error;
    return forward(metadata, true, layer_id, args);
}

static const attn_backend_ops ops = {
    .struct_size = sizeof ops,
    .destroy = destroy,
    .prepare = prepare,
    .index_forms = index_forms,
    .metadata_size = metadata_size,
    .metadata_create = metadata_create,
    .init_forward_metadata = plan,
    .metadata_destroy = metadata_destroy,
    .forward_extend = forward_extend,
    .forward_decode = forward_decode,
    .get_extension = get_extension,
};

/* ---- Answers that are drawn ------------------------------------------------------------------ */

void stand_draw_leaf(struct stand_scene *scene, struct stand_leaf *leaf)
{
    static const int extensions[2];
    struct draw *draw = &scene->draw;
    leaf->forms = 1 + (uint32_t)draw_below(draw, 7);
    leaf->graph_level = draw_coin(draw) ? ATTN_GRAPH_ALWAYS : (uint32_t)draw_below(draw, 4);
    leaf->traits =
        draw_coin(draw) ? ATTN_TRAIT_PROMISES : (uint32_t)draw_below(draw, ATTN_TRAIT_ALL + 1);
    leaf->fill = draw_coin(draw);
    leaf->host_arrays = draw_coin(draw) ? 0 : (uint32_t)draw_below(draw, ATTN_HOST_ALL + 1);
    leaf->cost = 0.25 * draw_below(draw, 9);
    leaf->extension = draw_below(draw, 3) ? &extensions[draw_below(draw, 4) == 0] : NULL;
    for (uint32_t r = 0; r < ATTN_REGION_COUNT; r++) {
        leaf->sizes[r] = draw_coin(draw) ? 1 + (uint64_t)draw_below(draw, 200) : 0;
        leaf->alignments[r] = (uint64_t)1 << draw_below(draw, 9);
    }
    for (uint32_t s = 0; s < ATTN_SPACE_COUNT; s++)
        leaf->bytes[s] = 1000 + (uint64_t)draw_below(draw, 100000);
    leaf->type = (attn_backend_type){.struct_size = sizeof leaf->type,
                                     .name = leaf->name,
                                     .doc = "a stand-in of attnhost check",
                                     .ops = &ops};
}

/* ---- Services -------------------------------------------------------------------------------- */

/* The node's child of this name: a leaf in *leaf, or the inner composite that is returned. */
static struct stand_node *find_child(const struct stand_node *node, const char *name,
                                     struct stand_leaf **leaf)
{
    struct stand_scene *scene = node->scene;
    *leaf = NULL;
    for (int32_t c = 0; c < node->num_children; c++) {
        int32_t child = node->child[c];
        if (child >= 0 && strcmp(scene->leaves[child].name, name) == 0)
            *leaf = &scene->leaves[child];
        else if (child < 0 && strcmp(scene->nodes[-1 - child].name, name) == 0)
            return &scene->nodes[-1 - child];
    }
    return NULL;
}

static attn_status child_query(void *ctx, const char *name, const attn_problem *problem,
                               attn_verdict *verdict, attn_error *error)
{
    struct stand_leaf *leaf;
    const struct stand_node *inner = find_child(ctx, name, &leaf);
    if (inner)
        return inner->backend->query(inner->backend, &inner->options->view, &inner->services,
                                     problem, verdict, error);
    return leaf ? answer(leaf, problem, verdict)
                : host_fail(error, ATTN_CONFIG_ERROR, "%s: there is no such child", name);
}

static attn_status child_create(void *ctx, const char *name, const attn_problem *problems,
                                uint32_t num_problems, attn_child *child, attn_error *error)
{
    struct stand_leaf *leaf;
    const struct stand_node *inner = find_child(ctx, name, &leaf);
    if (!inner)
        return leaf ? make(leaf, problems, num_problems, child, error)
                    : host_fail(error, ATTN_CONFIG_ERROR, "%s: there is no such child", name);
    child->type = inner->backend;
    return inner->backend->create(inner->backend, problems, num_problems, &inner->options->view,
                                  &inner->services, &child->instance, error);
}

static const attn_services *given(void *ctx)
{
    const struct stand_node *node = ctx;
    return &node->scene->counter.table;
}

static void log_message(void *ctx, uint32_t level, const char *message)
{
    given(ctx)->log(given(ctx)->ctx, level, message);
}

static void *allocate(void *ctx, uint32_t space, uint64_t size, uint64_t alignment)
{
    return given(ctx)->allocate(given(ctx)->ctx, space, size, alignment);
}

static void release(void *ctx, uint32_t space, void *memory)
{
    given(ctx)->release(given(ctx)->ctx, space, memory);
}

static attn_status parallel_for(void *ctx, int64_t num_tasks, attn_task task, void *arg)
{
    return given(ctx)->parallel_for(given(ctx)->ctx, num_tasks, task, arg);
}

static const void *find_extension(void *ctx, const char *id)
{
    return given(ctx)->get_extension(given(ctx)->ctx, id);
}

void stand_serve(struct stand_node *node)
{
    node->services = (attn_services){.struct_size = sizeof node->services,
                                     .num_workers = node->scene->counter.table.num_workers,
                                     .ctx = node,
                                     .log = log_message,
                                     .allocate = allocate,
                                     .release = release,
                                     .parallel_for = parallel_for,
                                     .child_query = child_query,
                                     .child_create = child_create,
                                     .get_extension = find_extension};
}
