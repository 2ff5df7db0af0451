/* SPDX-License-Identifier: Apache-2.0
 *
 * operands.h: what a row of a step is in each of a layer's operands, whatever its kind (kinds.h).
 * Code that makes, views, copies or judges rows asks here how wide they are.
 *
 *   softmax          q, k, v                    out: query heads x v_head_dim
 *   MLA, absorbed    q_nope, q_pe, c_kv, k_pe   out: query heads x kv_lora_rank
 *   MLA, expanded    q, k, v                    out: query heads x v_head_dim
 *   linear           mixed_qkv, a, b            out: value heads x head_v_dim
 *   sparse           as MLA, absorbed, and of an indexer index_q, index_weights, index_k
 *
 * A layer of latent attention has two forms, each with its own vectors; the expanded one of
 * layer l goes by the number num_layers + l, here and as the generator's layer. It is given c_kv
 * and k_pe, too, those of layer l, and writes them to the cache; what it reads is k and v alone.
 *
 * A layer that only reads another one's cache is given no k and v, or no c_kv and k_pe.
 */
#ifndef HOST_KINDS_OPERANDS_H
#define HOST_KINDS_OPERANDS_H

#include <stdbool.h>

#include "attn_batch.h"
#include "host/workload/generator.h"

struct model;

/* An operand that has a row for each row of a step. */
struct row_operand {
    uint32_t role; /* ATTN_ROLE_* */
    int32_t heads; /* 0 = its rows have none: [rows, dim]; else [rows, heads, dim] */
    int32_t dim;
    attn_dtype dtype;
    int32_t stream; /* GENERATOR_*: what its rows are made of, ... */
    int32_t first;  /* ... elements [first, first + dim) of each head's vector */
};

/* Operands of a layer at most. */
enum { OPERANDS_MAX = 7 };

/* The number by which `layer` is called in batches of this mode: its own, or that of its expanded
 * form. Where a function below has a `layer`, either is fine. */
int32_t operands_form(const struct model *model, int32_t layer, uint32_t mode);

/* How many numbers there are; of layers of other kinds the upper ones mean nothing. */
int32_t operands_num_forms(const struct model *model);

/* Is this number that of an expanded form? */
bool operands_is_expanded(const struct model *model, int32_t layer);

/* List what a layer is given, and return how many these are. */
uint32_t operands_list(const struct model *model, int32_t layer, struct row_operand *list);

/* How many of a list are new keys and values: the last ones. */
uint32_t operands_count_kv(const struct row_operand *list, uint32_t count);

/* Have new keys and values rows of their own, those of an encoder (cross attention)? */
bool operands_are_encoded(const struct model *model, int32_t layer);

/* The same for the additional operands of the expanded form: new latents, generated as for layer l.
 * Other forms have none. */
uint32_t operands_list_latents(const struct model *model, int32_t layer, struct row_operand *list);

/* The output of a layer, which is not generated; and the LSE of the expanded form. */
struct row_operand operands_output(const struct model *model, int32_t layer);
struct row_operand operands_lse(const struct model *model, int32_t layer);

/* The keys that rows of a sparse layer choose, or are given: slots, top_k of them; of other layers it
 * has no elements. Its memory is the same for all layers, so a layer without an indexer has what
 * the last one with an indexer chose. */
struct row_operand operands_choice(const struct model *model, int32_t layer);

/* Does the layer itself choose? */
bool operands_choose(const struct model *model, int32_t layer);

/* Elements and bytes of a row. */
int64_t operands_row_elements(const struct row_operand *operand);
uint64_t operands_row_bytes(const struct row_operand *operand);

/* Is the layer given keys and values, which it writes to its cache? */
bool operands_write_kv(const struct model *model, int32_t layer);

/* What the generator must know of a layer. */
generator_layer operands_geometry(const struct model *model, int32_t layer);

#endif /* HOST_KINDS_OPERANDS_H */
