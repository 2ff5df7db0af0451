/* SPDX-License-Identifier: Apache-2.0
 *
 * check_scheduler_flight.c: steps in flight, and what becomes of them.
 *
 * Steps run on the model when they are launched, as on a device that runs them in order. A copy of
 * each waits here until it is confirmed, and is then tallied once more: after every confirmation
 * the scheduler's figures must be those of the confirmed steps.
 */
#include "host/schedule/scheduler.h"

#include <string.h>

#include "attn_problem.h"
#include "tests/host/schedule/scheduler_fixture.h"

#define MAX_IN_FLIGHT 4

struct launched {
    int32_t num_seqs, num_decode_seqs, num_tokens, num_encoder_new, num_snapshots;
    struct scheduler_seq seqs[MAX_ROWS];
    int32_t committed[MAX_ROWS];
    struct scheduler_snapshot snapshots[MAX_DRAFTED * MAX_ROWS];
    int64_t out_cache_loc[SCHEDULER_POOLS][MAX_SLOTS];
};

static struct launched flights[MAX_IN_FLIGHT]; /* a ring: they are large */
static int32_t oldest_flight, num_flights;
static struct tally confirmed;
static int64_t num_confirmed;

/* The flight that was launched so many after the oldest. */
static struct launched *flight_at(int32_t index)
{
    return &flights[(oldest_flight + index) % MAX_IN_FLIGHT];
}

static void set_up_flight(void)
{
    set_up();
    memset(flights, 0, sizeof flights);
    memset(&confirmed, 0, sizeof confirmed);
    num_flights = 0;
    num_confirmed = 0;
    params.max_in_flight = MAX_IN_FLIGHT;
}

/* The same source and params again. */
static void start_over(void)
{
    tear_down();
    memset(&model, 0, sizeof model);
    memset(&confirmed, 0, sizeof confirmed);
    num_flights = 0;
    num_confirmed = 0;
    create();
}

/* ---- Operations, with what they must do to the figures --------------------------------------- */

static bool is_through(const struct tally *tally, int64_t request)
{
    return tally->mark[request] == rows_of(request);
}

/* Requests that are neither over nor in flight come after it. Not all of the source may have been
 * added yet. */
static int64_t first_unfinished(int64_t added)
{
    int64_t first = 0;
    while (first < added && (model.dropped[first] || is_through(&confirmed, first)))
        first++;
    for (int32_t f = 0; f < num_flights; f++)
        for (int32_t i = 0; i < flight_at(f)->num_seqs; i++)
            if (flight_at(f)->seqs[i].request < first)
                first = flight_at(f)->seqs[i].request;
    return first;
}

static void require_figures(void)
{
    struct scheduler_counts counts;
    int64_t finished = 0, dropped = 0;
    for (int64_t i = 0; i < source.num_requests; i++) {
        dropped += model.dropped[i];
        finished += !model.dropped[i] && is_through(&confirmed, i);
    }
    scheduler_count(scheduler, &counts);
    require(scheduler_in_flight(scheduler) == num_flights, "in flight", num_flights);
    require(counts.steps == num_confirmed, "steps", num_confirmed);
    require(scheduler_first_unfinished(scheduler) == first_unfinished(counts.requests),
            "first unfinished", first_unfinished(counts.requests));
    require(counts.finished == finished, "finished", finished);
    require(counts.dropped == dropped, "dropped", dropped);
    require(counts.prefill == confirmed.prefill, "prefill", confirmed.prefill);
    require(counts.decode == confirmed.decode, "decode", confirmed.decode);
    require(counts.prefix_hit == confirmed.prefix_hit, "prefix_hit", confirmed.prefix_hit);
    require(counts.recomputed == confirmed.recomputed, "recomputed", confirmed.recomputed);
}

