/* SPDX-License-Identifier: Apache-2.0
 *
 * test_main.h: the tests of a Check program, their groups, and its main().
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

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* ---- Tests and groups --------------------------------------------------------------------------- */

/* A test, and the rounds that it is run for. */
struct test_entry {
    const char *group;
    const TTest *const *test;
    int line, first, end;
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

/* Adds a test that is defined above to a group, for the rounds from `from` up to `to`. */
#define ENTER_TEST(group_name, name, from, to)                                                     \
    __attribute__((constructor)) static void enter_##group_name##_##name##_##from(void)            \
    {                                                                                              \
        static struct test_entry this_test = {                                                     \
            .group = #group_name, .test = &name, .line = __LINE__, .first = (from)};               \
        this_test.end = (int)(to);                                                                 \
        enter_test(&this_test);                                                                    \
    }                                                                                              \
    _Static_assert(1, "")

/* LOOP_OF(group, name, from, to) { ... } defines a test as START_TEST does, and adds it to the group of this name. _i is
 * the round. */
#define LOOP_OF(group_name, name, from, to)                                                        \
    static const TTest *name;                                                                      \
    ENTER_TEST(group_name, name, from, to);                                                        \
    START_TEST(name)
#define TEST_OF(group_name, name) LOOP_OF(group_name, name, 0, 1)

enum { NO_TIMEOUT = -1 };

/* Settings of a group: functions around each test or, _once, around all of them, the seconds of a test, and words that
 * CK_INCLUDE_TAGS and CK_EXCLUDE_TAGS choose. */
struct test_group {
    const char *name;
    SFun set_up, tear_down, set_up_once, tear_down_once;
    int timeout;
    const char *tags;
    bool has_tests;
    struct test_group *next;
};

static inline struct test_group **test_groups(void)
{
    static struct test_group *first;
    return &first;
}

/* GROUP(name, .set_up = set_up, .timeout = 120); */
#define GROUP(group_name, ...)                                                                     \
    __attribute__((constructor)) static void describe_##group_name(void)                           \
    {                                                                                              \
        static struct test_group this_group = {.name = #group_name, __VA_ARGS__};                  \
        this_group.next = *test_groups();                                                          \
        *test_groups() = &this_group;                                                              \
    }                                                                                              \
    _Static_assert(1, "")

/* `others`: the settings of groups that are not described. */
static inline TCase *make_group(const char *name, const struct test_group *others)
{
    TCase *made = tcase_create(name);
    struct test_group *described = *test_groups();
    while (described && strcmp(described->name, name) != 0)
        described = described->next;
    if (described)
        described->has_tests = true;
    const struct test_group *group = described ? described : others;
    tcase_add_checked_fixture(made, group->set_up, group->tear_down);
    tcase_add_unchecked_fixture(made, group->set_up_once, group->tear_down_once);
    if (group->timeout != 0)
        tcase_set_timeout(made, group->timeout == NO_TIMEOUT ? 0 : group->timeout);
    if (group->tags)
        tcase_set_tags(made, group->tags);
    return made;
}

static inline void add_group(Suite *suite, const char *name, const struct test_group *others)
{
    TCase *group = make_group(name, others);
    suite_add_tcase(suite, group);
    for (struct test_entry *entry = *test_entries(); entry; entry = entry->next) {
        if (strcmp(entry->group, name) != 0)
            continue;
        entry->is_added = true;
        for (int round = entry->first; round < entry->end; round++)
            if (case_is_in_part())
                tcase_add_loop_test(group, *entry->test, round, round + 1);
    }
}

/* Run this file's tests, print each in TAP (the driver of `make check` reads it), and return what
 * main() shall return. The environment's CK_FORK, CK_RUN_CASE ... work as documented by Check. */
static inline int test_main_of(const char *name, const struct test_group *others)
{
    Suite *suite = suite_create(name);
    for (struct test_entry *entry = *test_entries(); entry; entry = entry->next)
        if (!entry->is_added)
            add_group(suite, entry->group, others);
    for (struct test_group *group = *test_groups(); group; group = group->next)
        if (!group->has_tests) {
            printf("Bail out! the group %s has no tests\n", group->name);
            return EXIT_FAILURE;
        }
    SRunner *runner = srunner_create(suite);
    srunner_set_tap(runner, "-");
    srunner_run_all(runner, CK_SILENT);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

static inline int test_main(const char *name)
{
    return test_main_of(name, &(const struct test_group){.name = NULL});
}

/* TESTS("name"); is the main() of a program that always runs, TESTS("name", .set_up = set_up) that of one whose groups
 * have these settings where no GROUP() describes them. */
#define TESTS(suite_name, ...)                                                                     \
    int main(void)                                                                                 \
    {                                                                                              \
        return test_main_of(suite_name, &(const struct test_group){.name = NULL, __VA_ARGS__});    \
    }                                                                                              \
    _Static_assert(1, "")

#endif /* TEST_MAIN_H */
