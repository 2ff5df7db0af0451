/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_ext_explain.h: an instance's extension: what prepare() chose, as text for people.
 */
#ifndef ATTN_EXT_EXPLAIN_H
#define ATTN_EXT_EXPLAIN_H

#include "attn_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An extension of an instance: `const char *`, the choices that prepare() made, as text for people,
 * one line each; it lives as long as the instance. */
#define ATTN_EXTENSION_EXPLAIN "attn.explain/1"

#ifdef __cplusplus
}
#endif

#endif /* ATTN_EXT_EXPLAIN_H */
