/* SPDX-License-Identifier: Apache-2.0
 *
 * instance.c: instances and metadata of a backend in Python.
 */
#include "plugins/python/python.h"

#include <stdlib.h>

/* ---- Create ---------------------------------------------------------------------------------- */

/* A layer as _Layer of backend.py takes it. */
static py_object *describe_layer(const attn_util_model_layer *layer,
                                 const struct python_layer *more)
{
    const attn_layer_group *g = &layer->group;
    const int64_t numbers[] = {layer->layer_id,
                               g->num_q_heads,
                               g->num_kv_heads,
                               g->head_dim,
                               g->v_head_dim,
                               g->window_left,
                               g->window_right,
                               g->attention_chunk,
                               g->kv_group,
                               more->page_size,
                               g->kind,
                               g->attn_type,
                               g->flags,
                               more->is_hnd,
                               more->mla.kv_lora_rank,
                               more->mla.rope_dim,
                               more->mla.nope_dim};
    enum { COUNT = sizeof numbers / sizeof numbers[0] };
    py_object *tuple = py.PyTuple_New(COUNT + 3);
    for (int n = 0; n < COUNT; n++)
        python_put(tuple, n, python_int(numbers[n]));
    python_put(tuple, COUNT, py.PyFloat_FromDouble((double)g->sm_scale));
    python_put(tuple, COUNT + 1, py.PyFloat_FromDouble((double)g->logit_cap));
    python_put(tuple, COUNT + 2, python_text(attn_util_dtype_name(layer->dtype)));
    return tuple;
}

/* Data that attn_util_create_model() does not keep. */
static attn_status keep_more(attn_instance *made, const attn_problem *problems,
                             uint32_t num_problems, attn_error *error)
{
    uint32_t next = 0;
    made->layers = calloc(made->model.num_layers, sizeof *made->layers);
    if (!made->layers)
        return attn_util_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for layers");
    for (uint32_t p = 0; p < num_problems; p++) {
        attn_util_question ask; /* in structs of ours: only what the caller's structs have */
        attn_status status =
            attn_util_read_problem((const attn_problem *)attn_at(problems, p), &ask.problem,
                                   &ask.group, &ask.bounds, &ask.device, error);
        if (status != ATTN_OK)
            return status;
        const char *layout = ask.problem.kv_layout;
        made->device_type = ask.device.type;
        made->device_id = ask.device.id;
        for (uint32_t n = 0; n < ask.group.num_layers; n++, next++) {
            struct python_layer *layer = &made->layers[next];
            layer->page_size = ask.problem.page_size;
            layer->has_cache = layout != NULL;
            layer->is_hnd = layout && strcmp(layout, ATTN_LAYOUT_KV_HND) == 0;
            if (ask.group.mla)
                ATTN_UTIL_READ(&layer->mla, ask.group.mla);
        }
    }
    return ATTN_OK;
}

/* The class's own object: (object, convert, is_numpy, None) or a failure, which has three. */
enum { CREATED = 4 };

static attn_status make_object(attn_instance *made, const attn_options *options, attn_error *error)
{
    uint32_t count = made->model.num_layers;
    py_object *layers = py.PyTuple_New(count), *arguments = py.PyTuple_New(5);
    for (uint32_t l = 0; l < count; l++)
        python_put(layers, (int)l, describe_layer(&made->model.layers[l], &made->layers[l]));
    python_put(arguments, 0, layers);
    python_put(arguments, 1, python_options(options));
    python_put(arguments, 2, python_text(attn_device_name(made->device_type)));
    python_put(arguments, 3, python_int(made->device_id));
    python_put(arguments, 4, python_int(made->model.services->num_workers));
    py_object *method = py.PyObject_GetAttrString(made->kind->object, "create");
    py_object *answer = python_call(method, arguments, error);
    py.Py_DecRef(method);
    if (!answer || py.PyTuple_Size(answer) != CREATED)
        return python_status(answer, error);
    made->object = py.PyTuple_GetItem(answer, 0);
    made->convert = py.PyTuple_GetItem(answer, 1);
    made->is_numpy = (int32_t)py.PyLong_AsLongLong(py.PyTuple_GetItem(answer, 2));
    py.Py_IncRef(made->object);
    py.Py_IncRef(made->convert);
    py.Py_DecRef(answer);
    return ATTN_OK;
}

