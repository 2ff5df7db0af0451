/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_case.h: a forward pass to check a backend with: a problem, a batch within its bounds, a
 * poisoned KV cache, operands with needles at the borders.
 *
 *   spec      everything that is varied, in plain numbers: a layer of softmax attention, of latent
 *             attention in one of its two forms, or a linear one (linear_case.h)
 *   case      a spec with a seed: all arrays and tensors, in one piece of host memory that the
 *             oracle reads, and a copy of it in the device's memory, where the backend works
 *   variant   a case whose sequences take their tokens from those of another case: the same text
 *             in another batch, other pages, other chunks
 *   session   an instance and its metadata, made through the raw tables of a backend
 *   judge     compares what a session makes of a case: statuses, outputs and LSE with the oracle's,
 *             the cache with what it must hold, every other byte with what it was
 *
 * A case is a function of its spec and seed alone. Unused slots hold NaN, so do keys that no query
 * sees; unused indices are huge; outputs are poisoned; red zones surround every array.
 *
 * Needles: some queries point at the keys next to every border of what they see (window, chunk,
 * last key, mask, item) and next to borders of pages, prefix and splits, and at no other key; the
 * values of those keys differ. So one such key too many, too few, or taken for its neighbour moves
 * the row by much more than the bar.
 */
#ifndef HOST_CHECK_CASES_FORWARD_CASE_H
#define HOST_CHECK_CASES_FORWARD_CASE_H

#include <stdbool.h>

#include "attn_plugin.h"
#include "host/check/cases/far_memory.h"
#include "host/device/device.h"
#include "host/base/mix.h"
#include "host/reference/reference.h"

/* Sequences that a spec lists; and those of a batch: beyond the listed ones they repeat the first
 * FORWARD_CASE_REPEATED, with tokens and pages of their own. */
enum { FORWARD_CASE_MAX_SEQS = 8, FORWARD_CASE_REPEATED = 7, FORWARD_CASE_MAX_PADDED = 512 };

/* ---- Spec ------------------------------------------------------------------------------------ */

/* Where the slots of a sequence lie in the pool. */
enum slot_order {
    SLOTS_CONTIGUOUS,
    SLOTS_SHUFFLED_PAGES,
    SLOTS_INTERLEAVED_PAGES,    /* page p of every sequence, then page p + 1 */
    SLOTS_NON_MONOTONIC_EXTEND, /* new tokens in descending pages */
    SLOT_ORDERS
};

/* One sequence: keys in the cache before, and new queries. */
struct case_sequence {
    int32_t prefix_len; /* keys that are in the cache; cross: of the encoder */
    int32_t num_new;    /* queries; DECODE: 1 whatever stands here */
    /* Keys that come with this batch. Cross: of the encoder. A chunk of a prefix that was expanded
     * (latent, partial): the last of its first chunk_end keys. Nothing else reads them. */
    int32_t num_new_keys, chunk_end;
    /* So many first keys are those of the sequence before (case_sharer()), in the same slots: whole
     * pages of this one's prefix, and of the other's; what the other brings as new ones, too. A
     * base's alone. */
    int32_t shared;
    /* Of a variant: its tokens are those of this sequence of the base. */
    int32_t tokens_of;
    int32_t first_query; /* query 0 is that query of the base */
    int32_t first_key;   /* key 0 is that key of the base */
    /* Of a linear layer, whose rows are num_new: */
    bool has_initial;
    bool in_place; /* dst_slot = slot */
    bool dropped;  /* dst_slot = 0 */
};

/* The hint that sequences have their first keys in common. */
enum case_hint {
    HINT_NONE,
    HINT_ALL,    /* all sequences are in runs, those that share nothing in runs of their own */
    HINT_SOME,   /* the first and the last ones are in no run where they share nothing */
    HINT_SHORT,  /* as ALL, but for a page less than they share */
    HINT_LEVELS, /* SHORT, and the same runs in parts for all that they share */
    CASE_HINTS
};

