/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_case_indexer.c: what cases of sparse layers with an indexer have of their own: its operands, the label
 * cache, the steps of a call, and the judgement of what was chosen.
 *
 * Labels are of seven sizes, so that their scales tell them apart: five, one below the least largest magnitude that a
 * scale is made of, and zero. What no query sees is NaN.
 */
#include "host/check/cases/forward_case_private.h"

#include "host/base/dtype.h"

#include <math.h>
#include <string.h>

/* Elements divided by 2^BELOW_LEAST are below 1e-4. */
enum { SIZES = 7, BELOW_LEAST = 15, ZERO = 6, FEW_LABELS = 40, LONGEST_LABEL = 256 };

static bool has_codes(const struct case_spec *spec)
{
    return spec->indexer.label_dtype == ATTN_FP8_E4M3;
}

const char *case_indexer_defect(const struct case_spec *spec)
{
    const struct case_indexer *indexer = &spec->indexer;
    if (!case_is_absorbed(spec) || case_has_blocks(spec) || spec->read_only_layer ||
        indexer->label_dim < 1 || indexer->label_dim > LONGEST_LABEL ||
        (has_codes(spec) && indexer->label_dim % 4 != 0))
        return "indexer";
    return NULL;
}

void case_indexer_lay_out(struct forward_case *c, int64_t rows, int64_t new_rows)
{
    const struct case_spec *spec = &c->spec;
    const struct case_indexer *indexer = &spec->indexer;
    const int64_t heads = indexer->heads, dim = indexer->label_dim, page = spec->page_size;
    const int64_t codes[] = {c->num_pages, page * reference_label_bytes(&c->posed.sparse)};
    const int64_t plain[] = {c->num_pages, page, dim};
    case_add_tensor(c, PART_INDEX_Q, indexer->q_dtype, 3, (int64_t[]){rows, heads, dim});
    case_add_tensor(c, PART_INDEX_WEIGHTS, ATTN_F32, 2, (int64_t[]){rows, heads});
    if (!spec->from_cache)
        case_add_tensor(c, PART_INDEX_K, attn_new_kv_dtype(&c->posed.problem), 2,
                        (int64_t[]){new_rows, dim});
    case_add_tensor(c, PART_INDEX_LOGITS, ATTN_F32, 2, (int64_t[]){rows, c->stride_slots});
    case_add_tensor(c, PART_LABEL_CACHE, has_codes(spec) ? ATTN_U8 : indexer->label_dtype,
                    has_codes(spec) ? 2 : 3, has_codes(spec) ? codes : plain);
}

/* ---- Placing --------------------------------------------------------------------------------- */

/* Of few bits, so that every dtype but e4m3 holds it. */
static double number(uint64_t stream, uint64_t n)
{
    return (draw_at(stream, n, 255) - 127) / 64.0;
}

/* What the elements of a label of this size are multiplied by. */
static double factor_of(int32_t size)
{
    return size == ZERO ? 0 : 1.0 / (1 << (size == ZERO - 1 ? BELOW_LEAST : size));
}

static void make_label(const struct forward_case *c, int32_t s, int32_t j, double *label)
{
    const bool ties = c->spec.indexer.has_ties;
    const uint64_t key = (uint64_t)case_key_token(c, s, j);
    uint64_t stream = case_stream(c->seed, DRAW_INDEXER, 0, key, 0);
    const int32_t kind = draw_at(stream, UINT64_MAX, ties ? FEW_LABELS : SIZES);
    if (ties)
        stream = case_stream(c->seed, DRAW_INDEXER, 1, (uint64_t)kind, 0);
    for (int32_t d = 0; d < c->spec.indexer.label_dim; d++)
        label[d] = number(stream, (uint64_t)d) * factor_of(kind % SIZES);
}

/* INDEX_Q and INDEX_WEIGHTS of a row, which is zero for padding. */
static void put_query(struct forward_case *c, int64_t row, uint64_t stream, bool is_real)
{
    const struct case_indexer *indexer = &c->spec.indexer;
    for (int32_t h = 0; h < indexer->heads; h++) {
        char *q = case_vector(c, c->image, PART_INDEX_Q, row, h, 0);
        const uint64_t first = (uint64_t)h * (uint64_t)(indexer->label_dim + 1);
        double x[LONGEST_LABEL];
        for (int32_t d = 0; d < indexer->label_dim; d++)
            x[d] = is_real ? number(stream, first + 1 + (uint64_t)d) : 0;
        dtype_from_double(indexer->q_dtype, x, indexer->label_dim, q);
        dtype_store(ATTN_F32, case_vector(c, c->image, PART_INDEX_WEIGHTS, row, h, 0), 0,
                    is_real ? number(stream, first) : 0);
    }
}

static void put_queries(struct forward_case *c)
{
    const struct case_lengths *l = &c->lengths;
    for (int32_t s = 0; s < l->num_seqs; s++)
        for (int32_t t = 0; t < l->q_len[s]; t++) {
            const bool is_real = s < l->num_real_seqs;
            const uint64_t token = is_real ? (uint64_t)case_query_token(c, s, t) : 0;
            put_query(c, l->first_row[s] + t, case_stream(c->seed, DRAW_INDEXER, 2, token, 0),
                      is_real);
        }
    for (int32_t n = 0; n < l->spare; n++)
        put_query(c, l->first_row[l->num_seqs] + n, 0, false);
}

