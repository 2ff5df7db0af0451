/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.c: a whole forward, row by row. Each (row, head) is a reference_row whose keys are read
 * from k and v where they are new, else from the cache.
 */
#include "host/reference/call.h"
#include "host/reference/row.h"

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/fpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Keys and values of a sequence and a KV head --------------------------------------------- */

/* Vectors of a sequence that were read once: its other rows and heads find them here. */
struct memo {
    double *vectors; /* [kv_len, kv_heads, dim + v_dim]; NULL = nothing is kept */
    uint8_t *has;    /* [kv_len, kv_heads]: HAS_KEY, HAS_VALUE */
};
enum { HAS_KEY = 1, HAS_VALUE = 2 };

/* Bytes that are kept of a sequence at most: beyond, reading them from memory costs as much as it
 * saves. */
enum { MOST_KEPT = 64 << 20 };

struct reader {
    const reference_call *call;
    const reference_sequence *sequence;
    int32_t kv_head;
    const struct memo *memo; /* NULL = none */
};

/* Rows and heads that are computed side by side, at most, and the keys that they see in all: their scores stay near. */
enum { TILE_ROWS = 32, TILE_KEYS = 1 << 15 };

/* How many rows times heads are computed side by side. */
static int32_t lines_together(const reference_sequence *sequence)
{
    int64_t lines = TILE_KEYS / (sequence->kv_len + 1);
    return lines > TILE_ROWS ? TILE_ROWS : lines > 1 ? (int32_t)lines : 1;
}

/* Nothing is kept if it is read only once, is too large, or memory ran out. */
static void memo_init(struct memo *memo, const reference_call *call,
                      const reference_sequence *sequence)
{
    size_t vectors = (size_t)sequence->kv_len * (size_t)call->kv_heads;
    size_t each = ((size_t)call->dim + (size_t)call->v_dim) * sizeof(double);
    int64_t readers = sequence->num_rows * (call->group->num_q_heads / call->kv_heads);
    int is_read_once = readers <= (call->chooses ? 1 : lines_together(sequence));
    *memo = (struct memo){NULL, NULL};
    if (vectors == 0 || is_read_once || vectors > MOST_KEPT / each)
        return;
    memo->vectors = malloc(vectors * each);
    memo->has = calloc(vectors, 1);
}

static void memo_finish(struct memo *memo)
{
    free(memo->vectors);
    free(memo->has);
}

/* A row of q, k or v as it is given; its scale is that of sequence `s` and the KV head. */
static void read_input(const reference_call *call, const attn_tensor *from, const attn_scale *scale,
                       int32_t s, int32_t kv_head, const int64_t *index, int32_t count,
                       double *vector)
{
    const char *row = reference_element(from, index, 2);
    float factor = reference_scale(call, scale, s, 0, kv_head);
    dtype_dequantise_all(from->dtype, row, count, factor, vector);
}

/* `given` is its own scale, `scale` that of the cache. */
static void read_new(const struct reader *reader, const attn_tensor *from, const attn_scale *given,
                     const attn_scale *scale, int64_t new_row, int32_t count, double *vector)
{
    const reference_call *call = reader->call;
    int64_t index[] = {new_row, reader->kv_head};
    read_input(call, from, given, reader->sequence->index, reader->kv_head, index, count, vector);
    if (call->kv && call->as_stored)
        dtype_as_stored(call->problem->kv_dtype, vector, count,
                        reference_scale(call, scale, reader->sequence->index, 0, reader->kv_head));
}

static void read_cached(const struct reader *reader, const attn_tensor *cache,
                        const attn_scale *scale, int64_t slot, int32_t count, double *vector)
{
    const char *from = reference_slot_vector(reader->call, cache, slot, reader->kv_head);
    float factor =
        reference_scale(reader->call, scale, reader->sequence->index, slot, reader->kv_head);
    dtype_dequantise_all(cache->dtype, from, count, factor, vector);
}

