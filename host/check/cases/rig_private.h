/* SPDX-License-Identifier: Apache-2.0
 *
 * rig_private.h: shared by rig.c, rig_question.c and rig_run.c.
 */
#ifndef HOST_CHECK_CASES_RIG_PRIVATE_H
#define HOST_CHECK_CASES_RIG_PRIVATE_H

#include "host/base/round.h"
#include "host/check/cases/rig.h"

static inline int32_t rig_pages(int32_t tokens, int32_t page_size)
{
    return (int32_t)units_for(tokens, page_size);
}

/* The first question that the subject accepts, and that `child` (or NULL) accepts too, of the kind
 * of this rank among those that have one. false: `why` is what was said to the first question. */
bool rig_find_for(struct rig_question *question, const struct check_subject *subject, int rank,
                  struct compose_node *child, attn_verdict *verdict, char *why, size_t size);

/* The kinds of which the subject accepts a question; 1 if there is none. */
int rig_count_kinds(const struct check_subject *subject);

enum { RIG_CHOICE_BYTES = RIG_TOKENS * RIG_TOP_K * (int)sizeof(int32_t) };

/* What a part is to a layer. */
enum rig_use {
    RIG_GIVEN,   /* read */
    RIG_WRITTEN, /* rows of the batch's tokens */
    RIG_PAGES,   /* read, and written in the slots of new tokens */
    RIG_STATES   /* read, and written in the batch's slots */
};

struct rig_part_info {
    uint32_t role; /* ATTN_ROLE_COUNT = none: layers of this kind have no such part */
    enum rig_use use;
    const char *name,
        *damage; /* "the output"; "rows of the output beyond the batch were written" */
};

/* [RIG_PARTS] of the question's kind. */
const struct rig_part_info *rig_parts(const struct rig_question *question);

#endif /* HOST_CHECK_CASES_RIG_PRIVATE_H */
