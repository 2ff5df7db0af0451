/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_case_batch.c: the arrays of a case's batch: lengths, slots, masks, items.
 */
#include "host/check/cases/linear_case.h"

#include "host/base/error.h"
#include "host/base/round.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_NEW_ROW = 2, FIRST_CSR_ENTRY = 4, FIRST_MASK_BYTE = 3, OWN_PREFIX_OF_CROSS = 5 };

/* ---- Lengths --------------------------------------------------------------------------------- */

/* Are the keys a chunk of the prefix that comes expanded? */
static bool has_chunk(const struct case_spec *spec)
{
    return spec->partial && case_is_expanded(spec);
}

bool case_has_new_rows(const struct case_spec *spec, uint64_t seed)
{
    return spec->kv_layout && (spec->attn_type == ATTN_TYPE_CROSS || has_chunk(spec) ||
                               (!spec->from_cache && case_coin(seed, DRAW_NEW_ROWS)));
}

enum { EXTENDED = 20 }; /* of many sequences of a MIXED batch */

/* Length of the mask for sequence s: all its queries, one less, half of them, more than all, none.
 */
static int32_t fewer_keys(int32_t kv_len, int32_t q_len, int32_t s)
{
    const int32_t less[] = {0, 1, (q_len + 1) / 2, q_len + 5, kv_len};
    int32_t left = kv_len - less[s % 5];
    return left > 0 ? left : 0;
}

static void set_real(struct case_lengths *l, const struct case_spec *spec, int32_t s)
{
    const struct case_sequence *sequence = case_sequence_at(spec, s);
    bool cross = spec->attn_type == ATTN_TYPE_CROSS;
    bool decodes = spec->mode == ATTN_MODE_DECODE ||
                   (spec->mode == ATTN_MODE_MIXED && spec->num_sequences > FORWARD_CASE_MAX_SEQS &&
                    s >= EXTENDED);
    l->q_len[s] = decodes ? 1 : sequence->num_new;
    l->prefix[s] = cross ? OWN_PREFIX_OF_CROSS + s : sequence->prefix_len;
    l->num_new[s] = cross || has_chunk(spec) ? sequence->num_new_keys : l->q_len[s];
    if (cross && spec->from_cache)
        l->num_new[s] = 0;
    l->kv_len[s] = has_chunk(spec) ? sequence->chunk_end
                                   : sequence->prefix_len + (spec->partial ? 0 : l->num_new[s]);
    if (spec->fewer_keys)
        l->kv_len[s] = fewer_keys(l->kv_len[s], l->q_len[s], s);
}

static void set_padding(struct case_lengths *l, const struct case_spec *spec, int32_t s)
{
    bool cross = spec->attn_type == ATTN_TYPE_CROSS;
    l->q_len[s] = 1;
    l->prefix[s] = 0;
    l->num_new[s] = cross ? 0 : 1;
    l->kv_len[s] = spec->attn_type == ATTN_TYPE_ENCODER_ONLY ? 1 : spec->fill;
}

/* As many sequences of a MIXED batch as have the queries of one that decodes, from its end on,
 * where padding lies, or from its beginning. */
static void find_decodes(struct case_lengths *l, const struct case_spec *spec)
{
    int32_t queries = spec->decode_q_len > 0 ? spec->decode_q_len : 1, count = 0;
    l->num_decode_seqs = l->first_decode_seq = l->decode_q_len = 0;
    if (spec->mode != ATTN_MODE_MIXED)
        return;
    for (; count < l->num_seqs; count++) {
        int32_t s = spec->decodes_first ? count : l->num_seqs - 1 - count;
        bool is_padding = s >= l->num_real_seqs && !spec->decodes_first;
        if (l->q_len[s] != queries && !is_padding)
            break;
    }
    l->num_decode_seqs = count;
    l->first_decode_seq = spec->decodes_first ? 0 : l->num_seqs - count;
    l->decode_q_len = queries;
}

