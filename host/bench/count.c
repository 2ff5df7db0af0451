/* SPDX-License-Identifier: Apache-2.0
 *
 * count.c: what a shape comes to: lengths, pairs that the masks let through, operations and
 * bytes.
 */
#include "host/bench/shape.h"
#include "host/base/round.h"

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

/* Sets seen[0]: keys of the prefix that are seen; seen[1]: new keys that are. */
static void count_sequence(const struct bench_shape *shape, int32_t s, struct bench_count *count,
                           int64_t seen[2])
{
    int64_t q_len = bench_shape_q_len(shape, s), kv_len = bench_shape_kv_len(shape, s);
    int64_t prefix = kv_len - q_len;
    for (int64_t t = 0; t < q_len; t++) {
        struct range range = seen_by(shape, kv_len, prefix + t);
        count->pairs += range.last - range.first + 1;
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

void bench_shape_count(const struct bench_shape *shape, struct bench_count *count)
{
    int64_t prefix_keys = 0, new_keys = 0;
    *count = (struct bench_count){0};
    for (int32_t s = 0; s < shape->batch; s++) {
        int64_t seen[2];
        count_sequence(shape, s, count, seen);
        prefix_keys += seen[0];
        new_keys += seen[1];
    }
    double dims = (double)shape->head_dim + shape->v_head_dim;
    double kv_size = attn_dtype_size(shape->kv_dtype);
    int cached = shape->new_kv == BENCH_NEW_KV_CACHED, saved = shape->new_kv == BENCH_NEW_KV_SAVED;
    double new_bytes =
        (double)new_keys * (cached ? kv_size : attn_dtype_size(shape->new_kv_dtype)) +
        (saved ? (double)count->tokens * kv_size : 0);
    count->flop = 2 * dims * shape->q_heads * (double)count->pairs;
    count->bytes = dims * shape->kv_heads * ((double)prefix_keys * kv_size + new_bytes) +
                   (double)count->tokens * shape->q_heads *
                       ((double)shape->head_dim * attn_dtype_size(shape->dtype) +
                        (double)shape->v_head_dim * attn_dtype_size(shape->out_dtype));
}
