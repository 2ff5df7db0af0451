/* SPDX-License-Identifier: Apache-2.0
 *
 * judge.h: checks sampled rows of a timed forward against the oracle.
 *
 * The first copy of the inputs is the judged one. Its output is poisoned, so that another backend's
 * output cannot pass; then a forward writes it, and some of its rows are judged. Only data that
 * these rows read is copied from a device.
 */
#ifndef HOST_BENCH_JUDGE_H
#define HOST_BENCH_JUDGE_H

#include "host/base/text.h"
#include "host/bench/inputs.h"

/* Fill the output of the first copy with NaN, in order with the stream's other work. */
attn_status bench_judge_poison(const struct bench_inputs *inputs, attn_stream stream,
                               attn_error *error);

/* Judge rows of the first copy's output, which all work on has ended. `layout` and
 * `reads_new_unquantised` (an ATTN_MODE_BIT set) are the backend's. `why` stays empty if they pass,
 * else it says which one does not: "row 5 of query head 1 is off by 8.2 times ...". An error:
 * what they read could not be copied, or no memory. */
attn_status bench_judge_rows(const struct bench_inputs *inputs, const char *layout,
                             uint32_t reads_new_unquantised, strbuf *why, attn_error *error);

#endif /* HOST_BENCH_JUDGE_H */