/* What has an element that is NaN. */
enum case_nan { NAN_NOWHERE, NAN_IN_VALUE, NAN_IN_KEY };

/* Host arrays of a batch. Those that the verdict names are present; of the others all, none or some are, so a backend
 * must test before it reads one. */
enum case_host {
    HOST_DRAWN,  /* by the seed, one of the others */
    HOST_NEEDED, /* those of the verdict alone */
    HOST_SOME,   /* each of the others or not, by the seed */
    HOST_ALL
};

/* Is array number `part`, which the verdict does not name, on the host? */
static inline bool case_host_has(enum case_host host, uint64_t seed, uint32_t part)
{
    static const enum case_host drawn[] = {HOST_NEEDED, HOST_SOME, HOST_SOME, HOST_ALL};
    if (host == HOST_DRAWN)
        host = drawn[mix_stream(seed, 0) >> 62];
    return host == HOST_ALL || (host == HOST_SOME && mix_stream(seed, 1 + (uint64_t)part) >> 63);
}

/* What a layer of latent attention has in addition; kv_lora_rank 0 = it is none. The spec's heads
 * and dims are those of the form: absorbed, one KV head of kv_lora_rank + rope_dim whose value is
 * its first kv_lora_rank elements; expanded, nope_dim + rope_dim and v_dim. case_spec_set_form().
 */
struct case_latent {
    int32_t kv_lora_rank, rope_dim, nope_dim, v_dim;
    bool expanded;
};

/* The indexer of a sparse layer over latents, by which its rows choose top_k keys; heads 0 = it has
 * none: the keys are those of given lists. */
struct case_indexer {
    int32_t heads, label_dim;
    attn_dtype q_dtype, label_dtype;
    bool has_ties; /* keys have one of few labels */
    bool by_steps; /* label, choose and attend are a call each */
};

enum { LINEAR_STATE_GROUPS = 4, LINEAR_WITHOUT_DST = 1, LINEAR_WITHOUT_INITIAL = 2 };

/* What a linear layer has in addition. Of the spec's other members its cases read the mode, who decodes, the dtypes of q
 * and of the output, arrays on the host, alignment, guards, first and spare rows, sequences, and the spread: of slots,
 * and of a whole batch alone, no parts of it. */
struct linear_spec {
    uint32_t family; /* ATTN_LINEAR_* */
    uint32_t flags;  /* ATTN_LINEAR_* flags */
    uint32_t modes;  /* ATTN_MODE_BIT set: others that parts of the case have */
    attn_dtype state_dtype, conv_dtype;
    bool bare;       /* what means nothing for such a layer is 0 or absent, else any number */
    int32_t decodes; /* MIXED: so many sequences do */
    bool vk;         /* state.ssm.vk/1 */
    int32_t k_heads, v_heads, k_dim, v_dim, width;
    bool bias, z;
    int32_t skip; /* D: 0 = none, 1 = one for a head, 2 = one for an element */
    float dt_min, dt_max, lower_bound;
    bool steep;           /* decays of many orders of magnitude */
    bool snapshots;       /* of two rows in three, or */
    int32_t sparse;       /* not 0: of every `sparse`-th, or */
    int32_t cuts;         /* not 0: of so many of each sequence, at its ends and at any place */
    int32_t most_kept;    /* not 0: slots for so many snapshots, where one for a row is much */
    uint32_t absent;      /* set of LINEAR_WITHOUT_*: arrays that would say nothing */
    int32_t gap;          /* elements between outermost rows; more where alignment wants it */
    bool exactly_aligned; /* as promised, no better. A whole batch alone, no parts of it */
    int32_t padded;       /* sequences of padding */
    int32_t turn; /* in the batch, sequence s is that which stands at s + turn here; slots differ */
    int32_t layer;       /* of those that one batch is for: its values are others */
    int32_t state_group; /* below LINEAR_STATE_GROUPS; slots of the others are other slots */
};

