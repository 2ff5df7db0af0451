/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.c: checks an engine's batch before a plugin gets it: structs have their full size, counts
 * are within the bounds, required arrays are present; contents of arrays are checked if the host
 * can read them. docs/ABI.md lists the checks.
 */
#include "host/embed/batch.h"

#include "host/base/error.h"
#include "host/base/bit_names.h"

#include <stdio.h>
#include <stdlib.h>

static attn_status fail_batch(attn_error *error, const char *field, int64_t got,
                              const char *accepted, int64_t limit)
{
    return host_fail(error, ATTN_INVALID_ARGUMENT, "batch.%s is %lld; accepted: %s%lld", field,
                     (long long)got, accepted, (long long)limit);
}

static attn_status fail_absent(attn_error *error, const char *what)
{
    return host_fail(error, ATTN_INVALID_ARGUMENT, "batch.%s is absent", what);
}

/* ---- Structs --------------------------------------------------------------------------------- */

static attn_status check_sizes(const attn_batch *batch, attn_error *error)
{
    attn_status status = EMBED_CHECK_SIZE(batch, attn_batch, sparse, "batch", error);
    if (status == ATTN_OK && batch->num_kv_groups > 0 && batch->kv_groups)
        status = EMBED_CHECK_SIZE(batch->kv_groups, attn_kv_batch, last_page_len,
                                  "batch.kv_groups[0]", error);
    if (status == ATTN_OK && batch->mask)
        status = EMBED_CHECK_SIZE(batch->mask, attn_mask, indptr, "batch.mask", error);
    if (status == ATTN_OK && batch->speculation)
        status = EMBED_CHECK_SIZE(batch->speculation, attn_speculation, reserved,
                                  "batch.speculation", error);
    if (status == ATTN_OK && batch->multi_item)
        status = EMBED_CHECK_SIZE(batch->multi_item, attn_multi_item, max_item_len,
                                  "batch.multi_item", error);
    if (status == ATTN_OK && batch->num_prefix_levels > 0 && batch->shared_prefix)
        status = EMBED_CHECK_SIZE(batch->shared_prefix, attn_shared_prefix, prefix_len,
                                  "batch.shared_prefix[0]", error);
    if (status == ATTN_OK && batch->num_state_groups > 0 && batch->state_groups)
        status = EMBED_CHECK_SIZE(batch->state_groups, attn_state_batch, snapshots,
                                  "batch.state_groups[0]", error);
    if (status == ATTN_OK && batch->sparse)
        status =
            EMBED_CHECK_SIZE(batch->sparse, attn_sparse_batch, max_count, "batch.sparse", error);
    return status;
}

/* ---- Counts and arrays ----------------------------------------------------------------------- */

static attn_status check_mode(const attn_bounds *bounds, const attn_batch *batch, attn_error *error)
{
    const char *name = bit_names_member(ATTN_FIELD_MODES, batch->mode);
    char accepted[96];
    if (!name)
        return fail_batch(error, "mode", batch->mode, "0..", ATTN_MODE_COUNT - 1);
    if (bounds->modes & ATTN_MODE_BIT(batch->mode))
        return ATTN_OK;
    bit_names_text(ATTN_FIELD_MODES, bounds->modes, accepted, sizeof accepted);
    return host_fail(error, ATTN_INVALID_ARGUMENT,
                     "batch.mode is %s; accepted: %s, the modes of the bounds", name, accepted);
}

