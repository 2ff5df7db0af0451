/* SPDX-License-Identifier: Apache-2.0
 *
 * executor_prefix.c: attention to the prefixes of a step, for layers in the expanded form.
 *
 * Their forward over the new rows sees only the new rows. Keys and values of the prefixes are made
 * again, as many at a time as a step has rows at most, as engines expand them from the latents; a
 * call with ATTN_MASK_NONE over such a chunk is a partial result, which is merged by its LSE. The
 * contents of chunks are listed once per step, for all layers. Each chunk is a separate batch, so
 * metadata that were planned for another one are planned again; the report counts the rows of
 * chunks as the backend's. */
#include "host/run/executor_private.h"

#include <stdlib.h>

#include "host/base/clock.h"
#include "host/base/error.h"
#include "host/base/round.h"
#include "host/select/problem.h"

/* Arrays of a chunk begin at multiples of this number of entries; metadata of no chunk. */
enum { ARRAY_ALIGNMENT = 16, NOT_PLANNED = -1 };

/* A chunk's arrays, on the host or on the device. */
struct chunk {
    int32_t *kv_lens;            /* [max_seqs] end of its keys; 0 = it has none of the sequence's */
    int32_t *new_indptr;         /* [max_seqs + 1] */
    int32_t *request, *position; /* [max_tokens] of each row of keys */
};

static int64_t chunk_entries(const attn_bounds *bounds)
{
    return round_up(bounds->max_seqs, ARRAY_ALIGNMENT) +
           round_up((int64_t)bounds->max_seqs + 1, ARRAY_ALIGNMENT) +
           2 * round_up(bounds->max_tokens, ARRAY_ALIGNMENT);
}

