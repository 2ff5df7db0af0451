/* SPDX-License-Identifier: Apache-2.0
 *
 * row.c: one row, exactly: scores of the keys that are seen, their softmax, the sum of their
 * values. The naive form goes through the same two passes, so that keys are made once for both.
 */
#include "host/reference/row.h"

#include "host/base/error.h"

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

/* The arrays of one row, all in the scratch. */
struct work {
    double *scores; /* [kv_len] of the keys seen; then the probabilities */
    int64_t *seen;  /* [kv_len] those keys */
    double *vector; /* [max(head_dim, v_head_dim)] the key or value at hand */
    int64_t num_seen;
    naive_row naive;
};

static attn_status lay_out(const reference_row *row, reference_scratch *scratch, struct work *work,
                           attn_error *error)
{
    size_t kv = (size_t)row->kv_len, dim = (size_t)row->head_dim, v_dim = (size_t)row->v_head_dim;
    size_t wide = dim > v_dim ? dim : v_dim;
    size_t size = kv * (sizeof(double) + sizeof(int64_t) + sizeof(float)) + wide * sizeof(double) +
                  (2 * dim + v_dim) * sizeof(float);
    if (size > scratch->size) {
        void *memory = realloc(scratch->memory, size);
        if (!memory)
            return host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                             "reference: no memory for a row of %lld keys", (long long)row->kv_len);
        scratch->memory = memory;
        scratch->size = size;
    }
    work->scores = scratch->memory;
    work->seen = (int64_t *)(work->scores + kv);
    work->vector = (double *)(work->seen + kv);
    work->naive.query = (float *)(work->vector + wide);
    work->naive.key = work->naive.query + dim;
    work->naive.out = work->naive.key + dim;
    work->naive.scores = work->naive.out + v_dim;
    work->num_seen = 0;
    return ATTN_OK;
}

/* ---- The two passes -------------------------------------------------------------------------- */

static int wants_naive(const reference_row *row)
{
    return row->operand_dtype != ATTN_DTYPE_NONE;
}

static void score_keys(const reference_row *row, const reference_kv *kv, struct work *work)
{
    for (int64_t j = 0; j < row->kv_len; j++) {
        if (!reference_sees(&row->sight, j))
            continue;
        int64_t n = work->num_seen++;
        kv->read(kv->ctx, j, work->vector, NULL);
        work->seen[n] = j;
        work->scores[n] = reference_score(row, work->vector, j);
        if (wants_naive(row))
            naive_score(&work->naive, row, work->vector, j, n);
    }
}

/* Scores into probabilities; returns the LSE. Scores that are all -inf weigh nothing, as if no key
 * were seen. */
static double softmax(const reference_row *row, struct work *work)
{
    double largest = row->has_sink ? row->sink : -INFINITY;
    for (int64_t n = 0; n < work->num_seen; n++)
        if (work->scores[n] > largest || isnan(work->scores[n]))
            largest = work->scores[n];
    if (largest == -INFINITY) {
        for (int64_t n = 0; n < work->num_seen; n++)
            work->scores[n] = 0;
        return -INFINITY;
    }
    double sum = row->has_sink ? exp(row->sink - largest) : 0;
    for (int64_t n = 0; n < work->num_seen; n++) {
        work->scores[n] = exp(work->scores[n] - largest);
        sum += work->scores[n];
    }
    for (int64_t n = 0; n < work->num_seen; n++)
        work->scores[n] /= sum;
    return largest + log(sum);
}

/* A bar must be finite, or it would let everything pass: what is not finite does not count. */
static double largest_finite(const double *vector, int32_t count, double largest)
{
    for (int32_t d = 0; d < count; d++) {
        double magnitude = fabs(vector[d]);
        if (magnitude > largest && magnitude < (double)INFINITY)
            largest = magnitude;
    }
    return largest;
}

static void add_values(const reference_row *row, const reference_kv *kv, struct work *work,
                       double *restrict out, double *max_v)
{
    for (int32_t d = 0; d < row->v_head_dim; d++)
        out[d] = 0;
    for (int64_t n = 0; n < work->num_seen; n++) {
        const double *restrict value = work->vector;
        double probability = work->scores[n];
        kv->read(kv->ctx, work->seen[n], NULL, work->vector);
        for (int32_t d = 0; d < row->v_head_dim; d++)
            out[d] += probability * value[d];
        *max_v = largest_finite(value, row->v_head_dim, *max_v);
        if (wants_naive(row))
            naive_value(&work->naive, row, value, n);
    }
}

static void measure_naive(const reference_row *row, const naive_row *naive, const double *out,
                          reference_row_result *result)
{
    result->naive_error = naive_error(naive, row, out);
    double lse_error = fabs((double)naive->lse - result->lse);
    result->naive_lse_error = isfinite(lse_error) ? lse_error : 0;
}

attn_status reference_row_compute(const reference_row *row, const reference_kv *kv,
                                  reference_scratch *scratch, double *out,
                                  reference_row_result *result, attn_error *error)
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
    *result = (reference_row_result){0};
    if (wants_naive(row))
        naive_begin(&work.naive, row);
    score_keys(row, kv, &work);
    if (wants_naive(row))
        naive_softmax(&work.naive, row, work.scores, work.num_seen);
    result->num_seen = work.num_seen;
    result->lse = softmax(row, &work);
    add_values(row, kv, &work, out, &result->max_v);
    if (wants_naive(row))
        measure_naive(row, &work.naive, out, result);
    return ATTN_OK;
}
