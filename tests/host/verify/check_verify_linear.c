/* SPDX-License-Identifier: Apache-2.0
 *
 * check_verify_linear.c: verification by replay against outputs that whole forwards of the oracle
 * give.
 *
 * What is right must pass, whatever the layer is; what is wrong in one place must fail in the row
 * of that place and no other; and nothing may depend on how the work is cut or on what is kept.
 */
#include "host/verify/linear.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "host/base/dtype.h"
#include "host/base/error.h"
#include "host/verify/state_history.h"
#include "tests/tools/linear_run_fixture.h"
#include "tests/tools/test_main.h"

static struct linear_verifier_params params;

static void set_up(int number, uint32_t num_threads)
{
    linear_run_init(number, num_threads);
    params = (struct linear_verifier_params){.model = run.model,
                                             .workload = &run.workload,
                                             .generator = &run.generator,
                                             .threads = run.threads};
}

/* ---- Steps and outputs ----------------------------------------------------------------------- */

/* What a backend gave: [request][position][head][dimension], of one layer. */
static double numbers[RUN_REQUESTS][RUN_LONG_LEN][RUN_MAX_HEADS][RUN_MAX_DIM];

static void keep_numbers(const struct forward *f, int64_t request, int64_t first, int64_t from)
{
    int32_t v_dim = f->result.v_head_dim;
    for (int64_t t = from; t < f->result.num_rows; t++)
        for (int32_t h = 0; h < f->result.num_heads; h++)
            memcpy(numbers[request][first + t][h],
                   f->result.out + (t * f->result.num_heads + h) * v_dim,
                   (size_t)v_dim * sizeof(double));
}

static void compute_all(int32_t layer)
{
    for (int64_t r = 0; r < RUN_REQUESTS; r++) {
        struct forward *f = forward_create(r, layer, 0, RUN_MAX_LEN, NULL, false);
        keep_numbers(f, r, 0, 0);
        forward_destroy(f);
    }
}

enum { MAX_SEQUENCES = 4, MAX_ROWS = 256 };

/* One step and its output tensor. */
static struct verify_sequence sequences[MAX_SEQUENCES];
static int32_t sampled[MAX_ROWS];
static struct verify_step step;
static uint8_t out_bytes[MAX_ROWS * RUN_MAX_HEADS * RUN_MAX_DIM * 4];
static attn_tensor out;

/* Sequences of (request, prefix_len, rows); every `every`-th row is sampled. */
static void set_step(const int64_t rows[][3], int count, int every, bool compact)
{
    int64_t row = 0;
    int32_t num_sampled = 0;
    for (int s = 0; s < count; s++) {
        sequences[s] = (struct verify_sequence){.request = rows[s][0],
                                                .prefix_len = rows[s][1],
                                                .num_rows = rows[s][2],
                                                .first_row = row,
                                                .first_sampled = num_sampled};
        for (int32_t t = 0; t < rows[s][2]; t++)
            if ((rows[s][1] + t) % every == 0)
                sampled[num_sampled++] = t;
        sequences[s].num_sampled = num_sampled - sequences[s].first_sampled;
        row += rows[s][2];
    }
    step = (struct verify_step){.mode = ATTN_MODE_EXTEND,
                                .num_sequences = count,
                                .sequences = sequences,
                                .sampled = sampled,
                                .compact = compact};
}

static void store_out(attn_dtype dtype)
{
    int32_t heads = run.group->linear->num_v_heads, v_dim = run.group->linear->head_v_dim;
    out = (attn_tensor){.struct_size = sizeof out,
                        .dtype = dtype,
                        .ndim = 3,
                        .shape = {MAX_ROWS, heads, v_dim},
                        .strides = {RUN_MAX_HEADS * RUN_MAX_DIM, RUN_MAX_DIM, 1},
                        .data = out_bytes};
    memset(out_bytes, 0xff, sizeof out_bytes);
    for (int64_t s = 0; s < step.num_sequences; s++)
        for (int64_t n = 0; n < sequences[s].num_sampled; n++) {
            int64_t place = sequences[s].first_sampled + n, t = sampled[place];
            int64_t row = step.compact ? place : sequences[s].first_row + t;
            for (int32_t h = 0; h < heads; h++)
                for (int32_t d = 0; d < v_dim; d++)
                    dtype_store(dtype, out_bytes, (row * RUN_MAX_HEADS + h) * RUN_MAX_DIM + d,
                                numbers[sequences[s].request][sequences[s].prefix_len + t][h][d]);
        }
}

