/* SPDX-License-Identifier: Apache-2.0
 *
 * choose.c: whose batch it is: of the forward kernels, which are the fastest where rows are many,
 * or of plugins/flashinfer_like, which serves everything, packs the query heads of a KV head
 * into one tile, and shares out the keys of few tiles among all multiprocessors.
 *
 * A problem tells what the forward kernels can serve at all. Of a batch, or of a graph's bounds,
 * the cycles that each would take are estimated from what was measured (docs/kernels/).
 */
#include "plugins/fa3_like/fa3_like.h"

/* Cycles, fitted to both kernels' times on an H200 (docs/kernels/fa3_like.md). For planned tiles
 * see fi_prefill_cycles(). */
enum {
    FEW_WAVES = 4, /* up to so many waves of tiles, the last wave counts as a whole one; of */
    ALIKE = 4,     /* any number, if keys are so many times the queries: tiles take equally long */
    TURN_BEGINS = 24000, /* fa3_turn_values: its start, and bytes read and written per cycle */
    TURNED_IN_A_CYCLE = 2000,
    WIDENING = 30000,      /* cycles to widen codes for the library's kernels, and */
    FI_CODES_EIGHTHS = 11, /* their time over codes, in eighths of fi_prefill_cycles() */
    SPLIT_KEYS = 1024,     /* least keys of a part, and cycles to join parts */
    JOINING = 30000,
    GATHER_BEGINS = 8000, /* fa3_gather: its start, and bytes per cycle */
    GATHERED_IN_A_CYCLE = 2000,
    FI_ROWS_EIGHTHS = 9,   /* the library's time over a cache that tiles would gather, in eighths */
    FI_GATHER_EIGHTHS = 12 /* of fi_prefill_cycles(): of 16 bits; of codes, or of wide rows */
};

/* Cycles of a tile. */
typedef struct tile_cost {
    int64_t begins;          /* its start and its end */
    int64_t key_twentieths;  /* all products, in twentieths of fi_key_cycles() for as many rows */
    int64_t read_twentieths; /* the part of key_twentieths that a tile of few rows takes, too */
} tile_cost;

static const tile_cost cost_of_numbers = {10000, 16, 11}, cost_of_low = {10000, 18, 11},
                       cost_of_low_narrow = {10000, 18, 17}, cost_of_codes = {9000, 11, 9};

/* The rows of a warpgroup may lie in two chunks at most. */
static int may_tile_chunks(const cuda_group *group, int has_codes)
{
    const fa3_tile *tile = has_codes ? NULL : fa3_find_tile(group->dim, group->v_dim, 0);
    return group->chunk == 0 || (tile && tile->has_chunks && group->chunk >= GROUP_QUERIES);
}

/* The kernel reads a score_cap of 0 as no cap, and without a cap it needs a positive scale. */
int fa3_has_scale(const cuda_group *group)
{
    return group->logit_cap > 0 ? group->sm_scale != 0 : group->sm_scale > 0;
}

