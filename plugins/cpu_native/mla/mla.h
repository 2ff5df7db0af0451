/* SPDX-License-Identifier: Apache-2.0
 *
 * mla.h: the code of latent attention, with the files that call it.
 *
 *   group.c     a problem is a group for each form         called by instance.c and memory.c
 *   query.c     capabilities                                query.c
 *   plan.c      rows are shared out before splits are       plan.c
 *   operands.c  c_kv, k_pe, q_pe, one cache                 operands.c
 *   save.c      a latent as the cache holds it              save.c
 *   attend.c    a tile of latents, by the kernels of        attend.c
 *               kernels.h (latent.inc)
 *
 * The expanded form is softmax attention over the keys that are given: of these, group.c, query.c,
 * operands.c and save.c are for it. The absorbed form has no panels of keys and values: all heads
 * of a token share one key, whose first elements are its value. */
#ifndef CPU_NATIVE_MLA_H
#define CPU_NATIVE_MLA_H

#include "plugins/cpu_native/attend.h"
#include "plugins/cpu_native/query.h"

/* ---- Groups ---------------------------------------------------------------------------------- */

/* The groups of both forms, of which groups[0] holds what they have in common. Returns their
 * number.
 */
uint32_t mla_groups_init(cpu_group *groups, const attn_problem *problem);

/* Decide which products are of bf16. */
void mla_choose_products(const attn_instance *instance, cpu_group *group);

/* Bytes of a row of the cache. */
int32_t mla_row_bytes(const cpu_group *group);

/* Floats of scratch for each key of a tile. */
int64_t mla_key_floats(const cpu_group *group);

/* ---- Query: what stands in the table of checks in the place of checks of softmax attention --- */

attn_status mla_question_init(question *ask, attn_error *error);
void mla_check_attn_type(const question *ask, attn_verdict *verdict);
void mla_check_dims(const question *ask, attn_verdict *verdict);
void mla_check_dtypes(const question *ask, attn_verdict *verdict);
void mla_check_scales(const question *ask, attn_verdict *verdict);
void mla_check_layout(const question *ask, attn_verdict *verdict);

/* ---- A batch and a layer --------------------------------------------------------------------- */

void mla_cut_tiles(const attn_metadata *metadata, const cpu_group *group,
                   const group_capacity *capacity, group_plan *plan);

attn_status mla_get_operands(layer_call *call, const cpu_layer *layer,
                             const attn_forward_args *args, attn_error *error);

/* Write new latent `row`, c_kv and k_pe, as the cache holds it. */
void mla_store_row(const layer_call *call, int64_t row, char *to);
void mla_save_row(const layer_call *call, int64_t row, int64_t slot);

/* ---- A tile, absorbed ------------------------------------------------------------------------ */

void mla_lay_out(const cpu_group *group, char **next, worker_scratch *w);
void mla_load_queries(const layer_call *call, const work_unit *unit, const worker_scratch *w);

/* A new latent, as the cache would have it, for key `key` of the next tile. */
const char *mla_keep_row(const layer_call *call, int64_t row, int key, worker_scratch *w);

/* Probabilities of the tile at hand; then its values are added up, and w->keys, if `more` = 1, are
 * needed next. */
void mla_score_tile(const layer_call *call, worker_scratch *w);
void mla_add_tile(const layer_call *call, int more, worker_scratch *w);

#endif /* CPU_NATIVE_MLA_H */
