/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: limits of sparse layers over latents. */
#include "sparse.h"

#include "plugins/cpu_native/mla/mla.h"

#include <string.h>

attn_status sparse_question_init(question *ask, attn_error *error)
{
    if (!ask->group.sparse)
        return attn_util_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_KIND,
                                    "kind sparse without sparse dimensions");
    memset(&ask->sparse, 0, sizeof ask->sparse);
    ATTN_UTIL_READ(&ask->sparse, ask->group.sparse);
    return mla_question_init(ask, error);
}

static int is_label_dtype(attn_dtype dtype)
{
    return is_operand_dtype(dtype) || dtype == ATTN_FP8_E4M3;
}

static void check_indexer(const question *ask, attn_verdict *verdict)
{
    const attn_sparse_dims *sparse = &ask->sparse;
    const int has_codes = sparse->label_dtype == ATTN_FP8_E4M3;
    if (sparse->index_heads < 0 || sparse->index_heads > MAX_INDEX_HEADS)
        REFUSE(SPARSITY, INDEX_HEADS, "0..1024", "%d", sparse->index_heads);
    if (sparse->index_heads == 0)
        return;
    if (sparse->label_dim < 1 || sparse->label_dim > MAX_LABEL ||
        (has_codes && sparse->label_dim % 4 != 0))
        REFUSE(SPARSITY, LABEL_CACHE, has_codes ? "4..512/4" : "1..512", "%d", sparse->label_dim);
    if (!is_label_dtype(sparse->label_dtype))
        REFUSE(DTYPE, LABEL_DTYPE, OPERAND_DTYPES ", fp8_e4m3", "%s",
               attn_util_dtype_name(sparse->label_dtype));
    if (!is_operand_dtype(sparse->index_dtype) && !is_fp8(sparse->index_dtype))
        REFUSE(DTYPE, INDEX_DTYPE, OPERAND_DTYPES ", " FP8_DTYPES, "%s",
               attn_util_dtype_name(sparse->index_dtype));
}

void sparse_check_dims(const question *ask, attn_verdict *verdict)
{
    const attn_sparse_dims *sparse = &ask->sparse;
    mla_check_dims(ask, verdict);
    attn_util_refuse_excess(verdict, ATTN_REASON_MLA_FORM, ATTN_FIELD_MLA_EXPANDED, 0,
                            ask->problem.mla_expanded & ATTN_UTIL_ALL_MODES);
    if (sparse->index_kind != ATTN_SPARSE_TOKEN)
        REFUSE(SPARSITY, INDEX_KIND, "0", "%u", sparse->index_kind);
    if (sparse->top_k < 1)
        REFUSE(SPARSITY, TOP_K, "1..2147483647", "%d", sparse->top_k);
    if (sparse->block_size != 1)
        REFUSE(SPARSITY, BLOCK_SIZE, "1", "%d", sparse->block_size);
    check_indexer(ask, verdict);
}

/* Where the caller chooses, positions of keys are not known. */
void sparse_check_flags(const question *ask, attn_verdict *verdict)
{
    if (ask->group.flags & ATTN_GROUP_HAS_ALIBI)
        REFUSE(ALIBI, ALIBI, "absent", "present");
}
