/* SPDX-License-Identifier: Apache-2.0
 *
 * executor_rows.c: the sampled output rows of a step, from the device to their judgement.
 *
 * Each layer's rows are gathered after those of the layer before, and come back in one piece at
 * the step's end. Where they do not fit, the layers so far are fetched and judged in mid-step; a
 * captured step always fits.
 */
#include "host/run/executor_private.h"

#include <stdlib.h>
#include <string.h>

#include "host/base/error.h"

/* ---- Memory ---------------------------------------------------------------------------------- */

static bool is_sampling(const struct executor *executor)
{
    return executor->params.config->verify.rate > 0;
}

/* Bytes before sample_arrays.rows. */
static uint64_t header_bytes(const struct executor *executor)
{
    uint64_t layers = executor->params.model->num_layers;
    uint64_t bytes = layers * sizeof(uint64_t) + (layers + 1) * sizeof(int32_t);
    return (bytes + 63) / 64 * 64;
}

static uint64_t arrays_bytes(const struct executor *executor)
{
    return header_bytes(executor) + (uint64_t)executor->params.bounds.max_tokens *
                                        executor->params.model->num_layers * sizeof(int32_t);
}

static void place_arrays(const struct executor *executor, void *memory,
                         struct sample_arrays *arrays)
{
    arrays->memory = memory;
    arrays->offset = memory;
    arrays->indptr = (int32_t *)(arrays->offset + executor->params.model->num_layers);
    arrays->rows = (int32_t *)((char *)memory + header_bytes(executor));
}

/* Of a sampled row: its output, and the keys that it chose. */
static uint64_t gathered_bytes(const struct executor *executor, uint32_t mode, int32_t layer)
{
    struct row_operand choice = operands_choice(executor->params.model, layer);
    return row_check_row_bytes(executor->params.check, mode, layer) + operands_row_bytes(&choice);
}

/* All rows of the widest layer, or of all layers of the largest captured step. */
static int64_t choose_capacity(const struct executor *executor)
{
    const struct executor_params *p = &executor->params;
    const struct config_ints *sizes = &p->config->cuda_graph.bs;
    uint64_t widest = 0, all = 0;
    for (uint32_t l = 0; l < p->model->num_layers; l++) {
        uint64_t bytes = gathered_bytes(executor, ATTN_MODE_DECODE, (int32_t)l);
        uint64_t other = gathered_bytes(executor, ATTN_MODE_EXTEND, (int32_t)l);
        bytes = other > bytes ? other : bytes;
        widest = bytes > widest ? bytes : widest;
        all += bytes;
    }
    bool captures = !executor_on_cpu(executor) && p->config->cuda_graph.enable && sizes->count > 0;
    int64_t largest = captures ? sizes->items[sizes->count - 1] : 0;
    if (largest > graph_runner_most(executor))
        largest = graph_runner_most(executor);
    largest *= drafts_rows(&p->drafts);
    int64_t eager = (int64_t)widest * p->bounds.max_tokens, captured = (int64_t)all * largest;
    return eager > captured ? eager : captured;
}

static attn_status no_memory(const struct executor *executor, uint32_t space, attn_error *error)
{
    return device_no_memory(
        executor->params.device, space, error,
        "no memory for sampled rows: %lld bytes; accepted: a smaller workload.chunked_prefill_size",
        (long long)executor->gathered_capacity);
}

static attn_status allocate_flight(struct executor *executor, struct flight *flight,
                                   attn_error *error)
{
    const struct device *device = executor->params.device;
    flight->watch = device_allocate(device, ATTN_SPACE_PINNED, sizeof *flight->watch, 64);
    flight->list.sequences =
        calloc((size_t)executor->params.bounds.max_seqs, sizeof *flight->list.sequences);
    flight->list.writes = calloc((size_t)executor->params.bounds.max_seqs *
                                     (size_t)row_list_writes_per_seq(&executor->params.drafts),
                                 sizeof *flight->list.writes);
    if (!flight->watch || !flight->list.sequences || !flight->list.writes)
        return no_memory(executor, ATTN_SPACE_PINNED, error);
    if (!is_sampling(executor))
        return ATTN_OK;
    void *arrays =
        device_allocate(device, ATTN_SPACE_PINNED, arrays_bytes(executor), EXECUTOR_ALIGNMENT);
    flight->sample.memory = arrays;
    flight->outputs = device_allocate(device, ATTN_SPACE_PINNED,
                                      (uint64_t)executor->gathered_capacity, EXECUTOR_ALIGNMENT);
    if (!arrays || !flight->outputs)
        return no_memory(executor, ATTN_SPACE_PINNED, error);
    place_arrays(executor, arrays, &flight->sample);
    flight->list.indptr = flight->sample.indptr;
    flight->list.offset = flight->sample.offset;
    flight->list.rows = flight->sample.rows;
    return ATTN_OK;
}

