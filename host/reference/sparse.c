/* SPDX-License-Identifier: Apache-2.0
 *
 * sparse.c: labels, logits, and the choice of one row.
 */
#include "host/reference/sparse.h"

#include "host/base/dtype.h"
#include "host/reference/row.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Labels ---------------------------------------------------------------------------------- */

static int has_scales(const attn_sparse_dims *sparse)
{
    return sparse->label_dtype == ATTN_FP8_E4M3;
}

int32_t reference_label_bytes(const attn_sparse_dims *sparse)
{
    return sparse->label_dim * (int32_t)attn_dtype_size(sparse->label_dtype) +
           (has_scales(sparse) ? (int32_t)sizeof(float) : 0);
}

/* Where label `offset` is, and its scale. */
static char *codes_of(const attn_sparse_dims *sparse, const void *page, int64_t offset)
{
    return (char *)(uintptr_t)page +
           offset * sparse->label_dim * (int64_t)attn_dtype_size(sparse->label_dtype);
}

static char *scale_of(const attn_sparse_dims *sparse, int64_t page_size, const void *page,
                      int64_t offset)
{
    return codes_of(sparse, page, page_size) + offset * (int64_t)sizeof(float);
}

/* The scale that maps the largest finite magnitude to the largest number of e4m3; 1 without scales.
 */
static float choose_scale(const attn_sparse_dims *sparse, const double *label)
{
    float largest = 1e-4f;
    for (int32_t d = 0; d < sparse->label_dim; d++) {
        float magnitude = fabsf((float)label[d]);
        if (magnitude > largest && !isinf(magnitude))
            largest = magnitude;
    }
    return has_scales(sparse) ? largest / (float)dtype_largest(ATTN_FP8_E4M3) : 1;
}

void reference_label_store(const attn_sparse_dims *sparse, int64_t page_size, const double *label,
                           void *page, int64_t offset)
{
    float scale = choose_scale(sparse, label);
    if (has_scales(sparse))
        memcpy(scale_of(sparse, page_size, page, offset), &scale, sizeof scale);
    for (int32_t d = 0; d < sparse->label_dim; d++)
        dtype_quantise(sparse->label_dtype, codes_of(sparse, page, offset), d, (float)label[d],
                       scale);
}

void reference_label_load(const attn_sparse_dims *sparse, int64_t page_size, const void *page,
                          int64_t offset, double *label)
{
    float scale = 1;
    if (has_scales(sparse))
        memcpy(&scale, scale_of(sparse, page_size, page, offset), sizeof scale);
    dtype_dequantise_all(sparse->label_dtype, codes_of(sparse, page, offset), sparse->label_dim,
                         scale, label);
}

void reference_label_round(const attn_sparse_dims *sparse, double *label)
{
    dtype_as_stored(sparse->label_dtype, label, sparse->label_dim, choose_scale(sparse, label));
}

/* ---- Logits ---------------------------------------------------------------------------------- */

/* Names as in docs/ABI.md, "The pass rule". */
static const double w32 = 0x1p-24, cut_of_codes = 0x1p-14;

/* Dot products of a label with the queries of heads [first, first + HEADS): sums and those of magnitudes, side by
 * side, as a chain of additions is slow. Heads beyond the last one get what the last one gets. */
enum { HEADS = 8 };

static void multiply(const reference_index *index, int32_t first, const double *label,
                     double sums[HEADS], double sizes[HEADS])
{
    const double *q[HEADS];
    for (int32_t n = 0; n < HEADS; n++) {
        int32_t head = first + n < index->heads ? first + n : index->heads - 1;
        q[n] = index->q + (int64_t)head * index->dim;
        sums[n] = sizes[n] = 0;
    }
    for (int32_t d = 0; d < index->dim; d++)
        for (int32_t n = 0; n < HEADS; n++) {
            sums[n] += q[n][d] * label[d];
            sizes[n] += fabs(q[n][d] * label[d]);
        }
}

/* Heads whose sums stay below zero lose nothing. */
static double logit_of(const reference_index *index, const double *label, double deviations,
                       double *bar)
{
    double sums[HEADS], sizes[HEADS];
    double c = index->multiplies_codes ? cut_of_codes : 0, dim = index->dim;
    double logit = 0, sum = 0, random = 0, drift = 0;
    for (int32_t h = 0; h < index->heads; h++) {
        if (h % HEADS == 0)
            multiply(index, h, label, sums, sizes);
        double s = sums[h % HEADS], size = sizes[h % HEADS], weight = index->weights[h];
        double sigma = sqrt(dim * (w32 * w32 + c * c) / 3) * size;
        double shift = w32 * (4 + dim / 16) * size + c * dim / 2 * fabs(s);
        if (s + deviations * sigma + shift <= 0)
            continue;
        logit += weight * fmax(s, 0);
        sum += fabs(weight) * fmax(s, 0);
        random += weight * weight * sigma * sigma;
        drift += fabs(weight) * shift;
    }
    double heads = index->heads;
    random += heads * w32 * w32 * sum * sum / 3;
    *bar = deviations * sqrt(random) + drift + w32 * (4 + heads / 16) * sum + 0x1p-126;
    return logit;
}

void reference_index_logits(const reference_index *index, const reference_labels *labels,
                            double *label, double *logits, double *bars)
{
    double k = sqrt(2 * log(2 * ((double)index->kv_len + 1) / reference_false_alarm()));
    for (int64_t j = 0; j < index->kv_len; j++) {
        double bar = 0;
        logits[j] = -INFINITY;
        if (reference_sees(&index->sight, j)) {
            labels->read(labels->ctx, j, label);
            logits[j] = logit_of(index, label, k, &bar);
        }
        if (bars)
            bars[j] = isfinite(bar) ? bar : 0;
    }
}

