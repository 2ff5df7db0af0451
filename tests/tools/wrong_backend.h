/* SPDX-License-Identifier: Apache-2.0
 *
 * wrong_backend.h: a backend on the CPU that is right but for one thing: calls go through to
 * another one's tables, with that thing changed on the way. For tests of the checks that have to
 * find it.
 */
#ifndef WRONG_BACKEND_H
#define WRONG_BACKEND_H

#include "attn_plugin.h"
#include "attn_plugin_util.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum wrong {
    NOTHING_WRONG,
    /* what the instance is made for */
    WINDOW_LEFT_LONGER,
    WINDOW_LEFT_SHORTER,
    WINDOW_RIGHT_LONGER,
    CHUNK_LONGER,
    CAP_IGNORED,
    SCALE_OFF,
    SINKS_IGNORED,
    /* what is planned */
    LAST_KEY_DROPPED,
    POSITION_LATER,
    ROWS_FROM_ZERO,
    MASK_IGNORED,
    MASK_SHIFTED,
    POSITIONS_IGNORED,
    ITEMS_IGNORED,
    PAGES_SWAPPED, /* those of two sequences */
    DECODE_ORDER,  /* the last two rows of a MIXED batch are exchanged */
    /* what is forwarded */
    KV_NOT_SAVED,
    ALL_SAVED, /* into page 0 instead of nowhere is harmless, so: into the slot before */
    OMIT_SINK_IGNORED,
    SLOPES_NEGATIVE,
    SCALES_OFF,
    ONE_KV_HEAD,
    CACHE_FOR_ARGUMENTS, /* new tokens are read from the cache, unsaved or not */
    SCALE_MISSING_IS_ONE,
    /* what is done to the results */
    LSE_BASE_2,
    EMPTY_ROW_NAN,
    LAST_ROW_MISSING,
    ONE_ROW_MISSING, /* that one */
    NAN_HIDDEN,      /* in bf16 */
    WRITES_BEYOND,
    WRITES_QUERY,
    WRITES_PAGE,
    WRITES_PAGE_LATE, /* in the third forward alone */
    TRUNCATES,        /* the cache is rounded towards zero */
    NEIGHBOUR_VALUE,
    ANOTHER_VALUE, /* what lies at `from` is taken for what lies at `to` */
    NOT_DETERMINISTIC,
    NOT_INVARIANT,
    OVERRUNS_MEMORY,
    KEEPS_SCRATCH, /* what it needs later it leaves in the scratch */
    /* what is answered */
    ANSWERS_CHANGE,
    ACCEPTS_TOO_MUCH,  /* what the right one refuses for its dims */
    REFUSES_TOO_MUCH,  /* create does what query says no to */
    METADATA_TOO_EASY, /* whatever the bounds */
    REASON_MISSING,    /* of several */
    REASON_TOO_MANY,
    NO_REASON,
    UNKNOWN_MODE_TAKEN,
    DTYPE_MISNAMED,
    LIST_IN_PROSE,
    REASONS_OVERRUN,
    REASONS_CUT,
    NEW_TOKENS_BY_SIZE,
    NUM_WRONGS
};

static struct {
    enum wrong wrong;
    const attn_backend_type *real;
    attn_backend_type type;
    attn_backend_ops ops;
    attn_batch batch; /* as it was planned last, and its KV group */
    attn_kv_batch kv;
    int32_t ints[8][4096];
    uint8_t bits[1 << 16];
    int64_t slots[4096];
    attn_layer_group group; /* of the instance */
    attn_memory memory;
    uint32_t forwards;
    bool promises_nothing; /* DETERMINISTIC is not declared */
    int64_t row;           /* ONE_ROW_MISSING */
    char *to;              /* ANOTHER_VALUE */
    const char *from;
    size_t size;
} wrong_backend;

/* ---- What the instance is made for ----------------------------------------------------------- */

