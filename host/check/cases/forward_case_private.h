/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_case_private.h: the internals of a case, for forward_case*.c and for checks that change
 * one thing in a case.
 *
 *   part    an array or a tensor of the case; all of them lie in one piece of memory, the arena,
 *           each between red zones
 *   view    the ABI's structs with pointers into a copy of the arena
 *   tokens  queries, keys and values before they are put anywhere
 *
 * There are four copies of the arena. `image` has the contents before a run, which the oracle
 * reads; the host pointers of the batch point into `planning`, which is overwritten once the batch
 * is planned; `memory` is the device's; `actual` has the device's contents after a run. */
#ifndef HOST_CHECK_CASES_FORWARD_CASE_PRIVATE_H
#define HOST_CHECK_CASES_FORWARD_CASE_PRIVATE_H

#include "host/check/cases/forward_case.h"
#include "host/check/cases/draw.h"
#include "host/base/mix.h"
#include "host/reference/sparse.h"

enum {
    CASE_ALIGNMENT = 256, /* of each part */
    CASE_RED_ZONE = 64,   /* bytes before and after it, at least */
    CASE_GUARD = 4096,    /* bytes that no call may touch after it (spec.guarded) */
    CASE_RED = 0xA5,
    CASE_POISON = 0xFF, /* NaN in every floating-point type */
    CASE_UNUSED_INDEX = 0x7ffffff0,
    CASE_MAX_SEQS = FORWARD_CASE_MAX_PADDED,
    CASE_MAX_NEEDLES = 4096,
    CASE_MAX_HEADS = 256
};

/* Properties of a part: a set of bits. */
enum {
    CASE_ARRAY = 0,
    CASE_TABLE = 1 << 0,    /* an array that names pages or slots, of a cache or of states */
    CASE_ROWS = 1 << 1,     /* an input with a row for each query */
    CASE_NEW = 1 << 2,      /* an input with a row for each new key, of the first layer alone */
    CASE_CONSTANT = 1 << 3, /* an input that the layer has */
    CASE_OUTPUT = 1 << 4,   /* with rows; those of a choice are inputs where a list is given */
    CASE_CACHE = 1 << 5,
    CASE_POOL = 1 << 6, /* of states */
    CASE_OPERAND = CASE_ROWS | CASE_NEW | CASE_CONSTANT | CASE_OUTPUT | CASE_CACHE | CASE_POOL,
    CASE_SECOND = 1 << 7, /* it takes the place of the first layer's in the second layer's call */
    CASE_SCALE = 1 << 8,
    CASE_POISONED = 1 << 9 /* NaN from end to end, before it is filled */
};

/* The parts of a case: each with its name in messages, its properties and, for an operand or its
 * scale, the role, for an array the bit of the verdict (ATTN_HOST_*); the _SECOND ones belong to
 * the second layer. */
