/* SPDX-License-Identifier: Apache-2.0
 *
 * compose.c: see compose.h. Definitions first, then the building of a tree, then its use. */
#include "host/plugin/compose.h"

#include "host/plugin/answer.h"
#include "host/plugin/private_operands.h"
#include "host/plugin/wrapper.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static attn_status out_of_memory(attn_error *error)
{
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "composition: out of memory");
}

/* ---- Definitions ----------------------------------------------------------------------------- */

void composer_init(struct composer *composer, struct registry *registry, struct threads *threads,
                   struct host_log *log)
{
    memset(composer, 0, sizeof *composer);
    composer->registry = registry;
    composer->threads = threads;
    composer->log = log;
}

static void definition_finish(struct compose_definition *definition)
{
    for (size_t t = 0; t < definition->num_texts; t++) {
        free((char *)(uintptr_t)definition->texts[t].key);
        free((char *)(uintptr_t)definition->texts[t].value);
        free((char *)(uintptr_t)definition->texts[t].place);
        free((char *)(uintptr_t)definition->texts[t].base);
    }
    free(definition->texts);
    free(definition->name);
    free(definition->type);
    free(definition->place);
}

void composer_finish(struct composer *composer)
{
    for (size_t d = 0; d < composer->num_definitions; d++)
        definition_finish(&composer->definitions[d]);
    free(composer->definitions);
    memset(composer, 0, sizeof *composer);
}

const struct compose_definition *composer_find(const struct composer *composer, const char *name)
{
    for (size_t d = 0; d < composer->num_definitions; d++)
        if (strcmp(composer->definitions[d].name, name) == 0)
            return &composer->definitions[d];
    return NULL;
}

int composer_has(const struct composer *composer, const char *name)
{
    return composer_find(composer, name) || registry_find(composer->registry, name);
}

/* False when memory ran out; what was copied so far is the definition's. */
static bool copy_texts(struct compose_definition *definition, const struct options_text *texts,
                       size_t count)
{
    definition->texts = calloc(count + 1, sizeof *definition->texts);
    if (!definition->texts)
        return false;
    for (size_t t = 0; t < count; t++) {
        struct options_text *copy = &definition->texts[t];
        definition->num_texts = t + 1;
        copy->key = strdup(texts[t].key);
        copy->value = strdup(texts[t].value);
        copy->place = strdup(texts[t].place);
        copy->base = strdup(texts[t].base);
        if (!copy->key || !copy->value || !copy->place || !copy->base)
            return false;
    }
    return true;
}

attn_status composer_define(struct composer *composer, const char *name, const char *type,
                            const char *place, const struct options_text *texts, size_t num_texts,
                            attn_error *error)
{
    if (!options_is_backend_name(name))
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s: '%.100s' is not a backend's name; accepted: letters, digits, '_' and "
                         "'-', 63 at most",
                         place, name);
    const struct compose_definition *known = composer_find(composer, name);
    if (known)
        return host_fail(error, ATTN_CONFIG_ERROR,
                         "%s: backend %s is defined twice, first at %s; accepted: once", place,
                         name, known->place);
    struct compose_definition *definitions =
        realloc(composer->definitions, (composer->num_definitions + 1) * sizeof *definitions);
    if (!definitions)
        return out_of_memory(error);
    composer->definitions = definitions;
    struct compose_definition made = {
        .name = strdup(name), .type = strdup(type ? type : name), .place = strdup(place)};
    if (!made.name || !made.type || !made.place || !copy_texts(&made, texts, num_texts)) {
        definition_finish(&made);
        return out_of_memory(error);
    }
    definitions[composer->num_definitions++] = made;
    return ATTN_OK;
}

/* ---- Names ----------------------------------------------------------------------------------- */

