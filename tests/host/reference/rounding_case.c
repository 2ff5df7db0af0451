/* SPDX-License-Identifier: Apache-2.0
 *
 * rounding_case.c: random rows, and models of programs that compute them.
 */
#include "tests/host/reference/rounding_case.h"

#include "host/base/dtype.h"
#include "host/base/mix.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float log2_e = 1.44269504088896341f, ln_2 = 0.693147180559945309f;

/* ---- Drawing --------------------------------------------------------------------------------- */

struct stream {
    uint64_t state, next;
};

static uint64_t draw_word(struct stream *stream)
{
    return mix_stream(stream->state, stream->next++);
}

static int32_t draw_below(struct stream *stream, int32_t count)
{
    return (int32_t)mix_below((uint32_t)draw_word(stream), (uint64_t)count);
}

/* 0 .. 1 */
static double draw_share(struct stream *stream)
{
    return (double)(draw_word(stream) >> 11) * 0x1p-53;
}

/* -1 .. 1 */
static double draw_unit(struct stream *stream)
{
    return 2 * draw_share(stream) - 1;
}

/* Evenly spread over the logarithms from `least` to `most`. */
static int64_t draw_size(struct stream *stream, int64_t least, int64_t most)
{
    double x = (double)least * pow((double)(most + 1) / (double)least, draw_share(stream));
    return x < (double)most ? (int64_t)x : most;
}

/* Numbers from -1 to 1, rounded to a dtype: what vectors are made of, since drawing each element
 * anew takes longer than all that is done with it. */
enum { POOL = 1 << 16 };
static const attn_dtype pool_dtypes[] = {ATTN_BF16, ATTN_F16, ATTN_F32, ATTN_FP8_E4M3};
enum { POOLS = sizeof pool_dtypes / sizeof pool_dtypes[0] };
static double pools[POOLS][POOL];

static void fill_pools(void)
{
    struct stream stream = {mix_word(1), 0};
    for (int i = 0; i < POOLS; i++)
        for (int n = 0; n < POOL; n++)
            pools[i][n] = dtype_round(pool_dtypes[i], draw_unit(&stream));
}

/* `count` numbers times a power of two. */
static void draw_from_pool(struct stream *stream, attn_dtype dtype, double size, int32_t count,
                           double *to)
{
    int i = 0;
    while (pool_dtypes[i] != dtype)
        i++;
    const double *from = pools[i] + draw_below(stream, POOL - ROUNDING_MAX_DIM);
    for (int32_t d = 0; d < count; d++)
        to[d] = size * from[d];
}

void rounding_row_init(struct rounding_row *row)
{
    size_t keys = (size_t)ROUNDING_MAX_KEYS * ROUNDING_MAX_DIM;
    *row = (struct rounding_row){0};
    row->query = calloc(ROUNDING_MAX_DIM, sizeof(double));
    row->keys = calloc(keys, sizeof(double));
    row->values = calloc(keys, sizeof(double));
    row->truth = calloc(ROUNDING_MAX_DIM, sizeof(double));
    row->bars = calloc(ROUNDING_MAX_DIM, sizeof(double));
    ck_assert(row->query && row->keys && row->values && row->truth && row->bars);
    reference_scratch_init(&row->scratch);
    fill_pools();
}

void rounding_row_finish(struct rounding_row *row)
{
    free(row->query);
    free(row->keys);
    free(row->values);
    free(row->truth);
    free(row->bars);
    reference_scratch_finish(&row->scratch);
}