/* Which sequences of a MIXED batch decode, and how many queries each of them has. */
static attn_status check_decodes(const attn_bounds *bounds, const attn_batch *batch,
                                 attn_error *error)
{
    int mixed = batch->mode == ATTN_MODE_MIXED;
    int32_t most = mixed ? batch->num_seqs : 0, last = batch->num_seqs - batch->num_decode_seqs;
    if (batch->num_decode_seqs < 0 || batch->num_decode_seqs > most)
        return fail_batch(error, "num_decode_seqs", batch->num_decode_seqs, "0..", most);
    if (!mixed && batch->first_decode_seq != 0)
        return fail_batch(error, "first_decode_seq", batch->first_decode_seq, "", 0);
    if (!mixed && batch->decode_q_len != 0)
        return fail_batch(error, "decode_q_len", batch->decode_q_len, "", 0);
    if (!mixed)
        return ATTN_OK;
    int first = bounds->uses & ATTN_USES_DECODES_FIRST && batch->first_decode_seq == 0;
    if (batch->first_decode_seq != last && !first)
        return fail_batch(error, "first_decode_seq", batch->first_decode_seq,
                          bounds->uses & ATTN_USES_DECODES_FIRST
                              ? "0, or num_seqs - num_decode_seqs, which is "
                              : "num_seqs - num_decode_seqs (or 0 where the bounds use "
                                "decodes_first), which is ",
                          last);
    if (batch->decode_q_len < 1 ||
        (batch->decode_q_len > 1 && !(bounds->uses & ATTN_USES_DECODE_DRAFTS)))
        return fail_batch(error, "decode_q_len", batch->decode_q_len,
                          bounds->uses & ATTN_USES_DECODE_DRAFTS
                              ? "1..max_q_len, which is "
                              : "1 (more where the bounds use decode_drafts), at least ",
                          bounds->uses & ATTN_USES_DECODE_DRAFTS ? bounds->max_q_len : 1);
    return ATTN_OK;
}

static attn_status check_counts(const attn_bounds *bounds, const attn_batch *batch,
                                attn_error *error)
{
    if (batch->num_seqs < 0 || batch->num_seqs > bounds->max_seqs)
        return fail_batch(error, "num_seqs", batch->num_seqs, "0..", bounds->max_seqs);
    if (batch->num_tokens < 0 || batch->num_tokens > bounds->max_tokens)
        return fail_batch(error, "num_tokens", batch->num_tokens, "0..", bounds->max_tokens);
    if (batch->num_real_seqs < 0 || batch->num_real_seqs > batch->num_seqs)
        return fail_batch(error, "num_real_seqs", batch->num_real_seqs, "0..", batch->num_seqs);
    if (batch->num_real_tokens < 0 || batch->num_real_tokens > batch->num_tokens)
        return fail_batch(error, "num_real_tokens", batch->num_real_tokens, "0..",
                          batch->num_tokens);
    if (batch->mode == ATTN_MODE_DECODE && batch->num_tokens != batch->num_seqs)
        return fail_batch(error, "num_tokens", batch->num_tokens, "num_seqs in DECODE, which is ",
                          batch->num_seqs);
    if (batch->max_kv_len > bounds->max_kv_len)
        return fail_batch(error, "max_kv_len", batch->max_kv_len, "0..", bounds->max_kv_len);
    if (batch->max_q_len > bounds->max_q_len)
        return fail_batch(error, "max_q_len", batch->max_q_len, "0..", bounds->max_q_len);
    return check_decodes(bounds, batch, error);
}

/* Without sequences arrays may be absent. */
static attn_status check_arrays(const attn_batch *batch, attn_error *error)
{
    int decode = batch->mode == ATTN_MODE_DECODE;
    if (batch->num_seqs == 0)
        return ATTN_OK;
    if (!batch->seq_lens.device)
        return fail_absent(error, "seq_lens.device");
    if (!decode && !batch->q_indptr.device)
        return fail_absent(error, "q_indptr.device");
    if (!decode && !batch->prefix_lens.device)
        return fail_absent(error, "prefix_lens.device");
    return ATTN_OK;
}

static attn_status fail_host_array(attn_error *error, uint32_t array)
{
    static const struct {
        uint32_t array;
        const char *name;
    } names[] = {
#define HOST_NAME(name, bit, text) {ATTN_HOST_##name, text},
        ATTN_HOST_MAP(HOST_NAME)
#undef HOST_NAME
    };
    size_t n = 0;
    while (names[n].array != array)
        n++;
    return host_fail(
        error, ATTN_INVALID_ARGUMENT,
        "batch.%s%s.host is absent; accepted: a host array, as this backend plans with it",
        array >= ATTN_HOST_KV_LENS && array <= ATTN_HOST_LAST_PAGE_LEN ? "kv_groups[]." : "",
        names[n].name);
}

