/* SPDX-License-Identifier: Apache-2.0
 *
 * row_check.c: fetching of sampled rows, and handing them to the oracle.
 */
#include "host/run/row_check.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/verify/digest.h"
#include "host/base/error.h"
#include "host/base/log.h"
#include "host/base/moving_range.h"
#include "host/kinds/operands.h"
#include "host/verify/sample.h"

/* The model whose layers computed a position: target, draft model or tower. */
enum { OF_TARGET, OF_DRAFT, OF_TOWER, OF_COUNT };

/* A bit for each position of a request that was computed; NULL = none yet. */
struct marks {
    uint8_t *computed[OF_COUNT];
};

struct row_check {
    struct row_check_params params;
    struct verifier *verifier;
    struct digest digest;
    struct digest generated; /* of the rows of generated tokens alone */
    int64_t rows_checked;
    int64_t steps_not_finite;
    char first_not_finite[VERIFY_FAILURE_TEXT];
    int64_t trespasses;
    char first_trespass[VERIFY_FAILURE_TEXT];
    atomic_bool has_failed;
    uint64_t threshold;
    uint64_t *row_states; /* [max_tokens] of a step's rows */
    int32_t *sampled;     /* [max_tokens] of a layer, counted from their sequence's first row */
    struct moving_range marks;   /* struct marks of the requests that are not over */
    struct state_history states; /* of the steps that have ended */
};

/* ---- Life ------------------------------------------------------------------------------------ */

/* The first failure of each kind is logged at once, as the report may be hours away. */
static void note_failure(void *ctx, const char *text)
{
    struct row_check *check = ctx;
    char message[VERIFY_FAILURE_TEXT + 32];
    snprintf(message, sizeof message, "verification failed: %s", text);
    if (!atomic_exchange(&check->has_failed, true))
        host_log_write_newest(ATTN_LOG_WARNING, message);
}

bool row_check_has_failed(const struct row_check *check)
{
    return atomic_load(&check->has_failed);
}

static attn_status make_verifier(struct row_check *check, attn_error *error)
{
    const struct row_check_params *p = &check->params;
    struct verify_params params = {
        .model = p->model,
        .workload = p->workload,
        .generator = p->generator,
        .scales = p->scales,
        .reads_new_unquantised = p->reads_new_unquantised,
        .threads = p->threads,
        .concurrent = p->concurrent,
        .failed = note_failure,
        .failed_ctx = check,
    };
    return verifier_create(&params, &check->verifier, error);
}

/* Histories for the longest request and the drafts beyond its end, if the model has states and rows
 * are judged. */
static attn_status make_history(struct row_check *check, attn_error *error)
{
    const struct row_check_params *p = &check->params;
    int64_t longest = 0;
    if (p->num_state_slots == 0 || check->threshold == 0)
        return ATTN_OK;
    for (int64_t r = 0; r < p->workload->num_requests; r++) {
        const workload_request *request = &p->workload->requests[r];
        int64_t tokens = request->input_length + request->output_length;
        longest = tokens > longest ? tokens : longest;
    }
    longest += p->config->speculative.draft_tokens;
    return state_history_init(&check->states, p->num_state_slots, longest, error);
}

attn_status row_check_create(const struct row_check_params *params, struct row_check **check,
                             attn_error *error)
{
    struct row_check *made = calloc(1, sizeof *made);
    size_t tokens = (size_t)params->max_tokens;
    if (made) {
        made->params = *params;
        made->threshold = sample_threshold(params->config->verify.rate);
        digest_init(&made->digest);
        digest_init(&made->generated);
        made->row_states = calloc(tokens, sizeof *made->row_states);
        made->sampled = calloc(tokens, sizeof *made->sampled);
        made->marks.size = sizeof(struct marks);
    }
    attn_status status = ATTN_OK;
    if (!made || !made->row_states || !made->sampled)
        status = host_fail(error, ATTN_OUT_OF_HOST_MEMORY,
                           "no memory for the verification of steps of %zu tokens", tokens);
    if (status == ATTN_OK)
        status = make_verifier(made, error);
    if (status == ATTN_OK)
        status = make_history(made, error);
    if (status != ATTN_OK)
        row_check_destroy(made);
    else
        *check = made;
    return status;
}

void row_check_destroy(struct row_check *check)
{
    if (!check)
        return;
    verifier_destroy(check->verifier);
    digest_finish(&check->digest, NULL);
    digest_finish(&check->generated, NULL);
    row_check_pass(check, check->marks.end);
    moving_range_finish(&check->marks);
    free(check->sampled);
    free(check->row_states);
    state_history_finish(&check->states);
    free(check);
}

