/* SPDX-License-Identifier: Apache-2.0
 *
 * query.c: what fa3_like can do: what the library can, which the forward kernels add speed to, and
 * latent attention in the expanded form, which they serve alone.
 */
#include "plugins/fa3_like/fa3_like.h"

#include "attn_plugin_util.h"

attn_status fa3_query(const attn_backend_type *type, const attn_options *options,
                      const attn_services *services, const attn_problem *problem,
                      attn_verdict *given, attn_error *error)
{
    (void)type;
    (void)services;
    attn_verdict verdict;
    if (!given)
        return fi_answer(FA3_CODES, options, problem, NULL, error);
    attn_util_verdict_begin(given, &verdict);
    cuda_question ask;
    attn_problem plain;
    attn_layer_group plain_group;
    attn_status status = cuda_question_read(problem, &ask, error);
    if (status != ATTN_OK)
        return status;
    fa3_plain_problem(problem, &plain, &plain_group);
    if (fa3_is_expanded(problem))
        status = fa3_check_expanded(&ask, options, &verdict, error);
    if (status == ATTN_OK && verdict.supported)
        status = fi_answer(FA3_CODES, options, &plain, &verdict, error);
    if (status != ATTN_OK)
        return status;
    if (fa3_has_codes(problem))
        fa3_check_codes(problem, &verdict);
    if (verdict.supported) {
        cuda_group base;
        ask.problem.group = &ask.group;
        cuda_group_init(&base, &ask.problem);
        fa3_group group = fa3_group_of(&ask.problem, fa3_read_tiles(options));
        if (group.is_expanded || fa3_layout_plan(&group, &ask.bounds).size > 0)
            verdict.traits &= ~(uint32_t)ATTN_TRAIT_DETERMINISTIC;
        fa3_tell_memory(&group, &base, &ask.bounds, &verdict);
    }
    if (!verdict.supported) {
        verdict.device_bytes = verdict.host_bytes = 0;
        verdict.traits = 0;
    }
    attn_util_verdict_end(&verdict, given);
    return ATTN_OK;
}
