/* SPDX-License-Identifier: Apache-2.0
 *
 * judge.c: forwards of sampled rows, compared with the oracle.
 */
#include "host/bench/judge.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/base/mix.h"
#include "host/reference/linear.h"
#include "host/reference/sparse.h"

enum {
    MAX_ROWS = 16,          /* pairs of a row, or a sequence, and a head */
    LEAST_ROWS = 2,         /* the first and the last row, however many keys they have */
    MAX_KEYS = 1 << 19,     /* of all rows together, of 128 elements: half a second of one core */
    INDEX_KEYS = 16,        /* what a key costs an indexer, in keys that attention sees */
    LATENT_KEYS = 4,        /* what a latent costs, likewise */
    MAX_REPLAYED = 1 << 13, /* rows of a recurrence, of all heads together: likewise */
    POISON = 0xff           /* NaN in each floating-point type */
};

static attn_status poison(const struct bench_inputs *inputs, uint32_t operand, int64_t first,
                          int64_t count, attn_stream stream, attn_error *error)
{
    struct bench_region at = bench_inputs_units(inputs, operand, first, count);
    return device_fill(inputs->device, inputs->operands + at.at, POISON, at.bytes, stream, error);
}

/* Outputs, choices, and the states that are written. */
attn_status bench_judge_poison(const struct bench_inputs *inputs, attn_stream stream,
                               attn_error *error)
{
    attn_status status = ATTN_OK;
    for (uint32_t o = 0; o < inputs->num_operands && status == ATTN_OK; o++) {
        const struct bench_operand *operand = &inputs->list[o];
        bool chosen =
            operand->role == ATTN_ROLE_SPARSE_INDICES || operand->role == ATTN_ROLE_SPARSE_COUNT;
        if (operand->role == ATTN_ROLE_OUT ||
            (chosen && inputs->shape.choice != BENCH_CHOICE_GIVEN))
            status = poison(inputs, o, 0, operand->units, stream, error);
        if (operand->unit != BENCH_PER_SLOT)
            continue;
        const int32_t *slots = inputs->arrays.state_slots + inputs->shape.batch;
        for (int32_t s = 0; s < inputs->shape.batch && status == ATTN_OK; s++)
            status = poison(inputs, o, slots[s], 1, stream, error);
    }
    return status;
}

/* ---- What a row reads ------------------------------------------------------------------------ */

/* The inputs as host memory has them: of the operands, what was fetched. */
struct mirror {
    const struct bench_inputs *from;
    struct bench_inputs here;
    int32_t sequence; /* whose keys are here; -1 = none's */
};

static attn_status fetch(struct mirror *mirror, uint32_t operand, int64_t first, int64_t count,
                         attn_error *error)
{
    struct bench_region at = bench_inputs_units(mirror->from, operand, first, count);
    return device_copy(mirror->from->device, mirror->here.operands + at.at,
                       mirror->from->operands + at.at, at.bytes, NULL, error);
}

/* Does each row read its own alone? Of a recurrence none does: it reads those before it, too. */
static bool is_row_own(const struct bench_inputs *inputs, uint32_t role)
{
    return !bench_shape_is_linear(&inputs->shape) &&
           (role == ATTN_ROLE_Q || role == ATTN_ROLE_Q_NOPE || role == ATTN_ROLE_Q_PE ||
            role == ATTN_ROLE_OUT || role == ATTN_ROLE_INDEX_Q || role == ATTN_ROLE_INDEX_WEIGHTS ||
            role == ATTN_ROLE_SPARSE_INDICES || role == ATTN_ROLE_SPARSE_COUNT);
}

/* The data that all rows of a sequence read: new tokens' rows, pages, and slots before and after.
 */
