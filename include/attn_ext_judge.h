/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_ext_judge.h: an extension of the host: the oracle and the pass rule.
 */
#ifndef ATTN_EXT_JUDGE_H
#define ATTN_EXT_JUDGE_H

#include "attn_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An extension of the host (attn_services.get_extension): `const attn_judge *`, the oracle and the
 * pass rule of docs/ABI.md, for a backend that checks other backends' outputs. */
#define ATTN_EXTENSION_JUDGE "attn.judge/1"

typedef struct attn_judge {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */

    /* *bars_off is the error of the worst element of operand OUT in row `row`, query head `head`,
     * in bars; <= 1 passes. INFINITY if only one of output and truth is finite, or only one is NaN.
     * All pointers, `device` ones too, are host memory; `problem` names a group that has the layer.
     * `reads_new_unquantised` is the verdict's reads_new_kv_unquantised. New keys and values are
     * read from the arguments, saved or not. UNSUPPORTED for a kind of layer without an oracle,
     * INVALID_ARGUMENT for a row that belongs to no sequence. [any-thread] */
    attn_status (*judge)(const attn_problem *problem, const attn_batch *batch, int32_t layer_id,
                         const attn_forward_args *args, uint32_t reads_new_unquantised, int64_t row,
                         int32_t head, double *bars_off, attn_error *error);
} attn_judge;

#ifdef __cplusplus
}
#endif

#endif /* ATTN_EXT_JUDGE_H */
