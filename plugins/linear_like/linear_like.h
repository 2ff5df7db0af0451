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
    MAX_GROUPS = 64 /* of an instance; more than any model has */
};

extern const attn_backend_type linear_like_type;

/* ---- Query ----------------------------------------------------------------------------------- */

attn_status linear_query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *verdict, attn_error *error);

/* ---- Instance -------------------------------------------------------------------------------- */

/* Modules: the recurrence of each layout and type of state; what goes by rows; by chunks. */
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
    cuda_function decode; /* of one row a sequence; NULL: none for so many keys */
    cuda_function heads;  /* the same by whole heads; NULL: not such heads, or BATCH_INVARIANT */
    cuda_function slices; /* the same by slices of heads; NULL where `heads` is */
    cuda_function convolve;
    cuda_function convolve_vectors; /* NULL: fp32 */
    cuda_function finish;
    int by_chunks; /* long sequences; the kernels of it, `ready` NULL where it is part of the others */
    cuda_function list;
    cuda_function convolve_chunks; /* NULL: there is nothing to convolve first */
    cuda_function ready;
    cuda_function segments;
    cuda_function states;
    cuda_function wide; /* the same for 128 values a block, where sequences are many; NULL: none */
    cuda_function
        strips; /* instead of `ready` and `states`, where sequences are many; NULL: none */
    uint32_t num_layers;
    int32_t *layers; /* ids */
} linear_group;

struct attn_instance {
    const attn_services *services;
    const cuda_api *cuda;
    cuda_facts facts;
    cuda_module modules[MODULE_COUNT];
    uint32_t num_groups;
    linear_group *groups; /* the groups and their layers lie after the instance */
    uint32_t num_state_groups;
    int32_t state_groups[MAX_GROUPS]; /* of the batch, that the layers have slots in */
};

/* A group from a problem that query accepts; kernels and layers are left to the caller. */
void linear_group_init(linear_group *group, const attn_problem *problem,
                       const attn_layer_group *from, const attn_linear_dims *dims);

attn_status linear_create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error);
void linear_destroy(attn_instance *instance);

/* ---- Chunks ---------------------------------------------------------------------------------- */

/* Scratch of a group that goes by chunks: where its parts begin. */
typedef struct linear_scratch {
    uint64_t list, segments, results, carry, keys, values, rows;
    uint64_t bytes; /* 0: none is needed */
    int32_t window; /* chunks that there are tiles for */
    int32_t room;   /* segments of a window, where sequences are cut; 0: none are */
    int32_t most;   /* segments of a window */
} linear_scratch;

/* Is it a delta rule, GDN's or KDA's? */
int linear_is_delta(const linear_dims *dims);

/* Are rows of its chunks read as they are, by linear_fused, and not made ready before? */
int linear_is_fused(const linear_dims *dims);

/* CHUNK_*: what there is of its chunks. */
int linear_chunk_rule(const linear_dims *dims);

/* Is there a convolution, and are chunks convolved before all else? */
int linear_convolves_first(const linear_dims *dims);

/* Shared memory of its linear_ready_* kernel. */
uint32_t linear_ready_shared(const linear_dims *dims);

/* May sequences of such a group go by chunks, for this problem? */
int linear_goes_by_chunks(const linear_group *group, const attn_problem *problem);

/* Rows that each of a convolution's threads takes, where a row has `threads` and there are `rows`. */
int linear_convolve_rows(int64_t threads, int64_t rows);

linear_scratch linear_lay_out_scratch(const linear_group *group, const attn_bounds *bounds);

/* Enqueue the chunks of sequences that are long enough, if the batch may have such. call->chunks
 * says to other launches which these are. */
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
    int cleared;             /* readers are 0, and so they are after each launch */
    attn_state_batch *slots; /* [instance->num_state_groups]; their device arrays count */
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

/* Check the operands of a call and fill in what kernels are given, and how many slots all pools have, at
 * least. INVALID_ARGUMENT names the role. */
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