static attn_status fetch_sequence(struct mirror *mirror, int32_t s, attn_error *error)
{
    const struct bench_inputs *from = mirror->from;
    const struct bench_arrays *a = &from->arrays;
    int64_t first = a->q_indptr[s], count = a->q_indptr[s + 1] - first;
    attn_status status = ATTN_OK;
    for (uint32_t o = 0; o < from->num_operands && status == ATTN_OK; o++) {
        const struct bench_operand *operand = &from->list[o];
        if (operand->unit == BENCH_PER_TOKEN && !is_row_own(from, operand->role))
            status = fetch(mirror, o, first, count, error);
        for (int32_t p = a->kv_indptr[s];
             operand->unit == BENCH_PER_PAGE && p < a->kv_indptr[s + 1] && status == ATTN_OK; p++)
            status = fetch(mirror, o, a->kv_indices[p], 1, error);
        for (int32_t n = s;
             operand->unit == BENCH_PER_SLOT && n < 2 * from->shape.batch && status == ATTN_OK;
             n += from->shape.batch)
            status = fetch(mirror, o, a->state_slots[n], 1, error);
    }
    return status;
}

static attn_status fetch_row(struct mirror *mirror, int64_t row, int32_t s, attn_error *error)
{
    const struct bench_inputs *from = mirror->from;
    attn_status status = ATTN_OK;
    for (uint32_t o = 0; o < from->num_operands && status == ATTN_OK; o++)
        if (from->list[o].unit == BENCH_PER_TOKEN && is_row_own(from, from->list[o].role))
            status = fetch(mirror, o, row, 1, error);
    if (status == ATTN_OK && mirror->sequence != s)
        status = fetch_sequence(mirror, s, error);
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

/* `what` is wrong, if the verdict says so. */
static void note_verdict(const reference_verdict *verdict, const char *what, strbuf *why)
{
    double off = reference_verdict_ratio(verdict);
    if (verdict->code == REFERENCE_PASS)
        return;
    strbuf_appendf(why, "%s is ", what);
    if (isfinite(off))
        strbuf_appendf(why, "off by %.3g times what the pass rule allows", off);
    else
        strbuf_append(why, "not written, or not finite");
}

/* ---- Choices --------------------------------------------------------------------------------- */

/* Labels of a sequence's keys. */
struct labels {
    const attn_sparse_dims *dims;
    const char *cache;
    const int32_t *pages;
    int64_t page_size, page_bytes;
};

static void read_label(void *ctx, int64_t j, double *label)
{
    const struct labels *l = ctx;
    const char *page = l->cache + l->pages[j / l->page_size] * l->page_bytes;
    reference_label_load(l->dims, l->page_size, page, j % l->page_size, label);
}

/* Which key lies in a slot; -1 = none of the sequence's first `count`. */
static int64_t key_of(const struct bench_inputs *here, int32_t s, int64_t count, int32_t slot)
{
    const struct bench_arrays *a = &here->arrays;
    int64_t size = here->shape.page_size, num_pages = (count + size - 1) / size;
    for (int64_t p = 0; slot >= 0 && p < num_pages; p++)
        if (a->kv_indices[a->kv_indptr[s] + p] == slot / size)
            return p * size + slot % size < count ? p * size + slot % size : -1;
    return -1;
}

/* The logits of a row's keys, and what it chose of them. */
static void judge_logits(const struct bench_inputs *here, const struct bench_call *call,
                         const struct labels *labels, int64_t row, int32_t s, double *memory,
                         reference_choice *choice)
{
    const attn_sparse_dims *dims = labels->dims;
    const attn_tensor *q = call->operands[ATTN_ROLE_INDEX_Q];
    int64_t seen = here->arrays.prefix_lens[s] + row - here->arrays.q_indptr[s] + 1;
    int64_t elements = (int64_t)dims->index_heads * dims->label_dim;
    const float *given =
        (const float *)call->operands[ATTN_ROLE_INDEX_WEIGHTS]->data + row * dims->index_heads;
    const int32_t *slots =
        (const int32_t *)call->operands[ATTN_ROLE_SPARSE_INDICES]->data + row * dims->top_k;
    int32_t count = ((const int32_t *)call->operands[ATTN_ROLE_SPARSE_COUNT]->data)[row];
    double *weights = memory + elements, *label = weights + dims->index_heads;
    double *logits = label + dims->label_dim, *bars = logits + seen;
    int64_t *keys = (int64_t *)(void *)(bars + seen);
    uint8_t *chosen = (uint8_t *)(keys + dims->top_k);
    dtype_to_double(q->dtype,
                    (const char *)q->data + row * elements * (int64_t)attn_dtype_size(q->dtype),
                    elements, memory);
    for (int32_t h = 0; h < dims->index_heads; h++)
        weights[h] = (double)given[h];
    count = count < 0 || count > dims->top_k ? 0 : count;
    for (int32_t i = 0; i < count; i++)
        keys[i] = key_of(here, s, seen, slots[i]);
    const reference_index index = {
        .heads = dims->index_heads,
        .dim = dims->label_dim,
        .top_k = dims->top_k,
        .multiplies_codes = dtype_is_fp8(dims->label_dtype),
        .kv_len = seen,
        .q = memory,
        .weights = weights,
        .sight = reference_sight_all(),
    };
    const reference_labels source = {read_label, (void *)(uintptr_t)labels};
    reference_index_logits(&index, &source, label, logits, bars);
    *choice = reference_judge_choice(logits, bars, seen, dims->top_k, keys, count, chosen);
}

/* Did a row of a layer with an indexer choose right? */
static attn_status judge_choice(struct mirror *mirror, const struct bench_call *call, int64_t row,
                                int32_t s, strbuf *why, attn_error *error)
{
    const struct bench_inputs *here = &mirror->here;
    const attn_sparse_dims *dims = &here->problem.sparse;
    const attn_tensor *cache = call->operands[ATTN_ROLE_LABEL_CACHE];
    struct labels labels = {.dims = dims,
                            .cache = cache->data,
                            .pages = here->arrays.kv_indices + here->arrays.kv_indptr[s],
                            .page_size = here->shape.page_size};
    labels.page_bytes = cache->strides[0] * (int64_t)attn_dtype_size(cache->dtype);
    int64_t keys = here->arrays.seq_lens[s];
    size_t doubles = (size_t)dims->index_heads * ((size_t)dims->label_dim + 1) +
                     (size_t)dims->label_dim + 3 * (size_t)keys + (size_t)dims->top_k;
    double *memory = malloc(doubles * sizeof *memory);
    reference_choice choice;
    char text[REFERENCE_CHOICE_TEXT];
    if (!memory)
        return host_fail(error, ATTN_OUT_OF_HOST_MEMORY, "no memory to judge a choice");
    judge_logits(here, call, &labels, row, s, memory, &choice);
    free(memory);
    if (choice.code == REFERENCE_CHOICE_RIGHT)
        return ATTN_OK;
    reference_choice_text(&choice, text);
    strbuf_appendf(why, "row %lld: %s", (long long)row, text);
    return ATTN_OK;
}

/* Judge it as attention to the chosen keys. */
static void take_choice_as_given(struct bench_call *call)
{
    static const uint32_t index[] = {ATTN_ROLE_INDEX_Q, ATTN_ROLE_INDEX_WEIGHTS, ATTN_ROLE_INDEX_K};
    for (int i = 0; i < 3; i++)
        call->operands[index[i]] = NULL;
}

static attn_status judge_row(struct mirror *mirror, const char *layout,
                             const reference_options *options, int64_t row, int32_t s, int32_t head,
                             strbuf *why, attn_error *error)
{
    struct bench_problem problem;
    struct bench_call call;
    reference_verdict verdict;
    const struct bench_inputs *here = &mirror->here;
    bench_problem_init(&problem, &here->shape, &mirror->from->device->info, layout,
                       ATTN_GRAPH_NEVER);
    bench_inputs_call(here, 0, layout, &call);
    attn_status status = ATTN_OK;
    if (call.operands[ATTN_ROLE_INDEX_Q])
        status = judge_choice(mirror, &call, row, s, why, error);
    if (status != ATTN_OK || why->length > 0 || !call.operands[ATTN_ROLE_OUT])
        return status;
    take_choice_as_given(&call);
    status = reference_judge_row(&problem.problem, &here->batch, 0, &call.args, options, row, head,
                                 &verdict, error);
    char what[64];
    snprintf(what, sizeof what, "row %lld of query head %d", (long long)row, head);
    if (status == ATTN_OK)
        note_verdict(&verdict, what, why);
    return status;
}

/* The cost of a key of a row, in keys of attention. */
static int key_cost(const struct bench_shape *shape)
{
    if (shape->kind == BENCH_SPARSE && shape->choice != BENCH_CHOICE_GIVEN)
        return INDEX_KEYS;
    return bench_shape_is_latent(shape) ? LATENT_KEYS : 1;
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
        keys += (int64_t)from->arrays.seq_lens[s] * key_cost(&from->shape);
        if (n >= LEAST_ROWS && keys > MAX_KEYS)
            break;
        status = fetch_row(mirror, row, s, error);
        if (status == ATTN_OK)
            status = judge_row(mirror, layout, &options, row, s, head, why, error);
    }
    return status;
}

