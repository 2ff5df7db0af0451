/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_judge.c: one head of one sequence of a linear layer, judged by replay of its rows. It
 * reads only the operands of that head, a few rows at a time, so that long sequences need neither
 * much memory nor time for other heads.
 */
#include "host/reference/linear_call.h"

#include "host/base/dtype.h"
#include "host/base/error.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

/* Rows that are replayed at a time. */
enum { ROWS = 64 };

typedef struct linear_judge {
    const linear_call *call;
    const linear_sequence *sequence;
    const attn_tensor *out;
    reference_linear_judgement *judgement;
    reference_linear_replay replay;
    reference_scratch scratch;
    double *memory; /* operands of ROWS rows, then their outputs */
} linear_judge;

/* ---- Operands -------------------------------------------------------------------------------- */

/* The head's elements of rows of a gate, as wide as the tensor's rows; returns where they lie. */
static const double *load_gate(const linear_judge *judge, const attn_tensor *tensor, int64_t first,
                               int64_t count, double **next)
{
    const double *loaded = *next;
    int32_t head = judge->judgement->head;
    if (!tensor)
        return NULL;
    int64_t heads = tensor->shape[1], dims = tensor->ndim > 2 ? tensor->shape[2] : 1;
    for (int64_t t = 0; t < count; t++)
        for (int64_t d = 0; d < dims; d++)
            (*next)[(t * heads + head) * dims + d] = linear_load(tensor, first + t, head, d);
    *next += count * heads * dims;
    return loaded;
}

/* Rows [first, first + count) of the call. */
static reference_linear_rows load_rows(const linear_judge *judge, int64_t first, int64_t count)
{
    const linear_call *call = judge->call;
    const reference_linear_channels *channels = &judge->replay.channels;
    double *next = judge->memory;
    reference_linear_rows rows = {.count = count, .mixed = next};
    for (int32_t c = 0; c < channels->total; c++) {
        int32_t channel = reference_linear_channel(channels, c);
        for (int64_t t = 0; t < count; t++)
            next[t * call->layer.channels + channel] =
                linear_load(call->mixed, first + t, channel, 0);
    }
    next += count * call->layer.channels;
    rows.a = load_gate(judge, call->a, first, count, &next);
    rows.b = load_gate(judge, call->b, first, count, &next);
    rows.z = load_gate(judge, call->z, first, count, &next);
    return rows;
}

/* ---- Verdicts -------------------------------------------------------------------------------- */

/* Row `t` of the sequence, if it is one of those that are judged. */
static void judge_row(const linear_judge *judge, int64_t t, const double *truth,
                      const reference_row_result *result, double *actual)
{
    const linear_call *call = judge->call;
    for (int n = 0; n < REFERENCE_LINEAR_ROWS; n++) {
        if (judge->judgement->rows[n] != t)
            continue;
        for (int32_t j = 0; j < call->v_dim; j++)
            actual[j] =
                linear_load(judge->out, judge->sequence->first_row + t, judge->judgement->head, j);
        judge->judgement->verdicts[n] =
            reference_check_row(actual, truth, NULL, call->v_dim, call->problem->out_dtype, result);
    }
}

/* The first element that is off, or, worse, the first that is not finite. */
static void note_element(reference_verdict *verdict, double actual, double truth, double bar,
                         int32_t element)
{
    double error = fabs(actual - truth);
    bool finite = isfinite(actual), is_known = verdict->code == REFERENCE_NOT_FINITE_HERE;
    if (error <= bar || is_known || (verdict->code != REFERENCE_PASS && finite))
        return;
    *verdict = (reference_verdict){finite ? REFERENCE_ERROR_TOO_LARGE : REFERENCE_NOT_FINITE_HERE,
                                   element, finite ? error : (double)INFINITY, bar};
}

/* The state by the rule of linear.h: 2 max |naive - truth| + 1e-5 max |truth|. */
static void judge_state(const linear_judge *judge)
{
    const linear_call *call = judge->call;
    const reference_linear_replay *replay = &judge->replay;
    double error = 0, largest = 0;
    for (int32_t i = 0; i < call->k_dim; i++)
        for (int32_t j = 0; j < call->v_dim; j++) {
            int64_t n = (int64_t)i * replay->stride + j;
            double rounded = dtype_round(call->dims->state_dtype, (double)replay->naive[n]);
            error = fmax(error, fabs(rounded - replay->truth[n]));
            largest = fmax(largest, fabs(replay->truth[n]));
        }
    for (int32_t i = 0; i < call->k_dim; i++)
        for (int32_t j = 0; j < call->v_dim; j++) {
            int64_t index[] = {judge->sequence->dst, judge->judgement->head, call->vk ? j : i,
                               call->vk ? i : j};
            double actual =
                dtype_load(call->state->dtype, reference_element(call->state, index, 4), 0);
            note_element(&judge->judgement->state, actual,
                         replay->truth[(int64_t)i * replay->stride + j], 2 * error + 1e-5 * largest,
                         i * call->v_dim + j);
        }
}

