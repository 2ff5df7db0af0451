/* SPDX-License-Identifier: Apache-2.0
 *
 * shapes.h: the kernels that are built, as the plugin's C knows them: the one table.
 *
 * A pair of head dimensions has a kernel for few rows (attend.cuh) and one for many (prefill.cuh),
 * each built for bf16 (attend_NAME_bf16.cu, prefill_NAME_bf16.cu) and fp16; and the same two over a
 * cache of e4m3 (attend_NAME_bf16_e4m3.cu and so on). To add one: eight such files, their names in
 * Makefile.am.inc, and a line here.
 */
#ifndef PLANNED_SHAPES_H
#define PLANNED_SHAPES_H

/* X(name, head_dim, v_head_dim, attend: stages, bytes of shared memory, attend over fp8: the same,
 * prefill: keys of a unit, stages, tiles of queries, bytes of shared memory, prefill over fp8: the
 * same, before the bytes units of codes), smaller ones first. A multiprocessor has one block of
 * either.
 *
 * Of attend, memory is at its best with some 96 to 128 KiB on their way; more of them are worse, by
 * 1 to 3 %. Of prefill, 64 keys where registers have no room for scores of 128 beside the sums. */
#define FI_SHAPES(X)                                                                               \
    X(d64, 64, 64, 8, 136080, 10, 173744, 128, 3, 2, 132608, 128, 3, 2, 2, 198144)                 \
    X(d96, 96, 96, 4, 138064, 8, 145040, 128, 2, 2, 198144, 128, 2, 1, 2, 230912)                  \
    X(d128, 128, 128, 4, 140112, 8, 149136, 128, 2, 2, 198144, 128, 2, 1, 2, 230912)               \
    X(d192, 192, 192, 4, 216144, 5, 183456, 64, 2, 2, 198144, 64, 2, 1, 2, 214528)                 \
    X(d192_v128, 192, 128, 5, 220256, 6, 171952, 128, 2, 1, 214528, 64, 2, 2, 2, 230912)           \
    X(d256, 256, 256, 3, 222272, 5, 189600, 64, 2, 1, 198144, 64, 2, 1, 1, 230912)

/* Teams of four warps that multiply in turn, and that copy in turn. fp8 has half of the bytes, so
 * half of the time for its products; of more than 128 columns a thread's sums have no room for two.
 */
#define FI_ATTEND_TEAMS       1
#define FI_ATTEND_COPIERS     2
#define FI_CODES_TEAMS(v_dim) ((v_dim) > 128 ? 1 : 2)
#define FI_CODES_COPIERS      1

#ifndef __CUDACC__

#include <stdint.h>

/* The last two: over fp8. */
enum {
    KERNEL_ATTEND = 0,
    KERNEL_PREFILL = 1,
    KERNEL_CODES = 2,
    KERNEL_PREFILL_CODES = 3,
    KERNEL_COUNT = 4
};
enum { WARPS_OF_A_UNIT = 4 }; /* that copy it */

static inline int fi_is_prefill(int kernel)
{
    return kernel == KERNEL_PREFILL || kernel == KERNEL_PREFILL_CODES;
}

typedef struct fi_kernel {
    const char *name; /* without "_bf16" and the like */
    int32_t rows;     /* of a tile */
    int32_t keys;     /* of a unit */
    uint32_t threads;
    uint32_t shared; /* bytes */
} fi_kernel;

/* A line of the table. */
typedef struct fi_shape {
    int32_t dim, dim_v;
    fi_kernel kernels[KERNEL_COUNT];
} fi_shape;

#define FI_SHAPE(name, dim, v_dim, stages, shared, codes_stages, codes_shared, keys,               \
                 prefill_stages, q_slots, prefill_shared, codes_keys, prefill_codes_stages,        \
                 codes_q_slots, code_slots, prefill_codes_shared)                                  \
    {                                                                                              \
        dim, v_dim,                                                                                \
        {                                                                                          \
            {"fi_attend_" #name, FI_ROWS, FI_KEYS, (FI_ATTEND_TEAMS + FI_ATTEND_COPIERS) * 128,    \
             shared},                                                                              \
                {"fi_prefill_" #name, FI_PREFILL_ROWS, keys, 384, prefill_shared},                 \
                {"fi_attend_" #name, FI_ROWS, FI_KEYS,                                             \
                 (FI_CODES_TEAMS(v_dim) + FI_CODES_COPIERS) * 128, codes_shared},                  \
            {                                                                                      \
                "fi_prefill_" #name, FI_PREFILL_ROWS, codes_keys, 384, prefill_codes_shared        \
            }                                                                                      \
        }                                                                                          \
    }

#endif
#endif /* PLANNED_SHAPES_H */