static void launch(const struct scheduler_step *step)
{
    run_step(step);
    struct launched *copy = flight_at(num_flights++);
    copy->num_seqs = step->num_seqs;
    copy->num_decode_seqs = step->num_decode_seqs;
    copy->num_tokens = step->num_tokens;
    memcpy(copy->seqs, step->seqs, (size_t)step->num_seqs * sizeof *step->seqs);
    for (int32_t i = 0; i < step->num_seqs; i++)
        copy->committed[i] = committed_of(step, i);
    for (int pool = 0; pool < scheduler_num_pools(scheduler); pool++)
        memcpy(copy->out_cache_loc[pool], step->pools[pool].out_cache_loc,
               (size_t)step->num_tokens * sizeof **copy->out_cache_loc);
    copy->num_encoder_new = step->num_encoder_new;
    if (step->num_encoder_new > 0)
        memcpy(copy->out_cache_loc[SCHEDULER_ENCODER], step->pools[SCHEDULER_ENCODER].out_cache_loc,
               (size_t)step->num_encoder_new * sizeof **copy->out_cache_loc);
    copy->num_snapshots = step->num_snapshots;
    memcpy(copy->snapshots, step->snapshots, (size_t)step->num_snapshots * sizeof *step->snapshots);
    scheduler_advance(scheduler);
    require_figures();
}

static const struct scheduler_step *next_launched(void)
{
    const struct scheduler_step *step = next();
    launch(step);
    return step;
}

static void confirm(void)
{
    const struct launched *oldest = flight_at(0);
    for (int32_t i = 0; i < oldest->num_seqs; i++)
        tally_seq(&confirmed, &oldest->seqs[i], oldest->committed[i]);
    oldest_flight = (oldest_flight + 1) % MAX_IN_FLIGHT;
    num_flights--;
    num_confirmed++;
    scheduler_confirm(scheduler);
    require_figures();
}

static void confirm_all(void)
{
    while (num_flights > 0)
        confirm();
}

static void lose_device(void)
{
    num_flights = 0;
    lose_model(&confirmed);
    confirmed = model.rows;
    scheduler_device_lost(scheduler);
    require_figures();
}

static void fail_rows(const struct scheduler_seq *seqs, int32_t num_seqs)
{
    for (int32_t i = 0; i < num_seqs; i++)
        model.dropped[seqs[i].request] = true;
}

static void fail_step(const struct scheduler_step *step)
{
    fail_rows(step->seqs, step->num_seqs);
    for (int pool = 0; pool < scheduler_num_pools(scheduler); pool++)
        poison_slots(pool, step->pools[pool].out_cache_loc, step->num_tokens);
    poison_slots(SCHEDULER_ENCODER, step->pools[SCHEDULER_ENCODER].out_cache_loc,
                 step->num_encoder_new);
    poison_states(step->seqs, step->num_seqs, step->snapshots, step->num_snapshots);
}

static void drop_out(const struct scheduler_step *step)
{
    fail_step(step);
    scheduler_drop(scheduler);
    require_figures();
}

/* The remaining requests have no unconfirmed rows, so the steps in flight might as well never have
 * been. `out` is NULL where no step is out. */
static void drop_flight(const struct scheduler_step *out)
{
    if (out)
        fail_step(out);
    for (; num_flights > 0; num_flights--) {
        const struct launched *flight = flight_at(num_flights - 1);
        fail_rows(flight->seqs, flight->num_seqs);
        for (int pool = 0; pool < scheduler_num_pools(scheduler); pool++)
            poison_slots(pool, flight->out_cache_loc[pool], flight->num_tokens);
        poison_slots(SCHEDULER_ENCODER, flight->out_cache_loc[SCHEDULER_ENCODER],
                     flight->num_encoder_new);
        poison_states(flight->seqs, flight->num_seqs, flight->snapshots, flight->num_snapshots);
    }
    model.rows = confirmed;
    scheduler_drop_flight(scheduler);
    require_figures();
}

static enum scheduler_state ask(void)
{
    const struct scheduler_step *step = NULL;
    int64_t wake_us = -1;
    enum scheduler_state state = scheduler_next(scheduler, &step, &wake_us);
    ck_assert_int_eq(state == SCHEDULER_STEP, step != NULL);
    ck_assert_int_eq(state == SCHEDULER_WAIT, wake_us != -1);
    return state;
}

/* ---- Literal schedules ----------------------------------------------------------------------- */

TEST_OF(core, a_launched_request_has_not_finished)
{
    create_with("3+2");
    next_launched();
    next_launched();
    ck_assert_int_eq(ask(), SCHEDULER_DRAIN);
    confirm();
    ck_assert_int_eq(ask(), SCHEDULER_DRAIN);
    confirm();
    expect_done();
    ck_assert_int_eq(expect_counts()->finished, 1);
}