/* Inputs are equal to the bit. */
static void judge_conv_state(const linear_judge *judge)
{
    const linear_call *call = judge->call;
    const reference_linear_replay *replay = &judge->replay;
    int32_t total = replay->channels.total;
    for (int32_t c = 0; c < total; c++)
        for (int32_t n = 0; n < call->layer.taps; n++) {
            int32_t channel = reference_linear_channel(&replay->channels, c);
            double truth = dtype_round(call->dims->conv_dtype, replay->inputs[n * total + c]);
            double actual = linear_load(call->conv_state, judge->sequence->dst, channel, n);
            note_element(&judge->judgement->conv_state, actual, truth, 0, channel);
        }
}

/* ---- All of it ------------------------------------------------------------------------------- */

static attn_status replay_rows(linear_judge *judge, attn_error *error)
{
    const linear_call *call = judge->call;
    int64_t v_dim = call->v_dim, first = judge->sequence->first_row;
    double *out = judge->memory + linear_rows_size(call, ROWS);
    reference_row_result results[ROWS];
    attn_status status = ATTN_OK;
    for (int64_t t = 0; t < judge->sequence->num_rows && status == ATTN_OK; t += ROWS) {
        int64_t left = judge->sequence->num_rows - t, count = left < ROWS ? left : ROWS;
        reference_linear_rows rows = load_rows(judge, first + t, count);
        status = reference_linear_replay_advance(&judge->replay, &rows, NULL, &judge->scratch, out,
                                                 results, error);
        for (int64_t r = 0; r < count && status == ATTN_OK; r++)
            judge_row(judge, t + r, out + r * v_dim, &results[r], out + ROWS * v_dim);
    }
    return status;
}

static attn_status judge_head(linear_judge *judge, attn_error *error)
{
    const linear_call *call = judge->call;
    linear_replay_load(&judge->replay, call, judge->sequence->slot);
    attn_status status = replay_rows(judge, error);
    if (status != ATTN_OK || judge->sequence->dst == 0)
        return status;
    if (call->state)
        judge_state(judge);
    if (call->layer.taps > 0)
        judge_conv_state(judge);
    return ATTN_OK;
}

static attn_status check_judgement(const linear_call *call, const attn_forward_args *args,
                                   const reference_linear_judgement *judgement, attn_error *error)
{
    const attn_tensor *out = attn_operand(args, ATTN_ROLE_OUT);
    int64_t shape[] = {call->num_rows, call->v_heads, call->v_dim};
    if (judgement->sequence < 0 || judgement->sequence >= call->num_seqs || judgement->head < 0 ||
        judgement->head >= call->v_heads)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "head %d of sequence %d: accepted below %d and %d", judgement->head,
                         judgement->sequence, call->v_heads, call->num_seqs);
    return reference_check_tensor(out, ATTN_ROLE_OUT, call->problem->out_dtype, 3, shape, error);
}

static attn_status check_rows(const linear_sequence *sequence,
                              const reference_linear_judgement *judgement, attn_error *error)
{
    for (int n = 0; n < REFERENCE_LINEAR_ROWS; n++)
        if (judgement->rows[n] < 0 || judgement->rows[n] >= sequence->num_rows)
            return host_fail(
                error, ATTN_INVALID_ARGUMENT, "row %lld of sequence %d: accepted below %lld",
                (long long)judgement->rows[n], sequence->index, (long long)sequence->num_rows);
    return ATTN_OK;
}

attn_status reference_linear_judge(const attn_problem *problem, const attn_batch *batch,
                                   int32_t layer_id, const attn_forward_args *args,
                                   reference_linear_judgement *judgement, attn_error *error)
{
    linear_call call;
    linear_sequence sequence;
    double *constants = NULL;
    linear_judge judge = {.call = &call, .sequence = &sequence, .judgement = judgement};
    attn_status status = linear_call_init(&call, problem, batch, layer_id, args, error);
    if (status == ATTN_OK)
        status = check_judgement(&call, args, judgement, error);
    if (status == ATTN_OK)
        status = linear_sequence_init(&sequence, &call, judgement->sequence, error);
    if (status == ATTN_OK)
        status = check_rows(&sequence, judgement, error);
    if (status != ATTN_OK)
        return status;
    judge.out = attn_operand(args, ATTN_ROLE_OUT);
    judgement->state = judgement->conv_state = (reference_verdict){.code = REFERENCE_PASS};
    reference_scratch_init(&judge.scratch);
    int64_t doubles = linear_rows_size(&call, ROWS) + (ROWS + 1) * (int64_t)call.v_dim;
    judge.memory = malloc((size_t)doubles * sizeof *judge.memory);
    if (!judge.memory)
        status =
            host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "reference: no memory for %d rows", ROWS);
    if (status == ATTN_OK)
        status = linear_constants_init(&call, &constants, error);
    if (status == ATTN_OK)
        status =
            reference_linear_replay_init(&judge.replay, &call.layer, judgement->head, 1, error);
    if (status == ATTN_OK)
        status = judge_head(&judge, error);
    reference_linear_replay_finish(&judge.replay);
    reference_scratch_finish(&judge.scratch);
    free(constants);
    free(judge.memory);
    return status;
}
