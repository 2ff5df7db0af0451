/* SPDX-License-Identifier: Apache-2.0
 *
 * declare.c: declarations of a class in Python, read into tables.
 */
#include "plugins/python/python.h"

#include <stdlib.h>

/* ---- Words ----------------------------------------------------------------------------------- */

/* The item of a list separated by commas and spaces; NULL at its end. */
static const char *next_item(const char **list, char item[64])
{
    *list += strspn(*list, ", \n");
    size_t length = strcspn(*list, ", \n");
    if (length == 0)
        return NULL;
    snprintf(item, 64, "%.*s", length < 63 ? (int)length : 63, *list);
    *list += length;
    return item;
}

typedef const char *(*name_of)(uint32_t value);

static const char *device_name(uint32_t value)
{
    const char *name = attn_device_name((int32_t)value);
    return strcmp(name, "unknown") == 0 || attn_device_is_memory((int32_t)value) ? NULL : name;
}

#define NAMES(function, field)                                                                     \
    static const char *function(uint32_t value)                                                    \
    {                                                                                              \
        return attn_util_member_name(field, value);                                                \
    }
NAMES(mode_name, ATTN_FIELD_MODES)
NAMES(mask_name, ATTN_FIELD_MASK_KINDS)
NAMES(use_name, ATTN_FIELD_USES)
NAMES(trait_name, ATTN_FIELD_REQUIRED_TRAITS)
NAMES(form_name, ATTN_FIELD_INDEX_FORMS)
NAMES(layer_flag_name, ATTN_FIELD_LAYERS)
#undef NAMES

static const char *pick(const char *const *names, uint32_t count, uint32_t value)
{
    return value < count ? names[value] : NULL;
}

static const char *kind_name(uint32_t value)
{
    return value == ATTN_KIND_SOFTMAX || value == ATTN_KIND_MLA ? attn_util_kind_name(value) : NULL;
}

static const char *attn_type_name(uint32_t value)
{
    return value < ATTN_TYPE_COUNT ? attn_util_attn_type_name(value) : NULL;
}

static const char *group_flag_name(uint32_t value)
{
    static const char *const names[] = {"sinks", "alibi", "logit_cap", "attention_chunk"};
    return pick(names, 4, value);
}

static const char *graph_level_name(uint32_t value)
{
    static const char *const names[] = {"never", "single_token", "uniform", "always"};
    return pick(names, 4, value);
}

static const char *host_array_name(uint32_t value)
{
#define HOST_NAME(name, bit, text) text,
    static const char *const names[] = {ATTN_HOST_MAP(HOST_NAME)};
#undef HOST_NAME
    return pick(names, sizeof names / sizeof names[0], value);
}

static const attn_dtype dtypes[] = {ATTN_F16, ATTN_BF16, ATTN_F32, ATTN_F64};

static const char *dtype_name(uint32_t value)
{
    return value < sizeof dtypes / sizeof dtypes[0] ? attn_util_dtype_name(dtypes[value]) : NULL;
}

static void list_names(name_of name, char *text, size_t size)
{
    size_t length = 0;
    text[0] = '\0';
    for (uint32_t value = 0; value < 32; value++)
        if (name(value) && length < size)
            length += (size_t)snprintf(text + length, size - length, "%s%s", length ? ", " : "",
                                       name(value));
}

/* The set of 1 << value that a list of words names. */
static attn_status read_set(py_object *declaration, int place, const char *what, name_of name,
                            uint32_t *set, attn_error *error)
{
    const char *list = python_utf8(py.PyTuple_GetItem(declaration, place));
    char item[64], accepted[512];
    *set = 0;
    while (next_item(&list, item)) {
        uint32_t value = 0;
        while (value < 32 && !(name(value) && strcmp(name(value), item) == 0))
            value++;
        list_names(name, accepted, sizeof accepted);
        if (value == 32)
            return attn_util_fail(error, ATTN_CONFIG_ERROR, "%s: '%s': accepted %s", what, item,
                                  accepted);
        *set |= 1u << value;
    }
    return ATTN_OK;
}

/* ---- Parts ----------------------------------------------------------------------------------- */

/* In the order of _Kind.declaration(). */
enum {
    NAME,
    DOC,
    DEVICES,
    DTYPES,
    LAYOUTS,
    KINDS,
    ATTN_TYPES,
    FLAGS,
    LAYER_FLAGS,
    MODES,
    MASKS,
    USES,
    TRAITS,
    INDEX_FORMS,
    HOST_ARRAYS,
    GRAPH_LEVEL,
    COST_HINT,
    ASKS,
    RANGES,
    OPTIONS,
    SAVES
};