/* The host arrays that the backend plans with: of the batch, and of KV group `kv` (NULL = none). */
static attn_status check_host_arrays(uint32_t needed, const attn_batch *batch,
                                     const attn_kv_batch *kv, attn_error *error)
{
    static const attn_kv_batch no_group;
    const attn_kv_batch *g = kv ? kv : &no_group;
    int decode = batch->mode == ATTN_MODE_DECODE;
    const struct {
        uint32_t array;
        int is_absent;
    } arrays[] = {
        {ATTN_HOST_SEQ_LENS, !batch->seq_lens.host},
        {ATTN_HOST_PREFIX_LENS, !decode && !batch->prefix_lens.host},
        {ATTN_HOST_Q_INDPTR, !decode && !batch->q_indptr.host},
        {ATTN_HOST_KV_LENS, g->kv_lens.device && !g->kv_lens.host},
        {ATTN_HOST_KV_NEW_INDPTR, g->kv_new_indptr.device && !g->kv_new_indptr.host},
        {ATTN_HOST_KV_INDPTR, g->kv_indptr.device && !g->kv_indptr.host},
        {ATTN_HOST_LAST_PAGE_LEN, g->last_page_len.device && !g->last_page_len.host},
        {ATTN_HOST_MASK_INDPTR,
         batch->mask && batch->mask->indptr.device && !batch->mask->indptr.host},
    };
    for (size_t a = 0; a < sizeof arrays / sizeof *arrays; a++)
        if (needed & arrays[a].array && arrays[a].is_absent)
            return fail_host_array(error, arrays[a].array);
    return ATTN_OK;
}

/* Check that an array of bounds [count + 1] does not decrease and covers at most `limit`; only if
 * the host can read it. */
static attn_status check_indptr(const char *name, const attn_i32_array *array, int64_t count,
                                int64_t limit, attn_error *error)
{
    const int32_t *indptr = array->host;
    char field[64];
    if (!indptr)
        return ATTN_OK;
    for (int64_t i = 0; i <= count; i++)
        if (indptr[i] < 0 || (i > 0 && indptr[i] < indptr[i - 1])) {
            snprintf(field, sizeof field, "%s[%lld]", name, (long long)i);
            return fail_batch(error, field, indptr[i], "at least ", i > 0 ? indptr[i - 1] : 0);
        }
    int64_t sum = (int64_t)indptr[count] - indptr[0];
    snprintf(field, sizeof field, "%s[%lld] - %s[0]", name, (long long)count, name);
    return sum <= limit ? ATTN_OK : fail_batch(error, field, sum, "0..", limit);
}

static attn_status check_mask_indptr(const attn_batch *batch, attn_error *error)
{
    const int64_t *indptr = batch->mask ? batch->mask->indptr.host : NULL;
    char field[64];
    for (int32_t s = 0; indptr && s <= batch->num_seqs; s++)
        if (indptr[s] < 0 || (s > 0 && indptr[s] < indptr[s - 1])) {
            snprintf(field, sizeof field, "mask.indptr[%d]", s);
            return fail_batch(error, field, indptr[s], "at least ", s > 0 ? indptr[s - 1] : 0);
        }
    return ATTN_OK;
}

/* The run of a level that has sequence s; -1 = none. */
static int32_t find_run(const attn_shared_prefix *level, int32_t s)
{
    for (uint32_t g = 0; g < level->num_groups; g++)
        if (level->seq_indptr.host[g] <= s && s < level->seq_indptr.host[g + 1])
            return (int32_t)g;
    return -1;
}

/* Does each run lie within one of the level before, and share no fewer keys? */
static attn_status check_nested(const attn_shared_prefix *outer, const attn_shared_prefix *inner,
                                uint32_t level, attn_error *error)
{
    const int32_t *lens = inner->prefix_len.host, *seqs = inner->seq_indptr.host;
    if (!seqs || !lens || !outer->seq_indptr.host || !outer->prefix_len.host)
        return ATTN_OK;
    for (uint32_t g = 0; g < inner->num_groups; g++) {
        int32_t run = find_run(outer, seqs[g]);
        if (seqs[g] == seqs[g + 1] || run < 0)
            continue;
        if (seqs[g + 1] > outer->seq_indptr.host[run + 1] || lens[g] < outer->prefix_len.host[run])
            return host_fail(
                error, ATTN_INVALID_ARGUMENT,
                "batch: shared_prefix[%u]: sequences %d..%d share %d keys; accepted: a run within "
                "that of level %u, sequences %d..%d, and at least its %d keys",
                level, seqs[g], seqs[g + 1] - 1, lens[g], level - 1, outer->seq_indptr.host[run],
                outer->seq_indptr.host[run + 1] - 1, outer->prefix_len.host[run]);
    }
    return ATTN_OK;
}

