/* SPDX-License-Identifier: Apache-2.0
 *
 * operand_roles.c: the table of roles: name, dtype and kind.
 */
#include "host/base/operand_roles.h"

#include "attn_batch.h"

#include <string.h>

const char *role_name(uint32_t role)
{
    static const char *const names[ATTN_ROLE_COUNT] = {
#define NAME(id, value, text, dtype) [value] = text,
        ATTN_ROLE_MAP(NAME)
#undef NAME
    };
    return role < ATTN_ROLE_COUNT ? names[role] : "?";
}

uint32_t role_dtype_of(uint32_t role)
{
    static const uint32_t columns[ATTN_ROLE_COUNT] = {
#define COLUMN(id, value, text, dtype) [value] = ATTN_DTYPE_OF_##dtype,
        ATTN_ROLE_MAP(COLUMN)
#undef COLUMN
    };
    return role < ATTN_ROLE_COUNT ? columns[role] : ATTN_DTYPE_OF_COUNT;
}

/* A latent cache whose rows contain scales is an array of bytes. */
static attn_dtype latent_dtype(const attn_problem *problem)
{
    if (!problem->kv_layout || !problem->group->mla)
        return ATTN_DTYPE_NONE;
    return strcmp(problem->kv_layout, ATTN_LAYOUT_MLA_LATENT_FP8) == 0 ? ATTN_U8
                                                                       : problem->kv_dtype;
}

/* A label cache in e4m3 is an array of bytes, too. */
static attn_dtype label_dtype(const attn_sparse_dims *sparse)
{
    if (!sparse)
        return ATTN_DTYPE_NONE;
    return sparse->label_dtype == ATTN_FP8_E4M3 ? ATTN_U8 : sparse->label_dtype;
}

/* Older headers have no indexer. */
static attn_dtype index_dtype(const attn_sparse_dims *sparse)
{
    return sparse && ATTN_HAS(sparse, attn_sparse_dims, index_dtype) ? sparse->index_dtype
                                                                     : ATTN_DTYPE_NONE;
}

static attn_dtype linear_dtype(const attn_problem *problem, uint32_t of)
{
    const attn_linear_dims *dims = problem->group->linear;
    if (!dims)
        return ATTN_DTYPE_NONE;
    if (of == ATTN_DTYPE_OF_GATE)
        return dims->flags & ATTN_LINEAR_RAW_GATES ? problem->q_dtype : ATTN_F32;
    return of == ATTN_DTYPE_OF_STATE ? dims->state_dtype : dims->conv_dtype;
}

attn_dtype role_dtype(const attn_problem *problem, uint32_t role, const char **whose)
{
    static const char *const names[ATTN_DTYPE_OF_COUNT + 1] = {
        [ATTN_DTYPE_OF_Q] = "the problem's q_dtype",
        [ATTN_DTYPE_OF_KV] = "the problem's kv_dtype",
        [ATTN_DTYPE_OF_LATENT] = "as the problem's kv_dtype and kv_layout have it",
        [ATTN_DTYPE_OF_OUT] = "the problem's out_dtype",
        [ATTN_DTYPE_OF_F32] = "whatever the problem's dtypes are",
        [ATTN_DTYPE_OF_GATE] = "as linear.flags have it",
        [ATTN_DTYPE_OF_STATE] = "linear.state_dtype",
        [ATTN_DTYPE_OF_CONV] = "linear.conv_dtype",
        [ATTN_DTYPE_OF_LABEL] = "as sparse.label_dtype has it",
        [ATTN_DTYPE_OF_I32] = "whatever the problem's dtypes are",
        [ATTN_DTYPE_OF_NEW_KV] = "the problem's new_kv_dtype",
        [ATTN_DTYPE_OF_INDEX] = "sparse.index_dtype",
        [ATTN_DTYPE_OF_COUNT] = "",
    };
    uint32_t of = role_dtype_of(role);
    if (whose)
        *whose = names[of];
    switch (of) {
    case ATTN_DTYPE_OF_Q:
        return problem->q_dtype;
    case ATTN_DTYPE_OF_NEW_KV:
        return attn_new_kv_dtype(problem);
    case ATTN_DTYPE_OF_KV:
        return problem->kv_layout ? problem->kv_dtype : ATTN_DTYPE_NONE;
    case ATTN_DTYPE_OF_LATENT:
        return latent_dtype(problem);
    case ATTN_DTYPE_OF_OUT:
        return problem->out_dtype;
    case ATTN_DTYPE_OF_F32:
        return ATTN_F32;
    case ATTN_DTYPE_OF_LABEL:
        return label_dtype(problem->group->sparse);
    case ATTN_DTYPE_OF_INDEX:
        return index_dtype(problem->group->sparse);
    case ATTN_DTYPE_OF_I32:
        return problem->group->sparse ? ATTN_I32 : ATTN_DTYPE_NONE;
    case ATTN_DTYPE_OF_COUNT:
        return ATTN_DTYPE_NONE;
    default:
        return linear_dtype(problem, of);
    }
}
