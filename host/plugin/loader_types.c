/* SPDX-License-Identifier: Apache-2.0
 *
 * loader_types.c: one check of every string that the host prints and every slot that it calls.
 */
#include "host/plugin/loader.h"

#include "host/plugin/adapters.h"
#include "host/plugin/answer.h"
#include "host/plugin/guard.h"
#include "host/plugin/layouts.h"
#include "host/plugin/private_operands.h"
#include "host/plugin/options.h"
#include "host/base/text.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TYPES = 4096 }; /* more is a number that was never set */

#define MANDATORY(pointer, member)                                                                 \
    {                                                                                              \
#member, (pointer)->member != NULL                                                         \
    }

#define GARBLED "%s: a text is '%.100s'; accepted: UTF-8 without control characters"

struct mandatory {
    const char *name;
    int present;
};

/* The first one that is NULL, or NULL. */
static const char *find_missing(const struct mandatory *members, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!members[i].present)
            return members[i].name;
    return NULL;
}

/* The first one that is no UTF-8, or has a control character, or NULL; they are printed and become
 * JSON (STRUCT-08). */
static const char *find_garbled(const char *const *texts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!text_is_line(texts[i]))
            return texts[i];
    return NULL;
}

static attn_status check_plugin(const struct loader_plugin *plugin, attn_error *error)
{
    const attn_plugin *table = &plugin->table;
    const struct mandatory members[] = {MANDATORY(table, name), MANDATORY(table, version),
                                        MANDATORY(table, vendor), MANDATORY(table, doc),
                                        MANDATORY(table, describe)};
    const char *missing = find_missing(members, sizeof members / sizeof *members);
    if (missing)
        return host_fail(error, ATTN_INTERNAL, "%s: attn_plugin.%s is NULL", plugin->file, missing);
    if (!options_is_name(table->name))
        return host_fail(error, ATTN_INTERNAL,
                         "%s: the plugin's name is '%.100s'; accepted: [a-z][a-z0-9_]*",
                         plugin->file, table->name);
    const char *const texts[] = {table->version, table->vendor, table->doc};
    const char *garbled = find_garbled(texts, sizeof texts / sizeof *texts);
    if (garbled)
        return host_fail(error, ATTN_INTERNAL, GARBLED, plugin->file, garbled);
    if (table->num_backends == 0 || table->num_backends > MAX_TYPES)
        return host_fail(error, ATTN_INTERNAL, "%s: num_backends is %u; accepted: 1..%d",
                         plugin->file, table->num_backends, MAX_TYPES);
    if (!table->init != !table->fini)
        return host_fail(error, ATTN_INTERNAL,
                         "%s: one of init and fini is NULL; accepted: both "
                         "or neither",
                         plugin->file);
    return ATTN_OK;
}

static attn_status check_ops(const char *file, const attn_backend_type *type, attn_error *error)
{
    const attn_backend_ops *ops = type->ops;
    if (!ATTN_HAS(ops, attn_backend_ops, get_extension))
        return host_fail(
            error, ATTN_INTERNAL,
            "%s: backend type %s: attn_backend_ops.struct_size is %u; accepted: %zu or "
            "more",
            file, type->name, ops->struct_size, sizeof *ops);
    const struct mandatory members[] = {
        MANDATORY(ops, destroy),          MANDATORY(ops, index_forms),
        MANDATORY(ops, metadata_size),    MANDATORY(ops, metadata_create),
        MANDATORY(ops, metadata_destroy), MANDATORY(ops, init_forward_metadata)};
    const char *missing = find_missing(members, sizeof members / sizeof *members);
    if (missing)
        return host_fail(error, ATTN_INTERNAL, "%s: backend type %s: attn_backend_ops.%s is NULL",
                         file, type->name, missing);
    if (!ops->forward_extend && !ops->forward_decode)
        return host_fail(error, ATTN_INTERNAL,
                         "%s: backend type %s has neither forward_extend nor forward_decode", file,
                         type->name);
    return ATTN_OK;
}

