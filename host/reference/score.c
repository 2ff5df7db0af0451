/* SPDX-License-Identifier: Apache-2.0
 *
 * score.c: visibility of keys, and their scores.
 */
#include "host/reference/row.h"

#include <math.h>
#include <stddef.h>

reference_sight reference_sight_all(void)
{
    return (reference_sight){
        .mask_kind = ATTN_MASK_LAYER,
        .has_position = 1,
        .window_left = -1,
        .window_right = -1,
    };
}

int64_t reference_key_position(const reference_sight *sight, int64_t j)
{
    if (sight->key_positions && j >= sight->prefix_len)
        return sight->key_positions[j - sight->prefix_len];
    return j;
}

static int has_bits(const reference_sight *sight)
{
    return sight->mask_kind == ATTN_MASK_FULL || sight->mask_kind == ATTN_MASK_QLEN;
}

static int sees_by_bits(const reference_sight *sight, int64_t j)
{
    int64_t column = sight->mask_kind == ATTN_MASK_QLEN ? j - sight->prefix_len : j;
    if (column < 0)
        return 1; /* QLEN has no bits for the prefix: all of it is seen */
    if (column >= sight->mask_columns)
        return 0;
    int64_t bit = sight->mask_first_bit + column;
    return sight->mask_bits[bit / 8] >> bit % 8 & 1;
}

static int64_t floor_divide(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

/* Limits that apply to every mask kind, and the causal rule, which belongs to LAYER. */
static int sees_by_position(const reference_sight *sight, int64_t key)
{
    int64_t query = sight->position;
    if (sight->mask_kind == ATTN_MASK_LAYER && sight->window_right >= 0 &&
        key > query + sight->window_right)
        return 0;
    if (sight->window_left >= 0 && key < query - sight->window_left)
        return 0;
    if (sight->attention_chunk > 0) {
        int64_t chunk = sight->attention_chunk;
        if (floor_divide(key, chunk) != floor_divide(query, chunk))
            return 0;
        if (key > query && !has_bits(sight))
            return 0;
    }
    return 1;
}

/* Items after a common prefix; a delimiter counts no token of its item, so it sees no key but the
 * prefix. */
static int sees_by_item(const reference_sight *sight, int64_t j)
{
    int64_t query = sight->position;
    if (j > query)
        return 0;
    if (query < sight->items_prefix_len || j < sight->items_prefix_len)
        return 1;
    return j > query - sight->token_pos_in_item;
}

int reference_sees(const reference_sight *sight, int64_t j)
{
    if (j < sight->first_key || (sight->chosen && !sight->chosen[j]))
        return 0;
    if (has_bits(sight) && !sees_by_bits(sight, j))
        return 0;
    if (sight->has_position && !sees_by_position(sight, reference_key_position(sight, j)))
        return 0;
    return !sight->has_items || sees_by_item(sight, j);
}

/* As sees_by_position() has it, where j is the position. */
static void narrow(const reference_sight *sight, int64_t *first, int64_t *end)
{
    int64_t query = sight->position, chunk = sight->attention_chunk;
    int64_t least = 0, most = INT64_MAX - 1;
    if (sight->mask_kind == ATTN_MASK_LAYER && sight->window_right >= 0)
        most = query + sight->window_right;
    if (sight->window_left >= 0)
        least = query - sight->window_left;
    if (chunk > 0) {
        int64_t start = floor_divide(query, chunk) * chunk;
        least = start > least ? start : least;
        most = query < most ? query : most;
    }
    *first = least > *first ? least : *first;
    *end = most + 1 < *end ? most + 1 : *end;
}

int reference_sight_range(const reference_sight *sight, int64_t kv_len, int64_t *first,
                          int64_t *end)
{
    int exact = !has_bits(sight) && !sight->key_positions && !sight->has_items && !sight->chosen;
    *first = sight->first_key > 0 ? sight->first_key : 0;
    *end = kv_len;
    if (exact && sight->has_position)
        narrow(sight, first, end);
    if (*end < *first)
        *end = *first;
    return exact;
}

double reference_distance(const reference_sight *sight, int64_t j)
{
    if (!sight->has_position)
        return 0;
    return fabs((double)(sight->position - reference_key_position(sight, j)));
}

static double dot(const double *a, const double *b, int32_t count, double *absolute)
{
    double sum[ROW_SUMS] = {0}, magnitudes[ROW_SUMS] = {0};
    for (int32_t d = 0; d < count; d++) {
        int lane = d < count / ROW_SUMS * ROW_SUMS ? d % ROW_SUMS : 0;
        sum[lane] += a[d] * b[d];
        magnitudes[lane] += fabs(a[d] * b[d]);
    }
    *absolute = (magnitudes[0] + magnitudes[1]) + (magnitudes[2] + magnitudes[3]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

double reference_score(const reference_row *row, const double *key, int64_t j, double *size)
{
    return reference_score_of_sum(row, dot(row->query, key, row->head_dim, size), j, size);
}

double reference_score_of_sum(const reference_row *row, double sum, int64_t j, double *size)
{
    double score = row->sm_scale * sum;
    *size *= fabs(row->sm_scale);
    if (row->alibi_slope != 0) {
        double bias = row->alibi_slope * reference_distance(&row->sight, j);
        score -= bias;
        *size += fabs(bias);
    }
    if (row->logit_cap > 0) {
        double capped = tanh(score / row->logit_cap);
        score = row->logit_cap * capped;
        *size *= 1 - capped * capped; /* the slope there */
    }
    return score;
}
