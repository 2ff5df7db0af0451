/* SPDX-License-Identifier: Apache-2.0
 *
 * check_check_cuda.c: the checks that need a CUDA device, on the backend cuda_fixture, which passes
 * them at every graph level. That they fail is seen in the zoo (tests/conformance/zoo.txt).
 */
#include "tests/host/check/cuda_checks_fixture.h"
#include "tests/fixtures/cuda_fixture_kernels.h"

static struct subject_fixture f;
static struct grid *grid;

/* ---- Cases ----------------------------------------------------------------------------------- */

static const struct check *const tables[] = {check_pure_cuda, check_capt};
enum { NUM_TABLES = sizeof tables / sizeof tables[0], ALL_POINTS = -1 };

static void open_backend(const char *graph_level)
{
    const char *options[] = {"graph_level", graph_level};
    use_spy_on_fake();
    cuda_fixture_define(&fake);
    subject_create_host(&f, 1);
    subject_load(&f, "ATTNHOST_TEST_FIXTURE_DIR", "cuda_fixture");
    GOOD(attnhost_define_backend(f.host, "backend", "cuda_fixture", options, 1, &failure.base));
    subject_resolve(&f, "backend", ATTN_DEVICE_CUDA);
    f.subject.fake_device = true;
    f.subject.grid = &grid;
}

static void close_backend(void)
{
    grid_destroy(grid);
    subject_destroy(&f);
}

static void name_check(const struct check *check, char name[64])
{
    snprintf(name, 64, "%s.%s", check->rule, check->name);
}

static bool is_listed(const char *const *list, const char *name)
{
    while (*list && strcmp(*list, name) != 0)
        list++;
    return *list != NULL;
}

/* Those of `skipped`, which ends with NULL, are skipped in all cases, all others pass. */
static void expect_passes_but(const char *const *skipped)
{
    char name[64];
    for (int t = 0; t < NUM_TABLES; t++)
        for (const struct check *check = tables[t]; check->rule; check++) {
            struct tally tally;
            name_check(check, name);
            run_check(&f.subject, check, ALL_POINTS, &tally);
            ck_assert_msg(tally.failed == 0, "%s: %d failed: %s", name, tally.failed, tally.text);
            ck_assert_msg((tally.passed == 0) == is_listed(skipped, name),
                          "%s: %d passed, %d skipped: %s", name, tally.passed, tally.skipped,
                          tally.text);
        }
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Those that look at graphs; and the fixture's launches know no budget. */
static const char *const with_graphs[] = {"CAPT-01.captures", "CAPT-02.replays", "CAPT-02.replans",
                                          "CAPT-03.shapes",   "CAPT-04.padding", "CAPT-05.bits",
                                          "WORK-07.others",   "WORK-08.budget",  NULL};

/* ---- The fixture as it is -------------------------------------------------------------------- */

TEST_OF(fixture, always)
{
    open_backend("always");
    expect_passes_but(LIST("CAPT-01.beyond", "WORK-08.budget"));
    close_backend();
    assert_nothing_left();
    assert_clean();
}

TEST_OF(fixture, never)
{
    open_backend("never");
    expect_passes_but(with_graphs);
    close_backend();
    assert_nothing_left();
    assert_clean();
}

/* Here some cases of both sorts are there. */
LOOP_OF(fixture, in_between, 0, 2)
{
    static const char *const levels[] = {"single_token", "uniform"};
    open_backend(levels[_i]);
    expect_passes_but(LIST("WORK-08.budget"));
    close_backend();
    assert_nothing_left();
    assert_clean();
}

/* ---- A driver without a spy ------------------------------------------------------------------ */

TEST_OF(fixture, no_spy)
{
    use_fake_cuda_in_plugins();
    cuda_fixture_define(&fake);
    subject_create_host(&f, 1);
    subject_load(&f, "ATTNHOST_TEST_FIXTURE_DIR", "cuda_fixture");
    subject_resolve(&f, "cuda_fixture", ATTN_DEVICE_CUDA);
    f.subject.grid = &grid;
    expect_passes_but(LIST("PURE-01.enqueues", "PURE-03.streams", "PURE-04.context",
                           "PURE-07.waits_for_nothing", "PURE-07.staging", "LIFE-09.slots",
                           "ERR-04.lost", "CAPT-01.beyond", "CAPT-03.shapes", "WORK-08.budget"));
    close_backend();
}

TESTS("check_cuda");
