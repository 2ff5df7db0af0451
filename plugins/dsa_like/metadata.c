/* SPDX-License-Identifier: Apache-2.0
 *
 * metadata.c: a batch, planned on the device by one block for each group, and the batch that
 * flashmla_like attends with: each row a sequence, its keys the slots of its list.
 */
#include "plugins/dsa_like/dsa_like.h"

#include "attn_plugin_util.h"
#include "plugins/flashmla_like/type.h"

#include <string.h>

enum {
    PLANS = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_METADATA),
    SCRATCH = ATTN_REGION(ATTN_SPACE_DEVICE, ATTN_MEMORY_SCRATCH),
    HOST = ATTN_REGION(ATTN_SPACE_HOST, ATTN_MEMORY_METADATA)
};

uint32_t dsa_index_forms(attn_instance *instance)
{
    (void)instance;
    return DSA_INDEX_FORMS;
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

static uint64_t aligned(uint64_t size)
{
    return (size + DSA_ALIGNMENT - 1) / DSA_ALIGNMENT * DSA_ALIGNMENT;
}

static uint64_t rows_of(const attn_bounds *bounds)
{
    return bounds->max_tokens > 0 ? (uint64_t)bounds->max_tokens : 1;
}

static uint64_t plan_bytes(const attn_bounds *bounds)
{
    const uint64_t rows = rows_of(bounds);
    return aligned(sizeof(dsa_header)) + aligned(rows * sizeof(dsa_group)) +
           aligned(rows * sizeof(dsa_row)) + 4 * aligned((rows + 1) * sizeof(int));
}

/* Whole tiles. */
int64_t dsa_logits_row(const attn_bounds *bounds)
{
    return ((int64_t)bounds->max_kv_len + DSA_TILE) / DSA_TILE * DSA_TILE;
}

/* Waves of equal size, of about as many bytes as they may have; whole groups, where queries are many. */
static int64_t wave_rows(const attn_bounds *bounds)
{
    const uint64_t row = (uint64_t)dsa_logits_row(bounds) * sizeof(float), rows = rows_of(bounds);
    const uint64_t waves = (rows * row + DSA_LOGIT_BYTES / 2) / DSA_LOGIT_BYTES;
    const uint64_t even = waves > 0 ? (rows + waves - 1) / waves : rows;
    const uint64_t whole = (even + DSA_MOST_QUERIES(1) - 1) / DSA_MOST_QUERIES(1);
    const uint64_t wave = whole * DSA_MOST_QUERIES(1);
    return (int64_t)(wave < rows ? wave : rows);
}

static int32_t most_chosen(const attn_instance *instance)
{
    int32_t most = 1;
    for (uint32_t i = 0; i < instance->num_groups; i++)
        if (instance->groups[i].sparse.top_k > most)
            most = instance->groups[i].sparse.top_k;
    return most;
}

/* No row chooses more keys than there are. */
static int32_t list_row(const attn_instance *instance, const attn_bounds *bounds)
{
    const int32_t most = most_chosen(instance);
    return most < bounds->max_kv_len || bounds->max_kv_len < 1 ? most : bounds->max_kv_len;
}

static uint64_t lists_bytes(const attn_instance *instance, const attn_bounds *bounds)
{
    return aligned(rows_of(bounds) * (uint64_t)list_row(instance, bounds) * sizeof(int));
}

static uint64_t logits_bytes(const attn_instance *instance, const attn_bounds *bounds)
{
    for (uint32_t i = 0; i < instance->num_groups; i++)
        if (instance->groups[i].sparse.index_heads > 0)
            return aligned((uint64_t)(wave_rows(bounds) * dsa_logits_row(bounds)) * sizeof(float));
    return 0;
}

/* Of flashmla_like: a sequence for each row. */
static attn_bounds attend_bounds(const attn_instance *instance, const attn_bounds *bounds)
{
    attn_bounds rows = *bounds;
    rows.struct_size = sizeof rows;
    rows.modes = ATTN_MODE_BIT(ATTN_MODE_EXTEND);
    rows.mask_kinds = ATTN_MASK_BIT(ATTN_MASK_NONE);
    rows.uses &= ATTN_USES_LSE | ATTN_USES_OMIT_SINK;
    rows.max_seqs = bounds->max_tokens;
    rows.max_q_len = 1;
    rows.max_kv_len = list_row(instance, bounds);
    rows.max_prefix_levels = 0;
    rows.max_kv_tokens = (int64_t)bounds->max_tokens * rows.max_kv_len;
    return rows;
}

typedef struct sizes {
    uint64_t own[ATTN_REGION_COUNT];    /* whole alignments */
    uint64_t attend[ATTN_REGION_COUNT]; /* after them */
} sizes;

static attn_status measure(const attn_instance *instance, uint32_t kind, const attn_bounds *given,
                           attn_bounds *bounds, sizes *to, attn_error *error)
{
    attn_status status = attn_util_read_bounds(kind, given, bounds, error);
    memset(to, 0, sizeof *to);
    if (status == ATTN_OK)
        status = dsa_require_bounds(bounds, error);
    if (status != ATTN_OK)
        return status;
    const attn_bounds rows = attend_bounds(instance, bounds);
    attn_memory_size size = {.struct_size = sizeof size};
    status = flashmla_like_type.ops->metadata_size(instance->attend, kind, &rows, &size, error);
    if (status != ATTN_OK)
        return status;
    memcpy(to->attend, size.size, sizeof to->attend);
    to->own[PLANS] = aligned(CUDA_COUNTS_BYTES) + instance->num_groups * plan_bytes(bounds);
    to->own[SCRATCH] = lists_bytes(instance, bounds) + logits_bytes(instance, bounds);
    to->own[HOST] =
        aligned(sizeof(attn_metadata) + 2 * instance->num_groups * sizeof(attn_kv_batch));
    return ATTN_OK;
}

attn_status dsa_metadata_size(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                              attn_memory_size *size, attn_error *error)
{
    attn_bounds bounds;
    sizes found;
    attn_status status = measure(instance, kind, given, &bounds, &found, error);
    if (status != ATTN_OK)
        return status;
    attn_util_clear_size(size);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT; region++) {
        size->size[region] = found.own[region] + found.attend[region];
        size->alignment[region] = size->size[region] ? DSA_ALIGNMENT : 0;
    }
    return ATTN_OK;
}

