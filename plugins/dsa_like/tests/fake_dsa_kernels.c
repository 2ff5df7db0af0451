/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_dsa_kernels.c: the fake CUDA driver with the kernels of dsa_like and flashmla_like in it, as
 * host functions, so that all of dsa_like but its device code is judged without a GPU: operands,
 * strides, plans, lists, launches and their order. The plan, rows, masks and the saving of latents are
 * the plugins' own sources (kernels/rows.cuh), which are C as well.
 */
#include "tests/fixtures/fake_cuda_look_up.h"

#include <math.h>
#include <stdlib.h>

#include "plugins/dsa_like/kernels/rows.cuh"
#include "plugins/flashmla_like/kernels/mla.h"

/* ---- Plan ------------------------------------------------------------------------------------ */

static void plan(const struct fake_cuda_launch *launch)
{
    const dsa_batch *b = launch->arguments[0];
    const int rows = index_num_tokens(&b->batch);
    dsa_header header = {.first_row = dsa_first_row(b), .given_count = b->given_count};
    for (int i = 0; i < rows; i++) {
        dsa_group group = {.seq = 0};
        if (dsa_plan_row(b, i, &group) == 0)
            continue;
        group.begin = header.num_tiles;
        header.num_tiles += group.tiles;
        *PORTABLE_AT(b->groups + header.num_groups++) = group;
    }
    *PORTABLE_AT(b->indptr + rows) = header.first_row + rows;
    *PORTABLE_AT(b->header) = header;
}

/* ---- New latents and labels ------------------------------------------------------------------ */

static void save_label(const dsa_save_call *c, int64_t row, int64_t slot)
{
    const char *from = (const char *)c->label + row * c->label_row;
    char *page = c->label_cache + slot / c->page_size * c->label_page;
    char *to = page + slot % c->page_size * c->label_token;
    float largest = 1e-4f;
    for (int d = 0; d < DSA_LABEL; d++) {
        const float size = fabsf(element_load(ELEMENT_BF16, from, d));
        largest = size > largest && size < INFINITY ? size : largest;
    }
    const float scale = f32_divide(largest, 448.0f);
    save_kv_vector(ELEMENT_BF16, c->label_codes ? ELEMENT_E4M3 : ELEMENT_BF16, from, to, DSA_LABEL,
                   scale, 0, 1);
    if (c->label_codes)
        element_store(ELEMENT_F32, page + (int64_t)c->page_size * DSA_LABEL, slot % c->page_size,
                      scale);
}

static void save_rows(const dsa_save_call *c)
{
    const call_operands *o = &c->latents;
    const int *indptr = c->batch.new_indptr ? c->batch.new_indptr : c->batch.q_indptr;
    const int64_t seqs = index_num_seqs(&c->batch);
    const int64_t first = indptr ? index_int(indptr, 0) : 0;
    const int64_t end = indptr ? index_int(indptr, seqs) : seqs;
    const save_kv_call latents = {
        {o->k, o->k_cache, o->k_row, 0, o->k_page, o->k_token, 0, 0, 0, c->lora},
        {o->v, o->v_cache, o->v_row, 0, o->v_page, o->v_token, 0, 0, 0, c->rope},
        c->batch.out_cache_loc,
        c->page_size,
        ELEMENT_BF16,
        ELEMENT_BF16};
    if (o->k && c->packed)
        save_packed_rows(&latents, first, end, 1, 0, 1);
    else if (o->k)
        save_kv_rows(&latents, first, end, 1, 0, 0, 1);
    for (int64_t row = first; c->label && row < end; row++) {
        const int64_t slot = *PORTABLE_AT(c->batch.out_cache_loc + row);
        if (slot >= 0)
            save_label(c, row, slot);
    }
}

static void save(const struct fake_cuda_launch *launch)
{
    save_rows(launch->arguments[0]);
}

/* ---- Logits ---------------------------------------------------------------------------------- */

