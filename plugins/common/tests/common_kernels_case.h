/* SPDX-License-Identifier: Apache-2.0
 *
 * common_kernels_case.h: inputs for the kernels that plugins share (plugins/common/cuda/), for
 * check_common_kernels.c, which runs them compiled as C, and device_common_kernels.c, which holds a
 * GPU to the same bits.
 */
#ifndef COMMON_KERNELS_CASE_H
#define COMMON_KERNELS_CASE_H

#include "plugins/common/cuda/merge_states.cuh"
#include "plugins/common/cuda/save_kv.cuh"

#include <stddef.h>

/* Scales that take quotients through every part of the fp8 types: ties, subnormal and saturated
 * codes, quotients that overflow fp32 or are subnormal in it, divisions that are not exact. */
enum { CASE_SCALES = 20 };
extern const float case_scales[CASE_SCALES];

/* ---- Saving ---------------------------------------------------------------------------------- */

enum {
    SAVE_ROWS = 328,
    SAVE_HEADS = 5,
    SAVE_DIM = 40, /* 328 * 5 * 40 = 65600: all of a 16-bit type */
    SAVE_PAGE = 7,
    SAVE_PAGES = 60
};

/* Rows and a cache, with gaps between vectors, in host memory. The values of k are all bit patterns
 * of a 16-bit type in order, those of v in another; of fp32 they are drawn. Every ninth row has a
 * slot of -1, and the others are in no order. */
typedef struct save_case {
    save_kv_call call;
    void *from[2]; /* k, v */
    void *to[2];
    float *scales; /* [SAVE_HEADS] */
    i64 *slots;
    size_t from_bytes;
    size_t to_bytes;
} save_case;

/* The cache is kv.hnd/1 if `seed` is odd, else kv.nhd/1. With per_head head h has scale
 * scale * (h + 1). */
void save_case_init(save_case *c, unsigned seed, int from_dtype, int to_dtype, float scale,
                    int per_head);
void save_case_finish(save_case *c);

/* The cache with one pattern in it. */
void save_case_poison(save_case *c);
/* save_kv_rows() as C. */
void save_case_run(save_case *c);

/* ---- Merging --------------------------------------------------------------------------------- */

enum { MERGE_ROWS = 61, MERGE_HEADS = 3, MERGE_MAX_STATES = 9, MERGE_KINDS = 6 };

/* How the LSE of a case are related; a tenth of the states is empty in all but the last. */
enum {
    MERGE_NEAR = 0,
    MERGE_EQUAL = 1,
    MERGE_FAR = 2,  /* differences of thousands */
    MERGE_HUGE = 3, /* up to 1e30 */
    MERGE_HALF_EMPTY = 4,
    MERGE_ALL_EMPTY = 5
};

typedef struct merge_case {
    merge_states states;
    merge_result result;
    float sink;
    char *out_in; /* of the states */
    char *lse_in;
    char *out;
    char *lse;
    size_t out_in_bytes, lse_in_bytes, out_bytes, lse_bytes;
} merge_case;

/* `kind` is MERGE_NEAR ...; odd seeds have a sink. Outputs of empty states are NaN. */
void merge_case_init(merge_case *c, unsigned seed, int kind, int count, int in_dtype,
                     int out_dtype);
void merge_case_finish(merge_case *c);
void merge_case_poison(merge_case *c);
/* State `index` alone, as merge_two() takes it. */
merge_states merge_case_state(const merge_case *c, int index);
/* merge_many(), or merge_two() of states 0 and 1, as C, by as many lanes in turn. */
void merge_case_run(merge_case *c, int two, int lanes);

#endif /* COMMON_KERNELS_CASE_H */