/* In a page codes come before scales; without scales the label is alone. */
static void put_cached(struct forward_case *c, int64_t slot, const double *label)
{
    const int64_t page = c->spec.page_size, number = slot % page;
    const bool codes = has_codes(&c->spec);
    char *at = case_vector(c, c->image, PART_LABEL_CACHE, slot / page, codes ? 0 : number, 0);
    reference_label_store(&c->posed.sparse, page, label, at, codes ? number : 0);
}

/* Does a query of the sequence see key j? */
static bool is_seen(const struct forward_case *c, int32_t s, int32_t j)
{
    bool seen = false;
    for (int32_t t = 0; t < c->lengths.q_len[s] && !seen; t++) {
        const reference_sight sight = case_sight(c, s, t);
        seen = reference_sees(&sight, j);
    }
    return seen;
}

/* New ones in rows of INDEX_K, the others in the cache. */
static void put_labels(struct forward_case *c, int32_t s)
{
    const struct case_lengths *l = &c->lengths;
    const attn_dtype dtype = attn_new_kv_dtype(&c->posed.problem);
    double label[LONGEST_LABEL];
    for (int32_t j = 0; j < l->kv_len[s]; j++) {
        const int32_t n = j - (l->kv_len[s] - l->num_new[s]);
        make_label(c, s, j, label);
        if (c->spec.from_cache || n < 0) {
            if (case_is_shared(c, s, j) || is_seen(c, s, j))
                put_cached(c, case_slot(c, s, j), label);
            continue;
        }
        if (has_codes(&c->spec) && j % 5 == 3) /* saturated, and of no weight for the scale */
            label[0] = (double)INFINITY;
        char *row = case_vector(c, c->image, PART_INDEX_K, l->first_new[s] + n, 0, 0);
        dtype_from_double(dtype, label, c->spec.indexer.label_dim, row);
    }
}

void case_indexer_place(struct forward_case *c)
{
    const double zero[LONGEST_LABEL] = {0};
    for (int64_t slot = 0; slot < c->spec.page_size; slot++)
        put_cached(c, slot, zero);
    put_queries(c);
    for (int32_t s = 0; s < c->lengths.num_real_seqs; s++)
        put_labels(c, s);
}

/* ---- Steps ----------------------------------------------------------------------------------- */

#define LOGITS  (ROLE(INDEX_LOGITS))
#define INDEXER (ROLE(INDEX_Q) | ROLE(INDEX_WEIGHTS) | ROLE(INDEX_K) | ROLE(LABEL_CACHE))
#define CHOICE  (ROLE(SPARSE_INDICES) | ROLE(SPARSE_COUNT))
#define LAYER   (ROLE(SINKS)) /* of each call, whatever it computes */

int32_t case_num_steps(const struct case_spec *spec)
{
    return spec->indexer.by_steps ? 3 : 1;
}

uint64_t case_roles_of(const struct case_spec *spec, int32_t step)
{
    static const uint64_t roles[] = {INDEXER | LOGITS | LAYER, LOGITS | CHOICE | LAYER,
                                     ~(INDEXER | LOGITS)};
    return spec->indexer.by_steps ? roles[step] : ~UINT64_C(0);
}

/* ---- Judging --------------------------------------------------------------------------------- */

void case_indexer_take(const struct forward_case *c, struct case_view *view)
{
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
        if (view->operands[role] && (LOGITS | CHOICE) >> role & 1)
            view->tensors[role].data =
                c->actual + ((const char *)view->tensors[role].data - c->image);
}

/* Of one call all by the truth; of steps the logits by the truth, and the choice by these logits. */
attn_status case_indexer_judge(const struct forward_case *c, struct case_view *view,
                               reference_choice_report *report, attn_error *error)
{
    const attn_tensor *given[ATTN_ROLE_COUNT];
    attn_status status = ATTN_OK;
    memcpy(given, view->operands, sizeof given);
    for (int32_t step = 0; step < 2 && step < case_num_steps(&c->spec) && status == ATTN_OK;
         step++) {
        for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++)
            view->operands[role] = case_roles_of(&c->spec, step) >> role & 1 ? given[role] : NULL;
        status = reference_check_choice(&c->posed.problem, &view->batch,
                                        c->posed.layers[0].layer_id, &view->args, report, error);
    }
    memcpy(view->operands, given, sizeof given);
    return status;
}

void case_indexer_allow_slot_0(const struct forward_case *c, char *expected, const char *actual)
{
    const uint64_t dim = (uint64_t)c->spec.indexer.label_dim, page = (uint64_t)c->spec.page_size;
    const uint64_t at = (uint64_t)(case_vector(c, expected, PART_LABEL_CACHE, 0, 0, 0) - expected);
    memcpy(expected + at, actual + at, dim * attn_dtype_size(c->shapes[PART_LABEL_CACHE].dtype));
    if (has_codes(&c->spec))
        memcpy(expected + at + page * dim, actual + at + page * dim, sizeof(float));
}