/* What a code of e4m3 stands for. */
static double number_of(uint8_t code)
{
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const double size = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
    return (code & 0x7f) == 0x7f ? (double)NAN : code & 0x80 ? -size : size;
}

/* Element d of an index query or a label. */
static double element(int is_code, const void *from, int d)
{
    return is_code ? number_of(*PORTABLE_AT((const uint8_t *)from + d))
                   : (double)element_load(ELEMENT_BF16, from, d);
}

static double logit(const dsa_label_call *c, const index_sequence *q, int64_t row, int j)
{
    const int entry = *PORTABLE_AT(index_entry(&c->planned.batch, q, c->planned.page_size, j));
    const index_place at =
        index_find_key(&c->operands, &c->planned.batch, q, c->planned.page_size, 0, j, entry);
    double sum = 0;
    for (int h = 0; h < c->heads; h++) {
        const char *from =
            (const char *)c->operands.q + row * c->operands.q_row + h * c->operands.q_head;
        double s = 0;
        for (int d = 0; d < DSA_LABEL; d++)
            s += element(c->q_codes, from, d) * element(c->label_codes, at.k, d);
        sum +=
            (s > 0 ? s : 0) *
            (double)element_load(ELEMENT_F32, (const char *)c->weights + row * c->weights_row, h);
    }
    return c->label_codes ? sum * (double)element_load(ELEMENT_F32, at.v, 0) : sum;
}

/* Rows [first, end) of those that groups have. */
static void label(const struct fake_cuda_launch *launch)
{
    const dsa_label_call *c = launch->arguments[0];
    const dsa_batch *b = &c->planned;
    const mask_rule rule = dsa_rule(b);
    const dsa_header header = *PORTABLE_AT(b->header);
    for (int n = 0; n < header.num_groups; n++) {
        const dsa_group g = *PORTABLE_AT(b->groups + n);
        index_sequence q;
        index_find_sequence(&b->batch, 0, g.seq, &q);
        for (int t = 0; t < g.count && g.row >= c->first && g.row < c->end; t++) {
            const int64_t row = header.first_row + g.row + t;
            float *to = c->logits + (c->given ? row : g.row + t - c->first) * c->logits_row;
            int lo, hi;
            mask_outline(&rule, &b->batch, &q, g.query + t, g.query + t, &lo, &hi);
            for (int j = 0; j < q.kv_len; j++)
                *PORTABLE_AT(to + j) = lo <= j && j < hi ? (float)logit(c, &q, row, j) : -INFINITY;
        }
    }
}

/* ---- Choice ---------------------------------------------------------------------------------- */

typedef struct candidate {
    float logit;
    int key;
} candidate;

static int compare(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->key - y->key;
}

static int slot_of(const dsa_batch *b, const index_sequence *q, int j)
{
    const int entry = *PORTABLE_AT(index_entry(&b->batch, q, b->page_size, j));
    return b->batch.req_to_token ? entry : entry * b->page_size + j % b->page_size;
}

static int choose_row(const dsa_choose_call *c, int i)
{
    const dsa_batch *b = &c->planned;
    const mask_rule rule = dsa_rule(b);
    const int64_t row = dsa_first_row(b) + i;
    const float *from = c->logits + (c->given ? row : i - c->first) * c->logits_row;
    const int most = *PORTABLE_AT(b->most + i);
    index_sequence q;
    int query = 0, lo = 0, hi = 0, seen = 0;
    if (most > 0 && dsa_find_row(b, i, &q, &query) >= 0)
        mask_outline(&rule, &b->batch, &q, query, query, &lo, &hi);
    candidate *all = calloc((size_t)(hi - lo) + 1, sizeof *all);
    for (int j = lo; all && j < hi; j++) {
        const float logit = *PORTABLE_AT(from + j);
        if (logit != -INFINITY)
            all[seen++] = (candidate){logit, j};
    }
    if (all)
        qsort(all, (size_t)seen, sizeof *all, compare);
    seen = seen < most ? seen : most;
    for (int n = 0; all && n < c->top_k; n++) {
        const int slot = n < seen ? slot_of(b, &q, all[n].key) : -1;
        if (n < seen)
            *PORTABLE_AT(c->lists + (int64_t)i * c->list_row + n) = slot;
        if (c->indices)
            *PORTABLE_AT(c->indices + row * c->indices_row + n) = slot;
    }
    free(all);
    return seen;
}