/* All names there are, for text_nearest() and for people. NULL when memory ran out. */
static const char **list_names(const struct composer *composer, bool with_definitions,
                               size_t *count, strbuf *text)
{
    size_t most = composer->num_definitions + composer->registry->num_types;
    const char **names = calloc(most + 1, sizeof *names);
    *count = 0;
    for (size_t d = 0; names && with_definitions && d < composer->num_definitions; d++)
        names[(*count)++] = composer->definitions[d].name;
    for (uint32_t t = 0; names && t < composer->registry->num_types; t++)
        if (!with_definitions || !composer_find(composer, composer->registry->types[t].type->name))
            names[(*count)++] = composer->registry->types[t].type->name;
    for (size_t n = 0; names && n < *count; n++)
        strbuf_appendf(text, "%s%s", n ? ", " : "", names[n]);
    return names;
}

static uint32_t count_refused(const struct registry *registry)
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < registry->num_plugins; p++)
        count += registry->plugins[p]->status != ATTN_OK;
    return count;
}

/* `subject` is what is wrong, as in "backend.x.prefill = 'cpu'". */
static attn_status fail_unknown(const struct composer *composer, bool with_definitions,
                                const char *name, const char *subject, attn_error *error)
{
    strbuf all, refused;
    size_t count;
    strbuf_init(&all);
    strbuf_init(&refused);
    const char **names = list_names(composer, with_definitions, &count, &all);
    const char *nearest = names ? text_nearest(name, names, count) : NULL;
    uint32_t num_refused = count_refused(composer->registry);
    if (num_refused > 0)
        strbuf_appendf(&refused, " (%u plugin files were refused)", num_refused);
    attn_status status =
        host_fail(error, ATTN_CONFIG_ERROR, "%s is not a known %s%s%s%s; accepted: %s%s", subject,
                  with_definitions ? "backend" : "backend type", nearest ? " (did you mean " : "",
                  nearest ? nearest : "", nearest ? "?)" : "",
                  all.length ? strbuf_text(&all) : "none", strbuf_text(&refused));
    free(names);
    strbuf_finish(&refused);
    strbuf_finish(&all);
    return status;
}

/* ---- Build ----------------------------------------------------------------------------------- */

static attn_status child_query(void *ctx, const char *name, const attn_problem *problem,
                               attn_verdict *verdict, attn_error *error);
static attn_status child_create(void *ctx, const char *name, const attn_problem *problems,
                                uint32_t num_problems, attn_child *child, attn_error *error);

static attn_status resolve(const struct composer *composer, const char *name, const char *subject,
                           const struct device *device, struct compose_node *parent,
                           struct compose_node **node, attn_error *error);

static struct compose_node *find_child(const struct compose_node *node, const char *name)
{
    for (uint32_t c = 0; c < node->num_children; c++)
        if (strcmp(node->children[c]->name, name) == 0)
            return node->children[c];
    return NULL;
}

/* "a -> b -> " from the root to `node`. */
static void append_path(const struct compose_node *node, strbuf *text)
{
    if (node->parent)
        append_path(node->parent, text);
    strbuf_appendf(text, "%s -> ", node->name);
}

static attn_status check_path(const struct compose_node *parent, const char *name,
                              const char *subject, attn_error *error)
{
    bool cycle = false;
    for (const struct compose_node *node = parent; node && !cycle; node = node->parent)
        cycle = strcmp(node->name, name) == 0;
    bool deep = parent && parent->depth + 1 >= COMPOSE_MAX_DEPTH;
    if (!cycle && !deep)
        return ATTN_OK;
    strbuf path;
    strbuf_init(&path);
    append_path(parent, &path);
    attn_status status =
        cycle ? host_fail(error, ATTN_CONFIG_ERROR,
                          "%s: backends contain each other: %s%s; accepted: a tree", subject,
                          strbuf_text(&path), name)
              : host_fail(error, ATTN_CONFIG_ERROR,
                          "%s: backends are nested too deeply: %s%s; accepted: %d levels", subject,
                          strbuf_text(&path), name, COMPOSE_MAX_DEPTH);
    strbuf_finish(&path);
    return status;
}

