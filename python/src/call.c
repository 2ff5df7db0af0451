/* SPDX-License-Identifier: Apache-2.0
 *
 * call.c: the module attnhost._call: what a step does once for each layer, without going through
 * Python. Everything else of the library is called by ctypes (attnhost/_library.py).
 *
 *   Caller           metadata of a backend: bind() keeps a layer's caches, forward() runs a layer
 *   view(t, a)       the attn_tensor at address `a` becomes a view of the tensor `t`
 *
 * Tensors come by DLPack: through the exchange table of their type where it has one (PyTorch), else
 * through __dlpack__(). Written for the stable ABI of Python 3.10.
 */
#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <attnhost.h>
#include <stdbool.h>
#include <string.h>

#include "dlpack_min.h"

_Static_assert(offsetof(DLTensor, shape) == 24, "DLPack's DLTensor");

/* Keywords of forward() and bind() that are operands, by role, and the others. */
static PyObject *role_names[ATTN_ROLE_COUNT];
enum { OPTION_STREAM, OPTION_SAVE_KV, OPTION_OMIT_SINK, OPTION_CAPTURING, OPTION_COUNT };
static PyObject *option_names[OPTION_COUNT];

/* errors.raise_status(status, field, message, needed, what) */
static PyObject *raise_status;

/* Always NULL, with an exception made from the status and the error's message. */
static PyObject *fail(attn_status status, const attn_error *error, const char *what)
{
    PyObject *made = PyObject_CallFunction(raise_status, "iIsKs", (int)status, error->field,
                                           error->message, (unsigned long long)error->needed, what);
    Py_XDECREF(made);
    return NULL;
}

/* ---- Tensors --------------------------------------------------------------------------------- */

/* A tensor as DLPack tells it. `owner` keeps what it points to alive, NULL = the object does. */
struct seen {
    DLTensor tensor;
    bool read_only;
    const DLPackExchangeAPI *api; /* of its type, or NULL */
    PyObject *owner;
};

/* The exchange table of the object's type, or NULL without an exception. The last one is kept, as
 * tensors of a process are mostly of one type. */
static const DLPackExchangeAPI *exchange_api(PyObject *object)
{
    static PyTypeObject *last_type;
    static const DLPackExchangeAPI *last_api;
    PyTypeObject *type = Py_TYPE(object);
    if (type == last_type)
        return last_api;
    const DLPackExchangeAPI *api = NULL;
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    PyErr_Clear();
    Py_XDECREF(capsule);
    while (api && api->version.major != 1)
        api = api->prev_api;
    if (api && !api->dltensor_from_py_object_no_sync)
        api = NULL;
    Py_INCREF(type);
    Py_XDECREF((PyObject *)last_type);
    last_type = type;
    last_api = api;
    return api;
}

/* object.__dlpack__(max_version=(1, 0)), or without it where that is not known. */
static PyObject *call_dlpack(PyObject *object)
{
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
    PyObject *none = PyTuple_New(0), *version = Py_BuildValue("{s(ii)}", "max_version", 1, 0);
    PyObject *capsule = NULL;
    if (method && none && version) {
        capsule = PyObject_Call(method, none, version);
        if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            capsule = PyObject_Call(method, none, NULL);
        }
    }
    Py_XDECREF(method);
    Py_XDECREF(none);
    Py_XDECREF(version);
    return capsule;
}

