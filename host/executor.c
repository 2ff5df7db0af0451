/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of a step: q, k, v and out of one layer, for the widest layer and the largest step; they
 * are made again for each layer, so host memory never holds more than one layer's vectors.
 */
#include "host/executor.h"

#include <stdlib.h>
#include <string.h>

#include "host/clock.h"
#include "host/error.h"
#include "host/problem.h"
#include "host/sample.h"

#define ALIGNMENT     256u
#define ROWS_PER_TASK 64

/* A composed backend. */
struct unit {
    attnhost_backend *backend;
    attnhost_metadata *metadata;
    uint32_t index_forms;
};

/* What a layer is called with besides q, k, v and out. */
struct layer_constants {
    float *sinks;  /* [num_q_heads], or NULL */
    float *slopes; /* likewise */
};

/* Scales of one layer group's cache. */
struct group_scales {
    float *k, *v; /* one value, or one for each KV head; NULL if the cache needs none */
    uint32_t count;
    attn_scale k_scale, v_scale;
};

struct executor {
    struct executor_params params;
    uint32_t num_units;
    struct unit *units;
    struct layer_constants *layers; /* [model.num_layers] */
    struct group_scales *scales;    /* [model.num_groups] */
    struct verify_scales *verify_scales;
    uint32_t *reads_new_unquantised;
    struct verifier *verifier;
    struct digest digest;
    int64_t rows_checked;

    /* Of the step at hand */
    struct forward_batch batch;
    void *q, *k, *v, *out; /* [max_tokens, widest] */
    token_key *row_keys;   /* [max_tokens] */
    int64_t *row_requests, *row_positions;
    uint8_t *row_is_first; /* nobody computed this row of the request before */
    int32_t *sampled;
    struct verify_sequence *sequences;
    uint8_t **computed; /* [num_requests] bit for each position; NULL = none yet */
};

/* ---- Create -----------------------------------------------------------------------------------
 */

static attn_status out_of_memory(attn_error *error, const char *what)
{
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for %s", what);
}

/* The numbers of kv_cache.k_scale or v_scale as floats. */
static float *copy_scales(const struct config_doubles *scales)
{
    float *values = calloc(scales->count ? scales->count : 1, sizeof *values);
    for (size_t i = 0; values && i < scales->count; i++)
        values[i] = (float)scales->items[i];
    return values;
}

static attn_status make_group_scales(struct executor *executor, uint32_t g, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    struct group_scales *scales = &executor->scales[g];
    attn_dtype kv_dtype = problem_kv_dtype(p->config, p->model);
    executor->verify_scales[g] = (struct verify_scales){.kv_dtype = kv_dtype};
    if (p->config->kv_cache.k_scale.count == 0)
        return ATTN_OK;
    scales->k = copy_scales(&p->config->kv_cache.k_scale);
    scales->v = copy_scales(&p->config->kv_cache.v_scale);
    if (!scales->k || !scales->v)
        return out_of_memory(error, "scales");
    scales->count = (uint32_t)p->config->kv_cache.k_scale.count;
    scales->k_scale = (attn_scale){
        .struct_size = sizeof(attn_scale),
        .granularity = scales->count > 1 ? ATTN_SCALE_PER_HEAD : ATTN_SCALE_PER_TENSOR,
        .count = scales->count,
        .host = scales->k,
    };
    scales->v_scale = scales->k_scale;
    scales->v_scale.host = scales->v;
    executor->verify_scales[g] =
        (struct verify_scales){kv_dtype, scales->k, scales->v, scales->count};
    return ATTN_OK;
}

static attn_status make_layer_constants(struct executor *executor, uint32_t l, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    const attn_layer_group *group = &p->model->groups[p->model->layers[l].group];
    struct layer_constants *constants = &executor->layers[l];
    size_t heads = (size_t)group->num_q_heads;
    constants->sinks = calloc(heads, sizeof *constants->sinks);
    constants->slopes = calloc(heads, sizeof *constants->slopes);
    if (!constants->sinks || !constants->slopes)
        return out_of_memory(error, "sinks and slopes");
    for (int32_t h = 0; h < group->num_q_heads; h++) {
        constants->sinks[h] = generator_sink(p->generator, (int32_t)l, h);
        constants->slopes[h] = generator_alibi_slope(h, group->num_q_heads);
    }
    return ATTN_OK;
}

