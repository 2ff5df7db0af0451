/* SPDX-License-Identifier: Apache-2.0
 *
 * sparse.h: latent attention to chosen keys (attn_sparse_dims), with the files that call it.
 *
 *   query.c     what it can do                                   query.c
 *   group.c     groups, units of one query each, memory          instance.c, plan.c, memory.c
 *   operands.c  which of the three steps a call takes            operands.c
 *   save.c      a label as the cache holds it                    save.c
 *   index.c     logits, by the kernel of index.inc; choices      forward.c
 *
 * The third step is that of latent attention (mla/): a row's list of slots takes the place of a
 * sequence's pages, so its keys are gathered, and a unit of work is the heads of one query. Of a
 * tile of 64 entries, a row sees those that are not -1.
 *
 * A choice is the top_k largest logits of the keys that the row sees, of equal ones the first, in
 * the order of their positions: so the bits of a row are its own here, too. */
#ifndef CPU_NATIVE_SPARSE_H
#define CPU_NATIVE_SPARSE_H

#include "plugins/cpu_native/cpu_native.h"
#include "plugins/cpu_native/query.h"

/* ---- Query ----------------------------------------------------------------------------------- */

attn_status sparse_question_init(question *ask, attn_error *error);
void sparse_check_dims(const question *ask, attn_verdict *verdict);
void sparse_check_flags(const question *ask, attn_verdict *verdict);

/* ---- Groups ---------------------------------------------------------------------------------- */

void sparse_group_init(cpu_group *group, const attn_problem *problem);

/* A unit for each query, or several where it has more heads than a tile has rows. Returns what all
 * of them cost. */
int64_t sparse_cut_tiles(const attn_metadata *metadata, const cpu_group *group, group_plan *plan);

/* Units of as many rows; floats of a worker; floats of logits and entries of lists that all share.
 */
int64_t sparse_units(const cpu_group *group, const attn_bounds *bounds);
int64_t sparse_worker_floats(const cpu_group *group);
int64_t sparse_shared_floats(const cpu_group *group, uint32_t num_workers,
                             const attn_bounds *bounds);

/* Where a call keeps logits and lists that it is not given. */
void sparse_share_memory(layer_call *call, float *shared);

/* ---- A call ---------------------------------------------------------------------------------- */

attn_status sparse_get_operands(layer_call *call, const cpu_layer *layer,
                                const attn_forward_args *args, attn_error *error);

/* Write new label `row` to a slot. */
void sparse_save_row(const layer_call *call, int64_t row, int64_t slot);

/* The two steps before attention, as far as the call takes them. */
attn_status sparse_choose(layer_call *call, attn_error *error);

/* Entries of a row's list, those after its count left out. */
int32_t sparse_count(const layer_call *call, int64_t row);

/* Which of the entries [first, first + 64) name a key. */
uint64_t sparse_word(const layer_call *call, int64_t row, int64_t first);

#endif /* CPU_NATIVE_SPARSE_H */
