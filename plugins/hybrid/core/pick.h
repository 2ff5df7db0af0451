/* SPDX-License-Identifier: Apache-2.0
 *
 * pick.h: composites that pick a child for each batch: hybrid_phase by its phase, route by a table,
 * autotune by its measurements.
 *
 *   - init_forward_metadata picks, from numbers that the host knows of a batch: its mode,
 *     num_seqs (padding included) and max_kv_len. Nothing is read from the device.
 *   - GRAPH metadata picks once, by its bounds: max_seqs and max_kv_len stand for those of every
 *     batch, so that a captured graph and all its replays are one child's.
 *   - Layers that rules may tell apart are in different parts; a part is the unit that is picked
 *     for.
 *   - MIXED is split by rows where it may be (split.h): extend rows are picked for as EXTEND,
 *     decode rows as DECODE, each with its own number of sequences. Else it is picked for as
 *     EXTEND. */
#ifndef HYBRID_PICK_H
#define HYBRID_PICK_H

#include "attn_plugin.h"
#include "fanout.h"

enum { PICK_MAX_CHILDREN = 32 };

/* The properties of a batch, or of a separately served part of it, that rules use. */
enum {
    PICK_PREFILL = 0, /* EXTEND; extend rows of MIXED; MIXED as a whole */
    PICK_DECODE = 1,  /* DECODE; decode rows of MIXED */
    PICK_VERIFY = 2,  /* TARGET_VERIFY */
    PICK_DRAFT = 3,   /* DRAFT_EXTEND */
    PICK_PHASES = 4
};

/* The largest batch that is routed to a child. */
typedef struct pick_reach {
    int32_t max_seqs; /* 0 = none is routed to it */
    int32_t max_kv_len;
} pick_reach;

/* Who is picked. */
typedef struct pick_rules {
    uint32_t num_children;

    /* A number that tells the parts of a composite apart: this layer's. */
    uint32_t (*part_of)(const void *ctx, const attn_layer_group *group, int32_t layer_id);

    /* The child that serves a batch of a part. */
    uint32_t (*choose)(const void *ctx, uint32_t part, uint32_t phase, int32_t num_seqs,
                       int32_t max_kv_len);

    /* The work routed to `child` from a part's batches of at most max_seqs sequences and max_kv_len
     * keys (INT32_MAX = no limit known). */
    pick_reach (*reach)(const void *ctx, uint32_t part, uint32_t phase, int32_t max_seqs,
                        int32_t max_kv_len, uint32_t child);

    /* The same after decisions that follow create: a child needs no metadata for work that it never
     * receives, though sizes include it. NULL = as `reach`. */
    pick_reach (*decided)(const void *ctx, uint32_t part, uint32_t phase, int32_t max_seqs,
                          int32_t max_kv_len, uint32_t child);

    /* The child that receives extend rows never has decode rows: its metadata for DECODE then also
     * serves decode rows of a split MIXED. */
    int halves_apart;
} pick_rules;

/* Rules with what they need, and whether MIXED is split. */
typedef struct picker {
    const pick_rules *rules;
    const void *ctx;
    int split_mixed;
} picker;

/* Layers that rules treat alike, of groups with the same bounds. */
typedef struct pick_part {
    uint32_t name; /* as part_of() names it */
    fanout_limits limits;
} pick_part;

struct attn_instance {
    fanout children;                       /* first: fanout_op_destroy() and its kin */
    fanout_child child[PICK_MAX_CHILDREN]; /* what `children` has */
    picker pick;
    uint32_t needs[PICK_MAX_CHILDREN];      /* SLICE_*, of the layers that a child can receive */
    slice_groups groups[PICK_MAX_CHILDREN]; /* those that they belong to, or are below one */
    uint32_t all_needs;
    uint32_t num_parts;
    pick_part *parts;     /* [num_parts] after the layers, as `own` is */
    fanout_limits limits; /* of all parts together */
    void *own;            /* of the composite that picks */
    fanout_layers layers;
    fanout_layer items[]; /* what `layers` has; `child` is an index into the parts */
};

/* ---- Query ----------------------------------------------------------------------------------- */

/* Is MIXED split for this problem? Asks the children where the answer depends on them. `names` has
 * one of each child. */
attn_status pick_decide_split(const attn_services *services, const picker *pick,
                              const char *const *names, const attn_problem *problem, int *split,
                              attn_error *error);

/* Query each child about the work routed to it, and merge. */
attn_status pick_query(const attn_services *services, const picker *pick, const char *const *names,
                       const attn_problem *problem, attn_verdict *verdict, attn_error *error);

/* ---- Instance -------------------------------------------------------------------------------- */

/* An instance for problems that query accepted, with `own_size` zeroed bytes for `own`. `ctx` is
 * read during the call alone: the caller sets instance->pick.ctx afterwards. */
attn_status pick_create(const attn_services *services, const picker *pick, const char *const *names,
                        const attn_problem *problems, uint32_t num_problems, size_t own_size,
                        attn_instance **instance, attn_error *error);

/* Slots of attn_backend_ops, and all of them for a composite that adds nothing. */
extern const attn_backend_ops pick_ops;
attn_status pick_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                               attn_memory_size *size, attn_error *error);
attn_status pick_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 const attn_memory *memory, attn_metadata **metadata,
                                 attn_error *error);
attn_status pick_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                       attn_stream stream, attn_error *error);
void pick_metadata_destroy(attn_metadata *metadata);
attn_status pick_forward_extend(attn_metadata *metadata, int32_t layer_id,
                                const attn_forward_args *args, attn_stream stream,
                                attn_error *error);
attn_status pick_forward_decode(attn_metadata *metadata, int32_t layer_id,
                                const attn_forward_args *args, attn_stream stream,
                                attn_error *error);

/* Bytes of host memory that metadata takes for itself. */
uint64_t pick_metadata_bytes(uint32_t num_parts, slice_groups groups);

/* ---- A child's share ------------------------------------------------------------------------- */

/* Metadata of a child: for whole batches and extend rows, and for decode rows of a split MIXED. */
enum { PICK_WHOLE = 0, PICK_ROWS = 1, PICK_HALVES = 2 };

/* A child's share of some parts. */
typedef struct pick_share {
    uint32_t modes; /* ATTN_MODE_BIT set */
    pick_reach most;
    int asked; /* also without a mode, where the bounds have none that a child is called for */
} pick_share;

/* Add to `share` the work routed to `child` from a part's batches within `bounds`. */
void pick_add_share(const picker *pick, uint32_t part, const attn_bounds *bounds, uint32_t half,
                    uint32_t child, pick_share *share);

/* `bounds` for that share. */
void pick_narrow_bounds(const attn_bounds *bounds, const pick_share *share, attn_bounds *narrowed);

#endif /* HYBRID_PICK_H */
