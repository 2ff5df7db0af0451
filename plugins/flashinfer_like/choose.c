/* SPDX-License-Identifier: Apache-2.0
 *
 * choose.c: tiles of 16 rows (attend) or of 128 (prefill): whichever takes less by an estimate of
 * cycles, fitted to times on an H200 (docs/kernels/). A graph's bounds stand for its batches.
 */
#include "plugins/flashinfer_like/flashinfer_like.h"

enum {
    SHORT_BEGINS = 4000, /* and ends: an item of attend */
    SHORT_BYTES = 18,    /* of an item that come in a cycle, to each multiprocessor */
    ITEM_BEGINS = 8000,  /* a prefill item, and ITEM_DIMS more for each 128 of dim + v_dim */
    ITEM_DIMS = 4000,
    MERGES = 5000,     /* of what blocks leave for each other, at the end */
    SHARED = 40000,    /* more, where each prefill item is shared by very many; of more than 256
                          of dim + v_dim with their square */
    EIGHTHS = 9,       /* of fi_key_cycles: prefill keys */
    EIGHTHS_WIDE = 13, /* of more than 256 of dim + v_dim: units of half as many keys */
    FEW_ITEMS = 4,     /* items of few rows, for multiprocessors of that number: a block has one */
    MANY_ITEMS = 3     /* of a multiprocessor, for two blocks of it */
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

/* Bound by memory: a tile reads all of its keys. */
static int64_t short_cycles(const cuda_group *group, const cuda_extent *extent, int64_t keys,
                            int64_t sms)
{
    int64_t bytes = keys * (group->dim + group->v_dim) * 2;
    int64_t items = fi_count_tiles(extent, group->ratio, FI_ROWS) * group->kv_heads;
    return items * (SHORT_BEGINS + bytes / SHORT_BYTES) / sms + MERGES;
}

int64_t fi_prefill_cycles(const cuda_group *group, const cuda_extent *extent, int64_t keys,
                          int64_t sms)
{
    int64_t dims = group->dim + group->v_dim, eighths = dims > 256 ? EIGHTHS_WIDE : EIGHTHS;
    int64_t items = fi_count_tiles(extent, group->ratio, FI_PREFILL_ROWS) * group->kv_heads;
    int64_t each = ITEM_BEGINS + ITEM_DIMS * dims / 128 + fi_key_cycles(keys, dims) * eighths / 8;
    int64_t idle = items < sms ? sms - items : 0;
    int64_t shared = dims > 256 ? SHARED * dims * dims / (256 * 256) : SHARED;
    return items * each / sms + MERGES + shared * idle / sms;
}

int fi_is_short(const cuda_group *group, const cuda_extent *extent, int64_t keys, int64_t sms)
{
    int64_t rows = extent->q_len * group->ratio;
    if (rows <= FI_ROWS || rows > SHORT_ROWS || cuda_is_fp8(group->kv_dtype))
        return rows <= SHORT_ROWS;
    if (group->window_left >= 0 && keys > group->window_left + extent->q_len)
        keys = group->window_left + extent->q_len;
    return short_cycles(group, extent, keys, sms) <= fi_prefill_cycles(group, extent, keys, sms);
}

/* One that a multiprocessor has two blocks of must not be kept to some of them: they could be on as
 * many as there are blocks. */
int fi_is_many(const fi_group *group, const cuda_extent *extent, int64_t sms)
{
    int kernel = cuda_is_fp8(group->base.kv_dtype) ? KERNEL_CODES_MANY : KERNEL_ATTEND_MANY;
    int has_two = group->shape->kernels[kernel].blocks > 1;
    int64_t items = fi_count_tiles(extent, group->base.ratio, FI_ROWS) * group->base.kv_heads;
    if (!fi_has_kernel(group, kernel) || group->options.many_items == WHEN_NEVER ||
        (has_two && sms < group->num_sms))
        return 0;
    if (group->options.many_items == WHEN_ALWAYS)
        return 1;
    return has_two ? items >= MANY_ITEMS * sms : items * FEW_ITEMS >= sms;
}
