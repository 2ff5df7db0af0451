/* SPDX-License-Identifier: Apache-2.0
 *
 * row.c: what a row of a call is, read through whatever form the batch has: two batches that
 * mean the same for a row give the same numbers.
 */
#include "plugins/hybrid/tests/stand_ins/stand_ins.h"

#include <string.h>

enum { ABSENT = -1000001, TORN = -1000002 }; /* TORN: host and device have different numbers */

/* ---- Arrays ---------------------------------------------------------------------------------- */

static int64_t read32(const attn_i32_array *array, int64_t index)
{
    if (!array->device)
        return ABSENT;
    if (array->host && array->host[index] != array->device[index])
        return TORN;
    return array->device[index];
}

static int64_t read64(const attn_i64_array *array, int64_t index)
{
    if (!array->device)
        return ABSENT;
    if (array->host && array->host[index] != array->device[index])
        return TORN;
    return array->device[index];
}

static int64_t or_else(int64_t value, int64_t other)
{
    return value == ABSENT ? other : value;
}

static void absorb(uint64_t *hash, int64_t word)
{
    *hash = mix_absorb(*hash, (uint64_t)word);
}

/* ---- Sequences ------------------------------------------------------------------------------- */

int32_t stand_first_row(const struct stand_place *place, int32_t seq, int32_t *count)
{
    const attn_i32_array *indptr = &place->batch->q_indptr;
    if (place->batch->mode == ATTN_MODE_DECODE) {
        *count = 1;
        return seq;
    }
    int64_t first = read32(indptr, seq), end = read32(indptr, seq + 1);
    *count = first < 0 || end < first ? 0 : (int32_t)(end - first);
    return (int32_t)first;
}

int32_t stand_spare_rows(const struct stand_place *place, int32_t *first)
{
    const attn_batch *batch = place->batch;
    int64_t begin = 0, end = batch->num_seqs;
    if (batch->mode != ATTN_MODE_DECODE) {
        begin = read32(&batch->q_indptr, 0);
        end = read32(&batch->q_indptr, batch->num_seqs);
    }
    *first = (int32_t)end;
    return (int32_t)(batch->num_tokens - (end - begin));
}

static void read_sequence(const struct stand_place *place, int32_t seq, int32_t row, int32_t count,
                          struct stand_row *to)
{
    const attn_batch *batch = place->batch;
    bool decode = batch->mode == ATTN_MODE_DECODE || place->as_decode;
    int64_t seq_len = read32(&batch->seq_lens, seq);
    to->field[STAND_MODE] = batch->mode;
    to->field[STAND_REAL_SEQ] = seq < batch->num_real_seqs;
    to->field[STAND_SEQ_LEN] = seq_len;
    to->field[STAND_PREFIX] = decode ? seq_len - 1 : read32(&batch->prefix_lens, seq);
    to->field[STAND_QUERIES] = count;
    to->field[STAND_EXPLICIT] = read32(&batch->positions, row);
    to->field[STAND_REQUEST] = read32(&batch->req_pool_indices, seq);
    to->field[STAND_HOST] = (batch->seq_lens.host != NULL) |
                            (batch->req_pool_indices.host != NULL) << 1 |
                            (batch->positions.host != NULL) << 2;
    if (!decode)
        to->field[STAND_HOST] |=
            (batch->prefix_lens.host != NULL) << 3 | (batch->q_indptr.host != NULL) << 4;
}

/* ---- Keys ------------------------------------------------------------------------------------ */

static int64_t slot_of(const struct stand_place *place, const attn_kv_batch *kv, uint32_t form,
                       int32_t seq, int64_t key)
{
    int64_t page = key / kv->page_size, at;
    if (form == ATTN_INDEX_REQ_TO_TOKEN) {
        int64_t request = read32(&place->batch->req_pool_indices, seq);
        return request < 0 ? request
                           : read32(&kv->req_to_token, request * kv->req_to_token_stride + key);
    }
    if (form == ATTN_INDEX_BLOCK_TABLE) {
        at = read32(&kv->block_table, (int64_t)seq * kv->block_table_stride + page);
    } else {
        int64_t first = read32(&kv->kv_indptr, seq), end = read32(&kv->kv_indptr, seq + 1);
        at = first < 0 || page >= end - first ? ABSENT : read32(&kv->kv_indices, first + page);
    }
    return at < 0 ? at : at * kv->page_size + key % kv->page_size;
}

