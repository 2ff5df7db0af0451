/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz_azure.c: any bytes as a trace of the format `azure`.
 */
#include "tests/fuzz/fuzz_trace.h"

const char fuzz_name[] = "azure";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_trace(data, size, TRACE_FORMAT_AZURE);
    return 0;
}