attn_status dsa_metadata_create(attn_instance *instance, uint32_t kind, const attn_bounds *given,
                                const attn_memory *memory, attn_metadata **metadata,
                                attn_error *error)
{
    static const char *const names[ATTN_REGION_COUNT] = {
        [PLANS] = "device metadata", [SCRATCH] = "device scratch", [HOST] = "host metadata"};
    attn_bounds bounds;
    attn_memory rest = {.struct_size = sizeof rest};
    sizes found;
    attn_status status = measure(instance, kind, given, &bounds, &found, error);
    for (uint32_t region = 0; region < ATTN_REGION_COUNT && status == ATTN_OK; region++) {
        const uint64_t size = found.own[region] + found.attend[region];
        if (!size)
            continue;
        status = attn_util_check_region(memory, region, names[region] ? names[region] : "memory",
                                        size, DSA_ALIGNMENT, error);
        if (status == ATTN_OK && found.attend[region]) {
            rest.base[region] = (char *)memory->base[region] + found.own[region];
            rest.size[region] = found.attend[region];
        }
    }
    if (status != ATTN_OK)
        return status;
    attn_metadata *made = memory->base[HOST];
    char *plans = memory->base[PLANS];
    *made = (attn_metadata){.instance = instance,
                            .rows = (attn_kv_batch *)(made + 1) + instance->num_groups,
                            .plans = plans + aligned(CUDA_COUNTS_BYTES),
                            .scratch = memory->base[SCRATCH]};
    cuda_plan_init(&made->plan, kind, &bounds, DSA_INDEX_FORMS,
                   kind == ATTN_METADATA_GRAPH ? (cuda_address)(uintptr_t)plans : 0,
                   (attn_kv_batch *)(made + 1));
    const attn_bounds rows = attend_bounds(instance, &bounds);
    status = flashmla_like_type.ops->metadata_create(instance->attend, kind, &rows, &rest,
                                                     &made->attend, error);
    if (status == ATTN_OK)
        *metadata = made;
    return status;
}

/* All of it lies in the caller's memory. */
void dsa_metadata_destroy(attn_metadata *metadata)
{
    if (metadata && metadata->attend)
        flashmla_like_type.ops->metadata_destroy(metadata->attend);
}

/* ---- A batch --------------------------------------------------------------------------------- */

int *dsa_lists(const attn_metadata *metadata)
{
    return (int *)(void *)metadata->scratch;
}

float *dsa_logits(const attn_metadata *metadata)
{
    return (float *)(void *)(metadata->scratch +
                             lists_bytes(metadata->instance, &metadata->plan.bounds));
}

static int queries_of(int64_t q_len, int most)
{
    int queries = 1;
    while (queries < q_len && queries < most)
        queries *= 2;
    return queries;
}

