/* SPDX-License-Identifier: Apache-2.0
 *
 * check_workload.c: scaling, blocks and token identities by literal examples, and the rule for
 * prefix hits against a comparison of the tokens themselves.
 */
#include "host/workload/workload.h"

#include <math.h>
#include <string.h>

#include "host/base/error.h"
#include "tests/tools/test_main.h"

#define MANY 1000000

static struct workload workload;
static host_error failure;

static void set_up(void)
{
    memset(&workload, 0, sizeof workload);
    host_error_init(&failure);
}

static void tear_down(void)
{
    workload_finish(&workload);
}

static trace_request make_request(int64_t input_length, int64_t output_length,
                                  const int64_t *hash_ids)
{
    return (trace_request){
        .input_length = input_length,
        .output_length = output_length,
        .num_hash_ids = hash_ids ? (input_length + 511) / 512 : 0,
        .hash_ids = hash_ids,
        .line = input_length,
    };
}

static void make_workload(trace_request *requests, int64_t count, double length_scale)
{
    struct trace trace = {
        .path = "some.trace", .block_tokens = 512, .num_requests = count, .requests = requests};
    attn_status status = workload_init(
        &workload, &trace,
        &(workload_params){.length_scale = length_scale, .max_context_len = MANY}, &failure.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&failure));
    ck_assert_int_eq(workload.num_requests, count);
}

static void expect_block_token(int64_t request, int64_t position, int64_t hash_id, int64_t offset)
{
    token_key key = workload_token_key(&workload, request, position);
    ck_assert(token_key_equal(key, token_key_of_block(hash_id, offset)));
}

static void expect_own_token(int64_t request, int64_t position)
{
    token_key key = workload_token_key(&workload, request, position);
    ck_assert(token_key_equal(key, token_key_of_request(request, position)));
}

/* ---- Scaling --------------------------------------------------------------------------------- */

static const struct {
    double scale;
    int64_t input, output, scaled_input, scaled_output, block;
} scalings[] = {
    {1, 6758, 500, 6758, 500, 512}, {0.1, 6758, 500, 675, 50, 51},
    {0.1, 9, 9, 1, 1, 51},          {0.1, 10, 10, 1, 1, 51},
    {0.1, 29, 0, 2, 0, 51},         {0.5, 1, 1, 1, 1, 256},
    {0.5, 3, 7, 1, 3, 256},         {2.5, 3, 1, 7, 2, 1280},
    {0.29, 100, 100, 28, 28, 148}, /* 0.29 * 100 is 28.999999999999996 in IEEE double */
    {0.001, 1999, 1, 1, 1, 1},      {1e-300, 5, 5, 1, 1, 1},
};

LOOP_OF(tokens, lengths_are_scaled, 0, COUNT(scalings))
{
    trace_request request = make_request(scalings[_i].input, scalings[_i].output, NULL);
    make_workload(&request, 1, scalings[_i].scale);
    ck_assert_int_eq(workload.requests[0].input_length, scalings[_i].scaled_input);
    ck_assert_int_eq(workload.requests[0].output_length, scalings[_i].scaled_output);
    ck_assert_int_eq(workload.block_size, scalings[_i].block);
}