static char *copy_text(py_object *tuple, int place)
{
    py_object *item = py.PyTuple_GetItem(tuple, place);
    return item == py.None ? NULL : strdup(python_utf8(item));
}

static attn_status read_dtypes(struct python_kind *kind, py_object *declaration, attn_error *error)
{
    uint32_t set;
    attn_status status = read_set(declaration, DTYPES, "dtypes", dtype_name, &set, error);
    attn_dtype *list = calloc(sizeof dtypes / sizeof dtypes[0], sizeof *list);
    if (status != ATTN_OK || !list)
        return status;
    for (uint32_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++)
        if (set >> d & 1u)
            list[kind->limits.num_dtypes++] = dtypes[d];
    kind->limits.dtypes = list;
    return set ? ATTN_OK
               : attn_util_fail(error, ATTN_CONFIG_ERROR, "dtypes: accepted at least one");
}

static attn_status read_layouts(struct python_kind *kind, py_object *declaration, attn_error *error)
{
    static const char *const known[] = {ATTN_LAYOUT_KV_NHD, ATTN_LAYOUT_KV_HND,
                                        ATTN_LAYOUT_MLA_LATENT};
    const char *list = python_utf8(py.PyTuple_GetItem(declaration, LAYOUTS));
    char item[64];
    kind->layouts = calloc(4, sizeof *kind->layouts);
    while (kind->layouts && next_item(&list, item)) {
        int place = 0;
        while (place < 3 && strcmp(known[place], item) != 0)
            place++;
        if (place == 3 || kind->num_layouts == 3)
            return attn_util_fail(error, ATTN_CONFIG_ERROR,
                                  "layouts: '%s': accepted kv.nhd/1, kv.hnd/1, mla.latent/1", item);
        kind->layouts[kind->num_layouts++] = strdup(item);
    }
    return kind->layouts ? ATTN_OK : ATTN_OUT_OF_HOST_MEMORY;
}

static attn_status read_sets(struct python_kind *kind, py_object *declaration, attn_error *error)
{
    uint32_t flags = 0, level = 0;
    attn_util_limits *limits = &kind->limits;
    const struct {
        int place;
        const char *what;
        name_of name;
        uint32_t *set;
    } sets[] = {{DEVICES, "devices", device_name, &kind->devices},
                {KINDS, "kinds", kind_name, &limits->kinds},
                {ATTN_TYPES, "attn_types", attn_type_name, &limits->attn_types},
                {FLAGS, "flags", group_flag_name, &flags},
                {LAYER_FLAGS, "layer_flags", layer_flag_name, &limits->layer_flags},
                {MODES, "modes", mode_name, &limits->modes},
                {MASKS, "mask_kinds", mask_name, &limits->mask_kinds},
                {USES, "uses", use_name, &limits->uses},
                {TRAITS, "traits", trait_name, &limits->traits},
                {INDEX_FORMS, "index_forms", form_name, &kind->index_forms},
                {HOST_ARRAYS, "host_arrays", host_array_name, &kind->host_arrays},
                {GRAPH_LEVEL, "graph_level", graph_level_name, &level}};
    attn_status status = ATTN_OK;
    for (size_t s = 0; s < sizeof sets / sizeof sets[0] && status == ATTN_OK; s++)
        status =
            read_set(declaration, sets[s].place, sets[s].what, sets[s].name, sets[s].set, error);
    limits->granularities = 1u << ATTN_SCALE_NONE;
    limits->group_flags = flags & (ATTN_GROUP_HAS_SINKS | ATTN_GROUP_HAS_ALIBI);
    kind->caps_logits = flags >> 2 & 1u;
    limits->chunks = flags >> 3 & 1u;
    while (level > 1u) { /* the largest listed value */
        level >>= 1;
        limits->graph_level++;
    }
    return status;
}

static attn_status read_ranges(struct python_kind *kind, py_object *declaration)
{
    py_object *ranges = py.PyTuple_GetItem(declaration, RANGES);
    ptrdiff_t count = py.PyTuple_Size(ranges);
    kind->ranges = calloc((size_t)count + 1, sizeof *kind->ranges);
    for (ptrdiff_t r = 0; kind->ranges && r < count; r++) {
        py_object *range = py.PyTuple_GetItem(ranges, r);
        uint32_t field = python_field(python_utf8(py.PyTuple_GetItem(range, 0)));
        kind->ranges[kind->num_ranges++] = (struct python_range){field, copy_text(range, 1)};
    }
    return kind->ranges ? ATTN_OK : ATTN_OUT_OF_HOST_MEMORY;
}

