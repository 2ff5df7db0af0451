/* SPDX-License-Identifier: Apache-2.0
 *
 * naive.c: a row in the naive form, the yardstick of the pass rule: fp32 sums, each final score and
 * each probability rounded to the operand dtype, no blocks, no online rescaling.
 */
#include "host/reference/row.h"

#include "host/base/dtype.h"

#include <math.h>

static float rounded(attn_dtype dtype, float value)
{
    return dtype == ATTN_F32 ? value : (float)dtype_round(dtype, (double)value);
}

void naive_begin(naive_row *naive, const reference_row *row)
{
    naive->operand_dtype = row->operand_dtype;
    for (int32_t d = 0; d < row->head_dim; d++)
        naive->query[d] = (float)row->query[d];
    for (int32_t d = 0; d < row->v_head_dim; d++)
        naive->out[d] = 0;
}

static float dot(const float *a, const float *b, int32_t count)
{
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    int32_t d = 0;
    for (; d + 8 <= count; d += 8)
        for (int lane = 0; lane < 8; lane++)
            sum[lane] += a[d + lane] * b[d + lane];
    for (; d < count; d++)
        sum[0] += a[d] * b[d];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

void naive_score(naive_row *naive, const reference_row *row, const double *key, int64_t j,
                 int64_t index)
{
    for (int32_t d = 0; d < row->head_dim; d++)
        naive->key[d] = (float)key[d];
    float score = (float)row->sm_scale * dot(naive->query, naive->key, row->head_dim);
    if (row->alibi_slope != 0)
        score -= (float)row->alibi_slope * (float)reference_distance(&row->sight, j);
    if (row->logit_cap > 0)
        score = (float)row->logit_cap * tanhf(score / (float)row->logit_cap);
    naive->scores[index] = score;
}

/* A dtype too narrow for one of the scores says nothing about the row: fp32 then. */
static void choose_dtype(naive_row *naive, const double *truth, int64_t count)
{
    for (int64_t n = 0; n < count; n++)
        if (isfinite(truth[n]) && !isfinite(rounded(naive->operand_dtype, naive->scores[n])))
            naive->operand_dtype = ATTN_F32;
}

void naive_softmax(naive_row *naive, const reference_row *row, const double *truth, int64_t count)
{
    choose_dtype(naive, truth, count);
    float largest = row->has_sink ? (float)row->sink : -INFINITY;
    for (int64_t n = 0; n < count; n++) {
        naive->scores[n] = rounded(naive->operand_dtype, naive->scores[n]);
        if (naive->scores[n] > largest || isnan(naive->scores[n]))
            largest = naive->scores[n];
    }
    if (largest == -INFINITY) {
        for (int64_t n = 0; n < count; n++)
            naive->scores[n] = 0;
        naive->lse = -INFINITY;
        return;
    }
    float sum = row->has_sink ? expf((float)row->sink - largest) : 0;
    for (int64_t n = 0; n < count; n++) {
        naive->scores[n] = expf(naive->scores[n] - largest);
        sum += naive->scores[n];
    }
    for (int64_t n = 0; n < count; n++)
        naive->scores[n] = rounded(naive->operand_dtype, naive->scores[n] / sum);
    naive->lse = largest + logf(sum);
}

void naive_value(naive_row *naive, const reference_row *row, const double *value, int64_t index)
{
    float probability = naive->scores[index];
    for (int32_t d = 0; d < row->v_head_dim; d++)
        naive->out[d] += probability * (float)value[d];
}

double naive_error(const naive_row *naive, const reference_row *row, const double *truth)
{
    double error = 0;
    for (int32_t d = 0; d < row->v_head_dim; d++) {
        double value = dtype_round(row->out_dtype, (double)naive->out[d]);
        if (isfinite(value) && isfinite(truth[d]))
            error = fmax(error, fabs(value - truth[d]));
    }
    return error;
}
