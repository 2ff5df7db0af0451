/* SPDX-License-Identifier: Apache-2.0
 *
 * adapters.h: the ABI majors that the host supports: a row for the current one and, from 1.0 on,
 * one for the major before it.
 *
 * The structs of the negotiation, attn_host_info, attn_plugin and attn_error, only grow, even from
 * major to major. A later major may change anything: adapt() makes today's table of a backend type
 * of that major, whose slots convert structs and call the type's own slots, so that no other code
 * of the host depends on the major. The row of major N - 1 and its adapt() are a file of their own,
 * adapter_v<N - 1>.c; tests/host/plugin/pretended_v1.c is one. */
#ifndef HOST_PLUGIN_ADAPTERS_H
#define HOST_PLUGIN_ADAPTERS_H

#include "attn_plugin.h"

struct adapter {
    uint32_t major;
    uint32_t minor; /* newest that the host knows */

    /* May a plugin of this major be loaded? INCOMPATIBLE_VERSION with a sentence; NULL = it may. */
    attn_status (*admit)(const attn_plugin *plugin, attn_error *error);

    /* Today's table for the result of describe(), which is not NULL and not checked yet. *adapted
     * lives until release(), which accepts NULL. NULL, both: the table is today's. */
    attn_status (*adapt)(const attn_backend_type *given, const attn_backend_type **adapted,
                         attn_error *error);
    void (*release)(const attn_backend_type *adapted);
};

/* Newest first, without gaps. In an object file of their own, so that a test can link other rows.
 */
extern const struct adapter adapters[];
extern const size_t num_adapters;

#endif /* HOST_PLUGIN_ADAPTERS_H */
