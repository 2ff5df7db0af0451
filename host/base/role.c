/* SPDX-License-Identifier: Apache-2.0 */
#include "host/base/role.h"

#include "attn_batch.h"

const char *role_name(uint32_t role)
{
    static const char *const names[ATTN_ROLE_COUNT] = {
#define NAME(id, value, text) [value] = text,
        ATTN_ROLE_MAP(NAME)
#undef NAME
    };
    return role < ATTN_ROLE_COUNT ? names[role] : "?";
}
