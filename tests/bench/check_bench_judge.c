/* SPDX-License-Identifier: Apache-2.0
 *
 * check_bench_judge.c: bench/judge_shim.c: right rows pass, each wrong one is counted and found,
 * for whole batches with grouped heads, causal or not, whatever the number of threads.
 */
#include "bench/judge_shim.h"
#include "host/base/dtype.h"
#include "tests/tools/test_main.h"

#include <math.h>
#include <string.h>

enum { SEQS = 2, Q_HEADS = 4, KV_HEADS = 2, QUERIES = 19, DIM = 8 };
enum { Q = SEQS * Q_HEADS * QUERIES * DIM, KV = SEQS * KV_HEADS * QUERIES * DIM };

static uint16_t q[Q], k[KV], v[KV], right[Q], wrong[Q];
static judge_verdict verdicts[JUDGE_MAX_OUTPUTS];
static judge *j;
static const double sm_scale = 0.5;

static double number(const uint16_t *x, int64_t i)
{
    return dtype_load(ATTN_BF16, x, i);
}

static void fill(uint16_t *x, int64_t count, int64_t step)
{
    for (int64_t i = 0; i < count; i++)
        dtype_store(ATTN_BF16, x, i, (double)(i * step % 37 - 18) / 9);
}

/* A row by the textbook; `head` of all sequences. */
static void attend(int32_t head, int32_t query, int32_t num_keys)
{
    int64_t at = ((int64_t)head * QUERIES + query) * DIM;
    int64_t keys = (int64_t)(head / (Q_HEADS / KV_HEADS)) * QUERIES * DIM;
    double total = 0, sums[DIM] = {0};
    for (int32_t n = 0; n < num_keys; n++) {
        double score = 0;
        for (int32_t d = 0; d < DIM; d++)
            score += number(q, at + d) * number(k, keys + (int64_t)n * DIM + d);
        double weight = exp(sm_scale * score);
        total += weight;
        for (int32_t d = 0; d < DIM; d++)
            sums[d] += weight * number(v, keys + (int64_t)n * DIM + d);
    }
    for (int32_t d = 0; d < DIM; d++)
        dtype_store(ATTN_BF16, right, at + d, sums[d] / total);
}

static judge_batch make_batch(int32_t causal)
{
    fill(q, Q, 7);
    fill(k, KV, 11);
    fill(v, KV, 5);
    for (int32_t head = 0; head < SEQS * Q_HEADS; head++)
        for (int32_t query = 0; query < QUERIES; query++)
            attend(head, query, causal ? query + 1 : QUERIES);
    memcpy(wrong, right, sizeof wrong);
    return (judge_batch){.struct_size = sizeof(judge_batch),
                         .dtype = ATTN_BF16,
                         .num_seqs = SEQS,
                         .num_q_heads = Q_HEADS,
                         .num_kv_heads = KV_HEADS,
                         .num_queries = QUERIES,
                         .num_keys = QUERIES,
                         .head_dim = DIM,
                         .causal = causal,
                         .num_outputs = 2,
                         .sm_scale = (float)sm_scale,
                         .q = q,
                         .k = k,
                         .v = v,
                         .outputs = {wrong, right}};
}

static void open_judge(void)
{
    j = judge_create(3);
    ck_assert(j != NULL);
}

static void close_judge(void)
{
    judge_destroy(j);
}

LOOP_OF(judge, right_rows_pass, 0, 2)
{
    judge_batch batch = make_batch(_i);
    ck_assert_int_eq(judge_rows(j, &batch, verdicts), ATTN_OK);
    for (int n = 0; n < 2; n++) {
        ck_assert_int_eq(verdicts[n].rows, SEQS * Q_HEADS * QUERIES);
        ck_assert_int_eq(verdicts[n].failed, 0);
        ck_assert(verdicts[n].worst > 0 && verdicts[n].worst <= 1);
    }
}

/* Those of a batch that is causal are no rows of one that is not, but for the last of each head. */
TEST_OF(judge, causal_is_another_thing)
{
    judge_batch batch = make_batch(1);
    batch.causal = 0;
    ck_assert_int_eq(judge_rows(j, &batch, verdicts), ATTN_OK);
    ck_assert_int_ge(verdicts[0].failed, SEQS * Q_HEADS * (QUERIES - 1) / 2);
    ck_assert_int_le(verdicts[0].failed, SEQS * Q_HEADS * (QUERIES - 1));
}

TEST_OF(judge, wrong_rows_are_found)
{
    judge_batch batch = make_batch(0);
    int64_t large = (((int64_t)1 * Q_HEADS + 2) * QUERIES + 13) * DIM + 5;
    dtype_store(ATTN_BF16, wrong, 3, number(right, 3) + 0.5);
    dtype_store(ATTN_BF16, wrong, large, number(right, large) - 2);
    ck_assert_int_eq(judge_rows(j, &batch, verdicts), ATTN_OK);
    ck_assert_int_eq(verdicts[0].failed, 2);
    ck_assert_int_eq(verdicts[1].failed, 0);
    ck_assert_int_eq(verdicts[0].seq, 1);
    ck_assert_int_eq(verdicts[0].head, 2);
    ck_assert_int_eq(verdicts[0].query, 13);
    ck_assert_int_eq(verdicts[0].dimension, 5);
    ck_assert(fabs(verdicts[0].error - 2) < 0.1 && verdicts[0].worst > 10);
    ck_assert(verdicts[0].worst == verdicts[0].error / verdicts[0].bar);

    dtype_store(ATTN_BF16, wrong, 3, (double)NAN);
    ck_assert_int_eq(judge_rows(j, &batch, verdicts), ATTN_OK);
    ck_assert_int_eq(verdicts[0].failed, 2);
    ck_assert(isinf(verdicts[0].worst) && verdicts[0].query == 0 && verdicts[0].head == 0);
}

/* One more query than there are keys, say. */
TEST_OF(judge, bad_batches_are_refused)
{
    judge_batch batch = make_batch(1);
    batch.num_keys--;
    ck_assert_int_eq(judge_rows(j, &batch, verdicts), ATTN_INVALID_ARGUMENT);
    ck_assert_str_eq(judge_message(j), "causal batch of 19 queries and 18 keys: accepted as many");
    batch = make_batch(0);
    batch.num_kv_heads = 3;
    ck_assert_int_eq(judge_rows(j, &batch, verdicts), ATTN_INVALID_ARGUMENT);
    batch = make_batch(0);
    batch.dtype = ATTN_FP8_E4M3;
    ck_assert_int_eq(judge_rows(j, &batch, verdicts), ATTN_INVALID_ARGUMENT);
    batch = make_batch(0);
    batch.num_outputs = JUDGE_MAX_OUTPUTS + 1;
    ck_assert_int_eq(judge_rows(j, &batch, verdicts), ATTN_INVALID_ARGUMENT);
    batch = make_batch(0);
    batch.struct_size--;
    ck_assert_int_eq(judge_rows(j, &batch, verdicts), ATTN_INVALID_ARGUMENT);
    ck_assert(judge_false_alarm() > 0 && judge_false_alarm() <= 1e-9);
}

GROUP(judge, .set_up = open_judge, .tear_down = close_judge);
TESTS("bench judge");