#define CASE_PART_MAP(PART)                                                                        \
    PART(SEQ_LENS, "seq_lens", CASE_ARRAY, ATTN_HOST_SEQ_LENS)                                     \
    PART(PREFIX_LENS, "prefix_lens", CASE_ARRAY, ATTN_HOST_PREFIX_LENS)                            \
    PART(Q_INDPTR, "q_indptr", CASE_ARRAY, ATTN_HOST_Q_INDPTR)                                     \
    PART(POSITIONS, "positions", CASE_ARRAY, 0)                                                    \
    PART(REQUESTS, "req_pool_indices", CASE_ARRAY, 0)                                              \
    PART(KV_LENS, "kv_lens", CASE_ARRAY, ATTN_HOST_KV_LENS)                                        \
    PART(OUT_CACHE_LOC, "out_cache_loc", CASE_TABLE, 0)                                            \
    PART(NEW_INDPTR, "kv_new_indptr", CASE_ARRAY, ATTN_HOST_KV_NEW_INDPTR)                         \
    PART(REQ_TO_TOKEN, "req_to_token", CASE_TABLE, 0)                                              \
    PART(BLOCK_TABLE, "block_table", CASE_TABLE, 0)                                                \
    PART(KV_INDPTR, "kv_indptr", CASE_ARRAY, ATTN_HOST_KV_INDPTR)                                  \
    PART(KV_INDICES, "kv_indices", CASE_TABLE, 0)                                                  \
    PART(LAST_PAGE_LEN, "last_page_len", CASE_ARRAY, ATTN_HOST_LAST_PAGE_LEN)                      \
    PART(MASK_BITS, "mask.bits", CASE_ARRAY, 0)                                                    \
    PART(MASK_INDPTR, "mask.indptr", CASE_ARRAY, ATTN_HOST_MASK_INDPTR)                            \
    PART(ITEM_PREFIX, "multi_item.prefix_lens", CASE_ARRAY, 0)                                     \
    PART(ITEM_LEN, "multi_item.max_item_len", CASE_ARRAY, 0)                                       \
    PART(TOKEN_POS, "multi_item.token_pos", CASE_ARRAY, 0)                                         \
    PART(NUM_REAL, "num_real_seqs_device", CASE_ARRAY, 0)                                          \
    PART(Q, "q", CASE_ROWS, ATTN_ROLE_Q)                                                           \
    PART(K, "k", CASE_NEW, ATTN_ROLE_K)                                                            \
    PART(V, "v", CASE_NEW, ATTN_ROLE_V)                                                            \
    PART(OUT, "out", CASE_OUTPUT | CASE_POISONED, ATTN_ROLE_OUT)                                   \
    PART(LSE, "lse", CASE_OUTPUT | CASE_POISONED, ATTN_ROLE_LSE)                                   \
    PART(K_CACHE, "k_cache", CASE_CACHE, ATTN_ROLE_K_CACHE)                                        \
    PART(V_CACHE, "v_cache", CASE_CACHE, ATTN_ROLE_V_CACHE)                                        \
    PART(SINKS, "sinks", CASE_CONSTANT, ATTN_ROLE_SINKS)                                           \
    PART(SLOPES, "alibi_slopes", CASE_CONSTANT, ATTN_ROLE_ALIBI_SLOPES)                            \
    PART(K_SCALE, "scale of k_cache", CASE_SCALE, ATTN_ROLE_K_CACHE)                               \
    PART(V_SCALE, "scale of v_cache", CASE_SCALE, ATTN_ROLE_V_CACHE)                               \
    PART(OUT_SECOND, "out of the second layer", CASE_OUTPUT | CASE_SECOND | CASE_POISONED,         \
         ATTN_ROLE_OUT)                                                                            \
    PART(LSE_SECOND, "lse of the second layer", CASE_OUTPUT | CASE_SECOND | CASE_POISONED,         \
         ATTN_ROLE_LSE)                                                                            \
    PART(Q_PE, "q_pe", CASE_ROWS | CASE_POISONED, ATTN_ROLE_Q_PE)                                  \
    PART(C_KV, "c_kv", CASE_NEW | CASE_POISONED, ATTN_ROLE_C_KV)                                   \
    PART(K_PE, "k_pe", CASE_NEW | CASE_POISONED, ATTN_ROLE_K_PE)                                   \
    PART(LATENT_CACHE, "latent_cache", CASE_CACHE | CASE_POISONED, ATTN_ROLE_LATENT_CACHE)         \
    PART(LATENT_SCALE, "scale of latent_cache", CASE_SCALE, ATTN_ROLE_LATENT_CACHE)                \
    PART(HINT_SEQS, "shared_prefix.seq_indptr", CASE_ARRAY, 0)                                     \
    PART(HINT_LENS, "shared_prefix.prefix_len", CASE_ARRAY, 0)                                     \
    PART(HINT_INNER_SEQS, "shared_prefix[1].seq_indptr", CASE_ARRAY, 0)                            \
    PART(HINT_INNER_LENS, "shared_prefix[1].prefix_len", CASE_ARRAY, 0)                            \
    PART(SPARSE_INDICES, "sparse_indices", CASE_OUTPUT, ATTN_ROLE_SPARSE_INDICES)                  \
    PART(SPARSE_COUNT, "sparse_count", CASE_OUTPUT, ATTN_ROLE_SPARSE_COUNT)                        \
    PART(INDEX_Q, "index_q", CASE_ROWS | CASE_POISONED, ATTN_ROLE_INDEX_Q)                         \
    PART(INDEX_WEIGHTS, "index_weights", CASE_ROWS | CASE_POISONED, ATTN_ROLE_INDEX_WEIGHTS)       \
    PART(INDEX_K, "index_k", CASE_NEW | CASE_POISONED, ATTN_ROLE_INDEX_K)                          \
    PART(INDEX_LOGITS, "index_logits", CASE_OUTPUT | CASE_POISONED, ATTN_ROLE_INDEX_LOGITS)        \
    PART(LABEL_CACHE, "label_cache", CASE_CACHE | CASE_POISONED, ATTN_ROLE_LABEL_CACHE)            \
    PART(BITS_SECOND, "the oracle's own", CASE_ARRAY, 0)                                           \
    PART(INDICES_SECOND, "sparse_indices of the second layer", CASE_OUTPUT | CASE_SECOND,          \
         ATTN_ROLE_SPARSE_INDICES)                                                                 \
    PART(COUNT_SECOND, "sparse_count of the second layer", CASE_OUTPUT | CASE_SECOND,              \
         ATTN_ROLE_SPARSE_COUNT)                                                                   \
    PART(Q_SCALE, "scale of q", CASE_SCALE, ATTN_ROLE_Q)                                           \
    PART(Q_PE_SCALE, "scale of q_pe", CASE_SCALE, ATTN_ROLE_Q_PE)                                  \
    PART(NEW_K_SCALE, "scale of k", CASE_SCALE, ATTN_ROLE_K)                                       \
    PART(NEW_V_SCALE, "scale of v", CASE_SCALE, ATTN_ROLE_V)                                       \
    PART(OUT_SCALE, "scale of out", CASE_SCALE, ATTN_ROLE_OUT)                                     \
    PART(MIXED_QKV, "mixed_qkv", CASE_ROWS, ATTN_ROLE_MIXED_QKV)                                   \
    PART(GATE_A, "gate_a", CASE_ROWS, ATTN_ROLE_GATE_A)                                            \
    PART(GATE_B, "gate_b", CASE_ROWS, ATTN_ROLE_GATE_B)                                            \
    PART(GATE_Z, "gate_z", CASE_ROWS, ATTN_ROLE_GATE_Z)                                            \
    PART(A_LOG, "a_log", CASE_CONSTANT, ATTN_ROLE_A_LOG)                                           \
    PART(DT_BIAS, "dt_bias", CASE_CONSTANT, ATTN_ROLE_DT_BIAS)                                     \
    PART(D_SKIP, "d_skip", CASE_CONSTANT, ATTN_ROLE_D_SKIP)                                        \
    PART(CONV_WEIGHT, "conv_weight", CASE_CONSTANT, ATTN_ROLE_CONV_WEIGHT)                         \
    PART(CONV_BIAS, "conv_bias", CASE_CONSTANT, ATTN_ROLE_CONV_BIAS)                               \
    PART(CONV_STATE, "conv_state", CASE_POOL, ATTN_ROLE_CONV_STATE)                                \
    PART(STATE, "state", CASE_POOL, ATTN_ROLE_STATE)                                               \
    PART(STATE_SLOT, "slot", CASE_TABLE, 0)                                                        \
    PART(STATE_DST, "dst_slot", CASE_TABLE, 0)                                                     \
    PART(INITIAL, "has_initial", CASE_ARRAY, 0)                                                    \
    PART(SNAPSHOTS, "snapshots", CASE_TABLE, 0)                                                    \
    PART(OTHER_SLOTS, "slot of another state group", CASE_TABLE, 0)

