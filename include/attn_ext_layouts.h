/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_ext_layouts.h: an extension of a plugin: converts a vendor's own KV layouts from and to
 * kv.nhd/1.
 */
#ifndef ATTN_EXT_LAYOUTS_H
#define ATTN_EXT_LAYOUTS_H

#include "attn_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An extension of a plugin (attn_plugin.get_extension): `const attn_layouts *`, conversions between
 * its backends' own KV layouts, "vendor.name/rev", and kv.nhd/1. `attnhost check` uses it to check
 * such caches. */
#define ATTN_EXTENSION_LAYOUTS "attn.layouts/1"

/* `role` is K_CACHE or V_CACHE; `nhd` is a cache [pages, page_size, kv_heads, dim] in kv.nhd/1, and
 * `own` is the same cache in `layout`. UNSUPPORTED for a layout that is not the plugin's or cannot
 * hold such a cache. The functions allocate nothing. Static storage. */
typedef struct attn_layouts {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */

    /* Sets dtype, ndim, shape and strides of `own`, from the dtype and shape of `nhd`.
     * [any-thread] */
    attn_status (*shape)(const char *layout, uint32_t role, const attn_tensor *nhd,
                         attn_tensor *own, attn_error *error);

    /* Copy every element, bit for bit. Both tensors are host memory. `own` has the strides that
     * shape() sets; `nhd` may have any. [any-thread] */
    attn_status (*to_nhd)(const char *layout, uint32_t role, const attn_tensor *own,
                          const attn_tensor *nhd, attn_error *error);
    attn_status (*from_nhd)(const char *layout, uint32_t role, const attn_tensor *nhd,
                            const attn_tensor *own, attn_error *error);
} attn_layouts;

#ifdef __cplusplus
}
#endif

#endif /* ATTN_EXT_LAYOUTS_H */
