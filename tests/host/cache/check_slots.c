/* SPDX-License-Identifier: Apache-2.0
 *
 * check_slots.c: the two-level pools, req_to_token over slots, by the worked example, by edge
 * cases, and by random use against a table of who owns each slot.
 */
#include "host/cache/request_table.h"
#include "host/cache/slots.h"

#include <string.h>

#include "host/base/error.h"
#include "host/base/mix.h"
#include "tests/tools/test_main.h"

static struct slots slots;
static struct request_table table;
static host_error failure;

static void set_up(void)
{
    memset(&slots, 0, sizeof slots);
    memset(&table, 0, sizeof table);
    host_error_init(&failure);
}

static void tear_down(void)
{
    slots_finish(&slots);
    request_table_finish(&table);
}

/* init takes memory as it finds it. */
static void make_slots(int32_t page_size, int64_t num_pages)
{
    memset(&slots, 0xa5, sizeof slots);
    attn_status status = slots_init(&slots, page_size, num_pages, &failure.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&failure));
}

static void make_table(int32_t max_requests, int32_t max_context_len)
{
    memset(&table, 0xa5, sizeof table);
    attn_status status = request_table_init(&table, max_requests, max_context_len, &failure.base);
    ck_assert_msg(status == ATTN_OK, "%s", host_error_text(&failure));
}

static void expect_slots(const int32_t *got, int32_t first, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        ck_assert_int_eq(got[i], first + i);
}

/* ---- The worked example ---------------------------------------------------------------------- */

/* Two requests of 7 tokens, page size 1: rows [1..7], [8..14]; one decode step: 15, 16; the first
 * ends, one more step: the second row ends 14, 16, 17. */
TEST_OF(core, worked_example)
{
    make_slots(1, 64);
    make_table(2, 16);
    int32_t lens[2] = {7, 7};
    int32_t *rows[2];
    for (int i = 0; i < 2; i++) {
        int32_t number = request_table_acquire(&table);
        ck_assert_int_eq(number, i + 1);
        rows[i] = request_table_row(&table, number);
        ck_assert(slots_alloc_extend(&slots, 0, lens[i], 0, rows[i]));
    }
    expect_slots(rows[0], 1, 7);
    expect_slots(rows[1], 8, 7);
    for (int i = 0; i < 2; i++, lens[i - 1]++)
        ck_assert(slots_alloc_extend(&slots, lens[i], 1, rows[i][lens[i] - 1], &rows[i][lens[i]]));
    ck_assert_int_eq(lens[0], 8);
    ck_assert_int_eq(lens[1], 8);
    ck_assert_int_eq(rows[0][7], 15);
    ck_assert_int_eq(rows[1][7], 16);
    for (int32_t j = 0; j < 8; j++)
        slots_free_page(&slots, rows[0][j]);
    request_table_release(&table, 1, 8);
    ck_assert(slots_alloc_extend(&slots, 8, 1, rows[1][7], &rows[1][8]));
    ck_assert_int_eq(rows[1][6], 14);
    ck_assert_int_eq(rows[1][7], 16);
    ck_assert_int_eq(rows[1][8], 17);
    ck_assert_int_eq(slots_capacity(&slots) - slots_free_tokens(&slots), 9);
    ck_assert_int_eq(slots_peak(&slots), 16);
    for (int32_t j = 0; j < 16; j++) {
        ck_assert_int_eq(request_table_row(&table, 0)[j], 0);
        ck_assert_int_eq(rows[0][j], 0);
    }
}

/* ---- Slots ----------------------------------------------------------------------------------- */

TEST_OF(core, a_page_is_filled_before_the_next)
{
    make_slots(4, 6);
    int32_t row[20];
    ck_assert(slots_alloc_extend(&slots, 0, 3, 0, row));
    expect_slots(row, 4, 3);
    ck_assert_int_eq(slots_free_tokens(&slots), 16);
    ck_assert(slots_alloc_extend(&slots, 3, 1, row[2], row + 3));
    ck_assert_int_eq(row[3], 7);
    ck_assert_int_eq(slots_free_tokens(&slots), 16);
    int32_t other[4];
    ck_assert(slots_alloc_extend(&slots, 0, 1, 0, other));
    expect_slots(other, 8, 1);
    ck_assert(slots_alloc_extend(&slots, 4, 6, row[3], row + 4));
    expect_slots(row + 4, 12, 6);
    ck_assert_int_eq(slots_free_tokens(&slots), 4);
    ck_assert_int_eq(slots_capacity(&slots), 20);
}