/* ---- Which rows ------------------------------------------------------------------------------ */

/* The output of a layer in batches of this mode. */
static struct row_operand written_in(const struct row_check *check, uint32_t mode, int32_t layer)
{
    const struct model *model = check->params.model;
    return operands_output(model, operands_form(model, layer, mode));
}

uint64_t row_check_row_bytes(const struct row_check *check, uint32_t mode, int32_t layer)
{
    struct row_operand out = written_in(check, mode, layer);
    return operands_row_bytes(&out);
}

/* Rejected drafts are sampled as rows of their own request number. */
static void sample_rows(const struct row_check *check, const struct verify_sequence *sequence,
                        uint64_t *states)
{
    for (int64_t t = 0; t < sequence->num_rows; t++) {
        struct verify_token token = verify_token_of(check->params.workload, sequence, t);
        states[t] =
            sample_row_state(check->params.config->workload.seed, token.request, token.position);
    }
}

static void list_sequences(const struct row_check *check, const struct batch_step *step,
                           struct row_list *list)
{
    int32_t row = 0;
    list->mode = step->mode;
    list->num_sequences = step->num_sequences;
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const struct scheduler_seq *sequence = &step->sequences[s];
        list->sequences[s] = (struct verify_sequence){
            .request = sequence->request,
            .prefix_len = sequence->prefix_len,
            .num_rows = sequence->num_new,
            .first_row = row,
            .encoder_len = sequence->encoder_len,
            .encoder_new = sequence->encoder_new,
            .stored = state_history_of(&check->states, sequence->state_slot),
        };
        if (step->trees)
            list->sequences[s].tree = step->trees[s];
        if (check->threshold > 0)
            sample_rows(check, &list->sequences[s], check->row_states + row);
        row += sequence->num_new;
    }
    list->num_rows = row;
}

/* Record the step's writes of states: a sequence's snapshots before its final state, which may
 * overwrite the one that was read. */
static void list_writes(const struct row_check *check, const struct batch_step *step,
                        struct row_list *list)
{
    int32_t row = 0, n = 0;
    list->num_writes = 0;
    if (!check->states.bits || step->mode == ATTN_MODE_DRAFT_EXTEND)
        return;
    for (int32_t s = 0; s < step->num_sequences; s++) {
        const struct scheduler_seq *sequence = &step->sequences[s];
        struct state_write write = {.from = sequence->state_slot};
        for (; n < step->num_snapshots && step->snapshots[n].row < row + sequence->num_new; n++) {
            write.to = step->snapshots[n].slot;
            write.position = sequence->prefix_len + step->snapshots[n].row - row + 1;
            list->writes[list->num_writes++] = write;
        }
        write.to = sequence->state_dst;
        write.position = sequence->prefix_len + sequence->num_new;
        list->writes[list->num_writes++] = write;
        row += sequence->num_new;
    }
}

void row_check_list(const struct row_check *check, const struct batch_step *step,
                    struct row_list *list)
{
    list_sequences(check, step, list);
    list_writes(check, step, list);
    if (check->threshold == 0)
        return;
    const struct model *model = check->params.model;
    int32_t count = 0;
    for (uint32_t layer = 0; layer < model->num_layers; layer++) {
        list->indptr[layer] = count;
        if (!model_layer_runs(model, layer, step->mode))
            continue;
        for (int32_t row = 0; row < list->num_rows; row++)
            if (sample_in_layer(check->row_states[row], (int32_t)layer, check->threshold))
                list->rows[count++] = row;
    }
    list->indptr[model->num_layers] = count;
}

/* ---- What becomes of them -------------------------------------------------------------------- */

static bool is_computed(struct row_check *check, int64_t request, int64_t position, uint32_t whose)
{
    if (request >= check->marks.end)
        return false;
    const struct marks *marks = moving_range_at(&check->marks, request);
    const uint8_t *bits = marks->computed[whose];
    return bits && bits[position / 8] >> position % 8 & 1;
}

/* A row of tokens that were not computed before enters the count and, if it is the target model's
 * and stays, the digest: with drafts that is the one of a run without them. */
