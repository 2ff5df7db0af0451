/* SPDX-License-Identifier: Apache-2.0
 *
 * count.c: the work of a shape: lengths, pairs that the mask allows, operations and bytes.
 */
#include "host/bench/shape.h"
#include "host/base/round.h"
#include "host/kinds/mla.h"

/* ---- Lengths --------------------------------------------------------------------------------- */

int32_t bench_shape_q_len(const struct bench_shape *shape, int32_t s)
{
    int decodes = shape->mode == ATTN_MODE_DECODE || s >= shape->batch - shape->decodes;
    return decodes ? 1 : shape->q_len.items[s % shape->q_len.count];
}

int32_t bench_shape_kv_len(const struct bench_shape *shape, int32_t s)
{
    return shape->kv_len.items[s % shape->kv_len.count];
}

/* ---- Operations and bytes -------------------------------------------------------------------- */

/* Keys [first, last] that the query at position i sees; last < first if there are none. Both rise
 * with i and neighbours' ranges touch, so the keys that some query sees are a range as well. */
struct range {
    int64_t first, last;
};

static struct range seen_by(const struct bench_shape *shape, int64_t kv_len, int64_t i)
{
    struct range seen = {0, shape->causal ? i : kv_len - 1};
    if (shape->window && i - shape->window + 1 > seen.first)
        seen.first = i - shape->window + 1;
    if (shape->chunk) {
        int64_t begin = i / shape->chunk * shape->chunk;
        seen.first = begin > seen.first ? begin : seen.first;
        seen.last = i;
    }
    return seen;
}

/* Elements that a token reads and writes, and operations of a (query, key) pair. */
struct widths {
    double q, out;
    double keys;  /* new keys and values, and what is read of those of the cache */
    double saved; /* written to the cache */
    double pair;
};

static struct widths widths_of(const struct bench_shape *shape)
{
    double heads = shape->q_heads, latent = (double)shape->kv_lora_rank + shape->rope_dim;
    if (bench_shape_is_absorbed(shape))
        return (struct widths){heads * latent, heads * shape->kv_lora_rank, latent, latent,
                               heads * (latent + shape->kv_lora_rank)};
    double dims = (double)shape->head_dim + shape->v_head_dim, keys = dims * shape->kv_heads;
    return (struct widths){heads * shape->head_dim, heads * shape->v_head_dim, keys,
                           shape->kind == BENCH_MLA ? latent : keys, heads * dims};
}

/* Bytes of a key and its value in the cache. */
static double cached_bytes(const struct bench_shape *shape, double elements)
{
    const attn_mla_dims dims = {.kv_lora_rank = shape->kv_lora_rank, .rope_dim = shape->rope_dim};
    return shape->layout == BENCH_LAYOUT_LATENT_FP8 ? mla_packed_bytes(&dims)
                                                    : elements * attn_dtype_size(shape->kv_dtype);
}

/* Sets seen[0]: keys of the prefix that are seen; seen[1]: new keys that are. */
static void count_sequence(const struct bench_shape *shape, int32_t s, struct bench_count *count,
                           int64_t seen[2])
{
    int64_t q_len = bench_shape_q_len(shape, s), kv_len = bench_shape_kv_len(shape, s);
    int64_t prefix = kv_len - q_len;
    for (int64_t t = 0; t < q_len; t++) {
        struct range range = seen_by(shape, kv_len, prefix + t);
        int64_t seen_keys = range.last - range.first + 1;
        count->pairs += seen_keys;
        count->chosen += seen_keys < shape->top_k ? seen_keys : shape->top_k;
    }
    int64_t first = seen_by(shape, kv_len, prefix).first;
    int64_t last = seen_by(shape, kv_len, kv_len - 1).last;
    seen[0] = first < prefix ? prefix - first : 0;
    seen[1] = last + 1 - (first > prefix ? first : prefix);
    count->tokens += q_len;
    count->keys += kv_len;
    count->pages += units_for(kv_len, shape->page_size);
    count->seen_keys += seen[0] + seen[1];
}

/* The indexer's work in addition to attention, which reads only the chosen latents, at most those
 * that are seen. The choice is read, or is the only output. */
static void count_sparse(const struct bench_shape *shape, struct bench_count *count)
{
    const struct widths widths = widths_of(shape);
    double label = shape->label_dim * (double)attn_dtype_size(shape->label_dtype) +
                   (shape->label_dtype == ATTN_FP8_E4M3 ? sizeof(float) : 0);
    double index = (double)shape->index_heads * shape->label_dim;
    int64_t most = count->seen_keys < count->chosen ? count->seen_keys : count->chosen;
    count->bytes -= (double)(count->seen_keys - most) * cached_bytes(shape, widths.keys);
    count->flop = 2 * widths.pair * (double)count->chosen;
    if (shape->choice == BENCH_CHOICE_ALONE)
        count->flop = count->bytes = 0;
    if (shape->choice != BENCH_CHOICE_COMPUTED)
        count->bytes += (double)count->chosen * sizeof(int32_t);
    if (shape->choice == BENCH_CHOICE_GIVEN)
        return;
    count->flop += 2 * index * (double)count->pairs;
    count->bytes += (double)count->seen_keys * label +
                    (double)count->tokens * (index * attn_dtype_size(shape->label_dtype) +
                                             shape->index_heads * sizeof(float));
}

