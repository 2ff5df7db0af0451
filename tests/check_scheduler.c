/* SPDX-License-Identifier: Apache-2.0
 *
 * check_scheduler.c: literal schedules, and random workloads in pools that are too small for them.
 *
 * Each step is run on a cache that holds token keys for KV: rows write their token's key to
 * out_cache_loc, then every sequence must find, through req_to_token, the keys of all its tokens.
 * So a page that is handed out twice, freed too early, shared wrongly or listed wrongly shows. What
 * was computed, hit and computed again is counted here once more from the steps alone.
 */
#include "host/scheduler.h"

#include <string.h>

#include "attn_problem.h"
#include "host/error.h"
#include "host/mix.h"
#include "tests/test_main.h"

#define MOST_REQUESTS 80
#define MOST_BLOCKS   8
#define MOST_CONTEXT  256
#define MOST_SLOTS    4096
#define MOST_ROWS     17
#define MOST_STEPS    100000

/* What a trace would tell. */
struct source {
    int64_t num_requests;
    int64_t block_size;
    struct {
        int64_t input, output, arrival_us;
        int64_t num_whole;
        int64_t hash_ids[MOST_BLOCKS];
    } requests[MOST_REQUESTS];
};

/* What the steps have shown so far. */
struct model {
    int32_t computed[MOST_REQUESTS]; /* rows in the cache */
    int32_t mark[MOST_REQUESTS];     /* rows that ever were */
    bool dropped[MOST_REQUESTS];
    token_key kv[MOST_SLOTS];
    int32_t table[MOST_ROWS][MOST_CONTEXT]; /* copied where a step says it changed */
    int64_t prefill, decode, prefix_hit, recomputed;
    int64_t mixed_steps;
    uint64_t hash; /* of all that was ever scheduled */
};

static struct source source;
static struct model model;
static struct scheduler_params params;
static struct scheduler *scheduler;
static host_error failure;

static token_key key_of(int64_t request, int64_t position)
{
    int64_t block = position / source.block_size;
    if (block < source.requests[request].num_whole)
        return token_key_of_block(source.requests[request].hash_ids[block],
                                  position % source.block_size);
    return token_key_of_request(request, position);
}

/* An assertion for what is looked at a million times, where Check's own are too slow. */
static void require(bool holds, const char *what, int64_t request)
{
    if (!holds)
        ck_abort_msg("request %lld: %s", (long long)request, what);
}

static void get_keys(void *context, int64_t request, int64_t position, int64_t count,
                     token_key *keys)
{
    require(context == &source, "context", request);
    for (int64_t i = 0; i < count; i++)
        keys[i] = key_of(request, position + i);
}

static void set_up(void)
{
    memset(&source, 0, sizeof source);
    memset(&model, 0, sizeof model);
    source.block_size = 1;
    params = (struct scheduler_params){
        .page_size = 1,
        .num_pages = 1025,
        .max_running_requests = 4,
        .max_context_len = MOST_CONTEXT,
        .prefix_cache = true,
        .keys = get_keys,
        .keys_context = &source,
    };
    host_error_init(&failure);
}

static void tear_down(void)
{
    scheduler_destroy(scheduler);
    scheduler = NULL;
}

static void add_to_source(int64_t input, int64_t output, const char *blocks)
{
    int64_t request = source.num_requests++;
    source.requests[request].input = input;
    source.requests[request].output = output;
    for (; *blocks; blocks++)
        source.requests[request].hash_ids[source.requests[request].num_whole++] = *blocks;
}

static attn_status add(int64_t request)
{
    struct scheduler_request added = {
        .input_length = source.requests[request].input,
        .output_length = source.requests[request].output,
        .shareable_length = source.requests[request].num_whole * source.block_size,
        .arrival_us = source.requests[request].arrival_us,
    };
    return scheduler_add(scheduler, &added, &failure.base);
}

static void create(void)
{
    params.share_unit = source.block_size;
    attn_status status = scheduler_create(&params, &scheduler, &failure.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&failure));
    for (int64_t i = 0; i < source.num_requests; i++)
        ck_assert_msg(add(i) == ATTN_OK, "%s", host_error_text(&failure));
}

