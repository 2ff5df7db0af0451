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
#include <string.h>

enum wrong {
    NOTHING_WRONG,
    SCALE_OFF, /* what the instance is made for */
    /* what is planned */
    LAST_KEY_DROPPED,
    POSITION_LATER,
    MASK_SHIFTED,
    /* what is forwarded */
    KV_NOT_SAVED,
    ONE_KV_HEAD,
    /* what is done to the results */
    LSE_BASE_2,
    LAST_ROW_MISSING,
    ONE_ROW_MISSING, /* that one */
    NAN_HIDDEN,      /* in bf16 */
    WRITES_BEYOND,
    WRITES_QUERY,
    WRITES_PAGE,
    WRITES_PAGE_LATE, /* in the third forward alone */
    NEIGHBOUR_VALUE,
    ANOTHER_VALUE, /* what lies at `from` is taken for what lies at `to` */
    NOT_DETERMINISTIC,
    NOT_INVARIANT,
    OVERRUNS_MEMORY,
    KEEPS_SCRATCH, /* what it needs later it leaves in the scratch */
    /* what is answered */
    ANSWERS_CHANGE,
    METADATA_TOO_EASY, /* whatever the bounds */
    LIST_IN_PROSE,
    REASONS_CUT
};

static struct {
    enum wrong wrong;
    const attn_backend_type *real;
    attn_backend_type type;
    attn_backend_ops ops;
    attn_batch batch; /* as it was planned last */
    int32_t ints[2][4096];
    uint8_t bits[1 << 16];
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
    if (wrong_backend.wrong == SCALE_OFF)
        group.sm_scale *= 1.1f;
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
}

static void change_mask(attn_batch *batch, attn_mask *mask)
{
    if (wrong_backend.wrong != MASK_SHIFTED || !batch->mask || !batch->mask->bits)
        return;
    int64_t bytes = batch->mask->indptr.device[batch->num_seqs];
    *mask = *batch->mask;
    batch->mask = mask;
    for (int64_t i = 0; i < bytes; i++)
        wrong_backend.bits[i] =
            (uint8_t)(mask->bits[i] << 1 | (i > 0 ? mask->bits[i - 1] >> 7 : 0));
    mask->bits = wrong_backend.bits;
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
    change_lengths(&batch, own);
    change_mask(&batch, &mask);
    return wrong_backend.real->ops->init_forward_metadata(metadata, &batch, stream, error);
}

/* ---- What is forwarded ----------------------------------------------------------------------- */

/* The arguments of a forward, changed. */
struct wrong_args {
    attn_forward_args args;
    attn_tensor tensors[ATTN_ROLE_COUNT];
    const attn_tensor *operands[ATTN_ROLE_COUNT];
};

static void copy_args(struct wrong_args *w, const attn_forward_args *args)
{
    w->args = *args;
    memcpy(w->operands, args->operands, sizeof w->operands);
    w->args.operands = w->operands;
}

static attn_tensor *change_tensor(struct wrong_args *w, uint32_t role)
{
    w->tensors[role] = *w->operands[role];
    w->operands[role] = &w->tensors[role];
    return &w->tensors[role];
}

static void change_args(struct wrong_args *w)
{
    bool cached = w->operands[ATTN_ROLE_K_CACHE];
    if (wrong_backend.wrong == KV_NOT_SAVED)
        w->args.flags &= ~(uint32_t)ATTN_FORWARD_SAVE_KV;
    bool hnd =
        cached && w->operands[ATTN_ROLE_K_CACHE]->shape[1] == wrong_backend.group.num_kv_heads;
    for (uint32_t role = ATTN_ROLE_K; role <= ATTN_ROLE_V_CACHE; role++)
        if (wrong_backend.wrong == ONE_KV_HEAD && w->operands[role] && role != ATTN_ROLE_OUT &&
            role != ATTN_ROLE_LSE && !(w->args.flags & ATTN_FORWARD_SAVE_KV))
            change_tensor(w, role)->strides[role < ATTN_ROLE_K_CACHE || hnd ? 1 : 2] = 0;
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

static void change_lse(const attn_tensor *lse, int64_t first, int64_t rows)
{
    for (int64_t row = first; lse && row < first + rows; row++)
        for (int64_t head = 0; head < lse->shape[1]; head++) {
            float value;
            memcpy(&value, wrong_element(lse, row, head), sizeof value);
            value *= 1.442695f;
            memcpy(wrong_element(lse, row, head), &value, sizeof value);
        }
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
    if (wrong_backend.wrong == LSE_BASE_2)
        change_lse(args->operands[ATTN_ROLE_LSE], first, rows);
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

static void change_answer(attn_verdict *verdict)
{
    attn_reason *last = last_reason(verdict);
    if (wrong_backend.wrong == ANSWERS_CHANGE && wrong_backend.forwards++ % 2)
        verdict->traits ^= ATTN_TRAIT_FIRST_CALL_SLOW;
    if (verdict->supported)
        return;
    if (wrong_backend.wrong == REASONS_CUT && verdict->num_reasons > verdict->reasons_capacity)
        verdict->num_reasons = verdict->reasons_capacity;
    if (wrong_backend.wrong == LIST_IN_PROSE && last && last->field == ATTN_FIELD_HEAD_DIM)
        snprintf(last->accepted, sizeof last->accepted, "1 to 512");
}

static attn_status wrong_query(const attn_backend_type *type, const attn_options *options,
                               const attn_services *services, const attn_problem *problem,
                               attn_verdict *verdict, attn_error *error)
{
    (void)type;
    attn_status status =
        wrong_backend.real->query(wrong_backend.real, options, services, problem, verdict, error);
    if (wrong_backend.promises_nothing)
        verdict->traits &= ~(uint32_t)ATTN_TRAIT_DETERMINISTIC;
    if (status == ATTN_OK)
        change_answer(verdict);
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