/* Everything that is varied. Zero members mean the plain choice, but for what has no zero: dtypes,
 * heads, dims, and windows (-1 = no limit). */
struct case_spec {
    uint32_t
        kind; /* ATTN_KIND_*; a softmax layer with a latent is an MLA one, with top_k a sparse one */
    struct linear_spec linear; /* of a linear layer alone */
    uint32_t mode;             /* ATTN_MODE_* */
    uint32_t attn_type;        /* ATTN_TYPE_* */
    attn_dtype q_dtype, kv_dtype, out_dtype;
    attn_dtype new_kv_dtype; /* NONE = q_dtype */
    const char *kv_layout;   /* NULL = no cache: encoder-only */
    int32_t num_q_heads, num_kv_heads, head_dim, v_head_dim;
    struct case_latent latent;
    int32_t page_size;
    uint32_t
        min_alignment;   /* what the problem promises of operands; they lie no better than that */
    uint32_t kv_strides; /* ATTN_KV_STRIDES_* */
    uint32_t index_form; /* ATTN_INDEX_*: the one that is filled in where an instance leaves the */
                         /* choice; else all that it asks for are */
    enum slot_order slots;
    enum page_spread spread;           /* how far apart the pages lie for the backend */
    uint32_t mask_kind;                /* ATTN_MASK_* */
    int32_t window_left, window_right; /* -1 = no limit */
    int32_t attention_chunk;
    float logit_cap, sm_scale; /* sm_scale 0 = 1 / sqrt(head_dim) */
    bool alibi, sinks;
    bool explicit_positions; /* with a custom mask */
    int32_t positions_ahead; /* of keys' numbers, all of them; ALiBi hides needles then */
    bool multi_item;         /* with ATTN_MASK_LAYER */
    int32_t top_k;       /* a sparse layer: entries that each row has, at most; 0 = it is none */
    uint32_t index_kind; /* ATTN_SPARSE_*: of its entries; */
    int32_t block_size;  /* of blocks, and */
    int32_t chosen_head; /* of PER_HEAD the KV head whose query heads are judged; the others */
                         /* have other blocks */
    struct case_indexer indexer;                   /* of TOKEN entries over latents */
    int32_t longest_item;                          /* of its items, in tokens; 0 = 20 */
    uint32_t scale_granularity, input_granularity; /* ATTN_SCALE_* of the cache; of q, new k, v */
    uint32_t flags;                                /* ATTN_FORWARD_*: SAVE_KV, OMIT_SINK */
    bool from_cache;                               /* k = v = NULL: all keys are in the cache */
    bool partial;         /* MASK_NONE: the keys are those of the prefix alone, from_cache; of */
                          /* expanded ones, a chunk of it */
    bool unwritten_slots; /* some of out_cache_loc are -1 */
    bool high_sinks;      /* sinks far above every score, and far below */
    bool odd_slopes; /* of ALiBi: 0, below 0, and so steep that a neighbour counts for nothing */
    /* Magnitudes of keys (of latents: of all of it) and of values, powers of two; 0 = 1. Scores are
     * what they are without: queries are as much smaller as keys are larger. */
    float key_size, value_size;
    /* So many first keys of each sequence have a score of -inf with every query. */
    int32_t lost_keys;
    /* Their values are NaN or infinite; of a latent that is an element of the key itself. Rows that see other keys are
     * not judged: no rule says what such a value does there. */
    bool lost_values;
    bool fewer_keys;      /* from_cache: kv_lens of all sequences but the first are shorter than */
                          /* prefix plus queries, by one key to all of them */
    bool without_needles; /* for bars that none could cross */
    bool growing_scores;  /* scores grow along the keys by more than 100; no needles */
    /* The last new token of every sequence but the first is beyond the largest stored value,
     * halfway between two or subnormal, and rows that see it are not judged; in every second of
     * them some of it is infinite or NaN, and no row is. In the first sequence a value that all see
     * has a NaN. Needs rows that see all keys up to their own. */
    bool special_values;
    /* In every second sequence from the first on, of the first key that the last query sees. Other
     * rows of these sequences that do not see it are not judged (KV-06). Without needles, and
     * without lost keys: no rule says what NaN in the value of a key with weight 0 does. */
    enum case_nan seen_nan;
    enum case_host host; /* which arrays the host has */
    enum case_hint hint; /* of what sequences share */
    bool device_scales;  /* scales are on the device alone */
    bool guarded; /* on the CPU: an array or tensor ends where the next page may not be read */
    bool read_only_layer; /* a second layer reads the first one's buffer after it */
    bool wants_lse;
    bool loose_bounds;     /* bounds beyond what the batch needs */
    int32_t max_kv_len;    /* a bound that is more than that, too; 0 = it is not */
    bool keys_in_page_0;   /* and no padding that is written */
    bool shares_with_next; /* what is shared is the next sequence's */
    bool decodes_first;    /* MIXED: the sequences that decode come before the others */
    int32_t decode_q_len;  /* MIXED: queries of each; 0 = 1 */
    int32_t first_row;     /* where the query rows begin; DECODE: 0 whatever stands here */
    int32_t padded;        /* sequences, padding included; 0 = no padding */
    int32_t fill;          /* seq_len of padding: what the verdict says */
    int32_t spare;         /* rows of padding after those of the sequences */
    int32_t num_sequences; /* more than FORWARD_CASE_MAX_SEQS: not of a variant */
    struct case_sequence sequences[FORWARD_CASE_MAX_SEQS];
};

