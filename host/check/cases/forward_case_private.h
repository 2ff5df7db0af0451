/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_case_private.h: a case from the inside, for the files forward_case*.c and for checks that
 * change one thing in a case.
 *
 *   part    an array or a tensor of the case; all of them lie in one piece of memory, the arena,
 *           each between red zones
 *   view    the ABI's structs with pointers into a copy of the arena
 *   tokens  queries, keys and values before they are put anywhere
 *
 * There are four copies of the arena. `image` is what was there before, which the oracle reads;
 * `planning` is what the host pointers of the batch point to, gone once the batch is planned;
 * `memory` is the device's; `actual` is what the device's holds after a run.
 */
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

/* What a case has, and how messages call it; the _SECOND ones are those of the second layer. */
#define CASE_PART_MAP(PART)                                                                        \
    PART(SEQ_LENS, "seq_lens")                                                                     \
    PART(PREFIX_LENS, "prefix_lens")                                                               \
    PART(Q_INDPTR, "q_indptr")                                                                     \
    PART(POSITIONS, "positions")                                                                   \
    PART(REQUESTS, "req_pool_indices")                                                             \
    PART(KV_LENS, "kv_lens")                                                                       \
    PART(OUT_CACHE_LOC, "out_cache_loc")                                                           \
    PART(NEW_INDPTR, "kv_new_indptr")                                                              \
    PART(REQ_TO_TOKEN, "req_to_token")                                                             \
    PART(BLOCK_TABLE, "block_table")                                                               \
    PART(KV_INDPTR, "kv_indptr")                                                                   \
    PART(KV_INDICES, "kv_indices")                                                                 \
    PART(LAST_PAGE_LEN, "last_page_len")                                                           \
    PART(MASK_BITS, "mask.bits")                                                                   \
    PART(MASK_INDPTR, "mask.indptr")                                                               \
    PART(ITEM_PREFIX, "multi_item.prefix_lens")                                                    \
    PART(ITEM_LEN, "multi_item.max_item_len")                                                      \
    PART(TOKEN_POS, "multi_item.token_pos")                                                        \
    PART(NUM_REAL, "num_real_seqs_device")                                                         \
    PART(Q, "q")                                                                                   \
    PART(K, "k")                                                                                   \
    PART(V, "v")                                                                                   \
    PART(OUT, "out")                                                                               \
    PART(LSE, "lse")                                                                               \
    PART(K_CACHE, "k_cache")                                                                       \
    PART(V_CACHE, "v_cache")                                                                       \
    PART(SINKS, "sinks")                                                                           \
    PART(SLOPES, "alibi_slopes")                                                                   \
    PART(K_SCALE, "scale of k_cache")                                                              \
    PART(V_SCALE, "scale of v_cache")                                                              \
    PART(OUT_SECOND, "out of the second layer")                                                    \
    PART(LSE_SECOND, "lse of the second layer")                                                    \
    PART(Q_PE, "q_pe")                                                                             \
    PART(C_KV, "c_kv")                                                                             \
    PART(K_PE, "k_pe")                                                                             \
    PART(LATENT_CACHE, "latent_cache")                                                             \
    PART(LATENT_SCALE, "scale of latent_cache")                                                    \
    PART(HINT_SEQS, "shared_prefix.seq_indptr")                                                    \
    PART(HINT_LENS, "shared_prefix.prefix_len")                                                    \
    PART(HINT_INNER_SEQS, "shared_prefix[1].seq_indptr")                                           \
    PART(HINT_INNER_LENS, "shared_prefix[1].prefix_len")                                           \
    PART(SPARSE_INDICES, "sparse_indices")                                                         \
    PART(SPARSE_COUNT, "sparse_count")                                                             \
    PART(INDEX_Q, "index_q")                                                                       \
    PART(INDEX_WEIGHTS, "index_weights")                                                           \
    PART(INDEX_K, "index_k")                                                                       \
    PART(INDEX_LOGITS, "index_logits")                                                             \
    PART(LABEL_CACHE, "label_cache")                                                               \
    PART(BITS_SECOND, "the oracle's own")                                                          \
    PART(INDICES_SECOND, "sparse_indices of the second layer")                                     \
    PART(COUNT_SECOND, "sparse_count of the second layer")                                         \
    PART(Q_SCALE, "scale of q")                                                                    \
    PART(Q_PE_SCALE, "scale of q_pe")                                                              \
    PART(NEW_K_SCALE, "scale of k")                                                                \
    PART(NEW_V_SCALE, "scale of v")                                                                \
    PART(OUT_SCALE, "scale of out")                                                                \
    PART(MIXED_QKV, "mixed_qkv")                                                                   \
    PART(GATE_A, "gate_a")                                                                         \
    PART(GATE_B, "gate_b")                                                                         \
    PART(GATE_Z, "gate_z")                                                                         \
    PART(A_LOG, "a_log")                                                                           \
    PART(DT_BIAS, "dt_bias")                                                                       \
    PART(D_SKIP, "d_skip")                                                                         \
    PART(CONV_WEIGHT, "conv_weight")                                                               \
    PART(CONV_BIAS, "conv_bias")                                                                   \
    PART(CONV_STATE, "conv_state")                                                                 \
    PART(STATE, "state")                                                                           \
    PART(STATE_SLOT, "slot")                                                                       \
    PART(STATE_DST, "dst_slot")                                                                    \
    PART(INITIAL, "has_initial")                                                                   \
    PART(SNAPSHOTS, "snapshots")                                                                   \
    PART(OTHER_SLOTS, "slot of another state group")

