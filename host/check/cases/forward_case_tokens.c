/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_case_tokens.c: queries, keys and values of a case, with needles at the borders.
 *
 * In each sequence and KV head there is a direction u of ones and minus ones. An ordinary key leans
 * against it, a needle key is u itself. An ordinary query is random, some with peaked scores; a
 * query of a needle row is a multiple of u: all needle keys it sees have one and the same high
 * score, all others next to no weight, so its output is the mean of the needle keys' values. One
 * key more or less moves that mean by ten bars or more: the judge asks the oracle for each needle.
 */
#include "host/check/cases/forward_case_private.h"

#include "host/base/dtype.h"
#include "host/base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    NEEDLE_KEYS = 24,      /* of a sequence and KV head */
    NEEDLE_KEYS_FEW = 6,   /* where their scores are not quite equal, or bars are wide */
    NEEDLE_KEYS_LARGE = 8, /* beside thousands of ordinary keys */
    LARGE = 4096,
    NEEDLE_KINDS = 8, /* of their values */
    NEEDLE_ROWS = 3,  /* queries of a sequence that point at them */
    MAX_BORDERS = 1024
};
static const float needle_score = 7.5f, needle_value = 4, growth = 130;

static bool has_few_needles(const struct forward_case *c)
{
    return c->spec.alibi || dtype_is_fp8(c->spec.q_dtype) || dtype_is_fp8(c->spec.out_dtype);
}

static float sm_scale_of(const struct forward_case *c)
{
    return c->posed.group.sm_scale;
}

static bool has_sizes(const struct case_spec *spec)
{
    return spec->key_size > 0 || spec->value_size > 0;
}

/* Magnitudes; a latent's value is a part of its key. */
static float key_size(const struct forward_case *c)
{
    return c->spec.key_size > 0 ? c->spec.key_size : 1;
}

static float value_size(const struct forward_case *c)
{
    if (case_is_absorbed(&c->spec))
        return key_size(c);
    return c->spec.value_size > 0 ? c->spec.value_size : 1;
}

/* ---- Which tokens ---------------------------------------------------------------------------- */

int32_t case_tokens_of(const struct forward_case *c, int32_t s)
{
    bool repeats = c->spec.num_sequences > FORWARD_CASE_MAX_SEQS;
    return repeats ? s : c->spec.sequences[s].tokens_of;
}

int64_t case_query_token(const struct forward_case *c, int32_t s, int32_t t)
{
    const struct case_sequence *sequence = case_sequence_at(&c->spec, s);
    return c->tokens->first_q[case_tokens_of(c, s)] + sequence->first_query + t;
}

int64_t case_key_token(const struct forward_case *c, int32_t s, int32_t j)
{
    while (j < case_sequence_at(&c->spec, s)->shared)
        s = case_sharer(&c->spec, s);
    const struct case_sequence *sequence = case_sequence_at(&c->spec, s);
    return c->tokens->first_k[case_tokens_of(c, s)] + sequence->first_key + j;
}

static float *query_of(const struct forward_case *c, int32_t s, int32_t t, int32_t head)
{
    int64_t row = case_query_token(c, s, t) * c->spec.num_q_heads + head;
    return c->tokens->q + row * c->spec.head_dim;
}

static float *key_of(const struct forward_case *c, int32_t s, int32_t j, int32_t head)
{
    int64_t row = case_key_token(c, s, j) * c->spec.num_kv_heads + head;
    return c->tokens->k + row * c->spec.head_dim;
}

/* The value of a latent is the first part of its key. */
static float *value_of(const struct forward_case *c, int32_t s, int32_t j, int32_t head)
{
    if (case_is_absorbed(&c->spec))
        return key_of(c, s, j, head);
    int64_t row = case_key_token(c, s, j) * c->spec.num_kv_heads + head;
    return c->tokens->v + row * c->spec.v_head_dim;
}

/* ---- Vectors --------------------------------------------------------------------------------- */

/* To what the dtype holds; what is fp8 is rounded by its scale, when it is placed. */
static void round_vector(attn_dtype dtype, float *vector, int32_t count)
{
    if (!dtype_is_fp8(dtype))
        dtype_round_floats(dtype, vector, count);
}

static attn_dtype key_dtype(const struct forward_case *c)
{
    return attn_new_kv_dtype(&c->posed.problem);
}

/* The direction of a KV head, of the sequence whose tokens are made. */
static float *direction_of(const struct forward_case *c, int32_t head)
{
    return c->tokens->directions + (int64_t)head * c->spec.head_dim;
}

/* The component by which scores are -inf; of a latent one of k_pe, or one that is a value, too. */
static int32_t lost_component(const struct forward_case *c)
{
    return case_is_absorbed(&c->spec) && !c->spec.lost_values ? c->spec.latent.kv_lora_rank : 0;
}