/* ---- Running a step -------------------------------------------------------------------------- */

static void absorb(int64_t word)
{
    model.hash = mix_absorb(model.hash, (uint64_t)word);
}

/* A sequence whose prefix is not what it had computed has started (again). */
static void note_start(const struct scheduler_seq *seq)
{
    int64_t request = seq->request;
    if (seq->prefix_len == model.computed[request])
        return;
    require(seq->table_changed == 0, "starts with a stale row", request);
    require(seq->prefix_len % params.page_size == 0, "hit in the middle of a page", request);
    if (seq->prefix_len > model.mark[request]) {
        model.prefix_hit += seq->prefix_len - model.mark[request];
        model.mark[request] = seq->prefix_len;
    }
}

/* Rows are those that the request needs next, and no others. */
static void note_rows(const struct scheduler_seq *seq, bool is_decode)
{
    int64_t request = seq->request;
    int32_t input = (int32_t)source.requests[request].input, mark = model.mark[request];
    int32_t target = mark > input ? mark : input, length = seq->prefix_len + seq->num_new;
    require(seq->num_new >= 1, "no row", request);
    if (is_decode) {
        require(seq->num_new == 1 && seq->prefix_len >= input, "not a decode row", request);
        require(seq->prefix_len == mark, "a decode row that it had already", request);
        model.decode++;
    } else {
        require(length <= target, "prefill beyond the rows it had", request);
        for (int32_t position = seq->prefix_len; position < length; position++) {
            model.prefill++;
            model.recomputed += position < mark;
        }
    }
    model.mark[request] = mark > length ? mark : length;
    model.computed[request] = length;
}

static void write_rows(const struct scheduler_seq *seq, const int64_t *out_cache_loc)
{
    const int32_t *row = request_table_row(scheduler_request_table(scheduler), seq->row);
    int32_t length = seq->prefix_len + seq->num_new;
    require(seq->row >= 1 && seq->row <= params.max_running_requests, "no such row", seq->request);
    require(seq->table_changed <= seq->prefix_len, "new slots not told", seq->request);
    for (int32_t position = seq->table_changed; position < length; position++)
        model.table[seq->row][position] = row[position];
    for (int32_t i = 0; i < seq->num_new; i++) {
        int64_t slot = out_cache_loc[i];
        require(slot >= params.page_size && slot < params.num_pages * params.page_size,
                "slot in the padding page or outside", seq->request);
        require(slot == row[seq->prefix_len + i], "out_cache_loc and table differ", seq->request);
        model.kv[slot] = key_of(seq->request, seq->prefix_len + i);
        absorb(slot);
    }
}

static void read_rows(const struct scheduler_seq *seq)
{
    int32_t length = seq->prefix_len + seq->num_new;
    const int32_t *row = request_table_row(scheduler_request_table(scheduler), seq->row);
    for (int32_t position = 0; position < MOST_CONTEXT; position++) {
        bool inside = position < length;
        int32_t slot = model.table[seq->row][position];
        require(!inside || slot == row[position], "table changed unseen", seq->request);
        require(inside || row[position] == 0, "slot beyond the end", seq->request);
        require(!inside || token_key_equal(model.kv[slot], key_of(seq->request, position)),
                "another token's KV", seq->request);
    }
}