static int see_capsule(PyObject *object, const char *role, struct seen *seen)
{
    if (!PyObject_HasAttrString(object, "__dlpack__")) {
        PyErr_Format(PyExc_TypeError,
                     "%s: a %S is no tensor; accepted: what has __dlpack__ (torch, numpy, jax ...)",
                     role, (PyObject *)Py_TYPE(object));
        return -1;
    }
    PyObject *capsule = call_dlpack(object);
    if (!capsule)
        return -1;
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        DLManagedTensorVersioned *made = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        seen->tensor = made->dl_tensor;
        seen->read_only = (made->flags & DLPACK_FLAG_READ_ONLY) != 0;
    } else if (PyCapsule_IsValid(capsule, "dltensor")) {
        seen->tensor = ((DLManagedTensor *)PyCapsule_GetPointer(capsule, "dltensor"))->dl_tensor;
    } else {
        Py_DECREF(capsule);
        PyErr_Format(PyExc_TypeError, "%s: __dlpack__() of %S gave no DLPack capsule", role,
                     (PyObject *)Py_TYPE(object));
        return -1;
    }
    seen->owner = capsule; /* not consumed: the capsule releases the tensor when it goes */
    return 0;
}

static PyObject *name_is_neg, *name_requires_grad, *name_is_grad_enabled;

/* Was an attribute or a method's answer true? What there is not is not. */
static bool is_true(PyObject *said)
{
    if (!said)
        PyErr_Clear();
    bool is = said && PyObject_IsTrue(said) == 1;
    Py_XDECREF(said);
    return is;
}

/* What a tensor's memory does not show, which its own __dlpack__() would refuse. */
static int refuse_hidden(PyObject *object, const char *role)
{
    const char *why = NULL;
    if (is_true(PyObject_CallMethodObjArgs(object, name_is_neg, NULL)))
        why = "a negative view, whose memory has the other sign; accepted: resolve_neg()";
    if (!why && is_true(PyObject_GetAttr(object, name_requires_grad))) {
        PyObject *torch = PyImport_ImportModule("torch");
        if (torch && is_true(PyObject_CallMethodObjArgs(torch, name_is_grad_enabled, NULL)))
            why =
                "it requires gradients, and there are none; accepted: detach(), or torch.no_grad()";
        Py_XDECREF(torch);
        PyErr_Clear();
    }
    if (!why)
        return 0;
    attn_error error = {.field = ATTN_FIELD_OPERAND, .message = (char *)why};
    fail(ATTN_INVALID_ARGUMENT, &error, role);
    return -1;
}

/* JAX's arrays never change, though their capsules do not say so. */
static bool is_immutable(PyObject *object)
{
    PyObject *module = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__module__");
    PyObject *name = module ? PyUnicode_AsUTF8String(module) : NULL;
    bool is = name && strncmp(PyBytes_AsString(name), "jax", 3) == 0;
    Py_XDECREF(name);
    Py_XDECREF(module);
    PyErr_Clear();
    return is;
}

static int see(PyObject *object, const char *role, struct seen *seen)
{
    *seen = (struct seen){.api = exchange_api(object)};
    if (seen->api && refuse_hidden(object, role) != 0)
        return -1;
    if (seen->api)
        return seen->api->dltensor_from_py_object_no_sync(object, &seen->tensor);
    int status = see_capsule(object, role, seen);
    seen->read_only |= status == 0 && is_immutable(object);
    return status;
}

/* *tensor becomes a view of the object's memory. *owner, where not NULL, is the caller's. */
static int make_view(PyObject *object, const char *role, attn_tensor *tensor, PyObject **owner,
                     const DLPackExchangeAPI **api)
{
    struct seen seen;
    char message[512] = "";
    attn_error error = {
        .struct_size = sizeof error, .capacity = sizeof message, .message = message};
    if (see(object, role, &seen) != 0)
        return -1;
    const DLTensor *given = &seen.tensor;
    attn_dtype dtype = given->code | (uint32_t)given->bits << 8 | (uint32_t)given->lanes << 16;
    attn_status status = attnhost_tensor_init(
        tensor, (char *)given->data + given->byte_offset, given->device_type, given->device_id,
        dtype, (uint32_t)given->ndim, given->shape, given->strides, &error);
    if (status != ATTN_OK) {
        Py_XDECREF(seen.owner);
        fail(status, &error, role);
        return -1;
    }
    if (seen.read_only)
        tensor->flags |= ATTN_TENSOR_READ_ONLY;
    *owner = seen.owner;
    *api = seen.api;
    return 0;
}