TEST_OF(tokens, sums)
{
    trace_request requests[] = {make_request(10, 5, NULL), make_request(7, 0, NULL),
                                make_request(3, 1, NULL), make_request(1, 2, NULL)};
    make_workload(requests, 4, 1);
    ck_assert_int_eq(workload.input_tokens, 21);
    ck_assert_int_eq(workload.decode_tokens, 4 + 0 + 0 + 1);
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

TEST_OF(tokens, blocks_unscaled)
{
    static const int64_t ids[] = {70, 71, 72}, full[] = {70, 80};
    trace_request requests[] = {make_request(1025, 4, ids), make_request(1024, 4, full)};
    make_workload(requests, 2, 1);
    ck_assert_int_eq(workload_shareable_length(&workload, 0), 1025);
    ck_assert_int_eq(workload_shareable_length(&workload, 1), 1024);
    expect_block_token(0, 0, 70, 0);
    expect_block_token(0, 511, 70, 511);
    expect_block_token(0, 512, 71, 0);
    expect_block_token(0, 1023, 71, 511);
    expect_block_token(0, 1024, 72, 0);
    expect_own_token(0, 1025); /* generated, though the block goes on */
    expect_block_token(1, 0, 70, 0);
    expect_block_token(1, 512, 80, 0);
    expect_own_token(1, 1024);
}

TEST_OF(tokens, blocks_scaled)
{
    static const int64_t ids[] = {5, 0, 3};
    trace_request requests[] = {make_request(1040, 100, ids), make_request(1000, 100, ids)};
    make_workload(requests, 2, 0.1); /* blocks of 51; 104 and 100 tokens */
    ck_assert_int_eq(workload_shareable_length(&workload, 0), 104);
    ck_assert_int_eq(workload_shareable_length(&workload, 1), 100);
    expect_block_token(0, 50, 5, 50);
    expect_block_token(0, 51, 0, 0);
    expect_block_token(0, 101, 0, 50);
    expect_block_token(0, 102, 3, 0);
    expect_block_token(0, 103, 3, 1);
    expect_own_token(0, 104);
    expect_block_token(1, 50, 5, 50);
    expect_block_token(1, 51, 0, 0);
    expect_block_token(1, 99, 0, 48);
    expect_own_token(1, 100);
}

/* 19 blocks of 1 token fit into the input, but the trace knows 10 blocks. */
TEST_OF(tokens, blocks_end_with_the_hash_ids)
{
    static const int64_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    trace_request request = make_request(5120, 1, ids);
    make_workload(&request, 1, 0.0039);
    ck_assert_int_eq(workload.block_size, 1);
    ck_assert_int_eq(workload.requests[0].input_length, 19);
    ck_assert_int_eq(workload_shareable_length(&workload, 0), 10);
    expect_block_token(0, 9, 10, 0);
    expect_own_token(0, 10);
}

TEST_OF(tokens, no_hash_ids_no_blocks)
{
    trace_request requests[] = {make_request(2000, 1, NULL), make_request(2000, 1, NULL)};
    make_workload(requests, 2, 1);
    ck_assert_int_eq(workload_shareable_length(&workload, 1), 0);
    expect_own_token(0, 0);
    expect_own_token(1, 1999);
    ck_assert(
        !token_key_equal(workload_token_key(&workload, 0, 7), workload_token_key(&workload, 1, 7)));
}

TEST_OF(tokens, keys_of_both_kinds_differ)
{
    ck_assert(!token_key_equal(token_key_of_block(3, 4), token_key_of_request(3, 4)));
    ck_assert(!token_key_equal(token_key_of_block(0, 0), token_key_of_request(0, 0)));
    ck_assert(!token_key_equal(token_key_of_block(0, 0), token_key_of_request(1, 0)));
    ck_assert(!token_key_equal(token_key_of_block(9007199254740991, 0),
                               token_key_of_block(9007199254740990, 0)));
}

TEST_OF(tokens, key_runs)
{
    static const int64_t ids[] = {5, 6};
    trace_request request = make_request(600, 3, ids);
    token_key keys[95];
    make_workload(&request, 1, 1);
    workload_token_keys(&workload, 0, 510, 95, keys);
    for (int i = 0; i < 95; i++)
        ck_assert(token_key_equal(keys[i], workload_token_key(&workload, 0, 510 + i)));
    workload_token_keys(&workload, 0, 0, 0, NULL);
}

/* ---- Prefix hits ----------------------------------------------------------------------------- */

/* The rule of workload.h. */
static int64_t hit_by_rule(int64_t request, int64_t page_size)
{
    int64_t longest = 0;
    for (int64_t earlier = 0; earlier < request; earlier++) {
        const workload_request *r = &workload.requests[request], *e = &workload.requests[earlier];
        int64_t k = 0;
        while (k < r->num_blocks && k < e->num_blocks && r->hash_ids[k] == e->hash_ids[k])
            k++;
        int64_t shared = k * workload.block_size,
                covered = workload_shareable_length(&workload, earlier);
        shared = shared < covered ? shared : covered;
        shared = shared < r->input_length - 1 ? shared : r->input_length - 1;
        longest = shared > longest ? shared : longest;
    }
    return longest / page_size * page_size;
}

/* What a cache of whole pages finds by comparing tokens, generated ones included: all that an
 * earlier request ever had keys and values of. */
static int64_t hit_by_tokens(int64_t request, int64_t page_size)
{
    int64_t longest = 0, most = workload.requests[request].input_length - 1;
    for (int64_t earlier = 0; earlier < request; earlier++) {
        const workload_request *e = &workload.requests[earlier];
        int64_t cached = e->input_length + (e->output_length > 0 ? e->output_length - 1 : 0);
        int64_t n = 0;
        while (n < most && n < cached &&
               token_key_equal(workload_token_key(&workload, request, n),
                               workload_token_key(&workload, earlier, n)))
            n++;
        n = n / page_size * page_size;
        longest = n > longest ? n : longest;
    }
    return longest;
}

TEST_OF(hits, hits_literal)
{
    static const int64_t a[] = {0, 1, 2}, b[] = {0, 1, 3}, c[] = {1, 1}, d[] = {0, 1};
    trace_request requests[] = {
        make_request(1100, 9, a), /* the first: nothing to find */
        make_request(1536, 9, b), /* blocks 0 and 1 */
        make_request(700, 9, c),  /* another first block */
        make_request(1024, 9, d), /* all of it, but one token must be computed */
        make_request(1023, 9, d), /* the first 511 tokens of block 1 */
        make_request(1536, 9, b), /* three blocks of request 1, less the last token */
        make_request(700, 9, c),  /* request 2 again, its tail too */
    };
    static const int64_t hits_1[] = {0, 1024, 0, 1023, 1022, 1535, 699};
    static const int64_t hits_16[] = {0, 1024, 0, 1008, 1008, 1520, 688};
    static const int64_t hits_100[] = {0, 1000, 0, 1000, 1000, 1500, 600};
    make_workload(requests, 7, 1);
    for (int64_t r = 0; r < 7; r++) {
        ck_assert_int_eq(hit_by_rule(r, 1), hits_1[r]);
        ck_assert_int_eq(hit_by_rule(r, 16), hits_16[r]);
        ck_assert_int_eq(hit_by_rule(r, 100), hits_100[r]);
    }
}

static uint32_t random_state;

static int64_t random_below(int64_t count)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (int64_t)(random_state >> 8) % count;
}

