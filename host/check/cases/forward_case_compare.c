/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_case_compare.c: compares copies of a case's arena: the results of two runs, and the bytes
 * that a run may write. */
#include "host/check/cases/linear_case.h"

#include "host/base/dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Parts ----------------------------------------------------------------------------------- */

const struct case_part_kind case_part_kinds[CASE_PARTS] = {
#define PART_KIND(name, text, sorts, number) [PART_##name] = {text, sorts, number},
    CASE_PART_MAP(PART_KIND)
#undef PART_KIND
};

enum case_part_id case_part_at(const struct forward_case *c, uint64_t at)
{
    enum case_part_id nearest = PART_SEQ_LENS;
    uint64_t least = UINT64_MAX;
    for (enum case_part_id part = 0; part < CASE_PARTS; part++) {
        uint64_t begin = c->parts[part].offset, end = begin + c->parts[part].bytes;
        uint64_t distance = at < begin ? begin - at : at >= end ? at - end + 1 : 0;
        if (c->parts[part].bytes && distance < least) {
            least = distance;
            nearest = part;
        }
    }
    return nearest;
}

static int64_t vector_length(const struct case_shape *shape)
{
    return shape->ndim == 3 ? shape->shape[2] : 1;
}

size_t case_vector_bytes(const struct forward_case *c, enum case_part_id part)
{
    const struct case_shape *shape = &c->shapes[part];
    return (size_t)vector_length(shape) * attn_dtype_size(shape->dtype);
}

/* ---- What a run may write to ----------------------------------------------------------------- */

int64_t case_num_vectors(const struct forward_case *c, enum case_part_id part, int64_t row)
{
    const struct case_shape *shape = &c->shapes[part];
    const struct case_lengths *l = &c->lengths;
    const uint32_t role = case_part_kinds[part].number;
    const bool of_indexer = role == ATTN_ROLE_INDEX_LOGITS || role == ATTN_ROLE_SPARSE_INDICES ||
                            role == ATTN_ROLE_SPARSE_COUNT;
    if (!c->parts[part].bytes || !case_part_is(part, CASE_OUTPUT) ||
        (of_indexer && !case_has_indexer(&c->spec)))
        return 0;
    if (role == ATTN_ROLE_INDEX_LOGITS && row < l->first_row[l->num_real_seqs])
        return l->kv_len[case_sequence_of(c, row)];
    return shape->ndim == 1 ? 1 : shape->shape[1];
}

int32_t case_sequence_of(const struct forward_case *c, int64_t row)
{
    int32_t s = 0;
    while (s + 1 < c->lengths.num_real_seqs && row >= c->lengths.first_row[s + 1])
        s++;
    return s;
}

void case_allow_rows(const struct forward_case *c, int64_t first, char *expected, char *actual)
{
    const struct case_lengths *l = &c->lengths;
    for (enum case_part_id part = 0; part < CASE_PARTS; part++)
        for (int64_t row = first; row < l->first_row[l->num_seqs] + l->spare; row++)
            for (int64_t head = 0; head < case_num_vectors(c, part, row); head++)
                memcpy(case_vector(c, expected, part, row, head, 0),
                       case_vector(c, actual, part, row, head, 0), case_vector_bytes(c, part));
}

void case_allow_slot(const struct forward_case *c, enum case_part_id cache, int64_t slot,
                     char *expected, char *actual)
{
    const struct case_shape *shape = &c->shapes[cache];
    size_t size = (size_t)shape->shape[shape->ndim - 1] * attn_dtype_size(shape->dtype);
    int32_t heads = cache == PART_LATENT_CACHE ? 1 : c->spec.num_kv_heads;
    for (int32_t h = 0; h < heads; h++)
        memcpy(case_slot_vector(c, expected, cache, slot, h),
               case_slot_vector(c, actual, cache, slot, h), size);
}

