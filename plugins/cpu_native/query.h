/* SPDX-License-Identifier: Apache-2.0
 *
 * query.h: the question that is put to query.c, and its checks that mla/query.c calls, too.
 */
#ifndef CPU_NATIVE_QUERY_H
#define CPU_NATIVE_QUERY_H

#include "cpu_native.h"
#include "attn_plugin_util.h"

/* A problem in structs of full size. */
typedef struct question {
    attn_problem problem;
    attn_layer_group group;
    attn_bounds bounds;
    attn_device device;
    attn_mla_dims mla;       /* where the kind is MLA, or SPARSE */
    attn_sparse_dims sparse; /* where it is SPARSE */
    cpu_options options;
} question;

#define REFUSE(reason, field, ...)                                                                 \
    attn_util_refuse(verdict, ATTN_REASON_##reason, ATTN_FIELD_##field, __VA_ARGS__)

static inline int is_fp8(attn_dtype dtype)
{
    return dtype == ATTN_FP8_E4M3 || dtype == ATTN_FP8_E5M2;
}

#define OPERAND_DTYPES "f32, f16, bf16"
#define FP8_DTYPES     "fp8_e4m3, fp8_e5m2"

static inline int is_operand_dtype(attn_dtype dtype)
{
    return dtype == ATTN_F32 || dtype == ATTN_F16 || dtype == ATTN_BF16;
}

static inline int has_cache(const attn_layer_group *group)
{
    return group->attn_type != ATTN_TYPE_ENCODER_ONLY;
}

/* Scales of the cache, by head or not. `scaled`: it has them; `open`: it may. */
void query_check_scales(const question *ask, int scaled, int open, int per_head,
                        attn_verdict *verdict);

#endif /* CPU_NATIVE_QUERY_H */