/* Directions of a sequence: components of 1 or -1; 0 in a key's part that is its value. */
static void make_directions(struct forward_case *c, int32_t s)
{
    for (int32_t head = 0; head < c->spec.num_kv_heads; head++) {
        uint64_t stream = case_stream(c->seed, DRAW_DIRECTION, (uint64_t)s, (uint64_t)head, 0);
        float *direction = direction_of(c, head);
        for (int32_t d = 0; d < c->spec.head_dim; d++)
            direction[d] = mix_stream(stream, (uint64_t)d) >> 63 ? 1.0f : -1.0f;
        if (c->spec.lost_keys > 0) /* where keys are -inf queries are above 0 */
            direction[lost_component(c)] = 1;
        for (int32_t d = 0; case_is_absorbed(&c->spec) && d < c->spec.latent.kv_lora_rank; d++)
            direction[d] = 0;
    }
}

/* How many components it has. */
static int32_t direction_dim(const struct forward_case *c)
{
    return case_is_absorbed(&c->spec) ? c->spec.latent.rope_dim : c->spec.head_dim;
}

static void make_key(struct forward_case *c, int32_t s, int32_t j, int32_t head)
{
    uint64_t stream = case_stream(c->seed, DRAW_K, (uint64_t)s, (uint64_t)j, (uint64_t)head);
    uint64_t values = case_stream(c->seed, DRAW_V, (uint64_t)s, (uint64_t)j, (uint64_t)head);
    float *key = key_of(c, s, j, head), *value = value_of(c, s, j, head);
    const float *direction = direction_of(c, head), size = key_size(c), v_size = value_size(c);
    int32_t dim = c->spec.head_dim;
    float length = growth * (float)j / (float)c->lengths.kv_len[s] /
                   (sm_scale_of(c) * (float)direction_dim(c));
    for (int32_t d = 0; d < dim; d++) {
        float noise = case_unit(stream, (uint64_t)d);
        key[d] =
            c->spec.growing_scores ? length + 0.01f * noise : 0.7f * noise - 0.5f * direction[d];
    }
    for (int32_t d = 0; d < dim; d++)
        key[d] *= size;
    for (int32_t d = 0; d < c->spec.v_head_dim; d++)
        value[d] = v_size * case_unit(values, (uint64_t)d);
    if (j < c->spec.lost_keys)
        key[lost_component(c)] = -INFINITY;
    if (j < c->spec.lost_keys && c->spec.lost_values && !case_is_absorbed(&c->spec))
        value[j % c->spec.v_head_dim] = j % 3 ? NAN : INFINITY;
    round_vector(key_dtype(c), key, dim);
    round_vector(key_dtype(c), value, c->spec.v_head_dim);
}

static void make_query(struct forward_case *c, int32_t s, int32_t t, int32_t head)
{
    static const float peaks[] = {1, 1, 3, 6};
    uint64_t stream = case_stream(c->seed, DRAW_Q, (uint64_t)s, (uint64_t)t, (uint64_t)head);
    float *query = query_of(c, s, t, head);
    int32_t dim = c->spec.head_dim;
    float peak = peaks[draw_at(stream, UINT64_MAX, 4)] / (sm_scale_of(c) * sqrtf((float)dim));
    float size = key_size(c);
    for (int32_t d = 0; d < dim; d++)
        query[d] = (c->spec.growing_scores ? 1 : peak * case_unit(stream, (uint64_t)d)) / size;
    if (c->spec.lost_keys > 0)
        query[lost_component(c)] = fabsf(query[lost_component(c)]) + 0.1f;
    round_vector(c->spec.q_dtype, query, dim);
}

/* What a needle key's value is large by, and in which components: every NEEDLE_KINDS-th one; where
 * one key stands out among few, leaving it out moves much and roundings move little. Which ones and
 * which sign follow from `number`, by which the needles of a sequence are counted, and not from j:
 * pages and splits begin at multiples of powers of two, and keys at their borders would all be
 * alike. */
static float needle_peak(const struct forward_case *c, int32_t number, int32_t d)
{
    int32_t kinds = c->spec.v_head_dim < NEEDLE_KINDS ? c->spec.v_head_dim : NEEDLE_KINDS;
    /* Two that are made together have the same components with opposite signs, so that sums are
     * near 0 and one is never the other. Few have components of their own, each: where their scores
     * are not quite equal, one that weighs little is not lost beside one that weighs more. */
    int32_t kind = has_few_needles(c) ? number : number / 2;
    int32_t sign = has_few_needles(c) ? number % kinds + number / kinds : number;
    if (kind % kinds != d % kinds)
        return 0;
    return sign % 2 ? -needle_value : needle_value;
}

static void make_needle_key(struct forward_case *c, int32_t s, int32_t j, int32_t head,
                            int32_t number)
{
    uint64_t stream = case_stream(c->seed, DRAW_NEEDLES, (uint64_t)s, (uint64_t)j, (uint64_t)head);
    float *key = key_of(c, s, j, head), *value = value_of(c, s, j, head);
    for (int32_t d = 0; d < c->spec.head_dim; d++)
        key[d] = direction_of(c, head)[d] * key_size(c);
    for (int32_t d = 0; d < c->spec.v_head_dim; d++)
        value[d] =
            value_size(c) * (needle_peak(c, number, d) + 0.1f * case_unit(stream, (uint64_t)d));
    round_vector(key_dtype(c), value, c->spec.v_head_dim);
}