#define PART_ID(name, text, sorts, number) PART_##name,
enum case_part_id { CASE_PART_MAP(PART_ID) CASE_PARTS };
#undef PART_ID

extern const struct case_part_kind {
    const char *name;
    uint32_t sorts, number;
} case_part_kinds[CASE_PARTS];

static inline const char *case_part_name(enum case_part_id part)
{
    return case_part_kinds[part].name;
}

static inline bool case_part_is(enum case_part_id part, uint32_t sorts)
{
    return case_part_kinds[part].sorts & sorts;
}

#define ROLE(name) (UINT64_C(1) << ATTN_ROLE_##name)

struct case_part {
    uint64_t offset; /* in the arena */
    uint64_t bytes;  /* 0 = the case has no such part */
};

/* How a tensor lies in its part. */
struct case_shape {
    uint32_t ndim;
    attn_dtype dtype;
    uint64_t byte_offset;
    int64_t shape[ATTN_MAX_DIMS];
    int64_t strides[ATTN_MAX_DIMS];
};

/* Lengths of a batch, padding included. */
struct case_lengths {
    int32_t num_seqs, num_real_seqs;
    int32_t num_decode_seqs, first_decode_seq, decode_q_len; /* MIXED; else 0 */
    int32_t q_len[CASE_MAX_SEQS];
    int32_t prefix[CASE_MAX_SEQS]; /* tokens before query 0 */
    int32_t kv_len[CASE_MAX_SEQS];
    int32_t num_new[CASE_MAX_SEQS];       /* keys of k and v */
    int32_t first_row[CASE_MAX_SEQS + 1]; /* of q; the last one = where they end */
    int32_t first_new[CASE_MAX_SEQS + 1]; /* of k, v and out_cache_loc */
    int32_t max_q_len, max_kv_len;
    int32_t spare; /* rows of no sequence after them */
};

