/* SPDX-License-Identifier: Apache-2.0
 *
 * judge_shim.c: see judge_shim.h.
 */
#include "judge_shim.h"

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/threads.h"
#include "host/verify/row.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TASK_QUERIES = 8 }; /* of one head: what a thread takes at once */

/* What a thread needs beside the batch. */
struct worker {
    reference_scratch scratch;
    double *truth, *bars, *actual; /* [head_dim] */
    judge_verdict verdicts[JUDGE_MAX_OUTPUTS];
};

struct judge {
    struct threads *threads;
    struct worker *workers;
    double *numbers; /* q, k and v of the batch, then what the workers have */
    uint64_t room;   /* of these, in elements */
    const judge_batch *batch;
    const double *q, *k, *v;
    host_error error;
};

/* ---- Make and free --------------------------------------------------------------------------- */

judge *judge_create(uint32_t num_threads)
{
    judge *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    host_error_init(&j->error);
    if (threads_create(num_threads, &j->threads, &j->error.base) == ATTN_OK)
        j->workers = calloc(threads_num_workers(j->threads), sizeof *j->workers);
    if (j->workers)
        return j;
    judge_destroy(j);
    return NULL;
}

void judge_destroy(judge *j)
{
    if (!j)
        return;
    for (uint32_t w = 0; j->workers && w < threads_num_workers(j->threads); w++)
        reference_scratch_finish(&j->workers[w].scratch);
    threads_destroy(j->threads);
    free(j->workers);
    free(j->numbers);
    free(j);
}

const char *judge_message(const judge *j)
{
    return host_error_text(&j->error);
}

double judge_false_alarm(void)
{
    return reference_false_alarm();
}

/* ---- A batch --------------------------------------------------------------------------------- */

static attn_status check(judge *j, const judge_batch *batch)
{
    attn_error *error = &j->error.base;
    if (batch->struct_size != sizeof *batch)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "batch of %u bytes: accepted %zu",
                         batch->struct_size, sizeof *batch);
    if (batch->num_seqs < 1 || batch->num_kv_heads < 1 || batch->num_queries < 1 ||
        batch->num_keys < 1 || batch->head_dim < 1 || batch->num_q_heads < 1 ||
        batch->num_q_heads % batch->num_kv_heads != 0)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "batch of %d sequences, %d and %d heads, %d queries, %d keys, head_dim "
                         "%d: accepted 1.., query heads a multiple of KV heads",
                         batch->num_seqs, batch->num_q_heads, batch->num_kv_heads,
                         batch->num_queries, batch->num_keys, batch->head_dim);
    if (batch->causal && batch->num_queries != batch->num_keys)
        return host_fail(error, ATTN_INVALID_ARGUMENT,
                         "causal batch of %d queries and %d keys: accepted as many",
                         batch->num_queries, batch->num_keys);
    if (batch->dtype != ATTN_BF16 && batch->dtype != ATTN_F16 && batch->dtype != ATTN_F32)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "batch of %s: accepted bf16, f16, f32",
                         dtype_name(batch->dtype));
    if (batch->num_outputs < 1 || batch->num_outputs > JUDGE_MAX_OUTPUTS)
        return host_fail(error, ATTN_INVALID_ARGUMENT, "num_outputs %d: accepted 1..%d",
                         batch->num_outputs, JUDGE_MAX_OUTPUTS);
    return ATTN_OK;
}

/* The operands as numbers, which reading them key by key for each row would take longest for, and
 * room for the workers. */