/* Keys that CSR says a sequence has. */
static int64_t csr_keys(const attn_kv_batch *kv, int32_t seq)
{
    int64_t pages = read32(&kv->kv_indptr, seq + 1) - read32(&kv->kv_indptr, seq);
    return pages > 0 ? (pages - 1) * kv->page_size + read32(&kv->last_page_len, seq) : 0;
}

/* Of every form that the child reads; if they disagree, that is what the slots are. */
static int64_t read_slots(const struct stand_place *place, const attn_kv_batch *kv, int32_t seq,
                          int64_t kv_len)
{
    int64_t all = 0;
    for (uint32_t form = 1; form <= ATTN_INDEX_CSR; form <<= 1) {
        uint64_t hash = 0;
        if (!(place->forms & form))
            continue;
        if (!(kv->index_forms & form))
            return ABSENT;
        if (form == ATTN_INDEX_CSR && csr_keys(kv, seq) != kv_len)
            return TORN;
        for (int64_t key = 0; key < kv_len; key++)
            absorb(&hash, slot_of(place, kv, form, seq, key));
        int64_t slots = (int64_t)(hash >> 1);
        if (all && slots != all)
            return TORN;
        all = slots;
    }
    return all;
}

static void read_keys(const struct stand_place *place, int32_t seq, int32_t row, int32_t count,
                      struct stand_row *to, int64_t *first_new)
{
    const attn_batch *batch = place->batch;
    int32_t group = place->group->kv_group;
    uint64_t hash = 0;
    *first_new = row;
    to->field[STAND_NUM_NEW] = count;
    if (group < 0 || place->group->kind == ATTN_KIND_LINEAR)
        return;
    if ((uint32_t)group >= batch->num_kv_groups || !batch->kv_groups) {
        to->field[STAND_KV_LEN] = ABSENT;
        return;
    }
    const attn_kv_batch *kv = attn_at(batch->kv_groups, (uint32_t)group);
    int64_t kv_len = or_else(read32(&kv->kv_lens, seq), to->field[STAND_SEQ_LEN]);
    int64_t first = read32(&kv->kv_new_indptr, seq), num_new = count;
    if (first != ABSENT)
        num_new = read32(&kv->kv_new_indptr, seq + 1) - first;
    *first_new = or_else(first, row);
    to->field[STAND_KV_LEN] = kv_len;
    to->field[STAND_PAGE_SIZE] = kv->page_size;
    to->field[STAND_NUM_NEW] = num_new;
    to->field[STAND_HOST] |=
        (kv->kv_lens.host != NULL) << 5 | (kv->out_cache_loc.host != NULL) << 6 |
        (kv->kv_indptr.host != NULL) << 7 | (kv->block_table.host != NULL) << 8;
    to->field[STAND_SLOTS] =
        kv_len >= 0 && kv_len <= STAND_KEYS ? read_slots(place, kv, seq, kv_len) : ABSENT;
    for (int64_t n = 0; n < num_new && n <= STAND_KEYS; n++)
        absorb(&hash, read64(&kv->out_cache_loc, *first_new + n));
    to->field[STAND_NEW_SLOTS] = (int64_t)(hash >> 1);
}

/* ---- Parts ----------------------------------------------------------------------------------- */

static void read_mask(const struct stand_place *place, int32_t seq, int32_t t, struct stand_row *to)
{
    const attn_mask *mask = place->batch->mask;
    to->field[STAND_MASK] = mask ? mask->kind : ATTN_MASK_LAYER;
    if (!mask || !mask->bits)
        return;
    int64_t columns =
        mask->kind == ATTN_MASK_FULL ? to->field[STAND_KV_LEN] : to->field[STAND_QUERIES];
    int64_t at = read64(&mask->indptr, seq);
    uint64_t hash = 0;
    for (int64_t j = 0; at >= 0 && j < columns && j <= STAND_KEYS; j++) {
        int64_t bit = t * columns + j;
        absorb(&hash, mask->bits[at + bit / 8] >> bit % 8 & 1);
    }
    to->field[STAND_MASK_BITS] = at < 0 ? at : (int64_t)(hash >> 1);
}

static void read_items(const struct stand_place *place, int32_t seq, int32_t t,
                       struct stand_row *to)
{
    const attn_multi_item *items = place->batch->multi_item;
    if (!items)
        return;
    int64_t prefix = read32(&items->prefix_lens, seq), i = to->field[STAND_PREFIX] + t - prefix;
    to->field[STAND_ITEM_PREFIX] = prefix;
    to->field[STAND_ITEM_LENGTH] = read32(&items->max_item_len, seq);
    if (i >= 0 && i < items->token_pos_stride)
        to->field[STAND_ITEM_POSITION] =
            items->token_pos[(int64_t)seq * items->token_pos_stride + i];
}

