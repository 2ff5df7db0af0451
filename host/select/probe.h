/* SPDX-License-Identifier: Apache-2.0
 *
 * probe.h: capabilities of a backend, found by queries: a plain problem that it accepts, then one
 * change at a time.
 */
#ifndef HOST_SELECT_PROBE_H
#define HOST_SELECT_PROBE_H

#include <stdio.h>

#include "attnhost.h"
#include "host/select/problem.h"

/* A plain problem: two causal layers, 8 query heads over 4, head_dim 64, page size 16, extend and
 * decode. Initialised in place, never copied. */
struct probe {
    struct problem asked;
    attn_layer layers[2];
};

void probe_init(struct probe *probe, const attn_device *device, attn_dtype dtype,
                const char *layout);

/* Does the backend accept it? 1, 0, or -1 for an error. */
int probe_ask(const attnhost *host, const char *backend, const struct probe *probe,
              attn_verdict *verdict, attn_reason *reasons, uint32_t capacity);

/* Find a plain problem that the backend accepts: on the processor or a simulated GPU, in some type
 * and layout. 1 and *probe, or 0 if it accepts none. */
int probe_find(const attnhost *host, const attn_backend_type *type, struct probe *probe);

/* Receives a property, a value and whether the backend accepts it: "head_dim", "64", 1. Values of
 * one property come one after another. */
typedef void (*probe_see)(void *ctx, const char *matter, const char *value, int accepted);

/* Report the accepted values around an accepted problem: devices, layouts, types, dimensions, page
 * sizes, modes, masks, uses, kinds of layers, graphs. Properties and their order are the same for
 * every backend. */
void probe_visit(const attnhost *host, const attn_backend_type *type, struct probe *probe,
                 probe_see see_value, void *ctx);

/* Print the accepted values: one line for each property, "head_dim: 1 2 4 ...". */
void probe_print(const attnhost *host, const attn_backend_type *type, struct probe *probe,
                 FILE *file);

/* Can the backend serve anything on the processor of this machine? 1; or 0, with its reason against
 * the device or the plain problem in `why`. */
int probe_here(const attnhost *host, const attn_backend_type *type, char *why, size_t size);

#endif /* HOST_SELECT_PROBE_H */