static attn_status check_prefix_levels(const attn_bounds *bounds, const attn_batch *batch,
                                       attn_error *error)
{
    uint32_t most = bounds->max_prefix_levels > 1 ? (uint32_t)bounds->max_prefix_levels : 1;
    const attn_shared_prefix *before = NULL;
    attn_status status = ATTN_OK;
    if (batch->num_prefix_levels > most || (batch->num_prefix_levels > 0) != !!batch->shared_prefix)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "batch: num_prefix_levels is %u; accepted: 1..%u with shared_prefix, 0 "
                         "without",
                         batch->num_prefix_levels, most);
    for (uint32_t level = 0; level < batch->num_prefix_levels && status == ATTN_OK; level++) {
        const attn_shared_prefix *shared = attn_at(batch->shared_prefix, level);
        status = check_indptr("shared_prefix.seq_indptr", &shared->seq_indptr, shared->num_groups,
                              batch->num_seqs, error);
        if (status == ATTN_OK && before)
            status = check_nested(before, shared, level, error);
        before = shared;
    }
    return status;
}

/* Launches of a graph are for as many levels and runs as the bounds have. */
static attn_status check_frozen_levels(const attn_bounds *bounds, const attn_batch *batch,
                                       attn_error *error)
{
    uint32_t levels = bounds->max_prefix_levels > 1 ? (uint32_t)bounds->max_prefix_levels : 1;
    for (uint32_t level = 0; level < batch->num_prefix_levels; level++) {
        const attn_shared_prefix *shared = attn_at(batch->shared_prefix, level);
        if (batch->num_prefix_levels != levels || shared->num_groups != (uint32_t)bounds->max_seqs)
            return host_fail(error, ATTN_INVALID_ARGUMENT,
                             "batch: %u prefix levels, and level %u has %u runs; accepted in a "
                             "graph: %u levels of %d runs, as in the bounds",
                             batch->num_prefix_levels, level, shared->num_groups, levels,
                             bounds->max_seqs);
    }
    return ATTN_OK;
}

static attn_status check_all_indptr(const attn_batch *batch, attn_error *error)
{
    attn_status status = ATTN_OK;
    if (batch->num_seqs == 0)
        return ATTN_OK;
    if (batch->mode != ATTN_MODE_DECODE)
        status =
            check_indptr("q_indptr", &batch->q_indptr, batch->num_seqs, batch->num_tokens, error);
    if (status == ATTN_OK)
        status = check_mask_indptr(batch, error);
    return status;
}

/* ---- Lengths --------------------------------------------------------------------------------- */

/* Queries of each sequence, and where they lie. Entries of padding may hold anything. */
static attn_status check_lens(const attn_batch *batch, attn_error *error)
{
    const int32_t *lens = batch->seq_lens.host, *prefixes = batch->prefix_lens.host,
                  *rows = batch->q_indptr.host;
    char field[64];
    if (batch->mode == ATTN_MODE_DECODE)
        return ATTN_OK;
    for (int32_t s = 0; rows && s < batch->num_real_seqs; s++) {
        int32_t new_rows = rows[s + 1] - rows[s];
        if (new_rows > batch->max_q_len) {
            snprintf(field, sizeof field, "q_indptr[%d] - q_indptr[%d]", s + 1, s);
            return fail_batch(error, field, new_rows, "0..max_q_len, which is ", batch->max_q_len);
        }
        if (batch->mode == ATTN_MODE_MIXED && attn_is_decode_seq(batch, s) &&
            new_rows != batch->decode_q_len) {
            snprintf(field, sizeof field, "q_indptr[%d] - q_indptr[%d]", s + 1, s);
            return fail_batch(error, field, new_rows,
                              "decode_q_len of a sequence that decodes, which is ",
                              batch->decode_q_len);
        }
        if (lens && prefixes && (int64_t)prefixes[s] + new_rows != lens[s])
            return host_fail(error, ATTN_INVALID_ARGUMENT,
                             "batch.seq_lens[%d] is %d; accepted: prefix_lens[%d] and the rows of "
                             "q, %d + %d",
                             s, lens[s], s, prefixes[s], new_rows);
    }
    return ATTN_OK;
}

/* Explicit positions of new tokens. */
static attn_status check_positions(const attn_batch *batch, attn_error *error)
{
    const int32_t *positions = batch->positions.host, *rows = batch->q_indptr.host;
    char field[64];
    if (!positions || !rows || batch->mode == ATTN_MODE_DECODE)
        return ATTN_OK;
    for (int32_t row = rows[0]; row < rows[batch->num_real_seqs]; row++)
        if (positions[row] < 0) {
            snprintf(field, sizeof field, "positions[%d]", row);
            return fail_batch(error, field, positions[row], "at least ", 0);
        }
    return ATTN_OK;
}