/* The ABI's structs; initialised in place and never copied. */
struct case_view {
    attn_batch batch;
    attn_kv_batch kv_groups[2]; /* the layers' own, and sometimes one before it that they do not */
                                /* read */
    attn_mask mask;
    attn_multi_item items;
    attn_sparse_batch sparse;
    attn_state_batch states[LINEAR_STATE_GROUPS];
    attn_speculation spec;
    attn_shared_prefix shared[2];
    attn_tensor tensors[ATTN_ROLE_COUNT];
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_scale scale[ATTN_ROLE_COUNT];
    const attn_scale *scales[ATTN_ROLE_COUNT];
    attn_forward_args args;
};

/* Vectors as they come from the model, rounded to the type of q, or of new k and v, of the
 * sequences of a case. */
struct case_tokens {
    int32_t num_q[CASE_MAX_SEQS], num_k[CASE_MAX_SEQS];
    int64_t first_q[CASE_MAX_SEQS], first_k[CASE_MAX_SEQS]; /* sums of the above */
    float *q;                                               /* [queries, q_heads, head_dim] */
    float *k;                                               /* [keys, kv_heads, head_dim] */
    float *v;                                               /* [keys, kv_heads, v_head_dim] */
    float *latents;                                         /* of expanded keys: c_kv | k_pe */
    float *directions;  /* of one sequence: [kv_heads, head_dim] */
    float gentle_slope; /* of ALiBi: far keys still count */
};

/* A key that a query points at, at a border. */
struct case_needle {
    int32_t s, t, head; /* the query */
    int32_t key;
    int32_t is_seen;
};

struct forward_case {
    struct case_spec spec;
    uint64_t seed;
    uint64_t arrays_first, arrays_end; /* the part of the arena that has all arrays of the batch */
    uint64_t batch_seed;               /* of pages, masks, positions and items */
    const struct device *device;
    struct spec_problem posed;

    struct case_lengths lengths;
    struct case_part parts[CASE_PARTS];
    struct case_shape shapes[CASE_PARTS];
    uint64_t bytes; /* of the arena */
    char *image, *planning, *memory, *actual;

    struct case_view *planned;      /* the batch's source for planning: no call may read it later */
    const struct linear_part *part; /* all that its batch and its calls have now; NULL = all */

