/* SPDX-License-Identifier: Apache-2.0
 *
 * check_numerics.c: the groups NUM, INVAR, MLA and CAPS of the conformance suite: backends that
 * keep the rules pass, and what is wrong in one thing fails in the check that is about it.
 */
#include "tests/host/check/subject_fixture.h"
#include "tests/tools/fake_cuda_test.h"
#include "tests/fixtures/cuda_fixture_kernels.h"
#include "tests/tools/wrong_backend.h"

#include "host/check/cases/grid.h"
#include "host/check/cases/kind.h"
#include "host/base/mix.h"

static struct subject_fixture f;
static struct grid *grid;

static void open_native(void)
{
    subject_create_host(&f, 2);
    subject_load(&f, "ATTNHOST_TEST_PLUGIN_DIR", "cpu_native");
    subject_resolve(&f, "cpu_native", ATTN_DEVICE_CPU);
    f.subject.grid = &grid;
}

static void close_native(void)
{
    grid_destroy(grid);
    grid = NULL;
    subject_destroy(&f);
}

/* ---- Running checks -------------------------------------------------------------------------- */

struct tally {
    int32_t pass, fail, skip;
    char first[1024]; /* what the first failure, or the last skip, said */
};

static uint64_t seed_of(const struct check *check, int32_t index)
{
    uint64_t state = mix_absorb(f.subject.seed, (uint64_t)index);
    for (const char *c = check->name; *c; c++)
        state = mix_absorb(state, (uint64_t)*c);
    return state;
}

/* Every `step`th case of a check. */
static struct tally run_check(const struct check *check, int32_t step)
{
    struct tally tally = {0};
    int32_t numbered = kind_count(check, &f.subject), count = numbered < 0 ? 1 : numbered;
    ck_assert_int_gt(count, 0);
    for (int32_t n = 0; n < count; n += step) {
        struct check_run run = {.subject = &f.subject, .check = check, .index = n};
        run.seed = seed_of(check, n);
        GOOD(device_enter(f.subject.device, &failure.base)); /* as the suite's process does */
        check->run(&run);
        device_leave(f.subject.device);
        tally.pass += run.code == CHECK_PASS;
        tally.skip += run.code == CHECK_SKIP;
        ck_assert_msg(run.code == CHECK_PASS || run.text[0], "%s.%s says nothing", check->rule,
                      check->name);
        if (run.code == CHECK_FAIL && tally.fail++ == 0)
            snprintf(tally.first, sizeof tally.first, "%d: %.1000s", n, run.text);
        if (run.code == CHECK_SKIP && tally.fail == 0)
            snprintf(tally.first, sizeof tally.first, "%s", run.text);
    }
    return tally;
}

static const struct check *find_check(const char *rule, const char *name)
{
    const struct check *const tables[] = {check_num,        check_invar,  check_mla,    check_caps,
                                          check_caps_kinds, check_faults, check_repeats};
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++)
        for (const struct check *check = tables[t]; check->rule; check++)
            if (strcmp(check->rule, rule) == 0 && strcmp(check->name, name) == 0)
                return check;
    ck_abort_msg("there is no check %s.%s", rule, name);
    return NULL;
}

static void assert_no_failure(const struct check *table, int32_t step)
{
    for (const struct check *check = table; check->rule; check++) {
        struct tally tally = run_check(check, step);
        ck_assert_msg(tally.fail == 0, "%s.%s: %s", check->rule, check->name, tally.first);
        ck_assert_msg(tally.pass > 0 || tally.first[0], "%s.%s", check->rule, check->name);
    }
}

/* Of the long tables every fifth or seventh case. */
static void assert_all_pass(void)
{
    assert_no_failure(check_num, 7);
    assert_no_failure(check_invar, 5);
    assert_no_failure(check_mla, 5);
    assert_no_failure(check_caps, 5);
    assert_no_failure(check_caps_kinds, 1);
    assert_no_failure(check_strides, 5);
    assert_no_failure(check_codes, 5);
    assert_no_failure(check_repeats, 5);
    assert_no_failure(check_faults, 5);
    assert_no_failure(check_hints, 5);
    assert_no_failure(check_borders, 5);
}

/* ---- What is right --------------------------------------------------------------------------- */

TEST_OF(right, native_passes)
{
    assert_all_pass();
}

/* ---- On the fake driver ---------------------------------------------------------------------- */

static void open_fixture(void)
{
    use_fake_cuda_in_plugins();
    cuda_fixture_define(&fake);
    subject_create_host(&f, 1);
    subject_load(&f, "ATTNHOST_TEST_FIXTURE_DIR", "cuda_fixture");
    subject_resolve(&f, "cuda_fixture", ATTN_DEVICE_CUDA);
    f.subject.grid = &grid;
}