static void read_anew(const struct reader *reader, int64_t j, double *key, double *value)
{
    const reference_call *call = reader->call;
    const reference_sequence *sequence = reader->sequence;
    int32_t dim = call->dim, v_dim = call->v_dim;
    if (call->absorbed) {
        reference_mla_read(call, sequence, j, key ? dim : v_dim, key ? key : value);
        return;
    }
    int64_t first_new = sequence->kv_len - sequence->num_new;
    if (j >= first_new) {
        int64_t row = sequence->first_new_row + j - first_new;
        if (key)
            read_new(reader, call->k, call->new_k_scale, call->k_scale, row, dim, key);
        if (value)
            read_new(reader, call->v, call->new_v_scale, call->v_scale, row, v_dim, value);
        return;
    }
    int64_t slot = reference_slot(call, sequence, j);
    if (key)
        read_cached(reader, call->k_cache, call->k_scale, slot, dim, key);
    if (value)
        read_cached(reader, call->v_cache, call->v_scale, slot, v_dim, value);
}

static void read_key(void *ctx, int64_t j, double *key, double *value)
{
    const struct reader *reader = ctx;
    const reference_call *call = reader->call;
    const struct memo *memo = reader->memo;
    if (!memo || !memo->vectors || !memo->has) {
        read_anew(reader, j, key, value);
        return;
    }
    size_t at = (size_t)j * (size_t)call->kv_heads + (size_t)reader->kv_head;
    size_t dim = (size_t)call->dim, v_dim = (size_t)call->v_dim;
    double *kept = memo->vectors + at * (dim + v_dim);
    uint8_t wanted = (uint8_t)((key ? HAS_KEY : 0) | (value ? HAS_VALUE : 0));
    uint8_t missing = wanted & (uint8_t)~memo->has[at];
    if (missing)
        read_anew(reader, j, missing & HAS_KEY ? kept : NULL,
                  missing & HAS_VALUE ? kept + dim : NULL);
    memo->has[at] |= wanted;
    if (key)
        memcpy(key, kept, dim * sizeof *key);
    if (value)
        memcpy(value, kept + dim, v_dim * sizeof *value);
}

/* ---- What a query sees ----------------------------------------------------------------------- */

static void set_mask(reference_sight *sight, const reference_call *call,
                     const reference_sequence *sequence, int64_t t)
{
    sight->mask_kind = call->mask_kind;
    sight->prefix_len = sequence->first_position;
    sight->first_key = call->expanded ? sequence->kv_len - sequence->num_new : 0;
    if (call->mask_kind != ATTN_MASK_FULL && call->mask_kind != ATTN_MASK_QLEN)
        return;
    const attn_mask *mask = call->batch->mask;
    sight->mask_columns = call->mask_kind == ATTN_MASK_FULL ? sequence->kv_len : sequence->num_rows;
    sight->mask_bits = mask->bits;
    sight->mask_first_bit =
        reference_i64(&mask->indptr)[sequence->index] * 8 + t * sight->mask_columns;
}

static void set_positions(reference_sight *sight, const reference_call *call,
                          const reference_sequence *sequence, int64_t t)
{
    const int32_t *positions = reference_i32(&call->batch->positions);
    sight->has_position = call->group->attn_type != ATTN_TYPE_CROSS;
    sight->position = sequence->first_position + t;
    sight->window_left = call->group->window_left;
    sight->window_right = call->group->window_right;
    sight->attention_chunk = call->group->attention_chunk;
    if (positions) {
        sight->position = positions[sequence->first_row + t];
        sight->key_positions = positions + sequence->first_row;
    }
}

