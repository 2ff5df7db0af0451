/* SPDX-License-Identifier: Apache-2.0
 *
 * test_main.h: the end of every Check program of the project.
 */
#ifndef TEST_MAIN_H
#define TEST_MAIN_H

#include <check.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How many cases a test draws at random: as many as it usually does, or $ATTNHOST_TEST_CASES, which
 * is fewer in `make check-valgrind` and more for who looks for something. */
static inline int random_cases(int usual)
{
    const char *given = getenv("ATTNHOST_TEST_CASES");
    int count = given ? atoi(given) : usual;
    return count > 0 ? count : usual;
}

/* A test has 60 seconds, and five times as many where the machine is busy, but as the environment says. Check reads
 * both when a group is made. */
__attribute__((constructor)) static void set_time_limits(void)
{
    setenv("CK_DEFAULT_TIMEOUT", "60", 0);
    setenv("CK_TIMEOUT_MULTIPLIER", "5", 0);
}

/* Of a long program a commit runs a part: with $ATTNHOST_TEST_PART = K/N each N-th case, from the K-th on, counted
 * from 0 (tests/tools/unit_test.sh). A case is a test, or one round of a loop test. */
static inline bool case_is_in_part(void)
{
    static struct {
        int part, parts, num_seen;
    } cases_cut;
    const char *given = getenv("ATTNHOST_TEST_PART");
    if (cases_cut.parts == 0 &&
        (!given || sscanf(given, "%d/%d", &cases_cut.part, &cases_cut.parts) != 2 ||
         cases_cut.parts < 1)) {
        cases_cut.part = 0;
        cases_cut.parts = 1;
    }
    return cases_cut.num_seen++ % cases_cut.parts == cases_cut.part;
}

static inline void add_cases_in_part(TCase *group, const TTest *test, int first, int end)
{
    for (int round = first; round < end; round++)
        if (case_is_in_part())
            tcase_add_loop_test(group, test, round, round + 1);
}

#undef tcase_add_test
#define tcase_add_test(group, test) add_cases_in_part(group, test, 0, 1)
#undef tcase_add_loop_test
#define tcase_add_loop_test(group, test, first, end) add_cases_in_part(group, test, first, end)

/* A test that says where it is defined which group it is of. */
struct test_entry {
    const char *group;
    const TTest *const *test;
    int line;
    bool is_added;
    struct test_entry *next;
};

/* Those of this file, by their lines. */
static inline struct test_entry **test_entries(void)
{
    static struct test_entry *first;
    return &first;
}

static inline void enter_test(struct test_entry *entry)
{
    struct test_entry **place = test_entries();
    while (*place && (*place)->line < entry->line)
        place = &(*place)->next;
    entry->next = *place;
    *place = entry;
}

/* TEST_OF(group, name) { ... } defines a test as START_TEST does, and adds it to the group of this name: to the one that
 * the program makes by tcase_create(), as it must where the group has fixtures, or to one that test_main() makes. */
#define TEST_OF(group_name, name)                                                                  \
    static const TTest *name;                                                                      \
    __attribute__((constructor)) static void enter_##name(void)                                    \
    {                                                                                              \
        static struct test_entry entry = {.group = #group_name, .test = &name, .line = __LINE__};  \
        enter_test(&entry);                                                                        \
    }                                                                                              \
    START_TEST(name)

static inline TCase *make_group(const char *name)
{
    TCase *group = tcase_create(name);
    for (struct test_entry *entry = *test_entries(); entry; entry = entry->next)
        if (strcmp(entry->group, name) == 0) {
            tcase_add_test(group, *entry->test);
            entry->is_added = true;
        }
    return group;
}
#define tcase_create(name) make_group(name)

static inline void add_other_groups(Suite *suite)
{
    for (struct test_entry *entry = *test_entries(); entry; entry = entry->next)
        if (!entry->is_added)
            suite_add_tcase(suite, make_group(entry->group));
}

/* A row of a program's table of tests. Those of a group follow each other. */
struct test_row {
    const char *group;
    const TTest *const *test;
    int loops;
};

static inline Suite *suite_of_rows(const char *name, const struct test_row *rows, size_t count)
{
    Suite *suite = suite_create(name);
    TCase *group = NULL;
    for (size_t r = 0; r < count; r++) {
        if (r == 0 || strcmp(rows[r].group, rows[r - 1].group) != 0)
            suite_add_tcase(suite, group = tcase_create(rows[r].group));
        tcase_add_loop_test(group, *rows[r].test, 0, rows[r].loops);
    }
    return suite;
}

/* Run the suite, print each test in TAP (the driver of `make check` reads it), and return what
 * main() shall return. The environment's CK_FORK, CK_RUN_CASE ... work as documented by Check. */
static inline int test_main(Suite *suite)
{
    add_other_groups(suite);
    SRunner *runner = srunner_create(suite);
    srunner_set_tap(runner, "-");
    srunner_run_all(runner, CK_SILENT);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif /* TEST_MAIN_H */
