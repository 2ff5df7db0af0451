/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_ext_layouts.h: an extension of a plugin: conversion of a vendor's own KV layouts from and to
 * kv.nhd/1.
 */
#ifndef ATTN_EXT_LAYOUTS_H
#define ATTN_EXT_LAYOUTS_H

#include "attn_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An extension of a plugin (attn_plugin.get_extension): `const attn_layouts *`, what its backends'
 * own KV layouts, "vendor.name/rev", are to kv.nhd/1. With it `attnhost check` judges what they
 * read and write. */
#define ATTN_EXTENSION_LAYOUTS "attn.layouts/1"

/* `role` is K_CACHE or V_CACHE; `nhd` is a cache [pages, page_size, kv_heads, dim] in kv.nhd/1 and
 * `own` the same one in `layout`. A layout that is none of the plugin's, or does not keep such a
 * cache, is UNSUPPORTED. Nothing is allocated. Static storage. */
typedef struct attn_layouts {
    uint32_t struct_size;
    uint32_t reserved; /* 0 */

    /* How `own` lies: sets its dtype, ndim, shape and strides, by the dtype and shape of `nhd`.
     * [any-thread] */
    attn_status (*shape)(const char *layout, uint32_t role, const attn_tensor *nhd,
                         attn_tensor *own, attn_error *error);

    /* Copy every element, bit for bit, to one from the other. Both are host memory; `own` lies as
     * shape() says, `nhd` as it likes. [any-thread] */
    attn_status (*to_nhd)(const char *layout, uint32_t role, const attn_tensor *own,
                          const attn_tensor *nhd, attn_error *error);
    attn_status (*from_nhd)(const char *layout, uint32_t role, const attn_tensor *nhd,
                            const attn_tensor *own, attn_error *error);
} attn_layouts;

#ifdef __cplusplus
}
#endif

#endif /* ATTN_EXT_LAYOUTS_H */