static attn_status wrong_create(const attn_backend_type *type, const attn_problem *problems,
                                uint32_t num_problems, const attn_options *options,
                                const attn_services *services, attn_instance **instance,
                                attn_error *error)
{
    attn_problem problem = *problems;
    attn_layer_group group = *problem.group;
    (void)type;
    wrong_backend.group = group;
    problem.group = &group;
    if (wrong_backend.wrong == WINDOW_LEFT_LONGER && group.window_left >= 0)
        group.window_left++;
    if (wrong_backend.wrong == WINDOW_LEFT_SHORTER && group.window_left > 0)
        group.window_left--;
    if (wrong_backend.wrong == WINDOW_RIGHT_LONGER && group.window_right >= 0)
        group.window_right++;
    if (wrong_backend.wrong == CHUNK_LONGER && group.attention_chunk > 0)
        group.attention_chunk++;
    if (wrong_backend.wrong == CAP_IGNORED)
        group.logit_cap = 0;
    if (wrong_backend.wrong == SCALE_OFF)
        group.sm_scale *= 1.1f;
    if (wrong_backend.wrong == SINKS_IGNORED)
        group.flags &= ~(uint32_t)ATTN_GROUP_HAS_SINKS;
    return wrong_backend.real->create(wrong_backend.real, &problem, num_problems, options, services,
                                      instance, error);
}

static attn_status wrong_metadata_create(attn_instance *instance, uint32_t kind,
                                         const attn_bounds *bounds, const attn_memory *memory,
                                         attn_metadata **metadata, attn_error *error)
{
    wrong_backend.memory = *memory;
    return wrong_backend.real->ops->metadata_create(instance, kind, bounds, memory, metadata,
                                                    error);
}

/* ---- What is planned ------------------------------------------------------------------------- */

/* A changed copy of an array, to lie where nothing else writes. */
static int32_t *copy_ints(int slot, attn_i32_array *array, int32_t count)
{
    memcpy(wrong_backend.ints[slot], array->device, (size_t)count * sizeof(int32_t));
    *array = (attn_i32_array){wrong_backend.ints[slot], wrong_backend.ints[slot]};
    return wrong_backend.ints[slot];
}

static void change_lengths(attn_batch *batch, attn_kv_batch *kv)
{
    int32_t seqs = batch->num_seqs, decode = batch->mode == ATTN_MODE_DECODE;
    if (wrong_backend.wrong == POSITION_LATER && !decode && batch->prefix_lens.device) {
        int32_t *prefix = copy_ints(0, &batch->prefix_lens, seqs);
        for (int32_t s = 0; s < seqs; s++)
            prefix[s] += prefix[s] > 0;
    }
    if (wrong_backend.wrong == LAST_KEY_DROPPED && kv) {
        int32_t *lens = copy_ints(1, kv->kv_lens.device ? &kv->kv_lens : &batch->seq_lens, seqs);
        if (!kv->kv_lens.device)
            kv->kv_lens = batch->seq_lens;
        for (int32_t s = 0; s < seqs; s++)
            lens[s] -= lens[s] > 40;
    }
    if (wrong_backend.wrong == ROWS_FROM_ZERO && !decode) {
        int32_t *indptr = copy_ints(2, &batch->q_indptr, seqs + 1), first = indptr[0];
        for (int32_t s = 0; s <= seqs; s++)
            indptr[s] -= first;
    }
    if (wrong_backend.wrong == DECODE_ORDER && batch->num_decode_seqs > 1) {
        int32_t *lens = copy_ints(3, &batch->seq_lens, seqs), last = lens[seqs - 1];
        int32_t *prefix = copy_ints(4, &batch->prefix_lens, seqs), last_prefix = prefix[seqs - 1];
        lens[seqs - 1] = lens[seqs - 2];
        lens[seqs - 2] = last;
        prefix[seqs - 1] = prefix[seqs - 2];
        prefix[seqs - 2] = last_prefix;
    }
}

