/* SPDX-License-Identifier: Apache-2.0
 *
 * source.c: sources and their tables. The host's slots of a plugin carry no context: each source
 * has a describe() of its own, of which there are as many as a process may have sources.
 */
#include "plugins/common/plugin_entry.h"
#include "plugins/python/python.h"

#include <pthread.h>
#include <stdlib.h>

/* The sources that a process can have: X(number) */
/* clang-format off */
#define SOURCES(X) \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) \
    X(17) X(18) X(19) X(20) X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
/* clang-format on */
enum { MAX_SOURCES = 32 };

struct source {
    char *name;
    const attn_backend_type **types; /* [num_types] */
    uint32_t num_types;
    attn_plugin table;
};

static struct source sources[MAX_SOURCES];
static int num_sources;

static attn_status describe(int source, uint32_t index, const attn_backend_type **type,
                            attn_error *error)
{
    return attn_util_describe(sources[source].types, sources[source].num_types, index, type, error);
}

#define DESCRIBE(number)                                                                           \
    static attn_status describe_##number(uint32_t index, const attn_backend_type **type,           \
                                         attn_error *error)                                        \
    {                                                                                              \
        return describe(number, index, type, error);                                               \
    }
SOURCES(DESCRIBE)
#undef DESCRIBE

static attn_status (*const describes[MAX_SOURCES])(uint32_t, const attn_backend_type **,
                                                   attn_error *) = {
#define DESCRIBE(number) describe_##number,
    SOURCES(DESCRIBE)
#undef DESCRIBE
};

/* ---- A source -------------------------------------------------------------------------------- */

/* `answer`: a tuple of _Kind, or (status, field, text). */
static attn_status read_kinds(struct source *source, py_object *answer, attn_error *error)
{
    ptrdiff_t count = py.PyTuple_Size(answer);
    source->types = calloc((size_t)count, sizeof(attn_backend_type *));
    attn_status status = source->types ? ATTN_OK : ATTN_OUT_OF_HOST_MEMORY;
    for (ptrdiff_t k = 0; k < count && status == ATTN_OK; k++) {
        struct python_kind *kind = calloc(1, sizeof *kind);
        if (!kind)
            return ATTN_OUT_OF_HOST_MEMORY;
        kind->object = py.PyTuple_GetItem(answer, k);
        py.Py_IncRef(kind->object);
        status = python_declare(kind, error);
        source->types[k] = &kind->type;
    }
    source->num_types = (uint32_t)count;
    return status;
}

/* backend.py's _open() answers a list of kinds as (kinds,), a failure as (status, field, text). */
static attn_status open_source(struct source *source, attn_error *error)
{
    enum { PROTOCOL = 1 };
    struct python_lock lock = python_lock();
    py_object *function = py.PyObject_GetAttrString(py.backend, "_open");
    py_object *arguments = py.PyTuple_New(2);
    python_put(arguments, 0, python_text(source->name));
    python_put(arguments, 1, python_int(PROTOCOL));
    py_object *answer = python_call(function, arguments, error);
    py.Py_DecRef(function);
    attn_status status = ATTN_INTERNAL;
    if (answer && py.PyTuple_Size(answer) == 1) {
        status = read_kinds(source, py.PyTuple_GetItem(answer, 0), error);
        py.Py_DecRef(answer);
    } else {
        status = python_status(answer, error);
    }
    python_unlock(&lock);
    return status;
}

static attn_status add_source(const char *name, struct source **out, attn_error *error)
{
    if (num_sources == MAX_SOURCES)
        return attn_util_fail(error, ATTN_UNSUPPORTED, "accepted up to %d sources in a process",
                              MAX_SOURCES);
    attn_status status = python_start(error);
    struct source *source = &sources[num_sources];
    *source = (struct source){.name = strdup(name)};
    if (status == ATTN_OK)
        status = source->name ? open_source(source, error) : ATTN_OUT_OF_HOST_MEMORY;
    if (status != ATTN_OK)
        return status;
    source->table = (attn_plugin){.name = source->types[0]->name,
                                  .doc = "a backend written in Python",
                                  .num_backends = source->num_types,
                                  .describe = describes[num_sources]};
    num_sources++;
    *out = source;
    return ATTN_OK;
}

static attn_status find_source(const char *name, struct source **out, attn_error *error)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    attn_status status = ATTN_OK;
    pthread_mutex_lock(&mutex);
    int s = 0;
    while (s < num_sources && strcmp(sources[s].name, name) != 0)
        s++;
    if (s < num_sources)
        *out = &sources[s];
    else
        status = add_source(name, out, error);
    pthread_mutex_unlock(&mutex);
    return status;
}

ATTN_EXPORT attn_status attn_plugin_entry(const attn_host_info *host, attn_plugin *plugin,
                                          attn_error *error)
{
    struct source *source = NULL;
    const attn_plugin none = {.name = "python", .doc = "runs backends written in Python"};
    attn_plugin ignored = {.struct_size = sizeof ignored};
    attn_status status = plugin_answer(host, &none, &ignored, error);
    const char *name = ATTN_HAS(host, attn_host_info, source) ? host->source : NULL;
    if (status == ATTN_OK && !name)
        status = attn_util_fail(error, ATTN_UNSUPPORTED,
                                "runs backends written in Python: name a .py file in its place");
    if (status == ATTN_OK)
        status = find_source(name, &source, error);
    return status == ATTN_OK ? plugin_answer(host, &source->table, plugin, error) : status;
}
