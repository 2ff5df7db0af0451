/* SPDX-License-Identifier: Apache-2.0
 *
 * forward_case_parts.c: places of a case's arrays and tensors, and the ABI's structs that point to
 * them.
 */
#include "host/check/cases/linear_case.h"

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/round.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- Sizes ----------------------------------------------------------------------------------- */

void case_add_part(struct forward_case *c, enum case_part_id part, uint64_t bytes)
{
    if (bytes == 0)
        return;
    uint64_t at = c->bytes + CASE_RED_ZONE;
    at = (at + CASE_ALIGNMENT - 1) / CASE_ALIGNMENT * CASE_ALIGNMENT;
    uint64_t end = at + bytes + CASE_RED_ZONE;
    if (c->spec.guarded) {
        const uint64_t offset = c->shapes[part].byte_offset,
                       alignment = offset ? offset & -offset : 1;
        end = round_up(at + bytes, CASE_GUARD);
        at = (end - bytes) / alignment * alignment;
        end += CASE_GUARD;
    }
    c->parts[part] = (struct case_part){at, bytes};
    c->bytes = end;
}

void case_guard(const struct forward_case *c, bool shut)
{
    const int rights = shut ? PROT_NONE : PROT_READ | PROT_WRITE;
    for (enum case_part_id part = 0; c->spec.guarded && part < CASE_PARTS; part++) {
        const uint64_t end = round_up(c->parts[part].offset + c->parts[part].bytes, CASE_GUARD);
        if (c->parts[part].bytes && (mprotect(c->memory + end, CASE_GUARD, rights) != 0 ||
                                     mprotect(c->planning + end, CASE_GUARD, rights) != 0))
            abort(); /* a page that stays shut */
    }
}

/* Rows beyond those of the batch: one of every sequence, which a batch of nothing but padding has; none if guarded. */
static int64_t slack(const struct forward_case *c)
{
    return c->spec.guarded ? 0 : c->lengths.num_seqs;
}

static void add_ints(struct forward_case *c, enum case_part_id part, int64_t count)
{
    case_add_part(c, part, (uint64_t)count * sizeof(int32_t));
}

/* As aligned as the problem promises and no better: an odd multiple of that. */
uint64_t case_byte_offset(const struct forward_case *c, attn_dtype dtype)
{
    uint32_t alignment = attn_guaranteed_alignment(c->device->type, dtype);
    if (c->spec.min_alignment > alignment)
        alignment = c->spec.min_alignment;
    return alignment < 64 ? 64 + alignment : alignment;
}

/* Elements between two vectors that lie apart: 16 bytes, or as many as keep them aligned. */
static int64_t gap_of(const struct forward_case *c, attn_dtype dtype, int64_t width)
{
    uint64_t row = (uint64_t)width * attn_dtype_size(dtype), unit = row & (~row + 1);
    if (unit > c->spec.min_alignment)
        unit = c->spec.min_alignment;
    return (int64_t)(unit > 16 ? unit : 16) / attn_dtype_size(dtype);
}

/* Do vectors of the part lie apart? Those of both caches, of one alone, or of none: where strides
 * are promised to be equal V's are K's. */
static bool lies_apart(const struct forward_case *c, enum case_part_id part)
{
    bool apart = case_coin(c->seed, DRAW_SLACK);
    return part == PART_V_CACHE && c->spec.kv_strides == ATTN_KV_STRIDES_ANY ? !apart : apart;
}

void case_add_shape(struct forward_case *c, enum case_part_id part, const int64_t *extents,
                    int64_t inner_gap, int64_t outer_gap)
{
    struct case_shape *shape = &c->shapes[part];
    int64_t stride = 1;
    for (uint32_t d = shape->ndim; d-- > 0;) {
        shape->shape[d] = extents[d];
        shape->strides[d] = stride;
        stride *= extents[d] > 0 || d == 0 ? extents[d] : 1;
        if (shape->ndim > 1 && d == shape->ndim - 1)
            stride += inner_gap;
        if (d == 1)
            stride += outer_gap;
    }
    case_add_part(c, part, shape->byte_offset + (uint64_t)stride * attn_dtype_size(shape->dtype));
}

void case_add_tensor(struct forward_case *c, enum case_part_id part, attn_dtype dtype,
                     uint32_t ndim, const int64_t *extents)
{
    bool apart = ndim > 1 && lies_apart(c, part);
    int64_t gap = apart ? gap_of(c, dtype, extents[ndim - 1]) : 0;
    c->shapes[part] = (struct case_shape){
        .ndim = ndim, .dtype = dtype, .byte_offset = case_byte_offset(c, dtype)};
    case_add_shape(c, part, extents, gap, 4 * gap);
}

