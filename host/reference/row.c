/* SPDX-License-Identifier: Apache-2.0
 *
 * row.c: rows, exactly: scores of the keys that are seen, their softmax, the sum of their values.
 * The sums for the bars are made in the same two passes.
 *
 * Rows that share keys and values are computed side by side, a block of keys at a time, so that
 * these are made once and are near when they are worked on. Each row's own operations are in the
 * order that they have if it is alone: increasing keys. */
#include "host/reference/row.h"

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/fpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Keys and values in arrays --------------------------------------------------------------- */

static void read_arrays(void *ctx, int64_t j, double *key, double *value)
{
    const reference_kv_arrays *arrays = ctx;
    if (key)
        memcpy(key, arrays->keys + j * arrays->key_stride,
               (size_t)arrays->head_dim * sizeof(double));
    if (value)
        memcpy(value, arrays->values + j * arrays->value_stride,
               (size_t)arrays->v_head_dim * sizeof(double));
}

reference_kv reference_kv_array(reference_kv_arrays *arrays)
{
    return (reference_kv){.read = read_arrays, .ctx = arrays};
}

/* ---- Scratch --------------------------------------------------------------------------------- */

void reference_scratch_init(reference_scratch *scratch)
{
    scratch->memory = NULL;
    scratch->size = 0;
}

void reference_scratch_finish(reference_scratch *scratch)
{
    free(scratch->memory);
    reference_scratch_init(scratch);
}

/* A row on its way; its arrays are in the scratch. */
struct line {
    const reference_row *row;
    reference_row_to *to;
    int64_t first, end; /* the keys that it may see, */
    int all;            /* which are all seen */
    int64_t num_seen;
    int64_t num_added;
    double *scores;  /* [num_seen] */
    double *sizes;   /* [num_seen] of their terms */
    double *weights; /* [num_seen] where that of the largest score is 1 */
    double *sums;    /* [ROW_NUM_SUMS][padded] */
    double largest;  /* score, the sink's included */
    double sum;      /* of weights, the sink's included */
    int is_lost;     /* all scores are -inf: values count for nothing, NaN included (MEAN-14) */
    rounding_model model;
    rounding_sums rounding;
};

/* Keys or values that some row sees. */
struct block {
    int32_t count;
    int64_t at[ROW_BLOCK]; /* which they are */
    double *vectors;       /* keys [ROW_BLOCK][head_dim], values [padded / ROW_LANES][ROW_BLOCK] */
                           /* [ROW_LANES] */
};

/* The rows of a call, and what they share. */
struct work {
    const row_kernels *kernels;
    const reference_kv *kv;
    int32_t num_lines;
    struct line *lines;
    int32_t dim, v_dim, padded; /* zeros follow a value up to `padded` */
    int64_t first, end;         /* the keys that some row may see */
    double *queries;            /* [rows / kernels.rows] as row_kernels.dot wants them */
    double *dots;               /* [ROW_BLOCK / ROW_TILE] of row_kernels.dot */
    double *value;              /* [padded] */
    struct block block;
};

/* ---- Laying out ------------------------------------------------------------------------------ */

static double *take(double **next, int64_t count)
{
    double *taken = *next;
    *next += count;
    return taken;
}

static int64_t fours_of(const struct work *work)
{
    return work->dim / ROW_SUMS;
}

/* Doubles of the queries of kernels.rows rows, of the sums of a tile. */
static int64_t query_size(const struct work *work)
{
    return fours_of(work) * work->kernels->rows * ROW_SUMS;
}

static int64_t tile_size(const struct work *work)
{
    return 2 * (int64_t)ROW_TILE * work->kernels->rows * ROW_SUMS;
}

static int64_t num_groups(const struct work *work)
{
    return (work->num_lines + work->kernels->rows - 1) / work->kernels->rows;
}