static void check(struct linear_verifier *verifier, int32_t layer, struct verify_result *result)
{
    HOST_ERROR(error);
    attn_status status = linear_verifier_check(verifier, &step, layer, &out, result, &error.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&error));
}

static struct linear_verifier *create(void)
{
    struct linear_verifier *verifier;
    ck_assert_int_eq(linear_verifier_create(&params, &verifier, NULL), ATTN_OK);
    return verifier;
}

/* The step by a separate verifier. */
static struct verify_result judge(int32_t layer, attn_dtype dtype)
{
    struct verify_result result = {0};
    struct linear_verifier *verifier = create();
    store_out(dtype);
    check(verifier, layer, &result);
    linear_verifier_destroy(verifier);
    return result;
}

static const int64_t whole_step[][3] = {{1, 8, 12}, {0, 0, 37}, {2, 0, 9}};

/* ---- Right ----------------------------------------------------------------------------------- */

LOOP_OF(right, right_outputs_pass, 0, RUN_MODELS)
{
    set_up(_i, 2);
    for (int32_t layer = 0; layer < RUN_LAYERS; layer++) {
        compute_all(layer);
        for (int every = 1; every < 5; every += 3) {
            set_step(whole_step, 3, every, every > 1);
            struct verify_result result = judge(layer, ATTN_BF16);
            ck_assert_msg(result.rows_failed == 0, "%s", result.first_failure);
            ck_assert_str_eq(result.first_failure, "");
            ck_assert_double_gt(result.max_abs_error, 0);
            result = judge(layer, ATTN_F32);
            ck_assert_int_eq(result.rows_failed, 0);
            ck_assert_double_lt(result.max_rel_error, 1e-6);
        }
    }
    linear_run_finish();
}

/* A run: chunks of the prompt, then token by token. Each row is replayed once, and what is not
 * sampled is caught up with. */
LOOP_OF(right, a_run_goes_on, 0, RUN_MODELS)
{
    set_up(_i, 2);
    struct linear_verifier *verifier = create();
    struct verify_result result = {0};
    static const int64_t chunks[][3] = {{0, 0, 16}, {0, 16, 16}, {0, 32, 5}};
    compute_all(1);
    for (int n = 0; n < 3; n++) {
        set_step(&chunks[n], 1, 1, false);
        store_out(ATTN_BF16);
        check(verifier, 1, &result);
    }
    ck_assert_int_eq(linear_verifier_stats(verifier).rows_replayed, 37);
    for (int64_t position = 37; position < RUN_MAX_LEN - 1; position++) {
        const int64_t rows[][3] = {{0, position, 1}, {1, position, 1}};
        set_step(rows, 2, 3, true);
        store_out(ATTN_BF16);
        check(verifier, 1, &result);
    }
    ck_assert_msg(result.rows_failed == 0, "%s", result.first_failure);
    /* The last multiple of 3 below 63 is 60. */
    ck_assert_int_eq(linear_verifier_stats(verifier).rows_replayed, 2 * 61);
    linear_verifier_destroy(verifier);
    linear_run_finish();
}

/* Going back is starting again. */
LOOP_OF(right, earlier_positions, 0, RUN_MODELS)
{
    static const int64_t rows[][3] = {{0, 30, 4}};
    set_up(_i, 1);
    struct linear_verifier *verifier = create();
    struct verify_result result = {0};
    compute_all(0);
    for (int64_t n = 1; n < 4; n++) {
        set_step(rows, 1, 1, false);
        store_out(ATTN_BF16);
        check(verifier, 0, &result);
        ck_assert_msg(result.rows_failed == 0, "%s", result.first_failure);
        ck_assert_int_eq(linear_verifier_stats(verifier).rows_replayed, 34 * n);
    }
    linear_verifier_destroy(verifier);
    linear_run_finish();
}

/* ---- Wrong ----------------------------------------------------------------------------------- */

