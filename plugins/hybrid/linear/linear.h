/* SPDX-License-Identifier: Apache-2.0
 *
 * linear.h: shared by the files of hybrid_linear.
 *
 *   linear.c   options, which layer goes to which child, query, instances, the type
 *   forward.c  metadata, batches, forward
 */
#ifndef HYBRID_LINEAR_H
#define HYBRID_LINEAR_H

#include "attn_plugin.h"
#include "plugins/hybrid/core/fanout.h"

enum { LINEAR_FULL = 0, LINEAR_LINEAR = 1, NUM_LINEAR = 2 };

struct attn_instance {
    fanout children;                  /* first: fanout_op_destroy() and its kin */
    fanout_child child[NUM_LINEAR];   /* what `children` has */
    uint32_t needs[NUM_LINEAR];       /* SLICE_*: what a child's layers need of a batch */
    slice_groups groups[NUM_LINEAR];  /* that a child's layers read */
    fanout_limits limits[NUM_LINEAR]; /* of a child's layers */
    fanout_limits all_limits;
    fanout_layers layers;
    fanout_layer items[]; /* what `layers` has */
};

/* Bytes of host memory that metadata takes for itself. */
uint64_t linear_metadata_bytes(void);

/* The slots of attn_backend_ops that have to do with metadata. */
attn_status linear_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                 attn_memory_size *size, attn_error *error);
attn_status linear_metadata_create(attn_instance *instance, uint32_t kind,
                                   const attn_bounds *bounds, const attn_memory *memory,
                                   attn_metadata **metadata, attn_error *error);
attn_status linear_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                         attn_stream stream, attn_error *error);
void linear_metadata_destroy(attn_metadata *metadata);
attn_status linear_forward_extend(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error);
attn_status linear_forward_decode(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error);

#endif /* HYBRID_LINEAR_H */
