/* SPDX-License-Identifier: Apache-2.0
 *
 * executor.c: a step: rows, operands, vectors, forwards, sampled rows.
 */
#include "host/executor_private.h"

#include <stdlib.h>
#include <string.h>

#include "host/clock.h"
#include "host/error.h"
#include "host/sample.h"

#define ROWS_PER_TASK 64

/* ---- Rows of a step -------------------------------------------------------------------------- */

/* Mark the position as computed; was it not before? */
static int mark_computed(struct executor *executor, int64_t request, int64_t position)
{
    uint8_t **bits = &executor->computed[request];
    if (!*bits) {
        const workload_request *r = &executor->params.workload->requests[request];
        *bits = calloc((size_t)(r->input_length + r->output_length) / 8 + 1, 1);
        if (!*bits)
            return -1;
    }
    uint8_t bit = (uint8_t)(1u << position % 8);
    int first = !((*bits)[position / 8] & bit);
    (*bits)[position / 8] |= bit;
    return first;
}

/* Whose row is which, and which of them are computed for the first time. */
static attn_status list_rows(struct executor *executor, const struct executor_step *step,
                             attn_error *error)
{
    int64_t row = 0;
    for (int32_t s = 0; s < step->batch.num_sequences; s++) {
        const struct batch_sequence *sequence = &step->batch.sequences[s];
        executor->sequences[s] = (struct verify_sequence){
            .request = step->requests[s],
            .prefix_len = sequence->prefix_len,
            .num_rows = sequence->num_new,
            .first_row = row,
        };
        workload_token_keys(executor->params.workload, step->requests[s], sequence->prefix_len,
                            sequence->num_new, executor->row_keys + row);
        for (int32_t t = 0; t < sequence->num_new; t++, row++) {
            int64_t position = (int64_t)sequence->prefix_len + t;
            int first = mark_computed(executor, step->requests[s], position);
            if (first < 0)
                return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for marks of rows");
            executor->row_requests[row] = step->requests[s];
            executor->row_positions[row] = position;
            executor->row_is_first[row] = (uint8_t)first;
        }
    }
    return ATTN_OK;
}

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
    int writes_kv;
};

static void set_operands(struct executor *executor, int32_t l, int64_t rows,
                         struct layer_operands *o)
{
    const struct executor_params *p = &executor->params;
    const struct model_layer *layer = &p->model->layers[l];
    const attn_layer_group *group = &p->model->groups[layer->group];
    const attn_layer *ids = attn_at(group->layers, layer->index);
    const struct kv_pool_buffer *buffer = &p->pool->buffers[layer->kv_buffer];
    struct group_scales *scales = &executor->scales[layer->group];
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
    if (group->flags & ATTN_GROUP_HAS_SINKS) {
        view_heads(executor, executor->layers[l].sinks, group->num_q_heads, &o->sinks);
        o->operands[ATTN_ROLE_SINKS] = &o->sinks;
    }
    if (group->flags & ATTN_GROUP_HAS_ALIBI) {
        view_heads(executor, executor->layers[l].slopes, group->num_q_heads, &o->slopes);
        o->operands[ATTN_ROLE_ALIBI_SLOPES] = &o->slopes;
    }
    if (scales->k) {
        o->scales[ATTN_ROLE_K_CACHE] = &scales->k_scale;
        o->scales[ATTN_ROLE_V_CACHE] = &scales->v_scale;
    }
    o->args = (attn_forward_args){
        .struct_size = sizeof o->args,
        .flags = o->writes_kv ? ATTN_FORWARD_SAVE_KV : 0,
        .num_operands = ATTN_ROLE_COUNT,
        .num_scales = ATTN_ROLE_COUNT,
        .operands = o->operands,
        .scales = o->scales,
    };
}

/* ---- Vectors --------------------------------------------------------------------------------- */

struct fill {
    const struct executor *executor;
    const struct layer_operands *operands;
    int32_t layer;
    int64_t rows;
};