static void names(const struct verify_result *result, int64_t request, int64_t position,
                  int32_t layer, int32_t head, int32_t dimension)
{
    char text[128];
    snprintf(text, sizeof text,
             "request %lld, position %lld, layer %d, head %d, dimension %d: ", (long long)request,
             (long long)position, layer, head, dimension);
    ck_assert_msg(strncmp(result->first_failure, text, strlen(text)) == 0, "%s, not %s",
                  result->first_failure, text);
}

LOOP_OF(wrong, one_element, 0, RUN_MODELS)
{
    set_up(_i, 2);
    int32_t head = run.group->linear->num_v_heads - 1,
            dimension = run.group->linear->head_v_dim - 1;
    compute_all(1);
    for (int compact = 0; compact < 2; compact++) {
        set_step(whole_step, 3, 1, compact);
        for (int64_t position = 0; position < 37; position += 12) {
            double *element = &numbers[0][position][head][dimension], kept = *element;
            double off = 0.05; /* and more than the row is large: bf16 differs by less than 1 % */
            for (int32_t d = 0; d <= dimension; d++)
                off += fabs(numbers[0][position][head][d]);
            *element = kept + off;
            struct verify_result result = judge(1, ATTN_BF16);
            ck_assert_int_eq(result.rows_failed, 1);
            names(&result, 0, position, 1, head, dimension);
            ck_assert_double_eq_tol(result.max_abs_error, off, 0.02 * (off + fabs(kept)));
            *element = (double)NAN;
            result = judge(1, ATTN_BF16);
            ck_assert_int_eq(result.rows_failed, 1);
            names(&result, 0, position, 1, head, dimension);
            *element = kept;
        }
    }
    linear_run_finish();
}

/* Rows of a sequence that went on from another state than its own. */
static struct verify_result judge_from(const reference_states *before, int64_t first)
{
    static const int64_t later[][3] = {{0, 48, 12}};
    struct forward *f = forward_create(0, 0, first, RUN_MAX_LEN - first, before, false);
    keep_numbers(f, 0, first, 0);
    forward_destroy(f);
    set_step(later, 1, 1, false);
    return judge(0, ATTN_BF16);
}

/* A lost prefix, the state of another request, one token left out: the rows from 12 to 24 tokens
 * later show it, in the heads that remember. */
LOOP_OF(wrong, wrong_states, 0, RUN_MODELS)
{
    set_up(_i, 1);
    compute_all(0);
    struct forward *own = forward_create(0, 0, 0, 36, NULL, false);
    struct forward *other = forward_create(1, 0, 0, 36, NULL, false);
    struct forward *less = forward_create(0, 0, 0, 35, NULL, false);
    struct verify_result result = judge_from(&own->states, 36);
    bool remembers = run.group->linear->family != ATTN_LINEAR_SHORT_CONV;
    ck_assert_msg(result.rows_failed == 0 || run.group->linear->state_dtype == ATTN_BF16, "%s",
                  result.first_failure);
    ck_assert_int_eq(judge_from(NULL, 36).rows_failed, remembers ? 12 : 0);
    ck_assert_int_eq(judge_from(&other->states, 36).rows_failed, remembers ? 12 : 0);
    ck_assert_int_ge(judge_from(&less->states, 36).rows_failed, remembers ? 6 : 0);
    forward_destroy(own);
    forward_destroy(other);
    forward_destroy(less);
    linear_run_finish();
}

/* ---- Rounded states -------------------------------------------------------------------------- */

/* What goes wrong after the token at FAULT_AT of a run, in the state of each head. */
enum fault {
    NO_FAULT,
    OTHER_SLOT,    /* it is that of the request before */
    TOKEN_LOST,    /* it is what it was before the token */
    DECAYED_TWICE, /* the head's mean decay was taken once more */
    NUM_FAULTS
};
enum { FAULT_AT = 200, PROMPT = 150 };

static int64_t state_elements(const attn_linear_dims *dims)
{
    return (int64_t)dims->head_k_dim * dims->head_v_dim;
}

static void decay_again(const struct forward *f)
{
    const attn_linear_dims *dims = run.group->linear;
    for (int32_t h = 0; h < dims->num_v_heads; h++) {
        double decay = exp(-generator_linear_rate(&run.generator, run.group, 0, h));
        for (int64_t n = 0; n < state_elements(dims); n++)
            f->states.entries[0].state[h * state_elements(dims) + n] *= decay;
    }
}