TEST_OF(core, all_or_nothing)
{
    make_slots(3, 4);
    int32_t row[9] = {0};
    ck_assert(!slots_alloc_extend(&slots, 0, 10, 0, row));
    for (int i = 0; i < 9; i++)
        ck_assert_int_eq(row[i], 0);
    ck_assert_int_eq(slots_free_tokens(&slots), 9);
    ck_assert_int_eq(slots_peak(&slots), 0);
    ck_assert(slots_alloc_extend(&slots, 0, 8, 0, row));
    ck_assert(slots_alloc_extend(&slots, 8, 1, row[7], &row[8])); /* the page's last slot */
    ck_assert_int_eq(row[8], 11);
    int32_t none = -5;
    ck_assert(!slots_alloc_extend(&slots, 9, 1, row[8], &none));
    ck_assert_int_eq(none, -5);
    ck_assert(slots_alloc_extend(&slots, 9, 0, row[8], NULL));
}

TEST_OF(core, freed_pages_come_back_in_the_order_of_their_freeing)
{
    make_slots(1, 5);
    int32_t row[4];
    ck_assert(slots_alloc_extend(&slots, 0, 4, 0, row));
    slots_free_page(&slots, 3);
    slots_free_page(&slots, 1);
    slots_free_page(&slots, 4);
    ck_assert(slots_alloc_extend(&slots, 0, 3, 0, row));
    ck_assert_int_eq(row[0], 3);
    ck_assert_int_eq(row[1], 1);
    ck_assert_int_eq(row[2], 4);
}

TEST_OF(core, freed_pages_are_named_once_and_while_they_are_free)
{
    make_slots(1, 5);
    int32_t row[4];
    ck_assert_int_eq(slots_next_freed(&slots), 0); /* those that never were in use */
    ck_assert(slots_alloc_extend(&slots, 0, 3, 0, row));
    slots_free_page(&slots, 3);
    slots_free_page(&slots, 1);
    ck_assert_int_eq(slots_next_freed(&slots), 3);
    slots_free_page(&slots, 2);
    ck_assert(slots_alloc_extend(&slots, 0, 3, 0, row)); /* 4, 3, 1 */
    ck_assert_int_eq(slots_next_freed(&slots), 2);
    ck_assert_int_eq(slots_next_freed(&slots), 0);
}

static const struct {
    int32_t page_size;
    int64_t num_pages;
    const char *says;
} bad_slots[] = {
    {0, 10, "page_size 0"},
    {-1, 10, "page_size -1"},
    {16, 1, "1 pages"},
    {16, -7, "-7 pages"},
    {1024, 1 << 21, "2097152 pages"},
    {1, INT64_MAX, "9223372036854775807 pages"},
};

LOOP_OF(limits, impossible_pools_are_refused, 0, COUNT(bad_slots))
{
    attn_status status =
        slots_init(&slots, bad_slots[_i].page_size, bad_slots[_i].num_pages, &failure.base);
    ck_assert_int_eq(status, ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(host_error_text(&failure), bad_slots[_i].says));
    ck_assert_ptr_nonnull(strstr(host_error_text(&failure), "accepted"));
}

/* The smallest pool, and the largest one of large pages: the last slot's number fits an int32. */
TEST_OF(limits, the_least_and_the_most_are_accepted)
{
    make_slots(4, 2);
    ck_assert_int_eq(slots_capacity(&slots), 4);
    slots_finish(&slots);
    make_slots(700000000, 3);
    ck_assert_int_eq(slots_capacity(&slots), 1400000000);
    slots_finish(&slots);
    ck_assert_int_eq(slots_init(&slots, 700000000, 4, &failure.base), ATTN_INVALID_ARGUMENT);
    make_table(1, 1);
    ck_assert_int_eq(table.num_rows, 2);
    ck_assert_int_eq(request_table_acquire(&table), 1);
    ck_assert_int_eq(request_table_acquire(&table), 0);
}

TEST_OF(limits, what_is_finished_is_empty_and_may_be_finished_again)
{
    static const struct slots no_slots;
    static const struct request_table no_table;
    make_slots(4, 9);
    make_table(3, 5);
    for (int turn = 0; turn < 2; turn++) {
        slots_finish(&slots);
        request_table_finish(&table);
        ck_assert_int_eq(memcmp(&slots, &no_slots, sizeof slots), 0);
        ck_assert_int_eq(memcmp(&table, &no_table, sizeof table), 0);
    }
}

/* ---- Random use ------------------------------------------------------------------------------ */

#define MAX_PAGES  41
#define MAX_SIZE   16
#define MAX_TOKENS 150
#define SEQUENCES  6

static uint64_t draws;

static int32_t draw(int32_t below)
{
    return (int32_t)(mix_stream(7, draws++) % (uint64_t)below);
}

struct sequence {
    int32_t length;
    int32_t row[MAX_TOKENS];
};

static int32_t page_count(int32_t length, int32_t page_size)
{
    return (length + page_size - 1) / page_size;
}

/* Free pages by counting those that the sequences do not hold. */
static int32_t count_free_pages(const struct sequence *sequences, int32_t num_pages,
                                int32_t page_size)
{
    int32_t used = 0;
    for (int i = 0; i < SEQUENCES; i++)
        used += page_count(sequences[i].length, page_size);
    return num_pages - 1 - used;
}