#define PART_ID(name, text) PART_##name,
enum case_part_id { CASE_PART_MAP(PART_ID) CASE_PARTS };
#undef PART_ID

const char *case_part_name(enum case_part_id part);

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

    struct case_view *planned; /* the batch's source for planning: no call may read it later */

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

/* What is drawn from the seed. */
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
    DRAW_INDEXER
};

/* The state of the stream of one thing. */
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

/* ---- Arena (forward_case_parts.c) ------------------------------------------------------------ */

/* One more part of the arena; a tensor begins at the offset in its part that makes it as aligned as the problem
 * promises, and no better. */
void case_add_part(struct forward_case *c, enum case_part_id part, uint64_t bytes);
uint64_t case_byte_offset(const struct forward_case *c, attn_dtype dtype);

/* A part with a tensor, whose vectors are dense, or lie apart by what a strided view of a larger one has between
 * them. */
void case_add_tensor(struct forward_case *c, enum case_part_id part, attn_dtype dtype,
                     uint32_t ndim, const int64_t *extents);

/* Copy the arrays of a batch from a copy of the arena to `planning`, whose other bytes nothing points to. */
void case_bring_plan(struct forward_case *c, const char *arena);

/* Give every part its place, from the lengths and the number of pages. */
void case_lay_out(struct forward_case *c);

/* Shut the pages after the parts of a guarded case, for a call of the backend, and open them for all else. */
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

/* What a batch was planned from is gone: host arrays, and the structs. */
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

/* The mask by which the oracle knows what a row sees: keys of a list are bits for it. */
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

/* Who has which page. OUT_OF_HOST_MEMORY. */
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

/* What query t of sequence s sees. */
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

/* The part a byte of the arena belongs to, or whose red zone it is in. */
enum case_part_id case_part_at(const struct forward_case *c, uint64_t at);

/* Bytes of a row's vector of one head. */
size_t case_vector_bytes(const struct forward_case *c, enum case_part_id part);

/* What a run was free to write in a slot of a cache: take it for expected. */
void case_allow_slot(const struct forward_case *c, enum case_part_id cache, int64_t slot,
                     char *expected, char *actual);

/* NULL, or the part that a forward has written to and that is neither its outputs nor its slots; `left` is the arena
 * as it is after it. */
const char *case_trespass(const struct forward_case *c, char *left);

/* NULL, or the output in which two copies differ: in some bit, or (`most` > 0) by more than that of the largest value.
 * Rows of padding are not compared. The same, and any other part that differs in some bit. */
const char *case_output_difference(const struct forward_case *c, char *a, char *b, double most);
const char *case_difference(const struct forward_case *c, char *a, char *b, double most);

/* ---- Pages far apart (forward_case_spread.c) ------------------------------------------------- */

/* Map the pools of a spec that spreads its pages. OUT_OF_*_MEMORY says what was asked for. */
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

/* NULL, or what contradicts itself in what a spec says of latents. */
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

/* NaN in all rows of the cache, of new ones and of q_pe; zero in page 0. */
void case_latent_poison(struct forward_case *c);

/* The scale of the cache, if it has one. */
void case_latent_fill_scale(struct forward_case *c);

/* Where two rows of the cache have NaN in the same place, `expected` gets the bits of `actual`. */
void case_latent_allow_nan(const struct case_spec *spec, char *expected, const char *actual);

/* ---- Indexers (forward_case_indexer.c) -------------------------------------------------------- */

/* NULL, or what contradicts itself in what a spec says of its indexer. */
const char *case_indexer_defect(const struct case_spec *spec);

/* Operands and the label cache, for so many rows and new rows; the numbers in them, in `image`. */
void case_indexer_lay_out(struct forward_case *c, int64_t rows, int64_t new_rows);
void case_indexer_place(struct forward_case *c);

/* The calls of a layer: one, or the steps of an indexer; and the roles that call `step` is given, as bits. */
int32_t case_num_steps(const struct case_spec *spec);
uint64_t case_roles_of(const struct case_spec *spec, int32_t step);

/* What the backend chose becomes what a view of `image` names. */
void case_indexer_take(const struct forward_case *c, struct case_view *view);

/* Judge logits and choice in a view that has taken them. An empty message: they are right. */
attn_status case_indexer_judge(const struct forward_case *c, struct case_view *view,
                               reference_choice_report *report, attn_error *error);

/* The label of slot 0, which is padding's, becomes that of `actual`. */
void case_indexer_allow_slot_0(const struct forward_case *c, char *expected, const char *actual);

#endif /* HOST_CHECK_CASES_FORWARD_CASE_PRIVATE_H */
