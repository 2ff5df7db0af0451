/* SPDX-License-Identifier: Apache-2.0
 *
 * forward.c: a forward: tensors as DLPack capsules, the call, exceptions as statuses.
 */
#include "plugins/python/python.h"

#include <stdlib.h>

/* ---- DLPack 1.0, managed tensors without a version ------------------------------------------- */

struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

/* A view of memory that the caller owns: only the view is freed. */
struct dl_managed {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
    int64_t extents[2 * ATTN_MAX_DIMS];
};

static void free_view(struct dl_managed *view)
{
    free(view);
}

/* Frees a capsule that no framework has turned into a tensor. */
static void drop_capsule(py_object *capsule)
{
    if (py.PyCapsule_IsValid(capsule, "dltensor"))
        free(py.PyCapsule_GetPointer(capsule, "dltensor"));
}

static struct dl_managed *make_view(const attn_tensor *tensor)
{
    struct dl_managed *view = malloc(sizeof *view);
    if (!view)
        return NULL;
    *view = (struct dl_managed){.deleter = free_view};
    view->tensor = (struct dl_tensor){.data = attn_util_data(tensor),
                                      .device_type = tensor->device_type,
                                      .device_id = tensor->device_id,
                                      .ndim = (int32_t)tensor->ndim,
                                      .code = (uint8_t)(tensor->dtype & 0xffu),
                                      .bits = (uint8_t)(tensor->dtype >> 8 & 0xffu),
                                      .lanes = (uint16_t)(tensor->dtype >> 16),
                                      .shape = view->extents,
                                      .strides = view->extents + ATTN_MAX_DIMS};
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        view->tensor.shape[d] = tensor->shape[d];
        view->tensor.strides[d] = tensor->strides[d];
    }
    return view;
}

/* ---- numpy ----------------------------------------------------------------------------------- */

static py_object *extents(const int64_t *values, uint32_t count, int64_t unit)
{
    py_object *tuple = py.PyTuple_New((ptrdiff_t)count);
    for (uint32_t d = 0; d < count; d++)
        python_put(tuple, (int)d, python_int(values[d] * unit));
    return tuple;
}

/* numpy.ndarray(shape, dtype, buffer, offset, strides): without a view of a view, and its 15 us. */
static py_object *make_array(const attn_instance *instance, const attn_tensor *tensor,
                             attn_error *error)
{
    enum { WRITABLE = 0x200 /* PyBUF_WRITE */ };
    static const char kinds[] = "iuf";
    static char nothing;
    uint32_t code = tensor->dtype & 0xffu;
    int64_t size = attn_dtype_size(tensor->dtype), low = 0, high = size;
    char name[8];
    if (code >= sizeof kinds - 1) {
        attn_util_fail(error, ATTN_UNSUPPORTED,
                       "numpy has no %s: accepted dtypes = \"f32, f16\", or PyTorch",
                       attn_util_dtype_name(tensor->dtype));
        return NULL;
    }
    snprintf(name, sizeof name, "<%c%d", kinds[code], (int)size);
    for (uint32_t d = 0; d < tensor->ndim; d++) {
        int64_t span = (tensor->shape[d] - 1) * tensor->strides[d] * size;
        low += span < 0 ? span : 0;
        high += span > 0 ? span : 0;
    }
    for (uint32_t d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] == 0)
            low = high = 0;
    char *data = attn_util_data(tensor);
    py_object *arguments = py.PyTuple_New(5);
    python_put(arguments, 0, extents(tensor->shape, tensor->ndim, 1));
    python_put(arguments, 1, python_text(name));
    python_put(arguments, 2,
               py.PyMemoryView_FromMemory(data ? data + low : &nothing, high - low, WRITABLE));
    python_put(arguments, 3, python_int(-low));
    python_put(arguments, 4, extents(tensor->strides, tensor->ndim, size));
    return python_call(instance->convert, arguments, error);
}