static PyObject *view(PyObject *module, PyObject *args)
{
    PyObject *object, *owner = NULL;
    unsigned long long address;
    const char *role = "tensor";
    const DLPackExchangeAPI *api;
    (void)module;
    if (!PyArg_ParseTuple(args, "OK|s:view", &object, &address, &role) ||
        make_view(object, role, (attn_tensor *)(uintptr_t)address, &owner, &api) != 0)
        return NULL;
    return owner ? owner : Py_NewRef(object);
}

/* ---- Caller ---------------------------------------------------------------------------------- */

/* The operands of a layer from bind(), and their objects. */
struct bound {
    const attn_tensor *operands[ATTN_ROLE_COUNT]; /* into `tensors`, or NULL */
    const attn_scale *scales[ATTN_ROLE_COUNT];    /* kept by the Python side */
    attn_tensor tensors[ATTN_ROLE_COUNT];
    PyObject *owners[ATTN_ROLE_COUNT];
};

struct caller {
    PyObject_HEAD attnhost_metadata *metadata; /* NULL = closed */
    struct bound **layers;                     /* by layer id */
    Py_ssize_t num_layers;
    PyObject *borrowed; /* list: what a stream may still be reading */
    bool keeps;         /* forwards return before their work is done */
    bool busy;          /* a call is at work: the interpreter's lock orders what is said here */
};

/* A call begins to work with the metadata, and no other call may until it ends: neither another
 * thread nor what an operand's __dlpack__() calls. -1 with an exception. */
static int begin(struct caller *self, const char *what)
{
    const char *why = self->busy        ? "this metadata is in use; accepted: one call at a time"
                      : !self->metadata ? "this metadata is closed; accepted: one that is open"
                                        : NULL;
    if (why) {
        attn_error error = {.message = (char *)why};
        fail(ATTN_BAD_STATE, &error, what);
        return -1;
    }
    self->busy = true;
    return 0;
}

static void end(struct caller *self)
{
    self->busy = false;
}

/* A call's tensors, on the stack. */
struct call {
    const attn_tensor *operands[ATTN_ROLE_COUNT];
    attn_tensor tensors[ATTN_ROLE_COUNT];
    PyObject *owners[ATTN_ROLE_COUNT];
    PyObject *options[OPTION_COUNT];
    const DLPackExchangeAPI *api;
};

/* Index of the keyword among `count` names, or -1. Keywords of a call are interned: mostly the same
 * object as the name. */
static int find_name(PyObject *keyword, PyObject *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (keyword == names[i])
            return i;
    for (int i = 0; i < count; i++)
        if (PyUnicode_Compare(keyword, names[i]) == 0)
            return i;
    return -1;
}

static bool is_written(int role)
{
    return role == ATTN_ROLE_OUT || role == ATTN_ROLE_LSE || role == ATTN_ROLE_STATE ||
           role == ATTN_ROLE_CONV_STATE;
}

/* The operand of a role. */
static int take_operand(PyObject *object, int role, attn_tensor *tensor, PyObject **owner,
                        const DLPackExchangeAPI **api)
{
    static const char *const texts[] = {
#define ROLE_TEXT(name, value, text, dtype) [value] = text,
        ATTN_ROLE_MAP(ROLE_TEXT)
#undef ROLE_TEXT
    };
    if (make_view(object, texts[role], tensor, owner, api) != 0)
        return -1;
    if (is_written(role) && (tensor->flags & ATTN_TENSOR_READ_ONLY)) {
        attn_error error = {.field = ATTN_FIELD_OPERAND,
                            .message = (char *)"read-only; accepted: memory that may be written"};
        fail(ATTN_INVALID_ARGUMENT, &error, texts[role]);
        return -1;
    }
    return 0;
}

