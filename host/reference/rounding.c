/* SPDX-License-Identifier: Apache-2.0
 *
 * rounding.c: bounds on the effect of allowed roundings on a row: the bars of the pass rule.
 * docs/ABI.md derives it ("The pass rule"); names here are those of the formulas there.
 */
#include "host/reference/row.h"

#include "host/base/dtype.h"

#include <math.h>

static const double false_alarm = 1e-9;

/* fp32: half a unit in the last place of 1, and what may be flushed to 0. */
static const double u32 = 0x1p-24, flushed = 0x1p-126;

/* Products of fp8 operands are summed by tensor cores: some at a time, each and the sum so far cut
 * off at 13 bits below the largest. Sums of values are taken over to fp32 after so many keys. */
static const double cut_of_codes = 0x1p-14, block_of_codes = 256;

/* fp8 values are exact in fp16, in which a GPU multiplies them at once with probabilities times
 * 2^15: what bf16 still holds of these may be lost there. */
static const double lost_beside_codes = 0x1p-40;

/* ---- The model ------------------------------------------------------------------------------- */

double reference_false_alarm(void)
{
    return false_alarm;
}

/* The sum of independent errors, each spread evenly around 0, of variance V together, leaves
 * +-k sqrt(V) with a chance below 2 exp(-k^2 / 2). A row has v_head_dim elements and an LSE. */
static double deviations(int32_t v_head_dim)
{
    return sqrt(2 * log(2 * ((double)v_head_dim + 1) / false_alarm));
}

rounding_model rounding_model_of(const reference_row *row)
{
    rounding_model model = {
        .deviations = deviations(row->v_head_dim),
        .probability = dtype_half_unit(row->operand_dtype, 1),
        .smallest = fmax(dtype_half_unit(row->operand_dtype, 0), flushed),
        .normalised = !dtype_is_fp8(row->operand_dtype),
        .dimension = (double)row->head_dim,
        .cut = row->multiplies_codes ? cut_of_codes : 0,
        .biased = row->alibi_slope != 0,
    };
    if (row->values_are_codes && row->operand_dtype == ATTN_BF16)
        model.smallest = lost_beside_codes;
    /* tanh.approx of a GPU is good enough for 16 bits, and is not for fp32. */
    if (row->logit_cap > 0)
        model.cap = row->operand_dtype == ATTN_F32 ? 8 * u32 : 0x1p-11;
    return model;
}

/* ---- Sums over keys -------------------------------------------------------------------------- */

void rounding_begin(rounding_sums *sums, const double *of, int32_t padded, double largest,
                    double sum, int64_t count)
{
    *sums = (rounding_sums){
        .of = of,
        .padded = padded,
        .largest = largest,
        .largest_probability = sum > 0 ? 1 / sum : 0,
        .count = count,
    };
}

/* The admitted error of a score. */
struct score_errors {
    double sigma; /* standard deviation, */
    double cap;   /* and the cap's part of it, at most */
    double root;  /* standard deviation without that */
    double drift; /* one way, whatever its neighbours */
};

/* fmax() of numbers, without a call. */
static inline double larger(double a, double b)
{
    return a > b ? a : b;
}

static struct score_errors score_errors(const rounding_sums *sums, const rounding_model *model,
                                        double score, double size)
{
    struct score_errors errors;
    size = isfinite(size) ? size : 0;
    score = isfinite(score) ? score : sums->largest;
    errors.cap = model->cap * fabs(score);
    double random = model->dimension * (u32 * u32 + model->cut * model->cut) * size * size / 3;
    errors.root = sqrt(random);
    errors.sigma = errors.cap > 0 ? sqrt(random + errors.cap * errors.cap / 3) : errors.root;
    double sum = model->biased ? size : -larger(-fabs(score), -size);
    errors.drift = u32 * ((4 + model->dimension / 16) * size +
                          4 * (fabs(score - sums->largest) + fabs(sums->largest)) + 16) +
                   model->cut * model->dimension / 2 * sum;
    return errors;
}

int rounding_add(rounding_sums *sums, const rounding_model *model, double score, double size,
                 row_factors *factors)
{
    double p = factors->probability;
    double whole = model->normalised ? 1 : sums->largest_probability;
    if (!(p > 0)) /* NaN, or no weight at all */
        return 0;
    double lost = larger(model->probability * p, model->smallest * whole);
    struct score_errors errors = score_errors(sums, model, score, size);
    factors->rounded = lost * lost / 3;
    factors->scored = p * errors.sigma * p * errors.sigma;
    factors->lost = lost;
    factors->drift = p * errors.drift;
    sums->score_weight += factors->scored;
    sums->drift_weight += factors->drift;
    sums->lse += p * (model->deviations * errors.root + errors.cap) + factors->drift;
    return 1;
}

/* ---- Bars ------------------------------------------------------------------------------------ */

/* A bar must be finite, or it would let everything pass. */
static double finite_bar(double bar)
{
    return isfinite(bar) ? bar : 0;
}

static double sum_of(const rounding_sums *sums, int32_t which, int32_t d)
{
    return sums->of[which * sums->padded + d];
}

static double bar_of(const rounding_sums *sums, const rounding_model *model,
                     const reference_row *row, double o, int32_t d)
{
    double k = model->deviations, n = (double)sums->count, u = model->probability;
    double most = sum_of(sums, ROW_ABSOLUTE, d), b = most / u; /* b: of p |v| */
    double by_score = sum_of(sums, ROW_SCORE, d) - 2 * o * sum_of(sums, ROW_SCORE_MEAN, d) +
                      o * o * sums->score_weight;
    double block = fmin(n, block_of_codes), cut = model->cut;
    double by_sums = u32 * u32 * n / 3 * (b * b + o * o) + cut * cut * block / 3 * b * b;
    double rest = fmax(by_score, 0) + by_sums;
    double random = fmin(k * sqrt(sum_of(sums, ROW_PROBABILITY, d) + rest), most + k * sqrt(rest));
    double common = (u + u32 * n / 2 + cut * block / 2) * fabs(o);
    double drift = sum_of(sums, ROW_DRIFT, d) + sums->drift_weight * fabs(o);
    double before = random + common + drift, scale = row->out_scale > 0 ? row->out_scale : 1;
    double unit = scale * dtype_half_unit(row->out_dtype, (fabs(o) + before) / scale);
    return before + unit + flushed;
}

double rounding_bars(const rounding_sums *sums, const rounding_model *model,
                     const reference_row *row, const double *out, double lse, double *bars)
{
    double k = model->deviations, n = (double)sums->count;
    for (int32_t d = 0; d < row->v_head_dim; d++)
        bars[d] = finite_bar(bar_of(sums, model, row, out[d], d));
    double sizes = 2 * (fabs(sums->largest) + fabs(lse)) + 8;
    return finite_bar(sums->lse + u32 * (k * sqrt(n / 3) + n / 4 + sizes));
}
