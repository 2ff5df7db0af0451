/* SPDX-License-Identifier: Apache-2.0
 *
 * requests.h: the requests of a configuration: its trace, scaled to the model's limits, and the
 * sizes of the pools that they need. Refusals depend on the trace and the configuration alone, so
 * `run` and `explain` give the same ones.
 */
#ifndef HOST_RUN_REQUESTS_H
#define HOST_RUN_REQUESTS_H

#include "host/config/config.h"
#include "host/model/model.h"
#include "host/schedule/scheduler.h"
#include "host/workload/workload.h"

/* Reads workload.trace, which has to be given. CONFIG_ERROR: the trace cannot be read; a request is
 * longer than the model's context, or than a step where prompts are not cut; a pool's size in the
 * configuration is out of range, or a request could never end in it. The caller releases both,
 * after failure too, by workload_finish() and trace_finish(); they are zeroed before. */
attn_status requests_read(const struct config *config, const struct model *model,
                          struct trace *trace, struct workload *workload, attn_error *error);

/* Can they be read so? Without a trace the sizes alone are looked at. */
attn_status requests_check(const struct config *config, const struct model *model,
                           attn_error *error);

/* ---- What pools are sized by ----------------------------------------------------------------- */

/* What is drafted, and accepted; zeros: there are no drafts. */
struct drafts requests_drafts(const struct config *config);

/* Keys of an encoder that cross attention has for each request; 0: the model has none. */
int32_t requests_cross_len(const struct model *model);

/* Pages that a pool can have at most, page 0 aside: an int32 numbers its slots. */
int64_t requests_most_pages(const struct config *config);

/* The pool of encoders' keys: room for all of `num_requests` that can run together, or what
 * kv_cache.max_encoder_tokens says. Sets *num_pages, page 0 included, 0 without cross attention.
 * CONFIG_ERROR: it is out of range. */
attn_status requests_encoder_pages(const struct config *config, const struct model *model,
                                   int64_t num_requests, int64_t *num_pages, attn_error *error);

/* The pool of layers with a window or chunks, next to `pages` pages of all positions; zeros: there
 * is none. */
struct scheduler_window requests_window(const struct config *config, const struct model *model,
                                        int64_t pages);

#endif /* HOST_RUN_REQUESTS_H */
