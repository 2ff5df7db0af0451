/* SPDX-License-Identifier: Apache-2.0
 *
 * device_cpu.c: the processor as a device. All spaces are host memory; a stream is NULL, and every
 * call is done when it returns.
 */
#include "host/device.h"

#include "host/error.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* The state components that the operating system saves (Intel SDM volume 1, 13.3). */
enum { STATE_AVX = 0x6, STATE_AVX512 = 0xe6, STATE_AMX = 0x60000 };

static uint64_t saved_state(void)
{
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static int saves(uint64_t state, uint64_t components)
{
    return (state & components) == components;
}

static int has_bits(uint32_t word, uint32_t bits)
{
    return (word & bits) == bits;
}

/* Bits of Intel SDM volume 2, CPUID, and of cpuid.h. */
static uint32_t cpu_isa(void)
{
    const uint32_t osxsave = 1u << 27, fma = 1u << 12, f16c = 1u << 29;
    const uint32_t avx2 = 1u << 5, avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    uint32_t a, b, c, d, leaf1_c, isa = 0;
    if (!__get_cpuid(1, &a, &b, &leaf1_c, &d) || !has_bits(leaf1_c, osxsave))
        return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return 0;
    uint64_t state = saved_state();
    uint32_t max_subleaf = a, leaf7_b = b, leaf7_d = d;
    if (saves(state, STATE_AVX) && has_bits(leaf1_c, fma | f16c) && has_bits(leaf7_b, avx2))
        isa |= ATTN_CPU_AVX2;
    if (isa && saves(state, STATE_AVX512) && has_bits(leaf7_b, avx512))
        isa |= ATTN_CPU_AVX512;
    if (saves(state, STATE_AMX) && has_bits(leaf7_d, 1u << 22 | 1u << 24))
        isa |= ATTN_CPU_AMX_BF16;
    if (max_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && isa & ATTN_CPU_AVX512 &&
        has_bits(a, 1u << 5))
        isa |= ATTN_CPU_AVX512BF16;
    return isa;
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

static uint32_t cpu_isa(void)
{
    const unsigned long hwcap_sve = 1ul << 22;
    return ATTN_CPU_NEON | (getauxval(AT_HWCAP) & hwcap_sve ? (uint32_t)ATTN_CPU_SVE : 0u);
}
#else
static uint32_t cpu_isa(void)
{
    return 0;
}
#endif

static uint64_t positive(long value)
{
    return value > 0 ? (uint64_t)value : 0;
}

static attn_status cpu_open(struct device *device, attn_error *error)
{
    if (device->id != 0)
        return host_fail(error, ATTN_DEPENDENCY_MISSING, "device: cpu:%d: accepted is cpu:0",
                         device->id);
    device->info.cpu_isa = cpu_isa();
    device->info.memory_bytes = positive(sysconf(_SC_PHYS_PAGES)) * positive(sysconf(_SC_PAGESIZE));
#ifdef _SC_LEVEL3_CACHE_SIZE
    device->info.l2_bytes = positive(sysconf(_SC_LEVEL3_CACHE_SIZE));
#endif
    return ATTN_OK;
}

static void cpu_close(struct device *device)
{
    (void)device;
}

static void *cpu_allocate(const struct device *device, uint32_t space, uint64_t size,
                          uint64_t alignment)
{
    (void)device;
    void *memory;
    if (space >= ATTN_SPACE_COUNT || size > SIZE_MAX / 2)
        return NULL;
    if (alignment < sizeof(void *))
        alignment = sizeof(void *);
    if (posix_memalign(&memory, alignment, size ? size : 1) != 0)
        return NULL;
    return memory;
}

static void cpu_release(const struct device *device, uint32_t space, void *memory)
{
    (void)device, (void)space;
    free(memory);
}

static attn_status cpu_fill(const struct device *device, void *memory, int byte, uint64_t size,
                            attn_stream stream, attn_error *error)
{
    (void)device, (void)stream, (void)error;
    if (size > 0)
        memset(memory, byte, size);
    return ATTN_OK;
}

static attn_status cpu_copy(const struct device *device, void *to, const void *from, uint64_t size,
                            attn_stream stream, attn_error *error)
{
    (void)device, (void)stream, (void)error;
    if (size > 0)
        memcpy(to, from, size);
    return ATTN_OK;
}

static attn_status cpu_synchronize(const struct device *device, attn_stream stream,
                                   attn_error *error)
{
    (void)device, (void)stream, (void)error;
    return ATTN_OK;
}

const struct device_ops device_cpu = {
    .type = ATTN_DEVICE_CPU,
    .open = cpu_open,
    .close = cpu_close,
    .allocate = cpu_allocate,
    .release = cpu_release,
    .fill = cpu_fill,
    .copy = cpu_copy,
    .synchronize = cpu_synchronize,
};
