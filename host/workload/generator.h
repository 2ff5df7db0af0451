/* SPDX-License-Identifier: Apache-2.0
 *
 * generator.h: query, key and value vectors from counters.
 *
 * A vector is a function of (seed, token, layer, head, role), made with integer arithmetic and one
 * exact conversion. So a CPU and a GPU agree to the bit in any order and any batch, a shared prefix
 * has equal KV, and the oracle can recompute any row of a run alone, without the run's KV.
 *
 * Raw elements are small integers n; the element is n * 2^-6, which is exact in fp32, fp16 and
 * bf16. To the bit (mix.h; all arithmetic modulo 2^64; key = token_key.h):
 *
 *   stream(key, layer, head, role):
 *       state = 0x67656e6572617465                        ("generate")
 *       for word in seed, key.a, key.b, layer << 32 | head << 8 | role:
 *           state = mix_absorb(state, word)
 *   element d of the stream:
 *       byte = mix_stream(state, d / 8) >> 8 * (d % 8) & 255
 *       n = 0 if byte == 128, else byte as a two's complement int8      (so -127 .. 127, mean 0)
 *
 * Keys and values are the streams of roles GENERATOR_KEY and GENERATOR_VALUE, per KV head, in the
 * layer that owns the KV. A query is, depending on its hash, noise or a needle:
 *
 *   hash = mix_stream(stream(key of (request, position), layer, query head, GENERATOR_NEEDLE), 0)
 *   bit 63 clear: n = element d of stream(same, GENERATOR_QUERY)
 *   bit 63 set:   n = 2 * (element d of the key of the KV head that serves this query head, at the
 *                 position generator_needle() gives), -254 .. 254, so still exact
 *
 * Latent attention, absorbed (operands.h), has one KV head of keys as wide as a latent and its rope
 * part. Its values are those keys' first v_head_dim elements, and its queries are half as large:
 * noise is n / 2, rounded towards zero, a needle the key itself. Its scores, scaled for a narrower
 * dot product than they are made of, would else spread so far that most rows saw a single key.
 *
 * A needle makes one score about twenty times the spread of the others, and most targets stand at
 * or just beyond a border (window, attention chunk, page, prefill chunk, causal mask), so that a
 * backend that is wrong by one key at a border is wrong by whole output rows. Plain random data
 * would hide it: one key in 4096 moves a row by less than rounding does.
 *
 * Per-head data: generator_sink() and generator_alibi_slope() below.
 */
#ifndef HOST_WORKLOAD_GENERATOR_H
#define HOST_WORKLOAD_GENERATOR_H

#include "attn_types.h"
#include "host/workload/workload.h"

/* A raw 1 stands for 1 / GENERATOR_UNITS. */
#define GENERATOR_UNITS 64

/* The largest head_dim and v_head_dim. */
#define GENERATOR_MAX_DIM 4096

/* Roles are independent streams of one token; below 256. */
enum {
    GENERATOR_KEY = 1,
    GENERATOR_VALUE = 2,
    GENERATOR_QUERY = 3,
    GENERATOR_NEEDLE = 4,  /* one word: whether the query is a needle, and where */
    GENERATOR_SINK = 5,    /* key {0, 0} */
    GENERATOR_OPERAND = 64 /* + n: operand n of other layer kinds (linear, convolution ...) */
};

/* The generator's parameters of a layer; 0 if a layer lacks a property. */
typedef struct generator_layer {
    int32_t kv_layer; /* the layer whose keys and values this one reads; itself unless shared */
    int32_t num_q_heads;
    int32_t num_kv_heads; /* divides num_q_heads */
    int32_t head_dim;     /* of queries and keys */
    int32_t v_head_dim;
    int32_t window_left;     /* -1 = no limit */
    int32_t window_right;    /* 0 = causal, -1 = no limit */
    int32_t attention_chunk; /* 0 = off */
    int32_t latent;          /* 1 = values are the first v_head_dim elements of the keys */
    int32_t
        num_keys; /* cross attention: keys of an encoder, at positions 0 .. num_keys - 1; else 0 */
} generator_layer;

struct generator {
    uint64_t state;                /* with the seed absorbed */
    const generator_layer *layers; /* borrowed */
    int32_t num_layers;
    int32_t page_size;
    int32_t prefill_chunk;
    int32_t tp_size, tp_rank; /* of the model; generator_init(): 1, 0 */
};