/* 0 stands for 1. */
LOOP_OF(core, no_more_steps_than_allowed_are_in_flight, 0, MAX_IN_FLIGHT + 1)
{
    params.max_in_flight = _i;
    create_with("3+20");
    int32_t depth = _i > 0 ? _i : 1;
    for (int32_t i = 0; i < depth; i++)
        next_launched();
    for (int32_t i = 0; i < 3; i++) {
        ck_assert_int_eq(ask(), SCHEDULER_DRAIN);
        confirm();
        expect_seq(next_launched(), 0, 0, 3 + depth - 1 + i, 1);
    }
}

/* The pool holds one of them. The second is planned into the first one's slots while the first
 * still runs. */
TEST_OF(core, pages_of_a_launched_request_are_free)
{
    params.num_pages = 11;
    create_with("10+1 8+1");
    next_launched();
    const struct scheduler_step *step = next_launched();
    expect_seq(step, 0, 1, 0, 8);
    for (int64_t i = 0; i < 8; i++)
        ck_assert_int_eq(step->pools[SCHEDULER_ALL].out_cache_loc[i], 1 + i);
    confirm_all();
    expect_done();
    ck_assert_int_eq(expect_counts()->pools[SCHEDULER_ALL].peak, 10);
}

TEST_OF(core, arrivals_are_awaited_with_nothing_in_flight)
{
    int64_t now_us = 0, wake_us = -1;
    const struct scheduler_step *step;
    params.now_us = read_clock;
    params.clock_context = &now_us;
    add_requests("3+1 4+1");
    source.requests[1].arrival_us = 250;
    create();
    next_launched();
    ck_assert_int_eq(ask(), SCHEDULER_DRAIN);
    confirm();
    ck_assert_int_eq(scheduler_next(scheduler, &step, &wake_us), SCHEDULER_WAIT);
    ck_assert_int_eq(wake_us, 250);
    now_us = 250;
    expect_seq(next_launched(), 0, 1, 0, 4);
    confirm();
    expect_done();
}

TEST_OF(core, requests_come_while_steps_are_in_flight)
{
    create();
    for (int64_t i = 0; i < 60; i++) { /* more than there is room for at first */
        add_to_source(2, 1, "");
        ck_assert_int_eq(add(i), ATTN_OK);
        if (num_flights == MAX_IN_FLIGHT)
            confirm();
        expect_seq(next_launched(), 0, i, 0, 2);
    }
    confirm_all();
    expect_done();
    ck_assert_int_eq(expect_counts()->finished, 60);
}

/* ---- Losses ---------------------------------------------------------------------------------- */

/* Requests 1 and 2 were through, but only the end of request 0 is known. */
TEST_OF(losses, lost_requests_wait_again_in_order_of_age)
{
    params.max_running_requests = 1;
    create_with("3+1 3+1 3+1 3+1 3+1");
    for (int i = 0; i < 3; i++)
        next_launched();
    confirm();
    const struct scheduler_step *step = next();
    expect_seq(step, 0, 3, 0, 3);
    lose_device();
    for (int64_t i = 1; i < 5; i++) {
        step = next();
        ck_assert_int_eq(step->number, 3 + i);
        expect_seq(step, 0, i, 0, 3);
        launch(step);
    }
    confirm_all();
    expect_done();
    const struct scheduler_counts *counts = expect_counts();
    ck_assert_int_eq(counts->steps, 5);
    ck_assert_int_eq(counts->recomputed, 0);
    ck_assert_int_eq(counts->retractions, 1);
}

/* Prompt of 4 and three decode rows were launched; the prompt and one of them are known to have
 * ended. Those five rows are computed again, in prefill; the other two, in decode, for the first
 * time that counts. */
TEST_OF(losses, a_lost_request_goes_on_from_what_was_confirmed)
{
    create_with("4+6");
    for (int i = 0; i < 4; i++)
        next_launched();
    confirm();
    confirm();
    lose_device();
    expect_seq(next_launched(), 0, 0, 0, 5);
    const struct scheduler_step *step = next_launched();
    ck_assert_uint_eq(step->mode, ATTN_MODE_DECODE);
    expect_seq(step, 0, 0, 5, 1);
    confirm_all();
    const struct scheduler_counts *counts = run_out();
    ck_assert_int_eq(counts->prefill, 4 + 5);
    ck_assert_int_eq(counts->recomputed, 5);
    ck_assert_int_eq(counts->decode, 5);
}

