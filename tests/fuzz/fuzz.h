/* SPDX-License-Identifier: Apache-2.0
 *
 * fuzz.h: one parser as a function of bytes, in the form that libFuzzer calls.
 *
 * fuzz_NAME.c defines both of the following for one parser. Linked with -fsanitize=fuzzer it is a
 * fuzzer (`./dev fuzz`); linked with replay.c it reads tests/fuzz/corpus/NAME in `make check`.
 * Whatever is wrong ends the process: a crash, a sanitizer's report, or fuzz_fail().
 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include "host/base/error.h"

/* The folder of the corpus. */
extern const char fuzz_name[];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- Help for them --------------------------------------------------------------------------- */

/* Say what a parser did wrong, and abort. */
_Noreturn void fuzz_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A file with these bytes; the path is good until the next call. */
const char *fuzz_file(const uint8_t *data, size_t size);

/* What every refusal must be: a status of the ABI, the same in the error, and one line of text that
 * begins with the file's name. */
void fuzz_check_refusal(attn_status status, const host_error *error, const char *file);

#endif /* TESTS_FUZZ_FUZZ_H */