static void make_needle_query(struct forward_case *c, int32_t s, int32_t t, int32_t head)
{
    int32_t kv_head = head / (c->spec.num_q_heads / c->spec.num_kv_heads);
    float *query = query_of(c, s, t, head);
    float length = needle_score / (sm_scale_of(c) * (float)direction_dim(c));
    for (int32_t d = 0; d < c->spec.head_dim; d++)
        query[d] = length * direction_of(c, kv_head)[d] / key_size(c);
    round_vector(c->spec.q_dtype, query, c->spec.head_dim);
}

/* ---- Borders --------------------------------------------------------------------------------- */

/* Keys next to which an error by one would be: (key, key + 1) for each entry. */
struct borders {
    int32_t count;
    int32_t keys[MAX_BORDERS];
};

static void add_border(struct borders *borders, int64_t key)
{
    if (borders->count < MAX_BORDERS)
        borders->keys[borders->count++] = (int32_t)key;
}

/* Where what the query sees begins or ends, and where something else changes that a program goes
 * by.
 */
static void find_borders(const struct forward_case *c, int32_t s, int32_t t,
                         struct borders *borders)
{
    reference_sight sight = case_sight(c, s, t);
    int32_t kv_len = c->lengths.kv_len[s], page = c->spec.page_size > 0 ? c->spec.page_size : 16;
    uint64_t stream = case_stream(c->seed, DRAW_NEEDLES, (uint64_t)s, (uint64_t)t, 1);
    int64_t here = sight.position < kv_len ? sight.position : kv_len - 1;
    int was = 0, last = -1;
    borders->count = 0;
    for (int32_t j = 0; j < kv_len; j++) {
        int is = reference_sees(&sight, j);
        if (is != was)
            add_border(borders, j - 1);
        if (is)
            last = j;
        was = is;
    }
    add_border(borders, last);
    add_border(borders, kv_len - 1);
    add_border(borders, page - 1);
    add_border(borders, here / page * page - 1);
    add_border(borders, (int64_t)case_sequence_at(&c->spec, s)->prefix_len - 1);
    add_border(borders, (int64_t)case_sequence_at(&c->spec, s)->shared);
    for (int32_t split = 64; split <= 512 && split < kv_len; split *= 2) {
        add_border(borders, here / split * split - 1);
        add_border(borders, split * (1 + draw_at(stream, (uint64_t)split, kv_len / split)) - 1);
    }
}

/* ---- Needles --------------------------------------------------------------------------------- */

/* The needle keys of one sequence and KV head, while they are chosen. */
struct planting {
    struct forward_case *c;
    int32_t s, kv_head;
    int32_t room;     /* needle keys that may still be made, */
    int32_t made;     /* and that are */
    uint8_t *is_made; /* [kv_len] */
};

static void record_needle(struct planting *p, int32_t t, int32_t head, int32_t key)
{
    struct forward_case *c = p->c;
    reference_sight sight = case_sight(c, p->s, t);
    if (c->num_needles < CASE_MAX_NEEDLES)
        c->needles[c->num_needles++] =
            (struct case_needle){p->s, t, head, key, reference_sees(&sight, key)};
}

/* Both keys next to a border, for query t of these heads. Is there one? */
static bool plant_pair(struct planting *p, int32_t t, int32_t border, const int32_t *heads,
                       int32_t num_heads)
{
    int32_t kv_len = p->c->lengths.kv_len[p->s];
    int32_t first = (int32_t)case_sight(p->c, p->s, t).first_key;
    if (first <
        case_sequence_at(&p->c->spec, p->s)->shared) /* those are planted where they come from */
        first = case_sequence_at(&p->c->spec, p->s)->shared;
    if (first < p->c->spec.lost_keys)
        first = p->c->spec.lost_keys;
    bool planted = false;
    for (int32_t j = border; j <= border + 1; j++) {
        if (j < first || j >= kv_len || (!p->is_made[j] && p->room == 0))
            continue;
        if (!p->is_made[j]) {
            make_needle_key(p->c, p->s, j, p->kv_head, p->made++);
            p->room--;
        }
        p->is_made[j] = planted = true;
        for (int32_t h = 0; h < num_heads; h++)
            record_needle(p, t, heads[h], j);
    }
    return planted;
}

/* Sinks in every third head that are 100 to 3e4 above the largest score, in every other third as
 * far below the least. */
static bool is_far_sink(const struct forward_case *c, int32_t head)
{
    return c->spec.high_sinks && head % 3 != 0;
}

static float draw_sink(const struct forward_case *c, int32_t head)
{
    static const float far[] = {100, 140, 300, 3e4f};
    uint64_t stream = case_stream(c->seed, DRAW_SINKS, 0, 0, 0);
    float unit = case_unit(stream, (uint64_t)head);
    if (is_far_sink(c, head)) {
        float above = 2 * needle_score + far[head / 3 % 4] + 10 * unit;
        return head % 3 == 1 ? above : -above;
    }
    return head % 5 == 4 ? -INFINITY : head % 5 == 3 ? -0.0f : 1.5f + 3.5f * unit;
}

/* The query heads of the KV head whose query t is a needle row. Far keys count for nothing in heads
 * with steep slopes, and no key does in those with a sink above all scores. */