static attn_status add_row(struct row_check *check, uint32_t whose,
                           const struct verify_sequence *sequence, int64_t t, int32_t layer,
                           const void *row, uint64_t bytes, attn_error *error)
{
    const struct row_check_params *p = &check->params;
    int64_t position = verify_token_of(p->workload, sequence, t).position;
    bool rejected = verify_is_rejected(sequence, t);

    if (!rejected && is_computed(check, sequence->request, position, whose))
        return ATTN_OK;
    check->rows_checked++;
    if (rejected || whose == OF_DRAFT)
        return ATTN_OK;
    if (p->listener)
        p->listener(p->listener_ctx, sequence->request, position, layer, row, bytes);
    attn_status status =
        digest_add(&check->digest, sequence->request, position, layer, row, bytes, error);
    bool drafts = p->config->speculative.draft_tokens > 0;
    if (status == ATTN_OK && drafts && whose == OF_TARGET &&
        position >= p->workload->requests[sequence->request].input_length)
        status =
            digest_add(&check->generated, sequence->request, position, layer, row, bytes, error);
    return status;
}

/* A layer's sampled rows, sequence by sequence, as the verifier wants them. */
static attn_status split_rows(struct row_check *check, const struct row_list *list, int32_t layer,
                              const char *rows, attn_error *error)
{
    int32_t first = list->indptr[layer], last = list->indptr[layer + 1], i = first;
    uint64_t bytes = row_check_row_bytes(check, list->mode, layer);
    uint32_t whose = list->mode == MODEL_MODE_ENCODE               ? OF_TOWER
                     : check->params.model->layers[layer].is_draft ? OF_DRAFT
                                                                   : OF_TARGET;
    attn_status status = ATTN_OK;
    for (int32_t s = 0; s < list->num_sequences; s++) {
        struct verify_sequence *sequence = &list->sequences[s];
        int64_t end =
            s + 1 < list->num_sequences ? list->sequences[s + 1].first_row : list->num_rows;
        sequence->first_sampled = i - first;
        for (; i < last && list->rows[i] < end && status == ATTN_OK; i++) {
            int64_t t = list->rows[i] - sequence->first_row;
            check->sampled[i - first] = (int32_t)t;
            status = add_row(check, whose, sequence, t, layer, rows + (uint64_t)(i - first) * bytes,
                             bytes, error);
        }
        sequence->num_sampled = i - first - sequence->first_sampled;
    }
    return status;
}

attn_status row_check_layer(struct row_check *check, const struct row_list *list, int32_t layer,
                            void *rows, attn_error *error)
{
    struct row_operand written = written_in(check, list->mode, layer);
    int64_t count = list->indptr[layer + 1] - list->indptr[layer];
    if (count == 0)
        return ATTN_OK;
    attn_tensor out = {
        .struct_size = sizeof out,
        .data = rows,
        .device_type = ATTN_DEVICE_CPU,
        .dtype = written.dtype,
        .ndim = 3,
        .alignment = 1,
        .shape = {count, written.heads, written.dim},
        .strides = {operands_row_elements(&written), written.dim, 1},
    };
    struct verify_step step = {
        .mode = list->mode,
        .num_sequences = list->num_sequences,
        .sequences = list->sequences,
        .sampled = check->sampled,
        .compact = 1,
        .most_chosen = operands_choice(check->params.model, layer).dim,
    };
    if (step.most_chosen > 0)
        step.chosen =
            (const int32_t *)(const void *)((const char *)rows +
                                            (uint64_t)count * operands_row_bytes(&written));
    attn_status status = split_rows(check, list, layer, rows, error);
    return status == ATTN_OK ? verifier_add(check->verifier, &step, layer, &out, error) : status;
}

attn_status row_check_judge(struct row_check *check, attn_error *error)
{
    return verifier_judge(check->verifier, error);
}

attn_status row_check_wait(struct row_check *check, attn_error *error)
{
    return verifier_wait(check->verifier, error);
}

void row_check_watch(struct row_check *check, const struct row_list *list, uint64_t watch)
{
    if (watch == UINT64_MAX)
        return;
    int64_t row = (int64_t)(watch & UINT32_MAX);
    int32_t s = 0;
    while (s + 1 < list->num_sequences && list->sequences[s + 1].first_row <= row)
        s++;
    const struct verify_sequence *sequence = &list->sequences[s];
    char place[VERIFY_PLACE_TEXT];
    verify_place_text(sequence, row - sequence->first_row, place);
    if (check->steps_not_finite++ > 0)
        return;
    snprintf(check->first_not_finite, sizeof check->first_not_finite,
             "%s, layer %u: an output is not finite", place, (unsigned int)(watch >> 32));
    note_failure(check, check->first_not_finite);
}

