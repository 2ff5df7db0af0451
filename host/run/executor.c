/* SPDX-License-Identifier: Apache-2.0
 *
 * executor.c: a step: vectors, forwards, times.
 */
#include "host/run/executor_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/base/clock.h"
#include "host/base/error.h"

/* ---- Layers ---------------------------------------------------------------------------------- */

int32_t executor_unit_of(const struct executor *executor, int32_t layer)
{
    const struct executor_params *p = &executor->params;
    return p->selection->groups[p->model->layers[layer].group].unit;
}

attn_status executor_poison(const struct executor *executor, const attn_tensor *rows,
                            attn_error *error)
{
    if (executor->params.config->verify.rate <= 0 || !rows)
        return ATTN_OK;
    uint64_t bytes =
        (uint64_t)rows->shape[0] * (uint64_t)rows->strides[0] * attn_dtype_size(rows->dtype);
    return device_fill(executor->params.device, rows->data, 0xFF, bytes, executor->stream, error);
}

/* Enqueue the generation of a layer's vectors, and poison its outputs. */
static attn_status make_inputs(struct executor *executor, int32_t layer,
                               const struct layer_operands *o, attn_error *error)
{
    const struct step_rows *rows = &executor->batch.rows;
    uint32_t num_own = o->num_vectors - o->num_encoded;
    attn_status status = step_kernels_generate(executor->kernels, o->form, rows, o->vectors,
                                               num_own, executor->stream, error);
    if (status == ATTN_OK && o->num_encoded > 0)
        status =
            step_kernels_generate(executor->kernels, o->form, &executor->batch.encoder_rows,
                                  o->vectors + num_own, o->num_encoded, executor->stream, error);
    if (status == ATTN_OK && o->num_latents > 0)
        status = step_kernels_generate(executor->kernels, layer, rows, o->vectors + o->num_vectors,
                                       o->num_latents, executor->stream, error);
    if (status == ATTN_OK)
        status = executor_poison(executor, o->operands[ATTN_ROLE_OUT], error);
    if (status == ATTN_OK && operands_choose(executor->params.model, layer))
        status = executor_poison(executor, o->operands[ATTN_ROLE_SPARSE_INDICES], error);
    return status == ATTN_OK ? executor_poison(executor, o->operands[ATTN_ROLE_LSE], error)
                             : status;
}

/* The call, timed. */
static attn_status call(struct executor *executor, const struct layers_run *run, int32_t layer,
                        const struct layer_operands *o, attn_error *error)
{
    int64_t start = clock_now_ns();
    attn_status status = attnhost_forward(run->metadata[executor_unit_of(executor, layer)], layer,
                                          &o->args, executor->stream, error);
    if (run->flight)
        run->flight->forward_ns += clock_now_ns() - start;
    return status;
}

static attn_status forward(struct executor *executor, const struct layers_run *run, int32_t layer,
                           const struct layer_operands *o, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    struct fence_sums sums = {.count = 0};
    if (p->probe && run->step)
        p->probe(p->probe_ctx, run->step, layer, o->operands);
    attn_status status = executor_fences_raise(executor, layer, o, &sums, error);
    if (status == ATTN_OK)
        status = call(executor, run, layer, o, error);
    return status == ATTN_OK ? executor_fences_look(executor, run->flight, layer, o, &sums, error)
                             : status;
}

static attn_status run_layer(struct executor *executor, const struct layers_run *run, int32_t layer,
                             attn_error *error)
{
    struct layer_operands operands;
    executor_operands_set(executor, layer, executor->batch.rows.count, run->flags, &operands);
    const struct step_output output = {operands.out.data, operands.written.dtype,
                                       operands_row_elements(&operands.written)};
    attn_status status = ATTN_OK;
    if (run->flight)
        status = executor_rows_make_room(executor, run->flight, layer, error);
    if (status == ATTN_OK)
        status = make_inputs(executor, layer, &operands, error);
    if (status == ATTN_OK)
        status = forward(executor, run, layer, &operands, error);
    if (status == ATTN_OK && operands.form != layer)
        status = executor_prefix_run(executor, run, layer, &operands, error);
    if (status == ATTN_OK)
        status = step_kernels_watch(executor->kernels, layer, &executor->batch.rows, &output,
                                    executor->batch.arrays.watch, executor->stream, error);
    if (status == ATTN_OK)
        status = executor_rows_gather(executor, run->flight, layer, &output, error);
    return status;
}