static void check_shape(const struct scheduler_step *step)
{
    int32_t tokens = 0, q_len = 0, kv_len = 0;
    for (int32_t i = 0; i < step->num_seqs; i++) {
        const struct scheduler_seq *seq = &step->seqs[i];
        int32_t length = seq->prefix_len + seq->num_new;
        tokens += seq->num_new;
        q_len = seq->num_new > q_len ? seq->num_new : q_len;
        kv_len = length > kv_len ? length : kv_len;
    }
    int32_t extends = step->num_seqs - step->num_decode_seqs;
    uint32_t mode = extends == 0                 ? ATTN_MODE_DECODE
                    : step->num_decode_seqs == 0 ? ATTN_MODE_EXTEND
                                                 : ATTN_MODE_MIXED;
    int64_t first = step->seqs[0].request;
    require(step->mode == mode && (params.mixed || mode != ATTN_MODE_MIXED), "mode", first);
    require(step->num_tokens == tokens && tokens <= scheduler_max_tokens(scheduler), "num_tokens",
            first);
    require(step->max_q_len == q_len && step->max_kv_len == kv_len, "longest", first);
    require(step->num_seqs <= params.max_running_requests, "num_seqs", first);
    require(params.chunked_prefill_size <= 0 ||
                tokens - step->num_decode_seqs <= params.chunked_prefill_size,
            "chunk", first);
    model.mixed_steps += mode == ATTN_MODE_MIXED;
}

static void run_step(const struct scheduler_step *step)
{
    check_shape(step);
    absorb(step->mode);
    const int64_t *out_cache_loc = step->out_cache_loc;
    for (int32_t i = 0; i < step->num_seqs; i++) {
        const struct scheduler_seq *seq = &step->seqs[i];
        absorb(seq->request);
        absorb(seq->prefix_len);
        note_start(seq);
        note_rows(seq, i >= step->num_seqs - step->num_decode_seqs);
        write_rows(seq, out_cache_loc);
        out_cache_loc += seq->num_new;
    }
    for (int32_t i = 0; i < step->num_seqs; i++)
        read_rows(&step->seqs[i]);
    for (int32_t j = 0; j < MOST_CONTEXT; j++)
        require(request_table_row(scheduler_request_table(scheduler), 0)[j] == 0, "row 0", -1);
}

/* The next step, which there must be. */
static const struct scheduler_step *next(void)
{
    const struct scheduler_step *step = NULL;
    int64_t wake_us;
    require(scheduler_next(scheduler, &step, &wake_us) == SCHEDULER_STEP, "no step", -1);
    return step;
}

static const struct scheduler_step *next_run(void)
{
    const struct scheduler_step *step = next();
    run_step(step);
    return step;
}

static void expect_done(void)
{
    const struct scheduler_step *step = NULL;
    int64_t wake_us;
    ck_assert_int_eq(scheduler_next(scheduler, &step, &wake_us), SCHEDULER_DONE);
    ck_assert_ptr_null(step);
}

static void run_all(void)
{
    const struct scheduler_step *step;
    int64_t wake_us;
    enum scheduler_state state;
    int64_t steps = 0;
    while ((state = scheduler_next(scheduler, &step, &wake_us)) == SCHEDULER_STEP) {
        run_step(step);
        scheduler_complete(scheduler);
        require(++steps < MOST_STEPS, "does not end", -1);
    }
    ck_assert_int_eq(state, SCHEDULER_DONE);
}

/* All requests ended and every figure is what the steps showed, and what the lengths demand. */
static void expect_counts(struct scheduler_counts *counts)
{
    int64_t input = 0, decode = 0;
    for (int64_t i = 0; i < source.num_requests; i++) {
        int64_t output = source.requests[i].output, rows = source.requests[i].input;
        if (model.dropped[i])
            continue;
        input += rows;
        decode += output > 0 ? output - 1 : 0;
        rows += output > 0 ? output - 1 : 0;
        require(model.mark[i] == rows && model.computed[i] == rows, "has not all its rows", i);
    }
    scheduler_count(scheduler, counts);
    ck_assert_int_eq(counts->finished + counts->dropped, source.num_requests);
    ck_assert_int_eq(counts->prefill, model.prefill);
    ck_assert_int_eq(counts->decode, model.decode);
    ck_assert_int_eq(counts->prefix_hit, model.prefix_hit);
    ck_assert_int_eq(counts->recomputed, model.recomputed);
    if (counts->dropped == 0) {
        ck_assert_int_eq(counts->prefill + counts->prefix_hit - counts->recomputed, input);
        ck_assert_int_eq(counts->decode, decode);
    }
    ck_assert_int_eq(counts->kv_capacity, (params.num_pages - 1) * params.page_size);
    ck_assert_int_le(counts->kv_peak, counts->kv_capacity);
    ck_assert_int_eq(scheduler_leaked(scheduler), 0);
}

