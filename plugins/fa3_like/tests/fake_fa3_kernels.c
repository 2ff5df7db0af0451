/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_fa3_kernels.c: the fake CUDA driver with fa3_like's kernels in it, as host functions, so
 * that all of the plugin but its device code is judged without a GPU: what it plans, the tensor
 * maps, the launches, by what comes of them.
 *
 * The plan and the rows are the plugin's own sources (plan.cuh, rows.cuh), which are C as well; the
 * forward kernel is what kernels/params.h says of it, in fp64, each vector fetched through its
 * tensor map.
 */
#include "tests/fixtures/fake_cuda_look_up.h"

#include "attn_types.h"
#include "host/base/dtype.h"
#include "plugins/fa3_like/kernels/gather.cuh"
#include "plugins/fa3_like/kernels/join.cuh"
#include "plugins/fa3_like/kernels/params.h"
#include "plugins/fa3_like/kernels/rows.cuh"
#include "plugins/fa3_like/kernels/shapes.h"

#include <limits.h>
#include <math.h>

enum { MAX_DIM = 512 };

/* Of `bytes` bytes. */
static void *place(const void *address, size_t bytes)
{
    return look_up(address, bytes);
}

static void *place_number(uint64_t address)
{
    return address ? fake.access((cuda_pointer)address, 1) : NULL;
}

/* ---- The plan -------------------------------------------------------------------------------- */

/* Tiles in no order: a forward must not depend on it. */
static void plan_batch(const struct fake_cuda_launch *launch)
{
    const fa3_plan_call *p = launch->arguments[0];
    const int *rows = plan_new_rows(&p->batch);
    int seqs = p->batch.num_seqs, num_tiles = 0, num_slow = 0;
    int first = rows ? index_int(rows, 0) : 0, end = rows ? index_int(rows, seqs) : seqs;
    for (int s = 0; p->given.keys && s < seqs; s++)
        plan_find_given(p, s);
    for (int s = 0; s < seqs; s++)
        *PORTABLE_AT(p->marks + s) = 0;
    for (int row = first; p->batch.out_cache_loc && !p->only_new && row < end; row++)
        plan_mark_row(p, row);
    for (int s = 0; s < seqs; s++) {
        if (plan_is_slow(p, s))
            *PORTABLE_AT(p->slow + num_slow++) = s;
        for (int tile = 0; tile < plan_count_tiles(p, s); tile++) {
            int bucket = plan_find_bucket(p, s, tile);
            if (bucket < 0 || bucket >= FA3_PLAN_BUCKETS)
                return;
            plan_store_tile(p, num_tiles++, s, tile);
        }
    }
    plan_store(p, num_tiles, num_slow);
    fa3_plan *plan = PORTABLE_AT(p->plan);
    plan->rest[0] = INT_MAX;
    plan->rest[1] = 0;
    for (int s = 0; s < seqs; s++)
        plan_add_rest(p, s, &plan->rest[0], &plan->rest[1]);
    for (int s = 0, ahead = 0; p->ahead_first && s <= seqs; s++) {
        *PORTABLE_AT(p->ahead_first + s) = ahead;
        ahead += s < seqs ? plan_count_ahead(p, s) : 0;
    }
}

/* ---- One row --------------------------------------------------------------------------------- */

/* Softmax over scores as they come. */
struct sums {
    double top, sum, values[MAX_DIM];
    int dim_v;
};

static void sums_begin(struct sums *x, int dim_v, const float *sink)
{
    *x =
        (struct sums){.top = sink ? (double)*sink : -INFINITY, .sum = sink ? 1 : 0, .dim_v = dim_v};
}

/* Makes room for a score, and returns its weight: none if it is -inf. */
static double sums_weigh(struct sums *x, double score)
{
    if (score == -(double)INFINITY)
        return 0;
    double top = fmax(x->top, score), weight = exp(score - top);
    double shrink = x->top == -(double)INFINITY ? 0 : exp(x->top - top);
    x->sum = x->sum * shrink + weight;
    for (int d = 0; d < x->dim_v; d++)
        x->values[d] *= shrink;
    x->top = top;
    return weight;
}