attn_status executor_run_layers(struct executor *executor, const struct layers_run *run,
                                attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t l = 0; l < executor->params.model->num_layers && status == ATTN_OK; l++)
        if (model_layer_runs(executor->params.model, l, executor->batch.mode))
            status = run_layer(executor, run, (int32_t)l, error);
    return status;
}

/* Does a unit serve a layer that runs in batches of this mode? */
static bool unit_runs(const struct executor *executor, uint32_t unit, uint32_t mode)
{
    const struct model *model = executor->params.model;
    for (uint32_t l = 0; l < model->num_layers; l++)
        if (executor_unit_of(executor, (int32_t)l) == (int32_t)unit &&
            model_layer_runs(model, l, mode))
            return true;
    return false;
}

attn_status executor_plan(struct executor *executor, attnhost_metadata *const *metadata,
                          attn_error *error)
{
    const attn_batch *batch = &executor->batch.batch;
    attn_batch plain = *batch; /* for units without hints of shared prefixes */
    attn_status status = ATTN_OK;
    plain.shared_prefix = NULL;
    plain.num_prefix_levels = 0;
    for (uint32_t u = 0; u < executor->num_units && status == ATTN_OK; u++)
        if (unit_runs(executor, u, executor->batch.mode))
            status = attnhost_init_forward_metadata(
                metadata[u], executor->units[u].takes_shared ? batch : &plain, executor->stream,
                error);
    return status;
}

/* ---- Accepted drafts ------------------------------------------------------------------------- */

/* Slots of labels in e4m3: of a page their codes, and after them their scales. */
static void split_labels(const attn_tensor *tensor, int32_t page_size, struct step_cache caches[2])
{
    int64_t scale = (int64_t)sizeof(float), label = tensor->shape[1] / page_size - scale;
    for (int i = 0; i < 2; i++)
        caches[i] = (struct step_cache){
            .data = (char *)tensor->data + i * page_size * label,
            .page_bytes = tensor->strides[0],
            .slot_bytes = i ? scale : label,
            .piece_bytes = i ? scale : label,
            .num_pieces = 1,
            .page_size = page_size,
        };
}

/* Slots of a cache: its layout says whether a slot is one piece, or one for each head. */
static struct step_cache cache_of(const attn_tensor *tensor, bool heads_first, int32_t page_size)
{
    int64_t element = (int64_t)attn_dtype_size(tensor->dtype);
    struct step_cache cache = {
        .data = tensor->data,
        .page_bytes = tensor->strides[0] * element,
        .slot_bytes = tensor->strides[heads_first ? 2 : 1] * element,
        .num_pieces = heads_first ? (int32_t)tensor->shape[1] : 1,
        .piece_stride = heads_first ? tensor->strides[1] * element : 0,
        .page_size = page_size,
    };
    cache.piece_bytes = cache.slot_bytes;
    return cache;
}

/* In the target's caches: those of the draft model have none of these rows yet. */
static attn_status move_in_layer(struct executor *executor, uint32_t slot, uint32_t layer,
                                 attn_error *error)
{
    const struct executor_params *p = &executor->params;
    const struct model_layer *entry = &p->model->layers[layer];
    const char *layout = p->selection->groups[entry->group].kv_layout;
    attn_status status = ATTN_OK;
    if (entry->is_draft || !layout || !operands_write_kv(p->model, (int32_t)layer))
        return ATTN_OK;
    const struct kv_pool_buffer *buffer = &p->pool->buffers[entry->kv_buffer];
    const struct step_moves moves = forward_batch_moves(
        &executor->batch, slot, (uint32_t)p->model->groups[entry->group].kv_group);
    for (uint32_t t = 0; t < buffer->num_tensors && moves.num_seqs > 0 && status == ATTN_OK; t++) {
        const attn_tensor *tensor = &buffer->tensors[t].tensor;
        const int32_t page_size = (int32_t)p->config->kv_cache.page_size;
        struct step_cache caches[2];
        const int count = tensor->ndim == 2 ? 2 : 1;
        if (count == 2)
            split_labels(tensor, page_size, caches);
        else
            caches[0] = cache_of(tensor, strcmp(layout, ATTN_LAYOUT_KV_HND) == 0, page_size);
        for (int i = 0; i < count && status == ATTN_OK; i++)
            status =
                step_kernels_move(executor->kernels, &moves, &caches[i], executor->stream, error);
    }
    return status;
}