static attn_status set_items(reference_sight *sight, const reference_call *call,
                             const reference_sequence *sequence, attn_error *error)
{
    const attn_multi_item *items = call->batch->multi_item;
    if (!items)
        return ATTN_OK;
    const int32_t *prefix_lens = reference_i32(&items->prefix_lens);
    if (!prefix_lens || !items->token_pos)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "multi_item needs prefix_lens and token_pos");
    sight->has_items = 1;
    sight->items_prefix_len = prefix_lens[sequence->index];
    int64_t column = sight->position - sight->items_prefix_len;
    if (column < 0)
        return ATTN_OK;
    if (column >= items->token_pos_stride)
        return host_fail(
            error, ATTN_INVALID_ARGUMENT,
            "token_pos of sequence %d has %d entries; its query at position %lld reads entry %lld",
            sequence->index, items->token_pos_stride, (long long)sight->position,
            (long long)column);
    sight->token_pos_in_item =
        items->token_pos[(int64_t)sequence->index * items->token_pos_stride + column];
    return ATTN_OK;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* What all rows of a forward share. */
struct forward {
    const reference_call *call;
    const reference_options *options; /* NULL = defaults */
    reference_result *result;         /* NULL = of one head alone */
    reference_scratch scratch;
    double *queries;           /* [TILE_ROWS][call->dim] */
    double *vector;            /* [max(dim, v_dim)] of a key that is asked about */
    uint8_t *has_probes;       /* [rows, heads] */
    struct memo memo;          /* of the sequence at hand */
    reference_chooser chooser; /* likewise, of a layer whose rows' keys are chosen */
};

/* Are products of two fp8 numbers among those that scores and outputs are sums of? */
static int32_t multiplies_codes(const attn_problem *problem)
{
    int32_t kv_is_fp8 = dtype_is_fp8(problem->kv_dtype) || dtype_is_fp8(attn_new_kv_dtype(problem));
    return dtype_is_fp8(problem->q_dtype) && kv_is_fp8;
}

static reference_row make_row(const reference_call *call, const reference_sequence *sequence,
                              const reference_sight *sight, int32_t head, const double *query)
{
    reference_row row = reference_row_of(call->group);
    row.head_dim = call->dim;
    row.v_head_dim = call->v_dim;
    row.kv_len = sequence->kv_len;
    row.alibi_slope = call->slopes ? (double)call->slopes[head] : 0;
    row.sink = call->sinks ? (double)call->sinks[head] : 0;
    row.has_sink = call->sinks != NULL;
    row.operand_dtype = call->problem->q_dtype;
    row.multiplies_codes = multiplies_codes(call->problem);
    row.values_are_codes = dtype_is_fp8(call->problem->kv_dtype);
    row.out_dtype = call->problem->out_dtype;
    row.out_scale = call->out_scale;
    row.query = query;
    row.sight = *sight;
    return row;
}

/* If a key of weight p is left out, the output moves by p / (1 - p) times its distance from the
 * value; if one of weight w is added, by w / (1 + w). */
static void answer(const struct forward *forward, const reference_row *row, const reference_kv *kv,
                   int64_t entry, reference_probe *probe)
{
    const reference_result *result = forward->result;
    const double *out = result->out + entry * row->v_head_dim;
    const double *bars = result->bars + entry * row->v_head_dim;
    double size, weight;
    kv->read(kv->ctx, probe->key, forward->vector, NULL);
    weight =
        exp(reference_score(row, forward->vector, probe->key, &size) - result->rows[entry].lse);
    int seen = reference_sees(&row->sight, probe->key);
    double share = seen ? weight / (1 - weight) : weight / (1 + weight);
    kv->read(kv->ctx, probe->key, NULL, forward->vector);
    probe->moves = 0;
    for (int32_t d = 0; d < row->v_head_dim; d++) {
        double moves = seen && weight >= 1 ? fabs(out[d]) / bars[d]
                                           : share * fabs(forward->vector[d] - out[d]) / bars[d];
        probe->moves = isnan(moves) ? INFINITY : fmax(probe->moves, moves);
    }
}