/* Sums, and what is largest. */
static void finish_lengths(struct case_lengths *l, const struct case_spec *spec, bool new_rows)
{
    bool decode = spec->mode == ATTN_MODE_DECODE;
    l->first_row[0] = decode ? 0 : spec->first_row;
    l->first_new[0] = new_rows ? FIRST_NEW_ROW : l->first_row[0];
    l->max_q_len = l->max_kv_len = 0;
    l->spare = spec->spare;
    for (int32_t s = 0; s < l->num_seqs; s++) {
        l->first_row[s + 1] = l->first_row[s] + l->q_len[s];
        l->first_new[s + 1] = l->first_new[s] + (new_rows ? l->num_new[s] : l->q_len[s]);
        l->max_q_len = l->max_q_len > l->q_len[s] ? l->max_q_len : l->q_len[s];
        l->max_kv_len = l->max_kv_len > l->kv_len[s] ? l->max_kv_len : l->kv_len[s];
    }
    find_decodes(l, spec);
}

void case_lengths_init(struct case_lengths *l, const struct case_spec *spec, uint64_t seed)
{
    if (spec->kind == ATTN_KIND_LINEAR) {
        linear_lengths_init(l, spec);
        return;
    }
    l->num_real_seqs = spec->num_sequences;
    l->num_seqs = spec->padded > 0 ? spec->padded : spec->num_sequences;
    for (int32_t s = 0; s < l->num_seqs; s++)
        if (s < l->num_real_seqs)
            set_real(l, spec, s);
        else
            set_padding(l, spec, s);
    finish_lengths(l, spec, case_has_new_rows(spec, seed));
}

void case_lengths_pad(struct case_lengths *l, const struct case_spec *spec, uint64_t seed)
{
    l->num_real_seqs = 0;
    for (int32_t s = 0; s < l->num_seqs; s++)
        set_padding(l, spec, s);
    finish_lengths(l, spec, case_has_new_rows(spec, seed));
}

/* ---- Pages ----------------------------------------------------------------------------------- */

static int32_t num_pages_of(const struct forward_case *c, int32_t keys)
{
    return (int32_t)units_for(keys, c->spec.page_size);
}

/* Pages 1 .. num_pages - 1 in an order of their own. */
static void shuffle(const struct forward_case *c, int32_t *order)
{
    uint64_t stream = case_stream(c->batch_seed, DRAW_PAGES, 0, 0, 0);
    int32_t count = c->num_pages - 1;
    for (int32_t i = 0; i < count; i++)
        order[i] = i + 1;
    for (int32_t i = count - 1; i > 0; i--) {
        int32_t other = draw_at(stream, (uint64_t)i, i + 1), page = order[i];
        order[i] = order[other];
        order[other] = page;
    }
}

static void hand_out_interleaved(struct forward_case *c, const int32_t *order)
{
    int32_t next = 0;
    for (int32_t p = 0; p < c->pages_of_seq; p++)
        for (int32_t s = 0; s < c->lengths.num_real_seqs; s++)
            if (p < num_pages_of(c, c->lengths.kv_len[s]))
                c->pages[s * c->pages_of_seq + p] = order[next++];
}

/* `descending`: the pages that begin with a new token come in the opposite order. */
static void hand_out_by_sequence(struct forward_case *c, const int32_t *order, bool descending)
{
    int32_t next = 0;
    for (int32_t s = 0; s < c->lengths.num_real_seqs; s++) {
        int32_t *pages = &c->pages[s * c->pages_of_seq];
        int32_t count = num_pages_of(c, c->lengths.kv_len[s]);
        int32_t old = num_pages_of(c, case_sequence_at(&c->spec, s)->prefix_len);
        for (int32_t p = 0; p < count; p++)
            pages[descending && p >= old ? count - 1 - (p - old) : p] = order[next++];
    }
}

attn_status case_assign_pages(struct forward_case *c, attn_error *error)
{
    size_t entries = (size_t)(c->lengths.num_seqs * c->pages_of_seq);
    int32_t *order = calloc((size_t)c->num_pages, sizeof *order);
    c->pages = calloc(entries, sizeof *c->pages); /* padding: page 0 */
    if (!order || !c->pages) {
        free(order);
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the pages of a case");
    }
    if (c->spec.slots == SLOTS_SHUFFLED_PAGES)
        shuffle(c, order);
    else
        for (int32_t i = 0; i < c->num_pages - 2; i++)
            order[i] = i + 2; /* page 1 and the last ones are unused */
    if (c->spec.keys_in_page_0)
        order[0] = 0;
    if (c->spec.slots == SLOTS_INTERLEAVED_PAGES)
        hand_out_interleaved(c, order);
    else
        hand_out_by_sequence(c, order, c->spec.slots == SLOTS_NON_MONOTONIC_EXTEND);
    free(order);
    for (int32_t n = 1; n < c->lengths.num_real_seqs; n++) {
        int32_t s = c->spec.shares_with_next ? c->lengths.num_real_seqs - 1 - n : n;
        memcpy(
            &c->pages[s * c->pages_of_seq], &c->pages[case_sharer(&c->spec, s) * c->pages_of_seq],
            (size_t)(case_sequence_at(&c->spec, s)->shared / c->spec.page_size) * sizeof *c->pages);
    }
    return ATTN_OK;
}

