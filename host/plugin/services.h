/* SPDX-License-Identifier: Apache-2.0
 *
 * services.h: the host's services for plugins (attn_services).
 */
#ifndef HOST_PLUGIN_SERVICES_H
#define HOST_PLUGIN_SERVICES_H

#include "host/device/device.h"
#include "host/base/log.h"
#include "host/base/threads.h"

/* The context of the calls of an instance's table; `ctx` points to it. */
struct services_context {
    struct host_log *log;
    struct threads *threads;
    const struct device *device;              /* NULL = there is host memory only (query) */
    const struct device_allocator *allocator; /* then; NULL = the host's own */
    const char *name;                         /* of the backend, before what it logs */
    struct services_refusal {
        uint64_t size, alignment; /* size 0 = none */
        uint32_t space;
    } refusal; /* the newest of an allocator that is not the host's */
};

/* Fill a table of everything but the calls for children, which are the composition's (compose.c).
 * Both structs stay where they are while the table is in use. */
void services_init(attn_services *services, struct services_context *context);

/* If an engine's allocator refused this instance memory, append that to the error, and forget it.
 */
void services_explain(struct services_context *context, attn_error *error);

/* The table that a plugin's init() gets: it logs to the newest host and runs tasks on the calling
 * thread, since it outlives hosts. malloc'ed; the caller frees it. NULL when memory ran out. */
attn_services *services_create_for_plugin(void);

#endif /* HOST_PLUGIN_SERVICES_H */