static void lay_out_arrays(struct forward_case *c)
{
    const struct case_lengths *l = &c->lengths;
    const struct case_spec *spec = &c->spec;
    int64_t seqs = l->num_seqs, rows = l->first_row[seqs];
    int64_t some = seqs > 0 ? seqs : 1; /* an engine's arrays are there in an empty batch too */
    int64_t new_rows = l->first_new[seqs];
    uint32_t kind = case_mask_kind(spec);
    bool custom = kind == ATTN_MASK_FULL || kind == ATTN_MASK_QLEN;
    add_ints(c, PART_SEQ_LENS, some);
    add_ints(c, PART_PREFIX_LENS, some);
    add_ints(c, PART_Q_INDPTR, seqs + 1);
    add_ints(c, PART_REQUESTS, some);
    add_ints(c, PART_NUM_REAL, 2);
    if (spec->explicit_positions)
        add_ints(c, PART_POSITIONS, rows + spec->spare + slack(c));
    if (spec->kv_layout) {
        add_ints(c, PART_KV_LENS, some);
        add_ints(c, PART_NEW_INDPTR, seqs + 1);
        case_add_part(c, PART_OUT_CACHE_LOC,
                      (uint64_t)(new_rows + spec->spare + slack(c)) * sizeof(int64_t));
        add_ints(c, PART_REQ_TO_TOKEN, (seqs + 3) * c->stride_slots);
        add_ints(c, PART_BLOCK_TABLE, some * (c->stride_pages > 0 ? c->stride_pages : 1));
        add_ints(c, PART_KV_INDPTR, seqs + 1);
        add_ints(c, PART_KV_INDICES, 5 + seqs * c->pages_of_seq);
        add_ints(c, PART_LAST_PAGE_LEN, some);
    }
    if (custom) {
        uint64_t bytes = 3;
        for (int32_t s = 0; s < l->num_seqs; s++)
            bytes += 1 + (uint64_t)l->q_len[s] * (uint64_t)(l->kv_len[s] + l->q_len[s] + 1) / 8;
        case_add_part(c, PART_MASK_BITS, bytes);
        case_add_part(c, PART_MASK_INDPTR, (uint64_t)(seqs + 1) * sizeof(int64_t));
    }
    if (spec->hint != HINT_NONE) {
        add_ints(c, PART_HINT_SEQS, seqs + 2);
        add_ints(c, PART_HINT_LENS, seqs + 2);
    }
    if (spec->hint == HINT_LEVELS) {
        add_ints(c, PART_HINT_INNER_SEQS, seqs + 2);
        add_ints(c, PART_HINT_INNER_LENS, seqs + 2);
    }
    if (spec->multi_item) {
        add_ints(c, PART_ITEM_PREFIX, seqs);
        add_ints(c, PART_ITEM_LEN, seqs);
        case_add_part(c, PART_TOKEN_POS, (uint64_t)(seqs * c->stride_items) * sizeof(uint16_t));
    }
}

static uint32_t granularity_of(const struct forward_case *c, enum case_part_id part)
{
    const uint64_t caches = ROLE(K_CACHE) | ROLE(V_CACHE) | ROLE(LATENT_CACHE);
    const uint32_t role = case_part_kinds[part].number;
    return role == ATTN_ROLE_OUT ? (uint32_t)ATTN_SCALE_PER_TENSOR
           : caches >> role & 1  ? c->spec.scale_granularity
                                 : c->spec.input_granularity;
}

int64_t case_num_scales(const struct forward_case *c, enum case_part_id part, int32_t num_seqs)
{
    const struct case_spec *spec = &c->spec;
    const int64_t heads = spec->num_kv_heads, slots = (int64_t)c->num_pages * spec->page_size;
    const int64_t counts[ATTN_SCALE_COUNT] = {1, 1, heads, num_seqs * heads, slots * heads};
    return counts[granularity_of(c, part)];
}

int64_t case_scale_place(const struct forward_case *c, enum case_part_id part, int32_t s, int32_t j,
                         int32_t head)
{
    const int64_t heads = c->spec.num_kv_heads;
    switch (granularity_of(c, part)) {
    case ATTN_SCALE_PER_HEAD:
        return head;
    case ATTN_SCALE_PER_SEQ_HEAD:
        return s * heads + head;
    case ATTN_SCALE_PER_TOKEN_HEAD:
        return case_slot(c, s, j) * heads + head;
    default:
        return 0;
    }
}