/* The second request hits 20 tokens of the first in a step that is lost: no hit. */
TEST_OF(losses, a_lost_hit_was_none)
{
    source.block_size = 5;
    add_requests("21+1:abcd 25+1:abcd");
    params.chunked_prefill_size = 21;
    create();
    next_launched();
    expect_seq(next_launched(), 0, 1, 20, 5);
    confirm();
    lose_device();
    expect_seq(next_launched(), 0, 1, 0, 21);
    confirm_all();
    const struct scheduler_counts *counts = run_out();
    ck_assert_int_eq(counts->prefix_hit, 0);
    ck_assert_int_eq(counts->prefill, 21 + 25);
}

/* A pool of 60 slots for two requests that want 50 each. With 30 rows each the younger is
 * retracted while two steps with rows of it are in flight. */
static const struct scheduler_step *retract_the_younger(void)
{
    params.num_pages = 61;
    create_with("10+41 10+41");
    for (int i = 0; i < 21; i++) {
        next_launched();
        if (num_flights > 2)
            confirm();
    }
    expect_seq(&(struct scheduler_step){.seqs = flight_at(1)->seqs, .num_seqs = 2}, 1, 1, 29, 1);
    const struct scheduler_step *step = next();
    ck_assert_int_eq(step->num_seqs, 1);
    expect_seq(step, 0, 0, 30, 1);
    return step;
}

TEST_OF(losses, rows_of_a_retracted_request_still_count)
{
    launch(retract_the_younger());
    confirm_all();
    ck_assert_int_eq(confirmed.mark[1], 30);
    const struct scheduler_counts *counts = run_out();
    ck_assert_int_eq(counts->recomputed, 30);
    ck_assert_int_eq(counts->retractions, 1);
}

TEST_OF(losses, rows_of_a_retracted_request_can_be_lost)
{
    retract_the_younger();
    lose_device();
    expect_seq(next_launched(), 0, 0, 0, 28);
    confirm();
    const struct scheduler_counts *counts = run_out();
    ck_assert_int_eq(counts->recomputed, 28 + 28);
    ck_assert_int_eq(counts->retractions, 2);
}

/* ---- Drops ----------------------------------------------------------------------------------- */

/* A step fails before it runs; what its request computed before still ends, and counts. */
TEST_OF(drops, a_dropped_request_may_have_rows_in_flight)
{
    create_with("3+3");
    next_launched();
    drop_out(next());
    ck_assert_int_eq(ask(), SCHEDULER_DRAIN);
    confirm();
    expect_done();
    const struct scheduler_counts *counts = expect_counts();
    ck_assert_int_eq(counts->dropped, 1);
    ck_assert_int_eq(counts->prefill, 3);
}

/* Request 1 was through; request 2 has no rows in the step. */
TEST_OF(drops, all_requests_of_failed_steps_are_dropped)
{
    params.max_running_requests = 2;
    create_with("4+2 9+0 5+3");
    ck_assert_int_eq(next_launched()->num_seqs, 2);
    drop_flight(NULL);
    expect_seq(next_launched(), 0, 2, 0, 5);
    confirm();
    const struct scheduler_counts *counts = run_out();
    ck_assert_int_eq(counts->dropped, 2);
    ck_assert_int_eq(counts->finished, 1);
}

/* A step of images is in flight; who waits for its own to be encoded has none there. */
TEST_OF(drops, requests_of_failed_images_in_flight_are_dropped)
{
    params.encoder_len = params.chunked_prefill_size = 6;
    create_with("3+2 3+2");
    expect_seq(next(), 0, 0, 0, 6);
    scheduler_advance(scheduler);
    model.dropped[0] = true;
    scheduler_drop_flight(scheduler);
    expect_seq(next(), 0, 1, 0, 6);
    scheduler_complete(scheduler);
    const struct scheduler_counts *counts = run_out();
    ck_assert_int_eq(counts->dropped, 1);
    ck_assert_int_eq(counts->finished, 1);
    ck_assert_int_eq(counts->encoded, 6);
}