static int take_keyword(struct call *call, PyObject *keyword, PyObject *value)
{
    int role = find_name(keyword, role_names, ATTN_ROLE_COUNT), option;
    if (role >= 0) {
        if (value == Py_None) {
            call->operands[role] = NULL;
            return 0;
        }
        const DLPackExchangeAPI *api = NULL;
        if (take_operand(value, role, &call->tensors[role], &call->owners[role], &api) != 0)
            return -1;
        call->operands[role] = &call->tensors[role];
        call->api = call->api ? call->api : api;
        return 0;
    }
    option = find_name(keyword, option_names, OPTION_COUNT);
    if (option < 0) {
        PyErr_Format(PyExc_TypeError,
                     "forward() has no operand or option '%U'; accepted: the roles of "
                     "attn_batch.h, stream, save_kv, omit_sink, capturing",
                     keyword);
        return -1;
    }
    call->options[option] = value;
    return 0;
}

static int is_set(PyObject *option, int otherwise)
{
    return option && option != Py_None ? PyObject_IsTrue(option) : otherwise;
}

/* -1 with an exception, else the flags. Keys that are given are saved unless save_kv says no. */
static long read_flags(const struct call *call)
{
    bool has_new = call->operands[ATTN_ROLE_K] || call->operands[ATTN_ROLE_C_KV];
    int save = is_set(call->options[OPTION_SAVE_KV], has_new);
    int omit = is_set(call->options[OPTION_OMIT_SINK], 0);
    int capturing = is_set(call->options[OPTION_CAPTURING], 0);
    if (save < 0 || omit < 0 || capturing < 0)
        return -1;
    return (save ? ATTN_FORWARD_SAVE_KV : 0) | (omit ? ATTN_FORWARD_OMIT_SINK : 0) |
           (capturing ? ATTN_FORWARD_CAPTURING : 0);
}

/* The stream of the call: as given (an integer, or what has .cuda_stream, as a torch.cuda.Stream);
 * else the current one of the library that the tensors are of. */
static int read_stream(const struct call *call, attn_stream *stream)
{
    PyObject *given = call->options[OPTION_STREAM];
    const attn_tensor *any = call->operands[ATTN_ROLE_OUT];
    *stream = NULL;
    if (given && given != Py_None) {
        PyObject *number = PyObject_HasAttrString(given, "cuda_stream")
                               ? PyObject_GetAttrString(given, "cuda_stream")
                               : Py_NewRef(given);
        if (number && !PyLong_Check(number))
            PyErr_Format(PyExc_TypeError,
                         "stream: %R; accepted: an integer, a torch.cuda.Stream, or None", given);
        else if (number)
            *stream = PyLong_AsVoidPtr(number);
        Py_XDECREF(number);
        return PyErr_Occurred() ? -1 : 0;
    }
    if (!any || any->device_type == ATTN_DEVICE_CPU)
        return 0;
    if (call->api && call->api->current_work_stream)
        return call->api->current_work_stream(any->device_type, any->device_id, stream);
    PyErr_SetString(PyExc_ValueError,
                    "stream: missing; accepted: the stream that these tensors are used on");
    return -1;
}

/* What the stream may still read stays alive until Metadata.plan() knows that it has passed. */
static int keep_borrowed(struct caller *self, PyObject *const *values, Py_ssize_t count,
                         const struct call *call)
{
    for (Py_ssize_t i = 0; i < count; i++)
        if (values[i] != Py_None && PyList_Append(self->borrowed, values[i]) != 0)
            return -1;
    for (int role = 0; role < ATTN_ROLE_COUNT; role++)
        if (call->owners[role] && PyList_Append(self->borrowed, call->owners[role]) != 0)
            return -1;
    return 0;
}