/* Free what lies in cycles of references, which may hold the device's memory or views of the caller's. */
static void collect(const attn_instance *instance)
{
    python_run(instance->kind->object, "collect", py.PyTuple_New(0), NULL);
}

static void destroy(attn_instance *instance)
{
    if (!instance)
        return;
    if (python_is_there()) {
        struct python_lock lock = python_lock();
        if (instance->object)
            python_run(instance->object, "close", py.PyTuple_New(0), NULL);
        py.Py_DecRef(instance->object);
        py.Py_DecRef(instance->convert);
        collect(instance);
        python_unlock(&lock);
    }
    free(instance->layers);
    attn_util_destroy_model(instance);
}

attn_status python_create(const attn_backend_type *type, const attn_problem *problems,
                          uint32_t num_problems, const attn_options *options,
                          const attn_services *services, attn_instance **instance,
                          attn_error *error)
{
    attn_instance *made = NULL;
    attn_status status = attn_util_create_model(type, problems, num_problems, options, services,
                                                sizeof *made, &made, error);
    if (status != ATTN_OK)
        return status;
    made->kind = (const struct python_kind *)(const void *)type;
    status = keep_more(made, problems, num_problems, error);
    if (status == ATTN_OK) {
        struct python_lock lock = python_lock();
        status = make_object(made, options, error);
        python_unlock(&lock);
    }
    if (status == ATTN_OK)
        *instance = made;
    else
        destroy(made);
    return status;
}

static attn_status prepare(attn_instance *instance, attn_progress progress, void *progress_ctx,
                           attn_error *error)
{
    if (progress)
        progress(progress_ctx, 0, 1, instance->kind->type.name);
    struct python_lock lock = python_lock();
    attn_status status = python_run(instance->object, "prepare", py.PyTuple_New(0), error);
    python_unlock(&lock);
    if (progress && status == ATTN_OK)
        progress(progress_ctx, 1, 1, instance->kind->type.name);
    return status;
}

static uint32_t index_forms(attn_instance *instance)
{
    return instance->kind->index_forms;
}

/* ---- Metadata -------------------------------------------------------------------------------- */

static attn_status read_bounds(const attn_instance *instance, uint32_t kind,
                               const attn_bounds *given, attn_bounds *bounds, attn_error *error)
{
    bool graphs = instance->device_type != ATTN_DEVICE_CPU && instance->kind->limits.graph_level;
    attn_status status = attn_util_read_bounds(kind, given, bounds, error);
    if (status == ATTN_OK && kind == ATTN_METADATA_GRAPH && !graphs)
        status = attn_util_fail_field(error, ATTN_CAPTURE_UNSUPPORTED, ATTN_FIELD_GRAPH_LEVEL,
                                      "graph metadata: the class allows no graphs here");
    return status == ATTN_OK ? attn_util_require_bounds(&instance->kind->limits, bounds, error)
                             : status;
}

static attn_status metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                                 attn_memory_size *size, attn_error *error)
{
    attn_bounds bounds;
    attn_status status = read_bounds(instance, kind, given, &bounds, error);
    if (status == ATTN_OK)
        attn_util_tell_size(size, 0, sizeof(attn_metadata), 64);
    return status;
}

static void metadata_destroy(attn_metadata *metadata)
{
    if (!metadata)
        return;
    uint32_t kept = metadata->instance->model.num_layers * ATTN_ROLE_COUNT;
    if (python_is_there()) {
        struct python_lock lock = python_lock();
        for (uint32_t k = 0; metadata->kept && k < kept; k++)
            py.Py_DecRef(metadata->kept[k].tensor);
        py.Py_DecRef(metadata->forward);
        py.Py_DecRef(metadata->object);
        collect(metadata->instance);
        python_unlock(&lock);
    }
    free(metadata->kept);
    free(metadata->kv);
}

static attn_status make_metadata(attn_metadata *made, attn_error *error)
{
    struct python_lock lock = python_lock();
    py_object *arguments = py.PyTuple_New(1);
    python_put(arguments, 0, python_int(made->kind == ATTN_METADATA_GRAPH));
    py_object *method = py.PyObject_GetAttrString(made->instance->object, "metadata");
    made->object = python_call(method, arguments, error);
    made->forward = made->object ? py.PyObject_GetAttrString(made->object, "forward") : NULL;
    py.Py_DecRef(method);
    python_unlock(&lock);
    return made->forward ? ATTN_OK : ATTN_INTERNAL;
}