/* ---- Choices --------------------------------------------------------------------------------- */

static int is_seen(double logit)
{
    return !(isinf(logit) && logit < 0);
}

static int32_t count_to_choose(const double *logits, int64_t kv_len, int32_t top_k)
{
    int64_t seen = 0;
    for (int64_t j = 0; j < kv_len; j++)
        seen += is_seen(logits[j]);
    return seen < top_k ? (int32_t)seen : top_k;
}

static void clear(uint8_t *chosen, int64_t kv_len)
{
    for (int64_t j = 0; j < kv_len; j++)
        chosen[j] = 0;
}

static double bar_of(const double *bars, int64_t j)
{
    return bars ? bars[j] : 0;
}

/* Mark the chosen keys; the first invalid one is the fault. */
static void mark_all(const double *logits, int64_t kv_len, const int64_t *keys, int32_t count,
                     uint8_t *chosen, reference_choice *choice)
{
    clear(chosen, kv_len);
    for (int32_t n = 0; n < count; n++) {
        int64_t j = keys[n];
        int32_t code = j < 0 || j >= kv_len  ? REFERENCE_CHOICE_NO_KEY
                       : chosen[j]           ? REFERENCE_CHOICE_TWICE
                       : !is_seen(logits[j]) ? REFERENCE_CHOICE_UNSEEN
                                             : REFERENCE_CHOICE_RIGHT;
        if (code != REFERENCE_CHOICE_NO_KEY)
            chosen[j] = 1;
        if (code == REFERENCE_CHOICE_RIGHT || choice->code != REFERENCE_CHOICE_RIGHT)
            continue;
        choice->code = code;
        choice->key = j;
    }
}

/* The worst that was taken, at its best, against the best that was not, at its worst. */
static void compare_sides(const double *logits, const double *bars, int64_t kv_len,
                          const uint8_t *chosen, reference_choice *choice)
{
    choice->key = choice->rival = -1;
    for (int64_t j = 0; j < kv_len; j++) {
        int64_t worst = choice->key, best = choice->rival;
        if (chosen[j] &&
            (worst < 0 || logits[j] + bar_of(bars, j) < logits[worst] + bar_of(bars, worst)))
            choice->key = j;
        if (!chosen[j] && is_seen(logits[j]) &&
            (best < 0 || logits[j] - bar_of(bars, j) > logits[best] - bar_of(bars, best)))
            choice->rival = j;
    }
    if (choice->key < 0 || choice->rival < 0)
        return;
    choice->logit = logits[choice->key];
    choice->rival_logit = logits[choice->rival];
    choice->bar = bar_of(bars, choice->key) + bar_of(bars, choice->rival);
    if (choice->rival_logit - choice->logit > choice->bar)
        choice->code = REFERENCE_CHOICE_WORSE;
}

reference_choice reference_judge_choice(const double *logits, const double *bars, int64_t kv_len,
                                        int32_t top_k, const int64_t *keys, int32_t count,
                                        uint8_t *chosen)
{
    reference_choice choice = {.count = count, .expected = count_to_choose(logits, kv_len, top_k)};
    mark_all(logits, kv_len, keys, count, chosen, &choice);
    if (choice.code == REFERENCE_CHOICE_RIGHT && count != choice.expected)
        choice.code = REFERENCE_CHOICE_COUNT;
    if (choice.code == REFERENCE_CHOICE_RIGHT)
        compare_sides(logits, bars, kv_len, chosen, &choice);
    return choice;
}

void reference_choose(const double *logits, int64_t kv_len, int32_t top_k, uint8_t *chosen)
{
    int32_t count = count_to_choose(logits, kv_len, top_k);
    clear(chosen, kv_len);
    for (int32_t n = 0; n < count; n++) {
        int64_t best = -1;
        for (int64_t j = 0; j < kv_len; j++)
            if (!chosen[j] && is_seen(logits[j]) && (best < 0 || logits[j] > logits[best]))
                best = j;
        if (best >= 0)
            chosen[best] = 1;
    }
}

void reference_choice_text(const reference_choice *choice, char text[REFERENCE_CHOICE_TEXT])
{
    static const char *const faults[] = {
        [REFERENCE_CHOICE_NO_KEY] = "is chosen, but is not a key of the sequence",
        [REFERENCE_CHOICE_TWICE] = "is chosen twice",
        [REFERENCE_CHOICE_UNSEEN] = "is chosen, but the query does not see it",
    };
    long long key = choice->key, rival = choice->rival;
    if (choice->code == REFERENCE_CHOICE_RIGHT)
        snprintf(text, REFERENCE_CHOICE_TEXT, "%d keys are chosen", choice->count);
    else if (choice->code == REFERENCE_CHOICE_COUNT)
        snprintf(text, REFERENCE_CHOICE_TEXT, "%d keys are chosen; accepted: %d", choice->count,
                 choice->expected);
    else if (choice->code == REFERENCE_CHOICE_WORSE)
        snprintf(
            text, REFERENCE_CHOICE_TEXT,
            "key %lld (logit %.9g) is chosen, key %lld (logit %.9g) is not; accepted error: %.2g",
            key, choice->logit, rival, choice->rival_logit, choice->bar);
    else
        snprintf(text, REFERENCE_CHOICE_TEXT, "key %lld %s", key, faults[choice->code]);
}