/* Which backend type the name stands for, and the options given for it. */
static attn_status find_type(const struct composer *composer, const char *name, const char *subject,
                             const struct registry_type **type,
                             const struct compose_definition **definition, attn_error *error)
{
    *definition = composer_find(composer, name);
    *type = registry_find(composer->registry, *definition ? (*definition)->type : name);
    if (*type)
        return ATTN_OK;
    if (!*definition)
        return fail_unknown(composer, true, name, subject, error);
    strbuf text;
    strbuf_init(&text);
    strbuf_appendf(&text, "%s: backend.%s.type = '%s'", (*definition)->place, name,
                   (*definition)->type);
    attn_status status =
        fail_unknown(composer, false, (*definition)->type, strbuf_text(&text), error);
    strbuf_finish(&text);
    return status;
}

static attn_status add_child(const struct composer *composer, struct compose_node *node,
                             const attn_option_value *value, attn_error *error)
{
    strbuf subject;
    if (!*value->text || find_child(node, value->text))
        return ATTN_OK; /* no child here, or one that serves two options */
    strbuf_init(&subject);
    strbuf_appendf(&subject, "%s: backend.%s.%s = '%s'", value->place, node->name, value->key,
                   value->text);
    attn_status status = resolve(composer, value->text, strbuf_text(&subject), node->context.device,
                                 node, &node->children[node->num_children], error);
    strbuf_finish(&subject);
    node->num_children += status == ATTN_OK;
    return status;
}

static attn_status add_children(const struct composer *composer, struct compose_node *node,
                                attn_error *error)
{
    const attn_options *options = &node->options->view;
    node->children = calloc(options->num_values + 1, sizeof *node->children);
    if (!node->children)
        return out_of_memory(error);
    attn_status status = ATTN_OK;
    for (uint32_t v = 0; v < options->num_values && status == ATTN_OK; v++)
        if (options->values[v].type == ATTN_OPTION_BACKEND_REF)
            status = add_child(composer, node, &options->values[v], error);
    return status;
}

static void log_warnings(const struct compose_node *node)
{
    for (size_t w = 0; w < node->options->num_warnings && node->context.device; w++)
        host_log_write(node->context.log, ATTN_LOG_WARNING, "%s", node->options->warnings[w]);
}

/* Fill in a zeroed node; on failure compose_destroy() can have it. */
static attn_status build(const struct composer *composer, const struct registry_type *type,
                         const struct compose_definition *definition, struct compose_node *node,
                         attn_error *error)
{
    attn_status status =
        options_create(type->type, node->name, definition ? definition->place : NULL,
                       definition ? definition->texts : NULL,
                       definition ? definition->num_texts : 0, &node->options, error);
    if (status != ATTN_OK)
        return status;
    node->type_held = *type;
    node->type = &node->type_held;
    node->party = (struct guard_party){type->plugin->file, node->name};
    node->context.log = composer->log;
    node->context.threads = composer->threads;
    node->context.name = node->name;
    node->context.allocator = composer->allocator;
    services_init(&node->services, &node->context);
    if (type->type->flags & ATTN_BACKEND_COMPOSITE) {
        node->services.child_query = child_query;
        node->services.child_create = child_create;
    }
    log_warnings(node);
    return add_children(composer, node, error);
}

static attn_status resolve(const struct composer *composer, const char *name, const char *subject,
                           const struct device *device, struct compose_node *parent,
                           struct compose_node **node, attn_error *error)
{
    const struct registry_type *type;
    const struct compose_definition *definition;
    attn_status status = check_path(parent, name, subject, error);
    if (status == ATTN_OK)
        status = find_type(composer, name, subject, &type, &definition, error);
    if (status != ATTN_OK)
        return status;
    struct compose_node *made = calloc(1, sizeof *made);
    if (!made || !(made->name = strdup(name))) {
        free(made);
        return out_of_memory(error);
    }
    made->parent = parent;
    made->depth = parent ? parent->depth + 1 : 0;
    made->context.device = device;
    status = build(composer, type, definition, made, error);
    if (status != ATTN_OK)
        compose_destroy(made);
    else
        *node = made;
    return status;
}

