/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_batch.h: the inputs of a forward pass.
 *
 *   attn_batch          once per step: sequences, their lengths, the places of their keys
 *   attn_forward_args   once per layer: the tensors, the scales, the flags
 *
 * An array of a batch is a pair of pointers. `device` is in the memory of the instance's device,
 * for kernels. `host` is for planning, and may be NULL unless query's verdict names the array in
 * `host_arrays`. On the CPU both may be equal. Host arrays are valid only during
 * init_forward_metadata, device arrays until the stream has completed the batch's last forward. For
 * GRAPH metadata the device arrays have the same addresses at every init_forward_metadata.
 *
 * Below, S = num_seqs and T = num_tokens. The values of an indptr are absolute row numbers
 * and need not start at 0, so that a slice of a batch is a batch.
 */
#ifndef ATTN_BATCH_H
#define ATTN_BATCH_H

#include "attn_types.h"
#include "attn_problem.h"
#include "attn_ext_private_operands.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An int32 array in two places. Both NULL = absent. (This struct and the next are passed only
 * inside other structs: they have no struct_size and never change.) */
typedef struct attn_i32_array {
    const int32_t *host;
    const int32_t *device;
} attn_i32_array;

/* An int64 array in two places. Both NULL = absent. */
typedef struct attn_i64_array {
    const int64_t *host;
    const int64_t *device;
} attn_i64_array;

/* ---- Places of keys -------------------------------------------------------------------------- */

/* Forms of the index from a sequence's keys to slots; bits of a mask. X(NAME, bit, "name in texts")
 */
#define ATTN_INDEX_MAP(X)                                                                          \
    X(REQ_TO_TOKEN, 0, "req_to_token") /* a row of slots per request */                            \
    X(BLOCK_TABLE, 1, "block_table")   /* a row of pages per sequence of the batch */              \
    X(CSR, 2, "csr")                   /* pages of all sequences in one list, with an indptr */

enum attn_index_form {
#define ATTN_INDEX_ENUM(name, bit, text) ATTN_INDEX_##name = 1 << (bit),
    ATTN_INDEX_MAP(ATTN_INDEX_ENUM)
#undef ATTN_INDEX_ENUM
        ATTN_INDEX_ALL = (1 << 3) - 1
};

/* One KV group: layers that share slots. A window pool, a global pool, each of vLLM's KV groups and
 * the encoder of cross attention are KV groups. A slot is page * page_size + offset. Every page may
 * hold keys, page 0 too: a backend writes only to the slots in out_cache_loc. The index of a
 * position that no query sees, for example before the start of a window, may be any page of the
 * cache.
 *
 * New rows: request s has rows kv_new_indptr[s] .. kv_new_indptr[s + 1] of k, v and out_cache_loc.
 * They are its last keys. Its earlier keys are in the cache; with ATTN_USES_SHARED_NEW_KV they may
 * also be new keys of another request, in the slots that this batch saves them to. If kv_new_indptr
 * is absent, the new rows are the query's rows (q_indptr; row s in DECODE). */
typedef struct attn_kv_batch {
    uint32_t struct_size;
    uint32_t index_forms;        /* ATTN_INDEX_* that are filled in: all that the instance reads, */
                                 /* and any others */
    int32_t page_size;           /* tokens, >= 1 */
    int32_t req_to_token_stride; /* elements between two rows */
    int32_t block_table_stride;  /* elements between two rows */
    int32_t reserved;            /* 0 */
    attn_i32_array kv_lens;      /* [S] keys of each sequence, the new ones included; absent = */
                                 /* batch.seq_lens */
    attn_i64_array out_cache_loc; /* [rows of k] slot of a new key; -1 = not written */
    attn_i32_array kv_new_indptr; /* [S + 1] */
    attn_i32_array req_to_token; /* [requests, stride] slot of position j of request r; row index */
                                 /* = batch.req_pool_indices[s] */
    attn_i32_array block_table;  /* [S, stride] page of positions j * page_size and following */
    attn_i32_array kv_indptr;    /* CSR: [S + 1] into kv_indices */
    attn_i32_array kv_indices;   /* CSR: page ids */
    attn_i32_array last_page_len; /* CSR: [S] tokens in the last page, 1..page_size; 0 = no key */
} attn_kv_batch;

