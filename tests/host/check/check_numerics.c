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

/* What is wrong, and the check that says so. `share`: of its cases that pass with nothing wrong,
 * how many in a hundred fail at least; those that do not have nothing of the matter. */
static const struct {
    enum wrong wrong;
    const char *rule, *name;
    int32_t share;
} wrongs[] = {
    {WINDOW_LEFT_LONGER, "MEAN-06", "windows", 50},
    {WINDOW_LEFT_SHORTER, "MEAN-06", "windows", 37},
    {WINDOW_RIGHT_LONGER, "MEAN-06", "windows", 30},
    {CHUNK_LONGER, "MEAN-07", "chunks", 60},
    {CAP_IGNORED, "MEAN-09", "scores", 60},
    {SCALE_OFF, "MEAN-09", "scores", 90},
    {SINKS_IGNORED, "MEAN-12", "sinks", 40},
    {LAST_KEY_DROPPED, "INVAR-01", "grid", 20},
    {POSITION_LATER, "MEAN-04", "positions", 40},
    {ROWS_FROM_ZERO, "MEAN-03", "absolute_rows", 100},
    {MASK_IGNORED, "MEAN-10", "masks", 60},
    {MASK_SHIFTED, "MEAN-10", "masks", 60},
    {POSITIONS_IGNORED, "MEAN-05", "explicit_positions", 50},
    {ITEMS_IGNORED, "MEAN-16", "multi_item", 60},
    {PAGES_SWAPPED, "KV-06", "pages", 60},
    {DECODE_ORDER, "MEAN-02", "mixed", 40},
    {KV_NOT_SAVED, "KV-01", "saved", 100},
    {ALL_SAVED, "KV-01", "saved", 30},
    {OMIT_SINK_IGNORED, "MEAN-12", "sinks", 40},
    {SLOPES_NEGATIVE, "MEAN-09", "scores", 45},
    {SCALES_OFF, "KV-04", "quantised", 100},
    {ONE_KV_HEAD, "KV-02", "partials", 100},
    {CACHE_FOR_ARGUMENTS, "KV-02", "sources", 15},
    {SCALE_MISSING_IS_ONE, "KV-05", "missing_scale", 100},
    {LSE_BASE_2, "MEAN-13", "lse", 100},
    {EMPTY_ROW_NAN, "MEAN-14", "empty_rows", 25},
    {LAST_ROW_MISSING, "MEAN-17", "heads", 100},
    {WRITES_BEYOND, "MEAN-17", "heads", 100},
    {WRITES_QUERY, "MEAN-17", "heads", 100},
    {WRITES_PAGE, "MEAN-17", "heads", 100},
    {TRUNCATES, "KV-04", "quantised", 90},
    {NEIGHBOUR_VALUE, "MEAN-17", "heads", 100},
    {NOT_DETERMINISTIC, "INVAR-02", "same_batch", 100},
    {NOT_INVARIANT, "INVAR-03", "company", 100},
    {OVERRUNS_MEMORY, "MEAN-04", "positions", 100},
    {KEEPS_SCRATCH, "INVAR-02", "same_batch", 100},
    {SCALE_OFF, "MEAN-19", "mla_absorbed", 90},
    {SINKS_IGNORED, "MEAN-19", "mla_scores", 25},
    {MASK_SHIFTED, "MEAN-19", "mla_masks", 40},
    {POSITION_LATER, "MEAN-20", "mla_expanded", 40},
    {LSE_BASE_2, "MEAN-20", "mla_merge", 100},
    {LAST_KEY_DROPPED, "KV-02", "mla_sources", 50},
    {PAGES_SWAPPED, "KV-06", "mla_pages", 60},
    {KV_NOT_SAVED, "KV-10", "mla_saved", 100},
    {ALL_SAVED, "KV-10", "mla_saved", 30},
    {LAST_ROW_MISSING, "INVAR-01", "mla_random", 80},
    {KV_NOT_SAVED, "INVAR-01", "mla_hand_off", 100},
    {LSE_BASE_2, "INVAR-01", "mla_forms_agree", 100},
    {NOT_DETERMINISTIC, "INVAR-02", "mla_same_batch", 100},
    {NOT_INVARIANT, "INVAR-03", "mla_company", 100},
    {ANSWERS_CHANGE, "CAPS-01", "same_answer", 100},
    {ACCEPTS_TOO_MUCH, "CAPS-02", "accepted", 50},
    {REFUSES_TOO_MUCH, "CAPS-03", "refused", 100},
    {METADATA_TOO_EASY, "CAPS-03", "refused_bounds", 80},
    {REASON_MISSING, "CAPS-04", "reasons", 100},
    {REASON_TOO_MANY, "CAPS-04", "reasons", 100},
    {NO_REASON, "CAPS-04", "reasons", 100},
    {UNKNOWN_MODE_TAKEN, "CAPS-05", "unknown", 1},
    {DTYPE_MISNAMED, "CAPS-06", "language", 100},
    {LIST_IN_PROSE, "CAPS-06", "language", 100},
    {REASONS_OVERRUN, "CAPS-07", "capacity", 100},
    {REASONS_CUT, "CAPS-07", "capacity", 100},
    {NEW_TOKENS_BY_SIZE, "CAPS-08", "new_tokens", 100},
    {ANSWERS_CHANGE, "CAPS-01", "mla_same_answer", 100},
    {REASON_MISSING, "CAPS-04", "mla_reasons", 100},
    {REASON_TOO_MANY, "CAPS-04", "mla_reasons", 100},
    {METADATA_TOO_EASY, "CAPS-03", "mla_refused_bounds", 100},
    {LIST_IN_PROSE, "CAPS-06", "mla_language", 100},
    {REASONS_CUT, "CAPS-07", "mla_capacity", 100},
};

