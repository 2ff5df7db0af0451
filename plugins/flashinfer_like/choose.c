/* SPDX-License-Identifier: Apache-2.0
 *
 * choose.c: tiles of 16 rows (attend) or of 128 (prefill): whichever takes less by an estimate of
 * cycles, fitted to times on an H200 (docs/kernels/). A graph's bounds stand for its batches.
 */
#include "plugins/flashinfer_like/flashinfer_like.h"

enum {
    SHORT_BEGINS = 4000, /* and ends: an item of attend */
    SHORT_BYTES = 18,    /* of an item that come in a cycle, to each multiprocessor */
    SHORT_AGAIN = 45,    /* percent: of an item's keys that another has at the same time */
    ITEM_BEGINS = 8000,  /* a prefill item, and ITEM_DIMS more for each 128 of dim + v_dim */
    ITEM_DIMS = 4000,
    MERGES = 5000,       /* of what blocks leave for each other, at the end */
    SHARED = 15000,      /* more, where each prefill item is shared by very many */
    SHARED_HALF = 20000, /* the same of half a tile of rows; it grows with the square of more than
                            256 of dim + v_dim */
    SHORT_MERGES = 9000, /* of several tiles of attend */
    HALF_MERGES = 16200, /* of prefill by half tiles, and what their queries wait for keys */
    EIGHTHS = 9,         /* of fi_key_cycles: prefill keys */
    EIGHTHS_HALF = 12,   /* of half a tile, which takes as long as a whole one */
    EIGHTHS_CODES = 15,  /* of item_cycles(): the same over fp8, of keys that are converted */
    EIGHTHS_WIDE = 11,   /* of more than 256 of dim + v_dim: units of half as many keys; */
    EIGHTHS_WIDE_HALF = 13, /* of half a tile of their rows */
    FEW_ITEMS = 4,  /* items of few rows, for multiprocessors of that number: a block has one */
    HALF_ITEMS = 3, /* of two multiprocessors, where they have two blocks each otherwise: columns
                       have parts of one item alone up to there; */
    PAIR_ITEMS = 2, /* of five, of decodes with a tile for each sequence and KV head; */
    LONG_ITEMS = 1, /* the same of as many units of a multiprocessor as LONG_UNITS */
    LONG_UNITS = 15,
    MANY_ITEMS = 3 /* of a multiprocessor, for two blocks of it */
};

int64_t fi_count_tiles(const cuda_extent *extent, int64_t ratio, int64_t size)
{
    int64_t each = extent->seqs * ((extent->q_len * ratio + size - 1) / size);
    int64_t all = extent->tokens * ratio / size + extent->seqs;
    return each < all ? each : all;
}

int64_t fi_key_cycles(int64_t keys, int64_t dims)
{
    return keys * (100 + dims) / 15;
}

/* Cycles to read the keys and values of an item of few rows. */
static int64_t item_cycles(const cuda_group *group, int64_t keys)
{
    return keys * (group->dim + group->v_dim) * (cuda_is_fp8(group->kv_dtype) ? 1 : 2) /
           SHORT_BYTES;
}

/* Tiles of few rows are bound by memory: each reads all of its keys. Other tiles of the sequence
 * find them in the L2 if they read at the same time. Over fp8 that saves nothing, as each tile
 * converts its keys. */
static int64_t short_cycles(const cuda_group *group, const cuda_extent *extent, int64_t keys,
                            int64_t sms)
{
    int64_t items = fi_count_tiles(extent, group->ratio, FI_ROWS) * group->kv_heads;
    int64_t first = extent->seqs * group->kv_heads, again = items - first;
    int is_again = items < sms && !cuda_is_fp8(group->kv_dtype);
    int64_t all = first * 100 + again * (is_again ? SHORT_AGAIN : 100);
    return (items * SHORT_BEGINS + all * item_cycles(group, keys) / 100) / sms + SHORT_MERGES;
}

static int64_t prefill_cycles(const cuda_group *group, const cuda_extent *extent, int64_t keys,
                              int64_t sms, int64_t eighths, int64_t shared)
{
    int64_t dims = group->dim + group->v_dim;
    int64_t items = fi_count_tiles(extent, group->ratio, FI_PREFILL_ROWS) * group->kv_heads;
    int64_t each = ITEM_BEGINS + ITEM_DIMS * dims / 128 + fi_key_cycles(keys, dims) * eighths / 8;
    int64_t idle = items < sms ? sms - items : 0;
    return items * each / sms + MERGES + shared * idle / sms;
}

