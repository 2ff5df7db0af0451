/* SPDX-License-Identifier: Apache-2.0
 *
 * requests.h: the requests of a configuration: the trace that it names, scaled, as its model takes
 * them. What is refused here depends on trace and configuration alone, so `run` and `explain` say
 * the same.
 */
#ifndef HOST_RUN_REQUESTS_H
#define HOST_RUN_REQUESTS_H

#include "host/config/config.h"
#include "host/model/model.h"
#include "host/workload/workload.h"

/* Reads workload.trace, which has to be given. CONFIG_ERROR: the trace cannot be read, or a request
 * is longer than the model's context, or than a step where prompts are not cut. The caller releases
 * both, after failure too, by workload_finish() and trace_finish(); they are zeroed before. */
attn_status requests_read(const struct config *config, const struct model *model,
                          struct trace *trace, struct workload *workload, attn_error *error);

/* Can they be read so? Without a trace there is nothing to read. */
attn_status requests_check(const struct config *config, const struct model *model,
                           attn_error *error);

#endif /* HOST_RUN_REQUESTS_H */
