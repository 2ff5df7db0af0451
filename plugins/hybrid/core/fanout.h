/* SPDX-License-Identifier: Apache-2.0
 *
 * fanout.h: common handling of children, for every composite.
 *
 *   - children come from the host by the value of a backend-ref option, never by other means; the
 *     host names a child that it cannot query or create, the composite one whose own calls fail;
 *   - a child is queried and created only for the modes that are routed to it;
 *   - metadata: scratch is shared (children run one after the other on one stream), all other
 *     regions lie one after the other in the region of the composite. */
#ifndef HYBRID_FANOUT_H
#define HYBRID_FANOUT_H

#include "attn_plugin.h"
#include "plugins/hybrid/core/slice.h"

/* Layouts that a composite passes on: all. */
enum { FANOUT_NUM_LAYOUTS = 7 };
extern const char *const fanout_layouts[FANOUT_NUM_LAYOUTS];

/* ---- Problems -------------------------------------------------------------------------------- */

/* A problem as a child sees it: the caller's, with the modes and the layers that are routed to the
 * child. Points into itself and must not be moved. */
typedef struct child_problem {
    attn_problem problem;
    attn_bounds bounds;
    attn_layer_group group; /* where some of its layers are the child's; else not used */
    attn_layer *layers;     /* memory of the services; NULL = the caller's layers */
} child_problem;

/* Narrow `bounds` to `modes`. A child that only decodes has one query for each sequence. */
void fanout_narrow_bounds(const attn_bounds *bounds, uint32_t modes, attn_bounds *narrowed);

/* The limits that create gets for some layers. In a composite of composites that differs from layer
 * to layer, while metadata and batches are for all of them: of those each layer has a part. */
typedef struct fanout_limits {
    uint32_t modes;
    int32_t max_seqs, max_kv_len; /* INT32_MAX = not known */
} fanout_limits;

fanout_limits fanout_limits_of(const attn_bounds *bounds);

/* Add the part of a batch for other layers. */
void fanout_limits_add(fanout_limits *limits, const fanout_limits *other);

/* The part of `bounds` that layers with `limits` can receive; 0 = nothing. A bound beyond the
 * limits of all layers stays: children refuse it. */
int fanout_limit_bounds(const fanout_limits *limits, const fanout_limits *all,
                        const attn_bounds *bounds, attn_bounds *limited);

/* Can they receive such a batch? */
int fanout_is_within(const fanout_limits *limits, uint32_t mode, const attn_batch *batch);

/* Narrow `problem` to `modes`; the layers are all of them. */
void fanout_narrow_problem(const attn_problem *problem, uint32_t modes, child_problem *narrowed);

/* Does a child serve this layer? */
typedef int (*fanout_serves)(const void *ctx, uint32_t child, const attn_layer_group *group,
                             const attn_layer *layer);

/* Narrow a problem, narrowed already, further to the layers that child `c` serves; *count is their
 * number; with 0 the child is not queried. */
attn_status fanout_narrow_layers(const attn_services *services, child_problem *narrowed,
                                 fanout_serves serves, const void *ctx, uint32_t c, uint32_t *count,
                                 attn_error *error);

/* Give back what fanout_narrow_layers() took. */
void fanout_problem_finish(const attn_services *services, child_problem *narrowed);

/* ---- Verdicts -------------------------------------------------------------------------------- */

/* Start `verdict`, the composite's copy of the caller's `given`: supported, all traits, no reasons.
 * attn_util_verdict_end() copies it back. */
void fanout_verdict_begin(const attn_verdict *given, attn_verdict *verdict);

/* Ask child `name` and merge its answer: reasons are appended with the child's name, the graph
 * level is the minimum, determinism is the intersection, memory the sum. */
attn_status fanout_verdict_add(const attn_services *services, const char *name,
                               const attn_problem *problem, attn_verdict *verdict,
                               attn_error *error);

/* INVALID_ARGUMENT unless `services` have the calls for children. */
attn_status fanout_check_services(const attn_services *services, attn_error *error);

/* UNSUPPORTED, with the first reason as the message, if the type's query refuses one of them. */
attn_status fanout_check_problems(const attn_backend_type *type, const attn_options *options,
                                  const attn_services *services, const attn_problem *problems,
                                  uint32_t num_problems, attn_error *error);

