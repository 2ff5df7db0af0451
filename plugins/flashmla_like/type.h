/* SPDX-License-Identifier: Apache-2.0
 *
 * type.h: flashmla_like as a plugin sees it that links its library.
 */
#ifndef FLASHMLA_LIKE_TYPE_H
#define FLASHMLA_LIKE_TYPE_H

#include "attn_backend.h"

extern const attn_backend_type flashmla_like_type;

#endif /* FLASHMLA_LIKE_TYPE_H */