/* ---- Optional parts of a batch --------------------------------------------------------------- */

/* A custom mask. Bit t * columns + j of request s, little-endian within bytes, is 1 iff its query t
 * sees column j; rows are not padded; each request starts on a byte boundary. Columns are all
 * kv_len keys (FULL) or the request's new tokens (QLEN). The mask replaces window_right and the
 * chunk's rule j <= i; window_left and the chunk's borders still apply. */
typedef struct attn_mask {
    uint32_t struct_size;
    uint32_t kind;         /* ATTN_MASK_* */
    const uint8_t *bits;   /* device; NULL for LAYER and NONE */
    attn_i64_array indptr; /* [S + 1] bytes; absent for LAYER and NONE */
} attn_mask;

/* Draft tokens under verification. */
typedef struct attn_speculation {
    uint32_t struct_size;
    int32_t num_draft_tokens; /* queries of each sequence */
    int32_t top_k;            /* branches of the draft tree; 1 = a chain */
    int32_t reserved;         /* 0 */
} attn_speculation;

/* Several items scored after one prefix. Let i be a query and p = token_pos[s][i - prefix_lens[s]].
 * A query of the prefix is causal. A token of an item sees the prefix and keys i - p < j <= i: p is
 * its 1-based position in its item. A delimiter has p = 0 and sees only the prefix. */
typedef struct attn_multi_item {
    uint32_t struct_size;
    int32_t token_pos_stride;    /* elements between two rows of token_pos */
    attn_i32_array prefix_lens;  /* [S] tokens before the first delimiter */
    const uint16_t *token_pos;   /* [S, stride] device */
    attn_i32_array max_item_len; /* [S] upper bound of item lengths, for planning */
} attn_multi_item;

/* One level of shared prefixes: runs of adjacent sequences whose first keys are in the same slots.
 * Level 0 has the longest runs (a system prompt). The runs of each further level are inside those
 * of the level before (its documents, their questions) and share at least as many keys. Only
 * decoder keys count, not those of cross attention's encoders. This is a hint: it does not change
 * results.
 *
 * For GRAPH metadata every init passes max_prefix_levels levels of max_seqs runs, at the same
 * addresses; unused runs and levels have no sequences or share no keys. */
typedef struct attn_shared_prefix {
    uint32_t struct_size;
    uint32_t num_groups;
    attn_i32_array seq_indptr; /* [num_groups + 1] into the sequences */
    attn_i32_array prefix_len; /* [num_groups] keys shared, from key 0 on, whole pages */
} attn_shared_prefix;

/* One state group: linear layers that share slots, for recurrent state and for convolution state.
 * Each state group has slots and pools of its own. A sequence's state is read from slot and written
 * to dst_slot after its last row; equal = in place. For a sequence without rows the state is
 * copied, or zeroed if has_initial is 0. An update is not idempotent. No slot is written twice, or
 * written for one sequence and read for another; no snapshot goes to a slot that is read. Slot 0 is
 * padding: it starts as zero, any sequence may read and write it, and its contents have no meaning.
 */
typedef struct attn_state_batch {
    uint32_t struct_size;
    uint32_t reserved;          /* 0 */
    attn_i32_array slot;        /* [S] */
    attn_i32_array dst_slot;    /* [S] absent = slot */
    attn_i32_array has_initial; /* [S] 0 = start from zero without reading slot; absent = all 1 */
    attn_i32_array snapshots;   /* [T] slot for a copy of the state after this row; -1 = none; */
                                /* absent = no snapshots */
} attn_state_batch;

/* Bounds on the key choices of sparse layers. Each layer has its own choice: operands
 * SPARSE_INDICES and SPARSE_COUNT. */
typedef struct attn_sparse_batch {
    uint32_t struct_size;
    int32_t max_count; /* most entries of a row in any layer; 1..the largest top_k */
} attn_sparse_batch;

/* ---- Required arrays, and checks by the host ------------------------------------------------- */