py_object *python_tensor(const attn_instance *instance, const attn_tensor *tensor,
                         attn_error *error)
{
    if (instance->is_numpy)
        return make_array(instance, tensor, error);
    struct dl_managed *view = make_view(tensor);
    py_object *capsule = view ? py.PyCapsule_New(view, "dltensor", drop_capsule) : NULL;
    py_object *arguments = py.PyTuple_New(1);
    if (!capsule)
        free(view);
    python_put(arguments, 0, capsule);
    return python_call(instance->convert, arguments, error);
}

/* ---- Operands -------------------------------------------------------------------------------- */

/* The form of an operand, and whether it is required. */
struct wanted {
    uint32_t role;
    bool needed;
    attn_util_form form;
};

enum { MAX_WANTED = 9 };

/* A call. */
struct call {
    const attn_metadata *metadata;
    const attn_util_model_layer *layer;
    const struct python_layer *more;
    const attn_forward_args *args;
    uint32_t index; /* of the layer */
    bool is_new, saves;
};

/* Pages of K or V. */
static attn_util_form cache_form(const struct call *call, int32_t dim)
{
    int32_t heads = call->layer->group.num_kv_heads;
    attn_util_form form = {call->layer->dtype,
                           call->metadata->instance->device_type,
                           4,
                           {-1, -1, heads, dim},
                           call->saves};
    if (call->more->is_hnd) {
        form.shape[1] = heads;
        form.shape[2] = -1;
    }
    return form;
}

static uint32_t list_softmax(const struct call *call, struct wanted list[MAX_WANTED])
{
    const attn_layer_group *g = &call->layer->group;
    const attn_dtype dtype = call->layer->dtype;
    const int32_t device = call->metadata->instance->device_type;
    const int32_t q_heads = g->num_q_heads, kv_heads = g->num_kv_heads;
    bool paged = call->more->has_cache, fresh = call->is_new || !paged;
    const struct wanted wanted[] = {
        {ATTN_ROLE_Q, true, {dtype, device, 3, {-1, q_heads, g->head_dim}, 0}},
        {ATTN_ROLE_OUT, true, {dtype, device, 3, {-1, q_heads, g->v_head_dim}, 1}},
        {ATTN_ROLE_K, fresh, {dtype, device, 3, {-1, kv_heads, g->head_dim}, 0}},
        {ATTN_ROLE_V, fresh, {dtype, device, 3, {-1, kv_heads, g->v_head_dim}, 0}},
        {ATTN_ROLE_LSE, false, {ATTN_F32, device, 2, {-1, q_heads}, 1}},
        {ATTN_ROLE_SINKS, g->flags & ATTN_GROUP_HAS_SINKS, {ATTN_F32, device, 1, {q_heads}, 0}},
        {ATTN_ROLE_ALIBI_SLOPES,
         g->flags & ATTN_GROUP_HAS_ALIBI,
         {ATTN_F32, device, 1, {q_heads}, 0}},
        {ATTN_ROLE_K_CACHE, paged, cache_form(call, g->head_dim)},
        {ATTN_ROLE_V_CACHE, paged, cache_form(call, g->v_head_dim)},
    };
    memcpy(list, wanted, sizeof wanted);
    return sizeof wanted / sizeof wanted[0];
}

static uint32_t list_latent(const struct call *call, struct wanted list[MAX_WANTED])
{
    const attn_layer_group *g = &call->layer->group;
    const attn_dtype dtype = call->layer->dtype;
    const int32_t device = call->metadata->instance->device_type, heads = g->num_q_heads;
    const int32_t rank = call->more->mla.kv_lora_rank, rope = call->more->mla.rope_dim;
    const struct wanted wanted[] = {
        {ATTN_ROLE_Q_NOPE, true, {dtype, device, 3, {-1, heads, rank}, 0}},
        {ATTN_ROLE_Q_PE, true, {dtype, device, 3, {-1, heads, rope}, 0}},
        {ATTN_ROLE_OUT, true, {dtype, device, 3, {-1, heads, rank}, 1}},
        {ATTN_ROLE_C_KV, call->is_new, {dtype, device, 2, {-1, rank}, 0}},
        {ATTN_ROLE_K_PE, call->is_new, {dtype, device, 2, {-1, rope}, 0}},
        {ATTN_ROLE_LSE, false, {ATTN_F32, device, 2, {-1, heads}, 1}},
        {ATTN_ROLE_SINKS, g->flags & ATTN_GROUP_HAS_SINKS, {ATTN_F32, device, 1, {heads}, 0}},
        {ATTN_ROLE_LATENT_CACHE, true, {dtype, device, 3, {-1, -1, rank + rope}, call->saves}},
    };
    memcpy(list, wanted, sizeof wanted);
    return sizeof wanted / sizeof wanted[0];
}