static void change_masks(attn_batch *batch, attn_mask *mask)
{
    if (wrong_backend.wrong == MASK_IGNORED && batch->mask) {
        *mask = (attn_mask){.struct_size = sizeof *mask};
        batch->mask = NULL;
        batch->positions = (attn_i32_array){NULL, NULL};
    }
    if (wrong_backend.wrong == MASK_SHIFTED && batch->mask && batch->mask->bits) {
        int64_t bytes = batch->mask->indptr.device[batch->num_seqs];
        *mask = *batch->mask;
        batch->mask = mask;
        for (int64_t i = 0; i < bytes; i++)
            wrong_backend.bits[i] =
                (uint8_t)(mask->bits[i] << 1 | (i > 0 ? mask->bits[i - 1] >> 7 : 0));
        mask->bits = wrong_backend.bits;
    }
    if (wrong_backend.wrong == POSITIONS_IGNORED)
        batch->positions = (attn_i32_array){NULL, NULL};
    if (wrong_backend.wrong == ITEMS_IGNORED)
        batch->multi_item = NULL;
}

static void change_slots(const attn_batch *batch, attn_kv_batch *kv)
{
    int32_t seqs = batch->num_seqs;
    if (wrong_backend.wrong == PAGES_SWAPPED && kv->block_table.device && seqs > 2) {
        int32_t stride = kv->block_table_stride;
        int32_t *table = copy_ints(5, &kv->block_table, seqs * stride), first = table[0];
        table[0] = table[2 * stride];
        table[2 * stride] = first;
    }
    if (wrong_backend.wrong == ALL_SAVED && kv->out_cache_loc.device) {
        int64_t *slots = wrong_backend.slots, last = -1;
        for (int32_t n = 0; n < batch->num_tokens + 8; n++) {
            slots[n] = kv->out_cache_loc.device[n];
            slots[n] = slots[n] == -1 ? last : slots[n];
            last = slots[n] < 1 << 20 ? slots[n] : -1;
        }
        kv->out_cache_loc = (attn_i64_array){slots, slots};
    }
}

static attn_status wrong_init_forward_metadata(attn_metadata *metadata, const attn_batch *given,
                                               attn_stream stream, attn_error *error)
{
    attn_batch batch = *given;
    attn_kv_batch kv[2];
    attn_mask mask;
    attn_kv_batch *own = NULL;
    for (uint32_t g = 0; g < batch.num_kv_groups; g++) {
        kv[g] = *(const attn_kv_batch *)attn_at(batch.kv_groups, g);
        own = &kv[g];
    }
    batch.kv_groups = batch.num_kv_groups ? kv : NULL;
    wrong_backend.batch = *given;
    if (own)
        wrong_backend.kv = *own;
    change_lengths(&batch, own);
    change_masks(&batch, &mask);
    if (own)
        change_slots(&batch, own);
    return wrong_backend.real->ops->init_forward_metadata(metadata, &batch, stream, error);
}

/* ---- What is forwarded ----------------------------------------------------------------------- */

/* The arguments of a forward, changed. */
struct wrong_args {
    attn_forward_args args;
    attn_tensor tensors[ATTN_ROLE_COUNT];
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_scale scale[2];
    const attn_scale *scales[ATTN_ROLE_COUNT];
    float slopes[64];
};

static void copy_args(struct wrong_args *w, const attn_forward_args *args)
{
    w->args = *args;
    memcpy(w->operands, args->operands, sizeof w->operands);
    memcpy(w->scales, args->scales, sizeof w->scales);
    w->args.operands = w->operands;
    w->args.scales = w->scales;
}

static attn_tensor *change_tensor(struct wrong_args *w, uint32_t role)
{
    w->tensors[role] = *w->operands[role];
    w->operands[role] = &w->tensors[role];
    return &w->tensors[role];
}

