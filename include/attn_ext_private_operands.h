/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_ext_private_operands.h: operands without a role, known only to one vendor's backends.
 *
 * A type declares them (attn_backend_type.operands), a problem names those that calls bring
 * (attn_problem.features), and a call passes them (attn_forward_args.named): docs/ABI.md, PRIV-01 to
 * PRIV-03.
 */
#ifndef ATTN_EXT_PRIVATE_OPERANDS_H
#define ATTN_EXT_PRIVATE_OPERANDS_H

#include "attn_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Extents of a private operand that follow from the layer or the call. */
enum attn_extent {
    ATTN_EXTENT_ANY = 0,       /* defined by the vendor */
    ATTN_EXTENT_TOKENS = -1,   /* rows of OUT */
    ATTN_EXTENT_Q_HEADS = -2,  /* num_q_heads */
    ATTN_EXTENT_KV_HEADS = -3, /* num_kv_heads */
    ATTN_EXTENT_KEYS = -4,     /* at least the keys of the batch's longest sequence */
    ATTN_EXTENT_LAST = -4
};

/* An operand without a role, known only to one vendor's backends: an additive bias, or parameters
 * of a variant compiled for one model. Problems name it among their features; calls pass it in
 * attn_forward_args.named. Static storage. */
typedef struct attn_private_operand {
    uint32_t struct_size;
    attn_dtype dtype;  /* ATTN_DTYPE_NONE = the problem's q_dtype */
    uint32_t ndim;     /* 1..ATTN_MAX_DIMS */
    uint32_t reserved; /* 0 */
    const char *name;  /* "vendor.name", each [a-z][a-z0-9_]*, not attn; at most 63 bytes */
    const char *doc;   /* one line, never NULL */
    int64_t shape[ATTN_MAX_DIMS]; /* each > 0, or ATTN_EXTENT_* */
} attn_private_operand;

/* The private operand of that name in a call. */
typedef struct attn_named_operand {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */
    const char *name;  /* "vendor.name" */
    const attn_tensor *tensor;
} attn_named_operand;

#ifdef __cplusplus
}
#endif

#endif /* ATTN_EXT_PRIVATE_OPERANDS_H */
