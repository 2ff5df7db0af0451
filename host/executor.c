/* SPDX-License-Identifier: Apache-2.0
 *
 * executor.c: a step: operands, vectors, forwards, times.
 */
#include "host/executor_private.h"

#include <stdlib.h>
#include <string.h>

#include "host/clock.h"
#include "host/error.h"

/* ---- Operands -------------------------------------------------------------------------------- */

/* Dense [rows, heads, dim] in the memory of a step. */
static void view_rows(const struct executor *executor, void *memory, int64_t rows, int32_t heads,
                      int32_t dim, attn_tensor *tensor)
{
    const struct device *device = executor->params.device;
    *tensor = (attn_tensor){
        .struct_size = sizeof *tensor,
        .data = memory,
        .device_type = device->type,
        .device_id = device->id,
        .dtype = executor->params.model->dtype,
        .ndim = 3,
        .alignment = EXECUTOR_ALIGNMENT,
        .shape = {rows, heads, dim},
        .strides = {(int64_t)heads * dim, dim, 1},
    };
}

/* A vector of per-head constants. */
static void view_heads(const struct executor *executor, float *values, int32_t heads,
                       attn_tensor *tensor)
{
    *tensor = (attn_tensor){
        .struct_size = sizeof *tensor,
        .flags = ATTN_TENSOR_READ_ONLY,
        .data = values,
        .device_type = executor->params.device->type,
        .device_id = executor->params.device->id,
        .dtype = ATTN_F32,
        .ndim = 1,
        .alignment = sizeof(float),
        .shape = {heads},
        .strides = {1},
    };
}

/* One layer's operands; entries of `operands` point into the struct. */
struct layer_operands {
    attn_tensor q, k, v, out, sinks, slopes;
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    const attn_scale *scales[ATTN_ROLE_COUNT];
    attn_forward_args args;
    bool writes_kv;
};

static void set_constants(const struct executor *executor, int32_t l, const attn_layer_group *group,
                          struct layer_operands *o)
{
    float *sinks = executor->constants + (int64_t)l * executor->constants_stride;
    float *slopes =
        sinks + (int64_t)executor->params.model->num_layers * executor->constants_stride;
    if (group->flags & ATTN_GROUP_HAS_SINKS) {
        view_heads(executor, sinks, group->num_q_heads, &o->sinks);
        o->operands[ATTN_ROLE_SINKS] = &o->sinks;
    }
    if (group->flags & ATTN_GROUP_HAS_ALIBI) {
        view_heads(executor, slopes, group->num_q_heads, &o->slopes);
        o->operands[ATTN_ROLE_ALIBI_SLOPES] = &o->slopes;
    }
}

static void set_operands(struct executor *executor, int32_t l, int64_t rows, uint32_t flags,
                         struct layer_operands *o)
{
    const struct executor_params *p = &executor->params;
    const struct model_layer *layer = &p->model->layers[l];
    const attn_layer_group *group = &p->model->groups[layer->group];
    const attn_layer *ids = attn_at(group->layers, layer->index);
    const struct kv_pool_buffer *buffer = &p->pool->buffers[layer->kv_buffer];
    memset(o, 0, sizeof *o);
    o->writes_kv = !(ids->flags & ATTN_LAYER_KV_READ_ONLY);
    view_rows(executor, executor->q, rows, group->num_q_heads, group->head_dim, &o->q);
    view_rows(executor, executor->out, rows, group->num_q_heads, group->v_head_dim, &o->out);
    view_rows(executor, executor->k, rows, group->num_kv_heads, group->head_dim, &o->k);
    view_rows(executor, executor->v, rows, group->num_kv_heads, group->v_head_dim, &o->v);
    o->operands[ATTN_ROLE_Q] = &o->q;
    o->operands[ATTN_ROLE_OUT] = &o->out;
    o->operands[ATTN_ROLE_K] = o->writes_kv ? &o->k : NULL;
    o->operands[ATTN_ROLE_V] = o->writes_kv ? &o->v : NULL;
    o->operands[ATTN_ROLE_K_CACHE] = &buffer->key;
    o->operands[ATTN_ROLE_V_CACHE] = &buffer->value;
    set_constants(executor, l, group, o);
    if (executor->k_scale.count > 0) {
        o->scales[ATTN_ROLE_K_CACHE] = &executor->k_scale;
        o->scales[ATTN_ROLE_V_CACHE] = &executor->v_scale;
    }
    o->args = (attn_forward_args){
        .struct_size = sizeof o->args,
        .flags = flags | (o->writes_kv ? ATTN_FORWARD_SAVE_KV : 0),
        .num_operands = ATTN_ROLE_COUNT,
        .num_scales = ATTN_ROLE_COUNT,
        .operands = o->operands,
        .scales = o->scales,
    };
}

/* ---- Layers ---------------------------------------------------------------------------------- */

static int32_t unit_of(const struct executor *executor, int32_t layer)
{
    const struct executor_params *p = &executor->params;
    return p->selection->groups[p->model->layers[layer].group].unit;
}

/* Enqueue what a layer reads: its vectors; and poison where it writes, as a row that is not written
 * must not pass for the one that stood there before. */
