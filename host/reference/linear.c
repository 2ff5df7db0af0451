/* SPDX-License-Identifier: Apache-2.0
 *
 * linear.c: a whole forward of a linear layer.
 */
#include "host/reference/linear_call.h"

#include "host/base/dtype.h"
#include "host/base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct linear_run {
    const linear_call *call;
    reference_result *result;
    reference_states *states; /* NULL = not wanted */
    reference_linear_replay replay;
    reference_scratch scratch;
    double *rows; /* operands of the sequence at hand */
} linear_run;

static attn_status result_init(reference_result *result, const linear_call *call, attn_error *error)
{
    *result = (reference_result){.num_rows = call->num_rows,
                                 .num_heads = call->v_heads,
                                 .v_head_dim = call->v_dim,
                                 .out_dtype = call->problem->out_dtype,
                                 .has_bars = 1};
    size_t entries = (size_t)(call->num_rows * call->v_heads) + 1;
    result->kind = calloc((size_t)call->num_rows + 1, sizeof *result->kind);
    result->out = calloc(entries * (size_t)call->v_dim, sizeof *result->out);
    result->rows = calloc(entries, sizeof *result->rows);
    if (result->kind && result->out && result->rows)
        return ATTN_OK;
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "reference: no memory for %lld rows of output",
                     (long long)call->num_rows);
}

/* ---- States ---------------------------------------------------------------------------------- */

/* The entry of a slot; NULL = of no interest. Slots are written once, so the first is it. */
static reference_state *entry_of(const linear_run *run, int32_t slot)
{
    for (int64_t n = 0; run->states && slot > 0 && n < run->states->count; n++)
        if (run->states->entries[n].slot == slot)
            return &run->states->entries[n];
    return NULL;
}

static void keep_head(const linear_run *run, reference_state *entry, int32_t h)
{
    const linear_call *call = run->call;
    const reference_linear_replay *replay = &run->replay;
    for (int32_t i = 0; i < call->k_dim; i++)
        for (int32_t j = 0; j < call->v_dim; j++) {
            int64_t row = (int64_t)h * call->k_dim + i, n = row * replay->stride + j;
            double truth = replay->truth[n];
            double rounded = dtype_round(call->dims->state_dtype, (double)replay->naive[n]);
            entry->error[h] = fmax(entry->error[h], fabs(rounded - truth));
            entry->largest[h] = fmax(entry->largest[h], fabs(truth));
            entry->state[row * call->v_dim + j] = truth;
        }
}

/* Keep the sequence's state for its slot. */
static void keep_state(const linear_run *run, reference_state *entry)
{
    const linear_call *call = run->call;
    const reference_linear_replay *replay = &run->replay;
    int32_t taps = call->layer.taps, total = replay->channels.total;
    for (int32_t h = 0; entry && call->state && h < call->v_heads; h++)
        keep_head(run, entry, h);
    for (int32_t c = 0; entry && taps > 0 && c < total; c++)
        for (int32_t n = 0; n < taps; n++)
            entry->conv[(int64_t)reference_linear_channel(&replay->channels, c) * taps + n] =
                dtype_round(call->dims->conv_dtype, replay->inputs[(int64_t)n * total + c]);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Rows up to one whose state is kept, and at the end the rest: there may be none. */
static attn_status compute_sequence(linear_run *run, const linear_sequence *sequence,
                                    attn_error *error)
{
    const linear_call *call = run->call;
    reference_linear_rows rows = linear_rows_load(call, sequence, run->rows);
    attn_status status = ATTN_OK;
    int64_t done = 0;
    linear_replay_load(&run->replay, call, sequence->slot);
    for (int64_t t = 0; t < rows.count && status == ATTN_OK; t++) {
        reference_state *entry = entry_of(run, linear_snapshot(call, sequence->first_row + t));
        run->result->kind[sequence->first_row + t] = REFERENCE_ROW_REAL;
        if (!entry && t + 1 < rows.count)
            continue;
        reference_linear_rows part = linear_rows_part(call, &rows, done, t + 1 - done);
        int64_t first = (sequence->first_row + done) * call->v_heads;
        status = reference_linear_replay_advance(&run->replay, &part, NULL, &run->scratch,
                                                 run->result->out + first * call->v_dim,
                                                 run->result->rows + first, error);
        keep_state(run, entry);
        done = t + 1;
    }
    keep_state(run, entry_of(run, sequence->dst));
    return status;
}

/* ---- Slots ----------------------------------------------------------------------------------- */

static int64_t count_slots(const linear_call *call, const linear_sequence *sequences)
{
    int64_t count = 0;
    for (int32_t s = 0; s < call->num_seqs; s++) {
        count += sequences[s].dst > 0;
        for (int64_t t = 0; sequences[s].real && t < sequences[s].num_rows; t++)
            count += linear_snapshot(call, sequences[s].first_row + t) > 0;
    }
    return count;
}

static double *take(double **next, int64_t count)
{
    double *taken = *next;
    *next += count;
    return taken;
}

static attn_status add_slot(reference_states *states, const linear_call *call, int32_t slot,
                            double **next, attn_error *error)
{
    if (slot == 0)
        return ATTN_OK;
    for (int64_t n = 0; n < states->count; n++)
        if (states->entries[n].slot == slot)
            return host_fail(error, ATTN_INVALID_ARGUMENT, "state slot %d is written twice", slot);
    reference_state *entry = &states->entries[states->count++];
    entry->slot = slot;
    if (call->state) {
        entry->state = take(next, (int64_t)states->num_heads * states->k_dim * states->v_dim);
        entry->error = take(next, states->num_heads);
        entry->largest = take(next, states->num_heads);
    }
    if (states->num_taps > 0)
        entry->conv = take(next, (int64_t)states->num_channels * states->num_taps);
    return ATTN_OK;
}

static attn_status states_init(reference_states *states, const linear_call *call,
                               const linear_sequence *sequences, attn_error *error)
{
    int64_t count = count_slots(call, sequences);
    *states = (reference_states){.num_heads = call->v_heads,
                                 .k_dim = call->k_dim,
                                 .v_dim = call->v_dim,
                                 .num_channels = call->layer.channels,
                                 .num_taps = call->layer.taps,
                                 .vk = call->vk};
    int64_t one = (int64_t)call->v_heads * (call->k_dim * call->v_dim + 2) +
                  (int64_t)call->layer.channels * states->num_taps;
    states->entries = calloc((size_t)count + 1, sizeof *states->entries);
    double *next = states->memory = calloc((size_t)(count * one) + 1, sizeof *next);
    if (!states->entries || !next)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "reference: no memory for %lld states",
                         (long long)count);
    attn_status status = ATTN_OK;
    for (int32_t s = 0; s < call->num_seqs && status == ATTN_OK; s++) {
        status = add_slot(states, call, sequences[s].dst, &next, error);
        for (int64_t t = 0; sequences[s].real && t < sequences[s].num_rows && status == ATTN_OK;
             t++)
            status = add_slot(states, call, linear_snapshot(call, sequences[s].first_row + t),
                              &next, error);
    }
    return status;
}