static void draw_shape(struct rounding_row *row, struct stream *stream,
                       const struct rounding_wish *wish)
{
    static const attn_dtype dtypes[] = {ATTN_BF16, ATTN_BF16, ATTN_F16, ATTN_F32};
    int64_t least = wish->least_keys ? wish->least_keys : 1;
    int64_t most = wish->most_keys ? wish->most_keys : ROUNDING_USUAL_KEYS;
    int64_t few = least > 300 ? least : most < 300 ? most : 300;
    reference_row *r = &row->row;
    *r = (reference_row){.query = row->query, .sight = reference_sight_all()};
    row->latent = !wish->least_dim && draw_below(stream, 16) == 0;
    r->kv_len = draw_size(stream, least, draw_below(stream, 4) ? few : most);
    r->head_dim = row->latent ? 576 : (int32_t)draw_size(stream, 1, 256);
    r->v_head_dim =
        row->latent ? 512 : (int32_t)draw_size(stream, wish->least_dim ? wish->least_dim : 1, 256);
    r->operand_dtype = wish->dtype ? wish->dtype : dtypes[draw_below(stream, 4)];
    r->out_dtype = !wish->dtype && draw_below(stream, 8) == 0 ? ATTN_F32 : r->operand_dtype;
    r->multiplies_codes = dtype_is_fp8(r->operand_dtype);
    if (r->multiplies_codes)
        r->out_dtype = ATTN_BF16;
    r->sm_scale = (double)(1 / sqrtf((float)r->head_dim));
    r->logit_cap = draw_below(stream, 8) == 0 ? 5 + 45 * draw_share(stream) : 0;
    r->logit_cap = (double)(float)r->logit_cap;
    r->has_sink = draw_below(stream, 6) == 0;
    r->sink = r->has_sink ? (double)(float)(4 * draw_unit(stream)) : 0;
    row->arrays = (reference_kv_arrays){row->keys,   row->latent ? row->keys : row->values,
                                        r->head_dim, row->latent ? r->head_dim : r->v_head_dim,
                                        r->head_dim, r->v_head_dim};
}

static double rounded_draw(const struct rounding_row *row, double x)
{
    return dtype_round(row->row.operand_dtype, x);
}

/* Keys at random about a mean; scores from flat to so peaked that one key is all; values of either
 * sign or of one, now and then with elements that are far larger than others. */
static void draw_vectors(struct rounding_row *row, struct stream *stream,
                         const struct rounding_wish *wish)
{
    static const double peaks[] = {0.001, 0.05, 0.3, 1, 1, 2, 4, 8, 20};
    const reference_row *r = &row->row;
    double peak = 1.5 * peaks[draw_below(stream, 9)], mean = 0, size = 1;
    if (!wish->needles && draw_below(stream, 4) == 0)
        mean = draw_unit(stream);
    if (wish->leans) {
        peak = 0.001;
        mean = 1;
    }
    if (draw_below(stream, 8) == 0)
        size = ldexp(1, draw_below(stream, 9) - 4);
    size = wish->size ? ldexp(1, wish->size) : size;
    int32_t large = draw_below(stream, 8) == 0 ? draw_below(stream, r->v_head_dim) : -1;
    for (int32_t d = 0; d < r->head_dim; d++)
        row->query[d] = rounded_draw(row, peak * draw_unit(stream));
    for (int64_t j = 0; j < r->kv_len; j++) {
        double *value = row->values + j * r->v_head_dim;
        draw_from_pool(stream, r->operand_dtype, 2, r->head_dim, row->keys + j * r->head_dim);
        draw_from_pool(stream, r->operand_dtype, size, r->v_head_dim, value);
        for (int32_t d = 0; d < r->v_head_dim && mean != 0; d++)
            value[d] = rounded_draw(row, value[d] + size * mean);
        if (large >= 0)
            value[large] *= 64;
    }
}