static attn_status load(judge *j, const judge_batch *batch)
{
    size_t q = (size_t)batch->num_seqs * (size_t)batch->num_q_heads * (size_t)batch->num_queries;
    size_t k = (size_t)batch->num_seqs * (size_t)batch->num_kv_heads * (size_t)batch->num_keys;
    size_t dim = (size_t)batch->head_dim, workers = threads_num_workers(j->threads);
    size_t room = (q + 2 * k + 3 * workers) * dim;
    if (room > j->room) {
        free(j->numbers);
        j->numbers = malloc(room * sizeof *j->numbers);
        j->room = j->numbers ? room : 0;
    }
    if (!j->numbers)
        return host_fail(&j->error.base, ATTN_OUT_OF_HOST_MEMORY, "no memory for %zu numbers",
                         room);
    double *queries = j->numbers, *keys = queries + q * dim, *values = keys + k * dim;
    dtype_to_double(batch->dtype, batch->q, (int64_t)(q * dim), queries);
    dtype_to_double(batch->dtype, batch->k, (int64_t)(k * dim), keys);
    dtype_to_double(batch->dtype, batch->v, (int64_t)(k * dim), values);
    j->batch = batch;
    j->q = queries;
    j->k = keys;
    j->v = values;
    double *next = values + k * dim;
    for (size_t w = 0; w < workers; w++, next += 3 * dim) {
        j->workers[w].truth = next;
        j->workers[w].bars = next + dim;
        j->workers[w].actual = next + 2 * dim;
        memset(j->workers[w].verdicts, 0, sizeof j->workers[w].verdicts);
    }
    return ATTN_OK;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

/* A query of one head. */
struct place {
    int32_t seq, head, query;
};

/* The worst of some rows is that of any of them; the first, where several are as bad. */
static void add(judge_verdict *sum, const judge_verdict *more)
{
    judge_verdict worst = more->worst > sum->worst || sum->rows == 0 ? *more : *sum;
    worst.rows = sum->rows + more->rows;
    worst.failed = sum->failed + more->failed;
    *sum = worst;
}

static void judge_output(const judge *j, struct worker *worker, struct place at, int32_t output,
                         const reference_row_result *result)
{
    const judge_batch *batch = j->batch;
    int64_t dim = batch->head_dim, head = (int64_t)at.seq * batch->num_q_heads + at.head;
    const attn_tensor out = {
        .struct_size = sizeof out,
        .dtype = batch->dtype,
        .ndim = 3,
        .data = (void *)batch->outputs[output],
        .shape = {batch->num_queries, (int64_t)batch->num_seqs * batch->num_q_heads, dim},
        .strides = {dim, batch->num_queries * dim, 1}};
    struct row_verdict found;
    row_verdict_make(&out, at.query, (int32_t)head, worker->truth, worker->bars, (int32_t)dim,
                     result, worker->actual, &found);
    const judge_verdict row = {.rows = 1,
                               .failed = found.verdict.code != REFERENCE_PASS,
                               .worst = reference_verdict_ratio(&found.verdict),
                               .seq = at.seq,
                               .head = at.head,
                               .query = at.query,
                               .dimension = found.verdict.dimension,
                               .error = found.verdict.error,
                               .bar = found.verdict.bar};
    add(&worker->verdicts[output], &row);
}

static attn_status judge_row(judge *j, struct worker *worker, struct place at)
{
    const judge_batch *batch = j->batch;
    int64_t dim = batch->head_dim, ratio = batch->num_q_heads / batch->num_kv_heads;
    int64_t head = (int64_t)at.seq * batch->num_q_heads + at.head;
    int64_t keys = ((int64_t)at.seq * batch->num_kv_heads + at.head / ratio) * batch->num_keys;
    reference_kv_arrays arrays = {j->k + keys * dim, j->v + keys * dim, dim, dim,
                                  batch->head_dim,   batch->head_dim};
    reference_kv kv = reference_kv_array(&arrays);
    reference_row row = {.head_dim = batch->head_dim,
                         .v_head_dim = batch->head_dim,
                         .kv_len = batch->num_keys,
                         .sm_scale = (double)batch->sm_scale,
                         .operand_dtype = batch->dtype,
                         .out_dtype = batch->dtype,
                         .query = j->q + (head * batch->num_queries + at.query) * dim,
                         .sight = reference_sight_all()};
    reference_row_result result;
    row.sight.position = at.query;
    row.sight.window_right = batch->causal ? 0 : -1;
    attn_status status = reference_row_compute(&row, &kv, &worker->scratch, worker->truth,
                                               worker->bars, &result, NULL);
    for (int32_t n = 0; n < batch->num_outputs && status == ATTN_OK; n++)
        judge_output(j, worker, at, n, &result);
    return status;
}

static int64_t tasks_of_head(const judge_batch *batch)
{
    return (batch->num_queries + TASK_QUERIES - 1) / TASK_QUERIES;
}

/* Some queries of a head. */
static attn_status run_task(void *arg, int64_t index, uint32_t worker)
{
    judge *j = arg;
    const judge_batch *batch = j->batch;
    int64_t head = index / tasks_of_head(batch), part = index % tasks_of_head(batch);
    struct place at = {.seq = (int32_t)(head / batch->num_q_heads),
                       .head = (int32_t)(head % batch->num_q_heads),
                       .query = (int32_t)(part * TASK_QUERIES)};
    attn_status status = ATTN_OK;
    for (int32_t n = 0; n < TASK_QUERIES && at.query < batch->num_queries; n++, at.query++)
        if (status == ATTN_OK)
            status = judge_row(j, &j->workers[worker], at);
    return status;
}

attn_status judge_rows(judge *j, const judge_batch *batch, judge_verdict *verdicts)
{
    attn_status status = check(j, batch);
    if (status == ATTN_OK)
        status = load(j, batch);
    if (status != ATTN_OK)
        return status;
    int64_t heads = (int64_t)batch->num_seqs * batch->num_q_heads;
    status = threads_for(j->threads, heads * tasks_of_head(batch), run_task, j);
    if (status != ATTN_OK)
        return host_fail(&j->error.base, status, "rows of the batch: %s", host_status_name(status));
    memset(verdicts, 0, (size_t)batch->num_outputs * sizeof *verdicts);
    for (int32_t n = 0; n < batch->num_outputs; n++)
        for (uint32_t w = 0; w < threads_num_workers(j->threads); w++)
            if (j->workers[w].verdicts[n].rows > 0)
                add(&verdicts[n], &j->workers[w].verdicts[n]);
    return ATTN_OK;
}
