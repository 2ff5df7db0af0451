/* SPDX-License-Identifier: Apache-2.0
 *
 * attend.c: one unit of work, on a worker's own scratch:
 *
 *   load the queries; for each split of the keys, for each tile of 64 keys in it:
 *     what does each row see? nothing: next tile
 *     pack keys and values; scores; softmax against the maximum so far; add up values
 *   then merge the split into the rows' results, or leave it as a partial result
 *   write outputs and LSE
 */
#include "cpu_native.h"

#include <math.h>
#include <string.h>

/* ---- Scratch --------------------------------------------------------------------------------- */

/* A worker's part of the scratch. memory.c knows its size. */
typedef struct worker_scratch {
    row_block block; /* of the split at hand */
    float *out;      /* [rows][value_stride] of all splits so far, and their max and sum */
    float *out_max;
    float *out_sum;
    float *key_panels;
    float *value_panels;
    float *temp;          /* [16 * MAX_DIM] */
    float *key_positions; /* [TILE_KEYS] */
    tile_source keys;
    tile_source values;
} worker_scratch;

static void *take(char **next, size_t bytes)
{
    void *taken = *next;
    *next += (bytes + 63) / 64 * 64;
    return taken;
}

static float *take_floats(char **next, int64_t count)
{
    return take(next, (size_t)count * sizeof(float));
}