/* Outputs, and the slots of new tokens or of states. */
static void allow_all(const struct forward_case *c, char *expected, char *actual)
{
    const struct case_lengths *l = &c->lengths;
    case_allow_rows(c, l->first_row[0], expected, actual);
    if (c->spec.kind == ATTN_KIND_LINEAR)
        linear_allow_slots(c, expected, actual);
    for (enum case_part_id part = 0; part < CASE_PARTS; part++)
        for (int32_t s = 0; case_is_cache(c, part) && s < l->num_real_seqs; s++)
            for (int32_t j = l->kv_len[s] - l->num_new[s]; j < l->kv_len[s]; j++)
                case_allow_slot(c, part, case_slot(c, s, j), expected, actual);
}

/* The name of the part that has the first difference, or whose red zone has it. */
static const char *first_difference(const struct forward_case *c, const char *a, const char *b)
{
    uint64_t at = 0;
    while (at < c->bytes && a[at] == b[at])
        at++;
    return at < c->bytes ? case_part_name(case_part_at(c, at)) : NULL;
}

const char *case_trespass(const struct forward_case *c, char *left)
{
    char *expected = malloc(c->bytes);
    if (!expected)
        return "no memory to compare";
    memcpy(expected, c->image, c->bytes);
    allow_all(c, expected, left);
    const char *what = first_difference(c, expected, left);
    free(expected);
    return what;
}

/* ---- Two runs -------------------------------------------------------------------------------- */

/* The largest value and the largest difference of a vector; differing NaN are infinitely far. */
static void measure(attn_dtype dtype, const char *a, const char *b, int64_t count, double *largest,
                    double *difference)
{
    for (int64_t i = 0; i < count; i++) {
        double x = dtype_load(dtype, a, i), y = dtype_load(dtype, b, i);
        if (isnan(x) != isnan(y) || (isinf(x) && x != y))
            *difference = INFINITY;
        if (!isfinite(x) || !isfinite(y))
            continue;
        *largest = fmax(*largest, fabs(x));
        *difference = fmax(*difference, fabs(x - y));
    }
}

static bool output_differs(const struct forward_case *c, char *a, char *b, enum case_part_id part,
                           double most)
{
    const struct case_lengths *l = &c->lengths;
    double largest = 0, difference = 0;
    bool same = true;
    for (int64_t row = l->first_row[0]; row < l->first_row[l->num_real_seqs]; row++)
        for (int64_t head = 0; head < c->shapes[part].shape[1]; head++) {
            const char *x = case_vector(c, a, part, row, head, 0);
            const char *y = case_vector(c, b, part, row, head, 0);
            same = same && memcmp(x, y, case_vector_bytes(c, part)) == 0;
            measure(c->shapes[part].dtype, x, y, vector_length(&c->shapes[part]), &largest,
                    &difference);
        }
    return most > 0 ? difference > largest * most : !same;
}

const char *case_output_difference(const struct forward_case *c, char *a, char *b, double most)
{
    static const struct {
        enum case_part_id part;
        const char *name;
    } outputs[] = {{PART_OUT, "the output"},
                   {PART_LSE, "the LSE"},
                   {PART_OUT_SECOND, "the output of the second layer"},
                   {PART_LSE_SECOND, "the LSE of the second layer"}};
    for (int i = 0; i < 4; i++)
        if (c->parts[outputs[i].part].bytes && output_differs(c, a, b, outputs[i].part, most))
            return outputs[i].name;
    return NULL;
}

const char *case_difference(const struct forward_case *c, char *a, char *b, double most)
{
    const char *what = case_output_difference(c, a, b, most);
    for (enum case_part_id part = 0; part < CASE_PARTS && !what; part++) {
        const struct case_part *at = &c->parts[part];
        bool output = part == PART_OUT || part == PART_LSE;
        if (!output && memcmp(a + at->offset, b + at->offset, at->bytes) != 0)
            what = case_part_name(part);
    }
    return what;
}
