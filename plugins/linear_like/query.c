/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: what linear_like can do, by plugins/common/linear_problem.h.
 */
#include "linear_like.h"

#include "plugins/common/cuda/image.h"

_Static_assert((int)LINEAR_MOST_DIM == LINEAR_MAX_DIM && (int)LINEAR_MOST_WIDTH == LINEAR_MAX_WIDTH,
               "accepted is what the kernels have room for");

static void tell_memory(const linear_question *ask, const linear_group *group,
                        attn_verdict *verdict)
{
    if (ask->bounds.max_seqs == 0 || ask->bounds.max_tokens == 0)
        return;
    verdict->device_bytes = CUDA_COUNTS_BYTES + linear_readers_bytes(group, &ask->bounds) +
                            linear_lay_out_scratch(group, &ask->bounds).bytes;
    verdict->host_bytes = sizeof(attn_metadata) + sizeof(attn_state_batch);
}

attn_status linear_query(const attn_backend_type *type, const attn_options *options,
                         const attn_services *services, const attn_problem *problem,
                         attn_verdict *given, attn_error *error)
{
    (void)type;
    (void)options; /* linear_like has no options */
    (void)services;
    linear_question ask;
    attn_verdict verdict;
    attn_status status = linear_question_init(&ask, problem, error);
    if (status != ATTN_OK)
        return status;
    if (!given)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "verdict is NULL");
    attn_util_verdict_begin(given, &verdict);
    cuda_codes_check(LINEAR_CODES, &ask.device, &verdict);
    ask.exact = (ask.problem.required_traits & ATTN_TRAIT_CUT_INVARIANT) != 0;
    linear_question_check(&ask, ATTN_GRAPH_ALWAYS, &verdict);
    if (verdict.supported) {
        linear_group group;
        linear_group_init(&group, &ask.problem, &ask.group, &ask.dims);
        verdict.graph_level = ATTN_GRAPH_ALWAYS;
        /* Chunks begin with the batch, so the last bits depend on where a sequence is cut. */
        verdict.traits = ATTN_TRAIT_DETERMINISTIC |
                         (group.by_chunks ? 0 : ATTN_TRAIT_BATCH_INVARIANT) |
                         (ask.exact ? ATTN_TRAIT_CUT_INVARIANT : 0);
        verdict.cost_hint = 1;
        tell_memory(&ask, &group, &verdict);
    }
    attn_util_verdict_end(&verdict, given);
    return ATTN_OK;
}
