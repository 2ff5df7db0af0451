/* SPDX-License-Identifier: Apache-2.0
 *
 * type.h: flashmla_like as a plugin sees it that links its library.
 */
#ifndef FLASHMLA_LIKE_TYPE_H
#define FLASHMLA_LIKE_TYPE_H

#include "attn_backend.h"

extern const attn_backend_type flashmla_like_type;

/* No batch planned from now on divides the keys of a sequence with few queries (128 rows of heads), so that its bits
 * depend on no other sequence. */
void flashmla_like_keep_whole(attn_instance *instance);

/* kv_lens of batches planned from now on may become less on the device before each forward. Such batches have q_indptr,
 * one query in each sequence, and no new latents. */
void flashmla_like_let_shrink(attn_instance *instance);

#endif /* FLASHMLA_LIKE_TYPE_H */