/* Device arrays of a batch with sequences; D = required in DECODE, X = in the other modes:
 *
 *   seq_lens               D X   always
 *   prefix_lens, q_indptr    X   always; not read in DECODE
 *   positions                X   only with a custom mask, and optional then
 *   kv_lens                D X   absent = seq_lens
 *   kv_new_indptr          D X   absent = q_indptr, or row s in DECODE
 *   out_cache_loc          D X   if new keys are saved (ATTN_FORWARD_SAVE_KV)
 *   req_pool_indices, req_to_token | block_table | kv_indptr, kv_indices, last_page_len
 *                          D X   the forms that the instance reads (index_forms)
 *   slot                   D X   of each state group of linear layers; others are optional
 *   sparse                 D X   with sparse layers: the struct
 *
 * Host arrays: those that the verdicts on the layers' problems name in host_arrays; of these,
 * prefix_lens and q_indptr only in X, and the others, except seq_lens, only if the device array is
 * present. Every other host array is optional.
 *
 * The host checks every batch before it calls a plugin: required arrays are present, the mode is
 * accepted, counts are within the bounds, structs have their full size. In `host` arrays it also
 * checks that
 *
 *   - no indptr is negative, decreases, or exceeds the number of rows
 *   - no sequence has more than max_q_len rows of q, or more than max_kv_len keys
 *   - sequences of a MIXED batch that decode have decode_q_len rows of q
 *   - seq_lens[s] is prefix_lens[s] plus the sequence's rows of q (X)
 *   - positions are not negative
 *   - no slot of a state group is written twice, or written for one sequence and read for another
 *
 * Padding sequences are exempt from the last five. The host does not check arrays that are only on
 * the device, nor the contents of index arrays. */

/* ---- Batch ----------------------------------------------------------------------------------- */

/* The input of one step. Passed to init_forward_metadata once, before the first layer.
 *
 * Query t of request s is row q_indptr[s] + t and sits at absolute position i = prefix_lens[s] + t;
 * in DECODE it is row s at position seq_lens[s] - 1. Key j sits at position j. With `positions`
 * (only with a custom mask) a new key j >= prefix_len and its query sit at
 * positions[q_indptr[s]+j-prefix_len]; this affects only window, chunk and ALiBi. Positions are 0 or
 * more; outputs of a sequence with a negative one are undefined. The sequences of a MIXED batch that
 * decode are its last ones (first_decode_seq = num_seqs - num_decode_seqs) or, where the bounds have
 * ATTN_USES_DECODES_FIRST, its first ones (0). Each has decode_q_len queries: 1, or where the bounds
 * have ATTN_USES_DECODE_DRAFTS, 1 + k with k draft tokens. The other sequences extend, with any
 * number of queries. A MIXED batch whose q_indptr does not start at 0, or ends before row T, must
 * also have the host array: a backend that splits the batch needs the place of its rows.
 *
 * Sequences and rows beyond num_real_* are padding. A padding sequence has any request row and any
 * pages of the cache whose keys are finite, seq_len = the backend's fill value
 * (graph_seq_len_fill), prefix_len 0, out_cache_loc -1 or slots that hold no key of the engine,
 * state slots 0, and zero q, k, v; its rows of given SPARSE_INDICES and SPARSE_COUNT hold anything,
 * and no backend reads them. If all sequences of a batch have the same number of queries, padding
 * has that number too, and at least that seq_len. Rows from q_indptr[S] to q_indptr[0] + T belong to
 * no sequence and are padding too. The output of padding is finite; padding changes nothing else. */