/* ---- Layers ---------------------------------------------------------------------------------- */

/* A layer of the composite. */
typedef struct fanout_layer {
    int32_t layer_id;
    int32_t kv_group; /* of its group; -1 = none */
    uint32_t child;   /* the composite's: who serves it */
    uint32_t group;   /* index of its problem at create */
} fanout_layer;

/* All layers, by ascending id. */
typedef struct fanout_layers {
    uint32_t count;
    slice_groups groups; /* those that layers belong to, or are below one that does */
    fanout_layer *items; /* caller's memory, attn_util_count_layers() of them */
} fanout_layers;

/* Fill in `items`, `child` as `serves` says: the first of `num_children` that does. NULL = 0. */
void fanout_list_layers(const attn_problem *problems, uint32_t num_problems, fanout_serves serves,
                        const void *ctx, uint32_t num_children, fanout_layers *layers);

/* The layer, or NULL. Where ids follow each other without a gap nothing is searched. */
static inline const fanout_layer *fanout_find_layer(const fanout_layers *layers, int32_t layer_id)
{
    uint32_t low = 0, high = layers->count;
    uint32_t guess = high ? (uint32_t)layer_id - (uint32_t)layers->items[0].layer_id : 0;
    if (guess < high && layers->items[guess].layer_id == layer_id)
        return &layers->items[guess];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (layers->items[middle].layer_id == layer_id)
            return &layers->items[middle];
        if (layers->items[middle].layer_id < layer_id)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* ---- Children -------------------------------------------------------------------------------- */

/* A child that was made. */
typedef struct fanout_child {
    const attn_backend_ops *ops; /* NULL = nothing is routed to it, and it was not made */
    attn_instance *instance;
    const char *doc; /* of its type, in static storage of its plugin */
    char name[64];   /* for messages: longer names are not backends' */
} fanout_child;

/* The children of an instance. */
typedef struct fanout {
    const attn_services *services;
    fanout_child *children; /* caller's memory, zeroed at first */
    uint32_t num_children;
    int on_cpu; /* device arrays can be read by the host */
} fanout;

/* The part of `problem` for child `c`; 0 in *asked = none. The caller finishes the narrowed
 * problem. */
typedef attn_status (*fanout_route)(const void *ctx, uint32_t c, const attn_problem *problem,
                                    child_problem *narrowed, int *asked, attn_error *error);

/* Make child `c`, called `name`, for all that `route` gives it of the problems; none = no child. */
attn_status fanout_create(fanout *children, uint32_t c, const char *name,
                          const attn_problem *problems, uint32_t num_problems, fanout_route route,
                          const void *ctx, attn_error *error);

/* A zeroed instance of `size` bytes that begins with its fanout: `num_children` of them, none made
 * yet, whose array lies `children_at` bytes after its start. NULL, with OUT_OF_HOST_MEMORY in
 * *error. */
attn_instance *fanout_allocate(const attn_services *services, size_t size, size_t children_at,
                               uint32_t num_children, const attn_problem *problems,
                               attn_error *error);

/* Make all children of such an instance, and write it to *instance; destroy it if one fails. */
attn_status fanout_create_all(attn_instance *made, const char *const *names,
                              const attn_problem *problems, uint32_t num_problems,
                              fanout_route route, const void *ctx, attn_instance **instance,
                              attn_error *error);

/* Slots of attn_backend_ops, answered for all children, for a composite whose attn_instance begins
 * with its fanout. The children are destroyed from the last to the first. */
void fanout_op_destroy(attn_instance *instance);
attn_status fanout_op_prepare(attn_instance *instance, attn_progress progress, void *progress_ctx,
                              attn_error *error);
uint32_t fanout_op_index_forms(attn_instance *instance);

/* The common table of the children that have this extension; NULL if their tables differ, as the
 * answer of one would be taken for all. NULL for ATTN_EXTENSION_CODE_PATHS. */
const void *fanout_op_get_extension(attn_instance *instance, const char *id);

/* ---- Metadata of the children ---------------------------------------------------------------- */

/* Slots of child `c`, with its name before messages. UNSUPPORTED if it was not made. */
attn_status fanout_metadata_size(const fanout *children, uint32_t c, uint32_t kind,
                                 const attn_bounds *bounds, attn_memory_size *size,
                                 attn_error *error);

/* The same with the child's part of `memory`; `used` as in fanout_memory_carve(). */
attn_status fanout_metadata_create(const fanout *children, uint32_t c, uint32_t kind,
                                   const attn_bounds *bounds, const attn_memory *memory,
                                   attn_memory_size *used, attn_metadata **metadata,
                                   attn_error *error);

/* The child of `part` of a composite's metadata, and its bounds: `bounds` or `narrowed`, which was
 * then written. NULL = there is no such metadata. A composite has one part for each child, or
 * several. */
typedef const attn_bounds *(*fanout_narrow)(const attn_instance *instance, uint32_t part,
                                            const attn_bounds *bounds, uint32_t *c,
                                            attn_bounds *narrowed);

/* The memory of a composite's metadata: `own` bytes of host metadata, aligned to `alignment`, and
 * all parts after them. `split` is whether it splits MIXED: CAPTURE_UNSUPPORTED for GRAPH with it.
 */
typedef struct fanout_metadata_form {
    uint64_t own;
    uint64_t alignment;
    int split;
    uint32_t num_parts;
    fanout_narrow narrow;
} fanout_metadata_form;

/* Where a composite's own part of metadata lies. */
enum { FANOUT_OWN_REGION = ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA) };