/* ---- Options --------------------------------------------------------------------------------- */

static const char *option_type_name(uint32_t value)
{
    static const char *const names[] = {"bool", "int", "float", "string", "enum", "size", "path"};
    return pick(names, 7, value);
}

static const char *const *read_choices(py_object *choices, uint32_t *count)
{
    *count = choices == py.None ? 0 : (uint32_t)py.PyTuple_Size(choices);
    char **list = *count ? calloc(*count, sizeof *list) : NULL;
    for (uint32_t c = 0; list && c < *count; c++)
        list[c] = copy_text(choices, (int)c);
    return (const char *const *)list;
}

/* (key, type, default, min, max, choices, unit, doc, is_repeated) */
static attn_status read_option(py_object *given, attn_option *option, attn_error *error)
{
    uint32_t type;
    attn_status status = read_set(given, 1, "type of an option", option_type_name, &type, error);
    if (status != ATTN_OK)
        return status;
    ATTN_UTIL_INIT(option);
    while (type > 1u) {
        type >>= 1;
        option->type++;
    }
    option->key = copy_text(given, 0);
    option->default_text = copy_text(given, 2);
    option->min = py.PyFloat_AsDouble(py.PyTuple_GetItem(given, 3));
    option->max = py.PyFloat_AsDouble(py.PyTuple_GetItem(given, 4));
    option->choices = read_choices(py.PyTuple_GetItem(given, 5), &option->num_choices);
    option->unit = copy_text(given, 6);
    option->doc = copy_text(given, 7);
    if (py.PyLong_AsLongLong(py.PyTuple_GetItem(given, 8)))
        option->flags |= ATTN_OPTION_REPEATED;
    else if (!option->default_text)
        option->flags |= ATTN_OPTION_REQUIRED;
    return ATTN_OK;
}

static attn_status read_options(attn_backend_type *type, py_object *declaration, attn_error *error)
{
    py_object *options = py.PyTuple_GetItem(declaration, OPTIONS);
    ptrdiff_t count = py.PyTuple_Size(options);
    attn_option *list = calloc((size_t)count + 1, sizeof *list);
    attn_status status = list ? ATTN_OK : ATTN_OUT_OF_HOST_MEMORY;
    for (ptrdiff_t o = 0; o < count && status == ATTN_OK; o++)
        status = read_option(py.PyTuple_GetItem(options, o), &list[o], error);
    type->options = list;
    type->num_options = (uint32_t)count;
    return status;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static attn_status read_declaration(struct python_kind *kind, py_object *declaration,
                                    attn_error *error)
{
    attn_status status = read_dtypes(kind, declaration, error);
    if (status == ATTN_OK)
        status = read_layouts(kind, declaration, error);
    if (status == ATTN_OK)
        status = read_sets(kind, declaration, error);
    if (status == ATTN_OK)
        status = read_ranges(kind, declaration);
    if (status == ATTN_OK)
        status = read_options(&kind->type, declaration, error);
    return status;
}

attn_status python_declare(struct python_kind *kind, attn_error *error)
{
    py_object *method = py.PyObject_GetAttrString(kind->object, "declaration");
    py_object *declaration = python_call(method, py.PyTuple_New(0), error);
    py.Py_DecRef(method);
    if (!declaration)
        return ATTN_INTERNAL;
    attn_backend_type *type = &kind->type;
    ATTN_UTIL_INIT(type);
    type->name = copy_text(declaration, NAME);
    type->doc = copy_text(declaration, DOC);
    type->ops = &python_ops;
    type->query = python_query;
    type->create = python_create;
    kind->cost_hint = py.PyFloat_AsDouble(py.PyTuple_GetItem(declaration, COST_HINT));
    kind->asks = (uint32_t)py.PyLong_AsLongLong(py.PyTuple_GetItem(declaration, ASKS));
    kind->saves = (uint32_t)py.PyLong_AsLongLong(py.PyTuple_GetItem(declaration, SAVES));
    attn_status status = read_declaration(kind, declaration, error);
    type->num_layouts = kind->num_layouts;
    type->layouts = (const char *const *)kind->layouts;
    py.Py_DecRef(declaration);
    return status == ATTN_OK ? status
                             : attn_util_fail_prefix(error, status, "class %s", type->name);
}
