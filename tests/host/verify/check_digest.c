/* SPDX-License-Identifier: Apache-2.0
 *
 * check_digest.c: the digest against values computed by Python's hashlib from its definition, in
 * any order of arrival and with repetitions.
 */
#include "host/verify/digest.h"

#include <stdbool.h>
#include <string.h>

#include "tests/tools/test_main.h"

#define EMPTY   "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define ONE_ROW "52ae1cc90e6b5ecd16b1eae431810cead47ae12f3b4f74c21c0d85089f07cbf1"
#define FIVE    "091254a69a3a6a73b2a360067b3620ba83023134989918f590d73df67b736a0c"

static struct digest digest;
static uint8_t counting[200];

static const struct {
    int64_t request, position;
    int32_t layer;
    const void *bytes;
    size_t length;
} rows[] = {
    {0, 300, 1, "x", 1},
    {0, 2, 0, NULL, 0},
    {1, 0, 0, "yy", 2},
    {0, 2, 3, "zzz", 3},
    {1000000, 70000, 2, counting, sizeof counting},
};

static void set_up(void)
{
    digest_init(&digest);
    for (size_t i = 0; i < sizeof counting; i++)
        counting[i] = (uint8_t)i;
}

static void tear_down(void)
{
    digest_finish(&digest, NULL);
}

static void add_row(int index)
{
    ck_assert_int_eq(digest_add(&digest, rows[index].request, rows[index].position,
                                rows[index].layer, rows[index].bytes, rows[index].length, NULL),
                     ATTN_OK);
}

static void add_bytes(int64_t request, int64_t position, int32_t layer, const char *bytes)
{
    ck_assert_int_eq(digest_add(&digest, request, position, layer, bytes, strlen(bytes), NULL),
                     ATTN_OK);
}

static void expect_digest(const char *expected)
{
    char hex[65];
    memset(hex, '?', sizeof hex);
    digest_finish(&digest, hex);
    ck_assert_str_eq(hex, expected);
    ck_assert_ptr_null(digest.rows);
}

TEST_OF(rows, nothing)
{
    expect_digest(EMPTY);
    expect_digest(EMPTY);
}

TEST_OF(rows, one_row)
{
    add_bytes(0, 0, 0, "abc");
    expect_digest(ONE_ROW);
}

/* All 120 orders of the five rows: the factorial digits of _i pick the next of those left. */
LOOP_OF(rows, any_order, 0, 120)
{
    int left[] = {0, 1, 2, 3, 4}, code = _i;
    for (int n = 5; n > 0; n--) {
        int pick = code % n;
        code /= n;
        add_row(left[pick]);
        memmove(left + pick, left + pick + 1, (size_t)(n - pick - 1) * sizeof *left);
    }
    expect_digest(FIVE);
}

TEST_OF(rows, repetitions_count_once)
{
    for (int i = 0; i < 5000; i++)
        add_row(i * 7 % 5);
    ck_assert_int_eq(digest.num_rows, 5000);
    expect_digest(FIVE);
}

TEST_OF(rows, first_arrival_counts)
{
    add_bytes(0, 0, 0, "abc");
    for (int i = 0; i < 100; i++)
        add_bytes(0, 0, 0, "other");
    expect_digest(ONE_ROW);
}

/* Rows of 1,000 requests, four at a time, the later ones first. */
static void add_requests(bool seal)
{
    for (int64_t first = 0; first < 1000; first += 4) {
        for (int64_t row = 31; row >= 0; row--)
            add_bytes(first + row % 4, row / 4, 0, "abc");
        if (seal)
            digest_seal(&digest, first + 4);
    }
}

TEST_OF(rows, sealed_rows_leave_memory)
{
    char whole[65];
    add_requests(false);
    ck_assert_int_eq(digest.num_rows, 8000);
    digest_finish(&digest, whole);
    add_requests(true);
    ck_assert_int_eq(digest.arrivals, 8000);
    ck_assert_int_le(digest.capacity, 1024);
    expect_digest(whole);
    ck_assert_ptr_null(digest.hash);
}

/* A request can end before any row was added: none of its rows were sampled. */
TEST_OF(rows, a_seal_comes_first)
{
    digest_seal(&digest, 3);
    add_bytes(0, 0, 0, "abc");
    expect_digest(ONE_ROW);
}

/* A seal says nothing of later requests: more rows of them come, also for a second time. */
TEST_OF(rows, rows_after_a_seal)
{
    char whole[65], sealed[65];
    for (int seal = 0; seal < 2; seal++) {
        add_requests(false);
        if (seal)
            digest_seal(&digest, 500);
        for (int64_t row = 0; row < 8000; row++)
            add_bytes(500 + row % 700, row / 700, 0, row % 700 < 500 ? "other" : "new");
        digest_finish(&digest, seal ? sealed : whole);
    }
    ck_assert_str_eq(sealed, whole);
}

/* One byte, or one number of one place, and all is different. */
TEST_OF(rows, everything_matters)
{
    static const struct {
        int64_t request, position;
        int32_t layer;
        const char *bytes;
    } others[] = {{0, 0, 0, "abd"}, {0, 0, 0, "ab"},  {1, 0, 0, "abc"},
                  {0, 1, 0, "abc"}, {0, 0, 1, "abc"}, {INT64_C(1) << 40, 0, 0, "abc"}};
    char seen[7][65] = {ONE_ROW};
    for (int i = 0; i < 6; i++) {
        add_bytes(others[i].request, others[i].position, others[i].layer, others[i].bytes);
        digest_finish(&digest, seen[i + 1]);
        for (int j = 0; j <= i; j++)
            ck_assert_str_ne(seen[i + 1], seen[j]);
    }
}

GROUP(rows, .set_up = set_up, .tear_down = tear_down);
TESTS("digest");
