/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * attn_ext_explain.h: an extension of an instance: the choices of prepare(), as text for people.
 */
#ifndef ATTN_EXT_EXPLAIN_H
#define ATTN_EXT_EXPLAIN_H

#include "attn_backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An extension of an instance: `const char *`, the choices of prepare() as text for people, one per
 * line; valid as long as the instance. */
#define ATTN_EXTENSION_EXPLAIN "attn.explain/1"

#ifdef __cplusplus
}
#endif

#endif /* ATTN_EXT_EXPLAIN_H */
