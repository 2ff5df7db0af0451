/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_linear.h: the data structures of the plugin, in the order in which they are made.
 *
 *   linear_options  from the ini                           plugin.c
 *   attn_instance   layer groups of a model                instance.c, after query.c said yes
 *   attn_metadata   the sequences of a planned batch       memory.c lays it out, plan.c fills it
 *   linear_call     one layer's operands, checked          operands.c
 *   tasks           heads of a sequence; its conv state    forward.c, by kernels.h
 *
 * Work of a layer: sequences, times blocks of v heads that share a k head. A task takes its block
 * (several in a decode) through all rows of its sequence, in chunks of CHUNK rows as matrix
 * products, which end where a snapshot is wanted, or row by row where there are few rows
 * (options.recurrent_tokens), few from one snapshot to the next, or bits may not depend on the cut.
 * States of the convolution are read by several tasks, so they are written when all are done.
 */
#ifndef CPU_LINEAR_H
#define CPU_LINEAR_H

#include "attn_plugin.h"
#include "plugins/common/cpu_isa.h"
#include "plugins/common/linear_problem.h"

enum {
    CHUNK = 64,                /* rows */
    HEAD_BLOCK = 4,            /* v heads of a block at most; shared products are computed once */
    TASKS_OF_WORKER = 4,       /* in a decode, at least: the last ones to end differ little */
    MAX_DIM = LINEAR_MOST_DIM, /* of a head */
    MAX_WIDTH = LINEAR_MOST_WIDTH, /* of the convolution */
    PANEL = 16,                    /* floats: a cache line, which rows are padded to */
    CONV_BLOCK = 2048              /* channels of a task that writes states of the convolution */
};

/* ---- Options --------------------------------------------------------------------------------- */

typedef struct linear_options {
    int32_t isa;              /* CPU_ISA_* */
    int32_t recurrent_tokens; /* sequences of at most this many rows go row by row */
} linear_options;

/* The values, or the defaults if `given` is NULL. CONFIG_ERROR for an invalid value. */
attn_status linear_options_read(const attn_options *given, linear_options *options,
                                attn_error *error);

extern const attn_backend_type cpu_linear_type;

/* ---- Query ----------------------------------------------------------------------------------- */

attn_status linear_query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *verdict, attn_error *error);

/* ---- Instance -------------------------------------------------------------------------------- */

/* The plugin's record of a layer group. */
typedef struct linear_group {
    uint32_t family;
    int32_t k_heads; /* 0: short_conv */
    int32_t v_heads;
    int32_t ratio; /* v heads of a k head */
    int32_t k_dim;
    int32_t v_dim;
    int32_t channels;
    int32_t first[3]; /* channels of q, k and v */
    int32_t width;    /* of the convolution */
    int32_t silu;     /* after the convolution */
    int32_t l2_norm;
    int32_t raw;
    int32_t delta;      /* the state's own answer is subtracted from v */
    int32_t vector;     /* a log decay for each channel of k */
    int32_t vk;         /* state.ssm.vk/1 */
    int32_t by_steps;   /* all rows go row by row: BATCH_INVARIANT is needed */
    uint32_t slots;     /* index of its slots in the metadata */
    int32_t num_blocks; /* of v heads of all k heads */
    float sm_scale;
    float dt_min;
    float dt_max; /* infinite = no bound */
    float lower_bound;
    attn_dtype q_dtype;
    attn_dtype out_dtype;
    attn_dtype state_dtype;
    attn_dtype conv_dtype;
    uint32_t num_layers;
    int32_t *layers; /* ids */
} linear_group;

typedef struct linear_kernels linear_kernels;

enum { MAX_GROUPS = 64 }; /* of an instance; more than any model has */

struct attn_instance {
    const attn_services *services;
    const linear_kernels *kernels;
    linear_options options;
    uint32_t num_groups;
    linear_group *groups; /* the groups and their layers lie after the instance */
    uint32_t num_state_groups;
    int32_t state_groups[MAX_GROUPS]; /* of the batch, that the layers have slots in */
};

attn_status linear_create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error);
void linear_destroy(attn_instance *instance);

/* Kernels that the compiler could build. */
extern const cpu_isa_build linear_builds[];
extern const size_t linear_num_builds;

/* A group from a problem; layers are left to the caller. */
void linear_group_init(linear_group *group, const attn_problem *problem,
                       const attn_layer_group *from, const attn_linear_dims *dims);

/* ---- Metadata -------------------------------------------------------------------------------- */

