/* SPDX-License-Identifier: Apache-2.0
 *
 * check_common_device.c: device headers that plugins share, compiled as C, against the plain
 * definitions of include/attn_batch.h: which sequence a row is of, where a key lies in each of the
 * index forms, who sees what, a softmax's sums.
 */
#include "tests/tools/test_main.h"

#include "plugins/common/cuda/mask.cuh"
#include "plugins/common/cuda/softmax.cuh"
#include "plugins/common/cuda/work.cuh"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQS = 9, CASES = 300, PAGE = 4, MAX_KEYS = 40, MAX_PAGES = MAX_KEYS / PAGE, REQUESTS = 12 };

/* Check's own assertions take too long in a loop. */
#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg("line %d: %s", __LINE__, #condition);                                     \
    } while (0)

static unsigned state = 1;

/* One of [low, high]. */
static int draw(int low, int high)
{
    state = state * 1664525u + 1013904223u;
    return low + (int)((state >> 8) % (unsigned)(high - low + 1));
}

/* ---- Work ------------------------------------------------------------------------------------ */

TEST_OF(common_device, rows_are_found)
{
    for (int n = 0; n < CASES; n++) {
        int indptr[SEQS + 1] = {draw(0, 5)}, seqs = draw(0, SEQS);
        for (int s = 0; s < seqs; s++)
            indptr[s + 1] = indptr[s] + (draw(0, 2) ? draw(0, 7) : 0);
        for (int row = 0; row < indptr[seqs] + 3; row++) {
            int expected = -1;
            for (int s = 0; s < seqs; s++)
                expected = indptr[s] <= row && row < indptr[s + 1] ? s : expected;
            ck_assert_int_eq(work_find_row(indptr, seqs, row), expected);
        }
        ck_assert_int_eq(work_find_row(NULL, seqs, 3), 3 < seqs ? 3 : -1);
    }
}

static int count_of(const void *counts, int s)
{
    return ((const int *)counts)[s];
}

TEST_OF(common_device, pieces_are_found)
{
    for (int n = 0; n < CASES; n++) {
        int counts[SEQS], first = draw(0, 3), wanted = 0, s = -1, piece = -1, step = draw(1, 4);
        for (int i = 0; i < SEQS; i++)
            counts[i] = draw(0, 5);
        work_search at = {first, 0};
        for (int i = first, before = 0; i < SEQS; before += counts[i++])
            for (; wanted < before + counts[i]; wanted += step) {
                ck_assert(work_find_piece(&at, SEQS, wanted, count_of, counts, &s, &piece));
                ck_assert_int_eq(s, i);
                ck_assert_int_eq(piece, wanted - before);
            }
        ck_assert(!work_find_piece(&at, SEQS, wanted, count_of, counts, &s, &piece));
    }
}

/* ---- Places ---------------------------------------------------------------------------------- */

/* Sequences with new tokens, in each form. Caches are two arrays of bytes, in which a place is its
 * offset. */
typedef struct places {
    int q_indptr[SEQS + 1], prefix_lens[SEQS], kv_lens[SEQS], requests[SEQS];
    int slots[REQUESTS][MAX_KEYS], pages[SEQS][MAX_PAGES], kv_indptr[SEQS + 1];
    int list[SEQS * MAX_PAGES];
    char k[4096], v[4096], k_cache[8192], v_cache[8192];
    call_operands operands;
    call_batch batch;
} places;

static void make_places(places *p)
{
    memset(p, 0, sizeof *p);
    p->q_indptr[0] = draw(0, 4);
    for (int s = 0; s < SEQS; s++) {
        p->prefix_lens[s] = draw(0, 20);
        p->q_indptr[s + 1] = p->q_indptr[s] + draw(0, 9);
        p->kv_lens[s] = p->prefix_lens[s] + p->q_indptr[s + 1] - p->q_indptr[s];
        p->requests[s] = REQUESTS - 1 - s;
        p->kv_indptr[s + 1] = p->kv_indptr[s] + (p->kv_lens[s] + PAGE - 1) / PAGE;
        for (int i = 0; i < MAX_PAGES; i++)
            p->pages[s][i] = draw(0, 60);
        for (int i = p->kv_indptr[s]; i < p->kv_indptr[s + 1]; i++)
            p->list[i] = p->pages[s][i - p->kv_indptr[s]];
        for (int j = 0; j < MAX_KEYS; j++)
            p->slots[p->requests[s]][j] = p->pages[s][j / PAGE] * PAGE + j % PAGE;
    }
    p->operands = (call_operands){.k = p->k,
                                  .v = p->v,
                                  .k_cache = p->k_cache,
                                  .v_cache = p->v_cache,
                                  .k_row = 32,
                                  .k_head = 16,
                                  .v_row = 16,
                                  .v_head = 8,
                                  .k_page = 128,
                                  .k_token = 32,
                                  .k_cache_head = 16,
                                  .v_page = 64,
                                  .v_token = 8,
                                  .v_cache_head = 32};
    p->batch = (call_batch){.q_indptr = p->q_indptr,
                            .prefix_lens = p->prefix_lens,
                            .kv_lens = p->kv_lens,
                            .num_seqs = SEQS,
                            .window_right = 0};
}

