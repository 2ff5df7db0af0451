/* SPDX-License-Identifier: Apache-2.0
 *
 * capi.h: the part of Python's stable C API that is used, found at run time. Nothing of Python is
 * linked and none of its headers is needed: one file serves every Python from 3.10 on.
 *
 * In a process that is an interpreter already (attnhost from Python) that interpreter is used.
 * Elsewhere libpython is opened, of the program that ATTNHOST_PYTHON names, else of the virtual
 * environment that is active, else of `python3`; that program is asked once where its library is.
 */
#ifndef PLUGINS_PYTHON_CAPI_H
#define PLUGINS_PYTHON_CAPI_H

#include <signal.h>
#include <stdbool.h>

#include "attn_plugin_util.h"

typedef struct _object py_object;

/* X(result, name, arguments) */
#define PY_FUNCTIONS(X)                                                                            \
    X(int, Py_IsInitialized, (void))                                                               \
    X(void, Py_InitializeEx, (int))                                                                \
    X(void *, PyEval_SaveThread, (void))                                                           \
    X(int, PyGILState_Ensure, (void))                                                              \
    X(void, PyGILState_Release, (int))                                                             \
    X(py_object *, Py_CompileString, (const char *, const char *, int))                            \
    X(py_object *, PyImport_ExecCodeModule, (const char *, py_object *))                           \
    X(py_object *, PyImport_ImportModule, (const char *))                                          \
    X(py_object *, PyObject_GetAttrString, (py_object *, const char *))                            \
    X(py_object *, PyObject_CallObject, (py_object *, py_object *))                                \
    X(py_object *, PyObject_Str, (py_object *))                                                    \
    X(py_object *, PyTuple_New, (ptrdiff_t))                                                       \
    X(int, PyTuple_SetItem, (py_object *, ptrdiff_t, py_object *))                                 \
    X(py_object *, PyTuple_GetItem, (py_object *, ptrdiff_t))                                      \
    X(ptrdiff_t, PyTuple_Size, (py_object *))                                                      \
    X(py_object *, PyLong_FromLongLong, (long long))                                               \
    X(long long, PyLong_AsLongLong, (py_object *))                                                 \
    X(py_object *, PyFloat_FromDouble, (double))                                                   \
    X(double, PyFloat_AsDouble, (py_object *))                                                     \
    X(py_object *, PyUnicode_DecodeUTF8, (const char *, ptrdiff_t, const char *))                  \
    X(const char *, PyUnicode_AsUTF8AndSize, (py_object *, ptrdiff_t *))                           \
    X(py_object *, PyMemoryView_FromMemory, (char *, ptrdiff_t, int))                              \
    X(py_object *, PyCapsule_New, (void *, const char *, void (*)(py_object *)))                   \
    X(int, PyCapsule_IsValid, (py_object *, const char *))                                         \
    X(void *, PyCapsule_GetPointer, (py_object *, const char *))                                   \
    X(py_object *, PyErr_Occurred, (void))                                                         \
    X(void, PyErr_Clear, (void))                                                                   \
    X(void, PyErr_Fetch, (py_object **, py_object **, py_object **))                               \
    X(void, Py_IncRef, (py_object *))                                                              \
    X(void, Py_DecRef, (py_object *))

struct py_api {
#define PY_POINTER(result, name, arguments) result(*name) arguments;
    PY_FUNCTIONS(PY_POINTER)
#undef PY_POINTER
    py_object *None;
    py_object *backend;  /* module attnhost.backend */
    py_object *describe; /* its function that words an exception */
};

extern struct py_api py; /* complete once python_start() has succeeded */

/* Find, open and initialise Python, and load attnhost.backend. Once it has succeeded, further calls
 * do nothing. DEPENDENCY_MISSING with the names that were searched. [any-thread] */
attn_status python_start(attn_error *error);

/* Is there an interpreter to enter? Not once a process of Python is at its end. [any-thread] */
bool python_is_there(void);

/* The GIL; errno and handlers of signals as they were, for libraries of Python change both. */
enum { PYTHON_NUM_SIGNALS = 16 };
struct python_lock {
    int gil, error_number;
    struct sigaction handlers[PYTHON_NUM_SIGNALS];
};
struct python_lock python_lock(void);
void python_unlock(const struct python_lock *lock);

/* Call `callable` with the tuple `arguments`, whose reference is taken; NULL = none could be made.
 * NULL, and *error says which exception it was. With the GIL, as all below. */
py_object *python_call(py_object *callable, py_object *arguments, attn_error *error);

/* The same of a method of `object`, which answers None, or (status, field, text) for a failure. */
attn_status python_run(py_object *object, const char *method, py_object *arguments,
                       attn_error *error);

/* The status of such an answer. The reference is taken; NULL is accepted as the result of
 * python_call(). */
attn_status python_status(py_object *answer, attn_error *error);

/* ATTN_FIELD_* by its name; ATTN_FIELD_NONE = no field is called so. */
uint32_t python_field(const char *name);

/* The exception that is set, as INTERNAL. */
attn_status python_failed(attn_error *error);

py_object *python_none(void);
py_object *python_int(int64_t value);
py_object *python_text(const char *text); /* NULL = None */

/* The text of a str; "" for anything else. It lives as long as the object. */
const char *python_utf8(py_object *text);

/* Put `item`, whose reference is taken, into a new tuple. NULL makes the tuple one with None. */
void python_put(py_object *tuple, int place, py_object *item);

#endif /* PLUGINS_PYTHON_CAPI_H */