static void answer_all(const struct forward *forward, const reference_row *row,
                       const reference_kv *kv, int64_t entry)
{
    const reference_options *options = forward->options;
    int32_t heads = forward->result->num_heads;
    for (int32_t n = 0; forward->has_probes[entry] && n < options->num_probes; n++)
        if (options->probes[n].row * heads + options->probes[n].head == entry)
            answer(forward, row, kv, entry, &options->probes[n]);
}

/* The sight of row `t`, for all heads. */
attn_status reference_set_sight(reference_sight *sight, const reference_call *call,
                                const reference_sequence *sequence, int64_t t, attn_error *error)
{
    *sight = reference_sight_all();
    set_mask(sight, call, sequence, t);
    set_positions(sight, call, sequence, t);
    return set_items(sight, call, sequence, error);
}

static attn_status set_row_sight(reference_sight *sight, struct forward *forward,
                                 const reference_sequence *sequence, int64_t t, attn_error *error)
{
    const reference_call *call = forward->call;
    attn_status status = reference_set_sight(sight, call, sequence, t, error);
    return status == ATTN_OK && call->chooses
               ? reference_sparse_sight(sight, call, sequence, t, &forward->chooser, error)
               : status;
}

/* The destination of one row and head: out[v_dim], bars[v_dim] (NULL = not wanted) and the rest. */
struct head_result {
    double *out, *bars;
    reference_row_result *row;
};

static void read_query(const reference_call *call, const reference_sequence *sequence, int64_t t,
                       int32_t head, double *query)
{
    int32_t kv_head = head / (call->group->num_q_heads / call->kv_heads);
    int64_t index[] = {sequence->first_row + t, head};
    if (call->absorbed)
        reference_mla_query(call, index[0], head, query);
    else
        read_input(call, call->q, call->q_scale, sequence->index, kv_head, index, call->dim, query);
}

static attn_status compute_head(struct forward *forward, const reference_sequence *sequence,
                                const reference_sight *sight, int64_t t, int32_t head,
                                const struct head_result *into, attn_error *error)
{
    const reference_call *call = forward->call;
    struct reader reader = {call, sequence, head / (call->group->num_q_heads / call->kv_heads),
                            NULL};
    reference_kv kv = {.read = read_key, .ctx = &reader};
    read_query(call, sequence, t, head, forward->queries);
    reference_row row = make_row(call, sequence, sight, head, forward->queries);
    return reference_row_compute(&row, &kv, &forward->scratch, into->out, into->bars, into->row,
                                 error);
}

/* Rows of a sequence that are computed together. */
struct tile {
    int32_t count;
    int64_t rows[TILE_ROWS]; /* t of each */
    reference_sight sights[TILE_ROWS];
};

/* Heads [first, end) of one KV head, of all rows of a tile. */
static attn_status compute_lines(struct forward *forward, const reference_sequence *sequence,
                                 const struct tile *tile, int32_t first, int32_t end,
                                 attn_error *error)
{
    const reference_call *call = forward->call;
    reference_result *result = forward->result;
    int32_t heads = call->group->num_q_heads, count = 0;
    struct reader reader = {call, sequence, first / (heads / call->kv_heads), &forward->memo};
    reference_kv kv = {.read = read_key, .ctx = &reader};
    reference_row rows[TILE_ROWS];
    reference_row_to to[TILE_ROWS];
    int64_t entries[TILE_ROWS];
    for (int32_t i = 0; i < tile->count; i++)
        for (int32_t head = first; head < end; head++, count++) {
            int64_t entry = (sequence->first_row + tile->rows[i]) * heads + head;
            double *query = forward->queries + (int64_t)count * call->dim;
            read_query(call, sequence, tile->rows[i], head, query);
            rows[count] = make_row(call, sequence, &tile->sights[i], head, query);
            to[count] = (reference_row_to){.out = result->out + entry * call->v_dim,
                                           .bars = result->bars ? result->bars + entry * call->v_dim
                                                                : NULL};
            entries[count] = entry;
        }
    attn_status status = reference_rows_compute(rows, count, &kv, &forward->scratch, to, error);
    for (int32_t n = 0; n < count && status == ATTN_OK; n++) {
        result->rows[entries[n]] = to[n].result;
        answer_all(forward, &rows[n], &kv, entries[n]);
    }
    return status;
}

