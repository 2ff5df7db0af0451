/* SPDX-License-Identifier: Apache-2.0
 *
 * layouts.h: ids of layouts: those of the ABI, and a vendor's own, "vendor.name/rev".
 */
#ifndef HOST_PLUGIN_LAYOUTS_H
#define HOST_PLUGIN_LAYOUTS_H

#include <stdbool.h>

/* The ABI's own id that is equal to this one, static; NULL = there is none. */
const char *layouts_public(const char *id);

/* Is it the id of a vendor's own layout? The families kv, mla and state are reserved for the ABI:
 * an unknown id there belongs to a later version. */
bool layouts_is_private(const char *id);

#endif /* HOST_PLUGIN_LAYOUTS_H */