/* Enqueue: accepted rows of trees move together. */
static attn_status move_accepted(struct executor *executor, uint32_t slot, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t l = 0; l < executor->params.model->num_layers && status == ATTN_OK; l++)
        status = move_in_layer(executor, slot, l, error);
    return status;
}

/* ---- Shared prefixes ------------------------------------------------------------------------- */

/* The hints of shared prefixes in the batch that was filled last. */
static struct report_shared shared_in_batch(const struct executor *executor,
                                            const struct batch_step *step)
{
    const struct forward_batch *batch = &executor->batch;
    struct report_shared shared = {.keys = 0};
    if (step->mode != ATTN_MODE_DECODE || !batch->params.tells_shared)
        return shared;
    if (batch->batch.num_prefix_levels > 0) {
        shared.rows = batch->shared.shared_rows;
        shared.saved_keys = batch->shared.saved_keys;
    }
    for (int32_t s = 0; s < step->num_sequences; s++)
        shared.keys += step->sequences[s].prefix_len + step->sequences[s].num_new;
    return shared;
}

static void add_shared(struct report_shared *sum, const struct report_shared *shared)
{
    sum->rows += shared->rows;
    sum->saved_keys += shared->saved_keys;
    sum->keys += shared->keys;
}

/* ---- Submit ---------------------------------------------------------------------------------- */

static attn_status run_eagerly(struct executor *executor, const struct batch_step *step,
                               struct flight *flight, attn_error *error)
{
    struct layers_run run = {.metadata = executor->eager, .step = step, .flight = flight};
    int64_t start = clock_now_ns();
    attn_status status = executor_plan(executor, executor->eager, error);
    flight->forward_ns += clock_now_ns() - start;
    if (status == ATTN_OK)
        status = executor_prefix_list(executor, step, flight, error);
    return status == ATTN_OK ? executor_run_layers(executor, &run, error) : status;
}

static attn_status replay(struct executor *executor, const struct graph_entry *entry,
                          struct flight *flight, attn_error *error)
{
    int64_t start = clock_now_ns();
    attn_status status = executor_plan(executor, entry->metadata, error);
    if (status == ATTN_OK)
        status =
            device_graph_launch(executor->params.device, entry->graph, executor->stream, error);
    flight->forward_ns += clock_now_ns() - start;
    return status;
}

/* All work of a step. */
static attn_status enqueue(struct executor *executor, const struct batch_step *step,
                           const struct graph_entry *entry, struct flight *flight,
                           attn_error *error)
{
    const struct device *device = executor->params.device;
    uint32_t slot = (uint32_t)(flight - executor->flights);
    attn_status status =
        forward_batch_upload(&executor->batch, slot, executor->kernels, executor->stream, error);
    if (status == ATTN_OK)
        status = executor_rows_list(executor, flight, step, error);
    if (status == ATTN_OK)
        status = device_event_record(device, flight->start, executor->stream, error);
    if (status == ATTN_OK)
        status = entry ? replay(executor, entry, flight, error)
                       : run_eagerly(executor, step, flight, error);
    if (status == ATTN_OK)
        status = move_accepted(executor, slot, error);
    if (status == ATTN_OK)
        status = executor_rows_fetch(executor, flight, error);
    if (status == ATTN_OK)
        status = device_event_record(device, flight->end, executor->stream, error);
    return status;
}

attn_status executor_submit(struct executor *executor, const struct batch_step *step,
                            attn_error *error)
{
    int64_t start = clock_now_ns();
    uint32_t slot = (executor->first + executor->in_flight) % executor->num_flights;
    struct flight *flight = &executor->flights[slot];
    const struct graph_entry *entry = graph_runner_find(executor, step);
    struct batch_step padded = *step;
    padded.padded = entry ? entry->size : 0;
    padded.tells_shared = entry && entry->tells_shared;
    padded.seq_len_fill = executor->graphs.seq_len_fill;
    flight->mode = step->mode;
    flight->forward_ns = 0;
    attn_status status = device_enter(executor->params.device, error); /* once for all layers */
    if (status != ATTN_OK)
        return status;
    status = forward_batch_fill(&executor->batch, slot, &padded, error);
    flight->shared = shared_in_batch(executor, step);
    if (status == ATTN_OK)
        status = enqueue(executor, &padded, entry, flight, error);
    device_leave(executor->params.device);
    flight->submit_ns = clock_now_ns() - start;
    if (status == ATTN_OK)
        executor->in_flight++;
    else if (status != ATTN_DEVICE_LOST) /* its staging block is used again for the next step */
        device_synchronize(executor->params.device, executor->stream, NULL);
    return status;
}