static generator_tensor rows_from(const attn_tensor *tensor, int64_t row)
{
    uint32_t size = attn_dtype_size(tensor->dtype);
    return (generator_tensor){
        .data = (char *)tensor->data + row * tensor->strides[0] * size,
        .dtype = tensor->dtype,
        .token_stride = tensor->strides[0],
        .head_stride = tensor->strides[1],
    };
}

static attn_status fill_task(void *arg, int64_t task, uint32_t worker)
{
    (void)worker;
    const struct fill *fill = arg;
    const struct executor *executor = fill->executor;
    const struct executor_params *p = &executor->params;
    int64_t first = task * ROWS_PER_TASK, last = first + ROWS_PER_TASK;
    if (last > fill->rows)
        last = fill->rows;
    if (fill->operands->writes_kv) {
        generator_tensor k = rows_from(&fill->operands->k, first);
        generator_tensor v = rows_from(&fill->operands->v, first);
        generator_fill_kv(p->generator, executor->row_keys + first, last - first, fill->layer,
                          GENERATOR_KEY, &k);
        generator_fill_kv(p->generator, executor->row_keys + first, last - first, fill->layer,
                          GENERATOR_VALUE, &v);
    }
    for (int64_t row = first; row < last; row++) {
        generator_tensor q = rows_from(&fill->operands->q, row);
        generator_fill_query(p->generator, p->workload, executor->row_requests[row],
                             executor->row_positions[row], 1, fill->layer, &q);
    }
    return ATTN_OK;
}

static attn_status fill_vectors(const struct executor *executor, int32_t layer, int64_t rows,
                                const struct layer_operands *operands, attn_error *error)
{
    struct fill fill = {executor, operands, layer, rows};
    attn_status status = threads_for(executor->params.threads,
                                     (rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK, fill_task, &fill);
    return status == ATTN_OK ? ATTN_OK : host_fail(error, status, "making vectors failed");
}

/* ---- Sampled rows ---------------------------------------------------------------------------- */

/* Which rows of this layer are sampled, sequence by sequence; the rows computed for the first time
 * enter the digest and the count. */
static attn_status sample_rows(struct executor *executor, const struct executor_step *step,
                               int32_t layer, const attn_tensor *out, attn_error *error)
{
    const struct config *config = executor->params.config;
    size_t row_bytes = (size_t)out->strides[0] * attn_dtype_size(out->dtype);
    int64_t count = 0;
    for (int32_t s = 0; s < step->batch.num_sequences; s++) {
        struct verify_sequence *sequence = &executor->sequences[s];
        sequence->first_sampled = count;
        for (int32_t t = 0; t < sequence->num_rows; t++) {
            int64_t row = sequence->first_row + t, position = sequence->prefix_len + t;
            if (!sample_row(config->workload.seed, sequence->request, position, layer,
                            config->verify.rate))
                continue;
            executor->sampled[count++] = t;
            if (!executor->row_is_first[row])
                continue;
            executor->rows_checked++;
            attn_status status =
                digest_add(&executor->digest, sequence->request, position, layer,
                           (const char *)out->data + (size_t)row * row_bytes, row_bytes, error);
            if (status != ATTN_OK)
                return status;
        }
        sequence->num_sampled = count - sequence->first_sampled;
    }
    return ATTN_OK;
}

static attn_status check_rows(struct executor *executor, const struct executor_step *step,
                              int32_t layer, const attn_tensor *out, attn_error *error)
{
    if (executor->params.config->verify.rate <= 0)
        return ATTN_OK;
    attn_status status = sample_rows(executor, step, layer, out, error);
    struct verify_step verify = {
        .mode = step->batch.mode,
        .num_sequences = step->batch.num_sequences,
        .sequences = executor->sequences,
        .sampled = executor->sampled,
    };
    if (status == ATTN_OK)
        status = verifier_check(executor->verifier, &verify, layer, out, error);
    return status;
}

/* ---- A step ---------------------------------------------------------------------------------- */

static struct unit *unit_of(struct executor *executor, int32_t layer)
{
    const struct executor_params *p = &executor->params;
    int32_t unit = p->selection->groups[p->model->layers[layer].group].unit;
    return &executor->units[unit];
}

/* One layer; *ns gets the time of the forward alone. */
static attn_status run_layer(struct executor *executor, const struct executor_step *step,
                             int32_t layer, int64_t *ns, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    int64_t rows = executor->batch.batch.num_tokens;
    struct layer_operands operands;
    set_operands(executor, layer, rows, &operands);
    attn_status status = fill_vectors(executor, layer, rows, &operands, error);
    if (status != ATTN_OK)
        return status;
    /* A row that is not written must not pass for the one that stood there before. */
    if (p->config->verify.rate > 0)
        status = device_fill(p->device, executor->out, 0xFF,
                             (uint64_t)rows * (uint64_t)operands.out.strides[0] *
                                 attn_dtype_size(operands.out.dtype),
                             NULL, error);
    if (status != ATTN_OK)
        return status;
    if (p->probe)
        p->probe(p->probe_ctx, step, layer, &operands.q, &operands.k, &operands.v);
    int64_t start = clock_now_ns();
    status =
        attnhost_forward(unit_of(executor, layer)->metadata, layer, &operands.args, NULL, error);
    *ns += clock_now_ns() - start;
    if (status != ATTN_OK)
        return status;
    return check_rows(executor, step, layer, &operands.out, error);
}

/* The rows that each place of the composition computed since the last call. */
static attn_status count_paths(struct executor *executor, struct report *report, attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t u = 0; u < executor->num_units && status == ATTN_OK; u++) {
        attnhost_backend *backend = executor->units[u].backend;
        uint32_t nodes = attnhost_backend_num_nodes(backend);
        for (uint32_t n = 0; n < nodes && status == ATTN_OK; n++) {
            attnhost_node_info node = {.struct_size = sizeof node};
            status = attnhost_backend_node(backend, n, &node, error);
            if (status == ATTN_OK && node.num_children == 0)
                status = report_add_rows(report, node.name, (int64_t)node.rows, error);
        }
    }
    return status;
}

