/* SPDX-License-Identifier: Apache-2.0
 *
 * index.c: logits of the keys that a row sees, and the largest of them.
 *
 * Rows are done in waves, as many as there is room for their logits. Of a wave, tasks are pieces of
 * PIECE keys of a row, so that a single long row is work for all; then each row's choice is one.
 */
#include "sparse.h"

#include "attn_plugin_util.h"

#include <math.h>
#include <string.h>

enum { PIECE = 2048 };

/* A wave on its way. */
typedef struct index_wave {
    layer_call *call;
    int64_t first;  /* row */
    int64_t pieces; /* of the longest row */
} index_wave;

/* ---- Rows ------------------------------------------------------------------------------------ */

/* The sequence of an absolute row: of those that begin at one row only the last can have rows. */
static int32_t find_seq(const layer_call *call, int64_t row)
{
    const cpu_sequence *sequences = call->plan->sequences;
    int32_t low = 0, high = call->metadata->batch.num_seqs - 1;
    while (low < high) {
        const int32_t middle = (low + high + 1) / 2;
        if (sequences[middle].first_row <= row)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static float *logits_of(const layer_call *call, int64_t row)
{
    return call->sparse.logits + (row - call->sparse.first) * call->sparse.logit_stride;
}

/* The slot of key j; -1 = it lies outside the caches. */
static int64_t slot_of(layer_call *call, int32_t seq, int64_t j)
{
    const group_plan *plan = call->plan;
    const attn_kv_batch *kv = &plan->kv;
    const int64_t page_size = call->group->page_size;
    int64_t slot;
    if (plan->index_form == ATTN_INDEX_REQ_TO_TOKEN)
        slot = kv->req_to_token.device[(int64_t)call->metadata->batch.req_pool_indices.device[seq] *
                                           kv->req_to_token_stride +
                                       j];
    else if (plan->index_form == ATTN_INDEX_BLOCK_TABLE)
        slot = kv->block_table.device[(int64_t)seq * kv->block_table_stride + j / page_size] *
                   page_size +
               j % page_size;
    else
        slot = kv->kv_indices.device[kv->kv_indptr.device[seq] + j / page_size] * page_size +
               j % page_size;
    const int64_t pages = call->sparse.num_pages > 0 ? call->sparse.num_pages : INT32_MAX;
    if (slot >= 0 && slot / page_size < pages)
        return slot;
    cpu_call_fault(call, seq, j, slot);
    return -1;
}

/* ---- Logits ---------------------------------------------------------------------------------- */

static float *take(float **next, int64_t count)
{
    float *taken = *next;
    *next += (count + PANEL - 1) / PANEL * PANEL;
    return taken;
}

/* A worker's memory. */
typedef struct index_scratch {
    float *query;   /* [heads, whole register blocks][label] */
    float *weights; /* [heads, likewise] */
    float *labels;  /* [label][TILE_KEYS] */
    float *label;
    float *tile; /* [TILE_KEYS] logits */
} index_scratch;

static void lay_out(const layer_call *call, uint32_t worker, int32_t heads, index_scratch *w)
{
    const int64_t label = call->group->sparse.label;
    float *next =
        (float *)(void *)(call->metadata->scratch + worker * call->metadata->worker_bytes);
    w->query = take(&next, heads * label);
    w->weights = take(&next, heads);
    w->labels = take(&next, TILE_KEYS * label);
    w->label = take(&next, label);
    w->tile = take(&next, TILE_KEYS);
}

static void load_query(const layer_call *call, int64_t row, int32_t heads, index_scratch *w)
{
    const sparse_group *sparse = &call->group->sparse;
    const row_format format = {.dtype = sparse->q_dtype, .decode = sparse->decode_q, .scale = 1};
    memset(w->query, 0, sizeof(float) * (size_t)heads * (size_t)sparse->label);
    memset(w->weights, 0, sizeof(float) * (size_t)heads);
    for (int32_t h = 0; h < sparse->heads; h++)
        call->instance->kernels->convert(new_row(call->sparse.q, row, h), &format, sparse->label,
                                         w->query + (int64_t)h * sparse->label);
    memcpy(w->weights, new_row(call->sparse.weights, row, 0),
           sizeof(float) * (size_t)sparse->heads);
}

static void load_label(const layer_call *call, int64_t slot, float *to)
{
    const cpu_group *group = call->group;
    const sparse_operands *own = &call->sparse;
    const int64_t page = slot / group->page_size, offset = slot % group->page_size;
    const char *codes = own->labels + page * own->label_page;
    row_format format = {
        .dtype = group->sparse.label_dtype, .decode = group->sparse.decode_label, .scale = 1};
    if (group->sparse.label_dtype == ATTN_FP8_E4M3)
        memcpy(&format.scale,
               codes + (int64_t)group->page_size * group->sparse.label +
                   offset * (int64_t)sizeof(float),
               sizeof format.scale);
    call->instance->kernels->convert(codes + offset * own->label_token, &format,
                                     group->sparse.label, to);
}

/* Labels of the keys `seen` of [first, first + 64), transposed; zeros of the others. */
static attn_status load_labels(layer_call *call, int32_t seq, int64_t first, uint64_t seen,
                               const index_scratch *w)
{
    const int32_t label = call->group->sparse.label;
    for (int32_t key = 0; key < TILE_KEYS; key++) {
        const int is_seen = (int)(seen >> key & 1);
        const int64_t slot = is_seen ? slot_of(call, seq, first + key) : 0;
        if (slot < 0)
            return ATTN_INVALID_ARGUMENT;
        if (is_seen)
            load_label(call, slot, w->label);
        for (int32_t d = 0; d < label; d++)
            w->labels[(int64_t)d * TILE_KEYS + key] = is_seen ? w->label[d] : 0;
    }
    return ATTN_OK;
}

static attn_status index_task(void *arg, int64_t task, uint32_t worker)
{
    const index_wave *wave = arg;
    layer_call *call = wave->call;
    const sparse_group *sparse = &call->group->sparse;
    const int64_t row = wave->first + task / wave->pieces;
    const int32_t seq = find_seq(call, row);
    const int32_t query = (int32_t)(row - call->plan->sequences[seq].first_row);
    const int32_t heads = (sparse->heads + INDEX_STEP - 1) / INDEX_STEP * INDEX_STEP;
    int64_t first = task % wave->pieces * PIECE, end = first + PIECE;
    index_scratch w;
    visibility v;
    cpu_visibility(call->metadata, call->group, call->plan, seq, &v);
    end = end < v.kv_len ? end : v.kv_len;
    if (first >= end)
        return ATTN_OK;
    lay_out(call, worker, heads, &w);
    load_query(call, row, heads, &w);
    for (; first < end; first += TILE_KEYS) {
        const uint64_t seen = visible_word(&v, query, first);
        float *to = logits_of(call, row) + first;
        if (seen) {
            attn_status status = load_labels(call, seq, first, seen, &w);
            if (status != ATTN_OK)
                return status;
            call->instance->kernels->index(w.query, w.weights, heads, sparse->label, w.labels,
                                           w.tile);
        }
        for (int32_t key = 0; key < TILE_KEYS && first + key < end; key++)
            to[key] = seen >> key & 1 ? w.tile[key] : -INFINITY;
    }
    return ATTN_OK;
}

/* ---- Choices --------------------------------------------------------------------------------- */

enum { DIGIT = 11, BUCKETS = 1 << DIGIT };

/* Numbers in the order of their logits; -inf, which is no key, is the least of all but NaN. */
static uint32_t order_of(float logit)
{
    const uint32_t bits = float_bits(logit + 0.0f); /* no negative zero */
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The number of the largest `count` that is the least, by its digits from the top; *above gets how
 * many are larger. */
static uint32_t find_threshold(const float *logits, int64_t n, int32_t count, int32_t *above)
{
    uint32_t prefix = 0, known = 0; /* digits that are settled, and which these are */
    *above = 0;
    for (int shift = 32 - DIGIT; known != UINT32_MAX; shift = shift > DIGIT ? shift - DIGIT : 0) {
        int32_t buckets[BUCKETS] = {0}, bucket = BUCKETS - 1;
        for (int64_t j = 0; j < n; j++) {
            const uint32_t number = order_of(logits[j]);
            if (!((number ^ prefix) & known))
                buckets[number >> shift & (BUCKETS - 1)]++;
        }
        for (; bucket > 0 && *above + buckets[bucket] < count; bucket--)
            *above += buckets[bucket];
        prefix |= (uint32_t)bucket << shift;
        known |= (uint32_t)(BUCKETS - 1) << shift;
    }
    return prefix;
}

static attn_status choose_task(void *arg, int64_t task, uint32_t worker)
{
    const index_wave *wave = arg;
    layer_call *call = wave->call;
    const int64_t row = wave->first + task;
    const int32_t seq = find_seq(call, row), top_k = call->group->sparse.top_k;
    const int64_t n = call->plan->sequences[seq].kv_len;
    const float *logits = logits_of(call, row);
    const row_lists *lists = &call->sparse.lists;
    int32_t *slots = lists->slots + row * lists->stride, seen = 0, above = 0, count = 0;
    (void)worker;
    for (int64_t j = 0; j < n; j++)
        seen += logits[j] != -INFINITY;
    const int32_t wanted = seen < top_k ? seen : top_k;
    const uint32_t threshold = wanted > 0 ? find_threshold(logits, n, wanted, &above) : 0;
    for (int64_t j = 0, equal = wanted - above; j < n && count < wanted; j++) {
        const uint32_t number = order_of(logits[j]);
        if (number < threshold || (number == threshold && equal-- <= 0))
            continue;
        const int64_t slot = slot_of(call, seq, j);
        if (slot < 0)
            return ATTN_INVALID_ARGUMENT;
        slots[count++] = (int32_t)slot;
    }
    for (int32_t i = count; i < top_k; i++)
        slots[i] = -1;
    lists->counts[row * lists->count_stride] = count;
    if (call->sparse.given_counts)
        call->sparse.given_counts[row * call->sparse.given_stride] = count;
    return ATTN_OK;
}

/* ---- Both steps ------------------------------------------------------------------------------ */

attn_status sparse_choose(layer_call *call, attn_error *error)
{
    const group_plan *plan = call->plan;
    sparse_operands *own = &call->sparse;
    const int64_t end = plan->pad_first;
    const int64_t rows = own->wave > 0 ? own->wave : end - plan->row_first;
    attn_status status = ATTN_OK;
    if (!own->labelled && !own->chosen)
        return ATTN_OK;
    for (int64_t first = plan->row_first; first < end && status == ATTN_OK; first += rows) {
        const int64_t count = end - first < rows ? end - first : rows;
        index_wave wave = {call, first, (plan->longest + PIECE - 1) / PIECE};
        own->first = own->wave > 0 ? first : 0;
        if (own->labelled)
            status = cpu_run(call, count * wave.pieces, index_task, &wave, error);
        if (status == ATTN_OK && own->chosen)
            status = cpu_run(call, count, choose_task, &wave, error);
    }
    return status;
}

/* ---- Lists ----------------------------------------------------------------------------------- */

/* Rows of padding have none if the caller chooses: their lists are undefined. */
int32_t sparse_count(const layer_call *call, int64_t row)
{
    const row_lists *lists = &call->sparse.lists;
    if (!call->sparse.chosen && find_seq(call, row) >= call->metadata->batch.num_real_seqs)
        return 0;
    int32_t count = lists->counts ? lists->counts[row * lists->count_stride] : lists->most;
    count = count < 0 ? 0 : count;
    return count < lists->most ? count : lists->most;
}

uint64_t sparse_word(const layer_call *call, int64_t row, int64_t first)
{
    const row_lists *lists = &call->sparse.lists;
    const int32_t *slots = lists->slots + row * lists->stride + first;
    const int64_t left = sparse_count(call, row) - first;
    uint64_t word = 0;
    for (int64_t n = 0; n < left && n < TILE_KEYS; n++)
        word |= (uint64_t)(slots[n] != -1) << n;
    return word;
}