/* Some keys are one and the same, and the query points at them: 7 above the others, about. */
static void draw_needles(struct rounding_row *row, struct stream *stream,
                         const struct rounding_wish *wish)
{
    reference_row *r = &row->row;
    row->needle = -1;
    row->numbers = 0;
    if (row->latent || (!wish->needles && draw_below(stream, 6)))
        return;
    row->numbers = 1 + draw_below(stream, r->kv_len < 24 ? (int32_t)r->kv_len : 24);
    double length = 7.5 / (r->sm_scale * r->head_dim);
    for (int32_t d = 0; d < r->head_dim; d++)
        row->query[d] = rounded_draw(row, row->query[d] < 0 ? -length : length);
    for (int64_t j = 0; j < r->kv_len; j++)
        for (int32_t d = 0; d < r->head_dim; d++) {
            double *key = row->keys + j * r->head_dim, away = row->query[d] < 0 ? 0.5 : -0.5;
            key[d] = rounded_draw(row, key[d] * 0.4 + away);
        }
    for (int64_t n = 0; n < row->numbers; n++) {
        row->needle = draw_below(stream, (int32_t)r->kv_len);
        for (int32_t d = 0; d < r->head_dim; d++)
            row->keys[row->needle * r->head_dim + d] = row->query[d] < 0 ? -1 : 1;
    }
    /* The last one has a value of its own. */
    for (int32_t d = 0; d < r->v_head_dim; d++)
        row->values[row->needle * r->v_head_dim + d] *= d % 8 == 0 ? 4 : 1;
}

void rounding_row_draw(struct rounding_row *row, uint64_t seed, uint64_t index,
                       const struct rounding_wish *wish)
{
    struct stream stream = {mix_absorb(mix_absorb(0x726f756e64696e67, seed), index), 0};
    draw_shape(row, &stream, wish);
    draw_vectors(row, &stream, wish);
    draw_needles(row, &stream, wish);
    reference_kv kv = reference_kv_array(&row->arrays);
    attn_status status = reference_row_compute(&row->row, &kv, &row->scratch, row->truth, row->bars,
                                               &row->result, NULL);
    ck_assert_int_eq(status, ATTN_OK);
}

/* ---- Rounding -------------------------------------------------------------------------------- */

/* To a number of so many bits of mantissa, the first one included. */
static float round_to_bits(float x, int32_t bits)
{
    int exponent;
    float mantissa = frexpf(x, &exponent);
    return ldexpf(rintf(ldexpf(mantissa, bits)), exponent - bits);
}

static float round_probability(const struct rounding_row *row,
                               const struct rounding_arithmetic *how, float p)
{
    if (how->mantissa)
        return round_to_bits(p, how->mantissa);
    return how->rounds ? (float)dtype_round(row->row.operand_dtype, (double)p) : p;
}

/* An fp32 number with what does not fit cut off. */
static float cut_off(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= ~UINT64_C(0x1fffffff);
    memcpy(&x, &bits, sizeof bits);
    return (float)x;
}

/* 2^13 over the power of two that x begins with. */
static double units_of_code_sum(double x)
{
    return ldexp(1, 13 - ilogb(x));
}

/* A sum and at most 32 products, as a tensor core of sm_90 adds those of codes. */
static float add_codes(float sum, const double *products, int64_t count)
{
    double largest = fabs((double)sum);
    for (int64_t n = 0; n < count; n++)
        largest = fmax(largest, fabs(products[n]));
    if (largest == 0)
        return 0;
    double units = units_of_code_sum(largest), total = trunc((double)sum * units);
    for (int64_t n = 0; n < count; n++)
        total += trunc(products[n] * units);
    total /= units;
    units = total == 0 ? 1 : units_of_code_sum(total);
    return (float)(trunc(total * units) / units);
}

/* As ex2.approx of a GPU, whose last bits are anybody's guess. */
static float exponential(const struct rounding_arithmetic *how, float x)
{
    float value = exp2f(x);
    uint32_t bits;
    if (!how->fast_exp)
        return value;
    memcpy(&bits, &x, sizeof bits);
    return value * (1 + ((float)(mix_word(bits) >> 40) * 0x1p-23f - 1) * 0x1p-22f);
}

static float hyperbolic(const struct rounding_row *row, const struct rounding_arithmetic *how,
                        float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    double off = how->fast_exp && row->row.operand_dtype != ATTN_F32 ? 0x1p-11 : 0;
    return tanhf(x) * (float)(1 + off * ((double)(mix_word(bits) >> 40) * 0x1p-23 - 1));
}