static void use_form(places *p, int form)
{
    call_batch *b = &p->batch;
    b->block_table = form == 0 ? p->pages[0] : NULL;
    b->req_to_token = form == 1 ? p->slots[0] : NULL;
    b->req_pool_indices = p->requests;
    b->kv_indptr = form == 2 ? p->kv_indptr : NULL;
    b->kv_indices = form == 2 ? p->list : NULL;
    b->table_stride = form == 0 ? MAX_PAGES : MAX_KEYS;
}

static void check_keys(const places *p, int s, int has_new, int head)
{
    index_sequence q;
    int first_new = has_new ? p->prefix_lens[s] : p->kv_lens[s];
    index_find_sequence(&p->batch, has_new, s, &q);
    MUST((q.first_row) == (p->q_indptr[s]));
    MUST((q.q_len) == (p->q_indptr[s + 1] - p->q_indptr[s]));
    MUST((q.kv_len) == (p->kv_lens[s]));
    for (int j = 0; j < p->kv_lens[s]; j++) {
        const int *entry = index_entry(&p->batch, &q, PAGE, j);
        index_place at =
            index_find_key(&p->operands, &p->batch, &q, PAGE, head, j, entry ? *entry : -1);
        int row = p->q_indptr[s] + j - p->prefix_lens[s], page = p->pages[s][j / PAGE];
        MUST((entry == NULL) == (j >= first_new));
        if (j >= first_new) {
            MUST(at.k == p->k + row * 32 + head * 16);
            MUST(at.v == p->v + row * 16 + head * 8);
        } else {
            MUST(at.k == p->k_cache + page * 128 + j % PAGE * 32 + head * 16);
            MUST(at.v == p->v_cache + page * 64 + j % PAGE * 8 + head * 32);
        }
    }
}

TEST_OF(common_device, keys_lie_where_each_form_says)
{
    static places p;
    for (int n = 0; n < CASES; n++) {
        make_places(&p);
        for (int form = 0; form < 3; form++) {
            use_form(&p, form);
            for (int s = 0; s < SEQS; s++)
                check_keys(&p, s, draw(0, 1), draw(0, 1));
        }
    }
}

/* In DECODE there is no q_indptr; a graph's counts lie in memory. */
TEST_OF(common_device, a_decode_batch)
{
    const int lens[] = {7, 1, 30}, counts[] = {2, 3, 1};
    call_batch b = {.seq_lens = lens, .kv_lens = lens, .num_seqs = 3, .num_tokens = 3};
    index_sequence q;
    index_find_sequence(&b, 1, 2, &q);
    ck_assert(q.first_row == 2 && q.q_len == 1 && q.prefix_len == 29 && q.first_new == 29);
    ck_assert(index_num_seqs(&b) == 3 && index_num_tokens(&b) == 3);
    b.counts = counts;
    ck_assert(index_num_seqs(&b) == 2 && index_num_tokens(&b) == 3);
    ck_assert_int_eq(index_num_decode_seqs(&b), 1);
}

/* ---- Masks ----------------------------------------------------------------------------------- */

/* As attn_batch.h says. `bits` NULL = no custom mask. */
static int should_see(const mask_rule *rule, const call_batch *b, const index_sequence *q, int s,
                      int t, int j)
{
    int new_key = j - q->prefix_len;
    int i = b->positions ? b->positions[q->first_row + t] : q->prefix_len + t;
    int at = b->positions && new_key >= 0 ? b->positions[q->first_row + new_key] : j;
    if (rule->window_left >= 0 && at < i - rule->window_left)
        return 0;
    if (rule->window_right >= 0 && at > i + rule->window_right)
        return 0;
    if (rule->chunk > 0 && at / rule->chunk != i / rule->chunk)
        return 0;
    if (rule->chunk > 0 && !rule->custom && at > i)
        return 0;
    if (b->item_prefix_lens) {
        int column = i - b->item_prefix_lens[s];
        if (j > i)
            return 0;
        return column < 0 || j < b->item_prefix_lens[s] ||
               j > i - b->item_pos[s * b->item_stride + column];
    }
    if (!b->mask_bits || (b->mask_qlen && new_key < 0))
        return 1;
    long long column = b->mask_qlen ? new_key : j;
    long long bit =
        b->mask_indptr[s] * 8 + (long long)t * (b->mask_qlen ? q->q_len : q->kv_len) + column;
    return b->mask_bits[bit / 8] >> bit % 8 & 1;
}

/* Every row and key of a sequence; the outline holds all that is seen, and without a custom mask
 * nothing else for a row alone. */