attn_status executor_rows_create(struct executor *executor, attn_error *error)
{
    const struct device *device = executor->params.device;
    executor->gathered_capacity = choose_capacity(executor);
    attn_status status = ATTN_OK;
    for (uint32_t f = 0; f < executor->num_flights && status == ATTN_OK; f++)
        status = allocate_flight(executor, &executor->flights[f], error);
    if (status != ATTN_OK || !is_sampling(executor))
        return status;
    if (executor_on_cpu(executor)) {
        executor->sample = executor->flights[0].sample;
        executor->gathered = executor->flights[0].outputs;
        return ATTN_OK;
    }
    void *arrays =
        device_allocate(device, ATTN_SPACE_DEVICE, arrays_bytes(executor), EXECUTOR_ALIGNMENT);
    executor->sample.memory = arrays;
    executor->gathered = device_allocate(device, ATTN_SPACE_DEVICE,
                                         (uint64_t)executor->gathered_capacity, EXECUTOR_ALIGNMENT);
    if (!arrays || !executor->gathered)
        return no_memory(executor, ATTN_SPACE_DEVICE, error);
    place_arrays(executor, arrays, &executor->sample);
    /* A warm-up gathers before anything was listed. */
    return device_fill(device, arrays, 0, arrays_bytes(executor), executor->stream, error);
}

void executor_rows_destroy(struct executor *executor)
{
    const struct device *device = executor->params.device;
    if (!executor_on_cpu(executor)) {
        device_release(device, ATTN_SPACE_DEVICE, executor->sample.memory);
        device_release(device, ATTN_SPACE_DEVICE, executor->gathered);
    }
    for (uint32_t f = 0; executor->flights && f < executor->num_flights; f++) {
        struct flight *flight = &executor->flights[f];
        device_release(device, ATTN_SPACE_PINNED, flight->watch);
        device_release(device, ATTN_SPACE_PINNED, flight->sample.memory);
        device_release(device, ATTN_SPACE_PINNED, flight->outputs);
        free(flight->list.sequences);
        free(flight->list.writes);
    }
}

/* ---- Before the step ------------------------------------------------------------------------- */

static int64_t layer_bytes(const struct executor *executor, const struct flight *flight,
                           int32_t layer)
{
    int64_t count = flight->list.indptr[layer + 1] - flight->list.indptr[layer];
    return count * (int64_t)gathered_bytes(executor, flight->list.mode, layer);
}

/* The place of each layer's rows: after the previous layer's, or at the start if they do not fit.
 */
static void assign_offsets(const struct executor *executor, struct flight *flight)
{
    int64_t used = 0;
    for (uint32_t l = 0; l < executor->params.model->num_layers; l++) {
        int64_t bytes = layer_bytes(executor, flight, (int32_t)l);
        if (used + bytes > executor->gathered_capacity)
            used = 0;
        flight->list.offset[l] = (uint64_t)used;
        used += bytes;
    }
}

attn_status executor_rows_list(struct executor *executor, struct flight *flight,
                               const struct batch_step *step, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    row_check_list(p->check, step, &flight->list);
    flight->judged = 0;
    flight->settled = false;
    if (!is_sampling(executor))
        return ATTN_OK;
    assign_offsets(executor, flight);
    if (executor_on_cpu(executor))
        return ATTN_OK;
    uint64_t rows = (uint64_t)flight->list.indptr[p->model->num_layers];
    return device_copy(p->device, executor->sample.memory, flight->sample.memory,
                       header_bytes(executor) + rows * sizeof(int32_t), executor->stream, error);
}

/* ---- In the step ----------------------------------------------------------------------------- */

