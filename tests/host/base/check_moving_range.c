/* SPDX-License-Identifier: Apache-2.0
 *
 * check_moving_range.c: records stay with their numbers while the range moves, and memory follows
 * its width.
 */
#include "host/base/moving_range.h"

#include "tests/tools/test_main.h"

/* A range of 50 numbers moves over 100,000. */
TEST_OF(records, moves)
{
    struct moving_range range = {.size = sizeof(int64_t)};
    for (int64_t n = 0; n < 100000; n++) {
        int64_t *record = moving_range_at(&range, n);
        ck_assert_ptr_nonnull(record);
        ck_assert_int_eq(*record, 0);
        *record = n + 1;
        moving_range_pass(&range, n - 49);
        ck_assert_int_eq(*(int64_t *)moving_range_at(&range, range.first), range.first + 1);
    }
    ck_assert_int_eq(range.first, 100000 - 50);
    ck_assert_int_le(range.capacity, 64);
    moving_range_finish(&range);
    ck_assert_ptr_null(range.at);
}

/* One number stays, and 1,000 come after it. */
TEST_OF(records, grows)
{
    struct moving_range range = {.size = sizeof(int64_t)};
    moving_range_pass(&range, 77);
    for (int64_t n = 77; n < 1077; n++)
        *(int64_t *)moving_range_at(&range, n) = n;
    for (int64_t n = 77; n < 1077; n++)
        ck_assert_int_eq(*(int64_t *)moving_range_at(&range, n), n);
    moving_range_pass(&range, 1000);
    moving_range_pass(&range, 500); /* no effect */
    ck_assert_int_eq(range.first, 1000);
    ck_assert_int_eq(*(int64_t *)moving_range_at(&range, 1000), 1000);
    moving_range_finish(&range);
}

/* Numbers that never had a record are passed; the next one is new. */
TEST_OF(records, passes_beyond_its_end)
{
    struct moving_range range = {.size = sizeof(int64_t)};
    *(int64_t *)moving_range_at(&range, 3) = 5;
    moving_range_pass(&range, INT64_C(1) << 40);
    ck_assert_int_eq(range.first, INT64_C(1) << 40);
    ck_assert_int_eq(*(int64_t *)moving_range_at(&range, (INT64_C(1) << 40) + 3), 0);
    moving_range_finish(&range);
}

TESTS("moving_range");