/* ---- Finish ---------------------------------------------------------------------------------- */

/* Wait for a step and judge its rows, unless that was done. */
static attn_status settle(struct executor *executor, struct flight *flight, attn_error *error)
{
    if (flight->settled)
        return ATTN_OK;
    attn_status status = device_event_synchronize(executor->params.device, flight->end, error);
    if (status != ATTN_OK)
        return status;
    flight->settled = true;
    return executor_rows_judge(executor, flight, error);
}

attn_status executor_settle_earlier(struct executor *executor, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t i = 0; i < executor->in_flight && status == ATTN_OK; i++)
        status = settle(executor, &executor->flights[(executor->first + i) % executor->num_flights],
                        error);
    return status;
}

/* On the CPU a step's duration is that of the backends' work alone; on a device that works by
 * itself it is the device's for the whole step, and the host's own work is reported next to it. */
static attn_status add_times(struct executor *executor, const struct flight *flight,
                             int64_t *step_ns, attn_error *error)
{
    struct report *report = executor->params.report;
    bool decode = model_mode_decodes(flight->mode);
    struct report_times *steps = decode ? &report->decode : &report->prefill;
    *step_ns = flight->forward_ns;
    if (executor_on_cpu(executor))
        return report_add_time(steps, *step_ns, error);
    double microseconds;
    attn_status status = device_event_elapsed(executor->params.device, flight->start, flight->end,
                                              &microseconds, error);
    if (status == ATTN_OK)
        status = report_add_time(steps, *step_ns = (int64_t)(microseconds * 1000), error);
    if (status == ATTN_OK)
        status = report_add_time(decode ? &report->host.decode : &report->host.prefill,
                                 flight->submit_ns, error);
    if (status == ATTN_OK)
        status =
            report_add_time(decode ? &report->host.decode_launch : &report->host.prefill_launch,
                            flight->forward_ns, error);
    return status;
}

attn_status executor_finish(struct executor *executor, int64_t *step_ns, attn_error *error)
{
    int64_t unused;
    struct flight *flight = &executor->flights[executor->first];
    attn_status status = settle(executor, flight, error);
    executor->first = (executor->first + 1) % executor->num_flights;
    executor->in_flight--;
    if (status == ATTN_OK)
        add_shared(&executor->params.report->shared, &flight->shared);
    return status == ATTN_OK ? add_times(executor, flight, step_ns ? step_ns : &unused, error)
                             : status;
}

uint32_t executor_in_flight(const struct executor *executor)
{
    return executor->in_flight;
}

/* ---- Report ---------------------------------------------------------------------------------- */

/* "NAME/PATH" for each path that had rows, and NAME for rows without a path. */
static attn_status report_node(struct report *report, const attnhost_backend *backend,
                               uint32_t index, attn_error *error)
{
    attnhost_node_info node = {.struct_size = sizeof node};
    attn_status status = attnhost_backend_node(backend, index, &node, error);
    if (status != ATTN_OK || node.num_children > 0)
        return status;
    int64_t others = node.rows;
    for (uint32_t p = 0; p < node.num_paths && status == ATTN_OK; p++) {
        char name[160];
        attnhost_code_path_info path = {.struct_size = sizeof path};
        status = attnhost_backend_code_path(backend, index, p, &path, error);
        if (status != ATTN_OK || path.rows == 0)
            continue;
        snprintf(name, sizeof name, "%s/%s", node.name, path.name);
        status = report_add_rows(report, name, path.rows, error);
        others -= path.rows;
    }
    return status == ATTN_OK && (others > 0 || node.rows == 0)
               ? report_add_rows(report, node.name, others, error)
               : status;
}

attn_status executor_report(struct executor *executor, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t u = 0; u < executor->num_units && status == ATTN_OK; u++) {
        const attnhost_backend *backend = executor->units[u].backend;
        uint32_t nodes = attnhost_backend_num_nodes(backend);
        for (uint32_t n = 0; n < nodes && status == ATTN_OK; n++)
            status = report_node(executor->params.report, backend, n, error);
    }
    return status;
}
