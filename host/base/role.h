/* SPDX-License-Identifier: Apache-2.0
 *
 * role.h: what operands are called in texts.
 */
#ifndef HOST_BASE_ROLE_H
#define HOST_BASE_ROLE_H

#include <stdint.h>

/* "q", "c_kv" ... of an ATTN_ROLE_*; "?" for anything else. Static. */
const char *role_name(uint32_t role);

#endif /* HOST_BASE_ROLE_H */
