/* SPDX-License-Identifier: Apache-2.0
 *
 * shapes.h: what launches and kernels of linear_like agree on.
 */
#ifndef LINEAR_LIKE_SHAPES_H
#define LINEAR_LIKE_SHAPES_H

/* ---- steps.cuh: the recurrence, token by token ----------------------------------------------- */

#define STEPS_ROWS        8 /* made ready in shared memory together */
#define STEPS_MAX_WARPS   4
#define STEPS_DECODE_KEYS 16 /* of a lane, that there are kernels for single rows for */

/* Elements of v that a lane has, for so many of k, and those of a block. */
#define STEPS_VALUES(keys)           ((keys) > 16 ? 2 : 4)
#define STEPS_COLUMNS(warps, values) ((warps)*4 * (values))

/* Bytes of shared memory, for so many rows at once; `vectors`: q and k, and decays where each
 * channel has its own. */
#define STEPS_SHARED(rows, keys, vectors, columns)                                                 \
    ((rows) * ((vectors)*8 * (keys) + (columns) + 5) * 4)

/* ---- rows.cu: the convolution alone, and what is left when all rows are done ----------------- */

#define CONVOLVE_THREADS 256
#define CONVOLVE_ROWS    16 /* of a thread */
#define FINISH_THREADS   256

#endif /* LINEAR_LIKE_SHAPES_H */