static int32_t choose_heads(const struct planting *p, int32_t t, int32_t *heads)
{
    const struct forward_case *c = p->c;
    int32_t ratio = c->spec.num_q_heads / c->spec.num_kv_heads, count = 0;
    uint64_t stream = case_stream(c->seed, DRAW_PEAK, (uint64_t)p->s, (uint64_t)t, 0);
    for (int32_t head = p->kv_head * ratio; head < (p->kv_head + 1) * ratio; head++) {
        bool steep = c->spec.alibi && head % 3 == 2;
        bool spared = ratio > 1 && draw_at(stream, (uint64_t)head, 4) == 0;
        if (!steep && !spared && !is_far_sink(c, head))
            heads[count++] = head;
    }
    return count;
}

static void plant_row(struct planting *p, int32_t t, int32_t room)
{
    struct forward_case *c = p->c;
    int32_t heads[CASE_MAX_HEADS], num_heads = choose_heads(p, t, heads);
    struct borders borders;
    uint64_t stream =
        case_stream(c->seed, DRAW_NEEDLES, (uint64_t)p->s, (uint64_t)t, 2 + (uint64_t)p->kv_head);
    if (num_heads == 0)
        return;
    for (int32_t h = 0; h < num_heads; h++)
        make_needle_query(c, p->s, t, heads[h]);
    find_borders(c, p->s, t, &borders);
    int32_t least = p->room - room > 0 ? p->room - room : 0;
    for (int32_t left = borders.count; left > 0 && p->room > least; left--) {
        int32_t pick = draw_at(stream, (uint64_t)left, left);
        int32_t border = borders.keys[pick];
        borders.keys[pick] = borders.keys[left - 1];
        bool planted = plant_pair(p, t, border, heads, num_heads);
        /* With one component, means of more values than two may be near each other. */
        if (planted && c->spec.v_head_dim == 1)
            p->room = 0;
    }
}

/* The first, the last and one more query of the sequence. */
static attn_status plant_sequence(struct forward_case *c, int32_t s, int32_t kv_head,
                                  attn_error *error)
{
    int32_t q_len = c->lengths.q_len[s], kv_len = c->lengths.kv_len[s];
    struct planting p = {.c = c, .s = s, .kv_head = kv_head};
    uint64_t stream = case_stream(c->seed, DRAW_NEEDLES, (uint64_t)s, (uint64_t)kv_head, 3);
    if (q_len == 0 || kv_len == 0)
        return ATTN_OK;
    int32_t rows[NEEDLE_ROWS] = {q_len - 1, 0, draw_at(stream, 0, q_len)};
    bool large = kv_len > LARGE || c->spec.longest_item > 0;
    p.room = has_few_needles(c) ? NEEDLE_KEYS_FEW : large ? NEEDLE_KEYS_LARGE : NEEDLE_KEYS;
    p.is_made = calloc((size_t)kv_len, 1);
    if (!p.is_made)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the needles of a case");
    int32_t share = p.room / (q_len < NEEDLE_ROWS ? q_len : NEEDLE_ROWS);
    for (int32_t r = 0; r < NEEDLE_ROWS && p.room > 0; r++)
        if (r == 0 || (rows[r] != rows[0] && (r == 1 || rows[r] != rows[1])))
            plant_row(&p, rows[r], share);
    free(p.is_made);
    return ATTN_OK;
}

/* ---- Making ---------------------------------------------------------------------------------- */

static attn_status allocate_tokens(struct forward_case *c, attn_error *error)
{
    struct case_tokens *tokens = c->tokens = calloc(1, sizeof *tokens);
    const struct case_spec *spec = &c->spec;
    int64_t queries = 0, keys = 0;
    for (int32_t s = 0; tokens && s < c->lengths.num_real_seqs; s++) {
        tokens->first_q[s] = queries;
        tokens->first_k[s] = keys;
        queries += tokens->num_q[s] = c->lengths.q_len[s];
        keys += tokens->num_k[s] = c->lengths.kv_len[s];
    }
    c->needles = calloc(CASE_MAX_NEEDLES, sizeof *c->needles);
    if (tokens) { /* one more, so that nothing is no failure */
        tokens->q = calloc((size_t)(queries * spec->num_q_heads * spec->head_dim + 1), 4);
        tokens->k = calloc((size_t)(keys * spec->num_kv_heads * spec->head_dim + 1), 4);
        tokens->v = calloc((size_t)(keys * spec->num_kv_heads * spec->v_head_dim + 1), 4);
        tokens->directions = calloc((size_t)spec->num_kv_heads * (size_t)spec->head_dim, 4);
        tokens->latents =
            calloc((size_t)(keys * (spec->latent.kv_lora_rank + spec->latent.rope_dim) + 1), 4);
    }
    if (tokens && tokens->q && tokens->k && tokens->v && tokens->latents && tokens->directions &&
        c->needles)
        return ATTN_OK;
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the tokens of a case");
}

void case_tokens_destroy(struct case_tokens *tokens)
{
    if (!tokens)
        return;
    free(tokens->q);
    free(tokens->k);
    free(tokens->v);
    free(tokens->latents);
    free(tokens->directions);
    free(tokens);
}