/* Composites declare children, and no other backend does. */
static attn_status check_children(const char *file, const attn_backend_type *type,
                                  attn_error *error)
{
    int refs = 0;
    for (uint32_t o = 0; o < type->num_options; o++) {
        const attn_option *option = attn_at(type->options, o);
        refs += option->type == ATTN_OPTION_BACKEND_REF;
    }
    int composite = (type->flags & ATTN_BACKEND_COMPOSITE) != 0;
    if (composite == (refs > 0))
        return ATTN_OK;
    return host_fail(
        error, ATTN_INTERNAL,
        "%s: backend type %s %s ATTN_BACKEND_COMPOSITE, but has %d backend-ref options", file,
        type->name, composite ? "declares" : "does not declare", refs);
}

static attn_status check_layouts(const char *file, const attn_backend_type *type, attn_error *error)
{
    for (uint32_t l = 0; l < type->num_layouts; l++) {
        if (!type->layouts || !type->layouts[l])
            return host_fail(error, ATTN_INTERNAL, "%s: backend type %s: layout %u is NULL", file,
                             type->name, l);
        if (!layouts_public(type->layouts[l]) && !layouts_is_private(type->layouts[l]))
            return host_fail(error, ATTN_INTERNAL,
                             "%s: backend type %s: layout '%.100s': accepted: one of "
                             "attn_problem.h, or VENDOR.NAME/REVISION with a vendor other than "
                             "attn, kv, mla and state",
                             file, type->name, type->layouts[l]);
    }
    return ATTN_OK;
}

/* What is wrong with a declaration, or NULL. */
static const char *check_operand(const attn_backend_type *type, uint32_t index)
{
    const attn_private_operand *operand = attn_at(type->operands, index);
    if (!ATTN_HAS(operand, attn_private_operand, shape))
        return "a struct_size that is too small";
    if (!operand->name || !operand->doc || !text_is_line(operand->doc))
        return "no name, or no doc of one line";
    if (!operands_is_private(operand->name))
        return "a name that is not VENDOR.NAME, each [a-z][a-z0-9_]*, 63 bytes at most, VENDOR not "
               "attn";
    for (uint32_t o = 0; o < index; o++)
        if (strcmp(((const attn_private_operand *)attn_at(type->operands, o))->name,
                   operand->name) == 0)
            return "a name that is declared twice";
    if (operand->ndim == 0 || operand->ndim > ATTN_MAX_DIMS)
        return "an ndim that is not 1..6";
    for (uint32_t d = 0; d < operand->ndim; d++)
        if (operand->shape[d] < ATTN_EXTENT_LAST)
            return "an extent that is neither positive nor ATTN_EXTENT_*";
    return NULL;
}

static attn_status check_operands(const char *file, const attn_backend_type *type,
                                  attn_error *error)
{
    uint32_t count = ATTN_HAS(type, attn_backend_type, operands) ? type->num_operands : 0;
    if (count > OPERANDS_PRIVATE_MAX || (count > 0 && !type->operands))
        return host_fail(error, ATTN_INTERNAL,
                         "%s: backend type %s: num_operands is %u%s; accepted: 0..%d", file,
                         type->name, count, type->operands ? "" : " and operands NULL",
                         OPERANDS_PRIVATE_MAX);
    for (uint32_t o = 0; o < count; o++) {
        const char *wrong = check_operand(type, o);
        if (wrong)
            return host_fail(error, ATTN_INTERNAL, "%s: backend type %s: private operand %u has %s",
                             file, type->name, o, wrong);
    }
    return ATTN_OK;
}