/* Caches and parameters stay where they are from call to call. */
static bool stays(uint32_t role)
{
    return role == ATTN_ROLE_K_CACHE || role == ATTN_ROLE_V_CACHE || role == ATTN_ROLE_SINKS ||
           role == ATTN_ROLE_ALIBI_SLOPES || role == ATTN_ROLE_LATENT_CACHE;
}

static bool is_same(const attn_tensor *a, const attn_tensor *b)
{
    size_t dims = a->ndim * sizeof a->shape[0];
    return a->data == b->data && a->byte_offset == b->byte_offset && a->dtype == b->dtype &&
           a->ndim == b->ndim && memcmp(a->shape, b->shape, dims) == 0 &&
           memcmp(a->strides, b->strides, dims) == 0;
}

/* A new reference. */
static py_object *pass_operand(const struct call *call, uint32_t role, const attn_tensor *tensor,
                               attn_error *error)
{
    const attn_metadata *metadata = call->metadata;
    struct python_kept *kept = &metadata->kept[call->index * ATTN_ROLE_COUNT + role];
    if (!stays(role))
        return python_tensor(metadata->instance, tensor, error);
    if (!kept->tensor || !is_same(&kept->of, tensor)) {
        py.Py_DecRef(kept->tensor);
        ATTN_UTIL_READ(&kept->of, tensor);
        kept->tensor = python_tensor(metadata->instance, tensor, error);
    }
    if (kept->tensor)
        py.Py_IncRef(kept->tensor);
    return kept->tensor;
}

/* All given operands by role, each in the form of its layer. NULL and *status. */
static py_object *pass_operands(const struct call *call, attn_status *status, attn_error *error)
{
    struct wanted list[MAX_WANTED];
    uint32_t count = call->layer->group.kind == ATTN_KIND_MLA ? list_latent(call, list)
                                                              : list_softmax(call, list);
    py_object *tuple = py.PyTuple_New(ATTN_ROLE_COUNT);
    for (int role = 0; tuple && role < ATTN_ROLE_COUNT; role++)
        python_put(tuple, role, python_none());
    for (uint32_t w = 0; w < count && *status == ATTN_OK; w++) {
        const attn_tensor *tensor = NULL;
        if (!list[w].needed && !attn_operand(call->args, list[w].role))
            continue;
        *status = attn_util_operand(call->args, list[w].role, &list[w].form, &tensor, error);
        if (*status != ATTN_OK)
            break;
        py_object *made = pass_operand(call, list[w].role, tensor, error);
        *status = made ? ATTN_OK : ATTN_INTERNAL;
        python_put(tuple, (int)list[w].role, made);
    }
    if (*status == ATTN_OK)
        return tuple;
    py.Py_DecRef(tuple);
    return NULL;
}

/* ---- Forward --------------------------------------------------------------------------------- */

