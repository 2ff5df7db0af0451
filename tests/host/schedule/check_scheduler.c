/* SPDX-License-Identifier: Apache-2.0
 *
 * check_scheduler.c: literal schedules, and random workloads in pools that are too small for them,
 * one step at a time.
 */
#include "host/schedule/scheduler.h"

#include <string.h>

#include "attn_problem.h"
#include "tests/host/schedule/scheduler_fixture.h"

/* ---- Literal schedules ----------------------------------------------------------------------- */

/* Two requests of 7 tokens, page size 1: rows [1..7], [8..14]; one decode step: 15, 16; the first
 * ends, one more step: second row ends 14, 16, 17; seq_lens [7,7] -> [8,8] -> [-,9]. */
TEST_OF(core, worked_example)
{
    create_with("7+2 7+3");
    const struct scheduler_step *step = next_run();
    ck_assert_uint_eq(step->mode, ATTN_MODE_EXTEND);
    expect_seq(step, 0, 0, 0, 7);
    expect_seq(step, 1, 1, 0, 7);
    for (int64_t i = 0; i < 14; i++)
        ck_assert_int_eq(step->pools[SCHEDULER_ALL].out_cache_loc[i], i + 1);
    scheduler_complete(scheduler);
    step = next_run();
    ck_assert_uint_eq(step->mode, ATTN_MODE_DECODE);
    expect_seq(step, 0, 0, 7, 1);
    expect_seq(step, 1, 1, 7, 1);
    ck_assert_int_eq(step->pools[SCHEDULER_ALL].out_cache_loc[0], 15);
    ck_assert_int_eq(step->pools[SCHEDULER_ALL].out_cache_loc[1], 16);
    scheduler_complete(scheduler);
    step = next_run();
    ck_assert_int_eq(step->num_seqs, 1);
    expect_seq(step, 0, 1, 8, 1);
    const int32_t *row = request_table_row(scheduler_request_table(scheduler, SCHEDULER_ALL), 2);
    for (int32_t j = 0; j < 7; j++)
        ck_assert_int_eq(row[j], 8 + j);
    ck_assert_int_eq(row[7], 16);
    ck_assert_int_eq(row[8], 17);
    scheduler_complete(scheduler);
    expect_done();
    const struct scheduler_counts *counts = expect_counts();
    ck_assert_int_eq(counts->pools[SCHEDULER_ALL].peak, 16);
    ck_assert_int_eq(counts->steps, 3);
}

TEST_OF(core, a_prompt_is_cut_into_chunks)
{
    params.chunked_prefill_size = 7;
    params.page_size = 4;
    create_with("10+1 6+0");
    ck_assert_int_eq(scheduler_max_tokens(scheduler), 11);
    schedule("extend 0:0+7");
    const struct scheduler_step *step = next_run();
    expect_seq(step, 0, 0, 7, 3);
    ck_assert_int_eq(step->seqs[0].table_changed[SCHEDULER_ALL], 7);
    expect_seq(step, 1, 1, 0, 4);
    scheduler_complete(scheduler);
    schedule("extend 1:4+2");
    expect_done();
    ck_assert_int_eq(expect_counts()->decode, 0);
}

/* Prompts of 5, 4, 5 and 3 tokens into steps of 8: whole, in order. */
TEST_OF(core, whole_prompts_are_not_cut)
{
    params.chunked_prefill_size = 8;
    params.whole_prompts = true;
    create_with("5+0 4+0 5+0 3+0");
    schedule("extend 0:0+5");
    schedule("extend 1:0+4");
    schedule("extend 2:0+5 3:0+3");
    expect_done();
    const struct scheduler_request longer = {.input_length = 9};
    ck_assert_int_eq(scheduler_add(scheduler, &longer, &failure.base), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&failure), "up to chunked_prefill_size = 8"));
}

TEST_OF(core, mixed_steps_extend_first)
{
    params.chunked_prefill_size = 5;
    params.mixed = true;
    create_with("4+9 11+3");
    schedule("extend 0:0+4 1:0+1");
    schedule("mixed 1:1+5 0:4+1");
    run_out();
}

/* Blocks of 5 tokens. The first step computes both prompts; the second request's block is the
 * first's then, and its own copy is gone. A block that is not yet complete is not visible. */
TEST_OF(core, a_prefix_computed_twice_is_kept_once)
{
    source.block_size = 5;
    params.chunked_prefill_size = 20;
    params.max_running_requests = 2;
    add_requests("12+1:ab 12+1:ab 12+1:abz");
    source.requests[2].num_whole = 2;
    create();
    schedule("extend 0:0+12 1:0+8");
    const struct scheduler_step *step = next_run();
    expect_seq(step, 0, 1, 8, 4);
    ck_assert_int_eq(step->seqs[0].table_changed[SCHEDULER_ALL], 0);
    for (int32_t j = 0; j < 5; j++) /* now the first request's */
        ck_assert_int_eq(model.table[SCHEDULER_ALL][2][j], 1 + j);
    ck_assert_int_eq(model.table[SCHEDULER_ALL][2][5], 18); /* still its own */
    expect_seq(step, 1, 2, 10, 2);
    scheduler_complete(scheduler);
    expect_done();
    ck_assert_int_eq(expect_counts()->prefix_hit, 10);
}

/* Blocks of 11 tokens, pages of 8: three requests have 33 tokens in common, of which 32 are whole
 * pages, and are worth a step; the two that differ in the third block have 16, and are not. */
