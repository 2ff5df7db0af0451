/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_plugin_util.h: code that C and C++ plugins share. Not part of the ABI: a plugin may use any
 * part of it, and the functions are compiled into the plugin. This header includes all parts:
 *
 *   attn_util_errors.h    messages with a field, sized structs, names
 *   attn_util_verdict.h   reasons, malformed problems, a plugin's limits
 *   attn_util_batch.h     instances, memory of metadata, batches
 *   attn_util_operands.h  operands by role, checked against a form; scales
 *   this file             numeric options; describe, the entry and its version
 *
 * C11 or C++17. Functions that return attn_status write failures into *error, which may be NULL. A
 * function without a thread tag is [any-thread].
 */
#ifndef ATTN_PLUGIN_UTIL_H
#define ATTN_PLUGIN_UTIL_H

#include "attn_util_errors.h"
#include "attn_util_verdict.h"
#include "attn_util_batch.h"
#include "attn_util_operands.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Options --------------------------------------------------------------------------------- */

/* A number in [low, high], which fit an int32_t; else CONFIG_ERROR with place and key. */
static inline attn_status attn_util_option_number(const attn_option_value *value, int64_t low,
                                                  int64_t high, int32_t *to, attn_error *error)
{
    if (value->integer < low || value->integer > high)
        return attn_util_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                    "%s: %s = %" PRId64 ": accepted %" PRId64 "..%" PRId64,
                                    value->place, value->key, value->integer, low, high);
    *to = (int32_t)value->integer;
    return ATTN_OK;
}

/* ---- The plugin ------------------------------------------------------------------------------ */

/* Body of attn_plugin_entry(): copies `mine` with struct_size, the ABI version and, if NULL, the
 * build filled in, up to the caller's struct_size. INCOMPATIBLE_VERSION if the host does not
 * support the major of these headers. */
static inline attn_status attn_util_entry(const attn_host_info *host, const attn_plugin *mine,
                                          attn_plugin *plugin, attn_error *error)
{
    if (!attn_host_speaks(host, ATTN_ABI_MAJOR))
        return attn_util_fail(error, ATTN_INCOMPATIBLE_VERSION, "ABI major %u..%u: accepted %u",
                              host->abi_major_min, host->abi_major_max, ATTN_ABI_MAJOR);
    attn_plugin whole = *mine;
    whole.abi_major = ATTN_ABI_MAJOR;
    whole.abi_minor = ATTN_ABI_MINOR;
#ifdef __VERSION__
    if (!whole.build)
        whole.build = __VERSION__;
#endif
    ATTN_UTIL_WRITE(plugin, &whole);
    return ATTN_OK;
}

/* Body of attn_plugin.describe for these types. INVALID_ARGUMENT beyond the last. */
static inline attn_status attn_util_describe(const attn_backend_type *const *types, uint32_t count,
                                             uint32_t index, const attn_backend_type **type,
                                             attn_error *error)
{
    if (index >= count && count == 1)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "backend %u: accepted 0", index);
    if (index >= count)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "backend %u: accepted 0..%u", index,
                              count - 1);
    *type = types[index];
    return ATTN_OK;
}

/* attn_backend_ops.get_extension of a backend without extensions. */
static inline const void *attn_util_no_extension(attn_instance *instance, const char *id)
{
    (void)instance;
    (void)id;
    return NULL;
}

#ifdef __cplusplus
}
#endif

#endif /* ATTN_PLUGIN_UTIL_H */