/* Keys of each sequence in a KV group. */
static attn_status check_kv_lens(const attn_batch *batch, const attn_kv_batch *kv,
                                 attn_error *error)
{
    int own = kv->kv_lens.device || kv->kv_lens.host;
    const int32_t *lens = own ? kv->kv_lens.host : batch->seq_lens.host;
    char field[64];
    for (int32_t s = 0; lens && s < batch->num_real_seqs; s++)
        if (lens[s] < 0 || lens[s] > batch->max_kv_len) {
            snprintf(field, sizeof field, own ? "kv_groups[].kv_lens[%d]" : "seq_lens[%d]", s);
            return fail_batch(error, field, lens[s], "0..max_kv_len, which is ", batch->max_kv_len);
        }
    return ATTN_OK;
}

/* ---- KV groups ------------------------------------------------------------------------------- */

/* Each form that the backend reads must be there, with its arrays. */
static attn_status check_index_forms(uint32_t wanted, uint32_t group, const attn_batch *batch,
                                     const attn_kv_batch *kv, attn_error *error)
{
    const struct {
        uint32_t form;
        const char *name;
        int present;
    } forms[] = {
        {ATTN_INDEX_REQ_TO_TOKEN, "req_to_token (with batch.req_pool_indices)",
         kv->req_to_token.device && batch->req_pool_indices.device},
        {ATTN_INDEX_BLOCK_TABLE, "block_table", kv->block_table.device != NULL},
        {ATTN_INDEX_CSR, "kv_indptr, kv_indices and last_page_len",
         kv->kv_indptr.device && kv->kv_indices.device && kv->last_page_len.device},
    };
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        int given = kv->index_forms & forms[f].form && forms[f].present;
        if (wanted & forms[f].form && !given)
            return host_fail(error, ATTN_INVALID_ARGUMENT,
                             "batch.kv_groups[%u].%s is absent; the backend reads it", group,
                             forms[f].name);
    }
    return ATTN_OK;
}

static attn_status check_kv_group(const attnhost_backend *backend, int32_t group,
                                  const attn_batch *batch, attn_error *error)
{
    if (group < 0 || (uint32_t)group >= batch->num_kv_groups || !batch->kv_groups)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "batch.kv_groups has %u elements; accepted: one for each KV group (a "
                         "layer uses group %d)",
                         batch->num_kv_groups, group);
    const attn_kv_batch *kv = attn_at(batch->kv_groups, (uint32_t)group);
    if (kv->page_size < 1)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "batch.kv_groups[%d].page_size is %d; accepted: 1 or more", group,
                         kv->page_size);
    if (batch->num_seqs == 0)
        return ATTN_OK;
    attn_status status = check_host_arrays(backend->host_arrays, batch, kv, error);
    if (status == ATTN_OK)
        status = check_indptr("kv_groups[].kv_new_indptr", &kv->kv_new_indptr, batch->num_seqs,
                              INT32_MAX, error);
    if (status == ATTN_OK)
        status = check_indptr("kv_groups[].kv_indptr", &kv->kv_indptr, batch->num_seqs, INT32_MAX,
                              error);
    if (status == ATTN_OK)
        status = check_kv_lens(batch, kv, error);
    return status == ATTN_OK
               ? check_index_forms(backend->index_forms, (uint32_t)group, batch, kv, error)
               : status;
}

/* ---- State slots ----------------------------------------------------------------------------- */

enum { FEWEST_SLOTS = 64 };

/* A state group of a batch, whose slots are looked at. */
struct state_group {
    const attn_batch *batch;
    const attn_state_batch *state;
    uint32_t number;
};

/* Who writes a slot. */
struct embed_slot {
    uint32_t batch;
    int32_t slot;
    int32_t sequence;
    bool is_snapshot;
};

void embed_slots_free(struct embed_slots *slots)
{
    free(slots->entries);
}

