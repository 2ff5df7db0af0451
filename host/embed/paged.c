/* SPDX-License-Identifier: Apache-2.0
 *
 * paged.c: a helper for engines: converts a step in vLLM's terms to attn_batch.
 */
#include "host/embed/embed.h"

#include "host/base/error.h"

/* Values from the host arrays; 0 or absent if there are none. */
struct lens {
    int32_t max_query_len, max_seq_len;
};

static attn_status check_absent(const attnhost_paged_batch *step, attn_error *error)
{
    const char *missing = step->num_reqs > 0 && !step->seq_lens.device          ? "seq_lens"
                          : step->num_reqs > 0 && !step->query_start_loc.device ? "query_start_loc"
                          : step->num_groups > 0 && !step->groups               ? "groups"
                                                                                : NULL;
    if (missing)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "step.%s is absent", missing);
    if (step->num_reqs < 0 || step->num_actual_tokens < 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "step.num_reqs is %d, num_actual_tokens %d; accepted: 0 or more",
                         step->num_reqs, step->num_actual_tokens);
    if (step->num_groups == 0)
        return ATTN_OK;
    return EMBED_CHECK_SIZE(step->groups, attnhost_paged_group, slot_mapping, "step.groups[0]",
                            error);
}

/* One request: its queries and its tokens, where the host can read them. */
static attn_status look_at(const attnhost_paged_batch *step, int32_t r, struct lens *lens,
                           attn_error *error)
{
    const int32_t *starts = step->query_start_loc.host, *totals = step->seq_lens.host;
    int64_t queries = starts ? (int64_t)starts[r + 1] - starts[r] : 0;
    if (starts && (starts[r] < 0 || queries < 0))
        return host_fail(
            error, ATTN_INVALID_ARGUMENT,
            "step.query_start_loc[%d] is %d after %d; accepted: values that do not decrease", r + 1,
            starts[r + 1], starts[r]);
    if (starts && totals && totals[r] < queries)
        return host_fail(
            error, ATTN_INVALID_ARGUMENT,
            "step.seq_lens[%d] is %d; accepted: %lld, the number of its queries, or more", r,
            totals[r], (long long)queries);
    if (queries > lens->max_query_len)
        lens->max_query_len = (int32_t)queries;
    if (totals && totals[r] > lens->max_seq_len)
        lens->max_seq_len = totals[r];
    if (step->room && starts && totals)
        step->room[r] = (int32_t)(totals[r] - queries);
    return ATTN_OK;
}

static attn_status look(const attnhost_paged_batch *step, struct lens *lens, attn_error *error)
{
    const int32_t *starts = step->query_start_loc.host;
    attn_status status = ATTN_OK;
    for (int32_t r = 0; r < step->num_reqs && status == ATTN_OK; r++)
        status = look_at(step, r, lens, error);
    if (status != ATTN_OK)
        return status;
    if (starts && step->num_reqs > 0 &&
        (int64_t)starts[step->num_reqs] - starts[0] > step->num_actual_tokens)
        return host_fail(
            error, ATTN_INVALID_ARGUMENT,
            "step.num_actual_tokens is %d; accepted: %lld, as in query_start_loc, or more",
            step->num_actual_tokens, (long long)starts[step->num_reqs] - starts[0]);
    if (step->num_reqs > 0 &&
        ((step->max_query_len <= 0 && !starts) || (step->max_seq_len <= 0 && !step->seq_lens.host)))
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "step.max_query_len is %d, max_seq_len %d; accepted: more than 0, or host "
                         "arrays that contain them",
                         step->max_query_len, step->max_seq_len);
    if (step->max_query_len > 0)
        lens->max_query_len = step->max_query_len;
    if (step->max_seq_len > 0)
        lens->max_seq_len = step->max_seq_len;
    return ATTN_OK;
}

/* Tokens before a request's first query: given, or in the room. */
static attn_status find_prefixes(const attnhost_paged_batch *step, uint32_t mode,
                                 attn_i32_array *prefixes, attn_error *error)
{
    int has_room = step->room && step->query_start_loc.host && step->seq_lens.host;
    int one = step->query_start_loc.host == step->query_start_loc.device;
    *prefixes = step->num_computed_tokens;
    if (!prefixes->host && has_room)
        prefixes->host = step->room;
    if (!prefixes->device && has_room && one)
        prefixes->device = step->room;
    if (mode != ATTN_MODE_DECODE && step->num_reqs > 0 && !prefixes->device)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "step.num_computed_tokens.device is absent; accepted: a device array; on "
                         "the CPU, step.room and host arrays will do");
    return ATTN_OK;
}

static attn_kv_batch group_of(const attnhost_paged_group *group)
{
    return (attn_kv_batch){.struct_size = sizeof(attn_kv_batch),
                           .index_forms = ATTN_INDEX_BLOCK_TABLE,
                           .page_size = group->block_size,
                           .block_table_stride = group->block_table_stride,
                           .out_cache_loc = group->slot_mapping,
                           .block_table = group->block_table};
}

attn_status attnhost_paged_batch_init(attn_batch *batch, attn_kv_batch *kv_groups,
                                      const attnhost_paged_batch *step, attn_error *error)
{
    struct lens lens = {0, 0};
    attn_i32_array prefixes;
    attn_status status = EMBED_CHECK_SIZE(step, attnhost_paged_batch, groups, "step", error);
    if (status == ATTN_OK)
        status = check_absent(step, error);
    if (status == ATTN_OK)
        status = look(step, &lens, error);
    if (status != ATTN_OK)
        return status;
    int decode = lens.max_query_len == 1 && step->num_actual_tokens == step->num_reqs;
    uint32_t mode = step->num_reqs == 0 ? ATTN_MODE_IDLE
                    : decode            ? ATTN_MODE_DECODE
                                        : ATTN_MODE_EXTEND;
    status = find_prefixes(step, mode, &prefixes, error);
    if (status != ATTN_OK)
        return status;
    for (uint32_t g = 0; g < step->num_groups; g++)
        kv_groups[g] = group_of(attn_at(step->groups, g));
    *batch = (attn_batch){.struct_size = sizeof *batch,
                          .mode = mode,
                          .num_seqs = step->num_reqs,
                          .num_tokens = step->num_actual_tokens,
                          .num_real_seqs = step->num_reqs,
                          .num_real_tokens = step->num_actual_tokens,
                          .max_q_len = lens.max_query_len,
                          .max_kv_len = lens.max_seq_len,
                          .num_kv_groups = step->num_groups,
                          .seq_lens = step->seq_lens,
                          .prefix_lens = prefixes,
                          .q_indptr = step->query_start_loc,
                          .kv_groups = kv_groups};
    return ATTN_OK;
}