/* The last step was confirmed or lost, and none has been launched since. */
LOOP_OF(drops, without_steps_in_flight_nobody_is_dropped, 0, 2)
{
    create_with("4+3");
    next_launched();
    if (_i)
        lose_device();
    else
        confirm();
    drop_flight(NULL);
    expect_seq(next_launched(), 0, 0, _i ? 0 : 4, _i ? 4 : 1);
    confirm();
    ck_assert_int_eq(run_out()->dropped, 0);
}

LOOP_OF(drops, a_retracted_request_of_failed_steps_is_dropped, 0, 2)
{
    const struct scheduler_step *step = retract_the_younger();
    if (_i)
        launch(step);
    drop_flight(_i ? NULL : step);
    expect_done();
    const struct scheduler_counts *counts = expect_counts();
    ck_assert_int_eq(counts->dropped, 2);
    ck_assert_int_eq(counts->decode, 2 * 18);
}

/* Request 0 decodes, and is in no step that fails; its blocks stay. Request 1 adds two blocks and
 * is through, request 2 begins after them; both fail. So request 3 begins after request 0's. */
LOOP_OF(drops, failed_steps_leave_nothing_in_the_prefix_cache, 0, 2)
{
    source.block_size = 5;
    params.chunked_prefill_size = 10;
    params.max_running_requests = 2;
    create_with("10+4:ab 20+1:abcd 21+1:abcd 22+1:abcd");
    next_launched();
    confirm();
    expect_seq(next_launched(), 0, 1, 10, 10);
    const struct scheduler_step *step = next();
    expect_seq(step, 0, 2, 20, 1);
    if (_i)
        launch(step);
    drop_flight(_i ? NULL : step);
    expect_seq(next_launched(), 0, 3, 10, 10);
    confirm();
    const struct scheduler_counts *counts = run_out();
    ck_assert_int_eq(counts->dropped, 2);
    ck_assert_int_eq(counts->finished, 2);
}

TEST_OF(core, a_destroyed_scheduler_may_have_steps_in_flight)
{
    create_with("5+5:abcde");
    next_launched();
    next_launched();
    next();
}

/* ---- Random workloads in small pools --------------------------------------------------------- */

/* Whatever has not ended is in flight with its last rows. */
static void require_reason_to_drain(void)
{
    require(num_flights > 0, "drain with nothing in flight", -1);
    for (int64_t i = 0; num_flights < params.max_in_flight && i < source.num_requests; i++)
        require(model.dropped[i] || is_through(&model.rows, i), "could run", i);
}

static void run_all_in_flight(void)
{
    const struct scheduler_step *step;
    int64_t wake_us;
    enum scheduler_state state;
    int64_t most = 0;
    while ((state = scheduler_next(scheduler, &step, &wake_us)) != SCHEDULER_DONE) {
        if (state == SCHEDULER_STEP) {
            if (num_flights > 0 && draw(5) == 0)
                confirm();
            launch(step);
            most = num_flights > most ? num_flights : most;
        } else {
            ck_assert_int_eq(state, SCHEDULER_DRAIN);
            require_reason_to_drain();
            confirm();
        }
        require(num_confirmed < MAX_STEPS, "does not end", -1);
    }
    ck_assert_int_eq(most, params.max_in_flight);
}

LOOP_OF(random, steps_do_not_depend_on_how_many_are_in_flight, 0, VARIANTS + DRAFTED_VARIANTS)
{
    struct scheduler_counts one_by_one, counts;
    if (_i < VARIANTS)
        set_variant(_i);
    else
        set_drafted_variant(_i - VARIANTS);
    create();
    run_all();
    one_by_one = *expect_counts();
    ck_assert_int_gt(one_by_one.retractions, 0);
    ck_assert(one_by_one.prefix_hit > 0 || has_few_states());
    uint64_t hash = model.hash;
    for (params.max_in_flight = 1; params.max_in_flight <= MAX_IN_FLIGHT; params.max_in_flight++) {
        start_over();
        run_all_in_flight();
        counts = *expect_counts();
        ck_assert(hash == model.hash);
        ck_assert_mem_eq(&counts, &one_by_one, sizeof counts);
    }
}

enum failures { LOSSES = 1, DROPS = 2, FLIGHT_DROPS = 4, MAX_LOSSES = 20 };

/* How often what failed. */
struct failed {
    int64_t losses, drops, flight_drops;
    int64_t deep; /* with as many steps in flight as there can be */
    int64_t ends; /* requests that were through and had not finished */
};