static PyObject *run_layer(struct caller *self, int32_t layer, struct call *call)
{
    const struct bound *bound = layer >= 0 && layer < self->num_layers ? self->layers[layer] : NULL;
    attn_forward_args args = {
        .struct_size = sizeof args, .num_operands = ATTN_ROLE_COUNT, .operands = call->operands};
    char message[1024] = "";
    attn_error error = {
        .struct_size = sizeof error, .capacity = sizeof message, .message = message};
    attn_stream stream;
    attn_status status;
    if (bound) {
        for (int role = 0; role < ATTN_ROLE_COUNT; role++)
            if (!call->operands[role])
                call->operands[role] = bound->operands[role];
        args.scales = bound->scales;
        args.num_scales = ATTN_ROLE_COUNT;
    }
    long flags = read_flags(call);
    if (flags < 0 || read_stream(call, &stream) != 0)
        return NULL;
    args.flags = (uint32_t)flags;
    Py_BEGIN_ALLOW_THREADS status = attnhost_forward(self->metadata, layer, &args, stream, &error);
    Py_END_ALLOW_THREADS return status == ATTN_OK ? Py_NewRef(Py_None)
                                                  : fail(status, &error, "forward");
}

/* The call with `count` operands and options, the values of `names`. */
static PyObject *run_call(struct caller *self, int32_t layer, PyObject *const *values,
                          PyObject *names, Py_ssize_t count)
{
    struct call call;
    PyObject *result = NULL;
    Py_ssize_t taken = 0;
    memset(call.operands, 0, sizeof call.operands);
    memset(call.owners, 0, sizeof call.owners);
    memset(call.options, 0, sizeof call.options);
    call.api = NULL;
    while (taken < count && take_keyword(&call, PyTuple_GetItem(names, taken), values[taken]) == 0)
        taken++;
    if (taken == count)
        result = run_layer(self, layer, &call);
    if (result && self->keeps && keep_borrowed(self, values, count, &call) != 0)
        Py_CLEAR(result);
    for (int role = 0; role < ATTN_ROLE_COUNT; role++)
        Py_XDECREF(call.owners[role]);
    return result;
}

static PyObject *forward(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct caller *self = (struct caller *)object;
    if (count != 1) {
        PyErr_SetString(PyExc_TypeError, "forward(layer_id, *, q=..., k=..., ...)");
        return NULL;
    }
    long given = PyLong_AsLong(args[0]);
    if (given == -1 && PyErr_Occurred())
        return NULL;
    int32_t layer = (int32_t)given;
    if (layer != given) {
        PyErr_Format(PyExc_ValueError, "forward: layer %ld; accepted: a layer's id", given);
        return NULL;
    }
    if (begin(self, "forward") != 0)
        return NULL;
    PyObject *result = run_call(self, layer, args + count, names, names ? PyTuple_Size(names) : 0);
    end(self);
    return result;
}

static struct bound *bound_layer(struct caller *self, long layer)
{
    if (layer < 0 || layer > 1 << 20) {
        PyErr_Format(PyExc_ValueError, "bind: layer %ld; accepted: 0 and above", layer);
        return NULL;
    }
    if (layer >= self->num_layers) {
        size_t size = (size_t)(layer + 1) * sizeof(*self->layers);
        struct bound **larger = PyMem_Realloc(self->layers, size);
        if (!larger)
            return (struct bound *)PyErr_NoMemory();
        memset(larger + self->num_layers, 0,
               (size_t)(layer + 1 - self->num_layers) * sizeof(*larger));
        self->layers = larger;
        self->num_layers = layer + 1;
    }
    if (!self->layers[layer])
        self->layers[layer] = PyMem_Calloc(1, sizeof(struct bound));
    return self->layers[layer] ? self->layers[layer] : (struct bound *)PyErr_NoMemory();
}