/* ---- Computing ------------------------------------------------------------------------------- */

static int in_tensor_core(const struct rounding_row *row, const struct rounding_arithmetic *how)
{
    return how->tensor_core && row->row.operand_dtype != ATTN_F32;
}

static float dot(const struct rounding_row *row, const struct rounding_arithmetic *how,
                 const double *key)
{
    const double *query = row->query;
    int32_t dim = row->row.head_dim;
    float sum = 0;
    double products[32];
    for (int32_t d = 0; how->codes && d < dim; d += 32) {
        int32_t count = dim - d < 32 ? dim - d : 32;
        for (int32_t e = 0; e < count; e++)
            products[e] = query[d + e] * key[d + e];
        sum = add_codes(sum, products, count);
    }
    if (how->codes)
        return sum;
    for (int32_t d = 0; in_tensor_core(row, how) && d < dim; d += 16) {
        double part = 0;
        for (int32_t e = d; e < d + 16 && e < dim; e++)
            part += query[e] * key[e];
        sum = cut_off((double)sum + part);
    }
    for (int32_t d = 0; !in_tensor_core(row, how) && d < dim; d++) {
        sum += (float)query[d] * (float)key[d];
        if (how->scores)
            sum = (float)dtype_round(how->scores, (double)sum);
    }
    return sum;
}

/* The score of key j, times log2(e). */
static float score_of(const struct rounding_row *row, const struct rounding_arithmetic *how,
                      int64_t j)
{
    const reference_row *r = &row->row;
    float sum = dot(row, how, row->keys + j * r->head_dim), cap = (float)r->logit_cap;
    if (how->round_score)
        sum = (float)dtype_round(r->operand_dtype, (double)((float)r->sm_scale * sum)) /
              (float)r->sm_scale;
    if (cap > 0)
        return cap * log2_e * hyperbolic(row, how, (float)r->sm_scale * sum / cap);
    return sum * ((float)r->sm_scale * log2_e);
}

/* The result of a row. */
struct sums {
    float largest, total;
    float out[ROUNDING_MAX_DIM];
};

static void add_total(const struct rounding_arithmetic *how, struct sums *sums, float p)
{
    sums->total += p;
    if (how->row_sum)
        sums->total = (float)dtype_round(how->row_sum, (double)sums->total);
}

static void add_code_values(const struct rounding_row *row, struct sums *sums, const float *p,
                            int64_t first, int64_t end)
{
    const double *values = row->arrays.values;
    double products[32];
    for (int32_t d = 0; d < row->row.v_head_dim; d++) {
        float sum = 0;
        for (int64_t from = first; from < end; from += 32) {
            int64_t count = end - from < 32 ? end - from : 32;
            for (int64_t j = 0; j < count; j++)
                products[j] =
                    (double)p[from + j] * values[(from + j) * row->arrays.value_stride + d];
            sum = add_codes(sum, products, count);
        }
        sums->out[d] += sum;
    }
}

/* Values of keys [first, end) by their probabilities. */
static void add_values(const struct rounding_row *row, const struct rounding_arithmetic *how,
                       struct sums *sums, const float *p, int64_t first, int64_t end)
{
    const double *values = row->arrays.values;
    int64_t stride = row->arrays.value_stride, dim = row->row.v_head_dim;
    double part[ROUNDING_MAX_DIM];
    if (how->codes) {
        add_code_values(row, sums, p, first, end);
        return;
    }
    for (int64_t j = first; j < end && !in_tensor_core(row, how); j++)
        for (int64_t d = 0; d < dim; d++)
            sums->out[d] += p[j] * (float)values[j * stride + d];
    for (int64_t from = first; from < end && in_tensor_core(row, how); from += 16) {
        memset(part, 0, sizeof part);
        for (int64_t j = from; j < from + 16 && j < end; j++)
            for (int64_t d = 0; d < dim; d++)
                part[d] += (double)p[j] * values[j * stride + d];
        for (int64_t d = 0; d < dim; d++)
            sums->out[d] = cut_off((double)sums->out[d] + part[d]);
    }
}

