/* SPDX-License-Identifier: Apache-2.0
 *
 * check_fpu: arithmetic that is pinned to what a thread begins with, and the guess from three sums.
 */
#include "host/base/fpu.h"

#include <fenv.h>

#include "tests/tools/test_main.h"

/* All FPU states that a plugin may leave: rounding modes, and treatments of denormals. */
enum { UPWARD, DOWNWARD, TOWARD_ZERO, FLUSHED, NUM_CHANGES };

static void change(int what)
{
    static const int rounding[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    if (what < FLUSHED)
        fesetround(rounding[what]);
#if defined(__x86_64__)
    else
        fpu_set_control(fpu_control() | 0x8040u);
#else
    else
        fpu_set_control(fpu_control() | UINT64_C(1) << 24);
#endif
}

/* 1 + 2^-30 in fp32, rounded as the thread does; and half the smallest normal number. */
static float round_up_sum(void)
{
    volatile float one = 1, little = 0x1p-30f;
    return one + little;
}

static float round_down_sum(void)
{
    volatile float one = 1, more = 0x1.8p-24f;
    return one + more;
}

static float denormal(void)
{
    volatile float smallest = 0x1p-126f, half = 0.5f;
    return smallest * half;
}

static void assert_default(void)
{
    ck_assert(round_up_sum() == 1.0f);
    ck_assert(round_down_sum() == 1.0f + 0x1p-23f);
    ck_assert(denormal() == 0x1p-127f);
    ck_assert_uint_eq(fpu_control(), FPU_DEFAULT);
    ck_assert(fpu_sums_as_default());
}

TEST_OF(all, begins_as_default)
{
    assert_default();
}

/* Pinned, arithmetic is a thread's that begins; unpinned, it is what it was. */
LOOP_OF(all, pinned_and_back, 0, NUM_CHANGES)
{
    change(_i);
    uint64_t changed = fpu_control();
    ck_assert_uint_ne(changed, FPU_DEFAULT);
    ck_assert(!fpu_sums_as_default());
    uint64_t before = fpu_pin();
    ck_assert_uint_eq(before, changed);
    assert_default();
    fpu_unpin(before);
    ck_assert_uint_eq(fpu_control(), changed);
    fpu_set_control(FPU_DEFAULT);
    assert_default();
}

/* Pins nest, and one on a thread that is as it began changes nothing. */
TEST_OF(all, pins_nest)
{
    change(UPWARD);
    uint64_t outer = fpu_pin(), inner = fpu_pin();
    ck_assert_uint_eq(inner, FPU_DEFAULT);
    fpu_unpin(inner);
    assert_default();
    fpu_unpin(outer);
    ck_assert_int_eq(fegetround(), FE_UPWARD);
    fesetround(FE_TONEAREST);
}

/* Flags that arithmetic raises are no change. */
TEST_OF(all, flags_are_none)
{
    volatile float zero = 0, one = 1;
    volatile float infinite = one / zero;
    (void)infinite;
    ck_assert(fetestexcept(FE_DIVBYZERO));
    assert_default();
}

TESTS("fpu");