/* ---- Recurrences ----------------------------------------------------------------------------- */

/* Rows of one head of a sequence: the first, the last and some others; then the state. */
static attn_status judge_head(struct mirror *mirror, const char *layout, int32_t s, int32_t head,
                              uint64_t bits, strbuf *why, attn_error *error)
{
    struct bench_problem problem;
    struct bench_call call;
    reference_linear_judgement judgement = {.sequence = s, .head = head};
    const struct bench_inputs *here = &mirror->here;
    int64_t count = here->arrays.q_indptr[s + 1] - here->arrays.q_indptr[s];
    for (int n = 0; n < REFERENCE_LINEAR_ROWS; n++)
        judgement.rows[n] =
            n == 0   ? 0
            : n == 1 ? count - 1
                     : (int64_t)mix_below((uint32_t)mix_stream(bits, (uint64_t)n), (uint64_t)count);
    bench_problem_init(&problem, &here->shape, &mirror->from->device->info, layout,
                       ATTN_GRAPH_NEVER);
    bench_inputs_call(here, 0, layout, &call);
    attn_status status =
        reference_linear_judge(&problem.problem, &here->batch, 0, &call.args, &judgement, error);
    for (int n = 0; status == ATTN_OK && n < REFERENCE_LINEAR_ROWS && why->length == 0; n++) {
        char what[96];
        snprintf(what, sizeof what, "row %lld of head %d of sequence %d",
                 (long long)judgement.rows[n], head, s);
        note_verdict(&judgement.verdicts[n], what, why);
    }
    char what[96];
    snprintf(what, sizeof what, "the state of head %d after sequence %d", head, s);
    if (status == ATTN_OK && why->length == 0)
        note_verdict(&judgement.state, what, why);
    snprintf(what, sizeof what, "the convolution's state of head %d after sequence %d", head, s);
    if (status == ATTN_OK && why->length == 0)
        note_verdict(&judgement.conv_state, what, why);
    return status;
}

