/* SPDX-License-Identifier: Apache-2.0
 *
 * layouts.c: parsing and comparing of layout ids.
 */
#include "host/plugin/layouts.h"

#include "host/plugin/private_operands.h"

#include <stdio.h>
#include <string.h>

const char *layouts_public(const char *id)
{
    static const char *const all[] = {ATTN_LAYOUT_KV_NHD,       ATTN_LAYOUT_KV_HND,
                                      ATTN_LAYOUT_MLA_LATENT,   ATTN_LAYOUT_MLA_LATENT_FP8,
                                      ATTN_LAYOUT_STATE_SSM_KV, ATTN_LAYOUT_STATE_SSM_VK,
                                      ATTN_LAYOUT_STATE_CONV};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        if (strcmp(id, all[n]) == 0)
            return all[n];
    return NULL;
}

bool layouts_is_private(const char *id)
{
    static const char *const families[] = {"kv.", "mla.", "state."};
    const char *slash = strchr(id, '/');
    char name[64];
    for (size_t n = 0; n < sizeof families / sizeof *families; n++)
        if (strncmp(id, families[n], strlen(families[n])) == 0)
            return false;
    if (!slash || (size_t)(slash - id) >= sizeof name || slash[1] < '1' || slash[1] > '9' ||
        slash[1 + strspn(slash + 1, "0123456789")] != '\0')
        return false;
    snprintf(name, sizeof name, "%.*s", (int)(slash - id), id);
    return operands_is_private(name);
}