static void check_sequence(const mask_rule *rule, const call_batch *b, int s)
{
    index_sequence q;
    index_find_sequence(b, 1, s, &q);
    for (int t = 0; t < q.q_len; t++) {
        mask_view view;
        int lo, hi;
        mask_find_view(rule, b, &q, s, t, &view);
        mask_outline(rule, b, &q, t, t, &lo, &hi);
        for (int j = 0; j < q.kv_len; j++) {
            int expected = should_see(rule, b, &q, s, t, j);
            MUST(mask_sees(rule, b, &q, &view, j, q.kv_len) == expected);
            MUST(!expected || (lo <= j && j < hi));
            MUST(rule->custom || b->item_prefix_lens || expected == (lo <= j && j < hi));
        }
        MUST(!mask_sees(rule, b, &q, &view, q.kv_len, q.kv_len));
    }
    mask_view nothing;
    mask_find_view(rule, b, &q, s, -1, &nothing);
    MUST(!mask_sees(rule, b, &q, &nothing, 0, q.kv_len));
}

TEST_OF(common_device, rows_see_what_the_rules_say)
{
    static places p;
    unsigned char bits[SEQS * 256];
    long long indptr[SEQS + 1];
    int positions[512], prefixes[SEQS], seen_custom = 0, seen_items = 0;
    unsigned short item_pos[SEQS * 64];
    for (int n = 0; n < CASES; n++) {
        make_places(&p);
        mask_rule rule = {draw(0, 1) ? draw(0, 12) : -1, 0, draw(0, 2) ? 0 : draw(1, 9), draw(0, 1),
                          1};
        for (size_t i = 0; i < SEQS * 64; i++)
            item_pos[i] = (unsigned short)draw(0, 9);
        for (int s = 0; s < SEQS; s++)
            prefixes[s] = draw(0, 30);
        for (size_t i = 0; i < sizeof bits; i++)
            bits[i] = (unsigned char)draw(0, 255);
        for (int s = 0; s <= SEQS; s++)
            indptr[s] = s * 200;
        for (int i = 0; i < 512; i++)
            positions[i] = draw(0, 40);
        p.batch.mask_bits = rule.custom && draw(0, 3) ? bits : NULL;
        p.batch.mask_indptr = indptr;
        p.batch.mask_qlen = draw(0, 1);
        p.batch.positions = rule.custom && draw(0, 1) ? positions : NULL;
        p.batch.window_right = rule.custom ? -1 : draw(-1, 2);
        rule.window_right = p.batch.window_right;
        p.batch.item_prefix_lens = !rule.custom && draw(0, 1) ? prefixes : NULL;
        p.batch.item_pos = item_pos;
        p.batch.item_stride = 64;
        seen_items += p.batch.item_prefix_lens != NULL;
        use_form(&p, 0);
        for (int s = 0; s < SEQS; s++)
            check_sequence(&rule, &p.batch, s);
        seen_custom += p.batch.mask_bits && p.batch.positions;
    }
    ck_assert_int_gt(seen_custom, CASES / 10);
    ck_assert_int_gt(seen_items, CASES / 10);
}

/* ---- Softmax --------------------------------------------------------------------------------- */

/* Each logit equals its definition in fp64, caps and biases included. */
TEST_OF(common_device, a_softmax_taken_one_by_one)
{
    for (int n = 0; n < CASES; n++) {
        int count = draw(0, 30), alibi = draw(0, 1);
        float cap = draw(0, 1) ? 0.0f : 5.0f, sum = 0;
        double total = 0, expected = 0, logits[30];
        softmax_row row = softmax_begin();
        for (int i = 0; i < count; i++) {
            float product = (float)draw(-900, 900) / 40, value = (float)draw(-9, 9), shrink;
            float factor = softmax_factor(0.5f, cap != 0 || alibi), slope = 0.25f;
            double natural = (double)product * 0.5 - (alibi ? 0.25 * i : 0);
            logits[i] = cap != 0 ? (double)cap * tanh(natural / (double)cap) : natural;
            float logit = softmax_logit(product * factor, cap, alibi, slope, (float)i);
            float weight = softmax_take(&row, i % 7 == 6 ? SOFTMAX_EMPTY : logit, &shrink);
            if (i % 7 == 6) /* not seen */
                logits[i] = (double)-INFINITY;
            sum = sum * shrink + weight * value;
            expected += exp(logits[i] - 20) * (double)value;
            total += exp(logits[i] - 20);
        }
        double lse = log(total) + 20;
        ck_assert(total > 0 || softmax_lse(&row) == SOFTMAX_EMPTY);
        ck_assert(total > 0 || sum * softmax_end(&row) == 0);
        if (total > 0) {
            ck_assert_double_eq_tol((double)softmax_lse(&row), lse, 1e-5 * fmax(1, fabs(lse)));
            ck_assert_double_eq_tol((double)(sum * softmax_end(&row)), expected / total, 1e-4);
        }
    }
}

TESTS("common_device");
