/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c: one layer: check the call, save new KV, attend, merge. Complete on return. */
#include "cpu_native.h"

#include "attn_plugin_util.h"
#include "plugins/cpu_native/sparse/sparse.h"

#include <math.h>
#include <string.h>

/* Several workers may find one; the first reports it. */
attn_status cpu_call_fault(layer_call *call, int32_t seq, int64_t at, int64_t slot)
{
    uint32_t unclaimed = 0;
    if (__atomic_compare_exchange_n(&call->fault_claimed, &unclaimed, 1, 0, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED)) {
        call->fault_seq = seq;
        call->fault_at = at;
        call->fault_slot = slot;
    }
    return ATTN_INVALID_ARGUMENT;
}

static attn_status fault_message(const layer_call *call, attn_error *error)
{
    int64_t pages = call->k_cache.data ? call->k_cache.num_pages : call->sparse.num_pages;
    long long last = (long long)pages * call->group->page_size - 1;
    if (call->fault_seq < 0)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH,
                                    "out_cache_loc[%lld] is %lld: accepted -1..%lld",
                                    (long long)call->fault_at, (long long)call->fault_slot, last);
    return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH,
                                "key %lld of sequence %d is in slot %lld: accepted "
                                "0..%lld",
                                (long long)call->fault_at, call->fault_seq,
                                (long long)call->fault_slot, last);
}

attn_status cpu_run(layer_call *call, int64_t count, attn_task task, void *arg, attn_error *error)
{
    attn_status status = attn_util_run_tasks(call->instance->services, count, task, arg, error);
    return status != ATTN_OK && call->fault_claimed ? fault_message(call, error) : status;
}

/* Partial results of this many floats are merged sooner than workers are woken. */
enum { FEW_FLOATS = 1 << 15 };

static attn_status merge(layer_call *call, attn_error *error)
{
    const int64_t heads = call->group->kv_heads;
    const int64_t count = call->plan->num_merges * heads * call->plan->merge_pieces;
    if (call->plan->part_rows * heads * call->capacity->part_floats > FEW_FLOATS)
        return cpu_run(call, count, cpu_merge_task, call, error);
    for (int64_t task = 0; task < count; task++)
        cpu_merge_task(call, task, 0); /* which can not fail */
    return ATTN_OK;
}

/* Rows of no sequence are padding, whose output has to be finite. */
static void clear_padding(const layer_call *call)
{
    const cpu_group *group = call->group;
    int64_t element = attn_dtype_size(group->out_dtype);
    for (int64_t row = call->plan->pad_first; row < call->plan->pad_end; row++)
        for (int32_t head = 0; head < group->kv_heads * group->ratio; head++) {
            memset(attn_util_data(call->out) +
                       (row * call->out->strides[0] + head * call->out->strides[1]) * element,
                   0, (size_t)(group->v_dim * element));
            if (call->lse)
                *(float *)(void *)(attn_util_data(call->lse) +
                                   (row * call->lse->strides[0] + head * call->lse->strides[1]) *
                                       4) = -INFINITY;
        }
}

static attn_status forward(attn_metadata *metadata, int decode, int32_t layer_id,
                           const attn_forward_args *args, attn_error *error)
{
    layer_call call;
    if (!metadata || !args)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or args is NULL");
    attn_status status =
        attn_util_check_forward(metadata->planned, metadata->batch.mode, decode, error);
    if (status != ATTN_OK || metadata->batch.mode == ATTN_MODE_IDLE)
        return status;
    status = cpu_call_init(&call, metadata, layer_id, args, error);
    if (status != ATTN_OK)
        return status;
    const int64_t heads = call.group->kv_heads;
    status = cpu_run(&call, cpu_save_tasks(&call), cpu_save_task, &call, error);
    if (status == ATTN_OK && call.group->sparse.top_k > 0)
        status = sparse_choose(&call, error);
    if (status != ATTN_OK || !call.attends)
        return status;
    status = cpu_run(&call, call.plan->num_units * heads, cpu_attend_task, &call, error);
    if (status == ATTN_OK)
        status = merge(&call, error);
    if (status == ATTN_OK)
        clear_padding(&call);
    return status;
}

attn_status cpu_forward_extend(attn_metadata *metadata, int32_t layer_id,
                               const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    (void)stream;
    return forward(metadata, 0, layer_id, args, error);
}

attn_status cpu_forward_decode(attn_metadata *metadata, int32_t layer_id,
                               const attn_forward_args *args, attn_stream stream, attn_error *error)
{
    (void)stream;
    return forward(metadata, 1, layer_id, args, error);
}