static attn_status judge_heads(struct mirror *mirror, const char *layout, strbuf *why,
                               attn_error *error)
{
    const struct bench_inputs *from = mirror->from;
    attn_status status = ATTN_OK;
    int32_t batch = from->shape.batch, heads = from->shape.v_heads;
    int64_t replayed = 0;
    for (uint32_t n = 0; n < MAX_ROWS && status == ATTN_OK && why->length == 0; n++) {
        uint64_t bits = mix_stream((uint64_t)from->count.tokens, n);
        int32_t s = n == 0   ? 0
                    : n == 1 ? batch - 1
                             : (int32_t)mix_below((uint32_t)bits, (uint64_t)batch);
        int32_t head = n == 0   ? 0
                       : n == 1 ? heads - 1
                                : (int32_t)mix_below((uint32_t)(bits >> 32), (uint64_t)heads);
        replayed += bench_shape_q_len(&from->shape, s);
        if (n >= LEAST_ROWS && replayed > MAX_REPLAYED)
            break;
        if (mirror->sequence != s)
            status = fetch_sequence(mirror, s, error);
        mirror->sequence = s;
        if (status == ATTN_OK)
            status = device_synchronize(from->device, NULL, error);
        if (status == ATTN_OK)
            status = judge_head(mirror, layout, s, head, bits, why, error);
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
    attn_status status = bench_shape_is_linear(&inputs->shape)
                             ? judge_heads(&mirror, layout, why, error)
                             : judge_rows(&mirror, layout, reads_new_unquantised, why, error);
    free(operands);
    return status;
}