attn_status case_make_tokens(struct forward_case *c, attn_error *error)
{
    c->owns_tokens = true;
    attn_status status = allocate_tokens(c, error);
    if (status != ATTN_OK)
        return status;
    c->tokens->gentle_slope = 0x1p-5f;
    while (c->tokens->gentle_slope * (float)c->lengths.max_kv_len > 2)
        c->tokens->gentle_slope /= 2;
    if (case_is_expanded(&c->spec))
        case_latent_make(c);
    for (int32_t s = 0; s < c->lengths.num_real_seqs; s++) {
        make_directions(c, s);
        for (int32_t j = case_sequence_at(&c->spec, s)->shared; j < c->lengths.kv_len[s]; j++)
            for (int32_t head = 0; head < c->spec.num_kv_heads; head++)
                make_key(c, s, j, head);
        for (int32_t t = 0; t < c->lengths.q_len[s]; t++)
            for (int32_t head = 0; head < c->spec.num_q_heads; head++)
                make_query(c, s, t, head);
        for (int32_t head = 0; head < c->spec.num_kv_heads && status == ATTN_OK; head++)
            if (!c->spec.growing_scores && !c->spec.without_needles && !case_has_indexer(&c->spec))
                status = plant_sequence(c, s, head, error);
    }
    return status;
}

/* ---- Placing --------------------------------------------------------------------------------- */

static void fill_vectors(struct forward_case *c, enum case_part_id part, double value)
{
    const struct case_shape *shape = &c->shapes[part];
    if (!c->parts[part].bytes)
        return;
    int64_t inner = shape->ndim > 3 ? shape->shape[2] : 1, dim = shape->shape[shape->ndim - 1];
    char *first = case_vector(c, c->image, part, 0, 0, 0);
    size_t size = (size_t)dim * attn_dtype_size(shape->dtype);
    if (shape->shape[0] == 0)
        return;
    for (int64_t d = 0; d < dim; d++)
        dtype_store(shape->dtype, first, d, value);
    for (int64_t i = 0; i < shape->shape[0]; i++)
        for (int64_t j = 0; j < shape->shape[1]; j++)
            for (int64_t k = 0; k < inner; k++)
                memmove(case_vector(c, c->image, part, i, j, k), first, size);
}

static void zero_page_0(struct forward_case *c, enum case_part_id cache)
{
    const struct case_shape *shape = &c->shapes[cache];
    const size_t size = (size_t)shape->shape[shape->ndim - 1] * attn_dtype_size(shape->dtype);
    for (int64_t i = 0; i < shape->shape[1]; i++)
        for (int64_t j = 0; j < (shape->ndim > 3 ? shape->shape[2] : 1); j++)
            memset(case_vector(c, c->image, cache, 0, i, j), 0, size);
}

static float scale_of(const struct forward_case *c, enum case_part_id part, int32_t s, int32_t j,
                      int32_t head)
{
    const float *scales = case_part(c, part);
    return scales ? scales[case_scale_place(c, part, s, j, head)] : 1;
}

/* The row of k and v that holds key j; -1 = it is in the cache. */
static int64_t new_row_of(const struct forward_case *c, int32_t s, int32_t j)
{
    int32_t n = j - (c->lengths.kv_len[s] - c->lengths.num_new[s]);
    return c->spec.from_cache || n < 0 ? -1 : c->lengths.first_new[s] + n;
}

static void put_key(struct forward_case *c, int32_t s, int32_t j, int32_t head, const float *key,
                    const float *value)
{
    int32_t dim = c->spec.head_dim, v_dim = c->spec.v_head_dim;
    int64_t row = new_row_of(c, s, j);
    if (case_is_absorbed(&c->spec)) {
        case_latent_put(c, row, case_slot(c, s, j), key);
        return;
    }
    if (row >= 0) {
        dtype_quantise_all(key_dtype(c), key, dim, scale_of(c, PART_NEW_K_SCALE, s, j, head),
                           case_vector(c, c->image, PART_K, row, head, 0));
        dtype_quantise_all(key_dtype(c), value, v_dim, scale_of(c, PART_NEW_V_SCALE, s, j, head),
                           case_vector(c, c->image, PART_V, row, head, 0));
        return;
    }
    if (case_is_expanded(&c->spec)) /* nothing may look for it */
        return;
    int64_t slot = case_slot(c, s, j);
    dtype_quantise_all(c->spec.kv_dtype, key, dim, scale_of(c, PART_K_SCALE, s, j, head),
                       case_slot_vector(c, c->image, PART_K_CACHE, slot, head));
    dtype_quantise_all(c->spec.kv_dtype, value, v_dim, scale_of(c, PART_V_SCALE, s, j, head),
                       case_slot_vector(c, c->image, PART_V_CACHE, slot, head));
}

/* ---- What is not seen ------------------------------------------------------------------------ */

static bool is_seen(const reference_sight *sights, int32_t count, int32_t j)
{
    for (int32_t t = 0; t < count; t++)
        if (reference_sees(&sights[t], j))
            return true;
    return false;
}