/* ---- Literal schedules ----------------------------------------------------------------------- */

static void expect_seq(const struct scheduler_step *step, int32_t index, int64_t request,
                       int32_t prefix_len, int32_t num_new)
{
    ck_assert_int_lt(index, step->num_seqs);
    ck_assert_int_eq(step->seqs[index].request, request);
    ck_assert_int_eq(step->seqs[index].prefix_len, prefix_len);
    ck_assert_int_eq(step->seqs[index].num_new, num_new);
}

/* Two requests of 7 tokens, page size 1: rows [1..7], [8..14]; one decode step: 15, 16; the first
 * ends, one more step: second row ends 14, 16, 17; seq_lens [7,7] -> [8,8] -> [-,9]. */
START_TEST(worked_example)
{
    add_to_source(7, 2, "");
    add_to_source(7, 3, "");
    create();
    const struct scheduler_step *step = next_run();
    ck_assert_uint_eq(step->mode, ATTN_MODE_EXTEND);
    expect_seq(step, 0, 0, 0, 7);
    expect_seq(step, 1, 1, 0, 7);
    for (int64_t i = 0; i < 14; i++)
        ck_assert_int_eq(step->out_cache_loc[i], i + 1);
    scheduler_complete(scheduler);
    step = next_run();
    ck_assert_uint_eq(step->mode, ATTN_MODE_DECODE);
    expect_seq(step, 0, 0, 7, 1);
    expect_seq(step, 1, 1, 7, 1);
    ck_assert_int_eq(step->out_cache_loc[0], 15);
    ck_assert_int_eq(step->out_cache_loc[1], 16);
    scheduler_complete(scheduler);
    step = next_run();
    ck_assert_int_eq(step->num_seqs, 1);
    expect_seq(step, 0, 1, 8, 1);
    const int32_t *row = request_table_row(scheduler_request_table(scheduler), 2);
    for (int32_t j = 0; j < 7; j++)
        ck_assert_int_eq(row[j], 8 + j);
    ck_assert_int_eq(row[7], 16);
    ck_assert_int_eq(row[8], 17);
    scheduler_complete(scheduler);
    expect_done();
    struct scheduler_counts counts;
    expect_counts(&counts);
    ck_assert_int_eq(counts.kv_peak, 16);
    ck_assert_int_eq(counts.steps, 3);
}
END_TEST

START_TEST(a_prompt_is_cut_into_chunks)
{
    params.chunked_prefill_size = 7;
    params.page_size = 4;
    add_to_source(10, 1, "");
    add_to_source(6, 0, "");
    create();
    ck_assert_int_eq(scheduler_max_tokens(scheduler), 11);
    const struct scheduler_step *step = next_run();
    ck_assert_int_eq(step->num_seqs, 1);
    expect_seq(step, 0, 0, 0, 7);
    scheduler_complete(scheduler);
    step = next_run();
    expect_seq(step, 0, 0, 7, 3);
    ck_assert_int_eq(step->seqs[0].table_changed, 7);
    expect_seq(step, 1, 1, 0, 4);
    scheduler_complete(scheduler);
    step = next_run();
    expect_seq(step, 0, 1, 4, 2);
    scheduler_complete(scheduler);
    expect_done();
    struct scheduler_counts counts;
    expect_counts(&counts);
    ck_assert_int_eq(counts.decode, 0);
}
END_TEST

START_TEST(mixed_steps_extend_first)
{
    params.chunked_prefill_size = 5;
    params.mixed = true;
    add_to_source(4, 9, "");
    add_to_source(11, 3, "");
    create();
    next_run();
    scheduler_complete(scheduler);
    const struct scheduler_step *step = next_run();
    ck_assert_uint_eq(step->mode, ATTN_MODE_MIXED);
    ck_assert_int_eq(step->num_seqs, 2);
    ck_assert_int_eq(step->num_decode_seqs, 1);
    expect_seq(step, 0, 1, 1, 5);
    expect_seq(step, 1, 0, 4, 1);
    ck_assert_int_eq(step->num_tokens, 6);
    scheduler_complete(scheduler);
    run_all();
    struct scheduler_counts counts;
    expect_counts(&counts);
}
END_TEST

