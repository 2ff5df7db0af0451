/* SPDX-License-Identifier: Apache-2.0
 *
 * phase.h: what the files of hybrid_phase share.
 *
 *   phase_query.c     options, which mode goes to which child, query
 *   hybrid_phase.c    instances and the type
 *   phase_forward.c   metadata, batches, forward
 */
#ifndef HYBRID_PHASE_H
#define HYBRID_PHASE_H

#include "attn_plugin.h"
#include "plugins/hybrid/core/fanout.h"

enum { PHASE_PREFILL = 0, PHASE_DECODE = 1, NUM_PHASES = 2 };

/* The options, as read. */
typedef struct phase_options {
    const char *child[NUM_PHASES]; /* names of backends; valid during the call */
    int spec_child;                /* PHASE_*: who serves TARGET_VERIFY and DRAFT_EXTEND */
} phase_options;

/* What decides where a batch goes, besides its mode. */
typedef struct phase_routing {
    int spec_child;  /* PHASE_* */
    int split_mixed; /* 1 = MIXED is split by rows, 0 = it goes to the prefill child whole */
} phase_routing;

enum { PHASE_NUM_OPTIONS = 3 };
extern const attn_option phase_option_list[PHASE_NUM_OPTIONS];

/* CONFIG_ERROR if a child is not named. */
attn_status phase_read_options(const attn_options *options, phase_options *read, attn_error *error);

/* Is child `c` asked at all where the composite serves `modes`, and which has it to serve? Where no
 * mode is known yet, or none that anybody is called for, each child is asked and answers for
 * itself. */
int phase_asks(int c, uint32_t modes, const phase_routing *routing, uint32_t *routed);

/* `problem` as child `c` has to solve it; returns whether it is asked. */
int phase_narrow_problem(int c, const attn_problem *problem, const phase_routing *routing,
                         child_problem *narrowed);

/* Is MIXED split for this problem? Asks the children where the answer depends on them. */
attn_status phase_decide_split(const attn_services *services, const phase_options *options,
                               const attn_problem *problem, int *split, attn_error *error);

/* attn_backend_type.query */
attn_status phase_query(const attn_backend_type *type, const attn_options *given,
                        const attn_services *services, const attn_problem *problem,
                        attn_verdict *verdict, attn_error *error);

struct attn_instance {
    fanout children;                /* first: fanout_op_destroy() and its kin */
    fanout_child child[NUM_PHASES]; /* what `children` has */
    phase_routing routing;
    fanout_layers layers;
    fanout_layer items[]; /* what `layers` has */
};

/* Bytes of host memory that metadata takes for itself. */
uint64_t phase_metadata_bytes(uint32_t num_kv_groups);

/* The slots of attn_backend_ops that have to do with metadata. */
attn_status phase_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                attn_memory_size *size, attn_error *error);
attn_status phase_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                  const attn_memory *memory, attn_metadata **metadata,
                                  attn_error *error);
attn_status phase_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                        attn_stream stream, attn_error *error);
void phase_metadata_destroy(attn_metadata *metadata);
attn_status phase_forward_extend(attn_metadata *metadata, int32_t layer_id,
                                 const attn_forward_args *args, attn_stream stream,
                                 attn_error *error);
attn_status phase_forward_decode(attn_metadata *metadata, int32_t layer_id,
                                 const attn_forward_args *args, attn_stream stream,
                                 attn_error *error);

#endif /* HYBRID_PHASE_H */
