/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/common/option.h"
#include "plugins/common/plugin_error.h"

attn_status option_read_number(const attn_option_value *value, int64_t low, int64_t high,
                               int32_t *to, attn_error *error)
{
    if (value->integer < low || value->integer > high)
        return plugin_fail_field(error, ATTN_CONFIG_ERROR, ATTN_FIELD_OPTION,
                                 "%s: %s = %lld: accepted %lld..%lld", value->place, value->key,
                                 (long long)value->integer, (long long)low, (long long)high);
    *to = (int32_t)value->integer;
    return ATTN_OK;
}
