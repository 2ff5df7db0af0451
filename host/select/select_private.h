/* SPDX-License-Identifier: Apache-2.0
 *
 * select_private.h: shared by select.c and select/candidates.c.
 */
#ifndef HOST_SELECT_SELECT_PRIVATE_H
#define HOST_SELECT_SELECT_PRIVATE_H

#include "host/base/error.h"
#include "host/select/select.h"

#define SELECT_NO_PLUGIN_TEXT "no such plugin exists yet"

/* State shared by all steps of a selection. */
struct selector {
    attnhost *host;
    const struct config *config;
    const struct model *model;
    struct selection *selection;
    host_error failure; /* the first group that nothing can serve */
    attn_error *error;
};

/* "cpu_native, hybrid_phase": the backend types that are loaded; NULL when memory ran out. */
char *select_installed(const attnhost *host);

attn_status select_no_memory(struct selector *selector);

/* The loaded backend type of this name, or NULL. */
const attn_backend_type *select_find_type(const attnhost *host, const char *name);

/* The backend type of a name: of a section or definition, else of a type or, where that is not
 * installed, of an alias. */
const char *select_type_name(const struct selector *selector, const char *name);

/* CONFIG_ERROR for an unknown name in a key of [attention], even if the model has no layers that
 * the key concerns. */
attn_status select_check_names(struct selector *selector);

/* The user's setting for a phase of a group: phase->wanted and phase->key. */
void select_find_wanted(const struct selector *selector, const attn_layer_group *group,
                        uint32_t index, struct select_phase *phase);

/* Of the layouts in `mask` (not 0), bits of kind_layouts(), the one that comes first in the
 * backend's own list. */
uint32_t select_preferred_layout(const attn_backend_type *type, const attn_layer_group *group,
                                 uint32_t mask);

/* Ask a candidate about `modes` of a group with each layout that is allowed, and keep its answer.
 */
attn_status select_ask(struct selector *selector, uint32_t group, uint32_t modes,
                       struct select_candidate *candidate, attn_error *error);

/* List the candidates of a phase and ask them all. */
attn_status select_fill_phase(struct selector *selector, uint32_t group, uint32_t modes,
                              struct select_phase *phase);

/* Join the unit of the linear layers with that of the others (select/join.c). */
attn_status select_join_kinds(struct selector *selector);

/* Free what a candidate owns. */
void select_candidate_finish(struct select_candidate *candidate);

#endif /* HOST_SELECT_SELECT_PRIVATE_H */