/* At most as many heads at a time as a tile's rows leave room for. */
static attn_status compute_tile(struct forward *forward, const reference_sequence *sequence,
                                const struct tile *tile, attn_error *error)
{
    const reference_call *call = forward->call;
    int32_t heads = call->group->num_q_heads, ratio = heads / call->kv_heads;
    int32_t most = lines_together(sequence) / tile->count, together = most > 1 ? most : 1;
    attn_status status = ATTN_OK;
    for (int32_t h = 0; h < heads && status == ATTN_OK;) {
        int32_t end = (h / ratio + 1) * ratio;
        end = end - h > together ? h + together : end;
        status = compute_lines(forward, sequence, tile, h, end, error);
        h = end;
    }
    return status;
}

static attn_status compute_rows(struct forward *forward, const reference_sequence *sequence,
                                attn_error *error)
{
    const reference_call *call = forward->call;
    int32_t size = lines_together(sequence) / (call->group->num_q_heads / call->kv_heads);
    int32_t most = call->chooses || size < 1 ? 1 : size; /* there is one choice of keys at a time */
    struct tile tile = {.count = 0};
    attn_status status = ATTN_OK;
    for (int64_t t = 0; t < sequence->num_rows && status == ATTN_OK; t++) {
        int real = reference_row_is_real(call, sequence, t);
        forward->result->kind[sequence->first_row + t] =
            real ? REFERENCE_ROW_REAL : REFERENCE_ROW_PADDING;
        if (real) {
            status = set_row_sight(&tile.sights[tile.count], forward, sequence, t, error);
            tile.rows[tile.count++] = t;
        }
        if (status == ATTN_OK &&
            (tile.count == most || (tile.count > 0 && t + 1 == sequence->num_rows))) {
            status = compute_tile(forward, sequence, &tile, error);
            tile.count = 0;
        }
    }
    return status;
}

static attn_status compute_sequence(struct forward *forward, int32_t s, attn_error *error)
{
    const reference_call *call = forward->call;
    reference_sequence sequence;
    attn_status status = reference_sequence_init(&sequence, call, s, error);
    if (status == ATTN_OK && sequence.real && call->index_form)
        status = reference_check_slots(call, &sequence, error);
    if (status == ATTN_OK)
        memo_init(&forward->memo, call, &sequence);
    if (status == ATTN_OK && call->chooses)
        status = reference_chooser_init(&forward->chooser, call, &sequence, error);
    if (status == ATTN_OK)
        status = compute_rows(forward, &sequence, error);
    memo_finish(&forward->memo);
    forward->memo = (struct memo){NULL, NULL};
    reference_chooser_finish(&forward->chooser);
    return status;
}

/* ---- Results --------------------------------------------------------------------------------- */

static attn_status allocate_result(reference_result *result, const reference_call *call,
                                   int has_bars, attn_error *error)
{
    const attn_layer_group *group = call->group;
    size_t rows = (size_t)call->num_rows, entries = rows * (size_t)group->num_q_heads;
    *result = (reference_result){
        .num_rows = call->num_rows,
        .num_heads = group->num_q_heads,
        .v_head_dim = call->v_dim,
        .out_dtype = call->problem->out_dtype,
        .out_scale = call->out_scale,
        .has_bars = has_bars,
    };
    /* One more, so that an empty tensor is no failure. */
    result->kind = calloc(rows + 1, sizeof *result->kind);
    result->rows = calloc(entries + 1, sizeof *result->rows);
    result->out = calloc(entries * (size_t)call->v_dim + 1, sizeof *result->out);
    if (has_bars)
        result->bars = calloc(entries * (size_t)call->v_dim + 1, sizeof *result->bars);
    if (result->kind && result->rows && result->out && (result->bars || !has_bars))
        return ATTN_OK;
    reference_result_finish(result);
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "reference: no memory for %lld rows",
                     (long long)call->num_rows);
}