static void lay_out(const layer_call *call, uint32_t worker, int32_t rows, worker_scratch *w)
{
    char *next = call->metadata->scratch + worker * call->metadata->worker_bytes;
    int32_t dim = call->group->dim, value_stride = panel_round(call->group->v_dim);
    row_block *block = &w->block;
    block->rows = rows;
    block->dim = dim;
    block->value_stride = value_stride;
    w->key_panels = take_floats(&next, (int64_t)TILE_KEYS * dim);
    w->value_panels = take_floats(&next, (int64_t)TILE_KEYS * value_stride);
    w->temp = take_floats(&next, (int64_t)PANEL * MAX_DIM);
    w->key_positions = take_floats(&next, TILE_KEYS);
    block->query = take_floats(&next, (int64_t)rows * dim);
    block->scores = take_floats(&next, (int64_t)rows * TILE_KEYS);
    block->acc = take_floats(&next, (int64_t)rows * value_stride);
    w->out = take_floats(&next, (int64_t)rows * value_stride);
    block->max = take_floats(&next, TILE_ROWS);
    block->sum = take_floats(&next, TILE_ROWS);
    block->slope = take_floats(&next, TILE_ROWS);
    block->position = take_floats(&next, TILE_ROWS);
    w->out_max = take_floats(&next, TILE_ROWS);
    w->out_sum = take_floats(&next, TILE_ROWS);
    block->visible = take(&next, TILE_ROWS * sizeof(uint64_t));
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Row r of a sequence under a KV head: which query, which query head. */
typedef struct row_place {
    int32_t query;
    int32_t head;
} row_place;

static row_place place_of(const cpu_group *group, int32_t kv_head, int32_t row)
{
    return (row_place){row / group->ratio, kv_head * group->ratio + row % group->ratio};
}

static void load_rows(const layer_call *call, const work_unit *unit, int32_t kv_head,
                      const visibility *v, row_block *block)
{
    const cpu_sequence *sequence = &call->plan->sequences[unit->seq];
    row_format format = {.dtype = call->group->q_dtype};
    for (int32_t r = 0; r < unit->rows; r++) {
        row_place place = place_of(call->group, kv_head, unit->row + r);
        call->instance->kernels->convert(
            new_row(call->q, (int64_t)sequence->first_row + place.query, place.head), &format,
            block->dim, block->query + (int64_t)r * block->dim);
        block->position[r] = (float)query_position(v, place.query);
        block->slope[r] = call->slopes ? call->slopes[place.head] : 0;
    }
}

static void reset_rows(row_block *block)
{
    for (int32_t r = 0; r < block->rows; r++) {
        block->max[r] = -INFINITY;
        block->sum[r] = 0;
    }
    memset(block->acc, 0, sizeof(float) * (size_t)block->rows * (size_t)block->value_stride);
}

/* Output and LSE of a row, from what its keys came to: the sink joins, then all is divided. */
static void write_row(const layer_call *call, int32_t row, int32_t head, const float *acc,
                      float max, float sum)
{
    float factor = 1, lse = -INFINITY;
    if (call->sinks && !(call->sinks[head] == -INFINITY)) {
        float sink = call->sinks[head], base = sink > max ? sink : max;
        factor = sum == 0 ? 0 : expf(max - base);
        sum = (sum == 0 ? 0 : sum * factor) + (sink == base ? 1 : expf(sink - base));
        max = base;
    }
    if (sum == 0) /* no key, no sink */
        factor = 0;
    else {
        factor /= sum;
        lse = max + logf(sum);
    }
    const attn_tensor *out = call->out, *lse_out = call->lse;
    call->instance->kernels->store(acc, factor, call->group->out_dtype, call->group->v_dim,
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
    const cpu_sequence *sequence = &call->plan->sequences[unit->seq];
    for (int32_t r = 0; r < unit->rows; r++) {
        row_place place = place_of(call->group, kv_head, unit->row + r);
        write_row(call, sequence->first_row + place.query, place.head,
                  w->out + (int64_t)r * w->block.value_stride, w->out_max[r], w->out_sum[r]);
    }
}

/* ---- Keys ------------------------------------------------------------------------------------ */

/* Where a key lies in the cache. */
typedef struct key_place {
    int64_t page;
    int64_t offset;
} key_place;

/* The place of key j, in the form of indices that this batch gives. Divisions are of 32 bits, since
 * they take much of the time of a short head. */
static key_place find_key(const layer_call *call, int32_t seq, int32_t j)
{
    const attn_kv_batch *kv = &call->plan->kv;
    int32_t page_size = call->group->page_size;
    if (call->plan->index_form == ATTN_INDEX_REQ_TO_TOKEN) {
        int64_t request = call->metadata->batch.req_pool_indices.device[seq];
        int32_t slot = kv->req_to_token.device[request * kv->req_to_token_stride + j];
        return page_size == 1 ? (key_place){slot, 0}
                              : (key_place){slot / page_size, slot % page_size};
    }
    const int32_t *pages = call->plan->index_form == ATTN_INDEX_BLOCK_TABLE
                               ? kv->block_table.device + (int64_t)seq * kv->block_table_stride
                               : kv->kv_indices.device + kv->kv_indptr.device[seq];
    return (key_place){pages[j / page_size], j % page_size};
}

/* Find the rows of the keys and values [first, first + 64) that somebody sees. */
static attn_status find_tile(layer_call *call, int32_t seq, int32_t kv_head, int64_t first,
                             uint64_t seen, worker_scratch *w)
{
    const cpu_sequence *sequence = &call->plan->sequences[seq];
    const cache_view *k = &call->k_cache, *v = &call->v_cache;
    int64_t first_new = call->k ? (int64_t)sequence->kv_len - sequence->num_new : INT64_MAX;
    w->keys.fresh = w->values.fresh = 0;
    for (int j = 0; j < TILE_KEYS; j++) {
        w->keys.rows[j] = w->values.rows[j] = NULL;
        if (!(seen >> j & 1))
            continue;
        if (first + j >= first_new) {
            int64_t row = sequence->first_new + (first + j - first_new);
            w->keys.rows[j] = new_row(call->k, row, kv_head);
            w->values.rows[j] = new_row(call->v, row, kv_head);
            w->keys.fresh |= 1ull << j;
            continue;
        }
        key_place at = find_key(call, seq, (int32_t)(first + j));
        if (at.page < 0 || at.offset < 0 || at.page >= k->num_pages)
            return cpu_call_fault(call, seq, first + j,
                                  at.page * call->group->page_size + at.offset);
        w->keys.rows[j] = k->data + at.page * k->page + at.offset * k->token + kv_head * k->head;
        w->values.rows[j] = v->data + at.page * v->page + at.offset * v->token + kv_head * v->head;
    }
    w->values.fresh = w->keys.fresh;
    return ATTN_OK;
}

/* How rows of the cache and new rows are read. */
static void set_formats(const layer_call *call, const cache_view *cache, int32_t kv_head,
                        tile_source *source)
{
    const cpu_group *group = call->group;
    float scale = 1;
    if (group->fp8)
        scale = cache->scales[group->scale_granularity == ATTN_SCALE_PER_HEAD ? kv_head : 0];
    source->formats[0] =
        (row_format){.dtype = group->kv_dtype, .decode = group->decode, .scale = scale};
    source->formats[1] = (row_format){
        .dtype = group->q_dtype, .stored_as = group->fp8, .decode = group->decode, .scale = scale};
}

/* What each row sees of the keys [first, first + 64); returns what any row sees. */
static uint64_t look(const cpu_group *group, const work_unit *unit, const visibility *v,
                     int64_t first, row_block *block)
{
    uint64_t seen = 0, word = 0;
    int32_t query = -1;
    for (int32_t r = 0; r < unit->rows; r++) {
        int32_t next = (unit->row + r) / group->ratio;
        if (next != query)
            word = visible_word(v, next, first);
        query = next;
        block->visible[r] = word;
        seen |= word;
    }
    return seen;
}

static attn_status attend_tile(layer_call *call, const work_unit *unit, int32_t kv_head,
                               const visibility *v, int64_t first, worker_scratch *w)
{
    const cpu_kernels *kernels = call->instance->kernels;
    const cpu_group *group = call->group;
    uint64_t seen = look(group, unit, v, first, &w->block);
    if (seen == 0)
        return ATTN_OK;
    attn_status status = find_tile(call, unit->seq, kv_head, first, seen, w);
    if (status != ATTN_OK)
        return status;
    for (int j = 0; group->rule.has_alibi && j < TILE_KEYS; j++)
        w->key_positions[j] = (float)key_position(v, first + j);
    kernels->pack_keys(&w->keys, group->dim, w->temp, w->key_panels);
    kernels->score(&w->block, w->key_panels);
    kernels->softmax(&w->block, &group->rule, w->key_positions);
    if (unit->rows <= FEW_ROWS) {
        kernels->accumulate_few(&w->block, &w->values, group->v_dim, w->value_panels);
        return ATTN_OK;
    }
    int exact = kernels->pack_values(&w->values, group->v_dim, w->temp, w->value_panels);
    kernels->accumulate(&w->block, w->value_panels, exact);
    return ATTN_OK;
}

/* ---- Splits ---------------------------------------------------------------------------------- */

/* A row of partial results: acc, then max and sum. */
static float *part_row(const layer_call *call, int32_t kv_head, int64_t row)
{
    const attn_metadata *metadata = call->metadata;
    uint32_t workers = call->instance->services->num_workers;
    float *parts = (float *)(void *)(metadata->scratch + workers * metadata->worker_bytes);
    return parts + (kv_head * call->plan->part_rows + row) * call->capacity->part_stride;
}

static void keep_split(const layer_call *call, const work_unit *unit, int32_t kv_head,
                       int32_t split, const row_block *block)
{
    int64_t first = unit->part + (int64_t)(split - unit->first_split) * unit->rows;
    for (int32_t r = 0; r < block->rows; r++) {
        float *part = part_row(call, kv_head, first + r);
        memcpy(part, block->acc + (int64_t)r * block->value_stride,
               (size_t)block->value_stride * sizeof(float));
        part[block->value_stride] = block->max[r];
        part[block->value_stride + 1] = block->sum[r];
    }
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

static void reset_out(worker_scratch *w)
{
    const row_block *block = &w->block;
    for (int32_t r = 0; r < block->rows; r++) {
        w->out_max[r] = -INFINITY;
        w->out_sum[r] = 0;
    }
    memset(w->out, 0, sizeof(float) * (size_t)block->rows * (size_t)block->value_stride);
}

static attn_status attend_split(layer_call *call, const work_unit *unit, int32_t kv_head,
                                const visibility *v, int32_t split, worker_scratch *w)
{
    int64_t first = (int64_t)split * call->instance->options.split;
    int64_t end = first + call->instance->options.split;
    attn_status status = ATTN_OK;
    reset_rows(&w->block);
    for (; first < end && first < v->kv_len && status == ATTN_OK; first += TILE_KEYS)
        status = attend_tile(call, unit, kv_head, v, first, w);
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
    lay_out(call, worker, unit->rows, &w);
    load_rows(call, unit, kv_head, &v, &w.block);
    set_formats(call, &call->k_cache, kv_head, &w.keys);
    set_formats(call, &call->v_cache, kv_head, &w.values);
    reset_out(&w);
    for (int32_t split = unit->first_split; split < unit->end_split; split++) {
        attn_status status = attend_split(call, unit, kv_head, &v, split, &w);
        if (status != ATTN_OK)
            return status;
        if (unit->num_parts > 0)
            keep_split(call, unit, kv_head, split, &w.block);
        else
            merge_split(call, &w);
    }
    if (unit->num_parts == 0)
        write_rows(call, unit, kv_head, &w);
    return ATTN_OK;
}

attn_status cpu_merge_task(void *arg, int64_t task, uint32_t worker)
{
    layer_call *call = arg;
    int32_t kv_head = (int32_t)(task % call->group->kv_heads);
    const work_unit *unit = &call->plan->merges[task / call->group->kv_heads];
    worker_scratch w;
    lay_out(call, worker, unit->rows, &w);
    reset_out(&w);
    int32_t stride = w.block.value_stride;
    for (int64_t part = 0; part < (int64_t)unit->num_parts * unit->rows; part++) {
        const float *from = part_row(call, kv_head, unit->part + part);
        int32_t r = (int32_t)(part % unit->rows);
        call->instance->kernels->merge(w.out + (int64_t)r * stride, &w.out_max[r], &w.out_sum[r],
                                       from, from[stride], from[stride + 1], stride);
    }
    write_rows(call, unit, kv_head, &w);
    return ATTN_OK;
}
