/* SPDX-License-Identifier: Apache-2.0
 *
 * draft_tree.h: the rows of one request in a verification, and their tokens.
 *
 * Row 0, the root, is the token that came last, the others are drafts; each sees what is before the
 * root, itself, and the rows on its way up to the root. Rows that stay are the request's own
 * tokens. Rejected rows are tokens that it never has: token_key.h gives each of these rows a number
 * of its own. A row's depth depends on its number alone (schedule/drafts.h), so a number and a
 * position name one row of one verification. */
#ifndef HOST_WORKLOAD_DRAFT_TREE_H
#define HOST_WORKLOAD_DRAFT_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include "host/workload/token_key.h"

enum { DRAFTS_MAX_TOKENS = 64 };

struct draft_tree {
    int32_t committed;                 /* rows that stay: the root and what is accepted after it */
    uint8_t parent[DRAFTS_MAX_TOKENS]; /* a row before it; the root's is 0 */
    uint8_t depth[DRAFTS_MAX_TOKENS];  /* 0 = the root */
    uint8_t path[DRAFTS_MAX_TOKENS];   /* [committed] the rows that stay, ascending */
};

/* Does a row stay? */
static inline bool draft_tree_keeps(const struct draft_tree *tree, int32_t row)
{
    for (int32_t d = 0; d < tree->committed && tree->path[d] <= row; d++)
        if (tree->path[d] == row)
            return true;
    return false;
}

/* The request number whose token, at the row's position, a row of `request` is. */
static inline int64_t draft_tree_number(const struct draft_tree *tree, int64_t request,
                                        int64_t num_requests, int32_t row)
{
    return draft_tree_keeps(tree, row) ? request : request_of_draft(request, num_requests, 1 + row);
}

#endif /* HOST_WORKLOAD_DRAFT_TREE_H */
