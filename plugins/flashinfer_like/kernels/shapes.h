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

/* X(name, head_dim, v_head_dim, stages, bytes of shared memory, prefill: warps, blocks of a
 * multiprocessor, bytes of shared memory), smaller ones first.
 *
 * Of attend a multiprocessor has one block. Memory is at its best with some 96 to 128 KiB on their
 * way; more of them are worse, by 1 to 3 %. Of prefill it has two blocks where 128 rows' sums fit
 * the registers of four warps. */
#define FI_SHAPES(X)                                                                               \
    X(d64, 64, 64, 8, 136080, 4, 2, 50208)                                                         \
    X(d96, 96, 96, 4, 138064, 4, 2, 99360)                                                         \
    X(d128, 128, 128, 4, 140112, 4, 2, 99360)                                                      \
    X(d192, 192, 192, 4, 216144, 8, 1, 149024)                                                     \
    X(d192_v128, 192, 128, 5, 220256, 8, 1, 132640)                                                \
    X(d256, 256, 256, 3, 222272, 8, 1, 198176)

#ifndef __CUDACC__

#include <stdint.h>

enum { KERNEL_ATTEND = 0, KERNEL_PREFILL = 1, KERNEL_COUNT = 2 };

typedef struct fi_kernel {
    const char *name; /* without "_bf16" or "_f16" */
    int32_t rows;     /* of a tile */
    uint32_t threads;
    uint32_t blocks; /* of a multiprocessor */
    uint32_t shared; /* bytes */
} fi_kernel;

/* A line of the table. */
typedef struct fi_shape {
    int32_t dim, dim_v;
    fi_kernel kernels[KERNEL_COUNT];
} fi_shape;

#define FI_SHAPE(name, dim, dim_v, stages, shared, prefill_warps, prefill_blocks, prefill_shared)  \
    {                                                                                              \
        dim, dim_v,                                                                                \
        {                                                                                          \
            {"fi_attend_" #name, FI_ROWS, 384, 1, shared},                                         \
            {                                                                                      \
                "fi_prefill_" #name, FI_PREFILL_ROWS, (prefill_warps)*32, prefill_blocks,          \
                    prefill_shared                                                                 \
            }                                                                                      \
        }                                                                                          \
    }

#endif
#endif /* FLASHINFER_LIKE_SHAPES_H */
