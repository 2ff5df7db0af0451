/* SPDX-License-Identifier: Apache-2.0
 *
 * fa3_like.h: the plugin's own declarations.
 *
 *   plugin.c         tables
 *   query.c          what it can do
 *   instance.c       an instance for a model's layer groups, and its kernels
 *   metadata.c       memory, and a batch: checked, and planned on the device
 *   forward.c        a layer: operands to the kernels' parameters, two launches
 *   local_batches.c  attention in chunks as batches of its own
 *   kernels/         the kernels; shapes.h is the table of the forward kernels, params.h and
 * batch.h are what they are told
 */
#ifndef FA3_LIKE_H
#define FA3_LIKE_H

#include "attn_plugin.h"
#include "plugins/common/cuda/device.h"
#include "plugins/common/cuda/plan.h"
#include "plugins/fa3_like/kernels/batch.h"
#include "plugins/fa3_like/kernels/params.h"
#include "plugins/fa3_like/kernels/shapes.h"

enum {
    DEFAULT_SMS = 132,    /* multiprocessors of a device that does not tell */
    ROWS_BLOCKS = 8,      /* blocks of fa3_rows for each multiprocessor */
    L2_SECTION = 32 << 20 /* bytes of keys and values that are worked on together */
};

/* ---- Layer groups ---------------------------------------------------------------------------- */

enum { TYPE_BF16 = 0, TYPE_F16 = 1, TYPE_COUNT = 2 };

extern const fa3_tile fa3_tiles[];
extern const uint32_t fa3_num_tiles;

/* Its tiles, or NULL. */
const fa3_tile *fa3_find_tile(int32_t dim, int32_t dim_v);

typedef struct fa3_group {
    cuda_group base; /* q_dtype is that of everything */
    const fa3_tile *tile;
    cuda_function forward;
} fa3_group;

/* A group from a problem that query accepts; layers and the kernel are left to the caller. */
void fa3_group_init(fa3_group *group, const attn_problem *problem);

/* ---- Query ----------------------------------------------------------------------------------- */

attn_status fa3_query(const attn_backend_type *type, const attn_options *options,
                      const attn_services *services, const attn_problem *problem,
                      attn_verdict *verdict, attn_error *error);
/* What query says no to in bounds, as one sentence: UNSUPPORTED, or INVALID_ARGUMENT for bounds
 * that are not known. */
attn_status fa3_require_bounds(const attn_bounds *bounds, attn_error *error);

extern const attn_backend_type fa3_like_type;

/* ---- Instance -------------------------------------------------------------------------------- */

struct attn_instance {
    const attn_services *services;
    const cuda_api *cuda;
    cuda_facts facts;
    cuda_module rows_module;
    cuda_function plan;
    cuda_function rows;
    cuda_module *modules; /* [num_tiles][TYPE_COUNT] of forward kernels; NULL = not needed */
    uint32_t num_groups;
    fa3_group *groups; /* groups, layers and modules lie behind the instance */
};

attn_status fa3_create(const attn_backend_type *type, const attn_problem *problems,
                       uint32_t num_problems, const attn_options *options,
                       const attn_services *services, attn_instance **instance, attn_error *error);
void fa3_destroy(attn_instance *instance);
uint32_t fa3_index_forms(attn_instance *instance);

/* ---- Metadata -------------------------------------------------------------------------------- */

/* A batch as a layer group sees it, by the names of FlashAttention's callers. What is NULL is told
 * by another: queries by cu_seqlens_q, or one for each sequence (DECODE); keys by cache_seqlens, or
 * by cu_seqlens_k, where they are rows of k and v and there are no others. */
typedef struct fa3_metadata {
    const int32_t *cu_seqlens_q;
    const int32_t *cu_seqlens_k;
    const int32_t *cache_seqlens;
    const int32_t *page_table; /* [num_seqs, page_table_stride] */
    int64_t page_table_stride;
    int32_t max_seqlen_q;
    int32_t max_seqlen_k;
    int32_t window_left; /* FA3_UNBOUNDED = no limit */
    int32_t window_right;
    fa3_plan *plan; /* on the device, as are its lists */
    int32_t *tiles, *slow;
} fa3_metadata;

/* Where the parts of a group's plan lie in its memory. Bytes. */
typedef struct fa3_plan_layout {
    int64_t most_tiles;
    uint64_t tiles_at, slow_at, first_tile_at, marks_at;
    uint64_t size;
} fa3_plan_layout;

fa3_plan_layout fa3_layout_plan(const fa3_group *group, const attn_bounds *bounds);

struct attn_metadata {
    attn_instance *instance;
    cuda_plan plan;
    uint64_t counter;     /* device: two numbers that every forward kernel leaves at 0 */
    fa3_metadata *groups; /* [num_groups], as is plan.kv */
};

attn_status fa3_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                              attn_memory_size *size, attn_error *error);
attn_status fa3_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                const attn_memory *memory, attn_metadata **metadata,
                                attn_error *error);
void fa3_metadata_destroy(attn_metadata *metadata);
attn_status fa3_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                      attn_stream stream, attn_error *error);

/* Bytes of device and host memory in all, for what query tells. */
void fa3_tell_memory(const attn_problem *problem, attn_verdict *verdict);

/* ---- Forward --------------------------------------------------------------------------------- */

attn_status fa3_forward_extend(attn_metadata *metadata, int32_t layer_id,
                               const attn_forward_args *args, attn_stream stream,
                               attn_error *error);
attn_status fa3_forward_decode(attn_metadata *metadata, int32_t layer_id,
                               const attn_forward_args *args, attn_stream stream,
                               attn_error *error);

#endif /* FA3_LIKE_H */
