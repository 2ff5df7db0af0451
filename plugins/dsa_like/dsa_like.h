/* SPDX-License-Identifier: Apache-2.0
 *
 * dsa_like.h: sparse attention to latents on Hopper, and the file of each part.
 *
 *   query.c     supported problems
 *   instance.c  groups, kernels; an instance of flashmla_like, which attends
 *   metadata.c  a batch, planned on the device; the batch of flashmla_like made of it
 *   operands.c  the steps of a call, and their tensors
 *   forward.c   launches                       kernels/dsa.h says of what */
#ifndef DSA_LIKE_H
#define DSA_LIKE_H

#include "plugins/common/cuda/launch.h"
#include "plugins/common/cuda/plan.h"
#include "plugins/dsa_like/kernels/dsa.h"

enum {
    DSA_INDEX_FORMS = ATTN_INDEX_BLOCK_TABLE | ATTN_INDEX_REQ_TO_TOKEN | ATTN_INDEX_CSR,
    DSA_ALIGNMENT = 256
};

/* Logits that a call keeps to itself; more rows go wave by wave. */
#define DSA_LOGIT_BYTES ((uint64_t)256 << 20)

typedef struct dsa_layers {
    cuda_group base; /* the first member: cuda_plan_take() walks over groups */
    attn_mla_dims mla;
    attn_sparse_dims sparse;
} dsa_layers;

struct attn_instance {
    const attn_services *services;
    const cuda_api *cuda;
    cuda_facts facts;
    cuda_module module;
    cuda_function plan, save, take, choose;
    cuda_function label[2][2]; /* of codes or not; of one query, of a group of queries */
    attn_instance *attend;     /* of flashmla_like: the same groups as latent attention */
    uint32_t num_groups;
    dsa_layers *groups; /* layers lie after them */
};

struct attn_metadata {
    attn_instance *instance;
    cuda_plan plan;
    attn_metadata *attend;
    attn_kv_batch *rows; /* [groups] the batch of flashmla_like */
    char *plans;         /* device */
    char *scratch;       /* device: lists, then logits */
};

/* The steps of a call, and their arguments. */
typedef struct dsa_call {
    int saves, labels, chooses, attends;
    int keeps_logits; /* 1 = in scratch */
    dsa_save_call save;
    dsa_label_call label;
    dsa_choose_call choose;
    dsa_take_call take;
} dsa_call;

/* ---- By file --------------------------------------------------------------------------------- */

attn_status dsa_query(const attn_backend_type *type, const attn_options *options,
                      const attn_services *services, const attn_problem *problem,
                      attn_verdict *verdict, attn_error *error);
attn_status dsa_require_bounds(const attn_bounds *bounds, attn_error *error);

attn_status dsa_create(const attn_backend_type *type, const attn_problem *problems,
                       uint32_t num_problems, const attn_options *options,
                       const attn_services *services, attn_instance **instance, attn_error *error);
void dsa_destroy(attn_instance *instance);

/* Does the indexer multiply e4m3 by e4m3? */
int dsa_multiplies_codes(const dsa_layers *group);

uint32_t dsa_index_forms(attn_instance *instance);
attn_status dsa_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                              attn_memory_size *size, attn_error *error);
attn_status dsa_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *bounds,
                                const attn_memory *memory, attn_metadata **metadata,
                                attn_error *error);
void dsa_metadata_destroy(attn_metadata *metadata);
attn_status dsa_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                      attn_stream stream, attn_error *error);

/* Group `index` of the planned batch; what is kept in scratch. */
void dsa_describe(const attn_metadata *metadata, uint32_t index, dsa_batch *to);
int *dsa_lists(const attn_metadata *metadata);
float *dsa_logits(const attn_metadata *metadata);
int64_t dsa_logits_row(const attn_bounds *bounds);

attn_status dsa_take_operands(const attn_metadata *metadata, uint32_t index,
                              const attn_util_layer *layer, const attn_forward_args *args,
                              dsa_call *call, attn_error *error);

attn_status dsa_forward_extend(attn_metadata *metadata, int32_t layer_id,
                               const attn_forward_args *args, attn_stream stream,
                               attn_error *error);
attn_status dsa_forward_decode(attn_metadata *metadata, int32_t layer_id,
                               const attn_forward_args *args, attn_stream stream,
                               attn_error *error);

#endif /* DSA_LIKE_H */
