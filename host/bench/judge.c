/* SPDX-License-Identifier: Apache-2.0 */
#include "host/bench/judge.h"

#include <math.h>
#include <stdlib.h>

#include "host/base/error.h"
#include "host/base/mix.h"
#include "host/reference/reference.h"

enum {
    MAX_ROWS = 16,      /* pairs of a row and a query head */
    LEAST_ROWS = 2,     /* the first and the last row, however many keys they have */
    MAX_KEYS = 1 << 19, /* of all rows together: half a second of one core */
    POISON = 0xff       /* NaN in each floating-point type */
};

attn_status bench_judge_poison(const struct bench_inputs *inputs, attn_stream stream,
                               attn_error *error)
{
    struct bench_region out = bench_inputs_rows(inputs, BENCH_OUT, 0, inputs->count.tokens);
    return device_fill(inputs->device, inputs->operands + out.at, POISON, out.bytes, stream, error);
}

/* ---- What a row reads ------------------------------------------------------------------------ */

/* The inputs as host memory has them: of the operands, what was fetched. */
struct mirror {
    const struct bench_inputs *from;
    struct bench_inputs here;
    int32_t sequence; /* whose keys are here; -1 = none's */
};

static attn_status fetch(struct mirror *mirror, struct bench_region region, attn_error *error)
{
    return device_copy(mirror->from->device, mirror->here.operands + region.at,
                       mirror->from->operands + region.at, region.bytes, NULL, error);
}

/* New keys and values, and the pages, of a sequence. */
static attn_status fetch_keys(struct mirror *mirror, int32_t s, attn_error *error)
{
    const struct bench_inputs *from = mirror->from;
    const struct bench_arrays *a = &from->arrays;
    int64_t first = a->q_indptr[s], count = a->q_indptr[s + 1] - first;
    attn_status status = fetch(mirror, bench_inputs_rows(from, BENCH_K, first, count), error);
    if (status == ATTN_OK)
        status = fetch(mirror, bench_inputs_rows(from, BENCH_V, first, count), error);
    for (int32_t p = a->kv_indptr[s]; p < a->kv_indptr[s + 1] && status == ATTN_OK; p++) {
        int32_t page = a->kv_indices[p];
        status = fetch(mirror, bench_inputs_page(from, BENCH_K_CACHE, page), error);
        if (status == ATTN_OK)
            status = fetch(mirror, bench_inputs_page(from, BENCH_V_CACHE, page), error);
    }
    return status;
}

static attn_status fetch_row(struct mirror *mirror, int64_t row, int32_t s, attn_error *error)
{
    const struct bench_inputs *from = mirror->from;
    attn_status status = fetch(mirror, bench_inputs_rows(from, BENCH_Q, row, 1), error);
    if (status == ATTN_OK)
        status = fetch(mirror, bench_inputs_rows(from, BENCH_OUT, row, 1), error);
    if (status == ATTN_OK && mirror->sequence != s)
        status = fetch_keys(mirror, s, error);
    mirror->sequence = s;
    return status == ATTN_OK ? device_synchronize(from->device, NULL, error) : status;
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static int32_t sequence_of(const struct bench_inputs *inputs, int64_t row)
{
    int32_t s = 0;
    while (inputs->arrays.q_indptr[s + 1] <= row)
        s++;
    return s;
}

/* The first and the last row, then any. */
static int64_t choose_row(const struct bench_inputs *inputs, uint32_t n, uint64_t bits)
{
    int64_t rows = inputs->count.tokens;
    return n == 0 ? 0 : n == 1 ? rows - 1 : (int64_t)mix_below((uint32_t)bits, (uint64_t)rows);
}

static void note_verdict(const reference_verdict *verdict, int64_t row, int32_t head, strbuf *why)
{
    double off = reference_verdict_ratio(verdict);
    if (verdict->code == REFERENCE_PASS)
        return;
    strbuf_appendf(why, "row %lld of query head %d is ", (long long)row, head);
    if (isfinite(off))
        strbuf_appendf(why, "off by %.3g times what the pass rule allows", off);
    else
        strbuf_append(why, "not written, or not finite");
}

static attn_status judge_row(struct mirror *mirror, const char *layout,
                             const reference_options *options, int64_t row, int32_t head,
                             strbuf *why, attn_error *error)
{
    struct bench_problem problem;
    struct bench_call call;
    reference_verdict verdict;
    const struct bench_inputs *here = &mirror->here;
    bench_problem_init(&problem, &here->shape, &mirror->from->device->info, layout,
                       ATTN_GRAPH_NEVER);
    bench_inputs_call(here, 0, layout, &call);
    attn_status status = reference_judge_row(&problem.problem, &here->batch, 0, &call.args, options,
                                             row, head, &verdict, error);
    if (status == ATTN_OK)
        note_verdict(&verdict, row, head, why);
    return status;
}

static attn_status judge_rows(struct mirror *mirror, const char *layout,
                              uint32_t reads_new_unquantised, strbuf *why, attn_error *error)
{
    const reference_options options = {.reads_new_unquantised = reads_new_unquantised};
    const struct bench_inputs *from = mirror->from;
    attn_status status = ATTN_OK;
    int64_t keys = 0;
    for (uint32_t n = 0; n < MAX_ROWS && status == ATTN_OK && why->length == 0; n++) {
        uint64_t bits = mix_stream((uint64_t)from->count.pairs, n);
        int64_t row = choose_row(from, n, bits);
        int32_t s = sequence_of(from, row), heads = from->shape.q_heads;
        int32_t head = (int32_t)mix_below((uint32_t)(bits >> 32), (uint64_t)heads);
        keys += from->arrays.seq_lens[s];
        if (n >= LEAST_ROWS && keys > MAX_KEYS)
            break;
        status = fetch_row(mirror, row, s, error);
        if (status == ATTN_OK)
            status = judge_row(mirror, layout, &options, row, head, why, error);
    }
    return status;
}

attn_status bench_judge_rows(const struct bench_inputs *inputs, const char *layout,
                             uint32_t reads_new_unquantised, strbuf *why, attn_error *error)
{
    struct mirror mirror = {.from = inputs, .sequence = -1};
    char *operands = calloc(1, inputs->copy_bytes); /* pages that are not written take no memory */
    if (!operands)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory for %llu bytes to be judged",
                         (unsigned long long)inputs->copy_bytes);
    bench_inputs_mirror(inputs, operands, &mirror.here);
    attn_status status = judge_rows(&mirror, layout, reads_new_unquantised, why, error);
    free(operands);
    return status;
}
