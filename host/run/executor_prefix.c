/* SPDX-License-Identifier: Apache-2.0
 *
 * executor_prefix.c: what lies before the new rows of a step, for layers in the expanded form.
 *
 * Their forward over the new rows sees these alone. Keys and values of the prefixes are made again,
 * a chunk of every sequence at a time, as engines expand them from the latents; a call with
 * ATTN_MASK_NONE over such a chunk is a partial result, which is merged by its LSE. Each chunk is a
 * separate batch, so separate metadata are planned for each; the report counts its rows
 * among the backend's.
 */
#include "host/run/executor_private.h"

#include <stdlib.h>

#include "host/base/clock.h"
#include "host/base/error.h"
#include "host/select/problem.h"

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

attn_status executor_prefix_create(struct executor *executor, attn_error *error)
{
    const struct executor_params *p = &executor->params;
    struct prefix_calls *prefix = &executor->prefix;
    size_t seqs = (size_t)p->bounds.max_seqs, tokens = (size_t)p->bounds.max_tokens;
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
    prefix->kv_lens = calloc(seqs, sizeof *prefix->kv_lens);
    prefix->new_indptr = calloc(seqs + 1, sizeof *prefix->new_indptr);
    prefix->request = calloc(tokens, sizeof *prefix->request);
    prefix->position = calloc(tokens, sizeof *prefix->position);
    prefix->out = device_allocate(p->device, ATTN_SPACE_DEVICE, tokens * out, EXECUTOR_ALIGNMENT);
    prefix->lse = device_allocate(p->device, ATTN_SPACE_DEVICE, tokens * lse, EXECUTOR_ALIGNMENT);
    if (!prefix->metadata || !prefix->kv_lens || !prefix->new_indptr || !prefix->request ||
        !prefix->position || !prefix->out || !prefix->lse)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                         "no memory for partial results of steps of %zu tokens", tokens);
    return make_metadata(executor, error);
}

void executor_prefix_destroy(struct executor *executor)
{
    struct prefix_calls *prefix = &executor->prefix;
    for (uint32_t u = executor->num_units; prefix->metadata && u-- > 0;)
        attnhost_metadata_destroy(prefix->metadata[u]);
    free(prefix->metadata);
    free(prefix->kv_lens);
    free(prefix->new_indptr);
    free(prefix->request);
    free(prefix->position);
    device_release(executor->params.device, ATTN_SPACE_DEVICE, prefix->out);
    device_release(executor->params.device, ATTN_SPACE_DEVICE, prefix->lse);
}

/* ---- A chunk --------------------------------------------------------------------------------- */

/* List keys [first, first + size) of each prefix; returns how many these are. */
static int32_t list_rows(struct executor *executor, const struct batch_step *step, int32_t first,
                         int32_t size)
{
    struct prefix_calls *prefix = &executor->prefix;
    int32_t count = 0;
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const struct scheduler_seq *sequence = &step->sequences[s];
        int32_t end = sequence->prefix_len - first < size ? sequence->prefix_len : first + size;
        prefix->new_indptr[s] = count;
        prefix->kv_lens[s] = end > first ? end : 0;
        for (int32_t j = first; j < end; j++, count++) {
            prefix->request[count] = (int32_t)sequence->request;
            prefix->position[count] = j;
        }
    }
    prefix->new_indptr[step->num_sequences] = count;
    return count;
}

/* The step's batch with other keys. */
static attn_status plan_chunk(struct executor *executor, attnhost_metadata *metadata,
                              attn_error *error)
{
    const struct prefix_calls *prefix = &executor->prefix;
    const attn_mask mask = {.struct_size = sizeof mask, .kind = ATTN_MASK_NONE};
    attn_kv_batch kv[MODEL_KV_COUNT];
    attn_batch batch = executor->batch.batch;
    for (uint32_t g = 0; g < batch.num_kv_groups; g++) {
        kv[g] = executor->batch.kv[g];
        kv[g].kv_lens = (attn_i32_array){prefix->kv_lens, prefix->kv_lens};
        kv[g].kv_new_indptr = (attn_i32_array){prefix->new_indptr, prefix->new_indptr};
        kv[g].out_cache_loc = (attn_i64_array){NULL, NULL};
    }
    batch.kv_groups = kv;
    batch.mask = &mask;
    return attnhost_init_forward_metadata(metadata, &batch, executor->stream, error);
}

/* Keys and values of the chunk's rows, in the memory of the step's; `rows` are as handed over. */
static attn_status make_keys(struct executor *executor, const struct layer_operands *o,
                             int32_t count, attn_tensor rows[2], attn_error *error)
{
    const struct step_rows keys = {executor->prefix.request, executor->prefix.position, count};
    for (int i = 0; i < 2; i++)
        executor_view_rows(executor, &o->vectors[i + 1].operand, o->vectors[i + 1].memory, count,
                           &rows[i]);
    return step_kernels_generate(executor->kernels, o->form, &keys, &o->vectors[1], 2,
                                 executor->stream, error);
}

/* The calls, and the time they take; what is not written shows. */
static attn_status call(struct executor *executor, const struct layers_run *run, int32_t layer,
                        const attn_forward_args *args, attn_error *error)
{
    attnhost_metadata *metadata = executor->prefix.metadata[executor_unit_of(executor, layer)];
    const struct executor_params *p = &executor->params;
    attn_status status = ATTN_OK;
    for (uint32_t role = ATTN_ROLE_OUT; role <= ATTN_ROLE_LSE && status == ATTN_OK; role++)
        status = executor_poison(executor, attn_operand(args, role), error);
    if (status == ATTN_OK && p->probe)
        p->probe(p->probe_ctx, run->step, layer, args->operands);
    int64_t start = clock_now_ns();
    if (status == ATTN_OK)
        status = plan_chunk(executor, metadata, error);
    if (status == ATTN_OK)
        status = attnhost_forward(metadata, layer, args, executor->stream, error);
    run->flight->forward_ns += clock_now_ns() - start;
    return status;
}

static attn_status run_chunk(struct executor *executor, const struct layers_run *run, int32_t layer,
                             const struct layer_operands *o, int32_t count, attn_error *error)
{
    const struct prefix_calls *prefix = &executor->prefix;
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
    executor_view_rows(executor, &o->written, prefix->out, rows, &out);
    executor_view_rows(executor, &sum, prefix->lse, rows, &lse);
    attn_status status = make_keys(executor, o, count, kv, error);
    if (status == ATTN_OK)
        status = call(executor, run, layer, &args, error);
    const struct step_partial into = {o->out.data, o->lse.data}, from = {prefix->out, prefix->lse};
    return status == ATTN_OK ? step_kernels_merge(executor->kernels, &into, &from, rows,
                                                  o->written.heads, o->written.dim, error)
                             : status;
}

attn_status executor_prefix_run(struct executor *executor, const struct layers_run *run,
                                int32_t layer, const struct layer_operands *operands,
                                attn_error *error)
{
    const struct batch_step *step = run->step;
    int32_t size = executor->params.bounds.max_tokens / step->num_sequences, longest = 0;
    for (int32_t s = 0; s < step->num_sequences; s++)
        if (step->sequences[s].prefix_len > longest)
            longest = step->sequences[s].prefix_len;
    attn_status status = ATTN_OK;
    for (int32_t first = 0; first < longest && status == ATTN_OK; first += size) {
        int32_t count = list_rows(executor, step, first, size);
        status = run_chunk(executor, run, layer, operands, count, error);
    }
    return status;
}