void row_check_trespass(struct row_check *check, const char *text)
{
    if (check->trespasses++ > 0)
        return;
    snprintf(check->first_trespass, sizeof check->first_trespass, "%s", text);
    note_failure(check, text);
}

/* Its rows; in a verification, those that stay. */
static attn_status mark_computed(struct row_check *check, const struct verify_sequence *sequence,
                                 uint32_t whose, attn_error *error)
{
    struct marks *marks = moving_range_at(&check->marks, sequence->request);
    uint8_t **bits = marks ? &marks->computed[whose] : NULL;
    if (bits && !*bits) {
        const workload_request *r = &check->params.workload->requests[sequence->request];
        int64_t positions = whose == OF_TOWER ? check->params.model->max_encoder_len
                                              : r->input_length + r->output_length;
        *bits = calloc((size_t)positions / 8 + 1, 1);
    }
    if (!bits || !*bits)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for marks of rows");
    bool has_tree = verify_has_tree(sequence);
    int64_t rows = has_tree ? sequence->tree.committed : sequence->num_rows;
    for (int64_t t = 0; t < rows; t++) { /* those that stay stand one after the other */
        int64_t position = sequence->prefix_len + t;
        (*bits)[position / 8] |= (uint8_t)(1u << position % 8);
    }
    return ATTN_OK;
}

attn_status row_check_end(struct row_check *check, const struct row_list *list, attn_error *error)
{
    attn_status status = ATTN_OK;
    bool of_tower = list->mode == MODEL_MODE_ENCODE;
    bool of_target = !of_tower && list->mode != ATTN_MODE_DRAFT_EXTEND;
    bool of_draft = !of_tower && list->mode != ATTN_MODE_TARGET_VERIFY;
    for (int32_t s = 0; s < list->num_sequences; s++) {
        if (of_tower && status == ATTN_OK)
            status = mark_computed(check, &list->sequences[s], OF_TOWER, error);
        if (of_target && status == ATTN_OK)
            status = mark_computed(check, &list->sequences[s], OF_TARGET, error);
        if (of_draft && status == ATTN_OK)
            status = mark_computed(check, &list->sequences[s], OF_DRAFT, error);
    }
    for (int32_t n = 0; n < list->num_writes; n++)
        state_history_write(&check->states, &list->writes[n]);
    return status;
}

void row_check_pass(struct row_check *check, int64_t first)
{
    for (int64_t r = check->marks.first; r < first && r < check->marks.end; r++) {
        const struct marks *marks = moving_range_at(&check->marks, r);
        for (int whose = 0; whose < OF_COUNT; whose++)
            free(marks->computed[whose]);
    }
    moving_range_pass(&check->marks, first);
    digest_seal(&check->digest, first);
    digest_seal(&check->generated, first);
}

static attn_status report_bars(const struct row_check *check, struct report *report,
                               attn_error *error)
{
    uint32_t count = check->params.model->num_layers;
    if (check->threshold == 0)
        return ATTN_OK;
    report->verify.num_layers = count;
    for (int phase = 0; phase < REPORT_PHASES; phase++) {
        double *of_bar = calloc(count + 1u, sizeof *of_bar);
        if (!of_bar)
            return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for the report");
        for (uint32_t layer = 0; layer < count; layer++)
            of_bar[layer] =
                verifier_of_bar(check->verifier, (int32_t)layer, phase == REPORT_DECODE);
        report->verify.of_bar[phase] = of_bar;
    }
    return ATTN_OK;
}

attn_status row_check_report(struct row_check *check, struct report *report, attn_error *error)
{
    struct verify_result result;
    verifier_result(check->verifier, &result);
    /* Rows that were computed before are sampled again, and not counted again. */
    report->verify.rows_checked = check->rows_checked - result.rows_unjudged;
    if (report->verify.rows_checked < 0)
        report->verify.rows_checked = 0;
    report->verify.rows_failed = result.rows_failed;
    report->verify.sampled = check->params.config->verify.rate < 1;
    report->verify.steps_not_finite = check->steps_not_finite;
    report->verify.max_abs_err = result.max_abs_error;
    report->verify.max_rel_err = result.max_rel_error;
    report->verify.trespasses = check->trespasses;
    memcpy(report->verify.first_failure,
           check->first_trespass[0]  ? check->first_trespass
           : result.first_failure[0] ? result.first_failure
                                     : check->first_not_finite,
           sizeof report->verify.first_failure);
    digest_finish(&check->digest, report->digest);
    digest_finish(&check->generated, report->drafts.digest);
    return report_bars(check, report, error);
}