/* New keys and values, to their slots, on a processor; on a GPU attnhost.backend saves them. */
static void save_rows(const struct call *call)
{
    static const uint32_t softmax[] = {ATTN_ROLE_K, ATTN_ROLE_V, ATTN_ROLE_K_CACHE,
                                       ATTN_ROLE_V_CACHE};
    static const uint32_t latent[] = {ATTN_ROLE_C_KV, ATTN_ROLE_K_PE, ATTN_ROLE_LATENT_CACHE,
                                      ATTN_ROLE_LATENT_CACHE};
    bool is_latent = call->layer->group.kind == ATTN_KIND_MLA;
    attn_layer_group group = call->layer->group;
    attn_tensor parts[4];
    for (int p = 0; p < 4; p++)
        ATTN_UTIL_READ(&parts[p], attn_operand(call->args, (is_latent ? latent : softmax)[p]));
    if (is_latent) { /* as one head, whose value lies beside its key */
        group.num_kv_heads = 1;
        group.head_dim = call->more->mla.kv_lora_rank;
        group.v_head_dim = call->more->mla.rope_dim;
        parts[3].byte_offset += (uint64_t)group.head_dim * attn_dtype_size(parts[3].dtype);
    }
    for (int p = 2; p < 4 && call->more->is_hnd; p++) {
        int64_t heads = parts[p].strides[1];
        parts[p].strides[1] = parts[p].strides[2];
        parts[p].strides[2] = heads;
    }
    const attn_util_operands operands = {
        .k = &parts[0], .v = &parts[1], .k_cache = &parts[2], .v_cache = &parts[3], .saves = 1};
    attn_util_save_kv(&operands, &call->metadata->batch, &call->metadata->kv[group.kv_group],
                      &group);
}

static attn_status run(const struct call *call, attn_stream stream, attn_error *error)
{
    attn_status status = ATTN_OK;
    struct python_lock lock = python_lock();
    py_object *operands = pass_operands(call, &status, error);
    bool here = call->metadata->instance->device_type == ATTN_DEVICE_CPU;
    if (operands && here && call->saves && !call->metadata->instance->kind->saves &&
        call->more->has_cache)
        save_rows(call);
    if (operands) {
        py_object *arguments = py.PyTuple_New(4);
        python_put(arguments, 0, python_int(call->index));
        python_put(arguments, 1, python_int(call->args->flags));
        python_put(arguments, 2, python_int((int64_t)(uintptr_t)stream));
        python_put(arguments, 3, operands);
        status = python_status(python_call(call->metadata->forward, arguments, error), error);
    }
    python_unlock(&lock);
    return status;
}

static attn_status forward(attn_metadata *metadata, int32_t layer_id,
                           const attn_forward_args *given, attn_stream stream, bool decode,
                           attn_error *error)
{
    attn_forward_args args;
    const attn_instance *instance = metadata->instance;
    attn_status status = attn_util_check_forward(metadata->planned, metadata->mode, decode, error);
    if (status == ATTN_OK && instance->device_type == ATTN_DEVICE_CPU)
        status = attn_util_read_args(given, &args, error);
    else
        ATTN_UTIL_READ(&args, given);
    if (status == ATTN_OK && args.flags & ATTN_FORWARD_CAPTURING &&
        metadata->kind != ATTN_METADATA_GRAPH)
        status = attn_util_fail_field(error, ATTN_CAPTURE_UNSUPPORTED, ATTN_FIELD_GRAPH_LEVEL,
                                      "a forward in a capture: accepted with graph metadata");
    if (status != ATTN_OK)
        return status;
    const attn_util_model_layer *layer = attn_util_find_layer(&instance->model, layer_id);
    if (!layer)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_LAYER_ID,
                                    "layer_id %d is unknown", layer_id);
    bool latent = layer->group.kind == ATTN_KIND_MLA;
    uint32_t key = latent ? ATTN_ROLE_C_KV : ATTN_ROLE_K,
             value = latent ? ATTN_ROLE_K_PE : ATTN_ROLE_V;
    struct call call = {.metadata = metadata, .layer = layer, .args = &args};
    call.index = (uint32_t)(layer - instance->model.layers);
    call.more = &instance->layers[call.index];
    call.is_new = attn_operand(&args, key) || attn_operand(&args, value);
    call.saves = call.is_new && args.flags & ATTN_FORWARD_SAVE_KV;
    return run(&call, stream, error);
}

attn_status python_forward_extend(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    return forward(metadata, layer_id, args, stream, false, error);
}

attn_status python_forward_decode(attn_metadata *metadata, int32_t layer_id,
                                  const attn_forward_args *args, attn_stream stream,
                                  attn_error *error)
{
    return forward(metadata, layer_id, args, stream, true, error);
}