TEST_OF(hits, requests_wait_for_a_prefix)
{
    static const struct {
        const char *second;
        int32_t hit; /* of the second request, which waits for that; 0 = it does not wait */
    } cases[] = {{"abcd", 32}, {"abxd", 0}, {"xbcd", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_up();
        source.block_size = 11;
        params.page_size = 8;
        params.await_prefix = true;
        add_to_source(50, 1, "abc");
        add_to_source(50, 1, cases[i].second);
        create_with("50+1:abcd");
        const struct scheduler_step *step = next_run();
        ck_assert_int_eq(step->num_seqs, cases[i].hit ? 1 : 2);
        scheduler_complete(scheduler);
        step = next_run();
        expect_seq(step, 0, cases[i].hit ? 1 : 2, 32, 18);
        ck_assert_int_eq(step->num_seqs, cases[i].hit ? 2 : 1);
        scheduler_complete(scheduler);
        expect_done();
        tear_down();
    }
}

/* In pages of 12 two requests that part after 33 tokens have 24 in whole pages, which are not worth a step. */
TEST_OF(hits, a_prefix_in_few_pages_is_not_awaited)
{
    source.block_size = 11;
    params.page_size = 12;
    params.await_prefix = true;
    create_with("50+1:abcd 50+1:abce");
    schedule("extend 0:0+50 1:0+50");
    expect_done();
}

/* The last piece of a prompt, too, is awaited, though the step has room for a row more. */
TEST_OF(hits, a_prefix_in_pieces_is_awaited)
{
    source.block_size = 11;
    params.page_size = 8;
    params.chunked_prefill_size = 50;
    params.await_prefix = true;
    create_with("99+1:abcdefgh 99+1:abcdefgh");
    schedule("extend 0:0+50");
    schedule("extend 0:50+49");
    schedule("extend 1:88+11");
    expect_done();
}

/* A pool of 60 slots for two requests that want 50 each: the younger is retracted, prefills again
 * the rows it had, and decodes on. */
TEST_OF(core, the_youngest_is_retracted_and_resumes)
{
    params.num_pages = 61;
    create_with("10+41 10+41");
    const struct scheduler_step *step;
    for (int i = 0; i < 21; i++) {
        step = next_run();
        ck_assert_int_eq(step->num_seqs, 2);
        scheduler_complete(scheduler);
    }
    do {
        step = next_run();
        scheduler_complete(scheduler);
    } while (step->num_seqs == 2);
    expect_seq(step, 0, 0, 30, 1);
    while (step->mode == ATTN_MODE_DECODE) {
        step = next_run();
        scheduler_complete(scheduler);
    }
    expect_seq(step, 0, 1, 0, 30);
    schedule("decode 1:30+1");
    const struct scheduler_counts *counts = run_out();
    ck_assert_int_eq(counts->retractions, 1);
    ck_assert_int_eq(counts->recomputed, 30);
    ck_assert_int_eq(counts->prefill, 50);
    ck_assert_int_eq(counts->pools[SCHEDULER_ALL].peak, 60);
}

/* 20 decode rows are kept free for each that runs, the newcomer included, or what it has left: of
 * 60 slots the first takes 10 and a reserve of 20, so the second, with 25 and 20, has to wait until
 * the first has ended, and no request is ever retracted. With 25 and 5 it would start at once. */
LOOP_OF(core, a_request_starts_with_a_reserve, 0, 2)
{
    params.num_pages = 61;
    add_to_source(10, 41, "");
    add_to_source(25, _i ? 6 : 21, "");
    create();
    const struct scheduler_step *step = next_run();
    ck_assert_int_eq(step->num_seqs, _i ? 2 : 1);
    scheduler_complete(scheduler);
    const struct scheduler_counts *counts = run_out();
    ck_assert_int_eq(counts->retractions, 0);
    ck_assert_int_eq(counts->steps, _i ? 41 : 41 + 21);
}

TEST_OF(core, wall_clock_waits_for_arrivals)
{
    int64_t now_us = 0;
    params.now_us = read_clock;
    params.clock_context = &now_us;
    add_requests("3+2 4+1");
    source.requests[0].arrival_us = 100;
    source.requests[1].arrival_us = 250;
    create();
    const struct scheduler_step *step;
    int64_t wake_us = -1;
    ck_assert_int_eq(scheduler_next(scheduler, &step, &wake_us), SCHEDULER_WAIT);
    ck_assert_int_eq(wake_us, 100);
    now_us = 100;
    schedule("extend 0:0+3");
    now_us = 249;
    schedule("decode 0:3+1");
    ck_assert_int_eq(scheduler_next(scheduler, &step, &wake_us), SCHEDULER_WAIT);
    ck_assert_int_eq(wake_us, 250);
    now_us = 251;
    schedule("extend 1:0+4");
    expect_done();
}

TEST_OF(core, requests_may_come_later)
{
    create();
    expect_done();
    add_to_source(5, 1, "");
    ck_assert_int_eq(add(0), ATTN_OK);
    ck_assert_int_eq(run_out()->finished, 1);
}

/* The first is in pieces; rows of its last one are no longer reserved when the second, which takes
 * all that is left, is looked at. */
TEST_OF(core, a_last_piece_leaves_room_for_the_next_request)
{
    params.chunked_prefill_size = 8;
    params.num_pages = 17;
    create_with("10+1 6+1");
    schedule("extend 0:0+8");
    schedule("extend 0:8+2 1:0+6");
    expect_done();
}

TEST_OF(core, what_runs_is_held)
{
    create_with("10+3");
    ck_assert_int_eq(scheduler_leaked(scheduler, SCHEDULER_ALL), 0);
    schedule("extend 0:0+10");
    ck_assert_int_eq(scheduler_leaked(scheduler, SCHEDULER_ALL), 10);
    run_all();
    ck_assert_int_eq(scheduler_leaked(scheduler, SCHEDULER_ALL), 0);
}

static const struct {
    int32_t chunk;
    int64_t tokens;
} most_tokens[] = {{-1, 1024},   {0, 1024},    {1, 5},       {1019, 1023},
                   {1020, 1024}, {1022, 1024}, {1024, 1024}, {5000, 1024}};

/* A chunk and a decode row of each request, or all slots of the pool. */
LOOP_OF(limits, the_longest_step_is_known, 0, COUNT(most_tokens))
{
    params.chunked_prefill_size = most_tokens[_i].chunk;
    create();
    ck_assert_int_eq(scheduler_max_tokens(scheduler), most_tokens[_i].tokens);
}

/* ---- Hits ------------------------------------------------------------------------------------ */

/* floor(min(k * b', L' - 1) / page_size) * page_size, k being the longest run of whole blocks from
 * 0 that one earlier request also had whole. */
static int64_t hit_by_the_rule(int64_t request)
{
    int64_t longest = 0, input = source.requests[request].input;
    for (int64_t i = 0; i < request; i++) {
        int64_t k = 0;
        while (k < source.requests[i].num_whole && k < source.requests[request].num_whole &&
               source.requests[i].hash_ids[k] == source.requests[request].hash_ids[k])
            k++;
        longest = k > longest ? k : longest;
    }
    int64_t tokens = longest * source.block_size;
    tokens = tokens < input - 1 ? tokens : input - 1;
    return tokens / params.page_size * params.page_size;
}

/* One request at a time and no eviction: the hits follow from the lengths and blocks alone. */
LOOP_OF(hits, hits_follow_the_rule, 0, 12)
{
    params.page_size = page_sizes[_i % 3];
    params.chunked_prefill_size = chunk_sizes[_i / 3];
    params.max_running_requests = 1;
    params.num_pages = MAX_SLOTS / params.page_size;
    source.block_size = _i % 2 ? 11 : 5;
    draws = (uint64_t)_i << 32;
    draw_source(30, 5);
    create();
    int64_t expected = 0;
    for (int64_t i = 0; i < source.num_requests; i++)
        expected += hit_by_the_rule(i);
    ck_assert_int_gt(expected, 0);
    const struct scheduler_counts *counts = run_out();
    ck_assert_int_eq(counts->prefix_hit, expected);
    ck_assert_int_eq(counts->recomputed, 0);
    ck_assert_int_eq(counts->retractions, 0);
}

/* The last token of a prompt is computed even if all of it is cached. */
LOOP_OF(hits, a_prompt_is_never_hit_whole, 1, 9)
{
    source.block_size = 4;
    params.page_size = _i;
    params.max_running_requests = 1;
    create_with("8+1:ab 8+1:ab");
    ck_assert_int_eq(run_out()->prefix_hit, 7 / _i * _i);
}

/* Pages of 5 tokens. What a request publishes without a copy elsewhere changes nothing in its row.
 */
TEST_OF(core, the_table_changes_where_it_grows)
{
    source.block_size = params.page_size = params.chunked_prefill_size = 5;
    create_with("17+1:abc");
    for (int32_t length = 0; length < 15; length += 5) {
        const struct scheduler_step *step = next_run();
        expect_seq(step, 0, 0, length, 5);
        ck_assert_int_eq(step->seqs[0].table_changed[SCHEDULER_ALL], length);
        scheduler_complete(scheduler);
    }
    const struct scheduler_step *step = next_run();
    expect_seq(step, 0, 0, 15, 2);
    ck_assert_int_eq(step->seqs[0].table_changed[SCHEDULER_ALL], 15);
}

/* Two pages at once, of which none is elsewhere: the next step finds both unchanged. */
TEST_OF(core, pages_of_its_own_change_nothing)
{
    source.block_size = params.page_size = 4;
    create_with("9+2:ab");
    schedule("extend 0:0+9");
    const struct scheduler_step *step = next_run();
    expect_seq(step, 0, 0, 9, 1);
    ck_assert_int_eq(step->seqs[0].table_changed[SCHEDULER_ALL], 9);
    scheduler_complete(scheduler);
    expect_done();
}

/* The first page is cached when two requests start; the second both compute, and the younger's
 * becomes the older's: what changed in its row begins there. */
TEST_OF(core, the_table_changes_where_a_page_is_adopted)
{
    int64_t now = 0;
    source.block_size = params.page_size = 4;
    params.now_us = read_clock;
    params.clock_context = &now;
    add_requests("5+1:a 9+2:ab 9+2:ab");
    source.requests[1].arrival_us = source.requests[2].arrival_us = 10;
    create();
    schedule("extend 0:0+5");
    now = 10;
    schedule("extend 1:4+5 2:4+5");
    const struct scheduler_step *step = next_run();
    expect_seq(step, 0, 1, 9, 1);
    expect_seq(step, 1, 2, 9, 1);
    ck_assert_int_eq(step->seqs[0].table_changed[SCHEDULER_ALL], 9);
    ck_assert_int_eq(step->seqs[1].table_changed[SCHEDULER_ALL], 4);
    scheduler_complete(scheduler);
    expect_done();
}

/* Of 6 cached pages the second request needs the room of 2: the third finds the other 4. */
TEST_OF(hits, no_more_is_evicted_than_is_needed)
{
    params.max_running_requests = 1;
    params.num_pages = 11;
    create_with("6+1:abcdef 6+1 7+1:abcdef");
    ck_assert_int_eq(run_out()->prefix_hit, 4);
}

/* The second needs 20 pages after the 8 that it hits, the first keeps 20 for its decodes: with the
 * first's 10 that is all there is. */
TEST_OF(hits, a_hit_takes_no_room)
{
    params.num_pages = 51;
    create_with("10+41:abcdefgh 28+1:abcdefgh");
    schedule("extend 0:0+10");
    schedule("extend 1:8+20");
    ck_assert_int_eq(run_out()->retractions, 0);
}

TEST_OF(core, more_may_be_shared_than_before)
{
    add_requests("3+1:a 9+1:abcdefgh 9+1:abcdefgh");
    params.max_running_requests = 1;
    create();
    ck_assert_int_eq(run_out()->prefix_hit, 1 + 8);
}

/* What is shareable ends within a block of 4: after its first token. */
TEST_OF(hits, the_last_unit_may_be_short)
{
    source.block_size = 4;
    params.max_running_requests = 1;
    params.share_unit = source.block_size;
    add_requests("6+1:a 6+1:a");
    ck_assert_int_eq(scheduler_create(&params, &scheduler, &failure.base), ATTN_OK);
    struct scheduler_request request = {
        .input_length = 6, .output_length = 1, .shareable_length = 1};
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(scheduler_add(scheduler, &request, &failure.base), ATTN_OK);
    ck_assert_int_eq(run_out()->prefix_hit, 1);
}

TEST_OF(hits, without_a_prefix_cache_there_is_no_unit)
{
    params.prefix_cache = false;
    params.keys = NULL;
    params.share_unit = 0;
    add_to_source(8, 2, "");
    ck_assert_int_eq(scheduler_create(&params, &scheduler, &failure.base), ATTN_OK);
    ck_assert_int_eq(add(0), ATTN_OK);
    run_out();
}

TEST_OF(hits, without_a_prefix_cache_nothing_is_hit)
{
    params.prefix_cache = false;
    params.keys = NULL;
    create_with("8+1:abcdefgh 8+1:abcdefgh");
    const struct scheduler_counts *counts = run_out();
    ck_assert_int_eq(counts->prefix_hit, 0);
    ck_assert_int_eq(counts->prefill, 16);
}

/* With a pool that holds one request, hits fall and prefill rises by as much. */
TEST_OF(hits, eviction_turns_hits_into_prefill)
{
    int64_t prefill[2], hits[2];
    source.block_size = 5;
    params.max_running_requests = 1;
    draw_source(30, 5);
    for (int i = 0; i < 2; i++) {
        params.num_pages = i == 0 ? MAX_SLOTS : 96;
        memset(&model, 0, sizeof model);
        create();
        run_all();
        struct scheduler_counts counts;
        counts = *expect_counts();
        ck_assert_int_eq(counts.recomputed, 0);
        prefill[i] = counts.prefill;
        hits[i] = counts.prefix_hit;
        tear_down();
    }
    ck_assert_int_lt(hits[1], hits[0]);
    ck_assert_int_eq(prefill[1] - prefill[0], hits[0] - hits[1]);
}

/* ---- States ---------------------------------------------------------------------------------- */

/* Runs requests of the source one at a time; hits[i] is where request i started. */
static void run_with_states(int64_t num_cached_states, int32_t *hits)
{
    const struct scheduler_step *step;
    int64_t wake_us;
    params.max_running_requests = 1;
    params.has_state = true;
    params.num_cached_states = num_cached_states;
    memset(hits, 0xff, sizeof *hits * (size_t)source.num_requests);
    create();
    while (scheduler_next(scheduler, &step, &wake_us) == SCHEDULER_STEP) {
        run_step(step);
        if (hits[step->seqs[0].request] < 0)
            hits[step->seqs[0].request] = step->seqs[0].prefix_len;
        scheduler_complete(scheduler);
    }
    ck_assert_int_eq(scheduler_leaked_states(scheduler), 0);
    struct scheduler_counts counts;
    counts = *expect_counts();
    ck_assert_int_eq(counts.state_capacity, num_cached_states);
}

/* Prompts of requests, and the token from which each is computed. */
static const struct {
    int64_t room; /* for states */
    int32_t prompt;
    const char *blocks[5];
    int32_t hits[5];
    int32_t chunk, block, page; /* 0 = as elsewhere */
} reuses[] = {
    /* All but the first part from it after "abc", where at first there is a page, but no state. */
    {10, 9, {"abcdefgh", "abcdefgh", "abcxyz", "abcuvw", "abcdefgh"}, {0, 8, 0, 3, 8}, 0, 0, 0},
    /* Chunks of 3: states after 3 and 6 tokens and at the end of what is shareable, 8. */
    {10, 9, {"abcdefgh", "abcdefxx", "abcx", "abcdefgh"}, {0, 6, 3, 8}, .chunk = 3},
    /* One slot: the state that was used last stays. */
    {1, 5, {"abcd", "abcd", "mnop", "abcd", "abcd"}, {0, 4, 0, 0, 4}, 0, 0, 0},
    /* Two blocks of 5 tokens in pages of 4: the second page is complete with 10 tokens, not with 8. */
    {10, 12, {"ab", "ax", "ab"}, {0, 0, 8}, .block = 5, .page = 4},
    {0, 9, {"abcdefgh", "abcdefgh"}, {0, 0}, 0, 0, 0},
};

LOOP_OF(states, a_request_starts_from_a_state, 0, 5)
{
    int32_t hits[5], count = 0;
    params.chunked_prefill_size = reuses[_i].chunk ? reuses[_i].chunk : params.chunked_prefill_size;
    source.block_size = reuses[_i].block ? reuses[_i].block : source.block_size;
    params.page_size = reuses[_i].page ? reuses[_i].page : params.page_size;
    for (; count < 5 && reuses[_i].blocks[count]; count++)
        add_to_source(reuses[_i].prompt, 1, reuses[_i].blocks[count]);
    run_with_states(reuses[_i].room, hits);
    ck_assert_mem_eq(hits, reuses[_i].hits, (size_t)count * sizeof *hits);
}

/* A snapshot that a step is to write is not to be had yet. */
TEST_OF(states, a_state_on_its_way_is_held)
{
    params.has_state = true;
    params.num_cached_states = 4;
    create_with("9+1:abcdefgh");
    next_run();
    ck_assert_int_eq(scheduler_leaked_states(scheduler), 1);
    scheduler_complete(scheduler);
    ck_assert_int_eq(scheduler_leaked_states(scheduler), 0);
}

/* ---- Windows --------------------------------------------------------------------------------- */

/* The slots of a row in the pool of windows are these, from position 0 on. */
static void expect_window_row(int32_t row, const int32_t *slots, int32_t count)
{
    const int32_t *got =
        request_table_row(scheduler_request_table(scheduler, SCHEDULER_WINDOW), row);
    for (int32_t j = 0; j < count; j++)
        ck_assert_int_eq(got[j], slots[j]);
}

/* Pages of 2, a window of 3 besides the query, a prompt of 7 in chunks of 4: rows 0-3 in pages 1
 * and 2; row 4 sees 1 on; rows 4-6 in pages 3 and 4, after which row 7 sees 4 on: pages 1 and 2 are
 * free again. Row 7 fills page 4, row 8 is in page 5; then 9 is seen from 6 on, and page 3 goes. */
TEST_OF(windows, a_window_gives_back_what_it_has_passed)
{
    params.page_size = 2;
    params.chunked_prefill_size = 4;
    params.prefix_cache = false;
    params.window = (struct scheduler_window){.num_pages = 9, .left = 3};
    create_with("7+4");
    schedule("extend 0:0+4");
    const struct scheduler_step *step = next_run();
    ck_assert_int_eq(step->seqs[0].table_changed[SCHEDULER_WINDOW], 4);
    ck_assert_int_eq(step->pools[SCHEDULER_WINDOW].out_cache_loc[2], 8);
    scheduler_complete(scheduler);
    step = next_run();
    ck_assert_int_eq(step->seqs[0].table_changed[SCHEDULER_ALL], 7);
    ck_assert_int_eq(step->seqs[0].table_changed[SCHEDULER_WINDOW], 0);
    expect_window_row(1, (const int32_t[]){0, 0, 0, 0, 6, 7, 8, 9, 0}, 9);
    scheduler_complete(scheduler);
    schedule("decode 0:8+1");
    step = next_run();
    ck_assert_int_eq(step->seqs[0].table_changed[SCHEDULER_WINDOW], 4);
    expect_window_row(1, (const int32_t[]){0, 0, 0, 0, 0, 0, 8, 9, 10, 11, 0}, 11);
    scheduler_complete(scheduler);
    expect_done();
    const struct scheduler_counts *counts = expect_counts();
    ck_assert_int_eq(counts->pools[SCHEDULER_ALL].peak, 10);
    ck_assert_int_eq(counts->pools[SCHEDULER_WINDOW].peak, 8);
    ck_assert_int_eq(counts->pools[SCHEDULER_WINDOW].held, 8);
    ck_assert_int_eq(counts->pools[SCHEDULER_WINDOW].capacity, 16);
}

/* Chunks of 4: at a border nothing before it is needed. */
TEST_OF(windows, a_chunk_gives_back_the_one_before)
{
    params.chunked_prefill_size = 4;
    params.prefix_cache = false;
    params.window = (struct scheduler_window){.num_pages = 9, .left = -1, .chunk = 4};
    create_with("9+0");
    for (int chunk = 0; chunk < 3; chunk++) {
        next_run();
        scheduler_complete(scheduler);
    }
    expect_done();
    ck_assert_int_eq(expect_counts()->pools[SCHEDULER_WINDOW].peak, 4);
}

/* Where requests that run one at a time start, and what the pool of windows held. */
static void run_with_window(int32_t left, int64_t num_pages, int32_t *hits)
{
    const struct scheduler_step *step;
    int64_t wake_us;
    params.max_running_requests = 1;
    params.window = (struct scheduler_window){.num_pages = num_pages, .left = left};
    memset(hits, 0xff, sizeof *hits * (size_t)source.num_requests);
    create();
    while (scheduler_next(scheduler, &step, &wake_us) == SCHEDULER_STEP) {
        run_step(step);
        if (hits[step->seqs[0].request] < 0)
            hits[step->seqs[0].request] = step->seqs[0].prefix_len;
        scheduler_complete(scheduler);
    }
    expect_counts();
}

/* In a pool of 10, of which the request "mnop..." takes 9: what was used least recently goes from
 * its front, so "abcdefgh" has its last page alone, which is no window of 2 for anybody. */
TEST_OF(windows, a_prefix_is_of_use_with_its_window)
{
    int32_t hits[4];
    add_requests("9+0:abcdefgh 9+0:abcdefgh 9+0:mnopqrst 9+0:abcdefgh");
    run_with_window(2, 11, hits);
    const int32_t roomy[] = {0, 8, 0, 0};
    ck_assert_mem_eq(hits, roomy, sizeof roomy);
    tear_down();
    memset(&model, 0, sizeof model);
    run_with_window(2, 12, hits);
    const int32_t expected[] = {0, 8, 0, 8};
    ck_assert_mem_eq(hits, expected, sizeof expected);
}

/* The pool of windows has room for one prompt and a half: the second request waits for the first.
 */
TEST_OF(windows, a_request_waits_for_the_pool_of_windows)
{
    params.prefix_cache = false;
    params.window = (struct scheduler_window){.num_pages = 31, .left = 15};
    params.chunked_prefill_size = 8;
    create_with("40+2 40+2");
    for (int i = 0; i < 6; i++) {
        const struct scheduler_step *step = next_run();
        ck_assert_int_eq(step->num_seqs, 1);
        ck_assert_int_eq(step->seqs[0].request, 0);
        scheduler_complete(scheduler);
    }
    ck_assert_int_eq(run_out()->retractions, 0);
}

/* Pages that rows in a step see at most, wherever they are: enough, and not two more. */
LOOP_OF(windows, a_window_takes_so_many_pages, 0, 6)
{
    static const struct scheduler_window windows[] = {{1, 0, 0},  {1, 7, 0},  {1, -1, 16},
                                                      {1, -1, 1}, {1, 30, 5}, {1, 3, 40}};
    params.window = windows[_i];
    for (int p = 0; p < 3; p++) {
        params.page_size = page_sizes[p];
        for (int32_t rows = 1; rows < 40; rows++) {
            int64_t most = 0;
            for (int64_t position = 0; position < 200; position++) {
                int64_t first = first_seen(position) / params.page_size;
                int64_t pages = (position + rows - 1) / params.page_size + 1 - first;
                most = pages > most ? pages : most;
            }
            int64_t pages = scheduler_window_pages(&params, rows);
            ck_assert_int_ge(pages, most);
            ck_assert_int_le(pages, most + 1);
        }
    }
}

/* What a request needs of that pool before it starts: all its prompt where steps have no limit,
 * else no more than a window and a step; nothing for a prefix that is cached, but the window
 * before its end. The first decodes, the second comes then. */
static const struct {
    int32_t chunk, pages;
    int64_t input, output, next_input;
    const char *blocks;
    bool starts;
} needs[] = {
    {0, 10, 2, 3, 9, "", false},        {0, 16, 2, 3, 9, "", true},
    {0, 12, 2, 3, 9, "", false},        {0, 13, 2, 3, 9, "", true},
    {1, 9, 1, 5, 60, "", false},        {1, 10, 1, 5, 60, "", true},
    {1, 14, 1, 5, 60, "", true},        {1, 8, 1, 5, 60, "", false},
    {2, 15, 1, 5, 60, "", true},        {0, 14, 8, 4, 8, "abcdefgh", true},
    {0, 6, 8, 4, 8, "abcdefgh", false},
};

LOOP_OF(windows, a_request_starts_with_its_window, 0, COUNT(needs))
{
    int64_t now = 0;
    params.window = (struct scheduler_window){.num_pages = 1 + needs[_i].pages, .left = 3};
    params.chunked_prefill_size = needs[_i].chunk;
    params.now_us = read_clock;
    params.clock_context = &now;
    add_to_source(needs[_i].input, needs[_i].output, needs[_i].blocks);
    add_to_source(needs[_i].next_input, 1, needs[_i].blocks);
    source.requests[1].arrival_us = 10;
    create();
    schedule(NULL);
    now = 10;
    const struct scheduler_step *step = next_run();
    ck_assert_int_eq(step->seqs[0].request, needs[_i].starts);
    scheduler_complete(scheduler);
    run_out();
}

/* Prompts of 10 grow to a window of 40 beyond what was reserved: the younger is thrown out. */
TEST_OF(windows, a_full_pool_of_windows_retracts_the_youngest)
{
    params.prefix_cache = false;
    params.window = (struct scheduler_window){.num_pages = 1 + 64, .left = 39};
    create_with("10+50 10+50");
    const struct scheduler_counts *counts = run_out();
    ck_assert_int_eq(counts->retractions, 1);
    ck_assert_int_eq(counts->pools[SCHEDULER_WINDOW].peak, 64);
}

/* A window of 40 and a row, in pages of 4: 40 positions and the page that is begun before them. */
TEST_OF(windows, a_request_must_fit_the_pool_of_windows)
{
    params.page_size = 4;
    params.window = (struct scheduler_window){.num_pages = 11, .left = 39};
    add_to_source(200, 10, "");
    struct scheduler_params fits = params;
    create_empty();
    ck_assert_int_eq(add(0), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&failure),
                                 "take 11 pages of 4 tokens; the KV cache of windows has 10"));
    tear_down();
    params = fits;
    params.window.num_pages = 12;
    /* The parameters alone say as much. */
    const struct scheduler_request request = {.input_length = 200, .output_length = 10};
    host_error_init(&failure);
    ck_assert_int_eq(scheduler_check_pools(&fits, 7, &request, &failure.base), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&failure), "request 7: input of 200"));
    ck_assert_int_eq(scheduler_check_pools(&params, 7, &request, NULL), ATTN_OK);
    create();
    run_out();
}