int64_t case_slot(const struct forward_case *c, int32_t s, int32_t j)
{
    int32_t page = c->spec.page_size;
    return (int64_t)c->pages[s * c->pages_of_seq + j / page] * page + j % page;
}

/* ---- Shared prefixes ------------------------------------------------------------------------- */

bool case_is_shared(const struct forward_case *c, int32_t s, int32_t j)
{
    int32_t other = 2 * s - case_sharer(&c->spec, s); /* whose first keys may be those of s */
    return j < case_sequence_at(&c->spec, s)->shared ||
           (other >= 0 && other < c->spec.num_sequences &&
            j < case_sequence_at(&c->spec, other)->shared);
}

void case_hint_run(const struct forward_case *c, int32_t s, int32_t *end, int32_t *length)
{
    *length = 0;
    for (*end = s + 1;
         *end < c->lengths.num_real_seqs && case_sequence_at(&c->spec, *end)->shared > 0; ++*end)
        if (*length == 0 || case_sequence_at(&c->spec, *end)->shared < *length)
            *length = case_sequence_at(&c->spec, *end)->shared;
}

/* ---- Arrays ---------------------------------------------------------------------------------- */

/* What fill_*() write into. */
struct filling {
    struct forward_case *c;
    const struct case_lengths *l;
    char *arena;
};

static void *part_of(const struct filling *f, enum case_part_id part)
{
    return f->c->parts[part].bytes ? f->arena + f->c->parts[part].offset : NULL;
}

static bool is_real(const struct filling *f, int32_t s)
{
    return s < f->l->num_real_seqs;
}

static void fill_lengths(const struct filling *f)
{
    const struct case_lengths *l = f->l;
    int32_t *seq_lens = part_of(f, PART_SEQ_LENS), *prefix = part_of(f, PART_PREFIX_LENS);
    int32_t *indptr = part_of(f, PART_Q_INDPTR), *requests = part_of(f, PART_REQUESTS);
    int32_t *kv_lens = part_of(f, PART_KV_LENS), *new_indptr = part_of(f, PART_NEW_INDPTR);
    int32_t *num_real = part_of(f, PART_NUM_REAL);
    bool decode = f->c->spec.mode == ATTN_MODE_DECODE;
    for (int32_t s = 0; s <= l->num_seqs; s++) {
        indptr[s] = decode ? CASE_UNUSED_INDEX : l->first_row[s];
        if (new_indptr)
            new_indptr[s] = l->first_new[s];
    }
    for (int32_t s = 0; s < l->num_seqs; s++) {
        seq_lens[s] = is_real(f, s) ? l->prefix[s] + l->q_len[s] : f->c->spec.fill;
        prefix[s] = decode ? -CASE_UNUSED_INDEX : l->prefix[s];
        requests[s] = is_real(f, s) ? l->num_seqs - s + 1 : 0;
        if (kv_lens)
            kv_lens[s] = l->kv_len[s];
    }
    num_real[0] = l->num_real_seqs;
    num_real[1] = l->first_row[l->num_real_seqs] - l->first_row[0];
}

static void fill_ints(int32_t *array, int64_t from, int64_t to, int32_t value)
{
    for (int64_t i = from; i < to; i++)
        array[i] = value;
}

static int64_t slot_in(const struct filling *f, int32_t s, int32_t j)
{
    return is_real(f, s) ? case_slot(f->c, s, j) : j % f->c->spec.page_size;
}

static int32_t page_in(const struct filling *f, int32_t s, int32_t p)
{
    return is_real(f, s) ? f->c->pages[s * f->c->pages_of_seq + p] : 0;
}

