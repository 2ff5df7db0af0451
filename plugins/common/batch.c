/* SPDX-License-Identifier: Apache-2.0 */
#include "plugins/common/batch.h"
#include "plugins/common/plugin_error.h"
#include "plugins/common/verdict.h"

#define FAIL(error, ...)                                                                           \
    plugin_fail_field(error, ATTN_INVALID_ARGUMENT, ATTN_FIELD_BATCH, __VA_ARGS__)

attn_status batch_check_bound(const char *what, int64_t got, int64_t bound, uint32_t field,
                              attn_error *error)
{
    if (got < 0 || got > bound)
        return plugin_fail_field(error, ATTN_INVALID_ARGUMENT, field,
                                 "%s %lld: accepted 0..%lld, %s of this metadata", what,
                                 (long long)got, (long long)bound, verdict_field_name(field));
    return ATTN_OK;
}

attn_status batch_check_counts(const attn_bounds *bounds, const attn_batch *batch,
                               attn_error *error)
{
    attn_status status = batch_check_bound("num_seqs", batch->num_seqs, bounds->max_seqs,
                                           ATTN_FIELD_MAX_SEQS, error);
    if (status == ATTN_OK)
        status = batch_check_bound("num_tokens", batch->num_tokens, bounds->max_tokens,
                                   ATTN_FIELD_MAX_TOKENS, error);
    return status;
}

attn_status batch_check_mode(const attn_bounds *bounds, uint32_t mode, attn_error *error)
{
    if (mode >= ATTN_MODE_COUNT)
        return FAIL(error, "mode %u: accepted 0..%d", mode, ATTN_MODE_COUNT - 1);
    if (mode != ATTN_MODE_IDLE && !(bounds->modes & ATTN_MODE_BIT(mode)))
        return FAIL(error, "mode %u: accepted the set %#x, the bounds of this metadata", mode,
                    bounds->modes);
    return ATTN_OK;
}

attn_status batch_check_forward(int planned, uint32_t mode, int decode, attn_error *error)
{
    if (!planned)
        return plugin_fail(error, ATTN_BAD_STATE, "forward before a batch was planned");
    if (mode != ATTN_MODE_IDLE && decode != (mode == ATTN_MODE_DECODE))
        return plugin_fail(error, ATTN_BAD_STATE, "%s for a batch of mode %u",
                           decode ? "forward_decode" : "forward_extend", mode);
    return ATTN_OK;
}

attn_status batch_run_tasks(const attn_services *services, int64_t count, attn_task task, void *arg,
                            attn_error *error)
{
    attn_status status = ATTN_OK;
    if (count == 1)
        status = task(arg, 0, 0);
    else if (count > 1)
        status = services->parallel_for(services->ctx, count, task, arg);
    if (status == ATTN_OK)
        return ATTN_OK;
    return plugin_fail(error, status, "parallel_for failed with status %d", status);
}