    int32_t stride_slots, stride_pages, stride_items; /* of the tables, in elements */
    int32_t max_chosen;                               /* of a row of a sparse layer */
    int32_t num_pages, pages_of_seq;                  /* of a linear layer: slots of its pools */
    int32_t *pages;                                   /* [num_seqs, pages_of_seq] */
    struct case_pool *pool; /* where the backend has the pages; NULL = in the arena */

    struct case_tokens *tokens;
    bool owns_tokens;
    struct case_needle *needles;
    int32_t num_needles;
    reference_report judged; /* all that was compared */
};

/* ---- Draws ----------------------------------------------------------------------------------- */

/* Random streams of the seed. */
enum case_draw {
    DRAW_PAGES = 1,
    DRAW_MASK,
    DRAW_POSITIONS,
    DRAW_ITEMS,
    DRAW_NEEDLES,
    DRAW_Q,
    DRAW_K,
    DRAW_V,
    DRAW_DIRECTION,
    DRAW_PEAK,
    DRAW_SINKS,
    DRAW_SCALES,
    DRAW_SLOTS,
    DRAW_LAYER,
    DRAW_NEW_ROWS,
    DRAW_SLACK,
    DRAW_FORMS,
    DRAW_GROUPS,
    DRAW_LENS,
    DRAW_HIDE,
    DRAW_HOST,
    DRAW_SPECIAL,
    DRAW_LATENT,
    DRAW_UNREAD,
    DRAW_CHOSEN,
    DRAW_TABLES,
    DRAW_INDEXER,
    DRAW_OTHER_FORMS
};

/* The state of one stream. */
static inline uint64_t case_stream(uint64_t seed, enum case_draw what, uint64_t a, uint64_t b,
                                   uint64_t c)
{
    uint64_t state = mix_absorb(seed, (uint64_t)what);
    return mix_absorb(mix_absorb(mix_absorb(state, a), b), c);
}

/* A number in [-1, 1), number `index` of a stream. */
static inline float case_unit(uint64_t stream, uint64_t index)
{
    return (float)(int32_t)(mix_stream(stream, index) >> 32) * 0x1p-31f;
}

/* One in two, by seed and thing. */
static inline bool case_coin(uint64_t seed, enum case_draw what)
{
    return mix_stream(case_stream(seed, what, 0, 0, 0), UINT64_MAX) >> 63;
}

/* A case of exactly these seeds. With equal ones of the batch and equal lengths two cases have
 * equal masks, positions and items and, with equal pages, equal slots. */
attn_status forward_case_create_seeded(const struct case_spec *spec, uint64_t seed,
                                       uint64_t batch_seed, const struct device *device,
                                       struct forward_case **c, attn_error *error);

/* Pages, arrays and tokens of a softmax or latent case, in `image`, with constants drawn from a seed of their own. */
attn_status case_fill(struct forward_case *c, uint64_t of_constants, attn_error *error);

/* ---- Arena (forward_case_parts.c) ------------------------------------------------------------ */

/* One more part of the arena; a tensor begins at the offset in its part that makes it as aligned as the problem
 * promises, and no better. */
void case_add_part(struct forward_case *c, enum case_part_id part, uint64_t bytes);
uint64_t case_byte_offset(const struct forward_case *c, attn_dtype dtype);

/* A part with a tensor, whose dtype, number of dimensions and offset its shape has: `inner_gap` elements lie between
 * vectors, `outer_gap` more between outermost rows. */
void case_add_shape(struct forward_case *c, enum case_part_id part, const int64_t *extents,
                    int64_t inner_gap, int64_t outer_gap);

/* A part with a tensor, whose vectors are dense, or lie apart by what a strided view of a larger one has between
 * them. */
void case_add_tensor(struct forward_case *c, enum case_part_id part, attn_dtype dtype,
                     uint32_t ndim, const int64_t *extents);

/* Copy the arrays of a batch from a copy of the arena to `planning`, whose other bytes nothing points to. */
void case_bring_plan(struct forward_case *c, const char *arena);

/* Give every part its place, from the lengths and the number of pages. */
void case_lay_out(struct forward_case *c);