/* ---- Encoders -------------------------------------------------------------------------------- */

/* A step of images: of these requests, one after the other. */
static void expect_images(const struct scheduler_step *step, int64_t first, int32_t count)
{
    ck_assert_uint_eq(step->mode, SCHEDULER_MODE_ENCODE);
    ck_assert_int_eq(step->num_seqs, count);
    ck_assert_int_eq(step->num_decode_seqs, 0);
    ck_assert_int_eq(step->num_tokens, count * params.encoder_len);
    ck_assert_int_eq(step->max_q_len, params.encoder_len);
    ck_assert_int_eq(step->max_kv_len, params.encoder_len);
    for (int32_t i = 0; i < count; i++) {
        expect_seq(step, i, first + i, 0, params.encoder_len);
        ck_assert_int_eq(step->seqs[i].row, 0);
        ck_assert_int_eq(step->seqs[i].table_changed[SCHEDULER_ALL], params.encoder_len);
    }
    for (int32_t i = 0; i < step->num_tokens; i++)
        ck_assert_int_eq(step->pools[SCHEDULER_ALL].out_cache_loc[i], 0);
}

/* Three images of 6 tokens in steps of 12: two, then one; then all prompts. */
TEST_OF(images, images_go_before_prompts)
{
    params.encoder_len = 6;
    params.chunked_prefill_size = 12;
    create_with("3+2 3+2 3+2");
    ck_assert_int_eq(scheduler_max_tokens(scheduler), 12 + 4);
    expect_images(next(), 0, 2);
    scheduler_complete(scheduler);
    expect_images(next(), 2, 1);
    scheduler_complete(scheduler);
    for (uint32_t mode = 0; mode < 2; mode++) {
        const struct scheduler_step *step = next_run();
        ck_assert_uint_eq(step->mode, mode == 0 ? ATTN_MODE_EXTEND : ATTN_MODE_DECODE);
        ck_assert_int_eq(step->num_seqs, 3);
        scheduler_complete(scheduler);
    }
    expect_done();
    const struct scheduler_counts *counts = expect_counts();
    ck_assert_int_eq(counts->encoded, 18);
    ck_assert_int_eq(counts->steps, 4);
}