attn_status executor_run(struct executor *executor, const struct executor_step *step,
                         struct report *report, attn_error *error)
{
    int64_t ns = 0;
    attn_status status = forward_batch_build(&executor->batch, &step->batch, error);
    if (status == ATTN_OK)
        status = list_rows(executor, step, error);
    if (status != ATTN_OK || step->batch.num_sequences == 0)
        return status;
    for (uint32_t u = 0; u < executor->num_units && status == ATTN_OK; u++) {
        int64_t start = clock_now_ns();
        status = attnhost_init_forward_metadata(executor->units[u].metadata, &executor->batch.batch,
                                                NULL, error);
        ns += clock_now_ns() - start;
    }
    for (uint32_t l = 0; l < executor->params.model->num_layers && status == ATTN_OK; l++)
        status = run_layer(executor, step, (int32_t)l, &ns, error);
    if (status != ATTN_OK)
        return status;
    int is_decode = step->batch.mode == ATTN_MODE_DECODE;
    return report_add_time(is_decode ? &report->decode : &report->prefill, ns, error);
}

attn_status executor_report(struct executor *executor, struct report *report, attn_error *error)
{
    struct verify_result result;
    verifier_result(executor->verifier, &result);
    report->verify.rows_checked = executor->rows_checked;
    report->verify.rows_failed = result.rows_failed;
    report->verify.max_abs_err = result.max_abs_error;
    report->verify.max_rel_err = result.max_rel_error;
    memcpy(report->verify.first_failure, result.first_failure, sizeof result.first_failure);
    digest_finish(&executor->digest, report->digest);
    return count_paths(executor, report, error);
}
