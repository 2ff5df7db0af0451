/* SPDX-License-Identifier: Apache-2.0
 *
 * type.h: flashmla_like, for a plugin that links its library. */
#ifndef FLASHMLA_LIKE_TYPE_H
#define FLASHMLA_LIKE_TYPE_H

#include "attn_backend.h"

extern const attn_backend_type flashmla_like_type;

/* From now on, no batch is planned that divides the keys of a sequence with few queries (up to 128
 * rows of heads), so its bits depend on no other sequence. */
void flashmla_like_keep_whole(attn_instance *instance);

/* From now on, kv_lens of a planned batch may decrease on the device before each forward. Such
 * batches have q_indptr, one query per sequence, and no new latents. */
void flashmla_like_let_shrink(attn_instance *instance);

#endif /* FLASHMLA_LIKE_TYPE_H */