/* Pose the problems of a unit's groups once more, for create. */
static attn_status compose_unit(struct executor *executor, const struct select_unit *chosen,
                                struct unit *unit, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    struct problem *posed = calloc(chosen->num_groups, sizeof *posed);
    attn_problem *problems = calloc(chosen->num_groups, sizeof *problems);
    attn_status status = ATTN_OK;
    if (!posed || !problems) {
        status = out_of_memory(error, "problems");
        goto release;
    }
    for (uint32_t i = 0; i < chosen->num_groups; i++) {
        uint32_t g = chosen->groups[i];
        const struct select_group *group = &p->selection->groups[g];
        problem_init(&posed[i], p->config, p->model, g, &p->selection->device, chosen->modes,
                     group->kv_layout ? group->kv_layout : group->state_layout);
        problems[i] = posed[i].problem;
    }
    status = attnhost_compose(p->host, chosen->backend, problems, chosen->num_groups,
                              &unit->backend, error);
    if (status == ATTN_OK)
        status = attnhost_backend_prepare(unit->backend, NULL, NULL, error);
    if (status == ATTN_OK) {
        attn_bounds bounds = p->bounds;
        bounds.modes = chosen->modes;
        unit->index_forms = attnhost_backend_index_forms(unit->backend);
        status = attnhost_metadata_create(unit->backend, ATTN_METADATA_EAGER, &bounds, NULL,
                                          &unit->metadata, error);
    }
release:
    free(problems);
    free(posed);
    return status;
}

/* Bytes of the widest row of a kind of operand, over all groups. */
static size_t widest(const struct model *model, int values, int queries)
{
    size_t most = 1;
    for (uint32_t g = 0; g < model->num_groups; g++) {
        const attn_layer_group *group = &model->groups[g];
        size_t heads = (size_t)(queries ? group->num_q_heads : group->num_kv_heads);
        size_t elements = heads * (size_t)(values ? group->v_head_dim : group->head_dim);
        most = elements > most ? elements : most;
    }
    return most * attn_dtype_size(model->dtype);
}

static attn_status allocate_step(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    size_t tokens = (size_t)p->bounds.max_tokens, seqs = (size_t)p->bounds.max_seqs;
    executor->q =
        device_allocate(p->device, ATTN_SPACE_DEVICE, tokens * widest(p->model, 0, 1), ALIGNMENT);
    executor->k =
        device_allocate(p->device, ATTN_SPACE_DEVICE, tokens * widest(p->model, 0, 0), ALIGNMENT);
    executor->v =
        device_allocate(p->device, ATTN_SPACE_DEVICE, tokens * widest(p->model, 1, 0), ALIGNMENT);
    executor->out =
        device_allocate(p->device, ATTN_SPACE_DEVICE, tokens * widest(p->model, 1, 1), ALIGNMENT);
    executor->row_keys = calloc(tokens, sizeof *executor->row_keys);
    executor->row_requests = calloc(tokens, sizeof *executor->row_requests);
    executor->row_positions = calloc(tokens, sizeof *executor->row_positions);
    executor->row_is_first = calloc(tokens, 1);
    executor->sampled = calloc(tokens, sizeof *executor->sampled);
    executor->sequences = calloc(seqs, sizeof *executor->sequences);
    executor->computed = calloc((size_t)p->workload->num_requests + 1, sizeof *executor->computed);
    if (!executor->q || !executor->k || !executor->v || !executor->out || !executor->row_keys ||
        !executor->row_requests || !executor->row_positions || !executor->row_is_first ||
        !executor->sampled || !executor->sequences || !executor->computed)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for steps of %zu tokens",
                         tokens);
    return ATTN_OK;
}

static attn_status make_verifier(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    for (uint32_t g = 0; g < p->model->num_groups; g++)
        executor->reads_new_unquantised[g] =
            p->selection->groups[g].verdict.reads_new_kv_unquantised;
    struct verify_params params = {
        .model = p->model,
        .workload = p->workload,
        .generator = p->generator,
        .scales = executor->verify_scales,
        .reads_new_unquantised = executor->reads_new_unquantised,
        .threads = p->threads,
    };
    return verifier_create(&params, &executor->verifier, error);
}

static attn_status allocate_tables(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    uint32_t units = p->selection->num_units, groups = p->model->num_groups;
    executor->units = calloc(units ? units : 1, sizeof *executor->units);
    executor->layers = calloc(p->model->num_layers, sizeof *executor->layers);
    executor->scales = calloc(groups, sizeof *executor->scales);
    executor->verify_scales = calloc(groups, sizeof *executor->verify_scales);
    executor->reads_new_unquantised = calloc(groups, sizeof *executor->reads_new_unquantised);
    if (!executor->units || !executor->layers || !executor->scales || !executor->verify_scales ||
        !executor->reads_new_unquantised)
        return out_of_memory(error, "the executor");
    return ATTN_OK;
}