static void copy_state(const struct forward *to, const reference_states *from)
{
    const attn_linear_dims *dims = run.group->linear;
    memcpy(to->states.entries[0].state, from->entries[0].state,
           (size_t)(dims->num_v_heads * state_elements(dims)) * sizeof(double));
}

static void do_wrong(enum fault fault, const struct forward *f, const struct forward *before)
{
    struct forward *other;
    if (fault == DECAYED_TWICE)
        decay_again(f);
    if (fault == TOKEN_LOST)
        copy_state(f, &before->states);
    if (fault != OTHER_SLOT)
        return;
    other = forward_create(1, 0, 0, FAULT_AT + 1, NULL, false);
    copy_state(f, &other->states);
    forward_destroy(other);
}

/* Rows that failed, by where they are. */
struct failed {
    int before, at_once, later; /* before the fault, in the 8 rows after it, after those */
};

/* Where a step that begins at `first` ends: the prompt in pieces that other prompts left room for,
 * then token by token. */
static int64_t step_end(int64_t first, int64_t prompt, int64_t chunk)
{
    int64_t end = (first / chunk + 1) * chunk - first % 3;
    if (first >= prompt)
        return first + 1;
    return end <= first ? first + 1 : end < prompt ? end : prompt;
}

/* Request 0 in steps, each from the states in the model's dtype that the one before it left, judged
 * as if states were stored in `judged_as`, after every step or after none. */
static struct failed run_in_steps(int64_t length, int64_t prompt, int64_t chunk, enum fault fault,
                                  attn_dtype judged_as, bool known, attn_dtype out_dtype)
{
    attn_linear_dims *dims = (attn_linear_dims *)(uintptr_t)run.group->linear;
    attn_dtype stored_as = dims->state_dtype;
    struct linear_verifier *verifier = create();
    struct state_history history;
    struct forward *before = NULL;
    struct failed failed = {0};
    ck_assert_int_eq(state_history_init(&history, 2, length, NULL), ATTN_OK);
    for (int64_t first = 0; first < length;) {
        int64_t end = step_end(first, prompt, chunk);
        const int64_t rows[][3] = {{0, first, end - first}};
        const struct state_write write = {first > 0, 1, end};
        struct verify_result result = {0};
        struct forward *f =
            forward_create(0, 0, first, end - first, before ? &before->states : NULL, false);
        keep_numbers(f, 0, first, 0);
        if (end - 1 == FAULT_AT)
            do_wrong(fault, f, before);
        set_step(rows, 1, 1, false);
        sequences[0].stored = known ? state_history_of(&history, write.from) : NULL;
        store_out(out_dtype);
        dims->state_dtype = judged_as;
        check(verifier, 0, &result);
        dims->state_dtype = stored_as;
        *(first <= FAULT_AT       ? &failed.before
          : first <= FAULT_AT + 8 ? &failed.at_once
                                  : &failed.later) += (int)result.rows_failed;
        state_history_write(&history, &write);
        if (before)
            forward_destroy(before);
        before = f;
        first = end;
    }
    forward_destroy(before);
    state_history_finish(&history);
    linear_verifier_destroy(verifier);
    return failed;
}

/* A state in bf16 is rounded wherever it is stored. What comes of that passes, many times over; but
 * not in a model whose states are in fp32. */
TEST_OF(rounded, rounded_states)
{
    set_up(RUN_SMALL_STATE, 1);
    for (uint64_t seed = 0; seed < 8; seed++) {
        linear_run_seed(seed);
        struct failed failed =
            run_in_steps(RUN_MAX_LEN, 37, RUN_CHUNK, NO_FAULT, ATTN_BF16, true, ATTN_F32);
        ck_assert_int_eq(failed.before, 0);
        failed = run_in_steps(RUN_MAX_LEN, 37, RUN_CHUNK, NO_FAULT, ATTN_F32, true, ATTN_F32);
        ck_assert_int_ge(failed.before, 15);
    }
    linear_run_finish();
}

static const int64_t chunks[] = {16, 45, 64, 151};