static void change_scales(struct wrong_args *w)
{
    static float factors[2][1 << 18];
    const attn_layer_group *group = &wrong_backend.group;
    const attn_tensor *cache = w->operands[ATTN_ROLE_K_CACHE];
    for (uint32_t i = 0; i < 2; i++) {
        const attn_scale *scale = w->scales[ATTN_ROLE_K_CACHE + i];
        uint32_t count = attn_util_scale_count(
            group->kv_scale_granularity, group->num_kv_heads, wrong_backend.batch.num_seqs,
            cache ? cache->shape[0] * wrong_backend.kv.page_size : 0);
        ck_assert_uint_le(count, 1 << 18);
        for (uint32_t n = 0; n < count; n++)
            factors[i][n] = scale ? scale->host[n] * 1.13f : 1;
        w->scale[i] = scale ? *scale
                            : (attn_scale){.struct_size = sizeof(attn_scale),
                                           .granularity = group->kv_scale_granularity,
                                           .count = count};
        w->scale[i].host = factors[i];
        w->scale[i].device = NULL;
        if (scale ? wrong_backend.wrong == SCALES_OFF : wrong_backend.wrong == SCALE_MISSING_IS_ONE)
            w->scales[ATTN_ROLE_K_CACHE + i] = &w->scale[i];
    }
}

static void change_args(struct wrong_args *w)
{
    bool cached = w->operands[ATTN_ROLE_K_CACHE];
    if (wrong_backend.wrong == KV_NOT_SAVED)
        w->args.flags &= ~(uint32_t)ATTN_FORWARD_SAVE_KV;
    if (wrong_backend.wrong == OMIT_SINK_IGNORED)
        w->args.flags &= ~(uint32_t)ATTN_FORWARD_OMIT_SINK;
    if (wrong_backend.wrong == SLOPES_NEGATIVE && w->operands[ATTN_ROLE_ALIBI_SLOPES]) {
        attn_tensor *slopes = change_tensor(w, ATTN_ROLE_ALIBI_SLOPES);
        const float *from =
            (const float *)(const void *)((const char *)slopes->data + slopes->byte_offset);
        for (int64_t h = 0; h < slopes->shape[0]; h++)
            w->slopes[h] = -from[h];
        slopes->data = w->slopes;
        slopes->byte_offset = 0;
    }
    if (wrong_backend.group.kv_scale_granularity != ATTN_SCALE_NONE)
        change_scales(w);
    bool hnd =
        cached && w->operands[ATTN_ROLE_K_CACHE]->shape[1] == wrong_backend.group.num_kv_heads;
    for (uint32_t role = ATTN_ROLE_K; role <= ATTN_ROLE_V_CACHE; role++)
        if (wrong_backend.wrong == ONE_KV_HEAD && w->operands[role] && role != ATTN_ROLE_OUT &&
            role != ATTN_ROLE_LSE && !(w->args.flags & ATTN_FORWARD_SAVE_KV))
            change_tensor(w, role)->strides[role < ATTN_ROLE_K_CACHE || hnd ? 1 : 2] = 0;
    if (wrong_backend.wrong == CACHE_FOR_ARGUMENTS && cached &&
        !(w->args.flags & ATTN_FORWARD_SAVE_KV))
        w->operands[ATTN_ROLE_K] = w->operands[ATTN_ROLE_V] = NULL;
    if (wrong_backend.wrong == NEIGHBOUR_VALUE && w->operands[ATTN_ROLE_V] &&
        wrong_backend.batch.num_tokens > 1) {
        attn_tensor *v = change_tensor(w, ATTN_ROLE_V);
        v->byte_offset += (uint64_t)v->strides[0] * attn_dtype_size(v->dtype);
        v->shape[0]--;
        w->operands[ATTN_ROLE_K] = change_tensor(w, ATTN_ROLE_K);
        w->tensors[ATTN_ROLE_K].shape[0]--;
    }
}

/* ---- What is done to the results ------------------------------------------------------------- */

static char *wrong_element(const attn_tensor *tensor, int64_t i, int64_t j)
{
    return (char *)tensor->data + tensor->byte_offset +
           (i * tensor->strides[0] + (tensor->ndim > 1 ? j * tensor->strides[1] : 0)) *
               (int64_t)attn_dtype_size(tensor->dtype);
}

