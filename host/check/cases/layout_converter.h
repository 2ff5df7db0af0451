/* SPDX-License-Identifier: Apache-2.0
 *
 * layout_converter.h: a wrapper around a backend with a vendor's own KV layout. The wrapper has
 * kv.nhd/1; it converts caches by the plugin's functions (attn_layouts) before a forward and back
 * after it.
 *
 * So cases, oracle and judge need no knowledge of such layouts. */
#ifndef HOST_CHECK_CASES_LAYOUT_CONVERTER_H
#define HOST_CHECK_CASES_LAYOUT_CONVERTER_H

#include "host/check/check.h"
#include "host/check/cases/front.h"
#include "host/check/spy/watch.h"

/* The plugin's conversions, and number `index` of the type's own KV layouts. NULL: it has none. */
const attn_layouts *layout_converter_layouts(const struct loader_plugin *plugin);
const char *layout_converter_layout(const attn_backend_type *type, uint32_t index);

/* Does the type list a KV layout of the ABI's? */
bool layout_converter_is_public(const attn_backend_type *type);

/* Slots of a backend have no context: forwards go through the one that was used last. */
struct layout_converter {
    struct front front;
    const struct device *device;
    const attn_layouts *layouts;
    const char *layout;
};

void layout_converter_init(struct layout_converter *converter, const attn_backend_type *inner,
                           const struct device *device, const attn_layouts *layouts,
                           const char *layout);

/* Forwards go through this one from now on; NULL = none. Returns the one before. */
struct layout_converter *layout_converter_use(struct layout_converter *converter);

/* Tell what the backend's own forwards call, in `report`, until it is called with NULLs. */
void layout_converter_watch(watch_begin_fn begin, watch_end_fn end, struct watch_report *report);

#endif /* HOST_CHECK_CASES_LAYOUT_CONVERTER_H */
