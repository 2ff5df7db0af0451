/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_mooncake.c: any bytes as a trace of the format `mooncake`.
 */
#include "tests/fuzz/fuzz_trace.h"

const char fuzz_name[] = "mooncake";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_trace(data, size, TRACE_FORMAT_MOONCAKE);
    return 0;
}