/* Change a byte so that the number stays about what it is, or does not. */
static void flip(char *byte, int bit)
{
    *byte = (char)(*byte ^ (1 << bit));
}

static void change_lse(const attn_tensor *lse, const attn_tensor *out, int64_t first, int64_t rows)
{
    for (int64_t row = first; lse && row < first + rows; row++)
        for (int64_t head = 0; head < lse->shape[1]; head++) {
            float value;
            memcpy(&value, wrong_element(lse, row, head), sizeof value);
            if (wrong_backend.wrong == EMPTY_ROW_NAN && value == -INFINITY)
                memset(wrong_element(out, row, head), 0xFF, attn_dtype_size(out->dtype));
            value *= 1.442695f;
            if (wrong_backend.wrong == LSE_BASE_2)
                memcpy(wrong_element(lse, row, head), &value, sizeof value);
        }
}

/* The key of the first new token: one bit less, as if it had not been rounded to nearest. */
static void truncate_cache(const attn_forward_args *args)
{
    const attn_tensor *cache = args->operands[ATTN_ROLE_K_CACHE];
    const attn_kv_batch *kv = &wrong_backend.kv;
    if (!cache || !(args->flags & ATTN_FORWARD_SAVE_KV) || attn_dtype_size(cache->dtype) != 1)
        return;
    const int32_t *first = kv->kv_new_indptr.device ? kv->kv_new_indptr.device
                           : wrong_backend.batch.mode == ATTN_MODE_DECODE
                               ? NULL
                               : wrong_backend.batch.q_indptr.device;
    int64_t slot = kv->out_cache_loc.device[first ? *first : 0];
    bool hnd = cache->shape[1] != kv->page_size;
    if (slot >= kv->page_size)
        flip(wrong_element(cache, slot / kv->page_size, 0) +
                 slot % kv->page_size * cache->strides[hnd ? 2 : 1],
             0);
}

static void hide_nan(const attn_tensor *out, int64_t row)
{
    for (int64_t head = 0; head < out->shape[1]; head++)
        for (int64_t d = 0; d < out->shape[2]; d++) {
            char *element = wrong_element(out, row, head) + 2 * d;
            uint16_t bits;
            memcpy(&bits, element, sizeof bits);
            if ((bits & 0x7fff) > 0x7f80)
                memset(element, 0, sizeof bits);
        }
}

static void change_results(const attn_forward_args *args)
{
    const attn_tensor *out = args->operands[ATTN_ROLE_OUT], *cache;
    const attn_batch *batch = &wrong_backend.batch;
    int64_t first = batch->mode == ATTN_MODE_DECODE ? 0 : batch->q_indptr.device[0];
    int64_t rows = batch->num_tokens;
    size_t size = (size_t)out->shape[2] * attn_dtype_size(out->dtype);
    change_lse(args->operands[ATTN_ROLE_LSE], out, first, rows);
    if (wrong_backend.wrong == LAST_ROW_MISSING && rows > 0)
        memset(wrong_element(out, first + rows - 1, 0), 0xFF, size);
    if (wrong_backend.wrong == ONE_ROW_MISSING)
        memset(wrong_element(out, wrong_backend.row, 0), 0xFF, size);
    for (int64_t row = first; wrong_backend.wrong == NAN_HIDDEN && row < first + rows; row++)
        hide_nan(out, row);
    if (wrong_backend.wrong == WRITES_BEYOND)
        flip(wrong_element(out, first + rows, 0), 3);
    if (wrong_backend.wrong == WRITES_QUERY)
        flip(wrong_element(args->operands[ATTN_ROLE_Q], first, 0), 0);
    cache = args->operands[ATTN_ROLE_V_CACHE];
    bool late = wrong_backend.wrong == WRITES_PAGE_LATE && wrong_backend.forwards == 3;
    if ((wrong_backend.wrong == WRITES_PAGE || late) && cache)
        flip(wrong_element(cache, 1, 0), 1);
    if (wrong_backend.wrong == TRUNCATES)
        truncate_cache(args);
    if (wrong_backend.wrong == NOT_DETERMINISTIC && rows > 0 && wrong_backend.forwards % 2)
        flip(wrong_element(out, first, 0), 0);
    if (wrong_backend.wrong == NOT_INVARIANT && rows > 0 && batch->num_seqs % 2)
        flip(wrong_element(out, first, 0), 0);
    uint32_t region = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH);
    char *scratch = wrong_backend.memory.base[region];
    if (wrong_backend.wrong == OVERRUNS_MEMORY && scratch)
        flip(scratch + wrong_backend.memory.size[region] + 5, 0);
    if (wrong_backend.wrong == KEEPS_SCRATCH && scratch && wrong_backend.forwards > 1 &&
        scratch[0] != 17)
        memset(wrong_element(out, first, 0), 0xFF, size);
    if (wrong_backend.wrong == KEEPS_SCRATCH && scratch)
        scratch[0] = 17;
}