/* What is changed in a spec; the same in all variants, or not. */
typedef void (*spec_change)(struct case_spec *spec, int32_t variant);

/* Sequence s of a batch. */
static inline const struct case_sequence *case_sequence_at(const struct case_spec *spec, int32_t s)
{
    bool repeats = spec->num_sequences > FORWARD_CASE_MAX_SEQS;
    return &spec->sequences[repeats ? s % FORWARD_CASE_REPEATED : s];
}

/* The sequence whose keys are the first ones of sequence s. */
static inline int32_t case_sharer(const struct case_spec *spec, int32_t s)
{
    return spec->shares_with_next ? s + 1 : s - 1;
}

/* ---- Case ------------------------------------------------------------------------------------ */

struct forward_case; /* forward_case_private.h */

/* A case for this device, which stays open as long as the case lives. INVALID_ARGUMENT: a spec that
 * contradicts itself, with the member's name. OUT_OF_HOST_MEMORY, OUT_OF_DEVICE_MEMORY. */
attn_status forward_case_create(const struct case_spec *spec, uint64_t seed,
                                const struct device *device, struct forward_case **c,
                                attn_error *error);

/* A case whose tokens are those of `base`, which has to outlive it; its sequences say which. Seed
 * and device are those of `base`. */
attn_status forward_case_create_variant(const struct case_spec *spec,
                                        const struct forward_case *base, struct forward_case **c,
                                        attn_error *error);

/* NULL is accepted. */
void forward_case_destroy(struct forward_case *c);

/* The problem that the case poses, for query and create. */
const attn_problem *forward_case_problem(const struct forward_case *c);

/* The problem that a spec would pose on a device of this kind, without making the case. */
struct spec_problem {
    attn_layer layers[2];
    attn_mla_dims mla;
    attn_sparse_dims sparse;
    attn_linear_dims linear;
    attn_layer_group group;
    attn_bounds bounds;
    attn_problem problem; /* points into the struct */
};
void spec_problem_init(struct spec_problem *posed, const struct case_spec *spec,
                       const attn_device *device);

/* NULL, or what contradicts itself in a spec. */
const char *case_spec_defect(const struct case_spec *spec);