LOOP_OF(hits, hits_by_rule_and_by_tokens, 0, 40)
{
    static const double scales[] = {1, 0.1, 0.02, 0.0039};
    int64_t ids[12][4], total = 0;
    trace_request requests[12];
    random_state = (uint32_t)_i + 1;
    for (int r = 0; r < 12; r++) {
        int64_t chunk = 0; /* as in published traces, an id stands for all that came before, too */
        for (int i = 0; i < 4; i++)
            ids[r][i] = chunk = chunk * 2 + random_below(2);
        int64_t length = random_below(3) ? 1 + random_below(2048) : 512 * (1 + random_below(4));
        requests[r] = make_request(length, random_below(300), ids[r]);
    }
    make_workload(requests, 12, scales[_i % 4]);
    for (int64_t r = 0; r < 12; r++)
        for (int64_t page_size = 1; page_size < 70; page_size += 1 + page_size / 2) {
            int64_t hit = hit_by_rule(r, page_size);
            ck_assert_int_eq(hit, hit_by_tokens(r, page_size));
            total += hit;
        }
    ck_assert_int_gt(total, 0);
}

/* ---- Limits ---------------------------------------------------------------------------------- */

TEST_OF(limits, max_requests)
{
    trace_request requests[] = {make_request(10, 5, NULL), make_request(7, 3, NULL),
                                make_request(99, 1, NULL)};
    struct trace trace = {
        .path = "some.trace", .block_tokens = 512, .num_requests = 3, .requests = requests};
    static const int64_t limits[] = {0, 1, 2, 3, 4}, counts[] = {3, 1, 2, 3, 3};
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(workload_init(&workload, &trace,
                                       &(workload_params){.length_scale = 1,
                                                          .max_requests = limits[i],
                                                          .max_context_len = MANY},
                                       NULL),
                         ATTN_OK);
        ck_assert_int_eq(workload.num_requests, counts[i]);
        workload_finish(&workload);
    }
    /* What is not taken is not checked either. */
    ck_assert_int_eq(
        workload_init(
            &workload, &trace,
            &(workload_params){.length_scale = 1, .max_requests = 2, .max_context_len = 20}, NULL),
        ATTN_OK);
    ck_assert_int_eq(workload.input_tokens, 17);
    ck_assert_int_eq(workload.decode_tokens, 6);
}