static void add_scale(struct forward_case *c, enum case_part_id part)
{
    add_ints(c, part, case_num_scales(c, part, c->lengths.num_seqs));
}

static void lay_out_caches(struct forward_case *c)
{
    const struct case_spec *spec = &c->spec;
    bool hnd = strcmp(spec->kv_layout, ATTN_LAYOUT_KV_HND) == 0;
    int64_t page = spec->page_size, heads = spec->num_kv_heads;
    if (spec->latent.kv_lora_rank > 0) {
        case_add_tensor(c, PART_LATENT_CACHE, case_is_packed(spec) ? ATTN_U8 : spec->kv_dtype, 3,
                        (int64_t[]){c->num_pages, page, case_latent_width(spec)});
        if (spec->scale_granularity != ATTN_SCALE_NONE)
            add_ints(c, PART_LATENT_SCALE, 1);
        return;
    }
    int64_t extents[] = {c->num_pages, hnd ? heads : page, hnd ? page : heads, spec->head_dim};
    bool equal = spec->kv_strides == ATTN_KV_STRIDES_EQUAL;
    int32_t wider = spec->head_dim > spec->v_head_dim ? spec->head_dim : spec->v_head_dim;
    extents[3] = equal ? wider : spec->head_dim;
    case_add_tensor(c, PART_K_CACHE, spec->kv_dtype, 4, extents);
    extents[3] = equal ? wider : spec->v_head_dim;
    case_add_tensor(c, PART_V_CACHE, spec->kv_dtype, 4, extents);
    c->shapes[PART_K_CACHE].shape[3] = spec->head_dim;
    c->shapes[PART_V_CACHE].shape[3] = spec->v_head_dim;
    if (spec->scale_granularity != ATTN_SCALE_NONE) {
        add_scale(c, PART_K_SCALE);
        add_scale(c, PART_V_SCALE);
    }
}

static void lay_out_inputs(struct forward_case *c, int64_t rows, int64_t new_rows)
{
    const struct case_spec *spec = &c->spec;
    const struct case_latent *latent = &spec->latent;
    int64_t q_heads = spec->num_q_heads, kv_heads = spec->num_kv_heads;
    bool absorbed = case_is_absorbed(spec);
    int32_t q_dim = absorbed ? latent->kv_lora_rank : spec->head_dim;
    case_add_tensor(c, PART_Q, spec->q_dtype, 3, (int64_t[]){rows, q_heads, q_dim});
    if (dtype_is_fp8(spec->q_dtype))
        add_scale(c, PART_Q_SCALE);
    if (absorbed)
        case_add_tensor(c, PART_Q_PE, spec->q_dtype, 3,
                        (int64_t[]){rows, q_heads, latent->rope_dim});
    if (absorbed && dtype_is_fp8(spec->q_dtype))
        add_scale(c, PART_Q_PE_SCALE);
    if (spec->from_cache)
        return;
    attn_dtype dtype = attn_new_kv_dtype(&c->posed.problem);
    if (!absorbed) {
        case_add_tensor(c, PART_K, dtype, 3, (int64_t[]){new_rows, kv_heads, spec->head_dim});
        case_add_tensor(c, PART_V, dtype, 3, (int64_t[]){new_rows, kv_heads, spec->v_head_dim});
    }
    if (dtype_is_fp8(dtype)) {
        add_scale(c, PART_NEW_K_SCALE);
        add_scale(c, PART_NEW_V_SCALE);
    }
    if (latent->kv_lora_rank > 0) {
        case_add_tensor(c, PART_C_KV, dtype, 2, (int64_t[]){new_rows, latent->kv_lora_rank});
        case_add_tensor(c, PART_K_PE, dtype, 2, (int64_t[]){new_rows, latent->rope_dim});
    }
}

