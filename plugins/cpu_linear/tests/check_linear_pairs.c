/* SPDX-License-Identifier: Apache-2.0
 *
 * check_linear_pairs: recurrent layers, prefill by one backend, decode by another, for every
 * ordered pair of what there is: `cpu_linear` in chunks, row by row, and with the kernels of the
 * baseline. check_pairs.c does the same with layers that have a KV cache.
 */
#include "tests/host/check/check_subject_fixture.h"

static const char *const backends[] = {"in_chunks", "in_steps", "generic"};
enum { BACKENDS = sizeof backends / sizeof backends[0] };

static char plugin_file[4096];

static void define(const char *name, const char *type, const char *const *pairs, uint32_t count)
{
    GOOD(attnhost_define_backend(host, name, type, (const char **)(uintptr_t)pairs, count,
                                 &error.base));
}

static void open_pair(const char *prefill, const char *decode)
{
    static const char *const in_chunks[] = {"recurrent_tokens", "1"};
    static const char *const in_steps[] = {"recurrent_tokens", "1000000"};
    static const char *const generic[] = {"isa", "generic"};
    static const char *const child[] = {"child", "generic"};
    const char *const children[] = {"prefill", prefill, "decode", decode};
    open_host();
    load_plugin("ATTNHOST_TEST_PLUGIN_DIR", "cpu_linear.so", plugin_file);
    load_plugin("ATTNHOST_TEST_FIXTURE_DIR", "zoo.so", plugin_file);
    load_plugin("ATTNHOST_TEST_PLUGIN_DIR", "hybrid.so", plugin_file);
    define("in_chunks", "cpu_linear", in_chunks, 1);
    define("in_steps", "cpu_linear", in_steps, 1);
    define("generic", "cpu_linear", generic, 1);
    define("state_in_place", "wrap_state_in_place", child, 1);
    define("spoiled_output", "wrap_spoils_linear", child, 1);
    define("pair", "hybrid_phase", children, 2);
    open_subject("pair", plugin_file, ATTN_DEVICE_CPU);
}

enum { FORMS = 4 }; /* of a state: two layouts, two dtypes */

/* Cases of the suite that prefill and then decode a few tokens, the last ones of the first and of
 * the last form of state in their check: one for each family. */
static void expect_cases(enum check_code code)
{
    const struct check *check = check_linear_invar;
    while (strcmp(check->name, "linear_splits") != 0)
        check++;
    int32_t count = count_cases(check), each = count / FORMS;
    ck_assert_int_eq(count % FORMS, 0);
    ck_assert_int_gt(each, ATTN_LINEAR_COUNT);
    for (int32_t index = 0; index < count; index++) {
        bool tried = index / each == 0 || index / each == FORMS - 1;
        if (!tried || index % each < each - ATTN_LINEAR_COUNT)
            continue;
        struct check_run run = run_case(check, index);
        ck_assert_msg(run.code == code, "case %d: %s", index, run.text);
    }
}

LOOP_OF(linear_pairs, every_pair_agrees_with_the_oracle, 0, (BACKENDS * (BACKENDS - 1)))
{
    int first = _i / (BACKENDS - 1), second = _i % (BACKENDS - 1);
    second += second >= first;
    open_pair(backends[first], backends[second]);
    expect_cases(CHECK_PASS);
    close_subject();
}

/* So both do compute. */
LOOP_OF(linear_pairs, a_wrong_one_is_noticed, 0, 2)
{
    open_pair(_i == 0 ? "state_in_place" : "in_steps", _i == 0 ? "in_steps" : "spoiled_output");
    expect_cases(CHECK_FAIL);
    close_subject();
}

TESTS("linear_pairs");
