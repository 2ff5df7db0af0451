/* SPDX-License-Identifier: Apache-2.0
 *
 * mla_pair.c: one latent batch in its absorbed and its expanded form.
 */
#include "host/check/cases/mla_pair.h"

#include "host/check/cases/forward_case_private.h"
#include "host/base/dtype.h"
#include "host/base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Weights --------------------------------------------------------------------------------- */

/* Rows of about the length of one. */
static float *make_weights(const struct mla_pair *pair, uint64_t which, int32_t rows)
{
    int64_t lora = pair->spec.latent.kv_lora_rank, count = rows * lora;
    float *weights = calloc((size_t)count, sizeof *weights), unit = sqrtf(3 / (float)lora);
    uint64_t stream = case_stream(pair->run->seed, DRAW_LATENT, which, 0, 2);
    for (int64_t n = 0; weights && n < count; n++)
        weights[n] = unit * case_unit(stream, (uint64_t)n);
    return weights;
}

static double product(const float *a, const float *b, int32_t count)
{
    double sum = 0;
    for (int32_t d = 0; d < count; d++)
        sum += (double)a[d] * (double)b[d];
    return sum;
}

static float rounded(const struct mla_pair *pair, double x)
{
    return (float)dtype_round(pair->spec.q_dtype, x);
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

/* q_nope times W_UK. */
static void absorb_query(const struct mla_pair *pair, int64_t token, int32_t head)
{
    const struct case_latent *latent = &pair->spec.latent;
    int64_t row = token * pair->spec.num_q_heads + head, lora = latent->kv_lora_rank;
    const float *from = pair->expanded->tokens->q + row * pair->expanded_spec.head_dim;
    float *to = pair->absorbed->tokens->q + row * pair->spec.head_dim;
    for (int64_t d = 0; d < lora; d++) {
        double sum = 0;
        for (int32_t i = 0; i < latent->nope_dim; i++)
            sum += (double)pair->w_uk[(head * latent->nope_dim + i) * lora + d] * (double)from[i];
        to[d] = rounded(pair, sum);
    }
    memcpy(to + lora, from + latent->nope_dim, (size_t)latent->rope_dim * sizeof *to);
}

/* The latent times W_UK and W_UV. */
static void expand_key(const struct mla_pair *pair, int64_t token, int32_t head)
{
    const struct case_latent *latent = &pair->spec.latent;
    int32_t lora = latent->kv_lora_rank, nope = latent->nope_dim;
    int64_t row = token * pair->spec.num_q_heads + head;
    const float *c_kv = pair->absorbed->tokens->k + token * pair->spec.head_dim;
    float *key = pair->expanded->tokens->k + row * pair->expanded_spec.head_dim;
    float *value = pair->expanded->tokens->v + row * latent->v_dim;
    for (int32_t i = 0; i < nope; i++)
        key[i] = rounded(pair, product(pair->w_uk + (int64_t)(head * nope + i) * lora, c_kv, lora));
    memcpy(key + nope, c_kv + lora, (size_t)latent->rope_dim * sizeof *key);
    for (int32_t i = 0; i < latent->v_dim; i++)
        value[i] = rounded(
            pair, product(pair->w_uv + (int64_t)(head * latent->v_dim + i) * lora, c_kv, lora));
}

static void relate(const struct mla_pair *pair)
{
    const struct case_tokens *from = pair->absorbed->tokens;
    int32_t last = pair->spec.num_sequences - 1;
    int64_t queries = from->first_q[last] + from->num_q[last];
    int64_t keys = from->first_k[last] + from->num_k[last];
    for (int32_t head = 0; head < pair->spec.num_q_heads; head++) {
        for (int64_t token = 0; token < queries; token++)
            absorb_query(pair, token, head);
        for (int64_t token = 0; token < keys; token++)
            expand_key(pair, token, head);
    }
    memcpy(pair->expanded->tokens->latents, from->k,
           (size_t)(keys * pair->spec.head_dim) * sizeof *from->k);
}

/* ---- Pairs ----------------------------------------------------------------------------------- */

static bool make_cases(struct mla_pair *pair)
{
    const struct case_latent *latent = &pair->spec.latent;
    pair->absorbed = numerics_case(pair->run, &pair->spec, NULL);
    pair->expanded = pair->absorbed ? numerics_case(pair->run, &pair->expanded_spec, NULL) : NULL;
    pair->w_uk = make_weights(pair, 0, pair->spec.num_q_heads * latent->nope_dim);
    pair->w_uv = make_weights(pair, 1, pair->spec.num_q_heads * latent->v_dim);
    if (!pair->expanded)
        return false;
    attn_error *error = check_error(pair->run);
    attn_status status = pair->w_uk && pair->w_uv
                             ? ATTN_OK
                             : host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for W_UK");
    if (status == ATTN_OK) {
        relate(pair);
        /* The needles do not fit these queries and keys. */
        pair->absorbed->num_needles = pair->expanded->num_needles = 0;
        status = case_place_tokens(pair->absorbed, error);
    }
    if (status == ATTN_OK)
        status = case_place_tokens(pair->expanded, error);
    return numerics_good(pair->run, &pair->spec, status);
}

bool mla_pair_init(struct mla_pair *pair, struct check_run *run, const struct case_spec *spec,
                   const attn_options *options)
{
    *pair = (struct mla_pair){.run = run, .options = options, .spec = *spec};
    pair->expanded_spec = *spec;
    case_spec_set_form(&pair->expanded_spec, true);
    return make_cases(pair);
}

void mla_pair_finish(struct mla_pair *pair)
{
    forward_case_destroy(pair->absorbed);
    forward_case_destroy(pair->expanded);
    free(pair->w_uk);
    free(pair->w_uv);
}

bool mla_pair_judge(struct mla_pair *pair)
{
    return numerics_judge_alone(pair->run, pair->absorbed, pair->options) &&
           numerics_judge_alone(pair->run, pair->expanded, pair->options);
}

/* ---- Comparing ------------------------------------------------------------------------------- */

/* By how much of 1 the forms may differ: queries, keys and values are rounded after their weights,
 * scores move by that. About three times as much as a right backend's forms differ. */
static double unit_of(attn_dtype dtype)
{
    return dtype == ATTN_F32 ? 0x1p-16 : dtype == ATTN_F16 ? 0x1p-6 : 0x1p-4;
}

/* What is wrong with one row, or nothing. */
static void compare_row(struct mla_pair *pair, int32_t s, int32_t t, int32_t head, float *latent,
                        float *out)
{
    int32_t lora = pair->spec.latent.kv_lora_rank, v_dim = pair->spec.latent.v_dim;
    double unit = unit_of(pair->spec.q_dtype);
    const float *lse = forward_case_lse(pair->absorbed, s, t, head);
    const float *other = forward_case_lse(pair->expanded, s, t, head);
    dtype_to_float(pair->spec.out_dtype, forward_case_output(pair->absorbed, s, t, head), lora,
                   latent);
    dtype_to_float(pair->spec.out_dtype, forward_case_output(pair->expanded, s, t, head), v_dim,
                   out);
    for (int32_t i = 0; i < v_dim; i++) {
        double given = product(pair->w_uv + (int64_t)(head * v_dim + i) * lora, latent, lora);
        double bar = unit * (1 + fabs(given));
        CHECK_THAT(
            pair->run, fabs(given - (double)out[i]) <= bar,
            "query %d of sequence %d, head %d, element %d: W_UV times the absorbed output is "
            "%g, the expanded one %g, accepted a difference of %g",
            t, s, head, i, given, (double)out[i], bar);
    }
    CHECK_THAT(pair->run, !lse || fabsf(*lse - *other) <= (float)unit * (1 + fabsf(*lse)),
               "query %d of sequence %d, head %d: LSE %g absorbed, %g expanded", t, s, head,
               (double)*lse, (double)*other);
}

void mla_pair_compare(struct mla_pair *pair)
{
    const struct case_latent *latent = &pair->spec.latent;
    float *row = calloc((size_t)(latent->kv_lora_rank + latent->v_dim), sizeof *row);
    CHECK_THAT(pair->run, row, "no memory for a row");
    for (int32_t s = 0; s < pair->spec.num_sequences; s++)
        for (int32_t t = 0; t < pair->absorbed->lengths.q_len[s]; t++)
            for (int32_t head = 0; head < pair->spec.num_q_heads; head++)
                compare_row(pair, s, t, head, row, row + latent->kv_lora_rank);
    free(row);
}

void mla_pair_hand_over(const struct forward_case *writer, struct forward_case *reader)
{
    const struct case_shape *shape = &reader->shapes[PART_LATENT_CACHE];
    size_t size = (size_t)shape->shape[2] * attn_dtype_size(shape->dtype);
    for (int32_t s = 0; s < reader->lengths.num_real_seqs; s++) {
        int32_t from = reader->spec.sequences[s].tokens_of;
        for (int32_t j = 0; j < reader->lengths.kv_len[s] - reader->lengths.num_new[s]; j++)
            memcpy(case_slot_vector(reader, reader->image, PART_LATENT_CACHE,
                                    case_slot(reader, s, j), 0),
                   case_slot_vector(writer, writer->actual, PART_LATENT_CACHE,
                                    case_slot(writer, from, j), 0),
                   size);
    }
}
