/* SPDX-License-Identifier: Apache-2.0
 *
 * row.c: one row, exactly: scores of the keys that are seen, their softmax, the sum of their
 * values. What the bars need is summed up in the same two passes.
 */
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
    return (reference_kv){.read = read_arrays, .ctx = arrays, .arrays = arrays};
}

/* Key j, read into `memory` unless it lies in an array. */
static const double *key_at(const reference_kv *kv, int64_t j, double *memory)
{
    if (kv->arrays)
        return kv->arrays->keys + j * kv->arrays->key_stride;
    kv->read(kv->ctx, j, memory, NULL);
    return memory;
}

/* The same of value j, which zeros have to follow up to whole lanes: those are in `memory`. */
static const double *value_at(const reference_kv *kv, int64_t j, double *memory)
{
    if (kv->arrays && kv->arrays->v_head_dim % ROW_LANES == 0)
        return kv->arrays->values + j * kv->arrays->value_stride;
    kv->read(kv->ctx, j, NULL, memory);
    return memory;
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

/* The arrays of one row, all in the scratch. */
struct work {
    double *scores; /* [kv_len] of the keys seen */
    double *sizes;  /* [kv_len] of their terms */
    int64_t *seen;  /* [kv_len] those keys */
    double *vector; /* [max(head_dim, padded)] the key or value at hand, */
    int32_t padded; /* which is followed by zeros */
    int64_t num_seen;
    double *out; /* [padded] */
    rounding_sums sums;
};

static double *take(double **next, int64_t count)
{
    double *taken = *next;
    *next += count;
    return taken;
}

static attn_status lay_out(const reference_row *row, reference_scratch *scratch, struct work *work,
                           attn_error *error)
{
    int32_t padded = (row->v_head_dim + ROW_LANES - 1) / ROW_LANES * ROW_LANES;
    int64_t kv = row->kv_len, wide = row->head_dim > padded ? row->head_dim : padded;
    size_t size = (size_t)kv * (2 * sizeof(double) + sizeof(int64_t)) +
                  (size_t)(wide + 6 * (int64_t)padded) * sizeof(double);
    if (size > scratch->size) {
        void *memory = realloc(scratch->memory, size);
        if (!memory)
            return host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                             "reference: no memory for a row of %lld keys", (long long)row->kv_len);
        scratch->memory = memory;
        scratch->size = size;
    }
    double *next = scratch->memory;
    *work = (struct work){.padded = padded};
    work->scores = take(&next, kv);
    work->sizes = take(&next, kv);
    work->vector = take(&next, wide);
    work->out = take(&next, padded);
    work->sums.probability = take(&next, padded);
    work->sums.score = take(&next, padded);
    work->sums.score_mean = take(&next, padded);
    work->sums.absolute = take(&next, padded);
    work->sums.drift = take(&next, padded);
    work->seen = (int64_t *)next;
    return ATTN_OK;
}

/* ---- The two passes -------------------------------------------------------------------------- */

static void score_keys(const reference_row *row, const reference_kv *kv, struct work *work)
{
    for (int64_t j = 0; j < row->kv_len; j++) {
        if (!reference_sees(&row->sight, j))
            continue;
        int64_t n = work->num_seen++;
        const double *key = key_at(kv, j, work->vector);
        work->seen[n] = j;
        work->scores[n] = reference_score(row, key, j, &work->sizes[n]);
    }
}

static double largest_score(const reference_row *row, const struct work *work)
{
    double largest = row->has_sink ? row->sink : -INFINITY;
    for (int64_t n = 0; n < work->num_seen; n++)
        if (work->scores[n] > largest || isnan(work->scores[n]))
            largest = work->scores[n];
    return largest;
}

/* The sum of all weights, relative to that of the largest score. Scores that are all -inf weigh
 * nothing, as if no key were seen. */
static double sum_weights(const reference_row *row, const struct work *work, double largest)
{
    if (largest == -INFINITY)
        return 0;
    double sum = row->has_sink ? exp(row->sink - largest) : 0;
    for (int64_t n = 0; n < work->num_seen; n++)
        sum += exp(work->scores[n] - largest);
    return sum;
}

static ROW_WIDE void add_value(double *out, double probability, const double *value, int32_t padded)
{
    for (int32_t d = 0; d < padded; d += ROW_LANES)
        *row_lanes_at(out, d) += probability * *row_lanes_in(value, d);
}

static void add_values(const reference_kv *kv, struct work *work, double largest, double sum,
                       const rounding_model *model)
{
    for (int32_t d = 0; d < work->padded; d++)
        work->out[d] = work->vector[d] = 0;
    for (int64_t n = 0; n < work->num_seen; n++) {
        double probability = sum == 0 ? 0 : exp(work->scores[n] - largest) / sum;
        const double *value = value_at(kv, work->seen[n], work->vector);
        add_value(work->out, probability, value, work->padded);
        if (model)
            rounding_add(&work->sums, model, work->scores[n], work->sizes[n], probability, value,
                         work->padded);
    }
}

/* What is beyond the largest fp8 number becomes that number, infinities too (KV-04). */
static void saturate(const reference_row *row, double *out)
{
    double most = dtype_largest(row->out_dtype) * (row->out_scale > 0 ? row->out_scale : 1);
    for (int32_t d = 0; dtype_is_fp8(row->out_dtype) && d < row->v_head_dim; d++)
        if (fabs(out[d]) > most)
            out[d] = copysign(most, out[d]);
}

static __attribute__((noinline)) attn_status
compute_row(const reference_row *row, const reference_kv *kv, reference_scratch *scratch,
            double *out, double *bars, reference_row_result *result, attn_error *error)
{
    if (row->head_dim < 1 || row->v_head_dim < 1 || row->kv_len < 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "reference: head_dim %d, v_head_dim %d, kv_len %lld: accepted 1.., 1.., "
                         "0..",
                         row->head_dim, row->v_head_dim, (long long)row->kv_len);
    struct work work;
    attn_status status = lay_out(row, scratch, &work, error);
    if (status != ATTN_OK)
        return status;
    rounding_model model = rounding_model_of(row);
    score_keys(row, kv, &work);
    double largest = largest_score(row, &work), sum = sum_weights(row, &work, largest);
    double lse = sum == 0 ? -INFINITY : largest + log(sum);
    rounding_begin(&work.sums, largest, sum, work.num_seen, work.padded);
    add_values(kv, &work, largest, sum, bars ? &model : NULL);
    memcpy(out, work.out, (size_t)row->v_head_dim * sizeof *out);
    *result = (reference_row_result){.lse = lse, .num_seen = work.num_seen};
    if (bars)
        result->lse_bar = rounding_bars(&work.sums, &model, row, out, lse, bars);
    saturate(row, out);
    return ATTN_OK;
}

attn_status reference_row_compute(const reference_row *row, const reference_kv *kv,
                                  reference_scratch *scratch, double *out, double *bars,
                                  reference_row_result *result, attn_error *error)
{
    uint64_t fpu = fpu_pin();
    attn_status status = compute_row(row, kv, scratch, out, bars, result, error);
    fpu_unpin(fpu);
    return status;
}