static attn_status metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                                   const attn_memory *memory, attn_metadata **metadata,
                                   attn_error *error)
{
    attn_bounds bounds;
    attn_status status = read_bounds(instance, kind, given, &bounds, error);
    if (status == ATTN_OK)
        status = attn_util_check_region(memory, ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA),
                                        "host metadata", sizeof(attn_metadata), 64, error);
    if (status != ATTN_OK)
        return status;
    attn_metadata *made = memory->base[ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)];
    *made = (attn_metadata){.instance = instance, .bounds = bounds, .kind = kind};
    made->kept = calloc((size_t)instance->model.num_layers * ATTN_ROLE_COUNT, sizeof *made->kept);
    made->kv = calloc((size_t)instance->model.num_kv_groups + 1, sizeof *made->kv);
    status = made->kept && made->kv
                 ? make_metadata(made, error)
                 : attn_util_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for tensors");
    if (status == ATTN_OK)
        *metadata = made;
    else
        metadata_destroy(made);
    return status;
}

/* ---- A batch --------------------------------------------------------------------------------- */

/* On a GPU, only host data is checked: lengths, if the class has asked for them. */
static attn_status check_batch(const attn_metadata *metadata, const attn_batch *given,
                               attn_error *error)
{
    const attn_util_model *model = &metadata->instance->model;
    const attn_bounds *bounds = &metadata->bounds;
    bool here = metadata->instance->device_type == ATTN_DEVICE_CPU;
    attn_batch batch = *given;
    attn_status status = here ? attn_util_check_batch(bounds, given, model->num_kv_groups, error)
                              : attn_util_check_scalars(bounds, given, model->num_kv_groups, error);
    if (!here)
        batch.seq_lens.device = NULL;
    for (uint32_t g = 0; g < model->num_kv_groups && status == ATTN_OK; g++) {
        attn_kv_batch kv;
        ATTN_UTIL_READ(&kv, attn_at(batch.kv_groups, g));
        bool own = kv.kv_lens.device || kv.kv_lens.host;
        if (!here)
            kv.kv_lens.device = NULL;
        bool known = own ? attn_util_i32(&kv.kv_lens) : attn_util_i32(&batch.seq_lens);
        if (attn_util_has_kv_group(model, g) && known)
            status = attn_util_check_kv(bounds, &batch, &kv, error);
    }
    return status;
}

static void keep_batch(attn_metadata *metadata, const attn_batch *batch)
{
    const attn_util_model *model = &metadata->instance->model;
    metadata->batch = *batch;
    for (uint32_t g = 0; g < model->num_kv_groups; g++)
        if (attn_util_has_kv_group(model, g))
            ATTN_UTIL_READ(&metadata->kv[g], attn_at(batch->kv_groups, g));
}

static attn_status init_forward_metadata(attn_metadata *metadata, const attn_batch *given,
                                         attn_stream stream, attn_error *error)
{
    attn_batch batch;
    metadata->planned = 0;
    ATTN_UTIL_READ(&batch, given);
    attn_status status = check_batch(metadata, &batch, error);
    if (status != ATTN_OK)
        return status;
    struct python_lock lock = python_lock();
    py_object *arguments = python_batch(metadata, &batch, stream, error);
    status = arguments ? python_run(metadata->object, "plan", arguments, error) : ATTN_INTERNAL;
    python_unlock(&lock);
    keep_batch(metadata, &batch);
    metadata->mode = batch.mode;
    metadata->planned = status == ATTN_OK;
    return status;
}

const attn_backend_ops python_ops = {
    .struct_size = sizeof python_ops,
    .destroy = destroy,
    .prepare = prepare,
    .index_forms = index_forms,
    .metadata_size = metadata_size,
    .metadata_create = metadata_create,
    .init_forward_metadata = init_forward_metadata,
    .metadata_destroy = metadata_destroy,
    .forward_extend = python_forward_extend,
    .forward_decode = python_forward_decode,
};
