/* SPDX-License-Identifier: Apache-2.0
 *
 * check_guard: which call a thread is in, what is looked at after it, and what is said once.
 */
#include "host/plugin/guard.h"

#include <fenv.h>
#include <string.h>

#include "host/base/log.h"
#include "tests/tools/test_main.h"

static const struct guard_party plugin = {"/p/bad.so", NULL};
static const struct guard_party backend = {"/p/bad.so", "bad"};

/* ---- Words ----------------------------------------------------------------------------------- */

TEST_OF(all, calls_are_described)
{
    static const struct {
        const struct guard_party *party;
        const char *entry;
        int32_t layer;
        const char *text;
    } cases[] = {
        {&plugin, "describe", GUARD_NO_LAYER, "describe (/p/bad.so)"},
        {&backend, "create", GUARD_NO_LAYER, "bad: create (/p/bad.so)"},
        {&backend, "forward_decode", 0, "bad: forward_decode of layer 0 (/p/bad.so)"},
        {&backend, "forward_decode", INT32_MAX,
         "bad: forward_decode of layer 2147483647 (/p/bad.so)"},
        {&backend, "forward_decode", INT32_MIN,
         "bad: forward_decode of layer -2147483648 (/p/bad.so)"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct guard_call call = {
            .party = cases[c].party, .entry = cases[c].entry, .layer = cases[c].layer};
        char text[128], cut[8];
        ck_assert_str_eq(guard_describe(&call, text, sizeof text), cases[c].text);
        guard_describe(&call, cut, sizeof cut);
        ck_assert_uint_eq(strlen(cut), sizeof cut - 1);
        ck_assert_int_eq(strncmp(cut, cases[c].text, sizeof cut - 1), 0);
    }
}

/* ---- Calls ----------------------------------------------------------------------------------- */

TEST_OF(all, calls_nest)
{
    struct guard_call outer, inner;
    ck_assert_ptr_null(guard_current);
    guard_enter(&outer, &plugin, "prepare");
    guard_enter_hot(&inner, &backend, "forward_extend", 3);
    ck_assert_ptr_eq(guard_current, &inner);
    ck_assert_ptr_eq(inner.outer, &outer);
    ck_assert(inner.is_hot && !outer.is_hot);
    guard_leave_hot(&inner);
    ck_assert_ptr_eq(guard_current, &outer);
    guard_leave(&outer);
    ck_assert_ptr_null(guard_current);
}

/* What a call of either kind does to rounding is undone, whatever it was before. */
LOOP_OF(all, rounding_is_put_back, 0, 4)
{
    struct guard_call call;
    int before = _i & 2 ? FE_DOWNWARD : FE_TONEAREST;
    fesetround(before);
    if (_i & 1)
        guard_enter_hot(&call, &backend, "forward_extend", 0);
    else
        guard_enter(&call, &backend, "create");
    fesetround(FE_UPWARD);
    if (_i & 1)
        guard_leave_hot(&call);
    else
        guard_leave(&call);
    ck_assert_int_eq(fegetround(), before);
    fesetround(FE_TONEAREST);
}

static int watched;

static void watch(const struct guard_call *call)
{
    ck_assert_ptr_eq(call, guard_current);
    watched++;
}

/* The process is looked at after each call outside a step, once in GUARD_STEPS plans, and never
 * after a forward. */
TEST_OF(all, what_is_watched)
{
    struct guard_call call;
    guard_watch = watch;
    guard_enter(&call, &backend, "create");
    guard_leave(&call);
    ck_assert_int_eq(watched, 1);
    for (int i = 0; i < 100; i++) {
        guard_enter_hot(&call, &backend, "forward_extend", 0);
        guard_leave_hot(&call);
    }
    ck_assert_int_eq(watched, 1);
    for (int i = 0; i < 10 * GUARD_STEPS; i++) {
        guard_enter_hot(&call, &backend, "init_forward_metadata", GUARD_NO_LAYER);
        guard_check_sometimes(&call);
        guard_leave_hot(&call);
    }
    ck_assert_int_eq(watched, 1 + 10);
    guard_watch = NULL;
}

/* ---- Tasks ----------------------------------------------------------------------------------- */

static attn_status see(void *arg, int64_t task, uint32_t worker)
{
    const struct guard_call **seen = arg;
    (void)worker;
    seen[task] = guard_current;
    ck_assert_str_eq(guard_current->entry, "forward_extend");
    ck_assert_int_eq(guard_current->layer, 7);
    fesetround(FE_UPWARD);
    return ATTN_OK;
}

static attn_status run_in_turn(void *ctx, int64_t num_tasks, attn_task task, void *arg)
{
    attn_status status = ATTN_OK;
    (void)ctx;
    for (int64_t t = 0; t < num_tasks && status == ATTN_OK; t++) {
        status = task(arg, t, 0);
        ck_assert_int_eq(fegetround(), FE_TONEAREST);
    }
    return status;
}

/* A task is in the call that handed it over, as one of its own; each is looked after. */
TEST_OF(all, tasks_are_within_the_call)
{
    struct guard_call call;
    const struct guard_call *seen[3] = {NULL};
    guard_enter_hot(&call, &backend, "forward_extend", 7);
    ck_assert_int_eq(guard_parallel_for(run_in_turn, NULL, 3, see, seen), ATTN_OK);
    ck_assert_ptr_eq(guard_current, &call);
    guard_leave_hot(&call);
    for (int t = 0; t < 3; t++)
        ck_assert(seen[t] && seen[t] != &call);
}

TESTS("guard");