/* An image that is longer than a chunk goes by itself. */
TEST_OF(images, an_image_is_not_cut)
{
    params.encoder_len = 20;
    params.chunked_prefill_size = 4;
    create_with("6+1");
    ck_assert_int_eq(scheduler_max_tokens(scheduler), 20);
    expect_images(next(), 0, 1);
    scheduler_complete(scheduler);
    for (int i = 0; i < 2; i++) {
        ck_assert_uint_eq(next_run()->mode, ATTN_MODE_EXTEND);
        scheduler_complete(scheduler);
    }
    expect_done();
}

/* Images of one token before prompts of one, of as many requests as can run at once. */
TEST_OF(images, an_image_may_be_one_token)
{
    params.encoder_len = 1;
    params.chunked_prefill_size = 16;
    params.max_running_requests = 2;
    create_with("1+2 1+2 1+2");
    expect_images(next(), 0, 2);
    scheduler_complete(scheduler);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(next_run()->num_seqs, 2);
        scheduler_complete(scheduler);
    }
    expect_images(next(), 2, 1);
    scheduler_complete(scheduler);
    ck_assert_int_eq(run_out()->encoded, 3);
}

/* A request that decodes has no image any more; where images fail, it goes on. */
TEST_OF(images, requests_of_failed_images_are_dropped)
{
    int64_t now = 0;
    params.encoder_len = 4;
    params.now_us = read_clock;
    params.clock_context = &now;
    add_requests("3+4 3+4");
    source.requests[1].arrival_us = 10;
    create();
    expect_images(next(), 0, 1);
    scheduler_complete(scheduler);
    schedule("extend 0:0+3");
    now = 10;
    expect_images(next(), 1, 1);
    model.dropped[1] = true;
    scheduler_drop(scheduler);
    const struct scheduler_counts *counts = run_out();
    ck_assert_int_eq(counts->finished, 1);
    ck_assert_int_eq(counts->dropped, 1);
    ck_assert_int_eq(counts->encoded, 4);
}

