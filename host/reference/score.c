/* SPDX-License-Identifier: Apache-2.0
 *
 * score.c: which keys a query sees, and what score a key has.
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

/* What narrows every mask kind, and the causal rule, which is one of LAYER. */
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
    if (j < sight->first_key)
        return 0;
    if (has_bits(sight) && !sees_by_bits(sight, j))
        return 0;
    if (sight->has_position && !sees_by_position(sight, reference_key_position(sight, j)))
        return 0;
    return !sight->has_items || sees_by_item(sight, j);
}

double reference_distance(const reference_sight *sight, int64_t j)
{
    if (!sight->has_position)
        return 0;
    return fabs((double)(sight->position - reference_key_position(sight, j)));
}

/* Four sums side by side: fp64 has precision to spare, and a chain of additions is slow. *absolute
 * gets the sum of the magnitudes. */
static ROW_WIDE double dot(const double *a, const double *b, int32_t count, double *absolute)
{
    double sum[4] = {0, 0, 0, 0}, magnitudes[4] = {0, 0, 0, 0};
    int32_t d = 0;
    for (; d + 4 <= count; d += 4)
        for (int lane = 0; lane < 4; lane++) {
            double term = a[d + lane] * b[d + lane];
            sum[lane] += term;
            magnitudes[lane] += fabs(term);
        }
    for (; d < count; d++) {
        sum[0] += a[d] * b[d];
        magnitudes[0] += fabs(a[d] * b[d]);
    }
    *absolute = (magnitudes[0] + magnitudes[1]) + (magnitudes[2] + magnitudes[3]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

double reference_score(const reference_row *row, const double *key, int64_t j, double *size)
{
    double score = row->sm_scale * dot(row->query, key, row->head_dim, size);
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