/* The layer's operand of the role from now on; what was there stays while a stream may read it. */
static int bind_operand(struct caller *self, struct bound *bound, int role, PyObject *tensor)
{
    const DLPackExchangeAPI *api;
    PyObject *owner = NULL, *before = bound->owners[role];
    attn_tensor made;
    if (take_operand(tensor, role, &made, &owner, &api) != 0 ||
        (before && self->keeps && PyList_Append(self->borrowed, before) != 0)) {
        Py_XDECREF(owner);
        return -1;
    }
    bound->tensors[role] = made;
    bound->owners[role] = owner ? owner : Py_NewRef(tensor);
    bound->operands[role] = &bound->tensors[role];
    Py_XDECREF(before);
    return 0;
}

/* _bind(layer, role, tensor, scale): the layer's operand of this role from now on; `scale` is the
 * address of an attn_scale, or 0. */
static PyObject *bind(PyObject *object, PyObject *args)
{
    struct caller *self = (struct caller *)object;
    PyObject *name, *tensor;
    long layer;
    unsigned long long scale;
    if (!PyArg_ParseTuple(args, "lUOK:_bind", &layer, &name, &tensor, &scale))
        return NULL;
    int role = find_name(name, role_names, ATTN_ROLE_COUNT);
    if (role < 0)
        return PyErr_Format(PyExc_TypeError, "bind() has no operand '%U'", name);
    if (begin(self, "bind") != 0)
        return NULL;
    struct bound *bound = bound_layer(self, layer);
    bool done = bound && bind_operand(self, bound, role, tensor) == 0;
    if (done)
        bound->scales[role] = (const attn_scale *)(uintptr_t)scale;
    end(self);
    return done ? Py_NewRef(Py_None) : NULL;
}

/* What was bound is the caller's again. */
static void release_bound(struct caller *self)
{
    for (Py_ssize_t l = 0; l < self->num_layers; l++)
        for (int role = 0; self->layers[l] && role < ATTN_ROLE_COUNT; role++) {
            self->layers[l]->operands[role] = NULL;
            Py_CLEAR(self->layers[l]->owners[role]);
        }
}

/* _open(address of the metadata, whether forwards return before their work is done) */
static PyObject *open_caller(PyObject *object, PyObject *args)
{
    struct caller *self = (struct caller *)object;
    unsigned long long address;
    int keeps;
    if (!PyArg_ParseTuple(args, "Kp:_open", &address, &keeps))
        return NULL;
    if (!self->borrowed)
        self->borrowed = PyList_New(0);
    if (!self->borrowed)
        return NULL;
    self->metadata = (attnhost_metadata *)(uintptr_t)address;
    self->keeps = keeps != 0;
    if (!address)
        release_bound(self);
    return Py_NewRef(Py_None);
}

/* _begin(what), _end(): what is done between them has the metadata for itself. */
static PyObject *begin_call(PyObject *object, PyObject *what)
{
    PyObject *name = PyUnicode_AsUTF8String(what);
    bool begun = name && begin((struct caller *)object, PyBytes_AsString(name)) == 0;
    Py_XDECREF(name);
    return begun ? Py_NewRef(Py_None) : NULL;
}

static PyObject *end_call(PyObject *object, PyObject *none)
{
    (void)none;
    end((struct caller *)object);
    return Py_NewRef(Py_None);
}

/* _take_borrowed(): the list of what was borrowed since the last call. */
static PyObject *take_borrowed(PyObject *object, PyObject *none)
{
    struct caller *self = (struct caller *)object;
    PyObject *empty = PyList_New(0), *taken = self->borrowed;
    (void)none;
    if (!empty)
        return NULL;
    self->borrowed = empty;
    return taken ? taken : PyList_New(0);
}

static int traverse(PyObject *object, visitproc visit, void *arg)
{
    struct caller *self = (struct caller *)object;
    Py_VISIT(Py_TYPE(object));
    for (Py_ssize_t l = 0; l < self->num_layers; l++)
        for (int role = 0; self->layers[l] && role < ATTN_ROLE_COUNT; role++)
            Py_VISIT(self->layers[l]->owners[role]);
    Py_VISIT(self->borrowed);
    return 0;
}