/* Blocks of 5 tokens. The first step computes both prompts; the second request's block is the
 * first's then, and its own copy is gone. A block that is not yet complete is not visible. */
START_TEST(a_prefix_computed_twice_is_kept_once)
{
    source.block_size = 5;
    params.chunked_prefill_size = 20;
    params.max_running_requests = 2;
    add_to_source(12, 1, "ab");
    add_to_source(12, 1, "ab");
    add_to_source(12, 1, "abz");
    source.requests[2].num_whole = 2;
    create();
    const struct scheduler_step *step = next_run();
    expect_seq(step, 0, 0, 0, 12);
    expect_seq(step, 1, 1, 0, 8);
    scheduler_complete(scheduler);
    step = next_run();
    expect_seq(step, 0, 1, 8, 4);
    ck_assert_int_eq(step->seqs[0].table_changed, 0);
    for (int32_t j = 0; j < 5; j++) /* now the first request's */
        ck_assert_int_eq(model.table[2][j], 1 + j);
    ck_assert_int_eq(model.table[2][5], 18); /* still its own */
    expect_seq(step, 1, 2, 10, 2);
    scheduler_complete(scheduler);
    expect_done();
    struct scheduler_counts counts;
    expect_counts(&counts);
    ck_assert_int_eq(counts.prefix_hit, 10);
}
END_TEST

/* A pool of 60 slots for two requests that want 50 each: the younger is retracted, prefills again
 * the rows it had, and decodes on. */
START_TEST(the_youngest_is_retracted_and_resumes)
{
    params.num_pages = 61;
    add_to_source(10, 41, "");
    add_to_source(10, 41, "");
    create();
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
    step = next_run();
    expect_seq(step, 0, 1, 30, 1);
    ck_assert_uint_eq(step->mode, ATTN_MODE_DECODE);
    scheduler_complete(scheduler);
    run_all();
    struct scheduler_counts counts;
    expect_counts(&counts);
    ck_assert_int_eq(counts.retractions, 1);
    ck_assert_int_eq(counts.recomputed, 30);
    ck_assert_int_eq(counts.prefill, 50);
    ck_assert_int_eq(counts.kv_peak, 60);
}
END_TEST

/* 20 decode rows are kept free for each that runs, the newcomer included, or what it has left: of
 * 60 slots the first takes 10 and a reserve of 20, so the second, with 25 and 20, has to wait until
 * the first has ended, and nobody is ever retracted. With 25 and 5 it would start at once. */
START_TEST(a_request_starts_with_a_reserve)
{
    params.num_pages = 61;
    add_to_source(10, 41, "");
    add_to_source(25, _i ? 6 : 21, "");
    create();
    const struct scheduler_step *step = next_run();
    ck_assert_int_eq(step->num_seqs, _i ? 2 : 1);
    scheduler_complete(scheduler);
    run_all();
    struct scheduler_counts counts;
    expect_counts(&counts);
    ck_assert_int_eq(counts.retractions, 0);
    ck_assert_int_eq(counts.steps, _i ? 41 : 41 + 21);
}
END_TEST

static int64_t read_clock(void *context)
{
    return *(int64_t *)context;
}

