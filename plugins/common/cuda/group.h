/* SPDX-License-Identifier: Apache-2.0
 *
 * group.h: a CUDA plugin's record of a group of softmax layers, and checks of problems.
 */
#ifndef PLUGINS_CUDA_GROUP_H
#define PLUGINS_CUDA_GROUP_H

#include "attn_plugin_util.h"

typedef struct cuda_group {
    uint32_t attn_type;
    uint32_t flags; /* ATTN_GROUP_* */
    int32_t kv_group;
    int32_t kv_heads;
    int32_t ratio; /* query heads of a KV head */
    int32_t dim;
    int32_t v_dim;
    int32_t window_left;
    int32_t window_right;
    int32_t chunk;
    float sm_scale;
    float logit_cap;
    uint32_t scale_granularity;
    int32_t page_size;
    int32_t hnd;    /* 1 = kv.hnd/1, 0 = kv.nhd/1 */
    int32_t packed; /* 1 = mla.latent_fp8/1: rows of bytes, which have their scales in them */
    attn_dtype q_dtype;
    attn_dtype new_dtype; /* of new k, v */
    attn_dtype kv_dtype;
    attn_dtype out_dtype;
    uint32_t num_layers;
    attn_util_layer *layers; /* the caller's */
} cuda_group;

/* A group from a problem that query accepts; layers are left to the caller. */
void cuda_group_init(cuda_group *group, const attn_problem *problem);

/* The layers of all groups of an instance: structs of `group_size` bytes that begin with a cuda_group,
 * with room for the layers after the last. */
attn_status cuda_groups_list_layers(void *groups, size_t group_size, uint32_t num_groups,
                                    const attn_problem *problems, attn_error *error);

/* The index form to request for batches of these groups: slots if a page is one token, else pages,
 * of which the host writes and kernels read fewer. */
uint32_t cuda_groups_index_forms(const void *groups, size_t group_size, uint32_t num_groups);

/* Encoders have no cache: their keys are the new rows. */
int cuda_group_has_cache(const cuda_group *group);

int cuda_is_fp8(attn_dtype dtype);

/* ELEMENT_* of elements.cuh; ELEMENT_F32 for what is none. */
int cuda_element(attn_dtype dtype);

/* ---- Query: each adds the reasons that it finds ---------------------------------------------- */

/* The question of query in structs of full size. */
typedef struct cuda_question {
    attn_problem problem;
    attn_layer_group group;
    attn_bounds bounds;
    attn_device device;
} cuda_question;

/* INVALID_ARGUMENT for missing or invalid values: no layers; impossible numbers of softmax layers,
 * or of a page. For layers of another kind, only the kind is refused. */
attn_status cuda_question_read(const attn_problem *problem, cuda_question *ask, attn_error *error);

/* Encoders have no cache. */
int cuda_question_has_cache(const cuda_question *ask);

/* Softmax layers: of decoders, of encoders, and across. */
void cuda_check_layer(const cuda_question *ask, attn_verdict *verdict);

/* A pair of head dimensions that there are kernels for. */
typedef struct cuda_dims {
    int32_t dim, v_dim;
} cuda_dims;

/* Check that the group has one of these pairs, smaller ones first. If one of its dimensions is in a
 * pair, the other one must match; else both must change. */
void cuda_check_dims(const cuda_dims *pairs, uint32_t count, const attn_layer_group *group,
                     attn_verdict *verdict);

/* Data types that a plugin supports. */
typedef struct cuda_dtypes {
    int e4m3_cache; /* quantised caches, with scales */
    int e5m2_cache; /* only if e4m3 is supported, too */
    int f32_out;    /* outputs of f32 as well as f16 and bf16 */
} cuda_dtypes;

/* q is f16 or bf16, a cache has q's type or is quantised, the output is f16 or bf16. */
void cuda_check_dtypes(const cuda_dtypes *takes, const attn_problem *problem,
                       const attn_layer_group *group, attn_verdict *verdict);

/* Only quantised caches have scales; per head for at most CALL_MAX_SCALES heads. */
void cuda_check_scales(const cuda_dtypes *takes, const attn_problem *problem,
                       const attn_layer_group *group, attn_verdict *verdict);

#endif /* PLUGINS_CUDA_GROUP_H */