static int32_t most(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* Entries of a row of token_pos that its sequence's queries need, at most. */
static int32_t needed_items(const struct forward_case *c)
{
    const struct case_lengths *l = &c->lengths;
    int32_t needed = 1;
    for (int32_t s = 0; c->spec.multi_item && s < l->num_seqs; s++)
        needed = most(needed, l->prefix[s] + l->q_len[s] - case_items_prefix(c, l, s));
    return needed;
}

/* Rows of tables: in every other case as long as the longest sequence needs them. */
static void set_strides(struct forward_case *c, int32_t page)
{
    const int32_t keys = c->lengths.max_kv_len;
    c->pages_of_seq = (int32_t)units_for(keys, page) + 1;
    if (case_coin(c->batch_seed, DRAW_TABLES)) {
        c->stride_slots = most(keys, 1);
        c->stride_pages = most(c->pages_of_seq - 1, 1);
        c->stride_items = needed_items(c);
    } else {
        c->stride_slots = keys + 5;
        c->stride_pages = c->pages_of_seq + 2;
        c->stride_items = keys + c->lengths.max_q_len + 2;
    }
}

void case_lay_out(struct forward_case *c)
{
    const struct case_spec *spec = &c->spec;
    int32_t seqs = c->lengths.num_seqs, page = spec->page_size > 0 ? spec->page_size : 1;
    if (spec->kind == ATTN_KIND_LINEAR) {
        linear_lay_out(c);
        return;
    }
    set_strides(c, page);
    c->num_pages = seqs * c->pages_of_seq + 4;
    c->arrays_first = c->bytes;
    lay_out_arrays(c);
    c->arrays_end = c->bytes;

    const int64_t spare = spec->spare + slack(c), q_heads = spec->num_q_heads;
    const int64_t rows = c->lengths.first_row[seqs] + spare;
    const int64_t new_rows = c->lengths.first_new[seqs] + spare;
    lay_out_inputs(c, rows, new_rows);
    for (int second = 0; second <= spec->read_only_layer; second++) {
        case_add_tensor(c, second ? PART_OUT_SECOND : PART_OUT, spec->out_dtype, 3,
                        (int64_t[]){rows, q_heads, spec->v_head_dim});
        if (spec->wants_lse)
            case_add_tensor(c, second ? PART_LSE_SECOND : PART_LSE, ATTN_F32, 2,
                            (int64_t[]){rows, q_heads});
    }
    if (dtype_is_fp8(spec->out_dtype))
        add_scale(c, PART_OUT_SCALE);
    if (spec->kv_layout)
        lay_out_caches(c);
    if (spec->top_k > 0) {
        if (spec->index_kind == ATTN_SPARSE_PER_HEAD)
            case_add_tensor(c, PART_SPARSE_INDICES, ATTN_I32, 3,
                            (int64_t[]){rows, spec->num_kv_heads, spec->top_k});
        else
            case_add_tensor(c, PART_SPARSE_INDICES, ATTN_I32, 2, (int64_t[]){rows, spec->top_k});
        case_add_tensor(c, PART_SPARSE_COUNT, ATTN_I32, 1, &rows);
        if (spec->read_only_layer && case_has_lists(spec)) {
            case_add_part(c, PART_BITS_SECOND, c->parts[PART_MASK_BITS].bytes);
            case_add_tensor(c, PART_INDICES_SECOND, ATTN_I32, 2, (int64_t[]){rows, spec->top_k});
            case_add_tensor(c, PART_COUNT_SECOND, ATTN_I32, 1, &rows);
        }
    }
    if (case_has_indexer(spec))
        case_indexer_lay_out(c, rows, new_rows);
    if (spec->sinks)
        case_add_tensor(c, PART_SINKS, ATTN_F32, 1, &q_heads);
    if (spec->alibi)
        case_add_tensor(c, PART_SLOPES, ATTN_F32, 1, &q_heads);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

attn_status case_allocate(struct forward_case *c, attn_error *error)
{
    const uint64_t alignment = c->spec.guarded ? CASE_GUARD : 2 * CASE_ALIGNMENT;
    c->image = malloc(c->bytes);
    c->planning = aligned_alloc(alignment, round_up(c->bytes, alignment));
    c->planned = malloc(sizeof *c->planned);
    c->actual = malloc(c->bytes);
    if (!c->image || !c->planning || !c->planned || !c->actual)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for a case of %llu bytes",
                         (unsigned long long)c->bytes);
    c->memory = device_allocate(c->device, ATTN_SPACE_DEVICE, c->bytes, alignment);
    if (!c->memory)
        return host_fail(error, device_exhausted(c->device, ATTN_SPACE_DEVICE),
                         "no memory on the device for a case of %llu bytes",
                         (unsigned long long)c->bytes);
    memset(c->image, CASE_RED, c->bytes);
    return ATTN_OK;
}

void *case_part(const struct forward_case *c, enum case_part_id part)
{
    return c->parts[part].bytes ? c->image + c->parts[part].offset : NULL;
}

char *case_vector(const struct forward_case *c, char *arena, enum case_part_id part, int64_t i,
                  int64_t j, int64_t k)
{
    const struct case_shape *shape = &c->shapes[part];
    int64_t at = i * shape->strides[0];
    if (shape->ndim > 1)
        at += j * shape->strides[1];
    if (shape->ndim > 3)
        at += k * shape->strides[2];
    return arena + c->parts[part].offset + shape->byte_offset +
           at * (int64_t)attn_dtype_size(shape->dtype);
}

char *case_slot_vector(const struct forward_case *c, char *arena, enum case_part_id cache,
                       int64_t slot, int32_t kv_head)
{
    bool hnd = strcmp(c->spec.kv_layout, ATTN_LAYOUT_KV_HND) == 0;
    int64_t page = slot / c->spec.page_size, offset = slot % c->spec.page_size;
    return case_vector(c, arena, cache, page, hnd ? kv_head : offset, hnd ? offset : kv_head);
}

/* ---- Views ----------------------------------------------------------------------------------- */

/* Arguments of view_*(). */
struct viewing {
    struct case_view *view;
    const struct forward_case *c;
    const struct case_lengths *lengths;
    const struct case_place *place;
};

static const void *at(const struct viewing *v, char *arena, enum case_part_id part)
{
    return arena && v->c->parts[part].bytes ? arena + v->c->parts[part].offset : NULL;
}

static const void *host_at(const struct viewing *v, enum case_part_id part)
{
    bool is_given = v->place->host_arrays & case_part_kinds[part].number ||
                    case_host_has(v->c->spec.host, mix_absorb(v->c->seed, DRAW_HOST), part);
    return is_given ? at(v, v->place->planning, part) : NULL;
}

static attn_i32_array ints(const struct viewing *v, enum case_part_id part)
{
    return (attn_i32_array){host_at(v, part), at(v, v->place->arena, part)};
}

static attn_i64_array longs(const struct viewing *v, enum case_part_id part)
{
    return (attn_i64_array){host_at(v, part), at(v, v->place->arena, part)};
}

/* The forms that the instance reads; in half of the cases others, too. Groups of one batch differ in these, so that a
 * backend cannot take the forms of one group for those of another. */
static uint32_t index_forms_of(const struct viewing *v)
{
    const uint64_t drawn = case_stream(v->c->seed, DRAW_OTHER_FORMS, 0, 0, 0);
    const bool has_others = v->place->arena == v->c->memory && draw_at(drawn, 0, 2);
    return v->place->index_forms |
           (has_others ? (uint32_t)draw_at(drawn, 1, ATTN_INDEX_ALL + 1) : 0);
}

static void view_kv(const struct viewing *v)
{
    const struct forward_case *c = v->c;
    uint32_t group = (uint32_t)c->posed.group.kv_group, forms = index_forms_of(v);
    attn_kv_batch *kv = &v->view->kv_groups[group];
    if (group == 1)
        v->view->kv_groups[0] =
            (attn_kv_batch){.struct_size = sizeof(attn_kv_batch), .page_size = 1};
    *kv = (attn_kv_batch){.struct_size = sizeof *kv,
                          .index_forms = forms,
                          .page_size = c->spec.page_size,
                          .out_cache_loc = longs(v, PART_OUT_CACHE_LOC)};
    bool own_lens = c->spec.attn_type == ATTN_TYPE_CROSS || c->spec.partial || c->spec.fewer_keys;
    if (own_lens || case_coin(c->seed, DRAW_LENS))
        kv->kv_lens = v->view->kv_groups[0].kv_lens = ints(v, PART_KV_LENS);
    if (case_has_new_rows(&c->spec, c->seed))
        kv->kv_new_indptr = ints(v, PART_NEW_INDPTR);
    if (forms & ATTN_INDEX_REQ_TO_TOKEN) {
        kv->req_to_token = ints(v, PART_REQ_TO_TOKEN);
        kv->req_to_token_stride = c->stride_slots;
    }
    if (forms & ATTN_INDEX_BLOCK_TABLE) {
        kv->block_table = ints(v, PART_BLOCK_TABLE);
        kv->block_table_stride = c->stride_pages;
    }
    if (forms & ATTN_INDEX_CSR) {
        kv->kv_indptr = ints(v, PART_KV_INDPTR);
        kv->kv_indices = ints(v, PART_KV_INDICES);
        kv->last_page_len = ints(v, PART_LAST_PAGE_LEN);
    }
    v->view->batch.num_kv_groups = group + 1;
    v->view->batch.kv_groups = v->view->kv_groups;
}

static void view_mask(const struct viewing *v)
{
    const struct forward_case *c = v->c;
    /* Keys of a list are operands for the backend, and a mask for the oracle. */
    bool is_chosen = case_has_lists(&c->spec) && v->place->arena == c->memory;
    v->view->mask = (attn_mask){.struct_size = sizeof v->view->mask,
                                .kind = is_chosen ? c->spec.mask_kind : case_mask_kind(&c->spec)};
    if (!is_chosen) {
        bool is_second = case_has_lists(&c->spec) && v->place->second;
        v->view->mask.bits = at(v, v->place->arena, is_second ? PART_BITS_SECOND : PART_MASK_BITS);
        v->view->mask.indptr = longs(v, PART_MASK_INDPTR);
    }
    if (v->view->mask.kind != ATTN_MASK_LAYER || case_coin(c->seed, DRAW_MASK))
        v->view->batch.mask = &v->view->mask;
    if (!c->spec.multi_item)
        return;
    v->view->items = (attn_multi_item){.struct_size = sizeof v->view->items,
                                       .token_pos_stride = c->stride_items,
                                       .prefix_lens = ints(v, PART_ITEM_PREFIX),
                                       .token_pos = at(v, v->place->arena, PART_TOKEN_POS),
                                       .max_item_len = ints(v, PART_ITEM_LEN)};
    v->view->batch.multi_item = &v->view->items;
}

/* The most that any row has, or all that any could have. */
static void view_sparse(const struct viewing *v)
{
    const struct forward_case *c = v->c;
    if (c->spec.top_k == 0)
        return;
    v->view->sparse = (attn_sparse_batch){
        .struct_size = sizeof v->view->sparse,
        .max_count = case_coin(c->seed, DRAW_CHOSEN) ? c->max_chosen : c->spec.top_k};
    v->view->batch.sparse = &v->view->sparse;
}

/* Drafted tokens are announced where every sequence has as many. */
static void view_spec(const struct viewing *v)
{
    const struct case_lengths *l = v->lengths;
    int64_t rows = l->first_row[l->num_seqs] - l->first_row[0];
    if (v->c->spec.mode != ATTN_MODE_TARGET_VERIFY || rows != (int64_t)l->num_seqs * l->max_q_len)
        return;
    v->view->spec = (attn_speculation){
        .struct_size = sizeof v->view->spec, .num_draft_tokens = l->max_q_len, .top_k = 1};
    v->view->batch.speculation = &v->view->spec;
}

static attn_i32_array ints_from(const struct viewing *v, enum case_part_id part, uint32_t from)
{
    attn_i32_array array = ints(v, part);
    array.host = array.host ? array.host + from : NULL;
    array.device = array.device ? array.device + from : NULL;
    return array;
}

/* The oracle, which needs none, gets the hint as well. */
static void view_hint(const struct viewing *v)
{
    const struct forward_case *c = v->c;
    uint32_t first = 0, runs = 0, last = 0;
    if (c->spec.hint == HINT_NONE)
        return;
    for (int32_t s = 0, end, length; s < v->lengths->num_seqs; s = end, runs++) {
        case_hint_run(c, s, &end, &length);
        first += c->spec.hint == HINT_SOME && length == 0 && first == runs;
        last = c->spec.hint != HINT_SOME || length > 0 ? runs + 1 : last;
    }
    v->view->shared[0] = (attn_shared_prefix){.struct_size = sizeof v->view->shared[0],
                                              .num_groups = last > first ? last - first : 0,
                                              .seq_indptr = ints_from(v, PART_HINT_SEQS, first),
                                              .prefix_len = ints_from(v, PART_HINT_LENS, first)};
    v->view->batch.shared_prefix = v->view->shared;
    v->view->batch.num_prefix_levels = 1;
    if (c->spec.hint != HINT_LEVELS)
        return;
    v->view->shared[1] = (attn_shared_prefix){.struct_size = sizeof v->view->shared[1],
                                              .seq_indptr = ints(v, PART_HINT_INNER_SEQS),
                                              .prefix_len = ints(v, PART_HINT_INNER_LENS)};
    for (int32_t s = 0, end, length; s < v->lengths->num_seqs; s = end) {
        case_hint_run(c, s, &end, &length);
        v->view->shared[1].num_groups += end - s > 2 ? 2 : 1;
    }
    v->view->batch.num_prefix_levels = 2;
}

/* Slots of the layer's own state group, and others in the groups of no layer. */
static void view_states(const struct viewing *v)
{
    const struct linear_spec *spec = &v->c->spec.linear;
    attn_state_batch *state = &v->view->states[spec->state_group];
    for (int32_t g = 0; g < LINEAR_STATE_GROUPS; g++)
        v->view->states[g] =
            (attn_state_batch){.struct_size = sizeof *state, .slot = ints(v, PART_OTHER_SLOTS)};
    state->slot = ints(v, PART_STATE_SLOT);
    if (!(spec->absent & LINEAR_WITHOUT_DST) || spec->padded > 0)
        state->dst_slot = ints(v, PART_STATE_DST);
    if (!(spec->absent & LINEAR_WITHOUT_INITIAL) || spec->padded > 0)
        state->has_initial = ints(v, PART_INITIAL);
    if (spec->snapshots)
        state->snapshots = ints(v, PART_SNAPSHOTS);
    v->view->batch.state_groups = v->view->states;
    v->view->batch.num_state_groups = LINEAR_STATE_GROUPS;
}

static void view_batch(const struct viewing *v)
{
    const struct case_lengths *l = v->lengths;
    attn_batch *batch = &v->view->batch;
    bool decode = v->c->spec.mode == ATTN_MODE_DECODE;
    *batch = (attn_batch){.struct_size = sizeof *batch,
                          .mode = v->c->spec.mode,
                          .num_seqs = l->num_seqs,
                          .num_tokens = l->first_row[l->num_seqs] - l->first_row[0] + l->spare,
                          .num_real_seqs = l->num_real_seqs,
                          .num_real_tokens = l->first_row[l->num_real_seqs] - l->first_row[0],
                          .num_decode_seqs = l->num_decode_seqs,
                          .first_decode_seq = l->first_decode_seq,
                          .decode_q_len = l->decode_q_len,
                          .max_q_len = l->max_q_len,
                          .max_kv_len = l->max_kv_len,
                          .seq_lens = ints(v, PART_SEQ_LENS),
                          .prefix_lens = ints(v, PART_PREFIX_LENS),
                          .positions = ints(v, PART_POSITIONS),
                          .req_pool_indices = ints(v, PART_REQUESTS)};
    if (v->c->spec.kind == ATTN_KIND_LINEAR ||
        !decode || /* of softmax layers DECODE does not read it */
        case_coin(v->c->seed, DRAW_FORMS))
        batch->q_indptr = ints(v, PART_Q_INDPTR);
    if (v->place->graph) {
        batch->num_real_seqs_device = at(v, v->place->arena, PART_NUM_REAL);
        batch->num_real_tokens_device = batch->num_real_seqs_device + 1;
    }
    if (v->c->spec.kind == ATTN_KIND_LINEAR) {
        view_states(v);
        return;
    }
    view_mask(v);
    view_sparse(v);
    view_spec(v);
    view_hint(v);
    if (v->c->spec.kv_layout)
        view_kv(v);
}

uint64_t case_written_roles(const struct case_spec *spec, bool saves)
{
    uint64_t roles = ROLE(OUT) | ROLE(LSE) | ROLE(STATE) | ROLE(CONV_STATE);
    if (saves)
        roles |= ROLE(K_CACHE) | ROLE(V_CACHE) | ROLE(LATENT_CACHE) | ROLE(LABEL_CACHE);
    if (case_has_indexer(spec))
        roles |= ROLE(INDEX_LOGITS) | ROLE(SPARSE_INDICES) | ROLE(SPARSE_COUNT);
    return roles;
}

/* The role of an operand, or of what a scale is of. */
static uint32_t role_of(const struct forward_case *c, enum case_part_id part)
{
    uint32_t role = case_part_kinds[part].number;
    return role == ATTN_ROLE_Q && case_is_absorbed(&c->spec) ? (uint32_t)ATTN_ROLE_Q_NOPE : role;
}

static void view_tensor(const struct viewing *v, enum case_part_id part)
{
    const struct case_shape *shape = &v->c->shapes[part];
    const uint32_t role = role_of(v->c, part);
    attn_tensor *tensor = &v->view->tensors[role];
    bool saves = v->c->spec.flags & ATTN_FORWARD_SAVE_KV && !v->place->second;
    bool written = case_written_roles(&v->c->spec, saves) >> role & 1;
    *tensor = (attn_tensor){.struct_size = sizeof *tensor,
                            .flags = written ? 0 : ATTN_TENSOR_READ_ONLY,
                            .data = v->place->arena + v->c->parts[part].offset,
                            .byte_offset = shape->byte_offset,
                            .device_type = v->place->device_type,
                            .device_id = v->place->device_id,
                            .dtype = shape->dtype,
                            .ndim = shape->ndim,
                            .alignment = (uint32_t)(shape->byte_offset & -shape->byte_offset)};
    memcpy(tensor->shape, shape->shape, sizeof tensor->shape);
    memcpy(tensor->strides, shape->strides, sizeof tensor->strides);
    case_pool_view(v->c, v->place->arena, part, tensor);
    v->view->operands[role] = tensor;
}

/* What is neither read nor written, latents of expanded keys that are not saved, may be absent; so may logits that no
 * step hands on, and counts of rows whose lists end with -1. */
static bool is_given(const struct viewing *v, enum case_part_id part)
{
    const struct case_spec *spec = &v->c->spec;
    if (v->place->second ? case_part_is(part, CASE_NEW) ||
                               (case_part_is(part, CASE_OUTPUT) && !case_part_is(part, CASE_SECOND))
                         : case_part_is(part, CASE_SECOND))
        return false;
    switch (part) {
    case PART_C_KV:
    case PART_K_PE:
    case PART_LATENT_CACHE:
        return !case_is_expanded(spec) || spec->flags & ATTN_FORWARD_SAVE_KV ||
               case_coin(v->c->seed, DRAW_UNREAD);
    case PART_INDEX_LOGITS:
        return case_has_logits(v->c);
    case PART_SPARSE_COUNT:
    case PART_COUNT_SECOND:
        return case_has_count(v->c);
    default:
        return true;
    }
}

static void view_operands(const struct viewing *v)
{
    for (enum case_part_id part = 0; part < CASE_PARTS; part++)
        if (v->c->parts[part].bytes && case_part_is(part, CASE_OPERAND) && is_given(v, part))
            view_tensor(v, part);
}

/* On the host, on the device too sometimes, or there alone: all is allowed. The oracle, which has
 * no device arrays, finds them on the host. */
static attn_scale view_scale(const struct viewing *v, enum case_part_id part)
{
    bool alone = v->c->spec.device_scales && v->place->arena == v->c->memory;
    return (attn_scale){
        .struct_size = sizeof(attn_scale),
        .granularity = granularity_of(v->c, part),
        .count = (uint32_t)case_num_scales(v->c, part, v->view->batch.num_seqs),
        .host = alone ? NULL : case_part(v->c, part),
        .device = alone || case_coin(v->c->seed, DRAW_SCALES) ? at(v, v->place->arena, part) : NULL,
    };
}

static void view_scales(const struct viewing *v)
{
    for (enum case_part_id part = 0; part < CASE_PARTS; part++) {
        const uint32_t role = role_of(v->c, part);
        if (!v->c->parts[part].bytes || !case_part_is(part, CASE_SCALE) || !v->view->operands[role])
            continue;
        v->view->scale[role] = view_scale(v, part);
        v->view->scales[role] = &v->view->scale[role];
    }
}

void case_view_init(struct case_view *view, const struct forward_case *c,
                    const struct case_lengths *lengths, const struct case_place *place)
{
    struct viewing v = {view, c, lengths, place};
    memset(view, 0, sizeof *view);
    view_batch(&v);
    view_operands(&v);
    view_scales(&v);
    uint32_t flags = c->spec.flags;
    if (place->second)
        flags &= ~(uint32_t)ATTN_FORWARD_SAVE_KV;
    view->args = (attn_forward_args){.struct_size = sizeof view->args,
                                     .flags = flags,
                                     .num_operands = ATTN_ROLE_COUNT,
                                     .num_scales = ATTN_ROLE_COUNT,
                                     .operands = view->operands,
                                     .scales = view->scales};
    if (c->part)
        linear_view_part(view, c, place->arena == c->memory);
}

void case_bring_plan(struct forward_case *c, const char *arena)
{
    memcpy(c->planning + c->arrays_first, arena + c->arrays_first, c->arrays_end - c->arrays_first);
}

void case_forget_plan(struct forward_case *c)
{
    memset(c->planning + c->arrays_first, CASE_RED, c->arrays_end - c->arrays_first);
    memset(c->planned, CASE_RED, sizeof *c->planned);
}