/* Empty, with room for `count` slots at half load. */
static attn_status empty_slots(struct embed_slots *slots, int64_t count, attn_error *error)
{
    if (slots->capacity < 2 * count) {
        uint32_t capacity = FEWEST_SLOTS;
        while (capacity < 2 * count)
            capacity *= 2;
        struct embed_slot *entries = calloc(capacity, sizeof *entries);
        if (!entries)
            return host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                             "batch.state_groups: no memory to check %lld slots", (long long)count);
        free(slots->entries);
        *slots = (struct embed_slots){.entries = entries, .capacity = capacity};
    }
    if (++slots->batch == 0) { /* numbers begin anew, and must not meet old ones */
        for (uint32_t e = 0; e < slots->capacity; e++)
            slots->entries[e].batch = 0;
        slots->batch = 1;
    }
    return ATTN_OK;
}

/* The slot's entry, or the free one where it would go. */
static struct embed_slot *find_slot(struct embed_slots *slots, int32_t slot)
{
    uint32_t mask = slots->capacity - 1, at = (uint32_t)slot * 2654435769u & mask;
    while (slots->entries[at].batch == slots->batch && slots->entries[at].slot != slot)
        at = (at + 1) & mask;
    return &slots->entries[at];
}

/* Sequence s writes `slot`, which `name`[index] says. Slot 0 is padding, and any may write it. */
static attn_status claim_slot(struct embed_slots *slots, const struct state_group *group,
                              const char *name, int32_t index, int32_t slot, int32_t s,
                              bool is_snapshot, attn_error *error)
{
    if (slot < 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "batch.state_groups[%u].%s[%d] is %d; accepted: 0 or more", group->number,
                         name, index, slot);
    if (slot == 0)
        return ATTN_OK;
    struct embed_slot *entry = find_slot(slots, slot);
    if (entry->batch == slots->batch)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "batch.state_groups[%u].%s[%d] is %d, which sequence %d writes, too; "
                         "accepted: a slot that is written once",
                         group->number, name, index, slot, entry->sequence);
    *entry = (struct embed_slot){
        .batch = slots->batch, .slot = slot, .sequence = s, .is_snapshot = is_snapshot};
    return ATTN_OK;
}

/* Sequence s reads its slot: no other sequence may write it, and no snapshot may go there, as it
 * may be written before all is read. */
static attn_status check_read(struct embed_slots *slots, const struct state_group *group, int32_t s,
                              attn_error *error)
{
    const attn_state_batch *state = group->state;
    const int32_t *initial = state->has_initial.host;
    int is_read = initial ? initial[s] != 0 : !state->has_initial.device;
    int32_t slot = state->slot.host[s];
    if (!is_read || slot <= 0)
        return ATTN_OK;
    const struct embed_slot *entry = find_slot(slots, slot);
    if (entry->batch != slots->batch || (entry->sequence == s && !entry->is_snapshot))
        return ATTN_OK;
    if (entry->sequence == s)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "batch.state_groups[%u].slot[%d] is %d, which receives a snapshot of the "
                         "same sequence; accepted: a slot that receives no snapshot",
                         group->number, s, slot);
    return host_fail(error, ATTN_INVALID_ARGUMENT,
                     "batch.state_groups[%u].slot[%d] is %d, which sequence %d writes; accepted: a "
                     "slot that no other sequence writes",
                     group->number, s, slot, entry->sequence);
}

/* Snapshots, by the sequence whose rows they follow. */
static attn_status claim_snapshots(struct embed_slots *slots, const struct state_group *group,
                                   int32_t s, attn_error *error)
{
    const attn_batch *batch = group->batch;
    const int32_t *snapshots = group->state->snapshots.host, *rows = batch->q_indptr.host;
    int decode = batch->mode == ATTN_MODE_DECODE;
    if (!snapshots || (!decode && !rows))
        return ATTN_OK;
    int32_t begin = decode ? s : rows[s], end = decode ? s + 1 : rows[s + 1];
    attn_status status = ATTN_OK;
    for (int32_t row = begin; row < end && status == ATTN_OK; row++)
        if (snapshots[row] != -1)
            status = claim_slot(slots, group, "snapshots", row, snapshots[row], s, true, error);
    return status;
}