static void count_attention(const struct bench_shape *shape, struct bench_count *count)
{
    const struct widths widths = widths_of(shape);
    int64_t prefix_keys = 0, new_keys = 0;
    for (int32_t s = 0; s < shape->batch; s++) {
        int64_t seen[2];
        count_sequence(shape, s, count, seen);
        prefix_keys += seen[0];
        new_keys += seen[1];
    }
    bool cached = shape->new_kv == BENCH_NEW_KV_CACHED, saved = shape->new_kv == BENCH_NEW_KV_SAVED;
    bool latents = shape->kind == BENCH_MLA && shape->form == ATTN_MLA_EXPANDED && saved;
    double tokens = (double)count->tokens, new_size = attn_dtype_size(shape->new_kv_dtype);
    double read = cached_bytes(shape, widths.keys), written = cached_bytes(shape, widths.saved);
    count->flop = 2 * widths.pair * (double)count->pairs;
    count->bytes =
        (double)prefix_keys * read + (double)new_keys * (cached ? read : widths.keys * new_size) +
        (saved ? tokens * written : 0) + (latents ? tokens * widths.saved * new_size : 0) +
        tokens * (widths.q * attn_dtype_size(shape->dtype) +
                  widths.out * attn_dtype_size(shape->out_dtype));
    if (shape->kind == BENCH_SPARSE)
        count_sparse(shape, count);
}

/* ---- Recurrences ----------------------------------------------------------------------------- */

/* Operations of a row of a sequence that has q_len of them. */
static double linear_flop(const struct bench_shape *shape, int64_t q_len)
{
    int32_t family = shape->kind - BENCH_LINEAR;
    bool delta = family == ATTN_LINEAR_GDN || family == ATTN_LINEAR_KDA;
    double half = (double)(q_len < BENCH_LINEAR_CHUNK ? q_len : BENCH_LINEAR_CHUNK) / 2;
    double pair_heads = family == ATTN_LINEAR_KDA ? shape->v_heads : shape->k_heads;
    double k = shape->head_k_dim, v = shape->head_v_dim;
    double pairs = half * (delta ? 2 : 1) * (k * pair_heads + v * shape->v_heads);
    double state = k * v * (delta ? 3 : 2) * shape->v_heads;
    double taps = (double)bench_shape_channels(shape) * shape->conv_width;
    return 2 * ((family == ATTN_LINEAR_SHORT_CONV ? 0 : pairs + state) + taps);
}

/* Bytes of a row: channels, gates and the output. */
static double linear_row_bytes(const struct bench_shape *shape)
{
    int32_t family = shape->kind - BENCH_LINEAR;
    double gate = shape->gates ? attn_dtype_size(shape->dtype) : attn_dtype_size(ATTN_F32);
    double decays = family == ATTN_LINEAR_KDA ? shape->head_k_dim : 1;
    double betas = family == ATTN_LINEAR_MAMBA2 && shape->gates ? 0 : 1;
    bool gated = family != ATTN_LINEAR_LIGHTNING && family != ATTN_LINEAR_SHORT_CONV;
    double channels = (double)bench_shape_channels(shape);
    double out = (double)shape->v_heads * shape->head_v_dim;
    return channels * attn_dtype_size(shape->dtype) + out * attn_dtype_size(shape->out_dtype) +
           (gated ? shape->v_heads * (decays + betas) * gate : 0);
}

static double linear_state_bytes(const struct bench_shape *shape)
{
    double state = (double)shape->v_heads * shape->head_k_dim * shape->head_v_dim;
    double taps = shape->conv_width > 1 ? shape->conv_width - 1 : 0;
    return state * attn_dtype_size(shape->state_dtype) +
           (double)bench_shape_channels(shape) * taps *
               attn_dtype_size(bench_shape_conv_dtype(shape));
}

static void count_linear(const struct bench_shape *shape, struct bench_count *count)
{
    double states = 0;
    for (int32_t s = 0; s < shape->batch; s++) {
        int64_t q_len = bench_shape_q_len(shape, s), kv_len = bench_shape_kv_len(shape, s);
        count->tokens += q_len;
        count->keys += kv_len;
        count->flop += (double)q_len * linear_flop(shape, q_len);
        states += kv_len > q_len ? 2 : 1;
    }
    count->bytes =
        (double)count->tokens * linear_row_bytes(shape) + states * linear_state_bytes(shape);
}

void bench_shape_count(const struct bench_shape *shape, struct bench_count *count)
{
    *count = (struct bench_count){0};
    if (bench_shape_is_linear(shape))
        count_linear(shape, count);
    else
        count_attention(shape, count);
}