enum { WRONGS = sizeof wrongs / sizeof wrongs[0] };

/* Before it stands none of the same check. */
static bool is_first_of_its_check(int32_t n)
{
    for (int32_t m = 0; m < n; m++)
        if (strcmp(wrongs[m].rule, wrongs[n].rule) == 0 &&
            strcmp(wrongs[m].name, wrongs[n].name) == 0)
            return false;
    return true;
}

static int32_t num_checks(void)
{
    int32_t count = 0;
    for (int32_t n = 0; n < WRONGS; n++)
        count += is_first_of_its_check(n);
    return count;
}

static const struct check *nth_check(int32_t nth)
{
    int32_t n = 0;
    while (!is_first_of_its_check(n) || nth-- > 0)
        n++;
    return find_check(wrongs[n].rule, wrongs[n].name);
}

/* A check with nothing wrong, once, and then with all that it has to find. */
LOOP_OF(wrong, what_is_wrong_is_found, 0, num_checks())
{
    const attn_backend_type *real = f.subject.type;
    const struct check *check = nth_check(_i);
    int32_t step = strcmp(check->name, "grid") == 0 ? 4 : 1;
    f.subject.type = make_wrong(real, NOTHING_WRONG);
    struct tally right = run_check(check, step);
    ck_assert_msg(right.fail == 0, "%s", right.first);
    for (int32_t n = 0; n < WRONGS; n++) {
        if (find_check(wrongs[n].rule, wrongs[n].name) != check)
            continue;
        f.subject.type = make_wrong(real, wrongs[n].wrong);
        struct tally wrong = run_check(check, step);
        printf("# %s.%s %d: %d of %d, %s\n", check->rule, check->name, wrongs[n].wrong, wrong.fail,
               right.pass, wrong.first);
        ck_assert_msg(wrong.fail > 0, "%s.%s %d", check->rule, check->name, wrongs[n].wrong);
        ck_assert_msg(wrong.fail * 100 >= right.pass * wrongs[n].share, "%s.%s %d: %d of %d",
                      check->rule, check->name, wrongs[n].wrong, wrong.fail, right.pass);
    }
    f.subject.type = real;
}

GROUP(right, .set_up = open_native, .tear_down = close_native, .timeout = 200);
GROUP(wrong, .set_up = open_native, .tear_down = close_native, .timeout = 200);
GROUP(fixture, .set_up = open_fixture, .tear_down = close_fixture, .timeout = 200);
GROUP(hybrid, .set_up = open_hybrid, .tear_down = close_native, .timeout = 200);
TESTS("numerics");