/* Hundreds of tokens and as many roundings, of outputs that are rounded or not; but only where the
 * verifier knows of them. */
LOOP_OF(rounded, rounded_for_long, 0, 8)
{
    attn_dtype out_dtype = _i % 3 ? ATTN_BF16 : ATTN_F32;
    int64_t chunk = chunks[_i / 2 % 4];
    set_up(RUN_MODELS + _i % 2, 1);
    linear_run_seed((uint64_t)_i);
    struct failed failed =
        run_in_steps(RUN_LONG_LEN, PROMPT, chunk, NO_FAULT, ATTN_BF16, true, out_dtype);
    ck_assert_int_eq(failed.before + failed.at_once + failed.later, 0);
    failed = run_in_steps(FAULT_AT, PROMPT, chunk, NO_FAULT, ATTN_BF16, false, out_dtype);
    ck_assert_int_ge(failed.before, 15);
    linear_run_finish();
}

/* What is not rounding still shows, in the rows after it. */
LOOP_OF(rounded, wrong_among_roundings, 0, 2 * (NUM_FAULTS - 1))
{
    enum fault fault = (enum fault)(1 + _i % (NUM_FAULTS - 1));
    set_up(RUN_MODELS + _i / (NUM_FAULTS - 1), 1);
    for (uint64_t seed = 0; seed < 4; seed++) {
        linear_run_seed(seed);
        struct failed failed = run_in_steps(FAULT_AT + 32, PROMPT, 45, fault, ATTN_BF16, true,
                                            seed % 2 ? ATTN_BF16 : ATTN_F32);
        ck_assert_int_eq(failed.before, 0);
        ck_assert_int_ge(failed.at_once, fault == OTHER_SLOT ? 8 : fault == TOKEN_LOST ? 6 : 4);
        ck_assert_int_ge(failed.later, fault == DECAYED_TWICE ? 0 : 10);
    }
    linear_run_finish();
}

/* A request that is computed anew stores its state elsewhere: what was replayed is of no use, and
 * the rows are judged as by a verifier that has not seen it. */
TEST_OF(rounded, stored_elsewhere)
{
    static const int64_t begin[][3] = {{0, 0, 24}}, then[][3] = {{0, 24, 8}},
                         row[][3] = {{0, 32, 4}};
    static const uint8_t stores[][5] = {{0, 0, 0x80, 0x80}, {0, 0, 0, 0x80}, {0, 0, 0x80, 0}};
    static const int64_t replayed[] = {4, 36, 4};
    char failures[3][VERIFY_FAILURE_TEXT];
    int32_t head = 0; /* that forgets the least */
    set_up(RUN_SMALL_STATE, 1);
    compute_all(0);
    for (int32_t h = 1; h < run.group->linear->num_v_heads; h++)
        if (generator_linear_rate(&run.generator, run.group, 0, h) <
            generator_linear_rate(&run.generator, run.group, 0, head))
            head = h;
    numbers[0][33][head][0] += 50;
    for (int n = 0; n < 3; n++) {
        struct linear_verifier *verifier = create();
        struct verify_result result = {0};
        set_step(begin, 1, 1, false);
        store_out(ATTN_F32);
        check(verifier, 0, &result);
        set_step(then, 1, 1, false);
        sequences[0].stored = stores[0];
        store_out(ATTN_F32);
        check(verifier, 0, &result);
        ck_assert_int_eq(linear_verifier_stats(verifier).rows_replayed, 32);
        set_step(row, 1, 1, false);
        sequences[0].stored = stores[n];
        store_out(ATTN_F32);
        check(verifier, 0, &result);
        ck_assert_int_eq(linear_verifier_stats(verifier).rows_replayed, 32 + replayed[n]);
        names(&result, 0, 33, 0, head, 0);
        memcpy(failures[n], result.first_failure, sizeof failures[n]);
        struct verify_result alone = {0};
        struct linear_verifier *another = create();
        check(another, 0, &alone);
        ck_assert_str_eq(alone.first_failure, result.first_failure);
        linear_verifier_destroy(another);
        linear_verifier_destroy(verifier);
    }
    ck_assert_str_ne(failures[0], failures[1]);
    ck_assert_str_ne(failures[0], failures[2]);
    linear_run_finish();
}