void reference_result_finish(reference_result *result)
{
    if (!result)
        return;
    free(result->kind);
    free(result->rows);
    free(result->out);
    free(result->bars);
    *result = (reference_result){0};
}

/* The question is not answered without bars. */
static void mark_probes(struct forward *forward)
{
    const reference_options *options = forward->options;
    const int32_t heads = forward->result->num_heads;
    for (int32_t n = 0; options && forward->result->bars && n < options->num_probes; n++) {
        const reference_probe *probe = &options->probes[n];
        if (probe->row >= 0 && probe->row < forward->result->num_rows)
            forward->has_probes[probe->row * heads + probe->head] = 1;
    }
}

static attn_status compute_all(const reference_call *call, const reference_options *options,
                               reference_result *result, attn_error *error)
{
    struct forward forward = {.call = call, .options = options, .result = result};
    size_t dim = (size_t)call->dim, v_dim = (size_t)call->v_dim, wide = dim > v_dim ? dim : v_dim;
    reference_scratch_init(&forward.scratch);
    forward.queries = malloc((TILE_ROWS * dim + wide) * sizeof *forward.queries);
    forward.vector = forward.queries ? forward.queries + TILE_ROWS * dim : NULL;
    forward.has_probes = calloc((size_t)call->num_rows * (size_t)result->num_heads + 1, 1);
    attn_status status = ATTN_OK;
    if (forward.queries && forward.has_probes)
        mark_probes(&forward);
    else
        status = host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "reference: no memory for a query");
    for (int32_t s = 0; s < call->batch->num_seqs && status == ATTN_OK; s++)
        status = compute_sequence(&forward, s, error);
    free(forward.queries);
    free(forward.has_probes);
    reference_scratch_finish(&forward.scratch);
    return status;
}

static __attribute__((noinline)) attn_status forward(const attn_problem *problem,
                                                     const attn_batch *batch, int32_t layer_id,
                                                     const attn_forward_args *args,
                                                     const reference_options *options,
                                                     reference_result *result, attn_error *error)
{
    int has_bars = !(options && options->without_bars);
    if (batch->mode == ATTN_MODE_IDLE) {
        const attn_layer_group *group = problem->group;
        int absorbed = reference_is_absorbed(problem, batch->mode) && group->mla;
        *result = (reference_result){.num_heads = group->num_q_heads,
                                     .v_head_dim =
                                         absorbed ? group->mla->kv_lora_rank : group->v_head_dim,
                                     .out_dtype = problem->out_dtype,
                                     .has_bars = has_bars};
        return ATTN_OK;
    }
    reference_call call;
    reference_result made;
    attn_status status = reference_call_init(&call, problem, batch, layer_id, args, options, error);
    if (status == ATTN_OK)
        status = allocate_result(&made, &call, has_bars, error);
    if (status != ATTN_OK)
        return status;
    status = compute_all(&call, options, &made, error);
    if (status == ATTN_OK)
        *result = made;
    else
        reference_result_finish(&made);
    return status;
}

attn_status reference_forward(const attn_problem *problem, const attn_batch *batch,
                              int32_t layer_id, const attn_forward_args *args,
                              const reference_options *options, reference_result *result,
                              attn_error *error)
{
    uint64_t fpu = fpu_pin();
    attn_status status = forward(problem, batch, layer_id, args, options, result, error);
    fpu_unpin(fpu);
    return status;
}

/* ---- One row of it --------------------------------------------------------------------------- */

