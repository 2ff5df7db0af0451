/* SPDX-License-Identifier: Apache-2.0
 *
 * bench_plan.h: a command line of `attnhost bench` as entries of a report.
 */
#ifndef HOST_CMD_BENCH_PLAN_H
#define HOST_CMD_BENCH_PLAN_H

#include "host/cmd/arguments.h"
#include "host/bench/bench.h"

/* What the command's options give. */
struct bench_values {
    struct text_list backends, shapes; /* one for each --backend, --shape */
    double seconds, sustain;
    const char *json; /* FILE or "-"; NULL = not given */
};

/* Add the entries. Without CONFIG.ini: each --shape on each --backend. With it: each layer group of
 * its model in each --shape, whose missing keys are the model's, or without --shape as prefill of
 * chunked_prefill_size tokens and as decode of max_running_requests sequences of as many keys; on
 * the --backend given or the ones that the ini chooses.
 *
 * *device is the one that [platform] asks for. With `auto` it is the device that
 * select_create_here() finds for the ini, or, where --backend is given, the processor if all of
 * them serve there, else a CUDA device if all do there; backends that serve nowhere are left out of
 * this. CONFIG_ERROR, with a backend of each, if these are two devices.
 *
 * Layer groups that bench does not measure are reported on stderr. CONFIG_ERROR for what is wrong
 * on the command line or in the ini; UNSUPPORTED if no layer group is left. */
attn_status bench_plan(const struct arguments *arguments, const struct config *config,
                       attnhost *host, attn_device *device, struct bench_report *report,
                       attn_error *error);

#endif /* HOST_CMD_BENCH_PLAN_H */
