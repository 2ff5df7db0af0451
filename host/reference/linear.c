/* SPDX-License-Identifier: Apache-2.0
 *
 * linear.c: a whole forward of a linear layer.
 */
#include "host/reference/linear_call.h"

#include "host/dtype.h"
#include "host/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TRUTH, NAIVE, FORMS };

/* What a sequence is computed in, for each form. */
typedef struct workspace {
    double *channels; /* [rows, channels] after the convolution */
    double *state;    /* [K, V] */
    double *out;      /* [V] */
    double *terms;    /* [V] */
    double *work;     /* [2 K + V] */
} workspace;

typedef struct linear_run {
    const linear_call *call;
    reference_result *result;
    reference_states *states; /* NULL = not wanted */
    workspace forms[FORMS];
    double *conv_terms; /* [rows, channels] */
    double *memory;
} linear_run;

static const linear_form truth_form = {0, ATTN_F64};

static linear_form form_of(const linear_call *call, int n)
{
    return n == TRUTH ? truth_form : (linear_form){1, call->problem->q_dtype};
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static double *take(double **next, int64_t count)
{
    double *taken = *next;
    *next += count;
    return taken;
}

static attn_status allocate(linear_run *run, int64_t most_rows, attn_error *error)
{
    const linear_call *call = run->call;
    int64_t channels = most_rows * call->channels, state = (int64_t)call->k_dim * call->v_dim;
    int64_t work = 2 * call->k_dim + call->v_dim;
    int64_t count = FORMS * (channels + state + work + 2 * call->v_dim) + channels;
    double *next = run->memory = calloc((size_t)count + 1, sizeof *next);
    if (!next)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "reference: no memory for %lld rows",
                         (long long)most_rows);
    for (int n = 0; n < FORMS; n++) {
        run->forms[n] = (workspace){.channels = take(&next, channels), .state = take(&next, state)};
        run->forms[n].out = take(&next, call->v_dim);
        run->forms[n].terms = take(&next, call->v_dim);
        run->forms[n].work = take(&next, work);
    }
    run->conv_terms = take(&next, channels);
    return ATTN_OK;
}

static attn_status result_init(reference_result *result, const linear_call *call, attn_error *error)
{
    *result = (reference_result){.num_rows = call->num_rows,
                                 .num_heads = call->v_heads,
                                 .v_head_dim = call->v_dim,
                                 .out_dtype = call->problem->out_dtype,
                                 .has_naive = 1};
    size_t entries = (size_t)(call->num_rows * call->v_heads) + 1;
    result->kind = calloc((size_t)call->num_rows + 1, sizeof *result->kind);
    result->out = calloc(entries * (size_t)call->v_dim, sizeof *result->out);
    result->rows = calloc(entries, sizeof *result->rows);
    if (result->kind && result->out && result->rows)
        return ATTN_OK;
    return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "reference: no memory for %lld rows of output",
                     (long long)call->num_rows);
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static void load_state(const linear_call *call, const linear_sequence *sequence, int32_t head,
                       double *state)
{
    for (int32_t i = 0; i < call->k_dim; i++)
        for (int32_t j = 0; j < call->v_dim; j++) {
            int64_t index[] = {sequence->slot, head, call->vk ? j : i, call->vk ? i : j};
            state[i * call->v_dim + j] =
                sequence->slot
                    ? dtype_load(call->state->dtype, reference_element(call->state, index, 4), 0)
                    : 0;
        }
}

/* Compare the two forms of a row and keep what the truth says. */
static void keep_row(linear_run *run, int64_t row, int32_t head)
{
    const workspace *truth = &run->forms[TRUTH], *naive = &run->forms[NAIVE];
    int64_t entry = row * run->call->v_heads + head;
    reference_row_result *kept = &run->result->rows[entry];
    for (int32_t j = 0; j < run->call->v_dim; j++) {
        double rounded = dtype_round(run->result->out_dtype, naive->out[j]);
        if (isfinite(rounded) && isfinite(truth->out[j]))
            kept->naive_error = fmax(kept->naive_error, fabs(rounded - truth->out[j]));
        if (isfinite(truth->terms[j]))
            kept->max_v = fmax(kept->max_v, truth->terms[j]);
    }
    memcpy(run->result->out + entry * run->call->v_dim, truth->out,
           (size_t)run->call->v_dim * sizeof *truth->out);
    run->result->kind[row] = REFERENCE_ROW_REAL;
}

/* Keep a head's state for the slot. */
static void keep_state(linear_run *run, reference_state *entry, int32_t head)
{
    const linear_call *call = run->call;
    int64_t size = (int64_t)call->k_dim * call->v_dim;
    const double *truth = run->forms[TRUTH].state, *naive = run->forms[NAIVE].state;
    for (int64_t n = 0; n < size; n++) {
        double rounded = dtype_round(call->dims->state_dtype, naive[n]);
        entry->error[head] = fmax(entry->error[head], fabs(rounded - truth[n]));
        entry->largest[head] = fmax(entry->largest[head], fabs(truth[n]));
    }
    memcpy(entry->state + head * size, truth, (size_t)size * sizeof *truth);
}