/* ---- Which rows ------------------------------------------------------------------------------ */

/* Rows that are not sampled are not looked at; nothing to look at is no work. */
TEST_OF(wrong, only_sampled_rows)
{
    static const int32_t rows[] = {11, 3, 4, 0};
    set_up(RUN_DELTA, 2);
    compute_all(0);
    set_step(whole_step, 3, 1, false);
    sequences[0].num_sampled = 2;
    sequences[1].num_sampled = 0;
    sequences[2].first_sampled = 2;
    sequences[2].num_sampled = 2;
    step.sampled = rows;
    memcpy(sampled, rows, sizeof rows);
    struct linear_verifier *verifier = create();
    struct verify_result result = {0};
    store_out(ATTN_BF16); /* the other rows are NaN */
    check(verifier, 0, &result);
    ck_assert_msg(result.rows_failed == 0, "%s", result.first_failure);
    ck_assert_int_eq(linear_verifier_stats(verifier).rows_replayed, 20 + 5);
    numbers[2][4][3][2] += 2;
    numbers[2][4][5][1] += 2;
    numbers[2][0][1][7] += 2;
    store_out(ATTN_BF16);
    check(verifier, 0, &result);
    ck_assert_int_eq(result.rows_failed, 2);
    names(&result, 2, 4, 0, 3, 2);
    for (int s = 0; s < 3; s++)
        sequences[s].num_sampled = 0;
    out.data = NULL;
    int64_t replayed = linear_verifier_stats(verifier).rows_replayed;
    check(verifier, 0, &result);
    step.num_sequences = 0;
    check(verifier, 0, &result);
    ck_assert_int_eq(linear_verifier_stats(verifier).rows_replayed, replayed);
    ck_assert_int_eq(result.rows_failed, 2);
    linear_verifier_destroy(verifier);
    linear_verifier_destroy(NULL);
    linear_run_finish();
}

/* ---- Verifications --------------------------------------------------------------------------- */

/* A verification of `rows` rows of requests 0 and 1 from `root` on, of which the first `accepted`
 * stay; what is right, and every row sampled. */
static void set_verification(int32_t layer, int64_t root, int64_t rows, int32_t accepted)
{
    const int64_t both[][3] = {{0, root, rows}, {1, root, rows}};
    run.root = root;
    run.accepted = accepted;
    compute_all(layer);
    set_step(both, 2, 1, true);
    step.mode = ATTN_MODE_TARGET_VERIFY;
    for (int s = 0; s < 2; s++) {
        struct draft_tree *tree = &sequences[s].tree;
        tree->committed = accepted;
        for (int64_t t = 0; t < rows; t++) {
            tree->depth[t] = tree->path[t] = (uint8_t)t;
            tree->parent[t] = (uint8_t)(t > 0 ? t - 1 : 0);
        }
    }
}

static struct verify_result check_by(struct linear_verifier *verifier, int32_t layer,
                                     attn_dtype dtype)
{
    struct verify_result result = {0};
    store_out(dtype);
    check(verifier, layer, &result);
    return result;
}

/* The sampled rows of each sequence: `row` alone. */
static void sample_one(int32_t row)
{
    for (int s = 0; s < 2; s++) {
        sequences[s].first_sampled = s;
        sequences[s].num_sampled = 1;
        sampled[s] = row;
    }
}

/* Drafts that are turned down are replayed from the last row that stays, which what comes after
 * goes on from, too: each row once. */