/* Entries that a row of a choice may have which an engine gives. */
static int32_t given_count(const attn_metadata *metadata, const dsa_layers *group)
{
    attn_sparse_batch given = {.max_count = group->sparse.top_k};
    if (metadata->plan.batch.sparse)
        ATTN_UTIL_READ(&given, metadata->plan.batch.sparse);
    return given.max_count < group->sparse.top_k ? given.max_count : group->sparse.top_k;
}

void dsa_describe(const attn_metadata *metadata, uint32_t index, dsa_batch *to)
{
    const dsa_layers *group = &metadata->instance->groups[index];
    const attn_bounds *bounds = &metadata->plan.bounds;
    const uint64_t ints = aligned((rows_of(bounds) + 1) * sizeof(int));
    char *at = metadata->plans + index * plan_bytes(bounds);
    cuda_plan_fill(&metadata->plan, &group->base, &metadata->plan.kv[index], &to->batch);
    to->header = (dsa_header *)(void *)at;
    at += aligned(sizeof(dsa_header));
    to->groups = (dsa_group *)(void *)at;
    at += aligned(rows_of(bounds) * sizeof(dsa_group));
    to->rows = (dsa_row *)(void *)at;
    at += aligned(rows_of(bounds) * sizeof(dsa_row));
    to->most = (int *)(void *)at;
    to->lens = (int *)(void *)(at + ints);
    to->indptr = (int *)(void *)(at + 2 * ints);
    to->requests = (int *)(void *)(at + 3 * ints);
    to->num_real_seqs = metadata->plan.batch.num_real_seqs;
    to->max_count = group->sparse.top_k;
    to->given_count = given_count(metadata, group);
    to->queries = queries_of(cuda_plan_extent(&metadata->plan).q_len,
                             DSA_MOST_QUERIES(dsa_multiplies_codes(group) ? 1 : 2));
    to->wave = (int)wave_rows(bounds);
    to->window_left = group->base.window_left;
    to->chunk = group->base.chunk;
    to->page_size = group->base.page_size;
}

/* The same rows to flashmla_like. */
static attn_status plan_attend(attn_metadata *metadata, attn_stream stream, attn_error *error)
{
    const attn_instance *instance = metadata->instance;
    const int32_t rows = metadata->plan.batch.num_tokens;
    const attn_mask mask = {.struct_size = sizeof mask, .kind = ATTN_MASK_NONE};
    dsa_batch own;
    for (uint32_t i = 0; i < instance->num_groups; i++) {
        dsa_describe(metadata, i, &own);
        metadata->rows[i] =
            (attn_kv_batch){.struct_size = sizeof(attn_kv_batch),
                            .index_forms = ATTN_INDEX_REQ_TO_TOKEN,
                            .page_size = instance->groups[i].base.page_size,
                            .req_to_token_stride = list_row(instance, &metadata->plan.bounds),
                            .kv_lens.device = own.lens,
                            .req_to_token.device = dsa_lists(metadata)};
    }
    const attn_batch batch = {.struct_size = sizeof batch,
                              .mode = ATTN_MODE_EXTEND,
                              .num_seqs = rows,
                              .num_tokens = rows,
                              .num_real_seqs = rows,
                              .num_real_tokens = rows,
                              .max_q_len = 1,
                              .max_kv_len = list_row(instance, &metadata->plan.bounds),
                              .num_kv_groups = instance->num_groups,
                              .seq_lens.device = own.lens,
                              .q_indptr.device = own.indptr,
                              .req_pool_indices.device = own.requests,
                              .kv_groups = metadata->rows,
                              .mask = &mask};
    return flashmla_like_type.ops->init_forward_metadata(metadata->attend, &batch, stream, error);
}

attn_status dsa_init_forward_metadata(attn_metadata *metadata, const attn_batch *batch,
                                      attn_stream stream, attn_error *error)
{
    if (!metadata || !batch)
        return attn_util_fail(error, ATTN_INVALID_ARGUMENT, "metadata or batch is NULL");
    const attn_instance *instance = metadata->instance;
    attn_status status =
        cuda_plan_take(&metadata->plan, instance->cuda, instance->groups, sizeof(dsa_layers),
                       instance->num_groups, batch, stream, error);
    if (status != ATTN_OK || !cuda_plan_has_rows(&metadata->plan))
        return status;
    for (uint32_t i = 0; i < instance->num_groups && status == ATTN_OK; i++) {
        dsa_batch own;
        void *params[] = {&own};
        const cuda_launch launch = {.function = instance->plan,
                                    .name = "dsa_plan",
                                    .grid = {1, 1, 1},
                                    .block = {DSA_PLAN_THREADS}};
        dsa_describe(metadata, i, &own);
        status = cuda_launch_run(instance->cuda, &launch, params, stream, error);
    }
    return status == ATTN_OK ? plan_attend(metadata, stream, error) : status;
}