/* After a layer's sampled rows: the keys that each of them chose. */
static attn_status gather_choices(const struct executor *executor, int32_t layer,
                                  const struct step_sample *sample,
                                  const struct step_output *output, int32_t most, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    const struct forward_batch *batch = &executor->batch;
    const attn_layer_group *group = &p->model->groups[p->model->layers[layer].group];
    const struct step_keys keys = {
        .chosen = executor->operands[ATTN_ROLE_SPARSE_INDICES],
        .count = operands_choice(p->model, layer).dim,
        .none = VERIFY_NO_ENTRY,
        .num_seqs = batch->batch.num_seqs,
        .page_size = (int32_t)p->config->kv_cache.page_size,
        .q_indptr = batch->arrays.q_indptr,
        .req_pool_indices = batch->arrays.req_pool_indices,
        .kv_lens = batch->arrays.seq_lens,
        .req_to_token = batch->tables[group->kv_group],
        .req_to_token_stride = batch->table_stride,
    };
    uint64_t skip = (uint64_t)output->row_elements * attn_dtype_size(output->dtype);
    if (keys.count == 0)
        return ATTN_OK;
    return step_kernels_keys(executor->kernels, layer, sample, skip, &keys, most, executor->stream,
                             error);
}

attn_status executor_rows_gather(struct executor *executor, struct flight *flight, int32_t layer,
                                 const struct step_output *output, attn_error *error)
{
    if (!is_sampling(executor))
        return ATTN_OK;
    int32_t most = executor->batch.batch.num_tokens;
    if (flight)
        most = flight->list.indptr[layer + 1] - flight->list.indptr[layer];
    if (most == 0)
        return ATTN_OK;
    struct step_sample sample = {executor->sample.indptr, executor->sample.rows,
                                 executor->sample.offset, executor->gathered};
    attn_status status = step_kernels_gather(executor->kernels, layer, &sample, output, most,
                                             executor->stream, error);
    return status == ATTN_OK ? gather_choices(executor, layer, &sample, output, most, error)
                             : status;
}

/* Where the rows that were gathered up to a layer end. */
static int64_t end_of(const struct executor *executor, const struct flight *flight, int32_t layer)
{
    return (int64_t)flight->list.offset[layer] + layer_bytes(executor, flight, layer);
}

/* Enqueue: bring back the first bytes of what was gathered. */
static attn_status fetch_outputs(struct executor *executor, struct flight *flight, int64_t bytes,
                                 attn_error *error)
{
    if (executor_on_cpu(executor) || bytes == 0)
        return ATTN_OK;
    return device_copy(executor->params.device, flight->outputs, executor->gathered,
                       (uint64_t)bytes, executor->stream, error);
}

static attn_status judge_layers(struct executor *executor, struct flight *flight, int32_t end,
                                attn_error *error)
{
    attn_status status = ATTN_OK;
    for (; flight->judged < end && status == ATTN_OK; flight->judged++)
        status = row_check_layer(executor->params.check, &flight->list, flight->judged,
                                 flight->outputs + flight->list.offset[flight->judged], error);
    /* After an error, too: added rows must not be read later. */
    attn_status judged = row_check_judge(executor->params.check, status == ATTN_OK ? error : NULL);
    return status == ATTN_OK ? judged : status;
}

attn_status executor_rows_make_room(struct executor *executor, struct flight *flight, int32_t layer,
                                    attn_error *error)
{
    if (!is_sampling(executor) || layer == 0 || flight->list.offset[layer] > 0)
        return ATTN_OK;
    int64_t bytes = end_of(executor, flight, layer - 1);
    if (bytes == 0)
        return ATTN_OK;
    attn_status status = fetch_outputs(executor, flight, bytes, error);
    if (status == ATTN_OK)
        status = executor_settle_earlier(executor, error);
    if (status == ATTN_OK)
        status = device_synchronize(executor->params.device, executor->stream, error);
    return status == ATTN_OK ? judge_layers(executor, flight, layer, error) : status;
}

attn_status executor_rows_fetch(struct executor *executor, struct flight *flight, attn_error *error)
{
    attn_status status = ATTN_OK;
    if (is_sampling(executor)) {
        int32_t last = (int32_t)executor->params.model->num_layers - 1;
        status = fetch_outputs(executor, flight, end_of(executor, flight, last), error);
    }
    if (status == ATTN_OK)
        status = executor_fences_fetch(executor, flight, error);
    if (status != ATTN_OK)
        return status;
    return device_copy(executor->params.device, flight->watch, executor->batch.arrays.watch,
                       sizeof *flight->watch, executor->stream, error);
}

/* ---- After the step -------------------------------------------------------------------------- */

attn_status executor_rows_judge(struct executor *executor, struct flight *flight, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    attn_status status = ATTN_OK;
    row_check_watch(p->check, &flight->list, *flight->watch);
    executor_fences_judge(executor, flight);
    if (is_sampling(executor))
        status = judge_layers(executor, flight, (int32_t)p->model->num_layers, error);
    return status == ATTN_OK ? row_check_end(p->check, &flight->list, error) : status;
}