/* A cluster for each row. */
static void choose(const struct fake_cuda_launch *launch)
{
    const dsa_choose_call *c = launch->arguments[0];
    const dsa_batch *b = &c->planned;
    const int rows = (int)(launch->grid[0] / launch->cluster[0]);
    for (int i = c->first; i < c->first + rows && i < c->end && i < index_num_tokens(&b->batch);
         i++) {
        const int count = choose_row(c, i);
        *PORTABLE_AT(b->lens + i) = count;
        if (c->counts)
            *PORTABLE_AT(c->counts + (dsa_first_row(b) + i) * c->counts_row) = count;
    }
}

static void take(const struct fake_cuda_launch *launch)
{
    const dsa_take_call *c = launch->arguments[0];
    const dsa_batch *b = &c->planned;
    const int given = PORTABLE_AT(b->header)->given_count;
    if (c->savers > 0)
        save_rows(&c->save);
    for (int i = 0; i < (int)launch->grid[0] - c->savers && i < index_num_tokens(&b->batch); i++) {
        const int64_t row = dsa_first_row(b) + i;
        const int most = *PORTABLE_AT(b->most + i);
        int count = given, taken = 0;
        if (c->counts && most)
            count = int_min(int_max(*PORTABLE_AT(c->counts + row * c->counts_row), 0), given);
        for (int n = 0; n < count && most; n++) {
            const int slot = *PORTABLE_AT(c->indices + row * c->indices_row + n);
            if (slot != -1 && taken < most)
                *PORTABLE_AT(c->lists + (int64_t)i * c->list_row + taken++) = slot;
        }
        *PORTABLE_AT(b->lens + i) = taken;
    }
}

/* ---- Attention ------------------------------------------------------------------------------- */

/* Element d of a latent's first part. */
static double latent(const mla_call *c, int packed, const char *row, int d)
{
    if (!packed)
        return (double)element_load(ELEMENT_BF16, row, d);
    const char *scales = row + packed_scales_offset(c->lora);
    return number_of(*PORTABLE_AT((const uint8_t *)row + d)) *
           (double)element_load(ELEMENT_F32, scales, d / PACKED_SCALED);
}

/* A head of a query, over its keys [lo, hi). */
static void attend_head(const mla_call *c, int packed, const index_sequence *q, int64_t row,
                        int head, int lo, int hi)
{
    const call_operands *o = &c->operands;
    const char *nope = (const char *)o->q + row * o->q_row + head * o->q_head;
    const char *rope = (const char *)c->q_pe + row * c->q_pe_row + head * c->q_pe_head;
    char *out = (char *)o->out + row * o->out_row + head * o->out_head;
    double sums[MLA_LORA] = {0}, total = 0, top = -INFINITY;
    if (o->sinks) {
        top = (double)element_load(ELEMENT_F32, o->sinks, head);
        total = 1;
    }
    for (int j = lo; j < hi; j++) {
        const int entry = *PORTABLE_AT(index_entry(&c->batch, q, c->page_size, j));
        const index_place at = index_find_key(o, &c->batch, q, c->page_size, 0, j, entry);
        double score = 0;
        for (int d = 0; d < c->lora; d++)
            score += (double)element_load(ELEMENT_BF16, nope, d) * latent(c, packed, at.k, d);
        for (int d = 0; d < c->rope; d++)
            score += (double)element_load(ELEMENT_BF16, rope, d) *
                     (double)element_load(ELEMENT_BF16, at.v, d);
        score *= (double)c->sm_scale;
        const double most = score > top ? score : top, old = exp(top - most);
        const double weight = exp(score - most);
        total = total * old + weight;
        for (int d = 0; d < c->lora; d++)
            sums[d] = sums[d] * old + weight * latent(c, packed, at.k, d);
        top = most;
    }
    for (int d = 0; d < c->lora; d++)
        element_store(c->out_f32 ? ELEMENT_F32 : ELEMENT_BF16, out, d,
                      total == 0 ? 0 : (float)(sums[d] / total));
    if (o->lse)
        element_store(ELEMENT_F32, (char *)o->lse + row * o->lse_row + head * o->lse_head, 0,
                      (float)(top + log(total)));
}