LOOP_OF(drafts, rejected_drafts, 0, RUN_MODELS)
{
    set_up(_i, 2);
    struct linear_verifier *verifier = create();
    set_verification(1, 40, 12, 2);
    struct verify_result result = check_by(verifier, 1, ATTN_F32);
    ck_assert_msg(result.rows_failed == 0, "%s", result.first_failure);
    ck_assert_double_lt(result.max_rel_error, 1e-6);
    ck_assert_int_eq(linear_verifier_stats(verifier).rows_replayed, 2 * 52);
    set_verification(1, 42, 6, 6);
    result = check_by(verifier, 1, ATTN_F32);
    ck_assert_msg(result.rows_failed == 0, "%s", result.first_failure);
    ck_assert_int_eq(linear_verifier_stats(verifier).rows_replayed, 2 * 58);
    /* A draft alone: what stays before it is caught up with. */
    set_verification(1, 50, 6, 3);
    sample_one(4);
    result = check_by(verifier, 1, ATTN_F32);
    ck_assert_msg(result.rows_failed == 0, "%s", result.first_failure);
    ck_assert_int_eq(linear_verifier_stats(verifier).rows_replayed, 2 * (58 + 5 + 2));
    /* An earlier one, which the replay has passed, though not its position. */
    set_verification(1, 40, 20, 2);
    sample_one(17);
    result = check_by(verifier, 1, ATTN_F32);
    ck_assert_msg(result.rows_failed == 0, "%s", result.first_failure);
    ck_assert_int_eq(linear_verifier_stats(verifier).rows_replayed, 2 * (65 + 58));
    linear_verifier_destroy(verifier);
    linear_run_finish();
}

/* A draft that is computed as a token that is generated; an element of one; a state that is not
 * that of the row before. */
LOOP_OF(drafts, wrong_drafts, 0, RUN_MODELS)
{
    set_up(_i, 1);
    struct linear_verifier *verifier = create();
    set_verification(0, 40, 6, 2);
    run.accepted = 6;
    compute_all(0);
    struct verify_result result = check_by(verifier, 0, ATTN_BF16);
    ck_assert_int_eq(result.rows_failed, 2 * 4);
    ck_assert_ptr_nonnull(
        strstr(result.first_failure, "request 0, position 42, rejected draft 2, layer 0, "));
    set_verification(0, 40, 6, 2);
    for (int32_t d = 0; d < run.group->linear->head_v_dim; d++)
        numbers[1][43][0][d] = 2 * numbers[1][43][0][d] + 1;
    result = check_by(verifier, 0, ATTN_BF16);
    ck_assert_int_eq(result.rows_failed, 1);
    ck_assert_ptr_nonnull(
        strstr(result.first_failure, "request 1, position 43, rejected draft 3, layer 0, "));
    set_verification(0, 40, 6, 2);
    run.accepted = 4; /* draft 4 follows tokens that are generated */
    compute_all(0);
    sample_one(4);
    result = check_by(verifier, 0, ATTN_BF16);
    ck_assert_int_eq(result.rows_failed, 2);
    set_verification(0, 40, 6, 2);
    sample_one(4);
    result = check_by(verifier, 0, ATTN_BF16);
    ck_assert_msg(result.rows_failed == 0, "%s", result.first_failure);
    linear_verifier_destroy(verifier);
    linear_run_finish();
}

/* ---- Same result, however it is computed ----------------------------------------------------- */

static void same(const struct verify_result *a, const struct verify_result *b)
{
    ck_assert_int_eq(a->rows_failed, b->rows_failed);
    ck_assert_double_eq(a->max_abs_error, b->max_abs_error);
    ck_assert_double_eq(a->max_rel_error, b->max_rel_error);
    ck_assert_str_eq(a->first_failure, b->first_failure);
}

/* Several requests, of which each step has two, some of them wrong. */
static struct verify_result run_all(struct linear_verifier *verifier)
{
    struct verify_result result = {0};
    for (int64_t position = 0; position + 4 <= RUN_MAX_LEN; position += 4) {
        int64_t r = position / 4 % RUN_REQUESTS;
        const int64_t rows[][3] = {{r, position, 4}, {(r + 1) % RUN_REQUESTS, position, 4}};
        set_step(rows, 2, 1, false);
        for (int32_t layer = 0; layer < RUN_LAYERS; layer++) {
            store_out(ATTN_F32); /* of layer 0: in layer 1 all of it is wrong */
            check(verifier, layer, &result);
            ck_assert_uint_le(linear_verifier_stats(verifier).kept_bytes,
                              params.max_kept_bytes ? params.max_kept_bytes : UINT64_MAX);
        }
    }
    return result;
}

