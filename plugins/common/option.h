/* SPDX-License-Identifier: Apache-2.0
 *
 * option.h: how our plugins read the values of their options.
 */
#ifndef PLUGINS_OPTION_H
#define PLUGINS_OPTION_H

#include "attn_backend.h"

/* A number within [low, high], both of which fit. CONFIG_ERROR with place and key. */
attn_status option_read_number(const attn_option_value *value, int64_t low, int64_t high,
                               int32_t *to, attn_error *error);

#endif /* PLUGINS_OPTION_H */
