/* SPDX-License-Identifier: Apache-2.0
 *
 * answers.h: a cache of query's answers, by problem. Choosing cases queries about 2,000 problems,
 * each many times: the cache calls query once per problem, as it may be slow, for example in
 * Python. The checks of CAPS-01, which compare repeated answers, do not use it.
 */
#ifndef HOST_CHECK_CASES_ANSWERS_H
#define HOST_CHECK_CASES_ANSWERS_H

#include <stddef.h>

#include "host/check/cases/forward_case.h"

struct answers {
    struct answer *slots; /* open addressing; NULL = none */
    size_t room, count;
};

/* The answer to `posed` with these options, which stay where they are; NULL = not known. */
const attn_verdict *answers_find(const struct answers *answers, const struct spec_problem *posed,
                                 const attn_options *options);

/* Keep it, but for its reasons; without memory it is not kept. */
void answers_keep(struct answers *answers, const struct spec_problem *posed,
                  const attn_options *options, const attn_verdict *verdict);

void answers_finish(struct answers *answers);

#endif /* HOST_CHECK_CASES_ANSWERS_H */
