/* SPDX-License-Identifier: Apache-2.0
 *
 * step_kernels.h: the host's own computations on a device in a step, in addition to the backends'
 * forwards: vectors, req_to_token, index forms, checks and samples of the outputs.
 *
 * On the CPU these are loops that are done when the call returns; on CUDA they are kernels
 * (kernels/step_kernels.cu) that the call enqueues, one at most, which may be captured into a
 * graph. Both give the same bits. All arrays are the device's, or pinned; on CUDA a kernel reads
 * them when the stream gets there, so a graph's replay sees their new contents. Arguments passed by
 * value, such as a layer's geometry, are fixed in a graph; launch shapes depend only on them. */
#ifndef HOST_RUN_STEP_KERNELS_H
#define HOST_RUN_STEP_KERNELS_H

#include "host/device/device.h"
#include "host/kinds/operands.h"
#include "host/base/threads.h"

struct step_kernels;

/* Borrows all; copies what of the workload a device must have, and waits for that, so it is not for
 * a capture. `threads` make vectors on the processor, and may be NULL elsewhere. DEPENDENCY_MISSING
 * where this host was built without kernels for the device, or its driver refuses them. */
attn_status step_kernels_create(const struct device *device, const struct generator *generator,
                                const struct workload *workload, struct threads *threads,
                                struct step_kernels **kernels, attn_error *error);

/* All that was enqueued is done. Before a device_reset(), if there is one. NULL is accepted. */
void step_kernels_destroy(struct step_kernels *kernels);

/* The request and position of each row of a step, padding included. */
struct step_rows {
    const int32_t *request;  /* index in the workload; -1 = padding */
    const int32_t *position; /* absolute; of padding it is not read */
    int32_t count;
};

/* An operand of a layer and its memory: dense [rows, heads, dim] in ATTN_F32, F16 or BF16. */
struct step_vectors {
    struct row_operand operand;
    const attn_layer_group *group; /* the layer's */
    void *memory;
};

/* Make rows of these operands of a layer as generator.h, or generator_linear.h, defines them; those
 * of padding are zero.
 * INVALID_ARGUMENT names an operand that is of another type, that the generator has no stream for,
 * or, on CUDA, that begins in between, is not of the kind of the first one (queries, keys, values and
 * operands of an indexer, or operands of a linear layer), or has factors for more heads than a launch
 * holds. */
attn_status step_kernels_generate(const struct step_kernels *kernels, int32_t layer,
                                  const struct step_rows *rows, const struct step_vectors *vectors,
                                  uint32_t num_vectors, attn_stream stream, attn_error *error);

/* req_to_token[row][first + i] = slots[source + i] for i < count. */
struct step_update {
    int32_t row, first, count, source;
};
attn_status step_kernels_update_table(const struct step_kernels *kernels,
                                      const struct step_update *updates, int32_t num_updates,
                                      int32_t longest, /* largest count */
                                      const int32_t *slots, int32_t *req_to_token, int64_t stride,
                                      attn_stream stream, attn_error *error);

/* From req_to_token to page ids, for each of num_seqs sequences and each of its pages:
 * block_table[s][p] = kv_indices[kv_indptr[s] + p] = slot of position p * page_size / page_size.
 * block_table or kv_indices may be NULL. */
struct step_index {
    const int32_t *req_to_token;
    int64_t req_to_token_stride;
    const int32_t *req_pool_indices, *kv_lens; /* [num_seqs] */
    int32_t num_seqs, page_size;
    int32_t max_pages; /* of a sequence, at most */
    int32_t *block_table;
    int64_t block_table_stride;
    const int32_t *kv_indptr; /* [num_seqs + 1] */
    int32_t *kv_indices;
};
attn_status step_kernels_index_pages(const struct step_kernels *kernels,
                                     const struct step_index *index, attn_stream stream,
                                     attn_error *error);

/* Dense [rows, row_elements] outputs of a layer (ATTN_F32, F16 or BF16; others are
 * INVALID_ARGUMENT): zero the rows of padding; for any other row that has a NaN or an infinity,
 * *first = min(*first, layer << 32 | row). Positions are not read. */
struct step_output {
    void *data;
    attn_dtype dtype;
    int64_t row_elements;
};
attn_status step_kernels_watch(const struct step_kernels *kernels, int32_t layer,
                               const struct step_rows *rows, const struct step_output *output,
                               uint64_t *first, attn_stream stream, attn_error *error);

/* Copy the sampled rows of a layer: row rows[i] to `to` + offset[layer] + (i - indptr[layer]) *
 * bytes of a row, for indptr[layer] <= i < indptr[layer + 1]. */
struct step_sample {
    const int32_t *indptr;  /* [layers + 1] */
    const int32_t *rows;    /* [indptr[layers]] */
    const uint64_t *offset; /* [layers] bytes */
    void *to;
};
attn_status step_kernels_gather(const struct step_kernels *kernels, int32_t layer,
                                const struct step_sample *sample, const struct step_output *output,
                                int32_t max_rows, /* of this layer that can be sampled */
                                attn_stream stream, attn_error *error);

/* After the sampled rows of a layer, `skip` bytes each: for each of them `count` keys of its sequence,
 * by place, that lie in the slots of its row of `chosen`; -1 = a slot that is not the sequence's. A
 * page of slots is one of keys. */
struct step_keys {
    const int32_t *chosen; /* [rows, count] */
    int32_t count;
    int32_t none; /* what is written for no slot, -1 */
    int32_t num_seqs, page_size;
    const int32_t *q_indptr;                   /* [num_seqs + 1] */
    const int32_t *req_pool_indices, *kv_lens; /* [num_seqs] */
    const int32_t *req_to_token;
    int64_t req_to_token_stride;
};
attn_status step_kernels_keys(const struct step_kernels *kernels, int32_t layer,
                              const struct step_sample *sample, uint64_t skip,
                              const struct step_keys *keys, int32_t max_rows, attn_stream stream,
                              attn_error *error);

/* The contents of a slot in a cache: num_pieces times piece_bytes, piece_stride apart. */
struct step_cache {
    void *data;
    int64_t page_bytes, slot_bytes; /* between two pages, and two slots of a page */
    int64_t piece_bytes, piece_stride;
    int32_t num_pieces, page_size;
};

/* Slot `to` gets what is in slot `from`. Those of sequence s are list[indptr[s] .. indptr[s + 1]),
 * made in this order; no two sequences have a slot in common. */
struct step_move {
    int32_t from, to;
};
struct step_moves {
    const struct step_move *list;
    const int32_t *indptr; /* [num_seqs + 1] */
    int32_t num_seqs;
};
attn_status step_kernels_move(const struct step_kernels *kernels, const struct step_moves *moves,
                              const struct step_cache *cache, attn_stream stream,
                              attn_error *error);

#endif /* HOST_RUN_STEP_KERNELS_H */
