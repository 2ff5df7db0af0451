/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz.h: runs checks that are CHECK_FUZZABLE with random seeds for a given time. A failing chunk
 * is reduced and written to a file (replay.h).
 */
#ifndef HOST_CHECK_SUITE_FUZZ_H
#define HOST_CHECK_SUITE_FUZZ_H

#include <stdio.h>

#include "host/check/suite/result.h"

/* Chunk n of a seed is the same on every machine. Failures and a last line of counts go to `out`,
 * replay files into params->output (NULL = the working directory). With an
 * outcome other than CHECK_GOOD and CHECK_FAILURES `error` says more, unless it was interrupted.
 */
enum check_outcome fuzz_run(const struct check_params *params, struct check_report *report,
                            FILE *out, attn_error *error);

#endif /* HOST_CHECK_SUITE_FUZZ_H */
