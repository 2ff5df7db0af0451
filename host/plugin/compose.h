/* SPDX-License-Identifier: Apache-2.0
 *
 * compose.h: from a backend's name to a tree of backends.
 *
 *   composer   what the user defined ([backend.NAME]), and what backends are made of
 *   node       one place of a composition: a backend type with its parsed options, its services and
 *              its children, one for each name that its BACKEND_REF options give
 *
 * A tree is resolved as a whole (options parsed, children found, cycles refused) before any plugin
 * is asked anything. A tree without instances answers queries; compose_create() on its root makes
 * instances, each parent asking for its children's through its services.
 */
#ifndef HOST_PLUGIN_COMPOSE_H
#define HOST_PLUGIN_COMPOSE_H

#include "host/plugin/guard.h"
#include "host/plugin/options.h"
#include "host/plugin/code_paths.h"
#include "host/plugin/registry.h"
#include "host/plugin/services.h"
#include "host/base/text.h"

/* A name that stands for a backend type with options. Owns all its strings. */
struct compose_definition {
    char *name;
    char *type;
    char *place; /* where it stands: "file:line" ... */
    struct options_text *texts;
    size_t num_texts;
};

struct composer {
    struct registry *registry;
    struct threads *threads;
    struct host_log *log;
    const struct device_allocator *allocator; /* for what queries take; NULL = the host's own */
    struct compose_definition *definitions;
    size_t num_definitions;
};

struct compose_node {
    struct services_context context; /* first: what the services get as ctx */
    attn_services services;
    char *name;
    struct registry_type type_held;   /* a copy: the registry's list moves when it grows */
    const struct registry_type *type; /* &type_held */
    struct guard_party party;         /* its plugin's file, and its name */
    struct options *options;
    struct compose_node *parent; /* NULL = the root */
    struct compose_node **children;
    uint32_t num_children;
    uint32_t depth; /* 0 = the root */
    int acquired;   /* its plugin was initialised for this node */
    struct code_path_rows
        rows; /* that its instance computed; counted in leaves (plugin/wrapper.h) */
};

/* Deeper trees are a mistake; with it, an ABI call nests no deeper. */
enum { COMPOSE_MAX_DEPTH = 16 };

/* Borrows all three. */
void composer_init(struct composer *composer, struct registry *registry, struct threads *threads,
                   struct host_log *log);
void composer_finish(struct composer *composer);

/* Let `name` stand for `type` (NULL = name) with these options. All is copied. CONFIG_ERROR for a
 * name that is malformed or defined already. */
attn_status composer_define(struct composer *composer, const char *name, const char *type,
                            const char *place, const struct options_text *texts, size_t num_texts,
                            attn_error *error);

/* The definition of this name, or NULL. */
const struct compose_definition *composer_find(const struct composer *composer, const char *name);

/* Is there a backend of this name, a definition or a type? It may still fail to resolve. */
int composer_has(const struct composer *composer, const char *name);

/* Build the tree of `name`. `device` (borrowed) may be NULL for a tree that only answers queries.
 * Warnings about deprecated options go to the log if `device` is given. CONFIG_ERROR for an unknown
 * name (with the nearest), wrong options, a cycle ("a -> b -> a"). */
attn_status compose_resolve(const struct composer *composer, const char *name,
                            const struct device *device, struct compose_node **root,
                            attn_error *error);

/* Free a tree; its instances are gone. NULL is accepted. */
void compose_destroy(struct compose_node *root);

/* Ask a node. The answer is checked; an error has the node's name before it. */
attn_status compose_query(struct compose_node *node, const attn_problem *problem,
                          attn_verdict *verdict, attn_error *error);

/* Make an instance of a node, and through its plugin those of its children. An error has the
 * node's name before it. */
attn_status compose_create(struct compose_node *node, const attn_problem *problems,
                           uint32_t num_problems, attn_child *child, attn_error *error);

/* Append to the error's message the size that an engine's allocator refused the tree's instances.
 */
void compose_explain(struct compose_node *root, attn_error *error);

/* Reset the row counts, as rows computed in prepare() belong to no request. Paths stay. */
void compose_reset_rows(struct compose_node *root);

/* Nodes of the tree, and the one with this index; each before its children. NULL beyond the last.
 */
uint32_t compose_num_nodes(const struct compose_node *root);
const struct compose_node *compose_node_at(const struct compose_node *root, uint32_t index);

/* One line for each node: indentation, name, type where it differs, plugin's file. */
void compose_print(const struct compose_node *root, strbuf *text);

#endif /* HOST_PLUGIN_COMPOSE_H */