/* The sums by a new maximum. */
static void rescale(const struct rounding_row *row, const struct rounding_arithmetic *how,
                    struct sums *sums, float largest)
{
    if (!(largest > sums->largest))
        return;
    float shrink = sums->largest == -INFINITY ? 0 : exponential(how, sums->largest - largest);
    sums->largest = largest;
    sums->total *= shrink;
    for (int32_t d = 0; d < row->row.v_head_dim; d++)
        sums->out[d] *= shrink;
}

/* Keys [first, end), whose scores become probabilities. */
static void add_block(const struct rounding_row *row, const struct rounding_arithmetic *how,
                      float *scores, int64_t first, int64_t end, struct sums *sums)
{
    float largest = -INFINITY;
    for (int64_t j = first; j < end; j++)
        if (!how->skips || j != row->needle)
            largest = fmaxf(largest, scores[j]);
    rescale(row, how, sums, largest);
    for (int64_t j = first; j < end; j++) {
        float p = exponential(how, scores[j] - sums->largest);
        p = how->skips && j == row->needle ? 0 : p;
        float narrow = how->normalised ? p : round_probability(row, how, p);
        add_total(how, sums, how->sums_what_is_rounded ? narrow : p);
        scores[j] = narrow;
    }
    if (!how->normalised)
        add_values(row, how, sums, scores, first, end);
}

static void add_sink(const struct rounding_row *row, const struct rounding_arithmetic *how,
                     struct sums *sums)
{
    float sink = (float)row->row.sink * log2_e;
    if (!row->row.has_sink)
        return;
    rescale(row, how, sums, sink);
    add_total(how, sums, exponential(how, sink - sums->largest));
}

/* Values by probabilities that are divided by their sum and then rounded; `largest` is what they
 * are relative to. */
static void add_normalised(const struct rounding_row *row, const struct rounding_arithmetic *how,
                           float *scores, float largest, struct sums *sums)
{
    float factor = exponential(how, largest - sums->largest);
    for (int64_t j = 0; j < row->row.kv_len; j++)
        scores[j] = round_probability(row, how, scores[j] * factor / sums->total);
    add_values(row, how, sums, scores, 0, row->row.kv_len);
}

double rounding_row_compute(const struct rounding_row *row, const struct rounding_arithmetic *how,
                            double *actual)
{
    static float scores[ROUNDING_MAX_KEYS];
    const reference_row *r = &row->row;
    struct sums sums = {.largest = -INFINITY};
    int64_t block = how->block < 0 ? 64 << r->kv_len % 3 : how->block ? how->block : r->kv_len;
    for (int64_t j = 0; j < r->kv_len; j++)
        scores[j] = score_of(row, how, j);
    for (int64_t first = 0; first < r->kv_len; first += block)
        add_block(row, how, scores, first, first + block < r->kv_len ? first + block : r->kv_len,
                  &sums);
    float largest = sums.largest; /* of all keys: what is normalised is one block */
    add_sink(row, how, &sums);
    if (how->normalised)
        add_normalised(row, how, scores, largest, &sums);
    float factor = how->normalised ? 1 : 1 / sums.total;
    for (int32_t d = 0; d < r->v_head_dim; d++) {
        float o = sums.total == 0 ? 0 : sums.out[d] * factor;
        if (how->narrowed)
            o = (float)dtype_round(how->narrowed, (double)o);
        actual[d] = dtype_round(r->out_dtype, (double)o);
    }
    return (double)((sums.largest + log2f(sums.total)) * ln_2);
}

double rounding_row_judge(const struct rounding_row *row, const double *actual)
{
    reference_verdict verdict = reference_check_row(
        actual, row->truth, row->bars, row->row.v_head_dim, row->row.out_dtype, &row->result);
    return reference_verdict_ratio(&verdict);
}
