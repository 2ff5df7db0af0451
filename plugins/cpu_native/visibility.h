/* SPDX-License-Identifier: Apache-2.0
 *
 * visibility.h: which keys a query sees.
 *
 * Without a custom mask and without items it is one range of keys. With them the range is an
 * outline, and the tile's word is thinned out by bits, items and explicit positions.
 */
#ifndef CPU_NATIVE_VISIBILITY_H
#define CPU_NATIVE_VISIBILITY_H

#include "kernels.h"

/* The rules for the queries of one sequence. Absent parts are NULL. */
typedef struct visibility {
    int32_t window_left;      /* -1 = no limit */
    int32_t window_right;     /* -1 = no limit; -1 too where a mask replaces it */
    int32_t chunk;            /* 0 = off */
    int32_t chunk_causal;     /* the chunk's j <= i holds: no custom mask */
    int32_t prefix_len;       /* tokens before query 0, which has this position */
    int32_t q_len;            /* queries */
    int32_t kv_len;           /* keys */
    int32_t first_key;        /* the ones before it are for other calls */
    int32_t bits_skip;        /* keys that are seen without a bit: the prefix, of QLEN */
    int32_t bits_columns;     /* columns of a row of bits */
    const uint8_t *bits;      /* the custom mask of this sequence */
    const int32_t *positions; /* [q_len] of new tokens */
    const uint16_t *item_pos; /* tokens of its item up to each query from items_start on */
    int32_t items_start;      /* tokens before the first delimiter */
} visibility;

/* Position of query t. */
static inline int64_t query_position(const visibility *v, int32_t t)
{
    return v->positions ? v->positions[t] : (int64_t)v->prefix_len + t;
}

/* Position of key j. */
static inline int64_t key_position(const visibility *v, int64_t j)
{
    int64_t new_token = j - v->prefix_len;
    return v->positions && new_token >= 0 && new_token < v->q_len ? v->positions[new_token] : j;
}

/* The positions [*lo, *hi) that window and chunk leave to a query at position i. */
static inline void position_range(const visibility *v, int64_t i, int64_t *lo, int64_t *hi)
{
    *lo = INT64_MIN;
    *hi = INT64_MAX;
    if (v->window_left >= 0)
        *lo = i - v->window_left;
    if (v->window_right >= 0)
        *hi = i + v->window_right + 1;
    if (v->chunk > 0) {
        int64_t start = (i - (i < 0 ? v->chunk - 1 : 0)) / v->chunk * v->chunk;
        int64_t end = v->chunk_causal ? i + 1 : start + v->chunk;
        *lo = *lo > start ? *lo : start;
        *hi = *hi < end ? *hi : end;
    }
}

/* The outline of the keys of query t: [*lo, *hi), within [first_key, kv_len). */
static inline void visible_range(const visibility *v, int32_t t, int64_t *lo, int64_t *hi)
{
    position_range(v, query_position(v, t), lo, hi);
    if (v->positions) { /* any new key may be anywhere */
        *lo = 0;
        *hi = v->kv_len;
    }
    if (v->item_pos && *hi > (int64_t)v->prefix_len + t + 1)
        *hi = (int64_t)v->prefix_len + t + 1;
    *lo = *lo > v->first_key ? *lo : v->first_key;
    *hi = *hi < v->kv_len ? *hi : v->kv_len;
    if (*lo >= *hi)
        *lo = *hi = 0;
}

/* Bits [from, to) of a word. */
static inline uint64_t bit_range(int64_t from, int64_t to)
{
    from = from < 0 ? 0 : from;
    to = to > 64 ? 64 : to;
    if (from >= to)
        return 0;
    return (to == 64 ? ~0ull : (1ull << to) - 1) & ~0ull << from;
}

/* `count` <= 64 bits of an array from bit `at` on, no byte beyond them being read. */
static inline uint64_t read_bits(const uint8_t *bits, int64_t at, int64_t count)
{
    uint64_t word = 0;
    for (int64_t done = 0; done < count;) {
        int64_t bit = at + done;
        int64_t here = 8 - bit % 8 < count - done ? 8 - bit % 8 : count - done;
        word |= (uint64_t)(bits[bit / 8] >> bit % 8 & ((1u << here) - 1)) << done;
        done += here;
    }
    return word;
}

/* The keys of [first, first + 64) that the custom mask shows to query t. */
static inline uint64_t mask_word(const visibility *v, int32_t t, int64_t first)
{
    int64_t from = v->bits_skip > first ? v->bits_skip : first; /* first key with a bit */
    int64_t columns = v->bits_skip + (int64_t)v->bits_columns;
    int64_t to = first + 64 < columns ? first + 64 : columns;
    uint64_t word = bit_range(0, v->bits_skip - first);
    if (from < to)
        word |= read_bits(v->bits, (int64_t)t * v->bits_columns + from - v->bits_skip, to - from)
                << (from - first);
    return word;
}

/* The keys that query t's item shows to it: the prefix and its item up to itself. */
static inline uint64_t item_word(const visibility *v, int32_t t, int64_t first)
{
    int64_t i = (int64_t)v->prefix_len + t;
    if (i < v->items_start)
        return bit_range(0, i + 1 - first);
    int64_t start = i - v->item_pos[i - v->items_start] + 1;
    return bit_range(0, v->items_start - first) | bit_range(start - first, i + 1 - first);
}

/* The keys that window and chunk show to query t with explicit positions. */
static inline uint64_t position_word(const visibility *v, int32_t t, int64_t first)
{
    int64_t lo, hi;
    uint64_t word = 0;
    position_range(v, query_position(v, t), &lo, &hi);
    for (int j = 0; j < TILE_KEYS; j++) {
        int64_t position = key_position(v, first + j);
        word |= (uint64_t)(lo <= position && position < hi) << j;
    }
    return word;
}

/* The keys of [first, first + 64) that query t sees: bit j for key first + j. */
static inline uint64_t visible_word(const visibility *v, int32_t t, int64_t first)
{
    int64_t lo, hi;
    visible_range(v, t, &lo, &hi);
    uint64_t word = bit_range(lo - first, hi - first);
    if (word && v->positions)
        word &= position_word(v, t, first);
    if (word && v->bits)
        word &= mask_word(v, t, first);
    if (word && v->item_pos)
        word &= item_word(v, t, first);
    return word;
}

#endif /* CPU_NATIVE_VISIBILITY_H */
