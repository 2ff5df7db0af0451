/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_isa.c: instruction sets of the CPU, and the choice of a plugin's kernels for it.
 */
#include "plugins/common/cpu_isa.h"
#include "attn_plugin_util.h"

const char *const cpu_isa_choices[4] = {
    [CPU_ISA_AUTO] = "auto",
    [CPU_ISA_GENERIC] = "generic",
    [CPU_ISA_AVX2] = "avx2",
    [CPU_ISA_AVX512] = "avx512",
};

int cpu_isa_is_here(int32_t isa)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == CPU_ISA_AVX2)
        return avx2;
    if (isa == CPU_ISA_AVX512)
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return isa == CPU_ISA_GENERIC;
}

int cpu_isa_has_bf16(void)
{
#if defined(__x86_64__) && (__GNUC__ >= 10 || __clang_major__ >= 9)
    return cpu_isa_is_here(CPU_ISA_AVX512) && __builtin_cpu_supports("avx512bf16");
#else
    return 0;
#endif
}

attn_status cpu_isa_choose(const cpu_isa_build *builds, size_t count, int32_t isa,
                           const void **kernels, attn_error *error)
{
    for (size_t i = 0; i < count; i++) {
        if ((isa != CPU_ISA_AUTO && isa != builds[i].isa) || !cpu_isa_is_here(builds[i].isa))
            continue;
        *kernels = builds[i].kernels;
        return ATTN_OK;
    }
    return attn_util_fail_field(error, ATTN_DEPENDENCY_MISSING, ATTN_FIELD_DEVICE_CPU_ISA,
                                "option isa: this processor or this build has no %s: "
                                "accepted auto, generic",
                                isa == CPU_ISA_AVX512 ? "avx512" : "avx2");
}

static int is_built(const cpu_isa_build *builds, size_t count, int32_t isa)
{
    for (size_t i = 0; i < count; i++)
        if (isa == CPU_ISA_AUTO || isa == builds[i].isa)
            return 1;
    return 0;
}

void cpu_isa_check(const cpu_isa_build *builds, size_t count, int32_t isa,
                   const attn_device *device, attn_verdict *verdict)
{
    static const uint32_t flags[] = {
        [CPU_ISA_AVX2] = ATTN_CPU_AVX2, [CPU_ISA_AVX512] = ATTN_CPU_AVX2 | ATTN_CPU_AVX512};
    uint32_t needed = flags[isa];
    int built = is_built(builds, count, isa), lacking = (device->cpu_isa & needed) != needed;
    if (!built || lacking)
        attn_util_refuse(verdict, built ? ATTN_REASON_ARCH : ATTN_REASON_DEPENDENCY,
                         ATTN_FIELD_OPTION, "isa = auto, isa = generic", "isa = %s",
                         needed & ATTN_CPU_AVX512 ? "avx512" : "avx2");
    if (device->type != ATTN_DEVICE_CPU)
        attn_util_refuse(verdict, ATTN_REASON_ARCH, ATTN_FIELD_DEVICE_TYPE, "cpu", "%s",
                         attn_device_name(device->type));
    if (lacking)
        attn_util_refuse(verdict, ATTN_REASON_ARCH, ATTN_FIELD_DEVICE_CPU_ISA,
                         needed & ATTN_CPU_AVX512 ? "avx2 and avx512" : "avx2", "%#x",
                         device->cpu_isa);
}
