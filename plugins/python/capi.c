/* SPDX-License-Identifier: Apache-2.0
 *
 * capi.c: the interpreter: its choice, opening, and functions.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* pipe2, RTLD_DEFAULT */
#endif
#include "plugins/python/capi.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wchar.h>

#include "plugins/python/python.h"

extern char **environ;

struct py_api py;

/* ---- The library ----------------------------------------------------------------------------- */

/* Output of an interpreter that is asked: its own path, then its library, one per line. */
struct interpreter {
    char program[PATH_MAX];
    char library[PATH_MAX];
};

static const char *const question =
    "import os, sys, sysconfig\n"
    "get = sysconfig.get_config_var\n"
    "names = [get('INSTSONAME'), get('LDLIBRARY'),\n"
    "         'libpython%d.%d.so.1.0' % sys.version_info[:2]]\n"
    "folders = [get('LIBDIR'), os.path.join(sys.base_prefix, 'lib'),\n"
    "           '/usr/lib/' + (get('MULTIARCH') or '')]\n"
    "found = [os.path.join(f, n) for f in folders if f for n in names if n and '.so' in n]\n"
    "print(sys.executable)\n"
    "print(next(filter(os.path.isfile, found), ''))\n";

static void name_program(char program[PATH_MAX])
{
    const char *named = getenv("ATTNHOST_PYTHON"), *venv = getenv("VIRTUAL_ENV");
    if (named && *named)
        snprintf(program, PATH_MAX, "%s", named);
    else if (venv && *venv)
        snprintf(program, PATH_MAX, "%s/bin/python3", venv);
    else
        snprintf(program, PATH_MAX, "python3");
}

/* All that can be read until the other side closes; false if it does not fit. */
static bool read_all(int descriptor, char *text, size_t size)
{
    size_t length = 0;
    for (ssize_t count = 1; count != 0 && length < size - 1;) {
        count = read(descriptor, text + length, size - 1 - length);
        if (count < 0 && errno != EINTR)
            break;
        length += count > 0 ? (size_t)count : 0;
    }
    text[length] = '\0';
    return length < size - 1;
}

static bool start_program(const char *program, int output, pid_t *process)
{
    posix_spawn_file_actions_t files;
    char *argv[] = {(char *)(uintptr_t)program, (char *)(uintptr_t) "-c",
                    (char *)(uintptr_t)question, NULL};
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
    bool good = posix_spawnp(process, program, &files, NULL, argv, environ) == 0;
    posix_spawn_file_actions_destroy(&files);
    return good;
}

/* false: there is no such program, or it is no Python. */
static bool ask_program(struct interpreter *it)
{
    char answer[2 * PATH_MAX];
    int ends[2], status = 0;
    pid_t process;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    bool good = start_program(it->program, ends[1], &process);
    close(ends[1]);
    if (good) {
        good = read_all(ends[0], answer, sizeof answer);
        while (waitpid(process, &status, 0) < 0 && errno == EINTR)
            ;
    }
    close(ends[0]);
    char *library = good && status == 0 ? strchr(answer, '\n') : NULL;
    if (!library)
        return false;
    *library++ = '\0';
    library[strcspn(library, "\n")] = '\0';
    if (strlen(answer) >= PATH_MAX || strlen(library) >= PATH_MAX)
        return false;
    memcpy(it->program, answer, strlen(answer) + 1);
    memcpy(it->library, library, strlen(library) + 1);
    return true;
}

/* GLOBAL: modules that are compiled look its symbols up there, and do not link it. */
static attn_status open_library(struct interpreter *it, void **handle, attn_error *error)
{
    name_program(it->program);
    if (!ask_program(it))
        return attn_util_fail(error, ATTN_DEPENDENCY_MISSING,
                              "%s: no Python; accepted: a Python program, which ATTNHOST_PYTHON "
                              "may name",
                              it->program);
    if (!it->library[0])
        return attn_util_fail(error, ATTN_DEPENDENCY_MISSING,
                              "%s: has no shared libpython (Debian: libpython3-dev); "
                              "ATTNHOST_PYTHON may name another Python",
                              it->program);
    *handle = dlopen(it->library, RTLD_NOW | RTLD_GLOBAL);
    if (*handle)
        return ATTN_OK;
    return attn_util_fail(error, ATTN_DEPENDENCY_MISSING, "%s: %s", it->library, dlerror());
}