void reference_states_finish(reference_states *states)
{
    if (!states)
        return;
    free(states->entries);
    free(states->memory);
    *states = (reference_states){0};
}

/* ---- All of it ------------------------------------------------------------------------------- */

static attn_status compute_all(linear_run *run, const linear_sequence *sequences, attn_error *error)
{
    const linear_call *call = run->call;
    attn_status status = ATTN_OK;
    int64_t most_rows = 0;
    for (int32_t s = 0; s < call->num_seqs; s++)
        most_rows = sequences[s].num_rows > most_rows ? sequences[s].num_rows : most_rows;
    run->rows = malloc((size_t)linear_rows_size(call, most_rows) * sizeof *run->rows + 1);
    if (!run->rows)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "reference: no memory for %lld rows",
                         (long long)most_rows);
    for (int32_t s = 0; s < call->num_seqs && status == ATTN_OK; s++) {
        if (sequences[s].real)
            status = compute_sequence(run, &sequences[s], error);
        for (int64_t t = 0; !sequences[s].real && t < sequences[s].num_rows; t++)
            run->result->kind[sequences[s].first_row + t] = REFERENCE_ROW_PADDING;
    }
    free(run->rows);
    return status;
}

static attn_status compute(linear_run *run, linear_call *call, const linear_sequence *sequences,
                           attn_error *error)
{
    double *constants = NULL;
    reference_scratch_init(&run->scratch);
    attn_status status = result_init(run->result, call, error);
    if (status == ATTN_OK && run->states)
        status = states_init(run->states, call, sequences, error);
    if (status == ATTN_OK)
        status = linear_constants_init(call, &constants, error);
    if (status == ATTN_OK)
        status = reference_linear_replay_init(&run->replay, &call->layer, 0, call->v_heads, error);
    if (status == ATTN_OK)
        status = compute_all(run, sequences, error);
    reference_linear_replay_finish(&run->replay);
    reference_scratch_finish(&run->scratch);
    free(constants);
    return status;
}

attn_status reference_linear_forward(const attn_problem *problem, const attn_batch *batch,
                                     int32_t layer_id, const attn_forward_args *args,
                                     reference_result *result, reference_states *states,
                                     attn_error *error)
{
    linear_call call;
    reference_result made = {0};
    reference_states slots = {0};
    linear_run run = {.call = &call, .result = &made, .states = states ? &slots : NULL};
    attn_status status = linear_call_init(&call, problem, batch, layer_id, args, error);
    if (status != ATTN_OK)
        return status;
    linear_sequence *sequences = calloc((size_t)call.num_seqs + 1, sizeof *sequences);
    if (!sequences)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "reference: no memory for %d sequences",
                         call.num_seqs);
    for (int32_t s = 0; s < call.num_seqs && status == ATTN_OK; s++)
        status = linear_sequence_init(&sequences[s], &call, s, error);
    if (status == ATTN_OK)
        status = compute(&run, &call, sequences, error);
    free(sequences);
    if (status != ATTN_OK) {
        reference_result_finish(&made);
        reference_states_finish(&slots);
        return status;
    }
    *result = made;
    if (states)
        *states = slots;
    return ATTN_OK;
}
