/* SPDX-License-Identifier: Apache-2.0
 *
 * step_kernels_private.h: shared by step_kernels.c (the processor, and the dispatch) and
 * step_kernels_cuda.c. The functions below are those of step_kernels.h on CUDA; the dispatch has
 * checked all of their arguments that can be checked without reading device memory. */
#ifndef HOST_RUN_STEP_KERNELS_PRIVATE_H
#define HOST_RUN_STEP_KERNELS_PRIVATE_H

#include "host/run/step_kernels.h"

struct step_kernels {
    const struct device *device;
    const struct generator *generator;
    const struct workload *workload;
    struct threads *threads;
    struct step_cuda *cuda; /* NULL on the processor */
};

attn_status step_cuda_create(const struct device *device, const struct workload *workload,
                             struct step_cuda **cuda, attn_error *error);
void step_cuda_destroy(const struct device *device, struct step_cuda *cuda);

attn_status step_cuda_generate(const struct step_kernels *kernels, int32_t layer,
                               const struct step_rows *rows, const struct step_vectors *vectors,
                               uint32_t num_vectors, attn_stream stream, attn_error *error);
attn_status step_cuda_update_table(const struct step_kernels *kernels,
                                   const struct step_update *updates, int32_t num_updates,
                                   int32_t longest, const int32_t *slots, int32_t *req_to_token,
                                   int64_t stride, attn_stream stream, attn_error *error);
attn_status step_cuda_index_pages(const struct step_kernels *kernels,
                                  const struct step_index *index, attn_stream stream,
                                  attn_error *error);
attn_status step_cuda_watch(const struct step_kernels *kernels, int32_t layer,
                            const struct step_rows *rows, const struct step_output *output,
                            uint64_t *first, attn_stream stream, attn_error *error);
attn_status step_cuda_gather(const struct step_kernels *kernels, int32_t layer,
                             const struct step_sample *sample, const struct step_output *output,
                             int32_t max_rows, attn_stream stream, attn_error *error);
attn_status step_cuda_keys(const struct step_kernels *kernels, int32_t layer,
                           const struct step_sample *sample, uint64_t skip,
                           const struct step_keys *keys, int32_t max_rows, attn_stream stream,
                           attn_error *error);
attn_status step_cuda_move(const struct step_kernels *kernels, const struct step_moves *moves,
                           const struct step_cache *cache, attn_stream stream, attn_error *error);

#endif /* HOST_RUN_STEP_KERNELS_PRIVATE_H */