LOOP_OF(same, bounded_memory, 0, RUN_MODELS)
{
    set_up(_i, 2);
    compute_all(0);
    numbers[1][9][1][3] += 3;
    struct linear_verifier *verifier = create();
    struct verify_result kept = run_all(verifier);
    struct linear_verifier_stats stats = linear_verifier_stats(verifier);
    uint64_t one = stats.kept_bytes / (RUN_REQUESTS * RUN_LAYERS);
    ck_assert_int_ge(kept.rows_failed, 30);
    ck_assert_uint_eq(stats.kept_bytes, one * RUN_REQUESTS * RUN_LAYERS);
    /* At most as many rows as there are, in each layer. */
    ck_assert_int_le(stats.rows_replayed, RUN_LAYERS * RUN_REQUESTS * RUN_MAX_LEN);
    int64_t fewest = stats.rows_replayed;
    linear_verifier_destroy(verifier);
    const uint64_t bounds[] = {1, one, 2 * one, 2 * one + one / 2, 5 * one, 6 * one};
    for (size_t n = 0; n < sizeof bounds / sizeof *bounds; n++) {
        params.max_kept_bytes = bounds[n];
        verifier = create();
        struct verify_result result = run_all(verifier);
        stats = linear_verifier_stats(verifier);
        same(&kept, &result);
        ck_assert_uint_le(stats.max_kept_bytes, bounds[n] < one ? one : bounds[n]);
        ck_assert_uint_ge(stats.max_kept_bytes, one);
        if (bounds[n] < 5 * one)
            ck_assert_int_gt(stats.rows_replayed, fewest);
        if (bounds[n] == 6 * one)
            ck_assert_int_eq(stats.rows_replayed, fewest);
        linear_verifier_destroy(verifier);
    }
    linear_run_finish();
}

/* A request twice in a step is replayed for each, the second from where the first came to. */
TEST_OF(same, one_request_twice)
{
    static const int64_t before[][3] = {{0, 0, 8}};
    static const int64_t rows[][3] = {{0, 10, 4}, {0, 20, 5}, {0, 2, 5}};
    set_up(RUN_DELTA, 1);
    compute_all(0);
    numbers[0][3][2][1] += 2;
    struct linear_verifier *verifier = create();
    struct verify_result result = {0};
    set_step(before, 1, 8, false);
    store_out(ATTN_BF16);
    check(verifier, 0, &result);
    set_step(rows, 3, 1, false);
    store_out(ATTN_BF16);
    check(verifier, 0, &result);
    ck_assert_int_eq(result.rows_failed, 1);
    names(&result, 0, 3, 0, 2, 1);
    ck_assert_int_eq(linear_verifier_stats(verifier).rows_replayed, 25 + 7);
    linear_verifier_destroy(verifier);
    linear_run_finish();
}

LOOP_OF(same, any_number_of_threads, 0, RUN_MODELS)
{
    set_up(_i, 1);
    compute_all(0);
    set_step(whole_step, 3, 1, false);
    for (int64_t r = 0; r < RUN_REQUESTS; r++)
        for (int64_t t = 10; t < RUN_MAX_LEN; t++)
            for (int h = 0; h < RUN_MAX_HEADS; h++)
                numbers[r][t][h][h % 4] += 1 + (double)t + h;
    struct verify_result one = judge(0, ATTN_F32);
    ck_assert_int_eq(one.rows_failed, 10 + 27);
    names(&one, 1, 10, 0, 0, 0);
    threads_destroy(run.threads);
    ck_assert_int_eq(threads_create(3, &run.threads, NULL), ATTN_OK);
    params.threads = run.threads;
    for (int n = 0; n < 5; n++) {
        struct verify_result three = judge(0, ATTN_F32);
        same(&one, &three);
    }
    linear_run_finish();
}

TEST_OF(wrong, refusals)
{
    struct linear_verifier *verifier;
    HOST_ERROR(error);
    set_up(RUN_DELTA, 1);
    compute_all(0);
    set_step(whole_step, 3, 1, false);
    ck_assert_int_eq(judge(0, ATTN_BF16).rows_failed, 0);
    ((attn_linear_dims *)(uintptr_t)run.group->linear)->num_v_heads = 4;
    struct verify_result result = {0};
    verifier = create();
    ck_assert_int_eq(linear_verifier_check(verifier, &step, 0, &out, &result, &error.base),
                     ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(host_error_text(&error), "3 k heads"));
    linear_verifier_destroy(verifier);
    linear_run_finish();
}

TESTS("verify_linear");