static void fill_tables(const struct filling *f)
{
    const struct case_lengths *l = f->l;
    struct forward_case *c = f->c;
    int32_t *slots = part_of(f, PART_REQ_TO_TOKEN), *pages = part_of(f, PART_BLOCK_TABLE);
    int32_t *requests = part_of(f, PART_REQUESTS);
    fill_ints(slots, 0, c->stride_slots, 0);
    fill_ints(slots, c->stride_slots, (int64_t)(l->num_seqs + 3) * c->stride_slots,
              CASE_UNUSED_INDEX);
    fill_ints(pages, 0, (int64_t)l->num_seqs * c->stride_pages, CASE_UNUSED_INDEX);
    for (int32_t s = 0; s < l->num_seqs; s++) {
        for (int32_t j = 0; is_real(f, s) && j < l->kv_len[s]; j++)
            slots[requests[s] * c->stride_slots + j] = (int32_t)slot_in(f, s, j);
        for (int32_t p = 0; p < num_pages_of(c, l->kv_len[s]); p++)
            pages[s * c->stride_pages + p] = page_in(f, s, p);
    }
}

static void fill_csr(const struct filling *f)
{
    const struct case_lengths *l = f->l;
    struct forward_case *c = f->c;
    int32_t *indptr = part_of(f, PART_KV_INDPTR), *indices = part_of(f, PART_KV_INDICES);
    int32_t *last = part_of(f, PART_LAST_PAGE_LEN);
    fill_ints(indices, 0, (int64_t)(c->parts[PART_KV_INDICES].bytes / sizeof *indices),
              CASE_UNUSED_INDEX);
    indptr[0] = FIRST_CSR_ENTRY;
    for (int32_t s = 0; s < l->num_seqs; s++) {
        int32_t count = num_pages_of(c, l->kv_len[s]);
        indptr[s + 1] = indptr[s] + count;
        last[s] = count == 0 ? 0 : l->kv_len[s] - (count - 1) * c->spec.page_size;
        for (int32_t p = 0; p < count; p++)
            indices[indptr[s] + p] = page_in(f, s, p);
    }
}

/* Of a row of padding: 0 or -1, which alone is no slot where page 0 has keys. */
static int64_t padding_slot(const struct filling *f, uint64_t stream, int64_t row)
{
    return f->c->spec.keys_in_page_0 ? -1 : draw_at(stream, (uint64_t)row, 2) - 1;
}

/* The slots of new keys. */
static void fill_new_slots(const struct filling *f)
{
    const struct case_lengths *l = f->l;
    int64_t *loc = part_of(f, PART_OUT_CACHE_LOC);
    uint64_t stream = case_stream(f->c->batch_seed, DRAW_SLOTS, 0, 0, 0);
    for (uint64_t i = 0; i < f->c->parts[PART_OUT_CACHE_LOC].bytes / sizeof *loc; i++)
        loc[i] = CASE_UNUSED_INDEX;
    for (int32_t s = 0; s < l->num_seqs; s++)
        for (int32_t n = 0; n < l->first_new[s + 1] - l->first_new[s]; n++) {
            int64_t row = l->first_new[s] + n;
            int32_t j = l->kv_len[s] - l->num_new[s] + n;
            if (!is_real(f, s))
                loc[row] = padding_slot(f, stream, row);
            else if (f->c->spec.partial || j < 0 ||
                     (f->c->spec.unwritten_slots && draw_at(stream, (uint64_t)row, 3) == 0))
                loc[row] = -1;
            else
                loc[row] = case_slot(f->c, s, j);
        }
    for (int64_t row = l->first_new[l->num_seqs], end = row + l->spare; row < end; row++)
        loc[row] = padding_slot(f, stream, row);
}

/* All runs of a level; those that a hint leaves out at either end are left out by where it begins and ends. In the second
 * level runs of more than two are two, and all share what they do. */
static void fill_hint(const struct filling *f, bool inner)
{
    int32_t *seqs = part_of(f, inner ? PART_HINT_INNER_SEQS : PART_HINT_SEQS);
    int32_t *lens = part_of(f, inner ? PART_HINT_INNER_LENS : PART_HINT_LENS), runs = 0;
    const enum case_hint hint = f->c->spec.hint;
    const bool is_short = !inner && (hint == HINT_SHORT || hint == HINT_LEVELS);
    fill_ints(seqs, 0, f->l->num_seqs + 2, CASE_UNUSED_INDEX);
    fill_ints(lens, 0, f->l->num_seqs + 2, CASE_UNUSED_INDEX);
    if (!inner)
        seqs[0] = 0; /* where there are no sequences, too */
    for (int32_t s = 0, end, length; s < f->l->num_seqs; s = end) {
        case_hint_run(f->c, s, &end, &length);
        for (int32_t from = s; from < end; from = inner && from == s && end > s + 2 ? s + 2 : end) {
            seqs[runs] = from;
            lens[runs++] = is_short && length > 0 ? length - f->c->spec.page_size : length;
        }
        seqs[runs] = end;
    }
}