attn_status fanout_total_size(attn_instance *instance, const fanout_metadata_form *form,
                              uint32_t kind, const attn_bounds *bounds, attn_memory_size *total,
                              attn_error *error);

/* metadata_size: the same, as far as the caller's struct goes. */
attn_status fanout_answer_size(attn_instance *instance, const fanout_metadata_form *form,
                               uint32_t kind, const attn_bounds *bounds, attn_memory_size *size,
                               attn_error *error);

/* The beginning of metadata_create: `given` in a struct of ours, large enough and aligned. */
attn_status fanout_read_memory(attn_instance *instance, const fanout_metadata_form *form,
                               uint32_t kind, const attn_bounds *bounds, const attn_memory *given,
                               attn_memory *memory, attn_error *error);

/* metadata[] has one of each child, or NULL. */
void fanout_metadata_destroy(const fanout *children, attn_metadata *const *metadata);

attn_status fanout_plan(const fanout *children, uint32_t c, attn_metadata *metadata,
                        const attn_batch *batch, attn_stream stream, attn_error *error);

/* forward_decode if `decode`, else forward_extend; UNSUPPORTED where the child hides it. */
attn_status fanout_forward(const fanout *children, uint32_t c, attn_metadata *metadata, int decode,
                           int32_t layer_id, const attn_forward_args *args, attn_stream stream,
                           attn_error *error);

/* ---- Batches --------------------------------------------------------------------------------- */

/* Is a batch of `mode` planned for forward_decode (`decode`) or forward_extend? ATTN_MODE_COUNT =
 * none is. BAD_STATE if not. */
attn_status fanout_check_planned(uint32_t mode, int decode, attn_error *error);

/* The array where the host can read it, or NULL. */
const int32_t *fanout_readable(const fanout *children, const attn_i32_array *array);

/* INVALID_ARGUMENT, naming the bound, for a batch beyond the bounds: parts of it may be within. */
attn_status fanout_check_bounds(const attn_bounds *bounds, const attn_batch *batch,
                                attn_error *error);

/* The same for max_kv_tokens, where the lengths can be read. */
attn_status fanout_check_kv_tokens(const fanout *children, const attn_bounds *bounds,
                                   const attn_batch *batch, attn_error *error);

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Add a child's memory to the composite's. */
void fanout_memory_add(const attn_memory_size *child, attn_memory_size *total);

/* Give a child its part of `memory`; `used` (zeroed by the caller first) carries on from child to
 * child, in the order of fanout_memory_add. */
void fanout_memory_carve(const attn_memory *memory, const attn_memory_size *child,
                         attn_memory_size *used, attn_memory *part);

/* BUFFER_TOO_SMALL or INVALID_ARGUMENT unless `memory` is as large and aligned as `size` says. */
attn_status fanout_memory_check(const attn_memory_size *size, const attn_memory *memory,
                                attn_error *error);

#endif /* HYBRID_FANOUT_H */
