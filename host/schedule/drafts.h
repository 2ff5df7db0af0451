/* SPDX-License-Identifier: Apache-2.0
 *
 * drafts.h: a draft model's proposals, and the target model's acceptance.
 *
 * A run has no text, so whether a draft is right is drawn: once for each token that decode makes,
 * from (seed, request, position) alone. So what is accepted does not depend on how requests were
 * batched, and a script can compute it from the trace.
 *
 * A verification has `tokens` rows for each request. Row 0, the root, is the token that came last:
 * its keys are not in the cache yet. The others are drafts, at most `top_k` of them at each depth:
 * those at depth d are rows 1 + (d - 1) * top_k and following. One row at each depth is the draft
 * model's first guess; its parent is the first guess one depth above, and the other rows' parents
 * are drawn. If the draft at the position of depth 1 is right, the first guess there is the token
 * itself and is accepted, then that at depth 2, and so on to the first that is wrong. With top_k 1
 * it is a chain.
 *
 * A position's draft is looked at at most once, as the one that was wrong is the next root. So with
 * rate p and `depth` depths the accepted drafts of a verification, those cut off at a request's end
 * aside, are p + p^2 + ... + p^depth on average.
 *
 * To the bit (mix.h), for the token at `position`:
 *
 *   state = 0x6472616674656420                                ("drafted ")
 *   for word in seed, request, position:  state = mix_absorb(state, word)
 *   right = (mix_stream(state, 0) >> 11) < floor(rate * 2^53)
 *   first guess = mix_below(mix_stream(state, 1) mod 2^32, rows at its depth)   from the first row
 *   parent of any other row r = mix_below(mix_stream(state, 1 + r) mod 2^32, rows one depth above)
 */
#ifndef HOST_SCHEDULE_DRAFTS_H
#define HOST_SCHEDULE_DRAFTS_H

#include <stdbool.h>
#include <stdint.h>

#include "host/workload/draft_tree.h"

struct drafts {
    int32_t tokens; /* rows of a verification; 0 = there are none, else 2 .. DRAFTS_MAX_TOKENS */
    int32_t top_k;  /* 1 = a chain */
    double rate;    /* that a draft is right */
    uint64_t seed;
};

/* Rows of a request that decodes, in one step. */
static inline int32_t drafts_rows(const struct drafts *drafts)
{
    return drafts->tokens > 0 ? drafts->tokens : 1;
}

/* Can a row of a tree stand elsewhere than its token's position has it? */
static inline bool drafts_branch(const struct drafts *drafts)
{
    return drafts->tokens > 0 && drafts->top_k > 1;
}

/* Depths below the root. */
int32_t drafts_depth(const struct drafts *drafts);

/* Is the draft for the token at `position` right? */
bool drafts_right(const struct drafts *drafts, int64_t request, int64_t position);

/* The tree whose root is the token at `position`, of which at most `most` rows stay (>= 1). */
void drafts_grow(const struct drafts *drafts, int64_t request, int64_t position, int32_t most,
                 struct draft_tree *tree);

#endif /* HOST_SCHEDULE_DRAFTS_H */