/* ---- Masks ----------------------------------------------------------------------------------- */

/* Some rows see nothing, some all, some the columns before or after one; most about every other
 * column. So a tile's rows begin and end in splits of their own. */
static bool draw_bit(uint64_t stream, int32_t t, int32_t column, int32_t columns)
{
    uint64_t own = stream ^ (uint64_t)(t + 1);
    int32_t border = draw_at(own, UINT64_MAX - 1, columns);
    switch (draw_at(stream, (uint64_t)t, 10)) {
    case 0:
        return false;
    case 1:
        return true;
    case 2:
        return column < border;
    case 3:
        return column >= border;
    default:
        return mix_stream(own, (uint64_t)column) >> 63;
    }
}

/* Does row t choose this block? At most top_k of them, so it depends on those before. */
static bool draw_block(const struct filling *f, uint64_t stream, int32_t t, int32_t block,
                       int32_t blocks, int32_t *count)
{
    bool drawn = *count < f->c->spec.top_k && draw_bit(stream, t, block, blocks);
    *count += drawn;
    return drawn;
}

/* Blocks of the first head or of `chosen_head` are what the oracle knows. */
static uint64_t blocks_of(const struct filling *f, int32_t s, int32_t head)
{
    return case_stream(f->c->seed, DRAW_MASK, (uint64_t)s,
                       (uint64_t)(head == f->c->spec.chosen_head ? 0 : 1 + head), 0);
}

/* The keys of a row's blocks, up to its own. */
static void fill_blocks(const struct filling *f, int32_t s, int32_t t, uint8_t *bits, int64_t first)
{
    const struct case_spec *spec = &f->c->spec;
    uint64_t stream = blocks_of(f, s, spec->chosen_head);
    int32_t count = 0, last = f->l->prefix[s] + t;
    int32_t all = (int32_t)units_for(f->l->kv_len[s], spec->block_size);
    for (int32_t j = 0; j < f->l->kv_len[s]; j += spec->block_size) {
        bool is_chosen = draw_block(f, stream, t, j / spec->block_size, all, &count);
        for (int32_t k = j; k < j + spec->block_size && k < f->l->kv_len[s]; k++) {
            uint8_t one = (uint8_t)(1u << (first + k) % 8);
            uint8_t *byte = &bits[(first + k) / 8];
            *byte = (uint8_t)(is_chosen && k <= last ? *byte | one : *byte & ~one);
        }
    }
}

/* What a sequence's list is drawn by: of a variant as in the base. */
static uint64_t list_of(const struct filling *f, int32_t s)
{
    return (uint64_t)(s < f->l->num_real_seqs ? case_tokens_of(f->c, s) : s);
}

static void fill_mask(const struct filling *f)
{
    const struct case_lengths *l = f->l;
    uint8_t *bits = part_of(f, PART_MASK_BITS);
    int64_t *indptr = part_of(f, PART_MASK_INDPTR);
    bool full = case_mask_kind(&f->c->spec) == ATTN_MASK_FULL;
    indptr[0] = FIRST_MASK_BYTE;
    for (int32_t s = 0; s < l->num_seqs; s++) {
        int64_t columns = full ? l->kv_len[s] : l->q_len[s];
        /* Layers of one batch have one mask, and each its own chosen keys. */
        bool is_list = case_has_lists(&f->c->spec);
        int32_t most = is_list ? f->c->spec.top_k : INT32_MAX;
        uint64_t seed = is_list ? f->c->seed : f->c->batch_seed;
        uint64_t stream = case_stream(seed, DRAW_MASK, is_list ? list_of(f, s) : (uint64_t)s, 0, 0);
        for (int64_t t = 0; t < l->q_len[s]; t++) {
            int32_t count = 0;
            if (case_has_blocks(&f->c->spec)) {
                fill_blocks(f, s, (int32_t)t, bits, indptr[s] * 8 + t * columns);
                continue;
            }
            /* A list over latents names keys that its row may see (MEAN-21). */
            bool is_latent = is_list && case_is_absorbed(&f->c->spec);
            int64_t end = is_latent && l->prefix[s] + t < columns ? l->prefix[s] + t + 1 : columns;
            for (int64_t column = 0; column < columns; column++) {
                int64_t bit = indptr[s] * 8 + t * columns + column;
                uint8_t one = (uint8_t)(1u << bit % 8);
                bool seen = count < most && column < end &&
                            draw_bit(stream, (int32_t)t, (int32_t)column, (int32_t)end);
                count += seen;
                bits[bit / 8] = (uint8_t)(seen ? bits[bit / 8] | one : bits[bit / 8] & ~one);
            }
        }
        indptr[s + 1] = indptr[s] + (l->q_len[s] * columns + 7) / 8;
    }
}