static int clear(PyObject *object)
{
    struct caller *self = (struct caller *)object;
    release_bound(self);
    Py_CLEAR(self->borrowed);
    return 0;
}

static void dealloc(PyObject *object)
{
    struct caller *self = (struct caller *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    clear(object);
    for (Py_ssize_t l = 0; l < self->num_layers; l++)
        PyMem_Free(self->layers[l]);
    PyMem_Free(self->layers);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

static PyMethodDef caller_methods[] = {
    {"forward", (PyCFunction)(void (*)(void))forward, METH_FASTCALL | METH_KEYWORDS,
     "forward(layer_id, *, q, k=None, v=None, out, stream=None, save_kv=True, omit_sink=False,\n"
     "        capturing=False, **operands)\n--\n\n"
     "Run a layer of the batch planned last. Operands are named by their roles (attn_batch.h);\n"
     "those that bind() knows need not be given. Only enqueues on the stream: an integer, a\n"
     "torch.cuda.Stream, or None for the tensors' current one. Keys and values that are given\n"
     "are written to the cache, unless save_kv is False."},
    {"_bind", bind, METH_VARARGS, NULL},
    {"_open", open_caller, METH_VARARGS, NULL},
    {"_begin", begin_call, METH_O, NULL},
    {"_end", end_call, METH_NOARGS, NULL},
    {"_take_borrowed", take_borrowed, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot caller_slots[] = {
    {Py_tp_methods, caller_methods},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_dealloc, dealloc},
    {Py_tp_doc, "Metadata of a backend, as seen from C."},
    {0, NULL},
};

static PyType_Spec caller_spec = {
    .name = "attnhost._call.Caller",
    .basicsize = sizeof(struct caller),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = caller_slots,
};

/* ---- Module ---------------------------------------------------------------------------------- */

static PyMethodDef module_methods[] = {
    {"view", view, METH_VARARGS,
     "view(tensor, address, role='tensor')\n--\n\n"
     "Make the attn_tensor at the address a view of the tensor. Returns what keeps it alive."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT,
                                    "attnhost._call",
                                    "The calls that a step makes for each layer.",
                                    -1,
                                    module_methods,
                                    NULL,
                                    NULL,
                                    NULL,
                                    NULL};

static int intern_names(void)
{
#define ROLE_NAME(name, value, text, dtype) role_names[value] = PyUnicode_InternFromString(text);
    ATTN_ROLE_MAP(ROLE_NAME)
#undef ROLE_NAME
    option_names[OPTION_STREAM] = PyUnicode_InternFromString("stream");
    option_names[OPTION_SAVE_KV] = PyUnicode_InternFromString("save_kv");
    option_names[OPTION_OMIT_SINK] = PyUnicode_InternFromString("omit_sink");
    option_names[OPTION_CAPTURING] = PyUnicode_InternFromString("capturing");
    name_is_neg = PyUnicode_InternFromString("is_neg");
    name_requires_grad = PyUnicode_InternFromString("requires_grad");
    name_is_grad_enabled = PyUnicode_InternFromString("is_grad_enabled");
    return PyErr_Occurred() ? -1 : 0;
}

PyMODINIT_FUNC PyInit__call(void);
PyMODINIT_FUNC PyInit__call(void)
{
    PyObject *made = PyModule_Create(&module), *type = PyType_FromSpec(&caller_spec);
    PyObject *errors = PyImport_ImportModule("attnhost.errors");
    raise_status = errors ? PyObject_GetAttrString(errors, "raise_status") : NULL;
    Py_XDECREF(errors);
    if (!made || !type || !raise_status || intern_names() != 0 ||
        PyModule_AddObject(made, "Caller", type) != 0) {
        Py_XDECREF(made);
        Py_XDECREF(type);
        return NULL;
    }
    return made;
}