static struct chunk chunk_at(const struct executor *executor, const struct prefix_lists *lists,
                             int32_t index)
{
    const attn_bounds *bounds = &executor->params.bounds;
    struct chunk chunk = {.kv_lens = lists->entries + index * chunk_entries(bounds)};
    chunk.new_indptr = chunk.kv_lens + round_up(bounds->max_seqs, ARRAY_ALIGNMENT);
    chunk.request = chunk.new_indptr + round_up((int64_t)bounds->max_seqs + 1, ARRAY_ALIGNMENT);
    chunk.position = chunk.request + round_up(bounds->max_tokens, ARRAY_ALIGNMENT);
    return chunk;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static attn_status make_metadata(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    attn_status status = ATTN_OK;
    for (uint32_t u = 0; u < executor->num_units && status == ATTN_OK; u++) {
        const struct select_unit *unit = &p->selection->units[u];
        const attn_layer_group *group = &p->model->groups[unit->groups[0]];
        attn_bounds bounds = p->bounds;
        if (!kind_expands(p->model, group))
            continue;
        bounds.modes = unit->modes;
        problem_bounds_expand(&bounds, p->model, group);
        status = attnhost_metadata_create(executor->units[u].backend, ATTN_METADATA_EAGER, &bounds,
                                          NULL, &executor->prefix.metadata[u], error);
    }
    return status;
}

/* Merge no rows of each layer, as the first merge loads kernels. */
static attn_status prepare_merges(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    const struct prefix_calls *prefix = &executor->prefix;
    attn_status status = ATTN_OK;
    for (int32_t l = 0; l < operands_num_forms(p->model) && status == ATTN_OK; l++) {
        struct row_operand written = operands_output(p->model, l), sum = operands_lse(p->model, l);
        attn_tensor out, lse;
        const attn_tensor *outs[] = {&out}, *lses[] = {&lse};
        if (!operands_is_expanded(p->model, l))
            continue;
        int32_t unit = executor_unit_of(executor, l - (int32_t)p->model->num_layers);
        executor_view_rows(executor, &written, prefix->out, 0, &out);
        executor_view_rows(executor, &sum, prefix->lse, 0, &lse);
        status = attnhost_merge(executor->units[unit].backend, outs, lses, 1, &out, &lse,
                                executor->stream, error);
    }
    return status;
}

attn_status executor_prefix_create(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    struct prefix_calls *prefix = &executor->prefix;
    size_t tokens = (size_t)p->bounds.max_tokens;
    uint64_t out = 0, lse = 0;
    for (int32_t l = 0; l < operands_num_forms(p->model); l++) {
        struct row_operand written = operands_output(p->model, l), sum = operands_lse(p->model, l);
        if (!operands_is_expanded(p->model, l))
            continue;
        out = operands_row_bytes(&written) > out ? operands_row_bytes(&written) : out;
        lse = operands_row_bytes(&sum) > lse ? operands_row_bytes(&sum) : lse;
    }
    if (out == 0)
        return ATTN_OK;
    prefix->metadata = calloc(executor->num_units, sizeof *prefix->metadata);
    prefix->planned = calloc(executor->num_units, sizeof *prefix->planned);
    prefix->out = device_allocate(p->device, ATTN_SPACE_DEVICE, tokens * out, EXECUTOR_ALIGNMENT);
    prefix->lse = device_allocate(p->device, ATTN_SPACE_DEVICE, tokens * lse, EXECUTOR_ALIGNMENT);
    if (!prefix->metadata || !prefix->planned)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for prefixes");
    if (!prefix->out || !prefix->lse)
        return device_no_memory(p->device, ATTN_SPACE_DEVICE, error,
                                "no memory for partial results of steps of %zu tokens", tokens);
    attn_status status = make_metadata(executor, error);
    return status == ATTN_OK ? prepare_merges(executor, error) : status;
}

void executor_prefix_destroy(struct executor *executor)
{
    struct prefix_calls *prefix = &executor->prefix;
    const struct device *device = executor->params.device;
    for (uint32_t u = executor->num_units; prefix->metadata && u-- > 0;)
        attnhost_metadata_destroy(prefix->metadata[u]);
    free(prefix->metadata);
    for (uint32_t f = 0; executor->flights && f < executor->num_flights; f++)
        device_release(device, ATTN_SPACE_PINNED, executor->flights[f].chunks.entries);
    free(prefix->planned);
    if (!executor_on_cpu(executor))
        device_release(device, ATTN_SPACE_DEVICE, prefix->lists.entries);
    device_release(device, ATTN_SPACE_DEVICE, prefix->out);
    device_release(device, ATTN_SPACE_DEVICE, prefix->lse);
}

/* ---- The lists of a step --------------------------------------------------------------------- */

/* Room for so many chunks; no enqueued work reads the current contents. */
static attn_status reserve(const struct executor *executor, struct prefix_lists *lists,
                           int32_t num_chunks, uint32_t space, attn_error *error)
{
    const struct device *device = executor->params.device;
    uint64_t size = (uint64_t)chunk_entries(&executor->params.bounds) * sizeof *lists->entries;
    if (num_chunks <= lists->num_chunks)
        return ATTN_OK;
    device_release(device, space, lists->entries);
    lists->num_chunks = 0;
    lists->entries =
        device_allocate(device, space, (uint64_t)num_chunks * size, EXECUTOR_ALIGNMENT);
    if (!lists->entries)
        return device_no_memory(device, space, error,
                                "no memory for the lists of %d chunks of prefixes", num_chunks);
    lists->num_chunks = num_chunks;
    return ATTN_OK;
}

/* For the step's chunks; on the processor the lists are used where they are made. */
static attn_status reserve_all(struct executor *executor, attn_error *error)
{
    struct prefix_calls *prefix = &executor->prefix;
    int32_t count = prefix->num_chunks;
    attn_status status = reserve(executor, prefix->staged, count, ATTN_SPACE_PINNED, error);
    if (status == ATTN_OK && executor_on_cpu(executor))
        prefix->lists = *prefix->staged;
    if (status == ATTN_OK && count > prefix->lists.num_chunks)
        status = device_synchronize(executor->params.device, executor->stream, error);
    return status == ATTN_OK ? reserve(executor, &prefix->lists, count, ATTN_SPACE_DEVICE, error)
                             : status;
}

/* Fill a chunk with keys from [*sequence, *first) on, which then is where the next one begins. */
static void list_rows(struct chunk *chunk, const struct batch_step *step, int32_t capacity,
                      int32_t *sequence, int32_t *first)
{
    int32_t count = 0;
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const struct scheduler_seq *of = &step->sequences[s];
        chunk->new_indptr[s] = count;
        chunk->kv_lens[s] = 0;
        if (s != *sequence)
            continue;
        int32_t left = of->prefix_len - *first, room = capacity - count;
        int32_t end = *first + (left < room ? left : room);
        for (int32_t j = *first; j < end; j++, count++) {
            chunk->request[count] = (int32_t)of->request;
            chunk->position[count] = j;
        }
        chunk->kv_lens[s] = end > *first ? end : 0;
        *first = end < of->prefix_len ? end : 0;
        *sequence += end == of->prefix_len;
    }
    chunk->new_indptr[step->num_sequences] = count;
}

