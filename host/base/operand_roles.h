/* SPDX-License-Identifier: Apache-2.0
 *
 * operand_roles.h: names of operands in texts, and their dtypes.
 */
#ifndef HOST_BASE_OPERAND_ROLES_H
#define HOST_BASE_OPERAND_ROLES_H

#include "attn_problem.h"

/* "q", "c_kv" ... of an ATTN_ROLE_*; "?" for anything else. Static. */
const char *role_name(uint32_t role);

/* The dtype that an operand of this role has in calls for the problem's group; ATTN_DTYPE_NONE if
 * they have no such operand. *whose becomes the source of the dtype, such as "the problem's
 * q_dtype", static; `whose` may be NULL. */
attn_dtype role_dtype(const attn_problem *problem, uint32_t role, const char **whose);

/* The role's column of ATTN_ROLE_MAP: ATTN_DTYPE_OF_*; ATTN_DTYPE_OF_COUNT for an unknown role. */
uint32_t role_dtype_of(uint32_t role);

#endif /* HOST_BASE_OPERAND_ROLES_H */