/* The sequence that `row` belongs to, and which of its rows that is. */
static attn_status find_row(const reference_call *call, int64_t row, reference_sequence *sequence,
                            int64_t *t, attn_error *error)
{
    for (int32_t s = 0; s < call->batch->num_seqs; s++) {
        attn_status status = reference_sequence_init(sequence, call, s, error);
        if (status != ATTN_OK)
            return status;
        *t = row - sequence->first_row;
        if (*t >= 0 && *t < sequence->num_rows && reference_row_is_real(call, sequence, *t))
            return call->index_form ? reference_check_slots(call, sequence, error) : ATTN_OK;
    }
    return host_fail(error, ATTN_INVALID_ARGUMENT, "row %lld is not in the batch", (long long)row);
}

/* `memory` has room for four vectors as long as the longer of a key and a value. */
static attn_status judge(const reference_call *call, const attn_tensor *out, int64_t row,
                         int32_t head, double *memory, reference_verdict *verdict,
                         attn_error *error)
{
    int32_t wide = call->dim > call->v_dim ? call->dim : call->v_dim;
    struct forward forward = {.call = call, .queries = memory};
    double *truth = memory + wide, *bars = truth + wide, *actual = bars + wide;
    reference_row_result result;
    struct head_result into = {truth, bars, &result};
    reference_sequence sequence;
    reference_sight sight;
    int64_t t = 0, index[] = {row, head};
    attn_status status = find_row(call, row, &sequence, &t, error);
    if (status == ATTN_OK && call->chooses)
        status = reference_chooser_init(&forward.chooser, call, &sequence, error);
    if (status == ATTN_OK)
        status = set_row_sight(&sight, &forward, &sequence, t, error);
    reference_scratch_init(&forward.scratch);
    if (status == ATTN_OK)
        status = compute_head(&forward, &sequence, &sight, t, head, &into, error);
    reference_scratch_finish(&forward.scratch);
    reference_chooser_finish(&forward.chooser);
    if (status != ATTN_OK)
        return status;
    dtype_to_double(out->dtype, reference_element(out, index, 2), call->v_dim, actual);
    for (int32_t d = 0; d < call->v_dim; d++)
        actual[d] *= call->out_scale;
    *verdict = reference_check_row(actual, truth, bars, call->v_dim, out->dtype, &result);
    return ATTN_OK;
}

static __attribute__((noinline)) attn_status
judge_row(const attn_problem *problem, const attn_batch *batch, int32_t layer_id,
          const attn_forward_args *args, const reference_options *options, int64_t row,
          int32_t head, reference_verdict *verdict, attn_error *error)
{
    reference_call call;
    attn_status status = reference_call_init(&call, problem, batch, layer_id, args, options, error);
    if (status != ATTN_OK)
        return status;
    const attn_tensor *out = attn_operand(args, ATTN_ROLE_OUT);
    const int64_t shape[] = {call.num_rows, call.group->num_q_heads, call.v_dim};
    status = reference_check_tensor(out, ATTN_ROLE_OUT, problem->out_dtype, 3, shape, error);
    if (status == ATTN_OK && (head < 0 || head >= call.group->num_q_heads))
        status = host_fail(error, ATTN_INVALID_ARGUMENT, "head %d; accepted: below %d", head,
                           call.group->num_q_heads);
    if (status != ATTN_OK)
        return status;
    double *memory =
        calloc(4 * (size_t)(call.dim > call.v_dim ? call.dim : call.v_dim), sizeof *memory);
    if (!memory)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "reference: no memory for a row");
    status = judge(&call, out, row, head, memory, verdict, error);
    free(memory);
    return status;
}

attn_status reference_judge_row(const attn_problem *problem, const attn_batch *batch,
                                int32_t layer_id, const attn_forward_args *args,
                                const reference_options *options, int64_t row, int32_t head,
                                reference_verdict *verdict, attn_error *error)
{
    uint64_t fpu = fpu_pin();
    attn_status status =
        judge_row(problem, batch, layer_id, args, options, row, head, verdict, error);
    fpu_unpin(fpu);
    return status;
}