/* A generator for the layers[0 .. num_layers), borrowed until the generator is no longer used.
 * page_size and prefill_chunk (chunked_prefill_size; 0 = not chunked) say where pages and prefill
 * chunks border. Nothing to release. INVALID_ARGUMENT: a number that makes no sense, by name. */
attn_status generator_init(struct generator *generator, uint64_t seed,
                           const generator_layer *layers, int32_t num_layers, int32_t page_size,
                           int32_t prefill_chunk, attn_error *error);

/* ---- Raw integers ---------------------------------------------------------------------------- */

/* Elements [0, dim) of the stream of any role. */
void generator_raw(const struct generator *generator, token_key key, int32_t layer, int32_t head,
                   int32_t role, int32_t dim, int8_t *out);

/* The position whose key the query of `request` at `position` is aligned with, or -1 if that query
 * is noise. In [0, position], or up to one past the mask's right border but never past the input's
 * end. With h = hash above, u = a uniform position: (h & 2^32-1) * (position + 1) >> 32, and kind =
 * h >> 59 & 15:
 *   0 first key                       7 start of position's page
 *   1 the query's own position i      8 last of the page before that
 *   2 i - 1                           9 start of i's prefill chunk
 *   3 i - window_left                10 last of the prefill chunk before that
 *   4 i - window_left - 1            11 i + window_right + 1 (no limit: the last of the input)
 *   5 start of i's attention chunk   12 i + window_right     (no limit: the last of the input)
 *   6 last of the chunk before that  13 start of u's page   14 last of u's page   15 u
 * clamped into the range; where the layer or the run has no such border, u. A layer with num_keys
 * sees these and has no mask: u is one of them, i and the input's last position are clamped to the
 * last. */
int64_t generator_needle(const struct generator *generator, const struct workload *workload,
                         int64_t request, int64_t position, int32_t layer, int32_t head);

/* The query of one head: head_dim integers. */
void generator_query(const struct generator *generator, const struct workload *workload,
                     int64_t request, int64_t position, int32_t layer, int32_t head, int16_t *out);

/* One key or value of one KV head of `layer` (or of its kv_layer): head_dim integers for role
 * GENERATOR_KEY, v_head_dim for GENERATOR_VALUE. */
void generator_kv(const struct generator *generator, token_key key, int32_t layer, int32_t head,
                  int32_t role, int8_t *out);

/* The same as the numbers that they stand for. */
void generator_kv_numbers(const struct generator *generator, token_key key, int32_t layer,
                          int32_t head, int32_t role, double *out);

/* The extra logit of a query head: a multiple of 1/16 in [-7.9375, 7.9375]. */
float generator_sink(const struct generator *generator, int32_t layer, int32_t head);

/* The standard ALiBi slope of a query head, 2^(-8 (head + 1) / num_q_heads), computed in double and
 * rounded to fp32. Source: arXiv 2108.12409. */
float generator_alibi_slope(int32_t head, int32_t num_q_heads);

/* That of a rank's head, of which the rank has num_q_heads. */
float generator_rank_slope(const struct generator *generator, int32_t head, int32_t num_q_heads);

/* ---- Tensors --------------------------------------------------------------------------------- */

/* Where rows go, and which part of each head's vector: element (token, head, first + d) at data +
 * size of dtype * (token * token_stride + head * head_stride + d), for 0 <= d < dim. dtype is
 * ATTN_F64, F32, F16 or BF16. */
typedef struct generator_tensor {
    void *data;
    attn_dtype dtype;
    int64_t token_stride; /* elements */
    int64_t head_stride;
    int32_t first, dim;
} generator_tensor;

/* `count` raw integers as elements of `dtype` at `out`: of a type for which the conversion is exact,
 * or ATTN_FP8_E4M3, which rounds each once. */
void generator_convert(const int16_t *raw, int64_t count, attn_dtype dtype, void *out);

/* Queries, keys or values (role) of `count` positions of `request` from `position` on, all heads of
 * `layer` that there are of the kind. */
void generator_fill(const struct generator *generator, const struct workload *workload,
                    int64_t request, int64_t position, int64_t count, int32_t layer, int32_t role,
                    const generator_tensor *out);

#endif /* HOST_WORKLOAD_GENERATOR_H */