int fa3_may_tile(const attn_problem *problem)
{
    cuda_group group;
    cuda_group_init(&group, problem);
    int has_codes = fa3_has_codes(problem);
    int has_one_dtype = (group.kv_dtype == group.q_dtype || fa3_gathers(&group)) &&
                        (has_codes ? group.out_dtype == ATTN_F16 || group.out_dtype == ATTN_BF16
                                   : group.out_dtype == group.q_dtype);
    /* The rows of a warp, even unused ones, decide together when to take a new reference, so a
     * row's bits depend on the others. */
    int may_vary =
        !(problem->required_traits & (ATTN_TRAIT_DETERMINISTIC | ATTN_TRAIT_BATCH_INVARIANT));
    return fa3_has_scale(&group) && has_one_dtype && may_vary &&
           may_tile_chunks(&group, has_codes) && !(group.flags & ATTN_GROUP_HAS_ALIBI);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Cycles for `tiles` tiles of `each` cycles, one after the other on each multiprocessor. */
static int64_t waves_cycles(int64_t tiles, int64_t each, int64_t sms, int alike)
{
    if (tiles <= FEW_WAVES * sms || alike)
        return (tiles + sms - 1) / sms * each;
    return tiles * each / sms;
}

/* Warpgroups without rows multiply nothing, but a tile reads its keys whatever its rows are. */
static int64_t tiles_cycles(const cuda_group *group, const fa3_tile *tile, const tile_cost *cost,
                            const cuda_extent *extent, int64_t keys, int64_t sms)
{
    int64_t tiles = fi_count_tiles(extent, 1, tile->queries);
    int64_t warpgroups = fi_count_tiles(extent, 1, GROUP_QUERIES);
    int64_t whole = fi_key_cycles(keys, group->dim + group->v_dim) * cost->key_twentieths / 20 *
                    tile->queries / FI_PREFILL_ROWS;
    int64_t read = whole * cost->read_twentieths / 20;
    int64_t multiply =
        (whole - read) * warpgroups / larger(tiles, 1) * GROUP_QUERIES / tile->queries;
    return waves_cycles(tiles * group->kv_heads * group->ratio, cost->begins + read + multiply, sms,
                        keys >= ALIKE * extent->q_len);
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Keys that no query sees are not gathered. */
static int64_t gather_cycles(const cuda_group *group, const cuda_extent *extent, int64_t keys)
{
    int64_t element = 2, from = attn_dtype_size(group->kv_dtype);
    if (group->window_left >= 0)
        keys = smaller(keys, group->window_left + extent->q_len);
    return GATHER_BEGINS + extent->seqs * keys * group->kv_heads * (group->dim + group->v_dim) *
                               (from + element) / GATHERED_IN_A_CYCLE;
}

/* How many parts the keys of low tiles are split into, as few tiles leave multiprocessors idle. */
static int64_t count_splits(const cuda_group *base, const fa3_tile *low, const cuda_extent *extent,
                            int64_t keys, int64_t sms)
{
    int64_t tiles = fi_count_tiles(extent, 1, low->queries) * base->kv_heads * base->ratio;
    if (base->window_left >= 0)
        keys = smaller(keys, base->window_left + extent->q_len);
    int64_t splits = smaller(sms / larger(tiles, 1), keys / SPLIT_KEYS);
    return larger(smaller(splits, fa3_most_splits(base, extent)), 1);
}

/* Set the view's tile and splits to the faster ones for a batch, and return their cycles. */
static int64_t pick_tile(const cuda_group *base, const fa3_group *group, fa3_metadata *view,
                         const cuda_extent *extent, int64_t keys, int64_t sms, int is_shared)
{
    const tile_cost *cost = group->has_codes ? &cost_of_codes : &cost_of_numbers;
    int64_t cycles = tiles_cycles(base, group->tile, cost, extent, keys, sms);
    view->tile = group->tile;
    view->splits = 1;
    if (!group->low)
        return cycles;
    int64_t splits = is_shared ? larger(fa3_most_splits(base, extent), 1)
                               : count_splits(base, group->low, extent, keys, sms);
    /* Up to 64 dimensions a warpgroup alone waits for its products as long as two take. */
    cost = base->dim <= 64 ? &cost_of_low_narrow : &cost_of_low;
    int64_t low = tiles_cycles(base, group->low, cost, extent, keys / splits, sms) +
                  (splits > 1 ? JOINING : 0);
    if (low >= cycles && !is_shared)
        return cycles;
    view->tile = group->low;
    view->splits = (int)splits;
    return low;
}

/* Are the forward kernels, which take `cycles`, at least as fast as planned tiles? */
static int is_sooner(const cuda_group *base, const fa3_group *group, int64_t cycles,
                     int is_gathered, const cuda_extent *extent, int64_t keys, int64_t sms)
{
    int64_t planned = fi_prefill_cycles(base, extent, keys, sms);
    int is_slow = cuda_is_fp8(base->kv_dtype) || base->dim + base->v_dim > 256;
    int eighths = is_slow ? FI_GATHER_EIGHTHS : FI_ROWS_EIGHTHS;
    if (is_gathered)
        return cycles + gather_cycles(base, extent, keys) <= planned * eighths / 8;
    if (!group->has_codes)
        return cycles <= planned;
    int64_t bytes = 2 * extent->seqs * keys * base->kv_heads * base->v_dim;
    return cycles + TURN_BEGINS + bytes / TURNED_IN_A_CYCLE <=
           planned * FI_CODES_EIGHTHS / 8 + WIDENING;
}

/* Can the forward kernels serve the batch? */
static int can_tile(const attn_metadata *metadata, uint32_t index)
{
    const cuda_plan *plan = &metadata->plan;
    const fa3_metadata *view = &((const fa3_own *)metadata->own)->groups[index];
    int is_plain = (plan->mask.kind == ATTN_MASK_LAYER || plan->mask.kind == ATTN_MASK_NONE) &&
                   !plan->items.token_pos;
    int is_bounded = fi_most_keys(plan, &metadata->instance->groups[index].base) <= FA3_UNBOUNDED;
    return view->plan && plan->batch.mode != ATTN_MODE_DECODE && is_plain && is_bounded &&
           (view->cu_seqlens_k || view->page_table || view->is_gathered);
}

/* The decoding sequences of a MIXED batch, which the library serves if they have few rows. There
 * are none in a graph, whose launches must be right for any number of them; none where the library
 * may have to serve a whole call, with unsaved keys or small pages, as its one plan then covers the
 * whole batch; and none with fp8 queries, which the library reads as bf16. */
static fi_part find_decodes(const attn_metadata *metadata, uint32_t index)
{
    const cuda_plan *plan = &metadata->plan;
    const attn_batch *batch = &plan->batch;
    const fa3_instance *own = metadata->instance->own;
    int32_t ratio = metadata->instance->groups[index].base.ratio;
    if (plan->kind == ATTN_METADATA_GRAPH || plan->bounds.uses & ATTN_USES_UNSAVED_KV ||
        fa3_has_small_pages(metadata, index) || own->groups[index].has_codes ||
        batch->mode != ATTN_MODE_MIXED || batch->num_decode_seqs == 0 ||
        (int64_t)batch->decode_q_len * ratio > SHORT_ROWS)
        return (fi_part){.q_len = 0};
    return (fi_part){batch->first_decode_seq, batch->num_decode_seqs, batch->decode_q_len};
}

int fa3_is_for_tiles(const attn_metadata *metadata, uint32_t index, fi_part *part)
{
    const cuda_plan *plan = &metadata->plan;
    const fi_group *group = &metadata->instance->groups[index];
    const fa3_instance *own = metadata->instance->own;
    fa3_metadata *view = &((const fa3_own *)metadata->own)->groups[index];
    cuda_extent extent = cuda_plan_extent(plan);
    int64_t keys = fi_most_keys(plan, &group->base), sms = cuda_plan_num_sms(plan, group->num_sms);
    *part = (fi_part){.q_len = 0};
    view->tile = own->groups[index].tile;
    view->splits = 1;
    if (own->groups[index].is_expanded)
        return 1;
    if (!can_tile(metadata, index))
        return 0;
    fi_part decodes = find_decodes(metadata, index);
    int is_gathered = view->is_gathered && !view->cu_seqlens_k;
    extent.seqs -= decodes.num_seqs;
    extent.tokens -= (int64_t)decodes.num_seqs * decodes.q_len;
    int is_shared = own->option == TILES_SHARED;
    int64_t cycles =
        pick_tile(&group->base, &own->groups[index], view, &extent, keys, sms, is_shared);
    int is_faster =
        !fi_is_short(&group->base, &extent, keys, sms) && !fi_is_half(group, &extent, keys, sms) &&
        is_sooner(&group->base, &own->groups[index], cycles, is_gathered, &extent, keys, sms);
    if (!is_faster && own->option != TILES_ALWAYS && !is_shared)
        return 0;
    if (decodes.q_len > 0)
        view->splits = 1; /* the library's rows lie among those of tiles */
    *part = decodes;
    return 1;
}