START_TEST(wall_clock_waits_for_arrivals)
{
    int64_t now_us = 0;
    params.now_us = read_clock;
    params.clock_context = &now_us;
    add_to_source(3, 2, "");
    add_to_source(4, 1, "");
    source.requests[0].arrival_us = 100;
    source.requests[1].arrival_us = 250;
    create();
    const struct scheduler_step *step;
    int64_t wake_us = -1;
    ck_assert_int_eq(scheduler_next(scheduler, &step, &wake_us), SCHEDULER_WAIT);
    ck_assert_int_eq(wake_us, 100);
    now_us = 100;
    expect_seq(next_run(), 0, 0, 0, 3);
    scheduler_complete(scheduler);
    now_us = 249;
    step = next_run();
    ck_assert_uint_eq(step->mode, ATTN_MODE_DECODE);
    scheduler_complete(scheduler);
    ck_assert_int_eq(scheduler_next(scheduler, &step, &wake_us), SCHEDULER_WAIT);
    ck_assert_int_eq(wake_us, 250);
    now_us = 251;
    expect_seq(next_run(), 0, 1, 0, 4);
    scheduler_complete(scheduler);
    expect_done();
}
END_TEST

START_TEST(requests_may_come_later)
{
    create();
    expect_done();
    add_to_source(5, 1, "");
    ck_assert_int_eq(add(0), ATTN_OK);
    run_all();
    struct scheduler_counts counts;
    expect_counts(&counts);
    ck_assert_int_eq(counts.finished, 1);
}
END_TEST

/* ---- Hits ------------------------------------------------------------------------------------ */

static uint64_t draws;

static int64_t draw(int64_t below)
{
    return (int64_t)(mix_stream(23, draws++) % (uint64_t)below);
}

static void draw_source(int64_t num_requests, int64_t most_output)
{
    for (int64_t i = 0; i < num_requests; i++) {
        char blocks[MOST_BLOCKS + 1] = "";
        int64_t input = 1 + draw(90), most = input / source.block_size;
        int64_t num_whole = most < MOST_BLOCKS ? most : MOST_BLOCKS;
        for (int64_t j = 0; j < num_whole; j++)
            blocks[j] = (char)('a' + j * 3 + (draw(3) == 0 ? draw(3) : 0));
        add_to_source(input, draw(4) ? draw(most_output) : draw(2), blocks);
    }
}

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

static const int32_t page_sizes[] = {1, 3, 16};
static const int32_t chunk_sizes[] = {0, 1, 7, 64};

/* One request at a time and no eviction: the hits follow from the lengths and blocks alone. */
START_TEST(hits_follow_the_rule)
{
    params.page_size = page_sizes[_i % 3];
    params.chunked_prefill_size = chunk_sizes[_i / 3];
    params.max_running_requests = 1;
    params.num_pages = MOST_SLOTS / params.page_size;
    source.block_size = _i % 2 ? 11 : 5;
    draws = (uint64_t)_i << 32;
    draw_source(30, 5);
    create();
    int64_t expected = 0;
    for (int64_t i = 0; i < source.num_requests; i++)
        expected += hit_by_the_rule(i);
    ck_assert_int_gt(expected, 0);
    run_all();
    struct scheduler_counts counts;
    expect_counts(&counts);
    ck_assert_int_eq(counts.prefix_hit, expected);
    ck_assert_int_eq(counts.recomputed, 0);
    ck_assert_int_eq(counts.retractions, 0);
}
END_TEST

/* The last token of a prompt is computed even if all of it is cached. */
START_TEST(a_prompt_is_never_hit_whole)
{
    source.block_size = 4;
    params.page_size = _i;
    params.max_running_requests = 1;
    add_to_source(8, 1, "ab");
    add_to_source(8, 1, "ab");
    create();
    run_all();
    struct scheduler_counts counts;
    expect_counts(&counts);
    ck_assert_int_eq(counts.prefix_hit, 7 / _i * _i);
}
END_TEST

START_TEST(without_a_prefix_cache_nothing_is_hit)
{
    params.prefix_cache = false;
    params.keys = NULL;
    add_to_source(8, 1, "abcdefgh");
    add_to_source(8, 1, "abcdefgh");
    create();
    run_all();
    struct scheduler_counts counts;
    expect_counts(&counts);
    ck_assert_int_eq(counts.prefix_hit, 0);
    ck_assert_int_eq(counts.prefill, 16);
}
END_TEST

