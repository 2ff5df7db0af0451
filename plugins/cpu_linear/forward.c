/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c: one layer: check the call, take all heads of all sequences through their rows, write
 * the convolution's states. Complete on return. */
#include "cpu_linear.h"

#include "attn_plugin_util.h"

#include <string.h>

static void run_block(const linear_call *call, int64_t number, uint32_t worker)
{
    const linear_group *g = call->group;
    const attn_metadata *metadata = call->metadata;
    int32_t blocks = (g->ratio + HEAD_BLOCK - 1) / HEAD_BLOCK;
    int32_t block = (int32_t)(number % g->num_blocks), k_head = block / blocks;
    int32_t head = k_head * g->ratio + block % blocks * HEAD_BLOCK;
    int32_t last = (k_head + 1) * g->ratio;
    call->instance->kernels->heads(
        call, &call->slots->sequences[number / g->num_blocks], head,
        head + HEAD_BLOCK < last ? head + HEAD_BLOCK : last,
        (float *)(void *)(metadata->scratch + worker * metadata->worker_bytes));
}

static attn_status heads_task(void *arg, int64_t task, uint32_t worker)
{
    const linear_call *call = arg;
    int64_t end = (task + 1) * call->task_blocks;
    end = end < call->num_blocks ? end : call->num_blocks;
    for (int64_t number = task * call->task_blocks; number < end; number++)
        run_block(call, number, worker);
    return ATTN_OK;
}

/* Blocks are tasks of their own where a sequence has many rows. A decode is limited by memory: a
 * worker processes adjacent states; otherwise its prefetches beyond its own states would take cache
 * lines from the worker that changes them. */
static attn_status run_heads(linear_call *call, int decode, attn_error *error)
{
    const attn_services *services = call->instance->services;
    const int64_t tasks = TASKS_OF_WORKER * (int64_t)services->num_workers;
    call->num_blocks = (int64_t)call->metadata->num_seqs * call->group->num_blocks;
    call->task_blocks = decode && call->num_blocks > tasks ? call->num_blocks / tasks : 1;
    return attn_util_run_tasks(services,
                               (call->num_blocks + call->task_blocks - 1) / call->task_blocks,
                               heads_task, call, error);
}

static int64_t conv_blocks(const linear_group *group)
{
    return group->width > 1 ? (group->channels + CONV_BLOCK - 1) / CONV_BLOCK : 0;
}

static attn_status inputs_task(void *arg, int64_t task, uint32_t worker)
{
    const linear_call *call = arg;
    int64_t blocks = conv_blocks(call->group);
    int32_t from = (int32_t)(task % blocks) * CONV_BLOCK, end = from + CONV_BLOCK;
    (void)worker;
    call->instance->kernels->inputs(call, &call->slots->sequences[task / blocks], from,
                                    end < call->group->channels ? end : call->group->channels);
    return ATTN_OK;
}

static attn_status run_inputs(linear_call *call, attn_error *error)
{
    return attn_util_run_tasks(call->instance->services,
                               call->metadata->num_seqs * conv_blocks(call->group), inputs_task,
                               call, error);
}

/* Rows of padding: their output has to be finite. */
static void clear_padding(const linear_call *call)
{
    const linear_group *g = call->group;
    for (int64_t row = call->metadata->pad_first; row < call->metadata->row_end; row++)
        for (int32_t head = 0; head < g->v_heads; head++)
            memset(linear_at(call->out, row, head, 0), 0,
                   (size_t)g->v_dim * attn_dtype_size(g->out_dtype));
}

static attn_status forward(attn_metadata *metadata, int decode, int32_t layer_id,
                           const attn_forward_args *args, attn_error *error)
{
    linear_call call;
    if (!metadata || !args)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or args is NULL");
    attn_status status = attn_util_check_forward(metadata->planned, metadata->mode, decode, error);
    if (status != ATTN_OK || metadata->mode == ATTN_MODE_IDLE)
        return status;
    status = linear_call_init(&call, metadata, layer_id, args, error);
    if (status == ATTN_OK)
        status = run_heads(&call, decode, error);
    if (status == ATTN_OK)
        status = run_inputs(&call, error);
    if (status == ATTN_OK)
        clear_padding(&call);
    return status;
}

attn_status linear_forward_extend(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    (void)stream;
    return forward(metadata, 0, layer_id, args, error);
}

attn_status linear_forward_decode(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    (void)stream;
    return forward(metadata, 1, layer_id, args, error);
}
