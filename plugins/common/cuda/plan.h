/* SPDX-License-Identifier: Apache-2.0
 *
 * plan.h: a batch within the bounds of its metadata, for kernels that read lengths, slots and row
 * numbers on the device: nothing is planned on the host, and host arrays are not read.
 *
 * Besides addresses, a graph would fix the numbers of sequences, rows and decode sequences of the
 * captured batch. So these are in device memory, and a memset on the stream sets each of them when
 * it changes. */
#ifndef PLUGINS_CUDA_PLAN_H
#define PLUGINS_CUDA_PLAN_H

#include "plugins/common/cuda/call.h"
#include "plugins/common/cuda/cuda_api.h"
#include "plugins/common/cuda/group.h"

/* Bytes of the counts; device metadata of GRAPH metadata has room for them. */
enum { CUDA_COUNTS_BYTES = CALL_COUNTS * (int)sizeof(int32_t) };

/* The part of metadata that describes its batch. */
typedef struct cuda_plan {
    uint32_t kind; /* ATTN_METADATA_* */
    attn_bounds bounds;
    uint32_t index_forms;         /* ATTN_INDEX_* that the kernels read */
    cuda_address counts;          /* GRAPH: [CALL_COUNTS]; 0 = none */
    int32_t counted[CALL_COUNTS]; /* their values; -1 = not set yet */
    int32_t planned;
    attn_batch batch; /* its scalars and device arrays */
    attn_mask mask;
    attn_multi_item items; /* token_pos NULL = none */
    attn_kv_batch *kv;     /* [groups] the caller's memory; each keeps one index form */
} cuda_plan;

/* The answer of metadata_size: bytes by region, `alignment` for regions that are not empty. */
void cuda_memory_tell(const uint64_t sizes[ATTN_REGION_COUNT], uint64_t alignment,
                      attn_memory_size *to);

/* Check that memory has these sizes. BUFFER_TOO_SMALL, INVALID_ARGUMENT. */
attn_status cuda_memory_check(const attn_memory *memory, const uint64_t sizes[ATTN_REGION_COUNT],
                              uint64_t alignment, attn_error *error);

/* metadata_destroy for metadata entirely in the caller's memory. */
void cuda_metadata_destroy(attn_metadata *metadata);

/* Initialises a plan; `kv` has an element for each of the instance's groups. */
void cuda_plan_init(cuda_plan *plan, uint32_t kind, const attn_bounds *bounds, uint32_t index_forms,
                    cuda_address counts, attn_kv_batch *kv);

/* Sets the batch. `groups` are `num_groups` structs of `group_size` bytes that begin with a
 * cuda_group. INVALID_ARGUMENT: the batch exceeds the bounds, has a mask or positions that they
 * exclude, lacks device arrays, or differs from the batch that its graph was captured with.
 * Otherwise a failure of the driver. On failure the plan is unchanged. */
attn_status cuda_plan_take(cuda_plan *plan, const cuda_api *cuda, const void *groups,
                           size_t group_size, uint32_t num_groups, const attn_batch *given,
                           attn_stream stream, attn_error *error);

/* Finds a layer and the index of its group, among groups as above. INVALID_ARGUMENT. */
attn_status cuda_find_layer(const void *groups, size_t group_size, uint32_t num_groups,
                            int32_t layer_id, uint32_t *index, const attn_util_layer **layer,
                            attn_error *error);

/* Checks that the plan can run in forward_decode or forward_extend. BAD_STATE. */
attn_status cuda_plan_check_forward(const cuda_plan *plan, int decode, attn_error *error);

/* Multiprocessors that launches may use, of the device's `most`: attn_bounds.max_sms. */
uint32_t cuda_num_sms(const attn_bounds *bounds, uint32_t most);
uint32_t cuda_plan_num_sms(const cuda_plan *plan, uint32_t most);

/* Does the batch have rows? */
int cuda_plan_has_rows(const cuda_plan *plan);

/* The group's batch as kernels read it; `kv` is its element of plan->kv. */
void cuda_plan_fill(const cuda_plan *plan, const cuda_group *group, const attn_kv_batch *kv,
                    call_batch *to);

/* Sizes for launch shapes. A graph's are the bounds, so that any batch within them fits its
 * launches. */
typedef struct cuda_extent {
    int64_t seqs, tokens, q_len;
    int64_t decode_seqs; /* upper limit */
} cuda_extent;

cuda_extent cuda_plan_extent(const cuda_plan *plan);

#endif /* PLUGINS_CUDA_PLAN_H */
