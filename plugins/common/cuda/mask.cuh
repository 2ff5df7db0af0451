/* SPDX-License-Identifier: Apache-2.0
 *
 * mask.cuh: visibility of keys, in C and CUDA: window, chunk, causality, custom masks, items.
 *
 * A rule consists of values that a kernel knows: if its members are constants, disabled features
 * cost nothing. */
#ifndef PLUGINS_CUDA_MASK_CUH
#define PLUGINS_CUDA_MASK_CUH

#include "plugins/common/cuda/index.cuh"

typedef struct mask_rule {
    int window_left;  /* -1: no limit */
    int window_right; /* of the batch: call_batch.window_right */
    int chunk;        /* 0: off */
    int custom;       /* there may be a mask of bits, or positions */
    int items;        /* the batch may have several items; never with a custom mask */
} mask_rule;

/* ---- Positions ------------------------------------------------------------------------------- */

/* The begin of the chunk of position i. `chunk` is not 0. */
PORTABLE i64 mask_chunk_begin(int chunk, int i)
{
    return (i - (i < 0 ? chunk - 1 : 0)) / chunk * chunk;
}

/* The positions [*lo, *hi) that the window and chunk of position i allow. */
PORTABLE void mask_positions(const mask_rule *rule, int i, int *lo, int *hi)
{
    i64 from = -0x7fffffffll, to = 0x7fffffff;
    if (rule->window_left >= 0)
        from = (i64)i - rule->window_left;
    if (rule->window_right >= 0)
        to = (i64)i + rule->window_right + 1;
    if (rule->chunk > 0) {
        i64 start = mask_chunk_begin(rule->chunk, i);
        i64 end = rule->custom ? start + rule->chunk : (i64)i + 1;
        from = from > start ? from : start;
        to = to < end ? to : end;
    }
    *lo = (int)(from > -0x7fffffffll ? from : -0x7fffffffll);
    *hi = (int)(to < 0x7fffffff ? to : 0x7fffffff);
}

/* The position of a sequence's query t. */
PORTABLE int mask_query_position(const mask_rule *rule, const call_batch *b,
                                 const index_sequence *q, int t)
{
    if (rule->custom && b->positions)
        return index_int(b->positions, q->first_row + t);
    return q->prefix_len + t;
}

PORTABLE int mask_key_position(const mask_rule *rule, const call_batch *b, const index_sequence *q,
                               int j)
{
    int n = j - q->prefix_len;
    return rule->custom && b->positions && n >= 0 && n < q->q_len
               ? index_int(b->positions, q->first_row + n)
               : j;
}

/* ---- Items ----------------------------------------------------------------------------------- */

PORTABLE int mask_has_items(const mask_rule *rule, const call_batch *b)
{
    return rule->items && b->item_prefix_lens;
}

/* Query t of sequence s, in an item, does not see the keys of other items: those from the prefix's
 * end to *first, its item's first key. Returns 0 for a query of the prefix, which sees all keys
 * before it. */
PORTABLE int mask_find_item(const call_batch *b, const index_sequence *q, int s, int t, int *first)
{
    int i = q->prefix_len + t, column = i - index_int(b->item_prefix_lens, s);
    if (column < 0)
        return 0;
    *first = i + 1 - *PORTABLE_AT(b->item_pos + (i64)s * b->item_stride + column);
    return 1;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* The keys [*lo, *hi) that at least one of the queries [t0, t1] may see. Without a custom mask and
 * items, some query sees each of them. */
PORTABLE void mask_outline(const mask_rule *rule, const call_batch *b, const index_sequence *q,
                           int t0, int t1, int *lo, int *hi)
{
    int ignored;
    *lo = 0;
    *hi = q->kv_len;
    if (!(rule->custom && b->positions)) { /* else a new key may have any position */
        mask_positions(rule, q->prefix_len + t0, lo, &ignored);
        mask_positions(rule, q->prefix_len + t1, &ignored, hi);
    }
    if (mask_has_items(rule, b))
        *hi = int_min(*hi, q->prefix_len + t1 + 1);
    *lo = int_max(*lo, 0);
    *hi = int_min(*hi, q->kv_len);
    if (*lo >= *hi)
        *lo = *hi = 0;
}

/* What one query sees: keys at positions [lo, hi), except those of other items; a custom mask may
 * hide more. */
typedef struct mask_view {
    int lo;
    int hi;
    int items_lo, items_hi; /* [) keys of other items */
    int position;
    int first_bit; /* custom: keys before this one are visible without a bit */
    int end_bit;
    i64 bit; /* custom: index of key 0's bit among the sequence's bits */
} mask_view;

/* Find the view of query t of sequence s. t < 0: no row, sees nothing. */
PORTABLE void mask_find_view(const mask_rule *rule, const call_batch *b, const index_sequence *q,
                             int s, int t, mask_view *view)
{
    view->lo = view->hi = view->position = view->first_bit = view->end_bit = 0;
    view->items_lo = view->items_hi = 0;
    view->bit = 0;
    if (t < 0)
        return;
    view->position = mask_query_position(rule, b, q, t);
    mask_positions(rule, view->position, &view->lo, &view->hi);
    if (mask_has_items(rule, b)) {
        view->hi = int_min(view->hi, q->prefix_len + t + 1);
        if (mask_find_item(b, q, s, t, &view->items_hi))
            view->items_lo = index_int(b->item_prefix_lens, s);
    }
    if (rule->custom && b->mask_bits) {
        int columns = b->mask_qlen ? q->q_len : q->kv_len;
        view->first_bit = b->mask_qlen ? q->prefix_len : 0;
        view->end_bit = view->first_bit + columns;
        view->bit = *PORTABLE_AT(b->mask_indptr + s) * 8 + (i64)t * columns - view->first_bit;
    }
}

/* Does the query see key j? Keys from `end` on do not exist. */
PORTABLE int mask_sees(const mask_rule *rule, const call_batch *b, const index_sequence *q,
                       const mask_view *view, int j, int end)
{
    int seen = j < end;
    int at = seen ? mask_key_position(rule, b, q, j) : j;
    seen = seen && view->lo <= at && at < view->hi;
    if (rule->items)
        seen = seen && !(view->items_lo <= j && j < view->items_hi);
    if (rule->custom && seen && b->mask_bits && j >= view->first_bit) {
        i64 bit = view->bit + j;
        seen = j < view->end_bit && (*PORTABLE_AT(b->mask_bits + (bit >> 3)) >> (bit & 7) & 1);
    }
    return seen;
}

#endif /* PLUGINS_CUDA_MASK_CUH */