/* Protect the pages after the parts of a guarded case during a call of the backend, and make them
 * accessible otherwise. */
void case_guard(const struct forward_case *c, bool shut);

/* Allocate the copies; fill `image` with red zones and nothing else. */
attn_status case_allocate(struct forward_case *c, attn_error *error);

/* Where a part lies in `image`; NULL = the case has no such part. */
void *case_part(const struct forward_case *c, enum case_part_id part);

/* Vector [i, j, k] (k: tensors of four dimensions) of a tensor in a copy of the arena. */
char *case_vector(const struct forward_case *c, char *arena, enum case_part_id part, int64_t i,
                  int64_t j, int64_t k);

/* The vector of a slot in a cache; a latent has no heads. */
char *case_slot_vector(const struct forward_case *c, char *arena, enum case_part_id cache,
                       int64_t slot, int32_t kv_head);

/* Pointers into `arena`, and into `planning` (NULL = no host arrays) those that `host_arrays` names
 * (ATTN_HOST_*) and what spec.host adds. `second` = the call of the second layer. */
struct case_place {
    char *arena, *planning;
    uint32_t host_arrays;
    int32_t device_type, device_id;
    uint32_t index_forms;
    bool graph; /* num_real_* on the device */
    bool second;
};
void case_view_init(struct case_view *view, const struct forward_case *c,
                    const struct case_lengths *lengths, const struct case_place *place);

/* Operands that a call writes, as bits; caches where it saves new keys. */
uint64_t case_written_roles(const struct case_spec *spec, bool saves);

/* Overwrite the data that a batch was planned from: host arrays and structs. */
void case_forget_plan(struct forward_case *c);

/* ---- Batch (forward_case_batch.c) ------------------------------------------------------------ */

void case_lengths_init(struct case_lengths *lengths, const struct case_spec *spec, uint64_t seed);

/* Are the rows of k and v others than those of q, so that kv_new_indptr is given? */
bool case_has_new_rows(const struct case_spec *spec, uint64_t seed);

/* As many sequences, all of them padding. */
void case_lengths_pad(struct case_lengths *lengths, const struct case_spec *spec, uint64_t seed);

/* Do rows choose their keys by an indexer of the layer? Are they given them in lists? */
static inline bool case_has_indexer(const struct case_spec *spec)
{
    return spec->indexer.heads > 0;
}

static inline bool case_has_lists(const struct case_spec *spec)
{
    return spec->top_k > 0 && !case_has_indexer(spec);
}

/* The oracle's mask of a row's keys: keys of a list are bits in it. */
static inline uint32_t case_mask_kind(const struct case_spec *spec)
{
    return case_has_lists(spec) ? (uint32_t)ATTN_MASK_FULL : spec->mask_kind;
}

/* Do the rows of a sparse layer choose blocks? */
static inline bool case_has_blocks(const struct case_spec *spec)
{
    return spec->top_k > 0 && spec->index_kind != ATTN_SPARSE_TOKEN;
}

/* Do the chosen keys of a row end at a count, or with entries of -1? */
static inline bool case_has_count(const struct forward_case *c)
{
    return mix_stream(case_stream(c->seed, DRAW_CHOSEN, 0, 0, 0), 0) >> 63;
}

/* Are an indexer's logits given to the calls? Between two steps they have to be. */
static inline bool case_has_logits(const struct forward_case *c)
{
    return c->spec.indexer.by_steps ||
           mix_stream(case_stream(c->seed, DRAW_CHOSEN, 0, 0, 0), 1) >> 63;
}

/* Assign pages to sequences. OUT_OF_HOST_MEMORY. */
attn_status case_assign_pages(struct forward_case *c, attn_error *error);
int64_t case_slot(const struct forward_case *c, int32_t s, int32_t j);

/* Is key j of sequence s one of another sequence too? */
bool case_is_shared(const struct forward_case *c, int32_t s, int32_t j);

/* The runs of a hint: [s, *end) have *length keys in common. *end is s + 1 where there are none. */
void case_hint_run(const struct forward_case *c, int32_t s, int32_t *end, int32_t *length);