/* ---- Chosen keys ----------------------------------------------------------------------------- */

static int32_t *chosen_row(const struct filling *f, enum case_part_id part, int64_t row,
                           int32_t head)
{
    return (int32_t *)(void *)case_vector(f->c, f->arena, part, row, head, 0);
}

static int has_bit(const uint8_t *bits, int64_t bit)
{
    return bits[bit / 8] >> bit % 8 & 1;
}

static void note_count(const struct filling *f, enum case_part_id part, int64_t row, int32_t count)
{
    *chosen_row(f, part, row, 0) = count;
    f->c->max_chosen = count > f->c->max_chosen ? count : f->c->max_chosen;
}

/* The slots of the bits of a row, from the last to the first and with gaps of -1; after a count
 * there are slots that are not chosen. */
static void choose(const struct filling *f, bool second, int32_t s, int32_t t)
{
    const struct case_lengths *l = f->l;
    const int64_t *indptr = part_of(f, PART_MASK_INDPTR);
    const uint8_t *bits = part_of(f, second ? PART_BITS_SECOND : PART_MASK_BITS);
    int32_t top_k = f->c->spec.top_k, left = 0, count = 0;
    int64_t row = l->first_row[s] + t, first = indptr[s] * 8 + (int64_t)t * l->kv_len[s];
    int32_t *slots = chosen_row(f, second ? PART_INDICES_SECOND : PART_SPARSE_INDICES, row, 0);
    uint64_t stream = case_stream(f->c->seed, DRAW_CHOSEN, 1, list_of(f, s), (uint64_t)t);
    for (int32_t j = 0; j < l->kv_len[s]; j++)
        left += has_bit(bits, first + j);
    for (int32_t j = l->kv_len[s] - 1; j >= 0; j--) {
        if (!has_bit(bits, first + j))
            continue;
        if (count + left < top_k && draw_at(stream, (uint64_t)j, 4) == 0)
            slots[count++] = -1;
        slots[count++] = (int32_t)slot_in(f, s, j);
        left--;
    }
    for (int32_t n = count; n < top_k; n++)
        slots[n] = case_has_count(f->c) && l->kv_len[s] > 0
                       ? (int32_t)slot_in(f, s, n % l->kv_len[s])
                       : -1;
    note_count(f, second ? PART_COUNT_SECOND : PART_SPARSE_COUNT, row, count);
}

/* The blocks of one KV head, from the first to the last and with gaps of -1. How many entries. */
static int32_t choose_blocks(const struct filling *f, int32_t s, int32_t t, int32_t head,
                             int32_t *blocks)
{
    const struct case_spec *spec = &f->c->spec;
    int32_t all = (int32_t)units_for(f->l->kv_len[s], spec->block_size);
    uint64_t stream = blocks_of(f, s, head);
    int32_t drawn = 0, entries = 0, total = 0;
    for (int32_t b = 0; b < all; b++)
        draw_block(f, stream, t, b, all, &total);
    for (int32_t b = 0; b < all; b++) {
        if (!draw_block(f, stream, t, b, all, &drawn))
            continue;
        if (entries + total - drawn + 1 < spec->top_k && b % 3 == 1)
            blocks[entries++] = -1;
        blocks[entries++] = b;
    }
    return entries;
}

/* A row has one count: heads with fewer blocks end with -1. After it there are blocks that are not
 * chosen. */