/* Who lost what it had is encoded once more. */
TEST_OF(images, a_lost_image_is_encoded_again)
{
    params.encoder_len = 4;
    create_with("3+2");
    expect_images(next(), 0, 1);
    scheduler_complete(scheduler);
    next();
    scheduler_device_lost(scheduler);
    expect_images(next(), 0, 1);
    scheduler_device_lost(scheduler);
    expect_images(next(), 0, 1);
    scheduler_complete(scheduler);
    ck_assert_int_eq(run_out()->encoded, 8);
}

/* ---- Random workloads in small pools --------------------------------------------------------- */

LOOP_OF(random, random_workloads_end, 0, VARIANTS)
{
    uint64_t hashes[2];
    struct scheduler_counts counts;
    set_variant(_i);
    for (int i = 0; i < 2; i++) {
        memset(&model, 0, sizeof model);
        create();
        run_all();
        counts = *expect_counts();
        hashes[i] = model.hash;
        tear_down();
    }
    ck_assert(hashes[0] == hashes[1]);
    ck_assert_int_gt(counts.retractions, 0);
    ck_assert_int_gt(counts.recomputed, 0);
    ck_assert(counts.prefix_hit > 0 || has_few_states());
    ck_assert_int_eq(counts.state_peak > 0, params.has_state);
    ck_assert_int_eq(counts.dropped, 0);
    ck_assert(model.mixed_steps > 0 || !params.mixed);
}

/* ---- Drafts ---------------------------------------------------------------------------------- */

/* A prompt of 4 and six rows to decode, three drafts of which all are right: 4 rows, then the 2
 * that are left, in pages of 4; the draft model sees the first 4. */
TEST_OF(drafts, accepted_drafts_stay)
{
    params.page_size = 4;
    params.drafts = (struct drafts){.tokens = 4, .top_k = 1, .rate = 1};
    params.draft_model = true;
    create_with("4+7");
    schedule("extend 0:0+4");
    const struct scheduler_step *step = next_run();
    ck_assert_uint_eq(step->mode, ATTN_MODE_TARGET_VERIFY);
    expect_seq(step, 0, 0, 4, 4);
    ck_assert_int_eq(step->trees[0].committed, 4);
    ck_assert_int_eq(step->moves_indptr[1], 0);
    scheduler_complete(scheduler);
    schedule("draft_extend 0:4+4");
    step = next_run();
    expect_seq(step, 0, 0, 8, 4);
    ck_assert_int_eq(step->trees[0].committed, 2);
    scheduler_complete(scheduler);
    expect_done();
    const struct scheduler_counts *counts = expect_counts();
    ck_assert_int_eq(counts->verifications, 2);
    ck_assert_int_eq(counts->accepted, 4);
    ck_assert_int_eq(counts->draft_extend, 4);
    ck_assert_int_eq(counts->pools[SCHEDULER_ALL].peak, 12);
}