static void sums_add(struct sums *x, double score, attn_dtype dtype, const void *value)
{
    double weight = sums_weigh(x, score);
    if (score == -(double)INFINITY) /* its value may be NaN (MEAN-14) */
        return;
    for (int d = 0; d < x->dim_v; d++)
        x->values[d] += weight * dtype_load(dtype, value, d);
}

static void sums_store(const struct sums *x, attn_dtype dtype, void *out, float *lse)
{
    for (int d = 0; d < x->dim_v; d++)
        dtype_store(dtype, out, d, x->sum == 0 ? 0 : x->values[d] / x->sum);
    if (lse)
        *lse = x->sum == 0 ? -INFINITY : (float)(x->top + log(x->sum));
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static void copy_vector(const char *from, char *to, int dim)
{
    memcpy(place(to, 2 * (size_t)dim), place(from, 2 * (size_t)dim), 2 * (size_t)dim);
}

static void save_codes(const fa3_rows_call *p, i64 row, int sequence, int head, i64 page, i64 at)
{
    const call_operands *o = &p->operands;
    const row_scales s = row_find_scales(p, sequence, head);
    row_save_code(p, (const char *)o->k + row * o->k_row + head * o->k_head,
                  (char *)o->k_cache + page * o->k_page + at * o->k_token + head * o->k_cache_head,
                  p->dim, s.k, s.k_cache, 0, 1);
    row_save_code(p, (const char *)o->v + row * o->v_row + head * o->v_head,
                  (char *)o->v_cache + page * o->v_page + at * o->v_token + head * o->v_cache_head,
                  p->dim_v, s.v, s.v_cache, 0, 1);
}

static void save(const fa3_rows_call *p)
{
    const call_operands *o = &p->operands;
    const int *rows = plan_new_rows(&p->batch);
    int seqs = index_num_seqs(&p->batch);
    int first = rows ? index_int(rows, 0) : 0, end = rows ? index_int(rows, seqs) : seqs;
    if (p->saves_rest) {
        first = PORTABLE_AT(p->plan)->rest[0];
        end = PORTABLE_AT(p->plan)->rest[1];
    }
    for (i64 row = first; row < end; row++) {
        i64 slot = *PORTABLE_AT(p->batch.out_cache_loc + row);
        i64 page = slot / p->page_size, at = slot % p->page_size;
        for (int head = 0; head < p->heads_q / p->heads_per_kv && slot >= 0; head++) {
            if (p->has_codes) {
                save_codes(p, row, work_find_row(rows, seqs, (int)row), head, page, at);
                continue;
            }
            copy_vector((const char *)o->k + row * o->k_row + head * o->k_head,
                        (char *)o->k_cache + page * o->k_page + at * o->k_token +
                            head * o->k_cache_head,
                        p->dim);
            copy_vector((const char *)o->v + row * o->v_row + head * o->v_head,
                        (char *)o->v_cache + page * o->v_page + at * o->v_token +
                            head * o->v_cache_head,
                        p->dim_v);
        }
    }
}

static void attend_slow_row(const fa3_rows_call *p, const index_sequence *q, int sequence, int t,
                            int head)
{
    i64 row = (i64)q->first_row + t;
    attn_dtype dtype = p->out_dtype == ELEMENT_F32   ? ATTN_F32
                       : p->out_dtype == ELEMENT_F16 ? ATTN_F16
                                                     : ATTN_BF16;
    int kv_head = head / p->heads_per_kv, low, high;
    const row_scales scales = row_find_scales(p, sequence, kv_head);
    struct sums x;
    float lse;
    sums_begin(&x, p->dim_v, p->operands.sinks ? PORTABLE_AT(p->operands.sinks + head) : NULL);
    row_find_keys(p, q, t, &low, &high);
    for (int j = low; j < high; j++) {
        index_place at = row_find_key(p, q, kv_head, j);
        int is_new = j >= q->first_new;
        double weight =
            sums_weigh(&x, (double)row_score(p, &scales, row_query(p, row, head), at.k, is_new));
        for (int d = 0; d < p->dim_v; d++)
            x.values[d] +=
                weight * (double)row_element(p, is_new, at.v, d, scales.v, scales.v_cache);
    }
    sums_store(&x, dtype, place(row_out(p, row, head), attn_dtype_size(dtype) * (size_t)p->dim_v),
               &lse);
    row_store_lse(p, row, head, lse);
}

static void rows(const struct fake_cuda_launch *launch)
{
    const fa3_rows_call *p = launch->arguments[0];
    i64 first, end;
    if (p->operands.save)
        save(p);
    for (int head = 0; p->cache_scales && head < p->heads_q / p->heads_per_kv; head++) {
        *PORTABLE_AT(p->cache_scales + head) = cache_k_scale(&p->operands, p->scale_stride, head);
        *PORTABLE_AT(p->cache_scales + p->heads_q / p->heads_per_kv + head) =
            cache_v_scale(&p->operands, p->scale_stride, head);
    }
    rows_find_padding(p, &first, &end);
    for (i64 row = first; row < end; row++)
        for (int head = 0; head < p->heads_q; head++)
            row_clear(p, row, head, 0, 1);
    int count = p->all_slow ? index_num_seqs(&p->batch) : PORTABLE_AT(p->plan)->slow_count;
    for (int n = 0; n < count; n++) {
        index_sequence q;
        int s = p->all_slow ? n : index_int(p->slow, n);
        index_find_sequence(&p->batch, p->operands.k != NULL, s, &q);
        for (int t = 0; t < q.q_len; t++)
            for (int head = 0; head < p->heads_q; head++)
                attend_slow_row(p, &q, s, t, head);
    }
}

/* ---- Codes ----------------------------------------------------------------------------------- */

static void store_scales(const struct fake_cuda_launch *launch)
{
    const fa3_scales_call *p = launch->arguments[0];
    for (int i = 0; i < p->count; i++)
        *PORTABLE_AT(p->to + i) = p->values[i];
}

static void widen(const struct fake_cuda_launch *launch)
{
    const fa3_widen_call *p = launch->arguments[0];
    const int *rows = widen_new_rows(p);
    int seqs = index_num_seqs(&p->batch), kv_heads = p->heads_q / p->heads_per_kv;
    i64 first, end;
    widen_find_rows(p, p->batch.q_indptr, &first, &end);
    for (i64 row = first; row < end; row++)
        for (int head = 0; head < p->heads_q; head++)
            for (int d = 0; d < p->dim; d++)
                widen_query(p, work_find_row(p->batch.q_indptr, seqs, (int)row), row, head, d);
    widen_find_rows(p, rows, &first, &end);
    for (i64 row = first; p->k && row < end; row++)
        for (int head = 0; head < kv_heads; head++) {
            int s = work_find_row(rows, seqs, (int)row);
            for (int d = 0; d < p->dim; d++)
                widen_key(p, s, row, head, d);
            for (int d = 0; d < p->dim_v; d++)
                widen_value(p, s, row, head, d);
        }
}

/* Turned values, as forward_codes() below reads them: column after column of a tile, 128 keys each;
 * after the sequence's end zeros. How they lie among each other is the device's matter. */
enum { TURNED = 128 };

static void turn_values(const struct fake_cuda_launch *launch)
{
    const struct fa3_turn_params *p = launch->arguments[0];
    const int *lengths = place_number(p->k_lengths), *table = place_number(p->block_table);
    const int *starts = place_number(p->turned_first);
    const int *seqs = place_number(p->seqs);
    for (unsigned s = 0; s < launch->grid[2] && (!seqs || (int)s < *seqs); s++)
        for (unsigned head = 0; head < launch->grid[1]; head++)
            for (unsigned j = 0; j < launch->grid[0] * TURNED; j++) {
                if ((int)(j / TURNED * TURNED) >= lengths[s])
                    break;
                int page = (int)j < lengths[s]
                               ? table[s * p->table_stride + j / (unsigned)p->page_size]
                               : 0;
                uint64_t from = p->v + (uint64_t)(page * p->v_outer + head * p->v_head +
                                                  j % (unsigned)p->page_size * p->v_token);
                uint64_t tile = (uint64_t)starts[s] + j / TURNED;
                uint8_t *to =
                    place_number(p->turned + (tile * launch->grid[1] + head) * (TURNED * TURNED));
                for (unsigned d = 0; d < TURNED; d++)
                    to[d * TURNED + j % TURNED] =
                        (int)j < lengths[s] ? *(uint8_t *)place_number(from + d) : 0;
            }
}

/* ---- Gathered keys --------------------------------------------------------------------------- */

static void gather_cached(const fa3_gather_call *p, int row, int head)
{
    const gather_row r = gather_find_cached(p, row, head);
    i64 at = r.row * p->heads + head;
    for (int d = 0; r.row >= 0 && d < p->dim; d++)
        *PORTABLE_AT(p->k + at * p->dim + d) = gather_cached_element(p, r.k, d);
    for (int d = 0; r.row >= 0 && d < p->dim_v; d++)
        *PORTABLE_AT(p->v + at * p->dim_v + d) = gather_cached_element(p, r.v, d);
}

/* A new key, or a value: where it is saved, and where tiles read it. */
static void gather_new(const fa3_gather_call *p, const char *from, int dim, float scale,
                       char *cache, unsigned short *to)
{
    for (int d = 0; d < dim; d++) {
        if (cache && element_is_fp8(p->kv_dtype))
            *PORTABLE_AT((u8 *)cache + d) =
                code_of_new(p->new_dtype, from, d, 1.0f, p->kv_dtype, scale);
        else if (cache)
            *PORTABLE_AT((any16 *)(void *)cache + d) =
                *PORTABLE_AT((const any16 *)(const void *)from + d);
        if (to)
            *PORTABLE_AT(to + d) = gather_new_element(p, from, d, scale);
    }
}

static void gather(const struct fake_cuda_launch *launch)
{
    const fa3_gather_call *p = launch->arguments[0];
    int has_codes = element_is_fp8(p->kv_dtype);
    int rows = int_min(index_int(p->first, index_num_seqs(&p->batch)), p->most_rows);
    i64 first, end;
    for (int row = 0; row < rows; row++)
        for (int head = 0; head < p->heads; head++)
            gather_cached(p, row, head);
    gather_find_new_rows(p, &first, &end);
    for (i64 row = first; row < end; row++)
        for (int head = 0; head < p->heads; head++) {
            const gather_row r = gather_find_new(p, row, head);
            i64 at = r.row * p->heads + head;
            gather_new(p, r.k, p->dim,
                       has_codes ? cache_k_scale(&p->operands, p->scale_stride, head) : 1.0f,
                       r.k_cache, r.row < 0 ? NULL : p->k + at * p->dim);
            gather_new(p, r.v, p->dim_v,
                       has_codes ? cache_v_scale(&p->operands, p->scale_stride, head) : 1.0f,
                       r.v_cache, r.row < 0 ? NULL : p->v + at * p->dim_v);
        }
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

/* A tile of the forward kernel, and its launch. */
struct work {
    const struct fa3_forward_params *p;
    const struct fa3_codes_params *codes; /* NULL: not of codes */
    const fa3_tile *tile;
    attn_dtype dtype; /* of q, k, v */
    attn_dtype out_dtype;
    int number, head, sequence; /* tile of the sequence */
    int q_start, queries, keys;
    int is_new;                    /* the keys are the rows of the queries */
    int split, first_key, end_key; /* those of this part */
};

/* A vector of `dim` elements by its coordinates; what is beyond the map is zero. */
static void fetch(const struct work *w, const struct fa3_tensor_map *given, int row, int head,
                  int outer, int dim, uint16_t *to)
{
    struct fake_cuda_tensor_map map;
    size_t size = (size_t)dim * (w->codes ? 1 : 2);
    memcpy(&map, given, sizeof map);
    memset(to, 0, size);
    if (strcmp(map.magic, FAKE_CUDA_TENSOR_MAP) != 0 || map.shape[0] != (uint64_t)dim) {
        memset(to, 0xff, size); /* NaN: the map is none of this tile */
        return;
    }
    if (row < 0 || head < 0 || outer < 0 || (uint64_t)row >= map.shape[1] ||
        (uint64_t)head >= map.shape[2] || (uint64_t)outer >= map.shape[3])
        return;
    cuda_pointer at = map.address + (uint64_t)row * map.strides[0] +
                      (uint64_t)head * map.strides[1] + (uint64_t)outer * map.strides[2];
    const void *from = fake.access(at, size);
    if (from)
        memcpy(to, from, size);
}

static void fetch_turned(const struct work *w, int sequence, int j, uint8_t *to)
{
    const struct fa3_codes_params *c = w->codes;
    const int *first = place_number(c->turned_first);
    uint64_t heads = (uint64_t)(w->p->heads_q / w->p->heads_per_kv);
    uint64_t tile = (uint64_t)(first[sequence] + j / TURNED) * heads;
    tile += (uint64_t)(w->head / w->p->heads_per_kv);
    const uint8_t *from = place_number(c->turned + tile * (TURNED * TURNED));
    for (int d = 0; d < w->tile->dim_v; d++)
        to[d] = from[d * TURNED + j % TURNED];
}

static double scale_at(const struct work *w, const struct fa3_scale *scale)
{
    const float *at = place_number(scale->at);
    return (double)at[w->sequence * scale->sequence + w->head / w->p->heads_per_kv * scale->head];
}

static void fetch_key(const struct work *w, int values, int j, uint16_t *to)
{
    const struct fa3_forward_params *p = w->p;
    const int *table = place_number(p->block_table), *starts = place_number(p->k_starts);
    int outer = w->sequence, head = w->head / p->heads_per_kv, key = j;
    if (w->is_new) {
        fetch(w, values ? &p->v_new : &p->k_new, w->q_start + j, head, 0,
              values ? w->tile->dim_v : w->tile->dim, to);
        return;
    }
    if (table) {
        outer = table[w->sequence * p->table_stride + j / p->page_size];
        j %= p->page_size;
    } else if (starts) {
        j += starts[w->sequence];
        outer = 0;
    }
    if (w->codes && values) {
        fetch_turned(w, w->sequence, key, (uint8_t *)to);
        return;
    }
    fetch(w, values ? &p->v : &p->k, j, head, outer, values ? w->tile->dim_v : w->tile->dim, to);
}

/* A new key, or its value, into its slot. */
static void save_new(const struct work *w, int values, int t)
{
    const struct fa3_save *save = values ? &w->p->v_save : &w->p->k_save;
    int64_t row = w->q_start + t, slot = ((const int64_t *)place_number(w->p->slots))[row];
    int64_t page = slot / save->page_size, at = slot % save->page_size;
    int64_t head = w->head / w->p->heads_per_kv;
    if (slot < 0)
        return;
    uint64_t from = save->from + 16 * (uint64_t)(row * save->from_row + head * save->from_head);
    uint64_t to =
        save->to + 16 * (uint64_t)(page * save->page + at * save->token + head * save->head);
    memcpy(place_number(to), place_number(from),
           2 * (size_t)(values ? w->tile->dim_v : w->tile->dim));
}

/* Of gathered keys, or of their values. */
static double kv_scale(const struct work *w, int of_values)
{
    const float *scales = place_number(w->p->kv_scales);
    int heads = w->p->heads_q / w->p->heads_per_kv;
    return scales ? (double)scales[of_values * heads + w->head / w->p->heads_per_kv] : 1.0;
}

static double score_of(const struct work *w, const uint16_t *q, const uint16_t *k)
{
    const struct fa3_forward_params *p = w->p;
    const double ln2 = 0.693147180559945309;
    double sum = 0;
    for (int d = 0; d < w->tile->dim; d++)
        sum += dtype_load(w->dtype, q, d) * dtype_load(w->dtype, k, d);
    if (w->codes)
        sum *= scale_at(w, &w->codes->q_scale) * scale_at(w, &w->codes->k_scale);
    sum *= kv_scale(w, 0);
    if (p->score_cap != 0)
        sum = tanh(sum * (double)p->score_cap);
    return sum * (double)p->score_log2 * ln2;
}

static void attend_tile_row(const struct work *w, int t)
{
    const struct fa3_forward_params *p = w->p;
    const float *sinks = place_number(p->sinks);
    const int *positions = place_number(p->positions);
    int position = (positions ? positions[w->sequence] : w->keys - w->queries) + t;
    uint16_t q[MAX_DIM], k[MAX_DIM], v[MAX_DIM];
    struct sums x;
    sums_begin(&x, w->tile->dim_v, sinks ? sinks + w->head : NULL);
    fetch(w, &p->q, w->q_start + t, w->head, p->q_starts ? 0 : w->sequence, w->tile->dim, q);
    for (int j = w->first_key; j < int_min(w->keys, w->end_key); j++) {
        if (j < position - p->window_left || j > position + p->window_right ||
            (p->chunk > 0 && j / p->chunk != position / p->chunk))
            continue;
        fetch_key(w, 0, j, k);
        fetch_key(w, 1, j, v);
        sums_add(&x, score_of(w, q, k), w->dtype, v);
    }
    char *out = place_number(p->out);
    float *lse = place_number(p->lse);
    const int *starts = place_number(p->q_starts);
    int64_t batch = starts ? 0 : w->sequence, row = w->q_start + t;
    if (p->splits > 1 && starts)
        row -= starts[0];
    out += (row * p->out_token + w->head * p->out_head + batch * p->out_batch +
            w->split * p->out_split) *
           (p->out_f32 ? 4 : 2);
    if (lse)
        lse += row * p->lse_token + w->head * p->lse_head + batch * p->lse_batch +
               w->split * p->lse_split;
    for (int d = 0; d < x.dim_v; d++)
        x.values[d] *= w->codes ? scale_at(w, &w->codes->v_scale) : kv_scale(w, 1);
    sums_store(&x, p->out_f32 ? ATTN_F32 : w->out_dtype, out, lse);
}

/* The keys of a part: its share of the tiles of keys that the tile of queries sees. */
static void find_part(struct work *w, int first, int end)
{
    const struct fa3_forward_params *p = w->p;
    int size = w->tile->keys, splits = p->splits > 1 ? p->splits : 1;
    const int *positions = place_number(p->positions);
    int position = positions ? positions[w->sequence] : w->keys - w->queries;
    int low = int_max(position + first - p->window_left, 0) / size;
    int high = (int_min(w->keys, position + end + p->window_right) + size - 1) / size;
    high = int_max(high, low);
    w->first_key = (low + (high - low) * w->split / splits) * size;
    w->end_key = (low + (high - low) * (w->split + 1) / splits) * size;
    if (splits == 1) {
        w->first_key = 0;
        w->end_key = w->keys;
    }
}

static void attend_tile(struct work *w)
{
    const struct fa3_forward_params *p = w->p;
    const int *starts = place_number(p->q_starts), *k_starts = place_number(p->k_starts);
    const int *lengths = place_number(p->k_lengths);
    int s = w->sequence, first = w->number * w->tile->queries;
    w->q_start = starts ? starts[s] : 0;
    w->queries = starts ? starts[s + 1] - starts[s] : p->q_length;
    w->keys = lengths ? lengths[s] : k_starts ? k_starts[s + 1] - k_starts[s] : p->k_length;
    w->is_new = p->has_new && w->keys == w->queries;
    find_part(w, first, int_min(first + w->tile->queries, w->queries));
    for (int t = first; t < first + w->tile->queries && t < w->queries; t++) {
        attend_tile_row(w, t);
        if (w->is_new && w->split == 0 && w->head % p->heads_per_kv == 0 && p->slots)
            for (int values = 0; values < 2; values++)
                save_new(w, values, t);
    }
}

/* Is a box what the copy engine takes, and as many rows of a page as fit? */
static int is_box(const struct fa3_forward_params *p, const fa3_tile *tile)
{
    return p->box_rows % 8 == 0 && p->box_rows <= 256 && tile->keys % p->box_rows == 0 &&
           (!p->block_table || p->page_size % p->box_rows == 0);
}

static void forward(const struct fake_cuda_launch *launch, const fa3_tile *tile, int has_codes,
                    attn_dtype dtype)
{
    struct fa3_codes_params all;
    memcpy(&all, launch->arguments[0], has_codes ? sizeof all : sizeof all.forward);
    const struct fa3_forward_params p = all.forward;
    const uint32_t *counter = place_number(p.counter);
    const struct fa3_entry *tiles = place_number(p.tiles);
    const int *count = place_number(p.tile_count);
    if (!is_box(&p, tile) || !counter || counter[0] || counter[1] ||
        launch->block[0] != tile->threads || launch->shared_bytes != tile->shared)
        return;
    for (int n = 0; n < (tiles ? *count : p.batch * p.q_tiles); n++)
        for (int head = 0; head < p.heads_q; head++) {
            struct work w = {.p = &p,
                             .codes = has_codes ? &all : NULL,
                             .tile = tile,
                             .dtype = has_codes ? ATTN_FP8_E4M3 : dtype,
                             .out_dtype = dtype,
                             .head = head};
            w.sequence = tiles ? tiles[n].sequence : n / p.q_tiles;
            w.number = tiles ? tiles[n].tile : n % p.q_tiles;
            for (w.split = 0; w.split < (p.splits > 1 ? p.splits : 1); w.split++)
                attend_tile(&w);
        }
}

static void join(const struct fake_cuda_launch *launch)
{
    const fa3_join_call *p = launch->arguments[0];
    i64 all = (i64)p->rows * p->heads_q * p->dim_v;
    for (int index = 0; index < p->rows * p->heads_q; index++) {
        const join_row r = join_find(p, index);
        char *out =
            (char *)p->operands.out + r.row * p->operands.out_row + r.head * p->operands.out_head;
        for (int d = 0; r.row >= 0 && d < p->dim_v; d++) {
            float sum = 0.0f;
            for (int n = 0; n < p->splits; n++)
                sum += *PORTABLE_AT(p->values + n * all + r.part * p->dim_v + d) * r.share[n];
            element_store(p->out_dtype, out, d, sum);
        }
        if (r.row >= 0 && p->operands.lse)
            *PORTABLE_AT((float *)(void *)((char *)p->operands.lse + r.row * p->operands.lse_row +
                                           r.head * p->operands.lse_head)) = r.lse;
    }
}

#define ALL_TILES(codes, name, ...)                                                                \
    static const fa3_tile name##_tile = FA3_TILE(name, __VA_ARGS__);                               \
    static void forward_##name##_bf16(const struct fake_cuda_launch *launch)                       \
    {                                                                                              \
        forward(launch, &name##_tile, codes, ATTN_BF16);                                           \
    }                                                                                              \
    static void forward_##name##_f16(const struct fake_cuda_launch *launch)                        \
    {                                                                                              \
        forward(launch, &name##_tile, codes, ATTN_F16);                                            \
    }
#define TILE(...) ALL_TILES(0, __VA_ARGS__)
FA3_SHAPES(TILE)
#undef TILE
#define TILE(...) ALL_TILES(1, __VA_ARGS__)
FA3_CODES_SHAPES(TILE)
#undef TILE

/* ---- Definition ------------------------------------------------------------------------------ */

__attribute__((constructor)) static void define(void)
{
    static const size_t plan_size[] = {sizeof(fa3_plan_call)},
                        rows_size[] = {sizeof(fa3_rows_call)};
    static const size_t forward_size[] = {sizeof(struct fa3_forward_params)};
    static const size_t codes_size[] = {sizeof(struct fa3_codes_params)};
    static const size_t scales_size[] = {sizeof(fa3_scales_call)};
    static const size_t widen_size[] = {sizeof(fa3_widen_call)};
    static const size_t turn_size[] = {sizeof(struct fa3_turn_params)};
    static const size_t gather_size[] = {sizeof(fa3_gather_call)};
    static const size_t join_size[] = {sizeof(fa3_join_call)};
    if (fake_cuda_load("fake_cuda.so", &fake) != 0)
        return;
    fake.define_kernel("fa3_plan_batch", plan_batch, plan_size, 1, NULL);
    fake.define_kernel("fa3_rows", rows, rows_size, 1, NULL);
    fake.define_kernel("fa3_store_scales", store_scales, scales_size, 1, NULL);
    fake.define_kernel("fa3_widen", widen, widen_size, 1, NULL);
    fake.define_kernel("fa3_turn_values", turn_values, turn_size, 1, NULL);
    fake.define_kernel("fa3_gather", gather, gather_size, 1, NULL);
    fake.define_kernel("fa3_join", join, join_size, 1, NULL);
#define DEFINE_ALL(size, name)                                                                     \
    fake.define_kernel("fa3_forward_" #name "_bf16", forward_##name##_bf16, size, 1, NULL);        \
    fake.define_kernel("fa3_forward_" #name "_f16", forward_##name##_f16, size, 1, NULL);
#define DEFINE(name, ...) DEFINE_ALL(forward_size, name)
    FA3_SHAPES(DEFINE)
#undef DEFINE
#define DEFINE(name, ...) DEFINE_ALL(codes_size, name)
    FA3_CODES_SHAPES(DEFINE)
#undef DEFINE
}