int64_t fi_prefill_cycles(const cuda_group *group, const cuda_extent *extent, int64_t keys,
                          int64_t sms)
{
    int64_t eighths = group->dim + group->v_dim > 256 ? EIGHTHS_WIDE : EIGHTHS;
    return prefill_cycles(group, extent, keys, sms, eighths, SHARED);
}

/* The keys of a sequence within windows. */
static int64_t windowed(const cuda_group *group, const cuda_extent *extent, int64_t keys)
{
    int64_t most = group->window_left + extent->q_len;
    return group->window_left >= 0 && keys > most ? most : keys;
}

int fi_is_short(const cuda_group *group, const cuda_extent *extent, int64_t keys, int64_t sms)
{
    int64_t rows = extent->q_len * group->ratio;
    if (rows <= FI_ROWS || rows > SHORT_MOST || cuda_is_fp8(group->kv_dtype))
        return rows <= SHORT_ROWS;
    keys = windowed(group, extent, keys);
    int64_t dims = group->dim + group->v_dim;
    int64_t eighths = dims > 256 ? EIGHTHS_WIDE_HALF : EIGHTHS_HALF;
    int64_t shared = dims > 256 ? SHARED_HALF * dims * dims / (256 * 256) : SHARED_HALF;
    return short_cycles(group, extent, keys, sms) <=
           prefill_cycles(group, extent, keys, sms, eighths, shared);
}

/* Half a tile reads its keys once, but its end takes longer. */
static int half_is_sooner(const cuda_group *group, const cuda_extent *extent, int64_t keys,
                          int64_t sms)
{
    int64_t rows = extent->q_len * group->ratio, items = extent->seqs * group->kv_heads;
    keys = windowed(group, extent, keys);
    int64_t eighths = cuda_is_fp8(group->kv_dtype) ? EIGHTHS_CODES : 8;
    int64_t each = SHORT_BEGINS + item_cycles(group, keys) * eighths / 8;
    int64_t cycles = items * each / sms + HALF_MERGES;
    return rows > FI_ROWS && cycles < short_cycles(group, extent, keys, sms);
}

int fi_is_half(const fi_group *group, const cuda_extent *extent, int64_t keys, int64_t sms)
{
    int when = group->options.half_tiles;
    if (!fi_has_kernel(group, fi_half_kernel(group)) || when == WHEN_NEVER ||
        extent->q_len * group->base.ratio > FI_HALF_ROWS)
        return 0;
    return when == WHEN_ALWAYS || half_is_sooner(&group->base, extent, keys, sms);
}

/* Two teams instead of two blocks with a team each, which are as fast where tiles of a sequence find
 * each other's keys in the L2, and save the new keys of several queries. */
static int is_many_for_two(const cuda_group *group, const cuda_extent *extent, int64_t keys,
                           int64_t items, int64_t sms)
{
    if (extent->q_len > 1 || group->ratio > FI_ROWS)
        return items * 2 >= HALF_ITEMS * sms;
    int is_long = items * windowed(group, extent, keys) >= LONG_UNITS * FI_KEYS * sms;
    return items * 5 >= (is_long ? LONG_ITEMS : PAIR_ITEMS) * sms;
}

/* One that a multiprocessor has two blocks of must not be kept to some of them: they could be on as
 * many as there are blocks. */
int fi_is_many(const fi_group *group, const cuda_extent *extent, int64_t keys, int64_t sms)
{
    int is_fp8 = cuda_is_fp8(group->base.kv_dtype);
    int kernel = is_fp8 ? KERNEL_CODES_MANY : KERNEL_ATTEND_MANY;
    int has_two = group->shape->kernels[kernel].blocks > 1;
    int64_t items = fi_count_tiles(extent, group->base.ratio, FI_ROWS) * group->base.kv_heads;
    if (!fi_has_kernel(group, kernel) || group->options.many_items == WHEN_NEVER ||
        (has_two && sms < group->num_sms))
        return 0;
    if (group->options.many_items == WHEN_ALWAYS)
        return 1;
    if (has_two)
        return items >= MANY_ITEMS * sms;
    if (!is_fp8 && group->shape->kernels[KERNEL_ATTEND].blocks > 1 && sms == group->num_sms)
        return is_many_for_two(&group->base, extent, keys, items, sms);
    return items * FEW_ITEMS >= sms;
}