static attn_status wrong_forward(int decode, attn_metadata *metadata, int32_t layer_id,
                                 const attn_forward_args *args, attn_stream stream,
                                 attn_error *error)
{
    const attn_backend_ops *ops = wrong_backend.real->ops;
    struct wrong_args changed;
    copy_args(&changed, args);
    change_args(&changed);
    wrong_backend.forwards++;
    char own[4096];
    bool other = wrong_backend.wrong == ANOTHER_VALUE;
    if (other) {
        memcpy(own, wrong_backend.to, wrong_backend.size);
        memcpy(wrong_backend.to, wrong_backend.from, wrong_backend.size);
    }
    attn_status status = (decode ? ops->forward_decode : ops->forward_extend)(
        metadata, layer_id, &changed.args, stream, error);
    if (other)
        memcpy(wrong_backend.to, own, wrong_backend.size);
    if (status == ATTN_OK)
        change_results(args);
    return status;
}

static attn_status wrong_forward_extend(attn_metadata *metadata, int32_t layer_id,
                                        const attn_forward_args *args, attn_stream stream,
                                        attn_error *error)
{
    return wrong_forward(0, metadata, layer_id, args, stream, error);
}

static attn_status wrong_forward_decode(attn_metadata *metadata, int32_t layer_id,
                                        const attn_forward_args *args, attn_stream stream,
                                        attn_error *error)
{
    return wrong_forward(1, metadata, layer_id, args, stream, error);
}

/* ---- The type -------------------------------------------------------------------------------- */

static attn_reason *last_reason(const attn_verdict *verdict)
{
    uint32_t count = verdict->num_reasons;
    if (count > verdict->reasons_capacity)
        count = verdict->reasons_capacity;
    return count == 0 ? NULL : (attn_reason *)(uintptr_t)attn_at(verdict->reasons, count - 1);
}

static void change_reasons(attn_verdict *verdict)
{
    attn_reason *last = last_reason(verdict);
    if (verdict->supported)
        return;
    if (wrong_backend.wrong == REASON_MISSING && verdict->num_reasons > 1)
        verdict->num_reasons--;
    if (wrong_backend.wrong == NO_REASON)
        verdict->num_reasons = 0;
    if (wrong_backend.wrong == REASONS_CUT && verdict->num_reasons > verdict->reasons_capacity)
        verdict->num_reasons = verdict->reasons_capacity;
    if (wrong_backend.wrong == DTYPE_MISNAMED && last && last->code == ATTN_REASON_DTYPE)
        snprintf(last->accepted, sizeof last->accepted, "fp16, bf16");
    if (wrong_backend.wrong == LIST_IN_PROSE && last && last->field == ATTN_FIELD_HEAD_DIM)
        snprintf(last->accepted, sizeof last->accepted, "1 to 512");
    if (wrong_backend.wrong == REASON_TOO_MANY &&
        verdict->num_reasons < verdict->reasons_capacity) {
        last = (attn_reason *)(uintptr_t)attn_at(verdict->reasons, verdict->num_reasons++);
        last->code = ATTN_REASON_PAGE_SIZE;
        last->field = ATTN_FIELD_PAGE_SIZE;
        snprintf(last->accepted, sizeof last->accepted, "16");
    }
    if (wrong_backend.wrong == REASONS_OVERRUN && verdict->reasons_capacity > 0)
        ((attn_reason *)(uintptr_t)attn_at(verdict->reasons, verdict->reasons_capacity))->code = 1;
}