/* With a pool that holds one request, hits fall and prefill rises by as much. */
START_TEST(eviction_turns_hits_into_prefill)
{
    int64_t prefill[2], hits[2];
    source.block_size = 5;
    params.max_running_requests = 1;
    draw_source(30, 5);
    for (int i = 0; i < 2; i++) {
        params.num_pages = i == 0 ? MOST_SLOTS : 96;
        memset(&model, 0, sizeof model);
        create();
        run_all();
        struct scheduler_counts counts;
        expect_counts(&counts);
        ck_assert_int_eq(counts.recomputed, 0);
        prefill[i] = counts.prefill;
        hits[i] = counts.prefix_hit;
        tear_down();
    }
    ck_assert_int_lt(hits[1], hits[0]);
    ck_assert_int_eq(prefill[1] - prefill[0], hits[0] - hits[1]);
}
END_TEST

/* ---- Random workloads in small pools --------------------------------------------------------- */

#define VARIANTS (3 * 4 * 2 * 2) /* page size, chunk, mixed, requests at a time */

static void set_variant(int variant)
{
    params.page_size = page_sizes[variant % 3];
    params.chunked_prefill_size = chunk_sizes[variant / 3 % 4];
    params.mixed = variant / 12 % 2;
    params.max_running_requests = variant / 24 % 2 ? 3 : MOST_ROWS - 1;
    params.num_pages = 200 / params.page_size + 1;
    source.block_size = variant % 2 ? 11 : 5;
    draws = (uint64_t)variant << 32 | 5;
    draw_source(MOST_REQUESTS / 2, 100);
}

START_TEST(random_workloads_end)
{
    uint64_t hashes[2];
    struct scheduler_counts counts;
    set_variant(_i);
    for (int i = 0; i < 2; i++) {
        memset(&model, 0, sizeof model);
        create();
        run_all();
        expect_counts(&counts);
        hashes[i] = model.hash;
        tear_down();
    }
    ck_assert(hashes[0] == hashes[1]);
    ck_assert_int_gt(counts.retractions, 0);
    ck_assert_int_gt(counts.recomputed, 0);
    ck_assert_int_gt(counts.prefix_hit, 0);
    ck_assert_int_eq(counts.dropped, 0);
    ck_assert(model.mixed_steps > 0 || !params.mixed);
}
END_TEST

/* ---- Failures -------------------------------------------------------------------------------- */

/* All KV and what was in flight is gone; the step that was out had not happened. */
static void lose_device(void)
{
    memset(model.kv, 0xff, sizeof model.kv);
    memset(model.table, 0xff, sizeof model.table);
    memset(model.computed, 0xff, sizeof model.computed); /* -1: none of them is where it was */
    for (int64_t i = 0; i < source.num_requests; i++) {
        int64_t output = source.requests[i].output;
        int64_t rows = source.requests[i].input + (output > 0 ? output - 1 : 0);
        if (model.dropped[i] || model.mark[i] == rows)
            model.computed[i] = model.mark[i];
    }
    scheduler_device_lost(scheduler);
}

static void drop_step(const struct scheduler_step *step)
{
    for (int32_t i = 0; i < step->num_seqs; i++)
        model.dropped[step->seqs[i].request] = true;
    scheduler_drop(scheduler);
}

/* The third request starts behind 20 tokens of the second and computes one; after the loss it
 * starts behind 30, of which it had 21 before. */
START_TEST(hits_count_only_above_the_mark)
{
    source.block_size = 5;
    params.chunked_prefill_size = 31;
    add_to_source(10, 1, "");
    add_to_source(51, 2, "abcdefgh");
    add_to_source(60, 1, "abcdefgh");
    create();
    next_run();
    scheduler_complete(scheduler);
    const struct scheduler_step *step = next_run();
    expect_seq(step, 1, 2, 20, 1);
    scheduler_complete(scheduler);
    lose_device();
    expect_seq(next_run(), 0, 1, 0, 31);
    scheduler_complete(scheduler);
    step = next_run();
    expect_seq(step, 0, 1, 31, 20);
    expect_seq(step, 1, 2, 30, 11);
    scheduler_complete(scheduler);
    run_all();
    struct scheduler_counts counts;
    expect_counts(&counts);
    ck_assert_int_eq(counts.prefix_hit, 20 + 9);
    ck_assert_int_eq(counts.recomputed, 51);
}
END_TEST

