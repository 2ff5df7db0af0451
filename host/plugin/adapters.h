/* SPDX-License-Identifier: Apache-2.0
 *
 * adapters.h: the ABI majors that the host supports: a row for today's and, from 1.0 on, one for
 * the major before it.
 *
 * A plugin is negotiated with by attn_host_info, attn_plugin and attn_error, which only grow, from
 * major to major as well. A later major may change anything: adapt() makes today's table
 * of a backend type of that major, in whose slots structs are converted and the type's own slots
 * are called, so that nothing else in the host knows of majors. The row of major N - 1 and its
 * adapt() are a file of their own, adapter_v<N - 1>.c; tests/host/plugin/pretended_v1.c is one.
 */
#ifndef HOST_PLUGIN_ADAPTERS_H
#define HOST_PLUGIN_ADAPTERS_H

#include "attn_plugin.h"

struct adapter {
    uint32_t major;
    uint32_t minor; /* newest that the host knows */

    /* May a plugin of this major be loaded? INCOMPATIBLE_VERSION with a sentence; NULL = it may. */
    attn_status (*admit)(const attn_plugin *plugin, attn_error *error);

    /* Today's table of what describe() gave, never NULL, which is not checked yet. *adapted lives
     * until release(), which accepts NULL. NULL, both: the table is today's. */
    attn_status (*adapt)(const attn_backend_type *given, const attn_backend_type **adapted,
                         attn_error *error);
    void (*release)(const attn_backend_type *adapted);
};

/* Newest first, without gaps. An object of their own, so that a test can link others. */
extern const struct adapter adapters[];
extern const size_t num_adapters;

#endif /* HOST_PLUGIN_ADAPTERS_H */
