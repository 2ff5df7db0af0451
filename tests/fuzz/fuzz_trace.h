/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_trace.h: any bytes as a trace of one format.
 */
#ifndef TESTS_FUZZ_FUZZ_TRACE_H
#define TESTS_FUZZ_FUZZ_TRACE_H

#include "host/workload/trace.h"
#include "tests/fuzz/fuzz.h"

/* Read as `format` and as AUTO. Requests of what is accepted must be what trace.h says. */
void fuzz_trace(const uint8_t *data, size_t size, trace_format format);

#endif /* TESTS_FUZZ_FUZZ_TRACE_H */