attn_status executor_prefix_list(struct executor *executor, const struct batch_step *step,
                                 struct flight *flight, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    struct prefix_calls *prefix = &executor->prefix;
    int32_t capacity = p->bounds.max_tokens, sequence = 0, first = 0;
    int64_t keys = 0;
    if (!prefix->metadata || !(p->model->mla_expanded & ATTN_MODE_BIT(step->mode)))
        return ATTN_OK;
    for (int32_t s = 0; s < step->num_sequences; s++)
        keys += step->sequences[s].prefix_len;
    for (uint32_t u = 0; u < executor->num_units; u++)
        prefix->planned[u] = NOT_PLANNED;
    prefix->staged = &flight->chunks;
    prefix->num_chunks = (int32_t)units_for(keys, capacity);
    attn_status status = reserve_all(executor, error);
    if (status != ATTN_OK)
        return status;
    for (int32_t c = 0; c < prefix->num_chunks; c++) {
        struct chunk chunk = chunk_at(executor, prefix->staged, c);
        list_rows(&chunk, step, capacity, &sequence, &first);
    }
    uint64_t entries = (uint64_t)(prefix->num_chunks * chunk_entries(&p->bounds));
    return executor_on_cpu(executor)
               ? ATTN_OK
               : device_copy(p->device, prefix->lists.entries, prefix->staged->entries,
                             entries * sizeof *prefix->lists.entries, executor->stream, error);
}

/* ---- A chunk --------------------------------------------------------------------------------- */

/* The step's batch with other keys. */
static attn_status plan_chunk(struct executor *executor, int32_t unit, int32_t index,
                              attn_error *error)
{
    struct prefix_calls *prefix = &executor->prefix;
    const struct chunk host = chunk_at(executor, prefix->staged, index);
    const struct chunk device = chunk_at(executor, &prefix->lists, index);
    const attn_mask mask = {.struct_size = sizeof mask, .kind = ATTN_MASK_NONE};
    attn_kv_batch kv[MODEL_KV_COUNT];
    attn_batch batch = executor->batch.batch;
    if (prefix->planned[unit] == index)
        return ATTN_OK;
    for (uint32_t g = 0; g < batch.num_kv_groups; g++) {
        kv[g] = executor->batch.kv[g];
        kv[g].kv_lens = (attn_i32_array){host.kv_lens, device.kv_lens};
        kv[g].kv_new_indptr = (attn_i32_array){host.new_indptr, device.new_indptr};
        kv[g].out_cache_loc = (attn_i64_array){NULL, NULL};
    }
    batch.kv_groups = kv;
    batch.mask = &mask;
    prefix->planned[unit] = index;
    return attnhost_init_forward_metadata(prefix->metadata[unit], &batch, executor->stream, error);
}

