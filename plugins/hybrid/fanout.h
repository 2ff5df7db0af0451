/* SPDX-License-Identifier: Apache-2.0
 *
 * fanout.h: what every composite does with its children, whatever it routes by.
 *
 *   - children come from the host by the value of a backend-ref option, never by other means; the
 *     host names a child that it cannot ask or make, the composite one whose own calls fail;
 *   - a child is asked about, and made for, the modes that are routed to it and no others;
 *   - metadata: scratch is shared (children run one after the other on one stream), all other
 *     regions lie one behind the other in the region of the composite.
 */
#ifndef HYBRID_FANOUT_H
#define HYBRID_FANOUT_H

#include "attn_plugin.h"

/* A problem as a child sees it: the caller's, with the modes that are routed to the child. */
typedef struct child_problem {
    attn_problem problem;
    attn_bounds bounds;
} child_problem;

/* Narrow `bounds` to `modes`. A child that only decodes has one query for each sequence. */
void fanout_narrow_bounds(const attn_bounds *bounds, uint32_t modes, attn_bounds *narrowed);

/* Narrow `problem` to `modes`; `narrowed` points into itself and must not be moved. */
void fanout_narrow_problem(const attn_problem *problem, uint32_t modes, child_problem *narrowed);

/* Start `verdict`, a copy that is the composite's, from the caller's `given`: supported, all notes,
 * no reasons. verdict_end() hands it back. */
void fanout_verdict_begin(const attn_verdict *given, attn_verdict *verdict);

/* Ask child `name` and merge its answer: reasons are appended with the child's name, the graph
 * level is the minimum, determinism is the intersection, memory the sum. */
attn_status fanout_verdict_add(const attn_services *services, const char *name,
                               const attn_problem *problem, attn_verdict *verdict,
                               attn_error *error);

/* Add a child's memory to the composite's. */
void fanout_memory_add(const attn_memory_size *child, attn_memory_size *total);

/* Give a child its part of `memory`; `used` (zeroed by the caller first) carries on from child to
 * child, in the order of fanout_memory_add. */
void fanout_memory_carve(const attn_memory *memory, const attn_memory_size *child,
                         attn_memory_size *used, attn_memory *part);

/* BUFFER_TOO_SMALL or INVALID_ARGUMENT unless `memory` is as large and aligned as `size` tells. */
attn_status fanout_memory_check(const attn_memory_size *size, const attn_memory *memory,
                                attn_error *error);

#endif /* HYBRID_FANOUT_H */
