/* SPDX-License-Identifier: Apache-2.0
 *
 * spy_cuda.c: an object with the name and the entry points of the CUDA driver.
 *
 * Every entry point is an indirect function: a lookup returns the spy's version if the call is
 * recorded, the real driver's address if it is not, and NULL if the real driver lacks it. So no
 * caller sees another driver than the real one. cuGetProcAddress() returns the same. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* RTLD_NODELETE */
#endif
#include "host/check/spy/spy_cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "host/check/spy/spy_cuda_calls.h"
#include "host/check/spy/spy_cuda_names.h"

#define EXPORTED __attribute__((visibility("default")))

typedef void (*any_function)(void);

/* ---- The real driver ------------------------------------------------------------------------- */

/* Written once, by spy_cuda_open(). */
static struct {
    void *library;
    any_function getProcAddress, getProcAddress_v2;
    cuda_result (*cuPointerGetAttributes)(unsigned int count, unsigned int *attributes,
                                          void **values, cuda_pointer memory);
#define REAL_MEMBER(symbol, since, per_thread, parameters, arguments, ...)                         \
    cuda_result(*symbol) parameters;
    SPY_CUDA_CALLS(REAL_MEMBER)
#undef REAL_MEMBER
} real;

/* POSIX: an object pointer can carry a function's address. */
static any_function real_function(const char *symbol)
{
    any_function function = NULL;
    void *address = real.library ? dlsym(real.library, symbol) : NULL;
    memcpy(&function, &address, sizeof function);
    return function;
}

/* ---- Records --------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    atomic_bool watching;
    uint32_t failing; /* a mask of SPY_*, and what these calls give */
    int32_t failure;
    uint32_t count;
    struct spy_record records[SPY_MAX_RECORDS];
} notes = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Repeated queries whether work is done are recorded once. */
static bool is_repeated(const struct spy_record *record)
{
    if (record->kind != SPY_ASK || notes.count == 0 || notes.count > SPY_MAX_RECORDS)
        return false;
    const struct spy_record *last = &notes.records[notes.count - 1];
    return last->call == record->call && last->stream == record->stream &&
           last->event == record->event;
}

static void note(struct spy_record record, int per_thread)
{
    bool has_stream = record.kind == SPY_ENQUEUE || record.kind == SPY_RECORD ||
                      record.kind == SPY_WAIT || record.kind == SPY_COPY;
    if (has_stream && !record.stream)
        record.stream = per_thread ? SPY_PER_THREAD_STREAM : SPY_LEGACY_STREAM;
    pthread_mutex_lock(&notes.lock);
    if (notes.watching && !is_repeated(&record)) {
        if (notes.count < SPY_MAX_RECORDS)
            notes.records[notes.count] = record;
        notes.count++;
    }
    pthread_mutex_unlock(&notes.lock);
}

/* Does this call fail without being made? */
static bool fails(struct spy_record *record)
{
    if (!notes.watching)
        return false;
    pthread_mutex_lock(&notes.lock);
    bool failing = notes.failing & 1u << record->kind;
    if (failing)
        record->result = notes.failure;
    pthread_mutex_unlock(&notes.lock);
    return failing;
}

/* A copy to host memory that is not pinned returns when it is done. */
static uint32_t kind_of_copy(cuda_pointer to)
{
    unsigned int type = 0, attribute = CUDA_POINTER_MEMORY_TYPE;
    void *value = &type;
    if (!notes.watching || !real.cuPointerGetAttributes)
        return SPY_ENQUEUE;
    cuda_result result = real.cuPointerGetAttributes(1, &attribute, &value, to);
    return result == CUDA_SUCCESS && type != 0 ? SPY_ENQUEUE : SPY_COPY;
}

/* ---- Calls that are noted -------------------------------------------------------------------- */

