/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: what fa3_like can do: what the library can, which the forward kernels add speed to and
 * nothing else.
 */
#include "plugins/fa3_like/fa3_like.h"

#include "attn_plugin_util.h"

attn_status fa3_query(const attn_backend_type *type, const attn_options *options,
                      const attn_services *services, const attn_problem *problem,
                      attn_verdict *given, attn_error *error)
{
    attn_verdict verdict;
    if (!given)
        return fi_query(type, options, services, problem, NULL, error);
    attn_util_verdict_begin(given, &verdict);
    attn_status status = fi_query(type, options, services, problem, &verdict, error);
    if (status != ATTN_OK)
        return status;
    if (verdict.supported) {
        cuda_question ask;
        cuda_question_read(problem, &ask, NULL);
        ask.problem.group = &ask.group;
        fa3_group group =
            fa3_group_of(&ask.problem, (int)fi_read_option(options, "tiles", TILES_AUTO));
        if (fa3_layout_plan(&group, &ask.bounds).size > 0)
            verdict.notes &= ~(uint32_t)ATTN_NOTE_DETERMINISTIC;
        fa3_tell_memory(&group, &ask.bounds, &verdict);
    }
    attn_util_verdict_end(&verdict, given);
    return ATTN_OK;
}