static attn_status find_functions(void *handle, attn_error *error)
{
    void *found;
#define PY_FIND(result, name, arguments)                                                           \
    found = dlsym(handle, #name);                                                                  \
    memcpy(&py.name, &found, sizeof found);                                                        \
    if (!found)                                                                                    \
        return attn_util_fail(error, ATTN_DEPENDENCY_MISSING,                                      \
                              "this Python has no %s: accepted "                                   \
                              "3.10 and later",                                                    \
                              #name);
    PY_FUNCTIONS(PY_FIND)
#undef PY_FIND
    py.None = dlsym(handle, "_Py_NoneStruct");
    return py.None ? ATTN_OK
                   : attn_util_fail(error, ATTN_DEPENDENCY_MISSING, "this Python has no None");
}

/* ---- The interpreter ------------------------------------------------------------------------- */

/* A virtual environment is found from the path of its program. */
static void set_program(void *handle, const char *program)
{
    static wchar_t wide[PATH_MAX]; /* Python keeps the pointer */
    void (*set)(const wchar_t *) = NULL;
    void *found = dlsym(handle, "Py_SetProgramName");
    memcpy(&set, &found, sizeof found);
    for (size_t i = 0; i < PATH_MAX - 1 && program[i]; i++)
        wide[i] = (unsigned char)program[i];
    if (set)
        set(wide);
}

/* Signal handlers and the locale belong to the process and stay unchanged. Python's signal module
 * takes SIGINT on import, which happens in every process. */
static void initialise(void *handle, const char *program)
{
    struct sigaction interrupt;
    char *locale = strdup(setlocale(LC_ALL, NULL));
    sigaction(SIGINT, NULL, &interrupt);
    set_program(handle, program);
    py.Py_InitializeEx(0);
    py.Py_DecRef(py.PyImport_ImportModule("signal"));
    py.PyErr_Clear();
    sigaction(SIGINT, &interrupt, NULL);
    if (locale)
        setlocale(LC_ALL, locale);
    free(locale);
    py.PyEval_SaveThread();
}

/* Signals that LLVM, and with it Triton, takes at its first compilation. */
static const int signals[PYTHON_NUM_SIGNALS] = {
    SIGHUP,  SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGPIPE, SIGILL,  SIGTRAP,
    SIGABRT, SIGFPE, SIGBUS,  SIGSEGV, SIGQUIT, SIGSYS,  SIGXCPU, SIGXFSZ};

struct python_lock python_lock(void)
{
    struct python_lock lock = {.error_number = errno};
    for (int s = 0; s < PYTHON_NUM_SIGNALS; s++)
        sigaction(signals[s], NULL, &lock.handlers[s]);
    lock.gil = py.PyGILState_Ensure();
    return lock;
}

void python_unlock(const struct python_lock *lock)
{
    struct sigaction now;
    py.PyGILState_Release(lock->gil);
    for (int s = 0; s < PYTHON_NUM_SIGNALS; s++)
        if (sigaction(signals[s], NULL, &now) == 0 &&
            now.sa_sigaction != lock->handlers[s].sa_sigaction)
            sigaction(signals[s], &lock->handlers[s], NULL);
    errno = lock->error_number;
}

/* The module that is embedded here; in a process of Python that of its package. */
static py_object *load_module(bool own)
{
    enum { FILE_INPUT = 257 };
    if (!own)
        return py.PyImport_ImportModule("attnhost.backend");
    py_object *code = py.Py_CompileString(python_module, "attnhost/backend.py", FILE_INPUT);
    py_object *module = code ? py.PyImport_ExecCodeModule("attnhost.backend", code) : NULL;
    py.Py_DecRef(code);
    return module;
}

static attn_status load_backend(bool own, attn_error *error)
{
    struct python_lock lock = python_lock();
    py_object *module = load_module(own);
    py.describe = module ? py.PyObject_GetAttrString(module, "_describe") : NULL;
    attn_status status = ATTN_OK;
    if (!py.describe)
        status = python_failed(error);
    else
        py.backend = module;
    python_unlock(&lock);
    return status == ATTN_OK ? status
                             : attn_util_fail_prefix(error, ATTN_DEPENDENCY_MISSING,
                                                     "attnhost.backend cannot be imported");
}

static attn_status start(attn_error *error)
{
    struct interpreter it = {.program = ""};
    void *handle = RTLD_DEFAULT;
    attn_status status = ATTN_OK;
    if (!dlsym(RTLD_DEFAULT, "Py_IsInitialized"))
        status = open_library(&it, &handle, error);
    if (status == ATTN_OK)
        status = find_functions(handle, error);
    if (status != ATTN_OK)
        return status;
    bool own = !py.Py_IsInitialized();
    if (own)
        initialise(handle, it.program);
    return load_backend(own, error);
}

attn_status python_start(attn_error *error)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    attn_status status = py.backend ? ATTN_OK : start(error);
    pthread_mutex_unlock(&mutex);
    return status;
}

bool python_is_there(void)
{
    return py.backend && py.Py_IsInitialized();
}

/* ---- Objects --------------------------------------------------------------------------------- */

py_object *python_none(void)
{
    py.Py_IncRef(py.None);
    return py.None;
}

py_object *python_int(int64_t value)
{
    return py.PyLong_FromLongLong(value);
}

py_object *python_text(const char *text)
{
    return text ? py.PyUnicode_DecodeUTF8(text, (ptrdiff_t)strlen(text), "replace") : python_none();
}

const char *python_utf8(py_object *text)
{
    const char *utf8 = text ? py.PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    if (!utf8)
        py.PyErr_Clear();
    return utf8 ? utf8 : "";
}

void python_put(py_object *tuple, int place, py_object *item)
{
    if (!item) {
        py.PyErr_Clear();
        item = python_none();
    }
    if (tuple)
        py.PyTuple_SetItem(tuple, place, item);
    else
        py.Py_DecRef(item);
}

/* ---- Calls ----------------------------------------------------------------------------------- */

attn_status python_failed(attn_error *error)
{
    py_object *kind = NULL, *value = NULL, *trace = NULL;
    py.PyErr_Fetch(&kind, &value, &trace);
    py_object *text = value ? py.PyObject_Str(value) : NULL;
    attn_util_fail(error, ATTN_INTERNAL, "%s", text ? python_utf8(text) : "an exception");
    py.PyErr_Clear();
    py.Py_DecRef(text);
    py.Py_DecRef(kind);
    py.Py_DecRef(value);
    py.Py_DecRef(trace);
    return ATTN_INTERNAL;
}

py_object *python_call(py_object *callable, py_object *arguments, attn_error *error)
{
    py_object *answer = callable && arguments ? py.PyObject_CallObject(callable, arguments) : NULL;
    py.Py_DecRef(arguments);
    if (!answer)
        python_failed(error);
    return answer;
}

uint32_t python_field(const char *name)
{
    for (uint32_t field = 1; *name && field < ATTN_FIELD_COUNT; field++)
        if (strcmp(attn_util_field_name(field), name) == 0)
            return field;
    return ATTN_FIELD_NONE;
}

attn_status python_status(py_object *answer, attn_error *error)
{
    if (!answer)
        return ATTN_INTERNAL;
    attn_status status = ATTN_OK;
    if (answer != py.None) {
        status = (attn_status)py.PyLong_AsLongLong(py.PyTuple_GetItem(answer, 0));
        uint32_t field = python_field(python_utf8(py.PyTuple_GetItem(answer, 1)));
        attn_util_fail_field(error, status, field, "%s",
                             python_utf8(py.PyTuple_GetItem(answer, 2)));
    }
    py.Py_DecRef(answer);
    return status;
}

attn_status python_run(py_object *object, const char *method, py_object *arguments,
                       attn_error *error)
{
    py_object *callable = py.PyObject_GetAttrString(object, method);
    py_object *answer = python_call(callable, arguments, error);
    py.Py_DecRef(callable);
    return python_status(answer, error);
}