/* Doubles of a call. */
static int64_t count_doubles(const struct work *work, const reference_row *rows)
{
    int64_t wide = work->dim > work->padded ? work->dim : work->padded, count = 0;
    for (int32_t l = 0; l < work->num_lines; l++) {
        int64_t first, end;
        reference_sight_range(&rows[l].sight, rows[l].kv_len, &first, &end);
        count += 3 * (end - first) + ROW_NUM_SUMS * (int64_t)work->padded;
    }
    return count + num_groups(work) * query_size(work) + ROW_BLOCK / ROW_TILE * tile_size(work) +
           work->padded + ROW_BLOCK * wide;
}

static void begin_line(struct work *work, const reference_row *row, reference_row_to *to,
                       struct line *line, double **next)
{
    *line = (struct line){.row = row, .to = to};
    line->all = reference_sight_range(&row->sight, row->kv_len, &line->first, &line->end);
    line->scores = take(next, line->end - line->first);
    line->sizes = take(next, line->end - line->first);
    line->weights = take(next, line->end - line->first);
    line->sums = take(next, ROW_NUM_SUMS * (int64_t)work->padded);
    memset(line->sums, 0, ROW_NUM_SUMS * (size_t)work->padded * sizeof(double));
    if (line->first < line->end) {
        work->first = line->first < work->first ? line->first : work->first;
        work->end = line->end > work->end ? line->end : work->end;
    }
}

/* Queries of kernels.rows rows next to each other, four elements at a time. */
static void lay_out_queries(struct work *work)
{
    int32_t together = work->kernels->rows;
    memset(work->queries, 0, (size_t)(num_groups(work) * query_size(work)) * sizeof *work->queries);
    for (int32_t l = 0; l < work->num_lines; l++) {
        double *to = work->queries + l / together * query_size(work) + l % together * ROW_SUMS;
        for (int64_t i = 0; i < fours_of(work); i++)
            memcpy(to + i * together * ROW_SUMS, work->lines[l].row->query + i * ROW_SUMS,
                   ROW_SUMS * sizeof *to);
    }
}

static attn_status lay_out(struct work *work, const reference_row *rows, reference_row_to *to,
                           reference_scratch *scratch, attn_error *error)
{
    size_t lines = (size_t)work->num_lines * sizeof *work->lines;
    size_t size = lines + (size_t)count_doubles(work, rows) * sizeof(double);
    if (size > scratch->size) {
        void *memory = realloc(scratch->memory, size);
        if (!memory)
            return host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                             "reference: no memory for %d rows of %lld keys", work->num_lines,
                             (long long)rows->kv_len);
        scratch->memory = memory;
        scratch->size = size;
    }
    double *next = (double *)((char *)scratch->memory + lines);
    work->lines = scratch->memory;
    work->first = rows->kv_len;
    for (int32_t l = 0; l < work->num_lines; l++)
        begin_line(work, &rows[l], &to[l], &work->lines[l], &next);
    work->queries = take(&next, num_groups(work) * query_size(work));
    work->dots = take(&next, ROW_BLOCK / ROW_TILE * tile_size(work));
    work->value = take(&next, work->padded);
    work->block.vectors = next;
    memset(work->value, 0, (size_t)work->padded * sizeof *work->value);
    lay_out_queries(work);
    return ATTN_OK;
}

