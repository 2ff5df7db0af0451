/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_native.h: the data structures of the plugin, in the order in which they are made.
 *
 *   cpu_options   from the ini                          plugin.c
 *   attn_instance layer groups of a model               instance.c, after query.c said yes
 *   attn_metadata a planned batch, one group_plan each  memory.c lays it out, plan.c fills it
 *   layer_call    one layer's operands, checked         operands.c
 *   unit          rows and keys that a worker does      attend.c
 *
 * Work of a layer: tiles of rows, times KV heads. A tile's keys are cut at multiples of
 * options.kv_split_tokens; each split gives a partial result, and partials are merged in order of
 * the keys. Who computes the splits does not change a bit, so tiles that would keep one worker busy
 * for too long are shared out by splits, and are merged in a second step.
 *
 * Latent attention goes the same way; what it does otherwise is in mla/ (mla/mla.h), and is called
 * where group->mla says so. So does attention to chosen latents: sparse/ (sparse/sparse.h), where
 * group->sparse.top_k is not 0.
 */
#ifndef CPU_NATIVE_H
#define CPU_NATIVE_H

#include "attn_plugin.h"
#include "plugins/common/cpu_isa.h"
#include "attn_plugin_util.h"
#include "plugins/cpu_native/mla/latent.h"
#include "plugins/cpu_native/sparse/index.h"
#include "kernels.h"
#include "visibility.h"

/* ---- Options --------------------------------------------------------------------------------- */

typedef struct cpu_options {
    int32_t isa;          /* CPU_ISA_* */
    int32_t split;        /* keys between two cuts, a multiple of TILE_KEYS */
    uint32_t index_forms; /* ATTN_INDEX_* */
    int32_t round_probabilities;
} cpu_options;

/* The values, or the defaults if `given` is NULL. CONFIG_ERROR for an invalid value. */
attn_status cpu_options_read(const attn_options *given, cpu_options *options, attn_error *error);

extern const attn_backend_type cpu_native_type;

/* ---- Query ----------------------------------------------------------------------------------- */

attn_status cpu_query(const attn_backend_type *type, const attn_options *options,
                      const attn_services *services, const attn_problem *problem,
                      attn_verdict *verdict, attn_error *error);

/* Refusals of bounds by query, as one message: UNSUPPORTED, or INVALID_ARGUMENT for unknown bounds.
 */
attn_status cpu_require_bounds(const attn_bounds *bounds, attn_error *error);

/* ---- Instance -------------------------------------------------------------------------------- */

typedef attn_util_layer cpu_layer;

/* The plugin's record of a layer group. */
typedef struct cpu_group {
    uint32_t modes;      /* ATTN_MODE_BIT set */
    mla_group mla;       /* zero unless it is latent attention */
    sparse_group sparse; /* zero unless it is attention to chosen latents */
    uint32_t attn_type;  /* ATTN_TYPE_* */
    int32_t kv_group;
    int32_t kv_heads;
    int32_t ratio; /* query heads of a KV head */
    int32_t dim;   /* of queries and keys */
    int32_t v_dim; /* of values and outputs */
    int32_t window_left;
    int32_t window_right;
    int32_t chunk;
    int32_t page_size;
    int32_t hnd; /* layout kv.hnd/1, else kv.nhd/1 */
    int32_t has_sinks;
    score_rule rule;
    uint32_t scale_granularity;
    uint32_t input_granularity; /* of the scales of q and of new k, v */
    attn_dtype q_dtype;
    attn_dtype new_dtype; /* of new k, v */
    attn_dtype kv_dtype;
    attn_dtype out_dtype;
    const fp8_format *fp8;     /* of the cache; NULL = not quantised */
    const fp8_format *fp8_out; /* of the output; likewise */
    float decode[256];         /* fp8: values of all codes; */
    float decode_q[256];       /* of q, */
    float decode_new[256];     /* of new k, v */
    uint32_t num_layers;
    cpu_layer *layers;
} cpu_group;

enum {
    MAX_PROBLEMS = 64, /* of an instance; more than any model has */
    MAX_FORMS = 2,     /* groups of a problem: of latent attention in both forms */
    MAX_GROUPS = MAX_PROBLEMS * MAX_FORMS
};

struct attn_instance {
    const attn_services *services;
    const cpu_kernels *kernels;
    cpu_options options;
    uint32_t num_groups;
    cpu_group *groups; /* the groups and their layers lie after the instance */
};

attn_status cpu_create(const attn_backend_type *type, const attn_problem *problems,
                       uint32_t num_problems, const attn_options *options,
                       const attn_services *services, attn_instance **instance, attn_error *error);
/* Kernels that the compiler could build. */
extern const cpu_isa_build cpu_builds[];
extern const size_t cpu_num_builds;
void cpu_destroy(attn_instance *instance);
uint32_t cpu_index_forms(attn_instance *instance);