static void read_parts(const struct stand_place *place, int32_t seq, int32_t t, int32_t row,
                       struct stand_row *to)
{
    const attn_batch *batch = place->batch;
    read_mask(place, seq, t, to);
    read_items(place, seq, t, to);
    if (batch->speculation)
        to->field[STAND_DRAFT] =
            batch->speculation->num_draft_tokens * 256 + batch->speculation->top_k;
    if (place->group->kind == ATTN_KIND_LINEAR) {
        uint32_t group = (uint32_t)place->group->state_group;
        if (group >= batch->num_state_groups) {
            to->field[STAND_STATE_SLOT] = ABSENT;
            return;
        }
        const attn_state_batch *state = attn_at(batch->state_groups, group);
        to->field[STAND_STATE_SLOT] = read32(&state->slot, seq);
        to->field[STAND_STATE_DST] = read32(&state->dst_slot, seq);
        to->field[STAND_STATE_INITIAL] = read32(&state->has_initial, seq);
        to->field[STAND_SNAPSHOT] = read32(&state->snapshots, row);
    }
    if (place->group->kind == ATTN_KIND_SPARSE)
        to->field[STAND_SPARSE] = batch->sparse ? batch->sparse->max_count : ABSENT;
}

/* ---- Operands -------------------------------------------------------------------------------- */

enum rows_of { OF_NOTHING, OF_QUERIES, OF_NEW_KEYS };

static enum rows_of rows_of_role(uint32_t role)
{
    switch (role) {
    case ATTN_ROLE_Q:
    case ATTN_ROLE_OUT:
    case ATTN_ROLE_LSE:
    case ATTN_ROLE_Q_NOPE:
    case ATTN_ROLE_Q_PE:
    case ATTN_ROLE_MIXED_QKV:
    case ATTN_ROLE_GATE_A:
    case ATTN_ROLE_GATE_B:
    case ATTN_ROLE_GATE_Z:
    case ATTN_ROLE_SPARSE_INDICES:
    case ATTN_ROLE_SPARSE_COUNT:
    case ATTN_ROLE_INDEX_Q:
    case ATTN_ROLE_INDEX_WEIGHTS:
    case ATTN_ROLE_INDEX_LOGITS:
        return OF_QUERIES;
    case ATTN_ROLE_K:
    case ATTN_ROLE_V:
    case ATTN_ROLE_C_KV:
    case ATTN_ROLE_K_PE:
    case ATTN_ROLE_INDEX_K:
        return OF_NEW_KEYS;
    default:
        return OF_NOTHING;
    }
}

static uint64_t address_of(const attn_tensor *tensor)
{
    return (uint64_t)(uintptr_t)tensor->data + tensor->byte_offset;
}

static uint64_t row_address(const attn_tensor *tensor, int64_t row)
{
    return address_of(tensor) +
           (uint64_t)(row * tensor->strides[0] * attn_dtype_size(tensor->dtype));
}

int64_t stand_out_address(const struct stand_place *place, int32_t row)
{
    const attn_tensor *out = attn_operand(place->args, ATTN_ROLE_OUT);
    return row < out->shape[0] ? (int64_t)row_address(out, row) : ABSENT;
}

/* All of a tensor but where it begins; of one with rows, those from `row` on. */
static int64_t form_of(const attn_tensor *tensor, bool has_rows, int64_t row)
{
    uint64_t hash = mix_absorb(tensor->dtype, tensor->ndim);
    absorb(&hash, (int64_t)tensor->flags * 65536 + tensor->device_type * 256 + tensor->device_id);
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        absorb(&hash, has_rows && d == 0 ? tensor->shape[0] - row : tensor->shape[d]);
        absorb(&hash, tensor->strides[d]);
    }
    return (int64_t)(hash >> 1);
}

static void read_operand(const attn_tensor *tensor, uint32_t role, int64_t row, int64_t first_new,
                         struct stand_row *to)
{
    enum rows_of rows = rows_of_role(role);
    int64_t at = rows == OF_QUERIES ? row : rows == OF_NEW_KEYS ? first_new : 0;
    int64_t count = rows == OF_QUERIES ? 1 : rows == OF_NEW_KEYS ? to->field[STAND_NUM_NEW] : 0;
    to->field[STAND_ADDRESS + role] = (int64_t)row_address(tensor, at);
    to->field[STAND_FORM + role] = form_of(tensor, rows != OF_NOTHING, at);
    if (rows != OF_NOTHING && count > 0 && (at < 0 || at + count > tensor->shape[0]))
        to->field[STAND_FORM + role] = ABSENT; /* the row is not within the tensor */
}