attn_status compose_resolve(const struct composer *composer, const char *name,
                            const struct device *device, struct compose_node **root,
                            attn_error *error)
{
    strbuf subject;
    strbuf_init(&subject);
    strbuf_appendf(&subject, "'%.100s'", name);
    attn_status status = resolve(composer, name, strbuf_text(&subject), device, NULL, root, error);
    strbuf_finish(&subject);
    return status;
}

void compose_destroy(struct compose_node *root)
{
    if (!root)
        return;
    for (uint32_t c = root->num_children; c > 0; c--)
        compose_destroy(root->children[c - 1]);
    if (root->acquired)
        loader_release(root->type->plugin);
    options_destroy(root->options);
    free(root->children);
    free(root->name);
    free(root);
}

/* ---- Use ------------------------------------------------------------------------------------- */

attn_status compose_query(struct compose_node *node, const attn_problem *problem,
                          attn_verdict *verdict, attn_error *error)
{
    const attn_backend_type *type = node->type->type;
    host_error said;
    host_error_init(&said);
    struct guard_call call;
    guard_enter(&call, &node->party, "query");
    attn_status status =
        type->query(type, &node->options->view, &node->services, problem, verdict, &said.base);
    guard_leave(&call);
    if (status != ATTN_OK)
        return answer_fail(status, &said, error, "%s", node->name);
    return answer_check_verdict(node->name, verdict, error);
}

/* Its plugin is initialised before the first create and until the tree is gone, so that children
 * which a parent destroys by itself need not be watched. */
static attn_status acquire(struct compose_node *node, attn_error *error)
{
    if (node->acquired)
        return ATTN_OK;
    attn_status status = loader_acquire(node->type->plugin, error);
    node->acquired = status == ATTN_OK;
    return status;
}

attn_status compose_create(struct compose_node *node, const attn_problem *problems,
                           uint32_t num_problems, attn_child *child, attn_error *error)
{
    const attn_backend_type *type = node->type->type;
    attn_instance *instance = NULL;
    host_error said;
    host_error_init(&said);
    attn_status status = acquire(node, &said.base);
    if (status == ATTN_OK) {
        struct guard_call call;
        guard_enter(&call, &node->party, "create");
        status = type->create(type, problems, num_problems, &node->options->view, &node->services,
                              &instance, &said.base);
        guard_leave(&call);
    }
    if (status != ATTN_OK)
        return answer_fail(status, &said, error, "%s", node->name);
    if (!instance)
        return host_fail(error, ATTN_INTERNAL,
                         "%s: defect of the plugin: create succeeded without an instance",
                         node->name);
    attn_child made = {.struct_size = sizeof made, .type = type, .instance = instance};
    status = wrapper_put(&made, &node->party, node->num_children == 0 ? &node->rows : NULL, error);
    if (status != ATTN_OK) {
        type->ops->destroy(instance);
        return status;
    }
    child->type = made.type;
    child->instance = made.instance;
    return ATTN_OK;
}

/* ---- Services for composites ----------------------------------------------------------------- */

/* A composite may use only the children that its options name. */
static attn_status require_child(struct compose_node *node, const char *name,
                                 struct compose_node **child, attn_error *error)
{
    *child = name ? find_child(node, name) : NULL;
    if (*child)
        return ATTN_OK;
    return host_fail(error, ATTN_INVALID_ARGUMENT,
                     "%s: none of its backend-ref options names the child '%.100s'", node->name,
                     name ? name : "");
}

