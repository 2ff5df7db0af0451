/* SPDX-License-Identifier: Apache-2.0
 *
 * shape.h: shapes of `attnhost bench`: their text on a command line, and the operations and bytes
 * of one forward.
 *
 *   shape  = KEY=VALUE[,KEY=VALUE]...
 *   VALUE  = ITEM[:ITEM]...     each item makes a separate shape; of several keys with several
 *                               items, all combinations, the key that stands first slowest
 *   ITEM   = a word, a number   mode=decode  dtype=bf16  logit_cap=30
 *          | A-BxF              integers A, A*F, A*F*F ... B       kv_len=1024-65536x2
 *          | A-B/S              integers A, A+S, A+2*S ... B       batch=8-64/8
 *          | N+N[+N]...         q_len and kv_len: lengths of the sequences in turn, begun anew
 *                               where there are more sequences     kv_len=100+4096+700
 *
 * The keys are the table in shape.c, which says for each of them which kinds of layers have it. A
 * key that is left out has the value of the base shape, or, where that is of another kind, the
 * kind's own; where there is none either, q_len is 1 in a decode and else kv_len (no prefix),
 * v_head_dim is head_dim (latent layers: nope_dim), and a mixed batch's second half are decodes.
 * All types are the queries', except the output's with fp8 queries: the base shape's dtype. */
#ifndef HOST_BENCH_SHAPE_H
#define HOST_BENCH_SHAPE_H

#include "attn_plugin.h"

#include <stdbool.h>
#include <stdio.h>

enum { BENCH_MAX_LENS = 64, BENCH_MAX_SHAPES = 4096 };

/* Lengths of the sequences of a batch, in turn. */
struct bench_lens {
    int32_t count; /* 0 = not given */
    int32_t items[BENCH_MAX_LENS];
};

/* bench_shape.kind */
enum {
    BENCH_SOFTMAX,
    BENCH_MLA,
    BENCH_SPARSE, /* latents that an indexer chooses */
    BENCH_LINEAR, /* + ATTN_LINEAR_*, the family */
};

/* bench_shape.layout */
enum {
    BENCH_LAYOUT_ANY = 0,
    BENCH_LAYOUT_NHD = 1,
    BENCH_LAYOUT_HND = 2,
    BENCH_LAYOUT_LATENT_FP8 = 3, /* rows with scales of their own; else latents are plain ones */
    BENCH_LAYOUT_KV = 4,
    BENCH_LAYOUT_VK = 5,
};

/* bench_shape.new_kv: how a forward gets the keys and values of its new tokens. */
enum {
    BENCH_NEW_KV_SAVED = 0,  /* k and v are given and saved into the cache, as in serving */
    BENCH_NEW_KV_ARGS = 1,   /* k and v are given and not saved */
    BENCH_NEW_KV_CACHED = 2, /* k and v are absent: they lie in the cache already */
};

/* bench_shape.choice, of a sparse layer's keys. */
enum {
    BENCH_CHOICE_COMPUTED = 0,
    BENCH_CHOICE_GIVEN = 1, /* attention only */
    BENCH_CHOICE_ALONE = 2, /* labels and choice, no attention */
};

/* A batch of one layer. */
struct bench_shape {
    int32_t kind; /* BENCH_* */
    int32_t mode; /* ATTN_MODE_EXTEND, _DECODE or _MIXED */
    int32_t batch;
    int32_t decodes;          /* MIXED: the last sequences, of one query each; -1 = not given */
    struct bench_lens q_len;  /* new tokens of the sequences that are no decodes */
    struct bench_lens kv_len; /* keys, the new ones included */
    int32_t q_heads;
    int32_t kv_heads, head_dim; /* softmax; of latent layers they follow: expanded, from nope_dim */
    int32_t v_head_dim;         /* 0 = not given; no latent's, but an expanded value's */
    attn_dtype dtype;           /* of q; of the base shape no fp8 one */
    attn_dtype new_kv_dtype;    /* of k and v; NONE = not given */
    attn_dtype kv_dtype;        /* of the cache; NONE = not given */
    attn_dtype out_dtype;       /* NONE = not given */
    int32_t page_size;
    int32_t window;             /* keys a query sees, itself counted; 0 = no limit */
    int32_t causal;             /* 1/0 */
    int32_t chunk;              /* attention_chunk; 0 = off */
    double logit_cap, sm_scale; /* 0 = off, 0 = 1 / sqrt(head_dim) */
    int32_t sinks, alibi;       /* 1/0 */
    int32_t layout;             /* BENCH_LAYOUT_* */
    int32_t new_kv;             /* BENCH_NEW_KV_* */
    int32_t scales;             /* of an fp8 cache: ATTN_SCALE_PER_TENSOR or _PER_HEAD */
    int32_t input_scales;       /* of what of q, k, v is fp8: these, or _PER_SEQ_HEAD */
    /* Latent layers. */
    int32_t kv_lora_rank, rope_dim, nope_dim;
    int32_t form;       /* ATTN_MLA_* */
    int32_t row_scales; /* of latent_fp8: 0 = powers of two, 1 = any */
    /* Sparse ones. */
    int32_t top_k, index_heads, label_dim;
    attn_dtype label_dtype; /* of the label cache and of the indexer's queries */
    int32_t choice;         /* BENCH_CHOICE_* */
    /* Recurrent layers; short convolutions have no keys. */
    int32_t k_heads, v_heads, head_k_dim, head_v_dim;
    int32_t conv_width;     /* 0 = none */
    int32_t gates;          /* 1 = raw, 0 = computed */
    attn_dtype state_dtype; /* ATTN_F32 or ATTN_BF16 */
    /* Parameters without a key: flags except RAW_GATES, bounds of gates, the chunk, conv_dtype
     * (NONE = dtype); do the convolutions have a bias? */
    attn_linear_dims linear;
    bool conv_bias;
};