static void choose_all_blocks(const struct filling *f, int32_t s, int32_t t)
{
    const struct case_spec *spec = &f->c->spec;
    int32_t heads = spec->index_kind == ATTN_SPARSE_PER_HEAD ? spec->num_kv_heads : 1;
    int32_t all = (int32_t)units_for(f->l->kv_len[s], spec->block_size), count = 0;
    int64_t row = f->l->first_row[s] + t;
    for (int32_t h = 0; h < heads; h++) {
        int32_t *blocks = chosen_row(f, PART_SPARSE_INDICES, row, h);
        int32_t entries = choose_blocks(f, s, t, h, blocks);
        fill_ints(blocks, entries, spec->top_k, -1);
        count = entries > count ? entries : count;
    }
    for (int32_t h = 0; h < heads && all > 0 && case_has_count(f->c); h++)
        for (int32_t n = count; n < spec->top_k; n++)
            chosen_row(f, PART_SPARSE_INDICES, row, h)[n] = n % all;
    note_count(f, PART_SPARSE_COUNT, row, count);
}

/* Every other of the keys that the first layer chooses. */
static void choose_bits_again(const struct filling *f)
{
    const uint8_t *bits = part_of(f, PART_MASK_BITS);
    uint8_t *again = part_of(f, PART_BITS_SECOND);
    uint64_t stream = case_stream(f->c->seed, DRAW_CHOSEN, 2, 0, 0);
    for (uint64_t i = 0; i < f->c->parts[PART_MASK_BITS].bytes; i++)
        again[i] = bits[i] & (uint8_t)draw_at(stream, i, 256);
}

/* Lists of rows of padding are not read: they hold what no list may. */
static void fill_chosen(const struct filling *f, bool second)
{
    struct forward_case *c = f->c;
    const struct case_lengths *l = f->l;
    int64_t rows = c->shapes[PART_SPARSE_COUNT].shape[0];
    int32_t heads = c->spec.index_kind == ATTN_SPARSE_PER_HEAD ? c->spec.num_kv_heads : 1;
    for (int64_t row = 0; row < rows; row++) {
        for (int32_t h = 0; h < heads; h++)
            fill_ints(chosen_row(f, second ? PART_INDICES_SECOND : PART_SPARSE_INDICES, row, h), 0,
                      c->spec.top_k, CASE_UNUSED_INDEX);
        *chosen_row(f, second ? PART_COUNT_SECOND : PART_SPARSE_COUNT, row, 0) = CASE_UNUSED_INDEX;
    }
    if (second)
        choose_bits_again(f);
    for (int32_t s = 0; s < l->num_real_seqs; s++)
        for (int32_t t = 0; t < l->q_len[s]; t++)
            if (case_has_blocks(&c->spec))
                choose_all_blocks(f, s, t);
            else
                choose(f, second, s, t);
}

/* Depths of a tree of tokens: never beyond the row's own place, if none is ahead. */
static void fill_positions(const struct filling *f)
{
    int32_t *positions = part_of(f, PART_POSITIONS);
    fill_ints(positions, 0, (int64_t)(f->c->parts[PART_POSITIONS].bytes / sizeof *positions),
              CASE_UNUSED_INDEX);
    for (int32_t s = 0; s < f->l->num_seqs; s++) {
        uint64_t stream = case_stream(f->c->batch_seed, DRAW_POSITIONS, (uint64_t)s, 0, 0);
        int32_t root = f->l->prefix[s] + f->c->spec.positions_ahead;
        for (int32_t t = 0; t < f->l->q_len[s]; t++)
            positions[f->l->first_row[s] + t] = root + draw_at(stream, (uint64_t)t, t / 2 + 1);
    }
    fill_ints(positions, f->l->first_row[f->l->num_seqs],
              f->l->first_row[f->l->num_seqs] + f->l->spare, 0);
}

/* Items after a prefix of any length. */
int32_t case_items_prefix(const struct forward_case *c, const struct case_lengths *l, int32_t s)
{
    uint64_t stream = case_stream(c->batch_seed, DRAW_ITEMS, (uint64_t)s, 0, 0);
    int32_t longest = c->spec.longest_item, tokens = l->prefix[s] + l->q_len[s] + 1;
    int32_t room = longest > 20 ? tokens / 4 + 1 : longest > 0 ? 300 : tokens;
    return draw_at(stream, UINT32_MAX, room < tokens ? room : tokens);
}