/* Tokens of a sequence before its first item. */
int32_t case_items_prefix(const struct forward_case *c, const struct case_lengths *l, int32_t s);

/* Write all arrays of the batch into a copy of the arena. */
void case_fill_batch(struct forward_case *c, const struct case_lengths *lengths, char *arena);

/* The arrays of a batch of nothing but padding, and its zero inputs. */
void case_write_padding(struct forward_case *c, const struct case_lengths *lengths, char *arena);

/* The sight of query t of sequence s. */
reference_sight case_sight(const struct forward_case *c, int32_t s, int32_t t);

/* ---- Tokens (forward_case_tokens.c) ---------------------------------------------------------- */

/* Make the tokens and plan the needles; borrow the base's for a variant. */
attn_status case_make_tokens(struct forward_case *c, attn_error *error);
void case_tokens_destroy(struct case_tokens *tokens);

/* Put them into `image`: q, k, v, caches; poison what no query sees. */
attn_status case_place_tokens(struct forward_case *c, attn_error *error);

/* Values of a scale, PART_*_SCALE, for batches of `num_seqs` sequences, and the place of that of
 * sequence `s` and a KV head; of a cache that of key `j`. */
int64_t case_num_scales(const struct forward_case *c, enum case_part_id part, int32_t num_seqs);
int64_t case_scale_place(const struct forward_case *c, enum case_part_id part, int32_t s, int32_t j,
                         int32_t head);

/* Write sinks, slopes and scales. */
void case_fill_constants(struct forward_case *c);

/* Does this sequence end with values at the limits, and are some of them not finite?
 * (special_values) */
bool case_is_special(const struct forward_case *c, int32_t s);
bool case_is_infinite(const struct forward_case *c, int32_t s);

/* The key of the sequence that has a NaN (seen_nan); -1 = none. */
int32_t case_nan_key(const struct forward_case *c, int32_t s);

/* The sequence of the base whose tokens are those of sequence s. */
int32_t case_tokens_of(const struct forward_case *c, int32_t s);

/* The token of query t and key j: index of a row of tokens. */
int64_t case_query_token(const struct forward_case *c, int32_t s, int32_t t);
int64_t case_key_token(const struct forward_case *c, int32_t s, int32_t j);

/* ---- Copies side by side (forward_case_compare.c) --------------------------------------------- */

/* Has the case this cache, of keys, values or latents? Labels are judged apart. */
static inline bool case_is_cache(const struct forward_case *c, enum case_part_id part)
{
    return case_part_is(part, CASE_CACHE) && part != PART_LABEL_CACHE && c->parts[part].bytes;
}

/* The part a byte of the arena belongs to, or whose red zone it is in. */
enum case_part_id case_part_at(const struct forward_case *c, uint64_t at);

/* Bytes of a row's vector of one head. */
size_t case_vector_bytes(const struct forward_case *c, enum case_part_id part);

/* The sequence of a row of queries. */
int32_t case_sequence_of(const struct forward_case *c, int64_t row);

/* Vectors of a row: heads, entries, or as many logits as its sequence has keys. 0: it is no output. */
int64_t case_num_vectors(const struct forward_case *c, enum case_part_id part, int64_t row);

/* Bytes that a run was free to write, in rows of outputs from `first` on, and in a slot of a cache:
 * accept them as expected. */
void case_allow_rows(const struct forward_case *c, int64_t first, char *expected, char *actual);
void case_allow_slot(const struct forward_case *c, enum case_part_id cache, int64_t slot,
                     char *expected, char *actual);

/* NULL, or a part outside of its outputs and slots that a forward has written; `left` is the arena
 * after it. */
const char *case_trespass(const struct forward_case *c, char *left);

/* NULL, or the output in which two copies differ: in some bit, or (`most` > 0) by more than that of the largest value.
 * Rows of padding are not compared. The same, and any other part that differs in some bit. */
const char *case_output_difference(const struct forward_case *c, char *a, char *b, double most);
const char *case_difference(const struct forward_case *c, char *a, char *b, double most);

