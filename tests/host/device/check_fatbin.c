/* SPDX-License-Identifier: Apache-2.0
 *
 * check_fatbin.c: a .cu file becomes a fatbin that is embedded in the object, whole and aligned.
 */
#include "tests/tools/test_main.h"
#include "host/base/configured.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef HAVE_NVCC

extern const unsigned char noop_fatbin[];
extern const uint64_t noop_fatbin_size;
extern const char noop_fatbin_codes[];

/* The head of a fatbin as the driver reads it: magic, version, bytes of the head, bytes after it.
 */
TEST_OF(embedded, embedded_fatbin_is_whole)
{
    uint32_t magic;
    uint16_t header_size;
    uint64_t body_size;

    memcpy(&magic, noop_fatbin, sizeof(magic));
    memcpy(&header_size, noop_fatbin + 6, sizeof(header_size));
    memcpy(&body_size, noop_fatbin + 8, sizeof(body_size));
    ck_assert_uint_eq(magic, 0xba55ed50u);
    ck_assert_uint_gt(body_size, 0);
    ck_assert_uint_eq(noop_fatbin_size, header_size + body_size);
    ck_assert_uint_eq((uintptr_t)noop_fatbin % 64, 0);
}

/* As tests/Makefile.am.inc asks for. */
TEST_OF(embedded, embedded_fatbin_says_what_for)
{
    ck_assert_str_eq(noop_fatbin_codes, "sm_80 sm_90a");
}

TESTS("fatbin");

#else

int main(void)
{
    puts("1..0 # SKIP no nvcc at configure time: no kernel is embedded");
    return EXIT_SUCCESS;
}

#endif