/* Keys that no query of their sequence sees become NaN, as freed pages are; new ones sometimes. */
static attn_status hide_keys(struct forward_case *c, int32_t s, attn_error *error)
{
    int32_t q_len = c->lengths.q_len[s];
    int32_t most = c->spec.head_dim > c->spec.v_head_dim ? c->spec.head_dim : c->spec.v_head_dim;
    reference_sight *sights = calloc((size_t)q_len + 1, sizeof *sights);
    float *nan = calloc((size_t)most, sizeof *nan);
    if (!sights || !nan) {
        free(sights);
        free(nan);
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                         "no memory for the visible keys of a case");
    }
    for (int32_t d = 0; d < most; d++)
        nan[d] = NAN;
    for (int32_t t = 0; t < q_len; t++)
        sights[t] = case_sight(c, s, t);
    bool padding_reads = c->spec.keys_in_page_0 && c->lengths.num_seqs > c->lengths.num_real_seqs;
    for (int32_t j = 0; j < c->lengths.kv_len[s]; j++) {
        bool spared = (new_row_of(c, s, j) >= 0 && !case_coin(c->seed, DRAW_HIDE)) ||
                      case_is_shared(c, s, j) ||
                      (padding_reads && case_slot(c, s, j) < c->spec.page_size);
        for (int32_t h = 0; h < c->spec.num_kv_heads && !spared && !is_seen(sights, q_len, j); h++)
            put_key(c, s, j, h, nan, nan);
    }
    free(nan);
    free(sights);
    return ATTN_OK;
}

/* ---- Values at the limits of a quantised type ------------------------------------------------ */

/* In units of the scale: halfway between two stored values, about the largest one, subnormal, and
 * what is none. */
static const float special_values[] = {
    1.0625f,  1.1875f,    -1.0625f, 1.125f,   1.375f,   448.0f,    456.0f,     464.0f,
    480.0f,   -1e4f,      57344.0f, 61440.0f, -65536.f, 0x1p-10f,  0x1.8p-9f,  0x1p-7f,
    0x1p-17f, 0x1.8p-16f, -0.0f,    0x1p-6f,  1e30f,    HUGE_VALF, -HUGE_VALF, NAN};

bool case_is_special(const struct forward_case *c, int32_t s)
{
    return c->spec.special_values && s > 0 && c->lengths.num_new[s] > 0;
}

bool case_is_infinite(const struct forward_case *c, int32_t s)
{
    return case_is_special(c, s) && s % 2 == 0;
}

/* One of the values, times the scale; a finite one that any query type holds where that matters. */
static float draw_special(const struct forward_case *c, int32_t s, uint64_t stream, int32_t n,
                          float scale)
{
    enum { COUNT = sizeof special_values / sizeof special_values[0] };
    float x = scale * special_values[draw_at(stream, (uint64_t)n, COUNT)];
    return case_is_infinite(c, s) || fabsf(x) < 3e4f ? x : scale * 448;
}

/* The scale of a block of a packed latent follows from its largest number: one next to which it changes, or any. In
 * every other block all is below the least scale. */
static float limit_special(float x, uint64_t stream, int32_t block)
{
    static const float limits[] = {448, 456, 1.75f, INFINITY};
    const float limit = limits[draw_at(stream, UINT64_MAX - (uint64_t)block, 4)];
    x = isfinite(x) && fabsf(x) > limit ? copysignf(limit, x) : x;
    return block % 2 ? x * 0x1p-133f : x;
}

/* A new key, a new value, or what a latent has instead: c_kv, k_pe. */
static void make_special_vector(struct forward_case *c, int32_t s, int32_t head, int32_t v)
{
    static const enum case_part_id parts[] = {PART_K, PART_V, PART_C_KV, PART_K_PE};
    static const enum case_part_id scales[] = {PART_K_SCALE, PART_V_SCALE, PART_LATENT_SCALE,
                                               PART_LATENT_SCALE};
    bool latent = c->spec.latent.kv_lora_rank > 0, packed = case_is_packed(&c->spec) && v == 0;
    uint64_t stream = case_stream(c->seed, DRAW_SPECIAL, (uint64_t)s, (uint64_t)head, 0);
    enum case_part_id part = parts[2 * latent + v];
    float scale = scale_of(c, scales[2 * latent + v], s, c->lengths.kv_len[s] - 1, head);
    int64_t row = new_row_of(c, s, c->lengths.kv_len[s] - 1);
    char *to = case_vector(c, c->image, part, row, head, 0);
    for (int32_t d = 0; d < c->shapes[part].shape[c->shapes[part].ndim - 1]; d++) {
        float x = draw_special(c, s, stream, 2 * d + v, scale);
        dtype_store(c->shapes[part].dtype, to, d,
                    (double)(packed ? limit_special(x, stream, d / 128) : x));
    }
}

static void make_special(struct forward_case *c, int32_t s)
{
    int32_t heads = c->spec.latent.kv_lora_rank > 0 ? 1 : c->spec.num_kv_heads;
    for (int32_t h = 0; h < heads; h++)
        for (int32_t v = 0; v < 2; v++)
            make_special_vector(c, s, h, v);
}

