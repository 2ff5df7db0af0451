/* SPDX-License-Identifier: Apache-2.0
 *
 * attend.c: one unit of work, on a worker's own scratch:
 *
 *   load the queries; for each split of the keys, for each tile of 64 keys in it:
 *     which keys does each row see? none: next tile
 *     pack keys; scores; softmax against the maximum so far; pack values; add them up
 *   then merge the split into the rows' results, or leave it as a partial result
 *   write outputs and LSE */
#include "attend.h"

#include "attn_plugin_util.h"
#include "plugins/cpu_native/mla/mla.h"
#include "plugins/cpu_native/sparse/sparse.h"

#include <math.h>
#include <string.h>

/* ---- Scratch --------------------------------------------------------------------------------- */

static void lay_out(const layer_call *call, uint32_t worker, int32_t rows, worker_scratch *w)
{
    char *next = call->metadata->scratch + worker * call->metadata->worker_bytes;
    int32_t dim = call->group->dim, value_stride = panel_round(call->group->v_dim);
    int32_t lanes = cpu_lanes(call->group, rows);
    row_block *block = &w->block;
    block->rows = rows;
    block->dim = dim;
    block->value_stride = value_stride;
    if (call->group->mla.absorbed) {
        mla_lay_out(call->group, &next, w);
    } else {
        w->key_panels = take_floats(&next, (int64_t)TILE_KEYS * dim);
        w->value_panels = take_floats(&next, (int64_t)TILE_KEYS * value_stride);
    }
    w->temp = take_floats(&next, (int64_t)PANEL * MAX_DIM);
    w->key_positions = take_floats(&next, TILE_KEYS);
    block->query = take_floats(&next, (int64_t)lanes * (dim + dim % 2));
    block->scores = take_floats(&next, (int64_t)lanes * TILE_KEYS);
    block->acc = take_floats(&next, (int64_t)rows * value_stride);
    w->out = take_floats(&next, (int64_t)rows * value_stride);
    block->max = take_floats(&next, panel_round(TILE_ROWS));
    block->sum = take_floats(&next, panel_round(TILE_ROWS));
    block->slope = take_floats(&next, panel_round(TILE_ROWS));
    block->position = take_floats(&next, panel_round(TILE_ROWS));
    w->out_max = take_floats(&next, panel_round(TILE_ROWS));
    w->out_sum = take_floats(&next, panel_round(TILE_ROWS));
    block->visible = take_bytes(&next, TILE_ROWS * sizeof(uint64_t));
    w->next_visible = take_bytes(&next, TILE_ROWS * sizeof(uint64_t));
    w->values = &w->value_sources[0];
    w->next_values = &w->value_sources[1];
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static void load_queries(const layer_call *call, const work_unit *unit, int32_t kv_head,
                         const row_block *block)
{
    const cpu_group *group = call->group;
    row_format format = {.dtype = group->q_dtype, .decode = group->decode_q};
    if (call->q_scales)
        format.scale = call->q_scales[attn_util_scale_at(group->input_granularity, group->kv_heads,
                                                         unit->seq, 0, kv_head)];
    for (int32_t r = 0; r < unit->rows; r++) {
        row_place place = place_of(call, unit, kv_head, r);
        call->instance->kernels->convert(new_row(call->q, place.row, place.head), &format,
                                         block->dim, block->query + (int64_t)r * block->dim);
    }
}

/* Parameters of the rows for ALiBi. */
static void load_rows(const layer_call *call, const work_unit *unit, int32_t kv_head,
                      const visibility *v, row_block *block)
{
    for (int32_t r = 0; r < unit->rows; r++) {
        row_place place = place_of(call, unit, kv_head, r);
        block->position[r] = (float)query_position(v, place.query);
        block->slope[r] = call->slopes ? call->slopes[place.head] : 0;
    }
}

/* No key so far. Sums of latents are not cleared: the first tile begins them. */
static void reset_rows(const cpu_group *group, row_block *block)
{
    for (int32_t r = 0; r < block->rows; r++) {
        block->max[r] = -INFINITY;
        block->sum[r] = 0;
    }
    block->begins = group->mla.absorbed;
    if (!group->mla.absorbed)
        memset(block->acc, 0, sizeof(float) * (size_t)block->rows * (size_t)block->value_stride);
}

/* acc, times factor; quantised, if at all, as a cache is (KV-04 of docs/ABI.md). */
static void store_output(const layer_call *call, const float *acc, float factor, char *to)
{
    const cpu_group *group = call->group;
    float x[MAX_HEAD_DIM];
    call->instance->kernels->store(acc, factor, group->fp8_out ? ATTN_F32 : group->out_dtype,
                                   group->v_dim, group->fp8_out ? (void *)x : to);
    for (int32_t d = 0; group->fp8_out && d < group->v_dim; d++)
        ((uint8_t *)to)[d] = f32_to_fp8(x[d] / call->out_scale, group->fp8_out);
}

/* Output and LSE of a row from the sums over its keys: the sink is added, then the output is divided by the sum. */
static void write_row(const layer_call *call, int32_t row, int32_t head, const float *acc,
                      float max, float sum)
{
    float factor = 1, lse = -INFINITY;
    if (call->sinks && !(call->sinks[head] == -INFINITY)) {
        float sink = call->sinks[head], base = sink > max ? sink : max;
        factor = sum == 0 ? 0 : expf(max - base);
        sum = (sum == 0 ? 0 : sum * factor) + expf(sink - base);
        max = base;
    }
    if (sum == 0) /* no key, no sink */
        factor = 0;
    else {
        factor /= sum;
        lse = max + logf(sum);
    }
    const attn_tensor *out = call->out, *lse_out = call->lse;
    store_output(call, acc, factor,
                 (char *)out->data + out->byte_offset +
                     (row * out->strides[0] + head * out->strides[1]) *
                         (int64_t)attn_dtype_size(out->dtype));
    if (lse_out)
        *(float *)(void *)((char *)lse_out->data + lse_out->byte_offset +
                           (row * lse_out->strides[0] + head * lse_out->strides[1]) * 4) = lse;
}

static void write_rows(const layer_call *call, const work_unit *unit, int32_t kv_head,
                       const worker_scratch *w)
{
    for (int32_t r = 0; r < unit->rows; r++) {
        row_place place = place_of(call, unit, kv_head, r);
        float *out = w->out + (int64_t)r * w->block.value_stride;
        if (w->out_sum[r] == 0) /* there was no key, and the sums were never set */
            memset(out, 0, sizeof *out * (size_t)w->block.value_stride);
        write_row(call, place.row, place.head, out, w->out_max[r], w->out_sum[r]);
    }
}

/* ---- Keys ------------------------------------------------------------------------------------ */

/* The page that was found last, under one KV head: keys come in order, so most lie in it, and its
 * number need not be looked up, checked or multiplied again. */
typedef struct page_cursor {
    int64_t index;  /* table forms: entry of the table; -1 = none yet */
    int64_t number; /* of the page; -1 = none yet */
    int64_t first;  /* table forms: its first key; req_to_token: its first slot */
    const char *k;  /* its first key and value */
    const char *v;
} page_cursor;

/* Turn to the page; 0 if the cache has no such page. */
static int turn_to(const layer_call *call, int32_t kv_head, int64_t number, page_cursor *cursor)
{
    const cache_view *k = &call->k_cache, *v = &call->v_cache;
    if (number < 0 || number >= k->num_pages)
        return 0;
    cursor->number = number;
    cursor->k = k->data + number * k->page + kv_head * k->head;
    cursor->v = v->data + number * v->page + kv_head * v->head;
    return 1;
}

/* Offset of key j in the cursor's page; -1 = it lies outside the cache, in slot *fault. */
static int64_t find_in_table(const layer_call *call, const int32_t *pages, int32_t kv_head,
                             int64_t j, page_cursor *cursor, int64_t *fault)
{
    const int32_t page_size = call->group->page_size;
    if (cursor->index < 0 || j - cursor->first >= page_size) {
        cursor->index = (int32_t)j / page_size;
        cursor->first = cursor->index * page_size;
        int64_t number = pages[cursor->index];
        *fault = number * page_size + j - cursor->first;
        if (!turn_to(call, kv_head, number, cursor))
            return -1;
    }
    return j - cursor->first;
}

/* The same for a slot. */
static int64_t find_slot(const layer_call *call, int32_t slot, int32_t kv_head, page_cursor *cursor,
                         int64_t *fault)
{
    const int32_t page_size = call->group->page_size;
    *fault = slot;
    if (slot < 0)
        return -1;
    if (cursor->number < 0 || slot < cursor->first || slot - cursor->first >= page_size) {
        int64_t number = page_size == 1 ? slot : slot / page_size;
        cursor->first = number * page_size;
        if (!turn_to(call, kv_head, number, cursor))
            return -1;
    }
    return slot - cursor->first;
}

/* Scales of a key and its value that have their own. */
static void find_scales(const layer_call *call, int64_t slot, int32_t kv_head, int key,
                        worker_scratch *w)
{
    int64_t at =
        attn_util_scale_at(ATTN_SCALE_PER_TOKEN_HEAD, call->group->kv_heads, 0, slot, kv_head);
    w->keys.scales[key] = call->k_cache.scales[at];
    w->next_values->scales[key] = call->v_cache.scales[at];
}

/* Rows of the keys and values of `seen`, all in the cache, by the indices that this batch gives. */
static attn_status find_cached(layer_call *call, int32_t seq, int32_t kv_head, int64_t first,
                               uint64_t seen, worker_scratch *w)
{
    const group_plan *plan = call->plan;
    const attn_kv_batch *kv = &plan->kv;
    const int64_t k_token = call->k_cache.token, v_token = call->v_cache.token;
    const int32_t *slots = NULL, *pages = NULL;
    page_cursor cursor = {.index = -1, .number = -1};
    if (seen == 0) /* without a cache there are no indices either */
        return ATTN_OK;
    if (plan->index_form == ATTN_INDEX_REQ_TO_TOKEN)
        slots =
            kv->req_to_token.device +
            (int64_t)call->metadata->batch.req_pool_indices.device[seq] * kv->req_to_token_stride;
    else if (plan->index_form == ATTN_INDEX_BLOCK_TABLE)
        pages = kv->block_table.device + (int64_t)seq * kv->block_table_stride;
    else
        pages = kv->kv_indices.device + kv->kv_indptr.device[seq];
    for (uint64_t left = seen; left; left &= left - 1) {
        int key = __builtin_ctzll(left);
        int64_t fault = 0;
        int64_t offset = slots ? find_slot(call, slots[first + key], kv_head, &cursor, &fault)
                               : find_in_table(call, pages, kv_head, first + key, &cursor, &fault);
        if (offset < 0)
            return cpu_call_fault(call, seq, first + key, fault);
        w->keys.rows[key] = cursor.k + offset * k_token;
        w->next_values->rows[key] = cursor.v + offset * v_token;
        if (w->keys.scaled)
            find_scales(call, cursor.number * call->group->page_size + offset, kv_head, key, w);
    }
    return ATTN_OK;
}

/* Rows of the entries `seen` of a row's list of slots. */
static attn_status find_chosen(layer_call *call, const work_unit *unit, int64_t first,
                               uint64_t seen, worker_scratch *w)
{
    const row_lists *lists = &call->sparse.lists;
    const int64_t row = place_of(call, unit, 0, 0).row;
    const int32_t *slots = lists->slots + row * lists->stride + first;
    page_cursor cursor = {.index = -1, .number = -1};
    memset(w->keys.rows, 0, sizeof w->keys.rows);
    memset(w->next_values->rows, 0, sizeof w->next_values->rows);
    w->keys.fresh = w->next_values->fresh = 0;
    for (uint64_t left = seen; left; left &= left - 1) {
        int key = __builtin_ctzll(left);
        int64_t fault = 0, offset = find_slot(call, slots[key], 0, &cursor, &fault);
        if (offset < 0)
            return cpu_call_fault(call, unit->seq, first + key, fault);
        w->keys.rows[key] = w->next_values->rows[key] = cursor.k + offset * call->k_cache.token;
    }
    return ATTN_OK;
}

/* Find the rows of the keys and values [first, first + 64) that some row sees: w->keys and
 * w->next_values. */
static attn_status find_tile(layer_call *call, int32_t seq, int32_t kv_head, int64_t first,
                             uint64_t seen, worker_scratch *w)
{
    const cpu_sequence *sequence = &call->plan->sequences[seq];
    int64_t cached = call->k ? (int64_t)sequence->kv_len - sequence->num_new - first : TILE_KEYS;
    uint64_t fresh = seen & ~bit_range(0, cached);
    if (seen != UINT64_MAX || fresh) {
        memset(w->keys.rows, 0, sizeof w->keys.rows);
        memset(w->next_values->rows, 0, sizeof w->next_values->rows);
    }
    w->keys.fresh = w->next_values->fresh = fresh;
    for (uint64_t left = fresh; left; left &= left - 1) {
        int key = __builtin_ctzll(left);
        int64_t row = sequence->first_new + key - cached;
        if (call->group->mla.absorbed) {
            w->keys.rows[key] = w->next_values->rows[key] = mla_keep_row(call, row, key, w);
            continue;
        }
        w->keys.rows[key] = new_row(call->k, row, kv_head);
        w->next_values->rows[key] = new_row(call->v, row, kv_head);
    }
    return find_cached(call, seq, kv_head, first, seen & ~fresh, w);
}

row_format cpu_new_format(const cpu_group *group, const float *scales, int32_t seq, int32_t kv_head)
{
    row_format format = {.dtype = group->new_dtype, .decode = group->decode_new};
    if (scales)
        format.scale =
            scales[attn_util_scale_at(group->input_granularity, group->kv_heads, seq, 0, kv_head)];
    return format;
}

/* The reading of cached and new rows. */
static void set_formats(const layer_call *call, const cache_view *cache, const float *given,
                        int32_t seq, int32_t kv_head, tile_source *source)
{
    const cpu_group *group = call->group;
    float scale = 1;
    source->scaled = group->scale_granularity == ATTN_SCALE_PER_TOKEN_HEAD;
    if (cache->scales && !source->scaled)
        scale = cache->scales[attn_util_scale_at(group->scale_granularity, group->kv_heads, seq, 0,
                                                 kv_head)];
    source->formats[0] =
        (row_format){.dtype = group->kv_dtype, .decode = group->decode, .scale = scale};
    source->formats[0].packed = group->mla.packed;
    source->formats[1] = cpu_new_format(group, given, seq, kv_head);
    source->formats[1].stored_as = group->fp8;
    source->formats[1].stored_decode = group->decode;
    source->formats[1].stored_scale = scale;
    if (group->mla.expanded || source->scaled) /* cached values differ from the given ones */
        source->formats[1].stored_as = NULL;
}

/* The keys of [first, first + 64) that each row sees; returns those that any row sees. */
static uint64_t look(const layer_call *call, const work_unit *unit, const visibility *v,
                     int64_t first, uint64_t *visible)
{
    const cpu_group *group = call->group;
    uint64_t seen = 0;
    int32_t query = (int32_t)(unit->row / group->ratio), r = 0;
    for (; r < unit->rows; query++) { /* its rows follow each other */
        const int64_t rest = (query + 1) * (int64_t)group->ratio - unit->row;
        const int32_t end = rest < unit->rows ? (int32_t)rest : unit->rows;
        const uint64_t word = group->sparse.top_k > 0
                                  ? sparse_word(call, place_of(call, unit, 0, r).row, first)
                                  : visible_word(v, query, first);
        seen |= word;
        for (; r < end; r++)
            visible[r] = word;
    }
    return seen;
}

/* Find the next tile, from *first on, of which some row sees something; *first = end if none. */
static attn_status find_next(layer_call *call, const work_unit *unit, int32_t kv_head,
                             const visibility *v, int64_t end, int64_t *first, worker_scratch *w)
{
    for (; *first < end; *first += TILE_KEYS) {
        uint64_t seen = look(call, unit, v, *first, w->next_visible);
        if (seen != 0 && call->group->sparse.top_k > 0)
            return find_chosen(call, unit, *first, seen, w);
        if (seen != 0)
            return find_tile(call, unit->seq, kv_head, *first, seen, w);
    }
    *first = end;
    return ATTN_OK;
}

/* The tile that was found is the one at hand. */
static void turn_to_next(worker_scratch *w)
{
    tile_source *values = w->values;
    uint64_t *visible = w->block.visible;
    w->values = w->next_values;
    w->next_values = values;
    w->block.visible = w->next_visible;
    w->next_visible = visible;
}

/* Probabilities of the tile at `first`. */
static void score_tile(const layer_call *call, const visibility *v, int64_t first,
                       worker_scratch *w)
{
    const cpu_kernels *kernels = call->instance->kernels;
    const cpu_group *group = call->group;
    for (int j = 0; group->rule.has_alibi && j < TILE_KEYS; j++)
        w->key_positions[j] = (float)key_position(v, first + j);
    if (group->mla.absorbed) {
        mla_score_tile(call, w);
        return;
    }
    if (w->block.rows <= FEW_ROWS)
        kernels->score_few(&w->block, &w->keys, w->values, w->temp, w->key_panels);
    else {
        kernels->pack_keys(&w->keys, group->dim, w->temp, w->key_panels);
        kernels->score(&w->block, w->key_panels);
    }
    kernels->softmax(&w->block, &group->rule, w->key_positions);
}

/* Add up values; w->keys, if `more` = 1, are needed next. */
static void add_tile(const layer_call *call, int more, worker_scratch *w)
{
    const cpu_kernels *kernels = call->instance->kernels;
    const int32_t v_dim = call->group->v_dim;
    if (call->group->mla.absorbed) {
        mla_add_tile(call, more, w);
        return;
    }
    if (w->block.rows <= FEW_ROWS) {
        kernels->accumulate_few(&w->block, w->values, more ? &w->keys : NULL, v_dim,
                                w->value_panels);
        return;
    }
    int exact = kernels->pack_values(w->values, v_dim, w->temp, w->value_panels);
    kernels->accumulate(&w->block, w->value_panels, exact);
}

/* ---- Splits ---------------------------------------------------------------------------------- */

/* A row of partial results: its sums of values, and its maximum and sum after those of all rows.
 */
typedef struct part_row {
    float *acc;
    float *max_sum; /* [2] */
} part_row;

static part_row part_of(const layer_call *call, int32_t kv_head, int64_t row)
{
    const attn_metadata *metadata = call->metadata;
    const int64_t rows = call->plan->part_rows, stride = panel_round(call->group->v_dim);
    uint32_t workers = call->instance->services->num_workers;
    float *parts = (float *)(void *)(metadata->scratch + workers * metadata->worker_bytes);
    row += kv_head * rows;
    return (part_row){parts + row * stride,
                      parts + call->group->kv_heads * rows * stride + row * 2};
}

/* A split that is left as a partial result is added up in its place. */
static int64_t turn_to_part(const layer_call *call, const work_unit *unit, int32_t kv_head,
                            int32_t split, row_block *block)
{
    int64_t first = unit->part + (int64_t)(split - unit->first_split) * unit->rows;
    block->acc = part_of(call, kv_head, first).acc;
    return first;
}

static void keep_max_sum(const layer_call *call, int32_t kv_head, int64_t first,
                         const row_block *block)
{
    for (int32_t r = 0; r < block->rows; r++) {
        float *kept = part_of(call, kv_head, first + r).max_sum;
        kept[0] = block->max[r];
        kept[1] = block->sum[r];
    }
}

static void swap(float **a, float **b)
{
    float *kept = *a;
    *a = *b;
    *b = kept;
}

/* The first split becomes the merged result: a merge with nothing would not change it. */
static void keep_split(worker_scratch *w)
{
    swap(&w->out, &w->block.acc);
    swap(&w->out_max, &w->block.max);
    swap(&w->out_sum, &w->block.sum);
}

static void merge_split(const layer_call *call, worker_scratch *w)
{
    const row_block *block = &w->block;
    for (int32_t r = 0; r < block->rows; r++)
        call->instance->kernels->merge(w->out + (int64_t)r * block->value_stride, &w->out_max[r],
                                       &w->out_sum[r],
                                       block->acc + (int64_t)r * block->value_stride, block->max[r],
                                       block->sum[r], block->value_stride);
}

/* No split so far: `out` is not read. */
static void reset_out(worker_scratch *w)
{
    for (int32_t r = 0; r < w->block.rows; r++) {
        w->out_max[r] = -INFINITY;
        w->out_sum[r] = 0;
    }
}

static attn_status attend_split(layer_call *call, const work_unit *unit, int32_t kv_head,
                                const visibility *v, int32_t split, worker_scratch *w)
{
    int64_t first = (int64_t)split * call->instance->options.split;
    int64_t end = first + call->instance->options.split;
    end = end < v->kv_len ? end : v->kv_len;
    reset_rows(call->group, &w->block);
    attn_status status = find_next(call, unit, kv_head, v, end, &first, w);
    while (status == ATTN_OK && first < end) {
        turn_to_next(w);
        score_tile(call, v, first, w);
        first += TILE_KEYS;
        status = find_next(call, unit, kv_head, v, end, &first, w);
        if (status == ATTN_OK)
            add_tile(call, first < end, w);
        w->block.begins = 0;
    }
    return status;
}

static attn_status attend_splits(layer_call *call, const work_unit *unit, int32_t kv_head,
                                 const visibility *v, worker_scratch *w)
{
    attn_status status = ATTN_OK;
    reset_out(w);
    for (int32_t split = unit->first_split; split < unit->end_split; split++) {
        int64_t part = 0;
        if (unit->num_parts > 0)
            part = turn_to_part(call, unit, kv_head, split, &w->block);
        status = attend_split(call, unit, kv_head, v, split, w);
        if (status != ATTN_OK)
            return status;
        if (unit->num_parts > 0)
            keep_max_sum(call, kv_head, part, &w->block);
        else if (split == unit->first_split)
            keep_split(w);
        else
            merge_split(call, w);
    }
    return status;
}

attn_status cpu_attend_task(void *arg, int64_t task, uint32_t worker)
{
    layer_call *call = arg;
    int32_t kv_head = (int32_t)(task % call->group->kv_heads);
    const work_unit *unit = &call->plan->units[task / call->group->kv_heads];
    worker_scratch w;
    visibility v;
    cpu_visibility(call->metadata, call->group, call->plan, unit->seq, &v);
    if (call->group->sparse.top_k > 0) /* keys are entries of the row's list */
        v.kv_len = sparse_count(call, place_of(call, unit, 0, 0).row);
    lay_out(call, worker, unit->rows, &w);
    load_rows(call, unit, kv_head, &v, &w.block);
    if (call->group->mla.absorbed)
        mla_load_queries(call, unit, &w);
    else
        load_queries(call, unit, kv_head, &w.block);
    set_formats(call, &call->k_cache, call->new_k_scales, unit->seq, kv_head, &w.keys);
    set_formats(call, &call->v_cache, call->new_v_scales, unit->seq, kv_head, w.values);
    set_formats(call, &call->v_cache, call->new_v_scales, unit->seq, kv_head, w.next_values);
    attn_status status = attend_splits(call, unit, kv_head, &v, &w);
    if (status == ATTN_OK && unit->num_parts == 0)
        write_rows(call, unit, kv_head, &w);
    return status;
}

/* Rows of a tile are merged MERGE_ROWS at a time: a single tile is work for several. */
attn_status cpu_merge_task(void *arg, int64_t task, uint32_t worker)
{
    layer_call *call = arg;
    const int32_t heads = call->group->kv_heads, pieces = call->plan->merge_pieces;
    const int32_t kv_head = (int32_t)(task / pieces % heads);
    const work_unit *unit = &call->plan->merges[task / pieces / heads];
    const int32_t first = (int32_t)(task % pieces) * MERGE_ROWS;
    work_unit rows = *unit;
    worker_scratch w;
    if (first >= unit->rows)
        return ATTN_OK;
    rows.row += first;
    rows.rows = unit->rows - first < MERGE_ROWS ? unit->rows - first : MERGE_ROWS;
    lay_out(call, worker, rows.rows, &w);
    reset_out(&w);
    const int32_t stride = w.block.value_stride;
    for (int32_t part = 0; part < unit->num_parts; part++)
        for (int32_t r = 0; r < rows.rows; r++) {
            const part_row from =
                part_of(call, kv_head, unit->part + (int64_t)part * unit->rows + first + r);
            call->instance->kernels->merge(w.out + (int64_t)r * stride, &w.out_max[r],
                                           &w.out_sum[r], from.acc, from.max_sum[0],
                                           from.max_sum[1], stride);
        }
    write_rows(call, &rows, kv_head, &w);
    return ATTN_OK;
}