static void attend_all(const mla_call *c, int packed)
{
    const mask_rule rule = {c->window_left, c->batch.window_right, c->chunk, 0, 0};
    for (int s = 0; s < index_num_seqs(&c->batch); s++) {
        index_sequence q;
        index_find_sequence(&c->batch, 0, s, &q);
        for (int t = 0; t < q.q_len; t++) {
            int lo, hi;
            mask_outline(&rule, &c->batch, &q, t, t, &lo, &hi);
            for (int head = 0; head < c->heads; head++)
                attend_head(c, packed, &q, q.first_row + t, head, lo, hi);
        }
    }
}

static void attend(const struct fake_cuda_launch *launch)
{
    attend_all(launch->arguments[0], 0);
}

static void attend_packed(const struct fake_cuda_launch *launch)
{
    attend_all(launch->arguments[0], 1);
}

static void nothing_left(const struct fake_cuda_launch *launch)
{
    (void)launch; /* no unit is divided */
}

/* When the library is loaded; a test that resets the driver calls it again. */
__attribute__((constructor, visibility("default"))) void fake_dsa_define(void);
void fake_dsa_define(void)
{
    static const struct {
        const char *name;
        fake_cuda_kernel kernel;
        size_t size;
    } kernels[] = {
        {"dsa_plan", plan, sizeof(dsa_batch)},
        {"dsa_save", save, sizeof(dsa_save_call)},
        {"dsa_label_codes", label, sizeof(dsa_label_call)},
        {"dsa_label_codes_group", label, sizeof(dsa_label_call)},
        {"dsa_label_wide", label, sizeof(dsa_label_call)},
        {"dsa_label_wide_group", label, sizeof(dsa_label_call)},
        {"dsa_choose", choose, sizeof(dsa_choose_call)},
        {"dsa_take", take, sizeof(dsa_take_call)},
        {"mla_plan", nothing_left, sizeof(mla_call)},
        {"mla_merge", nothing_left, sizeof(mla_call)},
        {"mla_attend_8", attend, sizeof(mla_call)},
        {"mla_attend_16", attend, sizeof(mla_call)},
        {"mla_attend_32", attend, sizeof(mla_call)},
        {"mla_attend_64", attend, sizeof(mla_call)},
        {"mla_attend_codes_8", nothing_left, sizeof(mla_call)},
        {"mla_attend_codes_16", nothing_left, sizeof(mla_call)},
        {"mla_attend_codes_32", nothing_left, sizeof(mla_call)},
        {"mla_attend_codes_64", nothing_left, sizeof(mla_call)},
        {"mla_attend_coded_8", nothing_left, sizeof(mla_call)},
        {"mla_attend_coded_16", nothing_left, sizeof(mla_call)},
        {"mla_attend_coded_64", nothing_left, sizeof(mla_call)},
        {"mla_attend_packed_8", attend_packed, sizeof(mla_call)},
        {"mla_attend_packed_16", attend_packed, sizeof(mla_call)},
        {"mla_attend_packed_32", attend_packed, sizeof(mla_call)},
        {"mla_attend_packed_64", attend_packed, sizeof(mla_call)},
    };
    if (fake_cuda_load("fake_cuda.so", &fake) != 0)
        return;
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        fake.define_kernel(kernels[i].name, kernels[i].kernel, &kernels[i].size, 1, NULL);
}