static int64_t unconfirmed_ends(void)
{
    int64_t ends = 0;
    for (int64_t i = 0; i < source.num_requests; i++)
        ends += !model.dropped[i] && is_through(&model.rows, i) && !is_through(&confirmed, i);
    return ends;
}

/* Perhaps something fails, with step `out` or none out; rather, and with losses kept for it, where
 * that undoes the end of a request, which is rare. False: nothing did. */
static bool inject(struct failed *failed, unsigned kinds, const struct scheduler_step *out)
{
    int64_t ends = unconfirmed_ends(), fate = draw(ends > 0 ? 10 : 60);
    int64_t most_losses = ends > 0 ? MAX_LOSSES : MAX_LOSSES / 2;
    bool deep = num_flights == params.max_in_flight;
    if (fate < 2 && kinds & LOSSES && failed->losses < most_losses) {
        failed->losses++;
        lose_device();
    } else if (fate == 2 && kinds & DROPS && out) {
        failed->drops++;
        drop_out(out);
        return true;
    } else if (fate == 3 && kinds & FLIGHT_DROPS) {
        failed->flight_drops++;
        drop_flight(out);
    } else {
        return false;
    }
    failed->deep += deep;
    failed->ends += ends;
    return true;
}

static void run_with_failures(struct failed *failed, unsigned kinds)
{
    const struct scheduler_step *step;
    int64_t wake_us, number = 0;
    enum scheduler_state state;
    while ((state = scheduler_next(scheduler, &step, &wake_us)) != SCHEDULER_DONE) {
        if (state == SCHEDULER_STEP) {
            require(step->number == number++, "number of the step", -1);
            if (num_flights > 0 && draw(5) == 0)
                confirm();
            if (!inject(failed, kinds, step))
                launch(step);
        } else {
            ck_assert_int_eq(state, SCHEDULER_DRAIN);
            require_reason_to_drain();
            if (!inject(failed, kinds, NULL))
                confirm();
        }
        require(number < MAX_STEPS, "does not end", -1);
    }
}

/* A third of all variants for each depth, in which every page size and every chunk meets all of
 * them. */
static int variant_of(int index)
{
    int depth = index / (VARIANTS / 3), variant = index % (VARIANTS / 3);
    int states = (variant % 3 + variant / 3 % 4 + depth) % 3;
    return variant + states * (VARIANTS / 3);
}

/* Each kind of failure by itself, then all of them. Whatever is not dropped ends, with all rows
 * that it must have; without drops the sums are those of the lengths. */
LOOP_OF(random, failures_are_survived, 0,
        (MAX_IN_FLIGHT * VARIANTS / 3 + DRAFTED_VARIANTS + CROSS_VARIANTS))
{
    static const unsigned kinds[] = {LOSSES, DROPS, FLIGHT_DROPS, LOSSES | DROPS | FLIGHT_DROPS};
    int64_t deep = 0, ends = 0;
    int drafted = _i - MAX_IN_FLIGHT * VARIANTS / 3, crossing = drafted - DRAFTED_VARIANTS;
    if (drafted < 0)
        set_variant(variant_of(_i));
    else if (crossing < 0)
        set_drafted_variant(drafted);
    else
        set_cross_variant(crossing);
    params.max_in_flight = 1 + (drafted < 0 ? _i / (VARIANTS / 3) : drafted % MAX_IN_FLIGHT);
    create();
    for (int i = 0; i < 4; i++) {
        struct failed failed = {0};
        struct scheduler_counts counts;
        start_over();
        run_with_failures(&failed, kinds[i]);
        counts = *expect_counts();
        ck_assert_int_eq(counts.dropped > 0, failed.drops + failed.flight_drops > 0);
        ck_assert(failed.losses > 0 || kinds[i] != LOSSES);
        ck_assert(failed.drops > 0 || kinds[i] != DROPS);
        ck_assert(failed.flight_drops > 0 || kinds[i] != FLIGHT_DROPS);
        deep += failed.deep;
        ends += failed.ends;
    }
    ck_assert_int_gt(deep, 0);
    ck_assert_int_gt(ends, 0);
}

/* ---- Suite ----------------------------------------------------------------------------------- */

TESTS("scheduler_flight", .set_up = set_up_flight, .tear_down = tear_down);