/* Drafts that are turned down give their pages back: another request may have them. */
TEST_OF(drafts, rejected_drafts_are_given_back)
{
    params.drafts = (struct drafts){.tokens = 5, .top_k = 1, .rate = 0};
    create_with("3+4");
    schedule("extend 0:0+3");
    for (int32_t rows = 3; rows < 6; rows++) {
        const struct scheduler_step *step = next_run();
        expect_seq(step, 0, 0, rows, 5);
        ck_assert_int_eq(step->trees[0].committed, 1);
        scheduler_complete(scheduler);
    }
    expect_done();
    const struct scheduler_counts *counts = expect_counts();
    ck_assert_int_eq(counts->pools[SCHEDULER_ALL].peak, 10);
    ck_assert_int_eq(counts->draft_extend, 0);
}

/* What decodes keeps room for its drafts, what has nothing to decode keeps none: of 40 slots 8 and
 * 12 are prompts and 2 + 4 are kept for the first one; a third of 14 just fits, if it has nothing
 * to decode, and one of 9 if it has one row, which is verified with 4 drafts. */
static const struct {
    int64_t input, output;
    bool starts;
} thirds[] = {
    {14, 1, true}, {14, 2, false}, {15, 1, false}, {9, 2, true}, {10, 2, false},
};

LOOP_OF(drafts, a_request_starts_with_a_reserve_for_drafts, 0, COUNT(thirds))
{
    params.num_pages = 41;
    params.drafts = (struct drafts){.tokens = 5, .top_k = 1, .rate = 0};
    add_requests("8+3 12+1");
    add_to_source(thirds[_i].input, thirds[_i].output, "");
    create();
    const struct scheduler_step *step = next_run();
    ck_assert_int_eq(step->num_seqs, thirds[_i].starts ? 3 : 2);
    scheduler_complete(scheduler);
    run_out();
}

/* The share of right drafts, and what follows for a verification: p + p^2 + ... */
LOOP_OF(drafts, drafts_are_right_as_often_as_is_said, 0, 3)
{
    enum { TRIES = 200000 };
    const struct drafts drafts = {.tokens = 8, .top_k = 1 + _i, .rate = 0.3 + 0.2 * _i, .seed = 9};
    struct draft_tree tree;
    int64_t right = 0, accepted = 0;
    double expected = 0, power = 1;
    for (int32_t d = 1; d <= drafts_depth(&drafts); d++)
        expected += power *= drafts.rate;
    for (int64_t i = 0; i < TRIES; i++) {
        right += drafts_right(&drafts, i / 100, i % 100);
        drafts_grow(&drafts, i, i % 100, 100, &tree);
        accepted += tree.committed - 1;
    }
    ck_assert_double_eq_tol((double)right / TRIES, drafts.rate, 0.005);
    ck_assert_double_eq_tol((double)accepted / TRIES, expected, 0.01 * expected);
}

/* A tree's rows stand below rows one depth above, and at each depth but the last there are top_k.
 */
LOOP_OF(drafts, trees_are_trees, 0, 9)
{
    const struct drafts drafts = {.tokens = 2 + _i % 9, .top_k = 1 + _i % 9 / 2, .rate = 0.8};
    bool branches = false;
    ck_assert_int_eq(drafts_depth(&drafts), (drafts.tokens - 1 + drafts.top_k - 1) / drafts.top_k);
    for (int64_t position = 0; position < 100; position++) {
        struct draft_tree tree;
        int32_t at_depth[DRAFTS_MAX_TOKENS] = {0};
        drafts_grow(&drafts, 1, position, 3, &tree);
        int32_t right = 0; /* at depths 1, 2: 3 rows stay at most */
        while (right < 2 && right < drafts_depth(&drafts) &&
               drafts_right(&drafts, 1, position + right + 1))
            right++;
        ck_assert_int_eq(tree.committed, 1 + right);
        for (int32_t row = 0; row < drafts.tokens; row++) {
            at_depth[tree.depth[row]]++;
            ck_assert_int_eq(tree.depth[row], row == 0 ? 0 : tree.depth[tree.parent[row]] + 1);
            branches |= row > 1 && tree.parent[row] == tree.parent[row - 1];
        }
        for (int32_t d = 1; d < drafts_depth(&drafts); d++)
            ck_assert_int_eq(at_depth[d], drafts.top_k);
        for (int32_t row = drafts.tokens; row < DRAFTS_MAX_TOKENS; row++)
            ck_assert_int_eq(tree.depth[row] + tree.parent[row] + tree.path[row], 0);
    }
    ck_assert(branches == (drafts.top_k > 1));
}

/* Two trees as drafts.h has them to the bit, computed from that text in Python. */
TEST_OF(drafts, known_trees)
{
    static const uint8_t parents[2][14] = {{0, 0, 0, 0, 1, 1, 2, 4, 6, 4, 7, 9, 9, 10},
                                           {0, 0, 0, 0, 1, 2, 3, 6, 4, 6, 7, 9, 8, 10}};
    static const uint8_t paths[2][6] = {{0, 1}, {0, 3, 6, 7, 10, 13}};
    static const int32_t committed[2] = {2, 6};
    const struct drafts drafts = {.tokens = 14, .top_k = 3, .rate = 0.8, .seed = 9}, none = {0};
    for (int i = 0; i < 2; i++) {
        struct draft_tree tree;
        drafts_grow(&drafts, 4 + i, 11, 99, &tree);
        ck_assert_mem_eq(tree.parent, parents[i], 14);
        ck_assert_int_eq(tree.committed, committed[i]);
        ck_assert_mem_eq(tree.path, paths[i], (size_t)committed[i]);
    }
    ck_assert_int_eq(drafts_depth(&none), 0);
}

LOOP_OF(random, drafted_workloads_end, 0, DRAFTED_VARIANTS)
{
    uint64_t hashes[2];
    struct scheduler_counts counts;
    set_drafted_variant(_i);
    for (int i = 0; i < 2; i++) {
        memset(&model, 0, sizeof model);
        create();
        run_all();
        counts = *expect_counts();
        ck_assert_int_eq(counts.draft_extend, model.draft_rows);
        hashes[i] = model.hash;
        tear_down();
    }
    ck_assert(hashes[0] == hashes[1]);
    ck_assert_int_gt(counts.retractions, 0);
    ck_assert_int_eq(counts.accepted > 0, params.drafts.rate > 0);
    ck_assert_int_eq(counts.draft_extend > 0, params.draft_model);
    ck_assert_int_eq(counts.dropped, 0);
}

/* ---- Cross attention ------------------------------------------------------------------------- */

/* Encoders of 6 keys in pages of 4, of which there are four: two requests at a time, though there
 * is room for the rows of all. The third starts where the first has ended, in its pages. */
