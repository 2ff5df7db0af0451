/* SPDX-License-Identifier: Apache-2.0
 *
 * adapters.c: the majors of this host. See adapters.h.
 */
#include "host/plugin/adapters.h"

#include "host/base/error.h"

/* Before 1.0 members change places from minor to minor, and nothing adapts them. */
static attn_status admit_this_minor(const attn_plugin *plugin, attn_error *error)
{
    if (ATTN_ABI_MAJOR > 0 || plugin->abi_minor == ATTN_ABI_MINOR)
        return ATTN_OK;
    return host_fail(error, ATTN_INCOMPATIBLE_VERSION,
                     "it is built for ABI 0.%u; accepted: 0.%u, as before 1.0 no two minor "
                     "versions are compatible",
                     plugin->abi_minor, ATTN_ABI_MINOR);
}

const struct adapter adapters[] = {
    {.major = ATTN_ABI_MAJOR, .minor = ATTN_ABI_MINOR, .admit = admit_this_minor},
};
const size_t num_adapters = sizeof adapters / sizeof *adapters;