/* Where the values for a sequence lie, and how many. */
static void read_scale(const struct stand_place *place, const attn_scale *scale, int32_t seq,
                       uint64_t *hash)
{
    bool by_sequence = scale->granularity == ATTN_SCALE_PER_SEQ_HEAD;
    uint32_t all = by_sequence ? (uint32_t)place->batch->num_seqs : 1;
    int64_t first = by_sequence ? seq * (int64_t)(scale->count / all) : 0;
    absorb(hash, scale->host ? (int64_t)(uintptr_t)(scale->host + first) : 0);
    absorb(hash, scale->device ? (int64_t)(uintptr_t)(scale->device + first) : 0);
    absorb(hash, (int64_t)(scale->count / all) * 256 + scale->granularity);
    absorb(hash, scale->count % all);
}

static void read_operands(const struct stand_place *place, int32_t seq, int64_t row,
                          int64_t first_new, struct stand_row *to)
{
    const attn_forward_args *args = place->args;
    uint64_t hash = 0;
    to->field[STAND_FLAGS] = args->flags;
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        const attn_tensor *tensor = attn_operand(args, role);
        const attn_scale *scale = attn_operand_scale(args, role);
        to->field[STAND_ADDRESS + role] = ABSENT;
        if (tensor)
            read_operand(tensor, role, row, first_new, to);
        if (scale)
            read_scale(place, scale, seq, &hash);
        absorb(&hash, scale != NULL);
    }
    to->field[STAND_SCALES] = (int64_t)(hash >> 1);
}

void stand_read_row(const struct stand_place *place, int32_t seq, int32_t t, struct stand_row *row)
{
    int32_t count, first = stand_first_row(place, seq, &count), at = first + t;
    int64_t first_new;
    memset(row, 0, sizeof *row);
    read_sequence(place, seq, at, count, row);
    read_keys(place, seq, first, count, row, &first_new);
    read_parts(place, seq, t, at, row);
    read_operands(place, seq, at, first_new, row);
    row->field[STAND_REAL_ROW] =
        place->batch->mode == ATTN_MODE_DECODE
            ? at < place->batch->num_real_tokens
            : at - read32(&place->batch->q_indptr, 0) < place->batch->num_real_tokens;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

const char *stand_difference(const struct stand_row *a, const struct stand_row *b,
                             enum stand_field *field)
{
    static const char *const names[] = {
#define STAND_FIELD_TEXT(name, text) text,
        STAND_FIELD_MAP(STAND_FIELD_TEXT)
#undef STAND_FIELD_TEXT
    };
    static const char *const roles[] = {
#define STAND_ROLE_TEXT(name, value, text, dtype) [value] = text,
        ATTN_ROLE_MAP(STAND_ROLE_TEXT)
#undef STAND_ROLE_TEXT
    };
    for (int f = 0; f < STAND_FIELDS; f++) {
        *field = (enum stand_field)f;
        if (a->field[f] != b->field[f])
            return f < STAND_PLAIN_FIELDS ? names[f]
                                          : roles[(f - STAND_PLAIN_FIELDS) % ATTN_ROLE_COUNT];
    }
    return NULL;
}

static bool has_equal_strides(const attn_tensor *k, const attn_tensor *v)
{
    for (uint32_t d = 0; k && v && d < k->ndim; d++)
        if (k->strides[d] != v->strides[d])
            return false;
    return true;
}

const char *stand_operand_defect(const attn_forward_args *args, const attn_problem *problem)
{
    for (uint32_t role = 0; role < ATTN_ROLE_COUNT; role++) {
        const attn_tensor *tensor = attn_operand(args, role);
        if (!tensor)
            continue;
        uint64_t promised = attn_guaranteed_alignment(tensor->device_type, tensor->dtype);
        promised = promised > problem->min_alignment ? promised : problem->min_alignment;
        if (tensor->alignment > 1 && address_of(tensor) % tensor->alignment != 0)
            return "an operand is aligned to less than it says";
        if (address_of(tensor) % promised != 0 || tensor->alignment < problem->min_alignment)
            return "an operand is aligned to less than its problem promises";
        if (tensor->shape[0] < 0)
            return "an operand has fewer than no rows";
    }
    if (problem->kv_strides == ATTN_KV_STRIDES_EQUAL &&
        !has_equal_strides(attn_operand(args, ATTN_ROLE_K_CACHE),
                           attn_operand(args, ATTN_ROLE_V_CACHE)))
        return "the caches have other strides than its problem promises";
    return NULL;
}
