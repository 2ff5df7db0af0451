/* SPDX-License-Identifier: Apache-2.0
 *
 * call.h: internal to host/reference: a forward of the softmax family with all its parts looked up
 * and checked, in host memory. Latent attention belongs to the family (mla.c): only the sources of
 * queries and keys differ.
 *
 *   reference_call       one layer's call: tensors, scales, the KV group (operand.c)
 *   reference_sequence   one sequence of its batch: rows, keys, where they lie (slots.c) */
#ifndef HOST_REFERENCE_CALL_H
#define HOST_REFERENCE_CALL_H

#include "host/reference/reference.h"

/* Borrows everything it points to. */
typedef struct reference_call {
    const attn_problem *problem;
    const attn_layer_group *group;
    const attn_batch *batch;
    const attn_kv_batch *kv; /* NULL for encoder-only layers */
    uint32_t index_form;     /* one ATTN_INDEX_*; 0 = no cache is read */
    uint32_t mask_kind;
    int32_t dim;   /* elements of a query and a key */
    int32_t v_dim; /* of a value and the output */
    int32_t kv_heads;
    int32_t has_new;    /* new keys are given */
    int32_t save_kv;    /* new keys are written */
    int32_t as_stored;  /* new keys are read rounded as the cache holds them */
    int32_t hnd;        /* the cache is [pages, kv_heads, page_size, dim] */
    int32_t absorbed;   /* latent attention: q is q_nope, keys are latent rows */
    int32_t expanded;   /* latent attention: k and v are all keys there are */
    int32_t packed;     /* the cache is mla.latent_fp8/1 */
    int32_t chooses;    /* a sparse layer whose rows' keys are chosen, here or by the caller */
    int32_t index_only; /* it stops before attention: there is no q */
    int64_t num_slots;  /* of the cache; 0 = there is no cache */
    int64_t num_rows;   /* of q */
    int64_t num_new;    /* rows of new keys; 0 = the cache alone is read */
    const attn_tensor *q;
    const attn_tensor *k; /* k and v: both or neither */
    const attn_tensor *v;
    const attn_tensor *k_cache; /* NULL for encoder-only layers and latent caches */
    const attn_tensor *v_cache;
    const attn_tensor *q_pe; /* absorbed */
    const attn_tensor *c_kv; /* absorbed: new keys; expanded: what is saved; c_kv and k_pe: both */
    const attn_tensor *k_pe; /* or neither */
    const attn_tensor *latent_cache; /* NULL where it is neither read nor written */
    const attn_tensor *index_q;      /* sparse, as far as they are given */
    const attn_tensor *index_weights;
    const attn_tensor *index_k;
    const attn_tensor *index_logits;
    const attn_tensor *label_cache;
    const attn_tensor *sparse_indices;
    const attn_tensor *sparse_count;
    const float *sinks;        /* [q_heads]; NULL = none, or omitted */
    const float *slopes;       /* [q_heads]; NULL = none */
    const attn_scale *k_scale; /* NULL unless the cache is fp8 */
    const attn_scale *v_scale;
    const attn_scale *latent_scale;
    const attn_scale *q_scale; /* NULL unless q is fp8; and so on; absorbed: of q_nope */
    const attn_scale *q_pe_scale;
    const attn_scale *new_k_scale;
    const attn_scale *new_v_scale;
    double out_scale; /* 1 unless OUT is fp8 */
} reference_call;

/* One sequence. Query t is row first_row + t at position first_position + t. */
typedef struct reference_sequence {
    int32_t index;     /* s */
    int32_t real;      /* 0 = padding */
    int64_t first_row; /* of q */
    int64_t num_rows;
    int64_t first_position; /* not explicit */
    int64_t kv_len;
    int64_t first_new_row; /* of k, v and out_cache_loc */
    int64_t num_new;       /* keys that are new; the last of the sequence */
} reference_sequence;

/* Look up and check all of a call. */
attn_status reference_call_init(reference_call *call, const attn_problem *problem,
                                const attn_batch *batch, int32_t layer_id,
                                const attn_forward_args *args, const reference_options *options,
                                attn_error *error);

/* Is the tensor of a role there, of this dtype and shape (-1 = any), innermost stride 1? */
attn_status reference_check_tensor(const attn_tensor *tensor, uint32_t role, attn_dtype dtype,
                                   uint32_t ndim, const int64_t *shape, attn_error *error);

/* The scale of a role, which must be there, of this granularity, and sound. */
attn_status reference_find_scale(const attn_scale **scale, const reference_call *call,
                                 const attn_forward_args *args, uint32_t role, uint32_t granularity,
                                 attn_error *error);