/* DEVICE_LOST stays DEVICE_LOST, as its remedy concerns the device, not the child. */
static attn_status child_failed(attn_status status, attn_error *error)
{
    if (status == ATTN_DEVICE_LOST)
        return status;
    if (error)
        error->code = ATTN_CHILD_FAILED;
    return ATTN_CHILD_FAILED;
}

/* Composites split batches, and only the vendor knows which part of a private operand belongs to
 * which rows, so no child gets one. */
static void refuse_private(const char *operand, attn_verdict *verdict)
{
    attn_reason *reason = verdict->reasons_capacity > 0 ? verdict->reasons : NULL;
    verdict->supported = 0;
    verdict->num_reasons = 1;
    if (!reason)
        return;
    reason->code = ATTN_REASON_UNKNOWN_FEATURE;
    reason->field = ATTN_FIELD_FEATURE;
    reason->with_field = 0;
    reason->child[0] = '\0';
    snprintf(reason->got, sizeof reason->got, "%.63s", operand);
    snprintf(reason->accepted, sizeof reason->accepted, "absent");
}

static attn_status child_query(void *ctx, const char *name, const attn_problem *problem,
                               attn_verdict *verdict, attn_error *error)
{
    struct compose_node *child;
    attn_status status = require_child(ctx, name, &child, error);
    if (status != ATTN_OK)
        return status;
    const char *operand = operands_first(problem);
    if (operand) {
        refuse_private(operand, verdict);
        return ATTN_OK;
    }
    status = compose_query(child, problem, verdict, error);
    return status == ATTN_OK ? status : child_failed(status, error);
}

static attn_status child_create(void *ctx, const char *name, const attn_problem *problems,
                                uint32_t num_problems, attn_child *child, attn_error *error)
{
    struct compose_node *node;
    attn_status status = require_child(ctx, name, &node, error);
    if (status != ATTN_OK)
        return status;
    for (uint32_t p = 0; p < num_problems; p++) {
        const char *operand = operands_first(attn_at(problems, p));
        if (operand)
            return host_fail(
                error, ATTN_UNSUPPORTED,
                "%s: features %s: accepted absent, as children get no private operands (PRIV-03)",
                name, operand);
    }
    status = compose_create(node, problems, num_problems, child, error);
    return status == ATTN_OK ? status : child_failed(status, error);
}

void compose_explain(struct compose_node *root, attn_error *error)
{
    services_explain(&root->context, error);
    for (uint32_t c = 0; c < root->num_children; c++)
        compose_explain(root->children[c], error);
}

void compose_reset_rows(struct compose_node *root)
{
    root->rows = (struct code_path_rows){.paths = root->rows.paths};
    for (uint32_t c = 0; c < root->num_children; c++)
        compose_reset_rows(root->children[c]);
}

/* ---- Look ------------------------------------------------------------------------------------ */

uint32_t compose_num_nodes(const struct compose_node *root)
{
    uint32_t count = 1;
    for (uint32_t c = 0; c < root->num_children; c++)
        count += compose_num_nodes(root->children[c]);
    return count;
}

const struct compose_node *compose_node_at(const struct compose_node *root, uint32_t index)
{
    if (index == 0)
        return root;
    index--;
    for (uint32_t c = 0; c < root->num_children; c++) {
        uint32_t count = compose_num_nodes(root->children[c]);
        if (index < count)
            return compose_node_at(root->children[c], index);
        index -= count;
    }
    return NULL;
}

void compose_print(const struct compose_node *root, strbuf *text)
{
    const char *type = root->type->type->name;
    strbuf_appendf(text, "%*s%s", (int)(2 * root->depth), "", root->name);
    if (strcmp(type, root->name) != 0)
        strbuf_appendf(text, " (%s)", type);
    strbuf_appendf(text, "  %s\n", root->type->plugin->file);
    for (uint32_t c = 0; c < root->num_children; c++)
        compose_print(root->children[c], text);
}