#define SPIED(symbol, since, per_thread, parameters, arguments, ...)                               \
    static cuda_result spied_##symbol parameters                                                   \
    {                                                                                              \
        struct spy_record record = {.call = #symbol, __VA_ARGS__};                                 \
        if (!fails(&record))                                                                       \
            record.result = (int32_t)real.symbol arguments;                                        \
        note(record, per_thread);                                                                  \
        return (cuda_result)record.result;                                                         \
    }
SPY_CUDA_CALLS(SPIED)
#undef SPIED

/* ---- cuGetProcAddress ------------------------------------------------------------------------ */

static cuda_result spied_cuGetProcAddress(const char *name, void **address, int version,
                                          uint64_t flags);
static cuda_result spied_cuGetProcAddress_v2(const char *name, void **address, int version,
                                             uint64_t flags, void *status);

struct spied_call {
    const char *symbol;
    int since, per_thread;
    any_function function;
};

static const struct spied_call spied_calls[] = {
    {"cuGetProcAddress", 11030, 0, (any_function)spied_cuGetProcAddress},
    {"cuGetProcAddress", 12000, 0, (any_function)spied_cuGetProcAddress_v2},
#define SPIED_CALL(symbol, since, per_thread, parameters, arguments, ...)                          \
    {#symbol, since, per_thread, (any_function)spied_##symbol},
    SPY_CUDA_CALLS(SPIED_CALL)
#undef SPIED_CALL
};

/* "cuX_v2" and "cuX_v2_ptsz" are symbols of "cuX". */
static bool is_named(const char *symbol, const char *name)
{
    size_t length = strlen(name);
    return strncmp(symbol, name, length) == 0 && (symbol[length] == '\0' || symbol[length] == '_');
}

/* The newest version that this CUDA version knows; those of a call without streams serve all. */
static const struct spied_call *find_spied(const char *name, int version, int per_thread)
{
    const struct spied_call *found = NULL;
    for (size_t i = 0; i < sizeof spied_calls / sizeof spied_calls[0]; i++) {
        const struct spied_call *call = &spied_calls[i];
        if (!is_named(call->symbol, name) || call->since > version || call->per_thread > per_thread)
            continue;
        if (!found || call->per_thread > found->per_thread ||
            (call->per_thread == found->per_thread && call->since > found->since))
            found = call;
    }
    return found;
}

/* Let *address, which the real driver gave, be the spy's own. */
static void replace(const char *name, void **address, int version, uint64_t flags)
{
    enum { PER_THREAD_DEFAULT_STREAM = 2 };
    const struct spied_call *call =
        find_spied(name, version, (flags & PER_THREAD_DEFAULT_STREAM) != 0);
    if (call && address && *address)
        memcpy(address, &call->function, sizeof call->function);
}

static cuda_result spied_cuGetProcAddress(const char *name, void **address, int version,
                                          uint64_t flags)
{
    cuda_result (*function)(const char *, void **, int, uint64_t) =
        (cuda_result(*)(const char *, void **, int, uint64_t))real.getProcAddress;
    cuda_result result = function(name, address, version, flags);
    if (result == CUDA_SUCCESS)
        replace(name, address, version, flags);
    return result;
}

static cuda_result spied_cuGetProcAddress_v2(const char *name, void **address, int version,
                                             uint64_t flags, void *status)
{
    cuda_result (*function)(const char *, void **, int, uint64_t, void *) =
        (cuda_result(*)(const char *, void **, int, uint64_t, void *))real.getProcAddress_v2;
    cuda_result result = function(name, address, version, flags, status);
    if (result == CUDA_SUCCESS)
        replace(name, address, version, flags);
    return result;
}

/* ---- Entry points ---------------------------------------------------------------------------- */

/* Their types do not matter for lookups. */
#define ENTRY_POINT(symbol, found)                                                                 \
    __attribute__((used)) static any_function resolve_##symbol(void)                               \
    {                                                                                              \
        return found;                                                                              \
    }                                                                                              \
    EXPORTED void symbol(void);                                                                    \
    void symbol(void) __attribute__((ifunc("resolve_" #symbol)));

#define NOTED_ENTRY_POINT(symbol, since, per_thread, parameters, arguments, ...)                   \
    ENTRY_POINT(symbol, real.symbol ? (any_function)spied_##symbol : NULL)
#define PASSED_ENTRY_POINT(symbol) ENTRY_POINT(symbol, real_function(#symbol))

SPY_CUDA_CALLS(NOTED_ENTRY_POINT)
SPY_CUDA_NAMES(PASSED_ENTRY_POINT)
ENTRY_POINT(cuGetProcAddress, real.getProcAddress ? (any_function)spied_cuGetProcAddress : NULL)
ENTRY_POINT(cuGetProcAddress_v2,
            real.getProcAddress_v2 ? (any_function)spied_cuGetProcAddress_v2 : NULL)

/* ---- Controls -------------------------------------------------------------------------------- */

#define DECLARE_CONTROL(type, name, parameters) EXPORTED type spy_cuda_##name parameters;
SPY_CUDA_CONTROLS(DECLARE_CONTROL)
#undef DECLARE_CONTROL

const char *spy_cuda_open(const char *file)
{
    static char why[512];
    if (real.library)
        return "the spy already has a driver";
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        snprintf(why, sizeof why, "%s", dlerror());
        return why;
    }
    if (dlsym(library, "spy_cuda_open")) {
        snprintf(why, sizeof why, "%.400s is the spy itself", file);
        return why;
    }
    real.library = library;
    any_function function;
#define FIND(symbol, since, per_thread, parameters, arguments, ...)                                \
    function = real_function(#symbol);                                                             \
    memcpy(&real.symbol, &function, sizeof function);
    SPY_CUDA_CALLS(FIND)
#undef FIND
    function = real_function("cuPointerGetAttributes");
    memcpy(&real.cuPointerGetAttributes, &function, sizeof function);
    real.getProcAddress = real_function("cuGetProcAddress");
    real.getProcAddress_v2 = real_function("cuGetProcAddress_v2");
    return NULL;
}

void spy_cuda_begin(void)
{
    pthread_mutex_lock(&notes.lock);
    notes.watching = true;
    notes.count = 0;
    pthread_mutex_unlock(&notes.lock);
}

void spy_cuda_end(void)
{
    pthread_mutex_lock(&notes.lock);
    notes.watching = false;
    notes.failing = 0;
    pthread_mutex_unlock(&notes.lock);
}

void spy_cuda_fail(uint32_t kinds, int32_t result)
{
    pthread_mutex_lock(&notes.lock);
    notes.failing = kinds;
    notes.failure = result;
    pthread_mutex_unlock(&notes.lock);
}

uint32_t spy_cuda_records(const struct spy_record **records)
{
    *records = notes.records;
    return notes.count;
}
