/* SPDX-License-Identifier: Apache-2.0
 *
 * check_timeline.c: when requests get their tokens on both clocks, by hand: steps in flight,
 * arrivals, a retraction, steps that are lost.
 */
#include "host/run/timeline.h"

#include "tests/tools/test_main.h"

/* Request 0: 5 in, 3 out. 1: 4 in, 1 out. 2: 6 in, none out. */
static workload_request requests[] = {
    {.input_length = 5, .output_length = 3, .arrival_us = 0},
    {.input_length = 4, .output_length = 1, .arrival_us = 2},
    {.input_length = 6, .output_length = 0, .arrival_us = 3},
};
static struct workload workload = {.num_requests = 3, .requests = requests};
static struct report report;
static struct timeline *timeline;

enum { START = 1000000 };

static void begin(bool arrivals)
{
    const struct timeline_params params = {.workload = &workload,
                                           .report = &report,
                                           .arrivals = arrivals,
                                           .max_seqs = 2,
                                           .max_in_flight = 2,
                                           .start_ns = START};
    report_init(&report);
    ck_assert_int_eq(timeline_create(&params, &timeline, NULL), ATTN_OK);
}

static void end(void)
{
    timeline_destroy(timeline);
    report_finish(&report);
}

static void submit(int32_t count, const struct scheduler_seq *seqs, int64_t at)
{
    struct scheduler_step step = {.num_seqs = count, .seqs = seqs};
    for (int32_t s = 0; s < count; s++)
        step.num_tokens += seqs[s].num_new;
    timeline_submit(timeline, &step, 100, START + at);
}

static void submit_one(int64_t request, int32_t prefix, int32_t new, int64_t at)
{
    const struct scheduler_seq seq = {.request = request, .prefix_len = prefix, .num_new = new};
    submit(1, &seq, at);
}

static void confirm(int64_t took, int64_t at)
{
    ck_assert_int_eq(timeline_confirm(timeline, took, START + at, NULL), ATTN_OK);
}

static void assert_times(const struct report_times *times, size_t count, int64_t virtual_ns,
                         int64_t wall_ns)
{
    ck_assert_uint_eq(times[REPORT_VIRTUAL].count, count);
    ck_assert_uint_eq(times[REPORT_WALL].count, count);
    if (count == 0)
        return;
    ck_assert_int_eq(times[REPORT_VIRTUAL].ns[count - 1], virtual_ns);
    ck_assert_int_eq(times[REPORT_WALL].ns[count - 1], wall_ns);
}

/* The first token with the last prompt row; the two others on average. */
TEST_OF(tokens, tokens_of_a_request)
{
    begin(false);
    submit_one(0, 0, 3, 50);
    confirm(10, 100);
    assert_times(report.ttft, 0, 0, 0);
    submit_one(0, 3, 2, 110);
    confirm(20, 200);
    assert_times(report.ttft, 1, 30, 150);
    submit_one(0, 5, 1, 210);
    confirm(4, 220);
    assert_times(report.tpot, 0, 0, 0);
    submit_one(0, 6, 1, 230);
    confirm(6, 240);
    assert_times(report.tpot, 1, 5, 20);
    ck_assert_uint_eq(report.series.count, 4);
    end();
}

/* One output token is no interval, and none is no token; a prefix that was found is no step. */
TEST_OF(tokens, few_tokens)
{
    const struct scheduler_seq both[] = {{.request = 1, .prefix_len = 3, .num_new = 1},
                                         {.request = 2, .prefix_len = 0, .num_new = 6}};
    begin(false);
    submit(2, both, 5);
    confirm(7, 9);
    assert_times(report.ttft, 1, 7, 4);
    assert_times(report.tpot, 0, 0, 0);
    ck_assert_int_eq(report.series.bins[0].running, 2);
    ck_assert_int_eq(report.series.bins[0].kv_tokens, 100);
    ck_assert_int_eq(report.series.bins[0].prefill, 7);
    end();
}

/* Two steps in flight: each begins, on the virtual clock, when the one before has ended. */
TEST_OF(tokens, steps_in_flight)
{
    begin(false);
    submit_one(0, 0, 5, 10);
    submit_one(1, 0, 4, 20);
    confirm(100, 300);
    confirm(50, 400);
    ck_assert_int_eq(report.ttft[REPORT_VIRTUAL].ns[0], 100);
    assert_times(report.ttft, 2, 50, 380);
    end();
}

/* workload.clock = wall: the wait before the first step counts, on that clock alone. */
TEST_OF(tokens, from_its_arrival)
{
    begin(true);
    submit_one(1, 0, 4, 5000);
    confirm(30, 6000);
    assert_times(report.ttft, 1, 30, 4000);
    end();
}

/* What is computed again brings no token again. */
TEST_OF(tokens, retracted)
{
    begin(false);
    submit_one(0, 0, 5, 0);
    confirm(10, 10);
    submit_one(0, 5, 1, 10);
    confirm(10, 20);
    submit_one(0, 0, 6, 20);
    confirm(10, 30);
    assert_times(report.ttft, 1, 10, 10);
    submit_one(0, 6, 1, 30);
    confirm(10, 40);
    assert_times(report.ttft, 1, 10, 10);
    assert_times(report.tpot, 1, 15, 15);
    end();
}

/* A lost step has given nothing, nor has it begun a request. */
TEST_OF(tokens, lost_steps)
{
    begin(false);
    submit_one(0, 0, 5, 0);
    submit_one(1, 0, 4, 1);
    timeline_forget(timeline);
    ck_assert_uint_eq(report.series.count, 0);
    submit_one(0, 0, 5, 100);
    submit_one(1, 0, 4, 110);
    confirm(10, 130);
    confirm(10, 140);
    assert_times(report.ttft, 2, 10, 30);
    ck_assert_int_eq(report.ttft[REPORT_WALL].ns[0], 30);
    end();
}

TESTS("timeline");
