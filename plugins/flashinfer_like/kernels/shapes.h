/* SPDX-License-Identifier: Apache-2.0
 *
 * shapes.h: the kernels that are built, as the plugin's C knows them: the one table.
 *
 * A pair of head dimensions has a kernel for few rows (attend.cuh) and one for many (prefill.cuh),
 * each built for bf16 (attend_NAME_bf16.cu, prefill_NAME_bf16.cu) and fp16. To add one: four such
 * files, their names in Makefile.am.inc, and a line here.
 */
#ifndef FLASHINFER_LIKE_SHAPES_H
#define FLASHINFER_LIKE_SHAPES_H

/* X(name, head_dim, v_head_dim, attend: stages, bytes of shared memory, prefill: keys of a unit,
 * stages, tiles of queries, bytes of shared memory), smaller ones first. A multiprocessor has one
 * block of either.
 *
 * Of attend, memory is at its best with some 96 to 128 KiB on their way; more of them are worse, by
 * 1 to 3 %. Of prefill, 64 keys where registers have no room for scores of 128 beside the sums. */
#define FI_SHAPES(X)                                                                               \
    X(d64, 64, 64, 8, 136080, 128, 3, 2, 132608)                                                   \
    X(d96, 96, 96, 4, 138064, 128, 2, 2, 198144)                                                   \
    X(d128, 128, 128, 4, 140112, 128, 2, 2, 198144)                                                \
    X(d192, 192, 192, 4, 216144, 64, 2, 2, 198144)                                                 \
    X(d192_v128, 192, 128, 5, 220256, 128, 2, 1, 214528)                                           \
    X(d256, 256, 256, 3, 222272, 64, 2, 1, 198144)

#ifndef __CUDACC__

#include <stdint.h>

enum { KERNEL_ATTEND = 0, KERNEL_PREFILL = 1, KERNEL_COUNT = 2, KERNEL_THREADS = 384 };
enum { WARPS_OF_A_UNIT = 4 }; /* that copy it */

typedef struct fi_kernel {
    const char *name; /* without "_bf16" or "_f16" */
    int32_t rows;     /* of a tile */
    int32_t keys;     /* of a unit */
    uint32_t shared;  /* bytes */
} fi_kernel;

/* A line of the table. */
typedef struct fi_shape {
    int32_t dim, dim_v;
    fi_kernel kernels[KERNEL_COUNT];
} fi_shape;

#define FI_SHAPE(name, dim, dim_v, stages, shared, keys, prefill_stages, q_slots, prefill_shared)  \
    {                                                                                              \
        dim, dim_v,                                                                                \
        {                                                                                          \
            {"fi_attend_" #name, FI_ROWS, FI_KEYS, shared},                                        \
            {                                                                                      \
                "fi_prefill_" #name, FI_PREFILL_ROWS, keys, prefill_shared                         \
            }                                                                                      \
        }                                                                                          \
    }

#endif
#endif /* FLASHINFER_LIKE_SHAPES_H */