typedef struct attn_batch {
    uint32_t struct_size;
    uint32_t mode;                         /* ATTN_MODE_* */
    int32_t num_seqs;                      /* S, padding included */
    int32_t num_tokens;                    /* T, query rows, padding included */
    int32_t num_real_seqs;                 /* <= num_seqs */
    int32_t num_real_tokens;               /* <= num_tokens */
    int32_t num_decode_seqs;               /* MIXED: number of sequences that decode; else 0 */
    int32_t first_decode_seq;              /* MIXED: index of the first of them; else 0 */
    int32_t decode_q_len;                  /* MIXED: queries of each, >= 1; else 0 */
    int32_t max_q_len;                     /* most queries of any sequence */
    int32_t max_kv_len;                    /* most keys of any sequence, in any KV group */
    uint32_t num_kv_groups;                /* elements of kv_groups */
    uint32_t num_state_groups;             /* elements of state_groups */
    uint32_t num_prefix_levels;            /* elements of shared_prefix */
    const int32_t *num_real_seqs_device;   /* num_real_* on the device, for kernels in a graph; */
    const int32_t *num_real_tokens_device; /* NULL in eager metadata, which uses the host values */
    attn_i32_array seq_lens;               /* [S] tokens of each sequence, the new ones included */
    attn_i32_array prefix_lens;      /* [S] tokens before the first query; not read in DECODE */
    attn_i32_array q_indptr;         /* [S + 1] query rows; not read in DECODE */
    attn_i32_array positions;        /* [T] explicit positions; absent without a custom mask */
    attn_i32_array req_pool_indices; /* [S] row of req_to_token */
    const attn_kv_batch *kv_groups;  /* array; walk with attn_at() */
    const attn_state_batch *state_groups; /* array; walk with attn_at(); NULL = no linear layer */
    const attn_mask *mask;                /* NULL = ATTN_MASK_LAYER */
    const attn_speculation *speculation;  /* NULL = none */
    const attn_multi_item *multi_item;    /* NULL = none */
    const attn_shared_prefix *shared_prefix; /* array; walk with attn_at(); NULL = none */
    const attn_sparse_batch *sparse;         /* NULL = no sparse layer */
} attn_batch;

/* Does sequence s of a MIXED batch decode? [any-thread] */
static inline int attn_is_decode_seq(const attn_batch *batch, int32_t s)
{
    return s >= batch->first_decode_seq && s - batch->first_decode_seq < batch->num_decode_seqs;
}

/* ---- Forward arguments ----------------------------------------------------------------------- */

/* Dtype of an operand: the last column of ATTN_ROLE_MAP. attnhost_forward checks it. */
enum attn_operand_dtype {
    ATTN_DTYPE_OF_Q = 0,       /* the problem's q_dtype */
    ATTN_DTYPE_OF_KV = 1,      /* the problem's kv_dtype */
    ATTN_DTYPE_OF_LATENT = 2,  /* the problem's kv_dtype; bytes (ATTN_U8) in mla.latent_fp8/1 */
    ATTN_DTYPE_OF_OUT = 3,     /* the problem's out_dtype */
    ATTN_DTYPE_OF_F32 = 4,     /* fp32 */
    ATTN_DTYPE_OF_GATE = 5,    /* the problem's q_dtype with ATTN_LINEAR_RAW_GATES, else fp32 */
    ATTN_DTYPE_OF_STATE = 6,   /* linear.state_dtype */
    ATTN_DTYPE_OF_CONV = 7,    /* linear.conv_dtype */
    ATTN_DTYPE_OF_LABEL = 8,   /* sparse.label_dtype; bytes (ATTN_U8) if that is e4m3 */
    ATTN_DTYPE_OF_I32 = 9,     /* int32 */
    ATTN_DTYPE_OF_NEW_KV = 10, /* the problem's new_kv_dtype */
    ATTN_DTYPE_OF_INDEX = 11,  /* sparse.index_dtype */
    ATTN_DTYPE_OF_COUNT = 12
};

/* Operands by role, their dtypes and shapes. T = query rows, R = rows of new k and v.
 * X(NAME, value, "name in texts", ATTN_DTYPE_OF_) */