START_TEST(device_loss_and_batch_errors_are_survived)
{
    const struct scheduler_step *step;
    int64_t wake_us, losses = 0, drops = 0, number = 0;
    bool may_drop = _i % 2;
    set_variant(_i);
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
    struct scheduler_counts counts;
    expect_counts(&counts);
    ck_assert_int_eq(counts.dropped > 0, drops > 0);
}
END_TEST

START_TEST(a_destroyed_scheduler_may_have_a_step_out)
{
    add_to_source(5, 5, "abcde");
    create();
    next();
}
END_TEST

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

START_TEST(impossible_requests_are_refused)
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
    run_all();
    struct scheduler_counts counts;
    expect_counts(&counts);
    ck_assert_int_eq(counts.requests, 1);
}
END_TEST

START_TEST(impossible_params_are_refused)
{
    struct scheduler_params good = params, bad[4];
    for (int i = 0; i < 4; i++)
        bad[i] = good;
    bad[0].page_size = 0;
    bad[1].max_running_requests = 0;
    bad[2].share_unit = 0;
    bad[3].num_pages = 1;
    for (int i = 0; i < 4; i++) {
        bad[i].share_unit = i == 2 ? 0 : 1;
        ck_assert_int_eq(scheduler_create(&bad[i], &scheduler, &failure.base),
                         ATTN_INVALID_ARGUMENT);
        ck_assert_ptr_null(scheduler);
        ck_assert_ptr_nonnull(strstr(host_error_text(&failure), "accepted"));
    }
}
END_TEST

/* ---- Suite ----------------------------------------------------------------------------------- */

static Suite *suite(void)
{
    Suite *s = suite_create("scheduler");
    TCase *core = tcase_create("core");
    tcase_add_checked_fixture(core, set_up, tear_down);
    tcase_add_test(core, worked_example);
    tcase_add_test(core, a_prompt_is_cut_into_chunks);
    tcase_add_test(core, mixed_steps_extend_first);
    tcase_add_test(core, a_prefix_computed_twice_is_kept_once);
    tcase_add_test(core, the_youngest_is_retracted_and_resumes);
    tcase_add_loop_test(core, a_request_starts_with_a_reserve, 0, 2);
    tcase_add_test(core, wall_clock_waits_for_arrivals);
    tcase_add_test(core, requests_may_come_later);
    suite_add_tcase(s, core);
    TCase *hits = tcase_create("hits");
    tcase_add_checked_fixture(hits, set_up, tear_down);
    tcase_add_loop_test(hits, hits_follow_the_rule, 0, 12);
    tcase_add_loop_test(hits, a_prompt_is_never_hit_whole, 1, 9);
    tcase_add_test(hits, without_a_prefix_cache_nothing_is_hit);
    tcase_add_test(hits, eviction_turns_hits_into_prefill);
    suite_add_tcase(s, hits);
    TCase *random = tcase_create("random");
    tcase_add_checked_fixture(random, set_up, tear_down);
    tcase_set_timeout(random, 60);
    tcase_add_loop_test(random, random_workloads_end, 0, VARIANTS);
    tcase_add_test(random, hits_count_only_above_the_mark);
    tcase_add_loop_test(random, device_loss_and_batch_errors_are_survived, 0, VARIANTS);
    suite_add_tcase(s, random);
    TCase *limits = tcase_create("limits");
    tcase_add_checked_fixture(limits, set_up, tear_down);
    tcase_add_test(limits, a_destroyed_scheduler_may_have_a_step_out);
    tcase_add_loop_test(limits, impossible_requests_are_refused, 0,
                        sizeof bad_requests / sizeof *bad_requests);
    tcase_add_test(limits, impossible_params_are_refused);
    suite_add_tcase(s, limits);
    return s;
}

int main(void)
{
    return test_main(suite());
}