uint64_t reference_row_scratch(int64_t kv_len)
{
    return 3 * sizeof(double) * (uint64_t)kv_len;
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

static int sees(const struct line *line, int64_t j)
{
    return j >= line->first && j < line->end && (line->all || reference_sees(&line->row->sight, j));
}

static int is_seen(const struct work *work, int64_t j)
{
    for (int32_t l = 0; l < work->num_lines; l++)
        if (sees(&work->lines[l], j))
            return 1;
    return 0;
}

static void read_key(struct work *work, int64_t j)
{
    work->kv->read(work->kv->ctx, j, work->block.vectors + (int64_t)work->block.count * work->dim,
                   NULL);
}

static void read_value(struct work *work, int64_t j)
{
    double *to = work->block.vectors + (int64_t)work->block.count * ROW_LANES;
    work->kv->read(work->kv->ctx, j, NULL, work->value);
    for (int32_t d = 0; d < work->padded; d += ROW_LANES)
        memcpy(to + (int64_t)d * ROW_BLOCK, work->value + d, ROW_LANES * sizeof *to);
}

/* Fill the block with keys, or values, from `j` on. Returns where the next one begins. */
static int64_t fill_block(struct work *work, int64_t j, void (*read)(struct work *work, int64_t j))
{
    struct block *block = &work->block;
    for (block->count = 0; j < work->end && block->count < ROW_BLOCK; j++) {
        if (!is_seen(work, j))
            continue;
        read(work, j);
        block->at[block->count++] = j;
    }
    return j;
}

/* The next stretch [*first, *end) of the block, from *end on, of keys that the row sees; 0 = there
 * is none. */
static int next_run(const struct line *line, const struct block *block, int32_t *first,
                    int32_t *end)
{
    int32_t i = *end;
    while (i < block->count && !sees(line, block->at[i]))
        i++;
    *first = i;
    while (i < block->count && sees(line, block->at[i]))
        i++;
    *end = i;
    return *first < i;
}

/* ---- Scores ---------------------------------------------------------------------------------- */

/* Of key i of the block, whose sums are at `dots`. */
static inline void score_key(const struct work *work, struct line *line, int32_t i,
                             const double *dots)
{
    const reference_row *row = line->row;
    const double *key = work->block.vectors + (int64_t)i * work->dim;
    const double *terms = dots, *magnitudes = dots + work->kernels->rows * ROW_SUMS;
    double term = terms[0], magnitude = magnitudes[0];
    for (int64_t d = fours_of(work) * ROW_SUMS; d < work->dim; d++) {
        term += row->query[d] * key[d];
        magnitude += fabs(row->query[d] * key[d]);
    }
    double sum = (term + terms[1]) + (terms[2] + terms[3]);
    double size = (magnitude + magnitudes[1]) + (magnitudes[2] + magnitudes[3]);
    int64_t n = line->num_seen++;
    line->scores[n] = reference_score_of_sum(row, sum, work->block.at[i], &size);
    line->sizes[n] = size;
}

/* The dot products of all keys of the block with the queries of a group. */
static void multiply(struct work *work, int64_t group)
{
    const row_kernels *kernels = work->kernels;
    for (int32_t i = 0; i < work->block.count; i += ROW_TILE)
        kernels->dot(work->queries + group * query_size(work),
                     work->block.vectors + (int64_t)i * work->dim, work->dim, fours_of(work),
                     work->dots + i / ROW_TILE * tile_size(work));
}

/* Does a row of the group see keys of the block? */
static int group_sees(const struct work *work, int32_t first, int32_t end)
{
    for (int32_t l = first; l < end; l++) {
        int32_t from = 0, to = 0;
        if (next_run(&work->lines[l], &work->block, &from, &to))
            return 1;
    }
    return 0;
}

static void score_group(struct work *work, int64_t group)
{
    int32_t together = work->kernels->rows, first = (int32_t)group * together;
    int32_t end = first + together < work->num_lines ? first + together : work->num_lines;
    int64_t of_key = 2 * (int64_t)together * ROW_SUMS;
    if (!group_sees(work, first, end))
        return;
    multiply(work, group);
    for (int32_t l = first; l < end; l++) {
        const double *dots = work->dots + (l - first) * ROW_SUMS;
        for (int32_t from = 0, to = 0; next_run(&work->lines[l], &work->block, &from, &to);)
            for (int32_t i = from; i < to; i++)
                score_key(work, &work->lines[l], i, dots + i * of_key);
    }
}

/* Zeros in the last tile after the block's keys. */
static void pad_tile(struct work *work)
{
    int32_t count = work->block.count, whole = (count + ROW_TILE - 1) / ROW_TILE * ROW_TILE;
    memset(work->block.vectors + (int64_t)count * work->dim, 0,
           (size_t)(whole - count) * (size_t)work->dim * sizeof(double));
}

static void score_keys(struct work *work)
{
    for (int64_t j = work->first; j < work->end;) {
        j = fill_block(work, j, read_key);
        pad_tile(work);
        for (int64_t group = 0; group < num_groups(work); group++)
            score_group(work, group);
    }
}

/* ---- Weights --------------------------------------------------------------------------------- */

static double largest_score(const struct line *line)
{
    double largest = line->row->has_sink ? line->row->sink : -INFINITY;
    for (int64_t n = 0; n < line->num_seen; n++)
        if (line->scores[n] > largest || isnan(line->scores[n]))
            largest = line->scores[n];
    return largest;
}

/* The weights, and their sum. Scores that are all -inf weigh nothing, as if no key were seen. */
static double weigh(const struct line *line)
{
    double sum = line->row->has_sink ? exp(line->row->sink - line->largest) : 0;
    if (line->largest == -INFINITY)
        return 0;
    for (int64_t n = 0; n < line->num_seen; n++)
        sum += line->weights[n] = exp(line->scores[n] - line->largest);
    return sum;
}

static int is_lost(const struct line *line)
{
    int64_t n = 0;
    while (n < line->num_seen && isinf(line->scores[n]) && line->scores[n] < 0)
        n++;
    return n == line->num_seen;
}

static void weigh_keys(struct work *work)
{
    for (int32_t l = 0; l < work->num_lines; l++) {
        struct line *line = &work->lines[l];
        line->largest = largest_score(line);
        line->sum = weigh(line);
        line->is_lost = is_lost(line);
        line->model = rounding_model_of(line->row);
        rounding_begin(&line->rounding, line->sums, work->padded, line->largest, line->sum,
                       line->num_seen);
    }
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* The factors of the next key of a row. Returns whether it counts for the bars. */
static inline int next_factors(struct line *line, row_factors *factors)
{
    int64_t n = line->num_added++;
    factors->probability = line->sum == 0 ? 0 : line->weights[n] / line->sum;
    return line->to->bars &&
           rounding_add(&line->rounding, &line->model, line->scores[n], line->sizes[n], factors);
}

/* Values [first, end) of the block, all of which the row sees, in stretches of those that count for
 * the bars and of those that do not. */
static void add_run(struct work *work, struct line *line, int32_t first, int32_t end)
{
    row_factors factors[ROW_BLOCK];
    int counts[ROW_BLOCK + 1];
    for (int32_t i = first; i < end; i++)
        counts[i] = next_factors(line, &factors[i]);
    counts[end] = -1;
    for (int32_t i = first; i < end; first = i) {
        while (counts[i] == counts[first])
            i++;
        (counts[first] ? work->kernels->add : work->kernels->add_alone)(
            line->sums, work->padded, factors + first,
            work->block.vectors + (int64_t)first * ROW_LANES, i - first);
    }
}

static void add_values(struct work *work)
{
    for (int64_t j = work->first; j < work->end;) {
        j = fill_block(work, j, read_value);
        for (int32_t l = 0; l < work->num_lines; l++) {
            struct line *line = &work->lines[l];
            for (int32_t from = 0, to = 0;
                 !line->is_lost && next_run(line, &work->block, &from, &to);)
                add_run(work, line, from, to);
        }
    }
}

/* ---- Results --------------------------------------------------------------------------------- */

/* Values beyond the largest fp8 number, infinities included, become that number (KV-04). */
static void saturate(const reference_row *row, double *out)
{
    double most = dtype_largest(row->out_dtype) * (row->out_scale > 0 ? row->out_scale : 1);
    for (int32_t d = 0; dtype_is_fp8(row->out_dtype) && d < row->v_head_dim; d++)
        if (fabs(out[d]) > most)
            out[d] = copysign(most, out[d]);
}

static void finish_line(const struct work *work, const struct line *line)
{
    double lse = line->sum == 0 ? -INFINITY : line->largest + log(line->sum);
    reference_row_to *to = line->to;
    memcpy(to->out, line->sums + ROW_OUT * (int64_t)work->padded,
           (size_t)work->v_dim * sizeof *to->out);
    to->result = (reference_row_result){.lse = lse, .num_seen = line->num_seen};
    if (to->bars)
        to->result.lse_bar =
            rounding_bars(&line->rounding, &line->model, line->row, to->out, lse, to->bars);
    saturate(line->row, to->out);
}

reference_row reference_row_of(const attn_layer_group *group)
{
    return (reference_row){.sm_scale = (double)group->sm_scale,
                           .logit_cap = (double)group->logit_cap,
                           .sight = reference_sight_all()};
}

static attn_status check_rows(const reference_row *rows, int32_t count, attn_error *error)
{
    if (rows->head_dim < 1 || rows->v_head_dim < 1 || rows->kv_len < 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "reference: head_dim %d, v_head_dim %d, kv_len %lld: accepted 1.., 1.., "
                         "0..",
                         rows->head_dim, rows->v_head_dim, (long long)rows->kv_len);
    for (int32_t r = 1; r < count; r++)
        if (rows[r].head_dim != rows->head_dim || rows[r].v_head_dim != rows->v_head_dim ||
            rows[r].kv_len != rows->kv_len)
            return host_fail(error, ATTN_INVALID_ARGUMENT,
                             "reference: row %d: head_dim %d, v_head_dim %d, kv_len %lld: accepted "
                             "those of row 0: %d, %d, %lld",
                             r, rows[r].head_dim, rows[r].v_head_dim, (long long)rows[r].kv_len,
                             rows->head_dim, rows->v_head_dim, (long long)rows->kv_len);
    return ATTN_OK;
}

static __attribute__((noinline)) attn_status compute_rows(struct work *work,
                                                          const reference_row *rows,
                                                          reference_scratch *scratch,
                                                          reference_row_to *to, attn_error *error)
{
    attn_status status = lay_out(work, rows, to, scratch, error);
    if (status != ATTN_OK)
        return status;
    score_keys(work);
    weigh_keys(work);
    add_values(work);
    for (int32_t l = 0; l < work->num_lines; l++)
        finish_line(work, &work->lines[l]);
    return ATTN_OK;
}

attn_status reference_rows_compute_by(const row_kernels *kernels, const reference_row *rows,
                                      int32_t count, const reference_kv *kv,
                                      reference_scratch *scratch, reference_row_to *to,
                                      attn_error *error)
{
    if (count < 1)
        return ATTN_OK;
    attn_status status = check_rows(rows, count, error);
    if (status != ATTN_OK)
        return status;
    struct work work = {.kernels = kernels,
                        .kv = kv,
                        .num_lines = count,
                        .dim = rows->head_dim,
                        .v_dim = rows->v_head_dim,
                        .padded = (rows->v_head_dim + ROW_LANES - 1) / ROW_LANES * ROW_LANES};
    uint64_t fpu = fpu_pin();
    status = compute_rows(&work, rows, scratch, to, error);
    fpu_unpin(fpu);
    return status;
}

attn_status reference_rows_compute(const reference_row *rows, int32_t count, const reference_kv *kv,
                                   reference_scratch *scratch, reference_row_to *to,
                                   attn_error *error)
{
    return reference_rows_compute_by(row_kernels_here(0), rows, count, kv, scratch, to, error);
}

attn_status reference_row_compute(const reference_row *row, const reference_kv *kv,
                                  reference_scratch *scratch, double *out, double *bars,
                                  reference_row_result *result, attn_error *error)
{
    reference_row_to to = {.out = out, .bars = bars};
    attn_status status = reference_rows_compute(row, 1, kv, scratch, &to, error);
    if (status == ATTN_OK)
        *result = to.result;
    return status;
}