static attn_status check_type(const char *file, uint32_t index, const attn_backend_type *type,
                              attn_error *error)
{
    if (!type)
        return host_fail(error, ATTN_INTERNAL, "%s: backend %u: describe gave NULL", file, index);
    if (!ATTN_HAS(type, attn_backend_type, create))
        return host_fail(
            error, ATTN_INTERNAL,
            "%s: backend %u: attn_backend_type.struct_size is %u; accepted: %zu or more", file,
            index, type->struct_size, sizeof *type);
    const struct mandatory members[] = {MANDATORY(type, name), MANDATORY(type, doc),
                                        MANDATORY(type, ops), MANDATORY(type, query),
                                        MANDATORY(type, create)};
    const char *missing = find_missing(members, sizeof members / sizeof *members);
    if (missing)
        return host_fail(error, ATTN_INTERNAL, "%s: backend %u: attn_backend_type.%s is NULL", file,
                         index, missing);
    if (!options_is_name(type->name))
        return host_fail(error, ATTN_INTERNAL,
                         "%s: backend %u: its name is '%.100s'; accepted: [a-z][a-z0-9_]*", file,
                         index, type->name);
    if (strcmp(type->name, "auto") == 0)
        return host_fail(error, ATTN_INTERNAL,
                         "%s: backend %u: its name is 'auto', which in a configuration means that "
                         "attnhost chooses; accepted: another one",
                         file, index);
    if (!text_is_line(type->doc))
        return host_fail(error, ATTN_INTERNAL, GARBLED, file, type->doc);
    attn_status status = check_layouts(file, type, error);
    if (status != ATTN_OK)
        return status;
    status = options_check_type(type, error);
    if (status != ATTN_OK)
        return host_fail_prefix(error, "%s", file), status;
    status = check_ops(file, type, error);
    if (status == ATTN_OK)
        status = check_operands(file, type, error);
    return status == ATTN_OK ? check_children(file, type, error) : status;
}

/* The result of describe, as a valid status and a message that names the file. */
static attn_status describe(const struct loader_plugin *plugin, uint32_t index,
                            const attn_backend_type **type, attn_error *error)
{
    host_error said;
    host_error_init(&said);
    const struct guard_party party = {.file = plugin->file};
    struct guard_call call;
    guard_enter(&call, &party, "describe");
    attn_status status = plugin->table.describe(index, type, &said.base);
    guard_leave(&call);
    if (status == ATTN_OK)
        return ATTN_OK;
    return answer_fail(status, &said, error, "%s: backend %u of %u: describe failed", plugin->file,
                       index, plugin->table.num_backends);
}

/* One type as a table of today's ABI, whatever major the plugin speaks. */
static attn_status read_type(const struct loader_plugin *plugin, uint32_t index,
                             const attn_backend_type **type, attn_error *error)
{
    const attn_backend_type *given = NULL;
    attn_status status = describe(plugin, index, &given, error);
    if (status != ATTN_OK)
        return status;
    if (!given || !plugin->adapter->adapt) {
        *type = given;
        return ATTN_OK;
    }
    status = plugin->adapter->adapt(given, type, error);
    return status == ATTN_OK ? status
                             : host_fail_prefix(error, "%s: backend %u", plugin->file, index);
}

void loader_free_types(struct loader_plugin *plugin)
{
    uint32_t count = plugin->types ? plugin->table.num_backends : 0;
    for (uint32_t b = 0; b < count && plugin->adapter->release; b++)
        plugin->adapter->release(plugin->types[b]);
    free(plugin->types);
    plugin->types = NULL;
    plugin->num_types = 0;
}

static attn_status read_types(struct loader_plugin *plugin, attn_error *error)
{
    attn_status status = check_plugin(plugin, error);
    if (status != ATTN_OK)
        return status;
    uint32_t count = plugin->table.num_backends;
    plugin->types = calloc(count, sizeof *plugin->types);
    if (!plugin->types)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "loader: out of memory");
    for (uint32_t b = 0; b < count && status == ATTN_OK; b++) {
        status = read_type(plugin, b, &plugin->types[b], error);
        if (status == ATTN_OK)
            status = check_type(plugin->file, b, plugin->types[b], error);
    }
    if (status == ATTN_OK)
        plugin->num_types = count;
    else
        loader_free_types(plugin);
    return status;
}

/* If a pointer of its tables is invalid, the crash is the plugin's, although our code follows it.
 */
attn_status loader_read_types(struct loader_plugin *plugin, attn_error *error)
{
    const struct guard_party party = {.file = plugin->file};
    struct guard_call call;
    guard_enter(&call, &party, "its tables");
    attn_status status = read_types(plugin, error);
    guard_leave(&call);
    return status;
}