TEST_OF(cross, a_request_waits_for_room_for_its_encoder)
{
    struct scheduler_counts counts;
    params.page_size = 4;
    params.prefix_cache = false;
    params.chunked_prefill_size = 12;
    params.cross_len = 6;
    params.num_encoder_pages = 5;
    for (int i = 0; i < 3; i++)
        add_to_source(3, 2 + i, "");
    create();
    const struct scheduler_step *step = next_run();
    ck_assert_int_eq(step->num_seqs, 2);
    ck_assert_int_eq(step->num_encoder_new, 12);
    scheduler_count(scheduler, &counts);
    ck_assert_int_eq(counts.pools[SCHEDULER_ENCODER].used, 16);
    scheduler_complete(scheduler);
    step = next_run();
    ck_assert_uint_eq(step->mode, ATTN_MODE_DECODE);
    ck_assert_int_eq(step->num_encoder_new, 0);
    scheduler_complete(scheduler);
    scheduler_count(scheduler, &counts);
    ck_assert_int_eq(counts.pools[SCHEDULER_ENCODER].used, 8);
    step = next_run();
    expect_seq(step, 0, 2, 0, 3);
    ck_assert_int_eq(step->num_encoder_new, 6);
    scheduler_complete(scheduler);
    run_all();
    counts = *expect_counts();
    ck_assert_int_eq(counts.pools[SCHEDULER_ENCODER].capacity, 16);
    ck_assert_int_eq(counts.pools[SCHEDULER_ENCODER].peak, 16);
    ck_assert_int_eq(counts.pools[SCHEDULER_ENCODER].held, 16);
    ck_assert_int_eq(counts.pools[SCHEDULER_ENCODER].used, 0);
}

/* A step begins as many as its rows of encoders are enough for, one at least. A prompt in pieces
 * brings its encoder's keys with the first. */
LOOP_OF(cross, a_step_has_so_many_keys_of_encoders, 0, 5)
{
    static const struct {
        int32_t chunk, cross_len, seqs, max_tokens;
    } steps[] = {{12, 6, 2, 16}, {12, 7, 1, 16}, {0, 6, 1, 1024}, {3, 20, 1, 20}, {12, 4, 3, 16}};
    params.prefix_cache = false;
    params.chunked_prefill_size = steps[_i].chunk;
    params.cross_len = steps[_i].cross_len;
    params.num_encoder_pages = 201;
    create_with("4+2 4+2 4+2");
    ck_assert_int_eq(scheduler_max_tokens(scheduler), steps[_i].max_tokens);
    const struct scheduler_step *step = next_run();
    ck_assert_int_eq(step->num_seqs, steps[_i].seqs);
    ck_assert_int_eq(step->num_encoder_new, steps[_i].seqs * steps[_i].cross_len);
    scheduler_complete(scheduler);
    run_out();
}

/* An encoder runs before the step that its keys are written in. */
TEST_OF(cross, encoders_run_before_their_keys_are_read)
{
    params.prefix_cache = false;
    params.encoder_len = params.cross_len = 6;
    params.num_encoder_pages = 201;
    params.chunked_prefill_size = 12;
    create_with("3+2 3+2 3+2");
    static const int32_t begin[] = {0, 2}, count[] = {2, 1};
    for (int i = 0; i < 2; i++) {
        const struct scheduler_step *step = next();
        expect_images(step, begin[i], count[i]);
        ck_assert_int_eq(step->num_encoder_new, 0);
        ck_assert_int_eq(step->seqs[0].encoder_len, 0);
        scheduler_complete(scheduler);
        ck_assert_int_eq(next_run()->num_encoder_new, 6 * count[i]);
        scheduler_complete(scheduler);
    }
    ck_assert_int_eq(run_out()->encoded, 18);
}

TEST_OF(cross, an_encoder_must_fit_its_pool)
{
    params.page_size = 4;
    params.prefix_cache = false;
    params.cross_len = 9;
    params.num_encoder_pages = 3;
    add_to_source(3, 2, "");
    create_empty();
    ck_assert_int_eq(add(0), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&failure),
                                 "3 pages of 4 tokens; the KV cache of encoders has 2 (8 tokens)"));
    scheduler_destroy(scheduler);
    params.cross_len = 8;
    create();
    run_out();
}

/* ---- Failures -------------------------------------------------------------------------------- */

/* What was in flight is gone; the step that was out had not happened. */
static void lose_device(void)
{
    lose_model(&model.rows);
    scheduler_device_lost(scheduler);
}

static void drop_step(const struct scheduler_step *step)
{
    for (int32_t i = 0; i < step->num_seqs; i++)
        model.dropped[step->seqs[i].request] = true;
    for (int pool = 0; pool < scheduler_num_pools(scheduler); pool++)
        poison_slots(pool, step->pools[pool].out_cache_loc, step->num_tokens);
    poison_slots(SCHEDULER_ENCODER, step->pools[SCHEDULER_ENCODER].out_cache_loc,
                 step->num_encoder_new);
    poison_states(step->seqs, step->num_seqs, step->snapshots, step->num_snapshots);
    scheduler_drop(scheduler);
}

/* The third request starts after 20 tokens of the second and computes one; after the loss it
 * starts after 30, of which it had 21 before. */
TEST_OF(random, hits_count_only_above_the_mark)
{
    source.block_size = 5;
    params.chunked_prefill_size = 31;
    create_with("10+1 51+2:abcdefgh 60+1:abcdefgh");
    schedule("extend 0:0+10 1:0+21");
    schedule("extend 1:21+30 2:20+1");
    lose_device();
    schedule("extend 1:0+31");
    schedule("extend 1:31+20 2:30+11");
    const struct scheduler_counts *counts = run_out();
    ck_assert_int_eq(counts->prefix_hit, 20 + 9);
    ck_assert_int_eq(counts->recomputed, 51);
}

LOOP_OF(random, device_loss_and_batch_errors_are_survived, 0,
        VARIANTS + CROSS_VARIANTS + DRAFTED_VARIANTS)
{
    const struct scheduler_step *step;
    int64_t wake_us, losses = 0, drops = 0, number = 0;
    bool may_drop = _i % 2;
    if (_i < VARIANTS)
        set_variant(_i);
    else if (_i < VARIANTS + CROSS_VARIANTS)
        set_cross_variant(_i - VARIANTS);
    else
        set_drafted_variant(_i - VARIANTS - CROSS_VARIANTS);
    create();
    while (scheduler_next(scheduler, &step, &wake_us) == SCHEDULER_STEP) {
        require(step->number == number++, "number of the step", -1);
        int64_t fate = draw(60);
        if (fate < 2 && losses < 20) {
            losses++;
            lose_device();
        } else if (fate == 2 && may_drop) {
            drops++;
            drop_step(step);
        } else {
            run_step(step);
            scheduler_complete(scheduler);
            if (fate == 3 && losses < 20) {
                losses++;
                lose_device();
            }
        }
    }
    ck_assert_int_gt(losses, 0);
    ck_assert_int_eq(expect_counts()->dropped > 0, drops > 0);
}

TEST_OF(limits, a_destroyed_scheduler_may_have_a_step_out)
{
    create_with("5+5:abcde");
    next();
}

/* ---- Bad input ------------------------------------------------------------------------------- */

static const struct {
    int64_t input, output, num_whole;
    attn_status status;
    const char *says;
} bad_requests[] = {
    {0, 1, 0, ATTN_INVALID_ARGUMENT, "input_length 0"},
    {5, -1, 0, ATTN_INVALID_ARGUMENT, "output_length -1"},
    {5, 1, 6, ATTN_INVALID_ARGUMENT, "shareable_length 6"},
    {257, 0, 0, ATTN_CONFIG_ERROR, "max_context_len = 256"},
    {200, 58, 0, ATTN_CONFIG_ERROR, "max_context_len = 256"},
    {INT64_MAX, INT64_MAX, 0, ATTN_CONFIG_ERROR, "max_context_len = 256"},
    {101, 0, 0, ATTN_CONFIG_ERROR, "take 26 pages of 4 tokens; the KV cache has 25 (100 tokens)"},
    {50, 52, 0, ATTN_CONFIG_ERROR, "take 26 pages of 4 tokens; the KV cache has 25 (100 tokens)"},
};

