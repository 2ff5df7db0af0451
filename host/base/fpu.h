/* SPDX-License-Identifier: Apache-2.0
 *
 * fpu.h: rounding, denormals and traps of this thread's FPU, as a number that is cheap enough to
 * compare around every call of a plugin; and the processor's check of alignment.
 */
#ifndef HOST_BASE_FPU_H
#define HOST_BASE_FPU_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__x86_64__)

/* The flags of MXCSR that any arithmetic raises. */
#define FPU_MXCSR_FLAGS UINT32_C(0x3f)

/* Initial state of a thread: all exceptions masked, rounding to nearest, denormals kept. */
#define FPU_DEFAULT (UINT64_C(0x37f) << 32 | UINT64_C(0x1f80))

static inline uint64_t fpu_control(void)
{
    uint32_t sse;
    uint16_t x87;
    __asm__ volatile("stmxcsr %0" : "=m"(sse));
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    return (uint64_t)x87 << 32 | (sse & ~FPU_MXCSR_FLAGS);
}

static inline void fpu_set_control(uint64_t control)
{
    uint32_t sse = (uint32_t)control;
    uint16_t x87 = (uint16_t)(control >> 32);
    __asm__ volatile("ldmxcsr %0" : : "m"(sse) : "memory");
    /* A flag that is raised already would trap as soon as it is not masked. */
    __asm__ volatile("fnclex\n\tfldcw %0" : : "m"(x87) : "memory");
}

/* Accesses that are not aligned fault on this thread while flag AC is set. Clears the flag and
 * returns whether it was set. */
static inline bool fpu_clear_alignment_check(void)
{
    const uint64_t alignment_check = UINT64_C(1) << 18;
    uint64_t flags = __builtin_ia32_readeflags_u64();
    if (!(flags & alignment_check))
        return false;
    __builtin_ia32_writeeflags_u64(flags & ~alignment_check);
    return true;
}

#elif defined(__aarch64__)

#define FPU_DEFAULT UINT64_C(0)

static inline uint64_t fpu_control(void)
{
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return control;
}

static inline void fpu_set_control(uint64_t control)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(control) : "memory");
}

#else

#define FPU_DEFAULT UINT64_C(0)

static inline uint64_t fpu_control(void)
{
    return FPU_DEFAULT;
}

static inline void fpu_set_control(uint64_t control)
{
    (void)control;
}

#endif

#if !defined(__x86_64__)
static inline bool fpu_clear_alignment_check(void)
{
    return false;
}
#endif

/* Does arithmetic round to nearest and keep denormals, as a thread's does when it begins? A guess
 * from three sums, which takes a nanosecond where reading the control word takes 15: the first
 * differs if rounding is upward, the second if it is downward or toward zero, the third if
 * denormals are flushed to zero. */
static inline bool fpu_sums_as_default(void)
{
#if defined(__x86_64__) || defined(__aarch64__)
    typedef float sums __attribute__((vector_size(16)));
    typedef int32_t words __attribute__((vector_size(16)));
    static const sums a = {1, 1, 0x1p-149f, 0}, b = {0x1p-30f, 0x1.8p-24f, 0x1p-149f, 0};
    const words expected = {0x3f800000, 0x3f800001, 2, 0};
    sums x = a, y = b;
#if defined(__x86_64__)
    __asm__ volatile("addps %1, %0" : "+x"(x) : "x"(y));
#else
    __asm__ volatile("fadd %0.4s, %0.4s, %1.4s" : "+w"(x) : "w"(y));
#endif
    words wrong = (words)x ^ expected;
    return (wrong[0] | wrong[1] | wrong[2]) == 0;
#else
    return true;
#endif
}

/* Until fpu_unpin(), the FPU has a thread's initial state. Returns the previous state. */
static inline uint64_t fpu_pin(void)
{
    uint64_t before = fpu_control();
    if (before != FPU_DEFAULT)
        fpu_set_control(FPU_DEFAULT);
    return before;
}

static inline void fpu_unpin(uint64_t before)
{
    if (before != FPU_DEFAULT)
        fpu_set_control(before);
}

#endif /* HOST_BASE_FPU_H */