struct bench_shapes {
    struct bench_shape *items; /* complete ones */
    size_t count;
};

/* A decode of one sequence of 1024 keys, 32 query heads over 8, head_dim 128, bf16, pages of 16. */
void bench_shape_init(struct bench_shape *base);

/* Add all shapes of `text`. CONFIG_ERROR names the key, its value, what is accepted and the nearest
 * name; more than BENCH_MAX_SHAPES in all are refused, too. */
attn_status bench_shapes_add(struct bench_shapes *shapes, const char *text,
                             const struct bench_shape *base, attn_error *error);

void bench_shapes_finish(struct bench_shapes *shapes);

/* The keys, a line each: name, what is accepted, what it means. For the help. */
void bench_shape_print_keys(FILE *file);

/* ---- Of a complete shape --------------------------------------------------------------------- */

/* "decode B32 kv4096 H32/8 D128 bf16": unusual parameters follow. For people; cut to `size`. */
void bench_shape_text(const struct bench_shape *shape, char *text, size_t size);

/* A key's value, for reports; of `number`, `integer`, `text`, `lens` one is set. */
struct bench_shape_value {
    const char *name;
    enum {
        BENCH_VALUE_INT,
        BENCH_VALUE_NUMBER,
        BENCH_VALUE_BOOL,
        BENCH_VALUE_TEXT,
        BENCH_VALUE_LENS
    } type;
    int32_t integer; /* INT, BOOL */
    double number;
    const char *text; /* static */
    const struct bench_lens *lens;
};

/* Value number `index` of those that shapes of this kind have; false = there are no more. */
bool bench_shape_value(const struct bench_shape *shape, int index, struct bench_shape_value *value);

/* Is the layer a recurrence, with a state instead of a cache? Does it have latents? Is it called in
 * the absorbed form? */
bool bench_shape_is_linear(const struct bench_shape *shape);
bool bench_shape_is_latent(const struct bench_shape *shape);
bool bench_shape_is_absorbed(const struct bench_shape *shape);

/* Channels of a recurrent layer's rows: q, k and v. */
int64_t bench_shape_channels(const struct bench_shape *shape);

/* Type of a convolution's state. */
attn_dtype bench_shape_conv_dtype(const struct bench_shape *shape);

/* Are queries and the cache fp8, so that the products may be of fp8 operands? */
bool bench_shape_has_codes(const struct bench_shape *shape);

/* New tokens and keys of sequence `s`. */
int32_t bench_shape_q_len(const struct bench_shape *shape, int32_t s);
int32_t bench_shape_kv_len(const struct bench_shape *shape, int32_t s);

/* The work of one forward. */
struct bench_count {
    int64_t tokens;    /* query rows */
    int64_t keys;      /* of all sequences, seen or not */
    int64_t pages;     /* of all sequences; 0 = there is no cache */
    int64_t pairs;     /* (query, key) pairs that the masks let through; of recurrences 0 */
    int64_t seen_keys; /* keys that some query of their sequence sees; likewise */
    int64_t chosen;    /* sparse layers: (query, key) pairs that are chosen */
    /* Both products over the pairs, in all query heads; of a sparse layer over those that are chosen,
     * and the indexer's over all. Of a recurrence the chunked form's, in
     * chunks of BENCH_LINEAR_CHUNK tokens: pairs below the diagonal, rows by state, and the
     * convolution's taps. */
    double flop;
    /* Bytes that must cross memory once: seen keys and values (of new tokens from k and v, unless
     * these are in the cache already), q, the output, and new keys and values written to the cache;
     * each of its own type. Scales are not counted. A sparse layer: labels of seen keys, and each
     * chosen latent for each query, but no more than are seen. A recurrence: rows and gates,
     * outputs, and states, also the convolution's, which are read where a sequence has a prefix,
     * and written. */
    double bytes;
};
enum { BENCH_LINEAR_CHUNK = 64 };

void bench_shape_count(const struct bench_shape *shape, struct bench_count *count);

#endif /* HOST_BENCH_SHAPE_H */