/* A sequence of a batch in a state group. Rows are absolute. */
typedef struct linear_sequence {
    int32_t first_row;
    int32_t num_rows;
    int32_t slot;      /* to be read; 0 = start from zero */
    int32_t dst;       /* to be written; 0 = dropped */
    int32_t snapshots; /* rows that have one */
} linear_sequence;

/* The sequences of a batch with their slots in a state group. */
typedef struct linear_slots {
    linear_sequence *sequences; /* [bounds.max_seqs] */
    int32_t *snapshots;         /* [bounds.max_tokens] of row first_row + n */
    int32_t most_slot;          /* largest slot of all */
} linear_slots;

struct attn_metadata {
    attn_instance *instance;
    attn_bounds bounds;
    char *scratch; /* a part for each worker */
    uint64_t worker_bytes;
    int32_t planned;
    uint32_t mode;
    int32_t num_seqs;    /* that are no padding */
    linear_slots *slots; /* [instance->num_state_groups] */
    int32_t first_row;   /* rows of the batch: [first_row, row_end) */
    int32_t row_end;
    int32_t pad_first; /* rows of padding: [pad_first, row_end) */
};

/* Floats of a worker's scratch for a group, in the order in which kernels.inc lays it out. */
int64_t linear_scratch_floats(const linear_group *group);

/* Bytes of scratch, and of host metadata. */
uint64_t linear_worker_bytes(const linear_group *groups, uint32_t count);
uint64_t linear_metadata_bytes(const attn_bounds *bounds, uint32_t num_state_groups);

attn_status linear_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 attn_memory_size *size, attn_error *error);
attn_status linear_metadata_create(attn_instance *instance, uint32_t kind,
                                   const attn_bounds *bounds, const attn_memory *memory,
                                   attn_metadata **metadata, attn_error *error);
void linear_metadata_destroy(attn_metadata *metadata);
attn_status linear_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                         attn_stream stream, attn_error *error);

/* ---- Forward --------------------------------------------------------------------------------- */

/* One layer's operands; NULL where one is absent or of no use. */
typedef struct linear_call {
    const attn_instance *instance;
    const attn_metadata *metadata;
    const linear_group *group;
    const linear_slots *slots;
    const attn_tensor *mixed;
    const attn_tensor *out;
    const attn_tensor *a;
    const attn_tensor *b;
    const attn_tensor *z;
    const attn_tensor *weight;
    const attn_tensor *state;
    const attn_tensor *conv_state;
    const void *bias; /* [channels] in q_dtype */
    const float *a_log;
    const float *dt_bias; /* of head h, channel i: dt_bias[h * dt_bias_stride + i] */
    int64_t dt_bias_stride;
    const float *skip; /* of head h, element j: skip[h * skip_stride + j * skip_step] */
    int64_t skip_stride;
    int32_t skip_step;   /* 0: one for a head */
    int64_t num_blocks;  /* of heads of all sequences */
    int64_t task_blocks; /* of a task at most */
} linear_call;

/* Check the operands of a call. INVALID_ARGUMENT names the role. */
attn_status linear_call_init(linear_call *call, attn_metadata *metadata, int32_t layer_id,
                             const attn_forward_args *args, attn_error *error);

attn_status linear_forward_extend(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error);
attn_status linear_forward_decode(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error);

/* ---- Kernels --------------------------------------------------------------------------------- */

/* Compiled once for each instruction set from kernels.inc. */
struct linear_kernels {
    const char *name;

    /* All rows of a sequence for v heads [head, end), which share a k head: outputs, states,
     * snapshots. scratch: linear_scratch_floats(). */
    void (*heads)(const linear_call *call, const linear_sequence *sequence, int32_t head,
                  int32_t end, float *scratch);

    /* States of the convolution, for channels [from, end). */
    void (*inputs)(const linear_call *call, const linear_sequence *sequence, int32_t from,
                   int32_t end);
};

extern const linear_kernels linear_kernels_generic;
#ifdef CPU_LINEAR_AVX2
extern const linear_kernels linear_kernels_avx2;
#endif
#ifdef CPU_LINEAR_AVX512
extern const linear_kernels linear_kernels_avx512;
#endif

/* The address of [i0, i1, ...]. */
static inline char *linear_at(const attn_tensor *tensor, int64_t i0, int64_t i1, int64_t i2)
{
    int64_t offset = i0 * tensor->strides[0];
    if (tensor->ndim > 1)
        offset += i1 * tensor->strides[1];
    if (tensor->ndim > 2)
        offset += i2 * tensor->strides[2];
    return (char *)tensor->data + tensor->byte_offset +
           offset * (int64_t)attn_dtype_size(tensor->dtype);
}

#endif /* CPU_LINEAR_H */
