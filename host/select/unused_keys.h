/* SPDX-License-Identifier: Apache-2.0
 *
 * unused_keys.h: settings without effect, and defaults used for missing ones.
 */
#ifndef HOST_SELECT_UNUSED_KEYS_H
#define HOST_SELECT_UNUSED_KEYS_H

#include "host/base/text.h"
#include "host/plugin/compose.h"
#include "host/select/select.h"

/* A line for each such key, and for each route that can never match; for `run` and `explain`. To
 * add a key: a row in unused_keys.c. */
void unused_keys_list(const struct composer *composer, const struct config *config,
                      const struct selection *selection, strbuf *text);

#endif /* HOST_SELECT_UNUSED_KEYS_H */
