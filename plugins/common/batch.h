/* SPDX-License-Identifier: Apache-2.0
 *
 * batch.h: what our plugins ask of a batch alike, and of a forward of it; and how they run its
 * work.
 */
#ifndef PLUGINS_BATCH_H
#define PLUGINS_BATCH_H

#include "attn_batch.h"
#include "attn_services.h"

/* For the processor, where both are the same memory; either will do while the call lasts. NULL =
 * not given. */
static inline const int32_t *batch_read_i32(const attn_i32_array *array)
{
    return array->device ? array->device : array->host;
}

/* Is `got` within the bound, whose name is `field` (ATTN_FIELD_MAX_*)? INVALID_ARGUMENT. */
attn_status batch_check_bound(const char *what, int64_t got, int64_t bound, uint32_t field,
                              attn_error *error);

/* The same for its sequences and tokens. */
attn_status batch_check_counts(const attn_bounds *bounds, const attn_batch *batch,
                               attn_error *error);

/* Is the mode known, and IDLE or within the bounds? INVALID_ARGUMENT. */
attn_status batch_check_mode(const attn_bounds *bounds, uint32_t mode, attn_error *error);

/* Can a batch of `mode`, if one is planned, be run by forward_decode (`decode`) or by
 * forward_extend? Both take IDLE. BAD_STATE. */
attn_status batch_check_forward(int planned, uint32_t mode, int decode, attn_error *error);

/* Run `count` tasks on the host's workers; a single one here. What a task returns, reported as a
 * failure of parallel_for. */
attn_status batch_run_tasks(const attn_services *services, int64_t count, attn_task task, void *arg,
                            attn_error *error);

#endif /* PLUGINS_BATCH_H */