int32_t case_nan_key(const struct forward_case *c, int32_t s)
{
    if (c->spec.seen_nan == NAN_NOWHERE || s % 2 != 0 || c->lengths.q_len[s] == 0)
        return -1;
    const reference_sight sight = case_sight(c, s, c->lengths.q_len[s] - 1);
    for (int32_t j = 0; j < c->lengths.kv_len[s]; j++)
        if (reference_sees(&sight, j) && !case_is_shared(c, s, j))
            return j;
    return -1;
}

/* In one element of a key or of its value; those that see it are NaN in all rows that do. */
static void put_nan(struct forward_case *c, int32_t s, int32_t j, bool in_key)
{
    for (int32_t h = 0; h < c->spec.num_kv_heads; h++) {
        float *key = key_of(c, s, j, h), *value = value_of(c, s, j, h);
        float *element = in_key ? &key[c->spec.head_dim - 1] : &value[(3 + h) % c->spec.v_head_dim];
        const float before = *element;
        *element = NAN;
        put_key(c, s, j, h, key, value);
        *element = before;
    }
}

/* ---- All of it ------------------------------------------------------------------------------- */

/* A query, or zeros for padding, in one tensor or two. */
static void put_query(struct forward_case *c, int32_t s, int64_t row, int32_t head,
                      const float *query)
{
    int32_t dim = (int32_t)c->shapes[PART_Q].shape[2];
    int32_t kv_head = head / (c->spec.num_q_heads / c->spec.num_kv_heads);
    dtype_quantise_all(c->spec.q_dtype, query, dim, scale_of(c, PART_Q_SCALE, s, 0, kv_head),
                       case_vector(c, c->image, PART_Q, row, head, 0));
    if (c->parts[PART_Q_PE].bytes)
        dtype_quantise_all(c->spec.q_dtype, query + dim, c->spec.head_dim - dim,
                           scale_of(c, PART_Q_PE_SCALE, s, 0, kv_head),
                           case_vector(c, c->image, PART_Q_PE, row, head, 0));
}

static attn_status place_queries(struct forward_case *c, attn_error *error)
{
    const struct case_lengths *l = &c->lengths;
    float *zeros = calloc((size_t)c->spec.head_dim, sizeof *zeros);
    if (!zeros)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the padding of a case");
    for (int32_t s = 0; s < l->num_seqs; s++)
        for (int32_t t = 0; t < l->q_len[s]; t++)
            for (int32_t head = 0; head < c->spec.num_q_heads; head++)
                put_query(c, s, l->first_row[s] + t, head,
                          s < l->num_real_seqs ? query_of(c, s, t, head) : zeros);
    for (int32_t n = 0; n < l->spare; n++)
        for (int32_t head = 0; head < c->spec.num_q_heads; head++)
            put_query(c, 0, l->first_row[l->num_seqs] + n, head, zeros);
    free(zeros);
    return ATTN_OK;
}

/* New rows of padding. */
static void zero_padding(struct forward_case *c, enum case_part_id part)
{
    const struct case_lengths *l = &c->lengths;
    const struct case_shape *shape = &c->shapes[part];
    const int64_t heads = shape->ndim == 3 ? shape->shape[1] : 1;
    const size_t size = (size_t)shape->shape[shape->ndim - 1] * attn_dtype_size(shape->dtype);
    for (int64_t row = l->first_new[l->num_real_seqs]; row < l->first_new[l->num_seqs] + l->spare;
         row++)
        for (int64_t head = 0; head < heads; head++)
            memset(case_vector(c, c->image, part, row, head, 0), 0, size);
}

/* What expanded keys were expanded from, to be saved. */
static void place_latents(struct forward_case *c, int32_t s)
{
    for (int32_t j = 0; case_is_expanded(&c->spec) && j < c->lengths.kv_len[s]; j++)
        if (new_row_of(c, s, j) >= 0)
            case_latent_put(c, new_row_of(c, s, j), -1, case_latent_of(c, s, j));
}

attn_status case_place_tokens(struct forward_case *c, attn_error *error)
{
    for (enum case_part_id part = 0; part < CASE_PARTS; part++)
        if (case_part_is(part, CASE_POISONED)) /* what is not written is seen */
            memset(c->image + c->parts[part].offset, CASE_POISON, c->parts[part].bytes);
    fill_vectors(c, PART_Q, (double)NAN);
    fill_vectors(c, PART_K, (double)NAN);
    fill_vectors(c, PART_V, (double)NAN);
    fill_vectors(c, PART_K_CACHE, (double)NAN);
    fill_vectors(c, PART_V_CACHE, (double)NAN);
    for (enum case_part_id part = 0; part < CASE_PARTS; part++)
        if (case_is_cache(c, part))
            zero_page_0(c, part);
    if (case_has_indexer(&c->spec))
        case_indexer_place(c);
    attn_status status = place_queries(c, error);
    for (enum case_part_id part = 0; part < CASE_PARTS; part++)
        if (case_part_is(part, CASE_NEW) && c->parts[part].bytes)
            zero_padding(c, part);
    for (int32_t s = 0; s < c->lengths.num_real_seqs && status == ATTN_OK; s++) {
        /* What is shared is put where it comes from. */
        for (int32_t j = case_sequence_at(&c->spec, s)->shared; j < c->lengths.kv_len[s]; j++)
            for (int32_t head = 0; head < c->spec.num_kv_heads; head++)
                put_key(c, s, j, head, key_of(c, s, j, head), value_of(c, s, j, head));
        place_latents(c, s);
        status = hide_keys(c, s, error);
        if (case_is_special(c, s))
            make_special(c, s);
        if (case_nan_key(c, s) >= 0)
            put_nan(c, s, case_nan_key(c, s), c->spec.seen_nan == NAN_IN_KEY);
    }
    if (c->spec.special_values && c->lengths.kv_len[0] > 0) /* all rows of the sequence see it */
        put_nan(c, 0, 0, false);
    return status;
}