static attn_status make_inputs(struct executor *executor, int32_t layer,
                               const struct layer_operands *o, const struct step_output *output,
                               attn_error *error)
{
    struct step_vectors vectors = {
        .q = executor->q,
        .k = o->writes_kv ? executor->k : NULL,
        .v = o->writes_kv ? executor->v : NULL,
        .dtype = executor->params.model->dtype,
    };
    attn_status status = step_kernels_generate(executor->kernels, layer, &executor->batch.rows,
                                               &vectors, executor->stream, error);
    if (status != ATTN_OK || executor->params.config->verify.rate <= 0)
        return status;
    uint64_t bytes = (uint64_t)executor->batch.rows.count * (uint64_t)output->row_elements *
                     attn_dtype_size(output->dtype);
    return device_fill(executor->params.device, executor->out, 0xFF, bytes, executor->stream,
                       error);
}

static attn_status forward(struct executor *executor, const struct layers_run *run, int32_t layer,
                           const struct layer_operands *o, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    if (p->probe && run->step)
        p->probe(p->probe_ctx, run->step, layer, &o->q, &o->k, &o->v);
    int64_t start = clock_now_ns();
    attn_status status = attnhost_forward(run->metadata[unit_of(executor, layer)], layer, &o->args,
                                          executor->stream, error);
    if (run->flight)
        run->flight->forward_ns += clock_now_ns() - start;
    return status;
}

static attn_status run_layer(struct executor *executor, const struct layers_run *run, int32_t layer,
                             attn_error *error)
{
    struct layer_operands operands;
    set_operands(executor, layer, executor->batch.rows.count, run->flags, &operands);
    const struct step_output output = {executor->out, operands.out.dtype, operands.out.strides[0]};
    attn_status status = ATTN_OK;
    if (run->flight)
        status = executor_rows_make_room(executor, run->flight, layer, error);
    if (status == ATTN_OK)
        status = make_inputs(executor, layer, &operands, &output, error);
    if (status == ATTN_OK)
        status = forward(executor, run, layer, &operands, error);
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
        status = run_layer(executor, run, (int32_t)l, error);
    return status;
}

attn_status executor_plan(struct executor *executor, attnhost_metadata *const *metadata,
                          attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t u = 0; u < executor->num_units && status == ATTN_OK; u++)
        status = attnhost_init_forward_metadata(metadata[u], &executor->batch.batch,
                                                executor->stream, error);
    return status;
}

/* ---- Submit ---------------------------------------------------------------------------------- */

static attn_status run_eagerly(struct executor *executor, const struct batch_step *step,
                               struct flight *flight, attn_error *error)
{
    struct layers_run run = {.metadata = executor->eager, .step = step, .flight = flight};
    int64_t start = clock_now_ns();
    attn_status status = executor_plan(executor, executor->eager, error);
    flight->forward_ns += clock_now_ns() - start;
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

/* Everything that a step enqueues. */
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
    padded.seq_len_fill = executor->graphs.seq_len_fill;
    flight->mode = step->mode;
    flight->forward_ns = 0;
    attn_status status = device_enter(executor->params.device, error); /* once for all layers */
    if (status != ATTN_OK)
        return status;
    status = forward_batch_fill(&executor->batch, slot, &padded, error);
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
 * itself it is the device's for the whole step, and the host's own work is told beside it. */
static attn_status add_times(struct executor *executor, const struct flight *flight,
                             attn_error *error)
{
    struct report *report = executor->params.report;
    bool decode = flight->mode == ATTN_MODE_DECODE;
    struct report_times *steps = decode ? &report->decode : &report->prefill;
    if (executor_on_cpu(executor))
        return report_add_time(steps, flight->forward_ns, error);
    double microseconds;
    attn_status status = device_event_elapsed(executor->params.device, flight->start, flight->end,
                                              &microseconds, error);
    if (status == ATTN_OK)
        status = report_add_time(steps, (int64_t)(microseconds * 1000), error);
    if (status == ATTN_OK)
        status = report_add_time(decode ? &report->host.decode : &report->host.prefill,
                                 flight->submit_ns, error);
    if (status == ATTN_OK)
        status =
            report_add_time(decode ? &report->host.decode_launch : &report->host.prefill_launch,
                            flight->forward_ns, error);
    return status;
}

attn_status executor_finish(struct executor *executor, attn_error *error)
{
    struct flight *flight = &executor->flights[executor->first];
    attn_status status = settle(executor, flight, error);
    executor->first = (executor->first + 1) % executor->num_flights;
    executor->in_flight--;
    return status == ATTN_OK ? add_times(executor, flight, error) : status;
}

uint32_t executor_in_flight(const struct executor *executor)
{
    return executor->in_flight;
}

/* ---- Report ---------------------------------------------------------------------------------- */

attn_status executor_report(struct executor *executor, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t u = 0; u < executor->num_units && status == ATTN_OK; u++) {
        attnhost_backend *backend = executor->units[u].backend;
        uint32_t nodes = attnhost_backend_num_nodes(backend);
        for (uint32_t n = 0; n < nodes && status == ATTN_OK; n++) {
            attnhost_node_info node = {.struct_size = sizeof node};
            status = attnhost_backend_node(backend, n, &node, error);
            if (status == ATTN_OK && node.num_children == 0)
                status =
                    report_add_rows(executor->params.report, node.name, (int64_t)node.rows, error);
        }
    }
    return status;
}