LOOP_OF(limits, impossible_requests_are_refused, 0, COUNT(bad_requests))
{
    params.page_size = 4;
    params.num_pages = 26;
    create();
    struct scheduler_request request = {
        .input_length = bad_requests[_i].input,
        .output_length = bad_requests[_i].output,
        .shareable_length = bad_requests[_i].num_whole,
    };
    ck_assert_int_eq(scheduler_add(scheduler, &request, &failure.base), bad_requests[_i].status);
    ck_assert_msg(strstr(host_error_text(&failure), bad_requests[_i].says) != NULL, "%s",
                  host_error_text(&failure));
    ck_assert_ptr_nonnull(strstr(host_error_text(&failure), "request 0"));
    expect_done();
    add_to_source(50, 51, ""); /* the largest that fits */
    ck_assert_int_eq(add(0), ATTN_OK);
    ck_assert_int_eq(run_out()->requests, 1);
}

/* 100 + 19 rows and 63 drafts beyond them; what does not decode has none. */
TEST_OF(limits, a_refusal_counts_the_drafts)
{
    const struct scheduler_request decodes = {.input_length = 100, .output_length = 20};
    const struct scheduler_request ends = {.input_length = 129, .output_length = 1};
    params.page_size = 16;
    params.num_pages = 1 + 8;
    ck_assert_int_eq(scheduler_check_pools(&params, 0, &decodes, NULL), ATTN_OK);
    params.drafts = (struct drafts){.tokens = 64, .top_k = 1};
    ck_assert_int_eq(scheduler_check_pools(&params, 0, &decodes, &failure.base), ATTN_CONFIG_ERROR);
    ck_assert_str_eq(host_error_text(&failure),
                     "request 0: input of 100 and output of 20 tokens, and 63 drafts beyond them, "
                     "take 12 pages of 16 tokens; the KV cache has 8 (128 tokens), so it could "
                     "never finish");
    host_error_init(&failure);
    ck_assert_int_eq(scheduler_check_pools(&params, 0, &ends, &failure.base), ATTN_CONFIG_ERROR);
    ck_assert_ptr_nonnull(strstr(host_error_text(&failure), "output of 1 tokens take 9 pages"));
}

static const struct {
    int64_t input, output;
} longest[] = {{256, 0}, {256, 1}, {255, 2}, {200, 57}, {1, 256}};

LOOP_OF(limits, the_longest_requests_are_accepted, 0, COUNT(longest))
{
    add_to_source(longest[_i].input, longest[_i].output, "");
    create();
    run_out();
    ck_assert_int_eq(rows_of(0), MAX_CONTEXT);
}

TEST_OF(limits, impossible_params_are_refused)
{
    enum { BAD = 16 };
    struct scheduler_params good = params, bad[BAD];
    for (int i = 0; i < BAD; i++) {
        bad[i] = good;
        if (i < 9)
            continue;
        bad[i].prefix_cache = false;
        bad[i].cross_len = 8;
        bad[i].num_encoder_pages = 9;
    }
    bad[0].page_size = 0;
    bad[1].max_running_requests = 0;
    bad[2].share_unit = 0;
    bad[3].num_pages = 1;
    bad[4].max_in_flight = -1;
    bad[5].num_cached_states = -1;
    bad[6].mixed = true;
    bad[6].drafts = (struct drafts){.tokens = 2, .top_k = 1};
    bad[7].window = (struct scheduler_window){.num_pages = 5, .left = -1};
    bad[8].window = (struct scheduler_window){.num_pages = -1, .left = 4};
    bad[9].prefix_cache = true;
    bad[10].drafts = (struct drafts){.tokens = 2, .top_k = 1};
    bad[11].cross_len = bad[11].max_context_len + 1;
    bad[12].num_encoder_pages = 1;
    bad[13].drafts = (struct drafts){.tokens = 1, .top_k = 1};
    bad[14].cross_len = 1;
    bad[14].prefix_cache = true;
    bad[15].cross_len = 0;
    bad[15].drafts = (struct drafts){.tokens = 1, .top_k = 1};
    bad[15].mixed = true;
    for (int i = 0; i < BAD; i++) {
        bad[i].share_unit = i == 2 ? 0 : 1;
        ck_assert_int_eq(scheduler_create(&bad[i], &scheduler, &failure.base),
                         ATTN_INVALID_ARGUMENT);
        ck_assert_ptr_null(scheduler);
        ck_assert_ptr_nonnull(strstr(host_error_text(&failure), "accepted"));
    }
}

/* The smallest window, the smallest chunk, and an encoder as long as a context. */
LOOP_OF(limits, params_at_their_limits_are_accepted, 0, 3)
{
    if (_i < 2) {
        params.window = (struct scheduler_window){.num_pages = 5, .left = _i - 1, .chunk = 1 - _i};
    } else {
        params.prefix_cache = false;
        params.cross_len = MAX_CONTEXT;
        params.num_encoder_pages = MAX_CONTEXT + 1;
    }
    params.share_unit = 1;
    ck_assert_int_eq(scheduler_create(&params, &scheduler, &failure.base), ATTN_OK);
}

/* What is drafted takes rows of the context and of the pool, where the request decodes at all. */
static const struct {
    int64_t num_pages, input, output;
    attn_status status;
} drafted_requests[] = {
    {1025, MAX_CONTEXT - 3, 1, ATTN_OK},
    {1025, MAX_CONTEXT - 2, 0, ATTN_CONFIG_ERROR},
    {1025, 10, MAX_CONTEXT - 12, ATTN_OK},
    {1025, 10, MAX_CONTEXT - 11, ATTN_CONFIG_ERROR},
    {14, 13, 0, ATTN_OK},
    {14, 13, 1, ATTN_OK},
    {14, 14, 1, ATTN_CONFIG_ERROR},
    {14, 9, 2, ATTN_OK},
    {14, 10, 2, ATTN_CONFIG_ERROR},
    {14, 8, 3, ATTN_OK},
    {14, 9, 3, ATTN_CONFIG_ERROR},
};

LOOP_OF(limits, drafts_have_limits, 0, COUNT(drafted_requests))
{
    params.num_pages = drafted_requests[_i].num_pages;
    params.drafts = (struct drafts){.tokens = 4, .top_k = 1, .rate = 0.5};
    add_to_source(drafted_requests[_i].input, drafted_requests[_i].output, "");
    create_empty();
    ck_assert_int_eq(add(0), drafted_requests[_i].status);
    if (drafted_requests[_i].status == ATTN_OK)
        run_all();
    expect_done();
}

/* As many requests as can run verify trees together. */
TEST_OF(limits, all_rows_verify_drafts)
{
    params.drafts = (struct drafts){.tokens = 8, .top_k = 2, .rate = 0.7};
    params.draft_model = true;
    params.has_state = false;
    for (int32_t r = 0; r < params.max_running_requests; r++)
        add_to_source(5 + r, 20, "");
    create();
    const struct scheduler_counts *counts = run_out();
    ck_assert_int_gt(counts->accepted, 0);
}

/* Slots of states: one for each request, and one for each row of its verification. */
TEST_OF(limits, rows_of_states_are_known)
{
    params.max_running_requests = 3;
    ck_assert_int_eq(scheduler_row_states(&params), 3);
    params.drafts.tokens = 4;
    ck_assert_int_eq(scheduler_row_states(&params), 15);
}

/* A prompt that is not cut: of a step's length, longer, and where steps have no limit. */
static const struct {
    int32_t chunk;
    int64_t input;
    attn_status status;
} whole[] = {
    {8, 8, ATTN_OK}, {8, 9, ATTN_CONFIG_ERROR}, {0, 9, ATTN_OK}, {1, 2, ATTN_CONFIG_ERROR}};

LOOP_OF(limits, whole_prompts_have_limits, 0, COUNT(whole))
{
    params.whole_prompts = true;
    params.prefix_cache = false;
    params.chunked_prefill_size = whole[_i].chunk;
    add_to_source(whole[_i].input, 0, "");
    create_empty();
    ck_assert_int_eq(add(0), whole[_i].status);
}

/* ---- Suite ----------------------------------------------------------------------------------- */

GROUP(random, .set_up = set_up, .tear_down = tear_down, .tags = "long");
TESTS("scheduler", .set_up = set_up, .tear_down = tear_down);