/* ---- Pages far apart (forward_case_spread.c) ------------------------------------------------- */

/* Map the pools of a spec that spreads its pages. OUT_OF_*_MEMORY names the size. */
attn_status case_pool_create(struct forward_case *c, attn_error *error);
void case_pool_destroy(struct forward_case *c);

/* After `arena` was copied to the device: its pages to their places in the pools, the numbers of
 * those places in the arrays of the batch, in `planning` as well. */
attn_status case_pool_send(struct forward_case *c, const char *arena, attn_stream stream,
                           attn_error *error);

/* After the device was copied to `actual`: the pages from their places; arrays that are as they
 * were sent become what they are in `image`. */
attn_status case_pool_fetch(struct forward_case *c, attn_stream stream, attn_error *error);

/* Where a tensor lies for the backend, if it is one of a pool. */
void case_pool_view(const struct forward_case *c, const char *arena, enum case_part_id part,
                    attn_tensor *tensor);

/* ---- Latent attention (forward_case_latent.c) ------------------------------------------------ */

/* In the form in which keys are rows of the latent cache? In the one in which they are given? */
static inline bool case_is_absorbed(const struct case_spec *spec)
{
    return spec->latent.kv_lora_rank > 0 && !spec->latent.expanded;
}

static inline bool case_is_expanded(const struct case_spec *spec)
{
    return spec->latent.kv_lora_rank > 0 && spec->latent.expanded;
}

/* Is its cache mla.latent_fp8/1? */
bool case_is_packed(const struct case_spec *spec);

/* NULL, or the contradiction in a spec's latents. */
const char *case_latent_defect(const struct case_spec *spec);

/* Kind, dimensions and form. */
void case_latent_pose(struct spec_problem *posed, const struct case_spec *spec);

/* Elements, or bytes of a packed one, of a row of the cache. */
int32_t case_latent_width(const struct case_spec *spec);

/* c_kv | k_pe of key j as it came from the model. */
float *case_latent_of(const struct forward_case *c, int32_t s, int32_t j);

/* Draw what expanded keys were expanded from. */
void case_latent_make(struct forward_case *c);

/* Write a latent to a new row, if row >= 0, else to its slot of the cache in `image`. */
void case_latent_put(struct forward_case *c, int64_t row, int64_t slot, const float *latent);

/* The scale of the cache, if it has one. */
void case_latent_fill_scale(struct forward_case *c);

/* Where two rows have NaN in the same place, of `count` elements from byte `at` on, `expected` gets the bits of
 * `actual`. The same of rows of the cache. */
void case_allow_nan(attn_dtype dtype, int32_t at, int32_t count, char *expected,
                    const char *actual);
void case_latent_allow_nan(const struct case_spec *spec, char *expected, const char *actual);

/* ---- Indexers (forward_case_indexer.c) -------------------------------------------------------- */

/* NULL, or the contradiction in a spec's indexer. */
const char *case_indexer_defect(const struct case_spec *spec);

/* Operands and the label cache, for so many rows and new rows; the numbers in them, in `image`. */
void case_indexer_lay_out(struct forward_case *c, int64_t rows, int64_t new_rows);
void case_indexer_place(struct forward_case *c);

/* The calls of a layer: one, or the steps of an indexer; and the roles that call `step` is given, as bits. */
int32_t case_num_steps(const struct case_spec *spec);
uint64_t case_roles_of(const struct case_spec *spec, int32_t step);

/* Copy the backend's choice into a view of `image`. */
void case_indexer_take(const struct forward_case *c, struct case_view *view);

/* Judge logits and choice in a view that has taken them. An empty message: they are right. */
attn_status case_indexer_judge(const struct forward_case *c, struct case_view *view,
                               reference_choice_report *report, attn_error *error);

/* The label of slot 0, which is padding's, becomes that of `actual`. */
void case_indexer_allow_slot_0(const struct forward_case *c, char *expected, const char *actual);

#endif /* HOST_CHECK_CASES_FORWARD_CASE_PRIVATE_H */