#define ATTN_ROLE_MAP(X)                                                                           \
    X(Q, 0, "q", Q)              /* [T, q_heads, head_dim] */                                      \
    X(K, 1, "k", NEW_KV)         /* [R, kv_heads, head_dim] */                                     \
    X(V, 2, "v", NEW_KV)         /* [R, kv_heads, v_head_dim] */                                   \
    X(OUT, 3, "out", OUT)        /* [T, q_heads, v_head_dim] written; linear: v_heads */           \
    X(LSE, 4, "lse", F32)        /* [T, q_heads] natural logarithm, written */                     \
    X(K_CACHE, 5, "k_cache", KV) /* in the problem's kv_layout, head_dim wide */                   \
    X(V_CACHE, 6, "v_cache", KV) /* the same, v_head_dim wide */                                   \
    X(SINKS, 7, "sinks", F32)    /* [q_heads] */                                                   \
    X(ALIBI_SLOPES, 8, "alibi_slopes", F32) /* [q_heads] */                                        \
    X(Q_NOPE, 9, "q_nope", Q)               /* MLA absorbed: [T, q_heads, kv_lora_rank], as out */ \
    X(Q_PE, 10, "q_pe", Q)                  /* MLA absorbed: [T, q_heads, rope_dim] */             \
    X(C_KV, 11, "c_kv", NEW_KV)             /* MLA: new latents [R, kv_lora_rank] */               \
    X(K_PE, 12, "k_pe", NEW_KV)             /* MLA: new shared keys [R, rope_dim] */               \
    X(LATENT_CACHE, 13, "latent_cache", LATENT)  /* MLA: in the problem's kv_layout */             \
    X(MIXED_QKV, 14, "mixed_qkv", Q)             /* linear: [T, channels] before convolution */    \
    X(GATE_A, 15, "a", GATE)                     /* linear: [T, v_heads] raw, or the log decay; */ \
                                                 /* KDA: [T, v_heads, head_k_dim]; not for */      \
                                                 /* lightning */                                   \
    X(GATE_B, 16, "b", GATE)                     /* linear: [T, v_heads] raw, or beta; not for */  \
                                                 /* lightning, nor for Mamba2 raw */               \
    X(GATE_Z, 17, "z", Q)                        /* linear, optional: [T, v_heads, head_v_dim] */  \
    X(A_LOG, 18, "A_log", F32)                   /* linear: [v_heads]; lightning: log decay */     \
    X(DT_BIAS, 19, "dt_bias", F32)               /* linear, raw: [v_heads] or as GATE_A's row */   \
    X(D_SKIP, 20, "D", F32)                      /* Mamba2, optional: [v_heads] or [v_heads, */    \
                                                 /* head_v_dim] */                                 \
    X(CONV_WEIGHT, 21, "conv_weight", Q)         /* linear: [channels, conv_width] */              \
    X(CONV_BIAS, 22, "conv_bias", Q)             /* linear, optional: [channels] */                \
    X(STATE, 23, "state", STATE)                 /* linear: in the problem's state_layout */       \
    X(CONV_STATE, 24, "conv_state", CONV)        /* linear: state.conv/1 */                        \
    X(LABEL_CACHE, 25, "label_cache", LABEL)     /* sparse: [pages, page_size, label_dim], or */   \
                                                 /* in e4m3 [pages, page_size * (label_dim + */    \
                                                 /* 4)] bytes: attn_sparse_dims */                 \
    X(SPARSE_INDICES, 26, "sparse_indices", I32) /* sparse: [T, top_k] or, per head, [T, */        \
                                                 /* kv_heads, top_k]; docs/ABI.md, MEAN-21; */     \
                                                 /* written by a call that chooses */              \
    X(SPARSE_COUNT, 27, "sparse_count", I32)     /* sparse, optional: [T] entries of a row; */     \
                                                 /* absent = top_k; entries may be -1; */          \
                                                 /* written by a call that chooses */              \
    X(INDEX_Q, 28, "index_q", INDEX)             /* indexer: [T, index_heads, label_dim] */        \
    X(INDEX_WEIGHTS, 29, "index_weights", F32)   /* indexer: [T, index_heads] */                   \
    X(INDEX_K, 30, "index_k", NEW_KV)            /* indexer: new labels [R, label_dim] */          \
    X(INDEX_LOGITS, 31, "index_logits", F32)     /* indexer: [T, at least the keys of the */       \
                                                 /* longest sequence]; logit of key j in column */ \
                                                 /* j, -inf for keys that the row does not see; */ \
                                                 /* written by a call that has INDEX_Q */

enum attn_role {
#define ATTN_ROLE_ENUM(name, value, text, dtype) ATTN_ROLE_##name = value,
    ATTN_ROLE_MAP(ATTN_ROLE_ENUM)
#undef ATTN_ROLE_ENUM
        ATTN_ROLE_COUNT = 32
};