/* All that needs memory or a backend; on failure executor_destroy() takes back what there is. */
static attn_status build(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    attn_status status = allocate_tables(executor, error);
    for (uint32_t g = 0; status == ATTN_OK && g < p->model->num_groups; g++)
        status = make_group_scales(executor, g, error);
    for (uint32_t l = 0; status == ATTN_OK && l < p->model->num_layers; l++)
        status = make_layer_constants(executor, l, error);
    uint32_t forms = 0;
    for (uint32_t u = 0; status == ATTN_OK && u < p->selection->num_units; u++) {
        executor->num_units = u + 1;
        status = compose_unit(executor, &p->selection->units[u], &executor->units[u], error);
        forms |= executor->units[u].index_forms;
    }
    struct forward_batch_params batch = {
        .max_seqs = p->bounds.max_seqs,
        .max_tokens = p->bounds.max_tokens,
        .max_kv_tokens = p->bounds.max_kv_tokens,
        .max_kv_len = p->bounds.max_kv_len,
        .page_size = (int32_t)p->config->kv_cache.page_size,
        .index_forms = forms,
    };
    if (status == ATTN_OK)
        status = forward_batch_init(&executor->batch, &batch, error);
    if (status == ATTN_OK)
        status = allocate_step(executor, error);
    if (status == ATTN_OK)
        status = make_verifier(executor, error);
    return status;
}

attn_status executor_create(const struct executor_params *params, struct executor **executor,
                            attn_error *error)
{
    struct executor *made = calloc(1, sizeof *made);
    if (!made)
        return out_of_memory(error, "the executor");
    made->params = *params;
    digest_init(&made->digest);
    attn_status status = build(made, error);
    if (status != ATTN_OK)
        executor_destroy(made);
    else
        *executor = made;
    return status;
}

static void release_step(struct executor *executor)
{
    const struct executor_params *p = &executor->params;
    void *operands[] = {executor->q, executor->k, executor->v, executor->out};
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++)
        device_release(p->device, ATTN_SPACE_DEVICE, operands[i]);
    for (int64_t r = 0; executor->computed && r < p->workload->num_requests; r++)
        free(executor->computed[r]);
    free(executor->computed);
    free(executor->sequences);
    free(executor->sampled);
    free(executor->row_is_first);
    free(executor->row_positions);
    free(executor->row_requests);
    free(executor->row_keys);
    forward_batch_finish(&executor->batch);
}

void executor_destroy(struct executor *executor)
{
    if (!executor)
        return;
    const struct model *model = executor->params.model;
    for (uint32_t u = executor->num_units; u-- > 0;) {
        attnhost_metadata_destroy(executor->units[u].metadata);
        attnhost_backend_destroy(executor->units[u].backend);
    }
    release_step(executor);
    verifier_destroy(executor->verifier);
    digest_finish(&executor->digest, NULL);
    for (uint32_t l = 0; executor->layers && l < model->num_layers; l++) {
        free(executor->layers[l].sinks);
        free(executor->layers[l].slopes);
    }
    for (uint32_t g = 0; executor->scales && g < model->num_groups; g++) {
        free(executor->scales[g].k);
        free(executor->scales[g].v);
    }
    free(executor->reads_new_unquantised);
    free(executor->verify_scales);
    free(executor->scales);
    free(executor->layers);
    free(executor->units);
    free(executor);
}

/* ---- Rows of a step ---------------------------------------------------------------------------
 */

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
                return out_of_memory(error, "marks of computed rows");
            executor->row_requests[row] = step->requests[s];
            executor->row_positions[row] = position;
            executor->row_is_first[row] = (uint8_t)first;
        }
    }
    return ATTN_OK;
}

/* ---- Operands ---------------------------------------------------------------------------------
 */

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
        .alignment = ALIGNMENT,
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

/* ---- Vectors ----------------------------------------------------------------------------------
 */

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

/* ---- Sampled rows -----------------------------------------------------------------------------
 */

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

/* ---- A step -----------------------------------------------------------------------------------
 */

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
    if (p->probe)
        p->probe(p->probe_ctx, step, layer, &operands.q, &operands.k, &operands.v);
    int64_t start = clock_now_ns();
    status =
        attnhost_forward(unit_of(executor, layer)->metadata, layer, &operands.args, NULL, error);
    *ns += clock_now_ns() - start;
    if (status != ATTN_OK)
        return host_fail_prefix(error, "layer %d", layer), status;
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