static void fill_items(const struct filling *f)
{
    int32_t *prefix = part_of(f, PART_ITEM_PREFIX), *longest = part_of(f, PART_ITEM_LEN);
    uint16_t *token_pos = part_of(f, PART_TOKEN_POS);
    int32_t most = f->c->spec.longest_item;
    bool is_long = most > 0;
    for (int32_t s = 0; s < f->l->num_seqs; s++) {
        uint64_t stream = case_stream(f->c->batch_seed, DRAW_ITEMS, (uint64_t)s, 0, 0);
        int32_t left = 0, p = 0;
        prefix[s] = case_items_prefix(f->c, f->l, s);
        longest[s] = 0;
        for (int32_t i = 0; i < f->c->stride_items; i++, p = p < left ? p + 1 : 0) {
            if (p == 0)
                left = is_long ? most - 1 - draw_at(stream, (uint64_t)i, most / 4 + 1)
                               : draw_at(stream, (uint64_t)i, 20);
            if (i == 0 && most > INT16_MAX) /* the last query is in it, wherever it begins */
                left = most - 1;
            token_pos[s * f->c->stride_items + i] = (uint16_t)p;
            longest[s] = longest[s] > p ? longest[s] : p;
        }
    }
}

void case_fill_batch(struct forward_case *c, const struct case_lengths *lengths, char *arena)
{
    struct filling f = {c, lengths, arena};
    fill_lengths(&f);
    if (c->spec.kv_layout) {
        fill_tables(&f);
        fill_csr(&f);
        fill_new_slots(&f);
    }
    if (c->parts[PART_MASK_BITS].bytes)
        fill_mask(&f);
    if (c->max_chosen == 0) /* what is captured, padding, does not change it */
        c->max_chosen = !case_has_indexer(&c->spec) || lengths->max_kv_len < 1 ? 1
                        : c->spec.top_k < lengths->max_kv_len                  ? c->spec.top_k
                                                              : lengths->max_kv_len;
    for (int second = 0; case_has_lists(&c->spec) && second <= c->spec.read_only_layer; second++)
        fill_chosen(&f, second);
    if (c->spec.explicit_positions)
        fill_positions(&f);
    if (c->spec.hint != HINT_NONE)
        fill_hint(&f, false);
    if (c->spec.hint == HINT_LEVELS)
        fill_hint(&f, true);
    if (c->spec.multi_item)
        fill_items(&f);
}

/* ---- What a query sees ----------------------------------------------------------------------- */

static void sight_of_mask(reference_sight *sight, const struct forward_case *c, int32_t s,
                          int32_t t)
{
    const int64_t *indptr = case_part(c, PART_MASK_INDPTR);
    if (!indptr)
        return;
    bool full = case_mask_kind(&c->spec) == ATTN_MASK_FULL;
    sight->mask_columns = full ? c->lengths.kv_len[s] : c->lengths.q_len[s];
    sight->mask_bits = case_part(c, PART_MASK_BITS);
    sight->mask_first_bit = indptr[s] * 8 + t * sight->mask_columns;
}

reference_sight case_sight(const struct forward_case *c, int32_t s, int32_t t)
{
    reference_sight sight = reference_sight_all();
    const int32_t *positions = case_part(c, PART_POSITIONS);
    int32_t row = c->lengths.first_row[s];
    sight.mask_kind = case_mask_kind(&c->spec);
    sight.prefix_len = c->lengths.prefix[s];
    if (case_is_expanded(&c->spec))
        sight.first_key = c->lengths.kv_len[s] - c->lengths.num_new[s];
    sight.has_position = c->spec.attn_type != ATTN_TYPE_CROSS;
    sight.position = c->lengths.prefix[s] + t;
    sight.window_left = c->spec.window_left;
    sight.window_right = c->spec.window_right;
    sight.attention_chunk = c->spec.attention_chunk;
    sight_of_mask(&sight, c, s, t);
    if (positions) {
        sight.position = positions[row + t];
        sight.key_positions = positions + row;
    }
    if (c->spec.multi_item) {
        const int32_t *prefix = case_part(c, PART_ITEM_PREFIX);
        const uint16_t *token_pos = case_part(c, PART_TOKEN_POS);
        int64_t column = sight.position - prefix[s];
        sight.has_items = 1;
        sight.items_prefix_len = prefix[s];
        if (column >= 0)
            sight.token_pos_in_item = token_pos[s * c->stride_items + column];
    }
    return sight;
}

void case_write_padding(struct forward_case *c, const struct case_lengths *lengths, char *arena)
{
    case_fill_batch(c, lengths, arena);
    for (enum case_part_id part = 0; part < CASE_PARTS; part++)
        if (case_part_is(part, CASE_ROWS | CASE_NEW))
            memset(arena + c->parts[part].offset, 0, c->parts[part].bytes);
}