/* The groups of a problem, MAX_FORMS at most: one, or one for each form of latent attention. Layers
 * are left to the caller. Returns their number. */
uint32_t cpu_groups_init(cpu_group *groups, const attn_problem *problem);

/* ---- Metadata -------------------------------------------------------------------------------- */

/* A sequence of a batch in a layer group. Rows are absolute. */
typedef struct cpu_sequence {
    int32_t first_row; /* of queries */
    int32_t q_len;
    int32_t prefix_len; /* position of query 0 */
    int32_t kv_len;
    int32_t num_new; /* rows of new keys, the last of kv_len; may exceed it in padding */
    int32_t first_new;
} cpu_sequence;

/* What one task does for one KV head: rows [row, row + rows) of a sequence (row r is query
 * r / ratio, query head r % ratio) against the keys of the splits [first_split, end_split). */
typedef struct work_unit {
    int64_t row;
    int32_t rows;
    int32_t seq;
    int32_t first_split;
    int32_t end_split;
    int32_t num_parts; /* partial results of this unit for each KV head; 0 = it writes outputs */
    int64_t part;      /* rows of partial results before those of this unit, per KV head */
} work_unit;

/* The plan of a layer group for a batch. */
typedef struct group_plan {
    cpu_sequence *sequences; /* [bounds.max_seqs] */
    work_unit *units;        /* tasks / kv_heads */
    work_unit *merges;       /* tiles in several units: num_parts splits from `part` on */
    int32_t num_units;
    int32_t num_merges;
    int32_t merge_pieces; /* of MERGE_ROWS rows, of the merge that has most rows */
    int64_t part_rows;    /* rows of partial results for each KV head */
    int32_t new_first;    /* rows of new keys: [new_first, new_end) */
    int32_t new_end;
    int32_t row_first; /* of all sequences' rows */
    int32_t row_end;   /* most rows that q, out and lse must have */
    int32_t longest;   /* keys of a sequence, at most */
    int32_t max_count; /* sparse: entries of a row's list, at most */
    int32_t pad_first; /* rows of no sequence: [pad_first, pad_end) */
    int32_t pad_end;
    int32_t reads_prefix; /* some keys are not among the new ones */
    int32_t short_seq;    /* a sequence with fewer keys than new ones, padding aside; -1 = none */
    uint32_t index_form;  /* the one that is read; 0 = no cache */
    attn_kv_batch kv;
} group_plan;

enum {
    SHARE = 8 /* units that work is cut into, for each worker: the last ones to end differ by an */
              /* eighth of the time */
};

/* Capacities of a group's plan and scratch. */
typedef struct group_capacity {
    int64_t units;
    int64_t merges;
    int64_t shares;      /* units that all work is cut into, roughly */
    int64_t part_rows;   /* for all KV heads together */
    int64_t part_floats; /* of a row of partial results: its sums in whole panels, max and sum */
    int64_t worker_bytes;
    int64_t shared_floats; /* sparse: logits and lists, of all workers */
} group_capacity;

struct attn_metadata {
    attn_instance *instance;
    attn_bounds bounds;
    group_plan *plans;          /* [num_groups] */
    group_capacity *capacities; /* [num_groups] */
    char *scratch;              /* a part for each worker, then partial results, then: */
    float *shared;              /* logits and lists of sparse groups */
    uint64_t worker_bytes;
    int32_t planned;
    attn_batch batch; /* its scalars and device arrays */
    attn_mask mask;
    attn_multi_item multi_item;
};

/* Rows of queries and scores: in whole panels where rows are columns. */
static inline int32_t cpu_lanes(const cpu_group *group, int32_t rows)
{
    return group->mla.absorbed ? panel_round(rows) : rows;
}

group_capacity cpu_group_capacity(const cpu_group *group, const cpu_options *options,
                                  uint32_t num_workers, const attn_bounds *bounds);
/* Bytes of scratch for such groups: the most that one of them needs. */
uint64_t cpu_scratch_bytes(const group_capacity *capacities, uint32_t count, uint32_t num_workers);
/* Offset, within these, of the memory that sparse groups share. */
uint64_t cpu_shared_offset(const group_capacity *capacities, uint32_t count, uint32_t num_workers);

/* Bytes of host metadata. */
uint64_t cpu_metadata_bytes(const group_capacity *capacities, uint32_t count,
                            const attn_bounds *bounds);

attn_status cpu_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                              attn_memory_size *size, attn_error *error);
attn_status cpu_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                const attn_memory *memory, attn_metadata **metadata,
                                attn_error *error);
void cpu_metadata_destroy(attn_metadata *metadata);
attn_status cpu_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                      attn_stream stream, attn_error *error);

/* The steps of a plan: one unit for each tile of `tile_rows` rows, returning what all of them cost;
 * then units of tiles that take too long for one worker are shared out by splits. */
int64_t cpu_cut_tiles(const attn_metadata *metadata, const cpu_group *group, int32_t tile_rows,
                      group_plan *plan);