/* Where `slot`, and `dst_slot` where there is one, can be read here. */
static attn_status check_slots(struct embed_slots *slots, const struct state_group *group,
                               attn_error *error)
{
    const attn_batch *batch = group->batch;
    const attn_state_batch *state = group->state;
    if (!state->slot.host || (state->dst_slot.device && !state->dst_slot.host))
        return ATTN_OK;
    const int32_t *written = state->dst_slot.host ? state->dst_slot.host : state->slot.host;
    const char *name = state->dst_slot.host ? "dst_slot" : "slot";
    int64_t rows = state->snapshots.host ? batch->num_tokens : 0;
    attn_status status = empty_slots(slots, batch->num_seqs + rows, error);
    for (int32_t s = 0; s < batch->num_real_seqs && status == ATTN_OK; s++) {
        status = claim_slot(slots, group, name, s, written[s], s, false, error);
        if (status == ATTN_OK)
            status = claim_snapshots(slots, group, s, error);
    }
    for (int32_t s = 0; s < batch->num_real_seqs && status == ATTN_OK; s++)
        status = check_read(slots, group, s, error);
    return status;
}

static attn_status check_all_slots(struct embed_slots *slots, const attn_batch *batch,
                                   attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t g = 0; batch->state_groups && g < batch->num_state_groups && status == ATTN_OK;
         g++) {
        const struct state_group group = {batch, attn_at(batch->state_groups, g), g};
        status = check_slots(slots, &group, error);
    }
    return status;
}

/* A state group that linear layers have slots in. */
static attn_status check_state_group(int32_t group, const attn_batch *batch, attn_error *error)
{
    if (batch->num_seqs == 0)
        return ATTN_OK;
    if (group < 0 || (uint32_t)group >= batch->num_state_groups || !batch->state_groups)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "batch.state_groups has %u elements; accepted: one for each state group "
                         "(a layer uses group %d)",
                         batch->num_state_groups, group);
    const attn_state_batch *state = attn_at(batch->state_groups, (uint32_t)group);
    return state->slot.device ? ATTN_OK
                              : host_fail(error, ATTN_INVALID_ARGUMENT,
                                          "batch.state_groups[%d].slot.device is absent", group);
}

/* ---- All of it ------------------------------------------------------------------------------- */

/* Sparse layers need to know how many keys are chosen at most. */
static attn_status check_sparse(const attnhost_backend *backend, const attn_batch *batch,
                                attn_error *error)
{
    if (backend->max_top_k == 0 || batch->num_seqs == 0)
        return ATTN_OK;
    if (!batch->sparse)
        return fail_absent(error, "sparse, which sparse layers need,");
    if (batch->sparse->max_count < 1 || batch->sparse->max_count > backend->max_top_k)
        return fail_batch(error, "sparse.max_count", batch->sparse->max_count,
                          "1..the largest top_k of the layers, which is ", backend->max_top_k);
    return ATTN_OK;
}

static attn_status check_contents(const attnhost_backend *backend, struct embed_slots *slots,
                                  const attn_batch *batch, attn_error *error)
{
    attn_status status = check_arrays(batch, error);
    if (status == ATTN_OK && batch->num_seqs > 0)
        status = check_host_arrays(backend->host_arrays, batch, NULL, error);
    if (status == ATTN_OK)
        status = check_all_indptr(batch, error);
    if (status == ATTN_OK)
        status = check_sparse(backend, batch, error);
    if (status == ATTN_OK)
        status = check_lens(batch, error);
    if (status == ATTN_OK)
        status = check_positions(batch, error);
    for (uint32_t g = 0; g < backend->num_kv_groups && status == ATTN_OK; g++)
        status = check_kv_group(backend, backend->kv_groups[g], batch, error);
    for (uint32_t g = 0; g < backend->num_state_groups && status == ATTN_OK; g++)
        status = check_state_group(backend->state_groups[g], batch, error);
    return status == ATTN_OK ? check_all_slots(slots, batch, error) : status;
}

attn_status embed_check_batch(const attnhost_backend *backend, uint32_t kind,
                              const attn_bounds *bounds, struct embed_slots *slots,
                              const attn_batch *batch, attn_error *error)
{
    attn_status status = check_sizes(batch, error);
    if (status == ATTN_OK)
        status = check_mode(bounds, batch, error);
    if (status == ATTN_OK)
        status = check_counts(bounds, batch, error);
    if (status == ATTN_OK)
        status = check_contents(backend, slots, batch, error);
    if (status == ATTN_OK)
        status = check_prefix_levels(bounds, batch, error);
    if (status == ATTN_OK && kind == ATTN_METADATA_GRAPH)
        status = check_frozen_levels(bounds, batch, error);
    if (status != ATTN_OK && error)
        error->field = ATTN_FIELD_BATCH;
    return status;
}
