/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: limits of cpu_linear, by plugins/common/linear_problem.h. */
#include "cpu_linear.h"

static void tell_memory(const linear_question *ask, const attn_services *services,
                        attn_verdict *verdict)
{
    uint32_t workers = services && services->num_workers > 0 ? services->num_workers : 1;
    linear_group group;
    if (ask->bounds.max_seqs == 0 || ask->bounds.max_tokens == 0)
        return;
    linear_group_init(&group, &ask->problem, &ask->group, &ask->dims);
    verdict->device_bytes = linear_worker_bytes(&group, 1) * workers;
    verdict->host_bytes = linear_metadata_bytes(&ask->bounds, 1);
}

attn_status linear_query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *given, attn_error *error)
{
    (void)type;
    linear_question ask;
    linear_options read;
    attn_verdict verdict;
    attn_status status = linear_question_init(&ask, problem, error);
    if (status == ATTN_OK)
        status = linear_options_read(options, &read, error);
    if (status != ATTN_OK)
        return status;
    if (!given)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "verdict is NULL");
    attn_util_verdict_begin(given, &verdict);
    cpu_isa_check(linear_builds, linear_num_builds, read.isa, &ask.device, &verdict);
    /* Chunks begin with the batch, so the last bits depend on the cuts of a sequence unless a
     * problem requires that they do not. */
    uint32_t invariant = ask.problem.required_traits & LINEAR_INVARIANT ? LINEAR_INVARIANT : 0;
    ask.exact = invariant != 0;
    /* Nothing is enqueued on a processor, so nothing can be captured. */
    linear_question_check(&ask, ATTN_GRAPH_NEVER, &verdict);
    if (verdict.supported) {
        verdict.graph_level = ATTN_GRAPH_NEVER;
        verdict.traits = ATTN_TRAIT_DETERMINISTIC | invariant;
        verdict.cost_hint = 1;
        tell_memory(&ask, services, &verdict);
    }
    attn_util_verdict_end(&verdict, given);
    return ATTN_OK;
}