static void close_fixture(void)
{
    close_native();
    assert_nothing_left();
    assert_clean();
}

TEST_OF(fixture, fixture_passes)
{
    assert_all_pass();
    /* Graphs, all of them; what it does not support is skipped with its own words. */
    struct tally graphs = run_check(find_check("CAPT-05", "replay"), 1);
    struct tally cross = run_check(find_check("MEAN-08", "cross"), 1);
    ck_assert_int_gt(graphs.pass, 20);
    ck_assert_int_eq(graphs.skip, 0);
    ck_assert_int_eq(cross.skip, 1);
    ck_assert_str_eq(cross.first, "attn_type 2: accepted decoder");
    struct tally latent = run_check(find_check("MEAN-19", "mla_absorbed"), 1);
    ck_assert_int_eq(latent.skip, 1);
    ck_assert_str_eq(latent.first, "kv_layout mla.latent/1: accepted kv.nhd/1, kv.hnd/1");
}

/* ---- Composites ------------------------------------------------------------------------------ */

static void open_hybrid(void)
{
    static const char *const pairs[] = {"prefill", "cpu_native", "decode", "cpu_native"};
    subject_create_host(&f, 2);
    subject_load(&f, "ATTNHOST_TEST_PLUGIN_DIR", "cpu_native");
    subject_load(&f, "ATTNHOST_TEST_PLUGIN_DIR", "hybrid");
    GOOD(attnhost_define_backend(f.host, "both", "hybrid_phase", pairs, 2, &failure.base));
    subject_resolve(&f, "both", ATTN_DEVICE_CPU);
    f.subject.grid = &grid;
}

TEST_OF(hybrid, hybrid_passes)
{
    assert_all_pass();
}

/* ---- What is wrong --------------------------------------------------------------------------- */

/* What is wrong, and the check that says so, of the checks that no mutant (tests/mutants) and no fault of the zoo
 * fails first. `share`: of its cases that pass with nothing wrong, how many in a hundred fail at least; those that do
 * not have nothing of the matter. */
static const struct {
    enum wrong wrong;
    const char *rule, *name;
    int32_t share;
} wrongs[] = {
    {ONE_KV_HEAD, "KV-02", "partials", 100},
    {LAST_KEY_DROPPED, "KV-02", "mla_sources", 50},
    {NOT_DETERMINISTIC, "INVAR-02", "same_batch", 100},
    {KEEPS_SCRATCH, "INVAR-02", "same_batch", 100},
    {NOT_INVARIANT, "INVAR-03", "company", 100},
    {MASK_SHIFTED, "MEAN-19", "mla_masks", 40},
    {LSE_BASE_2, "MEAN-20", "mla_merge", 100},
    {KV_NOT_SAVED, "INVAR-01", "mla_hand_off", 100},
    {LSE_BASE_2, "INVAR-01", "mla_forms_agree", 100},
    {NOT_DETERMINISTIC, "INVAR-02", "mla_same_batch", 100},
    {NOT_INVARIANT, "INVAR-03", "mla_company", 100},
    {ANSWERS_CHANGE, "CAPS-01", "mla_same_answer", 100},
    {METADATA_TOO_EASY, "CAPS-03", "mla_refused_bounds", 100},
    {LIST_IN_PROSE, "CAPS-06", "mla_language", 100},
    {REASONS_CUT, "CAPS-07", "mla_capacity", 100},
};

LOOP_OF(wrong, what_is_wrong_is_found, 0, COUNT(wrongs))
{
    const attn_backend_type *real = f.subject.type;
    const struct check *check = find_check(wrongs[_i].rule, wrongs[_i].name);
    f.subject.type = make_wrong(real, NOTHING_WRONG);
    struct tally right = run_check(check, 1);
    ck_assert_msg(right.fail == 0, "%s", right.first);
    f.subject.type = make_wrong(real, wrongs[_i].wrong);
    struct tally wrong = run_check(check, 1);
    ck_assert_msg(wrong.fail > 0 && wrong.fail * 100 >= right.pass * wrongs[_i].share,
                  "%s.%s %d: %d of %d, %s", check->rule, check->name, wrongs[_i].wrong, wrong.fail,
                  right.pass, wrong.first);
    f.subject.type = real;
}

GROUP(fixture, .set_up = open_fixture, .tear_down = close_fixture, .timeout = 200);
GROUP(hybrid, .set_up = open_hybrid, .tear_down = close_native, .timeout = 200);
TESTS("numerics", .set_up = open_native, .tear_down = close_native, .timeout = 200);