/* Every slot is in the pool but not in page 0, at the offset of its position, and no other
 * request's; the pages that are marked as allocated are those of the sequences. (Check's assertions
 * are too slow for what is looked at a million times.) */
static bool slots_are_sound(const struct sequence *sequences, int32_t num_pages, int32_t page_size)
{
    bool seen[MAX_PAGES * MAX_SIZE] = {false};
    for (int i = 0; i < SEQUENCES; i++) {
        for (int32_t j = 0; j < sequences[i].length; j++) {
            int32_t slot = sequences[i].row[j];
            if (slot < page_size || slot >= num_pages * page_size || seen[slot] ||
                slot % page_size != j % page_size)
                return false;
            seen[slot] = true;
        }
    }
    for (int32_t page = 0; page < num_pages; page++)
        if (slots.allocated[page] != seen[page * page_size]) /* its first slot is filled first */
            return false;
    return true;
}

static void grow(struct sequence *sequence, int32_t free_pages, int32_t page_size)
{
    int32_t length = sequence->length;
    int32_t more = draw(3) ? 1 : draw(3 * page_size + 2);
    if (length + more > MAX_TOKENS)
        return;
    bool fits = page_count(length + more, page_size) - page_count(length, page_size) <= free_pages;
    int32_t last_slot = length ? sequence->row[length - 1] : -1;
    bool done = slots_alloc_extend(&slots, length, more, last_slot, sequence->row + length);
    ck_assert_int_eq(done, fits);
    sequence->length += done ? more : 0;
}

static const int32_t page_sizes[] = {1, 3, 16};

LOOP_OF(core, random_use, 0, 3)
{
    struct sequence sequences[SEQUENCES];
    int32_t page_size = page_sizes[_i], num_pages = MAX_PAGES - _i;
    memset(sequences, 0, sizeof sequences);
    make_slots(page_size, num_pages);
    int32_t fewest = num_pages - 1;
    draws = (uint64_t)_i << 32;
    for (int turn = 0; turn < 2500; turn++) {
        struct sequence *sequence = &sequences[draw(SEQUENCES)];
        int32_t free_pages = count_free_pages(sequences, num_pages, page_size);
        if (draw(25) == 0) {
            for (int32_t j = 0; j < sequence->length; j += page_size)
                slots_free_page(&slots, sequence->row[j] / page_size);
            sequence->length = 0;
        } else {
            grow(sequence, free_pages, page_size);
        }
        free_pages = count_free_pages(sequences, num_pages, page_size);
        fewest = free_pages < fewest ? free_pages : fewest;
        ck_assert_int_eq(slots_free_tokens(&slots), (int64_t)free_pages * page_size);
        ck_assert_int_eq(slots_peak(&slots), (int64_t)(num_pages - 1 - fewest) * page_size);
        ck_assert(slots_are_sound(sequences, num_pages, page_size));
    }
    ck_assert_int_lt(fewest, 3); /* the pool has been full, or all but full */
}

/* ---- Table ----------------------------------------------------------------------------------- */

TEST_OF(core, rows_are_handed_out_and_cleared)
{
    make_table(3, 5);
    ck_assert_int_eq(table.num_rows, 4);
    for (int32_t row = 1; row <= 3; row++)
        ck_assert_int_eq(request_table_acquire(&table), row);
    ck_assert_int_eq(request_table_acquire(&table), 0);
    for (int32_t j = 0; j < 5; j++)
        request_table_row(&table, 2)[j] = 70 + j;
    request_table_release(&table, 2, 5);
    ck_assert_int_eq(request_table_acquire(&table), 2);
    for (int32_t j = 0; j < 5; j++)
        ck_assert_int_eq(request_table_row(&table, 2)[j], 0);
    ck_assert_ptr_eq(request_table_row(&table, 3), table.slots + 15);
}

/* Under the address sanitizer what is too large is refused as without. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

TEST_OF(limits, tables_that_no_memory_holds_are_refused)
{
    ck_assert_int_eq(request_table_init(&table, INT32_MAX - 1, INT32_MAX, &failure.base),
                     ATTN_OUT_OF_HOST_MEMORY);
    ck_assert_ptr_nonnull(strstr(host_error_text(&failure), "2147483647 rows of 8589934588 bytes"));
    ck_assert_ptr_null(table.slots);
    ck_assert_ptr_null(table.free_rows);
}

TEST_OF(limits, impossible_tables_are_refused)
{
    ck_assert_int_eq(request_table_init(&table, INT32_MAX, 5, NULL), ATTN_INVALID_ARGUMENT);
    ck_assert_int_eq(request_table_init(&table, 0, 5, &failure.base), ATTN_INVALID_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(host_error_text(&failure), "0 requests of 5"));
    ck_assert_int_eq(request_table_init(&table, 5, 0, NULL), ATTN_INVALID_ARGUMENT);
    request_table_finish(&table);
}

TESTS("slots", .set_up = set_up, .tear_down = tear_down);
