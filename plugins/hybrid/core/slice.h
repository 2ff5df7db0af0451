/* SPDX-License-Identifier: Apache-2.0
 *
 * slice.h: a part of a batch, as a batch: its first or last sequences, or what some layers need.
 *
 * Indptr values are absolute row numbers, so a slice shifts the pointers of per-sequence arrays and
 * leaves rows where they are. A DECODE batch has no q_indptr (its row s belongs to sequence s), so
 * the decode rows of a MIXED batch need their operands shifted as well: slice_args().
 */
#ifndef HYBRID_SLICE_H
#define HYBRID_SLICE_H

#include "attn_plugin.h"

/* Storage of a slice: the batch and all it points to that is not the original's. */
typedef struct batch_slice {
    attn_batch batch;
    attn_mask mask;
    attn_multi_item multi_item;
    attn_kv_batch *kv_groups; /* caller's, kv_capacity elements */
    uint32_t kv_capacity;
    uint32_t state_capacity;
    int32_t first_seq; /* its first sequence, of all_seqs of the batch it is a part of */
    int32_t all_seqs;
    attn_state_batch *state_groups; /* caller's, state_capacity elements */
} batch_slice;

/* Operands of a slice whose rows do not start at 0. */
typedef struct args_slice {
    attn_forward_args args;
    attn_tensor tensors[ATTN_ROLE_COUNT];
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_scale scale[ATTN_ROLE_COUNT];
    const attn_scale *scales[ATTN_ROLE_COUNT];
} args_slice;

/* The extend rows of a MIXED batch as an EXTEND batch. `q_indptr` is the batch's, where the host
 * can read it; NULL = rows are counted from 0 and every row belongs to a sequence. INVALID_ARGUMENT
 * if the batch has more decode sequences than sequences. */
attn_status slice_extend_rows(const attn_batch *mixed, const int32_t *q_indptr, batch_slice *slice,
                              attn_error *error);

/* The decode rows of a MIXED batch as a DECODE batch; its row 0 is row *first_row of the tensors.
 */
attn_status slice_decode_rows(const attn_batch *mixed, const int32_t *q_indptr, batch_slice *slice,
                              int32_t *first_row, attn_error *error);

/* Parts of a batch, besides its rows, that layers need: a mask. */
enum { SLICE_KV = 1 << 0, SLICE_STATE = 1 << 1, SLICE_SPARSE = 1 << 2 };

/* The needs of a group's layers. */
uint32_t slice_needs(const attn_layer_group *group);

/* Groups of a batch that layers read: those below these numbers. */
typedef struct slice_groups {
    uint32_t num_kv_groups;
    uint32_t num_state_groups;
} slice_groups;

/* Extend them by the groups that a layer group reads. */
void slice_groups_add(slice_groups *groups, const attn_layer_group *group);

/* The batch for layers that need no more than `needs`, and no other groups. It points to what the
 * original points to. */
void slice_layers(const attn_batch *batch, uint32_t needs, slice_groups groups, attn_batch *slice);

/* Do the new rows of this KV group lie where their queries lie? */
int slice_new_rows_follow_queries(const attn_kv_batch *kv);

/* `args` with every operand that has a row for each query shifted by `first_row`; also k, v and
 * their kin where new_rows_follow_queries. */
void slice_args(const attn_forward_args *args, int32_t first_row, int new_rows_follow_queries,
                args_slice *slice);

/* Are there scales that each sequence has its own of? */
int slice_has_sequence_scales(const attn_forward_args *args);

/* Of those the ones of the sequences of a part, in a slice that was made. */
void slice_scales(const attn_forward_args *args, const batch_slice *part, args_slice *slice);

#endif /* HYBRID_SLICE_H */
