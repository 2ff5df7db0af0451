/* SPDX-License-Identifier: Apache-2.0
 *
 * cpu_isa.h: instruction sets with kernels in a CPU plugin. The values are the choices of an option
 * `isa`.
 */
#ifndef PLUGINS_CPU_ISA_H
#define PLUGINS_CPU_ISA_H

#include "attn_problem.h"

#include <stddef.h>

enum { CPU_ISA_AUTO = 0, CPU_ISA_GENERIC = 1, CPU_ISA_AVX2 = 2, CPU_ISA_AVX512 = 3 };

/* The option itself, an element of attn_option. */
extern const char *const cpu_isa_choices[4];
#define CPU_ISA_OPTION                                                                             \
    {                                                                                              \
        .struct_size = sizeof(attn_option), .type = ATTN_OPTION_ENUM, .key = "isa",                \
        .default_text = "auto", .min = 1, .num_choices = 4, .choices = cpu_isa_choices,            \
        .doc = "instruction set of the kernels; auto = the widest that this processor has"         \
    }

/* Kernels of one instruction set. A plugin has an array of them, from the widest down; it lacks
 * those that the compiler could not build. */
typedef struct cpu_isa_build {
    int32_t isa;
    const void *kernels;
} cpu_isa_build;

/* The widest kernels that were built and run here, or those of `isa`. DEPENDENCY_MISSING. */
attn_status cpu_isa_choose(const cpu_isa_build *builds, size_t count, int32_t isa,
                           const void **kernels, attn_error *error);

/* Add the reasons why a device cannot run kernels of `isa`, or why they were not built. */
void cpu_isa_check(const cpu_isa_build *builds, size_t count, int32_t isa,
                   const attn_device *device, attn_verdict *verdict);

/* Do this processor and its operating system support it? */
int cpu_isa_is_here(int32_t isa);

/* Does this processor multiply pairs of bf16? With CPU_ISA_AVX512. */
int cpu_isa_has_bf16(void);

#endif /* PLUGINS_CPU_ISA_H */