TEST_OF(limits, max_context_len)
{
    trace_request requests[] = {make_request(60, 40, NULL), make_request(200, 30, NULL)};
    struct trace trace = {
        .path = "some.trace", .block_tokens = 512, .num_requests = 2, .requests = requests};
    ck_assert_int_eq(workload_init(&workload, &trace,
                                   &(workload_params){.length_scale = 1, .max_context_len = 230},
                                   &failure.base),
                     ATTN_OK);
    workload_finish(&workload);
    ck_assert_int_eq(workload_init(&workload, &trace,
                                   &(workload_params){.length_scale = 1, .max_context_len = 229},
                                   &failure.base),
                     ATTN_CONFIG_ERROR);
    ck_assert_str_eq(host_error_text(&failure),
                     "some.trace:200: request 1: got 200 input + 30 output tokens at length_scale "
                     "1, accepted: max_context_len = 229 in total (workload.too_long = skip or "
                     "cut takes the trace without it, or cut)");
    ck_assert_ptr_null(workload.requests);
    ck_assert_int_eq(workload_init(&workload, &trace,
                                   &(workload_params){.length_scale = 0.5, .max_context_len = 229},
                                   NULL),
                     ATTN_OK);
}

static void make_with_limit(int64_t limit, workload_too_long too_long)
{
    static const int64_t ids[] = {1, 2};
    static trace_request requests[3];
    requests[0] = make_request(60, 40, NULL);
    requests[1] = make_request(700, 30, ids);
    requests[2] = make_request(10, 500, NULL);
    static const struct trace trace = {
        .path = "some.trace", .block_tokens = 512, .num_requests = 3, .requests = requests};
    attn_status status = workload_init(
        &workload, &trace,
        &(workload_params){.length_scale = 1, .max_context_len = limit, .too_long = too_long},
        &failure.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&failure));
}

TEST_OF(limits, too_long_is_skipped)
{
    make_with_limit(510, WORKLOAD_SKIP);
    ck_assert_int_eq(workload.num_requests, 2);
    ck_assert_int_eq(workload.skipped, 1);
    ck_assert_int_eq(workload.cut, 0);
    ck_assert_int_eq(workload.too_long_line, 700);
    ck_assert_int_eq(workload.input_tokens, 70);
    ck_assert_int_eq(workload.requests[1].input_length, 10);
    ck_assert_int_eq(workload.requests[1].line, 10);
    expect_own_token(1, 3);
}

TEST_OF(limits, too_long_is_cut)
{
    make_with_limit(400, WORKLOAD_CUT);
    ck_assert_int_eq(workload.num_requests, 3);
    ck_assert_int_eq(workload.skipped, 0);
    ck_assert_int_eq(workload.cut, 2);
    ck_assert_int_eq(workload.requests[1].input_length, 370);
    ck_assert_int_eq(workload.requests[1].output_length, 30);
    ck_assert_int_eq(workload_shareable_length(&workload, 1), 370);
    ck_assert_int_eq(workload.requests[2].input_length, 1);
    ck_assert_int_eq(workload.requests[2].output_length, 399);
    ck_assert_int_eq(workload.input_tokens, 60 + 370 + 1);
    workload_finish(&workload);
    make_with_limit(1, WORKLOAD_CUT);
    ck_assert_int_eq(workload.requests[2].input_length, 1);
    ck_assert_int_eq(workload.requests[2].output_length, 0);
}

TEST_OF(limits, all_are_too_long)
{
    trace_request request = make_request(60, 40, NULL);
    struct trace trace = {
        .path = "some.trace", .block_tokens = 512, .num_requests = 1, .requests = &request};
    const workload_params params = {
        .length_scale = 1, .max_context_len = 99, .too_long = WORKLOAD_SKIP};
    ck_assert_int_eq(workload_init(&workload, &trace, &params, &failure.base), ATTN_CONFIG_ERROR);
    ck_assert_str_eq(
        host_error_text(&failure),
        "some.trace: all 1 requests were left out as longer than max_context_len = 99, "
        "accepted: at least one that fits");
    ck_assert_ptr_null(workload.requests);
}

TEST_OF(limits, bad_arguments)
{
    trace_request request = make_request(1, 1, NULL);
    struct trace trace = {
        .path = "some.trace", .block_tokens = 512, .num_requests = 1, .requests = &request};
    const double scales[] = {0, -1, (double)NAN, (double)INFINITY, 1e7};
    for (int i = 0; i < 5; i++) {
        host_error_init(&failure);
        ck_assert_int_eq(
            workload_init(&workload, &trace,
                          &(workload_params){.length_scale = scales[i], .max_context_len = MANY},
                          &failure.base),
            ATTN_CONFIG_ERROR);
        ck_assert_ptr_nonnull(strstr(host_error_text(&failure), "length_scale: got "));
    }
    ck_assert_int_eq(
        workload_init(
            &workload, &trace,
            &(workload_params){.length_scale = 1, .max_requests = -1, .max_context_len = MANY},
            &failure.base),
        ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&failure), "max_requests: got -1"));
}

TESTS("workload", .set_up = set_up, .tear_down = tear_down);