/* Keys and values of the chunk's rows, in the memory of the step's; `rows` are as handed over. */
static attn_status make_keys(struct executor *executor, const struct layer_operands *o,
                             int32_t index, attn_tensor rows[2], attn_error *error)
{
    const struct prefix_calls *prefix = &executor->prefix;
    const struct chunk chunk = chunk_at(executor, &prefix->lists, index);
    const struct chunk host = chunk_at(executor, prefix->staged, index);
    int32_t count = host.new_indptr[executor->batch.batch.num_seqs];
    const struct step_rows keys = {chunk.request, chunk.position, count};
    for (int i = 0; i < 2; i++)
        executor_view_rows(executor, &o->vectors[i + 1].operand, o->vectors[i + 1].memory, count,
                           &rows[i]);
    return step_kernels_generate(executor->kernels, o->form, &keys, &o->vectors[1], 2,
                                 executor->stream, error);
}

/* The calls and their time; unwritten rows hold NaN. */
static attn_status call(struct executor *executor, const struct layers_run *run, int32_t layer,
                        int32_t index, const attn_forward_args *args, attn_error *error)
{
    int32_t unit = executor_unit_of(executor, layer);
    const struct executor_params *p = &executor->params;
    attn_status status = ATTN_OK;
    for (uint32_t role = ATTN_ROLE_OUT; role <= ATTN_ROLE_LSE && status == ATTN_OK; role++)
        status = executor_poison(executor, attn_operand(args, role), error);
    if (status == ATTN_OK && p->probe)
        p->probe(p->probe_ctx, run->step, layer, args->operands);
    int64_t start = clock_now_ns();
    if (status == ATTN_OK)
        status = plan_chunk(executor, unit, index, error);
    if (status == ATTN_OK)
        status =
            attnhost_forward(executor->prefix.metadata[unit], layer, args, executor->stream, error);
    run->flight->forward_ns += clock_now_ns() - start;
    return status;
}

static attn_status run_chunk(struct executor *executor, const struct layers_run *run, int32_t layer,
                             const struct layer_operands *o, int32_t index, attn_error *error)
{
    const struct prefix_calls *prefix = &executor->prefix;
    attnhost_backend *backend = executor->units[executor_unit_of(executor, layer)].backend;
    struct row_operand sum = operands_lse(executor->params.model, o->form);
    int32_t rows = executor->batch.rows.count;
    attn_tensor kv[2], out, lse;
    const attn_tensor *operands[ATTN_ROLE_COUNT] = {
        [ATTN_ROLE_Q] = o->operands[ATTN_ROLE_Q],
        [ATTN_ROLE_K] = &kv[0],
        [ATTN_ROLE_V] = &kv[1],
        [ATTN_ROLE_OUT] = &out,
        [ATTN_ROLE_LSE] = &lse,
    };
    const attn_forward_args args = {
        .struct_size = sizeof args, .num_operands = ATTN_ROLE_COUNT, .operands = operands};
    const attn_tensor *outs[] = {&o->out, &out}, *lses[] = {&o->lse, &lse};
    executor_view_rows(executor, &o->written, prefix->out, rows, &out);
    executor_view_rows(executor, &sum, prefix->lse, rows, &lse);
    attn_status status = make_keys(executor, o, index, kv, error);
    if (status == ATTN_OK)
        status = call(executor, run, layer, index, &args, error);
    return status == ATTN_OK
               ? attnhost_merge(backend, outs, lses, 2, &o->out, &o->lse, executor->stream, error)
               : status;
}

attn_status executor_prefix_run(struct executor *executor, const struct layers_run *run,
                                int32_t layer, const struct layer_operands *operands,
                                attn_error *error)
{
    attn_status status = ATTN_OK;
    for (int32_t c = 0; c < executor->prefix.num_chunks && status == ATTN_OK; c++)
        status = run_chunk(executor, run, layer, operands, c, error);
    return status;
}