/* Of those that are finite. */
static float largest_of(const float *values, int64_t count, float least)
{
    float largest = least;
    for (int64_t n = 0; n < count; n++)
        if (isfinite(values[n]))
            largest = fmaxf(largest, fabsf(values[n]));
    return largest;
}

/* Scales with which `largest` is not saturated; some are several times as large as others. */
static void fill_scales(struct forward_case *c, enum case_part_id part, attn_dtype dtype,
                        float largest)
{
    static const float factors[] = {1, 1.5f, 2.75f, 4};
    uint64_t stream = case_stream(c->seed, DRAW_SCALES, (uint64_t)part, 0, 0);
    float *scales = case_part(c, part);
    int64_t count = scales ? case_num_scales(c, part, c->lengths.num_seqs) : 0;
    for (int64_t n = 0; n < count; n++)
        scales[n] =
            largest / (float)dtype_largest(dtype) * factors[draw_at(stream, (uint64_t)n, 4)];
}

/* Of q, new k and v, and the output, which is no larger than the largest value; but where no needle
 * has to stand out it is saturated. */
static void fill_input_scales(struct forward_case *c)
{
    const struct case_spec *spec = &c->spec;
    const struct case_tokens *tokens = c->tokens;
    int64_t queries = 0, keys = 0;
    if (!spec->input_granularity && !dtype_is_fp8(spec->out_dtype))
        return;
    for (int32_t s = 0; s < CASE_MAX_SEQS; s++) {
        queries += tokens->num_q[s];
        keys += tokens->num_k[s];
    }
    float k = largest_of(tokens->k, keys * spec->num_kv_heads * spec->head_dim, key_size(c));
    float v =
        case_is_absorbed(spec)
            ? k
            : largest_of(tokens->v, keys * spec->num_kv_heads * spec->v_head_dim, value_size(c));
    float q = largest_of(tokens->q, queries * spec->num_q_heads * spec->head_dim, 1 / key_size(c));
    fill_scales(c, PART_Q_SCALE, spec->q_dtype, q);
    fill_scales(c, PART_Q_PE_SCALE, spec->q_dtype, q);
    fill_scales(c, PART_NEW_K_SCALE, key_dtype(c), k);
    fill_scales(c, PART_NEW_V_SCALE, key_dtype(c), v);
    fill_scales(c, PART_OUT_SCALE, spec->out_dtype, spec->growing_scores ? v / 16 : v);
}

void case_fill_constants(struct forward_case *c)
{
    fill_input_scales(c);
    uint64_t scales = case_stream(c->seed, DRAW_SCALES, 0, 0, 0);
    for (int32_t h = 0; h < c->spec.num_q_heads; h++) {
        float sink = draw_sink(c, h);
        float gentle = h % 2 ? c->tokens->gentle_slope / 2 : c->tokens->gentle_slope;
        if (c->spec.sinks)
            memcpy(case_vector(c, c->image, PART_SINKS, h, 0, 0), &sink, sizeof sink);
        const float odd[] = {0, -gentle, 80};
        float slope = c->spec.odd_slopes ? odd[h % 3] : h % 3 == 2 ? 0.3f : gentle;
        if (c->spec.alibi)
            memcpy(case_vector(c, c->image, PART_SLOPES, h, 0, 0), &slope, sizeof slope);
    }
    case_latent_fill_scale(c);
    float *k_scales = case_part(c, PART_K_SCALE), *v_scales = case_part(c, PART_V_SCALE);
    int64_t count = k_scales ? case_num_scales(c, PART_K_SCALE, c->lengths.num_seqs) : 0;
    for (int64_t n = 0; n < count; n++) {
        k_scales[n] = 0.03f + 0.01f * (float)draw_at(scales, (uint64_t)(2 * n), 10);
        v_scales[n] = 0.02f + 0.01f * (float)draw_at(scales, (uint64_t)(2 * n + 1), 10);
        if (has_sizes(&c->spec)) { /* no larger than they have to be */
            k_scales[n] = key_size(c) * (0.005f + 0.05f * k_scales[n]);
            v_scales[n] = value_size(c) * (0.009f + 0.05f * v_scales[n]);
        }
        if (c->spec.special_values)
            k_scales[n] = v_scales[n] = 0x1p-4f / (float)(1 << n % 3);
    }
}