void cpu_share_tiles(const cpu_group *group, group_plan *plan, const group_capacity *capacity,
                     int64_t cost);

/* Time a unit takes for one KV head, roughly: keys are packed, then met by every row. */
static inline int64_t unit_cost(const work_unit *unit)
{
    return (int64_t)(unit->end_split - unit->first_split) * (unit->rows + 8);
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* The strides of a cache, in bytes, whatever its layout. */
typedef struct cache_view {
    char *data;
    int64_t page;
    int64_t token;
    int64_t head;
    int64_t num_pages;
    const float *scales; /* fp8: as the group's granularity says */
} cache_view;

/* One layer's operands. A view's data is NULL where the operand is absent. */
typedef struct layer_call {
    const attn_instance *instance;
    const attn_metadata *metadata;
    const cpu_group *group;
    const group_plan *plan;
    const group_capacity *capacity;
    const attn_tensor *q;
    const attn_tensor *k; /* new keys */
    const attn_tensor *v;
    mla_operands mla;
    sparse_operands sparse;
    int32_t attends; /* else it stops before attention: a sparse layer's choice alone */
    const attn_tensor *out;
    const attn_tensor *lse;
    cache_view k_cache;
    cache_view v_cache;
    const float *q_scales; /* fp8: as the group's input_granularity says */
    const float *new_k_scales;
    const float *new_v_scales;
    float out_scale;     /* fp8 */
    const float *sinks;  /* NULL = none, or to be omitted */
    const float *slopes; /* NULL = no ALiBi */
    int32_t save;
    /* The first key or row found to lie outside the cache. */
    uint32_t fault_claimed;
    int32_t fault_seq; /* -1: fault_at is a row of out_cache_loc */
    int64_t fault_at;
    int64_t fault_slot;
} layer_call;

/* Check the operands of a call. INVALID_ARGUMENT names the role. */
attn_status cpu_call_init(layer_call *call, attn_metadata *metadata, int32_t layer_id,
                          const attn_forward_args *args, attn_error *error);

/* Checks shared by both kinds of attention: an operand of `rows` rows or more; out and lse; k and
 * v; slots of new keys. */
attn_status cpu_get_rows(const attn_forward_args *args, uint32_t role, attn_util_form form,
                         int64_t rows, const attn_tensor **operand, attn_error *error);
attn_status cpu_get_outputs(layer_call *call, const attn_forward_args *args, attn_error *error);

/* The scale of q, k or v, or of a part of q, where they are fp8. */
attn_status cpu_get_input_scale(const layer_call *call, const attn_forward_args *args,
                                uint32_t role, attn_dtype dtype, const float **scales,
                                attn_error *error);
attn_status cpu_get_new_kv(layer_call *call, const attn_forward_args *args, attn_error *error);
attn_status cpu_check_new_keys(const layer_call *call, attn_error *error);

/* Tasks for parallel_for; `arg` is a layer_call. */
attn_status cpu_save_task(void *arg, int64_t task, uint32_t worker);
attn_status cpu_attend_task(void *arg, int64_t task, uint32_t worker);
attn_status cpu_merge_task(void *arg, int64_t task, uint32_t worker);

/* Write `dim` elements of one head of a new row, which is of this format, as the cache holds them.
 */
void cpu_save_head(const layer_call *call, const void *from, const row_format *format,
                   const float *scale, int32_t dim, char *to);

/* The reading of a new row of a KV head with these scales. */
row_format cpu_new_format(const cpu_group *group, const float *scales, int32_t seq,
                          int32_t kv_head);

/* Tasks of cpu_save_task. */
int64_t cpu_save_tasks(const layer_call *call);

/* Run tasks; if one finds a slot outside the cache, the error says so. */
attn_status cpu_run(layer_call *call, int64_t count, attn_task task, void *arg, attn_error *error);

/* Record a slot outside the cache, and return the task's status for it. */
attn_status cpu_call_fault(layer_call *call, int32_t seq, int64_t at, int64_t slot);

/* The visibility of keys for the queries of a planned sequence. */
void cpu_visibility(const attn_metadata *metadata, const cpu_group *group, const group_plan *plan,
                    int32_t seq, visibility *v);

attn_status cpu_forward_extend(attn_metadata *metadata, int32_t layer_id,
                               const attn_forward_args *args, attn_stream stream,
                               attn_error *error);
attn_status cpu_forward_decode(attn_metadata *metadata, int32_t layer_id,
                               const attn_forward_args *args, attn_stream stream,
                               attn_error *error);

/* Address of a new key or value. */
static inline const char *new_row(const attn_tensor *tensor, int64_t row, int32_t head)
{
    return (const char *)tensor->data + tensor->byte_offset +
           (row * tensor->strides[0] + head * tensor->strides[1]) *
               (int64_t)attn_dtype_size(tensor->dtype);
}

#endif /* CPU_NATIVE_H */