/* The latent's form, and the heads and dims that follow from it. */
void case_spec_set_form(struct case_spec *spec, bool expanded);

/* One line that describes a spec, for messages. */
void case_spec_describe(const struct case_spec *spec, char *text, size_t size);

/* ---- Session --------------------------------------------------------------------------------- */

/* What a session calls. */
struct case_backend {
    const attn_backend_type *type;
    const attn_options *options;
    const attn_services *services;
};

/* query, with one reason. `reason` (NULL: not wanted) gets the text of a failed call, or of a refusal. */
attn_status case_query(const struct case_backend *backend, const attn_problem *problem,
                       attn_verdict *verdict, char *reason, size_t size);

/* How its metadata is made. */
struct case_setup {
    uint32_t kind;             /* ATTN_METADATA_* */
    const attn_bounds *bounds; /* NULL = those of the first case */
    bool exact_memory;         /* exactly the bytes asked for, aligned no better than asked for */
    /* All layer groups of the instance, the case's own among them; NULL = that alone. */
    const attn_problem *problems;
    uint32_t num_problems;
};

struct case_session;

/* Query, create, prepare, metadata. UNSUPPORTED and whatever else the backend says. */
attn_status case_session_create(const struct case_backend *backend, const struct forward_case *c,
                                const struct case_setup *setup, struct case_session **session,
                                attn_error *error);
void case_session_destroy(struct case_session *session);

/* What query answered. */
const attn_verdict *case_session_verdict(const struct case_session *session);

/* Outcome of one run of a case. */
struct case_verdict {
    bool good;
    attn_status status; /* of the backend's call that failed, or ATTN_OK */
    char text[512];     /* the first thing that is wrong, with place, got and accepted */
};

/* Plan the case and forward it with something changed in the arguments, which the callback does in
 * structs that are its own: what the backend says to that. Nothing is judged. EAGER alone. */
typedef void (*case_change)(void *ctx, attn_forward_args *args, const attn_tensor **operands,
                            const attn_scale **scales);
attn_status case_session_try(struct case_session *session, struct forward_case *c,
                             case_change change, void *ctx, attn_error *error);

/* How those of its operands lie for the backend that are not dense (operand_text.h). */
void forward_case_operands(const struct forward_case *c, char *text, size_t size);

/* The output vector and the LSE (NULL = not wanted) that the last run left for a query. */
const void *forward_case_output(const struct forward_case *c, int32_t s, int32_t t, int32_t head);
const float *forward_case_lse(const struct forward_case *c, int32_t s, int32_t t, int32_t head);
/* Likewise its logits, one for each key of its sequence. */
const float *forward_case_logits(const struct forward_case *c, int32_t s, int32_t t);

/* How a case is judged as a whole. */
struct case_run {
    bool exact_memory;
    int32_t repeat;                       /* runs; 0 = 1 */
    void (*note)(void *ctx, int32_t run); /* called before each run but the first; NULL = not */
    void *ctx;
};

/* Plan and forward the case, and judge everything. EAGER: one forward. GRAPH: captured on a batch
 * of nothing but padding, then replayed with the case. May be done again, and with other cases
 * whose problem differs in its bounds alone (within those of the session).
 *
 * Then how->repeat - 1 runs of the same: operands, caches and poison are as before the first. Where
 * query declares DETERMINISTIC for the session's problem a run leaves, to the bit, what the first
 * left (INVAR-02), but in padding's rows and in page 0; elsewhere each is judged as the first was. */
void case_session_repeat(struct case_session *session, struct forward_case *c,
                         const struct case_run *how, struct case_verdict *verdict);

/* A session for one case, from create to destroy. */
void forward_case_judge(struct forward_case *c, const struct case_backend *backend,
                        const struct case_run *how, struct case_verdict *verdict);

#endif /* HOST_CHECK_CASES_FORWARD_CASE_H */