/* The entry of a slot; NULL = of no interest. Slots are written once, so the first is it. */
static reference_state *entry_of(const linear_run *run, int32_t slot)
{
    for (int64_t n = 0; run->states && slot > 0 && n < run->states->count; n++)
        if (run->states->entries[n].slot == slot)
            return &run->states->entries[n];
    return NULL;
}

static void compute_token(linear_run *run, const linear_sequence *sequence, int32_t head, int64_t t)
{
    const linear_call *call = run->call;
    for (int n = 0; n < FORMS; n++) {
        workspace *w = &run->forms[n];
        linear_form form = form_of(call, n);
        int64_t at = t * call->channels;
        linear_token token = {.row = sequence->first_row + t,
                              .head = head,
                              .channels = w->channels + at,
                              .state = w->state,
                              .work = w->work,
                              .out = w->out,
                              .terms = w->terms};
        if (call->dims->family == ATTN_LINEAR_SHORT_CONV) {
            size_t bytes = (size_t)call->v_dim * sizeof *w->out;
            memcpy(w->out, token.channels + (int64_t)head * call->v_dim, bytes);
            memcpy(w->terms, run->conv_terms + at + (int64_t)head * call->v_dim, bytes);
        } else {
            linear_step(call, &form, &token);
        }
        linear_output_gate(call, &form, &token);
    }
    keep_row(run, sequence->first_row + t, head);
}

static void compute_head(linear_run *run, const linear_sequence *sequence, int32_t head)
{
    const linear_call *call = run->call;
    int has_state = call->dims->family != ATTN_LINEAR_SHORT_CONV;
    reference_state *entry;
    for (int n = 0; has_state && n < FORMS; n++)
        load_state(call, sequence, head, run->forms[n].state);
    for (int64_t t = 0; t < sequence->num_rows; t++) {
        compute_token(run, sequence, head, t);
        entry = entry_of(run, linear_snapshot(call, sequence->first_row + t));
        if (has_state && entry)
            keep_state(run, entry, head);
    }
    entry = entry_of(run, sequence->dst);
    if (has_state && entry)
        keep_state(run, entry, head);
}

/* ---- The convolution's state ----------------------------------------------------------------- */

/* The last inputs before row `end` of the sequence. */
static void keep_inputs(const linear_run *run, const linear_sequence *sequence, int64_t end,
                        reference_state *entry)
{
    const linear_call *call = run->call;
    int32_t taps = linear_taps(call);
    for (int32_t c = 0; entry && c < call->channels; c++)
        for (int32_t n = 0; n < taps; n++) {
            int64_t t = end - taps + n;
            double x = 0;
            if (t >= 0)
                x = linear_load(call->mixed, sequence->first_row + t, c, 0);
            else if (sequence->slot)
                x = linear_load(call->conv_state, sequence->slot, c, t + taps);
            entry->conv[(int64_t)c * taps + n] = dtype_round(call->dims->conv_dtype, x);
        }
}

static void compute_sequence(linear_run *run, const linear_sequence *sequence)
{
    const linear_call *call = run->call;
    for (int n = 0; n < FORMS; n++) {
        linear_form form = form_of(call, n);
        linear_convolve(call, &form, sequence, run->forms[n].channels,
                        n == TRUTH ? run->conv_terms : NULL);
    }
    for (int32_t head = 0; head < call->v_heads; head++)
        compute_head(run, sequence, head);
    if (linear_taps(call) == 0)
        return;
    for (int64_t t = 0; t < sequence->num_rows; t++)
        keep_inputs(run, sequence, t + 1,
                    entry_of(run, linear_snapshot(call, sequence->first_row + t)));
    keep_inputs(run, sequence, sequence->num_rows, entry_of(run, sequence->dst));
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
                                 .num_channels = call->channels,
                                 .num_taps = linear_taps(call),
                                 .vk = call->vk};
    int64_t one = (int64_t)call->v_heads * (call->k_dim * call->v_dim + 2) +
                  (int64_t)call->channels * states->num_taps;
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

static attn_status compute(linear_run *run, const linear_sequence *sequences, attn_error *error)
{
    const linear_call *call = run->call;
    int64_t most_rows = 0;
    for (int32_t s = 0; s < call->num_seqs; s++)
        most_rows = sequences[s].num_rows > most_rows ? sequences[s].num_rows : most_rows;
    attn_status status = result_init(run->result, call, error);
    if (status == ATTN_OK && run->states)
        status = states_init(run->states, call, sequences, error);
    if (status == ATTN_OK)
        status = allocate(run, most_rows, error);
    for (int32_t s = 0; s < call->num_seqs && status == ATTN_OK; s++) {
        if (sequences[s].real)
            compute_sequence(run, &sequences[s]);
        for (int64_t t = 0; !sequences[s].real && t < sequences[s].num_rows; t++)
            run->result->kind[sequences[s].first_row + t] = REFERENCE_ROW_PADDING;
    }
    free(run->memory);
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
        status = compute(&run, sequences, error);
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