static void change_answer(const attn_problem *problem, attn_verdict *verdict)
{
    if (wrong_backend.wrong == ANSWERS_CHANGE && wrong_backend.forwards++ % 2)
        verdict->notes ^= ATTN_NOTE_FIRST_CALL_SLOW;
    if (wrong_backend.wrong == ACCEPTS_TOO_MUCH && problem->group->head_dim > 512) {
        verdict->supported = 1;
        verdict->num_reasons = 0;
    }
    if (wrong_backend.wrong == REFUSES_TOO_MUCH && verdict->supported &&
        problem->group->head_dim == 128) {
        verdict->supported = 0;
        verdict->num_reasons = 1;
        attn_reason *reason = last_reason(verdict);
        if (reason) {
            reason->code = ATTN_REASON_HEAD_DIM;
            reason->field = ATTN_FIELD_HEAD_DIM;
            snprintf(reason->accepted, sizeof reason->accepted, "1..127, 129..512");
        }
    }
    if (wrong_backend.wrong == NEW_TOKENS_BY_SIZE && problem->bounds->max_kv_len > 100)
        verdict->reads_new_kv_unquantised = 63;
}

static attn_status wrong_query(const attn_backend_type *type, const attn_options *options,
                               const attn_services *services, const attn_problem *given,
                               attn_verdict *verdict, attn_error *error)
{
    attn_problem problem = *given;
    attn_bounds bounds = *given->bounds;
    (void)type;
    problem.bounds = &bounds;
    if (wrong_backend.wrong == UNKNOWN_MODE_TAKEN)
        bounds.modes &= 63;
    attn_status status =
        wrong_backend.real->query(wrong_backend.real, options, services, &problem, verdict, error);
    if (wrong_backend.promises_nothing)
        verdict->notes &= ~(uint32_t)ATTN_NOTE_DETERMINISTIC;
    if (status == ATTN_OK) {
        change_answer(&problem, verdict);
        change_reasons(verdict);
    }
    return status;
}

static attn_status wrong_metadata_size(attn_instance *instance, uint32_t kind,
                                       const attn_bounds *bounds, attn_memory_size *size,
                                       attn_error *error)
{
    attn_status status =
        wrong_backend.real->ops->metadata_size(instance, kind, bounds, size, error);
    return wrong_backend.wrong == METADATA_TOO_EASY ? ATTN_OK : status;
}

/* The table of `real` with this thing wrong. One at a time. */
static inline const attn_backend_type *make_wrong(const attn_backend_type *real, enum wrong wrong)
{
    memset(&wrong_backend, 0, sizeof wrong_backend);
    wrong_backend.wrong = wrong;
    wrong_backend.real = real;
    wrong_backend.ops = *real->ops;
    wrong_backend.ops.metadata_create = wrong_metadata_create;
    wrong_backend.ops.metadata_size = wrong_metadata_size;
    wrong_backend.ops.init_forward_metadata = wrong_init_forward_metadata;
    wrong_backend.ops.forward_extend = wrong_forward_extend;
    wrong_backend.ops.forward_decode = wrong_forward_decode;
    wrong_backend.type = *real;
    wrong_backend.type.ops = &wrong_backend.ops;
    wrong_backend.type.query = wrong_query;
    wrong_backend.type.create = wrong_create;
    return &wrong_backend.type;
}

#endif /* WRONG_BACKEND_H */