/* Quantisation scale of an operand that is fp8: a cache, q, new k and v, or OUT. Stored value =
 * saturating round-to-nearest-even of x / scale in IEEE fp32; value read = stored * scale. A
 * missing scale is an error, never 1. */
typedef struct attn_scale {
    uint32_t struct_size;
    uint32_t granularity; /* ATTN_SCALE_* */
    uint32_t count;       /* values, as the granularity requires; the last index is a KV head */
    uint32_t reserved;    /* 0 */
    const float *host;    /* NULL only if `device` is set and no host copy exists */
    const float *device;  /* NULL = use `host`, whose values are baked into a capture */
} attn_scale;

/* attn_forward_args.flags */
enum attn_forward_flag {
    ATTN_FORWARD_SAVE_KV = 1 << 0,   /* write k, v to out_cache_loc before reading */
    ATTN_FORWARD_OMIT_SINK = 1 << 1, /* leave the sink out of output and LSE */
    ATTN_FORWARD_CAPTURING = 1 << 2  /* the stream is being captured */
};

/* Steps of a sparse layer with an indexer. A call runs consecutive steps, from the first one whose
 * inputs it has to the last one whose outputs it has.
 *
 *   label    INDEX_Q, INDEX_WEIGHTS, LABEL_CACHE -> INDEX_LOGITS
 *   choose   INDEX_LOGITS                        -> SPARSE_INDICES, SPARSE_COUNT
 *   attend   SPARSE_INDICES, SPARSE_COUNT, q ... -> OUT, LSE
 *
 * A call begins with `label` if it has INDEX_Q, else with `choose` if it has INDEX_LOGITS, else
 * with `attend`, on the engine's own choice. It ends with `attend` if it has OUT, else with
 * `choose` if it has SPARSE_INDICES, else with `label`. Intermediate results without an operand
 * stay internal; those with an operand are written for every real row. A choice is written in any
 * order, then -1; columns of INDEX_LOGITS after a sequence's keys are not written. With SAVE_KV,
 * new labels (if INDEX_K is present) and new latents (if they are present) are written first;
 * `label` and `attend` read only the caches. */

/* One layer's tensors. Operand pointers are indexed by ATTN_ROLE_*, scales by the role of the
 * operand they belong to; entries beyond the counts are absent. The structs are valid during the
 * call; the memory of operands and scales is valid until the stream has completed it.
 *
 * A backend returns INVALID_ARGUMENT with the role's name if a role that it needs is missing, and
 * ignores roles that it does not use. The host refuses SINKS and ALIBI_SLOPES, which change
 * results, if the group's flags do not declare them. It also refuses an operand whose dtype differs
 * from the layer's problem. Without k and v, only the cache is read. With k and v but without
 * SAVE_KV, new tokens come from the arguments and the prefix from the cache, and nothing is
 * written. In the absorbed form of MLA, c_kv and k_pe take the place of k and v. */
typedef struct attn_forward_args {
    uint32_t struct_size;
    uint32_t flags;                     /* ATTN_FORWARD_* */
    uint32_t num_operands;              /* elements of `operands`, normally ATTN_ROLE_COUNT */
    uint32_t num_scales;                /* elements of `scales` */
    const attn_tensor *const *operands; /* by role; NULL = absent */
    const attn_scale *const *scales;    /* by role; NULL = absent; may be NULL if num_scales is 0 */
    uint32_t num_named;                 /* elements of `named` */
    uint32_t reserved;                  /* 0 */
    const attn_named_operand *named;    /* array; walk with attn_at(): private operands that the */
                                        /* layer's problem names as features, each once */
} attn_forward_args;

/* The operand of a role, or NULL. [any-thread] */
static inline const attn_tensor *attn_operand(const attn_forward_args *args, uint32_t role)
{
    return role < args->num_operands ? args->operands[role] : (const attn_tensor *)0;
}

/* The scale of a role, or NULL. [any-thread] */
static inline const attn_scale *attn_operand_scale(const attn_forward_args *args, uint32_t role)
{
    return role < args->num_scales ? args->scales[role] : (const attn_scale *)0;
}

#ifdef __cplusplus
}
#endif

#endif /* ATTN_BATCH_H */
