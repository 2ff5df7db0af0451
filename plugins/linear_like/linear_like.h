/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_like.h: the data structures of the plugin, in the order in which they are made.
 *
 *   linear_group    a layer group of a model, its kernels   instance.c, after query.c said yes
 *   attn_metadata   a batch that was planned                metadata.c
 *   linear_call     one layer's operands, checked           operands.c, for kernels/params.h
 *   launches        by families                             forward.c
 *                   of what goes by chunks                  chunks.c
 */
#ifndef LINEAR_LIKE_H
#define LINEAR_LIKE_H

#include "attn_plugin.h"
#include "plugins/common/cuda/device.h"
#include "plugins/common/cuda/plan.h"
#include "plugins/common/linear_problem.h"
#include "plugins/linear_like/kernels/params.h"
#include "plugins/linear_like/kernels/shapes.h"

#ifndef LINEAR_CODES
#error "LINEAR_CODES: what the kernels are compiled for"
#endif

enum {
    MAX_GROUPS = 64 /* of an instance; no model has as many */
};

extern const attn_backend_type linear_like_type;

/* ---- Query ----------------------------------------------------------------------------------- */

attn_status linear_query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *verdict, attn_error *error);

/* ---- Instance -------------------------------------------------------------------------------- */

/* Modules: the recurrence (four, one for each layout and type of state), the kernels that go by
 * rows, and those for chunks. */
enum {
    MODULE_STEPS = 0,
    MODULE_ROWS = 4,
    MODULE_READY = 5,
    MODULE_CHANNELS = 6,
    MODULE_STATES = 7,
    MODULE_FUSED = 8,
    MODULE_WIDE = 9,
    MODULE_STRIPS = 10,
    MODULE_COUNT = 11
};

typedef struct linear_group {
    linear_dims dims;
    attn_dtype q_dtype;
    attn_dtype out_dtype;
    attn_dtype state_dtype;
    attn_dtype conv_dtype;
    uint32_t slots;       /* index of its slots in the metadata */
    int32_t lane_keys;    /* elements of k that a lane of the recurrence has */
    cuda_function steps;  /* NULL: short_conv */
    cuda_function decode; /* for one row per sequence; NULL: none for these dimensions */
    cuda_function heads;  /* the same, by whole heads; NULL: heads do not fit, or BATCH_INVARIANT */
    cuda_function slices; /* the same, by slices of heads; NULL if `heads` is */
    cuda_function convolve;
    cuda_function convolve_vectors; /* NULL for fp32 */
    cuda_function finish;
    int by_chunks; /* long sequences go by chunks, with the kernels below; `ready` is NULL if it is
                    * part of the others */
    cuda_function list;
    cuda_function convolve_chunks; /* NULL: there is nothing to convolve first */
    cuda_function ready;
    cuda_function segments;
    cuda_function states;
    cuda_function wide;   /* `states` with 128 values per block, for many sequences; NULL: none */
    cuda_function strips; /* replaces `ready` and `states` for many sequences; NULL: none */
    uint32_t num_layers;
    int32_t *layers; /* layer ids */
} linear_group;

struct attn_instance {
    const attn_services *services;
    const cuda_api *cuda;
    cuda_facts facts;
    cuda_module modules[MODULE_COUNT];
    uint32_t num_groups;
    linear_group *groups; /* the groups and their layers follow this struct in memory */
    uint32_t num_state_groups;
    int32_t state_groups[MAX_GROUPS]; /* the state groups of a batch that layers have slots in */
};

/* The group of a problem that query accepts; the caller adds kernels and layers. */
void linear_group_init(linear_group *group, const attn_problem *problem,
                       const attn_layer_group *from, const attn_linear_dims *dims);

attn_status linear_create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error);
void linear_destroy(attn_instance *instance);

/* ---- Chunks ---------------------------------------------------------------------------------- */

/* Byte offsets of the scratch memory of a group that goes by chunks. */
typedef struct linear_scratch {
    uint64_t list, segments, results, carry, keys, values, rows;
    uint64_t bytes; /* 0: none is needed */
    int32_t window; /* chunks that have tiles at a time */
    int32_t room;   /* segments of a window if sequences are cut; 0: none are */
    int32_t most;   /* segments of a window */
} linear_scratch;

/* Is it a delta rule, GDN's or KDA's? */
int linear_is_delta(const linear_dims *dims);

/* Does linear_fused read the rows of its chunks directly, without linear_ready_* before? */
int linear_is_fused(const linear_dims *dims);

/* The CHUNK_* rule of its chunks. */
int linear_chunk_rule(const linear_dims *dims);

/* Is there a convolution, and are chunks convolved before all else? */
int linear_convolves_first(const linear_dims *dims);

/* Shared memory of its linear_ready_* kernel. */
uint32_t linear_ready_shared(const linear_dims *dims);

/* May sequences of the group go by chunks in this problem? */
int linear_goes_by_chunks(const linear_group *group, const attn_problem *problem);

/* Rows that each thread of a convolution takes, if `rows` rows have `threads` threads each. */
int linear_convolve_rows(int64_t threads, int64_t rows);

linear_scratch linear_lay_out_scratch(const linear_group *group, const attn_bounds *bounds);

/* Enqueue the chunks of long sequences, if the batch may have any. Later launches read in
 * call->chunks which sequences these are. */
attn_status linear_launch_chunks(const attn_metadata *metadata, const linear_group *group,
                                 linear_call *call, attn_stream stream, attn_error *error);

/* ---- Metadata -------------------------------------------------------------------------------- */

struct attn_metadata {
    attn_instance *instance;
    cuda_plan plan;
    char *scratch; /* device memory; NULL = none is needed */
    unsigned
        *readers; /* linear_decode_call.readers, in device memory; NULL = no group needs them */
    uint64_t num_readers;
    int cleared;             /* readers are 0; each launch leaves them so */
    attn_state_batch *slots; /* [instance->num_state_groups]; only device arrays are read */
};

/* Bytes of attn_metadata.readers that a group needs. */
uint64_t linear_readers_bytes(const linear_group *group, const attn_bounds *bounds);

attn_status linear_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 attn_memory_size *size, attn_error *error);
attn_status linear_metadata_create(attn_instance *instance, uint32_t kind,
                                   const attn_bounds *bounds, const attn_memory *memory,
                                   attn_metadata **metadata, attn_error *error);
attn_status linear_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                         attn_stream stream, attn_error *error);

/* ---- Forward --------------------------------------------------------------------------------- */

/* Check the operands of a call, and fill in the kernels' arguments and the least number of slots of
 * a pool. INVALID_ARGUMENT names the role. */
attn_status linear_take_operands(const attn_metadata *metadata, const linear_group *group,
                                 const attn_forward_args *args, linear_call *call, int64_t *slots,
                                 attn_error *error);

attn_status linear_forward_extend(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error);
attn_status linear_forward_decode(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error);

#endif /* LINEAR_LIKE_H */