/* The element pointer of [i0, i1, ...], strides in elements. */
char *reference_element(const attn_tensor *tensor, const int64_t *index, uint32_t ndim);

/* The scale of a KV head, of sequence `s` and slot `slot` where these have their own; 1 for a cache
 * without scales. */
float reference_scale(const reference_call *call, const attn_scale *scale, int32_t s, int64_t slot,
                      int32_t kv_head);

/* The vector of one slot and head in a cache of the call's layout. */
char *reference_slot_vector(const reference_call *call, const attn_tensor *cache, int64_t slot,
                            int32_t kv_head);

/* The entries of an array: the device's if there are any, else the host's; NULL = absent. */
const int32_t *reference_i32(const attn_i32_array *array);
const int64_t *reference_i64(const attn_i64_array *array);

/* Sequences that are not padding. */
int32_t reference_num_real_seqs(const attn_batch *batch);

/* Rows, keys and new keys of sequence `s`, checked against the tensors. */
attn_status reference_sequence_init(reference_sequence *sequence, const reference_call *call,
                                    int32_t s, attn_error *error);

/* Is row first_row + t of a real sequence a real row? */
int reference_row_is_real(const reference_call *call, const reference_sequence *sequence,
                          int64_t t);

/* The slot of key `j` by the call's index form. -1 = there is none. */
int64_t reference_slot(const reference_call *call, const reference_sequence *sequence, int64_t j);

/* The slot a new row is to be written to; -1 = not written. */
int64_t reference_new_slot(const reference_call *call, int64_t new_row);

/* Are all slots of the sequence's keys within the cache, and are new keys saved where the index
 * form will look for them? */
attn_status reference_check_slots(const reference_call *call, const reference_sequence *sequence,
                                  attn_error *error);

/* ---- Latent attention (mla.c) ---------------------------------------------------------------- */

/* Is a batch of this mode called in the absorbed form? 0 for other kinds of layers. */
int reference_is_absorbed(const attn_problem *problem, uint32_t mode);

/* Is the group one of latent attention that makes sense? */
attn_status reference_mla_check(const reference_call *call, attn_error *error);

/* q_nope, q_pe, c_kv and k_pe of the absorbed form. */
attn_status reference_mla_find_absorbed(reference_call *call, const attn_forward_args *args,
                                        attn_error *error);

/* The latent cache with its scale, and what the expanded form saves to it. */
attn_status reference_mla_find_cache(reference_call *call, const attn_forward_args *args,
                                     attn_error *error);

/* q_nope | q_pe of a row and head. */
void reference_mla_query(const reference_call *call, int64_t row, int32_t head, double *query);

/* The first `count` elements, kv_lora_rank or all, of the latent row of key `j`. */
void reference_mla_read(const reference_call *call, const reference_sequence *sequence, int64_t j,
                        int32_t count, double *x);

/* Write new latent row `new_row` to a slot of an image of the cache. */
void reference_mla_store(const reference_call *call, int64_t new_row, const attn_tensor *image,
                         int64_t slot);

/* ---- What a query sees (batch.c) ------------------------------------------------------------- */

/* Of query `t` of a sequence, whatever its head; choices aside. */
attn_status reference_set_sight(reference_sight *sight, const reference_call *call,
                                const reference_sequence *sequence, int64_t t, attn_error *error);

/* ---- Sparse layers over latents (sparse_call.c) ---------------------------------------------- */

/* Does the call stop before attention? */
int reference_is_index_only(const attn_forward_args *args);

/* Operands of the indexer and of the choice. */
attn_status reference_sparse_find(reference_call *call, const attn_forward_args *args,
                                  attn_error *error);

/* Memory for choosing keys of a sequence's rows; for one sequence after the other. */
typedef struct reference_chooser {
    int32_t *key_of; /* [num_slots] key of the sequence in it; -1 = none */
    int64_t num_slots;
    uint8_t *chosen;       /* [kv_len] */
    double *logits, *bars; /* [kv_len] */
    double *vectors;       /* of a query and a label */
    int64_t *keys;         /* [top_k] */
} reference_chooser;

attn_status reference_chooser_init(reference_chooser *chooser, const reference_call *call,
                                   const reference_sequence *sequence, attn_error *error);
void reference_chooser_finish(reference_chooser *chooser);

/* The keys of query `t`: those that SPARSE_INDICES names, or else the oracle's choice; they replace
 * whatever narrows `sight`. INVALID_ARGUMENT for an entry that is no key of the sequence, or named
 * twice. */
attn_status reference_sparse_sight(reference_sight *sight, const reference_call *call,
                                   const reference_sequence *sequence, int64_t t,
                                   reference_chooser *chooser, attn_error *error);

#endif /* HOST_REFERENCE_CALL_H */
